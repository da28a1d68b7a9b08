//! The variables of a job's environment.
//!
//! Most jobs of a user bring the same ones, some kilobytes of them, so equal environments share their
//! memory: see [`Environment::shared_among`].

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names and values, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct Environment(Arc<[(String, String)]>);

impl Environment {
    /// Itself, or the equal one of `others`, so that the memory is held once.
    #[must_use]
    pub fn shared_among<'a>(&self, mut others: impl Iterator<Item = &'a Environment>) -> Self {
        others.find(|other| *other == self).unwrap_or(self).clone()
    }

    /// Whether both are held in the same memory.
    #[must_use]
    pub fn is_shared_with(&self, other: &Environment) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where in memory it lies: the same for all that share it.
    pub(crate) fn place(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// With one more variable.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Environment {
        let one = (name.to_owned(), value.to_owned());
        self.iter().cloned().chain([one]).collect()
    }
}

impl Deref for Environment {
    type Target = [(String, String)];

    fn deref(&self) -> &[(String, String)] {
        &self.0
    }
}

impl From<Vec<(String, String)>> for Environment {
    fn from(variables: Vec<(String, String)>) -> Environment {
        Environment(variables.into())
    }
}

impl From<Environment> for Vec<(String, String)> {
    fn from(environment: Environment) -> Vec<(String, String)> {
        environment.to_vec()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Environment {
        Environment(variables.into_iter().collect())
    }
}

//! Operations: one table that requests are looked up in and that the description of the API is generated from.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::shape::{Known, Shape};
use crate::app::{App, Who};
use crate::http::{Reply, Request, decoded};
use crate::problem::Problem;

/// What the schema of a type is.
pub type Schema = fn(&mut Known) -> serde_json::Value;

/// A parameter behind the path.
#[derive(Clone, Copy)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// What it means.
    pub text: &'static str,
    /// Its schema.
    pub schema: Schema,
}

/// One call of an operation.
pub struct Call<'a> {
    /// What is asked.
    pub app: &'a App,
    /// Who asks.
    pub who: &'a Who,
    /// The request.
    pub request: &'a Request,
    /// Parts of the path that are parameters, in order.
    pub parts: Vec<String>,
}

/// One operation.
#[derive(Clone, Copy)]
pub struct Operation {
    /// Method.
    pub method: &'static str,
    /// Path; `{name}` is a parameter.
    pub path: &'static str,
    /// Name of the operation.
    pub id: &'static str,
    /// What it is about.
    pub tag: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Parameters behind the path.
    pub query: &'static [Parameter],
    /// Its body, if it has one.
    pub body: Option<Schema>,
    /// Status and schema of its answer; without a schema it is a stream of events.
    pub answer: (u16, Option<Schema>),
    /// Kinds of problems, besides those that every operation may have.
    pub problems: &'static [&'static str],
    /// Carries it out.
    pub run: fn(&Call<'_>) -> Result<Reply, Problem>,
}

impl Call<'_> {
    /// The body.
    ///
    /// # Errors
    /// If it is not what is expected.
    pub fn body<T: Shape + DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.request.body)
            .map_err(|error| Problem::not_understood(format!("the body: {error}")))
    }

    /// A part of the path.
    ///
    /// # Errors
    /// If it is not one.
    pub fn part<T: std::str::FromStr>(&self, place: usize, what: &str) -> Result<T, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.parts.get(place).map_or("", |text| text);
        text.parse().map_err(|error| {
            Problem::not_understood(format!(
                "\"{text}\" is not the name or number of a {what}: {error}"
            ))
        })
    }

    /// A parameter behind the path.
    ///
    /// # Errors
    /// If it is not one.
    pub fn parameter<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let read = |text: &str| {
            text.parse()
                .map_err(|error| Problem::not_understood(format!("{name}=\"{text}\": {error}")))
        };
        self.request.parameter(name).map(read).transpose()
    }

    /// Whether a parameter is true.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn is_set(&self, name: &str) -> Result<bool, Problem> {
        Ok(self.parameter::<bool>(name)?.unwrap_or(false))
    }
}

impl Operation {
    /// The parameters in a path, if it is this operation's.
    #[must_use]
    pub fn parts(&self, path: &str) -> Option<Vec<String>> {
        let (mut pattern, mut given) = (self.path.split('/'), path.split('/'));
        let mut parts = Vec::new();
        loop {
            match (pattern.next(), given.next()) {
                (None, None) => return Some(parts),
                (Some(name), Some(part)) if name.starts_with('{') && !part.is_empty() => {
                    parts.push(decoded(part));
                }
                (Some(name), Some(part)) if name == part => {}
                _ => return None,
            }
        }
    }
}

/// An answer of a shape.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn sent<T: Shape + Serialize>(status: u16, answer: &T) -> Result<Reply, Problem> {
    let body = serde_json::to_vec(answer)
        .map_err(|error| Problem::own("internal", format!("the answer: {error}")))?;
    Ok(Reply::new(status, "application/json", body))
}

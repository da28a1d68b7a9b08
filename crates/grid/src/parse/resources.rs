//! Counted resources that a job needs: `gpu:2,sas:1`, as Slurm writes them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ParseError;
use crate::vocabulary::ResourceName;

/// The most of one resource that a host, a grid or a job may have.
pub const COUNT_MAX: u32 = 1_000_000;

/// The most different resources of a job.
pub const KINDS_MAX: usize = 32;

/// The resource whose pieces are devices with numbers, each of which one job gets at a time.
pub const GPU: &str = "gpu";

/// The most devices of a host.
pub const GPUS_MAX: u32 = 1024;

/// How much of which resource, by name. A name without a number counts 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources(Vec<(ResourceName, u32)>);

impl Resources {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with how much of it, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, u32)> {
        self.0.iter().map(|(name, count)| (name, *count))
    }

    /// How much of one.
    #[must_use]
    pub fn of(&self, name: &str) -> u32 {
        self.0.iter().find(|(known, _)| known.as_str() == name).map_or(0, |(_, count)| *count)
    }
}

impl FromIterator<(ResourceName, u32)> for Resources {
    /// Those that are given twice are added up.
    fn from_iter<T: IntoIterator<Item = (ResourceName, u32)>>(given: T) -> Resources {
        let mut all = BTreeMap::new();
        for (name, count) in given.into_iter().filter(|(_, count)| *count > 0) {
            let sum: &mut u32 = all.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        Resources(all.into_iter().collect())
    }
}

impl FromStr for Resources {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Resources, ParseError> {
        let mut all: Vec<(ResourceName, u32)> = Vec::new();
        let mut at = 0;
        for part in text.split(',') {
            let start = text[..at].chars().count() + 1;
            let refuse = |reason: String| ParseError {
                what: "resources",
                text: text.to_owned(),
                at: start,
                reason,
            };
            at += part.len() + 1;
            let (name, count) = match part.trim().split_once([':', '=']) {
                Some((name, count)) => (name, Some(count)),
                None => (part.trim(), None),
            };
            let name: ResourceName = name.parse().map_err(refuse)?;
            let allowed = || {
                refuse(format!("expected a number from 1 to {COUNT_MAX}, such as in gpu:2,sas:1"))
            };
            let count = count.map_or(Ok(1), |count| count.trim().parse::<u32>());
            let count = count.ok().filter(|count| (1..=COUNT_MAX).contains(count));
            let count = count.ok_or_else(allowed)?;
            if all.iter().any(|(known, _)| *known == name) {
                return Err(refuse(format!("{name} is named twice")));
            }
            if all.len() >= KINDS_MAX {
                return Err(refuse(format!("at most {KINDS_MAX} resources")));
            }
            all.push((name, count));
        }
        all.sort();
        Ok(Resources(all))
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, count)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{name}:{count}")?;
        }
        Ok(())
    }
}

impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Resources, D::Error> {
        let given = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        // An empty text says that there are none.
        match &*given {
            "" => Ok(Resources::default()),
            given => given.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_have_a_name_and_a_number_which_is_1_if_none_is_given() {
        let read = |text: &str| text.parse::<Resources>().map(|all| all.to_string());
        assert_eq!(read("sas:1,gpu:2").unwrap(), "gpu:2,sas:1");
        assert_eq!(read("sas").unwrap(), "sas:1");
        assert_eq!(read("gpu=4, sas=2").unwrap(), "gpu:4,sas:2");
        for bad in ["", "gpu:0", "gpu:-1", "gpu:x", "gpu:1,gpu:1", ":2", "a b:1", "gpu:1,"] {
            let refused = read(bad).unwrap_err().to_string();
            assert!(refused.contains(bad), "{refused}");
        }
        let again: Resources = read("gpu:2,sas:1").unwrap().parse().unwrap();
        assert_eq!((again.of("gpu"), again.of("sas"), again.of("x")), (2, 1, 0));
    }
}

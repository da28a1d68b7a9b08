//! Job groups: a path that a user gives to jobs, by which they are chosen and limited together.
//!
//! Groups lie in each other like directories, and each user has a tree of his own. A group is there while a job is in it, or as long as
//! its user keeps it. Its limit says how many of its tasks may be on hosts at once, those of groups below it included.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::vocabulary::as_text;

/// The most bytes of a path.
pub const GROUP_BYTES_MAX: usize = 512;

/// The most groups that a user keeps.
pub const GROUPS_MAX: usize = 1000;

/// The path of a job group, such as `/risk/daily`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobGroup(Box<str>);

impl JobGroup {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This group and those in which it lies, from the inside out.
    pub fn and_above(&self) -> impl Iterator<Item = JobGroup> {
        let ends =
            std::iter::once(self.0.len()).chain(self.0.rmatch_indices('/').map(|(at, _)| at));
        ends.filter(|end| *end > 0).map(|end| JobGroup(self.0[..end].into()))
    }

    /// Whether this is another group or lies in it.
    #[must_use]
    pub fn is_within(&self, other: &JobGroup) -> bool {
        let rest = self.0.strip_prefix(&*other.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl FromStr for JobGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<JobGroup, String> {
        let fault = |what: &str| {
            Err(format!("job group \"{}\" {what}; write it as in /risk/daily", text.escape_debug()))
        };
        let Some(rest) = text.strip_prefix('/') else { return fault("does not begin with /") };
        if rest.split('/').any(str::is_empty) {
            return fault("has an empty part");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || "*\"'".contains(c)) {
            return fault("has a blank, a quote, a star or a control character");
        }
        if text.len() > GROUP_BYTES_MAX {
            return fault(&format!("has more than {GROUP_BYTES_MAX} bytes"));
        }
        Ok(JobGroup(text.into()))
    }
}

impl fmt::Display for JobGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

as_text!(JobGroup);

/// What a user does to a group of his own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupVerb {
    /// Keep it, with this limit; it is not there yet.
    Add {
        /// The most tasks on hosts.
        limit: Option<u32>,
    },
    /// Give it this limit, whether it is kept or not.
    Limit {
        /// The most tasks on hosts.
        limit: Option<u32>,
    },
    /// Keep it no longer, nor the groups in it. Refused while jobs in them have not ended.
    Delete,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_parts_and_lies_in_others() {
        let group: JobGroup = "/risk/daily/eu".parse().unwrap();
        let above: Vec<String> = group.and_above().map(|group| group.to_string()).collect();
        assert_eq!(above, ["/risk/daily/eu", "/risk/daily", "/risk"]);
        let within = |other: &str| group.is_within(&other.parse().unwrap());
        assert!(
            within("/risk") && within("/risk/daily/eu") && !within("/risk/da") && !within("/x")
        );
        for bad in ["", "/", "risk", "/risk/", "/a//b", "/a b", "/a*", "/a\"b", "/a\n"] {
            assert!(bad.parse::<JobGroup>().is_err(), "{bad:?}");
        }
        assert!(format!("/{}", "a".repeat(GROUP_BYTES_MAX)).parse::<JobGroup>().is_err());
    }
}

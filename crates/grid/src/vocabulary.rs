//! The words of the grid: points in time, ids and names, each a type of its own.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_base::{Timestamp, id};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time: milliseconds since the Unix epoch. The core never asks for one, it is told.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// Later than every other.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Milliseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `milliseconds` later.
    #[must_use]
    pub fn after(self, milliseconds: u64) -> Moment {
        Moment(self.0.saturating_add(milliseconds))
    }
}

impl From<Timestamp> for Moment {
    /// Times before 1970 become 1970.
    fn from(time: Timestamp) -> Moment {
        let seconds = u64::try_from(time.seconds).unwrap_or(0);
        Moment(seconds.saturating_mul(1000).saturating_add(u64::from(time.nanoseconds) / 1_000_000))
    }
}

id! {
    /// Number of a job; counted from 1, never reused.
    JobId(u64)
}
id! {
    /// Which start of a task this is, counted from 1. A message about another attempt is stale.
    Attempt(u32)
}
id! {
    /// Place of a host in the grid's list of all hosts ever known; a name's place never changes.
    HostId(u32)
}
id! {
    /// Place of a queue in the grid's list of all queues ever known.
    QueueId(u32)
}
id! {
    /// Place of a user in the grid's list of all users ever known; not the system's uid.
    UserId(u32)
}

/// One task: a job, and which element of it if the job is an array. A job that is no array has one
/// task, with index 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct TaskId {
    /// The job.
    pub job: JobId,
    /// The index as the array names it; 0 for a job that is no array.
    pub index: u32,
}

impl TaskId {
    /// The only task of a job that is no array.
    #[must_use]
    pub fn only(job: JobId) -> TaskId {
        TaskId { job, index: 0 }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => self.job.fmt(f),
            index => write!(f, "{}[{index}]", self.job),
        }
    }
}

/// What a command is about: a whole job or one element of an array. Written `12` or `12[3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The job.
    pub job: JobId,
    /// One element; the whole job if none.
    pub index: Option<u32>,
}

impl From<JobId> for Target {
    fn from(job: JobId) -> Target {
        Target { job, index: None }
    }
}

impl From<TaskId> for Target {
    fn from(task: TaskId) -> Target {
        Target { job: task.job, index: Some(task.index).filter(|index| *index != 0) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TaskId { job: self.job, index: self.index.unwrap_or(0) }.fmt(f)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let refused = || format!("\"{text}\" is not a job (examples: 12, 12[3])");
        let (job, index) = match text.strip_suffix(']') {
            Some(rest) => {
                let (job, index) = rest.split_once('[').ok_or_else(refused)?;
                (job, Some(index.parse().ok().filter(|index| *index > 0).ok_or_else(refused)?))
            }
            None => (text, None),
        };
        match job.parse() {
            Ok(number) if number > 0 => Ok(Target { job: JobId(number), index }),
            Ok(_) | Err(_) => Err(refused()),
        }
    }
}

/// The longest name of a host, queue, user or job, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Why `text` cannot be a name of a host, queue or user.
fn name_fault(what: &str, text: &str) -> Option<String> {
    let fine = |c: char| c.is_alphanumeric() || "_.-@$".contains(c);
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Some(format!("the name of a {what} has 1 to {NAME_BYTES_MAX} bytes"));
    }
    if let Some(bad) = text.chars().find(|c| !fine(*c)) {
        return Some(format!(
            "\"{text}\" is not a valid name for a {what}: {bad:?} is not allowed; use letters, digits, _ . - @ $"
        ));
    }
    None
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                match name_fault($what, text) {
                    None => Ok($name(text.into())),
                    Some(fault) => Err(fault),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        as_text!($name);
    };
}

/// Serde for a type that is written as its `Display` and read by its `FromStr`, in every format.
macro_rules! as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}
pub(crate) use as_text;

name! {
    /// Name of a host.
    HostName, "host"
}
name! {
    /// Name of a queue.
    QueueName, "queue"
}
name! {
    /// Name of a user.
    UserName, "user"
}
name! {
    /// Name of an application profile.
    ProfileName, "profile"
}
name! {
    /// Name of a service.
    ServiceName, "service"
}
name! {
    /// Name of an advance reservation.
    ReservationName, "reservation"
}
name! {
    /// Name of a counted resource, such as a licence.
    ResourceName, "resource"
}
name! {
    /// Name of a feature that hosts have.
    FeatureName, "feature"
}

/// Names and their places: a name keeps the place at which it was first seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names<N>(Vec<N>);

impl<N> Default for Names<N> {
    fn default() -> Names<N> {
        Names(Vec::new())
    }
}

impl<N: Clone + Eq> Names<N> {
    /// The name at a place.
    pub fn at(&self, place: u32) -> &N {
        &self.0[place as usize]
    }

    /// The place of a name that was seen before. Looks through all names: for commands, not for
    /// dispatch.
    pub fn find(&self, name: &N) -> Option<u32> {
        self.0.iter().position(|known| known == name).map(|place| place as u32)
    }

    /// The place of a name, the next one if it is seen for the first time.
    pub fn place(&mut self, name: &N) -> u32 {
        self.find(name).unwrap_or_else(|| {
            self.0.push(name.clone());
            self.0.len() as u32 - 1
        })
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &N> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_reads_as_it_is_printed() {
        for text in ["12", "12[3]"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "x", "0", "12[", "12[0]", "12[x]", "12]", "-1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_hold_no_blanks_or_signs_of_lists() {
        for text in ["gridn1", "a.b-c_d", "müller", "user@realm"] {
            assert!(text.parse::<HostName>().is_ok(), "{text}");
        }
        for text in ["", "a b", "a+1", "a!", "a/b", &"x".repeat(129)] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_timestamp_becomes_milliseconds() {
        assert_eq!(Moment::from(Timestamp::new(2, 3_999_999)), Moment(2003));
        assert_eq!(Moment::from(Timestamp::new(-2, 0)), Moment(0));
    }
}

//! What is changed of a job that was submitted.

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use crate::group::JobGroup;
use crate::parse::dependency::Dependency;
use crate::parse::features::Features;
use crate::parse::hosts::HostList;
use crate::parse::period::Period;
use crate::parse::resources::Resources;
use crate::sparse::sparse;
use crate::spec::{JobSpec, Rerun, Sharing};
use crate::vocabulary::{Moment, QueueName, ReservationName};
use crate::warning::Warning;

/// What becomes of something that a job may have or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Set<T> {
    /// It is this.
    To(T),
    /// There is none.
    Nothing,
}

impl<T> Set<T> {
    /// The same of what is made of the value.
    #[must_use]
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Set<U> {
        match self {
            Set::To(value) => Set::To(make(value)),
            Set::Nothing => Set::Nothing,
        }
    }
}

impl<T: Clone> Set<T> {
    /// What it is then, if there is any.
    #[must_use]
    pub fn value(&self) -> Option<T> {
        match self {
            Set::To(value) => Some(value.clone()),
            Set::Nothing => None,
        }
    }
}

/// Where a job goes among the jobs of its user in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// Before all that wait.
    Top,
    /// Behind all that wait.
    Bottom,
}

sparse! {
    /// What is changed of a job; what is none stays as it is.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[expect(missing_docs, reason = "each is that of a job")]
    pub struct Changes {
        pub queue: Option<QueueName>,
        pub name: Option<String>,
        pub slots: Option<u32>,
        pub hosts: Option<HostList>,
        pub memory: Option<Set<ByteSize>>,
        pub resources: Option<Resources>,
        pub sharing: Option<Sharing>,
        pub depends: Option<Set<Dependency>>,
        pub begin: Option<Set<Moment>>,
        pub deadline: Option<Set<Moment>>,
        pub time_limit: Option<Set<Period>>,
        pub priority: Option<i32>,
        pub project: Option<String>,
        pub rerun: Option<Rerun>,
        pub reservation: Option<Set<ReservationName>>,
        pub group: Option<Set<JobGroup>>,
        pub warning: Option<Set<Warning>>,
        pub features: Option<Set<Features>>,
        /// How many elements of an array may be on hosts at once.
        pub running_max: Option<Set<u32>>,
        /// Takes the place of a priority.
        pub rank: Option<Rank>,
    }
}

impl Changes {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// Whether only that is changed which matters when a job starts, which is of no use to one that runs.
    #[must_use]
    pub fn concern_starts_only(&self) -> bool {
        let starts = Changes {
            slots: self.slots,
            hosts: self.hosts.clone(),
            memory: self.memory.clone(),
            resources: self.resources.clone(),
            sharing: self.sharing,
            depends: self.depends.clone(),
            begin: self.begin.clone(),
            running_max: self.running_max.clone(),
            reservation: self.reservation.clone(),
            warning: self.warning.clone(),
            features: self.features.clone(),
            rank: self.rank,
            priority: self.priority,
            ..Changes::default()
        };
        *self == starts
    }

    /// A job with these changes, but for its rank.
    #[must_use]
    pub fn of(&self, spec: &JobSpec) -> JobSpec {
        let mut spec = spec.clone();
        macro_rules! take {
            ($($name:ident),*) => { $(if let Some(value) = &self.$name { spec.$name = value.clone(); })* };
        }
        macro_rules! set {
            ($($name:ident),*) => { $(if let Some(value) = &self.$name { spec.$name = value.value(); })* };
        }
        take!(name, slots, hosts, resources, sharing, priority, project, rerun);
        set!(memory, depends, begin, deadline, time_limit, reservation, group, warning, features);
        if let Some(queue) = &self.queue {
            spec.queue = Some(queue.clone());
        }
        if let (Some(most), Some(array)) = (&self.running_max, &mut spec.array) {
            array.running_max = most.value().filter(|most| *most > 0);
        }
        spec
    }
}

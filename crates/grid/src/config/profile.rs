//! Application profiles: what jobs of one program have in common.

use std::collections::BTreeMap;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use crate::parse::period::Period;
use crate::parse::resources::Resources;
use crate::spec::{JobSpec, Rerun};
use crate::vocabulary::{ProfileName, QueueName};

/// One profile: what a job that names it gets where it says nothing itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileConfig {
    /// Its name.
    pub name: ProfileName,
    /// Queue.
    #[serde(default)]
    pub queue: Option<QueueName>,
    /// Memory that is set aside.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Time limit.
    #[serde(default)]
    pub time_limit: Option<Period>,
    /// Counted resources.
    #[serde(default)]
    pub resources: Resources,
    /// Whether jobs may start again after their host was lost.
    #[serde(default)]
    pub rerun: Rerun,
    /// Shell command before the program.
    #[serde(default)]
    pub pre: Option<String>,
    /// Shell command after it.
    #[serde(default)]
    pub post: Option<String>,
    /// Variables of the environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Whether jobs read and write so much that they are kept from hosts that starve for I/O.
    #[serde(default)]
    pub io_heavy: bool,
}

impl ProfileConfig {
    /// Fills in what a job leaves open.
    pub(crate) fn complete(&self, spec: &mut JobSpec) {
        let or = |own: &mut Option<String>, given: &Option<String>| {
            if own.is_none() {
                own.clone_from(given);
            }
        };
        or(&mut spec.pre, &self.pre);
        or(&mut spec.post, &self.post);
        spec.queue = spec.queue.take().or_else(|| self.queue.clone());
        spec.memory = spec.memory.or(self.memory);
        spec.time_limit = spec.time_limit.or(self.time_limit);
        spec.io_heavy |= self.io_heavy;
        if spec.resources.is_empty() {
            spec.resources = self.resources.clone();
        }
        if spec.rerun == Rerun::AsQueue {
            spec.rerun = self.rerun;
        }
        let is_new = |name: &String| !spec.environment.iter().any(|(known, _)| known == name);
        let more: Vec<(String, String)> = self
            .environment
            .iter()
            .filter(|(name, _)| is_new(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !more.is_empty() {
            spec.environment = spec.environment.iter().cloned().chain(more).collect();
        }
    }
}

//! Hosts as the controller sees them now: contact, load and what is in use. Nothing here lasts.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::config::Load;
use crate::parse::resources::GPU;
use crate::task::{Held, Run};
use crate::vocabulary::{Attempt, Moment, QueueId, ResourceName, TaskId, UserId};

/// What a host has, as its agent says when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Processor cores: its slots, unless settings say otherwise.
    pub cores: u32,
    /// Memory for jobs in bytes, unless settings say otherwise; 0 if it knows no limit.
    pub memory_bytes: u64,
}

/// Whether an agent can be reached, and until when its jobs may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    pub state: Reach,
    /// When it was last heard of.
    pub heard: Moment,
    /// Until when its agent may let jobs run.
    pub leased: Moment,
}

/// Whether an agent can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// It was never heard of, or its jobs were given up.
    Gone,
    /// It can.
    Up,
    /// It cannot, but its jobs may still run.
    Away,
}

/// How much of which resource is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(BTreeMap<ResourceName, u32>);

impl Counts {
    pub fn add(&mut self, held: Option<&Held>) {
        for (name, count) in held.iter().flat_map(|held| held.resources.iter()) {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }

    pub fn remove(&mut self, held: Option<&Held>) {
        for (name, count) in held.iter().flat_map(|held| held.resources.iter()) {
            let Some(used) = self.0.get_mut(name) else { continue };
            *used -= count;
            if *used == 0 {
                self.0.remove(name);
            }
        }
    }

    pub fn of(&self, name: &ResourceName) -> u32 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// One host now.
#[derive(Clone, Debug)]
pub(crate) struct HostNow {
    pub contact: Contact,
    /// Slots it may use, by settings or facts.
    pub slots: u32,
    /// Memory for jobs; no limit if none.
    pub memory_bytes: Option<u64>,
    pub facts: Option<Facts>,
    /// Place in the settings, if it is listed there.
    pub config: Option<usize>,
    pub load: Option<Load>,
    /// Slots of jobs that were started since the last report of load.
    pub since_load: u32,
    pub used_slots: u32,
    pub used_memory: u64,
    /// Counted resources that it has, by settings.
    pub resources: BTreeMap<ResourceName, u32>,
    pub used_resources: Counts,
    /// Numbers of the devices that jobs have.
    pub used_gpus: BTreeSet<u32>,
    /// The job that no other one may run beside.
    pub exclusive: Option<TaskId>,
    /// Used slots by queue's place.
    pub used_by_queue: Vec<u32>,
    /// What runs there, as far as the ledger says.
    pub runs: BTreeSet<TaskId>,
    /// Before this no further job is started on it (interval mode).
    pub rests_until: Moment,
    /// Before this no further job is started on it, as it could not start the last one.
    pub unable_until: Moment,
    /// For how long that was, as no job has begun on it since.
    pub unable_ms: u64,
    /// Whose job that was, and why.
    pub unable_why: Option<(UserId, String)>,
    /// What the work areas of its jobs hold, as far as it was measured.
    pub area_bytes: FxHashMap<TaskId, (Attempt, u64)>,
    /// Tasks that were warned, by when, unless the host was heard of well after that: its connection may have been broken by then, or the
    /// controller that warned them replaced.
    pub unsure_warnings: BTreeMap<TaskId, Moment>,
}

impl Default for HostNow {
    fn default() -> HostNow {
        let contact = Contact { state: Reach::Gone, heard: Moment(0), leased: Moment(0) };
        HostNow {
            contact,
            slots: 0,
            memory_bytes: None,
            facts: None,
            config: None,
            load: None,
            since_load: 0,
            used_slots: 0,
            used_memory: 0,
            resources: BTreeMap::new(),
            used_resources: Counts::default(),
            used_gpus: BTreeSet::new(),
            exclusive: None,
            used_by_queue: Vec::new(),
            runs: BTreeSet::new(),
            rests_until: Moment(0),
            unable_until: Moment(0),
            unable_ms: 0,
            unable_why: None,
            area_bytes: FxHashMap::default(),
            unsure_warnings: BTreeMap::new(),
        }
    }
}

impl HostNow {
    pub fn occupy(&mut self, task: TaskId, queue: QueueId, run: &Run) {
        self.used_slots += run.busy_slots();
        self.used_memory += run.memory_bytes;
        if self.used_by_queue.len() <= queue.0 as usize {
            self.used_by_queue.resize(queue.0 as usize + 1, 0);
        }
        self.used_by_queue[queue.0 as usize] += run.busy_slots();
        self.used_resources.add(run.held.as_deref());
        if let Some(held) = &run.held {
            self.used_gpus.extend(&held.gpus);
            self.exclusive = held.exclusive.then_some(task).or(self.exclusive);
        }
        self.runs.insert(task);
    }

    pub fn vacate(&mut self, task: TaskId, queue: QueueId, run: &Run) {
        self.used_slots -= run.busy_slots();
        self.used_memory -= run.memory_bytes;
        self.used_by_queue[queue.0 as usize] -= run.busy_slots();
        self.used_resources.remove(run.held.as_deref());
        for gpu in run.held.iter().flat_map(|held| &held.gpus) {
            self.used_gpus.remove(gpu);
        }
        if self.exclusive == Some(task) {
            self.exclusive = None;
        }
        self.runs.remove(&task);
    }

    pub fn used_by(&self, queue: QueueId) -> u32 {
        self.used_by_queue.get(queue.0 as usize).copied().unwrap_or(0)
    }

    /// Numbers of devices that no job has, the lowest first; as many as are wanted, or all that there are.
    pub fn free_gpus(&self, wanted: u32) -> Vec<u32> {
        let all = 0..self.resources.get(GPU).copied().unwrap_or(0);
        all.filter(|gpu| !self.used_gpus.contains(gpu)).take(wanted as usize).collect()
    }

    pub fn free_slots(&self) -> u32 {
        self.slots.saturating_sub(self.used_slots)
    }

    /// Load per slot in thousandths: slots in use, or processes that want a processor if that is more,
    /// with the jobs that were started since the load was measured.
    pub fn load_milli(&self) -> u32 {
        let slots = f64::from(self.slots.max(1));
        let measured = self.load.map_or(0.0, |load| load.r15s * slots + f64::from(self.since_load));
        let busy = measured.max(f64::from(self.used_slots));
        // Saturates; a load that is no number counts as none.
        (busy / slots * 1000.0) as u32
    }
}

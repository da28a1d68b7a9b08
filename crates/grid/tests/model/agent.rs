//! An agent as it has to be: it obeys what reaches it, remembers what it started, and ends everything
//! once its lease is over.

use std::collections::BTreeMap;

use forebay_grid::event::{Joined, Memory, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::Exit;
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};

/// A process on a host.
#[derive(Clone, Debug)]
pub struct Process {
    pub confirmed: bool,
    pub stopped: bool,
    /// How it ended, while the grid has not been told.
    pub exit: Option<Exit>,
}

#[derive(Debug)]
pub struct Agent {
    pub name: HostName,
    pub cores: u32,
    pub memory_bytes: u64,
    pub connected: bool,
    pub leased: Moment,
    pub processes: BTreeMap<(TaskId, Attempt), Process>,
}

impl Agent {
    pub fn new(name: &str, cores: u32, memory_bytes: u64) -> Agent {
        Agent {
            name: name.parse().unwrap(),
            cores,
            memory_bytes,
            connected: false,
            leased: Moment(0),
            processes: BTreeMap::new(),
        }
    }

    pub fn joined(&self, memory: Memory) -> Joined {
        let report = |(key, process): (&(TaskId, Attempt), &Process)| RunReport {
            task: key.0,
            attempt: key.1,
            status: match (&process.exit, process.stopped) {
                (Some(exit), _) => RunStatus::Exited(exit.clone(), None),
                (None, true) => RunStatus::Stopped,
                (None, false) => RunStatus::Running,
            },
        };
        Joined {
            host: self.name.clone(),
            facts: Facts { cores: self.cores, memory_bytes: self.memory_bytes },
            memory,
            runs: self.processes.iter().map(report).collect(),
        }
    }

    /// Ends everything once the lease is over.
    pub fn fence(&mut self, now: Moment) {
        if now >= self.leased {
            for process in self.processes.values_mut() {
                process.exit.get_or_insert(Exit::Signal(9));
            }
        }
    }

    pub fn live(&self) -> impl Iterator<Item = TaskId> {
        self.processes.iter().filter(|(_, process)| process.exit.is_none()).map(|(key, _)| key.0)
    }
}

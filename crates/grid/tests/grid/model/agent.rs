//! An agent as it has to be: it obeys what reaches it, remembers what it started, and ends everything
//! once its lease is over.

use std::collections::BTreeMap;

use forebay_grid::config::HostEngine;
use forebay_grid::event::{Event, Joined, Loss, Memory, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::Exit;
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};

/// A process on a host.
#[derive(Clone, Debug)]
pub struct Process {
    pub confirmed: bool,
    pub stopped: bool,
    /// How it ended, while the grid has not been told.
    pub end: Option<End>,
}

/// How a process ended.
#[derive(Clone, Debug)]
pub enum End {
    Exited(Exit),
    Lost(Loss),
}

#[derive(Debug)]
pub struct Agent {
    pub name: HostName,
    pub cores: u32,
    pub memory_bytes: u64,
    pub connected: bool,
    pub leased: Moment,
    /// Whether it can start nothing.
    pub sick: bool,
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
            sick: false,
            processes: BTreeMap::new(),
        }
    }

    pub fn joined(&self, memory: Memory) -> Joined {
        let report = |(key, process): (&(TaskId, Attempt), &Process)| RunReport {
            task: key.0,
            attempt: key.1,
            status: match (&process.end, process.stopped) {
                (Some(End::Exited(exit)), _) => RunStatus::Exited(exit.clone(), None),
                (Some(End::Lost(loss)), _) => RunStatus::Lost(loss.clone()),
                (None, true) => RunStatus::Stopped,
                (None, false) => RunStatus::Running,
            },
        };
        Joined {
            host: self.name.clone(),
            facts: Facts { cores: self.cores, memory_bytes: self.memory_bytes },
            memory,
            engine: HostEngine::Agent,
            runs: self.processes.iter().map(report).collect(),
        }
    }

    /// Ends everything once the lease is over.
    pub fn fence(&mut self, now: Moment) {
        if now >= self.leased {
            for process in self.processes.values_mut() {
                process.end.get_or_insert(End::Lost(Loss::Lease));
            }
        }
    }

    /// What it tells of one process that ended, which it then forgets.
    pub fn take_end(&mut self) -> Option<Event> {
        let ended = |(key, process): (&(TaskId, Attempt), &Process)| {
            process.end.clone().map(|end| (*key, end))
        };
        let ((task, attempt), end) = self.processes.iter().find_map(ended)?;
        self.processes.remove(&(task, attempt));
        let host = self.name.clone();
        Some(match end {
            End::Exited(exit) => Event::Exited { host, task, attempt, exit, usage: None },
            End::Lost(loss) => Event::Lost { host, task, attempt, loss },
        })
    }

    pub fn live(&self) -> impl Iterator<Item = TaskId> {
        self.processes.iter().filter(|(_, process)| process.end.is_none()).map(|(key, _)| key.0)
    }
}

//! Settings of a queue, and load thresholds.

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Processors;
use crate::parse::hosts::HostList;
use crate::parse::period::Period;
use crate::parse::window::Windows;
use crate::vocabulary::{QueueName, UserName};
use crate::wrap::Spill;

/// In which order the users of a queue take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Who submitted first.
    #[default]
    FirstCome,
    /// Who used least of his share.
    FairShare,
}

/// Whether jobs of a queue may be started again after their host was lost, unless they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunDefault {
    /// They may.
    Rerunnable,
    /// They may not.
    #[default]
    Once,
}

/// What happens to a job whose work areas hold more than its queue allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaExceeded {
    /// It runs on, and `explain` says so.
    #[default]
    Warn,
    /// It is suspended until the areas hold no more than that, or the limit is raised.
    Hold,
    /// It is ended.
    End,
}

/// How a job makes room for one of a queue that preempts its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preempted {
    /// It is suspended, and keeps its memory and its resources.
    #[default]
    Suspend,
    /// It is ended and starts again, if it is rerunnable.
    Requeue,
}

/// Settings of one queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Its name.
    pub name: QueueName,
    /// Queues of higher priority are looked at first.
    #[serde(default)]
    pub priority: u32,
    /// The most slots of the queue in use.
    #[serde(default)]
    pub slots_max: Option<u32>,
    /// The most slots of one user in this queue.
    #[serde(default)]
    pub user_slots_max: Option<u32>,
    /// The most slots of this queue on one host.
    #[serde(default)]
    pub host_slots_max: Option<u32>,
    /// Where its jobs may run, with preferences; everywhere if empty.
    #[serde(default)]
    pub hosts: HostList,
    /// When its jobs may be started.
    #[serde(default)]
    pub dispatch_windows: Windows,
    /// When its jobs may run; outside they are suspended.
    #[serde(default)]
    pub run_windows: Windows,
    /// Load of a host at which its jobs are started, and suspended.
    #[serde(default)]
    pub load: Thresholds,
    /// How its users take turns.
    #[serde(default)]
    pub order: Order,
    /// Who may use it; everybody if empty.
    #[serde(default)]
    pub users: Vec<UserName>,
    /// Whether its jobs are rerunnable unless they say.
    #[serde(default)]
    pub rerun: RerunDefault,
    /// Time limit of jobs that say none.
    #[serde(default)]
    pub time_limit_default: Option<Period>,
    /// The highest time limit.
    #[serde(default)]
    pub time_limit_max: Option<Period>,
    /// The most bytes that the work areas of one job may hold together.
    #[serde(default)]
    pub area_limit: Option<ByteSize>,
    /// What happens to a job whose areas hold more.
    #[serde(default)]
    pub area_exceeded: AreaExceeded,
    /// Who may see and control everybody's jobs in it.
    #[serde(default)]
    pub admins: Vec<UserName>,
    /// Shell command before the program of each job.
    #[serde(default)]
    pub pre: Option<String>,
    /// Shell command after it.
    #[serde(default)]
    pub post: Option<String>,
    /// Shell command that starts the program of each job.
    #[serde(default)]
    pub starter: Option<String>,
    /// Programs whose temporary files go to the work area of the job.
    #[serde(default)]
    pub spill: Vec<Spill>,
    /// Whether what its jobs used is written beside their output, in the style of FULLSTIMER.
    #[serde(default)]
    pub fullstimer: bool,
    /// Options of `sbatch` for its jobs that run through Slurm, such as `--partition=long`.
    #[serde(default)]
    pub slurm: Vec<String>,
    /// Queues of lower priority whose jobs make room for jobs of this one.
    #[serde(default)]
    pub preempt: Vec<QueueName>,
    /// How jobs of this queue make room.
    #[serde(default)]
    pub preempted: Preempted,
    /// For how long a job of this queue has run at least before it makes room.
    #[serde(default)]
    pub preempt_grace: Period,
    /// What the slots of its jobs mean for processors.
    #[serde(default)]
    pub processors: Processors,
    /// The most processes and threads of one job together.
    #[serde(default)]
    pub processes_max: Option<u32>,
}

/// Load at which jobs are started, and suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// No job is started on a host whose load is worse, and none resumed.
    #[serde(default)]
    pub schedule: Option<f64>,
    /// Jobs on a host whose load is worse are suspended, one with each report.
    #[serde(default)]
    pub stop: Option<f64>,
}

/// One index of a host's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadIndex {
    /// Processes that want a processor, mean of 15 seconds, per slot of the host.
    R15s,
    /// The same of one minute.
    R1m,
    /// The same of 15 minutes.
    R15m,
    /// Processor use, 0 to 1.
    Ut,
    /// Pages in and out per second.
    Pg,
    /// Disk I/O in KiB per second.
    Io,
    /// Free space for temporary files in MiB.
    Tmp,
    /// Available memory in MiB.
    Mem,
    /// Free swap in MiB.
    Swp,
    /// I/O pressure: the part of the time in which some process waits for I/O, 0 to 1.
    Iop,
}

impl LoadIndex {
    /// All of them.
    pub const ALL: [LoadIndex; 10] = [
        LoadIndex::R15s,
        LoadIndex::R1m,
        LoadIndex::R15m,
        LoadIndex::Ut,
        LoadIndex::Pg,
        LoadIndex::Io,
        LoadIndex::Tmp,
        LoadIndex::Mem,
        LoadIndex::Swp,
        LoadIndex::Iop,
    ];

    /// Its name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LoadIndex::R15s => "r15s",
            LoadIndex::R1m => "r1m",
            LoadIndex::R15m => "r15m",
            LoadIndex::Ut => "ut",
            LoadIndex::Pg => "pg",
            LoadIndex::Io => "io",
            LoadIndex::Tmp => "tmp",
            LoadIndex::Mem => "mem",
            LoadIndex::Swp => "swp",
            LoadIndex::Iop => "iop",
        }
    }

    /// Whether `value` is worse than `limit`: higher, but lower for what is free.
    #[must_use]
    pub fn is_worse(self, value: f64, limit: f64) -> bool {
        match self {
            LoadIndex::Tmp | LoadIndex::Mem | LoadIndex::Swp => value < limit,
            LoadIndex::R15s
            | LoadIndex::R1m
            | LoadIndex::R15m
            | LoadIndex::Ut
            | LoadIndex::Pg
            | LoadIndex::Io
            | LoadIndex::Iop => value > limit,
        }
    }
}

macro_rules! by_index {
    ($(#[$doc:meta])* $name:ident($value:ty)) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        $(#[$doc])*
        pub struct $name {
            /// See [`LoadIndex::R15s`].
            pub r15s: $value,
            /// See [`LoadIndex::R1m`].
            pub r1m: $value,
            /// See [`LoadIndex::R15m`].
            pub r15m: $value,
            /// See [`LoadIndex::Ut`].
            pub ut: $value,
            /// See [`LoadIndex::Pg`].
            pub pg: $value,
            /// See [`LoadIndex::Io`].
            pub io: $value,
            /// See [`LoadIndex::Tmp`].
            pub tmp: $value,
            /// See [`LoadIndex::Mem`].
            pub mem: $value,
            /// See [`LoadIndex::Swp`].
            pub swp: $value,
            /// See [`LoadIndex::Iop`].
            pub iop: $value,
        }

        impl $name {
            /// The value of one index.
            #[must_use]
            pub fn get(&self, index: LoadIndex) -> $value {
                match index {
                    LoadIndex::R15s => self.r15s,
                    LoadIndex::R1m => self.r1m,
                    LoadIndex::R15m => self.r15m,
                    LoadIndex::Ut => self.ut,
                    LoadIndex::Pg => self.pg,
                    LoadIndex::Io => self.io,
                    LoadIndex::Tmp => self.tmp,
                    LoadIndex::Mem => self.mem,
                    LoadIndex::Swp => self.swp,
                    LoadIndex::Iop => self.iop,
                }
            }
        }
    };
}

by_index! {
    /// The load of a host, as its agent measured it; one of a later version may have measured more.
    Load(f64)
}
by_index! {
    /// Thresholds of load.
    #[serde(deny_unknown_fields)]
    Thresholds(Threshold)
}

/// A threshold that a load exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exceeded {
    /// Which index.
    pub index: LoadIndex,
    /// What it is.
    pub value: f64,
    /// What it may be.
    pub limit: f64,
}

impl Thresholds {
    /// The first schedule value that `load` exceeds.
    #[must_use]
    pub fn refuses(&self, load: &Load) -> Option<Exceeded> {
        self.exceeded(load, |threshold| threshold.schedule)
    }

    /// The first stop value that `load` exceeds.
    #[must_use]
    pub fn stops(&self, load: &Load) -> Option<Exceeded> {
        self.exceeded(load, |threshold| threshold.stop)
    }

    /// Whether no value is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Thresholds::default()
    }

    /// Whether jobs may be suspended for them.
    #[must_use]
    pub fn may_stop(&self) -> bool {
        LoadIndex::ALL.into_iter().any(|index| self.get(index).stop.is_some())
    }

    fn exceeded(&self, load: &Load, limit: fn(Threshold) -> Option<f64>) -> Option<Exceeded> {
        LoadIndex::ALL.into_iter().find_map(|index| {
            let limit = limit(self.get(index))?;
            let value = load.get(index);
            index.is_worse(value, limit).then_some(Exceeded { index, value, limit })
        })
    }
}

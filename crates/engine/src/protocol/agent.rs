//! What the controller tells an agent, and what an agent reports.

use std::collections::BTreeMap;

use forebay_grid::config::{Limits, Load};
use forebay_grid::event::{JobSignal, KillReason, Loss};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Exit, JobSpec, Usage};
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId, UserName};
use forebay_grid::wrap::Wrap;
use serde::{Deserialize, Serialize};

use super::caller::Numbers;
use super::{Area, Seen, Sizes};
use crate::checkpoint::{Bounds, Number};
use crate::user::Account;

/// Everything that a host needs to start a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Which task.
    pub task: TaskId,
    /// Which start of it.
    pub attempt: Attempt,
    /// How often it was requeued after it had ended: each time it gets a new work area.
    pub requeues: u32,
    /// Whose; it runs as this user.
    pub user: UserName,
    /// The user's numbers where the controller runs, which must be those of the host; none if both are one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Numbers>,
    /// What was asked for.
    pub spec: JobSpec,
    /// Slots that it has.
    pub slots: u32,
    /// How long it may run.
    pub time_limit: Option<Period>,
    /// Numbers of the devices that it may use; none if its host has no devices that are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<u32>>,
    /// What surrounds its program, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrap: Option<Box<Wrap>>,
    /// What the settings say about its checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_bounds: Option<Bounds>,
    /// How it is watched, if it is a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<ServiceWatch>,
    /// Limits that the settings set.
    #[serde(default, skip_serializing_if = "Limits::are_default")]
    pub limits: Limits,
}

/// How a service is watched on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceWatch {
    /// The port on which it listens, if on one.
    pub port: Option<u16>,
    /// Time between two checks.
    pub interval: Period,
    /// How long it may not be ready before it is ended, to be started again.
    pub unready_max: Period,
}

/// How a service is, as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether it is ready.
    pub ready: bool,
    /// Why not.
    #[serde(default)]
    pub why: Option<String>,
    /// Name or number under which its host is reached.
    pub address: String,
}

impl Launch {
    /// Refuses an account of this host that has other numbers than where the controller runs.
    ///
    /// # Errors
    /// Says which.
    pub fn check_account(&self, account: &Account) -> anyhow::Result<()> {
        let Some(Numbers { uid, gid }) = self.numbers else { return Ok(()) };
        anyhow::ensure!(
            (account.uid, account.gid) == (uid, gid),
            "user {} has number {} and group {} on this host, but {uid} and {gid} on the controller's: users and groups must \
             have the same numbers on all nodes of a grid",
            self.user,
            account.uid,
            account.gid
        );
        Ok(())
    }
}

/// What the controller tells an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Start a task.
    Launch(Box<Launch>),
    /// The agent may not join.
    Refused {
        /// Why.
        reason: String,
    },
    /// End a task, if it is there.
    Kill {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Why.
        why: KillReason,
    },
    /// Suspend a task.
    Suspend {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
    },
    /// Let a task go on.
    Resume {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
    },
    /// Send the processes of a task a signal.
    Signal {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Which signal.
        signal: JobSignal,
    },
    /// Warn a task that its end is near, as its job wants it.
    Warn {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// What tells this end from others of which it was warned before; none of a controller that does not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Moment>,
    },
    /// Jobs may run for so long, counted from the message that this answers.
    Grant {
        /// How long.
        lease: Period,
    },
    /// The end of this attempt was taken note of.
    Noted {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
    },
    /// Remove the work area of a task.
    ReleaseWork {
        /// Which.
        task: TaskId,
        /// How often it had been requeued.
        requeues: u32,
    },
    /// Copy a checkpoint of a job on another host, so that its bytes lie here.
    KeepCheckpoint {
        /// Number of the question.
        query: u64,
        /// Whose.
        task: TaskId,
        /// How often it had been requeued.
        requeues: u32,
        /// Its user, with whose rights it is copied.
        user: UserName,
        /// Which.
        number: Number,
        /// The host on which the job is.
        job_host: HostName,
    },
    /// Say what work areas lie on the host.
    ListAreas {
        /// Number of the question.
        query: u64,
        /// Whether sizes are wanted.
        sizes: Sizes,
    },
    /// Remove work areas whose jobs are gone, as far as they still are what they were.
    Reap {
        /// Number of the question.
        query: u64,
        /// Which.
        areas: Vec<Area>,
    },
}

/// What holds the processes of a job together on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// Nothing: they are looked for below the process that holds the job.
    Tree,
    /// A control group of its own.
    Group,
    /// A control group of its own with a limit of memory.
    GroupWithMemory,
    /// Slurm, as its own settings say.
    Slurm,
}

/// What a host may limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// Memory.
    Memory,
    /// Processors.
    Processors,
    /// Processes and threads.
    Processes,
}

impl Limited {
    /// All of them.
    pub const ALL: [Limited; 3] = [Limited::Memory, Limited::Processors, Limited::Processes];

    /// What is lost without it.
    #[must_use]
    pub fn lost(self) -> &'static str {
        match self {
            Limited::Memory => "--mem is not enforced",
            Limited::Processors => "processors are not shared by slots, nor limited",
            Limited::Processes => "processes_max is not enforced",
        }
    }
}

/// What a host cannot limit, and why.
pub type Missing = BTreeMap<Limited, String>;

/// What a start of a task uses while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Using {
    /// Which task.
    pub task: TaskId,
    /// Which start of it.
    pub attempt: Attempt,
    /// What it has used up to now, as far as its shim has said.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Bytes on disk in its work areas, as far as they were measured.
    #[serde(default)]
    pub area_bytes: Option<u64>,
    /// How it is, if it is a service that has been checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// What Slurm says of it, in words, if it runs through Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What an agent tells the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// How loaded the host is.
    Load {
        /// The indices.
        load: Load,
    },
    /// What the jobs of the host use now.
    Using {
        /// What holds its jobs.
        containment: Containment,
        /// All that run there, as far as it is known.
        runs: Vec<Using>,
        /// What the host cannot limit.
        #[serde(default, skip_serializing_if = "Missing::is_empty")]
        missing: Missing,
    },
    /// A task was started.
    Started {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Its process on this machine.
        #[serde(default)]
        pid: Option<u32>,
    },
    /// A task ended.
    Exited {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// How.
        exit: Exit,
        /// What it used.
        usage: Option<Box<Usage>>,
    },
    /// The host has lost a task, or could not start it.
    Lost {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Why.
        loss: Loss,
    },
    /// The work area of a task was removed, or why not.
    WorkReleased {
        /// Which.
        task: TaskId,
        /// How often it had been requeued.
        requeues: u32,
        /// Why not.
        result: Result<(), String>,
    },
    /// A checkpoint was copied, or why not.
    CheckpointKept {
        /// Number of the question.
        query: u64,
        /// Why not.
        result: Result<(), String>,
    },
    /// The work areas of the host.
    Areas {
        /// Number of the question.
        query: u64,
        /// They, as far as they could be seen.
        seen: Seen,
    },
    /// Work areas were removed.
    Reaped {
        /// Number of the question.
        query: u64,
        /// Those that were removed.
        removed: Vec<Area>,
        /// Why others were not.
        faults: Vec<String>,
    },
}

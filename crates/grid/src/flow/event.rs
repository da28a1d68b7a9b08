//! What happens to flows, and what follows.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{FlowId, FlowSpec, ScheduleId};
use crate::journal::Submitted;
use crate::vocabulary::{Moment, UserName};

/// Something about flows.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowEvent {
    /// A user starts a flow.
    Run {
        /// Who.
        user: UserName,
        /// What. Its schedule is not looked at.
        spec: Box<FlowSpec>,
        /// What the client knows this submission by: one that was taken before is answered with its run again.
        key: Option<Uuid>,
    },
    /// A user ends a run with all its jobs.
    Kill {
        /// Who.
        by: UserName,
        /// Which.
        flow: FlowId,
    },
    /// A user starts a run again where it failed.
    Rerun {
        /// Who.
        by: UserName,
        /// Which.
        flow: FlowId,
    },
    /// A user wants a flow to start by itself.
    Schedule {
        /// Who.
        user: UserName,
        /// What; it says when.
        spec: Box<FlowSpec>,
    },
    /// A user wants that no longer.
    Unschedule {
        /// Who.
        by: UserName,
        /// Which.
        schedule: ScheduleId,
    },
    /// A user wants a schedule to start nothing until it is released.
    Hold {
        /// Who.
        by: UserName,
        /// Which.
        schedule: ScheduleId,
    },
    /// A user wants it to start what is due again.
    Release {
        /// Who.
        by: UserName,
        /// Which.
        schedule: ScheduleId,
    },
    /// Somebody looked for the files of a schedule, with the rights of its owner.
    Looked {
        /// Which.
        schedule: ScheduleId,
        /// All that match.
        files: Vec<Found>,
        /// Why the look failed or is incomplete.
        trouble: Option<String>,
    },
}

/// A file that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Where.
    pub path: String,
    /// Which state of it.
    pub stamp: Stamp,
    /// Whether it was the same at the look before.
    pub steady: bool,
}

/// One state of a file: another one is another arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Number of the file.
    pub inode: u64,
    /// Its length.
    pub length_bytes: u64,
    /// When it was written last, nanoseconds since the Unix epoch.
    pub modified_ns: i64,
}

/// What is to be done about flows.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowEffect {
    /// Answer: the run has begun.
    Accepted {
        /// Its number.
        flow: FlowId,
    },
    /// Answer: the schedule holds.
    Scheduled {
        /// Its number.
        schedule: ScheduleId,
    },
    /// Every job of a run has ended.
    Finished {
        /// Which.
        flow: FlowId,
        /// What became of it: the grid may have forgotten it by the time somebody is told.
        state: FlowState,
    },
}

/// What becomes of a run as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Some job has not ended.
    Running,
    /// Every step did what it should.
    Done,
    /// Some step failed.
    Failed,
    /// It was killed.
    Killed,
}

impl FlowState {
    /// The state as a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            FlowState::Running => "running",
            FlowState::Done => "done",
            FlowState::Failed => "failed",
            FlowState::Killed => "killed",
        }
    }
}

/// A lasting change of flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FlowChange {
    /// A run has begun, with all its jobs.
    Started(Started),
    /// A step was skipped, or is no longer.
    Skipped {
        /// The run.
        flow: FlowId,
        /// The step, by place.
        step: u32,
        /// Whether it is.
        skipped: bool,
    },
    /// Every job has ended.
    Ended {
        /// The run.
        flow: FlowId,
        /// How.
        state: FlowState,
    },
    /// A job of a run that had ended starts again.
    Reopened(FlowId),
    /// A user killed the run.
    Killed(FlowId),
    /// A user starts it again where it failed.
    Rerun {
        /// The run.
        flow: FlowId,
        /// Steps that start again, by place.
        steps: Vec<u32>,
    },
    /// The run and its jobs are no longer known.
    Forgotten(FlowId),
    /// A schedule holds.
    Scheduled {
        /// Its number.
        schedule: ScheduleId,
        /// Whose.
        user: UserName,
        /// What it starts, and when.
        spec: Box<FlowSpec>,
        /// The first time.
        due: Option<Moment>,
    },
    /// A schedule holds no longer.
    Unscheduled(ScheduleId),
    /// A time was passed over, or a start was refused.
    Passed {
        /// Which schedule.
        schedule: ScheduleId,
        /// The next time.
        due: Option<Moment>,
        /// Why.
        why: String,
    },
    /// Files that are gone need not be remembered.
    Unseen {
        /// Which schedule.
        schedule: ScheduleId,
        /// Which files.
        paths: Vec<String>,
    },
    /// A schedule starts nothing until it is released.
    Held(ScheduleId),
    /// It starts what is due again.
    Released(ScheduleId),
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Its number.
    pub flow: FlowId,
    /// Whose.
    pub user: UserName,
    /// The name of the flow.
    pub name: String,
    /// Names and jobs of its steps, in an order in which they can run.
    pub steps: Vec<(String, Submitted)>,
    /// What started it, if no user did.
    pub firing: Option<Firing>,
}

/// A schedule that starts a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// Which.
    pub schedule: ScheduleId,
    /// When next.
    pub due: Option<Moment>,
    /// The file that arrived.
    pub file: Option<(String, Stamp)>,
}

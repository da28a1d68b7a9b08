//! The journal: every lasting change, in order, as data.
//!
//! A [`Record`] is a decision, not a cause: applying it needs no clock, no load and no settings that the
//! ledger does not hold. So the same records give the same [`Ledger`](crate::Ledger), and a ledger with
//! the records after it gives the same as all records. Records are written with serde; the format has to
//! keep field order and variants (postcard does).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::advance::AdvanceReservation;
use crate::config::{Config, HostEngine};
use crate::flow::event::FlowChange;
use crate::group::JobGroup;
use crate::modify::Set;
use crate::parse::dependency::Condition;
use crate::service::ServiceState;
use crate::spans::Spans;
use crate::spec::JobSpec;
use crate::task::Step;
use crate::vocabulary::{
    HostId, HostName, JobId, Moment, QueueId, ReservationName, Target, TaskId, UserName,
};

/// One lasting change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When.
    pub at: Moment,
    /// What.
    pub change: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Other settings hold.
    Configured(Box<Config>),
    /// A host is seen for the first time; it gets the next number.
    HostKnown(HostName),
    /// A job was taken.
    Submitted(Box<Submitted>),
    /// Tasks of a job that waits changed alike: held, released or cancelled.
    Waiting {
        /// The job.
        job: JobId,
        /// Places of its tasks, counted from 0.
        places: Spans,
        /// What happened to them.
        step: Step,
    },
    /// One task changed.
    Task {
        /// Which.
        task: TaskId,
        /// How.
        step: Step,
    },
    /// A queue was switched.
    Queue {
        /// Which.
        queue: QueueId,
        /// How it is now.
        switch: Switch,
    },
    /// A host was opened or closed.
    Host {
        /// Which.
        host: HostId,
        /// Whether jobs may be started on it.
        state: HostSwitch,
    },
    /// A finished job is no longer known.
    Forgotten(JobId),
    /// Something about flows.
    Flow(Box<FlowChange>),
    /// Until then hosts may have leases that are longer than the settings say.
    Leased(Moment),
    /// A job was changed that has not ended.
    Modified(Box<Modified>),
    /// A service got a port, or failed, or is to start again.
    Service {
        /// Its job.
        job: JobId,
        /// How it is now.
        state: ServiceState,
    },
    /// Slots of hosts were reserved in advance.
    Reserved(Box<AdvanceReservation>),
    /// Those were told whom a job notifies of its end, or nobody could be.
    Told {
        /// The job.
        job: JobId,
        /// When it ended.
        ended: Moment,
    },
    /// A reservation was given up, or is over.
    Unreserved(ReservationName),
    /// An agent joined that runs the jobs of its host in another way than before.
    Engine {
        /// Which host.
        host: HostId,
        /// What runs its jobs.
        engine: HostEngine,
    },
    /// A user keeps a job group from now on, or gives it another limit.
    Group {
        /// Whose.
        user: UserName,
        /// Its path.
        group: JobGroup,
        /// The most tasks of it on hosts.
        limit: Option<u32>,
    },
    /// A user keeps a job group no longer.
    GroupDeleted {
        /// Whose.
        user: UserName,
        /// Its path.
        group: JobGroup,
    },
}

/// A job that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modified {
    /// Its number.
    pub job: JobId,
    /// What is asked for from now on, without its environment and its script, which stay; its queue is named.
    pub spec: JobSpec,
    /// What has to come true first, with names looked up.
    pub condition: Option<Condition<Target>>,
    /// How long its tasks on hosts may run, in milliseconds, if that has changed.
    pub limit_ms: Option<Set<u64>>,
}

/// A job that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its number.
    pub job: JobId,
    /// Whose.
    pub user: UserName,
    /// What was asked for; its queue is named.
    pub spec: JobSpec,
    /// What has to come true first, with names looked up.
    pub condition: Option<Condition<Target>>,
    /// What its client knows the submission by, if it repeats one whose answer is lost.
    pub key: Option<Uuid>,
}

/// What a queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// Whether it takes jobs.
    pub intake: Intake,
    /// Whether it starts jobs.
    pub starts: Starts,
}

impl Default for Switch {
    fn default() -> Switch {
        Switch { intake: Intake::Open, starts: Starts::Active }
    }
}

/// Whether a queue takes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intake {
    /// It does.
    Open,
    /// It does not.
    Closed,
}

/// Whether a queue starts jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Starts {
    /// It does.
    Active,
    /// It does not.
    Inactive,
}

/// Whether jobs may be started on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSwitch {
    /// They may.
    #[default]
    Open,
    /// They may not; those that run go on.
    Closed,
    /// It is gone for good and listed no longer. If it comes back nevertheless, it is open.
    Removed,
}

/// A record that does not fit the state before it: the journal is damaged or incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number} of the journal contradicts the earlier ones: {reason}")]
pub struct JournalError {
    /// The record, counted from 1 in the order given.
    pub number: u64,
    /// What is wrong.
    pub reason: String,
}

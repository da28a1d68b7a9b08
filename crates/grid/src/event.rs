//! Events in and effects out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::account::AttemptRecord;
use crate::advance::AdvanceReservation;
use crate::config::{Config, HostEngine, Limits, Load};
use crate::flow::FlowId;
use crate::flow::event::{FlowEffect, FlowEvent};
use crate::group::{GroupVerb, JobGroup};
use crate::hosts::Facts;
use crate::journal::{HostSwitch, Record};
use crate::modify::Changes;
use crate::parse::period::Period;
use crate::spec::{Exit, JobSpec, Usage};
use crate::task::Ending;
use crate::vocabulary::{
    Attempt, HostName, JobId, Moment, QueueName, ReservationName, Target, TaskId, UserName,
};
use crate::wrap::Wrap;

/// What happened, or what somebody wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A user submits a job.
    Submit {
        /// Who.
        user: UserName,
        /// What.
        spec: Box<JobSpec>,
        /// What the client knows this submission by: one that was taken before is answered with its job again.
        key: Option<Uuid>,
    },
    /// A user wants something of jobs.
    Command {
        /// Who.
        by: UserName,
        /// Which job or task.
        target: Target,
        /// What.
        verb: Verb,
    },
    /// A user changes a job that was submitted.
    Modify {
        /// Who.
        by: UserName,
        /// Which.
        job: JobId,
        /// What.
        changes: Box<Changes>,
    },
    /// An admin switches a queue.
    Queue {
        /// Who.
        by: UserName,
        /// Which.
        queue: QueueName,
        /// How.
        verb: QueueVerb,
    },
    /// An admin opens or closes a host.
    Host {
        /// Who.
        by: UserName,
        /// Which.
        host: HostName,
        /// How it shall be.
        state: HostSwitch,
    },
    /// An admin reserves slots of hosts for a while.
    Reserve {
        /// Who.
        by: UserName,
        /// What.
        reservation: Box<AdvanceReservation>,
    },
    /// An admin gives a reservation up.
    Unreserve {
        /// Who.
        by: UserName,
        /// Which.
        name: ReservationName,
    },
    /// A user changes a job group of his own.
    Group {
        /// Who.
        by: UserName,
        /// Which.
        group: JobGroup,
        /// How.
        verb: GroupVerb,
    },
    /// Settings were read anew. They are as [`Config::read`] gave them.
    Configured(Box<Config>),
    /// An agent has connected and says what it has and what it runs. Every connection begins with this.
    HostJoined(Box<Joined>),
    /// An agent reports load. It renews the lease.
    HostLoad {
        /// Which host.
        host: HostName,
        /// How loaded it is.
        load: Load,
    },
    /// An agent reports what the work areas of its jobs hold.
    AreaSizes {
        /// Which host.
        host: HostName,
        /// All jobs that run there, as far as their areas were measured.
        sizes: Vec<AreaSize>,
    },
    /// The connection to an agent broke.
    HostLost {
        /// Which host.
        host: HostName,
    },
    /// An agent has started a task.
    Started {
        /// Which host.
        host: HostName,
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
    },
    /// A task ended on its host.
    Exited {
        /// Which host.
        host: HostName,
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// How.
        exit: Exit,
        /// What it used.
        usage: Option<Box<Usage>>,
    },
    /// A host has lost a task, or could not start it.
    Lost {
        /// Which host.
        host: HostName,
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Why.
        loss: Loss,
    },
    /// The work area of a finished task was removed, or could not be.
    WorkReleased {
        /// Which task.
        task: TaskId,
        /// How often it had been requeued.
        requeues: u32,
        /// Why not.
        result: Result<(), String>,
    },
    /// Those were told whom a job notifies of its end, or it was tried in vain.
    Told {
        /// The job.
        job: JobId,
        /// When it ended.
        ended: Moment,
    },
    /// Something about flows.
    Flow(FlowEvent),
    /// Time has passed. Every other event lets time pass as well.
    Tick,
}

/// What a user wants of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// End them.
    Kill,
    /// Keep waiting ones from starting; suspend running ones.
    Hold,
    /// Undo a hold.
    Release,
    /// Start them again: those that run or have ended.
    Requeue,
    /// Send their processes a signal, which is theirs to understand.
    Signal(JobSignal),
}

/// A signal that means something to programs and nothing to the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is that of the system")]
pub enum JobSignal {
    Hup,
    Quit,
    Usr1,
    Usr2,
    Winch,
}

impl JobSignal {
    /// All of them.
    pub const ALL: [JobSignal; 5] =
        [JobSignal::Hup, JobSignal::Quit, JobSignal::Usr1, JobSignal::Usr2, JobSignal::Winch];

    /// Its name without SIG.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobSignal::Hup => "HUP",
            JobSignal::Quit => "QUIT",
            JobSignal::Usr1 => "USR1",
            JobSignal::Usr2 => "USR2",
            JobSignal::Winch => "WINCH",
        }
    }

    /// Its number on Linux.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            JobSignal::Hup => 1,
            JobSignal::Quit => 3,
            JobSignal::Usr1 => 10,
            JobSignal::Usr2 => 12,
            JobSignal::Winch => 28,
        }
    }
}

impl FromStr for JobSignal {
    type Err = String;

    /// By its name, with SIG before it or without, or by its number.
    fn from_str(text: &str) -> Result<JobSignal, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let is_it = |signal: &JobSignal| {
            signal.name() == name || text.parse().is_ok_and(|number: u8| number == signal.number())
        };
        JobSignal::ALL.into_iter().find(is_it).ok_or_else(|| {
            let all = JobSignal::ALL.map(JobSignal::name).join(", ");
            format!("signal \"{text}\": choose from {all}; kill, hold and release stand for TERM, STOP and CONT")
        })
    }
}

/// What an admin wants of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueVerb {
    /// Let it take jobs.
    Open,
    /// Let it take none.
    Close,
    /// Let it start jobs.
    Activate,
    /// Let it start none.
    Inactivate,
}

/// What an agent says when it connects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// Which host.
    pub host: HostName,
    /// What it has.
    pub facts: Facts,
    /// Whether it remembers everything that it was told before.
    pub memory: Memory,
    /// What runs its jobs.
    #[serde(default, skip_serializing_if = "HostEngine::is_agent")]
    pub engine: HostEngine,
    /// What it runs, and what ended there and was not yet taken note of.
    pub runs: Vec<RunReport>,
}

/// Whether an agent remembers everything that it was told to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// It does: what it does not report was never started.
    Kept,
    /// It may have lost some, as after a reboot: what it does not report is not running now, but may
    /// have been started.
    Lost,
}

/// What an agent says of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Which task.
    pub task: TaskId,
    /// Which start of it.
    pub attempt: Attempt,
    /// How it is.
    pub status: RunStatus,
}

/// How a task is on its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunStatus {
    /// Slurm has it and has not started it.
    Waiting,
    /// It runs.
    Running,
    /// It is suspended.
    Stopped,
    /// It ended.
    Exited(Exit, Option<Box<Usage>>),
    /// The host has lost it, or could not start it.
    Lost(Loss),
}

/// Why a host cannot say how a task ended by itself. Nothing of it runs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The lease of the host was over, so the host has ended it by force.
    Lease,
    /// The process that held it on the host was killed or failed.
    Holder,
    /// The host could not start it for a reason of its own: it has not begun.
    Unable(String),
    /// Slurm has ended it, or its node was lost: in this state.
    Slurm(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Lease => f.write_str("lost: the lease of the host had expired"),
            Loss::Holder => f.write_str("lost: the process that held it was killed"),
            Loss::Slurm(state) => write!(f, "lost: Slurm reports {state}"),
            Loss::Unable(reason) => write!(f, "not started by the host: {reason}"),
        }
    }
}

/// What an event led to. The records must be durable before any of the effects is carried out; then the
/// effects are carried out in order. Records of several events may be made durable together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// For the journal.
    pub records: Vec<Record>,
    /// To be done.
    pub effects: Vec<Effect>,
}

impl Outcome {
    /// Forgets what was carried out, and keeps the memory.
    pub fn clear(&mut self) {
        self.records.clear();
        self.effects.clear();
    }
}

/// What messages say of a job: it may be forgotten when they are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// Whose it is.
    pub user: UserName,
    /// What was submitted.
    pub spec: JobSpec,
    /// When.
    pub submitted: Moment,
    /// Where it ran last; none of an array.
    pub host: Option<HostName>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer: the job was taken.
    Accepted {
        /// Its number.
        job: JobId,
    },
    /// Answer: the command was carried out, on so many tasks.
    Obeyed {
        /// How many.
        tasks: u32,
    },
    /// Answer: refused.
    Rejected(Refusal),
    /// Tell the host to start a task. Its specification is that of the job.
    Launch {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// How often it was requeued after it had ended: each time it gets a new work area.
        requeues: u32,
        /// Where.
        host: HostName,
        /// With how many slots.
        slots: u32,
        /// How long it may run.
        time_limit: Option<Period>,
        /// Numbers of the devices that it may use; none if its host has no devices that are counted.
        gpus: Option<Vec<u32>>,
        /// What surrounds its program, if anything does.
        wrap: Option<Box<Wrap>>,
        /// Limits that the settings set.
        limits: Limits,
    },
    /// Tell the host to end a task, if it has it: first gently, then by force. It answers with
    /// [`Event::Exited`] as for any end.
    Kill {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Where.
        host: HostName,
        /// Why.
        why: KillReason,
    },
    /// Tell the host to suspend a task.
    Suspend {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Where.
        host: HostName,
    },
    /// Tell the host to let a suspended task go on.
    Resume {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Where.
        host: HostName,
    },
    /// Tell the host to send the processes of a task a signal.
    Signal {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Where.
        host: HostName,
        /// Which signal.
        signal: JobSignal,
    },
    /// Tell the host to warn a task that its end is near, as its job wants it.
    Warn {
        /// Which task.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// What tells this end from others of which the start was warned before.
        end: Option<Moment>,
        /// Where.
        host: HostName,
    },
    /// Tell the host that it may let jobs run for so long, counted from when it sent the message that
    /// this answers. A lease that is over without another ends all its jobs by force.
    GrantLease {
        /// Which host.
        host: HostName,
        /// How long.
        lease: Period,
    },
    /// The agent of the host may not join now.
    Refuse {
        /// Which host.
        host: HostName,
        /// Why.
        reason: String,
    },
    /// Nothing was heard of the host for too long: end its connection, so that its agent joins anew.
    Disconnect {
        /// Which host.
        host: HostName,
    },
    /// An attempt ended: for the history.
    Ended(Box<AttemptRecord>),
    /// The work area of a task is no longer needed. Answer with [`Event::WorkReleased`].
    ReleaseWork {
        /// Which task.
        task: TaskId,
        /// How often it had been requeued: it may be on its way to a new area already.
        requeues: u32,
        /// Where it ran last, as far as it ran.
        host: Option<HostName>,
    },
    /// The task starts again: its work area is kept for its next start.
    KeepWork {
        /// Which task.
        task: TaskId,
    },
    /// Every task of a job has ended.
    JobFinished {
        /// Which job.
        job: JobId,
        /// Its exit value: the grid may have forgotten it by the time somebody is told.
        value: u8,
        /// When the last of them ended.
        at: Moment,
        /// What is said of it to those whom it notifies, if it notifies anybody.
        about: Option<Box<About>>,
    },
    /// A job is no longer known to the grid; the history is not concerned.
    Forgotten {
        /// Which job.
        job: JobId,
    },
    /// Something about flows.
    Flow(FlowEffect),
}

/// What the work areas of one start of a task hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaSize {
    /// Which task.
    pub task: TaskId,
    /// Which start of it.
    pub attempt: Attempt,
    /// Bytes on disk, both areas together.
    pub bytes: u64,
}

/// Why a task is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// Its user or an admin wants it, or it shall start again.
    Asked,
    /// It ran for longer than it may.
    TimeLimit,
    /// Its work areas held more than its queue allows.
    AreaLimit,
    /// The time by which it had to have ended has come.
    Deadline,
    /// It makes room for a job of a queue that preempts its own.
    Preempted,
    /// The grid has given this attempt up before.
    Stale,
}

impl From<Ending> for KillReason {
    fn from(ending: Ending) -> KillReason {
        match ending {
            Ending::Killed | Ending::Requeued => KillReason::Asked,
            Ending::Preempted { .. } => KillReason::Preempted,
            Ending::TimeLimit => KillReason::TimeLimit,
            Ending::AreaLimit => KillReason::AreaLimit,
            Ending::Deadline => KillReason::Deadline,
        }
    }
}

/// Why something was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such job, or it is no longer known.
    #[error("there is no job {0}")]
    NoSuchJob(Target),
    /// There is no such run of a flow, or it is no longer known.
    #[error("there is no flow {0}")]
    NoSuchFlow(FlowId),
    /// There is no such queue.
    #[error("there is no queue {0}")]
    NoSuchQueue(QueueName),
    /// There is no such host.
    #[error("there is no host {0}")]
    NoSuchHost(HostName),
    /// There is no such reservation, or it is over.
    #[error("there is no reservation {0}; forebay reservation list shows all")]
    NoSuchReservation(ReservationName),
    /// The user may not do this.
    #[error("{user} may not {what}")]
    NotAllowed {
        /// Who.
        user: UserName,
        /// What.
        what: String,
    },
    /// The queue takes no jobs.
    #[error("queue {0} is closed")]
    QueueClosed(QueueName),
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// There are too many jobs.
    #[error("{0}")]
    TooMany(String),
    /// No task is in a state to which this applies.
    #[error("job {target} {state}")]
    WrongState {
        /// Which.
        target: Target,
        /// What is wrong with it.
        state: &'static str,
    },
    /// A run of a flow is not in a state to which this applies.
    #[error("{0}")]
    FlowInWrongState(String),
}

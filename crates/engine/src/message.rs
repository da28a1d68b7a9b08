//! What commands, controller and agents say to each other: one JSON value on each line.

use forebay_grid::account::AttemptRecord;
use forebay_grid::config::Load;
use forebay_grid::event::{Joined, KillReason, Loss, QueueVerb, Verb};
use forebay_grid::grid::Explanation;
use forebay_grid::journal::HostSwitch;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Exit, JobSpec, Rerun, Usage};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{
    Attempt, HostName, JobId, Moment, QueueName, Target, TaskId, UserName,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use crate::area::{Area, AreaKind, Seen, Sizes};
use crate::flow::{FlowAnswer, FlowAsk};
pub use crate::sessions::{AreaState, AreaView, Orphans};
pub use crate::usage::{UsageKey, UsageQuery, UsageRow};
pub use crate::watch::Notice;

/// What is asked of the controller. Each line gets one [`Answer`], but for [`Ask::Join`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Take a job.
    Submit {
        /// The job.
        spec: Box<JobSpec>,
        /// What the client knows this submission by: drawn at random, for this one alone. One that was taken before is
        /// answered with its job again, so a client whose answer was lost may ask again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Uuid>,
    },
    /// Do something to jobs.
    Command {
        /// Which.
        target: Target,
        /// What.
        verb: Verb,
    },
    /// Switch a queue.
    Queue {
        /// Which.
        queue: QueueName,
        /// How.
        verb: QueueVerb,
    },
    /// Open or close a host.
    Host {
        /// Which.
        host: HostName,
        /// How it shall be.
        state: HostSwitch,
    },
    /// List jobs: the asker's own, or everybody's for an admin.
    Jobs {
        /// One job or element only.
        target: Option<Target>,
        /// Also those that have ended.
        ended: bool,
        /// Which part of the list.
        #[serde(default)]
        page: Page,
    },
    /// List hosts.
    Hosts,
    /// List queues.
    Queues,
    /// Attempts of a job that ended.
    History {
        /// Which.
        target: Target,
        /// The first that is wanted, as an answer named it; from the beginning if none.
        #[serde(default)]
        from: Option<Start>,
    },
    /// Why a task waits, or ran where it ran.
    Explain {
        /// Which.
        target: Target,
    },
    /// Answer when every task of a job has ended.
    Wait {
        /// Which.
        job: JobId,
    },
    /// Something about flows.
    Flow {
        /// What.
        flow: FlowAsk,
    },
    /// Say what happens to a job, from how it is now until all its tasks have ended; the connection
    /// carries [`Answer::Noticed`] from here on, and may be used to watch more jobs.
    Watch {
        /// Which.
        job: JobId,
    },
    /// List work areas: of the asker's own jobs, or everybody's for an admin.
    Sessions {
        /// Whether orphans are removed.
        orphans: Orphans,
    },
    /// What was used: by the asker, or by everybody for an admin.
    Usage {
        /// Of which days, by what.
        query: UsageQuery,
    },
    /// Say whether the controller is there.
    Ping,
    /// Read the settings again; answered with [`Answer::Here`] once they count. For root and the user whose grid it is.
    Reload,
    /// An agent begins; from here on the connection carries [`Report`]s and [`Order`]s.
    Join {
        /// What it says.
        joined: Box<Joined>,
    },
}

/// One start of one task.
pub type Start = (TaskId, Attempt);

/// A part of a long list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Where it begins, as the page before it said; at the beginning if none.
    pub from: Option<TaskId>,
    /// The most lines; as many as the controller gives at once if none.
    pub most: Option<u32>,
}

/// What the controller answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The job was taken.
    Accepted {
        /// Its number.
        job: JobId,
    },
    /// Done, on so many tasks.
    Obeyed {
        /// How many.
        tasks: u32,
    },
    /// There are too many connections for this one, and nothing was heard: ask again later.
    Busy {
        /// Whose there are.
        reason: String,
    },
    /// Refused or failed; nothing was changed.
    Refused(Refusal),
    /// To [`Ask::Jobs`].
    Jobs {
        /// In the order of their numbers.
        jobs: Vec<JobView>,
        /// Where the next page begins; none after the last one.
        #[serde(default)]
        next: Option<TaskId>,
        /// How many lines all pages have together; said with the first one.
        #[serde(default)]
        total: Option<u64>,
    },
    /// To [`Ask::Hosts`].
    Hosts {
        /// In the order in which they came.
        hosts: Vec<HostView>,
        /// What is wrong with the journal, if anything is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// To [`Ask::Queues`].
    Queues {
        /// In the order of the settings.
        queues: Vec<QueueView>,
        /// What is wrong with the journal, if anything is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// To [`Ask::History`].
    History {
        /// In the order of element and attempt.
        attempts: Vec<AttemptRecord>,
        /// Where the next page begins; none after the last one.
        #[serde(default)]
        next: Option<Start>,
    },
    /// To [`Ask::Explain`].
    Explained {
        /// Why it waits, or ran where it ran.
        explanation: Explanation,
        /// What its last start used that has ended, if the history knows it.
        #[serde(default)]
        used: Option<Box<Usage>>,
    },
    /// To [`Ask::Wait`].
    Ended {
        /// The exit value of the job: 0, or the first that is not 0 of its tasks.
        value: u8,
    },
    /// To [`Ask::Flow`], unless it is obeyed or refused.
    Flow {
        /// What.
        flow: FlowAnswer,
    },
    /// To [`Ask::Watch`], many times.
    Noticed {
        /// What happened.
        notice: Notice,
    },
    /// To [`Ask::Sessions`].
    Sessions {
        /// What there is; that which was removed is not among them.
        areas: Vec<AreaView>,
        /// What was removed.
        removed: Vec<AreaView>,
        /// Hosts that are away: what lies on them only is not among the areas.
        unknown: Vec<HostName>,
        /// What could not be removed or seen on hosts that are up, and why.
        faults: Vec<String>,
    },
    /// To [`Ask::Usage`].
    Usage {
        /// In the order of what they are summed up by.
        rows: Vec<UsageRow>,
    },
    /// To [`Ask::Ping`] and [`Ask::Reload`].
    Here,
}

/// One task, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// Job or element, as `12` or `12[3]`.
    pub id: String,
    /// Name of the job.
    pub name: String,
    /// Whose.
    pub user: UserName,
    /// Its queue.
    pub queue: QueueName,
    /// How it is.
    pub state: JobState,
    /// Tasks that this line stands for: waiting elements of an array share one.
    pub tasks: u32,
    /// Where it runs or ran last.
    pub host: Option<HostName>,
    /// How often it was started.
    pub attempts: u32,
    /// Slots that it asks for.
    pub slots: u32,
    /// How it ended.
    pub exit: Option<Exit>,
    /// When it was submitted.
    pub submitted: Moment,
    /// Since when it runs, or ran last.
    pub started: Option<Moment>,
    /// When it ended.
    pub ended: Option<Moment>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// File of its output; empty if it is interactive.
    pub output: String,
    /// File of its errors, if not the same.
    pub error: Option<String>,
    /// What its last start used: up to now if it runs, as far as its host has said; of one that has ended only when one
    /// job is asked for.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// What else was asked for; told only when one job is asked for, and with the first of its lines.
    #[serde(default)]
    pub asked: Option<Box<Asked>>,
}

/// What a job asks for, besides what every [`JobView`] tells. Texts are as `forebay submit` takes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Memory that is set aside for it.
    pub memory_bytes: Option<u64>,
    /// Where it may run; wherever its queue allows if empty.
    pub hosts: String,
    /// What has to come true first.
    pub depends: Option<String>,
    /// Among the jobs of its user: higher first.
    pub priority: i32,
    /// What it is charged to; may be empty.
    pub project: String,
    /// How long it may run, if it says so itself.
    pub time_limit_seconds: Option<f64>,
    /// Whether it may be started again after its host was lost.
    pub rerun: Rerun,
    /// After which exit values it is started again; may be empty.
    pub requeue_exits: String,
    /// Whether its work area is kept for a restart.
    pub checkpoint: bool,
    /// Its working directory.
    pub directory: String,
}

/// One host, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name.
    pub name: HostName,
    /// Whether it can be reached.
    pub state: HostState,
    /// Whether jobs may be started on it.
    pub switch: HostSwitch,
    /// Its slots.
    pub slots: u32,
    /// Slots in use.
    pub used_slots: u32,
    /// Memory for jobs.
    pub memory_bytes: Option<u64>,
    /// Memory that is set aside.
    pub used_memory_bytes: u64,
    /// Its load, as far as it was reported.
    pub load: Option<Load>,
    /// What runs there.
    pub tasks: Vec<String>,
    /// What holds its jobs, as far as it was reported.
    #[serde(default)]
    pub containment: Option<Containment>,
}

/// One queue, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// Its priority; none if it is no longer in the settings.
    pub priority: Option<u32>,
    /// Whether it takes jobs.
    pub open: bool,
    /// Whether it starts jobs.
    pub active: bool,
    /// Whether its windows are open.
    pub windows_open: bool,
    /// Slots in use.
    pub used_slots: u32,
    /// The most slots in use, if there is a limit.
    #[serde(default)]
    pub slots_max: Option<u32>,
    /// The most slots of one user.
    #[serde(default)]
    pub user_slots_max: Option<u32>,
    /// The most slots on one host.
    #[serde(default)]
    pub host_slots_max: Option<u32>,
    /// Where its jobs may run, as the settings say; everywhere if empty.
    #[serde(default)]
    pub hosts: String,
    /// The highest time limit of a job.
    #[serde(default)]
    pub time_limit_max_seconds: Option<f64>,
    /// Tasks that wait, also for dependencies.
    #[serde(default)]
    pub pending_tasks: u64,
    /// Tasks that wait to be released.
    #[serde(default)]
    pub held_tasks: u64,
    /// Tasks that are on hosts.
    #[serde(default)]
    pub active_tasks: u64,
}

/// Whether a host can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// Its agent is connected, and its lease runs.
    Up,
    /// It cannot be reached: its jobs may run.
    Unreachable,
    /// It was given up, or never came.
    Gone,
}

impl HostState {
    /// The word, as messages have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            HostState::Up => "up",
            HostState::Unreachable => "unreachable",
            HostState::Gone => "gone",
        }
    }
}

/// Why something was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What kind of reason it is, for programs.
    pub kind: RefusalKind,
    /// The reason, for people.
    pub reason: String,
}

/// What kind of reason a refusal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// There is no such job, it is no longer known, or the asker may not see it.
    NoJob,
    /// There is no such run of a flow, or the asker may not see it.
    NoFlow,
    /// There is no such queue.
    NoQueue,
    /// There is no such host.
    NoHost,
    /// The asker may not do this.
    NotAllowed,
    /// The queue takes no jobs.
    QueueClosed,
    /// What was asked for cannot be, whoever asks and whenever.
    Invalid,
    /// There are too many, or too much, of it now.
    TooMany,
    /// It is in no state to which this applies.
    WrongState,
    /// The journal has no space for it now: ask again later.
    NoSpace,
    /// The message was not understood, or does not belong here.
    NotUnderstood,
    /// It failed.
    Failed,
}

impl Refusal {
    /// A refusal of a kind with its reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Refusal {
        Refusal { kind, reason: reason.into() }
    }

    /// There is no such job for the asker.
    #[must_use]
    pub fn no_job(target: Target) -> Refusal {
        forebay_grid::event::Refusal::NoSuchJob(target).into()
    }
}

impl From<forebay_grid::event::Refusal> for Refusal {
    fn from(refusal: forebay_grid::event::Refusal) -> Refusal {
        use forebay_grid::event::Refusal as Of;
        let kind = match &refusal {
            Of::NoSuchJob(_) => RefusalKind::NoJob,
            Of::NoSuchFlow(_) => RefusalKind::NoFlow,
            Of::NoSuchQueue(_) => RefusalKind::NoQueue,
            Of::NoSuchHost(_) => RefusalKind::NoHost,
            Of::NotAllowed { .. } => RefusalKind::NotAllowed,
            Of::QueueClosed(_) => RefusalKind::QueueClosed,
            Of::Invalid(_) => RefusalKind::Invalid,
            Of::TooMany(_) => RefusalKind::TooMany,
            Of::WrongState { .. } => RefusalKind::WrongState,
        };
        Refusal::new(kind, refusal.to_string())
    }
}

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
    /// What was asked for.
    pub spec: JobSpec,
    /// Slots that it has.
    pub slots: u32,
    /// How long it may run.
    pub time_limit: Option<Period>,
}

/// What the controller tells an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Start a task.
    Launch(Box<Launch>),
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
}

/// What a start of a task uses while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Using {
    /// Which task.
    pub task: TaskId,
    /// Which start of it.
    pub attempt: Attempt,
    /// What it has used up to now.
    pub usage: Usage,
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

impl Ask {
    /// Takes a job, and takes it again if this is said twice.
    #[must_use]
    pub fn submit(spec: JobSpec) -> Ask {
        Ask::Submit { spec: Box::new(spec), key: None }
    }
}

impl Answer {
    /// A refusal of a kind with its reason.
    pub fn refused(kind: RefusalKind, reason: impl Into<String>) -> Answer {
        Answer::Refused(Refusal::new(kind, reason))
    }

    pub(crate) fn no_job(target: Target) -> Answer {
        Answer::Refused(Refusal::no_job(target))
    }
}

/// Where the output of a task goes: a path below its directory, none if it is interactive. `%J` in what the user gave stands for the
/// job, `%I` for the element. A path that ends in `/` is a directory, in which the file has the name that it has if none is
/// given.
#[must_use]
pub fn output_path(spec: &JobSpec, task: TaskId) -> String {
    if spec.interactive.is_some() {
        return String::new();
    }
    below(spec, spec.output.as_deref().unwrap_or_default(), "out", task)
}

/// Where the errors of a task go, if not with the output.
#[must_use]
pub fn error_path(spec: &JobSpec, task: TaskId) -> Option<String> {
    spec.error.as_ref().map(|given| below(spec, given, "err", task))
}

fn below(spec: &JobSpec, given: &str, suffix: &str, task: TaskId) -> String {
    let element = if spec.array.is_some() { "-%I" } else { "" };
    let given = match given {
        file if !file.is_empty() && !file.ends_with('/') => file.to_owned(),
        directory => format!("{directory}forebay-%J{element}.{suffix}"),
    };
    let name = given.replace("%J", &task.job.to_string()).replace("%I", &task.index.to_string());
    std::path::Path::new(&spec.directory).join(name).display().to_string()
}

#[cfg(test)]
mod tests {
    use forebay_grid::vocabulary::JobId;

    use super::*;

    #[test]
    fn an_output_that_ends_in_a_slash_is_a_directory() {
        let task = TaskId { job: JobId(7), index: 3 };
        let of = |output: Option<&str>, array: Option<&str>| {
            let spec = JobSpec {
                directory: "/srv".to_owned(),
                output: output.map(str::to_owned),
                error: output.map(str::to_owned),
                array: array.map(|array| array.parse().unwrap()),
                ..JobSpec::default()
            };
            (output_path(&spec, task), error_path(&spec, task))
        };
        let both = |out: &str, err: &str| (out.to_owned(), Some(err.to_owned()));
        assert_eq!(of(None, None), ("/srv/forebay-7.out".to_owned(), None));
        assert_eq!(of(Some("d/"), None), both("/srv/d/forebay-7.out", "/srv/d/forebay-7.err"));
        let array = both("/tmp/7/forebay-7-3.out", "/tmp/7/forebay-7-3.err");
        assert_eq!(of(Some("/tmp/%J/"), Some("[1-9]")), array);
        assert_eq!(of(Some("x.%I"), Some("[1-9]")), both("/srv/x.3", "/srv/x.3"));
    }
}

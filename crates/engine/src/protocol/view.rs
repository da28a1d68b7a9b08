//! Jobs, hosts and queues, for people and scripts.

use forebay_grid::config::Load;
use forebay_grid::dialect::Dialect;
use forebay_grid::grid::Reason;
use forebay_grid::group::JobGroup;
use forebay_grid::journal::HostSwitch;
use forebay_grid::spec::{Exit, Input, Rerun, Usage};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{
    HostName, Moment, ProfileName, QueueName, ResourceName, ServiceName, UserName,
};
use serde::{Deserialize, Serialize};

use super::{Containment, Missing};

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
    /// What else was asked for; told only when one job is asked for, and with the first of its lines, or with every line if
    /// the page asks for it.
    #[serde(default)]
    pub asked: Option<Box<Asked>>,
    /// What concerns it as a service, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceView>>,
    /// Its job group, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<JobGroup>,
}

/// What concerns a job as a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Its name.
    pub name: ServiceName,
    /// Its port, if it has one.
    pub port: Option<u16>,
    /// Name or number under which its host is reached, as far as its host has said.
    pub address: Option<String>,
    /// Whether it is ready; none if its host has not said, or it is on none.
    pub ready: Option<bool>,
    /// Why it is not.
    pub why: Option<String>,
    /// How often it failed in a row.
    pub failures: u32,
    /// When it starts again, if it pauses.
    pub next_start: Option<Moment>,
    /// The file with its address.
    pub address_file: Option<String>,
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
    /// How it was submitted, if not with our own words.
    #[serde(default)]
    pub dialect: Option<Dialect>,
    /// Which elements an array has, and how many may run at once; none if it is not one.
    #[serde(default)]
    pub array: Option<String>,
    /// Which elements a line stands for, with the first and the last of each range; of at most
    /// [`RANGES_MAX`] ranges. Empty if it stands for one task, and where it is not asked for.
    #[serde(default)]
    pub elements: Vec<(u32, u32)>,
    /// When it may start at the earliest.
    #[serde(default)]
    pub begin: Option<Moment>,
    /// When it is ended at the latest.
    #[serde(default)]
    pub deadline: Option<Moment>,
    /// Counted resources that it needs; may be empty.
    #[serde(default)]
    pub resources: String,
    /// Whether no other job runs on its host while it does.
    #[serde(default)]
    pub exclusive: bool,
    /// A shell command before its program.
    #[serde(default)]
    pub pre: Option<String>,
    /// A shell command after its program.
    #[serde(default)]
    pub post: Option<String>,
    /// Its application profile.
    #[serde(default)]
    pub profile: Option<String>,
    /// Whether it is kept from hosts that starve for I/O.
    #[serde(default)]
    pub io_heavy: bool,
    /// The advance reservation in which it runs.
    #[serde(default)]
    pub reservation: Option<String>,
    /// Files that it reads, with the hosts on which they lay when it was submitted.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// Priority of its user by fair share now, if its queue lets users take turns so: the user with the highest is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<f64>,
    /// The signal that it gets before it is ended, to whom, and how long before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// What must hold of the features of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// Why it waits, if that has nothing to do with hosts; told with lines of lists alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Reason>,
}

/// What is on hosts, in slots or in tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    /// What is not suspended.
    pub running: u64,
    /// What its user or an admin has suspended.
    pub stopped_by_user: u64,
    /// What the grid has suspended: for a window, load, an area or another job.
    pub stopped_by_grid: u64,
}

/// The most ranges of elements that are told of one line.
pub const RANGES_MAX: usize = 1000;

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
    /// What it cannot limit, and why, as far as it was reported.
    #[serde(default, skip_serializing_if = "Missing::is_empty")]
    pub missing_limits: Missing,
    /// Features that it has, by the settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Slots of the jobs there.
    #[serde(default)]
    pub runs: Runs,
}

/// One counted resource, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceView {
    /// Its name.
    pub name: ResourceName,
    /// The host that it belongs to; none if all hosts share it.
    pub host: Option<HostName>,
    /// How much there is.
    pub total: u32,
    /// How much jobs hold.
    pub used: u32,
}

/// Limits and times of the settings that concern users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsView {
    /// How long jobs that have ended are known.
    pub finished_age_seconds: f64,
    /// The most tasks that have not ended.
    pub tasks_max: u32,
    /// Those of one user.
    pub user_tasks_max: u32,
    /// The most slots of one user, if there is a limit.
    pub user_slots_max: Option<u32>,
    /// Time between two rounds of dispatch; 0 if jobs start as soon as they can.
    pub dispatch_seconds: f64,
    /// How many rounds a host that received a job rests.
    pub accept_rounds: u32,
    /// Whether jobs of the default queue start again after their host was lost.
    pub rerun: bool,
    /// Application profiles.
    pub profiles: Vec<ProfileName>,
    /// Whether a program of the site sees every job before it is accepted.
    #[serde(default)]
    pub submit_filter: bool,
}

/// One job group of a user, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// Its path.
    pub group: JobGroup,
    /// The most tasks that may be on hosts at once, with those of groups in it; none if there is no limit.
    pub limit: Option<u32>,
    /// How many are, with those of groups in it.
    pub used: u32,
    /// Tasks of its own that wait.
    pub pending: u64,
    /// Those that are on hosts and not suspended.
    pub running: u64,
    /// Those that are suspended.
    pub suspended: u64,
    /// Those that have ended, as far as they are known.
    pub ended: u64,
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
    /// Whether jobs go here that name no queue.
    #[serde(default)]
    pub is_default: bool,
    /// Tasks that are on hosts.
    #[serde(default)]
    pub runs: Runs,
}

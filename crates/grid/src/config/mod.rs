//! Settings of the grid as data: read from TOML, checked once, refused with key, value, what is allowed
//! and the line.

mod check;
mod limits;
mod profile;
mod queue;

pub use limits::{Limits, Processors};
pub use profile::ProfileConfig;
pub use queue::{
    AreaExceeded, Exceeded, Load, LoadIndex, Order, Preempted, QueueConfig, RerunDefault,
    Threshold, Thresholds,
};

use std::collections::BTreeMap;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use crate::parse::line_of;
use crate::parse::period::Period;
use crate::parse::zone::Zone;
use crate::vocabulary::{FeatureName, HostName, QueueName, ResourceName, UserName};

/// All settings of a grid. [`Config::read`] gives only such as are fine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What concerns all.
    #[serde(default)]
    pub general: General,
    /// How users share.
    #[serde(default)]
    pub fair_share: FairShare,
    /// The queues, one at least.
    #[serde(rename = "queue", default = "one_queue")]
    pub queues: Vec<QueueConfig>,
    /// What is said of hosts; a host need not be listed.
    #[serde(rename = "host", default)]
    pub hosts: Vec<HostConfig>,
    /// Application profiles.
    #[serde(rename = "profile", default)]
    pub profiles: Vec<ProfileConfig>,
    /// Resources that jobs on all hosts share, such as licences, with how much there is of each.
    #[serde(default)]
    pub resources: BTreeMap<ResourceName, u32>,
}

/// When jobs are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Dispatch {
    /// As soon as they can.
    #[default]
    Event,
    /// At intervals, as LSF does.
    Interval {
        /// Time between two rounds (MBD_SLEEP_TIME).
        sleep: Period,
        /// Rounds that a host is left alone after a job was started on it (JOB_ACCEPT_INTERVAL).
        #[serde(default)]
        accept: u32,
    },
}

/// What happens when a host joins that is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlisted {
    /// It is used, with the slots it says.
    #[default]
    Accept,
    /// It is known and closed.
    Close,
}

/// What becomes of a job whose dependency can no longer be met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNever {
    /// It ends without having run.
    #[default]
    End,
    /// It waits, as somebody may requeue what it waits for.
    Keep,
}

impl std::str::FromStr for OnNever {
    type Err = String;

    fn from_str(text: &str) -> Result<OnNever, String> {
        match text {
            "end" => Ok(OnNever::End),
            "keep" => Ok(OnNever::Keep),
            _ => Err("choose end or keep".to_owned()),
        }
    }
}

/// What concerns all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct General {
    /// How long a host may be silent before its jobs are given up; longer than the lease.
    pub host_timeout: Period,
    /// How long an agent lets its jobs run after it last heard of the controller.
    pub lease: Period,
    /// When jobs are started.
    pub dispatch: Dispatch,
    /// Name of the time zone of windows and days, such as `Europe/Berlin`.
    pub time_zone: Zone,
    /// Who may act on everybody's jobs, on queues and on hosts.
    pub admins: Vec<UserName>,
    /// The queue of jobs that name none; the first queue if none.
    pub queue_default: Option<QueueName>,
    /// The most slots of one user on the grid.
    pub user_slots_max: Option<u32>,
    /// The most jobs that have not finished, an array counted with all its elements.
    pub tasks_max: u32,
    /// The most jobs of one user that have not finished, counted likewise.
    pub user_tasks_max: u32,
    /// The most bytes that the jobs which have not finished bring together.
    pub jobs_bytes_max: ByteSize,
    /// The most bytes that those of one user bring together.
    pub user_jobs_bytes_max: ByteSize,
    /// The most starts of one task.
    pub attempts_max: u32,
    /// For how long others may pass a job that does not fit, where no time limits say when it will.
    pub reserve_after: Period,
    /// What becomes of a job whose dependency can no longer be met, unless it says.
    pub dependency_never: OnNever,
    /// The most jobs that hosts are reserved for at a time; 0 lets all others pass.
    pub reserved_jobs_max: u32,
    /// What happens when a host joins that is not listed.
    pub unlisted_hosts: Unlisted,
    /// The most tasks of finished jobs that are known; older ones are forgotten.
    pub finished_max: u32,
    /// The most bytes that they have brought; older ones are forgotten.
    pub finished_bytes_max: ByteSize,
    /// The most tasks of one user's finished jobs that are known.
    pub user_finished_max: u32,
    /// The most bytes that one user's have brought.
    pub user_finished_bytes_max: ByteSize,
    /// How long finished jobs are known.
    pub finished_age: Period,
    /// The most starts in the history; those of the oldest jobs go.
    pub history_max: u32,
    /// How long starts that ended are in the history.
    pub history_age: Period,
    /// The most days that are summed up.
    pub days_max: u32,
    /// After which time work areas are looked for whose jobs are gone.
    pub reap_interval: Period,
    /// The most bytes of the environment that a job brings.
    pub environment_bytes_max: u32,
    /// The most bytes of the script of a job.
    pub script_bytes_max: u32,
    /// The most bytes of messages of one user that are being received or wait for their answers.
    pub user_messages_bytes_max: ByteSize,
    /// Space of the disk that is kept for the journal.
    pub journal_reserve: ByteSize,
    /// The I/O pressure of a host (`iop`) beyond which no job that is flagged I/O-heavy is started on it.
    pub io_pressure_max: f64,
    /// The most bytes of one job's checkpoints where they are shipped to.
    pub checkpoint_bytes_max: ByteSize,
    /// The most bytes of one user's.
    pub user_checkpoint_bytes_max: ByteSize,
    /// The first port that the grid chooses for services.
    pub service_port_min: u16,
    /// The last one.
    pub service_port_max: u16,
    /// The most failures in a row of a service before it is given up.
    pub service_failures_max: u32,
    /// How long a service has to run so that its earlier failures no longer count.
    pub service_stable: Period,
    /// How long a service that failed once waits for its next start; twice as long after each further failure.
    pub service_pause: Period,
    /// How long it waits at most.
    pub service_pause_max: Period,
    /// Time between two checks whether a service is ready.
    pub service_check_interval: Period,
    /// How long a service may not be ready before it is ended and started again.
    pub service_unready_max: Period,
    /// The program that sends mail of jobs; it reads a message with its header.
    pub sendmail: String,
    /// The most notifications of jobs that wait to be sent.
    pub notifications_max: u32,
    /// A program that sees every job before it is accepted, and may change or refuse it.
    pub submit_filter: Option<String>,
    /// How long it may take for one job.
    pub submit_filter_time_max: Period,
}

impl Default for General {
    fn default() -> General {
        General {
            host_timeout: Period::seconds(90),
            lease: Period::seconds(60),
            dispatch: Dispatch::Event,
            time_zone: Zone::default(),
            admins: Vec::new(),
            queue_default: None,
            user_slots_max: None,
            tasks_max: 1_000_000,
            user_tasks_max: 250_000,
            jobs_bytes_max: ByteSize::gib(4),
            user_jobs_bytes_max: ByteSize::mib(256),
            attempts_max: 100,
            reserve_after: Period::seconds(300),
            dependency_never: OnNever::End,
            reserved_jobs_max: 4,
            unlisted_hosts: Unlisted::Accept,
            finished_max: 100_000,
            finished_bytes_max: ByteSize::gib(1),
            user_finished_max: 50_000,
            user_finished_bytes_max: ByteSize::mib(128),
            finished_age: Period::seconds(7 * 86_400),
            history_max: 1_000_000,
            history_age: Period::seconds(400 * 86_400),
            days_max: 400,
            reap_interval: Period::seconds(600),
            environment_bytes_max: 128 << 10,
            script_bytes_max: 1 << 20,
            user_messages_bytes_max: ByteSize::mib(64),
            journal_reserve: ByteSize::mib(32),
            io_pressure_max: 0.5,
            checkpoint_bytes_max: ByteSize::gib(256),
            user_checkpoint_bytes_max: ByteSize::gib(1024),
            service_port_min: 30_000,
            service_port_max: 32_767,
            service_failures_max: 10,
            service_stable: Period::seconds(60),
            service_pause: Period::seconds(1),
            service_pause_max: Period::seconds(60),
            service_check_interval: Period::seconds(5),
            service_unready_max: Period::seconds(300),
            sendmail: "/usr/sbin/sendmail".to_owned(),
            notifications_max: 1000,
            submit_filter: None,
            submit_filter_time_max: Period::seconds(10),
        }
    }
}

/// How users share the grid: as LSF's dynamic priority, `shares / (run_time_weight * slot hours used +
/// cpu_time_weight * processor hours used + running_weight * (1 + slots in use))`, where what was used
/// counts half after each half-life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FairShare {
    /// After which time use counts half.
    pub half_life: Period,
    /// Weight of slot hours.
    pub run_time_weight: f64,
    /// Weight of processor hours.
    pub cpu_time_weight: f64,
    /// Weight of slots in use.
    pub running_weight: f64,
    /// Shares of users.
    pub shares: BTreeMap<UserName, u32>,
    /// Shares of every other user.
    pub share_default: u32,
}

impl Default for FairShare {
    fn default() -> FairShare {
        FairShare {
            half_life: Period::seconds(5 * 3600),
            run_time_weight: 0.7,
            cpu_time_weight: 0.7,
            running_weight: 3.0,
            shares: BTreeMap::new(),
            share_default: 1,
        }
    }
}

/// What a host is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It runs jobs.
    #[default]
    Compute,
    /// It is kept free of jobs.
    Control,
}

/// What runs the jobs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostEngine {
    /// An agent on the host itself.
    #[default]
    Agent,
    /// Slurm: the host stands for all nodes of a Slurm cluster, and its agent hands jobs to Slurm.
    Slurm,
}

impl HostEngine {
    /// Whether it is an agent, which it is where nothing else is said.
    pub(crate) fn is_agent(&self) -> bool {
        *self == HostEngine::Agent
    }
}

/// What is said of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Its name.
    pub name: HostName,
    /// Its slots; as many as it has cores if none.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Memory for jobs; as much as it has if none.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// What it is for.
    #[serde(default)]
    pub role: Role,
    /// What runs its jobs.
    #[serde(default)]
    pub engine: HostEngine,
    /// Load at which jobs are started on it, and suspended.
    #[serde(default)]
    pub load: Thresholds,
    /// Resources that it has, such as `gpu`, with how much of each.
    #[serde(default)]
    pub resources: BTreeMap<ResourceName, u32>,
    /// Features that it has, by which jobs choose hosts.
    #[serde(default)]
    pub features: Vec<FeatureName>,
    /// What the slots of jobs on it mean for processors.
    #[serde(default)]
    pub processors: Processors,
    /// The most processes and threads of one job on it together.
    #[serde(default)]
    pub processes_max: Option<u32>,
}

fn one_queue() -> Vec<QueueConfig> {
    let name = "normal".parse().expect("a name");
    vec![QueueConfig {
        name,
        priority: 0,
        slots_max: None,
        user_slots_max: None,
        host_slots_max: None,
        hosts: Default::default(),
        dispatch_windows: Default::default(),
        run_windows: Default::default(),
        load: Thresholds::default(),
        order: Order::FirstCome,
        users: Vec::new(),
        rerun: RerunDefault::Once,
        time_limit_default: None,
        time_limit_max: None,
        area_limit: None,
        area_exceeded: AreaExceeded::Warn,
        admins: Vec::new(),
        pre: None,
        post: None,
        starter: None,
        spill: Vec::new(),
        fullstimer: false,
        slurm: Vec::new(),
        preempt: Vec::new(),
        preempted: Preempted::Suspend,
        preempt_grace: Period(0),
        processors: Processors::Share,
        processes_max: None,
    }]
}

impl Default for Config {
    fn default() -> Config {
        Config {
            general: General::default(),
            fair_share: FairShare::default(),
            queues: one_queue(),
            hosts: Vec::new(),
            profiles: Vec::new(),
            resources: BTreeMap::new(),
        }
    }
}

/// Why settings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", at_line(*line))]
pub struct ConfigError {
    /// The line, counted from 1, as far as there is one.
    pub line: Option<usize>,
    /// Key, value and what is allowed.
    pub reason: String,
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}

impl Config {
    /// Reads and checks settings.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub fn read(text: &str) -> Result<Config, ConfigError> {
        Config::read_for(text, |_| true)
    }

    /// Reads and checks settings, and refuses users of whom `exists` says that there are none.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub fn read_for(text: &str, exists: impl Fn(&UserName) -> bool) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError {
            line: error.span().map(|span| line_of(text, span.start)),
            reason: error.message().to_owned(),
        })?;
        match config.fault().or_else(|| config.user_fault(&exists)) {
            None => Ok(config),
            Some(fault) => Err(fault.in_text(text)),
        }
    }

    pub(crate) fn queue(&self, name: &QueueName) -> Option<&QueueConfig> {
        self.queues.iter().find(|queue| queue.name == *name)
    }

    /// The queue of jobs that name none.
    #[must_use]
    pub fn queue_default(&self) -> &QueueName {
        self.general.queue_default.as_ref().unwrap_or(&self.queues[0].name)
    }
}

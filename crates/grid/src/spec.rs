//! What is asked for and what was used: job specifications, exits and usage.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::ByteSize;
pub use forebay_base::Usage;
use serde::{Deserialize, Serialize};

use crate::config::OnNever;
use crate::dialect::{COMMENT_BYTES_MAX, Dialect, OldOutput};
use crate::environment::Environment;
use crate::group::JobGroup;
use crate::notify::Notify;
use crate::parse::array::ArraySpec;
use crate::parse::dependency::Dependency;
use crate::parse::features::Features;
use crate::parse::hosts::HostList;
use crate::parse::period::Period;
use crate::parse::requeue::RequeueExits;
use crate::parse::resources::Resources;
use crate::service::Service;
use crate::sparse::sparse;
use crate::vocabulary::{HostName, Moment, ProfileName, QueueName, ReservationName};
use crate::warning::Warning;
use crate::wrap;

/// The most slots of a job.
pub const SLOTS_MAX: u32 = 100_000;
/// The most bytes of a command with its environment, as the system's own limit is.
pub const COMMAND_BYTES_MAX: usize = 2 << 20;

/// The most bytes of a path that a job brings, as the system's own limit is.
pub const PATH_BYTES_MAX: usize = 4096;

/// The greatest setting for the most bytes of a script: a job goes in one message.
pub const SCRIPT_BYTES_LIMIT: u32 = 4 << 20;

/// Whether a job may be started again after its host was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rerun {
    /// As the queue says.
    #[default]
    AsQueue,
    /// It may.
    Rerunnable,
    /// It may not.
    Once,
}

/// Whether a job finds its finished steps again when it is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoint {
    /// Its work area is emptied before it starts again.
    #[default]
    None,
    /// Its work area is kept.
    Steps,
}

/// Whether a job shares its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Other jobs may run beside it.
    #[default]
    Shared,
    /// No other job runs on its host while it does.
    Exclusive,
}

/// What the standard streams of an interactive job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// One terminal, which is the controlling terminal of a session of the job's own.
    Terminal,
    /// A pipe each.
    Pipes,
}

/// Where the user of an interactive job is. Such a job is started once at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interactive {
    /// Path of the unix socket on which its client listens.
    pub socket: String,
    /// What its standard streams are.
    pub streams: Streams,
    /// The node on which its client is; none on a grid of one machine. The controller sets it.
    #[serde(default)]
    pub node: Option<HostName>,
}

/// A file or directory that a job reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its path.
    pub path: String,
    /// Number of its fileset, as far as its client could tell.
    #[serde(default)]
    pub fileset: Option<u16>,
    /// The folder below its fileset in which it lies, which in a native one is that of a node.
    #[serde(default)]
    pub folder: Option<String>,
    /// The host on which its bytes lay when the job was submitted, if one is known to be better than others.
    #[serde(default)]
    pub home: Option<HostName>,
}

/// The most inputs of a job.
pub const INPUTS_MAX: usize = 1000;

/// The most bytes of the path of a unix socket.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

sparse! {
    /// A job as it was submitted.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct JobSpec {
        /// The program and its arguments.
        pub command: Vec<String>,
        /// The queue; the default queue if none.
        pub queue: Option<QueueName>,
        /// Its name; may be empty.
        pub name: String,
        /// Slots, all on one host; 0 counts as 1.
        pub slots: u32,
        /// Where it may run; wherever the queue allows if empty.
        pub hosts: HostList,
        /// Memory that is set aside for it on its host.
        pub memory: Option<ByteSize>,
        /// Makes it an array.
        pub array: Option<ArraySpec>,
        /// What has to come true first.
        pub depends: Option<Dependency>,
        /// What becomes of it once that can no longer come true; as the grid says if none.
        pub on_never: Option<OnNever>,
        /// Among the jobs of its user: higher first.
        pub priority: i32,
        /// Whether it may be started again after its host was lost.
        pub rerun: Rerun,
        /// After which exit values it is started again.
        pub requeue_exits: RequeueExits,
        /// Variables of its environment.
        pub environment: Environment,
        /// How long it may run, without the time it was suspended.
        pub time_limit: Option<Period>,
        /// Where its output goes.
        pub output: Option<String>,
        /// Where its errors go; with the output if none.
        pub error: Option<String>,
        /// Its working directory.
        pub directory: String,
        /// Its file mode creation mask.
        pub umask: u32,
        /// Whether its work area is kept for a restart.
        pub checkpoint: Checkpoint,
        /// Whether it waits until it is released.
        pub held: bool,
        /// What it is charged to in summaries; may be empty.
        pub project: String,
        /// Makes it interactive: its streams go to its client instead of files.
        pub interactive: Option<Interactive>,
        /// The text of its script, which is run in place of the program that the command names.
        pub script: Option<String>,
        /// How it was submitted, if not with our own words.
        pub dialect: Option<Dialect>,
        /// When it may start at the earliest.
        pub begin: Option<Moment>,
        /// When it is ended at the latest, whether it runs or waits.
        pub deadline: Option<Moment>,
        /// Counted resources that it holds while it is on a host.
        pub resources: Resources,
        /// Whether it shares its host with other jobs.
        pub sharing: Sharing,
        /// A shell command before its program.
        pub pre: Option<String>,
        /// A shell command after its program.
        pub post: Option<String>,
        /// The application profile that fills in what it leaves open.
        pub profile: Option<ProfileName>,
        /// Whether it is kept from hosts that starve for I/O.
        pub io_heavy: bool,
        /// Makes it a service.
        pub service: Option<Box<Service>>,
        /// Whom it notifies, and of what.
        pub notify: Option<Box<Notify>>,
        /// The advance reservation in which it runs.
        pub reservation: Option<ReservationName>,
        /// Files that it reads, with the hosts on which they lie.
        pub inputs: Vec<Input>,
        /// The job group of its user in which it is.
        pub group: Option<JobGroup>,
        /// The signal that it gets some time before it is ended for its time limit or its deadline.
        pub warning: Option<Warning>,
        /// What must hold of the features of its host.
        pub features: Option<Features>,
    }
}

impl JobSpec {
    /// Slots, 1 at least.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.max(1)
    }

    /// What its first start does with files of output that are there already.
    #[must_use]
    pub fn old_output(&self) -> OldOutput {
        self.dialect.as_ref().map_or(OldOutput::Emptied, |dialect| dialect.old_output)
    }

    /// Bytes of memory that are set aside.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.map_or(0, |memory| memory.0)
    }

    /// On which hosts its inputs lie, and how many of them on each, in the order of the names.
    #[must_use]
    pub fn homes(&self) -> Vec<(HostName, u32)> {
        let mut homes = BTreeMap::new();
        for home in self.inputs.iter().filter_map(|input| input.home.as_ref()) {
            *homes.entry(home.clone()).or_insert(0) += 1;
        }
        homes.into_iter().collect()
    }

    /// How many tasks it has.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.array.as_ref().map_or(1, ArraySpec::count)
    }

    /// The index of the task at a place, counted from 0.
    #[must_use]
    pub fn index_at(&self, place: u32) -> u32 {
        self.array.as_ref().and_then(|array| array.index_at(place)).unwrap_or(0)
    }

    /// Bytes of its environment, as the system counts them.
    #[must_use]
    pub fn environment_bytes(&self) -> usize {
        self.environment.iter().map(|(key, value)| key.len() + value.len() + 2).sum()
    }

    /// Why it cannot be taken, as far as it shows by itself.
    pub(crate) fn fault(&self) -> Option<String> {
        self.command_fault()
            .or_else(|| self.path_fault())
            .or_else(|| self.time_fault())
            .or_else(|| self.name_fault())
            .or_else(|| self.text_fault())
            .or_else(|| self.interactive.as_ref().and_then(|of| self.interactive_fault(of)))
            .or_else(|| self.notify.as_ref().and_then(|notify| notify.fault()))
            .or_else(|| self.service.as_ref().and_then(|service| self.service_fault(service)))
    }

    fn command_fault(&self) -> Option<String> {
        let bytes = |text: &String| text.len() + 1;
        if self.command.first().is_none_or(String::is_empty) {
            return Some("the command is missing".to_owned());
        }
        let all = self.command.iter().map(bytes).sum::<usize>() + self.environment_bytes();
        (all > COMMAND_BYTES_MAX)
            .then(|| format!("command and environment exceed {COMMAND_BYTES_MAX} bytes"))
    }

    fn path_fault(&self) -> Option<String> {
        let paths = [
            ("directory", Some(&self.directory)),
            ("output", self.output.as_ref()),
            ("error", self.error.as_ref()),
        ];
        let inputs = self.inputs.iter().map(|input| ("an input", Some(&input.path)));
        let is_long = |path: &String| path.len() > PATH_BYTES_MAX;
        let long = paths.into_iter().chain(inputs).find(|(_, path)| path.is_some_and(is_long));
        if let Some((what, _)) = long {
            return Some(format!("the path of {what} has at most {PATH_BYTES_MAX} bytes"));
        }
        let count = self.inputs.len();
        (count > INPUTS_MAX).then(|| format!("{count} inputs: a job names at most {INPUTS_MAX}"))
    }

    fn time_fault(&self) -> Option<String> {
        if self.time_limit == Some(Period(0)) {
            return Some("the time limit is 0; give a longer one, or none".to_owned());
        }
        let (begin, deadline) = self.begin.zip(self.deadline)?;
        (deadline <= begin)
            .then(|| "it must have ended before it may begin: give a later deadline".to_owned())
    }

    fn name_fault(&self) -> Option<String> {
        let most = crate::vocabulary::NAME_BYTES_MAX;
        if self.slots() > SLOTS_MAX {
            return Some(format!("{} slots: a job has at most {SLOTS_MAX}", self.slots));
        }
        if self.name.len() > most {
            return Some(format!("the name of a job has at most {most} bytes"));
        }
        let project = &self.project;
        if project.len() > most || project.contains(|c: char| c.is_control() || c == ',') {
            return Some(format!("project {project:?}: at most {most} bytes, without commas"));
        }
        if self.name.contains(['*', '"', '[', ']']) || self.name.contains(char::is_control) {
            return Some(format!("\"{}\": the name of a job has no * \" [ ]", self.name));
        }
        let is_long = self.dialect.as_ref().is_some_and(|of| of.comment.len() > COMMENT_BYTES_MAX);
        is_long.then(|| format!("a comment has at most {COMMENT_BYTES_MAX} bytes"))
    }

    fn text_fault(&self) -> Option<String> {
        let wraps = [("pre", self.pre.as_ref()), ("post", self.post.as_ref())];
        for (what, command) in wraps {
            if let Some(allowed) = command.and_then(|command| wrap::fault(command)) {
                return Some(format!("{what}: expected {allowed}"));
            }
        }
        let zero = |text: &str| text.contains('\0');
        let is_bad = |(key, value): &(String, String)| {
            key.is_empty() || key.contains('=') || zero(key) || zero(value)
        };
        (self.command.iter().any(|word| zero(word)) || self.environment.iter().any(is_bad)).then(
            || {
                "words must not contain a NUL byte, and names of variables must not contain ="
                    .to_owned()
            },
        )
    }

    fn service_fault(&self, service: &Service) -> Option<String> {
        if self.array.is_some() || self.interactive.is_some() {
            return Some("a service cannot be an array, and cannot be interactive".to_owned());
        }
        service.fault()
    }

    fn interactive_fault(&self, interactive: &Interactive) -> Option<String> {
        let socket = &interactive.socket;
        if !socket.starts_with('/') || socket.len() > SOCKET_PATH_BYTES_MAX || socket.contains('\0')
        {
            let most = SOCKET_PATH_BYTES_MAX;
            return Some(format!(
                "socket {socket:?} of an interactive job: an absolute path of at most {most} bytes"
            ));
        }
        (self.array.is_some() || self.held || self.begin.is_some()).then(|| {
            "an interactive job cannot be an array, cannot be held, and cannot begin later"
                .to_owned()
        })
    }
}

/// The most bytes of a reason why something was not started: it is kept for each task, in the journal and in the history.
pub const REASON_BYTES_MAX: usize = 1000;

/// A reason, cut at a character if it is longer than [`REASON_BYTES_MAX`].
#[must_use]
pub fn short_reason(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX - "...".len()));
        reason.push_str("...");
    }
    reason
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this exit value.
    Code(u8),
    /// By this signal.
    Signal(u8),
    /// It could not be started, for this reason.
    NotStarted(String),
    /// It was ended, because its memory exceeded its limit, which was so many bytes.
    MemoryLimit(u64),
    /// It failed with this exit value, after it was refused a process or a thread because of its limit.
    ProcessLimit {
        /// The value, as [`Exit::value`] says it.
        value: u8,
        /// How many it may have.
        limit: u32,
    },
}

impl Exit {
    /// The exit value as a shell says it: 128 and the number of a signal, 127 if it was not started; 137 if its memory
    /// exceeded its limit, as the kernel kills it by signal 9 then.
    #[must_use]
    pub fn value(&self) -> u8 {
        match self {
            Exit::Code(value) => *value,
            Exit::Signal(number) => 128_u8.saturating_add(*number),
            Exit::NotStarted(_) => 127,
            Exit::MemoryLimit(_) => 137,
            Exit::ProcessLimit { value, .. } => *value,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(value) => write!(f, "exit value {value}"),
            Exit::Signal(number) => write!(f, "signal {number}"),
            Exit::NotStarted(reason) => write!(f, "not started: {reason}"),
            Exit::MemoryLimit(bytes) => write!(f, "memory limit of {} exceeded", ByteSize(*bytes)),
            Exit::ProcessLimit { value, limit } => {
                write!(f, "exit value {value}, limit of {limit} processes and threads reached")
            }
        }
    }
}

//! What is written down of a study: `result.json`.
//!
//! Everything that a report shows is computed from this, so that reports can be made again and compared
//! later. Seconds are counted from the start of the run that they belong to; bytes are bytes.
//! [`Record::SCHEMA`] changes when a field changes its meaning or goes; fields may be added.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

pub use forebay_base::Usage;
use forebay_process::Ended;
pub use forebay_workload::mix::JobKind;
use forebay_workload::program::{Buffers, StepRecord};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A study: a workload on one or more storages, once or in several rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format: [`Record::SCHEMA`].
    pub schema: u32,
    /// What was run.
    pub workload: Workload,
    /// The command that repeats it, as its arguments.
    pub command: Vec<String>,
    /// Version of Forebay.
    pub version: String,
    /// When it began, in RFC 3339, UTC.
    pub started: String,
    /// Whether it ran to its end.
    pub state: State,
    /// The machine on which the study was started.
    pub machine: Machine,
    /// The hosts on which the jobs ran, if a cluster's grid ran them; else they ran on `machine`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// The storages that were compared; one if nothing was.
    pub subjects: Vec<Subject>,
    /// The runs in the order in which they were made, those of different subjects interleaved.
    pub runs: Vec<Run>,
}

/// What was run, at which size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The workload's name, such as `mixed`.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// The study that it comes from, and its figures, for people.
    pub study: String,
    /// What the reader must know: choices made, disagreements in the source.
    pub notes: Vec<String>,
    /// Size against the study; 1 is its size.
    pub scale: f64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Page sizes and memory of the programs.
    pub buffers: Buffers,
    /// Parameters of the workload that may be set, as they were.
    pub parameters: BTreeMap<String, String>,
}

/// Whether a study ran to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every job ran to its end, well.
    Complete,
    /// It was ended before that, by a signal or an error.
    Partial {
        /// Why.
        reason: String,
    },
}

/// The machine on which the jobs ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// The processor's name.
    pub processor: String,
    /// Logical processors that may be used.
    pub cpus: u32,
    /// Physical cores; as many as `cpus` where the system does not say.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether it is a virtual machine, if known ("kvm", "none", ...).
    pub virtualization: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Name of the distribution.
    pub system: String,
    /// Host settings that matter to I/O, name to value (`vm.dirty_ratio`, `transparent_hugepage`, ...).
    pub settings: BTreeMap<String, String>,
    /// Where the time of waiting for I/O comes from, or why it is not known.
    pub io_wait_source: String,
}

/// A host of a grid on which jobs of the study ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in the grid.
    pub name: String,
    /// The machine as it describes itself.
    pub machine: Machine,
    /// The boot of its kernel: hosts that share one share its processors, memory and devices.
    pub boot: String,
    /// Its network interfaces that are counted, with their speed in Mbit/s where they know it.
    pub interfaces: BTreeMap<String, Option<u64>>,
}

/// One storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// What it is called in tables: `A`, `B`, or a name.
    pub label: String,
    /// The areas.
    pub data: Storage,
    /// Where temporary data sets lie.
    pub work: Storage,
    /// Where utility files lie.
    pub util: Storage,
}

/// What lies below one area.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    /// The path given.
    pub path: PathBuf,
    /// Type of the file system, such as `xfs` or `fuse.forebay`.
    pub file_system: String,
    /// What is mounted there: a device, a server.
    pub source: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Mount options.
    pub options: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Free bytes at the start.
    pub free_bytes: u64,
    /// Bytes that the kernel reads ahead on it, where it says.
    #[serde(default)]
    pub read_ahead_bytes: Option<u64>,
    /// Block devices below it, from the top down, as far as they are known.
    pub devices: Vec<Device>,
    /// Those of them whose I/O is that of the area.
    #[serde(default)]
    pub device_scope: DeviceScope,
}

/// A block device below a storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Kernel name, such as `nvme0n1`.
    pub name: String,
    /// Model, if the device tells one.
    pub model: Option<String>,
    /// Whether it has moving parts, if known.
    pub rotational: Option<bool>,
    /// Size in bytes, if known.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Settings of its queue (`scheduler`, `read_ahead_kb`, `nr_requests`, `max_sectors_kb`, ...).
    pub queue: BTreeMap<String, String>,
}

/// The workload once on one subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Index of the subject in [`Record::subjects`].
    pub subject: usize,
    /// Number of the round, from 0.
    pub round: u32,
    /// State of the caches at its start, and whether they could hold everything.
    pub cache: Cache,
    /// When its first stage began, in seconds since the epoch; records of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_seconds: Option<f64>,
    /// Seconds that making the inputs took; not part of the run.
    pub prepare_seconds: f64,
    /// Seconds from the start of the first stage to the end of the last.
    pub seconds: f64,
    /// The stages, one after another.
    pub stages: Vec<Stage>,
    /// What the machine did, second by second.
    pub samples: Vec<Sample>,
    /// Seconds between two samples, as intended.
    pub interval_seconds: f64,
    /// Whose I/O the device columns of the samples are.
    pub device_scope: DeviceScope,
    /// What each host did, where the jobs ran on hosts of a cluster's grid; `samples` is then all of them together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostRun>,
}

/// What one host did in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRun {
    /// The host, by its name in [`Record::hosts`].
    pub host: String,
    /// Its samples: the same intervals as those of the run; bytes and calls are those of the jobs on this host.
    pub samples: Vec<Sample>,
    /// Seconds of the run in which it was watched.
    pub watched_seconds: f64,
}

/// Whether results come from memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// Whether the caches were emptied before the run.
    pub dropped: bool,
    /// Bytes of the inputs.
    pub input_bytes: u64,
    /// Bytes that the run reads and writes at the file level at most at one time in its working set:
    /// inputs and what jobs keep, as the workload declares it.
    pub working_set_bytes: u64,
    /// Memory of the machine, which the page cache may use.
    pub memory_bytes: u64,
}

/// Whose I/O was counted at the device level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceScope {
    /// That of these devices, which lie below the storage.
    Devices(Vec<String>),
    /// That of all disks of the machine: which lie below the storage is not known.
    #[default]
    AllDisks,
    /// None: there are no block devices to watch.
    None,
}

/// A part of a run whose jobs run at once; the next begins when all have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name, such as `read` or `2 nodes`.
    pub name: String,
    /// Logical nodes.
    pub nodes: u32,
    /// Sessions, where the workload has them.
    pub sessions: Option<u32>,
    /// Jobs at once on each node, at most.
    pub concurrent: u32,
    /// When it began.
    pub start_seconds: f64,
    /// When its last job had ended.
    pub end_seconds: f64,
    /// Its jobs by their numbers.
    pub jobs: Vec<JobRecord>,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its name, unique in the stage.
    pub name: String,
    /// Its class, such as `large-sort`.
    pub class: String,
    /// What the class asks most of.
    pub kind: JobKind,
    /// Logical node, from 0.
    pub node: u32,
    /// The host that ran it, where the jobs ran on hosts of a cluster's grid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Session, from 0, where the workload has them.
    pub session: Option<u32>,
    /// When it was due.
    pub due_seconds: f64,
    /// When its process was started; `None` if it never was.
    pub start_seconds: Option<f64>,
    /// When its process had ended.
    pub end_seconds: Option<f64>,
    /// How it ended.
    pub exit: Exit,
    /// What its process used as a whole.
    pub usage: Usage,
    /// Its steps, as far as they ended.
    pub steps: Vec<StepRecord>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// Well.
    Success,
    /// With an exit code; what it said last.
    Failure {
        /// The code.
        code: i32,
        /// Its last words on standard error.
        message: String,
    },
    /// By a signal.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// It was never started.
    NotStarted,
}

impl Exit {
    /// How a process ended, with what it said last on standard error.
    #[must_use]
    pub fn of(ended: &Ended, last_words: &str) -> Exit {
        match (ended.status.code(), ended.status.signal()) {
            (Some(0), _) => Exit::Success,
            (Some(code), _) => Exit::Failure { code, message: last_words.to_owned() },
            (None, signal) => Exit::Signal { signal: signal.unwrap_or(0) },
        }
    }
}

/// What the machine did in one interval, which ends at `at_seconds`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the interval.
    pub at_seconds: f64,
    /// Its length.
    pub seconds: f64,
    /// Jobs that are due and wait for their start.
    pub jobs_waiting: u32,
    /// Jobs that run.
    pub jobs_running: u32,
    /// Jobs that have ended.
    pub jobs_done: u32,
    /// Bytes that the jobs read by system calls.
    pub file_read_bytes: u64,
    /// Bytes that the jobs wrote by system calls.
    pub file_written_bytes: u64,
    /// Read calls of the jobs.
    pub file_read_calls: u64,
    /// Write calls of the jobs.
    pub file_write_calls: u64,
    /// Bytes read from devices.
    pub device_read_bytes: u64,
    /// Bytes written to devices.
    pub device_written_bytes: u64,
    /// Read requests that devices completed.
    pub device_reads: u64,
    /// Write requests that devices completed.
    pub device_writes: u64,
    /// Seconds that those read requests took, added up.
    pub device_read_seconds: f64,
    /// Seconds that those write requests took, added up.
    pub device_write_seconds: f64,
    /// Part of the interval in which the busiest device had a request, 0 to 1.
    pub device_busy: f64,
    /// Part of all processor time in user mode, 0 to 1.
    pub cpu_user: f64,
    /// Part in the kernel, interrupts included.
    pub cpu_system: f64,
    /// Part idle while a request to a device was under way.
    pub cpu_io_wait: f64,
    /// Part idle.
    pub cpu_idle: f64,
    /// Part taken by other virtual machines.
    pub cpu_steal: f64,
    /// Part of the time in which some task waited for I/O (PSI), where known.
    pub pressure_io_some: Option<f64>,
    /// Part of the time in which all tasks that were not idle waited for I/O (PSI).
    pub pressure_io_full: Option<f64>,
    /// Dirty page cache at the end of the interval, in bytes.
    pub dirty_bytes: u64,
    /// Page cache under way to devices at the end.
    pub writeback_bytes: u64,
    /// Page cache at the end.
    pub cached_bytes: u64,
    /// Memory that could be had at the end.
    pub available_bytes: u64,
    /// Bytes that came in over the network, by all programs; records of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_received_bytes: Option<u64>,
    /// Bytes that went out over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_sent_bytes: Option<u64>,
}

impl Record {
    /// Version of the format.
    pub const SCHEMA: u32 = 1;
    /// Name of the file in the result's directory.
    pub const FILE: &str = "result.json";

    /// Reads the record in `directory`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::Record`] if it is none, or of another version.
    pub fn read(directory: &Path) -> Result<Record> {
        let path = directory.join(Record::FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        Record::parse(&path, &text)
    }

    /// Reads the record in `text`, which comes from the file `path`.
    ///
    /// # Errors
    /// [`Error::Record`] if it is none, or of another version.
    pub fn parse(path: &Path, text: &str) -> Result<Record> {
        let refuse = |reason| Error::Record { path: path.to_owned(), reason };
        let version: Version = serde_json::from_str(text)
            .map_err(|error| refuse(format!("not the record of a study: {error}")))?;
        if version.schema != Record::SCHEMA {
            return Err(refuse(format!(
                "schema {}, but this version reads schema {}",
                version.schema,
                Record::SCHEMA
            )));
        }
        serde_json::from_str(text).map_err(|error| refuse(error.to_string()))
    }

    /// The machines on which the jobs ran, each once, however many hosts it is.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        let first = |place: usize, host: &Host| {
            self.hosts[..place].iter().all(|before| before.boot != host.boot)
        };
        let hosts = self.hosts.iter().enumerate();
        let hosts = hosts.filter(move |(place, host)| first(*place, host));
        let own = self.hosts.is_empty().then_some(&self.machine);
        own.into_iter().chain(hosts.map(|(_, host)| &host.machine))
    }

    /// What logical nodes are, for people: `groups of jobs ...`.
    #[must_use]
    pub fn nodes_are(&self) -> String {
        match (self.hosts.len(), self.machines().count()) {
            (0, _) => "groups of jobs on one machine and share its cores".to_owned(),
            (_, 1) => "groups of jobs on the hosts of one machine and share its cores".to_owned(),
            (hosts, _) => format!(
                "groups of jobs on {hosts} hosts: the first node on the first host by name, the next on the next, and \
                 so on again"
            ),
        }
    }

    /// Physical cores of the machines on which the jobs ran.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.machines().map(|machine| machine.cores).sum()
    }

    /// Logical processors of the machines on which the jobs ran.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.machines().map(|machine| machine.cpus).sum()
    }

    /// Memory of the machines on which the jobs ran.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.machines().map(|machine| machine.memory_bytes).sum()
    }

    /// Writes the record into `directory`, which must exist, under a name that never stands for a half
    /// of it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(Record::FILE);
        let draft = directory.join(".result.json.draft");
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::Record { path: path.clone(), reason: error.to_string() })?;
        std::fs::write(&draft, text).map_err(Error::io("write", &draft))?;
        std::fs::rename(&draft, &path).map_err(Error::io("write", &path))
    }
}

/// The part of a record that every version has.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

impl Run {
    /// All jobs of all stages.
    pub fn jobs(&self) -> impl Iterator<Item = &JobRecord> {
        self.stages.iter().flat_map(|stage| &stage.jobs)
    }
}

impl Cache {
    /// Whether everything that the run touches fits in memory, so that it may say little about the
    /// storage.
    #[must_use]
    pub fn fits_in_memory(&self) -> bool {
        self.working_set_bytes < self.memory_bytes
    }

    /// A line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let start = if self.dropped { "page cache dropped" } else { "page cache not dropped" };
        let gigabytes = |bytes: u64| forebay_analytics::Cell::from(bytes as f64 / 1e9).show(3);
        format!(
            "{start}; working set {} GB of {} GB memory",
            gigabytes(self.working_set_bytes),
            gigabytes(self.memory_bytes)
        )
    }
}

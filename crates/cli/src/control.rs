//! The control socket of a daemon: one line of JSON asks, one line answers.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::{Ino, NodeId};
use forebay_fs::caching::CacheSettings;
use forebay_fs::census::Census;
use forebay_fs::policy::{Place, Policy, PolicyReport};
use forebay_fs::quota::{QuotaChange, QuotaStatus, Subject};
use forebay_fs::record::{Durability, Placement};
use forebay_fs::snapshot::{CloneBytes, CloneStatus, SnapshotDiff, SnapshotStatus, SnapshotsSpace};
use forebay_fs::tasks::TaskStatus;
use forebay_fs::{
    DiskStatus, Evicted, FilePlace, FilesetStatus, LostDisk, Migrated, Namespace, NewFileset,
};
use forebay_node::members::visit::Wait;
use serde::{Deserialize, Serialize};

use crate::attribution::Activity;
use crate::home::Home;
use crate::schedules::{Interval, Schedule};

/// What can be asked of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// How it is doing.
    Status,
    /// Counters since the mount.
    Counters,
    /// Who caused what since the mount.
    Activity,
    /// Make a fileset.
    CreateFileset {
        /// What it is to be.
        new: NewFileset,
        /// In how many failure groups each of its files is to lie; 0, from older commands: 1.
        #[serde(default)]
        copies: u8,
        /// What it is to be a cache of, if it is to be one.
        #[serde(default)]
        cache: Option<CacheSettings>,
    },
    /// Give back the bytes of a cache that can be fetched again.
    EvictCache {
        /// Name of the fileset.
        name: String,
        /// Bytes that may stay.
        keep_bytes: u64,
    },
    /// Change a fileset.
    SetFileset {
        /// Name.
        name: String,
        /// Durability class, if it is to change.
        durability: Option<Durability>,
        /// Data path, if it is to change.
        placement: Option<Placement>,
    },
    /// Remove a fileset.
    RemoveFileset {
        /// Name.
        name: String,
        /// Its store, or the disk of a native one, is gone.
        #[serde(default)]
        lost: bool,
    },
    /// Change the pool of a fileset.
    SetPool {
        /// Name of the fileset.
        name: String,
        /// The pool.
        pool: String,
    },
    /// Change in how many failure groups each file of a fileset is to lie.
    SetCopies {
        /// Name of the fileset.
        name: String,
        /// The number.
        copies: u8,
    },
    /// Begin to compare files with their checksums.
    Scrub {
        /// Name of the fileset; all of them if none is named.
        fileset: Option<String>,
    },
    /// Begin to read what lies in archives, and compare it with its checksums.
    ScrubArchives {
        /// Name of the fileset; all of them if none is named.
        fileset: Option<String>,
    },
    /// Make a disk of a directory and add it.
    AddDisk {
        /// The directory.
        directory: PathBuf,
        /// Its pool.
        pool: String,
        /// Its failure group.
        group: String,
        /// All nodes of the cluster mount its storage.
        #[serde(default)]
        shared: bool,
    },
    /// Make a disk over others and add it.
    StripeDisks {
        /// The disks that it is to lie over.
        disks: Vec<String>,
        /// Or the pool that they make up.
        over: Option<String>,
        /// Consecutive bytes of a file that lie on one disk.
        unit_bytes: u64,
        /// Its pool.
        pool: String,
        /// Its failure group.
        group: String,
    },
    /// Change pool or failure group of a disk.
    LabelDisk {
        /// The disk.
        disk: String,
        /// Its pool, if that is to change.
        pool: Option<String>,
        /// Its failure group, if that is to change.
        group: Option<String>,
    },
    /// Begin to empty a disk.
    DrainDisk {
        /// The disk.
        disk: String,
        /// Pool that its files go to.
        to: Option<String>,
    },
    /// Have a disk that was emptied take new files.
    UseDisk {
        /// The disk.
        disk: String,
    },
    /// Take away a disk that is empty.
    RemoveDisk {
        /// The disk.
        disk: String,
    },
    /// Give up a disk that is lost.
    GiveUpDisk {
        /// The disk.
        disk: String,
    },
    /// Begin to even out the fill of a pool.
    Rebalance {
        /// The pool.
        pool: String,
    },
    /// The disks, in a cluster those of all nodes.
    Disks,
    /// Tasks of the background.
    Tasks,
    /// Change a task of the background.
    OrderTask {
        /// Its number.
        task: u64,
        /// What it is to do.
        order: TaskOrder,
    },
    /// What a policy would move and list.
    LookAtPolicy {
        /// Rules that place new files.
        #[serde(default)]
        place: Vec<Place>,
        /// The rules.
        policy: Policy,
    },
    /// Place new files by the policy that is in force now.
    PlaceFiles,
    /// Begin to move files as a policy says.
    RunPolicy {
        /// The rules.
        policy: Policy,
    },
    /// Change a quota, or set a first one.
    SetQuota {
        /// Name of the fileset.
        fileset: String,
        /// Whom it limits.
        subject: Subject,
        /// What becomes of its limits.
        change: QuotaChange,
    },
    /// Remove a quota.
    RemoveQuota {
        /// Name of the fileset.
        fileset: String,
        /// Whom it limits.
        subject: Subject,
    },
    /// The quotas of a fileset, or of all.
    Quotas {
        /// Name of the fileset.
        fileset: Option<String>,
    },
    /// Make a snapshot.
    CreateSnapshot {
        /// Name of the fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
    },
    /// Make a fileset that begins as a snapshot.
    CloneSnapshot {
        /// Name of the fileset that has the snapshot.
        fileset: String,
        /// Name of the snapshot.
        name: String,
        /// Name of the new fileset.
        clone: String,
        /// What becomes of bytes whose blocks cannot be shared.
        bytes: CloneBytes,
    },
    /// Take a whole fileset back to a snapshot.
    RestoreFileset {
        /// Name of the fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
        /// Name that the fileset as it was gets.
        aside: String,
        /// What becomes of bytes whose blocks cannot be shared.
        bytes: CloneBytes,
    },
    /// Delete a snapshot.
    DeleteSnapshot {
        /// Name of the fileset.
        fileset: String,
        /// Name of the snapshot.
        name: String,
    },
    /// What changed since a snapshot.
    DiffSnapshots {
        /// Name of the fileset.
        fileset: String,
        /// Name of the snapshot.
        from: String,
        /// Name of a later snapshot; none for the fileset as it is.
        to: Option<String>,
    },
    /// The snapshots of a fileset, or of all.
    Snapshots {
        /// Name of the fileset.
        fileset: Option<String>,
    },
    /// What deleting snapshots would give back, of a fileset or of all.
    SnapshotSpace {
        /// Name of the fileset.
        fileset: Option<String>,
    },
    /// Give a fileset these schedules of snapshots, and no others.
    SetSchedules {
        /// Name of the fileset.
        fileset: String,
        /// The intervals.
        intervals: Vec<Interval>,
    },
    /// Take the schedules of a fileset away.
    RemoveSchedules {
        /// Name of the fileset.
        fileset: String,
    },
    /// The schedules of a fileset, or of all.
    Schedules {
        /// Name of the fileset.
        fileset: Option<String>,
    },
    /// Move files to a pool.
    MigrateFiles {
        /// The pool.
        pool: String,
        /// The files.
        files: Vec<Ino>,
    },
    /// Give files an object in a pool of archives too.
    PremigrateFiles {
        /// The pool.
        pool: String,
        /// The files.
        files: Vec<Ino>,
    },
    /// Where files lie.
    Places {
        /// The files.
        files: Vec<Ino>,
    },
    /// What the files of each fileset hold, by user and age.
    Census,
    /// Bind the native filesets that are not bound.
    Bind,
    /// Requests in flight.
    Waits {
        /// Only those that arrived at least so many milliseconds ago.
        min_ms: u64,
    },
    /// Commit everything and sync the disks.
    Sync,
    /// Commit everything and copy the stores.
    BackUp {
        /// Folder to make.
        folder: PathBuf,
        /// The fileset whose store alone is wanted.
        fileset: Option<String>,
    },
}

/// What somebody orders of a task.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskOrder {
    /// To stop until it is resumed.
    Pause,
    /// To go on.
    Resume,
    /// To end.
    Cancel,
    /// To copy no more than so many bytes per second.
    Speed {
        /// 0: no bound.
        bytes_per_second: u64,
    },
}

impl TaskOrder {
    /// Gives the order.
    ///
    /// # Errors
    /// If there is no such task, or it has ended.
    pub fn give(self, fs: &Namespace, task: u64) -> forebay_fs::Result<()> {
        match self {
            TaskOrder::Pause => fs.pause_task(task),
            TaskOrder::Resume => fs.resume_task(task),
            TaskOrder::Cancel => fs.cancel_task(task),
            TaskOrder::Speed { bytes_per_second } => fs.set_task_speed(task, bytes_per_second),
        }
    }
}

/// What a daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Refused or failed.
    Refused {
        /// Why.
        reason: String,
    },
    /// To [`Ask::EvictCache`].
    Evicted(Evicted),
    /// To [`Ask::Status`].
    Status(Box<Status>),
    /// To [`Ask::Counters`].
    Counters(Counters),
    /// To [`Ask::Activity`].
    Activity(Activity),
    /// To [`Ask::Waits`], the oldest first.
    Waits {
        /// The requests.
        waits: Vec<Wait>,
    },
    /// How far something is that takes long; another answer follows.
    Progress {
        /// What is done.
        done: u64,
        /// All there is to do.
        total: u64,
    },
    /// To [`Ask::DrainDisk`], [`Ask::Rebalance`] and [`Ask::RunPolicy`]: the task that has begun.
    Task(Box<TaskStatus>),
    /// To [`Ask::Disks`].
    Disks {
        /// The disks.
        disks: Vec<DiskStatus>,
    },
    /// To [`Ask::Tasks`].
    Tasks {
        /// The tasks.
        tasks: Vec<TaskStatus>,
    },
    /// To [`Ask::LookAtPolicy`].
    Policy(PolicyReport),
    /// To [`Ask::Quotas`].
    Quotas {
        /// The quotas.
        quotas: Vec<QuotaStatus>,
    },
    /// To [`Ask::Snapshots`], and to [`Ask::CreateSnapshot`] with the new one.
    Snapshots {
        /// The snapshots.
        snapshots: Vec<SnapshotStatus>,
    },
    /// To [`Ask::DiffSnapshots`].
    SnapshotDiff(SnapshotDiff),
    /// To [`Ask::CloneSnapshot`] and [`Ask::RestoreFileset`].
    SnapshotCloned(CloneStatus),
    /// To [`Ask::DeleteSnapshot`].
    SnapshotDeleted {
        /// Objects that went with it.
        objects: u64,
    },
    /// To [`Ask::SnapshotSpace`].
    SnapshotSpace {
        /// Filesets that have snapshots.
        filesets: Vec<SnapshotsSpace>,
    },
    /// To [`Ask::Schedules`] and [`Ask::SetSchedules`].
    Schedules {
        /// The schedules.
        schedules: Vec<Schedule>,
    },
    /// To [`Ask::MigrateFiles`] and [`Ask::PremigrateFiles`], one for each file.
    Migrated {
        /// What became of them.
        outcomes: Vec<Migrated>,
    },
    /// To [`Ask::Places`], one for each file that is known here.
    Places {
        /// Where they lie.
        places: Vec<Option<FilePlace>>,
    },
    /// To [`Ask::Census`].
    Census(Census),
    /// To [`Ask::GiveUpDisk`].
    LostDisk(LostDisk),
    /// To [`Ask::BackUp`].
    BackedUp {
        /// Records of the copy.
        records: u64,
    },
}

/// How a file system is doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Home folder.
    pub root: PathBuf,
    /// Identity.
    pub uuid: String,
    /// What only a mounted one has.
    pub mount: Option<MountStatus>,
    /// Whether the last owner left in an orderly way (of an unmounted one).
    pub clean: bool,
    /// Disks.
    pub disks: Vec<DiskStatus>,
    /// Filesets.
    pub filesets: Vec<FilesetStatus>,
    /// Bytes that the stores occupy.
    pub store_bytes: u64,
}

/// How a mounted file system is doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the last commit that holds everything done before it.
    pub commit_age_seconds: f64,
    /// Records that are not committed.
    pub uncommitted: usize,
    /// Why the last commit failed, if it did.
    pub commit_error: Option<String>,
    /// Whether the kernel reads and writes objects itself.
    pub passthrough: bool,
    /// Why not, if it does not.
    pub passthrough_closed: Option<String>,
    /// How requests arrive: `uring` or `dev`.
    pub transport: String,
    /// Why over /dev/fuse, if they do.
    pub transport_why: Option<String>,
    /// The ring, if requests arrive over one.
    pub ring: Option<RingStatus>,
    /// FUSE protocol version of the kernel.
    pub protocol: String,
    /// Fresh objects in stock.
    pub spare_objects: usize,
    /// Objects that are open.
    pub open_objects: usize,
    /// Cached inodes.
    pub cached_inodes: usize,
    /// Memory reckoned for the inode cache.
    pub cache_bytes: usize,
    /// Whether space is kept aside for commits on a full disk.
    pub reserve_held: bool,
    /// Its native filesets.
    #[serde(default)]
    pub native: Vec<NativeStatus>,
    /// Schedules of snapshots.
    #[serde(default)]
    pub schedules: Vec<Schedule>,
    /// Why the schedules cannot be carried out, if they cannot.
    #[serde(default)]
    pub schedules_fault: Option<String>,
    /// Why rules that place new files are ignored, if some are.
    #[serde(default)]
    pub placing_faults: Vec<String>,
}

/// Where a native fileset is seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NativeStatus {
    /// Name of the fileset.
    pub fileset: String,
    /// Its directory on its disk; none if it cannot be reached, or lies on another node.
    pub tree: Option<PathBuf>,
    /// Whether programs reach that directory itself; otherwise the daemon serves it.
    pub is_bound: bool,
    /// Why it cannot be reached at all, if it cannot.
    pub fault: Option<String>,
}

/// Queues over which requests arrive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingStatus {
    /// Queues: one for each core that there can be.
    pub queues: usize,
    /// Requests of a queue that can be under way.
    pub depth: usize,
    /// Threads: one for each request that can be under way.
    pub threads: usize,
    /// Most memory of all requests, in bytes; the system gives what was used.
    pub memory_max_bytes: usize,
}

/// Counters since the mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Counts per fileset; the entry without a name counts for the whole system.
    pub filesets: Vec<(String, Vec<u64>)>,
    /// Latency histograms per operation.
    pub latencies: Vec<Vec<u64>>,
    /// Requests of the kernel by kind.
    #[serde(default)]
    pub requests: BTreeMap<String, u64>,
    /// Sessions with other nodes of the cluster.
    #[serde(default)]
    pub sessions: Vec<SessionCounters>,
}

/// A session with another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionCounters {
    /// Number of the other node.
    pub node: NodeId,
    /// Name of the other node.
    pub name: String,
    /// Whether the other node uses what this one has; otherwise it is the other way round.
    pub is_client: bool,
    /// Calls that this node made so far.
    pub calls: u64,
    /// Calls of the other node that were carried out so far.
    pub served: u64,
    /// Calls of this node without an answer.
    pub waiting_calls: usize,
    /// Calls of the other node that are being carried out, or wait for it.
    pub served_now: usize,
    /// The latest round trip, in microseconds.
    pub round_trip_us: u64,
    /// Inodes of this node's filesets that the other node's kernel knows; 0 unless that is the client.
    pub inodes: usize,
    /// Files of this node's filesets that the other node has open; as above.
    pub open_files: usize,
    /// Requests about files of the other node that were answered from what this one caches; 0 unless that is the server.
    #[serde(default)]
    pub cached: u64,
    /// Items of this node's filesets that the other node may cache; 0 unless that is the client.
    #[serde(default)]
    pub grants: u64,
    /// Directories among them that are delegated to the other node; as above.
    #[serde(default)]
    pub directories: u64,
    /// Items that were recalled from the other node; as above.
    #[serde(default)]
    pub recalls: u64,
    /// How often the other node did not answer a recall in time, and all that it cached of a fileset was void; as above.
    #[serde(default)]
    pub evictions: u64,
}

/// A path to the socket that is short enough for a socket address, whatever the folder is called.
struct ShortPath {
    _folder: std::fs::File,
    path: PathBuf,
}

fn short_path(root: &Path) -> Result<ShortPath> {
    let folder = std::fs::File::open(root).with_context(|| root.display().to_string())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), Home::CONTROL));
    Ok(ShortPath { _folder: folder, path })
}

/// How long an answer may take that needs no disk to be synced.
const ANSWER_LIMIT: Duration = Duration::from_mins(2);

/// Asks the daemon of `root`.
///
/// # Errors
/// If there is no daemon, or it refused: with its reason.
pub fn ask(root: &Path, ask: &Ask) -> Result<Answer> {
    ask_within(root, ask, ANSWER_LIMIT)
}

/// As [`ask`], with an own limit of time for the answer.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(root: &Path, ask: &Ask, limit: Duration) -> Result<Answer> {
    ask_with_progress(root, ask, limit, &mut |_, _| {})
}

/// As [`ask_within`], where the limit is that of each line of the answer: `progress` is called with what is done
/// and all there is to do.
///
/// # Errors
/// As [`ask`].
pub fn ask_with_progress(
    root: &Path,
    ask: &Ask,
    limit: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Answer> {
    let short = short_path(root)?;
    let mut stream = UnixStream::connect(&short.path).with_context(|| {
        format!(
            "the daemon of {} does not answer; see {}/forebay.log",
            root.display(),
            root.display()
        )
    })?;
    stream.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
    stream
        .write_all(format!("{}\n", serde_json::to_string(ask)?).as_bytes())
        .with_context(|| format!("the daemon of {} has just ended", root.display()))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).context("the daemon did not answer in time")?;
        match serde_json::from_str(&line)
            .context("unexpected answer from the daemon; is it a different version?")?
        {
            Answer::Refused { reason } => bail!("{reason}"),
            Answer::Progress { done, total } => progress(done, total),
            answer => return Ok(answer),
        }
    }
}

/// Listens on the control socket of `root`, which only its owner can use.
///
/// # Errors
/// If the socket cannot be made.
pub fn listen(root: &Path) -> Result<UnixListener> {
    let short = short_path(root)?;
    let _ = std::fs::remove_file(&short.path);
    let listener = UnixListener::bind(&short.path).context("cannot create the control socket")?;
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&short.path, only_owner)?;
    Ok(listener)
}

/// Longest question in bytes.
const ASK_MAX: u64 = 64 << 10;

/// Reads what a connection asks; `None`, after it was told so, if that is not understood.
///
/// # Errors
/// If the other side went away.
pub fn read_ask(stream: &UnixStream) -> Result<Option<Ask>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, ASK_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(ask) => Ok(Some(ask)),
        Err(error) => {
            reply(stream, &Answer::Refused { reason: format!("not understood: {error}") })?;
            Ok(None)
        }
    }
}

/// Answers a connection.
///
/// # Errors
/// If the other side went away.
pub fn reply(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    stream.write_all(format!("{}\n", serde_json::to_string(answer)?).as_bytes())?;
    Ok(())
}

//! The control socket of a daemon: one line of JSON asks, one line answers.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_fs::record::{Durability, Placement};
use forebay_fs::{DiskStatus, FilesetStatus, NewFileset};
use serde::{Deserialize, Serialize};

use crate::home::Home;

/// What can be asked of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// How it is doing.
    Status,
    /// Counters since the mount.
    Counters,
    /// Make a fileset.
    CreateFileset {
        /// What it is to be.
        new: NewFileset,
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
    },
    /// Bind the native filesets that are not bound.
    Bind,
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
    /// To [`Ask::Status`].
    Status(Box<Status>),
    /// To [`Ask::Counters`].
    Counters(Counters),
    /// How far something is that takes long; another answer follows.
    Progress {
        /// What is done.
        done: u64,
        /// All there is to do.
        total: u64,
    },
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
}

/// Where a native fileset is seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NativeStatus {
    /// Name of the fileset.
    pub fileset: String,
    /// Its directory on its disk.
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
    /// What went between this node and each other one.
    #[serde(default)]
    pub nodes: BTreeMap<u32, NodeCounters>,
}

/// What went between this node and another one, for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounters {
    /// Calls to it for files that it owns.
    pub calls: u64,
    /// Requests about such files that were answered from what this node caches of them.
    pub cached: u64,
    /// Items that it may cache now of the filesets that this node owns.
    pub grants: u64,
    /// Items that were recalled from it.
    pub recalls: u64,
    /// How often all that it cached of a fileset was void because it did not answer a recall in time.
    pub evictions: u64,
}

impl NodeCounters {
    /// What there is to count of all other nodes.
    pub fn of(fs: &forebay_fs::Namespace) -> BTreeMap<u32, NodeCounters> {
        let mut nodes: BTreeMap<u32, NodeCounters> = BTreeMap::new();
        for (node, calls, cached) in fs.remote_traffic() {
            let one = nodes.entry(node.0).or_default();
            (one.calls, one.cached) = (calls, cached);
        }
        for (client, figures) in fs.grant_figures() {
            let one = nodes.entry(client.node.0).or_default();
            one.grants += figures.grants;
            one.recalls += figures.recalls;
            one.evictions += figures.evictions;
        }
        nodes
    }

    /// What came since, and the grants of now.
    pub fn since(self, before: NodeCounters) -> NodeCounters {
        NodeCounters {
            calls: self.calls.saturating_sub(before.calls),
            cached: self.cached.saturating_sub(before.cached),
            grants: self.grants,
            recalls: self.recalls.saturating_sub(before.recalls),
            evictions: self.evictions.saturating_sub(before.evictions),
        }
    }
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
    stream.write_all(format!("{}\n", serde_json::to_string(ask)?).as_bytes())?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).context("the daemon did not answer in time")?;
        match serde_json::from_str(&line)
            .context("unexpected answer of the daemon (another version?)")?
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

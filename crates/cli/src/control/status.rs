//! What a daemon says of itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_base::NodeId;
use forebay_fs::{DiskStatus, FilesetStatus};
use serde::{Deserialize, Serialize};

use crate::schedules::Schedule;

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

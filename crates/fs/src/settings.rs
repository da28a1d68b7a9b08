//! Settings of the file system itself: its part of `forebay.toml`.

use std::time::Duration;

use forebay_base::ByteSize;
use forebay_base::settings::{Section, Setting, value};

/// The settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Uncommitted changes (store keys) that trigger a commit before its time.
    pub uncommitted_max: usize,
    /// Memory for cached inodes and directory entries.
    pub inode_cache_max: ByteSize,
    /// Directories with at most this many entries are cached whole when they are listed.
    pub directory_load_max: u64,
    /// Objects kept open: files in use and recently used.
    pub open_objects_max: usize,
    /// Fresh objects made ahead of need.
    pub spare_objects: usize,
    /// Whether the kernel may read and write objects itself.
    pub direct: bool,
    /// Cache of the stores of all open filesets together.
    pub store_cache: ByteSize,
    /// Space kept aside in the home folder so that deletes can be committed on a full disk.
    pub store_reserve: ByteSize,
    /// Space kept aside on each disk for the names of objects.
    pub disk_reserve: ByteSize,
    /// Descriptors that stand for inodes of a native fileset which the daemon serves, while nobody has them open.
    pub native_handles_max: usize,
    /// What one other node may hold: inodes that its kernel knows, and open files.
    pub client_holds_max: usize,
    /// Bytes per second that a task of the background may copy; zero for no bound.
    pub task_speed: ByteSize,
    /// Size of files from which streams do not stay in memory; 0: all stay.
    pub seq_discard_threshold: ByteSize,
    /// Files that are brought back from an archive at once.
    pub recall_threads: usize,
    /// What a read of an archived file brings back.
    pub recall_mode: RecallMode,
    /// Size of files from which `recall_mode = "partial"` holds.
    pub partial_recall_min: ByteSize,
    /// Memory for what was fetched of files that are read in an archive.
    pub partial_recall_cache: ByteSize,
    /// Memory for what was read of files that lie on other nodes.
    pub remote_read_cache: ByteSize,
    /// Files are opened for writing on the direct path while more than this is left of each quota.
    pub quota_margin: ByteSize,
    /// How long a request waits for the owner of a fileset.
    pub owner_wait: Duration,
    /// After how long a fileset that nobody uses is closed; zero for never.
    pub fileset_idle: Duration,
    /// How long a request waits for a disk whose node does not answer.
    pub away_timeout: Duration,
    /// Who keeps locks on files.
    pub locks: LockChoice,
    /// Locks that one fileset holds at most, in ranges.
    pub locks_max: usize,
    /// Requests that wait for a lock at once.
    pub lock_waits_max: usize,
}

/// What a read of an archived file brings back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecallMode {
    /// The whole file, when it is opened.
    #[default]
    Whole,
    /// Nothing: it is read in the archive, and what is read is fetched.
    Partial,
}

impl std::str::FromStr for RecallMode {
    type Err = String;

    fn from_str(text: &str) -> Result<RecallMode, String> {
        match text {
            "whole" => Ok(RecallMode::Whole),
            "partial" => Ok(RecallMode::Partial),
            _ => Err("expected whole or partial".to_owned()),
        }
    }
}

/// Who keeps the locks of programs on files (flock, fcntl).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockChoice {
    /// The kernel: programs of one mount exclude each other.
    #[default]
    Kernel,
    /// The owner of the fileset: programs of all nodes do.
    Shared,
}

impl std::str::FromStr for LockChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<LockChoice, String> {
        match text {
            "kernel" => Ok(LockChoice::Kernel),
            "shared" => Ok(LockChoice::Shared),
            _ => Err("expected kernel or shared".to_owned()),
        }
    }
}

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Section for Settings {
    const TABLE: &'static [Setting<Settings>] = &[
        Setting {
            name: "commit_interval",
            default: "\"5 s\"",
            allowed: "a time from \"10 ms\" to \"60 s\"",
            meaning: "Longest time between a change and its commit.",
            set: |s, v| value::duration(v, MS(10), MS(60_000)).map(|x| s.commit_interval = x),
        },
        Setting {
            name: "uncommitted_max",
            default: "200000",
            allowed: "a number from 1000 to 10000000",
            meaning: "Number of uncommitted changes (records) that triggers an early commit.",
            set: |s, v| value::count(v, 1000, 10_000_000).map(|x| s.uncommitted_max = x),
        },
        Setting {
            name: "inode_cache_max",
            default: "\"1 GiB\"",
            allowed: "a size from \"1 MiB\" to \"1 TiB\"",
            meaning: "Memory for cached inodes and directory entries. Beside it the daemon takes up to 1 KiB for \
                      each record of uncommitted_max, store_cache, up to 40 bytes for each inode that the kernel \
                      knows, about 100 KiB for each open fileset, buffers for requests (see forebay status), about \
                      10 MiB of its own, and memory for files in use.",
            set: |s, v| {
                value::size(v, ByteSize::mib(1), ByteSize::gib(1024)).map(|x| s.inode_cache_max = x)
            },
        },
        Setting {
            name: "directory_load_max",
            default: "65536",
            allowed: "a number from 0 to 10000000",
            meaning: "Directories with at most this many entries are cached as a whole when they \
                      are listed, or when many names were not found in them.",
            set: |s, v| value::number(v, 0, 10_000_000).map(|x| s.directory_load_max = x),
        },
        Setting {
            name: "open_objects_max",
            default: "8192",
            allowed: "a number from 64 to 1000000, below the process's file descriptor limit",
            meaning: "Objects kept open: files in use, and recently used ones.",
            set: |s, v| value::count(v, 64, 1_000_000).map(|x| s.open_objects_max = x),
        },
        Setting {
            name: "spare_objects",
            default: "128",
            allowed: "a number from 0 to 4096",
            meaning: "Fresh objects that are prepared in advance, per file system.",
            set: |s, v| value::count(v, 0, 4096).map(|x| s.spare_objects = x),
        },
        Setting {
            name: "direct",
            default: "true",
            allowed: "true or false",
            meaning: "Whether the kernel may read and write objects itself (FUSE passthrough, needs root).",
            set: |s, v| v.as_bool().map(|x| s.direct = x),
        },
        Setting {
            name: "store_cache",
            default: "\"64 MiB\"",
            allowed: "a size from \"1 MiB\" to \"64 GiB\"",
            meaning: "Total memory in which the stores of all open filesets cache their pages. The root fileset gets an \
                      eighth, and each other fileset half of the remainder when it is opened, at least 64 KiB.",
            set: |s, v| {
                value::size(v, ByteSize::mib(1), ByteSize::gib(64)).map(|x| s.store_cache = x)
            },
        },
        Setting {
            name: "store_reserve",
            default: "\"64 MiB\"",
            allowed: "a size from \"0 B\" to \"16 GiB\"",
            meaning: "Space reserved in the home folder, at most an eighth of its disk, so that deletes \
                      can be committed when the disk is full.",
            set: |s, v| value::size(v, ByteSize(0), ByteSize::gib(16)).map(|x| s.store_reserve = x),
        },
        Setting {
            name: "disk_reserve",
            default: "\"16 MiB\"",
            allowed: "a size from \"0 B\" to \"16 GiB\"",
            meaning: "Space reserved on each disk, at most an eighth of it, so that new files can be committed \
                      when it is full. With less than four times as much free, no objects are prepared in advance, \
                      and new files go to other disks of the pool that have room.",
            set: |s, v| value::size(v, ByteSize(0), ByteSize::gib(16)).map(|x| s.disk_reserve = x),
        },
        Setting {
            name: "native_handles_max",
            default: "4096",
            allowed: "a number from 16 to 1000000, below the process's file descriptor limit",
            meaning: "Descriptors that the daemon keeps for files that nobody has open, for each native fileset that \
                      it serves. Native filesets that are bound in place need none.",
            set: |s, v| value::count(v, 16, 1_000_000).map(|x| s.native_handles_max = x),
        },
        Setting {
            name: "client_holds_max",
            default: "4000000",
            allowed: "a number from 1000 to 100000000",
            meaning: "Maximum number of inodes that another node's kernel may know, plus its open files, in filesets that \
                      this node owns. Beyond it, requests from that node are refused. Each takes up to 50 bytes.",
            set: |s, v| value::count(v, 1000, 100_000_000).map(|x| s.client_holds_max = x),
        },
        Setting {
            name: "task_speed",
            default: "\"100 MiB\"",
            allowed: "a size from \"0 B\" to \"1 TiB\"",
            meaning: "Bytes per second that a task of the background (drain, rebalance, policy, scrub, copies) may copy, unless another speed is \
                      set for that task. \"0 B\" sets no bound.",
            set: |s, v| value::size(v, ByteSize(0), ByteSize::gib(1024)).map(|x| s.task_speed = x),
        },
        Setting {
            name: "seq_discard_threshold",
            default: "\"0 B\"",
            allowed: "a size from \"0 B\" to \"1 PiB\"",
            meaning: "Size of a file on the served path from which what a program has read from one end to the other does not stay \
                      in memory, so that such files do not push out what is read again. \"0 B\" has all files stay.",
            set: |s, v| {
                let size = value::size(v, ByteSize(0), ByteSize(1 << 50));
                size.map(|x| s.seq_discard_threshold = x)
            },
        },
        Setting {
            name: "recall_threads",
            default: "4",
            allowed: "a number from 1 to 64",
            meaning: "Files that are recalled from archives at the same time. Each takes about 20 MiB of memory meanwhile. The \
                      same number of ranges is fetched in parallel (recall_mode = \"partial\"), by all archives together; one \
                      archive leaves a place to the others.",
            set: |s, v| value::count(v, 1, 64).map(|x| s.recall_threads = x),
        },
        Setting {
            name: "recall_mode",
            default: "\"whole\"",
            allowed: "\"whole\" or \"partial\"",
            meaning: "How archived files are read: opening one recalls the whole file (\"whole\"), or nothing (\"partial\"): it stays \
                      in the archive, and only the frames of 1 MiB that programs read are fetched. Opening it for \
                      writing recalls the whole file in both modes.",
            set: |s, v| v.as_str()?.parse().ok().map(|x| s.recall_mode = x),
        },
        Setting {
            name: "partial_recall_min",
            default: "\"64 MiB\"",
            allowed: "a size from \"0 B\" to \"1 PiB\"",
            meaning: "Size of an archived file from which recall_mode = \"partial\" applies. Smaller files are recalled as a whole.",
            set: |s, v| {
                let size = value::size(v, ByteSize(0), ByteSize(1 << 50));
                size.map(|x| s.partial_recall_min = x)
            },
        },
        Setting {
            name: "partial_recall_cache",
            default: "\"128 MiB\"",
            allowed: "a size from \"16 MiB\" to \"1 TiB\"",
            meaning: "Memory for frames that were fetched from archives (recall_mode = \"partial\", and archived files in snapshots), and \
                      for the indexes of their objects, 40 bytes for each MiB of a file. Files whose index would take more than half \
                      of it (1.6 TiB with the default) are recalled as a whole.",
            set: |s, v| {
                let size = value::size(v, ByteSize::mib(16), ByteSize::gib(1024));
                size.map(|x| s.partial_recall_cache = x)
            },
        },
        Setting {
            name: "remote_read_cache",
            default: "\"256 MiB\"",
            allowed: "a size from \"16 MiB\" to \"1 TiB\"",
            meaning: "Memory for blocks of files whose bytes lie on other nodes of a cluster: those that programs of this node have \
                      read, and up to 4 MiB ahead of each program that reads on. Files of up to 64 KiB are kept apart from them.",
            set: |s, v| {
                let size = value::size(v, ByteSize::mib(16), ByteSize::gib(1024));
                size.map(|x| s.remote_read_cache = x)
            },
        },
        Setting {
            name: "quota_margin",
            default: "\"1 GiB\"",
            allowed: "a size from \"0 B\" to \"1 TiB\"",
            meaning: "Files whose owner, or fileset, has no more than this left of a quota for space are served when \
                      they are opened for writing: the daemon sees each write, so the quota is exact.",
            set: |s, v| {
                value::size(v, ByteSize(0), ByteSize::gib(1024)).map(|x| s.quota_margin = x)
            },
        },
        Setting {
            name: "owner_wait",
            default: "\"60 s\"",
            allowed: "a time from \"10 ms\" to \"24 h\"",
            meaning: "How long a request waits while no node owns its fileset, before it fails.",
            set: |s, v| value::duration(v, MS(10), MS(86_400_000)).map(|x| s.owner_wait = x),
        },
        Setting {
            name: "fileset_idle",
            default: "\"10 min\"",
            allowed: "a time from \"0 s\" to \"24 h\"",
            meaning: "Time after which an unused fileset is closed, which frees its memory; its next use opens it again. \
                      \"0 s\" keeps all filesets open. In a cluster filesets stay open.",
            set: |s, v| value::duration(v, MS(0), MS(86_400_000)).map(|x| s.fileset_idle = x),
        },
        Setting {
            name: "away_timeout",
            default: "\"30 s\"",
            allowed: "a time from \"0 ms\" to \"10000 h\"",
            meaning: "How long programs wait for the bytes of a file whose disk belongs to another node that does not answer, \
                      or lies in an archive that does not answer, counted from when that was noticed. After that they get EIO, \
                      until it is back. \"10000 h\" means, in effect, forever.",
            set: |s, v| value::duration(v, MS(0), MS(36_000_000_000)).map(|x| s.away_timeout = x),
        },
        Setting {
            name: "locks",
            default: "\"kernel\"",
            allowed: "\"kernel\" or \"shared\"",
            meaning: "Who keeps the locks of programs on files (flock, fcntl): the kernel, for programs on this mount \
                      (\"kernel\"), or the owner of the fileset, for programs on all nodes (\"shared\"). A mount of \
                      a cluster always uses \"shared\".",
            set: |s, v| v.as_str()?.parse().ok().map(|x| s.locks = x),
        },
        Setting {
            name: "locks_max",
            default: "1000000",
            allowed: "a number from 100 to 100000000",
            meaning: "Maximum number of ranges locked at the same time in each fileset (locks = \"shared\"). Beyond it, \
                      locks are refused (ENOLCK). Each takes about 100 bytes.",
            set: |s, v| value::count(v, 100, 100_000_000).map(|x| s.locks_max = x),
        },
        Setting {
            name: "lock_waits_max",
            default: "4096",
            allowed: "a number from 1 to 1000000",
            meaning: "Maximum number of requests that wait for a lock at the same time in each fileset (locks = \
                      \"shared\"). Beyond it, requests that would wait are refused (ENOLCK).",
            set: |s, v| value::count(v, 1, 1_000_000).map(|x| s.lock_waits_max = x),
        },
    ];
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            commit_interval: Duration::ZERO,
            uncommitted_max: 0,
            inode_cache_max: ByteSize(0),
            directory_load_max: 0,
            open_objects_max: 0,
            spare_objects: 0,
            direct: false,
            store_cache: ByteSize(0),
            store_reserve: ByteSize(0),
            disk_reserve: ByteSize(0),
            native_handles_max: 0,
            client_holds_max: 0,
            task_speed: ByteSize(0),
            seq_discard_threshold: ByteSize(0),
            recall_threads: 0,
            recall_mode: RecallMode::Whole,
            partial_recall_min: ByteSize(0),
            partial_recall_cache: ByteSize(0),
            remote_read_cache: ByteSize(0),
            quota_margin: ByteSize(0),
            owner_wait: Duration::ZERO,
            fileset_idle: Duration::ZERO,
            away_timeout: Duration::ZERO,
            locks: LockChoice::Kernel,
            locks_max: 0,
            lock_waits_max: 0,
        }
        .with_defaults()
    }
}

impl Settings {
    /// Whether the owner of a fileset keeps the locks of programs, and not the kernel.
    #[must_use]
    pub fn keeps_locks(&self) -> bool {
        self.locks == LockChoice::Shared
    }
}

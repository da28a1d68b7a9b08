//! The control socket of a daemon: one line of JSON asks, one line answers.

mod socket;
mod status;

use forebay_base::Ino;
use forebay_fs::caching::CacheSettings;
use forebay_fs::census::Census;
use forebay_fs::policy::{Place, Policy, PolicyReport};
use forebay_fs::quota::{QuotaChange, QuotaStatus, Subject};
use forebay_fs::record::{Durability, Placement};
use forebay_fs::snapshot::{CloneBytes, CloneStatus, SnapshotDiff, SnapshotStatus, SnapshotsSpace};
use forebay_fs::tasks::TaskStatus;
use forebay_fs::{
    Conflict, DiskStatus, Evicted, FilePlace, Flushing, LostDisk, Migrated, Namespace, NewFileset,
};
use forebay_node::members::visit::Wait;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::attribution::Activity;
use crate::schedules::{Interval, Schedule};

pub use self::socket::{ask, ask_with_progress, ask_within, listen, read_ask, reply};
pub use self::status::{Counters, MountStatus, NativeStatus, RingStatus, SessionCounters, Status};

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
    /// Write the changes of a single-writer cache back at once, and say how far that is.
    FlushCache {
        /// Name of the fileset.
        name: String,
        /// What the first answer said; none begins.
        begun: Option<u64>,
    },
    /// What others did at the home of a single-writer cache.
    CacheConflicts {
        /// Name of the fileset.
        name: String,
        /// They are forgotten afterwards.
        forget: bool,
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
    /// To [`Ask::FlushCache`].
    Flushing(Flushing),
    /// To [`Ask::CacheConflicts`], the oldest first.
    CacheConflicts {
        /// Them.
        conflicts: Vec<Conflict>,
    },
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

//! What the members of a cluster ask of each other about disks, and about tasks that move files between them.
//!
//! The root's owner has the records of disks and tasks: whatever changes them is sent there. Every owner moves the files of
//! its own filesets, for as long as the root's owner keeps asking for it.

use forebay_base::{DiskId, FilesetId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::namespace::shared_disks::ProbeTurn;
use crate::namespace::{LostDisk, NewDisk};
use crate::policy::{EncodedPolicy, PolicyReport};
use crate::record::{DiskRecord, ObjectRef};
use crate::tasks::{Progress, StoredWork, TaskRecord};

/// To the root's owner, but for those from [`DiskOrder::FilesOn`] to [`DiskOrder::Probe`]: each node answers them for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DiskOrder {
    /// The asking node brings a disk.
    Add(NewDisk),
    Label {
        disk: String,
        pool: Option<String>,
        group: Option<String>,
    },
    Drain {
        disk: String,
        to: Option<String>,
    },
    UseAgain {
        disk: String,
    },
    Remove {
        disk: String,
    },
    GiveUp {
        disk: String,
        most: u64,
    },
    SetPool {
        fileset: String,
        pool: String,
    },
    RunPolicy(EncodedPolicy),
    Tasks,
    ChangeTask(u64, TaskChange),
    /// Which of its files lie on a disk.
    FilesOn {
        disk: DiskId,
        most: u64,
    },
    /// How many objects its files have on each disk.
    Count,
    /// What a policy would do with its files.
    LookAtPolicy(EncodedPolicy),
    /// Whether programs of the node may have an object of a shared disk mapped.
    IsMapped(ObjectRef),
    /// A turn in finding out whether a shared disk is coherent.
    Probe(ProbeTurn),
    /// Even out the fill of a pool.
    Rebalance {
        pool: String,
    },
}

/// What somebody orders of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TaskChange {
    Pause,
    Resume,
    /// Bytes per second; 0: no bound.
    Speed(u64),
    Cancel,
}

/// What is answered to a [`DiskOrder`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum DiskAnswer {
    Done,
    Disk(DiskRecord),
    /// Number of a task that has begun.
    Begun(u64),
    Lost(LostDisk),
    Tasks(Vec<TaskTold>),
    Counts(Vec<(DiskId, u64)>),
    Policy(PolicyReport),
    IsMapped(bool),
}

/// A task as the root's owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskTold {
    pub number: u64,
    pub record: TaskRecord,
    pub files_left: Option<u64>,
    pub note: Option<String>,
}

/// A task of the root's owner, for an owner of other filesets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HelpOrder {
    pub work: StoredWork,
    /// With the work it tells one task from another.
    pub begun: Timestamp,
    /// Bytes per second; 0: no bound.
    pub speed: u64,
    /// Whether files are to be moved. Otherwise nothing but the report is wanted.
    pub goes_on: bool,
}

/// How far an owner is with a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HelpReport {
    /// Its filesets, with the files of each that remain.
    pub left: Vec<(FilesetId, u64)>,
    /// What it has done since its last report.
    pub progress: Progress,
    /// It has objects of the disk open.
    pub has_open: bool,
    /// What it waits for.
    pub note: Option<String>,
}

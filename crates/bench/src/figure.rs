//! What is measured, and on what.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One figure of a table; larger is better, unless [`Figure::smaller_is_better`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Writing a large file.
    SequentialWrite,
    /// Reading it right after.
    ReadHot,
    /// Reading it after caches were dropped.
    ReadCold,
    /// Temporary files of one worker.
    StormOne,
    /// Temporary files of four workers.
    StormFour,
    /// Time within which 99.9 of 100 creates among them are done.
    SlowCreate,
    /// Temporary files of the calibration mix.
    Calibration,
    /// The same with small files.
    CalibrationSmall,
    /// The same of sixteen processes.
    CalibrationSixteen,
    /// Creating empty files.
    Create,
    /// Stat right after.
    StatCached,
    /// Stat after caches were dropped.
    StatCold,
    /// Listing, per entry.
    Readdir,
    /// Unlinking.
    Unlink,
    /// Unpacking a source tree, per file.
    Untar,
    /// The first git status in it, which reads every file.
    GitStatusFirst,
    /// The second, which asks for the attributes of every file.
    GitStatus,
    /// Removing it.
    RemoveTree,
    /// Inserting rows into a database, each synced.
    Sqlite,
    /// Runs of a small calibration workload.
    BenchCalibration,
    /// Runs of a small mixed workload.
    BenchMixed,
    /// Writing a large file and syncing it.
    SyncedWrite,
    /// Longest time without an answer.
    Silence,
    /// Requests to etcd for 1,000 temporary files.
    EtcdRequests,
    /// Bytes between nodes for 1,000 temporary files.
    NodeBytes,
    /// Reading a large file of another node in calls of 8 KiB.
    FarRead8,
    /// The same in calls of 1 MiB.
    FarRead1024,
    /// Time of one temporary file.
    FileTime,
    /// Processor time of the program for one temporary file.
    ProgramTime,
    /// The same of its node's daemon.
    DaemonTime,
    /// The same of the owner's daemon, on another node.
    OwnerTime,
    /// The same of the owner's thread that commits, which is part of its daemon's.
    CommitTime,
    /// The same of etcd.
    EtcdTime,
    /// The same of threads of the kernel.
    KernelTime,
}

/// Figures by kind.
pub type Figures = BTreeMap<Figure, f64>;

impl Figure {
    /// Whether it is a time or a cost and not a rate.
    #[must_use]
    pub fn smaller_is_better(self) -> bool {
        matches!(
            self,
            Figure::SlowCreate
                | Figure::Silence
                | Figure::EtcdRequests
                | Figure::NodeBytes
                | Figure::FileTime
                | Figure::ProgramTime
                | Figure::DaemonTime
                | Figure::OwnerTime
                | Figure::CommitTime
                | Figure::EtcdTime
                | Figure::KernelTime
        )
    }

    /// Name and unit for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Figure::SequentialWrite => "sequential write, MB/s",
            Figure::ReadHot => "hot read, MB/s",
            Figure::ReadCold => "cold read, MB/s",
            Figure::StormOne => "storm, 1 worker, files/s",
            Figure::StormFour => "storm, 4 workers, files/s",
            Figure::SlowCreate => "slow create (p99.9 in the storm of 4), ms",
            Figure::Calibration => "calibration, 4 processes, temp files/s",
            Figure::CalibrationSmall => "calibration of small files, 4 processes, temp files/s",
            Figure::CalibrationSixteen => "calibration, 16 processes, temp files/s",
            Figure::Create => "create, /s",
            Figure::StatCached => "stat cached, /s",
            Figure::StatCold => "stat cold, /s",
            Figure::Readdir => "readdir, entries/s",
            Figure::Unlink => "unlink, /s",
            Figure::Untar => "untar, files/s",
            Figure::GitStatusFirst => "git status, first, files/s",
            Figure::GitStatus => "git status, files/s",
            Figure::RemoveTree => "rm -r, files/s",
            Figure::Sqlite => "SQLite inserts, synced, /s",
            Figure::BenchCalibration => "bench run calibration, runs/h",
            Figure::BenchMixed => "bench run mixed, runs/h",
            Figure::SyncedWrite => "sequential write and fsync, MB/s",
            Figure::Silence => "longest time without an answer, ms",
            Figure::EtcdRequests => "requests to etcd for 1,000 files",
            Figure::NodeBytes => "KB between nodes for 1,000 files",
            Figure::FarRead8 => "read in calls of 8 KiB, MB/s",
            Figure::FarRead1024 => "read in calls of 1 MiB, MB/s",
            Figure::FileTime => "time of a file, ms",
            Figure::ProgramTime => "processor: program, ms",
            Figure::DaemonTime => "processor: daemon of its node, ms",
            Figure::OwnerTime => "processor: daemon of the owner, ms",
            Figure::CommitTime => "processor: the owner's thread that commits, ms",
            Figure::EtcdTime => "processor: etcd, ms",
            Figure::KernelTime => "processor: threads of the kernel, ms",
        }
    }
}

/// Where a figure was measured.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A plain directory.
    Plain,
    /// A native fileset of the mount, bound in place.
    Native,
    /// The mount, the kernel reading and writing objects itself.
    Direct,
    /// The mount, the daemon moving all bytes.
    Served,
    /// As direct, with requests over /dev/fuse.
    DirectDev,
    /// As served, with requests over /dev/fuse.
    ServedDev,
}

impl Subject {
    /// Name for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Subject::Plain => "plain",
            Subject::Native => "native",
            Subject::Direct => "direct",
            Subject::Served => "served",
            Subject::DirectDev => "direct, dev",
            Subject::ServedDev => "served, dev",
        }
    }
}

/// A group of figures that is measured together.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Write and re-read a large file in calls of 256 KiB, hot and cold.
    Sequential,
    /// Temporary files of 64 KiB by one worker.
    StormOne,
    /// Temporary files of 64 KiB by four workers.
    StormFour,
    /// The calibration-like mix by four processes.
    Calibration,
    /// The same with files of around 64 KiB.
    CalibrationSmall,
    /// Create, stat, list and unlink empty files in one directory.
    Metadata,
    /// Unpack a source tree, ask git for its status twice, and remove it.
    Tree,
    /// Insert rows into a database, each synced (in the strict fileset of the mount, and not on a native one).
    Sqlite,
    /// Memory of the daemon per million cached inodes (once, on the direct mount).
    Memory,
}

impl Group {
    /// Name for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Group::Sequential => "sequential",
            Group::StormOne => "storm, 1 worker",
            Group::StormFour => "storm, 4 workers",
            Group::Calibration => "calibration",
            Group::CalibrationSmall => "calibration of small files",
            Group::Metadata => "metadata",
            Group::Tree => "source tree",
            Group::Sqlite => "SQLite",
            Group::Memory => "memory",
        }
    }
}

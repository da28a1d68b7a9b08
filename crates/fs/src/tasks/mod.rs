//! Work that goes on in the background until it is done: what there is of it, and how it is paced.
//!
//! A task is a record in the store of the root fileset, written when it begins, when somebody changes it, and from time to
//! time as it proceeds. It holds no plan: each pass looks anew at what remains to be done, so a task that a crash
//! interrupted goes on with the next mount, and nothing is done twice. One pass of one task runs at a time.

pub mod balance;
mod pace;

use forebay_base::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use pace::{Order, Pace};

use crate::policy::{EncodedPolicy, Migrate, Policy};
use crate::record::{DiskRecord, Record};

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Work {
    /// Moves everything off a disk.
    Drain {
        /// Identity of the disk.
        disk: String,
        /// Pool that its files go to, if not its own.
        to: Option<String>,
    },
    /// Evens out the fill of the disks of a pool.
    Rebalance {
        /// The pool.
        pool: String,
    },
    /// Moves the files that rules choose.
    Policy {
        /// The rules.
        policy: Policy,
    },
    /// Compares files at rest, and their copies, with their checksums.
    Scrub {
        /// Name of the fileset; all of them if none is named.
        fileset: Option<String>,
    },
    /// Reads what lies in archives, and compares it with its checksums.
    ScrubArchives {
        /// Name of the fileset; all of them if none is named.
        fileset: Option<String>,
    },
    /// Writes changes of a single-writer cache to its home, as long as there is the fileset.
    WriteBack {
        /// Name of the fileset.
        fileset: String,
    },
}

impl Work {
    /// Whether what is to be done depends on the fill of disks: in a cluster the nodes do it one after the other.
    pub(crate) fn goes_by_turns(&self) -> bool {
        match self {
            Work::Drain { .. }
            | Work::Scrub { .. }
            | Work::ScrubArchives { .. }
            | Work::WriteBack { .. } => false,
            Work::Rebalance { .. } => true,
            Work::Policy { policy } => policy.migrate.iter().any(|rule| rule.fill.is_some()),
        }
    }
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// It runs, or has its turn soon.
    Running,
    /// Somebody has paused it.
    Paused,
    /// It is done.
    Done,
    /// Somebody has ended it before it was done. What it had done stays.
    Cancelled,
}

impl TaskState {
    /// Whether nothing more will come of it.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, TaskState::Done | TaskState::Cancelled)
    }
}

/// What is done of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files that were moved.
    pub files: u64,
    /// Bytes that were copied for it.
    pub bytes: u64,
    /// Milliseconds that it has worked.
    pub worked_ms: u64,
}

impl Progress {
    /// What somebody else has done for it.
    pub(crate) fn add(&mut self, other: &Progress) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.worked_ms += other.worked_ms;
    }
}

/// A task as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// What it does.
    pub work: StoredWork,
    /// How far it has come.
    pub state: TaskState,
    /// Bytes per second that it may copy; `None`: what the settings say; 0: no bound.
    pub speed: Option<u64>,
    /// When it was begun.
    pub begun: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What was done when it was written.
    pub progress: Progress,
}

/// [`Work`] in the store's own encoding, which has no names of fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredWork {
    /// See [`Work::Drain`].
    Drain(String, Option<String>),
    /// See [`Work::Rebalance`].
    Rebalance(String),
    /// See [`Work::Policy`].
    Policy(EncodedPolicy),
    /// See [`Work::Scrub`].
    Scrub(Option<String>),
    /// See [`Work::Policy`]: with rules that premigrate.
    Premigrate(EncodedPolicy, Vec<Migrate>),
    /// See [`Work::ScrubArchives`].
    ScrubArchives(Option<String>),
    /// See [`Work::WriteBack`].
    WriteBack(String),
}

impl From<&Work> for StoredWork {
    fn from(work: &Work) -> StoredWork {
        match work {
            Work::Drain { disk, to } => StoredWork::Drain(disk.clone(), to.clone()),
            Work::Rebalance { pool } => StoredWork::Rebalance(pool.clone()),
            Work::Policy { policy } if policy.premigrate.is_empty() => {
                StoredWork::Policy(policy.into())
            }
            Work::Policy { policy } => {
                StoredWork::Premigrate(policy.into(), policy.premigrate.clone())
            }
            Work::Scrub { fileset } => StoredWork::Scrub(fileset.clone()),
            Work::ScrubArchives { fileset } => StoredWork::ScrubArchives(fileset.clone()),
            Work::WriteBack { fileset } => StoredWork::WriteBack(fileset.clone()),
        }
    }
}

impl From<StoredWork> for Work {
    fn from(work: StoredWork) -> Work {
        match work {
            StoredWork::Drain(disk, to) => Work::Drain { disk, to },
            StoredWork::Rebalance(pool) => Work::Rebalance { pool },
            StoredWork::Policy(policy) => Work::Policy { policy: policy.into() },
            StoredWork::Premigrate(policy, premigrate) => {
                Work::Policy { policy: Policy { premigrate, ..policy.into() } }
            }
            StoredWork::Scrub(fileset) => Work::Scrub { fileset },
            StoredWork::ScrubArchives(fileset) => Work::ScrubArchives { fileset },
            StoredWork::WriteBack(fileset) => Work::WriteBack { fileset },
        }
    }
}

impl Record for TaskRecord {
    const KIND: &str = "task";
    const VERSION: u8 = 1;
}

/// A task as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its number.
    pub id: u64,
    /// What it does.
    #[serde(flatten)]
    pub work: Work,
    /// The same in words.
    pub title: String,
    /// How far it has come.
    pub state: TaskState,
    /// What is done.
    pub progress: Progress,
    /// Files that remain, as far as is known.
    pub files_left: Option<u64>,
    /// Seconds that it will still take at the speed it had so far, if that can be said.
    pub seconds_left: Option<u64>,
    /// Bytes per second that it may copy; 0: no bound.
    pub speed: u64,
    /// What it waits for, or what went wrong last.
    pub note: Option<String>,
    /// Seconds since the epoch when it was begun.
    pub begun: i64,
    /// The same of its end.
    pub ended: Option<i64>,
}

impl TaskStatus {
    /// A task as its record has it; `speed` counts where that says none.
    pub(crate) fn of(id: u64, record: TaskRecord, disks: &[DiskRecord], speed: u64) -> TaskStatus {
        let work = Work::from(record.work);
        let title = match &work {
            Work::Drain { disk, to } => {
                let found = disks.iter().find(|known| known.uuid == *disk);
                let place = found.map_or_else(|| disk.clone(), |disk| disk.shown_location(disks));
                let to = to.as_ref().map_or_else(String::new, |pool| format!(" to pool {pool}"));
                format!("drain {place}{to}")
            }
            Work::Rebalance { pool } => format!("rebalance pool {pool}"),
            Work::Policy { policy } => {
                let rules: Vec<&str> = policy.rules().collect();
                format!("policy: {}", rules.join(", "))
            }
            Work::Scrub { fileset: Some(name) } => format!("scrub {name}"),
            Work::Scrub { fileset: None } => "scrub".to_owned(),
            Work::ScrubArchives { fileset: Some(name) } => format!("scrub archives of {name}"),
            Work::ScrubArchives { fileset: None } => "scrub archives".to_owned(),
            Work::WriteBack { fileset } => format!("write back {fileset}"),
        };
        TaskStatus {
            id,
            work,
            title,
            state: record.state,
            progress: record.progress,
            files_left: None,
            seconds_left: None,
            speed: record.speed.unwrap_or(speed),
            note: None,
            begun: record.begun.seconds,
            ended: record.ended.map(|ended| ended.seconds),
        }
    }
}

/// Seconds that `left` more files take, after `progress`.
#[must_use]
pub fn seconds_left(progress: Progress, left: u64) -> Option<u64> {
    if left == 0 {
        return Some(0);
    }
    let needed = u128::from(progress.worked_ms) * u128::from(left);
    let seconds = needed / (u128::from(progress.files) * 1000).max(1);
    (progress.files > 0).then(|| u64::try_from(seconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{decode, encode};

    #[test]
    fn time_left_follows_from_what_was_done() {
        let after = |files, worked_ms| Progress { files, bytes: 0, worked_ms };
        assert_eq!(seconds_left(after(10, 5000), 100), Some(50));
        assert_eq!(seconds_left(after(0, 5000), 100), None);
        assert_eq!(seconds_left(after(0, 0), 0), Some(0));
        assert_eq!(seconds_left(after(1, u64::MAX), u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn a_task_reads_back() {
        let work = Work::Drain { disk: "one".to_owned(), to: Some("flash".to_owned()) };
        let record = TaskRecord {
            work: StoredWork::from(&work),
            state: TaskState::Paused,
            speed: Some(5),
            begun: Timestamp::new(7, 0),
            ended: None,
            progress: Progress { files: 1, bytes: 2, worked_ms: 3 },
        };
        let found: TaskRecord = decode("task", &encode(&record)).unwrap();
        assert_eq!(found, record);
        assert_eq!(Work::from(found.work), work);
    }
}

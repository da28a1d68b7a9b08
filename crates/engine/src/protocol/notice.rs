//! What happens to a job that somebody watches.

use forebay_grid::account::AttemptRecord;
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId};
use serde::{Deserialize, Serialize};

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// A task runs.
    Started {
        /// Which.
        task: TaskId,
        /// Which start of it.
        attempt: Attempt,
        /// Where.
        host: HostName,
        /// Since when.
        at: Moment,
        /// Its process, as far as its host has said.
        pid: Option<u32>,
    },
    /// An attempt ended.
    Ended {
        /// How, and what it used.
        record: Box<AttemptRecord>,
    },
    /// All tasks of the job have ended.
    Finished {
        /// Which.
        job: JobId,
        /// Its exit value: 0, or the first that is not 0 of its tasks.
        value: u8,
        /// When the last of them ended.
        at: Moment,
    },
}

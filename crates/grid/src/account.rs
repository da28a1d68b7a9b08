//! What was used: a record for each attempt, and sums for each user, queue and day.

use serde::{Deserialize, Serialize};

use crate::event::Loss;
use crate::spec::{Exit, Usage};
use crate::task::Fate;
use crate::vocabulary::{Attempt, HostName, Moment, QueueName, TaskId, UserName};

/// One attempt that ended, for the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Which task.
    pub task: TaskId,
    /// Name of its job.
    pub name: String,
    /// Whose.
    pub user: UserName,
    /// Its queue.
    pub queue: QueueName,
    /// What it is charged to; may be empty.
    #[serde(default)]
    pub project: String,
    /// Where it ran.
    pub host: HostName,
    /// Which start it was.
    pub attempt: Attempt,
    /// Slots that it held.
    pub slots: u32,
    /// When its job was submitted.
    pub submitted: Moment,
    /// When it was given to the host.
    pub launched: Moment,
    /// When the host had started it; none if it never said so.
    pub started: Option<Moment>,
    /// When it ended, as the controller saw it.
    pub ended: Moment,
    /// How it ended; none if it was lost or never started.
    pub exit: Option<Exit>,
    /// Why it was lost or never started, as far as its host could say.
    #[serde(default)]
    pub loss: Option<Loss>,
    /// What it used; none if it was lost or never started.
    pub usage: Option<Usage>,
    /// What became of the task.
    pub fate: Fate,
}

impl AttemptRecord {
    /// How it ended or why it did not, in words; none if nobody could say.
    #[must_use]
    pub fn outcome(&self) -> Option<String> {
        let loss = || self.loss.as_ref().map(ToString::to_string);
        self.exit.as_ref().map(ToString::to_string).or_else(loss)
    }
}

/// Sums over attempts that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Attempts.
    pub attempts: u64,
    /// Tasks that ended with exit value 0.
    pub done: u64,
    /// Tasks that ended otherwise after they were started.
    pub failed: u64,
    /// Slots times seconds from being given to a host to the end.
    pub slot_seconds: f64,
    /// Seconds from being started to the end.
    pub real_seconds: f64,
    /// Processor seconds in user mode.
    pub user_seconds: f64,
    /// Processor seconds in the kernel.
    pub system_seconds: f64,
    /// Seconds in which they waited for I/O, of those for which it is known.
    pub io_wait_seconds: f64,
    /// Bytes read, of those for which it is known.
    pub read_bytes: u64,
    /// Bytes written, of those for which it is known.
    pub written_bytes: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, slot_seconds: f64, usage: Option<&Usage>) {
        self.attempts += 1;
        self.slot_seconds += slot_seconds;
        let Some(usage) = usage else { return };
        self.real_seconds += usage.real_seconds;
        self.user_seconds += usage.user_seconds;
        self.system_seconds += usage.system_seconds;
        self.io_wait_seconds += usage.io_wait_seconds.unwrap_or(0.0);
        self.read_bytes = self.read_bytes.saturating_add(usage.read_bytes.unwrap_or(0));
        self.written_bytes = self.written_bytes.saturating_add(usage.written_bytes.unwrap_or(0));
    }
}

//! What was used: a record for each attempt that ended.

use serde::{Deserialize, Serialize};

use crate::event::Loss;
use crate::spec::{Exit, Usage};
use crate::state::JobState;
use crate::task::{Fate, KILLED};
use crate::vocabulary::{Attempt, HostName, Moment, QueueName, TaskId, UserName};

/// One attempt that ended, for the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Which task.
    pub task: TaskId,
    /// How many tasks its job has; 0 in entries of versions that did not say so.
    #[serde(default)]
    pub tasks: u32,
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
    /// What became of the task, in the words that states of tasks have; one that has not ended starts again.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.fate {
            Fate::Finished(cause) => cause.state(self.exit.as_ref()).word(),
            Fate::Again => "again",
            Fate::AgainElsewhere => "again_elsewhere",
        }
    }

    /// The exit value of its task, if this was the last attempt. A task that was to start again and did not counts as killed by force.
    #[must_use]
    pub fn exit_value(&self) -> u8 {
        match self.fate {
            Fate::Finished(cause) => cause.exit_value(self.exit.as_ref()),
            Fate::Again | Fate::AgainElsewhere => KILLED,
        }
    }

    /// How its task ended, if this was the last attempt.
    #[must_use]
    pub fn last_state(&self) -> JobState {
        match self.fate {
            Fate::Finished(cause) => cause.state(self.exit.as_ref()),
            Fate::Again | Fate::AgainElsewhere => JobState::Killed,
        }
    }

    /// How it ended or why it did not, in words; none if nobody could say.
    #[must_use]
    pub fn outcome(&self) -> Option<String> {
        let loss = || self.loss.as_ref().map(ToString::to_string);
        self.exit.as_ref().map(ToString::to_string).or_else(loss)
    }
}

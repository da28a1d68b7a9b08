//! How a task is, in one word: what lists show, scripts compare and messages carry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a task is, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for its turn, or for its dependency.
    Pending,
    /// It waits to be released.
    Held,
    /// It was given to a host, which has not started it yet.
    Starting,
    /// It runs.
    Running,
    /// It was started, and is stopped for now.
    Suspended,
    /// Its host cannot be reached: it may run there.
    Unknown,
    /// It ended by itself with 0.
    Done,
    /// It ended by itself with another value, by a signal of its own, or could not be started.
    Exited,
    /// Somebody ended it.
    Killed,
    /// It ran for longer than it may.
    TimeLimit,
    /// It was lost with its host, or by it.
    HostLost,
    /// It was started as often as it may be.
    AttemptsMax,
    /// It was not started, as its dependency can no longer be met.
    DependencyNever,
    /// It is a step of a flow that could no longer start.
    Skipped,
    /// Its work areas held more than its queue allows.
    AreaLimit,
    /// The time by which it had to have ended came.
    Deadline,
}

impl JobState {
    /// All of them, in the order of a task's life.
    pub const ALL: [JobState; 16] = [
        JobState::Pending,
        JobState::Held,
        JobState::Starting,
        JobState::Running,
        JobState::Suspended,
        JobState::Unknown,
        JobState::Done,
        JobState::Exited,
        JobState::Killed,
        JobState::TimeLimit,
        JobState::HostLost,
        JobState::AttemptsMax,
        JobState::DependencyNever,
        JobState::Skipped,
        JobState::AreaLimit,
        JobState::Deadline,
    ];

    /// The word, as messages have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Held => "held",
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Suspended => "suspended",
            JobState::Unknown => "unknown",
            JobState::Done => "done",
            JobState::Exited => "exited",
            JobState::Killed => "killed",
            JobState::TimeLimit => "time_limit",
            JobState::HostLost => "host_lost",
            JobState::AttemptsMax => "attempts_max",
            JobState::DependencyNever => "dependency_never",
            JobState::Skipped => "skipped",
            JobState::AreaLimit => "area_limit",
            JobState::Deadline => "deadline",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for JobState {
    type Err = String;

    fn from_str(text: &str) -> Result<JobState, String> {
        let found = JobState::ALL.into_iter().find(|state| state.word() == text);
        found.ok_or_else(|| {
            let words = JobState::ALL.map(JobState::word).join(", ");
            format!("\"{text}\" is not a state of a job: choose from {words}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_one_word_which_is_read_back_and_sent_alike() {
        for state in JobState::ALL {
            assert_eq!(state.word().parse(), Ok(state));
            let read: Result<JobState, serde::de::value::Error> =
                Deserialize::deserialize(serde::de::value::StrDeserializer::new(state.word()));
            assert_eq!(read, Ok(state));
        }
        let refused = "runing".parse::<JobState>().unwrap_err();
        assert!(refused.contains("runing") && refused.contains("running"), "{refused}");
    }
}

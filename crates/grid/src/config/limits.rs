//! Limits of a job's processors and processes that the settings of its queue and its host set.

use serde::{Deserialize, Serialize};

use super::{HostConfig, QueueConfig};

/// What the slots of a job mean for the processors of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processors {
    /// Its share where jobs want more than there are: each gets time in proportion to its slots. Idle ones are free to all.
    #[default]
    Share,
    /// At most the time of as many processors as it has slots, also where others are idle.
    Slots,
}

impl Processors {
    /// Whether nothing else is said.
    #[must_use]
    pub fn is_share(&self) -> bool {
        *self == Processors::Share
    }
}

/// Limits of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// What its slots mean for processors.
    #[serde(default, skip_serializing_if = "Processors::is_share")]
    pub processors: Processors,
    /// The most processes and threads that it may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_max: Option<u32>,
}

impl Limits {
    /// Those of a job in a queue, on a host: the stricter one of both.
    #[must_use]
    pub fn of(queue: Option<&QueueConfig>, host: Option<&HostConfig>) -> Limits {
        let said = [
            queue.map(|queue| (queue.processors, queue.processes_max)),
            host.map(|host| (host.processors, host.processes_max)),
        ];
        let said = || said.iter().flatten();
        let is_strict = said().any(|(processors, _)| *processors == Processors::Slots);
        Limits {
            processors: if is_strict { Processors::Slots } else { Processors::Share },
            processes_max: said().filter_map(|(_, most)| *most).min(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn are_default(&self) -> bool {
        *self == Limits::default()
    }
}

//! What was used, in sums.

use forebay_grid::vocabulary::{HostName, QueueName, UserName};
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// What is summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageKey {
    /// Whose jobs.
    User,
    /// Their queue.
    Queue,
    /// The day on which they ended.
    Day,
    /// Where they ran.
    Host,
    /// What they are charged to.
    Project,
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageQuery {
    /// By what, in this order; everything together if empty.
    pub by: Vec<UsageKey>,
    /// The first day.
    pub since: Option<Date>,
    /// The last day.
    pub until: Option<Date>,
}

/// Sums for people and scripts. What was not summed up by is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The day.
    pub day: Option<Date>,
    /// The user.
    pub user: Option<UserName>,
    /// The queue.
    pub queue: Option<QueueName>,
    /// The host.
    pub host: Option<HostName>,
    /// The project; empty for jobs without one.
    pub project: Option<String>,
    /// Tasks that ended for good after they were started; elements of arrays count each.
    pub jobs: u64,
    /// Those of them that did not end by themselves with exit value 0.
    pub failed: u64,
    /// Starts.
    pub attempts: u64,
    /// Seconds on the clock.
    pub real_seconds: f64,
    /// Processor seconds in user mode.
    pub user_seconds: f64,
    /// Processor seconds in the kernel.
    pub system_seconds: f64,
    /// Processor seconds for each second on the clock.
    pub cpu_per_real: Option<f64>,
    /// Slots times seconds from being given to a host to the end.
    pub slot_seconds: f64,
    /// Seconds in which they waited for I/O, as far as known.
    pub io_wait_seconds: Option<f64>,
    /// Of how many attempts that is known.
    pub io_wait_attempts: u64,
    /// Bytes read by system calls, as far as known.
    pub read_bytes: u64,
    /// Bytes written by system calls, as far as known.
    pub written_bytes: u64,
    /// The most memory of one of them.
    pub peak_memory_bytes: u64,
    /// From submission to the first start, half of them waited no longer, within 2 %.
    pub wait_median_seconds: Option<f64>,
    /// The longest of these times.
    pub wait_max_seconds: Option<f64>,
}

//! What jobs of a grid use while they run, as `forebay top` and `forebay stat --by` show it.
//!
//! These are counters of the kernel for the processes of a job, which its host reports every two seconds. They hold what a job reads and
//! writes in any file system: also in native filesets and on the direct path, where nothing reaches the daemon of the file system. What
//! it creates, opens and removes there is in no counter of the kernel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_base::Usage;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::JobView;
use forebay_engine::protocol::client::Client;
use serde::Serialize;

use crate::attribution::{By, Whose};
use crate::output::bytes;

/// What the lists of a daemon lack.
pub const NOT_SEEN: &str =
    "Not counted here: reads and overwrites on the direct path, and everything in native filesets.";
/// What the list of running jobs has of that.
pub const OF_JOBS: &str = "Running jobs: their own reads and writes in any file system, native filesets and the direct path included. \
                           What they create, open and remove in native filesets is not counted anywhere.";

/// What a job has used, in all or in an interval. What its host did not report is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Used {
    /// How long it ran.
    pub real_seconds: f64,
    /// Processor time.
    pub processor_seconds: f64,
    /// Time in which something of it waited for I/O.
    pub io_wait_seconds: Option<f64>,
    /// Bytes read by system calls, from any file system.
    pub read_bytes: Option<u64>,
    /// Bytes written likewise.
    pub written_bytes: Option<u64>,
    /// Read calls.
    pub read_calls: Option<u64>,
    /// Write calls.
    pub write_calls: Option<u64>,
    /// Bytes that it made local disks read.
    pub device_read_bytes: Option<u64>,
    /// Bytes that it left to be written to local disks.
    pub device_written_bytes: Option<u64>,
}

impl From<Usage> for Used {
    fn from(usage: Usage) -> Used {
        Used {
            real_seconds: usage.real_seconds,
            processor_seconds: usage.cpu_seconds(),
            io_wait_seconds: usage.io_pressure_seconds,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            read_calls: usage.read_calls,
            write_calls: usage.write_calls,
            device_read_bytes: usage.device_read_bytes,
            device_written_bytes: usage.device_written_bytes,
        }
    }
}

impl Used {
    /// Puts two together, field by field: times, and numbers.
    fn with(
        self,
        other: Used,
        time: impl Fn(f64, f64) -> f64,
        count: impl Fn(u64, u64) -> u64,
    ) -> Used {
        let known = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(count(one.unwrap_or(0), other.unwrap_or(0))),
        };
        let io_wait_seconds = match (self.io_wait_seconds, other.io_wait_seconds) {
            (None, None) => None,
            (one, other) => Some(time(one.unwrap_or(0.0), other.unwrap_or(0.0))),
        };
        Used {
            real_seconds: time(self.real_seconds, other.real_seconds),
            processor_seconds: time(self.processor_seconds, other.processor_seconds),
            io_wait_seconds,
            read_bytes: known(self.read_bytes, other.read_bytes),
            written_bytes: known(self.written_bytes, other.written_bytes),
            read_calls: known(self.read_calls, other.read_calls),
            write_calls: known(self.write_calls, other.write_calls),
            device_read_bytes: known(self.device_read_bytes, other.device_read_bytes),
            device_written_bytes: known(self.device_written_bytes, other.device_written_bytes),
        }
    }

    fn since(self, before: Used) -> Used {
        self.with(before, |now, then| (now - then).max(0.0), u64::saturating_sub)
    }

    fn and(self, other: Used) -> Used {
        self.with(other, |one, other| one + other, u64::saturating_add)
    }

    /// Read and write calls together.
    #[must_use]
    pub fn calls(&self) -> Option<u64> {
        Some(self.read_calls? + self.write_calls?)
    }
}

/// The grid whose jobs are shown beside a file system: the one that was named, or else that of FOREBAY_GRID or of the home folder, if its
/// controller answers.
///
/// # Errors
/// If what was named is not a grid.
pub fn grid_beside(home: &Path, named: Option<&Path>) -> Result<Option<GridHome>> {
    if let Some(root) = named {
        return Ok(Some(GridHome::of(root)?));
    }
    let root = std::env::var_os("FOREBAY_GRID").map_or_else(|| home.to_owned(), PathBuf::from);
    Ok(GridHome::of(&root).ok().filter(Client::is_answered))
}

/// The jobs that run: those of the user who asks, or everybody's for an admin of the grid.
///
/// # Errors
/// If the controller does not answer.
pub fn jobs(client: &mut Client) -> Result<Vec<JobView>> {
    let (mut jobs, _) = client.jobs(None, false, None)?;
    jobs.retain(|job| job.host.is_some());
    Ok(jobs)
}

/// What a job used since an earlier look, or since its start if it was not there then. Its `real_seconds` are 0 if its host has not
/// reported since.
#[must_use]
pub fn lately(job: &JobView, before: &[JobView]) -> Option<Used> {
    let same = |it: &&JobView| it.id == job.id && it.attempts == job.attempts;
    let earlier = before.iter().find(same).and_then(|it| it.usage);
    Some(Used::from(job.usage?).since(earlier.map(Used::from).unwrap_or_default()))
}

/// What running jobs used since an earlier look, by job or by user. What moved most bytes comes first.
#[must_use]
pub fn grouped(now: &[JobView], before: &[JobView], by: By) -> Vec<(Whose, Used)> {
    let mut groups: BTreeMap<Whose, Used> = BTreeMap::new();
    for job in now {
        let Some(used) = lately(job, before).filter(|used| used.real_seconds > 0.0) else {
            continue;
        };
        let mut whose = Whose { user: job.user.to_string(), ..Whose::default() };
        if by != By::User {
            whose.job.clone_from(&job.id);
        }
        let sum = groups.entry(whose).or_default();
        *sum = sum.and(used);
    }
    let mut rows: Vec<(Whose, Used)> = groups.into_iter().collect();
    rows.sort_by_key(|(_, used)| {
        std::cmp::Reverse(used.read_bytes.unwrap_or(0) + used.written_bytes.unwrap_or(0))
    });
    rows
}

/// Columns of what was used.
pub const HEADING: [&str; 7] =
    ["PROCESSOR s", "I/O WAIT s", "READ", "WRITTEN", "CALLS", "FROM DISK", "TO DISK"];

/// The cells below [`HEADING`].
#[must_use]
pub fn cells(used: &Used) -> [String; 7] {
    let size = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), bytes);
    let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    [
        format!("{:.2}", used.processor_seconds),
        or_dash(used.io_wait_seconds.map(|seconds| format!("{seconds:.2}"))),
        size(used.read_bytes),
        size(used.written_bytes),
        or_dash(used.calls().map(|calls| calls.to_string())),
        size(used.device_read_bytes),
        size(used.device_written_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(id: &str, user: &str, usage: Option<(f64, u64)>) -> JobView {
        let usage = usage.map(|(real_seconds, bytes)| Usage {
            real_seconds,
            read_bytes: Some(bytes),
            io_pressure_seconds: Some(real_seconds / 2.0),
            ..Usage::default()
        });
        serde_json::from_value(json!({
            "id": id, "name": "", "user": user, "queue": "normal", "state": "running", "tasks": 1, "host": "h", "attempts": 1,
            "slots": 1, "exit": null, "submitted": 0, "started": 0, "ended": null, "command": [], "output": "", "error": null,
            "usage": usage,
        }))
        .unwrap()
    }

    #[test]
    fn what_jobs_used_in_an_interval_is_added_up_and_the_most_bytes_come_first() {
        let before = [job("1", "ann", Some((2.0, 100))), job("2", "ann", Some((2.0, 100)))];
        let now = [
            job("1", "ann", Some((4.0, 150))),
            // Its host has not reported since.
            job("2", "ann", Some((2.0, 100))),
            job("3", "bob", Some((1.0, 70))),
            job("4", "bob", None),
        ];
        let shown = |by| -> Vec<(String, Option<u64>, Option<f64>)> {
            let rows = grouped(&now, &before, by).into_iter();
            let row = |(whose, used): (Whose, Used)| {
                let name = format!("{}:{}", whose.job, whose.user);
                (name, used.read_bytes, used.io_wait_seconds)
            };
            rows.map(row).collect()
        };
        let row = |name: &str, bytes, wait| (name.to_owned(), Some(bytes), Some(wait));
        assert_eq!(shown(By::Job), [row("3:bob", 70, 0.5), row("1:ann", 50, 1.0)]);
        assert_eq!(shown(By::User), [row(":bob", 70, 0.5), row(":ann", 50, 1.0)]);
        let whole = grouped(&now, &[], By::User);
        assert_eq!((whole[0].0.user.as_str(), whole[0].1.read_bytes), ("ann", Some(250)));
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let used = Used { read_calls: Some(3), ..Used::default() };
        assert_eq!(cells(&used), ["0.00", "-", "-", "-", "-", "-", "-"]);
        let used = Used { write_calls: Some(4), device_read_bytes: Some(0), ..used };
        assert_eq!(cells(&used), ["0.00", "-", "-", "-", "7", "0 B", "-"]);
    }
}

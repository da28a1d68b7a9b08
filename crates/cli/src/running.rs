//! What jobs of a grid use while they run, as `forebay top` and `forebay stat --by` show it.
//!
//! These are counters of the kernel for the processes of a job, which its host reports every two seconds. They hold what a job reads and
//! writes in any file system: also in native filesets and on the direct path, where nothing reaches the daemon of the file system. What
//! it creates, opens and removes there is in no counter of the kernel.

use std::collections::{BTreeMap, HashMap};
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

    /// The same, per second of the time in which it was used.
    fn rates(&self) -> Rates {
        let seconds = self.real_seconds;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let per_second = |count: Option<u64>| count.map(|count| count as f64 / seconds);
        Rates {
            processors: Some(self.processor_seconds / seconds),
            io_wait: self.io_wait_seconds.map(|wait| (wait / seconds).min(1.0)),
            read_bytes_per_second: per_second(self.read_bytes),
            written_bytes_per_second: per_second(self.written_bytes),
            calls_per_second: per_second(self.calls()),
            device_read_bytes_per_second: per_second(self.device_read_bytes),
            device_written_bytes_per_second: per_second(self.device_written_bytes),
        }
    }
}

/// What a job, or all jobs of a user, use in a second. What no host says is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Processors in use.
    pub processors: Option<f64>,
    /// Share of the time in which something of it waited for I/O; of several jobs the sum.
    pub io_wait: Option<f64>,
    /// Bytes that it reads by system calls, from any file system.
    pub read_bytes_per_second: Option<f64>,
    /// Those that it writes.
    pub written_bytes_per_second: Option<f64>,
    /// Read and write calls.
    pub calls_per_second: Option<f64>,
    /// Bytes that it makes local disks read.
    pub device_read_bytes_per_second: Option<f64>,
    /// Bytes that it leaves to be written to local disks.
    pub device_written_bytes_per_second: Option<f64>,
}

impl Rates {
    fn and(self, other: Rates) -> Rates {
        let sum = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0.0) + other.unwrap_or(0.0)),
        };
        let of = |field: fn(&Rates) -> Option<f64>| sum(field(&self), field(&other));
        Rates {
            processors: of(|it| it.processors),
            io_wait: of(|it| it.io_wait),
            read_bytes_per_second: of(|it| it.read_bytes_per_second),
            written_bytes_per_second: of(|it| it.written_bytes_per_second),
            calls_per_second: of(|it| it.calls_per_second),
            device_read_bytes_per_second: of(|it| it.device_read_bytes_per_second),
            device_written_bytes_per_second: of(|it| it.device_written_bytes_per_second),
        }
    }

    fn bytes_per_second(&self) -> f64 {
        self.read_bytes_per_second.unwrap_or(0.0) + self.written_bytes_per_second.unwrap_or(0.0)
    }
}

/// What jobs use per second between the last two reports of their hosts. Hosts report every two seconds, whoever looks, and whenever: what
/// was used between two looks is not known, so a job keeps its rates until its host reports again. Before the second report, they are
/// those since its start.
#[derive(Default)]
pub struct Meter {
    jobs: HashMap<(String, u32), Metered>,
}

struct Metered {
    /// What its host reported last.
    latest: Used,
    rates: Rates,
}

impl Meter {
    /// Takes note of all running jobs.
    pub fn take(&mut self, jobs: &[JobView]) {
        let mut before = std::mem::take(&mut self.jobs);
        for job in jobs {
            let key = (job.id.clone(), job.attempts);
            let earlier = before.remove(&key);
            let now = job.usage.map(Used::from).filter(|used| used.real_seconds > 0.0);
            let metered = match (now, earlier) {
                (Some(now), Some(earlier)) if now.real_seconds > earlier.latest.real_seconds => {
                    Metered { latest: now, rates: now.since(earlier.latest).rates() }
                }
                (_, Some(earlier)) => earlier,
                (Some(now), None) => Metered { latest: now, rates: now.rates() },
                (None, None) => continue,
            };
            self.jobs.insert(key, metered);
        }
    }

    /// What a job uses per second; none before its host has reported it.
    #[must_use]
    pub fn rates(&self, job: &JobView) -> Option<Rates> {
        self.jobs.get(&(job.id.clone(), job.attempts)).map(|metered| metered.rates)
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

/// What running jobs have used since each began, by job or by user. What moved most bytes comes first.
#[must_use]
pub fn totals(jobs: &[JobView], by: By) -> Vec<(Whose, Used)> {
    let used = |job: &JobView| job.usage.map(Used::from).filter(|used| used.real_seconds > 0.0);
    let mut rows = grouped(jobs, by, used, Used::and);
    rows.sort_by_key(|(_, used)| {
        std::cmp::Reverse(used.read_bytes.unwrap_or(0) + used.written_bytes.unwrap_or(0))
    });
    rows
}

/// What running jobs use per second, by job or by user. What moves most bytes comes first.
#[must_use]
pub fn rates(jobs: &[JobView], meter: &Meter, by: By) -> Vec<(Whose, Rates)> {
    let mut rows = grouped(jobs, by, |job| meter.rates(job), Rates::and);
    rows.sort_by(|(_, one), (_, other)| {
        other.bytes_per_second().total_cmp(&one.bytes_per_second())
    });
    rows
}

/// Puts together what is said of jobs, by job or by user.
fn grouped<T: Copy + Default>(
    jobs: &[JobView],
    by: By,
    of: impl Fn(&JobView) -> Option<T>,
    and: impl Fn(T, T) -> T,
) -> Vec<(Whose, T)> {
    let mut groups: BTreeMap<Whose, T> = BTreeMap::new();
    for job in jobs {
        let Some(one) = of(job) else { continue };
        let mut whose = Whose { user: job.user.to_string(), ..Whose::default() };
        if by != By::User {
            whose.job.clone_from(&job.id);
        }
        let sum = groups.entry(whose).or_default();
        *sum = and(*sum, one);
    }
    groups.into_iter().collect()
}

/// Columns of what is used per second.
pub const RATES_HEADING: [&str; 7] =
    ["PROCESSORS", "I/O WAIT", "READ/s", "WRITTEN/s", "CALLS/s", "FROM DISK/s", "TO DISK/s"];

/// The cells below [`RATES_HEADING`].
#[must_use]
pub fn rates_cells(rates: &Rates) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    let size = |rate: Option<f64>| or_dash(rate.map(|it| bytes(it.round() as u64)));
    [
        or_dash(rates.processors.map(|used| format!("{used:.2}"))),
        or_dash(rates.io_wait.map(|share| format!("{:.0} %", share * 100.0))),
        size(rates.read_bytes_per_second),
        size(rates.written_bytes_per_second),
        or_dash(rates.calls_per_second.map(|calls| format!("{calls:.0}"))),
        size(rates.device_read_bytes_per_second),
        size(rates.device_written_bytes_per_second),
    ]
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
    fn what_jobs_have_used_is_added_up_and_the_most_bytes_come_first() {
        let jobs = [
            job("3", "bob", Some((1.0, 70))),
            job("1", "ann", Some((4.0, 150))),
            job("2", "ann", Some((2.0, 100))),
            job("4", "bob", None),
        ];
        let shown = |by| -> Vec<(String, Option<u64>, Option<f64>)> {
            let row = |(whose, used): (Whose, Used)| {
                let name = format!("{}:{}", whose.job, whose.user);
                (name, used.read_bytes, used.io_wait_seconds)
            };
            totals(&jobs, by).into_iter().map(row).collect()
        };
        let row = |name: &str, bytes, wait| (name.to_owned(), Some(bytes), Some(wait));
        let by_job = [row("1:ann", 150, 2.0), row("2:ann", 100, 1.0), row("3:bob", 70, 0.5)];
        assert_eq!(shown(By::Job), by_job);
        assert_eq!(shown(By::User), [row(":ann", 250, 3.0), row(":bob", 70, 0.5)]);
    }

    #[test]
    fn rates_are_those_between_two_reports_of_a_host_however_often_somebody_looks() {
        let mut meter = Meter::default();
        let mut look = |jobs: &[JobView], by| -> Vec<(String, f64)> {
            meter.take(jobs);
            let row = |(whose, rates): (Whose, Rates)| {
                (format!("{}:{}", whose.job, whose.user), rates.read_bytes_per_second.unwrap())
            };
            rates(jobs, &meter, by).into_iter().map(row).collect()
        };
        let row = |name: &str, rate: f64| (name.to_owned(), rate);
        let one = job("1", "ann", Some((4.0, 400)));
        assert_eq!(
            look(std::slice::from_ref(&one), By::Job),
            [row("1:ann", 100.0)],
            "since its start"
        );
        // Looks come every second, reports every two.
        let two = job("2", "ann", Some((1.0, 50)));
        let jobs = [one, two, job("3", "bob", None)];
        for _ in 0..2 {
            assert_eq!(look(&jobs, By::Job), [row("1:ann", 100.0), row("2:ann", 50.0)]);
            assert_eq!(look(&jobs, By::User), [row(":ann", 150.0)]);
        }
        let one = job("1", "ann", Some((6.0, 420)));
        let two = job("2", "ann", Some((3.0, 100)));
        for _ in 0..2 {
            let jobs = [one.clone(), two.clone()];
            assert_eq!(look(&jobs, By::Job), [row("2:ann", 25.0), row("1:ann", 10.0)]);
            assert_eq!(look(&jobs, By::User), [row(":ann", 35.0)]);
        }
        // A controller that has just started knows no usage yet.
        assert_eq!(look(&[job("1", "ann", None)], By::Job), [row("1:ann", 10.0)]);
        assert_eq!(look(&[job("1", "ann", Some((8.0, 420)))], By::Job), [row("1:ann", 0.0)]);
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let used = Used { read_calls: Some(3), ..Used::default() };
        assert_eq!(cells(&used), ["0.00", "-", "-", "-", "-", "-", "-"]);
        let used = Used { write_calls: Some(4), device_read_bytes: Some(0), ..used };
        assert_eq!(cells(&used), ["0.00", "-", "-", "-", "7", "0 B", "-"]);
    }
}

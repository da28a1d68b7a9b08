//! Schedules of snapshots: a fileset gets a snapshot at fixed times, and the oldest ones of the schedule are deleted.
//!
//! They are kept in a file of the home folder, with the time at which each is due, so a restart neither forgets nor repeats
//! one. Times are multiples of the interval in UTC: every 1h means on the hour, every 1d at midnight. One that
//! was missed, however often, is made once. Deciding what is due is pure; the daemon carries it out
//! (`daemon/schedules.rs`).
//!
//! What survives a crash: the file as a whole, old or new. A crash between a snapshot and the file's change makes
//! one more snapshot.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::time::next_multiple;
use forebay_web::token::replace;
use serde::{Deserialize, Serialize};

use crate::home::Home;

/// Name of the file in the home folder.
const FILE: &str = "snapshot-schedules.json";
const VERSION: u32 = 1;
/// Shortest interval in seconds.
const EVERY_MIN: u64 = 10;
/// Longest interval in seconds: a year.
const EVERY_MAX: u64 = 366 * 86_400;
/// Snapshots that all schedules of a fileset keep together: some of those that it can have are left for other snapshots.
const KEPT_MAX: u64 = 1000;
/// Seconds until a snapshot that failed is tried again.
const AGAIN: i64 = 60;

/// One interval and how many snapshots of it are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub every_seconds: u64,
    pub keep: u64,
}

/// A schedule of a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Name of the fileset; `/` for the root fileset.
    pub fileset: String,
    #[serde(flatten)]
    pub interval: Interval,
    /// When the next snapshot is due, in seconds since 1970.
    pub next_seconds: i64,
    /// Name of the latest snapshot.
    #[serde(default)]
    pub latest: Option<String>,
    /// Why the latest attempt failed, if it did.
    #[serde(default)]
    pub error: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    schedules: Vec<Schedule>,
}

impl Schedule {
    /// Names of its snapshots begin so.
    pub fn prefix(&self) -> String {
        format!("every-{}-", shown(self.interval.every_seconds))
    }

    /// The name of a snapshot that is made now.
    pub fn name(&self, now: i64) -> String {
        let time = jiff::Timestamp::from_second(now).unwrap_or_default();
        format!("{}{}", self.prefix(), time.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }

    /// Whether a snapshot is to be made. A clock that was ahead for a while does not keep it waiting longer than the interval.
    pub fn is_due(&self, now: i64) -> bool {
        self.next_seconds <= now || self.next_seconds > next_after(now, self.interval)
    }

    /// Notes what became of an attempt. It is tried again soon if there is no snapshot; not if only old ones could not be deleted,
    /// or there would be more of them with each attempt.
    pub fn note(&mut self, now: i64, attempt: Attempt) {
        self.next_seconds = next_after(now, self.interval);
        self.error = attempt.error;
        match attempt.made {
            Some(name) => self.latest = Some(name),
            None => self.next_seconds = self.next_seconds.min(now.saturating_add(AGAIN)),
        }
    }
}

/// What became of an attempt to make a snapshot and to delete old ones.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Name of the new snapshot.
    pub made: Option<String>,
    /// What failed.
    pub error: Option<String>,
}

/// The first multiple of the interval after `now`.
fn next_after(now: i64, interval: Interval) -> i64 {
    next_multiple(interval.every_seconds, now)
}

/// An interval as people write it.
pub fn shown(seconds: u64) -> String {
    let units = [(604_800, 'w'), (86_400, 'd'), (3600, 'h'), (60, 'm')];
    let unit =
        units.into_iter().find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    unit.map_or_else(
        || format!("{seconds}s"),
        |(unit, letter)| format!("{}{letter}", seconds / unit),
    )
}

/// Reads an interval such as 90s, 15m, 1h, 1d or 1w; in seconds.
pub fn read_interval(text: &str) -> Result<u64, String> {
    let allowed =
        || format!("\"{text}\" is not an interval from 10s to 366d, such as 15m, 1h, 1d or 1w");
    let number = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match &text[number.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(allowed()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    seconds.filter(|seconds| (EVERY_MIN..=EVERY_MAX).contains(seconds)).ok_or_else(allowed)
}

/// The schedules of a file system.
pub struct Schedules {
    path: PathBuf,
    all: Vec<Schedule>,
}

impl Schedules {
    /// Reads the file of a home folder; none, if there is no file.
    ///
    /// # Errors
    /// Names the file and what to do.
    pub fn read(home: &Home) -> Result<Schedules> {
        let path = home.root().join(FILE);
        let shown = path.display();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Schedules { path, all: Vec::new() });
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let stored: Stored = serde_json::from_slice(&text).with_context(|| {
            format!("{shown} is damaged: remove it, and set the schedules again")
        })?;
        if stored.version != VERSION {
            bail!("{shown} has version {}, and this program knows {VERSION}", stored.version);
        }
        let is_fine = |one: &Schedule| {
            (EVERY_MIN..=EVERY_MAX).contains(&one.interval.every_seconds)
                && (1..=KEPT_MAX).contains(&one.interval.keep)
        };
        if let Some(one) = stored.schedules.iter().find(|one| !is_fine(one)) {
            bail!(
                "{shown} has a schedule of fileset {} every {} s that keeps {}: every_seconds is {EVERY_MIN} to {EVERY_MAX}, \
                 keep 1 to {KEPT_MAX}; correct it, and mount again",
                one.fileset,
                one.interval.every_seconds,
                one.interval.keep
            );
        }
        Ok(Schedules { path, all: stored.schedules })
    }

    /// All, by fileset and interval.
    pub fn list(&self, fileset: Option<&str>) -> Vec<Schedule> {
        let wanted = |one: &&Schedule| fileset.is_none_or(|fileset| one.fileset == fileset);
        self.all.iter().filter(wanted).cloned().collect()
    }

    /// The first one that is due.
    pub fn due(&self, now: i64) -> Option<Schedule> {
        self.all.iter().find(|one| one.is_due(now)).cloned()
    }

    /// Gives a fileset these intervals, and no others. One that it has already is due as before.
    ///
    /// # Errors
    /// If there are too many, or the file cannot be written; nothing is changed then.
    pub fn set(
        &mut self,
        fileset: &str,
        intervals: &[Interval],
        now: i64,
        most: usize,
    ) -> Result<()> {
        let kept = intervals.iter().fold(0_u64, |sum, one| sum.saturating_add(one.keep));
        ensure!(
            kept <= KEPT_MAX,
            "the schedules of fileset {fileset} would keep {kept} snapshots, and {KEPT_MAX} are allowed: lower --keep"
        );
        let mut all: Vec<Schedule> =
            self.all.iter().filter(|one| one.fileset != fileset).cloned().collect();
        for (number, interval) in intervals.iter().enumerate() {
            let every = interval.every_seconds;
            ensure!(
                intervals[..number].iter().all(|other| other.every_seconds != every),
                "--every {} is there twice",
                shown(every)
            );
            let before = self
                .all
                .iter()
                .find(|one| one.fileset == fileset && one.interval.every_seconds == every);
            all.push(Schedule {
                fileset: fileset.to_owned(),
                interval: *interval,
                next_seconds: before
                    .map_or_else(|| next_after(now, *interval), |one| one.next_seconds),
                latest: before.and_then(|one| one.latest.clone()),
                error: before.and_then(|one| one.error.clone()),
            });
        }
        ensure!(
            all.len() <= most,
            "there would be {} schedules of snapshots, and snapshot_schedules_max in forebay.toml allows {most}",
            all.len()
        );
        all.sort_by(|one, other| {
            let key = |one: &Schedule| (one.fileset.clone(), one.interval.every_seconds);
            key(one).cmp(&key(other))
        });
        self.change(all)
    }

    /// Takes the schedules of a fileset away; how many there were.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn remove(&mut self, fileset: &str) -> Result<usize> {
        let mut all = self.all.clone();
        all.retain(|one| one.fileset != fileset);
        let removed = self.all.len() - all.len();
        if removed > 0 {
            self.change(all)?;
        }
        Ok(removed)
    }

    /// Notes what became of an attempt, if the schedule is still there.
    ///
    /// # Errors
    /// If the file cannot be written; the time counts for this process all the same.
    pub fn note(&mut self, of: &Schedule, now: i64, attempt: Attempt) -> Result<()> {
        let found = self.all.iter_mut().find(|one| {
            one.fileset == of.fileset && one.interval.every_seconds == of.interval.every_seconds
        });
        if let Some(found) = found {
            found.note(now, attempt);
            write(&self.path, &self.all)?;
        }
        Ok(())
    }

    fn change(&mut self, all: Vec<Schedule>) -> Result<()> {
        write(&self.path, &all)?;
        self.all = all;
        Ok(())
    }
}

fn write(path: &Path, all: &[Schedule]) -> Result<()> {
    let stored = Stored { version: VERSION, schedules: all.to_vec() };
    replace(path, &serde_json::to_vec_pretty(&stored)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Interval = Interval { every_seconds: 3600, keep: 24 };

    fn schedule(next_seconds: i64) -> Schedule {
        let fileset = "data".to_owned();
        Schedule { fileset, interval: HOUR, next_seconds, latest: None, error: None }
    }

    fn made(name: &str) -> Attempt {
        Attempt { made: Some(name.to_owned()), error: None }
    }

    fn failed(why: &str) -> Attempt {
        Attempt { made: None, error: Some(why.to_owned()) }
    }

    #[test]
    fn a_missed_snapshot_is_made_once_and_a_failed_one_is_tried_again() {
        let mut one = schedule(7200);
        assert!(!one.is_due(7199) && one.is_due(7200));
        // Ten were missed.
        one.note(43_205, made("a"));
        assert_eq!((one.next_seconds, one.latest.as_deref()), (46_800, Some("a")));
        assert!(!one.is_due(43_206));
        one.note(46_800, failed("full"));
        assert_eq!((one.next_seconds, one.error.as_deref()), (46_860, Some("full")));
        assert_eq!(one.latest.as_deref(), Some("a"));
        one.note(46_860, made("b"));
        assert_eq!((one.next_seconds, one.error.as_deref()), (50_400, None));
        // Old ones could not be deleted: no new one is made for that.
        one.note(50_400, Attempt { error: Some("why".to_owned()), ..made("c") });
        assert_eq!((one.next_seconds, one.error.as_deref()), (54_000, Some("why")));
        assert_eq!(one.latest.as_deref(), Some("c"));
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_stop_a_schedule() {
        assert!(schedule(1_000_000).is_due(7200));
        assert!(!schedule(10_800).is_due(7200));
    }

    #[test]
    fn names_have_the_interval_and_the_time_in_utc() {
        assert_eq!(schedule(0).name(1_764_059_400), "every-1h-2025-11-25T08:30:00Z");
        for (text, seconds) in
            [("90s", 90), ("15m", 900), ("1h", 3600), ("2d", 172_800), ("1w", 604_800)]
        {
            assert_eq!(read_interval(text), Ok(seconds));
            assert_eq!(shown(seconds), text);
        }
        for text in ["", "s", "1", "5s", "1y", "h1", "367d", "-1h", "99999999999999999999d", "1ü"]
        {
            assert!(read_interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn schedules_are_bounded_and_kept_in_the_file() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let path = folder.path().join(FILE);
        let mut all = Schedules { path: path.clone(), all: Vec::new() };
        let day = Interval { every_seconds: 86_400, keep: 7 };
        all.set("data", &[day, HOUR], 5000, 2).expect("sets");
        let next: Vec<i64> = all.list(None).iter().map(|one| one.next_seconds).collect();
        assert_eq!(next, [7200, 86_400]);
        assert!(all.set("/", &[HOUR], 5000, 2).is_err());
        assert!(all.set("data", &[HOUR, HOUR], 5000, 9).is_err());
        assert!(all.set("data", &[Interval { keep: 1001, ..HOUR }], 5000, 9).is_err());
        all.note(&all.list(None)[0].clone(), 7200, failed("why")).expect("notes");
        let stored: Stored =
            serde_json::from_slice(&std::fs::read(&path).expect("reads")).expect("is JSON");
        assert_eq!(stored.schedules, all.list(Some("data")));
        // What stays is due as before.
        all.set("data", &[HOUR], 9000, 2).expect("sets");
        assert_eq!(all.list(None)[0].next_seconds, 7260);
        assert_eq!((all.remove("data").expect("removes"), all.list(None).len()), (1, 0));
    }
}

//! What was used: running sums of all attempts that ended, by day, user, queue, host and project.
//!
//! The sums are kept beside the history and committed with it, so they are as durable as it is and a
//! question never reads the history. The day is that on which an attempt ended, on the clocks of the grid's
//! time zone at that time. How long jobs waited is counted in buckets, so medians are right within 2 %.
//!
//! Keys in the store: `u` alone holds the version; `u`, day (4 bytes, big end first, 1970-01-01 being
//! 2^31) and the rest of the key in postcard: one row, in postcard. Memory and disk: at most `ROWS_MAX`
//! rows of about 500 bytes each, of as many days as the settings say; then the oldest days go.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use forebay_grid::account::AttemptRecord;
use forebay_grid::task::Fate;
use forebay_grid::vocabulary::{HostName, Moment, QueueName, UserName};
use forebay_store::{Batch, Store};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::pages;
use crate::protocol::{UsageKey, UsageQuery, UsageRow};

/// The most rows that are kept.
const ROWS_MAX: usize = 100_000;

/// The most projects of a user on a day that have rows of their own: others share one, so that nobody's many
/// names push other days out.
const PROJECTS_MAX: usize = 100;

/// What the projects beyond are counted under.
const OTHER_PROJECTS: &str = "(others)";

/// The most rows of one answer.
const ANSWER_MAX: usize = 20_000;

const VERSION: u8 = 2;
const PREFIX: u8 = b'u';

/// What tells rows from each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    day: i32,
    user: UserName,
    queue: QueueName,
    host: HostName,
    project: String,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    jobs: u64,
    failed: u64,
    attempts: u64,
    real_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
    slot_seconds: f64,
    io_wait_seconds: f64,
    /// Attempts of which it is known how long they waited for I/O.
    io_wait_attempts: u64,
    read_bytes: u64,
    written_bytes: u64,
    peak_memory_bytes: u64,
    /// Buckets by their number, and how many waits lie in them.
    waits: Vec<(u16, u64)>,
    wait_max_ms: u64,
}

/// All rows.
#[derive(Default)]
pub(crate) struct Accounts {
    rows: BTreeMap<Key, Sums>,
    /// Projects that have rows, by day and user.
    projects: BTreeMap<i32, BTreeMap<UserName, BTreeSet<String>>>,
}

/// Each doubling has 32 buckets.
fn bucket_of(ms: u64) -> u16 {
    if ms < 64 {
        return ms as u16;
    }
    let doubling = 63 - ms.leading_zeros();
    let part = (ms >> (doubling - 5)) & 31;
    (64 + (doubling - 6) * 32) as u16 + part as u16
}

/// The middle of a bucket, in milliseconds.
fn middle_of(bucket: u16) -> f64 {
    if bucket < 64 {
        return f64::from(bucket);
    }
    let (doubling, part) = ((bucket - 64) / 32 + 6, (bucket - 64) % 32);
    let width = 2_f64.powi(i32::from(doubling) - 5);
    (32.0 + f64::from(part) + 0.5) * width
}

impl Sums {
    fn add(&mut self, record: &AttemptRecord) {
        self.attempts += 1;
        if let Fate::Finished(_) = record.fate {
            self.jobs += 1;
            let good = record.exit.as_ref().is_some_and(|exit| exit.value() == 0);
            self.failed += u64::from(!good);
        }
        let held_ms = record.ended.since(record.launched);
        self.slot_seconds += f64::from(record.slots) * held_ms as f64 / 1000.0;
        if record.attempt.0 == 1 {
            let waited_ms = record.launched.since(record.submitted);
            let bucket = bucket_of(waited_ms);
            match self.waits.binary_search_by_key(&bucket, |(other, _)| *other) {
                Ok(place) => self.waits[place].1 += 1,
                Err(place) => self.waits.insert(place, (bucket, 1)),
            }
            self.wait_max_ms = self.wait_max_ms.max(waited_ms);
        }
        let Some(usage) = &record.usage else { return };
        self.real_seconds += usage.real_seconds;
        self.user_seconds += usage.user_seconds;
        self.system_seconds += usage.system_seconds;
        if let Some(seconds) = usage.io_wait_seconds {
            self.io_wait_seconds += seconds;
            self.io_wait_attempts += 1;
        }
        self.read_bytes = self.read_bytes.saturating_add(usage.read_bytes.unwrap_or(0));
        self.written_bytes = self.written_bytes.saturating_add(usage.written_bytes.unwrap_or(0));
        self.peak_memory_bytes = self.peak_memory_bytes.max(usage.peak_memory_bytes.unwrap_or(0));
    }

    /// Adds sums, but not their waits.
    fn merge(&mut self, other: &Sums) {
        self.jobs += other.jobs;
        self.failed += other.failed;
        self.attempts += other.attempts;
        self.real_seconds += other.real_seconds;
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
        self.slot_seconds += other.slot_seconds;
        self.io_wait_seconds += other.io_wait_seconds;
        self.io_wait_attempts += other.io_wait_attempts;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.peak_memory_bytes = self.peak_memory_bytes.max(other.peak_memory_bytes);
        self.wait_max_ms = self.wait_max_ms.max(other.wait_max_ms);
    }

    /// The row that these sums and waits make.
    fn row(&self, group: Group, waits: &Waits) -> UsageRow {
        let Group { day, user, queue, host, project } = group;
        let cpu_seconds = self.user_seconds + self.system_seconds;
        let median = waits.median_ms().map(|ms| ms.min(self.wait_max_ms as f64) / 1000.0);
        UsageRow {
            day,
            user,
            queue,
            host,
            project,
            jobs: self.jobs,
            failed: self.failed,
            attempts: self.attempts,
            real_seconds: self.real_seconds,
            user_seconds: self.user_seconds,
            system_seconds: self.system_seconds,
            cpu_per_real: (self.real_seconds > 0.0).then(|| cpu_seconds / self.real_seconds),
            slot_seconds: self.slot_seconds,
            io_wait_seconds: (self.io_wait_attempts > 0).then_some(self.io_wait_seconds),
            io_wait_attempts: self.io_wait_attempts,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            peak_memory_bytes: self.peak_memory_bytes,
            wait_median_seconds: median,
            wait_max_seconds: median.map(|_| self.wait_max_ms as f64 / 1000.0),
        }
    }
}

/// Waits of many rows: every bucket has its place, so that adding is quick.
#[derive(Default)]
struct Waits(Vec<u64>);

impl Waits {
    fn add(&mut self, waits: &[(u16, u64)]) {
        if let Some((last, _)) = waits.last() {
            self.0.resize(self.0.len().max(usize::from(*last) + 1), 0);
        }
        for (bucket, count) in waits {
            self.0[usize::from(*bucket)] += count;
        }
    }

    fn median_ms(&self) -> Option<f64> {
        let all: u64 = self.0.iter().sum();
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen * 2 >= all
        };
        let bucket = self.0.iter().position(reached).filter(|_| all > 0)?;
        u16::try_from(bucket).ok().map(middle_of)
    }
}

/// What a row of an answer stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    day: Option<Date>,
    user: Option<UserName>,
    queue: Option<QueueName>,
    host: Option<HostName>,
    project: Option<String>,
}

const EPOCH: Date = Date::constant(1970, 1, 1);

/// The day of `at` on the clocks of the zone, counted from 1970-01-01.
fn day_of(at: Moment, zone: &TimeZone) -> i32 {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(at.0).unwrap_or(i64::MAX))
        .unwrap_or(jiff::Timestamp::MAX);
    let seconds = time.as_second() + i64::from(zone.to_offset(time).seconds());
    i32::try_from(seconds.div_euclid(86_400)).unwrap_or(i32::MAX)
}

fn number_of(date: Date) -> i32 {
    let hours = EPOCH.at(0, 0, 0, 0).duration_until(date.at(0, 0, 0, 0)).as_hours();
    i32::try_from(hours / 24).unwrap_or(i32::MAX)
}

fn date_of(day: i32) -> Option<Date> {
    EPOCH.checked_add(jiff::SignedDuration::from_hours(i64::from(day) * 24)).ok()
}

fn store_key(key: &Key) -> Result<Vec<u8>> {
    let day = (i64::from(key.day) + (1 << 31)) as u32;
    let rest = postcard::to_stdvec(&(&key.user, &key.queue, &key.host, &key.project))?;
    Ok([&[PREFIX], &day.to_be_bytes()[..], &rest].concat())
}

fn key_of(bytes: &[u8]) -> Result<Key> {
    let (day, rest) =
        bytes.get(1..).and_then(|bytes| bytes.split_first_chunk()).context("a key is too short")?;
    let (user, queue, host, project) = postcard::from_bytes(rest)?;
    let day = (i64::from(u32::from_be_bytes(*day)) - (1 << 31)) as i32;
    Ok(Key { day, user, queue, host, project })
}

impl Accounts {
    /// Reads the sums; makes them from the history if there are none yet.
    ///
    /// # Errors
    /// If the store cannot be read or written, or is damaged.
    pub fn open<S: Store>(
        store: &S,
        zone: &TimeZone,
        days_max: u32,
        history: impl FnOnce(&mut dyn FnMut(AttemptRecord)) -> Result<()>,
    ) -> Result<Accounts> {
        let mut accounts = Accounts::default();
        let mut batch = Batch::default();
        let current = store.get(&[PREFIX])?.as_deref() == Some(&[VERSION]);
        pages::each(store, vec![PREFIX, 0], &[PREFIX + 1], |key, bytes| {
            if !current {
                batch.changes.insert(key.to_vec(), None);
                return Ok(());
            }
            let sums = postcard::from_bytes(bytes).context("a row of the usage")?;
            let key = key_of(key)?;
            let of_day = accounts.projects.entry(key.day).or_default();
            let of_user = of_day.entry(key.user.clone()).or_default();
            of_user.insert(key.project.clone());
            accounts.rows.insert(key, sums);
            Ok(())
        })?;
        if !current {
            let mut failed = Ok(());
            history(&mut |record| {
                if failed.is_ok() {
                    failed = accounts.add(&[&record], zone, days_max, &mut batch);
                }
            })?;
            failed?;
            batch.changes.insert(vec![PREFIX], Some(vec![VERSION]));
            store.commit(&batch)?;
        }
        Ok(accounts)
    }

    /// Adds attempts that ended; `batch` gets what changes in the store.
    ///
    /// # Errors
    /// If a row cannot be written down.
    pub fn add(
        &mut self,
        records: &[&AttemptRecord],
        zone: &TimeZone,
        days_max: u32,
        batch: &mut Batch,
    ) -> Result<()> {
        let mut changed = BTreeSet::new();
        for record in records {
            let day = day_of(record.ended, zone);
            let key = Key {
                day,
                user: record.user.clone(),
                queue: record.queue.clone(),
                host: record.host.clone(),
                project: self.project_of(day, record),
            };
            self.rows.entry(key.clone()).or_default().add(record);
            changed.insert(key);
        }
        for key in changed {
            batch.changes.insert(store_key(&key)?, Some(postcard::to_stdvec(&self.rows[&key])?));
        }
        let days_max = i32::try_from(days_max).unwrap_or(i32::MAX);
        let last = self.rows.last_key_value().map_or(0, |(key, _)| key.day);
        while let Some((key, _)) = self.rows.first_key_value()
            && (self.rows.len() > ROWS_MAX || key.day <= last.saturating_sub(days_max))
        {
            batch.changes.insert(store_key(key)?, None);
            self.rows.pop_first();
        }
        if let Some((first, _)) = self.rows.first_key_value() {
            self.projects = self.projects.split_off(&first.day);
        }
        Ok(())
    }

    /// What an attempt is charged to: its project, or that of the others if its user has many on this day.
    fn project_of(&mut self, day: i32, record: &AttemptRecord) -> String {
        let projects =
            self.projects.entry(day).or_default().entry(record.user.clone()).or_default();
        if projects.contains(&record.project) {
            return record.project.clone();
        }
        if projects.len() >= PROJECTS_MAX {
            return OTHER_PROJECTS.to_owned();
        }
        projects.insert(record.project.clone());
        record.project.clone()
    }

    /// Sums rows up that `visible` lets be seen.
    ///
    /// # Errors
    /// If there are too many rows.
    pub fn answer(
        &self,
        query: &UsageQuery,
        visible: impl Fn(&UserName) -> bool,
    ) -> Result<Vec<UsageRow>, String> {
        let since = query.since.map_or(i32::MIN, number_of);
        let until = query.until.map_or(i32::MAX, number_of);
        let has = |key| query.by.contains(&key);
        let mut groups: BTreeMap<Group, (Sums, Waits)> = BTreeMap::new();
        for (key, sums) in &self.rows {
            if key.day < since || key.day > until || !visible(&key.user) {
                continue;
            }
            let group = Group {
                day: has(UsageKey::Day).then(|| date_of(key.day)).flatten(),
                user: has(UsageKey::User).then(|| key.user.clone()),
                queue: has(UsageKey::Queue).then(|| key.queue.clone()),
                host: has(UsageKey::Host).then(|| key.host.clone()),
                project: has(UsageKey::Project).then(|| key.project.clone()),
            };
            let (all, waits) = groups.entry(group).or_default();
            all.merge(sums);
            waits.add(&sums.waits);
            if groups.len() > ANSWER_MAX {
                return Err(format!(
                    "the result has more than {ANSWER_MAX} rows: use fewer keys in --by, or fewer days"
                ));
            }
        }
        let mut rows: Vec<UsageRow> =
            groups.into_iter().map(|(group, (sums, waits))| sums.row(group, &waits)).collect();
        let part = |row: &UsageRow, key| match key {
            UsageKey::User => row.user.as_ref().map(ToString::to_string),
            UsageKey::Queue => row.queue.as_ref().map(ToString::to_string),
            UsageKey::Day => row.day.map(|day| day.to_string()),
            UsageKey::Host => row.host.as_ref().map(ToString::to_string),
            UsageKey::Project => row.project.clone(),
        };
        let order = |row: &UsageRow| -> Vec<Option<String>> {
            query.by.iter().map(|key| part(row, *key)).collect()
        };
        rows.sort_by_cached_key(order);
        Ok(rows)
    }
}

#[cfg(test)]
mod tests;

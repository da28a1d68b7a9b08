//! Who causes what, as commands show it: what the daemon says, over an interval, grouped and in order.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use forebay_fs::stats::Percentiles;
use serde::{Deserialize, Serialize};

use crate::control::{self, Answer, Ask};

/// What a daemon knows of its work since the mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    /// By who caused it.
    pub causes: Vec<CauseRow>,
    /// By operation.
    pub operations: Vec<OperationRow>,
}

/// What somebody caused in a fileset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CauseRow {
    /// Name of the fileset.
    pub fileset: String,
    /// Number of the user; none for the kernel itself.
    pub uid: Option<u32>,
    /// The job; none if there is none, or it is not known.
    pub job: Option<String>,
    /// Whether it is known that there is no job, or which one.
    pub is_job_known: bool,
    /// What was caused.
    #[serde(flatten)]
    pub work: Work,
}

/// An amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Operations.
    pub operations: u64,
    /// How long they took together, in nanoseconds.
    pub nanoseconds: u64,
    /// Bytes that the daemon read.
    pub read_bytes: u64,
    /// Bytes that the daemon wrote, and by which files grew that the kernel writes itself.
    pub written_bytes: u64,
}

impl Work {
    fn add(&mut self, other: Work) {
        self.operations += other.operations;
        self.nanoseconds += other.nanoseconds;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }

    /// What came since an earlier time.
    pub fn since(self, before: Work) -> Work {
        Work {
            operations: self.operations.saturating_sub(before.operations),
            nanoseconds: self.nanoseconds.saturating_sub(before.nanoseconds),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }

    /// How long it took, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn seconds(&self) -> f64 {
        self.nanoseconds as f64 / 1e9
    }
}

/// How long an operation took in a fileset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OperationRow {
    /// Name of the fileset.
    pub fileset: String,
    /// The operation.
    pub operation: String,
    /// How long all took together, in nanoseconds.
    pub nanoseconds: u64,
    /// Buckets of the histogram that are not empty, with their counts.
    pub buckets: Vec<(usize, u64)>,
}

impl OperationRow {
    /// The difference to an earlier time.
    pub fn since(&self, before: Option<&OperationRow>) -> (Percentiles, f64) {
        let last = self.buckets.last().map_or(0, |(bucket, _)| bucket + 1);
        let mut counts = vec![0; last];
        for (bucket, count) in &self.buckets {
            counts[*bucket] = *count;
        }
        for (bucket, count) in before.iter().flat_map(|before| &before.buckets) {
            if let Some(now) = counts.get_mut(*bucket) {
                *now = now.saturating_sub(*count);
            }
        }
        let earlier = before.map_or(0, |before| before.nanoseconds);
        let work =
            Work { nanoseconds: self.nanoseconds.saturating_sub(earlier), ..Work::default() };
        (Percentiles::of(&counts), work.seconds())
    }
}

/// By what work is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The fileset.
    Fileset,
    /// The user.
    User,
    /// The job, with its user.
    Job,
    /// All of them.
    #[value(skip)]
    All,
}

/// Who caused something, in words; parts that are not grouped by are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Whose {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fileset: String,
}

/// What it is called where there is no job.
const NO_JOB: &str = "-";
/// Where it is not known.
const UNKNOWN: &str = "?";
/// The user of what nobody asked for.
const KERNEL: &str = "(kernel)";

/// Names of users, looked up once.
#[derive(Default)]
pub struct Users(BTreeMap<u32, String>);

impl Users {
    /// The name of a user, or its number.
    pub fn name(&mut self, uid: Option<u32>) -> String {
        let Some(uid) = uid else { return KERNEL.to_owned() };
        let look = || {
            forebay_process::user::name_of(uid).ok().flatten().unwrap_or_else(|| uid.to_string())
        };
        self.0.entry(uid).or_insert_with(look).clone()
    }
}

/// Asks the daemon of a home folder.
pub fn read(home: &Path) -> Result<Activity> {
    match control::ask(home, &Ask::Activity)? {
        Answer::Activity(activity) => Ok(activity),
        _ => bail!("the daemon's answer lacks its activity; is it a different version?"),
    }
}

/// What was caused since `before`, grouped; who caused nothing is left out. What took longest comes first.
pub fn grouped(now: &Activity, before: &Activity, by: By, users: &mut Users) -> Vec<(Whose, Work)> {
    let mut groups = sums(now, by, users);
    for (whose, work) in sums(before, by, users) {
        if let Some(sum) = groups.get_mut(&whose) {
            *sum = sum.since(work);
        }
    }
    let mut rows: Vec<(Whose, Work)> =
        groups.into_iter().filter(|(_, work)| *work != Work::default()).collect();
    rows.sort_by_key(|(_, work)| {
        std::cmp::Reverse((work.nanoseconds, work.read_bytes + work.written_bytes))
    });
    rows
}

fn sums(activity: &Activity, by: By, users: &mut Users) -> BTreeMap<Whose, Work> {
    let mut groups: BTreeMap<Whose, Work> = BTreeMap::new();
    for row in &activity.causes {
        let job = match (&row.job, row.is_job_known) {
            (Some(job), _) => job.as_str(),
            (None, true) => NO_JOB,
            (None, false) => UNKNOWN,
        };
        let mut whose = Whose::default();
        if matches!(by, By::Job | By::All) {
            job.clone_into(&mut whose.job);
        }
        if by != By::Fileset {
            whose.user = users.name(row.uid);
        }
        if matches!(by, By::Fileset | By::All) {
            row.fileset.clone_into(&mut whose.fileset);
        }
        groups.entry(whose).or_default().add(row.work);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fileset: &str, uid: Option<u32>, job: Option<&str>, operations: u64) -> CauseRow {
        let work =
            Work { operations, nanoseconds: operations * 10, read_bytes: 0, written_bytes: 5 };
        CauseRow {
            fileset: fileset.to_owned(),
            uid,
            job: job.map(str::to_owned),
            is_job_known: uid.is_some(),
            work,
        }
    }

    #[test]
    fn work_of_an_interval_is_grouped_and_the_longest_comes_first() {
        let before = Activity { causes: vec![row("a", Some(0), None, 10)], operations: Vec::new() };
        let causes = vec![
            row("a", Some(0), None, 10),
            row("b", Some(0), Some("7"), 100),
            row("a", Some(0), Some("7"), 1),
            row("a", None, None, 3),
        ];
        let now = Activity { causes, operations: Vec::new() };
        let mut users = Users::default();
        let found = |by, users: &mut Users| -> Vec<(String, u64)> {
            let name = |whose: &Whose| format!("{}:{}:{}", whose.job, whose.user, whose.fileset);
            grouped(&now, &before, by, users)
                .iter()
                .map(|(whose, work)| (name(whose), work.operations))
                .collect()
        };
        let wanted = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
            rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        assert_eq!(found(By::Fileset, &mut users), wanted(&[("::b", 100), ("::a", 4)]));
        assert_eq!(found(By::User, &mut users), wanted(&[(":root:", 101), (":(kernel):", 3)]));
        assert_eq!(found(By::Job, &mut users), wanted(&[("7:root:", 101), ("?:(kernel):", 3)]));
    }

    #[test]
    fn latencies_of_an_interval_are_those_that_came() {
        let buckets = |buckets: &[(usize, u64)]| OperationRow {
            nanoseconds: 100,
            buckets: buckets.to_vec(),
            ..OperationRow::default()
        };
        let (found, seconds) =
            buckets(&[(3, 5), (90, 7)]).since(Some(&buckets(&[(3, 5), (90, 1)])));
        assert_eq!(found.count, 6);
        assert!(found.p50_us > 0.1 && seconds.abs() < 1e-12);
        assert_eq!(buckets(&[]).since(None).0.count, 0);
    }
}

//! The past: a file of samples for each subject, which [`collect`] fills.
//!
//! Subjects are the grid, the file system, and each host, queue and fileset, up to `subjects_max` of those; running jobs have a file of their
//! own ([`runs`]). Samples survive the end of the process, however it comes; after a crash of the machine the latest seconds may be missing.

pub mod collect;
pub mod errors;
pub mod ring;
pub mod runs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::Moment;
use parking_lot::Mutex;

use self::ring::{COARSE_SECONDS, Grain, Layout, Ring, Sample, mean};
use crate::api::views::Samples;
use crate::settings;

/// The most points that are read at once.
pub const POINTS_MAX: usize = 1000;

/// Values of the grid.
pub const GRID: &[&str] = &[
    "slots",
    "used_slots",
    "pending_tasks",
    "held_tasks",
    "active_tasks",
    "hosts_up",
    "hosts_unreachable",
    "jobs_per_minute",
    "failed_per_minute",
];
/// Values of the file system.
pub const FILES: &[&str] = &[
    "operations_per_second",
    "read_bytes_per_second",
    "written_bytes_per_second",
    "latency_mean_seconds",
    "latency_p99_seconds",
    "waiting",
    "commit_age_seconds",
    "uncommitted",
    "total_bytes",
    "free_bytes",
];
/// Values of a host.
pub const HOST: &[&str] = &["slots", "used_slots", "load", "processors_used", "up"];
/// Values of a queue.
pub const QUEUE: &[&str] = &["used_slots", "pending_tasks", "held_tasks", "active_tasks"];
/// Values of a fileset.
pub const FILESET: &[&str] = &["bytes", "inodes"];

/// The names of the values of a subject; none if it cannot be one.
#[must_use]
pub fn columns(subject: &str) -> Option<&'static [&'static str]> {
    match subject.split_once('/') {
        None if subject == "grid" => Some(GRID),
        None if subject == "files" => Some(FILES),
        Some(("host", name)) if !name.is_empty() => Some(HOST),
        Some(("queue", name)) if !name.is_empty() => Some(QUEUE),
        Some(("fileset", name)) if !name.is_empty() => Some(FILESET),
        _ => None,
    }
}

/// All files of samples.
pub struct History {
    folder: PathBuf,
    settings: settings::History,
    rings: Mutex<BTreeMap<String, Ring>>,
}

/// The name of a subject's file.
fn file_name(subject: &str) -> String {
    let mut name = String::new();
    for byte in subject.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "-{byte:02x}");
        }
    }
    name + ".ring"
}

/// The subject of a file.
fn subject_of(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.strip_suffix(".ring")?.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'-' {
            let pair = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|subject| columns(subject).is_some())
}

impl History {
    /// Opens what there is in a folder.
    ///
    /// # Errors
    /// If the folder cannot be made or read.
    pub fn open(folder: &Path, settings: settings::History) -> Result<History> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let history = History { folder: folder.to_owned(), settings, rings: Mutex::default() };
        for entry in std::fs::read_dir(folder)?.flatten() {
            let subject = entry.file_name().to_str().and_then(subject_of);
            if let Some(subject) = subject {
                history.ring(&subject)?;
            }
        }
        Ok(history)
    }

    fn layout(&self, columns: usize) -> Result<Layout> {
        let interval = self.settings.interval.as_ms().div_ceil(1000).max(1);
        Ok(Layout {
            columns: u32::try_from(columns)?,
            fine_seconds: u32::try_from(interval)?,
            fine: u32::try_from((self.settings.fine_age.as_ms() / 1000 / interval).max(12))?,
            coarse: u32::try_from(self.settings.coarse_age.as_ms() / 1000 / COARSE_SECONDS)?,
        })
    }

    /// Opens or makes the file of a subject, unless there are too many.
    fn ring(&self, subject: &str) -> Result<bool> {
        let mut rings = self.rings.lock();
        if rings.contains_key(subject) {
            return Ok(true);
        }
        let Some(columns) = columns(subject) else { return Ok(false) };
        let named = rings.keys().filter(|subject| subject.contains('/')).count();
        if subject.contains('/') && named >= self.settings.subjects_max as usize {
            return Ok(false);
        }
        let ring = Ring::open(&self.folder.join(file_name(subject)), self.layout(columns.len())?)?;
        rings.insert(subject.to_owned(), ring);
        Ok(true)
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&self, subject: &str, time: u64, values: &[f64]) -> Result<()> {
        if self.ring(subject)?
            && let Some(ring) = self.rings.lock().get(subject)
        {
            ring.add(time, values).with_context(|| format!("samples of {subject}"))?;
        }
        Ok(())
    }

    /// All subjects.
    #[must_use]
    pub fn subjects(&self) -> Vec<String> {
        self.rings.lock().keys().cloned().collect()
    }

    /// The latest `seconds` of a subject; none if there is no such subject.
    #[must_use]
    pub fn read(&self, subject: &str, now: Moment, seconds: u64) -> Option<Samples> {
        let names = columns(subject)?;
        let to = now.0 / 1000;
        let from = to.saturating_sub(seconds);
        let is_fine = seconds <= self.settings.fine_age.as_ms() / 1000;
        let interval = self.settings.interval.as_ms().div_ceil(1000).max(1);
        let (grain, step) =
            if is_fine { (Grain::Fine, interval) } else { (Grain::Coarse, COARSE_SECONDS) };
        let rings = self.rings.lock();
        let found = rings.get(subject)?.read(grain, from, to).unwrap_or_else(|error| {
            tracing::warn!("samples of {subject}: {error:#}");
            Vec::new()
        });
        drop(rings);
        let (step, samples) = thinned(found, (from, to), step, names.len());
        let value = |number: f64| Some(number).filter(|number| number.is_finite());
        let values = names.iter().enumerate().map(|(column, name)| {
            let of_column = samples.iter().map(|(_, values)| value(values[column]));
            ((*name).to_owned(), of_column.collect())
        });
        Some(Samples {
            subject: subject.to_owned(),
            step_seconds: step,
            values: values.collect(),
            times: samples.iter().map(|(time, _)| *time).collect(),
        })
    }
}

/// At most [`POINTS_MAX`] samples: means of several where there are more.
fn thinned(
    samples: Vec<Sample>,
    (from, to): (u64, u64),
    step: u64,
    columns: usize,
) -> (u64, Vec<Sample>) {
    let points = (to - from) / step + 1;
    let every = points.div_ceil(POINTS_MAX as u64);
    if every <= 1 {
        return (step, samples);
    }
    let wide = step * every;
    let mut groups: BTreeMap<u64, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        groups.entry(sample.0 / wide * wide).or_default().push(sample);
    }
    (wide, groups.into_iter().map(|(time, group)| (time, mean(&group, columns))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_again_after_a_restart_and_thinned_over_a_month() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings::History { subjects_max: 1, ..settings::History::default() };
        let history = History::open(folder.path(), settings).unwrap();
        let now = 1_800_000_000;
        for number in 0..24_u64 {
            history.add("host/a.b-c", now - 115 + number * 5, &[4.0, 1.0, 0.5, 0.25, 1.0]).unwrap();
        }
        history.add("host/second", now, &[1.0; 5]).unwrap();
        history.add("nonsense", now, &[1.0]).unwrap();
        drop(history);
        let history = History::open(folder.path(), settings).unwrap();
        assert_eq!(history.subjects(), ["host/a.b-c"], "one subject with a name is the most");
        let hour = history.read("host/a.b-c", Moment(now * 1000), 3600).unwrap();
        assert_eq!((hour.step_seconds, hour.times.len()), (5, 24));
        assert_eq!(hour.values["load"][0], Some(0.5));
        let month = history.read("host/a.b-c", Moment(now * 1000), 30 * 86_400).unwrap();
        assert!(month.times.len() <= 2 && month.step_seconds > 2000, "{month:?}");
        assert!(history.read("host/none", Moment(now * 1000), 60).is_none());
    }

    #[test]
    fn a_subject_is_read_back_from_the_name_of_its_file() {
        for subject in ["grid", "host/a.b-c", "queue/x_1", "fileset/a b/é"] {
            assert_eq!(subject_of(&file_name(subject)).as_deref(), Some(subject));
        }
        for name in ["x", "grid", "host.ring", "host-2.ring", "-ff.ring"] {
            assert_eq!(subject_of(name), None);
        }
    }
}

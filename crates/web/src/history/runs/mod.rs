//! What running jobs used over time, as far as the server saw it.
//!
//! Up to `history.runs_max` runs are kept, of which those that were heard of least recently give way to further ones, each with up to `POINTS_MAX`
//! points. Where a run has more, neighbouring points become one of twice the length, so a run of any length is seen as a whole. Everything is
//! in memory, and in a file of fixed size ([`file`]) from which a server that starts again takes it.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use forebay_base::Usage;
use forebay_engine::protocol::JobView;
use forebay_grid::vocabulary::Moment;
use parking_lot::Mutex;

use self::file::{Found, RunFile, fits};

/// The most points of a run.
const POINTS_MAX: usize = 240;

/// How far the clocks of the controller and of this server may be apart.
const CLOCKS_MS: u64 = 60_000;

/// The shortest time for which what a run did last is current: hosts say it every few seconds.
const CURRENT_MS: u64 = 30_000;

/// What a run did in a stretch of time: means of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// End of the stretch, in seconds since the start of the run.
    pub end: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// Processors in use.
    pub processors: f64,
    /// Share of the time in which something of it waited for I/O; not a number if that is not known.
    pub io_wait: f64,
    /// Bytes read in a second, likewise.
    pub read: f64,
    /// Bytes written in a second, likewise.
    pub written: f64,
}

/// What a run had used in all at some time; not a number where that is not known.
#[derive(Clone, Copy, Debug)]
struct Seen {
    real: f64,
    processor: f64,
    io_wait: f64,
    read: f64,
    written: f64,
}

impl Default for Seen {
    /// Before its first word a run had done nothing.
    fn default() -> Seen {
        Seen { real: 0.0, processor: 0.0, io_wait: 0.0, read: 0.0, written: 0.0 }
    }
}

impl From<Usage> for Seen {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn from(usage: Usage) -> Seen {
        let bytes = |number: Option<u64>| number.map_or(f64::NAN, |number| number as f64);
        Seen {
            real: usage.real_seconds,
            processor: usage.cpu_seconds(),
            io_wait: usage.io_wait_seconds.or(usage.io_pressure_seconds).unwrap_or(f64::NAN),
            read: bytes(usage.read_bytes),
            written: bytes(usage.written_bytes),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Run {
    /// When it was first heard of; tells it from other runs of its place.
    birth: Moment,
    attempt: u32,
    /// When it was last heard of.
    heard: Moment,
    last: Seen,
    /// What it did last, and when that was said; not known after a start of the server.
    lately: Option<(Moment, Point)>,
    /// The length in seconds up to which the latest point grows before a new one begins; 0 while there is room for all.
    stretch: f64,
    points: Vec<Point>,
}

/// The runs of tasks, by their numbers as users see them.
pub struct Runs {
    file: RunFile,
    shelf: Mutex<Shelf>,
}

/// What is in memory.
struct Shelf {
    runs: BTreeMap<String, Kept>,
    /// Places of the file that hold no run.
    free: Vec<usize>,
}

/// A run, and its place in the file.
struct Kept {
    place: usize,
    run: Run,
}

impl Runs {
    /// Opens or makes the file, for `runs_max` runs.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(path: &Path, runs_max: u32) -> Result<Runs> {
        let places = runs_max as usize;
        let (file, found) = RunFile::open(path, places)?;
        let mut runs: BTreeMap<String, Kept> = BTreeMap::new();
        for Found { place, id, run } in found {
            // A run that gave way stays in its place until that is written again.
            if runs.get(&id).is_none_or(|other| other.run.heard < run.heard) {
                runs.insert(id, Kept { place, run });
            }
        }
        let taken: BTreeSet<usize> = runs.values().map(|kept| kept.place).collect();
        let free = (0..places).rev().filter(|place| !taken.contains(place)).collect();
        Ok(Runs { file, shelf: Mutex::new(Shelf { runs, free }) })
    }

    /// Takes what the hosts said last of running jobs.
    ///
    /// # Errors
    /// If some of it cannot be written; it is in memory then.
    pub fn take(&self, now: Moment, jobs: &[JobView]) -> Result<()> {
        let mut shelf = self.shelf.lock();
        let mut written = Ok(());
        for job in jobs {
            let known = job.usage.filter(|_| job.started.is_some() && fits(&job.id));
            let Some(usage) = known else { continue };
            let Some(kept) = shelf.run(&job.id, now) else { continue };
            if kept.run.is_another(job, usage) {
                kept.run = Run { birth: now, attempt: job.attempts, ..Run::default() };
            }
            kept.run.heard = now;
            if let Some(from) = kept.run.add(usage.into()) {
                written = written.and(self.file.write(kept.place, (&job.id, &kept.run), from));
            }
        }
        written
    }

    /// What a task did lately, as the server takes it in every `interval_ms`; none if nothing is known of it, or not of lately.
    #[must_use]
    pub fn latest(&self, id: &str, now: Moment, interval_ms: u64) -> Option<Point> {
        let (at, point) = self.shelf.lock().runs.get(id)?.run.lately?;
        let age_max = interval_ms.saturating_mul(3).max(CURRENT_MS);
        (now.since(at) <= age_max).then_some(point)
    }

    /// The points of a task's last run that was seen, and which start of the task it is; none if nothing is known of it.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<(u32, Vec<Point>)> {
        let shelf = self.shelf.lock();
        let run = &shelf.runs.get(id).filter(|kept| !kept.run.points.is_empty())?.run;
        Some((run.attempt, run.points.clone()))
    }
}

impl Shelf {
    /// The run of this number, in a free place or that of a run of which nothing was heard for longest; none if all others run.
    fn run(&mut self, id: &str, now: Moment) -> Option<&mut Kept> {
        if !self.runs.contains_key(id) {
            let place = self.free.pop().or_else(|| self.give_way(now))?;
            self.runs.insert(id.to_owned(), Kept { place, run: Run::default() });
        }
        self.runs.get_mut(id)
    }

    fn give_way(&mut self, now: Moment) -> Option<usize> {
        let (id, oldest) = self.runs.iter().min_by_key(|(_, kept)| kept.run.heard)?;
        let id = (oldest.run.heard < now).then(|| id.clone())?;
        self.runs.remove(&id).map(|kept| kept.place)
    }
}

impl Run {
    /// Whether a job of this number is not the one that was seen before: it was started again, or numbers were given anew.
    fn is_another(&self, job: &JobView, usage: Usage) -> bool {
        let is_later = |started: Moment| started.since(self.heard) > CLOCKS_MS;
        self.attempt != job.attempts
            || usage.real_seconds < self.last.real
            || job.started.is_some_and(is_later)
    }

    /// Adds what was used since the word before; from which point on the points are new, if any is.
    #[expect(clippy::cast_precision_loss, reason = "a few points")]
    fn add(&mut self, now: Seen) -> Option<usize> {
        let seconds = now.real - self.last.real;
        // Hosts say it every few seconds: what was said is listed until then.
        if seconds.is_nan() || seconds <= 0.0 {
            return None;
        }
        // Not a number if one of the two is not known.
        let rate = |of: fn(&Seen) -> f64| {
            let rate = (of(&now) - of(&self.last)) / seconds;
            if rate < 0.0 { 0.0 } else { rate }
        };
        let point = Point {
            end: now.real,
            seconds,
            processors: rate(|seen| seen.processor),
            io_wait: rate(|seen| seen.io_wait),
            read: rate(|seen| seen.read),
            written: rate(|seen| seen.written),
        };
        self.last = now;
        self.lately = Some((self.heard, point));
        match self.points.last_mut() {
            Some(latest) if latest.seconds + seconds <= self.stretch => {
                *latest = merged(&[*latest, point]);
            }
            _ => self.points.push(point),
        }
        if self.points.len() > POINTS_MAX {
            self.points = self.points.chunks(2).map(merged).collect();
            // A little more than the mean: hosts do not report to the second.
            self.stretch = now.real / self.points.len() as f64 * 1.1;
            return Some(0);
        }
        Some(self.points.len() - 1)
    }
}

/// One point of some that follow each other.
fn merged(points: &[Point]) -> Point {
    let seconds: f64 = points.iter().map(|point| point.seconds).sum();
    let mean = |of: fn(&Point) -> f64| {
        points.iter().map(|point| of(point) * point.seconds).sum::<f64>() / seconds
    };
    Point {
        end: points.last().map_or(0.0, |point| point.end),
        seconds,
        processors: mean(|point| point.processors),
        io_wait: mean(|point| point.io_wait),
        read: mean(|point| point.read),
        written: mean(|point| point.written),
    }
}

#[cfg(test)]
mod tests {
    use forebay_grid::state::JobState;

    use super::*;

    fn job(id: &str, attempts: u32, real_seconds: f64, read_bytes: Option<u64>) -> JobView {
        JobView {
            id: id.to_owned(),
            name: String::new(),
            group: None,
            user: "ann".parse().unwrap(),
            queue: "normal".parse().unwrap(),
            state: JobState::Running,
            tasks: 1,
            host: None,
            attempts,
            slots: 1,
            exit: None,
            submitted: Moment(0),
            started: Some(Moment(0)),
            ended: None,
            command: Vec::new(),
            output: String::new(),
            error: None,
            usage: Some(Usage {
                real_seconds,
                user_seconds: real_seconds,
                read_bytes,
                ..Usage::default()
            }),
            asked: None,
            service: None,
        }
    }

    fn opened(folder: &tempfile::TempDir, runs_max: u32) -> Runs {
        Runs::open(&folder.path().join("runs"), runs_max).unwrap()
    }

    #[test]
    fn points_are_what_was_used_since_the_word_before_and_a_new_start_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let runs = opened(&folder, 5);
        runs.take(Moment(1), &[job("7", 1, 2.0, Some(200))]).unwrap();
        runs.take(Moment(2), &[job("7", 1, 2.0, Some(200))]).unwrap();
        let both = [job("7", 1, 4.0, Some(1200)), job("8", 1, 1.0, None)];
        runs.take(Moment(3), &both).unwrap();
        let check = |runs: &Runs| {
            let (attempt, points) = runs.of("7").unwrap();
            assert_eq!(attempt, 1);
            let read: Vec<(f64, f64, f64)> =
                points.iter().map(|point| (point.end, point.read, point.processors)).collect();
            assert_eq!(read, [(2.0, 100.0, 1.0), (4.0, 500.0, 1.0)]);
            assert!(points[0].written.is_nan() && runs.of("8").unwrap().1[0].read.is_nan());
        };
        check(&runs);
        drop(runs);
        let runs = opened(&folder, 5);
        check(&runs);
        runs.take(Moment(4), &[job("7", 1, 5.0, Some(1250)), job("8", 2, 1.0, Some(5))]).unwrap();
        drop(runs);
        let runs = opened(&folder, 5);
        let (_, points) = runs.of("7").unwrap();
        assert_eq!((points.len(), points[2].read), (3, 50.0), "it goes on where it was");
        let (attempt, points) = runs.of("8").unwrap();
        assert_eq!((attempt, points.len(), points[0].read), (2, 1, 5.0));
        assert!(runs.of("9").is_none());
    }

    #[test]
    fn a_number_that_was_given_anew_is_a_new_run() {
        let folder = tempfile::tempdir().unwrap();
        let runs = opened(&folder, 5);
        let (at, end) = (Moment(1_000_000), |runs: &Runs| runs.of("7").unwrap().1[0].end);
        runs.take(at, &[job("7", 1, 50.0, None)]).unwrap();
        runs.take(Moment(at.0 + 1), &[job("7", 1, 3.0, None)]).unwrap();
        assert_eq!((end(&runs), runs.of("7").unwrap().1.len()), (3.0, 1), "it ran for less");
        let started = Some(Moment(at.0 + 100_000));
        let later = JobView { started, ..job("7", 1, 9.0, None) };
        runs.take(Moment(at.0 + 109_000), &[later]).unwrap();
        assert_eq!((end(&runs), runs.of("7").unwrap().1.len()), (9.0, 1), "it began later");
    }

    #[test]
    fn what_a_run_did_last_is_current_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let runs = opened(&folder, 5);
        runs.take(Moment(1_000), &[job("7", 1, 2.0, Some(200))]).unwrap();
        let read =
            |now, interval_ms| runs.latest("7", Moment(now), interval_ms).map(|point| point.read);
        assert_eq!(read(31_000, 5_000), Some(100.0));
        assert_eq!(read(31_001, 5_000), None);
        assert_eq!(read(31_001, 60_000), Some(100.0));
    }

    #[test]
    fn a_long_run_and_many_runs_keep_within_their_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let runs = opened(&folder, 3);
        for second in 1..=2_000_u32 {
            let word = job("7", 1, second.into(), Some(u64::from(second) * 10));
            runs.take(Moment(1), &[word]).unwrap();
        }
        let (_, points) = runs.of("7").unwrap();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        let all: f64 = points.iter().map(|point| point.seconds * point.read).sum();
        assert!((all - 20_000.0).abs() < 1e-6);
        assert!((points.last().unwrap().end - 2_000.0).abs() < 1e-6);
        let size = std::fs::metadata(folder.path().join("runs")).unwrap().len();
        drop(runs);
        let runs = opened(&folder, 3);
        // Not all values are known, and such are never equal.
        let known = |points: &[Point]| -> Vec<(f64, f64)> {
            points.iter().map(|point| (point.end, point.read)).collect()
        };
        assert_eq!(known(&runs.of("7").unwrap().1), known(&points));
        let lengths = points.iter().map(|point| point.seconds);
        let longest = lengths.fold(0.0, f64::max);
        assert!((8.0..=18.0).contains(&longest), "{longest}: all are of about the same length");
        for number in 0..3_u64 {
            runs.take(Moment(number + 2), &[job(&format!("{number}.1"), 1, 1.0, None)]).unwrap();
        }
        assert!(runs.of("7").is_none(), "the one that was heard of least recently is forgotten");
        let jobs: Vec<JobView> =
            (0..4).map(|number| job(&format!("{number}.1"), 1, 2.0, None)).collect();
        runs.take(Moment(9), &jobs).unwrap();
        assert!(runs.of("0.1").is_some() && runs.of("3.1").is_none(), "those that run stay");
        assert_eq!(std::fs::metadata(folder.path().join("runs")).unwrap().len(), size);
        assert!(opened(&folder, 0).of("7").is_none());
    }
}

//! What running jobs used over time: kept in memory, since the server looked first.
//!
//! Memory is bounded: [`RUNS_MAX`] runs, of which those that were heard of least recently are forgotten first, each with up to `POINTS_MAX` points.
//! Where a run has more, neighbouring points become one of twice the length, so a run of any length is seen as a whole.

use std::collections::BTreeMap;

use forebay_base::Usage;
use forebay_engine::protocol::JobView;
use forebay_grid::vocabulary::Moment;
use parking_lot::Mutex;

/// The most runs that are kept.
pub const RUNS_MAX: usize = 1000;
/// The most points of a run.
const POINTS_MAX: usize = 240;

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

#[derive(Default)]
struct Run {
    attempt: u32,
    /// When it was last heard of.
    heard: Moment,
    last: Usage,
    points: Vec<Point>,
}

/// The runs of tasks, by their numbers as users see them.
#[derive(Default)]
pub struct Runs(Mutex<BTreeMap<String, Run>>);

impl Runs {
    /// Takes what the hosts said last of running jobs.
    pub fn take(&self, now: Moment, jobs: &[JobView]) {
        let mut runs = self.0.lock();
        for job in jobs {
            let Some(usage) = job.usage.filter(|_| job.started.is_some()) else { continue };
            let run = runs.entry(job.id.clone()).or_default();
            if run.attempt != job.attempts {
                *run = Run { attempt: job.attempts, ..Run::default() };
            }
            run.heard = now;
            run.add(usage);
        }
        while runs.len() > RUNS_MAX {
            let oldest = runs.iter().min_by_key(|(_, run)| run.heard).map(|(id, _)| id.clone());
            oldest.map(|id| runs.remove(&id));
        }
    }

    /// The points of a task's last run that was seen, and which start of the task it is; none if nothing is known of it.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<(u32, Vec<Point>)> {
        let runs = self.0.lock();
        let run = runs.get(id).filter(|run| !run.points.is_empty())?;
        Some((run.attempt, run.points.clone()))
    }
}

impl Run {
    fn add(&mut self, now: Usage) {
        let seconds = now.real_seconds - self.last.real_seconds;
        // Hosts say it every few seconds: what was said is listed until then.
        if seconds <= 0.0 {
            return;
        }
        let rate = |of: fn(&Usage) -> Option<f64>| match (of(&self.last), of(&now)) {
            (Some(before), Some(now)) => ((now - before) / seconds).max(0.0),
            // Nothing is known before its first word, and then it had done nothing.
            (None, Some(now)) if self.points.is_empty() => now / seconds,
            _ => f64::NAN,
        };
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let point = Point {
            end: now.real_seconds,
            seconds,
            processors: rate(|usage| Some(usage.cpu_seconds())),
            io_wait: rate(|usage| usage.io_wait_seconds.or(usage.io_pressure_seconds)),
            read: rate(|usage| usage.read_bytes.map(|bytes| bytes as f64)),
            written: rate(|usage| usage.written_bytes.map(|bytes| bytes as f64)),
        };
        self.last = now;
        self.points.push(point);
        if self.points.len() > POINTS_MAX {
            self.points = self.points.chunks(2).map(merged).collect();
        }
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

    #[test]
    fn points_are_what_was_used_since_the_word_before_and_a_new_start_begins_anew() {
        let runs = Runs::default();
        runs.take(Moment(1), &[job("7", 1, 2.0, Some(200))]);
        runs.take(Moment(2), &[job("7", 1, 2.0, Some(200))]);
        runs.take(Moment(3), &[job("7", 1, 4.0, Some(1200)), job("8", 1, 1.0, None)]);
        let (attempt, points) = runs.of("7").unwrap();
        assert_eq!(attempt, 1);
        let read: Vec<(f64, f64, f64)> =
            points.iter().map(|point| (point.end, point.read, point.processors)).collect();
        assert_eq!(read, [(2.0, 100.0, 1.0), (4.0, 500.0, 1.0)]);
        assert!(points[0].written.is_nan() && runs.of("8").unwrap().1[0].read.is_nan());
        runs.take(Moment(4), &[job("7", 2, 1.0, Some(5))]);
        let (attempt, points) = runs.of("7").unwrap();
        assert_eq!((attempt, points.len(), points[0].read), (2, 1, 5.0));
        assert!(runs.of("9").is_none());
    }

    #[test]
    fn a_long_run_and_many_runs_keep_within_their_bounds() {
        let runs = Runs::default();
        for second in 1..=10_000_u32 {
            runs.take(Moment(0), &[job("7", 1, second.into(), Some(u64::from(second) * 10))]);
        }
        let (_, points) = runs.of("7").unwrap();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        let all: f64 = points.iter().map(|point| point.seconds * point.read).sum();
        assert!(
            (all - 100_000.0).abs() < 1e-6 && (points.last().unwrap().end - 10_000.0).abs() < 1e-6
        );
        for number in 0..RUNS_MAX {
            let now = Moment(number as u64 + 1);
            runs.take(now, &[job(&format!("{number}.1"), 1, 1.0, None)]);
        }
        assert!(runs.of("7").is_none(), "the one that was heard of least recently is forgotten");
        assert!(runs.of("0.1").is_some());
    }
}

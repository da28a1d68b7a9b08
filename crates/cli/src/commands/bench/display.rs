//! What a run shows while it runs: one line that changes on a terminal, a line now and then otherwise.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_study::record::Sample;
use forebay_study::run::{JobCounts, Progress};

/// Time between two lines on a terminal, and otherwise.
const ON_TERMINAL: Duration = Duration::from_millis(500);
const IN_LOGS: Duration = Duration::from_secs(10);

/// Shows progress on standard error.
pub struct Display {
    terminal: bool,
    shown: Option<(Instant, String)>,
}

impl Display {
    pub fn new() -> Display {
        Display { terminal: std::io::stderr().is_terminal(), shown: None }
    }

    /// Shows `progress`, if the last line is old enough or of something else.
    pub fn show(&mut self, progress: &Progress) {
        let (what, line) = match progress {
            Progress::Hosts { silent } => {
                ("hosts".to_owned(), format!("waiting for the watchers of {}", silent.join(", ")))
            }
            Progress::Preparing { subject, counts } => (
                format!("inputs on {subject}"),
                format!("creating inputs: {} of {} done", counts.done, counts.total),
            ),
            Progress::Running { subject, round, stage, seconds, counts, sample } => (
                format!("{subject}, {stage}, round {}", round + 1),
                running(*seconds, *counts, sample),
            ),
            Progress::Left(path) => {
                self.end();
                note!("left: {}", path.display());
                return;
            }
        };
        let every = if self.terminal { ON_TERMINAL } else { IN_LOGS };
        let now = SystemClock.instant();
        let due = self.shown.as_ref().is_none_or(|(at, shown)| {
            *shown != what || now.saturating_duration_since(*at) >= every
        });
        if !due {
            return;
        }
        if self.terminal {
            let plain = format!("{what}: {line}");
            crate::output::put_aside(&format!("\r{}\x1b[K", crate::output::on_one_line(&plain)));
            let _ = std::io::stderr().flush();
        } else {
            note!("{what}: {line}");
        }
        self.shown = Some((now, what));
    }

    /// Leaves the line behind.
    pub fn end(&mut self) {
        if self.shown.take().is_some() && self.terminal {
            note!("");
        }
    }
}

fn running(seconds: f64, counts: JobCounts, sample: &Option<Box<Sample>>) -> String {
    let seconds = seconds as u64;
    let mut line = format!(
        "{}:{:02}  {} waiting, {} running, {} of {} done",
        seconds / 60,
        seconds % 60,
        counts.waiting,
        counts.running,
        counts.done,
        counts.total
    );
    if counts.failed > 0 {
        line += &format!(", {} FAILED", counts.failed);
    }
    if let Some(sample) = sample {
        let rate = |bytes: u64| bytes as f64 / 1e6 / sample.seconds.max(f64::MIN_POSITIVE);
        line += &format!(
            "  read {:.0} MB/s, write {:.0} MB/s  CPU {:.0} %, I/O wait {:.0} %",
            rate(sample.file_read_bytes),
            rate(sample.file_written_bytes),
            (sample.cpu_user + sample.cpu_system) * 100.0,
            sample.cpu_io_wait * 100.0
        );
    }
    line
}

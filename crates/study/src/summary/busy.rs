//! The busy period of a stage: when most of its jobs ran at once.
//!
//! How many jobs run at a moment is known exactly from their starts and ends. The *plateau* is the
//! largest number of jobs that ran at once for a tenth of the time from the first start to the last
//! end. The busy period begins when nine tenths of the plateau are reached first and ends when
//! they are left for good; a dip in between belongs to it. If that is less than a quarter of the
//! time, as when jobs come and go like a mountain, there is no plateau, and the busy period is all of
//! the time.

use std::collections::BTreeMap;

use super::{Period, PeriodBasis};
use crate::record::{Sample, Stage};

/// Part of the time for which the plateau is held.
const HELD: f64 = 0.1;
/// Part of the plateau that is busy enough.
const NEAR: f64 = 0.9;
/// Part of the time that a busy period takes at least.
const SHARE: f64 = 0.25;

/// So many jobs ran from one time to another.
struct Span {
    start: f64,
    end: f64,
    jobs: usize,
}

/// The busy period of `stage`; `None` if no job ran for any time.
pub(super) fn of_stage(stage: &Stage) -> Option<Period> {
    let spans = spans(stage);
    let (first, last) = (spans.first()?.start, spans.last()?.end);
    let mut held: BTreeMap<usize, f64> = BTreeMap::new();
    for span in &spans {
        *held.entry(span.jobs).or_default() += span.end - span.start;
    }
    let mut above = 0.0;
    let plateau = held.iter().rev().find(|(_, seconds)| {
        above += *seconds;
        above >= (last - first) * HELD
    });
    // Between jobs that are far apart most of the time has none: one at once is their plateau.
    let plateau_jobs = (*plateau?.0).max(1);
    let enough = (plateau_jobs as f64 * NEAR).ceil() as usize;
    let start = spans.iter().find(|span| span.jobs >= enough)?.start;
    let end = spans.iter().rfind(|span| span.jobs >= enough)?.end;
    Some(if end - start >= (last - first) * SHARE {
        let basis = PeriodBasis::Plateau;
        Period { start_seconds: start, end_seconds: end, plateau_jobs, basis }
    } else {
        let basis = PeriodBasis::AllJobs;
        Period { start_seconds: first, end_seconds: last, plateau_jobs, basis }
    })
}

/// The times between starts and ends in order, with the jobs that ran; the first and the last have some.
fn spans(stage: &Stage) -> Vec<Span> {
    let mut changes: Vec<(f64, isize)> = Vec::new();
    for job in &stage.jobs {
        let Some(start) = job.start_seconds else { continue };
        let end = job.end_seconds.unwrap_or(stage.end_seconds);
        if end > start {
            changes.extend([(start, 1), (end, -1)]);
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut running = 0_isize;
    let mut spans = Vec::new();
    for pair in changes.windows(2) {
        running += pair[0].1;
        let (start, end) = (pair[0].0, pair[1].0);
        if end > start {
            spans.push(Span { start, end, jobs: usize::try_from(running).unwrap_or(0) });
        }
    }
    spans
}

impl Period {
    /// Its length.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_seconds - self.start_seconds
    }

    /// Whether the middle of the sample's interval lies in it.
    #[must_use]
    pub fn holds(&self, sample: &Sample) -> bool {
        let middle = sample.at_seconds - sample.seconds / 2.0;
        (self.start_seconds..self.end_seconds).contains(&middle)
    }
}

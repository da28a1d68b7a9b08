//! The one rate that stands for a stage, and what its streams were.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{RunSummary, StageSummary, StepFigure};
use crate::record::{Record, Stage};

/// The rate of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageRate {
    /// The rate in `unit`.
    pub value: f64,
    /// `MB/s` or `files/s`.
    pub unit: &'static str,
    /// What was done at this rate: `read`, `written`, `read and written`, `created`.
    pub what: &'static str,
    /// Where it comes from.
    pub source: RateSource,
}

/// Where the rate of a stage comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateSource {
    /// The streams measured it themselves, from their first call to the end of their last, and ran together:
    /// making files ready is not in it.
    Streams,
    /// The median of the samples of the busy period.
    Samples,
}

/// Streams of I/O that ran together, each in calls of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Streams {
    /// How many.
    pub count: usize,
    /// Bytes per call; `None` if sizes were mixed.
    pub block_bytes: Option<u64>,
    /// Whether each went through its file in order.
    pub sequential: bool,
}

impl RunSummary {
    /// Part of a file in the page cache from which a read of it is not called cold.
    pub const CACHED: f64 = 0.1;

    /// The stage in whose streams the page cache still held most of a file that was to be cold, and how much
    /// of it; `None` if nothing was to be cold, or it is not known.
    #[must_use]
    pub fn still_cached(&self, record: &Record) -> Option<(String, f64)> {
        let cold = record.workload.parameters.get("cache").is_some_and(|cache| cache == "cold");
        let figures = self.step_figures.iter().filter(|_| cold);
        let cached = figures.filter(|figure| figure.name == "cached_percent");
        let of = |figure: &StepFigure| (figure.stage.clone(), figure.spread.max / 100.0);
        cached.map(of).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// The figures of the steps of a stage if those all have one name.
fn only_step<'a>(figures: &'a [StepFigure], name: &str) -> Option<&'a StepFigure> {
    let steps: BTreeSet<&str> = figures.iter().map(|figure| figure.step.as_str()).collect();
    (steps.len() == 1).then(|| figures.iter().find(|figure| figure.name == name))?
}

impl StageRate {
    /// Of a stage whose steps measured `figures`: what streams measured, else what samples tell if there are
    /// enough of them.
    pub(super) fn of(stage: &StageSummary, figures: &[StepFigure]) -> Option<StageRate> {
        let sum = |name: &str| only_step(figures, name)?.sum;
        let source = RateSource::Streams;
        if let (Some(read), Some(written)) = (sum("read_mb_per_second"), sum("write_mb_per_second"))
        {
            let what = match (read > 0.0, written > 0.0) {
                (true, false) => "read",
                (false, true) => "written",
                (true, true) | (false, false) => "read and written",
            };
            return Some(StageRate { value: read + written, unit: "MB/s", what, source });
        }
        if let Some(value) = sum("create_per_second") {
            return Some(StageRate { value, unit: "files/s", what: "created", source });
        }
        let value = stage.file.sustained_mb_per_second.filter(|_| stage.file.is_judged())?;
        let what = "read and written";
        Some(StageRate { value, unit: "MB/s", what, source: RateSource::Samples })
    }
}

impl Streams {
    /// Of a stage whose steps measured `figures`; `None` if they are not streams.
    pub(super) fn of(stage: &Stage, figures: &[StepFigure]) -> Option<Streams> {
        let sequential = only_step(figures, "sequential")?.spread;
        let block = only_step(figures, "block_kib").map(|block| block.spread);
        let block = block.filter(|block| block.min == block.max && block.count == sequential.count);
        Some(Streams {
            count: stage.jobs.len(),
            block_bytes: block.map(|block| (block.median * 1024.0) as u64),
            sequential: sequential.min == 1.0,
        })
    }
}

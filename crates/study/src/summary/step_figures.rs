//! What steps measured themselves: figures, and times of calls.

use std::collections::BTreeMap;

use forebay_analytics::histogram::{Bucket, merge, quantile};

use super::{CallLatency, FigureSort, StepFigure};
use crate::record::{JobRecord, Stage};
use crate::statistics::{Spread, median, ratio, sum};

/// Names of counts, alone or after an underscore.
const COUNTS: [&str; 4] = ["files", "calls", "operations", "bytes"];

impl FigureSort {
    /// By the name of a figure.
    #[must_use]
    pub fn of(name: &str) -> FigureSort {
        let ends_with = |word: &str| {
            name.strip_suffix(word).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
        };
        if ends_with("per_second") || ends_with("iops") {
            FigureSort::Rate
        } else if COUNTS.iter().any(|&word| ends_with(word)) {
            FigureSort::Count
        } else {
            FigureSort::Other
        }
    }
}

/// Times of calls of the steps of one name in `stage`, by step and call.
pub(super) fn call_latencies(stage: &Stage) -> Vec<CallLatency> {
    let mut merged: BTreeMap<(&str, &str), Vec<Bucket>> = BTreeMap::new();
    for step in stage.jobs.iter().flat_map(|job| &job.steps) {
        for (call, buckets) in &step.outcome.latencies {
            let have = merged.entry((step.resources.step.as_str(), call.as_str())).or_default();
            merge(have, buckets);
        }
    }
    merged
        .into_iter()
        .filter_map(|((step, call), buckets)| {
            let at = |part| Some(quantile(&buckets, part)? as f64 / 1e6);
            Some(CallLatency {
                stage: stage.name.clone(),
                step: step.to_owned(),
                call: call.to_owned(),
                count: buckets.iter().map(|bucket| bucket.count).sum(),
                p50_ms: at(0.5)?,
                p95_ms: at(0.95)?,
                p99_ms: at(0.99)?,
                p999_ms: at(0.999)?,
                max_ms: at(1.0)?,
                buckets,
            })
        })
        .collect()
}

/// Steps of one name of one job: the values of a figure, and when they ran.
#[derive(Default)]
struct OfJob {
    values: Vec<f64>,
    start: f64,
    end: f64,
}

/// Figures of the steps of one name in `stage`, by step and figure.
pub(super) fn step_figures(stage: &Stage) -> Vec<StepFigure> {
    let mut found: BTreeMap<(&str, &str), Vec<OfJob>> = BTreeMap::new();
    for job in &stage.jobs {
        for (key, of_job) in figures_of_job(job) {
            found.entry(key).or_default().push(of_job);
        }
    }
    let seconds = stage.end_seconds - stage.start_seconds;
    found
        .into_iter()
        .filter_map(|((step, name), jobs)| {
            let sort = FigureSort::of(name);
            let add = |part: fn(&OfJob) -> Option<f64>| sum(jobs.iter().filter_map(part));
            let in_all = match sort {
                FigureSort::Rate => {
                    ran_together(&jobs).then(|| add(|job| median(job.values.iter().copied())))
                }
                FigureSort::Count => Some(add(|job| Some(sum(job.values.iter().copied())))),
                FigureSort::Other => None,
            };
            Some(StepFigure {
                stage: stage.name.clone(),
                step: step.to_owned(),
                name: name.to_owned(),
                sort,
                spread: Spread::of(
                    jobs.iter().filter_map(|job| median(job.values.iter().copied())),
                )?,
                sum: in_all,
                per_second: match sort {
                    FigureSort::Count => in_all.and_then(|sum| ratio(sum, seconds)),
                    FigureSort::Rate | FigureSort::Other => None,
                },
            })
        })
        .collect()
}

fn figures_of_job(job: &JobRecord) -> BTreeMap<(&str, &str), OfJob> {
    let mut found: BTreeMap<(&str, &str), OfJob> = BTreeMap::new();
    for step in &job.steps {
        let start = job.start_seconds.unwrap_or(0.0) + step.start_seconds;
        let end = start + step.resources.real_seconds;
        for (name, &value) in &step.outcome.figures {
            if !value.is_finite() {
                continue;
            }
            let key = (step.resources.step.as_str(), name.as_str());
            let have = found.entry(key).or_insert(OfJob { values: Vec::new(), start, end });
            have.values.push(value);
            have.start = have.start.min(start);
            have.end = have.end.max(end);
        }
    }
    found
}

/// Whether the steps of all jobs ran at once for half of the median of their times at least.
fn ran_together(jobs: &[OfJob]) -> bool {
    let last_start = jobs.iter().map(|job| job.start).fold(f64::NEG_INFINITY, f64::max);
    let first_end = jobs.iter().map(|job| job.end).fold(f64::INFINITY, f64::min);
    let typical = median(jobs.iter().map(|job| job.end - job.start)).unwrap_or(0.0);
    jobs.len() == 1 || first_end - last_start >= typical / 2.0
}

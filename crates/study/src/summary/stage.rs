//! Stages, and how they grow.

use std::collections::BTreeSet;

use super::rate::{StageRate, Streams};
use super::{Scaling, StageSummary, Totals, busy, step_figures};
use crate::record::{Run, Sample, Stage};
use crate::statistics::ratio;
use crate::summary::Flow;

/// The stages of a run, each against the first one.
pub(super) fn of_run(run: &Run) -> Vec<StageSummary> {
    let mut stages: Vec<StageSummary> =
        run.stages.iter().map(|stage| StageSummary::of(stage, run)).collect();
    // What does something else does not scale.
    if let Some(sizes) = sizes(&run.stages).filter(|_| alike(&run.stages)) {
        let first = stages.first().cloned();
        for (stage, size) in stages.iter_mut().zip(sizes) {
            stage.scaling = first.as_ref().map(|first| Scaling::of(stage, first, size));
        }
    }
    stages
}

impl StageSummary {
    fn of(stage: &Stage, run: &Run) -> StageSummary {
        let samples: Vec<&Sample> = run
            .samples
            .iter()
            .filter(|sample| {
                let middle = sample.at_seconds - sample.seconds / 2.0;
                (stage.start_seconds..stage.end_seconds).contains(&middle)
            })
            .collect();
        let busy = busy::of_stage(stage);
        let periods = busy.as_slice();
        let jobs = Totals::of(&stage.jobs);
        let seconds = stage.end_seconds - stage.start_seconds;
        let figures = step_figures::step_figures(stage);
        let mut summary = StageSummary {
            name: stage.name.clone(),
            nodes: stage.nodes,
            sessions: stage.sessions,
            concurrent: stage.concurrent,
            seconds,
            busy,
            file: Flow::of_jobs(&samples, periods, stage.jobs.iter()),
            device: Flow::of_devices(&samples, periods, &run.device_scope),
            jobs_per_minute: ratio(jobs.succeeded() as f64 * 60.0, seconds),
            jobs,
            scaling: None,
            rate: None,
            streams: Streams::of(stage, &figures),
        };
        summary.rate = StageRate::of(&summary, &figures);
        summary
    }
}

/// Whether all stages run the same classes of jobs.
pub(super) fn alike(stages: &[Stage]) -> bool {
    let classes = |stage: &Stage| -> BTreeSet<String> {
        stage.jobs.iter().map(|job| job.class.clone()).collect()
    };
    let mut of_stages = stages.iter().map(classes);
    let first = of_stages.next();
    of_stages.all(|of_stage| Some(&of_stage) == first.as_ref())
}

impl Scaling {
    fn of(stage: &StageSummary, first: &StageSummary, size: f64) -> Scaling {
        let by = |now: Option<f64>, then: Option<f64>| ratio(now?, then?);
        let throughput = by(stage.file.sustained_mb_per_second, first.file.sustained_mb_per_second);
        let jobs = by(stage.jobs_per_minute, first.jobs_per_minute);
        Scaling {
            size,
            throughput,
            throughput_efficiency: by(throughput, Some(size)),
            jobs,
            jobs_efficiency: by(jobs, Some(size)),
        }
    }
}

/// How many times as large as the first each stage is: by nodes if they differ, else by sessions, else
/// by jobs at once; `None` if all are the same.
fn sizes(stages: &[Stage]) -> Option<Vec<f64>> {
    let by = |size: fn(&Stage) -> u32| {
        let sizes: Vec<u32> = stages.iter().map(size).collect();
        let first = *sizes.first()?;
        (first > 0 && sizes.iter().any(|&size| size != first))
            .then(|| sizes.iter().map(|&size| f64::from(size) / f64::from(first)).collect())
    };
    by(|stage| stage.nodes)
        .or_else(|| by(|stage| stage.sessions.unwrap_or(0)))
        .or_else(|| by(|stage| stage.concurrent))
}

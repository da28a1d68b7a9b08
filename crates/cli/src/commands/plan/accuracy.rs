//! How far predictions are off: stages of one run, predicted from its stage with one node and one job at once.
//!
//! What the machine has is measured by stages of their own, so that nothing of the predicted stages goes into their
//! predictions. Pure: everything comes from the record of the run.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::simulation::{Demand, Storage, StorageOf};
use forebay_study::record::{JobRecord, Record, Run, Stage};
use serde::Serialize;

use super::recorded::{self, Checked};

/// Stages that measure the machine, and the one that is predicted from.
pub const ONE_PROCESSOR: &str = "one processor";
pub const ALL_PROCESSORS: &str = "all processors";
pub const STORAGE: &str = "storage";
pub const BASE: &str = "1 node";

/// The least number of samples, of one second each, that show what other programs use.
const SAMPLES_MIN: usize = 3;
/// Processors that other programs may use before predictions suffer, as part of all; and for how long a job that runs alone may
/// wait for them, as part of its time.
pub const OTHERS_MAX: f64 = 0.1;

/// What the machine has for the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Processors.
    pub processors: u32,
    /// How much longer the same work takes on a processor when all are in use: they share caches, memory and clock.
    pub slowdown: f64,
    /// Processors that are worth as much as those of a machine that is otherwise idle.
    pub effective_processors: f64,
    /// Bytes per second that the storage moves when it always has requests; none if the jobs' processes move nothing
    /// themselves, as below a network file system.
    pub storage_bytes_per_second: Option<f64>,
    /// Processors that other programs used meanwhile; none if the stage was too short to say.
    pub other_programs: Option<f64>,
    /// Part of its time for which the job that ran alone waited for a processor, which others had then; none where the kernel does
    /// not say.
    pub waited_alone: Option<f64>,
}

/// A stage as measured and as predicted.
#[derive(Debug, Serialize)]
pub struct Line {
    #[serde(flatten)]
    pub checked: Checked,
    /// Predicted by measured seconds, less 1.
    pub error: f64,
    /// The same of the jobs' real seconds.
    pub real_error: f64,
}

/// All predictions of a run.
#[derive(Debug, Serialize)]
pub struct Accuracy {
    pub machine: Machine,
    /// Processor seconds of the kernel and of daemons for each second that jobs spend in the kernel.
    pub behind_per_system_second: f64,
    pub lines: Vec<Line>,
    /// The largest error of the seconds of a stage, without its sign.
    pub worst_error: f64,
}

impl Accuracy {
    /// Predicts all stages of the first run of `record` from its stage [`BASE`].
    pub fn of(record: &Record) -> Result<Accuracy> {
        let run = record.runs.first().context("the result has no run")?;
        let cpus = record.machine.cpus.max(1);
        let machine = Machine::of(run, cpus)?;
        let storage = machine
            .storage_bytes_per_second
            .map(|bytes_per_second| Storage { bytes_per_second, of: StorageOf::Machine });
        let base = stage(run, BASE)?;
        let behind = behind(run, base, &machine);
        let demands = recorded::demands(base, |job| {
            with_behind(with_wait(recorded::demand(&job.usage, storage), job), job, behind)
        });
        let lines = run
            .stages
            .iter()
            .filter(|stage| ![ONE_PROCESSOR, ALL_PROCESSORS, STORAGE].contains(&&*stage.name))
            .map(|one| line(stage(run, &one.name)?, &demands, &machine, storage))
            .collect::<Result<Vec<Line>>>()?;
        let worst_error = lines.iter().map(|line| line.error.abs()).fold(0.0, f64::max);
        Ok(Accuracy { machine, behind_per_system_second: behind, lines, worst_error })
    }
}

impl Machine {
    /// Why other programs spoil the comparison, if they do.
    pub fn disturbance(&self) -> Option<String> {
        let used =
            self.other_programs.filter(|used| used / f64::from(self.processors) > OTHERS_MAX);
        let waited = self.waited_alone.filter(|waited| *waited > OTHERS_MAX);
        let why = match (used, waited) {
            (Some(used), _) => format!("other programs used {used:.1} processors"),
            (None, Some(waited)) => {
                format!(
                    "a job that ran alone waited {:.0} % of its time for a processor",
                    waited * 100.0
                )
            }
            (None, None) => return None,
        };
        Some(format!("The errors say little: {why}. Run this again when the machine is idle."))
    }

    fn of(run: &Run, cpus: u32) -> Result<Machine> {
        let processors = |name| Ok::<_, anyhow::Error>(processor_seconds(stage(run, name)?));
        let (alone, together) = (processors(ONE_PROCESSOR)?, processors(ALL_PROCESSORS)?);
        if alone <= 0.0 {
            bail!("stage {ONE_PROCESSOR:?} used no processor time: use a larger --scale");
        }
        let slowdown = (together / alone).max(1.0);
        let alone = stage(run, ONE_PROCESSOR)?;
        let other_programs = used(run, alone, cpus)
            .map(|used| (used - total_processor_seconds(alone) / seconds(alone)).max(0.0));
        Ok(Machine {
            processors: cpus,
            slowdown,
            effective_processors: f64::from(cpus) / slowdown,
            storage_bytes_per_second: storage_rate(stage(run, STORAGE)?),
            other_programs,
            waited_alone: waited(alone),
        })
    }
}

/// A stage, all jobs of which succeeded.
fn stage<'a>(run: &'a Run, name: &str) -> Result<&'a Stage> {
    let found = run.stages.iter().find(|stage| stage.name == name);
    let stage = found.with_context(|| {
        format!("the result has no stage {name:?}: it is not one of forebay plan verify")
    })?;
    let failed = |job: &&JobRecord| job.exit != forebay_study::record::Exit::Success;
    if let Some(job) = stage.jobs.iter().find(failed) {
        bail!("stage {name:?}: job {} did not succeed: {:?}", job.name, job.exit);
    }
    if stage.jobs.is_empty() || seconds(stage) <= 0.0 {
        bail!("stage {name:?} has no jobs");
    }
    Ok(stage)
}

fn line(
    stage: &Stage,
    demands: &BTreeMap<String, Demand>,
    machine: &Machine,
    storage: Option<Storage>,
) -> Result<Line> {
    let checked = recorded::predict(stage, demands, 1, machine.effective_processors, storage)?;
    Ok(Line { error: checked.error(), real_error: checked.real_error(), checked })
}

fn seconds(stage: &Stage) -> f64 {
    stage.end_seconds - stage.start_seconds
}

fn total_processor_seconds(stage: &Stage) -> f64 {
    stage.jobs.iter().map(|job| job.usage.cpu_seconds()).sum()
}

/// Processor seconds of a job of the stage, in the mean.
fn processor_seconds(stage: &Stage) -> f64 {
    total_processor_seconds(stage) / stage.jobs.len().max(1) as f64
}

/// Processors in use during a stage, by any program; none if there are too few samples.
fn used(run: &Run, stage: &Stage, cpus: u32) -> Option<f64> {
    let inside: Vec<_> = run
        .samples
        .iter()
        .filter(|one| {
            one.at_seconds - one.seconds >= stage.start_seconds
                && one.at_seconds <= stage.end_seconds
        })
        .collect();
    let seconds: f64 = inside.iter().map(|one| one.seconds).sum();
    let used: f64 = inside.iter().map(|one| (one.cpu_user + one.cpu_system) * one.seconds).sum();
    (inside.len() >= SAMPLES_MIN && seconds > 0.0).then(|| used / seconds * f64::from(cpus))
}

/// Processor seconds that the kernel and daemons spend for the jobs of a stage beside them, for each second that the jobs
/// spend in the kernel; 0 if other programs use too much to tell.
fn behind(run: &Run, stage: &Stage, machine: &Machine) -> f64 {
    let cpus = machine.processors;
    let others = machine.other_programs.filter(|used| used / f64::from(cpus) <= OTHERS_MAX);
    let (Some(others), Some(used)) = (others, used(run, stage, cpus)) else { return 0.0 };
    let system: f64 = stage.jobs.iter().map(|job| job.usage.system_seconds).sum();
    let beside = (used - others) * seconds(stage) - total_processor_seconds(stage);
    if system > 0.0 { (beside / system).max(0.0) } else { 0.0 }
}

/// Keeps what a job waited for processors: it ran alone, so others had them, kernel threads among them, and have them in all
/// stages.
fn with_wait(demand: Demand, job: &JobRecord) -> Demand {
    let waited = job.usage.processor_wait_seconds.unwrap_or(0.0) / demand.threads;
    Demand { other_seconds: demand.other_seconds + waited, ..demand }
}

/// Counts what is done behind a job as processor time instead of a pause, as long as the job paused at all: it takes as long as
/// before when it has the machine to itself.
fn with_behind(demand: Demand, job: &JobRecord, behind: f64) -> Demand {
    let seconds = (job.usage.system_seconds * behind).min(demand.other_seconds);
    Demand {
        processor_seconds: demand.processor_seconds + seconds * demand.threads,
        other_seconds: demand.other_seconds - seconds,
        ..demand
    }
}

/// Part of the time of a stage's jobs for which they waited for processors.
fn waited(stage: &Stage) -> Option<f64> {
    let real: f64 = stage.jobs.iter().map(|job| job.usage.real_seconds).sum();
    let waits = stage.jobs.iter().map(|job| job.usage.processor_wait_seconds);
    let waited: f64 = waits.sum::<Option<f64>>()?;
    (real > 0.0).then(|| waited / real)
}

/// What the jobs of a stage moved together, from the start of the first to the end of the last.
fn storage_rate(stage: &Stage) -> Option<f64> {
    let moved =
        |job: &JobRecord| Some(job.usage.device_read_bytes? + job.usage.device_written_bytes?);
    let bytes: u64 = stage.jobs.iter().filter_map(moved).sum();
    let start = stage.jobs.iter().filter_map(|job| job.start_seconds).fold(f64::INFINITY, f64::min);
    let end = stage.jobs.iter().filter_map(|job| job.end_seconds).fold(0.0, f64::max);
    (bytes > 0 && end > start).then(|| bytes as f64 / (end - start))
}

#[cfg(test)]
mod tests;

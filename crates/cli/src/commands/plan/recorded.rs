//! Recorded jobs as the simulation takes them: what each needed, whatever it had to wait for.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::simulation::{
    Demand, Job, Prediction, Setup, Storage, StorageOf, contention, simulate,
};
use forebay_study::record::{JobRecord, Record, Run, Stage};

/// Intervals in a row, with the storage in use all the time, that show what it moves at most.
const BUSY_SAMPLES: usize = 10;
/// Part of an interval in which the busiest device has a request if the storage is used to its limit.
const BUSY: f64 = 0.9;

/// What a job needed, without its waiting for processors, which the simulation adds again.
pub fn demand(job: &JobRecord, storage: Option<Storage>) -> Demand {
    let used = &job.usage;
    let processor_seconds = used.cpu_seconds();
    let threads = used.cpu_per_real().unwrap_or(1.0).max(1.0);
    let bytes = |bytes: Option<u64>| bytes.unwrap_or(0) as f64;
    let storage_bytes = bytes(used.device_read_bytes) + bytes(used.device_written_bytes);
    let io_wait = used.io_wait_seconds.unwrap_or(0.0);
    let waited = used.processor_wait_seconds.unwrap_or(0.0) / threads + io_wait;
    let pauses = (used.real_seconds - processor_seconds / threads - waited).max(0.0);
    // What the wait for devices was longer than the rate of the storage explains is latency.
    let moved = storage.map_or(0.0, |storage| storage_bytes / storage.bytes_per_second);
    Demand {
        processor_seconds,
        threads,
        storage_bytes,
        other_seconds: pauses + (io_wait - moved).max(0.0),
    }
}

/// The most that the devices moved in [`BUSY_SAMPLES`] intervals in which they always had requests, in bytes per
/// second; none if that never happened.
pub fn storage_limit(run: &Run) -> Option<f64> {
    let rates = run.samples.windows(BUSY_SAMPLES).filter(|some| {
        some.iter().map(|one| one.device_busy).sum::<f64>() / BUSY_SAMPLES as f64 >= BUSY
    });
    rates
        .map(|some| {
            let bytes: u64 =
                some.iter().map(|one| one.device_read_bytes + one.device_written_bytes).sum();
            bytes as f64 / some.iter().map(|one| one.seconds).sum::<f64>()
        })
        .max_by(f64::total_cmp)
        .filter(|rate| *rate > 0.0)
}

/// Storage of that rate below each machine.
pub fn of_each_machine(bytes_per_second: f64) -> Storage {
    Storage { bytes_per_second, of: StorageOf::Machine }
}

/// A run and the stage of it that others are predicted from.
pub fn stage<'a>(record: &'a Record, name: Option<&str>) -> Result<(&'a Run, &'a Stage)> {
    let run = record.runs.first().context("the study has no run")?;
    let found = match name {
        None => run.stages.first(),
        Some(name) => run.stages.iter().find(|stage| stage.name == name),
    };
    let names = || run.stages.iter().map(|one| format!("{:?}", one.name)).collect::<Vec<_>>();
    let stage = found.with_context(|| format!("no such stage; there is {}", names().join(", ")))?;
    let unknown = stage.jobs.iter().filter(|job| job.end_seconds.is_none()).count();
    if unknown > 0 || stage.jobs.is_empty() {
        bail!("stage {:?} is not complete: {unknown} jobs did not end", stage.name);
    }
    Ok((run, stage))
}

/// The jobs of a stage on each of several machines, or spread over them.
pub fn on_machines(
    stage: &Stage,
    machines: u32,
    spread: bool,
    storage: Option<Storage>,
) -> Vec<Job> {
    let job = |node: u32, job: &JobRecord| Job {
        node,
        due_seconds: due(stage, job),
        demand: demand(job, storage),
    };
    if spread {
        let dealt = stage.jobs.iter().zip((0..machines * stage.nodes).cycle());
        return dealt.map(|(one, node)| job(node, one)).collect();
    }
    (0..machines)
        .flat_map(|machine| {
            stage.jobs.iter().map(move |one| (machine * stage.nodes + one.node, one))
        })
        .map(|(node, one)| job(node, one))
        .collect()
}

/// Seconds from the start of its stage at which a job was due.
fn due(stage: &Stage, job: &JobRecord) -> f64 {
    (job.due_seconds - stage.start_seconds).max(0.0)
}

/// What jobs of each class need, and what they share.
pub struct Model {
    demands: BTreeMap<String, Demand>,
    /// Processors of the machine.
    pub cores: f64,
    pub storage: Option<Storage>,
    /// As [`Setup::contention`].
    pub contention: f64,
}

impl Model {
    /// From jobs that ran with nothing known of the contention.
    pub fn of<'a>(
        jobs: impl IntoIterator<Item = &'a JobRecord>,
        cores: f64,
        storage: Option<Storage>,
    ) -> Model {
        let mut classes: BTreeMap<&str, Vec<Demand>> = BTreeMap::new();
        for job in jobs {
            classes.entry(&job.class).or_default().push(demand(job, storage));
        }
        let demands =
            classes.iter().map(|(class, known)| ((*class).to_owned(), mean(known))).collect();
        Model { demands, cores, storage, contention: 0.0 }
    }

    /// From jobs that ran one at a time, and others of the same classes that ran with all processors busy.
    pub fn calibrated(
        alone: &Run,
        busy: &Run,
        cores: f64,
        storage: Option<Storage>,
    ) -> Result<Model> {
        let mut model = Model::of(alone.jobs(), cores, storage);
        let mut expected = 0.0;
        for job in busy.jobs() {
            expected += model.demand(&job.class)?.processor_seconds;
        }
        let used: f64 = busy.jobs().map(|job| job.usage.cpu_seconds()).sum();
        model.contention = contention(expected, used);
        Ok(model)
    }

    fn demand(&self, class: &str) -> Result<Demand> {
        let known = self.demands.get(class);
        known
            .copied()
            .with_context(|| format!("no job of class {class:?} was recorded to predict from"))
    }

    /// Predicts a stage whose nodes are parts of one machine.
    pub fn check(&self, stage: &Stage) -> Result<Checked> {
        let mut jobs = Vec::new();
        for job in &stage.jobs {
            jobs.push(Job {
                node: job.node,
                due_seconds: due(stage, job),
                demand: self.demand(&job.class)?,
            });
        }
        let setup = Setup {
            nodes: stage.nodes,
            nodes_per_machine: stage.nodes,
            machine_cores: self.cores,
            concurrent: stage.concurrent,
            storage: self.storage,
            contention: self.contention,
        };
        Ok(Checked::of(stage, &simulate(&jobs, &setup)?))
    }
}

/// A stage as it was measured and as it is predicted.
#[derive(Debug, serde::Serialize)]
pub struct Checked {
    pub stage: String,
    pub nodes: u32,
    pub concurrent: u32,
    pub jobs: usize,
    pub measured_seconds: f64,
    pub predicted_seconds: f64,
    /// Predicted by measured, less 1: 0.1 if it is 10 % too long.
    pub error: f64,
    pub measured_real_seconds: f64,
    pub predicted_real_seconds: f64,
    /// The same of the real seconds of all jobs.
    pub real_error: f64,
}

impl Checked {
    fn of(stage: &Stage, predicted: &Prediction) -> Checked {
        let measured_seconds = stage.end_seconds - stage.start_seconds;
        let measured_real_seconds = stage.jobs.iter().map(|job| job.usage.real_seconds).sum();
        Checked {
            stage: stage.name.clone(),
            nodes: stage.nodes,
            concurrent: stage.concurrent,
            jobs: stage.jobs.len(),
            measured_seconds,
            predicted_seconds: predicted.seconds,
            error: error(predicted.seconds, measured_seconds),
            measured_real_seconds,
            predicted_real_seconds: predicted.real_seconds,
            real_error: error(predicted.real_seconds, measured_real_seconds),
        }
    }
}

/// 0 where nothing was measured and nothing predicted.
fn error(predicted: f64, measured: f64) -> f64 {
    if measured > 0.0 { predicted / measured - 1.0 } else { predicted }
}

/// Predicts every stage of the first run of `other`, whose nodes are parts of one machine.
pub fn check(model: &Model, other: &Record) -> Result<Vec<Checked>> {
    let run = other.runs.first().context("the study to check has no run")?;
    run.stages.iter().map(|stage| model.check(stage)).collect()
}

fn mean(demands: &[Demand]) -> Demand {
    let of = |value: fn(&Demand) -> f64| {
        demands.iter().map(value).sum::<f64>() / demands.len().max(1) as f64
    };
    Demand {
        processor_seconds: of(|one| one.processor_seconds),
        threads: of(|one| one.threads).max(1.0),
        storage_bytes: of(|one| one.storage_bytes),
        other_seconds: of(|one| one.other_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        Record::read(&folder.join("../study/tests/data/mixed")).unwrap()
    }

    #[test]
    fn a_demand_is_what_a_job_used_without_what_it_waited_for() {
        let record = record();
        let mut job = record.runs[0].stages[0].jobs[0].clone();
        job.usage.real_seconds = 20.0;
        job.usage.user_seconds = 4.0;
        job.usage.system_seconds = 1.0;
        job.usage.processor_wait_seconds = Some(6.0);
        job.usage.io_wait_seconds = Some(3.0);
        job.usage.device_read_bytes = Some(150);
        job.usage.device_written_bytes = Some(50);
        let rate = |bytes_per_second| {
            Some(Storage {
                bytes_per_second,
                of: forebay_advisor::plan::simulation::StorageOf::All,
            })
        };
        let found = demand(&job, None);
        assert_eq!(
            (found.processor_seconds, found.threads, found.storage_bytes),
            (5.0, 1.0, 200.0)
        );
        // 20 - 5 - 6 - 3 of its own, and 3 of latency as no storage is slow.
        assert_eq!(found.other_seconds, 9.0);
        // At 100 bytes a second 2 of the 3 seconds were the storage's.
        assert_eq!(demand(&job, rate(100.0)).other_seconds, 7.0);
        assert_eq!(demand(&job, rate(10.0)).other_seconds, 6.0);
    }

    #[test]
    fn a_stage_is_predicted_from_itself_and_an_unknown_class_is_refused() {
        let record = record();
        let (_, stage) = stage(&record, None).unwrap();
        let cores = f64::from(record.machine.cpus);
        let model = Model::of(&stage.jobs, cores, None);
        let checked = check(&model, &record).unwrap();
        assert_eq!(checked.len(), record.runs[0].stages.len());
        assert!(checked[0].error.abs() < 0.25, "{}", checked[0].error);
        let mut other = record.clone();
        other.runs[0].stages[0].jobs[0].class = "unheard-of".to_owned();
        let error = check(&model, &other).unwrap_err().to_string();
        assert!(error.contains("\"unheard-of\""), "{error}");
    }

    #[test]
    fn jobs_are_repeated_on_each_machine_or_spread_over_them() {
        let record = record();
        let (_, one) = stage(&record, None).unwrap();
        let all = on_machines(one, 3, false, None);
        assert_eq!(all.len(), 3 * one.jobs.len());
        assert_eq!(all.iter().map(|job| job.node).max(), Some(3 * one.nodes - 1));
        let spread = on_machines(one, 3, true, None);
        assert_eq!(spread.len(), one.jobs.len());
        assert_eq!(spread.iter().map(|job| job.node).max(), Some(3 * one.nodes - 1));
        assert!(stage(&record, Some("no such")).is_err());
    }

    /// A run with `jobs` jobs that each computed for `seconds` seconds, `concurrent` at once on each of `nodes` nodes.
    fn run_of(jobs: u32, seconds: f64, nodes: u32, concurrent: u32, took: f64) -> Run {
        let mut run = record().runs.swap_remove(0);
        let mut stage = run.stages.swap_remove(0);
        let mut one = stage.jobs.swap_remove(0);
        "sort".clone_into(&mut one.class);
        one.due_seconds = stage.start_seconds;
        one.usage = forebay_study::record::Usage {
            real_seconds: seconds,
            user_seconds: seconds,
            ..Default::default()
        };
        stage.jobs = (0..jobs).map(|at| JobRecord { node: at % nodes, ..one.clone() }).collect();
        (stage.nodes, stage.concurrent) = (nodes, concurrent);
        stage.end_seconds = stage.start_seconds + took;
        run.stages = vec![stage];
        run
    }

    #[test]
    fn logical_nodes_are_predicted_from_runs_on_one_with_the_contention_found_there() {
        let (alone, busy) = (run_of(4, 10.0, 1, 1, 40.0), run_of(4, 12.0, 1, 4, 24.0));
        let model = Model::calibrated(&alone, &busy, 2.0, None).unwrap();
        assert!((model.contention - 0.2).abs() < 1e-9, "{}", model.contention);
        // Eight jobs of 12 s on two cores, whatever the number of nodes: 48 s. It was measured as 50 s.
        let measured = run_of(8, 12.0, 2, 2, 50.0);
        let found = model.check(&measured.stages[0]).unwrap();
        assert!((found.predicted_seconds - 48.0).abs() < 1e-3, "{found:?}");
        assert!((found.error + 0.04).abs() < 1e-4, "{found:?}");
        assert_eq!((found.nodes, found.concurrent, found.jobs), (2, 2, 8));
    }
}

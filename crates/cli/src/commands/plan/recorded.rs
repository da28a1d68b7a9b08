//! Recorded jobs as the simulation takes them: what each needed, whatever it had to wait for.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::shown;
use forebay_advisor::plan::simulation::{Demand, Job, Prediction, Setup, Storage, simulate};
use forebay_base::Usage;
use forebay_study::record::{JobRecord, Record, Run, Stage};

use crate::output::Table;

/// Intervals in a row, with the storage in use all the time, that show what it moves at most.
const BUSY_SAMPLES: usize = 10;
/// Part of an interval in which the busiest device has a request if the storage is used to its limit.
const BUSY: f64 = 0.9;

/// What a job needed, without its waiting for processors, which the simulation adds again.
pub fn demand(used: &Usage, storage: Option<Storage>) -> Demand {
    let processor_seconds = used.cpu_seconds();
    let threads = used.cpu_per_real().unwrap_or(1.0).max(1.0);
    let bytes = |bytes: Option<u64>| bytes.unwrap_or(0) as f64;
    let storage_bytes = bytes(used.device_read_bytes) + bytes(used.device_written_bytes);
    let processor_wait = used.processor_wait_seconds.unwrap_or(0.0) / threads;
    // Waiting for devices and pauses. Not every kernel tells them apart.
    let rest = (used.real_seconds - processor_seconds / threads - processor_wait).max(0.0);
    // What it did not have the time to wait for was moved in the background; what the rate of the storage does not explain is
    // latency.
    let rate = storage.map_or(f64::INFINITY, |storage| storage.bytes_per_second);
    let waited_for = storage_bytes.min(rest * rate);
    Demand {
        processor_seconds,
        threads,
        storage_bytes: waited_for,
        background_bytes: storage_bytes - waited_for,
        other_seconds: rest - waited_for / rate,
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
        node: Some(node),
        slots: 1,
        due_seconds: due(stage, job),
        demand: demand(&job.usage, storage),
        queue: 0,
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

/// Headings of stages as they were measured and as they are predicted.
pub const COLUMNS: [&str; 10] = [
    "stage",
    "nodes",
    "at once",
    "jobs",
    "measured s",
    "predicted s",
    "error %",
    "job s measured",
    "job s predicted",
    "job error %",
];

/// Stages as they were measured and as they are predicted, for a terminal.
pub fn table<'a>(checked: impl IntoIterator<Item = &'a Checked>) -> String {
    let mut table = Table::new(&COLUMNS);
    let percent = |part: f64| format!("{:+.0}", part * 100.0);
    for one in checked {
        table.row(vec![
            one.stage.clone(),
            one.nodes.to_string(),
            one.concurrent.to_string(),
            one.jobs.to_string(),
            shown(one.measured_seconds),
            shown(one.predicted_seconds),
            percent(one.error()),
            shown(one.measured_real_seconds),
            shown(one.predicted_real_seconds),
            percent(one.real_error()),
        ]);
    }
    table.render()
}

/// A stage as it was measured and as it is predicted from another one.
#[derive(Debug, serde::Serialize)]
pub struct Checked {
    pub stage: String,
    pub nodes: u32,
    pub concurrent: u32,
    pub jobs: usize,
    pub measured_seconds: f64,
    pub predicted_seconds: f64,
    pub measured_real_seconds: f64,
    pub predicted_real_seconds: f64,
}

impl Checked {
    /// Predicted by measured, less 1: 0.1 if it is 10 % too long.
    pub fn error(&self) -> f64 {
        self.predicted_seconds / self.measured_seconds - 1.0
    }

    /// The same of the real seconds of all jobs.
    pub fn real_error(&self) -> f64 {
        self.predicted_real_seconds / self.measured_real_seconds - 1.0
    }
}

/// Predicts every stage of the first run of `other` from the mean demand of each class in `from`. Its nodes are parts of one
/// machine with `cores`, or were on the hosts of a grid, each such a machine.
pub fn check(
    from: &Stage,
    other: &Record,
    cores: f64,
    storage: Option<Storage>,
) -> Result<Vec<Checked>> {
    let classes = demands(from, |job| demand(&job.usage, storage));
    let run = other.runs.first().context("the study to check has no run")?;
    let machines = u32::try_from(other.machines().count()).unwrap_or(u32::MAX);
    run.stages.iter().map(|stage| predict(stage, &classes, machines, cores, storage)).collect()
}

/// The mean demand of each class of jobs in a stage.
pub fn demands(stage: &Stage, demand: impl Fn(&JobRecord) -> Demand) -> BTreeMap<String, Demand> {
    let mut classes: BTreeMap<String, Vec<Demand>> = BTreeMap::new();
    for job in &stage.jobs {
        classes.entry(job.class.clone()).or_default().push(demand(job));
    }
    classes.into_iter().map(|(class, demands)| (class, mean(&demands))).collect()
}

/// Predicts a stage, whose nodes share so many machines, from what jobs of its classes need.
pub fn predict(
    stage: &Stage,
    classes: &BTreeMap<String, Demand>,
    machines: u32,
    cores: f64,
    storage: Option<Storage>,
) -> Result<Checked> {
    let mut jobs = Vec::new();
    for job in &stage.jobs {
        let demand = *classes.get(&job.class).with_context(|| {
            format!("no job of class {:?} was recorded to predict from", job.class)
        })?;
        let (node, due_seconds) = (Some(job.node), due(stage, job));
        jobs.push(Job { node, slots: 1, due_seconds, demand, queue: 0 });
    }
    let setup = Setup {
        nodes: stage.nodes,
        nodes_per_machine: stage.nodes.div_ceil(machines.max(1)),
        machine_cores: cores,
        concurrent: stage.concurrent,
        storage,
    };
    let Prediction { seconds, real_seconds, .. } = simulate(&jobs, &setup)?;
    Ok(Checked {
        stage: stage.name.clone(),
        nodes: stage.nodes,
        concurrent: stage.concurrent,
        jobs: jobs.len(),
        measured_seconds: stage.end_seconds - stage.start_seconds,
        predicted_seconds: seconds,
        measured_real_seconds: stage.jobs.iter().map(|job| job.usage.real_seconds).sum(),
        predicted_real_seconds: real_seconds,
    })
}

fn mean(demands: &[Demand]) -> Demand {
    let of = |value: fn(&Demand) -> f64| {
        demands.iter().map(value).sum::<f64>() / demands.len().max(1) as f64
    };
    Demand {
        processor_seconds: of(|one| one.processor_seconds),
        threads: of(|one| one.threads).max(1.0),
        storage_bytes: of(|one| one.storage_bytes),
        background_bytes: of(|one| one.background_bytes),
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
        let found = demand(&job.usage, None);
        assert_eq!(
            (found.processor_seconds, found.threads, found.storage_bytes),
            (5.0, 1.0, 200.0)
        );
        // 20 - 5 - 6 - 3 of its own, and 3 of latency as no storage is slow.
        assert_eq!(found.other_seconds, 9.0);
        // At 100 bytes a second 2 of the 3 seconds were the storage's.
        assert_eq!(demand(&job.usage, rate(100.0)).other_seconds, 7.0);
        // At 10 bytes a second it had the time to wait for 90 bytes: the others were moved in the background.
        let slow = demand(&job.usage, rate(10.0));
        assert_eq!(
            (slow.storage_bytes, slow.background_bytes, slow.other_seconds),
            (90.0, 110.0, 0.0)
        );
        // A kernel that does not say what a job waited for changes nothing.
        job.usage.io_wait_seconds = None;
        assert_eq!(demand(&job.usage, rate(100.0)).other_seconds, 7.0);
    }

    #[test]
    fn a_stage_is_predicted_from_itself_and_an_unknown_class_is_refused() {
        let record = record();
        let (_, stage) = stage(&record, None).unwrap();
        let cores = f64::from(record.machine.cpus);
        let checked = check(stage, &record, cores, None).unwrap();
        assert_eq!(checked.len(), record.runs[0].stages.len());
        assert!(checked[0].error().abs() < 0.25, "{}", checked[0].error());
        let mut other = record.clone();
        other.runs[0].stages[0].jobs[0].class = "unheard-of".to_owned();
        let error = check(stage, &other, cores, None).err().unwrap().to_string();
        assert!(error.contains("\"unheard-of\""), "{error}");
    }

    #[test]
    fn nodes_that_were_hosts_have_a_machine_each() {
        use forebay_study::record::Host;
        let record = record();
        let (_, stage) = stage(&record, None).unwrap();
        let cores = 4.0;
        let shared = check(stage, &record, cores, None).unwrap();
        let host = |boot: &str| Host { boot: boot.to_owned(), ..Host::default() };
        let apart = Record { hosts: vec![host("1"), host("2")], ..record.clone() };
        let apart = check(stage, &apart, cores, None).unwrap();
        assert!(apart[0].predicted_seconds < 0.7 * shared[0].predicted_seconds);
        let one = Record { hosts: vec![host("1"), host("1")], ..record.clone() };
        let one = check(stage, &one, cores, None).unwrap();
        assert!((one[0].predicted_seconds - shared[0].predicted_seconds).abs() < 1e-9);
    }

    #[test]
    fn jobs_are_repeated_on_each_machine_or_spread_over_them() {
        let record = record();
        let (_, one) = stage(&record, None).unwrap();
        let all = on_machines(one, 3, false, None);
        assert_eq!(all.len(), 3 * one.jobs.len());
        assert_eq!(all.iter().map(|job| job.node).max(), Some(Some(3 * one.nodes - 1)));
        let spread = on_machines(one, 3, true, None);
        assert_eq!(spread.len(), one.jobs.len());
        assert_eq!(spread.iter().map(|job| job.node).max(), Some(Some(3 * one.nodes - 1)));
        assert!(stage(&record, Some("no such")).is_err());
    }
}

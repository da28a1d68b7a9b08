//! What each host did in a run whose jobs ran on several.

use serde::Serialize;

use super::{Period, Processor};
use crate::record::{HostRun, JobRecord, Record, Run, Sample};
use crate::statistics::ratio;

/// One host in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostSummary {
    /// Its name.
    pub host: String,
    /// Its logical processors; `None` if the record does not describe it.
    pub cpus: Option<u32>,
    /// Its jobs.
    pub jobs: usize,
    /// Bytes that its jobs read.
    pub read_bytes: u64,
    /// Bytes that its jobs wrote.
    pub written_bytes: u64,
    /// What its processors did in the busy periods; `None` without samples there.
    pub processor: Option<Processor>,
    /// What its network received, over the run and in its best second; `None` if it is not known.
    pub received: Option<Rate>,
    /// What its network sent.
    pub sent: Option<Rate>,
    /// Part of the run in which it was watched, 0 to 1.
    pub watched_share: Option<f64>,
}

/// Bytes over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// All of them.
    pub bytes: u64,
    /// By the seconds in which they were counted, in MB/s.
    pub mean_mb_per_second: Option<f64>,
    /// The best interval, in MB/s.
    pub peak_mb_per_second: f64,
}

impl Rate {
    fn of(samples: &[Sample], value: fn(&Sample) -> Option<u64>) -> Option<Rate> {
        let known: Vec<(u64, f64)> =
            samples.iter().filter_map(|one| Some((value(one)?, one.seconds))).collect();
        let bytes = known.iter().map(|one| one.0).sum();
        let seconds = known.iter().map(|one| one.1).sum();
        let rates = known.iter().filter_map(|one| ratio(one.0 as f64 / 1e6, one.1));
        (!known.is_empty()).then(|| Rate {
            bytes,
            mean_mb_per_second: ratio(bytes as f64 / 1e6, seconds),
            peak_mb_per_second: rates.fold(0.0, f64::max),
        })
    }
}

/// All hosts of a run; none if its jobs ran on the machine of the study.
pub(super) fn of_run(run: &Run, record: &Record, busy: &[Period]) -> Vec<HostSummary> {
    run.hosts.iter().map(|host| of_host(host, run, record, busy)).collect()
}

fn of_host(host: &HostRun, run: &Run, record: &Record, busy: &[Period]) -> HostSummary {
    let jobs: Vec<&JobRecord> =
        run.jobs().filter(|job| job.host.as_ref() == Some(&host.host)).collect();
    let known = record.hosts.iter().find(|known| known.name == host.host);
    HostSummary {
        host: host.host.clone(),
        cpus: known.map(|known| known.machine.cpus),
        jobs: jobs.len(),
        read_bytes: jobs.iter().filter_map(|job| job.usage.read_bytes).sum(),
        written_bytes: jobs.iter().filter_map(|job| job.usage.written_bytes).sum(),
        processor: Processor::of(&host.samples, busy),
        received: Rate::of(&host.samples, |sample| sample.network_received_bytes),
        sent: Rate::of(&host.samples, |sample| sample.network_sent_bytes),
        watched_share: ratio(host.watched_seconds, run.seconds).map(|share| share.min(1.0)),
    }
}

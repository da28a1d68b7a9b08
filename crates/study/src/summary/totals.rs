//! Sums over jobs, and groups of jobs.

use std::collections::BTreeMap;

use super::{Group, Totals, Uniformity};
use crate::record::{Exit, JobKind, JobRecord, Stage, Usage};
use crate::statistics::{Spread, ratio, sum};

impl Totals {
    /// Of jobs.
    pub(super) fn of<'a>(jobs: impl IntoIterator<Item = &'a JobRecord>) -> Totals {
        let jobs: Vec<&JobRecord> = jobs.into_iter().collect();
        let failed = |job: &&&JobRecord| match job.exit {
            Exit::Failure { .. } | Exit::Signal { .. } => true,
            Exit::Success | Exit::NotStarted => false,
        };
        let ran: Vec<&Usage> =
            jobs.iter().filter(|job| job.exit != Exit::NotStarted).map(|job| &job.usage).collect();
        let seconds = |part: fn(&Usage) -> f64| sum(ran.iter().map(|usage| part(usage)));
        let bytes = |part: fn(&Usage) -> Option<u64>| -> Option<u64> {
            let known = || ran.iter().filter_map(|usage| part(usage));
            known().next().map(|_| known().fold(0, u64::saturating_add))
        };
        let (real_seconds, user_seconds, system_seconds) = (
            seconds(|u| u.real_seconds),
            seconds(|u| u.user_seconds),
            seconds(|u| u.system_seconds),
        );
        let ratios: Vec<f64> = ran.iter().filter_map(|usage| usage.cpu_per_real()).collect();
        let waits = || ran.iter().filter_map(|u| Some((u.io_wait_seconds?, u.real_seconds)));
        // Of those whose waiting for processors is known: real time, that waiting, and the rest.
        let off = |u: &Usage| {
            let wait = u.processor_wait_seconds?;
            Some((u.real_seconds, wait, (u.real_seconds - u.cpu_seconds() - wait).max(0.0)))
        };
        let offs = || ran.iter().filter_map(|usage| off(usage));
        let known_real = sum(offs().map(|one| one.0));
        let mean = ratio(sum(ratios.iter().copied()), ratios.len() as f64);
        let unknown = |usage: &&&Usage| usage.read_bytes.is_none() || usage.written_bytes.is_none();
        Totals {
            jobs: jobs.len(),
            failed: jobs.iter().filter(failed).count(),
            not_started: jobs.len() - ran.len(),
            real_seconds,
            user_seconds,
            system_seconds,
            real: Spread::of(ran.iter().map(|usage| usage.real_seconds)),
            cpu_per_real_mean_of_jobs: mean,
            cpu_per_real_of_sums: ratio(user_seconds + system_seconds, real_seconds),
            read_bytes: bytes(|usage| usage.read_bytes),
            written_bytes: bytes(|usage| usage.written_bytes),
            bytes_unknown: ran.iter().filter(unknown).count(),
            io_wait_share: ratio(sum(waits().map(|wait| wait.0)), sum(waits().map(|wait| wait.1))),
            processor_wait_share: ratio(sum(offs().map(|one| one.1)), known_real),
            off_processor_share: ratio(sum(offs().map(|one| one.2)), known_real),
            peak_memory_bytes: ran.iter().map(|usage| usage.peak_memory_bytes).max().flatten(),
        }
    }

    /// Jobs that succeeded.
    #[must_use]
    pub fn succeeded(&self) -> usize {
        self.jobs - self.failed - self.not_started
    }

    /// Jobs that were started.
    #[must_use]
    pub fn ran(&self) -> usize {
        self.jobs - self.not_started
    }
}

/// The kind's name for people.
#[must_use]
pub fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Io => "I/O",
        JobKind::Computation => "computation",
        JobKind::Memory => "memory",
    }
}

/// Jobs by something, in its order.
fn groups<'a, K: Ord>(
    jobs: impl Iterator<Item = &'a JobRecord>,
    by: impl Fn(&'a JobRecord) -> K,
    name: impl Fn(&K) -> (String, Option<JobKind>),
) -> Vec<Group> {
    let mut members: BTreeMap<K, Vec<&JobRecord>> = BTreeMap::new();
    for job in jobs {
        members.entry(by(job)).or_default().push(job);
    }
    let group = |(key, jobs): (K, Vec<&JobRecord>)| {
        let (name, kind) = name(&key);
        Group { name, kind, totals: Totals::of(jobs) }
    };
    members.into_iter().map(group).collect()
}

pub(super) fn by_class<'a>(jobs: impl Iterator<Item = &'a JobRecord>) -> Vec<Group> {
    groups(jobs, |job| (job.class.as_str(), job.kind), |key| (key.0.to_owned(), Some(key.1)))
}

pub(super) fn by_kind<'a>(jobs: impl Iterator<Item = &'a JobRecord>) -> Vec<Group> {
    groups(jobs, |job| job.kind, |&kind| (kind_name(kind).to_owned(), Some(kind)))
}

pub(super) fn by_node<'a>(jobs: impl Iterator<Item = &'a JobRecord>) -> Vec<Group> {
    groups(jobs, |job| job.node, |node| (format!("node {node}"), None))
}

impl Uniformity {
    /// In the stage whose nodes differ most: a node of four stages has more to do than one of one. `None`
    /// if no stage has two nodes.
    pub(super) fn of_stages(stages: &[Stage]) -> Option<Uniformity> {
        let of_stage = |stage: &Stage| Uniformity::of(&by_node(stage.jobs.iter()));
        let differ = |one: &Uniformity| one.max_per_min.unwrap_or(f64::INFINITY);
        stages.iter().filter_map(of_stage).max_by(|a, b| differ(a).total_cmp(&differ(b)))
    }

    /// Of nodes; `None` of fewer than two.
    pub(super) fn of(nodes: &[Group]) -> Option<Uniformity> {
        if nodes.len() < 2 {
            return None;
        }
        let real_seconds = Spread::of(nodes.iter().map(|node| node.totals.real_seconds))?;
        let ratios = nodes.iter().filter_map(|node| node.totals.cpu_per_real_of_sums);
        Some(Uniformity {
            real_seconds,
            max_per_min: ratio(real_seconds.max, real_seconds.min),
            cpu_per_real: Spread::of(ratios),
        })
    }
}

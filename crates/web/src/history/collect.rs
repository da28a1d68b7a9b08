//! Looks at the grid and the file system every few seconds: samples for the history, conditions for alerts, and the latest look for pages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anyhow::Result;
use forebay_engine::protocol::client::{Client, makes_no_sense};
use forebay_engine::protocol::{Answer, Ask, HostState, HostView, JobView, QueueView, UsageQuery};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use crate::api::grid::{all_hosts, all_queues};
use crate::app::App;
use crate::history::errors::{DiskErrors, ErrorWatch};
use crate::http::Certificate;
use crate::watched::{Cause, ClusterHealth, Files, Sight, causes_since};

/// What was found at one time.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When.
    pub at: Moment,
    /// Why the controller was not asked.
    pub unreachable: Option<String>,
    /// All hosts.
    pub hosts: Vec<HostView>,
    /// All queues.
    pub queues: Vec<QueueView>,
    /// What is wrong with the journal.
    pub trouble: Option<String>,
    /// The file system, if there is one.
    pub files: Option<Files>,
    /// Why it cannot be asked.
    pub files_fault: Option<String>,
    /// Why there is none to watch, where nothing is wrong with that.
    pub no_files: Option<String>,
    /// Disks that had errors lately.
    pub disk_errors: Vec<DiskErrors>,
    /// Services that the grid does not start any more.
    pub lost_services: Vec<LostService>,
    /// The cluster of which this machine is a node, if it is one.
    pub cluster: Option<ClusterHealth>,
    /// Who caused what since the look before.
    pub causes: Vec<Cause>,
    /// Rates since the look before.
    pub rates: Rates,
    /// Jobs that failed within the time that alerts are about.
    pub failed_lately: u64,
    /// Certificates that are in use.
    pub certificates: Vec<Certificate>,
}

/// A service that failed too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostService {
    /// Its name.
    pub name: String,
    /// Its job.
    pub job: String,
}

/// How much happens.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Tasks that end, in a minute.
    pub jobs_per_minute: f64,
    /// Tasks that fail, in a minute.
    pub failed_per_minute: f64,
    /// Operations of the file system, in a second.
    pub operations: f64,
    /// Bytes read, in a second.
    pub read_bytes: f64,
    /// Bytes written, in a second.
    pub written_bytes: f64,
    /// Mean time of an operation, in seconds.
    pub latency_mean: f64,
    /// 99 of 100 operations took no longer, in seconds.
    pub latency_p99: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            jobs_per_minute: f64::NAN,
            failed_per_minute: f64::NAN,
            operations: f64::NAN,
            read_bytes: f64::NAN,
            written_bytes: f64::NAN,
            latency_mean: f64::NAN,
            latency_p99: f64::NAN,
        }
    }
}

/// Sums of tasks that ended, since a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    since: jiff::civil::Date,
    jobs: u64,
    failed: u64,
}

/// What is kept from one look to the next.
#[derive(Default)]
pub struct Collector {
    before: Option<Arc<Look>>,
    ends: Option<Ends>,
    /// When tasks failed, and how many.
    failed: VecDeque<(Moment, u64)>,
    errors: ErrorWatch,
}

impl Collector {
    /// Looks, keeps the samples, and judges what it found.
    pub fn look(&mut self, app: &App) -> Arc<Look> {
        let at = app.now();
        let mut look = Look { at, ..Look::default() };
        if let Err(error) = self.ask(app, &mut look) {
            look.unreachable = Some(format!("{error:#}"));
        }
        match app.watched.files() {
            Ok(Sight::Mounted(files)) => look.files = Some(*files),
            Ok(Sight::Nothing(why)) => look.no_files = Some(why),
            Err(fault) => look.files_fault = Some(fault),
        }
        if let Some(files) = &look.files {
            let within = app.settings.alerts.disk_errors_within.as_ms();
            look.disk_errors = self.errors.take(at, &files.disks, within);
        }
        look.cluster = app.watched.cluster();
        look.certificates =
            app.settings.tls_cert.iter().filter_map(|file| Certificate::read(file).ok()).collect();
        if let Some(before) = &self.before {
            let seconds = seconds(at.since(before.at));
            if let (Some(now), Some(earlier)) = (&look.files, &before.files) {
                look.causes = causes_since(now, earlier);
                file_rates(&mut look.rates, now, earlier, seconds);
            }
        }
        if let Err(error) = keep(app, &look) {
            tracing::warn!("a sample was not kept: {error:#}");
        }
        let look = Arc::new(look);
        self.before = Some(Arc::clone(&look));
        look
    }

    fn ask(&mut self, app: &App, look: &mut Look) -> Result<()> {
        let mut client = Client::connect(&app.home)?;
        let failed = |problem: crate::problem::Problem| anyhow::anyhow!(problem.detail);
        (look.hosts, look.trouble) = all_hosts(&mut client).map_err(failed)?;
        (look.queues, _) = all_queues(&mut client).map_err(failed)?;
        let runs_max = app.settings.history.runs_max;
        if runs_max > 0 && look.hosts.iter().any(|host| !host.tasks.is_empty()) {
            // The oldest come first, and so do those that run.
            let (mut jobs, _) = client.jobs(None, false, Some(runs_max.saturating_mul(2)))?;
            jobs.retain(|job| job.host.is_some() && job.tasks == 1);
            if let Err(error) = app.runs.take(look.at, &jobs) {
                tracing::warn!("what jobs use was not kept: {error:#}");
            }
        }
        look.lost_services = lost_services(&mut client)?;
        let today = jiff::Timestamp::from_millisecond(i64::try_from(look.at.0)?)?
            .to_zoned(jiff::tz::TimeZone::UTC)
            .date();
        // From one day on, so that sums only grow; the day is taken anew when it has passed.
        let since = match self.ends {
            Some(ends) if today.since(ends.since)?.get_days() <= 1 => ends.since,
            Some(_) | None => today.yesterday()?,
        };
        let query = UsageQuery { since: Some(since), ..UsageQuery::default() };
        let rows = match client.ask(&Ask::Usage { query })? {
            Answer::Usage { rows } => rows,
            answer => return Err(makes_no_sense(&answer)),
        };
        let ends = Ends {
            since,
            jobs: rows.iter().map(|row| row.jobs).sum(),
            failed: rows.iter().map(|row| row.failed).sum(),
        };
        if let (Some(earlier), Some(before)) = (self.ends, &self.before)
            && earlier.since == since
        {
            let minutes = seconds(look.at.since(before.at)) / 60.0;
            let failed = ends.failed.saturating_sub(earlier.failed);
            look.rates.jobs_per_minute = count(ends.jobs.saturating_sub(earlier.jobs)) / minutes;
            look.rates.failed_per_minute = count(failed) / minutes;
            self.failed.push_back((look.at, failed));
        }
        self.ends = Some(ends);
        let within = app.settings.alerts.failed_jobs_within.as_ms();
        while self.failed.front().is_some_and(|(at, _)| look.at.since(*at) > within) {
            self.failed.pop_front();
        }
        look.failed_lately = self.failed.iter().map(|(_, failed)| failed).sum();
        Ok(())
    }
}

/// Services whose latest job has failed as often as it may.
fn lost_services(client: &mut Client) -> Result<Vec<LostService>> {
    let jobs = match client.ask(&Ask::Services { ended: true })? {
        Answer::Jobs { jobs, .. } => jobs,
        answer => return Err(makes_no_sense(&answer)),
    };
    let mut latest: BTreeMap<String, JobView> = BTreeMap::new();
    for job in jobs {
        let Some(service) = &job.service else { continue };
        let name = format!("{}/{}", job.user, service.name);
        if latest.get(&name).is_none_or(|other| other.submitted <= job.submitted) {
            latest.insert(name, job);
        }
    }
    let lost = latest.into_iter().filter(|(_, job)| job.state == JobState::AttemptsMax);
    Ok(lost.map(|(name, job)| LostService { name, job: job.id }).collect())
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn count(number: u64) -> f64 {
    number as f64
}

fn seconds(ms: u64) -> f64 {
    (count(ms) / 1000.0).max(0.001)
}

fn file_rates(rates: &mut Rates, now: &Files, before: &Files, seconds: f64) {
    if now.operations < before.operations {
        return; // Another mount.
    }
    let operations = now.operations - before.operations;
    rates.operations = count(operations) / seconds;
    rates.read_bytes = count(now.read_bytes.saturating_sub(before.read_bytes)) / seconds;
    rates.written_bytes = count(now.written_bytes.saturating_sub(before.written_bytes)) / seconds;
    if operations > 0 {
        let nanoseconds = count(now.nanoseconds.saturating_sub(before.nanoseconds));
        rates.latency_mean = nanoseconds / 1e9 / count(operations);
    }
    rates.latency_p99 = percentile(&now.latencies, &before.latencies);
}

/// The upper edge of the class that holds the 99th of a hundred operations.
fn percentile(now: &[(f64, u64)], before: &[(f64, u64)]) -> f64 {
    let earlier = |edge: f64| {
        before
            .iter()
            .find(|(other, _)| other.to_bits() == edge.to_bits())
            .map_or(0, |found| found.1)
    };
    let since: Vec<(f64, u64)> =
        now.iter().map(|(edge, all)| (*edge, all.saturating_sub(earlier(*edge)))).collect();
    let all: u64 = since.iter().map(|(_, count)| count).sum();
    let mut left = (all * 99).div_ceil(100);
    for (edge, count) in since {
        if all > 0 && count >= left {
            return edge;
        }
        left -= count.min(left);
    }
    f64::NAN
}

fn keep(app: &App, look: &Look) -> Result<()> {
    let (history, time) = (&app.history, look.at.0 / 1000);
    if look.unreachable.is_none() {
        let hosts = |state: HostState| {
            count(look.hosts.iter().filter(|host| host.state == state).count() as u64)
        };
        let slots = |of: fn(&HostView) -> u32| {
            f64::from(look.hosts.iter().filter(|h| h.state == HostState::Up).map(of).sum::<u32>())
        };
        let tasks = |of: fn(&QueueView) -> u64| count(look.queues.iter().map(of).sum());
        let values = [
            slots(|host| host.slots),
            slots(|host| host.used_slots),
            tasks(|queue| queue.pending_tasks),
            tasks(|queue| queue.held_tasks),
            tasks(|queue| queue.active_tasks),
            hosts(HostState::Up),
            hosts(HostState::Unreachable),
            look.rates.jobs_per_minute,
            look.rates.failed_per_minute,
        ];
        history.add("grid", time, &values)?;
    }
    for host in &look.hosts {
        let load = host.load.filter(|_| host.state == HostState::Up);
        let values = [
            f64::from(host.slots),
            f64::from(host.used_slots),
            load.map_or(f64::NAN, |load| load.r1m),
            load.map_or(f64::NAN, |load| load.ut),
            f64::from(u8::from(host.state == HostState::Up)),
        ];
        history.add(&format!("host/{}", host.name), time, &values)?;
    }
    for queue in &look.queues {
        let values = [
            f64::from(queue.used_slots),
            count(queue.pending_tasks),
            count(queue.held_tasks),
            count(queue.active_tasks),
        ];
        history.add(&format!("queue/{}", queue.name), time, &values)?;
    }
    let Some(files) = &look.files else { return Ok(()) };
    let rates = look.rates;
    let values = [
        rates.operations,
        rates.read_bytes,
        rates.written_bytes,
        rates.latency_mean,
        rates.latency_p99,
        count(files.waiting as u64),
        files.commit_age_seconds,
        count(files.uncommitted as u64),
        count(files.disks.iter().map(|disk| disk.total_bytes).sum()),
        count(files.disks.iter().map(|disk| disk.free_bytes).sum()),
    ];
    history.add("files", time, &values)?;
    for fileset in &files.filesets {
        let known = |value: Option<u64>| value.map_or(f64::NAN, count);
        let values = [known(fileset.bytes), known(fileset.inodes)];
        history.add(&format!("fileset/{}", fileset.name), time, &values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_look_before() {
        let before = Files {
            operations: 100,
            nanoseconds: 1_000_000,
            latencies: vec![(0.001, 90), (0.01, 10)],
            ..Files::default()
        };
        let now = Files {
            operations: 300,
            nanoseconds: 401_000_000,
            written_bytes: 1000,
            latencies: vec![(0.001, 285), (0.01, 10), (0.1, 5)],
            ..Files::default()
        };
        let mut rates = Rates::default();
        file_rates(&mut rates, &now, &before, 2.0);
        assert_eq!((rates.operations, rates.written_bytes), (100.0, 500.0));
        assert!((rates.latency_mean - 0.002).abs() < 1e-9);
        assert!((rates.latency_p99 - 0.1).abs() < 1e-9);
        let mut other = Rates::default();
        file_rates(&mut other, &before, &now, 2.0);
        assert!(other.operations.is_nan(), "the file system was mounted anew");
        assert!(percentile(&[], &[]).is_nan());
    }
}

//! What watches a run: the sampler of this machine, or the watchers of the hosts on which the jobs are.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_process::accounting::Counters;

use super::stage::{JobCounts, Unseen};
use crate::error::Result;
use crate::hosts::{HostJob, Hosts};
use crate::record::{DeviceScope, HostRun, Sample};
use crate::sampler::{Sampler, row};

/// What watches a run.
pub enum Eye<'a> {
    /// This machine, on which the jobs run.
    Here(Sampler, DeviceScope),
    /// The hosts, on which they run.
    Hosts(HostEye<'a>),
}

/// What a run on hosts has to remember until its end.
pub struct HostEye<'a> {
    hosts: &'a RefCell<Hosts>,
    /// The folder of the result.
    out: &'a Path,
    clock: Arc<dyn Clock>,
    begin: Instant,
    begin_unix_seconds: f64,
    /// Ends of stages.
    marks: Vec<f64>,
    jobs: Vec<HostJob>,
    /// Numbers of jobs, from when on.
    counts: Vec<(f64, JobCounts)>,
}

/// What was seen of a run.
pub struct Seen {
    pub samples: Vec<Sample>,
    pub hosts: Vec<HostRun>,
    pub device_scope: DeviceScope,
}

impl<'a> Eye<'a> {
    /// Watches the hosts from now on.
    pub fn on_hosts(
        hosts: &'a RefCell<Hosts>,
        out: &'a Path,
        clock: &Arc<dyn Clock>,
        begin: Instant,
    ) -> Eye<'a> {
        let now = clock.now();
        let passed = clock.instant().saturating_duration_since(begin).as_secs_f64();
        let now_seconds = now.seconds as f64 + f64::from(now.nanoseconds) / 1e9;
        Eye::Hosts(HostEye {
            hosts,
            out,
            clock: Arc::clone(clock),
            begin,
            begin_unix_seconds: now_seconds - passed,
            marks: Vec::new(),
            jobs: Vec::new(),
            counts: Vec::new(),
        })
    }

    pub fn job_started(&self, pid: u32, at: Instant) {
        match self {
            Eye::Here(sampler, _) => sampler.job_started(pid, at),
            // A process of another machine has a number that means another one here.
            Eye::Hosts(_) => {}
        }
    }

    pub fn job_ended(&self, pid: u32, at: Instant, last: Option<&Counters>) {
        match self {
            Eye::Here(sampler, _) => sampler.job_ended(pid, at, last),
            Eye::Hosts(_) => {}
        }
    }

    pub fn job_unseen(&mut self, job: &Unseen<'_>) {
        match self {
            Eye::Here(sampler, _) => {
                if let Some(last) = job.last {
                    sampler.job_unseen(job.start, job.end, last);
                }
            }
            Eye::Hosts(eye) => {
                let Some(host) = job.host else { return };
                let seconds = |at| eye.seconds(at);
                let (start_seconds, end_seconds) = (seconds(job.start), seconds(job.end));
                eye.jobs.push(HostJob {
                    record: job
                        .record
                        .strip_prefix(eye.out)
                        .unwrap_or(job.record)
                        .display()
                        .to_string(),
                    host: host.to_owned(),
                    start_seconds,
                    end_seconds,
                    last: job.last.map(row),
                });
            }
        }
    }

    /// The numbers of jobs from now on.
    pub fn set_jobs(&mut self, counts: JobCounts) {
        match self {
            Eye::Here(sampler, _) => sampler.set_jobs(counts.waiting, counts.running, counts.done),
            Eye::Hosts(eye) => {
                if eye.counts.last().is_none_or(|last| last.1 != counts) {
                    let now = eye.seconds(eye.clock.instant());
                    eye.counts.push((now, counts));
                }
            }
        }
    }

    /// A stage has ended.
    pub fn mark(&mut self) {
        match self {
            Eye::Here(sampler, _) => sampler.mark(),
            Eye::Hosts(eye) => {
                let now = eye.seconds(eye.clock.instant());
                eye.marks.push(now);
            }
        }
    }

    /// The latest second.
    pub fn latest(&self) -> Option<Sample> {
        match self {
            Eye::Here(sampler, _) => sampler.latest(),
            Eye::Hosts(eye) => {
                let mut hosts = eye.hosts.borrow_mut();
                // What cannot be read now is an error at the end.
                let _ = hosts.read();
                hosts.latest()
            }
        }
    }

    /// The run has ended: all that was seen, in intervals of `interval`.
    ///
    /// # Errors
    /// If the files of a host cannot be read.
    pub fn stop(self, interval: Duration) -> Result<Seen> {
        match self {
            Eye::Here(sampler, device_scope) => {
                Ok(Seen { samples: sampler.stop(), hosts: Vec::new(), device_scope })
            }
            Eye::Hosts(eye) => eye.stop(interval),
        }
    }
}

impl HostEye<'_> {
    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begin).as_secs_f64()
    }

    fn stop(self, interval: Duration) -> Result<Seen> {
        let seconds = self.seconds(self.clock.instant());
        let interval = interval.as_secs_f64();
        let mut hosts = self.hosts.borrow_mut();
        let watched =
            hosts.watched(self.begin_unix_seconds, seconds, &self.marks, interval, &self.jobs)?;
        let mut samples = watched.samples;
        for sample in &mut samples {
            let known = self.counts.partition_point(|(at, _)| *at <= sample.at_seconds);
            if let Some((_, counts)) = known.checked_sub(1).map(|place| self.counts[place]) {
                sample.jobs_waiting = counts.waiting;
                sample.jobs_running = counts.running;
                sample.jobs_done = counts.done;
            }
        }
        Ok(Seen { samples, hosts: watched.hosts, device_scope: watched.device_scope })
    }
}

//! Drives the jobs of one stage through a launcher.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_process::accounting::Counters;
use forebay_workload::mix::{PlannedJob, PlannedStage};
use forebay_workload::program::StepRecord;

use super::launcher::{Event, Launch, Launcher};
use crate::error::{Error, Result};
use crate::record::{Exit, JobRecord, Stage, Usage};

/// How long to wait for the launcher at a time; display and interrupts are looked at in between.
const TURN: Duration = Duration::from_millis(100);

/// How many jobs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Due and not yet started.
    pub waiting: u32,
    /// Running.
    pub running: u32,
    /// Ended.
    pub done: u32,
    /// Ended, and not well.
    pub failed: u32,
    /// All of the stage.
    pub total: u32,
}

/// Hears of what happens in a stage, as it happens.
pub trait Listener {
    /// A job's process runs since `at`.
    fn job_started(&mut self, pid: u32, at: Instant);
    /// A job's process has ended at `at`, with these counters.
    fn job_ended(&mut self, pid: u32, at: Instant, last: Option<&Counters>);
    /// A job whose process was never known here.
    fn job_unseen(&mut self, job: &Unseen<'_>);
    /// Called several times a second.
    fn turn(&mut self, counts: JobCounts);
    /// Why everything is to be stopped, once it is.
    fn interrupted(&self) -> Option<String>;
}

/// A job that has ended, and whose process was never known here.
#[derive(Clone, Copy, Debug)]
pub struct Unseen<'a> {
    /// The file of the records of its steps.
    pub record: &'a Path,
    /// The host that ran it, if known.
    pub host: Option<&'a str>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Its counters at the end, if known.
    pub last: Option<&'a Counters>,
}

/// What every job of a stage is told.
pub struct Orders<'a> {
    /// Makes the command of a job, with the file for the records of its steps.
    pub command: &'a dyn Fn(&PlannedJob, &Path) -> Result<Vec<std::ffi::OsString>>,
    /// Folder for records and output of running jobs.
    pub folder: &'a Path,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// When the run began; all times of records count from it.
    pub begin: Instant,
}

/// A stage under way.
struct Driver<'a> {
    stage: &'a PlannedStage,
    orders: &'a Orders<'a>,
    states: Vec<JobState>,
    counts: JobCounts,
    start: Instant,
}

/// What is known of a job.
enum JobState {
    /// Not yet handed to the launcher.
    Planned,
    /// Handed to the launcher.
    Submitted { due: f64 },
    /// Its process runs.
    Running { due: f64, start: Instant, pid: Option<u32> },
    /// It has ended.
    Ended(Box<JobRecord>),
}

/// Runs `stage`; returns what became of it, and why it was stopped, if it was.
///
/// # Errors
/// If the launcher fails; then all jobs have been ended.
pub fn run(
    stage: &PlannedStage,
    orders: &Orders<'_>,
    launcher: &mut dyn Launcher,
    listener: &mut dyn Listener,
) -> Result<(Stage, Option<String>)> {
    let mut driver = Driver {
        stage,
        orders,
        states: stage.jobs.iter().map(|_| JobState::Planned).collect(),
        counts: JobCounts { total: stage.jobs.len() as u32, ..JobCounts::default() },
        start: orders.clock.instant(),
    };
    launcher.set_slots(stage.nodes, stage.concurrent);
    let result = driver.run(launcher, listener);
    // After an interrupt or an error nothing may go on; otherwise there is nothing left to stop.
    for event in launcher.stop() {
        driver.take(event, listener);
    }
    listener.turn(driver.counts);
    let stopped = result?;
    Ok((driver.finish(), stopped))
}

impl Driver<'_> {
    fn run(
        &mut self,
        launcher: &mut dyn Launcher,
        listener: &mut dyn Listener,
    ) -> Result<Option<String>> {
        while (self.counts.done as usize) < self.stage.jobs.len() {
            if let Some(reason) = listener.interrupted() {
                return Ok(Some(reason));
            }
            let next_due = self.submit_due(launcher)?;
            for event in launcher.wait(next_due.map_or(TURN, |due| due.min(TURN)))? {
                self.take(event, listener);
            }
            listener.turn(self.counts);
        }
        // Whoever interrupted may have ended the last jobs as well.
        Ok(if self.counts.failed > 0 { listener.interrupted() } else { None })
    }

    /// Submits what is due; returns how long until the next is.
    fn submit_due(&mut self, launcher: &mut dyn Launcher) -> Result<Option<Duration>> {
        let now = self.orders.clock.instant().saturating_duration_since(self.start).as_secs_f64();
        let mut next = None;
        for (number, job) in self.stage.jobs.iter().enumerate() {
            let free =
                job.after.is_none_or(|before| matches!(self.states[before], JobState::Ended(_)));
            if !matches!(self.states[number], JobState::Planned) || !free {
                continue;
            }
            if job.due_seconds > now {
                let wait = Duration::from_secs_f64(job.due_seconds - now);
                next = Some(next.map_or(wait, |least: Duration| least.min(wait)));
                continue;
            }
            launcher.submit(Launch {
                number,
                name: job.job.name.clone(),
                node: job.node,
                command: (self.orders.command)(job, &self.record_path(number))?,
                output: self.output_path(number),
            })?;
            self.counts.waiting += 1;
            let due = match job.after.map(|before| &self.states[before]) {
                Some(JobState::Ended(before)) => before.end_seconds.unwrap_or(0.0),
                _ => self.seconds(self.start) + job.due_seconds,
            };
            self.states[number] = JobState::Submitted { due };
        }
        Ok(next)
    }

    fn take(&mut self, event: Event, listener: &mut dyn Listener) {
        match event {
            Event::Started { number, at, pid } => {
                let JobState::Submitted { due } = self.states[number] else {
                    unreachable!("a job starts once, after it was submitted");
                };
                self.counts.waiting -= 1;
                self.counts.running += 1;
                self.states[number] = JobState::Running { due, start: at, pid };
                if let Some(pid) = pid {
                    listener.job_started(pid, at);
                }
            }
            Event::Ended { number, at, exit, host, usage, last } => {
                let (due, start, pid) = match self.states[number] {
                    JobState::Running { due, start, pid } => {
                        self.counts.running -= 1;
                        (due, Some(start), pid)
                    }
                    JobState::Submitted { due } => {
                        self.counts.waiting -= 1;
                        (due, None, None)
                    }
                    JobState::Planned | JobState::Ended(_) => {
                        unreachable!("a job ends once, after it was submitted")
                    }
                };
                match (pid, start) {
                    (Some(pid), _) => listener.job_ended(pid, at, last.as_ref()),
                    (None, Some(start)) => listener.job_unseen(&Unseen {
                        record: &self.record_path(number),
                        host: host.as_deref(),
                        start,
                        end: at,
                        last: last.as_ref(),
                    }),
                    (None, None) => {}
                }
                self.counts.done += 1;
                self.counts.failed += u32::from(exit != Exit::Success);
                let end = start.map(|_| self.seconds(at));
                let start = start.map(|start| self.seconds(start));
                let record = self.job_record(number, due, start, end, exit, *usage);
                self.states[number] = JobState::Ended(Box::new(JobRecord { host, ..record }));
            }
        }
    }

    fn job_record(
        &self,
        number: usize,
        due_seconds: f64,
        start_seconds: Option<f64>,
        end_seconds: Option<f64>,
        exit: Exit,
        usage: Usage,
    ) -> JobRecord {
        let job = &self.stage.jobs[number];
        JobRecord {
            name: job.job.name.clone(),
            class: job.job.class.clone(),
            kind: job.kind,
            node: job.node,
            host: None,
            session: job.session,
            due_seconds,
            start_seconds,
            end_seconds,
            exit,
            usage,
            steps: step_records(&self.record_path(number)),
        }
    }

    fn finish(mut self) -> Stage {
        let end = self.orders.clock.instant();
        let jobs = (0..self.states.len())
            .map(|number| match std::mem::replace(&mut self.states[number], JobState::Planned) {
                JobState::Ended(record) => *record,
                JobState::Planned | JobState::Submitted { .. } | JobState::Running { .. } => {
                    let due = self.seconds(self.start) + self.stage.jobs[number].due_seconds;
                    let usage = Usage::default();
                    self.job_record(number, due, None, None, Exit::NotStarted, usage)
                }
            })
            .collect();
        Stage {
            name: self.stage.name.clone(),
            nodes: self.stage.nodes,
            sessions: self.stage.sessions,
            concurrent: self.stage.concurrent,
            start_seconds: self.seconds(self.start),
            end_seconds: self.seconds(end),
            jobs,
        }
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.orders.begin).as_secs_f64()
    }

    fn record_path(&self, number: usize) -> PathBuf {
        self.orders.folder.join(format!("{}.steps", self.stage.jobs[number].job.name))
    }

    fn output_path(&self, number: usize) -> PathBuf {
        self.orders.folder.join(format!("{}.log", self.stage.jobs[number].job.name))
    }
}

/// The records of the steps that ended. A line that was cut off when the job was killed is left out.
fn step_records(path: &Path) -> Vec<StepRecord> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The last words of a job, from the file that took what it printed.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn last_words(path: &Path) -> Result<String> {
    const KEPT: usize = 500;
    let text = std::fs::read(path).map_err(Error::io("read", path))?;
    let text = String::from_utf8_lossy(&text);
    // What a command line is refused for stands before an empty line and this hint.
    const HINT: &str = "For more information, try";
    let hinted = text.lines().rev().find(|line| !line.trim().is_empty());
    let refused = hinted
        .filter(|line| line.starts_with(HINT))
        .and_then(|_| text.lines().rev().find_map(|line| line.strip_prefix("error: ")));
    let line = refused.or(hinted).unwrap_or_default();
    Ok(line.chars().take(KEPT).collect())
}

#[cfg(test)]
mod tests;

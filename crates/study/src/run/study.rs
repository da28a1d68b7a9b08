//! A whole study: inputs, rounds, subjects, and the record of it all.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_analytics::dataset::format_datetime;
use forebay_base::{Clock, Timestamp};
use forebay_process::accounting::Counters;
use forebay_workload::mix::{Mix, Plan, PlannedJob, PlannedStage, SpaceNeed};
use forebay_workload::program::{Job, Places};

use super::eye::Eye;
use super::folders::Folders;
use super::ground::{Areas, Ground};
use super::launcher::Launcher;
use super::stage::{self, JobCounts, Listener, Orders, Unseen};
use crate::environment;
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::record::{
    Cache, DeviceScope, Exit, Record, Run, Sample, Stage, State, Storage, Subject, Workload,
};
use crate::sampler::Sampler;

/// Seconds between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// What to do with caches before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// Leave them as they are.
    AsTheyAre,
    /// Empty them (needs root).
    Emptied,
}

/// What to do with the files on the storage at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Remove them.
    Remove,
    /// Leave them.
    Keep,
}

/// Where temporary data sets and utility files of jobs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// To the areas of the storage.
    OfSubjects,
    /// To the work areas that the grid gives each job (WORK and UTIL).
    OfJobs,
}

impl Scratch {
    /// What of the space that a plan needs is needed on the storage.
    #[must_use]
    pub fn needed(self, all: &SpaceNeed) -> SpaceNeed {
        match self {
            Scratch::OfSubjects => *all,
            Scratch::OfJobs => SpaceNeed { data: all.data, ..SpaceNeed::default() },
        }
    }

    /// The description of an area that holds temporary files.
    fn storage(self, area: &Path, variable: &str) -> Result<Storage> {
        match self {
            Scratch::OfSubjects => environment::storage(area),
            Scratch::OfJobs => Ok(Storage {
                path: variable.into(),
                file_system: "work areas of the jobs".to_owned(),
                mountpoint: variable.into(),
                ..Storage::default()
            }),
        }
    }
}

/// A study to be made.
pub struct Order<'a> {
    /// The workload...
    pub mix: &'a Mix,
    /// ...at a scale.
    pub plan: &'a Plan,
    /// Where; several to compare them.
    pub subjects: &'a [Areas],
    /// How often on each subject, at least once.
    pub rounds: u32,
    /// What to do with caches before each run.
    pub caches: Caches,
    /// Where temporary files go.
    pub scratch: Scratch,
    /// What to do with files at the end.
    pub leftovers: Leftovers,
    /// The folder of the result; exists.
    pub out: &'a Path,
    /// The forebay program, which runs the jobs.
    pub program: &'a Path,
    /// The command that repeats the study.
    pub command: &'a [String],
    /// Version of Forebay.
    pub version: &'a str,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The hosts that run the jobs, if those are others than this machine; their watchers run.
    pub hosts: Option<&'a RefCell<Hosts>>,
}

/// What is going on.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Watchers of hosts are being started.
    Hosts {
        /// The hosts that have not answered yet.
        silent: Vec<String>,
    },
    /// Inputs are being made.
    Preparing {
        /// Of which subject.
        subject: String,
        /// How many are made.
        counts: JobCounts,
    },
    /// A stage runs.
    Running {
        /// On which subject.
        subject: String,
        /// The round, from 0.
        round: u32,
        /// The stage.
        stage: String,
        /// Seconds since the run began.
        seconds: f64,
        /// How many jobs are in which state.
        counts: JobCounts,
        /// What the machine did in the last second, once one has passed.
        sample: Option<Box<Sample>>,
    },
    /// Files were left on the storage.
    Left(PathBuf),
}

/// Sees what is going on, and can stop it.
pub trait Observer {
    /// Called several times a second.
    fn progress(&mut self, progress: Progress);
    /// Why the study is to be stopped, once it is.
    fn interrupted(&self) -> Option<String>;
}

/// Makes the study. The record is whole also if jobs failed or it was stopped: then it says so.
///
/// # Errors
/// [`Error::Space`] and [`Error::Io`] if it cannot begin; the first error of making inputs, of the
/// launcher, or of clearing up. Nothing of it runs any more then, and nothing is left on the storage or
/// in the folder of the result.
pub fn run(
    order: &Order<'_>,
    launcher: &mut dyn Launcher,
    observer: &mut dyn Observer,
) -> Result<Record> {
    Areas::check(order.subjects, &order.scratch.needed(&order.plan.space()))?;
    let study = Study { order, folders: Folders::make(order.out, order.plan)? };
    let made = study.make(launcher, observer);
    if made.is_err() {
        study.folders.remove();
    }
    made
}

fn state(record: &Record, stopped: Option<String>) -> State {
    if let Some(reason) = stopped {
        return State::Partial { reason };
    }
    let jobs = || record.runs.iter().flat_map(Run::jobs);
    let Some(first) = jobs().find(|job| job.exit != Exit::Success) else {
        return State::Complete;
    };
    let failed = jobs().filter(|job| job.exit != Exit::Success).count();
    let how = match &first.exit {
        Exit::Failure { code, message } => format!("exit code {code}: {message}"),
        Exit::Signal { signal } => format!("ended by signal {signal}"),
        Exit::NotStarted | Exit::Success => "never started".to_owned(),
    };
    let reason =
        format!("{failed} of {} jobs failed; the first, {}: {how}", jobs().count(), first.name);
    State::Partial { reason }
}

struct Study<'a> {
    order: &'a Order<'a>,
    folders: Folders,
}

impl Study<'_> {
    fn make(&self, launcher: &mut dyn Launcher, observer: &mut dyn Observer) -> Result<Record> {
        let subjects = self.order.subjects;
        let mut record = self.begin()?;
        let mut grounds = subjects
            .iter()
            .map(|areas| Ground::make(areas, &record.started))
            .collect::<Result<Vec<_>>>()?;
        let stopped = self.play(&mut grounds, &mut record, launcher, observer)?;
        record.state = state(&record, stopped);
        for ground in grounds {
            match self.order.leftovers {
                Leftovers::Remove => {
                    // What was measured is worth more than a file that cannot be removed.
                    if let Err(error) = ground.remove() {
                        record.state = State::Partial { reason: format!("left files: {error}") };
                    }
                }
                Leftovers::Keep => {
                    for path in ground.leave() {
                        observer.progress(Progress::Left(path));
                    }
                }
            }
        }
        self.folders.clear(&record, subjects.len())?;
        Ok(record)
    }

    fn begin(&self) -> Result<Record> {
        let order = self.order;
        let mix = order.mix;
        let subjects = order
            .subjects
            .iter()
            .map(|areas| {
                Ok(Subject {
                    label: areas.label.clone(),
                    data: environment::storage(&areas.data)?,
                    work: order.scratch.storage(&areas.work, "$WORK")?,
                    util: order.scratch.storage(&areas.util, "$UTIL")?,
                })
            })
            .collect::<Result<_>>()?;
        let parameters = mix
            .parameters
            .iter()
            .map(|(name, parameter)| (name.clone(), parameter.text()))
            .collect();
        let hosts = match order.hosts {
            Some(hosts) => hosts.borrow().known()?,
            None => Vec::new(),
        };
        Ok(Record {
            schema: Record::SCHEMA,
            workload: Workload {
                name: mix.name.clone(),
                title: mix.title.clone(),
                study: mix.study.clone(),
                notes: mix.notes.clone(),
                scale: order.plan.scale.get(),
                seed: order.plan.seed,
                buffers: order.plan.buffers,
                parameters,
            },
            command: order.command.to_vec(),
            version: order.version.to_owned(),
            started: format_datetime(order.clock.now().seconds as f64),
            state: State::Partial { reason: "not finished".to_owned() },
            machine: environment::machine(),
            hosts,
            subjects,
            runs: Vec::new(),
        })
    }

    /// Makes the inputs and runs all rounds; returns why it was stopped, if it was.
    fn play(
        &self,
        grounds: &mut [Ground],
        record: &mut Record,
        launcher: &mut dyn Launcher,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let mut prepare_seconds = Vec::new();
        for (subject, ground) in grounds.iter_mut().enumerate() {
            let start = self.order.clock.instant();
            if let Some(reason) = self.prepare(ground, subject, launcher, observer)? {
                return Ok(Some(reason));
            }
            prepare_seconds.push((self.order.clock.instant() - start).as_secs_f64());
        }
        for round in 0..self.order.rounds {
            for turn in 0..grounds.len() {
                let subject = (round as usize + turn) % grounds.len();
                let (mut run, stopped) = self.run_once(
                    &grounds[subject],
                    &record.subjects[subject],
                    Turn { run: record.runs.len(), subject, round },
                    record.memory_bytes(),
                    launcher,
                    observer,
                )?;
                run.prepare_seconds = prepare_seconds[subject];
                record.runs.push(run);
                grounds[subject].clear_results()?;
                if stopped.is_some() {
                    return Ok(stopped);
                }
            }
        }
        Ok(None)
    }

    /// Makes the inputs of one subject.
    fn prepare(
        &self,
        ground: &mut Ground,
        subject: usize,
        launcher: &mut dyn Launcher,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>> {
        let stage = self.input_stage();
        let places = ground.places();
        let folder = self.folders.make_for_inputs(subject)?;
        let mut listener = Preparing { subject: &self.order.subjects[subject].label, observer };
        let command = |job: &PlannedJob, steps: &Path| Ok(self.command(&places, job, steps));
        let orders = Orders {
            command: &command,
            folder: &folder,
            clock: &*self.order.clock,
            begin: self.order.clock.instant(),
        };
        let (stage, stopped) = stage::run(&stage, &orders, launcher, &mut listener)?;
        if stopped.is_some() {
            return Ok(stopped);
        }
        if let Some(failed) = stage.jobs.iter().find(|job| job.exit != Exit::Success) {
            let log = folder.join(format!("{}.log", failed.name));
            let reason = stage::last_words(&log)?;
            return Err(Error::Input { name: failed.name.clone(), reason });
        }
        ground.keep_inputs()?;
        Ok(None)
    }

    /// The inputs as jobs of a stage of their own, as many at once as there are processors.
    fn input_stage(&self) -> PlannedStage {
        let plan = self.order.plan;
        let jobs = plan
            .inputs
            .iter()
            .map(|input| PlannedJob {
                job: Job {
                    name: format!("input-{}", input.name()),
                    class: input.program.name.clone(),
                    number: input.number,
                    count: input.count,
                },
                kind: forebay_workload::mix::JobKind::Io,
                node: 0,
                session: None,
                due_seconds: 0.0,
                after: None,
                program: input.program.clone(),
                space: SpaceNeed::default(),
            })
            .collect();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        PlannedStage {
            name: "inputs".to_owned(),
            nodes: 1,
            sessions: None,
            concurrent: cpus as u32,
            jobs,
        }
    }

    fn run_once(
        &self,
        ground: &Ground,
        storage: &Subject,
        turn: Turn,
        memory_bytes: u64,
        launcher: &mut dyn Launcher,
        observer: &mut dyn Observer,
    ) -> Result<(Run, Option<String>)> {
        let clock = &*self.order.clock;
        self.settle(ground, observer)?;
        let begin = clock.instant();
        let eye = self.eye(storage, begin)?;
        let places = ground.places();
        let command = |job: &PlannedJob, steps: &Path| Ok(self.command(&places, job, steps));
        let shared = RefCell::new((eye, observer));
        let (mut stages, mut stopped) = (Vec::new(), None);
        for (number, planned) in self.order.plan.stages.iter().enumerate() {
            let folder = self.folders.make_for_stage(turn.run, number)?;
            let orders = Orders { command: &command, folder: &folder, clock, begin };
            let mut listener = Running {
                shared: &shared,
                label: &storage.label,
                round: turn.round,
                stage: &planned.name,
                clock,
                begin,
            };
            let (stage, reason) = stage::run(planned, &orders, launcher, &mut listener)?;
            shared.borrow_mut().0.mark();
            stages.push(with_messages(stage, &folder));
            stopped = reason;
            if stopped.is_some() {
                break;
            }
        }
        let seconds = (clock.instant() - begin).as_secs_f64();
        let (eye, _) = shared.into_inner();
        let seen = eye.stop(INTERVAL)?;
        let run = Run {
            subject: turn.subject,
            round: turn.round,
            cache: self.cache(memory_bytes),
            started_unix_seconds: Some(unix_seconds(clock.now()) - seconds),
            prepare_seconds: 0.0,
            seconds,
            stages,
            samples: seen.samples,
            interval_seconds: INTERVAL.as_secs_f64(),
            device_scope: seen.device_scope,
            hosts: seen.hosts,
        };
        Ok((run, stopped))
    }

    /// Writes back what making inputs left dirty, and empties the caches if that is wanted, on all machines that run jobs.
    fn settle(&self, ground: &Ground, observer: &dyn Observer) -> Result<()> {
        ground.settle()?;
        let drop_caches = self.order.caches == Caches::Emptied;
        if let Some(hosts) = self.order.hosts {
            return hosts.borrow_mut().settle(drop_caches, &|| observer.interrupted().is_some());
        }
        if drop_caches { environment::drop_caches() } else { Ok(()) }
    }

    /// Begins to watch what runs the jobs.
    fn eye(&self, storage: &Subject, begin: Instant) -> Result<Eye<'_>> {
        let clock = &self.order.clock;
        if let Some(hosts) = self.order.hosts {
            return Ok(Eye::on_hosts(hosts, self.order.out, clock, begin));
        }
        let device_scope = match self.order.scratch {
            Scratch::OfSubjects => environment::device_scope(storage),
            // Where the grid has work areas is its own affair.
            Scratch::OfJobs => DeviceScope::AllDisks,
        };
        let sampler = Sampler::start(INTERVAL, &device_scope, begin, Arc::clone(clock))?;
        Ok(Eye::Here(sampler, device_scope))
    }

    fn cache(&self, memory_bytes: u64) -> Cache {
        Cache {
            dropped: self.order.caches == Caches::Emptied,
            input_bytes: self.order.plan.input_bytes(),
            working_set_bytes: self.order.plan.space().total(),
            memory_bytes,
        }
    }

    /// The command of a job: `forebay step`, which a user could call as well.
    fn command(&self, places: &Places, planned: &PlannedJob, steps: &Path) -> Vec<OsString> {
        let (plan, job) = (self.order.plan, &planned.job);
        let mut command: Vec<OsString> = vec![self.order.program.into(), "step".into()];
        command.push(self.folders.program(&planned.program).into());
        let buffers = &plan.buffers;
        if self.order.scratch == Scratch::OfSubjects {
            command.extend(["--work".into(), places.work.clone().into()]);
            command.extend(["--util".into(), places.util.clone().into()]);
        }
        let options: [(&str, OsString); 10] = [
            ("--data", places.data.clone().into()),
            ("--job", job.name.clone().into()),
            ("--class", job.class.clone().into()),
            ("--number", job.number.to_string().into()),
            ("--count", job.count.to_string().into()),
            ("--seed", plan.seed.to_string().into()),
            ("--scale", plan.scale.to_string().into()),
            ("--page-size", buffers.page_bytes.to_string().into()),
            ("--sort-memory", buffers.sort_memory.to_string().into()),
            ("--memory", buffers.memory.to_string().into()),
        ];
        for (name, value) in options {
            command.extend([name.into(), value]);
        }
        command.extend(["--quiet".into(), "--record".into(), steps.into()]);
        command
    }
}

/// Which of all runs is made.
#[derive(Clone, Copy)]
struct Turn {
    /// Its number among all.
    run: usize,
    subject: usize,
    round: u32,
}

/// Adds to each failed job of a stage what it said last, by its log in `folder`.
fn with_messages(mut stage: Stage, folder: &Path) -> Stage {
    for job in &mut stage.jobs {
        if let Exit::Failure { message, .. } = &mut job.exit {
            let log = folder.join(format!("{}.log", job.name));
            *message = stage::last_words(&log).unwrap_or_default();
        }
    }
    stage
}

/// Listens while inputs are made.
struct Preparing<'a> {
    subject: &'a str,
    observer: &'a mut dyn Observer,
}

impl Listener for Preparing<'_> {
    fn job_started(&mut self, _pid: u32, _at: Instant) {}

    fn job_ended(&mut self, _pid: u32, _at: Instant, _last: Option<&Counters>) {}

    fn job_unseen(&mut self, _job: &Unseen<'_>) {}

    fn turn(&mut self, counts: JobCounts) {
        self.observer.progress(Progress::Preparing { subject: self.subject.to_owned(), counts });
    }

    fn interrupted(&self) -> Option<String> {
        self.observer.interrupted()
    }
}

/// Listens while a stage runs.
struct Running<'a, 'b, 'c> {
    shared: &'a RefCell<(Eye<'c>, &'b mut dyn Observer)>,
    label: &'a str,
    round: u32,
    stage: &'a str,
    clock: &'a dyn Clock,
    begin: Instant,
}

impl Listener for Running<'_, '_, '_> {
    fn job_started(&mut self, pid: u32, at: Instant) {
        self.shared.borrow_mut().0.job_started(pid, at);
    }

    fn job_ended(&mut self, pid: u32, at: Instant, last: Option<&Counters>) {
        self.shared.borrow_mut().0.job_ended(pid, at, last);
    }

    fn job_unseen(&mut self, job: &Unseen<'_>) {
        self.shared.borrow_mut().0.job_unseen(job);
    }

    fn turn(&mut self, counts: JobCounts) {
        let (eye, observer) = &mut *self.shared.borrow_mut();
        eye.set_jobs(counts);
        observer.progress(Progress::Running {
            subject: self.label.to_owned(),
            round: self.round,
            stage: self.stage.to_owned(),
            seconds: (self.clock.instant() - self.begin).as_secs_f64(),
            counts,
            sample: eye.latest().map(Box::new),
        });
    }

    fn interrupted(&self) -> Option<String> {
        self.shared.borrow().1.interrupted()
    }
}

/// Seconds since the epoch.
fn unix_seconds(at: Timestamp) -> f64 {
    at.seconds as f64 + f64::from(at.nanoseconds) / 1e9
}

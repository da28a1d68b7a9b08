//! The ledger: everything that lasts. It changes by records only.
//!
//! Memory: a job is its specification and about 250 bytes; a task that waits is 24 bytes, one that runs
//! or has ended about 150 more. What is derived from it (who may go next, what is in use) is kept
//! elsewhere and made again after a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::advance::AdvanceReservation;
use crate::config::{Config, HostEngine};
use crate::depend::Tally;
use crate::fairshare::Used;
use crate::flow::ledger::Flows;
use crate::group::JobGroup;
use crate::journal::{Change, HostSwitch, Modified, Record, Submitted, Switch};
use crate::keys::Keys;
use crate::modify::Set;
use crate::parse::dependency::Condition;
use crate::service::ServiceState;
use crate::spec::{JobSpec, Usage};
use crate::task::{Phase, Step, Task, Waiting};
use crate::vocabulary::{
    HostId, HostName, JobId, Moment, Names, QueueId, QueueName, ReservationName, Target, TaskId,
    UserId, UserName,
};

/// One job with its tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub(crate) user: UserId,
    pub(crate) queue: QueueId,
    pub(crate) submitted: Moment,
    pub(crate) spec: Box<JobSpec>,
    pub(crate) condition: Option<Condition<Target>>,
    /// By place, counted from 0.
    pub(crate) tasks: Vec<Task>,
    pub(crate) tally: Tally,
    pub(crate) service: Option<ServiceState>,
    /// The end of which those were told whom it notifies.
    pub(crate) told: Option<Moment>,
}

impl Job {
    /// What was asked for.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// How it is doing, if it is a service.
    #[must_use]
    pub fn service(&self) -> Option<ServiceState> {
        self.service
    }

    /// When it may start at the earliest.
    #[must_use]
    pub fn begin(&self) -> Option<Moment> {
        self.spec.begin.max(self.service.and_then(|service| service.not_before))
    }

    /// When it was submitted.
    #[must_use]
    pub fn submitted(&self) -> Moment {
        self.submitted
    }

    /// Its exit value, as far as its tasks have ended: that of the first one that failed.
    #[must_use]
    pub fn exit_value(&self) -> u8 {
        let mut values = self.tasks.iter().map(|task| match task {
            Task::Finished(finish) => finish.cause.exit_value(finish.exit.as_ref()),
            Task::Pending(_) | Task::Held(_) | Task::Active(_) => 0,
        });
        values.find(|value| *value != 0).unwrap_or(0)
    }

    /// How many of its tasks are how far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The index of the task at a place.
    #[must_use]
    pub fn index_at(&self, place: u32) -> u32 {
        self.spec.index_at(place)
    }

    /// The place of the task with an index.
    #[must_use]
    pub fn place_of(&self, index: u32) -> Option<u32> {
        match &self.spec.array {
            Some(array) => array.place_of(index),
            None => (index == 0).then_some(0),
        }
    }

    /// When the last of its tasks ended, if all have.
    #[must_use]
    pub fn ended(&self) -> Option<Moment> {
        let ends = self.tasks.iter().map(|task| match task {
            Task::Finished(finish) => Some(finish.ended),
            Task::Pending(_) | Task::Held(_) | Task::Active(_) => None,
        });
        ends.collect::<Option<Vec<Moment>>>()?.into_iter().max()
    }

    /// Its tasks with their indices.
    pub fn tasks(&self) -> impl Iterator<Item = (u32, &Task)> {
        self.tasks_from(0)
    }

    /// Its tasks from a place on with their indices.
    pub fn tasks_from(&self, place: u32) -> impl Iterator<Item = (u32, &Task)> {
        let tasks = self.tasks.get(place as usize..).unwrap_or_default();
        (place..).zip(tasks).map(|(place, task)| (self.index_at(place), task))
    }

    /// The task with an index.
    #[must_use]
    pub fn task(&self, index: u32) -> Option<&Task> {
        self.tasks.get(self.place_of(index)? as usize)
    }
}

/// Among how many jobs before it an environment like a job's own is looked for.
const SHARED_AMONG: usize = 8;

/// Everything that lasts. Its serde form is the head of a snapshot, see [`snapshot`](crate::snapshot).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    pub(crate) at: Moment,
    pub(crate) config: Config,
    pub(crate) users: Names<UserName>,
    pub(crate) queues: Names<QueueName>,
    pub(crate) hosts: Names<HostName>,
    #[serde(skip)]
    pub(crate) jobs: BTreeMap<JobId, Job>,
    jobs_ever: u64,
    switches: BTreeMap<QueueId, Switch>,
    host_switches: BTreeMap<HostId, HostSwitch>,
    /// Until when hosts may have leases of former settings.
    pub(crate) leased: Moment,
    /// By user's place.
    used: Vec<Used>,
    pub(crate) flows: Flows,
    keys: Keys,
    pub(crate) advance: BTreeMap<ReservationName, AdvanceReservation>,
    /// Job groups that users keep, with their limits.
    pub(crate) groups: BTreeMap<(UserId, JobGroup), Option<u32>>,
    /// Of hosts whose jobs no agent runs.
    engines: BTreeMap<HostId, HostEngine>,
}

impl Default for Ledger {
    /// The beginning of time: no jobs, no hosts, default settings.
    fn default() -> Ledger {
        let config = Config::default();
        let mut queues = Names::default();
        for queue in &config.queues {
            queues.place(&queue.name);
        }
        Ledger {
            at: Moment(0),
            config,
            users: Names::default(),
            queues,
            hosts: Names::default(),
            jobs: BTreeMap::new(),
            jobs_ever: 0,
            switches: BTreeMap::new(),
            host_switches: BTreeMap::new(),
            leased: Moment(0),
            used: Vec::new(),
            flows: Flows::default(),
            keys: Keys::default(),
            advance: BTreeMap::new(),
            groups: BTreeMap::new(),
            engines: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// Applies a record.
    ///
    /// # Errors
    /// What does not fit; nothing is changed then.
    pub fn apply(&mut self, record: &Record) -> Result<(), String> {
        match &record.change {
            Change::Configured(config) => {
                self.config = (**config).clone();
                for queue in &config.queues {
                    self.queues.place(&queue.name);
                }
            }
            Change::HostKnown(name) => {
                self.hosts.place(name);
            }
            Change::Submitted(submitted) => self.submit(record.at, submitted)?,
            Change::Waiting { job, places, step } => {
                if !matches!(
                    step,
                    Step::Held | Step::Released | Step::Cancelled | Step::NeverMet | Step::Expired
                ) {
                    return Err(format!("job {job}: {step:?} does not apply to many tasks"));
                }
                for place in places.iter() {
                    self.step(record.at, *job, place, step)?;
                }
            }
            Change::Task { task, step } => {
                let place = self.jobs.get(&task.job).and_then(|job| job.place_of(task.index));
                let place = place.ok_or_else(|| format!("there is no task {task}"))?;
                self.step(record.at, task.job, place, step)?;
            }
            Change::Queue { queue, switch } => {
                self.switches.insert(*queue, *switch);
            }
            Change::Host { host, state } => {
                self.host_switches.insert(*host, *state);
            }
            Change::Forgotten(job) => {
                if self.jobs.get(job).is_none_or(|job| !job.tally.is_finished()) {
                    return Err(format!("job {job} is not there or not finished"));
                }
                self.jobs.remove(job);
            }
            Change::Flow(change) => self.apply_flow(record.at, change)?,
            Change::Modified(modified) => self.modify(modified)?,
            Change::Service { job, state } => {
                let entry = self.jobs.get_mut(job).filter(|entry| entry.spec.service.is_some());
                let entry = entry.ok_or_else(|| format!("job {job} is not a service"))?;
                entry.service = Some(*state);
            }
            Change::Reserved(reservation) => {
                self.advance.insert(reservation.name.clone(), (**reservation).clone());
            }
            Change::Unreserved(name) => {
                self.advance.remove(name);
            }
            Change::Group { user, group, limit } => {
                let user = self.place_user(user);
                self.groups.insert((user, group.clone()), *limit);
            }
            Change::GroupDeleted { user, group } => {
                let user = self.place_user(user);
                self.groups.remove(&(user, group.clone()));
            }
            Change::Engine { host, engine: HostEngine::Agent } => {
                self.engines.remove(host);
            }
            Change::Engine { host, engine } => {
                self.engines.insert(*host, *engine);
            }
            Change::Told { job, ended } => {
                let entry =
                    self.jobs.get_mut(job).ok_or_else(|| format!("there is no job {job}"))?;
                entry.told = Some(*ended);
            }
            Change::Leased(until) => self.leased = self.leased.max(*until),
        }
        self.at = self.at.max(record.at);
        Ok(())
    }

    pub(crate) fn submit(&mut self, at: Moment, submitted: &Submitted) -> Result<(), String> {
        let Submitted { job, user, spec, condition, key } = submitted;
        let queue = spec.queue.as_ref().ok_or_else(|| format!("job {job} has no queue"))?;
        if job.0 <= self.jobs_ever {
            return Err(format!("job {job} was there before"));
        }
        self.jobs_ever = job.0;
        let user = self.place_user(user);
        if let Some(key) = key {
            self.keys.add(at, user, *key, *job);
        }
        let task = if spec.held {
            Task::Held(Waiting::default())
        } else {
            Task::Pending(Waiting::default())
        };
        let count = spec.tasks();
        let mut tally = Tally::default();
        *(if spec.held { &mut tally.held } else { &mut tally.pending }) = count;
        let mut spec = Box::new(spec.clone());
        let before = self.jobs.values().rev().take(SHARED_AMONG).map(|job| &job.spec.environment);
        spec.environment = spec.environment.shared_among(before);
        let job_entry = Job {
            user,
            queue: QueueId(self.queues.place(queue)),
            submitted: at,
            spec,
            condition: condition.clone(),
            tasks: vec![task; count as usize],
            tally,
            service: None,
            told: None,
        };
        self.jobs.insert(*job, job_entry);
        Ok(())
    }

    /// The number of a user, who may be new.
    fn place_user(&mut self, user: &UserName) -> UserId {
        let user = UserId(self.users.place(user));
        if self.used.len() <= user.0 as usize {
            self.used.resize(user.0 as usize + 1, Used::default());
        }
        user
    }

    fn modify(&mut self, modified: &Modified) -> Result<(), String> {
        let Modified { job, spec, condition, limit_ms } = modified;
        let queue = spec.queue.as_ref().ok_or_else(|| format!("job {job} has no queue"))?;
        let queue = QueueId(self.queues.place(queue));
        let entry = self.jobs.get_mut(job).ok_or_else(|| format!("there is no job {job}"))?;
        if entry.tally.is_finished() || spec.tasks() != entry.spec.tasks() {
            return Err(format!("job {job} has ended, or has other elements"));
        }
        // The environment stays where it lies: others may share it.
        let environment = std::mem::take(&mut entry.spec.environment);
        let script = entry.spec.script.take();
        let is_other_warning = entry.spec.warning != spec.warning;
        for task in &mut entry.tasks {
            let Task::Active(run) = task else { continue };
            let before = (run.end_by(&entry.spec), run.limit_ms);
            match limit_ms {
                None => {}
                Some(Set::To(limit)) => run.limit_ms = Some(*limit),
                Some(Set::Nothing) => run.limit_ms = None,
            }
            let is_other_end = match run.phase {
                // When that is depends on when it goes on.
                Phase::Suspended { .. } => {
                    run.limit_ms != before.1 || entry.spec.deadline != spec.deadline
                }
                Phase::Starting | Phase::Running { .. } => run.end_by(spec) != before.0,
            };
            // Another end is one of which it is warned anew.
            run.warned &= !is_other_warning && !is_other_end;
        }
        *entry.spec = JobSpec { environment, script, ..spec.clone() };
        entry.queue = queue;
        entry.condition.clone_from(condition);
        Ok(())
    }

    fn step(&mut self, at: Moment, id: JobId, place: u32, step: &Step) -> Result<(), String> {
        let job = self.jobs.get_mut(&id).ok_or_else(|| format!("there is no job {id}"))?;
        let (slots, memory) = (job.spec.slots(), job.spec.memory_bytes());
        let task = job
            .tasks
            .get_mut(place as usize)
            .ok_or_else(|| format!("job {id} has no task at {place}"))?;
        if let Step::Dispatched { host, .. } = step
            && host.0 as usize >= self.hosts.len()
        {
            return Err(format!("there is no host {host}"));
        }
        let charge = match (step, &*task) {
            (Step::Ended { usage, .. }, Task::Active(run)) => {
                let slot_ms = f64::from(run.slots) * at.since(run.launched) as f64;
                Some((slot_ms, usage.as_deref().map_or(0.0, Usage::cpu_seconds)))
            }
            _ => None,
        };
        job.tally.remove(task);
        let fitted = task.step(at, step, slots, memory);
        job.tally.add(task);
        if !fitted {
            return Err(format!("task at {place} of job {id} cannot be {step:?}"));
        }
        if let Some((slot_ms, cpu_seconds)) = charge {
            let half_life = self.config.fair_share.half_life.as_ms();
            self.used[job.user.0 as usize].add(at, half_life, slot_ms, cpu_seconds);
        }
        Ok(())
    }

    /// The settings that hold.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of the next job.
    pub(crate) fn next_job(&self) -> JobId {
        JobId(self.jobs_ever + 1)
    }

    /// The job that a submission with this key made, as long as the key is known.
    pub(crate) fn job_of_key(&self, now: Moment, user: &UserName, key: Uuid) -> Option<JobId> {
        self.keys.find(now, UserId(self.users.find(user)?), key)
    }

    pub(crate) fn switch(&self, queue: QueueId) -> Switch {
        self.switches.get(&queue).copied().unwrap_or_default()
    }

    pub(crate) fn host_switch(&self, host: HostId) -> HostSwitch {
        self.host_switches.get(&host).copied().unwrap_or_default()
    }

    /// What ran the jobs of a host when its agent last joined.
    pub(crate) fn engine(&self, host: HostId) -> HostEngine {
        self.engines.get(&host).copied().unwrap_or_default()
    }

    pub(crate) fn used(&self, user: UserId) -> Used {
        self.used.get(user.0 as usize).copied().unwrap_or_default()
    }

    /// A task, if it is known.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.jobs.get(&id.job)?.task(id.index)
    }

    /// A job, if it is known.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// All known jobs in the order of their numbers.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (JobId, &Job)> {
        self.jobs.iter().map(|(id, job)| (*id, job))
    }

    /// Known jobs from a number on, in the order of their numbers.
    pub fn jobs_from(&self, first: JobId) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.range(first..).map(|(id, job)| (*id, job))
    }

    /// Whose job it is.
    #[must_use]
    pub fn user_of(&self, job: &Job) -> &UserName {
        self.users.at(job.user.0)
    }

    /// The queue of a job.
    #[must_use]
    pub fn queue_of(&self, job: &Job) -> &QueueName {
        self.queues.at(job.queue.0)
    }

    /// The name of a host.
    #[must_use]
    pub fn host_name(&self, host: HostId) -> &HostName {
        self.hosts.at(host.0)
    }
}

//! What can never start: because no host of the grid could take it, or because what it waits for cannot come.
//!
//! Hosts of the grid are those that have joined and were not removed, and those that the settings name. What a
//! host has is known once it has joined or where the settings say it; until then it may have anything.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::ByteSize;

use crate::config::{HostConfig, HostEngine, OnNever, Role};
use crate::depend::{self, Verdict};
use crate::event::{Outcome, Refusal};
use crate::grid::Grid;
use crate::ledger::Job;
use crate::pairs::{self, Lack};
use crate::parse::dependency::Condition;
use crate::ready::Shape;
use crate::spans::Spans;
use crate::spec::JobSpec;
use crate::task::{Cause, Step, Task};
use crate::vocabulary::{HostId, HostName, JobId, QueueId, Target, TaskId};

/// What a host has for jobs, as far as it is known.
#[derive(Clone, Copy)]
struct Size {
    slots: Option<u32>,
    memory_bytes: Option<u64>,
}

impl Size {
    fn may_hold(self, shape: &Shape) -> bool {
        self.slots.is_none_or(|slots| slots >= shape.slots)
            && (shape.memory_bytes == 0
                || self.memory_bytes.is_none_or(|bytes| bytes >= shape.memory_bytes))
    }
}

/// The unit in which a size of memory is said: what is left of it beyond whole ones tells nobody anything.
fn unit_of(bytes: u64) -> u64 {
    let units = [ByteSize::gib(1).0, ByteSize::mib(1).0];
    units.into_iter().find(|unit| bytes >= 16 * unit).unwrap_or(1)
}

/// Slots and memory for people: `1 slot`, `4 slots and 23 GiB of memory`.
fn described(slots: u32, memory: Option<ByteSize>) -> String {
    let plural = if slots == 1 { "" } else { "s" };
    let memory = memory.map(|size| format!(" and {size} of memory")).unwrap_or_default();
    format!("{slots} slot{plural}{memory}")
}

impl Grid {
    /// Refuses a job that names hosts which the grid does not have, or that no host of the grid could ever take.
    pub(super) fn check_hosts(&self, queue: QueueId, spec: &JobSpec) -> Result<(), Refusal> {
        let listed = (0..self.ledger.hosts.len() as u32).map(HostId);
        let none_known = !listed.clone().any(|host| self.is_listed(host));
        if none_known && self.ledger.config.hosts.is_empty() {
            // A grid whose hosts are still to come.
            return Ok(());
        }
        if let Some(name) = spec.hosts.named().find(|name| !self.is_known(name)) {
            return Err(Refusal::NoSuchHost(name.clone()));
        }
        let shape = Shape::of(spec, Vec::new());
        if self.may_ever_run(queue, &shape) {
            return Ok(());
        }
        if let Some(refusal) =
            self.resource_refusal(&shape).or_else(|| self.feature_refusal(queue, &shape))
        {
            return Err(refusal);
        }
        let list = self.list_of(queue, &shape);
        let sizes = listed.filter(|host| list(*host).is_ok());
        let largest = sizes.map(|host| (self.size_of(host).slots, host)).max();
        let needed = Some(shape.memory_bytes).filter(|bytes| *bytes > 0);
        let at_least = |bytes: u64| ByteSize(bytes.next_multiple_of(unit_of(bytes)));
        let at_most = |bytes: u64| ByteSize(bytes - bytes % unit_of(bytes));
        Err(Refusal::Invalid(match largest {
            Some((Some(slots), host)) => {
                let there = needed.and_then(|_| self.size_of(host).memory_bytes);
                format!(
                    "it needs {} on one host: no host that it may use has as many; the largest, {}, has {}",
                    described(shape.slots, needed.map(at_least)),
                    self.host_name(host),
                    described(slots, there.map(at_most)),
                )
            }
            Some((None, _)) | None if self.is_for_slurm(queue, &shape) && spec.service.is_some() => {
                "a service needs a host with an agent, which watches it, and this one could only run through Slurm: start it on \
                 a host of the grid, or submit it as a job"
                    .to_owned()
            }
            Some((None, _)) | None if self.is_for_slurm(queue, &shape) => {
                "an interactive job needs a host with an agent, and this one could only run through Slurm, which connects no \
                 terminals of this grid: use srun --pty, or forebay submit and forebay output -f"
                    .to_owned()
            }
            Some((None, _)) | None => {
                let queue = self.ledger.queues.at(queue.0);
                let own = if spec.hosts.is_empty() { "" } else { " and its own list of hosts" };
                format!(
                    "no host of this grid may run it: queue {queue}{own} and the settings exclude all hosts"
                )
            }
        }))
    }

    /// Whether a host of the grid could take a job of this shape if nothing else ran there.
    pub(super) fn may_ever_run(&self, queue: QueueId, shape: &Shape) -> bool {
        let mut joined = (0..self.ledger.hosts.len() as u32).map(HostId);
        let list = self.list_of(queue, shape);
        if joined.any(|host| {
            self.is_listed(host)
                && list(host).is_ok()
                && self.size_of(host).may_hold(shape)
                && self.has_resources(&self.index.hosts[host.0 as usize].resources, shape)
        }) {
            return true;
        }
        let Some(config) = self.queue_config(queue) else { return true };
        let lets = |name: &HostName| {
            config.hosts.preference(name).is_some() && shape.hosts.preference(name).is_some()
        };
        let to_come =
            |name: &HostName| !self.host_id(name).is_some_and(|host| self.is_listed(host));
        let fits_slurm = self.fits_slurm(queue, shape);
        let holds = |host: &&HostConfig| {
            let memory_bytes = host.memory.map(|memory| memory.0);
            host.role == Role::Compute
                && !(shape.needs_agent && host.engine == HostEngine::Slurm)
                && Size { slots: host.slots, memory_bytes }.may_hold(shape)
                && self.has_resources(&host.resources, shape)
                && self.has_features(shape, Some(host))
                && (host.engine != HostEngine::Slurm || fits_slurm())
        };
        let hosts = &self.ledger.config.hosts;
        let named = config.hosts.allowed();
        let said = |name: &HostName| hosts.iter().any(|host| host.name == *name);
        hosts.iter().filter(holds).any(|host| to_come(&host.name) && lets(&host.name))
            || self.has_resources(&BTreeMap::new(), shape)
                && self.has_features(shape, None)
                && named.filter(|name| !said(name)).any(|name| to_come(name) && lets(name))
    }

    /// Whether only hosts of Slurm would be left for an interactive job or a service if it was another job.
    fn is_for_slurm(&self, queue: QueueId, shape: &Shape) -> bool {
        let batch = Shape { needs_agent: false, ..shape.clone() };
        shape.needs_agent && self.may_ever_run(queue, &batch)
    }

    fn size_of(&self, host: HostId) -> Size {
        let now = &self.index.hosts[host.0 as usize];
        let config = now.config.map(|place| &self.ledger.config.hosts[place]);
        let slots = config.and_then(|config| config.slots).or(now.facts.map(|facts| facts.cores));
        Size { slots, memory_bytes: now.memory_bytes }
    }

    /// Whether a host has joined, or the settings name it.
    fn is_known(&self, name: &HostName) -> bool {
        let config = &self.ledger.config;
        self.host_id(name).is_some_and(|host| self.is_listed(host))
            || config.hosts.iter().any(|host| host.name == *name)
            || config.queues.iter().any(|queue| queue.hosts.allowed().any(|host| host == name))
    }

    /// Refuses a condition that can never be met, unless the job is to be kept nevertheless.
    pub(super) fn check_condition(
        &self,
        spec: &JobSpec,
        condition: Option<&Condition<Target>>,
    ) -> Result<(), Refusal> {
        let Some(condition) = condition else { return Ok(()) };
        check_singleton(spec, condition)?;
        self.check_pairs(spec, condition)?;
        let never = depend::verdict(&self.ledger, self.now, condition) == Verdict::Never;
        if !never || self.on_never(spec) == OnNever::Keep {
            return Ok(());
        }
        let parts = self.never_parts(condition).join(", ");
        Err(Refusal::Invalid(format!("it could never start: {parts}")))
    }

    /// Refuses what a condition says of elements with the same index, if there are none.
    fn check_pairs(&self, spec: &JobSpec, condition: &Condition<Target>) -> Result<(), Refusal> {
        if let Some(fault) = pairs::fault(spec, condition) {
            return Err(Refusal::Invalid(fault));
        }
        let others: BTreeSet<JobId> =
            condition.pairs().into_iter().map(|(_, other)| other).collect();
        for other in others {
            let Some(partner) = self.ledger.jobs.get(&other) else { continue };
            let lacks = match pairs::lack(spec, &partner.spec) {
                None => continue,
                Some(Lack::Elements) => "is not an array".to_owned(),
                Some(Lack::Element(index)) => {
                    format!("has no element {index}, which this job has")
                }
            };
            return Err(Refusal::Invalid(format!("{other}[*]: job {other} {lacks}")));
        }
        Ok(())
    }

    fn on_never(&self, spec: &JobSpec) -> OnNever {
        spec.on_never.unwrap_or(self.ledger.config.general.dependency_never)
    }

    /// Whether a job waits for ever for a dependency that cannot be met, as it was asked to.
    pub(super) fn keeps_waiting(&self, spec: &JobSpec) -> bool {
        self.on_never(spec) == OnNever::Keep
    }

    /// The parts of a condition that can never be met, each with the reason.
    pub(super) fn never_parts(&self, condition: &Condition<Target>) -> Vec<String> {
        const SHOWN_MAX: usize = 10;
        let mut parts = Vec::new();
        let mut more = 0;
        condition.leaves(&mut |leaf| {
            let (Condition::Is(_, target) | Condition::Each(_, target)) = leaf else { return };
            if depend::verdict(&self.ledger, self.now, leaf) != Verdict::Never {
                return;
            }
            if parts.len() >= SHOWN_MAX {
                more += 1;
            } else {
                parts.push(format!("{leaf} can never become true: {}", self.came_to(*target)));
            }
        });
        parts.extend((more > 0).then(|| format!("and {more} more")));
        parts
    }

    /// What a job or an element has come to, in words.
    fn came_to(&self, target: Target) -> String {
        let Some(job) = self.ledger.jobs.get(&target.job) else {
            return format!("job {target} is no longer known");
        };
        let task = match target.index {
            Some(index) => job.task(index),
            None => job.tasks.first().filter(|_| job.tasks.len() == 1),
        };
        match task {
            Some(Task::Finished(finish)) if finish.is_done() => format!("job {target} succeeded"),
            Some(Task::Finished(finish)) if finish.cause == Cause::Killed => {
                format!("job {target} was killed")
            }
            Some(Task::Finished(_)) => format!("job {target} failed"),
            Some(Task::Pending(_) | Task::Held(_) | Task::Active(_)) | None => {
                let (failed, all) = (job.tally.failed, job.tally.all());
                format!("{failed} of {all} elements of job {} failed", target.job)
            }
        }
    }

    /// Ends what waits for something that can no longer come. Steps of flows are left to their flow.
    pub(super) fn end_what_waits_in_vain(&mut self, out: &mut Outcome) {
        while let Some(TaskId { job: id, .. }) = self.index.vain_tasks.first().copied() {
            let others =
                self.index.vain_tasks.split_off(&TaskId { job: JobId(id.0 + 1), index: 0 });
            let tasks = std::mem::replace(&mut self.index.vain_tasks, others);
            let Some(job) = self.ledger.jobs.get(&id) else { continue };
            if self.keeps_waiting(&job.spec) {
                continue;
            }
            let places = self.places_in_vain(job, &tasks);
            if !places.is_empty() {
                self.change_waiting(id, places, Step::NeverMet, out);
            }
        }
        while let Some(id) = self.index.vain.pop_first() {
            let Some(job) = self.ledger.jobs.get(&id) else { continue };
            if self.verdict_of(id) != Verdict::Never || self.keeps_waiting(&job.spec) {
                continue;
            }
            let places = waiting_places(job);
            if !places.is_empty() {
                self.change_waiting(id, places, Step::NeverMet, out);
            }
        }
    }

    /// Places of those tasks of a job that wait for partners that can never be as required.
    pub(super) fn places_in_vain(&self, job: &Job, tasks: &BTreeSet<TaskId>) -> Spans {
        let pairs = job.condition.as_ref().map(Condition::pairs).unwrap_or_default();
        let places = tasks.iter().filter_map(|task| job.place_of(task.index));
        let in_vain = places.filter(|place| {
            matches!(job.tasks[*place as usize], Task::Pending(_) | Task::Held(_))
                && depend::verdict_of_pairs(&self.ledger, &pairs, (job, *place)) == Verdict::Never
        });
        in_vain.collect()
    }

    /// Looks at all jobs again that wait in vain: the settings have changed.
    pub(super) fn look_at_vain(&mut self) {
        let vain: Vec<JobId> = self
            .index
            .open
            .iter()
            .filter(|(_, open)| open.waits.verdict() == Verdict::Never)
            .map(|(id, _)| *id)
            .filter(|id| !self.index.flow_of.contains_key(id))
            .collect();
        self.index.vain.extend(vain);
        self.index.look_at_pairs(&self.ledger);
    }
}

/// Refuses a condition about the jobs with the same name if there is no name.
pub(super) fn check_singleton(
    spec: &JobSpec,
    condition: &Condition<Target>,
) -> Result<(), Refusal> {
    if spec.name.is_empty() && condition.has_singleton() {
        let fault =
            "singleton() is about jobs with the same name, and this job has none: name it (-J)";
        return Err(Refusal::Invalid(fault.to_owned()));
    }
    Ok(())
}

/// Places of the tasks that were not given to a host.
pub(super) fn waiting_places(job: &Job) -> Spans {
    let waiting = |(place, task): (usize, &Task)| {
        matches!(task, Task::Pending(_) | Task::Held(_)).then_some(place as u32)
    };
    job.tasks.iter().enumerate().filter_map(waiting).collect()
}

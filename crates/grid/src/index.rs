//! What follows from the ledger and is looked up often: who may go next, what is in use, who waits for
//! whom, what is due. Kept up with each change, made again after a restart.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::fairshare::InUse;
use crate::finished::Finished;
use crate::flow::{FlowId, ScheduleId};
use crate::footprint::Footprint;
use crate::group::JobGroup;
use crate::hosts::{Counts, HostNow, Reach};
use crate::ledger::{Job, Ledger};
use crate::names::Names;
use crate::open::{Open, entry};
use crate::parse::dependency::Condition;
use crate::ready::{Ready, Shape, ShapeId, Shapes};
use crate::reserve::Reserve;
use crate::spans::Spans;
use crate::task::{Run, Task};
use crate::times::Times;
use crate::vocabulary::{HostId, JobId, Moment, QueueId, Target, TaskId, UserId};

/// A host that a queue and a shape allow, and how much it is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub host: HostId,
    pub preference: u32,
}

/// One queue now.
#[derive(Debug, Default)]
pub(crate) struct QueueNow {
    /// Place in the settings, if it is still there.
    pub config: Option<usize>,
    pub used_slots: u32,
    pub used_by_user: FxHashMap<UserId, u32>,
    /// Whether something happened since it was last served that may let a job of it start.
    pub stirred: bool,
    pub dispatch_open: bool,
    pub run_open: bool,
}

/// One user now.
#[derive(Debug, Default)]
pub(crate) struct UserNow {
    pub in_use: InUse,
    /// Tasks that have not ended.
    pub tasks: u64,
    /// What jobs hold that may not be forgotten.
    pub footprint: Footprint,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    pub hosts: Vec<HostNow>,
    pub queues: Vec<QueueNow>,
    pub users: Vec<UserNow>,
    /// Tasks that have not ended.
    pub tasks: u64,
    pub open: FxHashMap<JobId, Open>,
    pub shapes: Shapes,
    pub ready: Ready,
    /// Jobs that wait for a job.
    pub dependents: FxHashMap<JobId, BTreeSet<JobId>>,
    pub names: Names,
    pub deadlines: BTreeSet<(Moment, TaskId)>,
    /// Tasks to be warned that their end is near, by when.
    pub warnings: BTreeSet<(Moment, TaskId)>,
    /// Those that are due, on hosts that cannot be reached.
    pub unwarned: BTreeSet<TaskId>,
    pub finished: Finished,
    pub finished_at: FxHashMap<JobId, Moment>,
    /// Bytes that the other jobs hold.
    pub bytes: u64,
    /// Finished jobs that would be forgotten if nothing waited for them.
    kept: FxHashSet<JobId>,
    /// The run that a job is a step of.
    pub flow_of: FxHashMap<JobId, FlowId>,
    /// Runs to look at: a job has ended, starts again, or can no longer start.
    pub flows_stirred: BTreeSet<FlowId>,
    /// Those of them in which a task that had ended starts again.
    pub flows_again: BTreeSet<FlowId>,
    /// When schedules are due.
    pub due: BTreeSet<(Moment, ScheduleId)>,
    /// Hosts that a queue and a shape allow; emptied when hosts or settings change.
    pub candidates: FxHashMap<ShapeId, BTreeMap<QueueId, Vec<Candidate>>>,
    pub reserve: Reserve,
    /// Jobs, but for steps of flows, whose dependency can no longer be met; to look at.
    pub vain: BTreeSet<JobId>,
    /// Tasks of such jobs whose own part of it, about the element of another job, can no longer be met.
    pub vain_tasks: BTreeSet<TaskId>,
    /// The same of steps of flows.
    pub vain_elements: BTreeSet<TaskId>,
    /// The latest time that the grid was told.
    pub clock: Moment,
    /// When a job is looked at again, as another one has started so long ago.
    pub delays: BTreeSet<(Moment, JobId, JobId)>,
    /// When jobs may begin, and must have ended.
    pub times: Times,
    /// What jobs on hosts hold of counted resources.
    pub used_resources: Counts,
    /// Tasks of users on hosts by job group, those of groups in it included.
    pub used_groups: FxHashMap<(UserId, JobGroup), u32>,
    /// Tasks that are suspended while other jobs have their slots.
    pub preempted: BTreeSet<TaskId>,
}

/// What the index has to know of a task before it changes.
pub(crate) struct Before {
    pending: bool,
    finished: bool,
    run: Option<Run>,
}

impl Before {
    pub fn of(task: &Task) -> Before {
        Before {
            pending: matches!(task, Task::Pending(_)),
            finished: matches!(task, Task::Finished(_)),
            run: task.run().cloned(),
        }
    }
}

pub(crate) fn shape_of(job: &Job, task: &Task) -> Shape {
    let excluded = match task {
        Task::Pending(waiting) => waiting.excluded.as_ref().map(|hosts| hosts.0.clone()),
        Task::Held(_) | Task::Active(_) | Task::Finished(_) => None,
    };
    Shape::of(&job.spec, excluded.unwrap_or_default())
}

impl Index {
    /// The index of a ledger, with no host reached yet. Hosts with jobs may let them run as long as the
    /// longest lease that was given out, which was not later than `now`.
    pub fn build(ledger: &Ledger, now: Moment) -> Index {
        let mut index = Index { clock: now, ..Index::default() };
        index.configure(ledger);
        index.know_steps(ledger);
        for (id, job) in &ledger.jobs {
            index.add_job(ledger, *id, job);
        }
        index.build_flows(ledger);
        let leased = now.after(ledger.config.general.lease.as_ms()).max(ledger.leased);
        for host in index.hosts.iter_mut().filter(|host| !host.runs.is_empty()) {
            host.contact.state = Reach::Away;
            host.contact.heard = now;
            host.contact.leased = leased;
            // A controller before this one may have recorded them and not have sent them any more.
            let warned = |task: &&TaskId| {
                ledger.task(**task).and_then(Task::run).is_some_and(|run| run.warned)
            };
            host.unsure_warnings =
                host.runs.iter().filter(warned).map(|task| (*task, now)).collect();
        }
        index
    }

    /// Follows the settings and the lists of names in the ledger.
    pub fn configure(&mut self, ledger: &Ledger) {
        self.candidates.clear();
        self.queues.resize_with(ledger.queues.len(), QueueNow::default);
        for (queue, name) in self.queues.iter_mut().zip(ledger.queues.iter()) {
            queue.config = ledger.config.queues.iter().position(|config| config.name == *name);
        }
        self.hosts.resize_with(ledger.hosts.len(), HostNow::default);
        for (host, name) in self.hosts.iter_mut().zip(ledger.hosts.iter()) {
            host.config = ledger.config.hosts.iter().position(|config| config.name == *name);
            let config = host.config.map(|place| &ledger.config.hosts[place]);
            host.slots = config
                .and_then(|config| config.slots)
                .or(host.facts.map(|facts| facts.cores))
                .unwrap_or(0);
            host.memory_bytes = config
                .and_then(|config| config.memory)
                .map(|memory| memory.0)
                .or(host.facts.map(|facts| facts.memory_bytes).filter(|bytes| *bytes > 0));
            host.resources = config.map(|config| config.resources.clone()).unwrap_or_default();
        }
        self.stir();
    }

    /// Something may let jobs of every queue start.
    pub fn stir(&mut self) {
        for queue in &mut self.queues {
            queue.stirred = true;
        }
    }

    pub fn user(&mut self, user: UserId) -> &mut UserNow {
        if self.users.len() <= user.0 as usize {
            self.users.resize_with(user.0 as usize + 1, UserNow::default);
        }
        &mut self.users[user.0 as usize]
    }

    /// Takes in a job of the ledger.
    pub fn add_job(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        for other in job.condition.iter().flat_map(Condition::jobs) {
            self.dependents.entry(other).or_default().insert(id);
        }
        self.hold(job);
        let unfinished = u64::from(job.tally.all() - job.tally.ended());
        self.user(job.user).tasks += unfinished;
        self.tasks += unfinished;
        if job.tally.is_finished() {
            self.rename(ledger, id, job);
            self.note_finished(job, id);
            return;
        }
        self.open_job(ledger, id, job);
        let untouched = job.tally.pending == job.tally.all();
        if untouched
            && !self.open[&id].is_paired()
            && job.tasks.iter().all(|task| matches!(task, Task::Pending(w) if w.excluded.is_none()))
        {
            self.open.get_mut(&id).expect("was opened").fresh = Spans::up_to(job.tally.all());
        } else {
            for (place, task) in job.tasks.iter().enumerate() {
                let place = place as u32;
                match task {
                    Task::Pending(_) => self.wait(ledger, id, job, place),
                    Task::Active(run) => {
                        let task = TaskId { job: id, index: job.index_at(place) };
                        self.occupy(task, job, run);
                        self.deadlines.extend(run.deadline().map(|at| (at, task)));
                        self.warnings.extend(run.warning(&job.spec).map(|at| (at, task)));
                    }
                    Task::Held(_) => self.look_at_held(ledger, id, job, place),
                    Task::Finished(_) => {}
                }
            }
        }
        self.refresh(id, job);
    }

    /// Takes a job out that has not ended, as it was taken in.
    pub fn take_out(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        self.unname(ledger, id, job);
        self.let_go(job);
        let unfinished = u64::from(job.tally.all() - job.tally.ended());
        self.user(job.user).tasks -= unfinished;
        self.tasks -= unfinished;
        for (index, task) in job.tasks() {
            if let Task::Active(run) = task {
                let task = TaskId { job: id, index };
                self.vacate(task, job, run);
                if let Some(at) = run.deadline() {
                    self.deadlines.remove(&(at, task));
                }
                if let Some(at) = run.warning(&job.spec) {
                    self.warnings.remove(&(at, task));
                }
                self.unwarned.remove(&task);
            }
        }
        self.times.close(id, job);
        self.vain.remove(&id);
        self.reserve.passed.remove(&id);
        self.reserve.short_since.remove(&id);
        self.reserve.holds.retain(|hold| hold.entry.job != id);
        let Some(open) = self.open.remove(&id) else { return };
        if open.entered_fresh {
            self.ready.remove(job.queue, job.user, open.shape, &entry(id, job, None));
        }
        for (place, shape) in &open.excluded {
            if open.entered {
                self.ready.remove(job.queue, job.user, *shape, &entry(id, job, Some(*place)));
            }
            self.give_back(*shape);
        }
        self.give_back(open.shape);
        if let Some(condition) = &job.condition {
            self.release_kept(ledger, condition);
        }
    }

    fn note_finished(&mut self, job: &Job, id: JobId) {
        if let Some(flow) = self.flow_of.get(&id) {
            self.flows_stirred.insert(*flow);
            return;
        }
        let ends = job.tasks.iter().filter_map(|task| match task {
            Task::Finished(finish) => Some(finish.ended),
            Task::Pending(_) | Task::Held(_) | Task::Active(_) => None,
        });
        let at = ends.max().unwrap_or_default();
        self.finished_at.insert(id, at);
        self.may_forget(job, id, at);
    }

    /// A job of a run that ended at a time may be forgotten.
    pub fn note_flow_ended(&mut self, job: &Job, id: JobId, at: Moment) {
        self.finished_at.insert(id, at);
        self.may_forget(job, id, at);
    }

    fn may_forget(&mut self, job: &Job, id: JobId, at: Moment) {
        if self.finished.insert(at, id, job) {
            self.let_go(job);
        }
    }

    fn may_not_forget(&mut self, job: &Job, id: JobId, at: Moment) {
        if self.finished.remove(at, id, job) {
            self.hold(job);
        }
    }

    fn hold(&mut self, job: &Job) {
        let footprint = &mut self.user(job.user).footprint;
        let before = footprint.bytes();
        footprint.add(job);
        let more = footprint.bytes() - before;
        self.bytes += more;
    }

    fn let_go(&mut self, job: &Job) {
        let footprint = &mut self.user(job.user).footprint;
        let before = footprint.bytes();
        footprint.remove(job);
        let less = before - footprint.bytes();
        self.bytes -= less;
    }

    fn unnote_finished(&mut self, job: &Job, id: JobId) {
        if let Some(flow) = self.flow_of.get(&id) {
            self.flows_stirred.insert(*flow);
            return;
        }
        self.no_longer_finished(job, id);
    }

    /// Takes a finished job out of those that may be forgotten, if it is among them.
    pub fn no_longer_finished(&mut self, job: &Job, id: JobId) {
        let Some(at) = self.finished_at.remove(&id) else { return };
        if !self.kept.remove(&id) {
            self.may_not_forget(job, id, at);
        }
    }

    /// Keeps a finished job from being forgotten and from being counted, as something waits for it.
    pub fn keep(&mut self, job: &Job, id: JobId) {
        if let Some(at) = self.finished_at.get(&id).copied()
            && self.kept.insert(id)
        {
            self.may_not_forget(job, id, at);
        }
    }

    /// A job that waited for others does not any more: they may be forgotten, as far as nothing else waits.
    fn release_kept(&mut self, ledger: &Ledger, condition: &Condition<Target>) {
        for id in condition.jobs() {
            if self.kept.remove(&id) {
                let at = self.finished_at[&id];
                self.may_forget(&ledger.jobs[&id], id, at);
            }
        }
    }

    /// Follows a job that is forgotten.
    pub fn forget(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        self.unnote_finished(job, id);
        self.let_go(job);
        self.unname(ledger, id, job);
        self.dependents.remove(&id);
    }

    /// Takes a job out of those of a name, and of those that wait for others.
    fn unname(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        let turn = self.names.remove(id, job);
        self.pass_turn(ledger, turn);
        for other in job.condition.iter().flat_map(Condition::jobs) {
            if let Some(jobs) = self.dependents.get_mut(&other) {
                jobs.remove(&id);
                if jobs.is_empty() {
                    self.dependents.remove(&other);
                }
            }
        }
    }

    fn occupy(&mut self, task: TaskId, job: &Job, run: &Run) {
        self.hosts[run.host.0 as usize].occupy(task, job.queue, run);
        self.used_resources.add(run.held.as_deref());
        for group in job.spec.group.iter().flat_map(JobGroup::and_above) {
            *self.used_groups.entry((job.user, group)).or_default() += 1;
        }
        let queue = &mut self.queues[job.queue.0 as usize];
        queue.used_slots += run.busy_slots();
        *queue.used_by_user.entry(job.user).or_insert(0) += run.busy_slots();
        self.user(job.user).in_use.add(run.busy_slots(), run.launched);
        if run.preempted_by.is_some() {
            self.preempted.insert(task);
        }
    }

    fn vacate(&mut self, task: TaskId, job: &Job, run: &Run) {
        self.hosts[run.host.0 as usize].vacate(task, job.queue, run);
        self.used_resources.remove(run.held.as_deref());
        for group in job.spec.group.iter().flat_map(JobGroup::and_above) {
            let key = (job.user, group);
            if let Some(used) = self.used_groups.get_mut(&key) {
                *used -= 1;
                if *used == 0 {
                    self.used_groups.remove(&key);
                }
            }
        }
        let queue = &mut self.queues[job.queue.0 as usize];
        queue.used_slots -= run.busy_slots();
        if let Some(used) = queue.used_by_user.get_mut(&job.user) {
            *used -= run.busy_slots();
            if *used == 0 {
                queue.used_by_user.remove(&job.user);
            }
        }
        self.user(job.user).in_use.remove(run.busy_slots(), run.launched);
        self.preempted.remove(&task);
        self.stir();
    }

    /// Follows a change of one task, after it was made in the ledger. What waits for the job is left to
    /// [`Index::wake`].
    pub fn moved(&mut self, ledger: &Ledger, id: JobId, place: u32, before: &Before) {
        self.shift(ledger, id, place, before);
        self.settle(ledger, id);
    }

    /// Follows a change of several tasks of one job that were made together.
    pub fn moved_together(&mut self, ledger: &Ledger, id: JobId, before: &[(u32, Before)]) {
        for (place, before) in before {
            self.shift(ledger, id, *place, before);
        }
        self.settle(ledger, id);
    }

    fn shift(&mut self, ledger: &Ledger, id: JobId, place: u32, before: &Before) {
        let job = &ledger.jobs[&id];
        let after = Before::of(&job.tasks[place as usize]);
        let name = TaskId { job: id, index: job.index_at(place) };
        match (before.finished, after.finished) {
            (true, false) => {
                self.tasks += 1;
                self.user(job.user).tasks += 1;
                if let Some(flow) = self.flow_of.get(&id) {
                    self.flows_stirred.insert(*flow);
                    self.flows_again.insert(*flow);
                }
                if !self.open.contains_key(&id) {
                    self.unnote_finished(job, id);
                    self.open_job(ledger, id, job);
                }
            }
            (false, true) => {
                self.tasks -= 1;
                self.user(job.user).tasks -= 1;
            }
            (true, true) | (false, false) => {}
        }
        let deadline = |before: &Before| before.run.as_ref().and_then(Run::deadline);
        if deadline(before) != deadline(&after) {
            if let Some(at) = deadline(before) {
                self.deadlines.remove(&(at, name));
            }
            self.deadlines.extend(deadline(&after).map(|at| (at, name)));
        }
        let warning = |before: &Before| before.run.as_ref().and_then(|run| run.warning(&job.spec));
        if warning(before) != warning(&after) {
            if let Some(at) = warning(before) {
                self.warnings.remove(&(at, name));
            }
            self.warnings.extend(warning(&after).map(|at| (at, name)));
        }
        match (&before.run, &after.run) {
            (None, Some(run)) => self.occupy(name, job, run),
            (Some(run), None) => self.vacate(name, job, run),
            (Some(before), Some(after)) if before.busy_slots() != after.busy_slots() => {
                self.vacate(name, job, before);
                self.occupy(name, job, after);
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        match (before.pending, after.pending) {
            (true, false) => self.unwait(id, job, place),
            (false, true) => self.wait(ledger, id, job, place),
            (true, true) | (false, false) => self.look_at_held(ledger, id, job, place),
        }
    }

    /// Brings what follows from all tasks of a job together up to date.
    fn settle(&mut self, ledger: &Ledger, id: JobId) {
        let job = &ledger.jobs[&id];
        self.refresh(id, job);
        let active = job.tally.active > 0;
        if let Some(open) = self.open.get_mut(&id)
            && (open.active != active || job.tally.is_finished())
        {
            open.active = active;
            self.rename(ledger, id, job);
        }
        if job.tally.is_finished()
            && let Some(open) = self.open.remove(&id)
        {
            self.give_back(open.shape);
            self.times.close(id, job);
            self.note_finished(job, id);
            if let Some(condition) = &job.condition {
                self.release_kept(ledger, condition);
            }
        }
    }
}

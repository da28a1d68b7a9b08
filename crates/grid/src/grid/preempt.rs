//! Preemption: jobs of a queue make room for those of a queue of higher priority that says so.
//!
//! The settings of the queue that makes room say how. Its jobs are suspended: the job that preempts them starts at once,
//! and they keep their memory and their resources. Or they are requeued: then the room is there once they have ended,
//! and is kept until then as for any job that does not fit, see `reserve.rs`. What was suspended continues as
//! soon as its slots are free again and no job of a queue before its own wants them; it comes before jobs of its queue that wait.
//!
//! Nothing is preempted that would not help: room is looked for on a copy of the host, from which jobs are taken one by
//! one. Jobs on hosts of Slurm are left to Slurm, and a job that wants a host for itself preempts nobody.

use std::cmp::Reverse;

use crate::config::{Preempted, QueueConfig};
use crate::event::Outcome;
use crate::grid::Grid;
use crate::grid::explain::Reason;
use crate::grid::reserve::{Blocked, Waiters};
use crate::hosts::{HostNow, Reach};
use crate::ready::{Entry, Shape};
use crate::spec::Sharing;
use crate::task::{Ending, Phase, Run, Stops, Task};
use crate::vocabulary::{HostId, JobId, QueueId, TaskId};

/// For how many jobs alike room is made in one round.
const AT_ONCE: u32 = 1000;

/// A job that can make room, and how.
#[derive(Clone, Copy, Debug)]
struct Yielding {
    task: TaskId,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is ending already.
    Ends,
    Suspend,
    Requeue,
}

/// What makes room for a job on a host.
#[derive(Debug)]
struct Plan {
    yielding: Vec<Yielding>,
}

impl Plan {
    fn starts_at_once(&self) -> bool {
        self.yielding.iter().all(|yielding| yielding.how == How::Suspend)
    }
}

impl Grid {
    /// Makes room for a job that found no host, and for others like it behind it; whether there is room for it at once.
    pub(super) fn preempt(
        &mut self,
        blocked: &Blocked,
        waiters: &mut Waiters,
        out: &mut Outcome,
    ) -> bool {
        let Some(mut plan) = self.plan_room(blocked, waiters) else { return false };
        // Nobody makes room for a job that would be kept from it by one before it.
        if !self.may_take_resources(blocked.shape, blocked.entry.job) {
            return false;
        }
        if self.pass(waiters) {
            let Some(other) = self.plan_room(blocked, waiters) else { return false };
            plan = other;
        }
        let at_once = self.carry_out(plan, blocked.entry.job, waiters, out);
        if at_once {
            return true;
        }
        // Who waits behind it does not have to wait until this one has its room.
        for entry in self.behind(blocked) {
            let blocked = Blocked { entry, ..*blocked };
            match self.plan_room(&blocked, waiters) {
                Some(plan) if !plan.starts_at_once() => {
                    self.carry_out(plan, entry.job, waiters, out);
                }
                Some(_) | None => break,
            }
        }
        false
    }

    /// Entries like that of a job which would start after it, one for each task, as far as limits let them.
    fn behind(&self, blocked: &Blocked) -> Vec<Entry> {
        let Blocked { queue, user, shape, .. } = *blocked;
        let needs = self.index.shapes.get(shape);
        let left = self.slots_left(queue, user) / needs.slots;
        let left = left.min(self.room_in_group(user, needs.group.as_ref()));
        let tasks = |entry: &Entry| match entry.place {
            Some(_) => 1,
            None => {
                let job = &self.ledger.jobs[&entry.job];
                let most = job.spec.array.as_ref().and_then(|array| array.running_max);
                let free = most.map_or(u32::MAX, |most| most.saturating_sub(job.tally.active));
                job.tally.pending.min(free) as usize
            }
        };
        let entries = self.index.ready.entries(queue, user, shape);
        let each = entries.flat_map(|entry| std::iter::repeat_n(entry, tasks(&entry)));
        each.take(left.min(AT_ONCE) as usize).skip(1).collect()
    }

    /// Has jobs make room as planned; whether there is room at once.
    fn carry_out(
        &mut self,
        plan: Plan,
        by: JobId,
        waiters: &mut Waiters,
        out: &mut Outcome,
    ) -> bool {
        let at_once = plan.starts_at_once();
        for Yielding { task, how } in plan.yielding {
            match how {
                How::Ends => drop(waiters.claimed.insert(task)),
                How::Requeue => {
                    self.end(task, Ending::Preempted { by }, out);
                    waiters.claimed.insert(task);
                }
                // Not before those that end have ended: until then it would stand still for nothing.
                How::Suspend if at_once => self.suspend_for(task, by, out),
                How::Suspend => {}
            }
        }
        at_once
    }

    /// The host on which the fewest slots have to be taken from others, and from whom.
    fn plan_room(&mut self, blocked: &Blocked, waiters: &Waiters) -> Option<Plan> {
        let Blocked { queue, shape, .. } = *blocked;
        let shape = self.index.shapes.get(shape).clone();
        if shape.sharing == Sharing::Exclusive {
            return None;
        }
        let candidates = self.index.candidates.get(&blocked.shape)?.get(&queue)?.clone();
        let kept = self.kept_for_suspended(queue);
        let mut best: Option<((u32, Reverse<u32>), Plan)> = None;
        for candidate in candidates {
            let host = candidate.host;
            if self.is_slurm(host)
                || self.kept_from(queue, &shape, host).is_some()
                || kept.iter().any(|(of, _)| *of == host)
            {
                continue;
            }
            let Some(plan) = self.plan_on(queue, &shape, host, waiters) else { continue };
            let taken = plan.yielding.iter().filter(|yielding| yielding.how != How::Ends);
            let slots = taken.filter_map(|y| Some(self.ledger.task(y.task)?.run()?.slots)).sum();
            let key = (slots, Reverse(candidate.preference));
            if best.as_ref().is_none_or(|(least, _)| key < *least) {
                best = Some((key, plan));
            }
        }
        Some(best?.1)
    }

    /// What makes room on one host; none if nothing does.
    fn plan_on(
        &mut self,
        queue: QueueId,
        shape: &Shape,
        host: HostId,
        waiters: &Waiters,
    ) -> Option<Plan> {
        let yielding = self.yielding_on(queue, host, waiters);
        let fits = |now: &HostNow| self.obstacle_if(queue, shape, host, now).is_none();
        let mut now = self.index.hosts[host.0 as usize].clone();
        let last = yielding.iter().position(|yielding| {
            self.take_away(*yielding, &mut now);
            fits(&now)
        })?;
        let mut taken = yielding[..=last].to_vec();
        // The first ones may be too small to matter beside a later one.
        for place in (0..taken.len()).rev() {
            let mut fewer = taken.clone();
            fewer.remove(place);
            let mut now = self.index.hosts[host.0 as usize].clone();
            fewer.iter().for_each(|yielding| self.take_away(*yielding, &mut now));
            if fits(&now) {
                taken = fewer;
            }
        }
        Some(Plan { yielding: taken })
    }

    /// Jobs on a host that can make room for one of a queue, in the order in which they do: first those that end
    /// anyway, then those of the lowest queue that have run for the shortest time.
    fn yielding_on(&mut self, queue: QueueId, host: HostId, waiters: &Waiters) -> Vec<Yielding> {
        let Some(config) = self.queue_config(queue) else { return Vec::new() };
        let mut ends = Vec::new();
        let mut able = Vec::new();
        let mut look = self.preempt_look;
        for task in &self.index.hosts[host.0 as usize].runs {
            let run = self.ledger.task(*task).and_then(Task::run).expect("an active task");
            if run.ending.is_some() {
                if !waiters.claimed.contains(task) {
                    ends.push(Yielding { task: *task, how: How::Ends });
                }
                continue;
            }
            let own = self.queue_config(self.ledger.jobs[&task.job].queue);
            let own = own.filter(|own| config.preempt.contains(&own.name));
            let (Some(own), Phase::Running { started, .. }) = (own, run.phase) else { continue };
            let Some(how) = self.how_to_preempt(own, *task, run) else { continue };
            let spared_until = started.after(own.preempt_grace.as_ms());
            if spared_until > self.now {
                look = look.min(spared_until);
                continue;
            }
            able.push(((own.priority, Reverse(started), *task), Yielding { task: *task, how }));
        }
        self.preempt_look = look;
        able.sort_unstable_by_key(|(order, _)| *order);
        ends.into_iter().chain(able.into_iter().map(|(_, yielding)| yielding)).collect()
    }

    fn how_to_preempt(&self, own: &QueueConfig, task: TaskId, run: &Run) -> Option<How> {
        let job = &self.ledger.jobs[&task.job];
        match own.preempted {
            // Suspended it would still keep its host from all others.
            Preempted::Suspend => {
                let exclusive = run.held.as_ref().is_some_and(|held| held.exclusive);
                (!exclusive).then_some(How::Suspend)
            }
            Preempted::Requeue => {
                let again = job.spec.interactive.is_none() && self.is_rerunnable(job);
                again.then_some(How::Requeue)
            }
        }
    }

    /// Follows on a copy of a host how a job makes room.
    fn take_away(&self, Yielding { task, how }: Yielding, now: &mut HostNow) {
        let queue = self.ledger.jobs[&task.job].queue;
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        now.vacate(task, queue, run);
        if how == How::Suspend {
            let stops = run.stops.with(Stops::PREEMPTED);
            now.occupy(task, queue, &Run { stops, ..run.clone() });
        }
    }

    /// Lets jobs of a queue continue whose slots are free again; with no queue those of queues that are no longer in the
    /// settings. Who has run for longest goes first.
    pub(super) fn resume_preempted(&mut self, queue: Option<QueueId>, out: &mut Outcome) {
        if self.index.preempted.is_empty() {
            return;
        }
        let mut tasks: Vec<_> = self
            .index
            .preempted
            .iter()
            .filter_map(|task| {
                let of = self.ledger.jobs[&task.job].queue;
                let is_meant = match queue {
                    Some(queue) => of == queue,
                    None => self.queue_config(of).is_none(),
                };
                let run = self.ledger.task(*task).and_then(Task::run)?;
                is_meant.then_some((run.phase.started(), *task))
            })
            .collect();
        tasks.sort_unstable();
        for (_, task) in tasks {
            if self.may_resume(task) {
                let job = &self.ledger.jobs[&task.job];
                let (queue, shape) = (job.queue, Shape::of(&job.spec, Vec::new()));
                let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
                self.take_spare_for(queue, &shape, run.host);
                self.resume(task, Stops::PREEMPTED, out);
            }
        }
    }

    /// What is to be said of a job on a host that makes room, or has the slots of others.
    pub(super) fn explain_preemption(&self, task: TaskId, run: &Run) -> Option<Reason> {
        if let Some(Ending::Preempted { by }) = run.ending {
            return Some(Reason::Requeued { by });
        }
        if let Some(by) = run.preempted_by {
            return Some(Reason::Preempted { by });
        }
        let for_it = |other: &&TaskId| {
            let other = self.ledger.task(**other).and_then(Task::run);
            other
                .is_some_and(|other| other.preempted_by == Some(task.job) && other.host == run.host)
        };
        let tasks: Vec<TaskId> = self.index.preempted.iter().filter(for_it).copied().collect();
        (!tasks.is_empty()).then_some(Reason::Preempts { tasks })
    }

    /// The jobs that are being ended to make room for one that waits.
    pub(super) fn explain_room_made(&self, job: JobId) -> Option<Reason> {
        let runs = self.index.hosts.iter().flat_map(|host| &host.runs);
        let for_it = |task: &&TaskId| {
            let run = self.ledger.task(**task).and_then(Task::run);
            run.is_some_and(|run| run.ending == Some(Ending::Preempted { by: job }))
        };
        let tasks: Vec<TaskId> = runs.filter(for_it).copied().collect();
        (!tasks.is_empty()).then_some(Reason::Awaits { tasks })
    }

    /// Hosts on which a job is suspended that lacks nothing but slots, and comes before what waits in a queue.
    pub(super) fn kept_for_suspended(&self, queue: QueueId) -> Vec<(HostId, JobId)> {
        let waits = |task: &TaskId| {
            let of = self.ledger.jobs[&task.job].queue;
            let run = self.ledger.task(*task).and_then(Task::run)?;
            let is_before = of == queue || self.queue_order(of) < self.queue_order(queue);
            (is_before && self.lacks_only_slots(*task)).then_some((run.host, task.job))
        };
        self.index.preempted.iter().filter_map(waits).collect()
    }

    fn may_resume(&self, task: TaskId) -> bool {
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        self.index.hosts[run.host.0 as usize].free_slots() >= run.slots
            && self.lacks_only_slots(task)
    }

    /// Whether a job that is suspended for another one may use its slots as soon as they are free.
    fn lacks_only_slots(&self, task: TaskId) -> bool {
        let job = &self.ledger.jobs[&task.job];
        let run = self.ledger.task(task).and_then(Task::run).expect("an active task");
        let (queue, host) = (job.queue, run.host);
        let now = &self.index.hosts[host.0 as usize];
        let shape = Shape { slots: run.slots, ..Shape::of(&job.spec, Vec::new()) };
        let most = self.queue_config(queue).and_then(|config| config.host_slots_max);
        now.contact.state == Reach::Up
            && run.ending.is_none()
            && run.slots <= self.slots_left(queue, job.user)
            && most.is_none_or(|most| now.used_by(queue) + run.slots <= most)
            && self.set_aside(queue, &shape, host, now).is_none()
            && self.kept_from(queue, &shape, host).is_none()
    }
}

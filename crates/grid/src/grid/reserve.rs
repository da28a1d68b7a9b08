//! Which jobs hosts are reserved for.
//!
//! A job that does not fit is passed by jobs after it that do. In the order of dispatch the first
//! `reserved_jobs_max` such jobs get a host each. Where the time limits of the jobs on it say when the job
//! starts at the latest, others may only use the host if they end before that, or take what is left beside the job. Where
//! nobody can say when, others pass the job for `reserve_after`; then what it needs is kept as it becomes free.
//!
//! Nothing is worked out while no job passes another one that does not fit. A job of one slot without memory
//! and without counted resources cannot be passed: whatever becomes free is enough for it.
//!
//! Of licences, which all hosts share, others may take what the first job in the order of dispatch lacks for `reserve_after`; then
//! none of them is given to jobs after it until it has started.

use std::collections::BTreeSet;

use crate::config::{Preempted, QueueConfig, Thresholds};
use crate::grid::Grid;
use crate::grid::explain::Reason;
use crate::hosts::Reach;
use crate::index::{Candidate, Index};
use crate::journal::HostSwitch;
use crate::open::Open;
use crate::parse::period::Period;
use crate::parse::resources::Resources;
use crate::ready::{Entry, Shape, ShapeId};
use crate::reserve::{Fit, Hold, Leaving, Passed, RESOURCES_MAX, Room, fit};
use crate::spec::Sharing;
use crate::task::{Held, Phase, Run};
use crate::vocabulary::{HostId, JobId, Moment, QueueId, ResourceName, TaskId, UserId};

/// A job whose turn came and which found no host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    pub queue: QueueId,
    pub user: UserId,
    pub shape: ShapeId,
    pub entry: Entry,
}

/// Jobs that found no host in a round, in the order of their turns, as far as hosts may be reserved for them.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Those that nobody has passed yet.
    unpassed: Vec<Blocked>,
    /// How many jobs this round has looked for a host to reserve.
    reserved: u32,
    /// Tasks that are ending, whose room jobs of this round wait for already.
    pub(super) claimed: BTreeSet<TaskId>,
}

/// A host that could be kept.
struct Choice {
    candidate: Candidate,
    fit: Fit,
}

impl Grid {
    /// Begins a round: what is kept for whom is found anew, in every queue, if something happened in one, if a job
    /// that was passed has gone, or if slots begin to be kept for one.
    pub(super) fn begin_round(&mut self) {
        let Index { reserve, open, .. } = &mut self.index;
        let before = reserve.short_since.len();
        reserve.short_since.retain(|job, _| open.get(job).is_some_and(Open::is_ready));
        if reserve.short_since.len() < before {
            // What was kept for a job that waits no longer is free for others, also if nothing else happens.
            self.index.stir();
        }
        if self.index.reserve.passed.is_empty() {
            return;
        }
        let after = self.ledger.config.general.reserve_after.as_ms();
        let index = &mut self.index;
        let passed = &index.reserve.passed;
        let due = passed.values().any(|passed| passed.begins_to_be_kept(after, self.now));
        let before = passed.len();
        let Index { reserve, open, .. } = index;
        reserve.passed.retain(|job, _| open.get(job).is_some_and(Open::is_ready));
        let gone = reserve.passed.len() < before;
        if due || gone || index.queues.iter().any(|queue| queue.stirred) {
            index.reserve.holds.clear();
            index.stir();
        }
    }

    /// Whether a job may take its share of the resources of all hosts, of which a job before it needs more than is free. It may
    /// for `reserve_after`.
    pub(super) fn may_take_resources(&mut self, shape: ShapeId, job: JobId) -> bool {
        if self.index.reserve.short.is_empty() {
            return true;
        }
        let needs = self.index.shapes.get(shape);
        let short = &self.index.reserve.short;
        let passed: Vec<JobId> =
            needs.resources.iter().filter_map(|(name, _)| short.get(name)).copied().collect();
        let general = &self.ledger.config.general;
        let (after, keeps) = (general.reserve_after.as_ms(), general.reserved_jobs_max > 0);
        let now = self.now;
        let mut others = passed.into_iter().filter(|before| *before != job);
        others.all(|before| {
            let since = *self.index.reserve.short_since.entry(before).or_insert(now);
            !keeps || since.after(after) > now
        })
    }

    /// The resource that is kept from a job for one before it.
    pub(super) fn resource_kept_from(&self, shape: &Shape, job: JobId) -> Option<Reason> {
        let general = &self.ledger.config.general;
        let reserve = &self.index.reserve;
        shape.resources.iter().find_map(|(name, _)| {
            let before = *reserve.short.get(name).filter(|before| **before != job)?;
            let since = *reserve.short_since.get(&before)?;
            let is_kept = since.after(general.reserve_after.as_ms()) <= self.now;
            (is_kept && general.reserved_jobs_max > 0)
                .then(|| Reason::ResourceKept { name: name.clone(), job: before })
        })
    }

    /// Notes a job that found no host. If others have passed it before, a host is reserved at once.
    pub(super) fn found_none(&mut self, blocked: Blocked, waiters: &mut Waiters) {
        let shape = self.index.shapes.get(blocked.shape);
        let takes_little =
            shape.slots == 1 && shape.memory_bytes == 0 && shape.resources.is_empty();
        if takes_little && shape.sharing == Sharing::Shared {
            return;
        }
        if self.index.reserve.passed.contains_key(&blocked.entry.job) {
            self.reserve(&blocked, waiters);
        } else {
            waiters.unpassed.push(blocked);
        }
    }

    /// A job is about to pass those that found no host; whether a host was reserved for one of them.
    pub(super) fn pass(&mut self, waiters: &mut Waiters) -> bool {
        let before = self.index.reserve.holds.len();
        for blocked in std::mem::take(&mut waiters.unpassed) {
            self.reserve(&blocked, waiters);
        }
        self.index.reserve.holds.len() > before
    }

    /// Reserves a host for a job, if one will have room for it.
    fn reserve(&mut self, blocked: &Blocked, waiters: &mut Waiters) {
        let general = &self.ledger.config.general;
        if waiters.reserved >= general.reserved_jobs_max {
            return;
        }
        let drains_after = general.reserve_after.as_ms();
        let job = blocked.entry.job;
        let passed = self.index.reserve.passed.get(&job).copied();
        let Passed { since, host } = passed.unwrap_or(Passed { since: self.now, host: None });
        let Some(Choice { candidate, fit }) = self.best_to_reserve(blocked, host) else { return };
        waiters.reserved += 1;
        let (start, spare) = match fit {
            Fit::By(start, spare) => (Some(start), Some(spare)),
            Fit::Unknown { spare, .. } => {
                (None, Some(spare).filter(|_| since.after(drains_after) <= self.now))
            }
            Fit::Now => return,
        };
        let host = spare.map(|_| candidate.host);
        self.index.reserve.passed.insert(job, Passed { since, host });
        if let Some(spare) = spare {
            let Blocked { queue, user, shape, entry } = *blocked;
            let host = candidate.host;
            let needs = self.index.shapes.get(shape);
            let slots = match needs.sharing {
                Sharing::Shared => needs.slots,
                Sharing::Exclusive => self.index.hosts[host.0 as usize].slots,
            };
            self.index.reserve.holds.push(Hold { host, queue, user, entry, slots, start, spare });
        }
    }

    /// The host that has room for a job first, as far as that is known; otherwise where least is short.
    fn best_to_reserve(&self, blocked: &Blocked, last: Option<HostId>) -> Option<Choice> {
        let candidates = self.index.candidates.get(&blocked.shape)?.get(&blocked.queue)?;
        let shape = self.index.shapes.get(blocked.shape);
        let choices = candidates.iter().filter_map(|candidate| {
            let fit = self.fit_on(blocked.queue, shape, candidate.host)?;
            Some(Choice { candidate: *candidate, fit })
        });
        choices.min_by_key(|Choice { candidate, fit }| {
            let (start, short) = match fit {
                Fit::Now => (Moment(0), Room::default()),
                Fit::By(start, _) => (*start, Room::default()),
                Fit::Unknown { short, .. } => (Moment::NEVER, *short),
            };
            // The host of the last round stays: what became free there was kept.
            let other = last != Some(candidate.host);
            (start, short, other, std::cmp::Reverse(candidate.preference))
        })
    }

    /// When a host has room for a job; none if it can take none, or is kept for another.
    pub(super) fn fit_on(&self, queue: QueueId, shape: &Shape, host: HostId) -> Option<Fit> {
        let now = &self.index.hosts[host.0 as usize];
        let config = self.queue_config(queue)?;
        let reached = now.contact.state == Reach::Up && now.contact.leased > self.now;
        let open = self.ledger.host_switch(host) != HostSwitch::Closed;
        let able = now.unable_until <= self.now;
        let most = config.host_slots_max.map_or(u64::MAX, u64::from);
        let whole = Room {
            slots: u64::from(now.slots),
            memory_bytes: now.memory_bytes.unwrap_or(u64::MAX),
            queue_slots: most,
            resources: self.counts(&shape.resources, |name| {
                u64::from(now.resources.get(name).copied().unwrap_or(0))
            }),
        };
        let own = |name: &ResourceName| u64::from(shape.resources.of(name.as_str()));
        let mut need =
            Room { resources: self.counts(&shape.resources, own), ..room_of(shape, true) };
        if shape.sharing == Sharing::Exclusive {
            need.slots = whole.slots;
        }
        if !(reached && open && able && whole.has(need))
            || self.index.reserve.hold_on(host).is_some()
        {
            return None;
        }
        let used = Room {
            slots: if now.exclusive.is_some() { whole.slots } else { u64::from(now.used_slots) },
            memory_bytes: now.memory_bytes.map_or(0, |_| now.used_memory),
            queue_slots: config.host_slots_max.map_or(0, |_| u64::from(now.used_by(queue))),
            resources: self.counts(&shape.resources, |name| u64::from(now.used_resources.of(name))),
        };
        let leaving = now.runs.iter().filter_map(|task| {
            let of = self.ledger.jobs[&task.job].queue;
            let run = self.ledger.task(*task)?.run()?;
            let own = u64::from(run.busy_slots());
            let exclusive = run.held.as_ref().is_some_and(|held| held.exclusive);
            let slots = if exclusive { whole.slots } else { own };
            let queue_slots = if of == queue { own } else { 0 };
            let held = |name: &ResourceName| {
                let of = |held: &Held| held.resources.of(name.as_str());
                u64::from(run.held.as_deref().map_or(0, of))
            };
            let resources = self.counts(&shape.resources, held);
            let room = Room { slots, memory_bytes: run.memory_bytes, queue_slots, resources };
            Some(Leaving { at: self.end_of(of, run), room })
        });
        // Without room for other reasons than those that run, it is no lack of room.
        Some(fit(whole.without(used), leaving.collect(), need)).filter(|fit| *fit != Fit::Now)
    }

    /// When a job that runs ends at the latest, if that is known. Nobody knows of what is or may be suspended.
    pub(super) fn end_of(&self, queue: QueueId, run: &Run) -> Option<Moment> {
        if run.ending.is_some() {
            return Some(self.now);
        }
        let began = match run.phase {
            Phase::Starting => run.launched,
            Phase::Running { started, suspended_ms } => started.after(suspended_ms),
            Phase::Suspended { .. } => return None,
        };
        if self.may_suspend(queue, run.host) {
            return None;
        }
        Some(began.after(run.limit_ms?).max(self.now))
    }

    /// When a job ends at the latest that starts now, if that is known.
    pub(super) fn end_if_started(
        &self,
        queue: QueueId,
        shape: &Shape,
        host: HostId,
    ) -> Option<Moment> {
        let limit = self.limit_in(queue, shape.time_limit)?;
        (!self.may_suspend(queue, host)).then(|| self.now.after(limit.as_ms()))
    }

    /// Whether jobs of a queue may be suspended on a host: by its windows, by load, or for those of another queue.
    fn may_suspend(&self, queue: QueueId, host: HostId) -> bool {
        let Some(config) = self.queue_config(queue) else { return true };
        let now = &self.index.hosts[host.0 as usize];
        let own = now.config.map(|place| &self.ledger.config.hosts[place].load);
        let mut loads = own.into_iter().chain([&config.load]);
        !config.run_windows.is_empty()
            || loads.any(Thresholds::may_stop)
            || config.preempted == Preempted::Suspend && self.is_preempted(config)
    }

    /// Whether a queue of the settings preempts this one.
    pub(super) fn is_preempted(&self, queue: &QueueConfig) -> bool {
        self.ledger.config.queues.iter().any(|other| other.preempt.contains(&queue.name))
    }

    /// The job that a host is kept for, if one more job of this shape would delay its start.
    pub(super) fn kept_from(&self, queue: QueueId, shape: &Shape, host: HostId) -> Option<&Hold> {
        let hold = self.index.reserve.hold_on(host)?;
        let taken = self.taken_of(hold, shape, hold.queue == queue);
        (!hold.lets(self.end_if_started(queue, shape, host), taken)).then_some(hold)
    }

    /// Follows the start of a job on a host that is kept for another.
    pub(super) fn take_spare(&mut self, queue: QueueId, shape: ShapeId, host: HostId) {
        if self.index.reserve.hold_on(host).is_none() {
            return;
        }
        let shape = self.index.shapes.get(shape).clone();
        self.take_spare_for(queue, &shape, host);
    }

    /// The same for a job of a shape.
    pub(super) fn take_spare_for(&mut self, queue: QueueId, shape: &Shape, host: HostId) {
        let ends = self.end_if_started(queue, shape, host);
        let holds = self.index.reserve.holds.iter().filter(|hold| hold.host == host);
        let taken: Vec<Room> =
            holds.map(|hold| self.taken_of(hold, shape, hold.queue == queue)).collect();
        let holds = self.index.reserve.holds.iter_mut().filter(|hold| hold.host == host);
        for (hold, taken) in holds.zip(taken) {
            hold.take(ends, taken);
        }
    }

    /// What a job of a shape takes of a host that is kept for another one, in the order of that one's resources.
    fn taken_of(&self, hold: &Hold, shape: &Shape, own_queue: bool) -> Room {
        let room = room_of(shape, own_queue);
        let Some(job) = self.ledger.jobs.get(&hold.entry.job) else { return room };
        let of = |name: &ResourceName| u64::from(shape.resources.of(name.as_str()));
        Room { resources: self.counts(&job.spec.resources, of), ..room }
    }

    /// A number for each resource of hosts that a job asks for, as far as room of it is kept.
    fn counts(
        &self,
        resources: &Resources,
        count: impl Fn(&ResourceName) -> u64,
    ) -> [u64; RESOURCES_MAX] {
        let mut counts = [0; RESOURCES_MAX];
        for (place, (name, _)) in counts.iter_mut().zip(self.host_resources(resources)) {
            *place = count(name);
        }
        counts
    }

    /// When hosts begin to be kept for a job that is passed.
    pub(super) fn next_reservation(&self) -> Moment {
        let after = self.ledger.config.general.reserve_after.as_ms();
        let due = self.index.reserve.passed.values().map(|passed| passed.since.after(after));
        due.filter(|due| *due > self.now).min().unwrap_or(Moment::NEVER)
    }

    /// What is reserved for a job that waits, or when it will be.
    pub(super) fn explain_reservation(&self, job: JobId) -> Option<Reason> {
        let passed = self.index.reserve.passed.get(&job)?;
        let holds = &self.index.reserve.holds;
        if let Some(hold) = holds.iter().find(|hold| hold.entry.job == job) {
            return Some(Reason::Reserved {
                host: self.host_name(hold.host),
                slots: hold.slots,
                within: hold.start.map(|start| Period(start.since(self.now))),
            });
        }
        let due = passed.since.after(self.ledger.config.general.reserve_after.as_ms());
        (due > self.now).then(|| Reason::Passed { left: Period(due.since(self.now)) })
    }

    /// Whether a hold concerns what a user has in a queue: it does not what goes before the reserved job.
    pub(super) fn goes_after(
        &self,
        hold: &Hold,
        queue: QueueId,
        user: UserId,
        entry: Entry,
    ) -> bool {
        if queue == hold.queue {
            let before = (entry.priority, entry.job) < (hold.entry.priority, hold.entry.job);
            return entry.job != hold.entry.job && (user != hold.user || !before);
        }
        self.queue_order(queue) > self.queue_order(hold.queue)
    }

    /// What orders queues as dispatch serves them; those that are no longer in the settings come last.
    pub(super) fn queue_order(&self, queue: QueueId) -> impl Ord + use<> {
        let place = self.index.queues[queue.0 as usize].config;
        let priority = place.map(|place| self.ledger.config.queues[place].priority);
        (std::cmp::Reverse(priority), place)
    }
}

/// What a job of a shape takes; of the slots of a queue only if it is the job's.
fn room_of(shape: &Shape, own_queue: bool) -> Room {
    let own = u64::from(shape.slots);
    // What shares its host with nobody takes all of it.
    let slots = if shape.sharing == Sharing::Exclusive { u64::from(u32::MAX) } else { own };
    let queue_slots = if own_queue { own } else { 0 };
    Room { slots, memory_bytes: shape.memory_bytes, queue_slots, ..Room::default() }
}

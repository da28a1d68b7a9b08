//! Dispatch: which task goes next, and where.
//!
//! Queues are served by priority. In a queue users take turns: who submitted first, or by fair share
//! who has the highest priority; of a user goes what he wants most. The host is the one wanted most,
//! among equals the least loaded. What does not fit lets others pass as far as they cannot delay it, see `reserve.rs`.
//!
//! A round looks only at queues in which something happened, at each user of it and at each shape, never
//! at each task: `O(users + (started + shapes) * hosts)`.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::config::{Dispatch, Exceeded, HostEngine, Limits, LoadIndex, Order, QueueConfig, Role};
use crate::event::{Effect, Outcome};
use crate::grid::Grid;
use crate::grid::explain::{HostObstacle, Reason};
use crate::grid::reserve::{Blocked, Waiters};
use crate::hosts::{HostNow, Reach};
use crate::index::Candidate;
use crate::journal::{HostSwitch, Starts};
use crate::ledger::Job;
use crate::open::Open;
use crate::parse::period::Period;
use crate::parse::resources::GPU;
use crate::ready::{Entry, Line, Shape, ShapeId};
use crate::spec::Sharing;
use crate::task::{Second, Step, Why};
use crate::vocabulary::{HostId, JobId, Moment, QueueId, TaskId, UserId};
use crate::wrap::Wrap;

/// Whose turn it is: the greatest goes first.
#[derive(Clone, Copy, Debug)]
struct Turn {
    priority: f64,
    job: Reverse<JobId>,
    user: UserId,
}

impl Ord for Turn {
    fn cmp(&self, other: &Turn) -> Ordering {
        self.priority
            .total_cmp(&other.priority)
            .then(self.job.cmp(&other.job))
            .then(self.user.cmp(&other.user))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Turn) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Turn) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

impl Grid {
    /// Starts what can be started in the queues in which something happened.
    pub(super) fn dispatch(&mut self, out: &mut Outcome) {
        self.begin_round();
        if !self.index.queues.iter().any(|queue| queue.stirred) {
            return;
        }
        let mut short = std::mem::take(&mut self.index.reserve.short);
        let mut waiters = Waiters::default();
        let mut order: Vec<(Reverse<u32>, usize, QueueId)> = self
            .queue_ids()
            .filter_map(|queue| {
                let place = self.index.queues[queue.0 as usize].config?;
                Some((Reverse(self.ledger.config.queues[place].priority), place, queue))
            })
            .collect();
        order.sort_unstable();
        // What waits in queues before these could be passed, so it has its turn as well.
        let stirred = |(.., queue): &(_, _, QueueId)| self.index.queues[queue.0 as usize].stirred;
        let queues = order.len();
        order.truncate(order.iter().rposition(stirred).map_or(0, |last| last + 1));
        if order.len() == queues {
            // Found anew. Jobs of queues that have no turn in this round still wait for that time.
            self.preempt_look = Moment::NEVER;
        }
        for queue in &mut self.index.queues {
            queue.stirred = false;
        }
        for (_, _, queue) in &order {
            self.resume_preempted(Some(*queue), out);
            if self.queue_obstacle(*queue).is_none() {
                self.serve(*queue, &mut waiters, out);
            }
        }
        self.resume_preempted(None, out);
        // What is kept for jobs of queues that had no turn in this round is still kept from those after them.
        short.retain(|_, job| {
            let waits = self.index.open.get(job).is_some_and(Open::is_ready);
            let queue = self.ledger.jobs.get(job).map(|job| job.queue);
            waits && queue.is_some_and(|of| order.iter().all(|(.., queue)| *queue != of))
        });
        for (name, job) in short {
            self.index.reserve.short.entry(name).or_insert(job);
        }
    }

    /// Why a queue starts nothing at all.
    pub(super) fn queue_obstacle(&self, queue: QueueId) -> Option<Reason> {
        let now = &self.index.queues[queue.0 as usize];
        if now.config.is_none() {
            return Some(Reason::QueueGone(self.ledger.queues.at(queue.0).clone()));
        }
        if self.ledger.switch(queue).starts == Starts::Inactive {
            return Some(Reason::QueueInactive);
        }
        if !now.run_open {
            return Some(Reason::RunWindow);
        }
        if !now.dispatch_open {
            return Some(Reason::DispatchWindow);
        }
        None
    }

    fn serve(&mut self, queue: QueueId, waiters: &mut Waiters, out: &mut Outcome) {
        let usable = |host: &&crate::hosts::HostNow| host.contact.state == Reach::Up;
        let hosts = self.index.hosts.iter().filter(usable);
        let mut free: u64 = hosts.map(|host| u64::from(host.free_slots())).sum();
        let preempts = self.queue_config(queue).is_some_and(|config| !config.preempt.is_empty());
        if free == 0 && !preempts {
            // The commonest case: a job comes while the grid is full.
            return;
        }
        let mut full = FxHashSet::default();
        let users = self.index.ready.users(queue);
        let mut lines: FxHashMap<UserId, Line> =
            users.map(|user| (user, self.index.ready.line(queue, user))).collect();
        let mut turns: BinaryHeap<Turn> = lines
            .iter_mut()
            .filter_map(|(user, line)| self.turn(queue, *user, line, &full))
            .collect();
        while (free > 0 || preempts)
            && let Some(turn) = turns.pop()
        {
            let user = turn.user;
            let Some(line) = lines.get_mut(&user) else { continue };
            let Some((shape, entry)) = self.first(queue, user, line, &full) else { continue };
            if let Some((name, ..)) = self.grid_short(self.index.shapes.get(shape)) {
                full.insert(shape);
                self.index.reserve.short.entry(name).or_insert(entry.job);
                turns.extend(self.turn(queue, user, line, &full));
                continue;
            }
            let blocked = Blocked { queue, user, shape, entry };
            let mut chosen = self.choose(queue, shape);
            if chosen.is_none() && preempts && self.preempt(&blocked, waiters, out) {
                chosen = self.choose(queue, shape);
            }
            match chosen {
                None => {
                    full.insert(shape);
                    self.found_none(blocked, waiters);
                }
                Some(_) if !self.may_take_resources(shape, entry.job) => {
                    full.insert(shape);
                }
                // What is reserved now may be the host that was chosen.
                Some(_) if self.pass(waiters) => {}
                Some((host, why)) => {
                    free = free.saturating_sub(u64::from(self.index.shapes.get(shape).slots));
                    self.take_spare(queue, shape, host);
                    self.launch(queue, entry, host, why, out);
                }
            }
            turns.extend(self.turn(queue, user, line, &full));
        }
    }

    /// When it is a user's turn; none if nothing of his can start.
    fn turn(
        &self,
        queue: QueueId,
        user: UserId,
        line: &mut Line,
        full: &FxHashSet<ShapeId>,
    ) -> Option<Turn> {
        let (_, entry) = self.first(queue, user, line, full)?;
        let config = self.queue_config(queue)?;
        let priority = match config.order {
            Order::FirstCome => 0.0,
            Order::FairShare => self.priority(user),
        };
        Some(Turn { priority, job: Reverse(entry.job), user })
    }

    /// Fair-share priority of a user now.
    pub(super) fn priority(&self, user: UserId) -> f64 {
        let rules = &self.ledger.config.fair_share;
        let name = self.ledger.users.at(user.0);
        let shares = rules.shares.get(name).copied().unwrap_or(rules.share_default);
        let in_use = self.index.users.get(user.0 as usize).map(|user| user.in_use);
        self.ledger.used(user).priority(self.now, rules, shares, in_use.unwrap_or_default())
    }

    /// Fair-share priority of the user of a job now, if users of its queue take turns by it.
    #[must_use]
    pub fn fair_share(&self, job: &Job) -> Option<f64> {
        let config = self.queue_config(job.queue)?;
        (config.order == Order::FairShare).then(|| self.priority(job.user))
    }

    /// What of a user goes next, as far as limits let it and a place was not looked for in vain. In one
    /// round limits leave less and less, so what did not go once does not go later.
    fn first(
        &self,
        queue: QueueId,
        user: UserId,
        line: &mut Line,
        full: &FxHashSet<ShapeId>,
    ) -> Option<(ShapeId, Entry)> {
        let left = self.slots_left(queue, user);
        let name = self.ledger.users.at(user.0);
        line.first(&self.index.ready, |shape| {
            let needs = self.index.shapes.get(shape);
            !full.contains(&shape)
                && needs.slots <= left
                && self.reservation_obstacle(needs.reservation.as_ref(), name).is_none()
                && self.full_group(user, needs.group.as_ref()).is_none()
        })
    }

    /// Slots that limits of the queue and of the user leave.
    pub(super) fn slots_left(&self, queue: QueueId, user: UserId) -> u32 {
        let left = |(_, used, most): (_, u64, u32)| u64::from(most).saturating_sub(used);
        let least = self.slot_limits(queue, user).into_iter().flatten().map(left).min();
        least.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Limits of slots that concern a user in a queue, with what is used of them.
    pub(super) fn slot_limits(
        &self,
        queue: QueueId,
        user: UserId,
    ) -> [Option<(SlotLimit, u64, u32)>; 3] {
        let Some(config) = self.queue_config(queue) else { return [None; 3] };
        let now = &self.index.queues[queue.0 as usize];
        let by_user = now.used_by_user.get(&user).copied().unwrap_or(0);
        let on_grid = self.index.users.get(user.0 as usize).map_or(0, |user| user.in_use.slots);
        let general = &self.ledger.config.general;
        [
            config.slots_max.map(|most| (SlotLimit::Queue, u64::from(now.used_slots), most)),
            config.user_slots_max.map(|most| (SlotLimit::UserInQueue, u64::from(by_user), most)),
            general.user_slots_max.map(|most| (SlotLimit::User, on_grid, most)),
        ]
    }

    /// The best host for a shape now.
    fn choose(&mut self, queue: QueueId, shape: ShapeId) -> Option<(HostId, Why)> {
        if !self.index.candidates.get(&shape).is_some_and(|by| by.contains_key(&queue)) {
            let found = self.find_candidates(queue, self.index.shapes.get(shape));
            self.index.candidates.entry(shape).or_default().insert(queue, found);
        }
        let candidates = &self.index.candidates[&shape][&queue];
        let shape = self.index.shapes.get(shape);
        let mut why = Why { allowed: candidates.len() as u32, ..Why::default() };
        let mut best: Option<(HostId, u32, u32)> = None;
        let kept = self.kept_for_suspended(queue);
        let near = |host: HostId| {
            let name = self.ledger.hosts.at(host.0);
            shape.near.iter().find(|(near, _)| near == name).map_or(0, |(_, inputs)| *inputs)
        };
        for candidate in candidates {
            if self.obstacle_now(queue, shape, candidate.host).is_some()
                || self.kept_from(queue, shape, candidate.host).is_some()
                || kept.iter().any(|(of, _)| *of == candidate.host)
            {
                continue;
            }
            why.fitting += 1;
            let host = &self.index.hosts[candidate.host.0 as usize];
            let this = (candidate.host, candidate.preference, host.load_milli());
            let better = |than: (HostId, u32, u32)| {
                let free = |id: HostId| self.index.hosts[id.0 as usize].free_slots();
                let key = |of: (HostId, u32, u32)| (of.1, near(of.0), Reverse(of.2), free(of.0));
                key(this) > key(than)
            };
            let second = match best {
                Some(before) if !better(before) => Some(this),
                Some(_) | None => best.replace(this),
            };
            if let Some((host, preference, load_milli)) = second {
                let known = why.second.map(|s| (s.preference, Reverse(s.load_milli)));
                if known.is_none_or(|known| (preference, Reverse(load_milli)) > known) {
                    why.second = Some(Second { host, preference, load_milli });
                }
            }
        }
        let (host, preference, load_milli) = best?;
        Some((host, Why { preference, load_milli, near: near(host), ..why }))
    }

    fn find_candidates(&self, queue: QueueId, shape: &Shape) -> Vec<Candidate> {
        let hosts = (0..self.index.hosts.len() as u32).map(HostId);
        let list = self.list_of(queue, shape);
        hosts
            .filter_map(|host| list(host).ok().map(|preference| Candidate { host, preference }))
            .collect()
    }

    /// How much each host is wanted, or why lists and settings rule it out. What is the same for all hosts is found out once.
    pub(super) fn list_of<'a>(
        &'a self,
        queue: QueueId,
        shape: &'a Shape,
    ) -> impl Fn(HostId) -> Result<u32, HostObstacle> + 'a {
        let fits_slurm = self.fits_slurm(queue, shape);
        move |host| self.listed((queue, shape), host, &fits_slurm)
    }

    fn listed(
        &self,
        (queue, shape): (QueueId, &Shape),
        host: HostId,
        fits_slurm: impl Fn() -> bool,
    ) -> Result<u32, HostObstacle> {
        let name = self.ledger.hosts.at(host.0);
        let config = self.queue_config(queue).ok_or(HostObstacle::NotInQueue)?;
        let now = &self.index.hosts[host.0 as usize];
        if !self.is_accepted(host) {
            return Err(HostObstacle::Unlisted);
        }
        if now.config.is_some_and(|place| self.ledger.config.hosts[place].role == Role::Control) {
            return Err(HostObstacle::Control);
        }
        if shape.needs_agent && self.is_slurm(host) {
            return Err(HostObstacle::NoAgent);
        }
        let config_of_host = now.config.map(|place| &self.ledger.config.hosts[place]);
        if !self.has_features(shape, config_of_host) {
            return Err(HostObstacle::NoFeature);
        }
        if self.is_slurm(host) && !fits_slurm() {
            return Err(HostObstacle::NoConstraint);
        }
        let of_queue = config.hosts.preference(name).ok_or(HostObstacle::NotInQueue)?;
        let of_job = shape.hosts.preference(name).ok_or(HostObstacle::NotInJob)?;
        if shape.excluded.contains(&host) {
            return Err(HostObstacle::Excluded);
        }
        Ok(if shape.hosts.is_empty() { of_queue } else { of_job })
    }

    /// Why a host that is listed cannot take a task of a shape now.
    pub(super) fn obstacle_now(
        &self,
        queue: QueueId,
        shape: &Shape,
        host: HostId,
    ) -> Option<HostObstacle> {
        self.obstacle_if(queue, shape, host, &self.index.hosts[host.0 as usize])
    }

    /// Why a host that is listed could not take a task of a shape if it was as `now`.
    pub(super) fn obstacle_if(
        &self,
        queue: QueueId,
        shape: &Shape,
        host: HostId,
        now: &HostNow,
    ) -> Option<HostObstacle> {
        let needed = shape.slots;
        match now.contact.state {
            Reach::Gone => return Some(HostObstacle::Gone),
            Reach::Away => return Some(HostObstacle::Away),
            Reach::Up if now.contact.leased <= self.now => return Some(HostObstacle::Silent),
            Reach::Up => {}
        }
        if self.ledger.host_switch(host) == HostSwitch::Closed {
            return Some(HostObstacle::Closed);
        }
        if now.slots < needed {
            return Some(HostObstacle::TooSmall { slots: now.slots });
        }
        if now.free_slots() < needed {
            return Some(HostObstacle::Slots { free: now.free_slots() });
        }
        let queue_config = self.queue_config(queue)?;
        if let Some(most) = queue_config.host_slots_max
            && now.used_by(queue) + needed > most
        {
            return Some(HostObstacle::QueueSlots { used: now.used_by(queue), most });
        }
        if let Some(bytes) = now.memory_bytes.filter(|_| shape.memory_bytes > 0) {
            if bytes < shape.memory_bytes {
                return Some(HostObstacle::MemoryTooSmall { bytes });
            }
            let free = bytes.saturating_sub(now.used_memory);
            if free < shape.memory_bytes {
                return Some(HostObstacle::Memory { free });
            }
        }
        if let Some(short) = self.host_short(now, shape) {
            return Some(short.obstacle);
        }
        if let Some(set_aside) = self.set_aside(queue, shape, host, now) {
            return Some(set_aside);
        }
        if now.unable_until > self.now {
            return Some(HostObstacle::Unable { until: now.unable_until });
        }
        if now.rests_until > self.now {
            return Some(HostObstacle::Rests { until: now.rests_until });
        }
        // Slurm has nodes for exclusive jobs, and knows how loaded they are.
        if self.is_slurm(host) { None } else { self.obstacle_beside(queue_config, shape, now) }
    }

    /// Why a host cannot take a task of a shape beside the jobs and the load that it has.
    fn obstacle_beside(
        &self,
        queue: &QueueConfig,
        shape: &Shape,
        now: &HostNow,
    ) -> Option<HostObstacle> {
        if let Some(TaskId { job, .. }) = now.exclusive {
            return Some(HostObstacle::Exclusive { job });
        }
        if shape.sharing == Sharing::Exclusive && !now.runs.is_empty() {
            return Some(HostObstacle::Busy { jobs: now.runs.len() as u32 });
        }
        let own = now.config.map(|place| &self.ledger.config.hosts[place].load);
        for load in own.into_iter().chain([&queue.load]).filter(|load| !load.is_empty()) {
            let Some(measured) = &now.load else { return Some(HostObstacle::NoLoad) };
            if let Some(exceeded) = load.refuses(measured) {
                return Some(HostObstacle::Load(exceeded));
            }
        }
        if shape.io_heavy {
            let limit = self.ledger.config.general.io_pressure_max;
            let Some(measured) = &now.load else { return Some(HostObstacle::NoLoad) };
            if measured.iop > limit {
                let (index, value) = (LoadIndex::Iop, measured.iop);
                return Some(HostObstacle::Load(Exceeded { index, value, limit }));
            }
        }
        None
    }

    /// Whether a host stands for the nodes of a Slurm cluster: its agent has said so when it joined, or the settings say so
    /// before it has.
    pub(super) fn is_slurm(&self, host: HostId) -> bool {
        self.ledger.engine(host) == HostEngine::Slurm || self.is_set_to_slurm(host)
    }

    /// Whether the settings say that a host stands for the nodes of a Slurm cluster.
    pub(super) fn is_set_to_slurm(&self, host: HostId) -> bool {
        let place = self.index.hosts[host.0 as usize].config;
        place.is_some_and(|place| self.ledger.config.hosts[place].engine == HostEngine::Slurm)
    }

    /// Limits of the processors and processes of a job in a queue, on a host. Slurm sets its own.
    pub(super) fn limits_on(&self, queue: QueueId, host: HostId) -> Limits {
        if self.is_slurm(host) {
            return Limits::default();
        }
        let place = self.index.hosts[host.0 as usize].config;
        let host = place.map(|place| &self.ledger.config.hosts[place]);
        Limits::of(self.queue_config(queue), host)
    }

    /// How long a task of a job may run.
    pub(super) fn time_limit(&self, job: JobId) -> Option<Period> {
        let job = &self.ledger.jobs[&job];
        if job.spec.service.is_some() {
            // The default is for jobs that come to an end; the maximum is for all.
            let most = self.queue_config(job.queue).and_then(|queue| queue.time_limit_max);
            return job.spec.time_limit.or(most);
        }
        self.limit_in(job.queue, job.spec.time_limit)
    }

    /// How long a job of a queue may run that has asked for this limit, or for none.
    pub(super) fn limit_in(&self, queue: QueueId, own: Option<Period>) -> Option<Period> {
        let config = self.queue_config(queue);
        own.or(config.and_then(|queue| queue.time_limit_default.or(queue.time_limit_max)))
    }

    fn launch(&mut self, queue: QueueId, entry: Entry, host: HostId, why: Why, out: &mut Outcome) {
        let job = &self.ledger.jobs[&entry.job];
        let open = &self.index.open[&entry.job];
        let place = entry.place.or(open.fresh.first()).expect("a ready job has a waiting task");
        let task = TaskId { job: entry.job, index: job.index_at(place) };
        let slots = job.spec.slots();
        let time_limit = self.time_limit(entry.job);
        let time_limit = [time_limit, self.reserved_for(&job.spec)].into_iter().flatten().min();
        let limit_ms = time_limit.map(Period::as_ms);
        debug_assert_eq!(job.queue, queue);
        let wrap = Wrap::of(&job.spec, self.queue_config(queue));
        let limits = self.limits_on(queue, host);
        let held = self.held_by(entry.job, host);
        let has_gpus = self.index.hosts[host.0 as usize].resources.contains_key(GPU);
        let gpus = held.as_ref().map(|held| held.gpus.clone());
        let gpus = has_gpus.then(|| gpus.unwrap_or_default());
        self.step(task, Step::Dispatched { host, limit_ms, why, held }, out);
        let run = self.ledger.task(task).and_then(|task| task.run()).expect("was dispatched");
        let (attempt, requeues) = (run.attempt, run.requeues);
        let now = &mut self.index.hosts[host.0 as usize];
        now.since_load += slots;
        if let Dispatch::Interval { sleep, accept } = self.ledger.config.general.dispatch
            && accept > 0
        {
            now.rests_until = self.now.after(sleep.as_ms() * u64::from(accept));
            self.index.stir();
        }
        out.effects.push(Effect::Launch {
            task,
            attempt,
            requeues,
            host: self.host_name(host),
            slots,
            time_limit,
            gpus,
            wrap,
            limits,
        });
    }
}

/// A limit of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotLimit {
    Queue,
    UserInQueue,
    User,
}

//! The grid: one state that events change.

mod advance;
mod area;
mod contact;
mod control;
mod cycle;
mod dispatch;
mod explain;
mod feature;
mod flow;
mod flow_elements;
mod group;
mod modify;
mod possible;
mod preempt;
mod reserve;
mod resource;
mod running;
mod schedule;
mod service;
mod submit;
mod time;
mod trial;
mod view;
mod words;

pub use explain::{Explanation, HostObstacle, HostVerdict, Placement, Reason};
pub use flow::StepState;
pub use group::GroupView;
pub use resource::ResourceView;
pub use trial::Trial;
pub use view::{HostView, LastStart, QueueView, State};

use crate::config::{Config, Dispatch};
use crate::event::{Effect, Event, Outcome};
use crate::index::{Before, Index};
use crate::journal::{Change, HostSwitch, JournalError, Record};
use crate::ledger::Ledger;
use crate::task::Step;
use crate::vocabulary::{HostId, HostName, JobId, Moment, QueueId, TaskId};

/// The whole grid: the ledger, and what follows from it and from the hosts' reports.
#[derive(Debug)]
pub struct Grid {
    ledger: Ledger,
    index: Index,
    /// The latest time that an event told.
    now: Moment,
    /// When hosts and windows are looked at next.
    next_look: Moment,
    /// When jobs are started next, in interval mode.
    next_round: Moment,
    /// When reservations are looked at next.
    reservations_look: Moment,
    /// When a job has run for long enough that it may make room for one that waits.
    preempt_look: Moment,
}

/// How soon after a round that made room is the next one, which gives others what is left of it.
const ROUND_AGAIN_MS: u64 = 10;

impl Grid {
    /// A grid as it was when the last of `records` was made: `ledger` is an earlier state, such as
    /// [`Ledger::default`] at the beginning of time. Hosts with jobs count as away since `now` until
    /// their agents join, and keep their jobs at least for the lease and the host timeout that the
    /// ledger says. Then comes [`Event::Configured`] if settings are other ones now.
    ///
    /// # Errors
    /// If the records do not fit: the journal is damaged.
    pub fn restore<'a>(
        mut ledger: Ledger,
        records: impl IntoIterator<Item = &'a Record>,
        now: Moment,
    ) -> Result<Grid, JournalError> {
        for (number, record) in (1..).zip(records) {
            ledger.apply(record).map_err(|reason| JournalError { number, reason })?;
        }
        // A clock that went back does not make leases end sooner.
        let now = now.max(ledger.at);
        let index = Index::build(&ledger, now);
        let next_look = Moment(0);
        let (reservations_look, preempt_look) = (Moment(0), Moment::NEVER);
        let mut grid = Grid {
            ledger,
            index,
            now,
            next_look,
            next_round: now,
            reservations_look,
            preempt_look,
        };
        grid.look_at_windows();
        Ok(grid)
    }

    /// Lets time pass until `now` and takes the event. What it leads to is added to `out`: its records
    /// must be durable before its effects are carried out.
    ///
    /// A time before the latest one counts as the latest one. An event that is stale (another attempt,
    /// another host, a task that ended) changes nothing, apart from a kill for what should not run.
    pub fn apply(&mut self, now: Moment, event: Event, out: &mut Outcome) {
        self.now = self.now.max(now);
        self.let_time_pass(out);
        match event {
            Event::Submit { user, spec, key } => self.submit(user, *spec, key, out),
            Event::Command { by, target, verb } => self.command(&by, target, verb, out),
            Event::Modify { by, job, changes } => {
                let answer = out.effects.len();
                let modified = self.modify(&by, job, &changes, out);
                out.effects.insert(answer, modified.unwrap_or_else(Effect::Rejected));
            }
            Event::Queue { by, queue, verb } => {
                let switched = self.switch_queue(&by, &queue, verb, out);
                out.effects.push(switched.unwrap_or_else(Effect::Rejected));
            }
            Event::Host { by, host, state } => {
                let switched = self.switch_host(&by, &host, state, out);
                out.effects.push(switched.unwrap_or_else(Effect::Rejected));
            }
            Event::Reserve { by, reservation } => {
                let made = self.reserve_in_advance(&by, *reservation, out);
                out.effects.push(made.unwrap_or_else(Effect::Rejected));
            }
            Event::Unreserve { by, name } => {
                let deleted = self.unreserve(&by, &name, out);
                out.effects.push(deleted.unwrap_or_else(Effect::Rejected));
            }
            Event::Group { by, group, verb } => {
                let changed = self.change_group(&by, group, verb, out);
                out.effects.push(changed.unwrap_or_else(Effect::Rejected));
            }
            Event::Configured(config) => self.configure(config, out),
            Event::HostJoined(joined) => self.join(*joined, out),
            Event::HostLoad { host, load } => self.take_load(&host, load, out),
            Event::AreaSizes { host, sizes } => self.take_area_sizes(&host, &sizes, out),
            Event::HostLost { host } => self.lose_contact(&host),
            Event::Started { host, task, attempt } => self.started(&host, task, attempt, out),
            Event::Exited { host, task, attempt, exit, usage } => {
                self.exited(&host, task, attempt, exit, usage, out);
            }
            Event::Lost { host, task, attempt, loss } => {
                self.lost(&host, task, attempt, loss, out);
            }
            Event::WorkReleased { task, requeues, result } => {
                self.work_released(task, requeues, &result, out);
            }
            Event::Told { job, ended } => {
                let known = self.ledger.jobs.get(&job);
                if known.is_some_and(|known| known.ended() == Some(ended)) {
                    self.record(Change::Told { job, ended }, out);
                }
            }
            Event::Flow(event) => self.flow_event(event, out),
            Event::Tick => {}
        }
        self.follow_flows(out);
        self.end_what_waits_in_vain(out);
        self.index.let_begin(&self.ledger, self.now);
        if self.ledger.config.general.dispatch == Dispatch::Event {
            self.dispatch(out);
        }
        self.forget_old(out);
    }

    /// When [`Event::Tick`] is due at the latest, as far as no event comes before.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let ends = [self.index.deadlines.first(), self.index.warnings.first()];
        let deadline = ends.into_iter().flatten().map(|(at, _)| *at).min();
        let deadline = deadline.unwrap_or(Moment::NEVER);
        let stirred = self.index.queues.iter().any(|queue| queue.stirred);
        let passed = !self.index.reserve.passed.is_empty();
        let round = match self.ledger.config.general.dispatch {
            Dispatch::Interval { .. } if stirred || passed => self.next_round,
            Dispatch::Interval { .. } => Moment::NEVER,
            Dispatch::Event if stirred => self.now.after(ROUND_AGAIN_MS),
            Dispatch::Event => self.next_reservation(),
        };
        let delayed = self.index.delays.first().map_or(Moment::NEVER, |(at, ..)| *at);
        let times = self.index.times.next().min(delayed);
        let looks = self.next_look.min(self.reservations_look).min(self.preempt_look);
        let next = looks.min(deadline).min(times).min(round);
        next.min(self.next_forgetting()).min(self.next_firing())
    }

    /// The latest time that it was told, or that a record of its journal was made.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Everything that lasts: serialised, it is a snapshot in place of all records so far.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes other settings.
    fn configure(&mut self, config: Box<Config>, out: &mut Outcome) {
        if *config != self.ledger.config {
            let lease = self.ledger.config.general.lease;
            if config.general.lease < lease && !self.index.hosts.is_empty() {
                // A controller that starts again knows no lease but that of its settings.
                self.record(Change::Leased(self.now.after(lease.as_ms())), out);
            }
            self.record(Change::Configured(config), out);
            self.index.configure(&self.ledger);
            self.next_look = Moment(0);
            self.next_round = self.now;
            for host in &mut self.index.hosts {
                host.rests_until = self.now;
            }
            self.look_at_windows();
            self.look_at_vain();
        }
        out.effects.push(Effect::Obeyed { tasks: 0 });
    }

    /// Makes a lasting change that is no change of a task.
    fn record(&mut self, change: Change, out: &mut Outcome) {
        let record = Record { at: self.now, change };
        self.ledger.apply(&record).expect("a decision fits the state that it was made on");
        out.records.push(record);
    }

    /// Changes one task.
    fn step(&mut self, task: TaskId, step: Step, out: &mut Outcome) {
        let place = self.place_of(task);
        let before = Before::of(&self.ledger.jobs[&task.job].tasks[place as usize]);
        self.record(Change::Task { task, step }, out);
        self.index.moved(&self.ledger, task.job, place, &before);
        self.index.wake(&self.ledger, task.job, &[place]);
    }

    fn place_of(&self, task: TaskId) -> u32 {
        let job = &self.ledger.jobs[&task.job];
        job.place_of(task.index).expect("a task that is known has a place")
    }

    fn host_id(&self, name: &HostName) -> Option<HostId> {
        self.ledger.hosts.find(name).map(HostId)
    }

    /// Whether a host is one that people know: it was not removed.
    fn is_listed(&self, host: HostId) -> bool {
        self.ledger.host_switch(host) != HostSwitch::Removed
    }

    fn host_name(&self, host: HostId) -> HostName {
        self.ledger.hosts.at(host.0).clone()
    }

    fn queue_ids(&self) -> impl Iterator<Item = QueueId> + use<> {
        (0..self.index.queues.len() as u32).map(QueueId)
    }

    /// When the oldest finished job is forgotten for its age.
    fn next_forgetting(&self) -> Moment {
        let age = self.ledger.config.general.finished_age.as_ms();
        self.index.finished.oldest().map_or(Moment::NEVER, |ended| ended.after(age))
    }

    /// Forgets finished jobs that are too old or too many, but for those that something waits for. A few
    /// with each event, so that none takes long.
    fn forget_old(&mut self, out: &mut Outcome) {
        const AT_ONCE: usize = 16;
        for _ in 0..AT_ONCE {
            let general = &self.ledger.config.general;
            let Some(job) = self.index.finished.next_to_go(general, self.now) else { return };
            if let Some(flow) = self.index.flow_of.get(&job).copied() {
                self.forget_flow(flow, out);
                continue;
            }
            if self.is_waited_for(job) {
                self.index.keep(&self.ledger.jobs[&job], job);
                continue;
            }
            self.index.forget(&self.ledger, job, &self.ledger.jobs[&job]);
            self.record(Change::Forgotten(job), out);
            out.effects.push(Effect::Forgotten { job });
        }
    }

    pub(super) fn is_waited_for(&self, job: JobId) -> bool {
        let dependents = self.index.dependents.get(&job);
        dependents.into_iter().flatten().any(|other| self.index.open.contains_key(other))
    }
}

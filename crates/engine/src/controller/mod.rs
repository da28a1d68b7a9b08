//! The controller: has an [`Engine`] decide, makes it durable, and carries it out.
//!
//! Inputs are taken as they lie in the channel, up to `TOGETHER_MAX`, and their records become durable
//! in one commit. Only then are answers and orders given out, input by input in their order. Records that
//! nobody waits for, of a job that has started or a work area that is gone, wait up to `LINGER_MS` for others
//! to be committed with: lost, they would be reported again. A commit that fails ends the controller, as memory
//! is ahead of the journal then.
//!
//! Questions that only look are answered after that, up to `LOOKUPS_AT_ONCE` and for `LOOKUPS_TIME` before the next
//! inputs are taken: an answer may show what was asked later on the same connection.
//!
//! Nothing here waits for anybody: answers and orders go into channels that others empty.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Clock;
use forebay_grid::config::Config;
use forebay_grid::flow::FlowId;
use forebay_grid::flow::event::FlowEffect;
use forebay_grid::journal::Change;
use forebay_grid::spec::{Checkpoint, JobSpec};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId};
use forebay_grid::{Effect, Event, Outcome};
use forebay_store::Store;

use crate::checkpoint::Bounds;
use crate::controller::figures::Figures;
use crate::controller::input::Follow;
pub use crate::controller::input::Input;
use crate::controller::keeps::Keeps;
use crate::controller::listeners::Listeners;
use crate::controller::lookups::Lookups;
use crate::controller::outboxes::Outboxes;
use crate::controller::sessions::{Orders, Sessions};
use crate::controller::steady::{Reading, Steady};
use crate::controller::using::Uses;
use crate::controller::watch::Watches;
use crate::engine::{Engine, JobEnd};
use crate::journal::Journal;
use crate::journal::replay::Replay;
use crate::journal::reserve::Reserve;
use crate::notify::jobs::Notifier;
use crate::protocol::flow::FlowAnswer;
use crate::protocol::{Answer, Launch, Order, Report, ServiceWatch};

pub mod figures;
mod history;
mod input;
mod keeps;
mod listeners;
mod lookups;
mod outboxes;
mod questions;
mod sessions;
mod stall;
mod steady;
mod using;
mod watch;

use stall::{Space, Stall};

/// The most inputs that are committed together.
const TOGETHER_MAX: usize = 1024;

/// The most questions that are answered before inputs are taken again. None takes longer than a page of a
/// list and a look at each job.
const LOOKUPS_AT_ONCE: usize = 16;

/// How long questions are answered before inputs are taken again, but for the last one of them.
const LOOKUPS_TIME: Duration = Duration::from_millis(20);

/// How long records wait that nobody waits for, in milliseconds.
const LINGER_MS: u64 = 10;

/// What was taken and is not durable yet.
#[derive(Default)]
struct Taken {
    outcome: Outcome,
    /// For each input where its effects end, and what comes after.
    parts: Vec<(usize, Follow)>,
    /// Since when there are records.
    since: Option<Moment>,
}

/// One controller.
pub struct Controller<S> {
    engine: Box<dyn Engine>,
    journal: Journal<S>,
    time: Steady,
    outboxes: Outboxes,
    waits: Listeners<JobId>,
    element_waits: Listeners<TaskId>,
    flow_waits: Listeners<FlowId>,
    watches: Watches,
    sessions: Sessions,
    keeps: Keeps,
    lookups: Lookups,
    uses: Uses,
    figures: Figures,
    taken: Taken,
    space: Space,
    /// While there is no space for the journal.
    stall: Option<Stall>,
    /// Whether this controller may carry anything out, if another one may lead instead.
    leads: Option<Box<dyn Fn() -> bool + Send>>,
    /// Sends what jobs notify people of; nothing is sent without it.
    notifier: Option<Notifier>,
}

impl<S: Store> Controller<S> {
    /// A controller of the local engine with what its store holds, and these settings.
    ///
    /// # Errors
    /// If the journal cannot be read or written.
    pub fn open(store: S, config: Config, clock: Arc<dyn Clock>) -> Result<Controller<S>> {
        Controller::open_after(store, None, config, clock)
    }

    /// As [`Controller::open`], where the journal was read ahead.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn open_after(
        store: S,
        ahead: Option<Replay>,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Controller<S>> {
        let time = Steady::new(clock);
        let (journal, grid) = Journal::open_after(store, ahead, time.look().now)?;
        Controller::begin(Box::new(grid), journal, config, time)
    }

    /// A controller of another engine, with the journal for its history and its sums.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn with_engine(
        engine: Box<dyn Engine>,
        journal: Journal<S>,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Controller<S>> {
        Controller::begin(engine, journal, config, Steady::new(clock))
    }

    fn begin(
        engine: Box<dyn Engine>,
        journal: Journal<S>,
        config: Config,
        mut time: Steady,
    ) -> Result<Controller<S>> {
        // The clock may have been set back since the last record was written.
        time.not_before(engine.now());
        let mut controller = Controller {
            engine,
            journal,
            time,
            outboxes: Outboxes::default(),
            waits: Listeners::default(),
            element_waits: Listeners::default(),
            flow_waits: Listeners::default(),
            watches: Watches::default(),
            sessions: Sessions::new(),
            keeps: Keeps::default(),
            lookups: Lookups::default(),
            uses: Uses::default(),
            figures: Figures::default(),
            taken: Taken::default(),
            space: Space::default(),
            stall: None,
            leads: None,
            notifier: None,
        };
        controller.take(vec![Input::Configured(Box::new(config))])?;
        Ok(controller)
    }

    /// Keeps space for the journal, as the setting `journal_reserve` says.
    pub fn keep_reserve(&mut self, reserve: Reserve) {
        self.space.reserve = reserve;
    }

    /// Has jobs notify people, in whose messages the grid has this name: also those that have ended when no controller was
    /// there to do so. Who was told is said to `inputs`.
    pub fn notify_as(&mut self, grid: String, inputs: Sender<Input>) {
        let told = move |job, ended| drop(inputs.send(Input::Told { job, ended }));
        let mut notifier = Notifier::new(grid, Box::new(told));
        for job in self.engine.untold() {
            if let (Some(end), Some(about)) = (self.engine.end(job), self.engine.about(job)) {
                notifier.finished(self.engine.settings(), (job, end), &about);
            }
        }
        self.notifier = Some(notifier);
    }

    /// Carries nothing out any more once `leads` says that another controller may lead.
    pub fn lead_while(&mut self, leads: impl Fn() -> bool + Send + 'static) {
        self.leads = Some(Box::new(leads));
    }

    fn check_lead(&self) -> Result<()> {
        anyhow::ensure!(
            self.leads.as_ref().is_none_or(|leads| leads()),
            "another controller may lead by now: nothing more is carried out"
        );
        Ok(())
    }

    /// What is counted for monitors.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Works until [`Input::Stop`] or until nobody can send any more, then writes a snapshot, unless others wait to lead.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn run(mut self, inputs: &Receiver<Input>) -> Result<()> {
        let mut listened = self.time.instant();
        loop {
            self.look_at_space();
            let patience = self.patience();
            let first = match inputs.recv_timeout(patience) {
                Ok(input) => Some(input),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = self.time.instant();
            self.excuse(now.saturating_duration_since(listened), patience);
            listened = now;
            let mut batch: Vec<Input> =
                first.into_iter().chain(inputs.try_iter().take(TOGETHER_MAX - 1)).collect();
            let stop = batch.iter().position(|input| matches!(input, Input::Stop));
            batch.truncate(stop.unwrap_or(batch.len()));
            if self.stall.is_some() {
                self.take_stalled(batch);
                if self.stalled_for().is_some_and(|left| left.is_zero()) || stop.is_some() {
                    self.try_again()?;
                }
            } else {
                self.apply(batch);
                if !self.may_linger() {
                    self.settle()?;
                }
            }
            if stop.is_some() {
                break;
            }
        }
        self.settle()?;
        if self.stall.is_some() {
            tracing::error!(
                "the controller exits without writing changes that it has not acknowledged"
            );
            return Ok(());
        }
        let Some(ledger) = self.engine.snapshot() else { return Ok(()) };
        if self.leads.is_some() {
            // Another controller waits for this one's end, and reads batches as fast as a snapshot.
            return self.journal.shorten(ledger);
        }
        self.journal.snapshot(ledger)
    }

    /// If the controller has listened much later than it wanted to, it was stopped, or busy. What hosts said since
    /// it listened before is still on its way, so they are not taken for silent.
    fn excuse(&mut self, passed: Duration, wanted: Duration) {
        const LATE: Duration = Duration::from_secs(1);
        if passed >= wanted + LATE {
            tracing::warn!(?passed, "the controller could not listen; no host is given up for it");
            self.engine.excuse_silence(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// How long to wait for an input before time itself is one.
    fn patience(&self) -> Duration {
        const LONGEST_MS: u64 = 60_000;
        if !self.lookups.is_empty() {
            return Duration::ZERO;
        }
        if let Some(left) = self.stalled_for() {
            return left;
        }
        // Clocks have steps: a little later is better than a little too early, many times.
        let mut wake = self.engine.next_wake().min(self.sessions.next_wake());
        if let Some(since) = self.taken.since {
            wake = wake.min(since.after(LINGER_MS));
        }
        Duration::from_millis(wake.since(self.time.look().now).min(LONGEST_MS) + 1)
    }

    /// Takes inputs, makes what they led to durable, and carries it out.
    ///
    /// # Errors
    /// If the journal cannot be written: nothing was carried out then. If only space is missing that is no error: it is
    /// tried again with the next inputs.
    pub fn take(&mut self, inputs: Vec<Input>) -> Result<()> {
        if self.stall.is_some() {
            self.take_stalled(inputs);
            return self.try_again();
        }
        self.apply(inputs);
        self.settle()
    }

    /// Has the engine decide; nobody learns of it yet.
    fn apply(&mut self, inputs: Vec<Input>) {
        let Reading { now, set_forward_ms } = self.time.read();
        let mut taken = std::mem::take(&mut self.taken);
        if set_forward_ms > 0 {
            tracing::warn!(
                set_forward_ms,
                "the clock was set; no lease or time limit ends sooner because of it"
            );
            self.engine.skip_time(set_forward_ms, &mut taken.outcome);
        }
        self.engine.apply(now, Event::Tick, &mut taken.outcome);
        taken.parts.push((taken.outcome.effects.len(), Follow::Nothing));
        for input in inputs {
            let Some(input) = self.within_space(input) else { continue };
            let (event, follow) = input.meaning(&mut self.outboxes);
            if let Some(event) = event {
                self.engine.apply(now, event, &mut taken.outcome);
            }
            taken.parts.push((taken.outcome.effects.len(), follow));
        }
        if taken.since.is_none() && !taken.outcome.records.is_empty() {
            taken.since = Some(now);
        }
        self.taken = taken;
    }

    /// Whether there are records for which nobody waits, and which do not wait for long.
    fn may_linger(&self) -> bool {
        let nobody_waits = |follow: &Follow| match follow {
            Follow::Nothing | Follow::Using { .. } => true,
            Follow::Started { task, .. } => !self.watches.has(task.job),
            Follow::Reply(_)
            | Follow::Lookup(_)
            | Follow::Connected { .. }
            | Follow::Areas { .. }
            | Follow::Noted { .. }
            | Follow::Disconnected { .. }
            | Follow::Watches(_) => false,
        };
        let fresh = |since: Moment| self.time.look().now < since.after(LINGER_MS);
        self.taken.since.is_some_and(fresh)
            && self.lookups.is_empty()
            && self.taken.outcome.effects.is_empty()
            && self.taken.parts.iter().all(|(_, follow)| nobody_waits(follow))
    }

    /// Makes what was taken durable, and carries it out.
    fn settle(&mut self) -> Result<()> {
        if self.stall.is_some() {
            return Ok(());
        }
        let taken = std::mem::take(&mut self.taken);
        let outcome = &taken.outcome;
        let settings = self.engine.settings();
        self.check_lead()?;
        self.space.is_written |= !outcome.records.is_empty() || !outcome.effects.is_empty();
        let begun = self.time.instant();
        match self.journal.append(&outcome.records, &outcome.effects, settings) {
            Ok(()) => {
                // The commit may have taken its time.
                self.check_lead()?;
                let took = self.time.instant().saturating_duration_since(begun);
                self.figures.committed(took, &outcome.records);
                let touched = touched(&taken.outcome);
                self.carry_all_out(taken.outcome.effects, taken.parts);
                self.tell_ends(&touched);
            }
            Err(error) if stall::is_full(&error) => {
                self.begin_stall(taken, &error);
                return Ok(());
            }
            Err(error) => return Err(error.context("the journal cannot be written")),
        }
        self.answer_some();
        let now = self.time.look().now;
        let orders = self.sessions.tick(&*self.engine, now, || self.outboxes.hosts());
        self.tell_all(orders);
        let Some(ledger) = self.engine.snapshot() else { return Ok(()) };
        self.journal.shorten(ledger).context("the snapshot cannot be written")
    }

    /// Carries out what was made durable, input by input.
    fn carry_all_out(&mut self, effects: Vec<Effect>, parts: Vec<(usize, Follow)>) {
        let mut effects = effects.into_iter();
        let mut done = 0;
        for (until, follow) in parts {
            let own: Vec<Effect> = effects.by_ref().take(until - done).collect();
            done = until;
            self.carry_out(own, follow);
        }
    }

    /// Tells who waits for elements of these jobs which of them have ended or were forgotten.
    fn tell_ends(&mut self, jobs: &BTreeSet<JobId>) {
        let awaited = self.element_waits.keys().filter(|task| jobs.contains(&task.job));
        let told = awaited.filter_map(|task| match self.engine.task_end(task) {
            Some(JobEnd { value, .. }) => Some((task, Answer::Ended { value })),
            None if self.engine.state(task).is_some() => None,
            // Its job was forgotten with its end, which the history has.
            None => Some((task, Answer::no_job(task.into()))),
        });
        for (task, answer) in told.collect::<Vec<_>>() {
            self.element_waits.tell_last(task, &answer);
        }
    }

    /// Answers some of the questions that wait, until that takes too long.
    fn answer_some(&mut self) {
        let begun = self.time.instant();
        for _ in 0..LOOKUPS_AT_ONCE {
            let Some(lookup) = self.lookups.next() else { return };
            self.answer(lookup);
            if self.time.instant().saturating_duration_since(begun) > LOOKUPS_TIME {
                return;
            }
        }
    }

    /// Carries out what one input led to.
    fn carry_out(&mut self, effects: Vec<Effect>, follow: Follow) {
        let (mut reply, follow) = match follow {
            Follow::Reply(reply) => (Some(reply), Follow::Nothing),
            follow => (None, follow),
        };
        if let Follow::Connected { host, connection, outbox, .. } = &follow {
            // What the engine tells the host that joined goes there already.
            self.outboxes.open(host, *connection, outbox.clone());
        }
        for effect in effects {
            if let Some(answer) = self.perform(effect)
                && let Some(reply) = reply.take()
            {
                // Whoever asked may be gone.
                let _ = reply.send(answer);
            }
        }
        self.follow(follow);
    }

    fn follow(&mut self, follow: Follow) {
        match follow {
            Follow::Nothing | Follow::Reply(_) => {}
            Follow::Lookup(lookup) => self.lookups.add(lookup),
            Follow::Watches(reply) => {
                // Whoever asked may be gone.
                let _ = reply.send(self.engine.watches());
            }
            Follow::Started { task, attempt, pid } => {
                self.figures.started(task, attempt, self.time.look().now);
                self.watches.started(&*self.engine, (task, attempt), pid);
                self.note_start(task, attempt);
            }
            Follow::Areas { host, report } => self.take_areas(&host, report),
            Follow::Using { host, containment, runs, missing } => {
                self.uses.take(host, containment, runs, missing);
            }
            Follow::Noted { host, ended } => self.note(&host, ended),
            Follow::Connected { host, ended, .. } => {
                self.note(&host, ended);
                // What was to be removed while nobody was there to do it.
                for (task, requeues) in self.engine.left_work() {
                    self.outboxes.tell(&host, Order::ReleaseWork { task, requeues });
                }
                self.sessions.joined(self.time.look().now);
            }
            Follow::Disconnected { host, connection } => {
                if self.outboxes.is_open(&host, connection) {
                    self.disconnect(&host);
                }
            }
        }
    }

    /// Tells a host that the ends of attempts were taken note of.
    fn note(&self, host: &HostName, ended: Vec<(TaskId, Attempt)>) {
        for (task, attempt) in ended {
            self.outboxes.tell(host, Order::Noted { task, attempt });
        }
    }

    /// Carries one effect out; the answer if it is one.
    fn perform(&mut self, effect: Effect) -> Option<Answer> {
        self.figures.note(&*self.engine, &effect, self.time.look().now);
        match effect {
            Effect::Accepted { job } => return Some(Answer::Accepted { job }),
            Effect::Obeyed { tasks } => return Some(Answer::Obeyed { tasks }),
            Effect::Rejected(refusal) => {
                return Some(Answer::Refused(refusal.into()));
            }
            Effect::Launch {
                task,
                attempt,
                requeues,
                host,
                slots,
                time_limit,
                gpus,
                wrap,
                limits,
            } => {
                let user = self.engine.owner(task.job)?.clone();
                let mut spec = self.engine.spec(task.job)?.clone();
                // Hosts need not understand it, and those of an earlier version might not.
                spec.depends = None;
                let launch = Launch {
                    task,
                    attempt,
                    requeues,
                    user,
                    numbers: None,
                    checkpoint_bounds: self.checkpoint_bounds(&spec),
                    watch: self.service_watch(task.job),
                    spec,
                    slots,
                    time_limit,
                    gpus,
                    wrap,
                    limits,
                };
                self.outboxes.tell(&host, Order::Launch(Box::new(launch)));
            }
            Effect::Kill { task, attempt, host, why } => {
                self.outboxes.tell(&host, Order::Kill { task, attempt, why });
            }
            Effect::Suspend { task, attempt, host } => {
                self.outboxes.tell(&host, Order::Suspend { task, attempt });
            }
            Effect::Resume { task, attempt, host } => {
                self.outboxes.tell(&host, Order::Resume { task, attempt });
            }
            Effect::Signal { task, attempt, host, signal } => {
                self.outboxes.tell(&host, Order::Signal { task, attempt, signal });
            }
            Effect::Warn { task, attempt, end, host } => {
                self.outboxes.tell(&host, Order::Warn { task, attempt, end });
            }
            Effect::GrantLease { host, lease } => self.outboxes.tell(&host, Order::Grant { lease }),
            Effect::ReleaseWork { task, requeues, host } => {
                // Hosts of one machine share the places of work areas, so any of them can remove one. On a node that is away it
                // is an orphan when the node is back.
                if let Some(host) = self.outboxes.this_or_first(host.as_ref()) {
                    self.outboxes.tell(host, Order::ReleaseWork { task, requeues });
                }
            }
            Effect::JobFinished { job, value, at, about } => {
                let end = JobEnd { value, at };
                self.waits.tell_last(job, &Answer::Ended { value });
                self.watches.finished(job, end);
                if let (Some(notifier), Some(about)) = (&mut self.notifier, about) {
                    notifier.finished(self.engine.settings(), (job, end), &about);
                }
            }
            Effect::Flow(effect) => return self.perform_flow(&effect),
            Effect::Refuse { host, reason } => {
                tracing::warn!(%host, "an agent is refused: {reason}");
                self.outboxes.tell(&host, Order::Refused { reason });
                // It is told nothing more, so it keeps what it has to report.
                self.outboxes.close(&host);
            }
            Effect::Disconnect { host } => self.disconnect(&host),
            // The history was committed with the records.
            Effect::Ended(record) => {
                if let Some(notifier) = &mut self.notifier {
                    notifier.attempt_ended(&*self.engine, &record);
                }
                self.watches.ended(record);
            }
            Effect::KeepWork { .. } | Effect::Forgotten { .. } => {}
        }
        None
    }

    /// Has a job notify people that it has begun, with its first start.
    fn note_start(&mut self, task: TaskId, attempt: Attempt) {
        if let Some(notifier) = self.notifier.as_mut().filter(|_| attempt.0 == 1) {
            let host = self.engine.state(task).and_then(|state| state.last_start().host);
            notifier.started(&*self.engine, task, host.map(|host| host.to_string()));
        }
    }

    /// How a job is watched on its host, if it is a service.
    fn service_watch(&self, job: JobId) -> Option<ServiceWatch> {
        let settings = self.engine.settings();
        self.engine.service(job).map(|service| ServiceWatch {
            port: service.port,
            interval: settings.service_check_interval,
            unready_max: settings.service_unready_max,
        })
    }

    /// What the settings say about the checkpoints of a job, if it has any.
    fn checkpoint_bounds(&self, spec: &JobSpec) -> Option<Bounds> {
        let settings = self.engine.settings();
        (spec.checkpoint == Checkpoint::Steps).then(|| Bounds {
            job_bytes_max: settings.checkpoint_bytes_max.0,
            user_bytes_max: settings.user_checkpoint_bytes_max.0,
            // On the nodes of a cluster new bytes lie on the node that writes them.
            elsewhere: self.leads.is_some(),
        })
    }

    /// Carries out what concerns flows; the answer if it is one.
    fn perform_flow(&mut self, effect: &FlowEffect) -> Option<Answer> {
        let answer = match effect {
            FlowEffect::Accepted { flow } => FlowAnswer::Accepted(*flow),
            FlowEffect::Scheduled { schedule } => FlowAnswer::Scheduled(*schedule),
            FlowEffect::Finished { flow, state } => {
                let answer = Answer::Flow { flow: FlowAnswer::Ended(*state) };
                self.flow_waits.tell_last(*flow, &answer);
                return None;
            }
        };
        Some(Answer::Flow { flow: answer })
    }

    /// Forgets where the orders of a host went.
    fn disconnect(&mut self, host: &HostName) {
        if self.outboxes.close(host) {
            self.keeps.left(host);
            let orders = self.sessions.left(&*self.engine, host);
            self.tell_all(orders);
        }
    }

    fn tell_all(&self, orders: Orders) {
        for (host, order) in orders {
            self.outboxes.tell(&host, order);
        }
    }

    fn take_areas(&mut self, host: &HostName, report: Report) {
        let orders = match report {
            Report::Areas { query, seen } => self.sessions.listed(&*self.engine, host, query, seen),
            Report::Reaped { query, removed, faults } => {
                self.sessions.reaped(&*self.engine, host, query, removed, faults)
            }
            Report::Load { .. }
            | Report::Using { .. }
            | Report::Started { .. }
            | Report::Exited { .. }
            | Report::Lost { .. }
            | Report::WorkReleased { .. } => Vec::new(),
            Report::CheckpointKept { query, result } => {
                self.keeps.kept(host, query, result);
                Vec::new()
            }
        };
        self.tell_all(orders);
    }
}

/// Jobs of which tasks may have ended or were forgotten.
fn touched(outcome: &Outcome) -> BTreeSet<JobId> {
    let changed = outcome.records.iter().filter_map(|record| match &record.change {
        Change::Task { task, .. } => Some(task.job),
        Change::Waiting { job, .. } | Change::Forgotten(job) => Some(*job),
        _ => None,
    });
    // An engine without records says it in its effects.
    let ended = outcome.effects.iter().filter_map(|effect| match effect {
        Effect::Ended(record) => Some(record.task.job),
        Effect::JobFinished { job, .. } | Effect::Forgotten { job } => Some(*job),
        _ => None,
    });
    changed.chain(ended).collect()
}

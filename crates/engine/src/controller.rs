//! The controller: drives the state machine, and carries out what it decides.
//!
//! Inputs are taken as they lie in the channel, up to `TOGETHER_MAX`, and their records become durable
//! in one commit. Only then are answers and orders given out, input by input in their order. Records that
//! nobody waits for, of a job that has started or a work area that is gone, wait up to `LINGER_MS` for others
//! to be committed with: lost, they would be reported again. A commit that fails ends the controller, as memory
//! is ahead of the journal then.
//!
//! Questions that only look are answered after that, up to `LOOKUPS_AT_ONCE` before the next inputs are
//! taken: an answer may show what was asked later on the same connection.
//!
//! Nothing here waits for anybody: answers and orders go into channels that others empty.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Clock;
use forebay_grid::config::Config;
use forebay_grid::event::{Joined, RunStatus};
use forebay_grid::flow::event::{FlowEffect, FlowEvent, Found};
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::task::{Post, Task};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId, UserName};
use forebay_grid::{Effect, Event, Grid, Outcome};
use forebay_store::Store;

use crate::arrival::{self, Watch};
use crate::flow::{self, FlowAnswer, FlowAsk};
use crate::journal::Journal;
use crate::listeners::Listeners;
use crate::lookups::{Lookup, Lookups, Question};
use crate::message::{Answer, Ask, Launch, Order, Report};
use crate::sessions::{Orders, Sessions};
use crate::steady::{Reading, Steady};
use crate::view;
use crate::watch::Watches;

/// The most inputs that are committed together.
const TOGETHER_MAX: usize = 1024;

/// The most questions that are answered before inputs are taken again. None takes longer than a page of a
/// list and a look at each job.
const LOOKUPS_AT_ONCE: usize = 16;

/// How long records wait that nobody waits for, in milliseconds.
const LINGER_MS: u64 = 10;

/// Something for the controller.
pub enum Input {
    /// A command.
    Ask {
        /// Number of the connection on which it came.
        connection: u64,
        /// Who asks, as the kernel says.
        user: UserName,
        /// What.
        ask: Ask,
        /// Where the answer goes.
        reply: Sender<Answer>,
    },
    /// A connection has ended on which somebody may wait for an answer.
    Closed {
        /// Its number.
        connection: u64,
        /// Who asked there.
        user: UserName,
    },
    /// An agent has connected.
    Joined {
        /// Number of the connection; later ones are greater.
        connection: u64,
        /// What it says.
        joined: Box<Joined>,
        /// Where its orders go.
        outbox: Sender<Order>,
    },
    /// An agent reports.
    Report {
        /// Which.
        host: HostName,
        /// By which connection.
        connection: u64,
        /// What.
        report: Report,
    },
    /// A connection to an agent broke.
    Left {
        /// Which.
        host: HostName,
        /// Which connection.
        connection: u64,
    },
    /// Which files do flows wait for?
    Watches {
        /// Where the answer goes.
        reply: Sender<Vec<Watch>>,
    },
    /// Somebody has looked for files.
    Looked {
        /// For which schedule.
        schedule: ScheduleId,
        /// What is there.
        files: Vec<Found>,
        /// What could not be looked at.
        trouble: Option<String>,
    },
    /// Settings were read anew.
    Configured(Box<Config>),
    /// The controller shall end.
    Stop,
}

/// What is to be done for one input once its records are durable.
enum Follow {
    Nothing,
    Reply(Sender<Answer>),
    Lookup(Lookup),
    Connected {
        host: HostName,
        connection: u64,
        outbox: Sender<Order>,
        ended: Vec<(TaskId, Attempt)>,
    },
    Started(TaskId),
    Areas {
        host: HostName,
        report: Report,
    },
    Note {
        host: HostName,
        task: TaskId,
        attempt: Attempt,
    },
    Disconnected {
        host: HostName,
        connection: u64,
    },
    Watches(Sender<Vec<Watch>>),
}

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
    grid: Grid,
    journal: Journal<S>,
    time: Steady,
    /// The latest connection of each host, and where its orders go.
    outboxes: HashMap<HostName, (u64, Sender<Order>)>,
    /// The latest connection of each host, counting those that are not carried out yet.
    connections: HashMap<HostName, u64>,
    waits: Listeners<JobId>,
    flow_waits: Listeners<FlowId>,
    watches: Watches,
    sessions: Sessions,
    lookups: Lookups,
    taken: Taken,
}

impl<S: Store> Controller<S> {
    /// A controller with what its store holds, and these settings.
    ///
    /// # Errors
    /// If the journal cannot be read or written.
    pub fn open(store: S, config: Config, clock: Arc<dyn Clock>) -> Result<Controller<S>> {
        let mut time = Steady::new(clock);
        let (journal, grid) = Journal::open(store, time.look().now)?;
        // The clock may have been set back since the last record was written.
        time.not_before(grid.now());
        let mut controller = Controller {
            grid,
            journal,
            time,
            outboxes: HashMap::new(),
            connections: HashMap::new(),
            waits: Listeners::default(),
            flow_waits: Listeners::default(),
            watches: Watches::default(),
            sessions: Sessions::new(),
            lookups: Lookups::default(),
            taken: Taken::default(),
        };
        controller.take(vec![Input::Configured(Box::new(config))])?;
        Ok(controller)
    }

    /// Works until [`Input::Stop`] or until nobody can send any more, then writes a snapshot.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn run(mut self, inputs: &Receiver<Input>) -> Result<()> {
        let mut listened = self.time.instant();
        loop {
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
            self.apply(batch);
            if !self.may_linger() {
                self.settle()?;
            }
            if stop.is_some() {
                break;
            }
        }
        self.settle()?;
        self.journal.snapshot(self.grid.ledger())
    }

    /// If the controller has listened much later than it wanted to, it was stopped, or busy. What hosts said since
    /// it listened before is still on its way, so they are not taken for silent.
    fn excuse(&mut self, passed: Duration, wanted: Duration) {
        const LATE: Duration = Duration::from_secs(1);
        if passed >= wanted + LATE {
            tracing::warn!(?passed, "the controller could not listen; no host is given up for it");
            self.grid.excuse_silence(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// How long to wait for an input before time itself is one.
    fn patience(&self) -> Duration {
        const LONGEST_MS: u64 = 60_000;
        if !self.lookups.is_empty() {
            return Duration::ZERO;
        }
        // Clocks have steps: a little later is better than a little too early, many times.
        let mut wake = self.grid.next_wake().min(self.sessions.next_wake());
        if let Some(since) = self.taken.since {
            wake = wake.min(since.after(LINGER_MS));
        }
        Duration::from_millis(wake.since(self.time.look().now).min(LONGEST_MS) + 1)
    }

    /// Takes inputs, makes what they led to durable, and carries it out.
    ///
    /// # Errors
    /// If the journal cannot be written: nothing was carried out then.
    pub fn take(&mut self, inputs: Vec<Input>) -> Result<()> {
        self.apply(inputs);
        self.settle()
    }

    /// Has the grid decide; nobody learns of it yet.
    fn apply(&mut self, inputs: Vec<Input>) {
        let Reading { now, set_forward_ms } = self.time.read();
        let mut taken = std::mem::take(&mut self.taken);
        if set_forward_ms > 0 {
            tracing::warn!(
                set_forward_ms,
                "the clock was set; no lease or time limit ends sooner for it"
            );
            self.grid.skip_time(set_forward_ms, &mut taken.outcome);
        }
        self.grid.apply(now, Event::Tick, &mut taken.outcome);
        taken.parts.push((taken.outcome.effects.len(), Follow::Nothing));
        for input in inputs {
            let (event, follow) = self.event_of(input);
            if let Some(event) = event {
                self.grid.apply(now, event, &mut taken.outcome);
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
            Follow::Nothing => true,
            Follow::Started(task) => !self.watches.has(task.job),
            Follow::Reply(_)
            | Follow::Lookup(_)
            | Follow::Connected { .. }
            | Follow::Areas { .. }
            | Follow::Note { .. }
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
        let Taken { outcome, parts, .. } = std::mem::take(&mut self.taken);
        self.journal
            .append(&outcome.records, &outcome.effects, &self.grid.ledger().config().general)
            .context("the journal cannot be written")?;
        let mut effects = outcome.effects.into_iter();
        let mut done = 0;
        for (until, follow) in parts {
            let own: Vec<Effect> = effects.by_ref().take(until - done).collect();
            done = until;
            self.carry_out(own, follow);
        }
        for lookup in
            std::iter::from_fn(|| self.lookups.next()).take(LOOKUPS_AT_ONCE).collect::<Vec<_>>()
        {
            self.answer(lookup);
        }
        let now = self.time.look().now;
        let outboxes = &self.outboxes;
        let orders = self.sessions.tick(&self.grid, now, || outboxes.keys().cloned().collect());
        self.tell_all(orders);
        self.journal.shorten(self.grid.ledger()).context("the snapshot cannot be written")
    }

    /// What an input means to the grid, and what comes after.
    fn event_of(&mut self, input: Input) -> (Option<Event>, Follow) {
        match input {
            Input::Stop => (None, Follow::Nothing),
            Input::Configured(config) => (Some(Event::Configured(config)), Follow::Nothing),
            Input::Ask { connection, user, ask, reply } => match ask {
                Ask::Submit { spec } => (Some(Event::Submit { user, spec }), Follow::Reply(reply)),
                Ask::Command { target, verb } => {
                    (Some(Event::Command { by: user, target, verb }), Follow::Reply(reply))
                }
                Ask::Queue { queue, verb } => {
                    (Some(Event::Queue { by: user, queue, verb }), Follow::Reply(reply))
                }
                Ask::Host { host, state } => {
                    (Some(Event::Host { by: user, host, state }), Follow::Reply(reply))
                }
                Ask::Flow { flow } => match flow::event_of(&user, &flow) {
                    Some(event) => (Some(event), Follow::Reply(reply)),
                    None => {
                        let question = Question::Ask { ask: Ask::Flow { flow }, reply };
                        (None, Follow::Lookup(Lookup { user, connection, question }))
                    }
                },
                ask => {
                    let question = Question::Ask { ask, reply };
                    (None, Follow::Lookup(Lookup { user, connection, question }))
                }
            },
            Input::Closed { connection, user } => {
                let question = Question::Closed;
                (None, Follow::Lookup(Lookup { user, connection, question }))
            }
            Input::Watches { reply } => (None, Follow::Watches(reply)),
            Input::Looked { schedule, files, trouble } => {
                let event = FlowEvent::Looked { schedule, files, trouble };
                (Some(Event::Flow(event)), Follow::Nothing)
            }
            Input::Joined { connection, joined, outbox } => {
                let host = joined.host.clone();
                let ended = joined.runs.iter().filter_map(|run| match run.status {
                    RunStatus::Exited(..) | RunStatus::Lost(_) => Some((run.task, run.attempt)),
                    RunStatus::Running | RunStatus::Stopped => None,
                });
                let ended = ended.collect();
                self.connections.insert(host.clone(), connection);
                let follow = Follow::Connected { host, connection, outbox, ended };
                (Some(Event::HostJoined(joined)), follow)
            }
            Input::Left { host, connection } => {
                let latest = self.connections.get(&host) == Some(&connection);
                let event = latest.then(|| Event::HostLost { host: host.clone() });
                (event, Follow::Disconnected { host, connection })
            }
            Input::Report { host, connection, report } => {
                if self.connections.get(&host) != Some(&connection) {
                    return (None, Follow::Nothing);
                }
                if let Report::Started { task, attempt, pid } = &report {
                    self.watches.learn(*task, *attempt, *pid);
                }
                report_event(host, report)
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>, follow: Follow) {
        let mut reply = None;
        let mut after = Follow::Nothing;
        match follow {
            Follow::Reply(sender) => reply = Some(sender),
            Follow::Connected { host, connection, outbox, ended } => {
                self.outboxes.insert(host.clone(), (connection, outbox.clone()));
                after = Follow::Connected { host, connection, outbox, ended };
            }
            follow => after = follow,
        }
        for effect in effects {
            if let Some(answer) = self.perform(effect)
                && let Some(reply) = reply.take()
            {
                // Whoever asked may be gone.
                let _ = reply.send(answer);
            }
        }
        match after {
            Follow::Nothing | Follow::Reply(_) => {}
            Follow::Lookup(lookup) => self.lookups.add(lookup),
            Follow::Watches(reply) => {
                // Whoever asked may be gone.
                let _ = reply.send(arrival::watches(&self.grid));
            }
            Follow::Started(task) => self.watches.started(&self.grid, task),
            Follow::Areas { host, report } => self.take_areas(&host, report),
            Follow::Note { host, task, attempt } => {
                self.tell(&host, Order::Noted { task, attempt });
            }
            Follow::Connected { host, ended, .. } => {
                for (task, attempt) in ended {
                    self.tell(&host, Order::Noted { task, attempt });
                }
                self.release_left_work(&host);
                self.sessions.joined(self.time.look().now);
            }
            Follow::Disconnected { host, connection } => {
                if self.outboxes.get(&host).is_some_and(|(latest, _)| *latest == connection) {
                    self.disconnect(&host);
                }
            }
        }
    }

    /// Carries one effect out; the answer if it is one.
    fn perform(&mut self, effect: Effect) -> Option<Answer> {
        match effect {
            Effect::Accepted { job } => return Some(Answer::Accepted { job }),
            Effect::Obeyed { tasks } => return Some(Answer::Obeyed { tasks }),
            Effect::Rejected(refusal) => {
                return Some(Answer::Refused { reason: refusal.to_string() });
            }
            Effect::Launch { task, attempt, requeues, host, slots, time_limit } => {
                let ledger = self.grid.ledger();
                let job = ledger.job(task.job)?;
                let (user, spec) = (ledger.user_of(job).clone(), job.spec().clone());
                let launch = Launch { task, attempt, requeues, user, spec, slots, time_limit };
                self.tell(&host, Order::Launch(Box::new(launch)));
            }
            Effect::Kill { task, attempt, host, why } => {
                self.tell(&host, Order::Kill { task, attempt, why });
            }
            Effect::Suspend { task, attempt, host } => {
                self.tell(&host, Order::Suspend { task, attempt });
            }
            Effect::Resume { task, attempt, host } => {
                self.tell(&host, Order::Resume { task, attempt });
            }
            Effect::GrantLease { host, lease } => self.tell(&host, Order::Grant { lease }),
            Effect::ReleaseWork { task, requeues, host } => {
                self.release_work(task, requeues, host.as_ref());
            }
            Effect::JobFinished { job } => {
                let value = view::exit_value(&self.grid, job).unwrap_or(0);
                self.waits.tell_last(job, &Answer::Ended { value });
                self.watches.finished(&self.grid, job);
            }
            Effect::Flow(effect) => return self.perform_flow(&effect),
            Effect::Disconnect { host } => self.disconnect(&host),
            // The history was committed with the records.
            Effect::Ended(record) => self.watches.ended(record),
            Effect::KeepWork { .. } | Effect::Forgotten { .. } => {}
        }
        None
    }

    /// Carries out what concerns flows; the answer if it is one.
    fn perform_flow(&mut self, effect: &FlowEffect) -> Option<Answer> {
        let answer = match effect {
            FlowEffect::Accepted { flow } => FlowAnswer::Accepted(*flow),
            FlowEffect::Scheduled { schedule } => FlowAnswer::Scheduled(*schedule),
            FlowEffect::Finished { flow } => {
                let state = self.grid.ledger().flow(*flow)?.state();
                let answer = Answer::Flow { flow: FlowAnswer::Ended(state) };
                self.flow_waits.tell_last(*flow, &answer);
                return None;
            }
        };
        Some(Answer::Flow { flow: answer })
    }

    /// An order that finds nobody is lost: the agent is told again when it joins.
    fn tell(&self, host: &HostName, order: Order) {
        if let Some((_, outbox)) = self.outboxes.get(host) {
            let _ = outbox.send(order);
        }
    }

    /// Forgets where the orders of a host went. Whoever passes them on ends the connection then.
    fn disconnect(&mut self, host: &HostName) {
        if self.outboxes.remove(host).is_some() {
            let orders = self.sessions.left(&self.grid, host);
            self.tell_all(orders);
        }
    }

    fn tell_all(&self, orders: Orders) {
        for (host, order) in orders {
            self.tell(&host, order);
        }
    }

    fn take_areas(&mut self, host: &HostName, report: Report) {
        let orders = match report {
            Report::Areas { query, areas, faults } => {
                self.sessions.listed(&self.grid, host, query, areas, faults)
            }
            Report::Reaped { query, removed, faults } => {
                self.sessions.reaped(&self.grid, host, query, removed, faults)
            }
            Report::Load { .. }
            | Report::Started { .. }
            | Report::Exited { .. }
            | Report::Lost { .. }
            | Report::WorkReleased { .. } => Vec::new(),
        };
        self.tell_all(orders);
    }

    /// Hosts of one machine share the places of work areas, so any of them can remove one.
    fn release_work(&self, task: TaskId, requeues: u32, host: Option<&HostName>) {
        let own = host.filter(|host| self.outboxes.contains_key(*host));
        if let Some(host) = own.or_else(|| self.outboxes.keys().min()) {
            self.tell(host, Order::ReleaseWork { task, requeues });
        }
    }

    /// What was to be removed while nobody was there to do it.
    fn release_left_work(&self, host: &HostName) {
        for (id, job) in self.grid.ledger().jobs() {
            for (index, task) in job.tasks() {
                if let Task::Finished(finish) = task
                    && finish.post == Post::Awaited
                {
                    let (task, requeues) = (TaskId { job: id, index }, finish.requeues);
                    self.tell(host, Order::ReleaseWork { task, requeues });
                }
            }
        }
    }

    fn answer(&mut self, lookup: Lookup) {
        let Lookup { user, connection, question } = lookup;
        match question {
            Question::Ask { ask, reply } => self.answer_one((&user, connection), &ask, reply),
            Question::Closed => {
                self.waits.forget(connection);
                self.flow_waits.forget(connection);
                self.watches.forget(connection);
            }
        }
    }

    fn answer_one(
        &mut self,
        (user, connection): (&UserName, u64),
        ask: &Ask,
        reply: Sender<Answer>,
    ) {
        let answer = match ask {
            &Ask::Wait { job } => match self.wait(user, job) {
                Ok(Some(value)) => Answer::Ended { value },
                Ok(None) => {
                    self.waits.add(job, connection, reply);
                    return;
                }
                Err(reason) => Answer::Refused { reason },
            },
            &Ask::History { target, from } => match self.journal.history(target, from) {
                Ok((attempts, next)) => view::history(&self.grid, user, target, attempts, next),
                Err(error) => Answer::Refused { reason: format!("{error:#}") },
            },
            Ask::Flow { flow } => match (flow::answer(&self.grid, user, flow), flow) {
                (Some(answer), _) => answer,
                (None, FlowAsk::Wait(flow)) => {
                    self.flow_waits.add(*flow, connection, reply);
                    return;
                }
                (None, _) => return,
            },
            &Ask::Watch { job } => match self.watch((user, connection), job, &reply) {
                Ok(()) => return,
                Err(reason) => Answer::Refused { reason },
            },
            &Ask::Sessions { orphans } => {
                let hosts: BTreeSet<HostName> = self.outboxes.keys().cloned().collect();
                let (now, asked) = (self.time.look().now, (user.clone(), orphans, reply));
                let orders = self.sessions.ask(&self.grid, now, hosts, asked);
                self.tell_all(orders);
                return;
            }
            Ask::Usage { query } => {
                let visible = |owner: &UserName| view::may_see(&self.grid, user, owner);
                match self.journal.accounts().answer(query, visible) {
                    Ok(rows) => Answer::Usage { rows },
                    Err(reason) => Answer::Refused { reason },
                }
            }
            Ask::Jobs { target: Some(target), .. } | Ask::Explain { target } => {
                let answer = view::answer(&self.grid, user, ask);
                let used = |task, attempt| {
                    Ok(self.journal.attempt(task, attempt)?.and_then(|record| record.usage))
                };
                view::with_usage(&self.grid, *target, answer, used)
                    .unwrap_or_else(|error| Answer::Refused { reason: format!("{error:#}") })
            }
            ask => view::answer(&self.grid, user, ask),
        };
        let _ = reply.send(answer);
    }

    fn watch(
        &mut self,
        (user, connection): (&UserName, u64),
        job: JobId,
        reply: &Sender<Answer>,
    ) -> Result<(), String> {
        self.wait(user, job)?;
        let tasks = self.grid.ledger().job(job).map_or(0, |known| known.tally().all());
        let ended = self.journal.history(job.into(), None).map_err(|error| format!("{error:#}"))?;
        let (ended, None) = ended else { return Err(Watches::too_many(job)) };
        if tasks > Watches::TASKS_MAX {
            return Err(Watches::too_many(job));
        }
        self.watches.add(&self.grid, (job, connection), ended, reply.clone());
        Ok(())
    }

    fn wait(&self, user: &UserName, job: JobId) -> Result<Option<u8>, String> {
        let ledger = self.grid.ledger();
        let known =
            ledger.job(job).filter(|known| view::may_see(&self.grid, user, ledger.user_of(known)));
        match known {
            None => Err(format!("there is no job {job}")),
            Some(known) if known.tally().is_finished() => Ok(view::exit_value(&self.grid, job)),
            Some(_) => Ok(None),
        }
    }
}

fn report_event(host: HostName, report: Report) -> (Option<Event>, Follow) {
    let event = match report {
        Report::Load { load } => Event::HostLoad { host, load },
        Report::Started { task, attempt, .. } => {
            return (Some(Event::Started { host, task, attempt }), Follow::Started(task));
        }
        Report::Areas { .. } | Report::Reaped { .. } => {
            return (None, Follow::Areas { host, report });
        }
        Report::Exited { task, attempt, exit, usage } => {
            let follow = Follow::Note { host: host.clone(), task, attempt };
            return (Some(Event::Exited { host, task, attempt, exit, usage }), follow);
        }
        Report::Lost { task, attempt, loss } => {
            tracing::warn!(%host, %task, %attempt, ?loss, "a host lost a job or could not start it");
            let follow = Follow::Note { host: host.clone(), task, attempt };
            return (Some(Event::Lost { host, task, attempt, loss }), follow);
        }
        Report::WorkReleased { task, requeues, result } => {
            Event::WorkReleased { task, requeues, result }
        }
    };
    (Some(event), Follow::Nothing)
}

//! The states of a task and every change between them.
//!
//! ```text
//! Pending <-> Held                        hold, release
//! Pending  -> Active                      dispatched
//! Active: Starting -> Running <-> Suspended
//! Active   -> Pending                     started again: host lost, requeue
//! Starting -> Held                        held, and could not be started
//! Active   -> Finished                    ended, for whatever cause
//! Pending, Held -> Finished               cancelled, or its dependency can no longer be met
//! Finished -> Pending                     requeued by its user
//! ```
//! A change that does not fit the state is refused and changes nothing.

use serde::{Deserialize, Serialize};

use crate::parse::resources::Resources;
use crate::spec::{Exit, JobSpec, Usage};
use crate::state::JobState;
use crate::vocabulary::{Attempt, HostId, JobId, Moment};

/// What becomes of one task. 24 bytes while it waits for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// It waits for its turn.
    Pending(Waiting),
    /// It waits to be released.
    Held(Waiting),
    /// It was given to a host.
    Active(Box<Run>),
    /// It has ended.
    Finished(Box<Finish>),
}

/// A task that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// How often it was started before.
    pub attempts: u32,
    /// How often it was requeued after it had ended.
    pub requeues: u32,
    /// Hosts on which it may not run again.
    pub excluded: Option<Box<Excluded>>,
}

/// Hosts on which a task may not run again, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded(pub Vec<HostId>);

/// A task on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Which start this is.
    pub attempt: Attempt,
    /// How often it was requeued after it had ended.
    pub requeues: u32,
    /// Where.
    pub host: HostId,
    /// Slots that it holds.
    pub slots: u32,
    /// Memory that it holds.
    pub memory_bytes: u64,
    /// What else it holds, if anything.
    pub held: Option<Box<Held>>,
    /// How long it may run.
    pub limit_ms: Option<u64>,
    /// When it was given to the host.
    pub launched: Moment,
    /// How far it is.
    pub phase: Phase,
    /// Why it is to be suspended as soon as it has started.
    pub stops: Stops,
    /// The job that has its slots while it is suspended for it.
    pub preempted_by: Option<JobId>,
    /// What will become of it once it has ended, if that is known before.
    pub ending: Option<Ending>,
    /// Why there.
    pub why: Why,
    /// Hosts on which it may not run again.
    pub excluded: Option<Box<Excluded>>,
    /// Whether it was warned that its end is near.
    pub warned: bool,
}

/// What a task on a host holds besides slots and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Counted resources.
    pub resources: Resources,
    /// Numbers of devices of the host.
    pub gpus: Vec<u32>,
    /// Whether no other job may run beside it.
    pub exclusive: bool,
}

/// How far a task on a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The host was told to start it.
    Starting,
    /// The host has started it.
    Running {
        /// When.
        started: Moment,
        /// How long it was suspended since, and how much of the time since did not pass.
        suspended_ms: u64,
    },
    /// It was told to stop for a while.
    Suspended {
        /// When it was started.
        started: Moment,
        /// How long it was suspended before.
        suspended_ms: u64,
        /// When it was suspended.
        since: Moment,
        /// Why.
        stops: Stops,
    },
}

/// Why a task is suspended: one reason or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stops(u8);

impl Stops {
    /// Its user or an admin wants it.
    pub const ASKED: Stops = Stops(1);
    /// The run window of its queue is closed.
    pub const WINDOW: Stops = Stops(2);
    /// Its host is loaded beyond a stop value.
    pub const LOAD: Stops = Stops(4);
    /// Its work areas hold more than its queue allows.
    pub const AREA: Stops = Stops(8);
    /// A job of a queue that preempts its own has its slots.
    pub const PREEMPTED: Stops = Stops(16);

    /// Whether `other` is among them.
    #[must_use]
    pub fn has(self, other: Stops) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Stops) -> Stops {
        Stops(self.0 | other.0)
    }

    /// These without `other`.
    #[must_use]
    pub fn without(self, other: Stops) -> Stops {
        Stops(self.0 & !other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What will become of a task once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It was killed.
    Killed,
    /// It ran for longer than it may.
    TimeLimit,
    /// It starts again.
    Requeued,
    /// Its work areas held more than its queue allows.
    AreaLimit,
    /// The time by which it had to have ended has come.
    Deadline,
    /// It starts again later: it makes room for a job of a queue that preempts its own.
    Preempted {
        /// That job.
        by: JobId,
    },
}

/// Why a task was given to its host, recorded when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// Hosts that its queue and its own list allow.
    pub allowed: u32,
    /// Those of them that could take it then.
    pub fitting: u32,
    /// How much the host was wanted.
    pub preference: u32,
    /// Load of the host per slot, in thousandths.
    pub load_milli: u32,
    /// How many of its inputs lie on the host.
    #[serde(default)]
    pub near: u32,
    /// The next best host, if there was another.
    pub second: Option<Second>,
}

/// The next best host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Second {
    /// Which.
    pub host: HostId,
    /// How much it was wanted.
    pub preference: u32,
    /// Its load per slot, in thousandths.
    pub load_milli: u32,
}

/// A task that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// How its last attempt ended; none if it was lost or never ran.
    pub exit: Option<Exit>,
    /// What ended it.
    pub cause: Cause,
    /// How often it was started.
    pub attempts: u32,
    /// How often it was requeued after it had ended, before this end.
    pub requeues: u32,
    /// When.
    pub ended: Moment,
    /// Its last attempt.
    pub last: Option<LastRun>,
    /// Whether its work area is gone.
    pub post: Post,
}

/// Where and since when the last attempt ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// Where.
    pub host: HostId,
    /// Since when; none if the host never said so.
    pub started: Option<Moment>,
    /// Why there.
    pub why: Why,
}

/// What ended a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It ended by itself.
    Exited,
    /// It was killed or cancelled.
    Killed,
    /// It ran for longer than it may.
    TimeLimit,
    /// Its host was lost or has lost it, and it may not be started again.
    HostLost,
    /// It would start again, but was started too often already.
    AttemptsMax,
    /// It was not started, as its dependency could no longer be met.
    DependencyNever,
    /// Its work areas held more than its queue allows.
    AreaLimit,
    /// The time by which it had to have ended came.
    Deadline,
}

impl Cause {
    /// The state of a task that ended so. `exit` is how its last attempt ended.
    #[must_use]
    pub fn state(self, exit: Option<&Exit>) -> JobState {
        match self {
            Cause::Exited if exit.is_some_and(|exit| exit.value() == 0) => JobState::Done,
            Cause::Exited => JobState::Exited,
            Cause::Killed => JobState::Killed,
            Cause::TimeLimit => JobState::TimeLimit,
            Cause::AreaLimit => JobState::AreaLimit,
            Cause::Deadline => JobState::Deadline,
            Cause::HostLost => JobState::HostLost,
            Cause::AttemptsMax => JobState::AttemptsMax,
            Cause::DependencyNever => JobState::DependencyNever,
        }
    }

    /// The exit value of a task that ended so. `exit` is how its last attempt ended. One that ended by itself has its own; one that was not
    /// started as its dependency could not be met has 127; any other counts as killed by force if it has none, or 0.
    #[must_use]
    pub fn exit_value(self, exit: Option<&Exit>) -> u8 {
        const NOT_STARTED: u8 = 127;
        match (exit.map(Exit::value), self) {
            (Some(value), Cause::Exited | Cause::AttemptsMax) => value,
            (None, Cause::DependencyNever) => NOT_STARTED,
            (value, _) => value.filter(|value| *value != 0).unwrap_or(KILLED),
        }
    }
}

/// The exit value of what was killed by force.
pub(crate) const KILLED: u8 = 137;

/// Whether the work area of a finished task is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Post {
    /// There is none.
    Nothing,
    /// Not yet known.
    Awaited,
    /// It is.
    Done,
    /// It could not be removed.
    Failed,
}

impl Finish {
    /// Whether it ended by itself with exit value 0.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.cause == Cause::Exited && self.exit == Some(Exit::Code(0))
    }
}

/// A change of one task, as the journal holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// It waits to be released.
    Held,
    /// It was released.
    Released,
    /// It ended without having been started again.
    Cancelled,
    /// It was given to a host.
    Dispatched {
        /// Where.
        host: HostId,
        /// How long it may run.
        limit_ms: Option<u64>,
        /// Why there.
        why: Why,
        /// What it holds besides slots and memory, if anything.
        held: Option<Box<Held>>,
    },
    /// The host has started it.
    Started,
    /// It was told to stop for a while, for one more reason.
    Stopped(Stops),
    /// A reason to be suspended is gone; it goes on if it was the last one.
    Continued(Stops),
    /// What will become of it is known.
    Ending(Ending),
    /// Its attempt ended.
    Ended {
        /// How; none if the host was lost.
        exit: Option<Exit>,
        /// What it used, as far as the agent said.
        usage: Option<Box<Usage>>,
        /// What becomes of it.
        fate: Fate,
    },
    /// It had ended and starts again.
    Requeued,
    /// Its work area was removed, or could not be.
    Post(Post),
    /// The clock was set forward while it ran: so much time did not pass.
    Skipped {
        /// How much.
        milliseconds: u64,
    },
    /// It ended without having been started again, as its dependency can no longer be met.
    NeverMet,
    /// It ended without having been started again, as the time by which it had to have ended came.
    Expired,
    /// It was told to stop for a while, as a job has its slots.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// It was warned that its end is near.
    Warned,
}

/// What becomes of a task whose attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It has ended.
    Finished(Cause),
    /// It starts again, anywhere.
    Again,
    /// It starts again, on another host.
    AgainElsewhere,
}

impl Task {
    /// The host part, if it was given to a host.
    #[must_use]
    pub fn run(&self) -> Option<&Run> {
        match self {
            Task::Active(run) => Some(run),
            Task::Pending(_) | Task::Held(_) | Task::Finished(_) => None,
        }
    }

    /// When its last start was, or it ended without one.
    pub(crate) fn begun(&self) -> Option<Moment> {
        match self {
            Task::Active(run) => run.phase.started(),
            Task::Finished(finish) => {
                Some(finish.last.and_then(|last| last.started).unwrap_or(finish.ended))
            }
            Task::Pending(_) | Task::Held(_) => None,
        }
    }

    /// Whether the change fits the state.
    fn takes(&self, step: &Step) -> bool {
        match (self, step) {
            (
                Task::Pending(_),
                Step::Held
                | Step::Cancelled
                | Step::NeverMet
                | Step::Expired
                | Step::Dispatched { .. },
            )
            | (Task::Held(_), Step::Released | Step::Cancelled | Step::NeverMet | Step::Expired)
            | (Task::Active(_), Step::Stopped(_) | Step::Ending(_) | Step::Ended { .. })
            | (Task::Finished(_), Step::Requeued) => true,
            (Task::Active(run), Step::Warned) => !run.warned,
            (Task::Active(run), Step::Started) => run.phase == Phase::Starting,
            (Task::Active(run), Step::Continued(stops)) => run.stops().has(*stops),
            (Task::Active(run), Step::Skipped { .. } | Step::Preempted { .. }) => {
                matches!(run.phase, Phase::Running { .. })
            }
            (Task::Finished(finish), Step::Post(post)) => {
                finish.post == Post::Awaited && matches!(post, Post::Done | Post::Failed)
            }
            (Task::Pending(_) | Task::Held(_) | Task::Active(_) | Task::Finished(_), _) => false,
        }
    }

    /// Changes the state; whether the change fitted. `slots` and `memory_bytes` are those of the job.
    pub(crate) fn step(&mut self, at: Moment, step: &Step, slots: u32, memory_bytes: u64) -> bool {
        if !self.takes(step) {
            return false;
        }
        let waits = Waiting::default();
        *self = match (std::mem::replace(self, Task::Pending(waits)), step) {
            (Task::Pending(waiting), Step::Held) => Task::Held(waiting),
            (Task::Held(waiting), Step::Released) => Task::Pending(waiting),
            (
                Task::Pending(waiting) | Task::Held(waiting),
                step @ (Step::Cancelled | Step::NeverMet | Step::Expired),
            ) => {
                let cause = match step {
                    Step::NeverMet => Cause::DependencyNever,
                    Step::Expired => Cause::Deadline,
                    _ => Cause::Killed,
                };
                Task::Finished(Box::new(Finish {
                    exit: None,
                    cause,
                    attempts: waiting.attempts,
                    requeues: waiting.requeues,
                    ended: at,
                    last: None,
                    post: if waiting.attempts == 0 { Post::Nothing } else { Post::Awaited },
                }))
            }
            (Task::Pending(waiting), Step::Dispatched { host, limit_ms, why, held }) => {
                Task::Active(Box::new(Run {
                    attempt: Attempt(waiting.attempts + 1),
                    requeues: waiting.requeues,
                    host: *host,
                    slots,
                    memory_bytes,
                    held: held.clone(),
                    limit_ms: *limit_ms,
                    launched: at,
                    phase: Phase::Starting,
                    stops: Stops::default(),
                    preempted_by: None,
                    ending: None,
                    why: *why,
                    excluded: waiting.excluded,
                    warned: false,
                }))
            }
            (Task::Active(mut run), Step::Warned) => {
                run.warned = true;
                Task::Active(run)
            }
            (Task::Active(mut run), Step::Ending(ending)) => {
                run.ending = Some(*ending);
                Task::Active(run)
            }
            (
                Task::Active(mut run),
                Step::Started
                | Step::Stopped(_)
                | Step::Continued(_)
                | Step::Preempted { .. }
                | Step::Skipped { .. },
            ) => {
                run.follow(at, step);
                Task::Active(run)
            }
            (Task::Active(run), Step::Ended { exit, fate, .. }) => run.end(at, exit.clone(), *fate),
            (Task::Finished(finish), Step::Requeued) => {
                let requeues = finish.requeues + 1;
                Task::Pending(Waiting { attempts: finish.attempts, requeues, excluded: None })
            }
            (Task::Finished(mut finish), Step::Post(post)) => {
                finish.post = *post;
                Task::Finished(finish)
            }
            (state, _) => state,
        };
        true
    }
}

impl Phase {
    fn next(self, at: Moment, step: &Step) -> Phase {
        match (self, step) {
            // As if it had been suspended, which its limit does not count either.
            (Phase::Running { started, suspended_ms }, Step::Skipped { milliseconds }) => {
                Phase::Running { started, suspended_ms: suspended_ms.saturating_add(*milliseconds) }
            }
            (Phase::Starting, Step::Started) => Phase::Running { started: at, suspended_ms: 0 },
            (Phase::Running { started, suspended_ms }, Step::Stopped(stops)) => {
                Phase::Suspended { started, suspended_ms, since: at, stops: *stops }
            }
            (Phase::Suspended { started, suspended_ms, since, stops }, Step::Stopped(more)) => {
                Phase::Suspended { started, suspended_ms, since, stops: stops.with(*more) }
            }
            (Phase::Suspended { started, suspended_ms, since, stops }, Step::Continued(gone)) => {
                let stops = stops.without(*gone);
                if stops.is_empty() {
                    let suspended_ms = suspended_ms + at.since(since);
                    Phase::Running { started, suspended_ms }
                } else {
                    Phase::Suspended { started, suspended_ms, since, stops }
                }
            }
            (phase, _) => phase,
        }
    }

    /// When it was started.
    #[must_use]
    pub fn started(self) -> Option<Moment> {
        match self {
            Phase::Starting => None,
            Phase::Running { started, .. } | Phase::Suspended { started, .. } => Some(started),
        }
    }

    /// Why it is suspended; nothing if it is not.
    #[must_use]
    pub fn stops(self) -> Stops {
        match self {
            Phase::Suspended { stops, .. } => stops,
            Phase::Starting | Phase::Running { .. } => Stops::default(),
        }
    }
}

impl Run {
    /// Why it is suspended, or will be once it has started; nothing if it is not.
    #[must_use]
    pub fn stops(&self) -> Stops {
        self.stops.with(self.phase.stops())
    }

    fn follow(&mut self, at: Moment, step: &Step) {
        match (self.phase, step) {
            (Phase::Starting, Step::Stopped(stops)) => self.stops = self.stops.with(*stops),
            (Phase::Starting, Step::Continued(stops)) => self.stops = self.stops.without(*stops),
            (Phase::Starting, Step::Started) if !self.stops.is_empty() => {
                let stops = std::mem::take(&mut self.stops);
                self.phase = self.phase.next(at, step).next(at, &Step::Stopped(stops));
            }
            (phase, Step::Preempted { by }) => {
                self.preempted_by = Some(*by);
                self.phase = phase.next(at, &Step::Stopped(Stops::PREEMPTED));
            }
            (phase, step) => self.phase = phase.next(at, step),
        }
        if !self.stops().has(Stops::PREEMPTED) {
            self.preempted_by = None;
        }
    }

    /// Slots that no other job can have: none while it is suspended for one that has them.
    #[must_use]
    pub fn busy_slots(&self) -> u32 {
        if self.stops().has(Stops::PREEMPTED) { 0 } else { self.slots }
    }

    /// When it will have run for as long as it may. The time in which it is suspended does not count.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        match (self.phase, self.ending) {
            (Phase::Running { started, suspended_ms }, None) => {
                Some(started.after(self.limit_ms?).after(suspended_ms))
            }
            (Phase::Starting | Phase::Running { .. } | Phase::Suspended { .. }, _) => None,
        }
    }

    /// When it is ended, for its time limit or for its deadline, whichever is earlier.
    #[must_use]
    pub fn end_by(&self, spec: &JobSpec) -> Option<Moment> {
        [self.deadline(), spec.deadline].into_iter().flatten().min()
    }

    /// What tells one end, of which it is warned once, from another: when it would end if it was never suspended.
    pub(crate) fn warned_end(&self, spec: &JobSpec) -> Option<Moment> {
        let limit =
            self.limit_ms.zip(self.phase.started()).map(|(limit, started)| started.after(limit));
        [limit, spec.deadline].into_iter().flatten().min()
    }

    /// When it is warned that its end is near, as its job wants it, if it was not.
    #[must_use]
    pub fn warning(&self, spec: &JobSpec) -> Option<Moment> {
        let warning = spec.warning.as_ref().filter(|_| !self.warned && self.ending.is_none())?;
        let Phase::Running { started, .. } = self.phase else { return None };
        let end = self.end_by(spec)?;
        Some(Moment(end.0.saturating_sub(warning.before.as_ms())).max(started))
    }

    fn end(self, at: Moment, exit: Option<Exit>, fate: Fate) -> Task {
        let mut excluded = self.excluded;
        let (attempts, requeues) = (self.attempt.0, self.requeues);
        match fate {
            Fate::Finished(cause) => Task::Finished(Box::new(Finish {
                exit,
                cause,
                attempts,
                requeues,
                ended: at,
                last: Some(LastRun {
                    host: self.host,
                    started: self.phase.started(),
                    why: self.why,
                }),
                post: Post::Awaited,
            })),
            // It was held before it could start, and has not.
            Fate::Again if self.stops.has(Stops::ASKED) => {
                Task::Held(Waiting { attempts, requeues, excluded })
            }
            Fate::Again => Task::Pending(Waiting { attempts, requeues, excluded }),
            Fate::AgainElsewhere => {
                let hosts = &mut excluded.get_or_insert_default().0;
                if let Err(place) = hosts.binary_search(&self.host) {
                    hosts.insert(place, self.host);
                }
                Task::Pending(Waiting { attempts, requeues, excluded })
            }
        }
    }
}

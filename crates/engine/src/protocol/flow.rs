//! Flows over the socket: what is asked and answered about them.

use forebay_grid::event::Event;
use forebay_grid::flow::event::{FlowEvent, FlowState};
use forebay_grid::flow::{FlowId, FlowSpec, ScheduleId};
use forebay_grid::grid::StepState;
use forebay_grid::vocabulary::{HostName, JobId, Moment, UserName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[cfg(doc)]
use super::{Answer, Ask};

/// What is asked about flows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowAsk {
    /// Start one; answered with [`FlowAnswer::Accepted`].
    Run {
        /// The flow.
        spec: Box<FlowSpec>,
        /// What the client knows this submission by, as in [`Ask::Submit`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Uuid>,
    },
    /// End a run with all its jobs; answered with [`Answer::Obeyed`].
    Kill(FlowId),
    /// Start a run again where it failed; answered with [`Answer::Obeyed`].
    Rerun(FlowId),
    /// Answer with [`FlowAnswer::Ended`] when every job has ended.
    Wait(FlowId),
    /// One run with its steps; answered with [`FlowAnswer::Shown`].
    Show(FlowId),
    /// The asker's own runs, or everybody's for an admin; answered with [`FlowAnswer::Listed`].
    List {
        /// Also those that have ended.
        ended: bool,
        /// The first run of the page, as the page before it said; at the beginning if none.
        #[serde(default)]
        from: Option<FlowId>,
    },
    /// Start one by its schedule; answered with [`FlowAnswer::Scheduled`].
    Schedule(Box<FlowSpec>),
    /// Do so no longer; answered with [`Answer::Obeyed`].
    Unschedule(ScheduleId),
    /// Let a schedule start nothing for now; answered with [`Answer::Obeyed`].
    Hold(ScheduleId),
    /// Let it start again what is due; answered with [`Answer::Obeyed`].
    Release(ScheduleId),
    /// The asker's own schedules, or everybody's for an admin; answered with [`FlowAnswer::Schedules`].
    Schedules,
}

/// What is answered about flows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowAnswer {
    /// The run has begun.
    Accepted(FlowId),
    /// Every job of the run has ended.
    Ended(FlowState),
    /// A run with its steps.
    Shown(Box<FlowView>),
    /// A page of runs without their steps, in the order of their numbers.
    Listed {
        /// Them.
        flows: Vec<FlowView>,
        /// Where the next page begins; none after the last one.
        #[serde(default)]
        next: Option<FlowId>,
    },
    /// The schedule holds.
    Scheduled(ScheduleId),
    /// In the order of their numbers.
    Schedules(Vec<ScheduleView>),
}

/// One run, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Its number.
    pub id: FlowId,
    /// Name of the flow.
    pub name: String,
    /// Whose.
    pub user: UserName,
    /// What became of it.
    pub state: FlowState,
    /// Steps that failed, or were skipped in vain.
    pub failed: Vec<String>,
    /// When it began.
    pub begun: Moment,
    /// When every job had ended.
    pub ended: Option<Moment>,
    /// How often it was started again where it failed.
    pub reruns: u32,
    /// The schedule that started it.
    pub schedule: Option<ScheduleId>,
    /// The file that started it.
    pub file: Option<String>,
    /// How many steps it has.
    pub count: usize,
    /// How many of them are done.
    pub done: usize,
    /// The steps, each after what it depends on; empty in a list.
    pub steps: Vec<StepView>,
}

/// One step, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepView {
    /// Its name.
    pub name: String,
    /// Its job.
    pub job: JobId,
    /// How it is.
    pub state: StepState,
    /// What it waits for, as it was written.
    pub after: Option<String>,
    /// Elements, 1 if it is no array.
    pub tasks: u32,
    /// Elements that were given to a host.
    pub running: u32,
    /// Elements that ended with 0.
    pub done: u32,
    /// Elements that ended otherwise.
    pub failed: u32,
    /// Where it runs or ran last, if it is no array.
    pub host: Option<HostName>,
    /// Starts of all its elements together.
    pub attempts: u32,
    /// Its exit value, once it has ended: 0, or the first that is not 0.
    pub exit: Option<u8>,
    /// When the first element started, of those whose latest start is known.
    pub started: Option<Moment>,
    /// When the last element ended, once all have.
    pub ended: Option<Moment>,
}

/// One schedule, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// Its number.
    pub id: ScheduleId,
    /// Name of the flow.
    pub name: String,
    /// Whose.
    pub user: UserName,
    /// When it starts, in words.
    pub when: String,
    /// The next time, if it is not held.
    pub due: Option<Moment>,
    /// Since when it is held, if it is.
    pub held: Option<Moment>,
    /// The latest run.
    pub last: Option<FlowId>,
    /// How many runs it has started.
    pub fired: u64,
    /// How many times were passed over or refused.
    pub passed: u64,
    /// Why the latest start did not happen.
    pub trouble: Option<String>,
}

/// The event that carries a command out; none if it only looks.
#[must_use]
pub fn event_of(user: &UserName, ask: &FlowAsk) -> Option<Event> {
    let by = user.clone();
    Some(Event::Flow(match ask {
        FlowAsk::Run { spec, key } => FlowEvent::Run { user: by, spec: spec.clone(), key: *key },
        FlowAsk::Kill(flow) => FlowEvent::Kill { by, flow: *flow },
        FlowAsk::Rerun(flow) => FlowEvent::Rerun { by, flow: *flow },
        FlowAsk::Schedule(spec) => FlowEvent::Schedule { user: by, spec: spec.clone() },
        FlowAsk::Unschedule(schedule) => FlowEvent::Unschedule { by, schedule: *schedule },
        FlowAsk::Hold(schedule) => FlowEvent::Hold { by, schedule: *schedule },
        FlowAsk::Release(schedule) => FlowEvent::Release { by, schedule: *schedule },
        FlowAsk::Wait(_) | FlowAsk::Show(_) | FlowAsk::List { .. } | FlowAsk::Schedules => {
            return None;
        }
    }))
}

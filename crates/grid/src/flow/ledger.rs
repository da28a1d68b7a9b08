//! What lasts of flows: runs and schedules. It changes by records only, as the ledger does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event::{FlowChange, FlowState, Stamp, Started};
use super::schedule::When;
use super::{FlowId, FlowSpec, ScheduleId};
use crate::ledger::Ledger;
use crate::vocabulary::{JobId, Moment, UserId, UserName};

/// One run of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRun {
    pub(crate) user: UserId,
    pub(crate) name: String,
    pub(crate) begun: Moment,
    pub(crate) steps: Vec<FlowStep>,
    pub(crate) ended: Option<(Moment, FlowState)>,
    pub(crate) killed: bool,
    pub(crate) reruns: u32,
    pub(crate) schedule: Option<ScheduleId>,
    pub(crate) file: Option<String>,
}

/// One step of a run; each comes after what it depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStep {
    /// Its name.
    pub name: String,
    /// Its job.
    pub job: JobId,
    /// Whether it was skipped because it could no longer start.
    pub skipped: bool,
}

impl FlowRun {
    /// The name of the flow.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it was started.
    #[must_use]
    pub fn begun(&self) -> Moment {
        self.begun
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> &[FlowStep] {
        &self.steps
    }

    /// When every job had ended, if so.
    #[must_use]
    pub fn ended(&self) -> Option<Moment> {
        self.ended.map(|(at, _)| at)
    }

    /// What became of it.
    #[must_use]
    pub fn state(&self) -> FlowState {
        self.ended.map_or(FlowState::Running, |(_, state)| state)
    }

    /// How often it was started again where it failed.
    #[must_use]
    pub fn reruns(&self) -> u32 {
        self.reruns
    }

    /// The schedule that started it.
    #[must_use]
    pub fn schedule(&self) -> Option<ScheduleId> {
        self.schedule
    }

    /// The file that started it.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

/// A flow that starts by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub(crate) user: UserId,
    pub(crate) spec: Box<FlowSpec>,
    pub(crate) added: Moment,
    pub(crate) due: Option<Moment>,
    pub(crate) last: Option<FlowId>,
    pub(crate) fired: u64,
    pub(crate) passed: u64,
    pub(crate) trouble: Option<String>,
    /// Files that started a run, and in which state.
    pub(crate) seen: BTreeMap<String, Stamp>,
}

impl Schedule {
    /// What it starts, and when.
    #[must_use]
    pub fn spec(&self) -> &FlowSpec {
        &self.spec
    }

    /// When it was added.
    #[must_use]
    pub fn added(&self) -> Moment {
        self.added
    }

    /// The next time.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.due.filter(|_| !self.is_spent())
    }

    /// Whether its only time has passed without a start: it is told of for a while, and then gone.
    pub(crate) fn is_spent(&self) -> bool {
        let at = matches!(self.spec.trigger.as_ref().map(|t| &t.when), Some(When::At(_)));
        at && self.passed > 0
    }

    /// The latest run.
    #[must_use]
    pub fn last(&self) -> Option<FlowId> {
        self.last
    }

    /// How many runs it has started.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// How many times were passed over or refused.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Why the latest start did not happen.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// All runs and schedules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    #[serde(skip)]
    pub(crate) runs: BTreeMap<FlowId, FlowRun>,
    runs_ever: u64,
    #[serde(skip)]
    pub(crate) schedules: BTreeMap<ScheduleId, Schedule>,
    schedules_ever: u64,
    /// Schedules that start nothing, and since when.
    held: BTreeMap<ScheduleId, Moment>,
}

impl Flows {
    pub(crate) fn next_run(&self) -> FlowId {
        FlowId(self.runs_ever + 1)
    }

    pub(crate) fn next_schedule(&self) -> ScheduleId {
        ScheduleId(self.schedules_ever + 1)
    }

    fn run(&mut self, flow: FlowId) -> Result<&mut FlowRun, String> {
        self.runs.get_mut(&flow).ok_or_else(|| format!("there is no flow {flow}"))
    }

    fn schedule(&mut self, schedule: ScheduleId) -> Result<&mut Schedule, String> {
        let found = self.schedules.get_mut(&schedule);
        found.ok_or_else(|| format!("there is no schedule {schedule}"))
    }
}

impl Ledger {
    /// Applies a record about flows.
    pub(crate) fn apply_flow(&mut self, at: Moment, change: &FlowChange) -> Result<(), String> {
        match change {
            FlowChange::Started(started) => self.start_flow(at, started)?,
            FlowChange::Skipped { flow, step, skipped } => {
                let step = self.flows.run(*flow)?.steps.get_mut(*step as usize);
                step.ok_or_else(|| format!("flow {flow} has no such step"))?.skipped = *skipped;
            }
            FlowChange::Ended { flow, state } => {
                self.flows.run(*flow)?.ended = Some((at, *state));
            }
            FlowChange::Reopened(flow) => {
                let run = self.flows.run(*flow)?;
                (run.ended, run.killed) = (None, false);
            }
            FlowChange::Killed(flow) => self.flows.run(*flow)?.killed = true,
            FlowChange::Rerun { flow, steps } => {
                let run = self.flows.run(*flow)?;
                (run.ended, run.killed) = (None, false);
                run.reruns += 1;
                for step in steps {
                    if let Some(step) = run.steps.get_mut(*step as usize) {
                        step.skipped = false;
                    }
                }
            }
            FlowChange::Forgotten(flow) => {
                let run = self.flows.run(*flow)?;
                if run.ended.is_none() {
                    return Err(format!("flow {flow} has not ended"));
                }
                for step in self.flows.runs.remove(flow).into_iter().flat_map(|run| run.steps) {
                    self.jobs.remove(&step.job);
                }
            }
            FlowChange::Scheduled { schedule, user, spec, due } => {
                self.flows.schedules_ever = schedule.0;
                let user = UserId(self.users.place(user));
                let entry = Schedule {
                    user,
                    spec: spec.clone(),
                    added: at,
                    due: *due,
                    last: None,
                    fired: 0,
                    passed: 0,
                    trouble: None,
                    seen: BTreeMap::new(),
                };
                self.flows.schedules.insert(*schedule, entry);
            }
            FlowChange::Unscheduled(schedule) => {
                self.flows.schedule(*schedule)?;
                self.flows.schedules.remove(schedule);
                self.flows.held.remove(schedule);
            }
            FlowChange::Passed { schedule, due, why } => {
                let entry = self.flows.schedule(*schedule)?;
                entry.due = *due;
                entry.passed += 1;
                entry.trouble = Some(why.clone());
            }
            FlowChange::Held(schedule) => {
                self.flows.schedule(*schedule)?;
                self.flows.held.insert(*schedule, at);
            }
            FlowChange::Released(schedule) => {
                self.flows.held.remove(schedule);
            }
            FlowChange::Unseen { schedule, paths } => {
                let entry = self.flows.schedule(*schedule)?;
                entry.seen.retain(|path, _| !paths.contains(path));
            }
        }
        Ok(())
    }

    fn start_flow(&mut self, at: Moment, started: &Started) -> Result<(), String> {
        let Started { flow, user, name, steps, firing } = started;
        if flow.0 <= self.flows.runs_ever {
            return Err(format!("flow {flow} was there before"));
        }
        for (_, submitted) in steps {
            self.submit(at, submitted)?;
        }
        self.flows.runs_ever = flow.0;
        let step = |(name, submitted): &(String, crate::journal::Submitted)| FlowStep {
            name: name.clone(),
            job: submitted.job,
            skipped: false,
        };
        let run = FlowRun {
            user: UserId(self.users.place(user)),
            name: name.clone(),
            begun: at,
            steps: steps.iter().map(step).collect(),
            ended: None,
            killed: false,
            reruns: 0,
            schedule: firing.as_ref().map(|firing| firing.schedule),
            file: firing.as_ref().and_then(|firing| Some(firing.file.as_ref()?.0.clone())),
        };
        self.flows.runs.insert(*flow, run);
        let Some(firing) = firing else { return Ok(()) };
        let entry = self.flows.schedule(firing.schedule)?;
        entry.due = firing.due;
        entry.last = Some(*flow);
        entry.fired += 1;
        entry.trouble = None;
        if let Some((path, stamp)) = &firing.file {
            entry.seen.insert(path.clone(), *stamp);
        }
        if matches!(entry.spec.trigger.as_ref().map(|t| &t.when), Some(When::At(_))) {
            self.flows.schedules.remove(&firing.schedule);
        }
        Ok(())
    }

    /// A run, if it is known.
    #[must_use]
    pub fn flow(&self, flow: FlowId) -> Option<&FlowRun> {
        self.flows.runs.get(&flow)
    }

    /// All known runs in the order of their numbers.
    pub fn flows(&self) -> impl DoubleEndedIterator<Item = (FlowId, &FlowRun)> {
        self.flows.runs.iter().map(|(id, run)| (*id, run))
    }

    /// Known runs from a number on, in the order of their numbers.
    pub fn flows_from(&self, first: FlowId) -> impl Iterator<Item = (FlowId, &FlowRun)> {
        self.flows.runs.range(first..).map(|(id, run)| (*id, run))
    }

    /// Whose run it is.
    #[must_use]
    pub fn user_of_flow(&self, run: &FlowRun) -> &UserName {
        self.users.at(run.user.0)
    }

    /// All schedules in the order of their numbers.
    pub fn schedules(&self) -> impl DoubleEndedIterator<Item = (ScheduleId, &Schedule)> {
        self.flows.schedules.iter().map(|(id, schedule)| (*id, schedule))
    }

    /// Since when a schedule is held, if it is: then nothing of it is due, whatever the time.
    #[must_use]
    pub fn held(&self, schedule: ScheduleId) -> Option<Moment> {
        self.flows.held.get(&schedule).copied()
    }

    /// Whose schedule it is.
    #[must_use]
    pub fn user_of_schedule(&self, schedule: &Schedule) -> &UserName {
        self.users.at(schedule.user.0)
    }
}

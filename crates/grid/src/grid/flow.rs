//! Runs of flows: started as a whole, followed step by step, killed, started again where they failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::depend::{Verdict, verdict};
use crate::event::{Effect, Outcome, Refusal, Verb};
use crate::flow::event::{Firing, FlowChange, FlowEffect, FlowEvent, FlowState, Started};
use crate::flow::ledger::{FlowRun, FlowStep};
use crate::flow::{FlowId, FlowSpec};
use crate::footprint;
use crate::grid::Grid;
use crate::grid::possible::waiting_places;
use crate::index::Index;
use crate::journal::{Change, Submitted};
use crate::ledger::{Job, Ledger};
use crate::spec::JobSpec;
use crate::task::{Cause, Step, Task};
use crate::vocabulary::{JobId, Target, TaskId, UserId, UserName};

/// How a step of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// It waits for others, or for its turn.
    Pending,
    /// Every element that has not ended waits to be released.
    Held,
    /// Some of it was given to a host.
    Running,
    /// All of it ended with 0.
    Done,
    /// Some of it ended otherwise.
    Failed,
    /// It was killed.
    Killed,
    /// It could no longer start, because of what others came to.
    Skipped,
}

impl StepState {
    /// The state as a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            StepState::Pending => "pending",
            StepState::Held => "held",
            StepState::Running => "running",
            StepState::Done => "done",
            StepState::Failed => "failed",
            StepState::Killed => "killed",
            StepState::Skipped => "skipped",
        }
    }
}

impl Grid {
    pub(super) fn flow_event(&mut self, event: FlowEvent, out: &mut Outcome) {
        // The answer goes before what follows from the command.
        let place = out.effects.len();
        let answer = match event {
            FlowEvent::Run { user, spec, key } => self
                .run_flow(&user, &spec, key, out)
                .map(|flow| Effect::Flow(FlowEffect::Accepted { flow })),
            FlowEvent::Kill { by, flow } => self.kill_flow(&by, flow, out),
            FlowEvent::Rerun { by, flow } => self.rerun_flow(&by, flow, out),
            FlowEvent::Schedule { user, spec } => self.add_schedule(user, spec, out),
            FlowEvent::Unschedule { by, schedule } => self.remove_schedule(&by, schedule, out),
            FlowEvent::Hold { by, schedule } => self.hold_schedule(&by, schedule, out),
            FlowEvent::Release { by, schedule } => self.release_schedule(&by, schedule, out),
            FlowEvent::Looked { schedule, files, trouble } => {
                self.take_look(schedule, &files, trouble, out);
                return;
            }
        };
        out.effects.insert(place, answer.unwrap_or_else(Effect::Rejected));
    }

    /// Starts a flow for a user, unless it was started with this key before. The key of a run is that of its first job.
    fn run_flow(
        &mut self,
        user: &UserName,
        spec: &FlowSpec,
        key: Option<Uuid>,
        out: &mut Outcome,
    ) -> Result<FlowId, Refusal> {
        let taken = key.and_then(|key| self.ledger.job_of_key(self.now, user, key));
        if let Some(job) = taken {
            let gone = Refusal::NoSuchJob(Target { job, index: None });
            return self.index.flow_of.get(&job).copied().ok_or(gone);
        }
        let mut steps = self.admit_flow(user, spec, None)?;
        if let Some((_, first)) = steps.first_mut() {
            first.key = key;
        }
        Ok(self.begin_flow(user, spec, steps, None, out))
    }

    /// Starts a flow because its schedule says so.
    pub(super) fn fire_flow(
        &mut self,
        user: &UserName,
        spec: &FlowSpec,
        firing: Firing,
        out: &mut Outcome,
    ) -> Result<FlowId, Refusal> {
        let file = firing.file.as_ref().map(|(path, _)| path.as_str());
        let steps = self.admit_flow(user, spec, file)?;
        Ok(self.begin_flow(user, spec, steps, Some(firing), out))
    }

    /// A run begins: one record with all its jobs.
    fn begin_flow(
        &mut self,
        user: &UserName,
        spec: &FlowSpec,
        steps: Vec<(String, Submitted)>,
        firing: Option<Firing>,
        out: &mut Outcome,
    ) -> FlowId {
        let flow = self.ledger.flows.next_run();
        let jobs: Vec<JobId> = steps.iter().map(|(_, submitted)| submitted.job).collect();
        let (user, name) = (user.clone(), spec.name.clone());
        let started = Started { flow, user, name, steps, firing };
        self.record_flow(FlowChange::Started(started), out);
        for job in jobs {
            self.index.flow_of.insert(job, flow);
            self.index.add_job(&self.ledger, job, &self.ledger.jobs[&job]);
        }
        flow
    }

    /// Checks every step, and gives jobs their numbers.
    pub(super) fn admit_flow(
        &self,
        user: &UserName,
        spec: &FlowSpec,
        file: Option<&str>,
    ) -> Result<Vec<(String, Submitted)>, Refusal> {
        let plan = spec.plan().map_err(|fault| Refusal::Invalid(fault.reason))?;
        let tasks: u64 = spec.steps.iter().map(|step| u64::from(step.tasks())).sum();
        let known = self.ledger.users.find(user).map(UserId);
        self.check_number(known, u32::try_from(tasks).unwrap_or(u32::MAX))?;
        let first = self.ledger.next_job().0;
        // Places in the specification, and the jobs that they become.
        let jobs: BTreeMap<usize, JobId> =
            plan.order.iter().zip(first..).map(|(place, job)| (*place, JobId(job))).collect();
        let mut steps = Vec::new();
        let mut bytes = 0;
        for place in plan.order {
            let given = &spec.steps[place];
            if given.service.is_some() {
                let fault = format!("job {}: a service never ends, so no flow has one", given.name);
                return Err(Refusal::Invalid(fault));
            }
            let mut step = JobSpec { depends: None, ..given.clone() };
            step.name = format!("{}.{}", spec.name, given.name);
            if let Some(file) = file {
                step.environment = step.environment.with("FOREBAY_FILE", file);
            }
            self.admit(user, &mut step).map_err(|refusal| match refusal {
                Refusal::Invalid(fault) => Refusal::Invalid(format!("job {}: {fault}", given.name)),
                other => other,
            })?;
            step.depends = given.depends.clone();
            let condition = plan.conditions[place].as_ref();
            let condition = condition.map(|condition| {
                condition.map(&|at| Target { job: jobs[&at.step], index: at.index })
            });
            bytes += footprint::bytes_of(&step, condition.as_ref());
            self.check_bytes(known, bytes)?;
            let submitted = Submitted {
                job: jobs[&place],
                user: user.clone(),
                spec: step,
                condition,
                key: None,
            };
            steps.push((given.name.clone(), submitted));
        }
        Ok(steps)
    }

    pub(super) fn record_flow(&mut self, change: FlowChange, out: &mut Outcome) {
        self.record(Change::Flow(Box::new(change)), out);
    }

    /// The run, if the user may do this to it.
    fn flow_for(&self, by: &UserName, flow: FlowId) -> Result<&FlowRun, Refusal> {
        let no_flow = || Refusal::NoSuchFlow(flow);
        let run = self.ledger.flow(flow);
        run.filter(|run| self.sees(by, self.ledger.user_of_flow(run))).ok_or_else(no_flow)
    }

    fn kill_flow(
        &mut self,
        by: &UserName,
        flow: FlowId,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let run = self.flow_for(by, flow)?;
        if run.ended.is_some() {
            return Err(Refusal::FlowInWrongState(format!("flow {flow} has ended")));
        }
        let jobs: Vec<JobId> = run.steps.iter().map(|step| step.job).collect();
        self.record_flow(FlowChange::Killed(flow), out);
        let mut tasks = 0;
        // The last steps first: what waits for a job is gone when that job ends.
        for job in jobs.into_iter().rev() {
            let places: Vec<u32> = (0..self.ledger.jobs[&job].tasks.len() as u32).collect();
            tasks += self.obey(job, &places, Verb::Kill, out);
        }
        self.index.flows_stirred.insert(flow);
        Ok(Effect::Obeyed { tasks })
    }

    /// Starts a run again where it failed: what [`Grid::again`] finds.
    fn rerun_flow(
        &mut self,
        by: &UserName,
        flow: FlowId,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let run = self.flow_for(by, flow)?;
        match run.state() {
            FlowState::Running => {
                let reason = format!("flow {flow} is still running: rerun it when it has ended");
                return Err(Refusal::FlowInWrongState(reason));
            }
            FlowState::Done => {
                let reason = format!("flow {flow} succeeded: there is nothing to run again");
                return Err(Refusal::FlowInWrongState(reason));
            }
            FlowState::Failed | FlowState::Killed => {}
        }
        let again = self.again(run);
        let tasks: Vec<TaskId> = again
            .iter()
            .flat_map(|(id, (_, places))| {
                let job = &self.ledger.jobs[id];
                places.iter().map(|place| TaskId { job: *id, index: job.index_at(*place) })
            })
            .collect();
        self.check_cycles_again(&again.keys().copied().collect())?;
        let user = Some(run.user);
        self.check_number(user, u32::try_from(tasks.len()).unwrap_or(u32::MAX))?;
        let steps = again.into_values().map(|(step, _)| step).collect();
        self.record_flow(FlowChange::Rerun { flow, steps }, out);
        self.index.flow_reopened(&self.ledger, flow);
        for task in &tasks {
            self.step(*task, Step::Requeued, out);
        }
        self.index.flows_stirred.insert(flow);
        Ok(Effect::Obeyed { tasks: tasks.len() as u32 })
    }

    /// Looks at the runs in which something happened.
    pub(super) fn follow_flows(&mut self, out: &mut Outcome) {
        while let Some(flow) = self.next_stirred(out) {
            let Some(run) = self.ledger.flow(flow) else { continue };
            match (self.is_over(run), run.ended) {
                (true, Some(_)) => {
                    self.index.flows_again.remove(&flow);
                    continue;
                }
                (false, Some(_)) => {
                    self.record_flow(FlowChange::Reopened(flow), out);
                    self.index.flow_reopened(&self.ledger, flow);
                }
                (_, None) => {}
            }
            self.skip_steps(flow, out);
            let run = &self.ledger.flows.runs[&flow];
            if self.is_over(run) {
                let state = self.outcome_of(run);
                self.record_flow(FlowChange::Ended { flow, state }, out);
                self.index.flow_ended(&self.ledger, flow);
                out.effects.push(Effect::Flow(FlowEffect::Finished { flow, state }));
            }
        }
        debug_assert!(self.index.flows_again.is_empty(), "runs are kept that nobody looks at");
    }

    /// The next run in which something happened, also because elements were skipped.
    fn next_stirred(&mut self, out: &mut Outcome) -> Option<FlowId> {
        if self.index.flows_stirred.is_empty() {
            self.skip_elements(out);
        }
        self.index.flows_stirred.pop_first()
    }

    fn is_over(&self, run: &FlowRun) -> bool {
        run.steps.iter().all(|step| self.ledger.jobs[&step.job].tally.is_finished())
    }

    /// Ends what waits for something that can no longer come, and lets wait again what was skipped and
    /// can start after all, because its user requeued a job before it. Steps are in order, so one pass is
    /// enough.
    fn skip_steps(&mut self, flow: FlowId, out: &mut Outcome) {
        let has_again = self.index.flows_again.remove(&flow);
        for place in 0..self.ledger.flows.runs[&flow].steps.len() {
            let run = &self.ledger.flows.runs[&flow];
            let (step, killed) = (&run.steps[place], run.killed);
            let (id, skipped, number) = (step.job, step.skipped, place as u32);
            let job = &self.ledger.jobs[&id];
            let condition = job.condition.as_ref();
            let vain =
                condition.is_some_and(|c| verdict(&self.ledger, self.now, c) == Verdict::Never);
            if skipped && !vain && !killed {
                self.unskip(flow, number, id, out);
            } else if skipped && !vain && !job.tally.is_finished() {
                // Its user requeued it although the run was killed: elements that were not requeued do not start.
                self.record_flow(FlowChange::Skipped { flow, step: number, skipped: false }, out);
            }
            if !vain {
                if has_again && !killed {
                    self.unskip_elements(id, out);
                }
                continue;
            }
            let job = &self.ledger.jobs[&id];
            let places = waiting_places(job);
            if places.is_empty() {
                continue;
            }
            // If some of it runs or ran, it failed like any other. Of one that was skipped, its user may have requeued some elements.
            let never_ran = |task: &&Task| is_skipped(task) || skipped && is_cancelled(task);
            let never_ran = job.tasks.iter().filter(never_ran).count();
            let whole = places.count() + never_ran as u32 == job.tally.all();
            self.record_flow(FlowChange::Skipped { flow, step: number, skipped: whole }, out);
            self.change_waiting(id, places, Step::Cancelled, out);
        }
    }

    /// A skipped step waits again. What of it has run since it was skipped does not run again.
    fn unskip(&mut self, flow: FlowId, step: u32, id: JobId, out: &mut Outcome) {
        self.record_flow(FlowChange::Skipped { flow, step, skipped: false }, out);
        let tasks = self.ledger.jobs[&id].tasks().filter(|(_, task)| is_cancelled(task));
        let tasks: Vec<TaskId> = tasks.map(|(index, _)| TaskId { job: id, index }).collect();
        for task in tasks {
            self.step(task, Step::Requeued, out);
        }
    }

    fn outcome_of(&self, run: &FlowRun) -> FlowState {
        if run.killed {
            return FlowState::Killed;
        }
        let excuses = self.excuses(run);
        let fine = |step: &FlowStep| {
            excuses[&step.job].is_whole || self.ledger.jobs[&step.job].tally.failed == 0
        };
        if run.steps.iter().all(fine) { FlowState::Done } else { FlowState::Failed }
    }

    /// How each step of a run is.
    #[must_use]
    pub fn step_states(&self, run: &FlowRun) -> Vec<StepState> {
        let state = |step: &FlowStep| step_state(&self.ledger.jobs[&step.job], step.skipped);
        run.steps.iter().map(state).collect()
    }

    /// Names of the steps because of which a run failed.
    #[must_use]
    pub fn failed_steps<'a>(&self, run: &'a FlowRun) -> Vec<&'a str> {
        let failed = |state| matches!(state, StepState::Failed | StepState::Killed);
        let states = self.step_states(run);
        let names: Vec<&str> = run
            .steps
            .iter()
            .zip(&states)
            .filter(|(_, state)| failed(**state))
            .map(|(step, _)| step.name.as_str())
            .collect();
        if !names.is_empty() || run.state() != FlowState::Failed {
            return names;
        }
        // Nothing failed, but a step waited for what did not come.
        let excuses = self.excuses(run);
        let vain = run.steps.iter().zip(&states);
        vain.filter(|(step, state)| **state == StepState::Skipped && !excuses[&step.job].is_whole)
            .map(|(step, _)| step.name.as_str())
            .collect()
    }

    /// Forgets a run with its jobs, unless something else waits for one of them.
    pub(super) fn forget_flow(&mut self, flow: FlowId, out: &mut Outcome) {
        let Some(run) = self.ledger.flow(flow) else { return };
        let jobs: Vec<JobId> = run.steps.iter().map(|step| step.job).collect();
        if jobs.iter().any(|job| self.is_waited_for(*job)) {
            for job in &jobs {
                self.index.keep(&self.ledger.jobs[job], *job);
            }
            return;
        }
        self.index.flow_reopened(&self.ledger, flow);
        for job in &jobs {
            self.index.forget(&self.ledger, *job, &self.ledger.jobs[job]);
        }
        for job in &jobs {
            self.index.flow_of.remove(job);
        }
        self.index.flows_stirred.remove(&flow);
        self.index.flows_again.remove(&flow);
        self.record_flow(FlowChange::Forgotten(flow), out);
        out.effects.extend(jobs.into_iter().map(|job| Effect::Forgotten { job }));
    }
}

/// Whether a task ended without having run.
fn is_cancelled(task: &Task) -> bool {
    matches!(task, Task::Finished(finish) if finish.last.is_none())
}

/// Whether an element was skipped because of its partner in another step.
pub(super) fn is_skipped(task: &Task) -> bool {
    matches!(task, Task::Finished(finish) if finish.cause == Cause::DependencyNever)
}

fn step_state(job: &Job, skipped: bool) -> StepState {
    let tally = &job.tally;
    if tally.active > 0 {
        return StepState::Running;
    }
    if !tally.is_finished() {
        let held = tally.pending == 0;
        return if held { StepState::Held } else { StepState::Pending };
    }
    let done = |task: &Task| matches!(task, Task::Finished(finish) if finish.is_done());
    let killed = |task: &Task| match task {
        Task::Finished(finish) => finish.cause == Cause::Killed || finish.is_done(),
        Task::Pending(_) | Task::Held(_) | Task::Active(_) => false,
    };
    match (tally.failed, skipped) {
        (0, _) => StepState::Done,
        (_, true) => StepState::Skipped,
        (_, false) if job.tasks.iter().all(|task| done(task) || is_skipped(task)) => {
            StepState::Skipped
        }
        (_, false) if job.tasks.iter().all(killed) => StepState::Killed,
        (_, false) => StepState::Failed,
    }
}

impl Index {
    /// Learns which jobs are steps of runs.
    pub fn know_steps(&mut self, ledger: &Ledger) {
        for (flow, run) in &ledger.flows.runs {
            self.flow_of.extend(run.steps.iter().map(|step| (step.job, *flow)));
        }
    }

    /// What else follows from the flows of a ledger.
    pub fn build_flows(&mut self, ledger: &Ledger) {
        for (flow, run) in &ledger.flows.runs {
            if run.ended.is_some() {
                self.flow_ended(ledger, *flow);
            }
        }
        let free = ledger.schedules().filter(|(id, _)| ledger.held(*id).is_none());
        self.due = free.filter_map(|(id, schedule)| Some((schedule.due?, id))).collect();
    }

    /// The jobs of a run that has ended may be forgotten, all at the same time.
    fn flow_ended(&mut self, ledger: &Ledger, flow: FlowId) {
        let run = &ledger.flows.runs[&flow];
        let Some((at, _)) = run.ended else { return };
        for step in &run.steps {
            self.note_flow_ended(&ledger.jobs[&step.job], step.job, at);
        }
    }

    /// The jobs of a run may not be forgotten any more.
    fn flow_reopened(&mut self, ledger: &Ledger, flow: FlowId) {
        for step in &ledger.flows.runs[&flow].steps {
            self.no_longer_finished(&ledger.jobs[&step.job], step.job);
        }
    }
}

//! Flows as their owners and admins see them.

use forebay_grid::flow::event::FlowState;
use forebay_grid::flow::ledger::{FlowRun, FlowStep, Schedule};
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::grid::StepState;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, TaskId, UserName};
use forebay_grid::{Grid, Job};

use crate::engine::Engine as _;
use crate::protocol::flow::{FlowAnswer, FlowAsk, FlowView, ScheduleView, StepView};
use crate::protocol::{Answer, RefusalKind};

/// Tasks of the runs on one page of a list.
const TASKS_OF_PAGE: u64 = 10_000;

/// The run, if the user may see it.
fn known<'a>(grid: &'a Grid, user: &UserName, flow: FlowId) -> Option<&'a FlowRun> {
    let ledger = grid.ledger();
    ledger.flow(flow).filter(|run| grid.may_see(user, ledger.user_of_flow(run)))
}

/// Answers what only looks.
pub(super) fn answer(grid: &Grid, user: &UserName, ask: &FlowAsk) -> Answer {
    let ledger = grid.ledger();
    let answer = match ask {
        FlowAsk::Show(flow) => match known(grid, user, *flow) {
            None => return Answer::no_flow(*flow),
            Some(run) => {
                let mut view = flow_view(grid, *flow, run);
                view.steps = steps(grid, run);
                FlowAnswer::Shown(Box::new(view))
            }
        },
        FlowAsk::List { ended, from } => list(grid, user, *ended, *from),
        FlowAsk::Schedules => {
            let seen = |entry: &Schedule| grid.may_see(user, ledger.user_of_schedule(entry));
            let schedules = ledger.schedules().filter(|(_, entry)| seen(entry));
            FlowAnswer::Schedules(schedules.map(|(id, s)| schedule_view(grid, id, s)).collect())
        }
        FlowAsk::Run { .. }
        | FlowAsk::Wait(_)
        | FlowAsk::Kill(_)
        | FlowAsk::Rerun(_)
        | FlowAsk::Schedule(_)
        | FlowAsk::Unschedule(_)
        | FlowAsk::Hold(_)
        | FlowAsk::Release(_) => {
            return Answer::refused(
                RefusalKind::NotUnderstood,
                "this request is not supported here",
            );
        }
    };
    Answer::Flow { flow: answer }
}

/// A page of runs. It ends where it has looked at enough tasks.
fn list(grid: &Grid, user: &UserName, ended: bool, from: Option<FlowId>) -> FlowAnswer {
    let ledger = grid.ledger();
    let wanted = |run: &FlowRun| ended || run.state() == FlowState::Running;
    let seen = |run: &FlowRun| grid.may_see(user, ledger.user_of_flow(run));
    let runs = ledger.flows_from(from.unwrap_or(FlowId(0)));
    let (mut flows, mut tasks) = (Vec::new(), 0);
    for (id, run) in runs.filter(|(_, run)| wanted(run) && seen(run)) {
        if tasks >= TASKS_OF_PAGE {
            return FlowAnswer::Listed { flows, next: Some(id) };
        }
        let of_step = |step: &FlowStep| ledger.job(step.job).map_or(0, |job| job.tally().all());
        tasks += run.steps().iter().map(|step| u64::from(of_step(step))).sum::<u64>();
        flows.push(flow_view(grid, id, run));
    }
    FlowAnswer::Listed { flows, next: None }
}

fn flow_view(grid: &Grid, id: FlowId, run: &FlowRun) -> FlowView {
    let states = grid.step_states(run);
    FlowView {
        id,
        name: run.name().to_owned(),
        user: grid.ledger().user_of_flow(run).clone(),
        state: run.state(),
        failed: grid.failed_steps(run).into_iter().map(str::to_owned).collect(),
        begun: run.begun(),
        ended: run.ended(),
        reruns: run.reruns(),
        schedule: run.schedule(),
        file: run.file().map(str::to_owned),
        count: states.len(),
        done: states.iter().filter(|state| **state == StepState::Done).count(),
        steps: Vec::new(),
    }
}

fn steps(grid: &Grid, run: &FlowRun) -> Vec<StepView> {
    let states = grid.step_states(run);
    let steps = run.steps().iter().zip(states);
    let view = |(step, state): (&FlowStep, StepState)| {
        let job = grid.ledger().job(step.job)?;
        Some(step_view(grid, &step.name, step.job, job, state))
    };
    steps.filter_map(view).collect()
}

fn step_view(grid: &Grid, name: &str, id: JobId, job: &Job, state: StepState) -> StepView {
    let tally = job.tally();
    let ended = tally.is_finished();
    let mut view = StepView {
        name: name.to_owned(),
        job: id,
        state,
        after: job.spec().depends.as_ref().map(ToString::to_string),
        tasks: tally.all(),
        running: tally.active,
        done: tally.done,
        failed: if state == StepState::Skipped { 0 } else { tally.failed },
        host: None,
        attempts: 0,
        exit: grid.end(id).filter(|_| state != StepState::Skipped).map(|end| end.value),
        started: None,
        ended: None,
    };
    for (index, task) in job.tasks() {
        let state = grid.state(TaskId { job: id, index });
        let start = state.map(|state| state.last_start()).unwrap_or_default();
        view.attempts = view.attempts.saturating_add(start.attempts);
        view.started = [view.started, start.started].into_iter().flatten().min();
        if job.spec().array.is_none() {
            view.host = start.host;
        }
        if let (true, Task::Finished(finish)) = (ended, task) {
            view.ended = view.ended.max(Some(finish.ended));
        }
    }
    view
}

fn schedule_view(grid: &Grid, id: ScheduleId, entry: &Schedule) -> ScheduleView {
    let held = grid.ledger().held(id);
    ScheduleView {
        id,
        name: entry.spec().name.clone(),
        user: grid.ledger().user_of_schedule(entry).clone(),
        when: entry.spec().trigger.as_ref().map(ToString::to_string).unwrap_or_default(),
        due: entry.due().filter(|_| held.is_none()),
        held,
        last: entry.last(),
        fired: entry.fired(),
        passed: entry.passed(),
        trouble: entry.trouble().map(str::to_owned),
    }
}

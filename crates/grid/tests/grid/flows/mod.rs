//! Rules of flows, one by one: files, runs, elements of their steps, schedules.

mod elements;
mod files;
mod runs;
mod schedules;
mod singleton;

use crate::pieces::Pieces;
use crate::support::{Rig, launched};
use forebay_grid::event::{Memory, RunReport, RunStatus, Verb};
use forebay_grid::flow::event::{FlowEvent, FlowState};
use forebay_grid::flow::file::Surroundings;
use forebay_grid::flow::{FlowId, FlowSpec};
use forebay_grid::grid::StepState;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, Moment, Target, TaskId};
use forebay_grid::{Effect, Event, Grid, Ledger};

pub(super) const QUEUE: &str = "[[queue]]\nname = \"q\"\n";

pub(super) fn read(text: &str) -> FlowSpec {
    FlowSpec::read(text, &Surroundings::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// A flow of jobs, each with what it comes after.
pub(super) fn flow(jobs: &[(&str, &str)], more: &str) -> FlowSpec {
    let mut text = format!("[flow]\nname = \"f\"\n{more}\n");
    for (name, after) in jobs {
        let after = if after.is_empty() { "[]".to_owned() } else { format!("\"{after}\"") };
        text += &format!("[[job]]\nname = \"{name}\"\ncommand = \"true\"\nafter = {after}\n");
    }
    read(&text)
}

pub(super) fn run(rig: &mut Rig, spec: FlowSpec) -> Vec<Effect> {
    let user = "u".parse().unwrap();
    rig.send(Event::Flow(FlowEvent::Run { user, spec: Box::new(spec), key: None }))
}

/// Starts a failed run again.
pub(super) fn rerun(rig: &mut Rig, by: &str, flow: u64) -> Vec<Effect> {
    let (by, flow) = (by.parse().unwrap(), FlowId(flow));
    rig.send(Event::Flow(FlowEvent::Rerun { by, flow }))
}

pub(super) fn schedule(rig: &mut Rig, spec: FlowSpec) -> Vec<Effect> {
    let user = "u".parse().unwrap();
    rig.send(Event::Flow(FlowEvent::Schedule { user, spec: Box::new(spec) }))
}

pub(super) fn states(rig: &Rig, flow: u64) -> Vec<StepState> {
    rig.grid.step_states(rig.grid.ledger().flow(FlowId(flow)).unwrap())
}

pub(super) fn state(rig: &Rig, flow: u64) -> FlowState {
    rig.grid.ledger().flow(FlowId(flow)).unwrap().state()
}

pub(super) fn exit(rig: &mut Rig, job: u64, code: u8) -> Vec<Effect> {
    rig.exit(TaskId::only(JobId(job)), code)
}

pub(super) fn restart(rig: &mut Rig) {
    let mut pieces = Pieces::default();
    pieces.write(rig.grid.ledger(), &rig.records);
    assert_eq!(&pieces.read(), rig.grid.ledger());
    rig.grid = Grid::restore(Ledger::default(), &rig.records, Moment(rig.now)).unwrap();
}

/// Restarts the controller; its host comes back with what it runs.
pub(super) fn restart_with_host(rig: &mut Rig, host: &str, cores: u32) {
    restart(rig);
    let jobs = rig.grid.ledger().jobs();
    let tasks = jobs.flat_map(|(job, entry)| {
        entry.tasks().map(move |(index, task)| (TaskId { job, index }, task))
    });
    let report = |(task, entry): (TaskId, &Task)| {
        let attempt = entry.run()?.attempt;
        Some(RunReport { task, attempt, status: RunStatus::Running })
    };
    let reports = tasks.filter_map(report).collect();
    rig.join(host, cores, Memory::Kept, reports);
}

pub(super) fn runs(rig: &Rig) -> usize {
    rig.grid.ledger().flows().count()
}

pub(super) fn requeue(rig: &mut Rig, target: impl Into<Target>) -> Vec<TaskId> {
    let effects = rig.command("u", target, Verb::Requeue);
    launched(&effects).into_iter().map(|(task, ..)| task).collect()
}

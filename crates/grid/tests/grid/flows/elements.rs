//! Elements of steps that wait for those of other steps with the same index: `[*]` in flows.

use forebay_grid::event::Verb;
use forebay_grid::flow::event::{FlowEvent, FlowState};
use forebay_grid::flow::{FlowId, FlowSpec};
use forebay_grid::grid::StepState::{self, Done, Failed, Pending, Running, Skipped};
use forebay_grid::spec::JobSpec;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, Event};

use super::{QUEUE, exit, flow, requeue, rerun, restart, restart_with_host, run, state, states};
use crate::support::{Rig, launched};

/// A flow whose steps with `[*]`, and those before them, are arrays of three.
fn arrays(jobs: &[(&str, &str)], plain: &[&str]) -> FlowSpec {
    let names: Vec<(&str, &str)> = jobs.iter().map(|(name, _)| (*name, "")).collect();
    let mut spec = flow(&names, "");
    for (step, (name, after)) in spec.steps.iter_mut().zip(jobs) {
        let array = (!plain.contains(name)).then(|| "[1-3]".parse().unwrap());
        let depends = (!after.is_empty()).then(|| after.parse().unwrap());
        *step = JobSpec { array, depends, ..step.clone() };
    }
    spec
}

fn element(job: u64, index: u32) -> TaskId {
    TaskId { job: JobId(job), index }
}

fn started(effects: &[Effect]) -> Vec<TaskId> {
    launched(effects).into_iter().map(|(task, ..)| task).collect()
}

/// Ends elements of a job with these values, in their order.
fn ends(rig: &mut Rig, job: u64, codes: [u8; 3]) {
    for (index, code) in (1..).zip(codes) {
        rig.exit(element(job, index), code);
    }
}

fn failed_steps(rig: &Rig) -> Vec<&str> {
    rig.grid.failed_steps(rig.grid.ledger().flow(FlowId(1)).unwrap())
}

#[test]
fn elements_start_after_their_partners_and_are_skipped_alone() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    run(&mut rig, arrays(&[("load", ""), ("sort", "load[*]"), ("join", "ended(sort)")], &["join"]));
    assert_eq!(started(&rig.exit(element(1, 2), 0)), [element(2, 2)]);
    assert_eq!(started(&rig.exit(element(1, 1), 1)), []);
    let skipped = rig.grid.ledger().task(element(2, 1));
    assert!(matches!(skipped, Some(Task::Finished(_))), "at once: {skipped:?}");
    assert_eq!(states(&rig, 1), [Running, Running, Pending]);
    restart_with_host(&mut rig, "h1", 9);
    assert_eq!(started(&rig.exit(element(1, 3), 0)), [element(2, 3)]);
    rig.exit(element(2, 2), 0);
    assert_eq!(started(&rig.exit(element(2, 3), 0)), [element(3, 0)]);
    exit(&mut rig, 3, 0);
    // The step did what it could. What failed was before it.
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Failed, Skipped, Done], FlowState::Failed));
    assert_eq!(failed_steps(&rig), ["load"]);
}

#[test]
fn a_rerun_repeats_elements_and_those_after_them_only() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    let steps = [("load", ""), ("sort", "load[*]"), ("pack", "sort[*]"), ("join", "done(pack)")];
    run(&mut rig, arrays(&steps, &["join"]));
    ends(&mut rig, 1, [0, 7, 0]);
    for index in [1, 3] {
        rig.exit(element(2, index), 0);
    }
    rig.exit(element(3, 1), 0);
    rig.exit(element(3, 3), 5);
    assert_eq!(
        (states(&rig, 1), state(&rig, 1)),
        (vec![Failed, Skipped, Failed, Skipped], FlowState::Failed)
    );
    assert_eq!(failed_steps(&rig), ["load", "pack"]);
    restart_with_host(&mut rig, "h1", 9);
    let effects = rerun(&mut rig, "u", 1);
    // load[2], sort[2], pack[2], pack[3] and join.
    assert_eq!(effects.first(), Some(&Effect::Obeyed { tasks: 5 }));
    assert_eq!(started(&effects), [element(1, 2), element(3, 3)]);
    rig.exit(element(3, 3), 0);
    for job in 1..=3 {
        rig.exit(element(job, 2), 0);
    }
    exit(&mut rig, 4, 0);
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done; 4], FlowState::Done));
}

#[test]
fn elements_for_failures_that_never_came_are_skipped_and_the_flow_is_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    let steps =
        [("load", ""), ("mend", "exit(load[*])"), ("again", "mend[*]"), ("tell", "done(again)")];
    run(&mut rig, arrays(&steps, &["tell"]));
    ends(&mut rig, 1, [0, 0, 0]);
    assert_eq!(
        (states(&rig, 1), state(&rig, 1)),
        (vec![Done, Skipped, Skipped, Skipped], FlowState::Done)
    );
    // A run in which one came has failed, with or without what mended it.
    run(&mut rig, arrays(&steps, &["tell"]));
    ends(&mut rig, 5, [0, 4, 0]);
    rig.exit(element(6, 2), 0);
    rig.exit(element(7, 2), 0);
    assert_eq!(
        (states(&rig, 2), state(&rig, 2)),
        (vec![Failed, Skipped, Skipped, Skipped], FlowState::Failed)
    );
    // What mended it runs again only if that fails again.
    let effects = rerun(&mut rig, "u", 2);
    assert_eq!(started(&effects), [element(5, 2)]);
    rig.exit(element(5, 2), 0);
    assert_eq!(
        (states(&rig, 2), state(&rig, 2)),
        (vec![Done, Skipped, Skipped, Skipped], FlowState::Done)
    );
}

#[test]
fn a_skipped_element_runs_when_its_partner_is_requeued_and_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    run(&mut rig, arrays(&[("load", ""), ("sort", "load[*]"), ("pack", "sort[*]")], &[]));
    rig.exit(element(1, 1), 1);
    // While the others run.
    assert_eq!(requeue(&mut rig, element(1, 1)), [element(1, 1)]);
    assert_eq!(started(&rig.exit(element(1, 1), 0)), [element(2, 1)]);
    // One that is requeued in vain is skipped as before.
    rig.exit(element(1, 2), 1);
    assert_eq!(requeue(&mut rig, element(2, 2)), []);
    assert!(matches!(rig.grid.ledger().task(element(2, 2)), Some(Task::Finished(_))));
    rig.exit(element(1, 3), 0);
    for (job, index) in [(2, 1), (2, 3), (3, 1), (3, 3)] {
        rig.exit(element(job, index), 0);
    }
    assert_eq!(
        (states(&rig, 1), state(&rig, 1)),
        (vec![Failed, Skipped, Skipped], FlowState::Failed)
    );
    // When all have ended as well.
    restart_with_host(&mut rig, "h1", 9);
    requeue(&mut rig, element(1, 2));
    assert_eq!(
        (states(&rig, 1), state(&rig, 1)),
        (vec![Running, Pending, Pending], FlowState::Running)
    );
    for job in 1..=3 {
        rig.exit(element(job, 2), 0);
    }
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done; 3], FlowState::Done));
}

#[test]
fn a_step_that_waits_for_a_whole_one_too_is_skipped_as_a_whole() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    run(&mut rig, arrays(&[("a", ""), ("load", ""), ("sort", "a && load[*]")], &["a"]));
    ends(&mut rig, 2, [0, 1, 0]);
    assert_eq!(states(&rig, 1), [Running, Failed, Pending], "its second element is skipped");
    exit(&mut rig, 1, 3);
    assert_eq!(states(&rig, 1), [Failed, Failed, Skipped]);
    let effects = rerun(&mut rig, "u", 1);
    assert_eq!(effects.first(), Some(&Effect::Obeyed { tasks: 5 }));
    exit(&mut rig, 1, 0);
    rig.exit(element(2, 2), 0);
    ends(&mut rig, 3, [0, 0, 0]);
    assert_eq!(state(&rig, 1), FlowState::Done);
}

#[test]
fn elements_of_a_killed_flow_end_with_it() {
    let mut rig = Rig::new(QUEUE, &[("h1", 9)]);
    run(&mut rig, arrays(&[("load", ""), ("sort", "load[*]")], &[]));
    rig.exit(element(1, 1), 1);
    rig.exit(element(1, 2), 0);
    let by = "u".parse().unwrap();
    rig.send(Event::Flow(FlowEvent::Kill { by, flow: FlowId(1) }));
    // Its partner is requeued in vain: nothing of a killed flow starts that nobody requeued.
    rig.command("u", element(1, 1), Verb::Requeue);
    assert_eq!(started(&rig.exit(element(1, 1), 0)), []);
    rig.exit(element(1, 3), 143);
    rig.exit(element(2, 2), 143);
    assert_eq!(state(&rig, 1), FlowState::Killed);
    assert_eq!(states(&rig, 1)[0], StepState::Killed);
    restart(&mut rig);
}

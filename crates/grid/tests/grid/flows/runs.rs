//! Runs of flows: what starts when, what is skipped, what runs again, how they end.

use forebay_grid::event::Verb;
use forebay_grid::flow::FlowId;
use forebay_grid::flow::event::{FlowEffect, FlowEvent, FlowState};
use forebay_grid::grid::StepState;
use forebay_grid::task::Task;
use forebay_grid::vocabulary::{JobId, Moment, TaskId};
use forebay_grid::{Effect, Event};

use super::{QUEUE, exit, flow, requeue, rerun, restart, run, runs, state, states};
use crate::support::{Rig, launched, refusal};

#[test]
fn a_refused_job_refuses_the_whole_flow() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", "a")], "");
    spec.steps[1].queue = Some("none".parse().unwrap());
    assert!(refusal(&run(&mut rig, spec)).contains("none"));
    assert_eq!((runs(&rig), rig.grid.ledger().jobs().count()), (0, 0));
    rig.configure("[general]\nuser_tasks_max = 3\n[[queue]]\nname = \"q\"\n");
    let four = flow(&[("a", ""), ("b", ""), ("c", ""), ("d", "")], "");
    assert!(refusal(&run(&mut rig, four)).contains("at most 3"));
    assert_eq!(rig.grid.ledger().jobs().count(), 0);
}

#[test]
fn a_flow_is_one_record_and_its_order_is_that_of_its_conditions() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let before = rig.records.len();
    let effects = run(&mut rig, flow(&[("z", "x*"), ("x1", ""), ("x2", "x1")], ""));
    let accepted = Effect::Flow(FlowEffect::Accepted { flow: FlowId(1) });
    assert_eq!(effects.first(), Some(&accepted));
    assert_eq!(launched(&effects).len(), 1);
    // The start, and that x1 was given to a host.
    assert_eq!(rig.records.len() - before, 2);
    let names: Vec<&str> = rig
        .grid
        .ledger()
        .flow(FlowId(1))
        .unwrap()
        .steps()
        .iter()
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(names, ["x1", "x2", "z"]);
    exit(&mut rig, 1, 0);
    exit(&mut rig, 2, 0);
    let effects = exit(&mut rig, 3, 0);
    let finished = FlowEffect::Finished { flow: FlowId(1), state: FlowState::Done };
    assert!(effects.contains(&Effect::Flow(finished)));
    assert_eq!(state(&rig, 1), FlowState::Done);
}

#[test]
fn what_cannot_start_any_more_is_skipped_and_the_flow_fails() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "b"), ("tidy", "ended(a)")], ""));
    exit(&mut rig, 1, 3);
    use StepState::{Done, Failed, Running, Skipped};
    assert_eq!(states(&rig, 1), [Failed, Skipped, Skipped, Running]);
    assert_eq!(state(&rig, 1), FlowState::Running);
    exit(&mut rig, 4, 0);
    assert_eq!(states(&rig, 1), [Failed, Skipped, Skipped, Done]);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    let run = rig.grid.ledger().flow(FlowId(1)).unwrap();
    assert_eq!(rig.grid.failed_steps(run), ["a"]);
}

#[test]
fn a_step_for_failures_that_never_came_is_skipped_and_the_flow_is_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("mend", "exit(a)"), ("more", "mend")], ""));
    exit(&mut rig, 1, 0);
    use StepState::{Done, Skipped};
    assert_eq!(states(&rig, 1), [Done, Skipped, Skipped]);
    assert_eq!(state(&rig, 1), FlowState::Done);
    // A count that is not reached is a fault, even if nothing failed.
    run(&mut rig, flow(&[("a", ""), ("b", "numdone(a, >= 2)")], ""));
    exit(&mut rig, 4, 0);
    assert_eq!(state(&rig, 2), FlowState::Failed);
    let second = rig.grid.ledger().flow(FlowId(2)).unwrap();
    assert_eq!(rig.grid.failed_steps(second), ["b"]);
}

#[test]
fn a_rerun_starts_failed_elements_and_what_comes_after_them() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    let mut spec = flow(&[("a", ""), ("load", "a"), ("other", "a"), ("reduce", "load")], "");
    spec.steps[1].array = Some("[1-3]".parse().unwrap());
    run(&mut rig, spec);
    exit(&mut rig, 1, 0);
    for (index, code) in [(1, 0), (2, 9), (3, 0)] {
        rig.exit(TaskId { job: JobId(2), index }, code);
    }
    assert!(refusal(&rerun(&mut rig, "u", 1)).contains("is still running"));
    exit(&mut rig, 3, 0);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    assert!(refusal(&rerun(&mut rig, "v", 1)).contains("there is no flow 1"));
    let effects = rerun(&mut rig, "u", 1);
    assert_eq!(effects.first(), Some(&Effect::Obeyed { tasks: 2 }));
    let tasks: Vec<TaskId> = launched(&effects).into_iter().map(|(task, ..)| task).collect();
    assert_eq!(tasks, [TaskId { job: JobId(2), index: 2 }]);
    rig.exit(tasks[0], 0);
    exit(&mut rig, 4, 0);
    assert_eq!(state(&rig, 1), FlowState::Done);
    assert!(refusal(&rerun(&mut rig, "u", 1)).contains("succeeded"));
    assert_eq!(rig.grid.ledger().flow(FlowId(1)).unwrap().reruns(), 1);
}

#[test]
fn what_was_skipped_runs_when_a_job_before_it_is_requeued_and_done() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "b")], ""));
    exit(&mut rig, 1, 1);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    rig.command("u", JobId(1), Verb::Requeue);
    assert_eq!(state(&rig, 1), FlowState::Running);
    use StepState::{Done, Pending, Running};
    assert_eq!(states(&rig, 1), [Running, Pending, Pending]);
    for job in 1..=3 {
        exit(&mut rig, job, 0);
    }
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done; 3], FlowState::Done));
}

#[test]
fn a_killed_flow_ends_with_all_its_jobs() {
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a"), ("c", "ended(b)")], ""));
    let kill = |rig: &mut Rig, by: &str| {
        let by = by.parse().unwrap();
        rig.send(Event::Flow(FlowEvent::Kill { by, flow: FlowId(1) }))
    };
    assert!(refusal(&kill(&mut rig, "v")).contains("there is no flow 1"));
    assert_eq!(kill(&mut rig, "u").first(), Some(&Effect::Obeyed { tasks: 3 }));
    assert_eq!(state(&rig, 1), FlowState::Running);
    restart(&mut rig);
    let killed = rig.grid.ledger().task(TaskId::only(JobId(1))).and_then(Task::run).unwrap();
    assert!(killed.ending.is_some());
    exit(&mut rig, 1, 143);
    assert_eq!(states(&rig, 1), [StepState::Killed; 3]);
    assert_eq!(state(&rig, 1), FlowState::Killed);
    assert!(refusal(&kill(&mut rig, "u")).contains("has ended"));
}

/// A flow that was killed while `a` and `b` ran. `a` has not ended yet. `c`, an array of two, was requeued, and skipped
/// because `b` had been killed. Then `b` was requeued, so `c` could start, and `b` runs.
fn killed_flow_with_a_skipped_step() -> Rig {
    use StepState::{Killed, Running, Skipped};
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", ""), ("c", "b")], "");
    spec.steps[2].array = Some("[1-2]".parse().unwrap());
    run(&mut rig, spec);
    rig.send(Event::Flow(FlowEvent::Kill { by: "u".parse().unwrap(), flow: FlowId(1) }));
    exit(&mut rig, 2, 143);
    requeue(&mut rig, JobId(3));
    assert_eq!(states(&rig, 1), [Running, Killed, Skipped]);
    assert_eq!(requeue(&mut rig, JobId(2)), [TaskId::only(JobId(2))]);
    assert_eq!(states(&rig, 1), [Running, Running, Skipped]);
    rig
}

#[test]
fn a_skipped_step_that_its_user_requeued_in_a_killed_flow_is_a_step_like_others_again() {
    use StepState::{Done, Failed, Pending, Running};
    for (code, step, end) in [(0, Done, FlowState::Done), (1, Failed, FlowState::Failed)] {
        let mut rig = killed_flow_with_a_skipped_step();
        assert!(requeue(&mut rig, JobId(3)).is_empty());
        assert_eq!(states(&rig, 1), [Running, Running, Pending]);
        assert_eq!(launched(&exit(&mut rig, 2, 0)).len(), 2);
        for index in [1, 2] {
            rig.exit(TaskId { job: JobId(3), index }, code);
        }
        exit(&mut rig, 1, 143);
        assert_eq!((states(&rig, 1)[2], state(&rig, 1)), (step, FlowState::Killed));
        // The run continues and is no longer killed. `c` has run, so it does not run again.
        assert_eq!(requeue(&mut rig, JobId(1)), [TaskId::only(JobId(1))]);
        exit(&mut rig, 1, 0);
        restart(&mut rig);
        assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Done, step], end));
    }
}

#[test]
fn only_elements_of_a_skipped_step_that_were_requeued_start_in_a_killed_flow() {
    let mut rig = killed_flow_with_a_skipped_step();
    let [first, second] = [1, 2].map(|index| TaskId { job: JobId(3), index });
    requeue(&mut rig, first);
    let effects = exit(&mut rig, 2, 0);
    assert_eq!(launched(&effects).into_iter().map(|(task, ..)| task).collect::<Vec<_>>(), [first]);
    rig.exit(first, 0);
    exit(&mut rig, 1, 143);
    assert_eq!(states(&rig, 1)[2], StepState::Killed);
    // Nor does the second element start once the run continues: nobody requeued it.
    assert_eq!(requeue(&mut rig, JobId(1)), [TaskId::only(JobId(1))]);
    assert!(matches!(rig.grid.ledger().task(second), Some(Task::Finished(_))));
}

#[test]
fn a_skipped_array_of_which_one_element_is_requeued_in_vain_is_skipped_as_before() {
    use StepState::{Done, Running, Skipped};
    let mut rig = Rig::new(QUEUE, &[("h1", 4)]);
    let mut spec = flow(&[("a", ""), ("b", "exit(a)")], "");
    spec.steps[1].array = Some("[1-2]".parse().unwrap());
    run(&mut rig, spec);
    exit(&mut rig, 1, 0);
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Skipped], FlowState::Done));
    let [first, second] = [1, 2].map(|index| TaskId { job: JobId(2), index });
    assert!(requeue(&mut rig, first).is_empty());
    assert_eq!((states(&rig, 1), state(&rig, 1)), (vec![Done, Skipped], FlowState::Done));
    // So all of it starts once its condition holds, and it is a step like others then.
    requeue(&mut rig, JobId(1));
    assert_eq!(launched(&exit(&mut rig, 1, 1)).len(), 2);
    assert_eq!(states(&rig, 1)[1], Running);
    rig.exit(first, 0);
    rig.exit(second, 0);
    assert_eq!(states(&rig, 1)[1], Done);
    // Of one that has run nothing is skipped when an element is requeued in vain.
    requeue(&mut rig, JobId(1));
    exit(&mut rig, 1, 0);
    assert!(requeue(&mut rig, first).is_empty());
    assert_eq!(states(&rig, 1)[1], StepState::Killed);
    restart(&mut rig);
}

#[test]
fn a_flow_is_forgotten_with_its_jobs_when_the_last_is_old_enough() {
    let settings = "[general]\nfinished_age = \"1 h\"\n[[queue]]\nname = \"q\"\n";
    let mut rig = Rig::new(settings, &[("h1", 4)]);
    run(&mut rig, flow(&[("a", ""), ("b", "a")], ""));
    exit(&mut rig, 1, 0);
    rig.load("h1", forebay_grid::config::Load::default());
    rig.pass(50_000);
    // Much later than the first ended, the second does.
    for _ in 0..80 {
        rig.load("h1", forebay_grid::config::Load::default());
        rig.pass(60_000);
    }
    assert_eq!(rig.grid.ledger().jobs().count(), 2, "a run that goes on keeps its jobs");
    assert!(rig.grid.next_wake() > Moment(rig.now), "nothing is due");
    exit(&mut rig, 2, 0);
    rig.pass(3_500_000);
    assert_eq!(runs(&rig), 1);
    rig.pass(200_000);
    assert_eq!((runs(&rig), rig.grid.ledger().jobs().count()), (0, 0));
    restart(&mut rig);
    assert_eq!(runs(&rig), 0);
}

#[test]
fn too_many_finished_tasks_take_whole_flows_with_them() {
    let settings = "[general]\nfinished_max = 5\n[[queue]]\nname = \"q\"\n";
    let mut rig = Rig::new(settings, &[("h1", 4)]);
    for flow_number in 0..4 {
        run(&mut rig, flow(&[("a", ""), ("b", "a")], ""));
        exit(&mut rig, flow_number * 2 + 1, 0);
        exit(&mut rig, flow_number * 2 + 2, 0);
    }
    let left: Vec<u64> = rig.grid.ledger().flows().map(|(id, _)| id.0).collect();
    assert_eq!(left, [3, 4]);
    assert_eq!(rig.grid.ledger().jobs().count(), 4);
}

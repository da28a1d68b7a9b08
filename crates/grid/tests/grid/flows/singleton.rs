//! Steps of which one run at a time has its turn: `singleton()` in flows.

use forebay_grid::Event;
use forebay_grid::config::OnNever;
use forebay_grid::event::Verb;
use forebay_grid::flow::event::FlowState;
use forebay_grid::modify::{Changes, Set};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::JobId;

use super::{QUEUE, exit, flow, rerun, restart_with_host, run, state};
use crate::support::{Rig, launched, refusal, spec};

#[test]
fn a_step_waits_for_that_of_earlier_runs_and_the_others_do_not() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    let steps = || flow(&[("a", ""), ("load", "a && singleton()")], "");
    run(&mut rig, steps());
    run(&mut rig, steps());
    assert!(rig.host_of(JobId(3)).is_some(), "only load is one at a time");
    exit(&mut rig, 3, 0);
    assert_eq!(rig.host_of(JobId(4)), None, "that of the first run has its turn");
    restart_with_host(&mut rig, "h1", 8);
    exit(&mut rig, 1, 0);
    assert!(rig.host_of(JobId(2)).is_some());
    assert_eq!(rig.host_of(JobId(4)), None);
    assert_eq!(launched(&exit(&mut rig, 2, 1)).len(), 1);
    assert_eq!((state(&rig, 1), state(&rig, 2)), (FlowState::Failed, FlowState::Running));
    // What runs again waits for the one that runs.
    rerun(&mut rig, "u", 1);
    assert_eq!(rig.host_of(JobId(2)), None);
    exit(&mut rig, 4, 0);
    assert!(rig.host_of(JobId(2)).is_some());
    exit(&mut rig, 2, 0);
    assert_eq!([1, 2].map(|flow| state(&rig, flow)), [FlowState::Done; 2]);
}

#[test]
fn a_step_does_not_start_again_to_wait_for_itself() {
    let mut rig = Rig::new(QUEUE, &[("h1", 8)]);
    // A job with the name of a step, submitted before it, that comes to wait for what follows.
    let namesake = JobSpec { name: "f.load".to_owned(), held: true, ..spec() };
    let namesake = rig.submit(JobSpec { on_never: Some(OnNever::Keep), ..namesake });
    run(&mut rig, flow(&[("a", ""), ("load", "a && singleton()"), ("end", "load")], ""));
    exit(&mut rig, 2, 1);
    assert_eq!(state(&rig, 1), FlowState::Failed);
    let depends = Some(Set::To("done(4)".parse().unwrap()));
    let changes = Box::new(Changes { depends, ..Changes::default() });
    rig.send(Event::Modify { by: "u".parse().unwrap(), job: namesake, changes });
    let said = refusal(&rerun(&mut rig, "u", 1));
    assert!(said.contains("job 3 would wait for itself: it waits for job 1 (same name"), "{said}");
    // Nor does a job before it, which would let it wait again.
    let said = refusal(&rig.command("u", JobId(2), Verb::Requeue));
    assert!(said.contains("would wait for itself"), "{said}");
    rig.command("u", namesake, Verb::Kill);
    assert_eq!(launched(&rerun(&mut rig, "u", 1)).len(), 1);
    for job in 2..=4 {
        exit(&mut rig, job, 0);
    }
    assert_eq!(state(&rig, 1), FlowState::Done);
}

//! Jobs that may not begin yet, and jobs that must have ended by a time.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::Effect;
use forebay_grid::event::{KillReason, Verb};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::spec::JobSpec;
use forebay_grid::state::JobState;
use forebay_grid::task::{Cause, Task};
use forebay_grid::vocabulary::{JobId, Moment, TaskId};

fn begins(at: u64) -> JobSpec {
    JobSpec { begin: Some(Moment(at)), ..spec() }
}

fn until(at: u64) -> JobSpec {
    JobSpec { deadline: Some(Moment(at)), ..spec() }
}

fn cause(rig: &Rig, job: JobId) -> Option<Cause> {
    match rig.grid.ledger().task(TaskId::only(job))? {
        Task::Finished(finish) => Some(finish.cause),
        Task::Pending(_) | Task::Held(_) | Task::Active(_) => None,
    }
}

fn reasons(rig: &Rig, job: JobId) -> Vec<Reason> {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { reasons, .. }) => reasons,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_starts_at_its_begin_time_and_not_before() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let job = rig.submit(begins(5000));
    assert_eq!(rig.host_of(job), None);
    assert_eq!(reasons(&rig, job), [Reason::Begin { at: Moment(5000) }]);
    assert!(rig.grid.next_wake() <= Moment(5000));
    rig.restart();
    rig.join("a", 4, forebay_grid::event::Memory::Kept, Vec::new());
    assert!(launched(&rig.pass(3999)).is_empty(), "it is 4999");
    assert_eq!(launched(&rig.pass(1)).len(), 1);
    // A time that has passed keeps nothing from starting.
    let late = rig.submit(begins(4000));
    assert!(rig.host_of(late).is_some());
    // Nor does a release before its time.
    let held = rig.submit(JobSpec { held: true, ..begins(9000) });
    rig.command("u", held, Verb::Release);
    assert_eq!(rig.host_of(held), None);
    assert_eq!(launched(&rig.pass(4000)).len(), 1);
}

#[test]
fn an_array_and_a_job_with_a_dependency_wait_for_their_begin_time() {
    let mut rig = Rig::new("", &[("a", 9)]);
    let array = JobSpec { array: Some("[1-3]".parse().unwrap()), ..begins(5000) };
    rig.submit(array);
    let first = rig.submit(spec());
    let depends = Some(format!("done({first})").parse().unwrap());
    let second = rig.submit(JobSpec { depends, ..begins(6000) });
    rig.start(TaskId::only(first));
    rig.exit(TaskId::only(first), 0);
    assert_eq!(rig.host_of(second), None, "its dependency holds, its time has not come");
    assert_eq!(launched(&rig.pass(4000)).len(), 3);
    assert_eq!(launched(&rig.pass(1000)).len(), 1);
}

#[test]
fn a_job_is_ended_at_its_deadline_whether_it_runs_or_waits() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let runs = rig.submit(until(5000));
    let waits = rig.submit(until(5000));
    rig.start(TaskId::only(runs));
    assert!(rig.grid.next_wake() <= Moment(5000));
    let effects = rig.pass(4000);
    let kills = |effect: &&Effect| matches!(effect, Effect::Kill { why: KillReason::Deadline, .. });
    assert_eq!(effects.iter().filter(kills).count(), 1, "{effects:?}");
    assert_eq!(cause(&rig, waits), Some(Cause::Deadline));
    // However it ends now, its time was over.
    rig.exit(TaskId::only(runs), 0);
    assert_eq!(cause(&rig, runs), Some(Cause::Deadline));
    assert_eq!(Cause::Deadline.state(None), JobState::Deadline);
    rig.restart();
    assert!(refusal(&rig.command("u", runs, Verb::Requeue)).contains("has passed"));
}

#[test]
fn a_requeue_is_overtaken_by_the_deadline() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let job = rig.submit(until(5000));
    rig.start(TaskId::only(job));
    rig.command("u", job, Verb::Requeue);
    rig.pass(4000);
    rig.exit(TaskId::only(job), 1);
    assert_eq!(cause(&rig, job), Some(Cause::Deadline));
}

#[test]
fn times_that_cannot_be_kept_are_refused() {
    let mut rig = Rig::new("", &[("a", 1)]);
    assert!(refusal(&rig.submit_as("u", until(1000))).contains("has passed"));
    let both = JobSpec { begin: Some(Moment(9000)), ..until(9000) };
    assert!(refusal(&rig.submit_as("u", both)).contains("later deadline"));
}

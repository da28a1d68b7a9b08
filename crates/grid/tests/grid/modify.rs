//! Jobs that are changed after they were submitted.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::event::{KillReason, Verb};
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, Moment, TaskId};
use forebay_grid::{Effect, Event};

const QUEUES: &str = "[general]\nadmins = [\"admin\"]\n[[queue]]\nname = \"day\"\n[[queue]]\n\
                      name = \"night\"\npriority = 9\nslots_max = 3\ntime_limit_max = \"1 h\"\n\
                      [[queue]]\nname = \"boss\"\nusers = [\"boss\"]\n";

impl Rig {
    fn modify(&mut self, by: &str, job: JobId, changes: Changes) -> Vec<Effect> {
        let by = by.parse().unwrap();
        self.send(Event::Modify { by, job, changes: Box::new(changes) })
    }

    fn modified(&mut self, job: JobId, changes: Changes) -> Vec<Effect> {
        let effects = self.modify("u", job, changes);
        assert!(matches!(effects[0], Effect::Obeyed { .. }), "{effects:?}");
        effects
    }
}

fn changes() -> Changes {
    Changes::default()
}

fn to_queue(name: &str) -> Changes {
    Changes { queue: Some(name.parse().unwrap()), ..changes() }
}

#[test]
fn a_waiting_job_starts_as_it_was_changed() {
    let mut rig = Rig::new(QUEUES, &[("a", 4)]);
    let first = rig.submit(JobSpec { slots: 3, ..spec() });
    let job = rig.submit(JobSpec { slots: 4, ..spec() });
    assert_eq!(rig.host_of(job), None);
    let effects = rig.modified(job, Changes { slots: Some(1), ..changes() });
    assert_eq!(launched(&effects).len(), 1);
    rig.restart();
    assert_eq!(rig.grid.hosts().next().unwrap().used_slots, 4);
    rig.join("a", 4, forebay_grid::event::Memory::Kept, Vec::new());
    assert_eq!(rig.grid.ledger().job(first).unwrap().spec().slots(), 3);
}

#[test]
fn a_job_goes_to_another_queue_waiting_or_running() {
    let mut rig = Rig::new(QUEUES, &[("a", 1)]);
    let runs = rig.submit(spec());
    let one = rig.submit(spec());
    let two = rig.submit(spec());
    rig.start(TaskId::only(runs));
    rig.modified(two, to_queue("night"));
    rig.modified(runs, to_queue("night"));
    let used = |rig: &Rig, name: &str| {
        rig.grid.queues().find(|queue| queue.name.as_str() == name).unwrap().used_slots
    };
    assert_eq!((used(&rig, "day"), used(&rig, "night")), (0, 1));
    rig.restart();
    // The limit of its queue is that of the one that runs now as well.
    assert!(rig.grid.next_wake() <= Moment(1000 + 3_600_000));
    rig.restart();
    rig.join(
        "a",
        1,
        forebay_grid::event::Memory::Kept,
        vec![forebay_grid::event::RunReport {
            task: TaskId::only(runs),
            attempt: forebay_grid::vocabulary::Attempt(1),
            status: forebay_grid::event::RunStatus::Running,
        }],
    );
    let effects = rig.exit(TaskId::only(runs), 0);
    assert_eq!(launched(&effects)[0].0, TaskId::only(two), "its queue goes first");
    assert_eq!(rig.host_of(one), None);
    let wide = rig.submit(JobSpec { held: true, ..spec() });
    let limit = Changes { time_limit: Some(Set::To(Period::seconds(7200))), ..to_queue("night") };
    assert!(refusal(&rig.modify("u", wide, limit)).contains("at most 1 h"));
    assert!(refusal(&rig.modify("u", wide, to_queue("boss"))).contains("may not"));
    assert!(refusal(&rig.modify("u", wide, to_queue("none"))).contains("no queue"));
}

#[test]
fn the_time_limit_of_a_running_job_can_be_changed() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let job = rig.submit(JobSpec { time_limit: Some(Period::seconds(100)), ..spec() });
    rig.start(TaskId::only(job));
    rig.modified(job, Changes { time_limit: Some(Set::Nothing), ..changes() });
    assert!(rig.pass(80_000).is_empty());
    let shorter = Changes { time_limit: Some(Set::To(Period::seconds(50))), ..changes() };
    let effects = rig.modified(job, shorter);
    let killed = |effects: &[Effect]| {
        let kill = |e: &Effect| matches!(e, Effect::Kill { why: KillReason::TimeLimit, .. });
        effects.iter().any(kill)
    };
    assert!(!killed(&effects) && killed(&rig.pass(0)), "it has run for longer already");
}

#[test]
fn top_and_bottom_order_the_jobs_of_one_user_in_one_queue() {
    let mut rig = Rig::new(QUEUES, &[("a", 1)]);
    let runs = rig.submit(spec());
    let [one, two, three] = [(); 3].map(|()| rig.submit(spec()));
    let rank = |rank| Changes { rank: Some(rank), ..changes() };
    rig.modified(three, rank(Rank::Top));
    rig.modified(one, rank(Rank::Bottom));
    let other =
        rig.submit(JobSpec { queue: Some("night".parse().unwrap()), priority: 5, ..spec() });
    rig.modified(two, rank(Rank::Bottom));
    rig.modified(two, rank(Rank::Top));
    rig.modified(two, rank(Rank::Top));
    let mut order = Vec::new();
    let mut next = runs;
    for _ in 0..4 {
        next = launched(&rig.exit(TaskId::only(next), 0))[0].0.job;
        order.push(next);
    }
    assert_eq!(order, [other, two, three, one]);
    assert!(refusal(&rig.modify("u", next, rank(Rank::Top))).contains("is running"));
}

#[test]
fn a_dependency_can_be_changed_and_a_job_never_waits_for_itself() {
    let mut rig = Rig::new("", &[("a", 9)]);
    let held = rig.submit(JobSpec { held: true, ..spec() });
    let depends = |on: JobId| Some(format!("done({on})").parse().unwrap());
    let waits = rig.submit(JobSpec { depends: depends(held), ..spec() });
    let to = |on: JobId| Changes { depends: depends(on).map(Set::To), ..changes() };
    assert!(refusal(&rig.modify("u", held, to(waits))).contains("wait for itself"));
    assert!(refusal(&rig.modify("u", held, to(held))).contains("wait for itself"));
    let effects = rig.modified(waits, Changes { depends: Some(Set::Nothing), ..changes() });
    assert_eq!(launched(&effects).len(), 1);
    rig.modified(held, to(waits));
    rig.command("u", held, Verb::Release);
    rig.restart();
    rig.join(
        "a",
        9,
        forebay_grid::event::Memory::Kept,
        vec![forebay_grid::event::RunReport {
            task: TaskId::only(waits),
            attempt: forebay_grid::vocabulary::Attempt(1),
            status: forebay_grid::event::RunStatus::Running,
        }],
    );
    assert_eq!(rig.host_of(held), None);
    assert_eq!(launched(&rig.exit(TaskId::only(waits), 0)).len(), 1);
}

#[test]
fn an_array_keeps_what_ran_and_its_throttle_can_be_changed() {
    let mut rig = Rig::new("", &[("a", 9)]);
    let array = JobSpec { array: Some("[1-6]%2".parse().unwrap()), ..spec() };
    let job = rig.submit(array);
    let wider = Changes { running_max: Some(Set::To(4)), ..changes() };
    assert_eq!(launched(&rig.modified(job, wider)).len(), 2);
    let effects = rig.modified(job, Changes { running_max: Some(Set::Nothing), ..changes() });
    assert_eq!(launched(&effects).len(), 2);
    let single = rig.submit(JobSpec { held: true, ..spec() });
    let wider = Changes { running_max: Some(Set::To(4)), ..changes() };
    assert!(refusal(&rig.modify("u", single, wider)).contains("not an array"));
}

#[test]
fn only_the_owner_and_admins_change_a_job_and_only_until_it_has_ended() {
    let mut rig = Rig::new(QUEUES, &[("a", 1)]);
    let job = rig.submit(JobSpec { held: true, ..spec() });
    let named = || Changes { name: Some("x".to_owned()), ..changes() };
    assert!(refusal(&rig.modify("v", job, named())).contains("no job"));
    assert!(matches!(rig.modify("admin", job, named())[0], Effect::Obeyed { tasks: 1 }));
    assert!(refusal(&rig.modify("u", job, changes())).contains("nothing to change"));
    let slots = Changes { slots: Some(2), ..changes() };
    assert!(refusal(&rig.modify("u", job, slots)).contains("no host"));
    rig.command("u", job, Verb::Kill);
    assert!(refusal(&rig.modify("u", job, named())).contains("has ended"));
    let runs = rig.submit(spec());
    let slots = Changes { slots: Some(1), ..changes() };
    assert!(refusal(&rig.modify("u", runs, slots)).contains("is running"));
}

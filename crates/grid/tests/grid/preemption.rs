//! Preemption: jobs of a queue make room for those of a queue that says so, and come back.

use crate::support::{Rig, launched, spec};
use forebay_base::ByteSize;
use forebay_grid::config::Config;
use forebay_grid::event::{KillReason, Verb};
use forebay_grid::grid::{Explanation, HostObstacle, Reason, State};
use forebay_grid::spec::{JobSpec, Rerun, Sharing};
use forebay_grid::vocabulary::{JobId, TaskId};
use forebay_grid::{Effect, Event};

const SUSPEND: &str = "[general]\nadmins = [\"root\"]\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n\
                       [[queue]]\nname = \"urgent\"\npriority = 10\npreempt = [\"day\"]\n\
                       [[queue]]\nname = \"other\"\npriority = 5\n[[queue]]\nname = \"day\"\npriority = 1\n";

fn in_queue(queue: &str, slots: u32) -> JobSpec {
    JobSpec { queue: Some(queue.parse().unwrap()), slots, ..spec() }
}

fn rerunnable(slots: u32) -> JobSpec {
    JobSpec { rerun: Rerun::Rerunnable, ..in_queue("day", slots) }
}

fn requeue() -> String {
    format!("{SUSPEND}preempted = \"requeue\"\n")
}

/// Submits a job and lets it run.
fn run(rig: &mut Rig, spec: JobSpec) -> JobId {
    let job = rig.submit(spec);
    assert!(rig.host_of(job).is_some(), "job {job} has a host");
    rig.start(TaskId::only(job));
    rig.now += 1000;
    job
}

fn is_suspended(rig: &Rig, job: JobId) -> bool {
    matches!(rig.grid.state(TaskId::only(job)), Some(State::Suspended { .. }))
}

fn reasons(rig: &Rig, job: JobId) -> Vec<Reason> {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { reasons, .. }) => reasons,
        Some(Explanation::Placed(placement)) => placement.reasons,
        other => panic!("{other:?}"),
    }
}

fn suspends(effects: &[Effect]) -> Vec<TaskId> {
    let task = |effect: &Effect| match effect {
        Effect::Suspend { task, .. } => Some(*task),
        _ => None,
    };
    effects.iter().filter_map(task).collect()
}

#[test]
fn a_job_of_a_preempting_queue_gets_the_slots_of_the_job_that_began_last() {
    let mut rig = Rig::new(SUSPEND, &[("a", 3)]);
    let (first, second) = (run(&mut rig, in_queue("day", 1)), run(&mut rig, in_queue("day", 2)));
    let effects = rig.submit_as("u", in_queue("urgent", 2));
    let [Effect::Accepted { job }, ..] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(suspends(&effects), [TaskId::only(second)]);
    assert_eq!(launched(&effects).len(), 1);
    // The order to suspend goes before the order to start.
    let place = |of: fn(&Effect) -> bool| effects.iter().position(of).unwrap();
    assert!(
        place(|e| matches!(e, Effect::Suspend { .. }))
            < place(|e| matches!(e, Effect::Launch { .. }))
    );
    assert!(!is_suspended(&rig, first) && is_suspended(&rig, second));
    assert_eq!(reasons(&rig, second), [Reason::Preempted { by: job }]);
    assert_eq!(reasons(&rig, job), [Reason::Preempts { tasks: vec![TaskId::only(second)] }]);
    let said = reasons(&rig, second)[0].to_string();
    assert!(said.contains(&format!("job {job}")) && said.contains("continues"), "{said}");
    assert_eq!(rig.grid.hosts().next().unwrap().used_slots, 3);
}

#[test]
fn a_suspended_job_comes_back_before_others_of_its_queue_and_after_those_of_queues_before_it() {
    let mut rig = Rig::new(SUSPEND, &[("a", 2)]);
    let low = run(&mut rig, in_queue("day", 2));
    let high = run(&mut rig, in_queue("urgent", 2));
    let waiting = rig.submit(in_queue("day", 1));
    let between = rig.submit(in_queue("other", 2));
    assert!(is_suspended(&rig, low));
    assert!(rig.host_of(waiting).is_none() && rig.host_of(between).is_none());
    rig.exit(TaskId::only(high), 0);
    assert!(rig.host_of(between).is_some() && is_suspended(&rig, low));
    let effects = rig.exit(TaskId::only(between), 0);
    let low_task = TaskId::only(low);
    assert!(effects.iter().any(|e| matches!(e, Effect::Resume { task, .. } if *task == low_task)));
    assert!(matches!(rig.grid.state(low_task), Some(State::Running { .. })));
    assert_eq!(reasons(&rig, low), []);
    assert!(rig.host_of(waiting).is_none());
    rig.exit(low_task, 0);
    assert!(rig.host_of(waiting).is_some());
}

#[test]
fn slots_that_are_too_few_for_a_suspended_job_are_not_taken_by_others_of_its_queue() {
    let mut rig = Rig::new(SUSPEND, &[("a", 4), ("b", 1)]);
    let on_b = JobSpec { hosts: "b".parse().unwrap(), ..in_queue("other", 1) };
    let on_b = run(&mut rig, on_b);
    let low = run(&mut rig, in_queue("day", 4));
    let high = run(&mut rig, in_queue("urgent", 2));
    let waiting = rig.submit(in_queue("day", 1));
    assert!(is_suspended(&rig, low) && rig.host_of(waiting).is_none());
    let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(TaskId::only(waiting)) else {
        panic!("it waits")
    };
    assert_eq!(hosts[0].obstacle, Some(HostObstacle::Reserved { job: low }));
    let between = rig.submit(in_queue("other", 2));
    assert_eq!(rig.host_of(between).as_deref(), Some("a"), "its queue goes before");
    rig.exit(TaskId::only(on_b), 0);
    assert_eq!(rig.host_of(waiting).as_deref(), Some("b"));
    rig.exit(TaskId::only(between), 0);
    rig.exit(TaskId::only(high), 0);
    assert!(!is_suspended(&rig, low));
}

#[test]
fn suspended_jobs_keep_their_memory_and_nobody_is_suspended_in_vain() {
    let mut rig = Rig::new(SUSPEND, &[("a", 4)]);
    let with_memory =
        |queue: &str, gib: u64| JobSpec { memory: Some(ByteSize::gib(gib)), ..in_queue(queue, 4) };
    let low = run(&mut rig, with_memory("day", 5));
    let high = rig.submit(with_memory("urgent", 4));
    assert!(
        !is_suspended(&rig, low) && rig.host_of(high).is_none(),
        "8 GiB are not enough for both"
    );
    let fits = rig.submit(with_memory("urgent", 3));
    assert!(is_suspended(&rig, low) && rig.host_of(fits).is_some());
    assert_eq!(rig.grid.hosts().next().unwrap().used_memory_bytes, 8 << 30);
}

#[test]
fn only_queues_that_are_named_make_room_and_not_before_their_grace_is_over() {
    let settings = format!("{SUSPEND}preempt_grace = \"1 min\"\n");
    let mut rig = Rig::new(&settings, &[("a", 1), ("b", 1)]);
    let other = run(&mut rig, in_queue("other", 1));
    let low = run(&mut rig, in_queue("day", 1));
    let high = rig.submit(in_queue("urgent", 1));
    assert!(rig.host_of(high).is_none());
    let wake = rig.grid.next_wake();
    assert!(wake.0 <= 2000 + 60_000, "{wake:?}");
    rig.pass(wake.0 - rig.now);
    assert!(rig.host_of(high).is_some() && is_suspended(&rig, low) && !is_suspended(&rig, other));
}

#[test]
fn the_end_of_a_grace_is_not_forgotten_when_only_queues_before_have_their_turn() {
    let top = "[[queue]]\nname = \"top\"\npriority = 20\n";
    let settings = format!("{SUSPEND}preempt_grace = \"1 min\"\n{top}");
    let mut rig = Rig::new(&settings, &[("a", 1)]);
    let low = run(&mut rig, in_queue("day", 1));
    let high = rig.submit(in_queue("urgent", 1));
    rig.submit(in_queue("top", 1));
    let wake = rig.grid.next_wake();
    assert!(wake.0 <= 1000 + 60_000, "{wake:?}");
    rig.pass(wake.0 - rig.now);
    assert!(rig.host_of(high).is_some() && is_suspended(&rig, low));
}

#[test]
fn a_job_that_is_still_starting_makes_room_once_it_runs() {
    let mut rig = Rig::new(SUSPEND, &[("a", 1)]);
    let low = rig.submit(in_queue("day", 1));
    let high = rig.submit(in_queue("urgent", 1));
    assert!(rig.host_of(high).is_none());
    rig.start(TaskId::only(low));
    assert!(rig.host_of(high).is_some() && is_suspended(&rig, low));
}

#[test]
fn a_requeued_job_makes_room_when_it_has_ended_and_nobody_else_gets_it() {
    let mut rig = Rig::new(&requeue(), &[("a", 2)]);
    let once = run(&mut rig, in_queue("day", 1));
    let again = run(&mut rig, rerunnable(1));
    let effects = rig.submit_as("u", in_queue("urgent", 1));
    let [Effect::Accepted { job }, ..] = effects[..] else { panic!("{effects:?}") };
    let kills: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Kill { task, why, .. } => Some((*task, *why)),
            _ => None,
        })
        .collect();
    assert_eq!(kills, [(TaskId::only(again), KillReason::Preempted)]);
    assert_eq!(reasons(&rig, again), [Reason::Requeued { by: job }]);
    assert!(reasons(&rig, job).contains(&Reason::Awaits { tasks: vec![TaskId::only(again)] }));
    // Looking again ends nobody else.
    let waiting = rig.submit(in_queue("day", 1));
    let more = rig.send(Event::Tick);
    assert!(!more.iter().any(|effect| matches!(effect, Effect::Kill { .. })), "{more:?}");
    rig.exit(TaskId::only(again), 143);
    assert!(rig.host_of(job).is_some() && rig.host_of(waiting).is_none());
    assert!(matches!(rig.grid.state(TaskId::only(again)), Some(State::Pending { attempts: 1 })));
    assert!(matches!(rig.grid.state(TaskId::only(once)), Some(State::Running { .. })));
    // The queue comes first again with the job that was there before.
    rig.exit(TaskId::only(job), 0);
    assert!(rig.host_of(again).is_some() && rig.host_of(waiting).is_none());
}

#[test]
fn two_jobs_that_wait_for_the_same_end_do_not_count_on_it_twice() {
    let mut rig = Rig::new(&requeue(), &[("a", 2)]);
    let low = [run(&mut rig, rerunnable(1)), run(&mut rig, rerunnable(1))];
    rig.submit(in_queue("urgent", 1));
    let requeued = |rig: &Rig| {
        let ending = |job: &&JobId| {
            rig.grid.ledger().task(TaskId::only(**job)).unwrap().run().unwrap().ending.is_some()
        };
        low.iter().filter(ending).count()
    };
    assert_eq!(requeued(&rig), 1);
    rig.submit(in_queue("urgent", 1));
    assert_eq!(requeued(&rig), 2);
    rig.send(Event::Tick);
    assert_eq!(requeued(&rig), 2);
}

#[test]
fn as_few_slots_as_possible_are_taken() {
    let mut rig = Rig::new(SUSPEND, &[("a", 4), ("b", 4)]);
    let on_a = run(&mut rig, JobSpec { hosts: "a".parse().unwrap(), ..in_queue("day", 4) });
    let wide = run(&mut rig, JobSpec { hosts: "b".parse().unwrap(), ..in_queue("day", 3) });
    let narrow = run(&mut rig, JobSpec { hosts: "b".parse().unwrap(), ..in_queue("day", 1) });
    let high = rig.submit(in_queue("urgent", 3));
    assert_eq!(rig.host_of(high).as_deref(), Some("b"));
    assert!(is_suspended(&rig, wide) && !is_suspended(&rig, narrow) && !is_suspended(&rig, on_a));
}

#[test]
fn exclusive_jobs_neither_preempt_nor_are_suspended_for_others() {
    let mut rig = Rig::new(SUSPEND, &[("a", 2)]);
    let alone = |queue: &str| JobSpec { sharing: Sharing::Exclusive, ..in_queue(queue, 1) };
    let low = run(&mut rig, alone("day"));
    let high = rig.submit(in_queue("urgent", 1));
    assert!(rig.host_of(high).is_none() && !is_suspended(&rig, low));
    rig.exit(TaskId::only(low), 0);
    rig.exit(TaskId::only(high), 0);
    let low = run(&mut rig, in_queue("day", 2));
    let high = rig.submit(alone("urgent"));
    assert!(rig.host_of(high).is_none() && !is_suspended(&rig, low));
}

#[test]
fn a_controller_that_starts_again_knows_who_was_preempted() {
    let mut rig = Rig::new(SUSPEND, &[("a", 1)]);
    let low = run(&mut rig, in_queue("day", 1));
    let high = run(&mut rig, in_queue("urgent", 1));
    rig.restart();
    assert_eq!(rig.grid.hosts().next().unwrap().used_slots, 1);
    assert_eq!(reasons(&rig, low), [Reason::Preempted { by: high }]);
    rig.command("u", high, Verb::Kill);
    rig.command("u", low, Verb::Kill);
    assert_eq!(reasons(&rig, low), [Reason::Preempted { by: high }]);
}

#[test]
fn a_preempted_job_of_a_queue_that_is_gone_continues_all_the_same() {
    let mut rig = Rig::new(SUSPEND, &[("a", 1)]);
    let low = run(&mut rig, in_queue("day", 1));
    let high = run(&mut rig, in_queue("urgent", 1));
    assert!(is_suspended(&rig, low));
    rig.configure("[[queue]]\nname = \"other\"\n");
    rig.exit(TaskId::only(high), 0);
    assert!(!is_suspended(&rig, low));
}

#[test]
fn nobody_makes_room_for_a_job_that_is_kept_from_its_licences() {
    let settings = SUSPEND.replacen("[general]\n", "[general]\nreserve_after = \"0 s\"\n", 1);
    let mut rig = Rig::new(&format!("{settings}[resources]\nsas = 2\n"), &[("a", 1), ("b", 1)]);
    let needs = |queue: &str, host: &str, sas: u32| JobSpec {
        hosts: host.parse().unwrap(),
        resources: format!("sas:{sas}").parse().unwrap(),
        ..in_queue(queue, 1)
    };
    run(&mut rig, needs("other", "b", 1));
    let low = run(&mut rig, JobSpec { hosts: "a".parse().unwrap(), ..in_queue("day", 1) });
    rig.submit(needs("urgent", "a", 2));
    let high = rig.submit(needs("urgent", "a", 1));
    assert!(rig.host_of(high).is_none() && !is_suspended(&rig, low));
}

#[test]
fn settings_name_queues_of_lower_priority() {
    let unknown = "[[queue]]\nname = \"a\"\npriority = 2\npreempt = [\"b\"]\n";
    let said = Config::read(unknown).unwrap_err().to_string();
    assert!(said.contains("queue[0].preempt[0] = b: must be the name of a queue"), "{said}");
    let said = Config::read(&format!("{unknown}[[queue]]\nname = \"b\"\npriority = 2\n"));
    let said = said.unwrap_err().to_string();
    assert!(said.contains("lower priority than a"), "{said}");
}

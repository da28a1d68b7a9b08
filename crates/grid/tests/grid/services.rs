//! Services: kept running under a name, with pauses after failures, until they are stopped or given up.

use forebay_grid::Event;
use forebay_grid::event::{KillReason, Memory, Verb};
use forebay_grid::grid::{Explanation, Reason};
use forebay_grid::modify::Changes;
use forebay_grid::service::{Service, ServicePort, ServiceState};
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::task::{Cause, Task};
use forebay_grid::vocabulary::{JobId, Moment, TaskId};
use forebay_grid::{Effect, Grid};

use crate::support::{Rig, launched, refusal, spec};

fn service(name: &str, port: ServicePort) -> JobSpec {
    let service = Service { name: name.parse().unwrap(), port, check: None, address_file: None };
    JobSpec { service: Some(Box::new(service)), ..spec() }
}

fn state(grid: &Grid, job: JobId) -> ServiceState {
    grid.ledger().job(job).unwrap().service().unwrap()
}

fn cause(rig: &Rig, job: JobId) -> Option<Cause> {
    match rig.grid.ledger().task(TaskId::only(job))? {
        Task::Finished(finish) => Some(finish.cause),
        Task::Pending(_) | Task::Held(_) | Task::Active(_) => None,
    }
}

#[test]
fn a_service_that_ends_starts_again_after_a_pause_that_doubles_also_over_a_restart() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let job = rig.submit(service("db", ServicePort::None));
    let task = TaskId::only(job);
    rig.start(task);
    assert!(launched(&rig.exit(task, 0)).is_empty(), "it pauses, although it succeeded");
    assert_eq!(state(&rig.grid, job).not_before, Some(Moment(2000)));
    assert_eq!(launched(&rig.pass(1000)).len(), 1);
    rig.start(task);
    rig.exit(task, 3);
    let Some(Explanation::Waits { reasons, .. }) = rig.grid.explain(task) else { panic!() };
    assert_eq!(reasons, [Reason::Pause { at: Moment(4000), failures: 2 }]);
    assert!(rig.grid.next_wake() <= Moment(4000));
    rig.restart();
    rig.join("a", 4, Memory::Kept, Vec::new());
    assert!(launched(&rig.pass(1999)).is_empty());
    assert_eq!(launched(&rig.pass(1)).len(), 1);
    // Once it has run for long enough, what was before no longer counts.
    rig.start(task);
    rig.pass(60_000);
    rig.exit(task, 1);
    assert_eq!(state(&rig.grid, job).failures, 1);
}

#[test]
fn a_service_is_given_up_after_too_many_failures_in_a_row() {
    let mut rig = Rig::new("[general]\nservice_failures_max = 2\nattempts_max = 1", &[("a", 4)]);
    let job = rig.submit(service("db", ServicePort::None));
    let task = TaskId::only(job);
    for pause in [1000, 2000] {
        rig.start(task);
        rig.exit(task, 1);
        assert_eq!(launched(&rig.pass(pause)).len(), 1);
    }
    rig.start(task);
    rig.exit(task, 1);
    assert_eq!(cause(&rig, job), Some(Cause::AttemptsMax));
    // Its name is free again, and it is not requeued.
    rig.submit(service("db", ServicePort::None));
    let refused = refusal(&rig.command("u", job, Verb::Requeue));
    assert!(refused.contains("forebay service start db"), "{refused}");
}

#[test]
fn a_name_is_unique_among_the_services_of_a_user_that_have_not_ended() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let job = rig.submit(service("db", ServicePort::None));
    let refused = refusal(&rig.submit_as("u", service("db", ServicePort::None)));
    assert!(refused.contains(&format!("job {job}")), "{refused}");
    rig.submit_as("v", service("db", ServicePort::None));
    rig.submit(service("other", ServicePort::None));
    rig.start(TaskId::only(job));
    let killed = rig.command("u", job, Verb::Kill);
    let is_kill = |effect: &Effect| matches!(effect, Effect::Kill { why: KillReason::Asked, .. });
    assert!(killed.iter().any(is_kill), "{killed:?}");
    rig.exit(TaskId::only(job), 143);
    assert_eq!(cause(&rig, job), Some(Cause::Killed));
    rig.submit(service("db", ServicePort::None));
    let array =
        JobSpec { array: Some("[1-2]".parse().unwrap()), ..service("many", ServicePort::None) };
    assert!(refusal(&rig.submit_as("u", array)).contains("array"));
}

#[test]
fn a_restart_starts_it_at_once_also_while_it_pauses() {
    let mut rig = Rig::new("", &[("a", 4)]);
    let job = rig.submit(service("db", ServicePort::None));
    let task = TaskId::only(job);
    rig.start(task);
    rig.command("u", job, Verb::Requeue);
    assert_eq!(launched(&rig.exit(task, 143)).len(), 1, "at once");
    assert_eq!(state(&rig.grid, job).failures, 0);
    rig.start(task);
    rig.exit(task, 1);
    let again = rig.command("u", job, Verb::Requeue);
    assert!(matches!(again[0], Effect::Obeyed { tasks: 1 }), "{again:?}");
    assert_eq!(launched(&again).len(), 1);
}

#[test]
fn a_service_whose_host_is_lost_starts_on_another_one_and_did_not_fail() {
    let mut rig = Rig::new("", &[("a", 4), ("b", 4)]);
    let preferring_a =
        JobSpec { hosts: "a+1 others".parse().unwrap(), ..service("db", ServicePort::Chosen) };
    let job = rig.submit(preferring_a);
    rig.start(TaskId::only(job));
    assert_eq!(rig.host_of(job).as_deref(), Some("a"));
    rig.send(Event::HostLost { host: "a".parse().unwrap() });
    let mut moved = Vec::new();
    for _ in 0..20 {
        rig.load("b", forebay_grid::config::Load::default());
        moved.extend(launched(&rig.pass(10_000)));
    }
    assert_eq!(moved.len(), 1);
    assert_eq!(rig.host_of(job).as_deref(), Some("b"));
    let now = state(&rig.grid, job);
    assert_eq!((now.failures, now.port), (0, Some(30_000)));
}

#[test]
fn the_hosts_of_a_service_that_runs_may_be_changed_and_matter_to_its_next_start() {
    let mut rig = Rig::new("", &[("a", 4), ("b", 4)]);
    let on_a = JobSpec { hosts: "a+1 others".parse().unwrap(), ..service("db", ServicePort::None) };
    let job = rig.submit(on_a);
    let task = TaskId::only(job);
    rig.start(task);
    let changes = Changes { hosts: Some("b+1 others".parse().unwrap()), ..Changes::default() };
    let by = "u".parse().unwrap();
    let changed = rig.send(Event::Modify { by, job, changes: Box::new(changes) });
    assert!(matches!(changed[0], Effect::Obeyed { .. }), "{changed:?}");
    rig.command("u", job, Verb::Requeue);
    rig.exit(task, 143);
    assert_eq!(rig.host_of(job).as_deref(), Some("b"));
}

#[test]
fn ports_are_given_once_and_another_one_where_a_start_failed() {
    let settings = "[general]\nservice_port_min = 100\nservice_port_max = 102";
    let mut rig = Rig::new(settings, &[("a", 9)]);
    let job = rig.submit(service("a", ServicePort::Chosen));
    let other = rig.submit(service("b", ServicePort::Chosen));
    let port = |rig: &Rig, job| state(&rig.grid, job).port.unwrap();
    assert_eq!((port(&rig, job), port(&rig, other)), (100, 101));
    let task = TaskId::only(job);
    let run = rig.grid.ledger().task(task).unwrap().run().unwrap().clone();
    rig.send(Event::Exited {
        host: "a".parse().unwrap(),
        task,
        attempt: run.attempt,
        exit: Exit::NotStarted("port 100 is not free on this host".to_owned()),
        usage: None,
    });
    assert_eq!(port(&rig, job), 102);
    rig.submit(service("c", ServicePort::Chosen));
    let refused = refusal(&rig.submit_as("v", service("d", ServicePort::Chosen)));
    assert!(refused.contains("100 to 102") && refused.contains("service_port_max"), "{refused}");
    let fixed = rig.submit(service("e", ServicePort::Fixed(5432)));
    assert_eq!(port(&rig, fixed), 5432);
    rig.restart();
    assert_eq!(port(&rig, job), 102);
}

#[test]
fn the_default_time_limit_of_a_queue_is_not_for_services_but_its_maximum_is() {
    let queue = |limit: &str| format!("[[queue]]\nname = \"q\"\npriority = 1\n{limit} = \"60 s\"");
    let limit = |settings: &str| {
        let mut rig = Rig::new(settings, &[("a", 4)]);
        let job = rig.submit(service("db", ServicePort::None));
        rig.grid.ledger().task(TaskId::only(job)).unwrap().run().unwrap().limit_ms
    };
    assert_eq!(limit(&queue("time_limit_default")), None);
    assert_eq!(limit(&queue("time_limit_max")), Some(60_000));
}

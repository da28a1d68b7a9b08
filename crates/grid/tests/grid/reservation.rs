//! Reservations: a wide job is not passed for ever, and what passes it does not delay it.

use crate::support::{Rig, launched, spec};
use forebay_base::ByteSize;
use forebay_grid::event::Verb;
use forebay_grid::grid::{Explanation, HostObstacle, Reason};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};

const AFTER: &str =
    "[general]\nreserve_after = \"60 s\"\nlease = \"10 h\"\nhost_timeout = \"11 h\"\n";

fn narrow() -> JobSpec {
    spec()
}

fn wide(slots: u32) -> JobSpec {
    JobSpec { slots, priority: 10, ..spec() }
}

fn limited(seconds: u64) -> JobSpec {
    JobSpec { time_limit: Some(Period::seconds(seconds)), ..spec() }
}

fn reasons(rig: &Rig, job: JobId) -> Vec<Reason> {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { reasons, .. }) => reasons,
        other => panic!("{other:?}"),
    }
}

fn obstacles(rig: &Rig, job: JobId) -> Vec<HostObstacle> {
    match rig.grid.explain(TaskId::only(job)) {
        Some(Explanation::Waits { hosts, .. }) => {
            hosts.into_iter().filter_map(|verdict| verdict.obstacle).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Ends the oldest running narrow job and submits another, `rounds` times, a second each; whether `job` has begun.
fn flood(rig: &mut Rig, running: &mut Vec<TaskId>, job: JobId, rounds: usize) -> bool {
    for _ in 0..rounds {
        rig.now += 1000;
        rig.submit(narrow());
        let ended = running.remove(0);
        let started = launched(&rig.exit(ended, 0));
        running.extend(started.iter().map(|(task, ..)| *task).filter(|task| task.job != job));
        if rig.host_of(job).is_some() {
            return true;
        }
    }
    false
}

#[test]
fn a_wide_job_is_not_passed_for_ever_by_narrow_ones_without_time_limits() {
    let mut rig = Rig::new(AFTER, &[("a", 4)]);
    let mut running: Vec<TaskId> = (0..4).map(|_| TaskId::only(rig.submit(narrow()))).collect();
    for _ in 0..8 {
        rig.submit(narrow());
    }
    let job = rig.submit(wide(4));
    assert!(!flood(&mut rig, &mut running, job, 50), "others may pass for a while");
    assert_eq!(running.len(), 4, "and use all slots meanwhile");
    assert!(matches!(reasons(&rig, job)[..], [Reason::NoHostFits, Reason::Passed { .. }]));
    assert!(flood(&mut rig, &mut running, job, 20), "{:?}", reasons(&rig, job));
}

#[test]
fn what_is_kept_is_kept_while_time_passes_and_through_other_queues() {
    let queues = format!("{AFTER}[[queue]]\nname = \"q\"\npriority = 2\n[[queue]]\nname = \"low\"");
    let mut rig = Rig::new(&queues, &[("a", 4)]);
    let running: Vec<TaskId> = (0..3).map(|_| TaskId::only(rig.submit(narrow()))).collect();
    let job = rig.submit(wide(2));
    let low = || JobSpec { queue: Some("low".parse().unwrap()), ..spec() };
    let passed = rig.submit(low());
    assert!(rig.host_of(passed).is_some(), "the last slot is used while the job may be passed");
    assert_eq!(rig.grid.next_wake().0, 61_000, "time by itself begins to keep slots");
    rig.pass(60_000);
    rig.exit(TaskId::only(passed), 0);
    let waits = rig.submit(low());
    assert_eq!(rig.host_of(waits), None);
    assert_eq!(obstacles(&rig, waits), [HostObstacle::Reserved { job }]);
    let of_job = reasons(&rig, job);
    let said = of_job.last().unwrap().to_string();
    assert!(said.contains("2 slots on a are reserved for it as soon as"), "{said}");
    let started = launched(&rig.exit(running[0], 0));
    assert_eq!(started.iter().map(|start| start.0.job).collect::<Vec<_>>(), [job]);
    assert_eq!(rig.host_of(waits), None, "the host is full");
    rig.exit(running[1], 0);
    assert!(rig.host_of(waits).is_some());
}

#[test]
fn jobs_that_end_before_the_reserved_start_or_use_other_slots_are_backfilled_at_once() {
    let mut rig = Rig::new(AFTER, &[("a", 4), ("b", 1)]);
    let first = TaskId::only(rig.submit(JobSpec {
        slots: 3,
        hosts: "a".parse().unwrap(),
        ..limited(1000)
    }));
    rig.start(first);
    // It fits by the time limit of the first, and then leaves one of four slots.
    let job = rig.submit(wide(3));
    let long = rig.submit(JobSpec { hosts: "a".parse().unwrap(), ..limited(2000) });
    assert_eq!(rig.host_of(long).as_deref(), Some("a"), "what the job leaves anyway");
    rig.exit(TaskId::only(long), 0);
    let longer = rig.submit(JobSpec { hosts: "a".parse().unwrap(), ..narrow() });
    assert_eq!(rig.host_of(longer).as_deref(), Some("a"));
    rig.exit(TaskId::only(longer), 0);
    let job_two = rig.submit(wide(4));
    rig.command("u", job, Verb::Kill);
    // Now nothing is left beside the reserved job.
    let unlimited = rig.submit(JobSpec { hosts: "a".parse().unwrap(), ..narrow() });
    let too_long = rig.submit(JobSpec { hosts: "a".parse().unwrap(), ..limited(1001) });
    assert_eq!((rig.host_of(unlimited), rig.host_of(too_long)), (None, None));
    assert_eq!(obstacles(&rig, too_long)[0], HostObstacle::Reserved { job: job_two });
    let short = rig.submit(JobSpec { hosts: "a".parse().unwrap(), ..limited(1000) });
    assert_eq!(rig.host_of(short).as_deref(), Some("a"));
    let elsewhere = rig.submit(narrow());
    assert_eq!(rig.host_of(elsewhere).as_deref(), Some("b"), "no other host is kept");
    let said = reasons(&rig, job_two).last().unwrap().to_string();
    assert!(
        said.contains("4 slots on a are reserved for it and will be free in 1000 s at the latest"),
        "{said}"
    );
    rig.exit(TaskId::only(short), 0);
    let started = launched(&rig.exit(first, 0));
    assert_eq!(started.first().map(|start| start.0.job), Some(job_two));
}

#[test]
fn a_job_that_lacks_memory_keeps_memory_and_no_slots() {
    let mut rig = Rig::new(AFTER, &[("a", 8)]);
    let with = |gib| JobSpec { memory: Some(ByteSize::gib(gib)), ..spec() };
    let running: Vec<TaskId> = (0..4).map(|_| TaskId::only(rig.submit(with(2)))).collect();
    let job = rig.submit(JobSpec { priority: 1, ..with(6) });
    let free = rig.submit(narrow());
    assert!(rig.host_of(free).is_some());
    rig.pass(60_000);
    rig.exit(running[0], 0);
    let small = rig.submit(with(1));
    assert_eq!(rig.host_of(small), None, "its memory is kept");
    let none = rig.submit(narrow());
    assert!(rig.host_of(none).is_some(), "slots are not what it lacks");
    rig.exit(running[1], 0);
    rig.exit(running[2], 0);
    assert!(rig.host_of(job).is_some());
}

#[test]
fn whoever_was_kept_back_starts_when_the_reserved_job_is_gone() {
    for verb in [Verb::Kill, Verb::Hold] {
        let mut rig = Rig::new(AFTER, &[("a", 2)]);
        rig.submit(narrow());
        let job = rig.submit(wide(2));
        let passed = rig.submit(narrow());
        rig.pass(60_000);
        rig.exit(TaskId::only(passed), 0);
        let back = rig.submit(narrow());
        assert_eq!(rig.host_of(back), None);
        rig.command("u", job, verb);
        assert!(rig.host_of(back).is_some(), "{verb:?}");
    }
}

#[test]
fn a_reservation_begins_again_with_the_controller_and_ends_where_it_is_switched_off() {
    let mut rig = Rig::new(AFTER, &[("a", 2)]);
    rig.submit(narrow());
    rig.submit(wide(2));
    let passed = rig.submit(narrow());
    rig.pass(60_000);
    rig.exit(TaskId::only(passed), 0);
    let back = rig.submit(narrow());
    assert_eq!(rig.host_of(back), None);
    rig.configure(&AFTER.replace("reserve_after = \"60 s\"", "reserved_jobs_max = 0"));
    assert!(rig.host_of(back).is_some());
}

#[test]
fn every_element_of_a_wide_array_and_every_step_of_a_flow_starts_under_a_flood() {
    let mut rig = Rig::new(AFTER, &[("a", 2)]);
    let mut running: Vec<TaskId> = (0..2).map(|_| TaskId::only(rig.submit(narrow()))).collect();
    let array = rig.submit(JobSpec { array: Some("[1-3]".parse().unwrap()), ..wide(2) });
    let mut done = 0;
    for _ in 0..300 {
        rig.now += 1000;
        rig.submit(narrow());
        if running.is_empty() {
            break;
        }
        let ended = running.remove(0);
        done += u32::from(ended.job == array);
        running.extend(launched(&rig.exit(ended, 0)).iter().map(|start| start.0));
    }
    assert_eq!(done, 3);
}

#[test]
fn the_second_that_waits_gets_another_host_and_no_more_than_the_setting_says() {
    let config = AFTER.replace("[general]", "[general]\nreserved_jobs_max = 2");
    let mut rig = Rig::new(&config, &[("a", 2), ("b", 2), ("c", 2)]);
    let on = |host: &str, spec: JobSpec| JobSpec { hosts: host.parse().unwrap(), ..spec };
    let mut held = Vec::new();
    for host in ["a", "b", "c"] {
        held.push(rig.submit(on(host, narrow())));
    }
    let jobs: Vec<JobId> = (0..3)
        .map(|n| {
            rig.submit(JobSpec {
                priority: 9 - n,
                slots: 2,
                project: n.to_string(),
                memory: Some(ByteSize::mib(1 + n as u64)),
                ..spec()
            })
        })
        .collect();
    let passing: Vec<JobId> = ["a", "b", "c"].map(|host| rig.submit(on(host, narrow()))).into();
    rig.pass(60_000);
    for job in passing {
        rig.exit(TaskId::only(job), 0);
    }
    let after: Vec<Option<String>> = (0..3)
        .map(|_| {
            let job = rig.submit(narrow());
            rig.host_of(job)
        })
        .collect();
    assert_eq!(after.iter().flatten().count(), 1, "two of three hosts are kept: {after:?}");
    let kept = |job: &&JobId| matches!(reasons(&rig, **job).last(), Some(Reason::Reserved { .. }));
    assert_eq!(jobs.iter().filter(kept).collect::<Vec<_>>(), [&jobs[0], &jobs[1]]);
}

#[test]
fn a_job_that_lacks_only_devices_is_not_passed_for_ever_by_those_that_need_fewer() {
    let settings = format!("{AFTER}[[host]]\nname = \"a\"\nresources = {{ gpu = 4, fast = 9 }}\n");
    let mut rig = Rig::new(&settings, &[("a", 16)]);
    let gpus = |text: &str, priority: i32| JobSpec {
        resources: text.parse().unwrap(),
        priority,
        ..spec()
    };
    let mut running: Vec<TaskId> =
        (0..4).map(|_| TaskId::only(rig.submit(gpus("gpu:1", 0)))).collect();
    let job = rig.submit(gpus("fast:1,gpu:4", 10));
    let mut rounds = 0;
    while rig.host_of(job).is_none() {
        rounds += 1;
        assert!(rounds < 100, "{:?}", reasons(&rig, job));
        rig.now += 1000;
        let ended = running.remove(0);
        rig.exit(ended, 0);
        // Those that need none of the devices go on starting; what came before may have been kept.
        let other = rig.submit(spec());
        assert!(rig.host_of(other).is_some());
        rig.exit(TaskId::only(other), 0);
        let narrow = rig.submit(gpus("gpu:1", 0));
        if rig.host_of(narrow).is_some() {
            running.push(TaskId::only(narrow));
        }
    }
    assert!(rounds > 50, "others may pass for a while: {rounds}");
}

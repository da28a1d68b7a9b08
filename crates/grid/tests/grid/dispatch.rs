//! Which job goes next, and where: one rule each.

use crate::support;
use crate::support::{Rig, launched, spec};
use forebay_base::ByteSize;
use forebay_grid::config::Load;
use forebay_grid::event::Verb;
use forebay_grid::grid::{Explanation, HostObstacle, Reason, State};
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{JobId, TaskId};

fn in_queue(queue: &str) -> JobSpec {
    JobSpec { queue: Some(queue.parse().unwrap()), ..spec() }
}

fn order_of_starts(rig: &mut Rig, blocker: JobId, jobs: usize) -> Vec<u64> {
    let mut order = Vec::new();
    let mut running = TaskId::only(blocker);
    for _ in 0..jobs {
        let started = launched(&rig.exit(running, 0));
        assert_eq!(started.len(), 1, "one slot, one start");
        running = started[0].0;
        order.push(running.job.0);
    }
    order
}

#[test]
fn queues_of_higher_priority_go_first_and_jobs_of_higher_priority_within_a_user() {
    let mut rig = Rig::new(
        "[[queue]]\nname = \"low\"\npriority = 1\n[[queue]]\nname = \"high\"\npriority = 2",
        &[("h", 1)],
    );
    let blocker = rig.submit(in_queue("low"));
    rig.submit(in_queue("low"));
    rig.submit(in_queue("high"));
    rig.submit(JobSpec { priority: 5, ..in_queue("high") });
    assert_eq!(order_of_starts(&mut rig, blocker, 3), [4, 3, 2]);
}

#[test]
fn users_share_by_what_they_used_and_by_their_shares() {
    let config = "[fair_share]\nrunning_weight = 0.0\nshares = { big = 2 }\n[[queue]]\nname = \"q\"\norder = \"fair_share\"";
    let mut rig = Rig::new(config, &[("h", 1)]);
    let blocker = rig.submit(spec());
    let mut owner = std::collections::BTreeMap::new();
    for (number, user) in (2..).zip(["big", "big", "big", "big", "small", "small"]) {
        rig.submit_as(user, spec());
        owner.insert(number, user);
    }
    let mut running = TaskId::only(blocker);
    let mut order = Vec::new();
    for _ in 0..6 {
        // Half an hour each, so that use weighs; hosts go on reporting.
        for _ in 0..60 {
            rig.now += 30_000;
            rig.load("h", Load::default());
        }
        running = launched(&rig.exit(running, 0))[0].0;
        order.push(owner[&running.job.0]);
    }
    // By hand: 2 / (0.7 * hours of big) against 1 / (0.7 * hours of small), half after five hours.
    assert_eq!(order, ["big", "small", "big", "small", "big", "big"]);
    let first_come = order_of_first_come();
    assert_eq!(first_come, [2, 3, 4]);
}

fn order_of_first_come() -> Vec<u64> {
    let mut rig = Rig::new("", &[("h", 1)]);
    let blocker = rig.submit(spec());
    for user in ["a", "a", "b"] {
        rig.submit_as(user, spec());
    }
    order_of_starts(&mut rig, blocker, 3)
}

#[test]
fn the_preferred_host_is_taken_and_among_equals_the_least_loaded() {
    let mut rig = Rig::new(
        "[[queue]]\nname = \"q\"\nhosts = \"a+1 others+2\"",
        &[("a", 9), ("b", 4), ("c", 4)],
    );
    let hosts: Vec<_> = (0..3)
        .map(|_| {
            let job = rig.submit(spec());
            rig.host_of(job).unwrap()
        })
        .collect();
    assert_eq!(hosts, ["b", "c", "b"]);
    rig.load("b", Load { r15s: 0.1, ..Load::default() });
    rig.load("c", Load { r15s: 3.0, ..Load::default() });
    // b has two of four slots in use; c is busy with something else.
    let job = rig.submit(spec());
    assert_eq!(rig.host_of(job).unwrap(), "b");
    // A job's own list goes before the queue's.
    let job = rig.submit(JobSpec { hosts: "a+5 all".parse().unwrap(), ..spec() });
    assert_eq!(rig.host_of(job).unwrap(), "a");
    let Some(Explanation::Placed(placement)) = rig.grid.explain(TaskId::only(job)) else {
        panic!()
    };
    assert!(placement.to_string().contains("preferred (5)"), "{placement}");
    // Slots run out in order of preference.
    for _ in 0..4 {
        rig.submit(spec());
    }
    let job = rig.submit(spec());
    assert_eq!(rig.host_of(job).unwrap(), "a");
}

#[test]
fn what_does_not_fit_lets_others_pass_and_says_why() {
    let mut rig = Rig::new("", &[("a", 2), ("b", 3)]);
    rig.submit(JobSpec { slots: 2, ..spec() });
    rig.submit(JobSpec { slots: 2, ..spec() });
    let wide = rig.submit(JobSpec { slots: 3, ..spec() });
    let small = rig.submit(spec());
    assert!(rig.host_of(small).is_some());
    let Some(Explanation::Waits { reasons, hosts }) = rig.grid.explain(TaskId::only(wide)) else {
        panic!()
    };
    assert_eq!(reasons[0], Reason::NoHostFits);
    let obstacles: Vec<_> = hosts.iter().filter_map(|verdict| verdict.obstacle).collect();
    assert_eq!(obstacles, [HostObstacle::TooSmall { slots: 2 }, HostObstacle::Slots { free: 0 }]);
}

#[test]
fn memory_is_set_aside() {
    let mut rig = Rig::new("", &[("a", 8)]);
    let with = |gib| JobSpec { memory: Some(ByteSize::gib(gib)), ..spec() };
    let first = rig.submit(with(6));
    let second = rig.submit(with(3));
    assert_eq!((rig.host_of(first).is_some(), rig.host_of(second)), (true, None));
    assert_eq!(launched(&rig.exit(TaskId::only(first), 0))[0].0, TaskId::only(second));
}

#[test]
fn load_keeps_jobs_away_stops_one_with_each_report_and_lets_it_go_on() {
    let config = "[[queue]]\nname = \"q\"\n[queue.load]\nr1m = { schedule = 0.5, stop = 1.0 }";
    let mut rig = Rig::new(config, &[("a", 4)]);
    let load = |r1m| Load { r1m, ..Load::default() };
    let job = rig.submit(spec());
    assert_eq!(rig.host_of(job), None, "no job before the first report");
    rig.load("a", load(0.1));
    rig.start(TaskId::only(job));
    rig.now += 1;
    let second = rig.submit(spec());
    rig.start(TaskId::only(second));
    rig.load("a", load(0.7));
    let waits = rig.submit(spec());
    assert_eq!(rig.host_of(waits), None);
    let suspended = |rig: &mut Rig, r1m| {
        let effects = rig.load("a", load(r1m));
        effects.into_iter().find_map(|effect| match effect {
            forebay_grid::Effect::Suspend { task, .. } => Some((task.job, "suspend")),
            forebay_grid::Effect::Resume { task, .. } => Some((task.job, "resume")),
            _ => None,
        })
    };
    assert_eq!(suspended(&mut rig, 1.5), Some((second, "suspend")));
    assert_eq!(suspended(&mut rig, 1.5), Some((job, "suspend")));
    assert_eq!(suspended(&mut rig, 0.8), None);
    assert_eq!(suspended(&mut rig, 0.4), Some((job, "resume")));
    assert_eq!(suspended(&mut rig, 0.4), Some((second, "resume")));
    assert_eq!(rig.host_of(waits).as_deref(), Some("a"));
}

#[test]
fn what_was_suspended_for_load_goes_on_when_thresholds_or_its_queue_are_out_of_the_settings() {
    const ON_QUEUE: &str = "[[queue]]\nname = \"q\"\n[queue.load]\nr1m = { stop = 1.0 }";
    const ON_HOST: &str =
        "[[queue]]\nname = \"q\"\n[[host]]\nname = \"a\"\n[host.load]\nr1m = { stop = 1.0 }";
    let others = ["[[queue]]\nname = \"q\"", "[[queue]]\nname = \"other\"", ""];
    for (first, then) in [ON_QUEUE, ON_HOST].into_iter().flat_map(|f| others.map(|o| (f, o))) {
        let mut rig = Rig::new(first, &[("a", 4)]);
        let task = TaskId::only(rig.submit(spec()));
        let busy = Load { r1m: 1.5, ..Load::default() };
        rig.load("a", Load::default());
        rig.start(task);
        rig.load("a", busy);
        assert!(matches!(rig.grid.state(task), Some(State::Suspended { .. })));
        rig.configure(then);
        rig.load("a", busy);
        assert!(matches!(rig.grid.state(task), Some(State::Running { .. })), "{first} {then}");
    }
}

#[test]
fn an_interval_starts_jobs_at_its_multiples_and_lets_hosts_rest() {
    let config = "[general]\ndispatch = { interval = { sleep = \"10 s\", accept = 1 } }";
    let mut rig = Rig::new(config, &[("a", 4)]);
    let (one, two) = (rig.submit(spec()), rig.submit(spec()));
    assert_eq!((rig.now, rig.grid.next_wake().0), (1000, 10_000));
    let Some(Explanation::Waits { reasons, .. }) = rig.grid.explain(TaskId::only(one)) else {
        panic!()
    };
    assert!(matches!(reasons[..], [Reason::NextRound { .. }]), "{reasons:?}");
    let starts =
        |rig: &mut Rig, ms| launched(&rig.pass(ms)).iter().map(|l| l.0.job).collect::<Vec<_>>();
    assert_eq!(starts(&mut rig, 8999), []);
    assert_eq!(starts(&mut rig, 1), [one]);
    assert_eq!(starts(&mut rig, 9999), []);
    assert_eq!(starts(&mut rig, 1), [two]);
}

#[test]
fn an_array_is_throttled_and_takes_little() {
    let mut rig = Rig::new("", &[("a", 50)]);
    let job = rig.submit(JobSpec { array: Some("[1-100000:2]%3".parse().unwrap()), ..spec() });
    assert_eq!(rig.grid.ledger().job(job).unwrap().tally().active, 3);
    let next = launched(&rig.exit(TaskId { job, index: 3 }, 0));
    assert_eq!(next[0].0, TaskId { job, index: 7 });
    let bytes = postcard::to_allocvec(&rig.records).unwrap().len();
    assert!(bytes < 2000, "an array is one record: {bytes} bytes");
    assert_eq!(std::mem::size_of::<forebay_grid::task::Task>(), 24);
    rig.command("u", job, Verb::Kill);
    assert_eq!(rig.grid.ledger().job(job).unwrap().tally().pending, 0);
}

#[test]
fn dependencies_let_jobs_start_or_end_them_and_say_that_they_never_will() {
    dependencies_are_followed(false);
}

#[test]
fn dependencies_let_jobs_start_or_say_that_they_never_will_where_such_are_kept() {
    dependencies_are_followed(true);
}

fn dependencies_are_followed(keep: bool) {
    let settings = if keep { "[general]\ndependency_never = \"keep\"" } else { "" };
    let mut rig = Rig::new(settings, &[("a", 50)]);
    let array =
        || JobSpec { array: Some("[1-3]".parse().unwrap()), name: "load".to_owned(), ..spec() };
    let first = rig.submit(array());
    let on = |text: &str| JobSpec { depends: Some(text.parse().unwrap()), ..spec() };
    let jobs: Vec<(JobId, &str)> = [
        "done(load)",
        "done(1[2])",
        "ended(lo*)",
        "exit(1, > 5)",
        "exit(1, > 100)",
        "numdone(1, >= 2)",
        "started(1)",
        "post_done(1[1])",
    ]
    .into_iter()
    .map(|text| (rig.submit(on(text)), text))
    .collect();
    let refused = rig.submit_as("other", on("done(load)"));
    assert!(support::refusal(&refused).contains("no job of the user"));
    assert!(support::refusal(&rig.submit_as("u", on("done(1[4])"))).contains("no job 1[4]"));
    let task = |index| TaskId { job: first, index };
    let started = |rig: &Rig| -> Vec<&str> {
        jobs.iter().filter(|(job, _)| rig.host_of(*job).is_some()).map(|(_, text)| *text).collect()
    };
    for index in 1..4 {
        rig.start(task(index));
    }
    assert_eq!(started(&rig), ["started(1)"]);
    rig.exit(task(2), 0);
    assert_eq!(started(&rig), ["done(1[2])", "started(1)"]);
    rig.exit(task(1), 0);
    rig.exit(task(3), 9);
    let all = ["done(1[2])", "ended(lo*)", "exit(1, > 5)", "numdone(1, >= 2)", "started(1)"];
    assert_eq!(started(&rig), all);
    rig.send(forebay_grid::Event::WorkReleased { task: task(1), requeues: 0, result: Ok(()) });
    assert!(started(&rig).contains(&"post_done(1[1])"));
    for (job, text) in &jobs {
        let never = ["done(load)", "exit(1, > 100)"].contains(text);
        let why = rig.grid.explain(TaskId::only(*job));
        let said = match &why {
            Some(Explanation::Waits { reasons, .. }) if keep => reasons.clone(),
            Some(Explanation::NeverRan { reasons }) if !keep => reasons.clone(),
            _ => Vec::new(),
        };
        let said = said.iter().any(|reason| {
            let text = reason.to_string();
            matches!(reason, Reason::DependencyNever(_))
                && text.contains("1 of 3 elements of job 1 failed")
        });
        assert_eq!(said, never, "{text}: {why:?}");
    }
    // Unless somebody makes it possible again.
    rig.command("u", task(3), Verb::Requeue);
    if !keep {
        let ended = jobs.iter().find(|(_, text)| *text == "done(load)").unwrap().0;
        rig.command("u", ended, Verb::Requeue);
    }
    rig.exit(task(3), 0);
    assert!(started(&rig).contains(&"done(load)"));
}

#[test]
fn a_dependency_that_concerns_too_many_jobs_is_refused() {
    let mut rig = Rig::new("", &[]);
    for _ in 0..101 {
        rig.submit(JobSpec { name: "load".to_owned(), ..spec() });
    }
    let on = |count: usize| {
        let text = vec!["ended(l*)"; count].join(" && ");
        JobSpec { depends: Some(text.parse().unwrap()), ..spec() }
    };
    rig.submit(on(99));
    for count in [100, 1000] {
        let refused = rig.submit_as("u", on(count));
        assert!(support::refusal(&refused).contains("more than 10000 jobs"), "{refused:?}");
    }
}

#[test]
fn a_job_that_waits_for_many_starts_when_the_last_of_them_has_ended() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let jobs: Vec<JobId> =
        (0..300).map(|_| rig.submit(JobSpec { name: "load".to_owned(), ..spec() })).collect();
    let on = |text: &str| JobSpec { depends: Some(text.parse().unwrap()), ..spec() };
    let all = rig.submit(on("ended(l*)"));
    let any = rig.submit(JobSpec { priority: 1, ..on("exit(1) || exit(150) || exit(300)") });
    for job in &jobs {
        assert_eq!(rig.host_of(all), None);
        rig.exit(TaskId::only(*job), u8::from(job.0 == 150));
        if rig.host_of(any).is_some() {
            assert_eq!(job.0, 150);
            rig.exit(TaskId::only(any), 0);
        }
    }
    assert!(rig.host_of(all).is_some());
}

//! What becomes of jobs that run: ends, losses, leases, restarts, limits, rights, sums.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::config::Load;
use forebay_grid::event::{JobSignal, KillReason, Loss, Memory, RunReport, RunStatus, Verb};
use forebay_grid::grid::{Explanation, HostObstacle, State};
use forebay_grid::journal::HostSwitch;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Exit, JobSpec, Rerun, Usage};
use forebay_grid::task::{Cause, Fate};
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};
use forebay_grid::{Effect, Event, Grid, Ledger};

const LEASE: &str = "[general]\nadmins = [\"root\"]\nlease = \"20 s\"\nhost_timeout = \"30 s\"";

fn rerunnable() -> JobSpec {
    JobSpec { rerun: Rerun::Rerunnable, ..spec() }
}

#[test]
fn a_lost_hosts_jobs_start_elsewhere_only_after_the_lease() {
    let mut rig = Rig::new(LEASE, &[("a", 2)]);
    let (job, once) = (rig.submit(rerunnable()), rig.submit(spec()));
    rig.start(TaskId::only(job));
    rig.join("b", 2, Memory::Kept, Vec::new());
    let host: HostName = "a".parse().unwrap();
    rig.send(Event::HostLost { host: host.clone() });
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Unknown { .. })));
    for _ in 0..29 {
        rig.now += 1000;
        assert_eq!(launched(&rig.load("b", Load::default())), []);
    }
    assert_eq!(rig.grid.next_wake(), Moment(rig.now + 1000));
    let effects = rig.pass(1000);
    assert_eq!(launched(&effects), [(TaskId::only(job), Attempt(2), "b".to_owned())]);
    let Some(State::Finished { cause, .. }) = rig.grid.state(TaskId::only(once)) else { panic!() };
    assert_eq!(cause, Cause::HostLost);
    // What the old host says later is stale; what it still runs is ended.
    let before = rig.grid.ledger().clone();
    let (task, attempt) = (TaskId::only(job), Attempt(1));
    rig.send(Event::Exited { host: host.clone(), task, attempt, exit: Exit::Code(0), usage: None });
    assert_eq!(rig.grid.ledger(), &before);
    let report = RunReport { task, attempt, status: RunStatus::Running };
    let effects = rig.join("a", 2, Memory::Kept, vec![report]);
    assert!(effects.contains(&Effect::Kill { task, attempt, host, why: KillReason::Stale }));
    assert_eq!(rig.grid.ledger(), &before);
}

#[test]
fn a_silent_host_is_cut_off_once_so_that_it_joins_anew() {
    let mut rig = Rig::new(LEASE, &[("a", 1)]);
    let host: HostName = "a".parse().unwrap();
    assert_eq!(rig.pass(29_999), []);
    assert_eq!(rig.pass(1), [Effect::Disconnect { host }]);
    // What it says on the old connection counts for nothing, as it was not told everything.
    assert_eq!(rig.load("a", Load::default()), []);
    assert_eq!(rig.pass(60_000), []);
    let job = rig.submit(spec());
    let effects = rig.join("a", 1, Memory::Kept, Vec::new());
    assert_eq!(launched(&effects).len(), 1, "{job}: {effects:?}");
}

#[test]
fn a_grid_that_could_not_listen_takes_no_host_for_silent_and_starts_nothing_without_a_lease() {
    let mut rig = Rig::new(LEASE, &[("a", 2)]);
    let running = rig.submit(rerunnable());
    rig.start(TaskId::only(running));
    rig.now += 100_000;
    rig.grid.excuse_silence(100_000);
    let job = rig.submit(spec());
    assert!(matches!(rig.grid.state(TaskId::only(running)), Some(State::Running { .. })));
    assert_eq!(rig.host_of(job), None, "its lease is over");
    let effects = rig.load("a", Load::default());
    assert_eq!(launched(&effects).len(), 1);
    // One that stays silent is given up after its time.
    rig.send(Event::HostLost { host: "a".parse().unwrap() });
    rig.pass(30_000);
    assert!(matches!(rig.grid.state(TaskId::only(running)), Some(State::Pending { .. })));
}

#[test]
fn a_shorter_lease_does_not_take_back_a_longer_one() {
    let mut rig = Rig::new("[general]\nlease = \"100 s\"\nhost_timeout = \"110 s\"", &[("a", 1)]);
    let job = rig.submit(rerunnable());
    rig.configure("[general]\nlease = \"1 s\"\nhost_timeout = \"2 s\"");
    rig.now += 50_000;
    rig.join("b", 1, Memory::Kept, Vec::new());
    assert_eq!(rig.host_of(job).as_deref(), Some("a"));
    rig.now += 50_000;
    rig.join("b", 1, Memory::Kept, Vec::new());
    assert_eq!(rig.host_of(job).as_deref(), Some("b"));
}

#[test]
fn a_lease_that_was_shortened_counts_over_a_restart_and_over_a_clock_that_is_set() {
    const LONG: &str = "[general]\nlease = \"100 s\"\nhost_timeout = \"110 s\"";
    const SHORT: &str = "[general]\nlease = \"1 s\"\nhost_timeout = \"2 s\"";
    for set_forward_ms in [0, 1_000_000] {
        let mut rig = Rig::new(LONG, &[("a", 1)]);
        let job = rig.submit(rerunnable());
        rig.configure(SHORT);
        let mut out = forebay_grid::Outcome::default();
        rig.grid.skip_time(set_forward_ms, &mut out);
        rig.records.extend(out.records);
        rig.now += set_forward_ms + 10_000;
        rig.restart();
        rig.now += 89_999;
        rig.join("b", 1, Memory::Kept, Vec::new());
        assert_eq!(rig.host_of(job).as_deref(), Some("a"), "its shim may still let it run");
        rig.now += 1;
        rig.join("b", 1, Memory::Kept, Vec::new());
        assert_eq!(rig.host_of(job).as_deref(), Some("b"));
    }
    // A grid without hosts has given out none.
    let mut rig = Rig::new(LONG, &[]);
    rig.configure(SHORT);
    rig.join("a", 1, Memory::Kept, Vec::new());
    let job = rig.submit(rerunnable());
    rig.restart();
    rig.now += 2000;
    rig.join("b", 1, Memory::Kept, Vec::new());
    assert_eq!(rig.host_of(job).as_deref(), Some("b"));
}

#[test]
fn a_controller_that_starts_again_takes_up_what_runs() {
    let mut rig = Rig::new(LEASE, &[("a", 3)]);
    let jobs: Vec<TaskId> = (0..4).map(|_| TaskId::only(rig.submit(spec()))).collect();
    rig.start(jobs[0]);
    let grid = Grid::restore(Ledger::default(), &rig.records, Moment(rig.now + 5000)).unwrap();
    assert_eq!(grid.ledger(), rig.grid.ledger());
    rig.grid = grid;
    rig.now += 5000;
    // One goes on, one ended meanwhile, one never reached the agent.
    let report = |task, status| RunReport { task, attempt: Attempt(1), status };
    let exited = RunStatus::Exited(Exit::Code(0), None);
    let runs = vec![report(jobs[0], RunStatus::Running), report(jobs[1], exited)];
    let effects = rig.join("a", 3, Memory::Kept, runs);
    let started: Vec<_> =
        launched(&effects).into_iter().map(|(task, attempt, _)| (task, attempt)).collect();
    assert_eq!(started, [(jobs[2], Attempt(2)), (jobs[3], Attempt(1))]);
    assert!(matches!(rig.grid.state(jobs[0]), Some(State::Running { .. })));
    assert!(matches!(rig.grid.state(jobs[1]), Some(State::Finished { .. })));
    // A host that came back without its memory may have run it.
    rig.join("a", 3, Memory::Lost, Vec::new());
    let Some(State::Finished { cause, .. }) = rig.grid.state(jobs[3]) else { panic!() };
    assert_eq!(cause, Cause::HostLost);
    // Nobody came back: the jobs are kept for the time that a lease may last.
    let grid = Grid::restore(Ledger::default(), &rig.records, Moment(rig.now)).unwrap();
    assert_eq!(grid.ledger(), rig.grid.ledger());
}

#[test]
fn a_damaged_journal_is_refused() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let job = rig.submit(spec());
    rig.exit(TaskId::only(job), 0);
    let mut records = rig.records.clone();
    records.remove(records.len() - 2);
    let error = Grid::restore(Ledger::default(), &records, Moment(0)).unwrap_err();
    assert!(error.to_string().contains("contradicts the earlier ones"), "{error}");
}

#[test]
fn exit_values_requeue_here_or_elsewhere_and_not_for_ever() {
    let mut rig = Rig::new("[general]\nattempts_max = 3", &[("a", 1), ("b", 1)]);
    let spec = JobSpec { requeue_exits: "99 EXCLUDE(98)".parse().unwrap(), ..spec() };
    let task = TaskId::only(rig.submit(spec));
    assert_eq!(rig.host_of(task.job).as_deref(), Some("a"));
    let effects = rig.exit(task, 98);
    assert!(effects.contains(&Effect::KeepWork { task }));
    assert_eq!(launched(&effects), [(task, Attempt(2), "b".to_owned())]);
    assert_eq!(launched(&rig.exit(task, 99)), [(task, Attempt(3), "b".to_owned())]);
    let effects = rig.exit(task, 99);
    let ended = effects.iter().find_map(|effect| match effect {
        Effect::Ended(record) => Some(record),
        _ => None,
    });
    assert_eq!(ended.unwrap().fate, Fate::Finished(Cause::AttemptsMax));
    assert!(effects.contains(&Effect::ReleaseWork {
        task,
        requeues: 0,
        host: Some("b".parse().unwrap())
    }));
    let ended = |of: &Effect| matches!(of, Effect::JobFinished { job, .. } if *job == task.job);
    assert!(effects.iter().any(ended), "{effects:?}");
}

/// What the agent of a task's host says of it.
fn lose(rig: &mut Rig, task: TaskId, loss: Loss) -> Vec<Effect> {
    let run = rig.grid.ledger().task(task).unwrap().run().expect("it is on a host").clone();
    let host = rig.grid.ledger().host_name(run.host).clone();
    rig.send(Event::Lost { host, task, attempt: run.attempt, loss })
}

#[test]
fn what_its_host_has_lost_starts_again_if_it_may() {
    for loss in [Loss::Lease, Loss::Holder] {
        let mut rig = Rig::new(LEASE, &[("a", 2)]);
        let (again, once) =
            (TaskId::only(rig.submit(rerunnable())), TaskId::only(rig.submit(spec())));
        for task in [again, once] {
            rig.start(task);
        }
        let effects = lose(&mut rig, again, loss.clone());
        assert_eq!(launched(&effects), [(again, Attempt(2), "a".to_owned())]);
        let ended = effects.iter().find_map(|effect| match effect {
            Effect::Ended(record) => Some((record.exit.clone(), record.loss.clone())),
            _ => None,
        });
        assert_eq!(ended, Some((None, Some(loss.clone()))));
        assert_eq!(launched(&lose(&mut rig, once, loss.clone())), []);
        let Some(State::Finished { cause, .. }) = rig.grid.state(once) else { panic!() };
        assert_eq!(cause, Cause::HostLost);
        // Who killed it wanted no second start.
        rig.start(again);
        rig.command("u", again, Verb::Kill);
        lose(&mut rig, again, loss);
        let Some(State::Finished { cause, .. }) = rig.grid.state(again) else { panic!() };
        assert_eq!(cause, Cause::Killed);
    }
}

#[test]
fn a_host_that_cannot_start_jobs_does_not_end_them_and_is_left_alone_for_longer_and_longer() {
    let unable = || Loss::Unable("the disk is full".to_owned());
    let mut rig = Rig::new("[general]\nattempts_max = 4", &[("a", 9)]);
    let task = TaskId::only(rig.submit(spec()));
    let mut attempt = 1;
    for pause in [1000, 2000, 4000] {
        assert_eq!(launched(&lose(&mut rig, task, unable())), []);
        let Some(Explanation::Waits { hosts, .. }) = rig.grid.explain(task) else { panic!() };
        assert!(matches!(hosts[0].obstacle, Some(HostObstacle::Unable { .. })));
        assert_eq!(hosts[0].unable.as_deref(), Some("the disk is full"));
        assert_eq!(rig.grid.next_wake(), Moment(rig.now + pause));
        assert_eq!(launched(&rig.pass(pause - 1)), []);
        attempt += 1;
        assert_eq!(launched(&rig.pass(1)), [(task, Attempt(attempt), "a".to_owned())]);
    }
    // Another host takes what this one cannot.
    let other = TaskId::only(rig.submit(spec()));
    lose(&mut rig, other, unable());
    let effects = rig.join("b", 9, Memory::Kept, Vec::new());
    assert_eq!(launched(&effects), [(other, Attempt(2), "b".to_owned())]);
    lose(&mut rig, task, unable());
    let Some(State::Finished { cause, .. }) = rig.grid.state(task) else { panic!() };
    assert_eq!(cause, Cause::AttemptsMax);
    // One that has begun nobody may call unstarted.
    rig.start(other);
    lose(&mut rig, other, unable());
    let Some(State::Finished { cause, .. }) = rig.grid.state(other) else { panic!() };
    assert_eq!(cause, Cause::HostLost);
}

#[test]
fn why_a_host_could_not_start_a_job_is_told_to_its_user_only() {
    let mut rig = Rig::new("", &[("a", 9)]);
    let task = TaskId::only(rig.submit(spec()));
    lose(&mut rig, task, Loss::Unable("the disk is full".to_owned()));
    let told = |rig: &Rig, task| match rig.grid.explain(task) {
        Some(Explanation::Waits { hosts, .. }) => hosts[0].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&rig, task).unable.as_deref(), Some("the disk is full"));
    let [Effect::Accepted { job }, ..] = rig.submit_as("eve", spec())[..] else { panic!() };
    let of_eve = told(&rig, TaskId::only(job));
    assert_eq!((of_eve.obstacle, of_eve.unable), (told(&rig, task).obstacle, None));
}

#[test]
fn a_reason_why_a_job_was_not_started_is_kept_in_part_if_it_is_long() {
    let mut rig = Rig::new("[general]\nattempts_max = 9", &[("a", 2)]);
    let long = format!("{}{}", "x".repeat(980), "\u{e4}".repeat(1_000_000));
    let (told, unable) = (TaskId::only(rig.submit(spec())), TaskId::only(rig.submit(spec())));
    let reasons = |effects: &[Effect]| -> Vec<usize> {
        let of = |effect: &Effect| match effect {
            Effect::Ended(record) => match (&record.exit, &record.loss) {
                (Some(Exit::NotStarted(reason)), _) | (_, Some(Loss::Unable(reason))) => {
                    Some(reason.len())
                }
                _ => None,
            },
            _ => None,
        };
        effects.iter().filter_map(of).collect()
    };
    assert_eq!(reasons(&lose(&mut rig, unable, Loss::Unable(long.clone()))), [999]);
    let exit = RunStatus::Exited(Exit::NotStarted(long), None);
    let run = RunReport { task: told, attempt: Attempt(1), status: exit };
    assert_eq!(reasons(&rig.join("a", 2, Memory::Kept, vec![run])), [999]);
    let records = postcard::to_allocvec(&rig.records).unwrap();
    assert!(records.len() < 10_000, "{} bytes", records.len());
    let short = "it is not there".to_owned();
    rig.pass(1000);
    assert_eq!(reasons(&lose(&mut rig, unable, Loss::Unable(short.clone()))), [short.len()]);
}

#[test]
fn a_time_limit_ends_a_job_and_does_not_count_suspended_time() {
    let config = "[[queue]]\nname = \"q\"\ntime_limit_default = \"5 s\"\ntime_limit_max = \"10 s\"";
    let mut rig = Rig::new(config, &[("a", 1)]);
    let long = JobSpec { time_limit: Some(Period::seconds(11)), ..spec() };
    assert!(refusal(&rig.submit_as("u", long)).contains("at most 10 s"));
    let task = TaskId::only(rig.submit(spec()));
    rig.start(task);
    rig.pass(3000);
    rig.command("u", task, Verb::Hold);
    rig.pass(20_000);
    let resumed = rig.command("u", task, Verb::Release);
    assert!(resumed.iter().any(|effect| matches!(effect, Effect::Resume { .. })));
    assert_eq!(rig.grid.next_wake(), Moment(rig.now + 2000));
    assert_eq!(rig.pass(1999), []);
    let effects = rig.pass(1);
    assert!(
        matches!(effects[..], [Effect::Kill { why: KillReason::TimeLimit, .. }]),
        "{effects:?}"
    );
    rig.exit(task, 0);
    let Some(State::Finished { cause, .. }) = rig.grid.state(task) else { panic!() };
    assert_eq!(cause, Cause::TimeLimit);
}

#[test]
fn a_job_that_is_held_while_it_starts_is_suspended_once_it_has_started() {
    let host = || "a".parse::<HostName>().unwrap();
    let mut rig = Rig::new("", &[("a", 3)]);
    let job = rig.submit(JobSpec { array: Some("[1-3]".parse().unwrap()), ..spec() });
    let [first, second, third] = [1, 2, 3].map(|index| TaskId { job, index });
    assert_eq!(rig.command("u", job, Verb::Hold), [Effect::Obeyed { tasks: 3 }]);
    assert!(refusal(&rig.command("u", job, Verb::Hold)).contains("is neither waiting nor running"));
    let attempt = Attempt(1);
    let suspend = |task| Effect::Suspend { task, attempt, host: host() };
    assert_eq!(rig.start(first), [suspend(first)]);
    assert!(matches!(rig.grid.state(first), Some(State::Suspended { .. })));
    // It can be released before, and is held also if the host could not start it.
    assert_eq!(rig.command("u", second, Verb::Release), [Effect::Obeyed { tasks: 1 }]);
    assert_eq!(rig.start(second), []);
    lose(&mut rig, third, Loss::Unable("the disk is full".to_owned()));
    assert!(matches!(rig.grid.state(third), Some(State::Held { .. })));
    rig.restart();
    let running = |task| RunReport { task, attempt, status: RunStatus::Running };
    let effects = rig.join("a", 3, Memory::Kept, vec![running(first), running(second)]);
    assert!(effects.contains(&suspend(first)) && !effects.contains(&suspend(second)));
    let effects = rig.command("u", job, Verb::Release);
    assert_eq!(effects[0], Effect::Obeyed { tasks: 2 });
    assert!(effects.contains(&Effect::Resume { task: first, attempt, host: host() }));
    rig.pass(1000);
    assert!(matches!(rig.grid.state(third), Some(State::Starting { .. })));
}

#[test]
fn a_host_on_which_a_job_has_begun_while_nobody_listened_rests_shortly_again() {
    let mut rig = Rig::new("[general]\nattempts_max = 9", &[("a", 9)]);
    let unable = || Loss::Unable("the disk is full".to_owned());
    let tasks: Vec<TaskId> = (0..2).map(|_| TaskId::only(rig.submit(spec()))).collect();
    for pause in [1000, 2000, 4000] {
        lose(&mut rig, tasks[0], unable());
        rig.pass(pause);
    }
    let report = |task, attempt, status| RunReport { task, attempt: Attempt(attempt), status };
    let lost = report(tasks[0], 4, RunStatus::Lost(unable()));
    let runs = vec![report(tasks[1], 1, RunStatus::Running), lost];
    rig.join("a", 9, Memory::Kept, runs);
    assert_eq!(rig.grid.next_wake(), Moment(rig.now + 1000));
}

#[test]
fn run_windows_suspend_and_let_go_on() {
    // Moment 0 is Thursday, 1970-01-01 00:00 UTC.
    let mut rig = Rig::new("[[queue]]\nname = \"q\"\nrun_windows = \"0:00-1:00\"", &[("a", 1)]);
    let task = TaskId::only(rig.submit(spec()));
    rig.start(task);
    let quarter = |rig: &mut Rig| {
        let mut effects = Vec::new();
        for _ in 0..30 {
            rig.now += 30_000;
            effects.extend(rig.load("a", Load::default()));
        }
        effects.retain(|effect| matches!(effect, Effect::Suspend { .. } | Effect::Resume { .. }));
        effects.len()
    };
    assert_eq!((0..3).map(|_| quarter(&mut rig)).sum::<usize>(), 0);
    assert_eq!(quarter(&mut rig), 1);
    assert!(matches!(rig.grid.state(task), Some(State::Suspended { .. })));
    assert_eq!((0..91).map(|_| quarter(&mut rig)).sum::<usize>(), 0);
    assert_eq!(quarter(&mut rig), 1);
    assert!(matches!(rig.grid.state(task), Some(State::Running { .. })));
}

#[test]
fn nobody_touches_anothers_job_but_admins() {
    let mut rig = Rig::new(LEASE, &[("a", 1)]);
    let job = rig.submit(spec());
    for verb in [Verb::Kill, Verb::Hold, Verb::Release, Verb::Requeue] {
        assert_eq!(refusal(&rig.command("eve", job, verb)), format!("there is no job {job}"));
    }
    // Whoever waits for a job learns how it ended, and keeps it from being forgotten.
    let on = |job| JobSpec { depends: Some(format!("exit({job}, 3)").parse().unwrap()), ..spec() };
    for other in [job.0, 77] {
        let refused = rig.submit_as("eve", on(other));
        assert_eq!(refusal(&refused), format!("there is no job {other}"));
    }
    assert!(matches!(rig.submit_as("root", on(job.0))[..], [Effect::Accepted { .. }]));
    let by = "eve".parse().unwrap();
    let host = "a".parse().unwrap();
    let state = HostSwitch::Closed;
    assert!(refusal(&rig.send(Event::Host { by, host, state })).contains("eve may not"));
    let effects = rig.command("root", job, Verb::Kill);
    assert_eq!(effects[0], Effect::Obeyed { tasks: 1 });
    assert!(matches!(effects[1], Effect::Kill { .. }));
    assert!(refusal(&rig.command("root", job, Verb::Kill)).contains("has ended or is about to"));
    rig.exit(TaskId::only(job), 0);
    let Some(State::Finished { cause, .. }) = rig.grid.state(TaskId::only(job)) else { panic!() };
    assert_eq!(cause, Cause::Killed);
}

#[test]
fn a_host_is_removed_once_it_is_gone_and_comes_back_open() {
    let mut rig = Rig::new(LEASE, &[("a", 1), ("b", 1)]);
    let switch = |rig: &mut Rig, state| {
        let (by, host) = ("root".parse().unwrap(), "a".parse().unwrap());
        rig.send(Event::Host { by, host, state })
    };
    let listed = |rig: &Rig| rig.grid.hosts().map(|host| host.name.to_string()).collect::<Vec<_>>();
    assert!(refusal(&switch(&mut rig, HostSwitch::Removed)).contains("it is up"));
    switch(&mut rig, HostSwitch::Closed);
    rig.send(Event::HostLost { host: "a".parse().unwrap() });
    assert!(refusal(&switch(&mut rig, HostSwitch::Removed)).contains("may still be running"));
    rig.pass(3_600_000);
    assert_eq!(switch(&mut rig, HostSwitch::Removed)[..], [Effect::Obeyed { tasks: 0 }]);
    assert_eq!(listed(&rig), ["b"]);
    assert_eq!(refusal(&switch(&mut rig, HostSwitch::Open)), "there is no host a");
    rig.restart();
    assert_eq!(listed(&rig), ["b"]);
    rig.join("a", 1, Memory::Kept, Vec::new());
    assert_eq!(listed(&rig), ["a", "b"]);
    assert!(rig.grid.hosts().all(|host| host.switch == HostSwitch::Open));
}

#[test]
fn a_bad_job_is_refused_and_leaves_no_trace() {
    let config =
        "[general]\ntasks_max = 10\n[[queue]]\nname = \"q\"\nslots_max = 4\nusers = [\"u\"]";
    let mut rig = Rig::new(config, &[]);
    let before = rig.grid.ledger().clone();
    for (user, spec, words) in [
        ("u", JobSpec::default(), "the command is missing"),
        ("u", JobSpec { queue: Some("x".parse().unwrap()), ..spec() }, "no queue x"),
        ("u", JobSpec { slots: 5, ..spec() }, "at most 4"),
        ("eve", spec(), "may not use queue q"),
        (
            "u",
            JobSpec { array: Some("[1-11]".parse().unwrap()), ..spec() },
            "at most 10 unfinished",
        ),
        ("u", JobSpec { name: "a*".to_owned(), ..spec() }, "has no *"),
        ("u", JobSpec { depends: Some("done(7)".parse().unwrap()), ..spec() }, "no job 7"),
    ] {
        let said = refusal(&rig.submit_as(user, spec));
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(rig.grid.ledger(), &before);
}

#[test]
fn the_oldest_finished_jobs_are_forgotten() {
    let mut rig = Rig::new("[general]\nfinished_max = 2", &[("a", 1)]);
    let mut tasks = Vec::new();
    for code in [0, 1, 0] {
        let task = TaskId::only(rig.submit(spec()));
        rig.now += 600;
        rig.exit(task, code);
        tasks.push(task);
    }
    assert_eq!(rig.grid.state(tasks[0]), None, "the oldest is forgotten");
    assert!(rig.grid.state(tasks[1]).is_some());
}

#[test]
fn equal_environments_are_held_once() {
    let mut rig = Rig::new("", &[]);
    let with = |value: &str| {
        let variables = vec![("A".to_owned(), value.to_owned()), ("B".to_owned(), "x".to_owned())];
        JobSpec { environment: variables.into(), ..spec() }
    };
    let jobs = [rig.submit(with("1")), rig.submit(with("2")), rig.submit(with("1"))];
    let of = |place: usize| &rig.grid.ledger().job(jobs[place]).unwrap().spec().environment;
    assert!(of(0).is_shared_with(of(2)));
    assert!(!of(0).is_shared_with(of(1)));
    assert_eq!(of(1)[0].1, "2");
}

#[test]
fn what_an_attempt_used_is_read_as_journals_have_it() {
    let whole = (1.0, 2.0, 3.0, Some(4.0), Some(5u64), 6u64, 7u64, 8u64, 9u64);
    let bytes = (Some(10u64), Some(11u64), Some(12u64), Some(13u64), Some(14u64));
    let more = (Some(15u64), Some(16u64), Some(17.0), None::<f64>, Some(0.5));
    let journaled = postcard::to_allocvec(&(whole, bytes, more)).unwrap();
    let used: Usage = postcard::from_bytes(&journaled).unwrap();
    let expected = Usage {
        real_seconds: 1.0,
        user_seconds: 2.0,
        system_seconds: 3.0,
        io_wait_seconds: Some(4.0),
        peak_memory_bytes: Some(5),
        minor_faults: 6,
        major_faults: 7,
        voluntary_switches: 8,
        involuntary_switches: 9,
        read_bytes: Some(10),
        written_bytes: Some(11),
        work_bytes: Some(12),
        read_calls: Some(13),
        write_calls: Some(14),
        device_read_bytes: Some(15),
        device_written_bytes: Some(16),
        memory_wait_seconds: Some(17.0),
        processor_wait_seconds: None,
        io_pressure_seconds: Some(0.5),
    };
    assert_eq!(used, expected);
}

#[test]
fn whatever_a_job_brings_has_a_bound() {
    let mut rig = Rig::new("", &[]);
    let long = || "x".repeat(4097);
    let cases = [
        (JobSpec { directory: long(), ..spec() }, "directory"),
        (JobSpec { output: Some(long()), ..spec() }, "output"),
        (JobSpec { error: Some(long()), ..spec() }, "error"),
        (JobSpec { command: vec!["x".repeat(3 << 20)], ..spec() }, "command"),
    ];
    for (spec, what) in cases {
        let refused = rig.submit_as("u", spec);
        assert!(refusal(&refused).contains(what), "{what}: {refused:?}");
    }
    let fits = JobSpec { directory: "x".repeat(4096), ..spec() };
    rig.submit(fits);
}

#[test]
fn jobs_that_something_waits_for_do_not_keep_others_from_being_forgotten() {
    let config = "[general]\nfinished_max = 10\nfinished_age = \"1 h\"\nhost_timeout = \"1000 d\"\nlease = \"100 d\"";
    let mut rig = Rig::new(config, &[("a", 1)]);
    let named = |name: &str| JobSpec { name: name.to_owned(), ..spec() };
    let on = |text: &str| JobSpec { depends: Some(text.parse().unwrap()), held: true, ..spec() };
    let ended = |rig: &mut Rig, name: &str| {
        let job = rig.submit(named(name));
        rig.now += 1;
        rig.exit(TaskId::only(job), 0);
        job
    };
    let old: Vec<_> = (0..9).map(|_| ended(&mut rig, "old")).collect();
    let both = rig.submit(on("ended(old*)"));
    let all: Vec<_> = (0..9).map(|_| ended(&mut rig, "all")).collect();
    let other = rig.submit(on("ended(old*) && ended(all*)"));
    for _ in 0..100 {
        ended(&mut rig, "x");
    }
    let known = |rig: &Rig| rig.grid.ledger().jobs().count();
    assert_eq!(known(&rig), 18 + 2 + 10, "those that are waited for, the waiting, finished_max");
    rig.pass(3 * 3_600_000);
    for _ in 0..4 {
        rig.pass(1);
    }
    assert_eq!(known(&rig), 18 + 2);
    assert!(rig.grid.next_wake().0 > rig.now, "nothing is to be done");
    // A requeued job is no finished one, and is one again later.
    rig.command("u", old[0], Verb::Requeue);
    rig.exit(TaskId::only(old[0]), 0);
    rig.command("u", other, Verb::Kill);
    rig.pass(3 * 3_600_000);
    for _ in 0..4 {
        rig.pass(1);
    }
    assert!(all.iter().all(|job| rig.grid.ledger().job(*job).is_none()));
    assert!(old.iter().all(|job| rig.grid.ledger().job(*job).is_some()));
    rig.command("u", both, Verb::Kill);
    rig.pass(3 * 3_600_000);
    for _ in 0..4 {
        rig.pass(1);
    }
    assert_eq!(known(&rig), 0);
    assert_eq!(rig.grid.next_wake().0.max(rig.now + 1), rig.grid.next_wake().0);
}

#[test]
fn a_job_whose_dependency_is_forgotten_is_not_requeued_to_wait_for_ever() {
    let mut rig = Rig::new("[general]\nfinished_max = 1", &[("a", 1)]);
    let first = rig.submit(spec());
    let on = JobSpec { depends: Some("exit(1)".parse().unwrap()), ..spec() };
    let second = rig.submit(on);
    rig.exit(TaskId::only(first), 3);
    rig.now += 1;
    rig.exit(TaskId::only(second), 0);
    rig.pass(1);
    assert_eq!(rig.grid.state(TaskId::only(first)), None);
    let refused = rig.command("u", second, Verb::Requeue);
    assert!(refusal(&refused).contains("no longer known"), "{refused:?}");
}

#[test]
fn a_requeue_does_not_go_over_the_bounds_of_unfinished_tasks() {
    let mut rig = Rig::new("[general]\nuser_tasks_max = 3", &[("a", 5)]);
    let job = rig.submit(JobSpec { array: Some("[1-3]".parse().unwrap()), ..spec() });
    for index in 1..=3 {
        rig.exit(TaskId { job, index }, 1);
    }
    let other = rig.submit(spec());
    let refused = rig.command("u", job, Verb::Requeue);
    assert!(refusal(&refused).contains("at most 3"), "{refused:?}");
    rig.exit(TaskId::only(other), 0);
    assert_eq!(rig.command("u", job, Verb::Requeue)[0], Effect::Obeyed { tasks: 3 });
}

#[test]
fn a_signal_goes_to_what_is_on_a_host_and_to_nothing_else() {
    let mut rig = Rig::new("", &[("a", 1)]);
    let (job, waits) = (rig.submit(spec()), rig.submit(spec()));
    let usr1 = Verb::Signal(JobSignal::Usr1);
    let (task, attempt, signal) = (TaskId::only(job), Attempt(1), JobSignal::Usr1);
    let sent = Effect::Signal { task, attempt, host: "a".parse().unwrap(), signal };
    // Its processes may run already although the host has not said so.
    assert!(rig.command("u", job, usr1).contains(&sent));
    rig.start(TaskId::only(job));
    assert!(rig.command("u", job, usr1).contains(&sent));
    assert!(refusal(&rig.command("u", waits, usr1)).contains("not running"));
    assert!(refusal(&rig.command("v", job, usr1)).contains("no job"));
    for text in ["usr1", "SIGUSR1", "10"] {
        assert_eq!(text.parse(), Ok(JobSignal::Usr1));
    }
    assert!("SEGV".parse::<JobSignal>().unwrap_err().contains("USR1"));
}

//! The controller without sockets and processes: what it promises, and what it still knows afterwards.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::protocol::{
    Answer, Area, AreaKind, AreaView, Ask, Notice, Order, Orphans, Page, RefusalKind, Report, Seen,
};
use forebay_grid::config::Config;
use forebay_grid::event::{Memory, Verb};
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::vocabulary::{Attempt, JobId, Moment, TaskId};
use forebay_store::Store;
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::memory::MemoryStore;

mod support;

type Shared = Arc<FaultyStore<MemoryStore>>;

fn controller(store: &Shared) -> Controller<Shared> {
    let clock = Arc::new(StepClock::new(1_000_000));
    Controller::open(Arc::clone(store), Config::default(), clock).unwrap()
}

fn store() -> Shared {
    Arc::new(FaultyStore::new(MemoryStore::new()))
}

fn ask<S: Store>(controller: &mut Controller<S>, user: &str, ask: Ask) -> Answer {
    let (reply, answer) = channel();
    controller
        .take(vec![Input::Ask { connection: 1, user: user.parse().unwrap(), ask, reply }])
        .unwrap();
    answer.try_recv().expect("an answer")
}

fn submit() -> Ask {
    let spec = JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() };
    Ask::submit(spec)
}

fn join<S: Store>(controller: &mut Controller<S>, connection: u64) -> Receiver<Order> {
    let (outbox, orders) = channel();
    let joined = support::joined("h1", 1, Memory::Kept);
    controller.take(vec![Input::Joined { connection, joined, outbox }]).unwrap();
    orders
}

fn state<S: Store>(controller: &mut Controller<S>, user: &str) -> String {
    match ask(
        controller,
        user,
        Ask::Jobs { target: Some(JobId(1).into()), ended: true, page: Page::default() },
    ) {
        Answer::Jobs { jobs, .. } => jobs[0].state.to_string(),
        answer => format!("{answer:?}"),
    }
}

#[test]
fn what_was_accepted_is_known_to_the_next_controller() {
    let store = store();
    let mut first = controller(&store);
    assert!(matches!(ask(&mut first, "ann", submit()), Answer::Accepted { job: JobId(1) }));
    drop(first);
    assert_eq!(state(&mut controller(&store), "ann"), "pending");
}

#[test]
fn nothing_is_answered_or_ordered_that_is_not_durable() {
    let store = store();
    let mut controller = controller(&store);
    let orders = join(&mut controller, 1);
    let before = orders.try_iter().count();
    assert!(before > 0, "the lease is granted");
    store.fail_commits(1, Fault::Io);
    let (reply, answer) = channel();
    let input = Input::Ask { connection: 1, user: "ann".parse().unwrap(), ask: submit(), reply };
    assert!(controller.take(vec![input]).is_err());
    assert!(answer.try_recv().is_err());
    assert_eq!(orders.try_iter().count(), 0);
}

#[test]
fn a_job_is_launched_noted_and_told_of_when_it_has_ended() {
    let store = store();
    let mut controller = controller(&store);
    let orders = join(&mut controller, 1);
    ask(&mut controller, "ann", submit());
    assert!(orders.try_iter().any(|order| matches!(order, Order::Launch(_))));
    let (task, attempt) = (TaskId::only(JobId(1)), Attempt(1));
    let report = |report| Input::Report { host: "h1".parse().unwrap(), connection: 1, report };
    let (reply, ended) = channel();
    let wait = Input::Ask {
        connection: 1,
        user: "ann".parse().unwrap(),
        ask: Ask::Wait { job: JobId(1) },
        reply,
    };
    controller.take(vec![wait, report(Report::Started { task, attempt, pid: None })]).unwrap();
    assert!(ended.try_recv().is_err());
    let exited = Report::Exited { task, attempt, exit: Exit::Code(7), usage: None };
    controller.take(vec![report(exited)]).unwrap();
    assert!(matches!(ended.try_recv(), Ok(Answer::Ended { value: 7 })));
    let orders: Vec<Order> = orders.try_iter().collect();
    assert!(orders.contains(&Order::Noted { task, attempt }), "{orders:?}");
    assert!(orders.contains(&Order::ReleaseWork { task, requeues: 0 }), "{orders:?}");
    match ask(&mut controller, "ann", Ask::History { target: JobId(1).into(), from: None }) {
        Answer::History { attempts, .. } => assert_eq!(attempts[0].exit, Some(Exit::Code(7))),
        answer => panic!("{answer:?}"),
    }
}

fn exits(code: u8, tasks: &[TaskId]) -> Vec<Input> {
    let exited = |task: &TaskId| {
        let exit = Exit::Code(code);
        let report = Report::Exited { task: *task, attempt: Attempt(1), exit, usage: None };
        Input::Report { host: "h1".parse().unwrap(), connection: 1, report }
    };
    tasks.iter().map(exited).collect()
}

fn listen(controller: &mut Controller<Shared>, ask: Ask) -> Receiver<Answer> {
    let (reply, answers) = channel();
    let user = "ann".parse().unwrap();
    controller.take(vec![Input::Ask { connection: 1, user, ask, reply }]).unwrap();
    assert!(answers.try_recv().is_err(), "it has not ended");
    answers
}

/// A controller with a host for two tasks, and an array of two that it was given.
fn with_an_array(store: &Shared, settings: &str) -> (Controller<Shared>, [TaskId; 2]) {
    let clock = Arc::new(StepClock::new(1_000_000));
    let config = Config::read(settings).unwrap();
    let mut controller = Controller::open(Arc::clone(store), config, clock).unwrap();
    let joined = support::joined("h1", 2, Memory::Kept);
    let outbox = channel().0;
    controller.take(vec![Input::Joined { connection: 1, joined, outbox }]).unwrap();
    let command = vec!["true".to_owned()];
    let array = Some("[1-2]".parse().unwrap());
    ask(&mut controller, "ann", Ask::submit(JobSpec { command, array, ..JobSpec::default() }));
    (controller, [1, 2].map(|index| TaskId { job: JobId(1), index }))
}

#[test]
fn who_waits_for_an_element_is_told_of_its_end_also_once_the_journal_has_space_again() {
    let store = store();
    let (mut controller, tasks) = with_an_array(&store, "");
    let waits = tasks.map(|task| listen(&mut controller, Ask::WaitElement { task }));
    controller.take(exits(5, &tasks[..1])).unwrap();
    assert!(matches!(waits[0].try_recv(), Ok(Answer::Ended { value: 5 })));
    assert!(matches!(waits[1].try_recv(), Err(TryRecvError::Empty)), "it runs");
    store.fail_commits(u64::MAX, Fault::Full);
    controller.take(exits(6, &tasks[1..])).unwrap();
    assert!(matches!(waits[1].try_recv(), Err(TryRecvError::Empty)), "its end is not durable");
    store.heal();
    controller.take(Vec::new()).unwrap();
    assert!(matches!(waits[1].try_recv(), Ok(Answer::Ended { value: 6 })));
}

#[test]
fn who_waits_is_told_of_the_end_of_a_job_that_is_forgotten_with_it() {
    let store = store();
    let settings = "[general]\nuser_finished_max = 1\n";
    let (mut controller, tasks) = with_an_array(&store, settings);
    let job = listen(&mut controller, Ask::Wait { job: JobId(1) });
    let elements = tasks.map(|task| listen(&mut controller, Ask::WaitElement { task }));
    let watched = listen(&mut controller, Ask::Watch { job: JobId(1) });
    controller.take(exits(7, &tasks)).unwrap();
    assert!(state(&mut controller, "ann").contains("NoJob"), "it is forgotten");
    assert!(matches!(job.try_recv(), Ok(Answer::Ended { value: 7 })));
    for element in elements {
        // The history has its end.
        let told = element.try_recv();
        let Ok(Answer::Refused(refusal)) = told else { panic!("{told:?}") };
        assert_eq!(refusal.kind, RefusalKind::NoJob);
    }
    let last = watched.try_iter().last();
    let finished =
        matches!(&last, Some(Answer::Noticed { notice: Notice::Finished { value: 7, .. } }));
    assert!(finished, "{last:?}");
    match ask(&mut controller, "ann", Ask::History { target: JobId(1).into(), from: None }) {
        Answer::History { attempts, .. } => {
            assert_eq!(attempts.iter().map(|of| of.tasks).collect::<Vec<_>>(), [2, 2]);
        }
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_connection_that_was_replaced_changes_nothing() {
    let store = store();
    let mut controller = controller(&store);
    join(&mut controller, 1);
    let orders = join(&mut controller, 2);
    controller.take(vec![Input::Left { host: "h1".parse().unwrap(), connection: 1 }]).unwrap();
    ask(&mut controller, "ann", submit());
    assert!(orders.try_iter().any(|order| matches!(order, Order::Launch(_))));
}

#[test]
fn users_neither_see_nor_touch_jobs_of_others() {
    let store = store();
    let mut controller = controller(&store);
    ask(&mut controller, "ann", submit());
    let target = JobId(1).into();
    for question in [
        Ask::Jobs { target: Some(target), ended: true, page: Page::default() },
        Ask::Explain { target },
        Ask::History { target, from: None },
        Ask::Wait { job: JobId(1) },
        Ask::Watch { job: JobId(1) },
        Ask::Command { target, verb: Verb::Kill },
    ] {
        let answer = ask(&mut controller, "bob", question);
        assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    }
    assert_eq!(state(&mut controller, "ann"), "pending");
}

#[test]
fn one_who_watches_is_told_of_start_end_and_finish_however_late() {
    let store = store();
    let mut controller = controller(&store);
    let _orders = join(&mut controller, 1);
    ask(&mut controller, "ann", submit());
    let (task, attempt) = (TaskId::only(JobId(1)), Attempt(1));
    let report = |report| Input::Report { host: "h1".parse().unwrap(), connection: 1, report };
    let watch = |connection| {
        let (reply, notices) = channel();
        let user = "ann".parse().unwrap();
        (Input::Ask { connection, user, ask: Ask::Watch { job: JobId(1) }, reply }, notices)
    };
    let told = |notices: &Receiver<Answer>| -> Vec<String> {
        let word = |answer| match answer {
            Answer::Noticed { notice: Notice::Started { pid, .. } } => format!("started {pid:?}"),
            Answer::Noticed { notice: Notice::Ended { record } } => format!("{:?}", record.exit),
            Answer::Noticed { notice: Notice::Finished { value, .. } } => format!("value {value}"),
            answer => format!("{answer:?}"),
        };
        notices.try_iter().map(word).collect()
    };
    let (early, from_start) = watch(1);
    let started = Report::Started { task, attempt, pid: Some(4711) };
    controller.take(vec![early]).unwrap();
    controller.take(vec![report(started)]).unwrap();
    assert_eq!(told(&from_start), ["started Some(4711)"]);
    let (late, from_middle) = watch(2);
    controller.take(vec![late]).unwrap();
    assert_eq!(told(&from_middle), ["started Some(4711)"]);
    let exited = Report::Exited { task, attempt, exit: Exit::Code(7), usage: None };
    controller.take(vec![report(exited)]).unwrap();
    let (last, from_end) = watch(3);
    controller.take(vec![last]).unwrap();
    for notices in [&from_start, &from_middle, &from_end] {
        assert_eq!(told(notices), ["Some(Code(7))", "value 7"]);
        assert!(notices.recv().is_err(), "nobody tells any more");
    }
}

#[test]
fn nobody_is_kept_whose_connection_has_ended_and_others_wait_on() {
    let store = store();
    let mut controller = controller(&store);
    ask(&mut controller, "ann", submit());
    let listen = |controller: &mut Controller<Shared>, connection, ask| {
        let (reply, answers) = channel();
        let user = "ann".parse().unwrap();
        controller.take(vec![Input::Ask { connection, user, ask, reply }]).unwrap();
        answers
    };
    let wait = || Ask::Wait { job: JobId(1) };
    let gone = listen(&mut controller, 7, wait());
    let gone_too = listen(&mut controller, 7, Ask::Watch { job: JobId(1) });
    let stays = listen(&mut controller, 8, wait());
    // It went away before its question was looked at.
    let (reply, late) = channel();
    let user = || "ann".parse().unwrap();
    let asked = Input::Ask { connection: 9, user: user(), ask: wait(), reply };
    let closed = |connection| Input::Closed { connection, user: user() };
    controller.take(vec![closed(7), asked, closed(9)]).unwrap();
    for answers in [&gone, &gone_too, &late] {
        assert!(matches!(answers.try_recv(), Err(TryRecvError::Disconnected)), "a sender is kept");
    }
    ask(&mut controller, "ann", Ask::Command { target: JobId(1).into(), verb: Verb::Kill });
    assert!(matches!(stays.try_recv(), Ok(Answer::Ended { value: 137 })));
}

/// An area as a host would tell it.
fn area(job: u64) -> Area {
    Area {
        path: format!("/areas/job-{job}").into(),
        task: TaskId::only(JobId(job)),
        requeues: 0,
        kind: AreaKind::Work,
        aside: false,
        owner: "ann".parse().unwrap(),
        bytes: Some(7),
        made: Moment(1),
        inode: job,
    }
}

#[test]
fn orphans_are_removed_once_every_host_has_answered_and_an_area_counts_once() {
    let store = store();
    let mut controller = controller(&store);
    let hosts = ["h1", "h2"].map(|host| {
        let (outbox, orders) = channel();
        let joined = support::joined(host, 1, Memory::Kept);
        controller.take(vec![Input::Joined { connection: 1, joined, outbox }]).unwrap();
        orders
    });
    ask(&mut controller, "ann", submit());
    let (reply, answer) = channel();
    let question = Ask::Sessions { orphans: Orphans::Removed };
    let user = "ann".parse().unwrap();
    controller.take(vec![Input::Ask { connection: 1, user, ask: question, reply }]).unwrap();
    let asked = |orders: &Receiver<Order>| {
        orders.try_iter().find_map(|order| match order {
            Order::ListAreas { query, .. } => Some(query),
            _ => None,
        })
    };
    let query = asked(&hosts[0]).expect("the host is asked");
    assert_eq!(asked(&hosts[1]), Some(query));
    let report =
        |host: &str, report| Input::Report { host: host.parse().unwrap(), connection: 1, report };
    // Both see the area of the job that is there and of one that nobody knows.
    let areas = |query, more| {
        let seen = Seen { areas: vec![area(1), area(9)], more, faults: Vec::new() };
        Report::Areas { query, seen }
    };
    controller.take(vec![report("h1", areas(query, false))]).unwrap();
    let reaped = |orders: &Receiver<Order>| {
        orders.try_iter().find_map(|order| match order {
            Order::Reap { areas, .. } => Some(areas),
            _ => None,
        })
    };
    assert_eq!(reaped(&hosts[0]), None, "the other host was not heard yet");
    controller.take(vec![report("h2", areas(query, true))]).unwrap();
    assert_eq!(reaped(&hosts[0]), Some(vec![area(9)]));
    assert_eq!(reaped(&hosts[1]), None, "one removes it");
    let removed = Report::Reaped { query, removed: vec![area(9)], faults: Vec::new() };
    controller.take(vec![report("h1", removed)]).unwrap();
    match answer.try_recv() {
        Ok(Answer::Sessions { areas, removed, unknown, faults }) => {
            let jobs = |areas: &[AreaView]| -> Vec<String> {
                areas.iter().map(|area| area.job.clone()).collect()
            };
            assert_eq!(
                (jobs(&areas), jobs(&removed)),
                (vec!["1".to_owned()], vec!["9".to_owned()])
            );
            assert_eq!(unknown, Vec::new());
            assert_eq!(faults, ["h2: there are more; run the command again"]);
        }
        answer => panic!("{answer:?}"),
    }
}

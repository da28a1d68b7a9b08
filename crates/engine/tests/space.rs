//! A journal without space: nothing ends, nothing is lost, and what it takes it gives back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::journal::Journal;
use forebay_engine::protocol::{Answer, Ask, Order, Refusal, RefusalKind, Report};
use forebay_grid::config::{Config, Load};
use forebay_grid::event::{Memory, Verb};
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::vocabulary::{Attempt, JobId, Moment, TaskId};
use forebay_grid::{Event, Grid, Outcome};
use forebay_store::Store;
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::memory::MemoryStore;
use forebay_store::redb::RedbStore;

mod support;

type Shared = Arc<FaultyStore<MemoryStore>>;
type Small = Controller<Shared>;

fn controller(store: &Shared) -> Small {
    let clock = Arc::new(StepClock::new(1_000_000));
    Controller::open(Arc::clone(store), Config::default(), clock).unwrap()
}

fn spec() -> JobSpec {
    JobSpec { command: vec!["true".to_owned()], ..JobSpec::default() }
}

fn send(controller: &mut Small, ask: Ask) -> Receiver<Answer> {
    let (reply, answer) = channel();
    let user = "ann".parse().unwrap();
    controller.take(vec![Input::Ask { connection: 1, user, ask, reply }]).unwrap();
    answer
}

fn report(controller: &mut Small, report: Report) {
    let host = "h1".parse().unwrap();
    controller.take(vec![Input::Report { host, connection: 1, report }]).unwrap();
}

fn refused(answer: &Receiver<Answer>) -> String {
    match answer.try_recv() {
        Ok(Answer::Refused(Refusal { kind: RefusalKind::NoSpace, reason })) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_journal_without_space_is_waited_for_while_leases_go_on_and_nothing_is_lost() {
    let store: Shared = Arc::new(FaultyStore::new(MemoryStore::new()));
    let mut controller = controller(&store);
    let (outbox, orders) = channel();
    let joined = support::joined("h1", 1, Memory::Kept);
    controller.take(vec![Input::Joined { connection: 1, joined, outbox }]).unwrap();
    let running = send(&mut controller, Ask::submit(spec()));
    assert!(matches!(running.try_recv(), Ok(Answer::Accepted { job: JobId(1) })));
    let (task, attempt) = (TaskId::only(JobId(1)), Attempt(1));
    report(&mut controller, Report::Started { task, attempt, pid: None });
    orders.try_iter().count();

    store.fail_commits(u64::MAX, Fault::Full);
    let waiting = send(&mut controller, Ask::submit(spec()));
    assert!(waiting.try_recv().is_err(), "what is not durable was answered");
    for _ in 0..3 {
        report(&mut controller, Report::Load { load: Load::default() });
        let granted: Vec<Order> = orders.try_iter().collect();
        assert!(matches!(granted[..], [Order::Grant { .. }]), "{granted:?}");
    }
    // Whoever wants something else is told why it cannot be had.
    let verb = Verb::Kill;
    for ask in [Ask::submit(spec()), Ask::Command { target: JobId(1).into(), verb }] {
        let reason = refused(&send(&mut controller, ask));
        assert!(reason.contains("journal of this grid cannot be written"), "{reason}");
        assert!(reason.contains("no space left"), "{reason}");
    }
    let hosts = send(&mut controller, Ask::Hosts);
    assert!(matches!(hosts.try_recv(), Ok(Answer::Hosts { trouble: Some(_), .. })));
    // What ends meanwhile waits.
    report(&mut controller, Report::Exited { task, attempt, exit: Exit::Code(0), usage: None });
    assert_eq!(orders.try_iter().count(), 0, "an order was given that is not durable");

    store.heal();
    controller.take(Vec::new()).unwrap();
    assert!(matches!(waiting.try_recv(), Ok(Answer::Accepted { job: JobId(2) })));
    let told: Vec<Order> = orders.try_iter().collect();
    assert!(told.contains(&Order::Noted { task, attempt }), "{told:?}");
    assert!(
        told.iter()
            .any(|order| matches!(order, Order::Launch(launch) if launch.task.job == JobId(2)))
    );
    let queues = send(&mut controller, Ask::Queues);
    assert!(matches!(queues.try_recv(), Ok(Answer::Queues { trouble: None, .. })));
    drop(controller);
    let (_, grid) = Journal::open(Arc::clone(&store), Moment(2_000_000_000)).unwrap();
    assert_eq!(grid.ledger().jobs().count(), 2);
}

#[test]
fn a_controller_that_ends_without_space_has_told_nobody_what_it_could_not_write() {
    let store: Shared = Arc::new(FaultyStore::new(MemoryStore::new()));
    let mut first = controller(&store);
    store.fail_commits(u64::MAX, Fault::Full);
    let answer = send(&mut first, Ask::submit(spec()));
    let (inputs, taken) = channel();
    inputs.send(Input::Stop).unwrap();
    first.run(&taken).unwrap();
    assert!(!matches!(answer.try_recv(), Ok(Answer::Accepted { .. })));
    store.heal();
    let mut second = controller(&store);
    let answer = send(&mut second, Ask::submit(spec()));
    assert!(matches!(answer.try_recv(), Ok(Answer::Accepted { job: JobId(1) })));
}

fn apply<S: Store>(journal: &mut Journal<S>, grid: &mut Grid, event: Event) {
    let mut outcome = Outcome::default();
    grid.apply(Moment(1_000_000), event, &mut outcome);
    let general = grid.ledger().config().general.clone();
    journal.append(&outcome.records, &outcome.effects, &general).unwrap();
}

fn submit(script: &str) -> Event {
    let spec = JobSpec { script: Some(script.to_owned()), held: true, ..spec() };
    Event::Submit { user: "ann".parse().unwrap(), spec: Box::new(spec), key: None }
}

fn kill(job: u64) -> Event {
    Event::Command { by: "ann".parse().unwrap(), target: JobId(job).into(), verb: Verb::Kill }
}

#[test]
fn a_snapshot_without_space_is_written_later_as_it_was() {
    let store: Shared = Arc::new(FaultyStore::new(MemoryStore::new()));
    let (mut journal, mut grid) = Journal::open(Arc::clone(&store), Moment(1_000_000)).unwrap();
    for _ in 0..5 {
        apply(&mut journal, &mut grid, submit("one"));
    }
    store.fail_commits(1, Fault::Full);
    journal.snapshot(grid.ledger()).unwrap();
    // More comes before it is written.
    apply(&mut journal, &mut grid, submit("two"));
    apply(&mut journal, &mut grid, kill(2));
    journal.snapshot(grid.ledger()).unwrap();
    let same = |store: &Shared, grid: &Grid| {
        let (_, read) = Journal::open(Arc::clone(store), Moment(1_000_000)).unwrap();
        assert_eq!(read.ledger(), grid.ledger());
    };
    same(&store, &grid);
    journal.snapshot(grid.ledger()).unwrap();
    same(&store, &grid);
    assert!(store.scan(b"j", b"k", 10).unwrap().is_empty());
}

#[test]
fn the_journal_shrinks_when_scripts_are_forgotten() {
    const JOBS: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::create(folder.path().join("journal.redb")).unwrap());
    let (mut journal, mut grid) = Journal::open(Arc::clone(&store), Moment(1_000_000)).unwrap();
    let mut config = Config::default();
    config.general.finished_max = 0;
    config.general.journal_reserve = forebay_base::ByteSize(0);
    apply(&mut journal, &mut grid, Event::Configured(Box::new(config)));
    let script = "x".repeat(1 << 20);
    for _ in 0..JOBS {
        apply(&mut journal, &mut grid, submit(&script));
        journal.shorten(grid.ledger()).unwrap();
    }
    let large = store.size_bytes().unwrap();
    assert!(large >= JOBS << 20, "{large}");
    // By itself, job by job: what is left to be forgotten is little.
    for job in 1..=JOBS {
        apply(&mut journal, &mut grid, kill(job));
        journal.shorten(grid.ledger()).unwrap();
    }
    let small = store.size_bytes().unwrap();
    println!("{large} bytes became {small}");
    assert!(small <= 64 << 20, "{small} of {large} bytes are left");
    drop(journal);
    let (_, read) = Journal::open(store, Moment(1_000_000)).unwrap();
    assert_eq!(read.ledger(), grid.ledger());
}

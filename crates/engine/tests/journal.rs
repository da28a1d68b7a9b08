//! The journal in the store: what it keeps, how often it writes it, and what it refuses to read.

use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::journal::{Journal, mark_as_logged};
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::account::AttemptRecord;
use forebay_grid::config::Config;
use forebay_grid::event::Verb;
use forebay_grid::flow::event::FlowEvent;
use forebay_grid::flow::{FlowId, FlowSpec};
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::task::{Cause, Fate};
use forebay_grid::vocabulary::{Attempt, JobId, Moment, Target, TaskId};
use forebay_grid::{Effect, Event, Grid, Outcome};
use forebay_store::memory::MemoryStore;
use forebay_store::{Batch, Store};

#[path = "journal/ahead.rs"]
mod ahead;

type Shared = Arc<MemoryStore>;

fn open(store: &Shared) -> (Journal<Shared>, Grid) {
    Journal::open(Arc::clone(store), Moment(1_000_000)).unwrap()
}

/// The number and the bytes of the values of a kind.
fn size(store: &Shared, kind: u8) -> (usize, usize) {
    let values = store.scan(&[kind], &[kind + 1], usize::MAX).unwrap();
    (values.len(), values.iter().map(|(_, value)| value.len()).sum())
}

fn send(journal: &mut Journal<Shared>, grid: &mut Grid, event: Event) {
    let mut outcome = Outcome::default();
    grid.apply(Moment(1_000_000), event, &mut outcome);
    let general = &grid.ledger().config().general;
    journal.append(&outcome.records, &outcome.effects, general).unwrap();
}

fn submit(environment: &str) -> Event {
    let spec = JobSpec {
        command: vec!["true".to_owned()],
        environment: vec![("A".to_owned(), environment.to_owned())].into(),
        ..JobSpec::default()
    };
    Event::Submit { user: "ann".parse().unwrap(), spec: Box::new(spec), key: None }
}

fn kill(job: u64) -> Event {
    let target = Target { job: JobId(job), index: None };
    Event::Command { by: "ann".parse().unwrap(), target, verb: Verb::Kill }
}

#[test]
fn environments_are_written_once_and_go_with_their_last_job() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    let mut config = Config::default();
    config.general.finished_max = 0;
    send(&mut journal, &mut grid, Event::Configured(Box::new(config)));
    let (long, other) = ("x".repeat(50_000), "y".repeat(50_000));
    // Far apart, so that they are not the same memory.
    for job in 0..40 {
        send(&mut journal, &mut grid, submit(if job % 20 == 0 { &long } else { &other }));
    }
    journal.snapshot(grid.ledger()).unwrap();
    assert_eq!(size(&store, b'e').0, 2);
    let (jobs, bytes) = size(&store, b'o');
    assert!(jobs == 40 && bytes < 40 * 200, "{bytes}");
    assert!(size(&store, b's').1 < 2000, "the head does not grow with the jobs");
    let (_, restored) = open(&store);
    assert_eq!(restored.ledger(), grid.ledger());
    let of = |job| &restored.ledger().job(JobId(job)).unwrap().spec().environment;
    assert!(of(1).is_shared_with(of(21)) && of(2).is_shared_with(of(40)));
    for job in [1, 21] {
        send(&mut journal, &mut grid, kill(job));
    }
    journal.snapshot(grid.ledger()).unwrap();
    assert_eq!((size(&store, b'e').0, size(&store, b'o').0), (1, 38));
    assert_eq!(open(&store).1.ledger(), grid.ledger());
}

#[test]
fn a_snapshot_writes_what_has_changed_since_the_last_one() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    for _ in 0..100 {
        send(&mut journal, &mut grid, submit("x"));
    }
    journal.snapshot(grid.ledger()).unwrap();
    // Whoever writes all pieces again would write these, too.
    let mut batch = Batch::default();
    let marked: Vec<_> = store.scan(b"o", b"p", 200).unwrap();
    for (key, value) in &marked {
        let marked = [&value[..], b"mark"].concat();
        batch.changes.insert(key.to_vec(), Some(marked));
    }
    store.commit(&batch).unwrap();
    send(&mut journal, &mut grid, kill(7));
    send(&mut journal, &mut grid, submit("x"));
    journal.snapshot(grid.ledger()).unwrap();
    let left = store.scan(b"o", b"p", 200).unwrap();
    let kept = left.iter().filter(|(_, value)| value.ends_with(b"mark")).count();
    assert_eq!((left.len(), kept), (101, 99));
    assert_eq!(size(&store, b'j').0, 0);
}

#[test]
fn runs_of_flows_are_written_when_they_change_and_go_with_their_record() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    let step = |number: u32| JobSpec {
        name: format!("s{number}"),
        command: vec!["true".to_owned()],
        ..JobSpec::default()
    };
    let user = || "ann".parse().unwrap();
    for _ in 0..20 {
        let steps = (0..100).map(step).collect();
        let spec = Box::new(FlowSpec { name: "f".to_owned(), steps, trigger: None });
        send(
            &mut journal,
            &mut grid,
            Event::Flow(FlowEvent::Run { user: user(), spec, key: None }),
        );
    }
    journal.snapshot(grid.ledger()).unwrap();
    assert_eq!((size(&store, b'f').0, size(&store, b'o').0), (20, 2000));
    assert!(size(&store, b's').1 < 2000, "the head does not grow with the runs");
    assert_eq!(open(&store).1.ledger(), grid.ledger());
    let mut config = Config::default();
    config.general.finished_max = 0;
    send(&mut journal, &mut grid, Event::Configured(Box::new(config)));
    for flow in [FlowId(3), FlowId(7)] {
        let by = user();
        send(&mut journal, &mut grid, Event::Flow(FlowEvent::Kill { by, flow }));
    }
    journal.snapshot(grid.ledger()).unwrap();
    assert_eq!((size(&store, b'f').0, size(&store, b'o').0), (18, 1800));
    assert_eq!(open(&store).1.ledger(), grid.ledger());
}

#[test]
fn a_restart_without_a_snapshot_in_between_knows_what_the_next_one_has_to_write() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    send(&mut journal, &mut grid, submit("x"));
    journal.snapshot(grid.ledger()).unwrap();
    send(&mut journal, &mut grid, kill(1));
    send(&mut journal, &mut grid, submit("y"));
    drop(journal);
    let (mut journal, grid) = open(&store);
    journal.snapshot(grid.ledger()).unwrap();
    assert_eq!(open(&store).1.ledger(), grid.ledger());
}

#[test]
fn a_journal_is_shortened_after_many_bytes_too() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    let long = "x".repeat(100_000);
    for _ in 0..700 {
        send(&mut journal, &mut grid, submit(&long));
        journal.shorten(grid.ledger()).unwrap();
    }
    let batches = size(&store, b'j').0;
    assert!(batches < 100, "{batches} batches of 100 kB each");
}

#[test]
fn a_journal_of_an_unknown_format_is_refused_with_a_reason() {
    let store: Shared = Arc::default();
    drop(open(&store));
    let refused = |value: Option<Vec<u8>>| {
        let mut batch = Batch::default();
        batch.changes.insert(b"v".to_vec(), value);
        batch.changes.insert(b"h".to_vec(), Some(Vec::new()));
        store.commit(&batch).unwrap();
        let opened = Journal::open(Arc::clone(&store), Moment(1)).map(|_| ());
        opened.expect_err("an unknown format").to_string()
    };
    for other in [1, 2, 99_u32] {
        let reason = refused(Some(other.to_be_bytes().to_vec()));
        assert!(reason.contains(&format!("has format {other}, but")), "{reason}");
    }
    assert!(refused(Some(Vec::new())).contains("has format 0"));
    let reason = refused(None);
    assert!(reason.contains("names no format") && reason.contains("move it elsewhere"), "{reason}");
}

#[test]
fn only_a_journal_of_this_format_gets_a_log() {
    let store: Shared = Arc::default();
    let format = || store.get(b"v").unwrap().unwrap();
    mark_as_logged(&store).unwrap();
    assert_eq!(format(), 13_u32.to_be_bytes(), "earlier versions refuse it");
    drop(open(&store));
    for (before, after) in [(12_u32, Some(13_u32)), (13, Some(13)), (11, None)] {
        let mut batch = Batch::default();
        batch.changes.insert(b"v".to_vec(), Some(before.to_be_bytes().to_vec()));
        store.commit(&batch).unwrap();
        assert_eq!(mark_as_logged(&store).is_ok(), after.is_some());
        assert_eq!(format(), after.unwrap_or(before).to_be_bytes());
    }
}

#[test]
fn a_controller_says_so_and_ends_if_the_format_is_unknown() {
    let store: Shared = Arc::default();
    let clock = || Arc::new(StepClock::new(1_000_000));
    let mut controller = Controller::open(Arc::clone(&store), Config::default(), clock()).unwrap();
    let (reply, answer) = channel();
    let user = "ann".parse().unwrap();
    controller.take(vec![Input::Ask { connection: 1, user, ask: Ask::Ping, reply }]).unwrap();
    assert!(matches!(answer.try_recv(), Ok(Answer::Here)));
    drop(controller);
    let mut batch = Batch::default();
    batch.changes.insert(b"v".to_vec(), Some(vec![0, 0, 0, 200]));
    store.commit(&batch).unwrap();
    let opened = Controller::open(store, Config::default(), clock()).map(|_| ());
    assert!(opened.expect_err("an unknown format").to_string().contains("format 200"));
}

#[test]
fn the_history_is_cut_by_number_and_by_age() {
    let store: Shared = Arc::default();
    let (mut journal, _) = open(&store);
    let mut general = Config::default().general;
    general.history_max = 1000;
    general.history_age = "10 d".parse().unwrap();
    let day = 86_400_000;
    let end = |journal: &mut Journal<Shared>, job: u64, at: u64| {
        let effect = Effect::Ended(Box::new(AttemptRecord {
            task: TaskId::only(JobId(job)),
            tasks: 1,
            name: String::new(),
            user: "ann".parse().unwrap(),
            queue: "q".parse().unwrap(),
            project: String::new(),
            host: "h".parse().unwrap(),
            attempt: Attempt(1),
            slots: 1,
            submitted: Moment(at),
            launched: Moment(at),
            started: None,
            ended: Moment(at),
            exit: Some(Exit::Code(0)),
            usage: None,
            loss: None,
            fate: Fate::Finished(Cause::Exited),
        }));
        journal.append(&[], &[effect], &general).unwrap();
    };
    for job in 1..=3000 {
        end(&mut journal, job, 1);
    }
    let (entries, _) = size(&store, b'h');
    assert!((1000..1256).contains(&entries), "{entries}");
    let left = journal.history(JobId(3000).into(), None).unwrap().0;
    assert_eq!((left.len(), journal.history(JobId(1).into(), None).unwrap().0.len()), (1, 0));
    // The next one knows how many there are.
    let (mut journal, _) = open(&store);
    for job in 3001..=3300 {
        end(&mut journal, job, 11 * day);
    }
    assert!(size(&store, b'h').0 <= 300, "those of the first day have gone");
    assert_eq!(journal.history(JobId(3001).into(), None).unwrap().0.len(), 1);
}

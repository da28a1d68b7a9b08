//! What a reader ahead hands over is what a fresh reading gives, whatever was written meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_engine::journal::replay::{Caught, Replay};
use forebay_store::{Bytes, StoreError};

use super::*;

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn copy(store: &MemoryStore) -> Shared {
    let copied = MemoryStore::new();
    let mut batch = Batch::default();
    let pairs = store.scan(&[], &[u8::MAX], usize::MAX).unwrap();
    batch.changes.extend(pairs.into_iter().map(|(key, value)| (key, Some(value))));
    copied.commit(&batch).unwrap();
    Arc::new(copied)
}

fn run_flow() -> Event {
    let step = |name: &str| JobSpec {
        name: name.to_owned(),
        command: vec!["true".to_owned()],
        ..JobSpec::default()
    };
    let steps = vec![step("a"), step("b")];
    let spec = Box::new(FlowSpec { name: "f".to_owned(), steps, trigger: None });
    Event::Flow(FlowEvent::Run { user: "ann".parse().unwrap(), spec, key: None })
}

/// One change of the grid, or a snapshot.
fn change(numbers: &mut Numbers, journal: &mut Journal<Shared>, grid: &mut Grid) {
    match numbers.below(12) {
        0..5 => send(journal, grid, submit(&format!("{}", numbers.below(4)))),
        5..8 => send(journal, grid, kill(1 + numbers.below(40))),
        8 => send(journal, grid, run_flow()),
        9 => {
            let (by, flow) = ("ann".parse().unwrap(), FlowId(1 + numbers.below(5)));
            send(journal, grid, Event::Flow(FlowEvent::Kill { by, flow }));
        }
        10 => {
            let mut config = Config::default();
            config.general.finished_max = u32::try_from(numbers.below(8)).unwrap();
            send(journal, grid, Event::Configured(Box::new(config)));
        }
        _ => journal.snapshot(grid.ledger()).unwrap(),
    }
}

/// Opens copies of a store with what was read ahead and without it, and compares what they know and what they write.
fn compare(store: &MemoryStore, ahead: Replay) {
    let (one, other) = (copy(store), copy(store));
    let now = Moment(1_000_000);
    let (mut fresh_journal, mut fresh) = Journal::open(Arc::clone(&one), now).unwrap();
    let (mut journal, mut grid) =
        Journal::open_after(Arc::clone(&other), Some(ahead), now).unwrap();
    assert_eq!(grid.ledger(), fresh.ledger());
    for (journal, grid) in [(&mut fresh_journal, &mut fresh), (&mut journal, &mut grid)] {
        for event in [submit("1"), submit("new"), kill(2)] {
            send(journal, grid, event);
        }
        journal.snapshot(grid.ledger()).unwrap();
    }
    let all = |store: &Shared| store.scan(&[], &[u8::MAX], usize::MAX).unwrap();
    assert!(all(&one) == all(&other), "the next snapshots differ");
}

#[test]
fn a_journal_that_was_read_ahead_leads_to_what_a_fresh_reading_gives() {
    let mut used = 0;
    for seed in 0..200 {
        let numbers = &mut Numbers(seed);
        let store: Shared = Arc::default();
        let (mut journal, mut grid) = open(&store);
        let mut ahead: Option<Replay> = None;
        for _ in 0..numbers.below(60) {
            change(numbers, &mut journal, &mut grid);
            if numbers.below(3) == 0 {
                match &mut ahead {
                    Some(read) => {
                        if read.catch_up(&store).unwrap() == Caught::Changed {
                            ahead = None;
                        }
                    }
                    None => ahead = Replay::read_ahead(&store).unwrap(),
                }
            }
        }
        if let Some(ahead) = ahead {
            println!("seed {seed}");
            compare(&store, ahead);
            used += 1;
        }
    }
    assert!(used > 50, "{used} seeds had something read ahead");
}

#[test]
fn what_was_read_ahead_of_another_journal_is_not_used() {
    let store: Shared = Arc::default();
    let (mut journal, mut grid) = open(&store);
    send(&mut journal, &mut grid, submit("x"));
    let before = copy(&store);
    send(&mut journal, &mut grid, submit("y"));
    let ahead = || Replay::read_ahead(&store).unwrap().unwrap();
    // The batch that was read last is not there, or is another one.
    assert_eq!(ahead().catch_up(&before).unwrap(), Caught::Changed);
    compare(&before, ahead());
    let (mut journal, mut grid) = open(&before);
    send(&mut journal, &mut grid, submit("another"));
    send(&mut journal, &mut grid, submit("and one more"));
    assert_eq!(ahead().catch_up(&before).unwrap(), Caught::Changed);
    compare(&before, ahead());
    // There is a snapshot since.
    let read = ahead();
    let (mut journal, grid) = open(&store);
    journal.snapshot(grid.ledger()).unwrap();
    compare(&store, read);
}

#[test]
fn an_empty_journal_and_one_of_another_format_are_not_read_ahead() {
    let store: Shared = Arc::default();
    assert!(Replay::read_ahead(&store).unwrap().is_none());
    drop(open(&store));
    assert!(Replay::read_ahead(&store).unwrap().is_some());
    let mut batch = Batch::default();
    batch.changes.insert(b"v".to_vec(), Some(99_u32.to_be_bytes().to_vec()));
    store.commit(&batch).unwrap();
    assert!(Replay::read_ahead(&store).unwrap().is_none());
}

/// A store in which somebody puts a snapshot in place of all batches after so many reads.
struct Moving {
    store: Shared,
    reads: AtomicUsize,
    moves_after: usize,
}

impl Moving {
    fn count(&self) {
        if self.reads.fetch_add(1, Ordering::SeqCst) == self.moves_after {
            let (mut journal, mut grid) = open(&self.store);
            send(&mut journal, &mut grid, kill(1));
            send(&mut journal, &mut grid, submit("z"));
            journal.snapshot(grid.ledger()).unwrap();
            send(&mut journal, &mut grid, submit("z"));
        }
    }
}

impl Store for Moving {
    fn get(&self, key: &[u8]) -> forebay_store::Result<Option<Bytes>> {
        self.count();
        self.store.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> forebay_store::Result<Vec<(Bytes, Bytes)>> {
        self.count();
        self.store.scan(from, to, limit)
    }

    fn commit(&self, _: &Batch) -> forebay_store::Result<()> {
        Err(StoreError::Io("only read".to_owned()))
    }

    fn size_bytes(&self) -> forebay_store::Result<u64> {
        Ok(0)
    }
}

#[test]
fn a_snapshot_in_the_middle_of_the_reading_is_noticed() {
    let begun: Shared = Arc::default();
    let (mut journal, mut grid) = open(&begun);
    for round in 0..3 {
        for _ in 0..4 {
            send(&mut journal, &mut grid, submit("x"));
        }
        if round < 2 {
            journal.snapshot(grid.ledger()).unwrap();
        }
    }
    let (mut whole, mut torn) = (0, 0);
    for moves_after in 0..20 {
        let moving = || Moving { store: copy(&begun), reads: AtomicUsize::new(0), moves_after };
        let store = moving();
        match Replay::read_ahead(&store).unwrap() {
            Some(ahead) => {
                whole += 1;
                compare(&store.store, ahead);
            }
            None => torn += 1,
        }
        // The same while it catches up.
        let store = moving();
        let mut ahead = Replay::read_ahead(&begun).unwrap().unwrap();
        if ahead.catch_up(&store).unwrap() == Caught::Up {
            compare(&store.store, ahead);
        }
    }
    assert!(whole > 2 && torn > 5, "{whole} were read in one piece, {torn} were not");
}

//! The table of locks against an array of bytes.

use forebay_base::{ClientId, Ino, NodeId};

use super::table::{Ask, File, Holder, Kind, Limits, Outcome, Range, Sort, Table, Ticket};

const FILE: File = File { ino: Ino(5), sort: Sort::Fcntl };
const BYTES: usize = 24;
const HOLDERS: usize = 5;

fn holder(number: usize) -> Holder {
    let client = ClientId { node: NodeId(u32::try_from(number % 2).unwrap()), incarnation: 1 };
    Holder { client, owner: number as u64 }
}

fn ask(number: usize, start: u64, end: u64, kind: Kind) -> Ask {
    Ask { holder: holder(number), pid: 1, range: Range { start, end }, kind }
}

fn table() -> Table {
    Table::new(Limits { ranges: 1000, waits: 100 })
}

/// What each holder has locked of each byte.
#[derive(Clone, Default)]
struct Model([[Option<Kind>; BYTES]; HOLDERS]);

impl Model {
    fn is_blocked(&self, number: usize, range: Range, kind: Kind) -> bool {
        (0..HOLDERS).filter(|other| *other != number).any(|other| {
            self.bytes(range).any(|byte| match self.0[other][byte] {
                Some(Kind::Write) => true,
                Some(Kind::Read) => kind == Kind::Write,
                None => false,
            })
        })
    }

    fn bytes(&self, range: Range) -> impl Iterator<Item = usize> + use<> {
        let last = usize::try_from(range.end).unwrap_or(BYTES).min(BYTES - 1);
        usize::try_from(range.start).unwrap()..=last
    }

    fn set(&mut self, number: usize, range: Range, kind: Option<Kind>) {
        for byte in self.bytes(range) {
            self.0[number][byte] = kind;
        }
    }

    fn check(&self, table: &Table) {
        for number in 0..HOLDERS {
            let mut found = [None; BYTES];
            for held in table.held(FILE).iter().filter(|held| held.holder == holder(number)) {
                for byte in self.bytes(held.range) {
                    assert_eq!(found[byte], None, "a byte is locked twice by one holder");
                    found[byte] = Some(held.kind);
                }
            }
            assert_eq!(found, self.0[number], "holder {number}");
            let mut own: Vec<_> =
                table.held(FILE).iter().filter(|held| held.holder == holder(number)).collect();
            own.sort_by_key(|held| held.range.start);
            for pair in own.windows(2) {
                let is_apart = pair[0].range.end + 1 < pair[1].range.start;
                assert!(is_apart || pair[0].kind != pair[1].kind, "neighbours are one range");
            }
        }
    }
}

/// xorshift64*, good enough to pick operations.
struct Random(u64);

impl Random {
    fn pick(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap() % limit
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
    let (mut table, mut model) = (table(), Model::default());
    let mut waiting: Vec<(Ticket, usize, Range, Kind)> = Vec::new();
    for _ in 0..400 {
        let number = random.pick(HOLDERS);
        let (a, b) = (random.pick(BYTES) as u64, random.pick(BYTES) as u64);
        // The last byte of the model stands for all that follow.
        let to_end = a.max(b) == BYTES as u64 - 1;
        let range = Range { start: a.min(b), end: if to_end { u64::MAX } else { a.max(b) } };
        let kind = if random.pick(2) == 0 { Kind::Read } else { Kind::Write };
        match random.pick(10) {
            0..5 => {
                let waits = random.pick(3) == 0;
                let blocked = model.is_blocked(number, range, kind);
                let wanted = Ask { range, ..ask(number, 0, 0, kind) };
                assert_eq!(table.test(FILE, wanted).is_some(), blocked);
                match table.lock(FILE, wanted, waits) {
                    Outcome::Granted => {
                        assert!(!blocked);
                        model.set(number, range, Some(kind));
                    }
                    Outcome::Waiting(ticket) => {
                        assert!(blocked && waits);
                        waiting.push((ticket, number, range, kind));
                    }
                    Outcome::Refused => assert!(blocked && !waits),
                    // Who waits for each other is looked at below.
                    Outcome::Deadlock => assert!(blocked && waits),
                    other => panic!("{other:?}"),
                }
            }
            5..8 => {
                assert!(table.unlock(FILE, holder(number), range));
                model.set(number, range, None);
            }
            8 => {
                table.release(FILE, holder(number));
                waiting.retain(|(_, of, ..)| *of != number);
                model.set(number, Range::ALL, None);
            }
            _ if !waiting.is_empty() => {
                let (ticket, ..) = waiting.remove(random.pick(waiting.len()));
                assert!(!table.cancel(ticket), "it was granted and nobody was told");
            }
            _ => {}
        }
        // Those who waited longest come first.
        let mut granted = std::collections::BTreeSet::new();
        loop {
            let mut any = false;
            for one in &waiting {
                if !granted.contains(&one.0) && !model.is_blocked(one.1, one.2, one.3) {
                    model.set(one.1, one.2, Some(one.3));
                    granted.insert(one.0);
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        waiting.retain(|(ticket, ..)| {
            let is_granted = table.claim(*ticket).expect("it waits");
            assert_eq!(is_granted, granted.contains(ticket), "seed {seed}");
            !is_granted
        });
        model.check(&table);
    }
    (0..HOLDERS).for_each(|number| table.release(FILE, holder(number)));
    assert!(table.is_empty());
}

#[test]
fn random_locks_equal_those_of_an_array_of_bytes() {
    let first = forebay_base::seed::announce("cargo test -p forebay-fs --lib locks");
    (first..first.saturating_add(200)).for_each(run);
}

#[test]
fn who_waits_in_a_circle_is_told_and_others_wait_on() {
    let mut table = table();
    let other = File { ino: Ino(6), ..FILE };
    let write = |number| ask(number, 0, 9, Kind::Write);
    assert_eq!(table.lock(FILE, write(0), false), Outcome::Granted);
    assert_eq!(table.lock(other, write(1), false), Outcome::Granted);
    assert!(matches!(table.lock(other, write(2), true), Outcome::Waiting(_)));
    let Outcome::Waiting(first) = table.lock(FILE, write(1), true) else { panic!("it waits") };
    assert_eq!(table.lock(other, write(0), true), Outcome::Deadlock);
    assert_eq!(table.lock(other, write(0), false), Outcome::Refused);
    assert!(table.unlock(FILE, holder(0), Range::ALL));
    assert_eq!(table.claim(first), Some(true));
}

#[test]
fn a_client_that_is_gone_leaves_no_lock_and_no_wait() {
    let mut table = table();
    let write = |number| ask(number, 0, 9, Kind::Write);
    assert_eq!(table.lock(FILE, write(1), false), Outcome::Granted);
    let Outcome::Waiting(dead) = table.lock(FILE, write(3), true) else { panic!("it waits") };
    let Outcome::Waiting(alive) = table.lock(FILE, write(2), true) else { panic!("it waits") };
    table.release_client(holder(1).client);
    assert_eq!(table.claim(dead), None);
    assert_eq!(table.claim(alive), Some(true));
    table.release(FILE, holder(2));
    assert!(table.is_empty());
}

#[test]
fn an_flock_is_given_up_before_it_changes_its_kind() {
    let mut table = table();
    let file = File { sort: Sort::Flock, ..FILE };
    let whole = |number, kind| Ask { range: Range::ALL, ..ask(number, 0, 0, kind) };
    assert_eq!(table.lock(file, whole(0, Kind::Read), false), Outcome::Granted);
    assert_eq!(table.lock(file, whole(1, Kind::Read), false), Outcome::Granted);
    let Outcome::Waiting(first) = table.lock(file, whole(0, Kind::Write), true) else {
        panic!("it waits")
    };
    assert!(matches!(table.lock(file, whole(1, Kind::Write), true), Outcome::Waiting(_)));
    assert_eq!(table.claim(first), Some(true), "neither waits for ever");
}

#[test]
fn there_are_no_more_ranges_and_waits_than_allowed() {
    let mut table = Table::new(Limits { ranges: 2, waits: 1 });
    let at = |number, start| ask(number, start, start, Kind::Write);
    assert_eq!(table.lock(FILE, ask(0, 0, 9, Kind::Write), false), Outcome::Granted);
    assert_eq!(table.lock(FILE, at(0, 20), false), Outcome::Granted);
    assert_eq!(table.lock(FILE, at(0, 30), false), Outcome::TooManyRanges);
    assert!(!table.unlock(FILE, holder(0), Range { start: 4, end: 5 }), "it would cut one in two");
    assert!(matches!(table.lock(FILE, at(1, 20), true), Outcome::Waiting(_)));
    assert_eq!(table.lock(FILE, at(2, 20), true), Outcome::TooManyWait);
    assert!(table.unlock(FILE, holder(0), Range::ALL));
}

//! Who causes what: operations, bytes and time by the thread that asked, on the way of a request.
//!
//! A request costs one lock that hardly anybody else takes (each thread of the daemon has a shard of its own, up to
//! `SHARDS` of them) and an entry of a small table. Which job a process belongs to is found out elsewhere ([`super::askers`]),
//! from the entries; a process that is new wakes whoever does so, as it may soon be gone.
//!
//! Bounds: `ASKERS_MAX` entries in a shard and `OPENERS_MAX` open files in each of `SHARDS` tables; what comes beyond is
//! booked to nobody.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use forebay_base::{FilesetId, Ino};
use forebay_fs::Growth;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Tables among which threads are spread.
const SHARDS: usize = 64;
/// Most entries of a shard.
const ASKERS_MAX: usize = 2048;
/// Most files of a shard that are open for direct writing.
const OPENERS_MAX: usize = 4096;

/// Who asked: a thread of a process, and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    /// Number of the thread; 0 for the kernel itself (closes, pages that it writes back).
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

impl Who {
    /// The kernel itself, or nobody who is known.
    pub const KERNEL: Who = Who { pid: 0, uid: u32::MAX };

    /// Who made a request.
    pub(crate) fn of(pid: u32, uid: u32) -> Who {
        if pid == 0 { Who::KERNEL } else { Who { pid, uid } }
    }
}

/// What somebody caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations.
    pub operations: u64,
    /// How long they took together, in nanoseconds.
    pub nanoseconds: u64,
    /// Bytes that the daemon read.
    pub read: u64,
    /// Bytes that the daemon wrote, and by which files grew that the kernel writes itself.
    pub written: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.nanoseconds += other.nanoseconds;
        self.read += other.read;
        self.written += other.written;
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Tally::default()
    }
}

/// Two of them never share a cache line.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    tallies: FxHashMap<(Who, FilesetId), Tally>,
    /// Threads that were not in the table before.
    fresh: Vec<u32>,
}

/// What was booked since it was taken last.
pub(crate) struct Ledger {
    shards: Vec<Mutex<Shard>>,
    /// Who opened a file that the kernel writes itself.
    openers: Vec<Mutex<FxHashMap<Ino, Who>>>,
    /// Somebody new is there, and whoever looks was told.
    has_fresh: AtomicBool,
    reader: OnceLock<Thread>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            openers: (0..SHARDS).map(|_| Mutex::default()).collect(),
            has_fresh: AtomicBool::new(false),
            reader: OnceLock::new(),
        }
    }
}

/// The shard of this thread.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        own.get()
    })
}

impl Ledger {
    /// Books an operation.
    pub fn operation(&self, who: Who, fileset: FilesetId, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.book(who, fileset, Tally { operations: 1, nanoseconds, ..Tally::default() });
    }

    /// Books bytes.
    pub fn bytes(&self, who: Who, fileset: FilesetId, read: u64, written: u64) {
        if read > 0 || written > 0 {
            self.book(who, fileset, Tally { read, written, ..Tally::default() });
        }
    }

    fn book(&self, who: Who, fileset: FilesetId, tally: Tally) {
        let mut shard = self.shards[own_shard()].lock();
        if let Some(known) = shard.tallies.get_mut(&(who, fileset)) {
            known.add(tally);
            return;
        }
        let is_full = shard.tallies.len() >= ASKERS_MAX;
        let booked = if is_full { (Who::KERNEL, fileset) } else { (who, fileset) };
        shard.tallies.entry(booked).or_default().add(tally);
        if !is_full && who.pid != 0 {
            shard.fresh.push(who.pid);
            drop(shard);
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if !self.has_fresh.swap(true, Ordering::Relaxed)
            && let Some(reader) = self.reader.get()
        {
            reader.unpark();
        }
    }

    /// The thread to wake when somebody new asks.
    pub fn set_reader(&self, reader: Thread) {
        let _ = self.reader.set(reader);
    }

    /// A file was opened that the kernel writes itself: what it grows by is its opener's.
    pub fn opened(&self, ino: Ino, who: Who) {
        let mut openers = self.openers_of(ino).lock();
        if openers.len() < OPENERS_MAX || openers.contains_key(&ino) {
            openers.insert(ino, who);
        }
    }

    /// A file was closed that was open for writing.
    pub fn closed(&self, ino: Ino) {
        self.openers_of(ino).lock().remove(&ino);
    }

    fn openers_of(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, Who>> {
        // The lowest bits of numbers that follow each other differ.
        &self.openers[(ino.0 % SHARDS as u64) as usize]
    }

    /// Threads that are new since this was asked last.
    pub fn take_fresh(&self) -> Vec<u32> {
        self.has_fresh.store(false, Ordering::Relaxed);
        self.shards.iter().flat_map(|shard| std::mem::take(&mut shard.lock().fresh)).collect()
    }

    /// What was booked since this was asked last. Who did nothing meanwhile is forgotten, and new when he comes again.
    pub fn take(&self) -> Vec<(Who, FilesetId, Tally)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.tallies.retain(|(who, fileset), tally| {
                if tally.is_empty() {
                    return false;
                }
                all.push((*who, *fileset, std::mem::take(tally)));
                true
            });
        }
        all
    }
}

impl Growth for Ledger {
    fn grew(&self, ino: Ino, bytes: u64) {
        let opener = self.openers_of(ino).lock().get(&ino).copied();
        self.bytes(opener.unwrap_or(Who::KERNEL), ino.fileset(), 0, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: FilesetId = FilesetId(3);

    fn who(pid: u32) -> Who {
        Who::of(pid, 1000)
    }

    fn sum(ledger: &Ledger, of: Who) -> Tally {
        let mut sum = Tally::default();
        ledger
            .take()
            .into_iter()
            .filter(|(who, ..)| *who == of)
            .for_each(|(.., tally)| sum.add(tally));
        sum
    }

    #[test]
    fn what_was_booked_is_taken_once_and_who_is_new_is_named_once() {
        let ledger = Ledger::default();
        ledger.operation(who(7), WORK, Duration::from_nanos(5));
        ledger.operation(who(7), WORK, Duration::from_nanos(6));
        ledger.bytes(who(7), WORK, 10, 20);
        assert_eq!(ledger.take_fresh(), [7]);
        assert!(ledger.take_fresh().is_empty());
        let wanted = Tally { operations: 2, nanoseconds: 11, read: 10, written: 20 };
        assert_eq!(ledger.take(), [(who(7), WORK, wanted)]);
        // Nothing happened: it is forgotten now.
        assert!(ledger.take().is_empty());
        ledger.operation(who(7), WORK, Duration::ZERO);
        assert_eq!(ledger.take_fresh(), [7]);
    }

    #[test]
    fn growth_belongs_to_who_opened_the_file_last() {
        let ledger = Ledger::default();
        let ino = Ino::top_of(WORK);
        ledger.grew(ino, 1);
        ledger.opened(ino, who(7));
        ledger.opened(ino, who(8));
        ledger.grew(ino, 100);
        ledger.closed(ino);
        ledger.grew(ino, 10);
        assert_eq!(sum(&ledger, who(8)).written, 100);
        ledger.grew(ino, 10);
        assert_eq!(sum(&ledger, Who::KERNEL).written, 10);
    }

    #[test]
    fn more_askers_than_there_is_room_for_are_booked_to_nobody() {
        let ledger = Ledger::default();
        for pid in 1..=ASKERS_MAX + 100 {
            ledger.operation(who(u32::try_from(pid).unwrap()), WORK, Duration::ZERO);
        }
        assert_eq!(sum(&ledger, Who::KERNEL).operations, 100);
        assert_eq!(ledger.take_fresh().len(), ASKERS_MAX);
    }

    #[test]
    fn nothing_is_lost_while_others_book() {
        let ledger = Ledger::default();
        let mut taken = 0;
        std::thread::scope(|scope| {
            let booking: Vec<_> = (1..=4)
                .map(|pid| {
                    let ledger = &ledger;
                    scope.spawn(move || {
                        for _ in 0..10_000 {
                            ledger.operation(who(pid), WORK, Duration::ZERO);
                        }
                    })
                })
                .collect();
            while !booking.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                taken += ledger.take().iter().map(|(.., tally)| tally.operations).sum::<u64>();
            }
        });
        taken += ledger.take().iter().map(|(.., tally)| tally.operations).sum::<u64>();
        assert_eq!(taken, 40_000);
    }
}

//! What the kernel asks of each fileset: how long operations take, which fail, how many bytes the daemon moves.
//!
//! Recording is a look at two tables and a few relaxed additions to counters that only requests of the same fileset share. No
//! lock is taken, and nothing is allocated but at the first request of a fileset and at the first error of an operation.
//! Memory: 45 KiB for each fileset that was used since the mount.

pub mod askers;
pub mod ledger;
pub mod metrics;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::{FilesetId, Ino};
use forebay_fs::stats::{Latency, OPERATIONS, Operation};

/// Numbers of errors that are told apart; those beyond count as the last.
const ERRORS: usize = 134;
/// Filesets are numbered with so many bits, in two tables of as many entries.
const HALF: usize = 256;

/// What the kernel asks of one fileset.
pub struct Activity {
    latencies: Vec<Latency>,
    /// By operation, then by errno.
    errors: Vec<OnceLock<Box<[AtomicU64]>>>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity {
            latencies: OPERATIONS.iter().map(|_| Latency::default()).collect(),
            errors: OPERATIONS.iter().map(|_| OnceLock::new()).collect(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }
}

impl Activity {
    /// An operation was answered; with an errno if it failed.
    pub(crate) fn record(&self, operation: Operation, took: Duration, errno: i32) {
        self.latencies[operation as usize].record(took);
        if errno != 0 {
            let place = usize::try_from(errno).unwrap_or(ERRORS).min(ERRORS - 1);
            let none = || (0..ERRORS).map(|_| AtomicU64::new(0)).collect();
            let errors = self.errors[operation as usize].get_or_init(none);
            errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The daemon moved bytes.
    pub(crate) fn moved(&self, read: u64, written: u64) {
        if read > 0 {
            self.read_bytes.fetch_add(read, Ordering::Relaxed);
        }
        if written > 0 {
            self.written_bytes.fetch_add(written, Ordering::Relaxed);
        }
    }

    /// How long operations took, in the order of [`OPERATIONS`].
    #[must_use]
    pub fn latencies(&self) -> &[Latency] {
        &self.latencies
    }

    /// Errors that were answered: of which operation, which errno, how often.
    #[must_use]
    pub fn errors(&self) -> Vec<(Operation, i32, u64)> {
        let mut found = Vec::new();
        for ((operation, _), errors) in OPERATIONS.iter().zip(&self.errors) {
            for (errno, count) in (0..).zip(errors.get().into_iter().flatten()) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    found.push((*operation, errno, count));
                }
            }
        }
        found
    }

    /// Bytes that the daemon read for programs, and that it wrote for them.
    #[must_use]
    pub fn served_bytes(&self) -> (u64, u64) {
        (self.read_bytes.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }
}

type Tables<T> = Box<[OnceLock<T>]>;

fn empty<T>() -> Tables<T> {
    (0..HALF).map(|_| OnceLock::new()).collect()
}

/// What the kernel asks, by fileset.
pub struct Activities(Tables<Tables<Activity>>);

impl Default for Activities {
    fn default() -> Activities {
        Activities(empty())
    }
}

/// Where a fileset is in the tables.
fn place(fileset: FilesetId) -> (usize, usize) {
    let number = usize::from(fileset.0);
    (number / HALF, number % HALF)
}

impl Activities {
    /// The fileset of an inode.
    pub(crate) fn of(&self, ino: Ino) -> &Activity {
        let (high, low) = place(ino.fileset());
        self.0[high].get_or_init(empty)[low].get_or_init(Activity::default)
    }

    /// A fileset that was used since the mount.
    #[must_use]
    pub fn find(&self, fileset: FilesetId) -> Option<&Activity> {
        let (high, low) = place(fileset);
        self.0[high].get()?[low].get()
    }

    /// How long operations took, of all filesets together: counts as those of [`Latency::read`].
    #[must_use]
    pub fn latencies(&self) -> Vec<Vec<u64>> {
        let mut sums: Vec<Vec<u64>> = Latency::default_counts(OPERATIONS.len());
        let used = self.0.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get);
        for activity in used {
            for (sum, latency) in sums.iter_mut().zip(&activity.latencies) {
                for (sum, count) in sum.iter_mut().zip(latency.read()) {
                    *sum += count;
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(fileset: u16) -> Ino {
        Ino::top_of(FilesetId(fileset))
    }

    #[test]
    fn each_fileset_has_counts_of_its_own() {
        let all = Activities::default();
        for fileset in [0, 7, 300, u16::MAX] {
            all.of(ino(fileset)).record(Operation::Read, Duration::from_micros(5), 0);
        }
        all.of(ino(7)).record(Operation::Read, Duration::from_micros(5), libc::EIO);
        all.of(ino(7)).record(Operation::Open, Duration::from_micros(5), 9999);
        all.of(ino(7)).moved(10, 0);
        all.of(ino(7)).moved(1, 5);
        let seven = all.find(FilesetId(7)).unwrap();
        let last = i32::try_from(ERRORS).unwrap() - 1;
        assert_eq!(seven.errors(), [(Operation::Open, last, 1), (Operation::Read, libc::EIO, 1)]);
        assert_eq!(seven.served_bytes(), (11, 5));
        assert!(all.find(FilesetId(8)).is_none());
        let reads: u64 = all.latencies()[Operation::Read as usize].iter().sum();
        assert_eq!(reads, 5);
    }
}

//! Space of a disk: what is left, what waits to be given back, and what is kept aside.
//!
//! The bytes of a file that was removed or replaced go after the commit of the batch that no longer refers to
//! its object. On a disk with room nobody notices; on one that is nearly full the next writer would be refused, on
//! the direct path by the kernel, without a word to us. So as soon as what waits is a good part of what is left,
//! the commit comes before its time, and where a writer could be there first, whoever removes waits for it.
//!
//! The reserve of a disk is for names of objects: without them no commit goes on, and without commits no
//! space comes back. Once half of it is gone no more objects are made, so that the rest is enough for the
//! names of those there are.
//!
//! What is left is looked at seldom and never for each request; nothing of this survives a crash but the reserve.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_disk::{Disk, DiskError};
use parking_lot::Mutex;

/// Bytes of a reserve that are given up at a time: enough for XFS to begin a transaction that names an object.
const PIECE: u64 = 1 << 20;
/// The reserve is at most this part of a disk.
const PART_OF_DISK: u64 = 8;
/// So many times the reserve must be free, or no objects are made ahead of need.
const RESERVES_FREE: u64 = 4;
/// What waits is wanted before its time if it is at least this part of what is left.
const PART_OF_FREE: u64 = 4;
/// With so much free, writers do not fill the disk before a commit that was asked for is done.
const NEARLY_FULL: u64 = 4 << 30;
/// Less than this is not worth to wait for: the commit comes soon.
const WORTH_WAITING: u64 = 1 << 20;
/// How long a look at the disk holds.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How urgently space that waits for a commit is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// There is enough.
    None,
    /// The commit should not wait for its time.
    Soon,
    /// The next writer would be refused: whoever gives space up waits until it is free.
    Now,
}

impl Urgency {
    /// With `free` bytes left on the disk while `waiting` bytes wait for a commit.
    fn of(free: u64, waiting: u64) -> Urgency {
        if waiting == 0 || waiting < free / PART_OF_FREE {
            Urgency::None
        } else if free < NEARLY_FULL && waiting >= WORTH_WAITING {
            Urgency::Now
        } else {
            Urgency::Soon
        }
    }
}

/// What is known of the space of one disk.
#[derive(Debug)]
pub struct Space {
    /// Bytes left when it was looked at last.
    free: AtomicU64,
    /// Bytes of removed objects that wait for a commit.
    waiting: AtomicU64,
    /// Bytes among them that came since the last look.
    since_look: AtomicU64,
    /// When it was looked at last, in milliseconds of the owner's time.
    looked: AtomicU64,
    /// There is so little left that no objects are made ahead of need.
    short: AtomicBool,
    reserve: Reserve,
}

/// What is kept aside on a disk.
#[derive(Debug, Default)]
struct Reserve {
    target: AtomicU64,
    held: AtomicU64,
    /// Why nothing can be kept aside, if so.
    refusal: Mutex<Option<String>>,
}

impl Default for Space {
    fn default() -> Space {
        Space {
            free: AtomicU64::new(u64::MAX),
            waiting: AtomicU64::new(0),
            since_look: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            short: AtomicBool::new(false),
            reserve: Reserve::default(),
        }
    }
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

impl Space {
    /// Keeps `bytes` aside on `disk`, but no more than a part of it, or as many as are free.
    pub(crate) fn begin_reserve(&self, disk: &dyn Disk, bytes: u64) {
        let total = disk.capacity().map_or(0, |capacity| capacity.total_bytes);
        self.reserve.target.store(bytes.min(total / PART_OF_DISK), Ordering::Relaxed);
        self.keep_reserve(disk);
    }

    /// Keeps nothing aside any more.
    pub(crate) fn end_reserve(&self, disk: &dyn Disk) {
        self.reserve.target.store(0, Ordering::Relaxed);
        self.keep_reserve(disk);
    }

    /// Fills the reserve up as far as there is space.
    fn keep_reserve(&self, disk: &dyn Disk) {
        match disk.keep_reserve(load(&self.reserve.target)) {
            Ok(held) => self.reserve.held.store(held, Ordering::Relaxed),
            Err(DiskError::Absent(_) | DiskError::Away { .. }) => {
                self.reserve.target.store(0, Ordering::Relaxed);
            }
            Err(error) => {
                // It stays so: a disk that cannot keep space aside is used without.
                self.reserve.target.store(0, Ordering::Relaxed);
                self.reserve.held.store(0, Ordering::Relaxed);
                tracing::warn!(%error, "no space can be reserved on a disk");
                let why = match error {
                    DiskError::Unsupported => {
                        "its file system cannot allocate in advance".to_owned()
                    }
                    other => other.to_string(),
                };
                *self.reserve.refusal.lock() = Some(why);
            }
        }
    }

    /// Fills the reserve up, if some of it is gone. Returns whether it is whole.
    pub(crate) fn restore_reserve(&self, disk: &dyn Disk) -> bool {
        if !self.reserve_is_whole() {
            self.keep_reserve(disk);
        }
        self.reserve_is_whole()
    }

    /// Gives up a piece of the reserve. Returns whether there was one.
    pub(crate) fn give_piece(&self, disk: &dyn Disk) -> bool {
        let given = disk.give_reserve(PIECE);
        let left = load(&self.reserve.held).saturating_sub(given);
        self.reserve.held.store(left, Ordering::Relaxed);
        self.short.store(true, Ordering::Relaxed);
        given > 0
    }

    fn reserve_is_whole(&self) -> bool {
        load(&self.reserve.held) >= load(&self.reserve.target)
    }

    /// Bytes that are to be kept aside, those that are, and why none can be.
    pub(crate) fn reserve_state(&self) -> (u64, u64, Option<String>) {
        let refusal = self.reserve.refusal.lock().clone();
        (load(&self.reserve.target), load(&self.reserve.held), refusal)
    }

    /// Whether objects can be made: the names of those there are must not be in danger.
    pub(crate) fn takes_objects(&self) -> bool {
        load(&self.reserve.held) >= load(&self.reserve.target) / 2
    }

    /// Whether so little is left that no objects are made ahead of need.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Whether space is not short, nor would be with `bytes` more.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        let least = load(&self.reserve.target) * RESERVES_FREE;
        !self.is_short() && (bytes == 0 || load(&self.free) >= least.saturating_add(bytes))
    }

    /// Looks how much is left, if the last look was not just now.
    pub(crate) fn look(&self, disk: &dyn Disk, now: Duration) {
        if self.is_look_old(now) {
            self.look_now(disk, now);
        }
    }

    fn is_look_old(&self, now: Duration) -> bool {
        millis(now).saturating_sub(load(&self.looked)) >= millis(LOOK_INTERVAL)
            || load(&self.free) == u64::MAX
    }

    /// Looks how much is left.
    pub(crate) fn look_now(&self, disk: &dyn Disk, now: Duration) {
        self.looked.store(millis(now), Ordering::Relaxed);
        self.since_look.store(0, Ordering::Relaxed);
        let Ok(capacity) = disk.capacity() else { return };
        let free = capacity.available_bytes;
        self.free.store(free, Ordering::Relaxed);
        let least = load(&self.reserve.target) * RESERVES_FREE;
        self.short.store(free < least || !self.reserve_is_whole(), Ordering::Relaxed);
    }

    /// How urgently `bytes` are wanted that somebody is about to give up, beside what waits already.
    pub(crate) fn urgency_with(&self, bytes: u64, disk: &dyn Disk, now: Duration) -> Urgency {
        let come = self.since_look.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if self.is_short() || come >= (load(&self.free) / 64).max(1 << 20) || self.is_look_old(now)
        {
            self.look_now(disk, now);
        }
        Urgency::of(load(&self.free), load(&self.waiting).saturating_add(bytes))
    }

    /// How urgently what waits is wanted, as far as is known without a look.
    pub(crate) fn urgency(&self) -> Urgency {
        Urgency::of(load(&self.free), load(&self.waiting))
    }

    /// Bytes wait for a commit from now on.
    pub(crate) fn wait(&self, bytes: u64) {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that waited are free.
    pub(crate) fn freed(&self, bytes: u64) {
        let less = |waiting: u64| Some(waiting.saturating_sub(bytes));
        let _ = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn what_waits_is_wanted_by_what_is_left() {
        for (free, waiting, urgency) in [
            (0, 0, Urgency::None),
            (100 * GIB, GIB, Urgency::None),
            (100 * GIB, 25 * GIB, Urgency::Soon),
            (400 * MIB, 99 * MIB, Urgency::None),
            (400 * MIB, 100 * MIB, Urgency::Now),
            (0, MIB, Urgency::Now),
            (0, 4096, Urgency::Soon),
        ] {
            assert_eq!(Urgency::of(free, waiting), urgency, "{waiting} wait, {free} free");
        }
    }
}

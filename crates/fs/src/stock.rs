//! Fresh objects in stock, and the rest of the thread that makes them.
//!
//! A request that takes an object never waits for that thread, nor loses its core to it, as far as can be
//! helped. So stock and rest have a lock each: a lock that its holder was woken with, while others have the cores,
//! would keep every create waiting. And while objects are wanted the thread looks for itself every
//! [`PAUSE`]; only after a rest is it woken by a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::DiskId;
use parking_lot::{Condvar, Mutex};

use crate::object::{LiveObject, POOLS_MAX};

/// How long the thread pauses while objects are wanted.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);
/// Objects taken within a pause from which on more are expected.
const WANTED: usize = 4;
/// How long the thread rests if a disk refuses new objects.
const REFUSED_REST: Duration = Duration::from_millis(200);

/// The stock.
#[derive(Default)]
pub(crate) struct Stock {
    /// A shelf for each pool of disks.
    shelves: [Shelf; POOLS_MAX],
    /// The thread rests until it is woken.
    resting: AtomicBool,
    rest: Mutex<()>,
    woken: Condvar,
}

/// Objects of one pool.
#[derive(Default)]
struct Shelf {
    objects: Mutex<Vec<Arc<LiveObject>>>,
    /// How many there are to be.
    target: AtomicUsize,
}

impl Shelf {
    fn len(&self) -> usize {
        self.objects.lock().len()
    }

    /// Objects below which a thread that rests is woken.
    fn least(&self) -> usize {
        self.target.load(Ordering::Relaxed).div_ceil(2)
    }
}

/// What the thread does after it has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It looks again after [`PAUSE`].
    Pause,
    /// It rests until half of the stock is gone.
    Rest,
    /// It rests a while: no more objects can be made now.
    Refused,
}

impl Next {
    /// After `missing` objects were made.
    pub fn after(missing: usize) -> Next {
        if missing >= WANTED { Next::Pause } else { Next::Rest }
    }

    /// The one of two pools that it has to do more for.
    pub fn or(self, other: Next) -> Next {
        if self == Next::Rest { other } else { self }
    }
}

impl Stock {
    /// Has the shelf of a pool hold so many objects.
    pub fn aim(&self, pool: usize, target: usize) {
        self.shelves[pool].target.store(target, Ordering::Relaxed);
    }

    /// Takes an object of a pool out, if there is one.
    pub fn take(&self, pool: usize) -> Option<Arc<LiveObject>> {
        let shelf = &self.shelves[pool];
        let mut objects = shelf.objects.lock();
        let (taken, left) = (objects.pop(), objects.len());
        drop(objects);
        if left < shelf.least() && self.resting.load(Ordering::Acquire) {
            self.wake();
        }
        taken
    }

    /// Puts an object of a pool in, if `wanted` still holds: asked with the shelf locked.
    pub fn put(&self, pool: usize, object: Arc<LiveObject>, wanted: &AtomicBool) -> bool {
        let mut objects = self.shelves[pool].objects.lock();
        let still = wanted.load(Ordering::Acquire);
        if still {
            objects.push(object);
        }
        still
    }

    /// Takes the objects out that are `unwanted`.
    pub fn give_up(&self, unwanted: impl Fn(&LiveObject) -> bool) -> Vec<Arc<LiveObject>> {
        let mut all_given = Vec::new();
        for shelf in &self.shelves {
            let mut objects = shelf.objects.lock();
            if objects.iter().any(|object| unwanted(object)) {
                let (given, kept): (Vec<_>, Vec<_>) =
                    objects.drain(..).partition(|object| unwanted(object));
                *objects = kept;
                all_given.extend(given);
            }
        }
        all_given
    }

    /// Takes all objects out.
    pub fn clear(&self) -> Vec<Arc<LiveObject>> {
        self.shelves.iter().flat_map(|shelf| std::mem::take(&mut *shelf.objects.lock())).collect()
    }

    /// Objects of a pool that are to be made.
    pub fn missing(&self, pool: usize) -> usize {
        let shelf = &self.shelves[pool];
        shelf.target.load(Ordering::Relaxed).saturating_sub(shelf.len())
    }

    /// Objects in stock.
    pub fn len(&self) -> usize {
        self.shelves.iter().map(Shelf::len).sum()
    }

    /// Objects in stock on one disk.
    pub fn len_on(&self, disk: DiskId) -> usize {
        let on_it = |shelf: &Shelf| {
            shelf.objects.lock().iter().filter(|object| object.at.disk == disk).count()
        };
        self.shelves.iter().map(on_it).sum()
    }

    fn has_enough(&self) -> bool {
        self.shelves.iter().all(|shelf| shelf.len() >= shelf.least())
    }

    /// Has the thread wait for what comes next. It rests only while `wanted` holds and half of the stock is there.
    pub fn await_demand(&self, next: Next, wanted: &AtomicBool) {
        if next == Next::Pause {
            return std::thread::sleep(PAUSE);
        }
        let mut rest = self.rest.lock();
        self.resting.store(true, Ordering::SeqCst);
        // Looked at after the flag is up: whoever changes it later sees the flag.
        let enough = next == Next::Refused || self.has_enough();
        if enough && wanted.load(Ordering::SeqCst) {
            let resting = &mut |_: &mut ()| self.resting.load(Ordering::Acquire);
            match next {
                Next::Refused => {
                    self.woken.wait_while_for(&mut rest, resting, REFUSED_REST);
                }
                Next::Rest | Next::Pause => self.woken.wait_while(&mut rest, resting),
            }
        }
        self.resting.store(false, Ordering::Release);
    }

    /// Wakes the thread, if it rests.
    pub fn wake(&self) {
        if self.resting.swap(false, Ordering::SeqCst) {
            // It may be between raising the flag and waiting.
            drop(self.rest.lock());
            self.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_pauses_while_objects_are_wanted_and_rests_otherwise() {
        assert_eq!([0, 1, WANTED - 1].map(Next::after), [Next::Rest; 3]);
        assert_eq!([WANTED, 128].map(Next::after), [Next::Pause; 2]);
    }

    #[test]
    fn nobody_rests_whose_work_is_over_or_who_is_behind() {
        let stock = Stock::default();
        // It would never come back.
        stock.await_demand(Next::Rest, &AtomicBool::new(false));
        stock.aim(0, 2);
        stock.await_demand(Next::Rest, &AtomicBool::new(true));
        assert_eq!((stock.missing(0), stock.take(0).is_none()), (2, true));
    }

    #[test]
    fn a_thread_that_rests_is_woken_once() {
        let (stock, wanted) = (Stock::default(), AtomicBool::new(true));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| stock.await_demand(Next::Rest, &wanted));
            while !thread.is_finished() {
                stock.wake();
                std::thread::yield_now();
            }
        });
        assert!(!stock.resting.load(Ordering::SeqCst));
    }
}

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

use crate::object::LiveObject;

/// How long the thread pauses while objects are wanted.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);
/// Objects taken within a pause from which on more are expected.
const WANTED: usize = 4;
/// How long the thread rests if a disk refuses new objects.
const REFUSED_REST: Duration = Duration::from_millis(200);

/// The stock.
#[derive(Default)]
pub(crate) struct Stock {
    objects: Mutex<Vec<Arc<LiveObject>>>,
    /// How many there are to be.
    target: AtomicUsize,
    /// The thread rests until it is woken.
    resting: AtomicBool,
    rest: Mutex<()>,
    woken: Condvar,
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
}

impl Stock {
    /// Has the stock hold so many objects.
    pub fn aim(&self, target: usize) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// Takes an object out, if there is one.
    pub fn take(&self) -> Option<Arc<LiveObject>> {
        let mut objects = self.objects.lock();
        let (taken, left) = (objects.pop(), objects.len());
        drop(objects);
        if left < self.least() && self.resting.load(Ordering::Acquire) {
            self.wake();
        }
        taken
    }

    /// Puts an object in, if `wanted` still holds: asked with the stock locked.
    pub fn put(&self, object: Arc<LiveObject>, wanted: &AtomicBool) -> bool {
        let mut objects = self.objects.lock();
        let still = wanted.load(Ordering::Acquire);
        if still {
            objects.push(object);
        }
        still
    }

    /// Takes the objects out that are `unwanted`.
    pub fn give_up(&self, unwanted: impl Fn(&LiveObject) -> bool) -> Vec<Arc<LiveObject>> {
        let mut objects = self.objects.lock();
        if !objects.iter().any(|object| unwanted(object)) {
            return Vec::new();
        }
        let (given, kept) = objects.drain(..).partition(|object| unwanted(object));
        *objects = kept;
        given
    }

    /// Takes all objects out.
    pub fn clear(&self) -> Vec<Arc<LiveObject>> {
        std::mem::take(&mut *self.objects.lock())
    }

    /// Objects that are to be made.
    pub fn missing(&self) -> usize {
        self.target.load(Ordering::Relaxed).saturating_sub(self.len())
    }

    /// Objects in stock.
    pub fn len(&self) -> usize {
        self.objects.lock().len()
    }

    /// Objects in stock on one disk.
    pub fn len_on(&self, disk: DiskId) -> usize {
        self.objects.lock().iter().filter(|object| object.at.disk == disk).count()
    }

    /// Objects below which a thread that rests is woken.
    fn least(&self) -> usize {
        self.target.load(Ordering::Relaxed).div_ceil(2)
    }

    /// Has the thread wait for what comes next. It rests only while `wanted` holds and half of the stock is there.
    pub fn await_demand(&self, next: Next, wanted: &AtomicBool) {
        if next == Next::Pause {
            return std::thread::sleep(PAUSE);
        }
        let mut rest = self.rest.lock();
        self.resting.store(true, Ordering::SeqCst);
        // Looked at after the flag is up: whoever changes it later sees the flag.
        let enough = next == Next::Refused || self.len() >= self.least();
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
        stock.aim(2);
        stock.await_demand(Next::Rest, &AtomicBool::new(true));
        assert_eq!((stock.missing(), stock.take().is_none()), (2, true));
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

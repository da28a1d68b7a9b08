//! The gate that every request passes before it reaches a partition: one atomic load while it is open.
//!
//! It waits while it is not sure whether the partition may answer, and is closed for good once it may not: what a
//! fenced owner remembers may be wrong by now, so it answers nothing but why it does not.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::error::{FsError, Result};

const OPEN: u8 = 0;
const WAITING: u8 = 1;
const CLOSED: u8 = 2;

/// A gate; open at first.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    /// Why it is closed, once it is.
    reason: Mutex<Option<FsError>>,
    changed: Condvar,
}

impl Gate {
    /// Whether requests pass without waiting.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Passes the gate, waiting where it waits.
    pub fn enter(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { self.enter_slowly() }
    }

    #[cold]
    fn enter_slowly(&self) -> Result<()> {
        let mut reason = self.reason.lock();
        while self.state.load(Ordering::Acquire) == WAITING {
            self.changed.wait(&mut reason);
        }
        match &*reason {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    /// Has requests wait until [`Gate::open`] or [`Gate::close`]. One that is closed stays so.
    pub fn wait(&self) {
        let _reason = self.reason.lock();
        let _ = self.state.compare_exchange(OPEN, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Lets those through that wait, and all others.
    pub fn open(&self) {
        let _reason = self.reason.lock();
        let _ = self.state.compare_exchange(WAITING, OPEN, Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify_all();
    }

    /// Refuses all requests from now on with `why`; the first reason counts.
    pub fn close(&self, why: FsError) {
        let mut reason = self.reason.lock();
        reason.get_or_insert(why);
        self.state.store(CLOSED, Ordering::Release);
        self.changed.notify_all();
    }

    /// Why it is closed, if it is.
    pub fn closed(&self) -> Option<FsError> {
        if self.state.load(Ordering::Acquire) == CLOSED { self.reason.lock().clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_at_the_gate_passes_once_it_opens() {
        let gate = Gate::default();
        gate.wait();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter());
            gate.open();
            assert!(waiting.join().unwrap().is_ok());
        });
        assert!(gate.enter().is_ok() && gate.closed().is_none());
    }

    #[test]
    fn a_closed_gate_gives_its_first_reason_and_never_opens() {
        let gate = Gate::default();
        gate.wait();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter());
            gate.close(FsError::Fenced);
            assert!(matches!(waiting.join().unwrap(), Err(FsError::Fenced)));
        });
        gate.close(FsError::Stale);
        gate.wait();
        gate.open();
        assert!(matches!(gate.enter(), Err(FsError::Fenced)));
    }
}

//! The gate that every request passes before it reaches a partition: one atomic load while it is open.
//!
//! It waits while it is not sure whether the partition may answer, and is closed for good once it may not: what a
//! fenced owner remembers may be wrong by now, so it answers nothing but why it does not.
//!
//! In a cluster an open gate also looks at the lease of the node ([`Lease`]), because no thread is sure to close it in
//! time on a machine that was frozen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::Clock;
use forebay_base::in_flight::{self, WaitsFor};
use parking_lot::{Condvar, Mutex};

use crate::error::{FsError, Result};

const OPEN: u8 = 0;
const WAITING: u8 = 1;
const CLOSED: u8 = 2;
/// Open as long as the lease lasts.
const LEASED: u8 = 3;

/// How long a request waits between two looks at a lease that is over.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long the filesets of this node may answer, by [`Clock::boottime`]. It is not over until a first end was set.
pub(crate) struct Lease {
    until_ns: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl Lease {
    /// One without an end.
    pub fn new(clock: Arc<dyn Clock>) -> Lease {
        Lease { until_ns: AtomicU64::new(u64::MAX), clock }
    }

    /// It lasts until then (exclusive); for ever with `None`.
    pub fn set(&self, until: Option<Duration>) {
        let ns = |until: Duration| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.store(until.map_or(u64::MAX, ns), Ordering::Release);
    }

    /// How long it still lasts; as long as can be said if it has no end.
    pub fn left(&self) -> Duration {
        match self.until_ns.load(Ordering::Acquire) {
            u64::MAX => Duration::MAX,
            until_ns => Duration::from_nanos(until_ns).saturating_sub(self.clock.boottime()),
        }
    }

    /// Whether it lasts.
    pub fn lasts(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        until_ns == u64::MAX || self.clock.boottime().as_nanos() < u128::from(until_ns)
    }
}

/// A gate; open at first.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    /// Why it is closed, once it is.
    reason: Mutex<Option<FsError>>,
    changed: Condvar,
    lease: Option<Arc<Lease>>,
}

impl Gate {
    /// A gate that is open as long as the lease lasts, if there is one.
    pub fn with(lease: Option<Arc<Lease>>) -> Gate {
        Gate { state: AtomicU8::new(opened(lease.as_ref())), lease, ..Gate::default() }
    }

    /// Whether requests pass without waiting.
    pub fn is_open(&self) -> bool {
        match self.state.load(Ordering::Acquire) {
            OPEN => true,
            LEASED => self.is_leased(),
            _ => false,
        }
    }

    fn is_leased(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.lasts())
    }

    /// Passes the gate, waiting where it waits.
    pub fn enter(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { self.enter_slowly() }
    }

    #[cold]
    fn enter_slowly(&self) -> Result<()> {
        let is_handover = self.state.load(Ordering::Acquire) == WAITING && self.is_leased();
        let waits = if is_handover { WaitsFor::Handover } else { WaitsFor::Lease };
        let _waits = in_flight::waits_for(|| waits);
        let mut reason = self.reason.lock();
        loop {
            match self.state.load(Ordering::Acquire) {
                WAITING => self.changed.wait(&mut reason),
                LEASED if !self.is_leased() => {
                    self.changed.wait_for(&mut reason, LOOK_PAUSE);
                }
                _ => break,
            }
        }
        match &*reason {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    /// Has requests wait until [`Gate::open`] or [`Gate::close`]. One that is closed stays so.
    pub fn wait(&self) {
        self.change(opened(self.lease.as_ref()), WAITING);
    }

    /// Lets those through that wait, and all others.
    pub fn open(&self) {
        self.change(WAITING, opened(self.lease.as_ref()));
    }

    fn change(&self, from: u8, to: u8) {
        let _reason = self.reason.lock();
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
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

/// The state of an open gate.
fn opened(lease: Option<&Arc<Lease>>) -> u8 {
    if lease.is_some() { LEASED } else { OPEN }
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

    #[test]
    fn an_open_gate_has_requests_wait_when_the_lease_is_over() {
        let clock = Arc::new(forebay_base::time::StepClock::new(100));
        let lease = Arc::new(Lease::new(Arc::clone(&clock) as _));
        let gate = Gate::with(Some(Arc::clone(&lease)));
        assert!(gate.is_open());
        lease.set(Some(Duration::from_secs(1)));
        assert!(!gate.is_open());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter());
            gate.wait();
            gate.open();
            assert!(!gate.is_open());
            lease.set(None);
            assert!(waiting.join().unwrap().is_ok());
        });
        gate.wait();
        assert!(!gate.is_open());
    }
}

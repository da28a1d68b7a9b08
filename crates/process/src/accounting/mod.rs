//! What the kernel says that processes used and waited for, and where it says so.

mod counters;
mod delays;
mod schedstat;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use forebay_base::Clock;
use rustix::process::Pid;

pub use counters::{Counters, field};
pub(crate) use delays::Delays;
use delays::Source;
pub(crate) use schedstat::Schedule;

/// How processes are accounted for on this machine.
pub struct Accounting {
    clock: Arc<dyn Clock>,
    delays: Mutex<Source>,
}

impl Accounting {
    /// Finds out what the kernel tells.
    #[must_use]
    pub fn find(clock: Arc<dyn Clock>) -> Arc<Accounting> {
        Arc::new(Accounting { clock, delays: Mutex::new(Source::find()) })
    }

    /// Where the times of waiting come from, and how to get better ones.
    #[must_use]
    pub fn io_wait_source(&self) -> String {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).describe()
    }

    /// Now, on the clock that real times are measured with.
    pub(crate) fn now(&self) -> Instant {
        self.clock.instant()
    }

    /// What a process that was not reaped waited for.
    pub(crate) fn delays_of(&self, pid: Pid) -> Option<Delays> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).of(pid)
    }
}

/// What [`Accounting::io_wait_source`] says of an [`Accounting`] that is found now.
#[must_use]
pub fn io_wait_source() -> String {
    Source::find().describe()
}

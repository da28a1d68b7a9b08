//! Locks of programs on files: flock, and byte ranges of fcntl (POSIX and open file descriptions).
//!
//! `table` decides, without threads, time or files; `Locks` lets threads wait. Where the kernel keeps the locks of a
//! mount itself (`locks = "kernel"`), nothing of this is ever asked. Nothing of it survives the owner: locks end with it,
//! as its clients' handles do.
//!
//! The two sorts of locks do not know of each other, as on Linux. A holder is an open file description or the open
//! files of a process, by the number that its kernel gave it, of one client.

mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_base::{ClientId, Ino};
use parking_lot::{Condvar, Mutex};

use crate::error::{FsError, Result};

pub(crate) use self::table::{Ask, File, Holder, Limits, Outcome, Table};
pub use self::table::{Held, Kind, Range, Sort, Ticket};

/// The locks of one fileset.
pub(crate) struct Locks {
    state: Mutex<Guarded>,
    changed: Condvar,
}

struct Guarded {
    table: Table,
    /// Why there are none any more.
    closed: Option<FsError>,
}

/// How a request stands after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// It has the lock.
    Granted,
    /// It still waits.
    Waiting,
}

impl Locks {
    /// No locks.
    pub fn new(limits: Limits) -> Locks {
        let state = Guarded { table: Table::new(limits), closed: None };
        Locks { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> Result<T> {
        let mut state = self.state.lock();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        let done = work(&mut state.table);
        if state.table.take_granted() {
            self.changed.notify_all();
        }
        Ok(done)
    }

    /// Locks a range, or has the request wait if `waits`: [`Locks::wait`] goes on then.
    ///
    /// # Errors
    /// [`FsError::Locked`], [`FsError::Deadlock`], [`FsError::TooManyLocks`].
    pub fn lock(&self, file: File, ask: Ask, waits: bool) -> Result<Option<Ticket>> {
        match self.with(|table| table.lock(file, ask, waits))? {
            Outcome::Granted => Ok(None),
            Outcome::Waiting(ticket) => Ok(Some(ticket)),
            Outcome::Refused => Err(FsError::Locked),
            Outcome::Deadlock => Err(FsError::Deadlock),
            Outcome::TooManyRanges => {
                Err(FsError::TooManyLocks("locks_max ranges of the fileset are locked".to_owned()))
            }
            Outcome::TooManyWait => Err(FsError::TooManyLocks(
                "lock_waits_max requests wait for locks of the fileset".to_owned(),
            )),
        }
    }

    /// Unlocks what `holder` has locked of a range.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`] if that would cut a range in two, and there are too many.
    pub fn unlock(&self, file: File, holder: Holder, range: Range) -> Result<()> {
        if self.with(|table| table.unlock(file, holder, range))? {
            return Ok(());
        }
        Err(FsError::TooManyLocks("locks_max ranges of the fileset are locked".to_owned()))
    }

    /// A lock of somebody else that keeps `ask` from its own.
    pub fn test(&self, file: File, ask: Ask) -> Result<Option<Held>> {
        self.with(|table| table.test(file, ask))
    }

    /// Waits until a request has its lock, `is_over` says that the wait is over, or `limit` has passed.
    ///
    /// # Errors
    /// Why there are no locks any more; [`FsError::Stale`] if nothing waits by that ticket.
    pub fn wait(
        &self,
        ticket: Ticket,
        limit: Option<Duration>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Waited> {
        let mut state = self.state.lock();
        let mut is_late = false;
        loop {
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            match state.table.claim(ticket) {
                Some(true) => return Ok(Waited::Granted),
                None => return Err(FsError::Stale),
                Some(false) if is_late || is_over() => return Ok(Waited::Waiting),
                Some(false) => {}
            }
            match limit {
                Some(limit) => is_late = self.changed.wait_for(&mut state, limit).timed_out(),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Gives up waiting. Whether the request has its lock all the same: it was granted a moment ago.
    pub fn cancel(&self, ticket: Ticket) -> Result<bool> {
        self.with(|table| table.cancel(ticket))
    }

    /// Has everybody who waits look whether their wait is over.
    pub fn wake(&self) {
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Releases what a holder has on a file, and what it waits for there.
    pub fn release(&self, file: File, holder: Holder) {
        let _ = self.with(|table| table.release(file, holder));
    }

    /// Releases everything of a client.
    pub fn release_client(&self, client: ClientId) {
        let _ = self.with(|table| table.release_client(client));
    }

    /// Whether anybody has a lock or waits for one.
    pub fn is_empty(&self) -> bool {
        self.state.lock().table.is_empty()
    }

    /// Ends all locks: whoever waits or asks is told `why`.
    pub fn close(&self, why: FsError) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(why);
        state.table.clear();
        self.changed.notify_all();
    }
}

/// A lock that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The file.
    pub ino: Ino,
    /// flock or fcntl.
    pub sort: Sort,
    /// The number that the kernel gives to the holder.
    pub owner: u64,
    /// The process that asks, for F_GETLK.
    pub pid: u32,
    /// What is to be locked or unlocked.
    pub range: Range,
}

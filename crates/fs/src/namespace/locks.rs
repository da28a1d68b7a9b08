//! Locks of programs: at the owner of the file, whoever that is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{ClientId, Clock, FilesetId, Ino};
use parking_lot::Mutex;

use super::Namespace;
use crate::error::{FsError, Result};
use crate::locks::{Ask, File, Holder, Kind, Limits, LockRequest, Locks, Sort, Waited};
use crate::owner::Owner;
use crate::remote::LockAsked;

/// The locks of each fileset of this node in which there are any.
#[derive(Default)]
pub(super) struct LockTables(Mutex<HashMap<FilesetId, Arc<Locks>>>);

impl LockTables {
    fn of(&self, fileset: FilesetId, limits: Limits) -> Arc<Locks> {
        Arc::clone(self.0.lock().entry(fileset).or_insert_with(|| Arc::new(Locks::new(limits))))
    }

    fn all(&self) -> Vec<Arc<Locks>> {
        self.0.lock().values().cloned().collect()
    }

    /// Whether nobody has a lock in a fileset, or waits for one.
    pub(super) fn is_empty(&self, fileset: FilesetId) -> bool {
        self.0.lock().get(&fileset).is_none_or(|locks| locks.is_empty())
    }

    /// Ends all locks of a fileset.
    pub(super) fn close(&self, fileset: FilesetId, why: FsError) {
        let locks = self.0.lock().remove(&fileset);
        if let Some(locks) = locks {
            locks.close(why);
        }
    }
}

/// Ends a wait: for a lock, an archive, the home of a cache.
#[derive(Default)]
pub struct Interruption {
    is_asked_for: AtomicBool,
    by_itself: Option<(Arc<dyn Clock>, Instant)>,
}

impl Interruption {
    /// One that comes by itself after so long, if nobody asks for it before.
    #[must_use]
    pub fn after(time: Duration, clock: &Arc<dyn Clock>) -> Interruption {
        let at = clock.instant() + time;
        Interruption { by_itself: Some((Arc::clone(clock), at)), ..Interruption::default() }
    }

    /// Whether the wait is to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_asked_for.load(Ordering::Acquire) || self.is_due()
    }

    /// Whether it has come by itself, and nobody has asked for it.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let is_late = self.by_itself.as_ref().is_some_and(|(clock, at)| clock.instant() >= *at);
        is_late && !self.is_asked_for.load(Ordering::Acquire)
    }
}

/// Where a request for a lock goes.
enum Way {
    Here(Arc<Locks>),
    There(Owner),
}

impl Namespace {
    /// Whether this file system keeps the locks of programs itself: else the kernel does.
    #[must_use]
    pub fn keeps_locks(&self) -> bool {
        self.settings().keeps_locks()
    }

    fn lock_limits(&self) -> Limits {
        let settings = self.settings();
        Limits { ranges: settings.locks_max, waits: settings.lock_waits_max }
    }

    /// The locks of an inode's fileset, if this node owns it.
    pub(crate) fn own_locks(&self, ino: Ino) -> Result<Arc<Locks>> {
        let _route = self.own(ino)?;
        Ok(self.locks.of(ino.fileset(), self.lock_limits()))
    }

    /// Releases all locks of another node.
    pub(crate) fn release_locks_of_client(&self, client: ClientId) {
        self.locks.all().iter().for_each(|locks| locks.release_client(client));
    }

    /// The way to the locks of an inode. Nothing is held on it: a wait may take for ever.
    fn with_locks<T>(&self, ino: Ino, mut work: impl FnMut(&Way) -> Result<T>) -> Result<T> {
        self.at(ino, |owner| match owner {
            Owner::Local(_) | Owner::Native(_) => {
                work(&Way::Here(self.locks.of(ino.fileset(), self.lock_limits())))
            }
            owner @ Owner::Remote(_) => work(&Way::There(owner.clone())),
        })
    }

    /// Locks a range; with `interruption`, waits for it if need be.
    ///
    /// # Errors
    /// [`FsError::Locked`] if somebody else has it, [`FsError::Interrupted`], [`FsError::Deadlock`],
    /// [`FsError::TooManyLocks`].
    pub fn lock(
        &self,
        request: LockRequest,
        kind: Kind,
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        loop {
            match self.lock_once(request, kind, interruption) {
                // The owner has changed while it waited.
                Err(FsError::Moved) => {}
                done => return done,
            }
        }
    }

    fn lock_once(
        &self,
        request: LockRequest,
        kind: Kind,
        interruption: Option<&Interruption>,
    ) -> Result<()> {
        let (file, ask, asked) = asked_for(request, kind, interruption.is_some());
        let (way, ticket) = self.with_locks(request.ino, |way| {
            let ticket = match way {
                Way::Here(locks) => locks.lock(file, ask, asked.waits)?,
                Way::There(Owner::Remote(remote)) => remote.lock(asked)?,
                Way::There(_) => return Err(FsError::Moved),
            };
            let way = match way {
                Way::Here(locks) => Way::Here(Arc::clone(locks)),
                Way::There(owner) => Way::There(owner.clone()),
            };
            Ok((way, ticket))
        })?;
        let (Some(ticket), Some(interruption)) = (ticket, interruption) else { return Ok(()) };
        let is_over = || interruption.is_set();
        let _waits = in_flight::waits_for(|| WaitsFor::Lock);
        let (waited, gives_up): (_, Box<dyn Fn() -> Result<bool>>) = match &way {
            Way::Here(locks) => {
                (locks.wait(ticket, None, &is_over)?, Box::new(|| locks.cancel(ticket)))
            }
            Way::There(Owner::Remote(remote)) => (
                remote.await_lock(request.ino, ticket, &is_over)?,
                Box::new(|| remote.cancel_lock(request.ino, ticket)),
            ),
            Way::There(_) => return Err(FsError::Moved),
        };
        let is_granted = waited == Waited::Granted || gives_up()?;
        if is_granted { Ok(()) } else { Err(FsError::Interrupted) }
    }

    /// Ends a wait for a lock.
    pub fn interrupt(&self, interruption: &Interruption) {
        interruption.is_asked_for.store(true, Ordering::Release);
        self.locks.all().iter().for_each(|locks| locks.wake());
    }

    /// Unlocks a range.
    ///
    /// # Errors
    /// [`FsError::TooManyLocks`] if that would cut a range in two, and there are too many.
    pub fn unlock(&self, request: LockRequest) -> Result<()> {
        let (file, ask, asked) = asked_for(request, Kind::Read, false);
        self.with_locks(request.ino, |way| match way {
            Way::Here(locks) => locks.unlock(file, ask.holder, request.range),
            Way::There(Owner::Remote(remote)) => {
                remote.lock(LockAsked { kind: None, ..asked }).map(drop)
            }
            Way::There(_) => Err(FsError::Moved),
        })
    }

    /// A lock of somebody else that is in the way: its range, kind and process (0 on another node).
    ///
    /// # Errors
    /// [`FsError::Io`] if the owner cannot be reached.
    pub fn test_lock(
        &self,
        request: LockRequest,
        kind: Kind,
    ) -> Result<Option<(crate::locks::Range, Kind, u32)>> {
        let (file, ask, asked) = asked_for(request, kind, false);
        self.with_locks(request.ino, |way| match way {
            Way::Here(locks) => Ok(locks.test(file, ask)?.map(|held| {
                let is_own = held.holder.client == ClientId::LOCAL;
                (held.range, held.kind, if is_own { held.pid } else { 0 })
            })),
            Way::There(Owner::Remote(remote)) => {
                Ok(remote.test_lock(asked)?.map(|found| (found.range, found.kind, found.pid)))
            }
            Way::There(_) => Err(FsError::Moved),
        })
    }

    /// Releases what a holder has of a file: it has closed it.
    ///
    /// # Errors
    /// [`FsError::Io`] if the owner cannot be reached.
    pub fn release_locks(&self, ino: Ino, sort: Sort, owner: u64) -> Result<()> {
        let holder = Holder { client: ClientId::LOCAL, owner };
        self.with_locks(ino, |way| match way {
            Way::Here(locks) => {
                locks.release(File { ino, sort }, holder);
                Ok(())
            }
            Way::There(Owner::Remote(remote)) => {
                remote.release_locks(ino, owner, sort == Sort::Flock)
            }
            Way::There(_) => Err(FsError::Moved),
        })
    }
}

fn asked_for(request: LockRequest, kind: Kind, waits: bool) -> (File, Ask, LockAsked) {
    let LockRequest { ino, sort, owner, pid, range } = request;
    let holder = Holder { client: ClientId::LOCAL, owner };
    let whole = sort == Sort::Flock;
    (
        File { ino, sort },
        Ask { holder, pid, range, kind },
        LockAsked { ino, owner, pid, range, kind: Some(kind), whole, waits },
    )
}

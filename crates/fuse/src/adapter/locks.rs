//! Locks of programs, where they are kept by the owner of the file and not by the kernel.
//!
//! A request that waits keeps the place by which it came, and the one that unlocks needs a place, too: who would have to wait
//! in a place that is kept for others is refused with ENOLCK ([`lanes`](super::lanes)).
//!
//! The kernel releases locks of flock(2) and of processes at close, with FLUSH and RELEASE. It sends nothing at the close
//! of a description with fcntl locks of its own (F_OFD_SETLK): so it is noted here by which handle somebody has locked,
//! and what is left goes with the handle.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_base::Ino;
use forebay_fs::locks::{Kind, Range, Sort};
use forebay_fs::{FsError, HomeNeed, Interruption, LockRequest};
use parking_lot::Mutex;

use crate::abi::{self, FileLock, FlushIn, InterruptIn, LkIn, ReleaseIn};
use crate::adapter::lanes::{For, Place};
use crate::adapter::{Adapter, Request};
use crate::reply::Reply;
use crate::request::{Answer, Body, Errno};

/// Places for requests, of each lane, where the owner keeps the locks.
pub(crate) const PLACES_WITH_LOCKS: usize = 32;
/// Interrupts that are remembered because they came before their request.
const EARLY_MAX: usize = 1024;

/// Whether a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Never,
    Allowed,
}

/// Requests that wait, and handles by which somebody has locked.
#[derive(Default)]
pub(crate) struct LockSession {
    serial: AtomicU32,
    waits: Mutex<Waits>,
    /// The handle by which a holder has locked a file last.
    by_handle: Mutex<HashMap<u64, Vec<(Ino, u64)>>>,
}

#[derive(Default)]
struct Waits {
    interruptions: HashMap<u64, Arc<Interruption>>,
    early: VecDeque<u64>,
}

fn sort_of(flags: u32) -> Sort {
    if flags & abi::LK_FLOCK != 0 { Sort::Flock } else { Sort::Fcntl }
}

/// What is asked for; no kind unlocks.
fn kind_of(lock: &FileLock) -> Answer<Option<Kind>> {
    match lock.r#type.cast_signed() {
        libc::F_RDLCK => Ok(Some(Kind::Read)),
        libc::F_WRLCK => Ok(Some(Kind::Write)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn request_of(request: Request, asked: &LkIn) -> Answer<LockRequest> {
    let FileLock { start, end, pid, .. } = asked.lk;
    if start > end {
        return Err(Errno(libc::EINVAL));
    }
    // The kernel says the largest offset for "to the end".
    let end = if end >= i64::MAX as u64 { u64::MAX } else { end };
    let sort = sort_of(asked.lk_flags);
    let range = Range { start, end };
    Ok(LockRequest { ino: request.ino, sort, owner: asked.owner, pid, range })
}

/// Reports that too many requests wait; the error of one that is refused for that.
fn refused(what: For) -> i32 {
    let (what, error) = match what {
        For::Lock => ("locks", libc::ENOLCK),
        For::Store => ("archives, or for homes of caches, that do not answer", libc::EAGAIN),
    };
    tracing::warn!(
        "too many requests of one core wait for {what}: raise ring_depth or fuse_threads"
    );
    error
}

impl Adapter {
    /// Whether requests may wait long: for locks, for files of archives, or for homes of caches.
    pub(crate) fn waits_long(&self) -> bool {
        self.fs.keeps_locks() || self.fs.has_archives() || self.fs.has_caches()
    }

    /// A number for a handle by which locks are told apart.
    pub(crate) fn next_serial(&self) -> u32 {
        if self.fs.keeps_locks() { self.locks.serial.fetch_add(1, Ordering::Relaxed) } else { 0 }
    }

    pub(crate) fn get_lock(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: LkIn = body.take()?;
        let kind = kind_of(&asked.lk)?.ok_or(Errno(libc::EINVAL))?;
        let found = self.fs.test_lock(request_of(request, &asked)?, kind)?;
        let unlocked = FileLock { r#type: libc::F_UNLCK.cast_unsigned(), ..asked.lk };
        reply.push(&found.map_or(unlocked, |(range, kind, pid)| FileLock {
            start: range.start,
            end: range.end.min(i64::MAX as u64),
            r#type: match kind {
                Kind::Read => libc::F_RDLCK.cast_unsigned(),
                Kind::Write => libc::F_WRLCK.cast_unsigned(),
            },
            pid,
        }));
        Ok(())
    }

    pub(crate) fn set_lock(&self, request: Request, mut body: Body<'_>, wait: Wait) -> Answer<()> {
        let asked: LkIn = body.take()?;
        let lock = request_of(request, &asked)?;
        let Some(kind) = kind_of(&asked.lk)? else { return Ok(self.fs.unlock(lock)?) };
        if lock.sort == Sort::Fcntl {
            self.note_holder(asked.fh, request.ino, asked.owner);
        }
        match self.fs.lock(lock, kind, None) {
            Err(FsError::Locked) if wait == Wait::Allowed => self.wait_for(request, lock, kind),
            done => Ok(done?),
        }
    }

    fn wait_for(&self, request: Request, lock: LockRequest, kind: Kind) -> Answer<()> {
        self.wait(request, For::Lock, |wait| self.fs.lock(lock, kind, Some(wait)))
    }

    /// Carries out what needs the inode of a request as a whole: the bytes of a file, or the names of a directory of a cache. If
    /// they lie in an archive or at a home, the request waits until they are here, and is carried out then.
    pub(crate) fn recalled<T>(
        &self,
        request: Request,
        operation: impl Fn() -> forebay_fs::Result<T>,
    ) -> Answer<T> {
        let recall = |wait: &Interruption| self.fs.recall(request.ino, Some(wait));
        self.recalled_by(request, recall, operation)
    }

    /// As [`Adapter::recalled`], of what needs whatever `recall` brings here.
    pub(crate) fn recalled_by<T>(
        &self,
        request: Request,
        recall: impl Fn(&Interruption) -> forebay_fs::Result<()>,
        operation: impl Fn() -> forebay_fs::Result<T>,
    ) -> Answer<T> {
        loop {
            match operation() {
                Err(FsError::Archived) => self.wait_for_archive(request, &recall)?,
                done => return Ok(done?),
            }
        }
    }

    /// Waits for bytes of a file that lie in an archive, or at the home of a cache.
    pub(crate) fn wait_for_archive<T>(
        &self,
        request: Request,
        wait: impl FnMut(&Interruption) -> forebay_fs::Result<T>,
    ) -> Answer<T> {
        self.wait(request, For::Store, wait)
    }

    /// Has names of a directory of a cache be as at its home. A request that has to wait for that does so in a place for requests.
    pub(crate) fn ask_home(&self, request: Request, need: HomeNeed<'_>) -> Answer<()> {
        if !self.fs.home_is_due(request.ino, need) {
            return Ok(());
        }
        self.wait(request, For::Store, |wait| self.fs.ask_home(request.ino, need, Some(wait)))
    }

    /// Waits in a place for requests, until the kernel says that nobody waits any more. Is refused if too many wait.
    fn wait<T>(
        &self,
        request: Request,
        what: For,
        mut wait: impl FnMut(&Interruption) -> forebay_fs::Result<T>,
    ) -> Answer<T> {
        let Some(mut place) = Place::take(what) else { return Err(Errno(refused(what))) };
        loop {
            let interruption = Arc::new(place.interruption(&self.clock));
            self.begin_wait(request, &interruption)?;
            let done = wait(&interruption);
            self.locks.waits.lock().interruptions.remove(&request.unique);
            if !matches!(done, Err(FsError::Interrupted)) || !interruption.is_due() {
                place.end();
                return Ok(done?);
            }
            if !place.may_wait_on() {
                return Err(Errno(refused(what)));
            }
        }
    }

    /// The kernel can end the wait of a request from now on.
    fn begin_wait(&self, request: Request, interruption: &Arc<Interruption>) -> Answer<()> {
        let mut waits = self.locks.waits.lock();
        if waits.early.contains(&request.unique) {
            waits.early.retain(|unique| *unique != request.unique);
            return Err(Errno(libc::EINTR));
        }
        waits.interruptions.insert(request.unique, Arc::clone(interruption));
        Ok(())
    }

    /// Ends the wait of a request. Other requests are short: by the time an interrupt is read, they are done.
    pub(crate) fn interrupt(&self, mut body: Body<'_>) -> Answer<()> {
        let asked: InterruptIn = body.take()?;
        if !self.waits_long() {
            return Ok(());
        }
        let waiting = {
            let mut waits = self.locks.waits.lock();
            let waiting = waits.interruptions.get(&asked.unique).cloned();
            if waiting.is_none() {
                // It may have overtaken its request, or the request is done.
                waits.early.push_back(asked.unique);
                if waits.early.len() > EARLY_MAX {
                    waits.early.pop_front();
                }
            }
            waiting
        };
        if let Some(waiting) = waiting {
            self.fs.interrupt(&waiting);
        }
        Ok(())
    }

    /// A process has closed a descriptor: its fcntl locks on the file go.
    pub(crate) fn flush(&self, request: Request, mut body: Body<'_>) -> Answer<()> {
        let asked: FlushIn = body.take()?;
        // Most close without ever having locked: they need not wait for the owner, which may be out of reach.
        if !self.has_locked(request.ino, asked.lock_owner) {
            return Ok(());
        }
        Ok(self.fs.release_locks(request.ino, Sort::Fcntl, asked.lock_owner)?)
    }

    fn note_holder(&self, handle: u64, ino: Ino, owner: u64) {
        let mut by_handle = self.locks.by_handle.lock();
        let holders = by_handle.entry(handle).or_default();
        if !holders.contains(&(ino, owner)) {
            holders.push((ino, owner));
        }
    }

    fn has_locked(&self, ino: Ino, owner: u64) -> bool {
        self.locks.by_handle.lock().values().any(|holders| holders.contains(&(ino, owner)))
    }

    /// The last descriptor of a description is closed: its locks go.
    pub(crate) fn release_locks_of_handle(&self, request: Request, asked: &ReleaseIn) {
        if !self.fs.keeps_locks() {
            return;
        }
        let flock = (asked.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0)
            .then_some((Sort::Flock, asked.lock_owner));
        let left = {
            let mut by_handle = self.locks.by_handle.lock();
            let mut left = by_handle.remove(&asked.fh).unwrap_or_default();
            // A process that has locked by another handle since still has its locks.
            left.retain(|holder| !by_handle.values().any(|others| others.contains(holder)));
            left
        };
        let left = left.into_iter().map(|(_, owner)| (Sort::Fcntl, owner));
        for (sort, owner) in flock.into_iter().chain(left) {
            if let Err(error) = self.fs.release_locks(request.ino, sort, owner) {
                tracing::warn!(%error, "locks of a closed file are released when its owner drops this node");
            }
        }
    }
}

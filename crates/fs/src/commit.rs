//! Commits: moving the write set into the store, one batch at a time.
//!
//! A batch is a consistent cut of everything done so far. Before it is committed, the fresh objects
//! that its records refer to are published; after it is committed, the objects that no record refers to
//! any more are removed. So after a crash at any moment every committed record finds its object, and
//! what is left over is objects that no record refers to, which the sweep removes.
//!
//! A file that was renamed over another in a strict fileset has its bytes synced before the batch, so that
//! after a crash the name holds the old bytes or the new ones, as programs that replace files expect.
//!
//! fsync is a group commit: callers that find a commit under way wait for it, and the first of them
//! then commits for all.
//!
//! A commit that failed keeps its changes in memory. It is tried again after `commit_interval`, or when
//! somebody asks for durability; once as much is uncommitted as may be, operations that would add to it are
//! refused with the reason, while those that give space back go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use forebay_store::{Batch, StoreError};
use parking_lot::Mutex;

use crate::error::{FsError, Result};
use crate::idle::enough_open;
use crate::key;
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::record::encode;
use crate::settings::Settings;
use crate::stats::Operation;
use crate::writeset::Changes;

/// Whose turn it is to commit, and how far commits have come.
pub(crate) struct CommitTurn {
    turn: Mutex<()>,
    /// Number of the latest committed batch.
    done: AtomicU64,
    /// Commits that were begun.
    attempts: AtomicU64,
    /// There is a failure among the outcome; to know it without a lock.
    failing: AtomicBool,
    outcome: Mutex<Outcome>,
}

struct Outcome {
    last_success: Instant,
    /// How the latest commit failed, if it did.
    failure: Option<Failure>,
}

struct Failure {
    /// Which attempt it was.
    attempt: u64,
    at: Instant,
    error: FsError,
}

/// Records of a batch after which memory is given back to the system.
const LARGE_BATCH: usize = 20_000;

/// So many times `uncommitted_max` may be uncommitted before requests wait for a commit, or are refused where
/// commits fail: more would take memory (about 250 bytes a record) and make that wait longer.
const COMMIT_LAG_MAX: usize = 2;

/// Gives free memory back to the system: what a large batch took lies scattered between inodes that stay,
/// and the allocator (glibc) keeps it for itself.
fn give_back_memory() {
    // SAFETY: malloc_trim may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Whether a store refused for lack of space.
pub(crate) fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Full(_))
}

/// What requests leave to be done.
struct Backlog {
    /// Objects in use, if any of them could be closed.
    open: usize,
    /// Records that are not committed.
    uncommitted: usize,
    /// Objects that stay open until they are synced with the next batch.
    to_sync_first: usize,
    /// Numbers run out before long.
    numbers_low: bool,
}

impl Backlog {
    fn is_over(&self, settings: &Settings) -> bool {
        self.open > enough_open(settings.open_objects_max) || self.needs_commit(settings)
    }

    fn needs_commit(&self, settings: &Settings) -> bool {
        self.uncommitted > settings.uncommitted_max
            || self.to_sync_first > settings.open_objects_max / 4
            || self.numbers_low
    }
}

/// How commits are doing, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitHealth {
    /// Time since everything done until then was committed.
    pub age: std::time::Duration,
    /// Records that are not committed yet.
    pub pending: usize,
    /// Why the latest commit failed, if it did.
    pub last_error: Option<String>,
}

impl CommitTurn {
    pub fn new(now: Instant) -> CommitTurn {
        CommitTurn {
            turn: Mutex::new(()),
            done: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            outcome: Mutex::new(Outcome { last_success: now, failure: None }),
        }
    }

    fn note_failure(&self, failure: Failure) {
        let mut outcome = self.outcome.lock();
        if outcome.failure.is_none() {
            let error = &failure.error;
            tracing::error!(%error, "commits fail: changes stay in memory until they succeed");
        }
        outcome.failure = Some(failure);
        self.failing.store(true, Ordering::Release);
    }

    fn note_success(&self, started: Instant) {
        let mut outcome = self.outcome.lock();
        if outcome.failure.take().is_some() {
            tracing::info!("commits succeed again");
        }
        outcome.last_success = started;
        self.failing.store(false, Ordering::Release);
    }

    /// How the latest commit failed, if it did and `counts`.
    fn failure(&self, counts: impl Fn(&Failure) -> bool) -> Option<FsError> {
        if !self.failing.load(Ordering::Acquire) {
            return None;
        }
        let outcome = self.outcome.lock();
        outcome
            .failure
            .as_ref()
            .filter(|failure| counts(failure))
            .map(|failed| failed.error.clone())
    }
}

impl Partition {
    /// Makes everything done so far durable, apart from the contents of files.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`], [`FsError::Fenced`]; the changes stay pending and are
    /// committed later if that becomes possible.
    pub fn commit(&self) -> Result<()> {
        self.refresh_writers();
        let newest = self.writes.lock().newest_batch();
        match newest {
            Some(number) => self.commit_through(number),
            None if self.limits_to_store().is_some() => {
                let _turn = self.turn.turn.lock();
                self.store_limits()
            }
            None => {
                self.turn.outcome.lock().last_success = self.clock.instant();
                Ok(())
            }
        }
    }

    /// Commits everything done so far, and copies the store into a new file; returns the number of records.
    ///
    /// # Errors
    /// As [`Partition::commit`]; [`FsError::Refused`] if there is a file of that name.
    pub fn back_up(
        &self,
        file: &std::path::Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        self.commit()?;
        crate::fsck::file::back_up(&*self.store, file, progress)
    }

    /// Waits until batch `number` is committed, committing it if it is this caller's turn.
    pub(crate) fn commit_through(&self, number: u64) -> Result<()> {
        let begun = self.turn.attempts.load(Ordering::Acquire);
        let _turn = self.turn.turn.lock();
        if self.turn.done.load(Ordering::Acquire) >= number {
            return Ok(());
        }
        // A commit that began after this was asked for would have been the one.
        if let Some(error) = self.turn.failure(|failure| failure.attempt > begun) {
            return Err(error);
        }
        // What is pending now is that batch, or a later one if others have committed it; or nothing, if
        // what was pending has been undone since.
        self.commit_batch()
    }

    fn commit_batch(&self) -> Result<()> {
        self.fail_points.reach("commit.start")?;
        let attempt = self.turn.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let started = self.clock.instant();
        let Some(batch) = self.writes.lock().take_batch() else { return Ok(()) };
        if let Err(error) = self.write_batch(&batch) {
            self.writes.lock().batch_failed();
            let failure = Failure { attempt, at: self.clock.instant(), error: error.clone() };
            self.turn.note_failure(failure);
            return Err(error);
        }
        self.writes.lock().batch_committed();
        self.turn.done.store(batch.number, Ordering::Release);
        self.turn.note_success(started);
        self.system_counters.count(Operation::Commit);
        for removal in &batch.removals {
            self.objects.remove(*removal);
        }
        let was_large = batch.record_count() >= LARGE_BATCH;
        drop(batch);
        if was_large {
            give_back_memory();
        }
        self.fail_points.reach("commit.done")?;
        Ok(())
    }

    fn write_batch(&self, batch: &Changes) -> Result<()> {
        for live in batch.to_publish() {
            match self.objects.publish(live) {
                // A name may need space in a directory of the disk, and the reserve may lie on it.
                Err(FsError::NoSpace) => self.publish_from_reserve(live)?,
                published => published?,
            }
        }
        for live in &batch.sync_first {
            if let Err(error) = self.objects.sync_unasked(live) {
                // The disk has failed; holding up everybody's commits would save nothing. Whoever syncs the
                // file is told.
                tracing::error!(object = %live.at.id, %error, "a file that replaced another was not synced");
            }
        }
        self.fail_points.reach("commit.published")?;
        self.store_with_limits(batch.to_store())?;
        self.fail_points.reach("commit.stored")?;
        Ok(())
    }

    /// The reserve of a disk is used up: that of the home folder may lie on the same disk.
    fn publish_from_reserve(&self, live: &LiveObject) -> Result<()> {
        let mut published = Err(FsError::NoSpace);
        while matches!(published, Err(FsError::NoSpace)) && self.reserve.give() {
            published = self.objects.publish(live);
        }
        published
    }

    /// Moves the limits of numbers ahead where nothing else is to be committed: files without a name take
    /// numbers and leave no record.
    fn store_limits(&self) -> Result<()> {
        self.store_with_limits(BTreeMap::new())
    }

    /// Commits `changes`, and the limits of numbers if it is time to move them ahead.
    fn store_with_limits(&self, mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<()> {
        let new_limits = self.limits_to_store();
        if let Some((ino_limit, object_limit)) = new_limits {
            let mut superblock = self.superblock.lock();
            superblock.ino_limit = ino_limit;
            superblock.object_limit = object_limit;
            changes.insert(key::SUPERBLOCK.to_vec(), Some(encode(&*superblock)));
        }
        self.store_batch(&Batch { requires: vec![self.term()], changes })?;
        if let Some((ino_limit, object_limit)) = new_limits {
            self.ino_numbers.limit_stored(ino_limit);
            self.objects.numbers.limit_stored(object_limit);
        }
        Ok(())
    }

    /// The requirement of every commit: that this owner has not been replaced.
    pub(crate) fn term(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        (key::TERM.to_vec(), Some(self.epoch.0.to_be_bytes().to_vec()))
    }

    /// Commits to the store; gives the reserve away if that is what it takes.
    pub(crate) fn store_batch(&self, batch: &Batch) -> Result<()> {
        Ok(self.reserve.spend(|| self.store.commit(batch), is_full)?)
    }

    fn limits_to_store(&self) -> Option<(u64, u64)> {
        let inos = self.ino_numbers.wanted_limit();
        let objects = self.objects.numbers.wanted_limit();
        if inos.is_none() && objects.is_none() {
            return None;
        }
        let ino_limit = inos.unwrap_or_else(|| self.ino_numbers.limit());
        Some((ino_limit, objects.unwrap_or_else(|| self.objects.numbers.limit())))
    }

    /// Takes size and times of files that the kernel is writing into the write set.
    pub(crate) fn refresh_writers(&self) {
        let writers: Vec<_> = self.writers.lock().iter().copied().collect();
        for ino in writers {
            let Some(inode) = self.inodes.peek(ino) else { continue };
            let mut state = inode.lock();
            if let Err(error) = self.refresh(ino, &mut state) {
                tracing::warn!(%ino, %error, "an open file's size is not known");
            }
        }
    }

    /// How commits are doing.
    #[must_use]
    pub fn commit_health(&self) -> CommitHealth {
        let pending = self.writes.lock().pending_len();
        let outcome = self.turn.outcome.lock();
        let age = self.clock.instant().saturating_duration_since(outcome.last_success);
        let last_error = outcome.failure.as_ref().map(|failure| failure.error.to_string());
        CommitHealth { age, pending, last_error }
    }

    /// Whether a commit failed so short a while ago that the next one is not due.
    pub(crate) fn commits_rest(&self) -> bool {
        let since = |at| self.clock.instant().saturating_duration_since(at);
        let is_recent = |failure: &Failure| since(failure.at) < self.settings.commit_interval;
        self.turn.failure(is_recent).is_some()
    }

    /// Refuses an operation that would add to what is uncommitted where commits fail and as much is
    /// uncommitted as may be.
    pub(crate) fn admit(&self) -> Result<()> {
        let Some(error) = self.turn.failure(|_| true) else { return Ok(()) };
        let writes = self.writes.lock();
        let is_full = writes.uncommitted_len() / COMMIT_LAG_MAX > self.settings.uncommitted_max
            || writes.to_sync_first() > self.settings.open_objects_max / 2;
        if is_full { Err(error) } else { Ok(()) }
    }

    /// What the front end calls after each request, with no locks held: keeps uncommitted changes and
    /// open objects within their bounds.
    pub fn after_request(&self) {
        let backlog = self.backlog();
        if !backlog.is_over(&self.settings) {
            return;
        }
        let lag = backlog.uncommitted / COMMIT_LAG_MAX > self.settings.uncommitted_max;
        let rest = self.commits_rest();
        if self.objects.in_background() && !lag && backlog.open <= self.settings.open_objects_max {
            if !rest {
                self.want_commit();
            }
            return;
        }
        if backlog.open > self.settings.open_objects_max {
            self.close_idle_objects();
        }
        if backlog.needs_commit(&self.settings) && !rest {
            // A failure is kept for `status`, and the next interval tries again.
            let _ = self.commit();
        }
    }

    /// Whether [`Partition::after_request`] has something to do. Where that cannot be known at once, whoever
    /// holds the lock is about to look as well.
    #[must_use]
    pub fn is_over_limits(&self) -> bool {
        self.backlog().is_over(&self.settings)
    }

    fn backlog(&self) -> Backlog {
        // Whoever holds the lock is about to look as well.
        let (uncommitted, to_sync_first) = self
            .writes
            .try_lock()
            .map_or((0, 0), |writes| (writes.pending_len(), writes.to_sync_first()));
        let open = self.objects.in_use_count();
        let can_close = open > enough_open(self.settings.open_objects_max) && self.idle.len() > 0;
        Backlog {
            open: if can_close { open } else { 0 },
            uncommitted,
            to_sync_first,
            numbers_low: self.ino_numbers.is_low() || self.objects.numbers.is_low(),
        }
    }

    /// Has the commit thread commit now.
    pub(crate) fn want_commit(&self) {
        if !self.commit_wanted.swap(true, Ordering::AcqRel) {
            drop(self.stop_wanted.0.lock());
            self.stop_wanted.1.notify_all();
        }
    }

    /// Body of the commit thread, until [`Partition::stop_background`].
    pub(crate) fn run_commits(&self) {
        let mut guard = self.stop_wanted.0.lock();
        while !self.is_stopping() {
            if !self.commit_wanted.load(Ordering::Acquire) {
                self.stop_wanted.1.wait_for(&mut guard, self.settings.commit_interval);
            }
            if self.is_stopping() {
                return;
            }
            parking_lot::MutexGuard::unlocked(&mut guard, || {
                let _ = self.commit();
                self.close_idle_objects();
                // Not before: requests that come during the commit ask for one more if they need it.
                self.commit_wanted.store(false, Ordering::Release);
                self.restore_reserves();
                self.objects.look_at_space();
            });
        }
    }
}

impl From<FsError> for std::io::Error {
    fn from(error: FsError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

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

use forebay_base::in_flight::{self, WaitsFor};
use forebay_store::{Batch, StoreError};
use parking_lot::{Mutex, MutexGuard};

use crate::error::{FsError, Result};
use crate::key::{self, Term};
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::record::{DiskRecord, FilesetSettings, MountState, Superblock, encode};
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

/// How often a store is asked whether it took a batch.
const ASKS_MAX: usize = 3;

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
                self.turn.outcome.lock().last_success = self.shared.clock.instant();
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
        let _waits = in_flight::waits_for(|| WaitsFor::Commit);
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

    /// Has nobody commit until it is dropped but its holder, with [`Partition::commit_held`].
    pub(crate) fn hold_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.turn.lock()
    }

    /// Commits everything done so far. The caller holds the turn.
    ///
    /// # Errors
    /// As [`Partition::commit`].
    pub(crate) fn commit_held(&self) -> Result<()> {
        self.commit_batch()
    }

    fn commit_batch(&self) -> Result<()> {
        if let Some(why) = self.gate.closed() {
            return Err(why);
        }
        self.shared.fail_points.reach("commit.start")?;
        let attempt = self.turn.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let started = self.shared.clock.instant();
        self.look_at_quotas();
        let Some(batch) = self.writes.lock().take_batch() else { return Ok(()) };
        if let Err(error) = self.write_batch(&batch) {
            self.writes.lock().batch_failed();
            self.counters.commits.failed.fetch_add(1, Ordering::Relaxed);
            let failure =
                Failure { attempt, at: self.shared.clock.instant(), error: error.clone() };
            self.turn.note_failure(failure);
            return Err(error);
        }
        self.writes.lock().batch_committed();
        self.turn.done.store(batch.number, Ordering::Release);
        self.turn.note_success(started);
        self.count(Operation::Commit);
        let took = self.shared.clock.instant().saturating_duration_since(started);
        self.counters.commits.succeeded(took, batch.record_count());
        for removal in &batch.removals {
            // One that a snapshot shares goes with it.
            if !self.sharing().is_shared(removal.at.id) {
                self.copies().dropped(removal.at.id);
                self.shared.objects.remove(*removal);
            }
        }
        let was_large = batch.record_count() >= LARGE_BATCH;
        drop(batch);
        if was_large {
            give_back_memory();
        }
        self.shared.fail_points.reach("commit.done")?;
        Ok(())
    }

    fn write_batch(&self, batch: &Changes) -> Result<()> {
        for live in batch.to_publish() {
            match self.shared.objects.publish(live) {
                // A name may need space in a directory of the disk, and the reserve may lie on it.
                Err(FsError::NoSpace) => self.publish_from_reserve(live)?,
                // Its bytes are lost, named or not. The others go on.
                Err(error @ FsError::Io(_)) if self.is_on_dead_disk(live) => {
                    tracing::error!(object = %live.at.id, %error, "an object on a disk that fails was not named");
                }
                published => published?,
            }
        }
        for live in batch.sync_first.values() {
            if let Err(error) = self.shared.objects.sync_unasked(live) {
                // The disk has failed; holding up everybody's commits would save nothing. Whoever syncs the
                // file is told.
                tracing::error!(object = %live.at.id, %error, "a file that replaced another was not synced");
            }
        }
        self.shared.fail_points.reach("commit.published")?;
        self.store_with_limits(batch.to_store())?;
        self.shared.fail_points.reach("commit.stored")?;
        Ok(())
    }

    /// The reserve of a disk is used up: that of the home folder may lie on the same disk.
    fn publish_from_reserve(&self, live: &LiveObject) -> Result<()> {
        let is_full = |error: &FsError| matches!(error, FsError::NoSpace);
        self.shared.reserve.spend(|| self.shared.objects.publish(live), is_full)
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
        self.store_batch(changes)?;
        if let Some((ino_limit, object_limit)) = new_limits {
            self.ino_numbers.limit_stored(ino_limit);
            self.object_numbers.limit_stored(object_limit);
        }
        Ok(())
    }

    /// Commits to the store as its owner; gives the reserve away if that is what it takes. One at a time: the caller
    /// has the turn, or nobody else can have it.
    fn store_batch(&self, mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<()> {
        if let Some(why) = self.gate.closed() {
            return Err(why);
        }
        let before = *self.term.lock();
        let after = before.next();
        changes.insert(key::TERM.to_vec(), Some(after.to_bytes()));
        let requires = vec![(key::TERM.to_vec(), Some(before.to_bytes()))];
        let batch = Batch { requires, changes };
        let outcome = self.shared.reserve.spend(|| self.store.commit(&batch), is_full);
        let settled = match outcome {
            Err(StoreError::Unknown(why)) => self.ask_again(before, &why),
            settled => settled,
        };
        if matches!(settled, Err(StoreError::Conflict | StoreError::Unknown(_))) {
            // Memory and store may differ from now on: nothing of it may be told to anybody.
            self.gate.close(FsError::from_store_of(settled.as_ref().err()));
        }
        settled?;
        *self.term.lock() = after;
        Ok(())
    }

    /// Whether a batch is there whose outcome was not known: the term tells. `before` is the term without it.
    fn ask_again(&self, before: Term, why: &str) -> forebay_store::Result<()> {
        for _ in 0..ASKS_MAX {
            let Ok(found) = self.store.get(key::TERM) else { continue };
            let found = found.as_deref().and_then(Term::from_bytes);
            return if found == Some(before.next()) {
                Ok(())
            } else if found == Some(before) {
                Err(StoreError::Io(why.to_owned()))
            } else {
                Err(StoreError::Conflict)
            };
        }
        tracing::error!(fileset = %self.number, why, "the outcome of a commit is not known: the fileset is stopped");
        Err(StoreError::Unknown(why.to_owned()))
    }

    /// Marks the store as left in order, or as one that must be swept all the same.
    pub(crate) fn store_clean(&self, sweep_due: bool) -> Result<()> {
        let _turn = self.turn.turn.lock();
        // A fileset that goes on after all must not be stored as left in order.
        let left = Superblock { state: MountState::Clean, sweep_due, ..self.superblock_now() };
        self.store_superblock(left, BTreeMap::new())
    }

    /// Stores what the superblock is from now on, together with `changes`. In memory it stays as it was until the store has it. The caller has
    /// the turn.
    fn store_superblock(
        &self,
        superblock: Superblock,
        mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ) -> Result<()> {
        changes.insert(key::SUPERBLOCK.to_vec(), Some(encode(&superblock)));
        self.store_batch(changes)?;
        *self.superblock.lock() = superblock;
        Ok(())
    }

    /// Has the store know which objects may be written by nodes that are none any more, as the owner is about to leave.
    pub(crate) fn store_fence(&self) -> Result<()> {
        let Some(bound) = self.fence_to_store() else { return Ok(()) };
        let _turn = self.turn.turn.lock();
        self.store_batch([(key::FENCED.to_vec(), Some(bound.to_bytes()))].into())?;
        self.fence_is_stored(bound);
        Ok(())
    }

    /// The superblock as it is now.
    pub(crate) fn superblock_now(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// Has the superblock say which name and settings the fileset has.
    pub(crate) fn store_settings(&self, settings: &FilesetSettings) -> Result<()> {
        let _turn = self.turn.turn.lock();
        let mut superblock = self.superblock_now();
        settings.clone_into(&mut superblock.settings);
        self.store_superblock(superblock, BTreeMap::new())
    }

    /// Changes what the superblock says of the disks, in the root fileset, together with `changes`. One change at a time;
    /// nothing is changed if `change` refuses.
    ///
    /// # Errors
    /// What `change` or the store says.
    pub(crate) fn change_disks<T>(
        &self,
        changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
        change: impl FnOnce(&mut Vec<DiskRecord>) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn.turn.lock();
        let mut superblock = self.superblock_now();
        let before = superblock.disks.clone();
        let changed = change(&mut superblock.disks)?;
        if superblock.disks == before && changes.is_empty() {
            return Ok(changed);
        }
        self.store_superblock(superblock, changes)?;
        Ok(changed)
    }

    fn limits_to_store(&self) -> Option<(u64, u64)> {
        let inos = self.ino_numbers.wanted_limit();
        let objects = self.object_numbers.wanted_limit();
        if inos.is_none() && objects.is_none() {
            return None;
        }
        let ino_limit = inos.unwrap_or_else(|| self.ino_numbers.limit());
        Some((ino_limit, objects.unwrap_or_else(|| self.object_numbers.limit())))
    }

    /// Takes size and times of files that the kernel is writing into the write set.
    pub(crate) fn refresh_writers(&self) {
        let writers: Vec<_> = self.writers.lock().iter().copied().collect();
        for ino in writers {
            let Some(inode) = self.shared.inodes.peek(ino) else { continue };
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
        let age = self.shared.clock.instant().saturating_duration_since(outcome.last_success);
        let failure = outcome.failure.as_ref().map(|failure| failure.error.clone());
        let last_error = self.gate.closed().or(failure).map(|error| error.to_string());
        CommitHealth { age, pending, last_error }
    }

    /// Whether a commit failed so short a while ago that the next one is not due.
    pub(crate) fn commits_rest(&self) -> bool {
        let since = |at| self.shared.clock.instant().saturating_duration_since(at);
        let is_recent =
            |failure: &Failure| since(failure.at) < self.shared.settings.commit_interval;
        self.turn.failure(is_recent).is_some()
    }

    /// Refuses an operation that would add to what is uncommitted where commits fail and as much is
    /// uncommitted as may be.
    pub(crate) fn admit(&self) -> Result<()> {
        let Some(error) = self.turn.failure(|_| true) else { return Ok(()) };
        let writes = self.writes.lock();
        let is_full = writes.uncommitted_len() / COMMIT_LAG_MAX
            > self.shared.settings.uncommitted_max
            || writes.to_sync_first() > self.shared.settings.open_objects_max / 2;
        if is_full { Err(error) } else { Ok(()) }
    }

    /// Whether objects wait to be removed after a commit.
    pub(crate) fn has_removals(&self) -> bool {
        self.writes.lock().has_removals()
    }

    /// Has the commit thread commit now.
    pub(crate) fn want_commit(&self) {
        if !self.commit_wanted.swap(true, Ordering::AcqRel) {
            self.shared.bell.ring();
        }
    }

    /// Whether a commit was wanted before its time.
    pub(crate) fn is_commit_wanted(&self) -> bool {
        self.commit_wanted.load(Ordering::Acquire)
    }

    /// A commit is done. Requests that come from now on ask for one more if they need it.
    pub(crate) fn commit_came(&self) {
        self.commit_wanted.store(false, Ordering::Release);
    }

    /// Keeps uncommitted changes within their bound, after a request, with no locks held.
    pub(crate) fn relieve(&self) {
        let settings = &self.shared.settings;
        // Whoever holds the lock is about to look as well.
        let Some(writes) = self.writes.try_lock() else { return self.shared.crowd.raise() };
        let (uncommitted, to_sync_first) = (writes.pending_len(), writes.to_sync_first());
        drop(writes);
        let numbers_low = self.ino_numbers.is_low() || self.object_numbers.is_low();
        let needs_commit = uncommitted > settings.uncommitted_max
            || to_sync_first > settings.open_objects_max / 4
            || numbers_low;
        if !needs_commit || self.commits_rest() {
            return;
        }
        let lag = uncommitted / COMMIT_LAG_MAX > settings.uncommitted_max
            || to_sync_first > settings.open_objects_max / 2;
        if self.shared.objects.in_background() && !lag {
            self.want_commit();
        } else {
            // A failure is kept for `status`, and the next interval tries again.
            let _ = self.commit();
        }
    }
}

impl From<FsError> for std::io::Error {
    fn from(error: FsError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

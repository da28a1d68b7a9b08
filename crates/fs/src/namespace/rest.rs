//! Filesets that nobody uses are closed, so that many of them take no memory: they *rest*, and are opened again at their
//! next use.
//!
//! Nothing is lost by that. What was done is in the store; what the kernel was told of stays in the table of its
//! references, as for inodes that memory has dropped. A fileset stays open while any of its files is open, one without a
//! name lives on, locks are held, or something is wrong with it.
//!
//! The disks are not synced for it, which would write young files of other filesets. So its store says *mounted* until
//! the file system is closed in order; this process knows better, and after a crash it counts as one that was open. In
//! a cluster filesets do not rest: one that has no owner at work is another's to take over.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::FilesetId;

use super::catalogue::Fileset;
use super::{Namespace, open_store};
use crate::commit::is_full;
use crate::error::{FsError, Result};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::recovery::mark_left;

/// How long requests that are under way may keep a fileset from resting: those that want it wait meanwhile.
const DRAIN_MAX: Duration = Duration::from_millis(50);
/// Longest time between two looks for filesets that nobody uses.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Looks for them in the time after which one counts as unused.
const LOOKS: u32 = 4;

/// What became of closing a fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Rests,
    /// Somebody is at it just now.
    Busy,
    /// Something of it is in use, for longer perhaps.
    InUse,
}

impl Namespace {
    /// Body of a thread: closes filesets that nobody uses, until [`Background::stop`](super::Background::stop).
    pub(super) fn run_rests(&self) {
        let idle = self.shared.settings.fileset_idle;
        if idle.is_zero() || self.cluster.is_some() {
            return;
        }
        let pause = (idle / LOOKS).min(LOOK_PAUSE_MAX);
        let mut looked = self.shared.clock.instant();
        while !self.shared.bell.is_stopping() {
            // The bell also wakes it for what concerns others.
            self.shared.bell.wait_for_stop(pause);
            let now = self.shared.clock.instant();
            if now.saturating_duration_since(looked) >= pause {
                looked = now;
                self.close_unused(idle);
            }
        }
    }

    /// Closes the filesets that nobody has used for `idle`, as far as calls of this have seen; returns how many.
    pub fn close_unused(&self, idle: Duration) -> usize {
        if self.cluster.is_some() {
            return 0;
        }
        let open: Vec<FilesetId> =
            self.partitions().iter().map(|partition| partition.number()).collect();
        let others = open.into_iter().filter(|id| *id != FilesetId::ROOT);
        let mut closed = 0;
        for fileset in others.filter_map(|id| self.catalogue.get(id)) {
            let now = self.shared.clock.instant();
            if fileset.is_unused(now, idle) {
                match self.rest(&fileset) {
                    Outcome::Rests => closed += 1,
                    Outcome::Busy => {}
                    // Not looked at again for as long: to look takes a pass over all inodes in memory.
                    Outcome::InUse => fileset.used(now),
                }
            }
        }
        closed
    }

    fn rest(&self, fileset: &Fileset) -> Outcome {
        let id = fileset.id;
        // Both have requests wait at the gate.
        let Some(_no_changes) = self.fileset_changes.try_lock() else { return Outcome::Busy };
        let Some(_one_at_a_time) = fileset.opening.try_lock() else { return Outcome::Busy };
        let owner = self.shared.owners.find(id).map(|route| Owner::clone(&route));
        let Some(Owner::Local(partition)) = owner else { return Outcome::Busy };
        // Its snapshots are read by way of it.
        let is_looked_at = self.views.has(id)
            || partition.sharing().is_changing()
            || partition.sharing().is_cloned();
        if is_looked_at || !partition.is_out_of_use() || !self.locks.is_empty(id) {
            return Outcome::InUse;
        }
        partition.gate().wait();
        let outcome = self.close_unless_used(fileset, &partition);
        if outcome != Outcome::Rests {
            self.shared.owners.set(id, Some(&Owner::Local(Arc::clone(&partition))));
            partition.gate().open();
            // What the kernel forgot meanwhile was not told to it.
            partition.dispose_of_dead();
        }
        outcome
    }

    /// Closes a fileset at whose gate requests wait, unless it is in use after all.
    fn close_unless_used(&self, fileset: &Fileset, partition: &Arc<Partition>) -> Outcome {
        let id = fileset.id;
        if !self.shared.owners.drain_within(DRAIN_MAX) {
            return Outcome::Busy;
        }
        self.shared.owners.set(id, None);
        // Closes and forgets pass no gate. Those who wait at it, and all who do something in the background, hold the
        // partition itself.
        if !self.shared.owners.drain_within(DRAIN_MAX) || Arc::strong_count(partition) > 1 {
            return Outcome::Busy;
        }
        if !partition.is_out_of_use() || !self.locks.is_empty(id) {
            return Outcome::InUse;
        }
        match partition.bring_to_rest() {
            Ok(true) => {}
            // An error is kept for status, and the next commit tries again.
            Ok(false) | Err(_) => return Outcome::InUse,
        }
        fileset.rests(partition);
        self.shared.inodes.close_fileset(id);
        if let Err(error) = partition.close_store() {
            tracing::warn!(fileset = %id, %error, "the store of an unused fileset was not closed in order");
        }
        tracing::debug!(fileset = %id, "closed: nobody uses the fileset");
        Outcome::Rests
    }

    /// Marks the filesets that rest as left in order, on disks that were synced since.
    pub(super) fn mark_rested(&self) -> Result<()> {
        for fileset in self.catalogue.list() {
            let Some(epoch) = fileset.rested_in() else { continue };
            let reserve = &self.shared.reserve;
            let store = reserve.spend(|| open_store(&*self.stores, fileset.id, None), is_full)?;
            reserve
                .spend(|| mark_left(&*store, epoch), |error| matches!(error, FsError::NoSpace))?;
            store.close()?;
        }
        Ok(())
    }
}

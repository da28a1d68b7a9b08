//! Moving what snapshots hold off a disk that is to be empty.
//!
//! A file that is moved and the snapshots that share its object go together where the disk can share blocks: the bytes are copied once.

use std::sync::Arc;

use forebay_base::Ino;

use crate::error::Result;
use crate::namespace::Namespace;
use crate::namespace::moves::Pass;
use crate::namespace::tasks::Task;
use crate::object::{FsDisk, LiveObject};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace, Resting};
use crate::partition::snapshots::moving::Held;
use crate::record::DiskRecord;

/// Objects of the snapshots of a fileset that are looked for at a time.
const HELD_AT_A_TIME: usize = 1 << 16;

impl Namespace {
    /// Goes once through what the snapshots of each fileset hold on a disk.
    pub(in crate::namespace) fn pass_of_snapshots(
        &self,
        task: &Task,
        record: &DiskRecord,
        to: Option<&str>,
        pass: &mut Pass,
    ) -> Result<()> {
        if self.cluster.is_some() {
            return Ok(());
        }
        let pools = &self.shared.objects.pools;
        let wished = [pools.named(to.unwrap_or(&record.pool))?, pools.named(&record.pool)?];
        let takes = |disk: &&FsDisk| disk.id != record.id && !disk.is_archive() && disk.takes_new();
        // Snapshots are read in place, so what they hold does not go into an archive.
        let pool = wished.into_iter().find(|pool| {
            self.shared.objects.disks.all().filter(takes).any(|disk| disk.pool() == *pool)
        });
        let suits = |disk: &FsDisk| pool.is_none_or(|pool| disk.pool() == pool);
        for fileset in self.filesets_here() {
            let partition = self.open_fileset(fileset.id)?;
            partition.finish_snapshots()?;
            for held in partition.held_on(record.id, HELD_AT_A_TIME)? {
                self.check_goes_on(task)?;
                let begun = self.shared.clock.instant();
                let moved =
                    self.move_held(&partition, &held, &suits, &|bytes| task.pace.after(bytes));
                let ino = held.ino().unwrap_or(Ino::top_of(fileset.id));
                self.note(task, (ino, moved), begun, pass)?;
            }
        }
        Ok(())
    }

    fn move_held(
        &self,
        partition: &Arc<Partition>,
        held: &Held,
        suits: &dyn Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
    ) -> Result<Moved> {
        let (new, bytes) = partition.copy_held(held, suits, pace)?;
        Ok(match self.turn_to_held(partition, held, &new, &|| true)? {
            Moved::Whole(_) => Moved::Whole(bytes),
            other => other,
        })
    }

    /// Has the snapshots that share the object of a file turn to a copy of their own, which shares its blocks with the copy that the
    /// file is about to have.
    pub(in crate::namespace) fn take_snapshots_along(
        &self,
        partition: &Arc<Partition>,
        resting: &Resting,
        moved: &LiveObject,
    ) -> Result<()> {
        if let Some((held, new)) = partition.copy_for_snapshots(resting, moved)? {
            // A file that was used may have been written before a snapshot was made of it: the copy is of another moment then. Who opens
            // it for writing from now on has the snapshots keep a copy first.
            self.turn_to_held(partition, &held, &new, &|| !partition.is_disturbed(resting))?;
        }
        Ok(())
    }

    fn turn_to_held(
        &self,
        partition: &Arc<Partition>,
        held: &Held,
        new: &LiveObject,
        still: &dyn Fn() -> bool,
    ) -> Result<Moved> {
        let _no_changes = partition.sharing().begin_change();
        if !still() {
            return Ok(Moved::Gone);
        }
        match self.shared.owners.find(partition.number()).as_deref() {
            Some(Owner::Local(found)) if Arc::ptr_eq(found, partition) => {
                partition.turn_to_held(held, new)
            }
            // It was closed meanwhile: the copy has no name yet, and goes.
            _ => Ok(Moved::Gone),
        }
    }

    /// Whether snapshots hold something on a disk that takes nothing new.
    pub(in crate::namespace) fn is_held_by_snapshots(&self, record: &DiskRecord) -> Result<bool> {
        for partition in self.partitions() {
            // Whoever makes a snapshot may wait for what the caller holds.
            let held = partition.try_held_on(record.id, 1)?;
            if held.is_none_or(|held| !held.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

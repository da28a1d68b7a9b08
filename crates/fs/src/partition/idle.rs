//! Taking objects for files, and closing those of files that were closed.

use std::sync::Arc;

use forebay_base::{DiskId, Ino};

use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::object::{FsDisk, LiveObject, Pool};
use crate::partition::Partition;

impl Partition {
    /// Takes a fresh object for a file, unless so many are open that some should be closed and cannot be. It lies in `pool`, or, where
    /// that takes none or is nearly full, in the pool of the fileset.
    pub(crate) fn take_object(&self, pool: Pool) -> Result<Arc<LiveObject>> {
        let shared = &self.shared;
        if shared.objects.in_use_count() > shared.settings.open_objects_max
            && let Some(error) = shared.idle.refusal()
        {
            return Err(error);
        }
        let take = |pool| shared.objects.take_fresh(pool, || self.take_object_id());
        let own = self.pool();
        if pool == own {
            return take(own);
        }
        let is_full = !shared.objects.has_room_in(pool, 0) && shared.objects.has_room_in(own, 0);
        let taken = if is_full { Err(FsError::NoSpace) } else { take(pool) };
        match &taken {
            Ok(_) => shared.objects.pools.accepts(pool),
            Err(
                error @ (FsError::NoSpace
                | FsError::Absent(_)
                | FsError::Away { .. }
                | FsError::Io(_)),
            ) => {
                if let Some(pool) = shared.objects.pools.refuses(pool) {
                    tracing::warn!(fileset = %self.number, pool, %error, "the pool of a placement rule cannot take new files: they go to the pool of their fileset");
                }
                return take(own);
            }
            Err(_) => {}
        }
        taken
    }

    /// Whether none of its files is open, none lives on without a name, and nothing is wrong with it.
    pub(crate) fn is_out_of_use(&self) -> bool {
        // Whoever holds a lock is at it, perhaps for long.
        let is_closed = |inode: &Arc<Inode>| {
            inode.try_lock().is_some_and(|state| {
                let is_copying = state.file().is_some_and(|file| file.copy != 0);
                state.nlink > 0 && state.handles() == 0 && !is_copying
            })
        };
        self.gate.closed().is_none()
            && !self.copies.has_work()
            && self.damage.files().is_empty()
            && self.cached().iter().all(is_closed)
    }

    /// Commits everything and closes all objects, while nobody uses the fileset. Whether nothing remains to be done.
    ///
    /// # Errors
    /// What the store or a disk says.
    pub(crate) fn bring_to_rest(&self) -> Result<bool> {
        for inode in self.cached() {
            self.close_idle_object(inode.ino)?;
        }
        Ok(self.settle()? && !self.is_unswept())
    }

    /// Drops the inodes that have no name, no handle and no reference of the kernel.
    pub(crate) fn dispose_of_dead(&self) {
        for inode in self.cached() {
            self.dispose_if_dead(inode.ino, &mut inode.lock());
        }
    }

    /// As [`Partition::take_object`], on one of `disks`, which another node has: published, so that programs of that node
    /// find it. Where none of them takes one it lies on a disk of this node.
    pub(crate) fn take_object_on(&self, disks: &[DiskId], pool: Pool) -> Result<Arc<LiveObject>> {
        if !disks.is_empty() {
            let number = || self.take_object_id();
            let suits = |of: &FsDisk| self.suits_node(of, disks);
            match self.shared.objects.make_named(suits, number) {
                Ok(made) => return Ok(made),
                Err(error) => {
                    tracing::debug!(%error, "new bytes cannot go to the node that writes them");
                }
            }
        }
        self.take_object(pool)
    }

    /// Publishes and closes the object of a closed file.
    pub(crate) fn close_idle_object(&self, ino: Ino) -> Result<()> {
        let Some(inode) = self.shared.inodes.peek(ino) else { return Ok(()) };
        let mut state = inode.lock();
        let unlinked = state.nlink == 0;
        let Some(file) = state.file_mut() else { return Ok(()) };
        file.idle_queued = false;
        if unlinked || file.opens.handles > 0 {
            return Ok(());
        }
        if file.is_unpublished() {
            // A file that was empty when it was closed has an object of which no record knows yet, if its
            // object may still be written through a mapping: only objects that a record refers to are published.
            self.put_inode(&mut self.writes.lock(), ino, &mut state);
        }
        let Some(file) = state.file_mut() else { return Ok(()) };
        if let Some(live) = file.live.take() {
            if file.was_mappable && live.is_open_elsewhere() {
                self.sharing().may_be_mapped(ino);
            }
            if let Err(error) = self.shared.objects.publish(&live)
                && !self.is_on_dead_disk(&live)
            {
                file.live = Some(live);
                self.shared.idle.put_back(ino, file);
                return Err(error);
            }
            self.writes.lock().withhold(live.at.id);
            self.shared.objects.drop_handle(live);
        }
        file.settle();
        Ok(())
    }
}

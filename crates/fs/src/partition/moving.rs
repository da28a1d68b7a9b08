//! What a partition takes along when its fileset gets another owner in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{DiskId, Ino};

use crate::clients::Handles;
use crate::error::{FsError, Result};
use crate::inode::Way;
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::record::DiskRecord;

impl Partition {
    /// What cannot be taken along: files that programs of this node have open on the direct path, and open files
    /// without a name.
    pub(crate) fn ties(&self) -> (usize, usize) {
        let (mut direct, mut nameless) = (0, 0);
        for inode in self.cached() {
            let state = inode.lock();
            let Some(file) = state.file().filter(|file| file.opens.handles > 0) else { continue };
            direct += usize::from(file.opens.way == Some(Way::Direct));
            nameless += usize::from(state.nlink == 0);
        }
        (direct, nameless)
    }

    /// The files that programs of this node have open.
    pub(crate) fn own_handles(&self) -> Vec<(Ino, Handles)> {
        let mut found = Vec::new();
        for inode in self.cached() {
            let state = inode.lock();
            let Some(opens) = state.file().map(|file| file.opens) else { continue };
            let all = opens.handles.saturating_sub(opens.of_nodes);
            if all > 0 {
                let executors = opens.executors.min(all);
                found.push((inode.ino, Handles { all, writers: opens.writers, executors }));
            }
        }
        found
    }

    /// Programs of this node have had a file open at its owner, which is this one now. It stays on the way that it went
    /// until they have closed it: on the direct path if it did on `near`, its object.
    pub(crate) fn adopt_handles(
        &self,
        ino: Ino,
        handles: Handles,
        near: Option<Arc<LiveObject>>,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        let file = state.file_mut().ok_or(FsError::Stale)?;
        let near = near.filter(|live| file.object == Some(live.at));
        let was_near = near.is_some();
        if let Some(live) = near {
            file.live = Some(live);
        }
        let live = self.make_live(file)?;
        if was_near {
            // Its owner may not have asked for the size since it was written.
            self.adopt_size(&live, &mut state)?;
            self.put_inode(&mut self.writes.lock(), ino, &mut state);
        }
        let file = state.file_mut().ok_or(FsError::Stale)?;
        let is_direct = live.has_registration();
        file.opens.way = Some(if is_direct { Way::Direct } else { Way::Served });
        if is_direct && handles.writers > 0 {
            // Each of them may have been opened for reading, too.
            file.opens.mappers += handles.writers;
            self.writers.lock().insert(ino);
        }
        file.opens.handles += handles.all;
        file.opens.writers += handles.writers;
        file.opens.executors += handles.executors;
        Ok(())
    }

    /// Directories with changes of names that are not committed.
    pub(crate) fn uncommitted_directories(&self) -> Vec<Ino> {
        self.writes.lock().changed_directories()
    }

    /// What a name leads to within the fileset, if anything.
    pub(crate) fn named(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let directory = self.inode(parent).ok()?;
        let (_directory, found) = self.lock_and_find(&directory, name).ok()?;
        found.map(|(_, child)| child.ino).filter(|ino| self.owns(*ino))
    }

    /// Gives a disk a number, in the root fileset; one that has one keeps it.
    ///
    /// # Errors
    /// What the store says: the disk has no number then.
    pub(crate) fn add_disk(&self, uuid: &str, location: &str) -> Result<DiskRecord> {
        self.add_disk_like(&DiskRecord::new(DiskId(0), uuid, location))
    }

    /// As [`Partition::add_disk`], with everything that a record says but its number.
    ///
    /// # Errors
    /// As [`Partition::add_disk`].
    pub(crate) fn add_disk_like(&self, new: &DiskRecord) -> Result<DiskRecord> {
        self.change_disks(BTreeMap::new(), |disks| {
            if let Some(known) = disks.iter().find(|disk| disk.uuid == new.uuid) {
                return Ok(known.clone());
            }
            let next = disks.iter().map(|disk| disk.id.0.checked_add(1)).max();
            let id = next.unwrap_or(Some(0)).ok_or_else(|| {
                FsError::Refused("there are as many disks as a file system can have".to_owned())
            })?;
            let record = DiskRecord { id: DiskId(id), ..new.clone() };
            disks.push(record.clone());
            Ok(record)
        })
    }
}

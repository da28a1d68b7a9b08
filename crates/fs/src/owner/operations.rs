//! The operations on files, each carried out by whoever owns the fileset: a partition, a native tree, another node.
//! What an operation does and how it can fail is said where it is carried out (`partition/ops/`).

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::Ino;
use forebay_disk::{Allocate, Seek, Sync};

use super::{InArchive, Owner};
use crate::attributes::{Attributes, SetAttributes, SetId};
use crate::error::{FsError, Result};
use crate::object::{LiveObject, SeenObject};
use crate::ops::{
    Access, Closer, DirectoryItem, Found, New, NodeOpener, Opened, Replace, SetXattr,
};
use crate::partition::Caller;
use crate::record::ObjectRef;
use crate::snapshot::CopyOfSnapshot;
use crate::stats::Operation;

/// What a listing calls with each entry.
pub(crate) type Visit<'a> = dyn FnMut(&DirectoryItem) -> ControlFlow<()> + 'a;

/// The bytes that a copy reads.
pub(crate) enum Source {
    /// An object of this node, and the bytes there are.
    Object(Arc<LiveObject>, u64),
    /// An open file of a snapshot.
    OfSnapshot(CopyOfSnapshot),
    /// The owner copies within its own filesets alone.
    Theirs,
}

/// Where bytes are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, wherever that is; the kernel takes this offset for it.
    End(u64),
}

// --- names ---

impl Owner {
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        match self {
            Owner::Local(partition) => partition.lookup(parent, name),
            Owner::Native(native) => native.lookup(parent, name),
            Owner::Remote(remote) => remote.lookup(parent, name),
        }
    }

    /// The top of a fileset, to which a name in the root directory leads.
    pub(crate) fn look_at(&self, ino: Ino) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.look_at(ino),
            Owner::Native(native) => native.look_up_top(),
            Owner::Remote(remote) => remote.look_at(ino),
        }
    }

    pub(crate) fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.create(parent, name, new, caller),
            Owner::Native(native) => native.tree()?.create(parent, name, new, caller),
            Owner::Remote(remote) => remote.create(parent, name, new, caller),
        }
    }

    pub(crate) fn create_unnamed(
        &self,
        parent: Ino,
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.create_unnamed(parent, new, caller),
            Owner::Native(native) => native.tree()?.create_unnamed(parent, new, caller),
            Owner::Remote(remote) => remote.create_unnamed(parent, new, caller),
        }
    }

    pub(crate) fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.link(ino, parent, name),
            Owner::Native(native) => native.tree()?.link(ino, parent, name),
            Owner::Remote(remote) => remote.link(ino, parent, name),
        }
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.unlink(parent, name),
            Owner::Native(native) => native.tree()?.unlink(parent, name),
            Owner::Remote(remote) => remote.unlink(parent, name),
        }
    }

    /// Refuses a name of a directory of a cache whose names were not fetched: once its parent does not follow the home any more, no
    /// visit puts another directory in its place.
    pub(crate) fn check_named_fetched(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self {
            Owner::Local(partition) if partition.is_cache() => {
                partition.check_named_fetched(parent, name)
            }
            Owner::Local(_) | Owner::Native(_) | Owner::Remote(_) => Ok(()),
        }
    }

    pub(crate) fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.remove_directory(parent, name),
            Owner::Native(native) => native.tree()?.remove_directory(parent, name),
            Owner::Remote(remote) => remote.remove_directory(parent, name),
        }
    }

    pub(crate) fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.rename(from.0, from.1, to.0, to.1, replace),
            Owner::Native(native) => native.tree()?.rename(from.0, from.1, to.0, to.1, replace),
            Owner::Remote(remote) => remote.rename(from, to, replace, None),
        }
    }

    pub(crate) fn rename_with_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        caller: Caller,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.rename_with_whiteout(from, to, replace, caller),
            Owner::Native(native) => native.tree()?.rename_with_whiteout(from, to, replace, caller),
            Owner::Remote(remote) => remote.rename(from, to, replace, Some(caller)),
        }
    }

    /// Refuses to move a fileset itself: the kernel must not copy it in its place.
    pub(crate) fn check_leaves(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.check_leaves(parent, name),
            Owner::Native(_) => Ok(()),
            Owner::Remote(remote) => remote.check_leaves(parent, name),
        }
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        match self {
            Owner::Local(partition) => partition.read_link(ino),
            Owner::Native(native) => native.read_link(ino),
            Owner::Remote(remote) => remote.read_link(ino),
        }
    }

    pub(crate) fn open_directory(&self, ino: Ino) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.open_directory(ino),
            Owner::Native(native) => native.open_directory(ino),
            Owner::Remote(remote) => remote.open_directory(ino),
        }
    }

    pub(crate) fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.read_directory(ino, offset, visit),
            Owner::Native(native) => native.read_directory(ino, offset, visit),
            Owner::Remote(remote) => remote.read_directory(ino, offset, visit),
        }
    }

    pub(crate) fn read_directory_ahead(
        &self,
        ino: Ino,
        offset: u64,
        most: usize,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.read_directory_ahead(ino, offset, most, visit),
            Owner::Native(_) | Owner::Remote(_) => self.read_directory(ino, offset, visit),
        }
    }
}

// --- attributes ---

impl Owner {
    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.attributes(ino),
            Owner::Native(native) => native.attributes(ino),
            Owner::Remote(remote) => remote.attributes(ino),
        }
    }

    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.getattr(ino),
            Owner::Native(native) => native.attributes(ino),
            Owner::Remote(remote) => remote.attributes(ino),
        }
    }

    pub(crate) fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.set_attributes(ino, set),
            Owner::Native(native) => native.tree()?.set_attributes(ino, set),
            Owner::Remote(remote) => remote.set_attributes(ino, set),
        }
    }

    pub(crate) fn kill_set_id(&self, ino: Ino) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.kill_set_id(ino),
            Owner::Native(native) => native.tree()?.kill_set_id(ino),
            Owner::Remote(remote) => remote.kill_set_id(ino),
        }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            Owner::Local(partition) => partition.xattr(ino, name),
            Owner::Native(native) => native.xattr(ino, name),
            Owner::Remote(remote) => remote.xattr(ino, name),
        }
    }

    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match self {
            Owner::Local(partition) => partition.list_xattrs(ino),
            Owner::Native(native) => native.list_xattrs(ino),
            Owner::Remote(remote) => remote.list_xattrs(ino),
        }
    }

    pub(crate) fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.set_xattr(ino, set),
            Owner::Native(native) => native.tree()?.set_xattr(ino, set),
            Owner::Remote(remote) => remote.set_xattr(ino, set),
        }
    }

    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.remove_xattr(ino, name),
            Owner::Native(native) => native.tree()?.remove_xattr(ino, name),
            Owner::Remote(remote) => remote.remove_xattr(ino, name),
        }
    }
}

// --- open files ---

impl Owner {
    pub(crate) fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        match self {
            Owner::Local(partition) => partition.open_file(ino, access, caller),
            Owner::Native(native) => native.open_file(ino, access, caller),
            Owner::Remote(remote) => remote.open_file(ino, access, caller),
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        match self {
            Owner::Local(partition) => partition.is_open(ino),
            Owner::Native(native) => native.is_open(ino),
            Owner::Remote(remote) => remote.is_open(ino),
        }
    }

    pub(crate) fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.close_file(ino, access),
            Owner::Native(native) => native.close_file(ino, access),
            Owner::Remote(remote) => remote.close_file(ino, access, None),
        }
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Owner::Local(partition) => partition.read(ino, offset, buffer),
            Owner::Native(native) => native.read(ino, offset, buffer),
            Owner::Remote(remote) => remote.read(ino, offset, buffer),
        }
    }

    /// Where a file lies, if that is in an archive.
    pub(crate) fn in_archive(&self, ino: Ino) -> Result<Option<InArchive>> {
        match self {
            Owner::Local(partition) => {
                let found = partition.archived(ino)?;
                Ok(found.map(|(at, size)| InArchive { ino, at, size: Some(size) }))
            }
            Owner::Native(native) => match native.snapshot() {
                Some(view) => Ok(view.archived(ino)?.map(|at| InArchive { ino, at, size: None })),
                None => Ok(None),
            },
            Owner::Remote(_) => Ok(None),
        }
    }

    /// So many bytes of a file of the fileset were read otherwise than by [`Owner::read`].
    pub(crate) fn count_read(&self, bytes: usize) {
        if let Owner::Local(partition) = self {
            partition.count_read(bytes);
        }
    }

    pub(crate) fn write(&self, ino: Ino, at: At, data: &[u8], set_id: SetId) -> Result<usize> {
        match (self, at) {
            (Owner::Local(partition), At::End(offset)) => {
                partition.append_for_kernel(ino, offset, data, set_id)
            }
            (Owner::Local(partition), At::Offset(offset)) => {
                partition.write_with(ino, offset, data, set_id)
            }
            (Owner::Native(native), At::End(_)) => {
                let tree = native.tree()?;
                let written = tree.append(ino, data)?;
                if set_id != SetId::Keep {
                    tree.kill_set_id(ino)?;
                }
                Ok(written)
            }
            (Owner::Native(native), At::Offset(offset)) if set_id == SetId::Keep => {
                native.tree()?.write(ino, offset, data)
            }
            (Owner::Native(native), At::Offset(offset)) => {
                native.tree()?.write_unprivileged(ino, offset, data)
            }
            (Owner::Remote(remote), at) => remote.write(ino, at, data, set_id),
        }
    }

    pub(crate) fn allocate(
        &self,
        ino: Ino,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.allocate(ino, what, offset, length),
            Owner::Native(native) => native.tree()?.allocate(ino, what, offset, length),
            Owner::Remote(remote) => remote.allocate(ino, what, offset, length),
        }
    }

    pub(crate) fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        match self {
            Owner::Local(partition) => partition.seek(ino, target, offset),
            Owner::Native(native) => native.seek(ino, target, offset),
            Owner::Remote(remote) => remote.seek(ino, target, offset),
        }
    }

    /// What a copy reads from.
    pub(crate) fn source_of_copy(&self, ino: Ino, offset: u64) -> Result<Source> {
        match self {
            Owner::Local(partition) => {
                let (object, left) = partition.source_of_copy(ino, offset)?;
                Ok(Source::Object(object, left))
            }
            Owner::Native(native) => match native.snapshot() {
                Some(view) => {
                    Ok(view.source_of_copy(ino, offset)?.map_or(Source::Theirs, Source::OfSnapshot))
                }
                None => Ok(Source::Theirs),
            },
            Owner::Remote(_) => Ok(Source::Theirs),
        }
    }

    /// Copies from an object of this node.
    pub(crate) fn copy_from(
        &self,
        from: (&LiveObject, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        match self {
            Owner::Local(partition) => partition.copy_from(from, to, length),
            // The kernel copies through memory then.
            Owner::Native(_) | Owner::Remote(_) => Err(FsError::CrossFileset),
        }
    }

    /// Copies within a fileset that is not a partition of this process.
    pub(crate) fn copy_within(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        match self {
            // It has become one since.
            Owner::Local(_) => Err(FsError::Moved),
            Owner::Native(native) => native.tree()?.copy_range(from, to, length),
            Owner::Remote(remote) => remote.copy_range(from, to, length),
        }
    }

    pub(crate) fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.sync_file(ino, what),
            Owner::Native(native) => native.sync_file(ino, what),
            Owner::Remote(remote) => remote.sync_file(ino, what),
        }
    }

    pub(crate) fn sync_directory(&self, ino: Ino) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.sync_directory(ino),
            Owner::Native(native) => native.sync_directory(ino),
            Owner::Remote(remote) => remote.sync_directory(ino),
        }
    }
}

// --- for other nodes: this node's own filesets alone, never one of a third node ---

impl Owner {
    /// Opens a file for another node: where its object lies, if that is not a disk of this node, and the other
    /// one may go there itself.
    pub(crate) fn open_for_node(
        &self,
        ino: Ino,
        access: Access,
        caller: Caller,
        by: NodeOpener<'_>,
    ) -> Result<Option<ObjectRef>> {
        match self {
            Owner::Local(partition) => partition.open_for_node(ino, access, caller, by),
            Owner::Native(native) => native.tree()?.open_file(ino, access, caller).map(|_| None),
            Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    pub(crate) fn close_for_node(&self, ino: Ino, access: Access, by: Closer) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.close_for_node(ino, access, by),
            Owner::Native(native) => native.close_file(ino, access),
            Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    pub(crate) fn attributes_for_node(
        &self,
        ino: Ino,
        seen: Option<SeenObject>,
    ) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => {
                partition.count(Operation::Getattr);
                partition.attributes_by(ino, seen)
            }
            Owner::Native(_) | Owner::Remote(_) => self.getattr(ino),
        }
    }

    pub(crate) fn set_attributes_for_node(
        &self,
        ino: Ino,
        set: SetAttributes,
        seen: Option<SeenObject>,
    ) -> Result<Attributes> {
        match self {
            Owner::Local(partition) => partition.set_attributes_by(ino, set, seen),
            Owner::Native(_) | Owner::Remote(_) => self.set_attributes(ino, set),
        }
    }

    pub(crate) fn sync_for_node(
        &self,
        ino: Ino,
        what: Sync,
        seen: Option<SeenObject>,
    ) -> Result<()> {
        match self {
            Owner::Local(partition) => partition.sync_file_by(ino, what, seen),
            Owner::Native(_) | Owner::Remote(_) => self.sync_file(ino, what),
        }
    }

    pub(crate) fn append_for_node(&self, ino: Ino, data: &[u8], set_id: SetId) -> Result<usize> {
        match self {
            Owner::Local(partition) => partition.append(ino, data, set_id),
            Owner::Native(_) => self.write(ino, At::End(0), data, set_id),
            Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    /// Attributes of a listed entry; `None` if it is gone. The kernel is told of it.
    pub(crate) fn listed_attributes(
        &self,
        parent: Ino,
        item: &DirectoryItem,
    ) -> Result<Option<Attributes>> {
        let is_top = parent.fileset() != item.ino.fileset();
        match self {
            // Why one does not answer is told to those who look it up: it keeps no listing from going on.
            Owner::Local(partition) if partition.gate().closed().is_some() => Ok(None),
            Owner::Local(partition) => partition.listed_attributes(item),
            // A fileset that cannot be reached must not hide the others.
            Owner::Native(native) if is_top => Ok(native.look_up_top().ok()),
            Owner::Native(native) => native.listed_attributes(parent, item),
            // What is not kept here is left to whoever asks for it.
            Owner::Remote(remote) => Ok(remote.listed_attributes(parent, item)),
        }
    }
}

//! The operations on files, each handed to the owner of its inode. What an operation does and how it can fail is said
//! where it is carried out (`ops/`).
//!
//! Only here two filesets meet: the name of a fileset in the root directory leads into another one, a rename or link
//! between two is refused, and a copy reads from one and writes to the other.

use std::ops::ControlFlow;

use forebay_base::Ino;
use forebay_disk::{Allocate, Seek, Sync};

use super::Namespace;
use crate::attributes::{Attributes, SetAttributes};
use crate::error::{FsError, Result};
use crate::native::NativeTree;
use crate::ops::{Access, DirectoryItem, Found, New, Opened, Replace, SetXattr};
use crate::owner::Owner;
use crate::partition::Caller;

impl Namespace {
    // --- names ---

    /// The inode that `name` names in `parent`. The kernel is told of it: it must be forgotten once.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let found = match &*self.owner(parent)? {
            Owner::Local(partition) => partition.lookup(parent, name)?,
            Owner::Native(native) => return native.tree()?.lookup(parent, name),
        };
        match found {
            Found::Here(attributes) => Ok(attributes),
            Found::Elsewhere(ino) => match &*self.owner(ino)? {
                Owner::Local(partition) => partition.look_at(ino),
                Owner::Native(native) => native.tree()?.look_up_top(),
            },
        }
    }

    /// Makes an inode and names it `name` in `parent`. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotDirectory`], [`FsError::NameTooLong`], [`FsError::Invalid`],
    /// [`FsError::NotFound`] if `parent` was removed.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.create(parent, name, new, caller),
            Owner::Native(native) => native.tree()?.create(parent, name, new, caller),
        }
    }

    /// Makes a regular file without a name; [`Namespace::link`] can give it one. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if `parent` was removed.
    pub fn create_unnamed(&self, parent: Ino, new: New<'_>, caller: Caller) -> Result<Attributes> {
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.create_unnamed(parent, new, caller),
            Owner::Native(native) => native.tree()?.create_unnamed(parent, new, caller),
        }
    }

    /// Names `ino` also `name` in `parent`. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::CrossFileset`] between filesets, [`FsError::Exists`], [`FsError::NotPermitted`] for a directory,
    /// [`FsError::TooManyLinks`], [`FsError::NotFound`] if either was removed.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        if ino.fileset() != parent.fileset() {
            return Err(FsError::CrossFileset);
        }
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.link(ino, parent, name),
            Owner::Native(native) => native.tree()?.link(ino, parent, name),
        }
    }

    /// Removes the name of something that is not a directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NotDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.unlink(parent, name),
            Owner::Native(native) => native.tree()?.unlink(parent, name),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`], [`FsError::Busy`] for
    /// the root of a fileset.
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.remove_directory(parent, name),
            Owner::Native(native) => native.tree()?.remove_directory(parent, name),
        }
    }

    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`.
    ///
    /// # Errors
    /// [`FsError::CrossFileset`] between filesets, [`FsError::Busy`] for the root of a fileset,
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::NotEmpty`], [`FsError::IsDirectory`],
    /// [`FsError::NotDirectory`], [`FsError::Invalid`] for a directory that would move below itself.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        replace: Replace,
    ) -> Result<()> {
        self.check_one_fileset(parent, name, new_parent)?;
        match &*self.owner(parent)? {
            Owner::Local(partition) => {
                partition.rename(parent, name, new_parent, new_name, replace)
            }
            Owner::Native(native) => {
                native.tree()?.rename(parent, name, new_parent, new_name, replace)
            }
        }
    }

    /// As [`Namespace::rename`], and leaves a whiteout of `caller` at the old name. Not for [`Replace::Exchange`].
    ///
    /// # Errors
    /// As [`Namespace::rename`]; [`FsError::Invalid`] for an exchange.
    pub fn rename_with_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        caller: Caller,
    ) -> Result<()> {
        self.check_one_fileset(from.0, from.1, to.0)?;
        match &*self.owner(from.0)? {
            Owner::Local(partition) => partition.rename_with_whiteout(from, to, replace, caller),
            Owner::Native(native) => native.tree()?.rename_with_whiteout(from, to, replace, caller),
        }
    }

    /// Refuses a rename between filesets, and one of a fileset itself: that is not to be copied in its place.
    fn check_one_fileset(&self, parent: Ino, name: &[u8], new_parent: Ino) -> Result<()> {
        if parent.fileset() == new_parent.fileset() {
            return Ok(());
        }
        match &*self.owner(parent)? {
            Owner::Local(partition) => partition.check_leaves(parent, name)?,
            Owner::Native(_) => {}
        }
        Err(FsError::CrossFileset)
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if the inode is not a symlink.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.read_link(ino),
            Owner::Native(native) => native.tree()?.read_link(ino),
        }
    }

    /// Checks that an inode is a directory.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub fn open_directory(&self, ino: Ino) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.open_directory(ino),
            Owner::Native(native) => native.tree()?.open_directory(ino),
        }
    }

    /// Lists a directory from `offset` (0, or the `next_offset` of an entry) until `visit` breaks.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`], [`FsError::Io`].
    pub fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.read_directory(ino, offset, visit),
            Owner::Native(native) => native.tree()?.read_directory(ino, offset, visit),
        }
    }

    /// As [`Namespace::read_directory`], for a visitor that wants the attributes of about `most` entries.
    ///
    /// # Errors
    /// As [`Namespace::read_directory`].
    pub fn read_directory_ahead(
        &self,
        ino: Ino,
        offset: u64,
        most: usize,
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.read_directory_ahead(ino, offset, most, visit),
            Owner::Native(native) => native.tree()?.read_directory(ino, offset, visit),
        }
    }

    /// Attributes of a listed entry of `parent`; `None` if it is gone. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::Damaged`].
    pub fn listed_attributes(
        &self,
        parent: Ino,
        item: &DirectoryItem,
    ) -> Result<Option<Attributes>> {
        match self.shared.owners.find(item.ino.fileset()).as_deref() {
            // Why one does not answer is told to those who look it up: it keeps no listing from going on.
            Some(Owner::Local(partition)) if partition.gate().closed().is_some() => Ok(None),
            Some(Owner::Local(partition)) => partition.listed_attributes(item),
            Some(Owner::Native(native)) if parent.fileset() == item.ino.fileset() => {
                native.tree()?.listed_attributes(parent, item)
            }
            // A fileset that cannot be reached must not hide the others.
            Some(Owner::Native(native)) => Ok(native.tree().and_then(NativeTree::look_up_top).ok()),
            // A fileset that is not open is not opened by a listing: the kernel looks it up when somebody asks for it.
            None => Ok(None),
        }
    }

    // --- attributes ---

    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is gone; [`FsError::Io`] if an open file's object cannot be asked.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.attributes(ino),
            Owner::Native(native) => native.tree()?.attributes(ino),
        }
    }

    /// As [`Namespace::attributes`], counted as a request for attributes alone.
    ///
    /// # Errors
    /// As [`Namespace::attributes`].
    pub fn getattr(&self, ino: Ino) -> Result<Attributes> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.getattr(ino),
            Owner::Native(native) => native.tree()?.getattr(ino),
        }
    }

    /// Changes attributes; returns them as they are then.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`] or [`FsError::Invalid`] for the size of something that is not a file,
    /// [`FsError::TooLarge`], [`FsError::NoSpace`], [`FsError::Io`].
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.set_attributes(ino, set),
            Owner::Native(native) => native.tree()?.set_attributes(ino, set),
        }
    }

    /// Takes the set-id bits of a file away, as a change of its content by an ordinary user does.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn kill_set_id(&self, ino: Ino) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.kill_set_id(ino),
            Owner::Native(native) => native.tree()?.kill_set_id(ino),
        }
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.xattr(ino, name),
            Owner::Native(native) => native.tree()?.xattr(ino, name),
        }
    }

    /// Names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Io`].
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.list_xattrs(ino),
            Owner::Native(native) => native.tree()?.list_xattrs(ino),
        }
    }

    /// Sets an extended attribute. Setting an access control list sets the mode bits it stands for.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`], [`FsError::AttributeTooLarge`], [`FsError::NoSpace`] if all
    /// attributes of the inode would take more than 1 MiB, [`FsError::NameTooLong`], [`FsError::Invalid`] for a
    /// malformed list.
    pub fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.set_xattr(ino, set),
            Owner::Native(native) => native.tree()?.set_xattr(ino, set),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.remove_xattr(ino, name),
            Owner::Native(native) => native.tree()?.remove_xattr(ino, name),
        }
    }

    // --- open files ---

    /// Opens a regular file. Every open must be closed once, with the same access.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Invalid`] for other kinds, [`FsError::ExecutableBusy`] for cutting a
    /// program that runs, [`FsError::NoSpace`] if the file needs an object and there is no room for one,
    /// [`FsError::Io`].
    pub fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.open_file(ino, access, caller),
            Owner::Native(native) => native.tree()?.open_file(ino, access, caller),
        }
    }

    /// Whether anybody has a file open.
    #[must_use]
    pub fn is_open(&self, ino: Ino) -> bool {
        self.owner(ino).is_ok_and(|owner| match &*owner {
            Owner::Local(partition) => partition.is_open(ino),
            Owner::Native(native) => native.tree().is_ok_and(|tree| tree.is_open(ino)),
        })
    }

    /// Closes one handle of a file.
    ///
    /// # Errors
    /// [`FsError::Io`] if the object cannot be asked for its size; the handle is closed all the same.
    pub fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        match &*self.owner_behind_gate(ino)? {
            Owner::Local(partition) => partition.close_file(ino, access),
            Owner::Native(native) => native.tree()?.close_file(ino, access),
        }
    }

    /// Reads up to `buffer.len()` bytes at `offset` of an open file; fewer only at its end.
    ///
    /// # Errors
    /// [`FsError::Io`], also where bytes of the file are lost; [`FsError::Stale`].
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.read(ino, offset, buffer),
            Owner::Native(native) => native.tree()?.read(ino, offset, buffer),
        }
    }

    /// Writes `data` at `offset` of an open file. Returns the bytes written: fewer if the rest was refused, and
    /// the next write tells why.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.write(ino, offset, data),
            Owner::Native(native) => native.tree()?.write(ino, offset, data),
        }
    }

    /// As [`Namespace::write`], of a handle that writes at the end of the file: the kernel takes `offset` for it, other
    /// programs may have moved that of a native file.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn append(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.write(ino, offset, data),
            Owner::Native(native) => native.tree()?.append(ino, data),
        }
    }

    /// As [`Namespace::write`], by somebody who may not keep set-id bits alive.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn write_unprivileged(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.write_unprivileged(ino, offset, data),
            Owner::Native(native) => native.tree()?.write_unprivileged(ino, offset, data),
        }
    }

    /// Reserves, punches or zeroes a range of an open file.
    ///
    /// # Errors
    /// [`FsError::Unsupported`], [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn allocate(&self, ino: Ino, what: Allocate, offset: u64, length: u64) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.allocate(ino, what, offset, length),
            Owner::Native(native) => native.tree()?.allocate(ino, what, offset, length),
        }
    }

    /// The first offset at or after `offset` with data or a hole.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`].
    pub fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.seek(ino, target, offset),
            Owner::Native(native) => native.tree()?.seek(ino, target, offset),
        }
    }

    /// Copies up to `length` bytes between two open files, or within one if the ranges do not overlap,
    /// sharing blocks where the disk can. Returns the bytes copied.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for ranges that overlap, [`FsError::NoSpace`], [`FsError::TooLarge`].
    pub fn copy_range(
        &self,
        (source, source_offset): (Ino, u64),
        (target, target_offset): (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        if source == target && source_offset.abs_diff(target_offset) < length {
            // Only what there is counts for an overlap.
            let left = self.attributes(source)?.size.saturating_sub(source_offset);
            if source_offset.abs_diff(target_offset) < length.min(left) {
                return Err(FsError::Invalid);
            }
        }
        let (from, left) = match &*self.owner(source)? {
            Owner::Local(partition) => partition.source_of_copy(source, source_offset)?,
            Owner::Native(native) if source.fileset() == target.fileset() => {
                let (from, to) = ((source, source_offset), (target, target_offset));
                return native.tree()?.copy_range(from, to, length);
            }
            // Between a native fileset and another the kernel copies through memory.
            Owner::Native(_) => return Err(FsError::CrossFileset),
        };
        let from = (&*from, source_offset);
        match &*self.owner(target)? {
            Owner::Local(partition) => {
                partition.copy_from(from, (target, target_offset), length.min(left))
            }
            Owner::Native(_) => Err(FsError::CrossFileset),
        }
    }

    // --- durability, space, and what the kernel holds ---

    /// Makes a file's bytes, attributes and name durable, if its fileset is strict.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::NoSpace`]: nothing is promised then.
    pub fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.sync_file(ino, what),
            Owner::Native(native) => native.tree()?.sync_file(ino, what),
        }
    }

    /// Makes a directory's entries durable, if its fileset is strict.
    ///
    /// # Errors
    /// As [`Namespace::sync_file`].
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        match &*self.owner(ino)? {
            Owner::Local(partition) => partition.sync_directory(ino),
            Owner::Native(native) => native.tree()?.sync_directory(ino),
        }
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        match self.shared.owners.find(ino.fileset()).as_deref() {
            Some(Owner::Local(partition)) => partition.forget(ino, count),
            Some(Owner::Native(native)) => native.forget(ino, count),
            // What is not open has no inode that would have to go.
            None => drop(self.shared.inodes.forget(ino, count)),
        }
    }
}

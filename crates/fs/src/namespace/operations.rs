//! The operations on files, each handed to the owner of its inode. What an operation does and how it can fail is said
//! where it is carried out (`ops/`).
//!
//! Only here two filesets meet: the name of a fileset in the root directory leads into another one, a rename or link
//! between two is refused, and a copy reads from one and writes to the other.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::{Ino, in_flight};
use forebay_disk::{Allocate, Seek, Sync};

use super::Namespace;
use crate::attributes::{Attributes, SetAttributes, SetId};
use crate::error::{FsError, Result};
use crate::grants::Touched;
use crate::object::SeenObject;
use crate::ops::{Access, DirectoryItem, Found, New, Opened, Replace, SetXattr};
use crate::owner::{At, Owner, Source};
use crate::partition::Caller;
use crate::record::Kind;

impl Namespace {
    // --- names ---

    /// The inode that `name` names in `parent`. The kernel is told of it: it must be forgotten once.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let mut found = self.at(parent, |owner| owner.lookup(parent, name));
        if matches!(found, Err(FsError::NotFound)) && self.lists_nodes(parent) {
            // A node may have come of which this one has not heard.
            self.refresh()?;
            found = self.at(parent, |owner| owner.lookup(parent, name));
        }
        if matches!(found, Err(FsError::NotFound))
            && name == crate::snapshot::DIRECTORY
            && let Some(directory) = self.snapshot_directory(parent)?
        {
            return Ok(directory);
        }
        match found? {
            Found::Here(attributes) => self.told_of(self.as_of_cache(attributes)),
            Found::Elsewhere(ino) => {
                let found = self.as_of_cache(self.at(ino, |owner| owner.look_at(ino))?);
                Ok(self.named_elsewhere((parent, name), found))
            }
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
        if !matches!(new.kind, Kind::File | Kind::Directory | Kind::Symlink) {
            self.refuse_in_single_writer(parent.fileset())?;
        }
        let touched = || Touched::new_name(parent, name);
        self.change(parent, touched, |owner| owner.create(parent, name, new, caller))
    }

    /// Makes a regular file named `name` in `parent` and opens it. The kernel is told of it. Where it cannot be opened, it is not
    /// made.
    ///
    /// # Errors
    /// As [`Namespace::create`] and [`Namespace::open_file`].
    pub fn create_file(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        access: Access,
        caller: Caller,
    ) -> Result<(Attributes, Opened)> {
        let touched = || Touched::new_name(parent, name);
        if self.cluster.is_some() {
            let lineage = self.lineage(parent.fileset());
            let made = self.change_bytes(parent, touched, |owner| match owner {
                Owner::Remote(remote) => {
                    remote.create_file(parent, name, new, (access, caller)).map(Some)
                }
                Owner::Local(_) | Owner::Native(_) => Ok(None),
            })?;
            if let Some((attributes, opened)) = made {
                return Ok((attributes, Opened { lineage, ..opened }));
            }
        }
        let attributes = self.create(parent, name, new, caller)?;
        match self.open_file(attributes.ino, access, caller) {
            Ok(opened) => Ok((attributes, opened)),
            Err(error) => {
                let _ = self.unlink(parent, name);
                self.forget(attributes.ino, 1);
                Err(error)
            }
        }
    }

    /// Makes a regular file without a name; [`Namespace::link`] can give it one. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if `parent` was removed.
    pub fn create_unnamed(&self, parent: Ino, new: New<'_>, caller: Caller) -> Result<Attributes> {
        self.before_change(parent.fileset(), &[])?;
        self.refuse_in_single_writer(parent.fileset())?;
        self.at(parent, |owner| owner.create_unnamed(parent, new, caller))
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
        self.refuse_in_single_writer(parent.fileset())?;
        let touched = || {
            let mut touched = Touched::new_name(parent, name);
            touched.inodes.push(ino);
            touched
        };
        self.change(parent, touched, |owner| owner.link(ino, parent, name))
    }

    /// Removes the name of something that is not a directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NotDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let touched = || Touched::names([(parent, name)]);
        self.change(parent, touched, |owner| owner.unlink(parent, name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`], [`FsError::Busy`] for
    /// the root of a fileset; [`FsError::Archived`] in a cache, if names are to be fetched before ([`Namespace::recall_named`]).
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let touched = || Touched::names([(parent, name)]);
        self.before_removal(parent, name)?;
        self.change(parent, touched, |owner| {
            owner.check_named_fetched(parent, name)?;
            owner.remove_directory(parent, name)
        })
    }

    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`.
    ///
    /// # Errors
    /// [`FsError::CrossFileset`] between filesets, [`FsError::Busy`] for the root of a fileset,
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::NotEmpty`], [`FsError::IsDirectory`],
    /// [`FsError::NotDirectory`], [`FsError::Invalid`] for a directory that would move below itself; [`FsError::Archived`] as
    /// [`Namespace::remove_directory`].
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        replace: Replace,
    ) -> Result<()> {
        let (from, to) = ((parent, name), (new_parent, new_name));
        self.renaming(from, to, replace, |owner| owner.rename(from, to, replace))
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
        self.refuse_in_single_writer(from.0.fileset())?;
        self.renaming(from, to, replace, |owner| {
            owner.rename_with_whiteout(from, to, replace, caller)
        })
    }

    /// Renames by `rename`. What the kernel was not told of yet it would rename otherwise than the owner (see `untold.rs`).
    fn renaming(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        mut rename: impl FnMut(&Owner) -> Result<()>,
    ) -> Result<()> {
        self.check_one_fileset(from.0, from.1, to.0)?;
        if replace == Replace::Exchange && self.refuse_in_single_writer(to.0.fileset()).is_err() {
            return Err(FsError::Invalid);
        }
        let (both, asker, mut is_untold) = ([from, to], in_flight::asker(), false);
        let moved = if replace == Replace::Exchange { &both[..] } else { &both[..1] };
        let replaced = Some(to).filter(|_| replace == Replace::Allowed);
        replaced.map_or(Ok(()), |(parent, name)| self.before_removal(parent, name))?;
        self.change(
            from.0,
            || Touched::names([from, to]),
            |owner| {
                replaced
                    .map_or(Ok(()), |(parent, name)| owner.check_named_fetched(parent, name))?;
                if let Owner::Local(_) = owner {
                    is_untold |= self.shared.untold.check(moved, asker)?;
                }
                rename(owner)
            },
        )?;
        if is_untold {
            self.tell_own_kernel_of_names(&both);
        }
        Ok(())
    }

    /// Refuses a rename between filesets, and one of a fileset itself: that is not to be copied in its place.
    fn check_one_fileset(&self, parent: Ino, name: &[u8], new_parent: Ino) -> Result<()> {
        if parent.fileset() == new_parent.fileset() {
            return Ok(());
        }
        self.at(parent, |owner| owner.check_leaves(parent, name))?;
        Err(FsError::CrossFileset)
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if the inode is not a symlink.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.at(ino, |owner| owner.read_link(ino))
    }

    /// Checks that an inode is a directory.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub fn open_directory(&self, ino: Ino) -> Result<()> {
        self.at(ino, |owner| owner.open_directory(ino))
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
        if offset == 0
            && self.lists_nodes(ino)
            && let Err(error) = self.refresh()
        {
            tracing::warn!(%error, "nodes that have just come are missing in a listing");
        }
        // Should the owner change on the way, the listing goes on where it was.
        let mut offset = offset;
        self.at(ino, |owner| {
            owner.read_directory(ino, offset, &mut |item| {
                let seen = visit(item);
                if seen.is_continue() {
                    offset = item.next_offset;
                }
                seen
            })
        })
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
        // Should the owner change on the way, the listing goes on where it was.
        let mut offset = offset;
        self.at(ino, |owner| {
            owner.read_directory_ahead(ino, offset, most, &mut |item| {
                let seen = visit(item);
                if seen.is_continue() {
                    offset = item.next_offset;
                }
                seen
            })
        })
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
            Some(owner) => {
                let found = owner.listed_attributes(parent, item)?;
                let found = found.map(|found| self.as_of_cache(found));
                // One that must be taken back first is left to whoever asks for it.
                Ok(found.filter(|found| {
                    let is_here = !self.is_delegated(found);
                    if !is_here {
                        self.shared.inodes.forget(found.ino, 1);
                    }
                    is_here
                }))
            }
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
        self.at_bytes(ino, |owner| owner.attributes(ino)).map(|found| self.as_of_cache(found))
    }

    /// As [`Namespace::attributes`], counted as a request for attributes alone.
    ///
    /// # Errors
    /// As [`Namespace::attributes`].
    pub fn getattr(&self, ino: Ino) -> Result<Attributes> {
        self.at_bytes(ino, |owner| owner.getattr(ino)).map(|found| self.as_of_cache(found))
    }

    /// Changes attributes; returns them as they are then.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`] or [`FsError::Invalid`] for the size of something that is not a file,
    /// [`FsError::TooLarge`], [`FsError::NoSpace`], [`FsError::Io`].
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        self.recalling(ino, || self.set_attributes_here(ino, set))
    }

    /// As [`Namespace::set_attributes`], of a file that does not lie in an archive.
    ///
    /// # Errors
    /// As [`Namespace::set_attributes`]; [`FsError::Archived`] if its size is to change and its bytes lie in one.
    pub fn set_attributes_here(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        if set.size.is_some() {
            self.queue_bytes(ino)?;
        }
        self.change_bytes(ino, || Touched::inode(ino), |owner| owner.set_attributes(ino, set))
    }

    /// Takes the set-id bits of a file away, as a change of its content by an ordinary user does.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn kill_set_id(&self, ino: Ino) -> Result<()> {
        self.change(ino, || Touched::inode(ino), |owner| owner.kill_set_id(ino))
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.at(ino, |owner| owner.xattr(ino, name))
    }

    /// Names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Io`].
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let names = self.at(ino, |owner| owner.list_xattrs(ino))?;
        Ok(self.without_own_xattrs(ino.fileset(), names))
    }

    /// Sets an extended attribute. Setting an access control list sets the mode bits it stands for.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`], [`FsError::AttributeTooLarge`], [`FsError::NoSpace`] if all
    /// attributes of the inode would take more than 1 MiB, [`FsError::NameTooLong`], [`FsError::Invalid`] for a
    /// malformed list.
    pub fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        self.check_own_xattr(ino.fileset(), set.name)?;
        self.refuse_in_single_writer(ino.fileset())?;
        self.change(ino, || Touched::inode(ino), |owner| owner.set_xattr(ino, set))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`]; [`FsError::NotPermitted`] for one by which an inode of a cache follows its home.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_own_xattr(ino.fileset(), name)?;
        self.refuse_in_single_writer(ino.fileset())?;
        self.change(ino, || Touched::inode(ino), |owner| owner.remove_xattr(ino, name))
    }

    // --- open files ---

    /// Opens a regular file. Every open must be closed once, with the same access.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Invalid`] for other kinds, [`FsError::ExecutableBusy`] for cutting a
    /// program that runs, [`FsError::NoSpace`] if the file needs an object and there is no room for one,
    /// [`FsError::Io`].
    pub fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        self.recalling(ino, || self.open_file_here(ino, access, caller))
    }

    /// As [`Namespace::open_file`], of a file that does not lie in an archive.
    ///
    /// # Errors
    /// As [`Namespace::open_file`]; [`FsError::Archived`] if its bytes lie in one.
    pub fn open_file_here(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        if access.write && !access.truncate {
            self.leave_full_disk(ino);
        }
        if access.truncate {
            self.before_truncation(ino)?;
        }
        let lineage = self.lineage(ino.fileset());
        let open = |owner: &Owner| owner.open_file(ino, access, caller);
        let opened = if access.write || access.truncate {
            self.queue_bytes(ino)?;
            let opened = self.change_bytes(ino, || Touched::inode(ino), open)?;
            // The change may have been taken before the file was open.
            if let Err(error) = self.queue_bytes(ino) {
                let _ = self.close_file(ino, access);
                return Err(error);
            }
            opened
        } else {
            self.at_bytes(ino, open)?
        };
        Ok(Opened { lineage, ..opened })
    }

    /// Whether anybody has a file open.
    #[must_use]
    pub fn is_open(&self, ino: Ino) -> bool {
        self.owner(ino).is_ok_and(|owner| owner.is_open(ino))
    }

    /// Closes one handle of a file.
    ///
    /// # Errors
    /// [`FsError::Io`] if the object cannot be asked for its size; the handle is closed all the same.
    pub fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        self.close_left(ino, access, None)
    }

    /// As [`Namespace::close_file`], with what [`Namespace::let_go_of`] said of the handle.
    ///
    /// # Errors
    /// As [`Namespace::close_file`].
    pub fn close_left(&self, ino: Ino, access: Access, left: Option<SeenObject>) -> Result<()> {
        if self.cluster.is_some() {
            return self.close_in_cluster(ino, access, left);
        }
        self.owner_behind_gate(ino)?.close_file(ino, access)
    }

    /// Reads up to `buffer.len()` bytes at `offset` of an open file; fewer only at its end.
    ///
    /// # Errors
    /// [`FsError::Io`], also where bytes of the file are lost; [`FsError::Stale`].
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.read_here(ino, offset, buffer) {
            Err(FsError::Archived) => self.read_archived(ino, offset, buffer, None),
            done => done,
        }
    }

    /// Writes `data` at `offset` of an open file. Returns the bytes written: fewer if the rest was refused, and
    /// the next write tells why.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.at_bytes(ino, |owner| owner.write(ino, At::Offset(offset), data, SetId::Keep))
    }

    /// As [`Namespace::write`], of a handle that writes at the end of the file: the kernel takes `offset` for it, other
    /// programs may have moved that of a native file.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn append(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.at(ino, |owner| owner.write(ino, At::End(offset), data, SetId::Keep))
    }

    /// As [`Namespace::write`], by somebody who may not keep set-id bits alive.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn write_unprivileged(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.at_bytes(ino, |owner| owner.write(ino, At::Offset(offset), data, SetId::Kill))
    }

    /// Reserves, punches or zeroes a range of an open file.
    ///
    /// # Errors
    /// [`FsError::Unsupported`], [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn allocate(&self, ino: Ino, what: Allocate, offset: u64, length: u64) -> Result<()> {
        self.at_bytes(ino, |owner| owner.allocate(ino, what, offset, length))
    }

    /// The first offset at or after `offset` with data or a hole.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`].
    pub fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        match self.seek_here(ino, target, offset) {
            Err(FsError::Archived) => self.seek_archived(ino, target, offset, None),
            done => done,
        }
    }

    /// Copies up to `length` bytes between two open files, or within one if the ranges do not overlap,
    /// sharing blocks where the disk can. Returns the bytes copied.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for ranges that overlap, [`FsError::NoSpace`], [`FsError::TooLarge`]; [`FsError::CrossFileset`] if the
    /// caller is to copy through memory, as from a file that is read in an archive.
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
        let found = self.at(source, |owner| owner.source_of_copy(source, source_offset));
        match found.map_err(through_memory)? {
            Source::Object(from, left) => {
                let (from, to) = ((&*from, source_offset), (target, target_offset));
                self.at(target, |owner| owner.copy_from(from, to, length.min(left)))
            }
            Source::OfSnapshot(from) => {
                let (object, to) = ((&*from.object, source_offset), (target, target_offset));
                let length = length.min(from.left);
                let copied = self.at(target, |owner| owner.copy_from(object, to, length))?;
                // Otherwise the kernel copies the same range once more, through memory.
                if from.is_right() { Ok(copied) } else { Err(FsError::CrossFileset) }
            }
            Source::Theirs if source.fileset() == target.fileset() => {
                let (from, to) = ((source, source_offset), (target, target_offset));
                self.at(source, |owner| owner.copy_within(from, to, length))
            }
            // The kernel copies through memory.
            Source::Theirs => Err(FsError::CrossFileset),
        }
    }

    // --- durability, space, and what the kernel holds ---

    /// Makes a file's bytes, attributes and name durable, if its fileset is strict.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::NoSpace`]: nothing is promised then. [`FsError::Stale`] once if attributes that were set by this
    /// node may be lost, with a former owner or because they could not be reported in time.
    pub fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        let tell = || match what {
            Sync::All => self.tell_of_lost_attributes(ino),
            Sync::Data => Ok(()),
        };
        tell()?;
        self.sync_shared_object(ino, what)?;
        self.at_bytes(ino, |owner| owner.sync_file(ino, what))?;
        tell()
    }

    /// Makes a directory's entries durable, if its fileset is strict.
    ///
    /// # Errors
    /// As [`Namespace::sync_file`]; [`FsError::Stale`] once if names that were changed by this node may be lost with a former
    /// owner.
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        self.tell_of_lost_names(ino)?;
        self.at(ino, |owner| owner.sync_directory(ino))?;
        // The next owner may have synced less than was changed.
        self.tell_of_lost_names(ino)
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        let remote = match self.shared.owners.find(ino.fileset()).as_deref() {
            Some(Owner::Local(partition)) => return partition.forget(ino, count),
            Some(Owner::Native(native)) => return native.forget(ino, count),
            Some(Owner::Remote(remote)) => Arc::clone(remote),
            // What is not open has no inode that would have to go.
            None => return drop(self.shared.inodes.forget(ino, count)),
        };
        remote.forget(ino, count);
    }
}

/// What a copy from a file that is read in an archive says: the kernel reads it then, and waits for what it reads.
fn through_memory(error: FsError) -> FsError {
    if matches!(error, FsError::Archived) { FsError::CrossFileset } else { error }
}

//! Finding inodes by name and by number.

use forebay_base::Ino;
use forebay_disk::ObjectAttributes;

use crate::attributes::Attributes;
use crate::directory::NAME_MAX;
use crate::error::{FsError, Result};
use crate::inode::{Body, State, Way};
use crate::object::SeenObject;
use crate::partition::Partition;
use crate::record::Kind;
use crate::stats::Operation;

/// What a name leads to.
#[derive(Debug)]
pub enum Found {
    /// An inode of the same fileset. The kernel is told of it: it must be forgotten once.
    Here(Attributes),
    /// An inode of another fileset, whose owner knows it.
    Elsewhere(Ino),
}

impl Partition {
    /// The inode that `name` names in `parent`.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        self.count(Operation::Lookup);
        let directory = self.inode(parent)?;
        let ino = match name {
            b"." => parent,
            b".." => self.parent_of(parent, &directory.lock()),
            _ => {
                let (_directory, found) = self.lock_and_find(&directory, name)?;
                found.ok_or(FsError::NotFound)?.1.ino
            }
        };
        if self.owns(ino) { self.look_at(ino).map(Found::Here) } else { Ok(Found::Elsewhere(ino)) }
    }

    /// Attributes of an inode that a name leads to. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is gone, [`FsError::Io`].
    pub fn look_at(&self, ino: Ino) -> Result<Attributes> {
        self.remember(ino);
        let found = self.attributes(ino);
        if found.is_err() {
            self.forget(ino, 1);
        }
        match found {
            // The name was removed a moment ago.
            Err(FsError::Stale) => Err(FsError::NotFound),
            other => other,
        }
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is gone; [`FsError::Io`] if an open file's object cannot be asked.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        self.attributes_by(ino, None)
    }

    /// As [`Partition::attributes`], for a node that has just `seen` the object on a disk of its own.
    pub(crate) fn attributes_by(&self, ino: Ino, seen: Option<SeenObject>) -> Result<Attributes> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.refresh_by(ino, &mut state, seen)?;
        if let Some(file) = state.file_mut().filter(|file| file.times_untold) {
            // The kernel is told now.
            file.times_untold = false;
        }
        Ok(Attributes::of(ino, &state))
    }

    /// Counts a request for attributes alone.
    ///
    /// # Errors
    /// As [`Partition::attributes`].
    pub fn getattr(&self, ino: Ino) -> Result<Attributes> {
        self.count(Operation::Getattr);
        self.attributes(ino)
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if the inode is no symlink.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        match &state.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            Body::File(_) | Body::Directory(_) | Body::Special => Err(FsError::Invalid),
        }
    }

    /// Takes size and times from the object of a file that the kernel may have written, or the node of its disk, into
    /// memory and the write set.
    pub(crate) fn refresh(&self, ino: Ino, state: &mut State) -> Result<()> {
        debug_assert_eq!(state.kind == Kind::File, state.body.is_file());
        let Some(file) = state.file() else { return Ok(()) };
        let Some(live) = &file.live else { return Ok(()) };
        let opens = &file.opens;
        let at_home = live.is_written_at_home();
        if !at_home && (opens.way != Some(Way::Direct) || opens.writers == 0) {
            return Ok(());
        }
        let found = match self.shared.objects.observe(live.at.disk, live.object.attributes()) {
            // The node that wrote it is gone: nobody sees more of the file until that is back.
            Err(FsError::Absent(_) | FsError::Away { .. })
                if at_home && opens.writers_of_nodes == 0 =>
            {
                return Ok(());
            }
            found => found?,
        };
        if at_home && opens.writers_of_nodes == 0 {
            live.set_written_at_home(false);
        }
        self.take_seen(ino, state, found);
        Ok(())
    }

    /// Takes size and times of an object into memory and the write set.
    pub(crate) fn take_seen(&self, ino: Ino, state: &mut State, found: ObjectAttributes) {
        let Some(file) = state.file().filter(|file| found != file.seen) else { return };
        let written = found.modified != file.seen.modified || found.size != file.seen.size;
        if let Some(file) = state.file_mut() {
            file.see(found);
            file.times_untold |= written && file.opens.mappers > 0;
        }
        // The kernel does not tell how much it wrote: what shows is the growth.
        let grown = found.size.saturating_sub(state.size);
        let resized = found.size != state.size;
        self.counters.add(Operation::BytesWritten, grown);
        if let (Some(growth), 1..) = (self.shared.growth.get(), grown) {
            growth.grew(ino, grown);
        }
        state.size = found.size;
        state.allocated_bytes = found.allocated_bytes;
        if written {
            state.modified = found.modified;
            state.changed = state.changed.max(found.modified);
        }
        let mut writes = self.writes.lock();
        if resized {
            self.put_inode(&mut writes, ino, state);
        } else {
            self.put_times(&mut writes, ino, state);
        }
    }
}

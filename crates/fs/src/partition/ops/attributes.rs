//! Changing attributes.

use forebay_base::{Ino, Timestamp};

use crate::acl::{self, Acl};
use crate::attributes::{Attributes, SetAttributes, SetId, SetTime};
use crate::caching::queue::Change;
use crate::error::{FsError, Result};
use crate::inode::{MODE_BITS, State};
use crate::object::SeenObject;
use crate::ops::read_write::FILE_SIZE_MAX;
use crate::partition::Partition;
use crate::partition::quota::settle;
use crate::partition::writing_back::Tell;
use crate::record::Kind;
use crate::stats::Operation;
use crate::writeset::Known;

impl Partition {
    /// Changes attributes; returns them as they are then.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`] or [`FsError::Invalid`] for the size of something that is no file,
    /// [`FsError::TooLarge`], [`FsError::NoSpace`], [`FsError::Io`].
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        self.set_attributes_by(ino, set, None)
    }

    /// As [`Partition::set_attributes`], for a node that has just `seen` the object on a disk of its own.
    pub(crate) fn set_attributes_by(
        &self,
        ino: Ino,
        set: SetAttributes,
        seen: Option<SeenObject>,
    ) -> Result<Attributes> {
        if set.size.is_some() {
            self.part_from_snapshots(ino)?;
            self.part_from_fenced(ino)?;
            return self.with_copies(ino, true, || {
                self.set_attributes_now(ino, set, (seen, None), Tell::Home)
            });
        }
        self.set_attributes_now(ino, set, (seen, None), Tell::Home)
    }

    /// An inode of a cache has these attributes at home, which is not told of them.
    pub(crate) fn take_attributes(&self, ino: Ino, set: SetAttributes) -> Result<()> {
        self.set_attributes_now(ino, set, (None, None), Tell::Nobody).map(drop)
    }

    /// As [`Partition::set_attributes_by`], of attributes that a node has set already, at that time, apart from the size: quotas do not
    /// refuse it.
    pub(crate) fn set_attributes_reported(
        &self,
        ino: Ino,
        set: SetAttributes,
        (seen, time): (Option<SeenObject>, Timestamp),
    ) -> Result<Attributes> {
        if set.size.is_some() {
            return Err(FsError::Invalid);
        }
        self.set_attributes_now(ino, set, (seen, Some(time)), Tell::Home)
    }

    fn set_attributes_now(
        &self,
        ino: Ino,
        set: SetAttributes,
        (seen, reported): (Option<SeenObject>, Option<Timestamp>),
        tell: Tell,
    ) -> Result<Attributes> {
        let inode = self.inode(ino)?;
        self.count(Operation::InodeUpdate);
        let (mut state, list) = match set.mode {
            Some(_) => self.lock_with_xattr(&inode, acl::ACCESS)?,
            None => (inode.lock(), None),
        };
        self.refresh_by(ino, &mut state, seen)?;
        let now = reported.unwrap_or_else(|| self.now());
        let before = (state.uid, state.gid);
        let owners = (set.uid.unwrap_or(state.uid), set.gid.unwrap_or(state.gid));
        let admitted = match self.admit_owners(&state, owners) {
            Err(FsError::QuotaExceeded) if reported.is_some() => None,
            admitted => admitted?,
        };
        if let Some(size) = set.size {
            self.resize(ino, &mut state, size)?;
            state.touch(now);
        }
        let mut access_list = list.map(|list| Acl::parse(&list)).transpose()?;
        if let Some(mode) = set.mode {
            state.mode = mode & MODE_BITS;
            access_list.iter_mut().for_each(|list| list.apply_mode(mode));
        }
        match set.set_id {
            SetId::Kill if state.kind != Kind::Directory => drop(state.kill_set_id()),
            SetId::KillIfWritten { gid }
                if state.file().is_some_and(|file| file.opens.is_written()) =>
            {
                state.kill_set_id_for(gid);
            }
            SetId::Keep | SetId::Kill | SetId::KillIfWritten { .. } => {}
        }
        let time = |asked: SetTime| match asked {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if let Some(accessed) = set.accessed {
            state.accessed = time(accessed);
        }
        if let Some(modified) = set.modified {
            state.modified = time(modified);
        }
        state.changed = now;
        let mut writes = self.writes.lock();
        (state.uid, state.gid) = owners;
        if owners != before {
            self.move_owners(&mut writes, ino, &state, before);
        }
        settle(admitted, &mut writes);
        if let Some(list) = access_list {
            let value = (acl::ACCESS, list.encode());
            self.put_xattr(&mut writes, ino, &mut state, value, Known::MayExist);
        }
        self.put_inode(&mut writes, ino, &mut state);
        if tell == Tell::Home {
            self.queue_change(&mut writes, || match set.size {
                Some(_) => Change::Bytes(ino),
                None => Change::Attributes(ino),
            });
        }
        Ok(Attributes::of(ino, &state))
    }

    /// Takes the set-id bits of a file away, as a change of its content by an ordinary user does.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn kill_set_id(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        if state.kind == Kind::File && state.kill_set_id() {
            state.changed = self.now();
            let mut writes = self.writes.lock();
            self.put_inode(&mut writes, ino, &mut state);
            self.queue_change(&mut writes, || Change::Attributes(ino));
        }
        Ok(())
    }

    /// Cuts or extends a file.
    fn resize(&self, ino: Ino, state: &mut State, size: u64) -> Result<()> {
        if state.is_directory() {
            return Err(FsError::IsDirectory);
        }
        let is_unfetched = self.is_unfetched(state);
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        if size > FILE_SIZE_MAX {
            return Err(FsError::TooLarge);
        }
        if is_unfetched {
            return Err(FsError::Archived);
        }
        if size == 0 && file.object.is_none() {
            return Ok(());
        }
        let live = self.make_live(file)?;
        let admitted = self.admit_growth(state, size)?;
        self.shared.objects.set_size(&live, size)?;
        self.adopt_size(&live, state)?;
        if admitted.is_some() {
            let mut writes = self.writes.lock();
            self.put_inode(&mut writes, ino, state);
            settle(admitted, &mut writes);
        }
        let linked = state.nlink > 0;
        if let Some(file) = state.file_mut().filter(|file| linked && file.opens.handles == 0) {
            self.shared.idle.closed(ino, file);
        }
        Ok(())
    }
}

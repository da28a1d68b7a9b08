//! Changing attributes of a native fileset's inodes, its extended attributes, and listing its directories.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};

use forebay_base::{Ino, Timestamp};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RawDir, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::attributes::{Attributes, SetAttributes, SetId, SetTime};
use crate::error::{FsError, Result};
use crate::native::known::Known;
use crate::native::system::{
    STAND_IN, Seen, c_name, kind_of, open_directory, path_of, reopen, said, step,
};
use crate::native::tree::NativeTree;
use crate::ops::{DirectoryItem, SetMode, SetXattr};
use crate::record::Kind;

/// Bytes of a directory that are read at once.
const LIST_BYTES: usize = 32 << 10;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

impl NativeTree {
    /// Changes attributes; returns them as they are then.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`] or [`FsError::Invalid`] for the size of something that is not a file; what the disk's
    /// file system says.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        let (known, inode) = self.reach(ino)?;
        let inode = inode.as_fd();
        if let Some(size) = set.size {
            resize(&known, inode, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (user, group) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(inode, c"", user, group, AtFlags::EMPTY_PATH).map_err(said)?;
        }
        if let Some(mode) = set.mode {
            change_mode(&known, inode, mode)?;
        }
        match set.set_id {
            SetId::Keep => {}
            SetId::Kill => kill_set_id(&known, inode)?,
            SetId::KillIfWritten { gid } => {
                if known.opens.lock().is_written() {
                    kill_set_id_for(&known, inode, gid)?;
                }
            }
        }
        if set.accessed.is_some() || set.modified.is_some() {
            let times = Timestamps {
                last_access: time(set.accessed),
                last_modification: time(set.modified),
            };
            rustix::fs::utimensat(inode, c"", &times, AtFlags::EMPTY_PATH).map_err(said)?;
        }
        Seen::of(inode)?.attributes(ino)
    }

    /// Takes the set-id bits of a file away, as a change of its content by an ordinary user does.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn kill_set_id(&self, ino: Ino) -> Result<()> {
        let (known, inode) = self.reach(ino)?;
        kill_set_id(&known, inode.as_fd())
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`]; what the disk's file system says.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (_, inode) = self.reach(ino)?;
        let (path, name) = (path_of(inode.as_fd()), c_name(name)?);
        read_growing(|room| rustix::fs::getxattr(&path, &name, room))
    }

    /// Names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, inode) = self.reach(ino)?;
        let path = path_of(inode.as_fd());
        read_growing(|room| rustix::fs::listxattr(&path, room))
    }

    /// Sets an extended attribute. Setting an access control list sets the mode bits it stands for.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`]; what the disk's file system says.
    pub fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        let (known, inode) = self.reach(ino)?;
        let flags = match set.mode {
            SetMode::Any => XattrFlags::empty(),
            SetMode::Create => XattrFlags::CREATE,
            SetMode::Replace => XattrFlags::REPLACE,
        };
        let (path, name) = (path_of(inode.as_fd()), c_name(set.name)?);
        rustix::fs::setxattr(path, name, set.value, flags).map_err(said)?;
        if set.kill_set_gid {
            let mode = Seen::of(inode.as_fd())?.mode();
            if mode & SET_GID != 0 {
                change_mode(&known, inode.as_fd(), mode & !SET_GID)?;
            }
        }
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`]; what the disk's file system says.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let (_, inode) = self.reach(ino)?;
        rustix::fs::removexattr(path_of(inode.as_fd()), c_name(name)?).map_err(said)
    }

    /// Checks that an inode is a directory, and that its list can be read.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub fn open_directory(&self, ino: Ino) -> Result<()> {
        self.directory(ino).map(drop)
    }

    /// Lists a directory from `offset` (0, or the `next_offset` of an entry) until `visit` breaks. Offsets are those of
    /// the disk's file system, which keeps them while entries come and go.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`]; what the disk's file system says.
    pub fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        let stand_in = self.directory(ino)?;
        let directory = open_directory(stand_in.as_fd())?;
        if offset > 0 {
            rustix::fs::seek(&directory, SeekFrom::Start(offset)).map_err(said)?;
        }
        let mut room = Vec::with_capacity(LIST_BYTES);
        let mut entries = RawDir::new(&directory, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(said)?;
            let name = entry.file_name().to_bytes();
            let target = match name {
                b"." => ino,
                b".." if self.is_top(ino) => Ino::ROOT,
                _ => self.listed_ino(entry.ino()),
            };
            let kind = kind_of(entry.file_type()).or_else(|| kind_by_name(stand_in.as_fd(), name));
            // One that was removed just now, or has no place here.
            let Some(kind) = kind else { continue };
            let next_offset = entry.next_entry_cookie();
            let item = DirectoryItem { ino: target, kind, name: name.to_vec(), next_offset };
            if visit(&item).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Attributes of a listed entry of `parent`; `None` if it is gone. The kernel is told of it.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn listed_attributes(
        &self,
        parent: Ino,
        item: &DirectoryItem,
    ) -> Result<Option<Attributes>> {
        match self.lookup(parent, &item.name) {
            Ok(attributes) => Ok(Some(attributes)),
            // A place where something is mounted is listed, and looked up on its own.
            Err(FsError::NotFound | FsError::Stale | FsError::CrossFileset) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn kind_by_name(directory: BorrowedFd<'_>, name: &[u8]) -> Option<Kind> {
    let found = step(directory, name, STAND_IN, Mode::empty()).ok()?;
    Seen::of(found.as_fd()).ok()?.kind().ok()
}

/// Reads something whose length is not known, and may change meanwhile.
fn read_growing(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    let mut room = vec![0; 256];
    loop {
        match read(&mut room) {
            Ok(length) => {
                room.truncate(length);
                return Ok(room);
            }
            // The most that the kernel gives is 64 KiB (XATTR_SIZE_MAX, XATTR_LIST_MAX).
            Err(Errno::RANGE) if room.len() < 1 << 17 => room.resize(room.len() * 4, 0),
            Err(errno) => return Err(said(errno)),
        }
    }
}

fn time(asked: Option<SetTime>) -> Timespec {
    let special = |nanoseconds| Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    match asked {
        None => special(rustix::fs::UTIME_OMIT),
        Some(SetTime::Now) => special(rustix::fs::UTIME_NOW),
        Some(SetTime::To(Timestamp { seconds, nanoseconds })) => {
            Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() }
        }
    }
}

fn resize(known: &Known, inode: BorrowedFd<'_>, size: u64) -> Result<()> {
    match known.kind {
        Kind::File => {}
        Kind::Directory => return Err(FsError::IsDirectory),
        _ => return Err(FsError::Invalid),
    }
    let open = known.opens.lock().for_writing();
    match open {
        Ok(open) => rustix::fs::ftruncate(&*open, size).map_err(said),
        Err(_) => rustix::fs::ftruncate(reopen(inode, OFlags::WRONLY)?, size).map_err(said),
    }
}

fn change_mode(known: &Known, inode: BorrowedFd<'_>, mode: u16) -> Result<()> {
    if known.kind == Kind::Symlink {
        return Err(FsError::Unsupported);
    }
    let mode = Mode::from_raw_mode(u32::from(mode & 0o7777));
    rustix::fs::chmod(path_of(inode), mode).map_err(said)
}

/// As a write by a member of the group `gid` does, which alone keeps set-group-id where that means no execution.
fn kill_set_id_for(known: &Known, inode: BorrowedFd<'_>, gid: u32) -> Result<()> {
    let seen = Seen::of(inode)?;
    let mode = seen.mode();
    let keeps_group = mode & GROUP_EXECUTE == 0 && seen.gid() == gid;
    let killed = if keeps_group { SET_UID } else { SET_UID | SET_GID };
    if mode & killed == 0 { Ok(()) } else { change_mode(known, inode, mode & !killed) }
}

/// As a write or chown does: set-group-id only where it means execution under the group.
pub(super) fn kill_set_id(known: &Known, inode: BorrowedFd<'_>) -> Result<()> {
    if known.kind != Kind::File {
        return Ok(());
    }
    let mode = Seen::of(inode)?.mode();
    let killed = if mode & GROUP_EXECUTE != 0 { SET_UID | SET_GID } else { SET_UID };
    if mode & killed == 0 { Ok(()) } else { change_mode(known, inode, mode & !killed) }
}

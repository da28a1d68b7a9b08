//! Names of a native fileset: finding, making, moving and removing them.

use std::os::fd::{AsFd as _, BorrowedFd};

use forebay_base::Ino;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};

use crate::attributes::Attributes;
use crate::directory::{NAME_MAX, check_name};
use crate::error::{FsError, Result};
use crate::native::caller::act_as;
use crate::native::system::{STAND_IN, c_name, path_of, said, step};
use crate::native::tree::NativeTree;
use crate::ops::{New, Replace};
use crate::partition::Caller;
use crate::record::Kind;

/// How a file is made: for both, so that who makes one whose mode forbids it can use it all the same.
const NEW_FILE: OFlags = OFlags::RDWR
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl NativeTree {
    /// The inode that `name` names in `parent`. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`], [`FsError::CrossFileset`] where
    /// something is mounted; what the disk's file system says.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let directory = self.directory(parent)?;
        match name {
            b"." => {
                let again = rustix::io::fcntl_dupfd_cloexec(&*directory, 0).map_err(said)?;
                return self.tell(again, None);
            }
            b".." => return self.look_up_parent(parent),
            _ => check_name(name)?,
        }
        let found = step(directory.as_fd(), name, STAND_IN, Mode::empty())?;
        self.tell(found, Some(self.seen_at(parent, name)))
    }

    /// The directory that holds a directory, if it is known: another may lie outside the tree, if the directory was
    /// moved there by somebody who can.
    fn look_up_parent(&self, ino: Ino) -> Result<Attributes> {
        if self.is_top(ino) {
            return Err(FsError::Stale);
        }
        let directory = self.directory(ino)?;
        let flags = STAND_IN | OFlags::DIRECTORY;
        let parent = rustix::fs::openat(&*directory, c"..", flags, Mode::empty()).map_err(said)?;
        self.known_behind(parent.as_fd()).ok_or(FsError::Stale)?;
        self.tell(parent, None)
    }

    /// Makes an inode as `caller`, and names it `name` in `parent`. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotFound`] if `parent` was removed; what the disk's file system says.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        let directory = directory.as_fd();
        let seen_at = Some(self.seen_at(parent, name));
        let mode = Mode::from_raw_mode(u32::from(new.mode & 0o7777));
        if new.kind == Kind::File {
            let made = act_as(caller, new.umask, || step(directory, name, NEW_FILE, mode))?;
            return self.tell_of_new_file(made, seen_at);
        }
        act_as(caller, new.umask, || make(directory, name, new, mode))?;
        let made = step(directory, name, STAND_IN, Mode::empty())?;
        self.tell(made, seen_at)
    }

    /// Makes a regular file without a name, as `caller`; [`NativeTree::link`] can give it one. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] where the disk has no such files; what its file system says.
    pub fn create_unnamed(&self, parent: Ino, new: New<'_>, caller: Caller) -> Result<Attributes> {
        let directory = self.directory(parent)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(u32::from(new.mode & 0o7777));
        let made = act_as(caller, new.umask, || {
            rustix::fs::openat(&*directory, c".", flags, mode).map_err(said)
        })?;
        self.tell_of_new_file(made, None)
    }

    /// Names an inode also `name` in `parent`. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotPermitted`] for a directory, [`FsError::NotFound`] if either was removed.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let (known, inode) = self.reach(ino)?;
        if known.kind == Kind::Directory {
            return Err(FsError::NotPermitted);
        }
        let directory = self.directory(parent)?;
        // Following ends at the inode itself, also if that is a symlink.
        let (follow, name_in_c) = (AtFlags::SYMLINK_FOLLOW, c_name(name)?);
        rustix::fs::linkat(CWD, path_of(inode.as_fd()), &*directory, name_in_c, follow)
            .map_err(said)?;
        let again = rustix::io::fcntl_dupfd_cloexec(&*inode, 0).map_err(said)?;
        self.tell(again, Some(self.seen_at(parent, name)))
    }

    /// Takes a name away that is not a directory's.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`]; what the disk's file system says.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, AtFlags::empty())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`]; what the disk's file system says.
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    fn remove(&self, parent: Ino, name: &[u8], flags: AtFlags) -> Result<()> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        rustix::fs::unlinkat(&*directory, c_name(name)?, flags).map_err(said)
    }

    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`, as rename(2) says.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        replace: Replace,
    ) -> Result<()> {
        self.rename_and_leave((parent, name), (new_parent, new_name), replace, None)
    }

    /// As [`NativeTree::rename`], and leaves a whiteout of `caller` at the old name.
    ///
    /// # Errors
    /// As [`NativeTree::rename`]; [`FsError::Invalid`] for an exchange.
    pub fn rename_with_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        caller: Caller,
    ) -> Result<()> {
        self.rename_and_leave(from, to, replace, Some(caller))
    }

    fn rename_and_leave(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        replace: Replace,
        whiteout_of: Option<Caller>,
    ) -> Result<()> {
        for dots in [name, new_name] {
            if dots == b"." || dots == b".." {
                return Err(FsError::Busy);
            }
        }
        check_name(name)?;
        check_name(new_name)?;
        let (from, to) = (self.directory(parent)?, self.directory(new_parent)?);
        let flags = match (replace, whiteout_of) {
            (Replace::Exchange, Some(_)) => return Err(FsError::Invalid),
            (Replace::Exchange, None) => RenameFlags::EXCHANGE,
            (Replace::Allowed, None) => RenameFlags::empty(),
            (Replace::Refused, None) => RenameFlags::NOREPLACE,
            (Replace::Allowed, Some(_)) => RenameFlags::WHITEOUT,
            (Replace::Refused, Some(_)) => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
        };
        let (old, new) = (c_name(name)?, c_name(new_name)?);
        let rename = || rustix::fs::renameat_with(&*from, &old, &*to, &new, flags).map_err(said);
        match whiteout_of {
            Some(caller) => act_as(caller, 0, rename)?,
            None => rename()?,
        }
        self.see_moved(to.as_fd(), new_parent, new_name);
        if replace == Replace::Exchange {
            self.see_moved(from.as_fd(), parent, name);
        }
        Ok(())
    }

    /// Notes where an inode is after a move, if it is known.
    fn see_moved(&self, directory: BorrowedFd<'_>, parent: Ino, name: &[u8]) {
        // It may have been moved on already: then it is looked up again when it is needed.
        let Ok(moved) = step(directory, name, STAND_IN, Mode::empty()) else { return };
        if let Some(known) = self.known_behind(moved.as_fd()) {
            known.see_at(Some(self.seen_at(parent, name)));
        }
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for other kinds.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.kind(ino)? != Kind::Symlink {
            return Err(FsError::Invalid);
        }
        let (_, inode) = self.reach(ino)?;
        let target = rustix::fs::readlinkat(&*inode, c"", Vec::new()).map_err(said)?;
        Ok(target.into_bytes())
    }
}

/// Makes something that is not a regular file.
fn make(directory: BorrowedFd<'_>, name: &[u8], new: New<'_>, mode: Mode) -> Result<()> {
    let name = c_name(name)?;
    let node = |file_type: FileType| {
        rustix::fs::mknodat(directory, &name, file_type, mode, u64::from(new.rdev))
    };
    let made = match new.kind {
        Kind::Directory => rustix::fs::mkdirat(directory, &name, mode),
        Kind::Symlink => {
            let target = c_name(new.target)?;
            rustix::fs::symlinkat(&target, directory, &name)
        }
        Kind::Fifo => node(FileType::Fifo),
        Kind::Socket => node(FileType::Socket),
        Kind::CharDevice => node(FileType::CharacterDevice),
        Kind::BlockDevice => node(FileType::BlockDevice),
        Kind::File => node(FileType::RegularFile),
    };
    made.map_err(said)
}

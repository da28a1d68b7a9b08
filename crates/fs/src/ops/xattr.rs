//! Extended attributes, and the access control lists among them.

use forebay_base::Ino;

use crate::acl::{self, Acl};
use crate::directory::NAME_MAX;
use crate::error::{FsError, Result};
use crate::filesystem::FileSystem;
use crate::inode::{SET_GID, State};
use crate::key::{self, Key};
use crate::stats::Operation;
use crate::writeset::Known;

/// Longest value of an attribute in bytes (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65_536;

/// Whether the attribute may or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Either way.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// What is to be set.
#[derive(Clone, Copy, Debug)]
pub struct SetXattr<'a> {
    /// Name with its namespace, such as `user.a`.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
    /// Whether it may or must exist.
    pub mode: SetMode,
    /// Whether setting an access control list takes the set-group-id bit away.
    pub kill_set_gid: bool,
}

impl FileSystem {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        self.count(state.fileset, Operation::Xattr);
        if state.xattrs == 0 {
            return Err(FsError::NoAttribute);
        }
        self.read_key(&key::xattr(ino, name))?.ok_or(FsError::NoAttribute)
    }

    /// Names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Io`].
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        self.count(state.fileset, Operation::Xattr);
        let mut names = Vec::new();
        if state.xattrs == 0 {
            return Ok(names);
        }
        let (mut from, to) = key::xattrs(ino);
        loop {
            let (rows, next) = self.read_range(&from, &to, 256)?;
            for (key, _) in rows {
                if let Some(Key::Xattr(_, name)) = key::parse(&key) {
                    names.extend_from_slice(&name);
                    names.push(0);
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(names),
            }
        }
    }

    /// Sets an extended attribute. Setting an access control list sets the mode bits it stands for.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`], [`FsError::AttributeTooLarge`],
    /// [`FsError::NameTooLong`], [`FsError::Invalid`] for a malformed list.
    pub fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        if set.name.is_empty() || set.name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        if set.value.len() > VALUE_MAX {
            return Err(FsError::AttributeTooLarge);
        }
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.count(state.fileset, Operation::Xattr);
        if set.name == acl::ACCESS {
            let list = Acl::parse(set.value)?;
            state.mode = state.mode & !0o777 | list.mode_bits();
            if set.kill_set_gid {
                state.mode &= !SET_GID;
            }
            if list.is_mode_only() {
                return self.remove_locked_xattr(ino, &mut state, set.name).map(|_| ());
            }
        }
        if set.name == acl::DEFAULT {
            if !state.is_directory() {
                return Err(FsError::NotPermitted);
            }
            Acl::parse(set.value)?;
        }
        let attribute = key::xattr(ino, set.name);
        let exists = state.xattrs > 0 && self.read_key(&attribute)?.is_some();
        match (set.mode, exists) {
            (SetMode::Create, true) => return Err(FsError::Exists),
            (SetMode::Replace, false) => return Err(FsError::NoAttribute),
            (SetMode::Any | SetMode::Create | SetMode::Replace, _) => {}
        }
        state.xattrs += u32::from(!exists);
        state.changed = self.now();
        let known = if exists { Known::MayExist } else { Known::Absent };
        let mut writes = self.writes.lock();
        writes.put(attribute, set.value.to_vec(), known);
        self.put_inode(&mut writes, ino, &mut state);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.count(state.fileset, Operation::Xattr);
        if self.remove_locked_xattr(ino, &mut state, name)? {
            Ok(())
        } else {
            Err(FsError::NoAttribute)
        }
    }

    /// Removes an attribute if it exists, and records the inode either way.
    fn remove_locked_xattr(&self, ino: Ino, state: &mut State, name: &[u8]) -> Result<bool> {
        let attribute = key::xattr(ino, name);
        let exists = state.xattrs > 0 && self.read_key(&attribute)?.is_some();
        state.changed = self.now();
        let mut writes = self.writes.lock();
        if exists {
            state.xattrs -= 1;
            writes.delete(attribute);
        }
        self.put_inode(&mut writes, ino, state);
        Ok(exists)
    }
}

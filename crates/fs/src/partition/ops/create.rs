//! Making inodes: files, directories, symlinks, devices, and files without a name.

use std::sync::Arc;

use forebay_base::{Ino, Timestamp};
use parking_lot::MutexGuard;

use crate::acl::{self, Acl};
use crate::attributes::Attributes;
use crate::caching::queue::Change;
use crate::directory::{Child, Directory, check_name};
use crate::error::{FsError, Result};
use crate::inode::{Body, FileBody, Inode, MODE_BITS, SET_GID, State, TARGET_MAX};
use crate::key;
use crate::partition::entries::Placed;
use crate::partition::quota::settle;
use crate::partition::{Caller, Partition};
use crate::record::Kind;
use crate::stats::Operation;
use crate::writeset::{Known, WriteSet};

/// Most subdirectories of a directory and most links of a file.
pub(crate) const LINK_MAX: u32 = 1 << 30;

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Kind.
    pub kind: Kind,
    /// Mode bits asked for.
    pub mode: u16,
    /// Bits that the caller's umask takes away where the parent has no default access control list.
    pub umask: u16,
    /// Device number, for devices.
    pub rdev: u32,
    /// Target, for symlinks.
    pub target: &'a [u8],
}

/// A file that a node has made by itself in a directory that is delegated to it, and reports now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Reported {
    /// Its number, of those that the node was given.
    pub ino: Ino,
    /// When it was made, by the clock of that node.
    pub time: Timestamp,
}

/// Extended attributes that a new inode inherits: name and value.
type Inherited = Vec<(&'static [u8], Vec<u8>)>;

/// A locked directory in which an inode is to be made, the entry that has its name, and the default access control list.
type Ready<'a> = (MutexGuard<'a, State>, Option<Placed>, Option<Vec<u8>>);

impl Partition {
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
        self.create_reported(parent, name, new, caller, None)
    }

    /// As [`Partition::create`], of an inode that a node may have made already: then quotas do not refuse it.
    ///
    /// # Errors
    /// As [`Partition::create`].
    pub(crate) fn create_reported(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
        reported: Option<Reported>,
    ) -> Result<Attributes> {
        check_name(name)?;
        self.admit()?;
        if new.kind == Kind::Symlink && (new.target.is_empty() || new.target.len() > TARGET_MAX) {
            return Err(if new.target.is_empty() {
                FsError::NotFound
            } else {
                FsError::NameTooLong
            });
        }
        let directory = self.inode(parent)?;
        let (mut above, found, list) = self.lock_to_make(&directory, Some(name), new.kind)?;
        if above.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if found.is_some() {
            return Err(FsError::Exists);
        }
        if new.kind == Kind::Directory && above.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let ino = reported.map_or_else(|| self.take_ino(), |made| Ok(made.ino))?;
        let now = reported.map_or_else(|| self.now(), |made| made.time);
        let (mut state, inherited) = self.new_state((parent, &above), new, list, (caller, now))?;
        self.choose_pool(Some(name), &mut state);
        let admitted = match self.admit_inode(&state, 0) {
            Err(FsError::QuotaExceeded) if reported.is_some() => None,
            admitted => admitted?,
        };
        {
            let mut writes = self.writes.lock();
            let child = Child { ino, kind: new.kind, name: name.into() };
            self.add_entry(&mut writes, parent, &mut above, child)?;
            if new.kind == Kind::Directory {
                above.nlink += 1;
            }
            above.touch(if reported.is_some() { self.now() } else { now });
            put_inherited(&mut writes, ino, &inherited);
            self.put_inode(&mut writes, parent, &mut above);
            self.put_inode(&mut writes, ino, &mut state);
            settle(admitted, &mut writes);
            self.queue_change(&mut writes, || {
                let (name, kind) = (name.into(), new.kind);
                Change::Make { ino, parent, name, kind }
            });
        }
        self.count(Operation::Create);
        let attributes = Attributes::of(ino, &state);
        self.remember(ino);
        self.shared.inodes.insert(&Arc::new(Inode::new(ino, state)));
        drop(above);
        self.shared.inodes.shrink();
        Ok(attributes)
    }

    /// Makes a regular file without a name; [`Partition::link`] can give it one. The kernel is told
    /// of it.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if `parent` was removed.
    pub fn create_unnamed(&self, parent: Ino, new: New<'_>, caller: Caller) -> Result<Attributes> {
        self.admit()?;
        let directory = self.inode(parent)?;
        let (mut above, _, list) = self.lock_to_make(&directory, None, new.kind)?;
        above.directory_mut()?;
        if above.nlink == 0 {
            return Err(FsError::NotFound);
        }
        let ino = self.take_ino()?;
        let made = (caller, self.now());
        let (mut state, inherited) = self.new_state((parent, &above), new, list, made)?;
        state.nlink = 0;
        if !inherited.is_empty() {
            let named = inherited.into_iter().map(|(name, value)| (name.to_vec(), value));
            state.nameless_xattrs = Some(Box::new(named.collect()));
        }
        self.count(Operation::Create);
        let attributes = Attributes::of(ino, &state);
        self.remember(ino);
        self.shared.inodes.insert(&Arc::new(Inode::new(ino, state)));
        drop(above);
        self.shared.inodes.shrink();
        Ok(attributes)
    }

    /// A whiteout in a locked directory: a character device 0/0 that nobody can open, without a list of its own.
    pub(crate) fn whiteout_state(
        &self,
        parent: Ino,
        above: &State,
        caller: Caller,
    ) -> Result<State> {
        let new = New { kind: Kind::CharDevice, mode: 0, umask: 0, rdev: 0, target: b"" };
        Ok(self.new_state((parent, above), new, None, (caller, self.now()))?.0)
    }

    /// Locks a directory in which an inode is to be made, with the entry that has its `name`, if it is to have one, and
    /// the default access control list.
    fn lock_to_make<'a>(
        &self,
        directory: &'a Inode,
        name: Option<&[u8]>,
        kind: Kind,
    ) -> Result<Ready<'a>> {
        let mut read = None;
        loop {
            let (above, found) = match name {
                Some(name) => self.lock_and_find(directory, name)?,
                None => (directory.lock(), None),
            };
            let changes = above.xattr_changes;
            match read.take() {
                _ if above.xattrs == 0 || kind == Kind::Symlink => return Ok((above, found, None)),
                Some((then, list)) if then == changes => return Ok((above, found, list)),
                _ => drop(above),
            }
            read = Some((changes, self.read_key(&key::xattr(directory.ino, acl::DEFAULT))?));
        }
    }

    /// An inode that is to be made in a locked directory with this default access control list.
    fn new_state(
        &self,
        (parent, above): (Ino, &State),
        new: New<'_>,
        list: Option<Vec<u8>>,
        (caller, now): (Caller, Timestamp),
    ) -> Result<(State, Inherited)> {
        let (mode, inherited) = inherit(new, list)?;
        let set_gid = above.mode & SET_GID != 0;
        let mode = match new.kind {
            Kind::Symlink => 0o777,
            Kind::Directory if set_gid => mode | SET_GID,
            _ => mode,
        };
        let is_directory = new.kind == Kind::Directory;
        let state = State {
            kind: new.kind,
            mode,
            uid: caller.uid,
            gid: if set_gid { above.gid } else { caller.gid },
            nlink: if is_directory { 2 } else { 1 },
            size: if new.kind == Kind::Symlink { new.target.len() as u64 } else { 0 },
            allocated_bytes: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            rdev: new.rdev,
            xattrs: u32::try_from(inherited.len()).unwrap_or(0),
            xattr_bytes: None,
            xattr_changes: 0,
            nameless_xattrs: None,
            body: match new.kind {
                Kind::File => Body::File(FileBody::default()),
                Kind::Directory => Body::Directory(Box::new(Directory::empty(parent))),
                Kind::Symlink => Body::Symlink(new.target.into()),
                Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => Body::Special,
            },
            counted: None,
            recorded: false,
        };
        Ok((state, inherited))
    }
}

/// Mode bits and access control lists of a new inode, in a directory with this default list.
fn inherit(new: New<'_>, default: Option<Vec<u8>>) -> Result<(u16, Inherited)> {
    let asked = new.mode & MODE_BITS;
    let Some(default) = default else {
        return Ok((asked & !(new.umask & 0o777), Inherited::new()));
    };
    let inherited = Acl::parse(&default)?.inherit(asked);
    let mut attributes = Inherited::new();
    if let Some(access) = inherited.access {
        attributes.push((acl::ACCESS, access.encode()));
    }
    if new.kind == Kind::Directory {
        attributes.push((acl::DEFAULT, default));
    }
    Ok((inherited.mode, attributes))
}

fn put_inherited(writes: &mut WriteSet, ino: Ino, inherited: &Inherited) {
    for (name, value) in inherited {
        writes.put(key::xattr(ino, name), value.clone(), Known::Absent);
    }
}

//! Extended attributes, and the access control lists among them.

use std::num::NonZeroU32;

use forebay_base::Ino;
use parking_lot::MutexGuard;

use crate::acl::{self, Acl};
use crate::directory::NAME_MAX;
use crate::error::{FsError, Result};
use crate::inode::{Inode, SET_GID, State};
use crate::key::{self, Key};
use crate::partition::{Partition, Row};
use crate::stats::Operation;
use crate::writeset::{Known, WriteSet};

/// Classes of attributes (xattr(7)); of the class `system` there are access control lists alone.
const CLASSES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", acl::ACCESS, acl::DEFAULT];

/// Longest value of an attribute in bytes (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65_536;
/// Bytes that all attributes of an inode may take, names and values: they are read as a whole when the
/// inode goes.
const TOTAL_MAX: usize = 1 << 20;

/// Whether the attribute may or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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

impl Partition {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.count(Operation::Xattr);
        let inode = self.inode(ino)?;
        let (_inode, value) = self.lock_with_xattr(&inode, name)?;
        value.ok_or(FsError::NoAttribute)
    }

    /// Locks an inode, with what `ask` finds of its extended attributes in the store: it is asked without the lock, and
    /// none of them has changed since. Without an answer if the store has none: the inode itself knows then.
    fn lock_and_ask<'a, T>(
        &self,
        inode: &'a Inode,
        ask: impl Fn(Kept) -> Result<T>,
    ) -> Result<(MutexGuard<'a, State>, Option<T>)> {
        let mut state = inode.lock();
        loop {
            if state.xattrs == 0 || state.nameless_xattrs.is_some() {
                return Ok((state, None));
            }
            let kept = Kept::of(&state);
            drop(state);
            let answer = ask(kept)?;
            state = inode.lock();
            if Kept::of(&state) == kept {
                return Ok((state, Some(answer)));
            }
        }
    }

    /// Locks an inode, with the value of one of its extended attributes, if it has that.
    pub(crate) fn lock_with_xattr<'a>(
        &self,
        inode: &'a Inode,
        name: &[u8],
    ) -> Result<(MutexGuard<'a, State>, Option<Vec<u8>>)> {
        let (state, stored) =
            self.lock_and_ask(inode, |_| self.read_key(&key::xattr(inode.ino, name)))?;
        let kept = || state.nameless_xattrs.as_ref().and_then(|all| all.get(name).cloned());
        let value = stored.unwrap_or_else(kept);
        Ok((state, value))
    }

    /// Gives an extended attribute of a locked inode its value; the caller records the inode.
    pub(crate) fn put_xattr(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        (name, value): (&[u8], Vec<u8>),
        known: Known,
    ) {
        state.xattrs_changed();
        if state.nlink == 0 {
            state.nameless_xattrs.get_or_insert_default().insert(name.to_vec(), value);
        } else {
            writes.put(key::xattr(ino, name), value, known);
        }
    }

    /// Names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Io`].
    pub fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.count(Operation::Xattr);
        let inode = self.inode(ino)?;
        let (state, rows) = self.lock_and_ask(&inode, |_| self.xattr_rows(ino))?;
        let mut names = Vec::new();
        let Some(rows) = rows else {
            let nameless = state.nameless_xattrs.iter().flat_map(|all| all.keys());
            nameless.for_each(|name| names.extend(name.iter().chain(&[0])));
            return Ok(names);
        };
        for (key, _) in rows {
            if let Some(Key::Xattr(_, name)) = key::parse(&key) {
                names.extend_from_slice(&name);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// All extended attributes of an inode that has a name.
    pub(crate) fn xattr_rows(&self, ino: Ino) -> Result<Vec<Row>> {
        let (mut from, to) = key::xattrs(ino);
        let mut all = Vec::new();
        loop {
            let (rows, next) = self.read_range(&from, &to, 256)?;
            all.extend(rows);
            match next {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// Sets an extended attribute. Setting an access control list sets the mode bits it stands for.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`], [`FsError::AttributeTooLarge`],
    /// [`FsError::NoSpace`] if all attributes of the inode would take more than 1 MiB, [`FsError::NameTooLong`], [`FsError::Invalid`] for a malformed list.
    pub fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        if set.name.is_empty() || set.name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        if !CLASSES.iter().any(|class| set.name.starts_with(class)) {
            return Err(FsError::Unsupported);
        }
        if set.value.len() > VALUE_MAX {
            return Err(FsError::AttributeTooLarge);
        }
        self.admit()?;
        let inode = self.inode(ino)?;
        self.count(Operation::Xattr);
        let (mut state, stored) =
            self.lock_and_ask(&inode, |kept| self.read_before_set(ino, set.name, kept))?;
        let (before, sum) = stored.unwrap_or_else(|| known_before_set(&state, set.name));
        let exists = before.is_some();
        match (set.mode, exists) {
            (SetMode::Create, true) => return Err(FsError::Exists),
            (SetMode::Replace, false) => return Err(FsError::NoAttribute),
            (SetMode::Any | SetMode::Create | SetMode::Replace, _) => {}
        }
        let total = check_room(&mut state, &set, before, sum)?;
        if set.name == acl::DEFAULT {
            if !state.is_directory() {
                return Err(FsError::NotPermitted);
            }
            Acl::parse(set.value)?;
        }
        if set.name == acl::ACCESS {
            let list = Acl::parse(set.value)?;
            state.mode = state.mode & !0o777 | list.mode_bits();
            if set.kill_set_gid {
                state.mode &= !SET_GID;
            }
            if list.is_mode_only() {
                self.remove_locked_xattr(ino, &mut state, set.name, before);
                return Ok(());
            }
        }
        state.xattrs += u32::from(!exists);
        state.xattr_bytes = total;
        state.changed = self.now();
        let mut writes = self.writes.lock();
        let known = if exists { Known::MayExist } else { Known::Absent };
        self.put_xattr(&mut writes, ino, &mut state, (set.name, set.value.to_vec()), known);
        self.put_inode(&mut writes, ino, &mut state);
        Ok(())
    }

    /// What is to be known of an inode's attributes in the store before one is set.
    fn read_before_set(&self, ino: Ino, name: &[u8], kept: Kept) -> Result<Lengths> {
        let value = self.read_key(&key::xattr(ino, name))?.map(|value| value.len());
        if !kept.may_be_too_much() || kept.bytes.is_some() {
            return Ok((value, None));
        }
        let bytes = |(key, value): &Row| match key::parse(key) {
            Some(Key::Xattr(_, name)) => name.len() + value.len(),
            _ => 0,
        };
        Ok((value, Some(self.xattr_rows(ino)?.iter().map(bytes).sum())))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        self.count(Operation::Xattr);
        let (mut state, value) = self.lock_with_xattr(&inode, name)?;
        self.remove_locked_xattr(ino, &mut state, name, value.as_ref().map(Vec::len));
        value.map(|_| ()).ok_or(FsError::NoAttribute)
    }

    /// Removes an attribute with a value of `before` bytes, if it is there, and records the inode either way.
    fn remove_locked_xattr(&self, ino: Ino, state: &mut State, name: &[u8], before: Option<usize>) {
        state.changed = self.now();
        let mut writes = self.writes.lock();
        if let Some(value) = before {
            state.xattrs_changed();
            state.xattrs -= 1;
            let left =
                |bytes: NonZeroU32| (bytes.get() as usize).saturating_sub(name.len() + value);
            state.xattr_bytes = state.xattr_bytes.and_then(|bytes| reckoned(left(bytes)));
            match &mut state.nameless_xattrs {
                Some(all) => drop(all.remove(name)),
                None => writes.delete(key::xattr(ino, name)),
            }
        }
        self.put_inode(&mut writes, ino, state);
    }
}

/// Bytes of one value, if it is there, and of all attributes, names and values, if those are needed.
type Lengths = (Option<usize>, Option<usize>);

/// What an inode knows of its extended attributes in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept {
    number: u32,
    bytes: Option<NonZeroU32>,
    changes: u32,
}

impl Kept {
    fn of(state: &State) -> Kept {
        Kept { number: state.xattrs, bytes: state.xattr_bytes, changes: state.xattr_changes }
    }

    /// Whether one more may be too much for all that is known.
    fn may_be_too_much(self) -> bool {
        (self.number as usize + 1).saturating_mul(NAME_MAX + VALUE_MAX) > TOTAL_MAX
    }
}

/// What an inode of which the store has no attributes knows of them.
fn known_before_set(state: &State, name: &[u8]) -> Lengths {
    let Some(all) = &state.nameless_xattrs else { return (None, Some(0)) };
    let sum = all.iter().map(|(name, value)| name.len() + value.len()).sum();
    (all.get(name).map(Vec::len), Some(sum))
}

/// Bytes of all attributes once `set` is done, if it takes reckoning them to know that they fit. The attribute has a
/// value of `before` bytes, if it is there; all of them take `sum`, if that was reckoned.
fn check_room(
    state: &mut State,
    set: &SetXattr<'_>,
    before: Option<usize>,
    sum: Option<usize>,
) -> Result<Option<NonZeroU32>> {
    let kept = Kept::of(state);
    if !kept.may_be_too_much() && kept.bytes.is_none() {
        return Ok(None);
    }
    let now = kept.bytes.map_or(sum.unwrap_or_default(), |bytes| bytes.get() as usize);
    let gone = before.map_or(0, |value| set.name.len() + value);
    let total = now.saturating_sub(gone) + set.name.len() + set.value.len();
    if total > TOTAL_MAX {
        state.xattr_bytes = reckoned(now);
        return Err(FsError::NoSpace);
    }
    Ok(reckoned(total))
}

/// A sum of bytes as it is kept; it is not where there are none.
fn reckoned(bytes: usize) -> Option<NonZeroU32> {
    u32::try_from(bytes).ok().and_then(NonZeroU32::new)
}

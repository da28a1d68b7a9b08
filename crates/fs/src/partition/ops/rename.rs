//! Moving names.

use std::sync::Arc;

use forebay_base::Ino;

use crate::directory::{Child, check_name};
use crate::error::{FsError, Result};
use crate::inode::{Inode, Locked, State};
use crate::object::LiveObject;
use crate::partition::{Caller, Partition};
use crate::shortage::Left;
use crate::stale::Stale;
use crate::stats::Operation;

/// Directories within each other of which it is believed that they end at the root.
const DEPTH_MAX: u32 = 1 << 20;

/// What happens to an entry that already has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Replace {
    /// It goes, as rename(2) says.
    Allowed,
    /// The rename is refused.
    Refused,
    /// It gets the old name.
    Exchange,
}

/// One end of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: &'a Arc<Inode>,
    name: &'a [u8],
}

/// An end of a rename that exists.
struct Found {
    child: Child,
    inode: Arc<Inode>,
}

impl Partition {
    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::NotEmpty`], [`FsError::IsDirectory`],
    /// [`FsError::NotDirectory`], [`FsError::Busy`] for the root of a
    /// fileset, [`FsError::Invalid`] for a directory that would move below itself.
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

    /// As [`Partition::rename`], and leaves a whiteout of `caller` at the old name: a character device 0/0, which
    /// hides the name in the layers below for a union of file systems (overlayfs). Not for [`Replace::Exchange`].
    ///
    /// # Errors
    /// As [`Partition::rename`]; [`FsError::Invalid`] for an exchange.
    pub fn rename_with_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        caller: Caller,
    ) -> Result<()> {
        if replace == Replace::Exchange {
            return Err(FsError::Invalid);
        }
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
        check_name(new_name)?;
        self.admit()?;
        let tree_stands_still = (parent != new_parent).then(|| self.tree_changes.lock());
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        let from = Place { parent: &from, name };
        let to = Place { parent: &to, name: new_name };
        loop {
            let source = self.find_place(from)?.ok_or(FsError::NotFound)?;
            let target = match self.find_place(to) {
                Err(FsError::Busy) if replace == Replace::Refused => Err(FsError::Exists),
                target => target,
            }?;
            if parent != new_parent {
                self.check_not_below(&source, new_parent)?;
                if let (Replace::Exchange, Some(target)) = (replace, &target) {
                    self.check_not_below(target, parent)?;
                }
            }
            let mut inodes = vec![from.parent, to.parent, &source.inode];
            inodes.extend(target.as_ref().map(|target| &target.inode));
            let mut locked = Locked::all(&inodes);
            if !self.unchanged(&mut locked, from, Some(&source))?
                || !self.unchanged(&mut locked, to, target.as_ref())?
            {
                continue;
            }
            check(&mut locked, &source, to, target.as_ref(), replace)?;
            self.count(Operation::Rename);
            let left = match (&target, replace) {
                (Some(target), _) if target.child.ino == source.child.ino => None,
                (Some(target), Replace::Exchange) => {
                    self.exchange(&mut locked, from, &source, to, target)?;
                    None
                }
                (target, _) => {
                    let whiteout = match whiteout_of {
                        Some(caller) => Some(self.new_whiteout(&mut locked, from, caller)?),
                        None => None,
                    };
                    self.move_entry(&mut locked, (from, whiteout), &source, to, target.as_ref())?
                }
            };
            drop(locked);
            drop(tree_stands_still);
            if let Some(target) = &target {
                self.after_removal(&target.inode, left);
            }
            return Ok(());
        }
    }

    /// Checks that what `name` names in `parent` could leave this fileset by being copied: another fileset cannot.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Busy`].
    pub fn check_leaves(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return Err(FsError::Busy);
        }
        let directory = self.inode(parent)?;
        let found = self.find_entry(parent, &mut directory.lock(), name)?;
        let (_, child) = found.ok_or(FsError::NotFound)?;
        if self.owns(child.ino) { Ok(()) } else { Err(FsError::Busy) }
    }

    fn find_place(&self, place: Place<'_>) -> Result<Option<Found>> {
        Ok(self.find_named(place.parent, place.name)?.map(|(child, inode)| Found { child, inode }))
    }

    fn unchanged(
        &self,
        locked: &mut Locked<'_>,
        place: Place<'_>,
        found: Option<&Found>,
    ) -> Result<bool> {
        let ino = place.parent.ino;
        let now = self.find_entry(ino, locked.state(ino), place.name)?;
        Ok(now.map(|(_, child)| child.ino) == found.map(|found| found.child.ino))
    }

    /// Refuses to move a directory into its own subtree. The tree above stands still meanwhile.
    fn check_not_below(&self, moved: &Found, new_parent: Ino) -> Result<()> {
        if moved.child.kind != crate::record::Kind::Directory {
            return Ok(());
        }
        let mut above = new_parent;
        let mut depth = 0_u32;
        while above != self.top() {
            depth += 1;
            if depth > DEPTH_MAX {
                return Err(FsError::Damaged(format!("directory {new_parent} lies within itself")));
            }
            if above == moved.child.ino {
                return Err(FsError::Invalid);
            }
            above = match self.inode(above) {
                // The new parent was removed, and what it lay in as well.
                Err(FsError::Stale) => return Err(FsError::NotFound),
                inode => inode?.lock().parent(),
            };
        }
        Ok(())
    }

    fn cookie(&self, locked: &mut Locked<'_>, place: Place<'_>) -> Result<u64> {
        let ino = place.parent.ino;
        let found = self.find_entry(ino, locked.state(ino), place.name)?;
        Ok(found.ok_or(FsError::NotFound)?.0)
    }

    /// What stays at `place` after a rename that leaves a whiteout.
    fn new_whiteout(
        &self,
        locked: &mut Locked<'_>,
        place: Place<'_>,
        caller: Caller,
    ) -> Result<(Child, State)> {
        let ino = self.take_ino()?;
        let above = locked.state(place.parent.ino);
        let state = self.whiteout_state(place.parent.ino, above, caller)?;
        Ok((Child { ino, kind: state.kind, name: place.name.into() }, state))
    }

    fn move_entry(
        &self,
        locked: &mut Locked<'_>,
        (from, whiteout): (Place<'_>, Option<(Child, State)>),
        source: &Found,
        to: Place<'_>,
        target: Option<&Found>,
    ) -> Result<Option<Left>> {
        let now = self.now();
        let (old, new) = (from.parent.ino, to.parent.ino);
        let moved = source.child.ino;
        let is_directory = locked.state(moved).is_directory();
        let xattrs = match target {
            Some(target) => self.last_xattrs(target.child.ino, locked.state(target.child.ino))?,
            None => Vec::new(),
        };
        let sync_first = match target {
            Some(_) => self.object_to_sync_first(moved, locked.state(moved))?,
            None => None,
        };
        let child = Child { name: to.name.into(), ..source.child.clone() };
        let old_cookie = self.cookie(locked, from)?;
        let new_cookie = target.map(|_| self.cookie(locked, to)).transpose()?;
        {
            let mut writes = self.writes.lock();
            match new_cookie {
                Some(at) => self.replace_entry(&mut writes, new, locked.state(new), at, child)?,
                None => self.add_entry(&mut writes, new, locked.state(new), child)?,
            }
            if let Some((child, mut state)) = whiteout {
                self.put_inode(&mut writes, child.ino, &mut state);
                self.replace_entry(&mut writes, old, locked.state(old), old_cookie, child)?;
            } else {
                self.remove_entry(&mut writes, old, locked.state(old), old_cookie)?;
            }
            if is_directory {
                locked.state(old).lose_subdirectory();
                self.set_parent(moved, locked.state(moved), new)?;
                // The link of a directory that is replaced becomes that of the moved one.
                if target.is_none() {
                    locked.state(new).nlink += 1;
                }
            }
            for ino in [old, new] {
                locked.state(ino).touch(now);
                self.put_inode(&mut writes, ino, locked.state(ino));
            }
            locked.state(moved).changed = now;
            self.put_inode(&mut writes, moved, locked.state(moved));
            if let Some(target) = target {
                let ino = target.child.ino;
                self.drop_link(&mut writes, ino, locked.state(ino), xattrs);
            }
            sync_first.into_iter().for_each(|live| writes.sync_first(live));
        }
        self.shared.fail_points.reach("rename.changed")?;
        let Some(target) = target else { return Ok(None) };
        let left = Left::by(locked.state(target.child.ino));
        self.dispose_if_dead(target.child.ino, locked.state(target.child.ino));
        Ok(left)
    }

    /// Notes which directory holds a moved one. The kernel may keep its listing, in which that is `..`.
    fn set_parent(&self, moved: Ino, state: &mut State, parent: Ino) -> Result<()> {
        let directory = state.directory_mut()?;
        if std::mem::replace(&mut directory.parent, parent) != parent {
            self.shared.stale.add([Stale::Listing(moved)]);
        }
        Ok(())
    }

    /// The object of a file that is about to replace another, if its bytes must be durable before the
    /// replacement is.
    fn object_to_sync_first(&self, ino: Ino, state: &mut State) -> Result<Option<Arc<LiveObject>>> {
        if !self.is_strict() {
            return Ok(None);
        }
        let Some(file) = state.file_mut().filter(|file| file.object.is_some()) else {
            return Ok(None);
        };
        let live = self.make_live(file)?;
        if file.opens.handles == 0 {
            self.shared.idle.closed(ino, file);
        }
        Ok(Some(live))
    }

    fn exchange(
        &self,
        locked: &mut Locked<'_>,
        from: Place<'_>,
        source: &Found,
        to: Place<'_>,
        target: &Found,
    ) -> Result<()> {
        let now = self.now();
        let (one, other) = (from.parent.ino, to.parent.ino);
        let cookies = [self.cookie(locked, from)?, self.cookie(locked, to)?];
        let mut writes = self.writes.lock();
        for ((place, found), cookie) in [(from, target), (to, source)].into_iter().zip(cookies) {
            let child = Child { name: place.name.into(), ..found.child.clone() };
            let ino = place.parent.ino;
            self.replace_entry(&mut writes, ino, locked.state(ino), cookie, child)?;
            if locked.state(found.child.ino).is_directory() {
                let moved = found.child.ino;
                self.set_parent(moved, locked.state(moved), ino)?;
                locked.state(ino).nlink += 1;
            }
        }
        for (ino, left) in [(one, source), (other, target)] {
            if locked.state(left.child.ino).is_directory() {
                locked.state(ino).lose_subdirectory();
            }
        }
        for ino in [one, other] {
            locked.state(ino).touch(now);
            self.put_inode(&mut writes, ino, locked.state(ino));
        }
        for ino in [source.child.ino, target.child.ino] {
            locked.state(ino).changed = now;
            self.put_inode(&mut writes, ino, locked.state(ino));
        }
        drop(writes);
        self.shared.fail_points.reach("rename.changed")?;
        Ok(())
    }
}

/// What rename(2) refuses.
fn check(
    locked: &mut Locked<'_>,
    source: &Found,
    to: Place<'_>,
    target: Option<&Found>,
    replace: Replace,
) -> Result<()> {
    if locked.state(to.parent.ino).nlink == 0 {
        return Err(FsError::NotFound);
    }
    let source_is_directory = locked.state(source.child.ino).is_directory();
    let Some(target) = target else {
        if replace == Replace::Exchange {
            return Err(FsError::NotFound);
        }
        return Ok(());
    };
    if replace == Replace::Refused {
        return Err(FsError::Exists);
    }
    let state = locked.state(target.child.ino);
    if replace == Replace::Exchange || target.child.ino == source.child.ino {
        return Ok(());
    }
    match (source_is_directory, state.is_directory()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        (true, true) if state.size > 0 => Err(FsError::NotEmpty),
        (true, true) | (false, false) => Ok(()),
    }
}

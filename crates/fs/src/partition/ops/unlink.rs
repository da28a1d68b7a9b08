//! Removing names, and the inodes that lose their last one.

use std::sync::Arc;

use forebay_base::Ino;

use crate::directory::Child;
use crate::error::{FsError, Result};
use crate::inode::{Inode, Locked, State};
use crate::partition::{Partition, Row};
use crate::shortage::Left;
use crate::stats::Operation;
use crate::writeset::WriteSet;

impl Partition {
    /// Removes the name of something that is no directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NotDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let removed = self.remove(parent, name, |child| {
            if child.is_directory() { Err(FsError::IsDirectory) } else { Ok(()) }
        });
        // What is busy is the directory of another fileset.
        removed.map_err(|error| match error {
            FsError::Busy => FsError::IsDirectory,
            other => other,
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`], [`FsError::Busy`] for
    /// the root of a fileset.
    pub fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.remove(parent, name, |child| {
            if !child.is_directory() {
                return Err(FsError::NotDirectory);
            }
            if child.size > 0 { Err(FsError::NotEmpty) } else { Ok(()) }
        })
    }

    fn remove(&self, parent: Ino, name: &[u8], check: impl Fn(&State) -> Result<()>) -> Result<()> {
        let directory = self.inode(parent)?;
        loop {
            let (child, victim) = self.find_named(&directory, name)?.ok_or(FsError::NotFound)?;
            let mut locked = Locked::all(&[&directory, &victim]);
            let Some(cookie) = self.still_there(&mut locked, parent, &child)? else { continue };
            let state = locked.state(victim.ino);
            check(state)?;
            self.count(Operation::Unlink);
            let left = self.remove_locked(&mut locked, parent, &victim, cookie)?;
            drop(locked);
            self.after_removal(&victim, left);
            return Ok(());
        }
    }

    /// The entry of a name and the inode it names, without holding any lock.
    pub(crate) fn find_named(
        &self,
        directory: &Inode,
        name: &[u8],
    ) -> Result<Option<(Child, Arc<Inode>)>> {
        // The inode may be removed between the two looks, and the name given to another.
        for _ in 0..100 {
            let found = self.find_entry(directory.ino, &mut directory.lock(), name)?;
            let Some((_, child)) = found else { return Ok(None) };
            if !self.owns(child.ino) {
                // The directory of another fileset: whatever is to be done with it would reach into that one.
                return Err(FsError::Busy);
            }
            match self.inode(child.ino) {
                Err(FsError::Stale) => {}
                inode => return Ok(Some((child, inode?))),
            }
        }
        Err(FsError::Damaged(format!("an entry of directory {} names no inode", directory.ino)))
    }

    /// The cookie of an entry that was found before the locks were taken, if it still names the same
    /// inode.
    pub(crate) fn still_there(
        &self,
        locked: &mut Locked<'_>,
        parent: Ino,
        child: &Child,
    ) -> Result<Option<u64>> {
        let found = self.find_entry(parent, locked.state(parent), &child.name)?;
        Ok(found.filter(|(_, now)| now.ino == child.ino).map(|(cookie, _)| cookie))
    }

    fn remove_locked(
        &self,
        locked: &mut Locked<'_>,
        parent: Ino,
        victim: &Arc<Inode>,
        cookie: u64,
    ) -> Result<Option<Left>> {
        let now = self.now();
        let xattrs = self.last_xattrs(victim.ino, locked.state(victim.ino))?;
        {
            let mut writes = self.writes.lock();
            let above = locked.state(parent);
            self.remove_entry(&mut writes, parent, above, cookie)?;
            above.touch(now);
            let is_directory = locked.state(victim.ino).is_directory();
            if is_directory {
                locked.state(parent).lose_subdirectory();
            }
            self.put_inode(&mut writes, parent, locked.state(parent));
            self.drop_link(&mut writes, victim.ino, locked.state(victim.ino), xattrs);
        }
        self.shared.fail_points.reach("unlink.changed")?;
        let left = Left::by(locked.state(victim.ino));
        self.dispose_if_dead(victim.ino, locked.state(victim.ino));
        Ok(left)
    }

    /// Takes one link from an inode (all of a directory's), and its record if that was the last.
    pub(crate) fn drop_link(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        xattrs: Vec<Row>,
    ) {
        state.nlink = if state.is_directory() { 0 } else { state.nlink.saturating_sub(1) };
        state.changed = self.now();
        self.note_left(state);
        if state.nlink == 0 {
            self.delete_inode(writes, ino, state, xattrs);
        } else {
            self.put_inode(writes, ino, state);
        }
    }

    /// All extended attributes of an inode, if it is about to lose its last link.
    pub(crate) fn last_xattrs(&self, ino: Ino, state: &State) -> Result<Vec<Row>> {
        if state.xattrs == 0 || (state.nlink > 1 && !state.is_directory()) {
            return Ok(Vec::new());
        }
        self.xattr_rows(ino)
    }
}

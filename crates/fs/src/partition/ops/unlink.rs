//! Removing names, and the inodes that lose their last one.

use std::sync::Arc;

use forebay_base::Ino;

use crate::caching::queue::Change;
use crate::directory::Child;
use crate::error::{FsError, Result};
use crate::inode::{Inode, Locked, State};
use crate::partition::entries::Look;
use crate::partition::writing_back::Tell;
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
        let removed = self.remove(parent, name, |_, child| {
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
        self.remove(parent, name, |_, child| {
            if !child.is_directory() {
                return Err(FsError::NotDirectory);
            }
            if child.size > 0 { Err(FsError::NotEmpty) } else { Ok(()) }
        })
    }

    /// Removes a name, if `check` allows that for the inode that it leads to.
    pub(crate) fn remove(
        &self,
        parent: Ino,
        name: &[u8],
        check: impl Fn(Ino, &State) -> Result<()>,
    ) -> Result<()> {
        self.remove_as((parent, name), check, Tell::Home)
    }

    /// As [`Partition::remove`]; a cache may have heard of it from its home.
    pub(crate) fn remove_as(
        &self,
        (parent, name): (Ino, &[u8]),
        check: impl Fn(Ino, &State) -> Result<()>,
        tell: Tell,
    ) -> Result<()> {
        let directory = self.inode(parent)?;
        let mut xattrs = LastXattrs::default();
        loop {
            let (look, found) = self.find_named(&directory, name)?;
            let Found { child, inode: victim } = found.ok_or(FsError::NotFound)?;
            let mut locked = Locked::all(&[&directory, &victim]);
            let now = look.again(self, locked.state(parent))?.flatten();
            let Some((cookie, _)) = now.filter(|(_, now)| now.ino == child.ino) else { continue };
            let state = locked.state(victim.ino);
            check(victim.ino, state)?;
            let Some(rows) = xattrs.of(victim.ino, state) else {
                drop(locked);
                xattrs = self.read_last_xattrs(&victim)?;
                continue;
            };
            self.count(Operation::Unlink);
            let left =
                self.remove_locked(&mut locked, (parent, name), &victim, (cookie, rows), tell)?;
            drop(locked);
            self.after_removal(&victim, left);
            return Ok(());
        }
    }

    /// The entry of a name and the inode it names, without holding any lock.
    pub(crate) fn find_named<'a>(
        &self,
        directory: &'a Inode,
        name: &'a [u8],
    ) -> Result<(Look<'a>, Option<Found>)> {
        // The inode may be removed between the two looks, and the name given to another.
        for _ in 0..100 {
            let (look, found) = self.look_for(directory, name)?;
            let Some((_, child)) = found else { return Ok((look, None)) };
            if !self.owns(child.ino) {
                // The directory of another fileset: whatever is to be done with it would reach into that one.
                return Err(FsError::Busy);
            }
            match self.inode(child.ino) {
                Err(FsError::Stale) => {}
                inode => return Ok((look, Some(Found { child, inode: inode? }))),
            }
        }
        Err(FsError::Damaged(format!("an entry of directory {} names no inode", directory.ino)))
    }

    fn remove_locked(
        &self,
        locked: &mut Locked<'_>,
        (parent, name): (Ino, &[u8]),
        victim: &Arc<Inode>,
        (cookie, xattrs): (u64, Vec<Row>),
        tell: Tell,
    ) -> Result<Option<Left>> {
        let now = self.now();
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
            if tell == Tell::Home {
                self.queue_change(&mut writes, || Change::Remove {
                    ino: victim.ino,
                    from: (parent, name.into()),
                });
            }
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

    /// Reads all extended attributes of an inode that may be about to lose its last name.
    pub(crate) fn read_last_xattrs(&self, inode: &Inode) -> Result<LastXattrs> {
        let changes = inode.lock().xattr_changes;
        Ok(LastXattrs(Some((inode.ino, changes, self.xattr_rows(inode.ino)?))))
    }
}

/// All extended attributes of an inode, as they were read without its lock: its number, and their latest change.
#[derive(Default)]
pub(crate) struct LastXattrs(Option<(Ino, u32, Vec<Row>)>);

impl LastXattrs {
    /// Those of a locked inode that are to go if it loses a name; `None` if they are to be read (again).
    pub fn of(&mut self, ino: Ino, state: &State) -> Option<Vec<Row>> {
        if state.xattrs == 0 || (state.nlink > 1 && !state.is_directory()) {
            return Some(Vec::new());
        }
        let read = self.0.take();
        read.filter(|read| (read.0, read.1) == (ino, state.xattr_changes)).map(|read| read.2)
    }
}

/// An entry, and the inode it names.
pub(crate) struct Found {
    pub child: Child,
    pub inode: Arc<Inode>,
}

#[cfg(test)]
mod tests {
    use forebay_base::{Epoch, FilesetId, Timestamp};

    use super::*;
    use crate::record::{InodeRecord, Kind};

    #[test]
    fn attributes_that_were_read_in_one_life_of_an_inode_do_not_count_in_the_next() {
        let state = crate::ops::fileset_root(FilesetId::ROOT, 0o644, Timestamp::default());
        let record =
            InodeRecord { kind: Kind::File, nlink: 1, xattrs: 1, ..state.record(Epoch(1)) };
        let lives = [0; 2].map(|_| State::from_record(record.clone()));
        let read = |state: &State| LastXattrs(Some((Ino(7), state.xattr_changes, Vec::new())));
        assert_eq!(read(&lives[0]).of(Ino(7), &lives[0]), Some(Vec::new()));
        assert_eq!(read(&lives[0]).of(Ino(7), &lives[1]), None);
        assert_eq!(read(&lives[0]).of(Ino(8), &lives[0]), None);
    }
}

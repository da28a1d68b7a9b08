//! Giving an inode one more name.

use forebay_base::Ino;

use crate::attributes::Attributes;
use crate::directory::{Child, check_name};
use crate::error::{FsError, Result};
use crate::inode::Locked;
use crate::key;
use crate::ops::create::LINK_MAX;
use crate::partition::Partition;
use crate::partition::quota::settle;
use crate::stats::Operation;
use crate::writeset::Known;

impl Partition {
    /// Names `ino` also `name` in `parent`. A file without a name (made by
    /// [`Partition::create_unnamed`]) gets its first one. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotPermitted`] for a directory,
    /// [`FsError::TooManyLinks`], [`FsError::NotFound`] if either was removed.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        self.admit()?;
        let inode = self.inode(ino)?;
        let directory = self.inode(parent)?;
        if ino == parent {
            return Err(FsError::NotPermitted);
        }
        // Its disk is not asked while the directory is locked.
        self.refresh(ino, &mut inode.lock())?;
        loop {
            let (look, _) = self.look_for(&directory, name)?;
            let mut locked = Locked::all(&[&inode, &directory]);
            match look.again(self, locked.state(parent))? {
                None => {}
                Some(Some(_)) => return Err(FsError::Exists),
                Some(None) => return self.link_locked(&mut locked, ino, parent, name),
            }
        }
    }

    fn link_locked(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Attributes> {
        let above_links = locked.state(parent).nlink;
        let state = locked.state(ino);
        if state.is_directory() {
            return Err(FsError::NotPermitted);
        }
        // An inode that lost its last name stays nameless: only a file made without a name, of which no
        // record was ever written, can get one.
        if above_links == 0 || (state.nlink == 0 && state.recorded) {
            return Err(FsError::NotFound);
        }
        if state.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let now = self.now();
        let child = Child { ino, kind: state.kind, name: name.into() };
        let bytes = state.counts().bytes;
        let admitted = if state.nlink == 0 { self.admit_inode(state, bytes)? } else { None };
        let mut writes = self.writes.lock();
        self.add_entry(&mut writes, parent, locked.state(parent), child)?;
        locked.state(parent).touch(now);
        self.put_inode(&mut writes, parent, locked.state(parent));
        let state = locked.state(ino);
        state.xattrs_changed();
        for (name, value) in state.nameless_xattrs.take().into_iter().flat_map(|all| *all) {
            writes.put(key::xattr(ino, &name), value, Known::Absent);
        }
        state.nlink += 1;
        state.changed = now;
        self.put_inode(&mut writes, ino, state);
        settle(admitted, &mut writes);
        drop(writes);
        self.count(Operation::Link);
        self.remember(ino);
        Ok(Attributes::of(ino, locked.state(ino)))
    }
}

//! Listing directories.

use std::ops::ControlFlow;

use forebay_base::Ino;

use crate::attributes::Attributes;
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT, FIRST_COOKIE};
use crate::error::{FsError, Result};
use crate::partition::Partition;
use crate::partition::entries::Placed;
use crate::record::Kind;
use crate::stats::Operation;

/// Entries that are gathered under one lock.
const CHUNK: usize = 512;

/// An entry as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DirectoryItem {
    /// Inode it names.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: Kind,
    /// Name.
    pub name: Vec<u8>,
    /// Where a listing goes on after this entry.
    pub next_offset: u64,
}

impl Partition {
    /// Lists a directory from `offset` (0, or the `next_offset` of an entry) until `visit` breaks.
    /// Entries that are there from the first call to the last are seen exactly once, whatever is added
    /// or removed meanwhile.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`], [`FsError::Io`].
    pub fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        self.visit_directory(ino, offset, |_| {}, visit)
    }

    /// As [`Partition::read_directory`], for a visitor that wants the attributes of about `most` entries: those that
    /// are not in memory are read from the store together.
    ///
    /// # Errors
    /// As [`Partition::read_directory`].
    pub fn read_directory_ahead(
        &self,
        ino: Ino,
        offset: u64,
        most: usize,
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut left = most;
        let ahead = |items: &[DirectoryItem]| {
            let items = &items[..items.len().min(left)];
            left -= items.len();
            self.load_all(items.iter().map(|item| item.ino));
        };
        self.visit_directory(ino, offset, ahead, visit)
    }

    fn visit_directory(
        &self,
        ino: Ino,
        offset: u64,
        mut ahead: impl FnMut(&[DirectoryItem]),
        visit: &mut dyn FnMut(&DirectoryItem) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut offset = offset;
        loop {
            let items = self.directory_chunk(ino, offset)?;
            let Some(last) = items.last() else { return Ok(()) };
            offset = last.next_offset;
            ahead(&items);
            for item in &items {
                if visit(item).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Attributes of a listed entry; `None` if it is gone. The kernel is told of it.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::Damaged`].
    pub fn listed_attributes(&self, item: &DirectoryItem) -> Result<Option<Attributes>> {
        self.remember(item.ino);
        match self.attributes(item.ino) {
            Ok(attributes) => Ok(Some(attributes)),
            Err(FsError::Stale) => {
                self.forget(item.ino, 1);
                Ok(None)
            }
            Err(error) => {
                self.forget(item.ino, 1);
                Err(error)
            }
        }
    }

    fn directory_chunk(&self, ino: Ino, offset: u64) -> Result<Vec<DirectoryItem>> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        let (is_complete, is_being_read) = {
            let directory = state.directory_mut()?;
            (directory.is_complete(), directory.is_being_read())
        };
        if offset == 0 {
            self.count(Operation::Readdir);
        }
        let mut items = Vec::new();
        let dots =
            [(ino, &b"."[..], AFTER_DOT), (self.parent_of(ino, &state), b"..", AFTER_DOT_DOT)];
        for (target, name, next_offset) in dots {
            if offset < next_offset {
                let name = name.to_vec();
                items.push(DirectoryItem { ino: target, kind: Kind::Directory, name, next_offset });
            }
        }
        let after = offset.max(FIRST_COOKIE - 1);
        if !is_complete {
            if is_being_read || !self.may_load_directory(state.size) {
                drop(state);
                items.extend(self.read_chunk(&inode, after, CHUNK)?.into_iter().map(listed));
                return Ok(items);
            }
            state = self.load_directory(&inode, state)?;
        }
        let directory = state.directory_mut()?;
        let here = directory.after(after).take(CHUNK);
        items.extend(here.map(|(cookie, child)| listed((cookie, child.clone()))));
        drop(state);
        if !is_complete {
            self.shared.inodes.shrink();
        }
        Ok(items)
    }
}

fn listed((next_offset, child): Placed) -> DirectoryItem {
    DirectoryItem { ino: child.ino, kind: child.kind, name: child.name.to_vec(), next_offset }
}

impl Partition {
    /// Checks that an inode is a directory.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub fn open_directory(&self, ino: Ino) -> Result<()> {
        self.inode(ino)?.lock().directory_mut().map(|_| ())
    }
}

//! A native fileset as the namespace knows it.

use std::path::PathBuf;

use forebay_base::Ino;
use forebay_disk::{Seek, Sync};
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::error::{FsError, Result};
use crate::native::{NativeTree, NodeDirectories};
use crate::ops::{Access, DirectoryItem, Found, Opened};
use crate::owner::Visit;
use crate::partition::Caller;
use crate::record::{Durability, Placement};
use crate::snapshot::{SnapshotList, SnapshotView};

/// A fileset that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFileset {
    /// Name of the fileset and its top directory.
    pub name: String,
    /// Durability class; a native fileset has that of its disk.
    pub durability: Durability,
    /// Who reads and writes its files.
    pub placement: Placement,
    /// Disk of a native fileset, by its identity; `None`: the suitable one with the most space.
    pub disk: Option<String>,
    /// Pool of disks for its new files; `None`: the default one. Not for a native fileset.
    #[serde(default)]
    pub pool: Option<String>,
    /// Permission bits of its top directory.
    pub mode: u16,
}

/// A native fileset and where it lies.
#[derive(Clone, Debug)]
pub struct NativeFileset {
    /// Name.
    pub name: String,
    /// Its directory on a disk of this machine, or why it cannot be reached; none for a node directory of another node that can be.
    pub tree: Option<std::result::Result<PathBuf, String>>,
}

/// Who answers for a native fileset.
pub enum NativeOwner {
    /// Its tree.
    Tree(NativeTree),
    /// It cannot be reached, for this reason.
    Lost(FsError),
    /// It is the directory of the node directories.
    Nodes(NodeDirectories),
    /// It is the list of the snapshots of a fileset, in a number space of its own.
    Snapshots(SnapshotList),
    /// It is a snapshot, in a number space of its own.
    Snapshot(SnapshotView),
}

impl NativeOwner {
    /// The owner of a tree that could be opened, or could not.
    pub(crate) fn of(tree: Result<NativeTree>) -> NativeOwner {
        tree.map_or_else(NativeOwner::Lost, NativeOwner::Tree)
    }

    /// The tree.
    ///
    /// # Errors
    /// [`FsError::Io`] with the reason, if it cannot be reached; [`FsError::NotPermitted`] for a directory of node directories, where
    /// nothing can be made or changed.
    pub fn tree(&self) -> Result<&NativeTree> {
        match self {
            NativeOwner::Tree(tree) => Ok(tree),
            NativeOwner::Lost(error) => Err(FsError::Io(error.to_string())),
            NativeOwner::Nodes(_) => Err(FsError::NotPermitted),
            NativeOwner::Snapshots(_) | NativeOwner::Snapshot(_) => Err(FsError::ReadOnly),
        }
    }

    /// The snapshot that it is, if it is one.
    pub(crate) fn snapshot(&self) -> Option<&SnapshotView> {
        match self {
            NativeOwner::Snapshot(view) => Some(view),
            NativeOwner::Tree(_)
            | NativeOwner::Lost(_)
            | NativeOwner::Nodes(_)
            | NativeOwner::Snapshots(_) => None,
        }
    }

    /// Whether it is no directory of a disk: its space is that of the file system.
    pub(crate) fn has_no_disk(&self) -> bool {
        match self {
            NativeOwner::Nodes(_) | NativeOwner::Snapshots(_) | NativeOwner::Snapshot(_) => true,
            NativeOwner::Tree(_) | NativeOwner::Lost(_) => false,
        }
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        if let NativeOwner::Tree(tree) = self {
            tree.forget(ino, count);
        }
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        match self {
            NativeOwner::Nodes(nodes) => nodes.lookup(name),
            NativeOwner::Snapshots(list) => list.lookup(name),
            NativeOwner::Snapshot(view) => view.lookup(parent, name),
            _ => self.tree()?.lookup(parent, name).map(Found::Here),
        }
    }

    pub(crate) fn look_up_top(&self) -> Result<Attributes> {
        match self {
            NativeOwner::Nodes(nodes) => Ok(nodes.attributes()),
            NativeOwner::Snapshots(list) => Ok(list.attributes()),
            NativeOwner::Snapshot(view) => view.look_up_top(),
            _ => self.tree()?.look_up_top(),
        }
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        match self {
            NativeOwner::Nodes(nodes) => Ok(nodes.attributes()),
            NativeOwner::Snapshots(list) => Ok(list.attributes()),
            NativeOwner::Snapshot(view) => view.attributes(ino),
            _ => self.tree()?.attributes(ino),
        }
    }

    pub(crate) fn open_directory(&self, ino: Ino) -> Result<()> {
        match self {
            NativeOwner::Nodes(_) | NativeOwner::Snapshots(_) => Ok(()),
            NativeOwner::Snapshot(view) => view.open_directory(ino),
            _ => self.tree()?.open_directory(ino),
        }
    }

    pub(crate) fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        match self {
            NativeOwner::Nodes(nodes) => {
                nodes.list(offset, visit);
                Ok(())
            }
            NativeOwner::Snapshots(list) => {
                list.list(offset, visit);
                Ok(())
            }
            NativeOwner::Snapshot(view) => view.read_directory(ino, offset, visit),
            _ => self.tree()?.read_directory(ino, offset, visit),
        }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            NativeOwner::Nodes(_) | NativeOwner::Snapshots(_) => Err(FsError::NoAttribute),
            NativeOwner::Snapshot(view) => view.xattr(ino, name),
            _ => self.tree()?.xattr(ino, name),
        }
    }

    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match self {
            NativeOwner::Nodes(_) | NativeOwner::Snapshots(_) => Ok(Vec::new()),
            NativeOwner::Snapshot(view) => view.list_xattrs(ino),
            _ => self.tree()?.list_xattrs(ino),
        }
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.snapshot() {
            Some(view) => view.read_link(ino),
            None => self.tree()?.read_link(ino),
        }
    }

    pub(crate) fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        match self.snapshot() {
            Some(view) => view.open_file(ino, access),
            None => self.tree()?.open_file(ino, access, caller),
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        match self.snapshot() {
            Some(view) => view.is_open(ino),
            None => self.tree().is_ok_and(|tree| tree.is_open(ino)),
        }
    }

    pub(crate) fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        match self.snapshot() {
            Some(view) => {
                view.close_file(ino);
                Ok(())
            }
            None => self.tree()?.close_file(ino, access),
        }
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.snapshot() {
            Some(view) => view.read(ino, offset, buffer),
            None => self.tree()?.read(ino, offset, buffer),
        }
    }

    pub(crate) fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        match self.snapshot() {
            Some(view) => view.seek(ino, target, offset),
            None => self.tree()?.seek(ino, target, offset),
        }
    }

    /// What is in a snapshot was synced with it.
    pub(crate) fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        match self.snapshot() {
            Some(_) => Ok(()),
            None => self.tree()?.sync_file(ino, what),
        }
    }

    pub(crate) fn listed_attributes(
        &self,
        parent: Ino,
        item: &DirectoryItem,
    ) -> Result<Option<Attributes>> {
        match self.snapshot() {
            Some(view) => view.attributes(item.ino).map(Some),
            // What is listed above a snapshot is left to whoever asks for it.
            None if matches!(self, NativeOwner::Snapshots(_)) => Ok(None),
            None => self.tree()?.listed_attributes(parent, item),
        }
    }

    pub(crate) fn sync_directory(&self, ino: Ino) -> Result<()> {
        match self {
            NativeOwner::Nodes(_) | NativeOwner::Snapshots(_) | NativeOwner::Snapshot(_) => Ok(()),
            _ => self.tree()?.sync_directory(ino),
        }
    }
}

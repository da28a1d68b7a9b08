//! A native fileset as the namespace knows it.

use std::path::PathBuf;

use forebay_base::Ino;
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::error::{FsError, Result};
use crate::native::{NativeTree, NodeDirectories};
use crate::ops::Found;
use crate::owner::Visit;
use crate::record::{Durability, Placement};

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
        }
    }

    /// Whether it is the list of node directories.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, NativeOwner::Nodes(_))
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
            _ => self.tree()?.lookup(parent, name).map(Found::Here),
        }
    }

    pub(crate) fn look_up_top(&self) -> Result<Attributes> {
        match self {
            NativeOwner::Nodes(nodes) => Ok(nodes.attributes()),
            _ => self.tree()?.look_up_top(),
        }
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        match self {
            NativeOwner::Nodes(nodes) => Ok(nodes.attributes()),
            _ => self.tree()?.attributes(ino),
        }
    }

    pub(crate) fn open_directory(&self, ino: Ino) -> Result<()> {
        match self {
            NativeOwner::Nodes(_) => Ok(()),
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
            _ => self.tree()?.read_directory(ino, offset, visit),
        }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match self {
            NativeOwner::Nodes(_) => Err(FsError::NoAttribute),
            _ => self.tree()?.xattr(ino, name),
        }
    }

    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        match self {
            NativeOwner::Nodes(_) => Ok(Vec::new()),
            _ => self.tree()?.list_xattrs(ino),
        }
    }

    pub(crate) fn sync_directory(&self, ino: Ino) -> Result<()> {
        match self {
            NativeOwner::Nodes(_) => Ok(()),
            _ => self.tree()?.sync_directory(ino),
        }
    }
}

//! A native fileset as the namespace knows it.

use std::path::PathBuf;

use forebay_base::Ino;
use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};
use crate::native::NativeTree;
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
    /// Its directory on its disk, or why it cannot be reached.
    pub tree: std::result::Result<PathBuf, String>,
}

/// Who answers for a native fileset: its tree, or the reason why it cannot be reached.
pub struct NativeOwner(Result<NativeTree>);

impl NativeOwner {
    /// The owner of a tree that could be opened, or could not.
    pub(crate) fn of(tree: Result<NativeTree>) -> NativeOwner {
        NativeOwner(tree)
    }

    /// The tree.
    ///
    /// # Errors
    /// [`FsError::Io`] with the reason, if it cannot be reached.
    pub fn tree(&self) -> Result<&NativeTree> {
        self.0.as_ref().map_err(|error| FsError::Io(error.to_string()))
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        if let Ok(tree) = &self.0 {
            tree.forget(ino, count);
        }
    }
}

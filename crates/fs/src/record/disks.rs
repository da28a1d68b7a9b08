//! Disks as the store of the root fileset has them.

use forebay_base::DiskId;
use serde::{Deserialize, Serialize};

/// The pool of disks, and of filesets, for which nobody chose another one.
pub const DEFAULT_POOL: &str = "default";

/// What the location of a disk begins with that lies on storage which all nodes mount, before its directory.
const SHARED: &str = "shared:";

/// What a disk is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskUse {
    /// New objects and old ones.
    #[default]
    Normal,
    /// It is being emptied: no new objects come.
    Draining,
    /// Somebody has said that it will never be there again. Files that lie on it cannot be opened.
    Lost,
    /// It was taken away when nothing referred to it. Its number stays taken.
    Removed,
}

/// A disk as the file system knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its number, by which records refer to it; never given to another disk.
    pub id: DiskId,
    /// Its own identity, as written in its label.
    pub uuid: String,
    /// Where it was when it was added: the path of a directory disk, the address of an archive, or the path of a shared disk
    /// as [`DiskRecord::shared_location`] writes it.
    pub location: String,
    /// Name of its pool.
    pub pool: String,
    /// Name of its failure group: disks that may fail together have the same. Empty: it fails alone.
    pub group: String,
    /// What it is used for.
    pub used: DiskUse,
}

impl DiskRecord {
    /// A disk of the default pool that fails alone.
    #[must_use]
    pub fn new(id: DiskId, uuid: &str, location: &str) -> DiskRecord {
        DiskRecord {
            id,
            uuid: uuid.to_owned(),
            location: location.to_owned(),
            pool: DEFAULT_POOL.to_owned(),
            group: String::new(),
            used: DiskUse::Normal,
        }
    }

    /// The location of a disk in a directory on storage that all nodes mount under the same path.
    #[must_use]
    pub fn shared_location(directory: &str) -> String {
        format!("{SHARED}{directory}")
    }

    /// The directory of a disk that every node reaches itself, if it is one.
    #[must_use]
    pub fn shared_directory(&self) -> Option<&str> {
        self.location.strip_prefix(SHARED)
    }

    /// Whether it is to be there.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        matches!(self.used, DiskUse::Normal | DiskUse::Draining)
    }
}

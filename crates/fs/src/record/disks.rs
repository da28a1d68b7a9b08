//! Disks as the store of the root fileset has them.

use forebay_base::DiskId;
use serde::{Deserialize, Serialize};

/// The pool of disks, and of filesets, for which nobody chose another one.
pub const DEFAULT_POOL: &str = "default";

/// What the location of a disk begins with that lies on storage which all nodes mount, before its directory.
const SHARED: &str = "shared:";

/// What the location of a disk begins with that lies over others, before the bytes of a unit and the numbers of those disks.
const STRIPED: &str = "striped:";

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

/// How the objects of a striped disk lie on the disks below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Consecutive bytes of an object that lie on one disk.
    pub unit_bytes: u64,
    /// The disks, in the order in which units lie on them.
    pub members: Vec<DiskId>,
}

/// A disk as the file system knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its number, by which records refer to it; never given to another disk.
    pub id: DiskId,
    /// Its own identity, as written in its label.
    pub uuid: String,
    /// Where it was when it was added: the path of a directory disk, the address of an archive, the path of a shared disk
    /// as [`DiskRecord::shared_location`] writes it, or what [`DiskRecord::striped_location`] says of a striped one.
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

    /// The location of a disk over others, in this order.
    #[must_use]
    pub fn striped_location(unit_bytes: u64, members: &[DiskId]) -> String {
        let members: Vec<String> = members.iter().map(|disk| disk.0.to_string()).collect();
        format!("{STRIPED}{unit_bytes}:{}", members.join(","))
    }

    /// How the objects of a disk lie over others, if it is a striped one.
    #[must_use]
    pub fn striping(&self) -> Option<Striping> {
        let (unit, members) = self.location.strip_prefix(STRIPED)?.split_once(':')?;
        let members: Option<Vec<DiskId>> =
            members.split(',').map(|number| number.parse().ok().map(DiskId)).collect();
        Some(Striping { unit_bytes: unit.parse().ok()?, members: members? })
    }

    /// Where it is, for people; `disks` are all records.
    #[must_use]
    pub fn shown_location(&self, disks: &[DiskRecord]) -> String {
        let Some(Striping { members, .. }) = self.striping() else { return self.location.clone() };
        let place = |id: &DiskId| {
            let found = disks.iter().find(|disk| disk.id == *id);
            found.map_or_else(|| format!("disk {id}"), |disk| disk.location.clone())
        };
        format!("striped over {}", members.iter().map(place).collect::<Vec<_>>().join(", "))
    }

    /// Whether it is to be there.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        matches!(self.used, DiskUse::Normal | DiskUse::Draining)
    }
}

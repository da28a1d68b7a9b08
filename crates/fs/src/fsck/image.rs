//! What a pass keeps in memory of the file system: compact, and without names.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::hash::HashKey;
use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId, Timestamp};
use rustc_hash::FxHashMap;

use super::copies::Copies;
use super::snapshots::Snapshots;
use crate::inode::{MODE_BITS, TARGET_MAX};
use crate::quota::Subject;
use crate::record::{
    DiskUsage, FilesetRecord, InodeRecord, Kind, Layout, ObjectRef, Superblock, Usage,
};

/// Numbers of inodes and objects within a fileset stay below this: no fileset ever hands out so many.
pub(super) const NUMBER_MAX: u64 = 1 << 46;
/// Limits of numbers stay below this, so that each mount can move them ahead.
pub(super) const LIMIT_MAX: u64 = 1 << 47;

/// Where an entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub parent: Ino,
    pub cookie: u64,
}

/// What is kept of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub has_object: bool,
    pub has_target: bool,
    /// An entry names it as something else.
    pub doubted: bool,
    pub nlink: u32,
    pub owners: (u32, u32),
    pub size: u64,
    /// Parent as its record says.
    pub parent: Ino,
    pub xattrs: u32,
    pub xattrs_found: u32,
    /// Entries that name it.
    pub names: u32,
    /// The first of them; for a directory the one that counts.
    pub name: Place,
}

impl Node {
    pub fn of(record: &InodeRecord) -> Node {
        Node {
            kind: record.kind,
            has_object: record.layout.object().is_some(),
            has_target: !record.target.is_empty(),
            doubted: false,
            nlink: record.nlink,
            owners: (record.uid, record.gid),
            size: record.size,
            parent: record.parent,
            xattrs: record.xattrs,
            xattrs_found: 0,
            names: 0,
            name: Place::default(),
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// The kind to believe in where an entry says `named`: the one that other fields speak for.
    pub fn believed_kind(&self, named: Kind) -> Kind {
        let speaks_for = |kind: Kind| match kind {
            Kind::File => self.has_object,
            Kind::Directory => self.parent.0 != 0,
            Kind::Symlink => self.has_target,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => false,
        };
        let needs_proof = matches!(self.kind, Kind::Directory | Kind::Symlink);
        let named_wins = speaks_for(named) || (needs_proof && !speaks_for(self.kind));
        if named_wins { named } else { self.kind }
    }
}

/// What is counted of a directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Directory {
    pub entries: u64,
    pub subdirectories: u32,
}

/// A file's claim on an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub at: ObjectRef,
    pub ino: Ino,
    pub size: u64,
    pub stored_bytes: u64,
    pub epoch: Epoch,
}

/// All of it.
pub(super) struct Image {
    pub superblock: Superblock,
    /// The fileset is a cache: its files may lie elsewhere.
    pub is_cache: bool,
    pub hash_key: HashKey,
    /// The records of filesets, in the root fileset alone; `None` for those that cannot be read.
    pub filesets: BTreeMap<FilesetId, Option<FilesetRecord>>,
    /// Entries of the root directory that name other filesets.
    pub fileset_names: BTreeMap<FilesetId, Vec<(Vec<u8>, Place)>>,
    /// The usage record, if it is there and can be read.
    pub usage: Option<Usage>,
    /// What owners of files hold, as the records have it; `None` for those that cannot be read.
    pub holdings: BTreeMap<Subject, Option<Usage>>,
    /// Whether a user or group has a quota.
    pub limits_owners: bool,
    /// Objects in use on each disk, as the records have it; `None` for those that cannot be read.
    pub disk_usage: BTreeMap<DiskId, Option<DiskUsage>>,
    pub nodes: FxHashMap<Ino, Node>,
    pub directories: FxHashMap<Ino, Directory>,
    /// Directories in which entries lie although they have no inode.
    pub missing: BTreeSet<Ino>,
    /// Names of inodes beyond the first.
    pub more_names: Vec<(Ino, Place)>,
    /// The last entry that names each inode that does not exist.
    pub last_names: FxHashMap<Ino, Place>,
    /// Directories, each after its parent.
    pub order: Vec<Ino>,
    pub claims: Vec<Claim>,
    /// Its snapshots.
    pub snapshots: Snapshots,
    /// Copies of its files in other failure groups.
    pub copies: Copies,
    /// Objects that inodes of another kind than file refer to.
    pub foreign: Vec<(Ino, ObjectRef)>,
}

impl Image {
    pub fn new(superblock: Superblock) -> Image {
        Image {
            hash_key: HashKey(superblock.hash_key),
            superblock,
            is_cache: false,
            filesets: BTreeMap::new(),
            fileset_names: BTreeMap::new(),
            usage: None,
            holdings: BTreeMap::new(),
            limits_owners: false,
            disk_usage: BTreeMap::new(),
            nodes: FxHashMap::default(),
            directories: FxHashMap::default(),
            missing: BTreeSet::new(),
            more_names: Vec::new(),
            last_names: FxHashMap::default(),
            order: Vec::new(),
            claims: Vec::new(),
            snapshots: Snapshots::default(),
            copies: Copies::default(),
            foreign: Vec::new(),
        }
    }

    /// The number of the fileset.
    pub fn fileset(&self) -> FilesetId {
        self.superblock.fileset
    }

    /// Its top directory.
    pub fn top(&self) -> Ino {
        Ino::top_of(self.fileset())
    }

    /// Whether an inode of the fileset can have that number.
    pub fn can_be(&self, ino: Ino) -> bool {
        ino.fileset() == self.fileset() && (1..NUMBER_MAX).contains(&ino.local())
    }

    /// Whether an object of the fileset can have that number.
    pub fn can_be_object(&self, id: ObjectId) -> bool {
        id.fileset() == self.fileset() && id.local() < NUMBER_MAX
    }
}

/// Makes the fields of a record go together: what its kind does not have is cleared.
/// In a cache, a file without an object has a size: it was not fetched.
pub(super) fn make_normal(record: &mut InodeRecord, epoch: Epoch, is_cache: bool) {
    if record.kind != Kind::Directory {
        record.parent = Ino(0);
    }
    if record.kind != Kind::File {
        record.layout = Layout::None;
    }
    if record.kind != Kind::Symlink {
        record.target.clear();
    }
    match record.kind {
        Kind::File if record.layout == Layout::None && !is_cache => record.size = 0,
        Kind::File | Kind::Directory => {}
        Kind::Symlink => record.size = record.target.len() as u64,
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => record.size = 0,
    }
    record.mode &= MODE_BITS;
    record.epoch = record.epoch.min(epoch);
    for time in
        [&mut record.accessed, &mut record.modified, &mut record.changed, &mut record.created]
    {
        *time = Timestamp::new(time.seconds, time.nanoseconds);
    }
}

/// Whether a symlink's target can be one.
pub(super) fn is_target(target: &[u8]) -> bool {
    !target.is_empty() && target.len() <= TARGET_MAX && !target.contains(&0)
}

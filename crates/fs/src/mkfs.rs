//! Making a file system in an empty store.

use forebay_base::{Clock, Epoch, FilesetId, Ino};
use forebay_store::{Batch, Store};

use crate::directory::{Bucket, Child};
use crate::error::{FsError, Result};
use crate::key;
use crate::ops::fileset_root;
use crate::record::{
    DiskRecord, Durability, FilesetRecord, Kind, MountState, Placement, Superblock, Usage, encode,
};

/// Identity of a new file system.
pub struct Identity {
    /// Unique name, as written in the labels of its disks.
    pub uuid: String,
    /// Secret of the name hash: random bytes.
    pub hash_key: [u8; 16],
    /// Its disks.
    pub disks: Vec<DiskRecord>,
    /// Owner and group of the directories it begins with.
    pub owner: (u32, u32),
    /// Placement of the filesets of [`SCRATCH`]. For native ones, their trees are on the first disk already.
    pub scratch: Placement,
}

/// Names of the filesets for scratch data that a file system begins with.
pub const SCRATCH: [&str; 2] = ["work", "util"];
/// Permission bits of their top directories.
pub const SCRATCH_MODE: u16 = 0o1777;

/// A fileset that a new file system begins with: name, durability, mode of its directory.
const FILESETS: [(&str, Durability, u16); 3] = [
    ("data", Durability::Strict, 0o755),
    (SCRATCH[0], Durability::Scratch, SCRATCH_MODE),
    (SCRATCH[1], Durability::Scratch, SCRATCH_MODE),
];

/// Writes an empty file system with the filesets `data`, `work` and `util` into an empty store.
///
/// # Errors
/// [`FsError::Refused`] if the store holds one already; what the store says.
pub fn make(store: &dyn Store, identity: Identity, clock: &dyn Clock) -> Result<()> {
    let now = clock.now();
    let hash_key = forebay_base::hash::HashKey(identity.hash_key);
    let mut batch = Batch { requires: vec![(key::TERM.to_vec(), None)], ..Batch::default() };
    let mut put = |key: Vec<u8>, value: Vec<u8>| {
        batch.changes.insert(key, Some(value));
    };
    let epoch = Epoch(1);
    let directory = |fileset: FilesetId, mode: u16| {
        let mut state = fileset_root(fileset, mode, now);
        (state.uid, state.gid) = identity.owner;
        state
    };
    let mut root = directory(FilesetId::ROOT, 0o755);
    put(key::usage(FilesetId::ROOT), encode(&Usage { inodes: 1, bytes: 0 }));
    put(
        key::fileset(FilesetId::ROOT),
        encode(&FilesetRecord {
            name: String::new(),
            root: Ino::ROOT,
            durability: Durability::Strict,
            placement: Placement::Direct,
            disk: None,
        }),
    );
    let first_disk = identity.disks.first().map(|disk| disk.uuid.clone());
    let mut number = 0;
    for (name, durability, mode) in FILESETS {
        number += 1;
        let (id, ino) = (FilesetId(number), Ino(Ino::ROOT.0 + u64::from(number)));
        let placement = match durability {
            Durability::Scratch => identity.scratch,
            Durability::Strict => Placement::Direct,
        };
        let record = FilesetRecord {
            name: name.to_owned(),
            root: ino,
            durability,
            placement,
            disk: (placement == Placement::Native).then(|| first_disk.clone()).flatten(),
        };
        put(key::fileset(id), encode(&record));
        put(key::usage(id), encode(&Usage { inodes: 1, bytes: 0 }));
        put(key::inode(ino), encode(&directory(id, mode).record(epoch)));
        let child = Child { ino, kind: Kind::Directory, name: name.as_bytes().into() };
        // Three names never share a bucket's first slot, unless their hashes are equal.
        let cookie = Bucket::of(&hash_key, name.as_bytes()).first() + u64::from(number);
        put(key::entry(Ino::ROOT, cookie), encode(&child.record()));
        root.nlink += 1;
        root.size += 1;
    }
    put(key::inode(Ino::ROOT), encode(&root.record(epoch)));
    let superblock = Superblock {
        uuid: identity.uuid,
        hash_key: identity.hash_key,
        epoch,
        state: MountState::Clean,
        crashed_epoch: Epoch(0),
        ino_limit: Ino::ROOT.0 + u64::from(number) + 1,
        object_limit: 1,
        disks: identity.disks,
    };
    put(key::SUPERBLOCK.to_vec(), encode(&superblock));
    put(key::TERM.to_vec(), epoch.0.to_be_bytes().to_vec());
    store.commit(&batch).map_err(|error| match error {
        forebay_store::StoreError::Conflict => {
            FsError::Refused("the store already holds a file system".to_owned())
        }
        other => other.into(),
    })
}

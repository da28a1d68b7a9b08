//! Making a file system in an empty set of stores, and a fileset in an empty store.

use std::sync::Arc;

use forebay_base::{Clock, Epoch, FilesetId, Ino};
use forebay_store::{Batch, Store, Stores};

use crate::caching;
use crate::directory::{Bucket, Child};
use crate::error::{FsError, Result};
use crate::key::{self, Term};
use crate::ops::fileset_root;
use crate::record::{
    DEFAULT_POOL, DiskRecord, Durability, FilesetRecord, FilesetSettings, Kind, MountState,
    Placement, Stage, Superblock, Usage, encode,
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

/// The epoch of a fileset that nobody has opened.
pub(crate) const FIRST_EPOCH: Epoch = Epoch(1);

/// The first number within a fileset that can be given: that of its top directory is taken.
const FIRST_INO: u64 = Ino::ROOT.0 + 1;
/// The first number of an object.
const FIRST_OBJECT: u64 = 1;

/// A fileset that is to be made in an empty store.
pub(crate) struct StoredFileset<'a> {
    pub id: FilesetId,
    pub settings: FilesetSettings,
    pub identity: &'a Identity,
    /// Mode of its directory.
    pub mode: u16,
    /// What makes it a cache, if it is one.
    pub cache: Option<&'a [u8]>,
    /// The least numbers of inodes and objects that it may use.
    pub first: (u64, u64),
}

impl StoredFileset<'_> {
    /// The rows of the store: a fileset with an empty directory.
    fn rows(&self, clock: &dyn Clock) -> Batch {
        let mut batch = Batch { requires: vec![(key::TERM.to_vec(), None)], ..Batch::default() };
        let mut put = |key: Vec<u8>, value: Vec<u8>| batch.changes.insert(key, Some(value));
        let epoch = FIRST_EPOCH;
        let mut top = fileset_root(self.id, self.mode, clock.now());
        (top.uid, top.gid) = self.identity.owner;
        if let Some(settings) = self.cache {
            let ino = Ino::top_of(self.id);
            put(key::xattr(ino, caching::SETTINGS), settings.to_vec());
            put(key::xattr(ino, caching::PATH), Vec::new());
            top.xattrs = 2;
        }
        let superblock = Superblock {
            uuid: self.identity.uuid.clone(),
            fileset: self.id,
            settings: self.settings.clone(),
            hash_key: self.identity.hash_key,
            epoch,
            state: MountState::Clean,
            crashed_epoch: Epoch(0),
            ino_limit: self.first.0.max(FIRST_INO),
            object_limit: self.first.1.max(FIRST_OBJECT),
            sweep_due: false,
            disks: self.identity.disks.clone(),
        };
        put(key::USAGE.to_vec(), encode(&Usage { inodes: 1, bytes: 0 }));
        put(key::inode(Ino::top_of(self.id)), encode(&top.record(epoch)));
        put(key::SUPERBLOCK.to_vec(), encode(&superblock));
        put(key::TERM.to_vec(), Term { epoch, batch: 0 }.to_bytes());
        batch
    }

    /// Writes the fileset into an empty store.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the store holds one already; what the store says.
    pub fn make(&self, store: &dyn Store, clock: &dyn Clock) -> Result<()> {
        commit_new(store, &self.rows(clock))
    }
}

/// Writes an empty file system with the filesets `data`, `work` and `util` into an empty set of stores.
///
/// # Errors
/// [`FsError::Refused`] if the stores hold one already; what a store says.
pub fn make(stores: &dyn Stores, identity: &Identity, clock: &dyn Clock) -> Result<()> {
    let first_disk = identity.disks.first().map(|disk| disk.uuid.clone());
    make_with(stores, identity, first_disk.as_deref(), clock)
}

/// As [`make`], for a cluster: native filesets have a directory for each node, which the nodes make themselves.
///
/// # Errors
/// As [`make`].
pub fn make_for_cluster(stores: &dyn Stores, identity: &Identity, clock: &dyn Clock) -> Result<()> {
    make_with(stores, identity, None, clock)
}

fn make_with(
    stores: &dyn Stores,
    identity: &Identity,
    native_disk: Option<&str>,
    clock: &dyn Clock,
) -> Result<()> {
    if !stores.list()?.is_empty() {
        return Err(FsError::Refused("the stores already hold a file system".to_owned()));
    }
    let settings = |name: &str, durability| {
        let placement = match durability {
            Durability::Scratch => identity.scratch,
            Durability::Strict => Placement::Direct,
        };
        let disk = native_disk.map(str::to_owned).filter(|_| placement == Placement::Native);
        let pool = DEFAULT_POOL.to_owned();
        FilesetSettings { name: name.to_owned(), durability, placement, disk, pool, copies: 1 }
    };
    let new = |id, settings, mode| {
        let (cache, first) = (None, (0, 0));
        StoredFileset { id, settings, identity, mode, cache, first }
    };
    let root_settings = settings("", Durability::Strict);
    let mut root = new(FilesetId::ROOT, root_settings.clone(), 0o755).rows(clock);
    put_record(&mut root, FilesetId::ROOT, root_settings);
    let mut top = fileset_root(FilesetId::ROOT, 0o755, clock.now());
    (top.uid, top.gid) = identity.owner;
    for (number, (name, durability, mode)) in (1..).zip(FILESETS) {
        let id = FilesetId(number);
        let settings = settings(name, durability);
        if settings.placement != Placement::Native {
            let store = stores.create(id)?;
            new(id, settings.clone(), mode).make(&*store, clock)?;
            store.close()?;
        }
        put_record(&mut root, id, settings);
        let child =
            Child { ino: Ino::top_of(id), kind: Kind::Directory, name: name.as_bytes().into() };
        // Three names never share a bucket's first slot, unless their hashes are equal.
        let bucket = Bucket::of(&forebay_base::hash::HashKey(identity.hash_key), name.as_bytes());
        let entry = key::entry(Ino::ROOT, bucket.first() + u64::from(number));
        root.changes.insert(entry, Some(encode(&child.record())));
        top.nlink += 1;
        top.size += 1;
    }
    root.changes.insert(key::inode(Ino::ROOT), Some(encode(&top.record(Epoch(1)))));
    // Last: without it there is no file system.
    let store: Arc<dyn Store> = stores.create(FilesetId::ROOT)?;
    commit_new(&*store, &root)?;
    Ok(store.close()?)
}

fn put_record(root: &mut Batch, id: FilesetId, settings: FilesetSettings) {
    let record = FilesetRecord { settings, stage: Stage::Made, first_ino: 0, first_object: 0 };
    root.changes.insert(key::fileset(id), Some(encode(&record)));
}

fn commit_new(store: &dyn Store, batch: &Batch) -> Result<()> {
    store.commit(batch).map_err(|error| match error {
        forebay_store::StoreError::Conflict => {
            FsError::Refused("the store already holds a fileset".to_owned())
        }
        other => other.into(),
    })
}

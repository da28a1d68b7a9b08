//! Reading a snapshot: a directory that lists the snapshots of a fileset, and the tree of each one.
//!
//! Nothing is kept in memory but open files. What is read comes from the frozen copy of the store and from objects, which are
//! looked up anew when the snapshot has turned to a copy of one. Inode numbers are those of the fileset in a number space of the
//! snapshot's own, which is given for the time of a mount.
//!
//! Nothing can be changed here: [`FsError::ReadOnly`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use forebay_base::hash::HashKey;
use forebay_base::{Epoch, FilesetId, Ino, Timestamp};
use forebay_disk::Seek;
use forebay_store::Store;
use parking_lot::{Mutex, RwLock};

use crate::attributes::{Attributes, KeepName};
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT, Bucket, FIRST_COOKIE};
use crate::error::{FsError, Result};
use crate::inode::State;
use crate::key::{self, Key};
use crate::made_up;
use crate::object::LiveObject;
use crate::ops::{Access, DirectoryItem, Found, Opened};
use crate::owner::Visit;
use crate::partition::Partition;
use crate::record::{EntryRecord, InodeRecord, Kind, ObjectRef, decode};
use crate::recovery::{read_superblock, scan_prefix};

/// Entries that are read at a time.
const CHUNK: usize = 512;

/// The directory `.snapshots` of a fileset.
pub struct SnapshotList {
    /// The number space of this directory.
    id: FilesetId,
    /// Top of the fileset.
    top: Ino,
    /// The snapshots by their names, with their number spaces.
    snapshots: RwLock<BTreeMap<String, FilesetId>>,
    made: Timestamp,
}

impl SnapshotList {
    pub(crate) fn new(id: FilesetId, top: Ino, made: Timestamp) -> SnapshotList {
        SnapshotList { id, top, snapshots: RwLock::default(), made }
    }

    /// Its inode.
    pub(crate) fn ino(&self) -> Ino {
        Ino::top_of(self.id)
    }

    pub(crate) fn add(&self, name: &str, id: FilesetId) {
        self.snapshots.write().insert(name.to_owned(), id);
    }

    /// Takes a snapshot from the list; its number space, if it was there.
    pub(crate) fn remove(&self, name: &str) -> Option<FilesetId> {
        self.snapshots.write().remove(name)
    }

    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Found> {
        let snapshots = self.snapshots.read();
        let found = std::str::from_utf8(name).ok().and_then(|name| snapshots.get(name));
        found.map(|id| Found::Elsewhere(Ino::top_of(*id))).ok_or(FsError::NotFound)
    }

    pub(crate) fn attributes(&self) -> Attributes {
        made_up::attributes(self.ino(), 0o555, self.made, KeepName::Never)
    }

    pub(crate) fn list(&self, offset: u64, visit: &mut Visit<'_>) {
        let snapshots = self.snapshots.read().clone();
        made_up::list((self.ino(), self.top), snapshots.into_iter(), offset, visit);
    }
}

/// What is known of a snapshot once it is used.
struct Known {
    hash_key: HashKey,
    /// Records of this epoch or before may not agree with their objects.
    suspect: Epoch,
    /// Objects with lower numbers were there at the moment of the snapshot.
    below: u64,
}

/// An open file of a snapshot.
struct OpenFile {
    handles: u64,
    /// The object that its record names.
    at: ObjectRef,
    /// Where its bytes were found, when snapshots had turned to so many copies.
    found: Mutex<Option<(u64, Arc<LiveObject>)>>,
}

/// The bytes of an open file of a snapshot, to be copied to another file.
pub(crate) struct CopyOfSnapshot {
    pub object: Arc<LiveObject>,
    /// The bytes that there are.
    pub left: u64,
    partition: Arc<Partition>,
    turns: u64,
}

impl CopyOfSnapshot {
    /// Whether what was copied until now is what the snapshot holds: nobody may have written to the object meanwhile.
    pub fn is_right(&self) -> bool {
        self.partition.sharing().begin_reading().1 == self.turns
    }
}

/// The tree of one snapshot.
pub struct SnapshotView {
    /// Its number space.
    id: FilesetId,
    /// The directory in which it is listed.
    parent: Ino,
    number: u64,
    partition: Arc<Partition>,
    known: OnceLock<Known>,
    open: Mutex<HashMap<Ino, Arc<OpenFile>>>,
}

impl SnapshotView {
    pub(crate) fn new(
        id: FilesetId,
        parent: Ino,
        number: u64,
        partition: &Arc<Partition>,
    ) -> SnapshotView {
        SnapshotView {
            id,
            parent,
            number,
            partition: Arc::clone(partition),
            known: OnceLock::new(),
            open: Mutex::default(),
        }
    }

    fn store(&self) -> Result<Arc<dyn Store>> {
        Ok(self.partition.frozen_store(self.number)?)
    }

    fn known(&self) -> Result<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let superblock = read_superblock(&*self.store()?)?;
        let (hash_key, suspect) = (HashKey(superblock.hash_key), superblock.crashed_epoch);
        let mut list = self.partition.sharing().list().into_iter();
        let found = list.find(|(number, _)| *number == self.number);
        let below = found.map(|(_, record)| record.below).ok_or(FsError::Stale)?;
        Ok(self.known.get_or_init(|| Known { hash_key, suspect, below }))
    }

    /// The number that an inode has in the fileset.
    fn original(&self, ino: Ino) -> Ino {
        Ino::of(self.partition.number(), ino.local())
    }

    fn shown(&self, original: Ino) -> Ino {
        Ino::of(self.id, original.local())
    }

    fn record(&self, ino: Ino) -> Result<InodeRecord> {
        let bytes = self.store()?.get(&key::inode(self.original(ino)))?;
        decode("inode", &bytes.ok_or(FsError::Stale)?)
    }

    fn attributes_of(&self, ino: Ino, mut record: InodeRecord) -> Result<Attributes> {
        if let Some(at) = record.layout.object() {
            let known = self.known()?;
            let (_reading, _) = self.partition.sharing().begin_reading();
            let copy = self.partition.kept_copy(at, self.number)?;
            let found_at = copy.map_or(at, |copy| copy.at);
            // A copy that was made later, before the first write, is what the record says: its own times may be others.
            let was_written = copy.is_some_and(|copy| copy.made.local() < known.below);
            if was_written || record.epoch <= known.suspect {
                // It was being written at the moment of the snapshot, or a crash came after its record.
                let found = self.partition.objects_of_all().attributes(found_at)?;
                let found = found.unwrap_or_default();
                record.size = found.size;
                record.allocated_bytes = found.allocated_bytes;
                record.modified = record.modified.max(found.modified);
            }
        }
        let attributes = Attributes::of(ino, &State::from_record(record));
        // The name of a snapshot goes with it.
        let is_top = ino == Ino::top_of(self.id);
        let name = if is_top { KeepName::Never } else { attributes.name };
        Ok(Attributes { name, ..attributes })
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes> {
        self.attributes_of(ino, self.record(ino)?)
    }

    pub(crate) fn look_up_top(&self) -> Result<Attributes> {
        self.attributes(Ino::top_of(self.id))
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found> {
        if name.len() > crate::NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        self.open_directory(parent)?;
        let bucket = Bucket::of(&self.known()?.hash_key, name);
        let (from, to) = key::entries(self.original(parent), bucket.first(), bucket.last());
        for (_, value) in self.store()?.scan(&from, &to, usize::MAX)? {
            let entry = decode::<EntryRecord>("directory entry", &value)?;
            if entry.name == name && self.is_own(entry.ino) {
                return Ok(Found::Here(self.attributes(self.shown(entry.ino))?));
            }
        }
        Err(FsError::NotFound)
    }

    /// Whether an inode is one of the snapshot: other filesets, which have names in the root directory, are not.
    fn is_own(&self, original: Ino) -> bool {
        original.fileset() == self.partition.number()
    }

    pub(crate) fn open_directory(&self, ino: Ino) -> Result<()> {
        let is_directory = self.record(ino)?.kind == Kind::Directory;
        if is_directory { Ok(()) } else { Err(FsError::NotDirectory) }
    }

    pub(crate) fn read_directory(
        &self,
        ino: Ino,
        offset: u64,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let record = self.record(ino)?;
        if record.kind != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        let is_top = ino == Ino::top_of(self.id);
        let parent = if is_top { self.parent } else { self.shown(record.parent) };
        for (target, name, next_offset) in [(ino, ".", AFTER_DOT), (parent, "..", AFTER_DOT_DOT)] {
            let name = name.as_bytes().to_vec();
            let item = DirectoryItem { ino: target, kind: Kind::Directory, name, next_offset };
            if offset < next_offset && visit(&item).is_break() {
                return Ok(());
            }
        }
        let store = self.store()?;
        let mut after = offset.max(FIRST_COOKIE - 1);
        while let Some(first) = after.checked_add(1) {
            let (from, to) = key::entries(self.original(ino), first, u64::MAX);
            let rows = store.scan(&from, &to, CHUNK)?;
            for (key, value) in &rows {
                let Some(Key::Entry(_, cookie)) = key::parse(key) else { continue };
                after = cookie;
                let EntryRecord { ino, kind, name } = decode("directory entry", value)?;
                let item = DirectoryItem { ino: self.shown(ino), kind, name, next_offset: cookie };
                if self.is_own(ino) && visit(&item).is_break() {
                    return Ok(());
                }
            }
            if rows.len() < CHUNK {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let record = self.record(ino)?;
        if record.kind == Kind::Symlink { Ok(record.target) } else { Err(FsError::Invalid) }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.store()?.get(&key::xattr(self.original(ino), name))?;
        value.ok_or(FsError::NoAttribute)
    }

    pub(crate) fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let (prefix, _) = key::xattrs(self.original(ino));
        scan_prefix(&*self.store()?, &prefix, &mut |key, _| {
            if let Some(Key::Xattr(_, name)) = key::parse(key) {
                names.extend_from_slice(&name);
                names.push(0);
            }
            Ok(())
        })?;
        Ok(names)
    }
}

// --- open files ---

impl SnapshotView {
    pub(crate) fn open_file(&self, ino: Ino, access: Access) -> Result<Opened> {
        if access.write || access.truncate {
            return Err(FsError::ReadOnly);
        }
        let record = self.record(ino)?;
        if record.kind != Kind::File {
            return Err(FsError::Invalid);
        }
        if let Some(at) = record.layout.object() {
            let mut open = self.open.lock();
            let file = open
                .entry(ino)
                .or_insert_with(|| Arc::new(OpenFile { handles: 0, at, found: Mutex::default() }));
            let found = file.found.lock().clone();
            let handles = file.handles + 1;
            *file = Arc::new(OpenFile { handles, at, found: Mutex::new(found) });
        }
        // What the kernel has cached of it never changes.
        Ok(Opened { registration: None, keep_pages: true, uncached: false, lineage: 0, home: None })
    }

    pub(crate) fn close_file(&self, ino: Ino) {
        let mut open = self.open.lock();
        let Some(file) = open.get_mut(&ino) else { return };
        if file.handles <= 1 {
            open.remove(&ino);
            return;
        }
        let (at, handles, found) = (file.at, file.handles - 1, file.found.lock().clone());
        *file = Arc::new(OpenFile { handles, at, found: Mutex::new(found) });
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.open.lock().contains_key(&ino)
    }

    /// Does something with the object that holds the bytes of an open file; `None` if it has none.
    fn with_object<T>(
        &self,
        ino: Ino,
        work: impl FnOnce(&LiveObject) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(file) = self.open.lock().get(&ino).cloned() else { return Ok(None) };
        let (_reading, turns) = self.partition.sharing().begin_reading();
        let mut found = file.found.lock();
        let live = match &*found {
            Some((then, live)) if *then == turns => Arc::clone(live),
            _ => {
                let at = self.partition.resolve(file.at, self.number)?;
                let live = self.partition.objects_of_all().open_to_read(at)?;
                *found = Some((turns, Arc::clone(&live)));
                live
            }
        };
        drop(found);
        work(&live).map(Some)
    }

    /// Where an open file lies, if that is in an archive.
    pub(crate) fn archived(&self, ino: Ino) -> Result<Option<ObjectRef>> {
        let objects = self.partition.objects_of_all();
        let at = self.open.lock().get(&ino).map(|file| file.at);
        let Some(at) = at.filter(|at| objects.is_archive(at.disk)) else { return Ok(None) };
        let (_reading, _) = self.partition.sharing().begin_reading();
        let found = self.partition.resolve(at, self.number)?;
        Ok(Some(found).filter(|found| objects.is_archive(found.disk)))
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if self.archived(ino)?.is_some() {
            return Err(FsError::Archived);
        }
        let objects = self.partition.objects_of_all();
        let read = self.with_object(ino, |live| {
            objects.observe(live.at.disk, live.object.read_at(offset, buffer))
        })?;
        Ok(read.unwrap_or(0))
    }

    /// What a copy of an open file reads; `None` if it has no object.
    ///
    /// # Errors
    /// [`FsError::Archived`] if it lies in an archive.
    pub(crate) fn source_of_copy(&self, ino: Ino, offset: u64) -> Result<Option<CopyOfSnapshot>> {
        if self.archived(ino)?.is_some() {
            return Err(FsError::Archived);
        }
        let turns = self.partition.sharing().begin_reading().1;
        let objects = self.partition.objects_of_all();
        let found =
            self.with_object(ino, |live| objects.observe(live.at.disk, live.object.attributes()))?;
        let file = self.open.lock().get(&ino).cloned();
        let object = file.and_then(|file| {
            let found = file.found.lock();
            found.as_ref().filter(|(then, _)| *then == turns).map(|(_, live)| Arc::clone(live))
        });
        let (Some(found), Some(object)) = (found, object) else { return Ok(None) };
        let (left, partition) = (found.size.saturating_sub(offset), Arc::clone(&self.partition));
        Ok(Some(CopyOfSnapshot { object, left, partition, turns }))
    }

    pub(crate) fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        if self.archived(ino)?.is_some() {
            return Err(FsError::Archived);
        }
        let objects = self.partition.objects_of_all();
        let found = self.with_object(ino, |live| {
            objects.observe(live.at.disk, live.object.seek(target, offset))
        })?;
        found.ok_or(FsError::NoSuchOffset)
    }
}

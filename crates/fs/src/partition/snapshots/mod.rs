//! What a fileset shares with its snapshots, and how it stops sharing it.
//!
//! All that a request asks is whether the number of an object is below a bound, which is 0 while there is no snapshot.
//!
//! Lock order: `reading`, then the write set, then `known`. Both are taken with the lock of an inode held.

pub(crate) mod cloning;
mod making;
pub(crate) mod moving;
mod removal;
mod space;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use forebay_base::{Ino, ObjectId};
use forebay_disk::{DiskError, Sync};
use forebay_store::{Store, StoreError};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::object::{LiveObject, Objects};
use crate::partition::Partition;
use crate::record::{InodeRecord, ObjectRef, decode, encode};
use crate::recovery::scan_prefix;
use crate::snapshot::{KeptCopies, KeptCopy, LateObject, SnapshotRecord, SnapshotStage};
use crate::writeset::{Known, Removal, WriteSet};

pub(crate) use self::making::Waiting;

/// Objects are taken apart from snapshots by so many threads at a time, each object by one of them.
const PARTING: usize = 32;

/// Frozen copies of the store of a fileset that are kept open: each takes memory for its pages.
const OPEN_MAX: usize = 16;

/// What a fileset shares with its snapshots.
#[derive(Default)]
pub(crate) struct Sharing {
    /// Objects with lower numbers may belong to the newest snapshot; 0 while there is none.
    below: AtomicU64,
    known: Mutex<Snapshots>,
    /// Held shared while an object is read for a snapshot; exclusively when snapshots turn to a copy of one.
    reading: RwLock<()>,
    /// Counts how often they did.
    turns: AtomicU64,
    parting: [Mutex<()>; PARTING],
    /// Held while a snapshot is made or removed.
    changes: Mutex<()>,
    /// Snapshots that are being cloned.
    pinned: Mutex<Vec<u64>>,
    /// Files that may still be mapped although nobody has them open and their objects were closed.
    mapped: Mutex<HashSet<Ino>>,
    /// Frozen copies of the store that are open.
    open: Mutex<FrozenStores>,
}

/// Frozen copies of the store that are open: those in use, and some that were opened last.
#[derive(Default)]
struct FrozenStores {
    all: BTreeMap<u64, Weak<dyn Store>>,
    recent: VecDeque<(u64, Arc<dyn Store>)>,
}

impl FrozenStores {
    /// Keeps a copy open no longer than it is in use.
    fn let_go(&mut self, snapshot: u64) {
        self.recent.retain(|(number, _)| *number != snapshot);
    }
}

/// The snapshots of a fileset.
#[derive(Default)]
struct Snapshots {
    all: BTreeMap<u64, SnapshotRecord>,
    /// The newest one, also while it is being made; 0 if there is none.
    newest: u64,
    /// The highest number that was ever used, as far as anything tells.
    highest: u64,
    /// Objects below the bound, by their numbers within the fileset, that no snapshot refers to.
    apart: HashSet<u64>,
}

impl Snapshots {
    /// The newest one that can be read.
    fn newest_made(&self) -> Option<(u64, &SnapshotRecord)> {
        let made = |(_, record): &(&u64, &SnapshotRecord)| record.stage == SnapshotStage::Made;
        self.all.iter().rev().find(made).map(|(number, record)| (*number, record))
    }

    /// The bounds of those that can be read.
    fn bounds(&self) -> BTreeMap<u64, u64> {
        let made = self.all.iter().filter(|(_, record)| record.stage == SnapshotStage::Made);
        made.map(|(number, record)| (*number, record.below)).collect()
    }
}

impl Sharing {
    /// What the store of a fileset says.
    ///
    /// # Errors
    /// [`FsError::Damaged`], [`FsError::UnknownVersion`]; what the store says.
    pub fn read(store: &dyn Store) -> Result<Sharing> {
        let mut found = Snapshots::default();
        scan_prefix(store, &[key::SNAPSHOT], &mut |key, value| {
            if let Some(Key::Snapshot(number)) = key::parse(key) {
                found.all.insert(number, decode("snapshot", value)?);
            }
            Ok(())
        })?;
        let mut kept = KeptCopies::default();
        for kind in [key::KEPT, key::LATE] {
            scan_prefix(store, &[kind], &mut |key, value| kept.add(key, value))?;
        }
        let last = found.all.keys().next_back().copied().unwrap_or(0);
        found.highest = last.max(kept.highest());
        let sharing = Sharing::default();
        *sharing.known.lock() = found;
        sharing.follow(&mut sharing.known.lock(), &kept);
        Ok(sharing)
    }

    /// Takes the bound of the newest snapshot that can be read.
    fn follow(&self, known: &mut Snapshots, kept: &KeptCopies) {
        let newest = known.newest_made().map(|(number, record)| (number, record.below));
        let (number, below) = newest.unwrap_or((0, 0));
        known.newest = number;
        known.apart.extend(kept.apart_from(number));
        known.apart.retain(|object| *object < below);
        self.below.store(below, Ordering::Release);
    }

    /// Whether a snapshot may refer to an object.
    pub fn is_shared(&self, id: ObjectId) -> bool {
        self.is_below(id) && {
            let known = self.known.lock();
            // Bound and exceptions change together.
            self.is_below(id) && !known.apart.contains(&id.local())
        }
    }

    fn is_below(&self, id: ObjectId) -> bool {
        id.local() < self.below.load(Ordering::Acquire)
    }

    /// A file takes an object that no snapshot refers to. The newest one if that could seem to, by the number of the object.
    fn set_late(&self, id: ObjectId) -> Option<u64> {
        if !self.is_below(id) {
            return None;
        }
        let mut known = self.known.lock();
        (self.is_below(id) && known.apart.insert(id.local())).then_some(known.newest)
    }

    /// While this is held, what a snapshot finds is not written to.
    pub fn begin_reading(&self) -> (RwLockReadGuard<'_, ()>, u64) {
        let reading = self.reading.read();
        let turns = self.turns.load(Ordering::Acquire);
        (reading, turns)
    }

    /// Held while an object is taken apart from snapshots.
    fn begin_parting(&self, id: ObjectId) -> MutexGuard<'_, ()> {
        let turn = usize::try_from(id.local()).unwrap_or(0) % PARTING;
        self.parting[turn].lock()
    }

    /// Held while a snapshot is made or removed.
    pub fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock()
    }

    /// Whether a snapshot is being made or removed.
    pub fn is_changing(&self) -> bool {
        self.changes.try_lock().is_none()
    }

    /// Whether there are snapshots, or one is being made.
    pub fn is_in_use(&self) -> bool {
        self.is_changing() || !self.known.lock().all.is_empty()
    }

    /// The snapshots with their numbers, the oldest first.
    pub fn list(&self) -> Vec<(u64, SnapshotRecord)> {
        let known = self.known.lock();
        known.all.iter().map(|(number, record)| (*number, record.clone())).collect()
    }

    /// A file was closed that may still be mapped.
    pub fn may_be_mapped(&self, ino: Ino) {
        self.mapped.lock().insert(ino);
    }
}

impl Partition {
    /// What it shares with its snapshots.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// What snapshots have instead of objects.
    pub(crate) fn kept_copies(&self) -> Result<KeptCopies> {
        let mut kept = KeptCopies::default();
        for kind in [key::KEPT, key::LATE] {
            let (from, to) = key::prefix_range(&[kind]);
            let mut next = Some(from);
            while let Some(from) = next {
                let (rows, more) = self.read_range(&from, &to, 4096)?;
                for (key, value) in &rows {
                    kept.add(key, value)?;
                }
                next = more;
            }
        }
        Ok(kept)
    }

    /// A file turns to an object that was not one of a file before, so no snapshot refers to it; some may have been made since it
    /// got its number. The record of the file reaches `writes` under the same lock.
    pub(crate) fn take_late(&self, writes: &mut WriteSet, id: ObjectId) {
        if let Some(through) = self.sharing.set_late(id) {
            writes.put(key::late(id), encode(&LateObject { through }), Known::MayExist);
        }
    }

    /// An object was taken apart from all snapshots, which have a copy. Removes it if its file has let go of it meanwhile: a commit may have
    /// left it to the snapshots.
    fn set_apart(&self, ino: Ino, at: ObjectRef) -> Result<()> {
        self.sharing.known.lock().apart.insert(at.id.local());
        if !self.fileset_has(ino, at)? {
            self.copies().dropped(at.id);
            self.shared.objects.remove_now(Removal { at, bytes: 0 });
        }
        Ok(())
    }

    /// Whether an inode of the fileset has an object, or the store still says so: whoever commits that it has not asks afterwards whether the object is
    /// shared.
    fn fileset_has(&self, ino: Ino, at: ObjectRef) -> Result<bool> {
        if let Some(inode) = self.shared.inodes.peek(ino)
            && inode.lock().file().is_some_and(|file| file.object == Some(at))
        {
            return Ok(true);
        }
        let stored = self.store.get(&key::inode(ino))?;
        let stored = stored.map(|value| decode::<InodeRecord>("inode", &value)).transpose()?;
        Ok(stored.is_some_and(|record| record.layout.object() == Some(at)))
    }

    /// Where a snapshot finds the bytes of an object that its records refer to.
    pub(crate) fn resolve(&self, at: ObjectRef, snapshot: u64) -> Result<ObjectRef> {
        Ok(self.kept_copy(at, snapshot)?.map_or(at, |copy| copy.at))
    }

    /// What a snapshot has instead of an object that its records refer to, if anything.
    pub(crate) fn kept_copy(&self, at: ObjectRef, snapshot: u64) -> Result<Option<KeptCopy>> {
        let (mut from, to) = (key::kept(at.id, snapshot), key::kept(at.id, u64::MAX));
        loop {
            let (rows, next) = self.read_range(&from, &to, 4)?;
            if let Some((_, value)) = rows.first() {
                return decode("a copy that a snapshot keeps", value).map(Some);
            }
            match next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }

    /// Has the snapshots keep a copy of a file's object, if they share it: somebody is about to write to it. When this returns,
    /// what is written to the file changes no snapshot, after a crash either. No lock may be held.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`]: nothing may be written to the file.
    pub(crate) fn part_from_snapshots(&self, ino: Ino) -> Result<()> {
        if self.sharing.below.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.part(ino)
    }

    #[cold]
    fn part(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let shared = |at: &ObjectRef| self.sharing.is_shared(at.id);
        let at = inode.lock().file().and_then(|file| file.object).filter(shared);
        let Some(at) = at else { return Ok(()) };
        let _one_for_each = self.sharing.begin_parting(at.id);
        let old = {
            let mut state = inode.lock();
            let Some(file) = state.file_mut() else { return Ok(()) };
            if file.object != Some(at) || !self.sharing.is_shared(at.id) {
                return Ok(());
            }
            let old = self.make_live(file)?;
            if file.opens.handles == 0 {
                self.shared.idle.closed(ino, file);
            }
            old
        };
        let newest = self.sharing.known.lock().newest;
        // An attempt whose commit failed has left one.
        if self.resolve(at, newest)? == at {
            let copy = self.with_space(|| self.copy_whole(&old))?;
            let synced = self.shared.objects.sync(&copy, Sync::All);
            synced.inspect_err(|_| self.give_up_copy(&copy))?;
            self.shared.fail_points.reach("snapshot.copied")?;
            // Whoever reads the object for a snapshot has ended, and the next one finds the copy.
            let _turned = self.sharing.reading.write();
            let value = encode(&KeptCopy::new(copy.at));
            self.writes.lock().put(key::kept(at.id, newest), value, Known::Absent);
            self.sharing.turns.fetch_add(1, Ordering::AcqRel);
        }
        self.commit()?;
        self.shared.fail_points.reach("snapshot.parted")?;
        self.set_apart(ino, at)
    }

    /// A published copy of an object as it is at one moment, on the same disk if that takes it. Where its disk cannot share blocks, each
    /// byte that is written meanwhile may be the old or the new one.
    pub(in crate::partition) fn copy_whole(&self, old: &LiveObject) -> Result<Arc<LiveObject>> {
        let objects = &self.shared.objects;
        let number = || self.take_object_id();
        let beside = objects.make_for_copy(old.at.disk, |of| of.id == old.at.disk, number);
        let new = beside.or_else(|_| objects.make_for_copy(old.at.disk, |_| true, number))?;
        let is_beside = new.at.disk == old.at.disk;
        let shared = if is_beside {
            new.object.share_from(&*old.object)
        } else {
            Err(DiskError::Unsupported)
        };
        let seen = objects.observe(old.at.disk, old.object.attributes())?;
        match shared {
            Err(DiskError::Unsupported) => self.copy_object((old, seen.size), &new, &|_| Ok(()))?,
            shared => objects.observe(new.at.disk, shared)?,
        }
        self.set_time_of_copy(&new, seen.modified)?;
        objects.publish(&new)?;
        Ok(new)
    }

    /// Adds the objects that snapshots refer to.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if one cannot be read: it may refer to any object.
    pub(crate) fn add_objects_of_snapshots(&self, referenced: &mut Vec<ObjectRef>) -> Result<()> {
        let snapshots = self.sharing.list();
        let kept = self.kept_copies()?;
        referenced.extend(kept.copies());
        for (number, record) in snapshots {
            let store = match self.frozen_store(number) {
                // Its removal had come to the end.
                Err(StoreError::Missing(_)) if record.stage == SnapshotStage::Removing => {
                    continue;
                }
                store => store?,
            };
            scan_prefix(&*store, &[key::INODE], &mut |_, value| {
                let record = decode::<InodeRecord>("inode", value)?;
                referenced.extend(record.layout.object().map(|at| kept.resolve(at, number)));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The frozen copy of its store that is a snapshot. It is open once, whoever uses it.
    ///
    /// # Errors
    /// What the store says; [`StoreError::Missing`] if there is none.
    pub(crate) fn frozen_store(&self, snapshot: u64) -> forebay_store::Result<Arc<dyn Store>> {
        let mut open = self.sharing.open.lock();
        if let Some(store) = open.all.get(&snapshot).and_then(Weak::upgrade) {
            return Ok(store);
        }
        let store = self.frozen.frozen(self.number, snapshot)?;
        open.all.retain(|_, store| store.strong_count() > 0);
        open.all.insert(snapshot, Arc::downgrade(&store));
        open.recent.push_back((snapshot, Arc::clone(&store)));
        if open.recent.len() > OPEN_MAX {
            open.recent.pop_front();
        }
        Ok(store)
    }

    /// Objects of all filesets.
    pub(crate) fn objects_of_all(&self) -> &Objects {
        &self.shared.objects
    }

    pub(crate) fn no_such_snapshot(&self, name: &str) -> FsError {
        let names: Vec<String> =
            self.sharing.list().into_iter().map(|(_, record)| record.name).collect();
        let known = if names.is_empty() { "there are none".to_owned() } else { names.join(", ") };
        FsError::Refused(format!(
            "there is no snapshot \"{name}\" of this fileset; its snapshots: {known}"
        ))
    }
}

//! Writing a clone: the store and the objects of a new fileset that begins as a snapshot.
//!
//! The records of the snapshot are written with the numbers of the new fileset. Each file gets an object of its own that shares
//! its blocks with that of the snapshot, so nothing is shared between filesets but blocks of a disk, which the disk itself counts. Where
//! a disk cannot share blocks the bytes are copied, if that is asked for.
//!
//! What survives a crash: nothing, until the fileset has its name. The superblock is written last: without it there is no
//! fileset, and one that nobody ever opened is taken away by the next opening, with its objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId};
use forebay_disk::{DiskError, ObjectAttributes};
use forebay_store::{Batch, Store};

use crate::error::{FsError, Result};
use crate::key::{self, Key, Term};
use crate::mkfs::FIRST_EPOCH;
use crate::number::NUMBER_MAX;
use crate::object::LiveObject;
use crate::partition::{Partition, signed};
use crate::record::{
    EntryRecord, FilesetSettings, InodeRecord, Kind, Layout, MountState, ObjectRef, Superblock,
    Usage, decode, encode,
};
use crate::recovery::{read_superblock, scan_prefix};
use crate::snapshot::{CloneBytes, SnapshotRecord, SnapshotStage};
use crate::writeset::UsageOfDisks;

/// Records that are read at a time.
const CHUNK: usize = 4096;
/// Records that are committed together.
const BATCH: usize = 16_384;
/// Threads that make objects.
const THREADS: usize = 4;
/// Files for which one more thread is worth it.
const FILES_PER_THREAD: usize = 64;

/// A snapshot that is not deleted while this lives.
pub(crate) struct Pinned<'a> {
    partition: &'a Partition,
    pub number: u64,
    pub record: SnapshotRecord,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut pinned = self.partition.sharing.pinned.lock();
        if let Some(at) = pinned.iter().position(|number| *number == self.number) {
            pinned.swap_remove(at);
        }
    }
}

/// A fileset that is to begin as a snapshot.
pub(crate) struct NewClone<'a> {
    pub snapshot: &'a Pinned<'a>,
    pub id: FilesetId,
    pub settings: FilesetSettings,
    /// The least numbers of inodes and objects that it may use.
    pub first: (u64, u64),
    pub bytes: CloneBytes,
}

/// What was written of a clone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub usage: Usage,
    /// Files whose bytes were copied.
    pub copied: u64,
}

/// A clone that is being written.
struct Cloning<'a> {
    of: &'a NewClone<'a>,
    frozen: Arc<dyn Store>,
    superblock: Superblock,
    next_object: AtomicU64,
    copied: AtomicU64,
}

impl Cloning<'_> {
    /// The number that an inode has in the clone. Numbers that an earlier fileset of its number used are not used again.
    fn ino(&self, original: Ino) -> Result<Ino> {
        let top = Ino::top_of(self.of.id);
        let local = original.local();
        if local == top.local() {
            return Ok(top);
        }
        let local = local.checked_add(self.of.first.0).filter(|local| *local < NUMBER_MAX);
        let local = local.ok_or_else(|| {
            FsError::Refused("the numbers of inodes would not suffice for a clone".to_owned())
        })?;
        Ok(Ino::of(self.of.id, local))
    }

    fn take_object_id(&self) -> ObjectId {
        ObjectId::of(self.of.id, self.next_object.fetch_add(1, Ordering::Relaxed))
    }
}

/// The bytes of a file of a snapshot.
struct Bytes {
    /// A fresh object that holds them, unless there are none.
    object: Option<Arc<LiveObject>>,
    /// Their number and the time of their last change.
    seen: ObjectAttributes,
}

/// Records that are written in batches.
struct Rows<'a> {
    store: &'a dyn Store,
    batch: Batch,
}

impl Rows<'_> {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.batch.changes.insert(key, Some(value));
        if self.batch.changes.len() >= BATCH { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        if self.batch.changes.is_empty() {
            return Ok(());
        }
        self.store.commit(&std::mem::take(&mut self.batch))?;
        Ok(())
    }
}

impl super::Sharing {
    /// Whether a snapshot is being cloned.
    pub fn is_cloned(&self) -> bool {
        !self.pinned.lock().is_empty()
    }

    /// Refuses to delete a snapshot that is being cloned. See [`super::Sharing::begin_change`].
    pub fn check_not_cloned(&self, number: u64, name: &str) -> Result<()> {
        if self.pinned.lock().contains(&number) {
            return Err(FsError::Refused(format!(
                "snapshot \"{name}\" is being cloned: delete it when that has ended"
            )));
        }
        Ok(())
    }
}

impl Partition {
    /// A snapshot that stays while the result lives.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none of that name.
    pub(crate) fn pin_snapshot(&self, name: &str) -> Result<Pinned<'_>> {
        let _no_changes = self.sharing.begin_change();
        let is_it = |(_, record): &(u64, SnapshotRecord)| {
            record.name == name && record.stage == SnapshotStage::Made
        };
        let found = self.sharing.list().into_iter().find(is_it);
        let (number, record) = found.ok_or_else(|| self.no_such_snapshot(name))?;
        self.sharing.pinned.lock().push(number);
        Ok(Pinned { partition: self, number, record })
    }

    /// Writes a fileset that begins as a snapshot into an empty store, and makes its objects.
    ///
    /// # Errors
    /// [`FsError::Refused`] where bytes would have to be copied and are not to be; [`FsError::NoSpace`]; what a store or a disk says.
    /// What was written is to be removed then.
    pub(crate) fn write_clone(&self, of: &NewClone<'_>, store: &dyn Store) -> Result<Written> {
        let frozen = self.frozen_store(of.snapshot.number)?;
        let superblock = read_superblock(&*frozen)?;
        let next_object = AtomicU64::new(of.first.1.max(1));
        let cloning = Cloning { of, frozen, superblock, next_object, copied: AtomicU64::new(0) };
        let mut rows = Rows { store, batch: Batch::default() };
        let elsewhere = self.clone_names(&cloning, &mut rows)?;
        self.shared.fail_points.reach("clone.named")?;
        let (usage, disks) = self.clone_inodes(&cloning, elsewhere, &mut rows)?;
        rows.commit()?;
        self.shared.fail_points.reach("clone.copied")?;
        // Objects first: from the superblock on it is a fileset.
        self.shared.objects.sync_disks()?;
        let batch = cloning.last_batch(usage, &disks)?;
        store.commit(&batch)?;
        self.shared.fail_points.reach("clone.written")?;
        Ok(Written { usage, copied: cloning.copied.load(Ordering::Relaxed) })
    }

    /// Writes entries and extended attributes. Returns how many entries of the top directory belong to other filesets.
    fn clone_names(&self, cloning: &Cloning<'_>, rows: &mut Rows<'_>) -> Result<u64> {
        let mut elsewhere = 0;
        scan_prefix(&*cloning.frozen, &[key::ENTRY], &mut |key, value| {
            let Some(Key::Entry(parent, cookie)) = key::parse(key) else { return Ok(()) };
            let mut entry = decode::<EntryRecord>("directory entry", value)?;
            if entry.ino.fileset() != self.number {
                elsewhere += 1;
                return Ok(());
            }
            entry.ino = cloning.ino(entry.ino)?;
            rows.put(key::entry(cloning.ino(parent)?, cookie), encode(&entry))
        })?;
        scan_prefix(&*cloning.frozen, &[key::XATTR], &mut |key, value| {
            let Some(Key::Xattr(ino, name)) = key::parse(key) else { return Ok(()) };
            rows.put(key::xattr(cloning.ino(ino)?, &name), value.to_vec())
        })?;
        Ok(elsewhere)
    }

    /// Writes inodes, and makes the objects of files. Returns what they hold, also by disk.
    fn clone_inodes(
        &self,
        cloning: &Cloning<'_>,
        elsewhere: u64,
        rows: &mut Rows<'_>,
    ) -> Result<(Usage, UsageOfDisks)> {
        let (mut usage, mut disks) = (Usage::default(), UsageOfDisks::default());
        let (mut from, to) = key::prefix_range(&[key::INODE]);
        loop {
            if let Some(why) = self.gate.closed() {
                return Err(why);
            }
            let found = cloning.frozen.scan(&from, &to, CHUNK)?;
            let mut records = Vec::new();
            for (key, value) in &found {
                if let Some(Key::Inode(ino)) = key::parse(key) {
                    records.push((ino, decode::<InodeRecord>("inode", value)?));
                }
            }
            self.clone_objects(cloning, &mut records)?;
            for (ino, mut record) in records {
                if ino == self.top() {
                    record.size = record.size.saturating_sub(elsewhere);
                    let directories = u32::try_from(elsewhere).unwrap_or(u32::MAX);
                    record.nlink = record.nlink.saturating_sub(directories);
                }
                if record.parent != Ino(0) {
                    record.parent = cloning.ino(record.parent)?;
                }
                record.epoch = FIRST_EPOCH;
                usage.inodes += 1;
                if record.kind == Kind::File {
                    usage.bytes = usage.bytes.wrapping_add(record.size);
                }
                if let Some(at) = record.layout.object() {
                    let (size, stored) = (signed(record.size), signed(record.allocated_bytes));
                    disks.entry(at.disk).or_default().add(1, size, stored);
                }
                rows.put(key::inode(cloning.ino(ino)?), encode(&record))?;
            }
            let Some((last, _)) = found.last().filter(|_| found.len() == CHUNK) else {
                return Ok((usage, disks));
            };
            from.clone_from(last);
            from.push(0);
        }
    }

    fn clone_objects(
        &self,
        cloning: &Cloning<'_>,
        records: &mut [(Ino, InodeRecord)],
    ) -> Result<()> {
        let share = records.len().div_ceil(THREADS).max(FILES_PER_THREAD);
        let make = |some: &mut [(Ino, InodeRecord)]| {
            some.iter_mut().try_for_each(|(ino, record)| self.clone_object(cloning, *ino, record))
        };
        if records.len() <= share {
            return make(records);
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                records.chunks_mut(share).map(|some| scope.spawn(|| make(some))).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            let ended: Vec<Result<()>> =
                ended.map(|ended| ended.expect("no thread that makes objects panics")).collect();
            ended.into_iter().collect()
        })
    }

    /// Has the record of a file name an object of the clone, with the bytes that the file has in the snapshot.
    fn clone_object(
        &self,
        cloning: &Cloning<'_>,
        ino: Ino,
        record: &mut InodeRecord,
    ) -> Result<()> {
        let Some(at) = record.layout.object().filter(|_| record.kind == Kind::File) else {
            return Ok(());
        };
        record.layout = Layout::None;
        record.allocated_bytes = 0;
        let Some(Bytes { object, seen }) = self.clone_bytes(cloning, at, record)? else {
            record.size = 0;
            return Ok(());
        };
        let is_right = self.is_right_in(cloning, at, record)?;
        if is_right && seen.size < record.size {
            return Err(FsError::Io(format!(
                "inode {ino}: its object in the snapshot has lost bytes: run fsck"
            )));
        }
        record.size = seen.size;
        if !is_right {
            record.modified = record.modified.max(seen.modified);
            record.changed = record.changed.max(seen.modified);
        }
        let Some(new) = object else { return Ok(()) };
        let made = self.shared.objects.observe(new.at.disk, new.object.attributes())?;
        record.allocated_bytes = made.allocated_bytes;
        record.layout = Layout::Whole(new.at);
        self.shared.objects.publish(&new)
    }

    /// Whether the record of a file agrees with its object: not if the file was being written at the moment of the snapshot, or a crash
    /// came after the record.
    fn is_right_in(
        &self,
        cloning: &Cloning<'_>,
        at: ObjectRef,
        record: &InodeRecord,
    ) -> Result<bool> {
        let pinned = cloning.of.snapshot;
        let copy = self.kept_copy(at, pinned.number)?;
        let was_written = copy.is_some_and(|copy| copy.made.local() < pinned.record.below);
        Ok(!was_written && record.epoch > cloning.superblock.crashed_epoch)
    }

    /// The bytes of an object of the snapshot, for the clone; `None` if there is no object: then it was never synced.
    fn clone_bytes(
        &self,
        cloning: &Cloning<'_>,
        at: ObjectRef,
        record: &InodeRecord,
    ) -> Result<Option<Bytes>> {
        let objects = &self.shared.objects;
        let number = || Ok(cloning.take_object_id());
        loop {
            let (reading, _) = self.sharing.begin_reading();
            let from = self.resolve(at, cloning.of.snapshot.number)?;
            if record.epoch <= cloning.superblock.crashed_epoch
                && objects.attributes(from)?.is_none()
            {
                return Ok(None);
            }
            let old = objects.open_to_read(from)?;
            let seen = objects.observe(from.disk, old.object.attributes())?;
            if seen.size == 0 {
                return Ok(Some(Bytes { object: None, seen }));
            }
            let beside = objects.make_for_copy(from.disk, |of| of.id == from.disk, number);
            if let Ok(new) = &beside {
                match new.object.share_from(&*old.object) {
                    Err(DiskError::Unsupported) => {}
                    shared => {
                        objects.observe(from.disk, shared)?;
                        self.set_time_of_copy(new, seen.modified)?;
                        return Ok(Some(Bytes { object: Some(Arc::clone(new)), seen }));
                    }
                }
            }
            if cloning.of.bytes == CloneBytes::Share {
                return Err(self.cannot_share(from.disk));
            }
            // The fileset may write to the object from now on: then the snapshot has a copy, and so this is done again.
            drop(reading);
            let pool = objects.pools.named(&cloning.of.settings.pool)?;
            let new = beside
                .or_else(|_| objects.make_for_copy(from.disk, |of| of.pool() == pool, number))
                .or_else(|_| objects.make_for_copy(from.disk, |_| true, number))?;
            let copied = self.copy_object((&old, seen.size), &new, &|_| Ok(()));
            let (_reading, _) = self.sharing.begin_reading();
            if self.resolve(at, cloning.of.snapshot.number)? == from {
                copied?;
                self.set_time_of_copy(&new, seen.modified)?;
                cloning.copied.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(Bytes { object: Some(new), seen }));
            }
        }
    }

    fn cannot_share(&self, disk: DiskId) -> FsError {
        let location = self.shared.objects.disk(disk);
        let location = location.map_or_else(|_| disk.to_string(), |of| of.disk.describe().location);
        FsError::Refused(format!(
            "the bytes of the snapshot on {location} would have to be copied: that disk cannot share blocks (XFS and Btrfs can), is an \
             archive, or takes no new files; allow it with --copy"
        ))
    }
}

impl Cloning<'_> {
    /// What makes the store that of a fileset.
    fn last_batch(&self, usage: Usage, disks: &UsageOfDisks) -> Result<Batch> {
        let of = self.of;
        let ino_limit = self.superblock.ino_limit.checked_add(of.first.0);
        let superblock = Superblock {
            fileset: of.id,
            settings: of.settings.clone(),
            epoch: FIRST_EPOCH,
            state: MountState::Clean,
            crashed_epoch: Epoch(0),
            ino_limit: ino_limit.unwrap_or(NUMBER_MAX),
            object_limit: self.next_object.load(Ordering::Relaxed),
            sweep_due: false,
            ..self.superblock.clone()
        };
        let mut changes = BTreeMap::new();
        let mut put = |key: Vec<u8>, value: Vec<u8>| changes.insert(key, Some(value));
        put(key::USAGE.to_vec(), encode(&usage));
        for (disk, usage) in disks {
            put(key::disk_usage(*disk), encode(usage));
        }
        put(key::SUPERBLOCK.to_vec(), encode(&superblock));
        put(key::TERM.to_vec(), Term { epoch: FIRST_EPOCH, batch: 0 }.to_bytes());
        Ok(Batch { requires: vec![(key::TERM.to_vec(), None)], changes })
    }
}

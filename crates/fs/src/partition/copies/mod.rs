//! Copies of files in other failure groups.
//!
//! A file has its own object, near its writer, and every program reads and writes that one. Copies of it are made while it is at
//! rest, and in a strict fileset at each fsync (`making`). A record under the number of the object says where they are, so it
//! costs nothing to rename, link or remove a file; what is removed with the object goes afterwards.
//!
//! A copy is never written to. Whoever is about to write to a file first marks its copies as behind. If the object is lost, the
//! file turns to a copy (`take_over`): one that is not behind at once, another one only after somebody has said that
//! the disk is lost, as that takes the file back to its latest fsync.
//!
//! Lock order: `turn`, then the lock of an inode, then the write set. No store is read with an inode's lock held.
//!
//! A copy may also lie in an archive: see `premigrate.rs`. It is made only by those who want it, and goes when the file is written.
//!
//! What survives a crash: the records, and the copies that they name: these were synced before. A copy that no record names is
//! removed by the sweep, and so is a record of an object to which nothing refers any more.

mod making;
mod premigrate;
mod takeover;
mod verify;
mod verify_archived;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::{DiskId, Ino, ObjectId};
use forebay_disk::ObjectAttributes;
use forebay_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use self::making::Settled;
pub(crate) use self::verify::Verified;
pub(crate) use self::verify_archived::Archived;
use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::object::{LiveObject, Objects};
use crate::partition::Partition;
use crate::record::{
    CopiesRecord, FilesetSettings, InodeRecord, ObjectRef, PremigratedTo, decode, encode,
};
use crate::writeset::{Known, Removal, WriteSet};

/// Files are synced with their copies by so many threads at a time, each file by one of them.
const SYNCING: usize = 16;
/// Two changes within this time may have the same time, by the clock of a disk's file system.
const TICK: Duration = Duration::from_millis(10);

/// What a fileset knows of its copies.
#[derive(Default)]
pub(crate) struct Copies {
    /// There are copies, or are to be some: to know it without a lock.
    in_use: AtomicBool,
    /// In how many failure groups each file is to lie.
    wanted: AtomicU8,
    /// While that is one: objects of this number and above have no copies. Young files pay nothing for what others have.
    none_from: AtomicU64,
    /// Held shared while somebody is about to write to a file; exclusively while it is decided whether a copy is the file.
    turn: RwLock<()>,
    /// Files that were opened for writing since their copies were made, or that need others.
    changed: Mutex<BTreeSet<Ino>>,
    /// Objects that were removed.
    dropped: Mutex<Vec<ObjectId>>,
    /// Copies to which no record refers once everything is committed.
    replaced: Mutex<Vec<ObjectRef>>,
    /// All files are to be looked at.
    look_due: AtomicBool,
    /// Why some files have fewer copies than they are to have.
    shortage: Mutex<Option<String>>,
    /// Copies in archives: changed in the critical section of the write set.
    premigrated: Mutex<PremigratedTo>,
    /// Copies in archives that were found to be damaged, until no record names them.
    distrusted: Mutex<HashSet<ObjectRef>>,
    syncing: [Mutex<()>; SYNCING],
}

impl Copies {
    /// What the store of a fileset says, whose objects have numbers below `objects_below`. Where there are archives all records of
    /// copies are read once, to know how many files lie there too.
    ///
    /// # Errors
    /// What the store says.
    pub fn read(
        store: &dyn Store,
        settings: &FilesetSettings,
        objects_below: u64,
        objects: &Objects,
    ) -> Result<Copies> {
        let (from, to) = key::prefix_range(&[key::COPIES]);
        let copies = Copies::default();
        let has_any = !store.scan(&from, &to, 1)?.is_empty();
        copies.in_use.store(has_any, Ordering::Release);
        copies.none_from.store(if has_any { objects_below } else { 0 }, Ordering::Release);
        if has_any && objects.has_archives() {
            *copies.premigrated.lock() = count_premigrated(store, |disk| objects.is_archive(disk))?;
        }
        copies.want(settings.copies);
        copies.look_due.store(copies.is_in_use(), Ordering::Release);
        Ok(copies)
    }

    /// Each file is to lie in so many failure groups from now on.
    pub fn want(&self, wanted: u8) {
        let before = self.wanted.swap(wanted.max(1), Ordering::AcqRel);
        self.in_use.fetch_or(wanted > 1, Ordering::AcqRel);
        if before != 0 && before != wanted {
            self.look_at_all();
        }
    }

    /// An object is about to have a copy, whatever each file is to have.
    pub fn expect(&self, id: ObjectId) {
        self.none_from.fetch_max(id.local() + 1, Ordering::AcqRel);
        self.in_use.store(true, Ordering::Release);
    }

    /// Whether an object may have copies, or is to have some.
    fn may_concern(&self, id: ObjectId) -> bool {
        self.wanted() > 1 || id.local() < self.none_from.load(Ordering::Acquire)
    }

    /// Whether there are copies, or are to be some.
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// In how many failure groups each file is to lie.
    pub fn wanted(&self) -> u8 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Has all files looked at.
    pub fn look_at_all(&self) {
        self.look_due.store(true, Ordering::Release);
    }

    /// Whether all files are to be looked at; not any more from now on.
    pub fn take_look(&self) -> bool {
        self.look_due.swap(false, Ordering::AcqRel)
    }

    /// A file may need other copies than it has.
    pub fn may_need(&self, ino: Ino) {
        if self.is_in_use() {
            self.changed.lock().insert(ino);
        }
    }

    /// The files that may need other copies.
    pub fn take_changed(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut *self.changed.lock())
    }

    /// Whether something remains to be done.
    pub fn has_work(&self) -> bool {
        self.is_in_use()
            && (self.look_due.load(Ordering::Acquire)
                || !self.changed.lock().is_empty()
                || !self.dropped.lock().is_empty()
                || !self.replaced.lock().is_empty())
    }

    /// Files that wait for copies, as far as is known, and why, if they wait for something.
    pub fn waiting(&self) -> (u64, Option<String>) {
        (self.changed.lock().len() as u64, self.shortage.lock().clone())
    }

    /// A copy in an archive was found to be damaged or missing.
    fn distrust(&self, at: ObjectRef) {
        self.distrusted.lock().insert(at);
    }

    fn is_distrusted(&self, at: ObjectRef) -> bool {
        let distrusted = self.distrusted.lock();
        !distrusted.is_empty() && distrusted.contains(&at)
    }

    /// What lies in archives too.
    pub fn premigrated(&self) -> PremigratedTo {
        self.premigrated.lock().clone()
    }

    /// Says why files have fewer copies than they are to have; nothing if they have not.
    pub fn note_shortage(&self, why: Option<String>) {
        let mut shortage = self.shortage.lock();
        if let Some(why) = why.as_ref().filter(|_| shortage.is_none()) {
            tracing::warn!(why, "files have fewer copies than they are to have");
        }
        *shortage = why;
    }

    /// An object was removed: its copies go.
    pub fn dropped(&self, id: ObjectId) {
        if self.is_in_use() {
            self.dropped.lock().push(id);
        }
    }
}

impl CopiesRecord {
    /// What the object in the archive looks like.
    pub(super) fn attributes_in_archive(&self) -> ObjectAttributes {
        let (size, modified) = (self.size, self.modified);
        ObjectAttributes { size, allocated_bytes: self.archived_bytes, modified }
    }

    /// Whether a later change of the object would have given it another time.
    fn tells_later_changes(&self) -> bool {
        self.made.since(self.modified) >= TICK
    }
}

/// Counts the copies in archives that a store has records of.
///
/// # Errors
/// What the store says.
pub(crate) fn count_premigrated(
    store: &dyn Store,
    is_archive: impl Fn(DiskId) -> bool,
) -> Result<PremigratedTo> {
    let mut found = PremigratedTo::new();
    crate::recovery::scan_prefix(store, &[key::COPIES], &mut |_, value| {
        let record: CopiesRecord = decode("copies", value)?;
        if let Some(at) = record.archived(&is_archive) {
            found.entry(at.disk).or_default().count(&record, true);
        }
        Ok(())
    })?;
    Ok(found)
}

/// An object and what there is to know of its copies.
pub(crate) type ObjectWithCopies = (ObjectId, CopiesRecord);

impl Partition {
    /// What it knows of its copies.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The copies of an object. They are behind as well if a crash came since they were noted: that somebody writes to the
    /// object is not committed before it is written.
    pub(crate) fn copies_of(&self, id: ObjectId) -> Result<Option<CopiesRecord>> {
        let Some(value) = self.read_key(&key::copies(id))? else { return Ok(None) };
        let mut record: CopiesRecord = decode("copies", &value)?;
        record.is_behind |= record.epoch <= self.suspect_epoch;
        Ok(Some(record))
    }

    /// All objects with copies, in order of their numbers from `from` on: about `most`, and where to go on.
    pub(crate) fn all_copies(
        &self,
        from: Option<Vec<u8>>,
        most: usize,
    ) -> Result<(Vec<ObjectWithCopies>, Option<Vec<u8>>)> {
        let (first, to) = key::prefix_range(&[key::COPIES]);
        let (rows, next) = self.read_range(&from.unwrap_or(first), &to, most)?;
        let mut found = Vec::new();
        for (key, value) in &rows {
            if let Some(Key::Copies(id)) = key::parse(key) {
                found.push((id, decode("copies", value)?));
            }
        }
        Ok((found, next))
    }

    /// Notes the copies of an object, instead of those that it had.
    fn put_copies(
        &self,
        writes: &mut WriteSet,
        id: ObjectId,
        before: Option<&CopiesRecord>,
        now: Option<&CopiesRecord>,
    ) {
        match now {
            Some(record) => {
                self.copies.expect(id);
                writes.put(key::copies(id), encode(record), Known::MayExist);
            }
            None if before.is_some() => writes.delete(key::copies(id)),
            None => {}
        }
        let objects = &self.shared.objects;
        for (record, count) in [(before, -1), (now, 1)] {
            let Some(record) = record else { continue };
            for at in &record.copies {
                writes.count_on(at.disk, count, (0, 0));
            }
            if let Some(at) = record.archived(|disk| objects.is_archive(disk)) {
                let mut premigrated = self.copies.premigrated.lock();
                premigrated.entry(at.disk).or_default().count(record, count > 0);
            }
        }
    }

    // --- those who use files ---

    /// Carries out what needs the bytes of a file, or changes them if it `writes`: on a copy if the file's own object is lost.
    pub(crate) fn with_copies<T>(
        &self,
        ino: Ino,
        writes: bool,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        if !self.has_to_do_with_copies(ino)? {
            let done = operation();
            if writes && self.has_to_do_with_copies(ino)? {
                // Its first copy was begun meanwhile, and may be noted before what is open now was seen.
                drop(self.mark_written(ino)?);
            }
            return done;
        }
        if self.is_on_bad_disk(ino)? {
            self.take_over(ino)?;
        }
        self.or_with_copy(ino, || {
            let _about_to_write = if writes { Some(self.mark_written(ino)?) } else { None };
            operation()
        })
    }

    /// As [`Partition::with_copies`] for whoever only reads, where the disk need not be looked at before.
    pub(crate) fn or_with_copy<T>(
        &self,
        ino: Ino,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match operation() {
            Err(FsError::Io(_) | FsError::Absent(_))
                if self.copies.is_in_use() && self.take_over(ino)? =>
            {
                operation()
            }
            done => done,
        }
    }

    /// Whether an object lies on a disk that takes nothing any more, in a fileset whose files may lie elsewhere as well.
    pub(crate) fn is_on_dead_disk(&self, live: &LiveObject) -> bool {
        let objects = &self.shared.objects;
        self.copies.is_in_use()
            && objects.disk(live.at.disk).is_ok_and(|disk| {
                objects.finds_failing(disk);
                !disk.is_sound()
            })
    }

    fn place_in_memory(&self, ino: Ino) -> Result<Option<ObjectRef>> {
        let inode = self.inode(ino)?;
        let at = inode.lock().file().and_then(|file| file.object);
        Ok(at)
    }

    fn has_to_do_with_copies(&self, ino: Ino) -> Result<bool> {
        Ok(self.copies.is_in_use()
            && (self.copies.wanted() > 1
                || self.place_in_memory(ino)?.is_some_and(|at| self.copies.may_concern(at.id))))
    }

    fn is_on_bad_disk(&self, ino: Ino) -> Result<bool> {
        Ok(match self.place_in_memory(ino)? {
            Some(at) => !self.shared.objects.disk(at.disk)?.is_sound(),
            None => false,
        })
    }

    /// Marks the copies of a file as behind. While the result lives no copy is taken for the file.
    fn mark_written(&self, ino: Ino) -> Result<RwLockReadGuard<'_, ()>> {
        let turn = self.copies.turn.read();
        let record = match self.place_in_memory(ino)? {
            Some(at) => self.copies_of(at.id)?.map(|record| (at.id, record)),
            None => None,
        };
        if record.is_some() || self.copies.wanted() > 1 {
            self.copies.may_need(ino);
        }
        if let Some((id, record)) = record
            && !record.is_behind
        {
            let behind = CopiesRecord { is_behind: true, ..record };
            self.writes.lock().put(key::copies(id), encode(&behind), Known::MayExist);
        }
        Ok(turn)
    }

    // --- what goes ---

    /// Has the copies of a file follow it to another object, which holds the same bytes. In the critical section of that.
    pub(crate) fn copies_follow(
        &self,
        writes: &mut WriteSet,
        (from, to): (ObjectId, ObjectId),
        record: &CopiesRecord,
    ) {
        self.put_copies(writes, from, Some(record), None);
        self.put_copies(writes, to, None, Some(record));
    }

    /// A file turns to its copy `but`: the others go. In the critical section of that.
    pub(crate) fn copies_go(
        &self,
        writes: &mut WriteSet,
        from: ObjectId,
        (record, but): (&CopiesRecord, ObjectRef),
    ) {
        self.put_copies(writes, from, Some(record), None);
        let others = record.copies.iter().copied().filter(|at| *at != but);
        self.copies.replaced.lock().extend(others);
    }

    /// The copies that follow a file to another disk. While the first part of the result lives nobody begins to write.
    pub(crate) fn copies_to_follow(
        &self,
        id: ObjectId,
        to: ObjectRef,
    ) -> Result<(Option<RwLockWriteGuard<'_, ()>>, Option<CopiesRecord>)> {
        if !self.copies.is_in_use() || self.shared.objects.is_archive(to.disk) {
            // What lies in an archive has no copies.
            return Ok((None, None));
        }
        let turn = self.copies.turn.write();
        let record = self.copies_of(id)?;
        Ok((Some(turn), record))
    }

    /// Has the copies of objects go to which nothing refers: those of files that were removed before a crash.
    pub(crate) fn drop_copies_of_nobody(
        &self,
        copies: &[(ObjectId, Vec<ObjectRef>)],
        referenced: &[ObjectRef],
        below: u64,
    ) {
        if copies.is_empty() {
            return;
        }
        let referenced: HashSet<ObjectId> = referenced.iter().map(|at| at.id).collect();
        let old = copies.iter().map(|(id, _)| *id).filter(|id| id.local() < below);
        let unneeded = old.filter(|id| !referenced.contains(id));
        unneeded.for_each(|id| self.copies.dropped(id));
    }

    /// Removes the copies of objects that were removed, and those that were replaced.
    ///
    /// # Errors
    /// What the store says; to be called again then.
    pub(crate) fn remove_unneeded_copies_of_files(&self) -> Result<()> {
        let dropped = std::mem::take(&mut *self.copies.dropped.lock());
        if !dropped.is_empty() {
            let _one_at_a_time = self.copies.turn.write();
            for id in dropped {
                let Some(record) = self.copies_of(id)? else { continue };
                self.put_copies(&mut self.writes.lock(), id, Some(&record), None);
                self.copies.replaced.lock().extend(record.copies);
            }
        }
        let replaced = std::mem::take(&mut *self.copies.replaced.lock());
        if replaced.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.commit() {
            self.copies.replaced.lock().extend(replaced);
            return Err(error);
        }
        self.shared.fail_points.reach("copy.replaced")?;
        replaced.into_iter().for_each(|at| {
            self.copies.distrusted.lock().remove(&at);
            self.shared.objects.remove_now(Removal { at, bytes: 0 });
        });
        Ok(())
    }

    /// Objects that records of copies name, and the objects whose copies they are.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if one cannot be read: it may refer to any object.
    pub(crate) fn referenced_copies(&self) -> Result<Vec<(ObjectId, Vec<ObjectRef>)>> {
        let mut found = Vec::new();
        crate::recovery::scan_prefix(&*self.store, &[key::COPIES], &mut |key, value| {
            if let Some(Key::Copies(id)) = key::parse(key) {
                found.push((id, decode::<CopiesRecord>("copies", value)?.copies));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The object of a file, committed or not.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn object_of_stored(&self, ino: Ino) -> Result<Option<ObjectRef>> {
        match self.inode(ino) {
            Err(FsError::Stale) => Ok(None),
            inode => {
                let inode = inode?;
                let state = inode.lock();
                Ok(state.file().and_then(|file| file.object).filter(|_| state.nlink > 0))
            }
        }
    }

    /// The disks of the copies of a file, as it is now; of one in an archive too.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn disks_of_copies(&self, ino: Ino) -> Result<Vec<DiskId>> {
        let Some(at) = self.object_of_stored(ino)?.filter(|_| self.copies.is_in_use()) else {
            return Ok(Vec::new());
        };
        let record = self.copies_of(at.id)?.filter(|record| !record.is_behind);
        Ok(record.iter().flat_map(|record| &record.copies).map(|at| at.disk).collect())
    }

    /// Whether a file has other copies than it is to have.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn needs_copies(&self, ino: Ino) -> Result<bool> {
        let Some(at) = self.object_of_stored(ino)? else { return Ok(false) };
        let disk = self.shared.objects.disk(at.disk)?;
        if disk.is_archive() {
            return Ok(false);
        }
        let wanted = usize::from(self.copies.wanted().max(1)) - 1;
        Ok(match self.copies_of(at.id)? {
            None => wanted > 0 || !disk.is_sound(),
            Some(record) => {
                let good = self.good_copies(at, &record).len();
                let archived = self.good_archived(&record);
                record.is_behind
                    || !disk.is_sound()
                    || good != wanted
                    || record.copies.len() != wanted + usize::from(archived.is_some())
            }
        })
    }

    /// Whether the copies in a record are all that its file is to have, where it is to lie in one failure group.
    pub(crate) fn is_settled(&self, record: &CopiesRecord) -> bool {
        let is_behind = record.is_behind || record.epoch <= self.suspect_epoch;
        !is_behind && record.copies.len() == usize::from(self.good_archived(record).is_some())
    }

    /// Whether a file has a copy, as it is now, on another disk than its object.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn has_copy_elsewhere(&self, at: ObjectRef, inode: &InodeRecord) -> Result<bool> {
        if !self.copies.is_in_use() {
            return Ok(false);
        }
        let is_there = |copy: &ObjectRef| {
            copy.disk != at.disk
                && self.shared.objects.disk(copy.disk).is_ok_and(|disk| disk.is_sound())
        };
        let is_current = |record: &CopiesRecord| {
            !record.is_behind || record.size == inode.size && record.changed == inode.changed
        };
        let record = self.copies_of(at.id)?.filter(is_current);
        Ok(record.is_some_and(|record| record.copies.iter().any(is_there)))
    }
}

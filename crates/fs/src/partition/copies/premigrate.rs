//! Files that lie here and in an archive: premigrated, and those that are evicted because they are.
//!
//! The object in the archive is a copy as any other one, of which the record of copies says what it is a copy of. It is written
//! while the file is at rest, read back and compared by the archive, and only then noted. Who opens the file for writing marks it
//! as behind; when the file is at rest again it is kept if the bytes are the same, and removed otherwise. So a copy that is not
//! behind has the bytes of the file, and to evict the file is to have its record turn to that copy: the store is not asked.
//!
//! What survives a crash: the file here, with the copy or without; after an eviction, the file here with its copy, or in the
//! archive. Objects that no record names are removed by the sweep.

use std::sync::Arc;

use forebay_base::{DiskId, Ino};
use forebay_disk::Sync;

use super::making::TURN_MAX;
use crate::checksum::Checksum;
use crate::error::{FsError, Result};
use crate::object::{FsDisk, LiveObject};
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace, Resting, TheCopies};
use crate::record::{CopiesRecord, ObjectRef};

/// An object in an archive, and the checksum of the bytes that went there.
pub(crate) struct Packed {
    pub live: Arc<LiveObject>,
    checksum: u64,
}

impl Partition {
    /// The record of the copies of an object, if one of them lies in an archive that may be used and is not behind.
    pub(super) fn premigrated_record(
        &self,
        at: ObjectRef,
    ) -> Result<Option<(CopiesRecord, ObjectRef)>> {
        if !self.copies.may_concern(at.id) {
            return Ok(None);
        }
        let record = self.copies_of(at.id)?.filter(|record| !record.is_behind);
        Ok(record.and_then(|record| {
            let archived = self.good_archived(&record)?;
            Some((record, archived))
        }))
    }

    /// The archive that an object has a copy in, and the bytes that this one takes there, if its file was not written since.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn premigrated(&self, at: ObjectRef) -> Result<Option<(DiskId, u64)>> {
        let found = self.premigrated_record(at)?;
        Ok(found.map(|(record, archived)| (archived.disk, record.archived_bytes)))
    }

    /// Copies a resting file to one of the archives that `suit`, where it is read back and compared. Nothing refers to the copy
    /// yet. Holds no lock.
    ///
    /// # Errors
    /// As [`Partition::copy_resting`].
    pub(crate) fn copy_to_archive(
        &self,
        resting: &Resting,
        suits: impl Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
    ) -> Result<Packed> {
        // What the copy is compared with after a crash is what it was made of.
        self.shared.objects.sync(&resting.old, Sync::All)?;
        let mut checksum = Checksum::default();
        let mut see = |at, bytes: &[u8]| checksum.add(at, bytes);
        let live = self.copy_resting_seen(resting, suits, pace, &mut see)?;
        Ok(Packed { live, checksum: checksum.finish(resting.seen.size) })
    }

    /// Notes the copy of a resting file in an archive, unless anybody has used the file meanwhile.
    ///
    /// # Errors
    /// [`FsError::Io`] if the bytes are not what they were although nobody wrote them; what the store says. The copy is gone then.
    pub(crate) fn note_premigrated(&self, resting: &Resting, packed: &Packed) -> Result<Moved> {
        let noted = self.note_packed(resting, packed);
        if matches!(noted, Ok(true)) {
            return Ok(Moved::Whole(resting.seen.size));
        }
        self.give_up_copy(&packed.live);
        noted.map(|_| Moved::InUse)
    }

    fn note_packed(&self, resting: &Resting, packed: &Packed) -> Result<bool> {
        // Before it is looked whether anybody has the file open: see `with_copies`.
        self.copies.expect(resting.object());
        let before = self.copies_of(resting.object())?;
        let mut copies = Vec::new();
        if let Some(record) = &before {
            if record.is_behind {
                return Ok(false);
            }
            if record.checksum != packed.checksum {
                return Err(FsError::Io(format!(
                    "inode {}: the bytes of object {} have changed although nobody wrote them; \
                     to get those of its copy in the archive, migrate it to that pool and open it",
                    resting.ino,
                    resting.object()
                )));
            }
            let here = |at: &&ObjectRef| !self.shared.objects.is_archive(at.disk);
            copies.extend(record.copies.iter().copied().filter(|at| here(&at)));
        }
        let (objects, at) = (&self.shared.objects, packed.live.at);
        let found = objects.observe(at.disk, packed.live.object.attributes())?;
        copies.push(at);
        let what = (copies, found.allocated_bytes);
        let next = self.record_of(resting.ino, resting.seen, packed.checksum, what);
        self.note_copies(resting, before.as_ref(), next)
    }

    /// Has a resting file turn to its copy in one of the archives that `suit`, if it has one. The store is not asked: the copy was
    /// proven when it was made.
    ///
    /// # Errors
    /// What the store of names or the disk of the file says.
    pub(crate) fn evict(
        &self,
        resting: &Resting,
        suits: impl Fn(&FsDisk) -> bool,
    ) -> Result<Option<Moved>> {
        let (old, seen) = (&resting.old, resting.seen);
        {
            let Some(_nobody_begins_to_write) = self.copies.turn.try_write_for(TURN_MAX) else {
                return Ok(Some(Moved::InUse));
            };
            let Some((record, at)) = self.premigrated_record(old.at)? else { return Ok(None) };
            let is_same = (seen.size, seen.modified) == (record.size, record.modified);
            if !is_same || !self.shared.objects.disk(at.disk).is_ok_and(suits) {
                return Ok(None);
            }
            // One that was dropped from memory meanwhile may have been in use.
            let Some(inode) = self.shared.inodes.peek(resting.ino) else {
                return Ok(Some(Moved::InUse));
            };
            let mut state = inode.lock();
            if !self.rests_still(&state, resting)? || state.size != record.size {
                return Ok(Some(Moved::InUse));
            }
            if let Some(file) = state.file_mut() {
                file.copy = 0;
            }
            let found = record.attributes_in_archive();
            let copies = TheCopies::Go(&record);
            self.exchange_object(resting.ino, &mut state, (at, found), copies);
        }
        self.shared.fail_points.reach("evict.turned")?;
        Ok(Some(Moved::Evicted(seen.size)))
    }

    /// Whether an object has a copy in one of the archives that `suit`, if its file was not written since.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn is_premigrated_to(
        &self,
        at: ObjectRef,
        suits: impl Fn(&FsDisk) -> bool,
    ) -> Result<bool> {
        let found = self.premigrated(at)?;
        Ok(found.is_some_and(|(disk, _)| self.shared.objects.disk(disk).is_ok_and(suits)))
    }

    /// As [`Partition::premigrated`], of a file.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn premigrated_file(&self, ino: Ino) -> Result<Option<(DiskId, u64)>> {
        match self.object_of_stored(ino)? {
            Some(at) if self.copies.is_in_use() => self.premigrated(at),
            _ => Ok(None),
        }
    }
}

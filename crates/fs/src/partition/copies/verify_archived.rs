//! Reading what lies in archives, of files that lie there alone and of premigrated ones, and comparing it with its checksums.
//!
//! Each frame has checksums of its own, and the record of a premigrated file has one of all bytes. A damaged object of a file that
//! is here too is not trusted any more: the file cannot be evicted, and loses that object as soon as it is at rest. That is not
//! remembered over a crash or an unmount before then.

use forebay_base::Ino;

use crate::error::{FsError, Result};
use crate::partition::Partition;
use crate::partition::relocate::Pace;
use crate::record::ObjectRef;

/// What a look at the object of a file in an archive found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Archived {
    /// It is what it was; the file has so many bytes.
    Sound(u64),
    /// It is damaged or missing, for this reason, and the bytes of the file are nowhere else.
    Lost(String),
    /// It is damaged or missing, for this reason, and the file is here too.
    Needless(String),
    /// The file has none, or has none any more.
    Nothing,
}

/// What an object in an archive should be.
struct Expected {
    at: ObjectRef,
    size: u64,
    /// Of the bytes, where that is known.
    checksum: Option<u64>,
    /// The object on another disk whose copy it is.
    copy_of: Option<ObjectRef>,
}

impl Partition {
    /// Reads the object of a file in an archive, if it has one there, and compares it with its checksums. Holds no lock meanwhile:
    /// programs use the file as always.
    ///
    /// # Errors
    /// [`FsError::Away`], [`FsError::Absent`] if the archive does not answer; what the store of names or `pace` says.
    pub(crate) fn verify_archived(&self, ino: Ino, pace: &Pace<'_>) -> Result<Archived> {
        let Some(expected) = self.in_archive(ino)? else { return Ok(Archived::Nothing) };
        let why = match self.read_archived(&expected, pace) {
            Ok(()) => return Ok(Archived::Sound(expected.size)),
            Err(FsError::Io(why)) => why,
            Err(error) => return Err(error),
        };
        let now = self.in_archive(ino)?;
        if now.is_none_or(|now| now.at != expected.at) {
            // It was recalled, written or removed meanwhile.
            return Ok(Archived::Nothing);
        }
        let Some(here) = expected.copy_of else {
            self.damage
                .note(ino, &format!("its object in the archive is damaged or missing: {why}"));
            return Ok(Archived::Lost(why));
        };
        if !self.shared.objects.disk(here.disk)?.is_sound() {
            self.damage.note(ino, "its disk fails, and its object in the archive is damaged");
            return Ok(Archived::Lost(why));
        }
        self.copies.distrust(expected.at);
        self.copies.may_need(ino);
        match self.settle_copies(ino, pace) {
            // The thread for copies tries again.
            Ok(_) | Err(FsError::Io(_) | FsError::Absent(_) | FsError::Stale) => {}
            Err(error) => return Err(error),
        }
        Ok(Archived::Needless(why))
    }

    /// The object of a file in an archive.
    fn in_archive(&self, ino: Ino) -> Result<Option<Expected>> {
        let Some(own) = self.object_of_stored(ino)? else { return Ok(None) };
        match self.archived(ino) {
            Ok(Some((at, size))) => {
                return Ok(Some(Expected { at, size, checksum: None, copy_of: None }));
            }
            Err(FsError::Stale) => return Ok(None),
            not_there => not_there?,
        };
        let found = self.premigrated_record(own)?;
        Ok(found.map(|(record, at)| Expected {
            at,
            size: record.size,
            checksum: Some(record.checksum),
            copy_of: Some(own),
        }))
    }

    fn read_archived(&self, expected: &Expected, pace: &Pace<'_>) -> Result<()> {
        let objects = &self.shared.objects;
        let live = objects.open_to_read(expected.at)?;
        let found = live.opened_attributes.size;
        let read = if found == expected.size {
            self.checksum_of((&live, found), pace)
        } else {
            let (at, size) = (expected.at.id, expected.size);
            Err(FsError::Io(format!("object {at} holds {found} bytes, its file {size}")))
        };
        objects.drop_handle(live);
        let checksum = read?;
        if expected.checksum.is_some_and(|expected| expected != checksum) {
            return Err(FsError::Io(format!(
                "object {} holds other bytes than its file did when it was premigrated",
                expected.at.id
            )));
        }
        Ok(())
    }
}

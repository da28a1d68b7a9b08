//! Comparing files at rest, and their copies, with the checksum that was taken when the copies were made.

use forebay_base::Ino;

use crate::error::{FsError, Result};
use crate::partition::Partition;
use crate::partition::copies::Settled;
use crate::partition::relocate::{Moved, Pace, Resting};
use crate::record::{CopiesRecord, ObjectRef};

/// What a look at the bytes of one file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    /// It and its copies are what they were; so many bytes were read.
    Sound(u64),
    /// Some of them were not, and were made again from another one.
    Repaired(u64),
    /// None of them is.
    Damaged,
    /// A program uses the file, or has used it meanwhile.
    InUse,
    /// It has no copies, or does not exist any more.
    Nothing,
}

/// What was found of the objects of a file.
struct Look {
    own_is_sound: bool,
    sound: Vec<ObjectRef>,
    bad: Vec<ObjectRef>,
    read: u64,
}

impl Partition {
    /// Compares a file that nobody uses, and its copies, with their checksum, and repairs what differs.
    ///
    /// # Errors
    /// What the store or `pace` says.
    pub(crate) fn verify_copies(&self, ino: Ino, pace: &Pace<'_>) -> Result<Verified> {
        match self.settle_copies(ino, pace) {
            Ok(Settled::InUse) => return Ok(Verified::InUse),
            Ok(Settled::Nothing) | Err(FsError::Stale) => return Ok(Verified::Nothing),
            // What is wrong is found below.
            Ok(Settled::Fine(_) | Settled::Short(_)) | Err(FsError::Io(_) | FsError::Absent(_)) => {
            }
            Err(error) => return Err(error),
        }
        let Some(at) = self.inode(ino)?.lock().file().and_then(|file| file.object) else {
            return Ok(Verified::Nothing);
        };
        let resting = match self.begin_move(ino, at.disk) {
            Ok(Ok(resting)) => resting,
            Ok(Err(Moved::InUse)) => return Ok(Verified::InUse),
            Ok(Err(_)) => return Ok(Verified::Nothing),
            Err(FsError::Io(_) | FsError::Absent(_)) => return self.go_on_with_copy(ino, 0, pace),
            Err(error) => return Err(error),
        };
        let verified = self.verify_resting(&resting, pace);
        self.give_up_move(&resting);
        match verified? {
            (Verified::Repaired(read), true) => self.go_on_with_copy(ino, read, pace),
            (Verified::Repaired(read), false) => {
                self.settle_copies(ino, pace)?;
                Ok(Verified::Repaired(read))
            }
            (verified, _) => Ok(verified),
        }
    }

    /// The file's own object is bad.
    fn go_on_with_copy(&self, ino: Ino, read: u64, pace: &Pace<'_>) -> Result<Verified> {
        if !self.take_over(ino)? {
            self.damage.note(ino, "its bytes are damaged, and so are its copies, if it has any");
            return Ok(Verified::Damaged);
        }
        self.settle_copies(ino, pace)?;
        Ok(Verified::Repaired(read))
    }

    /// What was found, and whether it is the file's own object that is to be replaced.
    fn verify_resting(&self, resting: &Resting, pace: &Pace<'_>) -> Result<(Verified, bool)> {
        let Some(record) = self.copies_of(resting.object())? else {
            return Ok((Verified::Nothing, false));
        };
        if record.is_behind {
            return Ok((Verified::InUse, false));
        }
        let look = self.look_at_objects(resting, &record, pace)?;
        if look.own_is_sound && look.bad.is_empty() {
            return Ok((Verified::Sound(look.read), false));
        }
        if !look.own_is_sound && look.sound.is_empty() {
            tracing::error!(ino = %resting.ino, object = %resting.object(), "a file is damaged, and so are its copies");
            self.damage.note(resting.ino, "its bytes are damaged, and so are its copies");
            return Ok((Verified::Damaged, false));
        }
        tracing::warn!(
            ino = %resting.ino,
            object = %resting.object(),
            own = look.own_is_sound,
            copies = look.bad.len(),
            "damaged bytes are replaced from another copy"
        );
        let copies = record.copies.iter().copied().filter(|at| !look.bad.contains(at)).collect();
        let next = CopiesRecord { copies, ..record.clone() };
        if next.copies != record.copies && !self.note_copies(resting, Some(&record), next)? {
            return Ok((Verified::InUse, false));
        }
        Ok((Verified::Repaired(look.read), !look.own_is_sound))
    }

    fn look_at_objects(
        &self,
        resting: &Resting,
        record: &CopiesRecord,
        pace: &Pace<'_>,
    ) -> Result<Look> {
        let is_sound = |checksum: Result<u64>| match checksum {
            Ok(checksum) => Ok(checksum == record.checksum),
            Err(FsError::Io(_) | FsError::Absent(_)) => Ok(false),
            Err(error) => Err(error),
        };
        let own = is_sound(self.checksum_of((&resting.old, resting.seen.size), pace))?;
        let own_is_sound = own && resting.seen.size == record.size;
        let mut look =
            Look { own_is_sound, sound: Vec::new(), bad: Vec::new(), read: resting.seen.size };
        // What lies in an archive has its own checksums, and is not fetched for this.
        let here = record.copies.iter().filter(|at| !self.shared.objects.is_archive(at.disk));
        for at in here {
            let copy = match self.shared.objects.open(*at) {
                Ok(copy) => copy,
                // It is not there, and may be what it is to be.
                Err(FsError::Absent(_)) => continue,
                Err(FsError::Io(_)) => {
                    look.bad.push(*at);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let has_size = copy.opened_attributes.size == record.size;
            let checksum = self.checksum_of((&copy, record.size), pace);
            self.shared.objects.drop_handle(copy);
            if is_sound(checksum)? && has_size {
                look.sound.push(*at);
            } else {
                look.bad.push(*at);
            }
            look.read += record.size;
        }
        Ok(look)
    }
}

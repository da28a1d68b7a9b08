//! Bringing the bytes of a file back from an archive.
//!
//! Nobody writes an object that lies in an archive; programs that have such a file open read it there, on the served path (`recall_mode`), and
//! read the copy as soon as the record refers to that. So the copy is right whatever happens meanwhile, as long as the record still refers to the object when it turns to the copy. The copy is published and
//! synced before that. The archived object is removed after the commit of the batch in which the record turned, as always,
//! unless a snapshot refers to it.
//!
//! What survives a crash: the file, in the archive or here. The other object belongs to nothing, and the sweep removes it.

use std::sync::Arc;

use forebay_base::{DiskId, Ino};
use forebay_disk::archive::format::FRAME_BYTES;
use forebay_disk::archive::index_bytes;

use crate::error::{FsError, Result};
use crate::inode::{FileBody, Inode, State};
use crate::object::{FsDisk, LiveObject};
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace, Resting, TheCopies};
use crate::record::ObjectRef;
use crate::settings::RecallMode;

/// The extended attribute of a file that stays out of archives, whatever its value.
pub const PIN: &[u8] = b"user.forebay.pin";

impl Partition {
    /// Where a file lies, and its size, if that is in an archive.
    ///
    /// # Errors
    /// [`FsError::Stale`]; what the store says.
    pub(crate) fn archived(&self, ino: Ino) -> Result<Option<(ObjectRef, u64)>> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        let at = state.file().and_then(|file| file.object);
        Ok(at.filter(|at| self.shared.objects.is_archive(at.disk)).map(|at| (at, state.size)))
    }

    /// Whether a file lies in an archive, and no object of it is open here.
    pub(crate) fn lies_in_archive(&self, file: &FileBody) -> bool {
        file.live.is_none() && file.object.is_some_and(|at| self.shared.objects.is_archive(at.disk))
    }

    /// Whether a file is read where it lies when it is opened for reading, and not brought back.
    pub(crate) fn is_read_in_archive(&self, state: &State) -> bool {
        let settings = &self.shared.settings;
        let has_fitting_size = || {
            let index = index_bytes(state.size.div_ceil(FRAME_BYTES as u64));
            state.size >= settings.partial_recall_min.0
                && index <= settings.partial_recall_cache.0 / 2
        };
        settings.recall_mode == RecallMode::Partial
            && state.file().is_some_and(|file| self.lies_in_archive(file))
            && has_fitting_size()
    }

    /// The objects of files that programs read in archives: those without a name included, which no record refers to.
    pub(crate) fn read_in_archives(&self) -> Vec<ObjectRef> {
        if !self.shared.objects.has_archives() {
            return Vec::new();
        }
        let read = |inode: &Arc<Inode>| {
            let state = inode.lock();
            let file = state.file().filter(|file| file.opens.handles > 0)?;
            file.object.filter(|_| self.lies_in_archive(file))
        };
        self.cached().iter().filter_map(read).collect()
    }

    /// Whether a disk is an archive.
    pub(crate) fn is_in_archive(&self, disk: DiskId) -> bool {
        self.shared.objects.is_archive(disk)
    }

    /// Whether somebody has said that a file stays out of archives.
    ///
    /// # Errors
    /// [`FsError::Stale`]; what the store says.
    pub(crate) fn is_pinned(&self, ino: Ino) -> Result<bool> {
        match self.xattr(ino, PIN) {
            Ok(_) => Ok(true),
            Err(FsError::NoAttribute) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies the object of an archived file to one of the disks that `suit`. Nothing refers to the copy yet. Holds no lock.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Away`], [`FsError::Io`], what `pace` says: nothing is left of the copy then.
    pub(crate) fn fetch(
        &self,
        (ino, at, size): (Ino, ObjectRef, u64),
        suits: impl Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
    ) -> Result<(Resting, Arc<LiveObject>)> {
        let old = self.shared.objects.open_to_read(at)?;
        let seen = old.opened_attributes;
        if seen.size != size {
            return Err(FsError::Io(format!(
                "inode {ino}: object {} has {} bytes in the archive, and the file {size}: run fsck --archive",
                at.id, seen.size
            )));
        }
        let resting = Resting { ino, old, seen, copy: 0 };
        let new = self.copy_resting(&resting, suits, pace)?;
        Ok((resting, new))
    }

    /// Has the record of an archived file turn to its copy, unless the file has another object by now.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub(crate) fn turn_to_recalled(
        &self,
        resting: &Resting,
        new: &Arc<LiveObject>,
    ) -> Result<Moved> {
        let turned = self.turn(resting, new);
        if !matches!(turned, Ok(Moved::Whole(_))) {
            self.give_up_copy(new);
        }
        self.shared.fail_points.reach("recall.turned")?;
        turned
    }

    fn turn(&self, resting: &Resting, new: &LiveObject) -> Result<Moved> {
        let ino = resting.ino;
        let inode = match self.inode(ino) {
            Err(FsError::Stale) => return Ok(Moved::Gone),
            inode => inode?,
        };
        let found = self.shared.objects.observe(new.at.disk, new.object.attributes())?;
        let mut state = inode.lock();
        if state.file().and_then(|file| file.object) != Some(resting.old.at) {
            return Ok(Moved::Gone);
        }
        // Policies do not move it back at once.
        state.accessed = state.accessed.max(self.now());
        self.exchange_object(ino, &mut state, (new.at, found), TheCopies::Unknown);
        Ok(Moved::Whole(resting.seen.size))
    }
}

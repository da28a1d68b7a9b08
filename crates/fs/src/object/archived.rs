//! Objects of archives: made by moving a file there, read to bring it back, never opened for programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{DiskId, ObjectId};
use forebay_disk::archive::ArchivedObject;

use super::{FsDisk, LiveObject, Objects, number_fresh};
use crate::error::{FsError, Result};
use crate::record::ObjectRef;

impl Objects {
    /// As [`Objects::make_for_copy`], also in an archive.
    ///
    /// # Errors
    /// As [`Objects::take_fresh`].
    pub(crate) fn make_for_move(
        &self,
        from: DiskId,
        suits: impl Fn(&FsDisk) -> bool,
        number: impl Fn() -> Result<ObjectId>,
    ) -> Result<Arc<LiveObject>> {
        let from = self.disk(from)?;
        if !from.is_near {
            match self.make_named(|of| of.is_beside(from) && suits(of), &number) {
                Err(FsError::NoSpace | FsError::Absent(_) | FsError::Away { .. }) => {}
                made => return made,
            }
        }
        match self.make_fresh(|of| of.space.takes_objects() && suits(of)) {
            Err(FsError::NoSpace) => self.make_named(|of| !of.is_near && suits(of), number),
            live => number_fresh(live?, number()?),
        }
    }

    /// Makes an object for bytes that are fetched, on a disk of this machine that `suits`.
    ///
    /// # Errors
    /// As [`Objects::take_fresh`].
    pub(crate) fn make_for_fetch(
        &self,
        suits: impl Fn(&FsDisk) -> bool,
        number: impl Fn() -> Result<ObjectId>,
    ) -> Result<Arc<LiveObject>> {
        let live = self.make_fresh(|of| of.space.takes_objects() && suits(of))?;
        number_fresh(live, number()?)
    }

    /// Whether files may lie in an archive.
    pub(crate) fn has_archives(&self) -> bool {
        self.has_archives.load(Ordering::Acquire)
    }

    /// Whether a disk is an archive.
    pub(crate) fn is_archive(&self, disk: DiskId) -> bool {
        self.disk(disk).is_ok_and(FsDisk::is_archive)
    }

    /// Opens an object for reading alone, also one of an archive.
    ///
    /// # Errors
    /// As [`Objects::open`].
    pub(crate) fn open_to_read(&self, at: ObjectRef) -> Result<Arc<LiveObject>> {
        if !self.disk(at.disk)?.is_archive() {
            return self.open(at);
        }
        let object = self.open_archived(at)?;
        self.adopt(at, object, true)
    }

    /// Opens an object of an archive.
    ///
    /// # Errors
    /// As [`Objects::open`].
    pub(crate) fn open_archived(&self, at: ObjectRef) -> Result<Arc<ArchivedObject>> {
        let of = self.disk(at.disk)?;
        if !of.is_expected() {
            return Err(FsError::Absent(format!("disk {} was given up as lost", of.uuid)));
        }
        self.observe(at.disk, of.disk.read_archived(at.id))
    }
}

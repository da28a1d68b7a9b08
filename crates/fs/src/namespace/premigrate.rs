//! Premigration and eviction: a file at rest gets an object in an archive and stays here; later its object here goes, without
//! asking the archive.

use std::sync::Arc;

use forebay_base::Ino;

use super::Namespace;
use super::moves::{Course, uncopied};
use crate::error::Result;
use crate::grants::{Changer, Touched};
use crate::object::FsDisk;
use crate::partition::Partition;
use crate::partition::copies::Settled;
use crate::partition::relocate::{Moved, Pace, Resting};
use crate::stale::Stale;

impl Namespace {
    /// The archive that a course leads to, if it does.
    pub(super) fn archive_of(&self, course: &Course<'_>) -> Option<&FsDisk> {
        let mut disks = self.shared.objects.disks.all();
        disks.find(|disk| disk.is_archive() && (course.suits)(disk))
    }

    /// Why a resting file cannot go where it is to go, perhaps to an archive.
    pub(super) fn hindrance(
        &self,
        partition: &Partition,
        resting: &Resting,
        archive: Option<&FsDisk>,
    ) -> Result<Option<Moved>> {
        if self.is_mapped_elsewhere(resting.place()) {
            return Ok(Some(Moved::InUse));
        }
        if archive.is_none() {
            return Ok(None);
        }
        if partition.is_pinned(resting.ino)? {
            return Ok(Some(Moved::Pinned));
        }
        Ok(partition.sharing().is_shared(resting.object()).then_some(Moved::Shared))
    }

    /// Gives a file an object in an archive that `course` leads to, where it is proven. It stays here.
    ///
    /// # Errors
    /// As [`Namespace::move_file`].
    pub(super) fn premigrate_file(
        &self,
        ino: Ino,
        course: &Course<'_>,
        pace: &Pace<'_>,
    ) -> Result<Moved> {
        let archive = self.archive_of(course);
        if archive.is_none() || self.shared.objects.is_archive(course.from) {
            return Ok(Moved::Gone);
        }
        let Some((partition, route)) = self.local_owner(ino)? else { return Ok(Moved::Gone) };
        drop(route);
        if partition.copies().is_in_use() && partition.settle_copies(ino, pace)? == Settled::InUse {
            return Ok(Moved::InUse);
        }
        let Some((partition, route)) = self.local_owner(ino)? else { return Ok(Moved::Gone) };
        let resting = match partition.begin_move(ino, course.from)? {
            Ok(resting) => resting,
            Err(outcome) => return Ok(outcome),
        };
        drop(route);
        let moved = self.premigrate_resting(&partition, &resting, course, pace);
        let was_used = partition.is_disturbed(&resting);
        partition.give_up_move(&resting);
        moved.or_else(|error| uncopied(error, was_used, archive))
    }

    fn premigrate_resting(
        &self,
        partition: &Arc<Partition>,
        resting: &Resting,
        course: &Course<'_>,
        pace: &Pace<'_>,
    ) -> Result<Moved> {
        let archive = self.archive_of(course);
        if let Some(why) = self.hindrance(partition, resting, archive)? {
            return Ok(why);
        }
        if partition.is_premigrated_to(resting.place(), course.suits)? {
            return Ok(Moved::Gone);
        }
        let packed = partition.copy_to_archive(resting, course.suits, pace)?;
        let same = |found: &Arc<Partition>| Arc::ptr_eq(found, partition);
        match self.local_owner(resting.ino) {
            Ok(Some((found, _route))) if same(&found) => {
                let noted = partition.note_premigrated(resting, &packed);
                self.shared.objects.drop_handle(packed.live);
                if let (Some(archive), Ok(Moved::Whole(bytes))) = (archive, &noted) {
                    archive.traffic.archived.moved(*bytes);
                }
                noted
            }
            _ => {
                partition.give_up_copy(&packed.live);
                Ok(Moved::InUse)
            }
        }
    }

    /// Has a resting file that lies in an archive too, to which `course` leads, lie there alone. `None` if it does not.
    pub(super) fn evict(
        &self,
        partition: &Arc<Partition>,
        resting: &Resting,
        course: &Course<'_>,
    ) -> Result<Option<Moved>> {
        if !partition.is_premigrated_to(resting.place(), course.suits)? {
            return Ok(None);
        }
        let same = |found: &Arc<Partition>| Arc::ptr_eq(found, partition);
        let _nobody_caches = partition.begin_change(Changer::LOCAL, &Touched::inode(resting.ino));
        let evicted = match self.local_owner(resting.ino) {
            Ok(Some((found, _route))) if same(&found) => partition.evict(resting, course.suits)?,
            _ => Some(Moved::InUse),
        };
        if matches!(evicted, Some(Moved::Evicted(_))) {
            // It takes less there.
            self.tell_own_kernel(&[Stale::Attributes(resting.ino)]);
        }
        Ok(evicted)
    }
}

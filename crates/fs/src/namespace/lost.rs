//! Removing filesets of which the store, or the disk of a native one, is gone: nothing that they held can be reached.
//!
//! It is the last resort, so it is refused wherever something may still be saved. The number of such a fileset is not
//! used again: which inode and object numbers it used is not known.

use forebay_base::FilesetId;
use forebay_disk::DiskError;

use super::Namespace;
use super::catalogue::Fileset;
use super::filesets::finish_removal;
use crate::error::{FsError, Result};
use crate::number::NUMBER_MAX;
use crate::object::FsDisk;
use crate::owner::Owner;
use crate::record::{FilesetRecord, Placement, Stage};
use crate::shared::Shared;

/// Whether a fileset was removed as lost.
pub(super) fn was_lost(record: &FilesetRecord) -> bool {
    record.first_ino >= NUMBER_MAX
}

/// Removes the objects of a fileset that was lost. Those on a disk that is not there stay on it.
pub(super) fn remove_objects(shared: &Shared, id: FilesetId) -> Result<()> {
    let mut removed = 0_u64;
    for (_, FsDisk { uuid, disk, .. }) in shared.objects.numbered_disks() {
        let mut objects = Vec::new();
        let listed = disk.list_of(id, &mut |object| {
            objects.push(object);
            true
        });
        match listed {
            Err(DiskError::Absent(_)) => {
                tracing::warn!(fileset = %id, disk = %uuid, "objects of a lost fileset may stay on a disk that is not there");
            }
            listed => listed?,
        }
        for object in objects {
            disk.remove(object)?;
            removed += 1;
        }
    }
    tracing::info!(fileset = %id, removed, "removed the objects of a lost fileset");
    Ok(())
}

impl Namespace {
    /// Removes a fileset whose store is missing, or a native one that is not on its disk: everything in it is lost. What
    /// is left of its objects goes with it.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it is not lost, damage may be repaired, it is the root fileset, or the file system is one of
    /// a cluster; what a store or a disk says.
    pub fn remove_lost_fileset(&self, name: &str) -> Result<()> {
        let known = self.catalogue.named(name).filter(|known| known.seat().is_some());
        if let (Some(_), Some(fileset)) = (&self.cluster, &known) {
            return self.remove_lost_native(fileset);
        }
        if self.cluster.is_some() {
            return Err(FsError::Refused(
                "a lost fileset cannot be removed in a cluster: its store is shared; check whether it can be reached"
                    .to_owned(),
            ));
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let fileset = self.fileset_named(name)?;
        if fileset.id == FilesetId::ROOT {
            return Err(FsError::Refused("the root fileset cannot be removed".to_owned()));
        }
        self.check_lost(&fileset)?;
        let id = fileset.id;
        let removing = FilesetRecord {
            settings: fileset.settings(),
            stage: Stage::Removing,
            first_ino: NUMBER_MAX,
            first_object: NUMBER_MAX,
        };
        let root = self.root()?;
        root.unname_fileset(id, &removing)?;
        self.shared.owners.set(id, None);
        self.catalogue.remove(id, (removing.first_ino, removing.first_object));
        self.forget_cache(id);
        self.shared.inodes.forget_fileset(id);
        self.commit_change()?;
        self.shared.fail_points.reach("fileset.unnamed")?;
        remove_objects(&self.shared, id)?;
        finish_removal(&*self.stores, &root, id, &removing)?;
        self.shared.fail_points.reach("fileset.removed")?;
        tracing::warn!(fileset = name, "removed as lost");
        self.commit_change()
    }

    /// Refuses a fileset that can be reached, or of which something may be saved.
    fn check_lost(&self, fileset: &Fileset) -> Result<()> {
        let (id, settings) = (fileset.id, fileset.settings());
        let name = &settings.name;
        let is_there = || {
            Err(FsError::Refused(format!(
                "fileset \"{name}\" is not lost: remove its files, then remove it without --lost"
            )))
        };
        if settings.placement == Placement::Native {
            let is_reached = self.native_place(&settings).and_then(|place| place.open()).is_ok();
            return if is_reached { is_there() } else { Ok(()) };
        }
        let is_open = matches!(self.shared.owners.find(id).as_deref(), Some(Owner::Local(_)));
        if is_open {
            return is_there();
        }
        if !self.stores.list()?.contains(&id) {
            return Ok(());
        }
        match self.open_fileset(id) {
            Ok(_) => is_there(),
            Err(error) => Err(FsError::Refused(format!(
                "the store of fileset \"{name}\" is there, but cannot be opened ({error}): repair it with fsck or \
                 restore it from a backup; to give it up, first move its file in ROOT/names elsewhere"
            ))),
        }
    }
}

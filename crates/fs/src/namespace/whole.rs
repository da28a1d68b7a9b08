//! What the root's owner knows of the whole: which filesets and disks there are. Other members read it there.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino};
use forebay_disk::Disk;

use super::Namespace;
use super::cluster::Membership;
use crate::error::{FsError, Result};
use crate::object::FsDisk;
use crate::owner::Owner;
use crate::record::{DiskRecord, FilesetSettings};
use crate::remote::{Answer, RemoteOwner, Request, Whole};

impl Namespace {
    /// What other members must know of the whole.
    pub(crate) fn whole(&self) -> Result<Whole> {
        let root = self.own(Ino::ROOT)?;
        drop(root);
        let all = self.catalogue.list();
        let filesets = all.iter().map(|fileset| (fileset.id, fileset.settings())).collect();
        Ok(Whole { uuid: self.uuid.clone(), filesets, disks: self.disks.read().clone() })
    }

    /// Reads anew which filesets and disks there are, unless this node owns the root.
    ///
    /// # Errors
    /// [`FsError::Io`] if the root's owner cannot be reached.
    pub fn refresh(&self) -> Result<()> {
        // What was told earlier must not take the place of what was told later.
        let _one_at_a_time = self.refreshing.lock();
        let whole = self.at(Ino::ROOT, |owner| match owner {
            Owner::Remote(root) => whole_of(root).map(Some),
            Owner::Local(_) | Owner::Native(_) => Ok(None),
        })?;
        if let Some(whole) = whole {
            self.adopt_filesets(whole.filesets);
            for record in &whole.disks {
                self.learn_disk(record, None);
            }
        }
        Ok(())
    }

    /// Makes sure that there is a fileset of this number.
    pub(super) fn know(&self, fileset: FilesetId) -> Result<()> {
        if self.catalogue.get(fileset).is_some() {
            return Ok(());
        }
        self.refresh()?;
        self.catalogue.get(fileset).map(drop).ok_or(FsError::Stale)
    }

    pub(super) fn knows_disk(&self, uuid: &str) -> bool {
        self.shared.objects.disks.all().any(|disk| disk.uuid == uuid)
    }

    /// Adds a disk to those of the file system, at the root's owner; one that is known already keeps its number.
    ///
    /// # Errors
    /// What the root's owner says.
    pub fn register_disk(&self, uuid: &str, location: &str) -> Result<DiskRecord> {
        self.at(Ino::ROOT, |owner| match owner {
            Owner::Local(root) => root.add_disk(uuid, location),
            Owner::Native(_) => Err(FsError::Invalid),
            Owner::Remote(root) => {
                let (uuid, location) = (uuid.to_owned(), location.to_owned());
                match root.ask(Request::AddDisk { uuid, location })? {
                    Answer::Disk(record) => Ok(record),
                    other => Err(FsError::Io(format!("not an answer: {other:?}"))),
                }
            }
        })
    }

    /// Can use a disk from now on; `own` if it is one of this node.
    pub(crate) fn learn_disk(&self, record: &DiskRecord, own: Option<Arc<dyn Disk>>) {
        let mut disks = self.disks.write();
        if !disks.iter().any(|known| known.id == record.id) {
            disks.push(record.clone());
            disks.sort_by_key(|known| known.id);
        }
        drop(disks);
        if self.knows_disk(&record.uuid) {
            return;
        }
        let is_near = own.is_some();
        let cluster = self.cluster.as_ref().map(Membership::cluster);
        let found = own.or_else(|| cluster?.disk(record)).unwrap_or_else(|| {
            let (uuid, location) = (&record.uuid, &record.location);
            Arc::new(forebay_disk::absent::AbsentDisk::new(uuid, location, "no node has it"))
        });
        let pool = super::pool_of(&self.shared.objects.pools, record);
        self.shared.objects.add_disk(FsDisk::new(record, found, is_near, pool));
    }

    /// The settings of a fileset of this node have changed.
    pub(crate) fn apply_settings(&self, fileset: FilesetId, settings: &FilesetSettings) {
        if let Some(known) = self.catalogue.get(fileset) {
            known.set_settings(settings.clone());
        }
        if let Some(Owner::Local(partition)) = self.shared.owners.find(fileset).as_deref() {
            partition.set_choices(settings);
        }
    }
}

/// Asks the root's owner for it.
pub(super) fn whole_of(root: &RemoteOwner) -> Result<Whole> {
    match root.ask(Request::Catalogue)? {
        Answer::Whole(whole) => Ok(whole),
        other => Err(FsError::Io(format!("not a catalogue: {other:?}"))),
    }
}

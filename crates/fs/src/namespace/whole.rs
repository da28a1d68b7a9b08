//! What the root's owner knows of the whole: which filesets and disks there are. Other members read it there.

use std::sync::atomic::Ordering;

use forebay_base::{FilesetId, Ino};
use forebay_store::Store;

use super::Namespace;
use super::catalogue::{Catalogue, Fileset};
use crate::error::{FsError, Result};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::FilesetSettings;
use crate::recovery::read_superblock;
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
        // This node may have become the root's owner meanwhile: then it knows better.
        let is_root =
            matches!(self.shared.owners.find(FilesetId::ROOT).as_deref(), Some(Owner::Local(_)));
        if let Some(whole) = whole.filter(|_| !is_root) {
            self.adopt_filesets(whole.filesets);
            // Pools come with their disks.
            let adopted = self.adopt_disks(&whole.disks);
            self.act_on_settings();
            adopted?;
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

    /// The settings of a fileset of this node have changed.
    pub(crate) fn apply_settings(
        &self,
        fileset: FilesetId,
        settings: &FilesetSettings,
    ) -> Result<()> {
        // What the root's owner told before this must not take its place.
        let _one_at_a_time = self.refreshing.lock();
        if let Some(known) = self.catalogue.get(fileset) {
            known.set_settings(settings.clone());
        }
        match self.shared.owners.find(fileset).as_deref() {
            Some(Owner::Local(partition)) => partition.apply_settings(settings),
            Some(Owner::Native(_) | Owner::Remote(_)) | None => Ok(()),
        }
    }

    /// The settings with which a fileset is opened from its store. Those that this node knows may have been changed since it
    /// heard of them.
    pub(super) fn settings_at_opening(
        &self,
        fileset: &Fileset,
        store: &dyn Store,
    ) -> Result<FilesetSettings> {
        let Some(membership) = &self.cluster else { return Ok(fileset.settings()) };
        if fileset.id == FilesetId::ROOT {
            let (catalogue, _) = Catalogue::read(store)?;
            if let Some(root) = catalogue.get(fileset.id) {
                fileset.set_settings(root.settings());
            }
        } else if !membership.knows_disks.load(Ordering::Acquire) {
            // The root's owner does not answer. No fsync may promise less than it did.
            let stored = read_superblock(store)?.settings;
            fileset.change_settings(|known| stored.or_stronger(known));
        }
        Ok(fileset.settings())
    }

    /// Has the filesets of this node act on the settings that it knows. No change of settings may be under way.
    pub(super) fn act_on_settings(&self) {
        for partition in self.partitions() {
            if let Some(fileset) = self.catalogue.get(partition.number()) {
                act_on_settings_of(&partition, &fileset);
            }
        }
    }
}

/// Has a partition, and its store, go by the settings that are known of its fileset.
pub(super) fn act_on_settings_of(partition: &Partition, fileset: &Fileset) {
    if let Err(error) = partition.apply_settings(&fileset.settings()) {
        tracing::warn!(fileset = %fileset.id, %error, "the new settings are not stored with the fileset yet");
    }
}

/// Asks the root's owner for it.
pub(super) fn whole_of(root: &RemoteOwner) -> Result<Whole> {
    match root.ask(Request::Catalogue)? {
        Answer::Whole(whole) => Ok(whole),
        other => Err(FsError::Io(format!("not a catalogue: {other:?}"))),
    }
}

//! Snapshots, as commands make, list and delete them, and as programs find them under `.snapshots`.

mod clones;
mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{FilesetId, Ino};
use parking_lot::Mutex;

use super::Namespace;
use crate::attributes::Attributes;
use crate::error::{FsError, Result};
use crate::native::NativeOwner;
use crate::ops::shown_name;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::partition::snapshots::Waiting;
use crate::record::Placement;
use crate::snapshot::{
    Moment, SnapshotDiff, SnapshotList, SnapshotRecord, SnapshotStage, SnapshotStatus,
    SnapshotView, SnapshotsSpace,
};

/// How long requests that are under way may keep a snapshot from being made: those that come meanwhile wait.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Snapshots that a fileset can have.
const SNAPSHOTS_MAX: usize = 1024;
/// Number spaces of snapshots begin here, beyond the numbers of most filesets.
const FIRST_VIEW: u16 = 1000;

/// Snapshots that were looked at since the mount: each has a number space.
#[derive(Default)]
pub(super) struct Views {
    known: Mutex<Known>,
    /// Clones that are being made of some.
    pub(super) clones: clones::Clones,
}

#[derive(Default)]
struct Known {
    /// Number spaces that were given.
    given: BTreeSet<FilesetId>,
    /// The list of the snapshots of a fileset.
    lists: BTreeMap<FilesetId, Arc<NativeOwner>>,
}

impl Views {
    /// Whether somebody has looked at the snapshots of a fileset since the mount.
    pub fn has(&self, fileset: FilesetId) -> bool {
        self.known.lock().lists.contains_key(&fileset)
    }

    /// Number spaces that were given; none is given twice.
    pub fn numbers(&self) -> Vec<FilesetId> {
        self.known.lock().given.iter().copied().collect()
    }
}

fn list_of(owner: &NativeOwner) -> Option<&SnapshotList> {
    match owner {
        NativeOwner::Snapshots(list) => Some(list),
        NativeOwner::Tree(_)
        | NativeOwner::Lost(_)
        | NativeOwner::Nodes(_)
        | NativeOwner::Snapshot(_) => None,
    }
}

impl Namespace {
    /// Makes a snapshot of a fileset.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, for a native fileset, for a name that is taken or is none, and if requests that are under way do not end; what a store or a disk says. There is no snapshot then.
    pub fn create_snapshot(&self, fileset: &str, name: &str) -> Result<SnapshotStatus> {
        let partition = self.partition_with_snapshots(fileset)?;
        self.refuse_cache(
            &partition,
            "a snapshot",
            "files that were not fetched have no bytes here",
        )?;
        let _one_at_a_time = partition.sharing().begin_change();
        if partition.sharing().list().len() >= SNAPSHOTS_MAX {
            return Err(FsError::Refused(format!(
                "fileset \"{fileset}\" has {SNAPSHOTS_MAX} snapshots already: delete some first"
            )));
        }
        partition.prepare_snapshot(name)?;
        let cut = {
            // Those who change filesets and disks have requests wait, too.
            let _no_changes = self.fileset_changes.lock();
            let waiting = Waiting::at(partition.gate());
            if !self.shared.owners.drain_within(DRAIN_MAX) {
                return Err(FsError::Refused(format!(
                    "requests to the file system have been under way for more than {} s, so there is no moment for a \
                     snapshot: `forebay waiters` shows them; try again",
                    DRAIN_MAX.as_secs()
                )));
            }
            partition.cut_snapshot(name, waiting)?
        };
        partition.finish_snapshot(&cut)?;
        let made = partition.sharing().list().into_iter().find(|(_, record)| record.name == name);
        let Some((number, record)) = made else {
            return Err(FsError::Io(format!("snapshot \"{name}\" is gone")));
        };
        tracing::info!(fileset, snapshot = name, "a snapshot was made");
        let mut known = self.views.known.lock();
        if let Some(owner) = known.lists.get(&partition.number()).cloned() {
            self.show(&mut known, &owner, &partition, (number, &record))?;
        }
        Ok(status(fileset, record))
    }

    /// The snapshots of a fileset, or of all that are partitions of this process, the oldest first.
    ///
    /// # Errors
    /// As [`Namespace::create_snapshot`].
    pub fn snapshots(&self, fileset: Option<&str>) -> Result<Vec<SnapshotStatus>> {
        let mut all = Vec::new();
        for name in self.names_of(fileset)? {
            let list = self.partition_with_snapshots(&name)?.sharing().list();
            all.extend(list.into_iter().map(|(_, record)| status(&name, record)));
        }
        Ok(all)
    }

    /// What deleting snapshots would give back, of a fileset or of all; those without snapshots are omitted.
    ///
    /// # Errors
    /// As [`Namespace::create_snapshot`].
    pub fn space_of_snapshots(&self, fileset: Option<&str>) -> Result<Vec<SnapshotsSpace>> {
        let mut all = Vec::new();
        for name in self.names_of(fileset)? {
            let partition = self.partition_with_snapshots(&name)?;
            if !partition.sharing().list().is_empty() {
                all.push(partition.space_of_snapshots(&name)?);
            }
        }
        Ok(all)
    }

    fn names_of(&self, fileset: Option<&str>) -> Result<Vec<String>> {
        self.alone("`forebay snapshot`")?;
        let all = || self.filesets().into_iter().map(|(_, name)| shown_name(&name).to_owned());
        Ok(fileset.map_or_else(|| all().collect(), |name| vec![name.to_owned()]))
    }

    /// What changed in a fileset from a snapshot to another one, or until now; at most `most` changes are told.
    ///
    /// # Errors
    /// As [`Namespace::create_snapshot`]; [`FsError::Refused`] if there is no such snapshot.
    pub fn diff_snapshots(
        &self,
        fileset: &str,
        (old, new): (&str, Option<&str>),
        most: usize,
    ) -> Result<SnapshotDiff> {
        let partition = self.partition_with_snapshots(fileset)?;
        // None of them goes meanwhile.
        let _one_at_a_time = partition.sharing().begin_change();
        let moment = |name: &str| -> Result<Moment> {
            let list = partition.sharing().list().into_iter();
            let mut made = list.filter(|(_, record)| record.stage == SnapshotStage::Made);
            let found = made.find(|(_, record)| record.name == name);
            let (number, _) = found.ok_or_else(|| partition.no_such_snapshot(name))?;
            Ok(Moment { store: partition.frozen_store(number)?, snapshot: Some(number) })
        };
        let old = moment(old)?;
        let new = match new {
            Some(name) => moment(name)?,
            None => {
                partition.commit()?;
                Moment { store: partition.shared_store(), snapshot: None }
            }
        };
        partition.diff(&old, &new, most)
    }

    /// Deletes a snapshot: the space goes back that only it takes. Returns how many objects went with it.
    ///
    /// # Errors
    /// As [`Namespace::create_snapshot`]; [`FsError::Refused`] if there is none of that name. What was begun is finished by the
    /// next attempt, or after the next mount.
    pub fn delete_snapshot(&self, fileset: &str, name: &str) -> Result<u64> {
        let partition = self.partition_with_snapshots(fileset)?;
        let _one_at_a_time = partition.sharing().begin_change();
        let found = partition.sharing().list().into_iter().find(|(_, record)| record.name == name);
        let Some((number, record)) = found else { return Err(partition.no_such_snapshot(name)) };
        partition.sharing().check_not_cloned(number, name)?;
        self.hide(&partition, name);
        let removed = partition.remove_snapshot(number, &record)?;
        tracing::info!(fileset, snapshot = name, removed, "a snapshot was deleted");
        Ok(removed)
    }

    /// The directory `.snapshots`, if `parent` is the top of a fileset that can have snapshots.
    pub(super) fn snapshot_directory(&self, parent: Ino) -> Result<Option<Attributes>> {
        let fileset = parent.fileset();
        if self.cluster.is_some() || parent != Ino::top_of(fileset) {
            return Ok(None);
        }
        let partition = match self.shared.owners.find(fileset).as_deref() {
            Some(Owner::Local(partition)) => Arc::clone(partition),
            Some(Owner::Native(_) | Owner::Remote(_)) | None => return Ok(None),
        };
        let mut known = self.views.known.lock();
        if let Some(owner) = known.lists.get(&fileset) {
            return Ok(list_of(owner).map(SnapshotList::attributes));
        }
        let id = self.free_view(&mut known)?;
        let list = SnapshotList::new(id, parent, self.shared.clock.now());
        let attributes = list.attributes();
        let owner = Arc::new(NativeOwner::Snapshots(list));
        for (number, record) in partition.sharing().list() {
            if record.stage == SnapshotStage::Made {
                self.show(&mut known, &owner, &partition, (number, &record))?;
            }
        }
        self.shared.owners.set(id, Some(&Owner::Native(Arc::clone(&owner))));
        known.lists.insert(fileset, owner);
        Ok(Some(attributes))
    }

    /// Lists a snapshot under `.snapshots`.
    fn show(
        &self,
        known: &mut Known,
        owner: &NativeOwner,
        partition: &Arc<Partition>,
        (number, record): (u64, &SnapshotRecord),
    ) -> Result<()> {
        let Some(list) = list_of(owner) else { return Ok(()) };
        let id = self.free_view(known)?;
        let view = SnapshotView::new(id, list.ino(), number, partition);
        let view = Owner::Native(Arc::new(NativeOwner::Snapshot(view)));
        self.shared.owners.set(id, Some(&view));
        list.add(&record.name, id);
        Ok(())
    }

    /// Takes a snapshot from `.snapshots`, and waits until nobody reads it.
    fn hide(&self, partition: &Partition, name: &str) {
        let owner = self.views.known.lock().lists.get(&partition.number()).cloned();
        if let Some(id) = owner.as_deref().and_then(list_of).and_then(|list| list.remove(name)) {
            self.shared.owners.set(id, None);
            self.shared.owners.drain();
        }
    }

    /// A number space that no fileset has or had, and no snapshot either since the mount.
    fn free_view(&self, known: &mut Known) -> Result<FilesetId> {
        let stores = self.stores.list()?;
        let is_free = |id: &FilesetId| {
            !known.given.contains(id)
                && !stores.contains(id)
                && self.catalogue.get(*id).is_none()
                && !self.catalogue.was_one(*id)
        };
        let free = (FIRST_VIEW..u16::MAX).map(FilesetId).find(is_free);
        let free = free.ok_or_else(|| {
            FsError::Refused(
                "too many snapshots were made and looked at since the mount: mount the file system again".to_owned(),
            )
        })?;
        known.given.insert(free);
        Ok(free)
    }

    fn partition_with_snapshots(&self, name: &str) -> Result<Arc<Partition>> {
        self.alone("`forebay snapshot`")?;
        let fileset = self.fileset_named(name)?;
        if fileset.settings().placement == Placement::Native {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native, so programs write its files without Forebay: snapshots are for direct and \
                 served filesets"
            )));
        }
        self.open_fileset(fileset.id)
    }
}

fn status(fileset: &str, record: SnapshotRecord) -> SnapshotStatus {
    SnapshotStatus {
        fileset: fileset.to_owned(),
        name: record.name,
        created_seconds: record.created.seconds,
        inodes: record.usage.inodes,
        bytes: record.usage.bytes,
        is_being_removed: record.stage == SnapshotStage::Removing,
    }
}

//! Making, changing and removing filesets.
//!
//! A fileset has a store and a name, which cannot change in one step. So it is noted first what is about to happen:
//! - making: the record says *making*; the store is made; then, in one batch of the root fileset, the name is given and
//!   the record says *made*. What a crash leaves of one that is being made goes at the next opening.
//! - removing: in one batch the name goes and the record says *removing*; then the store goes, and the record says
//!   *removed*. After a crash the next opening goes on there.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino};
use forebay_store::Stores;

use super::Namespace;
use super::catalogue::{Catalogue, Fileset, Unfinished};
use super::cluster::Whose;
use super::lost::{remove_objects, was_lost};
use super::native;
use super::whole::act_on_settings_of;
use crate::caching::CacheMode;
use crate::error::{FsError, Result};
use crate::mkfs::StoredFileset;
use crate::native::NewFileset;
use crate::offline;
use crate::ops::{FilesetStatus, check_fileset_name, shown_name};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::{
    DEFAULT_POOL, Durability, FilesetRecord, FilesetSettings, Placement, Stage, Usage, decode,
};
use crate::remote::{Answer, RemoteOwner, Request, tell};
use crate::shared::Shared;

/// The least numbers of inodes and objects that a fileset never used.
pub(super) type Unused = (u64, u64);

impl Namespace {
    /// All filesets with what they hold.
    #[must_use]
    pub fn fileset_status(&self) -> Vec<FilesetStatus> {
        let open = self.partitions();
        let status = |fileset: Arc<Fileset>| {
            let status = FilesetStatus::of(&fileset.settings(), self.usage_of(&fileset));
            let partition = open.iter().find(|partition| partition.number() == fileset.id);
            let damaged = partition.map(|partition| partition.damaged()).unwrap_or_default();
            let waiting = partition.map(|partition| partition.copies().waiting());
            let (waiting_for_copies, copies_problem) = waiting.unwrap_or_default();
            let cache = self.cache_status(&fileset);
            FilesetStatus { damaged, waiting_for_copies, copies_problem, cache, ..status }
        };
        self.catalogue.list().into_iter().map(status).collect()
    }

    /// What a fileset holds; it is not opened for that.
    pub(super) fn usage_of(&self, fileset: &Fileset) -> Result<Usage> {
        if let Some(seat) = fileset.seat() {
            // Only its disk's file system knows; this one says no more than whether it can be reached.
            if self.check_reached(seat)? && !self.is_list(fileset) {
                self.native_place(&fileset.settings())?.open()?;
            }
            return Ok(Usage::default());
        }
        if let Some(route) = self.shared.owners.find(fileset.id) {
            match &*route {
                Owner::Native(_) => return Ok(Usage::default()),
                Owner::Remote(remote) => {
                    let remote = Arc::clone(remote);
                    drop(route);
                    return remote.usage();
                }
                Owner::Local(partition) => {
                    return partition.gate().closed().map_or(Ok(partition.usage()), Err);
                }
            }
        }
        // Whoever opens it meanwhile would find the store in use.
        let _not_opened = fileset.opening.lock();
        if let Some(route) = self.shared.owners.find(fileset.id) {
            return match &*route {
                Owner::Local(partition) => Ok(partition.usage()),
                Owner::Native(_) | Owner::Remote(_) => Ok(Usage::default()),
            };
        }
        if self.cluster.is_some() {
            return self.usage_in_cluster(fileset);
        }
        fileset.usage_when_closed(|| {
            let store = self.stores.look(fileset.id)?;
            let usage = store.get(crate::key::USAGE)?;
            usage.map_or(Ok(Usage::default()), |usage| decode("usage", &usage))
        })
    }

    /// Counters of each fileset since the mount, in the order of
    /// [`OPERATIONS`](crate::stats::OPERATIONS).
    #[must_use]
    pub fn counters(&self) -> Vec<(String, Vec<u64>)> {
        let row = |fileset: Arc<Fileset>| {
            (shown_name(&fileset.settings().name).to_owned(), fileset.counters.read())
        };
        self.catalogue.list().into_iter().map(row).collect()
    }

    pub(super) fn fileset_named(&self, name: &str) -> Result<Arc<Fileset>> {
        let wanted = if name == "/" { "" } else { name };
        self.catalogue.named(wanted).ok_or_else(|| {
            let settings = self.catalogue.list().into_iter().map(|fileset| fileset.settings());
            let names: Vec<String> =
                settings.map(|settings| shown_name(&settings.name).to_owned()).collect();
            FsError::Refused(format!(
                "there is no fileset \"{name}\"; choose from {}",
                names.join(", ")
            ))
        })
    }

    /// Makes a fileset with a top-level directory of the same name.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name or one that is taken; what a store says. Nothing is made then.
    pub fn create_fileset(
        &self,
        name: &str,
        durability: Durability,
        placement: Placement,
        mode: u16,
    ) -> Result<()> {
        self.add_fileset(&NewFileset {
            name: name.to_owned(),
            durability,
            placement,
            disk: None,
            pool: None,
            mode,
        })
    }

    /// As [`Namespace::create_fileset`]; a native one can be put on a certain disk.
    ///
    /// # Errors
    /// As [`Namespace::create_fileset`]; [`FsError::Refused`] for a native fileset without a suitable disk.
    pub fn add_fileset(&self, new: &NewFileset) -> Result<()> {
        self.add_fileset_of(new, None)
    }

    /// As [`Namespace::add_fileset`]; a cache with these settings, if there are any.
    pub(super) fn add_fileset_of(&self, new: &NewFileset, cache: Option<&[u8]>) -> Result<()> {
        if self.cluster.is_some() && new.placement == Placement::Native {
            return self.add_native_somewhere(new);
        }
        let NewFileset { name, durability, placement, mode, .. } = new;
        check_fileset_name(name)?;
        if let Some(pool) = &new.pool {
            self.check_pool_of_files(pool)?;
        }
        if let Some(root) = self.remote_root()? {
            return self.done_by_root(root.ask(Request::AddFileset(new.clone())));
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let root = self.root()?;
        self.check_free_name(&root, name)?;
        let (id, first) = self.free_number()?;
        let disk = match placement {
            Placement::Native => Some(self.disk_for_native(new.disk.as_deref())?.0),
            Placement::Direct | Placement::Served => None,
        };
        let _recalled = self.recall_name_of_root(name)?;
        let (durability, placement) = (*durability, *placement);
        let pool = new.pool.as_deref().unwrap_or(DEFAULT_POOL).to_owned();
        let settings =
            FilesetSettings { name: name.clone(), durability, placement, disk, pool, copies: 1 };
        let making = FilesetRecord {
            settings,
            stage: Stage::Making,
            first_ino: first.0,
            first_object: first.1,
        };
        let made = self.make_in_two_steps(id, &making, (*mode, cache));
        if made.is_err() {
            self.unmake(id, &making);
        }
        made?;
        self.commit_change()
    }

    /// Refuses a name at the top level that is taken.
    pub(super) fn check_free_name(&self, root: &Partition, name: &str) -> Result<()> {
        if root.has_at_top(name)? || self.catalogue.named(name).is_some() {
            return Err(FsError::Refused(format!("\"{name}\" already exists at the top level")));
        }
        Ok(())
    }

    /// The number of a new fileset, and the least numbers that were never used in it.
    pub(super) fn free_number(&self) -> Result<(FilesetId, Unused)> {
        // A store without a record may be all that is left of a fileset: fsck finds it again.
        let mut taken = self.stores.list()?;
        // The kernel may still know inodes of these numbers.
        taken.extend(self.views.numbers());
        self.catalogue.free(&taken).ok_or_else(|| {
            FsError::Refused(format!("there are {} filesets already: remove one first", u16::MAX))
        })
    }

    fn make_in_two_steps(
        &self,
        id: FilesetId,
        making: &FilesetRecord,
        (mode, cache): (u16, Option<&[u8]>),
    ) -> Result<()> {
        let fail_points = &self.shared.fail_points;
        let root = self.root()?;
        root.put_fileset(id, making);
        if cache.is_some() {
            self.note_in_root(id)?;
        }
        root.commit()?;
        fail_points.reach("fileset.noted")?;
        match making.settings.placement {
            Placement::Native => self.make_native_tree(&making.settings, mode)?,
            Placement::Direct | Placement::Served => self.make_store(id, making, (mode, cache))?,
        }
        fail_points.reach("fileset.stored")?;
        self.catalogue.add(id, making.settings.clone());
        let made = FilesetRecord { stage: Stage::Made, ..making.clone() };
        root.name_fileset(id, &made)?;
        fail_points.reach("fileset.named")?;
        Ok(())
    }

    fn make_store(
        &self,
        id: FilesetId,
        making: &FilesetRecord,
        (mode, cache): (u16, Option<&[u8]>),
    ) -> Result<()> {
        let new = StoredFileset {
            id,
            settings: making.settings.clone(),
            identity: &self.root()?.identity(),
            mode,
            cache,
            first: (making.first_ino, making.first_object),
        };
        let store = self.shared.reserve.spend(|| self.stores.create(id), crate::commit::is_full)?;
        new.make(&*store, &*self.shared.clock)?;
        Ok(store.close()?)
    }

    /// Takes back what was made of a fileset. What cannot be taken back now is at the next opening.
    pub(super) fn unmake(&self, id: FilesetId, making: &FilesetRecord) {
        self.catalogue.remove(id, (making.first_ino, making.first_object));
        let removed = self.stores.remove(id).map_err(FsError::from);
        if let Err(error) = removed.and_then(|()| self.remove_native_tree(&making.settings)) {
            tracing::warn!(%error, "a fileset that could not be created left files behind");
            return;
        }
        self.forget_cache(id);
        if let Ok(root) = self.root() {
            root.put_fileset(id, &FilesetRecord { stage: Stage::Removed, ..making.clone() });
        }
    }

    /// Makes a change of filesets durable. It is made already: a refusal must not sound as if it were not.
    pub(super) fn commit_change(&self) -> Result<()> {
        self.root()?.commit().map_err(|error| {
            FsError::Refused(format!(
                "the change was made but is not durable yet, because commits fail: {error}"
            ))
        })
    }

    /// Changes a fileset's settings; they take effect for files opened from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such fileset.
    pub fn set_fileset(
        &self,
        name: &str,
        durability: Option<Durability>,
        placement: Option<Placement>,
    ) -> Result<()> {
        if let Some(root) = self.remote_root()? {
            let name = name.to_owned();
            return self.done_by_root(root.ask(Request::SetFileset {
                name,
                durability,
                placement,
            }));
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let fileset = self.fileset_named(name)?;
        let mut settings = fileset.settings();
        check_stays_native(&settings, durability, placement)?;
        let writes_back = || {
            let cache = self.cache_status(&fileset);
            cache.is_some_and(|cache| cache.mode == CacheMode::SingleWriter)
        };
        if placement == Some(Placement::Direct) && writes_back() {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is a single-writer cache: it stays served, so that the daemon sees each write"
            )));
        }
        if settings.placement == Placement::Native {
            // There is nothing that could be changed.
            return Ok(());
        }
        settings.durability = durability.unwrap_or(settings.durability);
        settings.placement = placement.unwrap_or(settings.placement);
        fileset.set_settings(settings.clone());
        self.apply_at_owner(&fileset, &settings);
        let (first_ino, first_object) = (0, 0);
        let record = FilesetRecord { settings, stage: Stage::Made, first_ino, first_object };
        self.root()?.put_fileset(fileset.id, &record);
        self.commit_change()
    }

    /// Has the owner of a fileset act on new settings.
    pub(super) fn apply_at_owner(&self, fileset: &Fileset, settings: &FilesetSettings) {
        if let Some(Owner::Local(partition)) =
            self.shared.owners.find(fileset.id).map(|route| Owner::clone(&route))
        {
            return act_on_settings_of(&partition, fileset);
        }
        let Some(membership) = &self.cluster else { return };
        // Its owner may have changed, or may not answer: all nodes read the settings again, until all have.
        self.everybody_is_to_hear();
        // Also one that no request of this node has gone to yet.
        if let Whose::There(_, channel) = self.whose(membership, fileset.id) {
            let (fileset, settings) = (fileset.id, settings.clone());
            if let Err(error) = tell(&*channel, Request::Apply { fileset, settings }) {
                tracing::warn!(%fileset, error, "the owner of the fileset has not applied the new settings yet");
            }
        }
    }

    /// Removes an empty fileset and its directory.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none, it is the root fileset, not empty, or files of it are open.
    pub fn remove_fileset(&self, name: &str) -> Result<()> {
        if let Some(root) = self.remote_root()? {
            let name = name.to_owned();
            return self.done_by_root(root.ask(Request::RemoveFileset { name }));
        }
        let is_native = self.catalogue.named(name).is_some_and(|known| known.seat().is_some());
        if self.cluster.is_some() && is_native {
            return self.remove_native_somewhere(name);
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let fileset = self.fileset_named(name)?;
        if fileset.id == FilesetId::ROOT {
            return Err(FsError::Refused("the root fileset cannot be removed".to_owned()));
        }
        let _recalled = self.recall_name_of_root(name)?;
        if fileset.settings().placement == Placement::Native {
            return self.remove_native(&fileset);
        }
        let root = self.root()?;
        let is_missing = || Ok::<_, FsError>(!self.stores.list()?.contains(&fileset.id));
        if self.shared.owners.find(fileset.id).is_none() && self.cluster.is_none() && is_missing()?
        {
            return Err(FsError::Refused(format!(
                "the store of fileset \"{name}\" is missing: restore it from a backup (forebay store restore), or \
                 remove the fileset with --lost, which loses its files"
            )));
        }
        self.empty_cache(&fileset, name)?;
        let emptied = self.empty_fileset(&fileset, name);
        let (partition, unused) = emptied.inspect_err(|_| self.keep_cache(fileset.id))?;
        let removing = FilesetRecord {
            settings: fileset.settings(),
            stage: Stage::Removing,
            first_ino: unused.0,
            first_object: unused.1,
        };
        if let Err(error) = root.unname_fileset(fileset.id, &removing) {
            partition.iter().for_each(|partition| partition.gate().open());
            return Err(error);
        }
        partition.iter().for_each(|partition| partition.gate().close(FsError::Stale));
        self.shared.owners.set(fileset.id, None);
        self.catalogue.remove(fileset.id, unused);
        self.forget_cache(fileset.id);
        self.shared.inodes.forget_fileset(fileset.id);
        self.commit_change()?;
        self.shared.fail_points.reach("fileset.unnamed")?;
        if let Some(Err(error)) = partition.map(|partition| partition.close_store()) {
            tracing::warn!(%error, "the store of a removed fileset was not closed in order");
        }
        finish_removal(&*self.stores, &root, fileset.id, &removing)?;
        self.shared.fail_points.reach("fileset.removed")?;
        self.commit_change()
    }

    /// Has a fileset hold nothing, and nobody use it; its partition, if it is one of this node. Returns the least numbers
    /// that it never used, too.
    fn empty_fileset(
        &self,
        fileset: &Fileset,
        name: &str,
    ) -> Result<(Option<Arc<Partition>>, Unused)> {
        if self.cluster.is_some() {
            let owner = self.opened(fileset.id).map(|route| Owner::clone(&route))?;
            if let Owner::Remote(owner) = owner {
                let request = Request::Retire { fileset: fileset.id, name: name.to_owned() };
                return match owner.ask(request)? {
                    Answer::Retired { first_ino, first_object } => {
                        Ok((None, (first_ino, first_object)))
                    }
                    other => Err(FsError::Io(format!("not an answer: {other:?}"))),
                };
            }
        }
        let partition = self.open_fileset(fileset.id)?;
        partition.granting().iter().for_each(|granting| granting.settle());
        partition.gate().wait();
        // Whoever has passed the gate may be about to make something.
        self.shared.owners.drain();
        if let Err(error) = self.empty_out(&partition, name) {
            partition.gate().open();
            partition.granting().iter().for_each(|granting| granting.resume());
            return Err(error);
        }
        let unused = partition.unused_numbers();
        Ok((Some(partition), unused))
    }

    /// The root's owner, if that is another node.
    pub(super) fn remote_root(&self) -> Result<Option<Arc<RemoteOwner>>> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        match &*self.owner(Ino::ROOT)? {
            Owner::Remote(root) => Ok(Some(Arc::clone(root))),
            Owner::Local(_) | Owner::Native(_) => Ok(None),
        }
    }

    /// What the root's owner answered to a change; it is known here at once.
    pub(super) fn done_by_root(&self, answer: Result<Answer>) -> Result<()> {
        match answer? {
            Answer::Done => self.refresh(),
            other => Err(FsError::Io(format!("not an answer: {other:?}"))),
        }
    }

    /// Makes sure that nothing is in a fileset, not even on the disks.
    pub(super) fn empty_out(&self, partition: &Partition, name: &str) -> Result<()> {
        let refused = |why: String| Err(FsError::Refused(format!("fileset \"{name}\" {why}")));
        if partition.sharing().is_in_use() {
            return refused(
                "has snapshots: `forebay snapshot list` shows them; delete them first".to_owned(),
            );
        }
        let files = partition.usage().inodes.saturating_sub(1);
        if files > 0 {
            return refused(format!("holds {files} files: remove them first"));
        }
        if partition.has_open_files() {
            return refused("has open files: close them first".to_owned());
        }
        partition.settle()?;
        if partition.is_unswept() {
            return refused(
                "may have objects on a missing disk: bring the disk back first".to_owned(),
            );
        }
        self.shared.objects.sync_disks()
    }
}

/// Whether a change of settings leaves a native fileset native, and others not.
fn check_stays_native(
    settings: &FilesetSettings,
    durability: Option<Durability>,
    placement: Option<Placement>,
) -> Result<()> {
    let name = &settings.name;
    let is_native = settings.placement == Placement::Native;
    let wants = |placement: Placement| (placement == Placement::Native) != is_native;
    if placement.is_some_and(wants) {
        return Err(FsError::Refused(format!(
            "fileset \"{name}\": native cannot be switched on or off: create another fileset, and move the files"
        )));
    }
    if is_native && durability.is_some() {
        return Err(FsError::Refused(format!(
            "fileset \"{name}\" is native: its disk's file system decides what fsync promises"
        )));
    }
    Ok(())
}

/// Removes the store of a fileset that has no name any more, and notes that.
pub(super) fn finish_removal(
    stores: &dyn Stores,
    root: &Partition,
    id: FilesetId,
    record: &FilesetRecord,
) -> Result<()> {
    stores.remove(id)?;
    root.put_fileset(id, &FilesetRecord { stage: Stage::Removed, ..record.clone() });
    Ok(())
}

/// Finishes what a crash interrupted: a fileset that was being made goes, and so does one that was being removed.
pub(super) fn finish(
    stores: &dyn Stores,
    root: &Partition,
    shared: &Shared,
    catalogue: &Catalogue,
    unfinished: Vec<Unfinished>,
) -> Result<()> {
    for Unfinished { id, record } in unfinished {
        let is_lost = was_lost(&record);
        if !is_lost && offline::holds_files(stores, id) {
            let name = record.settings.name;
            tracing::error!(
                fileset = name,
                "its record says that it is not complete, but it holds files: run fsck"
            );
            continue;
        }
        tracing::info!(fileset = record.settings.name, stage = ?record.stage, "finishing what a crash interrupted");
        let is_native = record.settings.placement == Placement::Native;
        let gone = if is_lost || (record.stage == Stage::Making && !is_native) {
            // A clone that was not complete has some.
            remove_objects(shared, id)
        } else {
            native::remove_tree(shared, &root.identity().uuid, &record.settings)
        };
        if let Err(error) = gone {
            // What is in the way is not ours to remove, and the next opening tries again.
            tracing::warn!(fileset = record.settings.name, %error, "not finished");
            continue;
        }
        finish_removal(stores, root, id, &record)?;
        catalogue.remove(id, (record.first_ino, record.first_object));
    }
    Ok(())
}

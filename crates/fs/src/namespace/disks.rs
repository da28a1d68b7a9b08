//! Disks that come, change and go.
//!
//! The store of the root fileset says which disks there are. Each change is one batch of that store, made before anybody
//! uses the disk in the new way; so after a crash a disk is used as before the change or as after it. A disk that was taken
//! away keeps its number, which no other one gets.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use forebay_base::{DiskId, Ino};
use forebay_disk::{Disk, DiskError};
use serde::{Deserialize, Serialize};

use super::archives::Sort;
use super::striped_disks::Departure;
use super::{Namespace, pool_of};
use crate::error::{FsError, Result};
use crate::key;
use crate::object::FsDisk;
use crate::ops::{DiskStatus, shown_name};
use crate::record::{DiskRecord, DiskUse, FilesetRecord, Placement, Stage, encode};
use crate::remote::disk_orders::{DiskAnswer, DiskOrder};
use crate::tasks::Work;

/// A disk that is to become one of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDisk {
    /// Its identity, as written in its label.
    pub uuid: String,
    /// Where it is.
    pub location: String,
    /// Its pool.
    pub pool: String,
    /// Its failure group; empty if it fails alone.
    pub group: String,
}

/// A file that a lost disk took along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFile {
    /// Its number.
    pub ino: Ino,
    /// Its path from the top of the file system; none if no name leads to it.
    pub path: Option<String>,
}

/// What a lost disk took along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostDisk {
    /// Files, of many some.
    pub files: Vec<LostFile>,
    /// How many there are.
    pub total: u64,
    /// Filesets that could not be looked at, with the reason.
    pub unknown: Vec<String>,
}

/// Letters of an identity that are enough to name a disk.
const UUID_PREFIX_MIN: usize = 4;
/// Longest name of a pool or failure group, in bytes.
const NAME_BYTES_MAX: usize = 64;

impl Namespace {
    /// Refuses what is done on one machine alone.
    pub(super) fn alone(&self, what: &str) -> Result<()> {
        if self.cluster.is_some() {
            return Err(FsError::Refused(format!(
                "{what} is not available in a cluster: its disks come and go with their nodes"
            )));
        }
        Ok(())
    }

    /// Whether the disks are those of a cluster.
    #[must_use]
    pub fn is_in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether a disk lies at a place that somebody names; in a cluster NODE:DIRECTORY, or a directory of this node.
    fn lies_at(&self, disk: &DiskRecord, which: &str) -> bool {
        let Some(membership) = &self.cluster else { return disk.location == which };
        if disk.shared_directory().is_some() {
            return which == disk.location || disk.shared_directory() == Some(which);
        }
        if which == disk.location {
            return self.shared.objects.is_near(disk.id);
        }
        let node = membership.cluster().node_of(&disk.uuid);
        node.is_some_and(|(number, name)| {
            which
                .strip_suffix(disk.location.as_str())
                .and_then(|node| node.strip_suffix(':'))
                .is_some_and(|node| node == name || node == number.to_string())
        })
    }

    /// The disk that somebody means: by its identity, the beginning of it, or its location. In a cluster that is a directory
    /// of this node, or of another one as NODE:DIRECTORY.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none, or more than one.
    pub fn disk_named(&self, which: &str) -> Result<DiskRecord> {
        let disks = self.disks.read();
        let there = || disks.iter().filter(|disk| disk.used != DiskUse::Removed);
        let exact = there().find(|disk| disk.uuid == which || self.lies_at(disk, which));
        let elsewhere: Vec<&DiskRecord> = there().filter(|disk| disk.location == which).collect();
        if let (None, [only]) = (exact, elsewhere.as_slice()) {
            return Ok((*only).clone());
        }
        if exact.is_none() && elsewhere.len() > 1 {
            return Err(FsError::Refused(format!(
                "several nodes have a disk {which}: write NODE:{which}, with the name of the node as `forebay disk list` shows it"
            )));
        }
        let begins =
            |disk: &&DiskRecord| which.len() >= UUID_PREFIX_MIN && disk.uuid.starts_with(which);
        let mut beginning = there().filter(begins);
        match (exact.or_else(|| beginning.next()), beginning.next()) {
            (Some(found), None) => Ok(found.clone()),
            (Some(found), Some(_)) if exact.is_some() => Ok(found.clone()),
            (Some(_), Some(_)) => Err(FsError::Refused(format!(
                "\"{which}\" is the beginning of several disks: write more of the identity"
            ))),
            (None, _) => {
                let known: Vec<&str> = there().map(|disk| disk.location.as_str()).collect();
                Err(FsError::Refused(format!(
                    "there is no disk \"{which}\"; choose from {}, or name an identity that `forebay disk list` shows",
                    known.join(", ")
                )))
            }
        }
    }

    /// The identity of a disk of this file system that is not in use any more, if `uuid` is one.
    #[must_use]
    pub fn was_removed(&self, uuid: &str) -> bool {
        let is_it = |disk: &DiskRecord| disk.uuid == uuid && disk.used == DiskUse::Removed;
        self.disks.read().iter().any(is_it)
    }

    /// Whether `uuid` is a disk of this file system, one that was removed included.
    #[must_use]
    pub fn has_disk(&self, uuid: &str) -> bool {
        self.disks.read().iter().any(|disk| disk.uuid == uuid)
    }

    /// Adds a disk, on which new files of its pool lie from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name of the pool or group, or if there are too many pools or disks; what the store
    /// says. Nothing is changed then.
    pub fn add_disk(&self, new: &NewDisk, disk: Arc<dyn Disk>) -> Result<()> {
        new.check()?;
        if !self.shared.objects.disks.has_room() {
            return Err(FsError::Refused(
                "too many disks were added since the mount: mount the file system again".to_owned(),
            ));
        }
        if self.has_disk(&new.uuid) {
            return Err(FsError::Refused(format!("disk {} is one already", new.uuid)));
        }
        if self.cluster.is_some() {
            return self.bring_disk(new, disk);
        }
        if DiskRecord::new(DiskId(0), &new.uuid, &new.location).shared_directory().is_some() {
            // It says why not.
            return self.probe_shared(new, &*disk);
        }
        let _one_at_a_time = self.fileset_changes.lock();
        self.check_striping(new)?;
        self.check_mixture(&new.pool, Sort::of(&*disk, new.striping().is_some()), None)?;
        let pool = self.shared.objects.pools.named(&new.pool)?;
        let wanted = DiskRecord {
            pool: new.pool.clone(),
            group: new.group.clone(),
            ..DiskRecord::new(DiskId(0), &new.uuid, &new.location)
        };
        let record = self.root()?.add_disk_like(&wanted)?;
        self.shared.fail_points.reach("disk.added")?;
        let members = self.members_of(&record).into_iter();
        let found = FsDisk::new(&record, disk, true, pool).over(members);
        if !found.is_archive() {
            found.space.begin_reserve(&*found.disk, self.shared.settings.disk_reserve.0);
        }
        self.disks.write().push(record.clone());
        self.shared.objects.add_disk(found);
        self.look_at_all_copies();
        tracing::info!(
            uuid = record.uuid,
            location = record.location,
            pool = record.pool,
            "a disk was added"
        );
        Ok(())
    }

    /// Changes pool and failure group of a disk. Files that lie on it stay there.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such disk, or a fileset would be left without a disk for its
    /// new files; what the store says.
    pub fn label_disk(&self, which: &str, pool: Option<&str>, group: Option<&str>) -> Result<()> {
        let record = self.disk_named(which)?;
        let order = DiskOrder::Label {
            disk: record.uuid.clone(),
            pool: pool.map(str::to_owned),
            group: group.map(str::to_owned),
        };
        if let Some(answer) = self.order_at_root(&order)? {
            return answer.done();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let record = self.disk_named(&record.uuid)?;
        if let Some(pool) = pool {
            check_name("pool", pool)?;
            self.check_mixture(pool, self.sort_of(&record), Some(record.id))?;
            self.shared.objects.pools.named(pool)?;
            if pool != record.pool && record.used == DiskUse::Normal {
                self.check_pool_without(&record, "move it to another pool")?;
            }
        }
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            check_name("failure group", group)?;
        }
        let changed = self.change_disk(&record, BTreeMap::new(), |disk| {
            if let Some(pool) = pool {
                pool.clone_into(&mut disk.pool);
            }
            if let Some(group) = group {
                group.clone_into(&mut disk.group);
            }
        })?;
        let disk = self.shared.objects.disk(record.id)?;
        disk.set_pool(pool_of(&self.shared.objects.pools, &changed));
        disk.set_group(&changed.group);
        self.look_at_all_copies();
        self.shared.objects.give_up_stock_of(record.id);
        Ok(())
    }

    /// Begins to empty a disk, into its pool or into another one; returns the number of the task. No new file gets an
    /// object on it from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the disk cannot be emptied, or nothing could take what lies on it; what the store says.
    pub fn drain_disk(&self, which: &str, to: Option<&str>) -> Result<u64> {
        let record = self.disk_named(which)?;
        let order = DiskOrder::Drain { disk: record.uuid.clone(), to: to.map(str::to_owned) };
        if let Some(answer) = self.order_at_root(&order)? {
            return answer.begun();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let record = self.disk_named(&record.uuid)?;
        let name = &record.location;
        match record.used {
            DiskUse::Normal => {}
            DiskUse::Draining => {
                return Err(FsError::Refused(format!(
                    "disk {name} is being emptied already: see `forebay tasks`"
                )));
            }
            DiskUse::Lost | DiskUse::Removed => {
                return Err(FsError::Refused(format!(
                    "disk {name} was given up as lost: nothing can be moved off it"
                )));
            }
        }
        let holds = |fileset: &Arc<super::Fileset>| {
            let settings = fileset.settings();
            (settings.placement == Placement::Native
                && settings.disk.as_deref() == Some(record.uuid.as_str()))
            .then_some(settings.name)
        };
        // The node of a disk in a cluster makes its directories anew on another one, once they are empty.
        if self.cluster.is_none()
            && let Some(native) = self.catalogue.list().iter().find_map(holds)
        {
            return Err(FsError::Refused(format!(
                "the native fileset \"{native}\" lies on disk {name}, and only people can move its files: create another \
                 fileset, move them there, and remove it first"
            )));
        }
        self.check_not_below(&record, Departure::Emptied)?;
        self.check_pool_without(&record, "empty it")?;
        let pool = to.unwrap_or(&record.pool);
        let takes = |disk: &DiskRecord| {
            disk.id != record.id && disk.pool == pool && disk.used == DiskUse::Normal
        };
        if !self.disks.read().iter().any(takes) {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" has no other disk that could take what lies on {name}: add one, or name another pool \
                 with --to"
            )));
        }
        let work = Work::Drain { disk: record.uuid.clone(), to: to.map(str::to_owned) };
        let (number, task) = self.new_task(&work);
        let changes = [(key::task(number), Some(encode(&task)))].into();
        self.change_disk(&record, changes, |disk| disk.used = DiskUse::Draining)?;
        self.shared.fail_points.reach("disk.draining")?;
        self.shared.objects.disk(record.id)?.set_use(DiskUse::Draining);
        self.shared.objects.give_up_stock_of(record.id);
        self.add_task(number, task);
        Ok(number)
    }

    /// Has a disk that was emptied take new files again.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such disk, or it is being emptied still; what the store says.
    pub fn use_disk_again(&self, which: &str) -> Result<()> {
        let record = self.disk_named(which)?;
        let order = DiskOrder::UseAgain { disk: record.uuid.clone() };
        if let Some(answer) = self.order_at_root(&order)? {
            return answer.done();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let record = self.disk_named(&record.uuid)?;
        let name = &record.location;
        let work = Work::Drain { disk: record.uuid.clone(), to: None };
        if let Some(number) = self.unfinished_task(&work) {
            return Err(FsError::Refused(format!(
                "task {number} still empties disk {name}: `forebay tasks cancel` ends it, and the disk is used again"
            )));
        }
        if record.used != DiskUse::Draining {
            return Err(FsError::Refused(format!("disk {name} was not drained")));
        }
        self.change_disk(&record, BTreeMap::new(), |disk| disk.used = DiskUse::Normal)?;
        self.shared.objects.disk(record.id)?.set_use(DiskUse::Normal);
        Ok(())
    }

    /// Evens out the fill of a pool; returns the number of the task.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the pool has fewer than two disks; what the store says.
    pub fn rebalance(&self, pool: &str) -> Result<u64> {
        let order = DiskOrder::Rebalance { pool: pool.to_owned() };
        if let Some(answer) = self.order_at_root(&order)? {
            return answer.begun();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let is_in = |disk: &&DiskRecord| disk.pool == pool && disk.used == DiskUse::Normal;
        if self.disks.read().iter().filter(is_in).count() < 2 {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" has fewer than two disks in use: there is nothing to even out; `forebay disk list` shows \
                 the pools"
            )));
        }
        if self.archive_pools().contains(pool) {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" is made of archives, which do not fill up: there is nothing to even out"
            )));
        }
        let work = Work::Rebalance { pool: pool.to_owned() };
        self.begin_task(&work)
    }

    /// Takes a disk away that is empty. Its directory can be used for something else afterwards.
    ///
    /// # Errors
    /// [`FsError::Refused`] if something lies on it, or, in a cluster, a node cannot tell; what the store says.
    pub fn remove_disk(&self, which: &str) -> Result<DiskRecord> {
        let record = self.disk_named(which)?;
        let order = DiskOrder::Remove { disk: record.uuid.clone() };
        match self.order_at_root(&order)? {
            Some(DiskAnswer::Disk(removed)) => return Ok(removed),
            Some(other) => return other.done().and(Err(FsError::Invalid)),
            None => {}
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let record = self.disk_named(&record.uuid)?;
        let name = &record.location;
        if record.used == DiskUse::Normal {
            return Err(FsError::Refused(format!(
                "disk {name} is in use: `forebay disk drain` empties it first"
            )));
        }
        self.check_not_below(&record, Departure::TakenAway)?;
        self.open_all()?;
        let was_lost = record.used == DiskUse::Lost;
        let rest = self.rest_on(&record)?;
        if rest.is_some() || !self.is_empty(&record)? {
            let why = match (was_lost, rest) {
                (true, None) => {
                    "files that it took along still have their names: remove or replace them first"
                        .to_owned()
                }
                (true, Some(why)) => format!(
                    "{why}; if these are files that it took along, remove or replace them first"
                ),
                (false, None) => {
                    "it is not empty: `forebay tasks` shows what it waits for".to_owned()
                }
                (false, Some(why)) => {
                    format!("it is not empty ({why}): `forebay tasks` shows what it waits for")
                }
            };
            return Err(FsError::Refused(format!("disk {name} cannot be taken away yet: {why}")));
        }
        // Whatever was moved is durable before the disk that had it goes.
        self.sync_all()?;
        let removes = |fileset: &Arc<super::Fileset>| {
            let disk = self.shared.objects.disk(record.id);
            disk.is_ok_and(|disk| !was_lost && disk.disk.has_removals(fileset.id))
        };
        if self.catalogue.list().iter().any(removes) {
            return Err(FsError::Refused(format!(
                "disk {name} cannot be taken away yet: objects are still being removed from it; try again"
            )));
        }
        let number = self.unfinished_task(&Work::Drain { disk: record.uuid.clone(), to: None });
        let mut changes = BTreeMap::new();
        if let Some((number, ended)) = number.and_then(|number| self.task_as_done(number)) {
            changes.insert(key::task(number), Some(encode(&ended)));
        }
        self.shared.fail_points.reach("disk.removing")?;
        self.change_disk(&record, changes, |disk| disk.used = DiskUse::Removed)?;
        number.into_iter().for_each(|number| self.end_task(number));
        self.shared.fail_points.reach("disk.removed")?;
        if self.cluster.is_some() {
            // Its node lets go of it when it hears of that.
            self.forget_at_cluster(&record);
            tracing::info!(uuid = record.uuid, location = record.location, "a disk was taken away");
            return Ok(record);
        }
        let disk = self.shared.objects.disk(record.id)?;
        if !was_lost {
            disk.space.end_reserve(&*disk.disk);
        }
        disk.set_use(DiskUse::Removed);
        disk.disk.let_go();
        tracing::info!(uuid = record.uuid, location = record.location, "a disk was taken away");
        Ok(record)
    }

    /// Gives a disk up that is not there and will not come back. Returns what it takes along: at most `most` files.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the disk can be reached; what the store says.
    pub fn give_up_disk(&self, which: &str, most: usize) -> Result<LostDisk> {
        let record = self.disk_named(which)?;
        let order = DiskOrder::GiveUp { disk: record.uuid.clone(), most: most as u64 };
        match self.order_at_root(&order)? {
            Some(DiskAnswer::Lost(lost)) => return Ok(lost),
            Some(other) => return other.done().and(Err(FsError::Invalid)),
            None => {}
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let record = self.disk_named(&record.uuid)?;
        let disk = self.shared.objects.disk(record.id)?;
        if record.used != DiskUse::Lost {
            self.check_not_below(&record, Departure::GivenUp)?;
            let is_there = if self.cluster.is_some() {
                disk.disk.capacity().is_ok()
            } else if disk.is_archive() {
                // Of an object that never was it says so, if it is there.
                let asked = disk.disk.read_archived(forebay_base::ObjectId(u64::MAX)).map(drop);
                !matches!(asked, Err(DiskError::Away { .. } | DiskError::Absent(_)))
            } else {
                disk.disk.describe().kind != forebay_disk::absent::KIND && !disk.is_failing()
            };
            if is_there {
                return Err(FsError::Refused(format!(
                    "disk {} is there: `forebay disk drain` moves off it what can be read",
                    record.location
                )));
            }
            if record.used == DiskUse::Normal {
                self.check_pool_without(&record, "give it up")?;
            }
        }
        let lost = self.lost_with(&record, most)?;
        let number = self.unfinished_task(&Work::Drain { disk: record.uuid.clone(), to: None });
        let mut changes = BTreeMap::new();
        if let Some((number, ended)) = number.and_then(|number| self.task_as_done(number)) {
            changes.insert(key::task(number), Some(encode(&ended)));
        }
        self.change_disk(&record, changes, |disk| disk.used = DiskUse::Lost)?;
        number.into_iter().for_each(|number| self.end_task(number));
        disk.set_use(DiskUse::Lost);
        self.partitions().iter().for_each(|partition| partition.let_go_of_all_on(disk.id));
        self.look_at_all_copies();
        // Its node does not bring it again.
        self.forget_at_cluster(&record);
        self.forget_natives(&record)?;
        tracing::warn!(
            uuid = record.uuid,
            location = record.location,
            files = lost.total,
            "a disk was given up as lost"
        );
        Ok(lost)
    }

    fn lost_with(&self, record: &DiskRecord, most: usize) -> Result<LostDisk> {
        let mut lost = self.own_files_on(record.id, most)?;
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            if settings.placement == Placement::Native
                && settings.disk.as_deref() == Some(record.uuid.as_str())
            {
                lost.unknown.push(format!("the native fileset \"{}\", whole", settings.name));
            }
        }
        let room = most.saturating_sub(lost.files.len());
        let (answers, problems) =
            self.ask_all(&DiskOrder::FilesOn { disk: record.id, most: room as u64 });
        lost.unknown.extend(problems.into_iter().map(|why| format!("filesets of {why}")));
        for answer in answers {
            let DiskAnswer::Lost(theirs) = answer else { continue };
            lost.total += theirs.total;
            lost.files.extend(theirs.files);
            lost.unknown.extend(theirs.unknown);
        }
        lost.files.truncate(most);
        Ok(lost)
    }

    /// Files of the filesets of this node that lie on a disk.
    pub(super) fn own_files_on(&self, disk: DiskId, most: usize) -> Result<LostDisk> {
        let mut lost = LostDisk { files: Vec::new(), total: 0, unknown: Vec::new() };
        for fileset in self.filesets_here() {
            let settings = fileset.settings();
            let found = self.open_fileset(fileset.id).and_then(|partition| {
                partition.commit()?;
                let room = most.saturating_sub(lost.files.len());
                partition.files_on(&HashSet::from([disk]), room)
            });
            match found {
                Ok((files, total)) => {
                    lost.total += total;
                    lost.files
                        .extend(files.into_iter().map(|(ino, _)| LostFile { ino, path: None }));
                }
                Err(error) => {
                    lost.unknown
                        .push(format!("fileset \"{}\": {error}", shown_name(&settings.name)));
                }
            }
        }
        let inos: Vec<Ino> = lost.files.iter().map(|file| file.ino).collect();
        let mut paths = self.paths_of(&inos);
        for file in &mut lost.files {
            file.path = paths.remove(&file.ino);
        }
        Ok(lost)
    }

    /// Has new files of a fileset lie in another pool. Files that there are stay where they are.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such fileset, it is native, or the pool has no disk; what the store says.
    pub fn set_fileset_pool(&self, name: &str, pool: &str) -> Result<()> {
        let order = DiskOrder::SetPool { fileset: name.to_owned(), pool: pool.to_owned() };
        if let Some(answer) = self.order_at_root(&order)? {
            return answer.done();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let fileset = self.fileset_named(name)?;
        let mut settings = fileset.settings();
        if settings.placement == Placement::Native {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native: its files lie on one disk, whatever its pool"
            )));
        }
        self.check_pool_of_files(pool)?;
        self.check_copies(settings.copies, pool)?;
        pool.clone_into(&mut settings.pool);
        fileset.set_settings(settings.clone());
        self.apply_at_owner(&fileset, &settings);
        let record = FilesetRecord { settings, stage: Stage::Made, first_ino: 0, first_object: 0 };
        self.root()?.put_fileset(fileset.id, &record);
        self.commit_change()
    }

    /// Makes sure that new files can lie in a pool.
    ///
    /// # Errors
    /// [`FsError::Refused`] if none of its disks takes any.
    pub(super) fn check_pool(&self, pool: &str) -> Result<()> {
        let disks = self.disks.read();
        let in_use = || disks.iter().filter(|disk| disk.used == DiskUse::Normal);
        if in_use().any(|disk| disk.pool == pool) {
            return Ok(());
        }
        let pools: std::collections::BTreeSet<&str> =
            in_use().map(|disk| disk.pool.as_str()).collect();
        let pools: Vec<&str> = pools.into_iter().collect();
        Err(FsError::Refused(format!(
            "pool \"{pool}\" has no disk that takes new files; choose from {}, or add a disk to it first",
            pools.join(", ")
        )))
    }

    /// Makes sure that every fileset has a disk for its new files without one of them.
    fn check_pool_without(&self, record: &DiskRecord, what: &str) -> Result<()> {
        let others = |disk: &DiskRecord| {
            disk.id != record.id && disk.pool == record.pool && disk.used == DiskUse::Normal
        };
        if self.disks.read().iter().any(others) {
            return Ok(());
        }
        let uses = |fileset: &Arc<super::Fileset>| {
            let settings = fileset.settings();
            (settings.placement != Placement::Native && settings.pool == record.pool)
                .then(|| shown_name(&settings.name).to_owned())
        };
        let users: Vec<String> = self.catalogue.list().iter().filter_map(uses).collect();
        if users.is_empty() {
            return Ok(());
        }
        Err(FsError::Refused(format!(
            "disk {} is the last one of pool \"{}\", which takes the new files of {}: add a disk to that pool first, or \
             give these filesets another pool (forebay fileset set NAME --pool POOL), then {what}",
            record.location,
            record.pool,
            users.join(", ")
        )))
    }

    /// Changes the record of a disk, together with `changes`.
    pub(super) fn change_disk(
        &self,
        record: &DiskRecord,
        changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
        change: impl FnOnce(&mut DiskRecord),
    ) -> Result<DiskRecord> {
        let changed = self.root()?.change_disks(changes, |disks| {
            let found = disks.iter_mut().find(|disk| disk.id == record.id);
            let disk = found.ok_or(FsError::Stale)?;
            change(disk);
            Ok(disk.clone())
        })?;
        if let Some(disk) = self.disks.write().iter_mut().find(|disk| disk.id == record.id) {
            disk.clone_from(&changed);
        }
        self.disks_changed()?;
        Ok(changed)
    }

    /// What people are told of the use of a disk.
    pub(super) fn describe_use(&self, disk: &FsDisk, found: &mut DiskStatus) {
        if let Some(record) = self.disks.read().iter().find(|record| record.id == disk.id) {
            found.note_record(record);
        }
        if disk.is_failing() && disk.is_expected() {
            found.is_failing = true;
            found.advice.push(
                "it fails: no new files lie on it until the next mount, and files with copies are read elsewhere; move off it what can \
                 be read (forebay disk drain), or give it up (forebay disk remove --lost)"
                    .to_owned(),
            );
        }
    }
}

impl NewDisk {
    /// Refuses a bad name of the pool or group.
    ///
    /// # Errors
    /// [`FsError::Refused`].
    pub fn check(&self) -> Result<()> {
        check_name("pool", &self.pool)?;
        if self.group.is_empty() { Ok(()) } else { check_name("failure group", &self.group) }
    }
}

/// Refuses what is not a name of a pool or group.
fn check_name(what: &str, name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(fine) {
        return Err(FsError::Refused(format!(
            "\"{name}\" is not a valid name for a {what}: use up to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        )));
    }
    Ok(())
}

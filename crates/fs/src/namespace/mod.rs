//! The namespace: everything that enters from outside comes here, and goes to the owner of its fileset.
//!
//! The front end, `stat`, `status` and the commands of filesets know this type alone. An operation names inodes, and
//! the upper 16 bits of an inode's number say which fileset owns it (`forebay_base::id`), so finding the owner is a
//! shift and a look into a table (`owner.rs`).
//!
//! A fileset is opened at its first use: until then it costs no memory, and its store is not even looked at. One that
//! nobody uses any more is closed (`rest`). After a crash those that were open are opened and swept in the background.
//!
//! The namespace itself knows which filesets there are (`catalogue`), how they come and go (`filesets`), and the disks.
//! It holds no state of files; what survives a crash is its owners' business.

mod archives;
mod away;
mod background;
mod caches;
mod catalogue;
mod census;
mod cluster;
mod cluster_disks;
mod copies;
mod disks;
mod filesets;
mod grants;
mod handles;
mod handover;
mod helping;
mod kernel;
mod locks;
mod lost;
pub mod metrics;
mod moves;
mod native;
mod node_directories;
mod operations;
mod partial;
mod policy;
mod premigrate;
pub(crate) mod quota;
mod recalls;
mod report;
mod rest;
mod scrub_archives;
pub(crate) mod shared_disks;
mod snapshots;
mod striped_disks;
mod tasks;
mod whole;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_base::{Clock, Epoch, FailPoints, FilesetId, Ino};
use forebay_disk::Disk;
use forebay_disk::absent::{self, AbsentDisk};
use forebay_store::{Store, Stores};
use parking_lot::{Mutex, RwLock};

pub(crate) use self::away::AwayDisks;
pub use self::background::Background;
use self::caches::Caches;
pub use self::caches::{Conflict, Evicted, Flushing};
use self::catalogue::{Catalogue, Fileset};
pub use self::cluster::{Cluster, Whose};
use self::cluster::{Membership, Patience};
pub use self::disks::{LostDisk, LostFile, NewDisk};
pub use self::handover::HandOver;
use self::helping::Helping;
pub(crate) use self::kernel::ANSWER_TIME;
use self::kernel::Kernel;
pub use self::kernel::{KernelCache, KernelTimes, NameKept};
pub use self::locks::Interruption;
use self::locks::LockTables;
use self::partial::Partial;
use self::recalls::Recalls;
pub use self::recalls::{FilePlace, Migrated, Residence};
pub use self::report::UnreachableFile;
use self::snapshots::Views;
use self::tasks::Tasks;
use crate::cache::InodeCache;
use crate::clients::Clients;
use crate::commit::{CommitHealth, is_full};
use crate::error::{FsError, Result};
use crate::gate::Lease;
use crate::growth::Growth;
use crate::idle::IdleObjects;
use crate::object::{DirectAccess, FsDisk, Objects, Pool, Pools};
use crate::ops::{DiskStatus, Statistics};
use crate::owner::{Owner, Owners, Route};
use crate::partition::Partition;
use crate::record::{DiskRecord, DiskUse, MountState, Placement};
use crate::recovery::{Opening, read_superblock};
use crate::reserve::Reserve;
use crate::settings::Settings;
use crate::shared::{Bell, Shared};
use crate::stale::StaleList;
use crate::untold::Untold;
use crate::writeset::Crowd;

/// What a file system stands on.
#[derive(Clone)]
pub struct Parts {
    /// Names and attributes: a store for each fileset.
    pub stores: Arc<dyn Stores>,
    /// Bytes: the disks of the file system with their identities, in any order. One that is left out counts as not
    /// there.
    pub disks: Vec<(String, Arc<dyn Disk>)>,
    /// Settings.
    pub settings: Settings,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where a test may cut the power.
    pub fail_points: FailPoints,
    /// Space kept aside for commits on a full disk.
    pub reserve: Reserve,
}

/// A mounted file system, without a kernel.
pub struct Namespace {
    shared: Arc<Shared>,
    stores: Arc<dyn Stores>,
    catalogue: Arc<Catalogue>,
    /// The disks of the file system, in order of their numbers.
    disks: RwLock<Vec<DiskRecord>>,
    uuid: String,
    /// Filesets are made, changed and removed one at a time.
    fileset_changes: Mutex<()>,
    /// Filesets that are not open may need a sweep: the last owner crashed.
    others_unswept: AtomicBool,
    /// The kernel's side of the direct path, for native filesets.
    direct: OnceLock<Arc<dyn DirectAccess>>,
    /// The kernel's side of what it caches.
    kernel: OnceLock<Kernel>,
    /// Held while another node is asked which filesets and disks there are.
    refreshing: Mutex<()>,
    /// Held while a disk becomes known.
    learning: Mutex<()>,
    /// Has native filesets bound that were made while the file system is mounted.
    binder: OnceLock<Box<dyn Fn() + Send + Sync>>,
    locks: LockTables,
    tasks: Tasks,
    /// Tasks of the root's owner that this node takes part in.
    helping: Helping,
    recalls: Recalls,
    partial: Partial,
    /// Cache filesets.
    caches: Caches,
    /// Snapshots that were looked at.
    views: Views,
    /// The cluster that it is a member of, if any.
    cluster: Option<Membership>,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The partitions know what they share, and that knows them.
        self.shared.owners.clear();
    }
}

/// The disks of the file system: those that were given, and stand-ins for the others.
fn find_disks(
    records: &[DiskRecord],
    given: Vec<(String, Arc<dyn Disk>)>,
    cluster: Option<&dyn Cluster>,
) -> (Vec<FsDisk>, Pools) {
    let pools = Pools::default();
    let mut by_uuid: HashMap<String, Arc<dyn Disk>> = given.into_iter().collect();
    let found = |record: &DiskRecord| {
        let own = by_uuid.remove(&record.uuid);
        let is_given = own.is_some() || cluster.is_none();
        let disk = own.or_else(|| cluster?.disk(record)).unwrap_or_else(|| {
            let why =
                if record.is_expected() { "it was not given" } else { "it was given up as lost" };
            Arc::new(AbsentDisk::new(&record.uuid, &record.location, why))
        });
        let about = disk.describe();
        let is_near = is_given || shared_disks::reaches_itself(record, &*disk);
        if about.kind == absent::KIND && record.is_expected() {
            let why = about.advice.first().map_or("", String::as_str);
            tracing::error!(uuid = record.uuid, why, "a disk is not there");
        }
        let node = cluster.and_then(|cluster| cluster.node_of(&record.uuid));
        let node = node.map(|(node, _)| node);
        FsDisk::new(record, disk, is_near, pool_of(&pools, record)).of_node(node)
    };
    let there = || records.iter().filter(|record| record.used != DiskUse::Removed);
    let disks = there().map(found).collect();
    (striped_disks::over_members(there(), disks), pools)
}

/// The pool of a disk; the default one where there are too many.
fn pool_of(pools: &Pools, record: &DiskRecord) -> Pool {
    pools.named(&record.pool).unwrap_or_else(|error| {
        tracing::error!(uuid = record.uuid, %error, "a disk is in the default pool");
        Pool::default()
    })
}

fn shared_of(
    parts: Parts,
    disks: (Vec<FsDisk>, Pools),
    cluster: Option<Arc<dyn Cluster>>,
) -> Arc<Shared> {
    let Parts { settings, clock, fail_points, reserve, .. } = parts;
    let objects = Objects::new(disks, Arc::clone(&clock), fail_points.clone());
    let crowd = Crowd::above(settings.uncommitted_max, settings.open_objects_max / 4);
    Arc::new(Shared {
        lease: cluster.is_some().then(|| Arc::new(Lease::new(Arc::clone(&clock)))),
        inodes: InodeCache::new(settings.inode_cache_max.as_usize()),
        idle: IdleObjects::default(),
        stale: StaleList::default(),
        untold: Untold::default(),
        last_left: AtomicI64::new(i64::MIN),
        owners: Owners::default(),
        crowd: Arc::new(crowd),
        bell: Bell::default(),
        settings,
        clock,
        fail_points,
        reserve,
        objects,
        cluster,
        clients: Clients::default(),
        away: AwayDisks::default(),
        growth: OnceLock::new(),
    })
}

/// Opens a store, for the owner of `epoch` where the cluster assigns it.
fn open_store(
    stores: &dyn Stores,
    fileset: FilesetId,
    epoch: Option<Epoch>,
) -> forebay_store::Result<Arc<dyn Store>> {
    match epoch {
        Some(epoch) => stores.open_for(fileset, epoch),
        None => stores.open(fileset),
    }
}

fn no_store() -> FsError {
    FsError::Refused("a native fileset has no store".to_owned())
}

impl Namespace {
    /// Opens a file system and becomes its owner: every earlier owner is fenced off.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if the stores hold no (readable) file system; [`FsError::Fenced`] if another owner came in
    /// between.
    pub fn open(parts: Parts) -> Result<Arc<Namespace>> {
        Namespace::open_as_owner(parts, None, None)
    }

    /// As [`Namespace::open`], of a member of a cluster that owns the root fileset, in this epoch.
    fn open_as_owner(
        mut parts: Parts,
        cluster: Option<Membership>,
        epoch: Option<Epoch>,
    ) -> Result<Arc<Namespace>> {
        let stores = Arc::clone(&parts.stores);
        let store =
            parts.reserve.spend(|| open_store(&*stores, FilesetId::ROOT, epoch), is_full)?;
        let before = read_superblock(&*store)?;
        let (catalogue, unfinished) = Catalogue::read(&*store)?;
        let given = std::mem::take(&mut parts.disks);
        let disks = find_disks(&before.disks, given, cluster.as_ref().map(Membership::cluster));
        let shared = shared_of(parts, disks, cluster.as_ref().map(Membership::shared_cluster));
        let root_entry = catalogue.get(FilesetId::ROOT).expect("the catalogue has the root");
        let root = Partition::open(Opening {
            number: FilesetId::ROOT,
            uuid: &before.uuid,
            shared: &shared,
            store,
            stores: &stores,
            settings: root_entry.settings(),
            counters: Arc::clone(&root_entry.counters),
            disks: &before.disks,
            epoch,
            rested_in: None,
        })?;
        shared.reserve.hold();
        shared.objects.begin_reserves(shared.settings.disk_reserve.0);
        filesets::finish(&*stores, &root, &shared, &catalogue, unfinished)?;
        shared.owners.set(FilesetId::ROOT, Some(&Owner::Local(Arc::clone(&root))));
        let is_unswept = before.state == MountState::Mounted || before.sweep_due;
        let (disks, uuid) = (before.disks, before.uuid);
        let whole = Namespace::over(shared, stores, catalogue, (uuid, disks), is_unswept, cluster);
        whole.expect_caches(&root)?;
        whole.take_up_tasks(&root)?;
        whole.everybody_is_to_hear();
        Ok(whole)
    }

    fn over(
        shared: Arc<Shared>,
        stores: Arc<dyn Stores>,
        catalogue: Catalogue,
        (uuid, disks): (String, Vec<DiskRecord>),
        others_unswept: bool,
        cluster: Option<Membership>,
    ) -> Arc<Namespace> {
        if let Some(membership) = &cluster {
            membership.near.stand_on(&shared);
        }
        let partial = Partial::of(&shared.settings);
        Arc::new(Namespace {
            // Each owner of a cluster sweeps what it opens.
            others_unswept: AtomicBool::new(others_unswept && cluster.is_none()),
            shared,
            stores,
            catalogue: Arc::new(catalogue),
            disks: RwLock::new(disks),
            uuid,
            fileset_changes: Mutex::default(),
            direct: OnceLock::new(),
            kernel: OnceLock::new(),
            refreshing: Mutex::default(),
            learning: Mutex::default(),
            helping: Helping::default(),
            binder: OnceLock::new(),
            locks: LockTables::default(),
            tasks: Tasks::default(),
            recalls: Recalls::default(),
            partial,
            caches: Caches::default(),
            views: Views::default(),
            cluster,
        })
    }

    // --- the way to an owner ---

    /// Carries `operation` out at the owner of an inode, once more where it has moved to another owner meanwhile.
    fn at<T>(&self, ino: Ino, mut operation: impl FnMut(&Owner) -> Result<T>) -> Result<T> {
        let mut patience = Patience::default();
        loop {
            let route = self.owner(ino)?;
            let done = match &*route {
                Owner::Remote(remote) => {
                    // A call may take long: whoever changes owners must not wait for it.
                    let remote = Arc::clone(remote);
                    drop(route);
                    if self.has_moved(ino.fileset(), &remote) {
                        continue;
                    }
                    operation(&Owner::Remote(remote))
                }
                owner => operation(owner),
            };
            match done {
                Err(FsError::Moved) => self.look_for_owner(ino.fileset(), &mut patience)?,
                done => return done,
            }
        }
    }

    /// The owner of an inode, through its gate.
    fn owner(&self, ino: Ino) -> Result<Route> {
        let mut patience = Patience::default();
        loop {
            let route = self.owner_behind_gate(ino)?;
            let waits = match &*route {
                Owner::Local(partition) if !partition.gate().is_open() => Arc::clone(partition),
                Owner::Local(_) | Owner::Native(_) | Owner::Remote(_) => return Ok(route),
            };
            // Whoever changes owners waits until nobody is on the way to the old one.
            drop(route);
            match waits.gate().enter() {
                Ok(()) => {}
                Err(FsError::Moved) => self.look_for_owner(ino.fileset(), &mut patience)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The owner of an inode, for what ends: that must never wait.
    fn owner_behind_gate(&self, ino: Ino) -> Result<Route> {
        match self.shared.owners.find(ino.fileset()) {
            Some(route) => Ok(route),
            None => self.opened(ino.fileset()),
        }
    }

    #[cold]
    fn opened(&self, fileset: FilesetId) -> Result<Route> {
        if let Some(membership) = &self.cluster {
            return self.opened_in_cluster(membership, fileset);
        }
        self.open_here(fileset, None)?;
        self.shared.owners.find(fileset).ok_or(FsError::Stale)
    }

    /// Opens a fileset that this node owns.
    fn open_here(&self, fileset: FilesetId, epoch: Option<Epoch>) -> Result<()> {
        let known = self.catalogue.get(fileset).ok_or(FsError::Stale)?;
        match known.settings().placement {
            Placement::Native => self.open_native(&known),
            Placement::Direct | Placement::Served => drop(self.open_partition(fileset, epoch)?),
        }
        Ok(())
    }

    /// Opens a fileset, unless it is open. In a cluster, only if this node owns it.
    fn open_fileset(&self, id: FilesetId) -> Result<Arc<Partition>> {
        if self.cluster.is_none() {
            return self.open_partition(id, None);
        }
        match &*self.opened(id)? {
            Owner::Local(partition) => Ok(Arc::clone(partition)),
            Owner::Native(_) => Err(no_store()),
            Owner::Remote(remote) => Err(FsError::Refused(format!(
                "node {} owns the fileset: run the command there, or move the fileset here",
                remote.node()
            ))),
        }
    }

    fn open_partition(&self, id: FilesetId, epoch: Option<Epoch>) -> Result<Arc<Partition>> {
        // A fileset that is gone: its inodes are, too.
        let fileset = self.catalogue.get(id).ok_or(FsError::Stale)?;
        let _one_at_a_time = fileset.opening.lock();
        if let Some(route) = self.shared.owners.find(id) {
            return match &*route {
                Owner::Local(partition) => Ok(Arc::clone(partition)),
                Owner::Native(_) => Err(no_store()),
                Owner::Remote(_) => Err(FsError::Moved),
            };
        }
        if let Some(refusal) = fileset.refusal() {
            return Err(refusal);
        }
        let opened = self.open_store_of(&fileset, epoch);
        if let Err(error) = &opened {
            fileset.refused(error);
        }
        opened
    }

    fn open_store_of(&self, fileset: &Fileset, epoch: Option<Epoch>) -> Result<Arc<Partition>> {
        if !self.may_open(fileset.id, epoch) {
            return Err(FsError::Moved);
        }
        let begun = self.instant();
        let reserve = &self.shared.reserve;
        let membership = self.cluster.as_ref();
        let store = match membership.and_then(|it| it.take_ahead(fileset.id, epoch)) {
            Some(store) => store,
            None => reserve.spend(|| open_store(&*self.stores, fileset.id, epoch), is_full)?,
        };
        let store_ms = self.since(begun).as_millis();
        if self.cluster.is_some() {
            // Records name no disks but those that an earlier owner knew.
            for record in &read_superblock(&*store)?.disks {
                self.learn_of_store(record)?;
            }
        }
        // Nobody who looks for a disk is to wait for the store.
        let disks = self.disks.read().clone();
        let settings = self.settings_at_opening(fileset, &*store)?;
        let partition = Partition::open(Opening {
            number: fileset.id,
            uuid: &self.uuid,
            shared: &self.shared,
            store,
            stores: &self.stores,
            settings,
            counters: Arc::clone(&fileset.counters),
            disks: &disks,
            epoch,
            rested_in: fileset.rested_in(),
        })?;
        self.learn_cache(&partition)?;
        let opened_ms = self.since(begun).as_millis();
        tracing::info!(fileset = %fileset.id, store_ms, opened_ms, "opened");
        fileset.is_at_work();
        self.take_up(&partition);
        self.shared.owners.set(fileset.id, Some(&Owner::Local(Arc::clone(&partition))));
        // Whoever changed them meanwhile found no owner here.
        whole::act_on_settings_of(&partition, fileset);
        Ok(partition)
    }

    fn partitions(&self) -> Vec<Arc<Partition>> {
        self.shared.owners.partitions()
    }

    // --- what is known of the whole ---

    /// Settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Objects and disks, for status.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// Opens the direct path: from now on the kernel reads and writes objects itself.
    pub fn set_direct_access(&self, direct: Arc<dyn DirectAccess>) {
        let _ = self.direct.set(Arc::clone(&direct));
        self.give_direct_access_to_native();
        self.shared.objects.set_direct_access(direct);
    }

    /// Has somebody told how much files grow that the kernel writes itself.
    pub fn set_growth(&self, growth: Arc<dyn Growth>) {
        let _ = self.shared.growth.set(growth);
    }

    /// Identity of the file system.
    #[must_use]
    pub fn uuid(&self) -> String {
        self.uuid.clone()
    }

    /// Bytes that the stores occupy, those of filesets that are not open included; 0 for what cannot be said.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        let bytes = |fileset: Arc<Fileset>| match self.shared.owners.find(fileset.id).as_deref() {
            Some(Owner::Local(partition)) => partition.store_bytes(),
            Some(Owner::Native(_) | Owner::Remote(_)) => 0,
            None => self.stores.size_of(fileset.id).unwrap_or(0),
        };
        self.catalogue.list().into_iter().map(bytes).sum()
    }

    /// Space kept aside in the home folder.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        &self.shared.reserve
    }

    /// Whether space is kept aside for commits on a full disk.
    #[must_use]
    pub fn reserve_is_held(&self) -> bool {
        self.shared.reserve.is_held()
    }

    /// Whether space of some disk is short, so that removals and opens may wait for a commit.
    #[must_use]
    pub fn is_short_of_space(&self) -> bool {
        self.shared.objects.is_pressed()
    }

    /// The root fileset.
    ///
    /// # Errors
    /// [`FsError::Moved`] if another node owns it.
    pub(crate) fn root(&self) -> Result<Arc<Partition>> {
        match &*self.owner(Ino::ROOT)? {
            Owner::Local(root) => Ok(Arc::clone(root)),
            Owner::Native(_) | Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    /// The epoch of the root fileset's owner; 0 if that is another node.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.root().map_or(Epoch(0), |root| root.epoch())
    }

    /// Filesets that are open now.
    #[must_use]
    pub fn open_filesets(&self) -> usize {
        self.partitions().len()
    }

    /// Cached inodes, and bytes of memory they are reckoned at.
    #[must_use]
    pub fn cache_usage(&self) -> (usize, usize) {
        self.shared.inodes.usage()
    }

    /// Drops all cached state that can be read again.
    pub fn drop_caches(&self) {
        self.shared.inodes.drop_all();
    }

    /// How commits are doing: of the fileset that is worst off.
    #[must_use]
    pub fn commit_health(&self) -> CommitHealth {
        let all: Vec<CommitHealth> =
            self.partitions().iter().map(|partition| partition.commit_health()).collect();
        CommitHealth {
            age: all.iter().map(|health| health.age).max().unwrap_or_default(),
            pending: all.iter().map(|health| health.pending).sum(),
            last_error: all.into_iter().find_map(|health| health.last_error),
        }
    }

    /// How the commits of one fileset are doing, if it is open.
    #[must_use]
    pub fn commit_health_of(&self, fileset: FilesetId) -> Option<CommitHealth> {
        match self.shared.owners.find(fileset).as_deref()? {
            Owner::Local(partition) => Some(partition.commit_health()),
            Owner::Native(_) | Owner::Remote(_) => None,
        }
    }

    /// As [`Namespace::statistics`]; for an inode of a native fileset that of its disk's file system.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn statistics_at(&self, ino: Ino) -> Result<Statistics> {
        self.at(ino, |owner| match owner {
            Owner::Local(partition) => self.statistics_within(partition),
            Owner::Native(native) if native.has_no_disk() => self.statistics(),
            Owner::Native(native) => {
                let (capacity, inodes) = native.tree()?.capacity()?;
                Ok(Statistics { capacity, inodes })
            }
            Owner::Remote(remote) => remote.statistics(ino),
        })
    }

    /// The disks with what they hold.
    #[must_use]
    pub fn disk_status(&self) -> Vec<DiskStatus> {
        self.disk_status_of(|_| true)
    }

    /// As [`Namespace::disk_status`], of some of them: others are not asked.
    fn disk_status_of(&self, wanted: impl Fn(&FsDisk) -> bool) -> Vec<DiskStatus> {
        let (partitions, filesets) = (self.partitions(), self.catalogue.list());
        let status = |disk: &FsDisk| {
            let open = partitions.iter().map(|partition| partition.usage_of(disk.id));
            let at_rest = filesets.iter().map(|fileset| fileset.usage_at_rest(disk.id));
            let mut found = DiskStatus::of(&disk.uuid, &*disk.disk, open.chain(at_rest).sum());
            found.archive = disk.archive_status();
            found.premigrated = found.archive.map(|_| self.premigrated_to(disk.id));
            found.spare_objects = self.shared.objects.spares_on(disk.id) as u64;
            self.describe_use(disk, &mut found);
            let (reserve, held, refusal) = disk.space.reserve_state();
            (found.reserve_bytes, found.reserve_held_bytes) = (reserve, held);
            found.advice.extend(refusal.map(|why| {
                format!("no space can be reserved on it ({why}): once it is full, commits may fail")
            }));
            found.errors = disk.health.errors.load(Ordering::Relaxed);
            found.last_error = disk.health.last_error.lock().clone().map(|(_, text)| text);
            if let Some(why) = disk.health.direct_refusal.lock().as_ref() {
                found.advice.push(format!(
                    "the kernel refuses the direct path to it ({why}): its files are served; a disk must \
                     not lie on a stacked file system such as overlayfs"
                ));
            }
            found
        };
        self.shared.objects.disks.all().filter(|disk| wanted(disk)).map(status).collect()
    }

    /// Commits everything done so far in a fileset, and copies its store into a new file; returns the number of
    /// records.
    ///
    /// # Errors
    /// As [`Namespace::commit`]; [`FsError::Refused`] if there is a file of that name.
    pub fn back_up_fileset(
        &self,
        id: FilesetId,
        file: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        self.open_fileset(id)?.back_up(file, progress)
    }

    /// The filesets with their names, in order of their numbers: those that have a store.
    #[must_use]
    pub fn filesets(&self) -> Vec<(FilesetId, String)> {
        let named = |fileset: Arc<Fileset>| {
            let settings = fileset.settings();
            (settings.placement != Placement::Native).then_some((fileset.id, settings.name))
        };
        self.catalogue.list().into_iter().filter_map(named).collect()
    }
}

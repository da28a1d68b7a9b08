//! A namespace that is a member of a cluster: who owns a fileset is asked of a [`Cluster`], and answered anew whenever
//! owners change.
//!
//! The catalogue of filesets and the list of disks lie with the root's owner. Other members read them there: when they
//! join, before they open a fileset, and when they meet the number of a fileset that they do not know.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{Channel, ClientId, Clock, Epoch, FilesetId, Ino, NodeId};
use forebay_disk::Disk;
use forebay_store::Store;
use parking_lot::{Condvar, Mutex};

use super::catalogue::{Catalogue, Fileset};
use super::census::Censuses;
use super::whole::whole_of;
use super::{Namespace, NewDisk, Parts, find_disks, shared_of};
use crate::clients::{Clients, Handles};
use crate::error::{FsError, Result};
use crate::grants::{Kept, Traffic};
use crate::owner::{Owner, Route};
use crate::partition::Partition;
use crate::record::{DiskRecord, Usage, decode};
use crate::remote::{Blocks, Lent, NearFiles, OpenFiles, RemoteOwner, ReportBell, Request, Whole};
use crate::settings::{LockChoice, Settings};
use crate::stale::Stale;
use crate::untold::Telling;

/// Who owns a fileset.
#[derive(Clone)]
pub enum Whose {
    /// This node. Its store is opened, in this epoch where the cluster assigns it.
    Here(Option<Epoch>),
    /// That node; the channel leads to its [`FilesService`](crate::remote::FilesService).
    There(NodeId, Arc<dyn Channel>),
    /// Nobody yet: requests wait.
    Nobody,
    /// Nobody can answer now, for this reason: requests fail.
    Lost(String),
}

/// What a namespace asks of the cluster that it is a member of. Requests wait for the answers: they come from memory.
pub trait Cluster: Send + Sync {
    /// Who owns a fileset now. Where that changes, [`Namespace::owner_changed`] is to be called.
    fn owner_of(&self, fileset: FilesetId) -> Whose;

    /// A disk that this node does not have, by way of the node that has it, or, of one that all nodes reach, opened here; `None`
    /// if nobody has it.
    fn disk(&self, record: &DiskRecord) -> Option<Arc<dyn Disk>>;

    /// Uuids of the disks that a node has.
    fn disks_of(&self, node: NodeId) -> Vec<String>;

    /// The way to the [`CacheService`](crate::remote::CacheService) of a node that is a client of this one; nothing is granted
    /// to a node without one.
    fn cache_of(&self, node: NodeId) -> Option<Arc<dyn Channel>> {
        let _ = node;
        None
    }

    /// Who answers for the native filesets on a disk: the node that has it.
    fn home_of(&self, disk: &str) -> Whose;

    /// Whether any node has a disk.
    fn has_disk(&self, disk: &str) -> bool;

    /// The node that has a disk, with its name, whether it runs or not.
    fn node_of(&self, disk: &str) -> Option<(NodeId, String)> {
        let _ = disk;
        None
    }

    /// This node has a disk from now on: others reach it here.
    ///
    /// # Errors
    /// Why the cluster cannot know of it: then nothing has changed.
    fn bring_disk(&self, new: &NewDisk, disk: &Arc<dyn Disk>) -> std::result::Result<(), String> {
        let _ = (new, disk);
        Ok(())
    }

    /// No node has a disk any more.
    ///
    /// # Errors
    /// Why the cluster still has it on record.
    fn forget_disk(&self, record: &DiskRecord) -> std::result::Result<(), String> {
        let _ = record;
        Ok(())
    }

    /// A disk of this node is none any more: other nodes do not reach it here, and if it was taken away its directory can become
    /// something else.
    fn let_disk_go(&self, record: &DiskRecord) {
        let _ = record;
    }

    /// A number of this life of the node, which no other one has.
    fn life(&self) -> u64;

    /// Name of this node.
    fn node_name(&self) -> String;

    /// The other nodes that have mounted the file system, with the way to their
    /// [`FilesService`](crate::remote::FilesService).
    fn members(&self) -> Vec<(NodeId, Arc<dyn Channel>)>;
}

/// How long a request looks for the owner of a fileset between two looks, unless it hears of a change.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long a request has been looking for an owner.
#[derive(Default)]
pub(super) struct Patience(Option<Instant>);

/// A fileset whose owner this node is being named, and its store once that is open.
pub(super) struct Ahead {
    pub(super) epoch: Epoch,
    pub(super) store: Option<Arc<dyn Store>>,
}

/// The cluster, and what this node remembers of its owners.
pub(super) struct Membership {
    cluster: Arc<dyn Cluster>,
    /// Grows with each change of an owner.
    changes: Mutex<u64>,
    changed: Condvar,
    /// Filesets that this node has handed over, until it hears who owns them.
    pub(super) released: Mutex<HashSet<FilesetId>>,
    /// Filesets whose owner this node is being named.
    pub(super) ahead: Mutex<HashMap<FilesetId, Ahead>>,
    open_files: Mutex<HashMap<FilesetId, Arc<OpenFiles>>>,
    pub(super) near: Arc<NearFiles>,
    /// Blocks of files that lie on other nodes.
    pub(super) blocks: Arc<Blocks>,
    /// What the kernel may keep of filesets of other nodes.
    pub(super) lent: Arc<Lent>,
    pub(super) reports: Arc<ReportBell>,
    /// Disks that this node is about to bring, by their identities.
    pub(super) coming: Mutex<HashMap<String, Arc<dyn Disk>>>,
    /// Nodes that have not heard of the latest change of disks, if this one owns the root.
    pub(super) unheard: Mutex<HashSet<NodeId>>,
    /// Held while they are told: a command ends when all have heard.
    pub(super) telling: Mutex<()>,
    /// What the root's owner said of the disks is known.
    pub(super) knows_disks: AtomicBool,
    /// Requests to other nodes.
    pub(super) traffic: Mutex<BTreeMap<NodeId, Arc<Traffic>>>,
    /// Counts that other nodes have requested.
    pub(super) censuses: Censuses,
    /// The probe of a shared disk in which this node takes part.
    pub(super) probing: super::shared_disks::Probing,
}

impl Membership {
    fn of(cluster: Arc<dyn Cluster>, settings: &Settings) -> Membership {
        Membership {
            cluster,
            changes: Mutex::default(),
            changed: Condvar::new(),
            released: Mutex::default(),
            ahead: Mutex::default(),
            open_files: Mutex::default(),
            near: Arc::default(),
            blocks: Arc::new(Blocks::of(settings.remote_read_cache.0)),
            lent: Arc::default(),
            reports: Arc::default(),
            coming: Mutex::default(),
            unheard: Mutex::default(),
            telling: Mutex::default(),
            knows_disks: AtomicBool::new(true),
            traffic: Mutex::default(),
            censuses: Censuses::default(),
            probing: Mutex::default(),
        }
    }

    pub(super) fn cluster(&self) -> &dyn Cluster {
        &*self.cluster
    }

    pub(super) fn shared_cluster(&self) -> Arc<dyn Cluster> {
        Arc::clone(&self.cluster)
    }

    pub(super) fn whose(&self, fileset: FilesetId) -> Whose {
        if self.released.lock().contains(&fileset) {
            return Whose::Nobody;
        }
        self.cluster.owner_of(fileset)
    }

    /// The store of a fileset that was opened ahead for this epoch.
    pub(super) fn take_ahead(
        &self,
        fileset: FilesetId,
        epoch: Option<Epoch>,
    ) -> Option<Arc<dyn Store>> {
        let mut ahead = self.ahead.lock();
        if Some(ahead.get(&fileset)?.epoch) != epoch {
            return None;
        }
        ahead.remove(&fileset)?.store
    }

    /// Whether this node is being named the owner: then it is asked rightly, and hears of it in a moment.
    pub(super) fn is_coming(&self, fileset: FilesetId) -> bool {
        self.ahead.lock().contains_key(&fileset)
    }

    /// What this node's programs have open of a fileset that is not its own.
    pub(super) fn open_files(&self, fileset: FilesetId) -> Arc<OpenFiles> {
        Arc::clone(self.open_files.lock().entry(fileset).or_default())
    }

    /// Whether something is lost that this node has changed of a fileset of another one, and nobody was told who synced all.
    pub(super) fn tell_of_any_loss(&self) -> bool {
        let all: Vec<Arc<OpenFiles>> = self.open_files.lock().values().map(Arc::clone).collect();
        // Each of them counts as told then.
        all.iter().filter(|open_files| open_files.unsynced().tell_of_any()).count() > 0
    }

    pub(super) fn filesets_with_open_files(&self) -> Vec<FilesetId> {
        let all = self.open_files.lock();
        all.iter().filter(|(_, open)| !open.is_empty()).map(|(fileset, _)| *fileset).collect()
    }

    pub(super) fn remote_owner(
        &self,
        fileset: FilesetId,
        node: NodeId,
        channel: Arc<dyn Channel>,
        clock: &Arc<dyn Clock>,
    ) -> Owner {
        let open_files = self.open_files(fileset);
        let near = Arc::clone(&self.near);
        let traffic = Arc::clone(self.traffic.lock().entry(node).or_default());
        let kept = Kept::new(clock, &traffic, &near, (&self.lent, &self.reports));
        Owner::Remote(Arc::new(RemoteOwner::new(
            fileset,
            node,
            channel,
            open_files,
            (near, &self.blocks),
            kept,
        )))
    }

    /// Everybody who waits for an owner looks again.
    pub(super) fn note_change(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until an owner has changed since `seen`, or a little.
    fn wait(&self, seen: u64) {
        let mut changes = self.changes.lock();
        if *changes == seen {
            self.changed.wait_for(&mut changes, LOOK_PAUSE);
        }
    }
}

impl Namespace {
    /// Opens the file system as a member of a cluster. Waits for the owner of the root fileset, or is that itself. The
    /// node's own disks become known to all members.
    ///
    /// # Errors
    /// As [`Namespace::open`]; [`FsError::Io`] if the root's owner cannot be reached, or there is none in time.
    pub fn join(mut parts: Parts, cluster: &Arc<dyn Cluster>) -> Result<Arc<Namespace>> {
        // Programs of other nodes lock the same files.
        parts.settings.locks = LockChoice::Shared;
        let mut own: Vec<(String, Arc<dyn Disk>)> = parts.disks.clone();
        let deadline = parts.clock.instant() + parts.settings.owner_wait;
        let fs = loop {
            let membership = Membership::of(Arc::clone(cluster), &parts.settings);
            match membership.whose(FilesetId::ROOT) {
                Whose::Here(epoch) => {
                    match Namespace::open_as_owner(parts.clone(), Some(membership), epoch) {
                        // It was handed over or taken over while it was opened here, as by a drain that goes on.
                        Err(FsError::Moved | FsError::Fenced)
                            if parts.clock.instant() < deadline => {}
                        opened => break opened?,
                    }
                }
                Whose::There(node, channel) => {
                    match Namespace::join_at(&parts, &membership, node, channel) {
                        Err(FsError::Moved) if parts.clock.instant() < deadline => {}
                        Err(error) => return Err(error),
                        Ok(whole) => {
                            break Namespace::over_whole(parts, membership, whole);
                        }
                    }
                }
                Whose::Nobody if parts.clock.instant() < deadline => {}
                Whose::Nobody => return Err(nobody_owns(FilesetId::ROOT)),
                Whose::Lost(why) => return Err(FsError::Io(why)),
            }
            // Nobody tells of changes before there is a namespace.
            std::thread::sleep(LOOK_PAUSE);
        };
        // The root's owner learns of its own disks as of those of others.
        own.retain(|(uuid, _)| !fs.knows_disk(uuid));
        for (uuid, disk) in own {
            fs.join_with(&uuid, disk)?;
        }
        Ok(fs)
    }

    fn join_at(
        parts: &Parts,
        membership: &Membership,
        node: NodeId,
        channel: Arc<dyn Channel>,
    ) -> Result<Whole> {
        let owner = membership.remote_owner(FilesetId::ROOT, node, channel, &parts.clock);
        let Owner::Remote(root) = owner else { return Err(FsError::Moved) };
        for (uuid, disk) in &parts.disks {
            let location = disk.describe().location;
            root.ask(Request::AddDisk { uuid: uuid.clone(), location })?;
        }
        whole_of(&root)
    }

    fn over_whole(parts: Parts, membership: Membership, whole: Whole) -> Arc<Namespace> {
        let mut parts = parts;
        let given = std::mem::take(&mut parts.disks);
        let disks = find_disks(&whole.disks, given, Some(membership.cluster()));
        let stores = Arc::clone(&parts.stores);
        let shared = shared_of(parts, disks, Some(membership.shared_cluster()));
        shared.reserve.hold();
        shared.objects.begin_reserves(shared.settings.disk_reserve.0);
        let catalogue = Catalogue::of(whole.filesets);
        let identity = (whole.uuid, whole.disks);
        Namespace::over(shared, stores, catalogue, identity, false, Some(membership))
    }

    // --- owners ---

    /// The way to the owner of a fileset, once there is one.
    #[cold]
    pub(super) fn opened_in_cluster(
        &self,
        membership: &Membership,
        fileset: FilesetId,
    ) -> Result<Route> {
        let mut patience = Patience::default();
        loop {
            if let Some(route) = self.shared.owners.find(fileset) {
                return Ok(route);
            }
            if fileset != FilesetId::ROOT {
                self.know(fileset)?;
            }
            match self.whose(membership, fileset) {
                Whose::Here(epoch) => {
                    let opened = self.open_own(fileset, epoch);
                    // Whoever took it over by force is told of in a moment.
                    if !matches!(opened, Err(FsError::Moved | FsError::Fenced)) {
                        opened?;
                        continue;
                    }
                }
                Whose::There(node, channel) => {
                    self.go_to(membership, fileset, node, channel);
                    continue;
                }
                Whose::Nobody => {}
                Whose::Lost(why) => return Err(FsError::Io(why)),
            }
            self.look_for_owner(fileset, &mut patience)?;
        }
    }

    /// Sends requests of a fileset that has no owner here to that node from now on.
    fn go_to(
        &self,
        membership: &Membership,
        fileset: FilesetId,
        node: NodeId,
        channel: Arc<dyn Channel>,
    ) {
        let known = self.catalogue.get(fileset);
        let _one_at_a_time = known.as_ref().map(|known| known.opening.lock());
        if self.shared.owners.find(fileset).is_none() {
            let owner = membership.remote_owner(fileset, node, channel, &self.shared.clock);
            self.shared.owners.set(fileset, Some(&owner));
        }
    }

    fn open_own(&self, fileset: FilesetId, epoch: Option<Epoch>) -> Result<()> {
        if fileset == FilesetId::ROOT {
            return self.open_root(epoch);
        }
        if self.is_native(fileset) {
            return self.open_here(fileset, None);
        }
        // Settings may have changed since. Should the root's owner be out of reach, those that are known are good enough:
        // a takeover must not depend on it.
        let refreshed = self.refresh();
        if let Some(membership) = &self.cluster {
            membership.knows_disks.store(refreshed.is_ok(), Ordering::Release);
        }
        if let Err(error) = refreshed {
            tracing::warn!(%fileset, %error, "opened with the settings that were known");
        }
        self.know(fileset)?;
        self.open_here(fileset, epoch)
    }

    /// Opens the root fileset while the namespace is at work: its store says anew which filesets and disks there are.
    fn open_root(&self, epoch: Option<Epoch>) -> Result<()> {
        let root = self.open_partition(FilesetId::ROOT, epoch)?;
        self.adopt_disks(&root.identity().disks)?;
        self.take_up_tasks(&root)?;
        self.everybody_is_to_hear();
        let (catalogue, unfinished) = Catalogue::read(root.store())?;
        self.catalogue.take_over(catalogue);
        self.act_on_settings();
        super::filesets::finish(&*self.stores, &root, &self.shared, &self.catalogue, unfinished)
    }

    /// Whether the cluster still says that this node owns a fileset, in that epoch.
    pub(super) fn may_open(&self, fileset: FilesetId, epoch: Option<Epoch>) -> bool {
        let in_it = |membership: &Membership| matches!(membership.whose(fileset), Whose::Here(now) if now == epoch);
        self.cluster.as_ref().is_none_or(in_it)
    }

    /// A partition was opened: the programs of this node go on with what they had open at its owner before.
    pub(super) fn take_up(&self, partition: &Arc<Partition>) {
        let Some(membership) = &self.cluster else { return };
        let open_files = membership.open_files(partition.number());
        let _settled = open_files.settled();
        let (crash, files) = open_files.all();
        let is_unbroken = crash == partition.latest_crash();
        let taken = files.iter().all(|(ino, handles)| {
            is_unbroken && self.adopt_handles(partition, *ino, *handles).is_ok()
        });
        open_files.hear_of_crash(partition.latest_crash());
        if taken {
            open_files.hand_on();
        } else {
            open_files.lose();
        }
        if partition.is_unswept() {
            let partition = Arc::clone(partition);
            let sweep = move || {
                if let Err(error) = partition.sweep() {
                    tracing::warn!(fileset = %partition.number(), %error, "not swept after a takeover");
                }
            };
            if let Err(error) = std::thread::Builder::new().name("sweep".to_owned()).spawn(sweep) {
                tracing::warn!(%error, "not swept after a takeover");
            }
        }
    }

    fn adopt_handles(&self, partition: &Partition, ino: Ino, handles: Handles) -> Result<()> {
        let near = self.cluster.as_ref().and_then(|membership| membership.near.take(ino));
        partition.adopt_handles(ino, handles, near)
    }

    /// The owner of a fileset did not know it as its own, or there is none: looks who it is now, for a while.
    #[cold]
    pub(super) fn look_for_owner(&self, fileset: FilesetId, patience: &mut Patience) -> Result<()> {
        let Some(membership) = &self.cluster else { return Err(FsError::Stale) };
        let now = self.shared.clock.instant();
        let deadline = *patience.0.get_or_insert_with(|| now + self.settings().owner_wait);
        if now >= deadline {
            return Err(self.nobody_answers(fileset));
        }
        let _waits = in_flight::waits_for(|| WaitsFor::Owner(fileset));
        let seen = *membership.changes.lock();
        let current = self.shared.owners.find(fileset).map(|route| Owner::clone(&route));
        if let Some(Owner::Remote(remote)) = current {
            // Also if it is the same node, which may have become the owner anew: what is open there is opened again.
            self.leave_remote(fileset, &remote);
            if !self.is_at(membership, fileset, &remote) {
                return Ok(());
            }
        }
        membership.wait(seen);
        Ok(())
    }

    /// Whether the node of `remote` owns a fileset, as far as is known now.
    fn is_at(&self, membership: &Membership, fileset: FilesetId, remote: &RemoteOwner) -> bool {
        matches!(self.whose(membership, fileset), Whose::There(node, _) if node == remote.node())
    }

    /// Why a fileset has no owner that answers.
    fn nobody_answers(&self, fileset: FilesetId) -> FsError {
        match self.catalogue.get(fileset).filter(|known| known.seat().is_some()) {
            Some(native) => FsError::Io(format!(
                "the node of the native fileset {} does not answer (owner_wait has passed): see forebay cluster status",
                native.settings().name
            )),
            None => nobody_owns(fileset),
        }
    }

    /// Whether another node than this one owns a fileset by now, or none: then no more requests are sent to it.
    pub(super) fn has_moved(&self, fileset: FilesetId, remote: &Arc<RemoteOwner>) -> bool {
        let Some(membership) = &self.cluster else { return false };
        let has_moved = !self.is_at(membership, fileset, remote);
        if has_moved {
            self.leave_remote(fileset, remote);
        }
        has_moved
    }

    /// Sends no more requests of a fileset to that node.
    pub(super) fn leave_remote(&self, fileset: FilesetId, remote: &Arc<RemoteOwner>) {
        let known = self.catalogue.get(fileset);
        let _one_at_a_time = known.as_ref().map(|known| known.opening.lock());
        let is_it = matches!(
            self.shared.owners.find(fileset).as_deref(),
            Some(Owner::Remote(current)) if Arc::ptr_eq(current, remote)
        );
        if is_it {
            self.shared.owners.set(fileset, None);
            remote.lose_grants();
        }
    }

    // --- for the service that answers other nodes ---

    /// The owner of an inode, through its gate, if that is this node. Who asks waits for no other owner here: it looks
    /// for that itself.
    pub(crate) fn own(&self, ino: Ino) -> Result<Route> {
        let fileset = ino.fileset();
        loop {
            let Some(route) = self.shared.owners.find(fileset) else {
                self.open_if_own(fileset)?;
                continue;
            };
            let waits = match &*route {
                Owner::Local(partition) if !partition.gate().is_open() => Arc::clone(partition),
                Owner::Local(_) | Owner::Native(_) => return Ok(route),
                Owner::Remote(_) => return Err(FsError::Moved),
            };
            drop(route);
            waits.gate().enter()?;
        }
    }

    fn open_if_own(&self, fileset: FilesetId) -> Result<()> {
        let Some(membership) = &self.cluster else { return self.open_here(fileset, None) };
        let seen = *membership.changes.lock();
        match self.whose(membership, fileset) {
            Whose::Here(epoch) => match self.open_own(fileset, epoch) {
                Err(FsError::Fenced) => Err(FsError::Moved),
                opened => opened,
            },
            Whose::There(..) | Whose::Nobody if membership.is_coming(fileset) => {
                membership.wait(seen);
                Ok(())
            }
            Whose::There(..) | Whose::Nobody => Err(FsError::Moved),
            Whose::Lost(why) => Err(FsError::Io(why)),
        }
    }

    /// The owner of an inode of this node, for what ends.
    pub(crate) fn owner_without_gate(&self, ino: Ino) -> Option<Route> {
        let route = self.shared.owners.find(ino.fileset())?;
        (!matches!(&*route, Owner::Remote(_))).then_some(route)
    }

    /// What each other node holds here: inodes that its kernel knows, and open files.
    #[must_use]
    pub fn client_usage(&self) -> Vec<(ClientId, usize, usize)> {
        self.shared.clients.usage()
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.shared.clients
    }

    /// The latest crash that the store of a fileset of this node knows of.
    pub(crate) fn crash_of(&self, fileset: FilesetId) -> Epoch {
        match self.shared.owners.find(fileset).as_deref() {
            Some(Owner::Local(partition)) => partition.latest_crash(),
            // What other nodes know of another life of this node is stale.
            Some(Owner::Native(_)) => self.life(),
            Some(Owner::Remote(_)) | None => Epoch(0),
        }
    }

    /// This life of the node, in which it serves its native filesets to others.
    pub(crate) fn life(&self) -> Epoch {
        Epoch(self.cluster.as_ref().map_or(0, |membership| membership.cluster().life()))
    }

    /// The epoch in which this node owns a fileset; of a native one this life of the node.
    ///
    /// # Errors
    /// [`FsError::Moved`] if it does not.
    pub(crate) fn own_epoch(&self, fileset: FilesetId) -> Result<Epoch> {
        match &*self.own(Ino::top_of(fileset))? {
            Owner::Local(partition) => Ok(partition.epoch()),
            Owner::Native(_) => Ok(self.life()),
            Owner::Remote(_) => Err(FsError::Moved),
        }
    }

    /// Whether nothing of a fileset was lost since a time at which `crash` was its latest crash.
    ///
    /// # Errors
    /// [`FsError::Stale`]; [`FsError::Moved`] if it is not this node's.
    pub(crate) fn check_unbroken(&self, fileset: FilesetId, crash: Epoch) -> Result<()> {
        drop(self.own(Ino::top_of(fileset))?);
        if self.crash_of(fileset) == crash { Ok(()) } else { Err(FsError::Stale) }
    }

    /// What a fileset holds that has no owner here yet. Nobody opens a store for that: its owner may have it open.
    pub(super) fn usage_in_cluster(&self, fileset: &Fileset) -> Result<Usage> {
        let Some(membership) = &self.cluster else { return Ok(Usage::default()) };
        match membership.whose(fileset.id) {
            Whose::There(node, channel) => {
                match membership.remote_owner(fileset.id, node, channel, &self.shared.clock) {
                    Owner::Remote(remote) => remote.usage(),
                    Owner::Local(_) | Owner::Native(_) => Ok(Usage::default()),
                }
            }
            Whose::Here(_) | Whose::Nobody | Whose::Lost(_) => fileset.usage_when_closed(|| {
                let store = self.stores.look(fileset.id)?;
                let usage = store.get(crate::key::USAGE)?;
                usage.map_or(Ok(Usage::default()), |usage| decode("usage", &usage))
            }),
        }
    }

    pub(crate) fn own_usage(&self, fileset: FilesetId) -> Result<Usage> {
        match &*self.own(Ino::top_of(fileset))? {
            Owner::Local(partition) => Ok(partition.usage()),
            Owner::Native(_) | Owner::Remote(_) => Ok(Usage::default()),
        }
    }

    /// Tells the kernel of this node what it must forget, and waits until it has.
    pub(crate) fn tell_own_kernel(&self, stale: &[Stale]) {
        let Some(kernel) = self.kernel() else { return };
        for one in stale {
            match one {
                Stale::Attributes(ino) => kernel.forget_attributes(*ino),
                Stale::Entry(parent, name) => kernel.forget_entry(*parent, name),
                Stale::Listing(ino) => kernel.forget_listing(*ino),
                // In a cluster the kernel keeps no pages of files that are served.
                Stale::Pages(..) => {}
            }
        }
    }

    /// As [`Namespace::tell_own_kernel`], of names whose directories are held by the request that this thread carries out: a
    /// thread of its own waits until that has ended.
    pub(super) fn tell_own_kernel_of_names(&self, names: &[(Ino, &[u8])]) {
        let Some(kernel) = self.kernel.get() else { return };
        let cache = Arc::clone(&kernel.cache);
        let names: Vec<(Ino, Vec<u8>)> =
            names.iter().map(|(parent, name)| (*parent, name.to_vec())).collect();
        let tell =
            move || names.iter().for_each(|(parent, name)| cache.forget_entry(*parent, name));
        if let Err(error) = std::thread::Builder::new().name("names".to_owned()).spawn(tell) {
            tracing::warn!(%error, "the kernel could not be notified of names that were renamed");
        }
    }

    /// Another node is about to change these names: the kernel of this one is told afterwards.
    pub(crate) fn note_untold(&self, names: &[(Ino, &[u8])]) -> Option<Telling<'_>> {
        let has_kernel = !names.is_empty() && self.kernel.get().is_some();
        has_kernel.then(|| self.shared.untold.note(names))
    }
}

fn nobody_owns(fileset: FilesetId) -> FsError {
    FsError::Io(format!(
        "no node owns fileset {fileset} (owner_wait has passed): see forebay cluster status"
    ))
}

//! A daemon that is a node of a cluster: joins what the node knows (owners, disks, other nodes) with the namespace.
//!
//! The node starts first, and calls come in before the namespace is open: they wait. At the end it is the other way round: the
//! node hands over its filesets and leaves before the namespace is closed.

pub mod names;
pub mod offline;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::result::Result;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context as _;
use forebay_advisor::cluster::hosts;
use forebay_base::channel::{CallError, Channel, Message, Service, ServiceId};
use forebay_base::time::SystemClock;
use forebay_base::{ClientId, DiskId, Epoch, FilesetId, Ino, NodeId};
use forebay_cluster::Moment;
use forebay_disk::remote::{DiskService, HANDLES_MAX, Life, Machine, RemoteDisk};
use forebay_disk::{Capacity, Disk};
use forebay_etcd::Runtime;
use forebay_fs::fsck::NamedDisk;
use forebay_fs::mkfs::Identity;
use forebay_fs::record::{DiskRecord, DiskUse, Placement};
use forebay_fs::remote::{CacheService, FilesService};
use forebay_fs::{Cluster, HandOver, Namespace, NewDisk, Parts, Whose};
use forebay_fuse::Session;
use forebay_node::members::record::NamesPlace;
use forebay_node::members::roster::{DiskHome, Runs};
use forebay_node::members::visit::{
    ClientHolds, DiskSpace, FilesReport, UNREACHABLE_MAX, UnreachableFile, UnreachableFiles,
    WAIT_MIN, WAITS_MAX,
};
use forebay_node::members::{Book, InUse, Ownership};
use forebay_node::metrics::Caching;
use forebay_node::session::SessionStatus;
use forebay_node::{Member, MemberStart, NodeHome};
use forebay_process::machine::boot_id;
use forebay_store::Stores as _;
use forebay_store::slate::SlateStores;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::commands::cluster::{daemon, etcd};
use crate::control::SessionCounters;
use crate::home::{Home, Lock, OpenMember, own_disk, placement_on, shared_disk, unlabel};
use crate::member::names::Cache;
use crate::waits;

/// How long a call of another node waits for the namespace to be open.
const OPENING_WAIT: Duration = Duration::from_secs(30);

/// How long a node that leaves hands over; then the others wait for its lease.
const LEAVING_MAX: Duration = Duration::from_secs(30);

/// Threads for the calls to etcd and object stores.
const RUNTIME_THREADS: usize = 2;

/// The placement of filesets for scratch data: `wanted`, or native if one of the disks is local.
fn scratch_on(disks: &[PathBuf], wanted: Option<Placement>) -> anyhow::Result<Placement> {
    let user = rustix::process::geteuid().as_raw();
    let on = |disk: &PathBuf| placement_on(disk, wanted, user);
    let native = disks.iter().map(on).find(|found| matches!(found, Ok(Placement::Native)));
    native.or_else(|| disks.first().map(on)).unwrap_or(Ok(Placement::Direct))
}

/// A member at work.
pub struct Joined {
    member: Arc<Member>,
    /// The node, whose daemon without a mount comes afterwards.
    node: NodeHome,
    /// Ends after the member.
    runtime: Runtime,
    joint: Arc<Joint>,
}

impl Joined {
    /// The node.
    pub fn member(&self) -> Weak<Member> {
        Arc::downgrade(&self.member)
    }

    /// The session that serves the file system here: it knows the jobs of processes that wait.
    pub fn set_session(&self, session: &Arc<Session>) {
        let _ = self.joint.session.set(Arc::downgrade(session));
    }

    /// Hands over what the node owns, and leaves the others.
    pub fn leave(&self) {
        self.member.stop(LEAVING_MAX);
    }

    /// The node continues without a mount: it serves its disks.
    ///
    /// # Errors
    /// If its daemon does not start.
    pub fn end(self) -> anyhow::Result<()> {
        let Joined { member, node, runtime, joint } = self;
        drop((member, runtime, joint));
        start_without_mount(&node)
    }
}

fn start_without_mount(node: &NodeHome) -> anyhow::Result<()> {
    let started = daemon::start(node, &node.existing()?);
    started.context("the daemon of the node without a mount did not start").map(drop)
}

/// What this node caches of others, and they of it.
pub fn caching(fs: &Namespace) -> BTreeMap<NodeId, Caching> {
    let mut nodes = BTreeMap::<NodeId, Caching>::new();
    for (node, _, answers) in fs.remote_traffic() {
        nodes.entry(node).or_default().answers = answers;
    }
    for (client, figures) in fs.grant_figures() {
        let one = nodes.entry(client.node).or_default();
        one.grants += figures.grants;
        one.directories += figures.directories;
        one.recalls += figures.recalls;
        one.evictions += figures.evictions;
    }
    nodes
}

/// The sessions of a node, with what the other nodes hold here.
pub fn session_counters(member: &Member, fs: &Namespace) -> Vec<SessionCounters> {
    let (nodes, held, caching) = (member.sight().nodes, fs.client_usage(), caching(fs));
    let counters = |session: SessionStatus| {
        let SessionStatus { node, is_guest, figures } = session;
        let cached = caching.get(&node).copied().unwrap_or_default();
        let of_client = |count: u64| if is_guest { count } else { 0 };
        let holds = held.iter().filter(|(client, ..)| is_guest && client.node == node);
        SessionCounters {
            node,
            name: nodes.get(&node).map_or_else(|| node.to_string(), |record| record.name.clone()),
            is_client: is_guest,
            calls: figures.calls,
            served: figures.served,
            waiting_calls: figures.waiting_calls,
            served_now: figures.served_now,
            round_trip_us: figures.round_trip_us,
            inodes: holds.clone().map(|(_, inodes, _)| inodes).sum(),
            open_files: holds.map(|(.., open)| open).sum(),
            cached: if is_guest { 0 } else { cached.answers },
            grants: of_client(cached.grants),
            directories: of_client(cached.directories),
            recalls: of_client(cached.recalls),
            evictions: of_client(cached.evictions),
        }
    };
    member.sessions().into_iter().map(counters).collect()
}

/// What other nodes hold of the filesets of this one.
fn clients_of(fs: &Namespace) -> Vec<ClientHolds> {
    let mut open: HashMap<NodeId, u64> = HashMap::new();
    for (client, _, files) in fs.client_usage() {
        *open.entry(client.node).or_default() += files as u64;
    }
    let caching = caching(fs);
    let nodes: BTreeSet<NodeId> = open.keys().chain(caching.keys()).copied().collect();
    let of = |node: NodeId| {
        let cached = caching.get(&node).copied().unwrap_or_default();
        ClientHolds {
            node,
            grants: cached.grants,
            directories: cached.directories,
            recalls: cached.recalls,
            evictions: cached.evictions,
            open_files: open.get(&node).copied().unwrap_or(0),
        }
    };
    nodes.into_iter().map(of).collect()
}

/// What the node and the namespace know of each other.
#[derive(Default)]
struct Joint {
    member: OnceLock<Weak<Member>>,
    namespace: OnceLock<Weak<Namespace>>,
    session: OnceLock<Weak<Session>>,
    /// The filesets that this node is to have open, in which epoch.
    here: Mutex<HashMap<FilesetId, Epoch>>,
    /// New filesets that the others were told of.
    announced: Mutex<HashSet<FilesetId>>,
    /// Where the other nodes reach the disks of this one.
    disks: OnceLock<Arc<DiskService>>,
    /// Where the names of files lie.
    stores: OnceLock<Weak<SlateStores>>,
}

impl Joint {
    fn namespace(&self) -> Option<Arc<Namespace>> {
        self.namespace.get()?.upgrade()
    }

    fn member(&self) -> Option<Arc<Member>> {
        self.member.get()?.upgrade()
    }

    /// A fileset that nobody owns may be new: then the others have not heard of it. Waits for nothing.
    fn announce(self: &Arc<Joint>, fileset: FilesetId, member: &Arc<Member>) {
        let is_known = |fs: Arc<Namespace>| fs.filesets().iter().any(|(id, _)| *id == fileset);
        if !self.namespace().is_some_and(is_known) || !self.announced.lock().insert(fileset) {
            return;
        }
        let (joint, book) = (Arc::clone(self), member.book().clone());
        let announce = move || {
            if let Err(error) = book.add_fileset(fileset) {
                tracing::warn!(%fileset, %error, "a new fileset has no owner yet; the next request tries again");
                joint.announced.lock().remove(&fileset);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("announce".to_owned()).spawn(announce)
        {
            tracing::warn!(%fileset, %error, "a new fileset has no owner yet");
            self.announced.lock().remove(&fileset);
        }
    }

    /// Requests of a fileset look for its owner again.
    fn changed(&self, fileset: FilesetId) -> Result<(), String> {
        let Some(fs) = self.namespace() else { return Ok(()) };
        fs.owner_changed(fileset).map_err(|error| error.to_string())
    }

    /// This node owns a fileset no more.
    fn leave(&self, fileset: FilesetId) {
        self.here.lock().remove(&fileset);
        if let Err(error) = self.changed(fileset) {
            tracing::warn!(%fileset, error, "a fileset changed its owner");
        }
    }
}

/// What the namespace asks of the node.
struct Way(Arc<Joint>);

impl Cluster for Way {
    fn owner_of(&self, fileset: FilesetId) -> Whose {
        if let Some(epoch) = self.0.here.lock().get(&fileset) {
            return Whose::Here(Some(*epoch));
        }
        let Some(member) = self.0.member() else { return Whose::Nobody };
        match member.owner(fileset).and_then(|record| record.owner) {
            // It is about to be opened here, or to be handed over; or a former life of this daemon had it, which is taken over.
            Some(owner) if owner.node == member.me().node => Whose::Nobody,
            Some(owner) => Whose::There(owner.node, member.channel(owner.node, ServiceId::Files)),
            None => {
                self.0.announce(fileset, &member);
                Whose::Nobody
            }
        }
    }

    fn disk(&self, record: &DiskRecord) -> Option<Arc<dyn Disk>> {
        let member = self.0.member()?;
        if let Some(directory) = record.shared_directory() {
            let file = member.file();
            let cluster = file.cluster.to_string();
            return Some(shared_disk(&cluster, &record.uuid, directory, &file.name));
        }
        let sight = member.sight();
        let place = sight.disks.get(&record.uuid)?;
        let name = sight.nodes.get(&place.node).map_or("removed", |node| node.name.as_str());
        let location = format!("node {} ({name}), {}", place.node, place.location);
        let channel = member.channel(place.node, ServiceId::Disks);
        Some(Arc::new(RemoteDisk::new(channel, &record.uuid, &location)))
    }

    fn disks_of(&self, node: NodeId) -> Vec<String> {
        self.0.member().map_or_else(Vec::new, |member| member.disks_of(node))
    }

    fn cache_of(&self, node: NodeId) -> Option<Arc<dyn Channel>> {
        let member = self.0.member()?;
        Some(member.channel(node, ServiceId::Cache))
    }

    fn home_of(&self, disk: &str) -> Whose {
        let Some(member) = self.0.member() else { return Whose::Nobody };
        let Some(DiskHome { node, name, runs }) = member.home_of(disk) else {
            return Whose::Lost(format!("no node has disk {disk} any more"));
        };
        if node == member.me().node {
            return Whose::Here(None);
        }
        match runs {
            Runs::Mounted => Whose::There(node, member.channel(node, ServiceId::Files)),
            Runs::No => Whose::Lost(format!(
                "node {node} ({name}) does not run: start it, and mount the file system there"
            )),
            Runs::WithoutMount => Whose::Lost(format!(
                "node {node} ({name}) has not mounted the file system: mount it there"
            )),
        }
    }

    fn has_disk(&self, disk: &str) -> bool {
        self.0.member().is_some_and(|member| member.home_of(disk).is_some())
    }

    fn node_of(&self, disk: &str) -> Option<(NodeId, String)> {
        let home = self.0.member()?.home_of(disk)?;
        Some((home.node, home.name))
    }

    fn bring_disk(&self, new: &NewDisk, disk: &Arc<dyn Disk>) -> Result<(), String> {
        let (Some(member), Some(disks)) = (self.0.member(), self.0.disks.get()) else {
            return Err("this node is just being stopped".to_owned());
        };
        let added = member.book().add_disk(member.me().node, &new.uuid, &new.location);
        added.map_err(|error| error.to_string())?;
        disks.offer(&new.uuid, Arc::clone(disk));
        Ok(())
    }

    fn forget_disk(&self, record: &DiskRecord) -> Result<(), String> {
        let Some(member) = self.0.member() else { return Ok(()) };
        member.book().remove_disk(&record.uuid).map_err(|error| error.to_string())
    }

    fn let_disk_go(&self, record: &DiskRecord) {
        let (Some(member), Some(disks)) = (self.0.member(), self.0.disks.get()) else { return };
        disks.withdraw(&record.uuid);
        if record.used == DiskUse::Removed {
            unlabel(&member.file().cluster.to_string(), record);
        }
    }

    fn life(&self) -> u64 {
        self.0.member().map_or(0, |member| member.me().incarnation)
    }

    fn node_name(&self) -> String {
        self.0.member().map_or_else(String::new, |member| member.file().name.clone())
    }

    fn members(&self) -> Vec<(NodeId, Arc<dyn Channel>)> {
        let Some(member) = self.0.member() else { return Vec::new() };
        let others = member.mounted().into_iter().filter(|node| *node != member.me().node);
        others.map(|node| (node, member.channel(node, ServiceId::Files))).collect()
    }
}

impl Ownership for Joint {
    fn answer(&self, until: Moment) {
        if let Some(fs) = self.namespace() {
            fs.answer_until(Some(until.0));
        }
    }

    fn wait(&self) {
        if let Some(fs) = self.namespace() {
            fs.pause();
        }
    }

    fn open(&self, fileset: FilesetId, epoch: Epoch, lapse: Duration) -> Result<(), String> {
        // Until then other nodes may use what a former life of this daemon granted, and has not committed.
        std::thread::sleep(lapse);
        self.here.lock().insert(fileset, epoch);
        self.changed(fileset).inspect_err(|_| {
            self.here.lock().remove(&fileset);
        })
    }

    fn settle(
        &self,
        fileset: FilesetId,
        _epoch: Epoch,
        to: Option<ClientId>,
        in_use: InUse,
    ) -> Result<(), String> {
        let Some(fs) = self.namespace() else { return Ok(()) };
        let how = match in_use {
            InUse::Stays => HandOver::Refuse,
            InUse::Abandoned => HandOver::Abandon,
        };
        let next = to.map(|to| to.node);
        fs.hand_over_to(fileset, how, next).map_err(|error| error.to_string())
    }

    fn passed(&self, fileset: FilesetId, _to: Option<ClientId>) {
        self.leave(fileset);
    }

    fn fence(&self, fileset: FilesetId, _epoch: Epoch) {
        self.here.lock().remove(&fileset);
        if let Some(fs) = self.namespace() {
            fs.shut(fileset);
        }
    }

    fn release(&self, fileset: FilesetId, _epoch: Epoch) {
        self.leave(fileset);
    }

    fn ended(&self, reason: &str) {
        tracing::error!(reason, "this node is not a member of the cluster any more: unmount");
        let own: Vec<FilesetId> = self.here.lock().drain().map(|(fileset, _)| fileset).collect();
        // All at once, before any is let go of: that may take a moment each.
        if let Some(fs) = self.namespace() {
            own.iter().for_each(|fileset| fs.shut(*fileset));
        }
        for fileset in own {
            self.leave(fileset);
        }
    }

    fn report(&self) -> Option<FilesReport> {
        let fs = self.namespace()?;
        let disks = fs.near_disks().iter().map(space_of).collect();
        let session = self.session.get().and_then(Weak::upgrade);
        let job = |process: u32| session.as_ref()?.askers().job_at_once(process);
        let waits = waits::of_this_node(&fs, &job, WAIT_MIN, WAITS_MAX);
        let etcd = self.stores.get().and_then(Weak::upgrade).and_then(|stores| stores.etcd());
        let shortage = etcd.and_then(|etcd| etcd.shortage);
        let (filesets, clients) = (fs.fileset_names(), clients_of(&fs));
        Some(FilesReport { filesets, disks, waits, shortage, clients })
    }

    fn unreachable(&self) -> Result<UnreachableFiles, String> {
        let Some(fs) = self.namespace() else { return Ok(UnreachableFiles::default()) };
        let found = fs.unreachable_files(UNREACHABLE_MAX);
        let (files, total) = found.map_err(|error| error.to_string())?;
        let files = files.into_iter().map(|file| {
            let forebay_fs::UnreachableFile { ino, path, why, is_lost } = file;
            UnreachableFile { ino, path, why, is_lost }
        });
        Ok(UnreachableFiles { files: files.collect(), total })
    }

    fn paths(&self, inos: &[Ino]) -> Vec<(Ino, String)> {
        self.namespace().map_or_else(Vec::new, |fs| fs.paths_of(inos).into_iter().collect())
    }

    fn commit(&self) -> Result<(), String> {
        self.namespace().map_or(Ok(()), |fs| fs.sync_all()).map_err(|error| error.to_string())
    }

    fn examine_host(&self) -> Result<String, String> {
        let member = self.member().ok_or("this node is just being stopped")?;
        hosts::report(own_places(&member).into_iter().map(|(_, location)| location.into()))
    }
}

/// A service that comes later: its callers wait for it.
#[derive(Default)]
struct Late {
    service: Mutex<Option<Arc<dyn Service>>>,
    arrived: Condvar,
}

impl Late {
    fn set(&self, service: Arc<dyn Service>) {
        *self.service.lock() = Some(service);
        self.arrived.notify_all();
    }

    fn get(&self) -> Option<Arc<dyn Service>> {
        let mut service = self.service.lock();
        if service.is_none() {
            self.arrived.wait_while_for(&mut service, |service| service.is_none(), OPENING_WAIT);
        }
        service.clone()
    }
}

impl Service for Late {
    fn serve(&self, from: ClientId, request: Message) -> Result<Message, CallError> {
        match self.get() {
            Some(service) => service.serve(from, request),
            None => {
                Err(CallError::Refused("the file system is not open on this node yet".to_owned()))
            }
        }
    }

    fn welcome(&self, client: ClientId) {
        let service = self.service.lock().clone();
        if let Some(service) = service {
            service.welcome(client);
        }
    }

    fn drop_client(&self, client: ClientId) {
        let service = self.service.lock().clone();
        if let Some(service) = service {
            service.drop_client(client);
        }
    }
}

/// The life of this machine, as disks of it tell other nodes.
pub fn machine() -> anyhow::Result<Machine> {
    let text = boot_id()?;
    let id: Uuid = text.trim().parse().context("the boot id of this machine is not a UUID")?;
    Ok(Machine(id.as_u128()))
}

/// A life of the service for the disks of this node, as no other one has it.
pub fn life() -> anyhow::Result<Life> {
    Ok(Life(u64::from_le_bytes(crate::home::random()?)))
}

/// Makes the file system of a new cluster on the disks of its first node. What an attempt left that was interrupted is made
/// anew; one that is there stays. `scratch` is the placement of its filesets for scratch data: native if
/// nothing is said and a disk is local.
///
/// # Errors
/// If etcd does not answer, no disk can hold native filesets that are wanted, or the cluster's names lie elsewhere than `chosen`.
pub fn make_file_system(
    node: &NodeHome,
    scratch: Option<Placement>,
    chosen: Option<&NamesPlace>,
) -> anyhow::Result<()> {
    let file = node.existing()?;
    let home = Home::of_member(node)?;
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for the stores")?;
    let book = Book::open(&runtime, &file.etcd, &file.cluster_name)?;
    let names = names::place(&book)?;
    let (is, chosen) = (names::shown(names.as_ref()), names::shown(chosen));
    if is != chosen {
        let cluster = &file.cluster_name;
        anyhow::bail!(
            "the names of cluster {cluster} lie in {is}, which cannot be changed to {chosen}"
        );
    }
    let stores = names::open_new(names.as_ref(), &file, &home, &book, &runtime, Cache::Kept)?;
    let there = stores.list()?;
    if !there.contains(&FilesetId::ROOT) {
        for left in there {
            stores.remove(left)?;
        }
        let (sight, _) = book.read()?;
        let places =
            sight.disks.values().map(|disk| PathBuf::from(&disk.location)).collect::<Vec<_>>();
        let scratch = scratch_on(&places, scratch)?;
        let disks = (0..)
            .zip(sight.disks)
            .map(|(number, (uuid, disk))| DiskRecord::new(DiskId(number), &uuid, &disk.location));
        let identity = Identity {
            uuid: file.cluster.to_string(),
            hash_key: crate::home::random()?,
            disks: disks.collect(),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            scratch,
        };
        forebay_fs::mkfs::make_for_cluster(&*stores, &identity, &SystemClock)?;
    }
    for fileset in stores.list()? {
        book.add_fileset(fileset)?;
    }
    Ok(())
}

/// Starts the node and opens the namespace as a member of its cluster.
///
/// # Errors
/// If etcd or the root's owner cannot be reached, or the node is not a member any more.
pub fn join(open: OpenMember, home: &Home) -> anyhow::Result<(Arc<Namespace>, Lock, Joined)> {
    etcd::ensure(&open.node, &open.node.existing()?)?;
    // One process is the node: the daemon without a mount makes room for this one.
    let replaced = daemon::stop(&open.node)?;
    let node = open.node.clone();
    let joined = join_alone(open, home);
    if let (Err(_), true) = (&joined, replaced)
        && let Err(error) = start_without_mount(&node)
    {
        tracing::error!(error = %crate::output::chain(&error), "the node does not run");
    }
    joined
}

/// As [`join`], with no other process that is the node.
fn join_alone(open: OpenMember, home: &Home) -> anyhow::Result<(Arc<Namespace>, Lock, Joined)> {
    let joint = Arc::<Joint>::default();
    let (files, cache) = (Arc::new(Late::default()), Arc::new(Late::default()));
    let disks = Arc::new(DiskService::new(machine()?, life()?, HANDLES_MAX));
    let member = Arc::new(Member::start(MemberStart {
        home: open.node.clone(),
        services: vec![
            (ServiceId::Files, Arc::clone(&files) as _),
            (ServiceId::Cache, Arc::clone(&cache) as _),
            (ServiceId::Disks, Arc::clone(&disks) as _),
        ],
        ownership: Arc::clone(&joint) as _,
        weight: Some(1),
        settings: forebay_node::Settings::default(),
        protocol: forebay_node::protocol_settings(),
        clock: Arc::new(SystemClock),
    })?);
    let _ = joint.member.set(Arc::downgrade(&member));
    let _ = joint.disks.set(Arc::clone(&disks));
    let others = Arc::downgrade(&joint);
    disks.reach_others(move |uuid| {
        Way(others.upgrade()?).disk(&DiskRecord::new(DiskId(0), uuid, ""))
    });
    let own = own_disks(&member);
    for (uuid, disk) in &own {
        disks.offer(uuid, Arc::clone(disk));
    }
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for the stores")?;
    let joined = Joined { member, node: open.node.clone(), runtime, joint: Arc::clone(&joint) };
    let opened = open_namespace(open, own, home, &joined, &joint);
    let (fs, lock) = opened.inspect_err(|_| joined.leave())?;
    let _ = joint.namespace.set(Arc::downgrade(&fs));
    let until = joined.member.answers_until();
    fs.answer_until(Some(until.map_or(Duration::ZERO, |until| until.0)));
    // What was said of owners before the namespace was there.
    let here: Vec<FilesetId> = joint.here.lock().keys().copied().collect();
    for fileset in here {
        if let Err(error) = joint.changed(fileset) {
            tracing::warn!(%fileset, error, "a fileset of this node is not open yet");
        }
    }
    cache.set(Arc::new(CacheService::new(Arc::clone(&fs))));
    files.set(Arc::new(FilesService::new(Arc::clone(&fs))));
    if let Err(error) = fs.make_node_directories() {
        tracing::warn!(%error, "this node has no directory in a native fileset");
    }
    Ok((fs, lock, joined))
}

/// The disks that this machine brings.
fn own_disks(member: &Member) -> Vec<NamedDisk> {
    let file_system = member.file().cluster.to_string();
    let own = own_places(member).into_iter();
    own.map(|(uuid, location)| {
        let found = own_disk(&file_system, &uuid, &location);
        (uuid, found)
    })
    .collect()
}

/// The disks that this machine brings, by their identities, with the directory of each.
pub fn own_places(member: &Member) -> Vec<(String, String)> {
    let disks = member.sight().disks.into_iter();
    let own = disks.filter(|(_, disk)| disk.node == member.me().node);
    own.map(|(uuid, disk)| (uuid, disk.location)).collect()
}

/// What this node reports of a disk of its own.
pub fn space_of((uuid, disk): &NamedDisk) -> DiskSpace {
    let found = disk.capacity();
    let problem = found.as_ref().err().map(ToString::to_string);
    let Capacity { total_bytes, available_bytes, .. } = found.unwrap_or_default();
    DiskSpace { uuid: uuid.clone(), total_bytes, available_bytes, problem }
}

fn open_namespace(
    open: OpenMember,
    disks: Vec<NamedDisk>,
    home: &Home,
    joined: &Joined,
    joint: &Arc<Joint>,
) -> anyhow::Result<(Arc<Namespace>, Lock)> {
    let member = &joined.member;
    let stores = names::open(member.file(), home, member.book(), &joined.runtime, Cache::Kept)?;
    let _ = joint.stores.set(Arc::downgrade(&stores));
    let parts = Parts {
        stores,
        disks,
        settings: open.settings.fs,
        clock: Arc::new(SystemClock),
        fail_points: crate::home::fail_points_of_environment()?,
        reserve: open.reserve,
    };
    let cluster: Arc<dyn Cluster> = Arc::new(Way(Arc::clone(joint)));
    let fs = Namespace::join(parts, &cluster)?;
    Ok((fs, open.lock))
}

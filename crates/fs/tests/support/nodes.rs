//! Several nodes in one process: who owns what stands in a table, channels are calls, disks are shared handles.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::channel::{CallError, Channel, Message, Service};
use forebay_base::time::{StepClock, SystemClock};
use forebay_base::{ClientId, Clock, DiskId, Epoch, FilesetId, NodeId, Timestamp};
use forebay_disk::Disk;
use forebay_disk::absent::AbsentDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::remote::{DiskService, HANDLES_MAX, Life, Machine, RemoteDisk};
use forebay_fs::mkfs::{self, Identity};
use forebay_fs::record::{DiskRecord, Placement};
use forebay_fs::remote::CacheService;
use forebay_fs::{Cluster, FilesService, Namespace, NewDisk, Parts, Whose};
use forebay_store::memory::MemoryStores;
use parking_lot::{Mutex, RwLock};

/// A disk and the node that has it.
type Kept = (NodeId, Arc<dyn Disk>);

/// What happens to calls on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// One call of so many gets no answer, as often carried out as not; 0: none.
    pub lost: u64,
    /// Calls are held up at random, up to so many microseconds.
    pub delay_us: u64,
}

/// Stores of an empty file system of several nodes. Its only disk so far is `disk-1`, at `location`.
pub fn new_stores(uuid: &str, location: &str, clock: &dyn Clock) -> Arc<MemoryStores> {
    let stores = Arc::new(MemoryStores::default());
    let identity = Identity {
        uuid: uuid.to_owned(),
        hash_key: [7; 16],
        disks: vec![DiskRecord::new(DiskId(0), "disk-1", location)],
        owner: (0, 0),
        scratch: Placement::Direct,
    };
    mkfs::make(&*stores, &identity, clock).unwrap();
    stores
}

/// All nodes of a cluster.
#[derive(Default)]
pub struct Nodes {
    owners: Mutex<HashMap<FilesetId, (NodeId, Epoch)>>,
    default_owner: Mutex<Option<NodeId>>,
    services: RwLock<HashMap<NodeId, Arc<FilesService>>>,
    caches: RwLock<HashMap<NodeId, Arc<CacheService>>>,
    /// Nodes that answer nobody.
    dead: Mutex<HashSet<NodeId>>,
    /// Nodes that the cluster says do not run.
    pub lost: Mutex<HashSet<NodeId>>,
    disks: RwLock<HashMap<String, Kept>>,
    /// Disks that a node finds where others find a shared one.
    pub instead_of_shared: Mutex<HashMap<NodeId, Arc<dyn Disk>>>,
    /// The disks of a node by way of it, as in a cluster; otherwise all nodes share the handles of disks, which outlive
    /// their nodes.
    disk_services: RwLock<HashMap<NodeId, Arc<DiskService>>>,
    far_disks: AtomicBool,
    pub weather: Mutex<Weather>,
    random: AtomicU64,
    /// Requests that were sent.
    pub calls: AtomicU64,
    /// Those of them that went to disks.
    pub disk_calls: AtomicU64,
    /// Bytes of files that were sent.
    pub payload: AtomicU64,
    /// Those of them that went to a node or came from it as it asked for them.
    pub payload_of: Mutex<HashMap<NodeId, u64>>,
    /// Recalls that were sent.
    pub recalls: AtomicU64,
    /// Requests of this node are told to have failed, and are carried out later.
    pub late: Mutex<Option<NodeId>>,
    /// This node has no place for a request left, but for those that others wait for.
    pub busy: Mutex<Option<NodeId>>,
    /// What happens once, while the first request of that node has been carried out and is not answered yet.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    delayed: Mutex<Vec<(Loop, Message)>>,
}

impl Nodes {
    /// A cluster in which `owner` owns every fileset that nobody else does.
    pub fn with_owner(owner: NodeId) -> Arc<Nodes> {
        let nodes = Nodes::default();
        *nodes.default_owner.lock() = Some(owner);
        nodes
            .random
            .store(forebay_base::seed::announce("cargo test -p forebay-fs") | 1, Ordering::Relaxed);
        Arc::new(nodes)
    }

    fn random(&self) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.store(state, Ordering::Relaxed);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// The cluster as a node sees it.
    pub fn seen_by(self: &Arc<Nodes>, node: NodeId) -> Arc<dyn Cluster> {
        Arc::new(View { nodes: Arc::clone(self), node, incarnation: 1 })
    }

    /// As [`Nodes::seen_by`], in another life of the node.
    pub fn seen_again_by(self: &Arc<Nodes>, node: NodeId, incarnation: u64) -> Arc<dyn Cluster> {
        Arc::new(View { nodes: Arc::clone(self), node, incarnation })
    }

    /// From now on a node reaches the disks of others by way of these.
    pub fn keep_disks_apart(&self) {
        self.far_disks.store(true, Ordering::Relaxed);
    }

    /// The others know of a disk of a node.
    pub fn bring(self: &Arc<Self>, node: NodeId, uuid: &str, disk: &Arc<dyn Disk>) {
        self.disks.write().insert(uuid.to_owned(), (node, Arc::clone(disk)));
        let mut services = self.disk_services.write();
        let service =
            services.entry(node).or_insert_with(|| Arc::new(disk_service(Machine(node.0.into()))));
        service.offer(uuid, Arc::clone(disk));
        let (nodes, from) = (Arc::downgrade(self), ClientId { node, incarnation: 1 });
        service.reach_others(move |uuid| {
            let nodes = nodes.upgrade()?;
            let (to, _) = nodes.disks.read().get(uuid).cloned()?;
            let way = Loop { nodes, from, to, disks: true };
            Some(Arc::new(RemoteDisk::new(Arc::new(way), uuid, "there")))
        });
    }

    /// The daemon of a node was started again: it knows nothing of what others have open on its disks.
    pub fn forget_open_objects(&self, node: NodeId, machine: u128) {
        let service = disk_service(Machine(machine));
        for (uuid, (of, disk)) in &*self.disks.read() {
            if *of == node {
                service.offer(uuid, Arc::clone(disk));
            }
        }
        self.disk_services.write().insert(node, Arc::new(service));
    }

    /// A node joins with its disks.
    pub fn join(self: &Arc<Nodes>, node: NodeId, parts: Parts) -> Arc<Namespace> {
        self.try_join(node, parts).unwrap()
    }

    pub fn try_join(
        self: &Arc<Nodes>,
        node: NodeId,
        parts: Parts,
    ) -> forebay_fs::Result<Arc<Namespace>> {
        for (uuid, disk) in &parts.disks {
            self.bring(node, uuid, disk);
        }
        let fs = Namespace::join(parts, &self.seen_by(node))?;
        self.serve(node, &fs);
        Ok(fs)
    }

    /// A node joins in another life.
    pub fn join_again(
        self: &Arc<Nodes>,
        node: NodeId,
        incarnation: u64,
        parts: Parts,
    ) -> Arc<Namespace> {
        self.dead.lock().remove(&node);
        let fs = Namespace::join(parts, &self.seen_again_by(node, incarnation)).unwrap();
        self.serve(node, &fs);
        fs
    }

    pub fn serve(&self, node: NodeId, fs: &Arc<Namespace>) {
        self.dead.lock().remove(&node);
        self.services.write().insert(node, Arc::new(FilesService::new(Arc::clone(fs))));
        self.caches.write().insert(node, Arc::new(CacheService::new(Arc::clone(fs))));
    }

    /// A node leaves: its namespace is let go.
    pub fn leave(&self, node: NodeId) {
        self.services.write().remove(&node);
        self.caches.write().remove(&node);
    }

    /// No node has a disk any more.
    pub fn take_disk_away(&self, uuid: &str) {
        self.disks.write().remove(uuid);
    }

    /// A node stops answering.
    pub fn kill(&self, node: NodeId) {
        self.dead.lock().insert(node);
    }

    /// A node answers again.
    pub fn thaw(&self, node: NodeId) {
        self.dead.lock().remove(&node);
    }

    /// All others drop what a node held.
    pub fn drop_client(&self, client: ClientId) {
        let services: Vec<_> = self.services.read().values().cloned().collect();
        services.iter().for_each(|service| service.drop_client(client));
        let services: Vec<_> = self.disk_services.read().values().cloned().collect();
        services.iter().for_each(|service| service.drop_client(client));
    }

    /// Carries out what was late.
    pub fn deliver(&self) {
        *self.late.lock() = None;
        let delayed = std::mem::take(&mut *self.delayed.lock());
        delayed.into_iter().for_each(|(way, request)| drop(way.serve(request)));
    }

    /// Names the owner of a fileset, in a new epoch.
    pub fn give(&self, fileset: FilesetId, node: NodeId, epoch: u64) {
        self.owners.lock().insert(fileset, (node, Epoch(epoch)));
    }
}

/// A service for disks in a life of its own.
fn disk_service(machine: Machine) -> DiskService {
    static LIVES: AtomicU64 = AtomicU64::new(0);
    let life = Life(LIVES.fetch_add(1, Ordering::Relaxed));
    DiskService::new(machine, life, HANDLES_MAX)
}

struct View {
    nodes: Arc<Nodes>,
    node: NodeId,
    incarnation: u64,
}

impl Cluster for View {
    fn owner_of(&self, fileset: FilesetId) -> Whose {
        let named = self.nodes.owners.lock().get(&fileset).copied();
        let default = *self.nodes.default_owner.lock();
        let owner = named.map(|(node, _)| node).or(default);
        match owner {
            Some(node) if node == self.node => Whose::Here(named.map(|(_, epoch)| epoch)),
            Some(node) => Whose::There(node, self.way_to(node)),
            None => Whose::Nobody,
        }
    }

    fn disk(&self, record: &DiskRecord) -> Option<Arc<dyn Disk>> {
        if let Some(directory) = record.shared_directory() {
            return Some(self.shared_disk(&record.uuid, directory));
        }
        let (node, disk) = self.nodes.disks.read().get(&record.uuid).cloned()?;
        if !self.nodes.far_disks.load(Ordering::Relaxed) {
            return Some(disk);
        }
        let from = ClientId { node: self.node, incarnation: self.incarnation };
        let way = Loop { nodes: Arc::clone(&self.nodes), from, to: node, disks: true };
        Some(Arc::new(RemoteDisk::new(Arc::new(way), &record.uuid, &record.location)))
    }

    fn disks_of(&self, node: NodeId) -> Vec<String> {
        let disks = self.nodes.disks.read();
        disks.iter().filter(|(_, (of, _))| *of == node).map(|(uuid, _)| uuid.clone()).collect()
    }

    fn cache_of(&self, node: NodeId) -> Option<Arc<dyn Channel>> {
        let from = ClientId { node: self.node, incarnation: self.incarnation };
        Some(Arc::new(Back { nodes: Arc::clone(&self.nodes), from, to: node }))
    }

    fn home_of(&self, disk: &str) -> Whose {
        let home = self.nodes.disks.read().get(disk).map(|(node, _)| *node);
        match home {
            Some(node) if node == self.node => Whose::Here(None),
            Some(node) if self.nodes.lost.lock().contains(&node) => {
                Whose::Lost(format!("node {node} does not run (test)"))
            }
            Some(node) => Whose::There(node, self.way_to(node)),
            None => Whose::Lost(format!("no node has disk {disk} (test)")),
        }
    }

    fn has_disk(&self, disk: &str) -> bool {
        self.nodes.disks.read().contains_key(disk)
    }

    fn node_of(&self, disk: &str) -> Option<(NodeId, String)> {
        let node = self.nodes.disks.read().get(disk).map(|(node, _)| *node)?;
        Some((node, format!("n{node}")))
    }

    fn bring_disk(&self, new: &NewDisk, disk: &Arc<dyn Disk>) -> Result<(), String> {
        self.nodes.bring(self.node, &new.uuid, disk);
        Ok(())
    }

    fn forget_disk(&self, record: &DiskRecord) -> Result<(), String> {
        self.nodes.take_disk_away(&record.uuid);
        Ok(())
    }

    fn life(&self) -> u64 {
        self.incarnation
    }

    fn node_name(&self) -> String {
        format!("n{}", self.node)
    }

    fn members(&self) -> Vec<(NodeId, Arc<dyn Channel>)> {
        let services = self.nodes.services.read();
        let others = services.keys().filter(|node| **node != self.node);
        others.map(|node| (*node, self.way_to(*node))).collect()
    }
}

impl View {
    /// A disk that all nodes reach, as this one does.
    fn shared_disk(&self, uuid: &str, directory: &str) -> Arc<dyn Disk> {
        if let Some(other) = self.nodes.instead_of_shared.lock().get(&self.node) {
            return Arc::clone(other);
        }
        let label = Label { file_system: "whole".to_owned(), disk: uuid.to_owned() };
        match DirectoryDisk::open_shared(directory, &label, &self.node_name()) {
            Ok(disk) => Arc::new(disk),
            Err(error) => Arc::new(AbsentDisk::new(uuid, directory, &error.to_string())),
        }
    }

    fn way_to(&self, node: NodeId) -> Arc<dyn Channel> {
        let from = ClientId { node: self.node, incarnation: self.incarnation };
        Arc::new(Loop { nodes: Arc::clone(&self.nodes), from, to: node, disks: false })
    }
}

/// A channel that is a call.
#[derive(Clone)]
struct Loop {
    nodes: Arc<Nodes>,
    from: ClientId,
    to: NodeId,
    /// To its disks, not its filesets.
    disks: bool,
}

impl Loop {
    fn serve(&self, request: Message) -> Result<Message, CallError> {
        let unreachable = || CallError::Unreachable("no answer (test)".to_owned());
        let service: Option<Arc<dyn Service>> = if self.disks {
            self.nodes.disk_services.read().get(&self.to).cloned().map(|service| service as _)
        } else {
            self.nodes.services.read().get(&self.to).cloned().map(|service| service as _)
        };
        self.nodes.payload.fetch_add(request.payload.len() as u64, Ordering::Relaxed);
        let sent = request.payload.len();
        let answer = service.ok_or_else(unreachable)?.serve(self.from, request)?;
        self.nodes.payload.fetch_add(answer.payload.len() as u64, Ordering::Relaxed);
        let bytes = (sent + answer.payload.len()) as u64;
        *self.nodes.payload_of.lock().entry(self.from.node).or_insert(0) += bytes;
        Ok(answer)
    }
}

impl Channel for Loop {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        if *self.nodes.busy.lock() == Some(self.from.node) {
            return Err(CallError::Unsent("there is no place for it (test)".to_owned()));
        }
        self.release(request)
    }

    fn release(&self, request: Message) -> Result<Message, CallError> {
        self.nodes.calls.fetch_add(1, Ordering::Relaxed);
        self.nodes.disk_calls.fetch_add(u64::from(self.disks), Ordering::Relaxed);
        let Weather { lost, delay_us } = *self.nodes.weather.lock();
        let unreachable = || CallError::Unreachable("no answer (test)".to_owned());
        if delay_us > 0 {
            std::thread::sleep(Duration::from_micros(self.nodes.random() % delay_us));
        }
        let is_lost = lost > 0 && self.nodes.random().is_multiple_of(lost);
        if is_lost && self.nodes.random().is_multiple_of(2) {
            return Err(unreachable());
        }
        let is_dead = |node| self.nodes.dead.lock().contains(&node);
        if is_dead(self.to) || is_dead(self.from.node) {
            return Err(CallError::Unsent("no connection (test)".to_owned()));
        }
        if *self.nodes.late.lock() == Some(self.from.node) {
            self.nodes.delayed.lock().push((self.clone(), request));
            return Err(unreachable());
        }
        let answer = self.serve(request);
        if is_lost || is_dead(self.to) {
            return Err(unreachable());
        }
        if *self.nodes.busy.lock() == Some(self.from.node)
            && let Some(meanwhile) = self.nodes.meanwhile.lock().take()
        {
            meanwhile();
        }
        answer
    }
}

/// The way back to a client.
struct Back {
    nodes: Arc<Nodes>,
    from: ClientId,
    to: NodeId,
}

impl Channel for Back {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        self.nodes.recalls.fetch_add(1, Ordering::Relaxed);
        let Weather { delay_us, .. } = *self.nodes.weather.lock();
        if delay_us > 0 {
            std::thread::sleep(Duration::from_micros(self.nodes.random() % delay_us));
        }
        let unreachable = || CallError::Unreachable("no answer (test)".to_owned());
        let is_dead = |node| self.nodes.dead.lock().contains(&node);
        if is_dead(self.to) || is_dead(self.from.node) {
            return Err(unreachable());
        }
        let service = self.nodes.caches.read().get(&self.to).cloned();
        service.ok_or_else(unreachable)?.serve(self.from, request)
    }
}

/// Times of files are in steps, as [`StepClock`] has them; leases and grants last as long as they say.
#[derive(Debug)]
pub struct SteppedTimes(StepClock);

impl SteppedTimes {
    pub fn new(seconds: i64) -> SteppedTimes {
        SteppedTimes(StepClock::new(seconds))
    }
}

impl Clock for SteppedTimes {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn instant(&self) -> Instant {
        SystemClock.instant()
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }
}

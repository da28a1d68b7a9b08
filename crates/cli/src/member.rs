//! A daemon that is a node of a cluster: joins what the node knows (owners, disks, other nodes) with the namespace.
//!
//! The node starts first, and calls come in before the namespace is open: they wait. At the end it is the other way round: the
//! node hands over its filesets and leaves before the namespace is closed.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::channel::{CallError, Message, Service, ServiceId};
use forebay_base::time::SystemClock;
use forebay_base::{ClientId, FilesetId};
use forebay_disk::Disk;
use forebay_disk::remote::{DiskService, HANDLES_MAX, Machine, RemoteDisk};
use forebay_etcd::Runtime;
use forebay_fs::record::DiskRecord;
use forebay_fs::remote::FilesService;
use forebay_fs::{Cluster, HandOver, Namespace, Parts, Whose};
use forebay_node::members::{Member, Ownership};
use forebay_process::machine::boot_id;
use forebay_store::slate::{Place, SlateConfig, open_stores};
use parking_lot::{Condvar, Mutex};

use crate::home::{Home, Lock, OpenMember};

/// How long a call of another node waits for the namespace to be open.
const OPENING_WAIT: Duration = Duration::from_secs(30);

/// Threads for the calls to etcd and object stores.
const RUNTIME_THREADS: usize = 2;

/// Where, below the cluster's keys, the names of files lie in etcd.
pub fn store_config(cluster: &str, home: &Home) -> SlateConfig {
    let mut config =
        SlateConfig::new(Place::Etcd(Default::default()), format!("/forebay-names/{cluster}"));
    config.cache = Some(home.root().join("cache"));
    config
}

/// A member at work.
pub struct Joined {
    member: Arc<Member>,
    /// Ends after the member.
    _runtime: Runtime,
}

impl Joined {
    /// The node.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Hands over what the node owns, and leaves the others.
    pub fn leave(&self) {
        self.member.leave();
    }
}

/// What the node and the namespace know of each other.
struct Joint {
    member: OnceLock<Arc<Member>>,
    namespace: OnceLock<Weak<Namespace>>,
}

impl Joint {
    fn namespace(&self) -> Option<Arc<Namespace>> {
        self.namespace.get()?.upgrade()
    }
}

impl Cluster for Joint {
    fn owner_of(&self, fileset: FilesetId) -> Whose {
        let Some(member) = self.member.get() else { return Whose::Nobody };
        match member.owner(fileset) {
            Some((node, epoch)) if node == member.node() => Whose::Here(Some(epoch)),
            Some((node, _)) => Whose::There(node, member.channel(node, ServiceId::Files)),
            None => {
                member.claim(fileset);
                Whose::Nobody
            }
        }
    }

    fn disk(&self, record: &DiskRecord) -> Option<Arc<dyn Disk>> {
        let member = self.member.get()?;
        let place = member.disk(&record.uuid)?;
        let location = format!("node {}, {}", place.node, place.location);
        let channel = member.channel(place.node, ServiceId::Disks);
        Some(Arc::new(RemoteDisk::new(channel, &record.uuid, &location)))
    }
}

impl Ownership for Joint {
    fn pause(&self) {
        if let Some(fs) = self.namespace() {
            fs.pause();
        }
    }

    fn resume(&self) {
        if let Some(fs) = self.namespace() {
            fs.resume();
        }
    }

    fn owner_changed(&self, fileset: FilesetId) {
        let Some(fs) = self.namespace() else { return };
        if let Err(error) = fs.owner_changed(fileset) {
            tracing::warn!(%fileset, %error, "a fileset that this node owns now is not open yet; the next request tries again");
        }
    }

    fn hand_over(&self, fileset: FilesetId) -> std::result::Result<(), String> {
        let Some(fs) = self.namespace() else { return Ok(()) };
        fs.hand_over(fileset, HandOver::Refuse).map_err(|error| error.to_string())
    }
}

/// A service that comes later: its callers wait for it.
#[derive(Default)]
struct Late {
    service: Mutex<Option<Arc<FilesService>>>,
    arrived: Condvar,
}

impl Late {
    fn set(&self, service: FilesService) {
        *self.service.lock() = Some(Arc::new(service));
        self.arrived.notify_all();
    }

    fn get(&self) -> Option<Arc<FilesService>> {
        let mut service = self.service.lock();
        if service.is_none() {
            self.arrived.wait_while_for(&mut service, |service| service.is_none(), OPENING_WAIT);
        }
        service.clone()
    }
}

impl Service for Late {
    fn serve(&self, from: ClientId, request: Message) -> std::result::Result<Message, CallError> {
        match self.get() {
            Some(service) => service.serve(from, request),
            None => Err(CallError::Refused("the file system is not open on this node yet".to_owned())),
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
fn machine() -> Result<Machine> {
    let text = boot_id()?;
    let id: uuid::Uuid = text.trim().parse().context("the boot id of this machine is not a UUID")?;
    Ok(Machine(id.as_u128()))
}

/// Starts the node and opens the namespace as a member of its cluster.
///
/// # Errors
/// If etcd or the root's owner cannot be reached, or the node is not a member any more.
pub fn join(open: OpenMember, home: &Home) -> Result<(Arc<Namespace>, Lock, Joined)> {
    let name = open.node.existing()?.cluster_name;
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for etcd")?;
    let joint = Arc::new(Joint { member: OnceLock::new(), namespace: OnceLock::new() });
    let files = Arc::new(Late::default());
    let disks = Arc::new(DiskService::new(machine()?, HANDLES_MAX));
    for (uuid, disk) in &open.disks {
        disks.offer(uuid, Arc::clone(disk));
    }
    let services: Vec<(ServiceId, Arc<dyn Service>)> =
        vec![(ServiceId::Files, Arc::clone(&files) as _), (ServiceId::Disks, disks)];
    let member = Member::start(&open.node, &runtime, services, Arc::clone(&joint) as _)?;
    for (uuid, disk) in &open.disks {
        member.add_disk(uuid, &disk.describe().location)?;
    }
    let _ = joint.member.set(Arc::clone(&member));
    let joined = Joined { member, _runtime: runtime };
    let opened = open_namespace(open, home, &name, &joined, &joint);
    let (fs, lock) = opened.inspect_err(|_| joined.leave())?;
    let _ = joint.namespace.set(Arc::downgrade(&fs));
    files.set(FilesService::new(Arc::clone(&fs)));
    Ok((fs, lock, joined))
}

fn open_namespace(
    open: OpenMember,
    home: &Home,
    cluster: &str,
    joined: &Joined,
    joint: &Arc<Joint>,
) -> Result<(Arc<Namespace>, Lock)> {
    let config = store_config(cluster, home);
    let stores = open_stores(&config, &joined._runtime, Some(joined.member.etcd()))?;
    let parts = Parts {
        stores,
        disks: open.disks,
        settings: open.settings,
        clock: Arc::new(SystemClock),
        fail_points: crate::home::fail_points_of_environment()?,
        reserve: open.reserve,
    };
    let fs = Namespace::join(parts, Arc::clone(joint) as _)?;
    Ok((fs, open.lock))
}

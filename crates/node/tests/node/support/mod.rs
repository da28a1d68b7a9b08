//! Nodes of a cluster in this process, and a proxy that cuts and stalls what lies between them.

pub mod proxy;

use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_base::channel::{CallError, Message, Service, ServiceId};
use forebay_base::time::SystemClock;
use forebay_base::{ClientId, Clock as _, NodeId};
use forebay_node::authority::{Authority, Subject, new_key};
use forebay_node::session::{
    Credentials, Hub, Identity, Reception, Refusal, RefusalKind, Roster, Standing, Start,
};
use forebay_node::settings::Settings;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

/// Short times, so that tests do not wait.
pub fn quick() -> Settings {
    Settings {
        keepalive: Duration::from_millis(50),
        silence_max: Duration::from_millis(500),
        session_grace: Duration::from_secs(3),
        connect_timeout: Duration::from_secs(2),
        reconnect_pause_max: Duration::from_millis(50),
        ..Settings::default()
    }
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Who belongs to the cluster: what the test says.
#[derive(Default)]
pub struct Book {
    addresses: Mutex<HashMap<NodeId, String>>,
    removed: Mutex<HashMap<NodeId, String>>,
    succeeded: Mutex<HashSet<ClientId>>,
    replaced: Mutex<HashSet<ClientId>>,
}

impl Book {
    pub fn set(&self, node: u32, address: String) {
        self.addresses.lock().insert(NodeId(node), address);
    }

    pub fn remove(&self, node: u32) {
        let reason = format!("node {node} was removed from the cluster");
        self.removed.lock().insert(NodeId(node), reason);
    }

    /// A node that was removed runs again, in another life than this one.
    pub fn replace(&self, node: u32, incarnation: u64) {
        self.removed.lock().remove(&NodeId(node));
        self.replaced.lock().insert(ClientId { node: NodeId(node), incarnation });
    }

    /// Other nodes own what this life owned.
    pub fn succeed(&self, node: u32, incarnation: u64) {
        self.succeeded.lock().insert(ClientId { node: NodeId(node), incarnation });
    }
}

impl Roster for Book {
    fn address(&self, node: NodeId) -> Option<String> {
        self.addresses.lock().get(&node).cloned()
    }

    fn standing(&self, node: NodeId) -> Standing {
        self.dead(node).map_or(Standing::Member, Standing::Removed)
    }

    fn ended(&self, client: ClientId) -> Option<String> {
        let replaced = self.replaced.lock().contains(&client);
        self.dead(client.node).or_else(|| replaced.then(|| "it started again".to_owned()))
    }

    fn dead(&self, node: NodeId) -> Option<String> {
        self.removed.lock().get(&node).cloned()
    }

    fn is_succeeded(&self, client: ClientId) -> bool {
        self.succeeded.lock().contains(&client)
    }
}

/// Answers a visitor with its number and its question.
struct Desk;

impl Reception for Desk {
    fn answer(&self, visitor: Option<NodeId>, question: &[u8]) -> Result<Vec<u8>, Refusal> {
        if question == b"no" {
            return Err(Refusal::new(RefusalKind::Question, "not this"));
        }
        Ok(format!("{visitor:?} {}", String::from_utf8_lossy(question)).into_bytes())
    }
}

type Behaviour = Box<dyn Fn(ClientId, Message) -> Result<Message, CallError> + Send + Sync>;

/// A service that notes each request, by its head, and does what the test says.
pub struct Noting {
    pub counts: Mutex<HashMap<Vec<u8>, usize>>,
    pub dropped: Mutex<Vec<ClientId>>,
    pub welcomed: Mutex<Vec<ClientId>>,
    behaviour: Behaviour,
}

impl Noting {
    pub fn new(
        behaviour: impl Fn(ClientId, Message) -> Result<Message, CallError> + Send + Sync + 'static,
    ) -> Arc<Noting> {
        Arc::new(Noting {
            counts: Mutex::default(),
            dropped: Mutex::default(),
            welcomed: Mutex::default(),
            behaviour: Box::new(behaviour),
        })
    }

    pub fn echo() -> Arc<Noting> {
        Noting::new(|_, message| Ok(message))
    }

    pub fn count(&self, head: &[u8]) -> usize {
        self.counts.lock().get(head).copied().unwrap_or(0)
    }
}

impl Service for Noting {
    fn serve(&self, from: ClientId, request: Message) -> Result<Message, CallError> {
        *self.counts.lock().entry(request.head.clone()).or_default() += 1;
        (self.behaviour)(from, request)
    }

    fn welcome(&self, client: ClientId) {
        self.welcomed.lock().push(client);
    }

    fn drop_client(&self, client: ClientId) {
        self.dropped.lock().push(client);
    }
}

/// A cluster without etcd.
pub struct World {
    pub cluster: Uuid,
    pub authority: Authority,
    pub book: Arc<Book>,
}

impl World {
    pub fn new() -> World {
        let cluster = Uuid::new_v4();
        let authority = Authority::make(cluster, SystemClock.now()).expect("makes an authority");
        World { cluster, authority, book: Arc::default() }
    }

    pub fn identity(&self, node: u32, life: Duration) -> Identity {
        let subject = Subject { cluster: self.cluster, node: NodeId(node) };
        let key = new_key().expect("makes a key");
        let issued = self
            .authority
            .issue(subject, key.public_key_raw(), &[], life, SystemClock.now())
            .expect("issues a certificate");
        Identity {
            subject,
            certificate: issued.certificate,
            key: key.serialize_pem(),
            authority: self.authority.certificate().to_owned(),
        }
    }

    pub fn credentials(&self, node: u32) -> Credentials {
        self.identity(node, Duration::from_secs(3600)).credentials().expect("makes credentials")
    }

    /// Starts a node that serves these services, and says so in the book.
    pub fn node(
        &self,
        id: (u32, u64),
        services: Vec<(ServiceId, Arc<dyn Service>)>,
        settings: Settings,
    ) -> Arc<Hub> {
        self.node_as(id, self.credentials(id.0), services, settings)
    }

    pub fn node_as(
        &self,
        (node, incarnation): (u32, u64),
        credentials: Credentials,
        services: Vec<(ServiceId, Arc<dyn Service>)>,
        settings: Settings,
    ) -> Arc<Hub> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let start = Start {
            cluster: self.cluster,
            me: ClientId { node: NodeId(node), incarnation },
            credentials,
            roster: Arc::<Book>::clone(&self.book),
            reception: Arc::new(Desk),
            services,
            settings,
            clock: Arc::new(SystemClock),
        };
        let hub = Hub::start(listener, start).expect("starts a node");
        self.book.set(node, hub.address().to_string());
        hub
    }
}

/// A message with a text for its head.
pub fn message(head: &str) -> Message {
    Message { head: head.as_bytes().to_vec(), payload: Vec::new() }
}

/// A door that calls stand before until it is opened.
#[derive(Default)]
pub struct Door {
    open: Mutex<bool>,
    changed: Condvar,
    pub before: AtomicUsize,
}

impl Door {
    pub fn pass(&self) {
        self.before.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !*open {
            self.changed.wait(&mut open);
        }
    }

    pub fn open(&self) {
        *self.open.lock() = true;
        self.changed.notify_all();
    }
}

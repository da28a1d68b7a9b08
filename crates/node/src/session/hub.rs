//! All sessions of a node: those that it makes and those that others make with it.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::channel::{CallError, Channel, Message, Service, ServiceId};
use forebay_base::{ClientId, Clock, NodeId};
use parking_lot::{Mutex, RwLock};
use rand::{Rng as _, SeedableRng as _};
use rustls::{ServerConnection, Stream};
use uuid::Uuid;

use super::crew::Crew;
use super::dial::Timed;
use super::end::{ByClass, Class, Common, Ear, End, Figures, Over, millis};
use super::greeting::{self, GreetingError, Hello, Refusal, RefusalKind, Welcome};
use super::peer::{Peer, Used};
use super::tls::Credentials;
use super::wire::{Sink, Wire};
use crate::authority::Subject;
use crate::settings::Settings;

/// How often sessions without a connection are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Who belongs to the cluster, as this node knows it at the moment.
pub trait Roster: Send + Sync {
    /// Where a member listens, HOST:PORT; none for a node that is not a member.
    fn address(&self, node: NodeId) -> Option<String>;
    /// Whether a node with a valid certificate is a member.
    fn standing(&self, node: NodeId) -> Standing;
    /// Why a life of a node's daemon cannot come back, if so: its lease was seen, and is over.
    fn ended(&self, client: ClientId) -> Option<String>;
    /// Why there is no point in calling a node, if so: its lease is over, or it was removed.
    fn dead(&self, node: NodeId) -> Option<String>;
    /// Whether no fileset is recorded as a life's that does not run: other nodes own in later epochs what it owned, so that
    /// it carries out no call to its files any more, whatever becomes of it.
    fn is_succeeded(&self, client: ClientId) -> bool;
}

/// Whether a node is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Member,
    /// Nobody has heard of it yet: it is to try again.
    Unknown,
    /// It was removed. The text says so.
    Removed(String),
}

/// What answers visitors: commands, and nodes that join.
pub trait Reception: Send + Sync {
    /// Answers a question of `visitor`, which is a member, or a stranger.
    ///
    /// # Errors
    /// A refusal that the visitor shows.
    fn answer(&self, visitor: Option<NodeId>, question: &[u8]) -> Result<Vec<u8>, Refusal>;
}

/// What a hub needs.
pub struct Start {
    /// The cluster.
    pub cluster: Uuid,
    /// This life of this node.
    pub me: ClientId,
    /// Its certificates.
    pub credentials: Credentials,
    /// Who belongs to the cluster.
    pub roster: Arc<dyn Roster>,
    /// What answers visitors.
    pub reception: Arc<dyn Reception>,
    /// What answers calls.
    pub services: Vec<(ServiceId, Arc<dyn Service>)>,
    /// Times and bounds.
    pub settings: Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A session that another node made with this one.
enum Guest {
    Open(Arc<End>),
    /// Its client is being dropped: a session of the same node waits for it.
    Leaving,
}

/// What the threads of a hub share.
pub struct Shared {
    /// The cluster.
    pub cluster: Uuid,
    /// This life of this node.
    pub me: ClientId,
    /// Who belongs to the cluster.
    pub roster: Arc<dyn Roster>,
    /// What sessions share.
    pub common: Arc<Common>,
    credentials: RwLock<Credentials>,
    reception: Arc<dyn Reception>,
    guests: Mutex<HashMap<NodeId, Guest>>,
    greetings: AtomicUsize,
    stopping: AtomicBool,
}

/// A session, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SessionStatus {
    /// The other node.
    pub node: NodeId,
    /// Whether the other node is the client.
    pub is_guest: bool,
    /// What there is to count.
    #[serde(flatten)]
    pub figures: Figures,
}

/// All sessions of a node. They end when this is dropped.
pub struct Hub {
    shared: Arc<Shared>,
    peers: Mutex<HashMap<NodeId, Arc<Peer>>>,
    address: SocketAddr,
}

impl Shared {
    /// This node's certificates at present.
    pub fn credentials(&self) -> Credentials {
        self.credentials.read().clone()
    }

    /// Whether all sessions are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Takes a connection into use for a session, with a thread of its own.
    pub fn run_wire(&self, end: &Arc<End>, wire: Arc<Wire>) -> Result<(), String> {
        let (end, pace) = (Arc::clone(end), self.common.settings.keepalive / 2);
        if !end.attach(&wire) {
            wire.close();
            return Err("the session is over".to_owned());
        }
        let name = format!("wire-{}.{}", end.peer.node, wire.lane);
        let held = Arc::clone(&wire);
        let ear: Arc<dyn Sink> = Arc::new(Ear(end));
        std::thread::Builder::new()
            .name(name)
            .spawn(move || wire.run(&ear, pace))
            .map(drop)
            .map_err(|error| {
                held.close();
                format!("cannot start a thread: {error}")
            })
    }

    /// Answers one connection. The socket stays in use if it became one of a session.
    fn receive(self: &Arc<Self>, socket: TcpStream) -> Result<(), GreetingError> {
        let config = self.credentials().server;
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        let settings = &self.common.settings;
        let clock = &*self.common.clock;
        let mut timed = Timed::new(&socket, clock, settings.connect_timeout);
        let mut stream = Stream::new(&mut tls, &mut timed);
        let hello = greeting::hear(&mut stream)?;
        let heard = clock.instant();
        let subject = stream
            .conn
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(|own| Subject::of(own))
            .transpose();
        let subject = subject.map_err(|error| {
            GreetingError::Refused(Refusal::new(RefusalKind::Certificate, error.to_string()))
        });
        let outcome = match (subject, hello) {
            (Err(error), _) => Err(error),
            (Ok(subject), Hello::Visit { cluster, question }) => self
                .visitor(subject, cluster, &question)
                .map(|answer| (Welcome::Visit { answer }, None)),
            (Ok(subject), hello @ Hello::Session { .. }) => self
                .session(subject, &hello, heard)
                .map(|(welcome, end, lane)| (welcome, Some((end, lane)))),
        };
        // What the reception did may have taken its time.
        stream.sock.again(settings.connect_timeout);
        match outcome {
            Ok((welcome, None)) => {
                greeting::accept(&mut stream, &welcome)?;
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
            }
            Ok((welcome, Some((end, lane)))) => {
                greeting::accept(&mut stream, &welcome)?;
                let wire = Wire::new(lane, socket, tls.into())?;
                // The session is over in between: the client connects again and is told so.
                let _ = self.run_wire(&end, wire);
            }
            Err(GreetingError::Refused(refusal)) => {
                greeting::refuse(&mut stream, &refusal)?;
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
                return Err(GreetingError::Refused(refusal));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Refuses a member of another cluster and one that was removed.
    fn check_member(&self, subject: Subject) -> Result<(), GreetingError> {
        if subject.cluster != self.cluster {
            let reason = "the certificate is one of another cluster";
            return Err(refused(RefusalKind::Cluster, reason.to_owned()));
        }
        match self.roster.standing(subject.node) {
            Standing::Member => Ok(()),
            Standing::Removed(reason) => Err(refused(RefusalKind::NotMember, reason)),
            Standing::Unknown => {
                let reason = format!("node {} is not known here yet: try again", subject.node);
                Err(refused(RefusalKind::Busy, reason))
            }
        }
    }

    fn visitor(
        &self,
        subject: Option<Subject>,
        cluster: Uuid,
        question: &[u8],
    ) -> Result<Vec<u8>, GreetingError> {
        if cluster != self.cluster {
            let reason = format!("this node belongs to cluster {}, not {cluster}", self.cluster);
            return Err(refused(RefusalKind::Cluster, reason));
        }
        if let Some(subject) = subject {
            self.check_member(subject)?;
        }
        let visitor = subject.map(|subject| subject.node);
        self.reception.answer(visitor, question).map_err(GreetingError::Refused)
    }

    /// The session that a hello asks for.
    fn session(
        self: &Arc<Self>,
        subject: Option<Subject>,
        hello: &Hello,
        heard: std::time::Instant,
    ) -> Result<(Welcome, Arc<End>, u8), GreetingError> {
        let Hello::Session { cluster, client, server, session, lane, grace_ms, clock_ms } = *hello
        else {
            return Err(GreetingError::Malformed("not a hello of a session"));
        };
        let subject = subject.ok_or_else(|| {
            let reason = "no certificate: this machine is not a member (forebay cluster join)";
            refused(RefusalKind::Certificate, reason.to_owned())
        })?;
        self.check_member(subject)?;
        if cluster != self.cluster || server != self.me.node {
            let reason = format!("node {} of cluster {} answers here", self.me.node, self.cluster);
            return Err(refused(RefusalKind::Cluster, reason));
        }
        if client.node != subject.node {
            let reason = format!("the certificate is node {}'s", subject.node);
            return Err(refused(RefusalKind::Certificate, reason));
        }
        if usize::from(lane) > usize::from(self.common.settings.bulk_lanes) {
            return Err(GreetingError::Malformed("a connection too many"));
        }
        let grace = Duration::from_millis(grace_ms).min(self.common.settings.session_grace);
        let end = if session == 0 {
            if lane != 0 {
                return Err(GreetingError::Malformed("a connection without a session"));
            }
            self.new_guest(client, grace, (heard, clock_ms))?
        } else {
            let end = self.known_guest(client, session)?;
            end.prove(heard, clock_ms);
            end
        };
        let welcome = Welcome::Session {
            session: end.session,
            server: self.me,
            grace_ms: millis(grace),
            clock_ms: self.common.clock_ms(),
        };
        Ok((welcome, end, lane))
    }

    fn known_guest(&self, client: ClientId, session: u64) -> Result<Arc<End>, GreetingError> {
        match self.guests.lock().get(&client.node) {
            Some(Guest::Open(end))
                if end.peer == client && end.session == session && end.over().is_none() =>
            {
                Ok(Arc::clone(end))
            }
            _ => {
                let reason = "the session is over: its files and locks were released";
                Err(refused(RefusalKind::NoSession, reason.to_owned()))
            }
        }
    }

    fn new_guest(
        self: &Arc<Self>,
        client: ClientId,
        grace: Duration,
        proof: (std::time::Instant, u64),
    ) -> Result<Arc<End>, GreetingError> {
        let busy = || {
            let reason = "an earlier session of this node is just being ended: try again";
            refused(RefusalKind::Busy, reason.to_owned())
        };
        // It would be dropped at once. A node that gets its lease back tries again.
        if let Some(reason) = self.roster.ended(client) {
            return Err(refused(RefusalKind::Busy, reason));
        }
        let mut guests = self.guests.lock();
        match guests.get(&client.node) {
            Some(Guest::Leaving) => return Err(busy()),
            Some(Guest::Open(former)) if former.peer.incarnation > client.incarnation => {
                let reason = "a later life of this node's daemon has connected";
                return Err(refused(RefusalKind::Superseded, reason.to_owned()));
            }
            Some(Guest::Open(former)) => {
                let former = Arc::clone(former);
                self.drop_guest(&mut guests, &former, "the client has begun a new session");
                return Err(busy());
            }
            None => {}
        }
        // Drawn, so that no session of a former life of this node is taken for one of this life.
        let session = rand::rngs::StdRng::from_os_rng().random_range(1..=u64::MAX);
        let end = End::new(&self.common, session, client, grace, proof);
        guests.insert(client.node, Guest::Open(Arc::clone(&end)));
        // With the lock held: whoever drops this session does so after it was welcomed.
        for service in self.common.services.iter().flatten() {
            service.welcome(client);
        }
        Ok(end)
    }

    /// Ends the session of a guest, and has the services drop the client in a thread of its own.
    fn drop_guest(
        self: &Arc<Self>,
        guests: &mut HashMap<NodeId, Guest>,
        end: &Arc<End>,
        reason: &str,
    ) {
        let node = end.peer.node;
        guests.insert(node, Guest::Leaving);
        tracing::info!(node = node.0, reason, "a client is dropped with its opens and locks");
        end.end(&Over::Evicted(reason.to_owned()));
        let (shared, end) = (Arc::clone(self), Arc::clone(end));
        let dropping = move || {
            shared.release(end.peer);
            // Calls that were being carried out meanwhile may have opened something.
            if end.wait_until_idle() {
                shared.release(end.peer);
            }
            shared.guests.lock().remove(&node);
        };
        if let Err(error) =
            std::thread::Builder::new().name("drop-client".to_owned()).spawn(dropping)
        {
            tracing::error!(
                "cannot start a thread to drop node {node}: {error}; it can connect again after a restart of this daemon"
            );
        }
    }

    fn release(&self, client: ClientId) {
        for service in self.common.services.iter().flatten() {
            service.drop_client(client);
        }
    }

    /// Ends sessions whose client has been silent for too long, is dead or was removed.
    fn look_at_guests(self: &Arc<Self>) {
        let mut guests = self.guests.lock();
        let open: Vec<Arc<End>> = guests
            .values()
            .filter_map(|guest| match guest {
                Guest::Open(end) => Some(Arc::clone(end)),
                Guest::Leaving => None,
            })
            .collect();
        for end in open {
            let silent = self.common.clock.instant().saturating_duration_since(end.heard());
            let node = end.peer.node;
            if let Some(over) = end.over() {
                self.drop_guest(&mut guests, &end, &format!("its session is over: {over:?}"));
            } else if let Standing::Removed(reason) = self.roster.standing(node) {
                self.drop_guest(&mut guests, &end, &reason);
            } else if let Some(reason) = self.roster.ended(end.peer) {
                self.drop_guest(&mut guests, &end, &reason);
            } else if silent > end.grace() {
                let reason = format!("nothing was heard of it for {silent:.1?}");
                self.drop_guest(&mut guests, &end, &reason);
            }
        }
    }
}

fn refused(kind: RefusalKind, reason: String) -> GreetingError {
    GreetingError::Refused(Refusal { kind, reason })
}

/// One greeting less when it is dropped.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.greetings.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hub {
    /// Starts to answer on a socket that listens.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(listener: TcpListener, start: Start) -> io::Result<Arc<Hub>> {
        let mut services = [const { None }; 4];
        for (id, service) in start.services {
            services[id as usize] = Some(service);
        }
        let crews = ByClass::new(|class| Crew::new(class.threads_max(&start.settings)));
        let origin = start.clock.instant();
        let common =
            Common { settings: start.settings, clock: start.clock, origin, services, crews };
        let shared = Arc::new(Shared {
            cluster: start.cluster,
            me: start.me,
            roster: start.roster,
            common: Arc::new(common),
            credentials: RwLock::new(start.credentials),
            reception: start.reception,
            guests: Mutex::default(),
            greetings: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        let address = listener.local_addr()?;
        let accepting = Arc::clone(&shared);
        let name = |name: &str| std::thread::Builder::new().name(name.to_owned());
        name("accept").spawn(move || accept(&accepting, &listener))?;
        let looking = Arc::clone(&shared);
        name("sessions").spawn(move || {
            while !looking.is_stopping() {
                looking.look_at_guests();
                std::thread::sleep(LOOK);
            }
        })?;
        Ok(Arc::new(Hub { shared, peers: Mutex::default(), address }))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The way to a service of another node. For [`ServiceId::Cache`] it leads to a node that is a client of this one, over the
    /// session that it made.
    #[must_use]
    pub fn channel(&self, node: NodeId, service: ServiceId) -> Arc<dyn Channel> {
        match service {
            ServiceId::Cache => {
                Arc::new(BackChannel { shared: Arc::clone(&self.shared), node, service })
            }
            ServiceId::Cluster | ServiceId::Files | ServiceId::Disks => {
                let mut peers = self.peers.lock();
                let peer =
                    peers.entry(node).or_insert_with(|| Peer::new(&self.shared, node)).clone();
                let used = peer.used();
                Arc::new(PeerChannel { peer, service, used })
            }
        }
    }

    /// Drops a client with its opens and locks, because it did not do what it must: it learns so at its next call.
    pub fn evict(&self, client: ClientId, reason: &str) {
        let mut guests = self.shared.guests.lock();
        if let Some(Guest::Open(end)) = guests.get(&client.node)
            && end.peer == client
        {
            let end = Arc::clone(end);
            self.shared.drop_guest(&mut guests, &end, reason);
        }
    }

    /// Uses another certificate for connections from now on.
    pub fn renew(&self, credentials: Credentials) {
        *self.shared.credentials.write() = credentials;
    }

    /// All sessions that there are.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let peers: Vec<(NodeId, Arc<Peer>)> =
            self.peers.lock().iter().map(|(node, peer)| (*node, Arc::clone(peer))).collect();
        let mut found: Vec<SessionStatus> = peers
            .into_iter()
            .filter_map(|(node, peer)| {
                Some(SessionStatus { node, is_guest: false, figures: peer.figures()? })
            })
            .collect();
        let guests = self.shared.guests.lock();
        found.extend(guests.iter().filter_map(|(node, guest)| match guest {
            Guest::Open(end) => {
                Some(SessionStatus { node: *node, is_guest: true, figures: end.figures() })
            }
            Guest::Leaving => None,
        }));
        drop(guests);
        found.sort_by_key(|one| (one.node, one.is_guest));
        found
    }

    /// Ends all sessions and stops listening.
    pub fn stop(&self) {
        if self.shared.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        let ends: Vec<Arc<End>> = {
            let guests = self.shared.guests.lock();
            let open = |guest: &Guest| match guest {
                Guest::Open(end) => Some(Arc::clone(end)),
                Guest::Leaving => None,
            };
            guests.values().filter_map(open).collect()
        };
        for end in ends {
            end.end(&Over::Evicted("the node is stopping".to_owned()));
        }
        for peer in self.peers.lock().values() {
            peer.stop();
        }
        // Wakes the thread that accepts.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for socket in listener.incoming() {
        if shared.is_stopping() {
            return;
        }
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                // Out of descriptors, most likely: others may be freed.
                tracing::warn!("a connection cannot be accepted: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if shared.greetings.fetch_add(1, Ordering::AcqRel) >= shared.common.settings.greetings_max {
            shared.greetings.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(
                "a connection was refused: greetings_max other connections are exchanging greetings"
            );
            continue;
        }
        let counted = Counted(Arc::clone(shared));
        let receiving = move || {
            let from = socket.peer_addr().map(|address| address.to_string()).unwrap_or_default();
            if let Err(error) = counted.0.receive(socket) {
                tracing::debug!("a connection from {from} failed: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("greet".to_owned()).spawn(receiving) {
            tracing::warn!("a connection was refused: no thread can be started: {error}");
        }
    }
}

/// The way to a node that this one is a client of.
struct PeerChannel {
    peer: Arc<Peer>,
    service: ServiceId,
    used: Used,
}

impl Channel for PeerChannel {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        self.peer.call(&self.used, self.service, Class::of_call(self.service as u8), request)
    }

    fn release(&self, request: Message) -> Result<Message, CallError> {
        self.peer.call(&self.used, self.service, Class::of_release(self.service as u8), request)
    }
}

/// The way to a node that is a client of this one.
struct BackChannel {
    shared: Arc<Shared>,
    node: NodeId,
    service: ServiceId,
}

impl Channel for BackChannel {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        let end = match self.shared.guests.lock().get(&self.node) {
            Some(Guest::Open(end)) => Arc::clone(end),
            Some(Guest::Leaving) | None => {
                return Err(CallError::Evicted(format!("node {} is not a client", self.node)));
            }
        };
        end.call(self.service as u8, Class::of_call(self.service as u8), request)
    }
}

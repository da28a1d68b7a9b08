//! The relay of a node: what makes the controller of a cluster's grid reachable by the same socket as that of one machine.
//!
//! It serves ROOT/grid/controller.sock. The kernel says which user connects there; the relay looks for the controller that
//! leads, connects to the relay of its node over TLS, says who the user is, and carries bytes from then on. That relay hands
//! them to its controller through a socket to which nobody else has access. Agents join the same way, as root or the grid's
//! own user of their node.
//!
//! Whom to believe: a node's certificate and its record in etcd make it a member, and root there could take either, so what
//! a member asserts of its users counts. Names and numbers of users must agree between nodes; where they do not, the user is refused.
//!
//! A connection waits `LEADER_WAIT` for a controller that leads. When another one takes over, connections to the former are cut, so
//! that agents and commands come again. Nothing is kept or repeated here.
//!
//! Interactive jobs: the shim of a job whose client is on another node asks the relay of its own node (ROOT/grid/streams.sock),
//! and the relay of the client's node connects to the client's socket with the rights of the job's user.

mod clients;
mod lookout;

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock;
use forebay_base::time::SystemClock;
use forebay_etcd::Runtime;
use forebay_node::session::{Refusal, RefusalKind};
use forebay_node::tunnel::{Arrival, Tag, Tunnel, Tunnels};
use forebay_process::user::is_root;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::Cluster;
use crate::files::claim_soon;
use crate::home::GridHome;
use crate::protocol::caller::{Identity, Relayed};
use crate::protocol::socket;
use crate::protocol::{Answer, RefusalKind as Kind};
use crate::server::connections::Connections;
use crate::terminal::far::ClientWanted;
use crate::trust;
use lookout::{Leader, Lookout};

/// How long a connection waits for a controller that leads: longer than a leader's lease and the start of the next one.
const LEADER_WAIT: Duration = Duration::from_secs(30);

/// How often who waits for a controller looks for one.
const LOOK: Duration = Duration::from_millis(100);

/// The most connections of other nodes at a time; each has a thread.
const ARRIVALS_MAX: usize = 4096;

/// Threads for calls to etcd.
const RUNTIME_THREADS: usize = 2;

/// The tag of streams that do not end with a leader.
const UNTIED: Tag = Tag::MIN;

/// What a relay wants of another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "wanted", rename_all = "snake_case")]
enum Wanted {
    /// The controller of that node, for a user.
    Controller { identity: Identity },
    /// The client of an interactive job, on that node.
    Client(ClientWanted),
}

struct Relay {
    home: GridHome,
    port: u16,
    tunnels: Arc<Tunnels>,
    lookout: Lookout,
    connections: Arc<Connections>,
    arrivals: AtomicUsize,
    clock: SystemClock,
}

/// Runs the relay of a node until SIGTERM or SIGINT.
///
/// # Errors
/// If another one runs, the grid belongs to no cluster, its port is taken, or etcd does not answer.
pub fn serve(home: &GridHome) -> Result<()> {
    home.make()?;
    let folder = home.folder().display();
    let Some(cluster) = Cluster::of(home)? else {
        bail!(
            "{folder} is the folder of a grid of one machine: forebay up ROOT --cluster NAME makes it one of a cluster"
        );
    };
    let Some(_lock) = claim_soon(&home.relay_lock())? else {
        bail!("a relay of {folder} is already running");
    };
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    // SAFETY: umask always succeeds; no other thread makes files yet.
    unsafe { libc::umask(0o077) };
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for calls to etcd")?;
    let tunnels = Tunnels::open(&cluster.node_home()?, &runtime, Arc::new(SystemClock))?;
    let lookout = Lookout::new(&tunnels, home)?;
    let relay = Arc::new(Relay {
        home: home.clone(),
        port: cluster.port,
        tunnels,
        lookout,
        connections: Arc::new(Connections::new()),
        arrivals: AtomicUsize::new(0),
        clock: SystemClock,
    });
    relay.begin()?;
    tracing::info!(%folder, "the relay is ready");
    signals.forever().next();
    for socket in [home.socket(), home.streams()] {
        let _ = std::fs::remove_file(socket);
    }
    tracing::info!("the relay exits");
    Ok(())
}

impl Relay {
    /// Listens, with a thread for each way in.
    fn begin(self: &Arc<Relay>) -> Result<()> {
        let address = &self.tunnels.node().address;
        let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host);
        let address = format!("{}:{}", host, self.port);
        let far = TcpListener::bind(&address).with_context(|| {
            format!("cannot listen at {address}, the relays' port (forebay up --port)")
        })?;
        let mode = if is_root() { 0o666 } else { 0o600 };
        let users = socket::listen(&self.home.socket(), mode)?;
        let shims = socket::listen(&self.home.streams(), 0o600)?;
        let relay = Arc::clone(self);
        spawn("leader", move || relay.lookout.watch(&relay.tunnels))?;
        let relay = Arc::clone(self);
        spawn("nodes", move || relay.accept_nodes(&far))?;
        let relay = Arc::clone(self);
        spawn("shims", move || relay.accept(&shims, Relay::serve_shim))?;
        let relay = Arc::clone(self);
        spawn("users", move || relay.accept(&users, Relay::serve_user))
    }

    fn accept(
        self: &Arc<Relay>,
        listener: &UnixListener,
        serve: fn(&Relay, &UnixStream) -> Result<()>,
    ) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors: others may close theirs.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let relay = Arc::clone(self);
            let served = spawn("connection", move || {
                if let Err(error) = serve(&relay, &stream) {
                    tracing::debug!("a connection: {error:#}");
                }
            });
            // Without a thread the connection is closed, and its client asks again.
            let _ = served;
        }
    }

    fn accept_nodes(self: &Arc<Relay>, listener: &TcpListener) {
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.arrivals.fetch_add(1, Ordering::SeqCst) >= ARRIVALS_MAX {
                self.arrivals.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let relay = Arc::clone(self);
            let received = spawn("arrival", move || {
                if let Err(error) = relay.receive(socket) {
                    tracing::debug!("a connection of another node: {error:#}");
                }
                relay.arrivals.fetch_sub(1, Ordering::SeqCst);
            });
            if received.is_err() {
                self.arrivals.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// A command or an agent of this node, from beginning to end.
    fn serve_user(&self, stream: &UnixStream) -> Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        let _admitted = match self.connections.admit(peer.uid) {
            Ok(admitted) => admitted,
            Err(reason) => return socket::write(stream, &Answer::Busy { reason }),
        };
        let identity = match Identity::here(peer.uid.as_raw(), peer.gid.as_raw()) {
            Ok(identity) => identity,
            Err(error) => {
                let reason = format!("user {}: {error:#}", peer.uid.as_raw());
                return socket::write(stream, &Answer::refused(Kind::NotAllowed, reason));
            }
        };
        match self.reach(&Wanted::Controller { identity }, stream) {
            Ok((tunnel, term)) => Ok(self.tunnels.carry(tunnel, stream, term)?),
            Err(reason) => socket::write(stream, &Answer::Busy { reason }),
        }
    }

    /// Finds the controller that leads, as long as somebody waits for it.
    fn reach(&self, wanted: &Wanted, near: &UnixStream) -> Result<(Tunnel, Tag), String> {
        let begun = self.clock.instant();
        loop {
            let reason = match self.lookout.leader() {
                None => "no controller of the grid leads: forebay up ROOT --cluster NAME --controller starts one on a node"
                    .to_owned(),
                Some(Leader { record: leader, term, .. }) => {
                    match self.tunnels.dial(leader.node, self.port, wanted) {
                        Ok(tunnel) => return Ok((tunnel, term)),
                        Err(forebay_node::Error::Refused(refusal)) if !refusal.may_pass() => {
                            return Err(format!("node {}: {refusal}", leader.name));
                        }
                        Err(error) => format!("the controller of node {}: {error}", leader.name),
                    }
                }
            };
            let waited = self.clock.instant().saturating_duration_since(begun);
            if waited >= LEADER_WAIT || !socket::is_there(near) {
                return Err(reason);
            }
            self.lookout.wait(LOOK);
        }
    }

    /// What another relay passes on, from beginning to end.
    fn receive(&self, socket: TcpStream) -> Result<()> {
        let arrival: Arrival<Wanted> = self.tunnels.accept(socket)?;
        let found = match &arrival.wanted {
            Wanted::Controller { identity } => {
                self.knock(&arrival.name, identity).map_err(|error| {
                    let reason = format!("no controller leads here: {error:#}");
                    Refusal::new(RefusalKind::Busy, reason)
                })
            }
            Wanted::Client(wanted) => clients::reach(&arrival.name, wanted)
                .map_err(|error| Refusal::new(RefusalKind::Question, format!("{error:#}"))),
        };
        match found {
            Ok(near) => {
                let tunnel = arrival.welcome(&self.clock)?;
                Ok(self.tunnels.carry(tunnel, &near, UNTIED)?)
            }
            Err(refusal) => Ok(arrival.refuse(&self.clock, refusal)?),
        }
    }

    /// Connects to the controller of this node for a user of another one.
    fn knock(&self, node: &str, identity: &Identity) -> Result<UnixStream> {
        let stream = socket::connect(&self.home.door())?;
        trust::check_peer(&stream)?;
        let node = node.parse().map_err(anyhow::Error::msg)?;
        socket::write_framed(&stream, &Relayed { node, identity: identity.clone() })?;
        Ok(stream)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned: io::Result<_> = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).context("no thread can be started")
}

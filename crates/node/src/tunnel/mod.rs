//! Streams of bytes between members of a cluster: what two programs would say to each other over a socket of one machine,
//! carried between two nodes.
//!
//! A stream begins with one greeting and its answer (four bytes of length, least significant first, and JSON), over TLS with
//! the certificates of both nodes; a machine that has none, or was removed, gets no further. Then it carries what two sockets
//! say, each direction with an end of its own, until both have ended or somebody has gone. Nothing is repeated: a stream that
//! breaks is over.
//!
//! Members are known from etcd and watched: streams of a node that is removed are cut. While etcd does not answer, those known
//! before count.

mod members;
mod pump;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_base::{Clock, NodeId};
use forebay_etcd::Runtime;
use parking_lot::Mutex;
use rustls::{ClientConnection, Connection, ServerConnection, Stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::members::Members;
use crate::authority::Subject;
use crate::error::{Error, Result};
use crate::home::{NodeFile, NodeHome};
use crate::members::Book;
use crate::session::dial::{Target, Timed, connect};
use crate::session::tls::explained;
use crate::session::{Credentials, Refusal, RefusalKind};

/// Largest greeting, and largest answer to one.
const GREETING_BYTES_MAX: usize = 64 << 10;

/// The version of greetings.
const VERSION: u16 = 1;

/// How long connecting, TLS and the greeting may take.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// The first message of a stream.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting<T> {
    version: u16,
    cluster: Uuid,
    #[serde(flatten)]
    wanted: T,
}

/// The answer to it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Welcome,
    Refused(Refusal),
}

/// A number for streams that are to be cut together.
pub type Tag = i64;

/// A stream that is open.
struct Open {
    node: NodeId,
    tag: Tag,
    near: UnixStream,
}

#[derive(Default)]
struct Streams {
    next: u64,
    open: HashMap<u64, Open>,
}

/// The streams of a node.
pub struct Tunnels {
    home: NodeHome,
    file: NodeFile,
    book: Book,
    members: Members,
    /// With the time of the file that they are from: the node's daemon renews it.
    credentials: Mutex<(SystemTime, Credentials)>,
    clock: Arc<dyn Clock>,
    streams: Mutex<Streams>,
}

/// A stream whose greeting is over.
pub struct Tunnel {
    /// The other node.
    node: NodeId,
    socket: TcpStream,
    tls: Connection,
}

/// A greeting of another node that waits for its answer.
pub struct Arrival<T> {
    /// Name of the node, as its record says.
    pub name: String,
    /// What it wants.
    pub wanted: T,
    node: NodeId,
    socket: TcpStream,
    tls: ServerConnection,
}

impl Tunnels {
    /// The streams of the node at `home`.
    ///
    /// # Errors
    /// If there is no node, its certificates cannot be used, or etcd does not answer.
    pub fn open(home: &NodeHome, runtime: &Runtime, clock: Arc<dyn Clock>) -> Result<Arc<Tunnels>> {
        let file = home.existing()?;
        let book = Book::open(runtime, &file.etcd, &file.cluster_name)?;
        let members = Members::read(&book)?;
        let credentials = Mutex::new(read_credentials(home, &file)?);
        let streams = Mutex::default();
        let home = home.clone();
        let tunnels = Arc::new(Tunnels { home, file, book, members, credentials, clock, streams });
        let watcher = Arc::downgrade(&tunnels);
        std::thread::Builder::new()
            .name("members".to_owned())
            .spawn(move || members::watch(&watcher))
            .map_err(Error::file(tunnels.home.folder()))?;
        Ok(tunnels)
    }

    /// The records of the cluster.
    #[must_use]
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// Who the node is.
    #[must_use]
    pub fn node(&self) -> &NodeFile {
        &self.file
    }

    /// The member with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<NodeId> {
        self.members.named(name)
    }

    /// The certificates, read again after they were renewed.
    fn credentials(&self) -> Result<Credentials> {
        let mut held = self.credentials.lock();
        if self.home.certificate_changed()? != held.0 {
            *held = read_credentials(&self.home, &self.file)?;
        }
        Ok(held.1.clone())
    }

    /// Connects to a member on `port` of the host of its address, and says what is wanted.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if nobody answers, [`Error::Refused`] if the other node refuses.
    pub fn dial(&self, node: NodeId, port: u16, wanted: &impl Serialize) -> Result<Tunnel> {
        let (_, address) = self.members.find(&self.book, node)?;
        let address = with_port(&address, port);
        let target = Target {
            address: &address,
            name: Subject { cluster: self.file.cluster, node }.server_name()?,
            config: self.credentials()?.client,
            timeout: GREETING_TIME,
        };
        let broken = |reason: String| Error::Unreachable(format!("{address}: {reason}"));
        let socket = connect(&target).map_err(Error::Unreachable)?;
        let mut tls = ClientConnection::new(Arc::clone(&target.config), target.name.clone())
            .map_err(|error| broken(error.to_string()))?;
        let mut timed = Timed::new(&socket, &*self.clock, GREETING_TIME);
        let mut stream = Stream::new(&mut tls, &mut timed);
        let greeting = Greeting { version: VERSION, cluster: self.file.cluster, wanted };
        let reply = put(&mut stream, &greeting).and_then(|()| get(&mut stream));
        match reply.map_err(|error| broken(explained(&error)))? {
            Reply::Welcome => Ok(Tunnel { node, socket, tls: tls.into() }),
            Reply::Refused(refusal) => Err(Error::Refused(refusal)),
        }
    }

    /// Hears the greeting of whoever has connected. Strangers, nodes of other clusters and nodes that were removed are refused.
    ///
    /// # Errors
    /// Why there is nobody to be answered.
    pub fn accept<T: DeserializeOwned>(&self, socket: TcpStream) -> Result<Arrival<T>> {
        let broken = |error: io::Error| Error::Unreachable(explained(&error));
        let config = self.credentials()?.server;
        let mut tls =
            ServerConnection::new(config).map_err(|error| Error::Unreachable(error.to_string()))?;
        let mut timed = Timed::new(&socket, &*self.clock, GREETING_TIME);
        let mut stream = Stream::new(&mut tls, &mut timed);
        let heard: io::Result<Greeting<serde_json::Value>> = get(&mut stream);
        let heard = heard.map_err(broken)?;
        let checked = self.check(stream.conn.peer_certificates(), &heard);
        let judged = checked.and_then(|(node, name)| {
            let wanted = serde_json::from_value(heard.wanted).map_err(|error| {
                Refusal::new(
                    RefusalKind::Question,
                    format!("the greeting cannot be understood: {error}"),
                )
            })?;
            Ok((node, name, wanted))
        });
        match judged {
            Ok((node, name, wanted)) => Ok(Arrival { name, wanted, node, socket, tls }),
            Err(refusal) => {
                put(&mut stream, &Reply::Refused(refusal.clone())).map_err(broken)?;
                Err(Error::Refused(refusal))
            }
        }
    }

    /// Who greets: a member, by its certificate and by the records.
    fn check<T>(
        &self,
        chain: Option<&[rustls::pki_types::CertificateDer<'_>]>,
        greeting: &Greeting<T>,
    ) -> std::result::Result<(NodeId, String), Refusal> {
        let refused = |kind, reason: String| Err(Refusal::new(kind, reason));
        if greeting.version != VERSION {
            let theirs = greeting.version;
            return refused(
                RefusalKind::Version,
                format!(
                    "this node uses version {VERSION} of the protocol of streams, the other node version {theirs}: upgrade the older one"
                ),
            );
        }
        let Some(own) = chain.and_then(<[_]>::first) else {
            let reason = "no certificate: this machine is not a member (forebay cluster join)";
            return refused(RefusalKind::Certificate, reason.to_owned());
        };
        let subject = Subject::of(own)
            .map_err(|error| Refusal::new(RefusalKind::Certificate, error.to_string()))?;
        if subject.cluster != self.file.cluster || greeting.cluster != self.file.cluster {
            let reason = format!("this node belongs to cluster {}", self.file.cluster);
            return refused(RefusalKind::Cluster, reason);
        }
        match self.members.find(&self.book, subject.node) {
            Ok((name, _)) => Ok((subject.node, name)),
            Err(Error::Invalid(reason)) => refused(RefusalKind::NotMember, reason),
            Err(error) => refused(RefusalKind::Busy, error.to_string()),
        }
    }

    /// Carries a stream until it is over.
    ///
    /// # Errors
    /// Why it broke.
    pub fn carry(&self, tunnel: Tunnel, near: &UnixStream, tag: Tag) -> io::Result<()> {
        let Tunnel { node, socket, tls } = tunnel;
        let held = near.try_clone()?;
        let number = {
            let mut streams = self.streams.lock();
            streams.next += 1;
            let number = streams.next;
            streams.open.insert(number, Open { node, tag, near: held });
            number
        };
        // Removed between the greeting and now.
        if !self.members.knows(node) {
            let _ = near.shutdown(Shutdown::Both);
        }
        let carried = pump::carry(tls, socket, near);
        self.streams.lock().open.remove(&number);
        carried
    }

    /// Cuts all streams whose tag is not wanted any more.
    pub fn keep(&self, wanted: impl Fn(Tag) -> bool) {
        self.cut(|open| !wanted(open.tag));
    }

    fn cut(&self, is_over: impl Fn(&Open) -> bool) {
        for open in self.streams.lock().open.values().filter(|open| is_over(open)) {
            let _ = open.near.shutdown(Shutdown::Both);
        }
    }
}

impl Tunnel {
    /// The other node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }
}

impl<T> Arrival<T> {
    /// Accepts it.
    ///
    /// # Errors
    /// If the other side has gone.
    pub fn welcome(mut self, clock: &dyn Clock) -> io::Result<Tunnel> {
        self.reply(clock, &Reply::Welcome)?;
        Ok(Tunnel { node: self.node, socket: self.socket, tls: self.tls.into() })
    }

    /// Refuses it.
    ///
    /// # Errors
    /// If the other side has gone.
    pub fn refuse(mut self, clock: &dyn Clock, refusal: Refusal) -> io::Result<()> {
        self.reply(clock, &Reply::Refused(refusal))
    }

    fn reply(&mut self, clock: &dyn Clock, reply: &Reply) -> io::Result<()> {
        let mut timed = Timed::new(&self.socket, clock, GREETING_TIME);
        put(&mut Stream::new(&mut self.tls, &mut timed), reply)
    }
}

fn read_credentials(home: &NodeHome, file: &NodeFile) -> Result<(SystemTime, Credentials)> {
    // Read first: one that is renewed meanwhile is read again.
    let changed = home.certificate_changed()?;
    Ok((changed, home.identity(file)?.credentials()?))
}

/// The same host, another port.
fn with_port(address: &str, port: u16) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    format!("{host}:{port}")
}

fn put(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    let mut bytes = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    bytes.extend(body);
    stream.write_all(&bytes)?;
    stream.flush()
}

fn get<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > GREETING_BYTES_MAX {
        return Err(io::Error::other("the other side is not a Forebay node"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_arrives_whole_and_one_without_end_is_refused() {
        let mut bytes = Vec::new();
        let cluster = Uuid::from_u128(7);
        put(&mut bytes, &Greeting { version: VERSION, cluster, wanted: ("a", 1) }).unwrap_err();
        let wanted = serde_json::json!({ "user": "ann" });
        put(&mut bytes, &Greeting { version: VERSION, cluster, wanted: wanted.clone() }).unwrap();
        let heard: Greeting<serde_json::Value> = get(&mut &bytes[..]).unwrap();
        assert_eq!((heard.version, heard.cluster, heard.wanted), (VERSION, cluster, wanted));
        assert!(get::<Reply>(&mut &[0xff; 100][..]).is_err());
        assert!(get::<Reply>(&mut &bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn a_port_takes_the_place_of_another() {
        assert_eq!(with_port("10.0.0.1:7440", 7441), "10.0.0.1:7441");
        assert_eq!(with_port("[fe80::1]:7440", 1), "[fe80::1]:1");
        assert_eq!(with_port("host", 1), "host:1");
    }
}

//! A node at work: member of the cluster, owner of filesets, at the end of sessions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use forebay_base::channel::{Channel, Service, ServiceId};
use forebay_base::{ClientId, Clock, FilesetId, NodeId};
use forebay_cluster::ownership::{self, Holding, Record};
use forebay_cluster::{Moment, Node, node};
use forebay_etcd::{Keys, Runtime};
use parking_lot::Mutex;

use super::book::Book;
use super::boottime;
use super::driver::{Driver, Phase, Shared};
use super::etcd::{Courier, Input};
use super::monitors::RemovedMonitors;
use super::ownership::{InUse, Ownership};
use super::renewal;
use super::roster::{DiskHome, Known, Sight};
use super::visit::{self, Answer, HeldFileset, NodeStatus, Question, Registrar};
use crate::error::{Error, Result};
use crate::home::{NodeFile, NodeHome, NodeLock};
use crate::session::{Hub, Reception, Refusal, RefusalKind, Start};
use crate::settings::Settings;

/// Threads that talk to etcd.
const ETCD_THREADS: usize = 2;

/// How long one look at the watch lasts.
const WATCH_LOOK: Duration = Duration::from_millis(500);

/// What a member needs to start.
pub struct MemberStart {
    /// The node's folder.
    pub home: NodeHome,
    /// What answers calls of other nodes.
    pub services: Vec<(ServiceId, Arc<dyn Service>)>,
    /// What is done with filesets that the node owns.
    pub ownership: Arc<dyn Ownership>,
    /// The node's share of filesets relative to others; none for a node that serves no filesets.
    pub weight: Option<u32>,
    /// Times and bounds of sessions.
    pub settings: Settings,
    /// Times of membership and ownership.
    pub protocol: forebay_cluster::Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A node at work. It stops answering when this is dropped; [`Member::stop`] hands its filesets over before.
pub struct Member {
    me: ClientId,
    file: NodeFile,
    book: Book,
    known: Arc<Known>,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    inbox: Sender<Input>,
    courier: Courier,
    stopping: Arc<renewal::Bell>,
    _lock: NodeLock,
}

fn listen(address: &str) -> Result<TcpListener> {
    let refused = |error: std::io::Error| {
        Error::Invalid(format!(
            "cannot listen on {address}: {error}. If another program uses the port, choose another one with --address"
        ))
    };
    let found = address.to_socket_addrs().map_err(refused)?.next();
    let found = found.ok_or_else(|| Error::Invalid(format!("{address} is not an address")))?;
    match TcpListener::bind(found) {
        // An address that leads here by translation.
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            let any = match found.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            TcpListener::bind(SocketAddr::new(any, found.port())).map_err(refused)
        }
        bound => bound.map_err(refused),
    }
}

impl Member {
    /// Makes this process the node: registers it, and answers other nodes. Returns when others can reach it; its lease
    /// follows a moment later ([`Ownership::answer`]).
    ///
    /// # Errors
    /// If another process is the node, etcd does not answer, the node was removed, or the port is taken.
    pub fn start(start: MemberStart) -> Result<Member> {
        start.protocol.validate().map_err(Error::Invalid)?;
        let lock = start.home.claim()?;
        let file = start.home.existing()?;
        let runtime = Runtime::start(ETCD_THREADS)
            .map_err(|error| Error::Invalid(format!("cannot start threads: {error}")))?;
        let book = Book::open(&runtime, &file.etcd, &file.cluster_name)?;
        check_cluster(&book, &file)?;
        let credentials = start.home.identity(&file)?.credentials()?;
        let listener = listen(&file.address)?;
        let me = book.begin_life(file.node, &file.address)?;
        let known = Arc::new(Known::default());
        let (sight, view) = book.read()?;
        known.set(sight, view.revision);
        let (inbox, events) = channel();
        let courier =
            Courier::new(&book, me.node, start.protocol.etcd_timeout, &known, inbox.clone());
        let weight = start.weight.unwrap_or(0);
        let node = Node::new(start.protocol, me, weight, boottime());
        let shared = Arc::new(Shared::new(node));
        let reception = Arc::new(Desk {
            me,
            registrar: registrar(&start, &book, &file),
            shared: Arc::clone(&shared),
            ownership: Arc::clone(&start.ownership),
            courier: courier.clone(),
            inbox: inbox.clone(),
            expires: Mutex::new(file.expires),
            hub: Mutex::new(None),
        });
        let hub = Hub::start(
            listener,
            Start {
                cluster: file.cluster,
                me,
                credentials,
                roster: Arc::<Known>::clone(&known),
                reception: Arc::<Desk>::clone(&reception),
                services: start.services,
                settings: start.settings.clone(),
                clock: Arc::clone(&start.clock),
            },
        );
        let no_thread = |error| Error::Invalid(format!("cannot start a thread: {error}"));
        let hub = hub.map_err(no_thread)?;
        *reception.hub.lock() = Some(Arc::downgrade(&hub));
        let driver = Driver {
            shared: Arc::clone(&shared),
            courier: courier.clone(),
            ownership: start.ownership,
            owns: start.weight.is_some(),
            node_lease: start.protocol.node_lease,
            inbox: events,
            sender: inbox.clone(),
        };
        let stopping = Arc::<renewal::Bell>::default();
        spawn("member", move || driver.run()).map_err(no_thread)?;
        let from = i64::try_from(view.revision.0).unwrap_or(0) + 1;
        let watch = book.client().watch(Keys::prefix(book.names().root()), from);
        let (watching, bell) = (courier.clone(), Arc::clone(&stopping));
        let (seen, mut removed) = (Arc::clone(&known), RemovedMonitors::of(&start.home));
        spawn("watch", move || {
            while !bell.is_rung() {
                if let Some(event) = watch.next(WATCH_LOOK) {
                    watching.watched(&event);
                }
                removed.keep(seen.removed_monitors());
            }
        })
        .map_err(no_thread)?;
        let renewal = renewal::Renewal {
            home: start.home,
            file: file.clone(),
            desk: Arc::clone(&reception),
            known: Arc::clone(&known),
            hub: Arc::downgrade(&hub),
            settings: start.settings,
            clock: start.clock,
            bell: Arc::clone(&stopping),
        };
        spawn("certificate", move || renewal.run()).map_err(no_thread)?;
        Ok(Member { me, file, book, known, hub, shared, inbox, courier, stopping, _lock: lock })
    }

    /// This life of the node.
    #[must_use]
    pub fn me(&self) -> ClientId {
        self.me
    }

    /// Who the node is.
    #[must_use]
    pub fn file(&self) -> &NodeFile {
        &self.file
    }

    /// The cluster's records.
    #[must_use]
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The way to a service of another node; for [`ServiceId::Cache`], of a node that is a client of this one.
    #[must_use]
    pub fn channel(&self, node: NodeId, service: ServiceId) -> Arc<dyn Channel> {
        self.hub.channel(node, service)
    }

    /// Drops a client with its opens and locks, because it did not do what it must.
    pub fn evict(&self, client: ClientId, reason: &str) {
        self.hub.evict(client, reason);
    }

    /// All sessions that there are.
    #[must_use]
    pub fn sessions(&self) -> Vec<crate::session::SessionStatus> {
        self.hub.sessions()
    }

    /// The cluster as this node sees it.
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.known.sight()
    }

    /// Uuids of the disks that a node has, as this one knows them.
    #[must_use]
    pub fn disks_of(&self, node: NodeId) -> Vec<String> {
        self.known.disks_of(node)
    }

    /// The node that has a disk, if any has.
    #[must_use]
    pub fn home_of(&self, disk: &str) -> Option<DiskHome> {
        self.known.home_of(disk)
    }

    /// The nodes that run and have mounted the file system, this one included.
    #[must_use]
    pub fn mounted(&self) -> Vec<NodeId> {
        self.known.mounted()
    }

    /// The owner of a fileset as this node sees it: where requests for it go.
    #[must_use]
    pub fn owner(&self, fileset: FilesetId) -> Option<Record> {
        self.shared.node.lock().view().owners.get(&fileset).copied()
    }

    /// What this node holds of a fileset.
    #[must_use]
    pub fn holding(&self, fileset: FilesetId) -> Option<Holding> {
        self.shared.node.lock().holding(fileset)
    }

    /// Until when the node may answer; none while it waits.
    #[must_use]
    pub fn answers_until(&self) -> Option<Moment> {
        self.shared.node.lock().answers_until(boottime())
    }

    /// How long the node may still answer; zero while it waits.
    #[must_use]
    pub fn answers_for(&self) -> Duration {
        self.answers_until().map_or(Duration::ZERO, |until| until.left(boottime()))
    }

    /// Waits until the node has come to its end, or the time has passed.
    #[must_use]
    pub fn wait_for_end(&self, time: Duration) -> Phase {
        self.shared.wait_for_end(time)
    }

    /// Hands everything over and stops, in `patience` at the most.
    pub fn stop(&self, patience: Duration) {
        let _ = self.inbox.send(Input::Stop);
        if self.shared.wait_for_end(patience) == Phase::Working {
            tracing::warn!(
                "not everything was handed over in {patience:?}: other nodes take over the rest when the lease ends{}",
                self.courier.error().map_or(String::new(), |error| format!(" ({error})"))
            );
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.inbox.send(Input::Quit);
        self.stopping.ring();
        self.hub.stop();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn check_cluster(book: &Book, file: &NodeFile) -> Result<()> {
    let record = book.cluster()?.ok_or_else(|| {
        Error::Invalid(format!(
            "etcd knows no cluster {}: are its endpoints right ({}), and was its data restored?",
            file.cluster_name,
            file.etcd.endpoints.join(", ")
        ))
    })?;
    if record.id == file.cluster {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the cluster {} in etcd ({}) is not this node's cluster ({}): leave the latter first (forebay cluster leave)",
        file.cluster_name, record.id, file.cluster
    )))
}

fn registrar(start: &MemberStart, book: &Book, file: &NodeFile) -> Registrar {
    Registrar {
        book: book.clone(),
        home: start.home.clone(),
        cluster: file.cluster,
        cluster_name: file.cluster_name.clone(),
        etcd: file.etcd.clone(),
        settings: start.settings.clone(),
        clock: Arc::clone(&start.clock),
    }
}

/// Answers visitors.
pub struct Desk {
    me: ClientId,
    /// Makes certificates.
    pub registrar: Registrar,
    shared: Arc<Shared>,
    ownership: Arc<dyn Ownership>,
    courier: Courier,
    inbox: Sender<Input>,
    /// When this node's certificate expires.
    pub expires: Mutex<i64>,
    hub: Mutex<Option<std::sync::Weak<Hub>>>,
}

impl Desk {
    fn status(&self) -> NodeStatus {
        // Before the lock of the state machines is taken: it looks at disks.
        let files = self.ownership.report();
        let node = self.shared.node.lock();
        let now = boottime();
        let left = |until: Moment| u64::try_from(until.left(now).as_millis()).unwrap_or(u64::MAX);
        let hub = self.hub.lock().as_ref().and_then(std::sync::Weak::upgrade);
        NodeStatus {
            incarnation: self.me.incarnation,
            answers_ms: node.answers_until(now).map(left),
            holdings: node
                .holdings()
                .map(|(fileset, holding)| HeldFileset {
                    fileset,
                    stage: stage(&holding).to_owned(),
                    owned_ms: owned_for(&holding, now),
                })
                .collect(),
            problems: self.shared.problems(),
            files,
            sessions: hub.map(|hub| hub.sessions()).unwrap_or_default(),
            certificate_expires: *self.expires.lock(),
            etcd_error: self.courier.error(),
            clock_ms: Some(wall_ms(&*self.registrar.clock)),
        }
    }

    fn member_question(&self, visitor: NodeId, question: Question) -> Result<Answer> {
        match question {
            Question::Join(_) => Err(Error::Invalid("this machine is already a member".to_owned())),
            Question::Renew { public_key } => {
                self.registrar.renew(visitor, &public_key).map(Answer::Renewed)
            }
            Question::Status => Ok(Answer::Status(Box::new(self.status()))),
            Question::Unreachable => {
                self.ownership.unreachable().map(Answer::Unreachable).map_err(Error::Invalid)
            }
            Question::Paths(inos) => Ok(Answer::Paths(self.ownership.paths(&inos))),
            Question::Commit => {
                self.ownership.commit().map(|()| Answer::Done).map_err(Error::Invalid)
            }
            Question::Move { fileset, to, in_use } => self.move_fileset(fileset, to, in_use),
            Question::Host => {
                self.ownership.examine_host().map(Answer::Host).map_err(Error::Invalid)
            }
        }
    }

    fn move_fileset(&self, fileset: FilesetId, to: NodeId, in_use: InUse) -> Result<Answer> {
        let (holding, is_member) = {
            let node = self.shared.node.lock();
            (node.holding(fileset), node.view().members.contains_key(&to))
        };
        if !is_member {
            return Err(Error::Invalid(format!("node {to} is not running")));
        }
        if !matches!(holding, Some(Holding::Owning { .. })) {
            return Err(Error::Invalid(format!(
                "node {} does not own fileset {fileset} at the moment",
                self.me.node
            )));
        }
        self.shared.prepare_move(fileset, in_use);
        let event = node::Event::Ownership(ownership::Event::Move { fileset, to });
        let _ = self.inbox.send(Input::Event(event));
        Ok(Answer::Asked)
    }
}

/// For how long a node has been answering for a fileset, in milliseconds.
fn owned_for(holding: &Holding, now: Moment) -> Option<u64> {
    let Holding::Owning { since, .. } = holding else { return None };
    Some(u64::try_from(now.since(*since).as_millis()).unwrap_or(u64::MAX))
}

fn stage(holding: &Holding) -> &'static str {
    match holding {
        Holding::Claiming { .. } => "claiming",
        Holding::Opening { .. } => "opening",
        Holding::Owning { .. } => "owning",
        Holding::Settling { .. } => "settling",
        Holding::Passing { .. } => "passing",
        Holding::Dropping { .. } => "dropping",
    }
}

impl Reception for Desk {
    fn answer(
        &self,
        visitor: Option<NodeId>,
        question: &[u8],
    ) -> std::result::Result<Vec<u8>, Refusal> {
        let question: Question = visit::decode(question).map_err(|error| visit::refusal(&error))?;
        let answer = match (visitor, question) {
            (None, Question::Join(application)) => {
                let joined = self.registrar.join(&application);
                joined.map(|admission| Answer::Joined(Box::new(admission)))
            }
            (None, _) => {
                let reason = "no certificate: this machine is not a member (forebay cluster join)";
                return Err(Refusal::new(RefusalKind::Certificate, reason));
            }
            (Some(visitor), question) => self.member_question(visitor, question),
        };
        answer.and_then(|answer| visit::encode(&answer)).map_err(|error| {
            if matches!(error, Error::Token(_)) {
                tracing::warn!("a machine was not admitted: {error}");
            }
            visit::refusal(&error)
        })
    }
}

/// The wall clock, in milliseconds since the Unix epoch.
fn wall_ms(clock: &dyn Clock) -> i64 {
    let now = clock.now();
    now.seconds.saturating_mul(1000) + i64::from(now.nanoseconds / 1_000_000)
}

//! Members of a cluster with a real etcd: joining, leases, takeover, removal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::channel::{CallError, Message, ServiceId};
use forebay_base::time::SystemClock;
use forebay_base::{ClientId, Clock, Epoch, FilesetId, NodeId, Timestamp};
use forebay_cluster::Moment;
use forebay_etcd::testing::EtcdServer;
use forebay_node::authority::token::Token;
use forebay_node::home::EtcdAccess;
use forebay_node::members::visit::NewDisk;
use forebay_node::members::{InUse, Member, MemberStart, Ownership, Phase, boottime};
use forebay_node::settings::Settings;
use forebay_node::setup::{Disks, Last, Made, NewCluster, Tools};
use forebay_node::{Error, NodeHome};
use parking_lot::Mutex;

use crate::support::{Noting, message, quick, wait_until};

/// Short times, and yet longer than a busy machine keeps a node from renewing its lease.
fn protocol() -> forebay_cluster::Settings {
    forebay_cluster::Settings {
        node_lease: Duration::from_secs(6),
        etcd_timeout: Duration::from_secs(1),
        etcd_retry: Duration::from_millis(100),
        takeover_patience: Duration::from_millis(500),
        owner_hold_min: Duration::from_millis(200),
        open_retry: Duration::from_millis(300),
        ..forebay_cluster::Settings::default()
    }
}

/// Filesets of a node that note what happened to them.
#[derive(Default)]
struct Gates {
    until: Mutex<Moment>,
    open: Mutex<BTreeMap<FilesetId, Epoch>>,
    fenced: Mutex<Vec<(FilesetId, Epoch)>>,
    waited: AtomicBool,
    ended: Mutex<Option<String>>,
}

impl Gates {
    /// Whether a request for the fileset would be answered now, and in which epoch.
    fn answers(&self, fileset: u16) -> Option<Epoch> {
        let epoch = self.open.lock().get(&FilesetId(fileset)).copied();
        epoch.filter(|_| boottime() < *self.until.lock())
    }
}

impl Ownership for Gates {
    fn answer(&self, until: Moment) {
        *self.until.lock() = until;
    }

    fn wait(&self) {
        *self.until.lock() = Moment::default();
        self.waited.store(true, Ordering::SeqCst);
    }

    fn open(&self, fileset: FilesetId, epoch: Epoch, _lapse: Duration) -> Result<(), String> {
        self.open.lock().insert(fileset, epoch);
        Ok(())
    }

    fn settle(
        &self,
        fileset: FilesetId,
        _epoch: Epoch,
        _to: Option<ClientId>,
        _in_use: InUse,
    ) -> Result<(), String> {
        self.open.lock().remove(&fileset);
        Ok(())
    }

    fn passed(&self, _fileset: FilesetId, _to: Option<ClientId>) {}

    fn fence(&self, fileset: FilesetId, epoch: Epoch) {
        self.open.lock().remove(&fileset);
        self.fenced.lock().push((fileset, epoch));
    }

    fn release(&self, _fileset: FilesetId, _epoch: Epoch) {}

    fn ended(&self, reason: &str) {
        *self.ended.lock() = Some(reason.to_owned());
    }
}

/// A node of a test, with its folder.
struct Node {
    member: Member,
    gates: Arc<Gates>,
    files: Arc<Noting>,
}

struct Cluster {
    etcd: EtcdServer,
    folder: tempfile::TempDir,
}

fn tools() -> Tools {
    Tools::new(Settings::default(), Arc::new(SystemClock)).unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Cluster {
    fn new(etcd: EtcdServer) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        Cluster { etcd, folder }
    }

    fn base(&self, node: u32) -> std::path::PathBuf {
        self.folder.path().join(format!("machine{node}"))
    }

    fn home(&self, node: u32) -> NodeHome {
        NodeHome::of(&self.base(node), "grid1").unwrap()
    }

    fn access(&self) -> EtcdAccess {
        EtcdAccess {
            endpoints: self.etcd.endpoints(),
            authority: None,
            identity: None,
            started: false,
        }
    }

    fn plan(&self) -> NewCluster {
        NewCluster {
            name: "grid1".to_owned(),
            node: "host1".to_owned(),
            address: Some(format!("127.0.0.1:{}", free_port())),
            etcd: self.access(),
            names: None,
        }
    }

    fn init(&self) {
        let made = tools().init(&self.base(1), &self.plan(), |_| Ok(Vec::new())).unwrap();
        assert!(matches!(made, Made::Now(_)), "{made:?}");
    }

    fn start(&self, node: u32) -> Node {
        let (gates, files) = (Arc::<Gates>::default(), Noting::echo());
        let member = Member::start(MemberStart {
            home: self.home(node),
            services: vec![(ServiceId::Files, files.clone())],
            ownership: Arc::<Gates>::clone(&gates),
            weight: Some(1),
            settings: quick(),
            protocol: protocol(),
            clock: Arc::new(SystemClock),
        });
        let member = member.unwrap();
        wait_until("the node has its lease", || member.answers_until().is_some());
        Node { member, gates, files }
    }

    fn token(&self) -> Token {
        tools().token(&self.home(1), None, false).unwrap().0
    }

    fn join(&self, node: u32) {
        let address = format!("127.0.0.1:{}", free_port());
        let name = format!("host{node}");
        let made =
            tools().join(&self.base(node), &self.token(), &name, Some(&address), &[]).unwrap();
        assert_eq!(made.file().node, NodeId(node));
    }

    /// Three nodes at work.
    fn three(&self) -> BTreeMap<u32, Node> {
        self.init();
        let mut nodes = BTreeMap::from([(1, self.start(1))]);
        for node in [2, 3] {
            self.join(node);
            nodes.insert(node, self.start(node));
        }
        for node in nodes.values() {
            wait_until("all see all", || node.member.sight().alive.len() == 3);
        }
        nodes
    }
}

/// The nodes that would answer for a fileset at this moment.
fn answering(nodes: &BTreeMap<u32, Node>, fileset: u16) -> Vec<u32> {
    let answers = |(number, node): (&u32, &Node)| node.gates.answers(fileset).map(|_| *number);
    nodes.iter().filter_map(answers).collect()
}

#[test]
fn three_nodes_join_call_each_other_and_share_the_filesets() {
    let cluster = Cluster::new(EtcdServer::single());
    let nodes = cluster.three();
    for (from, to) in [(1, 2), (2, 3), (3, 1), (2, 1)] {
        let head = format!("{from} to {to}");
        let channel = nodes[&from].member.channel(NodeId(to), ServiceId::Files);
        channel.call(message(&head)).unwrap();
        assert_eq!(nodes[&to].files.count(head.as_bytes()), 1);
    }
    for fileset in 0..12 {
        nodes[&1].member.book().add_fileset(FilesetId(fileset)).unwrap();
    }
    for fileset in 0..12 {
        wait_until("one node owns it", || answering(&nodes, fileset).len() == 1);
    }
    let owners: Vec<u32> = (0..12).map(|fileset| answering(&nodes, fileset)[0]).collect();
    assert!((1..=3).all(|node| owners.contains(&node)), "{owners:?}");
    // What a user asks of a node that is no member of this cluster, or of another one, is refused; members are told.
    let tools = tools();
    let file = cluster.home(2).existing().unwrap();
    let (sight, _) = nodes[&1].member.book().read().unwrap();
    for (node, record) in &sight.nodes {
        let status = tools.status_of(&cluster.home(2), &file, (*node, &record.address)).unwrap();
        assert!(status.answers_ms.is_some_and(|left| left > 0), "{status:?}");
        assert!(!status.holdings.is_empty());
    }
    // A handover in order: the owner leaves nothing behind.
    nodes[&1].member.book().set_draining(NodeId(owners[0]), true).unwrap();
    for fileset in 0..12 {
        wait_until("another node owns it", || {
            let found = answering(&nodes, fileset);
            found.len() == 1 && found[0] != owners[0]
        });
    }
    assert!(nodes[&owners[0]].gates.fenced.lock().is_empty());
}

#[test]
fn the_filesets_of_a_dead_node_are_taken_over_by_exactly_one_other() {
    let cluster = Cluster::new(EtcdServer::single());
    let mut nodes = cluster.three();
    for fileset in 0..6 {
        nodes[&1].member.book().add_fileset(FilesetId(fileset)).unwrap();
        wait_until("one node owns it", || answering(&nodes, fileset).len() == 1);
    }
    let victim = answering(&nodes, 0)[0];
    let before: Vec<Option<Epoch>> =
        (0..6).map(|fileset| nodes[&victim].gates.answers(fileset)).collect();
    // As by a power cut: no word to anybody.
    let dead = nodes.remove(&victim).unwrap();
    let dead_files = Arc::clone(&dead.files);
    drop(dead.member);
    let start = std::time::Instant::now();
    for fileset in 0..6 {
        wait_until("exactly one other owns it", || {
            let found = answering(&nodes, fileset);
            assert!(found.len() <= 1, "{found:?} answer for fileset {fileset}");
            found.len() == 1
        });
    }
    println!("taken over after {:?}", start.elapsed());
    for node in nodes.values() {
        wait_until("its lease is over for all", || {
            !node.member.sight().alive.contains_key(&NodeId(victim))
        });
        for (fileset, epoch) in (0..).zip(&before) {
            if let (Some(epoch), Some(now)) = (epoch, node.gates.answers(fileset)) {
                assert!(now > *epoch, "fileset {fileset} is owned in the epoch of the dead");
            }
        }
        let error = node.member.channel(NodeId(victim), ServiceId::Files).call(message("dead"));
        assert!(error.is_err());
    }
    assert_eq!(dead_files.count(b"dead"), 0);
    // It comes back as another life, and owns again.
    nodes.insert(victim, cluster.start(victim));
    wait_until("it owns again", || (0..6).any(|fileset| answering(&nodes, fileset) == [victim]));
}

#[test]
fn members_wait_while_etcd_is_away_and_go_on_by_themselves() {
    let mut cluster = Cluster::new(EtcdServer::single());
    cluster.init();
    let node = cluster.start(1);
    node.member.book().add_fileset(FilesetId(1)).unwrap();
    wait_until("it owns it", || node.gates.answers(1).is_some());
    let epoch = node.gates.answers(1);
    cluster.etcd.kill(0);
    wait_until("it waits", || node.gates.waited.load(Ordering::SeqCst));
    assert_eq!(node.gates.answers(1), None);
    cluster.etcd.restart(0);
    wait_until("it answers again", || node.gates.answers(1).is_some());
    assert_eq!(node.gates.answers(1), epoch, "nobody took it over, so nothing is lost");
    assert!(node.gates.fenced.lock().is_empty());
}

#[test]
fn nothing_is_lost_when_one_of_three_members_of_etcd_dies() {
    let mut cluster = Cluster::new(EtcdServer::three());
    cluster.init();
    let first = cluster.start(1);
    cluster.join(2);
    let second = cluster.start(2);
    first.member.book().add_fileset(FilesetId(1)).unwrap();
    first.member.book().pin(FilesetId(1), Some(NodeId(1))).unwrap();
    wait_until("it owns it", || first.gates.answers(1).is_some());
    let epoch = first.gates.answers(1);
    let leader = cluster.etcd.leader();
    cluster.etcd.kill(leader);
    // Changes go through again, and the leases last beyond the time that they had left.
    wait_until("etcd takes changes", || {
        first.member.book().set_draining(NodeId(2), true).is_ok()
            && first.member.book().set_draining(NodeId(2), false).is_ok()
    });
    let until = boottime() + protocol().node_lease * 2;
    wait_until("the lease was renewed", || boottime() > until && first.gates.answers(1).is_some());
    assert_eq!(first.gates.answers(1), epoch);
    assert!(first.gates.fenced.lock().is_empty() && second.gates.fenced.lock().is_empty());
    wait_until("the other has its lease", || second.member.answers_until().is_some());
}

#[test]
fn a_removed_node_is_refused_although_its_certificate_is_valid() {
    let cluster = Cluster::new(EtcdServer::single());
    let nodes = cluster.three();
    let channel = nodes[&2].member.channel(NodeId(1), ServiceId::Files);
    channel.call(message("before")).unwrap();
    let tools = tools();
    let book = nodes[&1].member.book();
    let error = tools.remove(book, NodeId(2), Disks::None).unwrap_err().to_string();
    assert!(error.contains("host2 is running"), "{error}");
    // As an administrator does with a node that cannot be reached any more.
    book.remove_node(NodeId(2)).unwrap();
    wait_until("it hears of it", || {
        matches!(nodes[&2].member.wait_for_end(Duration::from_millis(10)), Phase::Ended(_))
    });
    assert!(nodes[&2].gates.ended.lock().as_ref().is_some_and(|reason| reason.contains("removed")));
    wait_until("its session is over", || {
        nodes[&1].member.sessions().iter().all(|session| session.node != NodeId(2))
    });
    for _ in 0..3 {
        let error = channel.call(message("after")).unwrap_err();
        assert!(
            matches!(
                error,
                CallError::Evicted(_) | CallError::Unreachable(_) | CallError::Unsent(_)
            ),
            "{error:?}"
        );
    }
    assert_eq!(nodes[&1].files.count(b"after"), 0);
    // Nor can its daemon start again, nor a command of it be answered.
    let file = cluster.home(2).existing().unwrap();
    let address = nodes[&1].member.file().address.clone();
    let asked = tools.status_of(&cluster.home(2), &file, (NodeId(1), &address));
    assert!(matches!(asked, Err(Error::Refused(_))), "{asked:?}");
    let error = tools.renew(&cluster.home(2)).unwrap_err().to_string();
    assert!(error.contains("removed"), "{error}");
    // Its number is not used again.
    let address = format!("127.0.0.1:{}", free_port());
    let joined = tools.join(&cluster.base(4), &cluster.token(), "host2", Some(&address), &[]);
    assert_eq!(joined.unwrap().file().node, NodeId(4));
}

#[test]
fn every_step_of_a_setup_can_be_repeated_and_names_are_not_taken_twice() {
    let cluster = Cluster::new(EtcdServer::single());
    let tools = tools();
    let plan = cluster.plan();
    // Interrupted before its end: nothing is half made.
    cluster.init();
    std::fs::remove_file(cluster.home(1).folder().join("node.json")).unwrap();
    assert!(matches!(
        tools.init(&cluster.base(1), &plan, |_| Ok(Vec::new())).unwrap(),
        Made::Now(_)
    ));
    assert!(matches!(
        tools.init(&cluster.base(1), &plan, |_| Ok(Vec::new())).unwrap(),
        Made::Before(_)
    ));
    let error = tools.init(&cluster.base(9), &plan, |_| Ok(Vec::new())).unwrap_err().to_string();
    assert!(error.contains("the name grid1 is taken") && error.contains("--name"), "{error}");
    assert!(!cluster.home(9).folder().exists(), "a refusal leaves nothing behind");
    let _node = cluster.start(1);
    let token = cluster.token();
    let address = format!("127.0.0.1:{}", free_port());
    let disk = NewDisk { uuid: "0a".to_owned(), location: "/srv/disk".to_owned(), shared: false };
    let join = |machine: u32, name: &str| {
        let disks = std::slice::from_ref(&disk);
        tools.join(&cluster.base(machine), &token, name, Some(&address), disks)
    };
    let first = join(2, "host2").unwrap();
    // The answer was lost, with everything but the key: the same node is admitted again.
    let folder = cluster.home(2).folder().to_owned();
    let draft = cluster.base(2).join(format!("joining-{}", token.cluster.simple()));
    std::fs::rename(&folder, &draft).unwrap();
    for name in ["node.json", "node.pem", "authority.pem"] {
        std::fs::remove_file(draft.join(name)).unwrap();
    }
    let again = join(2, "host2").unwrap();
    assert_eq!(again.file().node, first.file().node);
    assert!(matches!(join(2, "host2").unwrap(), Made::Before(_)));
    let error = join(3, "host2").unwrap_err().to_string();
    assert!(error.contains("the name \"host2\" belongs to node 2"), "{error}");
    assert_eq!(cluster.home(2).existing().unwrap().node, NodeId(2));
    assert!(cluster.home(2).authority(token.cluster).unwrap().is_none());
    let error = tools.token(&cluster.home(2), None, false).unwrap_err().to_string();
    assert!(error.contains("does not hold the key"), "{error}");
    // A node with disks is not removed by mistake.
    let book = tools.book(&cluster.home(1).existing().unwrap()).unwrap();
    let error = tools.remove(&book, NodeId(2), Disks::None).unwrap_err().to_string();
    assert!(error.contains("/srv/disk") && error.contains("--with-disks"), "{error}");
    tools.remove(&book, NodeId(2), Disks::Included).unwrap();
    assert!(book.read().unwrap().0.disks.is_empty());
}

const CHILD: &str = "FOREBAY_TEST_NODE";

/// The node of a folder in a process of its own, until that is killed. It answers calls for fileset 1 as its gate does.
#[test]
fn in_a_process_of_its_own() {
    let Ok(base) = std::env::var(CHILD) else { return };
    let gates = Arc::<Gates>::default();
    let asked = Arc::clone(&gates);
    let files = Noting::new(move |_, _| match asked.answers(1) {
        Some(epoch) => Ok(message(&format!("{epoch} fenced {:?}", asked.fenced.lock()))),
        None => Err(CallError::Refused(format!("closed, fenced {:?}", asked.fenced.lock()))),
    });
    let member = Member::start(MemberStart {
        home: NodeHome::of(Path::new(&base), "grid1").unwrap(),
        services: vec![(ServiceId::Files, files)],
        ownership: gates,
        weight: Some(100),
        settings: quick(),
        protocol: protocol(),
        clock: Arc::new(SystemClock),
    });
    let _member = member.unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// A process that is killed at the end.
struct Process(std::process::Child);

impl Process {
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_frozen_node_that_was_replaced_answers_nothing_when_it_is_thawed() {
    let cluster = Cluster::new(EtcdServer::single());
    cluster.init();
    let first = cluster.start(1);
    cluster.join(2);
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["members::in_a_process_of_its_own", "--exact"]);
    command.env(CHILD, cluster.base(2)).stdout(std::process::Stdio::null());
    let frozen = Process(command.spawn().unwrap());
    wait_until("it runs", || first.member.sight().alive.contains_key(&NodeId(2)));
    let book = first.member.book();
    book.pin(FilesetId(1), Some(NodeId(2))).unwrap();
    book.add_fileset(FilesetId(1)).unwrap();
    let channel = first.member.channel(NodeId(2), ServiceId::Files);
    let mut epoch = None;
    wait_until("it owns the fileset", || {
        let answer = channel.call(message("who"));
        epoch = answer.ok().map(|answer| epoch_and_rest(&answer).0);
        epoch.is_some()
    });
    book.pin(FilesetId(1), None).unwrap();
    frozen.signal(rustix::process::Signal::STOP);
    wait_until("the other takes over", || first.gates.answers(1).is_some());
    assert!(first.gates.answers(1).map(|epoch| epoch.0) > epoch, "in a later epoch");
    frozen.signal(rustix::process::Signal::CONT);
    // From its first moment on it answers for nothing; then it is told, and is a member again without the fileset.
    let begun = std::time::Instant::now();
    let mut fenced = false;
    while !fenced || begun.elapsed() < Duration::from_secs(4) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was not told that it was replaced");
        match channel.call(message("who")) {
            Ok(answer) => {
                let (now, rest) = epoch_and_rest(&answer);
                fenced |= rest.contains("fenced [(");
                // It is the better owner, so it may get the fileset back in order, in a later epoch.
                assert!(Some(now) > epoch, "it answered in epoch {now}, which was superseded");
            }
            Err(CallError::Refused(reason)) => fenced |= reason.contains("fenced [("),
            Err(CallError::Evicted(_) | CallError::Unreachable(_) | CallError::Unsent(_)) => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the node of [`in_a_process_of_its_own`] answers while it owns the fileset.
fn epoch_and_rest(answer: &Message) -> (u64, String) {
    let text = String::from_utf8(answer.head.clone()).unwrap();
    let (epoch, rest) = text.split_once(' ').unwrap();
    (epoch.parse().unwrap(), rest.to_owned())
}

/// A clock that is wrong.
struct Wrong(i64);

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        Timestamp::new(SystemClock.now().seconds + self.0, 0)
    }

    fn instant(&self) -> std::time::Instant {
        SystemClock.instant()
    }
}

#[test]
fn a_token_is_used_up_or_unknown_or_too_late() {
    let cluster = Cluster::new(EtcdServer::single());
    cluster.init();
    let _node = cluster.start(1);
    let tools = tools();
    let join = |tools: &Tools, machine: u32, token: &Token| {
        let address = format!("127.0.0.1:{}", free_port());
        let name = format!("host{machine}");
        tools.join(&cluster.base(machine), token, &name, Some(&address), &[])
    };
    let (once, _) = tools.token(&cluster.home(1), Some(1), false).unwrap();
    join(&tools, 2, &once).unwrap();
    let error = join(&tools, 3, &once).unwrap_err().to_string();
    assert!(error.contains("used up") && error.contains("forebay cluster token"), "{error}");
    let wrong = Token { secret: [0; 16], ..cluster.token() };
    assert!(join(&tools, 3, &wrong).unwrap_err().to_string().contains("unknown"));
    let short = Settings { token_life: Duration::from_secs(1), ..Settings::default() };
    let brief = Tools::new(short, Arc::new(SystemClock)).unwrap();
    let (late, _) = brief.token(&cluster.home(1), None, false).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    assert!(join(&tools, 3, &late).unwrap_err().to_string().contains("expired"));
    // A machine with a wrong clock is told so.
    let ahead = Tools::new(Settings::default(), Arc::new(Wrong(3600))).unwrap();
    let error = join(&ahead, 3, &cluster.token()).unwrap_err().to_string();
    // To the second, which may just end.
    assert!(error.contains("s ahead") && error.contains("timedatectl"), "{error}");
    assert!(error.contains("3600") || error.contains("3599"), "{error}");
    // The authority's key goes along if the token says so.
    let (with, _) = tools.token(&cluster.home(1), None, true).unwrap();
    join(&tools, 3, &with).unwrap();
    assert!(cluster.home(3).authority(with.cluster).unwrap().is_some());
    assert!(tools.token(&cluster.home(3), None, false).is_ok());
}

#[test]
fn errors_of_a_setup_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let tools = tools();
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let plan = |endpoint: &str| NewCluster {
        name: "grid1".to_owned(),
        node: "host1".to_owned(),
        address: None,
        etcd: EtcdAccess {
            endpoints: vec![endpoint.to_owned()],
            authority: None,
            identity: None,
            started: false,
        },
        names: None,
    };
    let error =
        tools.init(folder.path(), &plan(&nowhere), |_| Ok(Vec::new())).unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("client port"), "{error}");
    assert!(!folder.path().join("grid1").exists(), "nothing was made");
    let error = tools
        .init(folder.path(), &plan("https://127.0.0.1:2379"), |_| Ok(Vec::new()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("--etcd-ca"), "{error}");
    let home = NodeHome::of(folder.path(), "grid1").unwrap();
    let error = tools.token(&home, None, false).unwrap_err().to_string();
    assert!(error.contains("forebay cluster init"), "{error}");
    let token = Token {
        address: format!("127.0.0.1:{}", free_port()),
        cluster: uuid::Uuid::new_v4(),
        node: NodeId(1),
        authority: [0; 32],
        id: [0; 8],
        secret: [0; 16],
    };
    let error = tools.join(folder.path(), &token, "host2", None, &[]).unwrap_err().to_string();
    assert!(
        error.contains("nothing listens") && error.contains("forebay cluster start"),
        "{error}"
    );
    let joined = |path: &Path| std::fs::read_dir(path).unwrap().count();
    assert_eq!(joined(folder.path()), 1, "only the draft of the attempt");
}

#[test]
fn running_nodes_renew_their_certificates_before_they_expire() {
    let cluster = Cluster::new(EtcdServer::single());
    let brief = Settings { certificate_life: Duration::from_secs(15), ..quick() };
    let tools = Tools::new(brief.clone(), Arc::new(SystemClock)).unwrap();
    tools.init(&cluster.base(1), &cluster.plan(), |_| Ok(Vec::new())).unwrap();
    let start = |node: u32| {
        let member = Member::start(MemberStart {
            home: cluster.home(node),
            services: vec![(ServiceId::Files, Noting::echo())],
            ownership: Arc::<Gates>::default(),
            weight: Some(1),
            settings: brief.clone(),
            protocol: protocol(),
            clock: Arc::new(SystemClock),
        });
        member.unwrap()
    };
    let first = start(1);
    let address = format!("127.0.0.1:{}", free_port());
    let token = tools.token(&cluster.home(1), None, false).unwrap().0;
    tools.join(&cluster.base(2), &token, "host2", Some(&address), &[]).unwrap();
    let second = start(2);
    let expires = |node| first.book().node(NodeId(node)).unwrap().unwrap().0.expires;
    let before = [expires(1), expires(2)];
    // The one renews by itself, the other at the first. Those that they began with are over by then.
    for (node, before) in [(1, before[0]), (2, before[1])] {
        wait_until("renewed twice", || expires(node) > before + 14);
    }
    wait_until("both run", || first.sight().alive.len() == 2 && second.sight().alive.len() == 2);
    first.channel(NodeId(2), ServiceId::Files).call(message("there")).unwrap();
    second.channel(NodeId(1), ServiceId::Files).call(message("back")).unwrap();
    // By hand, as after a long rest.
    drop(second);
    let by_hand = self::tools().renew(&cluster.home(2)).unwrap();
    assert_eq!(cluster.home(2).existing().unwrap().expires, by_hand.expires);
}

#[test]
fn a_node_leaves_and_the_last_one_ends_the_cluster() {
    let cluster = Cluster::new(EtcdServer::single());
    cluster.init();
    let first = cluster.start(1);
    cluster.join(2);
    let tools = tools();
    let error = tools.leave(&cluster.home(1), Disks::None, Last::Refused).unwrap_err().to_string();
    assert!(error.contains("already runs this node"), "{error}");
    tools.leave(&cluster.home(2), Disks::None, Last::Refused).unwrap();
    assert!(cluster.home(2).node().unwrap().is_none());
    wait_until("the others see it", || first.member.sight().nodes.len() == 1);
    let book = first.member.book().clone();
    drop(first);
    wait_until("it has let go", || {
        let error = tools.leave(&cluster.home(1), Disks::None, Last::Refused);
        error.unwrap_err().to_string().contains("--last")
    });
    tools.leave(&cluster.home(1), Disks::None, Last::Ends).unwrap();
    assert!(book.cluster().unwrap().is_none());
    // The name is free again, and a machine that has left may join again.
    cluster.init();
    let _first = cluster.start(1);
    cluster.join(2);
    assert!(cluster.base(2).join("grid1.former-1").exists(), "what the former node had is kept");
}

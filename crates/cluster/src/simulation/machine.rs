//! One life of a simulated daemon: the state machines of the protocol, driven as a real daemon would.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};
use rand::Rng as _;

use super::asking::{Cached, Program};
use super::delegating::Report;
use super::etcd;
use super::files::{Body, Object, Op};
use super::plan::Pace;
use super::serving::{Origin, Part, Request};
use super::{Random, store};
use crate::grants::{self, GrantNumber, Grants, Item, RecallNumber};
use crate::membership::{self, Revision};
use crate::node::{self, Node};
use crate::ownership::{self, Change};
use crate::session::{self, ClientEnd, Connection, Frame, ServerEnd, client, server};
use crate::settings::Settings;
use crate::time::Moment;

/// What a daemon wants of the world.
#[derive(Debug)]
pub enum Out {
    Etcd(etcd::Request),
    Store(FilesetId, store::Request),
    Connect(NodeId, Connection),
    ToServer(NodeId, Connection, Frame<Body>),
    ToClient(Connection, Frame<Body>),
    HangUpOnServer(NodeId, Connection),
    HangUpOnClient(Connection),
    Later(Duration, Later),
    /// For the checks: a fileset was opened in this epoch.
    Opened(FilesetId, Epoch),
    /// For the checks: a request passed the gate.
    Answers(FilesetId, Epoch),
    /// For the checks: an operation took effect.
    Applied {
        fileset: FilesetId,
        op: Op,
        done: bool,
        again: bool,
        /// Its node has done it already, in a directory that was delegated to it.
        reported: bool,
    },
    /// For the checks: a client is gone to which a directory was delegated, which has this value now, in this epoch.
    Undelegated(FilesetId, Epoch, Object, Option<u64>),
    /// For the checks: a sync is acknowledged.
    Synced(FilesetId, Op),
    /// For the checks: a client did not acknowledge in time.
    Evicts(ClientId),
    /// For the checks: how long a change waited for recalls.
    Waited(Duration),
    /// For the history.
    Finished(usize, super::asking::Finish),
    /// Stops the daemon.
    Exit,
}

/// What a daemon does some time later.
#[derive(Clone, Debug)]
pub enum Later {
    Node(node::Event),
    /// The kernel has invalidated.
    Invalidated(FilesetId, NodeId, RecallNumber),
    Cleared(NodeId),
    /// A thread comes to a request that waits since its arrival.
    Serve(u64),
    /// A thread comes to a report.
    CarryReport(u64),
    /// What was done in delegated directories is to be reported.
    Report(FilesetId, NodeId),
    /// A thread comes to grants that were given back.
    Returned(FilesetId, ClientId, session::Operation, Item, GrantNumber),
    /// A thread comes to a recall.
    Recall(FilesetId, NodeId, session::Operation, RecallNumber, Vec<Item>),
    /// A thread comes to an answer.
    Answered(session::Call, Result<Body, session::Failure>),
    Program(usize),
    Commit,
}

/// What a daemon works with while it handles an input.
pub struct Context<'a> {
    pub now: Moment,
    pub random: &'a mut Random,
    pub pace: Pace,
    pub out: Vec<Out>,
}

impl Context<'_> {
    pub fn after(&mut self, duration: Duration, later: Later) {
        self.out.push(Out::Later(duration, later));
    }

    /// How long it takes until a thread comes to something: they overtake each other.
    pub fn thread(&mut self) -> Duration {
        let longest = match (self.pace, self.random.random_range(0..50)) {
            (Pace::Usual, 0) | (Pace::Sluggish, 0..10) => 2_000_000,
            (_, 0..5) => 30_000,
            _ => 300,
        };
        Duration::from_micros(self.random.random_range(0..longest))
    }

    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(self.random.random_range(least * 1000..=most * 1000))
    }
}

/// A daemon and the programs of its node.
pub struct Machine {
    pub me: ClientId,
    pub settings: Settings,
    pub node: Node,
    pub server: ServerEnd<Body>,
    pub clients: BTreeMap<NodeId, ClientEnd<Body>>,
    pub parts: BTreeMap<FilesetId, Part>,
    /// Grants of epochs that this node lost.
    pub leaving: Vec<(FilesetId, Grants)>,
    pub caches: BTreeMap<(FilesetId, NodeId), Cached>,
    pub programs: Vec<Program>,
    pub gates_open: bool,
    /// Whether the kernel's notifications about names take the directory's lock.
    pub kernel_locks: bool,
    pub calls: u64,
    pub changes: u64,
    pub recalls: BTreeMap<session::Call, (FilesetId, ClientId, RecallNumber)>,
    /// Calls of programs: which, and to whom.
    pub asked: BTreeMap<session::Call, (usize, NodeId)>,
    /// Reports under way.
    pub reports: BTreeMap<session::Call, (FilesetId, NodeId)>,
    /// Requests that no thread has come to.
    pub arrived: BTreeMap<u64, (FilesetId, Request)>,
    pub arrived_reports: BTreeMap<u64, (FilesetId, Report)>,
    /// Members that were there once: when they go, their clients are dropped.
    members: BTreeSet<ClientId>,
    pub watched: Revision,
}

impl Machine {
    pub fn new(settings: Settings, me: ClientId, programs: Vec<Program>, now: Moment) -> Machine {
        Machine {
            me,
            settings,
            node: Node::new(settings, me, 1, now),
            server: ServerEnd::new(settings, me),
            clients: BTreeMap::new(),
            parts: BTreeMap::new(),
            leaving: Vec::new(),
            caches: BTreeMap::new(),
            programs,
            gates_open: false,
            kernel_locks: false,
            calls: 0,
            changes: 0,
            recalls: BTreeMap::new(),
            asked: BTreeMap::new(),
            reports: BTreeMap::new(),
            arrived: BTreeMap::new(),
            arrived_reports: BTreeMap::new(),
            members: BTreeSet::new(),
            watched: Revision(0),
        }
    }

    /// What its programs wait for, for people.
    pub fn waiting(&self) -> Vec<String> {
        let programs = self.programs.iter().filter_map(|program| program.asking.as_ref());
        let told = programs.map(|asking| format!("\n{:?} waits: {asking:?}", self.me));
        let mut told: Vec<String> = told.collect();
        if !told.is_empty() {
            let delegated = self.caches.iter().map(|(place, cached)| (place, &cached.delegated));
            told.extend(delegated.map(|(place, it)| format!("\n  of {place:?}: {it:?}")));
        }
        told
    }

    /// When [`Machine::tick`] is due.
    pub fn next_wake(&self) -> Moment {
        let clients = self.clients.values().map(ClientEnd::next_wake).min();
        let wakes = [self.node.next_wake(), self.server.next_wake(), self.grants_wake()];
        let caches = self.caches.values().map(Cached::next_wake);
        let wake = wakes.into_iter().chain(caches).min().unwrap_or_default();
        clients.map_or(wake, |it| it.min(wake))
    }

    pub fn tick(&mut self, ctx: &mut Context) {
        self.step(node::Event::Tick, ctx);
        self.serving(server::Event::Tick, ctx);
        for server in self.clients.keys().copied().collect::<Vec<_>>() {
            self.calling(server, client::Event::Tick, ctx);
        }
        self.grants_tick(ctx);
        self.caches_tick(ctx);
    }

    pub fn later(&mut self, later: Later, ctx: &mut Context) {
        match later {
            Later::Node(event) => self.step(event, ctx),
            Later::Invalidated(fileset, server, recall) => {
                self.invalidated(fileset, server, recall, ctx);
            }
            Later::Cleared(server) => {
                self.cleared(server);
                self.calling(server, client::Event::Cleared, ctx);
            }
            Later::Serve(number) => {
                if let Some((fileset, request)) = self.arrived.remove(&number) {
                    self.serve(fileset, request, ctx);
                }
            }
            Later::CarryReport(number) => {
                if let Some((fileset, report)) = self.arrived_reports.remove(&number) {
                    self.report_arrived(fileset, report, ctx);
                }
            }
            Later::Report(fileset, server) => self.report_due((fileset, server), ctx),
            Later::Recall(fileset, server, operation, recall, items) => {
                self.recall(fileset, server, operation, recall, items, ctx);
            }
            Later::Returned(fileset, client, operation, item, number) => {
                let returned = grants::owner::Event::Returned(client, vec![(item, number)]);
                self.granting(fileset, returned, ctx);
                let answered = server::Event::Answered(client, operation, Body::Acknowledge);
                self.serving(answered, ctx);
            }
            Later::Answered(call, result) => self.answered(call, &result, ctx),
            Later::Program(program) => self.run(program, ctx),
            Later::Commit => {
                self.commit_all(ctx);
                ctx.after(Duration::from_secs(1), Later::Commit);
            }
        }
    }

    /// An event of membership and ownership.
    pub fn step(&mut self, event: node::Event, ctx: &mut Context) {
        self.note_members(&event, ctx);
        if let node::Event::Registered { view, .. }
        | node::Event::Ownership(ownership::Event::View(view)) = &event
        {
            self.watched = self.watched.max(view.revision);
        }
        for effect in self.node.step(event, ctx.now) {
            match effect {
                node::Effect::Membership(effect) => self.membership(effect, ctx),
                node::Effect::Ownership(ownership::Effect::Swap { attempt, swap }) => {
                    ctx.out.push(Out::Etcd(etcd::Request::Swap(attempt, swap)));
                }
                node::Effect::Ownership(ownership::Effect::Read) => {
                    ctx.out.push(Out::Etcd(etcd::Request::Read));
                }
                node::Effect::Ownership(ownership::Effect::Stopped) => ctx.out.push(Out::Exit),
                node::Effect::Ownership(effect) => self.owned(&effect, ctx),
            }
        }
    }

    fn membership(&mut self, effect: membership::Effect, ctx: &mut Context) {
        use membership::Effect;
        match effect {
            Effect::Grant { attempt, ttl } => {
                ctx.out.push(Out::Etcd(etcd::Request::Grant(attempt, ttl)));
            }
            Effect::Register { attempt, member, expect } => {
                let request = etcd::Request::Register(attempt, self.me.node, member, expect);
                ctx.out.push(Out::Etcd(request));
            }
            Effect::Renew { attempt, lease } => {
                ctx.out.push(Out::Etcd(etcd::Request::Renew(attempt, lease)));
            }
            Effect::Answer { .. } => {
                self.gates_open = true;
                for fileset in self.parts.keys().copied().collect::<Vec<_>>() {
                    self.serve_waiting(fileset, ctx);
                }
            }
            Effect::Wait => self.gates_open = false,
            Effect::Replaced => ctx.out.push(Out::Exit),
        }
    }

    /// Clients whose node's lease has ended are dropped.
    fn note_members(&mut self, event: &node::Event, ctx: &mut Context) {
        let of = |node: &NodeId, member: &membership::Member| ClientId {
            node: *node,
            incarnation: member.incarnation,
        };
        let mut gone = Vec::new();
        match event {
            node::Event::Registered { view, .. }
            | node::Event::Ownership(ownership::Event::View(view)) => {
                let now: BTreeSet<ClientId> =
                    view.members.iter().map(|(node, it)| of(node, it)).collect();
                gone.extend(self.members.difference(&now).copied());
                self.members = now;
            }
            node::Event::Ownership(ownership::Event::Changed {
                change: Change::Member(node, member),
                ..
            }) => {
                let now = member.map(|member| of(node, &member));
                gone.extend(self.members.iter().filter(|it| it.node == *node && Some(**it) != now));
                self.members.retain(|it| it.node != *node);
                self.members.extend(now);
            }
            _ => {}
        }
        for client in gone {
            self.serving(server::Event::Evict(client), ctx);
        }
    }

    /// An event of the server's end.
    pub fn serving(&mut self, event: server::Event<Body>, ctx: &mut Context) {
        let now = ctx.now;
        let mut server =
            std::mem::replace(&mut self.server, ServerEnd::new(self.settings, self.me));
        let effects = server.step(event, now, |client| self.word(client, now));
        self.server = server;
        for effect in effects {
            match effect {
                server::Effect::Close(connection) => ctx.out.push(Out::HangUpOnClient(connection)),
                server::Effect::Ended(client) => self.ended(client, ctx),
                server::Effect::Dropped(client) => self.dropped(client, ctx),
                server::Effect::Shared(client, shared) => self.served(client, shared, ctx),
            }
        }
    }

    fn served(&mut self, client: ClientId, effect: session::Effect<Body>, ctx: &mut Context) {
        match effect {
            session::Effect::Send(connection, frame) => {
                ctx.out.push(Out::ToClient(connection, frame));
            }
            session::Effect::Close(connection) => ctx.out.push(Out::HangUpOnClient(connection)),
            session::Effect::Deliver { operation, not_after, body } => {
                let (fileset, op) = match body {
                    Body::Ask(fileset, op) => (fileset, op),
                    Body::Return(fileset, item, number) => {
                        let pause = ctx.thread();
                        let later = Later::Returned(fileset, client, operation, item, number);
                        return ctx.after(pause, later);
                    }
                    Body::Report(fileset, epoch, changes) => {
                        let report = Report { client, operation, epoch, changes };
                        self.calls += 1;
                        self.arrived_reports.insert(self.calls, (fileset, report));
                        let pause = ctx.thread();
                        return ctx.after(pause, Later::CarryReport(self.calls));
                    }
                    Body::Reply(_) | Body::Recall(..) | Body::Acknowledge | Body::Reported(_) => {
                        return;
                    }
                };
                let origin = Origin::Remote(client, operation);
                let request = Request { origin, not_after, op, since: ctx.now };
                self.calls += 1;
                self.arrived.insert(self.calls, (fileset, request));
                let pause = ctx.thread();
                ctx.after(pause, Later::Serve(self.calls));
            }
            session::Effect::Complete(call, result) => {
                self.recalled(call, result == Ok(Body::Acknowledge), ctx);
            }
        }
    }

    /// An event of the client's end of a session.
    pub fn calling(&mut self, to: NodeId, event: client::Event<Body>, ctx: &mut Context) {
        let (settings, me) = (self.settings, self.me);
        let end = self.clients.entry(to).or_insert_with(|| ClientEnd::new(settings, me));
        for effect in end.step(event, ctx.now) {
            match effect {
                client::Effect::Connect(connection) => ctx.out.push(Out::Connect(to, connection)),
                client::Effect::Vouched(until) => self.vouched(to, until),
                client::Effect::Lost => self.lost(to, ctx),
                client::Effect::Shared(shared) => self.called(to, shared, ctx),
            }
        }
    }

    fn called(&mut self, to: NodeId, effect: session::Effect<Body>, ctx: &mut Context) {
        match effect {
            session::Effect::Send(connection, frame) => {
                ctx.out.push(Out::ToServer(to, connection, frame));
            }
            session::Effect::Close(connection) => {
                ctx.out.push(Out::HangUpOnServer(to, connection));
            }
            session::Effect::Deliver { operation, body, .. } => {
                let Body::Recall(fileset, recall, items) = body else { return };
                let pause = ctx.thread();
                ctx.after(pause, Later::Recall(fileset, to, operation, recall, items));
            }
            session::Effect::Complete(call, result) => {
                let pause = ctx.thread();
                ctx.after(pause, Later::Answered(call, result));
            }
        }
    }
}

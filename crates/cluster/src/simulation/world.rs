//! The world of a run: nodes, the network between them, etcd and the stores, in one order of events.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_base::{ClientId, FilesetId, NodeId};
use rand::{Rng as _, SeedableRng as _};

use super::asking::Program;
use super::clock::NodeClock;
use super::etcd::{self, Etcd};
use super::files::Body;
use super::machine::{Context, Later, Machine, Out};
use super::network::Network;
use super::plan::{Kind, Pace, Plan, Trouble, Way};
use super::witness::Witness;
use super::{Random, store};
use crate::fault::{self, Fault};
use crate::node;
use crate::ownership::{self, Change};
use crate::session::{Connection, Frame, client, server};

/// What reaches a daemon.
#[derive(Debug)]
pub enum Input {
    Etcd(u64, node::Event),
    EtcdTimeout(u64),
    Watch,
    Stored(FilesetId, store::Answer),
    Connected(NodeId, Connection),
    ServerClosed(NodeId, Connection),
    FromServer(NodeId, Connection, Frame<Body>),
    ClientClosed(Connection),
    FromClient(Connection, Frame<Body>),
    Later(Later),
    Move(FilesetId, NodeId),
    Stop,
    Tick,
}

#[derive(Debug)]
enum Event {
    /// For one life of a daemon.
    Input(ClientId, Input),
    /// A program has thought for long enough.
    Program(ClientId, usize),
    AtEtcd(ClientId, u64, etcd::Request),
    LeaseEnds,
    AtStore(ClientId, FilesetId, store::Request),
    /// A connection reaches its server.
    Connecting(ClientId, NodeId, Connection),
    Begin(Trouble),
    End(Trouble),
    Start(NodeId),
}

/// A node: its clock, and its daemon if it runs.
struct Place {
    clock: NodeClock,
    life: u64,
    machine: Option<Machine>,
    frozen: usize,
    frozen_since: Duration,
    /// What arrived while the daemon was frozen.
    deferred: VecDeque<Input>,
    to_etcd: usize,
    from_etcd: usize,
    asked: BTreeMap<u64, etcd::Request>,
    tick: Option<Duration>,
}

/// A run under way.
pub struct World {
    plan: Plan,
    pub now: Duration,
    random: Random,
    events: BTreeMap<(Duration, u64), Event>,
    order: u64,
    places: BTreeMap<NodeId, Place>,
    network: Network,
    etcd: Etcd,
    stores: BTreeMap<FilesetId, store::Store>,
    slow: usize,
    lease_end: Option<Duration>,
    pub witness: Witness,
    pub steps: u64,
}

/// How long after the last trouble everything must be answered: the lease, etcd's delay, two daemons that wait for their turn
/// to take over, and a session that begins anew.
pub const CALM_BOUND: Duration = Duration::from_secs(60);

impl World {
    pub fn new(plan: Plan) -> World {
        let mut random = Random::seed_from_u64(plan.seed);
        let filesets = (0..plan.load.filesets).map(FilesetId);
        let mut etcd = Etcd::new(filesets.clone());
        etcd.compares = !fault::is(Fault::TakeoverWithoutCompare);
        let mut places = BTreeMap::new();
        let ppm = i64::from(plan.settings.clock_drift.ppm) * 49 / 100;
        for node in (1..=plan.nodes).map(NodeId) {
            let clock = NodeClock {
                start: Duration::from_secs(random.random_range(0..1_000_000)),
                fast_ppm: random.random_range(-ppm..=ppm),
                stood: Duration::ZERO,
            };
            let place = Place {
                clock,
                life: 0,
                machine: None,
                frozen: 0,
                frozen_since: Duration::ZERO,
                deferred: VecDeque::new(),
                to_etcd: 0,
                from_etcd: 0,
                asked: BTreeMap::new(),
                tick: None,
            };
            places.insert(node, place);
        }
        let mut world = World {
            now: Duration::ZERO,
            random,
            events: BTreeMap::new(),
            order: 0,
            places,
            network: Network::default(),
            etcd,
            stores: filesets.map(|fileset| (fileset, store::Store::default())).collect(),
            slow: 0,
            lease_end: None,
            witness: Witness::new(plan.clocks_stop),
            steps: 0,
            plan,
        };
        for node in (1..=world.plan.nodes).map(NodeId) {
            let at = Duration::from_millis(world.random.random_range(0..500));
            world.at(at, Event::Start(node));
        }
        for trouble in world.plan.troubles.clone() {
            world.at(trouble.at, Event::Begin(trouble));
            world.at(trouble.at + trouble.lasts, Event::End(trouble));
        }
        world
    }

    /// Runs to the end; the first thing that must not happen ends it.
    pub fn run(&mut self) -> Result<(), String> {
        let end = self.plan.calm + CALM_BOUND;
        while let Some(((time, _), event)) = self.events.pop_first() {
            if time > end {
                break;
            }
            self.now = time;
            self.steps += 1;
            self.happen(event);
            if let Some(fault) = self.witness.fault.take() {
                return Err(format!("after {:?}: {fault}", self.now));
            }
            if time > self.plan.calm && self.witness.is_idle() && self.is_settled() {
                break;
            }
        }
        self.witness.finish(self.now, self.plan.calm).map_err(|fault| {
            let machines = self.places.values().filter_map(|place| place.machine.as_ref());
            let waiting = machines.flat_map(Machine::waiting).collect::<String>();
            fault + &waiting
        })
    }

    /// Whether no program has anything to do.
    fn is_settled(&self) -> bool {
        let machines = self.places.values().filter_map(|place| place.machine.as_ref());
        let mut programs = machines.flat_map(|machine| &machine.programs);
        programs.all(|program| program.stopped && program.asking.is_none())
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.order += 1;
        self.events.insert((time.max(self.now), self.order), event);
    }

    fn input(&mut self, time: Duration, to: ClientId, input: Input) {
        self.at(time, Event::Input(to, input));
    }

    /// How long something takes on the network or in etcd.
    fn delay(&mut self) -> Duration {
        let longest = match self.random.random_range(0..100) {
            0 if self.plan.pace != Pace::Quick => 1_500_000,
            0..5 => 60_000,
            _ if self.slow > 0 => 2_500_000,
            _ => 1500,
        };
        Duration::from_micros(self.random.random_range(50..longest))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(to, input) => self.deliver(to, input),
            Event::Program(of, program) => self.wake(of, program),
            Event::AtEtcd(from, key, request) => self.at_etcd(from, key, request),
            Event::LeaseEnds => {
                self.lease_end = None;
                self.etcd.expire(self.now);
                self.etcd_changed();
            }
            Event::AtStore(from, fileset, request) => {
                let store = self.stores.get_mut(&fileset).expect("all filesets have a store");
                let fails = self.random.random_range(0..30) == 0;
                let executed = match request {
                    store::Request::Open(epoch) if fails => Ok(store::Answer::Failed(epoch)),
                    request => store.execute(fileset, request),
                };
                match executed {
                    Ok(answer) => {
                        let back = self.now + self.delay();
                        self.input(back, from, Input::Stored(fileset, answer));
                    }
                    Err(fault) => self.witness.fault = Some(fault),
                }
            }
            Event::Connecting(from, to, connection) => self.connecting(from, to, connection),
            Event::Begin(trouble) => self.begin(trouble),
            Event::End(trouble) => self.end(trouble),
            Event::Start(node) => self.start(node),
        }
    }

    fn start(&mut self, node: NodeId) {
        let place = self.places.get_mut(&node).expect("nodes stay");
        if place.machine.is_some() {
            return;
        }
        place.life += 1;
        let me = ClientId { node, incarnation: place.life };
        let now = place.clock.show(self.now);
        let programs: Vec<Program> = (0..self.plan.programs).map(|_| Program::default()).collect();
        let mut machine = Machine::new(self.plan.settings, me, programs, now);
        machine.kernel_locks = self.plan.kernel_locks;
        place.machine = Some(machine);
        place.deferred.clear();
        place.asked.clear();
        place.tick = None;
        self.input(self.now, me, Input::Tick);
        self.input(self.now, me, Input::Later(Later::Commit));
        for program in 0..self.plan.programs {
            let think = self.random.random_range(0..2000);
            self.at(self.now + Duration::from_millis(think), Event::Program(me, program));
        }
    }

    fn crash(&mut self, node: NodeId) {
        let place = self.places.get_mut(&node).expect("nodes stay");
        let Some(machine) = place.machine.take() else { return };
        place.deferred.clear();
        self.witness.died(machine.me);
        let closed = self.network.crash(machine.me);
        for (to, input) in closed {
            let later = self.now + self.delay();
            self.input(later, to, input);
        }
    }

    /// The daemon of this life, if it runs.
    fn machine(&mut self, id: ClientId) -> Option<&mut Machine> {
        let machine = self.places.get_mut(&id.node)?.machine.as_mut()?;
        (machine.me == id).then_some(machine)
    }

    fn deliver(&mut self, to: ClientId, input: Input) {
        if self.machine(to).is_none() {
            return;
        }
        let place = self.places.get_mut(&to.node).expect("nodes stay");
        if place.frozen > 0 {
            place.deferred.push_back(input);
            return;
        }
        if matches!(input, Input::Tick) && place.tick.is_some_and(|due| due > self.now) {
            // A later tick replaced it.
            return;
        }
        self.with(to, |world, machine, ctx| world.handle(machine, input, ctx));
    }

    /// Has a daemon do something, and carries out what it wants.
    fn with(&mut self, id: ClientId, act: impl FnOnce(&mut World, &mut Machine, &mut Context)) {
        let place = self.places.get_mut(&id.node).expect("nodes stay");
        let Some(mut machine) = place.machine.take() else { return };
        let now = place.clock.show(self.now);
        let mut random = Random::seed_from_u64(self.random.random());
        let mut ctx = Context { now, random: &mut random, pace: self.plan.pace, out: Vec::new() };
        act(self, &mut machine, &mut ctx);
        let out = ctx.out;
        let wake = machine.next_wake();
        let place = self.places.get_mut(&id.node).expect("nodes stay");
        let due = place.clock.when(wake).max(self.now + Duration::from_micros(1));
        place.machine = Some(machine);
        let sooner = place.tick.is_none_or(|tick| due < tick || tick <= self.now);
        if sooner && wake.0 != Duration::MAX {
            place.tick = Some(due);
            self.input(due, id, Input::Tick);
        }
        for out in out {
            self.carry_out(id, out);
        }
    }

    fn handle(&mut self, machine: &mut Machine, input: Input, ctx: &mut Context) {
        match input {
            Input::Etcd(key, event) => {
                let place = self.places.get_mut(&machine.me.node).expect("nodes stay");
                place.asked.remove(&key);
                machine.step(event, ctx);
            }
            Input::EtcdTimeout(key) => {
                let place = self.places.get_mut(&machine.me.node).expect("nodes stay");
                if let Some(request) = place.asked.remove(&key) {
                    machine.step(request.unanswered(), ctx);
                }
            }
            Input::Watch => self.watch(machine, ctx),
            Input::Stored(fileset, answer) => machine.stored(fileset, answer, ctx),
            Input::Connected(to, connection) => {
                machine.calling(to, client::Event::Connected(connection), ctx);
            }
            Input::ServerClosed(to, connection) => {
                machine.calling(to, client::Event::Closed(connection), ctx);
            }
            Input::FromServer(to, connection, frame) => {
                machine.calling(to, client::Event::Received(connection, frame), ctx);
            }
            Input::ClientClosed(connection) => {
                machine.serving(server::Event::Closed(connection), ctx);
            }
            Input::FromClient(connection, frame) => {
                machine.serving(server::Event::Received(connection, frame), ctx);
            }
            Input::Later(later) => machine.later(later, ctx),
            Input::Move(fileset, to) => {
                let event = ownership::Event::Move { fileset, to };
                machine.step(node::Event::Ownership(event), ctx);
            }
            Input::Stop => machine.step(node::Event::Ownership(ownership::Event::Stop), ctx),
            Input::Tick => machine.tick(ctx),
        }
    }

    /// A watch reports what it has not reported yet, if etcd can be reached.
    fn watch(&mut self, machine: &mut Machine, ctx: &mut Context) {
        if self.places[&machine.me.node].from_etcd > 0 {
            return;
        }
        let from = self.etcd.log.partition_point(|(revision, _)| *revision <= machine.watched);
        for (revision, change) in self.etcd.log[from..].iter().copied() {
            machine.watched = revision;
            let event = ownership::Event::Changed { revision, change };
            machine.step(node::Event::Ownership(event), ctx);
        }
    }

    fn etcd_changed(&mut self) {
        for node in self.places.keys().copied().collect::<Vec<_>>() {
            let place = &self.places[&node];
            if place.from_etcd == 0
                && let Some(machine) = &place.machine
                && self.etcd.log.last().is_some_and(|(revision, _)| *revision > machine.watched)
            {
                let me = machine.me;
                let later = self.now + self.delay();
                self.input(later, me, Input::Watch);
            }
        }
        if let Some(end) = self.etcd.next_end()
            && self.lease_end.is_none_or(|known| end < known)
        {
            self.lease_end = Some(end);
            self.at(end, Event::LeaseEnds);
        }
    }

    fn at_etcd(&mut self, from: ClientId, key: u64, request: etcd::Request) {
        if self.places[&from.node].to_etcd > 0 {
            return;
        }
        let before = self.etcd.log.len();
        let answer = self.etcd.execute(request, self.now, &mut self.random);
        for (_, change) in &self.etcd.log[before..] {
            self.witness.changed(*change, self.now);
        }
        self.etcd_changed();
        if self.places[&from.node].from_etcd == 0 {
            let back = self.now + self.delay();
            self.input(back, from, Input::Etcd(key, answer));
        }
    }

    /// A program begins its next operation, or tries again what its frozen daemon could not do.
    fn wake(&mut self, of: ClientId, program: usize) {
        let frozen = self.places[&of.node].frozen > 0;
        let (load, calm) = (self.plan.load, self.now >= self.plan.calm);
        let Some(machine) = self.machine(of) else { return };
        if calm {
            machine.programs[program].stopped = true;
            return;
        }
        let number = self.witness.next_number();
        self.with(of, |world, machine, ctx| {
            let asking = machine.draw(program, load, number, ctx);
            world.witness.begin(machine.me, program, asking.fileset, asking.op, world.now);
            if let Some(value) = machine.kernel_read(program, ctx.now) {
                machine.finish(program, super::asking::Finish::Read(value), ctx);
            } else if frozen {
                ctx.after(Duration::ZERO, Later::Program(program));
            } else {
                machine.run(program, ctx);
            }
        });
    }

    fn carry_out(&mut self, from: ClientId, out: Out) {
        match out {
            Out::Etcd(request) => {
                self.order += 1;
                let key = self.order;
                let place = self.places.get_mut(&from.node).expect("nodes stay");
                place.asked.insert(key, request.clone());
                let there = self.now + self.delay();
                // Now and then a request lies about for long before etcd gets it.
                let lies = self.random.random_range(0..self.plan.prompt) == 0;
                let long = self.random.random_range(500..12_000) * u64::from(lies);
                let there = there + Duration::from_millis(long);
                self.at(there, Event::AtEtcd(from, key, request));
                let timeout = self.now + self.plan.settings.etcd_timeout;
                self.input(timeout, from, Input::EtcdTimeout(key));
            }
            Out::Store(fileset, request) => {
                let there = self.now + self.delay() * 2;
                self.at(there, Event::AtStore(from, fileset, request));
            }
            Out::Connect(to, connection) => {
                let there = self.now + self.delay();
                self.at(there, Event::Connecting(from, to, connection));
            }
            Out::ToServer(to, connection, frame) => {
                let delay = self.delay();
                let sent =
                    self.network.send_to_server(from, to, connection, frame, self.now + delay);
                self.sent(sent);
            }
            Out::ToClient(connection, frame) => {
                let delay = self.delay();
                let sent = self.network.send_to_client(connection, frame, self.now + delay);
                self.sent(sent);
            }
            Out::HangUpOnServer(to, connection) => {
                let delay = self.delay();
                let sent = self.network.hang_up_on_server(from, to, connection, self.now + delay);
                self.sent(sent);
            }
            Out::HangUpOnClient(connection) => {
                let delay = self.delay();
                let sent = self.network.hang_up_on_client(connection, self.now + delay);
                self.sent(sent);
            }
            Out::Later(pause, later) => self.input(self.now + pause, from, Input::Later(later)),
            Out::Opened(fileset, epoch) => {
                let states = &self.stores[&fileset].states;
                self.witness.opened(fileset, epoch, states, self.plan.load, self.now);
            }
            Out::Answers(fileset, epoch) => {
                let owner = self.etcd.owners.get(&(fileset, epoch)).copied();
                self.witness.answers(fileset, epoch, from, owner);
            }
            Out::Applied { fileset, op, done, again, reported } => {
                let holders = self.holders(fileset, op);
                if reported {
                    self.witness.reported(fileset, op, done, again, &holders);
                } else {
                    self.witness.applied(fileset, op, done, again, &holders);
                }
            }
            Out::Undelegated(fileset, epoch, object, value) => {
                self.witness.undelegated((fileset, epoch), object, value, self.now);
            }
            Out::Synced(fileset, op) => {
                let state = self.stores[&fileset].states.get(&op.object);
                self.witness.synced(fileset, op, state);
            }
            Out::Evicts(client) => self.evicts(from, client),
            Out::Waited(waited) => self.waited(waited),
            Out::Finished(program, finish) => self.finished(from, program, finish),
            Out::Exit => {
                let again = self.now + Duration::from_secs(3);
                self.crash(from.node);
                self.at(again, Event::Start(from.node));
            }
        }
    }

    /// A client that did not acknowledge is dropped: only if something was wrong.
    fn evicts(&mut self, by: ClientId, client: ClientId) {
        let long = self.plan.settings.recall_timeout + Duration::from_secs(5);
        let recent = |trouble: &Trouble| {
            trouble.at <= self.now && self.now <= trouble.at + trouble.lasts + long
        };
        if !self.plan.troubles.iter().any(recent) {
            let of = self.places[&client.node].machine.as_ref();
            let caches = of.map(|machine| format!("{:?}", machine.caches));
            let what = format!("{by:?} drops {client:?} although nothing is wrong: {caches:?}");
            self.witness.fault.get_or_insert(what);
        }
    }

    /// A change waited for recalls: never for long if nothing is wrong, but for kernels that lock directories. Where there are fewer slots
    /// than programs, a recall may wait for others that wait for such kernels.
    fn waited(&mut self, waited: Duration) {
        let settings = &self.plan.settings;
        let others = self.plan.nodes as usize * self.plan.programs - 1;
        let turns = u32::try_from(1 + others / settings.calls_max).unwrap_or(u32::MAX);
        let longest = settings.vouch.saturating_mul(turns).min(settings.recall_timeout);
        let locked = if self.plan.kernel_locks { longest } else { Duration::ZERO };
        if self.plan.pace == Pace::Quick && waited > locked + Duration::from_secs(1) {
            let what = format!("a change waited for {waited:?} although nothing is wrong");
            self.witness.fault.get_or_insert(what);
        }
    }

    fn sent(&mut self, sent: Option<(Duration, ClientId, Input)>) {
        if let Some((time, to, input)) = sent {
            self.input(time, to, input);
        }
    }

    fn finished(&mut self, from: ClientId, program: usize, finish: super::asking::Finish) {
        let Some(machine) = self.machine(from) else { return };
        if machine.programs[program].asking.take().is_none() {
            return;
        }
        self.witness.end(from, program, finish, self.now);
        let think = match finish {
            // Several changes are reported together.
            super::asking::Finish::Here => 10,
            _ => self.plan.load.think_millis,
        };
        let think = self.random.random_range(0..=think * 2);
        self.at(self.now + Duration::from_millis(think), Event::Program(from, program));
    }

    /// Nodes whose kernel would answer with what it keeps of an object that has just changed. The node whose program changes
    /// it is another matter.
    fn holders(&self, fileset: FilesetId, op: super::files::Op) -> Vec<NodeId> {
        let author = self.witness.author(op.number);
        let item = super::files::item(op.object);
        let others = self.places.iter().filter(|(node, _)| author != Some(**node));
        let holding = others.filter(|(_, place)| {
            let now = place.clock.show(self.now);
            place.machine.as_ref().is_some_and(|machine| machine.keeps(fileset, &item, now))
        });
        holding.map(|(node, _)| *node).collect()
    }

    fn connecting(&mut self, from: ClientId, to: NodeId, connection: Connection) {
        let server = self.places[&to].machine.as_ref().map(|machine| machine.me);
        let back = self.now + self.delay();
        match server {
            Some(server)
                if !self.network.is_cut(from.node, to) && !self.network.is_cut(to, from.node) =>
            {
                self.network.connect(from, connection, server);
                self.input(back, from, Input::Connected(to, connection));
            }
            // Refused at once, or no answer at all.
            None if !self.network.is_cut(from.node, to) => {
                self.input(back, from, Input::ServerClosed(to, connection));
            }
            Some(_) | None => {}
        }
    }

    fn begin(&mut self, trouble: Trouble) {
        match trouble.kind {
            Kind::Crash(node) => self.crash(node),
            Kind::Stop(node) => {
                if let Some(me) = self.places[&node].machine.as_ref().map(|machine| machine.me) {
                    self.input(self.now, me, Input::Stop);
                }
            }
            Kind::Freeze(node) => {
                let now = self.now;
                let place = self.place(node);
                if place.frozen == 0 {
                    place.frozen_since = now;
                }
                place.frozen += 1;
            }
            Kind::Severed(node, way) => self.sever(node, way, 1),
            Kind::NoEtcd => {
                for node in self.places.keys().copied().collect::<Vec<_>>() {
                    self.sever(node, Way::Both, 1);
                }
            }
            Kind::Election => self.etcd.elect(self.now),
            Kind::Cut(one, other, way) => self.network.cut(one, other, way),
            Kind::Reset(one, other) => {
                for (to, input) in self.network.reset(one, other) {
                    let later = self.now + self.delay();
                    self.input(later, to, input);
                }
            }
            Kind::Slow => self.slow += 1,
            Kind::Move(fileset, to) => {
                let owner = self.etcd.view().owners[&fileset].owner;
                if let Some(owner) = owner {
                    self.input(self.now, owner, Input::Move(fileset, to));
                }
            }
            Kind::Drain(node) => {
                self.etcd.change(Change::Draining(node, true));
                self.etcd_changed();
            }
        }
    }

    fn end(&mut self, trouble: Trouble) {
        match trouble.kind {
            Kind::Crash(node) | Kind::Stop(node) => self.start(node),
            Kind::Freeze(node) => {
                let (now, stops) = (self.now, self.plan.clocks_stop);
                let place = self.place(node);
                place.frozen -= 1;
                if place.frozen == 0 {
                    if stops {
                        place.clock.stood += now - place.frozen_since;
                    }
                    self.thaw(node);
                }
            }
            Kind::Severed(node, way) => self.sever(node, way, -1),
            Kind::NoEtcd => {
                for node in self.places.keys().copied().collect::<Vec<_>>() {
                    self.sever(node, Way::Both, -1);
                }
            }
            Kind::Cut(one, other, way) => {
                self.network.mend(one, other, way);
                let latest = self.now + self.delay();
                for (time, to, input) in self.network.flush(self.now, latest) {
                    self.input(time, to, input);
                }
            }
            Kind::Slow => self.slow -= 1,
            Kind::Drain(node) => {
                self.etcd.change(Change::Draining(node, false));
                self.etcd_changed();
            }
            Kind::Election | Kind::Reset(..) | Kind::Move(..) => {}
        }
    }

    fn place(&mut self, node: NodeId) -> &mut Place {
        self.places.get_mut(&node).expect("nodes stay")
    }

    fn thaw(&mut self, node: NodeId) {
        let place = self.place(node);
        let Some(machine) = &place.machine else { return };
        let me = machine.me;
        place.tick = None;
        let mut deferred = Vec::from(std::mem::take(&mut place.deferred));
        // Threads wake up in any order; what came over one connection stays in order.
        if self.random.random_range(0..2) == 0 {
            deferred.retain(|input| !matches!(input, Input::Tick));
        }
        for input in deferred {
            self.input(self.now, me, input);
        }
        self.input(self.now + Duration::from_micros(300), me, Input::Tick);
    }

    fn sever(&mut self, node: NodeId, way: Way, by: isize) {
        let place = self.place(node);
        if way != Way::Back {
            place.to_etcd = place.to_etcd.saturating_add_signed(by);
        }
        if way != Way::There {
            place.from_etcd = place.from_etcd.saturating_add_signed(by);
        }
        if by < 0 {
            self.etcd_changed();
        }
    }
}

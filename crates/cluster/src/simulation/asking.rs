//! The client's part of a simulated daemon, and the programs of its node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};
use rand::Rng as _;

use super::files::{Body, DIRECTORIES, Kept, Object, Op, Reply, Verb, is_directory, is_name, item};
use super::here::Delegated;
use super::machine::{Context, Later, Machine};
use super::serving::{Origin, Request};
use crate::grants::client::{Effect, Ticket};
use crate::grants::{Cache, Item, RecallNumber};
use crate::session::{Call, Failure, Operation, Repeat, Room, client};
use crate::time::Moment;

/// What a node caches of a fileset from one server, in its daemon and its kernel.
#[derive(Debug, Default)]
pub struct Cached {
    pub cache: Cache,
    /// Directories that are delegated to this node, and what it has done there.
    pub delegated: Delegated,
    values: BTreeMap<Item, Option<u64>>,
    pub kernel: BTreeMap<Item, Kept>,
    /// Calls that are under way: the kernel cannot invalidate before they are answered.
    under_way: Vec<(Call, Object)>,
    /// Invalidations that wait for calls.
    waiting: Vec<(BTreeSet<Call>, RecallNumber)>,
    invalidating: BTreeMap<RecallNumber, Vec<Item>>,
    pub recalls: BTreeMap<RecallNumber, Operation>,
}

/// How an operation of a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Read(Option<u64>),
    Done,
    /// It was done by the node itself, in a directory that is delegated to it.
    Here,
    Not,
    /// It was certainly not carried out.
    Nothing,
    /// It was carried out once or not at all.
    Unknown,
}

/// What a program asks for, where, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    pub fileset: FilesetId,
    pub op: Op,
    /// When it gives up, by the node's clock.
    give_up: Option<Moment>,
    /// The request under way.
    under_way: Option<(Call, NodeId, Ticket)>,
    served_here: bool,
}

impl Asking {
    /// Whether nobody was asked yet.
    pub fn waits(&self) -> bool {
        self.under_way.is_none() && !self.served_here
    }
}

/// A program: does one operation after another.
#[derive(Debug, Default)]
pub struct Program {
    pub asking: Option<Asking>,
    /// What it wrote and did not sync.
    pub dirty: Option<(FilesetId, Object, u64, Epoch)>,
    open: Option<(FilesetId, Object)>,
    /// The directory in which it works.
    directory: Option<(FilesetId, Object)>,
    /// Operations that it starts by itself are over.
    pub stopped: bool,
}

/// What programs work on.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub filesets: u16,
    pub objects: u8,
    pub directories: u8,
    pub think_millis: u64,
}

impl Machine {
    /// The next operation of a program, or the next attempt at one.
    pub fn run(&mut self, program: usize, ctx: &mut Context) {
        if let Some(asking) = self.programs[program].asking {
            self.attempt(program, asking, ctx);
        }
    }

    /// Draws an operation; the world numbers it.
    pub fn draw(&mut self, program: usize, load: Load, number: u64, ctx: &mut Context) -> Asking {
        let state = &mut self.programs[program];
        let mut fileset = FilesetId(ctx.random.random_range(0..load.filesets));
        let mut object = ctx.random.random_range(0..load.objects + load.directories);
        if object >= load.objects {
            object = DIRECTORIES + (object - load.objects);
        }
        if let Some(of) = state.directory.filter(|_| ctx.random.random_range(0..10) < 8) {
            (fileset, object) = of;
        }
        state.directory = is_directory(object).then_some((fileset, object));
        let drawn = ctx.random.random_range(0..100);
        let verb = if let Some((of, file)) = state.open
            && drawn < 60
        {
            (fileset, object) = (of, file);
            if drawn < 40 { Verb::WriteOpen } else { Verb::Close }
        } else if let Some((of, file, _, epoch)) = state.dirty
            && (50..75).contains(&drawn)
        {
            (fileset, object) = (of, file);
            Verb::Sync(epoch)
        } else if drawn < 55 {
            Verb::Read
        } else if is_directory(object) {
            match drawn {
                ..70 => Verb::Create,
                70..85 => Verb::Write,
                _ => Verb::Remove,
            }
        } else if is_name(object) {
            if drawn < 80 { Verb::Create } else { Verb::Remove }
        } else if drawn < 92 || state.open.is_some() {
            Verb::Write
        } else {
            Verb::Open
        };
        let number = match (verb, state.dirty) {
            (Verb::Sync(_), Some((.., written, _))) => written,
            _ => number,
        };
        let give_up = match ctx.random.random_range(0..4) {
            0 => None,
            1 => Some(ctx.now + ctx.millis(50, 3000)),
            _ => Some(ctx.now + ctx.millis(3000, 40_000)),
        };
        let op = Op { number, object, verb };
        let asking = Asking { fileset, op, give_up, under_way: None, served_here: false };
        state.asking = Some(asking);
        asking
    }

    /// What the kernel answers by itself, even while the daemon is frozen.
    pub fn kernel_read(&self, program: usize, now: Moment) -> Option<Option<u64>> {
        let asking = self.programs[program].asking?;
        if asking.op.verb != Verb::Read || asking.under_way.is_some() || asking.served_here {
            return None;
        }
        let item = item(asking.op.object);
        let caches = self.caches.iter().filter(|((of, _), _)| *of == asking.fileset);
        let mut kept = caches.filter_map(|(_, cached)| cached.kernel.get(&item));
        kept.find(|kept| now < kept.until).map(|kept| kept.value)
    }

    /// Whether the kernel would answer with what it keeps of an item, or the daemon with what is delegated to it.
    pub fn keeps(&self, fileset: FilesetId, item: &Item, now: Moment) -> bool {
        let mut caches = self.caches.iter().filter(|((of, _), _)| *of == fileset);
        caches.any(|(_, cached)| {
            let is_delegated =
                matches!(item, Item::Directory(_)) && cached.cache.may_use(item, now);
            is_delegated || cached.kernel.get(item).is_some_and(|kept| now < kept.until)
        })
    }

    fn attempt(&mut self, program: usize, asking: Asking, ctx: &mut Context) {
        if asking.under_way.is_some() || asking.served_here {
            return;
        }
        if let Some(value) =
            self.kernel_read(program, ctx.now).or_else(|| self.cached(&asking, ctx))
        {
            return self.finish(program, Finish::Read(value), ctx);
        }
        if asking.give_up.is_some_and(|give_up| ctx.now >= give_up) {
            return self.finish(program, Finish::Nothing, ctx);
        }
        let record = self.node.view().owners.get(&asking.fileset);
        let owner = record.and_then(|record| Some((record.owner?, record.epoch)));
        if let Some((owner, epoch)) = owner
            && let Some(finish) = self.do_here(&asking, (owner, epoch), ctx)
        {
            return self.finish_here(program, epoch, finish, ctx);
        }
        if self.must_report_first(asking.fileset, ctx) {
            return self.again(program, ctx);
        }
        // What it is to sync may be lost by now.
        let Some(asking) = self.programs[program].asking else { return };
        match owner.map(|(owner, _)| owner) {
            Some(owner) if owner == self.me => {
                if let Some(asking) = &mut self.programs[program].asking {
                    asking.served_here = true;
                }
                let origin = Origin::Local(program);
                let request =
                    Request { origin, not_after: asking.give_up, op: asking.op, since: ctx.now };
                self.serve(asking.fileset, request, ctx);
            }
            // A former life of this node is not asked: nobody would answer but this one.
            Some(owner) if owner.node == self.me.node => self.again(program, ctx),
            Some(owner) => self.send(program, asking, owner, ctx),
            None => self.again(program, ctx),
        }
    }

    pub fn again(&mut self, program: usize, ctx: &mut Context) {
        let pause = ctx.millis(20, 300);
        ctx.after(pause, Later::Program(program));
    }

    /// What the daemon has cached; the kernel gets it again.
    fn cached(&mut self, asking: &Asking, ctx: &mut Context) -> Option<Option<u64>> {
        if asking.op.verb != Verb::Read || is_directory(asking.op.object) {
            return None;
        }
        let item = item(asking.op.object);
        let holders = self.caches.iter().filter(|((of, _), cached)| {
            *of == asking.fileset && cached.cache.may_use(&item, ctx.now)
        });
        if ctx.random.random_range(0..12) == 0
            && let Some(server) = holders.map(|((_, server), _)| *server).next()
        {
            self.forget(asking.fileset, server, item, ctx);
            return None;
        }
        let caches = self.caches.iter_mut().filter(|((of, _), _)| *of == asking.fileset);
        for (_, cached) in caches {
            if cached.cache.may_use(&item, ctx.now)
                && let Some(value) = cached.values.get(&item).copied()
            {
                cached.keep(&item, value, ctx.now);
                return Some(value);
            }
        }
        None
    }

    fn send(&mut self, program: usize, asking: Asking, owner: ClientId, ctx: &mut Context) {
        self.calls += 1;
        let call = Call(self.calls);
        let cached = self.caches.entry((asking.fileset, owner.node)).or_default();
        let op = asking.op;
        let ticket = if op.verb.changes() {
            let items = [item(op.object)];
            if !crate::fault::is(crate::fault::Fault::OwnGrantKept) {
                cached.forget(&items);
            }
            cached.cache.changing(&items)
        } else {
            cached.cache.begin()
        };
        if op.verb.locks() && !is_directory(op.object) {
            cached.under_way.push((call, op.object));
        }
        if let Some(asking) = &mut self.programs[program].asking {
            asking.under_way = Some((call, owner.node, ticket));
        }
        self.asked.insert(call, (program, owner.node));
        let repeat = if op.verb == Verb::Read { Repeat::Harmless } else { Repeat::Once };
        let body = Body::Ask(asking.fileset, op);
        let (room, give_up) = (Room::Ordinary, asking.give_up);
        let event = client::Event::Call { call, room, repeat, give_up, body };
        self.calling(owner.node, event, ctx);
    }

    /// Now and then the kernel forgets what it has cached, and the daemon gives the grant back.
    fn forget(&mut self, fileset: FilesetId, server: NodeId, item: Item, ctx: &mut Context) {
        let Some(cached) = self.caches.get_mut(&(fileset, server)) else { return };
        cached.forget(std::slice::from_ref(&item));
        for (item, number) in cached.cache.forget([item]) {
            self.calls += 1;
            let call = Call(self.calls);
            let body = Body::Return(fileset, item, number);
            let (room, repeat, give_up) = (Room::Release, Repeat::Once, None);
            let event = client::Event::Call { call, room, repeat, give_up, body };
            self.calling(server, event, ctx);
        }
    }

    /// A call of a program is over.
    pub fn answered(&mut self, call: Call, result: &Result<Body, Failure>, ctx: &mut Context) {
        self.report_over(call, result, ctx);
        let Some((program, server)) = self.asked.remove(&call) else { return };
        let Some(asking) = self.programs[program].asking else { return };
        let Some((_, _, ticket)) = asking.under_way else { return };
        let (op, item) = (asking.op, item(asking.op.object));
        let grant = match result {
            Ok(Body::Reply(Reply::Value(_, grant) | Reply::Done(_, grant))) => *grant,
            _ => None,
        };
        let grants: Vec<_> = grant.map(|grant| (item.clone(), grant)).into_iter().collect();
        let cached = self.caches.entry((asking.fileset, server)).or_default();
        let used = if op.verb.changes() {
            cached.cache.changed(ticket, std::slice::from_ref(&item), grants)
        } else {
            cached.cache.answered(ticket, grants)
        };
        if let Ok(Body::Reply(Reply::Done(epoch, Some(_)))) = result
            && !used.is_empty()
        {
            self.delegated((asking.fileset, server), op, *epoch);
        }
        let cached = self.caches.entry((asking.fileset, server)).or_default();
        if let Ok(Body::Reply(Reply::Value(value, _))) = result
            && !used.is_empty()
        {
            cached.values.insert(item.clone(), *value);
            cached.keep(&item, *value, ctx.now);
        }
        for recall in cached.call_over(call) {
            let pause = ctx.millis(0, 20);
            ctx.after(pause, Later::Invalidated(asking.fileset, server, recall));
        }
        if let Some(asking) = &mut self.programs[program].asking {
            asking.under_way = None;
        }
        match result {
            Ok(Body::Reply(reply)) => self.replied(program, asking, *reply, ctx),
            Err(Failure::Unreachable) if op.verb != Verb::Read => {
                self.finish(program, Finish::Unknown, ctx);
            }
            Ok(_) | Err(Failure::Unreachable | Failure::Evicted) => self.again(program, ctx),
        }
    }

    pub fn complete_local(&mut self, program: usize, op: Op, reply: Reply, ctx: &mut Context) {
        let Some(asking) = &mut self.programs[program].asking else { return };
        if asking.op != op {
            return;
        }
        asking.served_here = false;
        let asking = *asking;
        self.replied(program, asking, reply, ctx);
    }

    fn replied(&mut self, program: usize, asking: Asking, reply: Reply, ctx: &mut Context) {
        let (fileset, op) = (asking.fileset, asking.op);
        let state = &mut self.programs[program];
        if let Reply::Done(epoch, _) = reply {
            match op.verb {
                Verb::Write | Verb::WriteOpen | Verb::Create | Verb::Remove => {
                    state.dirty = Some((fileset, op.object, op.number, epoch));
                }
                Verb::Open => state.open = Some((fileset, op.object)),
                Verb::Sync(_) => state.dirty = None,
                Verb::Close => state.open = None,
                Verb::Read => {}
            }
        }
        let finish = match reply {
            Reply::Moved => return self.again(program, ctx),
            Reply::Value(value, _) => Finish::Read(value),
            Reply::Done(..) => Finish::Done,
            Reply::Not => Finish::Not,
            Reply::Stale => Finish::Nothing,
        };
        if matches!((op.verb, reply), (Verb::WriteOpen | Verb::Close, Reply::Not)) {
            state.open = None;
        }
        if reply == Reply::Stale {
            state.dirty = None;
        }
        self.finish(program, finish, ctx);
    }

    pub fn finish(&mut self, program: usize, finish: Finish, ctx: &mut Context) {
        if self.programs[program].asking.is_some() {
            ctx.out.push(super::machine::Out::Finished(program, finish));
        }
    }

    /// The server recalls what this node caches.
    pub fn recall(
        &mut self,
        fileset: FilesetId,
        server: NodeId,
        operation: Operation,
        recall: RecallNumber,
        items: Vec<Item>,
        ctx: &mut Context,
    ) {
        let cached = self.caches.entry((fileset, server)).or_default();
        for item in &items {
            cached.values.remove(item);
        }
        let returns = items.iter().any(|item| matches!(item, Item::Directory(_)));
        let effects = cached.cache.recall(recall, items);
        if returns {
            self.return_directories((fileset, server), recall, operation, ctx);
        } else {
            cached.recalls.insert(recall, operation);
        }
        let cached = self.caches.entry((fileset, server)).or_default();
        for effect in &effects {
            if let Effect::Invalidate { recall, items } = effect {
                let calls = cached.blocking(items, self.kernel_locks);
                cached.invalidating.insert(*recall, items.clone());
                if calls.is_empty() {
                    let pause = ctx.millis(0, 20);
                    ctx.after(pause, Later::Invalidated(fileset, server, *recall));
                } else {
                    cached.waiting.push((calls, *recall));
                }
            }
        }
        self.acknowledge(fileset, server, &effects, ctx);
    }

    pub fn acknowledge(
        &mut self,
        fileset: FilesetId,
        server: NodeId,
        effects: &[Effect],
        ctx: &mut Context,
    ) {
        for effect in effects {
            if let Effect::Acknowledge(recall) = effect
                && let Some(cached) = self.caches.get_mut(&(fileset, server))
                && !cached.delegated.waits(*recall)
                && let Some(operation) = cached.recalls.remove(recall)
            {
                let answered = client::Event::Answered(operation, Body::Acknowledge);
                self.calling(server, answered, ctx);
            }
        }
    }

    /// Time has passed for all that is cached.
    pub fn caches_tick(&mut self, ctx: &mut Context) {
        for (fileset, server) in self.caches.keys().copied().collect::<Vec<_>>() {
            let Some(cached) = self.caches.get_mut(&(fileset, server)) else { continue };
            let effects = cached.cache.tick(ctx.now);
            self.acknowledge(fileset, server, &effects, ctx);
        }
    }

    /// The kernel has dropped what a recall named.
    pub fn invalidated(
        &mut self,
        fileset: FilesetId,
        server: NodeId,
        recall: RecallNumber,
        ctx: &mut Context,
    ) {
        let Some(cached) = self.caches.get_mut(&(fileset, server)) else { return };
        let Some(items) = cached.invalidating.remove(&recall) else { return };
        for item in &items {
            cached.kernel.remove(item);
        }
        let effects = cached.cache.invalidated(recall);
        self.acknowledge(fileset, server, &effects, ctx);
    }

    pub fn vouched(&mut self, server: NodeId, until: Moment) {
        for ((_, of), cached) in &mut self.caches {
            if *of == server {
                cached.cache.vouched(until);
            }
        }
    }

    /// The kernel keeps nothing of a former session any more.
    pub fn cleared(&mut self, server: NodeId) {
        let caches = self.caches.iter_mut().filter(|((_, of), _)| *of == server);
        caches.for_each(|(_, cached)| cached.kernel.clear());
    }

    /// The session with a server is over. What the kernel keeps goes a little later.
    pub fn lost(&mut self, server: NodeId, ctx: &mut Context) {
        for ((_, of), cached) in &mut self.caches {
            if *of == server {
                cached.cache.lost();
                cached.values.clear();
                cached.waiting.clear();
                cached.invalidating.clear();
                cached.recalls.clear();
            }
        }
        self.lose_delegated(server);
        let pause = ctx.millis(0, 30);
        ctx.after(pause, Later::Cleared(server));
    }
}

impl Cached {
    pub fn next_wake(&self) -> Moment {
        self.cache.next_wake()
    }

    /// Gives an item to the kernel.
    fn keep(&mut self, item: &Item, value: Option<u64>, now: Moment) {
        let until = match crate::fault::is(crate::fault::Fault::LapseIgnored) {
            true => now + Duration::from_secs(60),
            false => now + self.cache.timeout(item, now),
        };
        self.kernel.insert(item.clone(), Kept { value, until });
    }

    fn forget(&mut self, items: &[Item]) {
        for item in items {
            self.values.remove(item);
            self.kernel.remove(item);
        }
    }

    /// Calls that the kernel waits for before it can invalidate: reads of a file, and, where its notification takes the
    /// directory's lock, everything that is under way in the directory.
    fn blocking(&self, items: &[Item], locks: bool) -> BTreeSet<Call> {
        let entry = items.iter().any(|item| matches!(item, Item::Entry(..)));
        let blocks = |object: Object| match is_name(object) {
            true => entry && locks,
            false => items.contains(&item(object)),
        };
        let calls = self.under_way.iter().filter(|(_, object)| blocks(*object));
        calls.map(|(call, _)| *call).collect()
    }

    /// A call was answered: invalidations that waited for nothing else may go on.
    fn call_over(&mut self, call: Call) -> Vec<RecallNumber> {
        self.under_way.retain(|(of, _)| *of != call);
        let mut done = Vec::new();
        self.waiting.retain_mut(|(calls, recall)| {
            calls.remove(&call);
            if calls.is_empty() {
                done.push(*recall);
            }
            !calls.is_empty()
        });
        done
    }
}

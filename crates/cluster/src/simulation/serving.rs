//! The owner's part of a simulated daemon: it serves the filesets that it owns.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId};

use super::delegating::Reports;
use super::files::{Body, Op, Reply, States, Verb, is_directory, item};
use super::machine::{Context, Later, Machine, Out};
use super::store;
use crate::fault::{self, Fault};
use crate::grants::owner::{Effect, Event};
use crate::grants::{ChangeNumber, Grants, RecallNumber};
use crate::ownership;
use crate::session::{self, Operation, server};
use crate::time::Moment;
use crate::{grants, node};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A program of this node.
    Local(usize),
    Remote(ClientId, Operation),
}

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub origin: Origin,
    pub not_after: Option<Moment>,
    pub op: Op,
    /// When it began to wait for recalls.
    pub since: Moment,
}

impl Request {
    fn client(&self) -> ClientId {
        match self.origin {
            Origin::Local(_) => ClientId::LOCAL,
            Origin::Remote(client, _) => client,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Open,
    /// Grants are recalled; reads are still answered.
    Recalling(ChangeNumber),
    /// Nothing is answered; the last changes are committed.
    Flushing,
}

/// A fileset that this node owns.
#[derive(Debug)]
pub struct Part {
    pub epoch: Epoch,
    /// Until when the gate stays closed, because an earlier life's grants may be in use.
    closed_until: Option<Moment>,
    stage: Stage,
    pub memory: States,
    pub grants: Grants,
    pub reports: Reports,
    /// Requests that wait at the gate.
    queue: VecDeque<Request>,
    /// Changes that wait for recalls.
    pending: BTreeMap<ChangeNumber, Request>,
    open: Vec<(ClientId, u8)>,
    pub generation: u64,
    committed: u64,
    committing: Option<u64>,
    syncs: Vec<(u64, Request)>,
}

impl Machine {
    /// Whether the gates are open.
    fn answers(&self, now: Moment) -> bool {
        if fault::is(Fault::GateWithoutClock) {
            return self.gates_open;
        }
        self.node.answers_until(now).is_some()
    }

    /// For how long this node vouches for what a client caches.
    pub fn word(&self, client: ClientId, now: Moment) -> Duration {
        let Some(until) = self.node.answers_until(now) else { return Duration::ZERO };
        let parts = self.parts.values().map(|part| &part.grants);
        let mut grants = parts.chain(self.leaving.iter().map(|(_, grants)| grants));
        if !grants.all(|grants| grants.vouches_for(client, now)) {
            return Duration::ZERO;
        }
        if fault::is(Fault::VouchBeyondLease) {
            return self.settings.vouch;
        }
        self.settings.vouch.min(until.left(now))
    }

    pub fn owned(&mut self, effect: &ownership::Effect, ctx: &mut Context) {
        match *effect {
            ownership::Effect::Open { fileset, epoch, lapse } => {
                let part = Part {
                    epoch,
                    closed_until: Some(ctx.now + lapse),
                    stage: Stage::Opening,
                    memory: States::new(),
                    grants: Grants::new(self.settings, epoch),
                    reports: Reports::default(),
                    queue: VecDeque::new(),
                    pending: BTreeMap::new(),
                    open: Vec::new(),
                    generation: 0,
                    committed: 0,
                    committing: None,
                    syncs: Vec::new(),
                };
                self.parts.insert(fileset, part);
                ctx.out.push(Out::Store(fileset, store::Request::Open(epoch)));
            }
            ownership::Effect::Settle { fileset, .. } => {
                let change = self.next_change();
                if let Some(part) = self.parts.get_mut(&fileset) {
                    part.stage = Stage::Recalling(change);
                    self.granting(fileset, Event::Settle(change), ctx);
                }
            }
            ownership::Effect::Drop { fileset, epoch } => {
                self.drop_part(fileset, true, ctx);
                let dropped = ownership::Event::Dropped { fileset, epoch };
                let pause = ctx.millis(1, 50);
                ctx.after(pause, Later::Node(node::Event::Ownership(dropped)));
            }
            ownership::Effect::Passed { fileset, .. } => self.drop_part(fileset, false, ctx),
            ownership::Effect::Swap { .. }
            | ownership::Effect::Read
            | ownership::Effect::Stopped => {}
        }
    }

    /// A fileset is no longer this node's. Who waits is sent elsewhere; what waits for a commit has lost it.
    fn drop_part(&mut self, fileset: FilesetId, superseded: bool, ctx: &mut Context) {
        let Some(mut part) = self.parts.remove(&fileset) else { return };
        for request in part.queue.into_iter().chain(part.pending.into_values()) {
            self.reply(request, Reply::Moved, ctx);
        }
        for (_, request) in part.syncs {
            self.reply(request, Reply::Stale, ctx);
        }
        for report in part.reports.take_waiting() {
            self.answer_report(&report, false, ctx);
        }
        if superseded {
            let change = self.next_change();
            let effects = part.grants.step(Event::Abandon(change), ctx.now);
            self.leaving.push((fileset, part.grants));
            self.carry_out(fileset, effects, ctx);
        }
    }

    fn next_change(&mut self) -> ChangeNumber {
        self.changes += 1;
        ChangeNumber(self.changes)
    }

    /// The store answered.
    pub fn stored(&mut self, fileset: FilesetId, answer: store::Answer, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        match answer {
            store::Answer::Opened(epoch, states) if part.epoch == epoch => {
                part.memory = states;
                part.stage = Stage::Open;
                self.open_gate(fileset, ctx);
            }
            store::Answer::Failed(epoch) if part.epoch == epoch => {
                self.drop_part(fileset, false, ctx);
                let failed = ownership::Event::OpenFailed { fileset, epoch };
                self.step(node::Event::Ownership(failed), ctx);
            }
            store::Answer::Committed(epoch, generation) if part.epoch == epoch => {
                part.committing = None;
                part.committed = part.committed.max(generation);
                let (done, waiting) =
                    part.syncs.drain(..).partition(|(upto, _)| *upto <= generation);
                part.syncs = waiting;
                let done: Vec<(u64, Request)> = done;
                for (_, request) in done {
                    ctx.out.push(Out::Synced(fileset, request.op));
                    self.reply(request, Reply::Done(epoch, None), ctx);
                }
                self.commit(fileset, ctx);
            }
            // Fenced: the record has moved on, and the watch will say so.
            _ => {}
        }
    }

    /// Opens the gate once nothing that an earlier life granted can be in use.
    fn open_gate(&mut self, fileset: FilesetId, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        if part.stage != Stage::Opening && part.closed_until.is_some_and(|until| ctx.now >= until) {
            part.closed_until = None;
            let epoch = part.epoch;
            ctx.out.push(Out::Opened(fileset, epoch));
            let opened = ownership::Event::Opened { fileset, epoch };
            self.step(node::Event::Ownership(opened), ctx);
        }
    }

    /// Commits what is not committed, one batch at a time; the last one of a handover closes the store.
    pub fn commit(&mut self, fileset: FilesetId, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        if part.stage == Stage::Opening || part.committing.is_some() {
            return;
        }
        let (epoch, generation) = (part.epoch, part.generation);
        if part.committed < generation {
            part.committing = Some(generation);
            let states = part.memory.clone();
            ctx.out.push(Out::Store(fileset, store::Request::Commit(epoch, generation, states)));
        } else if part.stage == Stage::Flushing {
            part.stage = Stage::Opening;
            let settled = ownership::Event::Settled { fileset, epoch };
            self.step(node::Event::Ownership(settled), ctx);
        }
    }

    pub fn commit_all(&mut self, ctx: &mut Context) {
        for fileset in self.parts.keys().copied().collect::<Vec<_>>() {
            self.commit(fileset, ctx);
        }
    }

    /// A request arrived from a program or a client.
    pub fn serve(&mut self, fileset: FilesetId, request: Request, ctx: &mut Context) {
        match self.parts.get_mut(&fileset) {
            Some(part) => part.queue.push_back(request),
            None => return self.reply(request, Reply::Moved, ctx),
        }
        self.serve_waiting(fileset, ctx);
    }

    /// Requests that waited at the gate are served if it is open now.
    pub fn serve_waiting(&mut self, fileset: FilesetId, ctx: &mut Context) {
        let answers = self.answers(ctx.now);
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        let open = matches!(part.stage, Stage::Open | Stage::Recalling(_));
        if !open || !answers || part.closed_until.is_some() {
            return;
        }
        self.carry_reports(fileset, ctx);
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        let (stage, mut kept) = (part.stage, VecDeque::new());
        for request in std::mem::take(&mut part.queue) {
            let is_read = request.op.verb == Verb::Read && !is_directory(request.op.object);
            if stage != Stage::Open && !is_read {
                kept.push_back(request);
                continue;
            }
            self.carry(fileset, request, &mut kept, ctx);
        }
        if let Some(part) = self.parts.get_mut(&fileset) {
            part.queue.extend(kept);
        }
    }

    fn carry(
        &mut self,
        fileset: FilesetId,
        request: Request,
        kept: &mut VecDeque<Request>,
        ctx: &mut Context,
    ) {
        if self.is_late(&request, ctx.now) {
            return self.refuse(request, ctx);
        }
        let Some(part) = self.parts.get_mut(&fileset) else {
            return self.reply(request, Reply::Moved, ctx);
        };
        let (client, object) = (request.client(), request.op.object);
        let request = Request { since: ctx.now, ..request };
        // Whoever has a directory reports first what was done there.
        let takes_back = is_directory(object)
            && part.grants.others_have(client, &item(object))
            && !fault::is(Fault::DelegatedToldToOthers);
        match request.op.verb {
            Verb::Read if !takes_back => {
                let waits = fault::is(Fault::ReadsWaitForChanges)
                    && part.pending.values().any(|it| it.op.object == object);
                if waits {
                    kept.push_back(request);
                    return;
                }
                ctx.out.push(Out::Answers(fileset, part.epoch));
                let value = part.memory.get(&object).and_then(|state| state.value);
                let (grant, effects) = part.granted(client, object, ctx.now);
                self.carry_out(fileset, effects, ctx);
                self.reply(request, Reply::Value(value, grant), ctx);
            }
            Verb::Read | Verb::Write | Verb::Create | Verb::Remove => {
                let items = vec![item(object)];
                let change = self.next_change();
                self.part(fileset).pending.insert(change, request);
                self.granting(fileset, Event::Change { change, by: client, items }, ctx);
            }
            Verb::Open => {
                let file = forebay_base::Ino(u64::from(object));
                let change = self.next_change();
                self.part(fileset).pending.insert(change, request);
                self.granting(fileset, Event::OpenForWriting { change, by: client, file }, ctx);
            }
            Verb::WriteOpen => {
                if part.open.contains(&(client, object)) {
                    self.apply(fileset, None, request, ctx);
                } else {
                    self.reply(request, Reply::Not, ctx);
                }
            }
            Verb::Close => {
                let file = forebay_base::Ino(u64::from(object));
                let epoch = part.epoch;
                if let Some(at) = part.open.iter().position(|it| *it == (client, object)) {
                    part.open.swap_remove(at);
                    self.granting(fileset, Event::CloseForWriting { by: client, file }, ctx);
                }
                self.reply(request, Reply::Done(epoch, None), ctx);
            }
            Verb::Sync(epoch) => {
                if epoch == part.epoch {
                    part.syncs.push((part.generation, request));
                    if part.committed >= part.generation {
                        // What is there already is committed once more: the simplest way to answer.
                        part.generation += 1;
                        part.syncs.last_mut().expect("pushed above").0 = part.generation;
                    }
                    self.commit(fileset, ctx);
                } else {
                    self.reply(request, Reply::Stale, ctx);
                }
            }
        }
    }

    fn part(&mut self, fileset: FilesetId) -> &mut Part {
        self.parts.get_mut(&fileset).expect("the caller has looked")
    }

    fn is_late(&self, request: &Request, now: Moment) -> bool {
        let late = request.not_after.is_some_and(|not_after| now >= not_after);
        late && !fault::is(Fault::ExpiryIgnored)
    }

    /// It came too late, and is not carried out.
    fn refuse(&mut self, request: Request, ctx: &mut Context) {
        match request.origin {
            Origin::Remote(client, operation) => {
                self.serving(server::Event::Late(client, operation), ctx);
            }
            Origin::Local(program) => self.complete_local(program, request.op, Reply::Moved, ctx),
        }
    }

    /// A change takes effect.
    fn apply(
        &mut self,
        fileset: FilesetId,
        change: Option<ChangeNumber>,
        request: Request,
        ctx: &mut Context,
    ) {
        let part = self.parts.get_mut(&fileset).expect("the caller has looked");
        let (client, object) = (request.client(), request.op.object);
        let epoch = part.epoch;
        ctx.out.push(Out::Answers(fileset, epoch));
        let state = part.memory.entry(object).or_default();
        if request.op.verb == Verb::Read {
            let value = state.value;
            return self.reply(request, Reply::Value(value, None), ctx);
        }
        let again = state.lineage.contains(&request.op.number);
        let done = request.op.verb == Verb::Open || state.change(request.op);
        if done && request.op.verb != Verb::Open {
            part.generation += 1;
        }
        if request.op.verb == Verb::Open {
            part.open.push((client, object));
        }
        let (op, again) = (request.op, again && done);
        ctx.out.push(Out::Applied { fileset, op, done, again, reported: false });
        let is_made = done && is_directory(object) && request.op.verb == Verb::Create;
        let grant = if is_made { self.delegate(fileset, change, &request, ctx) } else { None };
        let reply = if done { Reply::Done(epoch, grant) } else { Reply::Not };
        self.reply(request, reply, ctx);
    }

    /// A directory was made by a client: it is delegated to it, if nobody else asks for it now.
    fn delegate(
        &mut self,
        fileset: FilesetId,
        change: Option<ChangeNumber>,
        request: &Request,
        ctx: &mut Context,
    ) -> Option<grants::GrantNumber> {
        let (client, directory) = (request.client(), item(request.op.object));
        let part = self.parts.get_mut(&fileset)?;
        if client == ClientId::LOCAL || part.stage != Stage::Open {
            return None;
        }
        let mut effects = Vec::new();
        let granted = part.grants.applied_by(change?, (client, &directory), ctx.now, &mut effects);
        self.carry_out(fileset, effects, ctx);
        granted.map(|(number, _)| number)
    }

    fn reply(&mut self, request: Request, reply: Reply, ctx: &mut Context) {
        match request.origin {
            Origin::Local(program) => self.complete_local(program, request.op, reply, ctx),
            Origin::Remote(client, operation) => {
                let answered = server::Event::Answered(client, operation, Body::Reply(reply));
                self.serving(answered, ctx);
            }
        }
    }

    /// An event of a fileset's grants.
    pub fn granting(&mut self, fileset: FilesetId, event: Event, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        let effects = part.grants.step(event, ctx.now);
        self.carry_out(fileset, effects, ctx);
    }

    fn carry_out(&mut self, fileset: FilesetId, effects: Vec<Effect>, ctx: &mut Context) {
        for effect in effects {
            match effect {
                Effect::Recall { client, recall, items } => {
                    if client == ClientId::LOCAL {
                        continue;
                    }
                    self.calls += 1;
                    let call = session::Call(self.calls);
                    self.recalls.insert(call, (fileset, client, recall));
                    let body = Body::Recall(fileset, recall, items);
                    self.serving(server::Event::Call { call, client, body }, ctx);
                }
                Effect::Apply(change) => self.may_apply(fileset, change, ctx),
                Effect::Evict(client) => {
                    ctx.out.push(Out::Evicts(client));
                    self.serving(server::Event::Evict(client), ctx);
                }
            }
        }
    }

    /// A change has nothing to wait for any more. It passes the gate again: it may have waited for long.
    fn may_apply(&mut self, fileset: FilesetId, change: ChangeNumber, ctx: &mut Context) {
        let answers = self.answers(ctx.now) || fault::is(Fault::GateNotLookedAtAgain);
        let Some(part) = self.parts.get_mut(&fileset) else {
            self.leaving.retain(|(left, grants)| *left != fileset || !grants.is_settled());
            return;
        };
        if part.stage == Stage::Recalling(change) {
            // Changes that arrived before wait for nobody now: they are done before the flush, or sent on.
            part.stage = Stage::Flushing;
            for (_, request) in std::mem::take(&mut part.pending) {
                self.reply(request, Reply::Moved, ctx);
            }
            return self.commit(fileset, ctx);
        }
        let Some(request) = part.pending.remove(&change) else { return };
        ctx.out.push(Out::Waited(ctx.now.since(request.since)));
        let open = request.op.verb == Verb::Open;
        if self.is_late(&request, ctx.now) {
            self.refuse(request, ctx);
        } else if answers {
            self.apply(fileset, Some(change), request, ctx);
            return self.granting(fileset, Event::Applied(change), ctx);
        } else {
            self.part(fileset).queue.push_back(request);
        }
        if open {
            let file = forebay_base::Ino(u64::from(request.op.object));
            self.granting(fileset, Event::CloseForWriting { by: request.client(), file }, ctx);
        }
        self.granting(fileset, Event::Applied(change), ctx);
    }

    /// A recall was answered.
    pub fn recalled(&mut self, call: session::Call, acknowledged: bool, ctx: &mut Context) {
        let Some((fileset, client, recall)) = self.recalls.remove(&call) else { return };
        if acknowledged {
            self.each_grants(fileset, |_| Event::Acknowledged(client, recall), recall, ctx);
        }
    }

    /// An event for the grants of a fileset, those that a lost epoch left behind included.
    fn each_grants(
        &mut self,
        fileset: FilesetId,
        event: impl Fn(RecallNumber) -> Event,
        recall: RecallNumber,
        ctx: &mut Context,
    ) {
        let mut effects = Vec::new();
        for (left, grants) in &mut self.leaving {
            if *left == fileset {
                effects.extend(grants.step(event(recall), ctx.now));
            }
        }
        effects.retain(|effect| !matches!(effect, Effect::Apply(_)));
        self.carry_out(fileset, effects, ctx);
        self.leaving.retain(|(_, grants)| !grants.is_settled());
        self.granting(fileset, event(recall), ctx);
    }

    /// A client's session is over: what waits is not carried out.
    pub fn ended(&mut self, client: ClientId, ctx: &mut Context) {
        self.arrived.retain(|_, (_, request)| request.client() != client);
        self.arrived_reports.retain(|_, (_, report)| report.client != client);
        for fileset in self.parts.keys().copied().collect::<Vec<_>>() {
            let part = self.part(fileset);
            part.reports.ended(client);
            part.queue.retain(|request| request.client() != client);
            part.syncs.retain(|(_, request)| request.client() != client);
            let pending = part.pending.iter().filter(|(_, request)| request.client() == client);
            let gone: Vec<ChangeNumber> = pending.map(|(change, _)| *change).collect();
            for change in gone {
                self.part(fileset).pending.remove(&change);
                self.granting(fileset, Event::Applied(change), ctx);
            }
        }
    }

    /// A client is gone: its opens and grants too.
    pub fn dropped(&mut self, client: ClientId, ctx: &mut Context) {
        for (_, grants) in &mut self.leaving {
            grants.step(Event::Dropped(client), ctx.now);
        }
        self.leaving.retain(|(_, grants)| !grants.is_settled());
        for fileset in self.parts.keys().copied().collect::<Vec<_>>() {
            self.part(fileset).open.retain(|(it, _)| *it != client);
            self.end_delegations(fileset, client, ctx);
            self.granting(fileset, Event::Dropped(client), ctx);
        }
    }

    /// Time has passed for all grants.
    pub fn grants_tick(&mut self, ctx: &mut Context) {
        for fileset in self.parts.keys().copied().collect::<Vec<_>>() {
            self.granting(fileset, Event::Tick, ctx);
            self.open_gate(fileset, ctx);
            self.serve_waiting(fileset, ctx);
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        let mut effects = Vec::new();
        for (fileset, grants) in &mut leaving {
            let stepped = grants.step(Event::Tick, ctx.now);
            effects.extend(stepped.into_iter().map(|effect| (*fileset, effect)));
        }
        leaving.append(&mut self.leaving);
        self.leaving = leaving;
        for (fileset, effect) in effects {
            if !matches!(effect, Effect::Apply(_)) {
                self.carry_out(fileset, vec![effect], ctx);
            }
        }
    }

    pub fn grants_wake(&self) -> Moment {
        let parts = self.parts.values().map(|part| &part.grants);
        let grants = parts.chain(self.leaving.iter().map(|(_, grants)| grants));
        let gates = self.parts.values().filter(|part| part.stage != Stage::Opening);
        let gates = gates.filter_map(|part| part.closed_until);
        grants.map(Grants::next_wake).chain(gates).min().unwrap_or(Moment(Duration::MAX))
    }
}

impl Part {
    fn granted(
        &mut self,
        client: ClientId,
        object: u8,
        now: Moment,
    ) -> (Option<grants::GrantNumber>, Vec<Effect>) {
        let mut effects = Vec::new();
        // The owner's own programs ask each time, and a directory is delegated to whoever makes it.
        if client == ClientId::LOCAL || is_directory(object) {
            return (None, effects);
        }
        (self.grants.grant(client, &item(object), now, &mut effects), effects)
    }
}

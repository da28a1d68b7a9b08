//! What a simulated node does by itself in directories that are delegated to it, and how it reports that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};

use super::asking::{Asking, Finish};
use super::files::{Body, Object, Op, State, Verb, is_directory, item};
use super::machine::{Context, Later, Machine};
use crate::fault::{self, Fault};
use crate::grants::RecallNumber;
use crate::grants::client::Effect;
use crate::grants::reports::{Journal, Part};
use crate::session::{Call, Failure, Operation, Repeat, Room, client};

/// How long changes wait to be reported together.
const REPORT_DELAY: Duration = Duration::from_millis(50);
/// Changes of one report.
const CHANGES_AT_ONCE: usize = 3;

/// Directories of a fileset that are delegated by one server, and what was done there.
#[derive(Debug, Default)]
pub struct Delegated {
    /// The epoch in which they were delegated.
    epoch: Epoch,
    directories: BTreeMap<Object, State>,
    journal: Journal<Op>,
    report: Option<(Call, Part<Op>)>,
    /// Recalls that are answered once everything is reported, and whether that is all they wait for.
    returning: BTreeMap<RecallNumber, (Operation, bool)>,
    /// Somebody is going to report.
    is_due: bool,
}

impl Delegated {
    /// Whether the answer to a recall waits for a report. Nothing else is waited for from now on.
    pub fn waits(&mut self, recall: RecallNumber) -> bool {
        self.returning.get_mut(&recall).map(|(_, alone)| *alone = true).is_some()
    }

    /// Everything is void. Returns the numbers of what is lost.
    fn lose(&mut self) -> BTreeSet<u64> {
        let under_way = self.report.iter().flat_map(|(_, part)| &part.changes);
        let mut lost: BTreeSet<u64> = under_way.map(|(_, op)| op.number).collect();
        lost.extend(self.journal.lose().iter().map(|op| op.number));
        self.directories.clear();
        lost
    }
}

type Place = (FilesetId, NodeId);

impl Machine {
    /// Carries out what a program wants in a directory that is delegated to this node by its present owner.
    pub fn do_here(
        &mut self,
        asking: &Asking,
        (owner, epoch): (ClientId, Epoch),
        ctx: &mut Context,
    ) -> Option<Finish> {
        let Asking { fileset, op, .. } = *asking;
        let cached = self.caches.get_mut(&(fileset, owner.node))?;
        let of = item(op.object);
        if !is_directory(op.object)
            || matches!(op.verb, Verb::Sync(_))
            || cached.delegated.epoch != epoch
            || !cached.cache.may_use(&of, ctx.now)
            || cached.cache.is_changing(&of)
        {
            return None;
        }
        let state = cached.delegated.directories.get_mut(&op.object)?;
        if op.verb == Verb::Read {
            return Some(Finish::Read(state.value));
        }
        if !state.change(op) {
            return Some(Finish::Not);
        }
        cached.delegated.journal.add(op);
        if !std::mem::replace(&mut cached.delegated.is_due, true) {
            ctx.after(REPORT_DELAY, Later::Report(fileset, owner.node));
        }
        Some(Finish::Here)
    }

    pub fn finish_here(&mut self, program: usize, epoch: Epoch, finish: Finish, ctx: &mut Context) {
        if let (Finish::Here, Some(asking)) = (finish, self.programs[program].asking) {
            let (op, fileset) = (asking.op, asking.fileset);
            self.programs[program].dirty = Some((fileset, op.object, op.number, epoch));
        }
        self.finish(program, finish, ctx);
    }

    /// A directory that this node has made is delegated to it.
    pub fn delegated(&mut self, place: Place, op: Op, epoch: Epoch) {
        let cached = self.caches.entry(place).or_default();
        if !is_directory(op.object) {
            return;
        }
        let mut lost = BTreeSet::new();
        if cached.delegated.epoch != epoch {
            lost = cached.delegated.lose();
            cached.delegated.epoch = epoch;
        }
        let state = State { value: Some(op.number), lineage: Vec::new() };
        cached.delegated.directories.insert(op.object, state);
        self.tell_of_loss(&lost);
    }

    /// The session with a server is over, and what it delegated is void.
    pub fn lose_delegated(&mut self, server: NodeId) {
        let caches = self.caches.iter_mut().filter(|((_, of), _)| *of == server);
        let mut lost = BTreeSet::new();
        for (_, cached) in caches {
            lost.extend(cached.delegated.lose());
            cached.delegated.returning.clear();
        }
        self.tell_of_loss(&lost);
    }

    /// The next sync of what was lost fails, also one that waits for the report.
    fn tell_of_loss(&mut self, lost: &BTreeSet<u64>) {
        let waiting = self.programs.iter_mut().filter_map(|it| it.asking.as_mut());
        for asking in waiting.filter(|asking| asking.waits()) {
            if matches!(asking.op.verb, Verb::Sync(_)) && lost.contains(&asking.op.number) {
                asking.op.verb = Verb::Sync(Epoch(0));
            }
        }
        for (_, _, number, epoch) in self.programs.iter_mut().filter_map(|it| it.dirty.as_mut()) {
            if lost.contains(number) {
                *epoch = Epoch(0);
            }
        }
    }

    /// Whether a request for a fileset has to wait until the owner knows what was done here. Sees to that.
    pub fn must_report_first(&mut self, fileset: FilesetId, ctx: &mut Context) -> bool {
        let mut waits = false;
        for place in self.caches.keys().copied().collect::<Vec<_>>() {
            if place.0 == fileset {
                self.report(place, ctx);
                waits |= !self.caches[&place].delegated.journal.is_settled();
            }
        }
        waits && !fault::is(Fault::AskedBeforeReport)
    }

    /// The time has come to report.
    pub fn report_due(&mut self, place: Place, ctx: &mut Context) {
        if let Some(cached) = self.caches.get_mut(&place) {
            cached.delegated.is_due = false;
            self.report(place, ctx);
        }
    }

    /// Reports what was done here, if no report is under way. Where another node is the owner by now, or in another epoch, it is lost.
    fn report(&mut self, place: Place, ctx: &mut Context) {
        let (fileset, server) = place;
        let record = self.node.view().owners.get(&fileset);
        let owner = record.and_then(|record| Some((record.owner?.node, record.epoch)));
        let Some(cached) = self.caches.get_mut(&place) else { return };
        let delegated = &mut cached.delegated;
        if delegated.report.is_some() {
            return;
        }
        if owner.is_some_and(|owner| owner != (server, delegated.epoch)) {
            let lost = delegated.lose();
            self.tell_of_loss(&lost);
        }
        let Some(cached) = self.caches.get_mut(&place) else { return };
        let delegated = &mut cached.delegated;
        let changes: Vec<_> =
            std::iter::from_fn(|| delegated.journal.pop()).take(CHANGES_AT_ONCE).collect();
        if changes.is_empty() {
            return self.all_is_reported(place, ctx);
        }
        let sent = changes.iter().map(|(number, op)| (number.0, *op)).collect();
        self.calls += 1;
        let call = Call(self.calls);
        let body = Body::Report(fileset, delegated.epoch, sent);
        delegated.report = Some((call, delegated.journal.report(changes)));
        self.reports.insert(call, place);
        let give_up = Some(ctx.now + ctx.millis(100, 3000));
        let (room, repeat) = (Room::Release, Repeat::Once);
        let event = client::Event::Call { call, room, repeat, give_up, body };
        self.calling(server, event, ctx);
    }

    /// A call is over: if it was a report, the next part follows, or the same once more.
    pub fn report_over(&mut self, call: Call, result: &Result<Body, Failure>, ctx: &mut Context) {
        let Some(place) = self.reports.remove(&call) else { return };
        let Some(cached) = self.caches.get_mut(&place) else { return };
        let Some((_, part)) = cached.delegated.report.take_if(|(of, _)| *of == call) else {
            return;
        };
        match result {
            Ok(Body::Reported(true)) => {
                cached.delegated.journal.reported(&part);
                self.report(place, ctx);
            }
            Ok(_) => {
                // It is void; what was delegated in a later life of the session is not.
                let mut lost = match cached.delegated.journal.is_void(&part) {
                    true => BTreeSet::new(),
                    false => cached.delegated.lose(),
                };
                lost.extend(part.changes.iter().map(|(_, op)| op.number));
                cached.delegated.journal.reported(&part);
                self.tell_of_loss(&lost);
                self.report(place, ctx);
            }
            Err(_) => {
                let lost = cached.delegated.journal.put_back(part);
                self.tell_of_loss(&lost.iter().map(|op| op.number).collect());
                let pause = ctx.millis(20, 300);
                ctx.after(pause, Later::Report(place.0, place.1));
            }
        }
    }

    /// Directories are taken back: the recall is answered once everything is reported.
    pub fn return_directories(
        &mut self,
        place: Place,
        recall: RecallNumber,
        operation: Operation,
        ctx: &mut Context,
    ) {
        let Some(cached) = self.caches.get_mut(&place) else { return };
        if cached.delegated.journal.is_settled() || fault::is(Fault::ReturnedUnreported) {
            cached.recalls.insert(recall, operation);
            return;
        }
        cached.delegated.returning.insert(recall, (operation, false));
        self.report(place, ctx);
    }

    fn all_is_reported(&mut self, place: Place, ctx: &mut Context) {
        let Some(cached) = self.caches.get_mut(&place) else { return };
        for (recall, (operation, alone)) in std::mem::take(&mut cached.delegated.returning) {
            let Some(cached) = self.caches.get_mut(&place) else { return };
            cached.recalls.insert(recall, operation);
            if alone {
                self.acknowledge(place.0, place.1, &[Effect::Acknowledge(recall)], ctx);
            }
        }
    }
}

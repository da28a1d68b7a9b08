//! Which node owns a fileset, and how it changes hands.
//!
//! `owners/<fileset>` is changed by one transaction only, which compares the record (and with it the epoch), the lease of
//! the node that changes it, and, at a takeover, that the former owner has not registered again ([`Swap`]).
//!
//! ```text
//!              Claiming -> Opening -> Owning -> Settling -> Passing -> (elsewhere)
//! (elsewhere) ----^           ^          ^__________|            |
//!   handed over to this node _|          could not settle        |
//!                                        Dropping <- superseded: any of them
//! ```
//!
//! - **Takeover.** The record names a life of a daemon that is not a member. The fileset's home among
//!   the members claims it at once, the others, ordered by [`rendezvous`], one after another while it stays without an owner.
//! - **Handover.** The owner has changes wait, recalls what clients cache, flushes, closes the store, and makes the
//!   new owner the record's. The new owner opens. A crash before the transaction is a takeover, one after it is one too.
//! - **Superseded.** The record has moved on. What was not committed is lost as in a crash; nothing is answered any more.
//! - **Balance.** An owner hands over what another node is the home of ([`View::homes`]): at most `handovers_max` at a time, and not
//!   before it had the fileset, and the other node its membership, for `owner_hold_min`.
//!
//! Grants never outlive the lease of the owner that gave them ([`crate::grants`]), so a takeover after the end of a lease
//! need not wait for them. One while the lease lasts (the daemon started again) opens its gate only after `lapse`.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};

use crate::fault::{self, Fault};
use crate::membership::{Attempt, LeaseId, Revision};
use crate::settings::Settings;
use crate::time::Moment;

mod fileset;
mod record;
pub mod rendezvous;
#[cfg(test)]
mod tests;

use fileset::Fileset;
pub use record::{Change, Record, Swap, View};

/// What happens to owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All members and owners were read.
    View(View),
    /// A watch reported a change.
    Changed {
        /// At which revision.
        revision: Revision,
        /// The change.
        change: Change,
    },
    /// The answer to [`Effect::Swap`].
    Swapped {
        /// Of the effect.
        attempt: Attempt,
        /// What came of it.
        outcome: Outcome,
    },
    /// [`Effect::Open`] was carried out and `lapse` has passed: the gate is open. (Earlier, the fileset could be handed over to
    /// a node that opens its gate too early.)
    Opened {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// [`Effect::Open`] failed; nothing of the fileset is open.
    OpenFailed {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// [`Effect::Settle`] was carried out: no grants, nothing uncommitted, store closed.
    Settled {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// [`Effect::Settle`] failed; the fileset is open, and its gate may be opened again.
    SettleFailed {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// [`Effect::Drop`] was carried out: nothing of that epoch is left in memory.
    Dropped {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// A user wants the fileset moved once.
    Move {
        /// The fileset.
        fileset: FilesetId,
        /// Where to.
        to: NodeId,
    },
    /// The daemon stops: everything is handed over, or let go of.
    Stop,
    /// Time has passed.
    Tick,
}

/// What came of a [`Swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record is the new one.
    Done,
    /// Something was not as stated: nothing was changed.
    Refused,
    /// No answer: it may have been carried out, or still may be.
    Unknown,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry the transaction out.
    Swap {
        /// To be named in the answer.
        attempt: Attempt,
        /// The transaction.
        swap: Swap,
    },
    /// Read all members and owners, not from a follower that lags behind.
    Read,
    /// Open the fileset's store in this epoch, which fences every earlier one, and then its gate, but not before `lapse` has
    /// passed since this effect: clients may cache what an earlier life of this or another node granted. Reads wait as well:
    /// the store may not have what that life answered and had not committed.
    Open {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
        /// How long the gate stays closed.
        lapse: Duration,
    },
    /// Have changes wait; recall all grants while reads are still answered (a kernel invalidates only after its READ under
    /// way); then have reads wait too, flush, commit, close the store.
    Settle {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
        /// Who is to own it next, if that is known.
        to: Option<ClientId>,
    },
    /// The fileset has another owner, or none: requests that wait are sent there.
    Passed {
        /// The fileset.
        fileset: FilesetId,
        /// The new owner.
        to: Option<ClientId>,
    },
    /// This node was superseded, perhaps while it opens or settles: that is given up, and what it reports is ignored. Close the gate for good: handles are stale, fsync fails; drop everything in memory.
    Drop {
        /// The fileset.
        fileset: FilesetId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// After [`Event::Stop`]: nothing is owned any more. The lease is left to end by itself: to revoke it could end it
    /// before what a former life of the daemon vouched for has lapsed.
    Stopped,
}

/// What a node holds of one fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It tries to become the owner.
    Claiming {
        /// What the record must be.
        expect: Record,
        /// The request to etcd; none between two.
        attempt: Option<Attempt>,
    },
    /// It is the owner; the store is being opened.
    Opening {
        /// In which epoch.
        epoch: Epoch,
    },
    /// It is the owner, and answers while its lease lasts.
    Owning {
        /// In which epoch.
        epoch: Epoch,
        /// Since when.
        since: Moment,
    },
    /// It is the owner; requests wait and everything is committed.
    Settling {
        /// In which epoch.
        epoch: Epoch,
        /// Who is next.
        to: Option<ClientId>,
    },
    /// It has closed the store and makes the next owner the record's.
    Passing {
        /// What the record must be.
        expect: Record,
        /// Who is next.
        to: Option<ClientId>,
        /// The request to etcd; none between two.
        attempt: Option<Attempt>,
    },
    /// It was superseded; what it holds in memory is being dropped.
    Dropping {
        /// In which epoch it was the owner.
        epoch: Epoch,
    },
}

/// The filesets of a cluster as one node sees them, and what it holds of them.
#[derive(Clone, Debug)]
pub struct Ownership {
    settings: Settings,
    me: ClientId,
    /// The node's lease while it answers.
    standing: Option<LeaseId>,
    view: View,
    /// [`View::homes`], those without this node once it stops, until the view changes in what they depend on.
    homes: Option<BTreeMap<FilesetId, NodeId>>,
    filesets: BTreeMap<FilesetId, Fileset>,
    /// Since when each life of a node is a member.
    since: BTreeMap<NodeId, (u64, Moment)>,
    next: Attempt,
    stopping: bool,
    stopped: bool,
    wake: Moment,
}

impl Ownership {
    /// A node that has not seen anything yet.
    #[must_use]
    pub fn new(settings: Settings, me: ClientId) -> Ownership {
        Ownership {
            settings,
            me,
            standing: None,
            view: View::default(),
            homes: None,
            filesets: BTreeMap::new(),
            since: BTreeMap::new(),
            next: Attempt(1),
            stopping: false,
            stopped: false,
            wake: Moment(Duration::MAX),
        }
    }

    /// What was seen last.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What this node holds of a fileset.
    #[must_use]
    pub fn holding(&self, fileset: FilesetId) -> Option<Holding> {
        self.filesets.get(&fileset)?.holding
    }

    /// What this node holds of all filesets.
    pub fn holdings(&self) -> impl Iterator<Item = (FilesetId, Holding)> {
        self.filesets.iter().filter_map(|(fileset, it)| Some((*fileset, it.holding?)))
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        self.wake
    }

    /// The node answers under this lease, or waits. While it waits it starts nothing; what it owns stays.
    pub fn stand(&mut self, standing: Option<LeaseId>) {
        self.standing = standing;
    }

    /// Takes note of an event; stale ones change nothing.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::View(view) => self.viewed(view, now, &mut effects),
            Event::Changed { revision, change } => {
                self.changed(revision, change, now, &mut effects);
            }
            Event::Swapped { attempt, outcome } => {
                self.swapped(attempt, outcome, now, &mut effects);
            }
            Event::Opened { fileset, epoch } => {
                self.with(fileset, |it| it.opened(epoch, now));
            }
            Event::OpenFailed { fileset, epoch } => {
                let retry = now + self.settings.open_retry;
                self.with(fileset, |it| it.open_failed(epoch, retry));
            }
            Event::Settled { fileset, epoch } => {
                self.with(fileset, |it| it.settled(epoch));
            }
            Event::SettleFailed { fileset, epoch } => {
                let retry = now + self.settings.open_retry;
                self.with(fileset, |it| it.settle_failed(epoch, now, retry));
            }
            Event::Dropped { fileset, epoch } => {
                self.with(fileset, |it| it.dropped(epoch, now, &mut effects));
            }
            Event::Move { fileset, to } => self.with(fileset, |it| it.asked = Some(to)),
            Event::Stop => {
                self.stopping = true;
                self.homes = None;
            }
            Event::Tick => {}
        }
        self.advance(now, &mut effects);
        effects
    }

    fn with(&mut self, fileset: FilesetId, change: impl FnOnce(&mut Fileset)) {
        if let Some(it) = self.filesets.get_mut(&fileset) {
            change(it);
        }
    }

    fn viewed(&mut self, view: View, now: Moment, effects: &mut Vec<Effect>) {
        if view.revision < self.view.revision {
            return;
        }
        let owners = std::mem::take(&mut self.view.owners);
        let gone = owners.keys().filter(|fileset| !view.owners.contains_key(fileset));
        let gone: Vec<FilesetId> = gone.copied().collect();
        let news: Vec<_> = view.owners.iter().map(|(fileset, it)| (*fileset, *it)).collect();
        self.view = View { owners, ..view };
        self.homes = None;
        for fileset in gone {
            self.seen(fileset, None, now, effects);
        }
        for (fileset, record) in news {
            self.seen(fileset, Some(record), now, effects);
        }
        self.note_members(now);
    }

    fn changed(
        &mut self,
        revision: Revision,
        change: Change,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        // A transaction may change several keys at one revision.
        if revision < self.view.revision {
            return;
        }
        self.view.revision = revision;
        match change {
            Change::Owner(fileset, record) => self.seen(fileset, record, now, effects),
            Change::Member(..) => {
                self.view.apply(change);
                self.homes = None;
                self.note_members(now);
            }
            Change::Draining(..) | Change::Pinned(..) => {
                self.view.apply(change);
                self.homes = None;
            }
        }
    }

    /// Notes since when each life of a node is a member.
    fn note_members(&mut self, now: Moment) {
        let members = &self.view.members;
        self.since.retain(|node, (life, _)| {
            members.get(node).is_some_and(|member| member.incarnation == *life)
        });
        for (node, member) in members {
            self.since.entry(*node).or_insert((member.incarnation, now));
        }
    }

    fn seen(
        &mut self,
        fileset: FilesetId,
        record: Option<Record>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let me = self.me;
        let it = self.filesets.entry(fileset).or_insert_with(|| Fileset::new(fileset, me));
        if it.seen(record, now, effects) {
            if self.view.owners.contains_key(&fileset) != record.is_some() {
                self.homes = None;
            }
            self.view.apply(Change::Owner(fileset, record));
        }
        if it.holding.is_none() && it.record.is_none() {
            self.filesets.remove(&fileset);
        }
    }

    fn swapped(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let found = self.filesets.iter_mut().find(|(_, it)| it.attempt() == Some(attempt));
        let Some((fileset, it)) = found else { return };
        let (fileset, wanted) = (*fileset, it.wanted());
        match outcome {
            Outcome::Done => self.seen(fileset, wanted, now, effects),
            Outcome::Refused | Outcome::Unknown => {
                it.undecided(now + self.settings.etcd_retry);
                effects.push(Effect::Read);
            }
        }
    }

    /// What follows from time and from what was seen.
    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.wake = Moment(Duration::MAX);
        let mut handovers = self.filesets.values().filter(|it| it.is_handed_over()).count();
        let filesets: Vec<FilesetId> = self.filesets.keys().copied().collect();
        for fileset in filesets {
            match self.holding(fileset) {
                None => self.consider_claim(fileset, now, effects),
                Some(Holding::Claiming { .. }) => self.claim(fileset, now, effects),
                Some(Holding::Owning { epoch, since }) => {
                    if handovers < self.settings.handovers_max
                        && self.consider_handover(fileset, epoch, since, now, effects)
                    {
                        handovers += 1;
                    }
                }
                Some(Holding::Passing { .. }) => self.pass(fileset, now, effects),
                Some(
                    Holding::Opening { .. } | Holding::Settling { .. } | Holding::Dropping { .. },
                ) => {}
            }
        }
        if self.stopping && !self.stopped && self.holdings().next().is_none() {
            self.stopped = true;
            effects.push(Effect::Stopped);
        }
    }

    fn wake_at(&mut self, moment: Moment) {
        self.wake = self.wake.min(moment);
    }

    /// Members that may own a fileset, in order: its home, which it has without this node if that stops, then by [`rendezvous`]. Nodes that are being drained come last.
    fn candidates(&mut self, fileset: FilesetId) -> Vec<NodeId> {
        let leaving = self.stopping.then_some(self.me.node);
        let homes = self.homes.get_or_insert_with(|| self.view.homes_without(leaving));
        let home = homes.get(&fileset).copied();
        // One of weight 0 has not mounted the file system: it serves no fileset, and must not be left with one.
        let serving = self.view.members.iter().filter(|(_, member)| member.weight > 0);
        let members = serving.map(|(node, member)| (*node, member.weight));
        let mut order = rendezvous::order(fileset, members);
        order.sort_by_key(|node| Some(*node) != home);
        order.sort_by_key(|node| self.view.draining.contains(node));
        order
    }

    /// Claims a fileset without an owner if it is this node's turn.
    fn consider_claim(&mut self, fileset: FilesetId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(record) = self.view.owners.get(&fileset).copied() else { return };
        let former = record.owner;
        if former.is_some_and(|owner| self.view.is_member(owner)) {
            self.with(fileset, |it| it.orphan_since = None);
            return;
        }
        if self.standing.is_none() || self.stopping {
            return;
        }
        let mut order = self.candidates(fileset);
        if let Some(former) = former {
            // A daemon that started again has the store's cache on its disk.
            order.sort_by_key(|node| *node != former.node);
        }
        let Some(rank) = order.iter().position(|node| *node == self.me.node) else { return };
        let patience = self.settings.takeover_patience * u32::try_from(rank).unwrap_or(u32::MAX);
        let Some(it) = self.filesets.get_mut(&fileset) else { return };
        let due = (*it.orphan_since.get_or_insert(now) + patience).max(it.not_before);
        if now < due {
            self.wake_at(due);
            return;
        }
        let lapse = self.lapse_after(former, now);
        let it = self.filesets.get_mut(&fileset).expect("it was found above");
        it.claimed = Some((record.epoch.next(), now + lapse));
        it.holding = Some(Holding::Claiming { expect: record, attempt: None });
        self.claim(fileset, now, effects);
    }

    /// How long the gate stays closed after a takeover from `former`. Its lease has ended if its node is not a member, and
    /// grants with it. If the daemon started again within its lease, what it vouched for in its former life may be in
    /// use: that life was over when the present one became a member.
    fn lapse_after(&self, former: Option<ClientId>, now: Moment) -> Duration {
        let restarted = former.and_then(|it| self.since.get(&it.node));
        match restarted {
            Some((_, since)) if !fault::is(Fault::NoWaitAfterRestart) => {
                self.settings.lapse().saturating_sub(now.since(*since))
            }
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Sends a transaction that changes the owner from `expect` to `to`; none while the node does not answer.
    fn swap(
        &mut self,
        fileset: FilesetId,
        expect: Record,
        to: Option<ClientId>,
        effects: &mut Vec<Effect>,
    ) -> Option<Attempt> {
        let lease = self.standing?;
        let mut members = vec![(self.me.node, Some(lease))];
        if let Some(former) = expect.owner
            && former.node != self.me.node
            && !fault::is(Fault::TakeoverOfTheLiving)
        {
            let lease = self.view.members.get(&former.node).map(|member| member.lease);
            members.push((former.node, lease));
        }
        let attempt = self.next;
        self.next = Attempt(attempt.0 + 1);
        let swap = Swap { fileset, expect, members, value: expect.next(to) };
        effects.push(Effect::Swap { attempt, swap });
        Some(attempt)
    }

    /// Sends a claim, again if its outcome is not known, unless the former owner has registered again.
    fn claim(&mut self, fileset: FilesetId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(it) = self.filesets.get(&fileset) else { return };
        let Some(Holding::Claiming { expect, attempt: None }) = it.holding else { return };
        if expect.owner.is_some_and(|owner| self.view.is_member(owner)) {
            self.with(fileset, |it| it.holding = None);
            return;
        }
        let retry_at = it.retry_at;
        if now < retry_at {
            self.wake_at(retry_at);
            return;
        }
        let attempt = self.swap(fileset, expect, Some(self.me), effects);
        self.with(fileset, |it| it.holding = Some(Holding::Claiming { expect, attempt }));
    }

    /// Sends the transaction of a handover, again if its outcome is not known.
    fn pass(&mut self, fileset: FilesetId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(it) = self.filesets.get(&fileset) else { return };
        let Some(Holding::Passing { expect, to, attempt: None }) = it.holding else { return };
        let retry_at = it.retry_at;
        if now < retry_at {
            self.wake_at(retry_at);
            return;
        }
        let attempt = self.swap(fileset, expect, to, effects);
        self.with(fileset, |it| it.holding = Some(Holding::Passing { expect, to, attempt }));
    }

    /// Begins to hand a fileset over if another node is to own it; returns whether it did.
    fn consider_handover(
        &mut self,
        fileset: FilesetId,
        epoch: Epoch,
        since: Moment,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.standing.is_none() {
            return false;
        }
        let Some(it) = self.filesets.get(&fileset) else { return false };
        let (asked, not_before) = (it.asked, it.not_before);
        if now < not_before {
            self.wake_at(not_before);
            return false;
        }
        let order = self.candidates(fileset);
        let leaving = self.stopping || self.view.draining.contains(&self.me.node);
        let pinned = self.view.pinned.get(&fileset).copied();
        let alive = |node: &NodeId| self.view.members.contains_key(node);
        let best = match asked.filter(alive) {
            Some(asked) => Some(asked),
            None if self.stopping => order.into_iter().find(|node| *node != self.me.node),
            None => order.first().copied(),
        };
        let to = best.filter(|node| *node != self.me.node);
        if to.is_none() && !self.stopping {
            self.with(fileset, |it| it.asked = None);
            return false;
        }
        if !leaving && asked.is_none() && pinned != to {
            let hold = self.settings.owner_hold_min;
            let known = to.and_then(|node| self.since.get(&node)).map_or(now, |(_, since)| *since);
            let due = since.max(known) + hold;
            if now < due {
                self.wake_at(due);
                return false;
            }
        }
        let to = to.and_then(|node| {
            let incarnation = self.view.members.get(&node)?.incarnation;
            Some(ClientId { node, incarnation })
        });
        self.with(fileset, |it| {
            it.asked = None;
            it.holding = Some(Holding::Settling { epoch, to });
        });
        effects.push(Effect::Settle { fileset, epoch, to });
        true
    }
}

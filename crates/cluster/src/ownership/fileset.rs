//! What one node knows and holds of one fileset.

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};

use super::{Effect, Holding, Record};
use crate::fault::{self, Fault};
use crate::membership::Attempt;
use crate::time::Moment;

/// One fileset as one node sees it.
#[derive(Clone, Debug)]
pub(super) struct Fileset {
    id: FilesetId,
    me: ClientId,
    /// The record of the highest epoch that was seen.
    pub record: Option<Record>,
    pub holding: Option<Holding>,
    /// The epoch of the latest claim, and until when the gate is to stay closed if it succeeds: a claim whose outcome was not
    /// known may turn out to have succeeded much later.
    pub claimed: Option<(Epoch, Moment)>,
    /// Since when the node sees it without an owner.
    pub orphan_since: Option<Moment>,
    /// When a request to etcd is sent again.
    pub retry_at: Moment,
    /// Until when the node neither claims it nor hands it over.
    pub not_before: Moment,
    /// Where a user wants it.
    pub asked: Option<NodeId>,
}

impl Fileset {
    pub fn new(id: FilesetId, me: ClientId) -> Fileset {
        Fileset {
            id,
            me,
            record: None,
            holding: None,
            claimed: None,
            orphan_since: None,
            retry_at: Moment::default(),
            not_before: Moment::default(),
            asked: None,
        }
    }

    /// The epoch in which this node is the owner, as far as it knows.
    fn held_epoch(&self) -> Option<Epoch> {
        match self.holding? {
            Holding::Opening { epoch }
            | Holding::Owning { epoch, .. }
            | Holding::Settling { epoch, .. } => Some(epoch),
            Holding::Passing { expect, .. } => Some(expect.epoch),
            Holding::Claiming { .. } | Holding::Dropping { .. } => None,
        }
    }

    pub fn is_handed_over(&self) -> bool {
        matches!(self.holding, Some(Holding::Settling { .. } | Holding::Passing { .. }))
    }

    /// The request to etcd whose answer is outstanding.
    pub fn attempt(&self) -> Option<Attempt> {
        match self.holding? {
            Holding::Claiming { attempt, .. } | Holding::Passing { attempt, .. } => attempt,
            Holding::Opening { .. }
            | Holding::Owning { .. }
            | Holding::Settling { .. }
            | Holding::Dropping { .. } => None,
        }
    }

    /// What the record is once the outstanding request has been carried out.
    pub fn wanted(&self) -> Option<Record> {
        match self.holding? {
            Holding::Claiming { expect, .. } => Some(expect.next(Some(self.me))),
            Holding::Passing { expect, to, .. } => Some(expect.next(to)),
            Holding::Opening { .. }
            | Holding::Owning { .. }
            | Holding::Settling { .. }
            | Holding::Dropping { .. } => None,
        }
    }

    /// The outstanding request has failed, or nobody knows: it is sent again unless another record is seen first.
    pub fn undecided(&mut self, retry_at: Moment) {
        if let Some(Holding::Claiming { attempt, .. } | Holding::Passing { attempt, .. }) =
            &mut self.holding
        {
            *attempt = None;
            self.retry_at = retry_at;
        }
    }

    /// The record was seen; returns whether it was news. What a watch reports may be older than what an answer said.
    pub fn seen(&mut self, record: Option<Record>, now: Moment, effects: &mut Vec<Effect>) -> bool {
        let older = |record: Record| self.record.is_some_and(|known| record.epoch <= known.epoch);
        if record.is_some_and(older) || (record.is_none() && self.record.is_none()) {
            return false;
        }
        let wanted = self.wanted();
        self.record = record;
        self.orphan_since = None;
        if let Some(held) = self.held_epoch() {
            if let Some(Holding::Passing { to, .. }) = self.holding
                && record == wanted
            {
                self.holding = None;
                effects.push(Effect::Passed { fileset: self.id, to });
            } else if !fault::is(Fault::SupersededGoesOn) {
                self.holding = Some(Holding::Dropping { epoch: held });
                effects.push(Effect::Drop { fileset: self.id, epoch: held });
            }
        } else if !matches!(self.holding, Some(Holding::Dropping { .. })) {
            self.holding = None;
            self.open_if_mine(now, effects);
        }
        true
    }

    /// Opens what the record says is this node's and is not held yet.
    fn open_if_mine(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(Record { owner, epoch }) = self.record else { return };
        if self.holding.is_some() || owner != Some(self.me) {
            return;
        }
        let lapse = self.closed_until(epoch).left(now);
        self.holding = Some(Holding::Opening { epoch });
        self.not_before = Moment::default();
        effects.push(Effect::Open { fileset: self.id, epoch, lapse });
    }

    /// Until when the gate is to stay closed in this epoch.
    fn closed_until(&self, epoch: Epoch) -> Moment {
        let claimed = self.claimed.filter(|(claimed, _)| *claimed == epoch);
        claimed.map(|(_, until)| until).unwrap_or_default()
    }

    pub fn opened(&mut self, opened: Epoch, now: Moment) {
        if self.holding == Some(Holding::Opening { epoch: opened }) {
            self.holding = Some(Holding::Owning { epoch: opened, since: now });
        }
    }

    /// What could not be opened is let go of: another node may be able to. It opens its gate at once, so this one
    /// waits until it might have opened its own.
    pub fn open_failed(&mut self, failed: Epoch, not_before: Moment) {
        if self.holding == Some(Holding::Opening { epoch: failed }) {
            self.not_before = not_before;
            self.pass(failed, None);
            self.retry_at = self.closed_until(failed);
        }
    }

    pub fn settled(&mut self, settled: Epoch) {
        if let Some(Holding::Settling { epoch, to }) = self.holding
            && epoch == settled
        {
            self.pass(settled, to);
        }
    }

    fn pass(&mut self, epoch: Epoch, to: Option<ClientId>) {
        let expect = Record { owner: Some(self.me), epoch };
        self.holding = Some(Holding::Passing { expect, to, attempt: None });
        self.retry_at = Moment::default();
    }

    pub fn settle_failed(&mut self, failed: Epoch, now: Moment, not_before: Moment) {
        if let Some(Holding::Settling { epoch, .. }) = self.holding
            && epoch == failed
        {
            self.not_before = not_before;
            self.holding = Some(Holding::Owning { epoch, since: now });
        }
    }

    pub fn dropped(&mut self, dropped: Epoch, now: Moment, effects: &mut Vec<Effect>) {
        if self.holding == Some(Holding::Dropping { epoch: dropped }) {
            self.holding = None;
            self.open_if_mine(now, effects);
        }
    }
}

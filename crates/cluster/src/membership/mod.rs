//! A node's lease, as the node itself sees it: whether it may answer.
//!
//! The node registers itself in etcd under a lease and renews the lease. etcd counts the lease from when it carried out
//! the renewal, the node from when it sent it, by its own clock and with the drift and `lease_margin` taken off: so the node
//! stops answering before anyone else can see the lease end. etcd ends leases late (a new leader begins anew), never early.
//!
//! ```text
//! Resting -> Granting -> Registering -> Holding (answering until a moment; waiting once it is over)
//!    ^___________|____________|_____________|  the lease is gone, or an attempt failed
//! ```
//!
//! A node that waits and hears that its lease was renewed answers again: the lease never ended, so nobody took over. One
//! whose lease is gone registers anew. The answer to that carries all owners as of the same transaction; whatever was
//! taken over is dropped ([`crate::ownership`]) before the node answers again for the rest.
//!
//! Nothing here survives a crash: a daemon that starts again has another incarnation and begins with nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::ClientId;
use serde::{Deserialize, Serialize};

use crate::fault::{self, Fault};
use crate::settings::Settings;
use crate::time::Moment;

#[cfg(test)]
mod tests;

forebay_base::id! {
    /// Number of a lease, as etcd gave it out; never used again.
    LeaseId(i64)
}
forebay_base::id! {
    /// Number of a request to etcd in one life of a daemon: tells answers to it from answers to earlier ones.
    Attempt(u64)
}
forebay_base::id! {
    /// Revision of etcd's keys: grows with every change of any key.
    Revision(u64)
}

/// What `members/<node>` says; etcd removes the key when its lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which life of the node's daemon.
    pub incarnation: u64,
    /// The lease that the key is attached to.
    pub lease: LeaseId,
    /// Share of filesets that the node is to own, relative to the others; 0 for none.
    pub weight: u32,
}

/// What happens to a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Effect::Grant`] gave a lease of `ttl`.
    Granted {
        /// Of the effect.
        attempt: Attempt,
        /// The lease.
        lease: LeaseId,
        /// For how long, as etcd says.
        ttl: Duration,
    },
    /// [`Effect::Register`] wrote the key.
    Registered {
        /// Of the effect.
        attempt: Attempt,
        /// At which revision.
        revision: Revision,
    },
    /// [`Effect::Register`] found another key than it expected, and wrote nothing.
    Refused {
        /// Of the effect.
        attempt: Attempt,
        /// What the key says.
        found: Option<Member>,
    },
    /// [`Effect::Renew`] renewed the lease.
    Renewed {
        /// Of the effect.
        attempt: Attempt,
        /// For how long, as etcd says.
        ttl: Duration,
    },
    /// etcd does not know this lease (any more).
    Gone {
        /// The lease.
        lease: LeaseId,
    },
    /// A request failed or its answer did not come in time: it may have been carried out, or still may be.
    Failed {
        /// Of the effect.
        attempt: Attempt,
    },
    /// What the node's own key says at `revision`.
    Seen {
        /// What it says.
        me: Option<Member>,
        /// At which revision.
        revision: Revision,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask etcd for a lease.
    Grant {
        /// To be named in the answer.
        attempt: Attempt,
        /// For how long.
        ttl: Duration,
    },
    /// One transaction: if the node's key is attached to `expect` (does not exist, if none), write it, attached to the
    /// lease of `member`, and read all members and owners. Otherwise read the node's key.
    Register {
        /// To be named in the answer.
        attempt: Attempt,
        /// What to write.
        member: Member,
        /// The lease that the key must be attached to.
        expect: Option<LeaseId>,
    },
    /// Ask etcd to renew the lease.
    Renew {
        /// To be named in the answer.
        attempt: Attempt,
        /// The lease.
        lease: LeaseId,
    },
    /// Gates may be open until this moment of the node's own clock. Every request compares the clock with it: a thread
    /// that closes gates may be late when the node was frozen.
    Answer {
        /// Exclusive.
        until: Moment,
    },
    /// Gates wait.
    Wait,
    /// A later life of this node's daemon has registered: this one is to stop.
    Replaced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resting { until: Moment },
    Granting { attempt: Attempt },
    Registering { attempt: Attempt, lease: LeaseId, until: Moment },
    Holding { lease: LeaseId, until: Moment, revision: Revision },
    Replaced,
}

/// Requests to etcd whose answers may still come. Older ones are forgotten: their answers count for nothing.
const OUTSTANDING_MAX: usize = 16;

/// A node's lease as the node itself sees it.
#[derive(Clone, Debug)]
pub struct Membership {
    settings: Settings,
    me: ClientId,
    weight: u32,
    state: State,
    answering: bool,
    next: Attempt,
    /// When each request was sent.
    sent: BTreeMap<Attempt, Moment>,
    renew_at: Moment,
}

impl Membership {
    /// A node that has not registered yet.
    #[must_use]
    pub fn new(settings: Settings, me: ClientId, weight: u32, now: Moment) -> Membership {
        Membership {
            settings,
            me,
            weight,
            state: State::Resting { until: now },
            answering: false,
            next: Attempt(1),
            sent: BTreeMap::new(),
            renew_at: now,
        }
    }

    /// Until when the node may answer; none while it waits.
    #[must_use]
    pub fn answers_until(&self, now: Moment) -> Option<Moment> {
        match self.state {
            State::Holding { until, .. } if now < until => Some(until),
            State::Holding { .. }
            | State::Resting { .. }
            | State::Granting { .. }
            | State::Registering { .. }
            | State::Replaced => None,
        }
    }

    /// The lease under which the node is registered, as far as it knows.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self.state {
            State::Holding { lease, .. } => Some(lease),
            State::Resting { .. }
            | State::Granting { .. }
            | State::Registering { .. }
            | State::Replaced => None,
        }
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        match self.state {
            State::Resting { until } => until,
            State::Granting { attempt } | State::Registering { attempt, .. } => {
                self.overdue_at(attempt)
            }
            State::Holding { until, .. } if self.answering => self.renew_at.min(until),
            State::Holding { .. } => self.renew_at,
            State::Replaced => Moment(Duration::MAX),
        }
    }

    /// Takes note of an event; stale ones change nothing.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Granted { attempt, lease, ttl } => {
                self.granted(attempt, lease, ttl, now, &mut effects);
            }
            Event::Registered { attempt, revision } => self.registered(attempt, revision, now),
            Event::Refused { attempt, found } => self.refused(attempt, found, now, &mut effects),
            Event::Renewed { attempt, ttl } => self.renewed(attempt, ttl, &mut effects, now),
            Event::Gone { lease } => self.gone(lease, now),
            Event::Failed { attempt } => self.failed(attempt, now),
            Event::Seen { me, revision } => self.seen(me, revision, now),
            Event::Tick => {}
        }
        self.advance(now, &mut effects);
        effects
    }

    fn attempt(&mut self, now: Moment) -> Attempt {
        let attempt = self.next;
        self.next = Attempt(attempt.0 + 1);
        self.sent.insert(attempt, now);
        while self.sent.len() > OUTSTANDING_MAX {
            self.sent.pop_first();
        }
        attempt
    }

    fn overdue_at(&self, attempt: Attempt) -> Moment {
        let sent = self.sent.get(&attempt).copied().unwrap_or_default();
        sent + self.settings.etcd_timeout
    }

    /// The last moment of a lease of `ttl` for which etcd was asked at `sent`.
    fn lasts_until(&self, sent: Moment, ttl: Duration, now: Moment) -> Moment {
        if fault::is(Fault::LeaseFromAnswer) {
            return now + ttl;
        }
        sent + self.settings.sure_of(ttl)
    }

    fn granted(
        &mut self,
        attempt: Attempt,
        lease: LeaseId,
        ttl: Duration,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if self.state != (State::Granting { attempt }) {
            return;
        }
        let Some(sent) = self.sent.remove(&attempt) else { return };
        let until = self.lasts_until(sent, ttl, now);
        self.register(lease, until, None, now, effects);
    }

    fn register(
        &mut self,
        lease: LeaseId,
        until: Moment,
        expect: Option<LeaseId>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let attempt = self.attempt(now);
        self.state = State::Registering { attempt, lease, until };
        let member = Member { incarnation: self.me.incarnation, lease, weight: self.weight };
        effects.push(Effect::Register { attempt, member, expect });
    }

    fn registered(&mut self, attempt: Attempt, revision: Revision, now: Moment) {
        if let State::Registering { attempt: current, lease, until } = self.state
            && current == attempt
        {
            self.state = State::Holding { lease, until, revision };
            self.renew_at = now + self.settings.renew_interval();
        }
    }

    fn refused(
        &mut self,
        attempt: Attempt,
        found: Option<Member>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let State::Registering { attempt: current, lease, until } = self.state else { return };
        if current != attempt {
            return;
        }
        if found.is_some_and(|found| found.incarnation > self.me.incarnation) {
            self.state = State::Replaced;
            effects.push(Effect::Replaced);
        } else {
            self.register(lease, until, found.map(|found| found.lease), now, effects);
        }
    }

    fn renewed(&mut self, attempt: Attempt, ttl: Duration, effects: &mut Vec<Effect>, now: Moment) {
        let Some(sent) = self.sent.remove(&attempt) else { return };
        let renewed = self.lasts_until(sent, ttl, now);
        if let State::Holding { until, .. } = &mut self.state
            && renewed > *until
        {
            *until = renewed;
            if self.answering && now < renewed {
                effects.push(Effect::Answer { until: renewed });
            }
        }
    }

    fn gone(&mut self, lost: LeaseId, now: Moment) {
        match self.state {
            State::Holding { lease, .. } | State::Registering { lease, .. } if lease == lost => {
                self.rest(now);
            }
            State::Holding { .. }
            | State::Registering { .. }
            | State::Resting { .. }
            | State::Granting { .. }
            | State::Replaced => {}
        }
    }

    fn failed(&mut self, attempt: Attempt, now: Moment) {
        self.sent.remove(&attempt);
        match self.state {
            State::Granting { attempt: current } | State::Registering { attempt: current, .. }
                if current == attempt =>
            {
                self.rest(now + self.settings.etcd_retry);
            }
            State::Granting { .. } | State::Registering { .. } => {}
            State::Holding { .. } => {
                self.renew_at = self.renew_at.min(now + self.settings.etcd_retry);
            }
            State::Resting { .. } | State::Replaced => {}
        }
    }

    fn seen(&mut self, me: Option<Member>, seen: Revision, now: Moment) {
        if let State::Holding { lease, revision, .. } = self.state
            && seen > revision
            && me.is_none_or(|me| me.lease != lease)
        {
            self.rest(now);
        }
    }

    fn rest(&mut self, until: Moment) {
        self.state = State::Resting { until };
    }

    /// What time alone brings about, and whether gates may be open now.
    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match self.state {
            State::Granting { attempt } | State::Registering { attempt, .. }
                if now >= self.overdue_at(attempt) =>
            {
                self.sent.remove(&attempt);
                self.rest(now);
            }
            State::Granting { .. }
            | State::Registering { .. }
            | State::Resting { .. }
            | State::Holding { .. }
            | State::Replaced => {}
        }
        if let State::Resting { until } = self.state
            && now >= until
        {
            let attempt = self.attempt(now);
            self.state = State::Granting { attempt };
            effects.push(Effect::Grant { attempt, ttl: self.settings.node_lease });
        }
        if let State::Holding { lease, .. } = self.state
            && now >= self.renew_at
        {
            let attempt = self.attempt(now);
            self.renew_at = now + self.settings.renew_interval();
            effects.push(Effect::Renew { attempt, lease });
        }
        match (self.answering, self.answers_until(now)) {
            (false, Some(until)) => {
                self.answering = true;
                effects.push(Effect::Answer { until });
            }
            (true, None) => {
                self.answering = false;
                effects.push(Effect::Wait);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
}

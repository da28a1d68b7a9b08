//! One node's part in the cluster: membership and ownership driven together.
//!
//! A daemon owns one [`Node`]. It carries the effects out in order, and reports every answer as an event:
//!
//! 1. Requests to etcd are sent as they come out, several at a time; each is answered once, by what etcd said, or by
//!    "unknown" after `etcd_timeout` (an answer that comes later may still be reported, and is taken for what it is).
//! 2. All changes below `members/`, `owners/` and the settings of owners are watched from the revision of the latest view
//!    on. A watch that breaks is begun anew; if etcd has forgotten the revision, [`ownership::Effect::Read`]'s answer takes its place.
//! 3. [`Event::Tick`] at [`Node::next_wake`] at the latest.
//! 4. [`membership::Effect::Answer`] and [`membership::Effect::Wait`] go to the gates of all filesets. `Answer` carries a moment: whoever passes a gate
//!    compares the clock with it, because no thread is sure to run in time.
//!
//! The order of effects matters: what was superseded is dropped before gates open again.

use std::time::Duration;

use forebay_base::{ClientId, FilesetId};

use crate::fault::{self, Fault};
use crate::membership::{self, Attempt, LeaseId, Member, Membership};
use crate::ownership::{self, Holding, Ownership, View};
use crate::settings::Settings;
use crate::time::Moment;

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// etcd gave a lease: the answer to [`membership::Effect::Grant`].
    Granted {
        /// Of the effect.
        attempt: Attempt,
        /// The lease.
        lease: LeaseId,
        /// For how long, as etcd says.
        ttl: Duration,
    },
    /// [`membership::Effect::Register`] wrote the node's key, and read everything in the same transaction.
    Registered {
        /// Of the effect.
        attempt: Attempt,
        /// Members and owners, this node included.
        view: View,
    },
    /// [`membership::Effect::Register`] found another key than it expected.
    Refused {
        /// Of the effect.
        attempt: Attempt,
        /// What the key says.
        found: Option<Member>,
    },
    /// [`membership::Effect::Renew`] renewed the lease.
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
    /// A grant, registration or renewal failed, or was not answered in time.
    Failed {
        /// Of the effect.
        attempt: Attempt,
    },
    /// Everything about owners; views and watched changes are also looked through for this node's own key.
    Ownership(ownership::Event),
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// About the node's lease and the gates of all filesets.
    Membership(membership::Effect),
    /// About owners.
    Ownership(ownership::Effect),
}

/// One node's part in the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    me: ClientId,
    membership: Membership,
    ownership: Ownership,
}

impl Node {
    /// A node that has not registered yet; `weight` is its share of filesets relative to others.
    #[must_use]
    pub fn new(settings: Settings, me: ClientId, weight: u32, now: Moment) -> Node {
        Node {
            me,
            membership: Membership::new(settings, me, weight, now),
            ownership: Ownership::new(settings, me),
        }
    }

    /// Until when the node may answer; none while it waits.
    #[must_use]
    pub fn answers_until(&self, now: Moment) -> Option<Moment> {
        self.membership.answers_until(now)
    }

    /// What this node holds of a fileset.
    #[must_use]
    pub fn holding(&self, fileset: FilesetId) -> Option<Holding> {
        self.ownership.holding(fileset)
    }

    /// What this node holds of all filesets.
    pub fn holdings(&self) -> impl Iterator<Item = (FilesetId, Holding)> {
        self.ownership.holdings()
    }

    /// Members and owners as seen last.
    #[must_use]
    pub fn view(&self) -> &View {
        self.ownership.view()
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        self.membership.next_wake().min(self.ownership.next_wake())
    }

    /// Takes note of an event; stale ones change nothing.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        let membership = match event {
            Event::Granted { attempt, lease, ttl } => {
                membership::Event::Granted { attempt, lease, ttl }
            }
            Event::Registered { attempt, view } => {
                let revision = view.revision;
                if !fault::is(Fault::AnswersUnchecked) {
                    self.own(ownership::Event::View(view), now, &mut effects);
                }
                membership::Event::Registered { attempt, revision }
            }
            Event::Refused { attempt, found } => membership::Event::Refused { attempt, found },
            Event::Renewed { attempt, ttl } => membership::Event::Renewed { attempt, ttl },
            Event::Gone { lease } => membership::Event::Gone { lease },
            Event::Failed { attempt } => membership::Event::Failed { attempt },
            Event::Tick => membership::Event::Tick,
            Event::Ownership(event) => {
                let seen = self.seen(&event);
                self.own(event, now, &mut effects);
                seen
            }
        };
        let stepped = self.membership.step(membership, now);
        effects.extend(stepped.into_iter().map(Effect::Membership));
        let standing = self.answers_until(now).and(self.membership.lease());
        self.ownership.stand(standing);
        self.own(ownership::Event::Tick, now, &mut effects);
        effects
    }

    fn own(&mut self, event: ownership::Event, now: Moment, effects: &mut Vec<Effect>) {
        let stepped = self.ownership.step(event, now);
        effects.extend(stepped.into_iter().map(Effect::Ownership));
    }

    /// What an event about owners says of this node's own key.
    fn seen(&self, event: &ownership::Event) -> membership::Event {
        let me = self.me.node;
        match event {
            ownership::Event::View(view) => membership::Event::Seen {
                me: view.members.get(&me).copied(),
                revision: view.revision,
            },
            ownership::Event::Changed {
                revision,
                change: ownership::Change::Member(node, member),
            } if *node == me => membership::Event::Seen { me: *member, revision: *revision },
            _ => membership::Event::Tick,
        }
    }
}

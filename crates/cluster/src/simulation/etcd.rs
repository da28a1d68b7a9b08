//! A fake etcd: transactions in one order; leases end late, never early.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};
use rand::Rng as _;

use super::Random;
use crate::membership::{Attempt, LeaseId, Member, Revision};
use crate::node;
use crate::ownership::{self, Change, Outcome, Record, Swap, View};

/// A request of a node.
#[derive(Clone, Debug)]
pub enum Request {
    Grant(Attempt, Duration),
    Register(Attempt, NodeId, Member, Option<LeaseId>),
    Renew(Attempt, LeaseId),
    Swap(Attempt, Swap),
    Read,
}

impl Request {
    /// What a node is told if no answer comes.
    pub fn unanswered(&self) -> node::Event {
        match self {
            Request::Grant(attempt, _)
            | Request::Register(attempt, ..)
            | Request::Renew(attempt, _) => node::Event::Failed { attempt: *attempt },
            Request::Swap(attempt, _) => node::Event::Ownership(ownership::Event::Swapped {
                attempt: *attempt,
                outcome: Outcome::Unknown,
            }),
            Request::Read => node::Event::Tick,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Duration,
    ends: Duration,
}

/// Keys, leases, and the log of all changes.
#[derive(Debug, Default)]
pub struct Etcd {
    view: View,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
    pub log: Vec<(Revision, Change)>,
    /// Every owner that there ever was, for checks.
    pub owners: BTreeMap<(FilesetId, Epoch), ClientId>,
    /// Whether transactions compare: a fault.
    pub compares: bool,
}

impl Etcd {
    pub fn new(filesets: impl Iterator<Item = FilesetId>) -> Etcd {
        let none = Record { owner: None, epoch: Epoch(0) };
        let view = View { owners: filesets.map(|it| (it, none)).collect(), ..View::default() };
        Etcd { view, compares: true, ..Etcd::default() }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Changes a key.
    pub fn change(&mut self, change: Change) {
        self.view.revision = Revision(self.view.revision.0 + 1);
        self.view.apply(change);
        self.log.push((self.view.revision, change));
        if let Change::Owner(fileset, Some(Record { owner: Some(owner), epoch })) = change {
            self.owners.entry((fileset, epoch)).or_insert(owner);
        }
    }

    /// When the next lease ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends).min()
    }

    /// Ends leases whose time is over, and removes their keys.
    pub fn expire(&mut self, now: Duration) {
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, it)| it.ends <= now).map(|(id, _)| *id).collect();
        for lease in over {
            self.leases.remove(&lease);
            let members = self.view.members.iter();
            let gone = members.filter(|(_, it)| it.lease == lease).map(|(node, _)| *node);
            for node in gone.collect::<Vec<NodeId>>() {
                self.change(Change::Member(node, None));
            }
        }
    }

    /// A new leader counts all leases anew.
    pub fn elect(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.ends = lease.ends.max(now + lease.ttl);
        }
    }

    /// Carries a request out; returns the answer.
    pub fn execute(&mut self, request: Request, now: Duration, random: &mut Random) -> node::Event {
        self.expire(now);
        let late = Duration::from_millis(match random.random_range(0..2) {
            0 => 0,
            _ => random.random_range(0..1500),
        });
        match request {
            Request::Grant(attempt, ttl) => {
                self.next_lease += 1;
                let lease = LeaseId(self.next_lease);
                self.leases.insert(lease, Lease { ttl, ends: now + ttl + late });
                node::Event::Granted { attempt, lease, ttl }
            }
            Request::Register(attempt, me, member, expect) => {
                let found = self.view.members.get(&me).copied();
                let lasts = self.leases.contains_key(&member.lease);
                if found.map(|it| it.lease) == expect && lasts {
                    self.change(Change::Member(me, Some(member)));
                    node::Event::Registered { attempt, view: self.view.clone() }
                } else if !lasts {
                    node::Event::Gone { lease: member.lease }
                } else {
                    node::Event::Refused { attempt, found }
                }
            }
            Request::Renew(attempt, lease) => match self.leases.get_mut(&lease) {
                Some(it) => {
                    it.ends = it.ends.max(now + it.ttl + late);
                    node::Event::Renewed { attempt, ttl: it.ttl }
                }
                None => node::Event::Gone { lease },
            },
            Request::Swap(attempt, swap) => {
                let outcome = self.swap(&swap);
                node::Event::Ownership(ownership::Event::Swapped { attempt, outcome })
            }
            Request::Read => node::Event::Ownership(ownership::Event::View(self.view.clone())),
        }
    }

    fn swap(&mut self, swap: &Swap) -> Outcome {
        let lease = |node: &NodeId| self.view.members.get(node).map(|member| member.lease);
        let same = self.view.owners.get(&swap.fileset) == Some(&swap.expect);
        let members = swap.members.iter().all(|(node, expect)| lease(node) == *expect);
        if (same && members) || !self.compares {
            self.change(Change::Owner(swap.fileset, Some(swap.value)));
            Outcome::Done
        } else {
            Outcome::Refused
        }
    }
}

//! What etcd says of members and owners, and the one transaction that changes an owner.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};
use serde::{Deserialize, Serialize};

use super::rendezvous;
use crate::membership::{LeaseId, Member, Revision};

/// What `owners/<fileset>` says. Every change moves the epoch on, so no two records of a fileset are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The life of a daemon that owns the fileset; none if its last owner let go of it in order.
    pub owner: Option<ClientId>,
    /// The epoch that every commit requires.
    pub epoch: Epoch,
}

impl Record {
    /// The record after this one, with another owner.
    #[must_use]
    pub fn next(self, owner: Option<ClientId>) -> Record {
        Record { owner, epoch: self.epoch.next() }
    }
}

/// All members and owners at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The revision.
    pub revision: Revision,
    /// Nodes whose lease lasts.
    pub members: BTreeMap<NodeId, Member>,
    /// Nodes that are to own nothing.
    pub draining: BTreeSet<NodeId>,
    /// Filesets that are to be owned by one node as long as it can.
    pub pinned: BTreeMap<FilesetId, NodeId>,
    /// Owners of all filesets.
    pub owners: BTreeMap<FilesetId, Record>,
}

/// One change of a key, as a watch of etcd reports it. None: the key was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `members/<node>`.
    Member(NodeId, Option<Member>),
    /// A node is to own nothing, or may own again.
    Draining(NodeId, bool),
    /// A fileset is to be owned by this node, or by any.
    Pinned(FilesetId, Option<NodeId>),
    /// `owners/<fileset>`.
    Owner(FilesetId, Option<Record>),
}

impl View {
    /// Takes a change over.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Member(node, Some(member)) => {
                self.members.insert(node, member);
            }
            Change::Member(node, None) => {
                self.members.remove(&node);
            }
            Change::Draining(node, true) => {
                self.draining.insert(node);
            }
            Change::Draining(node, false) => {
                self.draining.remove(&node);
            }
            Change::Pinned(fileset, Some(node)) => {
                self.pinned.insert(fileset, node);
            }
            Change::Pinned(fileset, None) => {
                self.pinned.remove(&fileset);
            }
            Change::Owner(fileset, Some(record)) => {
                self.owners.insert(fileset, record);
            }
            Change::Owner(fileset, None) => {
                self.owners.remove(&fileset);
            }
        }
    }

    /// The node that is to own each fileset ([`rendezvous::homes`]): one that has the file system mounted, and is being drained only
    /// if all of these are.
    #[must_use]
    pub fn homes(&self) -> BTreeMap<FilesetId, NodeId> {
        self.homes_without(None)
    }

    /// As [`View::homes`], once a node has left.
    #[must_use]
    pub fn homes_without(&self, leaving: Option<NodeId>) -> BTreeMap<FilesetId, NodeId> {
        // One of weight 0 has not mounted the file system: it serves no fileset, and must not be left with one.
        let serving = self.members.iter().filter(|(_, member)| member.weight > 0);
        let staying = serving.filter(|(node, _)| Some(**node) != leaving);
        let serving: Vec<(NodeId, u32)> =
            staying.map(|(node, member)| (*node, member.weight)).collect();
        let mut able = serving.clone();
        able.retain(|(node, _)| !self.draining.contains(node));
        let able = if able.is_empty() { serving } else { able };
        rendezvous::homes(self.owners.keys().copied(), &able, &self.pinned)
    }

    /// Whether this life of a daemon is a member.
    #[must_use]
    pub fn is_member(&self, client: ClientId) -> bool {
        self.members.get(&client.node).is_some_and(|it| it.incarnation == client.incarnation)
    }
}

/// The transaction that changes an owner. It succeeds only if everything is as stated, and is of no consequence otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Whose owner.
    pub fileset: FilesetId,
    /// What the record must be.
    pub expect: Record,
    /// Leases that members' keys must be attached to; none: there must not be such a key.
    pub members: Vec<(NodeId, Option<LeaseId>)>,
    /// What the record becomes.
    pub value: Record,
}

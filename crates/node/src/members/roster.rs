//! The cluster as this node sees it: what a read of all keys said, and what a watch has reported since.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{ClientId, FilesetId, NodeId};
use forebay_cluster::membership::{Member, Revision};
use forebay_cluster::ownership::{Change, Record, View};
use forebay_etcd::{Event, Found, Pair};
use parking_lot::RwLock;

use super::record::{ClusterRecord, DiskRecord, Key, MonitorRecord, Names, NodeRecord, decode};
use crate::authority::expiry_of;
use crate::session::hub::{Roster, Standing};

/// Members, their disks, and which of them run.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// All members.
    pub nodes: BTreeMap<NodeId, NodeRecord>,
    /// Those that run.
    pub alive: BTreeMap<NodeId, Member>,
    /// Those that are to own nothing.
    pub draining: BTreeSet<NodeId>,
    /// All disks.
    pub disks: BTreeMap<String, DiskRecord>,
    /// Certificates of monitors, by serial number.
    pub monitors: BTreeMap<String, MonitorRecord>,
    /// When the certificate of the cluster's authority expires, in seconds since the Unix epoch.
    pub authority_expires: Option<i64>,
    /// The highest number of a node that was ever seen.
    highest: Option<NodeId>,
    /// The latest life of each node that was ever seen to run.
    lives: BTreeMap<NodeId, u64>,
    /// Who owns each fileset that somebody owns.
    owners: BTreeMap<FilesetId, ClientId>,
}

impl Sight {
    /// The monitors that were not removed, each with the end of the certificate that lasts longest, in seconds since the Unix epoch.
    #[must_use]
    pub fn monitor_ends(&self) -> BTreeMap<String, i64> {
        let mut ends = BTreeMap::new();
        for record in self.monitors.values().filter(|record| record.removed.is_none()) {
            let end = ends.entry(record.name.clone()).or_insert(record.expires);
            *end = record.expires.max(*end);
        }
        ends
    }

    fn removed_monitors(&self) -> BTreeSet<String> {
        let removed = self.monitors.iter().filter(|(_, record)| record.removed.is_some());
        removed.map(|(serial, _)| serial.clone()).collect()
    }
}

/// How a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// It does not, as far as its lease says.
    No,
    /// Its daemon has not mounted the file system.
    WithoutMount,
    /// It has mounted the file system.
    Mounted,
}

/// The node that has a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskHome {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// How it runs.
    pub runs: Runs,
}

/// Takes over what keys say.
struct Reader<'a> {
    names: &'a Names,
    sight: Sight,
    view: View,
}

fn value<T: serde::de::DeserializeOwned>(pair: &Pair) -> Option<T> {
    decode(&pair.key, &pair.value)
        .inspect_err(|error| tracing::error!("{error}; this record is ignored"))
        .ok()
}

impl Reader<'_> {
    fn pair(&mut self, pair: &Pair) {
        let Some(key) = self.names.parse(&pair.key) else { return };
        let change = change_of(key, Some(pair), &mut self.sight);
        if let Some(change) = change {
            self.view.apply(change);
        }
    }
}

/// Notes one key, and says what it means for owners. Without a pair, the key is gone.
fn change_of(key: Key<'_>, pair: Option<&Pair>, sight: &mut Sight) -> Option<Change> {
    match key {
        Key::Node(node) => {
            match pair.map(value) {
                Some(Some(record)) => {
                    sight.nodes.insert(node, record);
                }
                Some(None) => {}
                None => {
                    sight.nodes.remove(&node);
                }
            }
            sight.highest = sight.highest.max(Some(node));
            None
        }
        Key::Alive(node) => {
            let member: Option<Member> = pair.and_then(value);
            match member {
                Some(member) => {
                    let life = sight.lives.entry(node).or_default();
                    *life = member.incarnation.max(*life);
                    sight.alive.insert(node, member)
                }
                None => sight.alive.remove(&node),
            };
            Some(Change::Member(node, member))
        }
        Key::Draining(node) => {
            if pair.is_some() {
                sight.draining.insert(node);
            } else {
                sight.draining.remove(&node);
            }
            Some(Change::Draining(node, pair.is_some()))
        }
        Key::Disk(uuid) => {
            match pair.and_then(value) {
                Some(disk) => sight.disks.insert(uuid.to_owned(), disk),
                None => sight.disks.remove(uuid),
            };
            None
        }
        Key::Monitor(serial) => {
            match pair.map(value) {
                Some(Some(record)) => {
                    sight.monitors.insert(serial.to_owned(), record);
                }
                // One that cannot be read is as it was.
                Some(None) => {}
                None => {
                    sight.monitors.remove(serial);
                }
            }
            None
        }
        Key::Pinned(fileset) => Some(Change::Pinned(fileset, pair.and_then(value))),
        Key::Owner(fileset) => {
            let record: Option<Record> = match pair.map(value) {
                // Better no change than one that makes others take it over.
                Some(None) => return None,
                Some(record) => record,
                None => None,
            };
            match record.and_then(|record| record.owner) {
                Some(owner) => sight.owners.insert(fileset, owner),
                None => sight.owners.remove(&fileset),
            };
            Some(Change::Owner(fileset, record))
        }
        Key::Cluster => {
            let cluster: Option<ClusterRecord> = pair.and_then(value);
            sight.authority_expires =
                cluster.and_then(|cluster| expiry_of(&cluster.authority).ok());
            None
        }
        Key::NextNode
        | Key::Name(_)
        | Key::Token(_)
        | Key::GridLeader
        | Key::GridController(_)
        | Key::GridBegun => None,
    }
}

/// A revision as the state machines count it.
#[must_use]
pub fn revision(of: i64) -> Revision {
    Revision(u64::try_from(of).unwrap_or(0))
}

/// What all keys of a cluster say.
#[must_use]
pub fn read(names: &Names, found: &Found) -> (Sight, View) {
    let view = View { revision: revision(found.revision), ..View::default() };
    let mut reader = Reader { names, sight: Sight::default(), view };
    for pair in &found.pairs {
        reader.pair(pair);
    }
    (reader.sight, reader.view)
}

/// The members as this node sees them.
#[derive(Debug, Default)]
pub struct Known {
    /// With the revision that it is from. A read and a watch may overtake each other.
    sight: RwLock<(Sight, Revision)>,
}

impl Known {
    /// Takes the place of what was known, unless that is newer.
    pub fn set(&self, mut sight: Sight, revision: Revision) {
        let mut held = self.sight.write();
        if revision < held.1 {
            return;
        }
        held.1 = revision;
        let known = &mut held.0;
        sight.highest = sight.highest.max(known.highest);
        for (node, life) in &known.lives {
            let seen = sight.lives.entry(*node).or_default();
            *seen = (*seen).max(*life);
        }
        *known = sight;
    }

    /// Takes note of what a watch reported, and says what it means for owners.
    pub fn note(&self, names: &Names, event: &Event) -> Option<(Revision, Change)> {
        let (key, pair, at) = match event {
            Event::Put(pair) => (&pair.key, Some(pair), pair.mod_revision),
            Event::Deleted { key, revision } => (key, None, *revision),
            Event::Gap { .. } => return None,
        };
        let (key, at) = (names.parse(key)?, revision(at));
        let mut known = self.sight.write();
        if at < known.1 {
            return None;
        }
        known.1 = at;
        let change = change_of(key, pair, &mut known.0)?;
        Some((at, change))
    }

    /// Uuids of the disks that a node has.
    pub fn disks_of(&self, node: NodeId) -> Vec<String> {
        let disks = &self.sight.read().0.disks;
        disks.iter().filter(|(_, disk)| disk.node == node).map(|(uuid, _)| uuid.clone()).collect()
    }

    /// The node that has a disk, if any has.
    #[must_use]
    pub fn home_of(&self, disk: &str) -> Option<DiskHome> {
        let sight = &self.sight.read().0;
        let node = sight.disks.get(disk)?.node;
        let name = sight.nodes.get(&node).map_or("removed", |record| &record.name).to_owned();
        let runs = match sight.alive.get(&node) {
            None => Runs::No,
            Some(member) if member.weight == 0 => Runs::WithoutMount,
            Some(_) => Runs::Mounted,
        };
        Some(DiskHome { node, name, runs })
    }

    /// The nodes that run and have mounted the file system.
    #[must_use]
    pub fn mounted(&self) -> Vec<NodeId> {
        let alive = &self.sight.read().0.alive;
        alive.iter().filter(|(_, member)| member.weight > 0).map(|(node, _)| *node).collect()
    }

    /// Serial numbers of the certificates of monitors that were removed.
    #[must_use]
    pub fn removed_monitors(&self) -> BTreeSet<String> {
        self.sight.read().0.removed_monitors()
    }

    /// What is known.
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.sight.read().0.clone()
    }
}

impl Roster for Known {
    fn address(&self, node: NodeId) -> Option<String> {
        self.sight.read().0.nodes.get(&node).map(|record| record.address.clone())
    }

    fn standing(&self, node: NodeId) -> Standing {
        let sight = &self.sight.read().0;
        if sight.nodes.contains_key(&node) {
            Standing::Member
        } else if sight.highest.is_some_and(|highest| node <= highest) {
            Standing::Removed(format!("node {node} was removed from the cluster"))
        } else {
            // It has just joined, and this node has not heard of it.
            Standing::Unknown
        }
    }

    fn ended(&self, client: ClientId) -> Option<String> {
        let sight = &self.sight.read().0;
        let runs = sight
            .alive
            .get(&client.node)
            .is_some_and(|member| member.incarnation == client.incarnation);
        let was_seen =
            sight.lives.get(&client.node).is_some_and(|life| *life >= client.incarnation);
        (was_seen && !runs).then(|| format!("the lease of node {} has expired", client.node))
    }

    fn dead(&self, node: NodeId) -> Option<String> {
        let sight = &self.sight.read().0;
        let Some(record) = sight.nodes.get(&node) else {
            return Some(format!("node {node} is not a member of the cluster"));
        };
        if sight.alive.contains_key(&node) {
            return None;
        }
        Some(format!("node {node} ({}) is not running: it has no lease", record.name))
    }

    fn is_succeeded(&self, client: ClientId) -> bool {
        let sight = &self.sight.read().0;
        let alive = sight.alive.get(&client.node);
        let runs = alive.is_some_and(|member| member.incarnation == client.incarnation);
        !runs && !sight.owners.values().any(|owner| *owner == client)
    }
}

//! What the cluster keeps in etcd, and below which keys. docs/formats/cluster.md is the reference.
//!
//! All values are JSON, so that `etcdctl get --prefix /forebay` can be read. Unknown fields are ignored: a newer version may add
//! some, and raises `format` if an older one must not go on.

use std::fmt;

use forebay_base::{FilesetId, NodeId};
use forebay_cluster::membership::Member;
use forebay_cluster::ownership::Record;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};

/// Newest version of what is below a cluster's keys that is understood. 2: with [`ClusterRecord::names`].
pub const FORMAT: u32 = 2;

/// `cluster`: written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Version of the records.
    pub format: u32,
    /// Id of the cluster, which is in every certificate.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Certificate of its authority, in PEM.
    pub authority: String,
    /// When it was made, in seconds since the Unix epoch.
    pub made: i64,
    /// Where the names of its files lie; in etcd without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<NamesPlace>,
}

impl ClusterRecord {
    /// The version of the records of a cluster whose names lie there: nodes of earlier versions take them to be in etcd.
    #[must_use]
    pub fn format_for(names: Option<&NamesPlace>) -> u32 {
        if names.is_some() { 2 } else { 1 }
    }
}

/// A place for the names of files other than etcd.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesPlace {
    /// `s3://BUCKET/FOLDER`, or `dir:/PATH` of a directory that all nodes mount.
    pub place: String,
    /// What S3 needs, as TOML: endpoint, region, access_key, secret_key; the environment of each daemon without it.
    pub access: Option<String>,
}

/// Without the secret.
impl std::fmt::Debug for NamesPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamesPlace").field("place", &self.place).finish_non_exhaustive()
    }
}

/// `nodes/NUMBER`: a member, whether it is running or not. Without it the node is not one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Name of the node, as users write it.
    pub name: String,
    /// Where it listens, HOST:PORT.
    pub address: String,
    /// Which life of its daemon is the latest.
    pub incarnation: u64,
    /// SHA-256 of its public key, in hexadecimal digits.
    pub key: String,
    /// Serial number of its certificate.
    pub serial: String,
    /// When its certificate expires, in seconds since the Unix epoch.
    pub expires: i64,
    /// When it joined, in seconds since the Unix epoch.
    pub joined: i64,
    /// Whether it holds the authority's key, and so admits nodes and renews certificates.
    pub has_authority: bool,
    /// Version of Forebay that it runs.
    pub version: String,
}

/// `disks/UUID`: a disk that a node brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// The node.
    pub node: NodeId,
    /// Directory on that node.
    pub location: String,
    /// Whether other nodes reach the same directory by themselves.
    pub shared: bool,
}

/// `monitors/SERIAL`: a certificate that was made for a monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorRecord {
    /// Name of the monitor. It may have several certificates, while one takes the place of another.
    pub name: String,
    /// When the certificate was made, in seconds since the Unix epoch.
    pub issued: i64,
    /// When it expires, in seconds since the Unix epoch.
    pub expires: i64,
    /// When the monitor was removed, in seconds since the Unix epoch: nodes refuse the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<i64>,
}

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    root: String,
}

/// A key below a cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<'a> {
    /// The cluster itself: [`ClusterRecord`].
    Cluster,
    /// The number of the node that joins next.
    NextNode,
    /// A member: [`NodeRecord`].
    Node(NodeId),
    /// Whose a name is: the number of a node.
    Name(&'a str),
    /// A node that runs; ends with its lease: [`Member`].
    Alive(NodeId),
    /// A node that is to own nothing.
    Draining(NodeId),
    /// The node that is to own a fileset as long as it can.
    Pinned(FilesetId),
    /// The owner of a fileset: [`Record`].
    Owner(FilesetId),
    /// A disk: [`DiskRecord`].
    Disk(&'a str),
    /// A join token, by its id: [`crate::authority::token::TokenRecord`].
    Token(&'a str),
    /// A certificate of a monitor, by its serial number: [`MonitorRecord`].
    Monitor(&'a str),
    /// Which node's controller leads the grid of the cluster; ends with its lease.
    GridLeader,
    /// A node whose grid controller runs, whether it leads or stands by; ends with its lease.
    GridController(NodeId),
    /// Whether the grid of the cluster has begun: nothing is in it that is not in its journal.
    GridBegun,
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Cluster => f.write_str("cluster"),
            Key::NextNode => f.write_str("next-node"),
            Key::Node(node) => write!(f, "nodes/{node}"),
            Key::Name(name) => write!(f, "names/{name}"),
            Key::Alive(node) => write!(f, "alive/{node}"),
            Key::Draining(node) => write!(f, "draining/{node}"),
            Key::Pinned(fileset) => write!(f, "pinned/{fileset}"),
            Key::Owner(fileset) => write!(f, "owners/{fileset}"),
            Key::Disk(uuid) => write!(f, "disks/{uuid}"),
            Key::Token(id) => write!(f, "tokens/{id}"),
            Key::Monitor(serial) => write!(f, "monitors/{serial}"),
            Key::GridLeader => f.write_str("grid/leader"),
            Key::GridController(node) => write!(f, "grid/controller-{node}"),
            Key::GridBegun => f.write_str("grid/begun"),
        }
    }
}

impl<'a> Key<'a> {
    fn parse(text: &'a str) -> Option<Key<'a>> {
        let Some((kind, name)) = text.split_once('/') else {
            return match text {
                "cluster" => Some(Key::Cluster),
                "next-node" => Some(Key::NextNode),
                _ => None,
            };
        };
        let node = || name.parse().ok().map(NodeId);
        let fileset = || name.parse().ok().map(FilesetId);
        Some(match kind {
            "nodes" => Key::Node(node()?),
            "names" => Key::Name(name),
            "alive" => Key::Alive(node()?),
            "draining" => Key::Draining(node()?),
            "pinned" => Key::Pinned(fileset()?),
            "owners" => Key::Owner(fileset()?),
            "disks" => Key::Disk(name),
            "tokens" => Key::Token(name),
            "monitors" => Key::Monitor(name),
            "grid" if name == "leader" => Key::GridLeader,
            "grid" if name == "begun" => Key::GridBegun,
            "grid" => {
                let node = name.strip_prefix("controller-")?;
                Key::GridController(NodeId(node.parse().ok()?))
            }
            _ => return None,
        })
    }
}

impl Names {
    /// The keys of the cluster with this name.
    ///
    /// # Errors
    /// If it is not a name.
    pub fn of(cluster: &str) -> Result<Names> {
        check_name("cluster", cluster)?;
        Ok(Names { root: format!("/forebay/{cluster}/") })
    }

    /// What all keys begin with.
    #[must_use]
    pub fn root(&self) -> Vec<u8> {
        self.root.clone().into_bytes()
    }

    /// A key in full.
    #[must_use]
    pub fn key(&self, key: Key<'_>) -> Vec<u8> {
        format!("{}{key}", self.root).into_bytes()
    }

    /// What a key means; none for one of a version that this program does not know.
    #[must_use]
    pub fn parse<'a>(&self, key: &'a [u8]) -> Option<Key<'a>> {
        Key::parse(std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?)
    }
}

/// Refuses what cannot be the name of a cluster or a node.
///
/// # Errors
/// Says what a name is made of.
pub fn check_name(kind: &str, name: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= 64 && name.chars().all(is_fine) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name:?} cannot be the name of a {kind}: use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or \
         a digit"
    )))
}

/// The value of a key.
#[must_use]
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    // Our records are made of what JSON has.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Reads the value of a key.
///
/// # Errors
/// Names the key.
pub fn decode<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T> {
    serde_json::from_slice(value).map_err(|error| {
        let key = String::from_utf8_lossy(key);
        Error::Etcd(format!("the value of {key} in etcd is invalid: {error}"))
    })
}

/// The owner of a fileset that was made and has none yet. Its store says epoch 1, as whoever made it was the first to write
/// there.
#[must_use]
pub fn new_owner() -> Record {
    Record { owner: None, epoch: forebay_base::Epoch(1) }
}

/// A member as `alive/NUMBER` says.
pub type Alive = Member;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let names = Names::of("grid1").unwrap();
        for key in [
            Key::Cluster,
            Key::NextNode,
            Key::Node(NodeId(7)),
            Key::Name("host1"),
            Key::Alive(NodeId(7)),
            Key::Draining(NodeId(7)),
            Key::Pinned(FilesetId(3)),
            Key::Owner(FilesetId(0)),
            Key::Disk("abc"),
            Key::Token("0102"),
            Key::Monitor("4e0f"),
            Key::GridLeader,
            Key::GridController(NodeId(7)),
            Key::GridBegun,
        ] {
            assert_eq!(names.parse(&names.key(key)), Some(key));
        }
        for foreign in ["/forebay/grid2/cluster", "/forebay/grid1/nodes/x", "/forebay/grid1/new/1"]
        {
            assert_eq!(names.parse(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(names.parse(&[0xff]), None);
    }

    #[test]
    fn a_name_cannot_reach_another_clusters_keys() {
        for name in ["", "a/b", "..", "-x", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name("cluster", name).is_err(), "{name}");
        }
        check_name("node", "host-1.example").unwrap();
    }
}

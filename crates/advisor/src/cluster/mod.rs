//! What is checked of a cluster: its nodes, certificates, versions and clocks, and its etcd.
//!
//! [`Cluster`] is what was asked and measured; the checks are pure. What one node cannot see of another is not guessed: the checks
//! of hosts ([`crate::checks`]) run on each host, and [`hosts`] puts together what they say.

mod disk;
mod etcd;
pub mod hosts;
mod nodes;

#[cfg(test)]
mod tests;

pub use self::disk::{EtcdDisk, Times};
use crate::checks::{Check, Examined, examine_with};

/// A cluster as the checks see it.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Name of the node that looks.
    pub own_node: String,
    /// Now, in seconds since the epoch.
    pub now_seconds: i64,
    /// Its nodes, by name.
    pub nodes: Vec<Node>,
    /// When the certificate of its authority expires, in seconds since the epoch; `None` if that cannot be read.
    pub authority_expires: Option<i64>,
    /// Names of monitors, with the end of the certificate of each, in seconds since the epoch.
    pub monitors: Vec<(String, i64)>,
    /// How long certificates of nodes are valid, in seconds.
    pub certificate_life_seconds: i64,
    /// Its etcd.
    pub etcd: Etcd,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub state: NodeState,
    /// Version of Forebay that it runs, or ran last.
    pub version: String,
    /// When its certificate expires, in seconds since the epoch.
    pub certificate_expires: i64,
    /// Whether it holds the authority's key.
    pub has_authority: bool,
    /// How far its clock is ahead of that of the node that looks.
    pub clock: Option<ClockDifference>,
    /// Why etcd did not answer it the last time.
    pub etcd_error: Option<String>,
    /// Filesets that it could not open or hand over, and why.
    pub problems: Vec<String>,
}

/// Whether a node answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It does.
    #[default]
    Up,
    /// It has a lease and does not answer; why.
    Silent(String),
    /// It has no lease.
    Down,
}

/// How far a clock is ahead, in seconds: negative if it is behind. The answer took a while, so only bounds are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockDifference {
    /// At least so far.
    pub least_seconds: f64,
    /// At most so far.
    pub most_seconds: f64,
}

/// The etcd of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Etcd {
    /// Its members; empty if they could not be asked.
    pub members: Vec<EtcdMember>,
    /// Its alarms, for people.
    pub alarms: Vec<String>,
    /// What writing to it takes from the node that looks.
    pub writes: Option<Writes>,
    /// Whether nodes of the cluster run its members.
    pub started_by_nodes: bool,
    /// Certificates with which nodes reach it: whose each is, and its end in seconds since the epoch.
    pub certificates: Vec<(&'static str, i64)>,
    /// Why it could not be asked.
    pub fault: Option<String>,
}

/// A member of etcd.
#[derive(Clone, Debug)]
pub struct EtcdMember {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub endpoint: String,
    /// Whether it only follows the others.
    pub is_learner: bool,
    /// What it says of itself, or why it does not.
    pub status: Result<EtcdStatus, String>,
    /// How long its disk takes, or why that is not known.
    pub disk: Result<EtcdDisk, String>,
}

/// What a member of etcd says of itself.
#[derive(Clone, Debug, Default)]
pub struct EtcdStatus {
    /// Version of its program.
    pub version: String,
    /// Whether it knows a leader.
    pub has_leader: bool,
    /// Bytes of its database file.
    pub file_bytes: u64,
    /// Bytes of it that hold something.
    pub used_bytes: u64,
    /// Its quota, where it says one.
    pub quota_bytes: Option<u64>,
    /// What it complains of.
    pub errors: Vec<String>,
}

/// Writes to etcd that were measured.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// How many.
    pub count: usize,
    /// The median, in milliseconds.
    pub median_ms: f64,
    /// The slowest, in milliseconds.
    pub worst_ms: f64,
}

/// All checks of a cluster.
#[must_use]
pub fn all() -> Vec<&'static Check<Cluster>> {
    nodes::CHECKS.iter().chain(etcd::CHECKS).collect()
}

/// Looks at a cluster.
#[must_use]
pub fn examine(cluster: &Cluster) -> Examined {
    examine_with(&all(), cluster)
}

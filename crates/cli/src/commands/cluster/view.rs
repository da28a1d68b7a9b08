//! The cluster as its nodes describe it: the records in etcd, and what each node that runs reports.

use std::collections::BTreeMap;

use anyhow::Result;
use forebay_base::threads::side_by_side;
use forebay_base::{FilesetId, NodeId};
use forebay_node::NodeHome;
use forebay_node::home::NodeFile;
use forebay_node::members::View;
use forebay_node::members::record::NodeRecord;
use forebay_node::members::roster::Sight;
use forebay_node::members::visit::{FilesReport, NodeStatus};

use super::tools;

/// What is known of a cluster at one moment.
pub struct ClusterView {
    /// Nodes and disks.
    pub sight: Sight,
    /// Owners.
    pub owners: View,
    /// What each node with a lease reports, or why it does not.
    pub reports: BTreeMap<NodeId, Result<NodeStatus>>,
}

/// Nodes that are asked at the same time.
const AT_ONCE: usize = 32;

/// What `ask` says of each node that runs. Several are asked at the same time, so that those that do not answer cost little.
pub fn of_each<A: Send>(
    sight: &Sight,
    ask: impl Fn(NodeId, &NodeRecord) -> A + Sync,
) -> BTreeMap<NodeId, A> {
    let running = sight.nodes.iter().filter(|(node, _)| sight.alive.contains_key(node));
    let running: Vec<_> = running.collect();
    let ask = |(node, record): &(&NodeId, &NodeRecord)| (**node, ask(**node, record));
    side_by_side("ask", AT_ONCE, &running, ask).into_iter().collect()
}

/// What each node that runs reports of itself.
pub fn ask_all(
    home: &NodeHome,
    file: &NodeFile,
    sight: &Sight,
) -> BTreeMap<NodeId, Result<NodeStatus>> {
    of_each(sight, |node, record| Ok(tools()?.status_of(home, file, (node, &record.address))?))
}

impl ClusterView {
    /// Takes what etcd says, and asks all nodes that run.
    pub fn of(home: &NodeHome, file: &NodeFile, (sight, owners): (Sight, View)) -> ClusterView {
        let reports = ask_all(home, file, &sight);
        ClusterView { sight, owners, reports }
    }

    /// What a node reports, if it answered.
    pub fn report(&self, node: NodeId) -> Option<&NodeStatus> {
        self.reports.get(&node)?.as_ref().ok()
    }

    /// What the nodes with a mount report of their files.
    pub fn files(&self) -> impl Iterator<Item = (NodeId, &FilesReport)> {
        self.reports
            .iter()
            .filter_map(|(node, report)| Some((*node, report.as_ref().ok()?.files.as_ref()?)))
    }

    /// Names of the filesets. The root's owner knows best; a node that lags behind may lack some.
    pub fn fileset_names(&self) -> BTreeMap<FilesetId, String> {
        let root = self.owner_of(FilesetId::ROOT);
        let (best, others): (Vec<_>, Vec<_>) =
            self.files().partition(|(node, _)| Some(*node) == root);
        let all = others.into_iter().chain(best);
        all.flat_map(|(_, files)| files.filesets.iter().cloned()).collect()
    }

    /// The node that owns a fileset.
    pub fn owner_of(&self, fileset: FilesetId) -> Option<NodeId> {
        Some(self.owners.owners.get(&fileset)?.owner?.node)
    }

    /// The name of a node, or its number if it has none any more.
    pub fn node_name(&self, node: NodeId) -> String {
        let record = self.sight.nodes.get(&node);
        record.map_or_else(|| node.to_string(), |record| record.name.clone())
    }
}

/// A time for people: two units at most.
pub fn span(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_two_units_at_most() {
        for (milliseconds, text) in [
            (0, "0.0 s"),
            (1_250, "1.2 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h 0 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span(milliseconds), text);
        }
    }
}

//! Which node is to own a fileset: every node works out the same order by itself.
//!
//! Highest random weight (Thaler and Ravishankar, 1998), with weights as in the logarithmic method (Schindelhauer and
//! Schomaker, 2005): when a node comes or goes, only filesets that it is to own, or owned, change their place. Nothing
//! relies on all nodes agreeing: a takeover compares in etcd.

use forebay_base::hash::HashKey;
use forebay_base::{FilesetId, NodeId};

/// The order in which nodes are to own a fileset, best first. Nodes of weight 0 come last.
#[must_use]
pub fn order(fileset: FilesetId, nodes: impl IntoIterator<Item = (NodeId, u32)>) -> Vec<NodeId> {
    let mut scored: Vec<(f64, NodeId)> =
        nodes.into_iter().map(|(node, weight)| (score(fileset, node, weight), node)).collect();
    scored.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
    scored.into_iter().map(|(_, node)| node).collect()
}

fn score(fileset: FilesetId, node: NodeId, weight: u32) -> f64 {
    let mut bytes = [0; 6];
    bytes[..4].copy_from_slice(&node.0.to_le_bytes());
    bytes[4..].copy_from_slice(&fileset.0.to_le_bytes());
    let hash = HashKey([0; 16]).hash(&bytes);
    // A number above 0 and below 1, from the 52 highest bits.
    let drawn = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    -f64::from(weight) / drawn.ln()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn firsts(nodes: &[(u32, u32)]) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        for fileset in 0..4000 {
            let nodes = nodes.iter().map(|(node, weight)| (NodeId(*node), *weight));
            *counts.entry(order(FilesetId(fileset), nodes)[0]).or_default() += 1;
        }
        counts
    }

    #[test]
    fn filesets_are_spread_by_weight() {
        let counts = firsts(&[(1, 1), (2, 1), (3, 2), (4, 0)]);
        for (node, expected) in [(1, 1000), (2, 1000), (3, 2000)] {
            let count = counts[&NodeId(node)];
            assert!(count.abs_diff(expected) < 150, "node {node}: {count}");
        }
        assert!(
            !counts.contains_key(&NodeId(4)),
            "a node of weight 0 owns only what nobody else can"
        );
    }

    #[test]
    fn only_filesets_of_a_lost_node_move() {
        let all = [1, 2, 3, 4, 5].map(|node| (NodeId(node), 1));
        for fileset in (0..500).map(FilesetId) {
            let before = order(fileset, all);
            let after = order(fileset, all.into_iter().filter(|(node, _)| *node != NodeId(3)));
            let expected: Vec<NodeId> =
                before.into_iter().filter(|node| *node != NodeId(3)).collect();
            assert_eq!(after, expected);
        }
    }
}

//! Which node is to own a fileset: every node works out the same order by itself.
//!
//! Highest random weight (Thaler and Ravishankar, 1998), with weights as in the logarithmic method (Schindelhauer and
//! Schomaker, 2005): when a node comes or goes, few filesets change their place. Clusters have few filesets, and of few the
//! hash alone could give one node all: no node gets more than its share, rounded up (consistent hashing with bounded loads,
//! Mirrokni, Thorup and Zadimoghaddam, 2018). Nothing relies on all nodes agreeing: a takeover compares in etcd.

use std::collections::BTreeMap;

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

/// The node that is to own each fileset: the first in [`order`] that has room for it. Filesets that are pinned to one of the nodes
/// belong there, and take its room.
#[must_use]
pub fn homes(
    filesets: impl IntoIterator<Item = FilesetId>,
    nodes: &[(NodeId, u32)],
    pinned: &BTreeMap<FilesetId, NodeId>,
) -> BTreeMap<FilesetId, NodeId> {
    let is_pinned = |fileset: &FilesetId| {
        pinned.get(fileset).is_some_and(|node| nodes.iter().any(|(able, _)| able == node))
    };
    let (fixed, mut free): (Vec<FilesetId>, Vec<FilesetId>) =
        filesets.into_iter().partition(is_pinned);
    let count = (fixed.len() + free.len()) as u64;
    let whole: u64 = nodes.iter().map(|(_, weight)| u64::from(*weight)).sum();
    // With many filesets one more is no burden, and few of the others move when one comes or goes.
    let spare = u64::from(count > 2 * nodes.len() as u64);
    let share = |weight: u32| (count * u64::from(weight)).div_ceil(whole.max(1)) + spare;
    let mut room: BTreeMap<NodeId, u64> =
        nodes.iter().map(|(node, weight)| (*node, share(*weight))).collect();
    let mut homes = BTreeMap::new();
    let mut settle = |fileset, node, room: &mut BTreeMap<NodeId, u64>| {
        room.entry(node).and_modify(|left| *left = left.saturating_sub(1));
        homes.insert(fileset, node);
    };
    for fileset in fixed {
        settle(fileset, pinned[&fileset], &mut room);
    }
    free.sort_unstable();
    for fileset in free {
        let order = order(fileset, nodes.iter().copied());
        let first = order.iter().find(|node| room[*node] > 0).or(order.first());
        if let Some(node) = first {
            settle(fileset, *node, &mut room);
        }
    }
    homes
}

#[cfg(test)]
mod tests {
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

    fn counts(homes: &BTreeMap<FilesetId, NodeId>) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        homes.values().for_each(|node| *counts.entry(*node).or_default() += 1);
        counts
    }

    #[test]
    fn no_node_is_home_to_more_filesets_than_its_share() {
        for filesets in 1..40_u16 {
            for nodes in 1..9_u16 {
                let able: Vec<_> = (1..=nodes).map(|node| (NodeId(node.into()), 1)).collect();
                let homes = homes((0..filesets).map(FilesetId), &able, &BTreeMap::new());
                assert_eq!(homes.len(), usize::from(filesets));
                let most = counts(&homes).into_values().max().unwrap();
                let spare = usize::from(filesets > 2 * nodes);
                assert!(most <= usize::from(filesets.div_ceil(nodes)) + spare, "{nodes} nodes");
            }
        }
        let weighed = [(NodeId(1), 1), (NodeId(2), 3)];
        let homes = homes((0..4).map(FilesetId), &weighed, &BTreeMap::new());
        assert_eq!(counts(&homes), BTreeMap::from([(NodeId(1), 1), (NodeId(2), 3)]));
    }

    #[test]
    fn pinned_filesets_take_the_room_of_their_node() {
        let able = [1, 2].map(|node| (NodeId(node), 1));
        let pinned = BTreeMap::from([0, 1, 2, 7].map(|fileset| (FilesetId(fileset), NodeId(2))));
        let four = homes((0..4).map(FilesetId), &able, &pinned);
        assert_eq!(counts(&four), BTreeMap::from([(NodeId(1), 1), (NodeId(2), 3)]));
        // A node that cannot own anything.
        let gone = BTreeMap::from([(FilesetId(0), NodeId(9))]);
        let two = homes((0..2).map(FilesetId), &able, &gone);
        assert_eq!(counts(&two), BTreeMap::from([(NodeId(1), 1), (NodeId(2), 1)]));
        assert!(homes((0..2).map(FilesetId), &[], &pinned).is_empty());
    }

    #[test]
    fn most_filesets_of_the_others_stay_when_a_node_is_lost() {
        let all: Vec<_> = (1..=8).map(|node| (NodeId(node), 1)).collect();
        let before = homes((0..400).map(FilesetId), &all, &BTreeMap::new());
        let after = homes((0..400).map(FilesetId), &all[1..], &BTreeMap::new());
        let moved = before.iter().filter(|(fileset, node)| after[fileset] != **node);
        let moved = moved.filter(|(_, node)| **node != NodeId(1)).count();
        assert!(moved < 100, "{moved} of 350 moved");
    }

    #[test]
    fn few_other_filesets_move_when_one_is_added() {
        let able: Vec<_> = (1..=8).map(|node| (NodeId(node), 1)).collect();
        let of = |filesets: u16| homes((0..filesets).map(FilesetId), &able, &BTreeMap::new());
        let mut moved = 0;
        for filesets in 17..80 {
            let (before, after) = (of(filesets), of(filesets + 1));
            moved += before.iter().filter(|(fileset, node)| after[fileset] != **node).count();
        }
        assert!(moved < 63, "{moved} moved for 63 new ones");
    }
}

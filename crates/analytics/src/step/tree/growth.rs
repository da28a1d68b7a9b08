//! How a tree grows: bins, histograms of the nodes of one level, and the best split of each.

use crate::error::Result;
use crate::step::Progress;
use crate::step::model::passes::Passes;

/// Where the features and the response lie in a row's vector.
#[derive(Clone)]
pub(super) struct Layout {
    pub features: Vec<usize>,
    pub response: usize,
    /// Classes of the response; 0 for a number.
    pub classes: usize,
    /// Taken off the response, so that sums of squares keep their digits.
    pub center: f64,
}

impl Layout {
    /// Numbers that are added up per bin: rows of each class, or rows, sum and squares.
    pub fn statistics(&self) -> usize {
        if self.classes > 0 { self.classes } else { 3 }
    }

    #[inline]
    fn add(&self, sums: &mut [f64], values: &[f64]) {
        let y = values[self.response];
        if self.classes > 0 {
            sums[y as usize] += 1.0;
        } else {
            let y = y - self.center;
            sums[0] += 1.0;
            sums[1] += y;
            sums[2] += y * y;
        }
    }

    pub fn rows(&self, sums: &[f64]) -> f64 {
        if self.classes > 0 { sums.iter().sum() } else { sums[0] }
    }

    /// Rows times Gini's index, or squares about the mean.
    pub fn impurity(&self, sums: &[f64]) -> f64 {
        let rows = self.rows(sums);
        if rows == 0.0 {
            return 0.0;
        }
        if self.classes > 0 {
            rows - sums.iter().map(|n| n * n).sum::<f64>() / rows
        } else {
            (sums[2] - sums[1] * sums[1] / rows).max(0.0)
        }
    }
}

/// A question: is the feature at most the threshold?
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub feature: usize,
    pub threshold: f64,
    /// How much less impure the two sides are than the node.
    pub gain: f64,
    /// The node of those of whom it is so; the next node has the others.
    pub left: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub parent: Option<usize>,
    pub depth: u32,
    pub sums: Vec<f64>,
    pub split: Option<Split>,
}

/// When not to split.
pub(super) struct Stop {
    pub depth_max: u32,
    pub leaf_rows_min: f64,
    /// The least gain, as a part of the root's impurity.
    pub gain_min: f64,
}

/// A tree that grows level by level; its root is node 0.
pub(super) struct Growth {
    pub layout: Layout,
    pub nodes: Vec<Node>,
    /// Ascending thresholds of each feature.
    cuts: Vec<Vec<f64>>,
    /// Where each feature's bins start in a histogram, and the end.
    starts: Vec<usize>,
}

/// Thresholds between the values of a sample (which is sorted here), at most `bins - 1` of them: between
/// all different values if these are few, else between quantiles.
pub(super) fn cuts(sample: &mut [f64], bins: usize) -> Vec<f64> {
    sample.sort_unstable_by(f64::total_cmp);
    let mut different: Vec<f64> = sample.to_vec();
    different.dedup();
    let between = |below: f64, above: f64| {
        let middle = below + (above - below) / 2.0;
        // Rounding may not put the value above on the side below.
        if middle < above { middle } else { below }
    };
    if different.len() <= bins {
        return different.windows(2).map(|pair| between(pair[0], pair[1])).collect();
    }
    let mut cuts: Vec<f64> = (1..bins)
        .filter_map(|i| {
            let below = sample[i * sample.len() / bins - 1];
            let next = different.partition_point(|value| *value <= below);
            different.get(next).map(|&above| between(below, above))
        })
        .collect();
    cuts.dedup();
    cuts
}

impl Growth {
    pub fn new(layout: Layout, cuts: Vec<Vec<f64>>) -> Growth {
        let mut starts = vec![0];
        for cuts in &cuts {
            starts.push(starts[starts.len() - 1] + cuts.len() + 1);
        }
        let sums = vec![0.0; layout.statistics()];
        let root = Node { parent: None, depth: 0, sums, split: None };
        Growth { layout, nodes: vec![root], cuts, starts }
    }

    /// Numbers in the histogram of a node.
    pub fn histogram(&self) -> usize {
        self.starts[self.cuts.len()] * self.layout.statistics()
    }

    /// The leaf that a row belongs to.
    #[inline]
    pub fn leaf(&self, values: &[f64]) -> usize {
        let mut at = 0;
        while let Some(split) = &self.nodes[at].split {
            let right = values[self.layout.features[split.feature]] > split.threshold;
            at = split.left + usize::from(right);
        }
        at
    }

    /// Splits nodes until `stop`, `batch` nodes of one level at a time, each batch in one pass.
    pub fn grow(
        &mut self,
        passes: &mut Passes,
        stop: &Stop,
        batch: usize,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut level = vec![0];
        while !level.is_empty() {
            let mut next = Vec::new();
            for nodes in level.chunks(batch.max(1)) {
                let histograms = self.histograms(passes, nodes, progress)?;
                for (&node, histogram) in
                    nodes.iter().zip(histograms.chunks_exact(self.histogram()))
                {
                    if node == 0 {
                        self.nodes[0].sums = self.total(histogram);
                    }
                    if let Some((split, left, right)) = self.best(node, histogram, stop) {
                        next.extend(self.split(node, split, left, right, stop));
                    }
                }
            }
            level = next;
        }
        Ok(())
    }

    fn histograms(
        &self,
        passes: &mut Passes,
        nodes: &[usize],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<f64>> {
        let (size, statistics) = (self.histogram(), self.layout.statistics());
        let mut all = vec![0.0; size * nodes.len()];
        passes.for_each(progress, |values| {
            // Nodes of a batch are ascending.
            let Ok(place) = nodes.binary_search(&self.leaf(values)) else { return };
            let histogram = &mut all[place * size..(place + 1) * size];
            for (feature, cuts) in self.cuts.iter().enumerate() {
                let value = values[self.layout.features[feature]];
                let bin = self.starts[feature] + cuts.partition_point(|cut| *cut < value);
                let sums = &mut histogram[bin * statistics..(bin + 1) * statistics];
                self.layout.add(sums, values);
            }
        })?;
        Ok(all)
    }

    /// Sums over all bins of the first feature.
    fn total(&self, histogram: &[f64]) -> Vec<f64> {
        let statistics = self.layout.statistics();
        let mut total = vec![0.0; statistics];
        for bin in histogram[..self.starts[1] * statistics].chunks_exact(statistics) {
            total.iter_mut().zip(bin).for_each(|(total, value)| *total += value);
        }
        total
    }

    /// The split that gains most, of equal ones the first, and the sums of its sides.
    fn best(
        &self,
        node: usize,
        histogram: &[f64],
        stop: &Stop,
    ) -> Option<(Split, Vec<f64>, Vec<f64>)> {
        let layout = &self.layout;
        let statistics = layout.statistics();
        let total = &self.nodes[node].sums;
        let impurity = layout.impurity(total);
        let root = layout.impurity(&self.nodes[0].sums);
        // Never for a gain that is only rounding.
        let mut best_gain = root * stop.gain_min.max(1e-12);
        let mut best = None;
        let (mut left, mut right) = (vec![0.0; statistics], vec![0.0; statistics]);
        for (feature, cuts) in self.cuts.iter().enumerate() {
            left.fill(0.0);
            for (i, &threshold) in cuts.iter().enumerate() {
                let at = (self.starts[feature] + i) * statistics;
                for (k, value) in histogram[at..at + statistics].iter().enumerate() {
                    left[k] += value;
                    right[k] = total[k] - left[k];
                }
                let (below, above) = (layout.rows(&left), layout.rows(&right));
                if below.min(above) < stop.leaf_rows_min {
                    continue;
                }
                let gain = impurity - layout.impurity(&left) - layout.impurity(&right);
                // Sums in another order differ in their last digits, which may not decide.
                if gain > best_gain * (1.0 + 1e-10) {
                    best_gain = gain;
                    let split = Split { feature, threshold, gain, left: self.nodes.len() };
                    best = Some((split, left.clone(), right.clone()));
                }
            }
        }
        best
    }

    /// Makes the two sides of a split; returns those that may be split again.
    fn split(
        &mut self,
        node: usize,
        split: Split,
        left: Vec<f64>,
        right: Vec<f64>,
        stop: &Stop,
    ) -> Vec<usize> {
        let depth = self.nodes[node].depth + 1;
        let split = Split { left: self.nodes.len(), ..split };
        self.nodes[node].split = Some(split);
        let root = self.layout.impurity(&self.nodes[0].sums);
        let mut open = Vec::new();
        for sums in [left, right] {
            let large = self.layout.rows(&sums) >= 2.0 * stop.leaf_rows_min;
            let impure = self.layout.impurity(&sums) > 1e-12 * root;
            if depth < stop.depth_max && large && impure {
                open.push(self.nodes.len());
            }
            self.nodes.push(Node { parent: Some(node), depth, sums, split: None });
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_cut_between_all_and_many_at_quantiles() {
        assert_eq!(cuts(&mut [3.0, 1.0, 1.0, 2.0], 4), [1.5, 2.5]);
        assert_eq!(cuts(&mut [1.0; 9], 4), [0.0; 0]);
        let mut many: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(cuts(&mut many, 4), [249.5, 499.5, 749.5]);
        // A value that fills several quantiles is cut off once.
        let mut heaped: Vec<f64> = (0..1000).map(|i| f64::from((i - 700).max(0))).collect();
        let found = cuts(&mut heaped, 10);
        assert_eq!(found[0], 0.5);
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
        let above = 1.0_f64.next_up();
        assert_eq!(cuts(&mut [1.0, above], 4), [1.0], "the value above is not below its cut");
    }
}

//! A histogram with fixed edges, for what happens a few times a second.

use crate::page::Spread;

/// Values in seconds, counted between edges.
#[derive(Clone, Debug)]
pub struct Histogram {
    edges: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty one; the edges rise.
    #[must_use]
    pub fn new(edges: &'static [f64]) -> Histogram {
        Histogram { edges, counts: vec![0; edges.len() + 1], sum: 0.0 }
    }

    /// Adds a value.
    pub fn add(&mut self, seconds: f64) {
        let place = self.edges.partition_point(|edge| *edge < seconds);
        self.counts[place] += 1;
        self.sum += seconds;
    }

    /// What was added so far.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let buckets = self.edges.iter().copied().zip(self.counts.iter().copied()).collect();
        Spread { buckets, beyond: self.counts[self.edges.len()], sum: self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_at_the_first_edge_that_is_not_below_it() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.1, 0.5, 0.75, 1.5, 100.0] {
            histogram.add(value);
        }
        let spread = histogram.spread();
        assert_eq!((spread.buckets, spread.beyond), (vec![(0.5, 2), (1.0, 1)], 2));
        assert!((spread.sum - 102.85).abs() < 1e-9);
    }
}

//! Distributions of times and sizes, small enough to be written down.

use serde::{Deserialize, Serialize};

/// Values from above the bucket before it up to and including `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The largest value of the bucket.
    pub upto: u64,
    /// How many values lie in it.
    pub count: u64,
}

/// Adds `more` to `buckets`, both ascending.
pub fn merge(buckets: &mut Vec<Bucket>, more: &[Bucket]) {
    for bucket in more {
        match buckets.binary_search_by_key(&bucket.upto, |have| have.upto) {
            Ok(at) => buckets[at].count += bucket.count,
            Err(at) => buckets.insert(at, *bucket),
        }
    }
}

/// The upper bound of the bucket in which the `part` (0 to 1) of all values is reached; `None` without
/// values.
#[must_use]
pub fn quantile(buckets: &[Bucket], part: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let wanted = ((total as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    buckets
        .iter()
        .find(|bucket| {
            seen += bucket.count;
            seen >= wanted
        })
        .map(|bucket| bucket.upto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_buckets_give_quantiles() {
        let mut buckets = vec![Bucket { upto: 10, count: 5 }, Bucket { upto: 30, count: 1 }];
        merge(&mut buckets, &[Bucket { upto: 10, count: 1 }, Bucket { upto: 20, count: 3 }]);
        assert_eq!(
            buckets.iter().map(|b| (b.upto, b.count)).collect::<Vec<_>>(),
            [(10, 6), (20, 3), (30, 1)]
        );
        for (part, upto) in [(0.0, 10), (0.6, 10), (0.61, 20), (0.99, 30), (1.0, 30)] {
            assert_eq!(quantile(&buckets, part), Some(upto), "{part}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }
}

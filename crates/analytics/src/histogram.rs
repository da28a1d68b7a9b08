//! Distributions of times and sizes, small enough to be written down.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest time that is told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);
/// Significant decimal digits of the buckets.
const DIGITS: u8 = 2;

/// Values from above the bucket before it up to and including `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The largest value of the bucket.
    pub upto: u64,
    /// How many values lie in it.
    pub count: u64,
}

/// Counts times in buckets of two significant digits, from a nanosecond to an hour; what is longer
/// counts as an hour. All recorders have the same buckets, so that theirs can be merged. Takes some
/// 70 KiB.
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let longest = LONGEST.as_nanos() as u64;
        let histogram = Histogram::new_with_bounds(1, longest, DIGITS);
        Recorder { histogram: histogram.expect("the bounds are constants and fit the digits") }
    }
}

impl Recorder {
    /// Counts one time.
    pub fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// What was counted, in nanoseconds, without empty buckets.
    #[must_use]
    pub fn buckets(&self) -> Vec<Bucket> {
        self.histogram
            .iter_recorded()
            .map(|step| Bucket {
                upto: self.histogram.highest_equivalent(step.value_iterated_to()),
                count: step.count_at_value(),
            })
            .collect()
    }
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

    #[test]
    fn a_recorder_keeps_two_digits_and_loses_no_time() {
        let mut recorder = Recorder::default();
        for nanoseconds in [0, 1, 99, 1_000, 123_456, 123_456, u64::MAX] {
            recorder.record(Duration::from_nanos(nanoseconds));
        }
        let buckets = recorder.buckets();
        assert_eq!(recorder.count(), 7);
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 7);
        assert!(buckets.is_sorted_by_key(|bucket| bucket.upto));
        for (part, exact) in [(0.4, 99.0), (0.5, 1e3), (0.7, 123_456.0), (1.0, 3.6e12)] {
            let upto = quantile(&buckets, part).unwrap() as f64;
            assert!((exact..=exact * 1.01).contains(&upto), "{upto} for {exact}");
        }
        // Two halves give what the whole gives.
        let (mut one, mut two) = (Recorder::default(), Recorder::default());
        for nanoseconds in (1..2_000_u64).map(|n| n * n * 37) {
            let half = if nanoseconds % 2 == 0 { &mut one } else { &mut two };
            half.record(Duration::from_nanos(nanoseconds));
            recorder.record(Duration::from_nanos(nanoseconds));
        }
        let mut merged = buckets;
        merge(&mut merged, &one.buckets());
        merge(&mut merged, &two.buckets());
        assert_eq!(merged, recorder.buckets());
    }
}

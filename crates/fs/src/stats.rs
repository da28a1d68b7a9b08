//! Counters of operations per fileset, and latencies per operation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($($name:ident => $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation {
            $(#[doc = $text] $name,)*
        }

        /// Every counted operation with its name.
        pub const OPERATIONS: &[(Operation, &str)] = &[$((Operation::$name, $text),)*];
    };
}

operations! {
    Lookup => "lookups",
    Getattr => "getattrs",
    Open => "opens",
    Close => "closes",
    Create => "creates",
    Unlink => "unlinks",
    Rename => "renames",
    Link => "links",
    Readdir => "readdirs",
    Read => "reads",
    Write => "writes",
    BytesRead => "bytes_read",
    BytesWritten => "bytes_written",
    InodeUpdate => "inode_updates",
    Xattr => "xattrs",
    Sync => "syncs",
    Commit => "commits",
}

/// Counters of one fileset.
#[derive(Debug, Default)]
pub struct Counters {
    operations: [AtomicU64; OPERATIONS.len()],
    /// Its commits.
    pub commits: Commits,
}

/// Commits of one fileset.
#[derive(Debug, Default)]
pub struct Commits {
    /// How long those took that succeeded.
    pub took: Latency,
    /// Records that they committed.
    pub records: AtomicU64,
    /// Those that failed.
    pub failed: AtomicU64,
}

impl Commits {
    /// A commit of so many records succeeded.
    pub fn succeeded(&self, took: Duration, records: usize) {
        self.took.record(took);
        self.records.fetch_add(records as u64, Ordering::Relaxed);
    }
}

impl Counters {
    /// Adds one.
    pub fn count(&self, operation: Operation) {
        self.add(operation, 1);
    }

    /// Adds `amount`.
    pub fn add(&self, operation: Operation, amount: u64) {
        self.operations[operation as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// The values now, in the order of [`OPERATIONS`].
    #[must_use]
    pub fn read(&self) -> Vec<u64> {
        self.operations.iter().map(|counter| counter.load(Ordering::Relaxed)).collect()
    }
}

/// Buckets per power of two: a value is known to within 1/8.
const STEPS: u64 = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = 40 * STEPS as usize;

/// A histogram of durations with buckets of logarithmic width, 1 ns to about half an hour. Recording
/// is two atomic additions.
#[derive(Debug)]
pub struct Latency {
    counts: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl Default for Latency {
    fn default() -> Latency {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Latency { counts, nanoseconds: AtomicU64::new(0) }
    }
}

fn bucket_of(nanos: u64) -> usize {
    let bits = 63 - nanos.max(STEPS).leading_zeros();
    let step = (nanos.max(STEPS) >> (bits - STEP_BITS)) & (STEPS - 1);
    let bucket = u64::from(bits - STEP_BITS) * STEPS + step;
    usize::try_from(bucket).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The upper edge of a bucket, in nanoseconds.
#[must_use]
pub fn upper_edge(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    (STEPS + step + 1) << power
}

impl Latency {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The counts now, by bucket.
    #[must_use]
    pub fn read(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// As many empty counts, as [`Latency::read`] has them.
    #[must_use]
    pub fn default_counts(number: usize) -> Vec<Vec<u64>> {
        vec![vec![0; BUCKETS]; number]
    }

    /// The sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// The counts now, in the few buckets that monitors get: each with its upper edge, and how many were longer.
    #[must_use]
    pub fn coarse(&self) -> (Vec<(Duration, u64)>, u64) {
        let mut counts = self.read().into_iter().enumerate().peekable();
        let mut below = |edge: u64| {
            let mut sum = 0;
            while let Some((_, count)) = counts.next_if(|(bucket, _)| upper_edge(*bucket) <= edge) {
                sum += count;
            }
            sum
        };
        let edges = COARSE_POWERS.iter().map(|power| 1_u64 << power);
        let coarse = edges.map(|edge| (Duration::from_nanos(edge), below(edge))).collect();
        (coarse, below(u64::MAX))
    }
}

/// Upper edges of the buckets that monitors get, as powers of two of nanoseconds: 8 us to 17 s, closer where most
/// operations are.
const COARSE_POWERS: [u32; 14] = [13, 14, 15, 16, 17, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Percentiles of a latency histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// Half of the values are below.
    pub p50_us: f64,
    /// 90 % are below.
    pub p90_us: f64,
    /// 99 % are below.
    pub p99_us: f64,
    /// All are below.
    pub max_us: f64,
}

impl Percentiles {
    /// Percentiles of the counts of [`Latency::read`], or of the difference of two readings. Values are
    /// upper edges of buckets: at most 1/8 too high.
    #[must_use]
    pub fn of(counts: &[u64]) -> Percentiles {
        let count: u64 = counts.iter().sum();
        let at = |share: f64| {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                clippy::cast_possible_truncation
            )]
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            for (bucket, amount) in counts.iter().enumerate() {
                seen += amount;
                if seen >= rank {
                    #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
                    return upper_edge(bucket) as f64 / 1000.0;
                }
            }
            0.0
        };
        Percentiles { count, p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), max_us: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_below_its_upper_edge_by_at_most_an_eighth() {
        for nanos in [8_u64, 9, 15, 16, 17, 1000, 123_456, 10_000_000_000] {
            let edge = upper_edge(bucket_of(nanos));
            assert!(nanos < edge && edge <= nanos + nanos / 8 + 1, "{nanos} {edge}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of(0), 0);
    }

    #[test]
    fn coarse_buckets_hold_every_value_below_their_edge() {
        let latency = Latency::default();
        for nanos in [1, 8191, 8192, 200_000, 1 << 20, u64::MAX] {
            latency.record(Duration::from_nanos(nanos));
        }
        let (coarse, beyond) = latency.coarse();
        let at =
            |power: u32| coarse.iter().find(|(edge, _)| edge.as_nanos() == 1 << power).unwrap().1;
        assert_eq!((at(13), at(14), at(18), at(20), at(22), beyond), (2, 1, 1, 0, 1, 1));
        assert_eq!(coarse.iter().map(|(_, count)| count).sum::<u64>() + beyond, 6);
    }

    #[test]
    fn percentiles_of_known_values() {
        let latency = Latency::default();
        for micros in 1..=100 {
            latency.record(Duration::from_micros(micros));
        }
        let found = Percentiles::of(&latency.read());
        assert_eq!(found.count, 100);
        assert!((50.0..57.0).contains(&found.p50_us), "{found:?}");
        assert!((99.0..112.0).contains(&found.p99_us), "{found:?}");
        assert_eq!(Percentiles::of(&[]), Percentiles::default());
    }
}

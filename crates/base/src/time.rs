//! Points in time, and the clock seam through which every crate reads them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A point in time: seconds since the Unix epoch (may be negative) and nanoseconds of that second.
///
/// Packed into 12 bytes: a cached inode holds four of them.
#[repr(C, packed(4))]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Builds a timestamp; `nanoseconds` beyond one second are cut to 999,999,999.
    #[must_use]
    pub fn new(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds: nanoseconds.min(999_999_999) }
    }

    /// Time passed from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        let nanos =
            |t: Timestamp| i128::from(t.seconds) * 1_000_000_000 + i128::from(t.nanoseconds);
        let difference = (nanos(self) - nanos(earlier)).max(0);
        Duration::from_nanos(u64::try_from(difference).unwrap_or(u64::MAX))
    }
}

/// Where time comes from. Pure code receives one; only [`SystemClock`] asks the machine.
pub trait Clock: Send + Sync {
    /// The wall clock, for the times of files.
    fn now(&self) -> Timestamp;
    /// A clock that never goes back, for measuring.
    fn instant(&self) -> Instant;

    /// Time since some moment in the past; it never goes back, and goes on while the machine is suspended.
    fn boottime(&self) -> Duration {
        let now = self.now();
        Duration::new(u64::try_from(now.seconds).unwrap_or(0), now.nanoseconds)
    }
}

/// The machine's clock. Wall-clock readings have the granularity of the kernel's own file times
/// (clock_gettime(2), CLOCK_REALTIME_COARSE), so that times set here and times set by the kernel on
/// objects are in the order in which things happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp::new(now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that asks the machine")]
    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn boottime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// Calls `has_come` up to `looks` times, with a pause between calls. Returns whether it became true.
pub fn look_until(looks: u32, pause: Duration, mut has_come: impl FnMut() -> bool) -> bool {
    for look in 0..looks {
        if look > 0 {
            std::thread::sleep(pause);
        }
        if has_come() {
            return true;
        }
    }
    false
}

/// A clock for tests: each reading is one microsecond after the last.
#[derive(Debug)]
pub struct StepClock {
    microseconds: AtomicI64,
    start: Instant,
}

impl StepClock {
    /// Starts at `seconds` after the Unix epoch.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "an Instant can be made in no other way")]
    pub fn new(seconds: i64) -> StepClock {
        StepClock { microseconds: AtomicI64::new(seconds * 1_000_000), start: Instant::now() }
    }
}

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        let now = self.microseconds.fetch_add(1, Ordering::Relaxed);
        let nanos = u32::try_from(now.rem_euclid(1_000_000)).unwrap_or(0) * 1000;
        Timestamp::new(now.div_euclid(1_000_000), nanos)
    }

    fn instant(&self) -> Instant {
        self.start
    }
}

/// The first multiple of an interval, both in seconds, after a time in seconds since 1970.
#[must_use]
pub fn next_multiple(every_seconds: u64, now: i64) -> i64 {
    let every = i64::try_from(every_seconds).unwrap_or(i64::MAX).max(1);
    (now.div_euclid(every) + 1).saturating_mul(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_clock_never_repeats_a_reading() {
        let clock = StepClock::new(7);
        let (a, b) = (clock.now(), clock.now());
        assert!(b > a);
        assert_eq!(b.since(a), Duration::from_micros(1));
        assert_eq!(a.since(b), Duration::ZERO);
    }
}

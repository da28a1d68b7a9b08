//! Times of one node's own clock, and how far clocks of two nodes may differ in rate.
//!
//! No time of one node is ever compared with a time of another: what travels are durations, and each is made shorter
//! or longer by the drift that clocks are allowed.

use std::ops::Add;
use std::time::Duration;

/// A reading of one node's own clock: the time since a start that stays the same throughout a life of its daemon.
///
/// The clock never goes back, and goes on while the machine is suspended (CLOCK_BOOTTIME). A wall clock will not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// Time passed from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Time left from `now` until `self`; zero if it is over.
    #[must_use]
    pub fn left(self, now: Moment) -> Duration {
        self.since(now)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

/// By how much the rates of two nodes' clocks may differ, in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// While one clock counts a second, the other counts a second plus or minus this many microseconds at most.
    pub ppm: u32,
}

impl Drift {
    /// How long `duration` of another node's clock lasts on this one at the least.
    #[must_use]
    pub fn at_least(self, duration: Duration) -> Duration {
        duration.saturating_sub(self.part(duration))
    }

    /// How long `duration` of another node's clock lasts on this one at the most.
    #[must_use]
    pub fn at_most(self, duration: Duration) -> Duration {
        duration.saturating_add(self.part(duration))
    }

    fn part(self, duration: Duration) -> Duration {
        let nanos = duration.as_nanos() * u128::from(self.ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_makes_durations_shorter_or_longer() {
        let drift = Drift { ppm: 1000 };
        let ten = Duration::from_secs(10);
        assert_eq!(drift.at_least(ten), Duration::from_millis(9990));
        assert_eq!(drift.at_most(ten), Duration::from_millis(10_010));
        assert_eq!(Drift { ppm: 0 }.at_least(ten), ten);
        assert_eq!(drift.at_most(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn what_is_over_has_no_time_left() {
        let (early, late) = (Moment(Duration::from_secs(1)), Moment(Duration::from_secs(4)));
        assert_eq!((late.left(early), early.left(late)), (Duration::from_secs(3), Duration::ZERO));
        assert_eq!(early + Duration::from_secs(3), late);
    }
}

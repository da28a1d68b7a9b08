//! Ranges of numbers that are handed out once, also across crashes.
//!
//! The store holds a limit: numbers at or above it have never been handed out. Numbers are taken below
//! the limit only, and each commit moves the limit ahead, so that a number taken and then lost in a
//! crash is never given to something else.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{FsError, Result};

/// Numbers by which a limit moves ahead: more than can be taken between two commits.
pub const RESERVE: u64 = 1 << 20;

/// No number within a fileset reaches this: it leaves room for every limit to be moved ahead.
pub const NUMBER_MAX: u64 = 1 << 47;

/// Hands out numbers below a limit that is safe in the store.
#[derive(Debug)]
pub struct NumberRange {
    next: AtomicU64,
    limit: AtomicU64,
}

impl NumberRange {
    /// Numbers from `first` up to `limit`, which the store already holds.
    #[must_use]
    pub fn new(first: u64, limit: u64) -> NumberRange {
        NumberRange { next: AtomicU64::new(first), limit: AtomicU64::new(limit) }
    }

    /// Takes the next number.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if the limit is reached, because commits fail.
    pub fn take(&self) -> Result<u64> {
        let below_limit =
            |next: u64| (next < self.limit.load(Ordering::Acquire)).then_some(next.wrapping_add(1));
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_limit)
            .map_err(|_| FsError::NoSpace)
    }

    /// The next number that will be taken.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Takes `count` numbers in a row; returns the first.
    ///
    /// # Errors
    /// As [`NumberRange::take`].
    pub fn take_row(&self, count: u64) -> Result<u64> {
        let below_limit = |next: u64| {
            let end = next.checked_add(count)?;
            (end <= self.limit.load(Ordering::Acquire)).then_some(end)
        };
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_limit)
            .map_err(|_| FsError::NoSpace)
    }

    /// The limit that the store holds.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// The limit to store with the next commit, if it is time to move it ahead.
    pub fn wanted_limit(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Acquire);
        let left = limit.saturating_sub(self.next.load(Ordering::Relaxed));
        (left < RESERVE / 2 && limit < NUMBER_MAX).then(|| limit + RESERVE)
    }

    /// Whether the limit is so near that it should not wait for the next commit.
    pub fn is_low(&self) -> bool {
        let left =
            self.limit.load(Ordering::Relaxed).saturating_sub(self.next.load(Ordering::Relaxed));
        left < RESERVE / 4 && self.limit() < NUMBER_MAX
    }

    /// The store holds `limit` now.
    pub fn limit_stored(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_at_or_above_the_stored_limit() {
        let numbers = NumberRange::new(5, 7);
        assert_eq!((numbers.take().unwrap(), numbers.take().unwrap()), (5, 6));
        assert!(numbers.take().is_err() && numbers.take_row(1).is_err());
        let wanted = numbers.wanted_limit().unwrap();
        numbers.limit_stored(wanted);
        assert_eq!(numbers.take().unwrap(), 7);
        assert_eq!((numbers.take_row(10).unwrap(), numbers.take().unwrap()), (8, 18));
        assert_eq!(numbers.wanted_limit(), None);
    }
}

//! Sets of small numbers as ranges: the elements of an array that wait, as few bytes as possible.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A set of numbers, kept as ranges. An array of any size whose elements all wait is one range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spans {
    /// First of each range to last, both inside. Ranges neither touch nor overlap.
    ranges: BTreeMap<u32, u32>,
}

impl Spans {
    /// The numbers `0..count`.
    #[must_use]
    pub fn up_to(count: u32) -> Spans {
        let mut spans = Spans::default();
        if count > 0 {
            spans.ranges.insert(0, count - 1);
        }
        spans
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The smallest number.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.ranges.first_key_value().map(|(first, _)| *first)
    }

    /// How many numbers there are; takes as long as there are ranges.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.ranges.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether `number` is in the set.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.around(number).is_some()
    }

    fn around(&self, number: u32) -> Option<(u32, u32)> {
        let (&first, &last) = self.ranges.range(..=number).next_back()?;
        (number <= last).then_some((first, last))
    }

    /// Puts `number` in; whether it was new.
    pub fn insert(&mut self, number: u32) -> bool {
        if self.contains(number) {
            return false;
        }
        let mut first = number;
        let mut last = number;
        if let Some((&before, &end)) = self.ranges.range(..number).next_back()
            && end + 1 == number
        {
            first = before;
        }
        if let Some(end) = number.checked_add(1).and_then(|after| self.ranges.remove(&after)) {
            last = end;
        }
        self.ranges.insert(first, last);
        true
    }

    /// Takes `number` out; whether it was there.
    pub fn remove(&mut self, number: u32) -> bool {
        let Some((first, last)) = self.around(number) else { return false };
        self.ranges.remove(&first);
        if first < number {
            self.ranges.insert(first, number - 1);
        }
        if number < last {
            self.ranges.insert(number + 1, last);
        }
        true
    }

    /// The numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

impl FromIterator<u32> for Spans {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Spans {
        let mut spans = Spans::default();
        for number in numbers {
            spans.insert(number);
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_and_join() {
        let mut spans = Spans::up_to(10);
        assert!(spans.remove(4) && !spans.remove(4));
        assert_eq!((spans.ranges.len(), spans.count(), spans.contains(4)), (2, 9, false));
        assert!(spans.remove(0));
        assert_eq!(spans.first(), Some(1));
        assert!(spans.insert(4) && !spans.insert(5));
        assert_eq!(spans.ranges, BTreeMap::from([(1, 9)]));
        assert!(spans.insert(u32::MAX) && spans.insert(u32::MAX - 1));
        assert_eq!(spans.iter().count(), 11);
    }

    #[test]
    fn a_set_of_ranges_equals_a_plain_set() {
        let mut spans = Spans::default();
        let mut plain = std::collections::BTreeSet::new();
        let mut state = 7_u32;
        for _ in 0..5000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (state >> 8) % 50;
            if state >> 31 == 0 {
                assert_eq!(spans.insert(number), plain.insert(number));
            } else {
                assert_eq!(spans.remove(number), plain.remove(&number));
            }
            assert!(spans.iter().eq(plain.iter().copied()));
            assert_eq!(spans.first(), plain.first().copied());
        }
    }
}

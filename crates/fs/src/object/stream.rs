//! Streams: programs that read a large file on the served path from one end to the other. What they have passed is dropped from
//! memory, so that it does not push out what is read again and again.
//!
//! The file is in memory twice: the daemon reads through the page cache of the object's file, and the kernel keeps the pages of the
//! mount. The first go a moment after they were read. The second go later, as the kernel asks ahead of the program. Several
//! programs that read a file in different places are not a stream. Nothing but speed depends on any of this.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A read that begins so near the end of the one before continues it: the kernel asks for several windows of its read-ahead, and
/// requests arrive in any order.
const SLACK: u64 = 16 << 20;
/// Bytes that are dropped at a time, at least.
const STEP: u64 = 8 << 20;
/// What the kernel may have asked ahead of the program: the largest `read_ahead`, and as much again for several requests.
const ASKED_AHEAD: u64 = 128 << 20;

/// How far a file was read.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Where the latest read ended.
    next: AtomicU64,
    /// Up to where it was dropped from the page cache of the object's file.
    dropped: AtomicU64,
    /// Up to where it was dropped from that of the mount.
    dropped_above: AtomicU64,
    /// Something was dropped since the file was last closed.
    is_large: AtomicBool,
}

/// A range of bytes.
pub(crate) type Range = (u64, u64);

/// What a stream needs no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// In the page cache of the object's file.
    pub below: Option<Range>,
    /// In that of the mount.
    pub above: Option<Range>,
}

impl Stream {
    /// What is needed no more after a read of `length` bytes at `offset`, of a file of `size` bytes.
    pub fn passed(&self, (offset, length): (u64, u64), size: u64) -> Passed {
        let end = offset.saturating_add(length);
        let before = self.next.swap(end, Ordering::Relaxed);
        if offset.abs_diff(before) > SLACK {
            self.dropped.store(offset, Ordering::Relaxed);
            self.dropped_above.store(offset, Ordering::Relaxed);
        }
        let until = if end >= size { end } else { end.saturating_sub(SLACK) };
        let passed = Passed {
            below: take(&self.dropped, until, end >= size),
            above: take(&self.dropped_above, end.saturating_sub(ASKED_AHEAD), false),
        };
        if passed.below.is_some() {
            self.is_large.store(true, Ordering::Relaxed);
        }
        passed
    }

    /// Nobody has the file open any more. Whether what is left of it in memory is to go.
    pub fn ended(&self) -> bool {
        self.is_large.load(Ordering::Relaxed) && self.is_large.swap(false, Ordering::Relaxed)
    }
}

/// The range from `front` to `until`, for one of those who read, if it is large enough or the last one.
fn take(front: &AtomicU64, until: u64, is_last: bool) -> Option<Range> {
    let from = front.load(Ordering::Relaxed);
    let passed = until.saturating_sub(from);
    if passed == 0 || (passed < STEP && !is_last) {
        return None;
    }
    front.compare_exchange(from, until, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    Some((from, until))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is dropped while a file is read at these offsets, 1 MiB each.
    fn dropped(size: u64, offsets: impl Iterator<Item = u64>) -> (Vec<Range>, Vec<Range>) {
        let (stream, mut below, mut above) = (Stream::default(), Vec::new(), Vec::new());
        for offset in offsets {
            let passed = stream.passed((offset, MIB.min(size - offset)), size);
            below.extend(passed.below);
            above.extend(passed.above);
        }
        (below, above)
    }

    #[test]
    fn a_stream_is_dropped_behind_the_reader_without_gaps_and_to_its_end() {
        let size = 300 * MIB + 5;
        let offsets = (0..=300).map(|number| number * MIB);
        let (below, above) = dropped(size, offsets);
        let mut at = 0;
        for (from, until) in below {
            assert_eq!(from, at);
            at = until;
        }
        assert_eq!(at, size);
        assert_eq!(above.first(), Some(&(0, 8 * MIB)));
        assert!(above.last().unwrap().1 <= size - ASKED_AHEAD, "the program may not have read it");
    }

    #[test]
    fn requests_that_overtake_each_other_are_a_stream() {
        let offsets = (0..100).flat_map(|pair| [2 * pair + 1, 2 * pair]).map(|number| number * MIB);
        let (below, _) = dropped(200 * MIB, offsets);
        assert_eq!(below.first().unwrap().0, 0);
        assert!(below.last().unwrap().1 > 190 * MIB);
    }

    #[test]
    fn reads_here_and_there_drop_nothing() {
        let offsets = (0..1000).map(|number| (number * 37 % 100) * 10 * MIB);
        assert_eq!(dropped(1100 * MIB, offsets), (Vec::new(), Vec::new()));
    }

    #[test]
    fn only_a_stream_has_more_dropped_when_its_file_is_closed_and_once() {
        let stream = Stream::default();
        stream.passed((500 * MIB, MIB), 1000 * MIB);
        assert!(!stream.ended());
        for number in 0..40 {
            stream.passed((number * MIB, MIB), 1000 * MIB);
        }
        assert!(stream.ended() && !stream.ended());
    }
}

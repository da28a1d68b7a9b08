//! Reading ahead: a program that reads an object from the beginning to the end waits for one disk at a time, unless the
//! others read meanwhile what it will want next.

use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Advice;

use super::stripes::Stripes;

/// Rows that are read ahead of a stream.
const ROWS: u64 = 2;
/// Bytes that are read ahead at least, if units are small, and at most, as they take up memory.
const WINDOW_MIN: u64 = 8 << 20;
const WINDOW_MAX: u64 = 64 << 20;
/// A read that begins so near the end of the one before continues it: the kernel asks for pages ahead of need, in any order.
const SLACK: u64 = 2 << 20;
/// Bytes for which a disk is asked at a time: Linux reads ahead no more than this at once on some devices.
const ADVICE_BYTES: u64 = 128 << 10;

/// How far an object was read, and asked for.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Where the latest read ended.
    next: AtomicU64,
    /// Up to where the disks were asked.
    front: AtomicU64,
}

impl Ahead {
    /// The range that is to be on its way while `length` bytes are read at `offset`, if there is any.
    pub fn range(
        &self,
        stripes: Stripes,
        (offset, length): (u64, u64),
        size: u64,
    ) -> Option<(u64, u64)> {
        let end = offset.saturating_add(length).min(size);
        let before = self.next.swap(end, Ordering::Relaxed);
        if offset.abs_diff(before) > SLACK {
            self.front.store(end, Ordering::Relaxed);
            // All parts of this read begin at the same time.
            let is_on_one =
                offset / stripes.unit_bytes() == end.saturating_sub(1) / stripes.unit_bytes();
            return (!is_on_one).then_some((offset, end));
        }
        let window = stripes.row_bytes().saturating_mul(ROWS).clamp(WINDOW_MIN, WINDOW_MAX);
        let until = end.saturating_add(window).min(size);
        let front = self.front.load(Ordering::Relaxed);
        let from = if (offset..=until).contains(&front) { front } else { offset };
        // Not a little with each read.
        if until - from < window / 4 && (until < size || from >= until) {
            return None;
        }
        self.front.store(until, Ordering::Relaxed);
        Some((from, until))
    }
}

/// Has the kernel begin to read a range of a file. Nothing depends on it.
pub(super) fn advise(file: BorrowedFd<'_>, from: u64, until: u64) {
    let mut at = from;
    while at < until {
        let step = ADVICE_BYTES.min(until - at);
        if rustix::fs::fadvise(file, at, NonZeroU64::new(step), Advice::WillNeed).is_err() {
            return;
        }
        at += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_stream_is_asked_for_ahead_once_and_up_to_its_end() {
        let (ahead, stripes, size) = (Ahead::default(), Stripes::new(MIB, 4), 100 * MIB);
        let mut asked = 0;
        for offset in (0..100).map(|number| number * MIB) {
            if let Some((from, until)) = ahead.range(stripes, (offset, MIB), size) {
                assert_eq!(from, asked, "no byte is asked for twice, and none is passed over");
                asked = until;
            }
            let wanted = (offset + MIB + 6 * MIB).min(size);
            assert!(asked >= wanted, "{asked} are asked for while {offset} is read");
        }
        assert_eq!(asked, size);
    }

    #[test]
    fn reads_here_and_there_are_not_asked_for_ahead() {
        let (ahead, stripes, size) = (Ahead::default(), Stripes::new(MIB, 4), 1000 * MIB);
        ahead.range(stripes, (500 * MIB, 4096), size);
        assert_eq!(ahead.range(stripes, (300 * MIB, 4096), size), None);
        let across = (700 * MIB - 10, 20);
        assert_eq!(ahead.range(stripes, across, size), Some((across.0, across.0 + 20)));
        assert_eq!(ahead.range(stripes, (10 * MIB, 3 * MIB), size), Some((10 * MIB, 13 * MIB)));
    }
}

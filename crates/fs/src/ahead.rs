//! Which frames are fetched ahead of a program that reads a file from one end to the other: pieces of one length, of an archived file
//! or of one that lies on another node. Pure.
//!
//! No more frames are fetched ahead than were read in a row, and at most so many: a program that looks at one place of a file
//! has nothing else fetched.

use std::ops::Range;

/// A read so many frames from where the one before ended continues it: the kernel asks ahead as well, and its requests arrive in
/// any order.
const SLACK: u64 = 4;

/// How the frames of a file were read.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Most frames that are fetched ahead.
    most: u64,
    /// The frame after those that were read.
    next: u64,
    /// Frames that were read in a row, the first ones not counted.
    row: u64,
    /// The frame after those that were fetched, or are being fetched.
    fetched: u64,
}

impl Ahead {
    /// Of a file that nobody has read yet.
    pub fn of(most: u64) -> Ahead {
        // No read continues there.
        Ahead { most, next: u64::MAX, row: 0, fetched: 0 }
    }

    /// The frames to fetch after a read of `frames`, which are not empty, of a file of `count` frames.
    pub fn after(&mut self, frames: &Range<u64>, count: u64) -> Range<u64> {
        let is_near = |one: u64, other: u64| one <= other.saturating_add(SLACK);
        let continues = is_near(frames.start, self.next) && is_near(self.next, frames.end);
        if !continues {
            *self = Ahead { next: frames.end, row: 0, fetched: frames.end, ..*self };
            return 0..0;
        }
        self.row += frames.end.saturating_sub(self.next).min(frames.end - frames.start);
        self.next = self.next.max(frames.end);
        let window = self.row.min(self.most);
        let wanted = self.fetched.max(self.next)..self.next.saturating_add(window).min(count);
        if wanted.is_empty() || (wanted.end < count && (wanted.end - wanted.start) * 2 < window) {
            return 0..0;
        }
        self.fetched = wanted.end;
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 8;

    /// What is fetched ahead while single frames are read.
    fn ahead(frames: impl IntoIterator<Item = u64>, count: u64) -> Vec<Range<u64>> {
        let mut ahead = Ahead::of(MOST);
        let all = frames.into_iter().map(|frame| ahead.after(&(frame..frame + 1), count));
        all.filter(|wanted| !wanted.is_empty()).collect()
    }

    #[test]
    fn looks_at_single_places_fetch_nothing_ahead() {
        assert_eq!(ahead([0], 100), []);
        assert_eq!(ahead([99, 99, 99, 98, 98], 100), []);
        assert_eq!(ahead([99, 0, 50, 7, 50, 20], 100), []);
    }

    #[test]
    fn a_reader_has_each_frame_fetched_once_and_never_more_ahead_than_it_has_read() {
        for count in [1, 2, 5, 100] {
            let mut state = Ahead::of(MOST);
            let mut fetched = 1;
            for frame in 0..count {
                // A frame is read in several pieces.
                for _ in 0..8 {
                    let wanted = state.after(&(frame..frame + 1), count);
                    if !wanted.is_empty() {
                        assert_eq!(
                            wanted.start,
                            fetched.max(frame + 1),
                            "nothing is left out or fetched twice"
                        );
                        fetched = wanted.end;
                    }
                    assert!(fetched <= count && fetched <= (frame + 1) + frame.min(MOST));
                }
                assert!(
                    frame < 2 || fetched > frame + 1 || fetched == count,
                    "the next one is on its way"
                );
            }
        }
    }

    #[test]
    fn requests_that_overtake_each_other_continue() {
        let pairs = (0..20).flat_map(|pair| [2 * pair + 1, 2 * pair]);
        let fetched: u64 = ahead(pairs, 1000).iter().map(|wanted| wanted.end - wanted.start).sum();
        assert!((30..=40 + MOST).contains(&fetched), "{fetched}");
    }

    #[test]
    fn requests_that_overlap_at_a_frame_continue_and_a_jump_starts_over() {
        let mut state = Ahead::of(MOST);
        assert!(state.after(&(4..6), 100).is_empty());
        assert_eq!(state.after(&(5..7), 100), 7..8);
        assert_eq!(state.after(&(7..8), 100), 8..10);
        assert!(state.after(&(50..51), 100).is_empty());
        assert_eq!(state.after(&(51..52), 100), 52..53);
    }
}

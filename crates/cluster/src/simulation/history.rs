//! Whether a history of one object can be put in one order (Wing and Gong, 1993, with Lowe's memory of states that were
//! tried). Objects are checked one by one, which is enough (Herlihy and Wing, 1990).
//!
//! A takeover is an operation too: it sets the object to what the new owner found in the store. So changes that were not
//! committed may be lost at a takeover, and nowhere else.

use std::collections::HashSet;
use std::time::Duration;

/// What was done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its value was read; none: it did not exist.
    Read(Option<u64>),
    /// It was given a value.
    Write(u64),
    /// It was made with a value; false: it existed.
    Create(u64, bool),
    /// It was removed; false: it did not exist.
    Remove(bool),
    /// It was made or left alone, removed or left alone: nobody knows.
    MaybeCreate(u64),
    /// See above.
    MaybeRemove,
    /// A new owner found this in the store.
    Reset(Option<u64>),
}

impl Done {
    /// The value afterwards, if this is what happens to an object of this value.
    fn apply(self, value: Option<u64>) -> Option<Option<u64>> {
        match self {
            Done::Read(read) => (read == value).then_some(value),
            Done::Write(written) => Some(Some(written)),
            Done::Create(made, true) => value.is_none().then_some(Some(made)),
            Done::Create(_, false) => value.is_some().then_some(value),
            Done::Remove(true) => value.is_some().then_some(None),
            Done::Remove(false) => value.is_none().then_some(None),
            Done::MaybeCreate(made) => Some(value.or(Some(made))),
            Done::MaybeRemove => Some(None),
            Done::Reset(found) => Some(found),
        }
    }
}

/// An operation: between which times it happened.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it began.
    pub begin: Duration,
    /// When it ended; the maximum, if nobody knows whether it happened.
    pub end: Duration,
    /// What was done.
    pub done: Done,
}

/// Whether the operations can be put in an order in which each takes effect between its begin and its end.
pub fn is_linearizable(spans: &[Span]) -> bool {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| (span.begin, span.end));
    let mut tried = HashSet::new();
    let mut done = vec![0_u64; spans.len().div_ceil(64)];
    search(&spans, &mut done, 0, None, &mut tried)
}

fn is_done(done: &[u64], index: usize) -> bool {
    done[index / 64] >> (index % 64) & 1 == 1
}

/// Depth first, with a stack of its own: histories are long.
fn search(
    spans: &[Span],
    done: &mut [u64],
    first: usize,
    value: Option<u64>,
    tried: &mut HashSet<(Vec<u64>, Option<u64>)>,
) -> bool {
    struct Step {
        first: usize,
        next: usize,
        value: Option<u64>,
        taken: Option<usize>,
    }
    let mut stack = vec![Step { first, next: first, value, taken: None }];
    while let Some(step) = stack.last_mut() {
        while step.first < spans.len() && is_done(done, step.first) {
            step.first += 1;
        }
        if step.first == spans.len() {
            return true;
        }
        let undone = (step.first..spans.len()).filter(|index| !is_done(done, *index));
        // Nothing may come after an operation that ended before it began.
        let bound = undone.map(|index| spans[index].end).min().unwrap_or(Duration::MAX);
        let mut found = None;
        let mut index = step.next.max(step.first);
        while index < spans.len() && spans[index].begin <= bound {
            if !is_done(done, index)
                && let Some(value) = spans[index].done.apply(step.value)
            {
                found = Some((index, value));
                break;
            }
            index += 1;
        }
        let Some((index, value)) = found else {
            let taken = step.taken;
            stack.pop();
            if let Some(taken) = taken {
                done[taken / 64] &= !(1 << (taken % 64));
            }
            continue;
        };
        step.next = index + 1;
        let first = step.first;
        done[index / 64] |= 1 << (index % 64);
        if tried.insert((done.to_vec(), value)) {
            stack.push(Step { first, next: first, value, taken: Some(index) });
        } else {
            done[index / 64] &= !(1 << (index % 64));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin: u64, end: u64, done: Done) -> Span {
        let end = if end == 0 { Duration::MAX } else { Duration::from_secs(end) };
        Span { begin: Duration::from_secs(begin), end, done }
    }

    #[test]
    fn histories_are_judged() {
        use Done::{Create, MaybeCreate, MaybeRemove, Read, Remove, Reset, Write};
        let cases: [(&str, bool, Vec<Span>); 10] = [
            ("in order", true, vec![span(1, 2, Write(1)), span(3, 4, Read(Some(1)))]),
            (
                "stale",
                false,
                vec![span(1, 2, Write(1)), span(3, 4, Write(2)), span(5, 6, Read(Some(1)))],
            ),
            (
                "at once",
                true,
                vec![span(1, 2, Write(1)), span(3, 6, Write(2)), span(4, 5, Read(Some(1)))],
            ),
            (
                "back and forth",
                false,
                vec![
                    span(1, 2, Write(1)),
                    span(3, 9, Write(2)),
                    span(4, 5, Read(Some(2))),
                    span(6, 7, Read(Some(1))),
                ],
            ),
            (
                "lost at a takeover",
                true,
                vec![span(1, 2, Write(1)), span(3, 4, Reset(None)), span(5, 6, Read(None))],
            ),
            ("lost without one", false, vec![span(1, 2, Write(1)), span(5, 6, Read(None))]),
            (
                "old owner's cache",
                false,
                vec![span(1, 2, Write(1)), span(3, 4, Reset(None)), span(5, 6, Read(Some(1)))],
            ),
            ("made twice", false, vec![span(1, 2, Create(1, true)), span(3, 4, Create(2, true))]),
            (
                "perhaps",
                true,
                vec![
                    span(1, 0, MaybeCreate(1)),
                    span(3, 4, Create(2, false)),
                    span(5, 6, Read(Some(1))),
                ],
            ),
            (
                "perhaps later",
                true,
                vec![
                    span(1, 2, Create(2, true)),
                    span(3, 0, MaybeRemove),
                    span(5, 6, Remove(true)),
                ],
            ),
        ];
        for (name, expected, spans) in cases {
            assert_eq!(is_linearizable(&spans), expected, "{name}");
        }
    }
}

//! Checks that what several programs saw of one object could have been seen if each call had taken effect at one moment between its
//! begin and its end (linearizability, Herlihy and Wing 1990).
//!
//! [`check`] goes through begins and ends in the order of time and keeps every state that the object may be in, each with the calls
//! under way that have taken effect in it ("just in time", Lowe 2017). Calls whose outcome is unknown took effect once or not
//! at all. A crash of the owner is such a call too: it takes a state back to one that it had since the last sync.

mod names;
mod register;

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

pub use names::{Move, NAMES, Names};
pub use register::{Access, Register};

/// Calls under way at a time.
const OPEN_MAX: usize = 64;
/// Calls that a violation shows.
const SHOWN: usize = 40;

/// A call on an object, with what it answered.
pub trait Call: Debug {
    /// What an object is.
    type State: Clone + Eq + Hash + Debug;

    /// Adds the states that the call may leave when it takes effect in `state`: none if it cannot have answered so. `slot` is
    /// its own among the calls under way.
    fn next(&self, slot: usize, state: &Self::State, states: &mut Vec<Self::State>);

    /// The call in `slot` has returned.
    fn returned(slot: usize, state: &mut Self::State) {
        let _ = (slot, state);
    }
}

/// Whether a call is known to have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// It took effect or not.
    Unknown,
}

/// A call and its times.
#[derive(Clone, Debug)]
pub struct Entry<C> {
    /// When it began, in nanoseconds of the test.
    pub begin: u64,
    /// When it had ended for sure.
    pub end: u64,
    /// Who made it, for people.
    pub by: String,
    /// The call.
    pub call: C,
    /// Whether it took effect.
    pub outcome: Outcome,
}

/// States that an object may be in, with the set of open calls that took effect.
type Configurations<S> = HashSet<(S, u64)>;

/// Checks the history of an object.
///
/// # Errors
/// If no order of the calls explains their answers; the text shows where.
///
/// # Panics
/// If more than 64 calls are under way at a time.
pub fn check<C: Call>(initial: C::State, entries: &[Entry<C>]) -> Result<(), String> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * entries.len());
    for (index, entry) in entries.iter().enumerate() {
        events.push((entry.begin, false, index));
        events.push((entry.end, true, index));
    }
    // At the same time a begin comes first: the calls may have overlapped.
    events.sort_unstable();
    let mut open: Vec<Option<usize>> = vec![None; OPEN_MAX];
    let mut configurations = Configurations::from([(initial, 0)]);
    for (time, is_end, index) in events {
        if !is_end {
            let slot = open.iter().position(Option::is_none).expect("at most 64 calls are open");
            open[slot] = Some(index);
            continue;
        }
        let slot = open.iter().position(|found| *found == Some(index)).expect("it began before");
        let bit = 1 << slot;
        let reached = reach(&configurations, &open, entries);
        let kept = reached
            .into_iter()
            .filter(|(_, done)| entries[index].outcome == Outcome::Unknown || done & bit != 0)
            .map(|(mut state, done)| {
                C::returned(slot, &mut state);
                (state, done & !bit)
            });
        let next: Configurations<C::State> = kept.collect();
        if next.is_empty() {
            return Err(violation(time, index, entries, &configurations));
        }
        configurations = next;
        open[slot] = None;
    }
    Ok(())
}

/// Everything that can be reached by letting open calls take effect.
fn reach<C: Call>(
    from: &Configurations<C::State>,
    open: &[Option<usize>],
    entries: &[Entry<C>],
) -> Configurations<C::State> {
    let mut reached = Configurations::new();
    let mut waiting: Vec<(C::State, u64)> =
        from.iter().map(|(state, done)| looked(state, *done, open, entries)).collect();
    let mut states = Vec::new();
    while let Some((state, done)) = waiting.pop() {
        if !reached.insert((state.clone(), done)) {
            continue;
        }
        for (slot, index) in open.iter().enumerate() {
            let Some(index) = index.filter(|_| done & (1 << slot) == 0) else { continue };
            states.clear();
            entries[index].call.next(slot, &state, &mut states);
            for state in states.drain(..) {
                waiting.push(looked(&state, done | 1 << slot, open, entries));
            }
        }
    }
    reached
}

/// Lets calls that took effect and change nothing do so at once where they fit: waiting cannot help them.
fn looked<C: Call>(
    state: &C::State,
    mut done: u64,
    open: &[Option<usize>],
    entries: &[Entry<C>],
) -> (C::State, u64) {
    let mut states = Vec::new();
    for (slot, index) in open.iter().enumerate() {
        let Some(index) = index.filter(|_| done & (1 << slot) == 0) else { continue };
        if entries[index].outcome == Outcome::Unknown {
            continue;
        }
        states.clear();
        entries[index].call.next(slot, state, &mut states);
        if matches!(&states[..], [only] if only == state) {
            done |= 1 << slot;
        }
    }
    (state.clone(), done)
}

fn violation<C: Call>(
    time: u64,
    index: usize,
    entries: &[Entry<C>],
    before: &Configurations<C::State>,
) -> String {
    let seconds = |time: u64| time as f64 / 1e9;
    let line = |entry: &Entry<C>| {
        let Entry { begin, end, by, call, outcome } = entry;
        format!("{:.6} to {:.6} {by}: {call:?} ({outcome:?})", seconds(*begin), seconds(*end))
    };
    let mut earlier: Vec<&Entry<C>> = entries.iter().filter(|entry| entry.begin <= time).collect();
    earlier.sort_by_key(|entry| entry.begin);
    let start = earlier.len().saturating_sub(SHOWN);
    let lines: Vec<String> = earlier[start..].iter().map(|entry| line(entry)).collect();
    let states: HashSet<&C::State> = before.iter().map(|(state, _)| state).collect();
    format!(
        "no order of calls explains\n  {}\nbefore it the object was one of {states:?}\nthe calls until then:\n  {}",
        line(&entries[index]),
        lines.join("\n  ")
    )
}

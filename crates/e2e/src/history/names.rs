//! A directory of a few names as an object: what each name stands for, and what the directory was since it was last durable.
//!
//! The kernel of the owner's node keeps names until it is told that they have changed, and the call that changes one returns only
//! then. So a program there may find a name as it was before a change that others see already, as long as the call that
//! changes it has not returned ([`Move::Kept`]).

use super::Call;

/// Names in a directory.
pub const NAMES: usize = 3;

/// What each name stands for: a token, or 0 for nothing.
pub type Tokens = [u32; NAMES];

/// A directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names {
    now: Tokens,
    /// What it was since the last sync, in order of value, without what it is now.
    since: Vec<Tokens>,
    /// What names stood for before calls under way took effect: slot, name and token, in order.
    before: Vec<(usize, usize, u32)>,
}

/// A call on a directory, with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// The name was not there and stands for the token now.
    Made(usize, u32),
    /// The name was there: nothing was made.
    Refused(usize),
    /// The name stands for the token, whatever it stood for.
    Put(usize, u32),
    /// The name was there and is gone.
    Removed(usize),
    /// The name was not there.
    Missing(usize),
    /// The name stood for the token.
    Saw(usize, u32),
    /// The first name was there and has taken the place of the second.
    Renamed(usize, usize),
    /// An fsync of any file of the fileset.
    Synced,
    /// The owner died, or lost its lease.
    Crashed,
    /// A look ([`Move::Saw`], [`Move::Missing`], [`Move::Refused`]) that the kernel of the owner's node may have answered.
    Kept(Box<Move>),
}

impl Names {
    /// A directory that is durable.
    #[must_use]
    pub fn new(now: Tokens) -> Names {
        Names { now, since: Vec::new(), before: Vec::new() }
    }

    fn changed(&self, slot: usize, change: impl FnOnce(&mut Tokens)) -> Names {
        let mut next = self.clone();
        change(&mut next.now);
        for (name, token) in self.now.iter().enumerate() {
            if next.now[name] != *token {
                next.before.push((slot, name, *token));
            }
        }
        next.before.sort_unstable();
        if next.now != self.now {
            let before = next.since.partition_point(|state| *state < self.now);
            if next.since.get(before) != Some(&self.now) {
                next.since.insert(before, self.now);
            }
        }
        next
    }

    /// What it is when nothing of it can be lost any more, or what was not durable is.
    fn settled(&self, now: Tokens) -> Names {
        Names { now, since: Vec::new(), before: self.before.clone() }
    }
}

/// Whether a look finds that a name stands for a token.
fn finds(look: &Move, name: usize, token: u32) -> bool {
    match *look {
        Move::Saw(looked, seen) => looked == name && seen == token,
        Move::Missing(looked) => looked == name && token == 0,
        Move::Refused(looked) => looked == name && token != 0,
        _ => false,
    }
}

impl Call for Move {
    type State = Names;

    fn next(&self, slot: usize, state: &Names, states: &mut Vec<Names>) {
        let is_there = |name: usize| state.now[name] != 0;
        match *self {
            Move::Kept(ref look) => {
                let now = state.now.iter().enumerate().map(|(name, token)| (name, *token));
                let before = state.before.iter().map(|(_, name, token)| (*name, *token));
                if now.chain(before).any(|(name, token)| finds(look, name, token)) {
                    states.push(state.clone());
                }
            }
            Move::Made(name, token) if !is_there(name) => {
                states.push(state.changed(slot, |now| now[name] = token));
            }
            Move::Put(name, token) => {
                states.push(state.changed(slot, |now| now[name] = token));
            }
            Move::Removed(name) if is_there(name) => {
                states.push(state.changed(slot, |now| now[name] = 0));
            }
            Move::Renamed(from, to) if is_there(from) => states.push(state.changed(slot, |now| {
                now[to] = now[from];
                if from != to {
                    now[from] = 0;
                }
            })),
            Move::Refused(name) if is_there(name) => states.push(state.clone()),
            Move::Missing(name) if !is_there(name) => states.push(state.clone()),
            Move::Saw(name, token) if state.now[name] == token => states.push(state.clone()),
            Move::Synced => states.push(state.settled(state.now)),
            Move::Crashed => {
                let back = state.since.iter().chain([&state.now]);
                states.extend(back.map(|back| state.settled(*back)));
            }
            Move::Made(..)
            | Move::Removed(_)
            | Move::Renamed(..)
            | Move::Refused(_)
            | Move::Missing(_)
            | Move::Saw(..) => {}
        }
    }

    fn returned(slot: usize, state: &mut Names) {
        state.before.retain(|(changing, ..)| *changing != slot);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Outcome, check};
    use super::*;

    fn entry(begin: u64, end: u64, call: Move) -> Entry<Move> {
        let outcome = if call == Move::Crashed { Outcome::Unknown } else { Outcome::Done };
        Entry { begin, end, by: String::new(), call, outcome }
    }

    fn holds(entries: &[Entry<Move>]) -> bool {
        check(Names::new([0; NAMES]), entries).is_ok()
    }

    #[test]
    fn an_answer_that_is_old_is_found() {
        let made = entry(0, 10, Move::Made(0, 7));
        assert!(holds(&[made.clone(), entry(11, 12, Move::Saw(0, 7))]));
        assert!(!holds(&[made.clone(), entry(11, 12, Move::Missing(0))]));
        // While it is made, either is right, but not first there and then not.
        assert!(holds(&[
            made.clone(),
            entry(1, 2, Move::Missing(0)),
            entry(3, 4, Move::Saw(0, 7))
        ]));
        assert!(!holds(&[made, entry(1, 2, Move::Saw(0, 7)), entry(3, 4, Move::Missing(0))]));
    }

    #[test]
    fn only_one_makes_a_name() {
        let second = |end| [entry(0, 10, Move::Made(0, 7)), entry(0, end, Move::Made(0, 8))];
        assert!(!holds(&second(10)));
        let [first, second] = second(10);
        assert!(holds(&[first, second, entry(0, 10, Move::Removed(0))]));
    }

    #[test]
    fn a_kernel_that_keeps_names_is_late_only_while_the_change_is_under_way() {
        let made = entry(0, 10, Move::Made(0, 7));
        let seen = entry(1, 2, Move::Saw(0, 7));
        let late = |begin, end| entry(begin, end, Move::Kept(Box::new(Move::Missing(0))));
        assert!(holds(&[made.clone(), seen.clone(), late(3, 4)]));
        assert!(!holds(&[made.clone(), seen.clone(), entry(3, 4, Move::Missing(0))]));
        assert!(!holds(&[made.clone(), seen.clone(), late(11, 12)]));
        // Not what it was before an earlier change.
        let earlier = [entry(0, 1, Move::Made(0, 5)), entry(2, 3, Move::Removed(0))];
        let put = entry(4, 10, Move::Put(0, 7));
        let old = entry(5, 6, Move::Kept(Box::new(Move::Saw(0, 5))));
        assert!(!holds(&[&earlier[..], &[put, old]].concat()));
    }

    #[test]
    fn a_rename_moves_in_one_step() {
        let made = entry(0, 1, Move::Made(0, 7));
        let renamed = entry(2, 9, Move::Renamed(0, 1));
        let neither = [entry(3, 4, Move::Missing(0)), entry(5, 6, Move::Missing(1))];
        let history = [&[made.clone(), renamed.clone()], &neither[..]].concat();
        assert!(!holds(&history));
        let both = [entry(3, 4, Move::Saw(0, 7)), entry(5, 6, Move::Saw(1, 7))];
        assert!(holds(&[&[made, renamed], &both[..]].concat()));
    }

    #[test]
    fn a_crash_takes_back_what_was_not_synced_and_nothing_else() {
        let made = entry(0, 1, Move::Made(0, 7));
        let lost = entry(8, 9, Move::Missing(0));
        assert!(!holds(&[made.clone(), lost.clone()]));
        assert!(holds(&[made.clone(), entry(4, 5, Move::Crashed), lost.clone()]));
        let synced = entry(2, 3, Move::Synced);
        assert!(!holds(&[made, synced, entry(4, 5, Move::Crashed), lost]));
    }

    #[test]
    fn a_call_of_unknown_outcome_happened_once_or_not_at_all() {
        let unknown = Entry { outcome: Outcome::Unknown, ..entry(0, 20, Move::Put(0, 7)) };
        let saw = |at| entry(at, at + 1, Move::Saw(0, 7));
        let missing = |at| entry(at, at + 1, Move::Missing(0));
        assert!(holds(&[unknown.clone(), missing(1), missing(3)]));
        assert!(holds(&[unknown.clone(), missing(1), saw(3)]));
        assert!(!holds(&[unknown.clone(), saw(1), missing(3)]));
        // Not after its end.
        assert!(!holds(&[unknown, missing(21), saw(30)]));
    }
}

//! Counting what users and groups hold while programs go on.
//!
//! The records of the store are read piece by piece, in order of their numbers, while others change. An inode that has
//! uncommitted changes at the beginning, or is changed before its piece is counted, is noted with its newest state; the
//! store is believed for the others, which are the same in it for the whole time. What changes below the place that is
//! reached is added and taken away at once.

use std::collections::{BTreeMap, HashMap};

use forebay_base::Ino;

use super::Subject;
use super::table::{Owners, Quotas};
use crate::record::{InodeRecord, Kind, Usage};

/// What an inode counts for: its owners, and bytes.
pub(crate) type Share = (Owners, u64);

/// What a record counts for.
pub(crate) fn share_of(record: &InodeRecord) -> Share {
    let bytes = if record.kind == Kind::File { record.size } else { 0 };
    ((record.uid, record.gid), bytes)
}

/// A count that is being made.
pub(crate) struct Counting {
    /// Inodes below are counted.
    reached: Ino,
    /// Inodes from there on that have changed; `None` for those that are gone.
    changed: BTreeMap<Ino, Option<Share>>,
    pub(super) sums: HashMap<Subject, Usage>,
}

impl Counting {
    /// Whether a change of an inode counts at once; otherwise it is noted.
    pub fn passes(&mut self, ino: Ino, now: Option<Share>) -> bool {
        if ino < self.reached {
            return true;
        }
        self.changed.insert(ino, now);
        false
    }
}

impl Quotas {
    /// Begins to count; `changed` has the inodes with uncommitted changes.
    pub fn begin_counting(&mut self, changed: BTreeMap<Ino, Option<Share>>) {
        self.counting = Some(Counting { reached: Ino(0), changed, sums: HashMap::new() });
    }

    /// Counts the inodes below `until` whose records the store has, in order; all that remain if that is `None`.
    pub fn count_piece(&mut self, stored: Vec<(Ino, Share)>, until: Option<Ino>) {
        let Some(counting) = &mut self.counting else { return };
        let mut piece: BTreeMap<Ino, Option<Share>> = match until {
            Some(until) => {
                let rest = counting.changed.split_off(&until);
                std::mem::replace(&mut counting.changed, rest)
            }
            None => std::mem::take(&mut counting.changed),
        };
        counting.reached = until.unwrap_or(Ino(u64::MAX));
        for (ino, share) in stored {
            piece.entry(ino).or_insert(Some(share));
        }
        for (owners, bytes) in piece.into_values().flatten() {
            self.add(owners, 1, bytes);
        }
    }

    /// Ends the count: from now on what owners hold is kept up to date.
    pub fn finish_counting(&mut self) {
        self.count_piece(Vec::new(), None);
        if let Some(counting) = self.counting.take() {
            self.held_changed.extend(counting.sums.keys().copied());
            self.held = Some(counting.sums);
        }
    }

    /// Gives a count up.
    pub fn give_up_counting(&mut self) {
        self.counting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNERS: Owners = (1, 2);

    type Inodes = BTreeMap<Ino, u64>;

    /// One change: of an inode, to a size, or away.
    fn change(quotas: &mut Quotas, truth: &mut Inodes, ino: Ino, now: Option<u64>) {
        let before = truth.get(&ino).copied();
        match now {
            Some(bytes) => truth.insert(ino, bytes),
            None => truth.remove(&ino),
        };
        quotas.count(ino, OWNERS, before, now);
    }

    proptest::proptest! {
        /// Whatever changes and is committed while a count is made, it comes to what there is at its end.
        #[test]
        fn a_count_among_changes_is_right(
            stored in proptest::collection::btree_map(1_u64..40, 0_u64..9, 0..20),
            uncommitted in proptest::collection::vec((1_u64..40, proptest::option::of(0_u64..9)), 0..10),
            changes in proptest::collection::vec(
                (1_u64..40, proptest::option::of(0_u64..9), 0_u8..4), 1..60),
        ) {
            let mut store: Inodes = stored.into_iter().map(|(ino, size)| (Ino(ino), size)).collect();
            let mut quotas = Quotas::default();
            let mut truth = store.clone();
            let mut pending = BTreeMap::new();
            for (ino, now) in uncommitted {
                let ino = Ino(ino);
                match now { Some(size) => truth.insert(ino, size), None => truth.remove(&ino) };
                pending.insert(ino, now.map(|bytes| (OWNERS, bytes)));
            }
            quotas.begin_counting(pending);
            let mut reached = 0;
            for (ino, now, step) in changes {
                match step {
                    // A commit.
                    0 => store.clone_from(&truth),
                    // A piece is read, and others change before it is counted.
                    1 => {
                        let until = reached + 7;
                        let rows = store.range(Ino(reached)..Ino(until));
                        let rows = rows.map(|(ino, size)| (*ino, (OWNERS, *size))).collect();
                        change(&mut quotas, &mut truth, Ino(ino), now);
                        quotas.count_piece(rows, Some(Ino(until)));
                        reached = until;
                    }
                    _ => change(&mut quotas, &mut truth, Ino(ino), now),
                }
            }
            let rest = store.range(Ino(reached)..).map(|(ino, size)| (*ino, (OWNERS, *size)));
            let rest = rest.collect();
            quotas.count_piece(rest, Some(Ino(1000)));
            quotas.finish_counting();
            let bytes = truth.values().sum();
            let right = Usage { inodes: truth.len() as u64, bytes };
            for subject in [Subject::User(1), Subject::Group(2)] {
                assert_eq!(quotas.held(subject, Usage::default()), right);
            }
        }
    }
}

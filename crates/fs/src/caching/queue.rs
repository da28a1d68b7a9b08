//! The changes of a single-writer cache that are not at its home yet (docs/adr/0105): which there are, in which order, and what a new
//! one makes needless. Pure: the caller puts every [`Edit`] into the write set, in the batch of the change itself.
//!
//! Names change at home in the order in which they changed here. A change is *taken* while it is carried out: from then on it swallows
//! no later one, and is not cancelled.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_base::{Ino, Timestamp};
use serde::{Deserialize, Serialize};

use crate::record::{Kind, Record};

/// One change that is to be carried out at home. An inode's bytes and attributes are those that it has when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Make the inode, with its bytes and attributes, under a name.
    Make {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: Vec<u8>,
        /// What it is.
        kind: Kind,
    },
    /// Write a file whole.
    Bytes(Ino),
    /// Set mode, owners and, of a file, the time of the last change.
    Attributes(Ino),
    /// Move the inode to another name.
    Rename {
        /// The inode.
        ino: Ino,
        /// The new directory.
        parent: Ino,
        /// The new name in it.
        name: Vec<u8>,
        /// What had that name, and loses it.
        replaced: Option<Ino>,
        /// The name that it had here.
        from: (Ino, Vec<u8>),
        /// It is a directory.
        is_directory: bool,
    },
    /// Remove the inode's name.
    Remove {
        /// The inode.
        ino: Ino,
        /// The name that it had here.
        from: (Ino, Vec<u8>),
    },
}

impl Change {
    /// The inode that it is about.
    pub fn ino(&self) -> Ino {
        match self {
            Change::Make { ino, .. }
            | Change::Rename { ino, .. }
            | Change::Remove { ino, .. }
            | Change::Bytes(ino)
            | Change::Attributes(ino) => *ino,
        }
    }

    /// The directory that it needs at home.
    fn parent(&self) -> Option<Ino> {
        match self {
            Change::Make { parent, .. } | Change::Rename { parent, .. } => Some(*parent),
            Change::Bytes(_) | Change::Attributes(_) | Change::Remove { .. } => None,
        }
    }

    /// The name that something has after it.
    fn target(&self) -> Option<(Ino, &[u8])> {
        match self {
            Change::Make { parent, name, .. } | Change::Rename { parent, name, .. } => {
                Some((*parent, name))
            }
            Change::Bytes(_) | Change::Attributes(_) | Change::Remove { .. } => None,
        }
    }

    fn moves_directory(&self) -> bool {
        matches!(self, Change::Rename { is_directory: true, .. })
    }
}

/// Changes that are carried out together: their steps at home may all be done, and none of them noted, when a crash comes. So nothing
/// in a round may depend on a name that it gives twice, or takes away: repeated from its beginning it would take one thing for another.
#[derive(Default)]
struct Round {
    /// Names that something got or lost.
    names: HashSet<(Ino, Vec<u8>)>,
    /// Inodes that were moved, removed or written.
    settled: HashSet<Ino>,
    /// Inodes whose bytes lie at home without a name, under one of their own, until their turn.
    staged: HashSet<Ino>,
    moves_directory: bool,
}

impl Round {
    /// Whether a change may be in it, which is noted then.
    fn takes(&mut self, change: &Change, is_first: bool) -> bool {
        if self.moves_directory || (change.moves_directory() && !is_first) {
            return false;
        }
        let ino = change.ino();
        let stages = matches!(change, Change::Make { .. } | Change::Bytes(_));
        if stages && !self.staged.insert(ino) {
            return false;
        }
        let (target, from) = match change {
            Change::Make { .. } => (change.target(), None),
            Change::Rename { from, .. } => (change.target(), Some(from)),
            Change::Remove { from, .. } => (None, Some(from)),
            Change::Attributes(_) => return true,
            Change::Bytes(_) => {
                self.settled.insert(ino);
                return true;
            }
        };
        let target = target.map(|(parent, name)| (parent, name.to_vec()));
        let is_used = target.as_ref().is_some_and(|name| self.names.contains(name));
        if is_used || self.settled.contains(&ino) {
            return false;
        }
        if from.is_some() {
            self.settled.insert(ino);
        }
        self.names.extend(target.into_iter().chain(from.cloned()));
        self.moves_directory = change.moves_directory();
        true
    }
}

/// A change as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// What is to be done.
    pub change: Change,
    /// When it was made here.
    pub at: Timestamp,
}

impl Record for QueueRecord {
    const KIND: &str = "change for the home";
    const VERSION: u8 = 1;
}

/// The changes that a round has: the home may have any of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// It has those below this number.
    pub through: u64,
}

impl Record for RoundRecord {
    const KIND: &str = "round of changes for the home";
    const VERSION: u8 = 1;
}

/// Size and time of the last change of a file at home: what tells one content from another.
pub type Print = (u64, Timestamp);

/// Where an inode lies at home, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub parent: Ino,
    /// The name in it.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// It is a directory whose names are known here.
    pub is_listed: bool,
    /// What the file may be there: as it was fetched or written back last, and as it is about to be.
    pub seen: Vec<Print>,
}

/// Attempts of which a place remembers what they were to write.
const SEEN_MAX: usize = 16;

impl Place {
    /// Whether the file that lies there is the one that was fetched or written from here.
    pub fn knows(&self, print: Print) -> bool {
        self.seen.contains(&print)
    }

    /// The file is about to be this, too.
    pub fn expect(&mut self, print: Print) {
        if !self.knows(print) {
            if self.seen.len() >= SEEN_MAX {
                self.seen.remove(1);
            }
            self.seen.push(print);
        }
    }
}

impl Record for Place {
    const KIND: &str = "place at home";
    const VERSION: u8 = 1;
}

/// What somebody else did at home where this cache writes, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictRecord {
    /// Seconds since the epoch when it was found.
    pub at: i64,
    /// Path at home.
    pub path: Vec<u8>,
    /// What was found.
    pub what: String,
    /// Where the version of the home is kept, if there was one.
    pub kept: Option<Vec<u8>>,
}

impl Record for ConflictRecord {
    const KIND: &str = "conflict at home";
    const VERSION: u8 = 1;
}

/// What a change of the queue means for the store: a record, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub number: u64,
    pub record: Option<QueueRecord>,
}

struct Item {
    record: QueueRecord,
    is_taken: bool,
    /// It was taken before, in this life of the process or an earlier one: the home may have it.
    was_tried: bool,
    /// The file had this time of change when it was last written back while programs had it open: nothing is to be done
    /// if it still has.
    unchanged_since: Option<Timestamp>,
}

impl Item {
    fn take(&mut self, number: u64) -> Taken {
        (self.is_taken, self.was_tried) = (true, true);
        Taken { number, change: self.record.change.clone(), unchanged_since: self.unchanged_since }
    }
}

/// A change whose turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub number: u64,
    pub change: Change,
    pub unchanged_since: Option<Timestamp>,
}

/// The changes, by their numbers.
#[derive(Default)]
pub struct Queue {
    items: BTreeMap<u64, Item>,
    of_inode: HashMap<Ino, Vec<u64>>,
    /// How many changes need a directory.
    in_directory: HashMap<Ino, u64>,
    next: u64,
}

impl Queue {
    /// The queue that a store has. `has_place` says of which inodes something is at home, or may be.
    pub fn of(
        records: impl IntoIterator<Item = (u64, QueueRecord)>,
        has_place: impl Fn(Ino) -> bool,
    ) -> Queue {
        let mut queue = Queue::default();
        for (number, record) in records {
            let was_tried = has_place(record.change.ino());
            queue.insert(number, record);
            queue.items.entry(number).and_modify(|item| item.was_tried = was_tried);
        }
        queue
    }

    /// No change from now on gets a number below this one.
    pub fn begin_at(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The number that the next change gets.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Changes with numbers below this one.
    pub fn len_below(&self, number: u64) -> usize {
        self.items.range(..number).count()
    }

    /// When the oldest of the changes was made.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.items.values().next().map(|item| item.record.at)
    }

    /// Whether anything is to be done for an inode.
    pub fn concerns(&self, ino: Ino) -> bool {
        self.of_inode.contains_key(&ino)
    }

    fn insert(&mut self, number: u64, record: QueueRecord) {
        self.of_inode.entry(record.change.ino()).or_default().push(number);
        if let Some(parent) = record.change.parent() {
            *self.in_directory.entry(parent).or_default() += 1;
        }
        let (is_taken, was_tried, unchanged_since) = (false, false, None);
        self.items.insert(number, Item { record, is_taken, was_tried, unchanged_since });
        self.next = self.next.max(number + 1);
    }

    fn take_out(&mut self, number: u64) -> Option<Item> {
        let item = self.items.remove(&number)?;
        let ino = item.record.change.ino();
        if let Some(numbers) = self.of_inode.get_mut(&ino) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_inode.remove(&ino);
            }
        }
        if let Some(parent) = item.record.change.parent()
            && let Some(count) = self.in_directory.get_mut(&parent)
        {
            *count -= 1;
            if *count == 0 {
                self.in_directory.remove(&parent);
            }
        }
        Some(item)
    }

    /// Numbers of the changes of an inode that are not taken.
    fn waiting_of(&self, ino: Ino, matches: impl Fn(&Change) -> bool) -> Vec<u64> {
        let numbers = self.of_inode.get(&ino).map_or(&[][..], Vec::as_slice);
        let waits = |number: &&u64| {
            self.items.get(number).is_some_and(|it| !it.is_taken && matches(&it.record.change))
        };
        numbers.iter().filter(waits).copied().collect()
    }

    /// The change that will write a file's bytes, if one waits.
    pub fn will_write(&self, ino: Ino) -> Option<u64> {
        let writes = |it: &Change| matches!(it, Change::Make { .. } | Change::Bytes(_));
        self.waiting_of(ino, writes).first().copied()
    }

    /// Whether the change of this number makes an inode.
    pub fn makes(&self, number: u64) -> bool {
        self.items.get(&number).is_some_and(|it| matches!(it.record.change, Change::Make { .. }))
    }

    /// Adds a change, unless one that waits does the same; says what of the store changes with it.
    pub fn add(&mut self, change: Change, at: Timestamp) -> Vec<Edit> {
        let mut edits = Vec::new();
        let change = match change {
            Change::Bytes(ino) => {
                if let Some(number) = self.will_write(ino) {
                    if let Some(item) = self.items.get_mut(&number) {
                        item.unchanged_since = None;
                    }
                    return edits;
                }
                change
            }
            Change::Attributes(ino) => {
                let sets =
                    |it: &Change| !matches!(it, Change::Rename { .. } | Change::Remove { .. });
                if !self.waiting_of(ino, sets).is_empty() {
                    return edits;
                }
                change
            }
            Change::Remove { ino, .. } if self.cancel(ino, &mut edits) => return edits,
            Change::Rename { ino, parent, name, replaced: Some(replaced), from, is_directory }
                if self.cancel(replaced, &mut edits) =>
            {
                Change::Rename { ino, parent, name, replaced: None, from, is_directory }
            }
            Change::Make { .. } | Change::Rename { .. } | Change::Remove { .. } => change,
        };
        edits.push(self.append(change, at));
        edits
    }

    fn append(&mut self, change: Change, at: Timestamp) -> Edit {
        let (number, record) = (self.next, QueueRecord { change, at });
        self.insert(number, record.clone());
        Edit { number, record: Some(record) }
    }

    /// An inode loses its name: nothing of it is to be written any more. Whether nothing of it is at home either, so that there is
    /// nothing to remove.
    fn cancel(&mut self, ino: Ino, edits: &mut Vec<Edit>) -> bool {
        let makes = self.waiting_of(ino, |it| matches!(it, Change::Make { .. }));
        let is_untried = |number| self.items.get(number).is_some_and(|it| !it.was_tried);
        let was_never_there =
            makes.first().is_some_and(is_untried) && !self.in_directory.contains_key(&ino);
        let goes = |it: &Change| match it {
            Change::Bytes(_) | Change::Attributes(_) => true,
            Change::Make { .. } | Change::Rename { .. } => was_never_there,
            Change::Remove { .. } => false,
        };
        for number in self.waiting_of(ino, goes) {
            let Some(item) = self.take_out(number) else { continue };
            let record = match item.record.change {
                // What it replaced goes all the same.
                Change::Rename { replaced: Some(ino), parent, name, .. } => {
                    let change = Change::Remove { ino, from: (parent, name) };
                    Some(QueueRecord { change, at: item.record.at })
                }
                _ => None,
            };
            if let Some(record) = &record {
                self.insert(number, record.clone());
            }
            edits.push(Edit { number, record });
        }
        was_never_there
    }

    /// Takes changes in their order, at most `most`, with numbers below `end`, that were made at `through` or before, or have a number
    /// below `hurried`.
    pub fn take(&mut self, most: usize, end: u64, through: Timestamp, hurried: u64) -> Vec<Taken> {
        let (mut taken, mut round) = (Vec::new(), Round::default());
        for (number, item) in &mut self.items {
            let is_due = *number < end && (item.record.at <= through || *number < hurried);
            if taken.len() == most || !is_due || item.is_taken {
                break;
            }
            if !round.takes(&item.record.change, taken.is_empty()) {
                break;
            }
            taken.push(item.take(*number));
        }
        taken
    }

    /// Takes the changes of a round that was interrupted, which are those below a number.
    pub fn take_again(&mut self, through: u64) -> Vec<Taken> {
        self.items.range_mut(..through).map(|(number, item)| item.take(*number)).collect()
    }

    /// A change was not carried out: it waits again.
    pub fn give_back(&mut self, number: u64) {
        if let Some(item) = self.items.get_mut(&number) {
            item.is_taken = false;
        }
    }

    /// A change was carried out.
    pub fn done(&mut self, number: u64) -> Option<Edit> {
        self.take_out(number).map(|_| Edit { number, record: None })
    }

    /// A file was written back, and programs may still write it: that is to be done once more, unless a later change does it.
    /// `since` is its time of change then.
    pub fn again(&mut self, ino: Ino, at: Timestamp, since: Timestamp) -> Option<Edit> {
        if self.will_write(ino).is_some() {
            return None;
        }
        let edit = self.append(Change::Bytes(ino), at);
        if let Some(item) = self.items.get_mut(&edit.number) {
            item.unchanged_since = Some(since);
        }
        Some(edit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: Ino = Ino(1);

    fn make(ino: u64, parent: Ino, name: &str) -> Change {
        Change::Make { ino: Ino(ino), parent, name: name.into(), kind: Kind::File }
    }

    fn rename(ino: u64, name: &str, replaced: Option<u64>) -> Change {
        let (replaced, from) = (replaced.map(Ino), (TOP, format!("of-{ino}").into_bytes()));
        let (ino, name) = (Ino(ino), name.into());
        Change::Rename { ino, parent: TOP, name, replaced, from, is_directory: false }
    }

    fn remove(ino: u64, name: &str) -> Change {
        Change::Remove { ino: Ino(ino), from: (TOP, name.into()) }
    }

    fn queue(changes: impl IntoIterator<Item = Change>) -> Queue {
        let mut queue = Queue::default();
        for change in changes {
            queue.add(change, Timestamp::default());
        }
        queue
    }

    fn left(queue: &Queue) -> Vec<Change> {
        queue.items.values().map(|item| item.record.change.clone()).collect()
    }

    #[test]
    fn a_file_that_is_written_many_times_is_written_back_once() {
        let (bytes, attributes) = (Change::Bytes(Ino(5)), Change::Attributes(Ino(5)));
        let changes = [bytes.clone(), attributes.clone(), bytes.clone(), attributes.clone()];
        assert_eq!(left(&queue(changes.clone())), std::slice::from_ref(&bytes));
        let made = queue([&[make(5, TOP, "a")][..], &changes].concat());
        assert_eq!(left(&made), [make(5, TOP, "a")]);
        let mut taken = queue([bytes.clone()]);
        taken.take(1, 9, Timestamp::default(), 0);
        taken.add(bytes.clone(), Timestamp::default());
        assert_eq!(
            left(&taken),
            [bytes.clone(), bytes],
            "what is being carried out swallows nothing"
        );
    }

    #[test]
    fn what_was_made_and_removed_before_its_turn_leaves_nothing() {
        let changes =
            [make(5, TOP, "a"), Change::Bytes(Ino(5)), rename(5, "b", None), remove(5, "b")];
        assert_eq!(left(&queue(changes)), []);
        // Not once it is being made, even if that failed, nor if another change needs it.
        let mut taken = queue([make(5, TOP, "a")]);
        taken.take(1, 9, Timestamp::default(), 0);
        taken.give_back(0);
        taken.add(remove(5, "a"), Timestamp::default());
        assert_eq!(left(&taken), [make(5, TOP, "a"), remove(5, "a")]);
        let inner = [make(5, TOP, "d"), make(6, Ino(5), "a"), rename(6, "b", None)];
        let all = [&inner[..], &[remove(5, "d")]].concat();
        assert_eq!(left(&queue(all.clone())), all);
    }

    #[test]
    fn what_a_cancelled_change_would_have_replaced_is_removed_in_its_place() {
        let changes = [make(5, TOP, "new"), rename(5, "old", Some(4)), make(6, TOP, "x")];
        let all = [&changes[..], &[remove(5, "old")]].concat();
        assert_eq!(left(&queue(all)), [remove(4, "old"), make(6, TOP, "x")]);
        // Replacing what is not at home replaces nothing there.
        let replaced = queue([make(4, TOP, "old"), make(5, TOP, "new"), rename(5, "old", Some(4))]);
        assert_eq!(left(&replaced), [make(5, TOP, "new"), rename(5, "old", None)]);
    }

    #[test]
    fn the_store_has_what_the_queue_has() {
        let mut queue = Queue::default();
        let mut store = BTreeMap::new();
        let changes = [
            make(5, TOP, "a"),
            rename(5, "b", Some(9)),
            Change::Bytes(Ino(7)),
            rename(7, "c", Some(5)),
            Change::Attributes(Ino(7)),
            remove(7, "c"),
        ];
        for change in changes {
            for edit in queue.add(change, Timestamp::default()) {
                match edit.record {
                    Some(record) => drop(store.insert(edit.number, record)),
                    None => drop(store.remove(&edit.number)),
                }
            }
            let read = Queue::of(store.clone(), |_| false);
            assert_eq!(left(&read), left(&queue));
            assert_eq!((read.len(), read.in_directory), (queue.len(), queue.in_directory.clone()));
        }
    }

    #[test]
    fn changes_are_taken_in_their_order_and_not_before_their_time() {
        let mut queue = Queue::default();
        for second in 1_i64..5 {
            let ino = second.unsigned_abs();
            queue.add(make(ino, TOP, &format!("name-{ino}")), Timestamp::new(second, 0));
        }
        let numbers =
            |taken: Vec<Taken>| -> Vec<u64> { taken.iter().map(|it| it.number).collect() };
        assert_eq!(numbers(queue.take(9, 99, Timestamp::new(2, 0), 0)), [0, 1]);
        assert_eq!(queue.take(9, 99, Timestamp::new(9, 0), 0), [], "one round at a time");
        queue.give_back(0);
        assert_eq!(numbers(queue.take(9, 99, Timestamp::new(0, 0), 1)), [0]);
        queue.done(0);
        queue.done(1);
        assert_eq!((queue.len(), queue.oldest()), (2, Some(Timestamp::new(3, 0))));
    }

    #[test]
    fn a_round_that_was_interrupted_is_taken_again_without_those_that_came_later() {
        let mut queue = queue([make(5, TOP, "a"), Change::Bytes(Ino(6)), make(7, TOP, "b")]);
        let round = queue.take(2, 99, Timestamp::default(), 0);
        round.iter().for_each(|taken| queue.give_back(taken.number));
        let again: Vec<u64> = queue.take_again(2).iter().map(|taken| taken.number).collect();
        assert_eq!(again, [0, 1]);
        // What was removed here meanwhile is not written any more.
        again.into_iter().for_each(|number| queue.give_back(number));
        queue.add(remove(6, "c"), Timestamp::default());
        assert_eq!(queue.take_again(2).len(), 1);
        // After a crash the numbers of a round that is empty by now are not given again.
        let mut empty = Queue::default();
        empty.begin_at(2);
        empty.add(make(5, TOP, "a"), Timestamp::default());
        assert_eq!(empty.take_again(2), []);
    }

    #[test]
    fn what_is_added_while_changes_are_carried_out_has_its_turn_later() {
        let mut queue = queue([Change::Bytes(Ino(5))]);
        let end = queue.next_number();
        let taken = queue.take(9, end, Timestamp::default(), 0);
        assert_eq!(taken.len(), 1);
        queue.done(taken[0].number);
        assert!(queue.again(Ino(5), Timestamp::default(), Timestamp::default()).is_some());
        assert_eq!(queue.take(9, end, Timestamp::default(), 0), []);
        assert_eq!(queue.take(9, end + 1, Timestamp::default(), 0).len(), 1);
    }

    #[test]
    fn a_round_ends_before_a_name_or_an_inode_has_a_second_turn() {
        let rounds = |changes: &[Change]| {
            let mut queue = queue(changes.iter().cloned());
            let mut sizes = Vec::new();
            while queue.len() > 0 {
                let taken = queue.take(9, 99, Timestamp::default(), 0);
                sizes.push(taken.len());
                taken.iter().for_each(|it| drop(queue.done(it.number)));
            }
            sizes
        };
        // The usual way to replace a file: all at once.
        let replacing = |ino: u64, old: u64| {
            let from = format!("of-{ino}");
            [make(ino, TOP, &from), rename(ino, &format!("name-{ino}"), Some(old))]
        };
        assert_eq!(rounds(&[replacing(5, 2), replacing(6, 3)].concat()), [4]);
        assert_eq!(rounds(&[rename(5, "a", None), rename(5, "b", None)]), [1, 1]);
        assert_eq!(rounds(&[Change::Bytes(Ino(5)), rename(5, "a", None)]), [1, 1]);
        // A file is staged under one name.
        let mut taken = queue([make(5, TOP, "a"), Change::Bytes(Ino(6))]);
        taken.take(9, 99, Timestamp::default(), 0).iter().for_each(|it| taken.give_back(it.number));
        for change in [Change::Bytes(Ino(6)), Change::Bytes(Ino(5))] {
            taken.append(change, Timestamp::default());
        }
        assert_eq!(taken.take(9, 99, Timestamp::default(), 0).len(), 2);
        assert_eq!(rounds(&[remove(4, "a"), make(5, TOP, "a")]), [1, 1]);
        assert_eq!(rounds(&[rename(5, "a", None), make(6, TOP, "of-5")]), [1, 1]);
        let moved = Change::Rename {
            ino: Ino(7),
            parent: TOP,
            name: b"d".to_vec(),
            replaced: None,
            from: (TOP, b"c".to_vec()),
            is_directory: true,
        };
        assert_eq!(rounds(&[make(5, TOP, "a"), moved, make(6, TOP, "b")]), [1, 1, 1]);
    }
}

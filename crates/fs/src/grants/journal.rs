//! What this node has done by itself in directories that are delegated to it, until the owner knows.
//!
//! Changes are reported in order, a part at a time. A file that is made and removed in between leaves nothing.

use std::collections::BTreeMap;

use forebay_base::Ino;
use rustc_hash::FxHashMap;

use crate::record::ObjectRef;
use crate::remote::changes::Change;

/// Changes that wait, at most: whoever makes one more reports them first.
pub(crate) const JOURNAL_MAX: usize = 4096;
/// Changes of one report.
pub(crate) const CHANGES_AT_ONCE: usize = 512;

/// A place in the order. It grows for as long as this node lives, whatever journal it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub u64);

/// A file that was made here.
#[derive(Debug)]
struct Made {
    at: ObjectRef,
    created: Place,
    closed: Option<Place>,
    /// It is part of a report.
    is_under_way: bool,
}

/// Changes that the owner does not know of.
#[derive(Debug, Default)]
pub(super) struct Journal {
    next: u64,
    waiting: BTreeMap<Place, Change>,
    /// Files that the owner does not know of.
    made: FxHashMap<Ino, Made>,
    /// Changes of the report that is under way.
    under_way: usize,
}

/// A file that was removed before the owner knew of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverKnown(pub ObjectRef);

impl Journal {
    /// Whether the owner knows everything.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }

    pub fn is_full(&self) -> bool {
        self.waiting.len() + self.under_way >= JOURNAL_MAX
    }

    /// An empty one whose places begin at `first`.
    pub fn from(first: u64) -> Journal {
        Journal { next: first.max(1), ..Journal::default() }
    }

    fn add(&mut self, change: Change) -> Place {
        let place = Place(self.next);
        self.next += 1;
        self.waiting.insert(place, change);
        place
    }

    /// A file was made, with an object on a disk of this node.
    pub fn made(&mut self, ino: Ino, at: ObjectRef, create: Change) {
        let created = self.add(create);
        self.made.insert(ino, Made { at, created, closed: None, is_under_way: false });
    }

    /// The handle with which a file was made is closed. Whether that is reported with the file.
    pub fn closed(&mut self, ino: Ino, close: Change) -> bool {
        if self.made.get(&ino).is_none_or(|made| made.closed.is_some()) {
            return false;
        }
        let place = self.add(close);
        if let Some(made) = self.made.get_mut(&ino) {
            made.closed = Some(place);
        }
        true
    }

    /// A file that nobody has open was removed.
    pub fn removed(&mut self, ino: Ino, unlink: Change) -> Option<NeverKnown> {
        if let Some(made) = self.made.get(&ino).filter(|made| !made.is_under_way) {
            let at = made.at;
            self.waiting.remove(&made.created);
            made.closed.iter().for_each(|place| drop(self.waiting.remove(place)));
            self.made.remove(&ino);
            return Some(NeverKnown(at));
        }
        self.add(unlink);
        None
    }

    /// The next changes to report.
    pub fn take(&mut self) -> Vec<(Place, Change)> {
        let mut taken = Vec::new();
        while taken.len() < CHANGES_AT_ONCE
            && let Some((place, change)) = self.waiting.pop_first()
        {
            if let Some(made) = change.made().and_then(|ino| self.made.get_mut(&ino)) {
                made.is_under_way = true;
            }
            taken.push((place, change));
        }
        self.under_way = taken.len();
        taken
    }

    /// These were reported.
    pub fn reported(&mut self, changes: &[(Place, Change)]) {
        self.under_way = 0;
        for ino in changes.iter().filter_map(|(_, change)| change.made()) {
            self.made.remove(&ino);
        }
    }

    /// These may have been reported or not: they are reported again.
    pub fn put_back(&mut self, changes: Vec<(Place, Change)>) {
        self.under_way = 0;
        self.waiting.extend(changes);
    }

    /// Everything is lost. Returns the directories in which names were changed.
    pub fn lose(&mut self) -> Vec<Ino> {
        let lost = std::mem::take(&mut self.waiting);
        self.made.clear();
        let mut directories: Vec<Ino> = lost.values().filter_map(Change::directory).collect();
        directories.sort_unstable();
        directories.dedup();
        directories
    }
}

//! What this node has done by itself in directories that are delegated to it, until the owner knows.
//!
//! Changes are reported in order, a part at a time. A file that is made and removed in between leaves nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::Ino;
use rustc_hash::FxHashMap;

use crate::object::LiveObject;
use crate::remote::changes::Change;

/// Changes that wait, at most: whoever makes one more reports them first.
pub(crate) const JOURNAL_MAX: usize = 4096;
/// Changes of one report.
pub(crate) const CHANGES_AT_ONCE: usize = 512;

/// A place in the order. It grows for as long as this node lives, whatever journal it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub u64);

/// A file that was made here.
struct Made {
    /// Its object, which may have no name on the disk yet.
    live: Arc<LiveObject>,
    created: Place,
    closed: Option<Place>,
    /// It is part of a report.
    is_under_way: bool,
}

/// Changes that the owner does not know of.
#[derive(Default)]
pub(super) struct Journal {
    next: u64,
    waiting: BTreeMap<Place, Change>,
    /// Files that the owner does not know of.
    made: FxHashMap<Ino, Made>,
    /// Changes of the report that is under way.
    under_way: usize,
}

/// The object of a file that was removed before the owner knew of it.
pub(crate) struct NeverKnown(pub Arc<LiveObject>);

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
    pub fn made(&mut self, ino: Ino, live: &Arc<LiveObject>, create: Change) {
        let (created, live) = (self.add(create), Arc::clone(live));
        self.made.insert(ino, Made { live, created, closed: None, is_under_way: false });
    }

    /// The object of a file that the owner does not know of.
    pub fn object_of(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        self.made.get(&ino).map(|made| Arc::clone(&made.live))
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
        if self.made.get(&ino).is_some_and(|made| !made.is_under_way)
            && let Some(made) = self.made.remove(&ino)
        {
            self.waiting.remove(&made.created);
            made.closed.iter().for_each(|place| drop(self.waiting.remove(place)));
            return Some(NeverKnown(made.live));
        }
        self.add(unlink);
        None
    }

    /// The next changes to report, and files among them that were closed empty, and that nobody has open by what `is_open` says: the
    /// owner does not hear of their objects.
    pub fn take(&mut self, is_open: impl Fn(Ino) -> bool) -> (Vec<(Place, Change)>, Vec<Ino>) {
        let (mut taken, mut emptied) = (Vec::new(), Vec::new());
        while taken.len() < CHANGES_AT_ONCE
            && let Some((place, mut change)) = self.waiting.pop_first()
        {
            if let Some(ino) = change.made()
                && let Some(made) = self.made.get_mut(&ino)
            {
                made.is_under_way = true;
                let closed =
                    made.closed.filter(|closed| self.waiting.get(closed).is_some_and(is_empty));
                if let (Some(closed), Change::Made { opened, .. }) = (closed, &mut change)
                    && !is_open(ino)
                {
                    *opened = None;
                    self.waiting.remove(&closed);
                    emptied.push(ino);
                }
            }
            taken.push((place, change));
        }
        self.under_way = taken.len();
        (taken, emptied)
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

/// Whether a file was closed empty, and nobody can write it.
fn is_empty(change: &Change) -> bool {
    matches!(change, Change::Closed { left: Some(left), .. } if left.attributes.size == 0 && !left.is_open)
}

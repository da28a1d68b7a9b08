//! What this node has done by itself in directories that are delegated to it, until the owner knows.
//!
//! Changes are reported in order, a part at a time. A file that is made and removed in between leaves nothing.

use std::sync::Arc;

use forebay_base::Ino;
use forebay_cluster::grants::reports::{self, Part, Place};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::object::LiveObject;
use crate::remote::changes::{Change, LossOf};

/// Changes that wait, at most: whoever makes one more reports them first.
pub(crate) const JOURNAL_MAX: usize = 4096;
/// Changes of one report.
pub(crate) const CHANGES_AT_ONCE: usize = 512;
/// Bytes of names and targets of symlinks in one report, about: a message has room for several times as many.
const BYTES_AT_ONCE: usize = 256 << 10;

/// A file, directory or symlink that was made here.
struct Made {
    /// The object of a file, which may have no name on the disk yet.
    live: Option<Arc<LiveObject>>,
    /// What was done with it alone.
    places: Vec<Place>,
    closed: Option<Place>,
    /// It was part of a report, which may have been carried out.
    is_sent: bool,
    /// Once it was removed, nothing of it need be reported: it is not part of a report, and no other change depends on it.
    leaves_nothing: bool,
}

/// Changes that the owner does not know of.
#[derive(Default)]
pub(super) struct Journal {
    changes: reports::Journal<Change>,
    /// Inodes that the owner does not know of.
    made: FxHashMap<Ino, Made>,
}

/// Something that was removed before the owner knew of it, with the object of a file.
pub(crate) struct NeverKnown(pub Option<Arc<LiveObject>>);

impl Journal {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether it is known of every change whether the owner knows it.
    pub fn is_settled(&self) -> bool {
        self.changes.is_settled()
    }

    pub fn is_full(&self) -> bool {
        self.changes.len() >= JOURNAL_MAX
    }

    /// An empty one whose places begin at `first`.
    pub fn from(first: u64) -> Journal {
        Journal { changes: reports::Journal::from(first), made: FxHashMap::default() }
    }

    /// Something was made; a file has an object on a disk of this node.
    pub fn made(&mut self, ino: Ino, live: Option<&Arc<LiveObject>>, create: Change) {
        let (places, live) = (vec![self.changes.add(create)], live.cloned());
        let made = Made { live, places, closed: None, is_sent: false, leaves_nothing: true };
        self.made.insert(ino, made);
    }

    /// The object of a file that the owner does not know of.
    pub fn object_of(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        self.made.get(&ino)?.live.clone()
    }

    /// The handle with which a file was made is closed. Whether that is reported with the file.
    pub fn closed(&mut self, ino: Ino, close: Change) -> bool {
        let is_open = |made: &Made| made.live.is_some() && made.closed.is_none();
        if !self.made.get(&ino).is_some_and(is_open) {
            return false;
        }
        let place = self.changes.add(close);
        if let Some(made) = self.made.get_mut(&ino) {
            made.closed = Some(place);
            made.places.push(place);
        }
        true
    }

    /// Attributes were set.
    pub fn set(&mut self, ino: Ino, set: Change) {
        let place = self.changes.add(set);
        if let Some(made) = self.made.get_mut(&ino) {
            made.places.push(place);
        }
    }

    /// A file got another name in a directory, in place of others.
    pub fn renamed(&mut self, directory: Ino, inodes: &[Ino], rename: Change) {
        self.changes.add(rename);
        for ino in inodes.iter().chain([&directory]) {
            if let Some(made) = self.made.get_mut(ino) {
                made.leaves_nothing = false;
            }
        }
    }

    /// A file that nobody has open was removed, or a symlink, or an empty directory.
    pub fn removed(&mut self, ino: Ino, remove: Change) -> Option<NeverKnown> {
        if self.made.get(&ino).is_some_and(|made| made.leaves_nothing)
            && let Some(made) = self.made.remove(&ino)
        {
            made.places.iter().for_each(|place| drop(self.changes.remove(*place)));
            return Some(NeverKnown(made.live));
        }
        self.changes.add(remove);
        None
    }

    /// Inodes with changes that are not part of a report.
    pub fn waiting(&self) -> FxHashSet<Ino> {
        self.changes.waiting().map(Change::inode).collect()
    }

    /// The next changes to report, and files among them that were closed empty, and that nobody has open by what `is_open` says: the
    /// owner does not hear of their objects.
    pub fn take(&mut self, is_open: impl Fn(Ino) -> bool) -> (Part<Change>, Vec<Ino>) {
        let (mut taken, mut emptied, mut bytes) = (Vec::new(), Vec::new(), 0);
        while taken.len() < CHANGES_AT_ONCE
            && bytes < BYTES_AT_ONCE
            && let Some((place, mut change)) = self.changes.pop()
        {
            if let Some(ino) = change.made()
                && let Some(made) = self.made.get_mut(&ino)
            {
                made.leaves_nothing = false;
                let is_new = !std::mem::replace(&mut made.is_sent, true);
                let closed = made.closed.filter(|_| is_new);
                let closed =
                    closed.filter(|closed| self.changes.get(*closed).is_some_and(is_empty));
                if let (Some(closed), Change::Made { opened, .. }) = (closed, &mut change)
                    && !is_open(ino)
                {
                    *opened = None;
                    self.changes.remove(closed);
                    emptied.push(ino);
                }
            }
            bytes += change.bytes();
            taken.push((place, change));
        }
        (self.changes.report(taken), emptied)
    }

    /// These were reported.
    pub fn reported(&mut self, part: &Part<Change>) {
        self.changes.reported(part);
        for ino in part.changes.iter().filter_map(|(_, change)| change.made()) {
            self.made.remove(&ino);
        }
    }

    /// These may have been reported or not: they are reported again, unless everything was lost meanwhile. Returns what is lost.
    pub fn put_back(&mut self, part: Part<Change>) -> Vec<LossOf> {
        losses_of(&self.changes.put_back(part))
    }

    /// Everything is lost. Returns what of.
    pub fn lose(&mut self) -> Vec<LossOf> {
        self.made.clear();
        losses_of(&self.changes.lose())
    }
}

fn losses_of(changes: &[Change]) -> Vec<LossOf> {
    let mut losses: Vec<LossOf> = changes.iter().filter_map(Change::loss).collect();
    losses.sort_unstable();
    losses.dedup();
    losses
}

/// Whether a file was closed empty, and nobody can write it.
fn is_empty(change: &Change) -> bool {
    matches!(change, Change::Closed { left: Some(left), .. } if left.attributes.size == 0 && !left.is_open)
}

#[cfg(test)]
mod tests {
    use forebay_base::Timestamp;

    use super::*;
    use crate::ops::Reported;
    use crate::partition::Caller;
    use crate::record::Kind;
    use crate::remote::changes::Change;
    use crate::remote::wire::{NewInode, encode};

    #[test]
    fn a_report_of_long_symlinks_fits_into_a_message() {
        let mut journal = Journal::from(1);
        for ino in 1..=u64::try_from(CHANGES_AT_ONCE).unwrap() {
            let (kind, target) = (Kind::Symlink, vec![b't'; 4095]);
            let new = NewInode { kind, mode: 0o777, umask: 0, rdev: 0, target };
            let reported = Reported { ino: Ino(ino), time: Timestamp::default() };
            let (parent, name, caller) = (Ino::ROOT, vec![b'n'; 255], Caller::default());
            let made = Change::Made { parent, name, new, caller, reported, opened: None };
            journal.made(Ino(ino), None, made);
        }
        let mut reports = 0;
        while !journal.is_empty() {
            let (part, _) = journal.take(|_| false);
            let bytes = encode(&part.changes.iter().map(|(_, it)| it).collect::<Vec<_>>()).len();
            assert!(bytes < 512 << 10, "{bytes} bytes");
            journal.reported(&part);
            reports += 1;
        }
        assert!(reports > 1);
    }
}

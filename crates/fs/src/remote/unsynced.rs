//! Directories in which programs of this node have changed names that a crash of the owner may take back, and what they have set
//! attributes of.
//!
//! Nothing is open where a program syncs a directory: the kernel opens directories without a request (docs/adr/0030). So
//! it cannot be told by a stale handle that its changes are lost. Instead the node remembers in which directories its
//! programs have changed names since the last sync that covered them, and the first sync of such a directory after a crash
//! fails. What a commit at an interval has covered is not known here, so that it may fail although nothing is lost. The same with
//! attributes: they are set by path, and a program may open the file and sync it after the crash.

use forebay_base::Ino;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// Inodes that are remembered one by one; with more, each one counts as changed.
const INODES_MAX: usize = 16_384;

#[derive(Default)]
struct Changed {
    /// Counts changes.
    last: u64,
    /// The number of the latest change of each inode.
    changed: FxHashMap<Ino, u64>,
    /// That of the latest change of one that found no room.
    others: u64,
    /// Changes of them were lost, and nobody was told.
    lost: FxHashSet<Ino>,
    /// Changes of any inode but these may be lost.
    all_but: Option<FxHashSet<Ino>>,
    /// Something was lost, and nobody was told who synced all.
    is_any_lost: bool,
}

/// What was changed in one fileset.
#[derive(Default)]
pub(crate) struct Unsynced {
    /// Names, by their directory.
    names: Mutex<Changed>,
    attributes: Mutex<Changed>,
}

/// Changes up to here.
#[derive(Clone, Copy)]
pub(crate) struct Through {
    names: u64,
    attributes: u64,
}

impl Changed {
    fn note(&mut self, ino: Ino) {
        self.last += 1;
        let number = self.last;
        if self.changed.len() < INODES_MAX || self.changed.contains_key(&ino) {
            self.changed.insert(ino, number);
        } else {
            self.others = number;
        }
    }

    fn synced(&mut self, through: u64) {
        self.changed.retain(|_, number| *number > through);
        if self.others <= through {
            self.others = 0;
        }
    }

    fn lose(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        self.lose_these(changed.into_keys());
        if std::mem::take(&mut self.others) > 0 {
            self.lose_all();
        }
    }

    fn lose_these(&mut self, inodes: impl IntoIterator<Item = Ino>) {
        self.lost.extend(inodes);
        self.is_any_lost |= !self.lost.is_empty();
        if self.lost.len() > INODES_MAX {
            self.lose_all();
        }
    }

    fn lose_all(&mut self) {
        self.lost.clear();
        (self.all_but, self.is_any_lost) = (Some(FxHashSet::default()), true);
    }

    fn tell(&mut self, ino: Ino) -> bool {
        if self.lost.remove(&ino) {
            return true;
        }
        let Some(told) = &mut self.all_but else { return false };
        if told.len() >= INODES_MAX {
            // Rather twice than never.
            told.clear();
        }
        told.insert(ino)
    }
}

impl Unsynced {
    /// A name in `directory` is about to be changed, or was.
    pub fn note(&self, directory: Ino) {
        self.names.lock().note(directory);
    }

    /// Attributes are about to be set, or were.
    pub fn note_set(&self, ino: Ino) {
        self.attributes.lock().note(ino);
    }

    /// The changes that were answered until now: what a sync covers that begins now.
    pub fn answered(&self) -> Through {
        Through { names: self.names.lock().last, attributes: self.attributes.lock().last }
    }

    /// A sync has made them durable.
    pub fn synced(&self, through: Through) {
        self.names.lock().synced(through.names);
        self.attributes.lock().synced(through.attributes);
    }

    /// What was not synced is lost, and so are names in `more`.
    pub fn lose(&self, more: impl IntoIterator<Item = Ino>) {
        self.attributes.lock().lose();
        let mut names = self.names.lock();
        names.lose();
        names.lose_these(more);
    }

    /// Attributes that were set of these are lost.
    pub fn lose_attributes(&self, inodes: impl IntoIterator<Item = Ino>) {
        self.attributes.lock().lose_these(inodes);
    }

    /// Whether names in `directory` or attributes of it may be lost that nobody was told of: this one is.
    pub fn tell(&self, directory: Ino) -> bool {
        let is_told = self.tell_of_attributes(directory);
        self.names.lock().tell(directory) || is_told
    }

    /// Whether attributes of an inode may be lost that nobody was told of: this one is.
    pub fn tell_of_attributes(&self, ino: Ino) -> bool {
        self.attributes.lock().tell(ino)
    }

    /// Whether anything may be lost since this was asked before.
    pub fn tell_of_any(&self) -> bool {
        let take = |changed: &Mutex<Changed>| std::mem::take(&mut changed.lock().is_any_lost);
        let (names, attributes) = (take(&self.names), take(&self.attributes));
        names || attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sync_after_a_loss_fails_in_each_directory_that_was_changed() {
        let unsynced = Unsynced::default();
        let [synced, lost, untouched, fenced] = [Ino(1), Ino(2), Ino(3), Ino(4)];
        unsynced.note(synced);
        let through = unsynced.answered();
        unsynced.note(lost);
        unsynced.synced(through);
        unsynced.lose([fenced]);
        for directory in [lost, fenced] {
            assert!(unsynced.tell(directory));
            assert!(!unsynced.tell(directory), "told once");
        }
        assert!(!unsynced.tell(synced) && !unsynced.tell(untouched));
    }

    #[test]
    fn more_directories_than_are_remembered_count_as_changed() {
        let unsynced = Unsynced::default();
        let count = u64::try_from(INODES_MAX).unwrap() + 1;
        (0..count).for_each(|number| unsynced.note(Ino(number)));
        unsynced.lose([]);
        assert!(unsynced.tell(Ino(count - 1)) && unsynced.tell(Ino(0)));
        assert!(!unsynced.tell(Ino(0)));
    }

    #[test]
    fn attributes_are_told_of_apart_from_names() {
        let unsynced = Unsynced::default();
        let [named, set, reported] = [Ino(1), Ino(2), Ino(3)];
        unsynced.note(named);
        unsynced.note_set(reported);
        let through = unsynced.answered();
        unsynced.synced(through);
        assert!(!unsynced.tell_of_any());
        unsynced.note(named);
        unsynced.lose_attributes([set]);
        assert!(!unsynced.tell(named) && !unsynced.tell_of_attributes(reported));
        assert!(unsynced.tell_of_attributes(set) && !unsynced.tell_of_attributes(set));
        unsynced.note_set(set);
        unsynced.lose([]);
        assert!(!unsynced.tell_of_attributes(named), "a name is none of its attributes");
        assert!(unsynced.tell(named) && unsynced.tell(set));
        assert!(unsynced.tell_of_any() && !unsynced.tell_of_any());
    }
}

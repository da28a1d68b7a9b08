//! Directories in which programs of this node have changed names that a crash of the owner may take back.
//!
//! Nothing is open where a program syncs a directory: the kernel opens directories without a request (docs/adr/0030). So
//! it cannot be told by a stale handle that its changes are lost. Instead the node remembers in which directories its
//! programs have changed names since the last sync that covered them, and the first sync of such a directory after a crash
//! fails. What a commit at an interval has covered is not known here, so that it may fail although nothing is lost.

use forebay_base::Ino;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// Directories that are remembered one by one; with more, each one counts as changed.
const DIRECTORIES_MAX: usize = 16_384;

#[derive(Default)]
struct Directories {
    /// Counts changes.
    last: u64,
    /// The number of the latest change in each directory.
    changed: FxHashMap<Ino, u64>,
    /// That of the latest change in a directory that found no room.
    others: u64,
    /// Changes in them were lost, and nobody was told.
    lost: FxHashSet<Ino>,
    /// Changes in any directory but these may be lost.
    all_but: Option<FxHashSet<Ino>>,
}

/// The directories of one fileset.
#[derive(Default)]
pub(crate) struct Unsynced(Mutex<Directories>);

/// Changes up to here.
#[derive(Clone, Copy)]
pub(crate) struct Through(u64);

impl Unsynced {
    /// A name in `directory` is about to be changed, or was.
    pub fn note(&self, directory: Ino) {
        let mut now = self.0.lock();
        now.last += 1;
        let number = now.last;
        if now.changed.len() < DIRECTORIES_MAX || now.changed.contains_key(&directory) {
            now.changed.insert(directory, number);
        } else {
            now.others = number;
        }
    }

    /// The changes that were answered until now: what a sync covers that begins now.
    pub fn answered(&self) -> Through {
        Through(self.0.lock().last)
    }

    /// A sync has made them durable.
    pub fn synced(&self, through: Through) {
        let mut now = self.0.lock();
        now.changed.retain(|_, number| *number > through.0);
        if now.others <= through.0 {
            now.others = 0;
        }
    }

    /// What was not synced is lost, and so are names in `more`.
    pub fn lose(&self, more: impl IntoIterator<Item = Ino>) {
        let mut now = self.0.lock();
        let changed = std::mem::take(&mut now.changed);
        now.lost.extend(changed.into_keys().chain(more));
        if std::mem::take(&mut now.others) > 0 || now.lost.len() > DIRECTORIES_MAX {
            now.lost.clear();
            now.all_but = Some(FxHashSet::default());
        }
    }

    /// Whether names in `directory` may be lost that nobody was told of: this one is.
    pub fn tell(&self, directory: Ino) -> bool {
        let mut now = self.0.lock();
        if now.lost.remove(&directory) {
            return true;
        }
        let Some(told) = &mut now.all_but else { return false };
        if told.len() >= DIRECTORIES_MAX {
            // Rather twice than never.
            told.clear();
        }
        told.insert(directory)
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
        let count = u64::try_from(DIRECTORIES_MAX).unwrap() + 1;
        (0..count).for_each(|number| unsynced.note(Ino(number)));
        unsynced.lose([]);
        assert!(unsynced.tell(Ino(count - 1)) && unsynced.tell(Ino(0)));
        assert!(!unsynced.tell(Ino(0)));
    }
}

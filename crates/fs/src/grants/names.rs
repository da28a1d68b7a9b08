//! All names of a directory: while a client knows them, it need not ask for one that is not there.
//!
//! They hold as long as the client has the directory granted, because everybody who changes a name of it recalls that. A change
//! of the client's own keeps them: the owner says with its answer whether anybody else was in between.

use forebay_base::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ops::DirectoryItem;

/// Names of one directory at most: larger ones are asked for each name.
pub(crate) const NAMES_MAX: usize = 65_536;
/// Directories of which it is remembered how often a name was missing.
const MISSED_MAX: usize = 1024;
/// Names that were missing, after which a directory is listed; twice as many each time.
const MISSES_MIN: u32 = 3;
const MISSES_MAX: u32 = 1024;

/// A change of a name by a client.
pub(crate) enum NameChange {
    /// It leads there now, and led nowhere before.
    Made(Ino, Vec<u8>, Ino),
    Removed(Ino, Vec<u8>),
    /// Within one directory.
    Moved {
        directory: Ino,
        old: Vec<u8>,
        new: Vec<u8>,
        /// The old name still leads somewhere.
        keeps_old: bool,
    },
}

/// All names of a directory.
#[derive(Debug, Default)]
pub(super) struct AllNames {
    names: FxHashSet<Box<[u8]>>,
    cost: usize,
}

impl AllNames {
    pub fn of(listing: &[DirectoryItem]) -> AllNames {
        let mut all = AllNames::default();
        for item in listing {
            all.insert(&item.name);
        }
        all
    }

    /// Memory that they take, in bytes.
    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.names.contains(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns by how much the cost has grown.
    pub fn insert(&mut self, name: &[u8]) -> usize {
        let cost = if self.names.insert(name.into()) { cost_of(name) } else { 0 };
        self.cost += cost;
        cost
    }

    /// Returns by how much the cost has fallen.
    pub fn remove(&mut self, name: &[u8]) -> usize {
        let cost = if self.names.remove(name) { cost_of(name) } else { 0 };
        self.cost -= cost;
        cost
    }

    /// As they are after a change in this directory; `None` if they are too many to be kept.
    pub fn after(mut self, change: &NameChange, directory: Ino) -> Option<AllNames> {
        match change {
            NameChange::Made(parent, name, _) if *parent == directory => drop(self.insert(name)),
            NameChange::Removed(parent, name) if *parent == directory => drop(self.remove(name)),
            NameChange::Moved { directory: at, old, new, keeps_old } if *at == directory => {
                // Where both lead to one file, nothing was changed. To take one name too many for there does no harm.
                if !keeps_old && !self.contains(new) {
                    self.remove(old);
                }
                self.insert(new);
            }
            NameChange::Made(..) | NameChange::Removed(..) | NameChange::Moved { .. } => {
                return None;
            }
        }
        (self.names.len() <= NAMES_MAX).then_some(self)
    }
}

fn cost_of(name: &[u8]) -> usize {
    size_of::<Box<[u8]>>() * 2 + name.len()
}

/// How often names were missing of which the owner was asked.
#[derive(Default)]
pub(super) struct Misses(FxHashMap<Ino, (u32, u32)>);

impl Misses {
    /// A name of a directory was missing. Whether the directory is to be listed now, to ask no more.
    pub fn note(&mut self, directory: Ino) -> bool {
        if self.0.len() >= MISSED_MAX {
            self.0.clear();
        }
        let (count, most) = self.0.entry(directory).or_insert((0, MISSES_MIN));
        *count += 1;
        if *count < *most {
            return false;
        }
        (*count, *most) = (0, (*most * 2).min(MISSES_MAX));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ino = Ino(5);

    #[test]
    fn all_names_follow_changes_of_their_directory_and_no_others() {
        let made = |name: &[u8]| NameChange::Made(HERE, name.to_vec(), Ino(9));
        let all = AllNames::default().after(&made(b"a"), HERE).unwrap();
        let all = all.after(&made(b"b"), HERE).unwrap();
        assert!(all.contains(b"a") && all.contains(b"b") && all.cost() > 0);
        let moved = |old: &[u8], new: &[u8]| NameChange::Moved {
            directory: HERE,
            old: old.to_vec(),
            new: new.to_vec(),
            keeps_old: false,
        };
        let all = all.after(&moved(b"a", b"c"), HERE).unwrap();
        assert!(!all.contains(b"a") && all.contains(b"c"));
        let all = all.after(&moved(b"c", b"a"), HERE).unwrap();
        let all = all.after(&moved(b"a", b"b"), HERE).unwrap();
        assert!(all.contains(b"a"), "it may be another name of the same file");
        let all = all.after(&NameChange::Removed(HERE, b"a".to_vec()), HERE).unwrap();
        let all = all.after(&NameChange::Removed(HERE, b"b".to_vec()), HERE).unwrap();
        assert_eq!((all.contains(b"a"), all.cost()), (false, 0));
        assert!(all.after(&made(b"c"), Ino(6)).is_none(), "another directory was changed as well");
    }

    #[test]
    fn a_directory_whose_names_do_not_last_is_listed_ever_more_seldom() {
        let mut misses = Misses::default();
        let mut between = Vec::new();
        let mut since = 0;
        while between.len() < 4 {
            since += 1;
            if misses.note(HERE) {
                between.push(std::mem::take(&mut since));
            }
        }
        assert_eq!(between, [3, 6, 12, 24]);
    }
}

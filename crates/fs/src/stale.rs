//! What the kernel may hold although it changed, until the front end tells it.
//!
//! Bound: one entry for each change that did not come through the kernel, that closed a file which was
//! mapped for writing, or that moved a directory; taken after each request. Asking whether there is anything takes no lock.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::Ino;
use parking_lot::Mutex;

/// Something that changed without the kernel's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Attributes of an inode.
    Attributes(Ino),
    /// A name in a directory, and with it the listing of that directory.
    Entry(Ino, Vec<u8>),
    /// The listing of a directory that was moved: its `..` names another inode now.
    Listing(Ino),
    /// Pages of a file, from the first byte to the second: they are right, and nobody will need them soon.
    Pages(Ino, u64, u64),
}

/// All that is stale.
#[derive(Default)]
pub(crate) struct StaleList {
    any: AtomicBool,
    list: Mutex<Vec<Stale>>,
}

impl StaleList {
    /// Adds some.
    pub fn add<const N: usize>(&self, stale: [Stale; N]) {
        let mut list = self.list.lock();
        list.extend(stale);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Takes all.
    pub fn take(&self) -> Vec<Stale> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut list = self.list.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *list)
    }

    /// Takes the inodes whose attributes are stale.
    pub fn take_attributes(&self) -> Vec<Ino> {
        self.take_some(|stale| match stale {
            Stale::Attributes(ino) => Some(*ino),
            Stale::Entry(..) | Stale::Listing(_) | Stale::Pages(..) => None,
        })
    }

    /// Takes the directories that were moved.
    pub fn take_listings(&self) -> Vec<Ino> {
        self.take_some(|stale| match stale {
            Stale::Listing(ino) => Some(*ino),
            Stale::Entry(..) | Stale::Attributes(_) | Stale::Pages(..) => None,
        })
    }

    /// Takes the pages that nobody will need soon.
    pub fn take_pages(&self) -> Vec<(Ino, u64, u64)> {
        self.take_some(|stale| match stale {
            Stale::Pages(ino, from, until) => Some((*ino, *from, *until)),
            Stale::Attributes(_) | Stale::Entry(..) | Stale::Listing(_) => None,
        })
    }

    fn take_some<T>(&self, wanted: impl Fn(&Stale) -> Option<T>) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::new();
        let mut list = self.list.lock();
        list.retain(|stale| match wanted(stale) {
            Some(one) => {
                taken.push(one);
                false
            }
            None => true,
        });
        self.any.store(!list.is_empty(), Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_and_listings_are_taken_apart_from_entries() {
        let list = StaleList::default();
        assert!(list.is_empty() && list.take_attributes().is_empty());
        let entry = Stale::Entry(Ino(1), b"name".to_vec());
        list.add([Stale::Attributes(Ino(1)), entry.clone(), Stale::Attributes(Ino(2))]);
        list.add([Stale::Listing(Ino(4)), Stale::Pages(Ino(5), 6, 7)]);
        assert_eq!(list.take_attributes(), [Ino(1), Ino(2)]);
        assert_eq!(list.take_pages(), [(Ino(5), 6, 7)]);
        assert_eq!(list.take_listings(), [Ino(4)]);
        assert!(!list.is_empty());
        list.add([Stale::Attributes(Ino(3))]);
        assert_eq!(list.take(), [entry, Stale::Attributes(Ino(3))]);
        assert!(list.is_empty());
    }
}

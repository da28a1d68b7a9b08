//! The changed records of one batch.
//!
//! Inodes and directory entries, which every operation changes, are kept as what they mean and encoded
//! when the store takes them, once for all changes between two commits. What is kept is a copy made at
//! the change, under the lock of the write set: later changes of the inode do not reach a batch that is
//! being committed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use forebay_base::Ino;

use crate::directory::Child;
use crate::key;
use crate::record::{InodeRecord, encode};

/// What is known of a key before its first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The store holds nothing under this key.
    Absent,
    /// The store may hold a value.
    MayExist,
}

/// A new value of a key.
#[derive(Clone, Debug)]
pub(crate) struct Change<V> {
    /// `None` for deleted.
    pub value: Option<V>,
    /// The store is known to hold nothing under this key.
    fresh: bool,
}

/// New values of keys of one kind.
pub(crate) struct Table<K, V>(BTreeMap<K, Change<V>>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    /// Sets `key`; `known` counts only for a key that is not in the table yet.
    pub fn put(&mut self, key: K, value: V, known: Known) {
        use std::collections::btree_map::Entry;
        match self.0.entry(key) {
            Entry::Occupied(mut there) => there.get_mut().value = Some(value),
            Entry::Vacant(free) => {
                free.insert(Change { value: Some(value), fresh: known == Known::Absent });
            }
        }
    }

    /// Deletes `key`.
    pub fn delete(&mut self, key: K) {
        match self.0.get_mut(&key) {
            Some(change) if change.fresh => {
                self.0.remove(&key);
            }
            Some(change) => change.value = None,
            None => {
                self.0.insert(key, Change { value: None, fresh: false });
            }
        }
    }

    /// Has the changes of an older table count where this one has none. The store was asked to take them: it
    /// may hold them, whatever it answered.
    fn put_under(&mut self, older: &Table<K, V>) {
        for (key, older) in &older.0 {
            let older = || Change { value: older.value.clone(), fresh: false };
            self.0.entry(key.clone()).or_insert_with(older).fresh = false;
        }
    }
}

/// An entry's place: its directory and its cookie.
type Place = (Ino, u64);

/// A pair of the store; `None` for a key that is deleted.
type Pair = (Vec<u8>, Option<Vec<u8>>);

/// Changed records, by kind of key.
#[derive(Default)]
pub(crate) struct Records {
    /// Boxed: a change of an inode that is in the table moves nothing and takes no memory.
    inodes: Table<Ino, Box<InodeRecord>>,
    /// Those of `inodes` of which nothing has changed but times and allocation.
    times_only: HashSet<Ino>,
    entries: Table<Place, Child>,
    /// Keys of all other kinds.
    values: Table<Vec<u8>, Vec<u8>>,
    /// Bytes that were put into `values`.
    value_bytes: usize,
}

/// Bytes of values that weigh as much as a record of an inode or entry.
const BYTES_OF_A_RECORD: usize = 256;

fn has_a_table(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(key::INODE | key::ENTRY)))
}

impl Records {
    /// Sets an inode's record.
    pub fn put_inode(&mut self, ino: Ino, record: InodeRecord, known: Known) {
        if !self.times_only.is_empty() {
            self.times_only.remove(&ino);
        }
        self.set_inode(ino, record, known);
    }

    /// Sets an inode's record that differs from the one before in nothing but times and allocation.
    pub fn put_times(&mut self, ino: Ino, record: InodeRecord) {
        if !self.inodes.0.contains_key(&ino) {
            self.times_only.insert(ino);
        }
        self.set_inode(ino, record, Known::MayExist);
    }

    fn set_inode(&mut self, ino: Ino, record: InodeRecord, known: Known) {
        match self.inodes.0.get_mut(&ino) {
            Some(Change { value: Some(there), .. }) => **there = record,
            _ => self.inodes.put(ino, Box::new(record), known),
        }
    }

    /// Deletes an inode's record.
    pub fn delete_inode(&mut self, ino: Ino) {
        self.times_only.remove(&ino);
        self.inodes.delete(ino);
    }

    /// Sets a directory entry.
    pub fn put_entry(&mut self, parent: Ino, cookie: u64, child: Child, known: Known) {
        self.entries.put((parent, cookie), child, known);
    }

    /// Deletes a directory entry.
    pub fn delete_entry(&mut self, parent: Ino, cookie: u64) {
        self.entries.delete((parent, cookie));
    }

    /// The directories of changed entries, some of them more than once.
    pub fn changed_directories(&self) -> impl Iterator<Item = Ino> {
        self.entries.0.keys().map(|(parent, _)| *parent)
    }

    /// Sets a key of another kind.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>, known: Known) {
        debug_assert!(!has_a_table(&key), "inodes and entries have tables of their own");
        self.value_bytes += value.len();
        self.values.put(key, value, known);
    }

    /// Deletes a key of another kind.
    pub fn delete(&mut self, key: Vec<u8>) {
        debug_assert!(!has_a_table(&key), "inodes and entries have tables of their own");
        self.values.delete(key);
    }

    /// The new record of an inode; the outer `None` if it is unchanged.
    pub fn inode(&self, ino: Ino) -> Option<Option<&InodeRecord>> {
        self.inodes.0.get(&ino).map(|change| change.value.as_deref())
    }

    /// The inodes with new records.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, Option<&InodeRecord>)> {
        self.inodes.0.iter().map(|(ino, change)| (*ino, change.value.as_deref()))
    }

    /// Whether an inode has a new record that its bytes cannot be found without: with its first name, or
    /// another size.
    pub fn changes_more_than_times(&self, ino: Ino) -> bool {
        self.inodes.0.contains_key(&ino) && !self.times_only.contains(&ino)
    }

    /// The new value of a key of another kind; the outer `None` if it is unchanged.
    pub fn value(&self, key: &[u8]) -> Option<Option<&Vec<u8>>> {
        self.values.0.get(key).map(|change| change.value.as_ref())
    }

    /// Changes of `from <= key < to` in key order, as the store takes them. Not for inodes.
    pub fn range<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Pair> + 'a> {
        if from.first() == Some(&key::ENTRY) {
            let bounds = (lower_bound(from), upper_bound(to));
            return Box::new(self.entries.0.range(bounds).map(entry_pair));
        }
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let pairs = self.values.0.range::<[u8], _>(bounds);
        Box::new(pairs.map(|(key, change)| (key.clone(), change.value.clone())))
    }

    /// All changes as the store takes them.
    pub fn to_store(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let inodes = self
            .inodes
            .0
            .iter()
            .map(|(ino, change)| (key::inode(*ino), change.value.as_deref().map(encode)));
        let values = self.values.0.iter().map(|(key, change)| (key.clone(), change.value.clone()));
        self.entries.0.iter().map(entry_pair).chain(inodes).chain(values).collect()
    }

    /// Has the changes of an older batch count where this one has none.
    pub fn put_under(&mut self, older: &Records) {
        for ino in older.inodes.0.keys() {
            if !older.times_only.contains(ino) {
                self.times_only.remove(ino);
            } else if !self.inodes.0.contains_key(ino) {
                self.times_only.insert(*ino);
            }
        }
        self.inodes.put_under(&older.inodes);
        self.entries.put_under(&older.entries);
        self.values.put_under(&older.values);
        self.value_bytes += older.value_bytes;
    }

    /// Number of changed records; large values count for many.
    pub fn len(&self) -> usize {
        let values = self.values.0.len().max(self.value_bytes / BYTES_OF_A_RECORD);
        self.inodes.0.len() + self.entries.0.len() + values
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.inodes.0.is_empty() && self.entries.0.is_empty() && self.values.0.is_empty()
    }
}

fn entry_pair((&(parent, cookie), change): (&Place, &Change<Child>)) -> Pair {
    (key::entry(parent, cookie), change.value.as_ref().map(|child| encode(&child.record())))
}

/// Bytes of an entry's key.
const ENTRY_BYTES: usize = 17;

/// The place whose key `key` is, or would be if it were filled up with zeros; and whether `key` goes on
/// after it.
fn place_at(key: &[u8]) -> (Place, bool) {
    let mut numbers = [0; ENTRY_BYTES - 1];
    let given = key.get(1..key.len().min(ENTRY_BYTES)).unwrap_or_default();
    numbers[..given.len()].copy_from_slice(given);
    let [parent, cookie] =
        [0, 8].map(|at| u64::from_be_bytes(std::array::from_fn(|index| numbers[at + index])));
    ((Ino(parent), cookie), key.len() > ENTRY_BYTES)
}

fn lower_bound(from: &[u8]) -> Bound<Place> {
    match place_at(from) {
        (place, true) => Bound::Excluded(place),
        (place, false) => Bound::Included(place),
    }
}

fn upper_bound(to: &[u8]) -> Bound<Place> {
    if to.first() != Some(&key::ENTRY) {
        return Bound::Unbounded;
    }
    match place_at(to) {
        (place, true) => Bound::Included(place),
        (place, false) => Bound::Excluded(place),
    }
}

//! Directories in memory, and the cookies that place entries.
//!
//! An entry's cookie is its key within the directory, in memory and in the store, and its offset for
//! readdir: 56 bits of the name's keyed hash, then a 7-bit slot that tells names of the same hash
//! apart. It depends on nothing but the entry, so that offsets stay valid while other entries come and
//! go. Cookies below [`FIRST_COOKIE`] stand for `.` and `..`.

use std::collections::BTreeMap;

use forebay_base::Ino;
use forebay_base::hash::HashKey;
use smallvec::SmallVec;

use crate::error::{FsError, Result};
use crate::readings::{Readings, Ticket};
use crate::record::{EntryRecord, Kind};

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Offset after `.`.
pub(crate) const AFTER_DOT: u64 = 1;
/// Offset after `..`.
pub(crate) const AFTER_DOT_DOT: u64 = 2;
/// Least cookie of an entry.
pub const FIRST_COOKIE: u64 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 7;

/// Memory that one cached entry takes, in bytes: its share of a tree node that is two thirds full.
const ENTRY_COST: usize = (size_of::<Child>() + size_of::<u64>()) * 3 / 2;

/// Memory that so many cached entries take, in bytes, if their names are short.
pub(crate) fn cost_of_entries(entries: u64) -> u64 {
    entries.saturating_mul(ENTRY_COST as u64)
}

/// Memory that a cached entry takes, in bytes.
fn cost_of(child: &Child) -> usize {
    ENTRY_COST + if child.name.spilled() { child.name.len() + 16 } else { 0 }
}

/// An entry as the directory keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub ino: Ino,
    pub kind: Kind,
    pub name: Name,
}

/// A name; a short one takes no memory of its own.
pub(crate) type Name = SmallVec<[u8; 16]>;

impl Child {
    pub fn record(&self) -> EntryRecord {
        EntryRecord { ino: self.ino, kind: self.kind, name: self.name.to_vec() }
    }

    pub fn from_record(record: &EntryRecord) -> Child {
        Child { ino: record.ino, kind: record.kind, name: Name::from_slice(&record.name) }
    }
}

/// A directory: its place in the tree, and cached entries.
pub(crate) struct Directory {
    /// The directory that holds it; itself for the root.
    pub parent: Ino,
    children: BTreeMap<u64, Child>,
    /// Every entry is cached.
    complete: bool,
    /// Names that were read from the store since the cached entries were last forgotten.
    reads: u32,
    cost: usize,
    /// Reads of the store that are under way, if there are any.
    readings: Option<Box<Readings>>,
}

/// The cookies of all entries, both ends included.
pub(crate) const ALL_COOKIES: (u64, u64) = (FIRST_COOKIE, u64::MAX);

impl Directory {
    /// A directory that was just made: it has no entries.
    pub fn empty(parent: Ino) -> Directory {
        Directory { complete: true, ..Directory::stored(parent) }
    }

    /// A directory of which nothing is cached.
    pub fn stored(parent: Ino) -> Directory {
        let children = BTreeMap::new();
        Directory { parent, children, complete: false, reads: 0, cost: 0, readings: None }
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Notes that a name is read from the store; returns how many were, with this one.
    pub fn count_read(&mut self) -> u32 {
        self.reads = self.reads.saturating_add(1);
        self.reads
    }

    pub fn mark_complete(&mut self) {
        self.complete = true;
    }

    /// Memory taken, in bytes.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Forgets all cached entries; the write set and the store have them.
    pub fn forget(&mut self) {
        let readings = self.readings.take();
        *self = Directory { readings, ..Directory::stored(self.parent) };
    }

    /// Sets an entry.
    pub fn insert(&mut self, cookie: u64, child: Child) {
        if let Some(readings) = &mut self.readings {
            readings.note(cookie, Some(&child));
        }
        self.cache(cookie, child);
    }

    /// Removes an entry.
    pub fn remove(&mut self, cookie: u64) {
        if let Some(readings) = &mut self.readings {
            readings.note(cookie, None);
        }
        self.uncache(cookie);
    }

    fn cache(&mut self, cookie: u64, child: Child) {
        self.cost += cost_of(&child);
        if let Some(old) = self.children.insert(cookie, child) {
            self.cost -= cost_of(&old);
        }
    }

    fn uncache(&mut self, cookie: u64) {
        if let Some(old) = self.children.remove(&cookie) {
            self.cost -= cost_of(&old);
        }
    }

    // --- reads of the store, which are done without the directory's lock ---

    /// Announces a read of the entries with these cookies, both included.
    pub fn begin_reading(&mut self, range: (u64, u64)) -> Ticket {
        self.readings.get_or_insert_default().begin(range)
    }

    /// Whether somebody reads all entries.
    pub fn is_being_read(&self) -> bool {
        self.readings.as_ref().is_some_and(|readings| readings.covers(ALL_COOKIES))
    }

    /// Caches what was read, with what changed since the read was announced.
    pub fn adopt(&mut self, ticket: Ticket, rows: &[(u64, Child)]) {
        let changes = self.changes_since(ticket);
        rows.iter().for_each(|(cookie, child)| self.cache(*cookie, child.clone()));
        for (cookie, now) in changes {
            match now {
                Some(child) => self.cache(cookie, child),
                None => self.uncache(cookie),
            }
        }
    }

    /// What changed since a read was announced; `None` for entries that are gone.
    pub fn changes_since(&self, ticket: Ticket) -> BTreeMap<u64, Option<Child>> {
        self.readings.as_ref().map(|readings| readings.changes(ticket)).unwrap_or_default()
    }

    /// From here on only this part of what was read matters.
    pub fn narrow_reading(&mut self, ticket: Ticket, range: (u64, u64)) {
        if let Some(readings) = &mut self.readings {
            readings.narrow(ticket, range);
        }
    }

    /// A read is over.
    pub fn end_reading(&mut self, ticket: Ticket) {
        let Some(readings) = &mut self.readings else { return };
        readings.end(ticket);
        if readings.is_empty() {
            self.readings = None;
        }
    }

    /// The cached entry of `name` in its bucket.
    pub fn find(&self, bucket: Bucket, name: &[u8]) -> Option<(u64, &Child)> {
        self.children
            .range(bucket.first()..=bucket.last())
            .find(|(_, child)| *child.name == *name)
            .map(|(cookie, child)| (*cookie, child))
    }

    /// A free cookie in a bucket of which every entry is cached.
    pub fn free_cookie(&self, bucket: Bucket) -> Result<u64> {
        (bucket.first()..=bucket.last())
            .find(|cookie| !self.children.contains_key(cookie))
            .ok_or(FsError::NoSpace)
    }

    /// Cached entries with cookies above `after`, in order.
    pub fn after(&self, after: u64) -> impl Iterator<Item = (u64, &Child)> {
        let above = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        self.children.range(above).map(|(cookie, child)| (*cookie, child))
    }
}

/// The cookies that names of one hash share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket(u64);

impl Bucket {
    /// The bucket of `name`.
    pub fn of(key: &HashKey, name: &[u8]) -> Bucket {
        let hash = (key.hash(name) >> 8).max(1);
        Bucket(hash << SLOT_BITS)
    }

    pub fn first(self) -> u64 {
        self.0
    }

    pub fn last(self) -> u64 {
        self.0 | ((1 << SLOT_BITS) - 1)
    }

    /// Its cookies, both ends included.
    pub fn range(self) -> (u64, u64) {
        (self.first(), self.last())
    }
}

/// Checks a name for a new entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, 0 | b'/'))
    {
        return Err(FsError::Invalid);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_leave_room_for_dot_entries_and_fit_an_offset() {
        let key = HashKey([7; 16]);
        for number in 0..1000_u32 {
            let bucket = Bucket::of(&key, &number.to_le_bytes());
            assert!(bucket.first() >= FIRST_COOKIE);
            assert!(i64::try_from(bucket.last()).is_ok());
        }
    }

    #[test]
    fn names_of_one_hash_get_slots_of_their_own_until_the_bucket_is_full() {
        let bucket = Bucket(FIRST_COOKIE);
        let mut directory = Directory::empty(Ino::ROOT);
        for number in 0..128_u64 {
            let cookie = directory.free_cookie(bucket).unwrap();
            let name = Name::from_slice(number.to_string().as_bytes());
            directory.insert(cookie, Child { ino: Ino(number), kind: Kind::File, name });
        }
        assert!(directory.free_cookie(bucket).is_err());
        assert_eq!(directory.find(bucket, b"77").unwrap().1.ino, Ino(77));
        directory.remove(bucket.first() + 5);
        assert_eq!(directory.free_cookie(bucket).unwrap(), bucket.first() + 5);
    }

    #[test]
    fn bad_names_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert!(matches!(check_name(name), Err(FsError::Invalid)));
        }
        assert!(matches!(check_name(&[b'x'; 256]), Err(FsError::NameTooLong)));
        assert!(check_name(&[0xff; 255]).is_ok());
    }
}

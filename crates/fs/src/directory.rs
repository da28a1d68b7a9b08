//! Directories in memory, and the cookies that place entries.
//!
//! An entry's cookie is its key within the directory, in memory and in the store, and its offset for
//! readdir: 56 bits of the name's keyed hash, then a 7-bit slot that tells names of the same hash
//! apart. It depends on nothing but the entry, so that offsets stay valid while other entries come and
//! go. Cookies below [`FIRST_COOKIE`] stand for `.` and `..`.

use std::collections::BTreeMap;

use forebay_base::Ino;
use forebay_base::hash::HashKey;

use crate::error::{FsError, Result};
use crate::record::{EntryRecord, Kind};

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Least cookie of an entry.
pub const FIRST_COOKIE: u64 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 7;

/// Memory that one cached entry takes beyond its name, in bytes: its share of a tree node and the
/// allocation of the name.
const CHILD_COST: usize = 80;

/// An entry as the directory keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub ino: Ino,
    pub kind: Kind,
    pub name: Box<[u8]>,
}

impl Child {
    pub fn record(&self) -> EntryRecord {
        EntryRecord { ino: self.ino, kind: self.kind, name: self.name.to_vec() }
    }

    pub fn from_record(record: EntryRecord) -> Child {
        Child { ino: record.ino, kind: record.kind, name: record.name.into_boxed_slice() }
    }
}

/// Cached entries of a directory.
#[derive(Default)]
pub(crate) struct Directory {
    children: BTreeMap<u64, Child>,
    /// Every entry is cached.
    complete: bool,
    cost: usize,
}

impl Directory {
    /// A directory that was just made: it has no entries.
    pub fn empty() -> Directory {
        Directory { complete: true, ..Directory::default() }
    }

    /// A directory of which nothing is cached.
    pub fn stored() -> Directory {
        Directory::default()
    }

    pub fn is_complete(&self) -> bool {
        self.complete
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
        *self = Directory::stored();
    }

    pub fn insert(&mut self, cookie: u64, child: Child) {
        self.cost += CHILD_COST + child.name.len();
        if let Some(old) = self.children.insert(cookie, child) {
            self.cost -= CHILD_COST + old.name.len();
        }
    }

    pub fn remove(&mut self, cookie: u64) {
        if let Some(old) = self.children.remove(&cookie) {
            self.cost -= CHILD_COST + old.name.len();
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
        let mut directory = Directory::empty();
        for number in 0..128_u64 {
            let cookie = directory.free_cookie(bucket).unwrap();
            let name = number.to_string().into_bytes().into_boxed_slice();
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

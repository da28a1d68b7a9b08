//! Keys of the store. All of them, in one table:
//!
//! | Key | Value | Meaning |
//! |---|---|---|
//! | `T` | `u64` big endian | term: the epoch of the owner; every commit requires it |
//! | `S` | [`Superblock`](crate::record::Superblock) | identity, state, allocation limits, disks |
//! | `F` fileset | [`FilesetRecord`](crate::record::FilesetRecord) | a fileset's name and settings |
//! | `U` fileset | [`Usage`](crate::record::Usage) | files and bytes of a fileset |
//! | `O` disk | [`DiskUsage`](crate::record::DiskUsage) | objects that records refer to on a disk |
//! | `I` ino | [`InodeRecord`](crate::record::InodeRecord) | an inode |
//! | `E` parent cookie | [`EntryRecord`](crate::record::EntryRecord) | a directory entry |
//! | `X` ino name | bytes | an extended attribute |
//!
//! Numbers are big endian and of fixed width (disk and fileset: 2 bytes; ino, parent, cookie: 8), so that keys
//! of one directory or inode lie together and in order.

use forebay_base::{DiskId, FilesetId, Ino};

/// Key of the term: the epoch that every commit requires.
pub const TERM: &[u8] = b"T";
/// Key of the superblock.
pub const SUPERBLOCK: &[u8] = b"S";

/// First byte of fileset keys.
pub const FILESET: u8 = b'F';
/// First byte of usage keys.
pub const USAGE: u8 = b'U';
/// First byte of disk usage keys.
pub const DISK_USAGE: u8 = b'O';
/// First byte of inode keys.
pub const INODE: u8 = b'I';
/// First byte of directory entry keys.
pub const ENTRY: u8 = b'E';
/// First byte of extended attribute keys.
pub const XATTR: u8 = b'X';

/// Half-open range of all keys that begin with `prefix`.
#[must_use]
pub fn prefix_range(prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            break;
        }
        end.pop();
    }
    (prefix.to_vec(), end)
}

fn numbered(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + 8 * numbers.len());
    key.push(kind);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

/// Key of a fileset's record.
#[must_use]
pub fn fileset(id: FilesetId) -> Vec<u8> {
    let mut key = vec![FILESET];
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// Key of a fileset's usage.
#[must_use]
pub fn usage(id: FilesetId) -> Vec<u8> {
    let mut key = vec![USAGE];
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// Key of a disk's usage.
#[must_use]
pub fn disk_usage(disk: DiskId) -> Vec<u8> {
    let mut key = vec![DISK_USAGE];
    key.extend_from_slice(&disk.0.to_be_bytes());
    key
}

/// Key of an inode.
#[must_use]
pub fn inode(ino: Ino) -> Vec<u8> {
    numbered(INODE, &[ino.0])
}

/// Key of the entry of `parent` at `cookie`.
#[must_use]
pub fn entry(parent: Ino, cookie: u64) -> Vec<u8> {
    numbered(ENTRY, &[parent.0, cookie])
}

/// Key of an extended attribute.
#[must_use]
pub fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = numbered(XATTR, &[ino.0]);
    key.extend_from_slice(name);
    key
}

/// Range of all extended attributes of an inode.
#[must_use]
pub fn xattrs(ino: Ino) -> (Vec<u8>, Vec<u8>) {
    prefix_range(&numbered(XATTR, &[ino.0]))
}

/// Range of the entries of `parent` with `from <= cookie <= through`.
#[must_use]
pub fn entries(parent: Ino, from: u64, through: u64) -> (Vec<u8>, Vec<u8>) {
    let end = match through.checked_add(1) {
        Some(after) => entry(parent, after),
        None => prefix_range(&numbered(ENTRY, &[parent.0])).1,
    };
    (entry(parent, from), end)
}

fn number_at(key: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?))
}

/// A key taken apart again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// [`TERM`].
    Term,
    /// [`SUPERBLOCK`].
    Superblock,
    /// [`fileset`].
    Fileset(FilesetId),
    /// [`usage`].
    Usage(FilesetId),
    /// [`disk_usage`].
    DiskUsage(DiskId),
    /// [`inode`].
    Inode(Ino),
    /// [`entry`]: parent and cookie.
    Entry(Ino, u64),
    /// [`xattr`]: inode and name.
    Xattr(Ino, Vec<u8>),
}

/// Reads a key; `None` if it is of no known kind.
#[must_use]
pub fn parse(key: &[u8]) -> Option<Key> {
    let fileset_id = || Some(FilesetId(u16::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    match *key.first()? {
        b'T' if key.len() == 1 => Some(Key::Term),
        b'S' if key.len() == 1 => Some(Key::Superblock),
        FILESET => Some(Key::Fileset(fileset_id()?)),
        USAGE => Some(Key::Usage(fileset_id()?)),
        DISK_USAGE => {
            Some(Key::DiskUsage(DiskId(u16::from_be_bytes(key.get(1..)?.try_into().ok()?))))
        }
        INODE if key.len() == 9 => Some(Key::Inode(Ino(number_at(key, 1)?))),
        ENTRY if key.len() == 17 => Some(Key::Entry(Ino(number_at(key, 1)?), number_at(key, 9)?)),
        XATTR if key.len() > 9 => Some(Key::Xattr(Ino(number_at(key, 1)?), key[9..].to_vec())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back() {
        let keys = [
            (TERM.to_vec(), Key::Term),
            (SUPERBLOCK.to_vec(), Key::Superblock),
            (fileset(FilesetId(7)), Key::Fileset(FilesetId(7))),
            (usage(FilesetId(7)), Key::Usage(FilesetId(7))),
            (disk_usage(DiskId(3)), Key::DiskUsage(DiskId(3))),
            (inode(Ino(9)), Key::Inode(Ino(9))),
            (entry(Ino(9), 1 << 62), Key::Entry(Ino(9), 1 << 62)),
            (xattr(Ino(9), b"user.a"), Key::Xattr(Ino(9), b"user.a".to_vec())),
        ];
        for (bytes, key) in keys {
            assert_eq!(parse(&bytes), Some(key));
        }
        for bytes in [&b""[..], b"?", b"I123", b"E12345678", b"X12345678", b"TT"] {
            assert_eq!(parse(bytes), None);
        }
    }

    #[test]
    fn a_prefix_range_ends_after_its_last_key() {
        let (from, to) = prefix_range(&[b'X', 0xff]);
        assert_eq!((from, to), (vec![b'X', 0xff], vec![b'Y']));
        let (from, to) = entries(Ino(3), 0, u64::MAX);
        assert!(from <= entry(Ino(3), 0) && entry(Ino(3), u64::MAX) < to);
        assert!(to <= entry(Ino(4), 0));
    }
}

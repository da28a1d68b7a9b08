//! Keys of a store. Each fileset has a store of its own. All keys, in one table:
//!
//! | Key | Value | Meaning |
//! |---|---|---|
//! | `T` | two `u64` big endian | term: the epoch of the owner, and the number of its latest batch; see [`Term`] |
//! | `S` | [`Superblock`](crate::record::Superblock) | identity, state, allocation limits, disks |
//! | `B` | `u64`s big endian | objects of shared disks that fenced nodes may write: all below the first number, and those that follow |
//! | `F` fileset | [`FilesetRecord`](crate::record::FilesetRecord) | a fileset; in the root fileset's store alone |
//! | `K` number | [`TaskRecord`](crate::tasks::TaskRecord) | a task of the background; in the root fileset's store alone |
//! | `U` | [`Usage`](crate::record::Usage) | files and bytes of the fileset |
//! | `Q` subject | [`QuotaRecord`](crate::quota::QuotaRecord) | a quota, of the fileset or an owner of files |
//! | `H` subject | [`Holding`](crate::quota::Holding) | what an owner holds, while owners are counted |
//! | `O` disk | [`DiskUsage`](crate::record::DiskUsage) | objects that records refer to on a disk |
//! | `I` ino | [`InodeRecord`](crate::record::InodeRecord) | an inode |
//! | `E` parent cookie | [`EntryRecord`](crate::record::EntryRecord) | a directory entry |
//! | `X` ino name | bytes | an extended attribute |
//! | `N` snapshot | [`SnapshotRecord`](crate::snapshot::SnapshotRecord) | a snapshot of the fileset |
//! | `C` object | [`CopiesRecord`](crate::record::CopiesRecord) | copies of an object in other failure groups |
//! | `W` `q` number | `caching::queue::QueueRecord` | a change of a single-writer cache that is not at its home yet |
//! | `W` `p` ino | `caching::queue::Place` | where an inode of such a cache lies at home |
//! | `W` `r` 0 | `caching::queue::RoundRecord` | the changes that were about to be carried out together at that home |
//! | `W` `c` number | `caching::queue::ConflictRecord` | what somebody else did at home where that cache writes |
//! | `R` object snapshot | [`KeptCopy`](crate::snapshot::KeptCopy) | what that snapshot and earlier ones have instead of an object |
//! | `L` object | [`LateObject`](crate::snapshot::LateObject) | an object that a file has only since after a snapshot, although its number is older |
//!
//! Numbers are big endian and of fixed width (disk and fileset: 2 bytes; ino, parent, cookie: 8), so that keys
//! of one directory or inode lie together and in order. A subject is a letter (`f`ileset, `u`ser, `g`roup) and 4 bytes.

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId};

use crate::quota::Subject;

/// Key of the [`Term`], which every commit requires and moves on.
pub const TERM: &[u8] = b"T";
/// Key of the superblock.
pub const SUPERBLOCK: &[u8] = b"S";

/// Key of the record that says which objects of shared disks fenced nodes may write (`partition/fenced.rs`).
pub const FENCED: &[u8] = b"B";

/// First byte of fileset keys.
pub const FILESET: u8 = b'F';
/// First byte of the keys of tasks.
pub const TASK: u8 = b'K';
/// Key of the fileset's usage.
pub const USAGE: &[u8] = b"U";
/// First byte of the keys of quotas.
pub const QUOTA: u8 = b'Q';
/// First byte of the keys of what owners hold.
pub const HOLDING: u8 = b'H';
/// First byte of disk usage keys.
pub const DISK_USAGE: u8 = b'O';
/// First byte of inode keys.
pub const INODE: u8 = b'I';
/// First byte of directory entry keys.
pub const ENTRY: u8 = b'E';
/// First byte of extended attribute keys.
pub const XATTR: u8 = b'X';

/// First byte of the keys of snapshots.
pub const SNAPSHOT: u8 = b'N';
/// First byte of the keys of copies that snapshots have instead of objects.
pub const KEPT: u8 = b'R';
/// First byte of the keys of objects that files took later than their numbers tell.
pub const LATE: u8 = b'L';
/// First byte of the keys of what a single-writer cache writes to its home.
pub const WRITE_BACK: u8 = b'W';
/// First byte of the keys of copies in other failure groups.
pub const COPIES: u8 = b'C';

/// Whose turn it is to commit, and what was committed last. A batch requires the term before it and sets its own: an
/// owner that was replaced changes nothing, and whether a batch is there shows in the term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// The epoch of the owner.
    pub epoch: Epoch,
    /// Number of its latest batch.
    pub batch: u64,
}

impl Term {
    /// The term as the store has it.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        [self.epoch.0.to_be_bytes(), self.batch.to_be_bytes()].concat()
    }

    /// Reads a term; `None` if it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Term> {
        (bytes.len() == 16).then_some(())?;
        Some(Term { epoch: Epoch(number_at(bytes, 0)?), batch: number_at(bytes, 8)? })
    }

    /// The term of the owner's next batch.
    #[must_use]
    pub fn next(self) -> Term {
        Term { batch: self.batch + 1, ..self }
    }
}

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

/// Key of a task.
#[must_use]
pub fn task(number: u64) -> Vec<u8> {
    numbered(TASK, &[number])
}

fn of_subject(kind: u8, subject: Subject) -> Vec<u8> {
    let (letter, number) = subject.parts();
    let mut key = vec![kind, letter];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn subject_at(key: &[u8]) -> Option<Subject> {
    Subject::of_parts(*key.get(1)?, u32::from_be_bytes(key.get(2..)?.try_into().ok()?))
}

/// Key of a quota.
#[must_use]
pub fn quota(subject: Subject) -> Vec<u8> {
    of_subject(QUOTA, subject)
}

/// Key of what an owner of files holds.
#[must_use]
pub fn holding(subject: Subject) -> Vec<u8> {
    of_subject(HOLDING, subject)
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

/// Key of a snapshot.
#[must_use]
pub fn snapshot(number: u64) -> Vec<u8> {
    numbered(SNAPSHOT, &[number])
}

/// Key of what a snapshot and earlier ones have instead of an object.
#[must_use]
pub fn kept(object: ObjectId, snapshot: u64) -> Vec<u8> {
    numbered(KEPT, &[object.0, snapshot])
}

/// Key of an object that a file took after a snapshot, although its number is older.
#[must_use]
pub fn late(object: ObjectId) -> Vec<u8> {
    numbered(LATE, &[object.0])
}

fn of_write_back(letter: u8, number: u64) -> Vec<u8> {
    let mut key = vec![WRITE_BACK, letter];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Key of a change that is not at home yet.
#[must_use]
pub fn queued(number: u64) -> Vec<u8> {
    of_write_back(b'q', number)
}

/// Key of the place of an inode at home.
#[must_use]
pub fn place(ino: Ino) -> Vec<u8> {
    of_write_back(b'p', ino.0)
}

/// Key of the round of changes that is being carried out at home.
#[must_use]
pub fn round() -> Vec<u8> {
    of_write_back(b'r', 0)
}

/// Key of a conflict at home.
#[must_use]
pub fn conflict(number: u64) -> Vec<u8> {
    of_write_back(b'c', number)
}

/// Key of the copies of an object.
#[must_use]
pub fn copies(object: ObjectId) -> Vec<u8> {
    numbered(COPIES, &[object.0])
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
    /// [`task`].
    Task(u64),
    /// [`USAGE`].
    Usage,
    /// [`FENCED`].
    Fenced,
    /// [`quota`].
    Quota(Subject),
    /// [`holding`].
    Holding(Subject),
    /// [`disk_usage`].
    DiskUsage(DiskId),
    /// [`inode`].
    Inode(Ino),
    /// [`entry`]: parent and cookie.
    Entry(Ino, u64),
    /// [`xattr`]: inode and name.
    Xattr(Ino, Vec<u8>),
    /// [`snapshot`].
    Snapshot(u64),
    /// [`kept`]: object and snapshot.
    Kept(ObjectId, u64),
    /// [`late`].
    Late(ObjectId),
    /// [`copies`].
    Copies(ObjectId),
    /// [`queued`].
    Queued(u64),
    /// [`place`].
    Place(Ino),
    /// [`round`].
    Round(u64),
    /// [`conflict`].
    Conflict(u64),
}

/// Reads a key; `None` if it is of no known kind.
#[must_use]
pub fn parse(key: &[u8]) -> Option<Key> {
    let fileset_id = || Some(FilesetId(u16::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    match *key.first()? {
        b'T' if key.len() == 1 => Some(Key::Term),
        b'S' if key.len() == 1 => Some(Key::Superblock),
        b'B' if key.len() == 1 => Some(Key::Fenced),
        b'U' if key.len() == 1 => Some(Key::Usage),
        FILESET => Some(Key::Fileset(fileset_id()?)),
        QUOTA => Some(Key::Quota(subject_at(key)?)),
        HOLDING => Some(Key::Holding(subject_at(key)?)),
        DISK_USAGE => {
            Some(Key::DiskUsage(DiskId(u16::from_be_bytes(key.get(1..)?.try_into().ok()?))))
        }
        TASK if key.len() == 9 => Some(Key::Task(number_at(key, 1)?)),
        INODE if key.len() == 9 => Some(Key::Inode(Ino(number_at(key, 1)?))),
        ENTRY if key.len() == 17 => Some(Key::Entry(Ino(number_at(key, 1)?), number_at(key, 9)?)),
        SNAPSHOT if key.len() == 9 => Some(Key::Snapshot(number_at(key, 1)?)),
        KEPT if key.len() == 17 => {
            Some(Key::Kept(ObjectId(number_at(key, 1)?), number_at(key, 9)?))
        }
        LATE if key.len() == 9 => Some(Key::Late(ObjectId(number_at(key, 1)?))),
        COPIES if key.len() == 9 => Some(Key::Copies(ObjectId(number_at(key, 1)?))),
        WRITE_BACK if key.len() == 10 => {
            let number = number_at(key, 2)?;
            match key[1] {
                b'q' => Some(Key::Queued(number)),
                b'p' => Some(Key::Place(Ino(number))),
                b'r' => Some(Key::Round(number)),
                b'c' => Some(Key::Conflict(number)),
                _ => None,
            }
        }
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
            (FENCED.to_vec(), Key::Fenced),
            (fileset(FilesetId(7)), Key::Fileset(FilesetId(7))),
            (USAGE.to_vec(), Key::Usage),
            (task(4), Key::Task(4)),
            (quota(Subject::Fileset), Key::Quota(Subject::Fileset)),
            (holding(Subject::User(7)), Key::Holding(Subject::User(7))),
            (disk_usage(DiskId(3)), Key::DiskUsage(DiskId(3))),
            (inode(Ino(9)), Key::Inode(Ino(9))),
            (entry(Ino(9), 1 << 62), Key::Entry(Ino(9), 1 << 62)),
            (snapshot(3), Key::Snapshot(3)),
            (kept(ObjectId(7), 3), Key::Kept(ObjectId(7), 3)),
            (late(ObjectId(7)), Key::Late(ObjectId(7))),
            (copies(ObjectId(7)), Key::Copies(ObjectId(7))),
            (queued(7), Key::Queued(7)),
            (place(Ino(9)), Key::Place(Ino(9))),
            (round(), Key::Round(0)),
            (conflict(7), Key::Conflict(7)),
            (xattr(Ino(9), b"user.a"), Key::Xattr(Ino(9), b"user.a".to_vec())),
        ];
        for (bytes, key) in keys {
            assert_eq!(parse(&bytes), Some(key));
        }
        for bytes in [
            &b""[..],
            b"?",
            b"I123",
            b"E12345678",
            b"X12345678",
            b"TT",
            b"UU",
            b"Qf0001",
            b"Hu1",
            b"W12345678",
            b"Wx12345678",
        ] {
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

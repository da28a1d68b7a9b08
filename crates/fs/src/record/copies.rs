//! Copies of files as a store has them.

use std::collections::BTreeMap;

use forebay_base::{DiskId, Epoch, Ino, Timestamp};
use serde::{Deserialize, Serialize};

use super::{ObjectRef, Record, decode_body};
use crate::error::Result;

/// Most failure groups in which a file can lie.
pub const COPIES_MAX: u8 = 3;

/// The copies of an object that a file, or a snapshot, refers to. Nobody writes to a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesRecord {
    /// The file.
    pub ino: Ino,
    /// Size of the object when they were made.
    pub size: u64,
    /// Last change of the object's content then, as its disk says.
    pub modified: Timestamp,
    /// Checksum of its bytes then: see [`Checksum`](crate::checksum::Checksum).
    pub checksum: u64,
    /// Last change of the inode then.
    pub changed: Timestamp,
    /// When they were made, or last found to be what the object is.
    pub made: Timestamp,
    /// Epoch in which this was written: after a crash in it the object may have been written without this being marked.
    pub epoch: Epoch,
    /// Somebody may have written to the object since.
    pub is_behind: bool,
    /// The copies: each in a failure group of its own, and one perhaps in an archive.
    pub copies: Vec<ObjectRef>,
    /// Bytes that the one in an archive takes there.
    pub archived_bytes: u64,
}

/// Files that lie in an archive too, or did until they were written a moment ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Premigrated {
    /// Their number.
    pub files: u64,
    /// Sum of their sizes, in bytes: what evicting them would free on other disks.
    pub bytes: u64,
    /// Bytes that they take in the archive.
    pub stored_bytes: u64,
}

/// What is premigrated, by archive.
pub type PremigratedTo = BTreeMap<DiskId, Premigrated>;

impl Premigrated {
    /// Adds a file, or takes one away.
    pub fn count(&mut self, record: &CopiesRecord, is_added: bool) {
        let one = Premigrated { files: 1, bytes: record.size, stored_bytes: record.archived_bytes };
        // Sparse files can say more than a counter holds: it must come back to what it was.
        let of = if is_added { u64::wrapping_add } else { u64::wrapping_sub };
        *self = self.combined(&one, of);
    }

    fn combined(&self, other: &Premigrated, of: impl Fn(u64, u64) -> u64) -> Premigrated {
        Premigrated {
            files: of(self.files, other.files),
            bytes: of(self.bytes, other.bytes),
            stored_bytes: of(self.stored_bytes, other.stored_bytes),
        }
    }
}

impl std::iter::Sum for Premigrated {
    fn sum<I: Iterator<Item = Premigrated>>(all: I) -> Premigrated {
        all.fold(Premigrated::default(), |sum, one| sum.combined(&one, u64::wrapping_add))
    }
}

impl CopiesRecord {
    /// The copy in an archive, if there is one. `is_archive` knows the disks.
    pub fn archived(&self, is_archive: impl Fn(DiskId) -> bool) -> Option<ObjectRef> {
        self.copies.iter().copied().find(|at| is_archive(at.disk))
    }
}

/// Version 1 knew no copies in archives.
#[derive(Serialize, Deserialize)]
struct CopiesRecord1 {
    ino: Ino,
    size: u64,
    modified: Timestamp,
    checksum: u64,
    changed: Timestamp,
    made: Timestamp,
    epoch: Epoch,
    is_behind: bool,
    copies: Vec<ObjectRef>,
}

impl From<CopiesRecord1> for CopiesRecord {
    fn from(old: CopiesRecord1) -> CopiesRecord {
        CopiesRecord {
            ino: old.ino,
            size: old.size,
            modified: old.modified,
            checksum: old.checksum,
            changed: old.changed,
            made: old.made,
            epoch: old.epoch,
            is_behind: old.is_behind,
            copies: old.copies,
            archived_bytes: 0,
        }
    }
}

impl Record for CopiesRecord {
    const KIND: &str = "copies";
    const VERSION: u8 = 2;

    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<CopiesRecord>> {
        (version == 1).then(|| decode_body::<CopiesRecord1>(what, body).map(CopiesRecord::from))
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::ObjectId;

    use super::*;
    use crate::record::{decode, encode};

    #[test]
    fn copies_of_version_1_are_read() {
        let copies = vec![ObjectRef { disk: DiskId(1), id: ObjectId(7) }];
        let old = CopiesRecord1 {
            ino: Ino(3),
            size: 5,
            modified: Timestamp::new(1, 2),
            checksum: 9,
            changed: Timestamp::new(3, 4),
            made: Timestamp::new(5, 6),
            epoch: Epoch(7),
            is_behind: true,
            copies: copies.clone(),
        };
        let bytes = postcard::to_extend(&old, vec![1]).unwrap();
        let record: CopiesRecord = decode("copies", &bytes).unwrap();
        assert_eq!((record.copies.clone(), record.archived_bytes), (copies, 0));
        assert!(record.is_behind && record.checksum == 9);
        assert_eq!(decode::<CopiesRecord>("copies", &encode(&record)).unwrap(), record);
        assert_eq!(record.archived(|disk| disk == DiskId(2)), None);
        assert_eq!(record.archived(|disk| disk == DiskId(1)).map(|at| at.id), Some(ObjectId(7)));
    }
}

//! Copies of files as a store has them.

use forebay_base::{Epoch, Ino, Timestamp};
use serde::{Deserialize, Serialize};

use super::{ObjectRef, Record};

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
    /// The copies, each in a failure group of its own.
    pub copies: Vec<ObjectRef>,
}

impl Record for CopiesRecord {
    const KIND: &str = "copies";
    const VERSION: u8 = 1;
}

//! Files whose bytes cannot be reached, because their disk does not answer or is not there.

use std::collections::HashSet;

use forebay_base::{DiskId, Ino};

use super::{Partition, Row};
use crate::error::Result;
use crate::key::{self, Key};
use crate::record::{InodeRecord, decode};

/// Inodes that are read together.
const CHUNK: usize = 4096;

impl Partition {
    /// Files with an object on one of these disks, committed or not: at most `most` of them, and how many there are. Reads all
    /// inodes of the fileset.
    ///
    /// # Errors
    /// [`FsError::Io`](crate::FsError::Io), [`FsError::Damaged`](crate::FsError::Damaged).
    pub(crate) fn files_on(
        &self,
        disks: &HashSet<DiskId>,
        most: usize,
    ) -> Result<(Vec<(Ino, DiskId)>, u64)> {
        let (mut from, to) = key::prefix_range(&[key::INODE]);
        let (mut found, mut total) = (Vec::new(), 0);
        loop {
            let (rows, next): (Vec<Row>, _) = self.read_range(&from, &to, CHUNK)?;
            for (key, value) in &rows {
                let Some(Key::Inode(ino)) = key::parse(key) else { continue };
                let record = decode::<InodeRecord>("inode", value)?;
                let object = record.layout.object();
                let Some(at) = object.filter(|at| disks.contains(&at.disk)) else { continue };
                if self.has_copy_elsewhere(at, &record)? {
                    continue;
                }
                total += 1;
                if found.len() < most {
                    found.push((ino, at.disk));
                }
            }
            let Some(next) = next else { return Ok((found, total)) };
            from = next;
        }
    }
}

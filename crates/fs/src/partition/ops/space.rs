//! Space: reserving and freeing ranges, finding holes, copying between files, and what is left.
//!
//! No lock is held while bytes move, as in reading and writing.

use std::sync::Arc;

use forebay_base::Ino;
use forebay_disk::{Allocate, Capacity, DiskError, Seek};

use crate::error::{FsError, Result};
use crate::object::LiveObject;
use crate::ops::read_write::FILE_SIZE_MAX;
use crate::partition::Partition;
use crate::partition::quota::settle;
use crate::stats::Operation;

/// Bytes that a copy between files moves through memory at a time.
const COPY_CHUNK: usize = 1 << 20;

/// Space of the whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statistics {
    /// Sum over all disks.
    pub capacity: Capacity,
    /// Inodes in use.
    pub inodes: u64,
}

impl Partition {
    /// Reserves, punches or zeroes a range of an open file.
    ///
    /// # Errors
    /// [`FsError::Unsupported`], [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn allocate(&self, ino: Ino, what: Allocate, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX);
        end.ok_or(FsError::TooLarge)?;
        self.part_from_snapshots(ino)?;
        let inode = self.inode(ino)?;
        let (live, admitted) = {
            let mut state = inode.lock();
            self.refresh(ino, &mut state)?;
            // Space beyond its end that is reserved is not counted, but must fit.
            let adds = what != Allocate::PunchHole;
            let admitted = if adds { self.admit_growth(&state, offset + length)? } else { None };
            (self.live_object(&mut state)?, admitted)
        };
        let allocate = || {
            self.shared.objects.observe(live.at.disk, live.object.allocate(what, offset, length))
        };
        let done = self.with_space(allocate);
        let mut state = inode.lock();
        self.adopt_size(&live, &mut state)?;
        state.touch(self.now());
        let mut writes = self.writes.lock();
        self.put_inode(&mut writes, ino, &mut state);
        settle(admitted, &mut writes);
        done
    }

    /// The first offset at or after `offset` with data or a hole.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`].
    pub fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.refresh(ino, &mut state)?;
        if offset >= state.size {
            return Err(FsError::NoSuchOffset);
        }
        let live = self.live_object(&mut state)?;
        drop(state);
        self.shared.objects.observe(live.at.disk, live.object.seek(target, offset))
    }

    /// The object of an open file that a copy reads from, and the bytes there are from `offset` on.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Invalid`] for something that is not a file, [`FsError::Io`].
    pub fn source_of_copy(&self, ino: Ino, offset: u64) -> Result<(Arc<LiveObject>, u64)> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.refresh(ino, &mut state)?;
        let left = state.size.saturating_sub(offset);
        Ok((self.live_object(&mut state)?, left))
    }

    /// Copies `length` bytes of an object to an open file, sharing blocks where the disk can. Returns the bytes
    /// copied.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn copy_from(
        &self,
        (old, source_offset): (&LiveObject, u64),
        (target, target_offset): (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        let end = target_offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX);
        end.ok_or(FsError::TooLarge)?;
        self.part_from_snapshots(target)?;
        let to = self.inode(target)?;
        let (new, admitted) = {
            let mut state = to.lock();
            self.refresh(target, &mut state)?;
            let admitted = self.admit_growth(&state, target_offset + length)?;
            (self.live_object(&mut state)?, admitted)
        };
        let copied =
            self.with_space(|| self.copy_bytes(old, source_offset, &new, target_offset, length));
        let mut state = to.lock();
        self.adopt_size(&new, &mut state)?;
        if let Some(file) = state.file_mut() {
            // The kernel drops the pages of the range itself.
            file.pages_valid &= copied.is_ok();
        }
        state.touch(self.now());
        let mut writes = self.writes.lock();
        self.put_inode(&mut writes, target, &mut state);
        settle(admitted, &mut writes);
        drop(writes);
        self.counters.add(Operation::BytesWritten, *copied.as_ref().unwrap_or(&0));
        copied
    }

    fn copy_bytes(
        &self,
        old: &LiveObject,
        source_offset: u64,
        new: &LiveObject,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let shared = if old.at.disk == new.at.disk {
            new.object.copy_from(&*old.object, source_offset, target_offset, length)
        } else {
            Err(DiskError::Unsupported)
        };
        match shared {
            Err(DiskError::Unsupported | DiskError::Invalid) => {
                self.copy_through_memory(old, source_offset, new, target_offset, length)
            }
            other => self.shared.objects.observe(new.at.disk, other),
        }
    }

    fn copy_through_memory(
        &self,
        old: &LiveObject,
        source_offset: u64,
        new: &LiveObject,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let mut buffer = vec![0; COPY_CHUNK.min(usize::try_from(length).unwrap_or(COPY_CHUNK))];
        let mut copied = 0;
        while copied < length {
            let wanted = buffer.len().min(usize::try_from(length - copied).unwrap_or(COPY_CHUNK));
            let read = old.object.read_at(source_offset + copied, &mut buffer[..wanted]);
            let read = self.shared.objects.observe(old.at.disk, read)?;
            if read == 0 {
                break;
            }
            let written = new.object.write_at(target_offset + copied, &buffer[..read]);
            match self.shared.objects.observe(new.at.disk, written) {
                Ok(written) => copied += written as u64,
                // Whoever goes on from there is told why.
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }
}

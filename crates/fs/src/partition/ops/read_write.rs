//! Reading and writing on the served path.
//!
//! No lock of an inode is held while bytes move: a disk that is slow, or makes writers wait, would hold up
//! whoever looks at the file, and with it the directory that it lies in. Who writes has the file open, so that
//! it keeps its object meanwhile, and the kernel lets one at a time write to a file.

use std::sync::Arc;

use forebay_base::Ino;

use crate::attributes::SetId;
use crate::error::{FsError, Result};
use crate::inode::State;
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::partition::quota::settle;
use crate::stale::Stale;
use crate::stats::Operation;

/// Most bytes of a file: what a signed 64-bit offset can say.
pub(crate) const FILE_SIZE_MAX: u64 = i64::MAX as u64;

impl Partition {
    /// Reads up to `buffer.len()` bytes at `offset` of an open file; fewer only at its end.
    ///
    /// # Errors
    /// [`FsError::Io`], also where bytes of the file are lost; [`FsError::Stale`]; [`FsError::Archived`] if they lie in an archive.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.or_with_copy(ino, || self.read_now(ino, offset, buffer))
    }

    fn read_now(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        let (live, whole_through, size) = {
            let mut state = inode.lock();
            if state.file().is_some_and(|file| file.object.is_none()) {
                return Ok(0);
            }
            let live = self.live_object(&mut state)?;
            let is_cut = state.file().is_some_and(|file| file.is_cut);
            (live, if is_cut { state.size } else { 0 }, state.size)
        };
        let read =
            self.shared.objects.observe(live.at.disk, live.object.read_at(offset, buffer))?;
        if read < buffer.len() && offset.saturating_add(read as u64) < whole_through {
            return Err(FsError::Io(format!("inode {ino}: its object has lost bytes; run fsck")));
        }
        let threshold = self.shared.settings.seq_discard_threshold.0;
        if threshold > 0 && size >= threshold {
            self.drop_passed(ino, &live, (offset, read as u64), size);
        }
        self.count_read(read);
        Ok(read)
    }

    /// A program has read so many bytes.
    pub(crate) fn count_read(&self, bytes: usize) {
        self.count(Operation::Read);
        self.counters.add(Operation::BytesRead, bytes as u64);
    }

    /// Drops from memory what a program that reads a large file from one end to the other has passed.
    fn drop_passed(&self, ino: Ino, live: &LiveObject, read: (u64, u64), size: u64) {
        let passed = live.stream.passed(read, size);
        if let Some((from, until)) = passed.below {
            live.object.drop_pages(from, until - from);
        }
        // The kernel keeps no pages of the mount in a cluster.
        if let Some((from, until)) = passed.above.filter(|_| !self.shared.has_other_nodes()) {
            self.shared.stale.add([Stale::Pages(ino, from, until)]);
        }
    }

    /// Writes `data` at the end of an open file, wherever that is by now: in one step with the appends of others.
    ///
    /// # Errors
    /// As [`Partition::write_with`].
    pub fn append(&self, ino: Ino, data: &[u8], set_id: SetId) -> Result<usize> {
        self.put_bytes(ino, None, data, set_id, |live| live.object.append(data))
    }

    /// As [`Partition::append`] for the kernel of this node, which takes `offset` for the end: it is, unless other nodes
    /// write, too.
    ///
    /// # Errors
    /// As [`Partition::append`].
    pub(crate) fn append_for_kernel(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        set_id: SetId,
    ) -> Result<usize> {
        if self.shared.has_other_nodes() {
            self.append(ino, data, set_id)
        } else {
            self.write_with(ino, offset, data, set_id)
        }
    }

    /// Writes `data` at `offset` of an open file. Returns the bytes written: fewer if the rest was refused, and
    /// the next write tells why. With [`SetId::Kill`] by somebody who may not keep set-id bits alive.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::TooLarge`], [`FsError::Io`].
    pub fn write_with(&self, ino: Ino, offset: u64, data: &[u8], set_id: SetId) -> Result<usize> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        end.ok_or(FsError::TooLarge)?;
        self.put_bytes(ino, Some(offset), data, set_id, |live| live.object.write_at(offset, data))
    }

    /// Puts `data` at `offset` of a file, or at its end.
    fn put_bytes(
        &self,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
        set_id: SetId,
        put: impl Fn(&LiveObject) -> forebay_disk::Result<usize>,
    ) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.part_from_snapshots(ino)?;
        let inode = self.inode(ino)?;
        let (live, admitted) = {
            let mut state = inode.lock();
            let end = offset.unwrap_or(state.size).saturating_add(data.len() as u64);
            let live = self.live_object(&mut state)?;
            (live, self.admit_growth(&state, end)?)
        };
        let write = || self.shared.objects.observe(live.at.disk, put(&live));
        let written = self.with_space(write);
        let mut state = inode.lock();
        // Also after an error: a part may have been written, and the object knows.
        let size = state.size;
        self.adopt_size(&live, &mut state)?;
        let more_than_times =
            (set_id == SetId::Kill && state.kill_set_id()) || state.size != size || !state.recorded;
        state.touch(self.now());
        let mut writes = self.writes.lock();
        if more_than_times {
            self.put_inode(&mut writes, ino, &mut state);
        } else {
            self.put_times(&mut writes, ino, &mut state);
        }
        settle(admitted, &mut writes);
        drop(writes);
        self.count(Operation::Write);
        self.counters.add(Operation::BytesWritten, *written.as_ref().unwrap_or(&0) as u64);
        written
    }

    /// The open object of a file.
    pub(crate) fn live_object(&self, state: &mut State) -> Result<Arc<LiveObject>> {
        self.make_live(state.file_mut().ok_or(FsError::Invalid)?)
    }

    /// Takes the object's size as the file's, after a change that went through the daemon. Nothing is to be
    /// taken if the file has got another object meanwhile.
    pub(crate) fn adopt_size(&self, live: &LiveObject, state: &mut State) -> Result<()> {
        if state.file().is_none_or(|file| file.object != Some(live.at)) {
            return Ok(());
        }
        let found = self.shared.objects.observe(live.at.disk, live.object.attributes())?;
        state.size = found.size;
        state.allocated_bytes = found.allocated_bytes;
        if let Some(file) = state.file_mut() {
            file.see(found);
            file.is_cut = false;
        }
        Ok(())
    }
}

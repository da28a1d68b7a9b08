//! Open files of a native fileset: their bytes and their space.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use forebay_base::Ino;
use forebay_disk::{Allocate, Seek, Sync};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{FsError, Result};
use crate::native::attributes::kill_set_id;
use crate::native::system::{open_directory, reopen, said};
use crate::native::tree::NativeTree;
use crate::ops::{Access, Opened};
use crate::partition::Caller;
use crate::record::Kind;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteAt {
    /// At this offset, in bytes.
    Offset(u64),
    /// At the end of the file, wherever other programs have moved it.
    End,
}

impl NativeTree {
    /// Opens a regular file. Every open must be closed once, with the same access.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for other kinds, [`FsError::ExecutableBusy`] for writing a program that runs; what the
    /// disk's file system says.
    pub fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        let (known, inode) = self.reach(ino)?;
        if known.kind != Kind::File {
            return Err(FsError::Invalid);
        }
        let mut opens = known.opens.lock();
        let kernel = self.direct_access().filter(|_| !access.execute);
        let opened = opens.add(&known, &inode, access, kernel)?;
        drop(opens);
        let cut = if access.truncate { self.cut(ino, caller) } else { Ok(()) };
        if let Err(error) = cut {
            self.close_file(ino, access)?;
            return Err(error);
        }
        Ok(opened)
    }

    fn cut(&self, ino: Ino, caller: Caller) -> Result<()> {
        let (known, inode) = self.reach(ino)?;
        let open = known.opens.lock().for_writing();
        let file = match open {
            Ok(open) => open,
            // Opened for reading alone, as open(2) allows.
            Err(_) => Arc::new(reopen(inode.as_fd(), OFlags::WRONLY)?),
        };
        rustix::fs::ftruncate(&*file, 0).map_err(said)?;
        if caller.uid == 0 { Ok(()) } else { kill_set_id(&known, inode.as_fd()) }
    }

    /// Whether anybody has a file open.
    #[must_use]
    pub fn is_open(&self, ino: Ino) -> bool {
        self.known(ino).is_ok_and(|known| known.opens.lock().has_handles())
    }

    /// Closes one handle of a file.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is not known.
    pub fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        let known = self.known(ino)?;
        known.opens.lock().remove(access);
        self.table.lock().drop_if_unused(known.number);
        Ok(())
    }

    /// Reads up to `buffer.len()` bytes at `offset` of an open file; fewer only at its end.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let known = self.known(ino)?;
        let file = {
            let opens = known.opens.lock();
            opens.for_reading().or_else(|_| opens.for_writing())?
        };
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.checked_add(done as u64).ok_or(FsError::Invalid)?;
            match rustix::io::pread(&*file, &mut buffer[done..], at) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                // What was read is an answer; the error comes with the next request.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(said(errno)),
            }
        }
        Ok(done)
    }

    /// Writes `data` at `offset` of an open file. Returns the bytes written: fewer if the rest was refused, and the next
    /// write tells why.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]; what the disk's file system says.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_at(ino, WriteAt::Offset(offset), data)
    }

    /// Writes `data` at the end of an open file, wherever other programs have moved it.
    ///
    /// # Errors
    /// As [`NativeTree::write`].
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<usize> {
        self.write_at(ino, WriteAt::End, data)
    }

    fn write_at(&self, ino: Ino, at: WriteAt, data: &[u8]) -> Result<usize> {
        let known = self.known(ino)?;
        let file = known.opens.lock().for_writing()?;
        let mut done = 0;
        while done < data.len() {
            let (flags, offset) = match at {
                WriteAt::Offset(offset) => {
                    let offset = offset.checked_add(done as u64).ok_or(FsError::TooLarge)?;
                    (ReadWriteFlags::empty(), offset)
                }
                WriteAt::End => (ReadWriteFlags::APPEND, 0),
            };
            let part = [std::io::IoSlice::new(&data[done..])];
            match rustix::io::pwritev2(&*file, &part, offset, flags) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(said(errno)),
            }
        }
        Ok(done)
    }

    /// As [`NativeTree::write`], by somebody who may not keep set-id bits alive.
    ///
    /// # Errors
    /// As [`NativeTree::write`].
    pub fn write_unprivileged(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.write(ino, offset, data)?;
        if written > 0 {
            self.kill_set_id(ino)?;
        }
        Ok(written)
    }

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    /// As [`NativeTree::sync_file`].
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        rustix::fs::fsync(open_directory(self.directory(ino)?.as_fd())?).map_err(said)
    }

    /// Makes an open file durable, as fsync(2) and fdatasync(2) of the disk's file system do.
    ///
    /// # Errors
    /// What the disk's file system says: nothing is promised then.
    pub fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        let file = self.known(ino)?.opens.lock().any().ok_or(FsError::Invalid)?;
        match what {
            Sync::Data => rustix::fs::fdatasync(&*file).map_err(said),
            Sync::All => rustix::fs::fsync(&*file).map_err(said),
        }
    }

    /// Reserves, punches or zeroes a range of an open file.
    ///
    /// # Errors
    /// [`FsError::Unsupported`], [`FsError::NoSpace`]; what the disk's file system says.
    pub fn allocate(&self, ino: Ino, what: Allocate, offset: u64, length: u64) -> Result<()> {
        let file = self.known(ino)?.opens.lock().for_writing()?;
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match what {
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::KeepSize => keep,
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
            Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
        };
        rustix::fs::fallocate(&*file, flags, offset, length).map_err(said)
    }

    /// Finds data or a hole in an open file.
    ///
    /// # Errors
    /// [`FsError::NoSuchOffset`].
    pub fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        let file = self.known(ino)?.opens.lock().any().ok_or(FsError::Invalid)?;
        let from = match target {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        // All else here reads and writes at offsets of its own.
        rustix::fs::seek(&*file, from).map_err(said)
    }

    /// Copies up to `length` bytes from one open file to another of this tree. Returns the bytes copied.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]; what the disk's file system says.
    pub fn copy_range(
        &self,
        (source, mut source_offset): (Ino, u64),
        (target, mut target_offset): (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        let from = self.known(source)?.opens.lock().for_reading()?;
        let to = self.known(target)?.opens.lock().for_writing()?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let copied = rustix::fs::copy_file_range(
            &*from,
            Some(&mut source_offset),
            &*to,
            Some(&mut target_offset),
            length,
        );
        copied.map(|copied| copied as u64).map_err(said)
    }
}

//! An open object in a directory: one file.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use forebay_base::{ObjectId, Timestamp};
use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, Stat};
use rustix::io::{Errno, ReadWriteFlags};

use super::names;
use crate::range::{OFFSET_MAX, end_of};
use crate::{Allocate, DiskError, Object, ObjectAttributes, Result, Seek, Sync};

/// fcntl(2) command that chooses the signal for a broken lease; the same on all architectures, but
/// not exported for all of them by `libc`.
const F_SETSIG: libc::c_int = 10;

/// Fresh objects that have a name in `fresh`, on a file system without nameless files.
pub(super) struct NamedFresh {
    /// The directory `fresh`.
    pub(super) directory: OwnedFd,
    /// Names of those in it that have a number, and are neither published nor gone.
    pub(super) numbered: Mutex<BTreeMap<ObjectId, u64>>,
    /// The next name.
    pub(super) next: AtomicU64,
}

impl NamedFresh {
    /// No fresh object is in `directory`.
    pub(super) fn in_directory(directory: OwnedFd) -> NamedFresh {
        NamedFresh { directory, numbered: Mutex::default(), next: AtomicU64::new(1) }
    }
}

/// A file that holds one object.
pub(super) struct FileObject {
    /// Its number, once it has one.
    pub(super) id: OnceLock<ObjectId>,
    pub(super) file: OwnedFd,
    /// The directory `objects`, if a sync of the file does not cover its name.
    pub(super) names_to_sync: Option<Arc<OwnedFd>>,
    /// Set for an object made by this handle where fresh objects have names.
    pub(super) named_fresh: Option<(Arc<NamedFresh>, u64)>,
}

/// The error for `errno` met while doing `operation` on an object.
pub(super) fn failed(operation: &str, id: ObjectId, errno: Errno) -> DiskError {
    failed_on(operation, &format!("object {id}"), errno)
}

/// As [`failed`], for an object described as `what`.
pub(super) fn failed_on(operation: &str, what: &str, errno: Errno) -> DiskError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => DiskError::Full,
        Errno::FBIG => DiskError::TooLarge,
        Errno::OPNOTSUPP | Errno::NOSYS => DiskError::Unsupported,
        Errno::INVAL => DiskError::Invalid,
        Errno::MFILE | Errno::NFILE => {
            DiskError::TooManyFiles(format!("cannot {operation} {what}"))
        }
        other => DiskError::Io(format!("cannot {operation} {what}: {other}")),
    }
}

/// Repeats `call` while signals interrupt it.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Size and times out of what stat(2) tells.
pub(super) fn attributes_of(stat: &Stat) -> ObjectAttributes {
    ObjectAttributes {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        // Blocks are of 512 bytes, whatever the file system's own are.
        allocated_bytes: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        modified: Timestamp::new(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    }
}

impl FileObject {
    /// What it is called in errors.
    fn shown(&self) -> String {
        self.id.get().map_or_else(|| "a fresh object".to_owned(), |id| format!("object {id}"))
    }

    fn failed(&self, operation: &str, errno: Errno) -> DiskError {
        failed_on(operation, &self.shown(), errno)
    }

    /// Makes the object's name durable where a sync of the file does not.
    fn sync_name(&self, objects: &OwnedFd) -> rustix::io::Result<()> {
        let Some(id) = self.id.get() else { return Ok(()) };
        if rustix::fs::fstat(&self.file)?.st_nlink == 0 {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = names::folder_name(names::folder_of(*id));
        match rustix::fs::openat(objects, folder, flags, Mode::empty()) {
            Ok(folder) => {
                rustix::fs::fsync(folder)?;
                rustix::fs::fsync(objects)
            }
            // Not published yet: only its name in `fresh` counts as a link.
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl Object for FileObject {
    fn number(&self, id: ObjectId) {
        let _ = self.id.set(id);
        if let Some((fresh, name)) = &self.named_fresh {
            fresh.numbered.lock().insert(id, *name);
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.saturating_add(done as u64);
            if at > OFFSET_MAX {
                break;
            }
            let read = retry(|| rustix::io::pread(&self.file, &mut buffer[done..], at))
                .map_err(|errno| self.failed("read", errno))?;
            if read == 0 {
                break;
            }
            done += read;
        }
        Ok(done)
    }

    fn drop_pages(&self, offset: u64, length: u64) {
        if let Some(length) = NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), Advice::DontNeed);
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        end_of(offset, data.len() as u64)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            match retry(|| rustix::io::pwrite(&self.file, &data[done..], at)) {
                Ok(0) => return Err(self.failed("write", Errno::IO)),
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(self.failed("write", errno)),
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        // One call: the file system takes the end under the lock of the file, as for every other append to it.
        let flags = ReadWriteFlags::APPEND;
        match retry(|| rustix::io::pwritev2(&self.file, &[IoSlice::new(data)], 0, flags)) {
            Ok(0) if !data.is_empty() => Err(self.failed("append", Errno::IO)),
            Ok(written) => Ok(written),
            Err(errno) => Err(self.failed("append", errno)),
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        end_of(size, 0)?;
        retry(|| rustix::fs::ftruncate(&self.file, size))
            .map_err(|errno| self.failed("resize", errno))
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        end_of(offset, length)?;
        let flags = match what {
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        retry(|| rustix::fs::fallocate(&self.file, flags, offset, length))
            .map_err(|errno| self.failed("allocate space for", errno))
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        if offset > OFFSET_MAX {
            return Err(DiskError::NoSuchOffset);
        }
        let from = match target {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&self.file, from).map_err(|errno| match errno {
            Errno::NXIO => DiskError::NoSuchOffset,
            other => self.failed("seek in", other),
        })
    }

    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        let Some(from) = source.file() else { return Err(DiskError::Unsupported) };
        end_of(offset, length)?;
        if source_offset > OFFSET_MAX {
            return Ok(0);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let copied = retry(|| {
            let (mut from_offset, mut to_offset) = (source_offset, offset);
            rustix::fs::copy_file_range(
                from,
                Some(&mut from_offset),
                &self.file,
                Some(&mut to_offset),
                length,
            )
        });
        match copied {
            Ok(bytes) => Ok(bytes as u64),
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP) => Err(DiskError::Unsupported),
            Err(errno) => Err(self.failed("copy to", errno)),
        }
    }

    fn share_from(&self, source: &dyn Object) -> Result<()> {
        let from = source.file().ok_or(DiskError::Unsupported)?;
        match retry(|| rustix::fs::ioctl_ficlone(&self.file, from)) {
            Ok(()) => Ok(()),
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => {
                Err(DiskError::Unsupported)
            }
            Err(errno) => Err(self.failed("share the blocks of", errno)),
        }
    }

    fn sync(&self, what: Sync) -> Result<()> {
        let synced = match what {
            Sync::Data => rustix::fs::fdatasync(&self.file),
            Sync::All => rustix::fs::fsync(&self.file),
        };
        synced
            .and_then(|()| match (what, &self.names_to_sync) {
                (Sync::All, Some(objects)) => self.sync_name(objects),
                (Sync::All, None) | (Sync::Data, _) => Ok(()),
            })
            .map_err(|errno| match self.failed("sync", errno) {
                refused @ DiskError::TooManyFiles(_) => refused,
                _ => DiskError::Io(format!("cannot sync {}: {errno}", self.shown())),
            })
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        rustix::fs::fstat(&self.file)
            .map(|stat| attributes_of(&stat))
            .map_err(|errno| self.failed("look at", errno))
    }

    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: rustix::fs::Timespec {
                tv_sec: modified.seconds,
                tv_nsec: modified.nanoseconds.into(),
            },
        };
        rustix::fs::futimens(&self.file, &times)
            .map_err(|errno| self.failed("set the time of", errno))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    /// Asks for a write lease, which the kernel grants only if nobody else has the file open: a
    /// mapping keeps it open too. Another handle of this disk on the same object counts as well.
    fn has_other_writers(&self) -> bool {
        let file = self.file.as_raw_fd();
        // Whoever opens the file while the lease is held makes the kernel send a signal, which by
        // default ends the process; this one is ignored by default.
        // SAFETY: fcntl with an integer argument on a descriptor that lives as long as `self`.
        let set_signal = unsafe { libc::fcntl(file, F_SETSIG, libc::SIGURG) };
        if set_signal != 0 {
            return true;
        }
        // SAFETY: as above.
        let leased = unsafe { libc::fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) } == 0;
        if leased {
            // SAFETY: as above.
            unsafe { libc::fcntl(file, libc::F_SETLEASE, libc::F_UNLCK) };
        }
        !leased
    }
}

impl Drop for FileObject {
    fn drop(&mut self) {
        let Some((fresh, name)) = &self.named_fresh else { return };
        let mut numbered = fresh.numbered.lock();
        // Published by now, unless it had no number yet or is still noted under it.
        let is_fresh = match self.id.get() {
            Some(id) if numbered.get(id) == Some(name) => numbered.remove(id).is_some(),
            Some(_) => false,
            None => true,
        };
        drop(numbered);
        if is_fresh {
            // If this fails, the next opening of the disk cleans up.
            let name = names::fresh_name(*name);
            let _ = rustix::fs::unlinkat(&fresh.directory, name, AtFlags::empty());
        }
    }
}

//! A file whose changes stay in memory until they are let through.
//!
//! Opening a database writes: at least the mark that it is in use. A damaged one must not be written to,
//! and a check must change nothing. So every opening goes through a draft: what the engine writes is kept in
//! memory, in order, and reaches the file only once the database was found whole ([`Draft::publish`]), or
//! never. From then on every call goes straight to the file, at the price of one atomic load.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redb::{BackendError, StorageBackend};

use super::header::{FLAGS, IN_USE};

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn StorageBackend>,
    /// The changes have reached the file, and so do all later ones.
    published: AtomicBool,
    changes: Mutex<Vec<Change>>,
}

/// A handle to a draft; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Draft(Arc<Shared>);

type LockResult<T> = std::result::Result<T, BackendError>;

impl Draft {
    pub fn over(file: Box<dyn StorageBackend>) -> Draft {
        Draft(Arc::new(Shared {
            file,
            published: AtomicBool::new(false),
            changes: Mutex::default(),
        }))
    }

    /// Reads the file as it lies there, whatever was drafted.
    pub fn read_file(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read(offset, out)
    }

    /// Length of the file as it lies there, in bytes.
    pub fn file_len(&self) -> io::Result<u64> {
        self.0.file.len()
    }

    /// Writes all that was drafted to the file, in order. Nobody else may use the draft meanwhile.
    ///
    /// The file is marked as in use before anything else, and stays so: of what the engine writes while it opens a file
    /// that was closed in order, a part looks like damage if a crash leaves only that, unless the mark says that
    /// there was one.
    pub fn publish(&self) -> io::Result<()> {
        let changes = std::mem::take(&mut *self.0.changes.lock());
        if !changes.is_empty() {
            self.mark_in_use()?;
        }
        for change in changes {
            match change {
                Change::Write(offset, mut data) => {
                    let at = usize::try_from(offset).ok().and_then(|at| FLAGS.checked_sub(at));
                    if let Some(flags) = at.and_then(|at| data.get_mut(at)) {
                        *flags |= IN_USE;
                    }
                    self.0.file.write(offset, &data)?;
                }
                Change::Length(length) => self.0.file.set_len(length)?,
                Change::Sync => self.0.file.sync_data()?,
            }
        }
        self.0.published.store(true, Ordering::Release);
        Ok(())
    }

    fn mark_in_use(&self) -> io::Result<()> {
        let mut flags = [0];
        self.0.file.read(FLAGS as u64, &mut flags)?;
        if flags[0] & IN_USE != 0 {
            return Ok(());
        }
        self.0.file.write(FLAGS as u64, &[flags[0] | IN_USE])?;
        self.0.file.sync_data()
    }

    /// The file, once the draft was published.
    fn published(&self) -> Option<&dyn StorageBackend> {
        self.0.published.load(Ordering::Acquire).then_some(&*self.0.file)
    }
}

/// Puts what is drafted over `out`, which was read from the file at `offset`.
fn overlay(changes: &[Change], offset: u64, out: &mut [u8]) {
    let at = |position: u64| usize::try_from(position.saturating_sub(offset)).unwrap_or(usize::MAX);
    let size = out.len();
    for change in changes {
        match change {
            Change::Write(start, data) => {
                let (from, to) = (at(*start).min(size), at(start + data.len() as u64).min(size));
                let skipped = usize::try_from(offset.saturating_sub(*start)).unwrap_or(usize::MAX);
                if from < to {
                    out[from..to].copy_from_slice(&data[skipped..skipped + (to - from)]);
                }
            }
            Change::Length(length) => out[at(*length).min(size)..].fill(0),
            Change::Sync => {}
        }
    }
}

fn drafted_length(changes: &[Change]) -> Option<u64> {
    changes.iter().rev().find_map(|change| match change {
        Change::Length(length) => Some(*length),
        Change::Write(..) | Change::Sync => None,
    })
}

impl StorageBackend for Draft {
    fn len(&self) -> io::Result<u64> {
        match self.published() {
            Some(file) => file.len(),
            None => drafted_length(&self.0.changes.lock()).map_or_else(|| self.0.file.len(), Ok),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(file) = self.published() {
            return file.read(offset, out);
        }
        let changes = self.0.changes.lock();
        let on_file = self.0.file.len()?;
        let length = drafted_length(&changes).unwrap_or(on_file);
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let readable = usize::try_from(on_file.saturating_sub(offset)).unwrap_or(usize::MAX);
        let readable = readable.min(out.len());
        if readable > 0 {
            self.0.file.read(offset, &mut out[..readable])?;
        }
        out[readable..].fill(0);
        overlay(&changes, offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.published() {
            Some(file) => file.set_len(len),
            None => {
                self.0.changes.lock().push(Change::Length(len));
                Ok(())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.published() {
            Some(file) => file.sync_data(),
            None => {
                self.0.changes.lock().push(Change::Sync);
                Ok(())
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.published() {
            Some(file) => file.write(offset, data),
            None => {
                self.0.changes.lock().push(Change::Write(offset, data.to_vec()));
                Ok(())
            }
        }
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<bool> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<bool> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<()> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<()> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<()> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult<bool> {
        self.0.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    #[test]
    fn a_draft_reads_as_if_written_and_leaves_the_file_alone_until_published() {
        let file = InMemoryBackend::new();
        file.set_len(10).unwrap();
        file.write(0, b"0123456789").unwrap();
        let draft = Draft::over(Box::new(file));
        let read = |draft: &Draft, offset, length| {
            let mut out = vec![0xff; length];
            draft.read(offset, &mut out).map(|()| out)
        };
        draft.write(8, b"ab").unwrap();
        draft.set_len(9).unwrap();
        draft.set_len(14).unwrap();
        draft.write(12, b"cd").unwrap();
        draft.sync_data().unwrap();
        let whole = b"01234567a\0\0\0cd";
        assert_eq!(read(&draft, 0, 14).unwrap(), whole);
        for (from, to) in [(3, 9), (8, 10), (9, 14), (13, 14), (5, 5)] {
            assert_eq!(read(&draft, from as u64, to - from).unwrap(), whole[from..to]);
        }
        assert!(read(&draft, 10, 5).is_err(), "beyond the end");
        let mut untouched = [0; 10];
        draft.read_file(0, &mut untouched).unwrap();
        assert_eq!(&untouched, b"0123456789");
        draft.publish().unwrap();
        assert_eq!((draft.file_len().unwrap(), draft.len().unwrap()), (14, 14));
        assert_eq!(read(&draft, 0, 14).unwrap(), whole);
        draft.write(0, b"z").unwrap();
        let mut first = [0];
        draft.read_file(0, &mut first).unwrap();
        assert_eq!(&first, b"z");
    }
}

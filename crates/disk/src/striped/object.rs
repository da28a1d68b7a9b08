//! An open object of a striped disk.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use forebay_base::threads::at_once;
use forebay_base::{ObjectId, Timestamp};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::ahead::{Ahead, advise};
use super::stripes::Stripes;
use super::{Locks, Part};
use crate::range::{self, end_of};
use crate::{Allocate, DiskError, Object, ObjectAttributes, Result, Seek, Sync};

/// An object whose bytes lie on several disks.
pub struct StripedObject {
    pub(super) id: OnceLock<ObjectId>,
    pub(super) parts: Box<[Arc<dyn Object>]>,
    pub(super) stripes: Stripes,
    pub(super) locks: Arc<Locks>,
    /// Parts of a fresh object that have their names already: a publication that was refused continues there.
    pub(super) named: Mutex<usize>,
    pub(super) disks: Arc<[Part]>,
    pub(super) ahead: Ahead,
}

impl StripedObject {
    /// Held by whoever reads or writes; alone by whoever changes the size otherwise than by adding bytes at its end.
    fn lock(&self) -> &RwLock<()> {
        self.locks.of(self.id.get().copied())
    }

    fn each(&self) -> impl Iterator<Item = (usize, &dyn Object)> {
        self.parts.iter().map(|part| &**part).enumerate()
    }

    fn lengths(&self) -> Result<Vec<u64>> {
        self.each().map(|(_, part)| Ok(part.attributes()?.size)).collect()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.stripes.size(&self.lengths()?))
    }

    /// Whether no part is longer than its share: it may be after a crash, or an error.
    fn is_even(&self, lengths: &[u64], size: u64) -> bool {
        lengths.iter().enumerate().all(|(part, length)| *length <= self.stripes.share(part, size))
    }

    /// Cuts what parts have beyond the size, which must not become part of the object, and grows it to `least` bytes. Returns
    /// its size. The caller holds the lock alone.
    fn even_out(&self, least: u64) -> Result<u64> {
        let lengths = self.lengths()?;
        let size = self.stripes.size(&lengths);
        for (place, part) in self.each() {
            let share = self.stripes.share(place, size);
            if lengths[place] > share {
                part.set_size(share)?;
            }
        }
        if least > size {
            for (place, part) in self.each() {
                let share = self.stripes.share(place, least);
                if self.stripes.share(place, size) < share {
                    part.set_size(share)?;
                }
            }
        }
        Ok(size.max(least))
    }

    /// Writes in the order of the object, so that whatever is refused, what was written before it counts.
    fn write_pieces(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        for piece in self.stripes.pieces(offset, data.len()) {
            let bytes = &data[piece.from..piece.from + piece.length];
            match self.parts[piece.part].write_at(piece.at, bytes) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            if done < piece.from + piece.length {
                break;
            }
        }
        Ok(done)
    }

    fn read_ahead(&self, offset: u64, length: u64, size: u64) {
        let Some((from, until)) = self.ahead.range(self.stripes, (offset, length), size) else {
            return;
        };
        for (place, part) in self.each() {
            if let Some(file) = part.file() {
                let share = |offset| self.stripes.share(place, offset);
                advise(file, share(from), share(until));
            }
        }
    }

    /// Has every part do its work, all at the same time where they are files. The first error counts.
    fn at_once(&self, work: impl Fn(&dyn Object) -> Result<()> + std::marker::Sync) -> Result<()> {
        let first = self.parts.first().ok_or(DiskError::Invalid)?;
        if first.file().is_none() {
            return self.each().map(|(_, part)| work(part)).fold(Ok(()), Result::and);
        }
        at_once("stripe", &self.parts, |part| work(&**part))
    }

    /// The first offset at or after `offset`, of all parts, that `find` finds in one.
    fn first(
        &self,
        offset: u64,
        find: impl Fn(&dyn Object, u64) -> Result<Option<u64>>,
    ) -> Result<Option<u64>> {
        let mut first = None;
        for (place, part) in self.each() {
            if let Some(at) = find(part, self.stripes.share(place, offset))? {
                let found = self.stripes.offset(place, at);
                first = Some(first.map_or(found, |first: u64| first.min(found)));
            }
        }
        Ok(first)
    }
}

impl Object for StripedObject {
    fn number(&self, id: ObjectId) {
        let _ = self.id.set(id);
        self.parts.iter().for_each(|part| part.number(id));
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let _shared = self.lock().read();
        let size = self.size()?;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        if length == 0 {
            return Ok(0);
        }
        self.read_ahead(offset, length as u64, size);
        let mut done = 0;
        for piece in self.stripes.pieces(offset, length) {
            let room = &mut buffer[piece.from..piece.from + piece.length];
            done += self.parts[piece.part].read_at(piece.at, room)?;
            if done < piece.from + piece.length {
                break;
            }
        }
        Ok(done)
    }

    fn drop_pages(&self, offset: u64, length: u64) {
        for (place, part) in self.each() {
            let from = self.stripes.share(place, offset);
            let until = self.stripes.share(place, offset.saturating_add(length));
            part.drop_pages(from, until - from);
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        let shared = self.lock().read();
        let lengths = self.lengths()?;
        let size = self.stripes.size(&lengths);
        let _shared = if end <= size || (offset <= size && self.is_even(&lengths, size)) {
            shared
        } else {
            drop(shared);
            let alone = self.lock().write();
            self.even_out(offset)?;
            RwLockWriteGuard::downgrade(alone)
        };
        self.write_pieces(offset, data)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        let _alone = self.lock().write();
        let size = self.even_out(0)?;
        end_of(size, data.len() as u64)?;
        self.write_pieces(size, data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        end_of(size, 0)?;
        let _alone = self.lock().write();
        if self.even_out(size)? > size {
            for (place, part) in self.each() {
                part.set_size(self.stripes.share(place, size))?;
            }
        }
        Ok(())
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        let end = end_of(offset, length)?;
        if length == 0 {
            return Err(DiskError::Invalid);
        }
        // The object grows as a whole.
        let (kept, grows) = match what {
            Allocate::Extend => (Allocate::KeepSize, true),
            Allocate::ZeroRange => (Allocate::ZeroRangeKeepSize, true),
            Allocate::KeepSize | Allocate::PunchHole | Allocate::ZeroRangeKeepSize => (what, false),
        };
        let _alone = self.lock().write();
        self.even_out(0)?;
        for (place, part) in self.each() {
            let from = self.stripes.share(place, offset);
            let bytes = self.stripes.share(place, end) - from;
            if bytes > 0 {
                part.allocate(kept, from, bytes)?;
            }
        }
        if grows {
            self.even_out(end)?;
        }
        Ok(())
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        let _shared = self.lock().read();
        let size = self.size()?;
        if offset >= size {
            return Err(DiskError::NoSuchOffset);
        }
        let found = self.first(offset, |part, at| match (target, part.seek(target, at)) {
            (Seek::Data, Err(DiskError::NoSuchOffset)) => Ok(None),
            // It has nothing there: its end counts as a hole.
            (Seek::Hole, Err(DiskError::NoSuchOffset)) => Ok(Some(at)),
            (_, found) => found.map(Some),
        })?;
        match (target, found) {
            (Seek::Hole, found) => Ok(found.map_or(size, |found| found.min(size))),
            (Seek::Data, found) => {
                found.filter(|found| *found < size).ok_or(DiskError::NoSuchOffset)
            }
        }
    }

    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        let source = source.striped().ok_or(DiskError::Unsupported)?;
        range::copy((source, source_offset), (self, offset), length)
    }

    fn share_from(&self, source: &dyn Object) -> Result<()> {
        let same = |source: &&StripedObject| source.stripes == self.stripes;
        let source = source.striped().filter(same).ok_or(DiskError::Unsupported)?;
        // All parts at one moment.
        let _alone = source.lock().write();
        for (place, part) in self.each() {
            if let Err(error) = part.share_from(&*source.parts[place]) {
                for before in &self.parts[..place] {
                    before.set_size(0)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn sync(&self, what: Sync) -> Result<()> {
        self.at_once(|part| part.sync(what))
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        // Not behind those who wait for bytes that are being written.
        let _shared = self.lock().read_recursive();
        let parts: Result<Vec<ObjectAttributes>> =
            self.each().map(|(_, part)| part.attributes()).collect();
        Ok(of_parts(self.stripes, &parts?))
    }

    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        self.each().try_for_each(|(_, part)| part.set_modified(modified))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Only this process uses the parts.
    fn has_other_writers(&self) -> bool {
        false
    }

    fn striped(&self) -> Option<&StripedObject> {
        Some(self)
    }
}

/// What the attributes of its parts say of an object.
pub(super) fn of_parts(stripes: Stripes, parts: &[ObjectAttributes]) -> ObjectAttributes {
    let lengths: Vec<u64> = parts.iter().map(|part| part.size).collect();
    ObjectAttributes {
        size: stripes.size(&lengths),
        allocated_bytes: parts.iter().map(|part| part.allocated_bytes).sum(),
        modified: parts.iter().map(|part| part.modified).max().unwrap_or_default(),
    }
}

impl Drop for StripedObject {
    fn drop(&mut self) {
        let named = *self.named.get_mut();
        if let (Some(id), true) = (self.id.get(), named < self.parts.len()) {
            // A publication that was never finished. What stays is swept after a crash.
            for part in &self.disks[..named] {
                if let Err(error) = part.disk.remove(*id) {
                    tracing::warn!(%id, part = part.name, %error, "a part of an object that was not published stays");
                }
            }
        }
    }
}

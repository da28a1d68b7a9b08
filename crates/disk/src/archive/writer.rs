//! An object that is being written to the archive: from its beginning to its end, each frame once.

use std::sync::{Arc, OnceLock};

use forebay_base::{ObjectId, Timestamp};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::bucket::{Bucket as _, Part};
use super::format::{self, Entry, FOOT_BYTES, FRAME_BYTES, FRAMES_MAX, Foot};
use super::reader::ArchivedObject;
use super::{Archive, name_of};
use crate::{Allocate, DiskError, Object, ObjectAttributes, Result, Seek, Sync};

/// Bytes of the first parts of a large object. Stores take at most 10,000 parts, so later ones are larger.
const PART_BYTES: usize = 8 << 20;
/// Parts of one size.
const PARTS_OF_A_SIZE: usize = 2000;
/// Parts of one object.
const PARTS_MAX: usize = 10_000;

/// A handle to an object that is being written.
pub(super) struct NewObject {
    archive: Arc<Archive>,
    upload: Arc<Upload>,
}

/// What becomes an object.
pub(super) struct Upload {
    archive: Arc<Archive>,
    id: OnceLock<ObjectId>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of the file so far.
    size: u64,
    modified: Timestamp,
    /// The frame that is being filled, and its bytes.
    frame: u64,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Packed bytes that no part has taken yet.
    packed: Vec<u8>,
    /// Packed bytes in all.
    packed_total: u64,
    parts: usize,
    part: Option<Box<dyn Part>>,
    /// What was published.
    published: Option<Foot>,
    total: u64,
    /// Something failed: nothing more is taken.
    failed: bool,
}

impl NewObject {
    pub fn new(archive: &Arc<Archive>) -> NewObject {
        let upload = Upload {
            archive: Arc::clone(archive),
            id: OnceLock::new(),
            state: Mutex::new(State::default()),
        };
        NewObject { archive: Arc::clone(archive), upload: Arc::new(upload) }
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        if let Some(id) = self.upload.id.get() {
            let mut uploads = self.archive.uploads.lock();
            let is_own = |known: &std::sync::Weak<Upload>| {
                std::ptr::eq(known.as_ptr(), Arc::as_ptr(&self.upload))
            };
            if uploads.get(id).is_some_and(is_own) {
                uploads.remove(id);
            }
        }
    }
}

/// The size of a part, by how many there are already.
fn part_bytes(parts: usize) -> usize {
    PART_BYTES << (parts / PARTS_OF_A_SIZE).min(3)
}

impl State {
    fn is_empty_piece(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    /// Packs the frame that is being filled.
    fn finish_frame(&mut self, upload: &Upload) -> Result<()> {
        if !self.is_empty_piece() {
            let packed = format::pack(self.frame, &self.bytes);
            let (entry, stored) = packed.map_err(DiskError::Io)?;
            self.entries.push(entry);
            self.add(upload, &stored)?;
        }
        self.bytes.clear();
        Ok(())
    }

    /// Adds packed bytes; full parts go to the store.
    fn add(&mut self, upload: &Upload, bytes: &[u8]) -> Result<()> {
        if self.packed_total == 0 {
            let head = format::head(upload.archive.identity, upload.id()?);
            self.packed_total = head.len() as u64;
            self.packed.extend(head);
        }
        self.packed.extend_from_slice(bytes);
        self.packed_total += bytes.len() as u64;
        while self.packed.len() >= part_bytes(self.parts) {
            let rest = self.packed.split_off(part_bytes(self.parts));
            let full = std::mem::replace(&mut self.packed, rest);
            self.put_part(upload, full)?;
        }
        Ok(())
    }

    fn put_part(&mut self, upload: &Upload, bytes: Vec<u8>) -> Result<()> {
        if self.parts >= PARTS_MAX {
            return Err(DiskError::TooLarge);
        }
        let (archive, id) = (&upload.archive, upload.id()?);
        if self.part.is_none() {
            self.part = Some(archive.said(id, archive.bucket.begin(&name_of(id)))?);
        }
        if let Some(part) = &mut self.part {
            archive.said(id, part.put(bytes))?;
        }
        self.parts += 1;
        Ok(())
    }

    fn write(&mut self, upload: &Upload, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let frame = offset / FRAME_BYTES as u64;
            let within = usize::try_from(offset % FRAME_BYTES as u64).unwrap_or(0);
            if frame >= FRAMES_MAX {
                return Err(DiskError::TooLarge);
            }
            if frame != self.frame {
                if !self.bytes.is_empty() {
                    self.bytes.resize(FRAME_BYTES, 0);
                }
                self.finish_frame(upload)?;
                self.frame = frame;
            }
            let piece = data.len().min(FRAME_BYTES - within);
            self.bytes.resize(within, 0);
            self.bytes.extend_from_slice(&data[..piece]);
            data = &data[piece..];
            offset += piece as u64;
        }
        self.size = self.size.max(offset);
        Ok(())
    }

    /// Ends the object: the last frame, the index and the foot.
    fn end(&mut self, upload: &Upload, id: ObjectId) -> Result<Foot> {
        if !self.bytes.is_empty() {
            let begins = self.frame * FRAME_BYTES as u64;
            let length = (self.size - begins).min(FRAME_BYTES as u64);
            self.bytes.resize(usize::try_from(length).unwrap_or(FRAME_BYTES), 0);
        }
        self.finish_frame(upload)?;
        self.add(upload, &[])?;
        let index = format::index(&self.entries);
        let foot = Foot {
            id,
            identity: upload.archive.identity,
            size: self.size,
            modified: self.modified,
            entries: self.entries.len() as u64,
            index_at: self.packed_total,
            index_hash: xxh3_64(&index),
        };
        self.add(upload, &index)?;
        self.add(upload, &foot.encode())?;
        self.total = foot.index_at + index.len() as u64 + FOOT_BYTES as u64;
        let (archive, name) = (&upload.archive, name_of(id));
        let rest = std::mem::take(&mut self.packed);
        match self.part.is_some() {
            false => archive.said(id, archive.bucket.put(&name, &rest))?,
            true => {
                if !rest.is_empty() {
                    self.put_part(upload, rest)?;
                }
                if let Some(part) = self.part.take() {
                    archive.said(id, part.complete())?;
                }
            }
        }
        Ok(foot)
    }
}

impl Upload {
    fn id(&self) -> Result<ObjectId> {
        self.id.get().copied().ok_or(DiskError::Invalid)
    }

    /// Has the store make the whole object.
    pub fn complete(&self, id: ObjectId) -> Result<()> {
        let mut state = self.state.lock();
        if state.failed || self.id()? != id {
            return Err(DiskError::Invalid);
        }
        if state.published.is_some() {
            return Err(DiskError::Exists(id));
        }
        let ended = state.end(self, id);
        state.failed = ended.is_err();
        state.published = Some(ended?);
        Ok(())
    }

    /// Proves that the store has what was written: reads all of it.
    fn prove(&self) -> Result<()> {
        let id = self.id()?;
        let (foot, entries, total) = {
            let state = self.state.lock();
            let foot = state.published.ok_or(DiskError::Invalid)?;
            (foot, state.entries.clone(), state.total)
        };
        let wrong = |why: &str| self.archive.io(id, &format!("it is not what was written: {why}"));
        let found = ArchivedObject::open(&self.archive, id)?;
        if found.total() != total
            || *found.foot() != foot
            || !found.entries().eq(entries.iter().copied())
        {
            return Err(wrong("its foot or its index is another one"));
        }
        found.verify_all()?;
        // A store that was unmounted meanwhile has taken it with its label only if both came back.
        self.archive.look_at_label()
    }
}

impl Object for NewObject {
    fn number(&self, id: ObjectId) {
        if self.upload.id.set(id).is_ok() {
            self.archive.uploads.lock().insert(id, Arc::downgrade(&self.upload));
        }
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> Result<usize> {
        Err(DiskError::Unsupported)
    }

    /// Bytes come in order: what was passed over reads as zeros.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let mut state = self.upload.state.lock();
        if state.failed || state.published.is_some() || offset < state.size {
            return Err(DiskError::Unsupported);
        }
        let written = state.write(&self.upload, offset, data);
        state.failed = written.is_err();
        written.map(|()| data.len())
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        let at = self.upload.state.lock().size;
        self.write_at(at, data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let mut state = self.upload.state.lock();
        if state.published.is_some() || size < state.size {
            return Err(DiskError::Unsupported);
        }
        state.size = size;
        Ok(())
    }

    fn allocate(&self, _what: Allocate, _offset: u64, _length: u64) -> Result<()> {
        Err(DiskError::Unsupported)
    }

    fn seek(&self, _target: Seek, _offset: u64) -> Result<u64> {
        Err(DiskError::Unsupported)
    }

    fn copy_from(&self, _from: &dyn Object, _at: u64, _to: u64, _length: u64) -> Result<u64> {
        Err(DiskError::Unsupported)
    }

    /// Proves that the store has it.
    fn sync(&self, _what: Sync) -> Result<()> {
        self.upload.prove()
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        let state = self.upload.state.lock();
        let allocated_bytes = state.total;
        Ok(ObjectAttributes { size: state.size, allocated_bytes, modified: state.modified })
    }

    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        self.upload.state.lock().modified = modified;
        Ok(())
    }

    fn file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn has_other_writers(&self) -> bool {
        false
    }
}

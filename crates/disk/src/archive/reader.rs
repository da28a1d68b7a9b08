//! An object of the archive that is being read. Every frame is checked before any byte of it is given out.
//!
//! It can be read in two ways: as other objects are, for copying it from its beginning to its end, or frame by frame
//! ([`ArchivedObject::fetch_frames`]), where nothing is fetched but what is asked for.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::{ObjectId, Timestamp};
use parking_lot::Mutex;

use super::bucket::Bucket as _;
use super::format::{self, ENTRY_BYTES, Entry, FOOT_BYTES, FRAME_BYTES, Foot};
use super::{Archive, name_of};
use crate::{Allocate, DiskError, Object, ObjectAttributes, Result, Seek, Sync};

/// Bytes that are fetched at a time, unless one frame has more.
const FETCH_BYTES: u64 = 8 << 20;

/// Frames by their numbers, each with its bytes or why it has none.
pub type Frames = Vec<(u64, Result<Vec<u8>>)>;

/// A handle to an object of the archive.
pub struct ArchivedObject {
    archive: Arc<Archive>,
    id: ObjectId,
    foot: Foot,
    total: u64,
    entries: Vec<(Entry, u64)>,
    near: Mutex<Near>,
}

/// Bytes of memory that the index of an object with so many frames takes.
#[must_use]
pub fn index_bytes(frames: u64) -> u64 {
    frames.saturating_mul(size_of::<(Entry, u64)>() as u64)
}

/// What was fetched last.
#[derive(Default)]
struct Near {
    /// Stored bytes, and where they begin in the object.
    stored: Vec<u8>,
    at: u64,
    /// The frame that was unpacked last, by its place in the index.
    unpacked: Option<(usize, Vec<u8>)>,
}

impl ArchivedObject {
    pub(super) fn open(archive: &Arc<Archive>, id: ObjectId) -> Result<ArchivedObject> {
        let name = name_of(id);
        let tail = archive.said(id, archive.bucket.tail(&name, FOOT_BYTES as u64))?;
        let foot = Foot::decode(&tail.bytes, tail.size, id, archive.identity);
        let foot = foot.map_err(|why| archive.io(id, &why))?;
        let length = foot.entries * ENTRY_BYTES as u64;
        let index = match length {
            0 => Vec::new(),
            _ => {
                let range = foot.index_at..foot.index_at + length;
                archive.said(id, archive.bucket.get(&name, Some(range)))?
            }
        };
        let entries = format::read_index(&index, &foot).map_err(|why| archive.io(id, &why))?;
        let (archive, total) = (Arc::clone(archive), tail.size);
        Ok(ArchivedObject { archive, id, foot, total, entries, near: Mutex::default() })
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn foot(&self) -> &Foot {
        &self.foot
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().map(|(entry, _)| *entry)
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.foot.size
    }

    /// Bytes of memory that its index takes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        index_bytes(self.foot.entries)
    }

    /// Whether a frame is stored: a piece of the file that has none is zeros.
    #[must_use]
    pub fn has_frame(&self, frame: u64) -> bool {
        self.entries.get(self.place_of(frame)).is_some_and(|(entry, _)| entry.frame == frame)
    }

    /// Fetches the frames of a range that are stored, with one request, and checks each of them by itself.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], [`DiskError::Away`], [`DiskError::Io`]; of a frame that is damaged [`DiskError::Io`] in its place.
    pub fn fetch_frames(&self, frames: Range<u64>) -> Result<Frames> {
        let entries = self.place_of(frames.start)..self.place_of(frames.end);
        let entries = self.entries.get(entries).unwrap_or_default();
        let (Some((_, begin)), Some((last, last_at))) = (entries.first(), entries.last()) else {
            return Ok(Vec::new());
        };
        let range = *begin..last_at + u64::from(last.stored);
        let stored = self.archive.bucket.get(&name_of(self.id), Some(range));
        let stored = self.archive.said(self.id, stored)?;
        let unpack = |(entry, at): &(Entry, u64)| {
            let from = usize::try_from(at - begin).unwrap_or(usize::MAX);
            let bytes = stored.get(from..from.saturating_add(entry.stored as usize));
            let bytes = format::unpack(entry, bytes.unwrap_or_default());
            (entry.frame, bytes.map_err(|why| self.archive.io(self.id, &why)))
        };
        Ok(entries.iter().map(unpack).collect())
    }

    /// Reads and checks every frame.
    pub(super) fn verify_all(&self) -> Result<()> {
        let mut near = self.near.lock();
        (0..self.entries.len()).try_for_each(|place| self.unpack(&mut near, place))
    }

    /// Has the frame at a place of the index unpacked.
    fn unpack(&self, near: &mut Near, place: usize) -> Result<()> {
        if near.unpacked.as_ref().is_some_and(|(known, _)| *known == place) {
            return Ok(());
        }
        let Some((entry, at)) = self.entries.get(place).copied() else {
            return Err(self.archive.io(self.id, "its index ends too early"));
        };
        let end = at + u64::from(entry.stored);
        if at < near.at || end > near.at + near.stored.len() as u64 {
            self.fetch(near, place)?;
        }
        let from = usize::try_from(at - near.at).unwrap_or(usize::MAX);
        let stored = near.stored.get(from..from.saturating_add(entry.stored as usize));
        let stored = stored.unwrap_or_default();
        let bytes = format::unpack(&entry, stored);
        let bytes = bytes.map_err(|why| self.archive.io(self.id, &why))?;
        near.unpacked = Some((place, bytes));
        Ok(())
    }

    /// Fetches a frame, and those that follow it.
    fn fetch(&self, near: &mut Near, place: usize) -> Result<()> {
        let following = self.entries.get(place..).unwrap_or_default();
        let Some(begin) = following.first().map(|(_, at)| *at) else { return Ok(()) };
        let ends = following.iter().map(|(entry, at)| at + u64::from(entry.stored));
        let mut end = begin;
        for next in ends {
            if end > begin && next - begin > FETCH_BYTES {
                break;
            }
            end = next;
        }
        *near = Near::default();
        let found = self.archive.bucket.get(&name_of(self.id), Some(begin..end));
        near.stored = self.archive.said(self.id, found)?;
        near.at = begin;
        Ok(())
    }

    /// The place in the index of the first frame that is not before `frame`.
    fn place_of(&self, frame: u64) -> usize {
        self.entries.partition_point(|(entry, _)| entry.frame < frame)
    }
}

impl Object for ArchivedObject {
    fn number(&self, _id: ObjectId) {}

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if offset >= self.foot.size {
            return Ok(0);
        }
        let left = self.foot.size - offset;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let frame = at / FRAME_BYTES as u64;
            let within = usize::try_from(at % FRAME_BYTES as u64).unwrap_or(0);
            let piece = (length - done).min(FRAME_BYTES - within);
            let Some(target) = buffer.get_mut(done..done + piece) else { break };
            target.fill(0);
            let place = self.place_of(frame);
            if self.entries.get(place).is_some_and(|(entry, _)| entry.frame == frame) {
                let mut near = self.near.lock();
                self.unpack(&mut near, place)?;
                let bytes = near.unpacked.as_ref().map(|(_, bytes)| bytes.as_slice());
                let bytes = bytes.and_then(|bytes| bytes.get(within..)).unwrap_or_default();
                let has = bytes.len().min(piece);
                target[..has].copy_from_slice(&bytes[..has]);
            }
            done += piece;
        }
        Ok(done)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<usize> {
        Err(DiskError::Archived(self.id))
    }

    fn append(&self, _data: &[u8]) -> Result<usize> {
        Err(DiskError::Archived(self.id))
    }

    fn set_size(&self, _size: u64) -> Result<()> {
        Err(DiskError::Archived(self.id))
    }

    fn allocate(&self, _what: Allocate, _offset: u64, _length: u64) -> Result<()> {
        Err(DiskError::Archived(self.id))
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        if offset >= self.foot.size {
            return Err(DiskError::NoSuchOffset);
        }
        let mut frame = offset / FRAME_BYTES as u64;
        let mut following = self.entries.iter().skip(self.place_of(frame));
        match target {
            Seek::Data => {
                let (entry, _) = following.next().ok_or(DiskError::NoSuchOffset)?;
                Ok(offset.max(entry.frame * FRAME_BYTES as u64))
            }
            Seek::Hole => {
                while following.next().is_some_and(|(entry, _)| entry.frame == frame) {
                    frame += 1;
                }
                Ok((frame * FRAME_BYTES as u64).max(offset).min(self.foot.size))
            }
        }
    }

    fn copy_from(&self, _from: &dyn Object, _at: u64, _to: u64, _length: u64) -> Result<u64> {
        Err(DiskError::Archived(self.id))
    }

    fn sync(&self, _what: Sync) -> Result<()> {
        Ok(())
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        let Foot { size, modified, .. } = self.foot;
        Ok(ObjectAttributes { size, allocated_bytes: self.total, modified })
    }

    fn set_modified(&self, _modified: Timestamp) -> Result<()> {
        Err(DiskError::Archived(self.id))
    }

    fn file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn has_other_writers(&self) -> bool {
        false
    }
}

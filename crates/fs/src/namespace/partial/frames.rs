//! What was fetched of archived files: frames, and the indexes of their objects. The least recently used go first.
//!
//! Nobody changes an object of an archive, and no number is given twice. So what is kept of an object is right whatever
//! becomes of the file meanwhile: once it is recalled, written or removed, nobody asks for it any more. Nothing survives the mount.

use std::ops::Range;
use std::sync::Arc;

use forebay_disk::archive::ArchivedObject;
use forebay_disk::archive::format::FRAME_BYTES;
use parking_lot::Mutex;

use crate::ahead::Ahead;
use crate::lru::Lru;
use crate::object::Stream;
use crate::pieces::put_piece;
use crate::record::ObjectRef;

/// The bytes of a frame.
pub(super) type Frame = Arc<Vec<u8>>;

/// Most frames that are fetched ahead of a reader.
const AHEAD_MAX: u64 = 8;
/// What an index takes at least, with what is noted of it.
const INDEX_MIN_BYTES: u64 = 4 << 10;

/// An object of an archive whose index was fetched.
pub(super) struct Indexed {
    pub object: Arc<ArchivedObject>,
    pub ahead: Mutex<Ahead>,
    /// How far the file was read, if it is large.
    pub stream: Stream,
}

impl Indexed {
    pub fn new(object: Arc<ArchivedObject>) -> Indexed {
        Indexed { object, ahead: Mutex::new(Ahead::of(AHEAD_MAX)), stream: Stream::default() }
    }

    /// Frames of the file, those of zeros included.
    pub fn frame_count(&self) -> u64 {
        self.object.size().div_ceil(FRAME_BYTES as u64)
    }
}

/// What a read asks for, within the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub offset: u64,
    pub length: usize,
}

impl Span {
    /// As much of `length` bytes at `offset` as a file of `size` bytes has.
    pub fn within(size: u64, offset: u64, length: usize) -> Span {
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        Span { offset, length: length.min(left) }
    }

    /// The frames that it touches.
    pub fn frames(&self) -> Range<u64> {
        if self.length == 0 {
            return 0..0;
        }
        let frame = FRAME_BYTES as u64;
        let end = self.offset.saturating_add(self.length as u64).div_ceil(frame);
        self.offset / frame..end
    }

    /// Puts what lies in a frame where it belongs in the bytes that were asked for.
    pub fn take_from(&self, number: u64, frame: &[u8], buffer: &mut [u8]) {
        let begins = number.saturating_mul(FRAME_BYTES as u64);
        let room = buffer.get_mut(..self.length).unwrap_or_default();
        put_piece((begins, frame), (self.offset, room));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Index(ObjectRef),
    Frame(ObjectRef, u64),
}

#[derive(Clone)]
enum Kept {
    Index(Arc<Indexed>),
    Frame(Frame),
}

impl Kept {
    fn bytes(&self) -> u64 {
        match self {
            Kept::Index(index) => index.object.index_bytes().max(INDEX_MIN_BYTES),
            Kept::Frame(frame) => frame.len() as u64,
        }
    }
}

/// Frames and indexes, of so many bytes at most; what was kept last stays in any case.
pub(super) struct FrameCache(Mutex<Lru<Part, Kept>>);

impl FrameCache {
    pub fn of(bytes_max: u64) -> FrameCache {
        FrameCache(Mutex::new(Lru::of(bytes_max)))
    }

    pub fn index(&self, at: ObjectRef) -> Option<Arc<Indexed>> {
        match self.0.lock().find(&Part::Index(at)) {
            Some(Kept::Index(index)) => Some(index),
            _ => None,
        }
    }

    pub fn frame(&self, at: ObjectRef, number: u64) -> Option<Frame> {
        match self.0.lock().find(&Part::Frame(at, number)) {
            Some(Kept::Frame(frame)) => Some(frame),
            _ => None,
        }
    }

    pub fn keep_index(&self, at: ObjectRef, index: &Arc<Indexed>) {
        self.keep(Part::Index(at), Kept::Index(Arc::clone(index)));
    }

    pub fn keep_frame(&self, at: ObjectRef, number: u64, frame: &Frame) {
        self.keep(Part::Frame(at, number), Kept::Frame(Arc::clone(frame)));
    }

    fn keep(&self, part: Part, kept: Kept) {
        let bytes = kept.bytes();
        self.0.lock().keep(part, kept, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_touches_the_frames_of_its_bytes_and_takes_its_part_of_each() {
        const FRAME: u64 = FRAME_BYTES as u64;
        let within = |size, offset, length| Span::within(size, offset, length);
        assert_eq!(within(10, 4, 100), Span { offset: 4, length: 6 });
        assert!(within(10, 10, 5).frames().is_empty());
        assert!(within(10, u64::MAX, 5).frames().is_empty());
        assert_eq!(within(9 * FRAME, FRAME - 1, 1).frames(), 0..1);
        assert_eq!(within(9 * FRAME, FRAME - 1, 2).frames(), 0..2);
        assert_eq!(within(9 * FRAME, 2 * FRAME, FRAME_BYTES).frames(), 2..3);
        let span = within(9 * FRAME, FRAME - 2, 5);
        let mut buffer = [9; 6];
        span.take_from(0, &vec![1; FRAME_BYTES], &mut buffer);
        span.take_from(1, &[2, 2], &mut buffer);
        assert_eq!(
            buffer,
            [1, 1, 2, 2, 9, 9],
            "what a short frame lacks, and what is beyond, stays"
        );
    }
}

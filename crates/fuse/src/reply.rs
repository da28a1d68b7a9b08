//! Building an answer in a buffer that is used again and again.

use std::time::Duration;

use forebay_fs::Attributes;
use forebay_fs::record::Kind;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{Attr, AttrOut, EntryOut, OutHeader};

const HEADER: usize = size_of::<OutHeader>();
/// Preferred size of a program's reads and writes (st_blksize), in bytes.
pub(crate) const BLOCK_BYTES: u32 = 256 << 10;

/// An answer under construction: room for the header, then the body.
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// A buffer that can take `capacity` bytes of body without growing.
    pub fn with_capacity(capacity: usize) -> Reply {
        let mut buffer = Vec::with_capacity(capacity + HEADER);
        buffer.resize(HEADER, 0);
        Reply(buffer)
    }

    /// Empties the body.
    pub fn clear(&mut self) {
        self.0.truncate(HEADER);
    }

    /// Bytes in the body.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Adds a structure.
    pub fn push<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Adds bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds zeros up to a multiple of 8.
    pub fn pad(&mut self) {
        let length = self.0.len().next_multiple_of(8);
        self.0.resize(length, 0);
    }

    /// Has `fill` fill up to `length` bytes of body and say how many it filled.
    pub fn fill<E>(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let start = self.0.len();
        self.0.resize(start + length, 0);
        let filled = fill(&mut self.0[start..]);
        let kept = *filled.as_ref().unwrap_or(&0);
        self.0.truncate(start + kept.min(length));
        filled.map(|_| ())
    }

    /// The whole answer to request `unique`: with the body, or an error without one.
    pub fn finish(&mut self, unique: u64, error: i32) -> &[u8] {
        if error != 0 {
            self.clear();
        }
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let header = OutHeader { len, error: -error, unique };
        self.0[..HEADER].copy_from_slice(header.as_bytes());
        &self.0
    }
}

fn unsigned(seconds: i64) -> u64 {
    // Times before 1970 travel as two's complement (fuse_attr).
    seconds.cast_unsigned()
}

/// File type bits of a kind, as in st_mode.
pub(crate) fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// Attributes as the kernel takes them.
pub(crate) fn attr(of: &Attributes) -> Attr {
    Attr {
        ino: of.ino.0,
        size: of.size,
        blocks: of.allocated_bytes.div_ceil(512),
        atime: unsigned(of.accessed.seconds),
        mtime: unsigned(of.modified.seconds),
        ctime: unsigned(of.changed.seconds),
        atimensec: of.accessed.nanoseconds,
        mtimensec: of.modified.nanoseconds,
        ctimensec: of.changed.nanoseconds,
        mode: type_bits(of.kind) | u32::from(of.mode),
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: of.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// How long the kernel may keep what it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ttl(pub Duration);

impl Ttl {
    fn of(self, attributes: &Attributes) -> Duration {
        if attributes.cacheable { self.0 } else { Duration::ZERO }
    }

    /// Answer that tells of an inode under a name.
    pub fn entry(self, attributes: &Attributes) -> EntryOut {
        let attr_ttl = self.of(attributes);
        EntryOut {
            nodeid: attributes.ino.0,
            generation: 0,
            entry_valid: self.0.as_secs(),
            attr_valid: attr_ttl.as_secs(),
            entry_valid_nsec: self.0.subsec_nanos(),
            attr_valid_nsec: attr_ttl.subsec_nanos(),
            attr: attr(attributes),
        }
    }

    /// Answer that says that there is nothing under a name.
    pub fn absent(self) -> EntryOut {
        EntryOut {
            entry_valid: self.0.as_secs(),
            entry_valid_nsec: self.0.subsec_nanos(),
            ..EntryOut::default()
        }
    }

    /// Answer that tells attributes.
    pub fn attributes(self, attributes: &Attributes) -> AttrOut {
        let ttl = self.of(attributes);
        AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: attr(attributes),
        }
    }

    /// Seconds and nanoseconds for attributes.
    pub fn parts(self, attributes: &Attributes) -> (u64, u32) {
        let ttl = self.of(attributes);
        (ttl.as_secs(), ttl.subsec_nanos())
    }
}

//! Building an answer in memory that is used again and again. An answer for which there is no room
//! becomes EIO.

use std::time::Duration;

use forebay_base::Ino;
use forebay_fs::record::Kind;
use forebay_fs::{Attributes, KeepName};
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{Attr, AttrOut, EntryOut, OutHeader};

/// Preferred size of a program's reads and writes (st_blksize), in bytes.
pub(crate) const BLOCK_BYTES: u32 = 256 << 10;

/// The body of an answer under construction, in a room that is used again and again.
pub(crate) struct Reply<'a> {
    room: &'a mut [u8],
    used: usize,
    /// Something did not fit: the answer is an error then.
    overflown: bool,
}

impl<'a> Reply<'a> {
    /// An empty body in `room`.
    pub fn new(room: &'a mut [u8]) -> Reply<'a> {
        Reply { room, used: 0, overflown: false }
    }

    /// Bytes in the body.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Adds a structure.
    pub fn push<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.push_bytes(value.as_bytes());
    }

    /// Adds bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        match self.room[self.used..].get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.used += bytes.len();
            }
            None => self.overflown = true,
        }
    }

    /// Adds zeros up to a multiple of 8.
    pub fn pad(&mut self) {
        let length = self.used.next_multiple_of(8) - self.used;
        self.push_bytes(&[0; 8][..length]);
    }

    /// Has `fill` fill up to `length` bytes of body and say how many it filled.
    pub fn fill<E>(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let Some(place) = self.room[self.used..].get_mut(..length) else {
            self.overflown = true;
            return Ok(());
        };
        let filled = fill(place)?;
        self.used += filled.min(length);
        Ok(())
    }

    /// The answer to request `unique`: the header, and the body, which is empty with an error.
    pub fn finish(&self, unique: u64, error: i32) -> (OutHeader, &[u8]) {
        let error = if error == 0 && self.overflown { libc::EIO } else { error };
        let body = if error == 0 { &self.room[..self.used] } else { &[] };
        let len = u32::try_from(size_of::<OutHeader>() + body.len()).unwrap_or(u32::MAX);
        (OutHeader { len, error: -error, unique }, body)
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

/// Longer than any mount lives.
const LASTING: Duration = Duration::from_hours(24 * 365 * 10);

impl EntryOut {
    /// The kernel keeps the name for that long instead.
    pub fn named_for(self, time: Duration) -> EntryOut {
        EntryOut { entry_valid: time.as_secs(), entry_valid_nsec: time.subsec_nanos(), ..self }
    }
}

/// How long the kernel may keep what it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ttl(pub Duration);

impl Ttl {
    fn of(self, attributes: &Attributes) -> Duration {
        // Every way to what is mounted within leads over the root directory, also when the daemon was killed.
        let is_own = attributes.name != KeepName::Never;
        let is_on_the_way = attributes.ino == Ino::ROOT && is_own;
        let never_changes = attributes.cacheable && attributes.name == KeepName::Lasting;
        if (is_on_the_way || never_changes) && !self.0.is_zero() {
            return LASTING;
        }
        if attributes.cacheable { self.0 } else { Duration::ZERO }
    }

    /// Answer that tells of an inode under a name.
    pub fn entry(self, attributes: &Attributes) -> EntryOut {
        let attr_ttl = self.of(attributes);
        let entry_ttl = match attributes.name {
            KeepName::Never => Duration::ZERO,
            KeepName::AsSet => self.0,
            KeepName::Lasting => LASTING,
        };
        EntryOut {
            nodeid: attributes.ino.0,
            generation: 0,
            entry_valid: entry_ttl.as_secs(),
            attr_valid: attr_ttl.as_secs(),
            entry_valid_nsec: entry_ttl.subsec_nanos(),
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

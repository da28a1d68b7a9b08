//! Identifiers as newtypes, so that one can never be passed for another.

/// Makes a number a type of its own, printed and serialized as the number that it is. The crate that uses this
/// depends on serde.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            ::serde::Serialize,
            ::serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Number of an inode; never reused within a file system. The upper 16 bits are the number of its fileset. The
    /// root directory is 1.
    Ino(u64)
}
id! {
    /// Number of an object on its disk; never reused within a file system. The upper 16 bits are the number of its
    /// fileset.
    ObjectId(u64)
}
id! {
    /// Index of a disk in the file system's disk list.
    DiskId(u16)
}
id! {
    /// Number of a fileset; 0 is the root fileset.
    FilesetId(u16)
}
id! {
    /// Generation of an owner: grows by one at each mount, fences every commit.
    Epoch(u64)
}

impl Ino {
    /// The root directory of the file system.
    pub const ROOT: Ino = Ino(1);
}

impl FilesetId {
    /// The fileset that holds the root directory and everything outside the named filesets.
    pub const ROOT: FilesetId = FilesetId(0);
}

impl Epoch {
    /// The epoch of the owner that follows this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Bits of an inode's or object's number that count within its fileset; those above are the fileset's number.
pub const LOCAL_BITS: u32 = 48;

/// The part of `number` that counts within a fileset.
const fn local(number: u64) -> u64 {
    number & ((1 << LOCAL_BITS) - 1)
}

/// The fileset that `number` belongs to.
const fn fileset(number: u64) -> FilesetId {
    FilesetId((number >> LOCAL_BITS) as u16)
}

/// The number of `local` in `fileset`.
const fn joined(fileset: FilesetId, local: u64) -> u64 {
    (fileset.0 as u64) << LOCAL_BITS | local
}

impl Ino {
    /// The inode that counts as `local` (below 2^48) in `fileset`.
    #[must_use]
    pub const fn of(fileset: FilesetId, number: u64) -> Ino {
        Ino(joined(fileset, local(number)))
    }

    /// The top directory of a fileset; that of the root fileset is [`Ino::ROOT`].
    #[must_use]
    pub const fn top_of(fileset: FilesetId) -> Ino {
        Ino::of(fileset, Ino::ROOT.0)
    }

    /// The fileset that the inode belongs to.
    #[must_use]
    pub const fn fileset(self) -> FilesetId {
        fileset(self.0)
    }

    /// Its number within the fileset.
    #[must_use]
    pub const fn local(self) -> u64 {
        local(self.0)
    }
}

impl ObjectId {
    /// The object that counts as `local` (below 2^48) in `fileset`.
    #[must_use]
    pub const fn of(fileset: FilesetId, number: u64) -> ObjectId {
        ObjectId(joined(fileset, local(number)))
    }

    /// The fileset that the object belongs to.
    #[must_use]
    pub const fn fileset(self) -> FilesetId {
        fileset(self.0)
    }

    /// Its number within the fileset.
    #[must_use]
    pub const fn local(self) -> u64 {
        local(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_its_fileset() {
        assert_eq!(Ino::top_of(FilesetId::ROOT), Ino::ROOT);
        for (fileset, local) in [(0, 1), (1, 1), (7, (1 << LOCAL_BITS) - 1), (u16::MAX, 42)] {
            let (fileset, ino) = (FilesetId(fileset), Ino::of(FilesetId(fileset), local));
            assert_eq!((ino.fileset(), ino.local()), (fileset, local));
            let id = ObjectId::of(fileset, local);
            assert_eq!((id.fileset(), id.local()), (fileset, local));
        }
    }
}

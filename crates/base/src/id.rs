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
    /// Number of an inode; never reused within a file system. The root directory is 1.
    Ino(u64)
}
id! {
    /// Number of an object on its disk; never reused within a file system.
    ObjectId(u64)
}
id! {
    /// Index of a disk in the file system's disk list.
    DiskId(u16)
}
id! {
    /// Number of a fileset; 0 is the root fileset.
    FilesetId(u32)
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

//! Records of the store: what each key's value holds, and its encoding.
//!
//! Every value but the term and extended attributes is one version byte followed by the record in
//! the postcard format (<https://postcard.jamesmunns.com/wire-format>). Decoding never panics: bytes
//! that are no record are [`FsError::Damaged`].
//!
//! Each kind of record has a version of its own ([`Record`]). A version that this program does not know is
//! [`FsError::UnknownVersion`], which is not damage: nobody reads on, and fsck leaves the fileset as it is. A
//! version that is older and known is upgraded as it is read.

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};

mod copies;
mod disks;
mod old;

pub use self::copies::{COPIES_MAX, CopiesRecord, Premigrated, PremigratedTo};
pub use self::disks::{DEFAULT_POOL, DiskRecord, DiskUse, Striping};

/// Whether the last owner left in an orderly way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountState {
    /// Everything was committed and synced.
    Clean,
    /// An owner is at work, or died at it.
    Mounted,
}

/// Identity and state of a fileset: each store has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    /// Identity of the file system, as written in the labels of its disks.
    pub uuid: String,
    /// Number of the fileset.
    pub fileset: FilesetId,
    /// Its name and settings as its owner last heard of them: the root fileset's store has those in force. This copy
    /// counts while that store is out of reach, and if it is lost.
    pub settings: FilesetSettings,
    /// Secret of the name hash.
    pub hash_key: [u8; 16],
    /// Epoch of the current or last owner.
    pub epoch: Epoch,
    /// How the last owner left.
    pub state: MountState,
    /// The latest epoch that ended in a crash; records written in it or before are compared with
    /// their objects when they are loaded. 0: none.
    pub crashed_epoch: Epoch,
    /// Numbers within the fileset: inodes at or above this have never been used.
    pub ino_limit: u64,
    /// Numbers within the fileset: objects at or above this have never been used.
    pub object_limit: u64,
    /// Objects that belong to nothing may lie on its disks although the last owner left in order, as a disk was not
    /// there: the next opening sweeps.
    pub sweep_due: bool,
    /// The disks of the file system; those of the root fileset's store are in force.
    pub disks: Vec<DiskRecord>,
}

/// What the system promises about data in a fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// fsync returns when data and names are on stable storage.
    Strict,
    /// fsync orders but does not wait: contents may be lost with the node.
    Scratch,
}

/// Which way the bytes of new opens go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The kernel reads and writes the object itself, where it can.
    Direct,
    /// The daemon moves the bytes.
    Served,
    /// The fileset is a plain directory of a disk, and the disk's own file system does everything.
    Native,
}

/// What people choose of a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetSettings {
    /// Name: that of its top-level directory. Empty for the root fileset.
    pub name: String,
    /// Durability class.
    pub durability: Durability,
    /// Data path of new opens.
    pub placement: Placement,
    /// Disk of a native fileset, by its identity.
    pub disk: Option<String>,
    /// Pool of disks on which new files of another fileset lie.
    pub pool: String,
    /// In how many failure groups each file is to lie: 1 to [`COPIES_MAX`].
    pub copies: u8,
}

impl FilesetSettings {
    /// These, with the durability and copies of `other` where they are stronger.
    pub(crate) fn or_stronger(mut self, other: &FilesetSettings) -> FilesetSettings {
        if other.durability == Durability::Strict {
            self.durability = Durability::Strict;
        }
        self.copies = self.copies.max(other.copies);
        self
    }
}

/// How far a fileset has come: it is made and removed in two steps, its store and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It has a store and a name.
    Made,
    /// Its store is about to be made: what there is of it goes.
    Making,
    /// Its name is gone, its store goes.
    Removing,
    /// It is gone. Its number may be used again, beginning with numbers that it did not use.
    Removed,
}

/// A fileset, as the store of the root fileset has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetRecord {
    /// Name and settings in force.
    pub settings: FilesetSettings,
    /// How far it has come.
    pub stage: Stage,
    /// Inode numbers below this were used by an earlier fileset of this number.
    pub first_ino: u64,
    /// Object numbers below this were used by an earlier fileset of this number.
    pub first_object: u64,
}

/// What a fileset holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Sum of the sizes of its regular files, in bytes.
    pub bytes: u64,
}

/// What the files of a fileset take on a disk; copies of files are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// Sum of the sizes of the files, in bytes.
    pub bytes: u64,
    /// Bytes that they take there, as far as their records say.
    pub stored_bytes: u64,
}

/// What a disk holds for the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Objects that records refer to.
    pub objects: u64,
    /// What the files take whose objects they are; unknown where an earlier version of this program counted objects alone.
    pub files: Option<Occupancy>,
}

impl Default for DiskUsage {
    fn default() -> DiskUsage {
        DiskUsage { objects: 0, files: Some(Occupancy::default()) }
    }
}

impl DiskUsage {
    /// Adds to what is there.
    pub fn add(&mut self, objects: i64, bytes: i64, stored_bytes: i64) {
        self.objects = self.objects.saturating_add_signed(objects);
        if let Some(files) = &mut self.files {
            // Sparse files can say more than the counter holds: it must come back to what it was.
            files.bytes = files.bytes.wrapping_add_signed(bytes);
            files.stored_bytes = files.stored_bytes.wrapping_add_signed(stored_bytes);
        }
    }
}

impl std::iter::Sum for DiskUsage {
    fn sum<I: Iterator<Item = DiskUsage>>(all: I) -> DiskUsage {
        all.fold(DiskUsage::default(), |sum, one| DiskUsage {
            objects: sum.objects + one.objects,
            files: sum.files.zip(one.files).map(|(sum, one)| Occupancy {
                bytes: sum.bytes.wrapping_add(one.bytes),
                stored_bytes: sum.stored_bytes.wrapping_add(one.stored_bytes),
            }),
        })
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// The disk.
    pub disk: DiskId,
    /// The object's number.
    pub id: ObjectId,
}

/// Where the bytes of a file are. A layout that is added raises the version of [`InodeRecord`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Nowhere: nothing was ever written.
    #[default]
    None,
    /// In one object.
    Whole(ObjectRef),
}

impl Layout {
    /// The object of a file that has one.
    #[must_use]
    pub fn object(&self) -> Option<ObjectRef> {
        match self {
            Layout::None => None,
            Layout::Whole(at) => Some(*at),
        }
    }
}

impl From<Option<ObjectRef>> for Layout {
    fn from(object: Option<ObjectRef>) -> Layout {
        object.map_or(Layout::None, Layout::Whole)
    }
}

/// An inode as it lies in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeRecord {
    /// Kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits (07777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Bytes of a file, entries of a directory, length of a symlink's target.
    pub size: u64,
    /// Bytes allocated on disk when last looked at.
    pub allocated_bytes: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// Device number of a device.
    pub rdev: u32,
    /// The directory that holds a directory (itself for the top of a fileset); 0 for other kinds.
    pub parent: Ino,
    /// Number of extended attributes.
    pub xattrs: u32,
    /// Epoch in which this record was written.
    pub epoch: Epoch,
    /// Where a file's bytes are.
    pub layout: Layout,
    /// Target of a symlink; empty for other kinds.
    pub target: Vec<u8>,
}

/// A directory entry; its key holds the parent and the cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// The inode it names.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: Kind,
    /// The name: 1 to 255 bytes, none of them `/` or NUL.
    pub name: Vec<u8>,
}

/// A kind of record.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is called in errors.
    const KIND: &str;
    /// The version that this program writes.
    const VERSION: u8;

    /// Reads the record of another version, if this program knows it: one that a program before this one wrote. By
    /// default there is none.
    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<Self>> {
        let _ = (what, version, body);
        None
    }
}

/// Version 1 of these records belonged to file systems of one store, which no program reads any more.
macro_rules! records {
    ($($record:ident: $kind:literal, $version:literal;)*) => {$(
        impl Record for $record {
            const KIND: &str = $kind;
            const VERSION: u8 = $version;
        }
    )*};
}

records! {
    Usage: "usage", 2;
    InodeRecord: "inode", 2;
    EntryRecord: "directory entry", 2;
}

/// Encodes a record.
///
/// # Panics
/// Never for the records of this module: they hold nothing that the format cannot.
#[must_use]
pub fn encode<T: Record>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, vec![T::VERSION]).expect("records hold only plain data")
}

/// Decodes a record; `what` names it in the error.
///
/// # Errors
/// [`FsError::Damaged`] if `bytes` are no such record; [`FsError::UnknownVersion`] if they are one of a version that
/// this program does not know.
pub fn decode<T: Record>(what: &str, bytes: &[u8]) -> Result<T> {
    let Some((&version, body)) = bytes.split_first() else {
        return Err(FsError::Damaged(format!("{what}: empty record")));
    };
    if version == T::VERSION {
        return decode_body(what, body);
    }
    T::upgrade(what, version, body).unwrap_or_else(|| {
        Err(FsError::UnknownVersion(format!(
            "{what}: a {} record of version {version}; this program knows version {} and changes nothing: use the \
             program that wrote it",
            T::KIND,
            T::VERSION
        )))
    })
}

/// Decodes what follows the version.
///
/// # Errors
/// [`FsError::Damaged`].
pub fn decode_body<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((record, [])) => Ok(record),
        Ok((_, rest)) => {
            Err(FsError::Damaged(format!("{what}: {} bytes after the record", rest.len())))
        }
        Err(why) => Err(FsError::Damaged(format!("{what}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_garbage_is_refused() {
        let record = EntryRecord { ino: Ino(5), kind: Kind::File, name: b"x\xff".to_vec() };
        let bytes = encode(&record);
        assert_eq!(decode::<EntryRecord>("entry", &bytes).unwrap(), record);
        for cut in 0..bytes.len() {
            assert!(decode::<EntryRecord>("entry", &bytes[..cut]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode::<EntryRecord>("entry", &longer).is_err());
        let mut other = bytes;
        other[0] = 200;
        assert!(matches!(decode::<EntryRecord>("entry", &other), Err(FsError::UnknownVersion(_))));
    }

    /// A record that once had one number only.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(u32, u32);

    impl Record for Pair {
        const KIND: &str = "pair";
        const VERSION: u8 = 4;

        fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<Pair>> {
            (version == 3).then(|| decode_body(what, body).map(|number: u32| Pair(number, 0)))
        }
    }

    #[test]
    fn an_older_version_is_upgraded_and_an_unknown_one_refused() {
        assert_eq!(decode::<Pair>("pair", &encode(&Pair(7, 8))).unwrap(), Pair(7, 8));
        assert_eq!(decode::<Pair>("pair", &[3, 7]).unwrap(), Pair(7, 0));
        assert!(matches!(decode::<Pair>("pair", &[3]), Err(FsError::Damaged(_))));
        for version in [0, 2, 5, 255] {
            let refused = decode::<Pair>("pair", &[version, 7, 8]);
            assert!(matches!(refused, Err(FsError::UnknownVersion(_))), "{version}");
        }
    }
}

//! Records of the store: what each key's value holds, and its encoding.
//!
//! Every value but the term and extended attributes is one version byte followed by the record in
//! the postcard format (<https://postcard.jamesmunns.com/wire-format>). Decoding never panics: bytes
//! that are no record are [`FsError::Damaged`].

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};

/// Version of all records that this program writes and reads.
pub const VERSION: u8 = 1;

/// Whether the last owner left in an orderly way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountState {
    /// Everything was committed and synced.
    Clean,
    /// An owner is at work, or died at it.
    Mounted,
}

/// A disk as the file system knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its own identity, as written in its label.
    pub uuid: String,
    /// Where it was when it was added: the path of a directory disk.
    pub location: String,
}

/// Identity and global state of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    /// Identity, as written in the labels of its disks.
    pub uuid: String,
    /// Secret of the name hash.
    pub hash_key: [u8; 16],
    /// Epoch of the current or last owner.
    pub epoch: Epoch,
    /// How the last owner left.
    pub state: MountState,
    /// The latest epoch that ended in a crash; records written in it or before are compared with
    /// their objects when they are loaded. 0: none.
    pub crashed_epoch: Epoch,
    /// Inode numbers at or above this have never been used.
    pub ino_limit: u64,
    /// Object numbers at or above this have never been used.
    pub object_limit: u64,
    /// The disks, by [`DiskId`].
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

/// A fileset: a subtree with settings of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetRecord {
    /// Name: that of its top-level directory. Empty for the root fileset.
    pub name: String,
    /// Its top directory.
    pub root: Ino,
    /// Durability class.
    pub durability: Durability,
    /// Data path of new opens.
    pub placement: Placement,
    /// Disk of a native fileset, by its identity.
    pub disk: Option<String>,
}

/// What a fileset holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Sum of the sizes of its regular files, in bytes.
    pub bytes: u64,
}

/// What a disk holds for the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Objects that records refer to.
    pub objects: u64,
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
    /// Fileset it belongs to.
    pub fileset: FilesetId,
    /// The directory that holds a directory (itself for the root); 0 for other kinds.
    pub parent: Ino,
    /// Number of extended attributes.
    pub xattrs: u32,
    /// Epoch in which this record was written.
    pub epoch: Epoch,
    /// Where a file's bytes are; `None` while nothing was ever written.
    pub object: Option<ObjectRef>,
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

/// Encodes a record.
///
/// # Panics
/// Never for the records of this module: they hold nothing that the format cannot.
#[must_use]
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, vec![VERSION]).expect("records hold only plain data")
}

/// Decodes a record of kind `what` (named in the error).
///
/// # Errors
/// [`FsError::Damaged`] if `bytes` are no such record, or of an unknown version.
pub fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    let Some((&version, body)) = bytes.split_first() else {
        return Err(FsError::Damaged(format!("{what}: empty record")));
    };
    if version != VERSION {
        return Err(FsError::Damaged(format!(
            "{what}: record version {version}, this program knows {VERSION}"
        )));
    }
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
        assert!(matches!(decode::<EntryRecord>("entry", &other), Err(FsError::Damaged(_))));
    }
}

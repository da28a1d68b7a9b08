//! The disk: the seam behind which the bytes of files lie, as numbered objects.
//!
//! An object is born *fresh*: empty, open, and volatile. [`Disk::publish`] gives it its durable name,
//! its number. A fresh object that is never published leaves nothing behind when its last handle goes
//! away, or in a crash; so temporary files that die young never touch a directory of the disk.
//! Objects are never recycled: an object handed out by [`Disk::create`] has never held a byte.
//!
//! **Crash contract.** Two crashes are told apart. When the *process* dies, published objects keep
//! every byte written, and fresh ones vanish. When the *machine* dies, what survives for certain is
//! what a returned [`Object::sync`] covered (bytes, size, and the name if it was published before the
//! sync began) and what [`Disk::sync`] covered; anything else written, published or removed since may
//! be kept, torn, reordered or lost.
//!
//! Disks: [`directory::DirectoryDisk`] (a directory of any local file system), [`memory::MemoryDisk`]
//! (tests; can be crashed) and [`faulty::FaultyDisk`] (wraps another one and fails on purpose).
//! [`remote::RemoteDisk`] is a disk of another node. All pass the same suite (`tests/conformance.rs`).
//! [`absent::AbsentDisk`] stands for one that is not there. [`archive::ArchiveDisk`] keeps objects packed in an object store:
//! they are written once and not opened, only copied out. [`striped::StripedDisk`] lies over several others.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_base::{FilesetId, ObjectId, Timestamp};
use serde::{Deserialize, Serialize};

pub mod absent;
pub mod archive;
pub mod directory;
pub mod faulty;
pub mod memory;
mod range;
pub mod remote;
pub mod reserve;
pub mod striped;

/// Why a disk refused. A kind exists only where the caller would act differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DiskError {
    /// No space (or no inodes) left on the disk.
    #[error("no space left on the disk")]
    Full,
    /// No object of that number.
    #[error("object {0} does not exist")]
    NotFound(ObjectId),
    /// The number is taken: publishing would replace an object.
    #[error("object {0} already exists")]
    Exists(ObjectId),
    /// The offset or length is beyond what the disk can hold.
    #[error("file too large for the disk")]
    TooLarge,
    /// The disk cannot do this (for example punch holes).
    #[error("the disk does not support this operation")]
    Unsupported,
    /// A seek found no data (or hole) at or after the offset.
    #[error("no such offset")]
    NoSuchOffset,
    /// The arguments do not fit the operation (for example an unaligned direct read).
    #[error("invalid argument")]
    Invalid,
    /// The directory is in use by another process, or belongs to another file system.
    #[error("{0}")]
    Refused(String),
    /// This process or the machine has as many files open as it may.
    #[error("too many open files: {0}")]
    TooManyFiles(String),
    /// The disk is not there; the text names it and says why.
    #[error("{0}")]
    Absent(String),
    /// The device failed.
    #[error("disk input/output error: {0}")]
    Io(String),
    /// The disk belongs to a node that does not answer. It is there again when that node is.
    #[error("disk {disk} ({location}) is unreachable: {why}")]
    Away {
        /// Identity of the disk.
        disk: String,
        /// Its node and directory, for people.
        location: String,
        /// Why the node does not answer.
        why: String,
    },
    /// The object lies in an archive: a copy of it must be made on another disk before it can be used.
    #[error("object {0} lies in the archive")]
    Archived(ObjectId),
}

/// Outcome of a disk call.
pub type Result<T> = std::result::Result<T, DiskError>;

/// Size and times of an object as the disk sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectAttributes {
    /// Length in bytes.
    pub size: u64,
    /// Bytes allocated on the disk.
    pub allocated_bytes: u64,
    /// Last change of the content.
    pub modified: Timestamp,
}

/// Requests to the store of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Objects and parts of objects that were put, and uploads that were begun and completed.
    pub puts: u64,
    /// Objects, and ranges of objects, that were fetched.
    pub gets: u64,
    /// Lists of objects.
    pub lists: u64,
    /// Objects that were removed.
    pub removals: u64,
    /// Those among them that failed.
    pub failures: u64,
    /// Bytes that were put.
    pub sent_bytes: u64,
    /// Bytes that were fetched.
    pub received_bytes: u64,
}

/// What [`Object::allocate`] does with a range, in the terms of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocate {
    /// Reserves the range; grows the object if the range ends beyond it.
    Extend,
    /// Reserves the range; the size stays.
    KeepSize,
    /// Makes the range a hole; the size stays.
    PunchHole,
    /// Makes the range read as zeros; grows the object if the range ends beyond it.
    ZeroRange,
    /// Makes the range read as zeros; the size stays.
    ZeroRangeKeepSize,
}

/// What [`Object::seek`] looks for, in the terms of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seek {
    /// The next byte that may hold data.
    Data,
    /// The next hole; the end of the object counts as one.
    Hole,
}

/// What [`Object::sync`] makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// The bytes, and the size if it grew: fdatasync(2).
    Data,
    /// The bytes, size, times and, if published, the name: fsync(2).
    All,
}

/// Space on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Size of the disk in bytes.
    pub total_bytes: u64,
    /// Unused bytes.
    pub free_bytes: u64,
    /// Unused bytes that ordinary users may use.
    pub available_bytes: u64,
    /// Objects that the disk can hold.
    pub total_objects: u64,
    /// Objects that can still be made.
    pub free_objects: u64,
}

/// What a person wants to know of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Where it is (a path for a directory disk).
    pub location: String,
    /// What it is made of: `xfs`, `ext4`, `tmpfs`, `memory`...
    pub kind: String,
    /// What makes it slower or weaker than it could be, in words, with the remedy.
    pub advice: Vec<String>,
}

/// An open object. All methods may be called from many threads.
pub trait Object: Send + std::marker::Sync {
    /// Gives a fresh object its number, once, before it is published: objects are made ahead of need, when nobody
    /// knows yet for whom.
    fn number(&self, id: ObjectId);

    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the object.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Has the kernel drop from memory what it keeps of `length` bytes at `offset` that are on the disk already. Nothing depends on it.
    fn drop_pages(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }

    /// Writes `data` at `offset`, growing the object. Returns the bytes written: fewer only if the rest was
    /// refused, as for lack of space; the next write tells why.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::TooLarge`], [`DiskError::Io`]: nothing was written.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize>;

    /// Writes `data` at the end of the object as it is at that moment, in one step with every other append, whoever
    /// makes it. Returns the bytes written: fewer only if the rest was refused.
    ///
    /// # Errors
    /// As [`Object::write_at`].
    fn append(&self, data: &[u8]) -> Result<usize>;

    /// Cuts or extends (with a hole) the object to `size` bytes.
    ///
    /// # Errors
    /// [`DiskError::TooLarge`], [`DiskError::Full`], [`DiskError::Io`].
    fn set_size(&self, size: u64) -> Result<()>;

    /// Reserves, punches or zeroes `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::TooLarge`], [`DiskError::Unsupported`], [`DiskError::Io`].
    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()>;

    /// The first offset at or after `offset` that holds what `target` says.
    ///
    /// # Errors
    /// [`DiskError::NoSuchOffset`] if there is none, or `offset` is not within the object.
    fn seek(&self, target: Seek, offset: u64) -> Result<u64>;

    /// Copies up to `length` bytes from `source` at `source_offset` to `offset` of this object,
    /// sharing blocks where the disk can. Returns the bytes copied: 0 at the end of `source`.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`] if `source` lies on another kind of disk: copy through memory then.
    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64>;

    /// Makes this object, which is fresh and empty, hold the bytes of `source` as they are at one moment, by sharing its blocks.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`] if the disk cannot share blocks, or `source` lies on another one: copy the bytes then.
    fn share_from(&self, source: &dyn Object) -> Result<()> {
        let _ = source;
        Err(DiskError::Unsupported)
    }

    /// Makes the object durable (see the crash contract above).
    ///
    /// # Errors
    /// [`DiskError::Io`]: what was written since the last successful sync may be lost.
    fn sync(&self, what: Sync) -> Result<()>;

    /// Size and times.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn attributes(&self) -> Result<ObjectAttributes>;

    /// Sets the time of the last change of the content: that of the object whose copy this is.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`], [`DiskError::Io`].
    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        let _ = modified;
        Err(DiskError::Unsupported)
    }

    /// The file that holds the object's bytes as they are, if there is one: the kernel can then read
    /// and write it without us.
    fn file(&self) -> Option<BorrowedFd<'_>>;

    /// Whether somebody else, such as a shared writable mapping that outlived its file descriptor,
    /// can still write the object's file. `true` if it cannot be told.
    fn has_other_writers(&self) -> bool;

    /// The object as one of a disk of another node, if it is one.
    fn remote(&self) -> Option<&remote::RemoteObject> {
        None
    }

    /// The object as one of a striped disk, if it is one.
    fn striped(&self) -> Option<&striped::StripedObject> {
        None
    }
}

/// A container of objects. All methods may be called from many threads.
pub trait Disk: Send + std::marker::Sync {
    /// Makes a fresh object without a number: [`Object::number`] gives it one.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Io`].
    fn create_fresh(&self) -> Result<Arc<dyn Object>>;

    /// Makes a fresh object that will be published as `id`, if ever.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Io`].
    fn create(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let object = self.create_fresh()?;
        object.number(id);
        Ok(object)
    }

    /// Makes an empty object that has its durable name from the beginning: one step where the disk is another node's.
    ///
    /// # Errors
    /// As [`Disk::create`] and [`Disk::publish`].
    fn create_named(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let object = self.create(id)?;
        self.publish(id, &*object)?;
        Ok(object)
    }

    /// An object that the node of this disk, which is another one, has made and named itself a moment ago. Nothing is asked.
    /// `None` if that node has not been heard of yet, or the disk is not one of another node.
    fn made_at_home(&self, id: ObjectId) -> Option<Arc<dyn Object>> {
        let _ = id;
        None
    }

    /// Names the fresh `object`, made by this disk and numbered `id`, so that [`Disk::open`] finds it.
    ///
    /// # Errors
    /// [`DiskError::Exists`] if the number is taken, [`DiskError::Full`], [`DiskError::Io`].
    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()>;

    /// Opens a published object for reading and writing.
    ///
    /// # Errors
    /// [`DiskError::NotFound`], [`DiskError::Io`].
    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>>;

    /// Whether its objects are packed elsewhere: written once, read by [`Disk::read_archived`], and never opened.
    fn is_archive(&self) -> bool {
        false
    }

    /// Requests to the store of an archive since it was opened.
    fn requests(&self) -> Option<Requests> {
        None
    }

    /// Opens an object of an archive for reading alone.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`] if this is not an archive; [`DiskError::NotFound`], [`DiskError::Io`] if the object is
    /// damaged, [`DiskError::Away`].
    fn read_archived(&self, id: ObjectId) -> Result<Arc<archive::ArchivedObject>> {
        let _ = id;
        Err(DiskError::Unsupported)
    }

    /// Whether objects of a fileset were removed that are there still: the disk removes them later.
    fn has_removals(&self, fileset: FilesetId) -> bool {
        let _ = fileset;
        false
    }

    /// Removes a published object; open handles keep working. An absent one is not an error.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn remove(&self, id: ObjectId) -> Result<()>;

    /// Removes several published objects. Returns those that could not be removed, each with the reason.
    fn remove_all(&self, ids: &[ObjectId]) -> Vec<(ObjectId, DiskError)> {
        ids.iter().filter_map(|id| Some((*id, self.remove(*id).err()?))).collect()
    }

    /// Attributes of a published object without opening it; `None` if there is none.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>>;

    /// Calls `visit` with the number of every published object, in no order, until it returns `false`.
    /// Objects published or removed meanwhile may be missed. Foreign files are passed over.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()>;

    /// As [`Disk::list`], but the objects of one fileset alone.
    ///
    /// # Errors
    /// As [`Disk::list`].
    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list(&mut |id| id.fileset() != fileset || visit(id))
    }

    /// Makes everything published, written and removed so far durable.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn sync(&self) -> Result<()>;

    /// Space in all and left.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn capacity(&self) -> Result<Capacity>;

    /// Keeps `bytes` of space aside, or as many as are free. Returns how many are kept. What was kept before
    /// counts, also from before the disk was opened.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`], [`DiskError::Io`].
    fn keep_reserve(&self, bytes: u64) -> Result<u64>;

    /// Gives up to `bytes` of what is kept aside back: whoever needs them must take them at once. Returns how
    /// many.
    fn give_reserve(&self, bytes: u64) -> u64;

    /// Lets go of everything that keeps the disk in use, so that it can be unmounted. Its objects were all closed before,
    /// and no other call follows.
    fn let_go(&self) {}

    /// What the disk is, for people.
    fn describe(&self) -> Description;

    /// One life of what holds the bytes, where that can end before the machine's: what was written in one and not synced may
    /// be gone in the next.
    fn life(&self) -> u64 {
        0
    }
}

//! Inodes in memory: a cache of what the write set and the store hold, plus what only a running file
//! system knows (open handles, live objects).
//!
//! An inode that is not in use can be dropped from memory at any time: everything it knew is in the
//! write set or the store.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use forebay_base::{DiskId, Epoch, Ino, Timestamp};
use forebay_disk::ObjectAttributes;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::directory::Directory;
use crate::object::{LiveObject, Pool};
use crate::record::{InodeRecord, Kind, ObjectRef};

/// Set-user-id bit.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id bit.
pub const SET_GID: u16 = 0o2000;
/// All bits that chmod can set.
pub const MODE_BITS: u16 = 0o7777;
/// Longest target of a symlink in bytes.
pub(crate) const TARGET_MAX: usize = 4095;

/// Which way an open file's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel reads and writes the object itself.
    Direct,
    /// The daemon reads and writes the object.
    Served,
}

/// An inode in memory.
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// Used since the cache last passed by.
    pub(crate) used: AtomicBool,
    /// How often the kernel was told of it and did not forget it yet. Changed by the cache alone, under
    /// the lock of its shard.
    pub(crate) kernel_refs: AtomicU64,
    state: Mutex<State>,
}

impl Inode {
    pub(crate) fn new(ino: Ino, state: State) -> Inode {
        Inode {
            ino,
            used: AtomicBool::new(true),
            kernel_refs: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }
}

/// What is guarded by an inode's lock.
pub(crate) struct State {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub allocated_bytes: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    pub rdev: u32,
    pub xattrs: u32,
    /// Bytes that they take, names and values, once they were reckoned: to reckon them takes all of them.
    pub xattr_bytes: Option<NonZeroU32>,
    /// Stands for the latest change of them, or for their loading; 0 where there were none.
    pub xattr_changes: u32,
    /// The extended attributes while it has no name: the store knows nothing of such an inode.
    pub nameless_xattrs: NamelessXattrs,
    pub body: Body,
    /// What the usage of its fileset and disk holds for this inode; `None` if it is not counted.
    pub counted: Option<Counted>,
    /// A record of it was handed to the write set at some time.
    pub recorded: bool,
}

/// Values of extended attributes by name.
pub(crate) type NamelessXattrs = Option<Box<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// What counts of an inode: bytes against its fileset, an object and its bytes against a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub bytes: u64,
    pub stored_bytes: u64,
    pub disk: Option<DiskId>,
}

/// What only one kind of inode has.
pub(crate) enum Body {
    File(FileBody),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Special,
}

/// Data of a regular file. What only a file in use has lies in a box of its own, made at its first use:
/// of a million cached files few are in use, and each byte of an inode counts a million times.
#[derive(Default)]
pub(crate) struct FileBody {
    pub object: Option<ObjectRef>,
    /// The pool in which its bytes are to lie, if a rule says so.
    pub placed: Option<Pool>,
    in_use: Option<Box<FileInUse>>,
}

/// Data of a regular file that is open, or was a short while ago.
#[derive(Default)]
pub(crate) struct FileInUse {
    /// The open object: while the file is open, and for a while after.
    pub live: Option<Arc<LiveObject>>,
    pub opens: Opens,
    /// Object attributes that the inode already reflects.
    pub seen: ObjectAttributes,
    /// The kernel's cached pages are those of the object (served path).
    pub pages_valid: bool,
    /// Times were taken from the object while the file could be mapped, and the kernel may still show others.
    pub times_untold: bool,
    /// The object is shorter than the record says, and no crash explains it: bytes beyond its end are lost.
    pub is_cut: bool,
    /// It waits in the queue of closed objects.
    pub idle_queued: bool,
    /// Somebody may have mapped it shared and writable on the direct path: a mapping outlives its file descriptor.
    pub was_mappable: bool,
    /// Number of the copy that is being made of its object on another disk, while nobody has used it since that began;
    /// 0 for none.
    pub copy: u64,
}

/// Open handles of a file. All of this node's kernel go the same way at any one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opens {
    pub way: Option<Way>,
    pub handles: u32,
    /// Handles that can write.
    pub writers: u32,
    /// Handles of running programs.
    pub executors: u32,
    /// Handles that can map shared and writable (opened for reading and writing).
    pub mappers: u32,
    /// Handles, among all, of other nodes: their bytes go through the object's file whichever way the kernel's go.
    pub of_nodes: u32,
    /// Handles of other nodes that can write; they are not among `writers`.
    pub writers_of_nodes: u32,
}

impl Opens {
    /// Whether anybody can write.
    pub fn is_written(&self) -> bool {
        self.writers + self.writers_of_nodes > 0
    }
}

/// What a file that is not in use has.
static NOT_IN_USE: FileInUse = FileInUse {
    live: None,
    opens: Opens {
        way: None,
        handles: 0,
        writers: 0,
        executors: 0,
        mappers: 0,
        of_nodes: 0,
        writers_of_nodes: 0,
    },
    seen: ObjectAttributes {
        size: 0,
        allocated_bytes: 0,
        modified: Timestamp { seconds: 0, nanoseconds: 0 },
    },
    pages_valid: false,
    times_untold: false,
    is_cut: false,
    idle_queued: false,
    was_mappable: false,
    copy: 0,
};

impl std::ops::Deref for FileBody {
    type Target = FileInUse;

    fn deref(&self) -> &FileInUse {
        self.in_use.as_deref().unwrap_or(&NOT_IN_USE)
    }
}

impl std::ops::DerefMut for FileBody {
    fn deref_mut(&mut self) -> &mut FileInUse {
        self.in_use.get_or_insert_default()
    }
}

impl FileBody {
    /// A closed file whose bytes are in `object`.
    pub fn stored(object: Option<ObjectRef>) -> FileBody {
        FileBody { object, placed: None, in_use: None }
    }

    /// Whether it is open in memory with an object that has no name on its disk yet.
    pub fn is_unpublished(&self) -> bool {
        self.live.as_ref().is_some_and(|live| !live.is_published())
    }

    /// Notes object attributes that the inode reflects from now on.
    pub fn see(&mut self, found: ObjectAttributes) {
        self.seen = found;
    }

    /// Gives back the memory of a file that is no longer in use. Pages that the kernel cached count as
    /// invalid from then on.
    pub fn settle(&mut self) {
        if self.opens.handles == 0 && self.live.is_none() {
            self.in_use = None;
        }
    }
}

/// A number that no other change of extended attributes had lately, in whichever life of an inode in memory.
fn next_xattr_change() -> u32 {
    static LATEST: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = LATEST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if next != 0 {
            return next;
        }
    }
}

impl State {
    /// The record that stands for this inode in the store.
    pub fn record(&self, epoch: Epoch) -> InodeRecord {
        InodeRecord {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            allocated_bytes: self.allocated_bytes,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
            rdev: self.rdev,
            parent: self.parent(),
            xattrs: self.xattrs,
            epoch,
            layout: self.file().and_then(|file| file.object).into(),
            target: match &self.body {
                Body::Symlink(target) => target.to_vec(),
                Body::File(_) | Body::Directory(_) | Body::Special => Vec::new(),
            },
        }
    }

    /// The inode that a record of the store stands for.
    pub fn from_record(record: InodeRecord) -> State {
        let body = match record.kind {
            Kind::File => Body::File(FileBody::stored(record.layout.object())),
            Kind::Directory => Body::Directory(Box::new(Directory::stored(record.parent))),
            Kind::Symlink => Body::Symlink(record.target.into_boxed_slice()),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => Body::Special,
        };
        State {
            kind: record.kind,
            mode: record.mode & MODE_BITS,
            uid: record.uid,
            gid: record.gid,
            nlink: record.nlink,
            size: record.size,
            allocated_bytes: record.allocated_bytes,
            accessed: record.accessed,
            modified: record.modified,
            changed: record.changed,
            created: record.created,
            rdev: record.rdev,
            xattrs: record.xattrs,
            xattr_bytes: None,
            // Not that of an earlier time in memory: what was read of them then does not count.
            xattr_changes: if record.xattrs > 0 { next_xattr_change() } else { 0 },
            nameless_xattrs: None,
            body,
            counted: Some(Counted {
                bytes: if record.kind == Kind::File { record.size } else { 0 },
                stored_bytes: record.allocated_bytes,
                disk: record.layout.object().map(|at| at.disk),
            }),
            recorded: true,
        }
    }

    pub fn file(&self) -> Option<&FileBody> {
        match &self.body {
            Body::File(file) => Some(file),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    pub fn file_mut(&mut self) -> Option<&mut FileBody> {
        match &mut self.body {
            Body::File(file) => Some(file),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    pub fn directory_mut(&mut self) -> crate::error::Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            Body::File(_) | Body::Symlink(_) | Body::Special => {
                Err(crate::error::FsError::NotDirectory)
            }
        }
    }

    /// The directory that holds a directory; 0 for other kinds.
    pub fn parent(&self) -> Ino {
        match &self.body {
            Body::Directory(directory) => directory.parent,
            Body::File(_) | Body::Symlink(_) | Body::Special => Ino(0),
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Open handles; 0 for kinds that the kernel opens by itself.
    pub fn handles(&self) -> u32 {
        self.file().map_or(0, |file| file.opens.handles)
    }

    /// Notes that extended attributes change: what was read of them before does not count any more.
    pub fn xattrs_changed(&mut self) {
        self.xattr_changes = next_xattr_change();
    }

    /// Content and inode changed now.
    pub fn touch(&mut self, now: Timestamp) {
        self.modified = now;
        self.changed = now;
    }

    /// A subdirectory is gone, and with it the link of its `..`.
    pub fn lose_subdirectory(&mut self) {
        self.nlink = self.nlink.saturating_sub(1);
    }

    /// What counts of it now.
    pub fn counts(&self) -> Counted {
        Counted {
            bytes: if self.kind == Kind::File { self.size } else { 0 },
            stored_bytes: self.allocated_bytes,
            disk: self.file().and_then(|file| file.object).map(|at| at.disk),
        }
    }

    /// Takes the set-id bits away, as a write or chown does: set-group-id only where it means
    /// execution under the group. Returns whether anything changed.
    pub fn kill_set_id(&mut self) -> bool {
        let mut killed = SET_UID;
        if self.mode & 0o010 != 0 {
            killed |= SET_GID;
        }
        let had = self.mode & killed != 0;
        self.mode &= !killed;
        had
    }

    /// The same for a write by a member of the group `gid`, which alone keeps set-group-id where that means no execution.
    pub fn kill_set_id_for(&mut self, gid: u32) {
        let keeps_group = self.mode & 0o010 == 0 && self.gid == gid;
        self.mode &= if keeps_group { !SET_UID } else { !(SET_UID | SET_GID) };
    }

    /// Whether it is a file that runs as its owner or group.
    pub fn is_privileged(&self) -> bool {
        self.kind == Kind::File
            && (self.mode & SET_UID != 0 || self.mode & (SET_GID | 0o010) == SET_GID | 0o010)
    }
}

/// Several inodes locked at once. Whoever waits for one of them holds none of the others: no two operations wait for
/// each other, and what keeps one inode locked for long keeps nobody from another.
pub(crate) struct Locked<'a>(SmallVec<[(Ino, MutexGuard<'a, State>); LOCKED_MAX]>);

/// Inodes of one operation at most: a rename has two directories and two that they name.
const LOCKED_MAX: usize = 4;

impl<'a> Locked<'a> {
    /// Locks each of `inodes` once.
    pub fn all(inodes: &[&'a Arc<Inode>]) -> Locked<'a> {
        let mut sorted: SmallVec<[&'a Arc<Inode>; LOCKED_MAX]> = SmallVec::from_slice(inodes);
        sorted.sort_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        let mut waited_for = 0;
        loop {
            match Locked::others(&sorted, waited_for) {
                Ok(locked) => return locked,
                Err(busy) => waited_for = busy,
            }
        }
    }

    /// Waits for one of the inodes, and locks the others if all are free; otherwise which one is not.
    fn others(inodes: &[&'a Arc<Inode>], waited_for: usize) -> Result<Locked<'a>, usize> {
        let mut first = inodes.get(waited_for).map(|inode| inode.lock());
        let mut locked = SmallVec::new();
        for (place, inode) in inodes.iter().enumerate() {
            let own = if place == waited_for { first.take() } else { None };
            let state = own.or_else(|| inode.try_lock()).ok_or(place)?;
            locked.push((inode.ino, state));
        }
        Ok(Locked(locked))
    }

    /// The state of one of the locked inodes.
    ///
    /// # Panics
    /// If `ino` is not among them.
    pub fn state(&mut self, ino: Ino) -> &mut State {
        let found = self.0.iter_mut().find(|(locked, _)| *locked == ino);
        &mut found.expect("the inode was locked").1
    }
}

//! A native fileset as it is served: from numbers to inodes of the disk.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use forebay_base::Ino;
use forebay_disk::Capacity;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::attributes::{Attributes, KeepName};
use crate::error::{FsError, Result};
use crate::native::known::{Known, NUMBER_BITS, SeenAt, TOP_NUMBER, Table, Way, shifted};
use crate::native::system::{Handle, STAND_IN, Seen, said, step};
use crate::object::DirectAccess;
use crate::record::Kind;

/// Files that keep the descriptor they were made with although nobody has opened them: mknod(2) makes files that are
/// not opened at once, if ever.
const JUST_MADE_MAX: usize = 256;
/// Directories within each other that are looked up again by name.
const DEPTH_MAX: u32 = 1 << 12;

/// A native fileset, served. Numbers of its inodes begin with the number of the fileset; its top directory has the
/// number that the namespace gives it.
pub struct NativeTree {
    /// Added to each number within the fileset.
    base: u64,
    /// Number of the top directory in the namespace.
    top_ino: Ino,
    pub(super) top: OwnedFd,
    /// Added to the disk's own numbers.
    shift: u64,
    /// An open directory of the disk, for handles.
    disk: Option<OwnedFd>,
    pub(super) table: Mutex<Table>,
    /// Files that were just made, and may be about to be opened with the descriptor that made them.
    just_made: Mutex<VecDeque<Weak<Known>>>,
    kernel: OnceLock<Arc<dyn DirectAccess>>,
}

impl NativeTree {
    /// Serves the tree below `top` under numbers that begin with `base`, which is a multiple of 2^48; `top_ino` is the
    /// number of the top directory itself. At most `descriptors_max` descriptors stand for inodes that nobody has open.
    ///
    /// # Errors
    /// What the disk's file system says of the top directory.
    pub fn open(
        top: OwnedFd,
        base: u64,
        top_ino: Ino,
        descriptors_max: usize,
    ) -> Result<NativeTree> {
        let seen = Seen::of(top.as_fd())?;
        let stand_in = rustix::io::fcntl_dupfd_cloexec(&top, 0).map_err(said)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let disk = rustix::fs::openat(&top, c".", flags, Mode::empty()).ok();
        let disk = disk.filter(|disk| {
            Handle::of(top.as_fd()).is_some_and(|handle| handle.open(disk.as_fd()).is_ok())
        });
        let table = Table::new(seen.identity(), stand_in, descriptors_max, disk.is_some());
        Ok(NativeTree {
            base,
            top_ino,
            top,
            shift: 0,
            disk,
            table: Mutex::new(table),
            just_made: Mutex::default(),
            kernel: OnceLock::new(),
        })
    }

    /// As it is to be served to other nodes, in this life of the daemon (any number that no other life has): no number of an
    /// earlier life means anything in it. Before anything of it is known.
    #[must_use]
    pub fn in_life(mut self, life: u64) -> NativeTree {
        // Spread over all numbers, so that the numbers of two lives hardly ever meet.
        self.shift = life.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - NUMBER_BITS + 1);
        self.table.get_mut().shift(self.shift);
        self
    }

    /// Has the kernel read and write files of the tree itself, from the next open on.
    pub fn set_direct_access(&self, kernel: Arc<dyn DirectAccess>) {
        let _ = self.kernel.set(kernel);
    }

    pub(super) fn direct_access(&self) -> Option<&Arc<dyn DirectAccess>> {
        self.kernel.get()
    }

    /// The number of an inode in the namespace.
    pub(super) fn ino(&self, number: u64) -> Ino {
        if number == TOP_NUMBER { self.top_ino } else { Ino(self.base | number) }
    }

    /// The number under which a listing shows an inode of the disk: that of its lookup, but for rare ones.
    pub(super) fn listed_ino(&self, on_disk: u64) -> Ino {
        let is_top =
            self.table.lock().get(TOP_NUMBER).is_ok_and(|top| top.identity.number == on_disk);
        if is_top {
            return self.top_ino;
        }
        let number = shifted(on_disk, self.shift).unwrap_or(on_disk & ((1 << NUMBER_BITS) - 1));
        Ino(self.base | number)
    }

    fn number(&self, ino: Ino) -> u64 {
        if ino == self.top_ino { TOP_NUMBER } else { ino.0 & ((1 << NUMBER_BITS) - 1) }
    }

    /// Number of the top directory in the namespace.
    #[must_use]
    pub fn top_ino(&self) -> Ino {
        self.top_ino
    }

    /// Whether an inode is the top directory.
    pub(super) fn is_top(&self, ino: Ino) -> bool {
        ino == self.top_ino
    }

    /// The known inode of a number.
    pub(super) fn known(&self, ino: Ino) -> Result<Arc<Known>> {
        self.table.lock().get(self.number(ino))
    }

    /// A known inode, and a descriptor that stands for it.
    pub(super) fn reach(&self, ino: Ino) -> Result<(Arc<Known>, Arc<OwnedFd>)> {
        let known = self.known(ino)?;
        let descriptor = self.descriptor(&known, DEPTH_MAX)?;
        Ok((known, descriptor))
    }

    /// A descriptor that stands for a known inode.
    fn descriptor(&self, known: &Arc<Known>, depth: u32) -> Result<Arc<OwnedFd>> {
        let opened = match known.way()? {
            Way::Descriptor(descriptor) => return Ok(descriptor),
            Way::Handle(handle) => {
                let disk = self.disk.as_ref().ok_or(FsError::Stale)?;
                handle.open(disk.as_fd())?
            }
            Way::Name((parent, name)) => {
                let depth = depth.checked_sub(1).ok_or(FsError::Stale)?;
                let parent = self.table.lock().get(parent)?;
                let directory = self.descriptor(&parent, depth)?;
                let opened = step(directory.as_fd(), &name, STAND_IN, Mode::empty());
                opened.map_err(|error| match error {
                    FsError::NotFound | FsError::NotDirectory => FsError::Stale,
                    other => other,
                })?
            }
        };
        if Seen::of(opened.as_fd())?.identity() != known.identity {
            return Err(FsError::Stale);
        }
        Ok(self.table.lock().adopt(known, opened))
    }

    /// Tells the kernel of the inode that `descriptor` stands for.
    pub(super) fn tell(&self, descriptor: OwnedFd, seen_at: Option<SeenAt>) -> Result<Attributes> {
        let seen = Seen::of(descriptor.as_fd())?;
        let kind = seen.kind()?;
        let known = self.table.lock().tell(seen.identity(), kind, descriptor, seen_at);
        seen.attributes(self.ino(known.number))
    }

    /// As [`NativeTree::tell`], of a file that was just made with `opened`.
    pub(super) fn tell_of_new_file(
        &self,
        opened: OwnedFd,
        seen_at: Option<SeenAt>,
    ) -> Result<Attributes> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = crate::native::system::path_of(opened.as_fd());
        let stand_in = rustix::fs::open(path, flags, Mode::empty()).map_err(said)?;
        let attributes = self.tell(stand_in, seen_at)?;
        let known = self.known(attributes.ino)?;
        known.opens.lock().keep(opened);
        let longest_made = {
            let mut just_made = self.just_made.lock();
            just_made.push_back(Arc::downgrade(&known));
            if just_made.len() > JUST_MADE_MAX { just_made.pop_front() } else { None }
        };
        if let Some(known) = longest_made.and_then(|known| known.upgrade()) {
            known.opens.lock().give_up();
        }
        Ok(attributes)
    }

    /// Where an entry of a directory is, to be noted with its inode.
    pub(super) fn seen_at(&self, parent: Ino, name: &[u8]) -> SeenAt {
        (self.number(parent), name.into())
    }

    /// Tells the kernel once more of the top directory; the namespace's lookup of its name.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn look_up_top(&self) -> Result<Attributes> {
        let attributes = self.attributes(self.top_ino)?;
        Ok(Attributes { name: KeepName::Lasting, ..attributes })
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the kernel was not told of it, or it is gone; what the disk's file system says.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        let (_, descriptor) = self.reach(ino)?;
        Seen::of(descriptor.as_fd())?.attributes(ino)
    }

    /// As [`NativeTree::attributes`].
    ///
    /// # Errors
    /// As [`NativeTree::attributes`].
    pub fn getattr(&self, ino: Ino) -> Result<Attributes> {
        self.attributes(ino)
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.table.lock().forget(self.number(ino), count);
    }

    /// Whether any file is open.
    #[must_use]
    pub fn has_open_files(&self) -> bool {
        self.table.lock().has_open_files()
    }

    /// Known inodes, and descriptors that stand for them.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        self.table.lock().usage()
    }

    /// Space of the disk's file system, and how many inodes it has in use.
    ///
    /// # Errors
    /// What the disk's file system says.
    pub fn capacity(&self) -> Result<(Capacity, u64)> {
        let about = rustix::fs::fstatvfs(&self.top).map_err(said)?;
        let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
        let capacity = Capacity {
            total_bytes: bytes(about.f_blocks),
            free_bytes: bytes(about.f_bfree),
            available_bytes: bytes(about.f_bavail),
            total_objects: about.f_files,
            free_objects: about.f_ffree,
        };
        Ok((capacity, about.f_files.saturating_sub(about.f_ffree)))
    }

    /// Kind of an inode that is known.
    pub(super) fn kind(&self, ino: Ino) -> Result<Kind> {
        Ok(self.known(ino)?.kind)
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        let (known, descriptor) = self.reach(ino)?;
        if known.kind == Kind::Directory { Ok(descriptor) } else { Err(FsError::NotDirectory) }
    }

    /// Identity of what a descriptor stands for, if there is a known inode with it.
    pub(super) fn known_behind(&self, descriptor: BorrowedFd<'_>) -> Option<Arc<Known>> {
        let identity = Seen::of(descriptor).ok()?.identity();
        self.table.lock().find(identity)
    }
}

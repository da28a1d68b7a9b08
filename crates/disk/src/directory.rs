//! A disk in a directory of any local file system: one file for each object.
//!
//! ```text
//! forebay-disk.toml          the label: which disk of which file system; locked while in use
//! objects/0000000012/345     object 0x12345
//! fresh/                     empty, except where the file system has no nameless files
//! fresh/2/                   the same, of one user of a disk that several machines use at the same time
//! reserve                    space kept aside
//! ```
//!
//! A fresh object is a nameless file (`O_TMPFILE`), which publishing links to its name: measured, it
//! costs less to make and drop than a named file (XFS 1.3 to 1.7 times as fast, ext4 1.0 to 1.2),
//! and nothing is left of it in a crash. Where the file system has no such files, a fresh object has
//! a name in `fresh`, from where publishing moves it; what a crash leaves there is removed when the
//! disk is opened.
//!
//! Folders are made when an object is first published into them, and removed some time after the
//! last one left: `objects` never holds more than a few empty ones, besides the newest.
//!
//! **Durability.** [`Sync::All`] is fsync(2): on journaling file systems that write in order it covers
//! the name as well; elsewhere the folder is synced too. fdatasync(2) need not cover the name.
//! [`Disk::sync`] is syncfs(2).
//!
//! Nameless files are made in `objects`, not in the folder that will name them: measured with two
//! threads, creates take half the time so on ext4, and the same on XFS. No descriptors of folders are
//! kept: finding `folder/name` from `objects` takes at most 0.3 of the 2 microseconds of an open more,
//! and a kept descriptor can outlive its folder.
//!
//! [`Sync::All`]: crate::Sync::All

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use forebay_base::{FilesetId, ObjectId};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, StatxFlags};
use rustix::io::Errno;

use self::file_system::Kind;
use self::object::{FileObject, NamedFresh, attributes_of, failed, failed_on};
use crate::reserve::ReserveFile;
use crate::{Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result};

mod file_system;
mod label;
mod names;
mod object;

pub use self::label::Label;

/// Name of the file that keeps space aside.
const RESERVE: &str = "reserve";
/// Removals between two attempts to remove the folders that they may have emptied.
const REMOVALS_PER_SWEEP: usize = 4096;
/// Attempts to publish into a folder that others keep removing as empty.
const PUBLISH_ATTEMPTS: usize = 16;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const OBJECT: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const OBJECT_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// How fresh objects are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreshNaming {
    /// As nameless files, where the file system has them.
    Nameless,
    /// With names in `fresh`.
    Named,
}

/// Who uses a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseBy<'a> {
    /// This process alone.
    One,
    /// Several machines, each under a name of its own.
    Several(&'a str),
}

/// Folders that removals may have emptied.
#[derive(Default)]
struct Emptied {
    folders: BTreeSet<u64>,
    removals: usize,
}

/// A disk in a directory.
pub struct DirectoryDisk {
    path: PathBuf,
    /// The mount that it lies on.
    mount: u64,
    root: OwnedFd,
    objects: Arc<OwnedFd>,
    /// Set where fresh objects need a name.
    named_fresh: Option<Arc<NamedFresh>>,
    kind: Kind,
    /// The highest folder of each fileset that an object was published into: never removed, as more will come.
    newest_folders: Mutex<BTreeMap<FilesetId, u64>>,
    emptied: Mutex<Emptied>,
    reserve: Mutex<ReserveFile>,
    /// Holds the lock that makes this process the only user of the disk, or one of several.
    label: OwnedFd,
}

impl DirectoryDisk {
    /// Marks the empty directory at `path` as the disk that `label` says.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if there is no such directory, it cannot be written, is not empty, or
    /// is a disk already; nothing is changed then. [`DiskError::Io`].
    pub fn format(path: impl AsRef<Path>, label: &Label) -> Result<()> {
        label::write_label(path.as_ref(), label)
    }

    /// The label of the disk at `path`, which may be in use.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if it carries none that can be read, [`DiskError::Io`].
    pub fn read_label(path: impl AsRef<Path>) -> Result<Label> {
        label::read_label(path.as_ref())
    }

    /// Takes the mark of a disk off the directory at `path`, which must be the one that `label` says, in no use, and
    /// without objects. It can be formatted again afterwards.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if it is in use, holds objects, or is another disk; [`DiskError::Io`].
    pub fn unformat(path: impl AsRef<Path>, label: &Label) -> Result<()> {
        label::remove_label(path.as_ref(), label)
    }

    /// Opens the disk at `path`, which must be the one that `label` says.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if it is in use, another disk or none; [`DiskError::Full`] or
    /// [`DiskError::Io`].
    pub fn open(path: impl AsRef<Path>, label: &Label) -> Result<DirectoryDisk> {
        DirectoryDisk::open_with_naming(path.as_ref(), label, FreshNaming::Nameless)
    }

    /// Like [`DirectoryDisk::open`], of a disk on storage that several machines mount and use at the same time: this process is
    /// the user of this name among them.
    ///
    /// # Errors
    /// As [`DirectoryDisk::open`].
    pub fn open_shared(path: impl AsRef<Path>, label: &Label, user: &str) -> Result<DirectoryDisk> {
        let (path, use_by) = (path.as_ref(), UseBy::Several(user));
        DirectoryDisk::open_as(path, label, use_by, FreshNaming::Nameless)
    }

    /// Like [`DirectoryDisk::open`], as if the file system had no nameless files.
    ///
    /// # Errors
    /// As [`DirectoryDisk::open`].
    pub fn open_with_named_fresh_objects(
        path: impl AsRef<Path>,
        label: &Label,
    ) -> Result<DirectoryDisk> {
        DirectoryDisk::open_with_naming(path.as_ref(), label, FreshNaming::Named)
    }

    fn open_with_naming(path: &Path, label: &Label, naming: FreshNaming) -> Result<DirectoryDisk> {
        DirectoryDisk::open_as(path, label, UseBy::One, naming)
    }

    fn open_as(
        path: &Path,
        label: &Label,
        use_by: UseBy<'_>,
        naming: FreshNaming,
    ) -> Result<DirectoryDisk> {
        let io = |operation: &str| {
            let text = format!("cannot {operation} {}", path.display());
            move |errno: Errno| match errno {
                Errno::NOSPC | Errno::DQUOT => DiskError::Full,
                other => DiskError::Io(format!("{text}: {other}")),
            }
        };
        let root = label::open_directory(path)?;
        let lock = label::lock_label(path, &root, label, use_by)?;
        let statfs = rustix::fs::fstatfs(&root).map_err(io("look at"))?;
        // The kernel hands the number out sign-extended on some architectures.
        let kind = Kind::from_magic(statfs.f_type as u64 & u64::from(u32::MAX));
        let objects = open_objects(path, &root)?;
        let mut fresh = open_or_make(&root, "fresh").map_err(io("open the fresh objects of"))?;
        if let UseBy::Several(user) = use_by {
            // What the others have there is in use.
            fresh = open_or_make(&fresh, user).map_err(io("open the fresh objects of"))?;
        }
        remove_all(&fresh).map_err(io("remove old fresh objects of"))?;
        let named = naming == FreshNaming::Named || !has_nameless_files(&objects);
        Ok(DirectoryDisk {
            path: path.to_owned(),
            mount: mount_of(&root),
            root,
            objects: Arc::new(objects),
            named_fresh: named.then(|| Arc::new(NamedFresh::in_directory(fresh))),
            kind,
            newest_folders: Mutex::default(),
            emptied: Mutex::default(),
            reserve: Mutex::new(ReserveFile::at(&path.join(RESERVE))),
            label: lock,
        })
    }

    fn object(
        &self,
        id: OnceLock<ObjectId>,
        file: OwnedFd,
        named_fresh: Option<(Arc<NamedFresh>, u64)>,
    ) -> Arc<dyn Object> {
        let names_to_sync = (!self.kind.file_sync_covers_name).then(|| Arc::clone(&self.objects));
        Arc::new(FileObject { id, file, names_to_sync, named_fresh })
    }

    /// Notes that there is an object in `folder`.
    fn note_folder(&self, folder: u64) {
        let mut newest = self.newest_folders.lock();
        let newest = newest.entry(names::fileset_of(folder)).or_default();
        *newest = folder.max(*newest);
    }

    /// Gives the file of a fresh object its name, in a folder that may have to be made.
    fn name(&self, id: ObjectId, object: &dyn Object) -> rustix::io::Result<()> {
        let target = names::object_path(id);
        match &self.named_fresh {
            None => {
                let file = object.file().ok_or(Errno::INVAL)?.as_raw_fd();
                let source = format!("/proc/self/fd/{file}");
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, source, &self.objects, target, follow)
            }
            Some(fresh) => {
                let mut numbered = fresh.numbered.lock();
                let Some(name) = numbered.get(&id) else {
                    let taken = rustix::fs::statat(&self.objects, target, AtFlags::empty());
                    return Err(taken.map_or(Errno::INVAL, |_| Errno::EXIST));
                };
                move_to(&fresh.directory, &names::fresh_name(*name), &self.objects, &target)?;
                numbered.remove(&id);
                Ok(())
            }
        }
    }

    /// Removes those of `folders` that are empty.
    fn remove_empty(&self, folders: impl IntoIterator<Item = u64>) {
        let newest = self.newest_folders.lock().clone();
        let is_newest = |folder: &u64| newest.get(&names::fileset_of(*folder)) == Some(folder);
        for folder in folders.into_iter().filter(|folder| !is_newest(folder)) {
            // A folder that is not empty stays; one that is removed just as an object comes is made
            // again by its publication.
            let _ =
                rustix::fs::unlinkat(&self.objects, names::folder_name(folder), AtFlags::REMOVEDIR);
        }
    }

    fn list_folder(&self, folder: u64, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<Listed> {
        let name = names::folder_name(folder);
        let io = |errno: Errno| {
            DiskError::Io(format!("cannot list {}/objects/{name}: {errno}", self.path.display()))
        };
        let directory = match rustix::fs::openat(&self.objects, &name, DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Listed::Some),
            Err(errno) => return Err(io(errno)),
        };
        let mut listed = Listed::None;
        for entry in Dir::read_from(&directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            listed = Listed::Some;
            let Some(id) = names::parse_member(folder, name.to_bytes()) else { continue };
            let file_type = match entry.file_type() {
                FileType::Unknown => {
                    match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        Err(Errno::NOENT) => continue,
                        Err(errno) => return Err(io(errno)),
                    }
                }
                known => known,
            };
            if file_type == FileType::RegularFile && !visit(id) {
                return Ok(Listed::Stopped);
            }
        }
        Ok(listed)
    }

    /// Lists the objects of the folders that are `wanted`.
    fn list_folders(
        &self,
        wanted: impl Fn(u64) -> bool,
        visit: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Result<()> {
        let folders = self.folders().map_err(|errno| {
            DiskError::Io(format!("cannot list {}/objects: {errno}", self.path.display()))
        })?;
        folders.iter().for_each(|folder| self.note_folder(*folder));
        for folder in folders.into_iter().filter(|folder| wanted(*folder)) {
            match self.list_folder(folder, visit)? {
                Listed::Some => {}
                Listed::None => self.remove_empty([folder]),
                Listed::Stopped => break,
            }
        }
        Ok(())
    }

    fn folders(&self) -> rustix::io::Result<Vec<u64>> {
        let mut folders = Vec::new();
        for entry in Dir::read_from(&*self.objects)? {
            folders.extend(names::parse_folder(entry?.file_name().to_bytes()));
        }
        folders.sort_unstable();
        Ok(folders)
    }
}

/// The kind of file system that a directory lies on, such as `xfs`.
///
/// # Errors
/// [`DiskError::Io`].
pub fn kind_of_file_system(path: &Path) -> Result<&'static str> {
    let about = rustix::fs::statfs(path)
        .map_err(|errno| DiskError::Io(format!("cannot look at {}: {errno}", path.display())))?;
    // The kernel hands the number out sign-extended on some architectures.
    Ok(Kind::from_magic(about.f_type as u64 & u64::from(u32::MAX)).name)
}

/// What a folder was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// Nothing at all.
    None,
    /// Something.
    Some,
    /// Something, and the visitor has seen enough.
    Stopped,
}

/// The folder of objects, which formatting made: without it all files would look as if they were empty.
fn open_objects(path: &Path, root: &OwnedFd) -> Result<OwnedFd> {
    let shown = path.display();
    rustix::fs::openat(root, "objects", DIRECTORY, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => DiskError::Refused(format!(
            "{shown} has lost its folder \"objects\" with the contents of all files: check what is \
             mounted there, or put the folder back; only if they are lost for good, make an empty one \
             (mkdir -m 700 {shown}/objects)"
        )),
        other => DiskError::Io(format!("cannot open {shown}/objects: {other}")),
    })
}

fn open_or_make(root: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(root, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => rustix::fs::openat(root, name, DIRECTORY, Mode::empty()),
        Err(errno) => Err(errno),
    }
}

fn remove_all(directory: &OwnedFd) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            rustix::fs::unlinkat(directory, entry.file_name(), AtFlags::empty())?;
        }
    }
    Ok(())
}

/// STATX_MNT_ID_UNIQUE of statx(2): a number of the mount that no other one has until the machine starts again.
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The mount that a directory is on; 0 where the kernel has no such number (before Linux 6.8).
fn mount_of(directory: &OwnedFd) -> u64 {
    let found = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, UNIQUE_MOUNT);
    found.map_or(
        0,
        |found| {
            if found.stx_mask & UNIQUE_MOUNT.bits() == 0 { 0 } else { found.stx_mnt_id }
        },
    )
}

/// Whether files without a name can be made in `directory`, and be named later through `/proc`.
fn has_nameless_files(directory: &OwnedFd) -> bool {
    match rustix::fs::openat(directory, ".", OBJECT | OFlags::TMPFILE, OBJECT_MODE) {
        Ok(file) => {
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        }
        // Older kernels take the flag for an attempt to write a directory.
        Err(errno) => !matches!(errno, Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL),
    }
}

/// Moves a file, replacing none.
fn move_to(from: &OwnedFd, from_name: &str, to: &OwnedFd, to_name: &str) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from, from_name, to, to_name, RenameFlags::NOREPLACE) {
        // No such rename on this file system.
        Err(Errno::INVAL) => {
            rustix::fs::linkat(from, from_name, to, to_name, AtFlags::empty())?;
            rustix::fs::unlinkat(from, from_name, AtFlags::empty())
        }
        outcome => outcome,
    }
}

impl Disk for DirectoryDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        let failed = |errno| failed_on("create", "a fresh object", errno);
        let Some(fresh) = &self.named_fresh else {
            let file =
                rustix::fs::openat(&*self.objects, ".", OBJECT | OFlags::TMPFILE, OBJECT_MODE)
                    .map_err(failed)?;
            return Ok(self.object(OnceLock::new(), file, None));
        };
        let flags = OBJECT | OFlags::CREATE | OFlags::EXCL;
        let name = fresh.next.fetch_add(1, Ordering::Relaxed);
        let path = names::fresh_name(name);
        let file =
            rustix::fs::openat(&fresh.directory, path, flags, OBJECT_MODE).map_err(failed)?;
        Ok(self.object(OnceLock::new(), file, Some((Arc::clone(fresh), name))))
    }

    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()> {
        let folder = names::folder_of(id);
        self.note_folder(folder);
        for _ in 0..PUBLISH_ATTEMPTS {
            match self.name(id, object) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(Errno::EXIST) => return Err(DiskError::Exists(id)),
                Err(errno) => return Err(failed("publish", id, errno)),
            }
            match rustix::fs::mkdirat(&*self.objects, names::folder_name(folder), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("make the folder of", id, errno)),
            }
        }
        Err(failed("publish", id, Errno::NOENT))
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let path = names::object_path(id);
        let open = |flags| rustix::fs::openat(&*self.objects, &path, flags, Mode::empty());
        let flags = OBJECT | OFlags::NOFOLLOW;
        let file = match open(flags | OFlags::NOATIME) {
            // Another user's file, which only its owner may read without a trace.
            Err(Errno::PERM) => open(flags),
            outcome => outcome,
        }
        .map_err(|errno| match errno {
            Errno::NOENT => DiskError::NotFound(id),
            other => failed("open", id, other),
        })?;
        Ok(self.object(OnceLock::from(id), file, None))
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        match rustix::fs::unlinkat(&*self.objects, names::object_path(id), AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed("remove", id, errno)),
        }
        let mut emptied = self.emptied.lock();
        emptied.folders.insert(names::folder_of(id));
        emptied.removals += 1;
        if emptied.removals >= REMOVALS_PER_SWEEP {
            let swept = std::mem::take(&mut *emptied);
            drop(emptied);
            self.remove_empty(swept.folders);
        }
        Ok(())
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        let path = names::object_path(id);
        match rustix::fs::statat(&*self.objects, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Some(attributes_of(&stat)))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("look at", id, errno)),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_folders(|_| true, visit)
    }

    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_folders(|folder| names::fileset_of(folder) == fileset, visit)
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.root)
            .map_err(|errno| DiskError::Io(format!("cannot sync {}: {errno}", self.path.display())))
    }

    fn capacity(&self) -> Result<Capacity> {
        let found = rustix::fs::fstatvfs(&self.root).map_err(|errno| {
            DiskError::Io(format!("cannot look at {}: {errno}", self.path.display()))
        })?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        // A file system that makes inodes as needed reports no number of them.
        let objects = |number: u64| if found.f_files == 0 { u64::MAX } else { number };
        Ok(Capacity {
            total_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bfree),
            available_bytes: bytes(found.f_bavail),
            total_objects: objects(found.f_files),
            free_objects: objects(found.f_favail),
        })
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        self.reserve.lock().hold(bytes).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => DiskError::Unsupported,
            _ => DiskError::Io(format!(
                "cannot reserve space in {}/{RESERVE}: {error}",
                self.path.display()
            )),
        })
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        self.reserve.lock().give(bytes)
    }

    /// The file system may have been unmounted without its unsynced bytes, as after an error of the device.
    fn life(&self) -> u64 {
        self.mount
    }

    fn let_go(&self) {
        let Ok(nothing) = std::fs::File::open("/dev/null") else { return };
        let fresh = self.named_fresh.iter().map(|fresh| &fresh.directory);
        for held in [&self.root, &*self.objects, &self.label].into_iter().chain(fresh) {
            // SAFETY: both descriptors are open and owned here; the number stays this object's own.
            unsafe { libc::dup3(nothing.as_raw_fd(), held.as_raw_fd(), libc::O_CLOEXEC) };
        }
    }

    fn describe(&self) -> Description {
        let mut advice = self.kind.advice();
        if self.named_fresh.is_some() {
            advice.push(format!(
                "{} does not support unnamed files (O_TMPFILE), so temporary files cost more; XFS supports them",
                self.kind.name
            ));
        }
        Description {
            location: self.path.display().to_string(),
            kind: self.kind.name.to_owned(),
            advice,
        }
    }
}

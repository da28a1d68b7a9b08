//! What a single-writer cache does at its home, step by step (docs/adr/0105). Every step can be repeated: after a crash it finds done
//! what it did before. A file is written whole under a name of a directory of its own, and renamed then.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use forebay_base::Timestamp;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::home::HomeTree;
use super::queue::Print;
use crate::error::{FsError, Result};

/// The directory at the top of a home in which files are written before they get their names.
pub(crate) const STAGE: &[u8] = b".forebay-write-back";

/// A name of a directory at home, by the path of the directory.
pub(crate) type Name<'a> = (&'a [u8], &'a [u8]);

/// What a name leads to at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum There {
    File(Print),
    Directory,
    Symlink(Vec<u8>),
    Other,
}

/// Attributes that an inode is to have at home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Times of the last access and change; none for a directory.
    pub times: Option<(Timestamp, Timestamp)>,
}

/// What an errno of a step that writes says: that the home is not there, or what is wrong with the step.
fn said(what: &[u8], errno: Errno) -> FsError {
    let what = String::from_utf8_lossy(what);
    match errno {
        Errno::STALE
        | Errno::TIMEDOUT
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NOTCONN
        | Errno::CONNREFUSED
        | Errno::NODEV
        | Errno::NXIO => FsError::HomeAway(format!("{what}: {errno}")),
        Errno::NOSPC | Errno::DQUOT => FsError::Io(format!("the home is full ({what}: {errno})")),
        _ => FsError::Io(format!("the home refuses {what}: {errno}")),
    }
}

fn name_of(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| FsError::Invalid)
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

/// Gives what is open as `opened`, perhaps only as a path, its attributes. The owners first: a change of them takes set-id bits.
fn set(opened: &OwnedFd, what: &[u8], attributes: &Attributes) -> Result<()> {
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let failed = |errno| said(what, errno);
    let owners = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    match rustix::fs::chown(&*path, Some(owners.0), Some(owners.1)) {
        // A home that gives all files to one user, as NFS servers may.
        Err(Errno::PERM) => {}
        done => done.map_err(failed)?,
    }
    rustix::fs::chmod(&*path, Mode::from_raw_mode(u32::from(attributes.mode))).map_err(failed)?;
    let Some((accessed, modified)) = attributes.times else { return Ok(()) };
    let times =
        Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) };
    rustix::fs::utimensat(rustix::fs::CWD, &*path, &times, AtFlags::empty()).map_err(failed)
}

impl HomeTree {
    /// The directory at a path; none if there is none.
    fn directory(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        self.reach(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The directory at a path. Those that are missing are made: somebody has removed them at home.
    fn sure_directory(&self, path: &[u8]) -> Result<OwnedFd> {
        if let Some(found) = self.directory(path)? {
            return Ok(found);
        }
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            self.make_directory(split(&path[..at]))?;
        }
        self.make_directory(split(path))?;
        let gone = || FsError::Io(format!("{} is not a directory at home", shown(path)));
        self.directory(path)?.ok_or_else(gone)
    }

    /// What a name leads to; none if nothing has it.
    pub fn there(&self, (directory, name): Name<'_>) -> Result<Option<There>> {
        let Some(above) = self.directory(directory)? else { return Ok(None) };
        let path = name_of(name)?;
        let stat = match rustix::fs::statat(&above, &path, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            stat => stat.map_err(|errno| said(name, errno))?,
        };
        Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => There::File(print_of(&stat)),
            FileType::Directory => There::Directory,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&above, &path, Vec::new());
                There::Symlink(target.map_err(|errno| said(name, errno))?.into_bytes())
            }
            _ => There::Other,
        }))
    }

    /// Makes a directory, if there is none.
    pub fn make_directory(&self, (directory, name): Name<'_>) -> Result<()> {
        let above = self.directory(directory)?.ok_or(FsError::NotFound)?;
        match rustix::fs::mkdirat(&above, &*name_of(name)?, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(said(name, errno)),
        }
    }

    fn stage(&self) -> Result<OwnedFd> {
        self.sure_directory(STAGE)
    }

    /// A new file without its name yet.
    pub fn begin_file(&self, staged: &str) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = rustix::fs::openat(self.stage()?, staged, flags | OFlags::CLOEXEC, mode);
        opened.map(File::from).map_err(|errno| said(staged.as_bytes(), errno))
    }

    /// All bytes of a new file are written: it gets its attributes, and is synced. Says what tells it from others then.
    pub fn finish_file(&self, file: File, what: &[u8], attributes: &Attributes) -> Result<Print> {
        let failed = |errno| said(what, errno);
        let opened = OwnedFd::from(file);
        // Bytes first: what writes them late would change the time.
        rustix::fs::fsync(&opened).map_err(failed)?;
        set(&opened, what, attributes)?;
        rustix::fs::fsync(&opened).map_err(failed)?;
        Ok(print_of(&rustix::fs::fstat(&opened).map_err(failed)?))
    }

    /// A new symlink without its name yet.
    pub fn stage_symlink(&self, staged: &str, target: &[u8], owners: (u32, u32)) -> Result<()> {
        let (stage, failed) = (self.stage()?, |errno| said(staged.as_bytes(), errno));
        match rustix::fs::unlinkat(&stage, staged, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        rustix::fs::symlinkat(&*name_of(target)?, &stage, staged).map_err(failed)?;
        let (uid, gid) = (Uid::from_raw(owners.0), Gid::from_raw(owners.1));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::chownat(&stage, staged, Some(uid), Some(gid), flags) {
            Ok(()) | Err(Errno::PERM) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// A staged file or symlink gets its name, in the place of what has it. Whether it was still staged.
    pub fn settle(&self, staged: &str, (directory, name): Name<'_>) -> Result<bool> {
        let to = self.sure_directory(directory)?;
        match rustix::fs::renameat(self.stage()?, staged, to, &*name_of(name)?) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(said(name, errno)),
        }
    }

    /// Moves a name in the place of what has the new one. Whether there was anything to move.
    pub fn move_name(&self, from: Name<'_>, to: Name<'_>) -> Result<bool> {
        let Some(old) = self.directory(from.0)? else { return Ok(false) };
        let new = self.sure_directory(to.0)?;
        match rustix::fs::renameat(old, &*name_of(from.1)?, new, &*name_of(to.1)?) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(said(to.1, errno)),
        }
    }

    /// Moves a name out of the way, to one that nothing has.
    pub fn keep(&self, (directory, name): Name<'_>, kept: &[u8]) -> Result<()> {
        let Some(above) = self.directory(directory)? else { return Ok(()) };
        let (old, new) = (name_of(name)?, name_of(kept)?);
        let flags = RenameFlags::NOREPLACE;
        let moved = match rustix::fs::renameat_with(&above, &*old, &above, &*new, flags) {
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(&above, &*old, &above, &*new),
            moved => moved,
        };
        match moved {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(said(name, errno)),
        }
    }

    /// Removes a name, if anything has it. Whether it is gone: a directory that is not empty stays.
    pub fn remove(&self, (directory, name): Name<'_>, is_directory: bool) -> Result<bool> {
        let Some(above) = self.directory(directory)? else { return Ok(true) };
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(above, &*name_of(name)?, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => Ok(false),
            Err(errno) => Err(said(name, errno)),
        }
    }

    /// Gives what a name leads to its attributes, if it is no symlink. What a file is then.
    pub fn set_attributes(
        &self,
        (directory, name): Name<'_>,
        attributes: &Attributes,
    ) -> Result<Option<Print>> {
        let mut path = directory.to_vec();
        path.extend((!path.is_empty()).then_some(b'/'));
        path.extend(name);
        let path = if name.is_empty() { directory } else { &path[..] };
        let Some(found) = self.reach(path, OFlags::PATH)? else { return Ok(None) };
        let failed = |errno| said(name, errno);
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found).map_err(failed)?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory) {
            return Ok(None);
        }
        set(&found, name, attributes)?;
        Ok(Some(print_of(&rustix::fs::fstat(&found).map_err(failed)?)))
    }

    /// Makes all that was done durable at home.
    pub fn sync(&self) -> Result<()> {
        let Some(top) = self.reach(b"", OFlags::RDONLY | OFlags::DIRECTORY)? else { return Ok(()) };
        rustix::fs::syncfs(top.as_fd()).map_err(|errno| said(b"syncfs", errno))
    }

    /// Removes the directory of staged files, and what a crash left in it. It does no harm if it stays.
    pub fn clear_stage(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(Some(stage)) = self.reach(STAGE, flags) else { return };
        for entry in Dir::read_from(&stage).into_iter().flatten().flatten() {
            let _ = rustix::fs::unlinkat(&stage, entry.file_name(), AtFlags::empty());
        }
        drop(stage);
        let _ = self.remove((b"", STAGE), true);
    }
}

fn print_of(stat: &rustix::fs::Stat) -> Print {
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    (u64::try_from(stat.st_size).unwrap_or(0), Timestamp::new(stat.st_mtime, nanoseconds))
}

/// A path as the directory and the name in it.
fn split(path: &[u8]) -> Name<'_> {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

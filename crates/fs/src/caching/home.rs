//! The directory that is the home of a cache, read step by step. Any step may hang for as long as its file system does.
//!
//! No descriptor is kept: the file system may be unmounted and mounted again. Every visit makes sure that the directory is the
//! one that it was when the cache was made: an empty directory on which nothing is mounted must not look like a home whose
//! files were all removed. No way leads out of it, whatever links lie there.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use forebay_base::Timestamp;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;

use super::HomeIdentity;
use super::writing::STAGE;
use crate::error::{FsError, Result};
use crate::record::Kind;

/// How often a step is tried again that the kernel could not decide because of a rename at the same time.
const TRIES: u32 = 64;

/// The unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// What a name leads to at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Bytes of a file that it has at home for sure: not its holes.
    pub stored_bytes: u64,
    pub modified: Timestamp,
    /// Target of a symlink.
    pub target: Vec<u8>,
}

/// What was seen of a name at home, or why that one cannot be read although the home answers.
pub(crate) type Seen = std::result::Result<Entry, Errno>;

/// A directory of a home: its own attributes, and its names.
pub(crate) type Listing = (Entry, Vec<(Vec<u8>, Seen)>);

/// The directory of a home.
pub(crate) struct HomeTree {
    pub directory: String,
    pub identity: HomeIdentity,
}

/// What an errno says: that the home is not there, but for those that concern a single file.
fn said(what: &[u8], errno: Errno) -> FsError {
    match errno {
        Errno::ACCESS | Errno::PERM => FsError::System(errno.raw_os_error()),
        Errno::MFILE | Errno::NFILE => FsError::TooManyFiles(errno.to_string()),
        _ => FsError::HomeAway(format!("{}: {errno}", String::from_utf8_lossy(what))),
    }
}

/// Nothing has that path.
fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::XDEV)
}

/// The kind of an inode, of those that a cache has.
fn kind_of(stat: &Stat) -> Option<Kind> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Symlink),
        _ => None,
    }
}

/// The access control list of a file or directory.
const ACL: &str = "system.posix_acl_access";

/// Whether what is open as `opened`, or lies under a name of that directory, has an access control list.
fn has_acl(opened: BorrowedFd<'_>, name: Option<&std::ffi::CStr>) -> bool {
    let mut path = format!("/proc/self/fd/{}", opened.as_raw_fd()).into_bytes();
    // One with no entries but those of the mode is not stored: any length tells, also one that does not fit.
    let mut list = [0; 256];
    let found = match name {
        None => rustix::fs::getxattr(path, ACL, &mut list),
        Some(name) => {
            path.push(b'/');
            path.extend(name.to_bytes());
            rustix::fs::lgetxattr(path, ACL, &mut list)
        }
    };
    matches!(found, Ok(1..) | Err(Errno::RANGE))
}

/// What `stat` says. With an access control list, which stays at home, the permissions of the group are the list's mask: more than the group has,
/// so it gets none (acl(5)).
fn entry_of(stat: &Stat, kind: Kind, target: Vec<u8>, has_acl: impl FnOnce() -> bool) -> Entry {
    let mode = u16::try_from(stat.st_mode & 0o7777).unwrap_or(0);
    let is_masked = kind != Kind::Symlink && mode & 0o070 != 0 && has_acl();
    let size = match kind {
        Kind::File => u64::try_from(stat.st_size).unwrap_or(0),
        _ => target.len() as u64,
    };
    let stored_bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK).min(size);
    let seconds = stat.st_mtime;
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry {
        kind,
        mode: if is_masked { mode & !0o070 } else { mode },
        uid: stat.st_uid,
        gid: stat.st_gid,
        size,
        stored_bytes,
        modified: Timestamp::new(seconds, nanoseconds),
        target,
    }
}

/// Whether another file system is mounted on a name.
fn is_mounted_on(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(directory, name, flags, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// What lies under a name of an open directory; none if that is nothing, a pipe, socket or device, or another file system.
fn entry_at(
    directory: BorrowedFd<'_>,
    name: &std::ffi::CStr,
) -> std::result::Result<Option<Entry>, Errno> {
    let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(errno) if is_absent(errno) => return Ok(None),
        stat => stat?,
    };
    let Some(kind) = kind_of(&stat) else { return Ok(None) };
    let target = match kind {
        Kind::Symlink => match rustix::fs::readlinkat(directory, name, Vec::new()) {
            Err(errno) if is_absent(errno) || errno == Errno::INVAL => return Ok(None),
            target => target?.into_bytes(),
        },
        _ => Vec::new(),
    };
    if kind != Kind::Symlink && is_mounted_on(directory, name) {
        return Ok(None);
    }
    Ok(Some(entry_of(&stat, kind, target, || has_acl(directory, Some(name)))))
}

impl HomeIdentity {
    /// That of the directory at a path, which a new cache is to have for its home.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it is not a directory that can be opened.
    pub fn of(directory: &str) -> Result<HomeIdentity> {
        let refused = |errno: Errno| FsError::Refused(format!("{directory}: {errno}"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(directory, flags, Mode::empty()).map_err(refused)?;
        identity_of(top.as_fd()).map_err(refused)
    }
}

fn identity_of(top: BorrowedFd<'_>) -> std::result::Result<HomeIdentity, Errno> {
    let inode = rustix::fs::fstat(top)?.st_ino;
    Ok(HomeIdentity { file_system: rustix::fs::fstatfs(top)?.f_type as i64, inode })
}

impl HomeTree {
    /// Opens the directory, and makes sure that it is the right one.
    fn top(&self) -> Result<OwnedFd> {
        let what = self.directory.as_bytes();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let away = |errno| FsError::HomeAway(format!("{}: {errno}", self.directory));
        let top = rustix::fs::open(&*self.directory, flags, Mode::empty()).map_err(away)?;
        let found = identity_of(top.as_fd()).map_err(|errno| said(what, errno))?;
        if found != self.identity {
            return Err(FsError::HomeAway(format!(
                "{} is another directory than when the cache was created: is it mounted?",
                self.directory
            )));
        }
        Ok(top)
    }

    /// Opens what lies at a path below it; none if nothing does.
    pub(super) fn reach(&self, path: &[u8], flags: OFlags) -> Result<Option<OwnedFd>> {
        let top = self.top()?;
        let shown = if path.is_empty() { b"." } else { path };
        let name = CString::new(shown).map_err(|_| FsError::Invalid)?;
        let within = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut tries = TRIES;
        loop {
            match rustix::fs::openat2(&top, &name, flags, Mode::empty(), within) {
                Err(Errno::AGAIN | Errno::INTR) if tries > 0 => tries -= 1,
                Err(errno) if is_absent(errno) => return Ok(None),
                opened => return opened.map(Some).map_err(|errno| said(shown, errno)),
            }
        }
    }

    /// Makes sure that it is there.
    pub fn probe(&self) -> Result<()> {
        self.list_some(b"").map(drop)
    }

    fn list_some(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        self.reach(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// What an error with one name of a directory says of that name, if the home answers otherwise.
    fn one_unreadable(&self, name: &[u8], errno: Errno) -> Result<Errno> {
        match said(name, errno) {
            FsError::HomeAway(_) => self.probe().map(|()| errno),
            FsError::System(_) => Ok(errno),
            error => Err(error),
        }
    }

    /// What lies under a name of a directory; none if nothing does that a cache has.
    pub fn look(&self, directory: &[u8], name: &[u8]) -> Result<Option<Seen>> {
        let Some(above) = self.reach(directory, OFlags::PATH | OFlags::DIRECTORY)? else {
            return Ok(None);
        };
        let name = CString::new(name).map_err(|_| FsError::Invalid)?;
        match entry_at(above.as_fd(), &name) {
            Ok(found) => Ok(found.map(Ok)),
            Err(errno) => self.one_unreadable(name.as_bytes(), errno).map(|errno| Some(Err(errno))),
        }
    }

    /// All that a directory holds; none if there is no such directory. One entry that cannot be read does not keep the others from being
    /// listed. `goes_on` is called with each name.
    pub fn list(&self, path: &[u8], goes_on: &mut dyn FnMut()) -> Result<Option<Listing>> {
        let Some(directory) = self.list_some(path)? else { return Ok(None) };
        let away = |errno| said(path, errno);
        let stat = rustix::fs::fstat(&directory).map_err(away)?;
        let own = entry_of(&stat, Kind::Directory, Vec::new(), || has_acl(directory.as_fd(), None));
        let mut found = Vec::new();
        // Not opened anew, which would need the permission to search it.
        let names = rustix::io::fcntl_dupfd_cloexec(&directory, 0).and_then(Dir::new);
        for entry in names.map_err(away)? {
            let entry = entry.map_err(away)?;
            goes_on();
            let name = entry.file_name();
            let is_staged = path.is_empty() && name.to_bytes() == STAGE;
            if matches!(name.to_bytes(), b"." | b"..") || is_staged {
                continue;
            }
            let seen = match entry_at(directory.as_fd(), name) {
                Ok(known) => known.map(Ok),
                Err(errno) => Some(Err(self.one_unreadable(name.to_bytes(), errno)?)),
            };
            found.extend(seen.map(|seen| (name.to_bytes().to_vec(), seen)));
        }
        Ok(Some((own, found)))
    }

    /// Opens a regular file for reading, with what it is; none if there is none.
    pub fn open(&self, path: &[u8]) -> Result<Option<(File, Entry)>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(opened) = self.reach(path, flags)? else { return Ok(None) };
        let stat = rustix::fs::fstat(&opened).map_err(|errno| said(path, errno))?;
        let is_file = kind_of(&stat) == Some(Kind::File);
        let entry = entry_of(&stat, Kind::File, Vec::new(), || has_acl(opened.as_fd(), None));
        Ok(is_file.then(|| (File::from(opened), entry)))
    }
}

/// What an open file of a home is now.
pub(crate) fn look_again(file: &File) -> Result<Entry> {
    let stat = rustix::fs::fstat(file).map_err(|errno| said(b"a file", errno))?;
    Ok(entry_of(&stat, Kind::File, Vec::new(), || has_acl(file.as_fd(), None)))
}

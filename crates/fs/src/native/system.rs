//! Single steps on the disk's own file system, and what it says in our words.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use forebay_base::{Ino, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp,
};
use rustix::io::Errno;

use crate::attributes::{Attributes, KeepName};
use crate::error::{FsError, Result};
use crate::record::Kind;

/// How often a step is tried again that the kernel could not decide because of a rename at the same time.
const TRIES: u32 = 64;

/// A descriptor that stands for an inode and can neither read nor write it.
pub(super) const STAND_IN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Steps stay within the directory and on its disk, whatever lies there.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What the disk's file system says, as an error of ours.
pub(super) fn said(errno: Errno) -> FsError {
    match errno {
        Errno::NOENT => FsError::NotFound,
        Errno::EXIST => FsError::Exists,
        Errno::NOTDIR => FsError::NotDirectory,
        Errno::ISDIR => FsError::IsDirectory,
        Errno::NOTEMPTY => FsError::NotEmpty,
        Errno::NAMETOOLONG => FsError::NameTooLong,
        Errno::XDEV => FsError::CrossFileset,
        Errno::INVAL => FsError::Invalid,
        Errno::PERM => FsError::NotPermitted,
        Errno::BUSY => FsError::Busy,
        Errno::TXTBSY => FsError::ExecutableBusy,
        Errno::NOSPC => FsError::NoSpace,
        Errno::FBIG => FsError::TooLarge,
        Errno::NODATA => FsError::NoAttribute,
        Errno::TOOBIG => FsError::AttributeTooLarge,
        Errno::MLINK => FsError::TooManyLinks,
        Errno::NXIO => FsError::NoSuchOffset,
        Errno::OPNOTSUPP | Errno::NOSYS => FsError::Unsupported,
        Errno::STALE => FsError::Stale,
        Errno::MFILE | Errno::NFILE => FsError::TooManyFiles(errno.to_string()),
        other => FsError::System(other.raw_os_error()),
    }
}

/// A name as the kernel takes it.
pub(super) fn c_name(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| FsError::Invalid)
}

/// Opens the entry `name` of a directory, which is one step: no way leads out of the directory or off its disk.
pub(super) fn step(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    let name = c_name(name)?;
    let mut tries = TRIES;
    loop {
        match rustix::fs::openat2(directory, &name, flags, mode, WITHIN) {
            Err(Errno::AGAIN | Errno::INTR) if tries > 0 => tries -= 1,
            other => return other.map_err(said),
        }
    }
}

/// The path by which the kernel opens what a descriptor stands for.
pub(super) fn path_of(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Opens what a descriptor stands for, for reading or writing.
pub(super) fn reopen(descriptor: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path_of(descriptor), flags, Mode::empty()).map_err(said)
}

/// What tells one inode of a disk from all others, also from a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Number of the inode on its disk.
    pub number: u64,
    /// When it was made: seconds and nanoseconds.
    made: (i64, u32),
}

/// What statx(2) knows of an inode.
#[derive(Clone, Copy)]
pub(super) struct Seen(Statx);

impl Seen {
    /// Looks at what a descriptor stands for.
    pub fn of(descriptor: BorrowedFd<'_>) -> Result<Seen> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, wanted).map(Seen).map_err(said)
    }

    pub fn identity(&self) -> Identity {
        let made = self.0.stx_btime;
        Identity { number: self.0.stx_ino, made: (made.tv_sec, made.tv_nsec) }
    }

    pub fn kind(&self) -> Result<Kind> {
        kind_of(FileType::from_raw_mode(self.0.stx_mode.into())).ok_or(FsError::Unsupported)
    }

    /// Permission, set-id and sticky bits.
    pub fn mode(&self) -> u16 {
        self.0.stx_mode & 0o7777
    }

    /// Its group.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// Attributes to show under a number of ours.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        let rdev = libc::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor);
        Ok(Attributes {
            ino,
            kind: self.kind()?,
            mode: self.mode(),
            nlink: self.0.stx_nlink,
            uid: self.0.stx_uid,
            gid: self.0.stx_gid,
            // Device numbers that the protocol can carry have 32 bits.
            rdev: u32::try_from(rdev & u64::from(u32::MAX)).unwrap_or(0),
            size: self.0.stx_size,
            allocated_bytes: self.0.stx_blocks.saturating_mul(512),
            accessed: time(self.0.stx_atime),
            modified: time(self.0.stx_mtime),
            changed: time(self.0.stx_ctime),
            created: time(self.0.stx_btime),
            cacheable: false,
            name: KeepName::Never,
        })
    }
}

fn time(of: StatxTimestamp) -> Timestamp {
    Timestamp::new(of.tv_sec, of.tv_nsec)
}

/// The kind of a type of file, if it is one that has a place here.
pub(super) fn kind_of(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// A handle of an inode (name_to_handle_at(2)): finds it again without a descriptor, until it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    kind: libc::c_int,
    bytes: Box<[u8]>,
}

/// A `struct file_handle` with room for the largest handle.
#[repr(C)]
struct RawHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; libc::MAX_HANDLE_SZ as usize],
}

impl Handle {
    /// The handle of what a descriptor stands for; `None` where the disk's file system has none.
    pub fn of(descriptor: BorrowedFd<'_>) -> Option<Handle> {
        let mut raw = RawHandle {
            bytes: libc::MAX_HANDLE_SZ.cast_unsigned(),
            kind: 0,
            handle: [0; libc::MAX_HANDLE_SZ as usize],
        };
        let mut mount: libc::c_int = 0;
        // SAFETY: all pointers live through the call, and the structure has the room that it says.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                descriptor.as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        let length = usize::try_from(raw.bytes).ok()?;
        let bytes = raw.handle.get(..length).filter(|_| done == 0)?;
        Some(Handle { kind: raw.kind, bytes: bytes.into() })
    }

    /// Opens it as a stand-in. `disk` is any open directory of its disk.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the inode is gone; [`FsError::NotPermitted`] without `CAP_DAC_READ_SEARCH`.
    pub fn open(&self, disk: BorrowedFd<'_>) -> Result<OwnedFd> {
        let mut raw = RawHandle {
            bytes: u32::try_from(self.bytes.len()).map_err(|_| FsError::Stale)?,
            kind: self.kind,
            handle: [0; libc::MAX_HANDLE_SZ as usize],
        };
        raw.handle.get_mut(..self.bytes.len()).ok_or(FsError::Stale)?.copy_from_slice(&self.bytes);
        // SAFETY: the structure lives through the call and says its length.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                disk.as_raw_fd(),
                &raw mut raw,
                STAND_IN.bits(),
            )
        };
        match RawFd::try_from(opened) {
            // SAFETY: the kernel just gave this descriptor to us alone.
            Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ => Err(said(
                Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO),
            )),
        }
    }
}

/// Opens a directory to list or sync it.
pub(super) fn open_directory(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory.as_fd(), c".", flags, Mode::empty()).map_err(said)
}

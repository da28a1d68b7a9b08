//! Bytes, owner, mode, times and extended attributes of one file or directory, from one descriptor to another.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Gid, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Bytes that are copied between two looks at whether the command was interrupted.
const PIECE: u64 = 64 << 20;
/// Bytes that are read at a time where the kernel cannot copy.
const BUFFER: usize = 1 << 20;
/// Longest list of names, and longest value (xattr(7)).
const XATTR_MAX: usize = 64 << 10;

/// What could not be kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotKept {
    pub owner: bool,
    pub attributes: u64,
}

/// Copies all bytes and holes.
pub fn copy_bytes(from: &File, to: &File, size: u64, interrupted: &AtomicBool) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Holes up to the end.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(error) => return Err(error.into()),
        };
        if end <= start {
            break;
        }
        copy_range(from, to, (start, end), interrupted)?;
        at = end;
    }
    to.set_len(size)
}

fn copy_range(
    from: &File,
    to: &File,
    (mut at, end): (u64, u64),
    interrupted: &AtomicBool,
) -> io::Result<()> {
    let mut by_kernel = true;
    let mut buffer = Vec::new();
    while at < end {
        if interrupted.load(Ordering::SeqCst) {
            return Err(ErrorKind::Interrupted.into());
        }
        let piece = usize::try_from((end - at).min(PIECE)).unwrap_or(BUFFER);
        let copied = if by_kernel {
            let (mut read_at, mut write_at) = (at, at);
            let ranges = (Some(&mut read_at), Some(&mut write_at));
            match rustix::fs::copy_file_range(from, ranges.0, to, ranges.1, piece) {
                Ok(copied) => copied,
                // Another file system, or one that cannot.
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    by_kernel = false;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        } else {
            buffer.resize(piece.min(BUFFER), 0);
            let read = from.read_at(&mut buffer, at)?;
            to.write_all_at(&buffer[..read], at)?;
            read
        };
        if copied == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the snapshot has fewer bytes"));
        }
        at += copied as u64;
    }
    Ok(())
}

/// Gives `to` the owner, mode, times and extended attributes (ACLs among them) of `from`, and no others.
pub fn copy_attributes(from: &File, to: &File) -> io::Result<NotKept> {
    let wanted = from.metadata()?;
    let is_owner_kept = change_owner(to, &wanted)?;
    let attributes = copy_xattrs(from, to)?;
    rustix::fs::fchmod(to, mode_of(&wanted, is_owner_kept))?;
    rustix::fs::futimens(to, &times_of(&wanted))?;
    Ok(NotKept { owner: !is_owner_kept, attributes })
}

/// The mode that is restored: without set-user-ID and set-group-ID for somebody else than the owner.
pub fn mode_of(wanted: &Metadata, is_owner_kept: bool) -> Mode {
    let mask = if is_owner_kept { 0o7777 } else { 0o1777 };
    Mode::from_raw_mode(wanted.mode() & mask)
}

/// The times of a file.
pub fn times_of(wanted: &Metadata) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    Timestamps {
        last_access: time(wanted.atime(), wanted.atime_nsec()),
        last_modification: time(wanted.mtime(), wanted.mtime_nsec()),
    }
}

/// Whether owner and group are as wanted.
fn change_owner(to: &File, wanted: &Metadata) -> io::Result<bool> {
    let now = to.metadata()?;
    if (now.uid(), now.gid()) == (wanted.uid(), wanted.gid()) {
        return Ok(true);
    }
    let (uid, gid) = (Uid::from_raw(wanted.uid()), Gid::from_raw(wanted.gid()));
    match rustix::fs::fchown(to, Some(uid), Some(gid)) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => {
            // The group alone, if the user is in it.
            let _ = rustix::fs::fchown(to, None, Some(gid));
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// How many attributes could not be kept.
fn copy_xattrs(from: &File, to: &File) -> io::Result<u64> {
    let wanted = names(from)?;
    for name in names(to)?.difference(&wanted) {
        match rustix::fs::fremovexattr(to, name.as_os_str()) {
            // Those of the kernel's own security modules are not the user's.
            Ok(()) | Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut not_kept = 0;
    let mut value = if wanted.is_empty() { Vec::new() } else { vec![0; XATTR_MAX] };
    for name in &wanted {
        let length = rustix::fs::fgetxattr(from, name.as_os_str(), &mut value[..])?;
        match rustix::fs::fsetxattr(to, name.as_os_str(), &value[..length], XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => not_kept += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(not_kept)
}

fn names(of: &File) -> io::Result<BTreeSet<OsString>> {
    let mut list = vec![0_u8; XATTR_MAX];
    let length = match rustix::fs::flistxattr(of, &mut list[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
}

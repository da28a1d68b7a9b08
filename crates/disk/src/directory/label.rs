//! The label that marks a directory as a disk of one file system.
//!
//! It is the file `forebay-disk.toml`, written once by formatting: under another name first, synced,
//! then renamed, so that a crash leaves a whole label or none. The process that uses the disk holds
//! a lock on it.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::UseBy;
use crate::{DiskError, Result};

/// The label's file.
pub(super) const LABEL_FILE: &str = "forebay-disk.toml";
/// What an interrupted formatting may leave; the next one replaces it.
const UNFINISHED_FILE: &str = "forebay-disk.toml.unfinished";
/// Mode of the label: whoever else could open it could lock it, and hold up a mount.
const LABEL_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Version of the layout of a disk.
const FORMAT: u32 = 1;
const HEAD: &str = "# This directory is a disk of a Forebay file system.\n\
                    # Do not change or remove anything in it.\n";

/// Which disk of which file system a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The file system's UUID, as text.
    pub file_system: String,
    /// The disk's name within the file system.
    pub disk: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelText {
    format: u32,
    file_system: String,
    disk: String,
}

impl Label {
    /// As it is written where a disk is not a directory.
    ///
    /// # Panics
    /// Never: it holds only text.
    #[must_use]
    pub fn text(&self) -> String {
        let Label { file_system, disk } = self.clone();
        let text = toml::to_string(&LabelText { format: FORMAT, file_system, disk });
        text.expect("a label is a table of texts")
    }

    /// A label as [`Label::text`] wrote it; `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Label> {
        let label: LabelText = toml::from_str(text).ok()?;
        let LabelText { format, file_system, disk } = label;
        (format == FORMAT).then_some(Label { file_system, disk })
    }
}

/// Opens the directory at `path`.
pub(super) fn open_directory(path: &Path) -> Result<OwnedFd> {
    let refused =
        |why: &str| DiskError::Refused(format!("{} cannot be a disk: {why}", path.display()));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => refused("there is no such directory; create it, or mount the disk there"),
        Errno::NOTDIR => refused("it is not a directory; name the directory where it is mounted"),
        Errno::ACCESS | Errno::PERM => {
            refused("this user may not read it; change its owner or permissions")
        }
        other => failed("open", path, other),
    })
}

/// Marks the directory at `path` with `label`, or refuses and changes nothing.
pub(super) fn write_label(path: &Path, label: &Label) -> Result<()> {
    let directory = open_directory(path)?;
    check_formattable(path, &directory)?;
    let text = LabelText {
        format: FORMAT,
        file_system: label.file_system.clone(),
        disk: label.disk.clone(),
    };
    let text = toml::to_string(&text).map_err(|error| DiskError::Refused(error.to_string()))?;

    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let written = rustix::fs::openat(&directory, UNFINISHED_FILE, flags, LABEL_MODE)
        .map_err(std::io::Error::from)
        .and_then(|file| {
            let mut file = std::fs::File::from(file);
            file.write_all(HEAD.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
    if let Err(error) = written {
        // The error that matters is the one of the write.
        let _ = rustix::fs::unlinkat(&directory, UNFINISHED_FILE, AtFlags::empty());
        return Err(DiskError::Io(format!("cannot write a label in {}: {error}", path.display())));
    }
    // Before the label: what is labelled has it.
    match rustix::fs::mkdirat(&directory, "objects", Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("make the folder of objects in", path, errno)),
    }
    name_label(path, &directory)?;
    rustix::fs::fsync(&directory).map_err(|errno| failed("sync", path, errno))
}

/// Takes the label off a disk that holds no objects, with everything that formatting and use have made. The label goes
/// last: what a crash leaves can be taken off again.
pub(super) fn remove_label(path: &Path, label: &Label) -> Result<()> {
    let directory = open_directory(path)?;
    let _lock = lock_label(path, &directory, label, UseBy::One)?;
    let removed = |name: &str, flags| match rustix::fs::unlinkat(&directory, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(&format!("remove {name} from"), path, errno)),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(objects) = rustix::fs::openat(&directory, "objects", flags, Mode::empty()) {
        let folders = Dir::read_from(&objects).map_err(|errno| failed("list", path, errno))?;
        for folder in folders {
            let folder = folder.map_err(|errno| failed("list", path, errno))?;
            if [&b"."[..], b".."].contains(&folder.file_name().to_bytes()) {
                continue;
            }
            // One with an object in it stays.
            match rustix::fs::unlinkat(&objects, folder.file_name(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::NOTDIR) => {
                    return Err(DiskError::Refused(format!(
                        "{} still holds objects: its label stays",
                        path.display()
                    )));
                }
                Err(errno) => return Err(failed("empty", path, errno)),
            }
        }
    }
    remove_folders_of_users(path, &directory)?;
    for folder in ["objects", "fresh"] {
        removed(folder, AtFlags::REMOVEDIR)?;
    }
    removed("reserve", AtFlags::empty())?;
    removed(LABEL_FILE, AtFlags::empty())?;
    rustix::fs::fsync(&directory).map_err(|errno| failed("sync", path, errno))
}

/// Removes what the users of a shared disk have left among the fresh objects.
fn remove_folders_of_users(path: &Path, directory: &OwnedFd) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(fresh) = rustix::fs::openat(directory, "fresh", flags, Mode::empty()) else {
        return Ok(());
    };
    let io = |errno| failed("empty the fresh objects of", path, errno);
    for user in Dir::read_from(&fresh).map_err(io)? {
        let user = user.map_err(io)?;
        if [&b"."[..], b".."].contains(&user.file_name().to_bytes()) {
            continue;
        }
        if let Ok(left) = rustix::fs::openat(&fresh, user.file_name(), flags, Mode::empty()) {
            super::remove_all(&left).map_err(io)?;
            rustix::fs::unlinkat(&fresh, user.file_name(), AtFlags::REMOVEDIR).map_err(io)?;
        }
    }
    Ok(())
}

/// Gives the finished label its name, replacing none.
fn name_label(path: &Path, directory: &OwnedFd) -> Result<()> {
    let rename =
        |flags| rustix::fs::renameat_with(directory, UNFINISHED_FILE, directory, LABEL_FILE, flags);
    match rename(RenameFlags::NOREPLACE) {
        // No such rename on this file system; that there is no label yet was checked just before.
        Err(Errno::INVAL) => rename(RenameFlags::empty()),
        outcome => outcome,
    }
    .map_err(|errno| failed("label", path, errno))
}

fn check_formattable(path: &Path, directory: &OwnedFd) -> Result<()> {
    let refused = |why: String| {
        Err(DiskError::Refused(format!("{} cannot be formatted: {why}", path.display())))
    };
    match rustix::fs::statat(directory, LABEL_FILE, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {
            let owner = match read_label(path) {
                Ok(label) => {
                    format!("is disk {} of file system {}", label.disk, label.file_system)
                }
                Err(_) => "carries a label that cannot be read".to_owned(),
            };
            return refused(format!("it {owner}; use an empty directory"));
        }
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("look into", path, errno)),
    }
    let entries = Dir::read_from(directory).map_err(|errno| failed("list", path, errno))?;
    for entry in entries {
        let entry = entry.map_err(|errno| failed("list", path, errno))?;
        let name = entry.file_name().to_string_lossy();
        // `lost+found` comes with every new ext4 file system.
        let is_ours = name == "objects" && is_empty_folder(directory, "objects");
        if !is_ours && ![".", "..", "lost+found", UNFINISHED_FILE].contains(&name.as_ref()) {
            return refused(format!("it holds \"{name}\"; empty it, or use another directory"));
        }
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(directory, ".", access, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::ROFS) => refused("it is mounted read-only; remount it for writing".to_owned()),
        Err(Errno::ACCESS | Errno::PERM) => {
            refused("this user may not write to it; change its owner or permissions".to_owned())
        }
        Err(errno) => Err(failed("look into", path, errno)),
    }
}

/// Whether a folder is one that an interrupted formatting may have left.
fn is_empty_folder(directory: &OwnedFd, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entries = rustix::fs::openat(directory, name, flags, Mode::empty())
        .and_then(|folder| Dir::read_from(&folder));
    let is_dot = |name: &[u8]| matches!(name, b"." | b"..");
    entries.is_ok_and(|entries| {
        entries.into_iter().all(|entry| entry.is_ok_and(|it| is_dot(it.file_name().to_bytes())))
    })
}

/// The label of the directory at `path`.
pub(super) fn read_label(path: &Path) -> Result<Label> {
    let directory = open_directory(path)?;
    parse_label(path, open_label(path, &directory)?)
}

/// Locks the label of `directory` for as long as the returned descriptor lives, after checking that
/// it is `expected`.
pub(super) fn lock_label(
    path: &Path,
    directory: &OwnedFd,
    expected: &Label,
    use_by: UseBy<'_>,
) -> Result<OwnedFd> {
    let file = open_label(path, directory)?;
    close_label(&file);
    let lock = match use_by {
        UseBy::One => FlockOperation::NonBlockingLockExclusive,
        UseBy::Several(_) => FlockOperation::NonBlockingLockShared,
    };
    match rustix::fs::flock(&file, lock) {
        Ok(()) => {}
        Err(Errno::AGAIN) => {
            return Err(DiskError::Refused(format!(
                "{} is in use by another process; stop that process first",
                path.display()
            )));
        }
        // Some storage is mounted without locks. Those who share a disk need none: the lock only keeps others away.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) if use_by != UseBy::One => {}
        Err(other) => return Err(failed("lock", path, other)),
    }
    let copy = file.as_fd().try_clone_to_owned().map_err(|error| {
        DiskError::Io(format!("cannot read the label of {}: {error}", path.display()))
    })?;
    let found = parse_label(path, copy)?;
    if found != *expected {
        return Err(DiskError::Refused(format!(
            "{} is disk {} of file system {}, not disk {} of file system {}; check what is mounted \
             there",
            path.display(),
            found.disk,
            found.file_system,
            expected.disk,
            expected.file_system
        )));
    }
    Ok(file)
}

/// Closes a label that an older program left open to others, if it is this user's own.
fn close_label(file: &OwnedFd) {
    let Ok(about) = rustix::fs::fstat(file) else { return };
    let mode = Mode::from_raw_mode(about.st_mode);
    if !(mode - LABEL_MODE).is_empty() {
        let _ = rustix::fs::fchmod(file, mode & LABEL_MODE);
    }
}

fn open_label(path: &Path, directory: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, LABEL_FILE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => DiskError::Refused(format!(
            "{} is not a disk: it has no {LABEL_FILE}; format it, or mount the disk there",
            path.display()
        )),
        other => failed("open the label of", path, other),
    })
}

fn parse_label(path: &Path, file: OwnedFd) -> Result<Label> {
    let refused = |why: &dyn std::fmt::Display| {
        let file: PathBuf = path.join(LABEL_FILE);
        DiskError::Refused(format!("{} cannot be read as a label: {why}", file.display()))
    };
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).map_err(|error| refused(&error))?;
    let label: LabelText = toml::from_str(&text).map_err(|error| refused(&error))?;
    if label.format != FORMAT {
        return Err(refused(&format!(
            "its format is {}, but this version of forebay reads format {FORMAT}; use the version that wrote it",
            label.format
        )));
    }
    Ok(Label { file_system: label.file_system, disk: label.disk })
}

fn failed(operation: &str, path: &Path, errno: Errno) -> DiskError {
    DiskError::Io(format!("cannot {operation} {}: {errno}", path.display()))
}

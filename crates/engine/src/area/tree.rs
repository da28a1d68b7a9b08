//! Removing a tree of any shape with a few descriptors and little memory.
//!
//! What removes a tree by descending needs a descriptor and a piece of stack for each level, and a tree may have as many
//! levels as its owner likes. So a folder that is not empty is moved up to the root of the tree, and emptied there. Nothing is
//! followed: folders are opened without links, and all else is unlinked. A removal that was interrupted is taken up by the
//! next one; two of the same tree do not disturb each other.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// Removes a folder with all that is in it. One that is gone already is no error.
///
/// # Errors
/// The first thing that could not be removed. What could be is gone.
pub fn remove(path: &Path) -> io::Result<()> {
    if !remove_folder(path)? {
        return Ok(());
    }
    let Some(root) = gone(open_own(CWD, path))? else { return Ok(()) };
    let mut tree = Tree { root, moved: 0 };
    loop {
        let before = tree.moved;
        let removed = tree.empty(&tree.root.try_clone()?)?;
        if !remove_folder(path)? {
            return Ok(());
        }
        if removed == 0 && before == tree.moved {
            return Err(Errno::NOTEMPTY.into());
        }
    }
}

/// Removes a folder if it is empty; whether it is still there.
fn remove_folder(path: &Path) -> io::Result<bool> {
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

struct Tree {
    root: OwnedFd,
    /// How many folders were moved up.
    moved: u64,
}

impl Tree {
    /// Removes what is in a folder of the tree once through; how much that was. Folders in it that are not empty are moved
    /// up, or emptied if this is the root.
    fn empty(&mut self, folder: &OwnedFd) -> io::Result<u64> {
        let is_root = same(folder, &self.root)?;
        let mut removed = 0;
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let is_folder = match entry.file_type() {
                FileType::Unknown => is_folder(folder.as_fd(), name)?,
                kind => kind == FileType::Directory,
            };
            if !is_folder {
                gone(rustix::fs::unlinkat(folder, name, AtFlags::empty()))?;
            } else if is_root {
                self.empty_below(name)?;
            } else {
                self.remove_or_move(folder, name)?;
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a folder of the root.
    fn empty_below(&mut self, name: &CStr) -> io::Result<()> {
        loop {
            match rustix::fs::unlinkat(&self.root, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(folder) = gone(open_own(self.root.as_fd(), name))? else { return Ok(()) };
            if self.empty(&folder)? == 0 {
                return Err(Errno::NOTEMPTY.into());
            }
        }
    }

    /// Removes a folder if it is empty, and moves it up otherwise.
    fn remove_or_move(&mut self, folder: &OwnedFd, name: &CStr) -> io::Result<()> {
        match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            let process = rustix::process::getpid().as_raw_nonzero();
            let place = CString::new(format!(".moved-{process}-{}", self.moved))?;
            self.moved += 1;
            match rustix::fs::renameat(folder, name, &self.root, &place) {
                // A folder changes its parent with the rights of its owner.
                Err(Errno::ACCESS) => {
                    own(folder.as_fd(), name)?;
                    gone(rustix::fs::renameat(folder, name, &self.root, &place))?;
                }
                // Somebody has made one of this name.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => continue,
                moved => {
                    gone(moved)?;
                }
            }
            return Ok(());
        }
    }
}

/// What is gone is no error.
fn gone<T>(done: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open(folder: BorrowedFd<'_>, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(folder, path, FOLDER, Mode::empty())
}

/// Opens a folder whose owner may have taken his own rights away.
fn open_own(folder: BorrowedFd<'_>, path: impl Arg + Copy) -> rustix::io::Result<OwnedFd> {
    match open(folder, path) {
        Err(Errno::ACCESS) => {
            own(folder, path)?;
            open(folder, path)
        }
        opened => opened,
    }
}

/// Gives the owner of a folder his rights. By a descriptor, so that no link is followed.
fn own(folder: BorrowedFd<'_>, path: impl Arg) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, path, flags, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), Mode::RWXU)
}

fn is_folder(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let about = gone(rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW))?;
    Ok(about.is_some_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Directory))
}

fn same(a: &OwnedFd, b: &OwnedFd) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_any_depth_is_removed_and_nothing_beside_it() {
        const LEVELS: u32 = 5000;
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("kept"), "x").unwrap();
        let top = place.path().join("tree");
        std::fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &top).unwrap();
        for level in 0..LEVELS {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                rustix::fs::symlinkat(place.path(), &at, "link").unwrap();
                rustix::fs::mkdirat(&at, "other", Mode::RWXU).unwrap();
                let file = OFlags::CREATE | OFlags::WRONLY;
                rustix::fs::openat(&at, "other/file", file, Mode::RUSR).unwrap();
            }
            at = open(at.as_fd(), "d").unwrap();
        }
        drop(at);
        remove(&top).unwrap();
        assert!(!top.exists());
        assert!(place.path().join("kept").exists());
        remove(&top).unwrap();
    }

    #[test]
    fn a_wide_tree_with_names_of_the_removal_itself_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("tree");
        let process = rustix::process::getpid().as_raw_nonzero();
        for folder in 0..50 {
            for below in 0..20 {
                std::fs::create_dir_all(top.join(format!("{folder}/{below}/x"))).unwrap();
                std::fs::write(top.join(format!("{folder}/{below}/file")), "x").unwrap();
            }
            let name = top.join(format!(".moved-{process}-{folder}"));
            if folder % 2 == 0 {
                std::fs::create_dir_all(name.join("full")).unwrap();
            } else {
                std::fs::write(name, "x").unwrap();
            }
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn folders_without_rights_are_removed_by_their_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("tree");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        for folder in ["a/b", "a"] {
            std::fs::set_permissions(top.join(folder), std::fs::Permissions::from_mode(0o000))
                .unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_is_no_folder_is_refused_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let (file, link) = (place.path().join("file"), place.path().join("link"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        assert!(remove(&file).is_err() && remove(&link).is_err());
        assert!(file.exists() && link.exists());
    }
}

//! Scratch directories: made for one use, gone after it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A directory of its own for one step or session; it is removed, with everything in it, when this
/// value goes away.
///
/// The name is taken with one `mkdir`, which a file system grants to one caller only, so that
/// programs on several hosts can share the parent. If the process is killed the directory stays.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
    released: bool,
}

impl ScratchDir {
    /// Makes a directory `<prefix>-<process id>-<number>` in `parent`, which must exist.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made.
    pub fn create(parent: &Path, prefix: &str) -> Result<ScratchDir> {
        let process = std::process::id();
        let mut number = 0_u64;
        loop {
            let path = parent.join(format!("{prefix}-{process}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(ScratchDir { path, released: false }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::io("create directory", &path)(error)),
            }
        }
    }

    /// Where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the directory where it is, and says where.
    #[must_use]
    pub fn leave(mut self) -> PathBuf {
        self.released = true;
        self.path.clone()
    }

    /// Removes the directory and says if that failed, which dropping it cannot.
    ///
    /// # Errors
    /// [`Error::Io`] if something in it cannot be removed.
    pub fn remove(mut self) -> Result<()> {
        self.released = true;
        fs::remove_dir_all(&self.path).map_err(Error::io("remove", &self.path))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if !self.released {
            // The error that led here is the one to report.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes `path` and its parents, unless they are there.
///
/// # Errors
/// [`Error::Io`].
pub fn make_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(Error::io("create directory", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_scratch_directories_never_meet_and_leave_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let one = ScratchDir::create(parent.path(), "sort").unwrap();
        let two = ScratchDir::create(parent.path(), "sort").unwrap();
        assert_ne!(one.path(), two.path());
        fs::write(one.path().join("file"), b"x").unwrap();
        drop(one);
        two.remove().unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}

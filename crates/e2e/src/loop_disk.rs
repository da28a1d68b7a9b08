//! A small file system of its own for a test, in a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::command::run;
use crate::{grid, need};

const LIMIT: Duration = Duration::from_secs(60);

/// A file system on a loop device; unmounted and removed when dropped. Fixtures that use it are
/// declared after it, so that they go first.
#[derive(Debug)]
pub struct LoopDisk {
    folder: TempDir,
}

impl LoopDisk {
    /// Makes and mounts a file system of `kind` (`ext4` or `xfs`, which needs 300 MiB at least).
    ///
    /// # Panics
    /// If the test does not run as root, or a program for it is missing.
    #[track_caller]
    #[must_use]
    pub fn make(kind: &str, size_mib: u64) -> LoopDisk {
        LoopDisk::make_with(kind, size_mib, &[])
    }

    /// As [`LoopDisk::make`], with further options of mkfs(8).
    ///
    /// # Panics
    /// If the test does not run as root, or a program for it is missing.
    #[track_caller]
    #[must_use]
    pub fn make_with(kind: &str, size_mib: u64, options: &[&str]) -> LoopDisk {
        need::root();
        let folder = grid::scratch_folder();
        let image = folder.path().join("disk");
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(size_mib << 20))
            .expect("makes the file of the loop device");
        run(need::program(&format!("mkfs.{kind}")).args(options).arg(&image), LIMIT).succeeds();
        let disk = LoopDisk { folder };
        std::fs::create_dir(disk.path()).expect("makes the mount point");
        run(need::program("mount").args(["-o", "loop"]).arg(&image).arg(disk.path()), LIMIT)
            .succeeds();
        disk
    }

    /// The folder at which the file system is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("disk-mount")
    }

    /// Space that is free for an ordinary user, in bytes.
    ///
    /// # Panics
    /// If the file system does not answer.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        free_bytes(&self.path())
    }
}

/// Space that is free for an ordinary user on the file system of `path`, in bytes.
///
/// # Panics
/// If the file system does not answer.
#[must_use]
pub fn free_bytes(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).expect("asks for the free space");
    space.f_bavail * space.f_frsize
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if grid::is_mounted(&self.path()) {
            let first = run(need::program("umount").arg(self.path()), LIMIT);
            if first.code() != 0 {
                let _ = run(need::program("umount").arg("-l").arg(self.path()), LIMIT);
                assert!(std::thread::panicking(), "something still uses the loop disk: {first:#?}");
            }
        }
    }
}

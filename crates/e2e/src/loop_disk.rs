//! A small file system of its own for a test, in a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::command::{Ended, run};
use crate::{mounted, need};

const LIMIT: Duration = Duration::from_secs(60);

/// A file system on a loop device; unmounted and removed when dropped. Fixtures that use it are
/// declared after it, so that they go first.
#[derive(Debug)]
pub struct LoopDisk {
    folder: TempDir,
    image: PathBuf,
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
        let folder = mounted::scratch_folder();
        let image = folder.path().join("image");
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(size_mib << 20))
            .expect("makes the file of the loop device");
        run(need::program(&format!("mkfs.{kind}")).args(options).arg(&image), LIMIT).succeeds();
        let disk = LoopDisk { folder, image };
        std::fs::create_dir(disk.path()).expect("makes the mount point");
        disk.mount();
        disk
    }

    #[track_caller]
    fn mount(&self) {
        run(need::program("mount").args(["-o", "loop"]).arg(&self.image).arg(self.path()), LIMIT)
            .succeeds();
    }

    /// Unmounts and mounts again: nothing of the files stays in memory.
    ///
    /// # Panics
    /// If something uses the disk.
    #[track_caller]
    pub fn remount(&self) {
        self.unmount().succeeds();
        // The pages of the file under the device are another cache.
        let image = std::fs::File::open(&self.image).expect("opens the file of the loop device");
        image.sync_all().expect("syncs the file of the loop device");
        rustix::fs::fadvise(&image, 0, None, rustix::fs::Advice::DontNeed)
            .expect("drops its pages");
        self.mount();
        // A mount namespace of another test may hold the file system as it was, and one that was shut down stays so for as long as
        // that test lasts: the same bytes are then mounted from another loop device.
        let probe = self.path().join(".remounted");
        if std::fs::write(&probe, b"").is_err() {
            self.unmount().succeeds();
            self.mount_from_new_device();
            std::fs::write(&probe, b"").expect("the disk takes files again");
        }
        std::fs::remove_file(&probe).expect("the disk takes files again");
    }

    /// As [`LoopDisk::mount`], which takes the device that the file has already, from a new one. XFS refuses a second file system of
    /// one UUID unless it is told not to look (xfs(5), `nouuid`).
    #[track_caller]
    fn mount_from_new_device(&self) {
        let losetup = || need::program("losetup");
        let shown = run(losetup().args(["--find", "--show"]).arg(&self.image), LIMIT).output();
        let device = shown.trim();
        run(need::program("mount").args(["-o", "nouuid", device]).arg(self.path()), LIMIT)
            .succeeds();
        // The kernel lets the device go with its last mount.
        run(losetup().args(["--detach", device]), LIMIT).succeeds();
    }

    /// Unmounts it. A child that another thread has just forked has the descriptors of this process until it executes
    /// something, so that the first tries may find the disk busy.
    fn unmount(&self) -> Ended {
        let umount = || run(need::program("umount").arg(self.path()), LIMIT);
        let mut ended = umount();
        for _ in 0..100 {
            if ended.code() == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            ended = umount();
        }
        ended
    }

    /// The file of the loop device.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The folder at which the file system is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("disk-mount")
    }

    /// Space that is free for root, in bytes: the tests fill ext4 to the last block.
    ///
    /// # Panics
    /// If the file system does not answer.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let space = rustix::fs::statvfs(self.path()).expect("asks for the free space");
        space.f_bfree * space.f_frsize
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if mounted::is_mounted(&self.path()) {
            let ended = self.unmount();
            if ended.code() != 0 {
                let _ = run(need::program("umount").arg("-l").arg(self.path()), LIMIT);
                assert!(std::thread::panicking(), "something still uses the loop disk: {ended:#?}");
            }
        }
    }
}

//! A disk for a subject: a file system in a sparse file on a loop device, mounted in a cell only.
//!
//! The device is told to go away with its last user as soon as it is mounted, so that the end of the
//! cell takes down mount and device both, however the benchmark ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::ByteSize;

use super::cell::Cell;
use crate::external::{find, run};
use crate::machine::reset_read_ahead;

/// Size of the file; sparse, but the disk may fill it.
const SIZE: ByteSize = ByteSize::gib(12);
/// Waits for a device to be gone, each of [`GONE_PAUSE`].
const GONE_WAITS: u32 = 600;
const GONE_PAUSE: Duration = Duration::from_millis(100);

/// A kind of local file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

/// A mounted loop file. The end of its cell unmounts it; [`Image::remove`] then removes the file.
#[derive(Debug)]
pub struct Image {
    file: PathBuf,
    device: String,
    /// Where it is mounted, in the cell.
    pub mountpoint: PathBuf,
}

impl Image {
    /// Makes a file system in `folder` and mounts it in `cell`.
    ///
    /// # Errors
    /// If a program for it is missing or fails.
    pub fn mount(cell: &Cell, folder: &Path, format: Format) -> Result<Image> {
        let file = folder.join("image");
        File::create_new(&file)
            .and_then(|file| file.set_len(SIZE.0))
            .with_context(|| file.display().to_string())?;
        let (mkfs, quiet) = match format {
            Format::Xfs => ("mkfs.xfs", "-q"),
            Format::Ext4 => ("mkfs.ext4", "-q"),
        };
        run(&find(mkfs)?, [quiet.as_ref(), file.as_os_str()])?;
        let losetup = find("losetup")?;
        let attach = ["--find", "--show", "--direct-io=on"].map(AsRef::as_ref);
        // Without direct I/O every byte would be cached twice, and write-back would end in memory.
        let device = run(&losetup, attach.into_iter().chain([file.as_os_str()]))
            .context("a loop device with direct I/O")?
            .trim()
            .to_owned();
        let mountpoint = folder.join("disk");
        let reset = reset_read_ahead(&device);
        let mounted = cell.mount(&[], Path::new(&device), &mountpoint);
        // Mounted, it goes with the last user, not before.
        run(&losetup, ["--detach", &device])?;
        mounted?;
        reset?;
        Ok(Image { file, device, mountpoint })
    }

    /// Waits until the device is gone and removes the file. The cell has ended.
    ///
    /// # Errors
    /// If the device is still in use after a minute.
    pub fn remove(self) -> Result<()> {
        let name = self.device.trim_start_matches("/dev/");
        let backing = PathBuf::from(format!("/sys/block/{name}/loop/backing_file"));
        let ours = |text: String| Path::new(text.trim_end()) == self.file;
        let mut waits = 0;
        while fs::read_to_string(&backing).is_ok_and(ours) {
            waits += 1;
            if waits > GONE_WAITS {
                bail!("{} is still in use by {}", self.device, self.file.display());
            }
            std::thread::sleep(GONE_PAUSE);
        }
        fs::remove_file(&self.file).with_context(|| self.file.display().to_string())
    }
}

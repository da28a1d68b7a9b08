//! The disks that are measured: an XFS of the benchmark's own, and what the machine has.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::ByteSize;
use forebay_process::mounts;
use rustix::mount::{UnmountFlags, unmount};

use crate::external::{find, run};
use crate::machine::{read_ahead, reset_read_ahead};

/// A directory on a disk, for everything that is measured on it. Removed when dropped, and with it
/// the loop device and its file.
#[derive(Debug)]
pub struct Disk {
    /// Short name.
    pub name: String,
    /// What it is, for people.
    pub description: String,
    /// Where to make things.
    pub folder: PathBuf,
    image: Option<Image>,
}

/// A file system in a file. Dropped, it is unmounted and gone.
#[derive(Debug)]
struct Image {
    file: PathBuf,
    mountpoint: PathBuf,
    device: Option<String>,
    mounted: bool,
}

impl Disk {
    /// The file system that `scratch` is on.
    ///
    /// # Errors
    /// If the directory cannot be made; if it is in memory.
    pub fn own(scratch: &Path) -> Result<Disk> {
        let kind = kind_of(scratch)?;
        if matches!(kind.as_str(), "tmpfs" | "ramfs" | "overlay") {
            bail!("{} is on {kind}, which is no disk: choose another --scratch", scratch.display());
        }
        let folder = scratch.join("own");
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let read_ahead = read_ahead(&folder)?;
        let description =
            format!("{kind}, the file system of the machine; read-ahead {read_ahead} KiB");
        Ok(Disk { name: kind, description, folder, image: None })
    }

    /// An XFS in a sparse file of `size` in `scratch`.
    ///
    /// # Errors
    /// If a program for it is missing or fails.
    pub fn xfs(scratch: &Path, size: ByteSize) -> Result<Disk> {
        let (file, mountpoint) = (scratch.join("xfs.image"), scratch.join("xfs"));
        let mut image = Image { file, mountpoint, device: None, mounted: false };
        File::create_new(&image.file)
            .and_then(|file| file.set_len(size.0))
            .with_context(|| image.file.display().to_string())?;
        let file = image.file.as_os_str().to_owned();
        run(&find("mkfs.xfs")?, ["-q".as_ref(), file.as_os_str()])?;
        let losetup = find("losetup")?;
        let attach = |direct: &str| {
            run(&losetup, ["--find".as_ref(), "--show".as_ref(), direct.as_ref(), file.as_os_str()])
        };
        // Without direct I/O every byte would be cached twice, and write-back would end in memory.
        let (device, how) = match attach("--direct-io=on") {
            Ok(device) => (device, "with direct I/O"),
            Err(_) => (attach("--direct-io=off")?, "without direct I/O"),
        };
        let device = device.trim().to_owned();
        image.device = Some(device.clone());
        reset_read_ahead(&device)?;
        fs::create_dir(&image.mountpoint)?;
        run(&find("mount")?, [device.as_ref(), image.mountpoint.as_os_str()])?;
        image.mounted = true;
        let (below, read_ahead) = (kind_of(scratch)?, read_ahead(&image.mountpoint)?);
        Ok(Disk {
            name: "xfs".to_owned(),
            description: format!(
                "XFS in a loop file of {size} ({how}) on {below}; read-ahead {read_ahead} KiB"
            ),
            folder: image.mountpoint.clone(),
            image: Some(image),
        })
    }

    /// Takes everything down.
    ///
    /// # Errors
    /// If something is in use.
    pub fn remove(mut self) -> Result<()> {
        match self.image.take() {
            Some(mut image) => image.remove(),
            None => fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot remove {}", self.folder.display())),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.image.is_none() {
            // The scratch directory around it is removed as well.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Image {
    fn remove(&mut self) -> Result<()> {
        if self.mounted {
            // The last program on it may not be quite gone.
            let mut tries = 0;
            while let Err(error) = unmount(&self.mountpoint, UnmountFlags::empty()) {
                tries += 1;
                if tries == 50 {
                    unmount(&self.mountpoint, UnmountFlags::DETACH)?;
                    eprintln!("forebay-bench: {} was in use: {error}", self.mountpoint.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            self.mounted = false;
        }
        if let Some(device) = self.device.take() {
            run(&find("losetup")?, ["--detach", &device])?;
        }
        let _ = fs::remove_dir(&self.mountpoint);
        fs::remove_file(&self.file).with_context(|| self.file.display().to_string())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.file.exists()
            && let Err(error) = self.remove()
        {
            eprintln!("forebay-bench: the XFS disk was not removed: {error:#}");
        }
    }
}

/// The kind of file system that a directory is on, such as `ext4`.
///
/// # Errors
/// If the mount table cannot be read.
pub fn kind_of(directory: &Path) -> Result<String> {
    let directory = directory.canonicalize().with_context(|| directory.display().to_string())?;
    let mounts = mounts::all();
    let mount = mounts::of(&mounts, &directory, None).context("the mount table is empty")?;
    Ok(mount.file_system.clone())
}

/// Refuses to start without `needed` of space.
///
/// # Errors
/// If there is less.
pub fn check_space(directory: &Path, needed: ByteSize) -> Result<()> {
    let space = rustix::fs::statvfs(directory)?;
    let free = space.f_bavail * space.f_frsize;
    if free < needed.0 {
        bail!(
            "{} has {} MiB free, {} MiB are needed: choose another --scratch or a smaller --scale",
            directory.display(),
            free >> 20,
            needed.0 >> 20
        );
    }
    Ok(())
}

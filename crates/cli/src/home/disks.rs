//! Directories that become disks of a file system, and cease to be.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use forebay_disk::Disk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::record::{DiskRecord, DiskUse};
use forebay_fs::{Namespace, NewDisk};

/// Makes a disk of an empty directory and adds it to a file system. Goes on where an earlier try was interrupted.
///
/// # Errors
/// If the directory cannot be a disk, with the reason; nothing is added then.
pub fn add(fs: &Namespace, path: &Path, pool: &str, group: &str) -> Result<()> {
    let path = path.canonicalize().with_context(|| {
        format!("disk {}: name an existing, empty directory on the disk", path.display())
    })?;
    let file_system = fs.uuid();
    let mut uuid = None;
    if let Ok(label) = DirectoryDisk::read_label(&path)
        && label.file_system == file_system
    {
        if fs.was_removed(&label.disk) {
            DirectoryDisk::unformat(&path, &label)?;
        } else if !fs.has_disk(&label.disk) {
            uuid = Some(label.disk);
        }
    }
    let is_labelled = uuid.is_some();
    let uuid = uuid.map_or_else(super::uuid, Ok)?;
    let label = Label { file_system, disk: uuid.clone() };
    if !is_labelled {
        DirectoryDisk::format(&path, &label)?;
    }
    let opened = DirectoryDisk::open(&path, &label);
    let disk: Arc<dyn Disk> = Arc::new(opened.with_context(|| format!("disk {}", path.display()))?);
    let new = NewDisk {
        uuid,
        location: path.display().to_string(),
        pool: pool.to_owned(),
        group: group.to_owned(),
    };
    let added = new.check().and_then(|()| fs.add_disk(&new, disk));
    if added.is_err()
        && !is_labelled
        && let Err(error) = DirectoryDisk::unformat(&path, &label)
    {
        tracing::warn!(path = new.location, %error, "a directory that did not become a disk keeps its label");
    }
    Ok(added?)
}

/// Takes an empty disk away from a file system, and its label off the directory.
///
/// # Errors
/// If the disk cannot be taken away, with the reason.
pub fn remove(fs: &Namespace, which: &str) -> Result<()> {
    let before = fs.disk_named(which)?;
    let DiskRecord { uuid, location, .. } = fs.remove_disk(which)?;
    let label = Label { file_system: fs.uuid(), disk: uuid };
    if fs.is_in_cluster() {
        // The node that has it sees to that.
        return Ok(());
    }
    if before.used != DiskUse::Lost
        && let Err(error) = DirectoryDisk::unformat(&location, &label)
    {
        // Whoever adds it again, or uses it otherwise, can do that.
        tracing::warn!(location, %error, "a disk that was taken away keeps its label");
    }
    Ok(())
}

//! Directories and archives that become disks of a file system, and cease to be.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_disk::Disk;
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::record::{DiskRecord, DiskUse};
use forebay_fs::{Namespace, NewDisk};

use super::archive;

/// A disk that is to be added.
pub struct Wanted<'a> {
    /// Its directory, or the address of an archive.
    pub path: &'a Path,
    pub pool: &'a str,
    pub group: &'a str,
    /// All nodes of the cluster mount it under this path.
    pub is_shared: bool,
}

/// Makes a disk of an empty directory, or of the address of an archive, and adds it to the file system whose home folder is
/// `root`. Goes on where an earlier try was interrupted.
///
/// # Errors
/// If the directory cannot be a disk, with the reason; nothing is added then.
pub fn add(fs: &Namespace, root: &Path, wanted: &Wanted<'_>) -> Result<()> {
    let Wanted { path, pool, group, is_shared } = *wanted;
    if let Some(address) = path.to_str().filter(|path| archive::is_archive(path)) {
        ensure!(!is_shared, "{address} is an archive, which all nodes reach anyway: omit --shared");
        return add_archive(fs, root, address, pool, group);
    }
    ensure!(
        !is_shared || fs.is_in_cluster(),
        "a shared disk is one that all nodes of a cluster mount: on one machine omit --shared"
    );
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
    let directory = path.display().to_string();
    let (opened, location) = if is_shared {
        let opened = DirectoryDisk::open_shared(&path, &label, &fs.node_name());
        (opened, DiskRecord::shared_location(&directory))
    } else {
        (DirectoryDisk::open(&path, &label), directory)
    };
    let disk: Arc<dyn Disk> = Arc::new(opened.with_context(|| format!("disk {}", path.display()))?);
    let new = NewDisk { uuid, location, pool: pool.to_owned(), group: group.to_owned() };
    let added = new.check().and_then(|()| fs.add_disk(&new, disk));
    if added.is_err()
        && !is_labelled
        && let Err(error) = DirectoryDisk::unformat(&path, &label)
    {
        tracing::warn!(path = new.location, %error, "a directory that did not become a disk keeps its label");
    }
    Ok(added?)
}

fn add_archive(fs: &Namespace, root: &Path, address: &str, pool: &str, group: &str) -> Result<()> {
    let location = archive::normal(address)?;
    let bucket = archive::bucket(root, &location)?;
    let file_system = fs.uuid();
    let known = ArchiveDisk::read_label(&*bucket, &location)?;
    let own = known.filter(|label| label.file_system == file_system);
    let uuid = match own {
        Some(label) if fs.was_removed(&label.disk) => {
            ArchiveDisk::unformat(&*bucket, &location)?;
            super::uuid()?
        }
        Some(label) if !fs.has_disk(&label.disk) => label.disk,
        Some(label) => bail!("{location} is disk {} of this file system already", label.disk),
        None => super::uuid()?,
    };
    let label = Label { file_system, disk: uuid.clone() };
    ArchiveDisk::format(&*bucket, &label, &location)?;
    let disk: Arc<dyn Disk> = Arc::new(ArchiveDisk::open(bucket, label, &location));
    let new = NewDisk { uuid, location, pool: pool.to_owned(), group: group.to_owned() };
    let added = fs.add_disk(&new, disk);
    if added.is_err() {
        let bucket = archive::bucket(root, &new.location)?;
        if let Err(error) = ArchiveDisk::unformat(&*bucket, &new.location) {
            tracing::warn!(location = new.location, %error, "a place that did not become a disk keeps its label");
        }
    }
    Ok(added?)
}

/// Takes an empty disk away from a file system, and its label off the directory.
///
/// # Errors
/// If the disk cannot be taken away, with the reason.
pub fn remove(fs: &Namespace, root: &Path, which: &str) -> Result<()> {
    let before = fs.disk_named(which)?;
    let DiskRecord { uuid, location, .. } = fs.remove_disk(which)?;
    let label = Label { file_system: fs.uuid(), disk: uuid };
    if fs.is_in_cluster() {
        // The node that has it sees to that.
        return Ok(());
    }
    if archive::is_archive(&location) {
        let bucket = archive::bucket(root, &location);
        let unmarked = bucket.and_then(|bucket| Ok(ArchiveDisk::unformat(&*bucket, &location)?));
        if let (true, Err(error)) = (before.used != DiskUse::Lost, unmarked) {
            let error = crate::output::chain(&error);
            tracing::warn!(location, error, "an archive that was taken away keeps its label");
        }
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

//! Directories and archives that become disks of a file system, and cease to be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_disk::Disk;
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::striped::place;
use forebay_fs::record::{DiskRecord, DiskUse, Striping};
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

/// A striped disk that is to be added.
pub struct WantedStriped<'a> {
    /// The disks that it is to lie over, as people name them.
    pub disks: &'a [String],
    /// Or the pool that they make up.
    pub over: Option<&'a str>,
    pub unit_bytes: u64,
    pub pool: &'a str,
    pub group: &'a str,
}

/// Makes a disk over disks of a file system, and adds it.
///
/// # Errors
/// If those cannot be below one, with the reason; nothing is added then.
pub fn stripe(fs: &Namespace, wanted: &WantedStriped<'_>) -> Result<()> {
    let members = fs.disks_to_stripe(wanted.disks, wanted.over)?;
    let directories: Vec<PathBuf> =
        members.iter().map(|disk| PathBuf::from(&disk.location)).collect();
    forebay_disk::striped::check(directories.len(), wanted.unit_bytes)?;
    let file_system = fs.uuid();
    forget_unfinished(fs, &directories, &file_system);
    let label = Label { file_system, disk: super::uuid()? };
    let ids: Vec<_> = members.iter().map(|disk| disk.id).collect();
    let new = NewDisk {
        uuid: label.disk.clone(),
        location: DiskRecord::striped_location(wanted.unit_bytes, &ids),
        pool: wanted.pool.to_owned(),
        group: wanted.group.to_owned(),
    };
    let added = new.check().map_err(Into::into).and_then(|()| {
        place::format(&directories, &label)?;
        let disk = place::open(&directories, wanted.unit_bytes, &label)?;
        Ok(fs.add_disk(&new, Arc::new(disk))?)
    });
    if added.is_err()
        && let Err(error) = place::unformat(&directories, &label)
    {
        tracing::warn!(location = new.location, %error, "what was to be a striped disk keeps its folders");
    }
    added
}

/// Removes the folders of striped disks that were never added, as a command was interrupted.
fn forget_unfinished(fs: &Namespace, directories: &[PathBuf], file_system: &str) {
    for directory in directories {
        for disk in place::found_in(directory).into_iter().filter(|disk| !fs.has_disk(disk)) {
            let label = Label { file_system: file_system.to_owned(), disk };
            if let Err(error) = place::unformat(directories, &label) {
                tracing::debug!(disk = label.disk, %error, "a folder of a striped disk stays");
            }
        }
    }
}

/// The directories of the disks below a striped one.
fn directories_below(disks: &[DiskRecord], striping: &Striping) -> Result<Vec<PathBuf>> {
    let members = striping.members.iter().map(|id| {
        let found = disks.iter().find(|disk| disk.id == *id);
        let found = found.with_context(|| format!("there is no disk {id} to lie over"))?;
        Ok(PathBuf::from(&found.location))
    });
    members.collect()
}

/// Opens a striped disk.
///
/// # Errors
/// If a part of it is not there.
pub fn open_striped(
    disks: &[DiskRecord],
    striping: &Striping,
    label: &Label,
) -> Result<Arc<dyn Disk>> {
    let directories = directories_below(disks, striping)?;
    Ok(Arc::new(place::open(&directories, striping.unit_bytes, label)?))
}

/// Takes an empty disk away from a file system, and its label off the directory.
///
/// # Errors
/// If the disk cannot be taken away, with the reason.
pub fn remove(fs: &Namespace, root: &Path, which: &str) -> Result<()> {
    let before = fs.disk_named(which)?;
    let below = before.striping().map(|striping| directories_below(&fs.disk_records(), &striping));
    let DiskRecord { uuid, location, .. } = fs.remove_disk(which)?;
    let label = Label { file_system: fs.uuid(), disk: uuid };
    if fs.is_in_cluster() {
        // The node that has it sees to that.
        return Ok(());
    }
    if let Some(below) = below {
        let unmarked = below.and_then(|below| Ok(place::unformat(&below, &label)?));
        if let (true, Err(error)) = (before.used != DiskUse::Lost, unmarked) {
            let error = crate::output::chain(&error);
            tracing::warn!(location, error, "a striped disk that was taken away keeps its folders");
        }
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

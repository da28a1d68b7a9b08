//! What can be said of a file system that is not mounted, without becoming its owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{DiskId, FilesetId};
use forebay_disk::Disk;
use forebay_disk::absent::AbsentDisk;
use forebay_store::{Store, Stores};

use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::mkfs::FIRST_EPOCH;
use crate::namespace::quota::{status, stored_quotas};
use crate::native::NativePlace;
use crate::ops::{DiskStatus, FilesetStatus};
use crate::partition::copies::count_premigrated;
use crate::quota::QuotaStatus;
use crate::record::{
    DiskUsage, DiskUse, FilesetRecord, FilesetSettings, Placement, PremigratedTo, Stage,
    Superblock, Usage, decode,
};
use crate::recovery::{read_superblock, scan_prefix};
use crate::tasks::TaskStatus;

/// A file system that is not mounted.
pub struct Offline {
    /// The superblock of its root fileset.
    pub superblock: Superblock,
    /// Filesets with what they hold.
    pub filesets: Vec<FilesetStatus>,
    /// Disks with what they hold.
    pub disks: Vec<DiskStatus>,
    /// Bytes that the stores occupy.
    pub store_bytes: u64,
}

/// The filesets of a file system with their records, those that have a store.
///
/// # Errors
/// What the store says; [`FsError::Damaged`] for records that make no sense.
pub fn filesets(root: &dyn Store) -> Result<Vec<(FilesetId, FilesetRecord)>> {
    let mut all = all_filesets(root)?;
    all.retain(|(_, record)| record.stage == Stage::Made);
    Ok(all)
}

/// As [`filesets`], those that are being made or removed, or are gone, included.
///
/// # Errors
/// As [`filesets`].
pub fn all_filesets(root: &dyn Store) -> Result<Vec<(FilesetId, FilesetRecord)>> {
    let mut filesets = Vec::new();
    scan_prefix(root, &[key::FILESET], &mut |key, value| {
        let Some(Key::Fileset(id)) = key::parse(key) else { return Ok(()) };
        let record: FilesetRecord = decode("fileset", value)?;
        filesets.push((id, record));
        Ok(())
    })?;
    Ok(filesets)
}

/// The tasks of a file system that is not mounted.
///
/// # Errors
/// What the store of the root fileset says.
pub fn tasks(stores: &dyn Stores) -> Result<Vec<TaskStatus>> {
    let root = stores.look(FilesetId::ROOT)?;
    let disks = read_superblock(&*root)?.disks;
    let mut tasks = Vec::new();
    scan_prefix(&*root, &[key::TASK], &mut |key, value| {
        if let Some(Key::Task(id)) = key::parse(key) {
            tasks.push(TaskStatus::of(id, decode("task", value)?, &disks, 0));
        }
        Ok(())
    })?;
    Ok(tasks)
}

/// The quotas of a fileset, or of all, in a file system that is not mounted.
///
/// # Errors
/// [`FsError::Refused`] if there is no such fileset; what a store says.
pub fn quotas(
    stores: &dyn Stores,
    fileset: Option<&str>,
    now: forebay_base::Timestamp,
) -> Result<Vec<QuotaStatus>> {
    let wanted = fileset.map(|name| if name == "/" { "" } else { name });
    let mut all = Vec::new();
    let mut is_there = wanted.is_none();
    for (id, record) in filesets(&*stores.look(FilesetId::ROOT)?)? {
        let name = record.settings.name.as_str();
        is_there |= wanted == Some(name);
        let is_native = record.settings.placement == Placement::Native;
        if is_native || wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let limited = stored_quotas(&*stores.look(id)?)?;
        all.extend(limited.iter().map(|limited| status(name, limited, now)));
    }
    if is_there {
        return Ok(all);
    }
    Err(FsError::Refused(format!(
        "there is no fileset \"{}\": `forebay fileset list` shows them",
        fileset.unwrap_or_default()
    )))
}

/// Whether a fileset has a store in which there may be more than its top directory. The superblock is written last: a store without one, or
/// that cannot be opened, was never complete. One that nobody has opened, such as a clone without a name, holds nothing that a
/// program has written.
#[must_use]
pub fn holds_files(stores: &dyn Stores, id: FilesetId) -> bool {
    let Ok(store) = stores.look(id) else { return false };
    match read_superblock(&*store) {
        Ok(superblock) if superblock.epoch > FIRST_EPOCH => {}
        Err(FsError::Damaged(_)) if !matches!(store.get(key::SUPERBLOCK), Ok(Some(_))) => {
            return false;
        }
        Ok(_) => return false,
        Err(_) => {}
    }
    let usage = store.get(key::USAGE).ok().flatten();
    let usage = usage.and_then(|usage| decode::<Usage>("usage", &usage).ok());
    usage.is_none_or(|usage| usage.inodes > 1)
}

/// Looks at a file system; a fileset whose store cannot be read is shown with the reason.
///
/// # Errors
/// What the store of the root fileset says.
pub fn look(stores: &dyn Stores, disks: &[(String, Arc<dyn Disk>)]) -> Result<Offline> {
    let root = stores.look(FilesetId::ROOT)?;
    let superblock = read_superblock(&*root)?;
    let archives: Vec<DiskId> = superblock
        .disks
        .iter()
        .filter(|record| disks.iter().any(|(uuid, disk)| *uuid == record.uuid && disk.is_archive()))
        .map(|record| record.id)
        .collect();
    let mut usage = Held::default();
    let (mut shown, mut store_bytes) = (Vec::new(), 0);
    for (id, record) in filesets(&*root)? {
        let held = if record.settings.placement == Placement::Native {
            look_at_native(&superblock, disks, &record.settings)
        } else if id == FilesetId::ROOT {
            look_at(&*root, &archives, &mut usage)
        } else {
            stores
                .look(id)
                .map_err(Into::into)
                .and_then(|store| look_at(&*store, &archives, &mut usage))
        };
        store_bytes += stores.size_of(id).unwrap_or(0);
        shown.push(FilesetStatus::of(&record.settings, held));
    }
    let disk_of = |uuid: &str| disks.iter().find(|(known, _)| known == uuid).map(|(_, disk)| disk);
    let status = |record: &crate::record::DiskRecord| {
        let premigrated = usage.premigrated.get(&record.id).copied().unwrap_or_default();
        let usage = usage.disks.get(&record.id).into_iter().flatten().copied().sum();
        let mut found = match disk_of(&record.uuid) {
            Some(disk) => DiskStatus::of(&record.uuid, &**disk, usage),
            None => {
                let absent = AbsentDisk::new(&record.uuid, &record.location, "it cannot be opened");
                DiskStatus::of(&record.uuid, &absent, usage)
            }
        };
        found.premigrated = archives.contains(&record.id).then_some(premigrated);
        found.note_record(record);
        found
    };
    let there = superblock.disks.iter().filter(|record| record.used != DiskUse::Removed);
    let disks = there.map(status).collect();
    Ok(Offline { superblock, filesets: shown, disks, store_bytes })
}

/// Whether a native fileset is on its disk; what it holds, only the disk's file system knows.
fn look_at_native(
    superblock: &Superblock,
    disks: &[(String, Arc<dyn Disk>)],
    settings: &FilesetSettings,
) -> Result<Usage> {
    let disks = disks.iter().map(|(uuid, disk)| (uuid.as_str(), &**disk));
    NativePlace::find(&superblock.uuid, disks, settings)?.open().map(|_| Usage::default())
}

/// What filesets hold on disks.
#[derive(Default)]
struct Held {
    disks: BTreeMap<DiskId, Vec<DiskUsage>>,
    premigrated: PremigratedTo,
}

/// What a fileset holds; notes what it holds on each disk.
fn look_at(store: &dyn Store, archives: &[DiskId], held: &mut Held) -> Result<Usage> {
    read_superblock(store)?;
    if !archives.is_empty() {
        for (disk, more) in count_premigrated(store, |disk| archives.contains(&disk))? {
            let sum = held.premigrated.entry(disk).or_default();
            *sum = [*sum, more].into_iter().sum();
        }
    }
    scan_prefix(store, &[key::DISK_USAGE], &mut |key, value| {
        if let Some(Key::DiskUsage(id)) = key::parse(key) {
            held.disks.entry(id).or_default().push(decode("disk usage", value)?);
        }
        Ok(())
    })?;
    let usage = store.get(key::USAGE)?;
    usage.map_or(Ok(Usage::default()), |usage| decode("usage", &usage))
}

//! What can be said of a file system that is not mounted, without becoming its owner.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_base::DiskId;
use forebay_disk::Disk;
use forebay_store::Store;

use crate::error::Result;
use crate::key::{self, Key};
use crate::ops::{DiskStatus, FilesetStatus};
use crate::record::{DiskUsage, FilesetRecord, Superblock, Usage, decode};
use crate::recovery::scan_prefix;

/// Filesets and disks with what they hold.
///
/// # Errors
/// What the store says; [`FsError::Damaged`](crate::FsError::Damaged) for records that make no sense.
pub fn status(
    store: &dyn Store,
    superblock: &Superblock,
    disks: &[(String, Arc<dyn Disk>)],
) -> Result<(Vec<FilesetStatus>, Vec<DiskStatus>)> {
    let mut filesets = Vec::new();
    scan_prefix(store, &[key::FILESET], &mut |key, value| {
        let Some(Key::Fileset(id)) = key::parse(key) else { return Ok(()) };
        let record: FilesetRecord = decode("fileset", value)?;
        let usage = match store.get(&key::usage(id))? {
            Some(value) => decode::<Usage>("usage", &value)?,
            None => Usage::default(),
        };
        filesets.push(FilesetStatus::of(&record, usage));
        Ok(())
    })?;
    let by_uuid: HashMap<&str, &Arc<dyn Disk>> =
        disks.iter().map(|(uuid, disk)| (uuid.as_str(), disk)).collect();
    let mut found = Vec::new();
    for (number, record) in (0..=u16::MAX).zip(&superblock.disks) {
        let Some(disk) = by_uuid.get(record.uuid.as_str()) else { continue };
        let objects = match store.get(&key::disk_usage(DiskId(number)))? {
            Some(value) => decode::<DiskUsage>("disk usage", &value)?.objects,
            None => 0,
        };
        found.push(DiskStatus::of(&record.uuid, &***disk, objects));
    }
    Ok((filesets, found))
}

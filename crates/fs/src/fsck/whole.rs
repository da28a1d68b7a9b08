//! Checking all filesets of a file system: each by itself, and the root fileset last, which names the others.
//!
//! A repair of the root fileset needs to know which stores there are: one without a record is all that is left of a
//! fileset, and gets its record and its name back.

use forebay_base::FilesetId;
use forebay_store::Stores;

use super::Options;
use super::report::Report;
use crate::error::Result;
use crate::offline;
use crate::ops::shown_name;
use crate::record::{FilesetSettings, Stage};
use crate::recovery::read_superblock;

/// A fileset that has a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFileset {
    /// Its number.
    pub id: FilesetId,
    /// The settings in its superblock, if that can be read.
    pub settings: Option<FilesetSettings>,
    /// The file system that it belongs to, if that can be read.
    pub uuid: Option<String>,
}

/// The check of one fileset.
#[derive(Clone, Debug)]
pub struct CheckedFileset {
    /// Its number.
    pub id: FilesetId,
    /// Its name, `/` for the root fileset; that of its store if it has lost its record.
    pub name: String,
    /// What was found.
    pub report: Report,
}

/// The filesets that have a store, in order of their numbers. One that is being made or removed is none, as the next
/// mount finishes that, unless it holds files: then its record is wrong.
///
/// # Errors
/// What the set of stores says; that a store cannot be read is no error.
pub fn stored_filesets(stores: &dyn Stores) -> Result<Vec<StoredFileset>> {
    let unfinished = unfinished(stores);
    let is_one = |id: &FilesetId| {
        *id == FilesetId::ROOT || !unfinished.contains(id) || offline::holds_files(stores, *id)
    };
    let ids = stores.list()?.into_iter().filter(is_one);
    let stored = |id| {
        let superblock =
            stores.look(id).map_err(Into::into).and_then(|store| read_superblock(&*store));
        let own = superblock.ok().filter(|superblock| superblock.fileset == id);
        let uuid = own.as_ref().map(|superblock| superblock.uuid.clone());
        StoredFileset { id, settings: own.map(|superblock| superblock.settings), uuid }
    };
    Ok(ids.map(stored).collect())
}

/// Filesets that are being made or removed, as far as the root fileset tells.
fn unfinished(stores: &dyn Stores) -> Vec<FilesetId> {
    let all = stores.look(FilesetId::ROOT).map_err(Into::into);
    let all = all.and_then(|root| offline::all_filesets(&*root)).unwrap_or_default();
    let is_unfinished = |stage| matches!(stage, Stage::Making | Stage::Removing);
    all.into_iter().filter(|(_, record)| is_unfinished(record.stage)).map(|(id, _)| id).collect()
}

/// Checks all filesets of a file system that nobody has mounted, and repairs them if asked to. One that cannot be
/// repaired keeps no other from it. `check` checks one.
///
/// # Errors
/// What the stores or `check` say.
pub fn check_all<E: From<crate::error::FsError>>(
    stores: &dyn Stores,
    options: &mut Options<'_>,
    check: &mut dyn FnMut(FilesetId, &mut Options<'_>) -> std::result::Result<Report, E>,
) -> std::result::Result<Vec<CheckedFileset>, E> {
    let filesets = stored_filesets(stores)?;
    let root = stores.look(FilesetId::ROOT).map_err(crate::error::FsError::from);
    let disks = root.and_then(|root| read_superblock(&*root)).ok().map(|root| root.disks);
    let mut order: Vec<&StoredFileset> = filesets.iter().collect();
    // The root fileset names the others: it comes last.
    order.sort_by_key(|stored| stored.id == FilesetId::ROOT);
    let mut checked = Vec::new();
    for stored in order {
        let name = match &stored.settings {
            Some(settings) => shown_name(&settings.name).to_owned(),
            None => format!("fileset {}", stored.id),
        };
        let mut progress = |step: &str| (options.progress)(&format!("{name}: {step}"));
        let mut how = Options {
            repair: options.repair,
            records_lost: options.records_lost,
            archives: options.archives,
            fileset: Some(stored.id),
            filesets: Some(&filesets),
            disks: disks.as_deref(),
            stores: Some(stores),
            progress: &mut progress,
        };
        let report = check(stored.id, &mut how)?;
        checked.push(CheckedFileset { id: stored.id, name, report });
    }
    checked.sort_by_key(|checked| checked.id);
    Ok(checked)
}

/// One report of several.
#[must_use]
pub fn merged(all: &[CheckedFileset]) -> Report {
    let mut merged = Report::default();
    all.iter().for_each(|checked| merged.add(&checked.report));
    merged
}

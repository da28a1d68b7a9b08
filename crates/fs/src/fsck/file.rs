//! Checking and repairing a store in its file: first that the file is whole, then what it holds.
//!
//! A repair never touches the file that it repairs. What can be read of it goes into a fresh store beside it,
//! which is repaired there; only once that is clean it takes the place of the old one, in one step, and the old
//! one is kept under the name [`kept_name`] gives. So an interrupted repair changes nothing, and a repair that
//! cannot succeed changes nothing either.

use std::fs::File;
use std::path::{Path, PathBuf};

use forebay_store::redb::salvage::{Judge, LostRange, Salvage, salvage};
use forebay_store::redb::{RedbOptions, RedbStore};
use forebay_store::{Store, StoreError};

use super::report::Report;
use super::{Damage, NamedDisk, Options, Outcome, Repair, check};
use crate::caching::queue::{ConflictRecord, Place, QueueRecord, RoundRecord};
use crate::error::{FsError, Result};
use crate::key::{self, Key, Term};
use crate::partition::fenced::Bound;
use crate::quota::{Holding, QuotaRecord};
use crate::record::{
    CopiesRecord, DiskUsage, EntryRecord, FilesetRecord, InodeRecord, Record, Superblock, Usage,
    decode,
};
use crate::recovery::read_superblock;
use crate::snapshot::{KeptCopy, LateObject, SnapshotRecord};
use crate::tasks::TaskRecord;

/// Copies of a store that are kept before names run out.
const KEPT_MAX: u32 = 1000;

/// Finds the disks of a file system.
pub type FindDisks<'a> = dyn Fn(&Superblock) -> Result<Vec<NamedDisk>> + 'a;

/// What came of a check of a store's file.
#[derive(Debug)]
pub struct Checked {
    /// What was found.
    pub report: Report,
    /// Where the store lies as it was before the repair, if one was carried out.
    pub kept: Option<PathBuf>,
}

/// Checks the store in the file at `path`, of which nobody else is the owner, and repairs it if asked to.
///
/// # Errors
/// What the store or a disk says. Damage is no error.
pub fn check_file(
    path: &Path,
    options: &RedbOptions,
    find_disks: &FindDisks<'_>,
    how: &mut Options<'_>,
) -> Result<Checked> {
    (how.progress)("verifying the store");
    let mut report = Report::default();
    match RedbStore::check(path, options) {
        Ok(store) => {
            let disks = disks_of(&store, find_disks)?;
            let mut looking = Options {
                repair: Repair::Never,
                records_lost: how.records_lost,
                archives: how.archives,
                fileset: how.fileset,
                filesets: how.filesets,
                disks: how.disks,
                stores: how.stores,
                progress: &mut *how.progress,
            };
            report = check(&store, &disks, &mut looking)?;
        }
        Err(StoreError::Damaged(why)) => {
            report.found(Damage::Store, format!("the store is damaged: {why}"));
            report.left_total = report.findings_total;
        }
        Err(error) => return Err(error.into()),
    }
    if how.repair == Repair::Never || report.findings_total == 0 {
        return Ok(Checked { report, kept: None });
    }
    let fresh = beside(path, "fresh");
    remove_leftover(&fresh)?;
    let repaired = repair(path, &fresh, options, find_disks, how);
    match repaired {
        Ok(repaired) if repaired.outcome() == Outcome::Repaired => {
            let kept = replace(path, &fresh)?;
            Ok(Checked { report: repaired, kept: Some(kept) })
        }
        other => {
            remove_leftover(&fresh)?;
            Ok(Checked { report: other?, kept: None })
        }
    }
}

/// Copies a store, which may be in use, into a new file at `to`: whole, or not at all.
///
/// # Errors
/// [`FsError::Refused`] if there is a file at `to`; what either store says.
pub fn back_up(store: &dyn Store, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
    let taken = || FsError::Refused(format!("{} already exists: choose a new name", to.display()));
    if to.symlink_metadata().is_ok() {
        return Err(taken());
    }
    let unfinished = beside(to, "unfinished");
    remove_leftover(&unfinished)?;
    let pairs = store.copy_to(&unfinished, progress)?;
    // A name that came meanwhile is not replaced.
    let named = std::fs::hard_link(&unfinished, to).or_else(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Err(error),
        // Not every place for backups has links.
        _ => std::fs::rename(&unfinished, to),
    });
    remove_leftover(&unfinished)?;
    named.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(),
        _ => FsError::Io(format!("cannot create {}: {error}", to.display())),
    })?;
    sync_folder_of(to).map_err(|error| FsError::Io(format!("{}: {error}", to.display())))?;
    Ok(pairs)
}

/// Has a copy of the store at `backup` take the place of the one at `path`, which is kept. The copy is verified
/// and repaired first: files that were made or changed after the backup are brought back as far as the disks
/// hold them, without their names (`/lost+found`).
///
/// # Errors
/// [`FsError::Damaged`] if the backup is damaged or cannot be repaired, what a store or a disk says; nothing is
/// changed then.
pub fn restore(
    path: &Path,
    backup: &Path,
    options: &RedbOptions,
    find_disks: &FindDisks<'_>,
    how: &mut Options<'_>,
) -> Result<Checked> {
    (how.progress)("verifying the backup");
    let source = RedbStore::check(backup, options)?;
    let superblock = read_superblock(&source)?;
    let disks = find_disks(&superblock)?;
    let fresh = beside(path, "fresh");
    remove_leftover(&fresh)?;
    let restored = (|| -> Result<Report> {
        (how.progress)("copying the backup");
        source.copy_to(&fresh, &mut |_, _| {})?;
        let store = RedbStore::open_with(&fresh, options)?;
        let mut repairing = Options {
            repair: Repair::Found,
            records_lost: true,
            archives: how.archives,
            fileset: how.fileset,
            filesets: how.filesets,
            disks: how.disks,
            stores: how.stores,
            progress: &mut *how.progress,
        };
        let report = check(&store, &disks, &mut repairing)?;
        store.close()?;
        Ok(report)
    })();
    match restored {
        Ok(report) if report.outcome() != Outcome::Left => {
            let kept = path.exists();
            let place = replace(path, &fresh)?;
            Ok(Checked { report, kept: kept.then_some(place) })
        }
        other => {
            remove_leftover(&fresh)?;
            Ok(Checked { report: other?, kept: None })
        }
    }
}

/// Disks of the file system in a store; none if the store does not say which they are.
fn disks_of(store: &RedbStore, find_disks: &FindDisks<'_>) -> Result<Vec<NamedDisk>> {
    match read_superblock(store) {
        Ok(superblock) => find_disks(&superblock),
        Err(FsError::Damaged(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Writes a fresh store and repairs that.
fn repair(
    path: &Path,
    fresh: &Path,
    options: &RedbOptions,
    find_disks: &FindDisks<'_>,
    how: &mut Options<'_>,
) -> Result<Report> {
    (how.progress)("writing a fresh store from what can be read");
    let mut report = Report::default();
    let salvaged = match salvage(path, fresh, &Records) {
        Ok(salvaged) => salvaged,
        Err(StoreError::Damaged(why)) => {
            let text = format!("the store is damaged: {why}; restore it from a backup");
            report.found(Damage::Store, text);
            report.left_total = report.findings_total;
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    let store = RedbStore::open_with(fresh, options)?;
    let disks = disks_of(&store, find_disks)?;
    let mut repairing = Options {
        repair: Repair::Found,
        records_lost: how.records_lost || salvaged.is_lossy(),
        archives: how.archives,
        fileset: how.fileset,
        filesets: how.filesets,
        disks: how.disks,
        stores: how.stores,
        progress: &mut *how.progress,
    };
    report = check(&store, &disks, &mut repairing)?;
    store.close()?;
    describe(&salvaged, &mut report);
    if report.outcome() == Outcome::Clean {
        // What was wrong was nothing that is copied, such as the map of free pages.
        report.found_repaired(Damage::Store, "the store's file was damaged".to_owned());
    }
    Ok(report)
}

fn describe(salvaged: &Salvage, report: &mut Report) {
    let mut tell = |text: String| report.found_repaired(Damage::Store, text);
    let Salvage { corrected_pages, doubtful_pages, found_again, .. } = salvaged;
    if *corrected_pages > 0 {
        tell(format!(
            "{corrected_pages} pages of the store had one wrong bit; nothing in them is lost"
        ));
    }
    if *doubtful_pages > 0 {
        tell(format!(
            "{doubtful_pages} pages of the store are damaged; valid records in them were kept"
        ));
    }
    for range in &salvaged.lost {
        tell(format!("a page of the store is damaged or lost; it held {}", shown(range)));
    }
    if *found_again > 0 {
        tell(format!(
            "{found_again} records of lost pages were taken from older pages: names that were removed \
             recently may reappear"
        ));
    }
}

/// A range of keys in words.
fn shown(range: &LostRange) -> String {
    let end = |key: Option<&[u8]>| match key.and_then(key::parse) {
        Some(Key::Inode(ino)) => format!("inode {ino}"),
        Some(Key::Entry(parent, _)) => format!("an entry of directory {parent}"),
        Some(Key::Xattr(ino, _)) => format!("an attribute of inode {ino}"),
        Some(Key::Fileset(id)) => format!("fileset {id}"),
        Some(Key::DiskUsage(id)) => format!("disk {id}"),
        Some(Key::Task(number)) => format!("task {number}"),
        Some(Key::Quota(subject)) => format!("the quota of {subject}"),
        Some(Key::Holding(subject)) => format!("what {subject} holds"),
        Some(Key::Snapshot(number)) => format!("snapshot {number}"),
        Some(Key::Kept(object, _)) => format!("the copy that snapshots keep of object {object}"),
        Some(Key::Late(object)) => format!("since when a file has object {object}"),
        Some(Key::Copies(object)) => format!("the copies of object {object}"),
        Some(Key::Queued(number)) => format!("change {number} for the home of the cache"),
        Some(Key::Place(ino)) => format!("the place of inode {ino} at the home of the cache"),
        Some(Key::Round(_)) => "the round of changes for the home of the cache".to_owned(),
        Some(Key::Conflict(number)) => format!("conflict {number} at the home of the cache"),
        Some(Key::Superblock | Key::Term | Key::Usage | Key::Fenced) => "the superblock".to_owned(),
        None => key.map_or_else(
            || "the end".to_owned(),
            |key| format!("{:?}", key.escape_ascii().to_string()),
        ),
    };
    let from =
        if range.after.is_empty() { "the beginning".to_owned() } else { end(Some(&range.after)) };
    format!("records from {from} to {}", end(range.through.as_deref()))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

fn remove_leftover(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FsError::Io(format!("cannot remove {}: {error}", path.display()))),
    }
}

/// Has the store at `fresh` take the place of the one at `path`, which is kept under the name that is
/// returned. There is a store at `path` at every moment.
///
/// # Errors
/// [`FsError::Io`]; the store at `path` is one of the two then.
pub fn replace(path: &Path, fresh: &Path) -> Result<PathBuf> {
    let io = |error: std::io::Error| {
        FsError::Io(format!(
            "cannot put {} in the place of {}: {error}",
            fresh.display(),
            path.display()
        ))
    };
    let mut number = 1;
    let kept = loop {
        let kept = kept_name(path, number);
        match std::fs::hard_link(path, &kept) {
            Ok(()) => break Some(kept),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break None,
            Err(error)
                if error.kind() == std::io::ErrorKind::AlreadyExists && number < KEPT_MAX =>
            {
                number += 1;
            }
            Err(error) => return Err(io(error)),
        }
    };
    std::fs::rename(fresh, path).map_err(io)?;
    sync_folder_of(path).map_err(io)?;
    Ok(kept.unwrap_or_else(|| path.to_owned()))
}

fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The name under which the store at `path` is kept when another takes its place: `00001.redb.replaced-1`
/// is the first.
#[must_use]
pub fn kept_name(path: &Path, number: u32) -> PathBuf {
    beside(path, &format!("replaced-{number}"))
}

/// What a pair of the store may be.
struct Records;

/// Whether a value may be such a record: one of another version may, as far as this program can tell.
fn may_be<T: Record>(value: &[u8]) -> bool {
    matches!(decode::<T>("", value), Ok(_) | Err(FsError::UnknownVersion(_)))
}

impl Judge for Records {
    fn is_plausible(&self, key: &[u8], value: &[u8]) -> bool {
        match key::parse(key) {
            Some(Key::Term) => Term::from_bytes(value).is_some(),
            Some(Key::Superblock) => may_be::<Superblock>(value),
            Some(Key::Fileset(_)) => may_be::<FilesetRecord>(value),
            Some(Key::Usage) => may_be::<Usage>(value),
            Some(Key::Fenced) => Bound::from_bytes(value).is_some(),
            Some(Key::DiskUsage(_)) => may_be::<DiskUsage>(value),
            Some(Key::Task(_)) => may_be::<TaskRecord>(value),
            Some(Key::Quota(_)) => may_be::<QuotaRecord>(value),
            Some(Key::Holding(_)) => may_be::<Holding>(value),
            Some(Key::Snapshot(_)) => may_be::<SnapshotRecord>(value),
            Some(Key::Kept(..)) => may_be::<KeptCopy>(value),
            Some(Key::Late(_)) => may_be::<LateObject>(value),
            Some(Key::Copies(_)) => may_be::<CopiesRecord>(value),
            Some(Key::Queued(_)) => may_be::<QueueRecord>(value),
            Some(Key::Place(_)) => may_be::<Place>(value),
            Some(Key::Round(_)) => may_be::<RoundRecord>(value),
            Some(Key::Conflict(_)) => may_be::<ConflictRecord>(value),
            Some(Key::Inode(_)) => may_be::<InodeRecord>(value),
            Some(Key::Entry(..)) => may_be::<EntryRecord>(value),
            Some(Key::Xattr(..)) => true,
            None => false,
        }
    }

    fn is_newer(&self, key: &[u8], first: &[u8], second: &[u8]) -> bool {
        match key::parse(key) {
            Some(Key::Term) => second > first,
            Some(Key::Superblock) => {
                let age = |value: &[u8]| {
                    let found = decode::<Superblock>("", value).ok();
                    found.map(|block| (block.epoch, block.ino_limit, block.object_limit))
                };
                age(second) > age(first)
            }
            Some(Key::Inode(_)) => {
                let age = |value: &[u8]| {
                    let found = decode::<InodeRecord>("", value).ok();
                    found.map(|inode| (inode.epoch, inode.changed))
                };
                age(second) > age(first)
            }
            _ => false,
        }
    }
}

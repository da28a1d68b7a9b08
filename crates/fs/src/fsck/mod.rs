//! The offline checker: proves that what the store of a fileset and the disks hold is a file system, and repairs
//! what is not. Each fileset is checked by itself ([`check`]): records and objects of others are never read, moved or
//! removed for it. What is known of all together, [`mod@whole`] checks: which stores there are, and their names.
//!
//! A pass reads everything once: filesets and inodes, then entries, attributes and objects, keeping
//! about 200 bytes of memory per inode and no names. What it finds becomes findings (damage) or notes
//! (what the next mount puts right after a crash), and a plan of fixes (`plan.rs`). Repair applies the
//! fixes of the lowest tier in batches that require the term, and looks again, until a pass finds
//! nothing. An interrupted repair is taken up by the next one.
//!
//! Repair loses no contents that can be kept: inodes without a name get one in `lost+found` at the top of their
//! fileset (`#ino`), and objects that no file claims become files there (`#object-number`), for root only, unless nothing
//! else is damaged: then they are left over from an object that could not be removed. What is never repaired: a file system whose term is not its
//! superblock's epoch (an owner is at work, or the store is a mixture), an unreadable superblock,
//! one of whose disks is missing, or one with a record of a version that this program does not know.
//!
//! The store's file comes first ([`mod@file`]): a store that is not whole is read as far as it can be, into a fresh
//! one. Findings tell the paths of what they are about (`paths`).
//!
//! A native fileset belongs to its disk's own file system, which has a checker of its own: only its mark is looked at.
//!
//! Not checked: the bytes of files, for which there are no checksums, and fields of inodes that may
//! hold anything (owner, times).
//!
//! Reading order: [`report`], `plan`, `scan` (reading), `tree`, `filesets`, `contents` (judging),
//! `repair`, `lost_found`.

mod contents;
mod copies;
mod entries;
pub mod file;
mod filesets;
mod image;
mod lost_found;
mod paths;
mod plan;
mod quotas;
mod repair;
pub mod report;
mod scan;
mod snapshots;
mod tree;
pub mod whole;

use std::sync::Arc;

use forebay_base::FilesetId;
use forebay_disk::Disk;
use forebay_store::{Store, Stores};

use self::plan::Ledger;
pub use self::report::{Counts, Damage, Finding, Outcome, Report};
use self::whole::StoredFileset;
use crate::error::{FsError, Result};
use crate::record::DiskRecord;

/// Steps of repair before it is given up. A tier seldom takes more than one or two.
const STEPS_MAX: u32 = 64;

/// Whether damage is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Nothing is changed.
    Never,
    /// What is found is repaired.
    Found,
}

/// Whether the objects of archives are looked at: each takes two requests to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Archives {
    /// Records are checked, and what they refer to in an archive is taken to be there.
    #[default]
    Trusted,
    /// Each object must be there, whole, and of its file's size; what nobody refers to is reported.
    Checked,
}

/// How to check.
pub struct Options<'a> {
    /// Whether damage is repaired.
    pub repair: Repair,
    /// Records are known to be lost: objects that no file claims may be all that is left of a file, and are
    /// kept.
    pub records_lost: bool,
    /// Whether archives are asked for their objects.
    pub archives: Archives,
    /// The number that the fileset must have. `None`: that of its superblock.
    pub fileset: Option<FilesetId>,
    /// The disks of the file system, as the root fileset has them. `None`: as its own superblock has them.
    pub disks: Option<&'a [DiskRecord]>,
    /// The filesets that have a store; for the check of the root fileset, which names them. `None`: not known.
    pub filesets: Option<&'a [StoredFileset]>,
    /// All stores, for those of snapshots. `None`: a fileset that has snapshots is not repaired.
    pub stores: Option<&'a dyn Stores>,
    /// Called with what is being done, for people.
    pub progress: &'a mut dyn FnMut(&str),
}

/// A disk that belongs to the check, with its identity.
pub type NamedDisk = (String, Arc<dyn Disk>);

/// Checks a fileset that nobody has mounted, and repairs it if asked to. `disks` are all disks of the file system with
/// their identities, in any order.
///
/// # Errors
/// What the store or a disk says; [`FsError::Fenced`] if an owner came in between. Damage is no error, nor is a
/// record of another version: that is found, and nothing is changed.
pub fn check(store: &dyn Store, disks: &[NamedDisk], options: &mut Options<'_>) -> Result<Report> {
    match check_known(store, disks, options) {
        Err(FsError::UnknownVersion(why)) => {
            let mut report = Report::default();
            report.found(Damage::Version, why);
            (report.passes, report.left_total) = (1, report.findings_total);
            Ok(report)
        }
        checked => checked,
    }
}

fn check_known(
    store: &dyn Store,
    disks: &[NamedDisk],
    options: &mut Options<'_>,
) -> Result<Report> {
    let mut pass = run_pass(store, disks, options)?;
    let mut report = std::mem::take(&mut pass.report);
    report.passes = 1;
    report.left_total = report.findings_total;
    if options.repair == Repair::Never || report.findings_total == 0 {
        return Ok(report);
    }
    for _ in 0..STEPS_MAX {
        let fixes = pass.take_fixes();
        let Some(superblock) = pass.superblock.take().filter(|_| !fixes.is_empty()) else { break };
        (options.progress)(&format!("repairing: {} changes", fixes.len()));
        repair::apply(store, disks, superblock, fixes)?;
        pass = run_pass(store, disks, options)?;
        report.follow(&pass.report);
        report.mark_repaired(&pass.report);
    }
    Ok(report)
}

fn run_pass(store: &dyn Store, disks: &[NamedDisk], options: &mut Options<'_>) -> Result<Ledger> {
    let mut ledger = Ledger::default();
    ledger.lossy = options.records_lost;
    let progress = &mut *options.progress;
    let Some(mut superblock) = scan::superblock(store, &mut ledger)? else {
        return Ok(ledger);
    };
    if let Some(number) = options.fileset.filter(|number| *number != superblock.fileset) {
        let text = format!("the store of fileset {number} is that of {}", superblock.fileset);
        ledger.refuse(Damage::Superblock, text);
        return Ok(ledger);
    }
    if let Some(disks) = options.disks {
        // Its own are those of when it was last opened.
        superblock.disks = disks.to_vec();
    }
    scan::check_disks(&superblock, disks, &mut ledger);
    let root = options.filesets.and_then(|all| all.iter().find(|one| one.id == FilesetId::ROOT));
    if let Some(uuid) = root.and_then(|root| root.uuid.as_ref())
        && *uuid != superblock.uuid
    {
        let text = format!("the store is that of the file system {}", superblock.uuid);
        ledger.refuse(Damage::Superblock, text);
    }
    ledger.superblock = Some(superblock.clone());
    let mut image = scan::records(store, superblock, &mut ledger, progress)?;
    progress("checking the tree");
    tree::check(&mut image, &mut ledger);
    filesets::check(&image, disks, options.filesets, &mut ledger);
    filesets::check_usage(&image, &mut ledger);
    quotas::check(&image, &mut ledger);
    filesets::check_native(&image, disks, &mut ledger);
    progress("reading snapshots");
    snapshots::Snapshots::look(&mut image, options.stores, &mut ledger)?;
    progress("checking objects");
    contents::check(&mut image, (disks, options.archives), &mut ledger)?;
    paths::tell(&image, store, &mut ledger)?;
    Ok(ledger)
}

//! Where the parts of a striped disk lie in the directories of the disks below:
//!
//! ```text
//! MEMBER/striped/UUID/     a directory disk, labelled UUID.PLACE: the parts that lie on this disk
//! ```
//!
//! UUID is the identity of the striped disk, and PLACE says which of its parts this is. So a directory that is not mounted, or
//! was exchanged with another one, is found out when the disk is opened.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Part, StripedDisk};
use crate::directory::{DirectoryDisk, Label};
use crate::{DiskError, Result};

/// The folder of all parts in the directory of a disk.
const FOLDER: &str = "striped";

fn directory(member: &Path, label: &Label) -> PathBuf {
    member.join(FOLDER).join(&label.disk)
}

fn label_of(label: &Label, place: usize) -> Label {
    Label { file_system: label.file_system.clone(), disk: format!("{}.{place}", label.disk) }
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> DiskError + 'a {
    move |error| DiskError::Io(format!("cannot {what} {}: {error}", path.display()))
}

fn sync_directory(path: &Path) -> Result<()> {
    std::fs::File::open(path).and_then(|found| found.sync_all()).map_err(failed("sync", path))
}

/// Makes places for the parts in the directories of the disks below. They are durable when it returns.
///
/// # Errors
/// [`DiskError::Refused`], [`DiskError::Io`]; places that were made stay until [`unformat`].
pub fn format(members: &[PathBuf], label: &Label) -> Result<()> {
    let mut make = std::fs::DirBuilder::new();
    make.mode(0o700).recursive(true);
    for (place, member) in members.iter().enumerate() {
        let path = directory(member, label);
        make.create(&path).map_err(failed("create", &path))?;
        DirectoryDisk::format(&path, &label_of(label, place))?;
        sync_directory(&member.join(FOLDER))?;
        sync_directory(member)?;
    }
    Ok(())
}

/// Opens the striped disk over `members`, directories of disks in the order in which they were formatted.
///
/// # Errors
/// [`DiskError::Refused`] if one of them is in use, another one or not there; [`DiskError::Full`], [`DiskError::Io`].
pub fn open(members: &[PathBuf], unit_bytes: u64, label: &Label) -> Result<StripedDisk> {
    let mut parts = Vec::with_capacity(members.len());
    for (place, member) in members.iter().enumerate() {
        let disk = DirectoryDisk::open(directory(member, label), &label_of(label, place))?;
        parts.push(Part { name: member.display().to_string(), disk: Arc::new(disk) });
    }
    StripedDisk::over(parts, unit_bytes)
}

/// Removes the places of the parts, which hold no objects, where there are any.
///
/// # Errors
/// The first of [`DiskError::Refused`] if one is in use or holds objects, and [`DiskError::Io`].
pub fn unformat(members: &[PathBuf], label: &Label) -> Result<()> {
    let mut outcome = Ok(());
    for (place, member) in members.iter().enumerate() {
        outcome = outcome.and(unformat_one(member, label, &label_of(label, place)));
    }
    outcome
}

fn unformat_one(member: &Path, label: &Label, own: &Label) -> Result<()> {
    let path = directory(member, label);
    if !path.exists() {
        return Ok(());
    }
    match DirectoryDisk::read_label(&path) {
        Ok(_) => DirectoryDisk::unformat(&path, own)?,
        // It was not finished, or its label went before.
        Err(DiskError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    std::fs::remove_dir(&path).map_err(failed("remove", &path))?;
    // Others may have theirs there.
    let _ = std::fs::remove_dir(member.join(FOLDER));
    Ok(())
}

/// Identities of the striped disks that have a place in the directory of a disk.
#[must_use]
pub fn found_in(member: &Path) -> Vec<String> {
    let found = std::fs::read_dir(member.join(FOLDER)).into_iter().flatten().flatten();
    found.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

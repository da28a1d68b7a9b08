//! Bringing a work area back before a job starts.
//!
//! What lies on the host is used if no later start has shipped anything, and the machine has not gone down since. Otherwise
//! the area is emptied and made from the latest checkpoint that can be read. `setup.json` is written last: an area without it
//! was not finished. A checkpoint that counts and cannot be read now is waited for: the host cannot start the job then.

use std::fs::{File, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::snapshot::{Mark, Marks, pending_folder};
use super::{
    Entry, FOLDER, Kind, Manifest, Restored, Setup, Shelf, copy, decode, setup_of, write_json,
};
use crate::area::tree;

/// More than a step of the clock from which files have their times.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Makes the work area what the job has to find in it.
///
/// # Errors
/// If that cannot be done now.
pub fn prepare(work: &Path, mut setup: Setup, clock: &dyn Clock) -> Result<()> {
    let shelf = Shelf::at(&setup.place);
    // What is damaged here is like what is missing.
    let before = setup_of(work).ok().flatten();
    let begun = clock.instant();
    let numbers = shelf.numbers().context("its checkpoints cannot be read")?;
    let is_newest = before.as_ref().is_some_and(|before| {
        before.boot == setup.boot
            && numbers.first().is_none_or(|number| number.attempt <= before.attempt.0)
    });
    if !is_newest && !numbers.is_empty() {
        let mut lost = Vec::new();
        let mut found = None;
        for number in numbers {
            match bring_back(work, &shelf, number) {
                Ok(manifest) => {
                    found = Some(manifest);
                    break;
                }
                Err(error) if counts(&shelf, number, &setup) => {
                    return Err(error.context(format!("its checkpoint {number} cannot be read")));
                }
                Err(error) => lost.push(format!("checkpoint {number}: {error:#}")),
            }
        }
        if found.is_none() {
            empty(work)?;
        }
        let waited = clock.instant().saturating_duration_since(begun);
        setup.restored = Some(Restored {
            number: found.as_ref().map(|manifest| manifest.number),
            bytes: found.map_or(0, |manifest| manifest.bytes),
            milliseconds: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            lost,
        });
    } else if before.as_ref().is_some_and(|before| before.boot != setup.boot) {
        // Written before the machine went down, perhaps in part.
        let _ = std::fs::remove_dir_all(pending_folder(work));
        let _ = std::fs::remove_file(work.join(FOLDER).join("last.json"));
    }
    let own = work.join(FOLDER);
    std::fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
    write_json(&own.join("setup.json"), &setup)
}

/// Whether somebody was promised that a checkpoint survives. Where that cannot be found out now, it may be so.
fn counts(shelf: &Shelf, number: super::Number, setup: &Setup) -> bool {
    !setup.bounds.elsewhere || !matches!(shelf.kept(number), Ok(None))
}

/// Removes all that is in an area.
fn empty(work: &Path) -> Result<()> {
    for entry in std::fs::read_dir(work).with_context(|| work.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        let removed = if entry.file_type()?.is_dir() {
            tree::remove(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Makes an area what it was when a checkpoint was taken.
fn bring_back(work: &Path, shelf: &Shelf, number: super::Number) -> Result<Manifest> {
    let manifest = shelf.read(number)?;
    empty(work)?;
    let mut marks = Marks::default();
    for entry in &manifest.entries {
        let Some(path) = decode(&entry.path) else { bail!("{:?} is not a path", entry.path) };
        let path = work.join(path);
        let shown = || path.display().to_string();
        match &entry.kind {
            Kind::Folder => std::fs::create_dir(&path).with_context(shown)?,
            Kind::Link(target) => {
                let target = decode(target).context("a link to nothing")?;
                std::os::unix::fs::symlink(target, &path).with_context(shown)?;
            }
            Kind::File { bytes, object } => {
                let from = shelf.objects().join(object);
                let file = fill(&path, &from, *bytes).with_context(shown)?;
                file.set_permissions(Permissions::from_mode(entry.mode)).with_context(shown)?;
                file.set_times(FileTimes::new().set_modified(time_of(entry)))
                    .with_context(shown)?;
                let about = file.metadata().with_context(shown)?;
                let mark = Mark::settled(&about, object.clone());
                marks.files.insert(entry.path.clone(), mark);
            }
        }
    }
    finish_folders(work, &manifest)?;
    // What the program changes has another time from here on.
    std::thread::sleep(CLOCK_STEP);
    let own = work.join(FOLDER);
    std::fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
    write_json(&own.join("last.json"), &marks)?;
    Ok(manifest)
}

/// Makes a file with the bytes of an object.
fn fill(path: &Path, object: &Path, bytes: u64) -> Result<File> {
    let from = copy::open(object).with_context(|| object.display().to_string())?;
    let to = copy::create(path)?;
    let (_, copied) = copy::fill(&to, &from)?;
    if copied != bytes {
        bail!("{} has {copied} bytes instead of {bytes}", object.display());
    }
    Ok(to)
}

/// Gives folders their modes and times, once nothing is made in them any more; the innermost first.
fn finish_folders(work: &Path, manifest: &Manifest) -> Result<()> {
    for entry in manifest.entries.iter().rev().filter(|entry| entry.kind == Kind::Folder) {
        let Some(path) = decode(&entry.path) else { continue };
        let path = work.join(path);
        let shown = || path.display().to_string();
        let (seconds, nanoseconds) = entry.changed;
        let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(shown)?;
        std::fs::set_permissions(&path, Permissions::from_mode(entry.mode)).with_context(shown)?;
    }
    Ok(())
}

fn time_of(entry: &Entry) -> SystemTime {
    let (seconds, nanoseconds) = entry.changed;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    second + Duration::from_nanos(nanoseconds.into())
}

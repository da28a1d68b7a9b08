//! Shipping: what waits in the work area goes to the place that all hosts reach, one snapshot after the other.
//!
//! One process of a job ships at a time, and one more may wait for its turn: it sees everything that was taken before it was
//! started. Objects come first and are synced, then the manifest. A snapshot that cannot be shipped is given up, with the
//! reason in `status.json`; the next one copies again what it lacks.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_grid::vocabulary::Moment;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::snapshot::{pending, pending_folder};
use super::{
    FOLDER, Manifest, Number, Setup, Shelf, copy, read_json, read_json_if_there, sync_folder,
    write_json,
};
use crate::causes::{is_out_of_reach, number_of};
use crate::home::GridHome;
use crate::protocol::client::Client;
use crate::protocol::{Answer, Ask};

/// How long after a failure another host is asked again to copy a checkpoint.
const KEEP_AGAIN: Duration = Duration::from_secs(5);

/// For how long a command that waits has others asked.
const KEEP_PATIENCE: Duration = Duration::from_secs(60);

/// For how long it is tried to ship what waits to a place that is out of reach, as while another node takes it over.
const SHIP_PATIENCE: Duration = Duration::from_secs(30);

/// How long after it is tried again.
const SHIP_AGAIN: Duration = Duration::from_secs(1);

/// What went wrong last: `status.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// With which checkpoint.
    pub number: Number,
    /// When.
    pub at: Moment,
    /// What.
    pub reason: String,
}

/// What went wrong with the checkpoints of a work area last, if the latest one is concerned.
///
/// # Errors
/// If the file is damaged.
pub fn trouble(work: &Path) -> Result<Option<Trouble>> {
    read_json_if_there(&work.join(FOLDER).join("status.json"))
}

/// How long a process ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until everything is shipped and counts.
    Done,
    /// No longer than somebody waits for it.
    Waited,
}

/// Ships what waits, and has it copied by another host if it must be.
///
/// # Errors
/// If the work area cannot be read, or what was waited for does not count yet. What could not be shipped is in [`trouble`].
pub fn run(work: &Path, until: Until) -> Result<()> {
    let setup = super::setup_of(work)?.context("this job has no place for checkpoints")?;
    if until == Until::Waited {
        return to_the_end(work, &setup, until, lock(work)?);
    }
    let Some(waiting) = next_turn(work)? else { return Ok(()) };
    // Held while this one waits for its turn only.
    let turn = lock(work)?;
    drop(waiting);
    to_the_end(work, &setup, until, turn)
}

/// The right to be the next one in the background; none if another process has it, which will see everything that is there now.
fn next_turn(work: &Path) -> Result<Option<File>> {
    let waiting = File::create(work.join(FOLDER).join("waiting"))?;
    match rustix::fs::flock(&waiting, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        waits => Ok(waits.map(|()| Some(waiting))?),
    }
}

/// The right to ship, which one process has at a time: for as long as it takes to ship what waits and to have it copied once.
fn lock(work: &Path) -> Result<File> {
    let lock = File::create(work.join(FOLDER).join("shipping"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

fn to_the_end(work: &Path, setup: &Setup, until: Until, mut turn: File) -> Result<()> {
    let mut hindered: Option<Instant> = None;
    loop {
        ship_all(work, setup)?;
        let mut latest = None;
        match make_it_count(setup, &mut latest) {
            Ok(()) => {
                // What was noted of later ones stays.
                if trouble(work)?.is_some_and(|trouble| Some(trouble.number) == latest) {
                    forget_trouble(work);
                }
                if pending(work)?.is_empty() {
                    return Ok(());
                }
            }
            Err(error) => {
                if let Some(number) = latest {
                    note(work, number, &format!("{error:#}"))?;
                }
                let since = *hindered.get_or_insert_with(|| SystemClock.instant());
                let waited = SystemClock.instant().saturating_duration_since(since);
                if until == Until::Waited && waited >= KEEP_PATIENCE {
                    return Err(error);
                }
                let waiting = match until {
                    Until::Waited => None,
                    Until::Done => match next_turn(work)? {
                        None => return Ok(()),
                        waiting => waiting,
                    },
                };
                // Who is waited for ships meanwhile, and need not wait for as long as this one is hindered.
                drop(turn);
                std::thread::sleep(KEEP_AGAIN);
                turn = lock(work)?;
                drop(waiting);
            }
        }
    }
}

/// Has another host copy the latest checkpoint if it must, and removes those before it.
fn make_it_count(setup: &Setup, latest: &mut Option<Number>) -> Result<()> {
    let shelf = Shelf::at(&setup.place);
    *latest = shelf.numbers()?.first().copied();
    let Some(number) = *latest else { return Ok(()) };
    if setup.bounds.elsewhere && shelf.kept(number)?.is_none() {
        have_it_kept(setup, number).context("no other host has copied it yet")?;
    }
    shelf.prune(number)
}

/// Ships what waits, when there is no room for more snapshots.
pub(super) fn ship_pending(work: &Path, setup: &Setup) -> Result<()> {
    let _lock = lock(work)?;
    ship_all(work, setup)
}

fn ship_all(work: &Path, setup: &Setup) -> Result<()> {
    let begun = SystemClock.instant();
    for number in pending(work)? {
        let folder = pending_folder(work).join(number.to_string());
        match patiently(begun, || ship(&folder, number, setup)) {
            Ok(()) => forget_trouble(work),
            Err(error) => note(work, number, &format!("{error:#}"))?,
        }
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

fn note(work: &Path, number: Number, reason: &str) -> Result<()> {
    let trouble = Trouble { number, at: SystemClock.now().into(), reason: reason.to_owned() };
    write_json(&work.join(FOLDER).join("status.json"), &trouble)
}

fn forget_trouble(work: &Path) {
    let _ = std::fs::remove_file(work.join(FOLDER).join("status.json"));
}

/// Does something again while a file system is out of reach, but not for long after `begun`.
///
/// # Errors
/// What the last attempt says.
pub fn patiently<T>(begun: Instant, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let result = attempt();
        let waited = SystemClock.instant().saturating_duration_since(begun);
        match result {
            Err(error) if is_short_outage(&error) && waited < SHIP_PATIENCE => {
                std::thread::sleep(SHIP_AGAIN);
            }
            result => return result,
        }
    }
}

/// What a file system says while another node takes it over.
fn is_short_outage(error: &anyhow::Error) -> bool {
    number_of(error).is_some_and(|number| is_out_of_reach(number) || number == libc::EIO)
}

/// Ships one snapshot.
fn ship(folder: &Path, number: Number, setup: &Setup) -> Result<()> {
    let shelf = Shelf::at(&setup.place);
    let manifest: Manifest = read_json(&folder.join("manifest.json"))?;
    check_bounds(&shelf, &manifest, setup)?;
    let objects = shelf.objects();
    std::fs::create_dir_all(&objects).with_context(|| objects.display().to_string())?;
    for (object, bytes) in manifest.objects() {
        let (from, to) = (folder.join(object), objects.join(object));
        let Ok(from) = copy::open(&from) else {
            // Shipped before.
            let there = std::fs::metadata(&to).is_ok_and(|about| about.len() == bytes);
            ensure!(there, "an earlier checkpoint that it needs was not shipped");
            continue;
        };
        write_object(&to, &from, bytes)?;
    }
    sync_folder(&objects)?;
    write_json(&shelf.manifest(number), &manifest)
}

/// Writes an object as a whole, whatever was there under its name.
pub(super) fn write_object(to: &Path, from: &File, bytes: u64) -> Result<()> {
    let draft = to.with_extension(format!("draft-{}", std::process::id()));
    let written = (|| {
        let _ = std::fs::remove_file(&draft);
        let file = copy::create(&draft)?;
        let (_, copied) = copy::fill(&file, from)?;
        if copied != bytes {
            return Err(std::io::Error::other(format!("{copied} bytes instead of {bytes}")));
        }
        file.sync_all()?;
        std::fs::rename(&draft, to)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written.with_context(|| format!("cannot write {}", to.display()))
}

/// Refuses what would exceed the bounds of the job or of its user.
fn check_bounds(shelf: &Shelf, manifest: &Manifest, setup: &Setup) -> Result<()> {
    let more = manifest.changed_bytes.saturating_sub(shipped_bytes(shelf, manifest));
    let own = shelf.bytes()?.saturating_add(more);
    let most = setup.bounds.job_bytes_max;
    if own > most {
        bail!(
            "the checkpoints of this job would have {}, more than the {} of checkpoint_bytes_max in the settings of the grid \
             (the one before stays until this one is complete)",
            ByteSize(own),
            ByteSize(most)
        );
    }
    let most = setup.bounds.user_bytes_max;
    let all = bytes_of_user(&shelf.folder)?.saturating_add(more);
    if all > most {
        bail!(
            "the checkpoints of all your jobs would have {}, more than the {} of user_checkpoint_bytes_max in the settings of \
             the grid",
            ByteSize(all),
            ByteSize(most)
        );
    }
    Ok(())
}

/// Bytes of the new objects of a checkpoint that lie there already, from an attempt to ship it before.
fn shipped_bytes(shelf: &Shelf, manifest: &Manifest) -> u64 {
    let own = format!("{}-", manifest.number);
    let new = manifest.objects().filter(|(object, _)| object.starts_with(&own));
    let is_there = |object: &str, bytes: u64| {
        std::fs::metadata(shelf.objects().join(object)).is_ok_and(|about| about.len() == bytes)
    };
    new.filter(|(object, bytes)| is_there(object, *bytes)).map(|(_, bytes)| bytes).sum()
}

/// Bytes of the checkpoints of all jobs of whoever owns `folder`.
fn bytes_of_user(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let place = folder.parent().context("a job's folder lies in a place")?;
    let uid = std::fs::metadata(folder).with_context(|| folder.display().to_string())?.uid();
    let mut sum: u64 = 0;
    for entry in std::fs::read_dir(place).with_context(|| place.display().to_string())? {
        let path = entry?.path();
        if std::fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir() && about.uid() == uid)
        {
            sum = sum.saturating_add(Shelf::at(&path).bytes()?);
        }
    }
    Ok(sum)
}

/// Asks the controller to have another host copy a checkpoint; returns once that has.
fn have_it_kept(setup: &Setup, number: Number) -> Result<()> {
    let home = GridHome::of(&setup.root)?;
    match Client::connect(&home)?.ask(&Ask::KeepCheckpoint { target: setup.job, number })? {
        Answer::Here => Ok(()),
        Answer::Refused(refusal) => bail!("{refusal}"),
        answer => bail!("unexpected answer of the controller: {answer:?}"),
    }
}

impl Shelf {
    /// Removes the checkpoints before one that counts, and the objects that only they have.
    fn prune(&self, counts: Number) -> Result<()> {
        let mut needed = BTreeSet::new();
        let mut former = Vec::new();
        for number in self.numbers()? {
            if number < counts {
                former.push(number);
                continue;
            }
            let manifest = self.read(number)?;
            needed.extend(manifest.objects().map(|(object, _)| object.to_owned()));
        }
        for number in former {
            // The manifest first: without its objects it would be one that cannot be read.
            let manifest = self.manifest(number);
            std::fs::remove_file(&manifest).with_context(|| manifest.display().to_string())?;
            let _ = std::fs::remove_file(self.kept_file(number));
        }
        let objects = self.objects();
        if !objects.exists() {
            return Ok(());
        }
        for entry in std::fs::read_dir(&objects).with_context(|| objects.display().to_string())? {
            let entry = entry?;
            if !needed.contains(&*entry.file_name().to_string_lossy()) {
                let path = entry.path();
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }
}

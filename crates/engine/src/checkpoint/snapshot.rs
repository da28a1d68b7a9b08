//! Taking a checkpoint in the work area: what has changed is cloned or copied beside it, so that the program can go on.
//!
//! A file is unchanged if its inode, size and times are those of the last snapshot, and were older than a moment then. What a
//! program writes while the snapshot is taken is in it in some state, and is copied again by the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_base::Clock;
use forebay_grid::vocabulary::Moment;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::copy::{self, How};
use super::{
    Entry, FOLDER, Kind, Manifest, Number, Setup, Shelf, VERSION, encode, read_json_if_there, ship,
    write_json,
};

/// The most snapshots that wait to be shipped; the next one waits until there are fewer.
pub const PENDING_MAX: usize = 4;

/// A file that was changed so short before it was looked at may change again without another time.
const RECENT_NS: i128 = 100_000_000;

/// What is of the grid and not of the job.
const OWN: [&str; 2] = [FOLDER, ".forebay/script"];

/// What a checkpoint has cost.
#[derive(Clone, Debug, Serialize)]
pub struct Taken {
    /// Its number.
    pub number: Number,
    /// The step that had finished.
    pub step: String,
    /// Files, folders and links in the area.
    pub entries: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that had changed.
    pub changed_files: u64,
    /// Their bytes.
    pub changed_bytes: u64,
    /// How many of these were copied, because the file system cannot clone.
    pub copied_bytes: u64,
    /// Sockets, pipes and devices, which are left out.
    pub skipped: u64,
    /// For how long the program waited, in milliseconds.
    pub pause_ms: u64,
}

/// What was known of a file when it was last copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// It may have changed since without a trace.
    recent: bool,
    object: String,
}

/// `last.json`: the files of the last snapshot by path.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Marks {
    pub files: BTreeMap<String, Mark>,
}

impl Mark {
    /// `before` is what was seen of the file before its bytes were read.
    pub fn of(before: &Metadata, now: Moment, object: String) -> Mark {
        let changed_ns =
            i128::from(before.ctime()) * 1_000_000_000 + i128::from(before.ctime_nsec());
        Mark {
            inode: before.ino(),
            bytes: before.len(),
            modified: (before.mtime(), before.mtime_nsec()),
            changed: (before.ctime(), before.ctime_nsec()),
            recent: changed_ns + RECENT_NS >= i128::from(now.0) * 1_000_000,
            object,
        }
    }

    /// Of a file that nobody changes until the kernel's clock has gone on.
    pub fn settled(about: &Metadata, object: String) -> Mark {
        Mark { recent: false, ..Mark::of(about, Moment(0), object) }
    }

    fn is_of(&self, now: &Metadata) -> bool {
        !self.recent
            && self.inode == now.ino()
            && self.bytes == now.len()
            && self.modified == (now.mtime(), now.mtime_nsec())
            && self.changed == (now.ctime(), now.ctime_nsec())
    }
}

pub(super) fn pending_folder(work: &Path) -> PathBuf {
    work.join(FOLDER).join("pending")
}

/// The snapshots that wait to be shipped, the oldest first. One without a manifest was interrupted.
pub(super) fn pending(work: &Path) -> Result<Vec<Number>> {
    let folder = pending_folder(work);
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<Number>().ok());
        if let Some(number) = number
            && entry.path().join("manifest.json").exists()
        {
            numbers.insert(number);
        }
    }
    Ok(numbers.into_iter().collect())
}

/// Where files are copied to, and which objects there are already.
struct Snapshot<'a> {
    work: &'a Path,
    folder: PathBuf,
    number: Number,
    begun: Moment,
    before: Marks,
    known: BTreeSet<String>,
    after: Marks,
    entries: Vec<Entry>,
    taken: Taken,
}

/// Takes a snapshot of the work area of a job, one at a time.
///
/// # Errors
/// If something cannot be read or copied: nothing of it is left then.
pub fn take(work: &Path, setup: &Setup, step: &str, clock: &dyn Clock) -> Result<Taken> {
    let begun = clock.instant();
    let own = work.join(FOLDER);
    std::fs::create_dir_all(pending_folder(work)).with_context(|| own.display().to_string())?;
    let lock = File::create(own.join("taking"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    if pending(work)?.len() >= PENDING_MAX {
        ship::ship_pending(work, setup)?;
    }
    let number = next_number(work, setup)?;
    let folder = pending_folder(work).join(number.to_string());
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    let taken = Taken {
        number,
        step: step.to_owned(),
        entries: 0,
        bytes: 0,
        changed_files: 0,
        changed_bytes: 0,
        copied_bytes: 0,
        skipped: 0,
        pause_ms: 0,
    };
    let mut snapshot = Snapshot {
        work,
        folder: folder.clone(),
        number,
        begun: clock.now().into(),
        before: read_json_if_there(&own.join("last.json")).ok().flatten().unwrap_or_default(),
        known: known_objects(work, setup)?,
        after: Marks::default(),
        entries: Vec::new(),
        taken,
    };
    match snapshot.finish(setup) {
        Ok(()) => {
            let waited = clock.instant().saturating_duration_since(begun);
            snapshot.taken.pause_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            Ok(snapshot.taken)
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(&folder);
            Err(error)
        }
    }
}

fn next_number(work: &Path, setup: &Setup) -> Result<Number> {
    let attempt = setup.attempt.0;
    let mut all = pending(work)?;
    all.extend(Shelf::at(&setup.place).numbers()?);
    let used = all.into_iter().filter(|number| number.attempt == attempt);
    let sequence = used.map(|number| number.sequence).max().unwrap_or(0) + 1;
    Ok(Number { attempt, sequence })
}

/// Objects that were shipped, or wait for it.
fn known_objects(work: &Path, setup: &Setup) -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    // Those that wait first: what is shipped meanwhile is found in the place then.
    for number in pending(work)? {
        let path = pending_folder(work).join(number.to_string()).join("manifest.json");
        if let Some(manifest) = read_json_if_there::<Manifest>(&path).unwrap_or_default() {
            known.extend(manifest.objects().map(|(object, _)| object.to_owned()));
        }
    }
    let shelf = Shelf::at(&setup.place);
    // One that cannot be read, because the node is down that has its bytes, has nothing that may be relied on.
    let latest = shelf.numbers()?.first().and_then(|latest| shelf.read(*latest).ok());
    if let Some(latest) = latest {
        known.extend(latest.objects().map(|(object, _)| object.to_owned()));
    }
    Ok(known)
}

impl Snapshot<'_> {
    fn finish(&mut self, setup: &Setup) -> Result<()> {
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            self.add_folder(&folder, &mut folders)?;
        }
        let Taken { bytes, changed_bytes, ref step, .. } = self.taken;
        let manifest = Manifest {
            version: VERSION,
            number: self.number,
            step: step.clone(),
            host: setup.host.clone(),
            taken: self.begun,
            bytes,
            changed_bytes,
            entries: std::mem::take(&mut self.entries),
        };
        self.taken.entries = manifest.entries.len();
        write_json(&self.folder.join("manifest.json"), &manifest)?;
        write_json(&self.work.join(FOLDER).join("last.json"), &self.after)
    }

    /// Adds what is in a folder; the folders among it are added later.
    fn add_folder(&mut self, folder: &Path, folders: &mut Vec<PathBuf>) -> Result<()> {
        let at = self.work.join(folder);
        for entry in std::fs::read_dir(&at).with_context(|| at.display().to_string())? {
            let path = folder.join(entry?.file_name());
            if OWN.iter().any(|own| path == Path::new(own)) {
                continue;
            }
            // Files come and go meanwhile.
            let full = self.work.join(&path);
            let Ok(about) = std::fs::symlink_metadata(&full) else { continue };
            let kind = if about.is_dir() {
                folders.push(path.clone());
                Some(Kind::Folder)
            } else if about.is_symlink() {
                std::fs::read_link(&full).ok().map(|target| Kind::Link(encode(&target)))
            } else if about.is_file() {
                self.add_file(&path, &full)?
            } else {
                self.taken.skipped += 1;
                None
            };
            let Some(kind) = kind else { continue };
            self.entries.push(Entry {
                path: encode(&path),
                mode: about.mode() & 0o7777,
                changed: (about.mtime(), u32::try_from(about.mtime_nsec()).unwrap_or(0)),
                kind,
            });
        }
        Ok(())
    }

    /// The object of a file: that of the last snapshot, or a new one. None if it has gone.
    fn add_file(&mut self, path: &Path, full: &Path) -> Result<Option<Kind>> {
        let shown = || full.display().to_string();
        let from = match copy::open(full) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(shown)?,
        };
        let before = from.metadata().with_context(shown)?;
        let name = encode(path);
        let mark = self.before.files.get(&name).filter(|mark| mark.is_of(&before));
        if let Some(mark) = mark.filter(|mark| self.known.contains(&mark.object)) {
            let (bytes, object) = (mark.bytes, mark.object.clone());
            self.after.files.insert(name, mark.clone());
            self.taken.bytes = self.taken.bytes.saturating_add(bytes);
            return Ok(Some(Kind::File { bytes, object }));
        }
        copy::settle(&from);
        let before = from.metadata().with_context(shown)?;
        let object = format!("{}-{}", self.number, self.taken.changed_files);
        let to = copy::create(&self.folder.join(&object)).with_context(shown)?;
        let (how, bytes) = copy::fill(&to, &from)
            .with_context(|| format!("cannot copy {} beside the work area", full.display()))?;
        self.after.files.insert(name, Mark::of(&before, self.begun, object.clone()));
        self.taken.changed_files += 1;
        self.taken.changed_bytes = self.taken.changed_bytes.saturating_add(bytes);
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        if how == How::Copied {
            self.taken.copied_bytes = self.taken.copied_bytes.saturating_add(bytes);
        }
        Ok(Some(Kind::File { bytes, object }))
    }
}

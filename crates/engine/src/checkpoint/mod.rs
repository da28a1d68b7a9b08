//! Checkpoints: copies of work areas in a place that all hosts reach, so that a job whose host died starts elsewhere at its
//! last finished step.
//!
//! `forebay checkpoint done` takes a *snapshot* in the work area itself ([`snapshot`]): files that have changed are cloned, or
//! copied where the file system cannot clone, and the program goes on. A process of the job *ships* it in the background
//! ([`ship`]). The next start brings the area back ([`restore`]) if what lies on its host is older. On a cluster, whose
//! bytes lie on the node that writes them, another host copies what was shipped ([`keep`]): only then does it survive the
//! job's node, and only then does the checkpoint before it go.
//!
//! docs/formats/checkpoint.md draws the folders. All of this runs with the rights of the job's user.
//!
//! What survives a crash: a checkpoint is its manifest, which is written once all its files are on stable storage. Whatever
//! is interrupted leaves the checkpoint before it whole, and files that the next one removes.

mod copy;
pub mod keep;
pub mod restore;
pub mod ship;
pub mod snapshot;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::{Attempt, HostName, Moment, Target, TaskId};
use forebay_process::user::is_root;
use serde::{Deserialize, Serialize};

use crate::area;
use crate::files;
use crate::home::GridHome;

/// Folder in a work area for what is known of its checkpoints, and for those that are not shipped yet.
pub const FOLDER: &str = ".forebay/checkpoint";

/// Which version of manifests this program writes and reads.
const VERSION: u32 = 1;

/// What the files of a checkpoint are called: the start of the job that took it, and the place among those of that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    /// The start.
    pub attempt: u32,
    /// The place, counted from 1.
    pub sequence: u32,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.sequence)
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Number, String> {
        let fault = || format!("{text:?} is not the number of a checkpoint, such as 1.2");
        let (attempt, sequence) = text.split_once('.').ok_or_else(fault)?;
        let number = |text: &str| text.parse().map_err(|_| fault());
        Ok(Number { attempt: number(attempt)?, sequence: number(sequence)? })
    }
}

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What the host that starts a job says about its checkpoints: `setup.json` in the work area. The area is that of this start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Which start of the job.
    pub attempt: Attempt,
    /// Where.
    pub host: HostName,
    /// Which boot of the machine: what a machine that went down had not written may be missing in the area.
    pub boot: String,
    /// Job or element.
    pub job: Target,
    /// ROOT of the grid.
    pub root: PathBuf,
    /// Where checkpoints of this job go.
    pub place: PathBuf,
    /// The most bytes, and who else must have them.
    pub bounds: Bounds,
    /// Which checkpoint the area was brought back from, if it was.
    #[serde(default)]
    pub restored: Option<Restored>,
}

/// What the settings of the grid say about checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The most bytes of one job's checkpoints.
    pub job_bytes_max: u64,
    /// The most bytes of one user's.
    pub user_bytes_max: u64,
    /// Whether a checkpoint counts only when another host has copied it.
    pub elsewhere: bool,
}

/// How a work area was brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// From which checkpoint; none if there was none that could be read.
    pub number: Option<Number>,
    /// Bytes of its files.
    pub bytes: u64,
    /// How long it took.
    pub milliseconds: u64,
    /// Later checkpoints that could not be read, and why.
    pub lost: Vec<String>,
}

/// A checkpoint: everything in the work area, and in which objects its bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// Its number.
    pub number: Number,
    /// The step that had finished.
    pub step: String,
    /// The host on which it was taken.
    pub host: HostName,
    /// When.
    pub taken: Moment,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of those that had changed since the checkpoint before.
    pub changed_bytes: u64,
    /// Folders before what is in them.
    entries: Vec<Entry>,
}

/// One thing in a work area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Its path below the area, as [`encode`] writes it.
    path: String,
    mode: u32,
    /// When it was changed: seconds and nanoseconds.
    changed: (i64, u32),
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Folder,
    /// To this path, as [`encode`] writes it.
    Link(String),
    File {
        bytes: u64,
        /// The object that holds them.
        object: String,
    },
}

impl Manifest {
    /// The objects of its files, with their bytes.
    fn objects(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().filter_map(|entry| match &entry.kind {
            Kind::File { bytes, object } => Some((object.as_str(), *bytes)),
            Kind::Folder | Kind::Link(_) => None,
        })
    }
}

/// A path as text: bytes that are not printable UTF-8, and `%`, are `%` and two hexadecimal digits.
fn encode(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' || character.is_control() {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    text.push_str(&format!("%{byte:02X}"));
                }
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
    }
    text
}

/// The path that [`encode`] wrote; none if the text is not one, or leads out of the area.
fn decode(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// Whether a path stays below the folder that it is joined to.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Whether a text is the name of an object: it is joined to a path.
fn is_object(name: &str) -> bool {
    name.split_once('-').is_some_and(|(number, place)| {
        number.parse::<Number>().is_ok() && place.parse::<u64>().is_ok()
    })
}

/// The folder of a job's checkpoints in the place that all hosts reach.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
}

/// Which host has copied the objects of a checkpoint: `kept-N.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The host that copied last.
    pub host: String,
    /// Where each object of the checkpoint was written last.
    objects: std::collections::BTreeMap<String, String>,
}

/// What people are told of the checkpoint from which a job would start elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its number.
    pub number: Number,
    /// The step that had finished.
    pub step: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes that had changed since the checkpoint before.
    pub changed_bytes: u64,
    /// When it was taken.
    pub taken: Moment,
    /// Where.
    pub host: HostName,
    /// The host that has copied it, if one had to.
    pub kept_on: Option<String>,
    /// Whether it survives the host on which it was taken.
    pub counts: bool,
}

impl Shelf {
    /// The one in this folder.
    #[must_use]
    pub fn at(folder: &Path) -> Shelf {
        Shelf { folder: folder.to_owned() }
    }

    fn objects(&self) -> PathBuf {
        self.folder.join("objects")
    }

    fn manifest(&self, number: Number) -> PathBuf {
        self.folder.join(format!("manifest-{number}.json"))
    }

    fn kept_file(&self, number: Number) -> PathBuf {
        self.folder.join(format!("kept-{number}.json"))
    }

    /// The numbers of all checkpoints, the latest first.
    fn numbers(&self) -> Result<Vec<Number>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.folder.display().to_string())?,
        };
        let mut numbers = BTreeSet::new();
        for entry in entries {
            let name = entry.with_context(|| self.folder.display().to_string())?.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix("manifest-").and_then(|n| n.strip_suffix(".json"));
            numbers.extend(number.and_then(|number| number.parse::<Number>().ok()));
        }
        Ok(numbers.into_iter().rev().collect())
    }

    fn read(&self, number: Number) -> Result<Manifest> {
        let manifest: Manifest = read_json(&self.manifest(number))?;
        anyhow::ensure!(
            manifest.version == VERSION,
            "{}: version {}, but this version of forebay reads {VERSION}",
            self.manifest(number).display(),
            manifest.version
        );
        let safe = manifest.objects().all(|(object, _)| is_object(object));
        let inside = |entry: &Entry| decode(&entry.path).is_some_and(|path| is_inside(&path));
        anyhow::ensure!(
            safe && manifest.entries.iter().all(inside),
            "{}: it names files outside",
            self.manifest(number).display()
        );
        Ok(manifest)
    }

    /// Which host has copied a checkpoint, if one has.
    fn kept(&self, number: Number) -> Result<Option<Kept>> {
        let path = self.kept_file(number);
        if !path.try_exists().with_context(|| path.display().to_string())? {
            return Ok(None);
        }
        read_json(&path).map(Some)
    }

    /// The latest checkpoint that would be used, and if that does not count yet the latest that does.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn latest(&self, elsewhere: bool) -> Result<Vec<Summary>> {
        let mut found = Vec::new();
        for number in self.numbers()? {
            let Manifest { step, bytes, changed_bytes, taken, host, .. } = self.read(number)?;
            let kept_on = self.kept(number)?.map(|kept| kept.host);
            let counts = !elsewhere || kept_on.is_some();
            found.push(Summary {
                number,
                step,
                bytes,
                changed_bytes,
                taken,
                host,
                kept_on,
                counts,
            });
            if counts {
                break;
            }
        }
        Ok(found)
    }

    /// Bytes of all objects, those of interrupted checkpoints included.
    fn bytes(&self) -> Result<u64> {
        let folder = self.objects();
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            entries => entries.with_context(|| folder.display().to_string())?,
        };
        let mut sum: u64 = 0;
        for entry in entries {
            // What goes meanwhile is not counted.
            let bytes = entry?.metadata().map_or(0, |about| about.len());
            sum = sum.saturating_add(bytes);
        }
        Ok(sum)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// A file of the work area; none if it is not there.
fn read_json_if_there<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if !path.try_exists()? {
        return Ok(None);
    }
    read_json(path).map(Some)
}

/// Writes a file as a whole; it survives a crash once this returns.
fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let shown = || format!("cannot write {}", path.display());
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file = File::create(&draft).with_context(shown)?;
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    file.write_all(&text).and_then(|()| file.sync_all()).with_context(shown)?;
    std::fs::rename(&draft, path).with_context(shown)?;
    sync_folder(path.parent().unwrap_or(path))
}

/// Makes the place of a grid for checkpoints, and the folder above it in a directory that is there: where a file system is not
/// mounted nothing is made below its mount point. Both are on stable storage once this returns: hosts go on using the place
/// when the node that keeps its names has gone down.
///
/// # Errors
/// If a folder cannot be made, or belongs to somebody else.
pub fn make_place(place: &Path) -> Result<()> {
    // Users read the sizes of their own there.
    let mode = if is_root() { 0o755 } else { 0o700 };
    let above = place.parent().filter(|above| !above.exists());
    for folder in above.into_iter().chain([place]) {
        files::folder(folder, mode)
            .and_then(|()| sync_folder(folder.parent().unwrap_or(folder)))
            .with_context(|| format!("--checkpoints {}", folder.display()))?;
    }
    Ok(())
}

/// Makes the place again if somebody has removed it from the folder above it. Where that is missing, too, its file system may not be
/// mounted now.
///
/// # Errors
/// As [`make_place`], and if there is no folder above it.
pub fn make_place_if_missing(place: &Path) -> Result<()> {
    if place.is_dir() {
        return Ok(());
    }
    let above = place.parent().unwrap_or(place);
    anyhow::ensure!(above.is_dir(), "--checkpoints {}: it is not there", above.display());
    make_place(place)
}

/// Has the names in a folder survive a crash once this returns.
///
/// # Errors
/// If it cannot be synced.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot sync {}", folder.display()))
}

/// The checkpoints of a task from which it would start elsewhere, as this machine sees them: the latest, and if that does not
/// count yet the latest that does. None where jobs have no place for checkpoints.
///
/// # Errors
/// If they cannot be read: by somebody else than the job's user and root, too.
pub fn of_task(home: &GridHome, task: TaskId) -> Result<Option<Vec<Summary>>> {
    let place = match std::fs::read(home.checkpoints()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| home.checkpoints().display().to_string())?,
    };
    let place = PathBuf::from(std::ffi::OsString::from_vec(place));
    let folder = area::latest_checkpoint(&place, task);
    let folder = folder.with_context(|| place.display().to_string())?;
    let latest = |folder: PathBuf| Shelf::at(&folder).latest(home.cluster().exists());
    folder.map_or(Ok(Vec::new()), latest).map(Some)
}

/// What a job knows of its checkpoints: none if its host has no place for them.
///
/// # Errors
/// If the file is damaged.
pub fn setup_of(work: &Path) -> Result<Option<Setup>> {
    read_json_if_there(&work.join(FOLDER).join("setup.json"))
}

#[cfg(test)]
mod tests;

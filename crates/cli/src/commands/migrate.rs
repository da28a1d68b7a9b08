//! `forebay migrate`, `forebay recall` and `forebay where`: files by hand, between pools and archives.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::{ByteSize, Ino};
use forebay_fs::{FilePlace, Migrated, Residence};
use serde::Serialize;

use crate::control::{self, Answer, Ask};
use crate::mounts::{self, Mounted};
use crate::output::{Table, bytes, put_json};

/// The extended attribute of a file that stays out of archives.
const PIN: &str = "user.forebay.pin";
/// Files that are asked for at a time.
const BATCH: usize = 64;
/// Bytes of them, unless one file has more.
const BATCH_BYTES: u64 = 256 << 20;
/// Files that are listed of those that failed.
const SHOWN_MAX: usize = 20;
/// How long a batch may take.
const LIMIT: Duration = Duration::from_secs(7 * 86_400);

/// Move files to another pool now, such as one of archives.
///
/// In the pool of an archive (`forebay disk add --help`) a file lies compressed in an object store. Its name, size and
/// attributes stay, and it is brought back (recalled) when a program opens it, or read where it lies (recall_mode = "partial"
/// in ROOT/forebay.toml). A file is removed here only after its object was read back from the archive and compared. Files that are open, pinned (`forebay recall --pin`), or that a snapshot refers to,
/// are left where they are and counted. Directories are taken with all that lies below them, in the same mount.
/// `forebay policy` does the same by rules.
///
/// With --premigrate a file lies in the archive too and stays here: programs read it at full speed, and when they write it
/// its object in the archive is removed. Migrating it later, by this command or a rule, frees the local copy at once,
/// without a request to the store. `forebay where` shows the state of files.
///
/// Exit codes: 0 done, 1 some files were left, 2 failed. Not available in a cluster.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay migrate /mnt/forebay/data/2023 --to archive
  forebay migrate /mnt/forebay/data/2024 --to archive --premigrate
  forebay migrate /mnt/forebay/data/run7.h5 --to flash --json
  find /mnt/forebay/data -atime +90 -type f -print0 | xargs -0 forebay migrate --to archive")]
pub struct Migrate {
    /// Files and directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Pool that they go to.
    #[arg(long, value_name = "POOL")]
    to: String,
    /// Write the files to the archive and keep them here, so that they can be evicted quickly later.
    #[arg(long)]
    premigrate: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Bring files back from archives, before programs need them.
///
/// A program that opens an archived file waits until all of it is back. This command does the same in advance, several files at a
/// time, and reports progress. Directories are taken with all that lies below them, in the same mount. Who may read a file may
/// recall it. Ctrl-C stops; what is back stays. Exit codes: 0 done, 1 some files could not be recalled, 2 failed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay recall /mnt/forebay/data/2023
  forebay recall /mnt/forebay/data/reference --pin
  forebay recall /mnt/forebay/data/*.h5 --parallel 8 --json")]
pub struct Recall {
    /// Files and directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Files that are recalled at the same time; the file system bounds this too (recall_threads).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Keep the files out of archives from now on, those that did not lie in one included: they get the extended
    /// attribute user.forebay.pin, which setfattr -x removes.
    #[arg(long)]
    pin: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show where files lie: disk, pool, the bytes that they take there, and how they are striped over several disks.
///
/// A file lies here, is premigrated (here, and the same in an archive), or archived (in an archive alone); in JSON the states are resident,
/// premigrated and migrated.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay where /mnt/forebay/data/run7.h5
  forebay where /mnt/forebay/data --json | jq '.files[] | select(.state == \"premigrated\") | .path'")]
pub struct Where {
    /// Files and directories, which are taken with all that lies below them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print only sums by pool.
    #[arg(long)]
    summary: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A regular file in a mount.
struct Found {
    path: PathBuf,
    ino: Ino,
    bytes: u64,
}

/// The mount that a path lies in.
fn mount_of(path: &Path) -> Result<(Mounted, Metadata)> {
    let about = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let device = about.dev();
    let named = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let found = mounts::all().into_iter().rev().find(|mount| mount.device == named);
    let mount = found.with_context(|| {
        format!(
            "{} does not lie in a mounted Forebay file system, or in a native fileset",
            path.display()
        )
    })?;
    Ok((mount, about))
}

/// Calls `visit` with every regular file at and below `paths`, each once; with the home folder of their mount.
fn walk(paths: &[PathBuf], mut visit: impl FnMut(&Path, Found) -> Result<()>) -> Result<()> {
    let mut known = HashSet::new();
    for path in paths {
        let (mount, about) = mount_of(path)?;
        let mut open = vec![(path.clone(), about.clone())];
        while let Some((path, found)) = open.pop() {
            // What is mounted below, native filesets included, is another file system.
            if found.dev() != about.dev() {
                continue;
            }
            if found.is_dir() {
                let entries =
                    std::fs::read_dir(&path).with_context(|| path.display().to_string())?;
                for entry in entries {
                    let entry = entry.with_context(|| path.display().to_string())?;
                    // The snapshots of a fileset have files of their own.
                    if entry.file_name() == ".snapshots" {
                        continue;
                    }
                    match entry.metadata() {
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                        about => open.push((
                            entry.path(),
                            about.with_context(|| entry.path().display().to_string())?,
                        )),
                    }
                }
            } else if found.is_file() && known.insert((found.dev(), found.ino())) {
                let found = Found { path, ino: Ino(found.ino()), bytes: found.len() };
                visit(&mount.home, found)?;
            }
        }
    }
    Ok(())
}

/// As [`walk`], many at a time.
fn in_batches(
    paths: &[PathBuf],
    mut take: impl FnMut(&Path, Vec<Found>) -> Result<()>,
) -> Result<()> {
    let mut batch: Vec<Found> = Vec::new();
    let mut home: Option<PathBuf> = None;
    walk(paths, |of, found| {
        let is_other = home.as_deref().is_some_and(|home| home != of);
        let sum: u64 = batch.iter().map(|file| file.bytes).sum();
        let is_full = batch.len() >= BATCH || sum.saturating_add(found.bytes) > BATCH_BYTES;
        if !batch.is_empty()
            && (is_other || is_full)
            && let Some(home) = &home
        {
            take(home, std::mem::take(&mut batch))?;
        }
        home = Some(of.to_owned());
        batch.push(found);
        Ok(())
    })?;
    match home {
        Some(home) if !batch.is_empty() => take(&home, batch),
        _ => Ok(()),
    }
}

fn inos(files: &[Found]) -> Vec<Ino> {
    files.iter().map(|file| file.ino).collect()
}

/// Where files lie, in their order.
fn places(home: &Path, files: &[Found]) -> Result<Vec<Option<FilePlace>>> {
    match control::ask(home, &Ask::Places { files: inos(files) })? {
        Answer::Places { places } if places.len() == files.len() => Ok(places),
        _ => bail!("the daemon answered without the places of files; does it run another version?"),
    }
}

#[derive(Default, Serialize)]
struct Moves {
    moved: u64,
    moved_bytes: u64,
    /// They lay in the archive too, and are not here any more.
    evicted: u64,
    evicted_bytes: u64,
    /// They lie in the archive too.
    premigrated: u64,
    premigrated_bytes: u64,
    /// They lay there, or have no bytes.
    unchanged: u64,
    in_use: u64,
    shared_with_snapshots: u64,
    pinned: u64,
    failed: u64,
    /// Some of those that were left, with the reason.
    left: Vec<Left>,
}

#[derive(Serialize)]
struct Left {
    path: PathBuf,
    reason: String,
}

/// Prints what became of the files: as JSON, or in words with those that were left.
fn report(json: bool, all: &impl Serialize, summary: &str, left: &[Left]) -> Result<()> {
    if json {
        return put_json(all);
    }
    outln!("{summary}");
    for file in left {
        outln!("  {}: {}", file.path.display(), file.reason);
    }
    Ok(())
}

impl Moves {
    fn note(&mut self, file: Found, outcome: Migrated) {
        let reason = match outcome {
            Migrated::Moved { bytes } => {
                self.moved += 1;
                self.moved_bytes = self.moved_bytes.saturating_add(bytes);
                return;
            }
            Migrated::Evicted { bytes } => {
                self.evicted += 1;
                self.evicted_bytes = self.evicted_bytes.saturating_add(bytes);
                return;
            }
            Migrated::Premigrated { bytes } => {
                self.premigrated += 1;
                self.premigrated_bytes = self.premigrated_bytes.saturating_add(bytes);
                return;
            }
            Migrated::Nothing => {
                self.unchanged += 1;
                return;
            }
            Migrated::InUse => {
                self.in_use += 1;
                "it is in use".to_owned()
            }
            Migrated::Shared => {
                self.shared_with_snapshots += 1;
                "a snapshot refers to its bytes: to move it would free nothing".to_owned()
            }
            Migrated::Pinned => {
                self.pinned += 1;
                format!("it is pinned: setfattr -x {PIN} removes the pin")
            }
            Migrated::Failed { reason } => {
                self.failed += 1;
                reason
            }
        };
        if self.left.len() < SHOWN_MAX {
            self.left.push(Left { path: file.path, reason });
        }
    }

    /// What was done, in words.
    fn done(&self) -> String {
        let mut done = Vec::new();
        if self.premigrated > 0 {
            let sum = bytes(self.premigrated_bytes);
            done.push(format!("premigrated {} files ({sum})", self.premigrated));
        }
        if self.evicted > 0 {
            let sum = bytes(self.evicted_bytes);
            done.push(format!("evicted {} premigrated files ({sum})", self.evicted));
        }
        if self.moved > 0 || done.is_empty() {
            done.push(format!("moved {} files ({})", self.moved, bytes(self.moved_bytes)));
        }
        done.join(", ")
    }

    fn count_left(&self) -> u64 {
        self.in_use + self.shared_with_snapshots + self.pinned + self.failed
    }
}

impl Migrate {
    pub fn run(self) -> Result<ExitCode> {
        let mut moves = Moves::default();
        in_batches(&self.paths, |home, files| {
            let (pool, of) = (self.to.clone(), inos(&files));
            let ask = match self.premigrate {
                true => Ask::PremigrateFiles { pool, files: of },
                false => Ask::MigrateFiles { pool, files: of },
            };
            let Answer::Migrated { outcomes } = control::ask_within(home, &ask, LIMIT)? else {
                bail!("the daemon answered without outcomes; does it run another version?");
            };
            for (file, outcome) in files.into_iter().zip(outcomes) {
                moves.note(file, outcome);
            }
            if !self.json {
                note!("{}", moves.done());
            }
            Ok(())
        })?;
        let left = moves.count_left();
        let summary = format!(
            "{} to pool {}; {} lay there already or have no bytes; {left} were left",
            moves.done(),
            self.to,
            moves.unchanged
        );
        report(self.json, &moves, &summary, &moves.left)?;
        Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// Keeps a file out of archives.
fn pin(path: &Path) -> Result<()> {
    let set = rustix::fs::setxattr(path, PIN, b"1", rustix::fs::XattrFlags::empty());
    set.with_context(|| format!("{} cannot be pinned", path.display()))
}

#[derive(Default, Serialize)]
struct Recalled {
    recalled: u64,
    recalled_bytes: u64,
    /// They did not lie in an archive.
    unchanged: u64,
    failed: u64,
    left: Vec<Left>,
}

impl Recall {
    pub fn run(self) -> Result<ExitCode> {
        let mut all = Recalled::default();
        let mut wanted = Vec::new();
        in_batches(&self.paths, |home, files| {
            let places = places(home, &files)?;
            for (file, place) in files.into_iter().zip(places) {
                if self.pin {
                    pin(&file.path)?;
                }
                match place.is_some_and(|place| place.is_archived) {
                    true => wanted.push(file),
                    false => all.unchanged += 1,
                }
            }
            Ok(())
        })?;
        let total: u64 = wanted.iter().map(|file| file.bytes).sum();
        self.recall(&wanted, total, &mut all);
        let summary = format!(
            "recalled {} files ({}); {} did not lie in an archive; {} could not be recalled",
            all.recalled,
            bytes(all.recalled_bytes),
            all.unchanged,
            all.failed
        );
        report(self.json, &all, &summary, &all.left)?;
        Ok(if all.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    /// To open a file brings it back.
    fn recall(&self, wanted: &[Found], total: u64, all: &mut Recalled) {
        let (next, done, done_bytes) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let left = Mutex::new(Vec::new());
        // Some fifty lines, however many files.
        let step = (wanted.len() as u64 / 50).max(1);
        let work = || {
            while let Some(file) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                match File::open(&file.path) {
                    Ok(_) => {
                        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                        let sum = done_bytes.fetch_add(file.bytes, Ordering::Relaxed) + file.bytes;
                        let is_shown = count % step == 0 || count == wanted.len() as u64;
                        if is_shown && !self.json {
                            note!(
                                "{count} of {} files, {} of {}",
                                wanted.len(),
                                bytes(sum),
                                bytes(total)
                            );
                        }
                    }
                    Err(error) => {
                        let reason = format!("{error} (the log of the file system says why)");
                        let path = file.path.clone();
                        if let Ok(mut left) = left.lock() {
                            left.push(Left { path, reason });
                        }
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..usize::from(self.parallel).min(wanted.len()) {
                scope.spawn(work);
            }
        });
        all.recalled = done.into_inner();
        all.recalled_bytes = done_bytes.into_inner();
        all.left = left.into_inner().unwrap_or_default();
        all.failed = all.left.len() as u64;
        all.left.truncate(SHOWN_MAX);
    }
}

#[derive(Serialize)]
struct Placed {
    path: PathBuf,
    #[serde(flatten)]
    place: FilePlace,
}

/// What a pool holds of the files.
#[derive(Default, Serialize)]
struct Sum {
    files: u64,
    bytes: u64,
    stored_bytes: u64,
    /// Bytes of the files for each byte that they take there.
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Places {
    files: Vec<Placed>,
    pools: std::collections::BTreeMap<String, Sum>,
}

impl Where {
    pub fn run(self) -> Result<ExitCode> {
        let mut found = Places { files: Vec::new(), pools: Default::default() };
        in_batches(&self.paths, |home, files| {
            let places = places(home, &files)?;
            for (file, place) in files.into_iter().zip(places) {
                let Some(place) = place else { continue };
                let sum = found.pools.entry(place.pool.clone()).or_default();
                sum.files += 1;
                sum.bytes = sum.bytes.saturating_add(place.size);
                sum.stored_bytes = sum.stored_bytes.saturating_add(place.stored_bytes);
                if !self.summary {
                    found.files.push(Placed { path: file.path, place });
                }
            }
            Ok(())
        })?;
        for sum in found.pools.values_mut() {
            let ratio = sum.bytes as f64 / sum.stored_bytes.max(1) as f64;
            sum.ratio = (sum.stored_bytes > 0).then_some((ratio * 100.0).round() / 100.0);
        }
        if self.json {
            put_json(&found)?;
            return Ok(ExitCode::SUCCESS);
        }
        if !self.summary {
            let mut table =
                Table::new(&["FILE", "POOL", "STATE", "SIZE", "STORED", "DISK", "COPIES"]);
            for Placed { path, place } in &found.files {
                let state = match (place.state, place.stripe_unit_bytes) {
                    (Residence::Migrated, _) => "archived".to_owned(),
                    (Residence::Home, _) => "not fetched".to_owned(),
                    (Residence::Premigrated, _) => "premigrated".to_owned(),
                    (Residence::Resident, Some(unit)) => format!("striped by {}", ByteSize(unit)),
                    (Residence::Resident, None) => "here".to_owned(),
                };
                let copies: Vec<&str> =
                    place.copies.iter().chain(&place.archive).map(String::as_str).collect();
                table.row(vec![
                    path.display().to_string(),
                    if place.pool.is_empty() { "-".to_owned() } else { place.pool.clone() },
                    state,
                    bytes(place.size),
                    bytes(place.stored_bytes),
                    place.location.clone().unwrap_or_else(|| "-".to_owned()),
                    if copies.is_empty() { "-".to_owned() } else { copies.join(", ") },
                ]);
            }
            out!("{}", table.render());
        }
        let mut table = Table::new(&["POOL", "FILES", "SIZE", "STORED", "RATIO"]);
        for (pool, sum) in &found.pools {
            table.row(vec![
                if pool.is_empty() { "-".to_owned() } else { pool.clone() },
                sum.files.to_string(),
                bytes(sum.bytes),
                bytes(sum.stored_bytes),
                sum.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        out!("{}", table.render());
        Ok(ExitCode::SUCCESS)
    }
}

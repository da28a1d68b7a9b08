//! The walk: directories are merged, everything else replaces what has its name, by a rename.
//!
//! A file is written under a draft's name beside its place, synced, and renamed. Everything below the place is opened
//! without following symbolic links, so whoever changes the tree meanwhile cannot lead a restoration elsewhere.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::Serialize;

use super::attributes::{NotKept, copy_attributes, copy_bytes, mode_of, times_of};
use crate::output::bytes;

/// Names of files that are being restored begin so.
pub const DRAFT: &str = ".forebay-restore.";
/// Files that are synced and renamed together, at most.
const BATCH_FILES: usize = 128;
/// Bytes of them, at most, but for the last file.
const BATCH_BYTES: u64 = 256 << 20;
/// Failures that are kept with their reasons.
const FAILURES_MAX: usize = 1000;

/// What a restoration did.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Everything but directories.
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    /// Files and directories that belong to the caller instead.
    pub owners_not_kept: u64,
    /// Extended attributes and ACLs that the place does not take.
    pub attributes_not_kept: u64,
    /// What was not restored; the first ones.
    pub failed: Vec<Failure>,
    pub failed_total: u64,
    /// Whether a signal ended it.
    pub interrupted: bool,
}

/// Something that was not restored.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub path: String,
    pub reason: String,
}

/// A file that is written, and not in its place yet.
struct Written {
    file: File,
    folder: OwnedFd,
    draft: String,
    to: PathBuf,
    size: u64,
    not_kept: NotKept,
}

enum Step {
    Visit(PathBuf, PathBuf),
    Finish(PathBuf, PathBuf),
}

/// A restoration under way. All paths are relative: those `from` to the snapshot, those `to` to the place.
pub struct Restoration {
    snapshot: PathBuf,
    place: OwnedFd,
    interrupted: Arc<AtomicBool>,
    /// A disk or quota is full: nothing more is tried.
    is_full: bool,
    batch: Vec<Written>,
    batch_bytes: u64,
    /// Directories whose attributes are set after the batch, in this order.
    finishing: Vec<(PathBuf, PathBuf)>,
    /// Files with several names: where the first of them was put.
    linked: HashMap<u64, PathBuf>,
    drafts: u64,
    terminal: bool,
    outcome: Outcome,
}

impl Restoration {
    /// Begins to restore from the directory of a snapshot to a directory that exists.
    pub fn begin(
        snapshot: &Path,
        place: &Path,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Restoration> {
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(place);
        let folder = folder.with_context(|| format!("cannot restore to {}", place.display()))?;
        Ok(Restoration {
            snapshot: snapshot.to_owned(),
            place: folder.into(),
            interrupted,
            is_full: false,
            batch: Vec::new(),
            batch_bytes: 0,
            finishing: Vec::new(),
            linked: HashMap::new(),
            drafts: 0,
            terminal: io::stderr().is_terminal(),
            outcome: Outcome::default(),
        })
    }

    /// Restores to where it was. Directories above it that are gone are made again.
    pub fn restore_in_place(&mut self, path: &Path) {
        let mut missing = Vec::new();
        for above in path.ancestors().skip(1) {
            if above.as_os_str().is_empty() || self.folder(above).is_ok() {
                break;
            }
            missing.push(above.to_owned());
        }
        for above in missing.iter().rev() {
            if let Err(error) = self.make_directory(above) {
                self.failed(above, &error);
                return;
            }
        }
        self.restore(path, path);
        for above in missing {
            self.finish_directory(above.clone(), above);
        }
    }

    /// Restores a file, or a directory with everything below it.
    pub fn restore(&mut self, from: &Path, to: &Path) {
        let mut steps = vec![Step::Visit(from.to_owned(), to.to_owned())];
        while let Some(step) = steps.pop() {
            match step {
                Step::Finish(from, to) => self.finish_directory(from, to),
                // Directories that were begun still get their attributes.
                Step::Visit(..) if self.has_to_end() => {}
                Step::Visit(from, to) => {
                    if let Err(error) = self.visit(&from, &to, &mut steps) {
                        self.failed(&to, &error);
                    }
                }
            }
        }
    }

    /// Puts the last files in their places, and makes all of it durable.
    pub fn finish(mut self) -> Result<Outcome> {
        self.put_batch();
        if self.terminal && self.outcome.files >= BATCH_FILES as u64 {
            crate::output::put_aside("\n");
        }
        rustix::fs::syncfs(&self.place).context("what was restored cannot be synced")?;
        File::from(self.place).sync_all().context("what was restored cannot be synced")?;
        self.outcome.interrupted = self.interrupted.load(Ordering::SeqCst);
        Ok(self.outcome)
    }

    fn has_to_end(&self) -> bool {
        self.is_full || self.interrupted.load(Ordering::SeqCst)
    }

    fn visit(&mut self, from: &Path, to: &Path, steps: &mut Vec<Step>) -> io::Result<()> {
        let path = self.snapshot.join(from);
        let wanted = fs::symlink_metadata(&path)?;
        if wanted.is_dir() {
            self.make_directory(to)?;
            steps.push(Step::Finish(from.to_owned(), to.to_owned()));
            for entry in fs::read_dir(&path)? {
                let name = entry?.file_name();
                steps.push(Step::Visit(from.join(&name), to.join(&name)));
            }
            return Ok(());
        }
        let has_names = wanted.nlink() > 1;
        if has_names && let Some(first) = self.linked.get(&wanted.ino()).cloned() {
            return self.link(&first, to);
        }
        if wanted.is_file() {
            self.write(&path, to, &wanted)?;
        } else {
            self.make_special(&path, to, &wanted)?;
        }
        if has_names {
            self.linked.insert(wanted.ino(), to.to_owned());
        }
        Ok(())
    }

    /// A directory of the place, reached without any symbolic link.
    fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.place, path, flags, Mode::empty(), within)?)
    }

    /// The directory of a path, and its last name.
    fn folder_of<'a>(&self, to: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
        let name = to.file_name().map(Path::new).ok_or(Errno::ISDIR)?;
        Ok((self.folder(to.parent().unwrap_or(Path::new("")))?, name))
    }

    fn make_directory(&self, to: &Path) -> io::Result<()> {
        if to.as_os_str().is_empty() {
            return Ok(());
        }
        let (folder, name) = self.folder_of(to)?;
        match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => self.folder(to).map(drop).map_err(|error| {
                let is_other = matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP));
                if is_other { occupied("something that is not a directory") } else { error }
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// The attributes of a directory, once nothing in it changes any more.
    fn finish_directory(&mut self, from: PathBuf, to: PathBuf) {
        self.finishing.push((from, to));
        if self.batch.is_empty() {
            self.put_batch();
        }
    }

    fn draft(&mut self) -> String {
        self.drafts += 1;
        format!("{DRAFT}{}.{}", std::process::id(), self.drafts)
    }

    fn write(&mut self, path: &Path, to: &Path, wanted: &Metadata) -> io::Result<()> {
        let source = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let (folder, _) = self.folder_of(to)?;
        let draft = self.draft();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &draft, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(file);
        let size = wanted.len();
        let made = copy_bytes(&source, &file, size, &self.interrupted)
            .and_then(|()| copy_attributes(&source, &file));
        let not_kept = made.inspect_err(|_| take_back(&folder, &draft))?;
        self.batch_bytes += size;
        self.batch.push(Written { file, folder, draft, to: to.to_owned(), size, not_kept });
        if self.batch.len() >= BATCH_FILES || self.batch_bytes >= BATCH_BYTES {
            self.put_batch();
        }
        Ok(())
    }

    /// Syncs the files that are written, puts them in their places, and completes their directories.
    fn put_batch(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        // All of them before the first rename: each further sync would have to commit the renames before it.
        let synced: Vec<io::Result<()>> =
            batch.iter().map(|written| written.file.sync_all()).collect();
        for (written, result) in batch.iter().zip(synced) {
            let put = match result {
                Ok(()) => put(&written.folder, &written.draft, &written.to),
                Err(error) => {
                    take_back(&written.folder, &written.draft);
                    Err(error)
                }
            };
            match put {
                Ok(()) => {
                    self.outcome.files += 1;
                    self.outcome.bytes += written.size;
                    self.count(written.not_kept);
                }
                Err(error) => self.failed(&written.to, &error),
            }
        }
        for (from, to) in std::mem::take(&mut self.finishing) {
            let source = File::open(self.snapshot.join(from));
            let copied =
                source.and_then(|source| copy_attributes(&source, &File::from(self.folder(&to)?)));
            match copied {
                Ok(not_kept) => {
                    self.outcome.directories += 1;
                    self.count(not_kept);
                }
                Err(error) => self.failed(&to, &error),
            }
        }
        if self.terminal && self.outcome.files >= BATCH_FILES as u64 {
            let done = &self.outcome;
            crate::output::put_aside(&format!("\r{} files, {} ", done.files, bytes(done.bytes)));
        }
    }

    fn count(&mut self, not_kept: NotKept) {
        self.outcome.owners_not_kept += u64::from(not_kept.owner);
        self.outcome.attributes_not_kept += not_kept.attributes;
    }

    /// A further name of a file that was restored already.
    fn link(&mut self, first: &Path, to: &Path) -> io::Result<()> {
        self.put_batch();
        let (first_folder, first_name) = self.folder_of(first)?;
        let (folder, _) = self.folder_of(to)?;
        let draft = self.draft();
        rustix::fs::linkat(&first_folder, first_name, &folder, &draft, AtFlags::empty())?;
        put(&folder, &draft, to)?;
        // A rename between two names of one file does nothing.
        take_back(&folder, &draft);
        self.outcome.files += 1;
        Ok(())
    }

    /// A symbolic link, pipe, socket or device.
    fn make_special(&mut self, path: &Path, to: &Path, wanted: &Metadata) -> io::Result<()> {
        let (folder, _) = self.folder_of(to)?;
        let draft = self.draft();
        if wanted.is_symlink() {
            rustix::fs::symlinkat(fs::read_link(path)?, &folder, &draft)?;
        } else {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(&folder, &draft, kind_of(wanted), mode, wanted.rdev())?;
        }
        let not_kept = complete_special(&folder, &draft, wanted)
            .inspect_err(|_| take_back(&folder, &draft))?;
        put(&folder, &draft, to)?;
        self.outcome.files += 1;
        self.count(not_kept);
        Ok(())
    }

    fn failed(&mut self, path: &Path, error: &io::Error) {
        if error.kind() == io::ErrorKind::Interrupted && self.has_to_end() {
            return;
        }
        self.is_full |= matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
        self.outcome.failed_total += 1;
        if self.outcome.failed.len() < FAILURES_MAX {
            let path = path.display().to_string();
            self.outcome.failed.push(Failure { path, reason: error.to_string() });
        }
    }
}

fn occupied(by: &str) -> io::Error {
    io::Error::other(format!("{by} has this name now: rename it first, or restore with --to"))
}

fn take_back(folder: &OwnedFd, draft: &str) {
    let _ = rustix::fs::unlinkat(folder, draft, AtFlags::empty());
}

/// Renames a draft to its name; takes it back if that fails.
fn put(folder: &OwnedFd, draft: &str, to: &Path) -> io::Result<()> {
    let name = to.file_name().ok_or(Errno::ISDIR)?;
    rustix::fs::renameat(folder, draft, folder, name).map_err(|error| {
        take_back(folder, draft);
        match error {
            Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST => occupied("a directory"),
            error => error.into(),
        }
    })
}

fn kind_of(wanted: &Metadata) -> FileType {
    let kind = wanted.file_type();
    if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    }
}

/// Owner, mode and times of what cannot be opened.
fn complete_special(folder: &OwnedFd, draft: &str, wanted: &Metadata) -> io::Result<NotKept> {
    // By a descriptor, so that it is the file that was made, whatever has its name meanwhile.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = File::from(rustix::fs::openat(folder, draft, flags, Mode::empty())?);
    let now = made.metadata()?;
    if now.file_type() != wanted.file_type() {
        return Err(io::Error::other("another program replaced it meanwhile"));
    }
    let mut is_owner_kept = true;
    if (now.uid(), now.gid()) != (wanted.uid(), wanted.gid()) {
        let (uid, gid) = (Uid::from_raw(wanted.uid()), Gid::from_raw(wanted.gid()));
        match rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
            Ok(()) => {}
            Err(Errno::PERM) => is_owner_kept = false,
            Err(error) => return Err(error.into()),
        }
    }
    if !wanted.is_symlink() {
        let path = format!("/proc/self/fd/{}", made.as_raw_fd());
        rustix::fs::chmodat(CWD, path, mode_of(wanted, is_owner_kept), AtFlags::empty())?;
    }
    rustix::fs::utimensat(folder, draft, &times_of(wanted), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(NotKept { owner: !is_owner_kept, attributes: 0 })
}

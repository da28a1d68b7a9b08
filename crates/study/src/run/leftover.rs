//! Directories that a run left behind because it was killed: found by a mark, named, and removed on request.
//!
//! Each directory of a run holds a [`MARK`], which says who made it, and which its runner keeps locked as long
//! as it lives (flock(2)): the kernel lets go of the lock however the runner ends. Nothing else is ever
//! taken for a leftover: not a directory without a mark, not one behind a symbolic link, not one whose runner
//! may be alive. A directory that was kept on purpose (`--keep`) has no mark.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_process::machine::{boot_id, host_name};
use forebay_process::stat;
use rustix::fs::FlockOperation;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the file in each directory of a run.
pub const MARK: &str = ".forebay-bench";

/// What the names of a run's directories begin with.
pub const PREFIX: &str = "forebay-bench-";

/// Most bytes of a mark that are read.
const MARK_BYTES_MAX: u64 = 64 << 10;

/// Who made a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The host.
    pub host: String,
    /// The boot of the host.
    pub boot: String,
    /// The process.
    pub pid: u32,
    /// When that process started, in clock ticks since the boot.
    pub pid_started: u64,
    /// When the run began, in RFC 3339, UTC.
    pub started: String,
}

/// Whether the process that made a directory is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    /// It is gone.
    Dead,
    /// It runs.
    Alive,
    /// It was on another host, which cannot be asked.
    Elsewhere,
}

/// A directory that a run made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// Who made it.
    pub mark: Mark,
    /// Whether its runner is still there.
    pub runner: Runner,
    /// Bytes that it takes on the storage.
    pub bytes: u64,
}

/// A mark whose runner is this process.
#[derive(Debug)]
pub struct Marked {
    path: PathBuf,
    _locked: File,
}

impl Marked {
    /// Marks a directory of this process, made for a run that began at `started`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn mark(directory: &Path, started: &str) -> Result<Marked> {
        let path = directory.join(MARK);
        let text = serde_json::to_vec(&Mark::of_this_process(started))
            .map_err(|error| Error::Record { path: path.clone(), reason: error.to_string() })?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::io("make", &path))?;
        // Where there are no locks, the process tells.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        io::Write::write_all(&mut &file, &text).map_err(Error::io("write", &path))?;
        Ok(Marked { path, _locked: file })
    }

    /// Where the mark is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the mark away: the directory stays on purpose.
    pub fn forget(self) {
        // With its mark it would be named as left behind, no more.
        let _ = fs::remove_file(&self.path);
    }
}

impl Mark {
    fn of_this_process(started: &str) -> Mark {
        let pid = std::process::id();
        Mark {
            host: host_name().unwrap_or_default(),
            boot: boot_id().unwrap_or_default(),
            pid,
            pid_started: start_of(pid).unwrap_or(0),
            started: started.to_owned(),
        }
    }

    /// Whether its process is there, by what the kernel of this host knows.
    fn runner(&self, locked: bool) -> Runner {
        if locked {
            return Runner::Alive;
        }
        if self.host != host_name().unwrap_or_default() {
            return Runner::Elsewhere;
        }
        let same_boot = self.boot == boot_id().unwrap_or_default();
        let there = same_boot && start_of(self.pid) == Some(self.pid_started);
        if there { Runner::Alive } else { Runner::Dead }
    }
}

/// When a process was started, in clock ticks since the boot; none if it is not there.
fn start_of(pid: u32) -> Option<u64> {
    stat::start_of(Pid::from_raw(i32::try_from(pid).ok()?)?)
}

impl Leftover {
    /// Those directly in `directory`, by their names.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be listed.
    pub fn find(directory: &Path) -> Result<Vec<Leftover>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).map_err(Error::io("list", directory))? {
            let entry = entry.map_err(Error::io("list", directory))?;
            let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
            // Of the entry itself: a symbolic link is not followed.
            if named && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(Leftover::at(entry.path()));
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// The directory at `path` if it has a mark of its owner's.
    fn at(path: PathBuf) -> Option<Leftover> {
        let mark = path.join(MARK);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(&mark).ok()?;
        let of_file = file.metadata().ok().filter(fs::Metadata::is_file)?;
        if of_file.uid() != fs::symlink_metadata(&path).ok()?.uid() {
            return None;
        }
        let limited = io::Read::take(&file, MARK_BYTES_MAX);
        let mark: Mark = serde_json::from_reader(limited).ok()?;
        let asked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        let locked = asked == Err(rustix::io::Errno::WOULDBLOCK);
        let runner = mark.runner(locked);
        let bytes = size(&path);
        Some(Leftover { path, mark, runner, bytes })
    }

    /// Removes it, if its runner is gone; says whether it did.
    ///
    /// # Errors
    /// [`Error::Io`] if something in it cannot be removed.
    pub fn remove(&self) -> Result<bool> {
        // It may have gone, or come to be another's, since it was found.
        let now = Leftover::at(self.path.clone());
        if now.is_none_or(|now| now.mark != self.mark || now.runner != Runner::Dead) {
            return Ok(false);
        }
        fs::remove_dir_all(&self.path).map_err(Error::io("remove", &self.path))?;
        Ok(true)
    }
}

/// Bytes that everything below takes, as far as it can be looked at.
fn size(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(root: &Path, name: &str) -> PathBuf {
        let path = root.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("data"), vec![1; 10_000]).unwrap();
        path
    }

    /// A directory whose runner is `mark`'s.
    fn left(root: &Path, name: &str, mark: &Mark) -> PathBuf {
        let path = made(root, name);
        fs::write(path.join(MARK), serde_json::to_vec(mark).unwrap()).unwrap();
        path
    }

    #[test]
    fn only_marked_directories_whose_runner_is_dead_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let mark = Mark::of_this_process("2026-01-01T00:00:00Z");
        let dead = Mark { pid_started: mark.pid_started + 1, ..mark.clone() };
        let elsewhere = Mark { host: format!("not-{}", mark.host), ..dead.clone() };
        let kept = [
            made(root.path(), "forebay-bench-data-1-0"),
            made(root.path(), "mine"),
            left(root.path(), "forebay-bench-work-1-0", &mark),
            left(root.path(), "forebay-bench-work-2-0", &elsewhere),
            left(root.path(), "other-3-0", &dead),
        ];
        let gone = [
            left(root.path(), "forebay-bench-util-4-0", &dead),
            left(root.path(), "forebay-bench-util-5-0", &Mark { boot: "b".into(), ..mark.clone() }),
        ];
        let outside = tempfile::tempdir().unwrap();
        let target = left(outside.path(), "forebay-bench-data-9-0", &dead);
        std::os::unix::fs::symlink(&target, root.path().join("forebay-bench-data-9-0")).unwrap();
        let found = Leftover::find(root.path()).unwrap();
        let runners: Vec<Runner> = found.iter().map(|one| one.runner).collect();
        assert_eq!(
            runners,
            [Runner::Dead, Runner::Dead, Runner::Alive, Runner::Elsewhere],
            "{found:?}"
        );
        assert!(found.iter().all(|one| one.bytes >= 10_000));
        let removed = found.iter().filter(|one| one.remove().unwrap()).count();
        assert_eq!(removed, 2);
        assert!(kept.iter().chain([&target]).all(|path| path.join("data").exists()));
        assert!(!gone.iter().any(|path| path.exists()));
    }

    #[test]
    fn a_run_that_holds_its_mark_is_alive_whatever_the_mark_says() {
        let root = tempfile::tempdir().unwrap();
        let path = made(root.path(), "forebay-bench-data-1-0");
        let marked = Marked::mark(&path, "2026-01-01T00:00:00Z").unwrap();
        let dead = Mark { pid_started: 1, ..Mark::of_this_process("2026-01-01T00:00:00Z") };
        fs::write(marked.path(), serde_json::to_vec(&dead).unwrap()).unwrap();
        assert_eq!(Leftover::find(root.path()).unwrap()[0].runner, Runner::Alive);
        drop(marked);
        assert_eq!(Leftover::find(root.path()).unwrap()[0].runner, Runner::Dead);
    }
}

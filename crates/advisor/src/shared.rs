//! Whether a storage that several hosts mount is fit for shared analytics data.
//!
//! Two directories lead to the same storage: two mounts of it on one host, or (for what one mount can show) twice the same.
//! Each test does on one side what a program does, and looks at the other. It needs no other software. How it behaves
//! after a power cut cannot be seen from here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use forebay_base::Clock;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::finding::Severity;

/// What one test showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its name, such as `names/new`.
    pub test: &'static str,
    /// How bad it is; `None` if it is as on a local file system.
    pub severity: Option<Severity>,
    /// What was seen, in a sentence.
    pub text: String,
}

/// Both sides of the examined storage.
pub struct Sides<'a> {
    here: PathBuf,
    there: PathBuf,
    patience: Duration,
    clock: &'a dyn Clock,
}

/// Times that a test is repeated, so that a race shows.
const ROUNDS: u32 = 20;
/// How long one looks away between two looks.
const NAP: Duration = Duration::from_millis(2);

impl<'a> Sides<'a> {
    /// Makes a folder for the tests through one directory, and finds it through the other, waiting `patience` at the most.
    ///
    /// # Errors
    /// If the directories do not lead to the same storage, or cannot be written to.
    pub fn open(
        one: &Path,
        other: &Path,
        patience: Duration,
        clock: &'a dyn Clock,
    ) -> io::Result<Sides<'a>> {
        let name = format!(".forebay-doctor-{}", std::process::id());
        let sides = Sides { here: one.join(&name), there: other.join(&name), patience, clock };
        fs::create_dir(&sides.here)?;
        if sides.wait_until(|| sides.there.is_dir()).is_none() {
            let apart =
                format!("{} does not show what was made in {}", other.display(), one.display());
            return Err(io::Error::other(apart));
        }
        Ok(sides)
    }

    /// Runs all tests.
    ///
    /// # Errors
    /// If the storage fails in a way that no test expects.
    pub fn examine(&self) -> io::Result<Vec<Shown>> {
        Ok(vec![
            self.new_names()?,
            self.removed_names()?,
            self.sizes()?,
            self.closed_bytes()?,
            self.open_bytes()?,
            self.renames()?,
            self.exclusive_creates()?,
            self.appends()?,
            self.byte_locks()?,
            self.file_locks()?,
            self.holes()?,
            self.syncs()?,
        ])
    }

    /// How long it took until something was so, if it was within the patience.
    fn wait_until(&self, so: impl Fn() -> bool) -> Option<Duration> {
        let start = self.clock.instant();
        loop {
            if so() {
                return Some(self.clock.instant() - start);
            }
            if self.clock.instant() - start > self.patience {
                return None;
            }
            thread::sleep(NAP);
        }
    }

    /// The slowest of several rounds of `make`, then waiting for `seen`.
    fn slowest(
        &self,
        make: impl Fn(u32) -> io::Result<()>,
        seen: impl Fn(u32) -> bool,
    ) -> io::Result<Option<Duration>> {
        let mut slowest = Duration::ZERO;
        for round in 0..ROUNDS / 4 {
            make(round)?;
            match self.wait_until(|| seen(round)) {
                Some(took) => slowest = slowest.max(took),
                None => return Ok(None),
            }
        }
        Ok(Some(slowest))
    }

    /// What a delay means: at once, late, or not within the patience.
    fn delay(&self, test: &'static str, what: &str, delay: Option<Duration>) -> Shown {
        // A look, a nap and the next look: what is there at the first looks is there at once.
        let late = Duration::from_millis(50);
        match delay {
            Some(took) if took <= late => {
                Shown { test, severity: None, text: format!("{what} at once") }
            }
            Some(took) => Shown {
                test,
                severity: Some(Severity::Warning),
                text: format!("{what} up to {:.1} s late", took.as_secs_f64()),
            },
            None => Shown {
                test,
                severity: Some(Severity::Problem),
                text: format!("{what} later than {} s, or never", self.patience.as_secs()),
            },
        }
    }

    fn new_names(&self) -> io::Result<Shown> {
        let name = |round: u32| format!("new-{round}");
        let delay = self.slowest(
            |round| {
                // Whoever asked before may remember that there was nothing.
                let _ = fs::metadata(self.there.join(name(round)));
                fs::write(self.here.join(name(round)), "x")
            },
            |round| self.there.join(name(round)).exists(),
        )?;
        Ok(self.delay("names/new", "the other side sees a new file", delay))
    }

    fn removed_names(&self) -> io::Result<Shown> {
        let name = |round: u32| format!("removed-{round}");
        let delay = self.slowest(
            |round| {
                fs::write(self.here.join(name(round)), "x")?;
                self.wait_until(|| self.there.join(name(round)).exists());
                fs::remove_file(self.here.join(name(round)))
            },
            |round| !self.there.join(name(round)).exists(),
        )?;
        Ok(self.delay("names/removed", "the other side sees that a file was removed", delay))
    }

    fn sizes(&self) -> io::Result<Shown> {
        let (here, there) = (self.here.join("size"), self.there.join("size"));
        fs::write(&here, "")?;
        let delay = self.slowest(
            |_| {
                let _ = fs::metadata(&there);
                OpenOptions::new().append(true).open(&here)?.write_all(b"0123456789")
            },
            |round| {
                fs::metadata(&there).is_ok_and(|found| found.len() == u64::from(round + 1) * 10)
            },
        )?;
        Ok(self.delay("attributes/size", "stat(2) on the other side shows a new size", delay))
    }

    fn closed_bytes(&self) -> io::Result<Shown> {
        let mut old = 0;
        for round in 0..ROUNDS {
            let text = format!("{round:08}");
            fs::write(self.here.join("closed"), &text)?;
            let mut found = String::new();
            let read = File::open(self.there.join("closed"))
                .and_then(|mut file| file.read_to_string(&mut found));
            old += u32::from(read.is_err() || found != text);
        }
        Ok(counted(
            "bytes/closed",
            old,
            ROUNDS,
            "an open after a close on the other side read old bytes",
            Severity::Problem,
        ))
    }

    fn open_bytes(&self) -> io::Result<Shown> {
        fs::write(self.here.join("open"), "--------")?;
        self.wait_until(|| self.there.join("open").exists());
        let (writer, reader) = (
            OpenOptions::new().write(true).open(self.here.join("open"))?,
            File::open(self.there.join("open"))?,
        );
        let mut old = 0;
        for round in 0..ROUNDS {
            let text = format!("{round:08}");
            writer.write_all_at(text.as_bytes(), 0)?;
            writer.sync_all()?;
            let mut found = [0; 8];
            reader.read_exact_at(&mut found, 0)?;
            old += u32::from(found != text.as_bytes());
        }
        Ok(counted(
            "bytes/open",
            old,
            ROUNDS,
            "an open file showed old bytes after fsync on the other side",
            Severity::Warning,
        ))
    }

    /// One side replaces a file by rename again and again; the other must always find a whole one.
    fn renames(&self) -> io::Result<Shown> {
        const WHOLE: usize = 4096;
        let target = self.here.join("target");
        fs::write(&target, vec![b'0'; WHOLE])?;
        self.wait_until(|| self.there.join("target").exists());
        let (missing, looks) = thread::scope(|scope| {
            let writer = scope.spawn(|| -> io::Result<()> {
                for round in 0..ROUNDS * 5 {
                    let fresh = self.here.join(format!("fresh-{round}"));
                    fs::write(&fresh, vec![b'1'; WHOLE])?;
                    fs::rename(fresh, &target)?;
                }
                Ok(())
            });
            let (mut missing, mut looks) = (0, 0);
            while !writer.is_finished() {
                looks += 1;
                let whole =
                    fs::read(self.there.join("target")).is_ok_and(|bytes| bytes.len() == WHOLE);
                missing += u32::from(!whole);
            }
            writer.join().map_err(|_| io::Error::other("the writer failed"))??;
            Ok::<_, io::Error>((missing, looks))
        })?;
        Ok(counted(
            "names/rename",
            missing,
            looks,
            "a file that is replaced by rename was missing or incomplete",
            Severity::Problem,
        ))
    }

    /// Both sides create the same name exclusively: one of them must get it.
    fn exclusive_creates(&self) -> io::Result<Shown> {
        let create = |side: &Path, round: u32| {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(side.join(format!("exclusive-{round}")))
                .is_ok()
        };
        let mut wrong = 0;
        for round in 0..ROUNDS {
            let winners = thread::scope(|scope| {
                let other = scope.spawn(|| create(&self.there, round));
                u32::from(create(&self.here, round)) + u32::from(other.join().unwrap_or(false))
            });
            wrong += u32::from(winners != 1);
        }
        Ok(counted(
            "names/exclusive",
            wrong,
            ROUNDS,
            "O_EXCL let both sides or neither create a file",
            Severity::Problem,
        ))
    }

    /// Both sides append records: none may be lost.
    fn appends(&self) -> io::Result<Shown> {
        const RECORD: &[u8] = b"0123456789abcde\n";
        fs::write(self.here.join("appended"), "")?;
        self.wait_until(|| self.there.join("appended").exists());
        let append = |side: &Path| -> io::Result<()> {
            let mut file = OpenOptions::new().append(true).open(side.join("appended"))?;
            (0..ROUNDS * 5).try_for_each(|_| file.write_all(RECORD))
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| append(&self.there));
            append(&self.here)?;
            other.join().map_err(|_| io::Error::other("the other writer failed"))?
        })?;
        let found = fs::read(self.here.join("appended"))?;
        let whole = found.chunks(RECORD.len()).filter(|record| *record == RECORD).count();
        let all = ROUNDS * 10;
        let lost = all.saturating_sub(u32::try_from(whole).unwrap_or(0));
        Ok(counted(
            "bytes/append",
            lost,
            all,
            "a record appended by both sides was lost or torn",
            Severity::Warning,
        ))
    }

    fn byte_locks(&self) -> io::Result<Shown> {
        self.locks("locks/bytes", "fcntl(2) locks", lock_bytes)
    }

    fn file_locks(&self) -> io::Result<Shown> {
        self.locks("locks/files", "flock(2) locks", |file| {
            flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)
        })
    }

    /// What one side has locked, the other must not get.
    fn locks(
        &self,
        test: &'static str,
        what: &str,
        lock: impl Fn(&File) -> io::Result<()>,
    ) -> io::Result<Shown> {
        fs::write(self.here.join("locked"), "x")?;
        self.wait_until(|| self.there.join("locked").exists());
        let open =
            |side: &Path| OpenOptions::new().read(true).write(true).open(side.join("locked"));
        let (here, there) = (open(&self.here)?, open(&self.there)?);
        let shown = |severity, text| Shown { test, severity, text };
        if let Err(error) = lock(&here) {
            return Ok(shown(Some(Severity::Problem), format!("{what} do not work: {error}")));
        }
        Ok(match lock(&there) {
            Ok(()) => shown(
                Some(Severity::Problem),
                format!("{what} of one side do not hold on the other"),
            ),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                shown(None, format!("{what} hold on the other side"))
            }
            Err(error) => shown(
                Some(Severity::Problem),
                format!("{what} do not work on the other side: {error}"),
            ),
        })
    }

    fn holes(&self) -> io::Result<Shown> {
        const FAR: u64 = 1 << 30;
        let file = File::create(self.here.join("sparse"))?;
        file.write_all_at(b"x", FAR)?;
        file.sync_all()?;
        let used = file.metadata()?.blocks() * 512;
        Ok(Shown {
            test: "space/holes",
            severity: (used > FAR / 2).then_some(Severity::Advice),
            text: format!("a file with a hole of 1 GiB takes {} KiB", used >> 10),
        })
    }

    fn syncs(&self) -> io::Result<Shown> {
        let file = File::create(self.here.join("synced"))?;
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            file.write_all_at(&[b'x'; 4096], u64::from(round) * 4096)?;
            let start = self.clock.instant();
            file.sync_all()?;
            times.push(self.clock.instant() - start);
        }
        times.sort();
        let median = times[times.len() / 2];
        let quick = median < Duration::from_micros(20);
        let mut text = format!("fsync takes {} us in the median", median.as_micros());
        if quick {
            text += ": no device is that fast, so fsync may not reach one";
        }
        Ok(Shown { test: "bytes/sync", severity: quick.then_some(Severity::Warning), text })
    }
}

impl Drop for Sides<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.here);
    }
}

/// What so many failures of so many tries mean.
fn counted(test: &'static str, failures: u32, tries: u32, what: &str, severity: Severity) -> Shown {
    let text = format!("{what}: {failures} of {tries} times");
    Shown { test, severity: (failures > 0).then_some(severity), text }
}

/// Locks the first byte for the open file description (F_OFD_SETLK): two of one process exclude each other.
fn lock_bytes(file: &File) -> io::Result<()> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel only reads and writes the lock, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The verdict on all that was shown, in plain words.
#[must_use]
pub fn verdict(shown: &[Shown]) -> &'static str {
    match shown.iter().filter_map(|shown| shown.severity).max() {
        Some(Severity::Problem) => {
            "unfit for data that several hosts write: programs will lose or misread data. Use it for files that one host \
             writes and others read later"
        }
        Some(Severity::Warning) => {
            "fit for files that one host writes and others read after a while; unfit for files that several hosts \
             change, and for databases"
        }
        Some(Severity::Advice) | None => {
            "fit for shared analytics data: each side sees at once what the other does"
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::time::SystemClock;

    use super::*;

    #[test]
    fn a_local_directory_is_fit_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let clock = SystemClock;
        let sides =
            Sides::open(folder.path(), folder.path(), Duration::from_secs(5), &clock).unwrap();
        let shown = sides.examine().unwrap();
        // A memory file system syncs in no time.
        let bad: Vec<_> = shown
            .iter()
            .filter(|shown| shown.severity.is_some() && shown.test != "bytes/sync")
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(shown.len(), 12);
        drop(sides);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_different_storage_are_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clock = SystemClock;
        let opened = Sides::open(one.path(), other.path(), Duration::from_millis(20), &clock);
        assert!(opened.err().unwrap().to_string().contains("does not show what was made in"));
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0, "what was made is removed");
    }

    #[test]
    fn the_worst_decides() {
        let shown = |severity| Shown { test: "a/b", severity, text: String::new() };
        assert!(verdict(&[shown(None), shown(Some(Severity::Problem))]).starts_with("unfit"));
        assert!(verdict(&[shown(None)]).starts_with("fit for shared"));
    }
}

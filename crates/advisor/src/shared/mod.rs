//! Whether a storage that several hosts mount is fit for shared analytics data.
//!
//! Two directories lead to the same storage: on two hosts, two mounts of it on one host, or (for what one mount can show) twice the same.
//! Each test does on one side what a program does, and looks at the other. It needs no other software. How it behaves
//! after a power cut cannot be seen from here.

mod side;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use forebay_base::Clock;
use serde::Serialize;

pub use self::side::{Answer, Ask, Far, Lock, Near, OtherSide, serve};
use crate::finding::Severity;

/// What the name of the folder of the tests begins with.
const FOLDER: &str = ".forebay-doctor-";

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
    there: &'a dyn OtherSide,
    patience: Duration,
    clock: &'a dyn Clock,
    interrupted: &'a AtomicBool,
    is_closed: bool,
}

/// Times that a test is repeated, so that a race shows.
const ROUNDS: u32 = 20;
/// How long one looks away between two looks.
const NAP: Duration = Duration::from_millis(2);
/// Bytes of a file that is replaced again and again.
const WHOLE: usize = 4096;
/// Looks at a file that is replaced again and again, at the least.
const LOOKS_MIN: u32 = 100;
/// How long the folder of the tests is tried to be removed: the other side may still be closing its files.
const REMOVAL: Duration = Duration::from_secs(2);

impl<'a> Sides<'a> {
    /// Makes a folder for the tests through one directory, and finds it on the other side, waiting `patience` at the most. The tests end
    /// with an error soon after `interrupted` is set.
    ///
    /// # Errors
    /// If the directories do not lead to the same storage, or cannot be written to.
    pub fn open(
        one: &Path,
        there: &'a dyn OtherSide,
        patience: Duration,
        clock: &'a dyn Clock,
        interrupted: &'a AtomicBool,
    ) -> io::Result<Sides<'a>> {
        let name = folder_name();
        let here = one.join(&name);
        fs::create_dir(&here)?;
        let sides = Sides { here, there, patience, clock, interrupted, is_closed: false };
        match sides.enter(one, &name) {
            Ok(()) => Ok(sides),
            Err(error) => match sides.close() {
                Ok(()) => Err(error),
                Err(stays) => Err(io::Error::other(format!("{error}; {stays}"))),
            },
        }
    }

    fn enter(&self, one: &Path, name: &str) -> io::Result<()> {
        let enter = Ask::Enter(name.to_owned());
        // What does not answer at all, or is not a directory, says why.
        if let Answer::Failed(why) = self.ask(&enter)? {
            return Err(io::Error::other(format!("{}: {why}", self.there.name())));
        }
        if self.wait_until(|| self.says(&enter))?.is_none() {
            let (there, here) = (self.there.name(), one.display());
            return Err(io::Error::other(format!("{there} does not show what was made in {here}")));
        }
        Ok(())
    }

    /// Has the other side close its files, and removes the folder of the tests.
    ///
    /// # Errors
    /// If the folder stays.
    pub fn close(mut self) -> io::Result<()> {
        self.clear_away()
    }

    fn clear_away(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        // A side that is gone has closed all.
        let _ = self.there.ask(&Ask::Leave);
        let start = self.clock.instant();
        loop {
            match fs::remove_dir_all(&self.here) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if self.clock.instant() - start > REMOVAL => {
                    let folder = self.here.display();
                    return Err(io::Error::other(format!("{folder} is left, remove it: {error}")));
                }
                Err(_) => thread::sleep(NAP * 50),
            }
        }
    }

    /// Asks the other side, unless the tests are to end.
    fn ask(&self, ask: &Ask) -> io::Result<Answer> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        self.there.ask(ask)
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
    fn wait_until(&self, so: impl Fn() -> io::Result<bool>) -> io::Result<Option<Duration>> {
        let start = self.clock.instant();
        loop {
            if so()? {
                return Ok(Some(self.clock.instant() - start));
            }
            if self.clock.instant() - start > self.patience {
                return Ok(None);
            }
            thread::sleep(NAP);
        }
    }

    /// Whether the other side says yes.
    fn says(&self, ask: &Ask) -> io::Result<bool> {
        Ok(self.ask(ask)? == Answer::Yes)
    }

    /// The size of a file on the other side; none if it is not there.
    fn size_there(&self, name: &str) -> io::Result<Option<u64>> {
        Ok(match self.ask(&Ask::Size(name.to_owned()))? {
            Answer::Size(size) => Some(size),
            _ => None,
        })
    }

    fn is_there(&self, name: &str) -> io::Result<bool> {
        Ok(self.size_there(name)?.is_some())
    }

    /// The bytes that the other side reads; none if it cannot.
    fn bytes_there(&self, ask: &Ask) -> io::Result<Option<Vec<u8>>> {
        Ok(match self.ask(ask)? {
            Answer::Bytes(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// The slowest of several rounds of `make`, then waiting for `seen`.
    fn slowest(
        &self,
        make: impl Fn(u32) -> io::Result<()>,
        seen: impl Fn(u32) -> io::Result<bool>,
    ) -> io::Result<Option<Duration>> {
        let mut slowest = Duration::ZERO;
        for round in 0..ROUNDS / 4 {
            make(round)?;
            match self.wait_until(|| seen(round))? {
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
                self.is_there(&name(round))?;
                fs::write(self.here.join(name(round)), "x")
            },
            |round| self.is_there(&name(round)),
        )?;
        Ok(self.delay("names/new", "the other side sees a new file", delay))
    }

    fn removed_names(&self) -> io::Result<Shown> {
        let name = |round: u32| format!("removed-{round}");
        let delay = self.slowest(
            |round| {
                fs::write(self.here.join(name(round)), "x")?;
                self.wait_until(|| self.is_there(&name(round)))?;
                fs::remove_file(self.here.join(name(round)))
            },
            |round| Ok(!self.is_there(&name(round))?),
        )?;
        Ok(self.delay("names/removed", "the other side sees that a file was removed", delay))
    }

    fn sizes(&self) -> io::Result<Shown> {
        let here = self.here.join("size");
        fs::write(&here, "")?;
        let delay = self.slowest(
            |_| {
                self.is_there("size")?;
                OpenOptions::new().append(true).open(&here)?.write_all(b"0123456789")
            },
            |round| Ok(self.size_there("size")? == Some(u64::from(round + 1) * 10)),
        )?;
        Ok(self.delay("attributes/size", "stat(2) on the other side shows a new size", delay))
    }

    fn closed_bytes(&self) -> io::Result<Shown> {
        let mut old = 0;
        for round in 0..ROUNDS {
            let text = format!("{round:08}");
            fs::write(self.here.join("closed"), &text)?;
            let found = self.bytes_there(&Ask::Read("closed".to_owned()))?;
            old += u32::from(found.is_none_or(|found| found != text.as_bytes()));
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
        self.wait_until(|| self.is_there("open"))?;
        let writer = OpenOptions::new().write(true).open(self.here.join("open"))?;
        done(self.there, &Ask::Hold("open".to_owned()))?;
        let mut old = 0;
        for round in 0..ROUNDS {
            let text = format!("{round:08}");
            writer.write_all_at(text.as_bytes(), 0)?;
            writer.sync_all()?;
            let found = self.bytes_there(&Ask::ReadHeld(text.len()))?;
            old += u32::from(found.is_none_or(|found| found != text.as_bytes()));
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
        let target = self.here.join("target");
        fs::write(&target, vec![b'0'; WHOLE])?;
        self.wait_until(|| self.is_there("target"))?;
        let (is_enough, written) = (AtomicBool::new(false), AtomicU32::new(0));
        let (missing, looks) = thread::scope(|scope| {
            let writer = scope.spawn(|| -> io::Result<()> {
                while !is_enough.load(Ordering::Relaxed) {
                    let round = written.fetch_add(1, Ordering::Relaxed);
                    let fresh = self.here.join(format!("fresh-{round}"));
                    fs::write(&fresh, vec![b'1'; WHOLE])?;
                    fs::rename(fresh, &target)?;
                }
                Ok(())
            });
            let looked = self.look_at_target(|looks| {
                let is_done = looks >= LOOKS_MIN && written.load(Ordering::Relaxed) >= ROUNDS * 5;
                // The writer ends by itself only when it fails.
                is_done || writer.is_finished()
            });
            is_enough.store(true, Ordering::Relaxed);
            writer.join().map_err(|_| io::Error::other("the writer failed"))??;
            looked
        })?;
        Ok(counted(
            "names/rename",
            missing,
            looks,
            "a file that is replaced by rename was missing or incomplete",
            Severity::Problem,
        ))
    }

    /// How often the file was missing or incomplete on the other side, and how often one looked, until that is enough.
    fn look_at_target(&self, is_enough: impl Fn(u32) -> bool) -> io::Result<(u32, u32)> {
        let (mut missing, mut looks) = (0, 0);
        while !is_enough(looks) {
            looks += 1;
            let found = self.bytes_there(&Ask::Read("target".to_owned()))?;
            missing += u32::from(found.is_none_or(|bytes| bytes.len() != WHOLE));
        }
        Ok((missing, looks))
    }

    /// Both sides create the same name exclusively: one of them must get it.
    fn exclusive_creates(&self) -> io::Result<Shown> {
        let name = |round: u32| format!("exclusive-{round}");
        let create = |round: u32| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).open(self.here.join(name(round))).is_ok()
        };
        let (mut wrong, there) = (0, self.there);
        for round in 0..ROUNDS {
            let winners = thread::scope(|scope| {
                let ask = Ask::Create(name(round));
                let other = scope.spawn(move || there.ask(&ask));
                let here = create(round);
                let other =
                    other.join().map_err(|_| io::Error::other("the other side failed"))??;
                Ok::<_, io::Error>(u32::from(here) + u32::from(other == Answer::Yes))
            })?;
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
        const NAME: &str = "appended";
        const RECORD: &str = "0123456789abcde\n";
        const TIMES: u32 = ROUNDS * 5;
        fs::write(self.here.join(NAME), "")?;
        self.wait_until(|| self.is_there(NAME))?;
        let there = self.there;
        thread::scope(|scope| {
            let ask = Ask::Append(NAME.to_owned(), RECORD.to_owned(), TIMES);
            let other = scope.spawn(move || done(there, &ask));
            let mut file = OpenOptions::new().append(true).open(self.here.join(NAME))?;
            (0..TIMES).try_for_each(|_| file.write_all(RECORD.as_bytes()))?;
            other.join().map_err(|_| io::Error::other("the other writer failed"))?
        })?;
        let found = fs::read(self.here.join(NAME))?;
        let is_whole = |record: &&[u8]| *record == RECORD.as_bytes();
        let whole = found.chunks(RECORD.len()).filter(is_whole).count();
        let all = 2 * TIMES;
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
        self.locks("locks/bytes", "fcntl(2) locks", Lock::Bytes)
    }

    fn file_locks(&self) -> io::Result<Shown> {
        self.locks("locks/files", "flock(2) locks", Lock::File)
    }

    /// What one side has locked, the other must not get.
    fn locks(&self, test: &'static str, what: &str, kind: Lock) -> io::Result<Shown> {
        let name = format!("locked-{what}").replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        fs::write(self.here.join(&name), "x")?;
        self.wait_until(|| self.is_there(&name))?;
        let here = OpenOptions::new().read(true).write(true).open(self.here.join(&name))?;
        let shown = |severity, text| Shown { test, severity, text };
        if let Err(error) = side::lock(&here, kind) {
            return Ok(shown(Some(Severity::Problem), format!("{what} do not work: {error}")));
        }
        Ok(match self.ask(&Ask::Lock(name, kind))? {
            Answer::No => shown(None, format!("{what} hold on the other side")),
            Answer::Failed(error) => shown(
                Some(Severity::Problem),
                format!("{what} do not work on the other side: {error}"),
            ),
            Answer::Yes | Answer::Size(_) | Answer::Bytes(_) => shown(
                Some(Severity::Problem),
                format!("{what} of one side do not hold on the other"),
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
        // Whoever wants to know whether it stays has closed it.
        let _ = self.clear_away();
    }
}

/// The name of the folder of the tests: no other process has the same, on whichever host.
fn folder_name() -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(*c, '-' | '_' | '.');
    let system = rustix::system::uname();
    let host: String =
        system.nodename().to_string_lossy().chars().filter(is_plain).take(64).collect();
    format!("{FOLDER}{host}-{}", std::process::id())
}

/// Has the other side do something that it must be able to do.
fn done(there: &dyn OtherSide, ask: &Ask) -> io::Result<()> {
    match there.ask(ask)? {
        Answer::Yes => Ok(()),
        Answer::Failed(why) => Err(io::Error::other(format!("{}: {why}", there.name()))),
        Answer::No | Answer::Size(_) | Answer::Bytes(_) => {
            Err(io::Error::other(format!("{}: {ask:?} was not done", there.name())))
        }
    }
}

/// What so many failures of so many tries mean.
fn counted(test: &'static str, failures: u32, tries: u32, what: &str, severity: Severity) -> Shown {
    let text = format!("{what}: {failures} of {tries} times");
    Shown { test, severity: (failures > 0).then_some(severity), text }
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
        let there = Near::new(folder.path());
        let none = AtomicBool::new(false);
        let patience = Duration::from_secs(5);
        let sides = Sides::open(folder.path(), &there, patience, &clock, &none).unwrap();
        let shown = sides.examine().unwrap();
        // A memory file system syncs in no time.
        let bad: Vec<_> = shown
            .iter()
            .filter(|shown| shown.severity.is_some() && shown.test != "bytes/sync")
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(shown.len(), 12);
        sides.close().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_different_storage_are_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clock = SystemClock;
        let there = Near::new(other.path());
        let none = AtomicBool::new(false);
        let opened = Sides::open(one.path(), &there, Duration::from_millis(20), &clock, &none);
        assert!(opened.err().unwrap().to_string().contains("does not show what was made in"));
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0, "what was made is removed");
        // What cannot become right is not waited for.
        let nowhere = other.path().join("nowhere");
        let there = Near::new(&nowhere);
        let opened = Sides::open(one.path(), &there, Duration::from_secs(600), &clock, &none);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("nowhere is not a directory"), "{error}");
    }

    #[test]
    fn an_interruption_and_another_side_that_is_gone_end_the_tests_and_leave_nothing() {
        /// Answers until the first test.
        struct Gone(Near);
        impl OtherSide for Gone {
            fn ask(&self, ask: &Ask) -> io::Result<Answer> {
                match ask {
                    Ask::Enter(_) => self.0.ask(ask),
                    _ => Err(io::Error::other("gone")),
                }
            }
            fn name(&self) -> String {
                self.0.name()
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (clock, interrupted) = (SystemClock, AtomicBool::new(false));
        let (near, gone) = (Near::new(folder.path()), Gone(Near::new(folder.path())));
        let patience = Duration::from_secs(600);
        let sides = Sides::open(folder.path(), &gone, patience, &clock, &interrupted).unwrap();
        assert_eq!(sides.examine().unwrap_err().to_string(), "gone");
        sides.close().unwrap();
        let sides = Sides::open(folder.path(), &near, patience, &clock, &interrupted).unwrap();
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(sides.examine().unwrap_err().kind(), io::ErrorKind::Interrupted);
        drop(sides);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_worst_decides() {
        let shown = |severity| Shown { test: "a/b", severity, text: String::new() };
        assert!(verdict(&[shown(None), shown(Some(Severity::Problem))]).starts_with("unfit"));
        assert!(verdict(&[shown(None)]).starts_with("fit for shared"));
    }
}

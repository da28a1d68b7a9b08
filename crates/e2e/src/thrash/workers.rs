//! The programs: each makes random calls on the shared objects through the mount of its node, and records them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::io::Errno;

use super::NODES;
use super::faults::Loss;
use super::journal::{Journal, RECORD, Span, record};
use crate::history::{Access, Entry, Move, NAMES, Outcome};

/// Shared directories.
pub const DIRECTORIES: usize = 2;
/// Shared files of registers, and one each that everybody appends to.
pub const FILES: usize = NODES;
/// Where the registers of a file are: two in one page, one in the next, one far away.
pub const PLACES: [u64; 4] = [0, 8, 4096, 100_000];
/// Size of the files of registers.
const FILE_BYTES: usize = 128 << 10;
/// Pause between two calls of a program, and after a failure.
const PAUSE: Duration = Duration::from_millis(3);
const PAUSE_FAILED: Duration = Duration::from_millis(200);
/// How long a request of a daemon that was killed may still be carried out by another node.
const LATE: Duration = Duration::from_secs(60);

/// Name of a file of registers.
#[must_use]
pub fn file_name(file: usize) -> String {
    format!("registers-{file}")
}

/// Name of a shared name in a shared directory.
fn shared_name(directory: usize, name: usize) -> String {
    format!("dir-{directory}/name-{name}")
}

/// What all programs know.
pub struct Shared {
    /// The directory of the run as each node sees it.
    roots: Vec<PathBuf>,
    /// Whether each node has its mount; held while a call is made there.
    mounts: Vec<RwLock<bool>>,
    start: Instant,
    /// Ends the programs.
    pub stop: AtomicBool,
    tokens: AtomicU32,
    /// The node that owns the files; unknown where that may change.
    owner: Option<usize>,
    /// When faults began and everything was well again, and what may have been lost.
    faults: Mutex<Vec<(u64, u64, Loss)>>,
}

impl Shared {
    /// Makes the objects. They belong to `owner` all the time, if that is known.
    pub fn make(roots: &[PathBuf], owner: impl FnOnce() -> Option<usize>) -> Shared {
        fs::create_dir(&roots[0]).expect("makes the directory of the run");
        for directory in 0..DIRECTORIES {
            fs::create_dir(roots[0].join(format!("dir-{directory}"))).expect("makes a directory");
        }
        for (file, root) in roots.iter().enumerate().take(FILES) {
            // Each on another node.
            let made = File::create_new(root.join(file_name(file)));
            let mut made = made.expect("makes a file of registers");
            made.write_all(&vec![0; FILE_BYTES]).expect("fills it");
            made.sync_all().expect("syncs it");
        }
        Shared {
            roots: roots.to_vec(),
            mounts: roots.iter().map(|_| RwLock::new(true)).collect(),
            start: Instant::now(),
            stop: AtomicBool::new(false),
            tokens: AtomicU32::new(1),
            owner: owner(),
            faults: Mutex::default(),
        }
    }

    /// The directory of the run on a node.
    pub fn root(&self, node: usize) -> &Path {
        &self.roots[node]
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("tests are shorter than centuries")
    }

    /// Waits.
    pub fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    /// The mount of a node, for whoever takes it away: no program makes a call there meanwhile.
    pub fn mounted(&self, node: usize) -> RwLockWriteGuard<'_, bool> {
        self.mounts[node].write().unwrap_or_else(PoisonError::into_inner)
    }

    fn on(&self, node: usize) -> RwLockReadGuard<'_, bool> {
        self.mounts[node].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a fault that was mended.
    pub fn fault(&self, begin: u64, end: u64, loss: Loss) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push((begin, end, loss));
    }

    /// The faults, with the times at which they began and everything was well again, and what may have been lost.
    pub fn faults(&self) -> Vec<(u64, u64, Loss)> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number that nobody has had.
    fn token(&self) -> u32 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }
}

/// A program.
pub struct Worker {
    number: usize,
    node: usize,
    random: StdRng,
    shared: Arc<Shared>,
    journal: Journal,
    /// A file of registers that stays open.
    held: Option<(usize, File)>,
    /// Its own log, each record of which is synced, and how many it has written.
    log: Option<File>,
    records: u64,
}

/// An error after which the call may still be carried out: the daemon that had it is dead.
fn is_cut_off(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error())
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// What a name stands for: the target of a link or the content of a file.
fn read_name(path: &Path) -> io::Result<u32> {
    let no_token = |text: &str| io::Error::other(format!("{text:?} is not a token"));
    let parse = |text: &str| text.trim().parse::<u32>().map_err(|_| no_token(text));
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    match OpenOptions::new().read(true).custom_flags(nofollow).open(path) {
        Ok(file) => parse(&io::read_to_string(&file)?),
        Err(error) if is(&error, Errno::LOOP) => match fs::read_link(path) {
            Ok(target) => parse(&target.to_string_lossy()),
            // It is a file by now.
            Err(error) if is(&error, Errno::INVAL) => read_name(path),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

impl Worker {
    /// A program on a node.
    pub fn new(number: usize, node: usize, seed: u64, shared: Arc<Shared>) -> Worker {
        let random = StdRng::seed_from_u64(seed);
        let journal = Journal::default();
        Worker { number, node, random, shared, journal, held: None, log: None, records: 0 }
    }

    /// Makes calls until it is told to stop.
    pub fn run(mut self) -> Journal {
        while !self.shared.stop.load(Ordering::SeqCst) {
            let shared = Arc::clone(&self.shared);
            let mounted = shared.on(self.node);
            let failures = self.journal.failures.len();
            if *mounted {
                match self.random.random_range(0..20) {
                    0..8 => self.change_names(),
                    8..15 => self.change_bytes(),
                    15..17 => self.append(),
                    17..19 => self.log(),
                    _ => self.make_file(),
                }
            } else {
                // The kernel itself has them open on the disk of the node, which may have to be unmounted.
                (self.held, self.log) = (None, None);
            }
            drop(mounted);
            let failed = self.journal.failures.len() != failures;
            std::thread::sleep(if failed { PAUSE_FAILED } else { PAUSE });
        }
        self.journal
    }

    fn by(&self) -> String {
        format!("program {} of node {}", self.number, self.node)
    }

    /// Makes a call, and returns its times with its result.
    fn timed<T>(
        &mut self,
        what: &str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> (Span, io::Result<T>) {
        let begin = self.shared.now();
        let result = call();
        let end = self.shared.now();
        self.journal.longest.push((begin, end, format!("{what}, {}", self.by())));
        if let Err(error) = &result
            && !is(error, Errno::NOENT)
            && !is(error, Errno::EXIST)
        {
            self.journal.failures.push((begin, end, format!("{what}: {error}, {}", self.by())));
        }
        self.journal.calls += usize::from(result.is_ok());
        (Span { begin, end }, result)
    }

    /// The times of a call that failed: until when it may have taken effect.
    fn effect(span: Span, error: &io::Error) -> Span {
        let late = if is_cut_off(error) { LATE.as_nanos() as u64 } else { 0 };
        Span { begin: span.begin, end: span.end + late }
    }

    fn note_move(&mut self, directory: usize, span: Span, call: Move, outcome: Outcome) {
        let (Span { begin, end }, by) = (span, self.by());
        let is_look = matches!(call, Move::Saw(..) | Move::Missing(_) | Move::Refused(_));
        let may_be_kept = self.shared.owner.is_none_or(|owner| owner == self.node);
        let call = if is_look && may_be_kept { Move::Kept(Box::new(call)) } else { call };
        self.journal.moves[directory].push(Entry { begin, end, by, call, outcome });
    }

    fn change_names(&mut self) {
        let directory = self.random.random_range(0..DIRECTORIES);
        let [name, other] = [(); 2].map(|()| self.random.random_range(0..NAMES));
        let at = |name| self.shared.root(self.node).join(shared_name(directory, name));
        let (path, to, token) = (at(name), at(other), self.shared.token());
        let missing = Move::Missing(name);
        // The call, what it means if it succeeds, if there is no such name, and if there is one.
        let (what, done, exists) = match self.random.random_range(0..10) {
            0..2 => ("symlink", Move::Made(name, token), Some(Move::Refused(name))),
            2 => ("put", Move::Put(name, token), None),
            3 | 4 => ("unlink", Move::Removed(name), None),
            5 if name != other => ("rename", Move::Renamed(name, other), None),
            _ => return self.look(directory, name, &path),
        };
        let private = self.shared.root(self.node).join(format!("private-{token}"));
        if what == "put" {
            let text = format!("{token:20}\n");
            let (_, made) = self.timed("write a file", || fs::write(&private, &text));
            if made.is_err() {
                return;
            }
        }
        let (span, result) = self.timed(what, || match what {
            "symlink" => std::os::unix::fs::symlink(token.to_string(), &path),
            "put" => fs::rename(&private, &path),
            "unlink" => fs::remove_file(&path),
            _ => fs::rename(&path, &to),
        });
        match result {
            // Where both names lead to one inode the kernel does nothing, and says that it succeeded (vfs_rename): that is
            // so if another node renames between its two lookups.
            Ok(()) if what == "rename" => self.note_move(directory, span, done, Outcome::Unknown),
            Ok(()) => self.note_move(directory, span, done, Outcome::Done),
            Err(error) if is(&error, Errno::NOENT) && what != "put" => {
                self.note_move(directory, span, missing, Outcome::Done);
            }
            Err(error) if is(&error, Errno::EXIST) && exists.is_some() => {
                self.note_move(directory, span, exists.expect("a name"), Outcome::Done);
            }
            Err(error) => {
                self.note_move(directory, Worker::effect(span, &error), done, Outcome::Unknown);
            }
        }
    }

    fn look(&mut self, directory: usize, name: usize, path: &Path) {
        let (span, result) = self.timed("look", || read_name(path));
        match result {
            Ok(token) => self.note_move(directory, span, Move::Saw(name, token), Outcome::Done),
            Err(error) if is(&error, Errno::NOENT) => {
                self.note_move(directory, span, Move::Missing(name), Outcome::Done);
            }
            Err(error) if error.raw_os_error().is_none() => {
                let what = format!("{}: {error}", path.display());
                self.journal.senseless.push((span.end, what));
            }
            Err(_) => {}
        }
    }

    fn change_bytes(&mut self) {
        let (file, place) =
            (self.random.random_range(0..FILES), self.random.random_range(0..PLACES.len()));
        let handle = match self.held.take() {
            Some((held, handle)) if held == file || self.random.random_bool(0.5) => {
                self.held = Some((held, handle));
                let (held, handle) = self.held.as_ref().expect("it is held");
                handle.try_clone().ok().map(|handle| (*held, handle))
            }
            _ => None,
        };
        let (file, handle) = match handle {
            Some(found) => found,
            None => {
                let path = self.shared.root(self.node).join(file_name(file));
                let open = || OpenOptions::new().read(true).write(true).open(&path);
                let (_, Ok(handle)) = self.timed("open", open) else { return };
                if self.random.random_bool(0.3) {
                    self.held = handle.try_clone().ok().map(|handle| (file, handle));
                }
                (file, handle)
            }
        };
        let key = (file, place);
        let result = if self.random.random_bool(0.5) {
            let value = u64::from(self.shared.token());
            let write = || handle.write_all_at(&value.to_le_bytes(), PLACES[place]);
            let (span, result) = self.timed("write", write);
            let (span, outcome) = match &result {
                Ok(()) => (span, Outcome::Done),
                Err(error) => (Worker::effect(span, error), Outcome::Unknown),
            };
            self.note_access(key, span, Access::Wrote(value), outcome);
            result.and_then(|()| {
                if self.random.random_bool(0.1) { self.sync(&handle, Some(file)) } else { Ok(()) }
            })
        } else {
            let mut bytes = [0; 8];
            let read = || handle.read_exact_at(&mut bytes, PLACES[place]);
            let (span, result) = self.timed("read", read);
            if result.is_ok() {
                let value = u64::from_le_bytes(bytes);
                self.note_access(key, span, Access::Read(value), Outcome::Done);
            }
            result
        };
        if result.is_err() {
            self.held = None;
        }
    }

    fn note_access(&mut self, key: (usize, usize), span: Span, call: Access, outcome: Outcome) {
        let (Span { begin, end }, by) = (span, self.by());
        let entry = Entry { begin, end, by, call, outcome };
        self.journal.accesses.entry(key).or_default().push(entry);
    }

    /// Syncs a file, and with it all names of the fileset; it may be one of registers.
    fn sync(&mut self, file: &File, registers: Option<usize>) -> io::Result<()> {
        let (span, result) = self.timed("fsync", || file.sync_all());
        // One that failed may have made durable what it was to.
        let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Unknown };
        for directory in 0..DIRECTORIES {
            self.note_move(directory, span, Move::Synced, outcome);
        }
        for key in
            registers.into_iter().flat_map(|file| (0..PLACES.len()).map(move |place| (file, place)))
        {
            self.note_access(key, span, Access::Synced, outcome);
        }
        result
    }

    /// Appends a record to a file of all programs.
    fn append(&mut self) {
        let file = self.random.random_range(0..FILES);
        let path = self.shared.root(self.node).join(format!("appended-{file}"));
        let token = u64::from(self.shared.token());
        let open = || OpenOptions::new().append(true).create(true).open(&path);
        let (_, Ok(mut handle)) = self.timed("open to append", open) else { return };
        let (span, result) = self.timed("append", || handle.write_all(&record(token)));
        let (span, outcome) = match &result {
            Ok(()) => (span, Outcome::Done),
            Err(error) => (Worker::effect(span, error), Outcome::Unknown),
        };
        self.journal.appends.push((file, span, token, outcome));
    }

    /// Appends a record to the program's own file, and syncs it.
    fn log(&mut self) {
        let path = self.shared.root(self.node).join(format!("log-{}", self.number));
        let mut handle = match self.log.take() {
            Some(handle) => handle,
            None => {
                let open = || OpenOptions::new().append(true).create(true).open(&path);
                let (_, Ok(handle)) = self.timed("open the log", open) else { return };
                handle
            }
        };
        self.records += 1;
        let token = self.records;
        let (_, written) = self.timed("log", || handle.write_all(&record(token)));
        if written.is_ok() && self.sync(&handle, None).is_ok() {
            self.journal.synced.push((format!("log-{}", self.number), token));
            self.log = Some(handle);
        }
    }

    /// Makes a file, and syncs it.
    fn make_file(&mut self) {
        let token = self.shared.token();
        let name = format!("new-{token}");
        let path = self.shared.root(self.node).join(&name);
        let (_, Ok(mut handle)) = self.timed("create", || File::create_new(&path)) else { return };
        let content: Vec<u8> = (0..20).flat_map(|_| record(token.into())).collect();
        let (_, written) = self.timed("write a new file", || handle.write_all(&content));
        if written.is_ok() && self.sync(&handle, None).is_ok() {
            self.journal.made.push((name, token.into(), content.len() / RECORD));
        }
    }
}

/// Reads every object on every node, when no program runs and nothing is broken.
pub fn look_at_everything(shared: &Arc<Shared>) -> Journal {
    let mut all = Journal::default();
    for node in 0..NODES {
        let mut worker = Worker::new(1000 + node, node, 0, Arc::clone(shared));
        for directory in 0..DIRECTORIES {
            for name in 0..NAMES {
                let path = shared.root(node).join(shared_name(directory, name));
                worker.look(directory, name, &path);
            }
        }
        for file in 0..FILES {
            let handle = File::open(shared.root(node).join(file_name(file))).expect("opens");
            for (place, offset) in PLACES.iter().enumerate() {
                let mut bytes = [0; 8];
                let read = || handle.read_exact_at(&mut bytes, *offset);
                let (span, result) = worker.timed("read", read);
                result.expect("reads when all is well");
                let call = Access::Read(u64::from_le_bytes(bytes));
                worker.note_access((file, place), span, call, Outcome::Done);
            }
        }
        assert!(worker.journal.failures.is_empty(), "{:#?}", worker.journal.failures);
        all.add(worker.journal);
    }
    all
}

//! A store whose latest changes are in a log beside it: a commit of a few pairs is one write and one sync of a file of fixed
//! length, instead of a transaction of the engine below.
//!
//! **What survives.** A commit is durable when its record in the log is. The changes of the log are kept in memory, over the
//! store below, until the log is full or the store is closed; then one transaction of the store below takes all of them with
//! the number of the next record, and the log starts over. Opening does the same with what a crash has left. Batches of more than 256 KiB
//! go to the store below at once, after what is in the log.
//!
//! **Damage.** A torn record at the end of the log was not acknowledged, and is dropped. A log that lacks a record, belongs to
//! another store or is missing is refused ([`StoreError::Damaged`]), unless the store was closed in order. Nothing is written then.
//!
//! **Errors.** A record that could not be written is overwritten, so that nothing of it is there later; as long as that fails too,
//! the outcome is unknown, and reads and commits fail. Without space for a log, the store below is used alone.
//!
//! One key of the store below, [`MARK`], is its own and is never shown.

mod log;

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::full::is_full;
use parking_lot::{Mutex, RwLock};

use self::log::{CHANGES_BYTES_MAX, Changes, Failure, Flaw, Id, LOG_BYTES, Log};
use crate::redb::sync_directory_of;
use crate::{Batch, Bytes, Result, Store, StoreError};

/// The key under which the store below says what of the log it has.
pub const MARK: &[u8] = b"\xffforebay-log";

/// What the store below says of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    id: Id,
    /// The number of the first record that it does not have.
    next: u64,
    /// Whether there is none of those.
    is_closed: bool,
}

impl Mark {
    fn read(base: &impl Store) -> Result<Option<Mark>> {
        let Some(bytes) = base.get(MARK)? else { return Ok(None) };
        let parsed = || {
            let (id, rest) = bytes.split_first_chunk::<16>()?;
            let (next, rest) = rest.split_first_chunk::<8>()?;
            let [is_closed @ (0 | 1)] = rest else { return None };
            Some(Mark { id: *id, next: u64::from_le_bytes(*next), is_closed: *is_closed == 1 })
        };
        let unknown = || StoreError::Damaged("its log is of an unknown kind".to_owned());
        parsed().ok_or_else(unknown).map(Some)
    }

    fn bytes(self) -> Bytes {
        let mut bytes = self.id.to_vec();
        bytes.extend(self.next.to_le_bytes());
        bytes.push(u8::from(self.is_closed));
        bytes
    }
}

/// How the log is.
enum State {
    Open(Log),
    /// There was no space for it.
    Absent,
    /// The store is closed.
    Closed,
}

/// A store with a log beside it.
pub struct LoggedStore<S: Store> {
    base: S,
    path: PathBuf,
    /// Held for a whole commit.
    log: Mutex<State>,
    /// What the store below may not have yet.
    recent: RwLock<Changes>,
    /// Whether a record may be in the log of which nobody knows.
    is_unsettled: AtomicBool,
}

impl<S: Store> LoggedStore<S> {
    /// A store with its log in a file. What the log holds is given to `base` first.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the log lacks something; what `base` says.
    pub fn open(base: S, path: impl AsRef<Path>) -> Result<LoggedStore<S>> {
        let path = path.as_ref();
        let mark = Mark::read(&base)?;
        let found = mark.map(|mark| found(path, mark)).transpose()?.flatten();
        match found {
            Some((log, recent)) => LoggedStore::begin(base, path, log, recent),
            None => match made(path, mark.map_or(1, |mark| mark.next))? {
                Some(log) => LoggedStore::begin_anew(base, path, log),
                None => Ok(LoggedStore::with(base, path, State::Absent, Changes::new())),
            },
        }
    }

    fn with(base: S, path: &Path, state: State, recent: Changes) -> LoggedStore<S> {
        LoggedStore {
            base,
            path: path.to_owned(),
            log: Mutex::new(state),
            recent: RwLock::new(recent),
            is_unsettled: AtomicBool::new(false),
        }
    }

    /// With a log that its store knows.
    fn begin(base: S, path: &Path, mut log: Log, recent: Changes) -> Result<LoggedStore<S>> {
        let store = LoggedStore::with(base, path, State::Absent, recent);
        match store.empty(&mut log, Use::Open) {
            // It stays in the log until there is space.
            Ok(()) | Err(StoreError::Full(_)) => {}
            Err(error) => return Err(error),
        }
        *store.log.lock() = State::Open(log);
        Ok(store)
    }

    /// With a new log. It is used only if the store has its id: otherwise the next opening would not know it.
    fn begin_anew(base: S, path: &Path, mut log: Log) -> Result<LoggedStore<S>> {
        let store = LoggedStore::with(base, path, State::Absent, Changes::new());
        match store.empty(&mut log, Use::Open) {
            Ok(()) => *store.log.lock() = State::Open(log),
            Err(StoreError::Full(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(store)
    }

    /// The store below.
    pub fn base(&self) -> &S {
        &self.base
    }

    /// Gives what is in the log to the store below, and starts the log over.
    fn empty(&self, log: &mut Log, then: Use) -> Result<()> {
        let mark = Mark { id: log.id(), next: log.next(), is_closed: then == Use::Closed };
        let mut changes = self.recent.read().clone();
        changes.insert(MARK.to_vec(), Some(mark.bytes()));
        // If it is not known whether it was taken, it can be given again: the log has it.
        self.base.commit(&Batch { requires: Vec::new(), changes }).map_err(
            |error| match error {
                StoreError::Unknown(text) => StoreError::Io(text),
                error => error,
            },
        )?;
        self.recent.write().clear();
        log.restart();
        Ok(())
    }

    fn settle(&self, log: &mut Log) -> Result<()> {
        let settled = log.settle();
        self.is_unsettled.store(log.is_unsettled(), Ordering::SeqCst);
        settled.map_err(|error| self.refused(&error))
    }

    /// Before a read: what it finds must be there for good.
    fn settled(&self) -> Result<()> {
        if !self.is_unsettled.load(Ordering::SeqCst) {
            return Ok(());
        }
        match &mut *self.log.lock() {
            State::Open(log) => self.settle(log),
            State::Absent | State::Closed => Ok(()),
        }
    }

    fn refused(&self, error: &io::Error) -> StoreError {
        let text = format!("{}: {error}", self.path.display());
        if is_full(error) { StoreError::Full(text) } else { StoreError::Io(text) }
    }

    fn append(&self, log: &mut Log, changes: &[u8]) -> Result<()> {
        let added = log.append(changes);
        self.is_unsettled.store(log.is_unsettled(), Ordering::SeqCst);
        added.map_err(|failure| match failure {
            Failure::Before(error) => self.refused(&error),
            Failure::Unknown(error) => {
                StoreError::Unknown(format!("{}: {error}", self.path.display()))
            }
        })
    }
}

/// What follows once a log was emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Open,
    Closed,
}

/// The log of a store and what it holds; none if it is not there and nothing is missing.
fn found(path: &Path, mark: Mark) -> Result<Option<(Log, Changes)>> {
    let shown = path.display();
    let damaged = |what: &str| {
        Err(StoreError::Damaged(format!(
            "{shown}: {what}; restore it together with the store beside it, from one backup"
        )))
    };
    let opened = File::options().read(true).write(true).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && mark.is_closed => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return damaged("it is missing, and held the latest changes");
        }
        Err(error) => return Err(StoreError::Io(format!("{shown}: {error}"))),
    };
    match Log::open(Box::new(file), mark.id, mark.next) {
        Ok(opened) => Ok(Some(opened)),
        Err(Flaw::Other) if mark.is_closed => Ok(None),
        Err(Flaw::Other) => damaged("it is not the log of the store beside it"),
        Err(Flaw::Lost(number)) => damaged(&format!("change {number} is damaged or missing")),
        Err(Flaw::Io(error)) => Err(StoreError::Io(format!("{shown}: {error}"))),
    }
}

/// An empty log; none if there is no space for one.
fn made(path: &Path, next: u64) -> Result<Option<Log>> {
    let mut id = Id::default();
    let filled = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    let made = filled.map_err(io::Error::from).and_then(|_| log::create(path, id));
    match made {
        Ok(file) => Ok(Some(Log::empty(Box::new(file), id, next))),
        Err(error) if is_full(&error) => {
            let _ = std::fs::remove_file(path);
            Ok(None)
        }
        Err(error) => Err(StoreError::Io(format!("{}: {error}", path.display()))),
    }
}

impl<S: Store> Store for LoggedStore<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.settled()?;
        let recent = self.recent.read();
        match recent.get(key) {
            Some(change) => Ok(change.clone()),
            None if key == MARK => Ok(None),
            None => self.base.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.settled()?;
        if from >= to {
            return Ok(Vec::new());
        }
        // As long as this is held, the store below may get what is here, and nothing else.
        let recent = self.recent.read();
        let range = (Bound::Included(from), Bound::Excluded(to));
        let changed: Vec<_> = recent.range::<[u8], _>(range).collect();
        let gone = changed.iter().filter(|(_, value)| value.is_none()).count();
        // Each that was deleted, and the mark, may take the place of one that is there.
        let pairs = self.base.scan(from, to, limit.saturating_add(gone).saturating_add(1))?;
        if changed.is_empty() && limit >= pairs.len() && !pairs.iter().any(|it| it.0 == MARK) {
            return Ok(pairs);
        }
        let mut all: Changes = pairs.into_iter().map(|(key, value)| (key, Some(value))).collect();
        all.remove(MARK);
        all.extend(changed.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        let left = all.into_iter().filter_map(|(key, value)| Some((key, value?)));
        Ok(left.take(limit).collect())
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let mut held = self.log.lock();
        let log = match &mut *held {
            State::Open(log) => log,
            State::Absent => return self.base.commit(batch),
            State::Closed => {
                let path = self.path.display();
                return Err(StoreError::Io(format!("{path}: its store is already closed")));
            }
        };
        self.settle(log)?;
        for (key, required) in &batch.requires {
            if self.get(key)? != *required {
                return Err(StoreError::Conflict);
            }
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        let changes = log::encode(&batch.changes);
        if changes.len() > CHANGES_BYTES_MAX {
            self.empty(log, Use::Open)?;
            return self.base.commit(batch);
        }
        if !log.has_room(changes.len()) {
            self.empty(log, Use::Open)?;
        }
        self.append(log, &changes)?;
        self.recent.write().extend(batch.changes.clone());
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        let log = if matches!(*self.log.lock(), State::Open(_)) { LOG_BYTES as u64 } else { 0 };
        Ok(self.base.size_bytes()? + log)
    }

    fn compact(&self) -> Result<()> {
        self.shorten_log()?;
        self.base.compact()
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        self.shorten_log()?;
        self.base.copy_to(path, progress)
    }

    fn shorten_log(&self) -> Result<()> {
        match &mut *self.log.lock() {
            State::Open(log) => {
                self.settle(log)?;
                self.empty(log, Use::Open)
            }
            State::Absent | State::Closed => Ok(()),
        }
    }

    fn close(&self) -> Result<()> {
        let emptied = match std::mem::replace(&mut *self.log.lock(), State::Closed) {
            // What stays in the log is there when the store is opened again.
            State::Open(mut log) => {
                self.settle(&mut log).and_then(|()| self.empty(&mut log, Use::Closed))
            }
            State::Absent | State::Closed => Ok(()),
        };
        self.base.close().and(emptied)
    }
}

impl<S: Store> Drop for LoggedStore<S> {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests;

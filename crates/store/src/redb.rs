//! A store in one file, on the redb engine: a copy-on-write B+tree with one writer at a time.
//!
//! **What survives.** A commit is one durable redb transaction, committed in two phases: the new
//! pages are synced before the root that names them is written, and that is synced too. So a crash
//! finds the old root or the new one, each whole.
//!
//! The second phase is what makes a failed sync harmless: the kernel may then drop pages that it
//! reports as written, but no root names them yet.
//!
//! **Opening after a crash** walks the whole tree to find the free pages: about 2 seconds per GiB of
//! store from cached pages, and the time to read the file twice from a slow device. redb's "quick
//! repair" would save the walk, but writes the map of free pages with every commit. Measured for a
//! commit of 3 pairs into a store of 4 MiB, 257 MiB and 2 GiB (medians, microseconds): one phase
//! 371, 411, 332; two phases 413, 464, 496; quick repair 550, 532, 7993. A commit that grows slower
//! with the store is the worse price, so it is off. After an orderly close no walk is needed.
//!
//! **Errors.** After an input/output error redb refuses all further work, so the database is then
//! dropped, and opened again by the next call. A commit that failed is looked up in the reopened
//! file: if it is there after all it is synced once more and reported as done, otherwise nothing of
//! it was applied and its error is reported. Only if that look-up fails too is the outcome open, as
//! in a crash. redb may panic on a damaged file; such a panic becomes [`StoreError::Damaged`].
//!
//! Not here: compaction. The file keeps the size of its largest content, and reuses the space.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::{Batch, Bytes, Result, Store, StoreError};

/// The only table; its name is part of the file format.
const PAIRS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("pairs");

/// How a [`RedbStore`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedbOptions {
    /// Memory for cached pages, in bytes.
    pub cache_bytes: usize,
}

impl Default for RedbOptions {
    /// A cache of 256 MiB.
    fn default() -> RedbOptions {
        RedbOptions { cache_bytes: 256 << 20 }
    }
}

type Opener = Box<dyn Fn() -> std::result::Result<Database, DatabaseError> + Send + Sync>;

#[derive(Default)]
struct State {
    /// `None` after an error, until the next call opens the file again.
    database: Option<Database>,
    /// Counts the openings, so that of two threads that met the same error only one discards.
    generation: u64,
}

/// A store in one file. One handle at a time can hold the file; share it in an `Arc`.
pub struct RedbStore {
    path: PathBuf,
    opener: Opener,
    state: RwLock<State>,
    /// Held for a whole commit with the look-up after its failure, so that no other commit of this
    /// handle comes between the two.
    committing: Mutex<()>,
}

/// Why a transaction failed, by what is known of its outcome.
enum Failure {
    /// Nothing was applied.
    Before(StoreError),
    /// The commit itself failed: it may have been applied.
    During(StoreError),
}

impl RedbStore {
    /// Makes an empty store in a new file at `path`.
    ///
    /// # Errors
    /// [`StoreError::Io`] (also if `path` exists) or [`StoreError::Full`]; no file is left then.
    pub fn create(path: impl AsRef<Path>) -> Result<RedbStore> {
        RedbStore::create_with(path, &RedbOptions::default())
    }

    /// Like [`RedbStore::create`], with options.
    ///
    /// # Errors
    /// As [`RedbStore::create`].
    pub fn create_with(path: impl AsRef<Path>, options: &RedbOptions) -> Result<RedbStore> {
        let path = path.as_ref();
        File::create_new(path).map_err(|error| translate(path, &error.into()))?;
        let created = RedbStore::initialize(path, options);
        if created.is_err() {
            // The error that matters is the one of `initialize`.
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Opens the store at `path`, repairing what a crash left.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another handle holds it, [`StoreError::Damaged`], and
    /// [`StoreError::Io`], which names the path, for example if there is no such file.
    pub fn open(path: impl AsRef<Path>) -> Result<RedbStore> {
        RedbStore::open_with(path, &RedbOptions::default())
    }

    /// Like [`RedbStore::open`], with options.
    ///
    /// # Errors
    /// As [`RedbStore::open`].
    pub fn open_with(path: impl AsRef<Path>, options: &RedbOptions) -> Result<RedbStore> {
        let path = path.as_ref().to_owned();
        let (file, cache_bytes) = (path.clone(), options.cache_bytes);
        let opener = move || redb::Builder::new().set_cache_size(cache_bytes).open(&file);
        RedbStore::with_opener(path, Box::new(opener))
    }

    fn initialize(path: &Path, options: &RedbOptions) -> Result<RedbStore> {
        let fail = |error: &redb::Error| translate(path, error);
        let mut builder = redb::Builder::new();
        let database = builder
            .set_cache_size(options.cache_bytes)
            .create(path)
            .map_err(|error| fail(&error.into()))?;
        let transaction = database.begin_write().map_err(|error| fail(&error.into()))?;
        transaction.open_table(PAIRS).map_err(|error| fail(&error.into()))?;
        transaction.commit().map_err(|error| fail(&error.into()))?;
        database.close().map_err(|error| fail(&error.into()))?;
        sync_directory_of(path).map_err(|error| fail(&error.into()))?;
        RedbStore::open_with(path, options)
    }

    fn with_opener(path: PathBuf, opener: Opener) -> Result<RedbStore> {
        let store =
            RedbStore { path, opener, state: RwLock::default(), committing: Mutex::default() };
        drop(store.opened()?);
        Ok(store)
    }

    /// The state with its database open, opened afresh if an error discarded it.
    fn opened(&self) -> Result<RwLockReadGuard<'_, State>> {
        loop {
            let state = self.state.read();
            if state.database.is_some() {
                return Ok(state);
            }
            drop(state);
            let mut state = self.state.write();
            if state.database.is_none() {
                state.database = Some(self.open_database()?);
                state.generation += 1;
                return Ok(RwLockWriteGuard::downgrade(state));
            }
        }
    }

    fn open_database(&self) -> Result<Database> {
        let database = self
            .unpanicked(|| (self.opener)().map_err(redb::Error::from))?
            .map_err(|error| translate(&self.path, &error))?;
        self.unpanicked(|| {
            database.begin_read()?.open_table(PAIRS)?;
            Ok::<(), redb::Error>(())
        })?
        .map_err(|error| translate(&self.path, &error))?;
        Ok(database)
    }

    /// Runs `work` on the open database; after an error (other than a conflict) the database is
    /// discarded, and the next call opens it afresh.
    fn run<T>(
        &self,
        work: impl FnOnce(&Database) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let state = self.opened().map_err(Failure::Before)?;
        let Some(database) = &state.database else {
            unreachable!("opened() returns an open database");
        };
        let outcome = self
            .unpanicked(|| work(database))
            .unwrap_or_else(|panicked| Err(Failure::During(panicked)));
        let generation = state.generation;
        drop(state);
        match outcome {
            Ok(value) => Ok(value),
            Err(Failure::Before(StoreError::Conflict)) => {
                Err(Failure::Before(StoreError::Conflict))
            }
            Err(failure) => {
                let mut state = self.state.write();
                if state.generation == generation {
                    state.database = None;
                }
                Err(failure)
            }
        }
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Database) -> std::result::Result<T, redb::Error>,
    ) -> Result<T> {
        let outcome = self.run(|database| work(database).map_err(|error| self.before(&error)));
        outcome.map_err(|(Failure::Before(error) | Failure::During(error))| error)
    }

    /// The outcome of `work`; a panic in it means that the file is damaged.
    fn unpanicked<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        // A panic leaves nothing half-changed that is used again: the database is discarded.
        catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("unknown reason");
            StoreError::Damaged(format!("{}: the engine gave up: {text}", self.path.display()))
        })
    }

    fn before(&self, error: &redb::Error) -> Failure {
        Failure::Before(translate(&self.path, error))
    }

    fn apply(&self, database: &Database, batch: &Batch) -> std::result::Result<(), Failure> {
        let transaction = begin_write(database).map_err(|error| self.before(&error))?;
        if !stage(&transaction, batch).map_err(|error| self.before(&error))? {
            transaction.abort().map_err(|error| self.before(&error.into()))?;
            return Err(Failure::Before(StoreError::Conflict));
        }
        transaction.commit().map_err(|error| Failure::During(translate(&self.path, &error.into())))
    }

    /// Whether the reopened file holds what `batch` set, synced once more. Called after its commit
    /// failed: as batches are whole, and no other came between, this tells whether it was applied.
    fn settled(&self, batch: &Batch) -> Result<bool> {
        self.read(|database| {
            let reading = database.begin_read()?;
            let table = reading.open_table(PAIRS)?;
            for (key, change) in &batch.changes {
                let value = table.get(key.as_slice())?;
                if value.as_ref().map(|value| value.value()) != change.as_deref() {
                    return Ok(false);
                }
            }
            drop(table);
            reading.close()?;
            begin_write(database)?.commit()?;
            Ok(true)
        })
    }
}

impl Store for RedbStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|database| {
            let table = database.begin_read()?.open_table(PAIRS)?;
            Ok(table.get(key)?.map(|value| value.value().to_vec()))
        })
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        self.read(|database| {
            let table = database.begin_read()?.open_table(PAIRS)?;
            let mut pairs = Vec::new();
            let range = (Bound::Included(from), Bound::Excluded(to));
            for pair in table.range::<&[u8]>(range)?.take(limit) {
                let (key, value) = pair?;
                pairs.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(pairs)
        })
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let _committing = self.committing.lock();
        match self.run(|database| self.apply(database, batch)) {
            Ok(()) => Ok(()),
            Err(Failure::Before(error)) => Err(error),
            Err(Failure::During(error)) => match self.settled(batch) {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => Err(error),
            },
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        let metadata =
            std::fs::metadata(&self.path).map_err(|error| translate(&self.path, &error.into()))?;
        Ok(metadata.blocks() * 512)
    }
}

fn begin_write(database: &Database) -> std::result::Result<redb::WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    // See the module's head.
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Checks and stages `batch`; `false` if a requirement does not hold.
fn stage(
    transaction: &redb::WriteTransaction,
    batch: &Batch,
) -> std::result::Result<bool, redb::Error> {
    let mut table = transaction.open_table(PAIRS)?;
    for (key, required) in &batch.requires {
        let value = table.get(key.as_slice())?;
        if value.as_ref().map(|value| value.value()) != required.as_deref() {
            return Ok(false);
        }
    }
    for (key, change) in &batch.changes {
        match change {
            Some(value) => table.insert(key.as_slice(), value.as_slice())?,
            None => table.remove(key.as_slice())?,
        };
    }
    Ok(true)
}

fn translate(path: &Path, error: &redb::Error) -> StoreError {
    let text = format!("{}: {error}", path.display());
    match error {
        redb::Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(text),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => StoreError::Damaged(text),
            _ => StoreError::Io(text),
        },
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            StoreError::InUse(text)
        }
        redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableDoesNotExist(_) => StoreError::Damaged(text),
        // The enum is open-ended; the rest are refusals that reopening cures.
        _ => StoreError::Io(text),
    }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests;

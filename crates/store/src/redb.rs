//! A store in one file, on the redb engine: a copy-on-write B+tree with one writer at a time.
//!
//! **What survives.** A commit is one durable redb transaction, committed in two phases: the new
//! pages are synced before the root that names them is written, and that is synced too. So a crash
//! finds the old root or the new one, each whole.
//!
//! The second phase is what makes a failed sync harmless: the kernel may then drop pages that it
//! reports as written, but no root names them yet.
//!
//! **Opening** walks the whole tree: about 2 seconds per GiB of store from cached pages, and the time to
//! read the file twice from a slow device. After a crash that is how the free pages are found; after an
//! orderly close it is how damage is found. The engine does not look at checksums when it reads a page,
//! takes a map of free pages on trust, and copies a damaged page with a new checksum: one wrong bit could
//! lose the whole store with the first commit. So every page in use is verified, the map of free pages is
//! rebuilt, and nothing is written to the file before that succeeded (`draft.rs`, `header.rs`). What a
//! damaged file still holds, [`salvage`](salvage::salvage) reads.
//!
//! redb's "quick repair" would save the walk after a crash, but writes the map of free pages with every
//! commit. Measured for a commit of 3 pairs into a store of 4 MiB, 257 MiB and 2 GiB (medians,
//! microseconds): one phase 371, 411, 332; two phases 413, 464, 496; quick repair 550, 532, 7993. A commit
//! that grows slower with the store is the worse price, so it is off.
//!
//! **Errors.** After an input/output error redb refuses all further work, so the database is then
//! dropped, and opened again by the next call. A commit that failed is looked up in the reopened
//! file: if it is there after all it is synced once more and reported as done, otherwise nothing of
//! it was applied and its error is reported. Only if that look-up fails too is the outcome open, as
//! in a crash: [`StoreError::Unknown`]. redb may panic on a damaged file; such a panic becomes [`StoreError::Damaged`].
//!
//! The file keeps the size of its largest content and reuses the space, until [`Store::compact`] moves what is there to
//! its beginning.

mod backup;
mod draft;
pub mod folder;
mod header;
mod page;
mod pages;
pub mod salvage;

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay_base::full::is_full;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition};

use self::draft::Draft;
use self::header::{HEADER_BYTES, Header};
use self::pages::Share;
use crate::{Batch, Bytes, Result, Store, StoreError};

/// Name of the only table; part of the file format.
const PAIRS_NAME: &str = "pairs";
const PAIRS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new(PAIRS_NAME);

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

type Opener = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync>;

/// What an opening is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// To read and write. The whole file is verified first.
    Own,
    /// To verify the whole file, then to read. The file stays as it is.
    Check,
    /// To read a little. The file stays as it is, and is not verified.
    Look,
}

#[derive(Default)]
struct State {
    /// `None` after an error, until the next call opens the file again.
    database: Option<Database>,
    /// It is not opened again.
    closed: bool,
    /// Counts the openings, so that of two threads that met the same error only one discards.
    generation: u64,
}

/// A store in one file. One handle at a time can hold the file; share it in an `Arc`.
pub struct RedbStore {
    path: PathBuf,
    opener: Opener,
    access: Access,
    cache_bytes: usize,
    /// What it has of the memory for pages, if several stores share some.
    share: Option<Share>,
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
        // Names and attributes are nobody's business but the owner's.
        let mut new = File::options();
        new.write(true).create_new(true).mode(0o600);
        new.open(path).map_err(|error| translate(path, &error.into()))?;
        let created = RedbStore::initialize(path, options);
        if created.is_err() {
            // The error that matters is the one of `initialize`.
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Opens the store at `path` to read and write, putting right what a crash left. A damaged file is
    /// not written to.
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
        RedbStore::open_for(Access::Own, path.as_ref(), options)
    }

    /// Verifies the whole store at `path`, and opens it to read. The file is not changed.
    ///
    /// # Errors
    /// As [`RedbStore::open`].
    pub fn check(path: impl AsRef<Path>, options: &RedbOptions) -> Result<RedbStore> {
        RedbStore::open_for(Access::Check, path.as_ref(), options)
    }

    /// Opens the store at `path` to read some of it, without verifying it if its last owner closed it in
    /// order. The file is not changed.
    ///
    /// # Errors
    /// As [`RedbStore::open`].
    pub fn look(path: impl AsRef<Path>, options: &RedbOptions) -> Result<RedbStore> {
        RedbStore::open_for(Access::Look, path.as_ref(), options)
    }

    fn open_for(access: Access, path: &Path, options: &RedbOptions) -> Result<RedbStore> {
        let file = path.to_owned();
        let opener = move || {
            // The engine's lock takes a file that can be written, also where it will not be.
            let file = File::options().read(true).write(true).open(&file)?;
            let backend: Box<dyn StorageBackend> = Box::new(file_backend(file)?);
            Ok(backend)
        };
        RedbStore::with_opener(access, path.to_owned(), Box::new(opener), options)
    }

    /// The same, which has its cache from a share.
    fn with_share(mut self, share: Share) -> RedbStore {
        self.share = Some(share);
        self
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

    fn with_opener(
        access: Access,
        path: PathBuf,
        opener: Opener,
        options: &RedbOptions,
    ) -> Result<RedbStore> {
        let store = RedbStore {
            path,
            opener,
            access,
            cache_bytes: options.cache_bytes,
            share: None,
            state: RwLock::default(),
            committing: Mutex::default(),
        };
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
            if state.closed {
                let path = self.path.display();
                return Err(StoreError::Io(format!("{path} is already closed")));
            }
            if state.database.is_none() {
                state.database = Some(self.open_database()?);
                state.generation += 1;
                return Ok(RwLockWriteGuard::downgrade(state));
            }
        }
    }

    fn open_database(&self) -> Result<Database> {
        let io = |error: io::Error| translate(&self.path, &error.into());
        let draft = Draft::over((self.opener)().map_err(io)?);
        let length = draft.file_len().map_err(io)?;
        let damaged = |why: &str| StoreError::Damaged(format!("{}: {why}", self.path.display()));
        let mut header = [0; HEADER_BYTES];
        match usize::try_from(length) {
            Ok(0) => return Err(damaged("it is empty")),
            Ok(short) if short < HEADER_BYTES => {
                return Err(damaged(&format!("it has {length} bytes, too few for a store")));
            }
            Ok(_) | Err(_) => {}
        }
        let database = self
            .unpanicked(|| {
                redb::Builder::new()
                    .set_cache_size(self.cache_bytes)
                    .set_check_integrity_on_open(self.access != Access::Look)
                    .create_with_backend(draft.clone())
                    .map_err(redb::Error::from)
            })?
            .map_err(|error| translate(&self.path, &error))?;
        // Nobody else has the file now, and it is as it was.
        draft.read_file(0, &mut header).map_err(io)?;
        let flaws = Header::parse(header).flaws(length);
        if self.access != Access::Look && !flaws.is_empty() {
            return Err(damaged(&flaws.join("; ")));
        }
        self.unpanicked(|| {
            database.begin_read()?.open_table(PAIRS)?;
            Ok::<(), redb::Error>(())
        })?
        .map_err(|error| translate(&self.path, &error))?;
        if self.access == Access::Own {
            draft.publish().map_err(io)?;
        }
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

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        self.read(|database| {
            let table = database.begin_read()?.open_table(PAIRS)?;
            let value = |key: &Bytes| Ok(table.get(key.as_slice())?.map(|v| v.value().to_vec()));
            keys.iter().map(value).collect()
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
        if self.access != Access::Own {
            let path = self.path.display();
            return Err(StoreError::Io(format!("{path} was opened read-only")));
        }
        let _committing = self.committing.lock();
        match self.run(|database| self.apply(database, batch)) {
            Ok(()) => Ok(()),
            Err(Failure::Before(error)) => Err(error),
            Err(Failure::During(error)) => match self.settled(batch) {
                Ok(true) => Ok(()),
                Ok(false) => Err(error),
                Err(_) => Err(StoreError::Unknown(error.to_string())),
            },
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        let metadata =
            std::fs::metadata(&self.path).map_err(|error| translate(&self.path, &error.into()))?;
        Ok(metadata.blocks() * 512)
    }

    fn compact(&self) -> Result<()> {
        let _committing = self.committing.lock();
        drop(self.opened()?);
        let mut state = self.state.write();
        let Some(database) = &mut state.database else { return Ok(()) };
        let compacted = self.unpanicked(|| database.compact().map_err(redb::Error::from));
        let outcome = match compacted {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => translate(&self.path, &error),
            Err(panicked) => panicked,
        };
        state.database = None;
        Err(outcome)
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        self.copy_all(path, progress)
    }

    fn close(&self) -> Result<()> {
        let mut state = self.state.write();
        state.closed = true;
        let Some(database) = state.database.take() else { return Ok(()) };
        self.unpanicked(|| database.close().map_err(redb::Error::from))?
            .map_err(|error| translate(&self.path, &error))
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // The engine writes when it closes, and may panic at what it finds.
        let _ = self.close();
    }
}

fn file_backend(file: File) -> io::Result<FileBackend> {
    FileBackend::new(file).map_err(|error| match error {
        redb::DatabaseError::Storage(redb::StorageError::Io(error)) => error,
        other => io::Error::other(other),
    })
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
            _ if is_full(error) => StoreError::Full(text),
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

pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod bits;
#[cfg(test)]
mod tests;

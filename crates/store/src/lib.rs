//! The store: a transactional key-value seam for what must survive.
//!
//! **Crash contract.** When [`Store::commit`] returns `Ok`, the whole batch is durable; after a
//! crash at any other moment either the whole batch is there or nothing of it. Reads see every
//! batch whose commit returned, and never a part of one. After [`StoreError::Unknown`] the whole batch is there or
//! nothing of it, as after a crash: only a read that succeeds can tell, and it tells for good.
//!
//! **Damage.** An engine in a file verifies the whole of it when it is opened, and writes nothing to one that
//! is damaged.
//!
//! Engines: [`memory::MemoryStore`] for tests, [`redb::RedbStore`] on one machine, `slate::SlateStore` on many (with the
//! cargo feature `cluster`), [`logged::LoggedStore`], which puts a log before one of these, and [`faulty::FaultyStore`], which
//! makes any of them fail on purpose. All pass the same suite (`tests/conformance.rs`). [`stores::Stores`] is the set of all stores of a file system: one for each fileset.

use std::collections::BTreeMap;
use std::path::Path;

pub mod faulty;
pub mod logged;
pub mod memory;
pub mod redb;
#[cfg(feature = "cluster")]
pub mod slate;
pub mod stores;

pub use stores::Stores;

/// A key or a value.
pub type Bytes = Vec<u8>;

/// Changes that take effect together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What must hold for the batch to be applied, checked within the same transaction: the value
    /// of each key, `None` for "absent". This is how an owner is fenced by its epoch.
    pub requires: Vec<(Bytes, Option<Bytes>)>,
    /// New values by key; `None` deletes. Deleting an absent key is allowed.
    pub changes: BTreeMap<Bytes, Option<Bytes>>,
}

/// Why a store refused. A kind exists only where the caller would act differently.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A requirement of the batch does not hold: another owner has taken over.
    #[error("the store was changed by another owner")]
    Conflict,
    /// No space left where the store lies; nothing was applied. Retry after space was made.
    #[error("no space left for the store: {0}")]
    Full(String),
    /// The store is open in another process.
    #[error("the store is in use by another process: {0}")]
    InUse(String),
    /// The store's content cannot be read.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// There is no such store.
    #[error("{0}")]
    Missing(String),
    /// A commit failed so that the batch may be there or not. A requirement of the next batch, or a read of what the
    /// batch set, tells which; until then nothing may be concluded.
    #[error("it is not known whether the store took a batch: {0}")]
    Unknown(String),
    /// The device or file failed; nothing was applied. The next call tries afresh.
    #[error("store input/output error: {0}")]
    Io(String),
}

/// Outcome of a store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// An ordered, transactional key-value store. All methods may be called from many threads.
pub trait Store: Send + Sync {
    /// The value of `key`, if present.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The values of `keys`, in their order, as [`Store::get`] gives each. An engine overrides it where many at once
    /// cost less.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Pairs with `from <= key < to` in key order, at most `limit` of them. An empty or inverted
    /// range gives nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>>;

    /// Applies `batch` atomically and durably (see the crash contract above).
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::Full`], [`StoreError::Io`]: nothing was applied, and the store stays
    /// usable. [`StoreError::Unknown`]: the batch is there as a whole, or nothing of it.
    fn commit(&self, batch: &Batch) -> Result<()>;

    /// Bytes that the store occupies (0 for an engine that has no file).
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn size_bytes(&self) -> Result<u64>;

    /// Gives space that deleted pairs have left back to the file system, as far as the engine can. Takes as long as
    /// rewriting what is there; nothing else is done meanwhile. What survives a crash is as before and after it.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Io`]: the store stays usable.
    fn compact(&self) -> Result<()> {
        Ok(())
    }

    /// Copies all pairs, as they are now, into a new store in a new file at `path`; commits go on meanwhile.
    /// `progress` is called with the pairs that were copied and all there are. Returns how many there are.
    ///
    /// # Errors
    /// What either store says, for example if there is a file at `path`; [`StoreError::Io`] from an engine
    /// that has no file. No new file is left then.
    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let _ = progress;
        Err(StoreError::Io(format!("{}: this store cannot be copied to a file", path.display())))
    }

    /// Shortens what [`Store::close`] has to write and the next opening has to read, as far as the engine can, while the
    /// store is in use. What survives a crash is as before and after it.
    ///
    /// # Errors
    /// As [`Store::commit`], though nothing was to be applied.
    fn shorten_log(&self) -> Result<()> {
        Ok(())
    }

    /// Ends the use of the store: whatever its engine still has to write is on stable storage when this
    /// returns. Later calls may fail.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`]. Batches whose commit returned are durable all the
    /// same, unless the store is damaged.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        (**self).get(key)
    }

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        (**self).get_all(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        (**self).scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        (**self).commit(batch)
    }

    fn size_bytes(&self) -> Result<u64> {
        (**self).size_bytes()
    }

    fn compact(&self) -> Result<()> {
        (**self).compact()
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        (**self).copy_to(path, progress)
    }

    fn shorten_log(&self) -> Result<()> {
        (**self).shorten_log()
    }

    fn close(&self) -> Result<()> {
        (**self).close()
    }
}

impl<S: Store + ?Sized> Store for &S {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        (**self).get(key)
    }

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        (**self).get_all(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        (**self).scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        (**self).commit(batch)
    }

    fn size_bytes(&self) -> Result<u64> {
        (**self).size_bytes()
    }

    fn compact(&self) -> Result<()> {
        (**self).compact()
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        (**self).copy_to(path, progress)
    }

    fn shorten_log(&self) -> Result<()> {
        (**self).shorten_log()
    }

    fn close(&self) -> Result<()> {
        (**self).close()
    }
}

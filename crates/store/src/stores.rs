//! The stores of a file system: one for each fileset, found by its number.
//!
//! **Crash contract.** When [`Stores::create`] returns, the empty store survives; before that, a crash leaves nothing or
//! a store that is not whole. When [`Stores::remove`] returns, nothing of the store comes back. Whoever creates or
//! removes a store notes beforehand, where it survives, what is about to happen. A *frozen copy* of a store, which is the
//! store as it was at one moment, survives when [`Stores::finish_frozen`] returns; before that, a crash leaves nothing of it
//! or something that [`Stores::list_frozen`] lists.
//!
//! Sets: [`memory::MemoryStores`](crate::memory::MemoryStores) for tests and
//! [`redb::folder::RedbFolder`](crate::redb::folder::RedbFolder), a folder with a file for each store. Both pass the
//! same suite (`tests/conformance.rs`).

use std::sync::Arc;

use forebay_base::{Epoch, FilesetId};

use crate::{Result, Store, StoreError};

/// The stores of a file system. All methods may be called from many threads, for one store by one at a time.
pub trait Stores: Send + Sync {
    /// Makes the empty store of a fileset, in the place of one that is there.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Io`].
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>>;

    /// Opens a store to read and write.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and as the engine's opening.
    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>>;

    /// Opens a store to read and write for the owner of `term`, where several nodes share the stores. A former owner's store
    /// gets [`StoreError::Conflict`] from then on. Sets that no nodes share open it.
    ///
    /// # Errors
    /// As [`Stores::open`]; [`StoreError::Conflict`] if an owner with a newer term was there: this
    /// one is late, and nothing was changed.
    fn open_for(&self, fileset: FilesetId, term: Epoch) -> Result<Arc<dyn Store>> {
        let _ = term;
        self.open(fileset)
    }

    /// This process is likely to open a store soon that somebody else has open ([`Stores::open_for`]): reads ahead what that needs.
    /// Changes nothing, and says nothing about who may open it.
    ///
    /// # Errors
    /// As [`Stores::look`]; the opening does without it then.
    fn expect(&self, fileset: FilesetId) -> Result<()> {
        let _ = fileset;
        Ok(())
    }

    /// As [`Stores::open_for`], before it is certain that `term` will be this process's: its owner has closed the store, and is naming
    /// this process the next one. `None` if somebody has opened the store since [`Stores::expect`], or that was not called:
    /// then nothing was changed. Whoever becomes the owner instead opens it in any case.
    ///
    /// # Errors
    /// As [`Stores::open_for`].
    fn open_ahead(&self, fileset: FilesetId, term: Epoch) -> Result<Option<Arc<dyn Store>>> {
        let _ = (fileset, term);
        Ok(None)
    }

    /// Opens a store to read a little of it. Nothing can be committed to it.
    ///
    /// # Errors
    /// As [`Stores::open`].
    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>>;

    /// Removes a store that nobody has open. An absent one is not an error.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn remove(&self, fileset: FilesetId) -> Result<()>;

    /// Bytes that a store occupies which need not be open (0 for an engine that has no file).
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Io`].
    fn size_of(&self, fileset: FilesetId) -> Result<u64>;

    /// The filesets that have a store, whole or not, in order of their numbers.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn list(&self) -> Result<Vec<FilesetId>>;

    /// Begins the frozen copy `number` of a store that is open in this process, by sharing its blocks: as the store is now, while
    /// nobody commits to it. `false` if that is not possible here. The copy is there from [`Stores::finish_frozen`] on.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Io`].
    fn freeze_shared(&self, fileset: FilesetId, number: u64) -> Result<bool> {
        let _ = (fileset, number);
        Err(StoreError::Io("this engine has no frozen copies of stores".to_owned()))
    }

    /// As [`Stores::freeze_shared`], by copying `store`, which is the open one.
    ///
    /// # Errors
    /// As [`Stores::freeze_shared`].
    fn freeze_copied(&self, fileset: FilesetId, number: u64, store: &dyn Store) -> Result<()> {
        let _ = (fileset, number, store);
        Err(StoreError::Io("this engine has no frozen copies of stores".to_owned()))
    }

    /// Verifies a frozen copy that was begun; when this returns it survives a crash.
    ///
    /// # Errors
    /// As [`Stores::open`]; nothing is left of the copy then.
    fn finish_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        let _ = (fileset, number);
        Ok(())
    }

    /// Opens a frozen copy to read it. Nothing can be committed to it.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and as [`Stores::open`].
    fn frozen(&self, fileset: FilesetId, number: u64) -> Result<Arc<dyn Store>> {
        Err(StoreError::Missing(format!("there is no frozen copy {number} of store {fileset}")))
    }

    /// Removes a frozen copy that nobody has open, finished or not. An absent one is not an error.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn remove_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        let _ = (fileset, number);
        Ok(())
    }

    /// Numbers of the frozen copies of a store, finished or not, in order.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn list_frozen(&self, fileset: FilesetId) -> Result<Vec<u64>> {
        let _ = fileset;
        Ok(Vec::new())
    }
}

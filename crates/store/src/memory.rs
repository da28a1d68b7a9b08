//! A store in memory, for tests.
//!
//! Handles are cheap clones over one content. A test "crashes" by dropping everything else and
//! continuing with [`MemoryStore::reopen`]: a commit that returned is there, one that did not is not.
//! With fail points armed, a commit passes `store.commit.before` and `store.commit.after`, so the
//! power can be cut on either side of it; a batch cut at `after` is there although its caller was
//! told that its outcome is not known, as happens to a machine that loses power before it could answer. Once the power
//! is off nothing changes any more; reads go on. Nothing survives the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{Epoch, FailPoints, FilesetId, PowerCut};
use parking_lot::RwLock;

use crate::{Batch, Bytes, Result, Store, StoreError, Stores};

/// A handle to a store in memory; clones share the content and the fail points.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    pairs: Arc<RwLock<BTreeMap<Bytes, Bytes>>>,
    fail_points: FailPoints,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// An empty store whose power hangs on the switch of `fail_points`.
    #[must_use]
    pub fn with_fail_points(fail_points: FailPoints) -> MemoryStore {
        MemoryStore { pairs: Arc::default(), fail_points }
    }

    /// The same content with the power on again, and no fail point armed.
    #[must_use]
    pub fn reopen(&self) -> MemoryStore {
        self.reopen_with_fail_points(FailPoints::none())
    }

    /// A store of its own with the same content.
    #[must_use]
    pub fn copy(&self) -> MemoryStore {
        let pairs = self.pairs.read().clone();
        MemoryStore { pairs: Arc::new(RwLock::new(pairs)), fail_points: FailPoints::none() }
    }

    /// The same content, with its power on another switch: what a machine finds after its crash.
    #[must_use]
    pub fn reopen_with_fail_points(&self, fail_points: FailPoints) -> MemoryStore {
        MemoryStore { pairs: Arc::clone(&self.pairs), fail_points }
    }
}

/// The stores of a file system in memory; clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryStores(
    Arc<RwLock<BTreeMap<FilesetId, MemoryStore>>>,
    Arc<RwLock<BTreeMap<(FilesetId, u64), MemoryStore>>>,
);

impl MemoryStores {
    /// No stores.
    #[must_use]
    pub fn new() -> MemoryStores {
        MemoryStores::default()
    }
}

impl Stores for MemoryStores {
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        let store = MemoryStore::new();
        self.0.write().insert(fileset, store.clone());
        Ok(Arc::new(store))
    }

    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        let store = self.0.read().get(&fileset).cloned();
        let store = store.ok_or_else(|| StoreError::Missing(format!("no store {fileset}")))?;
        Ok(Arc::new(store))
    }

    /// Nobody is kept out here.
    fn open_ahead(&self, fileset: FilesetId, _term: Epoch) -> Result<Option<Arc<dyn Store>>> {
        self.open(fileset).map(Some)
    }

    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.open(fileset)
    }

    fn size_of(&self, _fileset: FilesetId) -> Result<u64> {
        Ok(0)
    }

    fn remove(&self, fileset: FilesetId) -> Result<()> {
        self.0.write().remove(&fileset);
        Ok(())
    }

    fn list(&self) -> Result<Vec<FilesetId>> {
        Ok(self.0.read().keys().copied().collect())
    }

    fn freeze_shared(&self, fileset: FilesetId, number: u64) -> Result<bool> {
        let store = self.0.read().get(&fileset).map(MemoryStore::copy);
        let store = store.ok_or_else(|| StoreError::Missing(format!("no store {fileset}")))?;
        self.1.write().insert((fileset, number), store);
        Ok(true)
    }

    fn frozen(&self, fileset: FilesetId, number: u64) -> Result<Arc<dyn Store>> {
        let store = self.1.read().get(&(fileset, number)).cloned();
        let missing = || StoreError::Missing(format!("no frozen copy {number} of store {fileset}"));
        Ok(Arc::new(store.ok_or_else(missing)?))
    }

    fn remove_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        self.1.write().remove(&(fileset, number));
        Ok(())
    }

    fn list_frozen(&self, fileset: FilesetId) -> Result<Vec<u64>> {
        let all = self.1.read();
        Ok(all.keys().filter(|(of, _)| *of == fileset).map(|(_, number)| *number).collect())
    }
}

impl From<PowerCut> for StoreError {
    fn from(cut: PowerCut) -> StoreError {
        StoreError::Io(cut.to_string())
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.pairs.read().get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let pairs = self.pairs.read();
        let found = pairs
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        Ok(found.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let mut pairs = self.pairs.write();
        self.fail_points.reach("store.commit.before")?;
        if !batch.requires.iter().all(|(key, value)| pairs.get(key) == value.as_ref()) {
            return Err(StoreError::Conflict);
        }
        for (key, change) in &batch.changes {
            match change {
                Some(value) => pairs.insert(key.clone(), value.clone()),
                None => pairs.remove(key),
            };
        }
        self.fail_points
            .reach("store.commit.after")
            .map_err(|cut| StoreError::Unknown(cut.to_string()))
    }

    fn size_bytes(&self) -> Result<u64> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &[u8]) -> Batch {
        Batch { requires: vec![], changes: [(b"key".to_vec(), Some(value.to_vec()))].into() }
    }

    #[test]
    fn without_power_commits_fail_and_change_nothing() {
        let store = MemoryStore::with_fail_points(FailPoints::cut_at("store.commit.before", 1));
        store.commit(&put(b"1")).unwrap();
        for _ in 0..2 {
            assert!(matches!(store.commit(&put(b"2")), Err(StoreError::Io(_))));
        }
        let reopened = store.reopen();
        assert_eq!(reopened.get(b"key").unwrap(), Some(b"1".to_vec()));
        reopened.commit(&put(b"3")).unwrap();
        assert_eq!(reopened.get(b"key").unwrap(), Some(b"3".to_vec()));
    }

    #[test]
    fn a_commit_cut_before_its_answer_is_kept_whole() {
        let store = MemoryStore::with_fail_points(FailPoints::cut_at("store.commit.after", 0));
        assert!(matches!(store.commit(&put(b"1")), Err(StoreError::Unknown(_))));
        assert_eq!(store.reopen().get(b"key").unwrap(), Some(b"1".to_vec()));
    }
}

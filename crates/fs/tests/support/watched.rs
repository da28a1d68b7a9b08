//! A store that remembers what was committed, and counts how often it was read.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_fs::key::{self, Key};
use forebay_store::memory::MemoryStore;
use forebay_store::{Batch, Bytes, Result, Store};
use parking_lot::Mutex;

pub struct WatchedStore {
    inner: MemoryStore,
    batches: Mutex<Vec<Batch>>,
    scans: AtomicU64,
    gets: AtomicU64,
    gets_at_once: AtomicU64,
}

impl WatchedStore {
    pub fn new(inner: MemoryStore) -> WatchedStore {
        WatchedStore {
            inner,
            batches: Mutex::default(),
            scans: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            gets_at_once: AtomicU64::new(0),
        }
    }

    /// The batches committed since the last call.
    pub fn take(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.batches.lock())
    }

    /// Scans since the last call.
    pub fn take_scans(&self) -> u64 {
        self.scans.swap(0, Ordering::Relaxed)
    }

    /// Reads of one key, and of many at once, since the last call.
    pub fn take_gets(&self) -> (u64, u64) {
        (self.gets.swap(0, Ordering::Relaxed), self.gets_at_once.swap(0, Ordering::Relaxed))
    }

    /// The keys changed since the last call.
    pub fn take_keys(&self) -> Vec<Key> {
        let batches = self.take();
        batches
            .iter()
            .flat_map(|batch| batch.changes.keys())
            // The number of the fileset comes first (`WholeStores`); the term is in every batch.
            .map(|key| key::parse(&key[2..]).expect("every key has a meaning"))
            .filter(|key| *key != Key::Term)
            .collect()
    }
}

impl Store for WatchedStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.inner.get(key)
    }

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        self.gets_at_once.fetch_add(1, Ordering::Relaxed);
        self.inner.get_all(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.inner.scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.inner.commit(batch)?;
        self.batches.lock().push(batch.clone());
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        self.inner.size_bytes()
    }
}

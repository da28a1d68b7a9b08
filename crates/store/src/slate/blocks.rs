//! Blocks of databases in memory: the least recently used go first, and all together have a limit in bytes.

use async_trait::async_trait;
use lru::LruCache;
use parking_lot::Mutex;
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

/// What the bookkeeping of an entry takes, about.
const ENTRY_BYTES: usize = 128;

/// Blocks, indexes and filters of all databases of a process.
pub(super) struct Blocks {
    bytes_max: usize,
    held: Mutex<Held>,
}

struct Held {
    entries: LruCache<CachedKey, CachedEntry>,
    bytes: usize,
}

impl Blocks {
    pub fn new(bytes_max: usize) -> Blocks {
        Blocks { bytes_max, held: Mutex::new(Held { entries: LruCache::unbounded(), bytes: 0 }) }
    }

    fn get(&self, key: &CachedKey) -> Option<CachedEntry> {
        self.held.lock().entries.get(key).cloned()
    }
}

fn cost(entry: &CachedEntry) -> usize {
    entry.size() + ENTRY_BYTES
}

#[async_trait]
impl DbCache for Blocks {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn insert(&self, key: CachedKey, entry: CachedEntry) {
        let mut held = self.held.lock();
        held.bytes += cost(&entry);
        if let Some(old) = held.entries.put(key, entry) {
            held.bytes = held.bytes.saturating_sub(cost(&old));
        }
        while held.bytes > self.bytes_max {
            let Some((_, oldest)) = held.entries.pop_lru() else { break };
            held.bytes = held.bytes.saturating_sub(cost(&oldest));
        }
    }

    async fn remove(&self, key: &CachedKey) {
        let mut held = self.held.lock();
        if let Some(old) = held.entries.pop(key) {
            held.bytes = held.bytes.saturating_sub(cost(&old));
        }
    }

    fn entry_count(&self) -> u64 {
        self.held.lock().entries.len() as u64
    }
}

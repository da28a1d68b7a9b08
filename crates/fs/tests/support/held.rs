//! A store whose reads a test can hold up, as one across a network may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_store::memory::MemoryStore;
use forebay_store::{Batch, Bytes, Result, Store};
use parking_lot::{Condvar, Mutex};

/// Whether a read is held up before the store was asked, or after it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

#[derive(Default)]
struct Held {
    /// The next read that begins at a key of this kind, its first byte, is held up.
    next: Option<(u8, When)>,
    is_held: bool,
    is_let_go: bool,
}

/// A store in memory whose reads can be held up.
pub struct HeldStore {
    inner: MemoryStore,
    held: Mutex<Held>,
    changed: Condvar,
    /// Longest pause before each read, in microseconds.
    pause_us: u64,
    reads: AtomicU64,
}

impl HeldStore {
    pub fn new(inner: MemoryStore) -> HeldStore {
        HeldStore {
            inner,
            held: Mutex::default(),
            changed: Condvar::new(),
            pause_us: 0,
            reads: AtomicU64::new(0),
        }
    }

    /// Each read takes up to so many microseconds.
    pub fn slow(inner: MemoryStore, pause_us: u64) -> HeldStore {
        HeldStore { pause_us, ..HeldStore::new(inner) }
    }

    /// Holds the next read up that begins at a key of this kind.
    pub fn hold(&self, kind: u8, when: When) {
        *self.held.lock() = Held { next: Some((kind, when)), ..Held::default() };
    }

    /// Waits until a read is held up.
    pub fn wait_until_held(&self, limit: Duration) {
        let mut held = self.held.lock();
        while !held.is_held {
            let waited = self.changed.wait_for(&mut held, limit);
            assert!(!waited.timed_out(), "nobody reads from the store");
        }
    }

    /// Lets the read go on.
    pub fn let_go(&self) {
        self.held.lock().is_let_go = true;
        self.changed.notify_all();
    }

    fn read<T>(&self, key: &[u8], read: impl Fn() -> T) -> T {
        if self.pause_us > 0 {
            // No two reads in a row take equally long.
            let number = self.reads.fetch_add(1, Ordering::Relaxed);
            let pause = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.pause_us;
            std::thread::sleep(Duration::from_micros(pause));
        }
        // The number of the fileset comes first (`WholeStores`).
        let found = key.get(2).copied();
        let mut held = self.held.lock();
        let Some((_, when)) = held.next.take_if(|(kind, _)| found == Some(*kind)) else {
            drop(held);
            return read();
        };
        let answer = (when == When::After).then(&read);
        held.is_held = true;
        self.changed.notify_all();
        while !held.is_let_go {
            self.changed.wait(&mut held);
        }
        drop(held);
        answer.unwrap_or_else(read)
    }
}

impl Store for HeldStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(key, || self.inner.get(key))
    }

    fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        let first = keys.first().map(Vec::as_slice).unwrap_or_default();
        self.read(first, || self.inner.get_all(keys))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.read(from, || self.inner.scan(from, to, limit))
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.inner.commit(batch)
    }

    fn size_bytes(&self) -> Result<u64> {
        self.inner.size_bytes()
    }
}

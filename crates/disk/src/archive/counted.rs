//! A store whose requests are counted: stores charge for them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bucket::{Bucket, BucketError, Part, Result, Tail};
use crate::Requests;

/// A store with its counters.
pub(super) struct CountedBucket {
    inner: Box<dyn Bucket>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    removals: AtomicU64,
    failures: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counters {
    /// Counts a request, and whether it failed. That there is no object of a name is an answer.
    fn note<T>(&self, kind: &AtomicU64, outcome: Result<T>) -> Result<T> {
        kind.fetch_add(1, Ordering::Relaxed);
        let has_failed = !matches!(outcome, Ok(_) | Err(BucketError::NotFound));
        self.failures.fetch_add(u64::from(has_failed), Ordering::Relaxed);
        outcome
    }

    fn sends(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl CountedBucket {
    pub fn new(inner: Box<dyn Bucket>) -> CountedBucket {
        CountedBucket { inner, counters: Arc::default() }
    }

    /// Requests since it was opened.
    pub fn requests(&self) -> Requests {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: read(&self.counters.puts),
            gets: read(&self.counters.gets),
            lists: read(&self.counters.lists),
            removals: read(&self.counters.removals),
            failures: read(&self.counters.failures),
            sent_bytes: read(&self.counters.sent_bytes),
            received_bytes: read(&self.counters.received_bytes),
        }
    }
}

impl Bucket for CountedBucket {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.counters.sends(bytes.len());
        self.counters.note(&self.counters.puts, self.inner.put(name, bytes))
    }

    fn begin(&self, name: &str) -> Result<Box<dyn Part>> {
        let inner = self.counters.note(&self.counters.puts, self.inner.begin(name))?;
        Ok(Box::new(CountedPart { inner, counters: Arc::clone(&self.counters) }))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
        let found = self.counters.note(&self.counters.gets, self.inner.get(name, range))?;
        self.counters.received(found.len());
        Ok(found)
    }

    fn tail(&self, name: &str, length: u64) -> Result<Tail> {
        let found = self.counters.note(&self.counters.gets, self.inner.tail(name, length))?;
        self.counters.received(found.bytes.len());
        Ok(found)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.counters.note(&self.counters.removals, self.inner.remove(name))
    }

    /// A long list takes several requests, and counts as one.
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str, u64) -> bool) -> Result<()> {
        self.counters.note(&self.counters.lists, self.inner.list(prefix, visit))
    }

    fn clear_uploads(&self) -> Result<()> {
        self.inner.clear_uploads()
    }
}

struct CountedPart {
    inner: Box<dyn Part>,
    counters: Arc<Counters>,
}

impl Part for CountedPart {
    fn put(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.counters.sends(bytes.len());
        self.counters.note(&self.counters.puts, self.inner.put(bytes))
    }

    fn complete(self: Box<Self>) -> Result<()> {
        self.counters.note(&self.counters.puts, self.inner.complete())
    }
}

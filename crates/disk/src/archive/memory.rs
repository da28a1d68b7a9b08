//! An archive in memory, for tests: it outlives crashes, counts what is asked of it, and fails or lies on purpose.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::FailPoints;
use parking_lot::Mutex;

use super::bucket::{Bucket, BucketError, Part, Result, Tail};

/// What a store does wrong from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// Nothing.
    #[default]
    None,
    /// It answers that it has taken an object, and has not.
    LosesPuts,
    /// It keeps all but the last byte.
    CutsPuts,
    /// It changes a byte in the middle.
    SpoilsPuts,
}

#[derive(Default)]
struct Contents {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    is_away: AtomicBool,
    gets: AtomicU64,
    lie: Mutex<Lie>,
}

/// A store in memory; clones share what it holds.
#[derive(Clone, Default)]
pub struct MemoryBucket {
    contents: Arc<Contents>,
    fail_points: FailPoints,
}

impl MemoryBucket {
    /// The same store, whose calls pass `archive.put`, `archive.get` and `archive.remove`: a call fails once the power is off.
    #[must_use]
    pub fn with_fail_points(&self, fail_points: FailPoints) -> MemoryBucket {
        MemoryBucket { fail_points, ..self.clone() }
    }

    /// Has it answer, or not.
    pub fn set_away(&self, is_away: bool) {
        self.contents.is_away.store(is_away, Ordering::Release);
    }

    /// Has it do something wrong.
    pub fn set_lie(&self, lie: Lie) {
        *self.contents.lie.lock() = lie;
    }

    /// Names and sizes of what it holds.
    #[must_use]
    pub fn names(&self) -> Vec<(String, usize)> {
        let objects = self.contents.objects.lock();
        objects.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    }

    /// Changes an object behind everybody's back.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(bytes) = self.contents.objects.lock().get_mut(name) {
            change(bytes);
        }
    }

    /// Has an object vanish.
    pub fn lose(&self, name: &str) {
        self.contents.objects.lock().remove(name);
    }

    /// Objects, or ranges of them, that were read.
    #[must_use]
    pub fn gets(&self) -> u64 {
        self.contents.gets.load(Ordering::Relaxed)
    }

    fn answers(&self, point: &str) -> Result<()> {
        if self.contents.is_away.load(Ordering::Acquire) {
            return Err(BucketError::Away("it does not answer".to_owned()));
        }
        self.fail_points.reach(point).map_err(|cut| BucketError::Away(cut.to_string()))
    }

    fn find(&self, name: &str) -> Result<Vec<u8>> {
        self.answers("archive.get")?;
        self.contents.gets.fetch_add(1, Ordering::Relaxed);
        self.contents.objects.lock().get(name).cloned().ok_or(BucketError::NotFound)
    }
}

impl Bucket for MemoryBucket {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.answers("archive.put")?;
        let mut bytes = bytes.to_vec();
        match *self.contents.lie.lock() {
            Lie::None => {}
            Lie::LosesPuts => return Ok(()),
            Lie::CutsPuts => drop(bytes.pop()),
            Lie::SpoilsPuts => {
                let middle = bytes.len() / 2;
                if let Some(byte) = bytes.get_mut(middle) {
                    *byte ^= 1;
                }
            }
        }
        self.contents.objects.lock().insert(name.to_owned(), bytes);
        Ok(())
    }

    fn begin(&self, name: &str) -> Result<Box<dyn Part>> {
        self.answers("archive.put")?;
        Ok(Box::new(MemoryPart { bucket: self.clone(), name: name.to_owned(), bytes: Vec::new() }))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
        let bytes = self.find(name)?;
        let Some(range) = range else { return Ok(bytes) };
        let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(bytes.len());
        let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(end);
        Ok(bytes[start..end].to_vec())
    }

    fn tail(&self, name: &str, length: u64) -> Result<Tail> {
        let bytes = self.find(name)?;
        let from = bytes.len().saturating_sub(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(Tail { bytes: bytes[from..].to_vec(), size: bytes.len() as u64 })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.answers("archive.remove")?;
        self.contents.objects.lock().remove(name);
        Ok(())
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str, u64) -> bool) -> Result<()> {
        self.answers("archive.get")?;
        let found = self.names();
        let mut fitting = found.iter().filter(|(name, _)| name.starts_with(prefix));
        let _ = fitting.all(|(name, size)| visit(name, *size as u64));
        Ok(())
    }
}

struct MemoryPart {
    bucket: MemoryBucket,
    name: String,
    bytes: Vec<u8>,
}

impl Part for MemoryPart {
    fn put(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.bucket.answers("archive.put")?;
        self.bytes.extend(bytes);
        Ok(())
    }

    fn complete(self: Box<Self>) -> Result<()> {
        self.bucket.put(&self.name, &self.bytes)
    }
}

//! A disk and a store that call a test back before they do certain things, and are transparent otherwise.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_base::{ObjectId, Timestamp};
use forebay_disk::{
    Allocate, Capacity, Description, Disk, Object, ObjectAttributes, Result, Seek, Sync,
};
use forebay_store::memory::MemoryStore;
use forebay_store::{Batch, Bytes, Store};

/// What the disk is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    Write,
    Allocate,
    Copy,
    SyncDisk,
    Sync,
}

type Tap = Arc<dyn Fn(Step) + Send + std::marker::Sync>;

/// Wraps a disk.
pub struct TappedDisk {
    inner: Arc<dyn Disk>,
    tap: Tap,
}

impl TappedDisk {
    pub fn new(
        inner: Arc<dyn Disk>,
        tap: impl Fn(Step) + Send + std::marker::Sync + 'static,
    ) -> TappedDisk {
        TappedDisk { inner, tap: Arc::new(tap) }
    }

    fn wrap(&self, inner: Arc<dyn Object>) -> Arc<dyn Object> {
        Arc::new(TappedObject { inner, tap: Arc::clone(&self.tap) })
    }
}

struct TappedObject {
    inner: Arc<dyn Object>,
    tap: Tap,
}

impl Object for TappedObject {
    fn number(&self, id: ObjectId) {
        self.inner.number(id);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        (self.tap)(Step::Write);
        self.inner.write_at(offset, data)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        (self.tap)(Step::Write);
        self.inner.append(data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.inner.set_size(size)
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        (self.tap)(Step::Allocate);
        self.inner.allocate(what, offset, length)
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        self.inner.seek(target, offset)
    }

    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        (self.tap)(Step::Copy);
        self.inner.copy_from(source, source_offset, offset, length)
    }

    fn sync(&self, what: Sync) -> Result<()> {
        (self.tap)(Step::Sync);
        self.inner.sync(what)
    }

    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        self.inner.set_modified(modified)
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        self.inner.attributes()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.inner.file()
    }

    fn has_other_writers(&self) -> bool {
        self.inner.has_other_writers()
    }
}

impl Disk for TappedDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        Ok(self.wrap(self.inner.create_fresh()?))
    }

    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()> {
        self.inner.publish(id, object)
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        (self.tap)(Step::Open);
        Ok(self.wrap(self.inner.open(id)?))
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        self.inner.remove(id)
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        self.inner.attributes(id)
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.inner.list(visit)
    }

    fn sync(&self) -> Result<()> {
        (self.tap)(Step::SyncDisk);
        self.inner.sync()
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        self.inner.keep_reserve(bytes)
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        self.inner.give_reserve(bytes)
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

/// A store that calls back before each commit.
pub struct TappedStore {
    inner: MemoryStore,
    tap: Box<dyn Fn() + Send + std::marker::Sync>,
}

impl TappedStore {
    pub fn new(
        inner: MemoryStore,
        tap: impl Fn() + Send + std::marker::Sync + 'static,
    ) -> TappedStore {
        TappedStore { inner, tap: Box::new(tap) }
    }
}

impl Store for TappedStore {
    fn get(&self, key: &[u8]) -> forebay_store::Result<Option<Bytes>> {
        self.inner.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> forebay_store::Result<Vec<(Bytes, Bytes)>> {
        self.inner.scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> forebay_store::Result<()> {
        (self.tap)();
        self.inner.commit(batch)
    }

    fn size_bytes(&self) -> forebay_store::Result<u64> {
        self.inner.size_bytes()
    }
}

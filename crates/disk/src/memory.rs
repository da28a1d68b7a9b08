//! A disk in memory, for tests; it can be crashed.
//!
//! Handles are cheap clones over one content. Objects are sparse, in pages of 4 KiB, so sizes of many
//! TiB cost nothing until written.
//!
//! **Crashes.** [`MemoryDisk::crash_process`] leaves what a killed process leaves, and
//! [`MemoryDisk::crash_machine`] what a machine without power may leave: of everything that no sync
//! covered, each page, size, publication and removal is kept or lost, as a seed decides. It is as
//! forgetful as the contract allows: [`Sync::Data`] covers neither the name nor a size that shrank.
//! Handles opened before a crash then fail, as their process would be gone.
//!
//! With fail points armed, the calls that change something pass `disk.create`, `disk.write`,
//! `disk.set_size`, `disk.allocate`, `disk.copy`, `disk.sync`, `disk.publish`, `disk.remove` and
//! `disk.sync_all`. Once the power is off they fail and change nothing; reads go on. A test then
//! crashes the disk and continues with [`MemoryDisk::reopen`].
//!
//! A full disk refuses a write as a whole, before any byte of it.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::seed::Dice;
use forebay_base::{Clock, FailPoints, ObjectId};
use parking_lot::Mutex;

use self::content::{Content, PAGE_BYTES};
use crate::range::{self, end_of};
use crate::{
    Allocate, Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result, Seek, Sync,
};

mod content;

/// Objects that the disk claims to have room for; it does not count them.
const OBJECTS_MAX: u64 = 1 << 40;

#[derive(Debug)]
struct Node {
    /// Its number, once it has one.
    id: Option<ObjectId>,
    content: Content,
    handles: u64,
    /// Whether it has its name, and whether it has it after a crash of the machine too.
    named: bool,
    durably_named: bool,
}

impl Node {
    /// Whether anything leads to it, so that its pages count.
    fn is_live(&self) -> bool {
        self.named || self.handles > 0
    }
}

/// All that the disk holds. A node lives as long as it has a name, a durable name, or a handle.
#[derive(Debug, Default)]
struct Contents {
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    /// Objects that are neither published nor gone.
    fresh: BTreeMap<ObjectId, u64>,
    names: BTreeMap<ObjectId, u64>,
    /// The names that a crash of the machine leaves for certain.
    durable_names: BTreeMap<ObjectId, u64>,
    used_pages: u64,
    /// Pages kept aside.
    reserved_pages: u64,
    /// Counts the crashes: handles of an earlier life are dead.
    life: u64,
}

/// A handle to a disk in memory; clones share the content, the fail points and the clock.
#[derive(Clone)]
pub struct MemoryDisk {
    contents: Arc<Mutex<Contents>>,
    capacity_bytes: u64,
    clock: Arc<dyn Clock>,
    fail_points: FailPoints,
    /// Crashes of the machine.
    lives: Arc<AtomicU64>,
}

impl MemoryDisk {
    /// An empty disk of `capacity_bytes`; `clock` gives the times of changes.
    #[must_use]
    pub fn new(capacity_bytes: u64, clock: Arc<dyn Clock>) -> MemoryDisk {
        MemoryDisk::with_fail_points(capacity_bytes, clock, FailPoints::none())
    }

    /// Like [`MemoryDisk::new`], with its power on the switch of `fail_points`.
    #[must_use]
    pub fn with_fail_points(
        capacity_bytes: u64,
        clock: Arc<dyn Clock>,
        fail_points: FailPoints,
    ) -> MemoryDisk {
        let (contents, lives) = (Arc::default(), Arc::default());
        MemoryDisk { contents, capacity_bytes, clock, fail_points, lives }
    }

    /// The same content with the power on again, and no fail point armed.
    #[must_use]
    pub fn reopen(&self) -> MemoryDisk {
        self.reopen_with_fail_points(FailPoints::none())
    }

    /// The same content with its power on another switch.
    #[must_use]
    pub fn reopen_with_fail_points(&self, fail_points: FailPoints) -> MemoryDisk {
        MemoryDisk { fail_points, ..self.clone() }
    }

    /// Leaves what a killed process leaves: published objects with every byte, and no fresh ones.
    pub fn crash_process(&self) {
        let mut contents = self.contents.lock();
        contents.drop_handles();
        contents.count_pages();
    }

    /// Leaves what a machine that lost power may leave, as `seed` decides (see the module's head).
    pub fn crash_machine(&self, seed: u64) {
        let mut contents = self.contents.lock();
        let mut dice = Dice::of(seed);
        self.lives.fetch_add(1, Ordering::Relaxed);
        contents.crash_names(&mut dice);
        contents.drop_handles();
        for node in contents.nodes.values_mut() {
            node.content.crash(&mut dice);
        }
        contents.count_pages();
    }

    fn power(&self, point: &str) -> Result<()> {
        self.fail_points.reach(point).map_err(|_| DiskError::Io("power is off".to_owned()))
    }

    fn handle(&self, contents: &mut Contents, node: u64) -> Arc<dyn Object> {
        if let Some(node) = contents.nodes.get_mut(&node) {
            node.handles += 1;
        }
        Arc::new(MemoryObject { disk: self.clone(), node, life: contents.life })
    }

    /// Whether `pages` more fit.
    fn check_space(&self, contents: &Contents, pages: u64) -> Result<()> {
        let fits = pages <= self.free_pages(contents);
        if fits { Ok(()) } else { Err(DiskError::Full) }
    }

    fn free_pages(&self, contents: &Contents) -> u64 {
        let taken = contents.used_pages.saturating_add(contents.reserved_pages);
        (self.capacity_bytes / PAGE_BYTES).saturating_sub(taken)
    }
}

impl Contents {
    /// Called when a node may have lost what led to it: its pages are free then, and it is forgotten
    /// unless a crash may bring it back.
    fn release(&mut self, id: u64) {
        let Some(node) = self.nodes.get(&id).filter(|node| !node.is_live()) else { return };
        self.used_pages -= node.content.page_count();
        if !node.durably_named {
            self.nodes.remove(&id);
        }
    }

    /// Called when the durable names of `nodes` are gone or taken over.
    fn forget_durable(&mut self, nodes: impl IntoIterator<Item = u64>) {
        for id in nodes {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.durably_named = false;
                if !node.is_live() {
                    self.nodes.remove(&id);
                }
            }
        }
    }

    /// Keeps or undoes each publication and removal that no sync covered.
    fn crash_names(&mut self, dice: &mut Dice) {
        let mut ids: Vec<ObjectId> =
            self.names.keys().chain(self.durable_names.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let (live, durable) = (self.names.get(&id), self.durable_names.get(&id));
            if live == durable {
                continue;
            }
            match if dice.toss() { live } else { durable }.copied() {
                Some(node) => self.names.insert(id, node),
                None => self.names.remove(&id),
            };
        }
        self.durable_names = self.names.clone();
        let Contents { nodes, names, .. } = self;
        for (id, node) in nodes {
            node.named = node.id.is_some_and(|number| names.get(&number) == Some(id));
            node.durably_named = node.named;
        }
    }

    /// Closes all handles; what has no name, and cannot get it back, is gone.
    fn drop_handles(&mut self) {
        self.life += 1;
        self.fresh.clear();
        self.nodes.retain(|_, node| node.named || node.durably_named);
        self.nodes.values_mut().for_each(|node| node.handles = 0);
    }

    fn count_pages(&mut self) {
        let live = self.nodes.values().filter(|node| node.is_live());
        self.used_pages = live.map(|node| node.content.page_count()).sum();
    }
}

struct MemoryObject {
    disk: MemoryDisk,
    node: u64,
    life: u64,
}

impl MemoryObject {
    fn with<T>(&self, work: impl FnOnce(&mut Contents, u64) -> Result<T>) -> Result<T> {
        let mut contents = self.disk.contents.lock();
        if contents.life != self.life || !contents.nodes.contains_key(&self.node) {
            return Err(DiskError::Io("the object was opened before a crash".to_owned()));
        }
        work(&mut contents, self.node)
    }

    fn read<T>(&self, work: impl FnOnce(&Content) -> T) -> Result<T> {
        self.with(|contents, node| Ok(work(&contents.nodes[&node].content)))
    }

    /// Changes the content, if the `pages` that it adds fit, and keeps the count of pages.
    fn change(
        &self,
        point: &str,
        pages: impl FnOnce(&Content) -> u64,
        work: impl FnOnce(&mut Content),
    ) -> Result<()> {
        self.with(|contents, node| {
            self.disk.power(point)?;
            self.disk.check_space(contents, pages(&contents.nodes[&node].content))?;
            let now = self.disk.clock.now();
            let Some(node) = contents.nodes.get_mut(&node) else { return Err(DiskError::Invalid) };
            let before = node.content.page_count();
            work(&mut node.content);
            node.content.touch(now);
            contents.used_pages = contents.used_pages + node.content.page_count() - before;
            Ok(())
        })
    }
}

impl Object for MemoryObject {
    fn number(&self, id: ObjectId) {
        // One that a crash has taken gets no number.
        let _ = self.with(|contents, node| {
            if let Some(numbered) = contents.nodes.get_mut(&node) {
                numbered.id = Some(id);
            }
            contents.fresh.insert(id, node);
            Ok(())
        });
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(|content| content.read(offset, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let length = data.len() as u64;
        end_of(offset, length)?;
        self.change(
            "disk.write",
            |content| content.missing_pages(offset, length),
            |content| content.write(offset, data),
        )?;
        Ok(data.len())
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        let length = data.len() as u64;
        self.change(
            "disk.write",
            |content| content.missing_pages(content.size(), length),
            |content| {
                let end = content.size();
                content.write(end, data);
            },
        )?;
        Ok(data.len())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        end_of(size, 0)?;
        self.change("disk.set_size", |_| 0, |content| content.set_size(size))
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        let end = end_of(offset, length)?;
        if length == 0 {
            return Err(DiskError::Invalid);
        }
        let reserves = what != Allocate::PunchHole;
        let zeroes = !matches!(what, Allocate::Extend | Allocate::KeepSize);
        let grows = matches!(what, Allocate::Extend | Allocate::ZeroRange);
        self.change(
            "disk.allocate",
            |content| if reserves { content.missing_pages(offset, length) } else { 0 },
            |content| {
                if zeroes {
                    content.punch(offset, length);
                }
                if reserves {
                    content.reserve(offset, length);
                }
                if grows && content.size() < end {
                    content.set_size(end);
                }
            },
        )
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        self.read(|content| content.seek(target, offset))?
    }

    /// Copies from an object of any disk.
    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        end_of(offset, length)?;
        self.disk.power("disk.copy")?;
        range::copy((source, source_offset), (self, offset), length)
    }

    fn sync(&self, what: Sync) -> Result<()> {
        self.with(|contents, node| {
            self.disk.power("disk.sync")?;
            let Contents { nodes, durable_names, .. } = contents;
            let Some(synced) = nodes.get_mut(&node) else { return Err(DiskError::Invalid) };
            synced.content.sync(what);
            if what == Sync::All && synced.named {
                synced.durably_named = true;
                let before = synced.id.and_then(|id| durable_names.insert(id, node));
                contents.forget_durable(before.filter(|old| *old != node));
            }
            Ok(())
        })
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        self.read(attributes_of)
    }

    fn set_modified(&self, modified: forebay_base::Timestamp) -> Result<()> {
        self.disk.power("disk.set_modified")?;
        self.with(|contents, node| {
            let Some(of) = contents.nodes.get_mut(&node) else { return Err(DiskError::Invalid) };
            of.content.touch(modified);
            Ok(())
        })
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_other_writers(&self) -> bool {
        false
    }
}

fn attributes_of(content: &Content) -> ObjectAttributes {
    ObjectAttributes {
        size: content.size(),
        allocated_bytes: content.page_count() * PAGE_BYTES,
        modified: content.modified(),
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        let mut contents = self.disk.contents.lock();
        if contents.life != self.life {
            return;
        }
        if let Some(node) = contents.nodes.get_mut(&self.node) {
            node.handles -= 1;
            if node.handles == 0 {
                if let Some(id) = node.id
                    && contents.fresh.get(&id) == Some(&self.node)
                {
                    contents.fresh.remove(&id);
                }
                contents.release(self.node);
            }
        }
    }
}

impl Disk for MemoryDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        let mut contents = self.contents.lock();
        self.power("disk.create")?;
        self.check_space(&contents, 1)?;
        let node = contents.next_node;
        contents.next_node += 1;
        let mut content = Content::default();
        content.touch(self.clock.now());
        let made = Node { id: None, content, handles: 0, named: false, durably_named: false };
        contents.nodes.insert(node, made);
        Ok(self.handle(&mut contents, node))
    }

    /// Finds the fresh object by its number.
    fn publish(&self, id: ObjectId, _object: &dyn Object) -> Result<()> {
        let mut contents = self.contents.lock();
        self.power("disk.publish")?;
        if contents.names.contains_key(&id) {
            return Err(DiskError::Exists(id));
        }
        let node = contents.fresh.remove(&id).ok_or(DiskError::Invalid)?;
        contents.names.insert(id, node);
        if let Some(node) = contents.nodes.get_mut(&node) {
            node.named = true;
        }
        Ok(())
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let mut contents = self.contents.lock();
        let node = *contents.names.get(&id).ok_or(DiskError::NotFound(id))?;
        Ok(self.handle(&mut contents, node))
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        let mut contents = self.contents.lock();
        self.power("disk.remove")?;
        if let Some(node) = contents.names.remove(&id) {
            if let Some(node) = contents.nodes.get_mut(&node) {
                node.named = false;
            }
            contents.release(node);
        }
        Ok(())
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        let contents = self.contents.lock();
        let node = contents.names.get(&id).and_then(|node| contents.nodes.get(node));
        Ok(node.map(|node| attributes_of(&node.content)))
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        let ids: Vec<ObjectId> = self.contents.lock().names.keys().copied().collect();
        for id in ids {
            if !visit(id) {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut contents = self.contents.lock();
        self.power("disk.sync_all")?;
        let durable_names = contents.names.clone();
        let before = std::mem::replace(&mut contents.durable_names, durable_names);
        contents.forget_durable(before.into_values());
        for node in contents.nodes.values_mut() {
            node.content.sync(Sync::All);
            node.durably_named = node.named;
        }
        Ok(())
    }

    fn capacity(&self) -> Result<Capacity> {
        let contents = self.contents.lock();
        let free_bytes = self.free_pages(&contents) * PAGE_BYTES;
        let count = contents.names.len() as u64 + contents.fresh.len() as u64;
        Ok(Capacity {
            total_bytes: self.capacity_bytes,
            free_bytes,
            available_bytes: free_bytes,
            total_objects: OBJECTS_MAX,
            free_objects: OBJECTS_MAX.saturating_sub(count),
        })
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        let mut contents = self.contents.lock();
        contents.reserved_pages = 0;
        contents.reserved_pages = bytes.div_ceil(PAGE_BYTES).min(self.free_pages(&contents));
        Ok(contents.reserved_pages * PAGE_BYTES)
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        let mut contents = self.contents.lock();
        let given = bytes.div_ceil(PAGE_BYTES).min(contents.reserved_pages);
        contents.reserved_pages -= given;
        given * PAGE_BYTES
    }

    fn describe(&self) -> Description {
        Description {
            location: "memory".to_owned(),
            kind: "memory".to_owned(),
            advice: vec!["contents are lost when the process ends; for tests only".to_owned()],
        }
    }

    fn life(&self) -> u64 {
        self.lives.load(Ordering::Relaxed)
    }
}

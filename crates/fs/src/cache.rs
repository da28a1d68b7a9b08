//! The inode cache: inodes in memory, bounded by a setting.
//!
//! Sharded by inode number. When the cache costs more than `inode_cache_max`, inodes that are not in
//! use are dropped in clock order (used ones get a second round), and large directories lose their
//! cached entries.
//!
//! The cache also counts how often the kernel was told of each inode. The count stays when the inode is
//! dropped from memory: an inode that then loses its last name must live until the kernel forgets it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_base::{FilesetId, Ino};
use hashbrown::HashTable;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use crate::directory::cost_of_entries;
use crate::error::Result;
use crate::inode::{Body, Inode, State};

const SHARDS: usize = 64;

/// Memory of one cached inode without its directory entries, in bytes (measured; see
/// docs/benchmarks.md).
pub const INODE_COST: usize = size_of::<Inode>() + 56;

#[derive(Default)]
struct Shard {
    inodes: Inodes,
    clock: VecDeque<Ino>,
    /// How often the kernel was told of inodes that are not cached.
    kernel_refs: FxHashMap<Ino, u64>,
    /// Inodes that are being read.
    loading: Vec<Ino>,
}

/// Inodes by number. A table of pointers alone takes half the room of a map with the numbers beside them.
#[derive(Default)]
struct Inodes(HashTable<Arc<Inode>>);

fn hash(ino: Ino) -> u64 {
    // Numbers are consecutive: spread them over all bits (Fibonacci hashing, Knuth, TAOCP 3, 6.4).
    ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Inodes {
    fn get(&self, ino: Ino) -> Option<&Arc<Inode>> {
        self.0.find(hash(ino), |inode| inode.ino == ino)
    }

    fn insert(&mut self, inode: Arc<Inode>) {
        self.0.insert_unique(hash(inode.ino), inode, |inode| hash(inode.ino));
    }

    fn remove(&mut self, ino: Ino) -> Option<Arc<Inode>> {
        let found = self.0.find_entry(hash(ino), |inode| inode.ino == ino).ok()?;
        Some(found.remove().0)
    }
}

/// The shard of an inode.
fn place(ino: Ino) -> usize {
    usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0)
}

/// An inode that is being read; whatever becomes of that, those who wait for it look again.
struct Loading<'a> {
    cache: &'a InodeCache,
    ino: Ino,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.shard(self.ino).lock().loading.retain(|ino| *ino != self.ino);
        self.cache.loaded[place(self.ino)].notify_all();
    }
}

pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// For those who wait until an inode is read, by shard.
    loaded: Vec<Condvar>,
    cost: AtomicUsize,
    cost_max: usize,
    next_shard: AtomicUsize,
}

impl InodeCache {
    pub fn new(cost_max: usize) -> InodeCache {
        InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            loaded: (0..SHARDS).map(|_| Condvar::new()).collect(),
            cost: AtomicUsize::new(0),
            cost_max,
            next_shard: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[place(ino)]
    }

    /// The cached inode, or the one that `load` makes. One of those who want the inode reads it, so that it exists once;
    /// the others wait for that. `load` runs without a lock: it may take long, and must keep no other inode waiting.
    pub fn get_or_load(
        &self,
        ino: Ino,
        load: impl FnOnce() -> Result<State>,
    ) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        loop {
            if let Some(inode) = shard.inodes.get(ino) {
                inode.used.store(true, Ordering::Relaxed);
                return Ok(Arc::clone(inode));
            }
            if !shard.loading.contains(&ino) {
                break;
            }
            self.loaded[place(ino)].wait(&mut shard);
        }
        shard.loading.push(ino);
        drop(shard);
        let loading = Loading { cache: self, ino };
        let inode = Arc::new(Inode::new(ino, load()?));
        self.insert_into(&mut self.shard(ino).lock(), &inode);
        drop(loading);
        self.shrink();
        Ok(inode)
    }

    /// Caches those of `inos` that are not cached and that nobody else reads, all of them read by one `load`; what that
    /// does not give stays to be read alone. As in [`InodeCache::get_or_load`], `load` runs without a lock.
    pub fn load_all(
        &self,
        inos: impl Iterator<Item = Ino>,
        load: impl FnOnce(&[Ino]) -> Vec<Option<State>>,
    ) {
        // More would be dropped again before anybody looks at them.
        let most = self.cost_max / 4 / INODE_COST;
        let inos = inos.take(most);
        let mut loading: Vec<Loading<'_>> =
            inos.filter_map(|ino| self.begin_loading(ino)).collect();
        loading.sort_unstable_by_key(|loading| loading.ino);
        let wanted: Vec<Ino> = loading.iter().map(|loading| loading.ino).collect();
        if wanted.is_empty() {
            return;
        }
        for (ino, state) in wanted.iter().zip(load(&wanted)) {
            if let Some(state) = state {
                let inode = Arc::new(Inode::new(*ino, state));
                self.insert_into(&mut self.shard(*ino).lock(), &inode);
            }
        }
        drop(loading);
        self.shrink();
    }

    /// Takes it upon the caller to read an inode, unless it is cached or being read.
    fn begin_loading(&self, ino: Ino) -> Option<Loading<'_>> {
        let mut shard = self.shard(ino).lock();
        if shard.inodes.get(ino).is_some() || shard.loading.contains(&ino) {
            return None;
        }
        shard.loading.push(ino);
        Some(Loading { cache: self, ino })
    }

    /// Whether a directory of so many entries may be cached whole: a larger one is dropped as soon as room is wanted,
    /// however much it is used.
    pub fn has_room_for(&self, entries: u64) -> bool {
        cost_of_entries(entries) <= self.directory_max() as u64
    }

    /// Memory that the entries of one directory may take while others want room, in bytes.
    fn directory_max(&self) -> usize {
        self.cost_max / 4
    }

    /// The inode if it is cached; does not count as a use.
    pub fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(ino).map(Arc::clone)
    }

    /// Adds an inode that was just made, under the lock of its directory. Whoever holds that lets go of it and calls
    /// [`InodeCache::shrink`]: what is locked cannot be dropped, and would grow without a bound if it were locked at
    /// every look.
    pub fn insert(&self, inode: &Arc<Inode>) {
        self.insert_into(&mut self.shard(inode.ino).lock(), inode);
    }

    fn insert_into(&self, shard: &mut Shard, inode: &Arc<Inode>) {
        let kernel_refs = shard.kernel_refs.remove(&inode.ino).unwrap_or(0);
        inode.kernel_refs.store(kernel_refs, Ordering::Relaxed);
        shard.inodes.insert(Arc::clone(inode));
        shard.clock.push_back(inode.ino);
        self.cost.fetch_add(INODE_COST, Ordering::Relaxed);
    }

    /// Notes that the kernel was told of an inode once more.
    pub fn remember(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        match shard.inodes.get(ino) {
            Some(inode) => {
                inode.kernel_refs.fetch_add(1, Ordering::Relaxed);
            }
            None => *shard.kernel_refs.entry(ino).or_insert(0) += 1,
        }
    }

    /// Notes that the kernel forgot `count` of the times it was told of an inode. Returns the inode if it
    /// is cached and that was the last time.
    pub fn forget(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(ino) {
            let left = inode.kernel_refs.load(Ordering::Relaxed).saturating_sub(count);
            inode.kernel_refs.store(left, Ordering::Relaxed);
            return (left == 0).then(|| Arc::clone(inode));
        }
        let left = shard.kernel_refs.get_mut(&ino)?;
        *left = left.saturating_sub(count);
        if *left == 0 {
            shard.kernel_refs.remove(&ino);
        }
        None
    }

    /// Whether the kernel was told of an inode and did not forget it yet.
    pub fn is_remembered(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        match shard.inodes.get(ino) {
            Some(inode) => inode.kernel_refs.load(Ordering::Relaxed) > 0,
            None => shard.kernel_refs.contains_key(&ino),
        }
    }

    /// How often kernels were told of an inode and did not forget it yet.
    pub fn references(&self, ino: Ino) -> u64 {
        let shard = self.shard(ino).lock();
        match shard.inodes.get(ino) {
            Some(inode) => inode.kernel_refs.load(Ordering::Relaxed),
            None => shard.kernel_refs.get(&ino).copied().unwrap_or(0),
        }
    }

    /// Forgets an inode that is gone.
    pub fn remove(&self, ino: Ino) {
        self.take_out(&mut self.shard(ino).lock(), ino);
    }

    fn take_out(&self, shard: &mut Shard, ino: Ino) {
        if shard.inodes.remove(ino).is_some() {
            self.cost.fetch_sub(INODE_COST, Ordering::Relaxed);
        }
        // Numbers of removed inodes leave the clock as it turns; turn it if nothing else does.
        if shard.clock.len() > 2 * shard.inodes.0.len() + 64 {
            let Shard { inodes, clock, .. } = shard;
            clock.retain(|ino| inodes.get(*ino).is_some());
        }
    }

    /// Notes that a directory's cached entries now cost `after` instead of `before` bytes.
    pub fn directory_changed(&self, before: usize, after: usize) {
        if after >= before {
            self.cost.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.cost.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Cached inodes, and what the cache costs in bytes.
    pub fn usage(&self) -> (usize, usize) {
        let inodes = self.shards.iter().map(|shard| shard.lock().inodes.0.len()).sum();
        (inodes, self.cost.load(Ordering::Relaxed))
    }

    /// Drops inodes until the cache is within its bound, or a whole round found nothing to drop.
    pub fn shrink(&self) {
        let mut shards_left = 2 * SHARDS;
        while self.cost.load(Ordering::Relaxed) > self.cost_max && shards_left > 0 {
            shards_left -= 1;
            let turn = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.shards[turn].lock();
            // An eighth of a shard at a time keeps the work of one request small.
            for _ in 0..shard.clock.len().div_ceil(8) {
                self.pass_by(&mut shard);
            }
        }
    }

    fn pass_by(&self, shard: &mut Shard) {
        let Some(ino) = shard.clock.pop_front() else { return };
        let Some(inode) = shard.inodes.get(ino) else { return };
        let recently_used = inode.used.swap(false, Ordering::Relaxed);
        let alone = Arc::strong_count(inode) == 1;
        let Some(mut state) = inode.try_lock() else {
            shard.clock.push_back(ino);
            return;
        };
        let entries_cost = match &state.body {
            Body::Directory(directory) => directory.cost(),
            Body::File(_) | Body::Symlink(_) | Body::Special => 0,
        };
        let drop_entries =
            entries_cost > 0 && (!recently_used || entries_cost > self.directory_max());
        if drop_entries && let Body::Directory(directory) = &mut state.body {
            directory.forget();
            self.cost.fetch_sub(entries_cost, Ordering::Relaxed);
        }
        let droppable = alone && !recently_used && is_droppable(&state);
        drop(state);
        if droppable {
            let kernel_refs = inode.kernel_refs.load(Ordering::Relaxed);
            if kernel_refs > 0 {
                shard.kernel_refs.insert(ino, kernel_refs);
            }
            shard.inodes.remove(ino);
            self.cost.fetch_sub(INODE_COST, Ordering::Relaxed);
        } else {
            shard.clock.push_back(ino);
        }
    }

    /// Every cached inode of a fileset.
    pub fn of(&self, fileset: FilesetId) -> Vec<Arc<Inode>> {
        let own = |inode: &&Arc<Inode>| inode.ino.fileset() == fileset;
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().inodes.0.iter().filter(own).cloned().collect::<Vec<_>>())
            .collect()
    }

    /// The inodes of a fileset that the kernel of some node was told of.
    pub fn remembered(&self, fileset: FilesetId) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let told = |inode: &&Arc<Inode>| inode.kernel_refs.load(Ordering::Relaxed) > 0;
            found.extend(shard.inodes.0.iter().filter(told).map(|inode| inode.ino));
            found.extend(shard.kernel_refs.keys());
        }
        found.retain(|ino| ino.fileset() == fileset);
        found
    }

    /// Forgets the inodes of a fileset that is gone. What the kernel was told of them it forgets by itself.
    pub fn forget_fileset(&self, fileset: FilesetId) {
        for inode in self.of(fileset) {
            if let Body::Directory(directory) = &mut inode.lock().body {
                let cost = directory.cost();
                directory.forget();
                self.directory_changed(cost, 0);
            }
            self.remove(inode.ino);
        }
        for shard in &self.shards {
            shard.lock().kernel_refs.retain(|ino, _| ino.fileset() != fileset);
        }
    }

    /// Drops the inodes of a fileset that rests. What the kernel was told of them is kept.
    pub fn close_fileset(&self, fileset: FilesetId) {
        for inode in self.of(fileset) {
            if let Body::Directory(directory) = &mut inode.lock().body {
                let cost = directory.cost();
                directory.forget();
                self.directory_changed(cost, 0);
            }
            let mut shard = self.shard(inode.ino).lock();
            let kernel_refs = inode.kernel_refs.load(Ordering::Relaxed);
            if kernel_refs > 0 {
                shard.kernel_refs.insert(inode.ino, kernel_refs);
            }
            self.take_out(&mut shard, inode.ino);
        }
    }

    /// Drops everything that can be dropped, for tests and for `drop caches`.
    pub fn drop_all(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for _ in 0..2 * shard.clock.len() {
                self.pass_by(&mut shard);
            }
        }
    }
}

/// Everything that the inode knows is also in the write set or the store.
fn is_droppable(state: &State) -> bool {
    let in_use = state.file().is_some_and(|file| file.opens.handles > 0 || file.is_unpublished());
    state.nlink > 0 && !in_use
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_takes_no_more_memory_than_is_reckoned() {
        // A million cached inodes are to take less than 400 MB with their entries: docs/benchmarks.md.
        // Eight of them are for what it takes on its disk (docs/adr/0089).
        assert!(size_of::<Inode>() <= 200, "{}", size_of::<Inode>());
        println!("an inode takes {} bytes, its state {}", size_of::<Inode>(), size_of::<State>());
    }
}

//! Opening a file system, after an orderly end or a crash, and closing it.
//!
//! The store is always a consistent cut, so there is nothing to replay. What a crash leaves behind:
//! - records whose file was written after the record: they are compared with their object when the
//!   inode is next loaded (`Partition::reconcile`); the object's size is the truth;
//! - objects that no record refers to: the sweep removes them in the background.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;

use forebay_base::hash::HashKey;
use forebay_base::{Epoch, FilesetId, Ino, ObjectId};
use forebay_store::{Batch, Store};
use parking_lot::{Condvar, Mutex};

use crate::cache::InodeCache;
use crate::commit::{CommitTurn, is_full};
use crate::error::{FsError, Result};
use crate::fileset::Filesets;
use crate::idle::IdleObjects;
use crate::inode::State;
use crate::key::{self, Key};
use crate::number::{NUMBER_MAX, NumberRange, RESERVE};
use crate::object::{FsDisk, Objects};
use crate::partition::{Partition, Parts};
use crate::record::{
    DiskUsage, FilesetRecord, InodeRecord, MountState, ObjectRef, Superblock, Usage, decode, encode,
};
use crate::space::Space;
use crate::stale::StaleList;
use crate::stats::Counters;
use crate::writeset::WriteSet;

/// Records read from the store at a time in a scan.
const SCAN_CHUNK: usize = 4096;

/// Reads the superblock.
///
/// # Errors
/// [`FsError::Damaged`] if there is none; what the store says.
pub fn read_superblock(store: &dyn Store) -> Result<Superblock> {
    let bytes = store
        .get(key::SUPERBLOCK)?
        .ok_or_else(|| FsError::Damaged("the store holds no file system".to_owned()))?;
    decode("superblock", &bytes)
}

/// What a scan calls with each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Calls `visit` with every pair whose key begins with `prefix`, in key order.
///
/// # Errors
/// What the store or `visit` says.
pub fn scan_prefix(store: &dyn Store, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
    let (mut from, to) = key::prefix_range(prefix);
    loop {
        let rows = store.scan(&from, &to, SCAN_CHUNK)?;
        for (key, value) in &rows {
            visit(key, value)?;
        }
        let Some((last, _)) = rows.last().filter(|_| rows.len() == SCAN_CHUNK) else {
            return Ok(());
        };
        from.clone_from(last);
        from.push(0);
    }
}

fn read_filesets(store: &dyn Store) -> Result<Filesets> {
    let filesets = Filesets::default();
    scan_prefix(store, &[key::FILESET], &mut |key, value| {
        if let Some(Key::Fileset(id)) = key::parse(key) {
            filesets.set(id, decode::<FilesetRecord>("fileset", value)?);
        }
        Ok(())
    })?;
    if filesets.list().first().is_none_or(|first| first.id != FilesetId::ROOT) {
        return Err(FsError::Damaged("the root fileset is missing".to_owned()));
    }
    Ok(filesets)
}

fn read_write_set(store: &dyn Store) -> Result<WriteSet> {
    let (mut usage, mut objects) = (HashMap::new(), HashMap::new());
    scan_prefix(store, &[key::USAGE], &mut |key, value| {
        if let Some(Key::Usage(id)) = key::parse(key) {
            usage.insert(id, decode::<Usage>("usage", value)?);
        }
        Ok(())
    })?;
    scan_prefix(store, &[key::DISK_USAGE], &mut |key, value| {
        if let Some(Key::DiskUsage(id)) = key::parse(key) {
            objects.insert(id, decode::<DiskUsage>("disk usage", value)?.objects);
        }
        Ok(())
    })?;
    Ok(WriteSet::new(usage, objects))
}

/// A limit of numbers moved ahead.
fn raise(limit: u64) -> Result<u64> {
    limit
        .checked_add(RESERVE)
        .filter(|raised| *raised <= NUMBER_MAX)
        .ok_or_else(|| FsError::Damaged(format!("superblock: a limit of numbers is {limit}")))
}

/// Puts the given disks into the order of the superblock.
fn order_disks(
    superblock: &Superblock,
    given: Vec<(String, Arc<dyn forebay_disk::Disk>)>,
) -> Result<Vec<FsDisk>> {
    let mut by_uuid: HashMap<String, Arc<dyn forebay_disk::Disk>> = given.into_iter().collect();
    superblock
        .disks
        .iter()
        .map(|record| {
            let disk = by_uuid.remove(&record.uuid).ok_or_else(|| {
                FsError::Refused(format!("disk {} ({}) is not there", record.uuid, record.location))
            })?;
            Ok(FsDisk {
                uuid: record.uuid.clone(),
                disk,
                health: Arc::default(),
                space: Space::default(),
            })
        })
        .collect()
}

impl Partition {
    /// Opens a file system and becomes its owner: every earlier owner is fenced off.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if the store holds no (readable) file system; [`FsError::Refused`] if a disk
    /// is missing; [`FsError::Fenced`] if another owner came in between.
    pub fn open(parts: Parts) -> Result<Arc<Partition>> {
        let before = read_superblock(&*parts.store)?;
        let disks = order_disks(&before, parts.disks)?;
        parts.fail_points.reach("recovery.start")?;
        let crashed = before.state == MountState::Mounted;
        let superblock = Superblock {
            epoch: before.epoch.next(),
            state: MountState::Mounted,
            crashed_epoch: if crashed { before.epoch } else { before.crashed_epoch },
            ino_limit: raise(before.ino_limit)?,
            object_limit: raise(before.object_limit)?,
            ..before.clone()
        };
        // Whatever cannot be read is found before anything is changed.
        let filesets = read_filesets(&*parts.store)?;
        let writes = read_write_set(&*parts.store)?;
        let term = |epoch: Epoch| Some(epoch.0.to_be_bytes().to_vec());
        let taken_over = Batch {
            requires: vec![(key::TERM.to_vec(), term(before.epoch))],
            changes: [
                (key::TERM.to_vec(), term(superblock.epoch)),
                (key::SUPERBLOCK.to_vec(), Some(encode(&superblock))),
            ]
            .into(),
        };
        parts.reserve.spend(|| parts.store.commit(&taken_over), is_full)?;
        parts.reserve.hold();
        let numbers = NumberRange::new(before.object_limit, superblock.object_limit);
        let objects =
            Objects::new(disks, numbers, Arc::clone(&parts.clock), parts.fail_points.clone());
        objects.begin_reserves(parts.settings.disk_reserve.0);
        Ok(Arc::new(Partition {
            number: FilesetId::ROOT,
            epoch: superblock.epoch,
            hash_key: HashKey(superblock.hash_key),
            suspect_epoch: superblock.crashed_epoch,
            inodes: InodeCache::new(parts.settings.inode_cache_max.as_usize()),
            writes: Mutex::new(writes),
            turn: CommitTurn::new(parts.clock.instant()),
            objects,
            last_left: AtomicI64::new(i64::MIN),
            idle: IdleObjects::default(),
            ino_numbers: NumberRange::new(before.ino_limit, superblock.ino_limit),
            filesets,
            writers: Mutex::default(),
            tree_changes: Mutex::default(),
            stale: StaleList::default(),
            latencies: Partition::latency_table(),
            system_counters: Counters::default(),
            stopping: AtomicBool::new(false),
            stop_wanted: (Mutex::new(()), Condvar::new()),
            commit_wanted: AtomicBool::new(false),
            sweep_done: AtomicBool::new(!crashed),
            first_object: AtomicU64::new(before.object_limit),
            superblock: Mutex::new(superblock),
            store: parts.store,
            settings: parts.settings,
            clock: parts.clock,
            fail_points: parts.fail_points,
            reserve: parts.reserve,
        }))
    }

    /// Starts the threads that commit, supply, reclaim and sweep.
    ///
    /// # Errors
    /// [`FsError::Io`] if the system gives no threads.
    pub fn start_background(self: &Arc<Partition>) -> Result<Background> {
        self.objects.start();
        let mut threads = Vec::new();
        let mut start = |name: &str, body: fn(&Partition)| -> Result<()> {
            let fs = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || body(&fs))
                .map_err(|error| FsError::Io(format!("cannot start a thread: {error}")))?;
            threads.push(thread);
            Ok(())
        };
        start("commit", Partition::run_commits)?;
        start("supply", |fs| fs.objects.run_supply(fs.settings.spare_objects))?;
        start("reclaim", |fs| fs.objects.run_reclaim())?;
        start("sweep", |fs| {
            if let Err(error) = fs.sweep() {
                tracing::warn!(%error, "the sweep after the crash did not finish");
            }
        })?;
        Ok(Background { fs: Arc::clone(self), threads })
    }

    /// Compares an inode with its object, as a crash came after its record was written: the object's
    /// size is the truth. An object that is missing was never synced: the file is empty then.
    pub(crate) fn reconcile(&self, ino: Ino, state: &mut State) -> Result<()> {
        let Some(at) = state.file().and_then(|file| file.object) else { return Ok(()) };
        let Some(found) = self.objects.attributes(at)? else {
            tracing::warn!(%ino, object = %at.id, "contents were not synced before the crash");
            if let Some(file) = state.file_mut() {
                file.object = None;
            }
            state.size = 0;
            state.allocated_bytes = 0;
            self.put_inode(&mut self.writes.lock(), ino, state);
            return Ok(());
        };
        // Nothing that is recorded sets the inode's change time before the object's.
        if found.size != state.size || found.modified > state.changed {
            state.size = found.size;
            state.allocated_bytes = found.allocated_bytes;
            state.modified = state.modified.max(found.modified);
            state.changed = state.changed.max(found.modified);
            self.put_inode(&mut self.writes.lock(), ino, state);
        }
        Ok(())
    }

    /// Removes objects that no record refers to, if the last owner crashed. Only objects made before
    /// this mount are looked at: they can lose their last reference but never gain one.
    ///
    /// # Errors
    /// What the store or a disk says; the next mount sweeps again if this one does not end in order.
    pub fn sweep(&self) -> Result<()> {
        if self.sweep_done.load(Ordering::Acquire) {
            return Ok(());
        }
        let referenced = self.referenced_objects()?;
        let first_new = ObjectId(self.first_object.load(Ordering::Relaxed));
        let mut removed = 0_u64;
        for (disk_id, disk) in self.objects.numbered_disks() {
            let mut orphans = Vec::new();
            disk.disk.list(&mut |id| {
                let at = ObjectRef { disk: disk_id, id };
                if id < first_new && referenced.binary_search(&at).is_err() {
                    orphans.push(id);
                }
                true
            })?;
            for id in orphans {
                disk.disk.remove(id)?;
                removed += 1;
            }
        }
        self.fail_points.reach("recovery.swept")?;
        self.sweep_done.store(true, Ordering::Release);
        tracing::info!(removed, "swept objects that the crash left behind");
        Ok(())
    }

    fn referenced_objects(&self) -> Result<Vec<ObjectRef>> {
        let mut referenced = Vec::new();
        scan_prefix(&*self.store, &[key::INODE], &mut |_, value| {
            // A record that cannot be read may refer to any object: fsck must look first.
            referenced.extend(decode::<InodeRecord>("inode", value)?.object);
            Ok(())
        })?;
        referenced.sort_unstable();
        Ok(referenced)
    }

    /// Drops the objects of inodes without a name: the kernel forgets in silence what it knows of a file
    /// system that is unmounted.
    fn drop_nameless(&self) {
        for inode in self.inodes.all() {
            let mut state = inode.lock();
            if state.nlink == 0
                && let Some(file) = state.file_mut()
            {
                let dropped = self.drop_object(&mut self.writes.lock(), file, 0);
                dropped.into_iter().for_each(|live| self.objects.drop_handle(live));
            }
        }
    }

    /// Commits everything, syncs the disks and marks the file system clean, unless its files are still being
    /// written. No request may be under
    /// way, and the background threads must have ended.
    ///
    /// # Errors
    /// What the store or a disk says: the file system then counts as crashed, unless all that failed was the
    /// end of the store's engine. The store cannot be used after this.
    pub fn close(&self) -> Result<()> {
        let settled = self.settle();
        self.let_go();
        // Whatever came before: its engine is not to be ended in silence.
        let closed = self.store.close();
        settled?;
        Ok(closed?)
    }

    /// Closes the objects of all files. The kernel takes down the rings of a process in the background, after
    /// its end, and with them what was registered: the disk could not be unmounted until then.
    fn let_go(&self) {
        for inode in self.inodes.all() {
            if let Some(file) = inode.lock().file_mut() {
                file.live = None;
            }
        }
    }

    /// Whether the kernel still writes to objects itself: after an unmount by force, or an abort of the
    /// connection, files that are open on the direct path stay writable, and nobody tells us.
    fn is_still_written(&self) -> bool {
        let writers: Vec<Ino> = self.writers.lock().iter().copied().collect();
        writers.into_iter().filter_map(|ino| self.inodes.peek(ino)).any(|inode| {
            let state = inode.lock();
            let live = state.file().and_then(|file| file.live.as_ref());
            live.is_some_and(|live| live.is_open_elsewhere())
        })
    }

    fn settle(&self) -> Result<()> {
        self.drop_nameless();
        // Before sizes are taken: nobody can open a file any more, so those that nobody writes now stay as
        // they are, while one that is closed during the rest may have grown after its size was taken.
        let still_written = self.is_still_written();
        // First of all: whatever hinders the rest, what was done is kept.
        self.commit()?;
        self.sweep()?;
        if self.objects.has_left_behind() {
            // Nothing is pending any more: what no record refers to now, belongs to nothing.
            self.first_object.store(u64::MAX, Ordering::Relaxed);
            self.sweep_done.store(false, Ordering::Release);
            self.sweep()?;
        }
        for (id, disk) in self.objects.numbered_disks() {
            self.objects.observe(id, disk.disk.sync())?;
        }
        self.fail_points.reach("close.synced")?;
        if still_written {
            tracing::warn!(
                "programs still write: the next mount compares the sizes of their files"
            );
            return Ok(());
        }
        let mut superblock = self.superblock.lock();
        superblock.state = MountState::Clean;
        let changes = [(key::SUPERBLOCK.to_vec(), Some(encode(&*superblock)))].into();
        self.store_batch(&Batch { requires: vec![self.term()], changes })
    }
}

/// The running threads of a file system.
pub struct Background {
    fs: Arc<Partition>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Ends the threads and waits for them.
    pub fn stop(self) {
        self.fs.stopping.store(true, Ordering::Release);
        drop(self.fs.stop_wanted.0.lock());
        self.fs.stop_wanted.1.notify_all();
        self.fs.objects.stop();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

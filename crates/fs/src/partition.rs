//! The file system: its parts, how it opens, and how the parts reach cached and stored state.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use forebay_base::hash::HashKey;
use forebay_base::{Clock, Epoch, FailPoints, FilesetId, Ino, Timestamp};
use forebay_disk::Disk;
use forebay_store::Store;
use parking_lot::{Condvar, Mutex};

use crate::cache::InodeCache;
use crate::commit::CommitTurn;
use crate::directory::{Bucket, Child};
use crate::error::{FsError, Result};
use crate::fileset::Filesets;
use crate::idle::IdleObjects;
use crate::inode::{Body, Counted, Inode, State};
use crate::key;
use crate::number::NumberRange;
use crate::object::Objects;
use crate::record::{EntryRecord, InodeRecord, Superblock, decode};
use crate::reserve::Reserve;
use crate::settings::Settings;
use crate::stale::{Stale, StaleList};
use crate::stats::{Counters, Latency, OPERATIONS};
use crate::writeset::{Known, Overlay, Removal, Uncommitted, WriteSet};

/// A pair of the store: key and value.
pub(crate) type Row = (Vec<u8>, Vec<u8>);

/// What a file system stands on.
pub struct Parts {
    /// Names and attributes.
    pub store: Arc<dyn Store>,
    /// Bytes: every disk of the file system with its identity, in any order.
    pub disks: Vec<(String, Arc<dyn Disk>)>,
    /// Settings.
    pub settings: Settings,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where a test may cut the power.
    pub fail_points: FailPoints,
    /// Space kept aside for commits on a full disk.
    pub reserve: Reserve,
}

/// A fileset at work: every operation on its files is a method (see `ops/`).
pub struct Partition {
    /// Number of its fileset.
    pub(crate) number: FilesetId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fail_points: FailPoints,
    pub(crate) reserve: Reserve,
    pub(crate) epoch: Epoch,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) hash_key: HashKey,
    /// Records of this epoch or before may not agree with their objects: a crash came after them.
    pub(crate) suspect_epoch: Epoch,
    pub(crate) inodes: InodeCache,
    pub(crate) writes: Mutex<WriteSet>,
    pub(crate) turn: CommitTurn,
    pub(crate) objects: Objects,
    /// The second in which a file with bytes last lost its last name.
    pub(crate) last_left: AtomicI64,
    pub(crate) idle: IdleObjects,
    pub(crate) ino_numbers: NumberRange,
    pub(crate) filesets: Filesets,
    /// Files that are open for writing on the direct path.
    pub(crate) writers: Mutex<HashSet<Ino>>,
    /// Serialises renames between directories, so that the tree above them stands still.
    pub(crate) tree_changes: Mutex<()>,
    /// What the kernel must forget: things that changed behind its back.
    pub(crate) stale: StaleList,
    pub(crate) latencies: Vec<Latency>,
    pub(crate) system_counters: Counters,
    pub(crate) stopping: AtomicBool,
    pub(crate) stop_wanted: (Mutex<()>, Condvar),
    /// The commit thread is to commit before its time; it is woken through `stop_wanted`.
    pub(crate) commit_wanted: AtomicBool,
    pub(crate) sweep_done: AtomicBool,
    pub(crate) first_object: AtomicU64,
}

/// Who asks: owner of what is made, and subject of the set-id rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

impl Partition {
    /// Settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The objects and disks, for status and for opening the direct path.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Latency histograms, in the order of [`OPERATIONS`]. The front end records into them.
    #[must_use]
    pub fn latencies(&self) -> &[Latency] {
        &self.latencies
    }

    /// Identity of the file system.
    #[must_use]
    pub fn uuid(&self) -> String {
        self.superblock.lock().uuid.clone()
    }

    /// Bytes that the store occupies; 0 if it cannot say.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        self.store.size_bytes().unwrap_or(0)
    }

    /// Space kept aside in the home folder.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Whether space of some disk is short, so that removals and opens may wait for a commit.
    #[must_use]
    pub fn is_short_of_space(&self) -> bool {
        self.objects.is_pressed()
    }

    /// Whether space is kept aside for commits on a full disk.
    #[must_use]
    pub fn reserve_is_held(&self) -> bool {
        self.reserve.is_held()
    }

    /// The epoch of this owner.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn latency_table() -> Vec<Latency> {
        OPERATIONS.iter().map(|_| Latency::default()).collect()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn count(&self, fileset: FilesetId, operation: crate::stats::Operation) {
        self.filesets.with(fileset, |fileset| fileset.counters.count(operation));
    }

    /// Whether an inode is one of this fileset.
    pub(crate) fn owns(&self, ino: Ino) -> bool {
        ino.fileset() == self.number
    }

    // --- reading what is not cached ---

    /// The newest value of a key that is none of an inode or entry, committed or not.
    pub(crate) fn read_key(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Uncommitted::Changed(value) = self.writes.lock().get(key) {
            return Ok(value);
        }
        Ok(self.store.get(key)?)
    }

    /// Newest values of `from <= key < to` in order, about `limit` of them. The second value is where
    /// to go on, `None` at the end.
    pub(crate) fn read_range(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<(Vec<Row>, Option<Vec<u8>>)> {
        let (overlay, overlay_through) = self.writes.lock().range(from, to, limit);
        let stored = self.store.scan(from, to, limit)?;
        let stored_through =
            (stored.len() == limit).then(|| stored.last().map(|(key, _)| key.clone())).flatten();
        let through = overlay_through.into_iter().chain(stored_through).min();
        let rows = merge(overlay, stored, through.as_deref());
        let next = through.map(|mut key| {
            key.push(0);
            key
        });
        Ok((rows, next))
    }

    // --- inodes ---

    /// The inode of a number.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inodes.get_or_load(ino, || self.load(ino))
    }

    fn load(&self, ino: Ino) -> Result<State> {
        let uncommitted = self.writes.lock().inode(ino);
        let record = match uncommitted {
            Uncommitted::Changed(record) => record,
            Uncommitted::Unchanged => {
                let bytes = self.store.get(&key::inode(ino))?;
                bytes.map(|bytes| decode::<InodeRecord>("inode", &bytes)).transpose()?
            }
        };
        let record = record.ok_or(FsError::Stale)?;
        let suspect = record.epoch <= self.suspect_epoch && record.object.is_some();
        let mut state = State::from_record(record);
        if suspect {
            self.reconcile(ino, &mut state)?;
        }
        Ok(state)
    }

    /// Hands the inode's record, and whatever goes with it, to the write set.
    pub(crate) fn put_inode(&self, writes: &mut WriteSet, ino: Ino, state: &mut State) {
        if state.nlink == 0 {
            return;
        }
        let known = if state.recorded { Known::MayExist } else { Known::Absent };
        state.recorded = true;
        writes.put_inode(ino, state.record(self.epoch), known);
        put_with_inode(writes, state);
    }

    /// As [`Partition::put_inode`] of an inode whose record is there and would be the same but for times and
    /// allocation: whoever asks only for the bytes to be durable need not wait for it.
    pub(crate) fn put_times(&self, writes: &mut WriteSet, ino: Ino, state: &mut State) {
        if state.nlink == 0 {
            return;
        }
        debug_assert!(
            state.recorded,
            "an inode of which there is no record has more than new times"
        );
        writes.put_times(ino, state.record(self.epoch));
        put_with_inode(writes, state);
    }

    /// Takes the record of an inode that lost its last name, and its attributes, out of the write set
    /// and the store.
    pub(crate) fn delete_inode(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        xattrs: Vec<Row>,
    ) {
        writes.delete_inode(ino);
        for (key, value) in xattrs {
            if let Some(key::Key::Xattr(_, name)) = key::parse(&key) {
                state.nameless_xattrs.get_or_insert_default().insert(name, value);
            }
            writes.delete(key);
        }
        recount(writes, state, None);
        if let Some(live) = state.file().and_then(|file| file.live.as_ref())
            && !live.is_published()
        {
            writes.withhold(live.at.id);
        }
    }

    // --- directory entries ---

    /// The entry of `name` in a locked directory.
    pub(crate) fn find_entry(
        &self,
        ino: Ino,
        state: &mut State,
        name: &[u8],
    ) -> Result<Option<(u64, Child)>> {
        let bucket = Bucket::of(&self.hash_key, name);
        let directory = state.directory_mut()?;
        if let Some((cookie, child)) = directory.find(bucket, name) {
            return Ok(Some((cookie, child.clone())));
        }
        if directory.is_complete() {
            return Ok(None);
        }
        let reads = directory.count_read();
        if self.may_load_directory(state.size) && is_worth_caching(state.size, reads) {
            self.load_directory(ino, state)?;
        } else {
            let (from, to) = key::entries(ino, bucket.first(), bucket.last());
            let (rows, _) = self.read_range(&from, &to, 256)?;
            self.cache_entries(state, &rows)?;
        }
        let directory = state.directory_mut()?;
        Ok(directory.find(bucket, name).map(|(cookie, child)| (cookie, child.clone())))
    }

    /// Whether a directory of so many entries may be cached whole.
    pub(crate) fn may_load_directory(&self, entries: u64) -> bool {
        entries <= self.settings.directory_load_max && self.inodes.has_room_for(entries)
    }

    /// Adds stored entries to a directory's cached ones.
    pub(crate) fn cache_entries(&self, state: &mut State, rows: &[Row]) -> Result<()> {
        let directory = state.directory_mut()?;
        let before = directory.cost();
        for (key, value) in rows {
            let Some(key::Key::Entry(_, cookie)) = key::parse(key) else { continue };
            let record: EntryRecord = decode("directory entry", value)?;
            directory.insert(cookie, Child::from_record(&record));
        }
        self.inodes.directory_changed(before, directory.cost());
        Ok(())
    }

    /// Adds an entry to a locked directory in which `name` was looked for and not found.
    pub(crate) fn add_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        child: Child,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        let before = directory.cost();
        let cookie = directory.free_cookie(Bucket::of(&self.hash_key, &child.name))?;
        writes.put_entry(ino, cookie, child.clone(), Known::Absent);
        directory.insert(cookie, child);
        self.inodes.directory_changed(before, directory.cost());
        state.size += 1;
        Ok(())
    }

    /// Has the entry at `cookie` name another inode.
    pub(crate) fn replace_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        cookie: u64,
        child: Child,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        writes.put_entry(ino, cookie, child.clone(), Known::MayExist);
        directory.insert(cookie, child);
        Ok(())
    }

    /// Takes the entry at `cookie` out of a locked directory.
    pub(crate) fn remove_entry(
        &self,
        writes: &mut WriteSet,
        ino: Ino,
        state: &mut State,
        cookie: u64,
    ) -> Result<()> {
        let directory = state.directory_mut()?;
        let before = directory.cost();
        directory.remove(cookie);
        self.inodes.directory_changed(before, directory.cost());
        writes.delete_entry(ino, cookie);
        state.size = state.size.saturating_sub(1);
        Ok(())
    }

    // --- references of the kernel ---

    /// Notes that the kernel was told of an inode once more.
    pub(crate) fn remember(&self, ino: Ino) {
        self.inodes.remember(ino);
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        // An inode without a name is always cached: there is nothing to do for one that is not.
        if let Some(inode) = self.inodes.forget(ino, count) {
            let mut state = inode.lock();
            self.dispose_if_dead(ino, &mut state);
        }
    }

    /// Drops an inode that has no name, no handle and no reference of the kernel.
    pub(crate) fn dispose_if_dead(&self, ino: Ino, state: &mut State) {
        if state.nlink > 0 || state.handles() > 0 || self.inodes.is_remembered(ino) {
            return;
        }
        let bytes = state.allocated_bytes;
        if let Some(file) = state.file_mut() {
            let is_stored = file.live.as_ref().is_none_or(|live| live.is_published());
            let stored = file.object.filter(|_| is_stored);
            let dropped = self.drop_object(&mut self.writes.lock(), file, bytes);
            dropped.into_iter().for_each(|live| self.objects.drop_handle(live));
            stored.into_iter().for_each(|at| self.after_drop(at));
        }
        self.inodes.remove(ino);
    }

    /// Drops a file's object: the file is empty and has none afterwards. If a record may refer to the
    /// object, the new record must reach `writes` under the same lock. The caller drops the handle. `bytes` is what
    /// the object gives back.
    #[must_use]
    pub(crate) fn drop_object(
        &self,
        writes: &mut WriteSet,
        file: &mut crate::inode::FileBody,
        bytes: u64,
    ) -> Option<Arc<crate::object::LiveObject>> {
        let at = file.object.take()?;
        let live = file.live.take();
        let published = live.as_ref().is_none_or(|live| live.is_published());
        if !writes.drop_object(at, bytes, published) {
            self.objects.await_removal(Removal { at, bytes });
        }
        live
    }

    /// What the kernel may hold although it changed; the front end tells it.
    #[must_use]
    pub fn take_stale(&self) -> Vec<Stale> {
        self.stale.take()
    }

    /// As [`Partition::take_stale`], but only inodes whose attributes are stale: quick if there are none.
    #[must_use]
    pub fn take_stale_attributes(&self) -> Vec<Ino> {
        self.stale.take_attributes()
    }

    /// Whether the kernel may hold something that changed.
    #[must_use]
    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Cached inodes, and bytes of memory they are reckoned at.
    #[must_use]
    pub fn cache_usage(&self) -> (usize, usize) {
        self.inodes.usage()
    }

    /// Drops all cached state that can be read again.
    pub fn drop_caches(&self) {
        self.inodes.drop_all();
    }

    /// Whether the daemon is asked to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Body {
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Body::File(_))
    }
}

/// What goes with an inode's record.
fn put_with_inode(writes: &mut WriteSet, state: &mut State) {
    recount(writes, state, Some(state.counts()));
    if let Some(live) = state.file().and_then(|file| file.live.as_ref())
        && !live.is_published()
    {
        writes.publish(live);
    }
}

/// Has the usage of fileset and disk hold `now` for an inode instead of what they held.
fn recount(writes: &mut WriteSet, state: &mut State, now: Option<Counted>) {
    let before = std::mem::replace(&mut state.counted, now);
    let inodes = i64::from(now.is_some()) - i64::from(before.is_some());
    let bytes = |counted: Option<Counted>| counted.map_or(0, |counted| signed(counted.bytes));
    writes.count(state.fileset, inodes, bytes(now) - bytes(before));
    let (old, new) = (before.and_then(|b| b.disk), now.and_then(|n| n.disk));
    if old != new {
        old.into_iter().for_each(|disk| writes.count_objects(disk, -1));
        new.into_iter().for_each(|disk| writes.count_objects(disk, 1));
    }
}

/// Whether a directory of `entries` is to be cached whole after so many names were read from the store:
/// those that are looked for and not there could be told without it.
fn is_worth_caching(entries: u64, reads: u32) -> bool {
    entries <= 256 || u64::from(reads) >= entries / 16
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn merge(overlay: Overlay, stored: Vec<Row>, through: Option<&[u8]>) -> Vec<Row> {
    let mut rows: std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>> =
        stored.into_iter().map(|(key, value)| (key, Some(value))).collect();
    rows.extend(overlay);
    rows.into_iter()
        .filter(|(key, _)| through.is_none_or(|through| key.as_slice() <= through))
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
}

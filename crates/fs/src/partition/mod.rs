//! A partition: one fileset at work, with a store, an epoch, a write set and numbers of its own. Here is what it is made
//! of, and how it reaches cached and stored state.
//!
//! Nothing of it refers to another fileset, but for the names of filesets in the root directory: so it is committed,
//! recovered, checked, repaired and fenced by itself. What partitions of one process share is in [`Shared`].

pub(crate) mod caching;
pub(crate) mod commit;
pub(crate) mod copies;
pub mod damage;
pub(crate) mod entries;
pub(crate) mod fenced;
mod idle;
mod issued;
mod moving;
pub(crate) mod ops;
pub(crate) mod quota;
mod recall;
pub mod recovery;
pub(crate) mod relocate;
pub(crate) mod shortage;
pub(crate) mod snapshots;
mod unreachable;
pub(crate) mod writing_back;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use forebay_base::hash::HashKey;
use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId, Timestamp};
use forebay_store::{Store, Stores};
use parking_lot::Mutex;

use crate::attributes::Attributes;
use crate::commit::CommitTurn;
use crate::error::{FsError, Result};
use crate::gate::Gate;
use crate::grants::{Changer, Changing, Granting, Item, Touched};
use crate::inode::{Body, Counted, FileBody, Inode, State};
use crate::key::{self, Term};
use crate::mkfs::Identity;
use crate::number::NumberRange;
use crate::object::{FsDisk, Objects, Pool, SeenObject};
use crate::owner::Owner;
use crate::policy::place::Places;
use crate::record::{
    DiskUsage, Durability, FilesetSettings, InodeRecord, ObjectRef, Placement, Superblock, Usage,
    decode,
};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::writeset::{Known, Overlay, Removal, Uncommitted, UsageOfDisks, WriteSet};

pub(crate) use issued::NumbersForNode;

/// A pair of the store: key and value.
pub(crate) type Row = (Vec<u8>, Vec<u8>);

/// By how much it is noted ahead until when the kernel may keep something, in nanoseconds.
const NOTED_AHEAD_NS: u64 = 100_000_000;

/// A fileset at work: every operation on its files is a method (see `ops/`).
pub struct Partition {
    /// Number of its fileset.
    number: FilesetId,
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    gate: Gate,
    term: Mutex<Term>,
    epoch: Epoch,
    superblock: Mutex<Superblock>,
    hash_key: HashKey,
    choices: Choices,
    /// Operations since the mount.
    counters: Arc<Counters>,
    /// Records of this epoch or before may not agree with their objects: a crash came after them.
    suspect_epoch: Epoch,
    /// Inodes of this number and above were made since it was opened.
    first_new_ino: u64,
    writes: Mutex<WriteSet>,
    turn: CommitTurn,
    /// The commit thread is to commit before its time.
    commit_wanted: AtomicBool,
    ino_numbers: NumberRange,
    object_numbers: NumberRange,
    /// Objects that nodes may write that are none any more.
    fenced: fenced::Fenced,
    /// Numbers that other nodes have.
    issued: Mutex<Vec<issued::Issued>>,
    /// Files that are open for writing on the direct path.
    writers: Mutex<HashSet<Ino>>,
    /// How often a directory was moved to another one; held while that is done.
    directory_moves: Mutex<u64>,
    sweep: Mutex<Sweep>,
    damage: damage::Damage,
    /// The kernel may keep no names of it any more.
    names_lapse: AtomicBool,
    /// Until when the kernel may keep what it was told of it for long, in nanoseconds of
    /// [`Clock::boottime`](forebay_base::Clock::boottime).
    kept_until_ns: AtomicU64,
    /// What other nodes may cache of it, in a cluster.
    granting: Option<Arc<Granting>>,
    /// Whether any quota is set; to know it without a lock.
    limited: AtomicBool,
    /// Whether it is a cache: a file that has a size and no object was not fetched.
    is_cache: AtomicBool,
    /// Changes that a home does not have yet, in a single-writer cache.
    write_back: OnceLock<Arc<writing_back::WriteBack>>,
    /// Held while quotas are changed.
    quota_changes: Mutex<()>,
    /// What it shares with its snapshots.
    sharing: snapshots::Sharing,
    /// What it knows of its copies in other failure groups.
    copies: copies::Copies,
    /// Frozen copies of its store: those of its snapshots.
    frozen: Arc<dyn Stores>,
}

/// What people choose of a fileset, as requests ask for it.
#[derive(Default)]
struct Choices {
    strict: AtomicBool,
    direct: AtomicBool,
    /// A [`Pool`].
    pool: AtomicU8,
    /// Rules by which new files lie in other pools.
    places: ArcSwapOption<Places>,
}

impl Choices {
    fn of(settings: &FilesetSettings, objects: &Objects) -> Choices {
        let choices = Choices::default();
        choices.set(settings, objects);
        choices
    }

    /// What counts for files opened from now on.
    fn set(&self, settings: &FilesetSettings, objects: &Objects) {
        match objects.pools.named(&settings.pool) {
            Ok(pool) => {
                self.pool.store(pool.to_byte(), Ordering::Relaxed);
                objects.want_pool(pool);
            }
            Err(error) => tracing::error!(fileset = settings.name, %error, "the pool stays"),
        }
        let places = objects.pools.places(&settings.name);
        places.iter().flat_map(Places::pools).for_each(|pool| objects.want_pool(pool));
        self.places.store(places.map(Arc::new));
        self.strict.store(settings.durability == Durability::Strict, Ordering::Relaxed);
        self.direct.store(settings.placement == Placement::Direct, Ordering::Relaxed);
    }
}

/// Whether objects that belong to nothing were removed.
struct Sweep {
    done: bool,
    /// Only objects below this number are looked at.
    below: u64,
}

/// Who asks: owner of what is made, and subject of the set-id rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

impl Partition {
    /// Number of its fileset.
    #[must_use]
    pub fn number(&self) -> FilesetId {
        self.number
    }

    /// Its store.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Its store, for whoever reads it for longer.
    pub(crate) fn shared_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The latest epoch that ended in a crash, as its store knows; 0 if none did.
    pub(crate) fn latest_crash(&self) -> Epoch {
        self.suspect_epoch
    }

    /// The epoch of this owner.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What other nodes may cache of it, in a cluster.
    pub(crate) fn granting(&self) -> Option<&Arc<Granting>> {
        self.granting.as_ref()
    }

    /// Recalls what a change by `by` touches from all other nodes, and waits until nobody uses it. No way to this partition may
    /// be held.
    pub(crate) fn begin_change(&self, by: Changer, touched: &Touched<'_>) -> Option<Changing> {
        let leads_to = |parent: Ino, name: &[u8]| self.while_routed(|it| it.named(parent, name))?;
        self.granting.as_ref().map(|granting| granting.begin(by, touched, leads_to))
    }

    /// Reads something for somebody who holds no way to this partition, unless it was handed over meanwhile: what is loaded into
    /// memory then would be taken for current by the next partition of the fileset on this node.
    pub(crate) fn while_routed<T>(&self, read: impl FnOnce(&Partition) -> T) -> Option<T> {
        let route = self.shared.owners.find(self.number())?;
        let is_here =
            matches!(&*route, Owner::Local(current) if std::ptr::eq(&raw const **current, self));
        is_here.then(|| read(self))
    }

    /// Takes back from other nodes what has changed although nobody asked for it.
    fn take_back(&self, items: Vec<Item>) {
        if let Some(granting) = self.granting.as_ref().filter(|granting| granting.is_on()) {
            granting.take_back(items);
        }
    }

    /// Whether an inode has a name, and nobody has it open for writing. Of one without a name nobody is told when it goes.
    pub(crate) fn is_quiet(&self, ino: Ino) -> bool {
        let is_quiet = |inode: Arc<Inode>| {
            let state = inode.lock();
            state.nlink > 0 && state.file().is_none_or(|file| !file.opens.is_written())
        };
        // What is open is in memory.
        self.shared.inodes.peek(ino).is_none_or(is_quiet)
    }

    /// Whether attributes that were just read stay as they are until somebody opens the file, or changes it here. For a while after an
    /// owner was replaced a node may write a file on a disk that it reaches itself without a word, because it had it open before: unless the
    /// file was made since.
    pub(crate) fn knows_writers(&self, ino: Ino) -> bool {
        let is_far = |inode: Arc<Inode>| {
            let state = inode.lock();
            let object = state.file().and_then(|file| file.object);
            object.is_some_and(|at| !self.shared.objects.is_own(at.disk))
        };
        if ino.local() >= self.first_new_ino {
            return true;
        }
        let knows_all = || self.granting.as_ref().is_some_and(|it| it.knows_what_is_open());
        self.shared.inodes.peek(ino).is_some_and(|inode| !is_far(inode)) || knows_all()
    }

    /// Whether a file that is made in a directory takes nothing from it but perhaps its group.
    pub(crate) fn inherits_nothing(&self, directory: Ino) -> bool {
        let inode = self.shared.inodes.peek(directory);
        inode.is_some_and(|inode| {
            let state = inode.lock();
            state.is_directory() && state.nlink > 0 && state.xattrs == 0
        })
    }

    /// Where the object of a file lies, if that is a disk of another node, or of all, on which nodes may reach it themselves.
    pub(crate) fn home_of(&self, ino: Ino) -> Option<ObjectRef> {
        let inode = self.shared.inodes.peek(ino)?;
        let state = inode.lock();
        let file = state.file()?;
        let is_named = file.live.as_ref().is_none_or(|live| live.is_published());
        let at = file.object.filter(|_| is_named && !file.is_cut && self.prefers_direct())?;
        (!self.shared.objects.is_own(at.disk)).then_some(at)
    }

    /// Attributes of a file that has the object that a node has made, while that node alone has it open and nobody has looked at
    /// the object since.
    pub(crate) fn attributes_of_maker(&self, ino: Ino, made: SeenObject) -> Option<Attributes> {
        let inode = self.shared.inodes.peek(ino)?;
        let state = inode.lock();
        let file = state.file().filter(|file| file.object == Some(made.at))?;
        let opens = &file.opens;
        let is_only = opens.handles == 1 && opens.of_nodes == 1 && opens.writers_of_nodes == 1;
        let is_as_made = file.seen == made.attributes && !file.is_cut && self.prefers_direct();
        let is_plain = state.nlink > 0 && !state.is_privileged();
        (is_only && is_as_made && is_plain).then(|| Attributes::of(ino, &state))
    }

    /// Where the bytes of a file in memory are.
    pub(crate) fn object_of(&self, ino: Ino) -> Option<ObjectRef> {
        let inode = self.shared.inodes.peek(ino)?;
        let state = inode.lock();
        state.file()?.object
    }

    /// What every request passes first.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Changes what counts for files opened from now on.
    pub(crate) fn set_choices(&self, settings: &FilesetSettings) {
        self.choices.set(settings, &self.shared.objects);
        self.copies.want(settings.copies);
    }

    /// As [`Partition::set_choices`], and the store knows them afterwards: its next owner may not reach that of the root.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn apply_settings(&self, settings: &FilesetSettings) -> Result<()> {
        self.set_choices(settings);
        if self.superblock.lock().settings == *settings {
            return Ok(());
        }
        self.store_settings(settings)
    }

    /// What a fileset of the same file system is made with.
    pub(crate) fn identity(&self) -> Identity {
        let superblock = self.superblock.lock();
        Identity {
            uuid: superblock.uuid.clone(),
            hash_key: superblock.hash_key,
            disks: superblock.disks.clone(),
            owner: (0, 0),
            scratch: crate::record::Placement::Direct,
        }
    }

    /// What the fileset holds.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.writes.lock().usage()
    }

    /// Objects that its records refer to on a disk.
    pub(crate) fn objects_on(&self, disk: DiskId) -> u64 {
        self.usage_of(disk).objects
    }

    /// What it holds on a disk.
    pub(crate) fn usage_of(&self, disk: DiskId) -> DiskUsage {
        self.writes.lock().usage_of(disk)
    }

    /// What it holds, by disk.
    pub(crate) fn usage_of_disks(&self) -> UsageOfDisks {
        self.writes.lock().usage_of_disks().clone()
    }

    /// Bytes that the store occupies; 0 if it cannot say.
    pub(crate) fn store_bytes(&self) -> u64 {
        self.store.size_bytes().unwrap_or(0)
    }

    /// Whether fsync waits until data and names are on stable storage.
    pub(crate) fn is_strict(&self) -> bool {
        self.choices.strict.load(Ordering::Relaxed)
    }

    /// Whether new opens prefer the direct path.
    pub(crate) fn prefers_direct(&self) -> bool {
        self.choices.direct.load(Ordering::Relaxed)
    }

    /// The pool of disks for new files that no rule places elsewhere.
    pub(crate) fn pool(&self) -> Pool {
        Pool::from_byte(self.choices.pool.load(Ordering::Relaxed))
    }

    /// Notes in which pool the bytes of a file are to lie, if a rule says so. `name` is that of a file that is being made. One that
    /// is made empty stays in a pool that a rule leads to.
    pub(crate) fn choose_pool(&self, name: Option<&[u8]>, state: &mut State) {
        let places = self.choices.places.load();
        let Some(places) = &*places else { return };
        let owner = (state.uid, state.gid);
        let Some(file) = state.file_mut().filter(|file| file.placed.is_none()) else { return };
        let lies_in = file.object.and_then(|at| self.shared.objects.disk(at.disk).ok());
        let stays = lies_in.map(FsDisk::pool).filter(|pool| places.leads_to(*pool));
        file.placed = stays.or_else(|| places.pool(name, owner));
    }

    /// The pool in which the bytes of a file are to lie.
    pub(crate) fn pool_of(&self, file: &FileBody) -> Pool {
        let placed = file.placed.filter(|_| self.choices.places.load().is_some());
        placed.unwrap_or_else(|| self.pool())
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    pub(crate) fn count(&self, operation: crate::stats::Operation) {
        self.counters.count(operation);
    }

    /// Whether an inode is one of this fileset.
    pub(crate) fn owns(&self, ino: Ino) -> bool {
        ino.fileset() == self.number
    }

    /// The directory that everything in the fileset lies in.
    pub(crate) fn top(&self) -> Ino {
        Ino::top_of(self.number)
    }

    /// The directory that holds one, as people see it: filesets lie in the root directory.
    pub(crate) fn parent_of(&self, ino: Ino, state: &State) -> Ino {
        if ino == self.top() { Ino::ROOT } else { state.parent() }
    }

    /// A number for a new inode.
    pub(crate) fn take_ino(&self) -> Result<Ino> {
        Ok(Ino::of(self.number, self.take(&self.ino_numbers)?))
    }

    /// A number for a new object.
    pub(crate) fn take_object_id(&self) -> Result<ObjectId> {
        Ok(ObjectId::of(self.number, self.take(&self.object_numbers)?))
    }

    fn take(&self, numbers: &NumberRange) -> Result<u64> {
        let number = numbers.take()?;
        if numbers.is_low() {
            self.shared.crowd.raise();
        }
        Ok(number)
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
        self.shared.inodes.get_or_load(ino, || self.load(ino))
    }

    fn load(&self, ino: Ino) -> Result<State> {
        let uncommitted = self.writes.lock().inode(ino);
        match uncommitted {
            Uncommitted::Changed(record) => self.state_of(ino, record),
            Uncommitted::Unchanged => self.state_stored(ino, self.store.get(&key::inode(ino))?),
        }
    }

    /// Reads those of `inos` that are not in memory from the store at once. What cannot be read so is left to those who
    /// want it, and they are told why.
    pub(crate) fn load_all(&self, inos: impl Iterator<Item = Ino>) {
        let own = inos.filter(|ino| self.owns(*ino));
        self.shared.inodes.load_all(own, |inos| {
            let uncommitted: Vec<_> = {
                let writes = self.writes.lock();
                inos.iter().map(|ino| writes.inode(*ino)).collect()
            };
            let keys: Vec<_> = inos.iter().map(|ino| key::inode(*ino)).collect();
            let Ok(stored) = self.store.get_all(&keys) else { return Vec::new() };
            let found = inos.iter().zip(uncommitted).zip(stored);
            let state = |((ino, uncommitted), stored): ((&Ino, _), _)| match uncommitted {
                Uncommitted::Changed(record) => self.state_of(*ino, record).ok(),
                Uncommitted::Unchanged => self.state_stored(*ino, stored).ok(),
            };
            found.map(state).collect()
        });
    }

    fn state_stored(&self, ino: Ino, bytes: Option<Vec<u8>>) -> Result<State> {
        let record = bytes.map(|bytes| decode::<InodeRecord>("inode", &bytes)).transpose()?;
        self.state_of(ino, record)
    }

    /// What an inode is in memory whose newest record this is.
    fn state_of(&self, ino: Ino, record: Option<InodeRecord>) -> Result<State> {
        let record = record.ok_or(FsError::Stale)?;
        let suspect = record.epoch <= self.suspect_epoch && record.layout.object().is_some();
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
        put_with_inode(writes, ino, state);
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
        put_with_inode(writes, ino, state);
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
        state.xattrs_changed();
        for (key, value) in xattrs {
            if let Some(key::Key::Xattr(_, name)) = key::parse(&key) {
                state.nameless_xattrs.get_or_insert_default().insert(name, value);
            }
            writes.delete(key);
        }
        recount(writes, ino, state, None);
        if let Some(live) = state.file().and_then(|file| file.live.as_ref())
            && !live.is_published()
        {
            writes.withhold(live.at.id);
        }
    }

    // --- references of the kernel ---

    /// Whether the kernel may keep no names that it is told of.
    pub(crate) fn names_lapse(&self) -> bool {
        self.names_lapse.load(Ordering::Acquire)
    }

    /// Says whether the kernel may keep no names that it is told of from now on.
    pub(crate) fn lapse_names(&self, lapse: bool) {
        self.names_lapse.store(lapse, Ordering::Release);
    }

    /// The kernel may keep something of it until then, by [`Clock::boottime`](forebay_base::Clock::boottime).
    pub(crate) fn note_kept_until(&self, until: Duration) {
        let ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if self.kept_until_ns.load(Ordering::Acquire) < ns {
            // Ahead, so that most answers only read it.
            self.kept_until_ns.fetch_max(ns.saturating_add(NOTED_AHEAD_NS), Ordering::AcqRel);
        }
    }

    /// Until when the kernel may keep something of it, by [`Clock::boottime`](forebay_base::Clock::boottime).
    pub(crate) fn kept_until(&self) -> Duration {
        Duration::from_nanos(self.kept_until_ns.load(Ordering::Acquire))
    }

    /// Notes that the kernel was told of an inode once more.
    pub(crate) fn remember(&self, ino: Ino) {
        self.shared.inodes.remember(ino);
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        // An inode without a name is always cached: there is nothing to do for one that is not.
        if let Some(inode) = self.shared.inodes.forget(ino, count) {
            let mut state = inode.lock();
            self.dispose_if_dead(ino, &mut state);
        }
    }

    /// Drops an inode that has no name, no handle and no reference of the kernel.
    pub(crate) fn dispose_if_dead(&self, ino: Ino, state: &mut State) {
        if state.nlink > 0 || state.handles() > 0 || self.shared.inodes.is_remembered(ino) {
            return;
        }
        let bytes = state.allocated_bytes;
        if let Some(file) = state.file_mut() {
            let is_stored = file.live.as_ref().is_none_or(|live| live.is_published());
            let stored = file.object.filter(|_| is_stored);
            let dropped = self.drop_object(&mut self.writes.lock(), file, bytes);
            dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
            stored.into_iter().for_each(|at| self.after_drop(at));
        }
        self.shared.inodes.remove(ino);
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
        // One that a snapshot shares gives nothing back.
        let bytes = if self.sharing.is_shared(at.id) { 0 } else { bytes };
        if !writes.drop_object(at, bytes, published) {
            self.shared.objects.await_removal(Removal { at, bytes });
        }
        live
    }
}

impl Body {
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Body::File(_))
    }
}

/// What goes with an inode's record.
fn put_with_inode(writes: &mut WriteSet, ino: Ino, state: &mut State) {
    recount(writes, ino, state, Some(state.counts()));
    if let Some(live) = state.file().and_then(|file| file.live.as_ref())
        && !live.is_published()
    {
        writes.publish(live);
    }
}

/// Has the usage of fileset and disk hold `now` for an inode instead of what they held.
fn recount(writes: &mut WriteSet, ino: Ino, state: &mut State, now: Option<Counted>) {
    let before = std::mem::replace(&mut state.counted, now);
    let inodes = i64::from(now.is_some()) - i64::from(before.is_some());
    let bytes = |counted: Option<Counted>| counted.map_or(0, |counted| signed(counted.bytes));
    writes.count(inodes, bytes(now) - bytes(before));
    writes.count_for_owners(ino, state, before, now);
    if before == now {
        return;
    }
    let on_disk = |counted: Option<Counted>| {
        let Counted { bytes, stored_bytes, disk } = counted?;
        Some((disk?, (signed(bytes), signed(stored_bytes))))
    };
    let (now, before) = (on_disk(now), on_disk(before));
    match (now, before) {
        (Some((disk, now)), Some((former, before))) if disk == former => {
            writes.count_on(disk, 0, (now.0 - before.0, now.1 - before.1));
        }
        _ => {
            if let Some((disk, of)) = now {
                writes.count_on(disk, 1, of);
            }
            if let Some((disk, of)) = before {
                writes.count_on(disk, -1, (-of.0, -of.1));
            }
        }
    }
}

pub(crate) fn signed(bytes: u64) -> i64 {
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

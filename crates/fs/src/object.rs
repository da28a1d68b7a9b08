//! Objects in use: live handles, the supply of fresh ones, and the reclaim of dropped ones.
//!
//! Creating and deleting backing files is kept off the request path: the supply thread makes fresh
//! objects ahead of need, open and registered with the kernel; the reclaim thread closes and removes
//! dropped ones. Objects are never recycled: an object that was handed out has never held a byte.
//!
//! What survives a crash: published objects. Fresh ones vanish with the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::{DiskId, FailPoints, FilesetId, ObjectId};
use forebay_disk::{DiskError, Object, ObjectAttributes, Sync};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{FsError, Result};
use crate::record::ObjectRef;
use crate::stock::{Next, Stock};
use crate::writeset::Removal;

mod archived;
mod disks;
mod live;
mod mapped;
mod pressure;
mod probe;
mod stream;
mod traffic;

pub use disks::{DiskHealth, Disks, FsDisk};
pub(crate) use disks::{POOLS_MAX, Pool, Pools};
pub use live::LiveObject;
use live::Loss;
pub(crate) use stream::Stream;
pub use traffic::{Moves, PartialReads};

/// The kernel's side of the direct path: it reads and writes registered files without us.
pub trait DirectAccess: Send + std::marker::Sync {
    /// Registers an open file; the number stands for it in answers to opens.
    ///
    /// # Errors
    /// Why the kernel refused.
    fn register(&self, file: BorrowedFd<'_>) -> std::io::Result<u32>;

    /// Takes a registration back; opens that use it keep working.
    fn unregister(&self, registration: u32);
}

/// Makes, opens, publishes and removes objects on the disks of one file system.
pub struct Objects {
    /// The disks, those that are not there included.
    pub disks: Disks,
    /// One of them is an archive, or was.
    has_archives: AtomicBool,
    /// Their pools.
    pub(crate) pools: Pools,
    direct: OnceLock<Arc<dyn DirectAccess>>,
    stock: Stock,
    next_disk: AtomicUsize,
    /// Copies of objects on other disks that were begun.
    copies: AtomicU64,
    open_count: Arc<AtomicUsize>,
    /// Handles among `reclaim`.
    closing: AtomicUsize,
    reclaim: Mutex<VecDeque<Dropped>>,
    reclaim_wanted: Condvar,
    /// Held by whoever works on what was in `reclaim`.
    reclaiming: Mutex<()>,
    background: AtomicBool,
    /// Space of some disk is short.
    pressed: AtomicBool,
    /// Filesets with published objects that belong to nothing, as a removal failed.
    left_behind: Mutex<BTreeSet<FilesetId>>,
    clock: Arc<dyn forebay_base::Clock>,
    begun: Instant,
    fail_points: FailPoints,
}

enum Dropped {
    Handle(Arc<LiveObject>),
    Name(Removal),
}

/// An object on a disk of another node, as that node has just seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SeenObject {
    pub(crate) at: ObjectRef,
    pub(crate) attributes: ObjectAttributes,
    /// Somebody there may still write it, be it by a mapping.
    pub(crate) is_open: bool,
    /// Counts the looks of one daemon: of two the later one has the larger number. Messages may overtake each other.
    pub(crate) look: u64,
}

/// Gives a fresh object, of which nobody else knows, its number.
fn number_fresh(mut live: Arc<LiveObject>, id: ObjectId) -> Result<Arc<LiveObject>> {
    Arc::get_mut(&mut live).expect("nobody else knows of a fresh object").at.id = id;
    live.object.number(id);
    Ok(live)
}

/// How long the reclaim thread lets dropped objects gather.
const RECLAIM_PAUSE: Duration = Duration::from_millis(10);

/// What stands for the number of an object that has none yet.
const UNNUMBERED: ObjectId = ObjectId(0);

/// Dropped objects that may wait for the reclaim thread; beyond this the dropper does the work.
const RECLAIM_BACKLOG_MAX: usize = 16_384;

/// Handles among them: so many objects may be open beside the ones that are in use.
pub const CLOSING_MAX: usize = 4096;

impl Objects {
    /// Objects on `disks`.
    #[must_use]
    pub(crate) fn new(
        (disks, pools): (Vec<FsDisk>, Pools),
        clock: Arc<dyn forebay_base::Clock>,
        fail_points: FailPoints,
    ) -> Objects {
        Objects {
            has_archives: AtomicBool::new(disks.iter().any(FsDisk::is_archive)),
            disks: Disks::of(disks),
            pools,
            direct: OnceLock::new(),
            stock: Stock::default(),
            next_disk: AtomicUsize::new(0),
            copies: AtomicU64::new(0),
            open_count: Arc::default(),
            closing: AtomicUsize::new(0),
            reclaim: Mutex::new(VecDeque::new()),
            reclaim_wanted: Condvar::new(),
            reclaiming: Mutex::new(()),
            background: AtomicBool::new(false),
            pressed: AtomicBool::new(false),
            left_behind: Mutex::default(),
            begun: clock.instant(),
            clock,
            fail_points,
        }
    }

    /// Opens the direct path: from now on objects are registered with `direct`.
    pub fn set_direct_access(&self, direct: Arc<dyn DirectAccess>) {
        let _ = self.direct.set(direct);
    }

    /// Whether there is a direct path.
    pub fn has_direct_access(&self) -> bool {
        self.direct.get().is_some()
    }

    /// Objects that are open now, spares included.
    pub fn open_count(&self) -> usize {
        self.open_count.load(Ordering::Relaxed)
    }

    /// Objects that are open and not about to be closed, spares included.
    pub fn in_use_count(&self) -> usize {
        self.open_count().saturating_sub(self.closing.load(Ordering::Relaxed))
    }

    /// Whether threads of the background do what can be done off the request path.
    pub fn in_background(&self) -> bool {
        self.background.load(Ordering::Acquire)
    }

    /// Fresh objects in stock.
    pub fn spare_count(&self) -> usize {
        self.stock.len()
    }

    /// Fresh objects in stock on one disk.
    pub fn spares_on(&self, disk: DiskId) -> usize {
        self.stock.len_on(disk)
    }

    /// A disk that came since the file system was opened.
    pub(crate) fn add_disk(&self, disk: FsDisk) {
        self.has_archives.fetch_or(disk.is_archive(), Ordering::Release);
        self.disks.add(disk);
    }

    /// The disks with their numbers.
    pub fn numbered_disks(&self) -> impl Iterator<Item = (DiskId, &FsDisk)> {
        self.disks.all().map(|disk| (disk.id, disk))
    }

    /// A disk by its number, also one that is gone.
    pub(crate) fn disk(&self, id: DiskId) -> Result<&FsDisk> {
        self.disks.numbered(id).ok_or_else(|| {
            FsError::Damaged(format!("a record names disk {id}, which the file system never had"))
        })
    }

    /// Notes a device failure for `status`, and passes the result on.
    pub fn observe<T>(&self, disk: DiskId, result: forebay_disk::Result<T>) -> Result<T> {
        if let Err(error @ DiskError::Io(_)) = &result
            && let Ok(disk) = self.disk(disk)
        {
            disk.health.errors.fetch_add(1, Ordering::Relaxed);
            *disk.health.last_error.lock() = Some((self.clock.now(), error.to_string()));
            tracing::error!(disk = %disk.uuid, %error, "a disk failed");
        }
        Ok(result?)
    }

    /// Takes a fresh object of a pool from stock, or makes one if there is none, and gives it the number that `number`
    /// says. Where this node has no disk in the pool it is one of another node, published.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if no disk of the pool can hold one more object; [`FsError::Io`]; that of `number`.
    pub(crate) fn take_fresh(
        &self,
        pool: Pool,
        number: impl Fn() -> Result<ObjectId>,
    ) -> Result<Arc<LiveObject>> {
        if !self.has_near(pool) {
            return self.make_named(|of| of.pool() == pool, number);
        }
        let on_any = || {
            self.make_fresh(|of| of.pool() == pool && !of.is_archive() && of.space.takes_objects())
        };
        match self.stock.take(pool.place()).map_or_else(on_any, Ok) {
            // Those of other nodes may have room.
            Err(FsError::NoSpace) if self.has_far(pool) => {
                self.make_named(|of| !of.is_near && of.pool() == pool, number)
            }
            live => number_fresh(live?, number()?),
        }
    }

    /// As [`Objects::take_fresh`], from stock and on one of these disks of this node; `None` if there is none in stock.
    pub(crate) fn take_fresh_on(
        &self,
        disks: &[DiskId],
        number: impl FnOnce() -> Result<ObjectId>,
    ) -> Option<Arc<LiveObject>> {
        let pool = self.disk(*disks.first()?).ok()?.pool();
        self.want_pool(pool);
        let live = self.stock.take(pool.place()).filter(|live| disks.contains(&live.at.disk))?;
        number_fresh(live, number().ok()?).ok()
    }

    /// Makes an object for the copy of one on the disk `from`, on one of the disks that `suit`: one of the node that has it
    /// already if possible, otherwise of this node, otherwise of any.
    ///
    /// # Errors
    /// As [`Objects::take_fresh`].
    pub(crate) fn make_for_copy(
        &self,
        from: DiskId,
        suits: impl Fn(&FsDisk) -> bool,
        number: impl Fn() -> Result<ObjectId>,
    ) -> Result<Arc<LiveObject>> {
        self.make_for_move(from, |of| !of.is_archive() && suits(of), number)
    }

    /// The number of a copy that is about to be made; never 0.
    pub(crate) fn next_copy(&self) -> u64 {
        self.copies.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn has_near(&self, pool: Pool) -> bool {
        let holds = |disk: &FsDisk| disk.is_near && !disk.is_archive() && disk.takes_new();
        self.disks.all().any(|disk| holds(disk) && disk.pool() == pool)
    }

    fn has_far(&self, pool: Pool) -> bool {
        self.disks.all().any(|disk| !disk.is_near && disk.pool() == pool && disk.takes_new())
    }

    /// Whether a disk is one of this node.
    pub(crate) fn is_near(&self, disk: DiskId) -> bool {
        self.disk_is_near(disk) == Some(true)
    }

    /// Whether a disk is one of this node; `None` if it is not known.
    pub(crate) fn disk_is_near(&self, disk: DiskId) -> Option<bool> {
        Some(self.disk(disk).ok()?.is_near)
    }

    /// Makes an object on one of this node's disks that `suit`.
    fn make_fresh(&self, suits: impl Fn(&FsDisk) -> bool) -> Result<Arc<LiveObject>> {
        self.make_on(
            |of| of.is_near && suits(of),
            |FsDisk { id: disk, disk: place, .. }| {
                let object = self.observe(*disk, place.create_fresh())?;
                self.fail_points.reach("supply.created")?;
                self.adopt(ObjectRef { disk: *disk, id: UNNUMBERED }, object, false)
            },
        )
    }

    /// Makes an object that is published from the beginning on one of the disks that `suit`, which may be those of
    /// another node: what is written to it does not go with that node's daemon, and programs there find it. A record
    /// must refer to it soon.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if none of them can hold one more object; [`FsError::Io`], [`FsError::Absent`]; that of
    /// `number`.
    pub(crate) fn make_named(
        &self,
        suits: impl Fn(&FsDisk) -> bool,
        number: impl Fn() -> Result<ObjectId>,
    ) -> Result<Arc<LiveObject>> {
        self.make_on(
            |of| !of.is_archive() && of.space.takes_objects() && suits(of),
            |FsDisk { id: disk, disk: place, .. }| {
                let at = ObjectRef { disk: *disk, id: number()? };
                let made = self.observe(*disk, place.create_named(at.id));
                let object = made.inspect_err(|error| {
                    if matches!(error, FsError::Absent(_) | FsError::Away { .. } | FsError::Io(_)) {
                        // It may have been made all the same: then it belongs to nothing.
                        self.left_behind.lock().insert(at.id.fileset());
                    }
                })?;
                self.adopt(at, object, true)
            },
        )
    }

    /// An object of a fileset that belongs to nothing may have been left.
    pub(crate) fn leave_behind(&self, fileset: FilesetId) {
        self.left_behind.lock().insert(fileset);
    }

    /// Has `make` make an object on one of the disks that `suit`, each in its turn; those where space is short come last, as a
    /// file may grow.
    fn make_on(
        &self,
        suits: impl Fn(&FsDisk) -> bool,
        make: impl Fn(&FsDisk) -> Result<Arc<LiveObject>>,
    ) -> Result<Arc<LiveObject>> {
        let mut refusal = None;
        let try_on = |of: &FsDisk| {
            // Before the disk is looked at: whoever empties it sees that somebody is about to make an object there.
            let _about_to = of.hold();
            if !of.takes_new() || !suits(of) {
                return None;
            }
            match make(of) {
                Ok(live) => return Some(live),
                // Another one may have room.
                Err(error @ (FsError::Absent(_) | FsError::Away { .. })) => {
                    refusal.get_or_insert(error);
                }
                Err(error) => refusal = Some(error),
            }
            None
        };
        let (mut short, mut roomy): (Vec<_>, Vec<_>) =
            self.disks.all().partition(|of| of.space.is_short());
        // Each disk once, whoever else takes turns meanwhile: else the only one that suits may be missed.
        let turn = self.next_disk.fetch_add(1, Ordering::Relaxed);
        for disks in [&mut roomy, &mut short] {
            let first = turn.checked_rem(disks.len()).unwrap_or(0);
            disks.rotate_left(first);
        }
        let live = roomy.into_iter().chain(short).find_map(try_on);
        live.ok_or_else(|| refusal.unwrap_or(FsError::NoSpace))
    }

    /// Opens a published object.
    ///
    /// # Errors
    /// [`FsError::Io`], also if the object is missing.
    pub fn open(&self, at: ObjectRef) -> Result<Arc<LiveObject>> {
        let of = self.disk(at.disk)?;
        if !of.is_expected() {
            return Err(FsError::Absent(format!("disk {} was given up as lost", of.uuid)));
        }
        let object = self.observe(at.disk, of.disk.open(at.id))?;
        self.adopt(at, object, true)
    }

    fn adopt(
        &self,
        at: ObjectRef,
        object: Arc<dyn Object>,
        published: bool,
    ) -> Result<Arc<LiveObject>> {
        let opened_attributes = self.observe(at.disk, object.attributes())?;
        self.live_of((at, object), opened_attributes, published)
    }

    fn live_of(
        &self,
        (at, object): (ObjectRef, Arc<dyn Object>),
        opened_attributes: ObjectAttributes,
        published: bool,
    ) -> Result<Arc<LiveObject>> {
        let health = Arc::clone(&self.disk(at.disk)?.health);
        self.open_count.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(LiveObject {
            at,
            object,
            opened_attributes,
            published: AtomicBool::new(published),
            publishing: Mutex::new(()),
            needs_full_sync: AtomicBool::new(published),
            syncing: Mutex::new(()),
            loss: Mutex::new(Loss::None),
            synced_nameless: AtomicBool::new(false),
            written_at_home: AtomicBool::new(false),
            latest_look: AtomicU64::new(0),
            registration: OnceLock::new(),
            stream: stream::Stream::default(),
            direct: self.direct.get().cloned(),
            health,
            open_count: Arc::clone(&self.open_count),
        }))
    }

    /// Gives a fresh object its durable name, once.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`].
    pub fn publish(&self, live: &LiveObject) -> Result<()> {
        let _one_at_a_time = live.publishing.lock();
        if !live.is_published() {
            let FsDisk { disk, space, .. } = self.disk(live.at.disk)?;
            let mut named = disk.publish(live.at.id, &*live.object);
            // The name may take a block of a directory, and others may be quicker to take what is given up.
            while matches!(named, Err(DiskError::Full)) && space.give_piece(&**disk) {
                named = disk.publish(live.at.id, &*live.object);
            }
            self.observe(live.at.disk, named)?;
            live.needs_full_sync.store(true, Ordering::Release);
            live.published.store(true, Ordering::Release);
        }
        if live.synced_nameless.swap(false, Ordering::AcqRel) {
            // The name is promised until this succeeds, also to the next who wants it durable.
            return self
                .sync_unasked(live)
                .inspect_err(|_| live.synced_nameless.store(true, Ordering::Release));
        }
        Ok(())
    }

    /// Cuts or extends an object.
    ///
    /// # Errors
    /// [`FsError::TooLarge`], [`FsError::NoSpace`], [`FsError::Io`].
    pub fn set_size(&self, live: &LiveObject, size: u64) -> Result<()> {
        let done = self.observe(live.at.disk, live.object.set_size(size));
        live.needs_full_sync.store(true, Ordering::Release);
        done
    }

    /// Makes an object durable: what `what` says, and its name and size in any case. After a failure it is
    /// refused until [`LiveObject::opened_anew`].
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn sync(&self, live: &LiveObject, what: Sync) -> Result<()> {
        if !live.is_published() {
            live.synced_nameless.store(true, Ordering::Release);
        }
        let _one_at_a_time = live.syncing.lock();
        live.tell_of_loss()?;
        self.sync_now(live, what).inspect_err(|error| live.note_loss(error, Loss::Told))
    }

    /// As [`Objects::sync`] in full, for nobody who could be told: a failure is told to whoever syncs next.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn sync_unasked(&self, live: &LiveObject) -> Result<()> {
        let _one_at_a_time = live.syncing.lock();
        self.sync_now(live, Sync::All).inspect_err(|error| live.note_loss(error, Loss::Untold))
    }

    fn sync_now(&self, live: &LiveObject, what: Sync) -> Result<()> {
        let in_full = live.needs_full_sync.swap(false, Ordering::AcqRel);
        let what = if in_full { Sync::All } else { what };
        live.note_home_writes();
        let synced = self
            .observe(live.at.disk, live.object.sync(what))
            .inspect_err(|_| live.needs_full_sync.store(true, Ordering::Release));
        // Writing goes on.
        live.note_home_writes();
        synced
    }

    /// Attributes of a published object that is not open; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn attributes(&self, at: ObjectRef) -> Result<Option<ObjectAttributes>> {
        self.observe(at.disk, self.disk(at.disk)?.disk.attributes(at.id))
    }

    /// Has a handle closed off the request path.
    pub fn drop_handle(&self, live: Arc<LiveObject>) {
        self.reclaim_later(Dropped::Handle(live));
    }

    /// Has a published object removed off the request path. No committed record may refer to it.
    pub fn remove(&self, removal: Removal) {
        self.reclaim_later(Dropped::Name(removal));
    }

    /// As [`Objects::remove`], at once.
    pub(crate) fn remove_now(&self, removal: Removal) {
        self.reclaim_now(Dropped::Name(removal));
    }

    fn reclaim_later(&self, dropped: Dropped) {
        let is_handle = matches!(dropped, Dropped::Handle(_));
        let mut queue = self.reclaim.lock();
        let closing = self.closing.load(Ordering::Relaxed);
        let has_room = queue.len() < RECLAIM_BACKLOG_MAX && !(is_handle && closing >= CLOSING_MAX);
        // Under the lock: the thread ends when it sees the queue empty after the background's end.
        if !self.in_background() || !has_room {
            drop(queue);
            return self.reclaim_now(dropped);
        }
        queue.push_back(dropped);
        self.closing.fetch_add(usize::from(is_handle), Ordering::Relaxed);
        let first = queue.len() == 1;
        drop(queue);
        if first {
            self.reclaim_wanted.notify_one();
        }
    }

    fn reclaim_now(&self, dropped: Dropped) {
        match dropped {
            Dropped::Handle(live) => drop(live),
            Dropped::Name(Removal { at, bytes }) => {
                let removed = self.disk(at.disk).and_then(|disk| {
                    if !disk.is_expected() {
                        // It went with its disk.
                        return Ok(());
                    }
                    self.fail_points.reach("reclaim.removed")?;
                    disk.space.freed(bytes);
                    self.observe(at.disk, disk.disk.remove(at.id))
                });
                if let Err(error) = removed {
                    // Nothing refers to the object any more: a sweep removes it.
                    self.left_behind.lock().insert(at.id.fileset());
                    tracing::warn!(object = %at.id, %error, "an object was not removed");
                }
            }
        }
    }

    /// Body of the supply thread: keeps `target` fresh objects of each pool that is wanted in stock until
    /// [`Objects::stop`].
    pub fn run_supply(&self, target: usize) {
        while self.background.load(Ordering::Acquire) {
            self.look_at_space();
            let mut next = Next::Rest;
            for pool in self.pools.wanted() {
                let place = pool.place();
                self.stock.aim(place, if self.has_near(pool) { target } else { 0 });
                let missing = self.stock.missing(place);
                next = next.or(Next::after(missing));
                for _ in 0..missing {
                    let suits =
                        |of: &FsDisk| of.pool() == pool && !of.is_archive() && !of.space.is_short();
                    let Ok(live) = self.make_fresh(suits) else {
                        next = Next::Refused;
                        break;
                    };
                    live.registration();
                    if !self.stock.put(place, live, &self.background) {
                        return;
                    }
                }
            }
            self.stock.await_demand(next, &self.background);
        }
    }

    /// Has new objects of a pool made ahead of need from now on.
    pub(crate) fn want_pool(&self, pool: Pool) {
        if self.pools.want(pool) {
            self.stock.wake();
        }
    }

    /// Gives the fresh objects of a disk back that are in stock.
    pub(crate) fn give_up_stock_of(&self, disk: DiskId) {
        drop(self.stock.give_up(|live| live.at.disk == disk));
    }

    /// Body of the reclaim thread, until [`Objects::stop`]; finishes what is queued.
    pub fn run_reclaim(&self) {
        loop {
            let mut queue = self.reclaim.lock();
            if queue.is_empty() {
                if !self.background.load(Ordering::Acquire) {
                    return;
                }
                self.reclaim_wanted.wait_for(&mut queue, Duration::from_millis(500));
            }
            // More will follow: to be woken for each would cost whoever drops it, and the cores.
            if self.background.load(Ordering::Acquire) {
                MutexGuard::unlocked(&mut queue, || std::thread::sleep(RECLAIM_PAUSE));
            }
            drop(queue);
            self.finish_reclaim();
        }
    }

    /// Closes and removes everything dropped so far.
    pub(crate) fn finish_reclaim(&self) {
        // What the thread has in its hands is waited for.
        let _one_at_a_time = self.reclaiming.lock();
        let batch: Vec<Dropped> = self.reclaim.lock().drain(..).collect();
        let mut far: BTreeMap<DiskId, Vec<Removal>> = BTreeMap::new();
        for dropped in batch {
            match dropped {
                Dropped::Name(removal) if !self.is_near(removal.at.disk) => {
                    far.entry(removal.at.disk).or_default().push(removal);
                }
                Dropped::Name(_) => self.reclaim_now(dropped),
                Dropped::Handle(_) => {
                    self.reclaim_now(dropped);
                    self.closing.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        far.into_iter().for_each(|(disk, removals)| self.remove_far(disk, &removals));
    }

    /// Removes objects of a disk of another node.
    fn remove_far(&self, disk: DiskId, removals: &[Removal]) {
        let Ok(of) = self.disk(disk) else { return };
        if !of.is_expected() {
            // They went with their disk.
            return;
        }
        let ids: Vec<ObjectId> = removals.iter().map(|removal| removal.at.id).collect();
        if self.fail_points.reach("reclaim.removed").is_err() {
            self.left_behind.lock().extend(ids.iter().map(|id| id.fileset()));
            return;
        }
        removals.iter().for_each(|removal| of.space.freed(removal.bytes));
        for (id, error) in of.disk.remove_all(&ids) {
            // Nothing refers to the object any more: a sweep removes it.
            self.left_behind.lock().insert(id.fileset());
            if let Err(error) = self.observe::<()>(disk, Err(error)) {
                tracing::warn!(object = %id, %error, "an object was not removed");
            }
        }
    }

    /// Whether an object of a fileset could not be removed.
    pub fn has_left_behind(&self, fileset: FilesetId) -> bool {
        let removes_later = |disk: &FsDisk| disk.is_expected() && disk.disk.has_removals(fileset);
        self.left_behind.lock().contains(&fileset) || self.disks.all().any(removes_later)
    }

    /// All objects of a fileset that belong to nothing are removed.
    pub fn none_left_behind(&self, fileset: FilesetId) {
        self.left_behind.lock().remove(&fileset);
    }

    /// Dropped objects that wait for the reclaim thread.
    pub fn reclaim_backlog(&self) -> usize {
        self.reclaim.lock().len()
    }

    /// Allows the background threads to start queueing work.
    pub fn start(&self) {
        self.background.store(true, Ordering::Release);
    }

    /// Ends the background threads and drops the stock.
    pub fn stop(&self) {
        self.background.store(false, Ordering::SeqCst);
        let stock = self.stock.clear();
        self.stock.wake();
        self.reclaim_wanted.notify_all();
        drop(stock);
    }
}

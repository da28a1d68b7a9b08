//! The disks of a file system as its running process knows them, and their pools.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use forebay_base::{DiskId, NodeId, Timestamp};
use forebay_disk::{Disk, striped};
use parking_lot::{Mutex, RwLock};

use super::mapped::MaybeMapped;
use super::traffic::Traffic;
use crate::error::{FsError, Result};
use crate::ops::ArchiveStatus;
use crate::policy::Place;
use crate::policy::place::Places;
use crate::record::{DEFAULT_POOL, DiskRecord, DiskUse};
use crate::space::Space;

/// Errors that a disk has shown, for `status`.
#[derive(Debug, Default)]
pub struct DiskHealth {
    /// Number of failed operations.
    pub errors: AtomicU64,
    /// The latest failure and its time.
    pub last_error: Mutex<Option<(Timestamp, String)>>,
    /// Why the kernel refused to read and write objects of this disk itself, if it ever did.
    pub direct_refusal: Mutex<Option<String>>,
    /// On a disk that every node reaches itself: its objects that programs of this node may have mapped.
    pub(super) mapped: Option<MaybeMapped>,
}

impl DiskHealth {
    /// Notes that the kernel refused an object; the log gets one line for each disk.
    pub(super) fn direct_refused(&self, error: &std::io::Error) {
        let mut refusal = self.direct_refusal.lock();
        if refusal.is_none() {
            tracing::warn!(%error, "the kernel refuses the direct path to objects of a disk");
            *refusal = Some(error.to_string());
        }
    }
}

/// Pools that a file system can have.
pub(crate) const POOLS_MAX: usize = 16;

/// A pool, by its place among those of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool(u8);

impl Pool {
    /// Its place: below [`POOLS_MAX`].
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    /// As one byte.
    pub fn to_byte(self) -> u8 {
        self.0
    }

    /// A pool that was one byte.
    pub fn from_byte(byte: u8) -> Pool {
        Pool(byte)
    }
}

/// Names of pools, each at its place; the default one has the first. Pools come and stay.
pub(crate) struct Pools {
    names: RwLock<Vec<String>>,
    /// A bit for each pool of which objects are made ahead of need.
    wanted: AtomicU32,
    /// In which of them the bytes of new files lie.
    places: RwLock<Vec<Place>>,
    /// A bit for each pool that took no file which a rule placed there, as was logged.
    refusing: AtomicU32,
}

impl Default for Pools {
    fn default() -> Pools {
        Pools {
            names: RwLock::new(vec![DEFAULT_POOL.to_owned()]),
            wanted: AtomicU32::new(1),
            places: RwLock::default(),
            refusing: AtomicU32::new(0),
        }
    }
}

impl Pools {
    /// The pool called `name`, which is one from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there are as many as there can be.
    pub fn named(&self, name: &str) -> Result<Pool> {
        let mut names = self.names.write();
        let place = names.iter().position(|known| known == name).unwrap_or(names.len());
        if place >= POOLS_MAX {
            return Err(FsError::Refused(format!(
                "pool \"{name}\" would be one too many: there can be {POOLS_MAX} pools; use one of {}",
                names.join(", ")
            )));
        }
        if place == names.len() {
            names.push(name.to_owned());
        }
        Ok(Pool(u8::try_from(place).unwrap_or(0)))
    }

    /// Changes in which pools new files lie.
    pub fn set_places(&self, rules: Vec<Place>) {
        *self.places.write() = rules;
    }

    /// In which pools new files of a fileset lie, if rules are about it.
    pub fn places(&self, fileset: &str) -> Option<Places> {
        Places::of(&self.places.read(), fileset, |name| self.named(name).ok())
    }

    /// A pool took no file that a rule places there. Returns its name if that is new.
    pub fn refuses(&self, pool: Pool) -> Option<String> {
        let bit = 1 << pool.place();
        let is_new = self.refusing.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        is_new.then(|| self.names.read().get(pool.place()).cloned().unwrap_or_default())
    }

    /// A pool took a file that a rule places there.
    pub fn accepts(&self, pool: Pool) {
        let bit = 1 << pool.place();
        if self.refusing.load(Ordering::Relaxed) & bit != 0 {
            self.refusing.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Has objects of a pool made ahead of need. Returns whether that is new.
    pub fn want(&self, pool: Pool) -> bool {
        let bit = 1 << pool.place();
        self.wanted.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// The pools of which objects are made ahead of need.
    pub fn wanted(&self) -> impl Iterator<Item = Pool> {
        let wanted = self.wanted.load(Ordering::Acquire);
        (0..POOLS_MAX)
            .filter(move |place| wanted & 1 << place != 0)
            .filter_map(|place| Some(Pool(u8::try_from(place).ok()?)))
    }
}

/// A disk of the file system.
pub struct FsDisk {
    /// Its number, by which records refer to it.
    pub id: DiskId,
    /// Its identity.
    pub uuid: String,
    /// The disk itself.
    pub disk: Arc<dyn Disk>,
    /// This node reaches it itself: new objects go to such disks, as long as there is one.
    pub is_near: bool,
    /// All nodes reach it themselves.
    pub is_shared: bool,
    /// The node that has it, if that is another one.
    pub node: Option<NodeId>,
    /// What went wrong on it. Each open object of the disk refers to it.
    pub health: Arc<DiskHealth>,
    /// What is left, and what is kept aside.
    pub space: Space,
    /// What went there and came back, if it is an archive.
    pub(crate) traffic: Traffic,
    is_archive: bool,
    /// Its objects lie over other disks.
    pub(crate) is_striped: bool,
    pool: AtomicU8,
    used: AtomicU8,
    /// Its failure group; empty if it fails alone.
    group: Arc<RwLock<String>>,
    /// Disks that it lies over, each with its failure group.
    beneath: Box<[(DiskId, Arc<RwLock<String>>)]>,
    /// It does not accept writes: no new objects come, and files with copies are read elsewhere.
    failing: AtomicBool,
}

const NORMAL: u8 = 0;
const DRAINING: u8 = 1;
const LOST: u8 = 2;
const REMOVED: u8 = 3;

impl FsDisk {
    /// The disk of a record, which is `disk`, in a pool.
    pub(crate) fn new(
        record: &DiskRecord,
        disk: Arc<dyn Disk>,
        is_near: bool,
        pool: Pool,
    ) -> FsDisk {
        let is_shared = record.shared_directory().is_some();
        let found = FsDisk {
            id: record.id,
            uuid: record.uuid.clone(),
            is_archive: disk.is_archive(),
            // Of one that is not there only the record says so.
            is_striped: record.striping().is_some() || disk.describe().kind == striped::KIND,
            disk,
            is_near,
            is_shared,
            node: None,
            health: Arc::new(DiskHealth {
                mapped: is_shared.then(MaybeMapped::default),
                ..DiskHealth::default()
            }),
            space: Space::default(),
            traffic: Traffic::default(),
            pool: AtomicU8::new(pool.0),
            used: AtomicU8::new(NORMAL),
            group: Arc::new(RwLock::new(record.group.clone())),
            beneath: Box::default(),
            failing: AtomicBool::new(false),
        };
        found.set_use(record.used);
        found
    }

    /// The same disk, which a node has.
    pub(crate) fn of_node(self, node: Option<NodeId>) -> FsDisk {
        let node = node.filter(|_| !self.is_near);
        FsDisk { node, ..self }
    }

    /// The same disk, over others.
    pub(crate) fn over<'a>(self, members: impl Iterator<Item = &'a FsDisk>) -> FsDisk {
        let beneath = members.map(|disk| (disk.id, Arc::clone(&disk.group))).collect();
        FsDisk { beneath, ..self }
    }

    /// Whether the node of another disk has it.
    pub(super) fn is_beside(&self, other: &FsDisk) -> bool {
        (self.is_near, self.node) == (other.is_near, other.node)
    }

    /// What happened to it since the mount, if it is an archive.
    pub(crate) fn archive_status(&self) -> Option<ArchiveStatus> {
        let requests = self.disk.requests()?;
        let (archived, recalled) = (self.traffic.archived.read(), self.traffic.recalled.read());
        let partial = self.traffic.partial.read();
        Some(ArchiveStatus { archived, recalled, partial, requests })
    }

    /// Its pool.
    pub(crate) fn pool(&self) -> Pool {
        Pool(self.pool.load(Ordering::Relaxed))
    }

    /// It is in another pool from now on.
    pub(crate) fn set_pool(&self, pool: Pool) {
        self.pool.store(pool.0, Ordering::Relaxed);
    }

    /// It is in another failure group from now on.
    pub(crate) fn set_group(&self, group: &str) {
        group.clone_into(&mut self.group.write());
    }

    /// Whether it may fail together with another disk, which may be itself.
    pub(crate) fn fails_with(&self, other: &FsDisk) -> bool {
        self.stands_on().any(|(own, group)| {
            let group = group.read().clone();
            other
                .stands_on()
                .any(|(theirs, other)| own == theirs || !group.is_empty() && group == *other.read())
        })
    }

    /// What takes it along if it fails, itself included.
    fn stands_on(&self) -> impl Iterator<Item = (DiskId, &RwLock<String>)> {
        let beneath = self.beneath.iter().map(|(id, group)| (*id, &**group));
        std::iter::once((self.id, &*self.group)).chain(beneath)
    }

    /// It was found not to accept writes. Whether that is new.
    pub(crate) fn fails(&self) -> bool {
        !self.failing.swap(true, Ordering::SeqCst)
    }

    /// Whether it was found not to accept writes, since the file system was opened.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Whether what lies on it counts: it is to be there, and does not fail.
    pub(crate) fn is_sound(&self) -> bool {
        self.is_expected() && !self.is_failing()
    }

    /// It is used for something else from now on.
    pub(crate) fn set_use(&self, used: DiskUse) {
        let number = match used {
            DiskUse::Normal => NORMAL,
            DiskUse::Draining => DRAINING,
            DiskUse::Lost => LOST,
            DiskUse::Removed => REMOVED,
        };
        self.used.store(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether space is kept aside on it: where several nodes use it none of them can promise it.
    pub(crate) fn keeps_reserve(&self) -> bool {
        self.is_near && !self.is_shared && !self.is_archive
    }

    /// Whether its objects are packed elsewhere, and copied here before they are used.
    pub(crate) fn is_archive(&self) -> bool {
        self.is_archive
    }

    /// Whether new objects may be made on it.
    pub(crate) fn takes_new(&self) -> bool {
        self.used.load(Ordering::SeqCst) == NORMAL && !self.is_failing()
    }

    /// What it is used for.
    pub(crate) fn used(&self) -> DiskUse {
        match self.used.load(Ordering::SeqCst) {
            NORMAL => DiskUse::Normal,
            DRAINING => DiskUse::Draining,
            LOST => DiskUse::Lost,
            _ => DiskUse::Removed,
        }
    }

    /// Whether it is to be there.
    pub(crate) fn is_expected(&self) -> bool {
        matches!(self.used.load(Ordering::Relaxed), NORMAL | DRAINING)
    }

    fn is_removed(&self) -> bool {
        self.used.load(Ordering::Relaxed) == REMOVED
    }

    /// While the result lives, [`FsDisk::has_open_objects`] holds.
    pub(super) fn hold(&self) -> Arc<DiskHealth> {
        let held = Arc::clone(&self.health);
        fence(Ordering::SeqCst);
        held
    }

    /// Whether an object of it is open, in stock, or about to be made.
    pub(crate) fn has_open_objects(&self) -> bool {
        fence(Ordering::SeqCst);
        Arc::strong_count(&self.health) > 1
    }
}

/// Disks that may come while the file system is mounted.
const DISKS_TO_COME: usize = 1024;

/// The disks of a file system. One that is taken away keeps its place.
pub struct Disks(Box<[OnceLock<FsDisk>]>);

impl Disks {
    pub(super) fn of(disks: Vec<FsDisk>) -> Disks {
        let room = std::iter::repeat_with(OnceLock::new).take(DISKS_TO_COME);
        Disks(disks.into_iter().map(OnceLock::from).chain(room).collect())
    }

    fn with_removed(&self) -> impl Iterator<Item = &FsDisk> {
        self.0.iter().map_while(OnceLock::get)
    }

    /// The disks, in the order in which they came, but for those that were taken away.
    pub fn all(&self) -> impl Iterator<Item = &FsDisk> {
        self.with_removed().filter(|disk| !disk.is_removed())
    }

    pub(super) fn get(&self, place: usize) -> Option<&FsDisk> {
        self.0.get(place)?.get()
    }

    /// The disk of an identity, also one that was taken away.
    pub(crate) fn called(&self, uuid: &str) -> Option<&FsDisk> {
        self.with_removed().find(|disk| disk.uuid == uuid)
    }

    /// The disk of a number.
    pub(super) fn numbered(&self, id: DiskId) -> Option<&FsDisk> {
        // Numbers are given in turn, so that a disk lies at its own unless others were taken away.
        let at = self.get(usize::from(id.0)).filter(|disk| disk.id == id);
        at.or_else(|| self.with_removed().find(|disk| disk.id == id))
    }

    /// Whether one more can come.
    pub(crate) fn has_room(&self) -> bool {
        self.0.last().is_some_and(|last| last.get().is_none())
    }

    pub(super) fn add(&self, disk: FsDisk) {
        let mut left = Some(disk);
        for place in &self.0 {
            if let Some(disk) = left.take() {
                left = place.set(disk).err();
            }
        }
        if let Some(disk) = left {
            tracing::error!(
                uuid = disk.uuid,
                "too many disks were added since the mount: mount the file system again"
            );
        }
    }
}

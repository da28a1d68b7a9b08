//! Which filesets there are.
//!
//! The catalogue lies in the store of the root fileset: the name of a fileset is an entry of the root directory, and so
//! name and record change in one batch. A store of its own for the catalogue would need a protocol between the two
//! for each change, and save nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{DiskId, Epoch, FilesetId};
use forebay_store::Store;
use parking_lot::{Mutex, RwLock};

use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::number::NUMBER_MAX;
use crate::partition::Partition;
use crate::record::{
    DiskUsage, FilesetRecord, FilesetSettings, Placement, PremigratedTo, Stage, Usage, decode,
};
use crate::recovery::scan_prefix;
use crate::stats::Counters;
use crate::writeset::UsageOfDisks;

/// Where the files of a native fileset are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// In directories of the nodes of a cluster, each a fileset of its own.
    Nodes,
    /// On this disk.
    Disk(String),
}

impl Seat {
    /// That of a fileset with these settings, if it is native. It never changes.
    pub fn of(settings: &FilesetSettings) -> Option<Seat> {
        let is_native = settings.placement == Placement::Native;
        is_native.then(|| settings.disk.clone().map_or(Seat::Nodes, Seat::Disk))
    }
}

/// A fileset that there is.
pub(crate) struct Fileset {
    pub id: FilesetId,
    seat: Option<Seat>,
    settings: RwLock<FilesetSettings>,
    /// Operations since the mount.
    pub counters: Arc<Counters>,
    /// Held while it is opened.
    pub opening: Mutex<()>,
    /// Why it cannot be opened, once that is certain.
    refusal: Mutex<Option<FsError>>,
    /// What it holds, as its store had it when it was not open.
    usage_seen: Mutex<Option<Usage>>,
    /// How many operations there were when it was last found used, and when that was.
    last_use: Mutex<Option<(u64, Instant)>>,
    rest: Mutex<Option<Rest>>,
}

/// What is known of a fileset that this process closed because nobody used it.
struct Rest {
    /// The epoch of its last owner, which it was.
    epoch: Epoch,
    disks: UsageOfDisks,
    premigrated: PremigratedTo,
}

impl Fileset {
    fn new(id: FilesetId, settings: FilesetSettings) -> Fileset {
        Fileset {
            id,
            seat: Seat::of(&settings),
            settings: RwLock::new(settings),
            counters: Arc::default(),
            opening: Mutex::default(),
            refusal: Mutex::default(),
            usage_seen: Mutex::default(),
            last_use: Mutex::default(),
            rest: Mutex::default(),
        }
    }

    /// Where its files are, if it is native.
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// Whether nobody has used it for `idle`.
    pub fn is_unused(&self, now: Instant, idle: Duration) -> bool {
        let operations = self.counters.read().into_iter().fold(0, u64::wrapping_add);
        let mut last_use = self.last_use.lock();
        let seen = last_use.filter(|(then, _)| *then == operations).unwrap_or((operations, now));
        *last_use = Some(seen);
        now.saturating_duration_since(seen.1) >= idle
    }

    /// Notes that it is in use now.
    pub fn used(&self, now: Instant) {
        self.last_use.lock().iter_mut().for_each(|(_, at)| *at = now);
    }

    /// Notes that it rests, as `partition` leaves it.
    pub fn rests(&self, partition: &Partition) {
        let (epoch, disks) = (partition.epoch(), partition.usage_of_disks());
        let premigrated = partition.copies().premigrated();
        *self.usage_seen.lock() = Some(partition.usage());
        *self.rest.lock() = Some(Rest { epoch, disks, premigrated });
    }

    /// Notes that it is open again.
    pub fn is_at_work(&self) {
        *self.rest.lock() = None;
        *self.last_use.lock() = None;
    }

    /// The epoch of its last owner, if it rests.
    pub fn rested_in(&self) -> Option<Epoch> {
        self.rest.lock().as_ref().map(|rest| rest.epoch)
    }

    /// What it holds on a disk, if it rests.
    pub fn usage_at_rest(&self, disk: DiskId) -> DiskUsage {
        let rest = self.rest.lock();
        rest.as_ref().and_then(|rest| rest.disks.get(&disk).copied()).unwrap_or_default()
    }

    /// What lies in archives too, by archive, if it rests.
    pub fn premigrated_at_rest(&self) -> PremigratedTo {
        self.rest.lock().as_ref().map(|rest| rest.premigrated.clone()).unwrap_or_default()
    }

    /// Name and settings in force.
    pub fn settings(&self) -> FilesetSettings {
        self.settings.read().clone()
    }

    /// Changes the settings.
    pub fn set_settings(&self, settings: FilesetSettings) {
        *self.settings.write() = settings;
    }

    /// Changes them at once: nobody sets others in between.
    pub fn change_settings(&self, change: impl FnOnce(&FilesetSettings) -> FilesetSettings) {
        let mut settings = self.settings.write();
        *settings = change(&settings);
    }

    /// Why it cannot be opened, if that is known.
    pub fn refusal(&self) -> Option<FsError> {
        self.refusal.lock().clone()
    }

    /// Notes that it could not be opened. To try again would not help where its store cannot be understood.
    pub fn refused(&self, error: &FsError) {
        if matches!(error, FsError::Damaged(_) | FsError::UnknownVersion(_)) {
            let name = self.settings().name;
            tracing::error!(fileset = name, %error, "a fileset cannot be used");
            *self.refusal.lock() = Some(error.clone());
        }
    }

    /// What it holds while it is not open: asked of `look` once.
    pub fn usage_when_closed(&self, look: impl FnOnce() -> Result<Usage>) -> Result<Usage> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let mut seen = self.usage_seen.lock();
        if let Some(usage) = *seen {
            return Ok(usage);
        }
        let usage = look()?;
        *seen = Some(usage);
        Ok(usage)
    }
}

/// All filesets, and the numbers that earlier ones used.
pub(crate) struct Catalogue {
    filesets: RwLock<BTreeMap<FilesetId, Arc<Fileset>>>,
    /// Of filesets that are gone: the least numbers of inodes and objects that were never used.
    gone: Mutex<BTreeMap<FilesetId, (u64, u64)>>,
}

/// A fileset whose making or removing did not come to its end.
pub(crate) struct Unfinished {
    pub id: FilesetId,
    pub record: FilesetRecord,
}

impl Catalogue {
    /// Reads the catalogue from the store of the root fileset.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if there is no root fileset; what the store says.
    pub fn read(store: &dyn Store) -> Result<(Catalogue, Vec<Unfinished>)> {
        let (mut filesets, mut gone, mut unfinished) =
            (BTreeMap::new(), BTreeMap::new(), Vec::new());
        scan_prefix(store, &[key::FILESET], &mut |key, value| {
            let Some(Key::Fileset(id)) = key::parse(key) else { return Ok(()) };
            let record: FilesetRecord = decode("fileset", value)?;
            match record.stage {
                Stage::Made => {
                    filesets.insert(id, Arc::new(Fileset::new(id, record.settings)));
                }
                Stage::Removed => {
                    gone.insert(id, (record.first_ino, record.first_object));
                }
                Stage::Making | Stage::Removing => unfinished.push(Unfinished { id, record }),
            }
            Ok(())
        })?;
        if !filesets.contains_key(&FilesetId::ROOT) {
            return Err(FsError::Damaged("the record of the root fileset is missing".to_owned()));
        }
        let (filesets, gone) = (RwLock::new(filesets), Mutex::new(gone));
        Ok((Catalogue { filesets, gone }, unfinished))
    }

    /// The catalogue as the root's owner tells it.
    pub fn of(filesets: Vec<(FilesetId, FilesetSettings)>) -> Catalogue {
        let catalogue = Catalogue { filesets: RwLock::default(), gone: Mutex::default() };
        catalogue.adopt(filesets);
        catalogue
    }

    /// Takes over which filesets there are, and their settings; the root is one in any case.
    pub fn adopt(&self, told: Vec<(FilesetId, FilesetSettings)>) {
        let mut filesets = self.filesets.write();
        let told: BTreeMap<FilesetId, FilesetSettings> = told.into_iter().collect();
        filesets.retain(|id, _| *id == FilesetId::ROOT || told.contains_key(id));
        for (id, settings) in told {
            match filesets.get(&id) {
                Some(fileset) => fileset.set_settings(settings),
                None => drop(filesets.insert(id, Arc::new(Fileset::new(id, settings)))),
            }
        }
    }

    /// Takes over everything that another reading of the store found.
    pub fn take_over(&self, other: Catalogue) {
        let told = other.list().into_iter().map(|fileset| (fileset.id, fileset.settings()));
        self.adopt(told.collect());
        *self.gone.lock() = other.gone.into_inner();
    }

    /// The fileset of a number, if there is one.
    pub fn get(&self, id: FilesetId) -> Option<Arc<Fileset>> {
        self.filesets.read().get(&id).cloned()
    }

    /// The fileset called `name`, if there is one.
    pub fn named(&self, name: &str) -> Option<Arc<Fileset>> {
        self.list().into_iter().find(|fileset| fileset.settings.read().name == name)
    }

    /// All filesets in order of their numbers.
    pub fn list(&self) -> Vec<Arc<Fileset>> {
        self.filesets.read().values().cloned().collect()
    }

    /// The least number that no fileset has and that is not `taken`, with the least numbers that were never used in
    /// it.
    pub fn free(&self, taken: &[FilesetId]) -> Option<(FilesetId, (u64, u64))> {
        let filesets = self.filesets.read();
        let is_free = |id: &FilesetId| !filesets.contains_key(id) && !taken.contains(id);
        let gone = self.gone.lock();
        let unused = |id: FilesetId| (id, gone.get(&id).copied().unwrap_or_default());
        let has_numbers = |(_, (ino, _)): &(FilesetId, (u64, u64))| *ino < NUMBER_MAX;
        (1..u16::MAX).map(FilesetId).filter(is_free).map(unused).find(has_numbers)
    }

    /// Whether a fileset that is gone had that number.
    pub fn was_one(&self, id: FilesetId) -> bool {
        self.gone.lock().contains_key(&id)
    }

    /// Adds a fileset.
    pub fn add(&self, id: FilesetId, settings: FilesetSettings) {
        self.filesets.write().insert(id, Arc::new(Fileset::new(id, settings)));
    }

    /// Takes a fileset away, whose numbers below `unused` were used.
    pub fn remove(&self, id: FilesetId, unused: (u64, u64)) {
        self.filesets.write().remove(&id);
        self.gone.lock().insert(id, unused);
    }
}

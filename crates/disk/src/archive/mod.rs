//! A disk whose objects lie packed in an object store or in a directory elsewhere: the archive.
//!
//! Objects are written once, from their beginning to their end, published, and read; nobody changes one. Published means
//! that the store has the whole object. [`Object::sync`] of the handle that wrote it proves that: it reads the
//! object back and compares it with what was written. The packed form is in `format.rs`, the stores behind it in `bucket.rs`.
//!
//! [`Disk::open`] refuses with [`DiskError::Archived`]: programs use a file only after a local copy was made of its object,
//! which [`Disk::read_archived`] reads. So nothing of this costs a file that lies on another disk anything.
//!
//! **What survives.** What is published; an upload that was not completed leaves nothing that can be opened. Removals
//! are carried out by a thread of their own, which tries again while the store does not answer. Those that are
//! left when the process ends are found by [`Disk::list`]: [`Disk::has_removals`] tells for which fileset.
//!
//! A store that does not answer is [`DiskError::Away`], until it answers again. A store without this disk's label is away
//! as well: a directory that is not mounted must not be taken for the archive, neither for reading nor for writing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_base::{FilesetId, ObjectId};
use parking_lot::{Condvar, Mutex};

use self::bucket::{Bucket, BucketError};
use self::counted::CountedBucket;
pub use self::reader::{ArchivedObject, Frames, index_bytes};
use self::writer::{NewObject, Upload};
use crate::directory::Label;
use crate::{Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Requests, Result};

pub mod bucket;
mod counted;
pub mod directory;
pub mod format;
pub mod memory;
pub mod objects;
mod reader;
mod writer;

/// What such a disk is made of begins with this, as [`Disk::describe`] tells.
pub const KIND: &str = "archive";
/// Name of the label in the store.
pub const LABEL: &str = "forebay-disk.toml";
/// What the names of objects begin with.
const OBJECTS: &str = "objects/";
/// How long the thread that removes objects waits for a store that does not answer, before it tries again.
const REMOVAL_PAUSE: Duration = Duration::from_secs(2);
/// How long a sync waits for removals.
const REMOVAL_PATIENCE_SECONDS: u32 = 5;

/// A disk in an object store.
pub struct ArchiveDisk(Arc<Archive>);

/// What the disk, its objects and its thread share.
pub(crate) struct Archive {
    bucket: CountedBucket,
    label: Label,
    location: String,
    identity: u128,
    /// The label was found in the store.
    is_verified: AtomicBool,
    /// Interrupted uploads of an earlier process were removed.
    is_cleared: Mutex<bool>,
    /// Why the store does not answer, since it last did not.
    away: Mutex<Option<String>>,
    /// Objects that are being written, by their numbers.
    uploads: Mutex<BTreeMap<ObjectId, Weak<Upload>>>,
    removals: Mutex<Removals>,
    /// It is to be tried again, or nobody uses the disk any more.
    woken: Condvar,
    /// Nothing is left to remove.
    emptied: Condvar,
}

#[derive(Default)]
struct Removals {
    queue: VecDeque<ObjectId>,
    /// A thread works on them.
    at_work: bool,
    /// Nobody uses the disk any more.
    is_over: bool,
}

/// The name of an object in the store: its fileset and its number, so that those of a fileset can be listed.
fn name_of(id: ObjectId) -> String {
    format!("{OBJECTS}{:04x}/{:016x}", id.fileset().0, id.0)
}

fn id_of(name: &str) -> Option<ObjectId> {
    let (_, number) = name.strip_prefix(OBJECTS)?.split_once('/')?;
    let id = ObjectId(u64::from_str_radix(number, 16).ok()?);
    (name_of(id) == name).then_some(id)
}

impl Archive {
    fn io(&self, id: ObjectId, why: &str) -> DiskError {
        DiskError::Io(format!("archive {}, object {}: {why}", self.location, name_of(id)))
    }

    fn away(&self, what: &str, why: &str) -> DiskError {
        let why = format!("{what}: {why}");
        *self.away.lock() = Some(why.clone());
        DiskError::Away { disk: self.label.disk.clone(), location: self.location.clone(), why }
    }

    /// The disk's word for what the store said of an object.
    fn said<T>(&self, id: ObjectId, outcome: std::result::Result<T, BucketError>) -> Result<T> {
        match outcome {
            Ok(done) => {
                *self.away.lock() = None;
                Ok(done)
            }
            Err(BucketError::NotFound) => {
                // Perhaps it is not the archive that is there.
                self.is_verified.store(false, Ordering::Release);
                self.verify()?;
                Err(DiskError::NotFound(id))
            }
            Err(BucketError::Full) => Err(DiskError::Full),
            Err(BucketError::TooLarge) => Err(DiskError::TooLarge),
            Err(BucketError::Away(why)) => Err(self.away(&name_of(id), &why)),
            Err(BucketError::Refused(why)) => Err(self.io(id, &why)),
        }
    }

    /// Makes sure that the store is this disk's.
    fn verify(&self) -> Result<()> {
        if !self.is_verified.load(Ordering::Acquire) {
            self.look_at_label()?;
        }
        Ok(())
    }

    fn look_at_label(&self) -> Result<()> {
        let found = match self.bucket.get(LABEL, None) {
            Ok(found) => found,
            Err(BucketError::NotFound) => {
                let why = "it is not there, so this is not the archive: is the store mounted, is the bucket the right one?";
                return Err(self.away(LABEL, why));
            }
            Err(error) => return Err(self.away(LABEL, &error.to_string())),
        };
        let found = Label::parse(&String::from_utf8_lossy(&found));
        if found.as_ref() != Some(&self.label) {
            return Err(DiskError::Absent(format!(
                "archive {}: the label {LABEL} there is not that of disk {} of this file system",
                self.location, self.label.disk
            )));
        }
        *self.away.lock() = None;
        self.is_verified.store(true, Ordering::Release);
        // Nothing is uploaded before the label was seen.
        let mut is_cleared = self.is_cleared.lock();
        if !std::mem::replace(&mut *is_cleared, true)
            && let Err(error) = self.bucket.clear_uploads()
        {
            let location = &self.location;
            tracing::warn!(archive = location, %error, "interrupted uploads were not removed");
        }
        Ok(())
    }

    fn remove_later(self: &Arc<Self>, id: ObjectId) {
        let mut removals = self.removals.lock();
        removals.queue.push_back(id);
        if removals.at_work || removals.is_over {
            return;
        }
        let archive = Arc::downgrade(self);
        let started = std::thread::Builder::new()
            .name("archive".to_owned())
            .spawn(move || remove_all_of(&archive));
        removals.at_work = started.is_ok();
    }

    /// Removes the next object. Whether there may be more at once.
    fn remove_next(&self) -> Option<bool> {
        let id = {
            let mut removals = self.removals.lock();
            let next = removals.queue.front().copied();
            if next.is_none() || removals.is_over {
                removals.at_work = false;
                self.emptied.notify_all();
                return None;
            }
            next?
        };
        let gone =
            match self.verify().and_then(|()| self.said(id, self.bucket.remove(&name_of(id)))) {
                Ok(()) | Err(DiskError::NotFound(_)) => true,
                Err(_) => false,
            };
        let mut removals = self.removals.lock();
        removals.queue.pop_front();
        if !gone {
            // Others need not wait for one that is refused.
            removals.queue.push_back(id);
        } else if removals.queue.is_empty() {
            self.emptied.notify_all();
        }
        Some(gone)
    }
}

/// Body of the thread that removes objects.
fn remove_all_of(archive: &Weak<Archive>) {
    loop {
        let Some(archive) = archive.upgrade() else { return };
        match archive.remove_next() {
            None => return,
            Some(true) => {}
            Some(false) => {
                let mut removals = archive.removals.lock();
                if !removals.is_over {
                    archive.woken.wait_for(&mut removals, REMOVAL_PAUSE);
                }
            }
        }
    }
}

impl ArchiveDisk {
    /// Marks an empty place in a store as the disk of `label`. One that is marked so already stays as it is.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if it belongs to another disk, or holds anything; [`DiskError::Away`].
    pub fn format(bucket: &dyn Bucket, label: &Label, location: &str) -> Result<()> {
        let refused = |why: String| DiskError::Refused(format!("archive {location}: {why}"));
        let failed = |error: BucketError| refused(error.to_string());
        match bucket.get(LABEL, None) {
            Ok(found) if Label::parse(&String::from_utf8_lossy(&found)).as_ref() == Some(label) => {
                return Ok(());
            }
            Ok(_) => {
                return Err(refused(
                    "it is the disk of a file system already (forebay-disk.toml): choose another bucket, prefix or directory"
                        .to_owned(),
                ));
            }
            Err(BucketError::NotFound) => {}
            Err(error) => return Err(failed(error)),
        }
        let mut first = None;
        bucket
            .list("", &mut |name, _| {
                first = Some(name.to_owned());
                false
            })
            .map_err(failed)?;
        if let Some(name) = first {
            return Err(refused(format!(
                "it is not empty (it holds {name}): choose another prefix or directory"
            )));
        }
        bucket.put(LABEL, label.text().as_bytes()).map_err(failed)?;
        let found = bucket.get(LABEL, None).map_err(failed)?;
        if Label::parse(&String::from_utf8_lossy(&found)).as_ref() != Some(label) {
            return Err(refused("it does not return what was written to it".to_owned()));
        }
        Ok(())
    }

    /// The label of a place in a store, if it has one.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if the store cannot be asked.
    pub fn read_label(bucket: &dyn Bucket, location: &str) -> Result<Option<Label>> {
        match bucket.get(LABEL, None) {
            Ok(found) => Ok(Label::parse(&String::from_utf8_lossy(&found))),
            Err(BucketError::NotFound) => Ok(None),
            Err(error) => Err(DiskError::Refused(format!("archive {location}: {error}"))),
        }
    }

    /// Takes the label of an empty archive away.
    ///
    /// # Errors
    /// [`DiskError::Refused`] if the store cannot be asked.
    pub fn unformat(bucket: &dyn Bucket, location: &str) -> Result<()> {
        match bucket.remove(LABEL) {
            Ok(()) | Err(BucketError::NotFound) => Ok(()),
            Err(error) => Err(DiskError::Refused(format!("archive {location}: {error}"))),
        }
    }

    /// The disk of `label` in a store. It need not answer yet: the label is looked at before its first use.
    #[must_use]
    pub fn open(bucket: Box<dyn Bucket>, label: Label, location: &str) -> ArchiveDisk {
        let identity = format::identity(&label.file_system, &label.disk);
        ArchiveDisk(Arc::new(Archive {
            bucket: CountedBucket::new(bucket),
            label,
            location: location.to_owned(),
            identity,
            is_verified: AtomicBool::new(false),
            is_cleared: Mutex::new(false),
            away: Mutex::default(),
            uploads: Mutex::default(),
            removals: Mutex::default(),
            woken: Condvar::new(),
            emptied: Condvar::new(),
        }))
    }
}

impl Drop for ArchiveDisk {
    fn drop(&mut self) {
        self.0.removals.lock().is_over = true;
        self.0.woken.notify_all();
    }
}

impl Disk for ArchiveDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        // Whatever is there now may not be what was there before.
        self.0.look_at_label()?;
        Ok(Arc::new(NewObject::new(&self.0)))
    }

    fn publish(&self, id: ObjectId, _object: &dyn Object) -> Result<()> {
        let upload = self.0.uploads.lock().get(&id).and_then(Weak::upgrade);
        upload.ok_or(DiskError::NotFound(id))?.complete(id)
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        Err(DiskError::Archived(id))
    }

    fn is_archive(&self) -> bool {
        true
    }

    fn read_archived(&self, id: ObjectId) -> Result<Arc<ArchivedObject>> {
        self.0.verify().map_err(|error| match error {
            DiskError::Away { disk, location, why } => {
                DiskError::Away { disk, location, why: format!("object {}: {why}", name_of(id)) }
            }
            other => other,
        })?;
        Ok(Arc::new(ArchivedObject::open(&self.0, id)?))
    }

    fn requests(&self) -> Option<Requests> {
        Some(self.0.bucket.requests())
    }

    fn has_removals(&self, fileset: FilesetId) -> bool {
        self.0.removals.lock().queue.iter().any(|id| id.fileset() == fileset)
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        self.0.uploads.lock().remove(&id);
        self.0.remove_later(id);
        Ok(())
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        match self.read_archived(id) {
            Ok(object) => object.attributes().map(Some),
            Err(DiskError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_below(OBJECTS, visit)
    }

    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_below(&format!("{OBJECTS}{:04x}/", fileset.0), visit)
    }

    /// Waits a little for removals that are under way. What was published is durable already.
    fn sync(&self) -> Result<()> {
        let mut removals = self.0.removals.lock();
        let mut patience = REMOVAL_PATIENCE_SECONDS;
        let is_away = || self.0.away.lock().is_some();
        while removals.at_work && !removals.queue.is_empty() && patience > 0 && !is_away() {
            let waited = self.0.emptied.wait_for(&mut removals, Duration::from_secs(1));
            patience -= u32::from(waited.timed_out());
        }
        Ok(())
    }

    /// There is no end to it. A store that did not answer is asked again.
    fn capacity(&self) -> Result<Capacity> {
        if self.0.away.lock().is_some() {
            self.0.look_at_label()?;
        }
        Ok(Capacity::default())
    }

    fn keep_reserve(&self, _bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn give_reserve(&self, _bytes: u64) -> u64 {
        0
    }

    fn describe(&self) -> Description {
        let away = self.0.away.lock().clone();
        let advice = away
            .map(|why| format!("the archive does not answer ({why}): files there wait to be read"));
        Description {
            location: self.0.location.clone(),
            kind: format!("{KIND} ({})", self.0.bucket.kind()),
            advice: advice.into_iter().collect(),
        }
    }
}

impl ArchiveDisk {
    fn list_below(&self, prefix: &str, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.0.verify()?;
        let listed = self.0.bucket.list(prefix, &mut |name, _| id_of(name).is_none_or(&mut *visit));
        match listed {
            Ok(()) => Ok(()),
            Err(error) => Err(self.0.away(prefix, &error.to_string())),
        }
    }
}

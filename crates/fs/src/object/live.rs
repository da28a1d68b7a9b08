//! An object with an open handle.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_disk::{Object, ObjectAttributes};
use parking_lot::Mutex;

use super::{DirectAccess, DiskHealth};
use crate::error::{FsError, Result};
use crate::record::ObjectRef;

/// Whether bytes of an object may be lost. The kernel tells a writeback error once for each of its open files,
/// of which there is one here for all who have the file open, and counts the bytes as written: the next
/// sync would succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    None,
    /// A sync failed that nobody asked for.
    Untold,
    /// Somebody who synced was told.
    Told,
}

/// An object with an open handle. Dropping the last reference closes it.
pub struct LiveObject {
    /// Where it is.
    pub at: ObjectRef,
    /// The open object.
    pub object: Arc<dyn Object>,
    /// Its attributes when it was opened.
    pub opened_attributes: ObjectAttributes,
    pub(super) published: AtomicBool,
    pub(super) publishing: Mutex<()>,
    /// The next sync must cover more than the bytes: the name may not be durable, or the size shrank.
    pub(super) needs_full_sync: AtomicBool,
    /// Held by a sync: those that come after it count on what it covers, and on its failure.
    pub(super) syncing: Mutex<()>,
    pub(super) loss: Mutex<Loss>,
    /// It was synced before it was published: the name must become as durable as the bytes.
    pub(super) synced_nameless: AtomicBool,
    /// The node of its disk, which is another one, may have written it without a word to this one since its size was
    /// taken.
    pub(super) written_at_home: AtomicBool,
    /// The latest look of that node at it, of those that were told here.
    pub(super) latest_look: AtomicU64,
    pub(super) registration: OnceLock<Option<u32>>,
    /// How far it was read, if it is large.
    pub(crate) stream: super::stream::Stream,
    pub(super) direct: Option<Arc<dyn DirectAccess>>,
    pub(super) health: Arc<DiskHealth>,
    pub(super) open_count: Arc<AtomicUsize>,
}

impl LiveObject {
    /// The kernel's registration of the object, made at the first call; `None` if there is no direct
    /// path to it.
    pub fn registration(&self) -> Option<u32> {
        *self.registration.get_or_init(|| {
            let file = self.object.file()?;
            match self.direct.as_ref()?.register(file) {
                Ok(registration) => Some(registration),
                Err(error) => {
                    self.health.direct_refused(&error);
                    None
                }
            }
        })
    }

    /// Whether the kernel has it registered.
    pub(crate) fn has_registration(&self) -> bool {
        self.registration.get().is_some_and(Option::is_some)
    }

    /// Whether somebody else has the object's file open, be it by a mapping. On a disk that all nodes reach: a program of this
    /// node, by a mapping.
    pub fn is_open_elsewhere(&self) -> bool {
        match &self.health.mapped {
            None => self.has_other_users(),
            Some(mapped) => {
                let may_be = mapped.holds(self.at.id);
                let is_mapped = may_be && self.has_other_users();
                if may_be && !is_mapped {
                    mapped.forget(self.at.id);
                }
                is_mapped
            }
        }
    }

    /// Whether somebody else has the object's file open, be it by a mapping; `true` if its disk cannot tell.
    pub(crate) fn has_other_users(&self) -> bool {
        let has_file = self.object.file().is_some() || self.object.remote().is_some();
        has_file && self.object.has_other_writers()
    }

    /// From now on the node of its disk writes it without a word to this one, or has ended to do so.
    pub(crate) fn set_written_at_home(&self, is_written: bool) {
        self.written_at_home.store(is_written, Ordering::Release);
        self.note_home_writes();
    }

    /// Whether size and times are to be asked of the node of its disk.
    pub(crate) fn is_written_at_home(&self) -> bool {
        self.written_at_home.load(Ordering::Acquire)
    }

    /// The node of its disk tells of a look at it. Whether that is the latest one.
    pub(crate) fn is_latest_look(&self, look: u64) -> bool {
        self.latest_look.fetch_max(look, Ordering::AcqRel) <= look
    }

    /// What is written there is not synced as soon as it is written.
    pub(super) fn note_home_writes(&self) {
        if self.is_written_at_home()
            && let Some(object) = self.object.remote()
        {
            object.written_at_home();
        }
    }

    /// Nobody had the file open, and now somebody has: what was lost and told of is over.
    pub fn opened_anew(&self) {
        let mut loss = self.loss.lock();
        if *loss == Loss::Told {
            *loss = Loss::None;
        }
    }

    /// Notes that a sync failed; one that could not be tried has lost nothing.
    pub(super) fn note_loss(&self, error: &FsError, loss: Loss) {
        if !matches!(error, FsError::TooManyFiles(_)) {
            *self.loss.lock() = loss;
        }
    }

    pub(super) fn tell_of_loss(&self) -> Result<()> {
        let mut loss = self.loss.lock();
        if *loss == Loss::None {
            return Ok(());
        }
        *loss = Loss::Told;
        Err(FsError::Io(format!(
            "object {} could not be synced: what was written since the sync before may be lost",
            self.at.id
        )))
    }

    /// Whether the object has its durable name.
    pub fn is_published(&self) -> bool {
        self.published.load(Ordering::Acquire)
    }
}

impl Drop for LiveObject {
    fn drop(&mut self) {
        if let (Some(Some(registration)), Some(direct)) = (self.registration.get(), &self.direct) {
            direct.unregister(*registration);
        }
        self.open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

//! Objects of closed files, kept open for a while in case the file is opened again.
//!
//! A temporary file is usually read or removed soon after it was written; reopening its object would
//! cost two system calls and a registration. When nearly `open_objects_max` objects are open, the
//! ones closed longest ago are published (a fresh object lives only as long as its handle) and closed.
//!
//! Where that fails they stay open, and the next try is due after `commit_interval`; meanwhile no file gets
//! a new object while `open_objects_max` are open.

use std::collections::VecDeque;
use std::time::Instant;

use forebay_base::Ino;
use parking_lot::Mutex;

use crate::error::FsError;
use crate::inode::FileBody;
use crate::owner::Owner;
use crate::shared::Shared;

/// Closed files with live objects, in the order in which they were closed.
#[derive(Default)]
pub(crate) struct IdleObjects {
    queue: Mutex<VecDeque<Ino>>,
    /// When and why the oldest could not be closed, if it could not.
    refusal: Mutex<Option<(Instant, FsError)>>,
}

/// Objects in use from which on the commit thread closes idle ones: at `max` requests do it themselves.
pub(crate) fn enough_open(max: usize) -> usize {
    max - max / 8
}

impl IdleObjects {
    /// Notes that a file was closed.
    pub fn closed(&self, ino: Ino, file: &mut FileBody) {
        if file.live.is_some() && !file.idle_queued {
            file.idle_queued = true;
            self.queue.lock().push_back(ino);
        }
    }

    /// Puts back what was taken as the oldest.
    pub fn put_back(&self, ino: Ino, file: &mut FileBody) {
        file.idle_queued = true;
        self.queue.lock().push_front(ino);
    }

    fn oldest(&self) -> Option<Ino> {
        self.queue.lock().pop_front()
    }

    /// Why objects of closed files stay open, if the latest try failed.
    pub fn refusal(&self) -> Option<FsError> {
        self.refusal.lock().as_ref().map(|(_, error)| error.clone())
    }

    /// Notes why one stays open; the log gets one line until one could be closed again.
    fn refused(&self, ino: Ino, now: Instant, error: FsError) {
        let mut refusal = self.refusal.lock();
        if refusal.is_none() {
            tracing::warn!(%ino, %error, "idle objects stay open");
        }
        *refusal = Some((now, error));
    }

    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }
}

impl Shared {
    /// Closes idle objects while nearly `open_objects_max` are open. Holds no locks when called.
    pub(crate) fn close_idle_objects(&self) {
        let max = self.settings.open_objects_max;
        let now = self.clock.instant();
        let is_recent = |at| now.saturating_duration_since(at) < self.settings.commit_interval;
        if self.idle.refusal.lock().as_ref().is_some_and(|(at, _)| is_recent(*at)) {
            return;
        }
        // Files that were removed meanwhile stay in the queue; four times the bound is their bound.
        while self.objects.in_use_count() > enough_open(max) || self.idle.len() > 4 * max {
            let Some(ino) = self.idle.oldest() else { return };
            let Some(route) = self.owners.find(ino.fileset()) else { continue };
            let closed = match &*route {
                Owner::Local(partition) => partition.close_idle_object(ino),
                // Its files have no objects here.
                Owner::Native(_) | Owner::Remote(_) => Ok(()),
            };
            if let Err(error) = closed {
                return self.idle.refused(ino, now, error);
            }
            *self.idle.refusal.lock() = None;
        }
    }

    /// Objects in use, if there are so many that some should be closed, and any could be.
    pub(crate) fn open_to_close(&self) -> usize {
        let open = self.objects.in_use_count();
        let can_close = open > enough_open(self.settings.open_objects_max) && self.idle.len() > 0;
        if can_close { open } else { 0 }
    }
}

//! Objects of closed files, kept open for a while in case the file is opened again.
//!
//! A temporary file is usually read or removed soon after it was written; reopening its object would
//! cost two system calls and a registration. When nearly `open_objects_max` objects are open, the
//! ones closed longest ago are published (a fresh object lives only as long as its handle) and closed.

use std::collections::VecDeque;

use forebay_base::Ino;
use parking_lot::Mutex;

use crate::error::Result;
use crate::filesystem::FileSystem;
use crate::inode::FileBody;

/// Closed files with live objects, in the order in which they were closed.
#[derive(Default)]
pub(crate) struct IdleObjects(Mutex<VecDeque<Ino>>);

/// Objects in use from which on the commit thread closes idle ones: at `max` requests do it themselves.
pub(crate) fn enough_open(max: usize) -> usize {
    max - max / 8
}

impl IdleObjects {
    /// Notes that a file was closed.
    pub fn closed(&self, ino: Ino, file: &mut FileBody) {
        if file.live.is_some() && !file.idle_queued {
            file.idle_queued = true;
            self.0.lock().push_back(ino);
        }
    }

    /// Puts back what was taken as the oldest.
    fn put_back(&self, ino: Ino, file: &mut FileBody) {
        file.idle_queued = true;
        self.0.lock().push_front(ino);
    }

    fn oldest(&self) -> Option<Ino> {
        self.0.lock().pop_front()
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl FileSystem {
    /// Closes idle objects while nearly `open_objects_max` are open. Holds no locks when called.
    pub(crate) fn close_idle_objects(&self) {
        let max = self.settings.open_objects_max;
        // Files that were removed meanwhile stay in the queue; four times the bound is their bound.
        while self.objects.in_use_count() > enough_open(max) || self.idle.len() > 4 * max {
            let Some(ino) = self.idle.oldest() else { return };
            if let Err(error) = self.close_idle_object(ino) {
                tracing::warn!(%ino, %error, "an idle object stays open");
                return;
            }
        }
    }

    fn close_idle_object(&self, ino: Ino) -> Result<()> {
        let Some(inode) = self.inodes.peek(ino) else { return Ok(()) };
        let mut state = inode.lock();
        let unlinked = state.nlink == 0;
        let Some(file) = state.file_mut() else { return Ok(()) };
        file.idle_queued = false;
        if unlinked || file.opens.handles > 0 {
            return Ok(());
        }
        if let Some(live) = file.live.take() {
            if let Err(error) = self.objects.publish(&live) {
                file.live = Some(live);
                self.idle.put_back(ino, file);
                return Err(error);
            }
            self.writes.lock().published(live.at.id);
            self.objects.drop_handle(live);
        }
        file.settle();
        Ok(())
    }
}

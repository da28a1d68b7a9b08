//! Objects of closed files, kept open for a while in case the file is opened again.
//!
//! A temporary file is usually read or removed soon after it was written; reopening its object would
//! cost two system calls and a registration. When more objects are open than `open_objects_max`, the
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

impl IdleObjects {
    /// Notes that a file was closed.
    pub fn closed(&self, ino: Ino, file: &mut FileBody) {
        if file.live.is_some() && !file.idle_queued {
            file.idle_queued = true;
            self.0.lock().push_back(ino);
        }
    }

    fn oldest(&self) -> Option<Ino> {
        self.0.lock().pop_front()
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl FileSystem {
    /// Closes idle objects while more than `open_objects_max` are open. Holds no locks when called.
    pub(crate) fn close_idle_objects(&self) {
        let max = self.settings.open_objects_max;
        // Files that were removed meanwhile stay in the queue; four times the bound is their bound.
        while self.objects.in_use_count() > max || self.idle.len() > 4 * max {
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
                return Err(error);
            }
            self.writes.lock().published(live.at.id);
            self.objects.drop_handle(live);
        }
        file.settle();
        Ok(())
    }
}

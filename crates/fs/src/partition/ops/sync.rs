//! Making files and names durable.

use forebay_base::Ino;
use forebay_disk::Sync;

use crate::error::Result;
use crate::object::{LiveObject, SeenObject};
use crate::partition::Partition;
use crate::stats::Operation;

impl Partition {
    /// Makes a file's bytes, attributes and name durable, if its fileset is strict; with [`Sync::Data`] its
    /// bytes and what it takes to find them: new times alone then wait for a later commit, as do changes of
    /// other files. In a scratch fileset it returns at once: later commits keep the order.
    ///
    /// # Errors
    /// [`FsError::Io`](crate::FsError::Io), [`FsError::NoSpace`](crate::FsError::NoSpace): nothing is
    /// promised then.
    pub fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        self.sync_file_by(ino, what, None)
    }

    /// As [`Partition::sync_file`], for a node that has just `seen` the object on a disk of its own.
    pub(crate) fn sync_file_by(
        &self,
        ino: Ino,
        what: Sync,
        seen: Option<SeenObject>,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        let live = {
            let mut state = inode.lock();
            self.count(Operation::Sync);
            if !self.is_strict() {
                return Ok(());
            }
            self.refresh_by(ino, &mut state, seen)?;
            let linked = state.nlink > 0;
            let live = state.file().and_then(|file| file.live.clone());
            if linked && live.as_ref().is_some_and(|live| !live.is_published()) {
                // Only objects that a record refers to are published.
                self.put_inode(&mut self.writes.lock(), ino, &mut state);
            }
            live.map(|live| (live, linked))
        };
        // The name first: the sync that follows makes it durable together with the bytes.
        if let Some((live, true)) = &live {
            self.shared.objects.publish(live)?;
        }
        if let Some((live, true)) = &live
            && self.syncs_copies()
        {
            self.shared.objects.sync(live, what)?;
            // Committed with all that is pending: the record of the file and that of its copies.
            self.sync_copies(ino, live)?;
            return self.commit_newest();
        }
        let live = live.map(|(live, _)| live);
        let batch = match what {
            Sync::All => self.writes.lock().newest_batch(),
            Sync::Data => self.writes.lock().batch_for_bytes_of(ino),
        };
        match (live, batch) {
            (Some(live), Some(number)) => self.sync_and_commit(&live, what, number),
            (Some(live), None) => self.shared.objects.sync(&live, what),
            (None, Some(number)) => self.commit_through(number),
            (None, None) => Ok(()),
        }
    }

    /// Syncs an object while a batch is committed: each waits for the device, and neither needs the other. If the
    /// machine crashes between the two, a record may name an object whose bytes were not synced, as after any commit
    /// without a sync: nobody was told that they are durable.
    fn sync_and_commit(&self, live: &LiveObject, what: Sync, number: u64) -> Result<()> {
        std::thread::scope(|scope| {
            let sync = || self.shared.objects.sync(live, what);
            let thread = std::thread::Builder::new().name("sync".to_owned());
            let Ok(syncing) = thread.spawn_scoped(scope, sync) else {
                // The system gives no thread: one after the other.
                sync()?;
                return self.commit_through(number);
            };
            let committed = self.commit_through(number);
            match syncing.join() {
                Ok(synced) => synced.and(committed),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        })
    }

    /// Makes a directory's entries durable, if its fileset is strict.
    ///
    /// # Errors
    /// As [`Partition::sync_file`].
    pub fn sync_directory(&self, ino: Ino) -> Result<()> {
        self.inode(ino)?;
        self.count(Operation::Sync);
        if self.is_strict() { self.commit_newest() } else { Ok(()) }
    }

    fn commit_newest(&self) -> Result<()> {
        let newest = self.writes.lock().newest_batch();
        newest.map_or(Ok(()), |number| self.commit_through(number))
    }
}

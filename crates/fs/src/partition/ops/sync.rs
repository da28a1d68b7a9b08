//! Making files and names durable.

use forebay_base::Ino;
use forebay_disk::Sync;

use crate::error::Result;
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
        let inode = self.inode(ino)?;
        let live = {
            let mut state = inode.lock();
            self.count(Operation::Sync);
            if !self.is_strict() {
                return Ok(());
            }
            self.refresh(ino, &mut state)?;
            let linked = state.nlink > 0;
            let live = state.file().and_then(|file| file.live.clone());
            if linked && live.as_ref().is_some_and(|live| !live.is_published()) {
                // Only objects that a record refers to are published.
                self.put_inode(&mut self.writes.lock(), ino, &mut state);
            }
            live.map(|live| (live, linked))
        };
        if let Some((live, linked)) = live {
            // The name first: the sync that follows makes it durable together with the bytes.
            if linked {
                self.shared.objects.publish(&live)?;
            }
            self.shared.objects.sync(&live, what)?;
        }
        match what {
            Sync::All => self.commit_newest(),
            Sync::Data => {
                let needed = self.writes.lock().batch_for_bytes_of(ino);
                needed.map_or(Ok(()), |number| self.commit_through(number))
            }
        }
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

//! What is done to disks as a whole: syncing them, and finding out whether one still takes what is written to it. On the
//! direct path the kernel meets its errors alone.

use forebay_base::threads::at_once;
use forebay_disk::{Disk, DiskError, Sync};

use super::{FsDisk, Objects};
use crate::error::{FsError, Result};

/// What is written.
const BYTES: [u8; 4096] = [0xfb; 4096];

fn write_some(disk: &dyn Disk) -> forebay_disk::Result<()> {
    let object = disk.create_fresh()?;
    object.write_at(0, &BYTES)?;
    object.sync(Sync::All)
}

/// Disks that are synced at the same time.
const SYNCS_MAX: usize = 16;

impl Objects {
    /// Makes everything durable that was published, written and removed on the disks that are there. Several sync at the same time: a
    /// sync can take long, and a disk of another node adds a round trip.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn sync_disks(&self) -> Result<()> {
        let disks: Vec<&FsDisk> = self.disks.all().filter(|disk| disk.is_expected()).collect();
        let together = |some| at_once("sync-disk", some, |of: &&FsDisk| self.sync_disk(of));
        disks.chunks(SYNCS_MAX).map(together).fold(Ok(()), Result::and)
    }

    fn sync_disk(&self, FsDisk { id, disk, .. }: &FsDisk) -> Result<()> {
        match self.observe(*id, disk.sync()) {
            Err(FsError::Absent(_) | FsError::Away { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes to a fresh object of a disk of this node, which leaves nothing behind. Whether the disk was found to fail, and
    /// was not known to: no new objects come to it from now on.
    pub(crate) fn finds_failing(&self, of: &FsDisk) -> bool {
        let is_asked = of.is_near && of.is_sound() && !of.is_archive();
        let is_absent = || of.disk.describe().kind == forebay_disk::absent::KIND;
        if !is_asked || is_absent() {
            return false;
        }
        let fails = || {
            let written = match write_some(&*of.disk) {
                Err(error @ (DiskError::NotFound(_) | DiskError::Absent(_))) => {
                    Err(DiskError::Io(error.to_string()))
                }
                written => written,
            };
            matches!(self.observe(of.id, written), Err(FsError::Io(_)))
        };
        // Once may be chance.
        if !fails() || !fails() || !of.fails() {
            return false;
        }
        tracing::error!(disk = %of.uuid, "a disk fails: no new files lie on it, and files with copies are read elsewhere");
        self.give_up_stock_of(of.id);
        true
    }
}

//! What is done to disks as a whole: syncing them, and finding out whether one still takes what is written to it. On the
//! direct path the kernel meets its errors alone.

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

impl Objects {
    /// Makes everything durable that was published, written and removed on the disks that are there.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn sync_disks(&self) -> Result<()> {
        for FsDisk { id, disk, .. } in self.disks.all().filter(|disk| disk.is_expected()) {
            match self.observe(*id, disk.sync()) {
                Err(FsError::Absent(_) | FsError::Away { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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

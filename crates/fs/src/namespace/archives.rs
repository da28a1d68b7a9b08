//! Pools of archives: no new file lies there, and no other disk. Striped disks have pools of their own, too.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_base::DiskId;
use forebay_disk::Disk;

use super::{Fileset, Namespace};
use crate::error::{FsError, Result};
use crate::record::{DiskRecord, DiskUse, Placement, Premigrated};

/// What sort of disk a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Archive,
    Striped,
    Other,
}

impl Sort {
    pub fn of(disk: &dyn Disk, is_striped: bool) -> Sort {
        match (disk.is_archive(), is_striped) {
            (true, _) => Sort::Archive,
            (false, true) => Sort::Striped,
            (false, false) => Sort::Other,
        }
    }
}

impl Namespace {
    /// What sort of disk one is.
    pub(super) fn sort_of(&self, record: &DiskRecord) -> Sort {
        let found = self.shared.objects.disk(record.id);
        found.map_or(Sort::Other, |disk| Sort::of(&*disk.disk, disk.is_striped))
    }

    /// Whether files may lie in an archive.
    #[must_use]
    pub fn has_archives(&self) -> bool {
        self.shared.objects.has_archives()
    }

    /// What lies in an archive and on another disk too, in filesets that are open or rest.
    pub(super) fn premigrated_to(&self, disk: DiskId) -> Premigrated {
        let open = self.partitions().into_iter().map(|partition| partition.copies().premigrated());
        let at_rest =
            self.catalogue.list().into_iter().map(|fileset| fileset.premigrated_at_rest());
        open.chain(at_rest).filter_map(|all| all.get(&disk).copied()).sum()
    }

    /// As [`Namespace::check_pool`], for new files, which must not begin in an archive.
    ///
    /// # Errors
    /// [`FsError::Refused`].
    pub(super) fn check_pool_of_files(&self, pool: &str) -> Result<()> {
        self.check_pool(pool)?;
        if self.archive_pools().contains(pool) {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" is made of archives, where no new file can lie: choose another pool, and move files there \
                 with a policy or `forebay migrate`"
            )));
        }
        Ok(())
    }

    /// As [`Namespace::check_pool`], for files that go to an archive and stay here.
    ///
    /// # Errors
    /// [`FsError::Refused`].
    pub(super) fn check_pool_of_archives(&self, pool: &str) -> Result<()> {
        self.check_pool(pool)?;
        if !self.archive_pools().contains(pool) {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" is not made of archives, and a file is premigrated to an archive only: choose a pool of archives \
                 (forebay disk list), or add an archive first (forebay disk add --help)"
            )));
        }
        Ok(())
    }

    /// Pools made of archives.
    pub(super) fn archive_pools(&self) -> HashSet<String> {
        let disks = self.disks.read();
        let archives = disks.iter().filter(|disk| {
            disk.used != DiskUse::Removed && self.shared.objects.is_archive(disk.id)
        });
        archives.map(|disk| disk.pool.clone()).collect()
    }

    /// Refuses a pool that would have archives, or striped disks, and others: new files lie on any disk of their pool.
    pub(super) fn check_mixture(
        &self,
        pool: &str,
        sort: Sort,
        except: Option<DiskId>,
    ) -> Result<()> {
        let disks = self.disks.read();
        let differs = |disk: &&DiskRecord| {
            disk.pool == pool
                && disk.used != DiskUse::Removed
                && Some(disk.id) != except
                && self.sort_of(disk) != sort
        };
        let uses = |fileset: &Arc<Fileset>| {
            let settings = fileset.settings();
            settings.placement != Placement::Native && settings.pool == pool
        };
        let other = disks.iter().find(differs);
        if let Some(other) = other {
            return Err(FsError::Refused(format!(
                "pool \"{pool}\" has the disk {}: a pool is made of archives, of striped disks, or of other disks; choose \
                 another name with --pool",
                other.shown_location(&disks)
            )));
        }
        if sort == Sort::Archive && self.catalogue.list().iter().any(uses) {
            return Err(FsError::Refused(format!(
                "filesets have pool \"{pool}\" for their new files, which cannot lie in an archive: choose another name \
                 with --pool, such as archive"
            )));
        }
        Ok(())
    }
}

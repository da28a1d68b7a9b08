//! The census at work: one pass over the committed inodes of all filesets that this node can read.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{DiskId, FilesetId, Timestamp};

use super::Namespace;
use crate::census::{ArchiveCensus, Census, Counter, FilesetCensus};
use crate::error::{FsError, Result};
use crate::key;
use crate::ops::shown_name;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::{DiskRecord, DiskUse, InodeRecord, Placement, decode};
use crate::recovery::scan_prefix;

/// What was counted of archives, by their disks.
type Archives = BTreeMap<DiskId, ArchiveCensus>;

/// Why a native fileset is not counted.
const NATIVE: &str = "a native fileset is a directory of its disk, whose files are not known here";

impl Namespace {
    /// Counts what the files of each fileset hold, by user and age. Reads all inodes once: for people who ask, not for programs.
    /// A fileset that cannot be counted here says why: native ones, those of other nodes, and damaged ones. The size of a
    /// file that is being written is that of the last commit.
    #[must_use]
    pub fn census(&self) -> Census {
        let begun = self.shared.clock.instant();
        let mut filesets = Vec::new();
        let mut archives = self.archives_to_count();
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            let name = shown_name(&settings.name).to_owned();
            let counted = if settings.placement == Placement::Native {
                Err(FsError::Refused(NATIVE.to_owned()))
            } else {
                let own = self.own_partition(fileset.id);
                own.and_then(|partition| {
                    partition.census(&name, self.shared.clock.now(), &mut archives)
                })
            };
            filesets.push(counted.unwrap_or_else(|why| FilesetCensus {
                fileset: name,
                not_counted: Some(why.to_string()),
                ..FilesetCensus::default()
            }));
        }
        let took = self.shared.clock.instant().saturating_duration_since(begun);
        let archives = archives.into_values().collect();
        Census { filesets, archives, seconds: took.as_secs_f64() }
    }

    fn archives_to_count(&self) -> Archives {
        let disks = self.disks.read();
        let archives = disks.iter().filter(|disk| disk.used != DiskUse::Removed);
        let archives = archives.filter(|disk| self.shared.objects.is_archive(disk.id));
        let empty = |disk: &DiskRecord| {
            let (location, pool) = (disk.location.clone(), disk.pool.clone());
            (disk.id, ArchiveCensus { location, pool, ..ArchiveCensus::default() })
        };
        archives.map(empty).collect()
    }

    /// A fileset that this node owns. In a cluster none is taken over for a census.
    fn own_partition(&self, id: FilesetId) -> Result<Arc<Partition>> {
        if self.cluster.is_none() {
            return self.open_fileset(id);
        }
        match self.shared.owners.find(id).as_deref() {
            Some(Owner::Local(partition)) => Ok(Arc::clone(partition)),
            Some(Owner::Remote(remote)) => {
                let node = remote.node();
                Err(FsError::Refused(format!(
                    "node number {node} of the cluster owns it: run the command there"
                )))
            }
            Some(Owner::Native(_)) => Err(FsError::Refused(NATIVE.to_owned())),
            None => Err(FsError::Refused("this node does not have it open".to_owned())),
        }
    }
}

impl Partition {
    fn census(&self, name: &str, now: Timestamp, archives: &mut Archives) -> Result<FilesetCensus> {
        self.commit()?;
        let mut counter = Counter::new(now);
        scan_prefix(self.store(), &[key::INODE], &mut |_, value| {
            let record: InodeRecord = decode("inode", value)?;
            counter.see(&record);
            let disk = record.layout.object().map(|at| at.disk);
            if let Some(archive) = disk.and_then(|disk| archives.get_mut(&disk)) {
                archive.files += 1;
                archive.bytes = archive.bytes.saturating_add(record.size);
                archive.stored_bytes = archive.stored_bytes.saturating_add(record.allocated_bytes);
            }
            Ok(())
        })?;
        Ok(counter.finish(name.to_owned()))
    }
}

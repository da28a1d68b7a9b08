//! The census at work: one pass over the committed inodes of all filesets that this node can read.

use std::sync::Arc;

use forebay_base::{FilesetId, Timestamp};

use super::Namespace;
use crate::census::{Census, Counter, FilesetCensus};
use crate::error::{FsError, Result};
use crate::key;
use crate::ops::shown_name;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::record::{InodeRecord, Placement, decode};
use crate::recovery::scan_prefix;

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
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            let name = shown_name(&settings.name).to_owned();
            let counted = if settings.placement == Placement::Native {
                Err(FsError::Refused(NATIVE.to_owned()))
            } else {
                let own = self.own_partition(fileset.id);
                own.and_then(|partition| partition.census(&name, self.shared.clock.now()))
            };
            filesets.push(counted.unwrap_or_else(|why| FilesetCensus {
                fileset: name,
                not_counted: Some(why.to_string()),
                ..FilesetCensus::default()
            }));
        }
        let took = self.shared.clock.instant().saturating_duration_since(begun);
        Census { filesets, seconds: took.as_secs_f64() }
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
    fn census(&self, name: &str, now: Timestamp) -> Result<FilesetCensus> {
        self.commit()?;
        let mut counter = Counter::new(now);
        scan_prefix(self.store(), &[key::INODE], &mut |_, value| {
            let record: InodeRecord = decode("inode", value)?;
            counter.see(&record);
            Ok(())
        })?;
        Ok(counter.finish(name.to_owned()))
    }
}

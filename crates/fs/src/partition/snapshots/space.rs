//! What deleting snapshots would give back.

use std::collections::HashMap;

use crate::error::Result;
use crate::partition::Partition;
use crate::record::ObjectRef;
use crate::snapshot::{Freed, SnapshotSpace, SnapshotStage, SnapshotsSpace};

impl Partition {
    /// What deleting each snapshot alone would give back, and deleting all of them. Reads all records of all of them.
    ///
    /// # Errors
    /// What a store or a disk says.
    pub(crate) fn space_of_snapshots(&self, fileset: &str) -> Result<SnapshotsSpace> {
        // None of them comes or goes meanwhile.
        let _one_at_a_time = self.sharing.begin_change();
        self.commit()?;
        let kept = self.kept_copies()?;
        let bounds = self.sharing.known.lock().bounds();
        let mut copies_of: HashMap<u64, Vec<ObjectRef>> = HashMap::new();
        for (number, at) in kept.needed_by_one(&bounds) {
            copies_of.entry(number).or_default().push(at);
        }
        let mut found = SnapshotsSpace { fileset: fileset.to_owned(), ..SnapshotsSpace::default() };
        for (number, record) in self.sharing.list() {
            if record.stage != SnapshotStage::Made {
                continue;
            }
            let (mut alone, mut last) = (Vec::new(), Vec::new());
            let store = self.frozen_store(number)?;
            self.without_newer(number, &*store, &kept, &mut |at, has_older| {
                if has_older { last.push(at) } else { alone.push(at) }
            })?;
            let mut freed = self.held_by(&alone)?;
            found.all.add(freed);
            found.all.add(self.held_by(&last)?);
            freed.add(self.held_by(copies_of.get(&number).map_or(&[], Vec::as_slice))?);
            found.snapshots.push(SnapshotSpace { name: record.name, freed });
        }
        let copies: Vec<ObjectRef> = kept.copies().collect();
        found.all.add(self.held_by(&copies)?);
        Ok(found)
    }

    fn held_by(&self, objects: &[ObjectRef]) -> Result<Freed> {
        let mut held = Freed::default();
        for at in objects {
            let attributes = self.objects_of_all().attributes(*at)?;
            let bytes = attributes.map_or(0, |attributes| attributes.allocated_bytes);
            held.add(Freed { objects: 1, bytes });
        }
        Ok(held)
    }
}

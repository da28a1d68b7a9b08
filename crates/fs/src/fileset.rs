//! Filesets in memory: settings by number, and their counters.

use std::sync::Arc;

use forebay_base::FilesetId;
use parking_lot::RwLock;

use crate::record::{Durability, FilesetRecord, Placement};
use crate::stats::Counters;

/// A fileset.
pub struct Fileset {
    /// Its number.
    pub id: FilesetId,
    /// Its name and settings.
    pub record: FilesetRecord,
    /// Operations on it since the mount.
    pub counters: Arc<Counters>,
}

/// All filesets, by number.
#[derive(Default)]
pub(crate) struct Filesets(RwLock<Vec<Option<Arc<Fileset>>>>);

impl Filesets {
    pub fn set(&self, id: FilesetId, record: FilesetRecord) {
        let mut all = self.0.write();
        let index = id.0 as usize;
        if all.len() <= index {
            all.resize(index + 1, None);
        }
        let counters = all[index].as_ref().map(|old| Arc::clone(&old.counters)).unwrap_or_default();
        all[index] = Some(Arc::new(Fileset { id, record, counters }));
    }

    pub fn remove(&self, id: FilesetId) {
        if let Some(slot) = self.0.write().get_mut(id.0 as usize) {
            *slot = None;
        }
    }

    /// The fileset, or the root fileset where a record names one that is gone.
    pub fn get(&self, id: FilesetId) -> Arc<Fileset> {
        let all = self.0.read();
        let found = all.get(id.0 as usize).and_then(Option::as_ref);
        let root = || all.first().and_then(Option::as_ref);
        Arc::clone(found.or_else(root).expect("the root fileset is always there"))
    }

    pub fn list(&self) -> Vec<Arc<Fileset>> {
        self.0.read().iter().flatten().cloned().collect()
    }

    pub fn by_name(&self, name: &str) -> Option<Arc<Fileset>> {
        self.list().into_iter().find(|fileset| fileset.record.name == name)
    }

    /// The least number that no fileset has.
    pub fn free_id(&self) -> FilesetId {
        let all = self.0.read();
        let free = all.iter().position(Option::is_none).unwrap_or(all.len());
        FilesetId(u32::try_from(free).unwrap_or(u32::MAX))
    }
}

impl Fileset {
    /// Whether fsync waits until data and names are on stable storage.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.record.durability == Durability::Strict
    }

    /// Whether new opens prefer the direct path.
    #[must_use]
    pub fn prefers_direct(&self) -> bool {
        self.record.placement == Placement::Direct
    }
}

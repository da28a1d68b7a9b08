//! Filesets in memory: settings by number, and their counters.

use std::collections::BTreeMap;
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
pub(crate) struct Filesets(RwLock<BTreeMap<FilesetId, Arc<Fileset>>>);

impl Filesets {
    pub fn set(&self, id: FilesetId, record: FilesetRecord) {
        let mut all = self.0.write();
        let counters = all.get(&id).map(|old| Arc::clone(&old.counters)).unwrap_or_default();
        all.insert(id, Arc::new(Fileset { id, record, counters }));
    }

    pub fn remove(&self, id: FilesetId) {
        self.0.write().remove(&id);
    }

    /// The fileset, or the root fileset where a record names one that is gone.
    pub fn get(&self, id: FilesetId) -> Arc<Fileset> {
        self.with(id, Arc::clone)
    }

    /// Shows the fileset of [`Filesets::get`] to `look`, which must be short.
    pub fn with<T>(&self, id: FilesetId, look: impl FnOnce(&Arc<Fileset>) -> T) -> T {
        let all = self.0.read();
        let found = all.get(&id).or_else(|| all.get(&FilesetId::ROOT));
        look(found.expect("the root fileset is always there"))
    }

    pub fn list(&self) -> Vec<Arc<Fileset>> {
        self.0.read().values().cloned().collect()
    }

    pub fn by_name(&self, name: &str) -> Option<Arc<Fileset>> {
        self.list().into_iter().find(|fileset| fileset.record.name == name)
    }

    /// The least number that no fileset has.
    pub fn free_id(&self) -> FilesetId {
        let all = self.0.read();
        (0..=u16::MAX).map(FilesetId).find(|id| !all.contains_key(id)).unwrap_or_default()
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

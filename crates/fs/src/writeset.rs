//! The write set: changes that are made but not yet committed.
//!
//! Operations change memory and add the records they changed here, all records of one operation under
//! one lock, so that whatever is taken out as one batch is a consistent cut. At a commit the pending
//! changes become the *batch in flight*; reads that miss the caches look first at what is pending,
//! then at the batch in flight, then into the store. A record that is made and deleted between two
//! commits leaves nothing here and so nothing in the store.
//!
//! What survives a crash: nothing of this; that is the point.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forebay_base::{DiskId, FilesetId, ObjectId};

use crate::object::LiveObject;
use crate::record::{DiskUsage, ObjectRef, Usage, encode};

/// A new value of a key.
#[derive(Clone, Debug)]
struct Change {
    value: Option<Vec<u8>>,
    /// The store is known to hold nothing under this key.
    fresh: bool,
}

/// What is known of a key before its first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The store holds nothing under this key.
    Absent,
    /// The store may hold a value.
    MayExist,
}

/// Changes that belong to one batch.
#[derive(Default)]
pub struct Changes {
    values: BTreeMap<Vec<u8>, Change>,
    /// Fresh objects that records of this batch refer to: published before the batch is committed.
    publish: HashMap<ObjectId, Arc<LiveObject>>,
    /// Objects of files that took the place of others: synced before the batch is committed, as the old
    /// contents are removed after it.
    pub sync_first: Vec<Arc<LiveObject>>,
    /// Objects that no record refers to once this batch is committed.
    pub removals: Vec<ObjectRef>,
    /// Number of the batch; grows by one with each.
    pub number: u64,
}

impl Changes {
    /// The changes as the store takes them.
    #[must_use]
    pub fn to_store(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        self.values.iter().map(|(key, change)| (key.clone(), change.value.clone())).collect()
    }

    /// Number of records.
    #[must_use]
    pub fn records(&self) -> usize {
        self.values.len()
    }

    /// Fresh objects to publish before the batch is committed.
    pub fn to_publish(&self) -> impl Iterator<Item = &Arc<LiveObject>> {
        self.publish.values()
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.removals.is_empty()
    }
}

/// Where a key's newest uncommitted value was found.
pub enum Uncommitted {
    /// The key is as the store has it.
    Unchanged,
    /// The key has this value, `None` for deleted.
    Changed(Option<Vec<u8>>),
}

/// Uncommitted values by key; `None` for deleted.
pub type Overlay = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// All uncommitted changes. Guarded by one lock of its owner.
pub struct WriteSet {
    pending: Changes,
    in_flight: Option<Arc<Changes>>,
    usage: HashMap<FilesetId, Usage>,
    usage_changed: HashSet<FilesetId>,
    objects: HashMap<DiskId, u64>,
    objects_changed: HashSet<DiskId>,
}

impl WriteSet {
    /// Nothing is uncommitted; filesets and disks hold what `usage` and `objects` say.
    #[must_use]
    pub fn new(usage: HashMap<FilesetId, Usage>, objects: HashMap<DiskId, u64>) -> WriteSet {
        WriteSet {
            pending: Changes { number: 1, ..Changes::default() },
            in_flight: None,
            usage,
            usage_changed: HashSet::new(),
            objects,
            objects_changed: HashSet::new(),
        }
    }

    /// Sets `key` to `value`; `known` counts only for a key that is not pending yet.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>, known: Known) {
        self.pending
            .values
            .entry(key)
            .and_modify(|change| change.value = Some(value.clone()))
            .or_insert_with(|| Change { value: Some(value), fresh: known == Known::Absent });
    }

    /// Deletes `key`.
    pub fn delete(&mut self, key: Vec<u8>) {
        match self.pending.values.get_mut(&key) {
            Some(change) if change.fresh => {
                self.pending.values.remove(&key);
            }
            Some(change) => change.value = None,
            None => {
                self.pending.values.insert(key, Change { value: None, fresh: false });
            }
        }
    }

    /// Has `live` published with the batch that now refers to it.
    pub fn publish(&mut self, live: &Arc<LiveObject>) {
        self.pending.publish.entry(live.at.id).or_insert_with(|| Arc::clone(live));
    }

    /// Takes note that an object was published before its batch, so that it need not stay open for it.
    pub fn published(&mut self, id: ObjectId) {
        self.pending.publish.remove(&id);
    }

    /// Has `live` synced before the batch that now refers to it is committed.
    pub fn sync_first(&mut self, live: Arc<LiveObject>) {
        self.pending.sync_first.push(live);
    }

    /// Has a fresh object that lost its last name left unpublished.
    pub fn withhold(&mut self, id: ObjectId) {
        self.pending.publish.remove(&id);
    }

    /// Drops the reference to an object: if it is published, or may be by the batch in flight, it is
    /// removed once the batch that no longer refers to it is committed. Returns `true` if dropping its
    /// last handle is all that is needed.
    pub fn drop_object(&mut self, at: ObjectRef, published: bool) -> bool {
        self.pending.publish.remove(&at.id);
        let in_flight =
            self.in_flight.as_ref().is_some_and(|batch| batch.publish.contains_key(&at.id));
        if !published && !in_flight {
            return true;
        }
        self.pending.removals.push(at);
        false
    }

    /// Adds to what a fileset holds.
    pub fn count(&mut self, fileset: FilesetId, inodes: i64, bytes: i64) {
        if inodes == 0 && bytes == 0 {
            return;
        }
        let usage = self.usage.entry(fileset).or_default();
        usage.inodes = usage.inodes.saturating_add_signed(inodes);
        // Sparse files can say more than the counter holds: it must come back to what it was.
        usage.bytes = usage.bytes.wrapping_add_signed(bytes);
        self.usage_changed.insert(fileset);
    }

    /// Adds to the objects that records refer to on a disk.
    pub fn count_objects(&mut self, disk: DiskId, objects: i64) {
        let count = self.objects.entry(disk).or_default();
        *count = count.saturating_add_signed(objects);
        self.objects_changed.insert(disk);
    }

    /// Objects that records refer to on a disk.
    #[must_use]
    pub fn objects(&self, disk: DiskId) -> u64 {
        self.objects.get(&disk).copied().unwrap_or_default()
    }

    /// What a fileset holds now.
    #[must_use]
    pub fn usage(&self, fileset: FilesetId) -> Usage {
        self.usage.get(&fileset).copied().unwrap_or_default()
    }

    /// Forgets a fileset's usage.
    pub fn forget_usage(&mut self, fileset: FilesetId) {
        self.usage.remove(&fileset);
        self.usage_changed.remove(&fileset);
        self.delete(crate::key::usage(fileset));
    }

    /// The newest uncommitted value of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Uncommitted {
        let change = self
            .pending
            .values
            .get(key)
            .or_else(|| self.in_flight.as_ref().and_then(|batch| batch.values.get(key)));
        match change {
            Some(change) => Uncommitted::Changed(change.value.clone()),
            None => Uncommitted::Unchanged,
        }
    }

    /// Uncommitted values of `from <= key < to`, the newest of each key, at most about `limit` of them.
    /// The second value is the last key that is covered if the range was cut short.
    #[must_use]
    pub fn range(&self, from: &[u8], to: &[u8], limit: usize) -> (Overlay, Option<Vec<u8>>) {
        let mut found = Overlay::new();
        let mut covered: Option<Vec<u8>> = None;
        if from >= to {
            return (found, covered);
        }
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        let older = self.in_flight.as_ref().map(|batch| &batch.values);
        for values in older.into_iter().chain([&self.pending.values]) {
            let mut last: Option<&Vec<u8>> = None;
            for (index, (key, change)) in values.range::<[u8], _>(bounds).enumerate() {
                if index == limit {
                    covered = covered.into_iter().chain(last.cloned()).min();
                    break;
                }
                found.insert(key.clone(), change.value.clone());
                last = Some(key);
            }
        }
        (found, covered)
    }

    /// Records that are pending.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.values.len()
    }

    /// Number of the batch that holds everything done so far, or `None` if all is committed.
    #[must_use]
    pub fn newest_batch(&self) -> Option<u64> {
        if !self.pending.is_empty() || !self.usage_changed.is_empty() {
            Some(self.pending.number)
        } else {
            self.in_flight.as_ref().map(|batch| batch.number)
        }
    }

    /// Takes all pending changes as the batch in flight; `None` if there are none.
    ///
    /// # Panics
    /// If a batch is in flight already: commits run one at a time.
    pub fn take_batch(&mut self) -> Option<Arc<Changes>> {
        assert!(self.in_flight.is_none(), "one commit at a time");
        for fileset in std::mem::take(&mut self.usage_changed) {
            let usage = self.usage(fileset);
            self.put(crate::key::usage(fileset), encode(&usage), Known::MayExist);
        }
        for disk in std::mem::take(&mut self.objects_changed) {
            let objects = self.objects(disk);
            self.put(crate::key::disk_usage(disk), encode(&DiskUsage { objects }), Known::MayExist);
        }
        if self.pending.is_empty() {
            return None;
        }
        let number = self.pending.number + 1;
        let batch = std::mem::replace(&mut self.pending, Changes { number, ..Changes::default() });
        let batch = Arc::new(batch);
        self.in_flight = Some(Arc::clone(&batch));
        Some(batch)
    }

    /// The batch in flight is in the store.
    pub fn batch_committed(&mut self) {
        self.in_flight = None;
    }

    /// The batch in flight could not be committed: its changes go under the pending ones.
    pub fn batch_failed(&mut self) {
        let Some(batch) = self.in_flight.take() else { return };
        for (key, older) in &batch.values {
            match self.pending.values.get_mut(key) {
                None => {
                    self.pending.values.insert(key.clone(), older.clone());
                }
                Some(newer) if older.fresh && newer.value.is_none() => {
                    self.pending.values.remove(key);
                }
                Some(newer) => newer.fresh = older.fresh,
            }
        }
        for (id, live) in &batch.publish {
            self.pending.publish.entry(*id).or_insert_with(|| Arc::clone(live));
        }
        self.pending.sync_first.extend(batch.sync_first.iter().cloned());
        self.pending.removals.extend_from_slice(&batch.removals);
        let dropped: HashSet<ObjectId> = self.pending.removals.iter().map(|at| at.id).collect();
        self.pending.publish.retain(|id, _| !dropped.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> WriteSet {
        WriteSet::new(HashMap::new(), HashMap::new())
    }

    fn stored(batch: &Changes) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        batch.to_store().into_iter().collect()
    }

    #[test]
    fn what_is_made_and_deleted_between_commits_leaves_nothing() {
        let mut set = set();
        set.put(b"a".to_vec(), b"1".to_vec(), Known::Absent);
        set.put(b"a".to_vec(), b"2".to_vec(), Known::MayExist);
        set.delete(b"a".to_vec());
        assert!(set.take_batch().is_none());
        set.put(b"b".to_vec(), b"1".to_vec(), Known::MayExist);
        set.delete(b"b".to_vec());
        assert_eq!(stored(&set.take_batch().unwrap()), [(b"b".to_vec(), None)]);
    }

    #[test]
    fn a_failed_batch_goes_under_the_newer_changes() {
        let mut set = set();
        set.put(b"a".to_vec(), b"old".to_vec(), Known::Absent);
        set.put(b"b".to_vec(), b"old".to_vec(), Known::Absent);
        set.put(b"c".to_vec(), b"old".to_vec(), Known::MayExist);
        set.take_batch().unwrap();
        set.put(b"a".to_vec(), b"new".to_vec(), Known::MayExist);
        set.delete(b"b".to_vec());
        set.batch_failed();
        let batch = set.take_batch().unwrap();
        assert_eq!(
            stored(&batch),
            [(b"a".to_vec(), Some(b"new".to_vec())), (b"c".to_vec(), Some(b"old".to_vec()))]
        );
        set.batch_committed();
        assert_eq!(set.newest_batch(), None);
    }

    #[test]
    fn reads_see_pending_over_in_flight() {
        let mut set = set();
        set.put(b"a".to_vec(), b"1".to_vec(), Known::Absent);
        set.put(b"b".to_vec(), b"1".to_vec(), Known::Absent);
        set.take_batch().unwrap();
        set.delete(b"b".to_vec());
        assert!(matches!(set.get(b"a"), Uncommitted::Changed(Some(value)) if value == b"1"));
        assert!(matches!(set.get(b"b"), Uncommitted::Changed(None)));
        assert!(matches!(set.get(b"c"), Uncommitted::Unchanged));
        assert_eq!(set.range(b"a", b"z", 10).0.len(), 2);
        set.batch_committed();
        assert!(matches!(set.get(b"a"), Uncommitted::Unchanged));
    }
}

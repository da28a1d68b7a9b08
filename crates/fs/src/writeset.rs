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
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::{DiskId, Ino, ObjectId};
use rustc_hash::{FxHashMap, FxHashSet};

pub use crate::changes::Known;
use crate::changes::Records;
use crate::directory::Child;
use crate::object::LiveObject;
use crate::quota::Quotas;
use crate::record::{DiskUsage, InodeRecord, ObjectRef, Usage, encode};

/// An object that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Where it is.
    pub at: ObjectRef,
    /// Bytes that it gives back, as far as known.
    pub bytes: u64,
}

/// Changes that belong to one batch.
#[derive(Default)]
pub struct Changes {
    records: Records,
    /// Fresh objects that records of this batch refer to: published before the batch is committed.
    publish: HashMap<ObjectId, Arc<LiveObject>>,
    /// Objects of files that took the place of others: synced before the batch is committed, as the old
    /// contents are removed after it.
    pub sync_first: HashMap<ObjectId, Arc<LiveObject>>,
    /// Objects that no record refers to once this batch is committed.
    pub removals: Vec<Removal>,
    /// Number of the batch; grows by one with each.
    pub number: u64,
}

impl Changes {
    /// The changes as the store takes them.
    #[must_use]
    pub fn to_store(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        self.records.to_store()
    }

    /// Number of records.
    #[must_use]
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// Fresh objects to publish before the batch is committed.
    pub fn to_publish(&self) -> impl Iterator<Item = &Arc<LiveObject>> {
        self.publish.values()
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.removals.is_empty()
    }
}

/// Where a key's newest uncommitted value was found.
pub enum Uncommitted<V> {
    /// The key is as the store has it.
    Unchanged,
    /// The key has this value, `None` for deleted.
    Changed(Option<V>),
}

/// Uncommitted values by key; `None` for deleted.
pub type Overlay = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a fileset holds on disks.
pub type UsageOfDisks = FxHashMap<DiskId, DiskUsage>;

/// All uncommitted changes. Guarded by one lock of its owner.
pub struct WriteSet {
    pending: Changes,
    in_flight: Option<Arc<Changes>>,
    usage: Usage,
    usage_changed: bool,
    disks: UsageOfDisks,
    disks_changed: FxHashSet<DiskId>,
    /// Quotas, where there are any.
    pub(crate) quotas: Option<Box<Quotas>>,
    crowd: Arc<Crowd>,
}

/// Raised by a write set that holds more than it should before the next commit; shared by those of all partitions.
#[derive(Debug, Default)]
pub struct Crowd {
    raised: AtomicBool,
    records_max: usize,
    to_sync_max: usize,
}

impl Crowd {
    /// Raised at more than `records_max` records, or `to_sync_max` objects to be synced first, in one write set.
    #[must_use]
    pub fn above(records_max: usize, to_sync_max: usize) -> Crowd {
        Crowd { raised: AtomicBool::new(false), records_max, to_sync_max }
    }

    /// Raises it.
    pub fn raise(&self) {
        if !self.is_raised() {
            self.raised.store(true, Ordering::Release);
        }
    }

    /// Whether it is raised.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Lowers it; returns whether it was raised.
    pub fn lower(&self) -> bool {
        self.is_raised() && self.raised.swap(false, Ordering::AcqRel)
    }
}

impl WriteSet {
    /// Nothing is uncommitted; the fileset holds what `usage` and `disks` say.
    #[must_use]
    pub fn new(usage: Usage, disks: UsageOfDisks, crowd: Arc<Crowd>) -> WriteSet {
        WriteSet {
            pending: Changes { number: 1, ..Changes::default() },
            in_flight: None,
            usage,
            usage_changed: false,
            disks,
            disks_changed: FxHashSet::default(),
            quotas: None,
            crowd,
        }
    }

    /// Tells if there is more than there should be.
    fn look_around(&self) {
        let is_crowded = self.pending.record_count() > self.crowd.records_max
            || self.pending.sync_first.len() > self.crowd.to_sync_max;
        if is_crowded {
            self.crowd.raise();
        }
    }

    /// Sets `key`, which is none of an inode or entry, to `value`; `known` counts only for a key that is
    /// not pending yet.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>, known: Known) {
        self.pending.records.put(key, value, known);
        self.look_around();
    }

    /// Deletes `key`, which is none of an inode or entry.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.pending.records.delete(key);
        self.look_around();
    }

    /// Sets an inode's record; `known` as for [`WriteSet::put`].
    pub fn put_inode(&mut self, ino: Ino, record: InodeRecord, known: Known) {
        self.pending.records.put_inode(ino, record, known);
        self.look_around();
    }

    /// Sets an inode's record that differs from the one before in nothing but times and allocation.
    pub fn put_times(&mut self, ino: Ino, record: InodeRecord) {
        self.pending.records.put_times(ino, record);
        self.look_around();
    }

    /// Deletes an inode's record.
    pub fn delete_inode(&mut self, ino: Ino) {
        self.pending.records.delete_inode(ino);
        self.look_around();
    }

    /// Sets a directory entry; `known` as for [`WriteSet::put`].
    pub(crate) fn put_entry(&mut self, parent: Ino, cookie: u64, child: Child, known: Known) {
        self.pending.records.put_entry(parent, cookie, child, known);
        self.look_around();
    }

    /// Deletes a directory entry.
    pub fn delete_entry(&mut self, parent: Ino, cookie: u64) {
        self.pending.records.delete_entry(parent, cookie);
        self.look_around();
    }

    /// Has `live` published with the batch that now refers to it.
    pub fn publish(&mut self, live: &Arc<LiveObject>) {
        self.pending.publish.entry(live.at.id).or_insert_with(|| Arc::clone(live));
    }

    /// Has an object not published with a batch: it is published already, or lost its last name unpublished.
    pub fn withhold(&mut self, id: ObjectId) {
        self.pending.publish.remove(&id);
    }

    /// Has `live` synced before the batch that now refers to it is committed.
    pub fn sync_first(&mut self, live: Arc<LiveObject>) {
        self.pending.sync_first.insert(live.at.id, live);
        self.look_around();
    }

    /// Objects that wait, open, to be synced before the next batch.
    #[must_use]
    pub fn to_sync_first(&self) -> usize {
        self.pending.sync_first.len()
    }

    /// Drops the reference to an object: if it is published, or may be by the batch in flight, it is
    /// removed once the batch that no longer refers to it is committed, and gives `bytes` back. Returns `true`
    /// if dropping its last handle is all that is needed.
    pub fn drop_object(&mut self, at: ObjectRef, bytes: u64, published: bool) -> bool {
        self.pending.publish.remove(&at.id);
        // A file that was itself replaced meanwhile needs no sync, and must not stay open for one.
        self.pending.sync_first.remove(&at.id);
        let in_flight =
            self.in_flight.as_ref().is_some_and(|batch| batch.publish.contains_key(&at.id));
        if !published && !in_flight {
            return true;
        }
        self.pending.removals.push(Removal { at, bytes });
        false
    }

    /// Objects that are to be removed after a commit that has not begun.
    pub fn pending_removals(&self) -> impl Iterator<Item = ObjectRef> {
        self.pending.removals.iter().map(|removal| removal.at)
    }

    /// Whether objects wait to be removed after a commit.
    #[must_use]
    pub fn has_removals(&self) -> bool {
        let batches = [Some(&self.pending), self.in_flight.as_deref()];
        batches.into_iter().flatten().any(|batch| !batch.removals.is_empty())
    }

    /// Adds to what the fileset holds.
    pub fn count(&mut self, inodes: i64, bytes: i64) {
        if inodes == 0 && bytes == 0 {
            return;
        }
        self.usage.inodes = self.usage.inodes.saturating_add_signed(inodes);
        // Sparse files can say more than the counter holds: it must come back to what it was.
        self.usage.bytes = self.usage.bytes.wrapping_add_signed(bytes);
        self.usage_changed = true;
    }

    /// Adds to the objects that records refer to on a disk, and to the bytes of files there and what these take.
    pub fn count_on(&mut self, disk: DiskId, objects: i64, (bytes, stored_bytes): (i64, i64)) {
        self.disks.entry(disk).or_default().add(objects, bytes, stored_bytes);
        self.disks_changed.insert(disk);
    }

    /// What the fileset holds on a disk.
    #[must_use]
    pub fn usage_of(&self, disk: DiskId) -> DiskUsage {
        self.disks.get(&disk).copied().unwrap_or_default()
    }

    /// What the fileset holds, by disk.
    #[must_use]
    pub fn usage_of_disks(&self) -> &UsageOfDisks {
        &self.disks
    }

    /// What the fileset holds now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Changed records, the newest first.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Records> {
        let older = self.in_flight.as_ref().map(|batch| &batch.records);
        [&self.pending.records].into_iter().chain(older)
    }

    /// The newest uncommitted value of `key`, which is none of an inode or entry.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Uncommitted<Vec<u8>> {
        match self.layers().find_map(|records| records.value(key)) {
            Some(value) => Uncommitted::Changed(value.cloned()),
            None => Uncommitted::Unchanged,
        }
    }

    /// The newest uncommitted record of an inode.
    #[must_use]
    pub fn inode(&self, ino: Ino) -> Uncommitted<InodeRecord> {
        match self.layers().find_map(|records| records.inode(ino)) {
            Some(record) => Uncommitted::Changed(record.cloned()),
            None => Uncommitted::Unchanged,
        }
    }

    /// Uncommitted values of `from <= key < to`, the newest of each key, at most about `limit` of them.
    /// The second value is the last key that is covered if the range was cut short. Not for inodes.
    #[must_use]
    pub fn range(&self, from: &[u8], to: &[u8], limit: usize) -> (Overlay, Option<Vec<u8>>) {
        let mut found = Overlay::new();
        let mut covered: Option<Vec<u8>> = None;
        if from >= to {
            return (found, covered);
        }
        for records in self.layers() {
            let mut last: Option<Vec<u8>> = None;
            for (index, (key, value)) in records.range(from, to).enumerate() {
                if index == limit {
                    covered = covered.into_iter().chain(last).min();
                    break;
                }
                // Newer layers come first.
                found.entry(key.clone()).or_insert(value);
                last = Some(key);
            }
        }
        (found, covered)
    }

    /// Directories with changed entries.
    #[must_use]
    pub fn changed_directories(&self) -> Vec<Ino> {
        let mut found: Vec<Ino> = self.layers().flat_map(Records::changed_directories).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Records that are pending.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.record_count()
    }

    /// Records that are pending or in flight.
    #[must_use]
    pub fn uncommitted_len(&self) -> usize {
        self.pending_len() + self.in_flight.as_ref().map_or(0, |batch| batch.record_count())
    }

    /// Number of the batch that holds everything done so far, or `None` if all is committed.
    #[must_use]
    pub fn newest_batch(&self) -> Option<u64> {
        let quotas_changed = self.quotas.as_ref().is_some_and(|quotas| quotas.has_changes());
        if !self.pending.is_empty() || self.usage_changed || quotas_changed {
            Some(self.pending.number)
        } else {
            self.in_flight.as_ref().map(|batch| batch.number)
        }
    }

    /// Number of the newest batch without which an inode's bytes could not be found after a crash, or `None`
    /// if the store has what that takes.
    #[must_use]
    pub fn batch_for_bytes_of(&self, ino: Ino) -> Option<u64> {
        let batches = [Some(&self.pending), self.in_flight.as_deref()];
        let needed = |batch: &&Changes| batch.records.changes_more_than_times(ino);
        batches.into_iter().flatten().find(needed).map(|batch| batch.number)
    }

    /// Takes all pending changes as the batch in flight; `None` if there are none.
    ///
    /// # Panics
    /// If a batch is in flight already: commits run one at a time.
    pub fn take_batch(&mut self) -> Option<Arc<Changes>> {
        assert!(self.in_flight.is_none(), "one commit at a time");
        if std::mem::take(&mut self.usage_changed) {
            self.put(crate::key::USAGE.to_vec(), encode(&self.usage), Known::MayExist);
        }
        for disk in std::mem::take(&mut self.disks_changed) {
            let usage = encode(&self.usage_of(disk));
            self.put(crate::key::disk_usage(disk), usage, Known::MayExist);
        }
        self.put_quotas();
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

    /// The batch in flight was not committed, as far as is known: its changes go under the pending ones.
    pub fn batch_failed(&mut self) {
        let Some(batch) = self.in_flight.take() else { return };
        self.pending.records.put_under(&batch.records);
        for (id, live) in &batch.publish {
            self.pending.publish.entry(*id).or_insert_with(|| Arc::clone(live));
        }
        for (id, live) in &batch.sync_first {
            self.pending.sync_first.entry(*id).or_insert_with(|| Arc::clone(live));
        }
        self.pending.removals.extend_from_slice(&batch.removals);
        let dropped: HashSet<ObjectId> =
            self.pending.removals.iter().map(|removal| removal.at.id).collect();
        self.pending.publish.retain(|id, _| !dropped.contains(id));
        self.pending.sync_first.retain(|id, _| !dropped.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> WriteSet {
        WriteSet::new(Usage::default(), UsageOfDisks::default(), Arc::new(Crowd::above(1000, 1000)))
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
            [
                (b"a".to_vec(), Some(b"new".to_vec())),
                // The store may have taken it before it failed.
                (b"b".to_vec(), None),
                (b"c".to_vec(), Some(b"old".to_vec()))
            ]
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

    type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

    fn apply(pairs: &mut Pairs, changes: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>) {
        for (key, value) in changes {
            match value {
                Some(value) => pairs.insert(key, value),
                None => pairs.remove(&key),
            };
        }
    }

    /// A key of few, so that changes meet: kinds in turn, parents 1 and 2.
    fn place(number: u8) -> (Ino, u64) {
        (Ino(1 + u64::from(number % 2)), 128 + u64::from(number / 2))
    }

    fn key_of(kind: u8, number: u8) -> Vec<u8> {
        let (parent, cookie) = place(number);
        match kind {
            0 => crate::key::inode(Ino(number.into())),
            1 => crate::key::entry(parent, cookie),
            _ => crate::key::xattr(parent, &[number]),
        }
    }

    fn change(set: &mut WriteSet, truth: &mut Pairs, kind: u8, number: u8, value: Option<u8>) {
        let key = key_of(kind, number);
        let known = if truth.contains_key(&key) { Known::MayExist } else { Known::Absent };
        let (parent, cookie) = place(number);
        let ino = Ino(number.into());
        let encoded = match (kind, value) {
            (0, Some(value)) => {
                let mut state = crate::ops::fileset_root(
                    forebay_base::FilesetId::ROOT,
                    0o755,
                    forebay_base::Timestamp::default(),
                );
                state.uid = value.into();
                let record = state.record(forebay_base::Epoch(1));
                set.put_inode(ino, record.clone(), known);
                Some(encode(&record))
            }
            (1, Some(value)) => {
                let name = crate::directory::Name::from_slice(&[b'a' + value % 26]);
                let child = Child { ino, kind: crate::record::Kind::File, name };
                set.put_entry(parent, cookie, child.clone(), known);
                Some(encode(&child.record()))
            }
            (_, Some(value)) => {
                set.put(key.clone(), vec![value], known);
                Some(vec![value])
            }
            (kind, None) => {
                match kind {
                    0 => set.delete_inode(ino),
                    1 => set.delete_entry(parent, cookie),
                    _ => set.delete(key.clone()),
                }
                None
            }
        };
        apply(truth, [(key, encoded)]);
    }

    fn assert_reads_are_newest(set: &WriteSet, stored: &Pairs, truth: &Pairs) {
        for parent in [Ino(1), Ino(2)] {
            for (from, to) in [crate::key::entries(parent, 0, u64::MAX), crate::key::xattrs(parent)]
            {
                let mut seen: Pairs = stored.range(from.clone()..to.clone()).map(own).collect();
                apply(&mut seen, set.range(&from, &to, 1000).0);
                assert_eq!(seen, truth.range(from..to).map(own).collect());
            }
        }
        for number in 0..16 {
            let key = key_of(0, number);
            let seen = match set.inode(Ino(number.into())) {
                Uncommitted::Changed(record) => record.map(|record| encode(&record)),
                Uncommitted::Unchanged => stored.get(&key).cloned(),
            };
            assert_eq!(seen.as_ref(), truth.get(&key));
        }
    }

    fn own((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
        (key.clone(), value.clone())
    }

    proptest::proptest! {
        /// Whatever is done while a batch is committed, the store gets the state at which it was taken.
        #[test]
        fn a_batch_is_the_state_at_which_it_was_taken(
            steps in proptest::collection::vec((0_u8..5, 0_u8..16, proptest::option::of(0_u8..9)), 1..200)
        ) {
            let mut set = set();
            let (mut truth, mut stored) = (Pairs::new(), Pairs::new());
            let mut taken: Option<(Option<Arc<Changes>>, Pairs)> = None;
            for (kind, number, value) in steps {
                match (kind, taken.take()) {
                    (3, None) => taken = Some((set.take_batch(), truth.clone())),
                    (3, Some((batch, cut))) => {
                        apply(&mut stored, batch.iter().flat_map(|batch| batch.to_store()));
                        assert_eq!(stored, cut);
                        set.batch_committed();
                    }
                    (4, Some((batch, _))) => {
                        // A store that fails may have taken the batch all the same.
                        if number % 2 == 1 {
                            apply(&mut stored, batch.iter().flat_map(|batch| batch.to_store()));
                        }
                        set.batch_failed();
                    }
                    (4, None) => {}
                    (kind, under_way) => {
                        taken = under_way;
                        change(&mut set, &mut truth, kind, number, value);
                    }
                }
                assert_reads_are_newest(&set, &stored, &truth);
            }
        }
    }

    #[test]
    fn a_range_of_entries_goes_on_after_a_key() {
        let mut set = set();
        let mut truth = Pairs::new();
        for number in 0..16 {
            change(&mut set, &mut truth, 1, number, Some(number));
        }
        let (mut from, to) = crate::key::entries(Ino(2), 0, u64::MAX);
        let mut seen = Pairs::new();
        loop {
            let (rows, covered) = set.range(&from, &to, 3);
            apply(&mut seen, rows);
            let Some(covered) = covered else { break };
            from = covered;
            from.push(0);
        }
        let (first, last) = crate::key::entries(Ino(2), 0, u64::MAX);
        assert_eq!(seen, truth.range(first..last).map(own).collect());
        assert_eq!(seen.len(), 8);
    }
}

//! The quotas of a fileset at work: admitting what is about to be added, and counting it for owners.
//!
//! Where no quota is set, all this costs a look at a flag. The lock is that of the write set, which every change takes
//! anyway.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use forebay_base::{Ino, Timestamp};
use forebay_store::Store;
use smallvec::SmallVec;

use crate::error::Result;
use crate::inode::{Counted, State};
use crate::key::{self, Key};
use crate::partition::Partition;
use crate::quota::{
    Holding, Limited, More, Owners, Quota, QuotaRecord, Quotas, Share, Subject, share_of,
    subjects_of,
};
use crate::record::{InodeRecord, Usage, decode};
use crate::recovery::scan_prefix;
use crate::writeset::{Known, WriteSet};

/// Records that are counted together.
const PIECE: usize = 4096;

/// Reads the quotas of a store.
///
/// # Errors
/// What the store says; [`FsError::Damaged`].
pub(crate) fn read_quotas(store: &dyn Store) -> Result<Option<Box<Quotas>>> {
    let mut records = BTreeMap::new();
    scan_prefix(store, &[key::QUOTA], &mut |key, value| {
        if let Some(Key::Quota(subject)) = key::parse(key) {
            records.insert(subject, decode::<QuotaRecord>("quota", value)?);
        }
        Ok(())
    })?;
    let mut held = std::collections::HashMap::new();
    scan_prefix(store, &[key::HOLDING], &mut |key, value| {
        if let Some(Key::Holding(subject)) = key::parse(key) {
            held.insert(subject, decode::<Holding>("holding", value)?.0);
        }
        Ok(())
    })?;
    Ok(Quotas::read(records, held))
}

/// Whom something is admitted for.
type Subjects = SmallVec<[Subject; 3]>;

/// What was admitted and is not counted yet; given back when it is dropped.
pub(crate) struct Reserved<'a> {
    partition: &'a Partition,
    subjects: Subjects,
    more: More,
}

impl Reserved<'_> {
    /// It is counted by now, under this lock.
    pub fn settle(mut self, writes: &mut WriteSet) {
        if let Some(quotas) = &mut writes.quotas {
            quotas.release(&self.subjects, std::mem::take(&mut self.more));
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.more != More::default()
            && let Some(quotas) = &mut self.partition.writes.lock().quotas
        {
            quotas.release(&self.subjects, self.more);
        }
    }
}

/// Settles what was admitted, if anything had to be.
pub(crate) fn settle(reserved: Option<Reserved<'_>>, writes: &mut WriteSet) {
    reserved.into_iter().for_each(|reserved| reserved.settle(writes));
}

fn owners_of(state: &State) -> Owners {
    (state.uid, state.gid)
}

impl Partition {
    /// Whether any quota is set.
    pub(crate) fn has_quotas(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Has the flag say whether there are quotas.
    pub(super) fn note_quotas(&self, writes: &WriteSet) {
        let limited = writes.quotas.as_ref().is_some_and(|quotas| quotas.has_limits());
        self.limited.store(limited, Ordering::Relaxed);
    }

    fn admit_for(&self, subjects: Subjects, more: More) -> Result<Option<Reserved<'_>>> {
        let now = self.now();
        let mut writes = self.writes.lock();
        let all = writes.usage();
        let Some(quotas) = &mut writes.quotas else { return Ok(None) };
        quotas.reserve(&subjects, more, all, now)?;
        drop(writes);
        Ok(Some(Reserved { partition: self, subjects, more }))
    }

    /// Admits a new inode, or the first name of one that has none, with `bytes`. No lock but that of inodes is held.
    ///
    /// # Errors
    /// [`FsError::QuotaExceeded`].
    pub(crate) fn admit_inode(&self, state: &State, bytes: u64) -> Result<Option<Reserved<'_>>> {
        if !self.has_quotas() {
            return Ok(None);
        }
        let subjects = subjects_of(owners_of(state)).into();
        self.admit_for(subjects, More { inodes: 1, bytes })
    }

    /// Admits that a file grows until `end`. A file without a name counts for nobody.
    ///
    /// # Errors
    /// [`FsError::QuotaExceeded`].
    pub(crate) fn admit_growth(&self, state: &State, end: u64) -> Result<Option<Reserved<'_>>> {
        if !self.has_quotas() || state.nlink == 0 || end <= state.size {
            return Ok(None);
        }
        let more = More { inodes: 0, bytes: end - state.size };
        self.admit_for(subjects_of(owners_of(state)).into(), more)
    }

    /// Admits that an inode gets other owners: those that have it already are not asked.
    ///
    /// # Errors
    /// [`FsError::QuotaExceeded`].
    pub(crate) fn admit_owners(&self, state: &State, to: Owners) -> Result<Option<Reserved<'_>>> {
        if !self.has_quotas() || state.nlink == 0 || owners_of(state) == to {
            return Ok(None);
        }
        let from = subjects_of(owners_of(state));
        // Moving within the fileset adds nothing to it.
        let new = subjects_of(to).into_iter().filter(|subject| !from.contains(subject)).collect();
        self.admit_for(new, More { inodes: 1, bytes: state.counts().bytes })
    }

    /// An inode has got other owners; its record follows under the same lock.
    pub(crate) fn move_owners(&self, writes: &mut WriteSet, ino: Ino, state: &State, from: Owners) {
        if let (Some(quotas), Some(counted)) = (&mut writes.quotas, state.counted) {
            quotas.transfer(ino, from, owners_of(state), counted.bytes);
        }
    }

    /// Bytes that a file may still grow by.
    pub(crate) fn quota_room(&self, state: &State) -> u64 {
        if !self.has_quotas() || state.nlink == 0 {
            return u64::MAX;
        }
        let now = self.now();
        let writes = self.writes.lock();
        let all = writes.usage();
        writes.quotas.as_ref().map_or(u64::MAX, |quotas| quotas.room(owners_of(state), all, now))
    }

    /// Begins and ends times of grace, before a batch is taken.
    pub(crate) fn look_at_quotas(&self) {
        if self.has_quotas() {
            let now = self.now();
            let mut writes = self.writes.lock();
            let all = writes.usage();
            writes.quotas.iter_mut().for_each(|quotas| quotas.look(all, now));
        }
    }

    /// The quotas that limit somebody with what is held of each, and what the fileset holds.
    pub(crate) fn quotas(&self) -> (Vec<Limited>, Usage) {
        let writes = self.writes.lock();
        let all = writes.usage();
        let limited = writes.quotas.as_ref().map(|quotas| quotas.limited(all));
        (limited.unwrap_or_default(), all)
    }

    /// Sets a quota, and commits that. If it is the first one of a user or group, all of the fileset is counted first.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn set_quota(&self, subject: Subject, quota: Quota) -> Result<()> {
        let _one_at_a_time = self.quota_changes.lock();
        let counted =
            |writes: &WriteSet| writes.quotas.as_ref().is_some_and(|quotas| quotas.counts_owners());
        let counts = subject != Subject::Fileset && !counted(&self.writes.lock());
        if counts {
            let done = self.count_owners().and_then(|()| Ok(self.reach("quota.counted")?));
            if let Err(error) = done {
                let mut writes = self.writes.lock();
                writes.quotas.iter_mut().for_each(|quotas| quotas.give_up_counting());
                return Err(error);
            }
        }
        {
            let mut writes = self.writes.lock();
            let all = writes.usage();
            let quotas = writes.quotas.get_or_insert_default();
            if counts {
                quotas.finish_counting();
            }
            quotas.set(subject, quota);
            quotas.look(all, self.now());
            self.note_quotas(&writes);
        }
        // Other nodes make no more files without asking; those that they have made are counted.
        self.granting.iter().for_each(|granting| granting.take_directories_back());
        self.reach("quota.set")?;
        self.commit()
    }

    /// Removes a quota, and commits that. Whether there was one.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn remove_quota(&self, subject: Subject) -> Result<bool> {
        let _one_at_a_time = self.quota_changes.lock();
        let was_there = {
            let mut writes = self.writes.lock();
            let found = writes.quotas.as_mut().is_some_and(|quotas| quotas.remove(subject));
            self.note_quotas(&writes);
            found
        };
        if was_there {
            self.commit()?;
        }
        Ok(was_there)
    }

    fn reach(&self, point: &'static str) -> std::result::Result<(), forebay_base::PowerCut> {
        self.shared.fail_points.reach(point)
    }

    /// Counts what owners hold, all but the last step, while others go on.
    fn count_owners(&self) -> Result<()> {
        {
            let mut writes = self.writes.lock();
            let changed = writes.changed_shares();
            writes.quotas.get_or_insert_default().begin_counting(changed);
        }
        let (mut from, to) = key::prefix_range(&[key::INODE]);
        loop {
            let rows = self.store.scan(&from, &to, PIECE)?;
            let mut piece: Vec<(Ino, Share)> = Vec::with_capacity(rows.len());
            for (key, value) in &rows {
                let Some(Key::Inode(ino)) = key::parse(key) else { continue };
                piece.push((ino, share_of(&decode::<InodeRecord>("inode", value)?)));
            }
            let last = rows.last().map(|(key, _)| key.clone());
            let until = piece.last().map(|(ino, _)| Ino(ino.0.saturating_add(1)));
            if let Some(quotas) = &mut self.writes.lock().quotas
                && until.is_some()
            {
                quotas.count_piece(piece, until);
            }
            let Some(last) = last.filter(|_| rows.len() == PIECE) else { return Ok(()) };
            from = last;
            from.push(0);
        }
    }
}

impl WriteSet {
    /// An inode counts for what `now` says instead of `before`, in its owners' quotas.
    pub(super) fn count_for_owners(
        &mut self,
        ino: Ino,
        state: &State,
        before: Option<Counted>,
        now: Option<Counted>,
    ) {
        if let Some(quotas) = &mut self.quotas {
            let bytes = |counted: Option<Counted>| counted.map(|counted| counted.bytes);
            quotas.count(ino, owners_of(state), bytes(before), bytes(now));
        }
    }

    /// Hands what has changed of quotas to the batch that is about to be taken.
    pub(crate) fn put_quotas(&mut self) {
        let Some(quotas) = &mut self.quotas else { return };
        for (key, value) in quotas.take_changes() {
            match value {
                Some(value) => self.put(key, value, Known::MayExist),
                None => self.delete(key),
            }
        }
        if self.quotas.as_ref().is_some_and(|quotas| quotas.is_empty()) {
            self.quotas = None;
        }
    }

    /// What inodes with uncommitted changes count for; `None` for those that are gone.
    fn changed_shares(&self) -> BTreeMap<Ino, Option<Share>> {
        let mut found = BTreeMap::new();
        for records in self.layers() {
            for (ino, record) in records.inodes() {
                // Newer layers come first.
                found.entry(ino).or_insert_with(|| record.map(share_of));
            }
        }
        found
    }
}

/// Seconds of grace that are left, where a soft limit is exceeded.
pub(crate) fn grace_left(
    over: Option<Timestamp>,
    grace_seconds: u64,
    now: Timestamp,
) -> Option<u64> {
    over.map(|since| crate::quota::seconds_left(since, grace_seconds, now))
}

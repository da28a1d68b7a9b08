//! The quotas of a fileset that is open, with what is held. Guarded by the lock of the write set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use forebay_base::{Ino, Timestamp};

use super::counting::Counting;
use super::{Holding, Limits, Quota, QuotaRecord, Subject};
use crate::error::{FsError, Result};
use crate::key;
use crate::record::{Usage, encode};

/// User and group that own an inode.
pub(crate) type Owners = (u32, u32);

/// What is about to be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct More {
    pub inodes: u64,
    pub bytes: u64,
}

/// Pairs for the store; `None` for a key that goes.
pub(super) type Pairs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// All quotas of a fileset.
#[derive(Default)]
pub(crate) struct Quotas {
    records: BTreeMap<Subject, QuotaRecord>,
    records_changed: BTreeSet<Subject>,
    /// What users and groups hold, while any of them has a quota.
    pub(super) held: Option<HashMap<Subject, Usage>>,
    pub(super) held_changed: HashSet<Subject>,
    pub(super) counting: Option<Counting>,
    /// Admitted and not counted yet.
    reserved: HashMap<Subject, More>,
}

/// The subjects that an inode of these owners counts for.
pub(crate) fn subjects_of((uid, gid): Owners) -> [Subject; 3] {
    [Subject::Fileset, Subject::User(uid), Subject::Group(gid)]
}

impl Quotas {
    /// As the store has them; `None` if there are none.
    pub fn read(
        records: BTreeMap<Subject, QuotaRecord>,
        held: HashMap<Subject, Usage>,
    ) -> Option<Box<Quotas>> {
        if records.is_empty() && held.is_empty() {
            return None;
        }
        let held = Some(held).filter(|held| !held.is_empty());
        Some(Box::new(Quotas { records, held, ..Quotas::default() }))
    }

    /// Whether nothing is limited, counted or about to be.
    pub fn is_empty(&self) -> bool {
        let counts = self.held.is_some() || self.counting.is_some();
        self.records.is_empty() && !counts && !self.has_changes()
    }

    /// Whether anything is limited.
    pub fn has_limits(&self) -> bool {
        !self.records.is_empty()
    }

    /// Whether users and groups are counted.
    pub fn counts_owners(&self) -> bool {
        self.held.is_some()
    }

    // --- what people choose ---

    /// Sets a quota; times of grace that run go on.
    pub fn set(&mut self, subject: Subject, quota: Quota) {
        self.records.entry(subject).or_default().quota = quota;
        self.records_changed.insert(subject);
    }

    /// Removes a quota. Owners are not counted any more if none of them has one. Whether there was one.
    pub fn remove(&mut self, subject: Subject) -> bool {
        let was_there = self.records.remove(&subject).is_some();
        self.records_changed.insert(subject);
        if !self.records.keys().any(|subject| *subject != Subject::Fileset) {
            let held = self.held.take().into_iter().flatten();
            self.held_changed.extend(held.map(|(subject, _)| subject));
        }
        was_there
    }

    /// The quotas that are set.
    pub fn records(&self) -> impl Iterator<Item = (Subject, QuotaRecord)> + '_ {
        self.records.iter().map(|(subject, record)| (*subject, *record))
    }

    /// What a user or group holds; the fileset's own usage is `all`.
    pub fn held(&self, subject: Subject, all: Usage) -> Usage {
        match subject {
            Subject::Fileset => all,
            owner => {
                let held = self.held.as_ref().and_then(|held| held.get(&owner));
                held.copied().unwrap_or_default()
            }
        }
    }

    // --- counting ---

    /// An inode counts for `now` bytes instead of `before`; `None` where it does not count.
    pub fn count(&mut self, ino: Ino, owners: Owners, before: Option<u64>, now: Option<u64>) {
        if let Some(counting) = &mut self.counting
            && !counting.passes(ino, now.map(|bytes| (owners, bytes)))
        {
            return;
        }
        if before == now {
            return;
        }
        let inodes = i64::from(now.is_some()) - i64::from(before.is_some());
        let bytes = now.unwrap_or(0).wrapping_sub(before.unwrap_or(0));
        self.add(owners, inodes, bytes);
    }

    /// An inode that counts for `bytes` gets other owners.
    pub fn transfer(&mut self, ino: Ino, from: Owners, to: Owners, bytes: u64) {
        if let Some(counting) = &mut self.counting
            && !counting.passes(ino, Some((to, bytes)))
        {
            return;
        }
        self.add(from, -1, 0_u64.wrapping_sub(bytes));
        self.add(to, 1, bytes);
    }

    /// Adds to what owners hold. Sums wrap, as those of sparse files can be more than the counter holds.
    pub(super) fn add(&mut self, (uid, gid): Owners, inodes: i64, bytes: u64) {
        let counting = self.counting.as_mut().map(|counting| &mut counting.sums);
        let Some(held) = counting.or(self.held.as_mut()) else { return };
        for subject in [Subject::User(uid), Subject::Group(gid)] {
            let usage = held.entry(subject).or_default();
            usage.inodes = usage.inodes.wrapping_add_signed(inodes);
            usage.bytes = usage.bytes.wrapping_add(bytes);
            self.held_changed.insert(subject);
        }
    }

    // --- limits ---

    /// Admits what is about to be added for `subjects`, and sets it aside until [`Quotas::release`]. `all` is what the
    /// fileset holds.
    pub fn reserve(
        &mut self,
        subjects: &[Subject],
        more: More,
        all: Usage,
        now: Timestamp,
    ) -> Result<()> {
        for subject in subjects {
            let held = self.held(*subject, all);
            let reserved = self.reserved.get(subject).copied().unwrap_or_default();
            let Some(record) = self.records.get_mut(subject) else { continue };
            let before = *record;
            let QuotaRecord { quota, bytes_over, inodes_over } = record;
            let after = |held: u64, reserved: u64, more: u64| {
                held.saturating_add(reserved).saturating_add(more)
            };
            let bytes = after(held.bytes, reserved.bytes, more.bytes);
            let inodes = after(held.inodes, reserved.inodes, more.inodes);
            let grace = quota.grace_seconds;
            let fits = (more.bytes == 0 || admits(quota.bytes, bytes, bytes_over, grace, now))
                && (more.inodes == 0 || admits(quota.inodes, inodes, inodes_over, grace, now));
            if *record != before {
                self.records_changed.insert(*subject);
            }
            if !fits {
                return Err(FsError::QuotaExceeded);
            }
        }
        for subject in subjects {
            if self.records.contains_key(subject) {
                let reserved = self.reserved.entry(*subject).or_default();
                reserved.inodes = reserved.inodes.saturating_add(more.inodes);
                reserved.bytes = reserved.bytes.saturating_add(more.bytes);
            }
        }
        Ok(())
    }

    /// What was set aside is counted by now, or will not come.
    pub fn release(&mut self, subjects: &[Subject], more: More) {
        for subject in subjects {
            let Some(reserved) = self.reserved.get_mut(subject) else { continue };
            reserved.inodes = reserved.inodes.saturating_sub(more.inodes);
            reserved.bytes = reserved.bytes.saturating_sub(more.bytes);
            if *reserved == More::default() {
                self.reserved.remove(subject);
            }
        }
    }

    /// Bytes that can still be added for these owners; `u64::MAX` if nothing limits them.
    pub fn room(&self, owners: Owners, all: Usage, now: Timestamp) -> u64 {
        let room = |subject: Subject| {
            let record = self.records.get(&subject)?;
            let Limits { soft, hard } = record.quota.bytes;
            let soft =
                soft.filter(|_| has_ended(record.bytes_over, record.quota.grace_seconds, now));
            let limit = soft.into_iter().chain(hard).min()?;
            Some(limit.saturating_sub(self.held(subject, all).bytes))
        };
        subjects_of(owners).into_iter().filter_map(room).min().unwrap_or(u64::MAX)
    }

    /// Begins and ends times of grace by what is held now: files grow also without being admitted.
    pub fn look(&mut self, all: Usage, now: Timestamp) {
        let held: Vec<Usage> =
            self.records.keys().map(|subject| self.held(*subject, all)).collect();
        for ((subject, record), held) in self.records.iter_mut().zip(held) {
            let before = *record;
            let is_over = |limits: Limits, held: u64| limits.soft.is_some_and(|soft| held > soft);
            note_over(&mut record.bytes_over, is_over(record.quota.bytes, held.bytes), now);
            note_over(&mut record.inodes_over, is_over(record.quota.inodes, held.inodes), now);
            if *record != before {
                self.records_changed.insert(*subject);
            }
        }
    }

    // --- the store ---

    /// Whether anything is to be written.
    pub fn has_changes(&self) -> bool {
        let held = self.counting.is_none() && !self.held_changed.is_empty();
        held || !self.records_changed.is_empty()
    }

    /// What has changed since the last time, for the store.
    pub fn take_changes(&mut self) -> Pairs {
        let mut pairs = Pairs::new();
        for subject in std::mem::take(&mut self.records_changed) {
            pairs.push((key::quota(subject), self.records.get(&subject).map(encode)));
        }
        if self.counting.is_some() {
            // Complete once all is counted.
            return pairs;
        }
        for subject in std::mem::take(&mut self.held_changed) {
            let held = self.held.as_mut().and_then(|held| {
                let usage = held.get(&subject).copied()?;
                if usage == Usage::default() {
                    held.remove(&subject);
                    return None;
                }
                Some(Holding(usage))
            });
            pairs.push((key::holding(subject), held.as_ref().map(encode)));
        }
        pairs
    }
}

/// Whether limits admit what would be held then. A soft limit that is exceeded begins its time of grace.
fn admits(
    limits: Limits,
    after: u64,
    over: &mut Option<Timestamp>,
    grace_seconds: u64,
    now: Timestamp,
) -> bool {
    if limits.hard.is_some_and(|hard| after > hard) {
        return false;
    }
    if limits.soft.is_none_or(|soft| after <= soft) {
        return true;
    }
    over.get_or_insert(now);
    !has_ended(*over, grace_seconds, now)
}

/// Whether a time of grace has ended.
fn has_ended(over: Option<Timestamp>, grace_seconds: u64, now: Timestamp) -> bool {
    over.is_some_and(|since| seconds_left(since, grace_seconds, now) == 0)
}

/// Seconds that are left of a time of grace.
pub(crate) fn seconds_left(since: Timestamp, grace_seconds: u64, now: Timestamp) -> u64 {
    let passed = now.seconds.saturating_sub(since.seconds);
    grace_seconds.saturating_sub(u64::try_from(passed).unwrap_or(0))
}

fn note_over(over: &mut Option<Timestamp>, is_over: bool, now: Timestamp) {
    if is_over {
        over.get_or_insert(now);
    } else {
        *over = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Usage = Usage { inodes: 1, bytes: 0 };
    const NOW: Timestamp = Timestamp { seconds: 100, nanoseconds: 0 };

    fn limits(soft: u64, hard: u64) -> Limits {
        Limits { soft: Some(soft), hard: Some(hard) }
    }

    fn bytes(bytes: u64) -> More {
        More { inodes: 0, bytes }
    }

    fn later(seconds: i64) -> Timestamp {
        Timestamp::new(NOW.seconds + seconds, 0)
    }

    #[test]
    fn a_hard_limit_admits_up_to_itself_and_no_more() {
        let mut quotas = Quotas::default();
        let quota = Quota { bytes: Limits { soft: None, hard: Some(10) }, ..Quota::default() };
        quotas.set(Subject::Fileset, quota);
        let subjects = subjects_of((1, 2));
        quotas.reserve(&subjects, bytes(6), ALL, NOW).unwrap();
        assert!(quotas.reserve(&subjects, bytes(5), ALL, NOW).is_err());
        quotas.reserve(&subjects, bytes(4), ALL, NOW).unwrap();
        quotas.release(&subjects, bytes(10));
        let held = Usage { inodes: 9, bytes: 11 };
        // What is held already is accepted; more is not. Inodes have no limit here.
        assert!(quotas.reserve(&subjects, bytes(1), held, NOW).is_err());
        quotas.reserve(&subjects, More { inodes: 1, bytes: 0 }, held, NOW).unwrap();
        assert_eq!(quotas.room((1, 2), held, NOW), 0);
        assert_eq!(quotas.room((1, 2), Usage { inodes: 9, bytes: 4 }, NOW), 6);
    }

    #[test]
    fn a_soft_limit_is_exceeded_for_the_time_of_grace_only() {
        let mut quotas = Quotas::default();
        let quota = Quota { bytes: limits(5, 100), grace_seconds: 10, ..Quota::default() };
        quotas.set(Subject::Fileset, quota);
        let subjects = subjects_of((1, 2));
        let held = Usage { inodes: 1, bytes: 5 };
        quotas.reserve(&subjects, bytes(1), held, NOW).unwrap();
        quotas.release(&subjects, bytes(1));
        let held = Usage { bytes: 6, ..held };
        quotas.reserve(&subjects, bytes(1), held, later(9)).unwrap();
        quotas.release(&subjects, bytes(1));
        assert!(quotas.reserve(&subjects, bytes(1), held, later(10)).is_err());
        assert_eq!(quotas.room((1, 2), held, later(10)), 0);
        // Below the limit again, everything begins anew.
        quotas.look(Usage { bytes: 5, ..held }, later(11));
        quotas.reserve(&subjects, bytes(1), held, later(12)).unwrap();
    }

    #[test]
    fn owners_are_charged_and_a_transfer_moves_what_they_hold() {
        let mut quotas = Quotas { held: Some(HashMap::new()), ..Quotas::default() };
        quotas.count(Ino(5), (1, 2), None, Some(7));
        quotas.count(Ino(5), (1, 2), Some(7), Some(3));
        let held = |quotas: &Quotas, subject| quotas.held(subject, ALL);
        assert_eq!(held(&quotas, Subject::User(1)), Usage { inodes: 1, bytes: 3 });
        quotas.transfer(Ino(5), (1, 2), (8, 2), 3);
        assert_eq!(held(&quotas, Subject::User(1)), Usage::default());
        assert_eq!(held(&quotas, Subject::User(8)), Usage { inodes: 1, bytes: 3 });
        assert_eq!(held(&quotas, Subject::Group(2)), Usage { inodes: 1, bytes: 3 });
        // Who holds nothing has no record.
        let pairs: BTreeMap<_, _> = quotas.take_changes().into_iter().collect();
        assert_eq!(pairs[&key::holding(Subject::User(1))], None);
        assert!(pairs[&key::holding(Subject::User(8))].is_some());
        assert!(!quotas.has_changes());
    }
}

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

/// A quota that limits somebody, with what is held of it.
pub(crate) struct Limited {
    pub subject: Subject,
    pub record: QuotaRecord,
    pub usage: Usage,
    /// Whether it is the default of users or groups.
    pub by_default: bool,
}

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
        let was_there = self.own(subject).is_some();
        let follows = |other: &Subject| other.default_quota() == Some(subject);
        let gone: Vec<Subject> = self
            .records
            .iter()
            .filter(|(other, record)| {
                (**other == subject && was_there) || (follows(other) && record.quota.is_empty())
            })
            .map(|(other, _)| *other)
            .collect();
        for other in gone {
            self.records.remove(&other);
            self.records_changed.insert(other);
        }
        if !self.records.keys().any(|subject| *subject != Subject::Fileset) {
            let held = self.held.take().into_iter().flatten();
            self.held_changed.extend(held.map(|(subject, _)| subject));
        }
        was_there
    }

    /// A quota that was set for just this subject.
    fn own(&self, subject: Subject) -> Option<QuotaRecord> {
        self.records.get(&subject).filter(|record| !record.quota.is_empty()).copied()
    }

    /// The quota that limits a subject: its own, or the default with its own times of grace.
    fn limiting(&self, subject: Subject) -> Option<QuotaRecord> {
        if let Some(own) = self.own(subject) {
            return Some(own);
        }
        let default = self.own(subject.default_quota()?)?;
        let times = self.records.get(&subject).copied().unwrap_or_default();
        Some(QuotaRecord { quota: default.quota, ..times })
    }

    /// Keeps the times of grace of a quota.
    fn keep(&mut self, subject: Subject, record: QuotaRecord) {
        let record = match self.own(subject) {
            Some(own) => QuotaRecord { quota: own.quota, ..record },
            None => QuotaRecord { quota: Quota::default(), ..record },
        };
        if record == QuotaRecord::default() {
            self.records.remove(&subject);
        } else {
            self.records.insert(subject, record);
        }
        self.records_changed.insert(subject);
    }

    /// Whoever may be limited: those with a quota, and owners who hold something if there is a default.
    fn subjects(&self) -> BTreeSet<Subject> {
        let mut found: BTreeSet<Subject> = self.records.keys().copied().collect();
        for default in [Subject::EachUser, Subject::EachGroup] {
            if found.contains(&default) {
                let owners = self.held.iter().flatten().map(|(subject, _)| *subject);
                found.extend(owners.filter(|owner| owner.default_quota() == Some(default)));
            }
        }
        found
    }

    /// The quotas that are set, and whom a default limits. `all` is what the fileset holds.
    pub fn limited(&self, all: Usage) -> Vec<Limited> {
        let limited = |subject: Subject| {
            let record = self.limiting(subject)?;
            let by_default = self.own(subject).is_none();
            Some(Limited { subject, record, usage: self.held(subject, all), by_default })
        };
        self.subjects().into_iter().filter_map(limited).collect()
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
            let Some(mut record) = self.limiting(*subject) else { continue };
            let before = record;
            let QuotaRecord { quota, bytes_over, inodes_over } = &mut record;
            let after = |held: u64, reserved: u64, more: u64| {
                held.saturating_add(reserved).saturating_add(more)
            };
            let bytes = after(held.bytes, reserved.bytes, more.bytes);
            let inodes = after(held.inodes, reserved.inodes, more.inodes);
            let grace = quota.grace_seconds;
            let fits = (more.bytes == 0 || admits(quota.bytes, bytes, bytes_over, grace, now))
                && (more.inodes == 0 || admits(quota.inodes, inodes, inodes_over, grace, now));
            if record != before {
                self.keep(*subject, record);
            }
            if !fits {
                return Err(FsError::QuotaExceeded);
            }
        }
        for subject in subjects {
            if self.limiting(*subject).is_some() {
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
            let record = self.limiting(subject)?;
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
        for Limited { subject, mut record, usage: held, .. } in self.limited(all) {
            let before = record;
            let is_over = |limits: Limits, held: u64| limits.soft.is_some_and(|soft| held > soft);
            note_over(&mut record.bytes_over, is_over(record.quota.bytes, held.bytes), now);
            note_over(&mut record.inodes_over, is_over(record.quota.inodes, held.inodes), now);
            if record != before {
                self.keep(subject, record);
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
    fn a_default_limits_whoever_has_no_quota_of_his_own_and_not_root() {
        let mut quotas = Quotas { held: Some(HashMap::new()), ..Quotas::default() };
        let default = Quota { bytes: limits(5, 10), grace_seconds: 10, ..Quota::default() };
        quotas.set(Subject::EachUser, default);
        quotas.set(Subject::User(2), Quota { bytes: limits(50, 50), ..Quota::default() });
        quotas.set(Subject::User(3), Quota::UNLIMITED);
        for (uid, most) in [(0, u64::MAX), (1, 10), (2, 50), (3, u64::MAX)] {
            let fits = quotas.reserve(&subjects_of((uid, 1)), bytes(most), ALL, NOW);
            assert!(fits.is_ok(), "user {uid}");
            quotas.release(&subjects_of((uid, 1)), bytes(most));
            let more =
                quotas.reserve(&subjects_of((uid, 1)), bytes(most.saturating_add(1)), ALL, NOW);
            assert_eq!(more.is_err(), most != u64::MAX, "user {uid}");
        }
        assert_eq!(quotas.room((1, 1), ALL, NOW), 10);
        // Each has a time of grace of his own, which is stored.
        quotas.count(Ino(5), (1, 1), None, Some(7));
        quotas.look(ALL, NOW);
        assert!(quotas.reserve(&subjects_of((1, 1)), bytes(1), ALL, later(10)).is_err());
        assert!(quotas.reserve(&subjects_of((4, 1)), bytes(7), ALL, later(10)).is_ok());
        let stored: BTreeMap<_, _> = quotas.take_changes().into_iter().collect();
        assert!(stored[&key::quota(Subject::User(1))].is_some());
        let of = |quotas: &Quotas, uid| {
            let all = quotas.limited(ALL).into_iter();
            all.filter(|one| one.subject == Subject::User(uid)).map(|one| one.by_default).next()
        };
        assert_eq!([1, 2, 9].map(|uid| of(&quotas, uid)), [Some(true), Some(false), None]);
        // Without the default nothing is left of its times, and users with quotas keep theirs.
        assert!(quotas.remove(Subject::EachUser) && !quotas.remove(Subject::User(1)));
        let stored: BTreeMap<_, _> = quotas.take_changes().into_iter().collect();
        assert_eq!(stored[&key::quota(Subject::User(1))], None);
        assert_eq!([1, 2].map(|uid| of(&quotas, uid)), [None, Some(false)]);
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

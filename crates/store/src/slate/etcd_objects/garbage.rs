//! Uploads that nobody completes: a writer died, or gave up. Their chunks are removed when the note of the upload has been
//! there for [`Garbage::age_max`], measured from when this process saw it first, so no two clocks are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_etcd::{Compare, Keys, Op, RangeOptions, Txn};
use object_store::Result;
use tokio::time::Instant;

use super::EtcdObjects;

/// Looks for uploads that nobody completes.
#[derive(Debug)]
pub struct Garbage {
    objects: EtcdObjects,
    /// How long an upload may take.
    pub age_max: Duration,
    /// Notes of uploads with the revision that made them, and when they were seen first.
    seen: BTreeMap<(Vec<u8>, i64), Instant>,
}

impl Garbage {
    /// Nothing was seen yet.
    #[must_use]
    pub fn new(objects: &EtcdObjects, age_max: Duration) -> Garbage {
        Garbage { objects: objects.clone(), age_max, seen: BTreeMap::new() }
    }

    /// Removes what is old enough. Returns how many uploads were removed.
    ///
    /// # Errors
    /// etcd does not answer; the rest is removed another time.
    pub async fn collect(&mut self) -> Result<usize> {
        let notes = Keys::Prefix(self.objects.key('u', ""));
        let options = RangeOptions { keys_only: true, ..RangeOptions::default() };
        let found = self.objects.connection.range(notes, options).await;
        let found = found.map_err(|error| self.objects.failed(error))?;
        let now = Instant::now();
        let present: BTreeMap<(Vec<u8>, i64), Instant> = found
            .pairs
            .into_iter()
            .map(|pair| (pair.key, pair.mod_revision))
            .map(|note| (self.seen.get(&note).copied().unwrap_or(now), note))
            .map(|(first, note)| (note, first))
            .collect();
        self.seen = present;
        let mut removed = 0;
        for ((note, revision), first) in &self.seen {
            if now.saturating_duration_since(*first) < self.age_max {
                continue;
            }
            let id = &note[self.objects.key('u', "").len()..];
            let chunks = [&self.objects.key('c', "")[..], id, b"/"].concat();
            let published = [&self.objects.key('p', "")[..], id].concat();
            let txn = Txn {
                when: vec![
                    Compare::ModRevision(note.clone(), *revision),
                    Compare::Absent(published),
                ],
                then: vec![Op::Delete(Keys::One(note.clone())), Op::Delete(Keys::Prefix(chunks))],
                otherwise: Vec::new(),
            };
            let outcome = self.objects.connection.txn(txn).await;
            let outcome = outcome.map_err(|error| self.objects.failed(error))?;
            removed += usize::from(outcome.held);
        }
        Ok(removed)
    }
}

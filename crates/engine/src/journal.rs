//! The journal in the store: records in batches, snapshots in their place, and the history.
//!
//! Keys: `j` and the number of a batch (8 bytes, big end first): records in postcard. `s`: the number of
//! the first batch that the snapshot does not hold (8 bytes), then the ledger in postcard. `h`, job,
//! element, attempt (8, 4 and 4 bytes): an attempt that ended, in JSON.
//!
//! Records and the history entries that they led to are committed together. Memory: one batch, and a
//! snapshot while it is written. The history is not cut here.

use anyhow::{Context as _, Result};
use forebay_grid::account::AttemptRecord;
use forebay_grid::journal::Record;
use forebay_grid::vocabulary::{Moment, Target};
use forebay_grid::{Effect, Grid, Ledger};
use forebay_store::{Batch, Store};

const SNAPSHOT: &[u8] = b"s";

/// Batches after which a snapshot takes their place.
const BATCHES_MAX: u64 = 4096;

/// The journal of one controller.
pub struct Journal<S> {
    store: S,
    /// The number of the next batch.
    next: u64,
    /// The first batch that no snapshot holds.
    first: u64,
}

fn batch_key(number: u64) -> Vec<u8> {
    [&b"j"[..], &number.to_be_bytes()].concat()
}

fn history_key(job: u64, index: u32, attempt: u32) -> Vec<u8> {
    let (job, index, attempt) = (job.to_be_bytes(), index.to_be_bytes(), attempt.to_be_bytes());
    [&b"h"[..], &job, &index, &attempt].concat()
}

impl<S: Store> Journal<S> {
    /// Reads snapshot and records, and makes the grid that they lead to.
    ///
    /// # Errors
    /// If the store cannot be read, or the journal is damaged.
    pub fn open(store: S, now: Moment) -> Result<(Journal<S>, Grid)> {
        let (first, ledger) = match store.get(SNAPSHOT)? {
            None => (0, Ledger::default()),
            Some(bytes) => {
                let (number, ledger) =
                    bytes.split_first_chunk().context("the snapshot of the grid is too short")?;
                let ledger = postcard::from_bytes(ledger).context("the snapshot of the grid")?;
                (u64::from_be_bytes(*number), ledger)
            }
        };
        let mut records: Vec<Record> = Vec::new();
        let mut next = first;
        loop {
            let page = store.scan(&batch_key(next), b"k", 256)?;
            if page.is_empty() {
                break;
            }
            for (key, bytes) in page {
                anyhow::ensure!(key == batch_key(next), "batch {next} of the journal is missing");
                let batch: Vec<Record> = postcard::from_bytes(&bytes)
                    .with_context(|| format!("journal, batch {next}"))?;
                records.extend(batch);
                next += 1;
            }
        }
        let grid = Grid::restore(ledger, &records, now)?;
        Ok((Journal { store, next, first }, grid))
    }

    /// Makes records durable, with the history entries among the effects.
    ///
    /// # Errors
    /// If the store refuses: then nothing was written, and memory is ahead of it.
    pub fn append(&mut self, records: &[Record], effects: &[Effect]) -> Result<()> {
        let mut batch = Batch::default();
        for effect in effects {
            if let Effect::Ended(record) = effect {
                let task = record.task;
                let key = history_key(task.job.0, task.index, record.attempt.0);
                batch.changes.insert(key, Some(serde_json::to_vec(record)?));
            }
        }
        if !records.is_empty() {
            batch.changes.insert(batch_key(self.next), Some(postcard::to_stdvec(records)?));
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        self.store.commit(&batch)?;
        self.next += u64::from(!records.is_empty());
        Ok(())
    }

    /// Writes a snapshot if many batches came since the last one.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn shorten(&mut self, ledger: &Ledger) -> Result<()> {
        if self.next - self.first < BATCHES_MAX { Ok(()) } else { self.snapshot(ledger) }
    }

    /// Puts a snapshot in place of all batches.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn snapshot(&mut self, ledger: &Ledger) -> Result<()> {
        let mut bytes = self.next.to_be_bytes().to_vec();
        bytes.extend(postcard::to_stdvec(ledger)?);
        let mut batch = Batch::default();
        batch.changes.insert(SNAPSHOT.to_vec(), Some(bytes));
        batch.changes.extend((self.first..self.next).map(|number| (batch_key(number), None)));
        self.store.commit(&batch)?;
        self.first = self.next;
        Ok(())
    }

    /// The attempts of a job, or of one element, that ended.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn history(&self, target: Target) -> Result<Vec<AttemptRecord>> {
        const PAGE: usize = 1024;
        let (low, high) = target.index.map_or((0, u32::MAX), |index| (index, index));
        let mut from = history_key(target.job.0, low, 0);
        let to = history_key(target.job.0, high, u32::MAX);
        let mut attempts = Vec::new();
        loop {
            let page = self.store.scan(&from, &to, PAGE)?;
            for (_, bytes) in &page {
                attempts.push(serde_json::from_slice(bytes).context("an entry of the history")?);
            }
            match page.into_iter().nth(PAGE - 1) {
                Some((last, _)) => from = [last, vec![0]].concat(),
                None => return Ok(attempts),
            }
        }
    }
}

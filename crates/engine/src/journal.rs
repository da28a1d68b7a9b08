//! The journal in the store: records in batches, snapshots in their place, and the history.
//!
//! Keys: `v`: the number of the format (4 bytes, big end first); a journal of another format is refused when it is
//! opened. `j` and the number of a batch (8 bytes, big end first): records in postcard. `h`, job, element, attempt
//! (8, 4 and 4 bytes): an attempt that ended, in JSON. `n`: how many of them there are (8 bytes). `u`: sums of what
//! was used, see [`crate::usage`]. `s`, `o`, `e`, `f`, `c`: the snapshot, see `snapshot.rs`.
//!
//! Records and the history entries and sums that they led to are committed together. Memory: one batch, and what
//! a snapshot writes while it is written; at start, the records that no snapshot holds.

use anyhow::{Context as _, Result, bail};
use forebay_grid::account::AttemptRecord;
use forebay_grid::config::General;
use forebay_grid::journal::Record;
use forebay_grid::vocabulary::{Attempt, Moment, Target, TaskId};
use forebay_grid::{Effect, Grid, Ledger};
use forebay_store::{Batch, Store};

use crate::message::Start;
use crate::pages;
use crate::snapshot::Snapshot;
use crate::usage::Accounts;

/// What the store holds and how it is encoded. It grows by one whenever a journal written before would be read
/// wrongly, which any change of a record, of the ledger or of what they are made of can do: postcard writes no
/// names of fields.
const FORMAT: u32 = 2;
const FORMAT_KEY: &[u8] = b"v";

/// Batches, and bytes of them, after which a snapshot takes their place.
const BATCHES_MAX: u64 = 4096;
const BATCH_BYTES_MAX: usize = 64 << 20;

/// How many entries the history has.
const ENTRIES_KEY: &[u8] = b"n";

/// Entries that come before the history is cut again.
const CUT_EVERY: u64 = 256;

/// Entries of the history that are read together.
const PAGE: usize = 1024;

/// The journal of one controller.
pub struct Journal<S> {
    store: S,
    /// The number of the next batch.
    next: u64,
    /// The first batch that no snapshot holds.
    first: u64,
    /// Bytes of the batches that no snapshot holds.
    bytes: usize,
    snapshot: Snapshot,
    accounts: Accounts,
    /// Entries of the history, and how many came since it was cut.
    entries: u64,
    entries_uncut: u64,
}

fn batch_key(number: u64) -> Vec<u8> {
    [&b"j"[..], &number.to_be_bytes()].concat()
}

fn history_key(job: u64, index: u32, attempt: u32) -> Vec<u8> {
    let (job, index, attempt) = (job.to_be_bytes(), index.to_be_bytes(), attempt.to_be_bytes());
    [&b"h"[..], &job, &index, &attempt].concat()
}

fn whole_history() -> (Vec<u8>, Vec<u8>) {
    (history_key(0, 0, 0), history_key(u64::MAX, u32::MAX, u32::MAX))
}

impl<S: Store> Journal<S> {
    /// Reads snapshot and records, and makes the grid that they lead to.
    ///
    /// # Errors
    /// If the store cannot be read, is of another format, or the journal is damaged.
    pub fn open(store: S, now: Moment) -> Result<(Journal<S>, Grid)> {
        check_format(&store)?;
        let (first, ledger, mut snapshot) = Snapshot::read(&store)?;
        let mut records: Vec<Record> = Vec::new();
        let (mut next, mut bytes_read) = (first, 0);
        pages::each(&store, batch_key(first), b"k", |key, bytes| {
            anyhow::ensure!(key == batch_key(next), "batch {next} of the journal is missing");
            let batch: Vec<Record> =
                postcard::from_bytes(bytes).with_context(|| format!("journal, batch {next}"))?;
            snapshot.note(&batch);
            records.extend(batch);
            bytes_read += bytes.len();
            next += 1;
            Ok(())
        })?;
        let grid = Grid::restore(ledger, &records, now)?;
        let general = &grid.ledger().config().general;
        let accounts =
            Accounts::open(&store, general.time_zone.clocks(), general.days_max, |found| {
                let (from, to) = whole_history();
                pages::each(&store, from, &to, |_, bytes| {
                    found(read_entry(bytes)?);
                    Ok(())
                })
            })?;
        let entries = store.get(ENTRIES_KEY)?;
        let entries = entries.and_then(|bytes| Some(u64::from_be_bytes(*bytes.first_chunk()?)));
        let journal = Journal {
            store,
            next,
            first,
            bytes: bytes_read,
            snapshot,
            accounts,
            entries: entries.unwrap_or(0),
            entries_uncut: CUT_EVERY,
        };
        Ok((journal, grid))
    }

    /// Makes records durable, with the history entries among the effects and what they add to the sums.
    ///
    /// # Errors
    /// If the store refuses: then nothing was written, and memory is ahead of it.
    pub fn append(
        &mut self,
        records: &[Record],
        effects: &[Effect],
        general: &General,
    ) -> Result<()> {
        let mut batch = Batch::default();
        let mut ended: Vec<&AttemptRecord> = Vec::new();
        for effect in effects {
            if let Effect::Ended(record) = effect {
                ended.push(record);
                let task = record.task;
                let key = history_key(task.job.0, task.index, record.attempt.0);
                batch.changes.insert(key, Some(serde_json::to_vec(record)?));
            }
        }
        if !ended.is_empty() {
            self.entries += ended.len() as u64;
            self.entries_uncut += ended.len() as u64;
            batch.changes.insert(ENTRIES_KEY.to_vec(), Some(self.entries.to_be_bytes().into()));
            let zone = general.time_zone.clocks();
            self.accounts.add(&ended, zone, general.days_max, &mut batch)?;
        }
        if !records.is_empty() {
            let bytes = postcard::to_stdvec(records)?;
            self.bytes += bytes.len();
            batch.changes.insert(batch_key(self.next), Some(bytes));
            self.snapshot.note(records);
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        self.store.commit(&batch)?;
        self.next += u64::from(!records.is_empty());
        match ended.last() {
            Some(last) if self.entries_uncut >= CUT_EVERY => self.cut_history(general, last.ended),
            _ => Ok(()),
        }
    }

    /// Removes the entries of the oldest jobs, as far as they are too many or too old: some more at a time
    /// than come between two cuts.
    fn cut_history(&mut self, general: &General, now: Moment) -> Result<()> {
        self.entries_uncut = 0;
        let mut batch = Batch::default();
        let (from, to) = whole_history();
        let mut left = self.entries;
        for (key, bytes) in self.store.scan(&from, &to, PAGE)? {
            let is_old = || -> Result<bool> {
                Ok(read_entry(&bytes)?.ended.after(general.history_age.as_ms()) <= now)
            };
            if left <= u64::from(general.history_max) && !is_old()? {
                break;
            }
            batch.changes.insert(key.to_vec(), None);
            left = left.saturating_sub(1);
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        batch.changes.insert(ENTRIES_KEY.to_vec(), Some(left.to_be_bytes().into()));
        self.store.commit(&batch)?;
        self.entries = left;
        Ok(())
    }

    /// Writes a snapshot if many batches came since the last one.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn shorten(&mut self, ledger: &Ledger) -> Result<()> {
        let is_short = self.next - self.first < BATCHES_MAX && self.bytes < BATCH_BYTES_MAX;
        if is_short { Ok(()) } else { self.snapshot(ledger) }
    }

    /// Puts a snapshot in place of all batches.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn snapshot(&mut self, ledger: &Ledger) -> Result<()> {
        let mut batch = Batch::default();
        self.snapshot.write(ledger, self.next, &mut batch)?;
        batch.changes.extend((self.first..self.next).map(|number| (batch_key(number), None)));
        self.store.commit(&batch)?;
        (self.first, self.bytes) = (self.next, 0);
        Ok(())
    }

    /// Attempts of a job, or of one element, that ended, from `from` on, and where the next page begins.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn history(
        &self,
        target: Target,
        from: Option<Start>,
    ) -> Result<(Vec<AttemptRecord>, Option<Start>)> {
        let (low, high) = target.index.map_or((0, u32::MAX), |index| (index, index));
        let first = history_key(target.job.0, low, 0);
        let from = from.map(|(task, attempt)| history_key(target.job.0, task.index, attempt.0));
        let to = history_key(target.job.0, high, u32::MAX);
        let mut page =
            self.store.scan(&from.map_or(first.clone(), |from| from.max(first)), &to, PAGE + 1)?;
        let next = if page.len() > PAGE { page.pop() } else { None };
        let attempts = page.iter().map(|(_, bytes)| read_entry(bytes)).collect::<Result<_>>()?;
        let next = next.map(|(_, bytes)| read_entry(&bytes)).transpose()?;
        Ok((attempts, next.map(|record| (record.task, record.attempt))))
    }

    /// One attempt, if it has ended.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn attempt(&self, task: TaskId, attempt: Attempt) -> Result<Option<AttemptRecord>> {
        let entry = self.store.get(&history_key(task.job.0, task.index, attempt.0))?;
        entry.map(|bytes| read_entry(&bytes)).transpose()
    }

    /// Sums of what was used.
    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }
}

/// Refuses a store that is not of this format; one that is empty becomes one.
fn check_format<S: Store>(store: &S) -> Result<()> {
    const ADVICE: &str =
        "use the forebay that wrote it, or move it away to begin with an empty grid";
    match store.get(FORMAT_KEY)? {
        Some(bytes) if *bytes == FORMAT.to_be_bytes() => Ok(()),
        Some(bytes) => {
            let format = bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            bail!(
                "the grid's journal has format {format}, and this forebay reads {FORMAT}: {ADVICE}"
            )
        }
        None if !store.scan(&[], &[u8::MAX], 1)?.is_empty() => {
            bail!("the grid's journal names no format, and this forebay reads {FORMAT}: {ADVICE}")
        }
        None => {
            let mut batch = Batch::default();
            batch.changes.insert(FORMAT_KEY.to_vec(), Some(FORMAT.to_be_bytes().to_vec()));
            Ok(store.commit(&batch)?)
        }
    }
}

fn read_entry(bytes: &[u8]) -> Result<AttemptRecord> {
    serde_json::from_slice(bytes).context("an entry of the history")
}

//! The journal in the store: records in batches, snapshots in their place, and the history.
//!
//! Keys: `v`: the number of the format (4 bytes, big end first); a journal of another format is refused when it is
//! opened. `j` and the number of a batch (8 bytes, big end first): records in postcard. `h`, job, element, attempt
//! (8, 4 and 4 bytes): an attempt that ended, in JSON. `n`: how many of them there are (8 bytes). `u`: sums of what
//! was used, see [`crate::journal::usage`]. `s`, `o`, `e`, `f`, `c`: the snapshot, see `snapshot.rs`.
//!
//! Records and the history entries and sums that they led to are committed together. A batch for which there was no
//! space is kept and written again as it is. Once most of the file is space that forgotten jobs have left, it is given
//! back. Memory: one batch, and what a snapshot writes while it is written; at start, three pages of what is read.

mod pages;
pub mod replay;
pub mod reserve;
mod snapshot;
pub mod usage;

use anyhow::{Context as _, Result, bail};
use forebay_grid::account::AttemptRecord;
use forebay_grid::config::General;
use forebay_grid::journal::Record;
use forebay_grid::vocabulary::{Attempt, Moment, Target, TaskId};
use forebay_grid::{Effect, Grid, Ledger};
use forebay_store::{Batch, Store, StoreError};

use crate::journal::replay::{Caught, Replay};
use crate::journal::snapshot::Snapshot;
use crate::journal::usage::Accounts;
use crate::protocol::Start;

/// What the store holds and how it is encoded. It grows by one whenever a journal written before would be read
/// wrongly, which any change of a record, of the ledger or of what they are made of can do: postcard writes no
/// names of fields.
const FORMAT: u32 = 12;
/// The same with a log beside the store, which holds its latest changes: versions that do not know it must not open the store alone.
const FORMAT_LOGGED: u32 = 13;
const FORMAT_KEY: &[u8] = b"v";

/// Batches, and bytes of them, after which a snapshot takes their place.
const BATCHES_MAX: u64 = 4096;
const BATCH_BYTES_MAX: usize = 64 << 20;

/// Batches after which a snapshot is tried again for which there was no space.
const TRY_SNAPSHOT_EVERY: u64 = 64;

/// A journal is compacted when its file has more bytes than this, and so many times what it holds.
const COMPACT_BYTES_MIN: u64 = 64 << 20;
const COMPACT_RATIO: u64 = 3;

/// Bytes of an entry of the history in the file, about.
const ENTRY_BYTES: u64 = 1024;

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
    /// What there was no space for: records, and a snapshot.
    unwritten: Option<Unwritten>,
    late: Option<LateSnapshot>,
}

/// A batch of records that is not in the store.
struct Unwritten {
    batch: Batch,
    has_records: bool,
}

/// A snapshot that is not in the store: of what the batches before `until` led to.
struct LateSnapshot {
    batch: Batch,
    until: u64,
    /// Bytes of the batches that it takes the place of.
    bytes: usize,
    /// It is tried again with the batch of this number.
    again_at: u64,
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
        Journal::open_after(store, None, now)
    }

    /// As [`Journal::open`], reading only what came after what was read ahead, if that is of use.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_after(store: S, ahead: Option<Replay>, now: Moment) -> Result<(Journal<S>, Grid)> {
        check_format(&store)?;
        let Replay { snapshot, ledger, first, next, bytes, .. } = match ahead {
            Some(ahead) => continued(&store, ahead)?,
            None => Replay::read(&store)?,
        };
        let grid = Grid::restore(ledger, [], now)?;
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
            bytes,
            snapshot,
            accounts,
            entries: entries.unwrap_or(0),
            entries_uncut: CUT_EVERY,
            unwritten: None,
            late: None,
        };
        Ok((journal, grid))
    }

    /// Makes records durable, with the history entries among the effects and what they add to the sums.
    ///
    /// # Errors
    /// If the store refuses: then nothing was written, and memory is ahead of it. If only space is missing,
    /// [`Journal::write_again`] makes up for it, and nothing may be appended before.
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
        self.unwritten = Some(Unwritten { batch, has_records: !records.is_empty() });
        self.write_again()?;
        match ended.last() {
            Some(last) if self.entries_uncut >= CUT_EVERY => unless_full(
                self.cut_history(general, last.ended),
                "old history will be removed later",
            ),
            _ => Ok(()),
        }
    }

    /// Makes durable what could not be made so, if there is anything.
    ///
    /// # Errors
    /// If the store refuses: then nothing was written.
    pub fn write_again(&mut self) -> Result<()> {
        let Some(unwritten) = &self.unwritten else { return Ok(()) };
        self.store.commit(&unwritten.batch)?;
        self.next += u64::from(unwritten.has_records);
        self.unwritten = None;
        Ok(())
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

    /// Writes a snapshot if many batches came since the last one, or many jobs were forgotten. One for which there is no
    /// space is written later: the batches are there.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn shorten(&mut self, ledger: &Ledger) -> Result<()> {
        let is_short = self.next - self.first < BATCHES_MAX
            && self.bytes < BATCH_BYTES_MAX
            && !self.snapshot.has_forgotten_much();
        let is_tried = self.late.as_ref().is_some_and(|late| self.next < late.again_at);
        if is_tried || (is_short && self.late.is_none()) {
            return Ok(());
        }
        self.snapshot(ledger)
    }

    /// Puts a snapshot in place of all batches.
    ///
    /// # Errors
    /// If the store refuses. If there is no space the snapshot is kept and tried again.
    pub fn snapshot(&mut self, ledger: &Ledger) -> Result<()> {
        let late = match self.late.take() {
            Some(late) => late,
            None => {
                let mut batch = Batch::default();
                self.snapshot.write(ledger, self.next, &mut batch)?;
                let gone = (self.first..self.next).map(|number| (batch_key(number), None));
                batch.changes.extend(gone);
                LateSnapshot { batch, until: self.next, bytes: self.bytes, again_at: self.next }
            }
        };
        match self.store.commit(&late.batch) {
            Ok(()) => {}
            Err(StoreError::Full(reason)) => {
                tracing::warn!("the snapshot of the journal will be written later: {reason}");
                let again_at = self.next + TRY_SNAPSHOT_EVERY;
                self.late = Some(LateSnapshot { again_at, ..late });
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.first = late.until;
        self.bytes -= late.bytes;
        unless_full(self.compact(&ledger.config().general), "the journal will be compacted later")
    }

    /// Gives space back, if the file has much more than it holds.
    fn compact(&self, general: &General) -> Result<()> {
        let held = self.snapshot.bytes() + self.bytes as u64 + self.entries * ENTRY_BYTES;
        let file = self.store.size_bytes()?.saturating_sub(general.journal_reserve.0);
        if file <= COMPACT_BYTES_MIN || file <= held * COMPACT_RATIO {
            return Ok(());
        }
        self.store.compact()?;
        tracing::info!(
            before = file,
            after = self.store.size_bytes()?,
            "the journal was compacted"
        );
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

/// The journal of a store that nobody else writes, from what was read of it ahead.
fn continued<S: Store>(store: &S, mut ahead: Replay) -> Result<Replay> {
    let next = ahead.next;
    match ahead.catch_up(store) {
        Ok(Caught::Up) => {
            let (jobs, _) = ahead.size();
            let batches = ahead.next - next;
            tracing::info!(jobs, batches, "the journal was read ahead; the rest was read now");
            return Ok(ahead);
        }
        Ok(Caught::Changed) => {
            tracing::info!("the journal has changed since it was read ahead: it is read again");
        }
        Err(error) => {
            tracing::info!("what was read ahead of the journal is not used: {error:#}");
        }
    }
    drop(ahead);
    Replay::read(store)
}

/// What need not be done now is no error for want of space.
fn unless_full(done: Result<()>, what: &str) -> Result<()> {
    match done {
        Err(error) if matches!(error.downcast_ref(), Some(StoreError::Full(_))) => {
            tracing::warn!("{what}: {error:#}");
            Ok(())
        }
        done => done,
    }
}

/// Says in a store of this format, or an empty one, that it is to have a log beside it.
///
/// # Errors
/// If it has another format: then it is left as it is; or if the store refuses.
pub fn mark_as_logged(store: &impl Store) -> Result<()> {
    check_format(store)?;
    if store.get(FORMAT_KEY)?.is_some_and(|bytes| *bytes == FORMAT.to_be_bytes()) {
        let mut batch = Batch::default();
        batch.changes.insert(FORMAT_KEY.to_vec(), Some(FORMAT_LOGGED.to_be_bytes().to_vec()));
        match store.commit(&batch) {
            // It is said once there is space.
            Err(StoreError::Full(_)) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Refuses a store that is not of this format; one that is empty becomes one.
fn check_format<S: Store>(store: &S) -> Result<()> {
    const ADVICE: &str = "use the version of forebay that wrote it, or move it elsewhere to start with an empty grid";
    match store.get(FORMAT_KEY)? {
        Some(bytes) if [FORMAT, FORMAT_LOGGED].iter().any(|own| *bytes == own.to_be_bytes()) => {
            Ok(())
        }
        Some(bytes) => {
            let format = bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            bail!(
                "the grid's journal has format {format}, but this version of forebay reads {FORMAT}: {ADVICE}"
            )
        }
        None if !store.scan(&[], &[u8::MAX], 1)?.is_empty() => {
            bail!(
                "the grid's journal names no format, but this version of forebay reads {FORMAT}: {ADVICE}"
            )
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

//! What a journal leads to, read from its store: the ledger, and how far it was read.
//!
//! It is read once when a controller begins, or ahead by one that stands by: such a reader sees a store that another process
//! writes, not at one moment but as it is at each page. So what was read is good only if the head of the snapshot is the same
//! after the reading as before it: pieces change and batches go only together with the head. From then on the same head means the
//! same pieces, and batches are added at the end. Whoever leads reads the rest from a store that nobody else writes, and only
//! if head and last batch are those that were read ahead; otherwise everything is read again, as without a reader ahead.

use anyhow::{Context as _, Result};
use forebay_grid::Ledger;
use forebay_grid::journal::{JournalError, Record};
use forebay_store::{Bytes, Store};

use super::snapshot::{self, Snapshot};
use super::{FORMAT, FORMAT_KEY, batch_key, pages};

/// The ledger that a snapshot and the batches after it lead to.
pub struct Replay {
    /// The head of the snapshot, as it was read; none if there is no snapshot.
    head: Option<Bytes>,
    pub(super) snapshot: Snapshot,
    pub(super) ledger: Ledger,
    /// The first batch that the snapshot does not hold, and the first one that was not read.
    pub(super) first: u64,
    pub(super) next: u64,
    /// Bytes of the batches in between, and how many records they had.
    pub(super) bytes: usize,
    records: u64,
    /// The last of these batches.
    last: Option<Bytes>,
}

/// What became of reading on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// Everything that is in the store was read.
    Up,
    /// The store has another snapshot, or other batches, than those that were read before: what was read is of no use.
    Changed,
}

impl Replay {
    /// Reads the whole journal from a store that nobody writes meanwhile.
    ///
    /// # Errors
    /// If the store cannot be read, or the journal is damaged.
    pub fn read<S: Store>(store: &S) -> Result<Replay> {
        let head = snapshot::head(store)?;
        let (first, ledger, snapshot) = Snapshot::read(store, head.as_deref())?;
        let mut replay =
            Replay { head, snapshot, ledger, first, next: first, bytes: 0, records: 0, last: None };
        replay.read_batches(store)?;
        Ok(replay)
    }

    /// Reads the whole journal from a store that another process may write meanwhile; none if that replaced its snapshot before
    /// everything was read, or if the journal is empty or of another format.
    ///
    /// # Errors
    /// If the store cannot be read, or the journal is damaged.
    pub fn read_ahead<S: Store>(store: &S) -> Result<Option<Replay>> {
        let format = store.get(FORMAT_KEY)?;
        if format.is_none_or(|format| format != FORMAT.to_be_bytes()) {
            return Ok(None);
        }
        let head = snapshot::head(store)?;
        let read = Replay::read(store);
        // What is wrong with a journal that changed while it was read need not be wrong with it now.
        if snapshot::head(store)? != head {
            return Ok(None);
        }
        read.map(|replay| (replay.head == head).then_some(replay))
    }

    /// Reads what came since. After an error nothing that was read is of use any more.
    ///
    /// # Errors
    /// If the store cannot be read, or the journal is damaged.
    pub fn catch_up<S: Store>(&mut self, store: &S) -> Result<Caught> {
        if snapshot::head(store)? != self.head {
            return Ok(Caught::Changed);
        }
        if let Some(last) = &self.last
            && store.get(&batch_key(self.next - 1))?.as_ref() != Some(last)
        {
            return Ok(Caught::Changed);
        }
        let read = self.read_batches(store);
        if snapshot::head(store)? != self.head {
            return Ok(Caught::Changed);
        }
        read.map(|()| Caught::Up)
    }

    /// How many jobs are known, and how many batches were read after the snapshot.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        (self.ledger.jobs().count(), self.next - self.first)
    }

    fn read_batches<S: Store>(&mut self, store: &S) -> Result<()> {
        pages::each(store, batch_key(self.next), b"k", |key, bytes| {
            let next = self.next;
            anyhow::ensure!(key == batch_key(next), "batch {next} of the journal is missing");
            let batch: Vec<Record> =
                postcard::from_bytes(bytes).with_context(|| format!("journal, batch {next}"))?;
            self.snapshot.note(&batch);
            for record in &batch {
                self.records += 1;
                let number = self.records;
                let applied = self.ledger.apply(record);
                applied.map_err(|reason| JournalError { number, reason })?;
            }
            self.bytes += bytes.len();
            self.last = Some(bytes.to_vec());
            self.next += 1;
            Ok(())
        })
    }
}

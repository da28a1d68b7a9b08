//! Reads the journal ahead on a controller that stands by, so that it need not read all of it when it begins to lead.
//!
//! Nothing is decided or carried out from what was read, and the leader knows nothing of its followers. Every `POLL` the batches
//! that came since are read. When the leader has put a snapshot in place of batches, everything is read anew, but at most a
//! twentieth of the time is spent on that. Whoever begins to lead reads the rest under its own term, and makes sure that what
//! was read ahead is part of the same journal ([`Replay`]).
//!
//! Memory: what a leader has, without what it makes of the ledger.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, FilesetId};
use forebay_store::slate::SlateStores;
use forebay_store::{Batch, Bytes, Store, StoreError};

use crate::journal::replay::{Caught, Replay};

/// How often new batches are looked for.
const POLL: Duration = Duration::from_secs(1);

/// How many times as long as it took to read everything nothing is read before everything is read again.
const REST: u32 = 19;

/// How long a controller that begins to lead waits for what was read ahead: less than reading everything takes.
const PATIENCE: Duration = Duration::from_millis(500);

/// Reads the journal ahead until it is ended.
pub struct Follower {
    is_over: Arc<AtomicBool>,
    thread: Thread,
    read: Receiver<Option<Replay>>,
}

impl Follower {
    /// Begins to read.
    ///
    /// # Errors
    /// If there are no threads left.
    pub fn begin(stores: Arc<SlateStores>) -> Result<Follower> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (give, read) = sync_channel(1);
        let ends = Arc::clone(&is_over);
        let follow = move || {
            // Nobody may wait for it any more.
            let _ = give.send(Reading::new(stores, &ends).read_on());
        };
        let thread = std::thread::Builder::new().name("follower".to_owned()).spawn(follow);
        let thread = thread.context("no thread can be started")?.thread().clone();
        Ok(Follower { is_over, thread, read })
    }

    /// Ends it; what was read, if it is complete.
    #[must_use]
    pub fn end(self) -> Option<Replay> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.unpark();
        self.read.recv_timeout(PATIENCE).ok().flatten()
    }
}

/// A journal that is being followed.
struct Reading<'a> {
    stores: Arc<SlateStores>,
    is_over: &'a AtomicBool,
    clock: SystemClock,
    store: Option<Arc<dyn Store>>,
    ahead: Option<Replay>,
    /// Everything is not read again before.
    rests_until: Instant,
    /// Whether it was read at all, and what was last said to be wrong.
    has_read: bool,
    said: String,
}

impl Reading<'_> {
    fn new(stores: Arc<SlateStores>, is_over: &AtomicBool) -> Reading<'_> {
        let clock = SystemClock;
        let rests_until = clock.instant();
        Reading {
            stores,
            is_over,
            clock,
            store: None,
            ahead: None,
            rests_until,
            has_read: false,
            said: String::new(),
        }
    }

    fn read_on(mut self) -> Option<Replay> {
        while !self.is_over.load(Ordering::SeqCst) {
            if let Err(error) = self.step() {
                self.ahead = None;
                self.store = None;
                let error = format!("{error:#}");
                if error != self.said && !self.is_over.load(Ordering::SeqCst) {
                    tracing::info!("the journal is not read ahead for now: {error}");
                    self.said = error;
                }
            }
            std::thread::park_timeout(POLL);
        }
        self.ahead
    }

    fn step(&mut self) -> Result<()> {
        let store = match &self.store {
            Some(store) => Arc::clone(store),
            None => match self.stores.follow(FilesetId::ROOT, POLL) {
                Ok(store) => Arc::clone(self.store.insert(store)),
                // The first leader is about to make it.
                Err(StoreError::Missing(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        if let Some(ahead) = &mut self.ahead
            && ahead.catch_up(&store)? == Caught::Changed
        {
            self.ahead = None;
        }
        let begun = self.clock.instant();
        if self.ahead.is_none() && begun >= self.rests_until {
            let store = Interruptible { store: &*store, is_over: self.is_over };
            self.ahead = Replay::read_ahead(&store)?;
            let ended = self.clock.instant();
            self.rests_until = ended + ended.saturating_duration_since(begun) * REST;
            if let Some(ahead) = self.ahead.as_ref().filter(|_| !self.has_read) {
                let (jobs, batches) = ahead.size();
                tracing::info!(jobs, batches, "the journal is being read ahead");
                self.has_read = true;
            }
        }
        Ok(())
    }
}

/// A store whose reading ends early when it is over.
struct Interruptible<'a> {
    store: &'a dyn Store,
    is_over: &'a AtomicBool,
}

impl Store for Interruptible<'_> {
    fn get(&self, key: &[u8]) -> forebay_store::Result<Option<Bytes>> {
        self.store.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> forebay_store::Result<Vec<(Bytes, Bytes)>> {
        if self.is_over.load(Ordering::SeqCst) {
            return Err(StoreError::Io("the reading has ended".to_owned()));
        }
        self.store.scan(from, to, limit)
    }

    fn commit(&self, batch: &Batch) -> forebay_store::Result<()> {
        self.store.commit(batch)
    }

    fn copy_to(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> forebay_store::Result<u64> {
        self.store.copy_to(path, progress)
    }

    fn size_bytes(&self) -> forebay_store::Result<u64> {
        self.store.size_bytes()
    }
}

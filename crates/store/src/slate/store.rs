//! One database: the store of a fileset.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::FilesetId;
use parking_lot::{Mutex, RwLock, RwLockUpgradableReadGuard};
use slatedb::config::{
    CloseOptions, DurabilityLevel, FlushOptions, FlushType, ReadOptions, ScanOptions,
};
use slatedb::{Db, DbIterator, WriteBatch};
use tokio::time::timeout;

use super::compaction::Compaction;
use super::copy;
use super::errors::{Meaning, meaning};
use super::settings::{LOG_OBJECTS_MAX, UNASKED_TABLES_MAX};
use super::stores::Shared;
use crate::{Batch, Bytes, Result, Store, StoreError};

/// What the keys of pairs begin with: the engine has no empty keys, and other kinds may follow.
const PAIR: u8 = b'k';
/// A scan that wants more pairs than this reads ahead.
const LONG_SCAN: usize = 1024;
/// Commits that a store leaves in the log when it is closed: their objects are read at the next opening, one after the other.
const CLOSED_LOG_OBJECTS_MAX: u64 = 8;
/// Pairs of a scan for which its time is counted anew.
const PAIRS_PER_WAIT: usize = 4096;

type Outcome = std::result::Result<(), slatedb::Error>;
type Pending = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One database, opened to read and write.
pub struct SlateStore {
    shared: Arc<Shared>,
    fileset: FilesetId,
    name: String,
    state: RwLock<State>,
    /// Held for a whole commit.
    committing: Mutex<()>,
    /// A commit whose outcome is open.
    unsettled: Mutex<Option<Pending>>,
    is_unsettled: AtomicBool,
    /// Commits since the memtable was last made a sorted table on purpose.
    commits: AtomicU64,
}

/// An open database.
pub(super) struct Instance {
    pub db: Db,
    pub compaction: Compaction,
}

struct State {
    /// `None` after the instance ended, until the next call opens the database again.
    instance: Option<Instance>,
    /// The writer epoch that this store claimed last.
    epoch: u64,
    over: Option<Over>,
}

/// Why it is not opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// It was closed.
    Closed,
    /// A newer writer has the database.
    Superseded,
}

pub(super) fn stored(key: &[u8]) -> Vec<u8> {
    [&[PAIR], key].concat()
}

/// Reads see what is durable, and nothing else.
pub(super) fn durable() -> ReadOptions {
    ReadOptions { durability_filter: DurabilityLevel::Remote, ..ReadOptions::default() }
}

pub(super) fn scanning(limit: usize) -> ScanOptions {
    let long = limit > LONG_SCAN;
    ScanOptions {
        durability_filter: DurabilityLevel::Remote,
        read_ahead_bytes: if long { 1 << 20 } else { 64 << 10 },
        max_fetch_tasks: if long { 4 } else { 1 },
        cache_blocks: !long,
        ..ScanOptions::default()
    }
}

/// The next pairs of a scan, at most `limit`.
pub(super) async fn take(
    pairs: &mut DbIterator,
    limit: usize,
) -> std::result::Result<Vec<(Bytes, Bytes)>, slatedb::Error> {
    let mut taken = Vec::new();
    while taken.len() < limit {
        let Some(pair) = pairs.next().await? else { break };
        taken.push((pair.key[1..].to_vec(), pair.value.to_vec()));
    }
    Ok(taken)
}

impl SlateStore {
    pub(super) fn new(shared: &Arc<Shared>, fileset: FilesetId, instance: Instance) -> SlateStore {
        let epoch = instance.db.manifest().writer_epoch();
        SlateStore {
            shared: Arc::clone(shared),
            fileset,
            name: shared.name_of(fileset),
            state: RwLock::new(State { instance: Some(instance), epoch, over: None }),
            committing: Mutex::new(()),
            unsettled: Mutex::new(None),
            is_unsettled: AtomicBool::new(false),
            // How much of the log an earlier instance left is not known.
            commits: AtomicU64::new(CLOSED_LOG_OBJECTS_MAX + 1),
        }
    }

    /// The instance, opened again if it ended by itself. A newer writer is not displaced by that.
    fn opened(&self) -> Result<Db> {
        if let Some(instance) = &self.state.read().instance {
            return Ok(instance.db.clone());
        }
        let state = self.state.upgradable_read();
        if let Some(instance) = &state.instance {
            return Ok(instance.db.clone());
        }
        match state.over {
            Some(Over::Closed) => {
                return Err(StoreError::Io(format!("names {} are already closed", self.name)));
            }
            Some(Over::Superseded) => return Err(StoreError::Conflict),
            None => {}
        }
        let mut state = RwLockUpgradableReadGuard::upgrade(state);
        let opened = self.shared.build(self.fileset, Some(state.epoch));
        match opened {
            Ok(instance) => {
                let db = instance.db.clone();
                state.epoch = db.manifest().writer_epoch();
                state.instance = Some(instance);
                Ok(db)
            }
            Err(StoreError::Conflict) => {
                state.over = Some(Over::Superseded);
                Err(StoreError::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for `work`, but no longer than a call may take.
    fn wait<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let limited = async { timeout(self.shared.timeout, work).await.ok() };
        self.shared.runtime.block_on(limited)
    }

    fn late(&self) -> StoreError {
        StoreError::Io(format!("names {}: no answer within {:?}", self.name, self.shared.timeout))
    }

    /// Remembers what a failure says of the instance, and tells the caller what it says of the call.
    fn failed(&self, error: &slatedb::Error) -> StoreError {
        match meaning(&self.name, error) {
            Meaning::Superseded => {
                self.end(Some(Over::Superseded));
                StoreError::Conflict
            }
            Meaning::Ended(text) => {
                self.end(None);
                StoreError::Io(text)
            }
            Meaning::Call(error) => error,
        }
    }

    /// Lets the instance go. Without a reason the next call opens the database again.
    fn end(&self, over: Option<Over>) {
        let mut state = self.state.write();
        if state.over.is_none() {
            state.over = over;
        }
        if let Some(instance) = state.instance.take() {
            self.shared.abandon(instance);
        }
    }

    fn read<T, F>(&self, work: impl FnOnce(Db) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, slatedb::Error>>,
    {
        self.settle()?;
        let db = self.opened()?;
        match self.wait(work(db)) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(self.failed(&error)),
            None => Err(self.late()),
        }
    }

    /// Waits until the outcome of the last commit is known. What a read finds afterwards is for good.
    fn settle(&self) -> Result<()> {
        if !self.is_unsettled.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut unsettled = self.unsettled.lock();
        let Some(pending) = unsettled.as_mut() else { return Ok(()) };
        match self.wait(pending.as_mut()) {
            None => {
                return Err(StoreError::Io(format!(
                    "names {}: it is not known yet whether the last batch was taken; no answer within {:?}",
                    self.name, self.shared.timeout
                )));
            }
            Some(Ok(())) => {}
            // Whatever was under way is kept out or seen by opening the database again.
            Some(Err(error)) => {
                let superseded = matches!(meaning(&self.name, &error), Meaning::Superseded);
                self.end(superseded.then_some(Over::Superseded));
            }
        }
        *unsettled = None;
        self.is_unsettled.store(false, Ordering::Release);
        Ok(())
    }

    fn hold(&self, requires: &[(Bytes, Option<Bytes>)]) -> Result<bool> {
        for (key, value) in requires {
            if self.get(key)? != *value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the batch makes the store larger. Asked only where space is short.
    fn grows(&self, batch: &Batch) -> Result<bool> {
        let mut growth = 0_i64;
        let size = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        for (key, change) in &batch.changes {
            let old = self.get(key)?.map_or(0, |value| size(key.len() + value.len()));
            let new = change.as_ref().map_or(0, |value| size(key.len() + value.len()));
            growth = growth.saturating_add(new - old);
        }
        Ok(growth > 0)
    }

    /// Has the memtable made a sorted table, in the background, so that the log stays short.
    fn keep_log_short(&self, db: Db) {
        if self.commits.fetch_add(1, Ordering::Relaxed) < LOG_OBJECTS_MAX {
            return;
        }
        self.commits.store(0, Ordering::Relaxed);
        let name = self.name.clone();
        self.shared.runtime.handle().spawn(async move {
            let flush = FlushOptions { flush_type: FlushType::MemTable };
            if let Err(error) = db.flush_with_options(flush).await {
                // The next commit hears of it.
                tracing::debug!(name, %error, "the log could not be shortened");
            }
        });
    }

    /// Writes the batch and waits until it is durable.
    fn write(&self, db: Db, batch: &Batch) -> Result<()> {
        let mut changes = WriteBatch::new();
        for (key, change) in &batch.changes {
            match change {
                Some(value) => changes.put(stored(key), value),
                None => changes.delete(stored(key)),
            }
        }
        let instance = db.clone();
        let mut pending: Pending = Box::pin(async move {
            let written = db.write(changes).await?;
            db.flush_with_options(FlushOptions { flush_type: FlushType::Wal }).await?;
            written.await_durable().await
        });
        match self.wait(pending.as_mut()) {
            Some(Ok(())) => {
                self.keep_log_short(instance);
                Ok(())
            }
            Some(Err(error)) => match meaning(&self.name, &error) {
                Meaning::Superseded => {
                    self.end(Some(Over::Superseded));
                    Err(StoreError::Conflict)
                }
                // What is under way is kept out, or seen, when the database is opened again.
                Meaning::Ended(text) => {
                    self.end(None);
                    Err(StoreError::Unknown(text))
                }
                Meaning::Call(error) => {
                    self.end(None);
                    Err(StoreError::Unknown(error.to_string()))
                }
            },
            None => {
                *self.unsettled.lock() = Some(pending);
                self.is_unsettled.store(true, Ordering::Release);
                Err(StoreError::Unknown(self.late().to_string()))
            }
        }
    }
}

impl Store for SlateStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let key = stored(key);
        let value = self.read(|db| async move { db.get_with_options(&key, &durable()).await })?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let range = stored(from)..stored(to);
        let mut iterator =
            self.read(|db| async move { db.scan_with_options(range, &scanning(limit)).await })?;
        let mut found = Vec::new();
        while found.len() < limit {
            let wanted = PAIRS_PER_WAIT.min(limit - found.len());
            let taken = match self.wait(take(&mut iterator, wanted)) {
                Some(Ok(taken)) => taken,
                Some(Err(error)) => return Err(self.failed(&error)),
                None => return Err(self.late()),
            };
            let ended = taken.len() < wanted;
            found.extend(taken);
            if ended {
                break;
            }
        }
        Ok(found)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let _turn = self.committing.lock();
        self.settle()?;
        let db = self.opened()?;
        if !self.hold(&batch.requires)? {
            return Err(StoreError::Conflict);
        }
        if batch.changes.is_empty() {
            return Ok(());
        }
        if let Some(shortage) = self.shared.space.shortage()
            && self.grows(batch)?
        {
            return Err(StoreError::Full(shortage));
        }
        self.write(db, batch)
    }

    fn size_bytes(&self) -> Result<u64> {
        self.shared.size_of(self.fileset)
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let snapshot = self.read(|db| async move { db.snapshot() })?;
        let failed = |error: &slatedb::Error| self.failed(error);
        copy::to_file(&self.shared.runtime, &*snapshot, path, progress, &failed)
    }

    fn shorten_log(&self) -> Result<()> {
        let _turn = self.committing.lock();
        if self.commits.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        if let Some(instance) = &self.state.read().instance {
            if !takes_table(&instance.db) {
                return Ok(());
            }
            instance.compaction.rest();
        }
        let flush = FlushOptions { flush_type: FlushType::MemTable };
        self.read(|db| async move { db.flush_with_options(flush).await })?;
        self.commits.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let _turn = self.committing.lock();
        // An open outcome stays open: whoever opens the database next learns it.
        let settled = self.settle();
        let instance = {
            let mut state = self.state.write();
            if state.over.is_none() {
                state.over = Some(Over::Closed);
            }
            state.instance.take()
        };
        settled?;
        let Some(Instance { db, compaction }) = instance else { return Ok(()) };
        // The next opening reads a short log sooner than this could make a table of it. Commits are durable either way.
        let is_short = self.commits.load(Ordering::Relaxed) <= CLOSED_LOG_OBJECTS_MAX;
        let flush = (!is_short && takes_table(&db)).then_some(FlushType::MemTable);
        let closing = db.close_with_options(CloseOptions::default().with_flush_type(flush));
        let closed = self.wait(async { tokio::join!(closing, compaction.end()).0 });
        match closed {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => match meaning(&self.name, &error) {
                // There is nothing that it could still write.
                Meaning::Superseded => Ok(()),
                Meaning::Ended(text) => Err(StoreError::Io(text)),
                Meaning::Call(error) => Err(error),
            },
            None => Err(self.late()),
        }
    }
}

/// Whether the memtable becomes a sorted table without waiting for a compaction.
fn takes_table(db: &Db) -> bool {
    db.manifest().l0().len() < UNASKED_TABLES_MAX
}

/// A store that is dropped without being closed ends as in a crash: nothing more is written than what is under way.
impl Drop for SlateStore {
    fn drop(&mut self) {
        if let Some(instance) = self.state.get_mut().instance.take() {
            self.shared.abandon(instance);
        }
    }
}

/// Ends an instance without writing anything more.
pub(super) async fn abandon(instance: Instance) {
    let Instance { db, compaction } = instance;
    drop(compaction);
    let nothing = CloseOptions::default().with_flush_type(None);
    // It may have ended already.
    let _ = db.close_with_options(nothing).await;
}

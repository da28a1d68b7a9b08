//! The snapshot of the journal: the ledger in pieces, each under a key of its own, so that what has not
//! changed since the last snapshot is not written again, and no value grows with the number of jobs.
//!
//! Keys: `s`: the number of the first batch that the snapshot does not hold (8 bytes, big end first), then
//! the head of the ledger. `o` and the number of a job (8 bytes): the job without its environment, after the number
//! of the environment (8 bytes). `e` and this number: the environment, once for all jobs that have the
//! same one. `f` and the number of a run of a flow: the run. `c` and the number of a
//! schedule: the schedule. All in postcard after the numbers.
//!
//! Memory: two numbers for each job, and each environment once more as a key; while a snapshot is written, what
//! it writes.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result};
use forebay_grid::environment::Environment;
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::journal::{Change, Record};
use forebay_grid::snapshot::Touched;
use forebay_grid::vocabulary::JobId;
use forebay_grid::{Job, Ledger};
use forebay_store::{Batch, Bytes, Store};

use super::pages;

/// Bytes of forgotten jobs for which the next snapshot is written: a quarter of it, but within these.
const FORGOTTEN_BYTES_MIN: u64 = 16 << 20;
const FORGOTTEN_BYTES_MAX: u64 = 64 << 20;

const HEAD: &[u8] = b"s";
const JOB: u8 = b'o';
const ENVIRONMENT: u8 = b'e';
const SCHEDULE: u8 = b'c';
const FLOW: u8 = b'f';

/// What is known of the snapshot in the store.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Its jobs.
    jobs: BTreeMap<JobId, Piece>,
    /// Bytes of its jobs and environments, and of those of them that were forgotten since it was written.
    bytes: u64,
    forgotten_bytes: u64,
    /// Numbers of its environments. Looked up rarely: an environment has kilobytes, all of which are hashed.
    environments: HashMap<Environment, u64>,
    by_number: HashMap<u64, Held>,
    /// The number that was found last: most jobs share the environment of the one before.
    last_environment: u64,
    environments_ever: u64,
    /// What changed since it was written.
    touched: Touched,
}

/// An environment in the store.
struct Held {
    environment: Environment,
    /// How many jobs have it.
    jobs: u64,
}

/// A job in the store.
#[derive(Clone, Copy)]
struct Piece {
    /// The number of its environment.
    environment: u64,
    bytes: u64,
}

fn key(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

/// Calls `found` with the number and the value of each piece of a kind.
fn each_piece<S: Store>(
    store: &S,
    kind: u8,
    mut found: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    pages::each(store, vec![kind], &[kind + 1], |key, value| {
        let number = key[1..].try_into().context("a key of the snapshot is not a number")?;
        found(u64::from_be_bytes(number), value)
    })
}

/// The head of the snapshot, if there is one. No two snapshots of a journal have the same head, unless they are the same.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn head<S: Store>(store: &S) -> Result<Option<Bytes>> {
    Ok(store.get(HEAD)?)
}

impl Snapshot {
    /// Reads the snapshot that has this head, and the number of the first batch that it does not hold.
    ///
    /// # Errors
    /// If the store cannot be read, or the snapshot is damaged.
    pub fn read<S: Store>(store: &S, head: Option<&[u8]>) -> Result<(u64, Ledger, Snapshot)> {
        let mut snapshot = Snapshot::default();
        let Some(head) = head else { return Ok((0, Ledger::default(), snapshot)) };
        let (number, head) =
            head.split_first_chunk().context("the head of the grid's snapshot is too short")?;
        let mut ledger: Ledger =
            postcard::from_bytes(head).context("the head of the grid's snapshot")?;
        each_piece(store, ENVIRONMENT, |number, bytes| {
            let environment: Environment = postcard::from_bytes(bytes)
                .with_context(|| format!("environment {number} of the grid's snapshot"))?;
            snapshot.environments.insert(environment.clone(), number);
            snapshot.by_number.insert(number, Held { environment, jobs: 0 });
            snapshot.environments_ever = snapshot.environments_ever.max(number);
            snapshot.bytes += bytes.len() as u64;
            Ok(())
        })?;
        each_piece(store, JOB, |id, bytes| {
            let what = || format!("job {id} of the grid's snapshot");
            let piece_bytes = bytes.len() as u64;
            let (number, bytes) = bytes.split_first_chunk().with_context(what)?;
            let number = u64::from_be_bytes(*number);
            let job: Job = postcard::from_bytes(bytes).with_context(what)?;
            let held = snapshot.by_number.get_mut(&number).with_context(what)?;
            held.jobs += 1;
            let environment = held.environment.clone();
            snapshot.jobs.insert(JobId(id), Piece { environment: number, bytes: piece_bytes });
            snapshot.bytes += piece_bytes;
            ledger.put_job(JobId(id), job, environment);
            Ok(())
        })?;
        each_piece(store, FLOW, |id, bytes| {
            let run = postcard::from_bytes(bytes)
                .with_context(|| format!("flow {id} of the grid's snapshot"))?;
            ledger.put_flow(FlowId(id), run);
            Ok(())
        })?;
        each_piece(store, SCHEDULE, |id, bytes| {
            let entry = postcard::from_bytes(bytes)
                .with_context(|| format!("schedule {id} of the grid's snapshot"))?;
            ledger.put_schedule(ScheduleId(id), entry);
            Ok(())
        })?;
        Ok((u64::from_be_bytes(*number), ledger, snapshot))
    }

    /// Takes note of records that came after it.
    pub fn note(&mut self, records: &[Record]) {
        for record in records {
            if let Change::Forgotten(job) = &record.change {
                self.forgotten_bytes += self.jobs.get(job).map_or(0, |piece| piece.bytes);
            }
            self.touched.add(record);
        }
    }

    /// Bytes of its jobs with their environments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the next one gives so much of it back that it should be written now.
    pub fn has_forgotten_much(&self) -> bool {
        let much = (self.bytes / 4).clamp(FORGOTTEN_BYTES_MIN, FORGOTTEN_BYTES_MAX);
        self.forgotten_bytes >= much
    }

    /// Adds to `batch` what makes it a snapshot of `ledger` without the batches before `next`.
    ///
    /// # Errors
    /// If something cannot be encoded.
    pub fn write(&mut self, ledger: &Ledger, next: u64, batch: &mut Batch) -> Result<()> {
        let mut touched = std::mem::take(&mut self.touched);
        self.forgotten_bytes = 0;
        if touched.flow_forgotten {
            let gone = self.jobs.keys().filter(|id| ledger.job(**id).is_none());
            touched.jobs.extend(gone);
        }
        for id in touched.jobs {
            match ledger.job(id) {
                Some(job) => self.write_job(id, job, batch)?,
                None => self.remove_job(id, batch),
            }
        }
        for id in touched.flows {
            let run = ledger.flow(id).map(postcard::to_stdvec).transpose()?;
            batch.changes.insert(key(FLOW, id.0), run);
        }
        for id in touched.schedules {
            let entry = ledger.schedule(id).map(postcard::to_stdvec).transpose()?;
            batch.changes.insert(key(SCHEDULE, id.0), entry);
        }
        let mut head = next.to_be_bytes().to_vec();
        head.extend(postcard::to_stdvec(ledger)?);
        batch.changes.insert(HEAD.to_vec(), Some(head));
        Ok(())
    }

    fn write_job(&mut self, id: JobId, job: &Job, batch: &mut Batch) -> Result<()> {
        // The environment of a job never changes.
        let number = match self.jobs.get(&id) {
            Some(piece) => piece.environment,
            None => self.hold_environment(&job.spec().environment, batch)?,
        };
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.extend(postcard::to_stdvec(&job.piece())?);
        let piece = Piece { environment: number, bytes: bytes.len() as u64 };
        let before = self.jobs.insert(id, piece).map_or(0, |before| before.bytes);
        self.bytes = self.bytes - before + piece.bytes;
        batch.changes.insert(key(JOB, id.0), Some(bytes));
        Ok(())
    }

    /// The number of an environment, for one more job.
    fn hold_environment(&mut self, environment: &Environment, batch: &mut Batch) -> Result<u64> {
        let shared = |held: &&mut Held| held.environment.is_shared_with(environment);
        if let Some(held) = self.by_number.get_mut(&self.last_environment).filter(shared) {
            held.jobs += 1;
            return Ok(self.last_environment);
        }
        if let Some(number) = self.environments.get(environment)
            && let Some(held) = self.by_number.get_mut(number)
        {
            held.jobs += 1;
            self.last_environment = *number;
            return Ok(*number);
        }
        self.environments_ever += 1;
        let number = self.environments_ever;
        self.environments.insert(environment.clone(), number);
        self.by_number.insert(number, Held { environment: environment.clone(), jobs: 1 });
        self.last_environment = number;
        let bytes = postcard::to_stdvec(environment)?;
        self.bytes += bytes.len() as u64;
        batch.changes.insert(key(ENVIRONMENT, number), Some(bytes));
        Ok(number)
    }

    fn remove_job(&mut self, id: JobId, batch: &mut Batch) {
        let Some(Piece { environment: number, bytes }) = self.jobs.remove(&id) else { return };
        self.bytes -= bytes;
        batch.changes.insert(key(JOB, id.0), None);
        let Some(held) = self.by_number.get_mut(&number) else { return };
        held.jobs -= 1;
        if held.jobs == 0
            && let Some(Held { environment, .. }) = self.by_number.remove(&number)
        {
            let bytes = postcard::experimental::serialized_size(&environment).unwrap_or(0);
            self.bytes = self.bytes.saturating_sub(bytes as u64);
            self.environments.remove(&environment);
            batch.changes.insert(key(ENVIRONMENT, number), None);
        }
    }
}

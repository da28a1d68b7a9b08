//! Single-writer caches for people: how many changes wait, waiting until all are written back, conflicts, and the task that does it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{FilesetId, Ino};
use serde::{Deserialize, Serialize};

use super::{LOOK, Namespace};
use crate::caching::queue::Change;
use crate::caching::visits::{Cache, Errand};
use crate::caching::{CacheMode, WriteBackStatus};
use crate::error::{FsError, Result};
use crate::namespace::catalogue::Fileset;
use crate::namespace::tasks::{Task, Turn};
use crate::partition::Partition;
use crate::tasks::{TaskState, Work};

/// How far a flush has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushing {
    /// Changes below this number are to be carried out.
    pub through: u64,
    /// How many of them remain.
    pub left: u64,
    /// Why they wait, if they do.
    pub problem: Option<String>,
    /// The number of the task, if it is paused.
    pub paused_task: Option<u64>,
}

/// What somebody else did at home where a cache writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Seconds since the epoch when it was found.
    pub at: i64,
    /// Path at home.
    pub path: String,
    /// What was found.
    pub what: String,
    /// Path at home of the version of the home, if it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

impl Cache {
    /// Whether its changes are written back.
    pub fn writes_back(&self) -> bool {
        self.settings.mode == CacheMode::SingleWriter
    }

    /// What people are told of the changes that wait.
    pub fn write_back_status(&self, now: forebay_base::Timestamp) -> Option<WriteBackStatus> {
        let settings = self.settings.write_back.filter(|_| self.writes_back())?;
        let mut status = WriteBackStatus {
            delay_seconds: settings.delay_seconds,
            changes_max: settings.changes_max,
            ..WriteBackStatus::default()
        };
        let Some(write_back) = self.write_back.load_full() else { return Some(status) };
        {
            let queue = write_back.queue.lock();
            status.changes = queue.len() as u64;
            status.oldest_seconds = queue.oldest().map_or(0, |oldest| now.since(oldest).as_secs());
        }
        status.done_changes = write_back.written_files.load(Ordering::Relaxed);
        status.written_bytes = write_back.written_bytes.load(Ordering::Relaxed);
        status.conflicts = write_back.conflicts.load(Ordering::Relaxed);
        status.problem = write_back.problem.lock().clone();
        Some(status)
    }
}

impl Namespace {
    /// A single-writer cache with its fileset, which is opened.
    fn single_writer(&self, name: &str) -> Result<(Arc<Cache>, Arc<Partition>, Arc<Fileset>)> {
        self.alone("a cache fileset")?;
        let fileset = self.fileset_named(name)?;
        let partition = self.open_fileset(fileset.id)?;
        let cache = self.cache_of(fileset.id).filter(|cache| cache.writes_back());
        let cache = cache.ok_or_else(|| {
            FsError::Refused(format!(
                "fileset \"{name}\" is not a single-writer cache: nothing of it is written back"
            ))
        })?;
        Ok((cache, partition, fileset))
    }

    /// Has all changes of a single-writer cache that were made until now be written back at once; `begun` is what an earlier call said.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the fileset is not one; what the store says.
    pub fn flush_cache(&self, name: &str, begun: Option<u64>) -> Result<Flushing> {
        let (cache, partition, fileset) = self.single_writer(name)?;
        let Some(write_back) = partition.write_back() else { return Err(FsError::Stale) };
        let through = begun.unwrap_or_else(|| write_back.queue.lock().next_number());
        if begun.is_none() {
            write_back.hurried_below.fetch_max(through, Ordering::AcqRel);
            self.hurry_task(fileset.id);
        }
        let left = write_back.queue.lock().len_below(through) as u64;
        if left == 0 {
            // What is written back is struck for good when this returns.
            partition.commit()?;
        }
        let away = cache.away_reason();
        let problem = away.or_else(|| write_back.problem.lock().clone()).filter(|_| left > 0);
        let paused_task = self.write_back_task_number(&fileset.settings().name).filter(|number| {
            self.task_status().iter().any(|it| it.id == *number && it.state == TaskState::Paused)
        });
        Ok(Flushing { through, left, problem, paused_task })
    }

    /// Writes all changes of a single-writer cache back, and waits for that.
    ///
    /// # Errors
    /// As [`Namespace::flush_cache`]; [`FsError::HomeAway`]; [`FsError::Io`] if the home refuses one.
    pub fn write_back_now(&self, name: &str) -> Result<()> {
        let (cache, partition, fileset) = self.single_writer(name)?;
        let Some(write_back) = partition.write_back() else { return Err(FsError::Stale) };
        let through = write_back.queue.lock().next_number();
        write_back.hurried_below.fetch_max(through, Ordering::AcqRel);
        self.visit(&cache, Errand::WriteBack(fileset.id), None)?;
        partition.commit()
    }

    /// The conflicts of a single-writer cache that are remembered, the oldest first; they are forgotten if `forget`.
    ///
    /// # Errors
    /// As [`Namespace::flush_cache`].
    pub fn cache_conflicts(&self, name: &str, forget: bool) -> Result<Vec<Conflict>> {
        let (_, partition, _) = self.single_writer(name)?;
        let found = partition.conflicts()?;
        if forget {
            let numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
            partition.forget_conflicts(&numbers)?;
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let shown = |(_, it): (u64, crate::caching::queue::ConflictRecord)| Conflict {
            at: it.at,
            path: text(it.path),
            what: it.what,
            kept: it.kept.map(text),
        };
        Ok(found.into_iter().map(shown).collect())
    }

    // --- the task ---

    /// Changes of a fileset that wait, if it is known.
    pub(in crate::namespace) fn changes_of(&self, name: &str) -> Option<u64> {
        let cache = self.cache_of(self.catalogue.named(name)?.id)?;
        let write_back = cache.write_back.load_full()?;
        let waiting = write_back.queue.lock().len();
        Some(waiting as u64)
    }

    fn write_back_task_number(&self, name: &str) -> Option<u64> {
        self.unfinished_task(&Work::WriteBack { fileset: name.to_owned() })
    }

    /// The task that paces the write-back of a fileset.
    pub(super) fn write_back_task(&self, id: FilesetId) -> Option<Arc<Task>> {
        let name = self.catalogue.get(id)?.settings().name;
        self.task_of(self.write_back_task_number(&name)?)
    }

    /// Makes sure that a task writes back the changes of a fileset.
    pub(super) fn begin_write_back(&self, name: &str) {
        let work = Work::WriteBack { fileset: name.to_owned() };
        if self.unfinished_task(&work).is_none()
            && let Err(error) = self.begin_task(&work)
        {
            tracing::error!(fileset = name, %error, "no task writes the changes of a cache to its home: mount again");
        }
    }

    fn hurry_task(&self, id: FilesetId) {
        if let Some(task) = self.write_back_task(id) {
            task.at_work.lock().rests_until = None;
            self.wake_tasks();
        }
    }

    /// One turn of the task: has a thread of the cache write back what is due. The thread of the tasks never visits a home.
    pub(in crate::namespace) fn write_back_by_task(&self, name: &str) -> Result<Turn> {
        let Some(fileset) = self.catalogue.named(name) else { return Ok(Turn::Done) };
        if self.changes_of(name) == Some(0) {
            // The fileset may rest.
            return Ok(Turn::Waits("all changes are written back".to_owned()));
        }
        let partition = self.open_fileset(fileset.id)?;
        let cache = self.cache_of(fileset.id).filter(|cache| cache.writes_back());
        let Some(cache) = cache.filter(|_| partition.write_back().is_some()) else {
            return Ok(Turn::Done);
        };
        let now = self.instant();
        if let Some((away, is_time)) = cache.away(now) {
            if is_time {
                self.send(&cache, Errand::Probe);
            }
            return Ok(Turn::Waits(away.to_string()));
        }
        // Nobody leaves it: it ends by itself, and runs on after this turn.
        let (visit, _) = self.send(&cache, Errand::WriteBack(fileset.id));
        let outcome = visit.wait(LOOK);
        let waited = |since| now.saturating_duration_since(since) >= cache.timeout();
        if outcome.is_none() && cache.silent_since(&visit).is_some_and(waited) {
            // It may be slow, as when it syncs much: one that hangs does not answer this either.
            let (probe, _) = self.send(&cache, Errand::Probe);
            let is_there = matches!(probe.wait(LOOK), Some(Ok(())));
            if is_there || !cache.silent_since(&probe).is_some_and(waited) {
                return Ok(Turn::Waits("the home has not finished a step".to_owned()));
            }
            let timeout = cache.settings.timeout_seconds;
            let why = format!("{} has not answered for {timeout} s", cache.settings.home);
            cache.note_away(&why, now);
        }
        match outcome {
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => {
                Ok(Turn::Waits("changes wait, or are being written back".to_owned()))
            }
        }
    }

    // --- what requests need ---

    /// Before inodes of a single-writer cache are changed: there is room for a change, and the names of directories are known.
    pub(super) fn before_queued_change(&self, cache: &Cache, inodes: &[Ino]) -> Result<()> {
        for ino in inodes {
            let partition = self.partition_of(*ino)?;
            let is_known = cache.is_known_local(*ino);
            if !is_known && !partition.is_directory(*ino)? {
                // Not where a change waits already, as that of a file that was just made.
                partition.admit_change_of(*ino)?;
                continue;
            }
            partition.admit_change()?;
            if !is_known {
                partition.check_fetched(*ino)?;
                cache.note_local(*ino);
            }
        }
        Ok(())
    }

    /// A file of a single-writer cache is about to be written, or was just opened for that: a change that writes it back is durable.
    pub(in crate::namespace) fn queue_bytes(&self, ino: Ino) -> Result<()> {
        let writes_back = self.cache_of(ino.fileset()).is_some_and(|cache| cache.writes_back());
        if writes_back { self.partition_of(ino)?.queue_bytes(ino) } else { Ok(()) }
    }

    /// Refuses what a single-writer cache does not do, as it could not be written back.
    pub(in crate::namespace) fn refuse_in_single_writer(&self, id: FilesetId) -> Result<()> {
        let writes_back = self.cache_of(id).is_some_and(|cache| cache.writes_back());
        if writes_back { Err(FsError::Unsupported) } else { Ok(()) }
    }
}

impl Partition {
    /// A file that somebody has removed at home is to be written there again.
    pub(super) fn queue_again(&self, ino: Ino) {
        let is_file = self.inode(ino).is_ok_and(|inode| inode.lock().file().is_some());
        if is_file {
            self.queue_now(Change::Bytes(ino));
        }
    }
}

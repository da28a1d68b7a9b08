//! Files of an archive that are wanted again: each is brought back once, however many programs wait for it.
//!
//! A request that finds its file in an archive waits here, and is repeated afterwards. Threads of their own, at most
//! `recall_threads`, copy the bytes; a file for which nobody waits any more is given up. While the archive does not answer its files wait
//! as for any other disk that is unreachable (`away.rs`). Without background threads whoever wants a file copies it.
//!
//! Nothing of it survives a crash: whoever wants the file asks again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{ByteSize, DiskId, Ino};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::moves::{Course, Snapshots};
use super::{Interruption, Namespace};
use crate::error::{FsError, Result};
use crate::grants::{Changer, Touched};
use crate::object::FsDisk;
use crate::owner::Route;
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace};
use crate::record::DiskRecord;
use crate::stale::Stale;

/// How often those who wait look whether they were interrupted, and say how far it is.
const LOOK: Duration = Duration::from_millis(200);
/// How often a file is fetched anew that has got another owner meanwhile.
const TRIES: u32 = 8;

/// Files that are being brought back.
#[derive(Default)]
pub(super) struct Recalls {
    state: Mutex<Queue>,
    changed: Condvar,
    /// For the threads.
    namespace: OnceLock<Weak<Namespace>>,
}

#[derive(Default)]
struct Queue {
    known: HashMap<Ino, Arc<Recall>>,
    waiting: VecDeque<Arc<Recall>>,
    threads: usize,
    is_over: bool,
}

/// One file.
struct Recall {
    ino: Ino,
    total: AtomicU64,
    done: AtomicU64,
    /// Nobody waits for it any more.
    is_given_up: AtomicBool,
    /// Those who wait, changed under the lock of the queue.
    waiters: AtomicU64,
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlace {
    /// Where its disk is; none if it has no bytes.
    pub location: Option<String>,
    /// Pool of the disk.
    pub pool: String,
    /// Where its copies in other failure groups are.
    #[serde(default)]
    pub copies: Vec<String>,
    /// Consecutive bytes of it that lie on one disk, if it is striped over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripe_unit_bytes: Option<u64>,
    /// The disks that it is striped over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stripes: Vec<String>,
    /// It lies in an archive.
    pub is_archived: bool,
    /// Whether its bytes are here, in an archive, or both.
    #[serde(default)]
    pub state: Residence,
    /// The archive that a premigrated file lies in too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes that it takes there.
    pub stored_bytes: u64,
}

/// How far files go that are sent to a pool of archives.
#[derive(Clone, Copy)]
enum MigrationEnd {
    Move,
    Premigrate,
}

/// Whether the bytes of a file are here, in an archive, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residence {
    /// Here alone, or it has none.
    #[default]
    Resident,
    /// Here, and the same in an archive.
    Premigrated,
    /// In an archive alone.
    Migrated,
    /// At the home of the cache alone: it was not fetched.
    Home,
}

/// What became of a file that somebody has sent to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Migrated {
    /// It lies there now.
    Moved {
        /// Bytes of the file.
        bytes: u64,
    },
    /// It lies in the archive too now, and is still here.
    Premigrated {
        /// Bytes of the file.
        bytes: u64,
    },
    /// It lay in the archive too, and is not here any more.
    Evicted {
        /// Bytes of the file.
        bytes: u64,
    },
    /// It lay there already, or has no bytes.
    Nothing,
    /// A program uses it.
    InUse,
    /// A snapshot refers to its bytes.
    Shared,
    /// It has the extended attribute `user.forebay.pin`, and the pool is made of archives.
    Pinned,
    /// It could not be moved.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Recall {
    fn new(ino: Ino) -> Recall {
        Recall {
            ino,
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            waiters: AtomicU64::new(0),
            outcome: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn shown(&self) -> String {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        if total == 0 {
            return "its turn to be recalled from the archive".to_owned();
        }
        format!("its recall from the archive: {} of {}", ByteSize(done), ByteSize(total))
    }

    fn end(&self, outcome: Result<()>) {
        *self.outcome.lock() = Some(outcome);
        self.ended.notify_all();
    }
}

impl Namespace {
    /// Brings a file back from its archive and waits for that, unless `interruption` comes first. A file that does not lie in
    /// one is left alone. Of an inode of a cache, what is at home alone is fetched: the bytes of a file, or the names of a
    /// directory.
    ///
    /// # Errors
    /// [`FsError::Interrupted`]; [`FsError::NoSpace`], [`FsError::Io`] if the archive has not answered for `away_timeout` or
    /// the object is damaged or missing: the log names it; [`FsError::HomeAway`].
    pub fn recall(&self, ino: Ino, interruption: Option<&Interruption>) -> Result<()> {
        if self.fetch(ino, interruption)? {
            return Ok(());
        }
        let (recall, is_new) = self.join_recall(ino);
        if is_new && !self.hand_to_thread(&recall) {
            self.carry_out_recall(&recall);
        }
        let outcome = self.await_recall(&recall, interruption);
        self.leave_recall(&recall);
        outcome
    }

    /// Carries out what needs the bytes of a file, and brings them back first if they lie in an archive.
    ///
    /// # Errors
    /// Those of `operation` and of [`Namespace::recall`].
    pub(super) fn recalling<T>(
        &self,
        ino: Ino,
        mut operation: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match operation() {
                Err(FsError::Archived) => self.recall(ino, None)?,
                done => return done,
            }
        }
    }

    fn join_recall(&self, ino: Ino) -> (Arc<Recall>, bool) {
        let mut queue = self.recalls.state.lock();
        let is_new = !queue.known.contains_key(&ino);
        let recall = queue.known.entry(ino).or_insert_with(|| Arc::new(Recall::new(ino)));
        recall.waiters.fetch_add(1, Ordering::AcqRel);
        (Arc::clone(recall), is_new)
    }

    fn leave_recall(&self, recall: &Arc<Recall>) {
        let mut queue = self.recalls.state.lock();
        if recall.waiters.fetch_sub(1, Ordering::AcqRel) == 1 {
            recall.is_given_up.store(true, Ordering::Release);
            if queue.known.get(&recall.ino).is_some_and(|known| Arc::ptr_eq(known, recall)) {
                queue.known.remove(&recall.ino);
            }
        }
    }

    /// Has a thread bring a file back. `false` if there are none.
    fn hand_to_thread(&self, recall: &Arc<Recall>) -> bool {
        let Some(namespace) = self.recalls.namespace.get() else { return false };
        let mut queue = self.recalls.state.lock();
        if queue.is_over {
            return false;
        }
        queue.waiting.push_back(Arc::clone(recall));
        if queue.threads < self.shared.settings.recall_threads {
            let namespace = Weak::clone(namespace);
            let body = move || run_recalls(&namespace);
            let started = std::thread::Builder::new().name("recall".to_owned()).spawn(body);
            queue.threads += usize::from(started.is_ok());
        }
        if queue.threads == 0 {
            queue.waiting.retain(|waiting| !Arc::ptr_eq(waiting, recall));
            return false;
        }
        true
    }

    fn await_recall(&self, recall: &Recall, interruption: Option<&Interruption>) -> Result<()> {
        let mut outcome = recall.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            if interruption.is_some_and(Interruption::is_set) {
                return Err(FsError::Interrupted);
            }
            let _waits = in_flight::waits_for(|| WaitsFor::Archive(recall.shown().into()));
            recall.ended.wait_for(&mut outcome, LOOK);
        }
    }

    /// Threads for recalls may be started from now on.
    pub(super) fn start_recalls(self: &Arc<Self>) {
        let _ = self.recalls.namespace.set(Arc::downgrade(self));
    }

    /// Ends them, and waits for that.
    pub(super) fn stop_recalls(&self) {
        let mut queue = self.recalls.state.lock();
        queue.is_over = true;
        for recall in queue.known.values() {
            recall.is_given_up.store(true, Ordering::Release);
        }
        while queue.threads > 0 {
            self.recalls.changed.wait(&mut queue);
        }
    }

    fn next_recall(&self) -> Option<Arc<Recall>> {
        let mut queue = self.recalls.state.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.threads -= 1;
            self.recalls.changed.notify_all();
        }
        next
    }

    fn carry_out_recall(&self, recall: &Recall) {
        let goes_on = || {
            let is_over = recall.is_given_up.load(Ordering::Acquire);
            if is_over { Err(FsError::Interrupted) } else { Ok(()) }
        };
        let pace = |bytes: u64| {
            recall.done.fetch_add(bytes, Ordering::Relaxed);
            goes_on()
        };
        let outcome = self.waiting_for_disks(|| {
            goes_on()?;
            recall.done.store(0, Ordering::Relaxed);
            self.bring_back(recall.ino, None, &pace, &|size| {
                recall.total.store(size, Ordering::Relaxed);
            })
            .map(drop)
        });
        match &outcome {
            Ok(()) => self.commit_recall(recall.ino),
            Err(FsError::Interrupted | FsError::Stale) => {}
            Err(FsError::NoSpace) => self.count_failed_recall(recall.ino),
            Err(error) => {
                self.count_failed_recall(recall.ino);
                let path = self.paths_of(&[recall.ino]).remove(&recall.ino);
                let path = path.unwrap_or_else(|| format!("inode {}", recall.ino));
                tracing::error!(file = path, %error, "a file was not recalled from its archive");
            }
        }
        recall.end(outcome);
    }

    /// Has the commit thread commit what a file was recalled to, soon: a crash would have it fetched again, and until then its
    /// bytes take space twice.
    fn commit_recall(&self, ino: Ino) {
        if let Ok(Some((partition, _route))) = self.local_owner(ino)
            && !partition.commits_rest()
        {
            partition.want_commit();
        }
    }

    fn count_failed_recall(&self, ino: Ino) {
        let Ok(Some((partition, _route))) = self.local_owner(ino) else { return };
        if let Ok(Some((at, _))) = partition.archived(ino)
            && let Ok(disk) = self.shared.objects.disk(at.disk)
        {
            disk.traffic.recalled.failed();
        }
    }

    /// Copies a file from its archive to a disk of its fileset's pool, or to one that `suits`. `begins` is told its size.
    pub(super) fn bring_back(
        &self,
        ino: Ino,
        suits: Option<&dyn Fn(&FsDisk) -> bool>,
        pace: &Pace<'_>,
        begins: &dyn Fn(u64),
    ) -> Result<Moved> {
        for _ in 0..TRIES {
            let Some((partition, route)) = self.local_owner(ino)? else { return Ok(Moved::Gone) };
            let Some((at, size)) = partition.archived(ino)? else { return Ok(Moved::Gone) };
            drop::<Route>(route);
            begins(size);
            let own = partition.pool();
            let of_its_pool = |disk: &FsDisk| disk.pool() == own && !disk.is_archive();
            let suits = suits.unwrap_or(&of_its_pool);
            let fetched = partition.with_space(|| partition.fetch((ino, at, size), suits, pace));
            let (resting, new) = match fetched {
                // Its last name went meanwhile, or it was written anew.
                Err(FsError::Io(_)) if !self.is_still_at(&partition, ino, at) => continue,
                fetched => fetched?,
            };
            self.shared.fail_points.reach("recall.copied")?;
            let _nobody_caches = partition.begin_change(Changer::LOCAL, &Touched::inode(ino));
            let is_same = |found: &Arc<Partition>| Arc::ptr_eq(found, &partition);
            let turned = match self.local_owner(ino) {
                Ok(Some((found, _route))) if is_same(&found) => {
                    let turned = partition.turn_to_recalled(&resting, &new);
                    self.shared.objects.drop_handle(new);
                    turned?
                }
                _ => {
                    partition.give_up_copy(&new);
                    continue;
                }
            };
            self.tell_own_kernel(&[Stale::Attributes(ino)]);
            if let Moved::Whole(bytes) = turned {
                self.shared.objects.disk(at.disk)?.traffic.recalled.moved(bytes);
            }
            return Ok(turned);
        }
        Err(FsError::Io(format!("inode {ino}: its fileset changes hands all the time")))
    }

    fn is_still_at(&self, partition: &Partition, ino: Ino, at: crate::record::ObjectRef) -> bool {
        partition.archived(ino).is_ok_and(|found| found.is_some_and(|(found, _)| found == at))
    }

    // --- by hand ---

    /// Where the bytes of a file are.
    ///
    /// # Errors
    /// [`FsError::Refused`] for filesets whose files are not known here, [`FsError::Invalid`] for what is not a file.
    pub fn place_of(&self, ino: Ino) -> Result<FilePlace> {
        let Some((partition, _route)) = self.local_owner(ino)? else {
            return Err(FsError::Refused(
                "its fileset is native, or another node's: where its files lie is not known here"
                    .to_owned(),
            ));
        };
        let (at, size, stored_bytes) = partition.place_of(ino)?;
        let mut copies = partition.disks_of_copies(ino)?;
        copies.retain(|disk| !self.shared.objects.is_archive(*disk));
        let archive = partition.premigrated_file(ino)?.map(|(disk, _)| disk);
        let disks = self.disks.read();
        let place = |id: &DiskId| {
            disks.iter().find(|disk| disk.id == *id).map(|disk| disk.location.clone())
        };
        let copies = copies.iter().filter_map(place).collect();
        let record = at.and_then(|at| disks.iter().find(|disk| disk.id == at));
        let striping = record.and_then(DiskRecord::striping);
        let is_archived = at.is_some_and(|at| self.shared.objects.is_archive(at));
        Ok(FilePlace {
            location: record.map(|disk| disk.shown_location(&disks)),
            pool: record.map(|disk| disk.pool.clone()).unwrap_or_default(),
            copies,
            stripe_unit_bytes: striping.as_ref().map(|striping| striping.unit_bytes),
            stripes: striping.iter().flat_map(|it| &it.members).filter_map(place).collect(),
            is_archived,
            state: match (is_archived, archive) {
                _ if partition.unfetched(ino)?.is_some() => Residence::Home,
                (true, _) => Residence::Migrated,
                (false, Some(_)) => Residence::Premigrated,
                (false, None) => Residence::Resident,
            },
            archive: archive.as_ref().and_then(place),
            size,
            stored_bytes,
        })
    }

    /// Moves files to a pool now, one after the other. Files in use are left alone.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, or if there is no such pool.
    pub fn migrate_files(&self, pool: &str, files: &[Ino]) -> Result<Vec<Migrated>> {
        self.migrate_until(MigrationEnd::Move, pool, files)
    }

    /// Gives files an object in a pool of archives too, one after the other; they stay where they are. Files in use are left alone.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, or if there is no such pool, or it is not made of archives.
    pub fn premigrate_files(&self, pool: &str, files: &[Ino]) -> Result<Vec<Migrated>> {
        self.alone("`forebay migrate`")?;
        self.check_pool_of_archives(pool)?;
        self.migrate_until(MigrationEnd::Premigrate, pool, files)
    }

    fn migrate_until(&self, end: MigrationEnd, pool: &str, files: &[Ino]) -> Result<Vec<Migrated>> {
        self.alone("`forebay migrate`")?;
        self.check_pool(pool)?;
        let pool = self.shared.objects.pools.named(pool)?;
        let suits = |disk: &FsDisk| disk.pool() == pool;
        // Only an object that has its name is copied.
        self.commit()?;
        let migrate = |ino: &Ino| {
            let place = self.local_owner(*ino)?.map(|(owner, _route)| owner.place_of(*ino));
            let Some((Some(from), _, _)) = place.transpose()? else { return Ok(Migrated::Nothing) };
            if self.shared.objects.disk(from)?.pool() == pool {
                return Ok(Migrated::Nothing);
            }
            let snapshots = Snapshots::Stay;
            let course = Course { from, suits: &suits, most: u64::MAX, snapshots };
            let moved = match end {
                MigrationEnd::Move => self.move_file(*ino, &course, &|_| Ok(()))?,
                MigrationEnd::Premigrate => self.premigrate_file(*ino, &course, &|_| Ok(()))?,
            };
            Ok(match (moved, end) {
                (Moved::Whole(bytes), MigrationEnd::Move) => Migrated::Moved { bytes },
                (Moved::Whole(bytes), MigrationEnd::Premigrate) => Migrated::Premigrated { bytes },
                (Moved::Evicted(bytes), _) => Migrated::Evicted { bytes },
                (Moved::InUse, _) => Migrated::InUse,
                (Moved::Shared, _) => Migrated::Shared,
                (Moved::Pinned, _) => Migrated::Pinned,
                (Moved::Gone, _) => Migrated::Nothing,
            })
        };
        let said = |ino: &Ino| {
            let failed = |error: FsError| Migrated::Failed { reason: error.to_string() };
            migrate(ino).unwrap_or_else(failed)
        };
        let all = files.iter().map(said).collect();
        // What was moved gives its old place back.
        self.commit()?;
        self.shared.objects.finish_reclaim();
        Ok(all)
    }
}

impl Partition {
    /// The disk of a file, its size and the bytes that it takes.
    fn place_of(&self, ino: Ino) -> Result<(Option<DiskId>, u64, u64)> {
        let inode = self.inode(ino)?;
        let state = inode.lock();
        let file = state.file().ok_or(FsError::Invalid)?;
        Ok((file.object.map(|at| at.disk), state.size, state.allocated_bytes))
    }
}

/// Body of a thread that brings files back, until none waits.
fn run_recalls(namespace: &Weak<Namespace>) {
    while let Some(namespace) = namespace.upgrade() {
        let Some(recall) = namespace.next_recall() else { return };
        namespace.carry_out_recall(&recall);
    }
}

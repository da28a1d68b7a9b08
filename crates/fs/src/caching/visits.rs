//! Visits to the home of a cache: what is wanted from there, those who wait for it, and the threads that go.
//!
//! Each errand is run once, however many requests wait for it. Those who wait give up once the home has not answered for its
//! timeout; the thread that hangs stays where it is, and from then on the home counts as unreachable, so that nobody else
//! waits. One visit at a time looks whether it is back, when somebody would have gone there. Threads for names and threads for
//! bytes are counted apart: the fetch of a large file keeps nobody from a name.
//!
//! Nothing of it survives a crash.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use forebay_base::{FilesetId, Ino};
use parking_lot::{Condvar, Mutex};

use super::home::HomeTree;
use super::{CacheSettings, CacheStatus};
use crate::error::{FsError, Result};
use crate::partition::writing_back::WriteBack;

/// Threads for names, for bytes, and for writing back.
const LANES: usize = 3;
/// Most threads of a cache for names, and for bytes.
const THREADS_MAX: usize = 4;
/// Names and directories that are known to be as at home; when there are more, all are compared again.
const FRESH_MAX: usize = 1 << 16;
/// How often it is looked whether a home is back.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a mount waits for visits that go on.
const STOP_MAX: Duration = Duration::from_secs(2);

/// What is wanted from a home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Errand {
    /// Whether it is there.
    Probe,
    /// One name of a directory.
    Name(Ino, Vec<u8>),
    /// All names of a directory.
    Names(Ino),
    /// The bytes of a file.
    Bytes(Ino),
    /// The changes of the fileset are to be carried out.
    WriteBack(FilesetId),
}

impl Errand {
    /// Which threads run it.
    fn lane(&self) -> usize {
        match self {
            Errand::Probe | Errand::Name(..) | Errand::Names(_) => 0,
            Errand::Bytes(_) => 1,
            Errand::WriteBack(_) => 2,
        }
    }
}

/// An errand that somebody waits for.
pub(crate) struct Visit {
    pub errand: Errand,
    /// Bytes fetched, of how many.
    pub done: AtomicU64,
    pub total: AtomicU64,
    /// Nobody waits for it any more.
    is_given_up: AtomicBool,
    waiters: AtomicU64,
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
    /// Since when the home is to answer; none while it is not its turn.
    at_home: Mutex<Option<Instant>>,
}

impl Visit {
    /// The home is to answer from now on.
    pub fn begin_step(&self, now: Instant) {
        *self.at_home.lock() = Some(now);
    }

    /// The home has answered.
    pub fn end_step(&self) {
        *self.at_home.lock() = None;
    }

    /// Refuses to go on once nobody waits for it.
    pub fn check_wanted(&self) -> Result<()> {
        let is_given_up = self.is_given_up.load(Ordering::Acquire);
        if is_given_up { Err(FsError::Interrupted) } else { Ok(()) }
    }

    /// What came of it, if it is over; waits a little for that.
    pub fn wait(&self, limit: Duration) -> Option<Result<()>> {
        let mut outcome = self.outcome.lock();
        if outcome.is_none() {
            self.ended.wait_for(&mut outcome, limit);
        }
        outcome.clone()
    }

    /// Since when the home is to answer, if it is its turn.
    pub fn waits_since(&self) -> Option<Instant> {
        *self.at_home.lock()
    }
}

#[derive(Default)]
struct Queue {
    known: HashMap<Errand, Arc<Visit>>,
    waiting: [VecDeque<Arc<Visit>>; LANES],
    /// Those that a thread carries out.
    running: [Vec<Arc<Visit>>; LANES],
    threads: [usize; LANES],
    is_over: bool,
}

impl Queue {
    /// Whoever wants its errand from now on begins another visit.
    fn forget(&mut self, visit: &Arc<Visit>) {
        if self.known.get(&visit.errand).is_some_and(|known| Arc::ptr_eq(known, visit)) {
            self.known.remove(&visit.errand);
        }
    }
}

/// That the home does not answer.
struct Away {
    why: String,
    probed: Instant,
}

/// What is as at home, since when.
#[derive(Default)]
struct Fresh {
    directories: HashMap<Ino, Instant>,
    names: HashMap<(Ino, Vec<u8>), Instant>,
    /// Directories that do not follow the home any more.
    local: HashSet<Ino>,
}

impl Fresh {
    fn keep_within_bounds(&mut self) {
        if self.names.len() + self.directories.len() + self.local.len() >= FRESH_MAX {
            *self = Fresh::default();
        }
    }
}

/// A cache fileset at work.
pub(crate) struct Cache {
    pub settings: CacheSettings,
    pub tree: HomeTree,
    queue: Mutex<Queue>,
    changed: Condvar,
    away: Mutex<Option<Away>>,
    fresh: Mutex<Fresh>,
    /// Names of directories that could not be read at home when somebody looked last, although the home answered.
    unreadable: Mutex<HashMap<Ino, HashSet<Vec<u8>>>>,
    /// Held while what a visit has found is put into the fileset: of a directory one at a time.
    pub applying: Mutex<()>,
    pub fetched_files: AtomicU64,
    pub fetched_bytes: AtomicU64,
    /// The changes that wait, once the fileset is open.
    pub write_back: ArcSwapOption<WriteBack>,
}

/// Who is to run a visit.
pub(crate) enum Runner {
    /// A thread that is there, or one that runs it already.
    Thread,
    /// A thread that is to be started.
    New(usize),
    /// Whoever wants it.
    Caller,
}

impl Cache {
    pub fn new(settings: CacheSettings) -> Cache {
        let (directory, identity) = (settings.home.clone(), settings.identity);
        Cache {
            settings,
            tree: HomeTree { directory, identity },
            queue: Mutex::default(),
            changed: Condvar::new(),
            away: Mutex::default(),
            fresh: Mutex::default(),
            unreadable: Mutex::default(),
            applying: Mutex::default(),
            fetched_files: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            write_back: ArcSwapOption::empty(),
        }
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.settings.timeout_seconds)
    }

    fn refresh(&self) -> Duration {
        Duration::from_secs(self.settings.refresh_seconds)
    }

    pub fn status(&self) -> CacheStatus {
        let CacheSettings { home, mode, refresh_seconds, timeout_seconds, .. } =
            self.settings.clone();
        CacheStatus {
            home,
            mode,
            refresh_seconds,
            timeout_seconds,
            unreachable: self.away_reason(),
            fetched_files: self.fetched_files.load(Ordering::Relaxed),
            fetched_bytes: self.fetched_bytes.load(Ordering::Relaxed),
            write_back: None,
            unreadable_names: self.unreadable.lock().values().map(|names| names.len() as u64).sum(),
        }
    }

    // --- what is as at home ---

    /// Whether a name, or all names of a directory, were compared with the home lately. A listing does not compare a name that cannot
    /// be read.
    pub fn is_fresh(&self, directory: Ino, name: Option<&[u8]>, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < self.refresh();
        let fresh = self.fresh.lock();
        let is_listed = fresh.directories.get(&directory).is_some_and(is_recent);
        fresh.local.contains(&directory)
            || (is_listed && !name.is_some_and(|name| self.is_unreadable(directory, name)))
            || name.is_some_and(|name| {
                !fresh.names.is_empty()
                    && fresh.names.get(&(directory, name.to_vec())).is_some_and(is_recent)
            })
    }

    /// A name, or all names of a directory, are as at home since then.
    pub fn note_fresh(&self, directory: Ino, name: Option<&[u8]>, since: Instant) {
        let mut fresh = self.fresh.lock();
        fresh.keep_within_bounds();
        match name {
            Some(name) => fresh.names.insert((directory, name.to_vec()), since),
            None => fresh.directories.insert(directory, since),
        };
    }

    /// A directory does not follow the home any more.
    pub fn note_local(&self, directory: Ino) {
        let mut fresh = self.fresh.lock();
        fresh.keep_within_bounds();
        fresh.local.insert(directory);
    }

    /// All is to be compared with the home again.
    pub fn forget_fresh(&self) {
        *self.fresh.lock() = Fresh::default();
    }

    /// Whether a directory is known not to follow the home.
    pub fn is_known_local(&self, directory: Ino) -> bool {
        self.fresh.lock().local.contains(&directory)
    }

    // --- what cannot be read there ---

    fn is_unreadable(&self, directory: Ino, name: &[u8]) -> bool {
        self.unreadable.lock().get(&directory).is_some_and(|names| names.contains(name))
    }

    /// Directories with names that cannot be read.
    pub fn unreadable_directories(&self) -> Vec<Ino> {
        self.unreadable.lock().keys().copied().collect()
    }

    /// A directory is gone.
    pub fn forget_unreadable(&self, directory: Ino) {
        self.unreadable.lock().remove(&directory);
    }

    /// A listing of a directory has found names that cannot be read, and no others. Those that were not known for it.
    pub fn note_unreadable(&self, directory: Ino, names: HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut unreadable = self.unreadable.lock();
        let before = unreadable.remove(&directory).unwrap_or_default();
        let new = names.difference(&before).cloned().collect();
        let known: usize = unreadable.values().map(HashSet::len).sum();
        if !names.is_empty() && known + names.len() <= FRESH_MAX {
            unreadable.insert(directory, names);
        }
        new
    }

    /// One name can be read, or is gone.
    pub fn note_readable(&self, directory: Ino, name: &[u8]) {
        let mut unreadable = self.unreadable.lock();
        let Some(names) = unreadable.get_mut(&directory) else { return };
        names.remove(name);
        if names.is_empty() {
            unreadable.remove(&directory);
        }
    }

    /// One name cannot be read. Whether that was not known.
    pub fn note_one_unreadable(&self, directory: Ino, name: &[u8]) -> bool {
        let mut unreadable = self.unreadable.lock();
        let known: usize = unreadable.values().map(HashSet::len).sum();
        known < FRESH_MAX && unreadable.entry(directory).or_default().insert(name.to_vec())
    }

    // --- whether the home is there ---

    /// Why the home does not answer, if it does not; and whether it is time to look whether it is back.
    pub fn away(&self, now: Instant) -> Option<(FsError, bool)> {
        let mut away = self.away.lock();
        let away = away.as_mut()?;
        let is_time = now.saturating_duration_since(away.probed) >= PROBE_PAUSE;
        if is_time {
            away.probed = now;
        }
        Some((FsError::HomeAway(away.why.clone()), is_time))
    }

    /// Why the home does not answer, if it does not.
    pub fn away_reason(&self) -> Option<String> {
        self.away.lock().as_ref().map(|away| away.why.clone())
    }

    /// The home does not answer.
    pub fn note_away(&self, why: &str, now: Instant) {
        let mut away = self.away.lock();
        if away.is_none() {
            tracing::warn!(home = self.settings.home, why, "the home of a cache is unreachable");
        }
        *away = Some(Away { why: why.to_owned(), probed: now });
    }

    /// The home answers.
    pub fn note_back(&self) {
        if self.away.lock().take().is_some() {
            tracing::info!(home = self.settings.home, "the home of a cache answers again");
        }
    }

    // --- visits ---

    /// Joins those who wait for an errand, and says who is to run it.
    pub fn join(&self, errand: Errand, may_start: bool) -> (Arc<Visit>, Runner) {
        let mut queue = self.queue.lock();
        if let Some(known) = queue.known.get(&errand) {
            known.waiters.fetch_add(1, Ordering::AcqRel);
            return (Arc::clone(known), Runner::Thread);
        }
        let lane = errand.lane();
        let visit = Arc::new(Visit {
            errand: errand.clone(),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            waiters: AtomicU64::new(1),
            outcome: Mutex::default(),
            ended: Condvar::new(),
            at_home: Mutex::default(),
        });
        queue.known.insert(errand, Arc::clone(&visit));
        if !may_start || queue.is_over {
            return (visit, Runner::Caller);
        }
        queue.waiting[lane].push_back(Arc::clone(&visit));
        if queue.threads[lane] < THREADS_MAX {
            queue.threads[lane] += 1;
            return (visit, Runner::New(lane));
        }
        (visit, Runner::Thread)
    }

    /// Somebody does not wait any more.
    pub fn leave(&self, visit: &Arc<Visit>) {
        let mut queue = self.queue.lock();
        if visit.waiters.fetch_sub(1, Ordering::AcqRel) == 1 {
            visit.is_given_up.store(true, Ordering::Release);
            queue.waiting[visit.errand.lane()].retain(|waiting| !Arc::ptr_eq(waiting, visit));
            queue.forget(visit);
        }
    }

    /// A thread that was to be started was not. Whether whoever wants the visit is to run it, as no other thread has taken it.
    pub fn not_started(&self, lane: usize, visit: &Arc<Visit>) -> bool {
        let mut queue = self.queue.lock();
        queue.threads[lane] -= 1;
        let before = queue.waiting[lane].len();
        queue.waiting[lane].retain(|waiting| !Arc::ptr_eq(waiting, visit));
        queue.waiting[lane].len() < before
    }

    /// The next visit for a thread, which ends if there is none.
    pub fn next(&self, lane: usize) -> Option<Arc<Visit>> {
        let mut queue = self.queue.lock();
        let next = if queue.is_over { None } else { queue.waiting[lane].pop_front() };
        if next.is_none() {
            queue.threads[lane] -= 1;
            self.changed.notify_all();
        }
        next
    }

    /// A visit begins.
    pub fn begin(&self, visit: &Arc<Visit>) {
        self.queue.lock().running[visit.errand.lane()].push(Arc::clone(visit));
    }

    /// Since when the home has not answered whom a visit waits for: the visit itself, or all that run before it.
    pub fn silent_since(&self, visit: &Visit) -> Option<Instant> {
        let queue = self.queue.lock();
        let lane = visit.errand.lane();
        if !queue.waiting[lane].iter().any(|waiting| std::ptr::eq(&**waiting, visit)) {
            return visit.waits_since();
        }
        let running = &queue.running[lane];
        if running.len() < THREADS_MAX {
            return None;
        }
        let since: Option<Vec<Instant>> = running.iter().map(|visit| visit.waits_since()).collect();
        since?.into_iter().max()
    }

    /// A visit is over.
    pub fn end(&self, visit: &Arc<Visit>, outcome: Result<()>) {
        {
            let mut queue = self.queue.lock();
            queue.running[visit.errand.lane()].retain(|running| !Arc::ptr_eq(running, visit));
            queue.forget(visit);
        }
        *visit.outcome.lock() = Some(outcome);
        visit.ended.notify_all();
    }

    /// Ends the threads, and waits for those that do not hang.
    pub fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        for visit in queue.known.values() {
            visit.is_given_up.store(true, Ordering::Release);
        }
        // No thread takes these any more.
        let waiting = std::mem::take(&mut queue.waiting);
        for visit in waiting.into_iter().flatten() {
            queue.known.remove(&visit.errand);
            *visit.outcome.lock() = Some(Err(FsError::Interrupted));
            visit.ended.notify_all();
        }
        while queue.threads.iter().any(|threads| *threads > 0) {
            if self.changed.wait_for(&mut queue, STOP_MAX).timed_out() {
                tracing::warn!(
                    home = self.settings.home,
                    "a visit to the home of a cache hangs, and is left"
                );
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::Clock as _;
    use forebay_base::time::SystemClock;

    use super::*;
    use crate::caching::{CacheMode, HomeIdentity};

    #[test]
    fn a_visit_in_the_queue_waits_while_one_of_those_before_it_is_answered() {
        let cache = Cache::new(CacheSettings {
            home: "/home".to_owned(),
            mode: CacheMode::ReadOnly,
            refresh_seconds: 0,
            timeout_seconds: 10,
            identity: HomeIdentity { file_system: 0, inode: 0 },
            write_back: None,
        });
        let join = |number| cache.join(Errand::Bytes(Ino(number)), true).0;
        let visits: Vec<_> = (2..7).map(join).collect();
        let Some((queued, _)) = visits.split_last() else { panic!("there are five") };
        let (now, later) = (SystemClock.instant(), SystemClock.instant() + Duration::from_secs(1));
        assert_eq!(cache.silent_since(queued), None);
        let mut running = Vec::new();
        while running.len() < THREADS_MAX {
            let Some(visit) = cache.next(1) else { panic!("visits wait") };
            cache.begin(&visit);
            assert_eq!(cache.silent_since(&visit), None);
            visit.begin_step(now);
            assert_eq!(cache.silent_since(&visit), Some(now));
            running.push(visit);
        }
        assert_eq!(cache.silent_since(queued), Some(now));
        running[2].end_step();
        assert_eq!(cache.silent_since(queued), None);
        running[2].begin_step(later);
        assert_eq!(cache.silent_since(queued), Some(later));
        cache.end(&running[0], Ok(()));
        assert_eq!(cache.silent_since(queued), None);
    }
}

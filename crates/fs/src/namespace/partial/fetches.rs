//! Frames and indexes that are being fetched from archives: each once, however many requests wait for it.
//!
//! Threads of their own fetch, at most `recall_threads`, and end when nothing is left to fetch. What somebody waits for comes before
//! what is fetched ahead, and what nobody waits for any more is not begun. One archive takes all threads but one at most, so that one
//! that hangs keeps no reader from the others. One that refuses to answer is reported at once: those who wait try again (`away.rs`).
//! Without background threads, whoever wants something fetches it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_base::DiskId;
use forebay_base::in_flight::{self, WaitsFor};
use parking_lot::{Condvar, Mutex};

use super::Namespace;
use super::frames::{Frame, FrameCache, Indexed};
use crate::error::{FsError, Result};
use crate::namespace::Interruption;
use crate::record::ObjectRef;

/// Frames that are fetched with one request.
pub(super) const FRAMES_MAX: u64 = 8;
/// How often those who wait look whether they were interrupted.
const LOOK: Duration = Duration::from_millis(200);
/// Nothing is fetched ahead while so many fetches wait for a thread.
const BACKLOG_MAX: usize = 8;

/// What is fetched with one request.
pub(super) enum Errand {
    /// Footer and index of an object.
    Index(ObjectRef),
    /// Frames that follow each other.
    Frames(ObjectRef, Arc<Indexed>, Range<u64>),
}

/// What has come of it.
#[derive(Clone)]
pub(super) enum Fetched {
    Index(Arc<Indexed>),
    Frames(Arc<Vec<(u64, Result<Frame>)>>),
}

/// One fetch.
pub(super) struct Fetch {
    pub errand: Errand,
    /// For nobody who waits yet.
    is_ahead: bool,
    waiters: AtomicU64,
    outcome: Mutex<Option<Result<Fetched>>>,
    ended: Condvar,
}

/// What others may wait for: the index of an object, or one of its frames.
type Key = (ObjectRef, Option<u64>);

#[derive(Default)]
pub(super) struct Fetches {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// For the threads.
    namespace: OnceLock<Weak<Namespace>>,
}

#[derive(Default)]
struct Queue {
    known: HashMap<Key, Arc<Fetch>>,
    waiting: VecDeque<Arc<Fetch>>,
    threads: usize,
    /// Fetches that threads carry out now, of each disk.
    running: HashMap<DiskId, usize>,
    is_over: bool,
}

/// Somebody who waits for a fetch.
pub(super) struct Waiter<'a> {
    fetches: &'a Fetches,
    pub fetch: Arc<Fetch>,
    /// Whoever wants it fetches it, as no thread does.
    pub is_own: bool,
}

/// Frames that somebody wants: some were kept, others come.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub kept: Vec<(u64, Frame)>,
    pub coming: Vec<Waiter<'a>>,
}

/// A fetch that a thread carries out.
struct Running<'a> {
    fetches: &'a Fetches,
    fetch: Arc<Fetch>,
}

/// Ends a fetch, also if what carries it out panics.
struct Ending<'a> {
    fetches: &'a Fetches,
    fetch: &'a Arc<Fetch>,
    outcome: Result<Fetched>,
}

/// How many threads fetch from one disk at most.
fn disk_max(threads_max: usize) -> usize {
    threads_max.saturating_sub(1).max(1)
}

impl Errand {
    fn disk(&self) -> DiskId {
        match self {
            Errand::Index(at) | Errand::Frames(at, ..) => at.disk,
        }
    }

    fn keys(&self) -> Vec<Key> {
        match self {
            Errand::Index(at) => vec![(*at, None)],
            Errand::Frames(at, _, frames) => {
                frames.clone().map(|frame| (*at, Some(frame))).collect()
            }
        }
    }

    fn shown(&self) -> String {
        match self {
            Errand::Index(_) => "the index of its object in the archive".to_owned(),
            Errand::Frames(_, index, frames) => {
                let (first, last, all) = (frames.start, frames.end - 1, index.frame_count());
                format!("a range of it from the archive: MiB {first} to {last} of {all}")
            }
        }
    }
}

impl Queue {
    /// Whoever wants the same from now on fetches it anew.
    fn forget(&mut self, fetch: &Arc<Fetch>) {
        for key in fetch.errand.keys() {
            if self.known.get(&key).is_some_and(|known| Arc::ptr_eq(known, fetch)) {
                self.known.remove(&key);
            }
        }
    }

    /// What a thread carries out next: what somebody waits for first, and never more than `disk_max` of one disk.
    fn take_next(&mut self, disk_max: usize) -> Option<Arc<Fetch>> {
        let running = |fetch: &Fetch| self.running.get(&fetch.errand.disk()).copied();
        let may_begin = |fetch: &Arc<Fetch>| running(fetch).unwrap_or(0) < disk_max;
        let is_first = |fetch: &Arc<Fetch>| fetch.is_awaited() && may_begin(fetch);
        let awaited = self.waiting.iter().position(is_first);
        let place = awaited.or_else(|| self.waiting.iter().position(may_begin))?;
        let next = self.waiting.remove(place)?;
        *self.running.entry(next.errand.disk()).or_default() += 1;
        Some(next)
    }

    /// No thread carries out what waits: whoever waits for it asks once more.
    fn give_back(&mut self) {
        while let Some(fetch) = self.waiting.pop_front() {
            self.forget(&fetch);
            fetch.end(Err(FsError::Archived));
        }
    }
}

impl Fetches {
    /// Waits for the index of an object.
    pub fn want_index(&self, at: ObjectRef, threads_max: usize) -> Waiter<'_> {
        let mut queue = self.queue.lock();
        match queue.known.get(&(at, None)).cloned() {
            Some(fetch) => self.join(fetch, false),
            None => {
                let has_thread = self.has_thread(&mut queue, at.disk, threads_max);
                self.begin(&mut queue, Errand::Index(at), false, has_thread)
            }
        }
    }

    /// Waits for frames of an object, as far as they are not kept.
    pub fn want_frames(
        &self,
        (at, index): (ObjectRef, &Arc<Indexed>),
        frames: impl Iterator<Item = u64>,
        cache: &FrameCache,
        (is_ahead, threads_max): (bool, usize),
    ) -> Wanted<'_> {
        let mut wanted = Wanted::default();
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut queue = self.queue.lock();
        let has_threads = self.namespace.get().is_some() && !queue.is_over;
        if is_ahead && (!has_threads || queue.waiting.len() >= BACKLOG_MAX) {
            return wanted;
        }
        for frame in frames {
            if let Some(fetch) = queue.known.get(&(at, Some(frame))) {
                if wanted.coming.iter().all(|known| !Arc::ptr_eq(&known.fetch, fetch)) {
                    wanted.coming.push(self.join(Arc::clone(fetch), false));
                }
                continue;
            }
            // What was fetched is kept before it is not known here any more.
            if let Some(kept) = cache.frame(at, frame) {
                wanted.kept.push((frame, kept));
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == frame && frame - run.start < FRAMES_MAX => run.end += 1,
                _ => runs.push(frame..frame + 1),
            }
        }
        for run in runs {
            let has_thread = self.has_thread(&mut queue, at.disk, threads_max);
            if is_ahead && !has_thread {
                // Nobody would carry it out.
                break;
            }
            let errand = Errand::Frames(at, Arc::clone(index), run);
            wanted.coming.push(self.begin(&mut queue, errand, is_ahead, has_thread));
        }
        wanted
    }

    fn join(&self, fetch: Arc<Fetch>, is_own: bool) -> Waiter<'_> {
        fetch.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter { fetches: self, fetch, is_own }
    }

    /// Whether a thread carries out what waits for one. One more is started if the disk may use it.
    fn has_thread(&self, queue: &mut Queue, disk: DiskId, threads_max: usize) -> bool {
        let Some(namespace) = self.namespace.get().filter(|_| !queue.is_over) else { return false };
        let running = queue.running.get(&disk).copied().unwrap_or(0);
        if queue.threads < threads_max && running < disk_max(threads_max) {
            let namespace = Weak::clone(namespace);
            let body = move || run(&namespace);
            let started = std::thread::Builder::new().name("ranges".to_owned()).spawn(body);
            queue.threads += usize::from(started.is_ok());
        }
        queue.threads > 0
    }

    /// Begins a fetch, which a thread carries out, or whoever wants it.
    fn begin(
        &self,
        queue: &mut Queue,
        errand: Errand,
        is_ahead: bool,
        has_thread: bool,
    ) -> Waiter<'_> {
        let fetch = Arc::new(Fetch::new(errand, is_ahead));
        let keys = fetch.errand.keys();
        queue.known.extend(keys.into_iter().map(|key| (key, Arc::clone(&fetch))));
        if has_thread {
            queue.waiting.push_back(Arc::clone(&fetch));
        }
        self.join(fetch, !has_thread)
    }

    /// Threads may be started from now on.
    pub fn start(&self, namespace: Weak<Namespace>) {
        let _ = self.namespace.set(namespace);
    }

    /// Ends them, and waits for that. What they have not begun is fetched by those who want it.
    pub fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        queue.give_back();
        while queue.threads > 0 {
            self.changed.wait(&mut queue);
        }
    }

    fn next(&self, threads_max: usize) -> Option<Running<'_>> {
        let mut queue = self.queue.lock();
        let next = queue.take_next(disk_max(threads_max));
        if next.is_none() {
            queue.threads -= 1;
            self.changed.notify_all();
        }
        next.map(|fetch| Running { fetches: self, fetch })
    }

    /// Carries out a fetch: `fetching` keeps what it has fetched.
    pub fn carry_out(&self, fetch: &Arc<Fetch>, fetching: impl FnOnce() -> Result<Fetched>) {
        let outcome =
            Err(FsError::Io("the thread that fetched it has panicked: see the log".into()));
        let mut ending = Ending { fetches: self, fetch, outcome };
        ending.outcome = fetching();
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.fetches.queue.lock().forget(self.fetch);
        self.fetch.end(std::mem::replace(&mut self.outcome, Err(FsError::Archived)));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.fetches.queue.lock();
        let disk = self.fetch.errand.disk();
        let left = queue.running.remove(&disk).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            queue.running.insert(disk, left);
        }
        if std::thread::panicking() {
            queue.threads -= 1;
            if queue.threads == 0 {
                queue.give_back();
            }
            self.fetches.changed.notify_all();
        }
    }
}

impl Fetch {
    fn new(errand: Errand, is_ahead: bool) -> Fetch {
        let (waiters, outcome, ended) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        Fetch { errand, is_ahead, waiters, outcome, ended }
    }

    fn is_awaited(&self) -> bool {
        self.waiters.load(Ordering::Acquire) > 0
    }

    fn end(&self, outcome: Result<Fetched>) {
        *self.outcome.lock() = Some(outcome);
        self.ended.notify_all();
    }
}

impl Waiter<'_> {
    /// What comes of the fetch, unless `interruption` comes first.
    pub fn wait(&self, interruption: Option<&Interruption>) -> Result<Fetched> {
        let mut outcome = self.fetch.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            if interruption.is_some_and(Interruption::is_set) {
                return Err(FsError::Interrupted);
            }
            let _waits =
                in_flight::waits_for(|| WaitsFor::Archive(self.fetch.errand.shown().into()));
            self.fetch.ended.wait_for(&mut outcome, LOOK);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queue = self.fetches.queue.lock();
        let is_last = self.fetch.waiters.fetch_sub(1, Ordering::AcqRel) == 1;
        if !is_last || self.fetch.is_ahead {
            return;
        }
        let before = queue.waiting.len();
        queue.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.fetch));
        if queue.waiting.len() < before {
            queue.forget(&self.fetch);
        }
    }
}

/// Body of a thread that fetches, until nothing is left.
fn run(namespace: &Weak<Namespace>) {
    while let Some(namespace) = namespace.upgrade() {
        let fetches = &namespace.partial.fetches;
        let Some(running) = fetches.next(namespace.threads_max()) else { return };
        namespace.carry_out_fetch(&running.fetch);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use forebay_base::ObjectId;

    use super::*;

    fn at(disk: u16, id: u64) -> ObjectRef {
        ObjectRef { disk: DiskId(disk), id: ObjectId(id) }
    }

    fn waiting(at: ObjectRef, waiters: u64) -> Arc<Fetch> {
        let fetch = Fetch::new(Errand::Index(at), waiters == 0);
        fetch.waiters.store(waiters, Ordering::Release);
        Arc::new(fetch)
    }

    #[test]
    fn an_archive_that_hangs_never_takes_all_threads_and_what_is_awaited_comes_first() {
        let all = [(at(1, 1), 0), (at(1, 2), 1), (at(1, 3), 1), (at(1, 4), 1), (at(2, 5), 0)];
        let mut queue = Queue::default();
        queue.waiting.extend(all.map(|(at, waiters)| waiting(at, waiters)));
        let mut next = || Some(queue.take_next(disk_max(4))?.errand.keys()[0].0);
        let taken = [next(), next(), next(), next(), next()];
        let expected = [at(1, 2), at(1, 3), at(1, 4), at(2, 5)].map(Some);
        assert_eq!(taken[..4], expected);
        assert_eq!(taken[4], None, "the one that is fetched ahead waits for a thread");
        assert_eq!([0, 1, 2, 4].map(disk_max), [1, 1, 1, 3]);
    }

    #[test]
    fn a_fetch_that_panics_is_an_error_for_those_who_wait_and_is_begun_once_more() {
        let fetches = Fetches::default();
        let waiter = fetches.want_index(at(1, 1), 4);
        let body = || fetches.carry_out(&waiter.fetch, || resume_unwind(Box::new(())));
        assert!(waiter.is_own && catch_unwind(AssertUnwindSafe(body)).is_err());
        assert!(matches!(waiter.wait(None), Err(FsError::Io(_))));
        assert!(!Arc::ptr_eq(&fetches.want_index(at(1, 1), 4).fetch, &waiter.fetch));
    }

    #[test]
    fn what_no_thread_has_begun_when_they_end_is_asked_for_once_more() {
        let fetches = Fetches::default();
        let fetch = waiting(at(1, 1), 0);
        fetches.queue.lock().waiting.push_back(Arc::clone(&fetch));
        let waiter = fetches.join(fetch, false);
        fetches.stop();
        assert!(matches!(waiter.wait(None), Err(FsError::Archived)));
        assert!(fetches.want_index(at(1, 1), 4).is_own);
    }
}

//! Frames and indexes that are being fetched from archives: each once, however many requests wait for it.
//!
//! Threads of their own fetch, at most `recall_threads`, and end when nothing is left to fetch. What nobody waits for any more is not
//! begun. An archive that does not answer is reported at once: those who wait try again (`away.rs`), and no thread is
//! kept from other archives. Without background threads, whoever wants something fetches it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

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
    /// Foot and index of an object.
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

impl Errand {
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
}

impl Fetches {
    /// Waits for the index of an object.
    pub fn want_index(&self, at: ObjectRef, threads_max: usize) -> Waiter<'_> {
        let mut queue = self.queue.lock();
        match queue.known.get(&(at, None)).cloned() {
            Some(fetch) => self.join(fetch, false),
            None => self.begin(&mut queue, Errand::Index(at), (false, threads_max)),
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
            let errand = Errand::Frames(at, Arc::clone(index), run);
            wanted.coming.push(self.begin(&mut queue, errand, (is_ahead, threads_max)));
        }
        wanted
    }

    fn join(&self, fetch: Arc<Fetch>, is_own: bool) -> Waiter<'_> {
        fetch.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter { fetches: self, fetch, is_own }
    }

    /// Begins a fetch, which a thread carries out, or whoever wants it.
    fn begin(
        &self,
        queue: &mut Queue,
        errand: Errand,
        (is_ahead, threads_max): (bool, usize),
    ) -> Waiter<'_> {
        let keys = errand.keys();
        let (waiters, outcome, ended) = (AtomicU64::new(0), Mutex::default(), Condvar::new());
        let fetch = Arc::new(Fetch { errand, is_ahead, waiters, outcome, ended });
        queue.known.extend(keys.into_iter().map(|key| (key, Arc::clone(&fetch))));
        let Some(namespace) = self.namespace.get().filter(|_| !queue.is_over) else {
            return self.join(fetch, true);
        };
        if queue.threads < threads_max {
            let namespace = Weak::clone(namespace);
            let body = move || run(&namespace);
            let started = std::thread::Builder::new().name("ranges".to_owned()).spawn(body);
            queue.threads += usize::from(started.is_ok());
        }
        if queue.threads == 0 {
            return self.join(fetch, true);
        }
        queue.waiting.push_back(Arc::clone(&fetch));
        self.join(fetch, false)
    }

    /// Threads may be started from now on.
    pub fn start(&self, namespace: Weak<Namespace>) {
        let _ = self.namespace.set(namespace);
    }

    /// Ends them, and waits for that.
    pub fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        while let Some(fetch) = queue.waiting.pop_front() {
            queue.forget(&fetch);
            fetch.end(Err(FsError::Interrupted));
        }
        while queue.threads > 0 {
            self.changed.wait(&mut queue);
        }
    }

    fn next(&self) -> Option<Arc<Fetch>> {
        let mut queue = self.queue.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.threads -= 1;
            self.changed.notify_all();
        }
        next
    }

    /// A fetch is over: what has come of it is kept already.
    pub fn end(&self, fetch: &Arc<Fetch>, outcome: Result<Fetched>) {
        self.queue.lock().forget(fetch);
        fetch.end(outcome);
    }
}

impl Fetch {
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
        let Some(fetch) = namespace.partial.fetches.next() else { return };
        namespace.carry_out_fetch(&fetch);
    }
}

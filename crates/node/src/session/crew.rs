//! The threads that carry out calls of all sessions.
//!
//! A session offers itself once for each call that it may begin; the sessions take turns. A thread that has had nothing to do
//! for a while ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Lets this thread run on every processor that the process may use. It inherits those of the thread that started it, which may be
/// bound to one: threads of the FUSE ring are, and they start others when they call, or receive calls while they wait.
pub fn unbind() {
    // It runs where it is otherwise, which is slower and nothing else.
    if let Ok(all) = rustix::thread::sched_getaffinity(Some(rustix::process::getpid())) {
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}

/// Something that has work to be done.
pub trait Work: Send + Sync {
    /// Does one piece of it.
    fn work(self: Arc<Self>);
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<dyn Work>>,
    threads: usize,
    idle: usize,
}

/// Threads that do work.
pub struct Crew {
    state: Mutex<State>,
    offered: Condvar,
    threads_max: usize,
}

impl Crew {
    /// A crew of at most so many threads. None is started before there is work.
    #[must_use]
    pub fn new(threads_max: usize) -> Arc<Crew> {
        Arc::new(Crew { state: Mutex::default(), offered: Condvar::new(), threads_max })
    }

    /// Has one piece of work done, soon.
    pub fn offer(self: &Arc<Self>, work: Arc<dyn Work>) {
        let mut state = self.state.lock();
        state.ready.push_back(work);
        if state.idle >= state.ready.len() {
            drop(state);
            self.offered.notify_one();
            return;
        }
        if state.threads < self.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(self: &Arc<Self>) {
        let crew = Arc::clone(self);
        let started =
            std::thread::Builder::new().name("serve".to_owned()).spawn(move || crew.run());
        if let Err(error) = started {
            // The threads that there are do the work; without any, the next offer tries again.
            tracing::warn!("cannot start another thread to serve calls from other nodes: {error}");
            self.state.lock().threads -= 1;
        }
    }

    fn run(self: &Arc<Self>) {
        unbind();
        loop {
            let Some(work) = self.next() else { return };
            work.work();
        }
    }

    fn next(&self) -> Option<Arc<dyn Work>> {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.ready.pop_front() {
                return Some(work);
            }
            state.idle += 1;
            let timed_out = self.offered.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.ready.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted {
        done: AtomicUsize,
        now: AtomicUsize,
        most: AtomicUsize,
        all: Mutex<bool>,
        changed: Condvar,
    }

    impl Work for Counted {
        fn work(self: Arc<Self>) {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(100));
            self.now.fetch_sub(1, Ordering::SeqCst);
            if self.done.fetch_add(1, Ordering::SeqCst) == 999 {
                *self.all.lock() = true;
                self.changed.notify_all();
            }
        }
    }

    #[test]
    fn all_work_is_done_by_no_more_threads_than_there_may_be() {
        let (crew, counted) = (Crew::new(4), Arc::new(Counted::default()));
        for _ in 0..1000 {
            crew.offer(Arc::<Counted>::clone(&counted));
        }
        let mut all = counted.all.lock();
        while !*all {
            counted.changed.wait(&mut all);
        }
        assert!(counted.most.load(Ordering::SeqCst) <= 4);
    }
}

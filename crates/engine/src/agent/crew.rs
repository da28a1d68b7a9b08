//! Threads that do one piece of work after the other, so that what waits for a disk or a file server holds up nothing else.
//!
//! They are there from the beginning: a machine that has no threads left later does not end its agent. Memory: what
//! waits to be done, which whoever gives it bounds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};

type Work = Box<dyn FnOnce() + Send>;

/// Some threads with one queue.
pub struct Crew {
    work: Sender<Work>,
}

impl Crew {
    /// Threads of this name.
    ///
    /// # Errors
    /// If there are none left.
    pub fn begin(name: &str, threads: usize) -> Result<Crew> {
        let (work, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let taken = Arc::clone(&taken);
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || serve(&taken))
                .context("no thread can be started")?;
        }
        Ok(Crew { work })
    }

    /// Has a piece of work done when its turn comes.
    pub fn give(&self, work: impl FnOnce() + Send + 'static) {
        // The threads end after this only.
        let _ = self.work.send(Box::new(work));
    }
}

fn serve(taken: &Mutex<Receiver<Work>>) {
    loop {
        let next = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("a piece of work was given up");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_waits_or_fails_does_not_keep_other_threads_from_theirs() {
        let crew = Crew::begin("crew", 2).unwrap();
        let (go, waits) = channel::<()>();
        let (done, order) = channel();
        crew.give(move || waits.recv().unwrap());
        crew.give(|| panic!("on purpose"));
        for number in 0..3 {
            let done = done.clone();
            crew.give(move || done.send(number).unwrap());
        }
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        go.send(()).unwrap();
    }
}

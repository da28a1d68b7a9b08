//! The time until a job runs: whatever its shim waits for, it can be ended.
//!
//! Work areas, the client of an interactive job and the file of its output may let a shim wait for long. Until
//! its job runs, one thread obeys SIGTERM and SIGINT and watches the lease; it ends the shim at once, and with
//! it a process of the job that has not begun. Afterwards it watches the lease only, and signals are
//! the shim's own. It serves all jobs of a shim, one after the other; a signal for one is none for the next.
//!
//! If this process is stopped when the lease is over, the kernel kills it a moment later, and its job with it (`forebay_process::last_resort`).

use std::io::{PipeReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use forebay_process::last_resort::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::run::{End, Log, Run, Wanted, granted, uptime_ms};

/// How long after the end of the lease the kernel kills a shim that has not seen it.
const UNSEEN_MS: u64 = 200;

/// How long after the end of the lease the kernel kills a shim that has seen it and is still there.
const SEEN_MS: u64 = 5_000;

/// Time between two looks at the lease at least, while it lasts.
const LOOK_MIN_MS: u64 = 50;

/// How far a shim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is no job.
    Free,
    /// Nothing of the job is there.
    Preparing,
    /// Its first process may be there.
    Starting,
    /// It runs, or was not started.
    Over,
}

/// Until when the job of a shim may run.
#[derive(Clone, Debug)]
pub enum Lease {
    /// As the agent of this folder says.
    Agent(PathBuf),
    /// As long as the orders in an allocation of Slurm can be read.
    Orders(Arc<Reading>),
}

/// How a holder in an allocation of Slurm gets its orders.
#[derive(Debug, Default)]
pub struct Reading {
    /// Until when the job may run.
    pub until_ms: AtomicU64,
    /// Whether the holder obeys signals.
    pub obeys: AtomicBool,
    /// Whether the last order about it was to suspend the job, if there was one.
    pub wanted: Mutex<Option<Wanted>>,
}

impl Lease {
    fn until_ms(&self) -> u64 {
        match self {
            Lease::Agent(folder) => granted(folder),
            Lease::Orders(reading) => reading.until_ms.load(Ordering::SeqCst),
        }
    }

    /// What a signal means for a run. Signals that wait are taken by their numbers, so of those that suspend and resume it counts what is
    /// wanted now: the last order, whichever signal it came with.
    fn meaning(&self, run: &Run, signal: i32) -> i32 {
        if !matches!(signal, SIGUSR1 | SIGUSR2) {
            return signal;
        }
        let wanted = match self {
            Lease::Agent(_) => run.wanted(),
            Lease::Orders(reading) => {
                *reading.wanted.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        match wanted {
            Some(Wanted::Stopped) => SIGUSR1,
            Some(Wanted::Running) => SIGUSR2,
            None => signal,
        }
    }
}

/// What the thread that watches shares with the one that owns the job.
pub struct Beginning {
    log: Log<'static>,
    lease: Lease,
    stage: Mutex<Stage>,
    /// Has a byte for each signal that nobody has looked at.
    signalled: PipeReader,
    lease_over: AtomicBool,
    /// Nothing of the last job is left.
    has_ended: AtomicBool,
}

impl Beginning {
    /// Begins to watch for the shim with this log of its runs.
    ///
    /// # Errors
    /// If there are no descriptors or threads left.
    pub fn watch(log: Log<'static>, lease: Lease) -> Result<Arc<Beginning>> {
        let (signalled, write) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&signalled, true)?;
        for signal in [SIGTERM, SIGINT] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        let beginning = Arc::new(Beginning {
            log,
            lease,
            stage: Mutex::new(Stage::Free),
            signalled,
            lease_over: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let watched = Arc::clone(&beginning);
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || watched.work())
            .context("no thread can be started")?;
        Ok(beginning)
    }

    /// A job is there. Signals up to now were not for it.
    pub fn prepare(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        self.hear_signals();
        *stage = Stage::Preparing;
    }

    /// Signals are heard from now on.
    pub fn obey(&self) {
        if let Lease::Orders(reading) = &self.lease {
            reading.obeys.store(true, Ordering::SeqCst);
        }
    }

    /// What a signal means for the run of this file.
    pub fn meaning(&self, run: &Path, signal: i32) -> i32 {
        self.lease.meaning(&Run::at(run), signal)
    }

    /// Whether the job may run.
    pub fn is_leased(&self) -> bool {
        self.lease.until_ms() > uptime_ms()
    }

    /// The shim goes on.
    pub fn enter(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Nothing of the job is left, and none follows: no lease ends this process any more.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// Whether the lease was over before the job had ended.
    pub fn is_lease_over(&self) -> bool {
        self.lease_over.load(Ordering::SeqCst)
    }

    fn work(&self) {
        let deadline = Deadline::new().inspect_err(|error| {
            tracing::warn!(%error, "if this shim is stopped, its job ends with the lease only if the watchdog sees to it");
        });
        let set = |uptime_ms| deadline.as_ref().map(|deadline| deadline.set(uptime_ms));
        loop {
            if self.has_ended.load(Ordering::SeqCst) {
                return;
            }
            let (until, now) = (self.lease.until_ms(), uptime_ms());
            if until <= now {
                let _ = set(now + SEEN_MS);
                self.lease_over.store(true, Ordering::SeqCst);
                self.end_if_it_begins(|_| true, "the lease of the host has expired");
                end_by_force();
                // It stays set after this thread.
                std::mem::forget(deadline);
                return;
            }
            let _ = set(until + UNSEEN_MS);
            // Long before its end, the lease has mostly been renewed.
            let next = (now + ((until - now) / 2).max(LOOK_MIN_MS)).min(until);
            let left_ms = i64::try_from(next - now).unwrap_or(i64::MAX);
            let limit = Timespec { tv_sec: left_ms / 1000, tv_nsec: left_ms % 1000 * 1_000_000 };
            let mut files = [PollFd::new(&self.signalled, PollFlags::IN)];
            if poll(&mut files, Some(&limit)).is_ok_and(|ready| ready > 0) {
                self.end_if_it_begins(Beginning::hear_signals, "it was killed before it started");
            }
        }
    }

    /// Whether there were signals since this was asked last.
    fn hear_signals(&self) -> bool {
        let mut bytes = [0; 64];
        let mut heard = false;
        while (&self.signalled).read(&mut bytes).is_ok_and(|length| length > 0) {
            heard = true;
        }
        heard
    }

    /// Ends the shim for a reason unless its job runs. Of a job that may have begun it says nothing: it was lost.
    fn end_if_it_begins(&self, is_there: impl FnOnce(&Beginning) -> bool, why: &'static str) {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_there(self) {
            return;
        }
        match *stage {
            // A job that comes nevertheless is told to nobody who could begin it.
            Stage::Free if self.is_lease_over() => {}
            Stage::Preparing => {
                if let Err(error) = self.log.say_end(&End::unable(&anyhow!(why))) {
                    tracing::error!("the end of a run cannot be recorded: {error:#}");
                }
            }
            Stage::Starting => {}
            Stage::Free | Stage::Over => return,
        }
        // The lock is still held, so that the shim does not go on meanwhile. Its job's process, which has not
        // begun, ends with it.
        std::process::exit(1);
    }
}

/// Has the thread that owns the job kill it.
pub fn end_by_force() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::INT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_resume_and_a_suspension_that_wait_together_the_last_order_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (agent, path) = (folder.path().to_owned(), folder.path().join("runs/7.0.1"));
        let (run, lease) = (Run::at(&path), Lease::Agent(agent));
        let both =
            |lease: &Lease| [SIGUSR1, SIGTERM, SIGUSR2].map(|signal| lease.meaning(&run, signal));
        // An agent of an earlier version says it by the signal alone.
        assert_eq!(both(&lease), [SIGUSR1, SIGTERM, SIGUSR2]);
        run.say_wanted(Wanted::Running).unwrap();
        assert_eq!(
            (both(&lease), run.left()),
            ([SIGUSR2, SIGTERM, SIGUSR2], Some(Wanted::Running))
        );
        run.say_wanted(Wanted::Stopped).unwrap();
        assert_eq!(
            (both(&lease), run.left()),
            ([SIGUSR1, SIGTERM, SIGUSR1], Some(Wanted::Stopped))
        );
        std::fs::write(folder.path().join("stopped/7.0.1"), "").unwrap();
        assert_eq!((run.wanted(), run.left()), (None, Some(Wanted::Stopped)));
        run.forget_stopped();
        assert_eq!(run.left(), None);
        let reading = Arc::<Reading>::default();
        *reading.wanted.lock().unwrap() = Some(Wanted::Stopped);
        assert_eq!(both(&Lease::Orders(reading)), [SIGUSR1, SIGTERM, SIGUSR1]);
    }
}

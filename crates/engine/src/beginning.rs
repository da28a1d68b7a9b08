//! The time until a job runs: whatever its shim waits for, it can be ended.
//!
//! Work areas, the client of an interactive job and the file of its output may let a shim wait for long. Until
//! its job runs, one thread obeys SIGTERM and SIGINT and watches the lease; it ends the shim at once, and with
//! it a process of the job that has not begun. Afterwards it watches the lease only, and signals are
//! the shim's own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::runs::{End, Log, Task, granted, uptime_ms};

/// How far a shim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing of the job is there.
    Preparing,
    /// Its first process may be there.
    Starting,
    /// It runs, or was not started.
    Over,
}

/// What the thread that watches shares with the one that owns the job.
pub struct Beginning {
    log: Log<'static>,
    stage: Mutex<Stage>,
    lease_over: AtomicBool,
}

impl Beginning {
    /// Begins to watch.
    ///
    /// # Errors
    /// If there are no descriptors or threads left.
    pub fn watch(log: Log<'static>, task: &Task) -> Result<Arc<Beginning>> {
        let (woken, signalled) = std::io::pipe()?;
        for signal in [SIGTERM, SIGINT] {
            signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
        }
        let lease_over = AtomicBool::new(false);
        let beginning =
            Arc::new(Beginning { log, stage: Mutex::new(Stage::Preparing), lease_over });
        let (watched, agent) = (Arc::clone(&beginning), task.agent.clone());
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || watched.work(&woken.into(), &agent))
            .context("no thread can be started")?;
        Ok(beginning)
    }

    /// The shim goes on.
    pub fn enter(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Whether the lease was over before the job had ended.
    pub fn is_lease_over(&self) -> bool {
        self.lease_over.load(Ordering::SeqCst)
    }

    fn work(&self, woken: &OwnedFd, agent: &std::path::Path) {
        let mut begins = true;
        loop {
            let (until, now) = (granted(agent), uptime_ms());
            if until <= now {
                self.lease_over.store(true, Ordering::SeqCst);
                self.end_if_it_begins("the lease of the host is over");
                end_by_force();
                return;
            }
            let left_ms = i64::try_from(until - now).unwrap_or(i64::MAX);
            let limit = Timespec { tv_sec: left_ms / 1000, tv_nsec: left_ms % 1000 * 1_000_000 };
            let mut files = [PollFd::new(woken, PollFlags::IN)];
            let watched = if begins { &mut files[..] } else { &mut [] };
            if poll(watched, Some(&limit)).is_ok_and(|ready| ready > 0) {
                self.end_if_it_begins("it was ended before it began");
                begins = false;
            }
        }
    }

    /// Ends the shim unless its job runs. Of a job that may have begun it says nothing: it was lost.
    fn end_if_it_begins(&self, why: &'static str) {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match *stage {
            Stage::Preparing => {
                if let Err(error) = self.log.say_end(&End::unable(&anyhow!(why))) {
                    tracing::error!("the end of a run is not written down: {error:#}");
                }
            }
            Stage::Starting => {}
            Stage::Over => return,
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

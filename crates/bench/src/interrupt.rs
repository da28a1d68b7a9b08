//! Ctrl-C: the work ends, the clean-up does not.
//!
//! All loads run in child processes and this process never opens a file on a mount, so that a signal
//! only has to end the children: what waits for them fails then, and every guard (mounts, loop devices,
//! directories) is dropped on the way out.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Longest uninterruptible sleep.
const NAP: Duration = Duration::from_millis(50);

/// Whether a signal came, and which processes end at one.
#[derive(Debug, Default)]
pub struct Interrupt {
    caught: AtomicBool,
    children: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch() -> Result<Arc<Interrupt>> {
        let interrupt = Arc::new(Interrupt::default());
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
            .context("cannot catch signals")?;
        let watched = Arc::clone(&interrupt);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                if !watched.caught.swap(true, Ordering::SeqCst) {
                    eprintln!("forebay-bench: interrupted, cleaning up");
                }
                watched.end_children();
            }
        })?;
        Ok(interrupt)
    }

    /// Fails after a signal.
    ///
    /// # Errors
    /// After a signal.
    pub fn check(&self) -> Result<()> {
        if self.caught.load(Ordering::SeqCst) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Sleeps, unless a signal comes.
    ///
    /// # Errors
    /// After a signal.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let mut left = duration;
        while !left.is_zero() {
            self.check()?;
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            left -= nap;
        }
        self.check()
    }

    /// Has `child` killed at a signal as long as the returned value lives.
    ///
    /// # Errors
    /// If the process cannot be referred to; after a signal.
    pub fn cover(&self, child: &Child) -> Result<Arc<OwnedFd>> {
        let process = Arc::new(process(child.id())?);
        {
            let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|child| child.strong_count() > 0);
            children.push(Arc::downgrade(&process));
        }
        if self.check().is_err() {
            self.end_children();
        }
        Ok(process)
    }

    fn end_children(&self) {
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        for child in children.iter().filter_map(Weak::upgrade) {
            // One that ended already needs no signal.
            let _ = pidfd_send_signal(&*child, Signal::KILL);
        }
    }
}

/// A reference to a process that stays with it also if its number is used again.
///
/// # Errors
/// If there is no such process.
pub fn process(id: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("no process id")?;
    pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("cannot refer to process {id}"))
}

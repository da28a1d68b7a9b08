//! The right to work on a file system: one process has it at a time.
//!
//! A daemon whose file system was unmounted has it until everything is written out and closed. Whoever wants it then
//! waits, as for nothing else that holds it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{Home, access};
use crate::mounts::{self, Mounted};

/// How long a daemon that is ending is waited for.
const END_LIMIT: Duration = Duration::from_mins(1);
/// How long somebody else who works on an unmounted file system is waited for: a command that only looks.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// After which time it is said what is waited for.
const SILENCE: Duration = Duration::from_millis(300);

/// The right to work on a file system: held by its daemon, or by a command on an unmounted one.
pub struct Lock {
    _file: File,
}

impl Home {
    fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Takes the right to work on the file system; `None` if it is taken.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        let path = self.lock_path();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(access::FILE)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// As [`Home::try_lock`], with an error that says who holds it. Waits for a daemon whose file system was
    /// unmounted.
    ///
    /// # Errors
    /// If it is mounted or otherwise in use.
    pub fn lock(&self) -> Result<Lock> {
        let clock = SystemClock;
        let started = clock.instant();
        let mut until = started + LOOK_LIMIT;
        let mut told = false;
        loop {
            if let Some(lock) = self.try_lock()? {
                return Ok(lock);
            }
            let daemon = self.daemon_pid().filter(|pid| is_alive(*pid));
            if let Some(mount) = self.mount_of(daemon) {
                bail!(
                    "{} is mounted at {}{}",
                    self.root.display(),
                    mount.mountpoint.display(),
                    by(daemon)
                );
            }
            let now = clock.instant();
            if daemon.is_some() {
                until = (now + LOOK_LIMIT).min(started + END_LIMIT);
            }
            if now > until {
                return Err(self.still_in_use(daemon));
            }
            if let Some(pid) = daemon
                && now - started > SILENCE
                && !told
            {
                note!(
                    "forebay: waiting for the daemon of {} to end (process {pid})",
                    self.root.display()
                );
                told = true;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Where it is mounted, as this process sees it or its daemon does.
    fn mount_of(&self, daemon: Option<u32>) -> Option<Mounted> {
        mounts::of_home(self).or_else(|| mounts::of_home_as_seen_by(daemon?, self))
    }

    fn still_in_use(&self, daemon: Option<u32>) -> anyhow::Error {
        let root = self.root.display();
        match daemon {
            None => anyhow::anyhow!("{root} is in use by another command"),
            Some(pid) => anyhow::anyhow!(
                "{root} is in use by process {pid}, which was unmounted and has not ended in {} s: end the \
                 programs that still have files open in it, or see {}",
                END_LIMIT.as_secs(),
                self.log_path().display()
            ),
        }
    }
}

fn by(daemon: Option<u32>) -> String {
    daemon.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

fn is_alive(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
}

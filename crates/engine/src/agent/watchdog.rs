//! The watchdog of a host: a process of its own that ends the host's jobs when the lease is over, if nobody else does.
//!
//! Shims end their jobs themselves when the lease is over, and agents see to shims; but both may be stopped or frozen,
//! and the jobs go on. The watchdog holds nothing, starts nothing and is told nothing: it sleeps until the lease in the
//! agent's folder is over, on the clock that goes on while the machine is suspended, and then fences what runs
//! (`crate::run::fence`). The agent starts it and starts another one if it ends. It outlives its agent until the last
//! run of the host is let go. Two of one host do not disturb each other.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::run::fence;
use crate::run::{Run, granted, uptime_ms};

/// How soon it looks again while there is no lease, while something is being ended, or without an agent.
const AGAIN_MS: u64 = 200;

/// The agent's side.
pub struct Watchdog {
    program: (PathBuf, String),
    folder: PathBuf,
    running: Option<Child>,
}

impl Watchdog {
    /// One that is started when it is first looked after: `program` and its argument, then the agent's folder.
    pub fn new(program: (PathBuf, String), folder: PathBuf) -> Watchdog {
        Watchdog { program, folder, running: None }
    }

    /// Starts it, if it does not run.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn look_after(&mut self) -> Result<()> {
        if let Some(child) = &mut self.running
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        let (program, argument) = &self.program;
        let mut command = Command::new(program);
        command.arg(argument).arg("--watchdog").arg(&self.folder).current_dir("/");
        // Its standard input ends with the agent.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: the call is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("the watchdog {}", program.display()));
        self.running = Some(child?);
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It ends by itself, soon after the last run.
        drop(self.running.as_mut().and_then(|child| child.stdin.take()));
    }
}

/// The watchdog itself. Returns when its agent is gone, and no run of the host is held.
///
/// # Errors
/// If the runs cannot be listed, or a timer cannot be had.
pub fn serve(agent: &Path) -> Result<()> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let mut has_agent = true;
    loop {
        let now = uptime_ms();
        let until = granted(agent);
        if until <= now {
            fence::all_are_over(agent)?;
        }
        if !has_agent && !any_is_held(agent)? {
            return Ok(());
        }
        let soon = now + AGAIN_MS;
        let next = match (until > now, has_agent) {
            (true, true) => until,
            (true, false) => until.min(soon),
            (false, _) => soon,
        };
        has_agent &= !sleep(&timer, next, has_agent)?;
    }
}

/// Sleeps until a time; whether the agent was seen to be gone, which wakes as well.
fn sleep(timer: &OwnedFd, until_ms: u64, has_agent: bool) -> Result<bool> {
    let at = Timespec {
        tv_sec: i64::try_from(until_ms / 1000)?,
        tv_nsec: i64::try_from(until_ms % 1000)? * 1_000_000,
    };
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let when = Itimerspec { it_interval: once, it_value: at };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &when)?;
    let stdin = rustix::stdio::stdin();
    let mut files = vec![
        PollFd::new(timer, PollFlags::IN),
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
    ];
    files.truncate(if has_agent { 2 } else { 1 });
    match poll(&mut files, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    // Nobody writes there.
    Ok(files.get(1).is_some_and(|file| !file.revents().is_empty()))
}

fn any_is_held(agent: &Path) -> Result<bool> {
    for (_, _, run) in Run::all(agent)? {
        if run.is_held()? {
            return Ok(true);
        }
    }
    Ok(false)
}

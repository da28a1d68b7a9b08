//! The process that keeps a controller or a relay running: starts it again when it was killed or could not go on.
//!
//! It decides nothing and holds no state but its lock. A daemon that ends in order (exit code 0) is not started
//! again, and neither is one that exits before it has ever answered: whoever started the grid is told why. Starts that follow a
//! failure are spaced by pauses that double up to `PAUSE_MAX`, and end after `FAILURES_MAX` failures in a row.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::files::claim_soon;
use forebay_engine::home::{Begin, GridHome};
use forebay_engine::protocol::client::Client;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::background::this_program;
use crate::monitors::Monitors;

/// How long after a failure the controller is started again, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A daemon that lasted as long as this has not failed to begin.
const LASTING: Duration = Duration::from_secs(60);

/// The most failures in a row.
const FAILURES_MAX: u32 = 100;

/// How often somebody who waits looks.
const LOOK: Duration = Duration::from_millis(50);

/// What is kept running.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The controller of a grid, which may begin an empty one.
    Controller(Begin),
    /// The relay of a node.
    Relay,
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Kept::Controller(_) => "controller",
            Kept::Relay => "relay",
        }
    }

    fn lock(self, home: &GridHome) -> PathBuf {
        match self {
            Kept::Controller(_) => home.supervisor(),
            Kept::Relay => home.relay_supervisor(),
        }
    }

    /// The command that runs it.
    fn command(self, root: &Path) -> Command {
        let mut command = this_program();
        command.arg(self.name()).arg(root).stdin(Stdio::null());
        command.args((self == Kept::Controller(Begin::Anew)).then_some("--new"));
        command
    }

    fn answers(self, home: &GridHome) -> bool {
        match self {
            // One that stands by answers through the one that leads.
            Kept::Controller(_) => Client::is_answered(home),
            Kept::Relay => Client::connect(home).is_ok(),
        }
    }

    /// One that is started again continues with what the first one began.
    fn again(self) -> Kept {
        match self {
            Kept::Controller(_) => Kept::Controller(Begin::First),
            Kept::Relay => Kept::Relay,
        }
    }

    /// What a signal for this process is for the daemon.
    fn passed_on(self, signal: i32) -> Option<Signal> {
        match signal {
            SIGTERM | SIGINT => Some(Signal::TERM),
            SIGHUP if matches!(self, Kept::Controller(_)) => Some(Signal::HUP),
            _ => None,
        }
    }
}

/// Runs a daemon of a grid, again and again, until it ends in order or this process is told to end.
///
/// # Errors
/// If there is a supervisor already, the daemon cannot be started, or it fails too often.
pub fn keep(home: &GridHome, root: &Path, mut kept: Kept, monitors: &Monitors) -> Result<ExitCode> {
    home.make()?;
    let name = kept.name();
    let Some(_lock) = claim_soon(&kept.lock(home))? else {
        bail!("the {name} of {} already has a supervisor", home.folder().display());
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])?;
    let clock = SystemClock;
    let (mut has_answered, mut failures, mut pause) = (false, 0, PAUSE);
    loop {
        let begun = clock.instant();
        let child = kept.command(root).args(monitors.arguments()?).spawn();
        let mut child = child.with_context(|| format!("the {name} cannot be started"))?;
        kept = kept.again();
        let (status, is_told) = watch((home, kept), &mut child, &mut signals, &mut has_answered)?;
        // One that was killed did not find that it cannot begin; that it had answered may not have been seen here yet.
        let cannot_begin = !has_answered && status.code().is_some();
        if status.success() || is_told || cannot_begin {
            return Ok(ExitCode::from(
                status.code().and_then(|code| code.try_into().ok()).unwrap_or(1),
            ));
        }
        if clock.instant().saturating_duration_since(begun) >= LASTING {
            (failures, pause) = (0, PAUSE);
        }
        failures += 1;
        if failures > FAILURES_MAX {
            bail!(
                "the {name} failed {failures} times in a row, most recently with {status}: it will not be restarted"
            );
        }
        tracing::error!(
            failures,
            "the {name} exited ({status}); it will be restarted in {pause:?}"
        );
        if is_ended_within(pause, &mut signals) {
            return Ok(ExitCode::SUCCESS);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Waits for the end of a daemon, passing signals on. How it ended, and whether it was told to.
fn watch(
    (home, kept): (&GridHome, Kept),
    child: &mut Child,
    signals: &mut Signals,
    has_answered: &mut bool,
) -> Result<(ExitStatus, bool)> {
    let mut is_told = false;
    loop {
        // Asked before signals are waited for: the end of a child is a signal as well, and none is lost.
        if let Some(status) = child.try_wait()? {
            return Ok((status, is_told));
        }
        let arrived: Vec<i32> = if *has_answered || is_told {
            signals.wait().collect()
        } else {
            *has_answered = kept.answers(home);
            std::thread::sleep(if *has_answered { Duration::ZERO } else { LOOK });
            signals.pending().collect()
        };
        for signal in arrived {
            let Some(passed_on) = kept.passed_on(signal) else { continue };
            is_told |= passed_on == Signal::TERM;
            // It has not been waited for, so the number is its own.
            let _ = rustix::process::kill_process(Pid::from_child(child), passed_on);
        }
    }
}

/// Lets time pass; whether this process was told to end meanwhile.
fn is_ended_within(pause: Duration, signals: &mut Signals) -> bool {
    let (clock, begun) = (SystemClock, SystemClock.instant());
    loop {
        if signals.pending().any(|signal| matches!(signal, SIGTERM | SIGINT)) {
            return true;
        }
        if clock.instant().saturating_duration_since(begun) >= pause {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

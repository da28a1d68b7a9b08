//! Ending the jobs of a host by force.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use forebay_grid::spec::Exit;
use forebay_process::session;
use rustix::process::Signal;

use super::groups::{Keep, sweep};
use crate::files;
use crate::files::claim_soon;
use crate::run::fence;
use crate::run::{End, Run, Said};

/// Ends the jobs of a host whose agent is gone by force, and waits until they have ended. The next agent says that they
/// were lost.
///
/// # Errors
/// If there is an agent, or a shim does not end.
pub fn end_left_jobs(folder: &Path) -> Result<()> {
    let Some(_lock) = claim_soon(&folder.join("lock"))? else {
        bail!("the agent of {} is running", folder.display());
    };
    end_by_force(folder, Run::all(folder)?.into_iter().map(|(_, _, run)| run).collect())?;
    sweep(folder, Keep::Nothing)
}

/// Ends runs by force, waits until they have ended, and forgets those that would not have ended then.
pub(super) fn end_by_force(folder: &Path, runs: Vec<Run>) -> Result<()> {
    const STEP: Duration = Duration::from_millis(10);
    const STEPS_MAX: u32 = 3000;
    // A shim that is stopped obeys no signal but one.
    const PATIENCE: u32 = 500;
    // An end that is written down before the signal is the job's own: the next agent tells of it.
    let mut left: Vec<Run> = Vec::new();
    for run in runs {
        if run.said()?.end.is_none() {
            left.push(run);
        }
    }
    let signalled = left.clone();
    for step in 0.. {
        for run in &left {
            if let Some(shim) = run.said()?.shim_file().filter(|_| run.is_held().unwrap_or(false)) {
                let _ = rustix::process::pidfd_send_signal(&shim, Signal::INT);
            }
            if step > PATIENCE {
                fence::is_over(run)?;
            }
        }
        let mut held = Vec::new();
        for run in left {
            if last_said(&run)?.is_none() {
                held.push(run);
            }
        }
        left = held;
        let Some(first) = left.first() else { break };
        ensure!(step < STEPS_MAX, "{}: its shim does not exit", first.path().display());
        std::thread::sleep(STEP);
    }
    for run in &signalled {
        match run.said()?.end {
            // It came before the signal.
            Some(End::Exited { exit, .. }) if exit != Exit::Signal(9) => {}
            _ => run.remove(),
        }
    }
    if !signalled.is_empty() {
        files::replace(&folder.join("boot"), b"")?;
    }
    Ok(())
}

/// What the shim of a run has said for the last time; none as long as something of the run goes on. What a shim that
/// was killed has left is killed.
pub(super) fn last_said(run: &Run) -> Result<Option<Said>> {
    let Some(said) = run.said_at_last()? else { return Ok(None) };
    if said.end.is_some() && !said.is_fenced {
        return Ok(Some(said));
    }
    let groups = run.order()?.and_then(|task| task.groups);
    let is_over = groups.is_none_or(|groups| groups.is_ended(run.name()))
        && said.sessions().into_iter().all(session::is_ended);
    Ok(is_over.then_some(said))
}

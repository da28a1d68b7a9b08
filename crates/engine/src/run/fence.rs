//! Ending a run from outside, for good: what its shim cannot do that is stopped, or frozen.
//!
//! Whoever fences a run first says so in its file. A shim says its process there before it looks whether the run was
//! fenced, so either it sees that and begins nothing, or its process is known here and killed. The tree
//! below the shim goes first, because it can be found no more without the shim; then the shim, so that nothing more
//! comes from it; then the control group of the job, to the last process. A process that is stopped or frozen dies
//! before its next instruction.
//!
//! This holds for all hosts whose agents share the folder of a grid on one machine, as all do today. It needs no
//! clock, and nobody else to be alive.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use forebay_grid::vocabulary::Attempt;
use forebay_process::{descendants, session, stat};
use rustix::process::Signal;

use crate::run::{Run, Said, Task};

/// Ends a run unless it has ended by itself; whether nothing is left of it. To be tried again until then.
///
/// # Errors
/// If its file can be neither read nor written now.
pub fn is_over(run: &Run) -> Result<bool> {
    let mut said = run.said()?;
    if said.end.is_none() {
        run.say_fenced()?;
        tracing::warn!(run = %run.path().display(), "fenced: killing what is left of this start");
        said = run.said()?;
    }
    if !said.is_fenced {
        // What ended by itself left nothing: its shim has only to let it go.
        return Ok(!run.is_held()?);
    }
    let groups = run.order()?.and_then(|task| task.groups);
    let groups = groups.filter(|groups| groups.unified.join(run.name()).exists());
    if let Some(shim) = said.shim_file() {
        let is_alone = said.shim_number().is_none_or(descendants::is_alone);
        if !is_alone && groups.is_none() {
            return Ok(false);
        }
        let _ = rustix::process::pidfd_send_signal(&shim, Signal::KILL);
    }
    // One whose end nobody has taken note of yet does nothing more.
    let is_gone = said.shim_file().is_none() || said.shim_number().is_none_or(stat::is_zombie);
    let is_ended = groups.is_none_or(|groups| groups.is_ended(run.name()));
    Ok(is_gone && is_ended && left_is_ended(&said))
}

/// Kills what is left of the sessions of a run whose shim is gone; whether that was nothing.
fn left_is_ended(said: &Said) -> bool {
    said.sessions().into_iter().all(session::is_ended)
}

/// Waits until nothing is left of earlier starts of a task, on whichever host of this machine they were.
///
/// # Errors
/// As [`is_over`].
pub fn earlier_starts(task: &Task) -> Result<()> {
    let Some(hosts) = task.agent.parent().filter(|_| task.launch.attempt.0 > 1) else {
        return Ok(());
    };
    for host in std::fs::read_dir(hosts)? {
        let host = host?.path();
        for attempt in 1..task.launch.attempt.0 {
            let run = Run::of(&host, task.launch.task, Attempt(attempt));
            if run.path().exists() {
                end(&run)?;
            }
        }
    }
    Ok(())
}

/// Ends a run, and waits until nothing is left of it.
fn end(run: &Run) -> Result<()> {
    let mut pause = Duration::from_millis(1);
    let mut is_told = false;
    while !is_over(run)? {
        if pause >= Duration::from_millis(100) && !is_told {
            tracing::warn!(run = %run.path().display(), "killing an earlier start of this job");
            is_told = true;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    Ok(())
}

/// Ends all runs of a host; whether nothing is left of any of them.
///
/// # Errors
/// If they cannot be listed.
pub fn all_are_over(agent: &Path) -> Result<bool> {
    let mut all = true;
    for (_, _, run) in Run::all(agent)? {
        let is_over = is_over(&run).unwrap_or_else(|error| {
            tracing::error!("a run whose lease has expired could not be killed: {error:#}");
            false
        });
        all &= is_over;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::process::{Child, Command};

    use forebay_grid::spec::{Exit, JobSpec};
    use forebay_grid::vocabulary::{JobId, TaskId};

    use super::*;
    use crate::protocol::Launch;
    use crate::run::{End, Log, make_agent_folder};

    fn task(agent: &Path, attempt: u32) -> Task {
        let launch = Launch {
            numbers: None,
            task: TaskId { job: JobId(7), index: 0 },
            attempt: Attempt(attempt),
            requeues: 0,
            user: "somebody".parse().unwrap(),
            spec: JobSpec::default(),
            slots: 1,
            time_limit: None,
            gpus: None,
            wrap: None,
            checkpoint_bounds: None,
            watch: None,
            limits: Default::default(),
        };
        let (root, work) = (agent.to_owned(), agent.join("work"));
        let host = "h1".parse().unwrap();
        Task {
            launch,
            host,
            root,
            agent: agent.to_owned(),
            util: work.clone(),
            work,
            checkpoints: None,
            groups: None,
            address: String::new(),
            allocation: None,
        }
    }

    /// A process with one below it, stopped, in the place of a shim.
    fn stopped() -> Child {
        let child = Command::new("sh").args(["-c", "sleep 600 & kill -STOP $$; wait"]).spawn();
        let child = child.unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// The file of an attempt whose shim is this process.
    fn run_of(task: &Task, shim: &Child) -> Run {
        let run = Run::of(&task.agent, task.launch.task, task.launch.attempt);
        let file = run.make(task).unwrap().unwrap();
        Log::of(file.as_fd()).say_shim(rustix::process::Pid::from_child(shim)).unwrap();
        run
    }

    #[test]
    fn the_next_start_ends_a_shim_that_is_stopped_and_what_is_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("h1"), folder.path().join("h2"));
        for agent in [&old, &new] {
            make_agent_folder(agent).unwrap();
        }
        let mut shim = stopped();
        let below = descendants::processes_below(rustix::process::Pid::from_child(&shim));
        assert_eq!(below.len(), 1);
        let run = run_of(&task(&old, 1), &shim);
        earlier_starts(&task(&new, 1)).unwrap();
        assert!(run.said().unwrap().end.is_none(), "a first start has nothing to end");
        // The shim is a child of this process, so somebody has to take note of its end.
        let reaper = std::thread::spawn(move || shim.wait().unwrap());
        earlier_starts(&task(&new, 2)).unwrap();
        reaper.join().unwrap();
        assert!(below.into_iter().all(stat::is_zombie));
        let said = run.said().unwrap();
        assert!(said.is_fenced && matches!(said.end, Some(End::Lost(_))));
    }

    #[test]
    fn a_run_that_is_fenced_is_not_begun_and_its_later_end_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        make_agent_folder(folder.path()).unwrap();
        let task = task(folder.path(), 1);
        let run = Run::of(folder.path(), task.launch.task, task.launch.attempt);
        let file = run.make(&task).unwrap().unwrap();
        let log = Log::of(file.as_fd());
        assert!(log.unfenced_task().unwrap().is_some());
        is_over(&run).unwrap();
        assert!(log.unfenced_task().unwrap().is_none());
        log.say_end(&End::Exited { exit: Exit::Code(0), usage: None }).unwrap();
        assert!(matches!(run.said().unwrap().end, Some(End::Lost(_))));
    }

    #[test]
    fn the_end_of_a_run_that_ended_by_itself_stays() {
        let folder = tempfile::tempdir().unwrap();
        make_agent_folder(folder.path()).unwrap();
        let task = task(folder.path(), 1);
        let mut shim = stopped();
        let run = run_of(&task, &shim);
        let file = std::fs::OpenOptions::new().append(true).open(run.path()).unwrap();
        let end = End::Exited { exit: Exit::Code(3), usage: None };
        Log::of(file.as_fd()).say_end(&end).unwrap();
        assert!(is_over(&run).unwrap());
        assert!(matches!(run.said().unwrap().end, Some(End::Exited { exit: Exit::Code(3), .. })));
        // It may hold the next job by now.
        assert!(shim.try_wait().unwrap().is_none());
        let shim_pid = rustix::process::Pid::from_child(&shim);
        assert!(descendants::is_alone(shim_pid));
        shim.kill().unwrap();
        shim.wait().unwrap();
    }
}

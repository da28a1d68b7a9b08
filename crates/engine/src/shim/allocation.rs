//! The holder of a job in an allocation of Slurm: a shim that Slurm has started as the job's user, on any of its nodes.
//!
//! It shares files with the agent (`crate::agent::slurm`) and nothing else. A thread reads its orders every second. As long as it
//! can, the job may run, whether or not agent, controller and slurmctld are there; a holder that has been cut off from
//! the files for as long as its lease ends its job, because it may have been given up and started elsewhere.
//!
//! Whoever starts it for the second time for one run finds that it was claimed: Slurm may have one job twice if it could not say
//! that it had taken it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use forebay_grid::vocabulary::HostName;
use rustix::fs::FlockOperation;
use rustix::process::Signal;

use super::Shim;
use super::beginning::{Lease, Reading};
use super::orders::WARN;
use crate::run::{End, Log, Task, Wanted, request, uptime_ms};

/// How often orders are read; more often if the lease is short.
const READ_MS: u64 = 1_000;

/// Variables of Slurm that are the job's: those that begin like this.
const INHERITED: [&str; 6] = [
    "SLURM_",
    "SLURMD_",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
];

/// Holds the job of the run in this folder to its end.
///
/// # Errors
/// If it was begun before, or its end could not be written down.
pub fn serve(folder: &Path) -> Result<()> {
    let name = folder.file_name().context("a folder without a name")?;
    let run = folder.join(name);
    claim(folder)?;
    let file = OpenOptions::new().read(true).append(true).open(&run);
    let file = file.with_context(|| {
        format!(
            "{}: the folder of the grid must be on a file system that all nodes share",
            run.display()
        )
    })?;
    // Nobody else has it where locks reach all nodes; where they do not the claim is enough.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let task = Log::of(file.as_fd()).task()?;
    let allocation = task.allocation.context("a run that is not for Slurm")?;
    rustix::stdio::dup2_stdin(&file)?;
    let _line = leave_line()?;
    // SAFETY: ignoring a signal is always sound; the job gets the default back.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let reading = Arc::<Reading>::default();
    reading.until_ms.store(uptime_ms() + allocation.lease_ms, Ordering::SeqCst);
    let mut shim = Shim::begin(Lease::Orders(Arc::clone(&reading)))?;
    // After it, so that the signals of orders are blocked in this thread as well.
    let orders = Orders { path: allocation.orders, lease_ms: allocation.lease_ms, reading };
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || orders.keep())?;
    shim.hold(&run)
}

/// How often the end of a job is said again that could not be said.
const END_TRIES: u32 = 60;

/// How long after.
pub const END_AGAIN: Duration = Duration::from_secs(5);

/// Says how the job of a run ended, again by its path if the file that was open since its beginning is out of reach, as after
/// another node has taken it over.
///
/// # Errors
/// Why it could not be said in the end.
pub fn say_end(log: Log<'_>, run: &Path, end: &End, again: Duration) -> Result<()> {
    let mut said = log.say_end(end);
    for _ in 0..END_TRIES {
        let Err(error) = &said else { break };
        tracing::warn!("the end of the job cannot be recorded yet: {error:#}");
        std::thread::sleep(again);
        said = OpenOptions::new()
            .append(true)
            .open(run)
            .with_context(|| run.display().to_string())
            .and_then(|file| Log::of(file.as_fd()).say_end(end));
    }
    said
}

/// Says which job of Slurm holds the run, unless one has said so before.
fn claim(folder: &Path) -> Result<()> {
    let path = folder.join("claim");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).with_context(|| {
        format!(
            "{}: this job was begun by another job of Slurm, or its folder is not on a file system that all nodes share",
            path.display()
        )
    })?;
    let number = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    file.write_all(number.as_bytes()).with_context(|| path.display().to_string())
}

/// What a shim says to its agent goes nowhere: the file of the run says it, too.
fn leave_line() -> Result<OwnedFd> {
    let (ours, theirs) = request::line()?;
    rustix::stdio::dup2_stdout(&theirs)?;
    Ok(ours)
}

/// The node of this process, as Slurm names it.
pub fn node() -> Option<HostName> {
    std::env::var("SLURMD_NODENAME").ok()?.parse().ok()
}

/// Refuses a node that does not reach the areas of the job.
pub fn check(task: &Task) -> Result<()> {
    for area in [&task.work, &task.util] {
        ensure!(
            area.is_dir(),
            "the work area {} is not on this node: the directories of work areas must be on a file system that all nodes \
             share (forebay agent --work)",
            area.display()
        );
    }
    Ok(())
}

/// The variables that Slurm gives to the job.
pub fn variables() -> Vec<(String, String)> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    // That of the submission would have the job's own srun leave everything out.
    let is_its = |name: &str| {
        name != "SLURM_EXPORT_ENV" && INHERITED.iter().any(|begin| name.starts_with(begin))
    };
    all.filter(|(name, _)| is_its(name)).collect()
}

/// The thread that reads orders.
struct Orders {
    path: PathBuf,
    lease_ms: u64,
    reading: Arc<Reading>,
}

impl Orders {
    fn keep(&self) {
        let pause = Duration::from_millis(READ_MS.min(self.lease_ms / 4).max(10));
        let mut obeyed = 0;
        loop {
            let before_ms = uptime_ms();
            // Opened anew, so that file systems of networks look whether it has changed.
            if let Ok(text) = std::fs::read_to_string(&self.path) {
                self.reading.until_ms.store(before_ms + self.lease_ms, Ordering::SeqCst);
                // Signals are thrown away until the holder obeys them.
                if self.reading.obeys.load(Ordering::SeqCst) {
                    let whole = text.rfind('\n').map_or(0, |end| end + 1);
                    let new = text.get(obeyed..whole).unwrap_or_default().lines();
                    new.for_each(|order| obey(&self.reading, order));
                    obeyed = obeyed.max(whole);
                }
            }
            std::thread::sleep(pause);
        }
    }
}

/// Has the holder do what an order says.
fn obey(reading: &Reading, order: &str) {
    let wanted = match order {
        "stop" => Some(Wanted::Stopped),
        "continue" => Some(Wanted::Running),
        _ => None,
    };
    if wanted.is_some() {
        *reading.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    }
    let signal = match order {
        "kill" => Some(Signal::TERM),
        "end" => Some(Signal::INT),
        "stop" => Some(Signal::USR1),
        "continue" => Some(Signal::USR2),
        "warn" => Some(WARN),
        // Those of a later version mean nothing here.
        other => other
            .strip_prefix("signal ")
            .and_then(|number| number.parse().ok())
            .and_then(Signal::from_named_raw),
    };
    if let Some(signal) = signal {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use forebay_grid::event::Loss;

    use super::*;

    #[test]
    fn an_end_that_cannot_be_said_by_the_open_file_is_said_by_its_path_once_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (run, elsewhere) = (folder.path().join("7.0.1"), folder.path().join("elsewhere"));
        std::fs::write(&run, "{}\n").unwrap();
        // What has no right to write stands for what is stale.
        let stale = File::open(&run).unwrap();
        std::fs::rename(&run, &elsewhere).unwrap();
        let end = End::Lost(Loss::Holder);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                std::fs::rename(&elsewhere, &run).unwrap();
            });
            say_end(Log::of(stale.as_fd()), &run, &end, Duration::from_millis(50)).unwrap();
        });
        let said = std::fs::read_to_string(&run).unwrap();
        assert_eq!(said.lines().filter(|line| line.starts_with("end ")).count(), 1, "{said}");
    }
}

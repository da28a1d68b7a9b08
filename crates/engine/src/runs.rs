//! What an agent and its shims keep on disk: a folder for each attempt, and the lease.
//!
//! Of an attempt: `order.json` (the launch and its places), `lock` (held by the shim for as long as it
//! lives), `pid` (of the shim), `session` (of a job that has one of its own), both with when the process was
//! started in ticks since the boot, `started` (the job was started), `exit.json` (how it ended). The folder is
//! made before the shim and removed when the controller has taken note of the end, so an attempt is
//! started once at most. The lock needs no process ids to be told from each other after a restart.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_grid::event::{Loss, RunStatus};
use forebay_grid::spec::{Exit, Usage};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, TaskId};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::home::folder;
use crate::message::{Launch, Report};
use crate::session;

/// Everything that a shim has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub launch: Launch,
    pub host: HostName,
    /// ROOT of the grid, for commands that a job gives.
    pub root: PathBuf,
    /// Folder of the agent, with the lease.
    pub agent: PathBuf,
    /// Its work area.
    pub work: PathBuf,
    /// Its area for utility files.
    pub util: PathBuf,
}

/// How a job ended, as far as its shim or the agent could see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum End {
    /// By itself, or because somebody wanted it to.
    Exited { exit: Exit, usage: Option<Box<Usage>> },
    /// The host has lost it, or could not start it.
    Lost(Loss),
}

impl End {
    /// It was not started, as it cannot be.
    pub fn not_started(error: &anyhow::Error) -> End {
        End::Exited { exit: Exit::NotStarted(format!("{error:#}")), usage: None }
    }

    /// It was not started, as this host cannot.
    pub fn unable(error: &anyhow::Error) -> End {
        End::Lost(Loss::Unable(format!("{error:#}")))
    }

    /// What its agent tells of it.
    pub fn report(self, task: TaskId, attempt: Attempt) -> Report {
        match self {
            End::Exited { exit, usage } => Report::Exited { task, attempt, exit, usage },
            End::Lost(loss) => Report::Lost { task, attempt, loss },
        }
    }

    /// What its agent says of it when it joins.
    pub fn status(self) -> RunStatus {
        match self {
            End::Exited { exit, usage } => RunStatus::Exited(exit, usage),
            End::Lost(loss) => RunStatus::Lost(loss),
        }
    }
}

/// The folder of one attempt.
#[derive(Clone, Debug)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    pub fn of(agent: &Path, task: TaskId, attempt: Attempt) -> RunFolder {
        RunFolder(agent.join("runs").join(format!("{}.{}.{attempt}", task.job, task.index)))
    }

    pub fn at(path: PathBuf) -> RunFolder {
        RunFolder(path)
    }

    /// All that are there.
    pub fn all(agent: &Path) -> Result<Vec<(TaskId, Attempt, RunFolder)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(agent.join("runs"))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let numbers: Vec<u64> = name.split('.').map_while(|part| part.parse().ok()).collect();
            if let [job, index, attempt] = numbers[..] {
                let task = TaskId { job: JobId(job), index: u32::try_from(index)? };
                all.push((task, Attempt(u32::try_from(attempt)?), RunFolder(path)));
            }
        }
        Ok(all)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder; an error if it was made before.
    pub fn make(&self, task: &Task) -> Result<()> {
        std::fs::create_dir(&self.0).with_context(|| self.0.display().to_string())?;
        std::fs::write(self.0.join("order.json"), serde_json::to_vec(task)?)?;
        Ok(())
    }

    pub fn task(&self) -> Result<Task> {
        Ok(serde_json::from_slice(&std::fs::read(self.0.join("order.json"))?)?)
    }

    pub fn lock_path(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Waits until the shim has ended.
    pub fn wait(&self) -> Result<()> {
        let file = File::open(self.lock_path())?;
        let lock = rustix::fs::FlockOperation::LockShared;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, lock))?;
        Ok(())
    }

    pub fn say_pid(&self) -> Result<()> {
        self.say_process("pid", rustix::process::getpid())
    }

    /// The process of the shim, which may have ended unless the lock is held.
    pub fn pid(&self) -> Option<Pid> {
        Some(self.process("pid")?.0)
    }

    /// Writes down a process with when it was started, which tells it from a later one of the same number.
    fn say_process(&self, file: &str, process: Pid) -> Result<()> {
        let started = session::start_of(process).context("a process that is not there")?;
        let text = format!("{} {started}", process.as_raw_nonzero());
        replace(&self.0.join(file), text.as_bytes())
    }

    fn process(&self, file: &str) -> Option<(Pid, u64)> {
        let text = std::fs::read_to_string(self.0.join(file)).ok()?;
        let (pid, started) = text.split_once(' ')?;
        Some((Pid::from_raw(pid.parse().ok()?)?, started.parse().ok()?))
    }

    /// The sessions of the shim and of its job, but for those whose number is another process's by now.
    pub fn sessions(&self) -> Vec<Pid> {
        let known = ["pid", "session"].into_iter().filter_map(|file| self.process(file));
        let same =
            |(pid, started): &(Pid, u64)| session::start_of(*pid).is_none_or(|now| now == *started);
        known.filter(same).map(|(pid, _)| pid).collect()
    }

    /// The job has a session of its own, by this number.
    pub fn say_session(&self, session: Pid) -> Result<()> {
        self.say_process("session", session)
    }

    pub fn say_started(&self) -> Result<()> {
        replace(&self.0.join("started"), b"")
    }

    pub fn was_started(&self) -> bool {
        self.0.join("started").exists()
    }

    pub fn say_end(&self, end: &End) -> Result<()> {
        replace(&self.0.join("exit.json"), &serde_json::to_vec(end)?)
    }

    /// How the job ended, if its shim could say.
    pub fn end(&self) -> Option<End> {
        serde_json::from_slice(&std::fs::read(self.0.join("exit.json")).ok()?).ok()
    }

    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("{}: {error}", self.0.display());
        }
    }
}

/// Writes a file as a whole: whoever reads it finds the old one or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, bytes)?;
    std::fs::rename(&draft, path)?;
    Ok(())
}

/// The folder of an agent.
pub fn make_agent_folder(path: &Path) -> Result<()> {
    folder(path, 0o700)?;
    folder(&path.join("runs"), 0o700)
}

/// Milliseconds since the machine was booted, which every process counts alike.
pub fn uptime_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Says until when the jobs of an agent may run.
pub fn grant(agent: &Path, until_ms: u64) -> Result<()> {
    replace(&agent.join("lease"), until_ms.to_string().as_bytes())
}

/// Until when they may.
pub fn granted(agent: &Path) -> u64 {
    let text = std::fs::read_to_string(agent.join("lease")).unwrap_or_default();
    text.parse().unwrap_or(0)
}

//! What an agent and its shims keep on disk: a file for each attempt, and the lease.
//!
//! The file of an attempt is written line by line, and what is no whole line was not said. The agent makes
//! it with the order: the launch and its places. Its shim says `pid` (its own), `started` (of the job),
//! `session` (of a job that has one of its own) and `end` (how the job ended); of processes also when they were
//! started, in ticks since the boot. Whoever ends a run because its lease is over says `fenced` before (`fence.rs`), and the
//! agent says `warned` before it has the job warned that its end is near.
//! Of `fenced` and `end` the first counts. The file is locked for as
//! long as the shim lives. It is made before the shim and removed when the controller has taken note of the
//! end, so an attempt is started once at most. The lock needs no process ids to be told from each other
//! after a restart.
//!
//! [`request`] is what an agent and its shims say to each other meanwhile; [`fence`] ends a run from outside.

pub(crate) mod fence;
pub(crate) mod request;

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_grid::event::{Loss, RunStatus};
use forebay_grid::spec::{Exit, Usage, short_reason};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId};
use forebay_process::{small, stat};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use crate::causes::chain;
use crate::cgroup::Places;
use crate::files::{folder, replace};
use crate::home::GridHome;
use crate::protocol::{Health, Launch, Report};

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
    /// Where its checkpoints are, if this host has a place for them.
    #[serde(default)]
    pub checkpoints: Option<PathBuf>,
    /// Where its control group is made, by the name of its file; none if it has none.
    #[serde(default)]
    pub groups: Option<Places>,
    /// Name or number under which this host is reached.
    #[serde(default)]
    pub address: String,
    /// How its holder is reached in an allocation of Slurm; none if an agent's shim holds it.
    #[serde(default)]
    pub allocation: Option<Allocation>,
}

/// What the holder of a job in an allocation of Slurm has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Allocation {
    /// The file in which it finds orders.
    pub orders: PathBuf,
    /// How long it may be unable to read them before it ends its job.
    pub lease_ms: u64,
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
    /// Whether nothing of it ran, as the host could not start it.
    pub fn is_unable(&self) -> bool {
        matches!(self, End::Lost(Loss::Unable(_)))
    }

    /// It was not started, as it cannot be.
    pub fn not_started(error: &anyhow::Error) -> End {
        End::Exited { exit: Exit::NotStarted(short_reason(chain(error))), usage: None }
    }

    /// It was not started, as this host cannot.
    pub fn unable(error: &anyhow::Error) -> End {
        End::Lost(Loss::Unable(short_reason(chain(error))))
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

/// The file of one attempt.
#[derive(Clone, Debug)]
pub struct Run(PathBuf);

/// What is wanted of the processes of a job that was suspended or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Stopped,
    Running,
}

/// What a shim has said.
#[derive(Debug, Default)]
pub struct Said {
    /// Its process, with when it was started, which tells it from a later one of the same number.
    shim: Option<(Pid, u64)>,
    /// The job's own session, likewise.
    session: Option<(Pid, u64)>,
    /// Whether the job was started.
    pub started: bool,
    /// How it ended.
    pub end: Option<End>,
    /// Whether it was ended from outside, so that something of it may still be there.
    pub is_fenced: bool,
    /// Whether it was warned that its end is near, and of which end if that is known.
    pub warned: Option<Option<Moment>>,
}

impl Said {
    /// What the text of a run's file says; the order, or what is left of it, is its first line.
    pub fn of(text: &str) -> Said {
        let process = |words: &str| {
            let (pid, started) = words.split_once(' ')?;
            Some((Pid::from_raw(pid.parse().ok()?)?, started.parse().ok()?))
        };
        let mut said = Said::default();
        for line in text.split_inclusive('\n').skip(1) {
            let Some(line) = line.strip_suffix('\n') else { break };
            match line.split_once(' ').unwrap_or((line, "")) {
                ("pid", words) => said.shim = process(words),
                ("session", words) => said.session = process(words),
                ("started", _) => said.started = true,
                ("warned", end) => said.warned = Some(end.parse().ok().map(Moment)),
                // The first of them counts.
                ("end", end) if said.end.is_none() => said.end = serde_json::from_str(end).ok(),
                ("fenced", _) if said.end.is_none() => {
                    said.end = Some(End::Lost(Loss::Lease));
                    said.is_fenced = true;
                }
                _ => {}
            }
        }
        // A shim may say that it starts its job while it is fenced, and is killed then.
        if said.is_fenced && !said.started {
            let why = "the lease of the host has expired".to_owned();
            said.end = Some(End::Lost(Loss::Unable(why)));
        }
        said
    }

    /// The process of the shim, which becomes readable when that has ended; none if it has ended, or was not there yet.
    pub fn shim_file(&self) -> Option<OwnedFd> {
        let (pid, started) = self.shim?;
        let file = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        (stat::start_of(pid) == Some(started)).then_some(file)
    }

    /// The number of the shim.
    pub fn shim_number(&self) -> Option<Pid> {
        self.shim.map(|(pid, _)| pid)
    }

    /// The sessions of the shim and of its job, but for those whose number is another process's by now.
    pub fn sessions(&self) -> Vec<Pid> {
        let same =
            |(pid, started): &(Pid, u64)| stat::start_of(*pid).is_none_or(|now| now == *started);
        let known = self.shim.into_iter().chain(self.session);
        known.filter(same).map(|(pid, _)| pid).collect()
    }

    /// How the run ended whose shim is gone. A shim says that its job was started before it starts it, so one
    /// of which it did not was never started.
    pub fn into_end(self) -> End {
        let lost = if self.started {
            Loss::Holder
        } else {
            Loss::Unable("the process that should start it was killed".to_owned())
        };
        self.end.unwrap_or(End::Lost(lost))
    }
}

impl Run {
    pub fn of(agent: &Path, task: TaskId, attempt: Attempt) -> Run {
        Run(agent.join("runs").join(format!("{}.{}.{attempt}", task.job, task.index)))
    }

    /// The one whose file has this name.
    pub fn named(agent: &Path, name: &str) -> Run {
        Run(agent.join("runs").join(name))
    }

    /// The name of its file, and of its control group.
    pub fn name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// All that are there.
    pub fn all(agent: &Path) -> Result<Vec<(TaskId, Attempt, Run)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(agent.join("runs"))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let numbers: Vec<u64> = name.split('.').map_while(|part| part.parse().ok()).collect();
            if let [job, index, attempt] = numbers[..] {
                let task = TaskId { job: JobId(job), index: u32::try_from(index)? };
                all.push((task, Attempt(u32::try_from(attempt)?), Run(path)));
            }
        }
        Ok(all)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the file, locked for as long as it is open somewhere; none if it was made before.
    pub fn make(&self, task: &Task) -> Result<Option<File>> {
        let mut options = std::fs::OpenOptions::new();
        let options = options.create_new(true).read(true).append(true).mode(0o600);
        let mut file = match options.open(&self.0) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            made => made.with_context(|| self.0.display().to_string())?,
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut order = serde_json::to_vec(task)?;
        order.push(b'\n');
        file.write_all(&order)?;
        if keep_room(&file, order.len() as u64) == Err(rustix::io::Errno::NOSPC) {
            let _ = std::fs::remove_file(&self.0);
            return Err(rustix::io::Errno::NOSPC).context("no space left for the records of a job");
        }
        Ok(Some(file))
    }

    /// Its file, to be read; none if it is gone.
    fn opened(&self) -> Result<Option<File>> {
        match File::open(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).with_context(|| self.0.display().to_string()),
        }
    }

    /// Whether its shim lives, or is about to be started.
    ///
    /// # Errors
    /// If that cannot be seen now.
    pub fn is_held(&self) -> Result<bool> {
        self.opened()?.map_or(Ok(false), |file| is_locked(&file))
    }

    /// What its shim has said up to now; nothing if the file is gone.
    ///
    /// # Errors
    /// If it cannot be read now: that says nothing about the job.
    pub fn said(&self) -> Result<Said> {
        self.opened()?.map_or(Ok(Said::default()), |file| self.said_in(&file))
    }

    /// What its shim has said; none as long as that lives, or is about to be started.
    ///
    /// # Errors
    /// As [`Run::said`].
    pub fn said_at_last(&self) -> Result<Option<Said>> {
        let Some(file) = self.opened()? else { return Ok(Some(Said::default())) };
        if is_locked(&file)? { Ok(None) } else { self.said_in(&file).map(Some) }
    }

    fn said_in(&self, file: &File) -> Result<Said> {
        let bytes = small::read_again(file).with_context(|| self.0.display().to_string())?;
        let text = String::from_utf8(bytes).with_context(|| self.0.display().to_string())?;
        Ok(Said::of(&text))
    }

    /// What its shim was ordered to do; none if the file is gone.
    ///
    /// # Errors
    /// If it cannot be read now.
    pub fn order(&self) -> Result<Option<Task>> {
        match File::open(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => {
                let file = opened.with_context(|| self.0.display().to_string())?;
                Log::of(file.as_fd()).task().map(Some)
            }
        }
    }

    /// Says that it is over, unless that was said before. From then on it is not begun.
    ///
    /// # Errors
    /// If that cannot be written. A file that is gone needs it no more.
    pub fn say_fenced(&self) -> Result<()> {
        self.say_from_outside("fenced")
    }

    /// Says that it is being warned of an end, so that a later agent knows it.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn say_warned(&self, end: Option<Moment>) -> Result<()> {
        match end {
            Some(Moment(end)) => self.say_from_outside(&format!("warned {end}")),
            None => self.say_from_outside("warned"),
        }
    }

    fn say_from_outside(&self, line: &str) -> Result<()> {
        match std::fs::OpenOptions::new().append(true).open(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            opened => {
                let file = opened.with_context(|| self.0.display().to_string())?;
                Log::of(file.as_fd()).say(line)
            }
        }
    }

    pub fn remove(&self) {
        self.forget_stopped();
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("{}: {error}", self.0.display());
        }
    }
}

impl Run {
    /// The run whose file this is.
    pub fn at(path: &Path) -> Run {
        Run(path.to_owned())
    }

    /// The file that is there while its agent has it suspended or resumed. It stands beside the file of the run, which would grow with each
    /// suspension.
    fn stopped_file(&self) -> Option<PathBuf> {
        Some(self.0.parent()?.parent()?.join("stopped").join(self.name()))
    }

    /// Says what is wanted of it, before it is signalled: a later agent knows it then, and its shim need not know the order of the signals.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn say_wanted(&self, wanted: Wanted) -> Result<()> {
        let path = self.stopped_file().context("a run without an agent")?;
        folder(path.parent().context("a file without a folder")?, 0o700)?;
        let word: &[u8] = match wanted {
            Wanted::Stopped => b"stopped",
            Wanted::Running => b"running",
        };
        replace(&path, word)
    }

    /// What its agent wants of it; none if it has said nothing, or is of a version that says less.
    pub fn wanted(&self) -> Option<Wanted> {
        match &*std::fs::read(self.stopped_file()?).ok()? {
            b"stopped" => Some(Wanted::Stopped),
            b"running" => Some(Wanted::Running),
            _ => None,
        }
    }

    /// What an agent before this one was about to do with it, or had done; none if it runs. Earlier versions wrote nothing into the file.
    pub fn left(&self) -> Option<Wanted> {
        let is_there = self.stopped_file().is_some_and(|path| path.exists());
        is_there.then(|| self.wanted().unwrap_or(Wanted::Stopped))
    }

    /// It goes on, or has ended.
    pub fn forget_stopped(&self) {
        self.stopped_file().into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Run {
    /// The file in which the shim of a service says how that is. The file of the run is written only at its end.
    fn health_file(&self) -> Option<PathBuf> {
        Some(self.0.parent()?.parent()?.join("health").join(self.name()))
    }

    /// Says how a service is.
    pub fn say_health(&self, health: &Health) -> Result<()> {
        let path = self.health_file().context("a run without an agent")?;
        folder(path.parent().context("a file without a folder")?, 0o700)?;
        crate::files::replace(&path, &serde_json::to_vec(health)?)
    }

    /// How the service is, as far as its shim has said.
    pub fn health(&self) -> Option<Health> {
        serde_json::from_slice(&std::fs::read(self.health_file()?).ok()?).ok()
    }

    /// There is nothing any more of which it could be said how it is.
    pub fn forget_health(&self) {
        self.health_file().into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    }

    /// Runs of which it is said how they are.
    pub fn with_health(agent: &Path) -> Vec<(TaskId, Attempt)> {
        let entries = std::fs::read_dir(agent.join("health")).into_iter().flatten().flatten();
        entries.filter_map(|entry| numbers_of(entry.file_name().to_str()?)).collect()
    }
}

/// Which start of which task a file of a run is about.
fn numbers_of(name: &str) -> Option<(TaskId, Attempt)> {
    let mut parts = name.split('.');
    let mut next = || parts.next()?.parse::<u64>().ok();
    let (job, index, attempt) = (next()?, next()?, next()?);
    let task = TaskId { job: JobId(job), index: u32::try_from(index).ok()? };
    let attempt = Attempt(u32::try_from(attempt).ok()?);
    parts.next().is_none().then_some((task, attempt))
}

/// Keeps room behind the order, so that how the job ended can be said on a full disk, too: not said, it would be lost with the
/// job. The rest of the last block is the file's already and mostly enough; to have more costs as much as making and
/// removing the file does. Where it cannot be had the file is as good as others there.
fn keep_room(file: &File, length: u64) -> rustix::io::Result<()> {
    let block = rustix::fs::fstatvfs(file)?.f_frsize.max(1);
    let left = (block - length % block) % block;
    if left >= SAID_MOSTLY {
        return Ok(());
    }
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, length, SAID_BYTES)
}

/// Whether a shim, or an agent that is about to start one, has the file of a run locked.
fn is_locked(file: &File) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The open file of an attempt, as its shim has it.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a>(BorrowedFd<'a>);

impl<'a> Log<'a> {
    pub fn of(file: BorrowedFd<'a>) -> Log<'a> {
        Log(file)
    }

    pub fn task(self) -> Result<Task> {
        let bytes = self.bytes()?;
        let order = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(order).context("the order of a run")
    }

    /// The order, unless somebody has said that the run is over. Asked by a shim that has said its process: whoever says
    /// so later finds that, and kills it.
    pub fn unfenced_task(self) -> Result<Option<Task>> {
        let bytes = self.bytes()?;
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let order = lines.next().unwrap_or_default();
        if lines.any(|line| line == b"fenced") {
            return Ok(None);
        }
        serde_json::from_slice(order).context("the order of a run").map(Some)
    }

    fn bytes(self) -> Result<Vec<u8>> {
        let file = File::from(self.0.as_fd().try_clone_to_owned()?);
        let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
        Ok(bytes)
    }

    /// Its shim is this process, which was started then (in clock ticks since the boot).
    pub fn say_pid(self, started: u64) -> Result<()> {
        self.say_started_process("pid", rustix::process::getpid(), started)
    }

    /// Its shim is another process.
    #[cfg(test)]
    pub fn say_shim(self, shim: Pid) -> Result<()> {
        self.say_process("pid", shim)
    }

    /// The job has a session of its own, by this number.
    pub fn say_session(self, session: Pid) -> Result<()> {
        self.say_process("session", session)
    }

    /// Says a process with when it was started.
    fn say_process(self, what: &str, process: Pid) -> Result<()> {
        let started = stat::start_of(process).context("a process that is not there")?;
        self.say_started_process(what, process, started)
    }

    fn say_started_process(self, what: &str, process: Pid, started: u64) -> Result<()> {
        self.say(&format!("{what} {} {started}", process.as_raw_nonzero()))
    }

    pub fn say_started(self) -> Result<()> {
        self.say("started")
    }

    pub fn say_end(self, end: &End) -> Result<()> {
        self.say(&format!("end {}", serde_json::to_string(end)?))
    }

    /// Adds a line, which is there as a whole or not at all.
    fn say(self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        let written = rustix::io::retry_on_intr(|| rustix::io::write(self.0, line.as_bytes()))?;
        if written < line.len() {
            // Half a line would spoil the next one.
            let length = rustix::fs::fstat(self.0)?.st_size;
            let before = u64::try_from(length)?.saturating_sub(written as u64);
            rustix::fs::ftruncate(self.0, before)?;
            anyhow::bail!("the disk is full");
        }
        Ok(())
    }
}

/// How many jobs the processes of a grid hold, whether or not there is a controller or an agent.
///
/// # Errors
/// If the folders of its hosts cannot be read.
pub fn jobs_that_run(home: &GridHome) -> Result<usize> {
    let hosts = home.hosts();
    let shown = || hosts.display().to_string();
    let mut count = 0;
    if !hosts.exists() {
        return Ok(count);
    }
    for host in std::fs::read_dir(&hosts).with_context(shown)? {
        let host = host.with_context(shown)?.path();
        for (_, _, run) in Run::all(&host).with_context(|| host.display().to_string())? {
            count += usize::from(run.is_held()?);
        }
    }
    Ok(count)
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

/// Space in the file of an attempt for all that its shim can say, and for what shims say of jobs that have run.
const SAID_BYTES: u64 = 8 << 10;
const SAID_MOSTLY: u64 = 1 << 10;

/// Digits of a lease. It is written over the one before, at once, so that it needs no room on a full disk.
const LEASE_DIGITS: usize = 20;

/// How often a lease is read that cannot be, a tenth of a second apart.
const LEASE_READS: u32 = 20;

/// Says until when the jobs of an agent may run.
///
/// # Errors
/// If it cannot be written.
pub fn grant(agent: &Path, until_ms: u64) -> Result<()> {
    let path = agent.join("lease");
    let digits = format!("{until_ms:0LEASE_DIGITS$}");
    let mut options = std::fs::OpenOptions::new();
    // Whoever reads finds the old digits or the new ones: the kernel writes a few bytes of a page at once.
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    std::os::unix::fs::FileExt::write_all_at(&file, digits.as_bytes(), 0)?;
    Ok(())
}

/// Until when they may; none without a lease. What cannot be read for a moment ends no job: descriptors may be short.
pub fn granted(agent: &Path) -> u64 {
    let path = agent.join("lease");
    for _ in 1..LEASE_READS {
        match small::text(&path) {
            Ok(text) => return text.parse().unwrap_or(0),
            Err(error) if error.kind() == ErrorKind::NotFound => return 0,
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    std::fs::read_to_string(&path).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

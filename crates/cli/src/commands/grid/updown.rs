//! `forebay up` and `forebay down`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::agent::end_left_jobs;
use forebay_engine::client::Client;
use forebay_engine::home::{GridHome, folder, holder};
use forebay_engine::message::{Answer, Ask};
use forebay_fs::settings::TransportChoice;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::no_sense;
use crate::background::Background;

/// Start a grid on this machine: a controller, and agents named host1, host2, ...
///
/// The folder is made if there is none. With --mount it becomes a file system as well, which is mounted,
/// and jobs have their work areas in its filesets. Logs are in ROOT/grid. What runs already is left as it is.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay up /srv/jobs --hosts 2 --slots 4
  forebay up /srv/grid --mount /grid --slots 8
  export FOREBAY_GRID=/srv/jobs; forebay submit -- date")]
pub struct Up {
    /// Folder of the grid.
    root: PathBuf,
    /// Where to mount its file system.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// How requests to its file system arrive, as with `forebay mount`.
    #[arg(long, value_name = "auto|dev|uring", requires = "mount")]
    transport: Option<TransportChoice>,
    /// Hosts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    hosts: u32,
    /// Slots of each host; as many as there are cores if left out.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Stop a grid.
///
/// Refused while jobs are on its hosts, unless --now ends them: those that are rerunnable start again
/// after the next `forebay up`. Waiting jobs stay as they are. A file system is unmounted last.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay down /srv/jobs\n  forebay down /srv/jobs --now")]
pub struct Down {
    /// Folder of the grid.
    root: PathBuf,
    /// End the jobs that run.
    #[arg(long)]
    now: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const STEP: Duration = Duration::from_millis(20);

/// Steps that a daemon may take to begin or to end.
const STEPS_MAX: u32 = 1500;

/// Tries until it is done; whether it was.
fn in_time(mut done: impl FnMut() -> bool) -> bool {
    (0..STEPS_MAX).any(|_| {
        let ready = done();
        if !ready {
            std::thread::sleep(STEP);
        }
        ready
    })
}

/// Waits until daemons are ready that were started together; an error as soon as one of them has ended.
fn await_daemons(
    home: &GridHome,
    daemons: &mut [Background],
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let mut ended = Ok(());
    let done = in_time(|| {
        ended = daemons.iter_mut().try_for_each(Background::check);
        ended.is_err() || ready()
    });
    ended?;
    ensure!(done, "not all came up in time; see the logs in {}", home.folder().display());
    Ok(())
}

impl Up {
    pub fn run(self) -> Result<ExitCode> {
        let areas = self.mount.as_deref().map(|place| self.mount_at(place)).transpose()?;
        if !self.root.exists() {
            std::fs::create_dir(&self.root).with_context(|| self.root.display().to_string())?;
        }
        let root = self.root.canonicalize()?;
        let home = GridHome::of(&root)?;
        home.make()?;
        if holder(&home.lock()).is_none() {
            let log = home.folder().join("controller.log");
            let arguments = [OsStr::new("controller"), root.as_os_str()];
            let mut daemons = vec![Background::start(&arguments, &log)?];
            await_daemons(&home, &mut daemons, || Client::connect(&home).is_ok())?;
        }
        let cores = std::thread::available_parallelism()?.get();
        let slots = self.slots.unwrap_or(u32::try_from(cores)?).to_string();
        let mut agents = Vec::new();
        for number in 1..=self.hosts {
            let name = format!("host{number}");
            if holder(&home.hosts().join(&name).join("lock")).is_some() {
                continue;
            }
            let words = ["--name", &name, "--slots", &slots].map(OsStr::new);
            let mut arguments = vec![OsStr::new("agent"), root.as_os_str()];
            arguments.extend(words);
            if let Some((work, util)) = &areas {
                arguments.extend([OsStr::new("--work"), work.as_os_str()]);
                arguments.extend([OsStr::new("--util"), util.as_os_str()]);
            }
            let log = home.folder().join(format!("{name}.log"));
            agents.push(Background::start(&arguments, &log)?);
        }
        let mut client = Client::connect(&home)?;
        let wanted = usize::try_from(self.hosts)?;
        await_daemons(&home, &mut agents, || match client.ask(&Ask::Hosts) {
            Ok(Answer::Hosts { hosts }) => {
                hosts.iter().filter(|host| host.state == "up").count() >= wanted
            }
            Ok(_) | Err(_) => false,
        })?;
        if self.json {
            outln!("{}", serde_json::json!({ "root": root, "hosts": self.hosts }));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Makes the file system if there is none, and mounts it; its places for work and utility files.
    fn mount_at(&self, place: &Path) -> Result<(PathBuf, PathBuf)> {
        if crate::home::Home::at(&self.root).is_err() {
            crate::home::mkfs(&self.root, &[])?;
        }
        let home = crate::home::Home::at(&self.root)?;
        if crate::mounts::of_home(&home).is_none() {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("mount").arg(&self.root).arg(place);
            command.args(self.transport.map(|choice| format!("--transport={choice}")));
            let status = command.status()?;
            if !status.success() {
                bail!("{} could not be mounted", self.root.display());
            }
        }
        let mount = crate::mounts::of_home(&home).context("the file system is not mounted")?;
        Ok((area_below(&mount.mountpoint, "work")?, area_below(&mount.mountpoint, "util")?))
    }
}

/// Where agents make work areas in a fileset that every user may write to: a folder of this user's own, in which
/// nobody else can take a name before them.
fn area_below(mountpoint: &Path, fileset: &str) -> Result<PathBuf> {
    let place = mountpoint.join(fileset).join("jobs");
    folder(&place, 0o711)?;
    Ok(place)
}

/// Sends a signal to the holder of a lock until it is free.
fn stop(lock: &Path, signal: Signal) -> Result<()> {
    let Some(pid): Option<Pid> = holder(lock) else { return Ok(()) };
    match rustix::process::kill_process(pid, signal) {
        // It has ended by itself since its lock was looked at.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            return Err(error).with_context(|| format!("process {}", pid.as_raw_nonzero()));
        }
    }
    if in_time(|| holder(lock).is_none()) {
        Ok(())
    } else {
        bail!("process {} does not end", pid.as_raw_nonzero())
    }
}

/// How many jobs are on hosts. Jobs go on without a controller, and without agents.
fn busy(home: &GridHome) -> Result<usize> {
    if holder(&home.lock()).is_none() {
        return home.jobs_that_run();
    }
    match Client::connect(home)?.ask(&Ask::Hosts)? {
        Answer::Hosts { hosts } => Ok(hosts.iter().map(|host| host.tasks.len()).sum()),
        answer => Err(no_sense(&answer)),
    }
}

impl Down {
    pub fn run(self) -> Result<ExitCode> {
        let home = GridHome::of(&self.root)?;
        // Whoever may not look at its locks cannot tell that it runs.
        if let Err(error) = std::fs::File::open(home.lock())
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Err(error).with_context(|| home.lock().display().to_string());
        }
        if !self.now {
            let busy = busy(&home)?;
            if busy > 0 {
                bail!("{busy} jobs are on hosts: wait for them, kill them, or give --now");
            }
        }
        // The controller first, so that nothing is started again elsewhere.
        stop(&home.lock(), Signal::TERM)?;
        for entry in std::fs::read_dir(home.hosts()).into_iter().flatten() {
            let folder = entry?.path();
            stop(&folder.join("lock"), Signal::INT)?;
            // Of one whose agent was dead already.
            end_left_jobs(&folder)?;
        }
        if let Ok(files) = crate::home::Home::at(&self.root)
            && let Some(mount) = crate::mounts::of_home(&files)
        {
            let mut command = Command::new(std::env::current_exe()?);
            if !command.arg("umount").arg(&mount.mountpoint).status()?.success() {
                bail!("{} could not be unmounted", mount.mountpoint.display());
            }
        }
        if self.json {
            outln!("{}", serde_json::json!({ "root": self.root }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

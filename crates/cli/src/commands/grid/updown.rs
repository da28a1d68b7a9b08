//! `forebay up` and `forebay down`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::agent::end_left_jobs;
use forebay_engine::cgroup::Parent;
use forebay_engine::cluster::Cluster;
use forebay_engine::files::{folder, holder};
use forebay_engine::home::{Begin, GridHome};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostState};
use forebay_engine::server::settings;
use forebay_engine::trust;
use forebay_fuse::settings::TransportChoice;
use forebay_grid::config::{HostConfig, HostEngine};
use forebay_process::io_wait_source;
use rustix::process::Signal;

use super::daemons::{Engine, slurm_lines};
use super::no_sense;
use super::nodes::{OnNodes, Wanted};
use crate::background::Background;
use crate::home::Home;
use crate::monitors::Monitors;
use crate::{control, mounts};

/// Start a grid: a controller and agents (host1, host2, ...) on this machine, or this node's part of a cluster's grid.
///
/// ROOT is created if it does not exist. With --mount it also becomes the home folder of a file system, which is
/// mounted, and the work areas of jobs are in its filesets. Logs are in ROOT/grid; settings are in
/// ROOT/grid/grid.toml, if there is one. Anything already running is left alone; if it conflicts with the options
/// given, the command fails. A file system whose daemon has died is mounted again. With --metrics the controller answers
/// at ADDRESS, the file system at the next port, and host1, host2, ... at the ports after that.
///
/// With --engine slurm, jobs run through the Slurm cluster of this machine: ROOT must be on a file system that all of its
/// nodes share, and forebay must be installed at the same path on all of them. On a node of a cluster, the node's host stands
/// for Slurm then. See docs/slurm-mapping.md.
///
/// With --cluster, run it on each node. It starts a relay, through which commands and the agent of the node reach the
/// leading controller, an agent with the node's name, and with --controller a controller. If the cluster is mounted there
/// and its filesets work and util are native, work areas are in the node's own directories of them (work/NODE), on its local
/// disk. See docs/operations.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay up /srv/jobs --hosts 2 --slots 4
  forebay up /srv/forebay --mount /mnt/forebay --slots 8
  forebay up /srv/jobs --cluster grid1 --controller
  forebay up /shared/jobs --engine slurm
  forebay up /mnt/grid1/slurm --cluster grid1 --engine slurm
  export FOREBAY_GRID=/srv/jobs; forebay submit -- date")]
pub struct Up {
    /// Folder of the grid.
    root: PathBuf,
    /// Directory at which to mount the file system in ROOT.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// How the kernel sends requests to the file system, as in `forebay mount`.
    #[arg(long, value_name = "auto|dev|uring", requires = "mount")]
    transport: Option<TransportChoice>,
    #[command(flatten)]
    on_nodes: OnNodes,
    /// Number of hosts (agents) on this machine; on a node of a cluster 1, or 0 if the node should run no jobs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    hosts: u32,
    /// Start an empty grid even if the journal of the grid in ROOT is missing: its jobs, history and schedules are lost.
    #[arg(long)]
    new: bool,
    /// What runs the jobs: agents of this machine, or Slurm.
    #[arg(
        long,
        value_name = "agent|slurm",
        default_value = "agent",
        hide_possible_values = true,
        conflicts_with = "checkpoints"
    )]
    engine: Engine,
    /// Slots of each host; with --engine slurm, the most that jobs may ask for together while they wait or run in Slurm
    /// [default: the number of processors; 1000 with --engine slurm].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: Option<u32>,
    /// Where to create control groups of jobs, as with `forebay agent`.
    #[arg(long, value_name = "own|none|DIR", default_value_t = Parent::Own)]
    cgroup: Parent,
    /// Directory to which checkpoints of jobs are shipped, or none [default: data/.checkpoints of the file system that is
    /// mounted, that of --mount or of the cluster].
    #[arg(long, value_name = "DIR|none")]
    checkpoints: Option<PathBuf>,
    #[command(flatten)]
    monitors: Monitors,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Stop a grid, or the part of it on this node of a cluster.
///
/// Fails while jobs are running, unless --now kills them; rerunnable ones start again after the next `forebay up`.
/// Waiting jobs stay in their queues. A file system that `up --mount` mounted is unmounted last; one that
/// `forebay mount` mounted stays mounted.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay down /srv/jobs\n  forebay down /srv/jobs --now")]
pub struct Down {
    /// Folder of the grid.
    root: PathBuf,
    /// Kill the running jobs.
    #[arg(long)]
    now: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Name of the host that stands for a Slurm cluster, and the slots of jobs that it takes by default.
const SLURM: &str = "slurm";
const SLURM_SLOTS: u32 = 1000;

const STEP: Duration = Duration::from_millis(20);

/// Steps that a daemon may take to begin or to end.
const STEPS_MAX: u32 = 1500;

/// How often a lock is looked at that does not name its holder.
const TRIES_MAX: u32 = 50;

/// Tries until it is done; whether it was.
pub fn in_time(mut done: impl FnMut() -> bool) -> bool {
    (0..STEPS_MAX).any(|_| {
        let ready = done();
        if !ready {
            std::thread::sleep(STEP);
        }
        ready
    })
}

/// Waits until daemons are ready that were started together; an error as soon as one of them has ended.
pub fn await_daemons(
    home: &GridHome,
    daemons: &mut [Background],
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    let mut ended = Ok(());
    let done = in_time(|| {
        ended = daemons.iter_mut().try_for_each(|daemon| {
            daemon.check().with_context(|| {
                format!("the daemon that logs to {} ended", daemon.log().display())
            })
        });
        ended.is_err() || ready()
    });
    ended?;
    ensure!(done, "not all daemons started in time; see the logs in {}", home.folder().display());
    Ok(())
}

/// Refuses a folder that others could change, before anything is made in it or above it.
fn check_root(root: &Path) -> Result<()> {
    if root.symlink_metadata().is_ok() {
        return trust::check_folder(root);
    }
    match root.parent() {
        Some(above) if above.as_os_str().is_empty() => trust::check_above(Path::new(".")),
        Some(above) => trust::check_above(above),
        None => Ok(()),
    }
    .with_context(|| root.display().to_string())
}

/// Starts the controller with its supervisor, unless one answers. One that was just killed may still hold its lock.
fn start_controller(home: &GridHome, root: &Path, begin: Begin, monitors: &Monitors) -> Result<()> {
    let nobody = || holder(&home.lock()).is_none() && holder(&home.supervisor()).is_none();
    let answers = || Client::is_answered(home);
    let mut daemons = Vec::new();
    if in_time(|| answers() || nobody()) && !answers() {
        home.check_journal(begin)?;
        settings::read(home)?;
        let log = home.folder().join("controller.log");
        let monitors = monitors.arguments()?;
        let mut arguments = vec!["controller".as_ref(), root.as_os_str(), "--supervise".as_ref()];
        arguments.extend(monitors.iter().map(OsString::as_os_str));
        arguments.extend((begin == Begin::Anew).then_some(OsStr::new("--new")));
        daemons.push(Background::start::<&OsStr>(&arguments, &log)?);
    } else if begin == Begin::Anew {
        bail!(
            "--new: a controller of {} is already running; stop it with forebay down",
            root.display()
        );
    }
    await_daemons(home, &mut daemons, answers)
}

impl Up {
    pub fn run(self) -> Result<ExitCode> {
        let is_node = self.on_nodes.is_named()
            || GridHome::of(&self.root).is_ok_and(|home| home.cluster().exists());
        ensure!(
            self.hosts > 0 || is_node,
            "--hosts 0 applies only to a node of a cluster: a grid on one machine needs a host"
        );
        ensure!(
            self.engine == Engine::Agent || self.hosts == 1,
            "--engine slurm: Slurm is one host of the grid, however many nodes it has; omit --hosts"
        );
        check_root(&self.root)?;
        self.monitors.listen()?;
        let areas = self.mount.as_deref().map(|place| self.mount_at(place)).transpose()?;
        if !self.root.exists() {
            std::fs::create_dir(&self.root).with_context(|| self.root.display().to_string())?;
        }
        let root = self.root.canonicalize()?;
        let home = GridHome::guarded(&root)?;
        home.make()?;
        let begin = if self.new { Begin::Anew } else { Begin::First };
        if let Some(cluster) = self.on_nodes.cluster(&home)? {
            return self.run_on_node(&home, &cluster, &root, begin);
        }
        if self.engine == Engine::Slurm {
            name_slurm(&home)?;
        }
        start_controller(&home, &root, begin, &self.monitors)?;
        let (mut agents, there) = self.start_agents(&home, &root, areas.as_ref())?;
        let wanted = usize::try_from(self.hosts)?;
        await_daemons(&home, &mut agents, || {
            let hosts = Client::connect(&home).and_then(|mut client| client.ask(&Ask::Hosts));
            let Ok(Answer::Hosts { hosts, .. }) = hosts else { return false };
            hosts.iter().filter(|host| host.state == HostState::Up).count() >= wanted
        })?;
        // Known once they have joined: a controller that was started again knows no slots before.
        if let Some(slots) = self.slots {
            refuse_others(&mut Client::connect(&home)?, &there, slots, &self.root)?;
        }
        self.check_metrics()?;
        for warning in settings::warnings(&home, &settings::read(&home)?) {
            note!("forebay: {warning}");
        }
        if self.json {
            crate::output::put_json_line(
                &serde_json::json!({ "root": root, "hosts": self.hosts }),
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Slots of each host.
    fn slots(&self) -> Result<u32> {
        match (self.slots, self.engine) {
            (Some(slots), _) => Ok(slots),
            (None, Engine::Agent) => {
                Ok(u32::try_from(std::thread::available_parallelism()?.get())?)
            }
            (None, Engine::Slurm) => Ok(SLURM_SLOTS),
        }
    }

    /// Starts the agents that do not run; their processes, and the names of those that were there.
    fn start_agents(
        &self,
        home: &GridHome,
        root: &Path,
        areas: Option<&(PathBuf, PathBuf)>,
    ) -> Result<(Vec<Background>, Vec<String>)> {
        let slots = self.slots()?.to_string();
        let cgroup = self.cgroup.to_string();
        let mount = self.mount.as_deref().map(Path::canonicalize).transpose()?;
        let checkpoints = self.checkpoints_at(mount.as_deref())?;
        let checkpoints = checkpoints.filter(|_| self.engine == Engine::Agent);
        let (mut agents, mut there) = (Vec::new(), Vec::new());
        for number in 1..=self.hosts {
            let name = match self.engine {
                Engine::Agent => format!("host{number}"),
                Engine::Slurm => SLURM.to_owned(),
            };
            if holder(&home.hosts().join(&name).join("lock")).is_some() {
                there.push(name);
                continue;
            }
            let words = ["--name", &name, "--slots", &slots, "--cgroup", &cgroup].map(OsStr::new);
            let mut arguments = vec![OsStr::new("agent"), root.as_os_str()];
            arguments.extend(words);
            if self.engine == Engine::Slurm {
                arguments.extend(["--engine", "slurm"].map(OsStr::new));
            }
            let monitors = self.monitors_of(number)?.arguments()?;
            arguments.extend(monitors.iter().map(OsString::as_os_str));
            if let Some(place) = &checkpoints {
                arguments.extend([OsStr::new("--checkpoints"), place.as_os_str()]);
            }
            if let Some((work, util)) = areas {
                arguments.extend([OsStr::new("--work"), work.as_os_str()]);
                arguments.extend([OsStr::new("--util"), util.as_os_str()]);
            }
            let log = home.folder().join(format!("{name}.log"));
            agents.push(Background::start(&arguments, &log)?);
        }
        let source = io_wait_source();
        if self.engine == Engine::Agent && !agents.is_empty() && source.starts_with("not known") {
            note!("forebay: time that jobs wait for I/O: {source}");
        }
        Ok((agents, there))
    }

    /// Starts a node's part of the grid of a cluster.
    fn run_on_node(
        &self,
        home: &GridHome,
        cluster: &Cluster,
        root: &Path,
        begin: Begin,
    ) -> Result<ExitCode> {
        ensure!(self.hosts <= 1, "a node of a cluster is one host: --hosts 1, or 0 for none");
        let slots = self.slots()?.to_string();
        let cgroup = self.cgroup.to_string();
        let mut options = ["--slots", &slots, "--cgroup", &cgroup].map(OsStr::new).to_vec();
        let is_slurm = self.engine == Engine::Slurm;
        if is_slurm {
            options.extend(["--engine", "slurm"].map(OsStr::new));
        }
        let files = Home::at(&cluster.node.join("fs")).ok();
        let mount = files.and_then(|files| mounts::of_home(&files)).map(|mount| mount.mountpoint);
        let checkpoints = self.checkpoints_at(mount.as_deref())?.filter(|_| !is_slurm);
        if let Some(place) = &checkpoints {
            options.extend([OsStr::new("--checkpoints"), place.as_os_str()]);
        }
        // Areas of jobs in Slurm are in ROOT, which all of its nodes reach.
        let areas = if self.hosts == 1 && !is_slurm { areas_on_node(cluster)? } else { None };
        if let Some((work, util)) = &areas {
            options.extend([OsStr::new("--work"), work.as_os_str()]);
            options.extend([OsStr::new("--util"), util.as_os_str()]);
        }
        let of_agent = self.monitors_of(1)?.arguments()?;
        options.extend(of_agent.iter().map(OsString::as_os_str));
        let agent = (self.hosts == 1).then_some(&options[..]);
        let wanted = Wanted { root, agent, begin, monitors: &self.monitors };
        let node = self.on_nodes.start(home, cluster, &wanted)?;
        if let (Some(slots), 1) = (self.slots, self.hosts) {
            refuse_others(
                &mut Client::connect(home)?,
                std::slice::from_ref(&node),
                slots,
                &self.root,
            )?;
        }
        if self.json {
            let told = serde_json::json!({ "root": root, "node": node, "hosts": self.hosts });
            crate::output::put_json_line(&told)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Where checkpoints are shipped to, if the file system of the grid is mounted here.
    fn checkpoints_at(&self, mountpoint: Option<&Path>) -> Result<Option<PathBuf>> {
        match &self.checkpoints {
            Some(place) if place.as_os_str() == "none" => Ok(None),
            Some(place) => Ok(Some(std::path::absolute(place)?)),
            None => {
                let data = mountpoint.map(|mountpoint| mountpoint.join("data"));
                Ok(data.filter(|data| data.is_dir()).map(|data| data.join(".checkpoints")))
            }
        }
    }

    /// Where the agent of a host answers monitors: the controller and the file system come before it.
    fn monitors_of(&self, number: u32) -> Result<Monitors> {
        self.monitors.after(u16::try_from(number)?.saturating_add(1))
    }

    /// Refuses daemons that were there before and do not answer monitors.
    fn check_metrics(&self) -> Result<()> {
        self.monitors.check_served("the controller")?;
        if self.mount.is_some() {
            self.monitors.after(1)?.check_served("the file system")?;
        }
        (1..=self.hosts).try_for_each(|number| {
            self.monitors_of(number)?.check_served(&format!("the agent host{number}"))
        })
    }

    /// Makes the file system if there is none, and mounts it; its places for work and utility files.
    fn mount_at(&self, place: &Path) -> Result<(PathBuf, PathBuf)> {
        check_mountpoint(place)?;
        if Home::at(&self.root).is_err() {
            crate::home::mkfs(&self.root, &[], None)?;
        }
        let home = Home::at(&self.root)?;
        // Of a daemon that died the mount is left, which the next daemon takes the place of.
        if home.try_lock()?.is_some() {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("mount").arg(&self.root).arg(place);
            command.args(self.transport.map(|choice| format!("--transport={choice}")));
            command.args(self.monitors.after(1)?.arguments()?);
            let status = command.status()?;
            if !status.success() {
                bail!("the file system in {} could not be mounted", self.root.display());
            }
            let grid = GridHome::of(&self.root)?;
            grid.make()?;
            let mark = grid.folder().join(MOUNTED);
            std::fs::write(&mark, place.canonicalize()?.as_os_str().as_encoded_bytes())
                .with_context(|| mark.display().to_string())?;
        } else {
            self.check_mount(&home, place)?;
        }
        let mount = mounts::of_home(&home).context("the file system is not mounted")?;
        Ok((area_below(&mount.mountpoint, "work")?, area_below(&mount.mountpoint, "util")?))
    }

    /// Refuses what the mount that is there is not.
    fn check_mount(&self, home: &Home, place: &Path) -> Result<()> {
        let place = place.canonicalize().with_context(|| place.display().to_string())?;
        if mounts::of_home(home).is_none_or(|mount| mount.mountpoint != place) {
            // Says where it is, and by which process.
            drop(home.lock()?);
        }
        let status = match control::ask(home.root(), &control::Ask::Status)? {
            control::Answer::Status(status) => status.mount,
            _ => None,
        };
        let now = status.map(|mount| mount.transport).unwrap_or_default();
        match self.transport {
            Some(choice @ (TransportChoice::Dev | TransportChoice::Uring))
                if choice.to_string() != now =>
            {
                bail!(
                    "{} is already mounted, with --transport {now}, not {choice}; stop it first (forebay down)",
                    self.root.display()
                )
            }
            _ => Ok(()),
        }
    }
}

/// In the folder of the grid: where `up` has mounted the file system.
const MOUNTED: &str = "mounted";

/// Finds out whether there is a directory to mount at, before anything is made.
fn check_mountpoint(place: &Path) -> Result<()> {
    match std::fs::metadata(place) {
        Ok(found) if found.is_dir() => Ok(()),
        // The mount of a daemon that died.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Ok(_) => bail!("--mount {} is not a directory", place.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("--mount {0}: there is no such directory; create it: mkdir {0}", place.display())
        }
        Err(error) => Err(error).with_context(|| format!("--mount {}", place.display())),
    }
}

/// Has the settings name the host that stands for Slurm. They are the user's own: where there are some, nothing is changed.
fn name_slurm(home: &GridHome) -> Result<()> {
    let path = home.settings();
    if !path.exists() {
        std::fs::write(&path, slurm_lines(SLURM)).with_context(|| path.display().to_string())?;
        if Client::is_answered(home) {
            match Client::connect(home)?.ask(&Ask::Reload)? {
                Answer::Here => {}
                answer => return Err(no_sense(&answer)),
            }
        }
    }
    let config = settings::read(home)?;
    let is_named =
        |host: &HostConfig| host.engine == HostEngine::Slurm && host.name.as_str() == SLURM;
    ensure!(
        config.hosts.iter().any(is_named),
        "--engine slurm: {} does not name the host that stands for Slurm; add these lines:\n{}",
        path.display(),
        slurm_lines(SLURM)
    );
    Ok(())
}

/// Refuses slots that hosts which run already do not have.
fn refuse_others(client: &mut Client, there: &[String], slots: u32, root: &Path) -> Result<()> {
    let hosts = match client.ask(&Ask::Hosts)? {
        Answer::Hosts { hosts, .. } => hosts,
        answer => return Err(no_sense(&answer)),
    };
    let other = hosts.iter().find(|host| {
        host.slots != slots && there.iter().any(|name| *name == host.name.to_string())
    });
    match other {
        Some(host) => bail!(
            "{} is already running, with {} slots: forebay down {} first, or omit --slots",
            host.name,
            host.slots,
            root.display()
        ),
        None => Ok(()),
    }
}

/// Where agents make work areas in a fileset that every user may write to: a folder of this user's own, in which
/// nobody else can take a name before them.
fn area_below(mountpoint: &Path, fileset: &str) -> Result<PathBuf> {
    let place = mountpoint.join(fileset).join("jobs");
    folder(&place, 0o711)?;
    Ok(place)
}

/// Where jobs on this node of a cluster have their work areas and utility files: in its own directories of the native filesets
/// work and util, where those are bound; none if the grid's own folder is to hold them.
fn areas_on_node(cluster: &Cluster) -> Result<Option<(PathBuf, PathBuf)>> {
    let node_home = cluster.node_home()?;
    let node = node_home.existing()?.name;
    let home = Home::at(node_home.folder())?;
    let Some(mount) = mounts::of_home(&home) else {
        note!(
            "forebay: the cluster is not mounted on this node: work areas of jobs are in the folder of the grid; mount it \
             before `forebay up` to have them in work/{node}"
        );
        return Ok(None);
    };
    let native = match control::ask(home.root(), &control::Ask::Status)? {
        control::Answer::Status(status) => status.mount.map(|mount| mount.native),
        _ => None,
    };
    let native = native.unwrap_or_default();
    let place = |fileset: &str| format!("{fileset}/{node}");
    let is_bound = |name: &str| native.iter().any(|one| one.fileset == name && one.is_bound);
    let (work, util) = (place("work"), place("util"));
    if !is_bound(&work) || !is_bound(&util) {
        return Ok(None);
    }
    Ok(Some((area_below(&mount.mountpoint, &work)?, area_below(&mount.mountpoint, &util)?)))
}

/// Sends a signal to the holder of a lock and waits until it is free.
fn stop(lock: &Path, signal: Signal) -> Result<()> {
    // One that has just taken the lock is about to write its number.
    let mut signalled = trust::signal_holder(lock, signal);
    for _ in 0..TRIES_MAX {
        if signalled.is_ok() {
            break;
        }
        std::thread::sleep(STEP);
        signalled = trust::signal_holder(lock, signal);
    }
    signalled?;
    if !in_time(|| holder(lock).is_none()) {
        bail!("the process that holds {} did not exit in time", lock.display());
    }
    Ok(())
}

/// Refuses the folder of a host that somebody else than root and this user could have written into: what is there names
/// processes to end.
fn check_host(folder: &Path) -> Result<()> {
    trust::check_owner(folder)?;
    trust::check_folder(folder)?;
    trust::check_owner(&folder.join("runs"))?;
    trust::check_folder(&folder.join("runs"))
}

/// How many jobs are on hosts. Jobs go on without a controller, and without agents.
fn busy(home: &GridHome) -> Result<usize> {
    // On a node of a cluster only its own jobs count: the others go on.
    if holder(&home.lock()).is_none() || Cluster::of(home)?.is_some() {
        return forebay_engine::jobs_that_run(home);
    }
    match Client::connect(home)?.ask(&Ask::Hosts)? {
        Answer::Hosts { hosts, .. } => Ok(hosts.iter().map(|host| host.tasks.len()).sum()),
        answer => Err(no_sense(&answer)),
    }
}

impl Down {
    pub fn run(self) -> Result<ExitCode> {
        let home = GridHome::of(&self.root)?;
        if !home.folder().is_dir() {
            bail!(
                "{} is not the folder of a grid: it has no folder named grid",
                self.root.display()
            );
        }
        let home = GridHome::guarded(&self.root)?;
        // Whoever may not look at its locks cannot tell that it runs.
        if let Err(error) = std::fs::File::open(home.lock())
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Err(error).with_context(|| home.lock().display().to_string());
        }
        if !self.now {
            let busy = busy(&home)?;
            if busy > 0 {
                let jobs =
                    if busy == 1 { "1 job is".to_owned() } else { format!("{busy} jobs are") };
                bail!("{jobs} running: wait for them to end, kill them, or give --now");
            }
        }
        // The controller first, so that nothing is started again elsewhere, and what would start it again before it.
        stop(&home.supervisor(), Signal::TERM)?;
        stop(&home.lock(), Signal::TERM)?;
        for entry in std::fs::read_dir(home.hosts()).into_iter().flatten() {
            let folder = entry?.path();
            check_host(&folder)?;
            stop(&folder.join("lock"), Signal::INT)?;
            // Of one whose agent was dead already.
            end_left_jobs(&folder)?;
        }
        stop(&home.relay_supervisor(), Signal::TERM)?;
        stop(&home.relay_lock(), Signal::TERM)?;
        let mark = home.folder().join(MOUNTED);
        if let Ok(place) = std::fs::read(&mark)
            && let Ok(files) = Home::at(&self.root)
            && let Some(mount) = mounts::of_home(&files)
            && mount.mountpoint.as_os_str().as_encoded_bytes() == place
        {
            let mut command = Command::new(std::env::current_exe()?);
            let place = mount.mountpoint.display();
            if !command.arg("umount").arg(&mount.mountpoint).status()?.success() {
                bail!("the grid is stopped, but {place} is still mounted: forebay umount {place}");
            }
        }
        let _ = std::fs::remove_file(&mark);
        if self.json {
            crate::output::put_json_line(&serde_json::json!({ "root": self.root }))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

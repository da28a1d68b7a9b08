//! `forebay controller`, `forebay agent`, `forebay relay` and the process that holds a job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use forebay_engine::agent::{self, nursery, watchdog};
use forebay_engine::cgroup::Parent;
use forebay_engine::cluster::Cluster;
use forebay_engine::home::{Begin, GridHome};
use forebay_engine::protocol::{Answer, Ask};
use forebay_engine::relay;
use forebay_engine::server::{self, settings};
use forebay_engine::shim::allocation;
use forebay_grid::config::HostEngine;
use forebay_grid::vocabulary::HostName;
use forebay_process::io_wait_source;

use super::supervise::{Kept, keep};
use super::{Which, no_sense, print_json};
use crate::background::log_to_standard_error;
use crate::monitors::Monitors;

/// Run the controller of a grid.
///
/// The controller decides which job runs where and when, and keeps its journal in ROOT/grid. `forebay up` starts
/// it in the background. It runs until SIGTERM; on SIGHUP it reads ROOT/grid/grid.toml again. If root runs it,
/// jobs run as the users who submitted them; otherwise only the user who runs it can submit jobs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay controller /srv/forebay
  forebay controller /srv/forebay --metrics 9464")]
pub struct Controller {
    /// Folder of the grid.
    root: PathBuf,
    /// Start the controller as a separate process, and restart it whenever it fails, as `forebay up` does.
    #[arg(long)]
    supervise: bool,
    /// Start an empty grid even if the journal of the grid in ROOT is missing: its jobs, history and schedules are lost.
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    monitors: Monitors,
}

/// Make the controller read its settings again.
///
/// The settings in ROOT/grid/grid.toml take effect at once, including for waiting jobs. If the file has an error,
/// it is reported with its line number and the old settings stay in force. Only root and the user who runs the
/// controller may do this.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay reload
  forebay reload --check        only report errors in the file; needs no controller")]
pub struct Reload {
    #[command(flatten)]
    which: Which,
    /// Only check the file.
    #[arg(long)]
    check: bool,
    /// Print JSON: the numbers of queues and hosts in the settings.
    #[arg(long)]
    json: bool,
}

/// Run an agent, which is one host of a grid.
///
/// The agent starts jobs when the controller orders it. `forebay up` starts it in the background. SIGTERM ends
/// the agent but not its jobs: the next agent with the same name takes them over. SIGINT also kills the jobs.
/// Jobs are killed if the controller or the agent is unreachable for longer than the lease.
///
/// With --engine slurm the host stands for a Slurm cluster: the agent hands each job to Slurm, and --slots is the most
/// that jobs may ask for together while they wait or run there. Such jobs continue while the agent, the controller or
/// slurmctld is down. See docs/slurm-mapping.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay agent /srv/forebay --name gridn1 --slots 8
  forebay agent /srv/forebay --name gridn1 --slots 8 --work /mnt/forebay/work
  forebay agent /srv/forebay --name gridn1 --slots 8 --checkpoints /mnt/forebay/data/.checkpoints
  forebay agent /shared/grid --name slurm --engine slurm --slots 1000")]
pub struct Agent {
    /// Folder of the grid.
    root: PathBuf,
    /// Name of the host; required on a grid of one machine [default: the name of the node].
    #[arg(long, value_name = "HOST", value_parser = |text: &str| text.parse::<HostName>())]
    name: Option<HostName>,
    /// Number of slots of the host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Directory for the work areas of jobs [default: ROOT/grid/work].
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Directory for the utility files of jobs [default: that of --work].
    #[arg(long, value_name = "DIR")]
    util: Option<PathBuf>,
    /// Directory to which checkpoints of jobs are shipped, which all hosts of the grid reach; the directory above it must
    /// exist [default: none].
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
    /// Where to create control groups of jobs: below the agent's own group, below a cgroup v2 folder (its path, or that below
    /// the mount of cgroup v2), or none.
    #[arg(long, value_name = "own|none|DIR", default_value_t = Parent::Own, overrides_with = "cgroup")]
    cgroup: Parent,
    /// What runs the jobs of the host: the agent itself, or Slurm.
    #[arg(long, value_name = "agent|slurm", default_value = "agent", hide_possible_values = true)]
    engine: Engine,
    #[command(flatten)]
    monitors: Monitors,
}

/// Run the relay of a node, which connects it with the controller of a cluster's grid.
///
/// Through the relay, commands and the agent of the node reach the leading controller, wherever it runs. The relay
/// learns from the kernel which user sends a command, and tells the controller. It listens on the address of the node,
/// at the relays' port, for the relays of other nodes. `forebay up --cluster` starts it in the background. It runs until SIGTERM.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay relay /srv/jobs")]
pub struct Relay {
    /// Folder of the grid on this node.
    root: PathBuf,
    /// Start the relay as a separate process, and restart it whenever it fails, as `forebay up` does.
    #[arg(long)]
    supervise: bool,
}

/// Start processes that hold jobs. Agents start this.
#[derive(clap::Args)]
pub struct JobShim {
    /// Start a process for each run that is requested on standard input.
    #[arg(long, required_unless_present_any = ["watchdog", "allocation"], conflicts_with_all = ["watchdog", "allocation"])]
    nursery: bool,
    /// End the jobs of the host when its lease is over, if nobody else does.
    #[arg(long, conflicts_with = "allocation")]
    watchdog: bool,
    /// Hold the job of the run in FOLDER, inside an allocation of Slurm.
    #[arg(long)]
    allocation: bool,
    /// Folder of the agent, which tells this process from others; of the run with --allocation.
    folder: PathBuf,
}

impl Controller {
    pub fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        let begin = if self.new { Begin::Anew } else { Begin::First };
        if self.supervise {
            let home = GridHome::guarded(&self.root)?;
            self.monitors.listen()?;
            let kept = Kept::Controller(begin);
            return keep(&home, &self.root.canonicalize()?, kept, &self.monitors);
        }
        // Each connection takes two descriptors.
        crate::tuning::raise_file_limit();
        server::serve(&GridHome::guarded(&self.root)?, begin, self.monitors.listen()?)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Relay {
    pub fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        let home = GridHome::guarded(&self.root)?;
        if self.supervise {
            return keep(&home, &self.root.canonicalize()?, Kept::Relay, &Monitors::default());
        }
        // SAFETY: ignoring a signal is always sound. A peer that is gone is found out by the error of a write.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        crate::tuning::raise_file_limit();
        relay::serve(&home)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Reload {
    pub fn run(self) -> Result<ExitCode> {
        // The controller would find the same fault; found here it needs no controller.
        let config = settings::read(&self.which.home()?)?;
        if !self.check {
            match self.which.ask(&Ask::Reload)? {
                Answer::Here => {}
                answer => return Err(no_sense(&answer)),
            }
        }
        for warning in settings::warnings(&self.which.home()?, &config) {
            note!("forebay: {warning}");
        }
        let (queues, hosts) = (config.queues.len(), config.hosts.len());
        if self.json {
            return print_json(&serde_json::json!({ "queues": queues, "hosts": hosts }));
        }
        outln!("queues: {queues}; hosts with their own settings: {hosts}");
        Ok(ExitCode::SUCCESS)
    }
}

impl Agent {
    pub fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        let home = GridHome::guarded(&self.root)?;
        let work = match self.work {
            Some(work) => std::path::absolute(work)?,
            None => home.work(),
        };
        let util = match self.util {
            Some(util) => std::path::absolute(util)?,
            None => work.clone(),
        };
        let checkpoints =
            self.checkpoints.map(|place| folder_of_grid(&home, &place)).transpose()?;
        let name = match (self.name, Cluster::of(&home)?) {
            (Some(name), _) => name,
            (None, Some(cluster)) => {
                let node = cluster.node_home()?.existing()?.name;
                node.parse().map_err(anyhow::Error::msg)?
            }
            (None, None) => {
                bail!("--name is missing: choose a name for this host, as in --name gridn1")
            }
        };
        let engine = self.engine.into();
        check_engine(&home, &name, engine)?;
        // Whoever finds no such times in `forebay usage` looks here for the reason.
        tracing::info!("times that jobs wait for I/O: {}", io_wait_source());
        agent::run(agent::Settings {
            home,
            root: self.root.canonicalize()?,
            name,
            slots: self.slots,
            work,
            util,
            checkpoints,
            cgroup: self.cgroup,
            monitors: self.monitors.listen()?,
            engine,
            shim: (std::env::current_exe()?, "job-shim".to_owned()),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What runs the jobs of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The agent.
    Agent,
    /// Slurm.
    Slurm,
}

impl From<Engine> for HostEngine {
    fn from(engine: Engine) -> HostEngine {
        match engine {
            Engine::Agent => HostEngine::Agent,
            Engine::Slurm => HostEngine::Slurm,
        }
    }
}

/// The lines of the settings that say that a host runs its jobs through Slurm.
pub fn slurm_lines(name: &str) -> String {
    format!("[[host]]\nname = \"{name}\"\nengine = \"slurm\"\n")
}

/// Refuses an engine that is not the one which the settings name. In a cluster the controllers have settings of their own: there
/// the agent says what its engine is when it joins, and is refused if those of the leading one say otherwise.
fn check_engine(home: &GridHome, name: &HostName, engine: HostEngine) -> Result<()> {
    let config = settings::read(home)?;
    let listed = config.hosts.iter().find(|host| host.name == *name);
    let said = listed.map_or(HostEngine::Agent, |host| host.engine);
    let path = home.settings();
    match (said, engine) {
        (HostEngine::Agent, HostEngine::Slurm) if home.cluster().exists() => Ok(()),
        (HostEngine::Agent, HostEngine::Slurm) => bail!(
            "--engine slurm: {} does not say that host {name} runs its jobs through Slurm; add these lines and run \
             forebay reload:\n{}",
            path.display(),
            slurm_lines(name.as_str())
        ),
        (HostEngine::Slurm, HostEngine::Agent) => bail!(
            "{} says that host {name} runs its jobs through Slurm: give --engine slurm, or use another name",
            path.display()
        ),
        (HostEngine::Agent, HostEngine::Agent) | (HostEngine::Slurm, HostEngine::Slurm) => Ok(()),
    }
}

/// The folder of a grid in the directory for checkpoints: of several grids that share it each has its own.
fn folder_of_grid(home: &GridHome, place: &Path) -> Result<PathBuf> {
    let name = match Cluster::of(home)? {
        Some(cluster) => cluster.node_home()?.existing()?.cluster_name,
        None => {
            home.make()?;
            home.id()?
        }
    };
    Ok(std::path::absolute(place)?.join(name))
}

impl JobShim {
    pub fn run(self) -> Result<ExitCode> {
        // That is the agent's own: what goes wrong with a job is in the log of its host.
        log_to_standard_error()?;
        if self.allocation {
            allocation::serve(&self.folder)?;
        } else if self.watchdog {
            watchdog::serve(&self.folder)?;
        } else {
            nursery::serve()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

//! `forebay controller`, `forebay agent` and the process that holds a job.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_engine::home::GridHome;
use forebay_engine::message::{Answer, Ask};
use forebay_engine::{agent, nursery, server, settings};
use forebay_grid::vocabulary::HostName;
use forebay_study::process::io_wait_source;

use super::{Which, no_sense, print_json};
use crate::background::log_to_standard_error;

/// Run the controller of a grid.
///
/// It decides which job runs where and when, and keeps all it has promised in ROOT/grid. It runs until
/// SIGTERM; SIGHUP makes it read ROOT/grid/grid.toml again. If it is root, jobs run as the users who
/// submit them; otherwise only its own user can submit. `forebay up` starts it in the background.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay controller /srv/grid")]
pub struct Controller {
    /// Folder of the grid.
    root: PathBuf,
}

/// Have the controller read its settings again.
///
/// Those of ROOT/grid/grid.toml count from then on, for jobs that wait as well. If there is a fault in them it is said, with its line,
/// and those from before go on to count. For root, and the user whose grid it is.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay reload
  forebay reload --check        only say whether there is a fault; no controller is asked")]
pub struct Reload {
    #[command(flatten)]
    which: Which,
    /// Only check them.
    #[arg(long)]
    check: bool,
    /// Print JSON: how many queues and hosts the settings name.
    #[arg(long)]
    json: bool,
}

/// Run an agent, which is one host of a grid.
///
/// It starts jobs as the controller tells it. SIGTERM ends the agent and leaves its jobs alone: the next
/// agent of the same name finds them. SIGINT ends its jobs too. Jobs end by force when the controller was
/// away, or the agent, for longer than the lease.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay agent /srv/grid --name gridn1 --slots 8
  forebay agent /srv/grid --name gridn1 --slots 8 --work /grid/work --util /grid/util")]
pub struct Agent {
    /// Folder of the grid.
    root: PathBuf,
    /// Name of the host.
    #[arg(long, value_name = "HOST", value_parser = |text: &str| text.parse::<HostName>())]
    name: HostName,
    /// Slots of the host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: u32,
    /// Where work areas of jobs are made; ROOT/grid/work if left out.
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where areas for utility files are made; as --work if left out.
    #[arg(long, value_name = "DIR")]
    util: Option<PathBuf>,
}

/// Start processes that hold jobs. Agents start this.
#[derive(clap::Args)]
pub struct JobShim {
    /// Start a process for each run that is asked for through standard input.
    #[arg(long, required = true)]
    nursery: bool,
    /// Folder of the agent, which tells this process from others.
    folder: PathBuf,
}

impl Controller {
    pub fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        // Each connection takes two descriptors.
        crate::tuning::raise_file_limit();
        server::serve(&GridHome::of(&self.root)?)?;
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
        let (queues, hosts) = (config.queues.len(), config.hosts.len());
        if self.json {
            return print_json(&serde_json::json!({ "queues": queues, "hosts": hosts }));
        }
        outln!("queues: {queues}; hosts with settings of their own: {hosts}");
        Ok(ExitCode::SUCCESS)
    }
}

impl Agent {
    pub fn run(self) -> Result<ExitCode> {
        log_to_standard_error()?;
        let home = GridHome::of(&self.root)?;
        let work = match self.work {
            Some(work) => std::path::absolute(work)?,
            None => home.work(),
        };
        let util = match self.util {
            Some(util) => std::path::absolute(util)?,
            None => work.clone(),
        };
        // Whoever finds no such times in `forebay usage` looks here for the reason.
        tracing::info!("times that jobs wait for I/O: {}", io_wait_source());
        agent::run(agent::Settings {
            home,
            root: self.root.canonicalize()?,
            name: self.name,
            slots: self.slots,
            work,
            util,
            shim: (std::env::current_exe()?, "job-shim".to_owned()),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl JobShim {
    pub fn run(self) -> Result<ExitCode> {
        nursery::serve()?;
        Ok(ExitCode::SUCCESS)
    }
}

//! The daemon of a node without a mount: `forebay cluster start` and `stop`.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use forebay_base::time::SystemClock;
use forebay_engine::files::holder;
use forebay_engine::trust;
use forebay_node::home::NodeFile;
use forebay_node::members::{NoFilesets, Phase};
use forebay_node::settings::Settings;
use forebay_node::{Member, MemberStart, NodeHome};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Which, tools};
use crate::background::{Background, log_to_standard_error};

/// How often a daemon is looked at that begins or ends.
const STEP: Duration = Duration::from_millis(50);

/// Looks at a daemon that begins or ends.
const STEPS_MAX: u32 = 1200;

/// How long a daemon that is stopped hands filesets over.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Start the daemon of this node.
///
/// The daemon renews the node's lease and certificate, admits nodes that join, and answers other nodes. init and join start it;
/// after a restart of the machine, start it again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster start
  forebay cluster start --foreground   in a unit of systemd")]
pub struct Start {
    #[command(flatten)]
    which: Which,
    /// Stay in the foreground, and log to standard error.
    #[arg(long)]
    foreground: bool,
}

/// Stop the daemon of this node.
///
/// The node stays a member. Other nodes see that it has stopped when its lease ends, after 10 seconds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay cluster stop")]
pub struct Stop {
    #[command(flatten)]
    which: Which,
}

impl Start {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        if self.foreground {
            return serve(home, &file);
        }
        if !start(&home, &file)? {
            note!("forebay: the daemon of {} is already running", file.cluster_name);
        }
        Ok(())
    }
}

/// Whether the daemon answers.
fn answers(home: &NodeHome, file: &NodeFile) -> bool {
    tools().is_ok_and(|tools| tools.status_of(home, file, (file.node, &file.address)).is_ok())
}

/// Starts the daemon of a node in the background, unless it is running, and waits until it answers. Whether it was started.
pub fn start(home: &NodeHome, file: &NodeFile) -> Result<bool> {
    if holder(&home.lock()).is_some() {
        return Ok(false);
    }
    let Some(base) = home.folder().parent() else { bail!("the node's folder has no parent") };
    let words = ["cluster", "start", "--foreground", "--name", &file.cluster_name, "--home"];
    let mut arguments: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
    arguments.push(base.as_os_str());
    let mut daemon = Background::start(&arguments, &home.log())?;
    for _ in 0..STEPS_MAX {
        daemon.check()?;
        if answers(home, file) {
            return Ok(true);
        }
        std::thread::sleep(STEP);
    }
    bail!("the daemon does not answer; see {}", home.log().display())
}

/// Stops the daemon of a node and waits for its end. Whether there was one.
pub fn stop(home: &NodeHome) -> Result<bool> {
    if !trust::signal_holder(&home.lock(), Signal::TERM)? {
        return Ok(false);
    }
    for _ in 0..STEPS_MAX {
        if holder(&home.lock()).is_none() {
            return Ok(true);
        }
        std::thread::sleep(STEP);
    }
    bail!("the daemon does not end; see {}", home.log().display())
}

impl Stop {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        ensure!(stop(&home)?, "the daemon of {} is not running", file.cluster_name);
        Ok(())
    }
}

/// Is the node until a signal or the end of its membership.
fn serve(home: NodeHome, file: &NodeFile) -> Result<()> {
    log_to_standard_error()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    crate::tuning::raise_file_limit();
    let member = Member::start(MemberStart {
        home,
        services: Vec::new(),
        ownership: Arc::new(NoFilesets),
        weight: None,
        settings: Settings::default(),
        protocol: forebay_node::protocol_settings(),
        clock: Arc::new(SystemClock),
    })?;
    tracing::info!(
        cluster = file.cluster_name,
        node = file.node.0,
        name = file.name,
        address = file.address,
        "the node answers"
    );
    loop {
        match member.wait_for_end(Duration::from_millis(200)) {
            Phase::Working => {}
            Phase::Stopped => return Ok(()),
            Phase::Ended(reason) => bail!("{reason}"),
        }
        if signals.pending().next().is_some() {
            tracing::info!("a signal ends the daemon");
            member.stop(STOP_PATIENCE);
            return Ok(());
        }
    }
}

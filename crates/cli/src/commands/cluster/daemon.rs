//! The daemon of a node without a mount: `forebay cluster start` and `stop`.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use forebay_advisor::cluster::hosts;
use forebay_base::DiskId;
use forebay_base::channel::ServiceId;
use forebay_base::time::SystemClock;
use forebay_disk::remote::{DiskService, HANDLES_MAX};
use forebay_engine::files::holder;
use forebay_engine::trust;
use forebay_fs::fsck::NamedDisk;
use forebay_fs::record::DiskRecord;
use forebay_node::home::NodeFile;
use forebay_node::members::visit::DiskSpace;
use forebay_node::members::{NoFilesets, Phase};
use forebay_node::settings::Settings;
use forebay_node::{Member, MemberStart, NodeHome};
use parking_lot::Mutex;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Which, tools};
use crate::background::{Background, log_to_standard_error};
use crate::home::{open_own_disk, unlabel};
use crate::member::{life, machine, own_places, space_of};

/// How often a daemon is looked at that begins or ends.
const STEP: Duration = Duration::from_millis(50);

/// Looks at a daemon that begins or ends.
const STEPS_MAX: u32 = 1200;

/// How often a daemon looks for signals, and for disks that it does not serve yet.
const LOOK: Duration = Duration::from_millis(200);

/// How long a daemon that is stopped hands filesets over.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Start the daemon of this node.
///
/// The daemon renews the node's lease and certificate, admits nodes that join, and answers other nodes. init and join start it;
/// after a reboot of the machine, start it again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay cluster start
  forebay cluster start --foreground   in a systemd unit")]
pub struct Start {
    #[command(flatten)]
    which: Which,
    /// Stay in the foreground, and log to standard error.
    #[arg(long)]
    foreground: bool,
}

/// Stop the daemon of this node.
///
/// The node stays a member. Its etcd is stopped too, if the cluster was created with --start-etcd. Other nodes notice the
/// stop when the node's lease ends, after 10 seconds.
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
    bail!("the daemon does not exit; see {}", home.log().display())
}

impl Stop {
    pub fn run(self) -> Result<()> {
        let (home, file) = self.which.node()?;
        let was_running = stop(&home)?;
        // The daemon needs it until its end.
        let had_etcd = super::etcd::stop(&home)?;
        ensure!(was_running || had_etcd, "the daemon of {} is not running", file.cluster_name);
        Ok(())
    }
}

/// Is the node until a signal or the end of its membership.
fn serve(home: NodeHome, file: &NodeFile) -> Result<()> {
    log_to_standard_error()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    crate::tuning::raise_file_limit();
    super::etcd::ensure(&home, file)?;
    let disks = Arc::new(DiskService::new(machine()?, life()?, HANDLES_MAX));
    let own = Arc::<Mutex<Vec<NamedDisk>>>::default();
    let (reported, examined) = (Arc::clone(&own), Arc::clone(&own));
    // A disk that hangs keeps whoever asks it, not those who only want the list.
    let report = move || -> Vec<DiskSpace> {
        let own = reported.lock().clone();
        own.iter().map(space_of).collect()
    };
    let examine = move || {
        let own = examined.lock().clone();
        hosts::report(own.iter().map(|(_, disk)| disk.describe().location.into()))
    };
    let member = Member::start(MemberStart {
        home,
        services: vec![(ServiceId::Disks, Arc::clone(&disks) as _)],
        ownership: Arc::new(NoFilesets {
            disks: Some(Arc::new(report)),
            host: Some(Arc::new(examine)),
        }),
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
        offer_disks(&member, &disks, &own);
        match member.wait_for_end(LOOK) {
            Phase::Working => {}
            Phase::Stopped => return Ok(()),
            Phase::Ended(reason) => bail!("{reason}"),
        }
        if signals.pending().next().is_some() {
            tracing::info!("a signal ends the daemon");
            member.stop(STOP_PATIENCE);
            // A mount that waits for the node's lock opens the disks next: they are let go of together, by the end of this
            // process.
            std::process::exit(0);
        }
    }
}

/// Serves no more what is a disk of the cluster no more. A directory without objects loses its label.
fn withdraw_removed(
    member: &Member,
    places: &[(String, String)],
    service: &DiskService,
    own: &Mutex<Vec<NamedDisk>>,
) {
    let is_there = |uuid: &str| places.iter().any(|(there, _)| there == uuid);
    let removed: Vec<NamedDisk> = {
        let mut own = own.lock();
        let removed = own.iter().filter(|(uuid, _)| !is_there(uuid)).cloned().collect();
        own.retain(|(uuid, _)| is_there(uuid));
        removed
    };
    for (uuid, disk) in removed {
        service.withdraw(&uuid);
        let record = DiskRecord::new(DiskId(0), &uuid, &disk.describe().location);
        disk.let_go();
        unlabel(&member.file().cluster.to_string(), &record);
    }
}

/// Serves the disks of this machine that are not served yet. Those that the daemon of a mount is just letting go of come later.
fn offer_disks(member: &Member, service: &DiskService, own: &Mutex<Vec<NamedDisk>>) {
    let places = own_places(member);
    withdraw_removed(member, &places, service, own);
    for (uuid, location) in places {
        if own.lock().iter().any(|(known, _)| *known == uuid) {
            continue;
        }
        match open_own_disk(&member.file().cluster.to_string(), &uuid, &location) {
            Ok(disk) => {
                service.offer(&uuid, Arc::clone(&disk));
                own.lock().push((uuid, disk));
            }
            Err(error) => tracing::debug!(%error, location, "a disk is not served yet"),
        }
    }
}

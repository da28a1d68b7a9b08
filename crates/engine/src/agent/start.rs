//! How an agent begins: its folders and locks, what an agent before it has left, its threads.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context as _, Result, bail};
use forebay_grid::config::HostEngine;
use forebay_grid::event::Memory;
use forebay_metrics::Server;
use forebay_process::machine::boot_id;
use forebay_process::user::is_root;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::areas::Areas;
use super::groups::{Keep, remember, sweep};
use super::nursery::Nursery;
use super::slurm::Slurm;
use super::space::Space;
use super::vigil::Vigil;
use super::watchdog::Watchdog;
use super::{Agent, CONNECT_PAUSE_MS, Input, Settings, Unsent, load, metrics};
use crate::area::{self, place};
use crate::cgroup::{self, Found, Parent, Places};
use crate::checkpoint;
use crate::cluster::Cluster;
use crate::files::{self, claim_soon, folder};
use crate::protocol::{Limited, Missing};
use crate::run::{self, Run};

/// Runs an agent until SIGTERM, which leaves its jobs alone, or SIGINT, which ends them.
///
/// # Errors
/// If it cannot begin: another one of this name runs, or a folder cannot be made.
pub fn run(settings: Settings) -> Result<()> {
    settings.home.make()?;
    let own = settings.home.hosts().join(settings.name.as_str());
    run::make_agent_folder(&own)?;
    let Some(_lock) = claim_soon(&own.join("lock"))? else {
        bail!("agent {} of this grid is already running", settings.name);
    };
    if settings.work.starts_with(settings.home.folder()) {
        folder(&settings.home.work(), if is_root() { 0o711 } else { 0o700 })?;
    }
    let mut claims = Vec::new();
    for area in [&settings.work, &settings.util] {
        std::fs::create_dir_all(area).with_context(|| area.display().to_string())?;
        claims.push(place::claim(&settings.home, area)?);
    }
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let (inputs, taken) = channel();
    let for_signals = inputs.clone();
    let obey = move || obey_signals(signals, &for_signals);
    std::thread::Builder::new().name("signals".to_owned()).spawn(obey)?;
    let in_slurm = settings.engine == HostEngine::Slurm;
    // Jobs in Slurm run on other machines, and their records are durable.
    let memory = if in_slurm { Memory::Kept } else { remember_boot(&own)? };
    let checkpoints = settings.checkpoints.clone();
    make_checkpoint_place(&settings)?;
    let places =
        area::Places { work: settings.work.clone(), util: settings.util.clone(), checkpoints };
    let areas = Areas::begin(places, settings.home.hosts(), inputs.clone())?;
    let free_max = usize::try_from(settings.slots).unwrap_or(usize::MAX);
    let nursery = Nursery::new(settings.shim.clone(), own.clone(), free_max);
    let watchdog = Watchdog::new(settings.shim.clone(), own.clone());
    let (groups, missing) =
        if in_slurm { Default::default() } else { find_groups(&settings, &own)? };
    let (slurm, found) = match in_slurm {
        true => {
            let (slurm, found) = Slurm::begin(&settings, own.clone(), inputs.clone())?;
            (Some(slurm), found)
        }
        false => (None, Vec::new()),
    };
    raise_file_limit();
    let figures = Arc::<metrics::Figures>::default();
    if let Some(listen) = settings.monitors.clone() {
        let name = settings.name.to_string();
        Server::start(listen, metrics::pages(name, settings.slots, Arc::clone(&figures)))?;
    }
    let address = address_of(&settings)?;
    let mut agent = Agent {
        settings,
        folder: own,
        address,
        memory,
        runs: BTreeMap::new(),
        stream: None,
        connection: 0,
        is_granted: false,
        warned: BTreeMap::new(),
        sent_ms: VecDeque::new(),
        lease_ms: 1000,
        wanted: Vec::new(),
        next_connect_ms: 0,
        connect_pause_ms: CONNECT_PAUSE_MS,
        meter: load::Meter::default(),
        nursery,
        watchdog,
        groups,
        missing,
        using: BTreeMap::new(),
        area_bytes: BTreeMap::new(),
        space: Space::begin(inputs.clone())?,
        vigil: Vigil::begin(inputs.clone())?,
        areas,
        slurm,
        notes_are_fresh: false,
        unsent: Unsent::default(),
        figures,
        inputs,
    };
    agent.find_runs()?;
    agent.find_in_slurm(found);
    agent.work(&taken)?;
    sweep(&agent.folder, Keep::Nothing)
}

/// Makes the folder of this grid for checkpoints. Commands of this machine find it by the file in the folder of the grid.
fn make_checkpoint_place(settings: &Settings) -> Result<()> {
    let mark = settings.home.checkpoints();
    let Some(place) = &settings.checkpoints else {
        let _ = std::fs::remove_file(&mark);
        return Ok(());
    };
    checkpoint::make_place(place)?;
    files::replace(&mark, place.as_os_str().as_encoded_bytes())?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&mark, readable).with_context(|| mark.display().to_string())
}

/// The name or number under which other hosts of the grid reach this one: what the node listens on, and without a cluster
/// the loopback interface, as all hosts are one machine then.
fn address_of(settings: &Settings) -> Result<String> {
    let Some(cluster) = Cluster::of(&settings.home)? else { return Ok("127.0.0.1".to_owned()) };
    let address = cluster.node_home()?.existing()?.address;
    let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
    Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

/// Finds out where the groups of jobs are made and what cannot be limited there, and says so; what an agent before this one
/// has left is ended.
fn find_groups(settings: &Settings, own: &Path) -> Result<(Option<Places>, Missing)> {
    let name = format!("forebay-{}-{}", settings.home.id()?, settings.name);
    let (groups, missing) = match cgroup::find(&settings.cgroup, &name) {
        Ok(Some(Found { places, missing })) => (Some(places), missing),
        Ok(None) => (None, Missing::new()),
        // Nobody has named these: they come with the defaults and with the packages.
        Err(error) if matches!(settings.cgroup, Parent::Own | Parent::Below(_)) => {
            let reason = format!("jobs have no control groups: {error:#}");
            tracing::warn!("{reason}");
            (None, Limited::ALL.map(|what| (what, reason.clone())).into())
        }
        Err(error) => return Err(error.context(format!("--cgroup {}", settings.cgroup))),
    };
    if let Some(groups) = &groups {
        tracing::info!(
            folder = %groups.unified.display(),
            memory = ?groups.memory,
            processors = ?groups.processors,
            processes = ?groups.processes,
            "jobs have control groups"
        );
        missing.iter().for_each(|(what, reason)| tracing::info!("{}: {reason}", what.lost()));
        remember(own, groups)?;
    }
    sweep(own, Keep::Current(groups.as_ref()))?;
    Ok((groups, missing))
}

/// Lets this process open as many files as it may: each job takes one.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

fn obey_signals(mut signals: Signals, inputs: &Sender<Input>) {
    for signal in signals.forever() {
        let input = if signal == SIGINT { Input::EndAll } else { Input::Leave };
        if inputs.send(input).is_err() {
            return;
        }
    }
}

/// Whether the machine runs since the agent last joined: if not, all its jobs are gone.
fn remember_boot(folder: &std::path::Path) -> Result<Memory> {
    let path = folder.join("boot");
    let before = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| path.display().to_string())?,
    };
    if before.trim() == boot_id()? {
        return Ok(Memory::Kept);
    }
    for (_, _, run) in Run::all(folder)? {
        if run.said()?.end.is_none() {
            run.remove();
        }
    }
    run::grant(folder, 0)?;
    Ok(Memory::Lost)
}

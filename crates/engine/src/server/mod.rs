//! The controller behind its socket. The kernel says which user is on the other side.
//!
//! Threads: the one that called [`serve`] is the controller; one accepts, one waits for signals, one looks for
//! files that flows wait for, one for each connection, one more for the orders of each
//! agent, and two more for each watcher.

pub mod arrival;
pub(crate) mod connections;
mod conversation;
mod filter;
pub mod metrics;
pub mod settings;
mod watcher;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Result, bail};
use forebay_base::time::SystemClock;
use forebay_grid::config::Config;
use forebay_metrics::{Listen, Server};
use forebay_process::user::is_root;
use forebay_store::logged::LoggedStore;
use forebay_store::redb::{RedbOptions, RedbStore};
use forebay_store::slate::SlateStores;
use forebay_store::{Store, StoreError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::causes::chain;
use crate::cluster::controllers::Presence;
use crate::cluster::follower::Follower;
use crate::cluster::leader::{self, Lead};
use crate::cluster::places::Places;
use crate::cluster::{self, Cluster, Seat};
use crate::controller::{Controller, Input};
use crate::files::claim_soon;
use crate::home::{Begin, GridHome};
use crate::journal::reserve::Reserve;
use crate::journal::{self, replay::Replay};
use crate::protocol::Answer;
use crate::protocol::budget::Budget;
use crate::protocol::socket;
use crate::server::connections::Connections;
use crate::server::conversation::{Door, converse};
use crate::server::filter::Filter;
use crate::user;

/// How often a thread that waits for the controller looks whether its peer is still there.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// On a cluster agents are without a controller for as long as the lease of one that led, and the start of the next one.
const LEASE_MIN_MS: u64 = 15_000;

/// Memory for pages of the journal.
const CACHE_BYTES: usize = 32 << 20;

/// Runs the controller of a grid until SIGTERM or SIGINT. SIGHUP makes it read its settings again. Monitors are answered
/// where `monitors` says. On a node of a cluster it stands by until it leads, and answers no monitors before that.
///
/// # Errors
/// If another one runs, the settings are bad, the journal is missing though there was a grid and it is not to begin anew,
/// or the journal cannot be read or written; in a cluster also if it does not lead any more.
pub fn serve(home: &GridHome, begin: Begin, monitors: Option<Listen>) -> Result<()> {
    home.make()?;
    let Some(_lock) = claim_soon(&home.lock())? else {
        bail!("a controller of {} is already running", home.folder().display());
    };
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let config = settings::read_to_begin(home)?;
    // SAFETY: umask always succeeds; no other thread makes files yet.
    unsafe { libc::umask(0o077) };
    let budget = Arc::new(Budget::new(config.general.user_messages_bytes_max));
    let (inputs, taken) = channel();
    let filter = Arc::new(Filter::new(&config.general));
    let site = Site { home: home.clone(), budget, filter, places: None };
    let front = Front { site, inputs, monitors };
    match Cluster::of(home)? {
        None => front.serve_alone(begin, config, (signals, &taken)),
        Some(cluster) => front.serve_in(&cluster, begin, (signals, &taken)),
    }
}

/// What all connections share.
#[derive(Clone)]
pub(super) struct Site {
    home: GridHome,
    budget: Arc<Budget>,
    filter: Arc<Filter>,
    /// Where files are, on a cluster.
    places: Option<Arc<Places>>,
}

/// What receives signals and connections for a controller.
#[derive(Clone)]
struct Front {
    site: Site,
    inputs: Sender<Input>,
    /// Where monitors are answered.
    monitors: Option<Listen>,
}

impl Front {
    /// A controller of one machine, with its journal in a file.
    fn serve_alone(
        self,
        begin: Begin,
        config: Config,
        (signals, taken): (Signals, &Receiver<Input>),
    ) -> Result<()> {
        let path = self.site.home.journal();
        self.site.home.check_journal(begin)?;
        let mut controller =
            Controller::open(open_journal(&self.site.home)?, config, Arc::new(SystemClock))?;
        let mut reserve = Reserve::of(&path)?;
        self.site.home.note_begun();
        let mode = if is_root() { 0o666 } else { 0o600 };
        let listener = reserve.lend(|| socket::listen(&self.site.home.socket(), mode))?;
        controller.keep_reserve(reserve);
        self.obey(signals)?;
        self.run(controller, taken, (listener, Door::Users, &self.site.home.socket()))
    }

    /// A controller of a cluster: once it leads, it opens the journal under its term.
    fn serve_in(
        mut self,
        cluster: &Cluster,
        begin: Begin,
        (signals, taken): (Signals, &Receiver<Input>),
    ) -> Result<()> {
        let seat = Seat::take(cluster, self.site.home.folder())?;
        self.site.places = Some(Arc::new(Places::new(&seat.book)));
        let _ = std::fs::remove_file(self.site.home.door());
        self.obey(signals)?;
        let _presence = Presence::begin(&seat)?;
        let mut is_told = false;
        // Told once, it is asked more than once.
        let is_told_to_end = || {
            is_told |= taken.try_iter().any(|input| matches!(input, Input::Stop));
            is_told
        };
        let stores = cluster::journal::stores(&seat)?;
        let mut follower = None;
        let stands_by = || {
            // Without it everything is read when this controller leads.
            follower = follower.take().or_else(|| Follower::begin(Arc::clone(&stores)).ok());
        };
        let lead = leader::campaign(&seat, is_told_to_end, stands_by);
        let ahead = follower.and_then(Follower::end);
        let Some(lead) = lead else { return Ok(()) };
        let served = self.serve_as((&seat, &*stores, ahead), &lead, begin, taken);
        lead.resign();
        served
    }

    /// A controller that leads, with what was read ahead of its journal.
    fn serve_as(
        &self,
        (seat, stores, ahead): (&Seat, &SlateStores, Option<Replay>),
        lead: &Lead,
        begin: Begin,
        taken: &Receiver<Input>,
    ) -> Result<()> {
        // They may have changed while it stood by.
        let config = settings::read_to_begin(&self.site.home)?;
        self.site.budget.set(config.general.user_messages_bytes_max);
        self.site.filter.set(&config.general);
        if config.general.lease.as_ms() < LEASE_MIN_MS {
            tracing::warn!(
                "the lease of {} is so short that running jobs are killed whenever another controller takes over: set lease to \
                 15 s or more in grid.toml",
                config.general.lease
            );
        }
        let store = cluster::journal::open(seat, stores, lead, begin)?;
        let clock = Arc::new(SystemClock);
        let mut controller = Controller::open_after(Arc::clone(&store), ahead, config, clock)?;
        controller.lead_while(lead.holds());
        let listener = socket::listen(&self.site.home.door(), 0o600)?;
        let served = self.run(controller, taken, (listener, Door::Relay, &self.site.home.door()));
        if let Err(error) = store.close() {
            tracing::warn!("the journal was not closed cleanly: {error}");
        }
        served
    }

    fn obey(&self, signals: Signals) -> Result<()> {
        let front = self.clone();
        let obey = move || obey_signals(signals, &front.site, &front.inputs);
        std::thread::Builder::new().name("signals".to_owned()).spawn(obey)?;
        Ok(())
    }

    /// Takes connections, and works until it is told to end.
    fn run<S: Store>(
        &self,
        mut controller: Controller<S>,
        taken: &Receiver<Input>,
        (listener, door, socket): (UnixListener, Door, &Path),
    ) -> Result<()> {
        if let Some(listen) = self.monitors.clone() {
            let user = user::name_of(rustix::process::geteuid().as_raw())?;
            Server::start(listen, metrics::pages(&self.inputs, &user, &controller.figures()))?;
        }
        let folder = self.site.home.folder();
        let grid = folder.parent().unwrap_or(folder).display().to_string();
        controller.notify_as(grid, self.inputs.clone());
        let for_arrivals = self.inputs.clone();
        std::thread::Builder::new()
            .name("arrivals".to_owned())
            .spawn(move || arrival::watch(&for_arrivals))?;
        let front = self.clone();
        std::thread::Builder::new()
            .name("accept".to_owned())
            .spawn(move || front.accept(&listener, door))?;
        tracing::info!(folder = %self.site.home.folder().display(), "the controller is ready");
        let result = controller.run(taken);
        let _ = std::fs::remove_file(socket);
        tracing::info!(?result, "the controller ends");
        result
    }

    fn accept(self, listener: &UnixListener, door: Door) {
        let connections = Arc::new(Connections::new());
        let front = Arc::new(self);
        for (number, stream) in (1..).zip(listener.incoming()) {
            let Ok(stream) = stream else {
                // Out of descriptors: others may close theirs.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
            // Those of the relay, which bounds them, are counted once it is known for whom they are.
            let admitted = match door {
                Door::Users => connections.admit(peer.uid).map(Some),
                Door::Relay => Ok(None),
            };
            let admitted = match admitted {
                Ok(admitted) => admitted,
                Err(reason) => {
                    let _ = socket::write(&stream, &Answer::Busy { reason });
                    continue;
                }
            };
            let (front, connections) = (Arc::clone(&front), Arc::clone(&connections));
            // Without a thread the connection is closed, and its client asks again.
            let name = format!("connection-{number}");
            let _ = std::thread::Builder::new().name(name).spawn(move || {
                let parts = (&front.site, &connections);
                let served = converse(stream, (number, door), parts, &front.inputs);
                if let Err(error) = served {
                    tracing::debug!("connection {number}: {error:#}");
                }
                drop(admitted);
            });
        }
    }
}

/// Opens the journal, or makes it, with the log that has its latest changes. A controller that is just being killed has it a moment longer.
fn open_journal(home: &GridHome) -> Result<LoggedStore<RedbStore>> {
    const TRIES: u32 = 200;
    let path = home.journal();
    let options = RedbOptions { cache_bytes: CACHE_BYTES };
    let mut tries = 1..TRIES;
    let store = loop {
        match RedbStore::open_with(&path, &options) {
            Err(StoreError::InUse(_)) if tries.next().is_some() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) if !path.exists() => break RedbStore::create_with(&path, &options)?,
            opened => break opened?,
        }
    };
    journal::mark_as_logged(&store)?;
    Ok(LoggedStore::open(store, home.journal_log())?)
}

/// What makes the settings of the file count, or why the old ones do.
fn reread(Site { home, budget, filter, .. }: &Site) -> Result<Input> {
    let read = settings::read(home);
    match &read {
        Ok(config) => {
            budget.set(config.general.user_messages_bytes_max);
            filter.set(&config.general);
            tracing::info!("settings reloaded: {} queues", config.queues.len());
            for warning in settings::warnings(home, config) {
                tracing::warn!("{warning}");
            }
        }
        Err(error) => {
            tracing::error!("settings not reloaded, the old ones stay in force: {}", chain(error));
        }
    }
    Ok(Input::Configured(Box::new(read?)))
}

fn obey_signals(mut signals: Signals, site: &Site, inputs: &Sender<Input>) {
    for signal in signals.forever() {
        let input = if signal == SIGHUP {
            let Ok(input) = reread(site) else { continue };
            input
        } else {
            Input::Stop
        };
        if inputs.send(input).is_err() {
            return;
        }
    }
}

//! One host: takes orders of the controller and gives each job to a shim.
//!
//! One thread decides; one reads orders, one waits for shims. All that must not be forgotten is on disk
//! (`runs`), so an agent that was killed finds its jobs again.

mod areas;
mod crew;
mod ending;
mod groups;
mod load;
pub mod nursery;
mod vigil;
pub mod watchdog;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_grid::event::{Joined, Memory, RunReport, RunStatus};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::{Attempt, HostName, TaskId};
use forebay_process::machine::boot_id;
use forebay_process::user::is_root;
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::agent::nursery::Nursery;
use crate::agent::watchdog::Watchdog;
use crate::area::{self, place};
use crate::cgroup::{self, Parent, Places};
use crate::files::{self, claim_soon, folder};
use crate::home::GridHome;
use crate::protocol::socket::{self, Reader};
use crate::protocol::{Ask, Launch, Order, Report, Using};
use crate::run::{self, End, Run, Task, uptime_ms};
use crate::trust;
use areas::Areas;
pub use ending::end_left_jobs;
use groups::{Keep, remember, sweep};
use vigil::Vigil;

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its grid.
    pub home: GridHome,
    /// ROOT.
    pub root: PathBuf,
    /// Its name.
    pub name: HostName,
    /// Its slots.
    pub slots: u32,
    /// Where work areas are made.
    pub work: PathBuf,
    /// Where areas for utility files are made.
    pub util: PathBuf,
    /// Below what the control groups of its jobs are made.
    pub cgroup: Parent,
    /// The program and first argument that start a nursery of shims, and the watchdog.
    pub shim: (PathBuf, String),
}

/// After which time a signal is tried again whose shim has not said its number yet.
const SIGNAL_AGAIN_MS: u64 = 10;

/// How long after a connection the next one is made at the earliest, and at the latest if none brings an order.
const CONNECT_PAUSE_MS: u64 = 50;
const CONNECT_PAUSE_MAX_MS: u64 = 2_000;

/// How long a controller may take to answer in any case: it may be busy.
const UNHEARD_MIN_MS: u64 = 10_000;

enum Input {
    Order {
        connection: u64,
        order: Order,
    },
    Lost {
        connection: u64,
    },
    Started {
        task: TaskId,
        attempt: Attempt,
        pid: Option<u32>,
    },
    Using {
        task: TaskId,
        attempt: Attempt,
        usage: Usage,
    },
    Ended {
        task: TaskId,
        attempt: Attempt,
        end: End,
    },
    /// The shim at the other end holds no job any more; it was told before what became of its last one.
    Free {
        line: OwnedFd,
    },
    Say(Report),
    Leave,
    EndAll,
}

/// How a run is, as far as the agent knows.
enum Status {
    Running,
    Stopped,
    Ended(End),
}

struct Agent {
    settings: Settings,
    folder: PathBuf,
    memory: Memory,
    runs: BTreeMap<(TaskId, Attempt), Status>,
    stream: Option<UnixStream>,
    connection: u64,
    /// When the messages were sent that no grant has answered yet.
    sent_ms: VecDeque<u64>,
    lease_ms: u64,
    /// Signals for shims that have not said their number yet.
    wanted: Vec<(TaskId, Attempt, Signal)>,
    /// Not before this time the next connection is made, and how long after one that brings no order.
    next_connect_ms: u64,
    connect_pause_ms: u64,
    meter: load::Meter,
    nursery: Nursery,
    watchdog: Watchdog,
    /// Where the groups of its jobs are made.
    groups: Option<Places>,
    /// What its runs use now, as far as their shims have said.
    using: BTreeMap<(TaskId, Attempt), Usage>,
    vigil: Vigil,
    areas: Areas,
    inputs: Sender<Input>,
}

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
    let memory = remember_boot(&own)?;
    let places = area::Places { work: settings.work.clone(), util: settings.util.clone() };
    let areas = Areas::begin(places, settings.home.hosts(), inputs.clone())?;
    let free_max = usize::try_from(settings.slots).unwrap_or(usize::MAX);
    let nursery = Nursery::new(settings.shim.clone(), own.clone(), free_max);
    let watchdog = Watchdog::new(settings.shim.clone(), own.clone());
    let groups = find_groups(&settings, &own)?;
    raise_file_limit();
    let mut agent = Agent {
        settings,
        folder: own,
        memory,
        runs: BTreeMap::new(),
        stream: None,
        connection: 0,
        sent_ms: VecDeque::new(),
        lease_ms: 1000,
        wanted: Vec::new(),
        next_connect_ms: 0,
        connect_pause_ms: CONNECT_PAUSE_MS,
        meter: load::Meter::default(),
        nursery,
        watchdog,
        groups,
        using: BTreeMap::new(),
        vigil: Vigil::begin(inputs.clone())?,
        areas,
        inputs,
    };
    agent.find_runs()?;
    agent.work(&taken)?;
    sweep(&agent.folder, Keep::Nothing)
}

/// Finds out where the groups of jobs are made, and says so; what an agent before this one has left is ended.
fn find_groups(settings: &Settings, own: &Path) -> Result<Option<Places>> {
    let name = format!("forebay-{}-{}", settings.home.id()?, settings.name);
    let groups = match cgroup::find(&settings.cgroup, &name) {
        Ok(groups) => groups,
        Err(error) if settings.cgroup == Parent::Own => {
            tracing::warn!("jobs have no control groups: {error:#}");
            None
        }
        Err(error) => return Err(error.context(format!("--cgroup {}", settings.cgroup))),
    };
    if let Some(groups) = &groups {
        tracing::info!(folder = %groups.unified.display(), memory = ?groups.memory, "jobs have control groups");
        remember(own, groups)?;
    }
    sweep(own, Keep::Current(groups.as_ref()))?;
    Ok(groups)
}

/// Lets this process open as many files as it may: each job takes one.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
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

impl Agent {
    /// Finds what an agent before this one has left.
    fn find_runs(&mut self) -> Result<()> {
        for (task, attempt, run) in Run::all(&self.folder)? {
            let held = run.is_held()?;
            let said = run.said()?;
            if !held && said.end.is_none() && !said.started {
                // The agent ended before the shim began: it was never started.
                run.remove();
                continue;
            }
            self.runs.insert((task, attempt), Status::Running);
            self.vigil.add_found(run, task, attempt, &said);
        }
        Ok(())
    }

    fn work(&mut self, taken: &Receiver<Input>) -> Result<()> {
        let mut next_load_ms = 0;
        loop {
            let now = uptime_ms();
            if self.stream.is_none() && self.next_connect_ms <= now {
                self.connect();
            }
            self.rejoin_if_unheard(now);
            self.meter.look(now);
            self.nursery.thin_out(now);
            if self.stream.is_some() && next_load_ms <= now {
                let load = self.meter.load(self.settings.slots, self.areas.free_mib());
                self.areas.measure_free();
                self.sent_ms.push_back(now);
                self.report(&Report::Load { load });
                self.report_use();
                if let Err(error) = self.watchdog.look_after() {
                    tracing::warn!("{error:#}");
                }
                next_load_ms = now + (self.lease_ms / 4).clamp(25, 5000);
            }
            self.send_wanted();
            let mut patience = if self.stream.is_some() { next_load_ms - now } else { 50 };
            if !self.wanted.is_empty() {
                patience = patience.min(SIGNAL_AGAIN_MS);
            }
            match taken.recv_timeout(Duration::from_millis(patience.max(1))) {
                Ok(Input::Leave) => return Ok(()),
                Ok(Input::EndAll) => return self.end_all(),
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Begins anew with a controller that answers nothing: half the lease is left to find another way to it.
    fn rejoin_if_unheard(&mut self, now_ms: u64) {
        let patience = (self.lease_ms / 2).max(UNHEARD_MIN_MS);
        if self.sent_ms.front().is_some_and(|sent| sent + patience <= now_ms)
            && self.stream.is_some()
        {
            tracing::warn!("the controller has not answered for {patience} ms");
            self.disconnect();
        }
    }

    /// Connects to the controller and says what is here. If it does not answer, it is asked again later.
    fn connect(&mut self) {
        let Ok(stream) = socket::connect(&self.settings.home.socket()) else { return };
        if let Err(error) = trust::check_peer(&stream) {
            tracing::error!("this is not the controller of this grid: {error:#}");
            self.next_connect_ms = uptime_ms() + CONNECT_PAUSE_MAX_MS;
            return;
        }
        let Ok(reading) = stream.try_clone() else { return };
        let _ = stream.set_write_timeout(Some(Duration::from_secs(10)));
        self.connection += 1;
        self.sent_ms.clear();
        self.sent_ms.push_back(uptime_ms());
        let runs = self.runs.iter().map(|((task, attempt), status)| RunReport {
            task: *task,
            attempt: *attempt,
            status: match status {
                Status::Running => RunStatus::Running,
                Status::Stopped => RunStatus::Stopped,
                Status::Ended(end) => end.clone().status(),
            },
        });
        let joined = Box::new(Joined {
            host: self.settings.name.clone(),
            facts: Facts { cores: self.settings.slots, memory_bytes: load::memory_bytes() },
            memory: self.memory,
            runs: runs.collect(),
        });
        if socket::write(&stream, &Ask::Join { joined }).is_err() {
            return;
        }
        let (connection, inputs) = (self.connection, self.inputs.clone());
        let read = move || {
            let mut reader = Reader::of_orders(reading);
            loop {
                let input = match reader.read::<Order>() {
                    Ok(Some(order)) => Input::Order { connection, order },
                    Ok(None) | Err(_) => Input::Lost { connection },
                };
                let last = matches!(input, Input::Lost { .. });
                if inputs.send(input).is_err() || last {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("orders".to_owned()).spawn(read) {
            tracing::warn!(%error, "the thread that reads the controller's orders cannot start");
            return;
        }
        self.stream = Some(stream);
        // A controller that ends each connection at once is not asked ever faster.
        self.next_connect_ms = uptime_ms() + self.connect_pause_ms;
        self.connect_pause_ms = (2 * self.connect_pause_ms).min(CONNECT_PAUSE_MAX_MS);
        tracing::info!("connected to the controller");
    }

    fn report(&mut self, report: &Report) {
        let Some(stream) = &self.stream else { return };
        if let Err(error) = socket::write(stream, report) {
            tracing::warn!("the controller is unreachable: {error:#}");
            self.disconnect();
        }
    }

    /// Tells what the jobs use now.
    fn report_use(&mut self) {
        let containment = Places::containment(self.groups.as_ref());
        let one = |(&(task, attempt), &usage): (&(TaskId, Attempt), &Usage)| Using {
            task,
            attempt,
            usage,
        };
        let runs = self.using.iter().map(one).collect();
        self.report(&Report::Using { containment, runs });
    }

    fn disconnect(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Order { connection, order } if connection == self.connection => {
                self.connect_pause_ms = CONNECT_PAUSE_MS;
                self.obey(order);
            }
            Input::Lost { connection } if connection == self.connection => self.disconnect(),
            Input::Order { .. } | Input::Lost { .. } | Input::Leave | Input::EndAll => {}
            Input::Started { task, attempt, pid } => {
                self.report(&Report::Started { task, attempt, pid });
            }
            Input::Using { task, attempt, usage } => {
                self.using.insert((task, attempt), usage);
            }
            Input::Say(report) => self.report(&report),
            Input::Ended { task, attempt, end } => self.note_end(task, attempt, end),
            Input::Free { line } => self.nursery.keep(line, uptime_ms()),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Launch(launch) => self.launch(*launch),
            Order::Grant { lease } => {
                self.lease_ms = lease.as_ms();
                let Some(sent) = self.sent_ms.pop_front() else { return };
                let granted = run::grant(&self.folder, sent + lease.as_ms());
                if let Err(error) = granted.and_then(|()| self.settle_memory()) {
                    tracing::error!("the lease cannot be written: {error:#}");
                }
            }
            Order::Kill { task, attempt, .. } => self.signal(task, attempt, Signal::TERM),
            Order::Suspend { task, attempt } => {
                self.change(task, attempt, Status::Stopped, Signal::USR1);
            }
            Order::Resume { task, attempt } => {
                self.change(task, attempt, Status::Running, Signal::USR2);
            }
            Order::Noted { task, attempt } => {
                if let Some(Status::Ended(_)) = self.runs.get(&(task, attempt)) {
                    self.runs.remove(&(task, attempt));
                    Run::of(&self.folder, task, attempt).remove();
                }
            }
            Order::ReleaseWork { task, requeues } => self.areas.release(task, requeues),
            Order::ListAreas { query, sizes } => self.areas.list(query, sizes),
            Order::Reap { query, areas } => self.areas.reap(query, areas),
        }
    }

    /// What was lost before the agent joined is settled with the first grant.
    fn settle_memory(&mut self) -> Result<()> {
        if self.memory == Memory::Lost {
            files::replace(&self.folder.join("boot"), boot_id()?.as_bytes())?;
            self.memory = Memory::Kept;
        }
        Ok(())
    }

    fn launch(&mut self, launch: Launch) {
        let (task, attempt) = (launch.task, launch.attempt);
        let run = Run::of(&self.folder, task, attempt);
        if self.runs.contains_key(&(task, attempt)) || run.path().exists() {
            return;
        }
        let (work, util) = self.areas.of(task, launch.requeues);
        let order = Task {
            launch,
            host: self.settings.name.clone(),
            root: self.settings.root.clone(),
            agent: self.folder.clone(),
            work,
            util,
            groups: self.groups.clone(),
        };
        match run.make(&order).and_then(|file| self.nursery.start(&run, &file)) {
            Ok(line) => {
                self.runs.insert((task, attempt), Status::Running);
                self.vigil.add(run, task, attempt, line);
            }
            Err(error) => self.note_end(task, attempt, End::unable(&error)),
        }
    }

    /// A run has ended: it is told, and told again until it was taken note of.
    fn note_end(&mut self, task: TaskId, attempt: Attempt, end: End) {
        if let End::Lost(loss) = &end {
            tracing::warn!(%task, %attempt, ?loss, "a job was lost or not started");
        }
        self.using.remove(&(task, attempt));
        self.runs.insert((task, attempt), Status::Ended(end.clone()));
        self.report(&end.report(task, attempt));
    }

    /// Signals the shim of a run that has not ended, as soon as it has said its number.
    fn signal(&mut self, task: TaskId, attempt: Attempt, signal: Signal) {
        self.wanted.push((task, attempt, signal));
        self.send_wanted();
    }

    /// Sends the signals that can be sent, those of each run in their order.
    fn send_wanted(&mut self) {
        let mut later: Vec<(TaskId, Attempt, Signal)> = Vec::new();
        for (task, attempt, signal) in std::mem::take(&mut self.wanted) {
            let behind = later.iter().any(|before| (before.0, before.1) == (task, attempt));
            if behind || !self.try_signal(task, attempt, signal) {
                later.push((task, attempt, signal));
            }
        }
        self.wanted = later;
    }

    /// Whether a signal was sent, or finds nobody any more. The lock that a shim holds says that its number is its
    /// own.
    fn try_signal(&self, task: TaskId, attempt: Attempt, signal: Signal) -> bool {
        let run = Run::of(&self.folder, task, attempt);
        if !matches!(self.runs.get(&(task, attempt)), Some(Status::Running | Status::Stopped)) {
            return true;
        }
        match run.is_held().and_then(|held| Ok((held, run.said()?.shim_file()))) {
            Ok((true, Some(shim))) => {
                let _ = rustix::process::pidfd_send_signal(&shim, signal);
                true
            }
            Ok((held, _)) => !held,
            // Out of descriptors, perhaps: it is tried again.
            Err(_) => false,
        }
    }

    fn change(&mut self, task: TaskId, attempt: Attempt, status: Status, signal: Signal) {
        self.signal(task, attempt, signal);
        if let Some(now) = self.runs.get_mut(&(task, attempt))
            && !matches!(now, Status::Ended(_))
        {
            *now = status;
        }
    }

    /// Ends all jobs by force: whoever asks next is told that they were lost.
    fn end_all(&mut self) -> Result<()> {
        self.disconnect();
        let alive = self.runs.iter().filter(|(_, status)| !matches!(status, Status::Ended(_)));
        let alive = alive.map(|((task, attempt), _)| Run::of(&self.folder, *task, *attempt));
        ending::end_by_force(&self.folder, alive.collect())
    }
}

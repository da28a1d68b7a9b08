//! One host: takes orders of the controller and gives each job to a shim.
//!
//! One thread decides; one reads orders, one waits for shims. All that must not be forgotten is on disk
//! (`run/`), so an agent that was killed finds its jobs again.

mod areas;
mod connection;
mod crew;
mod ending;
mod groups;
mod in_slurm;
mod lease;
mod load;
pub mod metrics;
pub mod nursery;
pub(crate) mod slurm;
mod space;
mod start;
mod vigil;
pub mod watchdog;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Result;
use forebay_grid::config::HostEngine;
use forebay_grid::event::Memory;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::{Attempt, HostName, Moment, TaskId};
use forebay_metrics::Listen;
use rustix::process::Signal;

use crate::agent::nursery::Nursery;
use crate::agent::watchdog::Watchdog;
use crate::cgroup::{Parent, Places};
use crate::home::GridHome;
use crate::protocol::socket::Unknown;
use crate::protocol::{Launch, Missing, Order, Report};
use crate::run::{End, Run, Task, Wanted, uptime_ms};
use areas::{Areas, KeptElsewhere};
pub use ending::end_left_jobs;
use slurm::Slurm;
use space::Space;
pub use start::run;
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
    /// Where checkpoints are shipped to, which all hosts reach by some path; none if jobs have none.
    pub checkpoints: Option<PathBuf>,
    /// Below what the control groups of its jobs are made.
    pub cgroup: Parent,
    /// Where monitors are answered, if they are.
    pub monitors: Option<Listen>,
    /// What runs its jobs.
    pub engine: HostEngine,
    /// The program and first argument that start a nursery of shims, and the watchdog.
    pub shim: (PathBuf, String),
}

/// After which time a signal is tried again whose shim has not said its number yet.
const SIGNAL_AGAIN_MS: u64 = 10;

/// How long a report waits for others that nobody waits for.
const LINGER_MS: u64 = 10;

/// The most reports that are sent together.
const TOGETHER_MAX: usize = 64;

/// How long after a connection the next one is made at the earliest, and at the latest if none brings an order.
const CONNECT_PAUSE_MS: u64 = 50;

/// How long an agent that was refused waits before it asks again.
const REFUSED_PAUSE_MS: u64 = 10_000;

enum Input {
    Order {
        connection: u64,
        order: Order,
    },
    /// An order that only later versions understand.
    Unknown {
        connection: u64,
        unknown: Unknown,
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
    /// A service has become ready, or is so no longer.
    Health,
    /// What the work areas of a job hold.
    Area {
        run: (TaskId, Attempt),
        bytes: u64,
    },
    Ended {
        task: TaskId,
        attempt: Attempt,
        end: End,
    },
    /// What Slurm says of a job.
    Note {
        run: (TaskId, Attempt),
        note: String,
    },
    /// The shim at the other end holds no job any more; it was told before what became of its last one.
    Free {
        line: OwnedFd,
    },
    Say(Vec<Report>),
    Leave,
    EndAll,
}

/// How a run is, as far as the agent knows.
enum Status {
    /// Slurm has it and has not started it.
    Waiting,
    Running,
    Stopped,
    Ended(End),
}

struct Agent {
    settings: Settings,
    folder: PathBuf,
    /// Name or number under which this host is reached.
    address: String,
    memory: Memory,
    runs: BTreeMap<(TaskId, Attempt), Status>,
    stream: Option<UnixStream>,
    connection: u64,
    /// Whether the controller has answered on this connection.
    is_granted: bool,
    /// Runs that were warned, and of which end.
    warned: BTreeMap<(TaskId, Attempt), Option<Moment>>,
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
    /// What they cannot limit, and why.
    missing: Missing,
    /// What its runs use now, as far as their shims have said.
    using: BTreeMap<(TaskId, Attempt), Usage>,
    /// What their work areas hold, as far as that was measured.
    area_bytes: BTreeMap<(TaskId, Attempt), u64>,
    space: Arc<Space>,
    vigil: Vigil,
    areas: Areas,
    /// What runs its jobs in place of shims of its own.
    slurm: Option<Slurm>,
    /// Whether Slurm has said something that was not told yet.
    notes_are_fresh: bool,
    unsent: Unsent,
    figures: Arc<metrics::Figures>,
    inputs: Sender<Input>,
}

/// Reports that are sent together, in their order: each message wakes the controller, and what it led to may be a commit.
/// Those of a connection that breaks are lost with it: the agent says all of that when it joins.
#[derive(Default)]
struct Unsent {
    reports: Vec<Report>,
    /// By when they are sent.
    due_ms: Option<u64>,
}

impl Unsent {
    fn add(&mut self, report: Report, due_ms: u64) {
        self.reports.push(report);
        self.due_ms = Some(self.due_ms.map_or(due_ms, |earlier| earlier.min(due_ms)));
    }
}

/// Whether a report can wait a little. The controller acts on all others.
fn may_wait(report: &Report) -> bool {
    matches!(report, Report::Started { .. } | Report::WorkReleased { result: Ok(()), .. })
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
            // The agent before this one may have been killed before it did so.
            let (status, signal) = match run.left() {
                Some(Wanted::Stopped) => (Status::Stopped, Some(Signal::USR1)),
                Some(Wanted::Running) => (Status::Running, Some(Signal::USR2)),
                None => (Status::Running, None),
            };
            self.wanted.extend(signal.map(|signal| (task, attempt, signal)));
            self.runs.insert((task, attempt), status);
            self.warned.extend(said.warned.map(|end| ((task, attempt), end)));
            if let Some(order) = run.order()? {
                self.space.add((task, attempt), order.work, order.util);
            }
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
                self.report(Report::Load { load });
                self.report_use();
                if self.slurm.is_none()
                    && let Err(error) = self.watchdog.look_after()
                {
                    tracing::warn!("{error:#}");
                }
                next_load_ms = now + (self.lease_ms / 4).clamp(25, 5000);
            }
            if self.settings.monitors.is_some() {
                self.figures.set(self.running(), self.stream.is_some());
            }
            if std::mem::take(&mut self.notes_are_fresh) {
                self.report_use();
            }
            self.send_wanted();
            let mut patience = if self.stream.is_some() { next_load_ms - now } else { 50 };
            if !self.wanted.is_empty() {
                patience = patience.min(SIGNAL_AGAIN_MS);
            }
            if let Some(clears_ms) = self.areas.clear(now) {
                patience = patience.min(clears_ms - now);
            }
            match self.next(taken, patience.max(1)) {
                Ok(Input::Leave) => {
                    self.send_reports();
                    return Ok(());
                }
                Ok(Input::EndAll) => return self.end_all(),
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// How many jobs it holds.
    fn running(&self) -> usize {
        self.runs.values().filter(|status| !matches!(status, Status::Ended(_))).count()
    }

    /// The next input. What lies ready comes before the reports of what was taken are sent, so that they go together.
    fn next(
        &mut self,
        taken: &Receiver<Input>,
        patience_ms: u64,
    ) -> Result<Input, RecvTimeoutError> {
        let is_enough = self.unsent.reports.len() >= TOGETHER_MAX;
        if !is_enough && let Ok(input) = taken.try_recv() {
            return Ok(input);
        }
        let now_ms = uptime_ms();
        if is_enough || self.unsent.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            self.send_reports();
        }
        let soon_ms =
            self.unsent.due_ms.map_or(patience_ms, |due_ms| patience_ms.min(due_ms - now_ms));
        taken.recv_timeout(Duration::from_millis(soon_ms))
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Order { connection, order } if connection == self.connection => {
                self.connect_pause_ms = CONNECT_PAUSE_MS;
                self.obey(order);
            }
            Input::Unknown { connection, unknown } if connection == self.connection => {
                self.connect_pause_ms = CONNECT_PAUSE_MS;
                self.take_unknown(unknown);
            }
            Input::Lost { connection } if connection == self.connection => self.disconnect(),
            Input::Order { .. }
            | Input::Unknown { .. }
            | Input::Lost { .. }
            | Input::Leave
            | Input::EndAll => {}
            Input::Started { task, attempt, pid } => {
                self.runs.entry((task, attempt)).and_modify(|status| status.begin());
                self.report(Report::Started { task, attempt, pid });
            }
            Input::Using { task, attempt, usage } => {
                self.using.insert((task, attempt), usage);
            }
            Input::Area { run, bytes } => {
                if matches!(self.runs.get(&run), Some(Status::Running | Status::Stopped)) {
                    self.area_bytes.insert(run, bytes);
                }
            }
            Input::Health => self.report_use(),
            Input::Note { run, note } => self.take_note(run, note),
            Input::Say(reports) => reports.into_iter().for_each(|report| self.report(report)),
            Input::Ended { task, attempt, end } => self.note_end(task, attempt, end),
            Input::Free { line } => self.nursery.keep(line, uptime_ms()),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Launch(launch) => self.launch(*launch),
            Order::Refused { reason } => {
                tracing::error!("the controller refuses this agent: {reason}");
                self.disconnect();
                self.next_connect_ms = uptime_ms() + REFUSED_PAUSE_MS;
            }
            Order::Grant { lease } => self.take_grant(lease.as_ms()),
            Order::Warn { task, attempt, end } if self.has_warned((task, attempt), end) => {}
            order @ (Order::Kill { .. }
            | Order::Suspend { .. }
            | Order::Signal { .. }
            | Order::Warn { .. }
            | Order::Resume { .. }) => self.steer(&order),
            Order::Noted { task, attempt } => {
                if let Some(Status::Ended(_)) = self.runs.get(&(task, attempt)) {
                    self.runs.remove(&(task, attempt));
                    match &mut self.slurm {
                        Some(slurm) => slurm.forget((task, attempt)),
                        None => Run::of(&self.folder, task, attempt).remove(),
                    }
                }
            }
            Order::ReleaseWork { task, requeues } => self.areas.release(task, requeues),
            Order::KeepCheckpoint { query, task, requeues, user, number, job_host } => {
                let kept = KeptElsewhere { query, task, requeues, number, job_host };
                self.areas.keep(kept, user, self.settings.name.clone());
            }
            Order::ListAreas { query, sizes } => self.areas.list(query, sizes),
            Order::Reap { query, areas } => self.areas.reap(query, areas),
        }
    }

    /// Passes on what concerns one start.
    fn steer(&mut self, order: &Order) {
        if self.slurm.is_some() {
            return self.steer_in_slurm(order);
        }
        match *order {
            Order::Kill { task, attempt, .. } => self.signal(task, attempt, Signal::TERM),
            Order::Suspend { task, attempt } => {
                self.change(task, attempt, Status::Stopped, Signal::USR1);
            }
            Order::Resume { task, attempt } => {
                self.change(task, attempt, Status::Running, Signal::USR2);
            }
            Order::Signal { task, attempt, signal } => {
                self.signal(task, attempt, crate::shim::relayed(signal));
            }
            Order::Warn { task, attempt, .. } => self.signal(task, attempt, crate::shim::WARN),
            _ => {}
        }
    }

    fn launch(&mut self, launch: Launch) {
        let (task, attempt) = (launch.task, launch.attempt);
        let run = Run::of(&self.folder, task, attempt);
        if self.runs.contains_key(&(task, attempt)) {
            return;
        }
        if self.slurm.is_some() {
            return self.launch_in_slurm(launch);
        }
        let (work, util) = self.areas.of(task, launch.requeues);
        let checkpoints = self.areas.checkpoint(task, launch.requeues);
        let order = Task {
            launch,
            host: self.settings.name.clone(),
            root: self.settings.root.clone(),
            agent: self.folder.clone(),
            work,
            util,
            checkpoints,
            groups: self.groups.clone(),
            address: self.address.clone(),
            allocation: None,
        };
        let file = match run.make(&order) {
            // It was begun before.
            Ok(None) => return,
            Ok(Some(file)) => Ok(file),
            Err(error) => Err(error),
        };
        match file.and_then(|file| self.nursery.start(&run, &file)) {
            Ok(line) => {
                self.runs.insert((task, attempt), Status::Running);
                self.space.add((task, attempt), order.work, order.util);
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
        self.area_bytes.remove(&(task, attempt));
        self.space.remove((task, attempt));
        self.runs.insert((task, attempt), Status::Ended(end.clone()));
        self.report(end.report(task, attempt));
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
                // Before it happens, so that a later agent knows it.
                let recorded = match signal {
                    crate::shim::WARN => {
                        run.say_warned(self.warned.get(&(task, attempt)).copied().flatten())
                    }
                    Signal::USR1 => run.say_wanted(Wanted::Stopped),
                    Signal::USR2 => run.say_wanted(Wanted::Running),
                    _ => Ok(()),
                };
                if let Err(error) = recorded {
                    tracing::warn!(%task, "what becomes of a job is not recorded: {error:#}");
                }
                let _ = rustix::process::pidfd_send_signal(&shim, signal);
                if signal == Signal::USR2 {
                    run.forget_stopped();
                }
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
        self.send_reports();
        self.disconnect();
        if let Some(slurm) = &self.slurm {
            slurm.end_all();
            return Ok(());
        }
        let alive = self.runs.iter().filter(|(_, status)| !matches!(status, Status::Ended(_)));
        let alive = alive.map(|((task, attempt), _)| Run::of(&self.folder, *task, *attempt));
        ending::end_by_force(&self.folder, alive.collect())
    }
}

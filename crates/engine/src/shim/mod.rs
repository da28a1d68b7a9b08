//! The process that holds one job at a time.
//!
//! It makes the work areas, starts the job as its user in a process group of its own, passes signals on,
//! and writes down how it ended. It lives in a session of its own, so it and its job outlive the agent.
//! SIGTERM ends the job gently, and by force after [`GRACE`]; SIGINT by force; SIGUSR1 suspends it, SIGUSR2
//! lets it go on, unless the agent has said beside the run's file that it wants the opposite by now; five others
//! stand for signals that the job gets (`orders.rs`). Before the job runs SIGTERM and SIGINT end
//! the shim (`beginning.rs`). When the lease in the agent's
//! folder is over, it ends the job by force, whether or not there is an agent. With the job's first process all
//! others end that come from it: those in its control group, and those below the shim. If the shim is killed itself,
//! the kernel kills the job's first process with it and, of a job that has run for a moment, its process group; and whoever sees
//! it next (the agent, the next one, the watchdog or the next start of the job) the control group and what is left of the
//! session. A shim that is stopped when the lease is over is killed by the kernel.
//!
//! Standard input is the locked file of its run, standard output the line to the agent (`request.rs`), which
//! ends with the shim. A shim whose job ended by itself, and left nothing to do, lets the file go and waits on the
//! line for another run; after anything out of the ordinary it ends. Signals for one job never reach the next: from
//! the end of a job on they are blocked, and when the next one comes, which the agent does not order before it has
//! taken note of that end, those that are pending are thrown away.

pub mod allocation;
mod beginning;
mod dialect;
mod fault;
mod fullstimer;
mod job;
mod orders;
mod program;
mod progress;
mod sampler;
mod script;
mod service;
mod warn;
mod wrap;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, Usage};
use forebay_grid::event::Loss;
use forebay_grid::spec::{Checkpoint, Exit};
use forebay_grid::vocabulary::UserName;
use forebay_process::machine::boot_id;
use forebay_process::stat::Stat;
use forebay_process::{Accounting, descendants};
use rustix::event::Timespec;
use rustix::fs::FlockOperation;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::area::spare::Spare;
use crate::area::{self, Left, bytes_below};
use crate::cgroup::{Group, Limits};
use crate::checkpoint::{self, Setup, restore};
use crate::run::request::{self, Word};
use crate::run::{End, Log, Task, fence, uptime_ms};
use crate::terminal::job::{Caller, Ends};
use crate::user::{Account, account_of};
use beginning::{Beginning, Lease, Stage};
use fault::Fault;
use job::{Begun, Job};
use orders::{ORDERS, block_orders, orders};
pub use orders::{WARN, relayed};
pub use program::VARIABLES;
use sampler::Sampler;
use service::Watched;

/// How long a job has after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// Of a job that ends within this time the agent learns with its end that it was started.
const SHORT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// How long a shim goes by what the user database has said, in milliseconds.
const ACCOUNT_MAX_MS: u64 = 2000;

/// The areas of a job that took longer are not kept for the next one: it gains nothing, and would have areas that seem old.
const SPARE_SECONDS_MAX: f64 = 1.0;

/// How many jobs a shim holds in its life.
const JOBS_MAX: u32 = 500;

/// Runs the job of the file on standard input to its end, and others that come after it; the paths of the files name
/// the process.
///
/// # Errors
/// If an end could not be written down.
pub fn serve(mut run: PathBuf) -> Result<()> {
    // SAFETY: ignoring a signal is always sound; the job gets the default back.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let agent = run.ancestors().nth(2).context("a run without an agent")?.to_owned();
    let mut shim = Shim::begin(Lease::Agent(agent))?;
    for _ in 1..JOBS_MAX {
        shim.hold(&run)?;
        if shim.touched {
            return Ok(());
        }
        match shim.next()? {
            Some(next) => run = next,
            None => return Ok(()),
        }
    }
    shim.hold(&run)
}

/// What stays from one job to the next.
struct Shim {
    log: Log<'static>,
    signals: Signals,
    beginning: Arc<Beginning>,
    accounting: Arc<Accounting>,
    sampler: Arc<Sampler>,
    /// Who the last user is, and when that was asked.
    account: Option<(UserName, Account, u64)>,
    /// When this process was started, in clock ticks since the boot.
    started: u64,
    /// Its job as a service, if it is one.
    watched: Option<Watched>,
    /// The empty areas of its last job, work area first.
    spares: [Option<Spare>; 2],
    /// Whether anything happened that may touch another job.
    touched: bool,
}

impl Shim {
    /// One that obeys signals and watches the lease beside the run's file.
    fn begin(lease: Lease) -> Result<Shim> {
        block_orders(libc::SIG_BLOCK);
        let log = Log::of(rustix::stdio::stdin());
        Ok(Shim {
            log,
            signals: Signals::new(ORDERS.into_iter().chain([SIGCHLD]))?,
            // Its thread inherits the blocked signals, so those are for this one.
            beginning: Beginning::watch(log, lease)?,
            accounting: Accounting::find(Arc::new(SystemClock)),
            sampler: Sampler::begin()?,
            account: None,
            started: Stat::own().context("/proc/self/stat")?.started,
            watched: None,
            spares: [None, None],
            touched: false,
        })
    }

    /// Sees one job to its end, and writes that down.
    fn hold(&mut self, run: &Path) -> Result<()> {
        name_process(&format!("shim {}", run.file_name().unwrap_or_default().display()));
        self.forget_orders();
        self.beginning.obey();
        let log = self.log;
        log.say_pid(self.started)
            .with_context(|| format!("standard input is not {}", run.display()))?;
        let Some(mut task) = log.unfenced_task()? else {
            self.touched = true;
            return Ok(());
        };
        if task.allocation.is_some() {
            task.host = allocation::node().unwrap_or(task.host);
        }
        let name = run.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let account = self.account_of(&task.launch.user).and_then(|account| {
            task.launch.check_account(&account).map_err(Fault::Job)?;
            Ok(account)
        });
        let spares = std::mem::take(&mut self.spares);
        let begun = account.and_then(|account| {
            begin(log, &task, name, &account, spares, (&self.beginning, &self.accounting))
        });
        self.beginning.enter(Stage::Over);
        let end = match begun {
            Ok(begun) => {
                self.watched = self.watch(&task, run);
                let end = self.see_to_the_end(begun, &task, run);
                self.watched = None;
                end
            }
            Err(fault) => {
                self.touched = true;
                fault.into_end()
            }
        };
        match task.allocation {
            Some(_) => {
                self.beginning.end();
                allocation::say_end(log, run, &end, allocation::END_AGAIN)
            }
            None => log.say_end(&end),
        }
    }

    /// Watches a job that is a service. After one this shim takes no other job: a check may still run.
    fn watch(&mut self, task: &Task, run: &Path) -> Option<Watched> {
        task.launch.watch?;
        self.touched = true;
        let account = self.account_of(&task.launch.user).ok()?;
        Watched::begin(task, run, &account).unwrap_or_else(|error| {
            tracing::error!(task = %task.launch.task, "a service is not watched: {error:#}");
            None
        })
    }

    /// What the user database says of a user. Of the last one it is not asked again for a moment.
    fn account_of(&mut self, user: &UserName) -> Result<Account, Fault> {
        let now_ms = uptime_ms();
        if let Some((known, account, asked_ms)) = &self.account
            && known == user
            && now_ms < asked_ms + ACCOUNT_MAX_MS
        {
            return Ok(account.clone());
        }
        let account = account_of(user).map_err(|error| {
            let asked = !error.chain().any(|cause| cause.is::<std::io::Error>());
            if asked { Fault::Job(error) } else { Fault::Host(error) }
        })?;
        self.account = Some((user.clone(), account.clone(), now_ms));
        Ok(account)
    }

    /// Waits for the next run. None if this shim is to end.
    fn next(&mut self) -> Result<Option<PathBuf>> {
        block_orders(libc::SIG_BLOCK);
        self.beginning.enter(Stage::Free);
        name_process("free shim");
        rustix::fs::flock(rustix::stdio::stdin(), FlockOperation::Unlock)?;
        if Word::Free.say(rustix::stdio::stdout()).is_err() {
            return Ok(None);
        }
        let Some((run, [file])) = request::take(rustix::stdio::stdout())? else { return Ok(None) };
        rustix::stdio::dup2_stdin(&file)?;
        Ok(Some(run))
    }

    /// Throws away the orders that came before this job, and obeys from now on.
    fn forget_orders(&mut self) {
        // SAFETY: the set is filled before it is used, and nothing is asked about the signals that are taken.
        unsafe {
            let orders = orders();
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            while libc::sigtimedwait(&raw const orders, std::ptr::null_mut(), &raw const at_once)
                > 0
            {}
        }
        self.signals.pending().for_each(drop);
        self.beginning.prepare();
        block_orders(libc::SIG_UNBLOCK);
    }
}

/// Shows what this process does, where processes are listed.
fn name_process(name: &str) {
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Makes all that a job needs, and starts it.
fn begin(
    log: Log<'_>,
    task: &Task,
    run: &str,
    account: &Account,
    spares: [Option<Spare>; 2],
    (beginning, accounting): (&Beginning, &Arc<Accounting>),
) -> Result<Begun, Fault> {
    match &task.allocation {
        Some(_) => allocation::check(task),
        None => prepare(task, account, spares),
    }
    .and_then(|()| {
        anyhow::ensure!(beginning.is_leased(), "the lease of the host has expired");
        Ok(())
    })
    .map_err(Fault::Host)?;
    let interactive = task.launch.spec.interactive.as_ref();
    // A client that began to talk expects no second start.
    let caller = interactive.map(|at| Caller::reach(at, task, account)).transpose();
    let caller = caller.map_err(Fault::Job)?;
    if let Some(watch) = &task.launch.watch {
        service::check_port(watch).map_err(Fault::Job)?;
    }
    fullstimer::begin(task, account);
    // Said before: if this process is killed in between, nobody takes the job for one that never started.
    log.say_started().map_err(Fault::Host)?;
    descendants::adopt().map_err(|error| Fault::Host(error.into()))?;
    let group = make_group(task, run).map_err(Fault::Host)?;
    beginning.enter(Stage::Starting);
    Job::start(task, account, group, caller, accounting)
}

/// Makes the control group of a job. One without limits runs without a group where none can be made now.
fn make_group(task: &Task, run: &str) -> Result<Option<Arc<Group>>> {
    let Some(places) = &task.groups else { return Ok(None) };
    let limits = Limits {
        memory_bytes: task.launch.spec.memory.map(|memory| memory.0),
        slots: task.launch.slots,
        processors: task.launch.limits.processors,
        processes_max: task.launch.limits.processes_max,
    };
    match Group::make(places, run, &limits) {
        Ok(group) => Ok(Some(Arc::new(group))),
        Err(error) if !limits.are_hard() => {
            tracing::warn!(task = %task.launch.task, %error, "a job has no control group");
            Ok(None)
        }
        Err(error) => Err(error).context("its control group cannot be made"),
    }
}

/// Makes the work areas, as long as the host may start jobs.
fn prepare(task: &Task, account: &Account, spares: [Option<Spare>; 2]) -> Result<()> {
    fence::earlier_starts(task).context("an earlier start of it may still run")?;
    let left = match task.launch.spec.checkpoint {
        Checkpoint::None => Left::Removed,
        Checkpoint::Steps => Left::Kept,
    };
    for (area, spare) in [&task.work, &task.util].into_iter().zip(spares) {
        // What is kept from an earlier start is there already, and no spare one takes its place.
        if !spare.is_some_and(|spare| spare.become_area(area, account)) {
            area::make(area, left, account)?;
        }
    }
    bring_back(task, account)
}

/// Has the work area hold what the job's last checkpoint does, if that is later than what lies on this host.
fn bring_back(task: &Task, account: &Account) -> Result<()> {
    let (Some(place), Some(bounds)) = (&task.checkpoints, task.launch.checkpoint_bounds) else {
        return Ok(());
    };
    let above = place.parent().context("a job's folder lies in a place")?;
    checkpoint::make_place_if_missing(above)?;
    area::make(place, Left::Kept, account)?;
    // Only root can make it, and it must be there as long as the job runs: also when the node that keeps its name goes down.
    checkpoint::sync_folder(above)?;
    let setup = Setup {
        attempt: task.launch.attempt,
        host: task.host.clone(),
        boot: boot_id()?,
        job: task.launch.task.into(),
        root: task.root.clone(),
        place: place.clone(),
        bounds,
        restored: None,
    };
    account.act(|| restore::prepare(&task.work, setup, &SystemClock))?
}

impl Shim {
    /// Keeps the areas of a job that has ended for the next one, if all that could still use them is known to be gone.
    fn keep_areas(&mut self, task: &Task, usage: &Usage, is_grouped: bool) {
        let is_short = usage.real_seconds < SPARE_SECONDS_MAX;
        let is_plain = task.launch.spec.checkpoint == Checkpoint::None && task.allocation.is_none();
        if !is_grouped || !is_short || !is_plain || self.touched {
            return;
        }
        if let Ok(account) = self.account_of(&task.launch.user) {
            self.spares = [&task.work, &task.util].map(|area| Spare::of(area, &account));
        }
    }

    /// Sees a job to its end.
    fn see_to_the_end(&mut self, begun: Begun, task: &Task, run: &Path) -> End {
        let (mut job, streams) = begun;
        // Threads carry the streams; what they still do is not worth knowing.
        self.touched |= streams.is_some();
        let ended = self.see_through(&mut job, streams, (task, run));
        match ended {
            // What else may have killed it at that moment, it was to end because of the lease.
            Ok((Exit::Signal(9), _)) if self.beginning.is_lease_over() => End::Lost(Loss::Lease),
            Ok((exit, usage)) => End::Exited { exit, usage: Some(Box::new(usage)) },
            Err(error) => {
                self.touched = true;
                tracing::error!(task = %task.launch.task, "no process holds the job any more: {error:#}");
                // Its process group is killed as it is dropped.
                job.end_left();
                self.sampler.leave();
                End::Lost(Loss::Holder)
            }
        }
    }

    fn see_through(
        &mut self,
        job: &mut Job,
        streams: Option<(Caller, Ends)>,
        (task, run): (&Task, &Path),
    ) -> Result<(Exit, Usage)> {
        if let Some(session) = job.session {
            self.log.say_session(session)?;
        }
        self.sampler.watch(job.group.clone());
        let conversation = streams.map(|(caller, ends)| caller.talk(ends)).transpose()?;
        if conversation.is_some() || !job.ends_within(SHORT) {
            job.bind();
            // The agent may be gone; the next one finds the file.
            let _ = Word::Started { pid: job.child.id() }.say(rustix::stdio::stdout());
        }
        // A job that ended before the signals were looked at is found here.
        while !job.has_ended() {
            for signal in self.signals.wait() {
                let signal = self.beginning.meaning(run, signal);
                self.touched |= signal != SIGCHLD;
                self.watched.iter().for_each(|watched| watched.note(signal));
                job.pass_on(signal);
            }
            for order in conversation.iter().flat_map(|conversation| conversation.orders.try_iter())
            {
                job.obey(&order);
            }
        }
        let ended = job.reap()?;
        let used = job.usage(&ended, &self.sampler.leave());
        let exit = job.exit(&ended);
        let usage = Usage { work_bytes: Some(bytes_below(&task.work)), ..used };
        self.keep_areas(task, &usage, job.group.is_some());
        if let Ok(account) = self.account_of(&task.launch.user) {
            fullstimer::end(task, &account, &exit, &usage, SystemClock.now().seconds);
        }
        if let Some(conversation) = conversation {
            while !conversation.is_over() {
                // Whoever wants the job to end does not wait for its reader.
                if self.signals.wait().any(|signal| matches!(signal, SIGTERM | SIGINT)) {
                    conversation.cut();
                }
            }
            conversation.say_exit(&exit);
        }
        Ok((exit, usage))
    }
}

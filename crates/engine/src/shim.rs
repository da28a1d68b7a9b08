//! The process that holds one job at a time.
//!
//! It makes the work areas, starts the job as its user in a process group of its own, passes signals on,
//! and writes down how it ended. It lives in a session of its own, so it and its job outlive the agent.
//! SIGTERM ends the job gently, and by force after [`GRACE`]; SIGINT by force; SIGUSR1 suspends it, SIGUSR2
//! lets it go on. Before the job runs both end the shim (`beginning.rs`). When the lease in the agent's
//! folder is over, it ends the job by force, whether or not there is an agent. With the job's first process all
//! others end that come from it: those in its control group, and those below the shim. If the shim is killed itself,
//! the kernel kills the job's first process with it, and whoever sees it next (the agent, the next one, the watchdog or
//! the next start of the job) the group and what is left of the session.
//!
//! Standard input is the locked file of its run, standard output the line to the agent (`request.rs`), which
//! ends with the shim. A shim whose job ended by itself, and left nothing to do, lets the file go and waits on the
//! line for another run; after anything out of the ordinary it ends. Signals for one job never reach the next: from
//! the end of a job on they are blocked, and when the next one comes, which the agent does not order before it has
//! taken note of that end, those that are pending are thrown away.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Usage;
use forebay_base::time::SystemClock;
use forebay_grid::event::Loss;
use forebay_grid::spec::{Checkpoint, Exit};
use forebay_process::child::{Program, enter_group};
use forebay_process::descendants::{self, Orphans};
use forebay_process::user::is_root;
use forebay_process::{Accounting, Child, Ended, session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::area::{self, Left, bytes_below};
use crate::beginning::{Beginning, Stage, end_by_force};
use crate::cgroup::Group;
use crate::fence;
use crate::message::{error_path, output_path};
use crate::progress::{Part, Progress};
use crate::request::{self, Word};
use crate::runs::{End, Log, Task, granted, uptime_ms};
use crate::sampler::{Sampler, Seen};
use crate::script;
use crate::terminal::job::{Caller, Ends, Order};
use crate::user::{Account, account_of};

/// How long a job has after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// How many jobs a shim holds in its life.
const JOBS_MAX: u32 = 500;

/// Signals with which the agent orders a shim about.
const ORDERS: [i32; 4] = [SIGTERM, SIGINT, SIGUSR1, SIGUSR2];

/// Runs the job of the file on standard input to its end, and others that come after it; the paths of the files name
/// the process.
///
/// # Errors
/// If an end could not be written down.
pub fn serve(mut run: PathBuf) -> Result<()> {
    // SAFETY: ignoring a signal is always sound; the job gets the default back.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut shim = Shim::begin(&run)?;
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
    /// Whether anything happened that may touch another job.
    touched: bool,
}

impl Shim {
    /// One that obeys signals and watches the lease beside the run's file.
    fn begin(run: &Path) -> Result<Shim> {
        block_orders(libc::SIG_BLOCK);
        let log = Log::of(rustix::stdio::stdin());
        let agent = run.ancestors().nth(2).context("a run without an agent")?;
        Ok(Shim {
            log,
            signals: Signals::new(ORDERS.into_iter().chain([SIGCHLD]))?,
            // Its thread inherits the blocked signals, so those are for this one.
            beginning: Beginning::watch(log, agent)?,
            accounting: Accounting::find(Arc::new(SystemClock)),
            sampler: Sampler::begin()?,
            touched: false,
        })
    }

    /// Sees one job to its end, and writes that down.
    fn hold(&mut self, run: &Path) -> Result<()> {
        name_process(&format!("shim {}", run.file_name().unwrap_or_default().display()));
        self.forget_orders();
        let log = self.log;
        log.say_pid().with_context(|| format!("standard input is not {}", run.display()))?;
        let Some(task) = log.unfenced_task()? else {
            self.touched = true;
            return Ok(());
        };
        let name = run.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let begun = begin(log, &task, name, &self.beginning, &self.accounting);
        self.beginning.enter(Stage::Over);
        let end = match begun {
            Ok(begun) => self.see_to_the_end(begun, &task),
            Err(fault) => {
                self.touched = true;
                fault.into_end()
            }
        };
        log.say_end(&end)
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

/// The set of [`ORDERS`].
fn orders() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it is filled with numbers of signals before it is taken for a set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in ORDERS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks or unblocks [`ORDERS`] for this thread and those that it starts.
fn block_orders(how: i32) {
    let set = orders();
    // SAFETY: a set, and nobody asks for the one before.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}

/// Why a job does not run.
enum Fault {
    /// This host could not start it; another one may.
    Host(anyhow::Error),
    /// It cannot be started, wherever it is tried.
    Job(anyhow::Error),
    /// It began, and had to be killed at once.
    Begun,
}

impl From<anyhow::Error> for Fault {
    /// What the machine ran out of, and disks that fail, say nothing about the job.
    fn from(error: anyhow::Error) -> Fault {
        let number = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<std::io::Error>()?.raw_os_error()
        };
        match error.chain().find_map(number) {
            Some(libc::ENOSPC | libc::EIO | libc::EROFS) => Fault::Host(error),
            Some(number) if is_shortage(number) => Fault::Host(error),
            Some(_) | None => Fault::Job(error),
        }
    }
}

impl From<forebay_process::Error> for Fault {
    /// The disk on which its output lies is the job's own choice.
    fn from(error: forebay_process::Error) -> Fault {
        use forebay_process::Error;
        match &error {
            Error::NotHeld { .. } => Fault::Begun,
            Error::Io { source, .. } if source.raw_os_error().is_some_and(is_shortage) => {
                Fault::Host(error.into())
            }
            Error::Io { .. } => Fault::Job(error.into()),
        }
    }
}

impl Fault {
    fn into_end(self) -> End {
        match self {
            Fault::Host(error) => End::unable(&error),
            Fault::Job(error) => End::not_started(&error),
            Fault::Begun => End::Lost(Loss::Holder),
        }
    }
}

/// Whether the machine has run out of something that no job is given a part of.
fn is_shortage(number: i32) -> bool {
    matches!(number, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
}

/// Shows what this process does, where processes are listed.
fn name_process(name: &str) {
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// A job that was started, and the streams that its client has not been told of yet.
type Begun = (Job, Option<(Caller, Ends)>);

/// Makes all that a job needs, and starts it.
fn begin(
    log: Log<'_>,
    task: &Task,
    run: &str,
    beginning: &Beginning,
    accounting: &Arc<Accounting>,
) -> Result<Begun, Fault> {
    let account = account_of(&task.launch.user).map_err(|error| {
        let asked = !error.chain().any(|cause| cause.is::<std::io::Error>());
        if asked { Fault::Job(error) } else { Fault::Host(error) }
    })?;
    prepare(task, &account).map_err(Fault::Host)?;
    let interactive = task.launch.spec.interactive.as_ref();
    // A client that began to talk expects no second start.
    let caller = interactive.map(|at| Caller::reach(at, task, &account)).transpose();
    let caller = caller.map_err(Fault::Job)?;
    // Said before: if this process is killed in between, nobody takes the job for one that never started.
    log.say_started().map_err(Fault::Host)?;
    descendants::adopt().map_err(|error| Fault::Host(error.into()))?;
    let group = make_group(task, run).map_err(Fault::Host)?;
    beginning.enter(Stage::Starting);
    Job::start(task, &account, group, caller, accounting)
}

/// Makes the control group of a job. One without limits runs without a group where none can be made now.
fn make_group(task: &Task, run: &str) -> Result<Option<Arc<Group>>> {
    let Some(places) = &task.groups else { return Ok(None) };
    let memory = task.launch.spec.memory.map(|memory| memory.0);
    match Group::make(places, run, memory) {
        Ok(group) => Ok(Some(Arc::new(group))),
        Err(error) if memory.is_none() => {
            tracing::warn!(task = %task.launch.task, %error, "a job has no control group");
            Ok(None)
        }
        Err(error) => Err(error).context("its control group cannot be made"),
    }
}

/// Makes the work areas, as long as the host may start jobs.
fn prepare(task: &Task, account: &Account) -> Result<()> {
    fence::earlier_starts(task).context("an earlier start of it may still run")?;
    let left = match task.launch.spec.checkpoint {
        Checkpoint::None => Left::Removed,
        Checkpoint::Steps => Left::Kept,
    };
    area::make(&task.work, left, account)?;
    area::make(&task.util, left, account)?;
    anyhow::ensure!(granted(&task.agent) > uptime_ms(), "the lease of the host has expired");
    Ok(())
}

impl Shim {
    /// Sees a job to its end.
    fn see_to_the_end(&mut self, begun: Begun, task: &Task) -> End {
        let (mut job, streams) = begun;
        // Threads carry the streams; what they still do is not worth knowing.
        self.touched |= streams.is_some();
        let ended = self.see_through(&mut job, streams, task);
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
        task: &Task,
    ) -> Result<(Exit, Usage)> {
        if let Some(session) = job.session {
            self.log.say_session(session)?;
        }
        self.sampler.watch(job.group.clone());
        let conversation = streams.map(|(caller, ends)| caller.talk(ends)).transpose()?;
        // The agent may be gone; the next one finds the file.
        let _ = Word::Started { pid: job.child.id() }.say(rustix::stdio::stdout());
        // A job that ended before the signals were looked at is found here.
        while !job.has_ended() {
            for signal in self.signals.wait() {
                self.touched |= signal != SIGCHLD;
                job.pass_on(signal);
            }
            for order in conversation.iter().flat_map(|conversation| conversation.orders.try_iter())
            {
                job.obey(&order);
            }
        }
        let ended = job.reap()?;
        let used = job.usage(&ended, &self.sampler.leave());
        let exceeded = job.group.as_ref().and_then(|group| group.exceeded());
        let exit = exceeded.map_or_else(|| exit_of(&ended), Exit::MemoryLimit);
        let usage = Usage { work_bytes: Some(bytes_below(&task.work)), ..used };
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

/// The processes of the job: a group, or a session if it has a terminal.
struct Job {
    child: Child,
    session: Option<Pid>,
    group: Option<Arc<Group>>,
    orphans: Orphans,
}

impl Job {
    fn start(
        task: &Task,
        account: &Account,
        group: Option<Arc<Group>>,
        caller: Option<Caller>,
        accounting: &Arc<Accounting>,
    ) -> Result<Begun, Fault> {
        let orphans = Orphans::default();
        let mut command = command(task, account)?;
        let Some(caller) = caller else {
            let progress = Progress::default();
            let mut become_job = become_job(task, account, Channels::Files, &progress)?;
            let tasks = group.as_ref().and_then(|group| group.tasks());
            let mut prepare = || {
                tasks.map(|tasks| rustix::io::write(tasks, b"0")).transpose()?;
                become_job()
            };
            let program = Program::of(&command).map_err(anyhow::Error::from)?;
            let folder = group.as_ref().map(|group| group.as_fd());
            // SAFETY: it makes system calls of its thread on memory that was prepared before, and allocates
            // nothing.
            let child = unsafe { Child::start(&program, &mut prepare, folder, accounting) };
            let child = child.map_err(|error| progress.name(task, error))?;
            return Ok((Job { child, session: None, group, orphans }, None));
        };
        if let Some(group) = group.clone() {
            let enter = move || {
                enter_group(group.as_fd())?;
                group.tasks().map(|tasks| rustix::io::write(tasks, b"0")).transpose()?;
                Ok(())
            };
            // SAFETY: as above. The group is kept by the parent, so that nothing is freed in the child.
            unsafe { command.pre_exec(enter) };
        }
        // SAFETY: as above.
        unsafe {
            command.pre_exec(become_job(task, account, Channels::Given, &Progress::default())?)
        };
        let ends = caller.give_streams(&mut command, account).map_err(Fault::Job)?;
        let (child, session) = match ends {
            Ends::Pipes(_) => (Child::spawn(command, accounting)?, None),
            Ends::Terminal(_) => {
                // SAFETY: between fork and exec it makes system calls only.
                unsafe { command.pre_exec(take_terminal) };
                let child = Child::spawn_leader(command, accounting)?;
                let session = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                (child, session)
            }
        };
        Ok((Job { child, session, group, orphans }, Some((caller, ends))))
    }

    fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.child, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
    }

    /// Ends what is left of it, and says how it ended.
    fn reap(&mut self) -> Result<Ended> {
        self.end_left();
        Ok(self.child.wait()?.clone())
    }

    /// Ends all of it but the first process. As long as that is not reaped, nobody else can have the number of its session.
    fn end_left(&mut self) {
        self.group.iter().for_each(|group| group.end());
        self.session.into_iter().for_each(session::end);
        self.first().into_iter().for_each(|first| self.orphans.end(first));
    }

    /// What all of it used. The kernel says of the first process what it and the children that it waited for used; the group
    /// has counted everything. Without one there are the orphans, and what was seen while it ran.
    fn usage(&self, ended: &Ended, seen: &Seen) -> Usage {
        let mut usage = ended.usage;
        match self.group.as_ref().and_then(|group| group.processor()) {
            Some(processor) => {
                // The kernel splits the time of a group anew, so its parts may be less than those of a process in it.
                let all = processor.user_seconds + processor.system_seconds;
                let others = (all - usage.cpu_seconds()).max(0.0);
                let user = if all > 0.0 { processor.user_seconds / all } else { 0.0 };
                usage.user_seconds += others * user;
                usage.system_seconds += others * (1.0 - user);
            }
            None => {
                usage.user_seconds += self.orphans.user_seconds;
                usage.system_seconds += self.orphans.system_seconds;
                // Children of whoever ignores their ends are counted by nobody else.
                usage.user_seconds += (seen.processor_seconds() - usage.cpu_seconds()).max(0.0);
            }
        }
        let largest = usage.peak_memory_bytes.unwrap_or(0).max(self.orphans.memory_bytes);
        usage.peak_memory_bytes = Some(largest.max(seen.memory_bytes));
        usage.io_pressure_seconds =
            self.group.as_ref().and_then(|group| group.io_pressure_seconds());
        usage
    }

    /// Its first process, which has the number of its group.
    fn first(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) {
        match self.session {
            Some(session) => session::signal(session, signal),
            None => {
                if signal == Signal::KILL {
                    self.group.iter().for_each(|group| group.kill());
                }
                self.child.signal(signal);
                self.first()
                    .into_iter()
                    .for_each(|group| descendants::signal_outside(group, signal));
            }
        }
    }

    fn pass_on(&mut self, signal: i32) {
        match signal {
            SIGTERM => self.end_gently(&[Signal::TERM]),
            SIGINT => self.signal(Signal::KILL),
            SIGUSR1 => self.signal(Signal::STOP),
            SIGUSR2 => self.signal(Signal::CONT),
            SIGCHLD => self.first().into_iter().for_each(|first| self.orphans.reap(first)),
            _ => {}
        }
    }

    fn obey(&self, order: &Order) {
        match order {
            Order::Signal(signal) => self.signal(*signal),
            Order::Hangup => self.end_gently(&[]),
        }
    }

    /// Gives the job a while to end. Shells at a terminal ignore SIGTERM and end by SIGHUP; without its
    /// client any interactive job does.
    fn end_gently(&self, signals: &[Signal]) {
        signals.iter().for_each(|signal| self.signal(*signal));
        if signals.is_empty() || self.session.is_some() {
            self.signal(Signal::HUP);
        }
        // A process that is suspended can end only when it goes on.
        self.signal(Signal::CONT);
        let end = || {
            std::thread::sleep(GRACE);
            end_by_force();
        };
        if std::thread::Builder::new().spawn(end).is_err() {
            // Nobody could end it later.
            self.signal(Signal::KILL);
        }
    }
}

/// Between fork and exec: makes the terminal at standard input that of a new session.
fn take_terminal() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: TIOCSCTTY takes a number.
    step(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    Ok(())
}

/// Where the standard streams of a job come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// Files, as the job says.
    Files,
    /// The command has them.
    Given,
}

/// Variables that the grid sets, whatever a job asks for.
pub const VARIABLES: [&str; 11] = [
    "WORK",
    "UTIL",
    "TMPDIR",
    "FOREBAY_GRID",
    "FOREBAY_JOB",
    "FOREBAY_INDEX",
    "FOREBAY_ATTEMPT",
    "FOREBAY_SLOTS",
    "FOREBAY_HOST",
    "FOREBAY_RESTART",
    "FOREBAY_CHECKPOINT",
];

/// The environment: what the grid always gives, what the job brings, and what the grid sets.
fn environment(task: &Task, account: &Account) -> Vec<(String, String)> {
    let launch = &task.launch;
    let path = |path: &Path| path.display().to_string();
    let mut variables = vec![
        ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("HOME".to_owned(), account.home.clone()),
        ("USER".to_owned(), launch.user.to_string()),
        ("LOGNAME".to_owned(), launch.user.to_string()),
    ];
    let brought = launch.spec.environment.iter();
    variables.extend(brought.filter(|(key, _)| !VARIABLES.contains(&key.as_str())).cloned());
    variables.extend([
        ("WORK".to_owned(), path(&task.work)),
        ("UTIL".to_owned(), path(&task.util)),
        ("TMPDIR".to_owned(), path(&task.util)),
        ("FOREBAY_GRID".to_owned(), path(&task.root)),
        ("FOREBAY_JOB".to_owned(), launch.task.job.to_string()),
        ("FOREBAY_INDEX".to_owned(), launch.task.index.to_string()),
        ("FOREBAY_ATTEMPT".to_owned(), launch.attempt.to_string()),
        ("FOREBAY_SLOTS".to_owned(), launch.slots.to_string()),
        ("FOREBAY_HOST".to_owned(), task.host.to_string()),
    ]);
    if launch.spec.checkpoint == Checkpoint::Steps {
        variables.push(("FOREBAY_CHECKPOINT".to_owned(), "1".to_owned()));
    }
    if launch.attempt.0 > 1 {
        variables.push(("FOREBAY_RESTART".to_owned(), "1".to_owned()));
    }
    variables
}

/// The program of a job with its arguments and its environment.
fn command(task: &Task, account: &Account) -> Result<Command> {
    let spec = &task.launch.spec;
    let mut command = match &spec.script {
        Some(text) => script::command(text, &task.work, account)?,
        None => Command::new(&spec.command[0]),
    };
    command.args(&spec.command[1..]).env_clear().envs(environment(task, account));
    Ok(command)
}

/// What a child does to become the job: its user, its directory, its files.
fn become_job(
    task: &Task,
    account: &Account,
    channels: Channels,
    progress: &Progress,
) -> Result<impl FnMut() -> std::io::Result<()> + Send + Sync + 'static> {
    let spec = &task.launch.spec;
    let text = |path: &str| CString::new(Path::new(path).as_os_str().as_bytes());
    let output = text(&output_path(spec, task.launch.task))?;
    let error = error_path(spec, task.launch.task).map(|path| text(&path)).transpose()?;
    let directory = text(if spec.directory.is_empty() { "/" } else { &spec.directory })?;
    let fresh = if task.launch.attempt.0 == 1 { libc::O_TRUNC } else { 0 };
    let umask = spec.umask & 0o777;
    let rights = is_root().then(|| account.rights());
    let progress = progress.clone();
    Ok(move || {
        progress.reach(Part::User);
        if let Some(rights) = &rights {
            rights.take()?;
        }
        progress.reach(Part::Directory);
        // SAFETY: system calls on numbers, and on texts that the closure owns.
        unsafe {
            libc::umask(umask);
            step(libc::chdir(directory.as_ptr()))?;
            // What the daemons were started with is not the job's.
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed());
            if channels == Channels::Given {
                return Ok(());
            }
            let nothing =
                step(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC))?;
            step(libc::dup2(nothing, 0))?;
            progress.reach(Part::Output);
            let opened = open_output(&output, fresh)?;
            step(libc::dup2(opened, 1))?;
            progress.reach(Part::Error);
            let errors = match &error {
                Some(error) => open_output(error, fresh)?,
                None => opened,
            };
            step(libc::dup2(errors, 2))?;
        }
        progress.reach(Part::Program);
        Ok(())
    })
}

/// Between fork and exec: opens a file for output. It waits for nobody: a named pipe that nobody reads is refused
/// by the system.
fn open_output(path: &CStr, fresh: i32) -> std::io::Result<i32> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | fresh;
    // SAFETY: the path is a text that ends in zero.
    let opened = step(unsafe { libc::open(path.as_ptr(), flags | libc::O_NONBLOCK, 0o666) })?;
    // SAFETY: it concerns the descriptor that was just opened. The job is to wait in its writes as usual.
    step(unsafe { libc::fcntl(opened, libc::F_SETFL, libc::O_APPEND) })?;
    Ok(opened)
}

/// The outcome of a system call.
fn step(result: i32) -> std::io::Result<i32> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}

fn exit_of(ended: &Ended) -> Exit {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => Exit::Code(byte(code)),
        (None, signal) => Exit::Signal(byte(signal.unwrap_or(0))),
    }
}

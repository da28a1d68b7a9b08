//! The process that holds one job.
//!
//! It makes the work areas, starts the job as its user in a process group of its own, passes signals on,
//! and writes down how it ended. It lives in a session of its own, so it and its job outlive the agent.
//! SIGTERM ends the job gently, and by force after [`GRACE`]; SIGINT by force; SIGUSR1 suspends it, SIGUSR2
//! lets it go on. When the lease in the agent's folder is over, it ends the job by force, whether or not
//! there is an agent. If it is killed itself, the kernel kills the job's first process with it, and the
//! agent what is left of the session.
//!
//! Standard input is the lock of its folder, standard output says `started` and the process of the job to
//! the agent.

use std::ffi::CString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::time::SystemClock;
use forebay_grid::spec::{Checkpoint, Exit};
use forebay_study::process::{Accounting, Child, Ended};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::area::{self, Left, bytes_below};
use crate::home::is_root;
use crate::launcher::usage_of;
use crate::message::{error_path, output_path};
use crate::runs::{End, RunFolder, Task, granted, uptime_ms};
use crate::user::{Account, account_of};

/// How long a job has after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// Runs the job of a folder to its end.
///
/// # Errors
/// If its end could not be written down.
pub fn run(path: &Path) -> Result<()> {
    // SAFETY: ignoring a signal is always sound; the job gets the default back.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    name_process(path);
    let folder = RunFolder::at(path.to_owned());
    let signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD])?;
    folder.say_pid().with_context(|| format!("no folder of a run: {}", path.display()))?;
    let task = folder.task()?;
    let end = match hold(&folder, &task, signals) {
        Ok(end) => end,
        Err(error) => End { exit: Exit::NotStarted(format!("{error:#}")), usage: None },
    };
    folder.say_end(&end)
}

/// Shows which run this is, where processes are listed.
fn name_process(path: &Path) {
    let run = path.file_name().unwrap_or_default().to_string_lossy();
    if let Ok(name) = CString::new(format!("shim {run}")) {
        let _ = rustix::thread::set_name(&name);
    }
}

fn hold(folder: &RunFolder, task: &Task, mut signals: Signals) -> Result<End> {
    let account = account_of(&task.launch.user)?;
    let left = match task.launch.spec.checkpoint {
        Checkpoint::None => Left::Removed,
        Checkpoint::Steps => Left::Kept,
    };
    area::make(&task.work, left, &account)?;
    area::make(&task.util, left, &account)?;
    anyhow::ensure!(granted(&task.agent) > uptime_ms(), "the lease of the host is over");
    let accounting = Accounting::find(Arc::new(SystemClock));
    // Said before: if this process is killed in between, nobody takes the job for one that never started.
    folder.say_started()?;
    let mut child = Child::spawn(command(task, &account)?, &accounting)?;
    // The agent may be gone; the next one finds the file.
    let _ = std::io::stdout().write_all(format!("started {}\n", child.id()).as_bytes());
    let agent = task.agent.clone();
    std::thread::spawn(move || watch_lease(&agent));
    // A child that ended before the signals were looked at is found here.
    while child.try_wait()?.is_none() {
        for signal in signals.wait() {
            pass_on(signal, &child);
        }
    }
    let ended = child.wait()?;
    Ok(End {
        exit: exit_of(ended),
        usage: Some(Box::new(usage_of(&ended.usage, bytes_below(&task.work)))),
    })
}

fn pass_on(signal: i32, child: &Child) {
    match signal {
        SIGTERM => {
            child.signal(Signal::TERM);
            // A process that is suspended can end only when it goes on.
            child.signal(Signal::CONT);
            std::thread::spawn(|| {
                std::thread::sleep(GRACE);
                end_by_force();
            });
        }
        SIGINT => child.signal(Signal::KILL),
        SIGUSR1 => child.signal(Signal::STOP),
        SIGUSR2 => child.signal(Signal::CONT),
        _ => {}
    }
}

/// Has the thread that owns the job kill it.
fn end_by_force() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::INT);
}

fn watch_lease(agent: &Path) {
    loop {
        let (until, now) = (granted(agent), uptime_ms());
        if until <= now {
            end_by_force();
            return;
        }
        std::thread::sleep(Duration::from_millis(until - now));
    }
}

/// The environment that the grid gives, before what the job asks for.
fn environment(task: &Task, account: &Account) -> Vec<(String, String)> {
    let launch = &task.launch;
    let path = |path: &Path| path.display().to_string();
    let mut variables = vec![
        ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("HOME".to_owned(), account.home.clone()),
        ("USER".to_owned(), launch.user.to_string()),
        ("LOGNAME".to_owned(), launch.user.to_string()),
    ];
    variables.extend(launch.spec.environment.iter().cloned());
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
    if launch.attempt.0 > 1 {
        variables.push(("FOREBAY_RESTART".to_owned(), "1".to_owned()));
    }
    variables
}

fn command(task: &Task, account: &Account) -> Result<Command> {
    let spec = &task.launch.spec;
    let mut command = Command::new(&spec.command[0]);
    command.args(&spec.command[1..]).env_clear().envs(environment(task, account));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let text = |path: &str| CString::new(Path::new(path).as_os_str().as_bytes());
    let output = text(&output_path(spec, task.launch.task))?;
    let error = error_path(spec, task.launch.task).map(|path| text(&path)).transpose()?;
    let directory = text(if spec.directory.is_empty() { "/" } else { &spec.directory })?;
    let fresh = if task.launch.attempt.0 == 1 { libc::O_TRUNC } else { 0 };
    let umask = spec.umask & 0o777;
    let become_user = is_root().then(|| account.clone());
    let prepare = move || {
        // SAFETY: system calls on numbers, and on texts and lists that the closure owns.
        unsafe {
            if let Some(account) = &become_user {
                step(libc::setgroups(account.groups.len(), account.groups.as_ptr()))?;
                step(libc::setgid(account.gid))?;
                step(libc::setuid(account.uid))?;
            }
            libc::umask(umask);
            step(libc::chdir(directory.as_ptr()))?;
            // What the daemons were started with is not the job's.
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed());
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | fresh;
            let opened = step(libc::open(output.as_ptr(), flags, 0o666))?;
            step(libc::dup2(opened, 1))?;
            let errors = match &error {
                Some(error) => step(libc::open(error.as_ptr(), flags, 0o666))?,
                None => opened,
            };
            step(libc::dup2(errors, 2))?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls on memory that was prepared before, and
    // allocates nothing.
    unsafe { command.pre_exec(prepare) };
    Ok(command)
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

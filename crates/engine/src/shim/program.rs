//! What a job is when it begins: its program, its environment, its user, its directory and its files.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use forebay_grid::dialect::OldOutput;
use forebay_grid::spec::Checkpoint;
use forebay_process::descriptors::close_others_on_exec;
use forebay_process::user::{Account, is_root};

use super::dialect;
use super::progress::{Part, Progress};
use super::{fullstimer, script, wrap};
use crate::run::Task;

/// Between fork and exec: makes the terminal at standard input that of a new session.
pub fn take_terminal() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: TIOCSCTTY takes a number.
    step(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    Ok(())
}

/// Where the standard streams of a job come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// Files, as the job says.
    Files,
    /// The command has them.
    Given,
}

/// Variables that the grid sets, whatever a job asks for.
pub const VARIABLES: [&str; 14] = [
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
    "FOREBAY_SERVICE",
    "FOREBAY_PORT",
    fullstimer::VARIABLE,
];

/// The environment: what the grid always gives, what the job brings, and what the grid sets.
pub fn environment(task: &Task, account: &Account) -> Vec<(String, String)> {
    let launch = &task.launch;
    let path = |path: &Path| path.display().to_string();
    let mut variables = vec![
        ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("HOME".to_owned(), account.home.clone()),
        ("USER".to_owned(), launch.user.to_string()),
        ("LOGNAME".to_owned(), launch.user.to_string()),
    ];
    if task.allocation.is_some() {
        variables.extend(super::allocation::variables());
    }
    let brought = launch.spec.environment.iter();
    variables.extend(brought.filter(|(key, _)| !VARIABLES.contains(&key.as_str())).cloned());
    variables.extend(dialect::variables(task));
    let (work, util) = (path(&task.work), path(&task.util));
    for spill in launch.wrap.iter().flat_map(|wrap| &wrap.spill) {
        let (name, value) = spill.variable(&work, &util);
        variables.push((name.to_owned(), value));
    }
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
    // In an allocation Slurm says which devices they are.
    if let Some(gpus) = launch.gpus.as_ref().filter(|_| task.allocation.is_none()) {
        // Also without any: a job that has asked for no device sees none.
        let numbers: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        variables.push(("CUDA_VISIBLE_DEVICES".to_owned(), numbers.join(",")));
    }
    if let Some(service) = &launch.spec.service {
        variables.push(("FOREBAY_SERVICE".to_owned(), service.name.to_string()));
    }
    if let Some(port) = launch.watch.and_then(|watch| watch.port) {
        variables.push(("FOREBAY_PORT".to_owned(), port.to_string()));
    }
    if launch.spec.checkpoint == Checkpoint::Steps {
        variables.push(("FOREBAY_CHECKPOINT".to_owned(), "1".to_owned()));
    }
    if let Some(log) = fullstimer::path(task) {
        variables.push((fullstimer::VARIABLE.to_owned(), path(&log)));
    }
    if launch.attempt.0 > 1 {
        variables.push(("FOREBAY_RESTART".to_owned(), "1".to_owned()));
    }
    variables
}

/// The program of a job with its arguments and its environment.
pub fn command(task: &Task, account: &Account) -> Result<Command> {
    let spec = &task.launch.spec;
    let mut command = match &spec.script {
        Some(text) => script::command(text, &task.work, account)?,
        None => Command::new(&spec.command[0]),
    };
    command.args(&spec.command[1..]);
    let mut command = match &task.launch.wrap {
        Some(wrap) if wrap.surrounds() => wrap::around(&command, wrap),
        Some(_) | None => command,
    };
    command.env_clear().envs(environment(task, account));
    Ok(command)
}

/// What a child does to become the job: its user, its directory, its files.
pub fn become_job(
    task: &Task,
    account: &Account,
    channels: Channels,
    progress: &Progress,
) -> Result<impl FnMut() -> std::io::Result<()> + Send + Sync + 'static> {
    let spec = &task.launch.spec;
    let text = |path: &str| CString::new(Path::new(path).as_os_str().as_bytes());
    let (id, host) = (task.launch.task, Some(&task.host));
    let output = text(&spec.output_path(id, host))?;
    let error = spec.error_path(id, host).map(|path| text(&path)).transpose()?;
    let directory = text(if spec.directory.is_empty() { "/" } else { &spec.directory })?;
    let empties = task.launch.attempt.0 == 1 && spec.old_output() == OldOutput::Emptied;
    let fresh = if empties { libc::O_TRUNC } else { 0 };
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
            close_others_on_exec();
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

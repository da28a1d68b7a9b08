//! The process from which shims are forked, and the shims that are free.
//!
//! Executing this program for each job costs more than most of what a shim does: its libraries are linked, its
//! arguments parsed, the user database opened anew. So the agent starts one process that has done all this, and
//! has it fork. It has one thread, which makes forking safe, and little memory, which makes it cheap.
//!
//! A fork still costs a third of a short job. So a shim whose job has ended in the ordinary way waits for another one,
//! which the agent gives to it by name: as many as the host has slots, each for `FREE_MAX_MS` at most.
//!
//! The lock of a run's file is held while the request is on its way, so a run counts as begun from then on,
//! whoever dies.
//!
//! The nursery ends when the agent's side of its socket is closed, and so does a shim that is free. Shims that hold a job
//! go on; one that ended is taken note of by the kernel alone. If the nursery is killed, the agent starts another one
//! with the next job.

use std::fs::File;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit};

use crate::run::request;
use crate::run::{End, Log, Run};
use crate::{shim, user};

/// How long a shim waits for another job, in milliseconds.
const FREE_MAX_MS: u64 = 10_000;
/// Steps of starting nurseries and asking them before a run is given up: one may be killed as soon as it is
/// there.
const ATTEMPTS_MAX: usize = 12;

/// The agent's side.
pub struct Nursery {
    program: (PathBuf, String),
    folder: PathBuf,
    running: Option<(Child, OwnedFd)>,
    /// Lines to shims that hold no job, with when they were last seen to hold one; at most `free_max`.
    free: Vec<(OwnedFd, u64)>,
    free_max: usize,
    /// How many files shims and jobs may open.
    files: Rlimit,
}

impl Nursery {
    /// One that is started with the first job: `program` and its argument, then the agent's folder. It keeps
    /// `free_max` shims for the next jobs. Those may open as many files as this process may now.
    pub fn new(program: (PathBuf, String), folder: PathBuf, free_max: usize) -> Nursery {
        let files = rustix::process::getrlimit(Resource::Nofile);
        Nursery { program, folder, running: None, free: Vec::new(), free_max, files }
    }

    /// Has a shim take over the locked file of its run: a free one, or a new one. The line to it.
    ///
    /// # Errors
    /// If it cannot be asked for, also not of several nurseries that were just started.
    pub fn start(&mut self, run: &Run, file: &File) -> Result<OwnedFd> {
        // The one that had a job last has its memory at hand. One that was killed has closed its line.
        while let Some((line, _)) = self.free.pop() {
            if request::ask(&line, run.path(), &[file.as_fd()]).is_ok() {
                return Ok(line);
            }
        }
        let (ours, theirs) = request::line()?;
        let mut refused = None;
        for _ in 0..ATTEMPTS_MAX {
            let Some((_, socket)) = &self.running else {
                self.begin()?;
                continue;
            };
            match request::ask(socket, run.path(), &[file.as_fd(), theirs.as_fd()]) {
                Ok(()) => return Ok(ours),
                // It read nothing of that: another one can be asked the same.
                Err(error) => refused = Some(error),
            }
            self.end();
        }
        let refused = refused.context("the process that starts jobs did not start")?;
        Err(refused).context("no shim can be started")
    }

    /// Keeps a shim that is free for another job; one too many ends.
    pub fn keep(&mut self, line: OwnedFd, now_ms: u64) {
        if self.free.len() < self.free_max {
            self.free.push((line, now_ms));
        }
    }

    /// Ends shims that have waited for long.
    pub fn thin_out(&mut self, now_ms: u64) {
        self.free.retain(|(_, since_ms)| now_ms < since_ms + FREE_MAX_MS);
    }

    fn begin(&mut self) -> Result<()> {
        let (ours, theirs) = request::line()?;
        let (program, argument) = &self.program;
        let mut command = Command::new(program);
        command.arg(argument).arg("--nursery").arg(&self.folder).current_dir("/");
        command.stdin(theirs).stdout(Stdio::null());
        let files = self.files;
        // SAFETY: both calls are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setsid()?;
                // Jobs have the limit that their agent was started with.
                let _ = rustix::process::setrlimit(Resource::Nofile, files);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| program.display().to_string())?;
        self.running = Some((child, ours));
        Ok(())
    }

    fn end(&mut self) {
        if let Some((mut child, socket)) = self.running.take() {
            drop(socket);
            // It ends by itself as soon as it has seen the end of the socket.
            let _ = child.wait();
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        self.end();
    }
}

/// The nursery itself: forks a shim for each request on standard input. Returns in the nursery when the agent
/// is gone, and in each shim when it holds no job any more.
///
/// # Errors
/// If a shim could not write down how its job ended.
pub fn serve() -> Result<()> {
    heed_signals();
    // SAFETY: nobody else uses descriptor 0, and ignoring a signal is always sound: the kernel takes care of
    // shims that end. Every shim gets the default back.
    let socket = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        OwnedFd::from_raw_fd(0)
    };
    // So that shims find the modules of the user database loaded.
    if let Ok(name) = user::own_name() {
        let _ = user::account_of(&name);
    }
    while let Some((path, [file, line])) = request::take(&socket)? {
        // SAFETY: this process has one thread, so the child finds no lock taken by another one.
        match unsafe { libc::fork() } {
            0 => {
                become_shim(socket, file, line)?;
                shim::serve(path)?;
                // SAFETY: all is said. What libraries do at the end costs, and concerns nobody.
                unsafe { libc::_exit(0) };
            }
            -1 => {
                let error = std::io::Error::last_os_error();
                let error = anyhow::Error::new(error).context("no process can be started");
                Log::of(file.as_fd()).say_end(&End::unable(&error))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Ignores no signal any more: what whoever started the daemons did not want to hear of (nohup), jobs may want to.
fn heed_signals() {
    // SAFETY: zeros are a valid action; the default of a signal is always sound.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        for signal in 1..=libc::SIGRTMAX() {
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
            if known && action.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Makes of a forked child what a shim is: a session of its own, the file of its run for standard input and the line
/// for standard output.
fn become_shim(socket: OwnedFd, file: OwnedFd, line: OwnedFd) -> Result<()> {
    drop(socket);
    rustix::process::setsid()?;
    // SAFETY: the default of a signal is always sound.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    rustix::stdio::dup2_stdin(&file)?;
    rustix::stdio::dup2_stdout(&line)?;
    drop((file, line));
    Ok(())
}

//! The process from which shims are forked.
//!
//! Executing this program for each job costs more than most of what a shim does: its libraries are linked, its
//! arguments parsed, the user database opened anew. So the agent starts one process that has done all this, and
//! has it fork. It has one thread, which makes forking safe, and little memory, which makes it cheap.
//!
//! A request is the path of a run's file with two descriptors: the file, locked by the agent until the shim has
//! it, and the pipe on which the shim says that the job was started. The lock is held while the request is on
//! its way, so a run counts as begun from then on, whoever dies.
//!
//! It ends when the agent's side of the socket is closed. Shims do not end with it; one that ended is taken
//! note of by the kernel alone. If it is killed, the agent starts another one with the next job.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::runs::{End, Log, Run};
use crate::{shim, user};

/// Longest path of a folder in bytes; Linux takes no longer ones.
const PATH_MAX: usize = 4096;
/// Steps of starting nurseries and asking them before a run is given up: one may be killed as soon as it is
/// there.
const ATTEMPTS_MAX: usize = 12;

/// The agent's side.
pub struct Nursery {
    program: (PathBuf, String),
    folder: PathBuf,
    running: Option<(Child, OwnedFd)>,
}

impl Nursery {
    /// One that is started with the first job: `program` and its argument, then the agent's folder.
    pub fn new(program: (PathBuf, String), folder: PathBuf) -> Nursery {
        Nursery { program, folder, running: None }
    }

    /// Has a shim started that takes over the locked file of its run.
    ///
    /// # Errors
    /// If it cannot be asked for, also not of several nurseries that were just started.
    pub fn start(&mut self, run: &Run, file: &File, said: &PipeWriter) -> Result<()> {
        let mut refused = None;
        for _ in 0..ATTEMPTS_MAX {
            let Some((_, socket)) = &self.running else {
                self.begin()?;
                continue;
            };
            match request(socket, run.path(), file, said) {
                Ok(()) => return Ok(()),
                // It read nothing of that: another one can be asked the same.
                Err(error) => refused = Some(error),
            }
            self.end();
        }
        let refused = refused.context("no nursery came up")?;
        Err(refused).context("no shim can be started")
    }

    fn begin(&mut self) -> Result<()> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (program, argument) = &self.program;
        let mut command = Command::new(program);
        command.arg(argument).arg("--nursery").arg(&self.folder).current_dir("/");
        command.stdin(theirs).stdout(Stdio::null());
        // SAFETY: setsid is safe to call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
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

fn request(socket: &OwnedFd, path: &Path, file: &File, said: &PipeWriter) -> Result<()> {
    let files = [file.as_fd(), said.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let bytes = [IoSlice::new(path.as_os_str().as_bytes())];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
    });
    sent.map(|_| ()).map_err(Into::into)
}

/// The nursery itself: forks a shim for each request on standard input. Returns in the nursery when the agent
/// is gone, and in each shim when its job has ended.
///
/// # Errors
/// If a shim could not write down how its job ended.
pub fn serve() -> Result<()> {
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
    let mut buffer = [0; PATH_MAX];
    loop {
        let Some((path, file, said)) = take(&socket, &mut buffer)? else { return Ok(()) };
        // SAFETY: this process has one thread, so the child finds no lock taken by another one.
        match unsafe { libc::fork() } {
            0 => {
                become_shim(socket, file, said)?;
                shim::run(&path)?;
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
}

/// The next request; none when the agent is gone.
fn take(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<(PathBuf, OwnedFd, OwnedFd)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut bytes = [IoSliceMut::new(buffer)];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut bytes, &mut ancillary, flags)
    })?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            files.extend(given);
        }
    }
    let (Some(said), Some(file)) = (files.pop(), files.pop()) else { return Ok(None) };
    let path = PathBuf::from(OsStr::from_bytes(&buffer[..received.bytes]));
    Ok(Some((path, file, said)))
}

/// Makes of a forked child what a shim is: a session of its own, the file of its run for standard input and the pipe
/// for standard output.
fn become_shim(socket: OwnedFd, file: OwnedFd, said: OwnedFd) -> Result<()> {
    drop(socket);
    rustix::process::setsid()?;
    // SAFETY: the default of a signal is always sound.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    rustix::stdio::dup2_stdin(&file)?;
    rustix::stdio::dup2_stdout(&said)?;
    drop((file, said));
    Ok(())
}

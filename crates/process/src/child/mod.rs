//! Child processes from start to end: each in a group of its own, waited for without polling, and
//! accounted for.
//!
//! Invariants: a process is reaped here and nowhere else, once, so that its number stands for it until
//! then; its group is signalled only before that. When a process ends, what is left of its group is
//! killed; when a [`Child`] is dropped or the thread that started it ends, the process is killed. What
//! leaves the group (setsid(2)) is not found. Needs Linux 5.4 (pidfd).

mod group;
mod handover;
mod program;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::Usage;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use rustix::thread::CapabilitySet;

use crate::accounting::{Accounting, Counters, Delays, Schedule};
use crate::error::{Error, Result};
use crate::stat::Stat;
pub use group::enter as enter_group;
pub use program::Program;

/// A child process. It is killed, with its group, if this is dropped.
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    /// Its `/proc/PID/io`.
    counters: Option<File>,
    accounting: Arc<Accounting>,
    started: Instant,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    ended: Option<Ended>,
    /// Whether someone else reaped it, so that its number may be another's.
    lost: bool,
}

/// How a process ended, and what it used.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its exit code or the signal that killed it.
    pub status: ExitStatus,
    /// What it used.
    pub usage: Usage,
    /// Its counters at the end, for the sampler; `None` if the kernel does not tell.
    pub counters: Option<Counters>,
}

impl Child {
    /// Starts a process in a group of its own. It is killed when the thread that calls this ends, so
    /// that nothing outlives a study that is killed.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started; [`Error::NotHeld`] if it was started, could not be held on to and was
    /// killed.
    pub fn spawn(mut command: Command, accounting: &Arc<Accounting>) -> Result<Child> {
        command.process_group(0);
        Child::spawn_leader(command, accounting)
    }

    /// Starts a process that makes a group of its own, with a session, before it is executed. It is
    /// killed as one that [`Child::spawn`] started; what is left of its session is not.
    ///
    /// # Errors
    /// As [`Child::spawn`].
    pub fn spawn_leader(mut command: Command, accounting: &Arc<Accounting>) -> Result<Child> {
        let program = command.get_program().to_owned();
        let refused = |source: io::Error| Error::io("start", Path::new(&program))(source);
        let parent = std::process::id();
        let (receiver, sender) = handover::pair().map_err(refused)?;
        let prepare = move || {
            end_with_parent(parent)?;
            // Without its counters it may run nevertheless.
            let _ = sender.send();
            Ok(())
        };
        // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
        unsafe {
            command.pre_exec(prepare);
        }
        let started = accounting.now();
        let mut process = command.spawn().map_err(refused)?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| refused(Errno::SRCH.into()))?;
        let mut child = Child::take(pid, Path::new(&program), Some(receiver), accounting, started)?;
        child.stdin = process.stdin.take();
        child.stdout = process.stdout.take();
        child.stderr = process.stderr.take();
        Ok(child)
    }

    /// Starts a program in a group of its own as [`Child::spawn`] does, without a copy of this process's memory,
    /// once `prepare` has made of it what it shall be; in the control group whose folder `group` is, if there is one.
    ///
    /// # Errors
    /// As [`Child::spawn`], and the error of `prepare`.
    ///
    /// # Safety
    /// As [`Program::start`].
    pub unsafe fn start(
        program: &Program,
        prepare: &mut dyn FnMut() -> io::Result<()>,
        group: Option<BorrowedFd<'_>>,
        accounting: &Arc<Accounting>,
    ) -> Result<Child> {
        let refused = |source: io::Error| Error::io("start", program.name())(source);
        let parent = std::process::id();
        let counters =
            if may_look_later() { None } else { Some(handover::pair().map_err(refused)?) };
        let mut prepare = || {
            rustix::process::setpgid(None, None)?;
            // Without its counters it may run nevertheless.
            let _ = counters.as_ref().map(|(_, sender)| sender.send());
            prepare()?;
            end_with_parent(parent)
        };
        let started = accounting.now();
        // SAFETY: it makes system calls, and those of which the caller says that they may be made.
        let pid = unsafe { program.start(&mut prepare, group) }.map_err(refused)?;
        Child::take(pid, program.name(), counters.map(|(ours, _)| ours), accounting, started)
    }

    /// Takes over a child that was just started.
    fn take(
        pid: Pid,
        name: &Path,
        counters: Option<handover::Receiver>,
        accounting: &Arc<Accounting>,
        started: Instant,
    ) -> Result<Child> {
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // Best effort: the error is what the caller must know.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = wait4(pid);
                return Err(Error::NotHeld { program: name.to_owned(), source: error.into() });
            }
        };
        Ok(Child {
            pid,
            pidfd,
            // One that has become another user before could not open them itself; then this process is root's.
            counters: counters.and_then(handover::Receiver::receive).or_else(|| counters_of(pid)),
            accounting: Arc::clone(accounting),
            started,
            stdin: None,
            stdout: None,
            stderr: None,
            ended: None,
            lost: false,
        })
    }

    /// Its number, which is also its group's. It stands for another process soon after the end was seen.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Its standard input, if it was piped and not taken before.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Its standard output, if it was piped and not taken before.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// Its standard error, if it was piped and not taken before.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// How it ended; `None` if it still runs. Ended processes are reaped here.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel does not know the process: someone else reaped it.
    pub fn try_wait(&mut self) -> Result<Option<&Ended>> {
        self.wait_with(WaitIdOptions::NOHANG)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Child::try_wait`].
    pub fn wait(&mut self) -> Result<&Ended> {
        // Without NOHANG there is no other answer.
        let gone = Error::io("wait for", Path::new("process"));
        self.wait_with(WaitIdOptions::empty())?.ok_or_else(|| gone(Errno::CHILD.into()))
    }

    fn wait_with(&mut self, how: WaitIdOptions) -> Result<Option<&Ended>> {
        if self.ended.is_none() {
            // NOWAIT leaves a zombie, whose number and counters are still there.
            let options = how | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let status =
                rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options));
            let ended = match status {
                Ok(None) => return Ok(None),
                Ok(Some(_)) => self.reap(),
                Err(error) => Err(error.into()),
            };
            self.lost = ended.is_err();
            self.ended = Some(ended.map_err(Error::io("wait for", &self.name()))?);
        }
        Ok(self.ended.as_ref())
    }

    /// Accounts for the process, which has ended, and lets it go.
    fn reap(&self) -> io::Result<Ended> {
        let real = self.accounting.now().saturating_duration_since(self.started);
        let counters = self.counters.as_ref().and_then(Counters::of_file);
        // What its children waited for is not in it, and may be most of the time.
        let alone = Stat::of(self.pid).is_none_or(|stat| stat.children_faults == 0);
        let delays = alone.then(|| self.accounting.delays_of(self.pid)).flatten();
        let delays = delays.map(|delays| delays.without_miscounts(real.as_secs_f64(), uptime()));
        let schedule = alone.then(|| Schedule::of(self.pid)).flatten();
        // What it left behind would go on without anybody who waits for it.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let (status, rusage) = wait4(self.pid)?;
        let mut usage = usage(real, &rusage, counters.as_ref(), delays);
        if usage.processor_wait_seconds.is_none() {
            let used = usage.user_seconds + usage.system_seconds;
            usage.processor_wait_seconds = schedule.and_then(|one| one.of_process(used));
        }
        Ok(Ended { status: ExitStatus::from_raw(status), usage, counters })
    }

    /// Sends a signal to the whole group, if the process was not reaped.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() && !self.lost {
            // A group that is gone needs no signal.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    fn name(&self) -> std::path::PathBuf {
        format!("process {}", self.id()).into()
    }
}

/// Readable when the process has ended.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if !self.lost {
            // Nobody is left to be told.
            let _ = self.wait();
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("pid", &self.id()).field("ended", &self.ended).finish()
    }
}

/// Waits until one of the children has ended or `timeout` has passed, or a signal came.
///
/// # Errors
/// [`Error::Io`].
pub fn wait_any<'a>(
    children: impl IntoIterator<Item = &'a Child>,
    timeout: Duration,
) -> Result<()> {
    let running = children.into_iter().filter(|child| child.ended.is_none());
    let mut files: Vec<PollFd<'_>> =
        running.map(|child| PollFd::new(child, PollFlags::IN)).collect();
    let timeout = rustix::event::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut files, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("wait for", Path::new("processes"))(error.into())),
    }
}

/// Ends all that still run: asks them to (`SIGTERM`), and kills those that have not ended after `grace`.
/// Afterwards every child has ended and [`Child::wait`] tells how.
///
/// # Errors
/// The first error of waiting; the others are ended nevertheless.
pub fn end_all(children: &mut [Child], grace: Duration) -> Result<()> {
    for child in children.iter() {
        child.signal(Signal::TERM);
        // A process that was stopped can end only when it goes on.
        child.signal(Signal::CONT);
    }
    let Some(accounting) = children.first().map(|child| Arc::clone(&child.accounting)) else {
        return Ok(());
    };
    let start = accounting.now();
    let mut outcome = Ok(());
    loop {
        let mut running = false;
        for child in children.iter_mut() {
            match child.try_wait() {
                Ok(ended) => running |= ended.is_none(),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let passed = accounting.now().saturating_duration_since(start);
        if !running || passed >= grace || outcome.is_err() {
            break;
        }
        outcome = outcome.and(wait_any(children.iter(), grace - passed));
    }
    for child in children.iter_mut() {
        child.signal(Signal::KILL);
        outcome = outcome.and(child.wait().map(|_| ()));
    }
    outcome
}

/// In the child, before exec: it dies with its parent.
fn end_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may be gone already.
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Whether this process may open the counters of any process, also of one that has become another user or has ended: then
/// nobody has to hand them over.
fn may_look_later() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let sets = rustix::thread::capabilities(None);
        rustix::process::geteuid().is_root()
            && sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
    })
}

/// The counters of a process that was not reaped, if this one may read them.
fn counters_of(pid: Pid) -> Option<File> {
    File::open(format!("/proc/{}/io", pid.as_raw_nonzero())).ok()
}

/// Seconds since the boot, by the clock that the kernel measures delays with.
fn uptime() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Reaps a process that has ended.
fn wait4(pid: Pid) -> io::Result<(i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage, which has integer fields only.
    let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to what lives through the call.
        let reaped =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut rusage) };
        if reaped >= 0 {
            return Ok((status, rusage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn usage(
    real: Duration,
    rusage: &libc::rusage,
    counters: Option<&Counters>,
    delays: Option<Delays>,
) -> Usage {
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
    Usage {
        real_seconds: real.as_secs_f64(),
        user_seconds: seconds(rusage.ru_utime),
        system_seconds: seconds(rusage.ru_stime),
        // In KiB.
        peak_memory_bytes: Some(count(rusage.ru_maxrss) * 1024),
        minor_faults: count(rusage.ru_minflt),
        major_faults: count(rusage.ru_majflt),
        voluntary_switches: count(rusage.ru_nvcsw),
        involuntary_switches: count(rusage.ru_nivcsw),
        read_bytes: counters.map(|counters| counters.read_bytes),
        written_bytes: counters.map(|counters| counters.written_bytes),
        work_bytes: None,
        read_calls: counters.map(|counters| counters.read_calls),
        write_calls: counters.map(|counters| counters.write_calls),
        device_read_bytes: counters.map(|counters| counters.device_read_bytes),
        device_written_bytes: counters.map(Counters::device_written_bytes),
        io_wait_seconds: delays.and_then(|delays| delays.io_seconds),
        memory_wait_seconds: delays.and_then(|delays| delays.memory_seconds),
        processor_wait_seconds: delays.and_then(|delays| delays.processor_seconds),
        io_pressure_seconds: None,
    }
}

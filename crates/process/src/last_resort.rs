//! What the kernel does when processes can do nothing themselves, because they are stopped or frozen.
//!
//! A [`Deadline`] kills this process at a time, also when it is stopped then: the timer is the kernel's (timer_create(2)), and a stopped
//! process dies of SIGKILL before it could go on. A [`Bond`] kills a process group when this process has ended, however it ended: the
//! kernel closes its pipes then and signals that to the group, which owns them, by SIGKILL (`F_SETOWN`, `F_SETSIG` in fcntl(2)). Both together
//! end a group of processes at a time although all of them, and everything that watches them, stand still.
//!
//! Neither survives execve(2) or is inherited by a fork. A process that has left the group is not in the bond.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

/// A time at which the kernel kills this process. Dropping it takes that back.
#[derive(Debug)]
pub struct Deadline(libc::timer_t);

impl Deadline {
    /// One that is not set.
    ///
    /// # Errors
    /// If the kernel has no timer left for this user.
    pub fn new() -> io::Result<Deadline> {
        // SAFETY: all zeros is a valid value; the fields that matter are set below.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to values of this function; the timer is written before it is used.
        let made =
            unsafe { libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) };
        if made == 0 { Ok(Deadline(timer)) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets the time, in milliseconds since the machine was booted; one that has passed is now.
    ///
    /// # Errors
    /// If the kernel refuses. It accepts every valid time.
    pub fn set(&self, uptime_ms: u64) -> io::Result<()> {
        let uptime_ms = uptime_ms.max(1);
        let seconds = libc::time_t::try_from(uptime_ms / 1000).unwrap_or(libc::time_t::MAX);
        let nanoseconds = (uptime_ms % 1000) as libc::c_long * 1_000_000;
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let when = libc::itimerspec { it_interval: once, it_value: at };
        // SAFETY: the timer is this value's own, and nothing is asked about what was set before.
        let set = unsafe {
            libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const when, std::ptr::null_mut())
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's own, and used no more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// A process group that the kernel kills when this process has ended. Dropping it takes that back.
#[derive(Debug)]
pub struct Bond {
    // Go first: without them nothing is signalled any more.
    _readers: [OwnedFd; 2],
    _writers: [OwnedFd; 2],
}

/// Sets the signal of [`libc::F_SETOWN`] (asm-generic/fcntl.h); libc has no name for it.
const F_SETSIG: libc::c_int = 10;

/// Readers have numbers from here on where they are to be closed after their writers.
const HIGH: i32 = 64;

impl Bond {
    /// Binds a process group, which is there, to this process.
    ///
    /// # Errors
    /// If there are no descriptors left, or the group is gone.
    pub fn to_group(group: Pid) -> io::Result<Bond> {
        // As a process ends, its files are closed in an order that is the kernel's business: a signal needs the reader after the
        // writer, so there is a pair for each order.
        let (first, first_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (second, second_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let second = rustix::io::fcntl_dupfd_cloexec(&second, HIGH)?;
        for reader in [&first, &second] {
            let set = |command, value: libc::c_int| {
                // SAFETY: these commands take a number and touch no memory of this process.
                let done = unsafe { libc::fcntl(reader.as_raw_fd(), command, value) };
                if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
            };
            set(F_SETSIG, libc::SIGKILL)?;
            set(libc::F_SETOWN, -group.as_raw_nonzero().get())?;
            set(libc::F_SETFL, libc::O_ASYNC)?;
        }
        Ok(Bond { _readers: [first, second], _writers: [first_writer, second_writer] })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Signal, kill_process, kill_process_group};

    use super::*;
    use crate::stat::is_zombie;

    fn uptime_ms() -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
    }

    /// A process group of two in which each process sleeps, and its second process.
    fn group() -> (Child, Pid, Pid) {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let second = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let first = Pid::from_child(&child);
        (child, first, second)
    }

    /// Forks a process that does this and then sleeps. It allocates nothing, and is killed by the test in the end.
    fn forked(work: impl FnOnce()) -> Pid {
        // SAFETY: the child makes system calls only.
        match unsafe { libc::fork() } {
            0 => {
                work();
                loop {
                    // SAFETY: it only waits.
                    unsafe { libc::pause() };
                }
            }
            child => Pid::from_raw(child).expect("a child"),
        }
    }

    fn reap(pid: Pid) -> std::process::ExitStatus {
        let mut status = 0;
        // SAFETY: the status is written to a value of this function.
        let reaped = unsafe { libc::waitpid(pid.as_raw_nonzero().get(), &raw mut status, 0) };
        assert_eq!(reaped, pid.as_raw_nonzero().get());
        std::process::ExitStatus::from_raw(status)
    }

    #[test]
    fn a_process_that_is_stopped_dies_at_its_deadline_and_its_group_with_it() {
        let (mut job, group, second) = group();
        let holder = forked(|| {
            let _bond = std::mem::ManuallyDrop::new(Bond::to_group(group).unwrap());
            let deadline = std::mem::ManuallyDrop::new(Deadline::new().unwrap());
            // One that passes without effect, as another one is set before.
            deadline.set(uptime_ms() + 600_000).unwrap();
            deadline.set(uptime_ms() + 300).unwrap();
            kill_process_group(group, Signal::STOP).unwrap();
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
        });
        assert_eq!(reap(holder).signal(), Some(9));
        assert_eq!(job.wait().unwrap().signal(), Some(9));
        // Nobody may have taken note of its end yet.
        while !is_zombie(second) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_bond_that_is_dropped_kills_nothing() {
        let (mut job, group, second) = group();
        drop(Bond::to_group(group).unwrap());
        let deadline = Deadline::new().unwrap();
        deadline.set(uptime_ms() + 600_000).unwrap();
        drop(deadline);
        assert!(job.try_wait().unwrap().is_none() && !is_zombie(second));
        kill_process_group(group, Signal::KILL).unwrap();
        job.wait().unwrap();
    }
}

//! All processes of one session, found in /proc. The number of a session is not given out again as long as
//! one of its processes is there.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::stat::{self, is_zombie};

/// Signals each process of a session.
pub fn signal(session: Pid, signal: Signal) {
    for process in members(session) {
        let _ = signal_member(process, session, signal);
    }
}

/// Kills all processes of a session, those as well that they make meanwhile, and waits until they are gone.
pub fn end(session: Pid) {
    while !is_ended(session) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills the processes of a session; whether there was none left.
#[must_use]
pub fn is_ended(session: Pid) -> bool {
    let mut killed = false;
    for process in members(session) {
        killed |= !is_zombie(process) && signal_member(process, session, Signal::KILL).is_ok();
    }
    !killed
}

/// Signals a process if it still is of that session: its number may be another's by now.
fn signal_member(process: Pid, session: Pid, signal: Signal) -> rustix::io::Result<()> {
    let file = pidfd_open(process, PidfdFlags::empty())?;
    if session_of(process) == session.as_raw_nonzero().get() {
        pidfd_send_signal(&file, signal)?;
    }
    Ok(())
}

/// The session of a process; zero of threads of the kernel, for which rustix has no word.
fn session_of(process: Pid) -> i32 {
    // SAFETY: it asks for a number.
    unsafe { libc::getsid(process.as_raw_nonzero().get()) }
}

fn members(session: Pid) -> impl Iterator<Item = Pid> {
    let number = session.as_raw_nonzero().get();
    stat::all().filter(move |pid| session_of(*pid) == number)
}

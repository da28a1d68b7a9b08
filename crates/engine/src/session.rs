//! All processes of one session, found in /proc. The number of a session is not given out again as long as
//! one of its processes is there.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

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

fn members(session: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number)
    });
    pids.filter(|pid| session_of(*pid) == session.as_raw_nonzero().get()).collect()
}

/// What the kernel says of a process.
pub struct Stat {
    /// Whether it has ended, and only its parent does not know yet.
    pub is_zombie: bool,
    /// None if its parent is not in this namespace.
    pub parent: Option<Pid>,
    /// When it was started, in ticks since the boot.
    pub started: u64,
}

impl Stat {
    /// None if it is not there.
    pub fn of(pid: Pid) -> Option<Stat> {
        /// Of the fields behind the state: the start is the 22nd of all.
        const STARTED: usize = 17;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The name may have spaces and brackets; the state comes third, the parent fourth.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let is_zombie = matches!(words.next()?, "Z" | "X");
        let parent = Pid::from_raw(words.next()?.parse().ok()?);
        Some(Stat { is_zombie, parent, started: words.nth(STARTED)?.parse().ok()? })
    }
}

/// When a process was started, in ticks since the boot; none if it is not there.
pub fn start_of(pid: Pid) -> Option<u64> {
    Some(Stat::of(pid)?.started)
}

/// Whether a process has ended, and only its parent does not know yet, or that as well.
pub fn is_zombie(pid: Pid) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.is_zombie)
}

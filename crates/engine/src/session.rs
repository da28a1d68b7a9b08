//! All processes of one session, found in /proc. The number of a session is not given out again as long as
//! one of its processes is there.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Signals each process of a session.
pub fn signal(session: Pid, signal: Signal) {
    for process in members(session) {
        let _ = kill_process(process, signal);
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
        killed |= !is_zombie(process) && kill_process(process, Signal::KILL).is_ok();
    }
    !killed
}

fn members(session: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number)
    });
    // SAFETY: it asks for a number. Threads of the kernel have none, for which rustix has no word.
    let of = |pid: &Pid| unsafe { libc::getsid(pid.as_raw_nonzero().get()) };
    pids.filter(|pid| of(pid) == session.as_raw_nonzero().get()).collect()
}

/// When a process was started, in ticks since the boot; none if it is not there.
pub fn start_of(pid: Pid) -> Option<u64> {
    const PLACE: usize = 19;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name may have spaces and brackets; the state comes third, the start 22nd.
    stat.rsplit_once(") ")?.1.split(' ').nth(PLACE)?.parse().ok()
}

/// Whether a process has ended, and only its parent does not know yet.
pub fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| Some(stat.rsplit_once(") ")?.1.chars().next()));
    matches!(state, None | Some(Some('Z' | 'X')))
}

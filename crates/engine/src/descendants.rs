//! All processes that come from a job, whatever group or session they have made for themselves.
//!
//! A shim adopts what its job leaves behind (PR_SET_CHILD_SUBREAPER), so everything that comes from the job is
//! below the shim, and found there in /proc. If the shim itself is killed, that is lost: what had a session of
//! its own then goes on.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, pidfd_open, pidfd_send_signal, waitid,
};

use crate::session::{self, Stat, is_zombie};

/// From now on orphans among the descendants of this process are its children.
///
/// # Errors
/// If the kernel cannot do that.
pub fn adopt() -> Result<(), Errno> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// A process that was found below this one. Its number may be another's by the time that it is signalled, so it is known
/// by when it was started as well.
#[derive(Clone, Copy)]
struct Found {
    pid: Pid,
    started: u64,
}

impl Found {
    /// Signals it if it is still there.
    fn signal(self, signal: Signal) {
        let Ok(process) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        if session::start_of(self.pid) == Some(self.started) {
            let _ = pidfd_send_signal(&process, signal);
        }
    }
}

/// Processes below this one that have not ended.
fn living() -> Vec<Found> {
    let own = rustix::process::getpid();
    let (mut known, mut next) = (HashSet::from([own]), vec![own]);
    let mut living = Vec::new();
    while let Some(process) = next.pop() {
        for pid in children_of(process) {
            // One that was adopted meanwhile may come twice; one of another parent is another process by now.
            let Some(stat) = Stat::of(pid) else { continue };
            if !stat.parent.is_some_and(|parent| known.contains(&parent)) {
                continue;
            }
            if known.insert(pid) {
                next.push(pid);
                if !stat.is_zombie {
                    living.push(Found { pid, started: stat.started });
                }
            }
        }
    }
    living
}

fn children_of(process: Pid) -> Vec<Pid> {
    let folder = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| -> Vec<Pid> {
        list.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
    };
    lists.flat_map(numbers).collect()
}

/// Signals what is not in the group of the job's first process.
pub fn signal_outside(group: Pid, signal: Signal) {
    for process in living() {
        if getpgid(Some(process.pid)) != Ok(group) {
            process.signal(signal);
        }
    }
}

/// Takes note of orphans that have ended. The job's first process is left to its owner.
pub fn reap_others(first: Pid) {
    for process in children_of(rustix::process::getpid()) {
        if process != first && is_zombie(process) {
            let _ = waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// Kills all that is left of a job whose first process has ended, what is made meanwhile as well, and waits until
/// it is gone.
pub fn end(first: Pid) {
    // What came from a process that has ended is a child of this one by now.
    if children_of(rustix::process::getpid()) == [first] && is_zombie(first) {
        return;
    }
    let mut pause = Duration::from_millis(1);
    loop {
        let left = living();
        if left.is_empty() {
            return;
        }
        for process in left {
            process.signal(Signal::KILL);
        }
        std::thread::sleep(pause);
        // One that waits for a disk or a file server may take long.
        pause = (pause * 2).min(Duration::from_millis(100));
        reap_others(first);
    }
}

//! All processes that come from a job, whatever group or session they have made for themselves.
//!
//! A shim adopts what its job leaves behind (PR_SET_CHILD_SUBREAPER), so everything that comes from the job is
//! below the shim, and found there in /proc. If the shim itself is killed, that is lost: what had a session of
//! its own then goes on.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, waitid};

use crate::session::is_zombie;

/// From now on orphans among the descendants of this process are its children.
///
/// # Errors
/// If the kernel cannot do that.
pub fn adopt() -> Result<(), Errno> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Processes below this one that have not ended.
fn living() -> Vec<Pid> {
    let mut found = children_of(rustix::process::getpid());
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        for child in children_of(process) {
            // One that was adopted meanwhile may come twice.
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found.retain(|process| !is_zombie(*process));
    found
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
        if getpgid(Some(process)) != Ok(group) {
            let _ = kill_process(process, signal);
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
            let _ = kill_process(process, Signal::KILL);
        }
        std::thread::sleep(pause);
        // One that waits for a disk or a file server may take long.
        pause = (pause * 2).min(Duration::from_millis(100));
        reap_others(first);
    }
}

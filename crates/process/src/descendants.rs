//! All processes below one, whatever group or session they have made for themselves.
//!
//! A process that adopts what its children leave behind (PR_SET_CHILD_SUBREAPER) has everything that comes from them
//! below it, where /proc shows it. If it is killed itself, that is lost.

use std::collections::HashSet;
use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, pidfd_open, pidfd_send_signal, waitid,
};

use crate::small;
use crate::stat::{self, Stat, is_zombie};

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
        if stat::start_of(self.pid) == Some(self.started) {
            let _ = pidfd_send_signal(&process, signal);
        }
    }
}

/// Numbers of the processes below this one that have not ended.
#[must_use]
pub fn processes() -> Vec<Pid> {
    processes_below(rustix::process::getpid())
}

/// Numbers of the processes below one that have not ended.
#[must_use]
pub fn processes_below(top: Pid) -> Vec<Pid> {
    living(top).into_iter().map(|found| found.pid).collect()
}

/// Kills what is below a process, which may be stopped, and what is made meanwhile as well; whether nothing is left.
#[must_use]
pub fn is_alone(process: Pid) -> bool {
    /// Then whoever asked looks again later.
    const ROUNDS: u32 = 100;
    for _ in 0..ROUNDS {
        let left = living(process);
        if left.is_empty() {
            return true;
        }
        for found in left {
            found.signal(Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Processes below one that have not ended.
fn living(top: Pid) -> Vec<Found> {
    let (mut known, mut next) = (HashSet::from([top]), vec![top]);
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

/// The children of all threads of a process, those that have ended too.
#[must_use]
pub fn children_of(process: Pid) -> Vec<Pid> {
    let folder = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| small::read(thread.path().join("children")).ok());
    lists.flat_map(|list| numbers(&list)).collect()
}

fn numbers(list: &[u8]) -> Vec<Pid> {
    let words = std::str::from_utf8(list).unwrap_or_default().split_whitespace();
    words.filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// Signals what is below this process and not in a process group.
pub fn signal_outside(group: Pid, signal: Signal) {
    for process in living(rustix::process::getpid()) {
        if getpgid(Some(process.pid)) != Ok(group) {
            process.signal(signal);
        }
    }
}

/// Signals those of the processes below this one that are meant.
pub fn signal_those(is_meant: impl Fn(Pid) -> bool, signal: Signal) {
    for process in living(rustix::process::getpid()) {
        if is_meant(process.pid) {
            process.signal(signal);
        }
    }
}

/// Orphans of this process, all of whose children are started by its first thread: the kernel gives orphans to that thread
/// too. What those used that have ended, and the children that they waited for.
#[derive(Debug)]
pub struct Orphans {
    /// Names the children of the first thread each time it is read; none if the kernel has no such file.
    children: Option<File>,
    /// In user mode.
    pub user_seconds: f64,
    /// In the kernel.
    pub system_seconds: f64,
    /// Peak resident memory of the largest.
    pub memory_bytes: u64,
}

impl Default for Orphans {
    fn default() -> Orphans {
        let own = rustix::process::getpid().as_raw_nonzero();
        let children = File::open(format!("/proc/{own}/task/{own}/children")).ok();
        Orphans { children, user_seconds: 0.0, system_seconds: 0.0, memory_bytes: 0 }
    }
}

impl Orphans {
    /// The children of this process, those that have ended too.
    fn children(&self) -> Vec<Pid> {
        let list = self.children.as_ref().and_then(|file| small::read_again(file).ok());
        list.map_or_else(|| children_of(rustix::process::getpid()), |list| numbers(&list))
    }

    /// Takes note of orphans that have ended. The process `first` is left to its owner.
    pub fn reap(&mut self, first: Pid) {
        for process in self.children() {
            if process != first && is_zombie(process) {
                self.reap_one(process);
            }
        }
    }

    fn reap_one(&mut self, process: Pid) {
        // SAFETY: zeros are a valid value, and the call fills it.
        let (reaped, used) = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            let number = process.as_raw_nonzero().get();
            let reaped = libc::wait4(number, std::ptr::null_mut(), libc::WNOHANG, &raw mut used);
            (reaped, used)
        };
        if reaped <= 0 {
            return;
        }
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        self.user_seconds += seconds(used.ru_utime);
        self.system_seconds += seconds(used.ru_stime);
        // In KiB.
        let peak = u64::try_from(used.ru_maxrss).unwrap_or(0) * 1024;
        self.memory_bytes = self.memory_bytes.max(peak);
    }

    /// Kills all that is left below this process after its child `first` has ended, what is made meanwhile as well, and
    /// waits until it is gone.
    pub fn end(&mut self, first: Pid) {
        let own = rustix::process::getpid();
        // What came from a process that has ended is a child of this one by now.
        if self.children() == [first] && has_ended(first) {
            return;
        }
        let mut pause = Duration::from_millis(1);
        loop {
            let left = living(own);
            self.reap(first);
            if left.is_empty() {
                return;
            }
            for process in left {
                process.signal(Signal::KILL);
            }
            std::thread::sleep(pause);
            // One that waits for a disk or a file server may take long.
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

/// Whether a child of this process has ended. It is not reaped.
fn has_ended(child: Pid) -> bool {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(child), how)).is_ok_and(|ended| ended.is_some())
}

//! The counters of a running process and of all that descend from it.
//!
//! The files of the process itself stay open: reading them again is cheap, and never shows another
//! process that got the same number. A process is looked at before its children, so that a child that
//! goes in between is missed until its parent shows it, and never counted twice.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use rustix::process::Pid;

use crate::accounting::Counters;
use crate::descendants::children_of;

/// Descendants of a process that are looked at; those beyond are counted when their parents reap them.
const DESCENDANTS_MAX: usize = 1000;

/// The open files of a running process.
#[derive(Debug)]
pub struct Family {
    pid: Pid,
    /// `/proc/PID/io`.
    counters: File,
    /// `/proc/PID/task`, whose link count tells the number of threads.
    threads: File,
    /// `/proc/PID/task/PID/children`, on kernels that have it.
    children: Option<File>,
}

impl Family {
    /// Opens the files of a process; `None` if it is gone or belongs to someone else.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Family> {
        let number = pid.as_raw_nonzero();
        Some(Family {
            pid,
            counters: File::open(format!("/proc/{number}/io")).ok()?,
            threads: File::open(format!("/proc/{number}/task")).ok()?,
            children: File::open(format!("/proc/{number}/task/{number}/children")).ok(),
        })
    }

    /// Adds up what the process and its descendants have done so far; `None` if it is gone. `text` is space to work in.
    pub fn look(&self, text: &mut String) -> Option<Counters> {
        let mut sum = Counters::of_file(&self.counters)?;
        let mut waiting = Vec::new();
        // A directory of n threads has n + 2 links.
        let one_thread = self.threads.metadata().is_ok_and(|metadata| metadata.nlink() <= 3);
        match self.children.as_ref().filter(|_| one_thread) {
            Some(children) if reread(children, text).is_some() => waiting.extend(numbers(text)),
            Some(_) | None => waiting.extend(children_of(self.pid)),
        }
        let mut met = 0;
        while let Some(pid) = waiting.pop() {
            met += 1;
            if met > DESCENDANTS_MAX {
                break;
            }
            if let Some(counters) = Counters::of_process(pid) {
                sum.add(&counters);
                waiting.extend(children_of(pid));
            }
        }
        Some(sum)
    }
}

/// Reads a small file of /proc from its start; nothing if it is too long, since its last number could be
/// cut.
fn reread(file: &File, text: &mut String) -> Option<()> {
    let mut bytes = [0; 4096];
    let length = file.read_at(&mut bytes, 0).ok()?;
    if length == bytes.len() {
        return None;
    }
    text.clear();
    text.push_str(std::str::from_utf8(&bytes[..length]).ok()?);
    Some(())
}

fn numbers(text: &str) -> impl Iterator<Item = Pid> {
    text.split_ascii_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?))
}

//! The counters of a running job: of its process and of all that descend from it.
//!
//! The files of the job's own process stay open: reading them again is cheap, and never shows another
//! process that got the same number. A process is looked at before its children, so that a child that
//! goes in between is missed until its parent shows it, and never counted twice.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use crate::counters::Counters;
use crate::sampler::ledger::row;

/// Descendants of a job that are looked at; those beyond are counted when their parents reap them.
const DESCENDANTS_MAX: usize = 1000;

/// The open files of a running job.
#[derive(Debug)]
pub struct Family {
    pid: u32,
    /// `/proc/PID/io`.
    counters: File,
    /// `/proc/PID/task`, whose link count tells the number of threads.
    threads: File,
    /// `/proc/PID/task/PID/children`, on kernels that have it.
    children: Option<File>,
}

impl Family {
    /// Opens the files of a process; `None` if it is gone or belongs to someone else.
    pub fn of(pid: u32) -> Option<Family> {
        Some(Family {
            pid,
            counters: File::open(format!("/proc/{pid}/io")).ok()?,
            threads: File::open(format!("/proc/{pid}/task")).ok()?,
            children: File::open(format!("/proc/{pid}/task/{pid}/children")).ok(),
        })
    }

    /// Adds up what the process and its descendants have done so far; `None` if it is gone.
    pub fn look(&self, text: &mut String) -> Option<[u64; 4]> {
        reread(&self.counters, text)?;
        let mut sum = row(&Counters::parse(text)?);
        let mut waiting = Vec::new();
        // A directory of n threads has n + 2 links.
        if self.threads.metadata().is_ok_and(|metadata| metadata.nlink() <= 3) {
            if self.children.as_ref().is_some_and(|children| reread(children, text).is_some()) {
                waiting.extend(numbers(text));
            }
        } else {
            children_of(self.pid, &mut waiting);
        }
        let mut met = 0;
        while let Some(pid) = waiting.pop() {
            met += 1;
            if met > DESCENDANTS_MAX {
                break;
            }
            if let Some(counters) = Counters::of_process(pid) {
                for (sum, part) in sum.iter_mut().zip(row(&counters)) {
                    *sum += part;
                }
                children_of(pid, &mut waiting);
            }
        }
        Some(sum)
    }
}

/// Reads a small file of /proc from its start.
fn reread(file: &File, text: &mut String) -> Option<()> {
    let mut bytes = [0; 4096];
    let length = file.read_at(&mut bytes, 0).ok()?;
    text.clear();
    text.push_str(std::str::from_utf8(&bytes[..length]).ok()?);
    Some(())
}

/// The children of all threads of a process.
fn children_of(pid: u32, found: &mut Vec<u32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        if let Ok(text) = fs::read_to_string(thread.path().join("children")) {
            found.extend(numbers(&text));
        }
    }
}

fn numbers(text: &str) -> impl Iterator<Item = u32> {
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok())
}

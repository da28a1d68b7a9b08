//! What the machine is, what it is doing, and how to calm it down.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::interrupt::Interrupt;

/// Dirty bytes that do not disturb a measurement.
const CALM_BYTES: u64 = 1 << 20;
/// Longest wait for write-back to end: other programs may keep writing.
const CALM_WAIT_MAX: Duration = Duration::from_secs(60);

/// The machine as far as figures depend on it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor cores.
    pub cores: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Kernel version, without what the distribution adds.
    pub kernel: String,
    /// Average number of running processes over the last minute when the benchmark began.
    pub load_before: f64,
}

impl Machine {
    /// Looks at the machine.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn look() -> Result<Machine> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let load = fs::read_to_string("/proc/loadavg")?;
        Ok(Machine {
            cores: std::thread::available_parallelism()?.get(),
            memory_bytes: memory("MemTotal")?,
            kernel: release.trim().split('-').next().unwrap_or_default().to_owned(),
            load_before: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        })
    }
}

/// A line of /proc/meminfo, in bytes.
fn memory(field: &str) -> Result<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo")?, field)
        .with_context(|| format!("/proc/meminfo has no {field}"))
}

/// A field like `VmRSS:   123 kB` of a text of /proc, in bytes.
#[must_use]
pub fn kib_field(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Writes everything out and waits until the disks are calm, then `pause` more.
///
/// # Errors
/// After a signal.
pub fn settle(interrupt: &Interrupt, pause: Duration) -> Result<()> {
    rustix::fs::sync();
    let mut waited = Duration::ZERO;
    let step = Duration::from_millis(100);
    while memory("Dirty")? + memory("Writeback")? > CALM_BYTES && waited < CALM_WAIT_MAX {
        interrupt.sleep(step)?;
        waited += step;
        if waited.as_millis().is_multiple_of(5000) {
            rustix::fs::sync();
        }
    }
    interrupt.sleep(pause)
}

/// Writes everything out and empties the page, inode and directory entry caches of the machine.
///
/// # Errors
/// If this process may not (it takes root).
pub fn drop_caches() -> std::io::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// Seconds of processor time that the whole machine has spent working, and that one process has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorTime {
    /// All processes and the kernel.
    pub machine: f64,
    /// The process that was asked for.
    pub process: f64,
}

impl ProcessorTime {
    /// Reads the clocks, of process `id` if there is one.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn read(id: Option<u32>) -> Result<ProcessorTime> {
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let all = fs::read_to_string("/proc/stat")?;
        let line = all.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let busy: u64 = ticks
            .iter()
            .take(8)
            .enumerate()
            .filter(|(at, _)| !matches!(at, 3 | 4))
            .map(|(_, t)| t)
            .sum();
        let process = match id {
            None => 0,
            Some(id) => process_ticks(&fs::read_to_string(format!("/proc/{id}/stat"))?)
                .context("cannot read the times of a process")?,
        };
        Ok(ProcessorTime {
            machine: busy as f64 / ticks_per_second,
            process: process as f64 / ticks_per_second,
        })
    }
}

/// utime + stime of a line of /proc/PID/stat, in ticks. The name may hold anything, blanks included.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The read-ahead of the device under a directory; put back when dropped.
#[derive(Debug)]
pub struct ReadAhead {
    knob: PathBuf,
    before: String,
}

impl ReadAhead {
    /// Sets it to `kib` KiB.
    ///
    /// # Errors
    /// If the device has none that can be set.
    pub fn set(directory: &Path, kib: u64) -> Result<ReadAhead> {
        let device = fs::metadata(directory)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let knob = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
        let before = fs::read_to_string(&knob).with_context(|| knob.display().to_string())?;
        fs::write(&knob, kib.to_string()).with_context(|| knob.display().to_string())?;
        Ok(ReadAhead { knob, before: before.trim().to_owned() })
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.knob, &self.before) {
            eprintln!("forebay-bench: {} was not put back: {error}", self.knob.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read() {
        let text = "MemTotal:       24000000 kB\nDirty:    12 kB\nHugePages: 0\n";
        assert_eq!(kib_field(text, "Dirty"), Some(12 << 10));
        assert_eq!(kib_field(text, "Mem"), None);
        assert_eq!(kib_field(text, "HugePages"), None);
    }

    #[test]
    fn processor_time_of_a_process_with_an_odd_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 9 9 20 0 1 0 5 6 7";
        assert_eq!(process_ticks(stat), Some(300));
    }
}

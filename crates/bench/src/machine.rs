//! What the machine is, what it is doing, and how to calm it down.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
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

    /// The machine as a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} cores, {} GiB of memory, Linux {}; load average before the run {:.2}.",
            self.cores,
            (self.memory_bytes + (1 << 29)) >> 30,
            self.kernel,
            self.load_before
        )
    }
}

/// A line of /proc/meminfo, in bytes.
fn memory(field: &str) -> Result<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo")?, field)
        .with_context(|| format!("/proc/meminfo has no {field}"))
}

/// A field like `VmRSS:   123 kB` of a text of /proc, in bytes.
fn kib_field(text: &str, field: &str) -> Option<u64> {
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

/// Read-ahead that the kernel gives a new device, in KiB (VM_READAHEAD_PAGES).
const READ_AHEAD_DEFAULT: &str = "128";

/// Gives a loop device the read-ahead of a new one: it keeps what a user of it before has set.
///
/// # Errors
/// If the device is not there.
pub fn reset_read_ahead(device: &str) -> Result<()> {
    let knob = format!("/sys/block/{}/queue/read_ahead_kb", device.trim_start_matches("/dev/"));
    fs::write(&knob, READ_AHEAD_DEFAULT).with_context(|| knob.clone())
}

/// The read-ahead of the device under a directory, in KiB, as text.
///
/// # Errors
/// If the device has none.
pub fn read_ahead(directory: &Path) -> Result<String> {
    let device = fs::metadata(directory)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let text = fs::read_to_string(&knob).with_context(|| knob.clone())?;
    Ok(text.trim().to_owned())
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
}

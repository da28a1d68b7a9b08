//! The load of this host, from /proc.

use std::path::Path;

use forebay_grid::config::Load;

const MIB: f64 = 1024.0 * 1024.0;

/// Reads the load now. `r15s` is what the kernel says of one minute, as it says nothing of less; `ut`, `pg`
/// and `io` are not measured and count as none.
pub fn now(slots: u32, temporary: &Path) -> Load {
    let averages = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut averages = averages.split(' ').map_while(|word| word.parse::<f64>().ok());
    let mut per_slot = || averages.next().unwrap_or(0.0) / f64::from(slots.max(1));
    let r1m = per_slot();
    let _ = per_slot();
    let r15m = per_slot();
    let free = rustix::fs::statvfs(temporary)
        .map_or(0.0, |free| free.f_bavail as f64 * free.f_frsize as f64 / MIB);
    Load {
        r15s: r1m,
        r1m,
        r15m,
        tmp: free,
        mem: meminfo("MemAvailable:") / MIB,
        swp: meminfo("SwapFree:") / MIB,
        ..Load::default()
    }
}

/// Bytes of memory of this host.
pub fn memory_bytes() -> u64 {
    meminfo("MemTotal:") as u64
}

fn meminfo(key: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0.0) * 1024.0
}

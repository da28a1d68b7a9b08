//! Memory of a process, in bytes.

use rustix::process::Pid;

use crate::accounting::field;
use crate::small;

/// Its resident pages: `/proc/PID/statm`, which costs the kernel next to nothing. None if it is not there.
#[must_use]
pub fn resident(pid: Pid) -> Option<u64> {
    let text = small::text(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Its resident pages, those that several processes have divided among them (`Pss` of `/proc/PID/smaps_rollup`). None if
/// it is not there, or somebody else's. The kernel looks at every page for it.
#[must_use]
pub fn share(pid: Pid) -> Option<u64> {
    rollup(pid, "Pss")
}

/// A line of `/proc/PID/smaps_rollup` (proc_pid_smaps(5)).
#[must_use]
pub fn rollup(pid: Pid, name: &str) -> Option<u64> {
    kib(&format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero()), name)
}

/// The most that was resident at a time: `VmHWM` of `/proc/PID/status`. None if it is not there.
#[must_use]
pub fn peak(pid: Pid) -> Option<u64> {
    kib(&format!("/proc/{}/status", pid.as_raw_nonzero()), "VmHWM")
}

fn kib(path: &str, name: &str) -> Option<u64> {
    Some(field(&small::text(path).ok()?, name)? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_its_peak_is_no_less() {
        let own = rustix::process::getpid();
        // Touched, and kept until both were asked.
        let kept = vec![1_u8; 32 << 20];
        let (now, peak) = (resident(own).unwrap(), peak(own).unwrap());
        assert!(now >= 32 << 20 && kept.iter().all(|byte| *byte == 1), "{now}");
        assert!(peak >= 32 << 20, "{peak}");
        assert!(share(own).is_none_or(|share| share > 0 && share <= peak * 2));
    }
}

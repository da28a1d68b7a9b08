//! What the kernel says of a process in `/proc/PID/stat` (proc_pid_stat(5)), taken apart by `procfs-core`.

use std::fs;

use procfs_core::FromRead as _;
use rustix::process::Pid;

use crate::small;

/// What is said of one process that was not reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Whether it has ended, and only its parent does not know yet.
    pub is_zombie: bool,
    /// None if its parent is not in this namespace.
    pub parent: Option<Pid>,
    /// When it was started, in clock ticks since the boot.
    pub started: u64,
    /// Processor time of all its threads in user mode and in the kernel, in clock ticks.
    pub user_ticks: u64,
    /// As `user_ticks`, in the kernel.
    pub system_ticks: u64,
    /// As `user_ticks`, of the children that it has waited for.
    pub children_user_ticks: u64,
    /// As `system_ticks`, of the children that it has waited for.
    pub children_system_ticks: u64,
    /// Page faults of the children that it has waited for. No process begins without one.
    pub children_faults: u64,
    /// How long its main thread waited for block devices, in clock ticks; none if the kernel does not say.
    pub block_wait_ticks: Option<u64>,
}

impl Stat {
    /// None if it is not there.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Stat> {
        Stat::in_folder(&pid.as_raw_nonzero().to_string())
    }

    /// Of this process.
    #[must_use]
    pub fn own() -> Option<Stat> {
        Stat::in_folder("self")
    }

    fn in_folder(name: &str) -> Option<Stat> {
        Stat::parse(&small::read(format!("/proc/{name}/stat")).ok()?)
    }

    /// Takes the text of the file apart; none if it has another form.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Stat> {
        let stat = procfs_core::process::Stat::from_read(text).ok()?;
        Some(Stat {
            is_zombie: matches!(stat.state, 'Z' | 'X'),
            parent: Pid::from_raw(stat.ppid),
            started: stat.starttime,
            user_ticks: stat.utime,
            system_ticks: stat.stime,
            children_user_ticks: u64::try_from(stat.cutime).unwrap_or(0),
            children_system_ticks: u64::try_from(stat.cstime).unwrap_or(0),
            children_faults: stat.cminflt,
            block_wait_ticks: stat.delayacct_blkio_ticks,
        })
    }

    /// Processor seconds of all its threads, in user mode and in the kernel.
    #[must_use]
    pub fn processor_seconds(&self) -> f64 {
        seconds(self.user_ticks + self.system_ticks)
    }
}

/// Seconds of so many clock ticks.
#[must_use]
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// When a process was started, in clock ticks since the boot; none if it is not there.
#[must_use]
pub fn start_of(pid: Pid) -> Option<u64> {
    Some(Stat::of(pid)?.started)
}

/// Whether a process has ended, and only its parent does not know yet, or that as well.
#[must_use]
pub fn is_zombie(pid: Pid) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.is_zombie)
}

/// Numbers of all processes that this one sees.
pub fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything_and_every_field_has_its_place() {
        let text = b"4711 (a) b \xff(c) S 17 4711 42 0 -1 4194560 101 102 103 104 11 12 13 14 20 0 1 0 98765 \
                     2703360 400 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 33 0 0 0 0 0 0 0 0 0 0\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.is_zombie, stat.parent, stat.started), (false, Pid::from_raw(17), 98765));
        assert_eq!((stat.user_ticks, stat.system_ticks), (11, 12));
        assert_eq!((stat.children_user_ticks, stat.children_system_ticks), (13, 14));
        assert_eq!((stat.children_faults, stat.block_wait_ticks), (102, Some(33)));
        assert_eq!(Stat::parse(b"4711 (a"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn this_process_is_there_and_known_by_its_start() {
        let own = rustix::process::getpid();
        let stat = Stat::own().unwrap();
        assert_eq!(start_of(own), Some(stat.started));
        assert!(!is_zombie(own) && all().any(|pid| pid == own));
    }
}

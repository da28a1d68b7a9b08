//! The kernel, what it measures, and how it shares processors.

use super::{Check, unknown};
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// The oldest kernel with everything that Forebay can use: FUSE over io_uring.
const NEWEST_NEEDED: (u32, u32) = (6, 14);
/// The oldest kernel with FUSE passthrough.
pub(super) const PASSTHROUGH: (u32, u32) = (6, 9);
/// The oldest kernel that is supported at all.
const OLDEST: (u32, u32) = (5, 10);

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "kernel/version",
        title: "Linux version",
        why: "Linux 6.9 brought FUSE passthrough (files at the speed of the disk below), 6.14 FUSE over io_uring (each \
              request is served on the core that issued it). Before 5.10 Forebay does not run.",
        look: version,
    },
    Check {
        code: "kernel/delay-accounting",
        title: "Delay accounting of tasks",
        why: "Without it the kernel does not count how long a process waited for I/O, so a report cannot say whether \
              cores starved (Documentation/accounting/delay-accounting.rst; off by default since Linux 5.14).",
        look: delay_accounting,
    },
    Check {
        code: "kernel/pressure",
        title: "Pressure stall information",
        why: "/proc/pressure reports how much of the time work waited for processors, memory or I/O; the grid's \
              I/O-aware decisions and the monitor read it.",
        look: pressure,
    },
    Check {
        code: "kernel/scheduler-slice",
        title: "Scheduler slice",
        why: "The studies [1, 3, 4] set the minimal granularity to 10 ms so that computing steps are not interrupted often. Since Linux 6.6 \
              the setting is base_slice_ns in debugfs, before that min_granularity_ns. A larger slice also delays daemons that answer requests, so it \
              is reported and not changed.",
        look: slice,
    },
    Check {
        code: "kernel/clock-synchronised",
        title: "Clock kept by a time server",
        why: "Times of files and jobs of several hosts are compared by users and by make(1). Leases do not depend on it.",
        look: synchronised,
    },
];

fn version(host: &Host) -> Vec<Verdict> {
    let Some(kernel) = host.kernel() else {
        return unknown("/proc/sys/kernel/osrelease cannot be read");
    };
    let evidence = format!("Linux {}.{}", kernel.0, kernel.1);
    let upgrade = |to: (u32, u32)| Fix::ByHand {
        advice: format!("install a kernel of version {}.{} or later", to.0, to.1),
    };
    vec![if kernel < OLDEST {
        Verdict::problem(evidence, upgrade(OLDEST))
    } else if kernel < PASSTHROUGH {
        Verdict::warning(format!("{evidence}: no FUSE passthrough"), upgrade(PASSTHROUGH))
    } else if kernel < NEWEST_NEEDED {
        Verdict::advice(format!("{evidence}: no FUSE over io_uring"), upgrade(NEWEST_NEEDED))
    } else {
        Verdict::Fine(evidence)
    }]
}

fn delay_accounting(host: &Host) -> Vec<Verdict> {
    match host.number("proc/sys/kernel/task_delayacct") {
        None => unknown("the kernel has no kernel.task_delayacct"),
        Some(0) => vec![Verdict::warning(
            "kernel.task_delayacct = 0".to_owned(),
            Fix::sysctl("kernel.task_delayacct", 1),
        )],
        Some(_) => vec![Verdict::Fine("kernel.task_delayacct = 1".to_owned())],
    }
}

fn pressure(host: &Host) -> Vec<Verdict> {
    vec![if host.has("proc/pressure/io") {
        Verdict::Fine("/proc/pressure is there".to_owned())
    } else if !host.has("proc/sys/kernel") {
        Verdict::Unknown("/proc cannot be read".to_owned())
    } else {
        Verdict::warning(
            "/proc/pressure is missing".to_owned(),
            Fix::ByHand { advice: "add psi=1 to the kernel's command line and reboot".to_owned() },
        )
    }]
}

fn slice(host: &Host) -> Vec<Verdict> {
    // The latter until Linux 6.5, and below /proc until 5.12.
    let names = [
        "sys/kernel/debug/sched/base_slice_ns",
        "sys/kernel/debug/sched/min_granularity_ns",
        "proc/sys/kernel/sched_min_granularity_ns",
    ];
    match names.iter().find_map(|name| Some((name, host.number(name)?))) {
        None => unknown(
            "/sys/kernel/debug/sched/base_slice_ns cannot be read (it needs root and a mounted debugfs)",
        ),
        Some((name, nanoseconds)) => {
            vec![Verdict::Fine(format!(
                "/{name} is {nanoseconds}; the studies' 10 ms are 10000000"
            ))]
        }
    }
}

fn synchronised(host: &Host) -> Vec<Verdict> {
    match host.told.clock_synchronised {
        None => unknown("adjtimex(2) does not report it"),
        Some(true) => vec![Verdict::Fine("the clock is kept by a time server".to_owned())],
        Some(false) => vec![Verdict::advice(
            "the kernel reports its clock as unsynchronised".to_owned(),
            Fix::ByHand {
                advice: "run a time service (chrony, systemd-timesyncd); in a container or virtual machine the time service of the host may be enough"
                    .to_owned(),
            },
        )],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::finding::Severity;

    fn on(release: &str) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proc/sys/kernel");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("osrelease"), release).unwrap();
        version(&Host::below(folder.path())).remove(0)
    }

    #[test]
    fn a_clock_that_no_time_server_keeps_is_found() {
        let mut host = Host::default();
        assert!(matches!(synchronised(&host)[..], [Verdict::Unknown(_)]));
        host.told.clock_synchronised = Some(false);
        let found = synchronised(&host);
        assert!(matches!(found[..], [Verdict::Found { severity: Severity::Advice, .. }]));
        host.told.clock_synchronised = Some(true);
        assert!(matches!(synchronised(&host)[..], [Verdict::Fine(_)]));
    }

    #[test]
    fn a_kernel_is_judged_by_what_it_lacks() {
        let severity = |release| match on(release) {
            Verdict::Found { severity, .. } => Some(severity),
            Verdict::Fine(_) => None,
            Verdict::Unknown(reason) => panic!("{reason}"),
        };
        assert_eq!(severity("4.18.0-553.el8_10.x86_64\n"), Some(Severity::Problem));
        assert_eq!(severity("5.14.0-427.13.1.el9_4.x86_64\n"), Some(Severity::Warning));
        assert_eq!(severity("6.12.9+deb13-amd64\n"), Some(Severity::Advice));
        assert_eq!(severity("6.14.0\n"), None);
        assert_eq!(severity("7.0-rc1\n"), None);
    }
}

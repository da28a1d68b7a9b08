//! Limits of processes.

use super::Check;
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// Files that a daemon or a program with many threads may need.
const OPEN_FILES: u64 = 65_536;
/// Memory that rings of FUSE over io_uring lock for ordinary users, bytes.
const LOCKED_BYTES: u64 = 64 << 20;
/// Processes and threads of the whole machine.
const THREADS: u64 = 32_768;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "limits/open-files",
        title: "Open files of a process",
        why: "The daemon keeps objects open to avoid opening them again, and analytics programs open one file for each partition \
              of a table.",
        look: open_files,
    },
    Check {
        code: "limits/locked-memory",
        title: "Locked memory of a process",
        why: "Kernels count io_uring's rings of ordinary users as locked memory: below this limit, mounts by ordinary users fall back to /dev/fuse.",
        look: locked_memory,
    },
    Check {
        code: "limits/threads",
        title: "Threads of the machine",
        why: "Hundreds of sessions with a dozen threads each, and a shim for each job, need that many.",
        look: threads,
    },
    Check {
        code: "limits/system-open-files",
        title: "Open files of the machine",
        why: "When fs.file-max is reached no process can open a file, not even a daemon.",
        look: system_open_files,
    },
];

fn open_files(host: &Host) -> Vec<Verdict> {
    let Some(now) = host.told.open_files_max else { return Vec::new() };
    vec![if now < OPEN_FILES {
        Verdict::warning(
            format!("RLIMIT_NOFILE is at most {now}"),
            Fix::Command {
                command: format!(
                    "echo '* hard nofile {OPEN_FILES}' > /etc/security/limits.d/90-forebay.conf   # for new log-ins"
                ),
            },
        )
    } else {
        Verdict::Fine(format!("RLIMIT_NOFILE is at most {now}"))
    }]
}

fn locked_memory(host: &Host) -> Vec<Verdict> {
    match host.told.locked_bytes_max {
        Some(now) if now < LOCKED_BYTES => vec![Verdict::advice(
            format!("RLIMIT_MEMLOCK is {} KiB", now >> 10),
            Fix::Command {
                command: format!(
                    "echo '* - memlock {}' > /etc/security/limits.d/91-forebay.conf   # for new log-ins",
                    LOCKED_BYTES >> 10
                ),
            },
        )],
        Some(now) => vec![Verdict::Fine(format!("RLIMIT_MEMLOCK is {} KiB", now >> 10))],
        None => vec![Verdict::Fine("RLIMIT_MEMLOCK is unlimited".to_owned())],
    }
}

fn threads(host: &Host) -> Vec<Verdict> {
    at_least(host, "kernel/threads-max", "kernel.threads-max", THREADS)
        .into_iter()
        .chain(at_least(host, "kernel/pid_max", "kernel.pid_max", THREADS))
        .collect()
}

fn system_open_files(host: &Host) -> Vec<Verdict> {
    at_least(host, "fs/file-max", "fs.file-max", 1 << 20).into_iter().collect()
}

/// A limit below /proc/sys that should be at least `wanted`.
fn at_least(host: &Host, path: &str, key: &str, wanted: u64) -> Option<Verdict> {
    let now = host.number(&format!("proc/sys/{path}"))?;
    let evidence = format!("{key} = {now}");
    Some(if now < wanted {
        Verdict::warning(evidence, Fix::sysctl(key, wanted))
    } else {
        Verdict::Fine(evidence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Told;

    #[test]
    fn limits_are_compared_with_what_daemons_need() {
        let told = |files, locked| {
            let mut host = Host::default();
            host.told =
                Told { open_files_max: Some(files), locked_bytes_max: locked, ..Told::default() };
            host
        };
        assert!(matches!(open_files(&told(1024, None))[..], [Verdict::Found { .. }]));
        assert!(matches!(open_files(&told(1 << 20, None))[..], [Verdict::Fine(_)]));
        assert!(matches!(locked_memory(&told(1024, None))[..], [Verdict::Fine(_)]));
        assert!(matches!(locked_memory(&told(1024, Some(8 << 20)))[..], [Verdict::Found { .. }]));
    }
}

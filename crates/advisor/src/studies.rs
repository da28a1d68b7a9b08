//! What the published studies tuned on their hosts and file systems, and what has become of it.
//!
//! The numbers in brackets name the studies: 1 is a 40/80-session grid on GPFS, 2 a calibration workload on Lustre, 3 mixed analytics on
//! Spectrum Scale ESS, 4 hybrid flash (requirements B13 to B16, D5 and D6).

use serde::Serialize;

/// One setting of the studies.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// What they set then.
    pub then: &'static str,
    /// What it is called today.
    pub today: &'static str,
    /// Whether it still holds, in a sentence.
    pub still_true: &'static str,
    /// The check that looks at it, if there is one.
    pub check: Option<&'static str>,
}

/// Settings of hosts, then of file systems.
pub const SETTINGS: &[Setting] = &[
    Setting {
        then: "transparent huge pages: never",
        today: "transparent_hugepage/enabled",
        still_true: "partly: madvise is enough; programs that request huge pages gain from them",
        check: Some("memory/huge-pages"),
    },
    Setting {
        then: "frequency governor: performance",
        today: "scaling_governor, energy_performance_preference",
        still_true: "yes, on hosts that set frequencies themselves",
        check: Some("processors/governor"),
    },
    Setting {
        then: "vm.dirty_ratio = 40",
        today: "vm.dirty_ratio or vm.dirty_bytes",
        still_true: "yes up to 128 GiB of memory; beyond that a limit in bytes, as 40 % takes minutes to write",
        check: Some("memory/dirty"),
    },
    Setting {
        then: "vm.dirty_background_ratio = 10",
        today: "vm.dirty_background_ratio or vm.dirty_background_bytes",
        still_true: "yes: temporary files that die young are never written",
        check: Some("memory/dirty-background"),
    },
    Setting {
        then: "vm.swappiness = 10",
        today: "vm.swappiness",
        still_true: "yes, if there is swap",
        check: Some("memory/swappiness"),
    },
    Setting {
        then: "kernel.sched_min_granularity_ns = 10 ms",
        today: "debugfs sched/base_slice_ns (Linux 6.6)",
        still_true: "rarely: computing gains little, and daemons answer later; a slice for each thread (sched_setattr, Linux 6.12) is better",
        check: Some("kernel/scheduler-slice"),
    },
    Setting {
        then: "kernel.sched_wakeup_granularity_ns = 15 ms",
        today: "removed (Linux 6.6, EEVDF)",
        still_true: "no: there is no such setting",
        check: None,
    },
    Setting {
        then: "read-ahead raised",
        today: "queue/read_ahead_kb",
        still_true: "on spinning disks and arrays; measure on flash, where it may cost half",
        check: Some("disks/read-ahead"),
    },
    Setting {
        then: "queue depth raised",
        today: "queue/nr_requests",
        still_true: "rarely: today's defaults (256 and more) are enough",
        check: Some("disks/queue-depth"),
    },
    Setting {
        then: "largest transfer raised",
        today: "queue/max_sectors_kb",
        still_true: "where the default is below 512 KiB",
        check: Some("disks/request-size"),
    },
    Setting {
        then: "elevator chosen",
        today: "queue/scheduler: none, mq-deadline, bfq, kyber",
        still_true: "none for flash, mq-deadline for spinning disks",
        check: Some("disks/scheduler"),
    },
    Setting {
        then: "MTU 9000",
        today: "the same",
        still_true: "at 10 Gbit/s and above, if all hosts and switches agree",
        check: Some("network/frame-size"),
    },
    Setting {
        then: "ring buffers of 8192",
        today: "ethtool -G",
        still_true: "at 10 Gbit/s and above, up to the limit of the interface",
        check: Some("network/rings"),
    },
    Setting {
        then: "a tuned profile that holds the above",
        today: "tuned, systemd-tmpfiles, udev",
        still_true: "yes: `forebay doctor --fix-script` writes a profile on top of the active one, or sysctl.d where tuned does not run",
        check: None,
    },
    Setting {
        then: "GPFS: page pool of 4 to 8 GiB, 32 to 128 GiB of 256 GiB in [3]",
        today: "the page cache of Linux",
        still_true: "no: Forebay's files are in the kernel's page cache, which takes all free memory",
        check: None,
    },
    Setting {
        then: "GPFS: seqDiscardThreshold raised, so that files stay in the page pool after they were read",
        today: "seq_discard_threshold of Forebay, for the served path; the page cache of Linux elsewhere",
        still_true: "rarely: by default all files stay as long as there is memory; set the threshold where large files that are read once push out what is read again",
        check: None,
    },
    Setting {
        then: "GPFS: prefetch share and depth",
        today: "queue/read_ahead_kb of the disks, read_ahead of the mount",
        still_true: "the depth, where storage is slow to begin; the share of memory belongs to the kernel",
        check: Some("disks/read-ahead"),
    },
    Setting {
        then: "GPFS: throughput setting (maxMBpS) of twice the need",
        today: "none",
        still_true: "no: read-ahead follows what programs read; `forebay plan` states the need",
        check: None,
    },
    Setting {
        then: "GPFS: block of 256 or 512 KiB on flash, 1 MiB on disk; 1 to 16 MiB tried, 8 MiB best in [3]",
        today: "stripe unit (forebay disk stripe --unit); mkfs.xfs su and sw on an array",
        still_true: "yes, where one file shall be as fast as several disks; sweep it with `forebay bench`",
        check: Some("places/xfs-geometry"),
    },
    Setting {
        then: "GPFS: metadata on the fastest disks",
        today: "ROOT of the file system, which holds the names",
        still_true: "yes: put ROOT on flash; names are served from memory and committed in batches",
        check: Some("disks/spinning"),
    },
    Setting {
        then: "Lustre: three mounts for each client [2], as one sent one metadata change at a time",
        today: "max_mod_rpcs_in_flight (Lustre 2.8); none here",
        still_true: "no: one mount of Forebay serves each core's requests on that core",
        check: Some("fuse/io-uring"),
    },
    Setting {
        then: "Lustre: metadata on several servers, small files with their metadata (wanted in [2])",
        today: "DNE and Data-on-MDT; filesets with owners of their own",
        still_true: "in part: a fileset for each group of users spreads names over nodes; the bytes of small files are in objects on disks, as others are",
        check: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;

    #[test]
    fn every_check_of_the_table_exists() {
        let checks = checks::all();
        for code in SETTINGS.iter().filter_map(|setting| setting.check) {
            assert!(checks.iter().any(|check| check.code == code), "{code}");
        }
    }
}

//! Each check on hosts made of files: one that it is for, and one that was set right.

use std::collections::BTreeSet;

use super::*;
use crate::finding::Severity::{self, Advice, Problem, Warning};

#[test]
fn every_check_has_a_code_of_its_own_and_says_why() {
    let checks = known();
    let codes: BTreeSet<_> = checks.iter().map(|check| check.code).collect();
    assert_eq!(codes.len(), checks.len());
    for check in checks {
        assert!(
            check
                .code
                .split_once('/')
                .is_some_and(|(area, name)| !area.is_empty() && !name.is_empty())
        );
        assert!(check.why.len() > 40 && !check.title.is_empty(), "{}", check.code);
    }
}

#[test]
fn an_empty_host_is_unknown_and_panics_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let examined = examine(&Host::below(folder.path()));
    assert!(examined.findings.iter().all(|finding| finding.code == "fuse/device"), "{examined:?}");
}

/// Files of a host, by their path below `/`.
type Files = &'static [(&'static str, &'static str)];

/// A check; a host on which it finds something, how severe that is, and a part of what mends it; a host on which it finds nothing.
type Row = (&'static str, (Files, Severity, &'static str), Files);

const RELEASE: &str = "proc/sys/kernel/osrelease";

const KERNEL: &[Row] = &[
    (
        "kernel/version",
        (&[(RELEASE, "5.14.0-427.13.1.el9_4.x86_64")], Warning, "6.9 or later"),
        &[(RELEASE, "6.18.0-amd64")],
    ),
    (
        "kernel/delay-accounting",
        (&[("proc/sys/kernel/task_delayacct", "0")], Warning, "kernel.task_delayacct='1'"),
        &[("proc/sys/kernel/task_delayacct", "1")],
    ),
    (
        "kernel/pressure",
        (&[("proc/sys/kernel/ostype", "Linux")], Warning, "psi=1"),
        &[("proc/pressure/io", "some avg10=0.00")],
    ),
    (
        "limits/threads",
        (&[("proc/sys/kernel/threads-max", "8000")], Warning, "kernel.threads-max='32768'"),
        &[("proc/sys/kernel/threads-max", "192000"), ("proc/sys/kernel/pid_max", "4194304")],
    ),
    (
        "limits/system-open-files",
        (&[("proc/sys/fs/file-max", "65536")], Warning, "fs.file-max='1048576'"),
        &[("proc/sys/fs/file-max", "9223372036854775807")],
    ),
    ("fuse/device", (&[], Problem, "modprobe fuse"), &[("dev/fuse", "")]),
    (
        "fuse/passthrough",
        (
            &[
                (RELEASE, "6.18.0-amd64"),
                ("boot/config-6.18.0-amd64", "# CONFIG_FUSE_PASSTHROUGH is not set\n"),
            ],
            Warning,
            "CONFIG_FUSE_PASSTHROUGH=y",
        ),
        &[
            (RELEASE, "6.18.0-amd64"),
            ("lib/modules/6.18.0-amd64/config", "CONFIG_FUSE_FS=m\nCONFIG_FUSE_PASSTHROUGH=y\n"),
        ],
    ),
    (
        "fuse/io-uring",
        (
            &[("sys/module/fuse/parameters/enable_uring", "N")],
            Advice,
            "echo 1 > /sys/module/fuse/parameters/enable_uring",
        ),
        &[("sys/module/fuse/parameters/enable_uring", "Y")],
    ),
    (
        "fuse/request-size",
        (&[("proc/sys/fs/fuse/max_pages_limit", "32")], Advice, "fs.fuse.max_pages_limit='256'"),
        &[("proc/sys/fs/fuse/max_pages_limit", "256")],
    ),
    (
        "fuse/other-users",
        (&[("etc/fuse.conf", "#user_allow_other")], Advice, "user_allow_other"),
        &[("etc/fuse.conf", "user_allow_other")],
    ),
];

const PREFERENCE: &str = "sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference";
const CLOCK: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";

const PROCESSORS: &[Row] = &[
    (
        "processors/governor",
        (
            &[("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")],
            Warning,
            "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
        &[("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")],
    ),
    (
        "processors/energy-preference",
        (&[(PREFERENCE, "balance_power")], Warning, "cpu*/cpufreq/energy_performance_preference"),
        &[(PREFERENCE, "balance_performance")],
    ),
    (
        "processors/idle-states",
        (
            &[
                ("sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133"),
                ("sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6"),
            ],
            Advice,
            "tuned-adm profile",
        ),
        &[
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1"),
        ],
    ),
    (
        "processors/idle-polling",
        (&[("proc/cpuinfo", "flags\t: fpu hypervisor lm")], Advice, "cpuidle_haltpoll"),
        &[
            ("proc/cpuinfo", "flags\t: fpu hypervisor lm"),
            ("sys/devices/system/cpu/cpuidle/current_driver", "haltpoll"),
        ],
    ),
    (
        "processors/clock-source",
        (&[(CLOCK, "hpet")], Warning, "clocksource=tsc"),
        &[(CLOCK, "tsc")],
    ),
];

const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const DEFRAG: &str = "sys/kernel/mm/transparent_hugepage/defrag";

const MEMORY: &[Row] = &[
    (
        "memory/dirty-background",
        (&[("proc/sys/vm/dirty_background_ratio", "3")], Warning, "dirty_background_ratio='10'"),
        &[
            ("proc/sys/vm/dirty_background_ratio", "0"),
            ("proc/sys/vm/dirty_background_bytes", "2147483648"),
        ],
    ),
    (
        "memory/dirty",
        (&[("proc/sys/vm/dirty_ratio", "20")], Advice, "vm.dirty_ratio='40'"),
        &[("proc/sys/vm/dirty_ratio", "0"), ("proc/sys/vm/dirty_bytes", "8589934592")],
    ),
    (
        "memory/dirty-expire",
        (&[("proc/sys/vm/dirty_expire_centisecs", "500")], Warning, "expire_centisecs='3000'"),
        &[("proc/sys/vm/dirty_expire_centisecs", "3000")],
    ),
    (
        "memory/swappiness",
        (
            &[("proc/sys/vm/swappiness", "60"), ("proc/swaps", "Filename\n/dev/sda2\n")],
            Warning,
            "vm.swappiness='10'",
        ),
        &[("proc/sys/vm/swappiness", "1")],
    ),
    (
        "memory/huge-pages",
        (&[(ENABLED, "[always] madvise never")], Advice, "echo madvise > /sys/kernel/mm/"),
        &[(ENABLED, "always [madvise] never")],
    ),
    (
        "memory/huge-pages-defrag",
        (&[(DEFRAG, "[always] defer madvise never")], Advice, "echo madvise > /sys/kernel/mm/"),
        &[(DEFRAG, "always defer [madvise] never")],
    ),
    (
        "memory/zone-reclaim",
        (&[("proc/sys/vm/zone_reclaim_mode", "1")], Warning, "vm.zone_reclaim_mode='0'"),
        &[("proc/sys/vm/zone_reclaim_mode", "0")],
    ),
    (
        "memory/numa-balancing",
        (
            &[
                ("proc/sys/kernel/numa_balancing", "1"),
                ("sys/devices/system/node/node0/cpulist", "0-7"),
                ("sys/devices/system/node/node1/cpulist", "8-15"),
            ],
            Advice,
            "kernel.numa_balancing='0'",
        ),
        &[
            ("proc/sys/kernel/numa_balancing", "1"),
            ("sys/devices/system/node/node0/cpulist", "0-15"),
        ],
    ),
];

const SDA: (&str, &str) = ("sys/block/sda/size", "1000");

const DISKS: &[Row] = &[
    (
        "disks/scheduler",
        (
            &[SDA, ("sys/block/sda/queue/scheduler", "none mq-deadline [bfq]")],
            Warning,
            "echo mq-deadline > /sys/block/sda/queue/scheduler",
        ),
        &[SDA, ("sys/block/sda/queue/scheduler", "[none] mq-deadline")],
    ),
    (
        "disks/queue-depth",
        (
            &[SDA, ("sys/block/sda/queue/nr_requests", "32")],
            Advice,
            "echo 256 > /sys/block/sda/queue/nr_requests",
        ),
        &[SDA, ("sys/block/sda/queue/nr_requests", "256")],
    ),
    (
        "disks/request-size",
        (
            &[
                SDA,
                ("sys/block/sda/queue/max_sectors_kb", "128"),
                ("sys/block/sda/queue/max_hw_sectors_kb", "32767"),
            ],
            Advice,
            "echo 4096 > /sys/block/sda/queue/max_sectors_kb",
        ),
        &[
            SDA,
            ("sys/block/sda/queue/max_sectors_kb", "1280"),
            ("sys/block/sda/queue/max_hw_sectors_kb", "32767"),
        ],
    ),
    (
        "disks/read-ahead",
        (
            &[
                SDA,
                ("sys/block/sda/queue/read_ahead_kb", "128"),
                ("sys/block/sda/queue/rotational", "1"),
            ],
            Warning,
            "echo 4096 > /sys/block/sda/queue/read_ahead_kb",
        ),
        &[
            SDA,
            ("sys/block/sda/queue/read_ahead_kb", "128"),
            ("sys/block/sda/queue/rotational", "0"),
        ],
    ),
];

/// An interface of 25 Gbit/s as a distribution leaves it.
const FAST: Files = &[
    ("sys/class/net/eth0/device/vendor", "x"),
    ("sys/class/net/eth0/operstate", "up"),
    ("sys/class/net/eth0/speed", "25000"),
    ("sys/class/net/eth0/mtu", "1500"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
    ("sys/class/net/eth0/queues/rx-1/rps_cpus", "0"),
    ("proc/sys/net/core/rmem_max", "212992"),
];
/// One that was set right.
const TUNED: Files = &[
    ("sys/class/net/eth0/device/vendor", "x"),
    ("sys/class/net/eth0/operstate", "up"),
    ("sys/class/net/eth0/speed", "25000"),
    ("sys/class/net/eth0/mtu", "9000"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
    ("sys/class/net/eth0/queues/rx-1/rps_cpus", "0"),
    ("proc/sys/net/core/rmem_max", "16777216"),
    ("proc/77/comm", "irqbalance"),
];

const NETWORK: &[Row] = &[
    ("network/frame-size", (FAST, Advice, "ip link set dev eth0 mtu 9000"), TUNED),
    ("network/socket-buffers", (FAST, Advice, "net.core.rmem_max='4194304'"), TUNED),
    ("network/interrupts", (FAST, Advice, "irqbalance"), TUNED),
];

/// Checks of what only system calls or the mount table say, and those that find nothing: tests of their own give them that.
const OTHERS: [&str; 6] = [
    "kernel/scheduler-slice",
    "kernel/clock-synchronised",
    "disks/spinning",
    "network/rings",
    "limits/open-files",
    "limits/locked-memory",
];

/// What a check says of a host of these files.
fn look(code: &str, files: Files) -> Vec<Verdict> {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let check = all().into_iter().find(|check| check.code == code).expect(code);
    (check.look)(&Host::below(folder.path()))
}

#[test]
fn every_check_finds_what_it_is_for_and_nothing_on_a_host_that_was_set_right() {
    let rows: Vec<&Row> =
        [KERNEL, PROCESSORS, MEMORY, DISKS, NETWORK].into_iter().flatten().collect();
    for (code, (found, severity, fix), fine) in &rows {
        match &look(code, found)[..] {
            [Verdict::Found { severity: seen, fix: way, .. }] => {
                assert_eq!(seen, severity, "{code}");
                assert!(way.line().contains(fix), "{code}: {}", way.line());
            }
            other => panic!("{code}: {other:?}"),
        }
        let right = look(code, fine);
        assert!(right.iter().all(|it| matches!(it, Verdict::Fine(_))), "{code}: {right:?}");
        assert!(!right.is_empty(), "{code} looks at nothing");
    }
    for check in all() {
        let code = check.code;
        let has_row = rows.iter().any(|row| row.0 == code);
        let is_elsewhere = code.starts_with("places/") || OTHERS.contains(&code);
        assert!(has_row != is_elsewhere, "{code} has no row, or needs none");
    }
}

#[test]
fn the_slice_of_the_scheduler_is_read_under_each_of_its_names() {
    let names: [Files; 3] = [
        &[("sys/kernel/debug/sched/base_slice_ns", "2800000")],
        &[("sys/kernel/debug/sched/min_granularity_ns", "2800000")],
        &[("proc/sys/kernel/sched_min_granularity_ns", "2800000")],
    ];
    for files in names {
        let seen = look("kernel/scheduler-slice", files);
        assert!(matches!(&seen[..], [Verdict::Fine(text)] if text.contains("2800000")), "{seen:?}");
    }
}

#[test]
fn an_old_kernel_has_passthrough_only_if_its_file_says_so_and_one_without_a_file_is_unknown() {
    // kernel/version finds it.
    let old = look("fuse/passthrough", &[(RELEASE, "6.6.0")]);
    assert!(old.is_empty(), "{old:?}");
    let without: Files = &[(RELEASE, "6.6.0"), ("boot/config-6.6.0", "CONFIG_FUSE_FS=m\n")];
    let without = look("fuse/passthrough", without);
    assert!(without.is_empty(), "{without:?}");
    let brought: Files =
        &[(RELEASE, "6.6.0"), ("boot/config-6.6.0", "CONFIG_FUSE_PASSTHROUGH=y\n")];
    let brought = look("fuse/passthrough", brought);
    assert!(matches!(&brought[..], [Verdict::Fine(_)]), "{brought:?}");
    let silent = look("fuse/passthrough", &[(RELEASE, "6.18.0")]);
    assert!(
        matches!(&silent[..], [Verdict::Unknown(why)] if why.contains("/lib/modules/6.18.0/config")),
        "{silent:?}"
    );
}

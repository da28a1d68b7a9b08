//! Memory: the page cache that temporary files live in, and what takes it away.

use super::{Check, unknown};
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// Dirty bytes at which the kernel starts to write: below this, temporary files that live for seconds reach the disk.
const BACKGROUND_MIN_BYTES: u64 = 1 << 30;
/// Shares of memory that the studies 1, 3 and 4 set: start to write at 10 %, make programs wait at 40 %.
const BACKGROUND_RATIO: u64 = 10;
const DIRTY_RATIO: u64 = 40;
/// Of more memory than this a ratio of 40 % is more than a disk writes in a minute: the limit is given in bytes there.
const LARGE_MEMORY_BYTES: u64 = 128 << 30;
const DIRTY_MAX_BYTES: u64 = 32 << 30;
/// What the studies set.
const SWAPPINESS: u64 = 10;
/// Age at which dirty pages are written, hundredths of a second: the kernel's default.
const EXPIRE_DEFAULT: u64 = 3000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "memory/dirty-background",
        title: "Where background writing starts",
        why: "A temporary file that is removed before the kernel writes it costs no I/O at all. Analytics programs write and remove \
              gigabytes of them; the studies [1, 3, 4] set dirty_background_ratio to 10.",
        look: background,
    },
    Check {
        code: "memory/dirty",
        title: "Where programs wait for writing",
        why: "At this many dirty bytes each writer has to wait for the disk. The studies [1, 3, 4] set dirty_ratio to 40; \
              on hosts with much memory a limit in bytes keeps the final sync short.",
        look: dirty,
    },
    Check {
        code: "memory/dirty-expire",
        title: "Age at which dirty pages are written",
        why: "Files that live less than dirty_expire_centisecs are never written unless there are too many of them; 30 s is the \
              kernel's default, and shorter times bring temporary files to the disk.",
        look: expire,
    },
    Check {
        code: "memory/swappiness",
        title: "Swappiness",
        why: "Programs that stream through large files fill the page cache; a high swappiness swaps out memory of programs to \
              keep pages that are never read again. The studies [1, 3, 4] set 10.",
        look: swappiness,
    },
    Check {
        code: "memory/huge-pages",
        title: "Transparent huge pages",
        why: "With `always`, memory is compacted while programs wait for it. The studies [1, 3, 4] switched it off; `madvise` \
              leaves it to programs that want it (JVMs, DuckDB).",
        look: huge_pages,
    },
    Check {
        code: "memory/huge-pages-defrag",
        title: "Compaction for huge pages",
        why: "With `always` each page fault may stop a program until memory has been compacted \
              (Documentation/admin-guide/mm/transhuge.rst).",
        look: defrag,
    },
    Check {
        code: "memory/zone-reclaim",
        title: "Zone reclaim",
        why: "With it a NUMA node throws away cached files before it uses free memory of another node: the page cache stays small \
              (Documentation/admin-guide/sysctl/vm.rst advises file servers against it).",
        look: zone_reclaim,
    },
    Check {
        code: "memory/numa-balancing",
        title: "Automatic NUMA balancing",
        why: "It unmaps pages to see who uses them. Long computations may gain; I/O-bound programs pay for the page faults.",
        look: numa_balancing,
    },
];

fn background(host: &Host) -> Vec<Verdict> {
    let bytes = host.number("proc/sys/vm/dirty_background_bytes").unwrap_or(0);
    let Some(ratio) = host.number("proc/sys/vm/dirty_background_ratio") else {
        return unknown("vm.dirty_background_ratio cannot be read");
    };
    if bytes > 0 {
        let evidence = format!("vm.dirty_background_bytes = {bytes}");
        return vec![if bytes >= BACKGROUND_MIN_BYTES {
            Verdict::Fine(evidence)
        } else {
            Verdict::warning(
                evidence,
                Fix::sysctl("vm.dirty_background_bytes", BACKGROUND_MIN_BYTES),
            )
        }];
    }
    let evidence = format!("vm.dirty_background_ratio = {ratio}");
    vec![if ratio >= BACKGROUND_RATIO {
        Verdict::Fine(evidence)
    } else {
        Verdict::warning(evidence, Fix::sysctl("vm.dirty_background_ratio", BACKGROUND_RATIO))
    }]
}

fn dirty(host: &Host) -> Vec<Verdict> {
    let bytes = host.number("proc/sys/vm/dirty_bytes").unwrap_or(0);
    let Some(ratio) = host.number("proc/sys/vm/dirty_ratio") else {
        return unknown("vm.dirty_ratio cannot be read");
    };
    let memory = host.memory_bytes().unwrap_or(0);
    if bytes > 0 {
        let evidence = format!("vm.dirty_bytes = {bytes}");
        return vec![if bytes >= 2 * BACKGROUND_MIN_BYTES {
            Verdict::Fine(evidence)
        } else {
            Verdict::warning(evidence, Fix::sysctl("vm.dirty_bytes", 4 * BACKGROUND_MIN_BYTES))
        }];
    }
    let evidence = format!("vm.dirty_ratio = {ratio}");
    vec![if memory > LARGE_MEMORY_BYTES {
        Verdict::advice(
            format!("{evidence} of {} GiB of memory", memory >> 30),
            Fix::sysctl("vm.dirty_bytes", DIRTY_MAX_BYTES),
        )
    } else if ratio < DIRTY_RATIO {
        Verdict::advice(evidence, Fix::sysctl("vm.dirty_ratio", DIRTY_RATIO))
    } else {
        Verdict::Fine(evidence)
    }]
}

fn expire(host: &Host) -> Vec<Verdict> {
    let Some(age) = host.number("proc/sys/vm/dirty_expire_centisecs") else {
        return unknown("vm.dirty_expire_centisecs cannot be read");
    };
    let evidence = format!("vm.dirty_expire_centisecs = {age}");
    vec![if age < EXPIRE_DEFAULT {
        Verdict::warning(evidence, Fix::sysctl("vm.dirty_expire_centisecs", EXPIRE_DEFAULT))
    } else {
        Verdict::Fine(evidence)
    }]
}

fn swappiness(host: &Host) -> Vec<Verdict> {
    let Some(now) = host.number("proc/sys/vm/swappiness") else {
        return unknown("vm.swappiness cannot be read");
    };
    let has_swap = host.text("proc/swaps").is_some_and(|table| table.lines().count() > 1);
    let evidence = format!("vm.swappiness = {now}");
    vec![match (now > SWAPPINESS, has_swap) {
        (false, _) => Verdict::Fine(evidence),
        (true, false) => Verdict::Fine(format!("{evidence}, but there is no swap")),
        (true, true) => Verdict::warning(evidence, Fix::sysctl("vm.swappiness", SWAPPINESS)),
    }]
}

/// Which of the words of a setting is chosen: the one in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage";

fn huge_pages(host: &Host) -> Vec<Verdict> {
    choice(host, "enabled", "madvise")
}

fn defrag(host: &Host) -> Vec<Verdict> {
    choice(host, "defrag", "madvise")
}

/// A setting of huge pages that must not be `always`.
fn choice(host: &Host, name: &str, wanted: &str) -> Vec<Verdict> {
    let path = format!("{HUGE_PAGES}/{name}");
    let Some(text) = host.text(&path) else {
        return unknown("the kernel has no transparent huge pages");
    };
    let now = chosen(&text).unwrap_or(&text);
    let evidence = format!("/{path} is {now}");
    vec![if now == "always" {
        Verdict::advice(evidence, Fix::Knob { path: format!("/{path}"), value: wanted.to_owned() })
    } else {
        Verdict::Fine(evidence)
    }]
}

fn zone_reclaim(host: &Host) -> Vec<Verdict> {
    match host.number("proc/sys/vm/zone_reclaim_mode") {
        None => unknown("the kernel has no vm.zone_reclaim_mode (it knows no NUMA nodes)"),
        Some(0) => vec![Verdict::Fine("vm.zone_reclaim_mode = 0".to_owned())],
        Some(mode) => vec![Verdict::warning(
            format!("vm.zone_reclaim_mode = {mode}"),
            Fix::sysctl("vm.zone_reclaim_mode", 0),
        )],
    }
}

fn numa_balancing(host: &Host) -> Vec<Verdict> {
    let nodes = host.list("sys/devices/system/node");
    let nodes = nodes.iter().filter(|name| name.starts_with("node")).count();
    match host.number("proc/sys/kernel/numa_balancing") {
        Some(mode) if mode > 0 && nodes > 1 => vec![Verdict::advice(
            format!("kernel.numa_balancing = {mode} on {nodes} NUMA nodes"),
            Fix::sysctl("kernel.numa_balancing", 0),
        )],
        Some(mode) => {
            vec![Verdict::Fine(format!("kernel.numa_balancing = {mode}, {nodes} NUMA node(s)"))]
        }
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::finding::Severity;

    fn with(files: &[(&str, &str)], look: fn(&Host) -> Vec<Verdict>) -> Vec<Verdict> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, text).unwrap();
        }
        look(&Host::below(folder.path()))
    }

    fn fix_of(verdicts: &[Verdict]) -> Option<(Severity, String)> {
        match verdicts {
            [Verdict::Found { severity, fix, .. }] => Some((*severity, fix.line())),
            _ => None,
        }
    }

    #[test]
    fn the_studies_values_are_fine() {
        for (path, value, look) in [
            ("proc/sys/vm/dirty_background_ratio", "10\n", background as fn(&Host) -> Vec<Verdict>),
            ("proc/sys/vm/dirty_ratio", "40\n", dirty),
            ("proc/sys/vm/swappiness", "10\n", swappiness),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", huge_pages),
            ("proc/sys/vm/zone_reclaim_mode", "0\n", zone_reclaim),
        ] {
            assert!(matches!(with(&[(path, value)], look)[..], [Verdict::Fine(_)]), "{path}");
        }
    }

    #[test]
    fn bytes_take_precedence_over_a_ratio() {
        let files = [
            ("proc/sys/vm/dirty_background_ratio", "0"),
            ("proc/sys/vm/dirty_background_bytes", "16777216"),
        ];
        let found = fix_of(&with(&files, background));
        assert_eq!(
            found,
            Some((
                Severity::Warning,
                "sysctl -w vm.dirty_background_bytes='1073741824'".to_owned()
            ))
        );
    }

    #[test]
    fn much_memory_wants_a_limit_in_bytes() {
        let files =
            [("proc/sys/vm/dirty_ratio", "40"), ("proc/meminfo", "MemTotal:       536870912 kB\n")];
        let found = fix_of(&with(&files, dirty));
        assert_eq!(
            found,
            Some((Severity::Advice, "sysctl -w vm.dirty_bytes='34359738368'".to_owned()))
        );
    }

    #[test]
    fn swappiness_does_not_matter_without_swap() {
        let none = [("proc/sys/vm/swappiness", "60"), ("proc/swaps", "Filename Type\n")];
        assert_eq!(fix_of(&with(&none, swappiness)), None);
        let some = [
            ("proc/sys/vm/swappiness", "60"),
            ("proc/swaps", "Filename Type\n/dev/sda2 partition\n"),
        ];
        assert!(fix_of(&with(&some, swappiness)).is_some());
    }
}

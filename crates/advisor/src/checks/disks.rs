//! Block devices: their scheduler, queue, request size and read-ahead.

use super::Check;
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// Requests that a queue should hold, at least.
const REQUESTS_MIN: u64 = 64;
/// Largest request that a disk should be given, KiB: below this, large transfers are cut into many.
const REQUEST_KIB_MIN: u64 = 512;
/// Read-ahead of spinning disks, KiB.
const SPINNING_READ_AHEAD_KIB: u64 = 4096;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "disks/scheduler",
        title: "I/O scheduler",
        why: "Flash needs no ordering: `none`, or `mq-deadline` where writers starve readers. `bfq` shares fairly at the price of \
              throughput. The studies [1, 3, 4] chose an elevator; `deadline` and `noop` are called `mq-deadline` and `none` today.",
        look: scheduler,
    },
    Check {
        code: "disks/queue-depth",
        title: "Requests in the queue",
        why: "A short queue keeps disks and arrays from working on many requests at a time (the studies [1, 3, 4] raised it).",
        look: queue_depth,
    },
    Check {
        code: "disks/request-size",
        title: "Largest request",
        why: "Transfers of megabytes are cut into pieces of max_sectors_kb; the studies raised it to what the device allows.",
        look: request_size,
    },
    Check {
        code: "disks/read-ahead",
        title: "Read-ahead",
        why: "Spinning disks and arrays need megabytes of it to stream (the studies [1, 3, 4] raised it). Flash may lose: Forebay \
              measured 1.17 of the rate with 1 MiB on one device and 0.59 on another, so there it is only reported.",
        look: read_ahead,
    },
    Check {
        code: "disks/spinning",
        title: "Spinning disks below scratch",
        why: "Temporary files of many sessions are random I/O. Study [4] moved scratch to flash and left the data on disk.",
        look: spinning,
    },
];

/// A number of a disk's queue.
fn queue(host: &Host, disk: &str, name: &str) -> Option<u64> {
    host.number(&format!("sys/block/{disk}/queue/{name}"))
}

fn is_spinning(host: &Host, disk: &str) -> bool {
    // A virtual disk says that it spins, whatever is below it.
    let is_virtual = disk.starts_with("vd") || disk.starts_with("xvd");
    !is_virtual && queue(host, disk, "rotational") == Some(1)
}

fn set(disk: &str, attribute: &str, value: &str) -> Fix {
    Fix::Device {
        device: disk.to_owned(),
        attribute: format!("queue/{attribute}"),
        value: value.to_string(),
    }
}

/// One verdict for each disk of which `look` can say something.
fn each(host: &Host, look: impl Fn(&str) -> Option<Verdict>) -> Vec<Verdict> {
    host.disks().iter().filter_map(|disk| look(disk)).collect()
}

fn scheduler(host: &Host) -> Vec<Verdict> {
    each(host, |disk| {
        let text = host.text(&format!("sys/block/{disk}/queue/scheduler"))?;
        let now = text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(word, _)| word)?;
        let evidence = format!("{disk}: {now}");
        Some(match (now, is_spinning(host, disk)) {
            ("bfq", _) => Verdict::warning(evidence, set(disk, "scheduler", "mq-deadline")),
            ("none", true) => Verdict::advice(
                format!("{evidence}, on a spinning disk"),
                set(disk, "scheduler", "mq-deadline"),
            ),
            ("kyber", _) => Verdict::advice(evidence, set(disk, "scheduler", "none")),
            _ => Verdict::Fine(evidence),
        })
    })
}

fn queue_depth(host: &Host) -> Vec<Verdict> {
    each(host, |disk| {
        let requests = queue(host, disk, "nr_requests")?;
        let evidence = format!("{disk}: {requests} requests");
        Some(if requests < REQUESTS_MIN {
            Verdict::advice(evidence, set(disk, "nr_requests", "256"))
        } else {
            Verdict::Fine(evidence)
        })
    })
}

fn request_size(host: &Host) -> Vec<Verdict> {
    each(host, |disk| {
        let now = queue(host, disk, "max_sectors_kb")?;
        let possible = queue(host, disk, "max_hw_sectors_kb")?.min(4096);
        let evidence = format!("{disk}: {now} KiB (the device allows {possible} KiB or more)");
        Some(if now < REQUEST_KIB_MIN && possible > now {
            Verdict::advice(evidence, set(disk, "max_sectors_kb", &possible.to_string()))
        } else {
            Verdict::Fine(format!("{disk}: {now} KiB"))
        })
    })
}

fn read_ahead(host: &Host) -> Vec<Verdict> {
    each(host, |disk| {
        let now = queue(host, disk, "read_ahead_kb")?;
        let evidence = format!("{disk}: {now} KiB");
        Some(if is_spinning(host, disk) && now < SPINNING_READ_AHEAD_KIB {
            Verdict::warning(
                format!("{evidence}, on a spinning disk"),
                set(disk, "read_ahead_kb", &SPINNING_READ_AHEAD_KIB.to_string()),
            )
        } else {
            Verdict::Fine(evidence)
        })
    })
}

fn spinning(host: &Host) -> Vec<Verdict> {
    if host.places.is_empty() {
        return Vec::new();
    }
    each(host, |disk| {
        Some(if is_spinning(host, disk) {
            Verdict::advice(
                format!("{disk} spins"),
                Fix::ByHand {
                    advice: "put work and util on flash; data may stay on spinning disks"
                        .to_owned(),
                },
            )
        } else {
            Verdict::Fine(format!("{disk} does not spin, as far as the system knows"))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::Place;

    /// A host with a disk `sda`, a partition of it, and `dm-0` on that partition.
    fn host(folder: &std::path::Path, scheduler: &str, rotational: &str) -> Host {
        for (path, text) in [
            ("sys/block/sda/dev", "8:0"),
            ("sys/block/sda/size", "1000"),
            ("sys/block/sda/sda1/dev", "8:1"),
            ("sys/block/sda/queue/scheduler", scheduler),
            ("sys/block/sda/queue/rotational", rotational),
            ("sys/block/sda/queue/read_ahead_kb", "128"),
            ("sys/block/dm-0/dev", "253:0"),
            ("sys/block/dm-0/slaves/sda1/dev", "8:1"),
        ] {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Host::below(folder)
    }

    #[test]
    fn a_place_on_a_logical_volume_is_on_the_disk_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), "[none] bfq", "0");
        let mut place = Place::default();
        place.mount.device = "253:0".into();
        host.places.push(place);
        assert_eq!(host.disks(), ["sda"]);
    }

    #[test]
    fn a_spinning_disk_wants_a_scheduler_and_read_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path(), "[none] mq-deadline bfq", "1");
        let line = |verdicts: Vec<Verdict>| match &verdicts[..] {
            [Verdict::Found { fix, .. }] => fix.line(),
            other => panic!("{other:?}"),
        };
        assert_eq!(line(scheduler(&host)), "echo mq-deadline > /sys/block/sda/queue/scheduler");
        assert_eq!(line(read_ahead(&host)), "echo 4096 > /sys/block/sda/queue/read_ahead_kb");
    }

    #[test]
    fn a_place_on_a_spinning_disk_is_found_and_one_on_flash_is_fine() {
        for (rotational, spins) in [("1", true), ("0", false)] {
            let folder = tempfile::tempdir().unwrap();
            let mut host = host(folder.path(), "[none] bfq", rotational);
            assert!(spinning(&host).is_empty(), "nobody asked about a place");
            let mut place = Place::default();
            place.mount.device = "253:0".into();
            host.places.push(place);
            let found = spinning(&host);
            let fits = match &found[..] {
                [Verdict::Found { .. }] => spins,
                [Verdict::Fine(_)] => !spins,
                _ => false,
            };
            assert!(fits, "{found:?}");
        }
    }

    #[test]
    fn flash_is_fine_with_no_scheduler_and_any_read_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path(), "[none] mq-deadline bfq", "0");
        assert!(matches!(scheduler(&host)[..], [Verdict::Fine(_)]));
        assert!(matches!(read_ahead(&host)[..], [Verdict::Fine(_)]));
    }
}

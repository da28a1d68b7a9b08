//! How long the disks of etcd's members take, from the page on which each counts it (`/metrics`).

use super::etcd::{answering, unknown};
use super::{Cluster, EtcdMember};
use crate::finding::{Fix, Verdict};

/// What etcd asks for, in milliseconds, of 99 of 100: syncs of its log, and commits of its database.
const SYNC_SLOW_MS: f64 = 10.0;
const COMMIT_SLOW_MS: f64 = 25.0;
/// A heartbeat is 100 ms: a log that takes longer holds it up.
const SYNC_BAD_MS: f64 = 100.0;

/// Fewer times say nothing about one of 100.
const COUNT_MIN: u64 = 100;

/// Times that a member counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EtcdDisk {
    /// Syncs of its log.
    pub syncs: Times,
    /// Commits of its database.
    pub commits: Times,
}

/// How many there were, and how long 99 of 100 took at most, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// The 99th percentile.
    pub p99_ms: f64,
}

impl EtcdDisk {
    /// What a page says.
    ///
    /// # Errors
    /// What it lacks.
    pub fn of(page: &str) -> Result<EtcdDisk, String> {
        let times = |name: &str| {
            times(page, name).ok_or_else(|| format!("its page of metrics has no {name}"))
        };
        Ok(EtcdDisk {
            syncs: times("etcd_disk_wal_fsync_duration_seconds")?,
            commits: times("etcd_disk_backend_commit_duration_seconds")?,
        })
    }
}

/// The times of a histogram: between the bounds of a bucket they are taken to lie evenly, as Prometheus does.
fn times(page: &str, name: &str) -> Option<Times> {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in page.lines() {
        let Some(rest) =
            line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{le=\""))
        else {
            continue;
        };
        let (bound, count) = rest.split_once("\"}")?;
        buckets.push((bound.parse().ok()?, count.trim().parse().ok()?));
    }
    let &(last, count) = buckets.last()?;
    let is_histogram = last == f64::INFINITY
        && buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1)
        && buckets.iter().all(|(_, count)| (0.0..=2e18).contains(count));
    if !is_histogram {
        return None;
    }
    let wanted = count * 0.99;
    let (mut from, mut before) = (0.0, 0.0);
    for (bound, below) in buckets {
        if below >= wanted {
            // Of those above the last bound no more is known.
            let part = if below > before { (wanted - before) / (below - before) } else { 1.0 };
            let seconds = if bound.is_finite() { from + (bound - from) * part } else { from };
            return Some(Times { count: count as u64, p99_ms: seconds * 1e3 });
        }
        (from, before) = (bound, below);
    }
    None
}

pub(super) fn look(cluster: &Cluster) -> Vec<Verdict> {
    if cluster.etcd.members.is_empty() {
        return unknown(cluster);
    }
    answering(cluster).map(|(member, _)| judge(member, cluster.etcd.started_by_nodes)).collect()
}

fn judge(member: &EtcdMember, started_by_nodes: bool) -> Verdict {
    let name = &member.name;
    let EtcdDisk { syncs, commits } = match &member.disk {
        Ok(disk) => *disk,
        Err(reason) => return Verdict::Unknown(format!("{name}: {reason}")),
    };
    if syncs.count < COUNT_MIN {
        return Verdict::Unknown(format!(
            "{name} has synced its log {} times since it started, which is too few to judge",
            syncs.count
        ));
    }
    let mut evidence = format!(
        "{name}, 99 of 100 since it started: {} syncs of the log within {:.1} ms",
        syncs.count, syncs.p99_ms
    );
    if commits.count >= COUNT_MIN {
        evidence +=
            &format!(", {} commits of the database within {:.1} ms", commits.count, commits.p99_ms);
    }
    let place = if started_by_nodes { "the folder of the node" } else { "its data" };
    let fix = Fix::ByHand {
        advice: format!(
            "on the machine of {name}: put {place} on a disk that syncs quickly (NVMe with power-loss protection) and that nothing else keeps busy"
        ),
    };
    if syncs.p99_ms >= SYNC_BAD_MS {
        Verdict::problem(evidence, fix)
    } else if syncs.p99_ms >= SYNC_SLOW_MS
        || commits.count >= COUNT_MIN && commits.p99_ms >= COMMIT_SLOW_MS
    {
        Verdict::warning(evidence, fix)
    } else {
        Verdict::Fine(evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an etcd 3.4 that was asked for 150 writes.
    const PAGE: &str = include_str!("etcd-page.txt");

    #[test]
    fn the_page_of_a_member_says_how_long_its_disk_takes() {
        let disk = EtcdDisk::of(PAGE).unwrap();
        assert_eq!((disk.syncs.count, disk.commits.count), (156, 32));
        // 154.44 of 156: past the 154 within 8 ms, a part of the two up to 16 ms.
        assert!((disk.syncs.p99_ms - 9.76).abs() < 0.01, "{disk:?}");
        assert!((disk.commits.p99_ms - 7.79).abs() < 0.01, "{disk:?}");
    }

    #[test]
    fn a_page_without_histograms_says_what_it_lacks() {
        let no_commits = PAGE.replace("backend_commit", "other");
        let error = EtcdDisk::of(&no_commits).unwrap_err();
        assert!(error.contains("etcd_disk_backend_commit_duration_seconds"), "{error}");
        let name = "etcd_disk_wal_fsync_duration_seconds";
        for buckets in [
            "1\"} 5\n",
            "x\"} 5\n",
            "+Inf\"} -5\n",
            "+Inf\"} NaN\n",
            "+Inf\"} 1e300\n",
            "+Inf 5\n",
            "2\"} 5\nNAME1\"} 6\nNAME+Inf\"} 7\n",
            "1\"} 6\nNAME+Inf\"} 5\n",
        ] {
            let head = format!("{name}_bucket{{le=\"");
            let page = format!("{head}{}", buckets.replace("NAME", &head));
            assert_eq!(times(&page, name), None, "{page}");
        }
        let page = format!("{name}_bucket{{le=\"1\"}} 0\n{name}_bucket{{le=\"+Inf\"}} 0\n");
        assert_eq!(times(&page, name), Some(Times { count: 0, p99_ms: 1000.0 }));
        // More than one of 100 took longer than the last bound.
        let page = page.replace("+Inf\"} 0", "+Inf\"} 9");
        assert_eq!(times(&page, name), Some(Times { count: 9, p99_ms: 1000.0 }));
    }
}

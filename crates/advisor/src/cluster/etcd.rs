//! etcd: members, alarms, space, and what writing to it takes.

use super::nodes::{DAY, days};
use super::{Cluster, EtcdMember, EtcdStatus, disk};
use crate::checks::Check;
use crate::finding::{Fix, Verdict};

/// etcd's own default of its quota.
const QUOTA_DEFAULT: u64 = 2 << 30;

/// Parts of the quota, in percent: stores must not grow any more; it is time to do something.
const FULL_PERCENT: u64 = 75;
const NEAR_PERCENT: u64 = 60;

/// Nodes defragment from half of the quota on, if at least half of a file is unused: then this has failed.
const UNUSED_OF_QUOTA_PERCENT: u64 = 50;

/// What writes may take, in milliseconds: etcd asks for syncs of its log within 10 ms; a heartbeat is 100 ms, and after 1 s without one a
/// new leader is elected.
const WRITE_SLOW_MS: f64 = 25.0;
const WRITE_BAD_MS: f64 = 100.0;
const WORST_BAD_MS: f64 = 1000.0;

/// Left life of a certificate for etcd from which on it is said, and is pressing: all nodes have to be given another one.
const CERTIFICATE_SOON: i64 = 60 * DAY;
const CERTIFICATE_PRESSING: i64 = 14 * DAY;

pub(super) const CHECKS: &[Check<Cluster>] = &[
    Check {
        code: "etcd/members",
        title: "Members of etcd",
        why: "etcd works as long as more than half of its members do: three survive the loss of one, two survive none, and one takes the \
              cluster with it.",
        look: members,
    },
    Check {
        code: "etcd/alarms",
        title: "Alarms and complaints of etcd",
        why: "With the alarm NOSPACE etcd refuses all changes, and with it every commit of the file system; with CORRUPT its members differ.",
        look: alarms,
    },
    Check {
        code: "etcd/space",
        title: "Space in etcd",
        why: "Names and attributes are in etcd. From 75 % of its quota on, commits that make a fileset larger are refused.",
        look: space,
    },
    Check {
        code: "etcd/unused",
        title: "Unused space in etcd's files",
        why: "Deleted records free space within the file only; nodes defragment a file from half of the quota on. A file that is large and mostly \
              unused shows that this fails.",
        look: unused,
    },
    Check {
        code: "etcd/write-time",
        title: "Time of a write to etcd",
        why: "Every commit of names, every lease and every change of the grid waits for a write that most members have synced to disk. etcd asks \
              for disks that sync within 10 ms; slow ones cost leaders their place, and nodes their leases.",
        look: write_time,
    },
    Check {
        code: "etcd/disk-time",
        title: "Time of the disks of etcd's members",
        why: "A member syncs its log before it answers, and commits its database in between: etcd asks for 99 of 100 within 10 and 25 ms. The time of a \
              write shows what most members need now; this shows each of them since it started, also one whose disk is slow at times.",
        look: disk::look,
    },
    Check {
        code: "etcd/certificates",
        title: "Certificates for etcd",
        why: "All nodes reach etcd with one certificate. When it expires, or that of etcd's authority does, no node renews its lease, and the whole \
              cluster stops answering. Forebay renews neither.",
        look: certificates,
    },
    Check {
        code: "etcd/versions",
        title: "Versions of etcd's members",
        why: "Members of different versions work together only while they are being upgraded.",
        look: versions,
    },
];

pub(super) fn unknown(cluster: &Cluster) -> Vec<Verdict> {
    let reason = cluster.etcd.fault.clone().unwrap_or_else(|| "etcd was not asked".to_owned());
    vec![Verdict::Unknown(reason)]
}

pub(super) fn answering(cluster: &Cluster) -> impl Iterator<Item = (&EtcdMember, &EtcdStatus)> {
    cluster.etcd.members.iter().filter_map(|member| Some((member, member.status.as_ref().ok()?)))
}

fn members(cluster: &Cluster) -> Vec<Verdict> {
    let members = &cluster.etcd.members;
    if members.is_empty() {
        return unknown(cluster);
    }
    let mut verdicts: Vec<Verdict> = members
        .iter()
        .map(|member| match &member.status {
            Err(reason) => Verdict::problem(
                format!("{} at {} does not answer: {reason}", member.name, member.endpoint),
                Fix::ByHand {
                    advice: if cluster.etcd.started_by_nodes {
                        format!("on {}: forebay cluster etcd, or see etcd.log in the folder of the node", member.name)
                    } else {
                        format!("start it; etcdctl endpoint health --endpoints={}", member.endpoint)
                    },
                },
            ),
            Ok(status) if !status.has_leader => Verdict::problem(
                format!("{} knows no leader", member.name),
                Fix::ByHand { advice: "start more than half of the members".to_owned() },
            ),
            Ok(_) => Verdict::Fine(format!("{} answers", member.name)),
        })
        .collect();
    let voting = members.iter().filter(|member| !member.is_learner).count();
    let learners = members.len() - voting;
    let advice = if cluster.etcd.started_by_nodes {
        "let more nodes join: the first three run a member"
    } else {
        "add members until there are three, on machines of their own"
    };
    let fix = Fix::ByHand { advice: advice.to_owned() };
    verdicts.push(match voting {
        1 if cluster.nodes.len() > 1 => {
            Verdict::warning("one member: its loss stops the cluster".to_owned(), fix)
        }
        1 => Verdict::Fine("one member, for one node".to_owned()),
        2 => Verdict::warning("two members: the loss of either stops the cluster".to_owned(), fix),
        count => {
            Verdict::Fine(format!("{count} members: the loss of {} is survived", (count - 1) / 2))
        }
    });
    if learners > 0 {
        verdicts.push(Verdict::warning(
            format!("{learners} members only follow the others, and do not vote"),
            Fix::ByHand { advice: "etcdctl member list; etcdctl member promote ID".to_owned() },
        ));
    }
    verdicts
}

fn alarms(cluster: &Cluster) -> Vec<Verdict> {
    let of_members = answering(cluster).flat_map(|(member, status)| {
        status.errors.iter().map(|error| format!("{}: {error}", member.name))
    });
    let found: Vec<Verdict> = cluster
        .etcd
        .alarms
        .iter()
        .cloned()
        .chain(of_members)
        .map(|evidence| {
            Verdict::problem(
                evidence,
                Fix::ByHand {
                    advice: "NOSPACE: raise --quota-backend-bytes, then etcdctl defrag and etcdctl alarm disarm; CORRUPT: replace the member"
                        .to_owned(),
                },
            )
        })
        .collect();
    match (found.is_empty(), cluster.etcd.members.is_empty()) {
        (false, _) => found,
        (true, true) => unknown(cluster),
        (true, false) => vec![Verdict::Fine("none".to_owned())],
    }
}

/// The quota of a member, and whether it said so itself.
fn quota(status: &EtcdStatus) -> (u64, &'static str) {
    match status.quota_bytes {
        Some(quota) if quota > 0 => (quota, ""),
        Some(_) | None => (QUOTA_DEFAULT, " (etcd's default; it does not say its own)"),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

fn space(cluster: &Cluster) -> Vec<Verdict> {
    let verdicts: Vec<Verdict> = answering(cluster)
        .map(|(member, status)| {
            let (quota, source) = quota(status);
            let percent = status.used_bytes.saturating_mul(100) / quota;
            let evidence = format!(
                "{}: {} used of {}{source}, {percent} %",
                member.name,
                mib(status.used_bytes),
                mib(quota)
            );
            let fix = Fix::ByHand {
                advice: "remove files or filesets, or start etcd with a higher --quota-backend-bytes (8 GiB at most)".to_owned(),
            };
            if percent >= FULL_PERCENT {
                Verdict::problem(evidence, fix)
            } else if percent >= NEAR_PERCENT {
                Verdict::warning(evidence, fix)
            } else {
                Verdict::Fine(evidence)
            }
        })
        .collect();
    if verdicts.is_empty() { unknown(cluster) } else { verdicts }
}

fn unused(cluster: &Cluster) -> Vec<Verdict> {
    let verdicts: Vec<Verdict> = answering(cluster)
        .map(|(member, status)| {
            let (quota, _) = quota(status);
            let unused = status.file_bytes.saturating_sub(status.used_bytes);
            let large = status.file_bytes.saturating_mul(100) / quota >= UNUSED_OF_QUOTA_PERCENT;
            let evidence =
                format!("{}: {} of {} unused", member.name, mib(unused), mib(status.file_bytes));
            if large && unused.saturating_mul(2) > status.file_bytes {
                let command = format!(
                    "etcdctl defrag --endpoints={}   # one member at a time",
                    member.endpoint
                );
                Verdict::warning(evidence, Fix::Command { command })
            } else {
                Verdict::Fine(evidence)
            }
        })
        .collect();
    if verdicts.is_empty() { unknown(cluster) } else { verdicts }
}

fn write_time(cluster: &Cluster) -> Vec<Verdict> {
    let Some(writes) = cluster.etcd.writes else { return unknown(cluster) };
    let evidence = format!(
        "{} writes from {}: {:.1} ms in the median, {:.1} ms at most",
        writes.count, cluster.own_node, writes.median_ms, writes.worst_ms
    );
    let fix = Fix::ByHand {
        advice: "put etcd's data on a disk of its own that syncs quickly (NVMe with power-loss protection); fio --rw=write --fdatasync=1 \
                 --bs=2300 --size=22m on it should show a 99th percentile below 10 ms"
            .to_owned(),
    };
    vec![if writes.median_ms >= WRITE_BAD_MS || writes.worst_ms >= WORST_BAD_MS {
        Verdict::problem(evidence, fix)
    } else if writes.median_ms >= WRITE_SLOW_MS {
        Verdict::warning(evidence, fix)
    } else {
        Verdict::Fine(evidence)
    }]
}

fn certificates(cluster: &Cluster) -> Vec<Verdict> {
    let verdict = |(whose, expires): &(&'static str, i64)| {
        let left = expires - cluster.now_seconds;
        let advice = if cluster.etcd.started_by_nodes {
            "it lasts as long as the authority of the cluster: make a new cluster, and move the files to it, before that day"
        } else {
            "issue a new certificate the same way, put it into node.json on every node, and restart the daemons one at a time"
        };
        let fix = Fix::ByHand { advice: advice.to_owned() };
        let what = format!("the certificate of etcd's {whose}");
        if left <= 0 {
            Verdict::problem(format!("{what} expired {} ago", days(-left)), fix)
        } else if left < CERTIFICATE_PRESSING {
            Verdict::problem(format!("{what} expires in {}", days(left)), fix)
        } else if left < CERTIFICATE_SOON {
            Verdict::warning(format!("{what} expires in {}", days(left)), fix)
        } else {
            Verdict::Fine(format!("{whose}: valid for {}", days(left)))
        }
    };
    cluster.etcd.certificates.iter().map(verdict).collect()
}

fn versions(cluster: &Cluster) -> Vec<Verdict> {
    let mut versions: Vec<&str> =
        answering(cluster).map(|(_, status)| status.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    vec![match versions.as_slice() {
        [] => return unknown(cluster),
        [one] => Verdict::Fine((*one).to_owned()),
        several => Verdict::warning(
            several.join(", "),
            Fix::ByHand { advice: "upgrade all members to the same version".to_owned() },
        ),
    }]
}

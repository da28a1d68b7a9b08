//! Nodes: whether they answer, their versions, certificates and clocks.

use super::{ClockDifference, Cluster, Node, NodeState};
use crate::checks::Check;
use crate::finding::{Fix, Verdict};

pub(super) const DAY: i64 = 86_400;

/// Renewal begins when a third of a certificate's life is left; with less than a quarter it has failed for days.
const RENEWED: i64 = 4;

/// Left life of the authority's certificate from which on it is said, and is pressing.
const AUTHORITY_SOON: i64 = 365 * DAY;
const AUTHORITY_PRESSING: i64 = 60 * DAY;

/// Left life of a monitor's certificate from which on it is said: nobody renews it by itself.
const MONITOR_SOON: i64 = 30 * DAY;

/// Differences of clocks that show in the times of files and in studies over several hosts, and that certificates and tokens do
/// not bear.
const CLOCK_SHOWS_SECONDS: f64 = 0.5;
const CLOCK_BREAKS_SECONDS: f64 = 30.0;

pub(super) const CHECKS: &[Check<Cluster>] = &[
    Check {
        code: "cluster/nodes",
        title: "Nodes that answer",
        why: "A node that does not answer serves none of its filesets, and files on its disks are unreachable until it runs again.",
        look: answers,
    },
    Check {
        code: "cluster/filesets",
        title: "Filesets that a node could not open",
        why: "Programs that use such a fileset wait, or get errors.",
        look: filesets,
    },
    Check {
        code: "cluster/versions",
        title: "Versions of the nodes",
        why: "Nodes that have no protocol version in common refuse each other, and new options work only where all nodes know them.",
        look: versions,
    },
    Check {
        code: "cluster/certificates",
        title: "Certificates of the nodes",
        why: "A node whose certificate has expired is refused by all others. Its daemon renews it when a third of its life is left; less than a \
              quarter means that renewal fails.",
        look: certificates,
    },
    Check {
        code: "cluster/authority",
        title: "Authority of the cluster",
        why: "Only nodes that hold the authority's key and run renew certificates and admit nodes. When the authority's own certificate expires, no \
              certificate of the cluster is valid any more.",
        look: authority,
    },
    Check {
        code: "cluster/monitors",
        title: "Certificates of the monitors",
        why: "A monitor whose certificate has expired reads no metrics, and its alerts stay silent. Nothing renews it by itself.",
        look: monitors,
    },
    Check {
        code: "cluster/clocks",
        title: "Clocks of the nodes",
        why: "Each owner of a fileset stamps its files with its own clock: with clocks apart, make(1) and backups see files of the future, and \
              studies over several hosts put seconds side by side that were not the same. Certificates and tokens bear 30 s.",
        look: clocks,
    },
    Check {
        code: "cluster/etcd-answers",
        title: "etcd, as each node sees it",
        why: "A node that does not reach etcd stops answering when its lease ends, after 10 s.",
        look: etcd_errors,
    },
];

fn each(cluster: &Cluster, look: impl Fn(&Node) -> Verdict) -> Vec<Verdict> {
    cluster.nodes.iter().map(look).collect()
}

fn answers(cluster: &Cluster) -> Vec<Verdict> {
    each(cluster, |node| match &node.state {
        NodeState::Up => Verdict::Fine(format!("{} answers", node.name)),
        NodeState::Silent(reason) => Verdict::problem(
            format!("{} has a lease and does not answer: {reason}", node.name),
            Fix::ByHand {
                advice: format!(
                    "check the network between {} and {}, and the log of its daemon",
                    cluster.own_node, node.name
                ),
            },
        ),
        NodeState::Down => Verdict::warning(
            format!("{} does not run", node.name),
            Fix::ByHand {
                advice: format!(
                    "on {}: forebay cluster start, or mount the file system there; forebay cluster remove {} if it does not come back",
                    node.name, node.name
                ),
            },
        ),
    })
}

fn filesets(cluster: &Cluster) -> Vec<Verdict> {
    let up = cluster.nodes.iter().filter(|node| node.state == NodeState::Up);
    up.flat_map(|node| {
        let found = node.problems.iter().map(|problem| {
            let advice =
                "forebay cluster status; forebay fsck when no node has mounted the file system"
                    .to_owned();
            Verdict::problem(format!("{}: {problem}", node.name), Fix::ByHand { advice })
        });
        let fine = node.problems.is_empty().then(|| Verdict::Fine(node.name.clone()));
        found.chain(fine).collect::<Vec<_>>()
    })
    .collect()
}

fn versions(cluster: &Cluster) -> Vec<Verdict> {
    let Some(newest) = cluster.nodes.iter().map(|node| &node.version).max_by_key(|it| order(it))
    else {
        return Vec::new();
    };
    let older: Vec<String> = cluster
        .nodes
        .iter()
        .filter(|node| node.version != *newest)
        .map(|node| format!("{} {}", node.name, node.version))
        .collect();
    vec![if older.is_empty() {
        Verdict::Fine(format!("all nodes run {newest}"))
    } else {
        Verdict::warning(
            format!("{}; the newest is {newest}", older.join(", ")),
            Fix::ByHand { advice: format!("install {newest} on these nodes, one after another") },
        )
    }]
}

/// The numbers of a version, to compare it.
fn order(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn certificates(cluster: &Cluster) -> Vec<Verdict> {
    each(cluster, |node| {
        let left = node.certificate_expires - cluster.now_seconds;
        let renew = || Fix::Command {
            command: format!(
                "forebay cluster renew   # on {}, then start its daemon again; its log says why renewal failed",
                node.name
            ),
        };
        if left <= 0 {
            Verdict::problem(
                format!("the certificate of {} expired {} ago", node.name, days(-left)),
                renew(),
            )
        } else if left < cluster.certificate_life_seconds / RENEWED {
            Verdict::warning(
                format!("the certificate of {} expires in {}", node.name, days(left)),
                renew(),
            )
        } else {
            Verdict::Fine(format!("{}: valid for {}", node.name, days(left)))
        }
    })
}

fn monitors(cluster: &Cluster) -> Vec<Verdict> {
    let verdict = |(name, expires): &(String, i64)| {
        let left = expires - cluster.now_seconds;
        let renew = Fix::Command {
            command: format!(
                "forebay cluster monitor {name} DIR   # then replace the files of {name} by those in DIR; if it is not used any more: forebay \
                 cluster monitor {name} --remove"
            ),
        };
        if left <= 0 {
            let evidence = format!("the certificate of monitor {name} expired {} ago", days(-left));
            Verdict::problem(evidence, renew)
        } else if left < MONITOR_SOON {
            let evidence = format!("the certificate of monitor {name} expires in {}", days(left));
            Verdict::warning(evidence, renew)
        } else {
            Verdict::Fine(format!("{name}: valid for {}", days(left)))
        }
    };
    cluster.monitors.iter().map(verdict).collect()
}

/// A time for people.
pub(super) fn days(seconds: i64) -> String {
    if seconds < 2 * DAY { format!("{} h", seconds / 3600) } else { format!("{} d", seconds / DAY) }
}

fn authority(cluster: &Cluster) -> Vec<Verdict> {
    let mut verdicts = vec![match cluster.authority_expires {
        None => Verdict::Unknown("the authority's certificate cannot be read".to_owned()),
        Some(expires) => {
            let left = expires - cluster.now_seconds;
            let advice = "make a new cluster, and move the files to it, before that day".to_owned();
            let fix = Fix::ByHand { advice };
            let evidence = format!("the authority's certificate expires in {}", days(left));
            if left < AUTHORITY_PRESSING {
                Verdict::problem(evidence, fix)
            } else if left < AUTHORITY_SOON {
                Verdict::warning(evidence, fix)
            } else {
                Verdict::Fine(format!("valid for {}", days(left)))
            }
        }
    }];
    let holders: Vec<&Node> = cluster.nodes.iter().filter(|node| node.has_authority).collect();
    let running = holders.iter().filter(|node| node.state == NodeState::Up).count();
    let names: Vec<&str> = holders.iter().map(|node| node.name.as_str()).collect();
    verdicts.push(match (running, holders.len()) {
        (0, _) => Verdict::problem(
            format!("no node that holds the authority's key answers ({})", names.join(", ")),
            Fix::ByHand { advice: "start one of these nodes, or restore authority.key".to_owned() },
        ),
        (_, 1) if cluster.nodes.len() > 1 => Verdict::advice(
            format!("only {} holds the authority's key", names.join(", ")),
            Fix::ByHand {
                advice: format!(
                    "keep a copy of authority.key of {} in a safe place, or let a node join with a token that brings the key",
                    names.join(", ")
                ),
            },
        ),
        (running, all) => Verdict::Fine(format!("{running} of {all} nodes with the key answer")),
    });
    verdicts
}

fn clocks(cluster: &Cluster) -> Vec<Verdict> {
    let others = cluster
        .nodes
        .iter()
        .filter(|node| node.name != cluster.own_node && node.state == NodeState::Up);
    others
        .map(|node| {
            let Some(clock) = node.clock else {
                let reason = "it does not say its time: its version is too old";
                return Verdict::Unknown(format!("{}: {reason}", node.name));
            };
            let apart = apart(clock);
            let direction = if clock.least_seconds > 0.0 { "ahead of" } else { "behind" };
            let evidence = format!(
                "the clock of {} is at least {apart:.1} s {direction} that of {}",
                node.name, cluster.own_node
            );
            let command =
                "timedatectl set-ntp true   # on all nodes; chronyc tracking shows the offset";
            let fix = Fix::Command { command: command.to_owned() };
            if apart >= CLOCK_BREAKS_SECONDS {
                Verdict::problem(evidence, fix)
            } else if apart >= CLOCK_SHOWS_SECONDS {
                Verdict::warning(evidence, fix)
            } else {
                let most = clock.most_seconds.abs().max(clock.least_seconds.abs());
                Verdict::Fine(format!("{}: apart by at most {most:.2} s", node.name))
            }
        })
        .collect()
}

/// How far a clock is off for certain, in seconds.
fn apart(clock: ClockDifference) -> f64 {
    clock.least_seconds.max(-clock.most_seconds).max(0.0)
}

fn etcd_errors(cluster: &Cluster) -> Vec<Verdict> {
    each(cluster, |node| match (&node.state, &node.etcd_error) {
        (NodeState::Up, None) => Verdict::Fine(node.name.clone()),
        (NodeState::Up, Some(error)) => Verdict::problem(
            format!("{}: {error}", node.name),
            Fix::ByHand { advice: format!("check the network between {} and etcd", node.name) },
        ),
        (NodeState::Silent(_) | NodeState::Down, _) => {
            Verdict::Unknown(format!("{} does not answer", node.name))
        }
    })
}

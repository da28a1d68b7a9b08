use super::*;
use crate::finding::{Severity, Verdict};

fn member(name: &str) -> EtcdMember {
    EtcdMember {
        name: name.to_owned(),
        endpoint: format!("http://{name}:2379"),
        is_learner: false,
        status: Ok(EtcdStatus {
            version: "3.5.16".to_owned(),
            has_leader: true,
            file_bytes: 40 << 20,
            used_bytes: 10 << 20,
            ..EtcdStatus::default()
        }),
        disk: Ok(disk(2.0, 8.0)),
    }
}

fn disk(sync_ms: f64, commit_ms: f64) -> EtcdDisk {
    let times = |p99_ms| Times { count: 1000, p99_ms };
    EtcdDisk { syncs: times(sync_ms), commits: times(commit_ms) }
}

fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        version: "0.9.0".to_owned(),
        certificate_expires: 1_000_000 + 60 * 86_400,
        has_authority: true,
        clock: Some(ClockDifference { least_seconds: -0.01, most_seconds: 0.02 }),
        ..Node::default()
    }
}

/// A cluster of three nodes and three members that is as it should be.
fn sound() -> Cluster {
    Cluster {
        own_node: "n1".to_owned(),
        now_seconds: 1_000_000,
        nodes: ["n1", "n2", "n3"].map(node).to_vec(),
        authority_expires: Some(1_000_000 + 9 * 365 * 86_400),
        monitors: vec![("prom".to_owned(), 1_000_000 + 100 * 86_400)],
        certificate_life_seconds: 90 * 86_400,
        etcd: Etcd {
            members: ["e1", "e2", "e3"].map(member).to_vec(),
            writes: Some(Writes { count: 20, median_ms: 2.0, worst_ms: 9.0 }),
            certificates: vec![("clients", 1_000_000 + 365 * 86_400)],
            ..Etcd::default()
        },
    }
}

/// What is found of a cluster that differs from a sound one: severities with codes and evidence.
fn found(change: impl FnOnce(&mut Cluster)) -> Vec<(Severity, &'static str, String)> {
    let mut cluster = sound();
    change(&mut cluster);
    let findings = examine(&cluster).findings.into_iter();
    findings.map(|one| (one.severity, one.code, one.evidence)).collect()
}

#[track_caller]
fn finds(severity: Severity, code: &str, part: &str, change: impl FnOnce(&mut Cluster)) {
    let found = found(change);
    let fits = |(of, known, evidence): &(Severity, &str, String)| {
        *of == severity && *known == code && evidence.contains(part)
    };
    assert!(found.iter().any(fits), "{severity:?} {code} {part:?}: {found:?}");
    let others = found.iter().filter(|(_, known, _)| *known != code).count();
    assert_eq!(others, 0, "only {code}: {found:?}");
}

fn status(cluster: &mut Cluster, place: usize) -> &mut EtcdStatus {
    cluster.etcd.members[place].status.as_mut().unwrap()
}

#[test]
fn a_sound_cluster_has_no_findings_and_every_check_looks_at_it() {
    let examined = examine(&sound());
    assert!(examined.findings.is_empty(), "{:?}", examined.findings);
    assert!(examined.unknown.is_empty(), "{:?}", examined.unknown);
    for check in all() {
        assert!(examined.fine.iter().any(|line| line.code == check.code), "{}", check.code);
        assert!(check.why.len() > 40 && !check.title.is_empty(), "{}", check.code);
    }
}

#[test]
fn nodes_that_do_not_answer_differ_or_cannot_open_a_fileset_are_named() {
    use Severity::{Problem, Warning};
    finds(Warning, "cluster/nodes", "n2 does not run", |it| it.nodes[1].state = NodeState::Down);
    let silent = NodeState::Silent("timed out".to_owned());
    let lines = found(|it| it.nodes[1].state = silent);
    assert_eq!((lines[0].0, lines[0].1), (Problem, "cluster/nodes"), "{lines:?}");
    finds(Warning, "cluster/versions", "n3 0.9.0; the newest is 0.10.0", |it| {
        it.nodes[0].version = "0.10.0".to_owned();
        it.nodes[1].version = "0.10.0".to_owned();
    });
    finds(Problem, "cluster/filesets", "n2: data", |it| {
        it.nodes[1].problems.push("data: damaged".to_owned());
    });
    finds(Problem, "cluster/etcd-answers", "n3", |it| {
        it.nodes[2].etcd_error = Some("refused".to_owned());
    });
}

#[test]
fn certificates_are_named_when_renewal_fails_and_when_they_have_expired() {
    use Severity::{Advice, Problem, Warning};
    let day = 86_400;
    let expires = |days: i64| {
        move |it: &mut Cluster| it.nodes[1].certificate_expires = it.now_seconds + days * day
    };
    assert!(found(expires(29)).is_empty(), "it is about to be renewed");
    finds(Warning, "cluster/certificates", "n2 expires in 22 d", expires(22));
    finds(Problem, "cluster/certificates", "n2 expired 3 d ago", expires(-3));
    let authority = |days: i64| {
        move |it: &mut Cluster| it.authority_expires = Some(it.now_seconds + days * day)
    };
    finds(Warning, "cluster/authority", "expires in 300 d", authority(300));
    finds(Problem, "cluster/authority", "expires in 30 d", authority(30));
    let monitor =
        |days: i64| move |it: &mut Cluster| it.monitors[0].1 = it.now_seconds + days * day;
    assert!(found(monitor(31)).is_empty());
    finds(Warning, "cluster/monitors", "monitor prom expires in 29 d", monitor(29));
    finds(Problem, "cluster/monitors", "monitor prom expired 3 d ago", monitor(-3));
    let of_etcd = |days: i64| {
        move |it: &mut Cluster| {
            it.etcd.certificates = vec![("clients", it.now_seconds + days * day)];
        }
    };
    assert!(found(of_etcd(61)).is_empty());
    finds(Warning, "etcd/certificates", "of etcd's clients expires in 59 d", of_etcd(59));
    finds(Problem, "etcd/certificates", "of etcd's clients expires in 13 d", of_etcd(13));
    finds(Problem, "etcd/certificates", "of etcd's clients expired 3 d ago", of_etcd(-3));
    finds(Advice, "cluster/authority", "only n1 holds", |it| {
        it.nodes[1].has_authority = false;
        it.nodes[2].has_authority = false;
    });
    let lines = found(|it| {
        it.nodes.iter_mut().for_each(|node| node.has_authority = node.name == "n2");
        it.nodes[1].state = NodeState::Down;
    });
    assert!(lines.iter().any(|line| line.0 == Problem && line.1 == "cluster/authority"));
}

#[test]
fn clocks_are_judged_by_what_is_certain() {
    use Severity::{Problem, Warning};
    let clock = |least_seconds: f64, most_seconds: f64| {
        move |it: &mut Cluster| {
            it.nodes[1].clock = Some(ClockDifference { least_seconds, most_seconds });
        }
    };
    assert!(found(clock(-0.1, 5.0)).is_empty(), "the answer may have taken 5 s");
    finds(Warning, "cluster/clocks", "at least 2.0 s ahead of", clock(2.0, 2.1));
    finds(Warning, "cluster/clocks", "at least 3.0 s behind", clock(-3.5, -3.0));
    finds(Problem, "cluster/clocks", "at least 40.0 s", clock(40.0, 41.0));
    let mut cluster = sound();
    cluster.nodes[1].clock = None;
    let unknown = examine(&cluster).unknown;
    assert!(unknown.iter().any(|line| line.code == "cluster/clocks"), "{unknown:?}");
}

#[test]
fn etcd_is_judged_by_members_space_alarms_and_the_time_of_writes() {
    use Severity::{Problem, Warning};
    finds(Warning, "etcd/members", "one member", |it| it.etcd.members.truncate(1));
    finds(Warning, "etcd/members", "two members", |it| it.etcd.members.truncate(2));
    finds(Warning, "etcd/members", "do not vote", |it| {
        let learner = EtcdMember { is_learner: true, ..member("e4") };
        it.etcd.members.push(learner);
    });
    finds(Problem, "etcd/members", "e2 at http://e2:2379 does not answer", |it| {
        it.etcd.members[1].status = Err("refused".to_owned());
    });
    finds(Problem, "etcd/members", "no leader", |it| status(it, 0).has_leader = false);
    finds(Problem, "etcd/alarms", "NOSPACE", |it| it.etcd.alarms.push("NOSPACE of e1".to_owned()));
    finds(Warning, "etcd/space", "65 %", |it| {
        *status(it, 0) = EtcdStatus {
            file_bytes: 650 << 20,
            used_bytes: 650 << 20,
            quota_bytes: Some(1000 << 20),
            ..status(it, 0).clone()
        };
    });
    finds(Problem, "etcd/space", "etcd's default", |it| {
        (status(it, 0).file_bytes, status(it, 0).used_bytes) = (1700 << 20, 1600 << 20);
    });
    finds(Warning, "etcd/unused", "1000 MiB of 1100 MiB unused", |it| {
        (status(it, 2).file_bytes, status(it, 2).used_bytes) = (1100 << 20, 100 << 20);
    });
    finds(Warning, "etcd/versions", "3.5.16, 3.6.1", |it| {
        status(it, 1).version = "3.6.1".to_owned();
    });
    let writes = |median_ms: f64, worst_ms: f64| {
        move |it: &mut Cluster| it.etcd.writes = Some(Writes { count: 20, median_ms, worst_ms })
    };
    finds(Warning, "etcd/write-time", "40.0 ms in the median", writes(40.0, 60.0));
    finds(Problem, "etcd/write-time", "1500.0 ms at most", writes(5.0, 1500.0));
    let disk = |sync_ms: f64, commit_ms: f64| {
        move |it: &mut Cluster| it.etcd.members[1].disk = Ok(disk(sync_ms, commit_ms))
    };
    finds(Warning, "etcd/disk-time", "e2, 99 of 100 since", disk(12.0, 8.0));
    finds(Warning, "etcd/disk-time", "within 30.0 ms", disk(2.0, 30.0));
    finds(Problem, "etcd/disk-time", "within 150.0 ms", disk(150.0, 30.0));
}

#[test]
fn an_etcd_that_cannot_be_asked_is_not_guessed_at() {
    let mut cluster = sound();
    cluster.etcd = Etcd { fault: Some("no answer".to_owned()), ..Etcd::default() };
    let examined = examine(&cluster);
    assert!(examined.findings.is_empty(), "{:?}", examined.findings);
    assert_eq!(examined.unknown.iter().filter(|line| line.text == "no answer").count(), 7);
    // Every verdict of a check about nothing is none.
    let nothing = Cluster::default();
    let looks = all().into_iter().flat_map(|check| (check.look)(&nothing));
    let found = looks.filter(|verdict| matches!(verdict, Verdict::Found { .. })).count();
    assert_eq!(found, 1, "nobody holds the authority's key");
}

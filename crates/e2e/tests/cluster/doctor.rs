//! `forebay doctor --cluster`.

use std::time::Duration;

use forebay_e2e::cluster::Cluster;
use forebay_e2e::wait_until;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn doctor(cluster: &Cluster, more: &[&str]) -> Value {
    let mutes = cluster.home(0).join("doctor.toml").display().to_string();
    let words = [&["doctor", "--cluster", "--json", "--mutes", &mutes], more].concat();
    let ended = cluster.forebay(0, &words);
    assert!([0, 1].contains(&ended.code()), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Whether the check of a member's disk has read its page.
pub(crate) fn says_how_it_does(text: &str) -> bool {
    text.contains("syncs of the log within") || text.contains("has synced its log")
}

/// The texts of a check among those of a kind.
fn texts(answer: &Value, kind: &str, code: &str) -> Vec<String> {
    let lines = answer[kind].as_array().expect("is a list").iter();
    let field = if kind == "fine" || kind == "unknown" { "text" } else { "evidence" };
    let of_code = lines.filter(|line| line["code"] == code);
    of_code.map(|line| line[field].as_str().expect("is a text").to_owned()).collect()
}

#[test]
fn the_doctor_asks_all_nodes_and_etcd_and_names_what_is_not_as_it_should_be() {
    let cluster = Cluster::start(2);
    let answer = doctor(&cluster, &[]);
    assert_eq!(texts(&answer, "fine", "cluster/nodes"), ["n0 answers", "n1 answers"]);
    for code in ["cluster/versions", "cluster/certificates", "etcd/alarms", "etcd/space"] {
        assert!(!texts(&answer, "fine", code).is_empty(), "{code}: {answer}");
    }
    let space = texts(&answer, "fine", "etcd/space");
    assert!(space[0].contains(" used of 2048 MiB, "), "the quota is known: {space:?}");
    // Both clocks are this machine's.
    let clocks = texts(&answer, "fine", "cluster/clocks");
    assert!(clocks.len() == 1 && clocks[0].starts_with("n1: apart by at most"), "{clocks:?}");
    let writes =
        [texts(&answer, "fine", "etcd/write-time"), texts(&answer, "findings", "etcd/write-time")]
            .concat();
    assert!(writes.len() == 1 && writes[0].starts_with("20 writes from n0: "), "{writes:?}");
    let disks = ["fine", "findings", "unknown"].map(|kind| texts(&answer, kind, "etcd/disk-time"));
    let disks = disks.concat();
    assert!(
        disks.len() == 1 && says_how_it_does(&disks[0]),
        "etcd says how its disk does: {disks:?}"
    );
    let members = texts(&answer, "findings", "etcd/members");
    assert!(members.len() == 1 && members[0].starts_with("one member"), "{members:?}");
    // Measuring leaves nothing behind, and the command changes nothing.
    assert_eq!(texts(&doctor(&cluster, &[]), "findings", "etcd/members"), members);

    let mutes = cluster.home(0).join("doctor.toml").display().to_string();
    let mute = ["doctor", "--mute", "etcd/members", "--until", "2999-12-31", "--mutes", &mutes];
    cluster.forebay(0, &mute).succeeds();
    let muted = doctor(&cluster, &[]);
    assert!(texts(&muted, "findings", "etcd/members").is_empty());
    assert_eq!(texts(&muted, "muted", "etcd/members"), members);
    let why = cluster.forebay(0, &["doctor", "--explain", "etcd/members"]).output();
    assert!(why.contains("more than half of its members"), "{why}");

    cluster.kill(1);
    wait_until("the lease of the node has ended", LIMIT, || {
        texts(&doctor(&cluster, &[]), "findings", "cluster/nodes") == ["n1 does not run"]
    });
    let said = cluster.forebay(0, &["doctor", "--cluster", "--home", "/nowhere"]).refused();
    assert!(said.contains("not a node of a cluster"), "{said}");
}

#[test]
fn the_host_of_each_node_is_checked_by_its_daemon_and_said_once_if_they_are_alike() {
    let cluster = Cluster::start(2);
    // Both hosts are this machine.
    let alike =
        |answer: &Value| texts(answer, "fine", "fuse/device") == ["n0, n1: /dev/fuse is there"];
    let answer = doctor(&cluster, &["--hosts"]);
    assert!(alike(&answer), "{answer}");
    assert_eq!(texts(&answer, "fine", "cluster/nodes"), ["n0 answers", "n1 answers"]);
    let places = ["fine", "findings", "unknown"].map(|kind| texts(&answer, kind, "places/space"));
    assert!(places.concat().iter().any(|text| text.starts_with("n1: ")), "its disk: {places:?}");
    assert!(texts(&doctor(&cluster, &[]), "fine", "fuse/device").is_empty(), "on request only");
    // The daemon of a node that has not mounted the file system does it as well.
    cluster.umount(1);
    wait_until("the daemon without a mount answers", LIMIT, || {
        alike(&doctor(&cluster, &["--hosts"]))
    });
    let alone = cluster.forebay(0, &["doctor", "--hosts"]).refused();
    assert!(alone.contains("--cluster"), "{alone}");
}

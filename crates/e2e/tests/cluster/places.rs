//! Clusters whose names lie in a bucket, or in a directory that all nodes mount, instead of in etcd.

use std::fs;
use std::time::Duration;

use forebay_e2e::cluster::Plan;
use forebay_e2e::content::write_synced;
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::{Cluster, need, run, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Files that are made on each node survive their owner and an unmount of all nodes; etcd holds none of their names.
fn names_survive_their_owner(cluster: &Cluster, place: &str) {
    let status = cluster.forebay(1, &["cluster", "status", "--json"]).output();
    let status: Value = serde_json::from_str(&status).expect("is JSON");
    assert_eq!(status["names"], place);
    let data = |node: usize| cluster.mountpoint(node).join("data");
    for node in [0, 1] {
        write_synced(&data(node).join(format!("of{node}")), b"synced");
    }
    let owner = cluster.owner(0, "data").expect("has an owner");
    let other = 1 - owner;
    cluster.kill(owner);
    let is_there =
        || fs::read(data(other).join(format!("of{other}"))).is_ok_and(|it| it == b"synced");
    wait_until("another node owns the fileset", LIMIT, is_there);
    write_synced(&data(other).join("after"), b"synced");
    cluster.detach(owner);
    cluster.mount(owner);
    for name in ["of0", "of1", "after"] {
        assert_eq!(fs::read(data(owner).join(name)).expect("reads"), b"synced", "{name}");
    }
    (0..2).for_each(|node| cluster.umount(node));
    cluster.forebay(0, &["fsck", "g"]).succeeds();
    // Keys from /forebay-names on, to the text that follows all that begin so, in base64.
    let keys =
        r#"{"key":"L2ZvcmViYXktbmFtZXM=","range_end":"L2ZvcmViYXktbmFtZXQ=","count_only":true}"#;
    let mut curl = need::program("curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--data", keys]);
    curl.arg(format!("{}/v3/kv/range", cluster.etcd().endpoints(cluster.hosts())));
    let found = run(&mut cluster.hosts().command(0, &curl), LIMIT).output();
    assert!(found.contains("revision") && !found.contains("count"), "{found}");
    (0..2).for_each(|node| cluster.mount(node));
    assert_eq!(fs::read(data(0).join("after")).expect("reads"), b"synced");
}

#[test]
fn names_in_a_directory_that_all_nodes_mount_survive_their_owner_and_an_empty_one_is_refused() {
    let folder = scratch_folder();
    let shared = folder.path().join("shared");
    let place = format!("dir:{}", shared.display());
    fs::create_dir(&shared).expect("makes a folder");
    let init = vec!["--names".to_owned(), place.clone()];
    let cluster = Cluster::make(&Plan { init, ..Plan::of(2) });
    names_survive_their_owner(&cluster, &place);

    (0..2).for_each(|node| cluster.umount(node));
    let away = folder.path().join("away");
    fs::rename(&shared, &away).expect("moves it away");
    let refused = cluster.try_mount(0).refused();
    assert!(refused.contains("is not a directory"), "{refused}");
    fs::create_dir(&shared).expect("makes a folder");
    let refused = cluster.try_mount(0).refused();
    assert!(refused.contains("is it mounted here?"), "{refused}");
    assert_eq!(fs::read_dir(&shared).expect("lists").count(), 0, "nothing was written there");
    fs::remove_dir(&shared).expect("removes it");
    fs::rename(&away, &shared).expect("moves it back");
    cluster.mount(0);
    assert!(cluster.mountpoint(0).join("data/after").exists());
    cluster.mount(1);
}

#[test]
fn names_in_a_bucket_survive_their_owner() {
    let cluster = Cluster::make(&Plan { names_in_s3: true, ..Plan::of(2) });
    names_survive_their_owner(&cluster, "s3://names/g");
}

#[test]
fn places_that_cannot_hold_names_are_refused_before_a_cluster_is_made() {
    let cluster = Cluster::start(1);
    let etcd = cluster.etcd().endpoints(cluster.hosts());
    let init = |more: &[&str]| {
        let init = ["cluster", "init", "--name", "other", "--etcd", &etcd, "--node", "x"];
        cluster.forebay(0, &[&init[..], more].concat()).refused()
    };
    for (more, text) in [
        (&["--names", "nfs:/x"][..], "use etcd, s3://BUCKET/FOLDER or dir:/PATH"),
        (&["--names", "dir:/nowhere/at/all"], "is not a directory"),
        (&["--names", "etcd", "--names-access", "/etc/hosts"], "--names-access is for"),
        (&["--names", "s3://b", "--names-access", "/nowhere"], "/nowhere"),
    ] {
        let refused = init(more);
        assert!(refused.contains(text), "{more:?}: {refused}");
    }
}

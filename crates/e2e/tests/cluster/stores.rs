//! Backups, checks, repairs and restores of a cluster's names, from nodes that own nothing.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use forebay_e2e::Cluster;
use forebay_e2e::content::write_synced;
use forebay_e2e::mounted::scratch_folder;
use serde_json::Value;

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

fn home(cluster: &Cluster, node: usize) -> String {
    cluster.home(node).to_str().expect("is UTF-8").to_owned()
}

fn move_to(cluster: &Cluster, fileset: &str, to: &str) {
    cluster.forebay(0, &["fileset", "owner", fileset, "--move", to]).succeeds();
}

/// Files of the fileset data on the disk of a node.
fn objects(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let folder = cluster.home(node).ancestors().nth(2).expect("has a folder").to_owned();
    let shelves = fs::read_dir(folder.join(format!("d{node}/objects"))).expect("lists");
    let mut found = Vec::new();
    for shelf in shelves.map(|shelf| shelf.expect("lists").path()) {
        // The number of an object begins with that of its fileset, which is 1 for data.
        let name = shelf.file_name().expect("has a name").to_string_lossy().into_owned();
        if name.len() == 10 && name.starts_with('1') {
            found.extend(
                fs::read_dir(shelf).expect("lists").map(|file| file.expect("lists").path()),
            );
        }
    }
    found
}

#[test]
fn names_of_a_cluster_are_backed_up_while_it_works_and_restored() {
    let cluster = Cluster::start(2);
    let folder = scratch_folder();
    let backup = folder.path().join("monday");
    let backup = backup.to_str().expect("is UTF-8");
    move_to(&cluster, "data", "n1");
    for node in [0, 1] {
        write_synced(&data(&cluster, node).join(format!("synced{node}")), b"synced");
        // Nobody has synced this.
        fs::write(data(&cluster, node).join(format!("before{node}")), "bytes").expect("writes");
    }
    let made = cluster.forebay(0, &["store", "backup", &home(&cluster, 0), backup, "--json"]);
    let made: Value = serde_json::from_str(&made.output()).expect("is JSON");
    assert!(made["records"].as_u64().is_some_and(|records| records > 8), "{made}");
    let again = cluster.forebay(1, &["store", "backup", &home(&cluster, 1), backup]).refused();
    assert!(again.contains("already exists"), "{again}");
    for node in [0, 1] {
        let (from, to) = (format!("before{node}"), format!("after{node}"));
        fs::rename(data(&cluster, 0).join(from), data(&cluster, 0).join(to)).expect("renames");
    }
    write_synced(&data(&cluster, 1).join("late"), b"late");
    let restore = ["store", "restore", &home(&cluster, 0), backup];
    let refused = cluster.forebay(0, &restore).refused();
    assert!(refused.contains("n1") && refused.contains("forebay umount"), "{refused}");
    cluster.umount(1);
    cluster.umount(0);
    let restored = cluster.forebay(0, &restore).expect_code(0);
    assert!(restored.stdout.contains("kept-1"), "{restored:?}");
    for node in [1, 0] {
        cluster.mount(node);
    }
    for node in [0, 1] {
        let other = data(&cluster, 1 - node);
        let before = fs::read(other.join(format!("before{node}"))).expect("reads");
        assert_eq!(before, b"bytes");
        assert_eq!(fs::read(other.join(format!("synced{node}"))).expect("reads"), b"synced");
        assert!(!other.join(format!("after{node}")).exists());
    }
    let found: Vec<_> = fs::read_dir(data(&cluster, 0).join("lost+found"))
        .expect("lists")
        .map(|file| fs::read(file.expect("lists").path()).expect("reads"))
        .collect();
    assert!(found.contains(&b"late".to_vec()), "{found:?}");
    cluster.umount(0);
    cluster.umount(1);
    cluster.forebay(1, &["fsck", &home(&cluster, 1)]).succeeds();
}

#[test]
fn a_cluster_is_checked_and_repaired_from_any_node_while_no_node_has_mounted_it() {
    let cluster = Cluster::start(2);
    for (node, name) in [(0, "zero"), (1, "one")] {
        write_synced(&data(&cluster, node).join(name), b"bytes");
    }
    let fsck = |node: usize, more: &[&str]| {
        cluster.forebay(node, &[&["fsck", &home(&cluster, node)][..], more].concat())
    };
    let refused = fsck(0, &[]).refused();
    assert!(refused.contains("n0, n1") && refused.contains("forebay umount"), "{refused}");
    cluster.umount(0);
    let refused = fsck(0, &["--fileset", "data"]).refused();
    assert!(refused.contains("mounted on n1,"), "{refused}");
    cluster.umount(1);
    let clean = fsck(0, &[]).output();
    assert!(clean.contains("clean: ") && clean.contains("2 objects"), "{clean}");
    let unknown = fsck(1, &["--fileset", "nope"]).refused();
    assert!(unknown.contains("choose from /, data"), "{unknown}");
    // The disk of a node whose daemon does not run cannot be looked at.
    cluster.forebay(1, &["cluster", "stop"]).succeeds();
    let mut refused = String::new();
    forebay_e2e::wait_until("its lease is over", Duration::from_secs(60), || {
        refused = fsck(0, &["--fileset", "data"]).stderr;
        refused.contains("forebay cluster start")
    });
    assert!(refused.contains("node n1 does not run"), "{refused}");
    cluster.forebay(1, &["cluster", "start"]).succeeds();
    // An object is lost on the disk of the other node.
    let objects = objects(&cluster, 1);
    assert_eq!(objects.len(), 1, "{objects:?}");
    fs::remove_file(&objects[0]).expect("removes");
    let found = fsck(0, &["--fileset", "data"]).expect_code(4);
    assert!(found.stdout.contains("one: "), "{found:?}");
    let native = fsck(0, &["--fileset", "util"]).refused();
    assert!(native.contains("choose from"), "{native}");
    fsck(0, &["--fileset", "/"]).succeeds();
    let repaired = fsck(0, &["--repair", "--json"]).expect_code(1);
    let report: Value = serde_json::from_str(&repaired.stdout).expect("is JSON");
    assert_eq!(report["kept_stores"].as_array().map(Vec::len), Some(1), "{report}");
    fsck(1, &[]).succeeds();
    cluster.mount(1);
    cluster.mount(0);
    assert_eq!(fs::read(data(&cluster, 1).join("zero")).expect("reads"), b"bytes");
    assert_eq!(fs::read(data(&cluster, 0).join("one")).expect("reads"), b"");
}

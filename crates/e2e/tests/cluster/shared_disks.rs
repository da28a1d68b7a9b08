//! Disks on storage that all nodes mount: a directory that all hosts of a test see stands for it.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{Cluster, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

fn results(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("results")
}

/// Three nodes with a shared disk, on which the files of the fileset results lie. Node `owner` owns it.
fn start(owner: usize) -> (Cluster, PathBuf) {
    let cluster = Cluster::start(3);
    let shared = cluster.mountpoint(0).parent().expect("has a parent").join("shared");
    fs::create_dir(&shared).expect("makes a folder");
    let add = ["disk", "add", "g", text(&shared), "--shared", "--pool", "shared"];
    cluster.forebay(1, &add).succeeds();
    cluster.forebay(0, &["fileset", "create", "g", "results", "--pool", "shared"]).succeeds();
    let node = format!("n{owner}");
    wait_until("the fileset has moved", LIMIT, || {
        cluster.forebay(0, &["fileset", "owner", "results", "--move", &node]);
        cluster.owner(0, "results") == Some(owner)
    });
    (cluster, shared)
}

fn write_synced(path: &Path, bytes: &[u8]) -> File {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("creates");
    file.write_all(bytes).expect("writes");
    file.sync_all().expect("syncs");
    file
}

#[test]
fn files_on_a_shared_disk_are_there_for_all_nodes_at_once() {
    let (cluster, shared) = start(0);
    for node in 0..3 {
        let listed = cluster.forebay(node, &["disk", "list", "g", "--json"]).output();
        let listed: Value = serde_json::from_str(&listed).expect("is JSON");
        let location = format!("shared:{}", text(&shared));
        let disks = listed.as_array().expect("is a list").iter();
        let found: Vec<_> = disks.filter(|disk| disk["location"] == location).collect();
        assert_eq!(found.len(), 1, "{listed}");
        assert_eq!((&found[0]["is_shared"], &found[0]["problem"]), (&true.into(), &Value::Null));
    }
    let table = cluster.forebay(2, &["disk", "list", "g"]).output();
    let line = table.lines().find(|line| line.contains("shared:")).expect("is listed");
    assert!(line.trim_start().starts_with("all"), "{table}");
    let alone = cluster.forebay(2, &["disk", "add", "g", text(&shared)]).refused();
    assert!(alone.contains(text(&shared)), "{alone}");

    for round in 0..600_usize {
        let name = format!("file-{}", round % 7);
        let bytes = format!("round {round}").repeat(1 + round % 50);
        fs::write(results(&cluster, round % 3).join(&name), &bytes).expect("writes");
        let path = results(&cluster, (round + 1) % 3).join(&name);
        assert_eq!(fs::read_to_string(&path).expect("reads"), bytes, "round {round}");
        let size =
            fs::metadata(results(&cluster, (round + 2) % 3).join(&name)).expect("stats").len();
        assert_eq!(size, bytes.len() as u64, "round {round}");
    }

    // Everything moves off it, and the directory can be used for something else.
    cluster.forebay(1, &["fileset", "set", "g", "results", "--pool", "default"]).succeeds();
    cluster
        .forebay(2, &["disk", "drain", "g", text(&shared), "--to", "default", "--wait"])
        .succeeds();
    cluster.forebay(2, &["disk", "remove", "g", text(&shared)]).succeeds();
    wait_until("the label is gone", LIMIT, || !shared.join("forebay-disk.toml").exists());
    for file in 0..7 {
        assert!(fs::read(results(&cluster, 2).join(format!("file-{file}"))).is_ok());
    }
}

#[test]
fn a_node_that_is_killed_leaves_its_files_to_the_others_and_changes_nothing_of_theirs() {
    // Once as another node than the owner, once as the owner.
    for owner in [0, 2] {
        let (cluster, _shared) = start(owner);
        let names: Vec<String> = (0..20).map(|number| format!("synced-{number}")).collect();
        for name in &names {
            drop(write_synced(&results(&cluster, 2).join(name), name.as_bytes()));
        }
        let left = write_synced(&results(&cluster, 2).join("open"), b"first");
        cluster.kill(2);
        for node in [0, 1] {
            for name in &names {
                let found = fs::read_to_string(results(&cluster, node).join(name));
                assert_eq!(found.expect("reads"), *name, "owner {owner}, node {node}");
            }
            assert_eq!(fs::read(results(&cluster, node).join("open")).expect("reads"), b"first");
        }
        // Its programs go on, until others write: from when it is dropped, they write to something else.
        let path = results(&cluster, 0).join("open");
        wait_until("the node is fenced", LIMIT, || {
            let file = OpenOptions::new().write(true).open(&path).expect("opens");
            file.write_all_at(b"FIRST", 0).expect("writes");
            drop(file);
            let _ = left.write_all_at(b"stale", 0);
            fs::read(results(&cluster, 1).join("open")).expect("reads") == b"FIRST"
        });
        for _ in 0..10 {
            let _ = left.write_all_at(b"what must not be seen", 0);
            assert_eq!(fs::read(results(&cluster, 1).join("open")).expect("reads"), b"FIRST");
        }
        // It comes back, and sees what the others have written.
        drop(left);
        cluster.mount(2);
        assert_eq!(fs::read(results(&cluster, 2).join("open")).expect("reads"), b"FIRST");
    }
}

//! What a node caches of files that another one owns: asked once, and never old.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_e2e::{Cluster, need, run, setting};

const LIMIT: Duration = Duration::from_secs(300);

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

/// Calls of a node to all others, and requests that it answered from what it caches.
fn traffic(cluster: &Cluster, node: usize) -> (u64, u64) {
    let mountpoint = cluster.mountpoint(node).display().to_string();
    let shown = cluster.forebay(node, &["stat", &mountpoint, "--json"]).output();
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let nodes = report["nodes"].as_object().expect("nodes");
    let sum = |what: &str| nodes.values().filter_map(|node| node[what].as_u64()).sum();
    (sum("calls"), sum("cached"))
}

/// A node that does not own the fileset of the files: its calls grow when it looks.
fn looker(cluster: &Cluster) -> usize {
    let calls = |node| {
        let before = traffic(cluster, node).0;
        for number in 0..20 {
            let _ = fs::metadata(data(cluster, node).join(format!("nothing-{number}")));
        }
        traffic(cluster, node).0 - before
    };
    if calls(0) >= 20 { 0 } else { 1 }
}

#[test]
#[ignore = "daemons do not grant yet: NODES_CACHE in crates/cli/src/member.rs"]
fn what_a_node_has_looked_at_it_looks_at_again_without_a_call() {
    let cluster = Cluster::start(2);
    let looker = looker(&cluster);
    let mut shell = need::program("sh");
    shell.current_dir(data(&cluster, 1 - looker)).arg("-c").arg(
        "set -e; mkdir repo; cd repo; git init -q .; git config user.email a@b; git config user.name n
        for d in a b c; do mkdir $d; for i in $(seq 30); do echo $i > $d/$i; done; done
        git add .; git commit -qm one",
    );
    run(&mut shell, LIMIT).output();
    for program in ["ls -lR repo", "find repo -name '*3*'"] {
        let look = || {
            let mut shell = need::program("sh");
            shell.current_dir(data(&cluster, looker)).arg("-c").arg(program);
            run(&mut shell, LIMIT).output()
        };
        // The owner's word lasts for 5 seconds, and is asked for anew: once at most within each try.
        look();
        let begun = Instant::now();
        let before = traffic(&cluster, looker);
        let first = look();
        let after = traffic(&cluster, looker);
        assert_eq!(look(), first);
        let words = begun.elapsed().as_secs() / 4 + 1;
        assert!(after.0 - before.0 <= words, "{program}: {before:?} to {after:?}");
        assert!(after.1 - before.1 > 50, "{program}: {before:?} to {after:?}");
    }
}

#[test]
fn nothing_that_is_cached_is_ever_old() {
    let cluster = Cluster::start(2);
    let rounds = setting("FOREBAY_E2E_CLUSTER_ROUNDS", 500);
    let at = |node: usize, name: &str| data(&cluster, node).join(name);
    fs::write(at(0, "file"), b"0").expect("writes");
    for round in 0..rounds {
        let (by, other) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        // Both have looked at all of it.
        for node in [0, 1] {
            assert!(fs::metadata(at(node, "new")).is_err() && at(node, "file").exists());
            fs::read_dir(data(&cluster, node)).expect("lists").for_each(drop);
        }
        fs::write(at(by, "file"), round.to_string()).expect("writes");
        assert_eq!(fs::read(at(other, "file")).expect("reads"), round.to_string().as_bytes());
        assert_eq!(
            fs::metadata(at(other, "file")).expect("stats").len(),
            round.to_string().len() as u64
        );
        let mode = 0o600 + u32::try_from(round % 64).expect("small");
        fs::set_permissions(at(by, "file"), fs::Permissions::from_mode(mode)).expect("chmod");
        assert_eq!(fs::metadata(at(other, "file")).expect("stats").mode() & 0o777, mode);
        fs::write(at(by, "new"), b"").expect("makes");
        assert!(at(other, "new").exists(), "{round}");
        let listed = |node| {
            let names = fs::read_dir(data(&cluster, node)).expect("lists");
            names.flatten().any(|entry| entry.file_name() == "new")
        };
        assert!(listed(other));
        fs::rename(at(by, "new"), at(by, "newer")).expect("renames");
        assert!(!at(other, "new").exists() && at(other, "newer").exists() && !listed(other));
        fs::remove_file(at(other, "newer")).expect("removes");
        assert!(!at(by, "newer").exists());
    }
}

#[test]
fn two_nodes_that_work_in_one_directory_wait_for_nobody_long() {
    let cluster = Cluster::start(2);
    fs::create_dir(data(&cluster, 0).join("shared")).expect("makes");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for node in 0..2 {
            let shared = data(&cluster, node).join("shared");
            scope.spawn(move || {
                for round in 0..200 {
                    let (own, to) = (format!("{node}-{round}"), format!("moved-{node}"));
                    fs::write(shared.join(&own), b"bytes").expect("writes");
                    let _ = fs::create_dir(shared.join(format!("common-{}", round % 3)));
                    assert!(shared.join(&own).exists());
                    let _ = fs::remove_dir(shared.join(format!("common-{}", round % 3)));
                    fs::rename(shared.join(&own), shared.join(&to)).expect("renames");
                    assert!(!shared.join(&own).exists());
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

//! What a node caches of files that another one owns: asked once, and never old.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_e2e::{Cluster, need, run, setting, wait_until};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(300);

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

/// Calls of a node to all others, and requests that it answered from what it caches.
fn traffic(cluster: &Cluster, node: usize) -> (u64, u64) {
    let mountpoint = cluster.mountpoint(node).display().to_string();
    let shown = cluster.forebay(node, &["stat", &mountpoint, "--json"]).output();
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let sessions = report["sessions"].as_array().expect("sessions");
    let servers = || sessions.iter().filter(|session| session["is_client"] == false);
    let sum = |what: &str| servers().filter_map(|session| session[what].as_u64()).sum();
    (sum("calls"), sum("cached"))
}

/// Requests of a node's kernel since the mount, by kind.
fn requests(cluster: &Cluster, node: usize) -> BTreeMap<String, u64> {
    let mountpoint = cluster.mountpoint(node).display().to_string();
    let shown = cluster.forebay(node, &["stat", &mountpoint, "--json"]).output();
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let all = report["requests"].as_object().expect("requests by kind");
    all.iter().map(|(kind, count)| (kind.clone(), count.as_u64().expect("a number"))).collect()
}

/// The requests that came between two looks, by kind.
fn between(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let more = |kind: &str, count: u64| count - before.get(kind).copied().unwrap_or(0);
    let grown = after.iter().map(|(kind, count)| (kind.clone(), more(kind, *count)));
    grown.filter(|(_, count)| *count > 0).collect()
}

fn shell(cluster: &Cluster, node: usize, script: &str) -> String {
    let mut shell = need::program("sh");
    shell.current_dir(data(cluster, node)).arg("-c").arg(script);
    run(&mut shell, LIMIT).output()
}

/// The node that owns the fileset of the files, and the other one.
fn owner_and_other(cluster: &Cluster) -> (usize, usize) {
    let owner = cluster.owner(0, "data").expect("the fileset has an owner");
    (owner, 1 - owner)
}

#[test]
fn what_a_node_has_looked_at_it_looks_at_again_without_a_call() {
    let cluster = Cluster::start(2);
    let (owner, other) = owner_and_other(&cluster);
    let script = "set -e; mkdir -p tree; cd tree
        for d in a b c; do mkdir $d; for i in $(seq 30); do echo $i > $d/$i; ln -s $i $d/l$i; done; done";
    shell(&cluster, owner, script);
    for program in
        ["ls -lR tree", "find tree -name '*3*' -printf '%p %l %s\\n'", "test ! -e tree/nothing"]
    {
        let look = || shell(&cluster, other, program);
        look();
        let begun = Instant::now();
        let before = traffic(&cluster, other);
        let first = look();
        let after = traffic(&cluster, other);
        assert_eq!(look(), first);
        // The owner's word lasts for 5 seconds, for each of the two filesets that may be on the way.
        let words = 2 * (begun.elapsed().as_secs() / 4 + 1);
        assert!(after.0 - before.0 <= words, "{program}: {before:?} to {after:?}");
        assert!(after.1 > before.1, "{program}: {before:?} to {after:?}");
    }
}

#[test]
fn a_second_look_at_files_of_another_node_takes_no_request_of_the_kernel() {
    let cluster = Cluster::start(2);
    let (owner, other) = owner_and_other(&cluster);
    let script = "set -e; mkdir -p tree; cd tree; for i in $(seq 50); do echo $i > file-$i; done";
    shell(&cluster, owner, script);
    let tree = data(&cluster, other).join("tree");
    let look = || {
        for number in 1..=50 {
            let found = fs::metadata(tree.join(format!("file-{number}"))).expect("is there");
            assert!(found.len() > 1);
        }
        assert!(fs::metadata(tree.join("absent")).is_err());
    };
    // The kernel keeps what it was told for a moment, in which a busy machine may not get through.
    let begun = Instant::now();
    loop {
        look();
        let before = requests(&cluster, other);
        look();
        look();
        let taken = between(&before, &requests(&cluster, other));
        let looks: u64 = taken.iter().map(|(_, count)| *count).sum();
        println!("two more looks at 50 files: {taken:?}");
        if looks <= 5 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{taken:?}");
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
    // A recall that waits for its deadline takes 6 s, and there are hundreds of changes.
    assert!(begun.elapsed() < Duration::from_secs(150), "{:?}", begun.elapsed());
}

#[test]
fn a_node_that_is_frozen_holds_a_change_up_once_and_shows_nothing_old_when_it_thaws() {
    let cluster = Cluster::start(2);
    let (owner, other) = owner_and_other(&cluster);
    let at = |node: usize, name: &str| data(&cluster, node).join(name);
    fs::write(at(owner, "file"), b"12345").expect("writes");
    for _ in 0..2 {
        assert_eq!(fs::metadata(at(other, "file")).expect("stats").len(), 5);
        assert!(fs::metadata(at(other, "later")).is_err());
    }
    cluster.signal(other, Signal::STOP);
    // What each program finds first when its node thaws, however long its request has waited.
    let looking = ["file", "later"].map(|name| {
        let path = at(other, name);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            fs::metadata(path).map(|found| found.len())
        })
    });
    let begun = Instant::now();
    fs::rename(at(owner, "file"), at(owner, "later")).expect("renames");
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    let begun = Instant::now();
    fs::write(at(owner, "later"), b"1234567").expect("writes");
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(6), "{waited:?}: what the node cached is void by now");
    cluster.signal(other, Signal::CONT);
    assert!(fs::metadata(at(other, "file")).is_err());
    assert_eq!(fs::metadata(at(other, "later")).expect("stats").len(), 7);
    let [file, later] = looking.map(|looking| looking.join().expect("does not panic"));
    assert!(file.is_err() && later.is_ok_and(|size| size == 7));
}

#[test]
fn a_node_that_is_killed_holds_a_change_up_once() {
    let cluster = Cluster::start(2);
    let (owner, other) = owner_and_other(&cluster);
    let at = |node: usize, name: &str| data(&cluster, node).join(name);
    fs::write(at(owner, "file"), b"12345").expect("writes");
    assert_eq!(fs::metadata(at(other, "file")).expect("stats").len(), 5);
    cluster.kill(other);
    let begun = Instant::now();
    fs::rename(at(owner, "file"), at(owner, "later")).expect("renames");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    cluster.mount(other);
    assert!(fs::metadata(at(other, "file")).is_err() && at(other, "later").exists());
}

#[test]
fn what_is_cached_of_an_owner_that_dies_or_hands_over_is_not_used_with_the_next_one() {
    let cluster = Cluster::start(3);
    let at = |node: usize, name: &str| data(&cluster, node).join(name);
    fs::write(at(0, "file"), b"0").expect("writes");
    let look = |number: usize| {
        for node in 0..3 {
            for _ in 0..2 {
                assert!(fs::metadata(at(node, &format!("new-{number}"))).is_err());
            }
        }
    };
    for number in 0..4 {
        look(number);
        let owner = cluster.owner(1, "data").expect("has an owner");
        let to = (owner + 1) % 3;
        let name = format!("n{to}");
        cluster
            .forebay(owner, &["fileset", "owner", "data", "--move", &name, "--force"])
            .succeeds();
        fs::write(at(to, &format!("new-{number}")), b"made").expect("writes");
        for node in 0..3 {
            assert!(at(node, &format!("new-{number}")).exists(), "node {node}, move {number}");
        }
    }
    look(9);
    let owner = cluster.owner(1, "data").expect("has an owner");
    let (by, other) = ((owner + 1) % 3, (owner + 2) % 3);
    cluster.kill(owner);
    wait_until("another node has taken over", LIMIT, || {
        fs::write(at(by, "new-9"), b"made").is_ok()
    });
    assert!(at(other, "new-9").exists());
}

#[test]
fn a_temporary_file_of_another_node_costs_few_calls() {
    let cluster = Cluster::start(2);
    let (_, other) = owner_and_other(&cluster);
    let folder = data(&cluster, other).join("tmp");
    fs::create_dir(&folder).expect("makes");
    let bytes = vec![7; 64 << 10];
    let work = |count: u32| {
        for number in 0..count {
            let path = folder.join(format!("file-{number}"));
            fs::write(&path, &bytes).expect("writes");
            assert!(fs::read(&path).expect("reads") == bytes);
            fs::remove_file(&path).expect("removes");
        }
    };
    work(20);
    let (before, asked) = (traffic(&cluster, other), requests(&cluster, other));
    let begun = Instant::now();
    let count = 200;
    work(count);
    let took = begun.elapsed();
    let after = traffic(&cluster, other);
    let taken = between(&asked, &requests(&cluster, other));
    println!("requests of the kernel for {count} temporary files: {taken:?}");
    let calls = after.0 - before.0;
    println!("{calls} calls for {count} temporary files in {took:?}");
    // Create, close, remove, and at times one for the directory. Beside those: the owner's word, the numbers of objects, and
    // what is told each second, which may be what is open just then.
    let beside = 20 + 10 * took.as_secs();
    assert!(calls <= u64::from(count) * 4 + beside, "{calls} calls for {count} files");
}

#[test]
fn a_large_file_of_another_node_is_read_in_blocks_and_from_memory_until_somebody_changes_it() {
    let cluster = Cluster::start(2);
    let (owner, other) = owner_and_other(&cluster);
    shell(&cluster, owner, "head -c 16777216 /dev/urandom > large; sync large");
    let sum = |node| shell(&cluster, node, "dd if=large bs=8k status=none | sha256sum");
    let right = sum(owner);
    let calls = |work: &dyn Fn() -> String| {
        let (before, _) = traffic(&cluster, other);
        (work(), traffic(&cluster, other).0 - before)
    };
    let (found, first) = calls(&|| sum(other));
    assert_eq!(found, right);
    assert!((16..300).contains(&first), "{first} calls for 2048 reads");
    let begun = Instant::now();
    let (found, again) = calls(&|| sum(other));
    assert_eq!(found, right);
    // Some are made every second, whatever is read.
    let beside = 2 * begun.elapsed().as_secs();
    assert!(again < 10 + beside, "{again} calls for what is in memory");
    shell(&cluster, owner, "printf x | dd of=large bs=1 seek=9000000 conv=notrunc status=none");
    let changed = sum(owner);
    assert_ne!(changed, right);
    assert_eq!(sum(other), changed);
    shell(&cluster, other, "printf y | dd of=large bs=1 seek=123 conv=notrunc status=none");
    let changed = sum(other);
    assert_eq!((sum(owner), sum(other)), (changed.clone(), changed));
    shell(&cluster, owner, "truncate -s 100000 large");
    let cut = sum(owner);
    assert_eq!(sum(other), cut);
}

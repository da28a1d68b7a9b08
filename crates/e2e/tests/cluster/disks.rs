//! Disks of a cluster: they are added, emptied and removed while all nodes are mounted, also when daemons are killed meanwhile.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::content::write_synced;
use forebay_e2e::{Cluster, Ended, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

/// The folder with everything of the cluster.
fn folder(cluster: &Cluster) -> PathBuf {
    cluster.mountpoint(0).parent().expect("has a parent").to_owned()
}

fn new_folder(cluster: &Cluster, name: &str) -> PathBuf {
    let path = folder(cluster).join(name);
    fs::create_dir(&path).expect("makes a folder");
    path
}

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.output()).expect("is JSON")
}

/// The disk in a directory, as a node lists it.
fn disk(cluster: &Cluster, node: usize, path: &Path) -> Option<Value> {
    let listed = json(cluster.forebay(node, &["disk", "list", "g", "--json"]));
    let listed = listed.as_array().expect("is a list").clone();
    listed.into_iter().find(|disk| disk["location"] == text(path))
}

fn objects(disk: &Path) -> usize {
    let (mut count, mut folders) = (0, vec![disk.join("objects")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) => count += 1,
                Err(_) => {}
            }
        }
    }
    count
}

fn fill(cluster: &Cluster, node: usize, count: usize) -> BTreeMap<String, Vec<u8>> {
    let made = (0..count).map(|number| {
        let name = format!("of-{node}-{number}");
        let bytes: Vec<u8> = (0..70_000 + number).map(|at| (at % 251) as u8 ^ node as u8).collect();
        write_synced(&data(cluster, node).join(&name), &bytes);
        (name, bytes)
    });
    made.collect()
}

fn assert_filled(cluster: &Cluster, node: usize, files: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in files {
        let found = fs::read(data(cluster, node).join(name));
        assert!(found.expect("reads") == *bytes, "{name} has changed, seen from node {node}");
    }
}

fn tasks(cluster: &Cluster, node: usize) -> Vec<Value> {
    let ended = cluster.forebay(node, &["tasks", "list", "g", "--json"]);
    let listed: Option<Value> = serde_json::from_str(&ended.stdout).ok();
    listed.and_then(|listed| listed.as_array().cloned()).unwrap_or_default()
}

fn wait_for_task(cluster: &Cluster, node: usize) {
    wait_until("the task is done", LIMIT, || {
        tasks(cluster, node).last().is_some_and(|task| task["state"] == "done")
    });
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
}

#[test]
fn disks_are_added_emptied_and_removed_while_all_nodes_are_mounted() {
    let cluster = Cluster::start(3);
    let (old, new) = (folder(&cluster).join("d2"), new_folder(&cluster, "new"));
    let slow = new_folder(&cluster, "slow");
    let mut files = fill(&cluster, 2, 12);
    assert!(objects(&old) >= 12);
    // On the node that has it; every node knows it at once.
    cluster.forebay(2, &["disk", "add", "g", text(&new), "--group", "shelf"]).succeeds();
    cluster.forebay(1, &["disk", "add", "g", text(&slow), "--pool", "archive"]).succeeds();
    for node in 0..3 {
        let found = disk(&cluster, node, &new).expect("is listed");
        assert_eq!((&found["node"], &found["pool"]), (&"n2".into(), &"default".into()), "{found}");
        assert_eq!(found["group"], "shelf");
        assert!(found["problem"].is_null() && found["total_bytes"].as_u64() > Some(0), "{found}");
    }
    let again = cluster.forebay(2, &["disk", "add", "g", text(&new)]).refused();
    assert_says(&again, &[text(&new)]);

    // The pool of a fileset decides where new files lie, whoever writes them.
    cluster.forebay(0, &["fileset", "create", "g", "cold", "--pool", "archive"]).succeeds();
    for node in 0..3 {
        let path = cluster.mountpoint(node).join(format!("cold/of-{node}"));
        write_synced(&path, b"cold bytes");
    }
    assert_eq!(objects(&slow), 3);
    let last =
        cluster.forebay(0, &["disk", "drain", "g", &format!("n1:{}", text(&slow))]).refused();
    assert_says(&last, &["cold", "last one of pool"]);

    // Rules move files between pools, whoever owns their filesets.
    let rules = folder(&cluster).join("rules.toml");
    let text_of_rules =
        "[[migrate]]\nname = 'back'\nfrom = 'archive'\nto = 'default'\nfileset = 'cold'\n";
    fs::write(&rules, text_of_rules).expect("writes");
    let run = ["policy", "run", "g", "--rules", text(&rules)];
    let looked = json(cluster.forebay(2, &[&run[..], &["--dry-run", "--json"]].concat()));
    assert_eq!(looked["rules"][0]["files"], 3, "{looked}");
    cluster.forebay(2, &[&run[..], &["--wait"]].concat()).succeeds();
    assert_eq!(objects(&slow), 0);
    assert_eq!(fs::read(cluster.mountpoint(1).join("cold/of-2")).expect("reads"), b"cold bytes");

    // A file of the node's own directory keeps its disk from being emptied.
    let scratch = cluster.mountpoint(2).join("work/n2/scratch");
    fs::write(&scratch, b"scratch").expect("writes");
    let named = format!("n2:{}", text(&old));
    cluster.forebay(0, &["disk", "drain", "g", &named]).succeeds();
    wait_until("the drain waits for the scratch file", LIMIT, || {
        let note = tasks(&cluster, 1).last().map(|task| task["note"].to_string());
        note.is_some_and(|note| note.contains("work/n2"))
    });
    assert_eq!(objects(&old), 0);
    let refused = cluster.forebay(1, &["disk", "remove", "g", &named]).refused();
    assert_says(&refused, &["not empty", "work/n2"]);
    fs::remove_file(&scratch).expect("removes");
    wait_for_task(&cluster, 1);
    files.extend(fill(&cluster, 2, 14));
    assert_eq!(objects(&old), 0);
    assert!(objects(&new) >= 14);
    for node in 0..3 {
        assert_filled(&cluster, node, &files);
    }
    cluster.forebay(0, &["disk", "remove", "g", &named]).succeeds();
    wait_until("the directory is an ordinary one again", LIMIT, || {
        !old.join("forebay-disk.toml").exists()
    });
    assert!(disk(&cluster, 1, &old).is_none());
    // The node has its own directory on the disk that is left.
    wait_until("the node has its directory again", LIMIT, || {
        fs::write(cluster.mountpoint(2).join("work/n2/again"), b"again").is_ok()
    });

    // It mounts with its disks as they are now.
    cluster.umount(2);
    cluster.mount(2);
    assert_filled(&cluster, 2, &files);
    // One node after the other evens out what its filesets have in the pool.
    cluster.forebay(2, &["disk", "rebalance", "g", "--wait"]).succeeds();
    assert_filled(&cluster, 1, &files);
}

#[test]
fn a_drain_survives_kills_of_the_owners_and_of_the_disks_node() {
    let cluster = Cluster::start(3);
    let old = folder(&cluster).join("d2");
    let new = new_folder(&cluster, "new");
    cluster.forebay(2, &["disk", "add", "g", text(&new)]).succeeds();
    let named = format!("n2:{}", text(&old));
    // Half of them lie on the disk that is to go, or all.
    let files = fill(&cluster, 2, 80);
    let before = objects(&old);
    assert!(before > 10, "{before}");
    let task = json(cluster.forebay(1, &["disk", "drain", "g", &named, "--json"]));
    let number = task["id"].as_u64().expect("has a number").to_string();
    cluster.forebay(1, &["tasks", "speed", "g", &number, "300KiB"]).succeeds();
    wait_until("some files have left", LIMIT, || objects(&old) < before);

    let owner = cluster.owner(2, "data").expect("has an owner");
    cluster.kill(owner);
    cluster.mount(owner);
    // The node of the disk, in the middle of it.
    if objects(&old) > 0 {
        cluster.kill(2);
        cluster.mount(2);
    }
    let root = cluster.owner(1, ".").expect("has an owner");
    cluster.kill(root);
    cluster.mount(root);
    wait_until("the speed is set", LIMIT, || {
        cluster.forebay(0, &["tasks", "speed", "g", &number, "0"]).code() == 0
            || tasks(&cluster, 0).last().is_some_and(|task| task["state"] == "done")
    });
    wait_for_task(&cluster, 0);
    assert_eq!(objects(&old), 0);
    wait_until("the disk is removed", LIMIT, || {
        cluster.forebay(1, &["disk", "remove", "g", &named]).code() == 0
    });
    for node in 0..3 {
        assert_filled(&cluster, node, &files);
    }
    (0..3).for_each(|node| cluster.umount(node));
    cluster.forebay(0, &["fsck", "g"]).succeeds();
}

#[test]
fn a_disk_of_a_node_that_does_not_come_back_is_given_up_and_its_node_leaves() {
    let cluster = Cluster::start(2);
    let lost = folder(&cluster).join("d1");
    let files = fill(&cluster, 1, 3);
    let kept = fill(&cluster, 0, 3);
    let named = format!("n1:{}", text(&lost));
    let there = cluster.forebay(0, &["disk", "remove", "g", &named, "--lost"]).refused();
    assert_says(&there, &["is there"]);
    cluster.kill(1);
    wait_until("its lease is over, and the other node owns everything", LIMIT, || {
        cluster.owner(0, "data") == Some(0) && cluster.owner(0, ".") == Some(0)
    });
    let listed = disk(&cluster, 0, &lost).expect("is listed");
    assert!(listed["problem"].is_string(), "{listed}");
    let found = cluster.forebay(0, &["disk", "remove", "g", &named, "--lost", "--json"]);
    let found = json(found);
    assert_eq!(found["total"], files.len(), "{found}");
    // No wait: it will not come back.
    assert!(fs::read(data(&cluster, 0).join("of-1-0")).is_err());
    assert_filled(&cluster, 0, &kept);
    for name in files.keys() {
        fs::remove_file(data(&cluster, 0).join(name)).expect("removes");
    }
    let uuid = listed["uuid"].as_str().expect("is a text");
    wait_until("it is taken off the list", LIMIT, || {
        cluster.forebay(0, &["disk", "remove", "g", uuid]).code() == 0
    });
    assert!(disk(&cluster, 0, &lost).is_none());
    cluster.forebay(0, &["cluster", "remove", "n1"]).succeeds();
}

/// Writes, replaces, appends to and reads files of one node again and again, until it is told to stop; what was synced must be
/// there at once and later. Returns the latest contents.
fn work_until(stop: &AtomicBool, folder: &Path, who: usize) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::<String, Vec<u8>>::new();
    for round in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("worker-{who}-{}", round % 12);
        let path = folder.join(&name);
        if let Some(expected) = files.get(&name) {
            let found = fs::read(&path).expect("reads");
            assert!(found == *expected, "{name} has changed in round {round}");
        }
        let bytes: Vec<u8> = (0..30_000 + round % 7000).map(|at| (at + round) as u8).collect();
        match round % 3 {
            0 => write_synced(&path, &bytes),
            1 => {
                let draft = folder.join(format!("{name}.draft"));
                write_synced(&draft, &bytes);
                fs::rename(&draft, &path).expect("renames");
            }
            _ => {
                let mut file =
                    fs::OpenOptions::new().append(true).create(true).open(&path).expect("opens");
                file.write_all(&bytes[..500]).expect("appends");
                let mut all = files.remove(&name).unwrap_or_default();
                all.extend_from_slice(&bytes[..500]);
                files.insert(name, all);
                continue;
            }
        }
        files.insert(name, bytes);
    }
    files
}

#[test]
fn programs_of_all_nodes_write_while_disks_are_emptied_back_and_forth() {
    let cluster = Cluster::start(2);
    let second = new_folder(&cluster, "second");
    cluster.forebay(0, &["disk", "add", "g", text(&second)]).succeeds();
    let disks = [(0, folder(&cluster).join("d0")), (1, folder(&cluster).join("d1")), (0, second)];
    let stop = AtomicBool::new(false);
    let files = std::thread::scope(|scope| {
        let works = [0, 1].map(|node| {
            let (stop, folder) = (&stop, data(&cluster, node));
            scope.spawn(move || work_until(stop, &folder, node))
        });
        for (node, disk) in &disks {
            let named = format!("n{node}:{}", text(disk));
            cluster.forebay(0, &["disk", "drain", "g", &named]).succeeds();
            wait_for_task(&cluster, 1);
            assert_eq!(objects(disk), 0, "{named}");
            cluster.forebay(1, &["disk", "use", "g", &named]).succeeds();
        }
        stop.store(true, Ordering::Relaxed);
        works.map(|work| work.join().expect("the programs of a node succeed"))
    });
    for files in &files {
        assert!(files.len() > 3);
        assert_filled(&cluster, 0, files);
        assert_filled(&cluster, 1, files);
    }
    (0..2).for_each(|node| cluster.umount(node));
    cluster.forebay(1, &["fsck", "g"]).succeeds();
}

//! What a node writes to a file system that another node owns lies on its own disk.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_e2e::{Cluster, need, run, setting, wait_until};

const LIMIT: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

/// Bytes that the network of a node has sent and received so far.
fn carried(cluster: &Cluster, node: usize) -> u64 {
    let mut look = need::program("cat");
    look.arg("/proc/net/dev");
    let table = run(&mut cluster.hosts().command(node, &look), LIMIT).output();
    let mut total = 0;
    for line in table.lines().skip(2) {
        let Some((name, figures)) = line.split_once(':') else { continue };
        let figures: Vec<u64> =
            figures.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
        if name.trim() != "lo" {
            total += figures[0] + figures[8];
        }
    }
    total
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn bytes_that_a_node_writes_stay_on_its_disk() {
    let cluster = Cluster::start(2);
    let block = pattern(MIB, 7);
    let path = data(&cluster, 1).join("big");
    let before = carried(&cluster, 1);
    let begun = Instant::now();
    let mut file = fs::File::create_new(&path).expect("creates");
    for _ in 0..64 {
        file.write_all(&block).expect("writes");
    }
    file.sync_all().expect("syncs");
    drop(file);
    println!("64 MiB written and synced in {:?}", begun.elapsed());
    let mut file = fs::File::open(&path).expect("opens");
    let mut found = vec![0; MIB];
    for _ in 0..64 {
        file.read_exact(&mut found).expect("reads");
        assert!(found == block);
    }
    drop(file);
    let cost = carried(&cluster, 1) - before;
    assert!(cost < MIB as u64, "{cost} bytes went between nodes for 64 MiB written and read");
    // The other node reads them from there.
    let begun = Instant::now();
    let content = fs::read(data(&cluster, 0).join("big")).expect("reads");
    println!("read on the other node in {:?}", begun.elapsed());
    assert!(content.len() == 64 * MIB && content.chunks(MIB).all(|part| part == block));
    assert!(carried(&cluster, 1) - before > 64 * MIB as u64);
}

#[test]
fn files_open_for_writing_on_several_nodes_are_the_same_on_all() {
    let cluster = Cluster::start(3);
    let rounds = setting("FOREBAY_E2E_CLUSTER_ROUNDS", 500);
    // It lies on the disk of the node that writes first, which is not the owner.
    fs::write(data(&cluster, 1).join("shared"), [0; 8]).expect("writes");
    let files: Vec<fs::File> = (0..3)
        .map(|node| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).open(data(&cluster, node).join("shared")).expect("opens")
        })
        .collect();
    for round in 0..rounds {
        let writer = usize::try_from(round % 3).expect("is small");
        files[writer].write_all_at(&round.to_le_bytes(), round * 8).expect("writes");
        for file in &files {
            assert_eq!(file.metadata().expect("stats").len(), (round + 1) * 8);
            let mut found = [0; 8];
            file.read_exact_at(&mut found, round * 8).expect("reads");
            assert_eq!(u64::from_le_bytes(found), round);
        }
    }
    let cut = rounds * 4;
    files[2].set_len(cut).expect("truncates");
    assert!(files.iter().all(|file| file.metadata().expect("stats").len() == cut));
}

#[test]
fn a_killed_writer_and_a_killed_owner_lose_nothing_that_was_synced() {
    let cluster = Cluster::start(3);
    let synced = pattern(3 * MIB, 1);
    let write = |name: &str, more: &[u8]| {
        let mut file = fs::File::create(data(&cluster, 1).join(name)).expect("creates");
        file.write_all(&synced).expect("writes");
        file.sync_all().expect("syncs");
        file.write_all(more).expect("writes");
        file
    };
    let open = write("by-a-writer-that-dies", b"not synced");
    cluster.kill(1);
    drop(open);
    cluster.mount(1);
    let expected = [&synced[..], b"not synced"].concat();
    for node in 0..3 {
        let path = data(&cluster, node).join("by-a-writer-that-dies");
        wait_until("the bytes are there again", LIMIT, || {
            fs::read(&path).is_ok_and(|bytes| bytes == expected)
        });
    }
    let open = write("of-an-owner-that-dies", b"");
    cluster.kill(0);
    let is_there = |node: usize| {
        let path = data(&cluster, node).join("of-an-owner-that-dies");
        wait_until("the names are there again", LIMIT, || {
            fs::read(&path).is_ok_and(|bytes| bytes == synced)
        });
    };
    is_there(2);
    // What the former owner was told is not known to the next one: no sync may say that it is safe.
    assert!(open.sync_all().is_err(), "the handle is stale");
    // On its own node the file can be opened again when the stale handle is closed.
    drop(open);
    is_there(1);
}

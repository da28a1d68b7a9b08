//! What users see when a node dies, freezes or is cut off.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::content::write_synced;
use forebay_e2e::{Cluster, wait_until};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(90);

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

#[test]
fn a_killed_owner_is_replaced_and_what_was_synced_is_there_when_it_is_back() {
    let cluster = Cluster::start(3);
    write_synced(&data(&cluster, 0).join("synced"), b"kept");
    cluster.kill(0);
    for node in [1, 2] {
        let path = data(&cluster, node).join("synced");
        wait_until("the names are there again", LIMIT, || fs::metadata(&path).is_ok());
    }
    // New files go to disks of nodes that are there.
    write_synced(&data(&cluster, 2).join("later"), b"made without the first node");
    assert_eq!(
        fs::read(data(&cluster, 1).join("later")).expect("reads"),
        b"made without the first node"
    );
    cluster.mount(0);
    for node in 0..3 {
        let path = data(&cluster, node).join("synced");
        wait_until("the bytes are there again", LIMIT, || {
            fs::read(&path).is_ok_and(|bytes| bytes == b"kept")
        });
    }
    assert_eq!(
        fs::read(data(&cluster, 0).join("later")).expect("reads"),
        b"made without the first node"
    );
}

#[test]
fn an_owner_that_was_frozen_beyond_its_lease_answers_nothing_old_when_it_thaws() {
    let cluster = Cluster::start(2);
    write_synced(&data(&cluster, 0).join("f"), b"before");
    cluster.signal(0, Signal::STOP);
    let path = data(&cluster, 1).join("g");
    wait_until("the other node has taken over", LIMIT, || fs::write(&path, b"after").is_ok());
    cluster.signal(0, Signal::CONT);
    let path = data(&cluster, 0).join("g");
    wait_until("the first node sees it", LIMIT, || {
        fs::read(&path).is_ok_and(|bytes| bytes == b"after")
    });
}

#[test]
fn a_node_that_unmounts_hands_its_filesets_over() {
    let cluster = Cluster::start(2);
    write_synced(&data(&cluster, 0).join("f"), b"1");
    cluster.umount(0);
    assert!(data(&cluster, 1).join("f").exists());
    write_synced(&data(&cluster, 1).join("g"), b"2");
    cluster.mount(0);
    assert_eq!(fs::read(data(&cluster, 0).join("g")).expect("reads"), b"2");
    assert_eq!(fs::read(data(&cluster, 1).join("f")).expect("reads"), b"1");
}

#[test]
fn nobody_waits_for_a_dead_owner_for_longer_than_its_lease_and_a_moment() {
    let cluster = Cluster::start(3);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Some calls are under way when the owner dies.
        let programs: Vec<_> = (0..8)
            .map(|number| {
                let path = data(&cluster, 1 + number % 2).join(format!("f{number}"));
                let stop = &stop;
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    while !stop.load(Ordering::SeqCst) {
                        let start = Instant::now();
                        // One that was under way fails.
                        let _ = fs::File::create(&path).and_then(|_| fs::remove_file(&path));
                        longest = longest.max(start.elapsed());
                    }
                    longest
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        cluster.kill(0);
        std::thread::sleep(Duration::from_secs(50));
        stop.store(true, Ordering::SeqCst);
        for program in programs {
            let longest = program.join().expect("does not panic");
            assert!(longest > Duration::from_secs(2), "nothing waited: was it the owner?");
            assert!(longest < Duration::from_secs(45), "a call took {longest:?}");
        }
    });
}

#[test]
fn a_close_without_locks_waits_for_no_other_node() {
    let cluster = Cluster::start(2);
    let path = data(&cluster, 1).join("f");
    write_synced(&path, b"bytes");
    let file = fs::File::open(&path).expect("opens");
    cluster.signal(0, Signal::STOP);
    let closing = std::thread::spawn(move || drop(file));
    // Before the lease of the owner could be over.
    wait_until("the file is closed", Duration::from_secs(8), || closing.is_finished());
    cluster.signal(0, Signal::CONT);
    assert_eq!(fs::read(&path).expect("reads"), b"bytes");
}

#[test]
fn a_node_that_was_frozen_beyond_its_lease_works_again_when_it_thaws() {
    let cluster = Cluster::start(2);
    let path = data(&cluster, 1).join("f");
    write_synced(&path, b"before");
    cluster.signal(1, Signal::STOP);
    std::thread::sleep(Duration::from_secs(14));
    cluster.signal(1, Signal::CONT);
    wait_until("it can write again", Duration::from_secs(20), || {
        fs::write(&path, b"after").is_ok()
    });
    assert_eq!(fs::read(data(&cluster, 0).join("f")).expect("reads"), b"after");
}

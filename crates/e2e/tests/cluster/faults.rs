//! What users see when a node dies, freezes or is cut off.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use forebay_e2e::{Cluster, wait_until};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(90);

fn data(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.mountpoint(node).join("data")
}

/// Writes and syncs a file.
fn write_synced(path: &std::path::Path, content: &[u8]) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).expect("creates");
    file.write_all(content).expect("writes");
    file.sync_all().expect("syncs");
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

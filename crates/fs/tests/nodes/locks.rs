//! Locks of programs on all nodes.

use std::time::Duration;

use forebay_base::Ino;
use forebay_fs::locks::{Kind, Range, Sort};
use forebay_fs::{FsError, Interruption, LockRequest};

use crate::site::{Site, client};
use crate::support::{READ_WRITE, ROOT, Shorthand as _};
use crate::{ONE, THREE, TWO};

pub(crate) fn range_lock(ino: Ino, owner: u64, start: u64, end: u64) -> LockRequest {
    LockRequest { ino, sort: Sort::Fcntl, owner, pid: 77, range: Range { start, end } }
}

#[test]
fn locks_exclude_programs_of_all_nodes_and_waits_end_when_a_node_dies() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    for fs in [&one, &two, &three] {
        fs.open_file(ino, READ_WRITE, ROOT).unwrap();
    }
    two.lock(range_lock(ino, 1, 0, 9), Kind::Write, None).unwrap();
    for fs in [&one, &three] {
        let locked = fs.lock(range_lock(ino, 1, 5, 5), Kind::Read, None);
        assert!(matches!(locked, Err(FsError::Locked)));
        fs.lock(range_lock(ino, 1, 10, 19), Kind::Read, None).unwrap();
    }
    let (range, kind, pid) =
        three.test_lock(range_lock(ino, 1, 0, 99), Kind::Read).unwrap().unwrap();
    assert_eq!((range, kind, pid), (Range { start: 0, end: 9 }, Kind::Write, 0));
    let interruption = Interruption::default();
    std::thread::scope(|scope| {
        let waiting = [&one, &three].map(|fs| {
            let interruption = &interruption;
            scope.spawn(move || {
                let lock = fs.lock(range_lock(ino, 2, 3, 3), Kind::Write, Some(interruption));
                if lock.is_ok() {
                    fs.unlock(range_lock(ino, 2, 3, 3)).unwrap();
                }
                lock
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        site.nodes.kill(TWO);
        site.nodes.drop_client(client(TWO));
        for waited in waiting {
            waited.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_wait_for_a_lock_can_be_interrupted_and_a_circle_over_nodes_is_found() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    for fs in [&one, &two] {
        fs.open_file(ino, READ_WRITE, ROOT).unwrap();
    }
    one.lock(range_lock(ino, 1, 0, 0), Kind::Write, None).unwrap();
    two.lock(range_lock(ino, 2, 1, 1), Kind::Write, None).unwrap();
    let interruption = Interruption::default();
    std::thread::scope(|scope| {
        let waits = || two.lock(range_lock(ino, 2, 0, 0), Kind::Write, Some(&interruption));
        let waiting = scope.spawn(waits);
        // Until it waits, nothing is wrong with waiting for it.
        let found = (0..2000).any(|_| {
            let other = Interruption::default();
            one.interrupt(&other);
            let asked = one.lock(range_lock(ino, 1, 1, 1), Kind::Write, Some(&other));
            std::thread::sleep(Duration::from_millis(1));
            matches!(asked, Err(FsError::Deadlock))
        });
        assert!(found, "each waits for the other");
        two.interrupt(&interruption);
        assert!(matches!(waiting.join().unwrap(), Err(FsError::Interrupted)));
    });
    one.unlock(range_lock(ino, 1, 0, 0)).unwrap();
    two.lock(range_lock(ino, 2, 0, 0), Kind::Write, None).unwrap();
    two.release_locks(ino, Sort::Fcntl, 2).unwrap();
    one.lock(range_lock(ino, 1, 0, 9), Kind::Write, None).unwrap();
}

// --- owners that change ---

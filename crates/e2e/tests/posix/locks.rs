//! Advisory locks between processes.

use std::os::fd::AsFd as _;
use std::time::Duration;

use forebay_e2e::{Mounted, Peer, on_every_way, on_native};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

use crate::open_rw;

on_every_way!(
    an_flock_excludes_other_processes,
    a_waiting_flock_gets_the_lock_when_it_is_free,
    range_locks_of_two_processes_exclude_each_other,
    range_locks_end_with_their_process,
);

on_native!(
    an_flock_excludes_other_processes,
    a_waiting_flock_gets_the_lock_when_it_is_free,
    range_locks_of_two_processes_exclude_each_other,
    range_locks_end_with_their_process,
);

/// Time in which nothing may happen.
const QUIET: Duration = Duration::from_millis(300);

const FLOCK: &str = r#"
import fcntl, sys
f = open(sys.argv[1], "r+b")
fcntl.flock(f, fcntl.LOCK_EX)
print("locked")
input()
fcntl.flock(f, fcntl.LOCK_SH)
print("shared")
input()
"#;

fn an_flock_excludes_other_processes(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    let mut peer = Peer::start(FLOCK, &[path.to_str().expect("plain path")]);
    peer.expect("locked");
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let shared = FlockOperation::NonBlockingLockShared;
    assert_eq!(flock(&file, exclusive), Err(Errno::WOULDBLOCK));
    assert_eq!(flock(&file, shared), Err(Errno::WOULDBLOCK));
    peer.tell("share");
    peer.expect("shared");
    assert_eq!(flock(&file, exclusive), Err(Errno::WOULDBLOCK));
    assert_eq!(flock(&file, shared), Ok(()));
    drop(peer);
    forebay_e2e::wait_until("the lock of a dead process ends", Duration::from_secs(5), || {
        flock(&file, exclusive).is_ok()
    });
}

fn a_waiting_flock_gets_the_lock_when_it_is_free(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    flock(&file, FlockOperation::LockExclusive).expect("locks");
    let mut peer = Peer::start(FLOCK, &[path.to_str().expect("plain path")]);
    assert!(peer.is_silent_for(QUIET), "the other process waits");
    flock(&file, FlockOperation::Unlock).expect("unlocks");
    peer.expect("locked");
}

/// Locks bytes 0 to 99, waits, then locks 100 to 199 as well.
const RANGES: &str = r#"
import fcntl, sys
f = open(sys.argv[1], "r+b")
fcntl.lockf(f, fcntl.LOCK_EX, 100, 0)
print("first")
input()
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 100)
    print("second")
except BlockingIOError:
    print("refused")
input()
fcntl.lockf(f, fcntl.LOCK_EX, 100, 100)
print("waited")
input()
"#;

/// Locks a range for this process, without waiting.
fn lock(file: &std::fs::File, start: i64, length: i64) -> bool {
    try_fcntl(file, libc::F_WRLCK, start, length)
}

fn unlock(file: &std::fs::File, start: i64, length: i64) {
    assert!(try_fcntl(file, libc::F_UNLCK, start, length), "unlocks");
}

fn try_fcntl(file: &std::fs::File, kind: i32, start: i64, length: i64) -> bool {
    use std::os::fd::AsRawFd as _;
    let range = libc::flock {
        l_type: i16::try_from(kind).expect("small"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("small"),
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the handle is open and the range lives through the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const range) == 0 }
}

fn range_locks_of_two_processes_exclude_each_other(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    let mut peer = Peer::start(RANGES, &[path.to_str().expect("plain path")]);
    peer.expect("first");
    assert!(!lock(&file, 50, 10), "inside the other's range");
    assert!(lock(&file, 150, 10), "behind the other's range");
    peer.tell("go on");
    peer.expect("refused");
    peer.tell("wait");
    assert!(peer.is_silent_for(QUIET), "the other process waits");
    unlock(&file, 150, 10);
    peer.expect("waited");
    assert!(!lock(&file, 150, 10), "the range has changed hands");
}

fn range_locks_end_with_their_process(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = open_rw(&path);
    let mut peer = Peer::start(RANGES, &[path.to_str().expect("plain path")]);
    peer.expect("first");
    let whole = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    assert!(matches!(fcntl_lock(file.as_fd(), whole), Err(Errno::AGAIN | Errno::ACCESS)));
    drop(peer);
    forebay_e2e::wait_until("the lock of a dead process ends", Duration::from_secs(5), || {
        fcntl_lock(file.as_fd(), whole).is_ok()
    });
}

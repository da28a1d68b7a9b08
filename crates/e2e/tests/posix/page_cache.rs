//! What stays in memory of files that programs have read on the served path.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::content::{assert_same, pattern};
use forebay_e2e::{Mounted, Placement};

const MIB: usize = 1 << 20;
/// Number of the system call, on all architectures.
const CACHESTAT: libc::c_long = 451;
/// Sizes by which the files of the file system's disk are told apart.
const LARGE: usize = 40 * MIB + 4096;
const SMALL: usize = 8 * MIB + 4096;

#[track_caller]
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    forebay_e2e::wait_until(what, Duration::from_secs(180), holds);
}

/// Bytes of a file that the kernel has in memory: cachestat(2), Linux 6.5.
fn cached(path: &Path) -> usize {
    let file = File::open(path).expect("opens");
    let (range, mut found) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: the structures have the sizes that the kernel reads and writes, and outlive the call.
    let answer =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    assert_eq!(answer, 0, "cachestat: {}", std::io::Error::last_os_error());
    usize::try_from(found[0]).expect("is a number of pages") * rustix::param::page_size()
}

/// The file of that size on the disk of the file system.
fn object_of(folder: &Path, size: usize) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        let is_it = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() == size as u64);
        if path.is_dir() { object_of(&path, size) } else { is_it(&path).then_some(path) }
    })
}

/// Reads a file from one end to the other.
fn stream(path: &Path) -> File {
    let mut file = File::open(path).expect("opens");
    let mut buffer = vec![0; MIB];
    while file.read(&mut buffer).expect("reads") > 0 {}
    file
}

/// Writes a file of that size, and returns it with that of its object.
fn make(grid: &Mounted, name: &str, size: usize) -> (PathBuf, PathBuf) {
    let path = grid.data().join(name);
    let mut file = File::create(&path).expect("creates");
    file.write_all(&pattern(size as u64, size)).expect("writes");
    file.sync_all().expect("syncs");
    drop(file);
    let mut object = None;
    wait_until("the object has a name", || {
        object = object_of(grid.root(), size);
        object.is_some()
    });
    (path, object.expect("was found"))
}

#[test]
fn a_stream_of_a_large_file_leaves_nothing_in_memory_and_smaller_files_stay() {
    let grid = Mounted::start_with(Placement::Served, "seq_discard_threshold = \"24 MiB\"");
    let (small, small_object) = make(&grid, "small", SMALL);
    let (large, large_object) = make(&grid, "large", LARGE);
    // What was written is in memory: the daemon would not be asked for it.
    grid.remount();
    drop(stream(&small));
    let file = stream(&large);
    wait_until("the object is not in memory", || cached(&large_object) < LARGE / 4);
    drop(file);
    wait_until("the file is not in memory", || cached(&large) < MIB);
    assert_eq!((cached(&small), cached(&small_object)), (SMALL, SMALL));
    assert_same(&fs::read(&large).expect("reads"), &pattern(LARGE as u64, LARGE), "large");
    wait_until("the file is not in memory again", || cached(&large) < MIB);
}

#[test]
fn files_of_any_size_stay_in_memory_unless_the_setting_says_otherwise() {
    let grid = Mounted::start(Placement::Served);
    let (large, object) = make(&grid, "large", LARGE);
    grid.remount();
    drop(stream(&large));
    assert_eq!((cached(&large), cached(&object)), (LARGE, LARGE));
}

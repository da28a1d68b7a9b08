//! Memory mappings: one truth with read and write, across handles and processes.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;

use forebay_e2e::content::{assert_same, pattern, read_at};
use forebay_e2e::{Mounted, Peer, on_every_way, on_native};
use rustix::fs::OFlags;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::{open_rw, open_with};

on_every_way!(
    a_shared_mapping_and_the_file_are_one,
    a_shared_mapping_is_one_with_that_of_another_process,
    a_private_mapping_keeps_its_changes_to_itself,
    a_mapping_outlives_close_and_unlink,
    mapped_changes_reach_the_file_without_a_sync,
    a_mapping_shows_what_is_written_after_a_truncation,
    bytes_mapped_behind_the_end_are_not_kept,
    a_mapping_behind_the_end_is_a_bus_error,
);

on_native!(
    a_shared_mapping_and_the_file_are_one,
    a_shared_mapping_is_one_with_that_of_another_process,
    a_private_mapping_keeps_its_changes_to_itself,
    a_mapping_outlives_close_and_unlink,
    mapped_changes_reach_the_file_without_a_sync,
    a_mapping_shows_what_is_written_after_a_truncation,
    bytes_mapped_behind_the_end_are_not_kept,
    a_mapping_behind_the_end_is_a_bus_error,
);

const PAGES: usize = 16;
const LENGTH: usize = PAGES * 4096;

/// A mapping of the first [`LENGTH`] bytes of a file.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: impl AsFd, flags: MapFlags) -> Mapping {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address; the mapping is this value's own.
        let start = unsafe { mmap(std::ptr::null_mut(), LENGTH, access, flags, file, 0) };
        Mapping(start.expect("maps").cast())
    }

    fn shared(file: impl AsFd) -> Mapping {
        Mapping::of(file, MapFlags::SHARED)
    }

    fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= LENGTH);
        let mut bytes = vec![0; length];
        // SAFETY: the range lies in the mapping; the copy is made byte for byte, others may write.
        unsafe { std::ptr::copy(self.0.add(at), bytes.as_mut_ptr(), length) };
        bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LENGTH);
        // SAFETY: the range lies in the mapping, which nobody holds a reference to.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }

    fn sync(&self) {
        // SAFETY: the range is the mapping.
        unsafe { msync(self.0.cast(), LENGTH, MsyncFlags::SYNC) }.expect("syncs the mapping");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no reference into it is given out.
        unsafe { munmap(self.0.cast(), LENGTH) }.expect("unmaps");
    }
}

fn filled(grid: &Mounted, seed: u64) -> File {
    let file = open_rw(&grid.data().join("file"));
    file.write_all_at(&pattern(seed, LENGTH), 0).expect("writes");
    file
}

fn a_shared_mapping_and_the_file_are_one(grid: &Mounted) {
    let file = filled(grid, 1);
    let mapping = Mapping::shared(&file);
    let other = open_rw(&grid.data().join("file"));
    let twin = Mapping::shared(&other);
    assert_same(&mapping.read(0, LENGTH), &pattern(1, LENGTH), "what was written before");
    other.write_all_at(&pattern(2, 5000), 3000).expect("writes");
    assert_same(&mapping.read(3000, 5000), &pattern(2, 5000), "what another handle writes");
    mapping.write(20_000, &pattern(3, 5000));
    assert_same(&read_at(&other, 20_000, 5000), &pattern(3, 5000), "what the mapping wrote");
    assert_same(&twin.read(20_000, 5000), &pattern(3, 5000), "in another mapping");
    let late = File::open(grid.data().join("file")).expect("opens");
    assert_same(&read_at(&late, 20_000, 5000), &pattern(3, 5000), "through a new handle");
    mapping.sync();
}

fn a_shared_mapping_is_one_with_that_of_another_process(grid: &Mounted) {
    const PROGRAM: &str = r#"
import mmap, sys
with open(sys.argv[1], "r+b") as f:
    m = mmap.mmap(f.fileno(), 65536)
print("mapped")
input()
print(m[5000:5004].decode())
m[40000:40005] = b"reply"
print("written")
input()
with open(sys.argv[1], "rb") as f:
    f.seek(60000); print(f.read(4).decode())
"#;
    let file = filled(grid, 1);
    let path = grid.data().join("file");
    let mut peer = Peer::start(PROGRAM, &[path.to_str().expect("plain path")]);
    let mapping = Mapping::shared(&file);
    peer.expect("mapped");
    mapping.write(5000, b"call");
    peer.tell("go on");
    peer.expect("call");
    peer.expect("written");
    assert_eq!(mapping.read(40_000, 5), b"reply");
    assert_eq!(read_at(&file, 40_000, 5), b"reply");
    mapping.write(60_000, b"last");
    peer.tell("go on");
    peer.expect("last");
}

fn a_private_mapping_keeps_its_changes_to_itself(grid: &Mounted) {
    let file = filled(grid, 1);
    let mapping = Mapping::of(&file, MapFlags::PRIVATE);
    mapping.write(100, b"private");
    assert_eq!(mapping.read(100, 7), b"private");
    assert_same(&read_at(&file, 0, LENGTH), &pattern(1, LENGTH), "the file");
}

fn a_mapping_outlives_close_and_unlink(grid: &Mounted) {
    let file = filled(grid, 1);
    let mapping = Mapping::shared(&file);
    drop(file);
    fs::remove_file(grid.data().join("file")).expect("removes");
    let successor = filled(grid, 2);
    mapping.write(0, b"still mine");
    assert_eq!(mapping.read(0, 10), b"still mine");
    assert_same(&mapping.read(4096, 4096), &pattern(1, LENGTH)[4096..8192], "the mapping");
    assert_same(&read_at(&successor, 0, LENGTH), &pattern(2, LENGTH), "the new file");
    mapping.sync();
}

fn mapped_changes_reach_the_file_without_a_sync(grid: &Mounted) {
    let file = filled(grid, 1);
    let mapping = Mapping::shared(&file);
    mapping.write(10_000, b"mapped");
    let before = file.metadata().expect("stats").modified().expect("has a time");
    drop((mapping, file));
    grid.remount();
    let file = open_rw(&grid.data().join("file"));
    assert_eq!(read_at(&file, 10_000, 6), b"mapped");
    assert!(file.metadata().expect("stats").modified().expect("has a time") >= before);
}

fn a_mapping_shows_what_is_written_after_a_truncation(grid: &Mounted) {
    let path = grid.data().join("file");
    let file = filled(grid, 1);
    let mapping = Mapping::shared(&file);
    assert_eq!(mapping.read(0, 4), pattern(1, 4));
    // The mapping alone keeps the file open now.
    drop(file);
    for round in 2..20 {
        let other = open_with(&path, OFlags::RDWR | OFlags::TRUNC).expect("opens with O_TRUNC");
        other.write_all_at(&pattern(round, LENGTH), 0).expect("writes");
        drop(other);
        assert_same(&mapping.read(0, LENGTH), &pattern(round, LENGTH), "the mapping");
        mapping.write(7000, b"through the mapping");
        let now = fs::read(&path).expect("reads");
        assert_eq!(&now[7000..7019], b"through the mapping", "round {round}");
    }
}

fn bytes_mapped_behind_the_end_are_not_kept(grid: &Mounted) {
    let file = filled(grid, 1);
    let end = LENGTH as u64 - 3000;
    file.set_len(end).expect("truncates");
    let mapping = Mapping::shared(&file);
    mapping.write(LENGTH - 2000, b"behind the end");
    mapping.sync();
    drop(mapping);
    file.set_len(LENGTH as u64).expect("grows");
    assert_same(&read_at(&file, end, 3000), &[0; 3000], "the new end");
}

fn a_mapping_behind_the_end_is_a_bus_error(grid: &Mounted) {
    const PROGRAM: &str = r#"
import mmap, sys
with open(sys.argv[1], "r+b") as f:
    m = mmap.mmap(f.fileno(), 65536)
print("mapped")
input()
print(m[60000])
"#;
    let file = filled(grid, 1);
    let path = grid.data().join("file");
    let mut peer = Peer::start(PROGRAM, &[path.to_str().expect("plain path")]);
    peer.expect("mapped");
    file.set_len(4096).expect("truncates");
    peer.tell("go on");
    assert_eq!(peer.end_signal(), Some(rustix::process::Signal::BUS.as_raw()));
}

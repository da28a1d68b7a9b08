//! Ranges of a file: allocation, holes, copies, truncation, and files of many TiB.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use forebay_e2e::content::{assert_same, pattern, read_at};
use forebay_e2e::{Mounted, on_every_way, on_native};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use crate::open_rw;

on_every_way!(
    fallocate_reserves_zeros_and_grows_the_file,
    fallocate_with_keep_size_grows_nothing_visible,
    a_punched_hole_reads_as_zeros,
    a_zeroed_range_reads_as_zeros,
    seek_finds_data_and_holes,
    copy_file_range_copies_within_and_between_files,
    truncated_bytes_never_come_back,
    a_sparse_file_of_10_tib_holds_its_bytes,
    large_transfers_at_odd_offsets_are_exact,
);

on_native!(
    fallocate_reserves_zeros_and_grows_the_file,
    fallocate_with_keep_size_grows_nothing_visible,
    a_punched_hole_reads_as_zeros,
    a_zeroed_range_reads_as_zeros,
    seek_finds_data_and_holes,
    copy_file_range_copies_within_and_between_files,
    truncated_bytes_never_come_back,
    a_sparse_file_of_10_tib_holds_its_bytes,
    large_transfers_at_odd_offsets_are_exact,
);

const MIB: u64 = 1 << 20;

fn filled(grid: &Mounted, name: &str, seed: u64, length: usize) -> File {
    let file = open_rw(&grid.data().join(name));
    file.write_all_at(&pattern(seed, length), 0).expect("writes");
    file
}

fn fallocate_reserves_zeros_and_grows_the_file(grid: &Mounted) {
    let file = filled(grid, "file", 1, 1000);
    fallocate(&file, FallocateFlags::empty(), 500, MIB).expect("allocates");
    let stat = file.metadata().expect("stats");
    assert_eq!(stat.len(), 500 + MIB);
    assert!(stat.blocks() * 512 >= MIB, "{} blocks", stat.blocks());
    let mut expected = pattern(1, 1000);
    expected.resize(500 + (1 << 20), 0);
    assert_same(&fs::read(grid.data().join("file")).expect("reads"), &expected, "file");
}

fn fallocate_with_keep_size_grows_nothing_visible(grid: &Mounted) {
    let file = filled(grid, "file", 2, 5000);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB).expect("allocates");
    let stat = file.metadata().expect("stats");
    assert_eq!(stat.len(), 5000);
    assert!(stat.blocks() * 512 >= MIB, "{} blocks", stat.blocks());
    assert_eq!(fs::read(grid.data().join("file")).expect("reads").len(), 5000);
}

fn a_punched_hole_reads_as_zeros(grid: &Mounted) {
    let file = filled(grid, "file", 3, 1 << 20);
    let blocks = file.metadata().expect("stats").blocks();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut expected = pattern(3, 1 << 20);
    for (start, length) in [(4096, 65536), (200_001, 777), (300_000, 100_000), (MIB - 10, 5000)] {
        fallocate(&file, punch, start, length).expect("punches");
        let end = usize::try_from((start + length).min(MIB)).expect("small");
        expected[usize::try_from(start).expect("small")..end].fill(0);
    }
    assert_same(&read_at(&file, 0, 1 << 20), &expected, "file");
    let stat = file.metadata().expect("stats");
    assert_eq!(stat.len(), MIB, "the size stays");
    file.sync_all().expect("syncs");
    assert!(file.metadata().expect("stats").blocks() < blocks.max(2048), "space is given back");
    drop(file);
    grid.remount();
    assert_same(&fs::read(grid.data().join("file")).expect("reads"), &expected, "after a remount");
}

fn a_zeroed_range_reads_as_zeros(grid: &Mounted) {
    let file = filled(grid, "file", 4, 100_000);
    let mut expected = pattern(4, 100_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 10_001, 50_000).expect("zeroes");
    expected[10_001..60_001].fill(0);
    assert_same(&read_at(&file, 0, 100_000), &expected, "zeroed within");
    let keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, keep, 90_000, 50_000).expect("zeroes");
    expected[90_000..].fill(0);
    assert_same(&read_at(&file, 0, 100_000), &expected, "zeroed at the end");
    assert_eq!(file.metadata().expect("stats").len(), 100_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 99_000, 50_000).expect("zeroes");
    expected.resize(149_000, 0);
    assert_same(&fs::read(grid.data().join("file")).expect("reads"), &expected, "zeroed beyond");
}

fn seek_finds_data_and_holes(grid: &Mounted) {
    let file = open_rw(&grid.data().join("file"));
    file.set_len(8 * MIB).expect("grows");
    file.write_all_at(&pattern(5, 1 << 20), 2 * MIB).expect("writes");
    file.write_all_at(&pattern(6, 1 << 20), 5 * MIB).expect("writes");
    file.sync_all().expect("syncs");
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(2 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(2 * MIB + 4096)), Ok(2 * MIB + 4096));
    assert_eq!(seek(&file, SeekFrom::Hole(2 * MIB)), Ok(3 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(3 * MIB)), Ok(5 * MIB));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(5 * MIB)), Ok(6 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(6 * MIB)), Err(Errno::NXIO), "no data behind");
    assert_eq!(seek(&file, SeekFrom::Data(9 * MIB)), Err(Errno::NXIO), "behind the end");
    file.set_len(6 * MIB).expect("truncates");
    assert_eq!(seek(&file, SeekFrom::Hole(5 * MIB)), Ok(6 * MIB), "a hole follows the end");
}

fn copy_file_range_copies_within_and_between_files(grid: &Mounted) {
    let from = filled(grid, "from", 7, 3 << 20);
    let bytes = pattern(7, 3 << 20);
    for (name, folder) in [("same", grid.data()), ("other", grid.work())] {
        let to = open_rw(&folder.join(name));
        to.write_all_at(&pattern(8, 100), 0).expect("writes");
        assert_eq!(copy_all(&from, 12_345, &to, 77, 2 << 20), 2 << 20, "{name}");
        let mut expected = pattern(8, 100);
        expected.resize(77 + (2 << 20), 0);
        expected[77..].copy_from_slice(&bytes[12_345..12_345 + (2 << 20)]);
        assert_same(&fs::read(folder.join(name)).expect("reads"), &expected, name);
    }
    assert_eq!(copy_all(&from, 0, &from, 1 << 20, 100_000), 100_000, "within one file");
    assert_same(&read_at(&from, 1 << 20, 100_000), &bytes[..100_000], "within one file");
    assert_eq!(copy_all(&from, 3 << 20, &from, 0, 10), 0, "nothing behind the end");
}

fn copy_all(from: &File, at: u64, to: &File, target: u64, length: usize) -> usize {
    let (mut at, mut target) = (at, target);
    let mut copied = 0;
    while copied < length {
        match copy_file_range(from, Some(&mut at), to, Some(&mut target), length - copied) {
            Ok(0) => break,
            Ok(count) => copied += count,
            Err(error) => panic!("copy_file_range: {error}"),
        }
    }
    copied
}

fn truncated_bytes_never_come_back(grid: &Mounted) {
    let file = filled(grid, "file", 9, 50_000);
    for length in [49_999, 20_000, 4097, 4096, 4095, 1, 0] {
        file.set_len(length).expect("truncates");
        file.set_len(60_000).expect("grows");
        let mut expected = pattern(9, usize::try_from(length).expect("small"));
        expected.resize(60_000, 0);
        assert_same(&read_at(&file, 0, 60_000), &expected, &format!("cut at {length}"));
    }
}

fn a_sparse_file_of_10_tib_holds_its_bytes(grid: &Mounted) {
    let end = 10 << 40;
    let file = open_rw(&grid.data().join("file"));
    file.write_all_at(&pattern(10, 10_000), end).expect("writes far out");
    file.write_all_at(&pattern(11, 10_000), end / 2 + 1).expect("writes in the middle");
    file.sync_all().expect("syncs");
    drop(file);
    grid.remount();
    let file = open_rw(&grid.data().join("file"));
    let stat = file.metadata().expect("stats");
    assert_eq!(stat.len(), end + 10_000);
    assert!(stat.blocks() < 4096, "{} blocks of a sparse file", stat.blocks());
    assert_same(&read_at(&file, end, 10_000), &pattern(10, 10_000), "the end");
    assert_same(&read_at(&file, end / 2 + 1, 10_000), &pattern(11, 10_000), "the middle");
    assert_same(&read_at(&file, 1 << 40, 100_000), &[0; 100_000], "a hole");
    let first = seek(&file, SeekFrom::Data(0)).expect("finds data");
    assert!((end / 2 - MIB..=end / 2 + 1).contains(&first), "first data at {first}");
    file.set_len(100).expect("truncates");
    assert_eq!(file.metadata().expect("stats").len(), 100);
}

fn large_transfers_at_odd_offsets_are_exact(grid: &Mounted) {
    let file = open_rw(&grid.work().join("file"));
    let bytes = pattern(12, 16 << 20);
    let mut place = 0;
    for (index, part) in bytes.chunks(3_333_333).enumerate() {
        file.write_all_at(part, place).unwrap_or_else(|error| panic!("write {index}: {error}"));
        place += part.len() as u64;
    }
    assert_same(&read_at(&file, 0, 16 << 20), &bytes, "one large read");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drops the cache");
    for start in [1, 4095, 131_073, 9_999_999] {
        let part = &bytes[start..start + 5_000_001];
        assert_same(&read_at(&file, start as u64, part.len()), part, "an odd part");
    }
}

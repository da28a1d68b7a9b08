//! A disk that is full: the writer is told, everything else goes on, and the space comes back.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use forebay_e2e::content::{assert_same, pattern};
use forebay_e2e::{LoopDisk, Mounted, Placement, wait_until};

const MIB: usize = 1 << 20;
/// Time after which the space of removed files must be free again.
const RECLAIM_LIMIT: Duration = Duration::from_secs(30);

/// Space that the file system may keep aside (its settings `store_reserve` and `disk_reserve`).
const RESERVE: u64 = (64 + 16) << 20;

/// Writes files of 4 MiB until the disk is full. Returns the number of files that are whole.
fn fill(folder: &Path) -> u64 {
    for number in 0.. {
        let path = folder.join(format!("large-{number}"));
        let written = File::create(&path).and_then(|mut file| {
            for part in 0..4 {
                file.write_all(&pattern(number * 4 + part, MIB))?;
            }
            file.sync_all()
        });
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "file {number}: {error}");
            return number;
        }
        assert!(number < 10_000, "the disk is never full");
    }
    unreachable!("the loop ends by returning")
}

fn check_whole(folder: &Path, number: u64) {
    let bytes = fs::read(folder.join(format!("large-{number}"))).expect("reads");
    for (part, bytes) in (0..4).zip(bytes.chunks(MIB)) {
        assert_same(bytes, &pattern(number * 4 + part, MIB), &format!("file {number}"));
    }
}

/// Fills the disk, works on it, makes room, works on.
fn a_full_disk_is_survived(kind: &str, placement: Placement) {
    let disk = LoopDisk::make(kind, 512);
    let grid = Mounted::make_in(&disk.path(), placement);
    grid.expect_log("No space left");
    grid.mount();
    let empty = disk.free_bytes();
    fs::write(grid.data().join("before"), "written before").expect("writes");
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes a directory");

    let files = fill(&folder);
    assert!(files >= 20, "only {files} files fit");

    // What needs no new space goes on.
    assert_eq!(fs::read(grid.data().join("before")).expect("reads"), b"written before");
    check_whole(&folder, 0);
    check_whole(&folder, files - 1);
    fs::rename(grid.data().join("before"), grid.data().join("renamed")).expect("renames");
    assert_eq!(fs::read_dir(&folder).expect("lists").count() as u64, files + 1);
    grid.run_on_root(&["status"], &[]).succeeds();
    assert!(grid.daemon().is_some(), "the daemon lives");

    for number in (0..files).step_by(2) {
        fs::remove_file(folder.join(format!("large-{number}"))).expect("removes");
    }
    fs::remove_file(folder.join(format!("large-{files}"))).expect("removes what did not fit");
    let removed = files.div_ceil(2) * 4 * MIB as u64;
    wait_until("the space of removed files is free again", RECLAIM_LIMIT, || {
        disk.free_bytes() + RESERVE >= removed * 9 / 10
    });
    let again = grid.data().join("again");
    let bytes = pattern(7, 8 * MIB);
    fs::write(&again, &bytes).expect("writes again");
    File::open(&again).expect("opens").sync_all().expect("syncs again");

    grid.umount();
    grid.is_clean();
    grid.mount();
    assert_same(&fs::read(&again).expect("reads"), &bytes, "written again");
    assert_eq!(fs::read(grid.data().join("renamed")).expect("reads"), b"written before");
    for number in (1..files).step_by(2) {
        check_whole(&folder, number);
    }
    fs::remove_dir_all(&folder).expect("removes everything");
    fs::remove_file(&again).expect("removes");
    wait_until("all space is free again", RECLAIM_LIMIT, || {
        disk.free_bytes() + RESERVE >= empty - empty / 10
    });
}

#[test]
fn a_full_ext4_disk_is_survived_on_the_direct_path() {
    a_full_disk_is_survived("ext4", Placement::Direct);
}

#[test]
fn a_full_ext4_disk_is_survived_on_the_served_path() {
    a_full_disk_is_survived("ext4", Placement::Served);
}

#[test]
fn a_full_xfs_disk_is_survived_on_the_direct_path() {
    a_full_disk_is_survived("xfs", Placement::Direct);
}

#[test]
fn a_full_xfs_disk_is_survived_on_the_served_path() {
    a_full_disk_is_survived("xfs", Placement::Served);
}

#[test]
fn a_disk_without_inodes_left_is_survived() {
    let disk = LoopDisk::make_with("ext4", 100, &["-N", "800"]);
    let grid = Mounted::make_in(&disk.path(), Placement::Direct);
    grid.expect_log("No space left");
    grid.mount();
    let mut whole = 0;
    let error = loop {
        match fs::write(grid.data().join(format!("small-{whole}")), "content") {
            Ok(()) => whole += 1,
            Err(error) => break error,
        }
        assert!(whole < 100_000, "the inodes never end");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "after {whole} files: {error}");
    for number in 0..whole {
        let path = grid.data().join(format!("small-{number}"));
        assert_eq!(fs::read(&path).expect("reads"), b"content");
        fs::remove_file(&path).expect("removes");
    }
    wait_until("files can be made again", RECLAIM_LIMIT, || {
        fs::write(grid.data().join("again"), "content").is_ok()
    });
}

#[test]
fn a_full_disk_keeps_what_an_fsync_acknowledged_through_a_crash() {
    let disk = LoopDisk::make("ext4", 200);
    let grid = Mounted::make_in(&disk.path(), Placement::Direct);
    grid.expect_log("No space left");
    grid.mount();
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    let files = fill(&folder);
    grid.kill();
    grid.mount();
    for number in 0..files {
        check_whole(&folder, number);
    }
}

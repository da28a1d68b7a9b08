//! `forebay snapshot clone`, and disks with objects of snapshots.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use forebay_e2e::{LoopDisk, Mounted, Placement};

use crate::{assert_says, json};

const FILES: u8 = 12;
const MIB: u64 = 1 << 20;

/// Files of a MiB each.
fn fill(folder: &Path) {
    for number in 0..FILES {
        fs::write(folder.join(format!("file-{number}")), vec![number; 1 << 20]).expect("writes");
    }
}

fn assert_filled(folder: &Path) {
    for number in 0..FILES {
        let found = fs::read(folder.join(format!("file-{number}"))).expect("reads");
        assert!(found == vec![number; 1 << 20], "{}/file-{number}", folder.display());
    }
}

fn clone(grid: &Mounted, name: &str) -> serde_json::Value {
    let order = ["data", "monday", name, "--json"];
    json(&grid.run_on_root(&["snapshot", "clone"], &order).output())
}

#[test]
fn a_clone_takes_no_space_until_it_is_written_and_stays_when_its_origin_goes() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Direct);
    grid.mount();
    let data = grid.data();
    fill(&data);
    fs::create_dir(data.join("dir")).expect("makes a directory");
    fs::hard_link(data.join("file-1"), data.join("dir/second")).expect("links");
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
    let free = disk.free_bytes();
    let made = clone(&grid, "trial");
    assert_eq!((made["inodes"].as_u64(), made["copied"].as_u64()), (Some(14), Some(0)));
    assert!(free - disk.free_bytes() < 4 * MIB, "a clone shares blocks");
    let trial = grid.mountpoint().join("trial");
    assert_filled(&trial);
    let modified = |folder: &Path| {
        let stat = fs::metadata(folder.join("file-5")).expect("stats");
        stat.modified().expect("has a time")
    };
    assert_eq!(modified(&trial), modified(&data.join(".snapshots/monday")));
    assert_eq!(fs::metadata(trial.join("dir/second")).expect("stats").nlink(), 2);

    fs::write(trial.join("file-2"), b"of the clone").expect("writes");
    fs::write(data.join("file-3"), b"of the fileset").expect("writes");
    assert_eq!(fs::read(data.join(".snapshots/monday/file-2")).expect("reads"), [2; 1 << 20]);
    assert_eq!(fs::read(trial.join("file-3")).expect("reads"), [3; 1 << 20]);
    let taken = grid.run_on_root(&["snapshot", "clone"], &["data", "monday", "trial"]).refused();
    assert_says(&taken, &["\"trial\" already exists"]);

    grid.run_on_root(&["snapshot", "delete"], &["data", "monday"]).succeeds();
    fs::remove_dir_all(data.join("dir")).expect("removes");
    for number in 0..FILES {
        fs::remove_file(data.join(format!("file-{number}"))).expect("removes");
    }
    grid.run_on_root(&["fileset", "remove"], &["data"]).succeeds();
    fs::write(trial.join("file-2"), [2; 1 << 20]).expect("writes");
    assert_filled(&trial);
    grid.umount();
    grid.is_clean();
    grid.mount();
    assert_filled(&trial);
}

#[test]
fn a_whole_fileset_is_taken_back_by_its_mount_point_and_programs_keep_what_they_have_open() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Direct);
    grid.mount();
    let data = grid.data();
    fill(&data);
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
    fs::write(data.join("later"), b"than the snapshot").expect("writes");
    fs::write(data.join("file-1"), b"rewritten").expect("writes");
    let open = fs::File::open(data.join("file-1")).expect("opens");
    let mountpoint = grid.mountpoint();
    let order = ["snapshot", "restore", mountpoint.to_str().expect("is text"), "data", "monday"];
    let order = order.into_iter().chain(["--all", "--json"]).collect::<Vec<_>>();
    let restored = json(&grid.run(&order).output());
    assert_eq!(restored["aside"].as_str(), Some("data.aside"));
    assert_filled(&data);
    assert!(!data.join("later").exists());
    let mut kept = String::new();
    std::io::Read::read_to_string(&mut &open, &mut kept).expect("reads");
    assert_eq!(kept, "rewritten");
    let aside = grid.mountpoint().join("data.aside");
    assert_eq!(fs::read(aside.join("later")).expect("reads"), b"than the snapshot");
    assert_filled(&aside.join(".snapshots/monday"));
    fs::write(data.join("file-2"), [2; 1 << 20]).expect("writes");
    drop(open);
    grid.umount();
    grid.is_clean();
    grid.mount();
    assert_filled(&data);
}

#[test]
fn a_disk_that_cannot_share_blocks_copies_for_a_clone_only_if_it_is_told_to() {
    let disk = LoopDisk::make("ext4", 200);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Served);
    grid.mount();
    fill(&grid.data());
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
    let order = ["data", "monday", "trial"];
    let shares = grid.run_on_root(&["snapshot", "clone"], &order).refused();
    assert_says(&shares, &["cannot share blocks", "--copy"]);
    assert!(!grid.mountpoint().join("trial").exists());
    let order = ["data", "monday", "trial", "--copy", "--json"];
    let made = json(&grid.run_on_root(&["snapshot", "clone"], &order).output());
    assert_eq!(made["copied"].as_u64(), Some(u64::from(FILES)));
    assert_filled(&grid.mountpoint().join("trial"));
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_daemon_that_dies_while_a_clone_is_made_leaves_all_of_it_or_nothing() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Direct);
    grid.mount();
    fill(&grid.data());
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
    grid.umount();
    let steps = [
        ("clone.noted", false),
        ("clone.named", false),
        ("clone.copied", false),
        ("clone.written", false),
        ("clone.made", true),
    ];
    for (point, is_made) in steps {
        grid.mount_to_fail(point, 0).succeeds();
        let _ = grid.run_on_root(&["snapshot", "clone"], &["data", "monday", "trial"]).refused();
        grid.detach();
        grid.mount();
        let trial = grid.mountpoint().join("trial");
        assert_eq!(trial.exists(), is_made, "{point}");
        assert_filled(&grid.data());
        if is_made {
            assert_filled(&trial);
        }
        grid.umount();
        grid.is_clean();
    }
}

#[test]
fn a_disk_with_objects_of_snapshots_is_emptied_and_taken_away() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Direct);
    grid.mount();
    let data = grid.data();
    fill(&data);
    fs::write(data.join("removed"), b"in the snapshot alone").expect("writes");
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
    fs::remove_file(data.join("removed")).expect("removes");
    fs::write(data.join("file-1"), b"rewritten").expect("writes");
    let second = disk.path().join("second");
    fs::create_dir(&second).expect("makes a directory");
    let second = second.to_str().expect("is text");
    grid.run_on_root(&["disk", "add"], &[second]).succeeds();
    let first = grid.root().join("disk");
    let first = first.to_str().expect("is text");
    let free = disk.free_bytes();
    grid.run_on_root(&["disk", "drain"], &[first, "--wait"]).succeeds();
    grid.run_on_root(&["disk", "remove"], &[first]).succeeds();
    let taken = free.saturating_sub(disk.free_bytes());
    assert!(taken < 6 * MIB, "moved files share blocks with the snapshot: {taken} B are taken");
    let monday = data.join(".snapshots/monday");
    assert_filled(&monday);
    assert_eq!(fs::read(monday.join("removed")).expect("reads"), b"in the snapshot alone");
    assert_eq!(fs::read(data.join("file-1")).expect("reads"), b"rewritten");
    grid.umount();
    grid.is_clean();
    grid.mount();
    assert_filled(&monday);
}

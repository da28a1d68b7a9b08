//! Stores that were damaged or lost, and `forebay store`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::content::pattern;
use forebay_e2e::{Mounted, Placement, run, wait_until};

use crate::{assert_says, json};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

fn fill(grid: &Mounted, from: u64, to: u64) {
    for number in from..to {
        let path = grid.data().join(format!("file-{number}"));
        fs::write(path, pattern(number, 20_000)).expect("writes");
    }
}

fn holds(grid: &Mounted, number: u64) -> bool {
    let path = grid.data().join(format!("file-{number}"));
    fs::read(path).is_ok_and(|bytes| bytes == pattern(number, 20_000))
}

/// The store of the root fileset.
fn root_store(grid: &Mounted) -> PathBuf {
    grid.root().join("names/00000.redb")
}

/// The store of the fileset `data`.
fn store(grid: &Mounted) -> PathBuf {
    grid.root().join("names/00001.redb")
}

/// The file system is mounted, but the fileset `data` is refused, and only that.
#[track_caller]
fn data_is_refused(grid: &Mounted) {
    grid.mount();
    let refused = fs::read_dir(grid.data()).expect_err("a fileset whose store is damaged");
    assert_eq!(refused.raw_os_error(), Some(libc::EUCLEAN), "{refused}");
    fs::write(grid.mountpoint().join("work/as ever"), b"as ever").expect("others are in use");
    fs::remove_file(grid.mountpoint().join("work/as ever")).expect("removes");
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["fileset data cannot be used", "damaged"]);
    grid.umount();
}

/// The file system refuses to be mounted; what it says.
#[track_caller]
fn refusal(grid: &Mounted) -> String {
    let message = run(&mut grid.mount_command(), LIMIT).refused();
    assert!(grid.daemon().is_none(), "no daemon is left");
    message
}

#[test]
fn a_damaged_store_is_refused_before_it_is_written_to_and_is_repaired_beside_the_old_one() {
    let grid = Mounted::start(Placement::Direct);
    grid.expect_log("a fileset cannot be used");
    grid.expect_log("a request failed");
    fill(&grid, 0, 50);
    grid.umount();
    let good = fs::read(store(&grid)).expect("reads");
    // In the header, and in every page: those in use are found.
    let bytes = [9, 70, 200].into_iter().chain((4096..good.len()).step_by(4096).map(|at| at + 40));
    let mut found = 0;
    for byte in bytes {
        let mut bad = good.clone();
        bad[byte] ^= 1;
        fs::write(store(&grid), &bad).expect("damages");
        if grid.run_on_root(&["fsck"], &[]).code() == 0 {
            continue;
        }
        found += 1;
        if found <= 4 {
            data_is_refused(&grid);
        }
        assert!(fs::read(store(&grid)).expect("reads") == bad, "byte {byte}: it is as it was");
        if found > 4 {
            continue;
        }
        let report = grid.run_on_root(&["fsck"], &["--repair", "--json"]).expect_code(1);
        let kept = json(&report.stdout)["kept_stores"][0].as_str().expect("a name").to_owned();
        assert!(fs::read(&kept).expect("reads") == bad, "byte {byte}: the old one is kept");
        let _ = grid.run_on_root(&["fsck"], &["--repair"]).expect_code(0);
        grid.mount();
        assert!((0..50).all(|number| holds(&grid, number)), "byte {byte}");
        grid.umount();
        grid.is_clean();
    }
    assert!(found > 4, "most pages of a small store are in use");
    fs::write(store(&grid), &good).expect("puts it back");
}

#[test]
fn a_lost_or_cut_store_is_refused_with_what_can_be_done() {
    let grid = Mounted::start(Placement::Direct);
    fill(&grid, 0, 3);
    let backup = grid.outside().join("backup");
    grid.run_on_root(&["store", "backup"], &[text(&backup)]).succeeds();
    grid.umount();
    let good = fs::read(root_store(&grid)).expect("reads");
    for bytes in [&b""[..], &[0; 4096], &good[..good.len() / 2]] {
        fs::write(root_store(&grid), bytes).expect("damages");
        assert_says(&refusal(&grid), &["damaged", "fsck", "store restore"]);
    }
    fs::remove_file(root_store(&grid)).expect("removes");
    assert_says(&refusal(&grid), &["names/00000.redb", "store restore", "objects"]);
    grid.run_on_root(&["store", "restore"], &[text(&backup)]).succeeds();
    grid.mount();
    assert!((0..3).all(|number| holds(&grid, number)));
}

#[test]
fn a_backup_of_a_mounted_file_system_is_restored_and_files_made_later_are_kept() {
    let grid = Mounted::start(Placement::Direct);
    fill(&grid, 0, 20);
    let backup = grid.outside().join("backup");
    let told = grid.run_on_root(&["store", "backup"], &[text(&backup), "--json"]).output();
    assert!(json(&told)["records"].as_u64().is_some_and(|records| records > 40), "{told}");
    assert_says(
        &grid.run_on_root(&["store", "backup"], &[text(&backup)]).refused(),
        &[text(&backup), "exists"],
    );
    fill(&grid, 20, 25);
    fs::remove_file(grid.data().join("file-0")).expect("removes");
    let refused = grid.run_on_root(&["store", "restore"], &[text(&backup)]).refused();
    assert_says(&refused, &[text(&grid.mountpoint())]);
    grid.umount();

    let mut damaged = fs::read(backup.join("00001.redb")).expect("reads");
    let middle = damaged.len() / 2;
    damaged[80] ^= 1;
    damaged[middle] ^= 1;
    let bad = grid.outside().join("bad");
    fs::create_dir(&bad).expect("makes");
    fs::write(bad.join("00001.redb"), &damaged).expect("writes");
    let before = fs::read(store(&grid)).expect("reads");
    assert_says(
        &grid.run_on_root(&["store", "restore"], &[text(&bad)]).refused(),
        &[text(&bad), "damaged"],
    );
    assert!(fs::read(store(&grid)).expect("reads") == before);

    grid.run_on_root(&["store", "restore"], &[text(&backup)]).succeeds();
    let kept = grid.root().join("names/00001.redb.replaced-1");
    assert!(fs::read(kept).expect("kept") == before);
    grid.is_clean();
    grid.mount();
    assert!((1..20).all(|number| holds(&grid, number)));
    let found = fs::read_dir(grid.data().join("lost+found")).expect("lists");
    let found: Vec<Vec<u8>> =
        found.map(|entry| fs::read(entry.expect("lists").path()).expect("reads")).collect();
    assert!((20..25).all(|number| found.contains(&pattern(number, 20_000))), "made later");
    fill(&grid, 30, 40);
    grid.umount();
    grid.is_clean();
    let offline = grid.outside().join("offline");
    let only = ["--fileset", "data"];
    grid.run_on_root(&["store", "backup"], &[&[text(&offline)], &only[..]].concat()).succeeds();
    let copies: Vec<_> =
        fs::read_dir(&offline).expect("lists").map(|it| it.expect("lists")).collect();
    assert_eq!(copies.len(), 1);
    fs::remove_file(store(&grid)).expect("removes");
    assert_says(&grid.run_on_root(&["fsck"], &[]).expect_code(4).stdout, &["data", "missing"]);
    grid.run_on_root(&["store", "restore"], &[&[text(&offline)], &only[..]].concat()).succeeds();
    grid.is_clean();
    grid.mount();
    assert!((30..40).all(|number| holds(&grid, number)));
}

#[test]
fn files_on_a_disk_that_is_not_there_are_refused_and_nothing_is_made_or_lost() {
    let grid = Mounted::start(Placement::Direct);
    grid.expect_log("a disk is not there");
    fill(&grid, 0, 3);
    grid.umount();
    let objects = grid.root().join("disk/objects");
    let aside = grid.root().join("disk/aside");
    fs::rename(&objects, &aside).expect("moves");
    let said = run(&mut grid.mount_command(), LIMIT).expect_code(0).stderr;
    assert_says(&said, &["is not there", text(&grid.root().join("disk")), "cannot be opened"]);
    let path = grid.data().join("file-0");
    assert_eq!(fs::metadata(&path).expect("stats").len(), 20_000, "names are there");
    let refused = fs::read(&path).expect_err("its bytes are not");
    assert_eq!(refused.raw_os_error(), Some(libc::ENXIO), "{refused}");
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["absent", "is not there", text(&grid.root().join("disk"))]);
    grid.umount();
    assert!(!objects.exists(), "it is not made");
    fs::rename(&aside, &objects).expect("moves");
    grid.mount();
    assert!((0..3).all(|number| holds(&grid, number)));
}

#[test]
fn empty_settings_are_refused() {
    let grid = Mounted::start(Placement::Direct);
    grid.umount();
    let settings = grid.root().join("forebay.toml");
    let before = fs::read(&settings).expect("reads");
    for text in ["", "\n \n"] {
        fs::write(&settings, text).expect("writes");
        assert_says(&refusal(&grid), &["forebay.toml", "empty"]);
    }
    fs::write(&settings, "# defaults\n").expect("writes");
    grid.mount();
    grid.umount();
    fs::write(&settings, before).expect("writes");
}

#[test]
fn fsck_status_and_log_name_the_paths_of_what_is_damaged() {
    let grid = Mounted::start(Placement::Direct);
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes");
    let name = folder.join("with\x1b[31mcolour");
    fs::write(&name, pattern(1, 30_000)).expect("writes");
    grid.umount();
    let objects = crate::snapshot(&grid.root().join("disk/objects"));
    let (object, _) = objects.iter().find(|(_, (size, _))| *size == 30_000).expect("the object");
    fs::write(object, "short").expect("damages");
    let people = grid.run_on_root(&["fsck"], &[]).expect_code(4).stdout;
    assert_says(&people, &["/data/folder/with\\u{1b}[31mcolour"]);
    assert!(!people.contains('\x1b'), "nothing that a terminal obeys");
    let report = json(&grid.run_on_root(&["fsck"], &["--json"]).expect_code(4).stdout);
    assert_eq!(report["findings"][0]["path"], "/data/folder/with\\u{1b}[31mcolour");

    grid.mount();
    assert_eq!(fs::metadata(&name).expect("stats").len(), 30_000);
    assert_eq!(fs::read(&name).expect_err("lost bytes").raw_os_error(), Some(libc::EIO));
    grid.expect_log("object has lost bytes");
    let damaged = || {
        let status = json(&grid.run_on_root(&["status"], &["--json"]).output());
        let filesets = status["filesets"].as_array().expect("filesets").clone();
        let data = filesets.into_iter().find(|fileset| fileset["name"] == "data");
        data.expect("data")["damaged"][0]["path"].clone()
    };
    wait_until("status knows the path", Duration::from_secs(60), || !damaged().is_null());
    assert_eq!(damaged(), "/data/folder/with\\u{1b}[31mcolour");
    let people = grid.run_on_root(&["status"], &[]).output();
    assert_says(
        &people,
        &["damaged: /data/folder/with\\u{1b}[31mcolour: an object has lost bytes"],
    );
    assert!(grid.log().contains("/data/folder/with"), "{}", grid.log());
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--repair"]).expect_code(1);
    grid.mount();
    assert_eq!(fs::read(&name).expect("reads"), b"short");
}

//! `forebay fsck`.

use std::fs;
use std::path::PathBuf;

use forebay_e2e::content::pattern;
use forebay_e2e::{Mounted, Placement};

use crate::{assert_says, json, snapshot};

const CLEAN: i32 = 0;
const REPAIRED: i32 = 1;
const LEFT: i32 = 4;

fn filled() -> Mounted {
    let grid = Mounted::start(Placement::Direct);
    for number in 0..20 {
        fs::write(grid.data().join(format!("file-{number}")), pattern(number, 50_000))
            .expect("writes");
    }
    grid.umount();
    grid
}

/// Files of the default disk that hold bytes of files.
fn objects(grid: &Mounted) -> Vec<PathBuf> {
    let all = snapshot(&grid.root().join("disk/objects"));
    all.into_iter().filter(|(_, (length, _))| *length == 50_000).map(|(path, _)| path).collect()
}

#[test]
fn fsck_refuses_a_mounted_file_system() {
    let grid = Mounted::start(Placement::Direct);
    for arguments in [&[][..], &["--repair"], &["--json"]] {
        let ended = grid.run_on_root(&["fsck"], arguments);
        assert!(![CLEAN, REPAIRED, LEFT].contains(&ended.code()), "{ended:#?}");
        assert_says(&ended.refused(), &[grid.mountpoint().to_str().expect("plain path")]);
    }
    assert!(grid.data().is_dir(), "the mount goes on");
}

#[test]
fn fsck_finds_a_fresh_and_a_used_file_system_clean() {
    let fresh = Mounted::make(Placement::Direct);
    let _ = fresh.run_on_root(&["fsck"], &[]).expect_code(CLEAN);
    let used = filled();
    let before = snapshot(used.root());
    let report = json(&used.run_on_root(&["fsck"], &["--json"]).expect_code(CLEAN).stdout);
    assert_eq!(report["findings_total"], 0, "{report:#}");
    assert!(report["counts"]["inodes"].as_u64().is_some_and(|inodes| inodes >= 24), "{report:#}");
    let objects = |files: &std::collections::BTreeMap<PathBuf, _>| {
        files.keys().filter(|path| path.starts_with(used.root().join("disk"))).cloned().collect()
    };
    let (then, now): (Vec<PathBuf>, Vec<PathBuf>) =
        (objects(&before), objects(&snapshot(used.root())));
    assert_eq!(then, now, "a check changes nothing");
}

#[test]
fn fsck_tells_damage_found_left_and_repaired() {
    let grid = filled();
    let victims = objects(&grid);
    assert_eq!(victims.len(), 20, "one object for each file");
    fs::remove_file(&victims[3]).expect("damages the disk");
    fs::write(&victims[7], "short").expect("damages the disk");

    let report = json(&grid.run_on_root(&["fsck"], &["--json"]).expect_code(LEFT).stdout);
    assert!(report["findings_total"].as_u64().is_some_and(|total| total >= 2), "{report:#}");
    let human = grid.run_on_root(&["fsck"], &[]).expect_code(LEFT).stdout;
    assert!(!human.trim().is_empty(), "people are told too");
    let _ = grid.run_on_root(&["fsck"], &["--repair"]).expect_code(REPAIRED);
    let _ = grid.run_on_root(&["fsck"], &[]).expect_code(CLEAN);
    grid.mount();
    let whole = (0..20)
        .filter(|number| {
            fs::read(grid.data().join(format!("file-{number}")))
                .is_ok_and(|bytes| bytes == pattern(*number, 50_000))
        })
        .count();
    assert_eq!(whole, 18, "all others are whole");
}

#[test]
fn fsck_refuses_what_is_no_file_system() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    let ended = grid.run_on_root(&["fsck"], &["--repair"]);
    assert!(![CLEAN, REPAIRED, LEFT].contains(&ended.code()), "{ended:#?}");
    assert_says(&ended.refused(), &[grid.root().to_str().expect("plain path")]);
    assert!(snapshot(grid.root()).is_empty(), "nothing is made");
}

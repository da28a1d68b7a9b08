//! `forebay disk` and `forebay tasks`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_e2e::{Mounted, Placement};
use serde_json::Value;

use crate::{assert_says, json};

/// Longer than any task of a test takes.
const LONG: Duration = Duration::from_secs(120);

fn new_folder(grid: &Mounted, name: &str) -> PathBuf {
    let folder = grid.outside().join(name);
    fs::create_dir(&folder).expect("makes a folder");
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

fn disks(grid: &Mounted) -> Vec<Value> {
    let listed = json(&grid.run_on_root(&["disk", "list"], &["--json"]).output());
    listed.as_array().expect("is a list").clone()
}

/// Pool and use of the disk in a folder, if there is one.
fn disk_in(grid: &Mounted, folder: &Path) -> Option<(String, String)> {
    let word = |disk: &Value, key: &str| disk[key].as_str().expect("is a text").to_owned();
    disks(grid)
        .iter()
        .find(|disk| disk["location"] == text(folder))
        .map(|disk| (word(disk, "pool"), word(disk, "used")))
}

fn is(pool: &str, used: &str) -> Option<(String, String)> {
    Some((pool.to_owned(), used.to_owned()))
}

/// Bytes of all objects of a disk.
fn object_bytes(disk: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders = vec![disk.join("objects")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let about = entry.metadata().expect("stats");
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += about.len();
            }
        }
    }
    bytes
}

fn fill(folder: &Path) {
    for number in 0..40_usize {
        fs::write(folder.join(format!("file-{number}")), vec![number as u8; 5000 + number * 100])
            .expect("writes");
    }
}

fn assert_filled(folder: &Path) {
    for number in 0..40_usize {
        let found = fs::read(folder.join(format!("file-{number}"))).expect("reads");
        assert!(found == vec![number as u8; 5000 + number * 100], "file-{number} has changed");
    }
}

fn drain_under_programs(placement: Placement) {
    let grid = Mounted::start(placement);
    let (first, second) = (grid.root().join("disk"), new_folder(&grid, "second"));
    let data = grid.mountpoint().join("data");
    fill(&data);
    grid.run_on_root(&["disk", "add"], &[text(&second), "--group", "shelf"]).succeeds();
    assert_eq!(disk_in(&grid, &second), is("default", "normal"));
    let again = grid.run_on_root(&["disk", "add"], &[text(&second)]).refused();
    assert_says(&again, &[text(&second)]);

    // A program keeps a file open, and goes on to write it.
    let held = fs::OpenOptions::new().append(true).open(data.join("file-3")).expect("opens");
    let task = json(&grid.run_on_root(&["disk", "drain"], &[text(&first), "--json"]).output());
    let number = task["id"].as_u64().expect("has a number").to_string();
    let begun = Instant::now();
    loop {
        let tasks = json(&grid.run_on_root(&["tasks", "list"], &["--json"]).output());
        let note = tasks[0]["note"].as_str().unwrap_or_default().to_owned();
        if note.contains("file-3") {
            break;
        }
        assert!(begun.elapsed() < LONG, "{tasks}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_says(&grid.run_on_root(&["disk", "remove"], &[text(&first)]).refused(), &["not empty"]);
    std::io::Write::write_all(&mut &held, b"more").expect("writes");
    drop(held);
    loop {
        let tasks = json(&grid.run_on_root(&["tasks", "list"], &["--json"]).output());
        if tasks[0]["state"] == "done" {
            break;
        }
        assert!(begun.elapsed() < LONG, "{tasks}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = grid.run_on_root(&["tasks", "pause"], &[&number]).refused();
    assert_says(&ended, &["has ended"]);
    let mut grown = vec![3; 5300];
    grown.extend_from_slice(b"more");
    assert_eq!(fs::read(data.join("file-3")).expect("reads"), grown);
    fs::write(data.join("file-3"), vec![3; 5300]).expect("writes");
    assert_filled(&data);
    assert_eq!(object_bytes(&first), 0);
    grid.run_on_root(&["disk", "remove"], &[text(&first)]).succeeds();
    assert!(!first.join("forebay-disk.toml").exists(), "the directory is an ordinary one again");
    assert_eq!(disks(&grid).len(), 1);

    grid.remount();
    assert_filled(&data);
    // It can become a disk again, and is another one then.
    grid.run_on_root(&["disk", "add"], &[text(&first), "--pool", "archive"]).succeeds();
    grid.run_on_root(&["fileset", "set"], &["util", "--pool", "archive"]).succeeds();
    fs::write(grid.mountpoint().join("util/cold"), vec![1; 70_000]).expect("writes");
    grid.run_on_root(&["tasks", "list"], &[]).succeeds();
    grid.umount();
    assert_eq!(object_bytes(&first), 70_000);
    grid.is_clean();
}

#[test]
fn a_disk_is_drained_and_removed_under_programs_on_the_direct_path() {
    drain_under_programs(Placement::Direct);
}

#[test]
fn a_disk_is_drained_and_removed_under_programs_on_the_served_path() {
    drain_under_programs(Placement::Served);
}

#[test]
fn disks_are_managed_while_not_mounted() {
    let grid = Mounted::start(Placement::Direct);
    fill(&grid.mountpoint().join("data"));
    grid.umount();
    let (first, second) = (grid.root().join("disk"), new_folder(&grid, "second"));
    fs::write(second.join("something"), "else").expect("writes");
    let occupied = grid.run_on_root(&["disk", "add"], &[text(&second)]).refused();
    assert_says(&occupied, &["something", "empty it"]);
    fs::remove_file(second.join("something")).expect("removes");
    grid.run_on_root(&["disk", "add"], &[text(&second)]).succeeds();
    grid.run_on_root(&["disk", "rebalance"], &["--json"]).succeeds();
    let only = grid.run_on_root(&["disk", "drain"], &[text(&first), "--to", "flash"]).refused();
    assert_says(&only, &["flash", "no other disk"]);
    let task = json(&grid.run_on_root(&["disk", "drain"], &[text(&first), "--json"]).output());
    assert_eq!(task["state"], "done");
    assert_eq!(task["progress"]["files"], 40);
    assert_eq!(disk_in(&grid, &first), is("default", "draining"));
    grid.run_on_root(&["disk", "use"], &[text(&first)]).succeeds();
    assert_eq!(disk_in(&grid, &first), is("default", "normal"));
    grid.run_on_root(&["disk", "drain"], &[text(&first)]).succeeds();
    grid.run_on_root(&["disk", "remove"], &[text(&first)]).succeeds();
    grid.is_clean();
    grid.mount();
    assert_filled(&grid.mountpoint().join("data"));
}

#[test]
fn a_lost_disk_is_given_up_with_a_list_of_its_files() {
    let grid = Mounted::make(Placement::Direct);
    let second = new_folder(&grid, "second");
    grid.run_on_root(&["disk", "add"], &[text(&second), "--pool", "archive"]).succeeds();
    grid.run_on_root(&["fileset", "set"], &["work", "--pool", "archive"]).succeeds();
    grid.mount();
    fill(&grid.mountpoint().join("data"));
    fs::write(grid.mountpoint().join("work/gone"), "bytes").expect("writes");
    let there = grid.run_on_root(&["disk", "remove"], &[text(&second), "--lost"]).refused();
    assert_says(&there, &["is there"]);
    grid.umount();
    fs::remove_dir_all(&second).expect("the disk is lost");
    grid.run_on_root(&["fileset", "set"], &["work", "--pool", "default"]).succeeds();
    let lost = grid.run_on_root(&["disk", "remove"], &[text(&second), "--lost", "--json"]);
    let lost = json(&lost.output());
    assert_eq!(lost["total"], 1);
    assert!(lost["files"][0]["path"].as_str().is_some_and(|path| path.ends_with("work/gone")));
    assert_eq!(disk_in(&grid, &second), is("archive", "lost"));
    grid.mount();
    fs::read(grid.mountpoint().join("work/gone")).expect_err("its bytes are gone");
    assert_filled(&grid.mountpoint().join("data"));
    fs::remove_file(grid.mountpoint().join("work/gone")).expect("removes");
    grid.run_on_root(&["disk", "remove"], &[text(&second)]).succeeds();
    assert_eq!(disks(&grid).len(), 1);
}

//! Copies of files in other failure groups: a group is lost under load, and damaged bytes are repaired.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::content::pattern;
use forebay_e2e::{LoopDisk, Mounted, Placement};
use serde_json::Value;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);
const WRITERS: u64 = 3;
/// Files that each writer has synced before the disk is lost, and again after it.
const FILES: u64 = 25;

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

fn json(grid: &Mounted, verb: &[&str], arguments: &[&str]) -> Value {
    serde_json::from_str(&grid.run_on_root(verb, arguments).output()).expect("is JSON")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn data_of(grid: &Mounted) -> Value {
    let filesets = json(grid, &["fileset", "list"], &["--json"]);
    let found = filesets.as_array().expect("is a list").iter().find(|it| it["name"] == "data");
    found.expect("is listed").clone()
}

fn is_copied(grid: &Mounted) -> bool {
    data_of(grid)["waiting_for_copies"] == 0
}

fn disk_in(grid: &Mounted, folder: &Path) -> Value {
    let disks = json(grid, &["disk", "list"], &["--json"]);
    let found =
        disks.as_array().expect("is a list").iter().find(|it| it["location"] == text(folder));
    found.expect("is listed").clone()
}

/// A directory for a disk on a file system of its own.
fn place_on(disk: &LoopDisk) -> PathBuf {
    let place = disk.path().join("forebay");
    fs::create_dir(&place).expect("makes a directory");
    place
}

fn bytes_of(number: u64) -> Vec<u8> {
    let length = [700, 20_000, 150_000][usize::try_from(number % 3).expect("is small")];
    pattern(number, length)
}

/// Writes files one after the other, syncs each, and notes those that were acknowledged, until told to stop.
fn write_files(
    data: &Path,
    writer: u64,
    acknowledged: &Mutex<BTreeMap<String, u64>>,
    count: &AtomicU64,
    stop: &AtomicBool,
) {
    for number in (0..).map(|round| round * WRITERS + writer) {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let name = format!("file-{number}");
        let written = File::create(data.join(&name)).and_then(|mut file| {
            file.write_all(&bytes_of(number))?;
            file.sync_all()
        });
        // A program that meets an error goes on with its next file.
        if written.is_ok() {
            acknowledged.lock().expect("is not poisoned").insert(name, number);
            count.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Ends the writers, however the test ends.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn a_group_is_lost_under_load(placement: Placement) {
    let (second, third) = (LoopDisk::make("xfs", 512), LoopDisk::make("xfs", 512));
    let grid = Mounted::start(placement);
    let places = [place_on(&second), place_on(&third)];
    for (place, group) in places.iter().zip(["shelf-2", "shelf-3"]) {
        grid.run_on_root(&["disk", "add"], &[text(place), "--group", group]).succeeds();
    }
    grid.run_on_root(&["fileset", "set"], &["data", "--copies", "2"]).succeeds();
    let data = grid.data();
    // Files at rest, which nobody syncs.
    for number in 1000..1030 {
        fs::write(data.join(format!("rest-{number}")), bytes_of(number)).expect("writes");
    }
    wait_until("copying files at rest", || {
        File::open(&data).and_then(|top| top.sync_all()).expect("syncs");
        is_copied(&grid)
    });
    let (acknowledged, stop) = (Mutex::new(BTreeMap::new()), AtomicBool::new(false));
    let counts: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let reached = |least: u64| counts.iter().all(|count| count.load(Ordering::Acquire) >= least);
    for line in
        ["Input/output error", "os error 5", "a disk failed", "a disk fails", "goes on with a copy"]
    {
        grid.expect_log(line);
    }
    for line in [
        "was not removed",
        "could not be written",
        "fewer copies",
        "was given up as lost",
        "not synced",
        "commits",
    ] {
        grid.expect_log(line);
    }
    std::thread::scope(|scope| {
        for (writer, count) in (0..).zip(&counts) {
            let (data, acknowledged, stop) = (&data, &acknowledged, &stop);
            scope.spawn(move || write_files(data, writer, acknowledged, count, stop));
        }
        let _stop = StopAtEnd(&stop);
        wait_until("writing", || reached(FILES));
        let mut shutdown = Command::new("xfs_io");
        shutdown.args(["-x", "-c", "shutdown"]).arg(second.path());
        assert!(shutdown.status().expect("runs xfs_io").success());
        let before = counts.iter().map(|count| count.load(Ordering::Acquire)).max();
        wait_until("writing after the loss", || reached(before.unwrap_or(0) + FILES));
    });
    wait_until("noticing the disk", || {
        disk_in(&grid, &places[0])["advice"].to_string().contains("fails")
    });
    let acknowledged = acknowledged.into_inner().expect("is not poisoned");
    let assert_whole = || {
        for (name, number) in &acknowledged {
            let found = fs::read(data.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == bytes_of(*number), "{name} has changed");
        }
        for number in 1000..1030 {
            let found = fs::read(data.join(format!("rest-{number}"))).expect("reads");
            assert!(found == bytes_of(number), "rest-{number} has changed");
        }
    };
    // Files that were closed just before the loss come back when somebody has said that the disk is lost.
    let lost = json(&grid, &["disk", "remove"], &[text(&places[0]), "--lost", "--json"]);
    assert_eq!(lost["unknown"], Value::Array(Vec::new()));
    assert_whole();
    wait_until("copying again", || is_copied(&grid));
    assert_whole();
    grid.remount();
    wait_until("copying after the mount", || is_copied(&grid));
    assert_whole();
    grid.umount();
    // Each of the others alone has all of it.
    drop(second);
    grid.mount();
    assert_whole();
}

#[test]
fn a_failure_group_is_lost_under_load_on_the_direct_path() {
    a_group_is_lost_under_load(Placement::Direct);
}

#[test]
fn a_failure_group_is_lost_under_load_on_the_served_path() {
    a_group_is_lost_under_load(Placement::Served);
}

/// The files of the objects of a disk, the largest last.
fn objects_of(disk: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![disk.join("objects")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort_by_key(|path| fs::metadata(path).map_or(0, |about| about.len()));
    found
}

#[test]
fn copies_are_made_by_a_command_and_a_scrub_repairs_damaged_bytes() {
    let grid = Mounted::make(Placement::Direct);
    let place = grid.outside().join("second");
    fs::create_dir(&place).expect("makes a directory");
    let few = grid.run_on_root(&["fileset", "set"], &["data", "--copies", "2"]).refused();
    assert!(few.contains("2 failure groups") && few.contains("disk add"), "{few}");
    let _ = grid.run_on_root(&["fileset", "set"], &["data", "--copies", "4"]).refused();
    grid.run_on_root(&["disk", "add"], &[text(&place)]).succeeds();
    grid.mount();
    grid.run_on_root(&["fileset", "create"], &["results", "--copies", "2"]).succeeds();
    grid.run_on_root(&["fileset", "set"], &["data", "--copies", "2"]).succeeds();
    let files: Vec<PathBuf> =
        (0..6).map(|number| grid.data().join(format!("file-{number}"))).collect();
    for (number, file) in (0..).zip(&files) {
        fs::write(file, pattern(number, 100_000)).expect("writes");
        File::open(file).and_then(|file| file.sync_all()).expect("syncs");
    }
    wait_until("copying", || is_copied(&grid));
    assert_eq!(data_of(&grid)["copies"], 2);
    assert_eq!(objects_of(&place).len(), 6);
    let spoilt = objects_of(&place).pop().expect("there is one");
    let mut bytes = fs::read(&spoilt).expect("reads");
    bytes[50_000] ^= 1;
    fs::write(&spoilt, &bytes).expect("writes");
    grid.expect_log("damaged bytes are replaced");
    grid.expect_log("scrubbed");
    grid.expect_log("goes on with a copy");
    let task = json(&grid, &["scrub"], &["--fileset", "data", "--wait", "--json"]);
    assert_eq!(
        (&task["state"], &task["progress"]["files"]),
        (&Value::from("done"), &Value::from(6))
    );
    for (number, file) in (0..).zip(&files) {
        assert!(fs::read(file).expect("reads") == pattern(number, 100_000), "{}", file.display());
    }
    let before = json(&grid, &["scrub"], &["--wait", "--json"]);
    assert_eq!(before["state"], "done");
    for file in &files {
        fs::remove_file(file).expect("removes");
    }
    grid.umount();
    assert!(objects_of(&place).is_empty());
    grid.is_clean();
}

//! `forebay snapshot`.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_e2e::{LoopDisk, Mounted, Placement};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{assert_says, json};

/// Everything below a folder: bytes of files and targets of links by path.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder_now) = folders.pop() {
        for entry in fs::read_dir(&folder_now).expect("lists") {
            let path = entry.expect("lists").path();
            let stat = fs::symlink_metadata(&path).expect("stats");
            let bytes = if stat.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if stat.is_symlink() {
                fs::read_link(&path).expect("reads").into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("reads")
            };
            found.insert(path.strip_prefix(folder).expect("is below").to_path_buf(), bytes);
        }
    }
    found
}

fn create(grid: &Mounted, name: &str) {
    grid.run_on_root(&["snapshot", "create"], &["data", name]).succeeds();
}

fn fill(data: &Path) {
    fs::create_dir_all(data.join("tables/2026")).expect("makes a directory");
    for number in 0..20_u8 {
        let bytes = vec![number; 1000 * usize::from(number)];
        fs::write(data.join(format!("tables/2026/part-{number}")), bytes).expect("writes");
    }
    symlink("tables/2026/part-1", data.join("latest")).expect("links");
    fs::write(data.join("readme"), b"as it was").expect("writes");
}

fn a_day_with_snapshots(grid: &Mounted) {
    let data = grid.data();
    fill(&data);
    let before = contents(&data);
    let made = grid.run_on_root(&["snapshot", "create"], &["data", "monday", "--json"]).output();
    let made = json(&made);
    assert_eq!((made["name"].as_str(), made["inodes"].as_u64()), (Some("monday"), Some(25)));
    let monday = data.join(".snapshots/monday");
    assert_eq!(contents(&monday), before);
    assert_eq!(fs::metadata(monday.join("readme")).expect("stats").size(), 9);

    fs::write(data.join("readme"), b"rewritten").expect("writes");
    let part = OpenOptions::new().write(true).open(data.join("tables/2026/part-9"));
    part.expect("opens").write_all_at(b"in the middle", 4000).expect("writes");
    fs::remove_file(data.join("tables/2026/part-3")).expect("removes");
    fs::rename(data.join("tables/2026"), data.join("tables/archive")).expect("renames");
    OpenOptions::new()
        .append(true)
        .open(data.join("tables/archive/part-5"))
        .expect("opens")
        .write_all(b"more")
        .expect("appends");
    assert_eq!(contents(&monday), before, "whatever happens to the files");
    let refused = fs::write(monday.join("readme"), b"x").expect_err("is read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(
        fs::read_dir(&data)
            .expect("lists")
            .all(|entry| entry.expect("lists").file_name() != ".snapshots")
    );

    let diff = grid.run_on_root(&["snapshot", "diff"], &["data", "monday"]).output();
    assert_says(
        &diff,
        &[
            "modified   readme",
            "removed    tables/2026/part-3",
            "renamed    tables/2026 -> tables/archive",
            "modified   tables/archive/part-9",
            "modified   tables/archive/part-5",
        ],
    );
    let after = contents(&data);
    create(grid, "tuesday");
    let none = grid.run_on_root(&["snapshot", "diff"], &["data", "tuesday", "--json"]).output();
    assert_eq!(json(&none)["total"].as_u64(), Some(0), "{none}");
    // A file comes back as people bring it back.
    fs::copy(monday.join("tables/2026/part-3"), data.join("part-3")).expect("copies");
    assert_eq!(
        fs::read(data.join("part-3")).expect("reads"),
        before[Path::new("tables/2026/part-3")]
    );
    let names = |shown: &str| -> Vec<String> {
        let list = json(shown);
        let name = |one: &serde_json::Value| one["name"].as_str().expect("has a name").to_owned();
        list.as_array().expect("is a list").iter().map(name).collect()
    };
    let listed = grid.run_on_root(&["snapshot", "list"], &["--json"]).output();
    assert_eq!(names(&listed), ["monday", "tuesday"]);
    assert_says(
        &grid.run_on_root(&["snapshot", "list"], &["data"]).output(),
        &["FILESET", "monday", "ready"],
    );
    let taken = grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).refused();
    assert_says(&taken, &["monday", "already"]);
    let removed = grid.run_on_root(&["fileset", "remove"], &["data"]).refused();
    assert_says(&removed, &["data", "has snapshots"]);

    grid.remount();
    assert_eq!(
        (contents(&monday), contents(&data.join(".snapshots/tuesday"))),
        (before, after.clone())
    );
    grid.kill();
    grid.mount();
    let reader = File::open(monday.join("readme")).expect("opens");
    let deleted = grid.run_on_root(&["snapshot", "delete"], &["data", "monday", "--json"]).output();
    assert!(json(&deleted)["objects"].as_u64().expect("is a number") >= 4, "{deleted}");
    assert!(!monday.exists());
    drop(reader);
    let gone = grid.run_on_root(&["snapshot", "delete"], &["data", "monday"]).refused();
    assert_says(&gone, &["no snapshot", "monday", "tuesday"]);
    assert_eq!(contents(&data.join(".snapshots/tuesday")), after);
    grid.umount();
    grid.is_clean();
    // Without a mount, too.
    grid.run_on_root(&["snapshot", "delete"], &["data", "tuesday"]).succeeds();
    create(grid, "last");
    grid.is_clean();
    grid.run_on_root(&["snapshot", "delete"], &["data", "last"]).succeeds();
    grid.is_clean();
}

#[test]
fn a_fileset_is_kept_read_and_deleted_on_the_direct_path() {
    a_day_with_snapshots(&Mounted::start(Placement::Direct));
}

#[test]
fn a_fileset_is_kept_read_and_deleted_on_the_served_path() {
    a_day_with_snapshots(&Mounted::start(Placement::Served));
}

#[test]
fn a_fileset_is_kept_read_and_deleted_on_a_disk_that_shares_blocks() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_in(disk.path().as_path(), Placement::Direct);
    grid.mount();
    a_day_with_snapshots(&grid);
}

/// A shared writable mapping of a file.
struct Mapping(*mut u8, usize);

// SAFETY: it is memory that belongs to the test.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, length: usize) -> Mapping {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) };
        Mapping(start.expect("maps").cast(), length)
    }

    fn set(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { munmap(self.0.cast(), self.1) }.expect("unmaps");
    }
}

#[test]
fn a_mapping_without_a_descriptor_does_not_change_a_snapshot() {
    let grid = Mounted::start(Placement::Direct);
    let path = grid.data().join("mapped");
    fs::write(&path, vec![1; 65536]).expect("writes");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("opens");
    let mapping = Mapping::of(&file, 65536);
    drop(file);
    mapping.set(10, 7);
    create(&grid, "one");
    mapping.set(20, 9);
    mapping.set(10, 9);
    let kept = fs::read(grid.data().join(".snapshots/one/mapped")).expect("reads");
    assert_eq!((kept[10], kept[20]), (7, 1));
    // An open for writing keeps the file's object: the mapping stays part of the file.
    let again = OpenOptions::new().write(true).open(&path).expect("opens");
    again.write_all_at(b"x", 30).expect("writes");
    let mut byte = [0];
    File::open(&path).expect("opens").read_exact_at(&mut byte, 20).expect("reads");
    assert_eq!(byte, [9]);
    create(&grid, "two");
    mapping.set(40, 5);
    let kept = fs::read(grid.data().join(".snapshots/two/mapped")).expect("reads");
    assert_eq!((kept[20], kept[30], kept[40]), (9, b'x', 1));
    drop((mapping, again));
    grid.umount();
    grid.is_clean();
}

#[test]
fn snapshots_of_files_that_are_written_all_the_time_hold_a_prefix_and_never_change() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (data, stop) = (&data, &stop);
            scope.spawn(move || {
                let mut log = File::create(data.join(format!("log-{writer}"))).expect("creates");
                for number in 0..u64::MAX {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    log.write_all(&number.to_le_bytes()).expect("writes");
                    let path = data.join(format!("file-{writer}-{}", number % 7));
                    fs::write(&path, number.to_le_bytes()).expect("writes");
                    if number % 5 == 0 {
                        fs::remove_file(&path).expect("removes");
                    }
                }
            });
        }
        let mut kept = Vec::new();
        for number in 0..5 {
            let name = format!("under-load-{number}");
            create(&grid, &name);
            let folder = data.join(".snapshots").join(&name);
            kept.push((folder.clone(), contents(&folder)));
        }
        for (folder, then) in &kept {
            assert_eq!(&contents(folder), then, "{}", folder.display());
            for (path, bytes) in then {
                let is_log = path.to_string_lossy().starts_with("log-");
                let whole = if is_log { bytes.as_slice() } else { &[] };
                for (at, number) in (0_u64..).zip(whole.as_chunks::<8>().0) {
                    assert_eq!(
                        u64::from_le_bytes(*number),
                        at,
                        "{} in {}",
                        path.display(),
                        folder.display()
                    );
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for number in [2, 0, 4, 1, 3] {
        let name = format!("under-load-{number}");
        grid.run_on_root(&["snapshot", "delete"], &["data", &name]).succeeds();
    }
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_daemon_that_dies_while_a_snapshot_is_made_or_deleted_leaves_it_whole_or_not_at_all() {
    let grid = Mounted::make(Placement::Direct);
    grid.mount();
    let data = grid.data();
    fill(&data);
    let before = contents(&data);
    create(&grid, "kept");
    fs::write(data.join("readme"), b"later").expect("writes");
    fs::remove_file(data.join("tables/2026/part-7")).expect("removes");
    let after = contents(&data);
    File::open(&data).and_then(|data| data.sync_all()).expect("syncs");
    grid.umount();
    let points = [("snapshot.begun", false), ("snapshot.frozen", false), ("snapshot.made", true)];
    for (point, is_made) in points {
        grid.mount_to_fail(point, 0).succeeds();
        let _ = grid.run_on_root(&["snapshot", "create"], &["data", "new"]).refused();
        grid.detach();
        grid.mount();
        let new = data.join(".snapshots/new");
        assert_eq!(new.exists(), is_made, "{point}");
        assert_eq!(
            (contents(&data.join(".snapshots/kept")), contents(&data)),
            (before.clone(), after.clone())
        );
        if is_made {
            assert_eq!(contents(&new), after);
        }
        grid.umount();
        grid.is_clean();
    }
    for point in ["snapshot.removing", "snapshot.emptied", "snapshot.unfrozen"] {
        grid.mount_to_fail(point, 0).succeeds();
        let _ = grid.run_on_root(&["snapshot", "delete"], &["data", "kept"]).refused();
        grid.detach();
        grid.mount();
        assert_eq!(contents(&data), after);
        // It is finished in the background.
        grid.umount();
        grid.is_clean();
        grid.mount();
        assert!(!data.join(".snapshots/kept").exists(), "{point}");
        assert_eq!(contents(&data.join(".snapshots/new")), after);
        create(&grid, "kept");
        fs::write(data.join("readme"), point).expect("writes");
        fs::write(data.join("readme"), b"later").expect("writes");
        File::open(&data).and_then(|data| data.sync_all()).expect("syncs");
        grid.umount();
    }
}

#[test]
fn a_rotation_keeps_as_many_snapshots_of_its_prefix_as_it_is_told() {
    let grid = Mounted::start(Placement::Direct);
    create(&grid, "by-hand");
    fs::write(grid.data().join("file"), b"bytes").expect("writes");
    let rotate = |arguments: &[&str]| {
        let all = [&["data", "--prefix", "hourly-"], arguments].concat();
        grid.run_on_root(&["snapshot", "rotate"], &all)
    };
    let names = || -> Vec<String> {
        let listed = json(&grid.run_on_root(&["snapshot", "list"], &["data", "--json"]).output());
        let name = |one: &serde_json::Value| one["name"].as_str().expect("has a name").to_owned();
        listed.as_array().expect("is a list").iter().map(name).collect()
    };
    let mut made = Vec::new();
    while made.len() < 3 {
        // Two of the same second would have the same name.
        let said = rotate(&["--keep", "2", "--json"]);
        if said.code() == 0 {
            let said = json(&said.output());
            made.push(said["created"]["name"].as_str().expect("has a name").to_owned());
        } else {
            assert_says(&said.refused(), &["already"]);
        }
    }
    assert_eq!(names(), ["by-hand", made[1].as_str(), made[2].as_str()]);
    assert!(made[0].starts_with("hourly-20") && made[0].ends_with('Z'), "{made:?}");
    assert_says(&rotate(&["--keep", "0"]).refused(), &["--keep", "1..=1024"]);
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_file_in_a_snapshot_is_read_by_parts_and_by_many() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(data.join("large"), &bytes).expect("writes");
    create(&grid, "one");
    fs::write(data.join("large"), b"gone").expect("writes");
    let path = data.join(".snapshots/one/large");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut file = File::open(&path).expect("opens");
                let mut read = Vec::new();
                file.read_to_end(&mut read).expect("reads");
                assert!(read == bytes);
            });
        }
    });
    let mut part = [0; 10];
    File::open(&path).expect("opens").read_exact_at(&mut part, 2_000_000).expect("reads");
    assert_eq!(part, bytes[2_000_000..2_000_010]);
    grid.umount();
    grid.is_clean();
}

#[test]
fn times_in_a_snapshot_stay_when_the_file_is_written() {
    for placement in [Placement::Direct, Placement::Served] {
        let grid = Mounted::start(placement);
        let path = grid.data().join("file");
        fs::write(&path, b"bytes").expect("writes");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
        let times = FileTimes::new().set_modified(long_ago);
        File::open(&path).expect("opens").set_times(times).expect("sets the time");
        create(&grid, "one");
        fs::write(&path, b"other bytes").expect("writes");
        create(&grid, "two");
        fs::write(&path, b"more").expect("writes");
        let seen = || {
            let stat = fs::metadata(grid.data().join(".snapshots/one/file")).expect("stats");
            (stat.modified().expect("has a time"), stat.size())
        };
        assert_eq!(seen(), (long_ago, 5));
        grid.remount();
        assert_eq!(seen(), (long_ago, 5));
        grid.umount();
        grid.is_clean();
    }
}

#[test]
fn space_shows_what_deleting_each_snapshot_would_give_back() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let space = || -> serde_json::Value {
        json(&grid.run_on_root(&["space"], &["--snapshots", "--json"]).output())
    };
    assert_eq!(space(), serde_json::json!([]));
    for name in ["removed", "rewritten", "stays", "shared"] {
        fs::write(data.join(name), vec![1; 1 << 20]).expect("writes");
    }
    create(&grid, "one");
    let objects = |of: &serde_json::Value| of["objects"].as_u64().expect("is a number");
    let first = space();
    assert_eq!(objects(&first[0]["all"]), 0, "an unchanged fileset takes nothing: {first}");
    fs::remove_file(data.join("removed")).expect("removes");
    fs::write(data.join("rewritten"), b"other").expect("writes");
    create(&grid, "two");
    // Both snapshots have it, and the fileset does not.
    fs::remove_file(data.join("shared")).expect("removes");
    let found = space();
    let of_one = &found[0]["snapshots"][0]["freed"];
    assert_eq!((objects(of_one), objects(&found[0]["snapshots"][1]["freed"])), (2, 0), "{found}");
    assert!(of_one["bytes"].as_u64().is_some_and(|bytes| bytes >= 2 << 20), "{found}");
    assert_eq!(objects(&found[0]["all"]), 3, "{found}");
    let shown = grid.run_on_root(&["space"], &["--snapshots", "--fileset", "data"]).output();
    assert_says(&shown, &["SNAPSHOT", "FREED", "one", "two", "(all of them)"]);
    // It is what deleting gives back.
    let deleted = grid.run_on_root(&["snapshot", "delete"], &["data", "one", "--json"]).output();
    assert_eq!(json(&deleted)["objects"].as_u64(), Some(2));
    assert_eq!(objects(&space()[0]["snapshots"][0]["freed"]), 1);
    let deleted = grid.run_on_root(&["snapshot", "delete"], &["data", "two", "--json"]).output();
    assert_eq!(json(&deleted)["objects"].as_u64(), Some(1));
    grid.umount();
    grid.is_clean();
}

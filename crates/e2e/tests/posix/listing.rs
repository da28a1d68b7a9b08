//! Listings, which the kernel keeps: they must never be old.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_e2e::{Mounted, on_every_way, on_native, seed};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::{CWD, Dir, RenameFlags, renameat_with};

on_every_way!(
    a_listing_is_never_old,
    a_listing_that_was_left_in_the_middle_is_never_old,
    a_directory_that_was_moved_lists_its_new_parent,
    a_repeated_listing_takes_no_request,
    a_new_fileset_is_listed_at_once,
);

on_native!(a_listing_is_never_old, a_listing_that_was_left_in_the_middle_is_never_old);

/// Names of a stream from where it is, without `.` and `..`.
fn rest(stream: &mut Dir) -> BTreeSet<String> {
    std::iter::from_fn(|| stream.read())
        .map(|entry| entry.expect("lists").file_name().to_string_lossy().into_owned())
        .filter(|name| name != "." && name != "..")
        .collect()
}

fn stream(folder: &Path) -> Dir {
    Dir::new(File::open(folder).expect("opens a directory")).expect("lists")
}

/// Two directories and what must be in them.
struct Pair {
    folders: [PathBuf; 2],
    names: [BTreeSet<String>; 2],
}

impl Pair {
    /// Changes something in one of them, or in both.
    fn change(&mut self, random: &mut StdRng) {
        let (at, other) = if random.random() { (0, 1) } else { (1, 0) };
        let name = format!("n{}", random.random_range(0..40));
        let new = format!("n{}", random.random_range(0..40));
        let path = self.folders[at].join(&name);
        let new_path = self.folders[other].join(&new);
        match random.random_range(0..7) {
            0 | 1 => {
                fs::write(&path, b"").expect("writes");
                self.names[at].insert(name);
            }
            2 => {
                if fs::remove_file(&path).is_ok() {
                    assert!(self.names[at].remove(&name), "{name} was not there");
                }
            }
            3 => {
                // A rename of one name of a file to another of its names does nothing.
                let number = |path: &Path| fs::symlink_metadata(path).ok().map(|seen| seen.ino());
                let is_one_file = number(&path) == number(&new_path);
                if !is_one_file && fs::rename(&path, &new_path).is_ok() {
                    self.names[at].remove(&name);
                    self.names[other].insert(new);
                }
            }
            4 => {
                // Both stay, and name each other's file.
                let _ = renameat_with(CWD, &path, CWD, &new_path, RenameFlags::EXCHANGE);
            }
            5 => {
                if fs::hard_link(&path, &new_path).is_ok() {
                    self.names[other].insert(new);
                }
            }
            _ => {
                let link = format!("l{}", random.random_range(0..10));
                if std::os::unix::fs::symlink("anywhere", self.folders[at].join(&link)).is_ok() {
                    self.names[at].insert(link);
                }
            }
        }
    }
}

fn pair(grid: &Mounted) -> Pair {
    let folders = ["one", "other"].map(|name| grid.work().join(name));
    for folder in &folders {
        fs::create_dir(folder).expect("makes a directory");
    }
    Pair { folders, names: Default::default() }
}

fn a_listing_is_never_old(grid: &Mounted) {
    let mut random = StdRng::seed_from_u64(seed("posix"));
    let mut pair = pair(grid);
    let mut streams = pair.folders.each_ref().map(|folder| stream(folder));
    for step in 0..600 {
        for _ in 0..random.random_range(0..4) {
            pair.change(&mut random);
        }
        for (at, open) in streams.iter_mut().enumerate() {
            assert_eq!(rest(&mut stream(&pair.folders[at])), pair.names[at], "step {step}");
            open.rewind();
            assert_eq!(rest(open), pair.names[at], "step {step}, a stream that stayed open");
        }
    }
}

fn a_listing_that_was_left_in_the_middle_is_never_old(grid: &Mounted) {
    let mut random = StdRng::seed_from_u64(seed("posix"));
    let mut pair = pair(grid);
    for number in 0..3000 {
        let name = format!("lasting-{number}");
        fs::write(pair.folders[0].join(&name), b"").expect("writes");
        pair.names[0].insert(name);
    }
    for step in 0..60 {
        // Somebody begins to list, changes come, somebody else lists while he goes on.
        let mut left = stream(&pair.folders[0]);
        let mut begun = BTreeSet::new();
        for _ in 0..random.random_range(1..2500) {
            let Some(entry) = left.read() else { break };
            begun.insert(entry.expect("lists").file_name().to_string_lossy().into_owned());
        }
        for _ in 0..random.random_range(0..3) {
            pair.change(&mut random);
        }
        assert_eq!(rest(&mut stream(&pair.folders[0])), pair.names[0], "step {step}");
        if random.random() {
            begun.extend(rest(&mut left));
            for name in pair.names[0].iter().filter(|name| name.starts_with("lasting")) {
                assert!(begun.contains(name), "step {step}: {name} is missing");
            }
        }
        assert_eq!(rest(&mut stream(&pair.folders[0])), pair.names[0], "step {step}");
    }
}

fn a_directory_that_was_moved_lists_its_new_parent(grid: &Mounted) {
    const LIMIT: Duration = Duration::from_secs(60);
    let top = grid.data();
    for folder in ["one", "other", "one/moved"] {
        fs::create_dir(top.join(folder)).expect("makes a directory");
    }
    let number = |folder: &str| rustix::fs::stat(top.join(folder)).expect("stats").st_ino;
    let parent_in_listing = |folder: &str| {
        let mut stream = stream(&top.join(folder));
        let mut entries = std::iter::from_fn(|| stream.read()).map(|entry| entry.expect("lists"));
        entries.find(|entry| entry.file_name() == c"..").expect("every directory has one").ino()
    };
    for (from, to) in [("one", "other"), ("other", "one"), ("one", "other")] {
        // The first listing has the kernel keep it.
        for _ in 0..2 {
            assert_eq!(parent_in_listing(&format!("{from}/moved")), number(from));
        }
        fs::rename(top.join(from).join("moved"), top.join(to).join("moved")).expect("renames");
        // The kernel is told right after the answer.
        let start = Instant::now();
        while parent_in_listing(&format!("{to}/moved")) != number(to) {
            assert!(start.elapsed() < LIMIT, "the listing names its former parent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Requests of the kernel about directories and attributes since the mount.
fn requests(grid: &Mounted) -> BTreeMap<String, u64> {
    let mountpoint = grid.mountpoint();
    let stat = grid.run(&["stat".as_ref(), mountpoint.as_os_str(), "--json".as_ref()]).output();
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    let all = stat["requests"].as_object().expect("requests by kind");
    let count = |count: &serde_json::Value| count.as_u64().expect("a number");
    all.iter().map(|(kind, number)| (kind.clone(), count(number))).collect()
}

fn a_repeated_listing_takes_no_request(grid: &Mounted) {
    let folder = grid.work().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    for number in 0..500 {
        fs::write(folder.join(format!("file-{number}")), b"").expect("writes");
    }
    let list = || {
        let listed = fs::read_dir(&folder).expect("lists");
        let names: BTreeSet<_> = listed.map(|entry| entry.expect("lists").file_name()).collect();
        assert_eq!(names.len(), 500);
    };
    list();
    // The first one changes the time of access, which is asked for once.
    list();
    let before = requests(grid);
    for _ in 0..20 {
        list();
    }
    let after = requests(grid);
    for kind in ["OPENDIR", "READDIR", "READDIRPLUS", "RELEASEDIR"] {
        assert_eq!(before.get(kind), after.get(kind), "{kind}: {before:?} {after:?}");
    }
    assert_eq!(after.get("RELEASEDIR"), None);
    assert!(after.get("OPENDIR").is_none_or(|count| *count == 1), "{after:?}");
}

fn a_new_fileset_is_listed_at_once(grid: &Mounted) {
    let top = grid.mountpoint();
    let mut open = stream(&top);
    let mut before = rest(&mut open);
    assert_eq!(rest(&mut stream(&top)), before);
    for name in ["first", "second"] {
        grid.run_on_root(&["fileset", "create"], &[name]).succeeds();
        before.insert(name.to_owned());
        open.rewind();
        assert_eq!(rest(&mut open), before, "a stream that stayed open");
        assert_eq!(rest(&mut stream(&top)), before);
    }
    grid.run_on_root(&["fileset", "remove"], &["first"]).succeeds();
    before.remove("first");
    open.rewind();
    assert_eq!(rest(&mut open), before, "a stream that stayed open");
    assert_eq!(rest(&mut stream(&top)), before);
}

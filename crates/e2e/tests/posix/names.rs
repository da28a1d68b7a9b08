//! Names and directories.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_e2e::{Mounted, on_every_way, on_native};
use rustix::fs::{CWD, Dir, FileType, Mode, mknodat};
use rustix::io::Errno;

on_every_way!(
    names_are_any_255_bytes,
    a_listing_names_every_lasting_entry_exactly_once,
    a_directory_position_stays_valid_while_entries_go,
    a_listing_tells_kinds_and_inode_numbers,
    deep_trees_and_long_symbolic_links_work,
);

on_native!(
    names_are_any_255_bytes,
    a_listing_names_every_lasting_entry_exactly_once,
    a_directory_position_stays_valid_while_entries_go,
    a_listing_tells_kinds_and_inode_numbers,
    deep_trees_and_long_symbolic_links_work,
);

/// Makes an empty file, with one request.
fn touch(path: &Path) -> rustix::io::Result<()> {
    mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
}

/// Names that programs rarely make, all valid.
fn odd_names() -> Vec<OsString> {
    let mut names: Vec<Vec<u8>> =
        (1..=255).filter(|byte| ![b'/', b'.'].contains(byte)).map(|byte| vec![byte]).collect();
    names.extend((1..=255).filter(|byte| *byte != b'/').map(|byte| vec![byte; 255]));
    names.push(b"...".to_vec());
    names.push(b" leading and trailing ".to_vec());
    names.push(b"-rf".to_vec());
    names.push("Köln \u{1f600} \u{202e}".as_bytes().to_vec());
    // Composed and decomposed forms are different names.
    names.push("\u{e9}".as_bytes().to_vec());
    names.push("e\u{301}".as_bytes().to_vec());
    names.into_iter().map(OsString::from_vec).collect()
}

fn names_are_any_255_bytes(grid: &Mounted) {
    let folder = grid.data().join("odd");
    fs::create_dir(&folder).expect("makes a directory");
    let names: BTreeSet<OsString> = odd_names().into_iter().collect();
    for name in &names {
        fs::write(folder.join(name), name.as_bytes())
            .unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    let too_long = folder.join(OsStr::from_bytes(&[b'x'; 256]));
    assert_eq!(touch(&too_long), Err(Errno::NAMETOOLONG));
    let found = |folder: &Path| -> BTreeSet<OsString> {
        fs::read_dir(folder)
            .expect("lists")
            .map(|entry| entry.expect("lists").file_name())
            .collect()
    };
    assert_eq!(found(&folder), names);
    grid.remount();
    assert_eq!(found(&folder), names);
    for name in &names {
        assert_eq!(fs::read(folder.join(name)).expect("reads"), name.as_bytes(), "{name:?}");
        fs::remove_file(folder.join(name)).expect("removes");
    }
    fs::remove_dir(&folder).expect("the directory is empty");
}

const LASTING: u32 = 100_000;

fn a_listing_names_every_lasting_entry_exactly_once(grid: &Mounted) {
    let folder = grid.work().join("large");
    fs::create_dir(&folder).expect("makes a directory");
    for number in 0..LASTING {
        touch(&folder.join(format!("lasting-{number}"))).expect("makes an entry");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| come_and_go(&folder, &stop));
        for _ in 0..3 {
            let seen = list(&folder);
            for number in 0..LASTING {
                let name = format!("lasting-{number}");
                assert_eq!(seen.get(name.as_str()), Some(&1), "{name}");
            }
            let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).take(5).collect();
            assert!(twice.is_empty(), "listed more than once: {twice:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Makes, renames and removes other entries until told to stop.
fn come_and_go(folder: &Path, stop: &AtomicBool) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let name = folder.join(format!("passing-{number}"));
        touch(&name).expect("makes an entry");
        if number.is_multiple_of(3) {
            let renamed = folder.join(format!("renamed-{number}"));
            fs::rename(&name, &renamed).expect("renames");
            fs::remove_file(&renamed).expect("removes");
        } else if number > 50 {
            let _ = fs::remove_file(folder.join(format!("passing-{}", number - 50)));
        }
        number += 1;
    }
}

/// Every name in a directory with the number of times it is listed, in many small reads.
fn list(folder: &Path) -> BTreeMap<String, u32> {
    let handle = File::open(folder).expect("opens a directory");
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = rustix::fs::RawDir::new(handle, buffer.spare_capacity_mut());
    let mut seen = BTreeMap::new();
    while let Some(entry) = entries.next() {
        let name = entry.expect("lists").file_name().to_string_lossy().into_owned();
        *seen.entry(name).or_insert(0) += 1;
    }
    seen
}

fn a_directory_position_stays_valid_while_entries_go(grid: &Mounted) {
    const ENTRIES: usize = 3000;
    let folder = grid.work().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    for number in 0..ENTRIES {
        touch(&folder.join(format!("entry-{number}"))).expect("makes an entry");
    }
    let mut directory = Dir::new(File::open(&folder).expect("opens")).expect("lists");
    let listed: Vec<(OsString, i64)> = std::iter::from_fn(|| directory.read())
        .map(|entry| entry.expect("lists"))
        .map(|entry| (name_of(entry.file_name()), entry.offset()))
        .collect();
    assert_eq!(listed.len(), ENTRIES + 2, "with . and ..");

    // A position behind an entry leads to the entry after it.
    for at in [0, 1, 7, 1000, 1001, 2500] {
        directory.seek(listed[at].1).expect("seeks");
        let next = directory.read().expect("an entry").expect("lists");
        assert_eq!(name_of(next.file_name()), listed[at + 1].0, "behind entry {at}");
    }

    // It still does when the entries up to it are gone.
    for (name, _) in &listed[..1001] {
        if name != "." && name != ".." {
            fs::remove_file(folder.join(name)).expect("removes");
        }
    }
    directory.seek(listed[1000].1).expect("seeks");
    let rest: Vec<OsString> = std::iter::from_fn(|| directory.read())
        .map(|entry| name_of(entry.expect("lists").file_name()))
        .collect();
    let expected: Vec<OsString> = listed[1001..].iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(rest, expected);
}

fn name_of(name: &CStr) -> OsString {
    OsStr::from_bytes(name.to_bytes()).to_owned()
}

fn a_listing_tells_kinds_and_inode_numbers(grid: &Mounted) {
    let folder = grid.data().join("kinds");
    fs::create_dir(&folder).expect("makes a directory");
    fs::create_dir(folder.join("directory")).expect("makes a directory");
    fs::write(folder.join("file"), "").expect("writes");
    std::os::unix::fs::symlink("file", folder.join("link")).expect("links");
    let mode = Mode::from_raw_mode(0o600);
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("characters", FileType::CharacterDevice),
        ("blocks", FileType::BlockDevice),
    ] {
        mknodat(CWD, folder.join(name), kind, mode, rustix::fs::makedev(1, 3)).expect(name);
    }
    for remounted in [false, true] {
        if remounted {
            grid.remount();
        }
        let mut directory = Dir::new(File::open(&folder).expect("opens")).expect("lists");
        let mut count = 0;
        while let Some(entry) = directory.read() {
            let entry = entry.expect("lists");
            let name = name_of(entry.file_name());
            let stat = rustix::fs::lstat(folder.join(&name)).expect("stats");
            assert_eq!(entry.file_type(), FileType::from_raw_mode(stat.st_mode), "{name:?}");
            assert_eq!(entry.ino(), stat.st_ino, "{name:?}");
            count += 1;
        }
        assert_eq!(count, 7 + 2);
    }
    let device = fs::symlink_metadata(folder.join("characters")).expect("stats").rdev();
    assert_eq!(device, rustix::fs::makedev(1, 3));
    assert_eq!(fs::metadata(&folder).expect("stats").nlink(), 3, "itself, its entry, one child");
}

fn deep_trees_and_long_symbolic_links_work(grid: &Mounted) {
    let mut path = grid.work();
    for _ in 0..200 {
        path.push("level");
    }
    fs::create_dir_all(&path).expect("makes a deep tree");
    fs::write(path.join("file"), "deep").expect("writes");
    let target = format!("{}x", "y/".repeat(2000));
    std::os::unix::fs::symlink(&target, path.join("link")).expect("links");
    grid.remount();
    assert_eq!(fs::read(path.join("file")).expect("reads"), b"deep");
    assert_eq!(fs::read_link(path.join("link")).expect("reads"), Path::new(&target));
    fs::remove_dir_all(grid.work().join("level")).expect("removes the tree");
}

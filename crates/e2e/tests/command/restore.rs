//! `forebay snapshot restore`.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_e2e::actor::User;
use forebay_e2e::command::Ended;
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::{Mounted, Placement, as_user, run, wait_until};
use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};

use crate::{assert_says, json};

const LIMIT: Duration = Duration::from_secs(120);
const USER: u32 = 4321;

/// What shows whether a file or directory is the same: bytes or target, attributes, and which names are one file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    path: PathBuf,
    content: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    xattrs: Vec<(String, Vec<u8>)>,
    names: u64,
    first_name: Option<PathBuf>,
}

fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut list = vec![0_u8; 4096];
    let length = listxattr(path, &mut list[..]).expect("lists");
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let name = String::from_utf8(name.to_vec()).expect("is text");
        let mut value = vec![0_u8; 4096];
        let length = getxattr(path, name.as_str(), &mut value[..]).expect("reads");
        value.truncate(length);
        (name, value)
    };
    let mut all: Vec<_> = names.map(value).collect();
    all.sort();
    all
}

fn tree(top: &Path) -> Vec<Seen> {
    let mut paths = vec![];
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("lists") {
            let path = entry.expect("lists").path();
            if fs::symlink_metadata(&path).expect("stats").is_dir() {
                folders.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    let mut first = std::collections::HashMap::new();
    let look = |path: PathBuf| {
        let stat = fs::symlink_metadata(&path).expect("stats");
        let within = path.strip_prefix(top).expect("is below").to_path_buf();
        let several = !stat.is_dir() && stat.nlink() > 1;
        let first_name =
            several.then(|| first.entry(stat.ino()).or_insert_with(|| within.clone()).clone());
        let content = if stat.is_symlink() {
            fs::read_link(&path).expect("reads").into_os_string().into_encoded_bytes()
        } else if stat.is_file() {
            fs::read(&path).expect("reads")
        } else {
            Vec::new()
        };
        let xattrs = if stat.is_symlink() { Vec::new() } else { xattrs(&path) };
        Seen {
            path: within,
            content,
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            modified: (stat.mtime(), stat.mtime_nsec()),
            xattrs,
            names: if stat.is_dir() { 0 } else { stat.nlink() },
            first_name,
        }
    };
    paths.into_iter().map(look).collect()
}

/// An ACL in the form of the kernel (acl(5)): the owner and user 99 may read and write, nobody else may do anything.
fn acl() -> Vec<u8> {
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let nobody = u32::MAX;
    let entries = [(1, 6, nobody), (2, 6, 99), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)];
    let mut all = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        all.extend(entry(tag, rights, id));
    }
    all
}

fn fill(data: &Path) {
    let year = data.join("tables/2026");
    fs::create_dir_all(&year).expect("makes a directory");
    for number in 0..200_u32 {
        fs::write(year.join(format!("part-{number}")), number.to_le_bytes().repeat(500))
            .expect("writes");
    }
    fs::hard_link(year.join("part-7"), data.join("seven")).expect("links");
    fs::hard_link(year.join("part-7"), year.join("also-seven")).expect("links");
    symlink("tables/2026/part-1", data.join("latest")).expect("links");
    let sparse = File::create(data.join("sparse")).expect("creates");
    sparse.write_all_at(b"beginning", 0).expect("writes");
    sparse.write_all_at(b"later", 5 << 20).expect("writes");
    sparse.set_len(9 << 20).expect("extends");
    let noted = data.join("noted");
    fs::write(&noted, b"with attributes").expect("writes");
    setxattr(&noted, "user.note", b"kept", XattrFlags::empty()).expect("sets");
    setxattr(&noted, "system.posix_acl_access", &acl(), XattrFlags::empty()).expect("sets");
    chown(&noted, Some(USER), Some(USER)).expect("changes the owner");
    fs::set_permissions(&year, fs::Permissions::from_mode(0o2750)).expect("changes the mode");
    setxattr(&year, "user.label", b"year", XattrFlags::empty()).expect("sets");
    let long_ago = FileTimes::new()
        .set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789));
    for path in [&year, &noted, &year.join("part-3")] {
        File::open(path).expect("opens").set_times(long_ago).expect("sets the time");
    }
}

fn restore(grid: &Mounted, arguments: &[&str]) -> Ended {
    grid.run_on_root(&["snapshot", "restore"], &[&["data", "monday"], arguments].concat())
}

fn snapshot(grid: &Mounted) {
    grid.run_on_root(&["snapshot", "create"], &["data", "monday"]).succeeds();
}

fn no_drafts(data: &Path) {
    let drafts: Vec<PathBuf> = tree(data)
        .into_iter()
        .map(|seen| seen.path)
        .filter(|path| path.to_string_lossy().contains(".forebay-restore."))
        .collect();
    assert!(drafts.is_empty(), "{drafts:?}");
}

fn everything_comes_back(placement: Placement) {
    let grid = Mounted::start(placement);
    let data = grid.data();
    fill(&data);
    let before = tree(&data);
    snapshot(&grid);
    fs::remove_dir_all(data.join("tables")).expect("removes");
    fs::remove_file(data.join("latest")).expect("removes");
    let was_open = File::open(data.join("noted")).expect("opens");
    fs::write(data.join("seven"), b"rewritten").expect("writes");
    OpenOptions::new()
        .write(true)
        .open(data.join("sparse"))
        .expect("opens")
        .write_all_at(b"changed", 3 << 20)
        .expect("writes");
    setxattr(data.join("noted"), "user.more", b"later", XattrFlags::empty()).expect("sets");
    fs::write(data.join("noted"), b"rewritten").expect("writes");

    // One file, in a directory that is gone.
    restore(&grid, &["tables/2026/part-3"]).succeeds();
    let year = fs::metadata(data.join("tables/2026")).expect("stats");
    assert_eq!((year.mode() & 0o7777, year.mtime()), (0o2750, 1_000_000_000));
    let part = fs::metadata(data.join("tables/2026/part-3")).expect("stats");
    assert_eq!((part.mtime(), part.mtime_nsec(), part.nlink()), (1_000_000_000, 123_456_789, 1));

    // All of it; what is new stays.
    fs::write(data.join("tables/new"), b"new").expect("writes");
    let said = json(&restore(&grid, &[".", "--json"]).output());
    assert_eq!(said["failed_total"].as_u64(), Some(0), "{said}");
    assert_eq!(fs::read(data.join("tables/new")).expect("reads"), b"new");
    let mut kept_open = Vec::new();
    std::io::Read::read_to_end(&mut &was_open, &mut kept_open).expect("reads");
    assert_eq!(kept_open, b"rewritten", "an open file stays what it was");
    fs::remove_file(data.join("tables/new")).expect("removes");
    restore(&grid, &["tables"]).succeeds();
    // "seven" lies outside of what was restored last.
    restore(&grid, &["."]).succeeds();
    assert_eq!(tree(&data), before);
    assert!(fs::metadata(data.join("sparse")).expect("stats").blocks() * 512 < 9 << 20);

    // Elsewhere: into the fileset, and to another file system.
    fs::create_dir(data.join("look")).expect("makes a directory");
    let look = data.join("look");
    restore(&grid, &["tables/2026", "noted", "--to", look.to_str().expect("is text")]).succeeds();
    let copied: Vec<Seen> = tree(&look);
    assert_eq!(copied.len(), 203);
    assert_eq!(fs::read(look.join("noted")).expect("reads"), b"with attributes");
    fs::remove_dir_all(&look).expect("removes");
    let outside = scratch_folder();
    let place = outside.path().to_str().expect("is text");
    restore(&grid, &[".", "--to", place]).succeeds();
    let bytes = |all: Vec<Seen>| -> Vec<(PathBuf, Vec<u8>)> {
        all.into_iter().map(|seen| (seen.path, seen.content)).collect()
    };
    let there = bytes(tree(outside.path()));
    assert_eq!(there, bytes(tree(&data)));

    no_drafts(&data);
    fs::write(data.join("noted"), b"rewritten again").expect("writes");
    restore(&grid, &["noted"]).succeeds();
    grid.kill();
    grid.mount();
    assert_eq!(bytes(tree(&data)), there, "what was restored survives a crash");
    grid.umount();
    grid.is_clean();
    assert_says(&restore(&grid, &["noted"]).refused(), &["not mounted", "forebay mount"]);
}

#[test]
fn restored_files_have_their_bytes_attributes_and_links_on_the_direct_path() {
    everything_comes_back(Placement::Direct);
}

#[test]
fn restored_files_have_their_bytes_attributes_and_links_on_the_served_path() {
    everything_comes_back(Placement::Served);
}

#[test]
fn what_cannot_be_restored_is_named_and_the_rest_comes_back() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    fill(&data);
    snapshot(&grid);
    let none = grid.run_on_root(&["snapshot", "restore"], &["data", "tuesday", "noted"]).refused();
    assert_says(&none, &["data", "tuesday", "snapshot list"]);
    assert_says(&restore(&grid, &["nothing"]).refused(), &["nothing", "monday", "No such file"]);
    assert_says(&restore(&grid, &["../x"]).refused(), &["../x", "top of the fileset"]);
    assert_says(&restore(&grid, &["noted", "--to", "/nowhere/at/all"]).refused(), &["/nowhere"]);
    let twice = restore(&grid, &["noted", "tables/../noted"]).refused();
    assert_says(&twice, &["without \"..\""]);

    // A directory where a file was, a file where a directory was, a link out of the fileset.
    fs::remove_file(data.join("noted")).expect("removes");
    fs::create_dir(data.join("noted")).expect("makes a directory");
    fs::remove_dir_all(data.join("tables")).expect("removes");
    let outside = scratch_folder();
    symlink(outside.path(), data.join("tables")).expect("links");
    fs::remove_file(data.join("seven")).expect("removes");
    let said = restore(&grid, &["."]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert_says(
        &said.stderr,
        &[
            "noted: a directory has this name now",
            "tables: something that is not a directory",
            "2 were not restored",
        ],
    );
    assert_eq!(fs::read(data.join("seven")).expect("reads"), 7_u32.to_le_bytes().repeat(500));
    assert_eq!(fs::read_dir(outside.path()).expect("lists").count(), 0, "no link is followed");
    no_drafts(&data);
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_user_restores_what_they_may_read_to_where_they_may_write() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let user = User::new(USER, &[USER]);
    let home = data.join("home");
    fs::create_dir(&home).expect("makes a directory");
    fs::write(home.join("mine"), b"mine").expect("writes");
    fs::write(home.join("of-root"), b"of root").expect("writes");
    fs::write(home.join("secret"), b"secret").expect("writes");
    fs::set_permissions(home.join("secret"), fs::Permissions::from_mode(0o600)).expect("closes");
    fs::set_permissions(home.join("of-root"), fs::Permissions::from_mode(0o4755)).expect("opens");
    chown(home.join("mine"), Some(USER), Some(USER)).expect("changes the owner");
    chown(&home, Some(USER), Some(USER)).expect("changes the owner");
    fs::write(data.join("top"), b"top").expect("writes");
    snapshot(&grid);
    for name in ["mine", "of-root", "secret"] {
        fs::remove_file(home.join(name)).expect("removes");
    }
    fs::write(data.join("top"), b"rewritten").expect("writes");
    let (program, folder) = (need_program(&grid), grid.mountpoint());
    let restore = |path: &str| {
        let mut command = std::process::Command::new(&program);
        command.args(["snapshot", "restore"]).arg(&folder).args(["data", "monday", path]);
        as_user(&user, || run(&mut command, LIMIT))
    };
    restore("home/mine").succeeds();
    let of_root = restore("home/of-root");
    assert_eq!(of_root.code(), 0, "{of_root:?}");
    assert_says(&of_root.stderr, &["belong to you now"]);
    assert_says(&restore("home/secret").refused(), &["home/secret", "Permission denied"]);
    assert_says(&restore("top").refused(), &["top", "Permission denied"]);
    let stat = |name: &str| {
        let stat = fs::metadata(home.join(name)).expect("stats");
        (stat.uid(), stat.mode() & 0o7777)
    };
    assert_eq!(fs::read(home.join("mine")).expect("reads"), b"mine");
    assert_eq!(stat("of-root"), (USER, 0o755), "never with the rights of root");
    assert!(!home.join("secret").exists());
    assert_eq!(fs::read(data.join("top")).expect("reads"), b"rewritten");
    no_drafts(&data);
    grid.umount();
    grid.is_clean();
}

/// A copy of the program that everybody may run.
fn need_program(grid: &Mounted) -> OsString {
    let command = grid.forebay::<&str>(&[]);
    let copy = grid.outside().join("forebay-for-users");
    forebay_e2e::command::copy_program(Path::new(command.get_program()), &copy);
    copy.into_os_string()
}

#[test]
fn readers_see_the_old_or_the_restored_file_and_an_interruption_leaves_whole_files() {
    let grid = Mounted::start(Placement::Direct);
    let data = grid.data();
    let folder = data.join("many");
    fs::create_dir(&folder).expect("makes a directory");
    let (old, new) = (vec![b'o'; 20_000], vec![b'n'; 30_000]);
    let name = |number: usize| folder.join(format!("file-{number}"));
    for number in 0..600 {
        fs::write(name(number), &old).expect("writes");
    }
    snapshot(&grid);
    for number in 0..600 {
        fs::write(name(number), &new).expect("writes");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (stop, old, new, name) = (&stop, &old, &new, &name);
            scope.spawn(move || {
                let mut number = reader;
                while !stop.load(Ordering::Relaxed) {
                    let read = fs::read(name(number % 600)).expect("reads");
                    assert!(read == *old || read == *new, "{} bytes", read.len());
                    number += 7;
                }
            });
        }
        let mut command = grid.forebay(&["snapshot", "restore"]);
        command.arg(grid.root()).args(["data", "monday", "many"]);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        let restored = || {
            (0..600)
                .filter(|&number| fs::metadata(name(number)).expect("stats").len() == 20_000)
                .count()
        };
        wait_until("a file is restored", LIMIT, || restored() > 0);
        let process = Pid::from_child(&child);
        // It may have finished.
        let _ = kill_process(process, Signal::INT);
        let code = child.wait().expect("ends").code();
        assert!(matches!(code, Some(130 | 0)), "{code:?}");
        stop.store(true, Ordering::Relaxed);
    });
    let all_whole = (0..600).all(|number| {
        let read = fs::read(name(number)).expect("reads");
        read == old || read == new
    });
    assert!(all_whole);
    no_drafts(&data);
    restore(&grid, &["many"]).succeeds();
    assert!((0..600).all(|number| fs::read(name(number)).expect("reads") == old));
    grid.umount();
    grid.is_clean();
}

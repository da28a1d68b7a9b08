//! Native filesets on a real mount: bound in place, taken out in order, and what is left when a daemon is killed.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod fileset;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_e2e::actor::User;
use forebay_e2e::{Mounted, Native, Peer, as_user, need, run};
use rustix::fs::Dir;

/// Lines of the mount table whose mountpoint is `place` or lies within it: mountpoint, options and kind.
fn mounts_within(place: &Path) -> Vec<(PathBuf, String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("reads the table of mounts");
    let entry = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut words = left.split(' ').skip(4);
        let mountpoint = PathBuf::from(words.next()?);
        let options = words.next()?.to_owned();
        mountpoint
            .starts_with(place)
            .then(|| (mountpoint, options, right.split(' ').next().unwrap_or_default().to_owned()))
    };
    table.lines().filter_map(entry).collect()
}

/// The tree of a native fileset on the disk of the home folder.
fn tree(grid: &Mounted, fileset: &str) -> PathBuf {
    grid.root().join("disk/native").join(fileset).join("tree")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// Checks that the mount and its two native filesets stand in the table once each.
#[track_caller]
fn assert_mounted_once(grid: &Mounted) {
    let mut places: Vec<_> =
        mounts_within(&grid.mountpoint()).into_iter().map(|(place, _, _)| place).collect();
    places.sort();
    let top = grid.mountpoint();
    assert_eq!(places, [top.clone(), top.join("util"), top.join("work")]);
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

/// Works in the folder of its argument: writes to an open file, makes files by relative name, tells where it is.
const WORKER: &str = r#"
import os, sys
os.chdir(sys.argv[1])
f = open("open-file", "w")
print("ready")
for line in sys.stdin:
    f.write(line); f.flush()
    with open("made-" + line.strip(), "w") as new: new.write(line)
    print(sorted(os.listdir(".")))
"#;

#[test]
fn a_mount_of_roots_binds_native_filesets_with_its_own_options_and_without_set_id_and_devices() {
    let grid = Mounted::start_native(Native::Bound);
    assert_mounted_once(&grid);
    let mounts = mounts_within(&grid.mountpoint());
    let own = mounts.iter().find(|(place, _, _)| *place == grid.mountpoint()).expect("is mounted");
    for (place, options, kind) in mounts.iter().filter(|(place, _, _)| *place != grid.mountpoint())
    {
        assert_ne!(kind, &own.2, "{} is the disk's own", place.display());
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        assert!(has("nosuid") && has("nodev") && has("noatime"), "{options}");
    }
    fs::write(grid.work().join("file"), "native").expect("writes");
    assert_eq!(fs::read(tree(&grid, "work").join("file")).expect("reads"), b"native");
    let stat =
        |path: PathBuf| fs::metadata(path).map(|about| (about.dev(), about.ino())).expect("stats");
    assert_eq!(stat(grid.work().join("file")), stat(tree(&grid, "work").join("file")));
    assert_eq!(fs::metadata(grid.work()).expect("stats").mode() & 0o7777, 0o1777);
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["work is", "native/work/tree", "native"]);
}

#[test]
fn umount_takes_native_filesets_out_in_order_and_names_who_uses_one() {
    let grid = Mounted::start_native(Native::Bound);
    let mut worker = Peer::start(WORKER, &[text(&grid.work())]);
    assert_eq!(worker.hear(), "ready");
    let message = grid.run(&["umount", text(&grid.mountpoint())]).refused();
    assert_says(&message, &[text(&grid.work()), "is in use by python3"]);
    // Nothing has changed.
    assert_mounted_once(&grid);
    worker.tell("one");
    assert_says(&worker.hear(), &["made-one"]);
    drop(worker);
    grid.umount();
    assert!(mounts_within(&grid.mountpoint()).is_empty());
    assert!(fs::read_dir(grid.mountpoint()).expect("lists").next().is_none());
    grid.mount();
    assert_mounted_once(&grid);
    assert!(grid.work().join("made-one").exists());
}

#[test]
fn umount_names_another_mount_that_is_in_the_way() {
    let grid = Mounted::start_native(Native::Bound);
    let inner = grid.work().join("inner");
    fs::create_dir(&inner).expect("makes a folder");
    run(need::program("mount").args(["-t", "tmpfs", "none"]).arg(&inner), LIMIT).succeeds();
    let message = grid.run(&["umount", text(&grid.mountpoint())]).refused();
    run(need::program("umount").arg(&inner), LIMIT).succeeds();
    assert_says(&message, &["something else is mounted at", text(&inner)]);
    assert_mounted_once(&grid);
}

#[test]
fn native_scratch_outlives_a_killed_daemon_and_the_next_mount_binds_it_once() {
    let grid = Mounted::start_native(Native::Bound);
    let mut worker = Peer::start(WORKER, &[text(&grid.work())]);
    assert_eq!(worker.hear(), "ready");
    for round in ["one", "two", "three"] {
        grid.daemon().expect("the daemon runs").kill();
        // By what it has open, by names relative to where it is, and by its absolute path.
        worker.tell(&format!("{round}-dead"));
        assert_says(&worker.hear(), &[&format!("made-{round}-dead")]);
        fs::write(grid.work().join(format!("absolute-{round}")), "x").expect("writes");
        // The kernel checks an ordinary user's way over the root without the daemon.
        let by_user = grid.work().join(format!("user-{round}"));
        as_user(&somebody(), || fs::write(&by_user, "x").expect("writes as an ordinary user"));
        grid.mount();
        assert_mounted_once(&grid);
        worker.tell(round);
        assert_says(&worker.hear(), &[&format!("made-{round}")]);
        let seen = fs::read_to_string(grid.work().join("open-file")).expect("reads");
        assert!(seen.ends_with(&format!("{round}\n")), "{seen}");
        assert!(grid.work().join(format!("absolute-{round}")).exists());
    }
    drop(worker);
    grid.umount();
    grid.mount();
    assert_mounted_once(&grid);
}

fn somebody() -> User {
    User::new(4242, &[4242])
}

#[test]
fn a_path_of_an_ordinary_user_over_the_root_takes_no_request() {
    let grid = Mounted::start_native(Native::Bound);
    let requests = || {
        let told = grid.run(&["stat", text(&grid.mountpoint()), "--json"]).output();
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        told["requests"].clone()
    };
    let file = grid.work().join("file");
    let look = || {
        for _ in 0..100 {
            as_user(&somebody(), || fs::metadata(&file).expect("stats"));
        }
    };
    fs::write(&file, "x").expect("writes");
    look();
    let before = requests();
    look();
    let after = requests();
    for kind in ["LOOKUP", "GETATTR", "GETXATTR", "STATX"] {
        assert_eq!(before[kind], after[kind], "{kind}: {before} {after}");
    }
}

#[test]
fn a_name_that_only_raising_a_mount_uses_is_everybodys_to_use() {
    let grid = Mounted::start_native(Native::Bound);
    let top = grid.mountpoint().join("top");
    assert!(!top.exists());
    fs::create_dir(&top).expect("makes a directory");
    fs::write(top.join("file"), "kept").expect("writes");
    grid.remount();
    assert_eq!(fs::read(top.join("file")).expect("reads"), b"kept");
    fs::remove_dir_all(&top).expect("removes");
    assert!(!top.exists());
}

#[test]
fn a_signal_ends_a_mount_with_native_filesets() {
    let grid = Mounted::start_native(Native::Bound);
    let daemon = grid.daemon().expect("the daemon runs");
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ends_within(LIMIT), "the daemon goes on");
    assert!(mounts_within(&grid.mountpoint()).is_empty());
    grid.is_clean();
}

#[test]
fn a_recursive_umount_takes_the_mount_and_its_native_filesets_out() {
    let grid = Mounted::start_native(Native::Bound);
    fs::write(grid.work().join("file"), "kept").expect("writes");
    let daemon = grid.daemon().expect("the daemon runs");
    run(need::program("umount").arg("-R").arg(grid.mountpoint()), LIMIT).succeeds();
    assert!(daemon.ends_within(LIMIT), "the daemon goes on");
    assert!(mounts_within(&grid.mountpoint()).is_empty());
    grid.is_clean();
    grid.mount();
    assert_mounted_once(&grid);
    assert_eq!(fs::read(grid.work().join("file")).expect("reads"), b"kept");
}

#[test]
fn names_do_not_cross_native_filesets_and_others() {
    for native in [Native::Bound, Native::Served] {
        let grid = Mounted::start_native(native);
        let top = grid.mountpoint();
        fs::write(top.join("work/file"), "kept").expect("writes");
        fs::write(top.join("data"), "kept").expect_err("it is a directory");
        for other in ["util", "data"] {
            let refused = fs::rename(top.join("work/file"), top.join(other).join("file"));
            let refused = refused.expect_err("a rename crosses filesets");
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{native:?} {other}");
            let refused = fs::hard_link(top.join("work/file"), top.join(other).join("file"));
            let refused = refused.expect_err("a link crosses filesets");
            assert_eq!(refused.raw_os_error(), Some(libc::EXDEV), "{native:?} {other}");
            fs::copy(top.join("work/file"), top.join(other).join("copy")).expect("copies");
            fs::copy(top.join(other).join("copy"), top.join("work/back")).expect("copies");
            assert_eq!(fs::read(top.join("work/back")).expect("reads"), b"kept");
        }
        assert!(
            fs::rename(top.join("work"), top.join("other")).is_err(),
            "a fileset keeps its name"
        );
        assert!(fs::remove_dir(top.join("util")).is_err(), "a fileset is removed by its command");
    }
}

#[test]
fn a_listing_shows_what_was_made_natively_also_in_a_stream_that_stayed_open() {
    for native in [Native::Served, Native::Passthrough] {
        let grid = Mounted::start_native(native);
        let (seen, made) = (grid.work().join("folder"), tree(&grid, "work").join("folder"));
        fs::create_dir(&made).expect("makes a directory");
        let mut open = Dir::new(fs::File::open(&seen).expect("opens")).expect("lists");
        for round in 0..300 {
            fs::write(made.join(format!("file-{round}")), "x").expect("writes");
            if round % 3 == 2 {
                fs::remove_file(made.join(format!("file-{}", round - 1))).expect("removes");
            }
            let names = fs::read_dir(&made).expect("lists").count();
            open.rewind();
            // Twice: the first listing must not be kept for the second.
            for _ in 0..2 {
                assert_eq!(fs::read_dir(&seen).expect("lists").count(), names, "round {round}");
            }
            let rest = std::iter::from_fn(|| open.read());
            assert_eq!(rest.filter(Result::is_ok).count(), names + 2, "round {round}");
        }
    }
}

#[test]
fn a_change_made_natively_is_seen_at_once_where_the_daemon_serves() {
    for native in [Native::Served, Native::Passthrough] {
        let grid = Mounted::start_native(native);
        let (seen, made) = (grid.work(), tree(&grid, "work"));
        assert!(!seen.join("file").exists());
        for round in 0..50 {
            let content = format!("round {round}");
            fs::write(made.join("file"), &content).expect("writes");
            assert_eq!(fs::read_to_string(seen.join("file")).expect("reads"), content);
            fs::rename(made.join("file"), made.join("moved")).expect("renames");
            assert!(!seen.join("file").exists() && seen.join("moved").exists());
            fs::write(seen.join("moved"), "served").expect("writes");
            assert_eq!(fs::read_to_string(made.join("moved")).expect("reads"), "served");
            fs::rename(seen.join("moved"), seen.join("file")).expect("renames");
            fs::remove_file(made.join("file")).expect("removes");
            assert!(fs::read_dir(&seen).expect("lists").next().is_none());
        }
    }
}

//! Renames and links.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::{Mounted, need, on_every_way, on_native, run};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::open_rw;

on_every_way!(
    rename_without_replacing_keeps_the_target,
    exchange_swaps_files_and_directories,
    names_do_not_cross_filesets,
    a_renamed_name_is_never_missing,
    an_open_file_follows_its_renames,
    a_moved_directory_keeps_its_tree,
    an_overlay_keeps_its_changes,
);

// Native filesets and others: tests/native.
on_native!(
    rename_without_replacing_keeps_the_target,
    exchange_swaps_files_and_directories,
    a_renamed_name_is_never_missing,
    an_open_file_follows_its_renames,
    a_moved_directory_keeps_its_tree,
    an_overlay_keeps_its_changes,
);

fn rename_without_replacing_keeps_the_target(grid: &Mounted) {
    let (from, to) = (grid.data().join("from"), grid.data().join("to"));
    fs::write(&from, "from").expect("writes");
    fs::write(&to, "to").expect("writes");
    let rename = || renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE);
    assert_eq!(rename(), Err(Errno::EXIST));
    assert_eq!(fs::read(&to).expect("reads"), b"to");
    fs::remove_file(&to).expect("removes");
    assert_eq!(rename(), Ok(()));
    assert_eq!(fs::read(&to).expect("reads"), b"from");
}

fn exchange_swaps_files_and_directories(grid: &Mounted) {
    let (left, right) = (grid.data().join("left"), grid.data().join("right"));
    fs::create_dir_all(left.join("tree/inner")).expect("makes directories");
    fs::write(left.join("tree/inner/leaf"), "leaf").expect("writes");
    fs::create_dir(&right).expect("makes a directory");
    fs::write(right.join("file"), "content").expect("writes");
    let exchange = |a: &str, b: &str| {
        renameat_with(CWD, left.join(a), CWD, right.join(b), RenameFlags::EXCHANGE)
    };
    assert_eq!(exchange("tree", "missing"), Err(Errno::NOENT));
    assert_eq!(exchange("tree", "file"), Ok(()));
    for remounted in [false, true] {
        if remounted {
            grid.remount();
        }
        assert_eq!(fs::read(left.join("tree")).expect("reads"), b"content");
        assert_eq!(fs::read(right.join("file/inner/leaf")).expect("reads"), b"leaf");
        let up = fs::metadata(right.join("file/..")).expect("stats").ino();
        assert_eq!(up, fs::metadata(&right).expect("stats").ino(), "the way up has moved");
    }
    assert_eq!(fs::metadata(&left).expect("stats").nlink(), 2);
    assert_eq!(fs::metadata(&right).expect("stats").nlink(), 3);
}

fn names_do_not_cross_filesets(grid: &Mounted) {
    let file = grid.data().join("file");
    fs::write(&file, "content").expect("writes");
    fs::create_dir(grid.data().join("tree")).expect("makes a directory");
    let errno = |result: std::io::Result<()>| result.expect_err("refused").raw_os_error();
    let crossing = Some(Errno::XDEV.raw_os_error());
    assert_eq!(errno(fs::rename(&file, grid.work().join("file"))), crossing);
    assert_eq!(errno(fs::rename(&file, grid.mountpoint().join("file"))), crossing);
    assert_eq!(errno(fs::hard_link(&file, grid.work().join("file"))), crossing);
    assert_eq!(errno(fs::rename(grid.data().join("tree"), grid.work().join("tree"))), crossing);
    assert_eq!(fs::read(&file).expect("reads"), b"content");
}

fn a_renamed_name_is_never_missing(grid: &Mounted) {
    let (name, next) = (grid.data().join("name"), grid.data().join("next"));
    fs::write(&name, "content 0").expect("writes");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let content = fs::read_to_string(&name).expect("the name is always there");
                assert!(content.starts_with("content "), "torn: {content:?}");
                reads += 1;
            }
            reads
        });
        for round in 0..500 {
            fs::write(&next, format!("content {round}")).expect("writes");
            fs::rename(&next, &name).expect("renames");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("the reader is content") > 0);
    });
}

fn an_open_file_follows_its_renames(grid: &Mounted) {
    use std::os::unix::fs::FileExt as _;
    let file = open_rw(&grid.data().join("first"));
    file.write_all_at(b"one", 0).expect("writes");
    fs::create_dir(grid.data().join("folder")).expect("makes a directory");
    fs::rename(grid.data().join("first"), grid.data().join("folder/second")).expect("renames");
    file.write_all_at(b" two", 3).expect("writes");
    fs::hard_link(grid.data().join("folder/second"), grid.data().join("third")).expect("links");
    fs::remove_file(grid.data().join("folder/second")).expect("removes");
    file.write_all_at(b" three", 7).expect("writes");
    drop(file);
    assert_eq!(fs::read(grid.data().join("third")).expect("reads"), b"one two three");
}

fn a_moved_directory_keeps_its_tree(grid: &Mounted) {
    let (a, b) = (grid.work().join("a"), grid.work().join("b"));
    fs::create_dir_all(a.join("x/y/z")).expect("makes directories");
    fs::create_dir(&b).expect("makes a directory");
    fs::write(a.join("x/y/z/file"), "content").expect("writes");
    fs::rename(a.join("x"), b.join("x")).expect("moves");
    assert_eq!(fs::read(b.join("x/y/z/file")).expect("reads"), b"content");
    let into_itself = fs::rename(b.join("x"), b.join("x/y/x")).expect_err("refused");
    assert_eq!(into_itself.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    grid.remount();
    assert_eq!(fs::read(b.join("x/y/z/file")).expect("reads"), b"content");
    assert_eq!(fs::metadata(&a).expect("stats").nlink(), 2);
}

const LIMIT: Duration = Duration::from_secs(60);

/// A union of a folder of the machine and one of the mount, which takes all changes.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(lower: &Path, upper: &Path, work: &Path, place: &Path) -> Overlay {
        let shown = |path: &Path| path.display().to_string();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", shown(lower), shown(upper), shown(work));
        let mut mount = need::program("mount");
        mount.args(["-t", "overlay", "-o", options.as_str(), "overlay"]).arg(place);
        run(&mut mount, LIMIT).succeeds();
        Overlay(place.to_owned())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = run(need::program("umount").arg("--lazy").arg(&self.0), LIMIT);
    }
}

fn an_overlay_keeps_its_changes(grid: &Mounted) {
    let made = |path: PathBuf| {
        fs::create_dir(&path).expect("makes a directory");
        path
    };
    let lower = made(grid.outside().join("lower"));
    let place = made(grid.outside().join("overlay"));
    let upper = made(grid.data().join("upper"));
    let work = made(grid.data().join("work"));
    made(lower.join("folder"));
    for name in ["moved", "removed", "changed", "folder/inner", "kept"] {
        fs::write(lower.join(name), name).expect("writes");
    }
    for round in 0..2 {
        let overlay = Overlay::mount(&lower, &upper, &work, &place);
        if round == 0 {
            // Leaves a whiteout at the old name in one step.
            fs::rename(place.join("moved"), place.join("here")).expect("renames");
            fs::remove_file(place.join("removed")).expect("removes");
            fs::write(place.join("changed"), "otherwise").expect("writes");
            fs::remove_file(place.join("folder/inner")).expect("removes");
            fs::write(place.join("folder/new"), "new").expect("writes");
        }
        let mut names: Vec<_> = fs::read_dir(&place)
            .expect("lists")
            .map(|entry| entry.expect("lists").file_name().into_string().expect("plain name"))
            .collect();
        names.sort();
        assert_eq!(names, ["changed", "folder", "here", "kept"]);
        assert_eq!(fs::read(place.join("here")).expect("reads"), b"moved");
        assert_eq!(fs::read(place.join("changed")).expect("reads"), b"otherwise");
        assert!(!place.join("folder/inner").exists() && place.join("folder/new").exists());
        drop(overlay);
        grid.remount();
    }
    let left = fs::symlink_metadata(upper.join("moved")).expect("stats");
    assert_eq!((left.mode() & libc::S_IFMT, left.rdev()), (libc::S_IFCHR, 0), "a whiteout");
    assert_eq!(fs::read(lower.join("moved")).expect("reads"), b"moved");
}

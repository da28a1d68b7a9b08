//! Making, listing and removing native filesets.

use std::fs;

use forebay_e2e::{Mounted, Native, Placement, run};

use crate::{LIMIT, assert_mounted_once, assert_says, mounts_within, text, tree};

/// Creates, uses and removes a native fileset, while the file system is mounted or not.
fn come_and_go(grid: &Mounted, is_mounted: bool) {
    let create = ["models", "--placement", "native", "--mode", "2770"];
    grid.run_on_root(&["fileset", "create"], &create).succeeds();
    let list = grid.run_on_root(&["fileset", "list"], &[]).output();
    let line = list.lines().find(|line| line.starts_with("models")).expect("is listed");
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["models", "local", "native", "-", "-", "-", "-"]
    );
    let folder = grid.mountpoint().join("models");
    assert_eq!(mounts_within(&folder).len(), usize::from(is_mounted));
    let again = grid.run_on_root(&["fileset", "create"], &create).refused();
    assert_says(&again, &["models", "already exists"]);
    let file = tree(grid, "models").join("file");
    fs::write(&file, "kept").expect("writes");
    let refused = grid.run_on_root(&["fileset", "remove"], &["models"]).refused();
    assert_says(&refused, &["models", "holds files", "remove them first"]);
    assert_eq!(fs::read(&file).expect("reads"), b"kept");
    assert_eq!(mounts_within(&folder).len(), usize::from(is_mounted));
    fs::remove_file(&file).expect("removes");
    grid.run_on_root(&["fileset", "remove"], &["models"]).succeeds();
    assert!(!folder.exists() && mounts_within(&folder).is_empty());
    assert!(!grid.root().join("disk/native/models").exists());
}

#[test]
fn a_native_fileset_comes_and_goes_while_the_file_system_is_mounted() {
    let grid = Mounted::start_native(Native::Bound);
    come_and_go(&grid, true);
    assert_mounted_once(&grid);
}

#[test]
fn a_native_fileset_comes_and_goes_while_the_file_system_is_not_mounted() {
    let grid = Mounted::make_native(Native::Bound);
    come_and_go(&grid, false);
}

#[test]
fn options_that_make_no_sense_for_a_native_fileset_are_refused() {
    let grid = Mounted::make(Placement::Direct);
    for (options, says) in [
        (&["--placement", "native", "--durability", "strict"][..], "--durability"),
        (&["--disk", "x"], "--placement native"),
        (&["--placement", "native", "--disk", "nonsense"], "there is no disk \"nonsense\""),
    ] {
        let mut arguments = vec!["new"];
        arguments.extend(options);
        assert_says(&grid.run_on_root(&["fileset", "create"], &arguments).refused(), &[says]);
    }
    for change in [["--placement", "native"], ["--placement", "served"]] {
        let name = if change[1] == "native" { "work" } else { "scratch" };
        if name == "scratch" {
            let create = ["scratch", "--placement", "native"];
            grid.run_on_root(&["fileset", "create"], &create).succeeds();
        }
        let mut arguments = vec![name];
        arguments.extend(change);
        let set = grid.run_on_root(&["fileset", "set"], &arguments);
        if change[1] == "native" {
            // clap does not offer it.
            assert_says(&set.refused(), &["native"]);
        } else {
            assert_says(&set.refused(), &["native cannot be switched on or off"]);
        }
    }
}

#[test]
fn a_native_fileset_without_its_mark_cannot_be_reached_and_the_rest_can() {
    let grid = Mounted::make_native(Native::Bound);
    let mark = grid.root().join("disk/native/work/forebay-fileset.toml");
    let kept = fs::read(&mark).expect("reads");
    fs::remove_file(&mark).expect("removes");
    grid.expect_log("native");
    grid.mount();
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &["work CANNOT BE REACHED", text(&mark), "is missing"]);
    let refused = fs::write(grid.work().join("file"), "x").expect_err("there is no fileset");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    fs::write(grid.mountpoint().join("util/file"), "x").expect("writes");
    fs::write(grid.mountpoint().join("data/file"), "x").expect("writes");
    grid.umount();
    fs::write(&mark, kept).expect("writes");
    grid.mount();
    fs::write(grid.work().join("file"), "x").expect("writes");
}

#[test]
fn fsck_leaves_the_contents_of_native_filesets_alone_and_tells_of_a_lost_mark() {
    let grid = Mounted::start_native(Native::Bound);
    fs::write(grid.work().join("file"), "kept").expect("writes");
    grid.umount();
    let _ = grid.run_on_root(&["fsck"], &["--repair"]).expect_code(0);
    assert_eq!(fs::read(tree(&grid, "work").join("file")).expect("reads"), b"kept");
    let mark = grid.root().join("disk/native/work/forebay-fileset.toml");
    let text_of_mark = fs::read(&mark).expect("reads");
    fs::remove_file(&mark).expect("removes");
    let found = grid.run_on_root(&["fsck"], &[]).expect_code(4);
    assert_says(&found.stdout, &["native", text(&mark)]);
    fs::write(&mark, text_of_mark).expect("writes");
}

#[test]
fn mkfs_makes_scratch_native_for_root_unless_it_is_asked_not_to() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    assert_says(&grid.run_on_root(&["mkfs"], &[]).output(), &["work (native), util (native)"]);
    grid.mount();
    assert_mounted_once(&grid);
    drop(grid);
    let grid = Mounted::plan(Placement::Direct, None, None);
    let made = grid.run_on_root(&["mkfs"], &["--work-placement", "direct"]).output();
    assert_says(&made, &["work (scratch), util (scratch)"]);
    grid.mount();
    assert_eq!(mounts_within(&grid.mountpoint()).len(), 1);
}

#[test]
fn a_native_fileset_is_made_and_removed_as_a_whole_whatever_crashes_in_between() {
    let grid = Mounted::make_native(Native::Bound);
    let folder = grid.root().join("disk/native/models");
    let call = |verb: &str, options: &[&str], point: Option<&str>| {
        let mut command = grid.forebay(&["fileset", verb]);
        command.arg(grid.root()).arg("models").args(options);
        command.envs(point.map(|point| ("FOREBAY_FAIL_POINT", format!("{point}:0"))));
        run(&mut command, LIMIT)
    };
    let create = ["--placement", "native"];
    for point in ["fileset.noted", "fileset.stored", "fileset.named"] {
        assert_ne!(call("create", &create, Some(point)).code(), 0, "{point}");
        assert_says(&grid.run_on_root(&["fileset", "list"], &[]).output(), &["work"]);
        call("create", &create, None).succeeds();
        assert!(folder.join("tree").is_dir(), "{point}");
        call("remove", &[], None).succeeds();
        assert!(!folder.exists(), "{point}");
    }
    for point in ["fileset.unnamed", "fileset.removed"] {
        call("create", &create, None).succeeds();
        assert_ne!(call("remove", &[], Some(point)).code(), 0, "{point}");
        let list = grid.run_on_root(&["fileset", "list"], &[]).output();
        assert!(!list.contains("models"), "{point}: {list}");
        call("create", &create, None).succeeds();
        call("remove", &[], None).succeeds();
        assert!(!folder.exists(), "{point}");
    }
    grid.is_clean();
}

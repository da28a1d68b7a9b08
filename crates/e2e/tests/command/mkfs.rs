//! `forebay mkfs`.

use std::fs;

use forebay_e2e::actor::User;
use forebay_e2e::{Mounted, Placement};

use crate::{assert_says, snapshot};

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("plain path")
}

#[test]
fn mkfs_makes_the_three_filesets() {
    let grid = Mounted::start(Placement::Direct);
    let mut names: Vec<String> = fs::read_dir(grid.mountpoint())
        .expect("lists")
        .map(|entry| entry.expect("lists").file_name().into_string().expect("plain name"))
        .collect();
    names.sort();
    assert_eq!(names, ["data", "util", "work"]);
    assert!(grid.root().join("forebay.toml").is_file());
    fs::write(grid.mountpoint().join("file"), "in the root").expect("the root takes files");
    fs::create_dir(grid.mountpoint().join("folder")).expect("the root takes directories");
}

#[test]
fn mkfs_takes_the_disks_that_it_is_given() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    let disks = [grid.outside().join("disk-a"), grid.outside().join("disk-b")];
    for disk in &disks {
        fs::create_dir(disk).expect("makes a directory");
    }
    grid.run_on_root(&["mkfs"], &["--disk", text(&disks[0]), "--disk", text(&disks[1])]).succeeds();
    grid.mount();
    for number in 0..50 {
        fs::write(grid.data().join(format!("file-{number}")), [1; 10_000]).expect("writes");
    }
    grid.remount();
    for number in 0..50 {
        let bytes = fs::read(grid.data().join(format!("file-{number}"))).expect("reads");
        assert_eq!(bytes, [1; 10_000]);
    }
    let status = grid.run_on_root(&["status"], &[]).output();
    assert_says(&status, &[text(&disks[0]), text(&disks[1])]);
}

#[test]
fn mkfs_refuses_a_root_that_is_not_empty_and_changes_nothing() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    fs::write(grid.root().join("precious"), "content").expect("writes");
    let before = snapshot(grid.outside());
    let message = grid.run_on_root(&["mkfs"], &[]).refused();
    assert_says(&message, &[text(grid.root()), "precious"]);
    assert_eq!(snapshot(grid.outside()), before);
}

#[test]
fn mkfs_refuses_the_root_of_a_file_system_and_changes_nothing() {
    let grid = Mounted::start(Placement::Direct);
    fs::write(grid.data().join("file"), "content").expect("writes");
    assert_says(&grid.run_on_root(&["mkfs"], &[]).refused(), &[text(grid.root())]);
    grid.umount();
    let before = snapshot(grid.outside());
    assert_says(&grid.run_on_root(&["mkfs"], &[]).refused(), &[text(grid.root())]);
    assert_eq!(snapshot(grid.outside()), before);
    grid.mount();
    assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
}

#[test]
fn mkfs_refuses_bad_disks_and_changes_nothing() {
    let other = Mounted::plan(Placement::Direct, None, None);
    let used = other.outside().join("disk");
    fs::create_dir(&used).expect("makes a directory");
    other.run_on_root(&["mkfs"], &["--disk", text(&used)]).succeeds();

    let grid = Mounted::plan(Placement::Direct, None, None);
    let good = grid.outside().join("good");
    let filled = grid.outside().join("filled");
    for folder in [&good, &filled] {
        fs::create_dir(folder).expect("makes a directory");
    }
    fs::write(filled.join("precious"), "content").expect("writes");
    fs::write(grid.outside().join("file"), "content").expect("writes");
    let before = (snapshot(grid.outside()), snapshot(other.outside()));

    for bad in [
        used.clone(),
        other.root().join("disk"),
        grid.outside().join("missing"),
        grid.outside().join("file"),
        filled,
        good.clone(),
    ] {
        let message = grid.run_on_root(&["mkfs"], &["--disk", text(&good), "--disk", text(&bad)]);
        assert_says(&message.refused(), &[text(&bad)]);
        assert_eq!((snapshot(grid.outside()), snapshot(other.outside())), before, "{bad:?}");
    }
    other.is_clean();
}

#[test]
fn mkfs_refuses_a_root_that_cannot_be() {
    let grid = Mounted::plan(Placement::Direct, None, None);
    let before = snapshot(grid.outside());
    fs::write(grid.outside().join("file"), "content").expect("writes");
    for bad in ["missing/root", "file", "file/root"] {
        let bad = grid.outside().join(bad);
        assert_says(&grid.run(&["mkfs", text(&bad)]).refused(), &[text(&bad)]);
    }
    fs::remove_file(grid.outside().join("file")).expect("removes");
    assert_eq!(snapshot(grid.outside()).len(), before.len());
}

#[test]
fn mkfs_refuses_what_the_user_may_not_write() {
    let user = User::new(65534, &[65534]);
    let grid = Mounted::plan_for(&user);
    let closed = grid.outside().join("closed");
    fs::create_dir(&closed).expect("makes a directory of root's");
    for arguments in
        [vec!["mkfs", text(&closed)], vec!["mkfs", text(grid.root()), "--disk", text(&closed)]]
    {
        assert_says(&grid.run(&arguments).refused(), &[text(&closed)]);
    }
    assert_eq!(snapshot(grid.root()).len(), 0);
    assert_eq!(snapshot(&closed).len(), 0);
}

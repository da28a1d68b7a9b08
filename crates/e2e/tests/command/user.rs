//! An ordinary user, through fusermount3.

use std::fs;

use forebay_e2e::actor::User;
use forebay_e2e::content::{assert_same, pattern};
use forebay_e2e::{Mounted, as_user, need, run};

use crate::{assert_says, json};

/// The user and group of nobody: every machine has them.
const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_mounts_an_own_file_system_on_the_served_path() {
    need::fuse_for_users();
    let user = User::new(NOBODY, &[NOBODY]);
    let grid = Mounted::plan_for(&user);
    grid.mkfs();
    let mounted = run(&mut grid.mount_command(), std::time::Duration::from_secs(60));
    assert_eq!(mounted.code(), 0, "{mounted:#?}");
    assert_says(&mounted.stderr, &["root"]);
    as_user(&user, || {
        let path = grid.data().join("file");
        fs::write(&path, pattern(1, 3_000_000)).expect("writes");
        assert_same(&fs::read(&path).expect("reads"), &pattern(1, 3_000_000), "file");
        fs::create_dir(grid.work().join("folder")).expect("makes a directory");
        fs::rename(&path, grid.data().join("renamed")).expect("renames");
    });
    let status = json(&grid.run_on_root(&["status"], &["--json"]).output());
    assert_eq!(status["mount"]["passthrough"], false);
    grid.remount();
    as_user(&user, || {
        let bytes = fs::read(grid.data().join("renamed")).expect("reads");
        assert_same(&bytes, &pattern(1, 3_000_000), "after a remount");
    });
}

#[test]
fn root_does_not_mount_a_home_folder_of_somebody_else() {
    need::fuse_for_users();
    let user = User::new(NOBODY, &[NOBODY]);
    let grid = Mounted::plan_for(&user);
    grid.mkfs();
    let mut as_root = std::process::Command::new(need::forebay());
    as_root.arg("mount").arg(grid.root()).arg(grid.mountpoint());
    let said = run(&mut as_root, std::time::Duration::from_secs(60)).refused();
    assert_says(&said, &["belongs to user 65534", "chown -R root:"]);
    // Its owner can.
    grid.mount();
    grid.umount();
}

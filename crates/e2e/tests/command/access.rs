//! Who can get at a home folder.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use forebay_e2e::actor::User;
use forebay_e2e::{Mounted, Placement, as_user};

/// Files that have names, attributes or bytes of users, or keep a second mount out.
const SECRETS: [&str; 6] = [
    "names/00000.redb",
    "lock",
    "forebay.toml",
    "forebay.log",
    "reserve",
    "disk/forebay-disk.toml",
];

fn stranger() -> User {
    User::new(1701, &[1701])
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changes a mode");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stats").mode() & 0o7777
}

/// What a stranger can open, list or lock of a home folder.
fn within_reach(grid: &Mounted) -> Vec<PathBuf> {
    let folders = ["", "disk", "disk/objects", "names"].map(|name| grid.root().join(name));
    let files = SECRETS.map(|name| grid.root().join(name));
    for path in folders.iter().chain(&files) {
        assert!(path.exists(), "{} is not there", path.display());
    }
    as_user(&stranger(), || {
        let listed = folders.into_iter().filter(|folder| fs::read_dir(folder).is_ok());
        listed.chain(files.into_iter().filter(|file| File::open(file).is_ok())).collect()
    })
}

#[test]
fn a_home_folder_and_all_in_it_belong_to_its_owner() {
    let grid = Mounted::start(Placement::Direct);
    assert_eq!(within_reach(&grid), [] as [PathBuf; 0]);
    // The way to the folder of a grid is open, as root's.
    assert_eq!(mode(grid.root()), 0o711);
    grid.umount();
    assert_eq!(within_reach(&grid), [] as [PathBuf; 0]);
}

#[test]
fn a_home_folder_that_is_open_to_others_is_closed_by_the_next_mount() {
    let grid = Mounted::make(Placement::Direct);
    grid.expect_log("open to other users");
    grid.mount();
    fs::create_dir(grid.root().join("grid")).expect("makes a directory");
    for name in ["", "grid", "disk", "names"] {
        set(&grid.root().join(name), 0o755);
    }
    for name in SECRETS {
        set(&grid.root().join(name), 0o644);
    }
    assert!(within_reach(&grid).len() > SECRETS.len(), "the test opens nothing");
    grid.remount();
    assert_eq!(within_reach(&grid), [] as [PathBuf; 0]);
    assert_eq!(mode(&grid.root().join("grid")), 0o755, "a grid says itself who reaches it");
    let log = grid.log();
    for name in ["names", "lock", "disk"] {
        let path = grid.root().join(name).display().to_string();
        let tells = |line: &str| line.contains(&path) && line.contains("open to other users");
        assert!(log.lines().any(tells), "{name}: {log}");
    }
    fs::remove_dir(grid.root().join("grid")).expect("removes");
}

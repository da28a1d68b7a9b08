//! What the tests need of the machine. What is missing fails the test with the cure.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of programs that an ordinary user's PATH may lack.
const SYSTEM_FOLDERS: &str = "/usr/sbin:/sbin";

/// Checks that the test runs as root.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test needs root (FUSE passthrough, mounts, other users): run it with sudo"
    );
}

/// Checks that FUSE is there.
///
/// # Panics
/// If `/dev/fuse` is missing.
#[track_caller]
pub fn fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing: load the kernel module (modprobe fuse), or pass the device to the \
         container"
    );
}

/// Checks that ordinary users can mount.
///
/// # Panics
/// If fusermount3 is missing or `/dev/fuse` is closed to them.
#[track_caller]
pub fn fuse_for_users() {
    fuse();
    path_of("fusermount3");
    let mode = std::fs::metadata("/dev/fuse").expect("stats /dev/fuse").permissions().mode();
    assert!(
        mode & 0o006 == 0o006,
        "/dev/fuse is closed to ordinary users (mode {:o}): `make setup` opens it as the udev rule \
         of the package fuse3 does",
        mode & 0o777
    );
}

/// A command for a program of the machine or of `.cache/tools/bin`.
///
/// # Panics
/// If the program is not found; the message names what brings it.
#[track_caller]
#[must_use]
pub fn program(name: &str) -> Command {
    Command::new(path_of(name))
}

#[track_caller]
fn path_of(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let tools = workspace().join(".cache/tools/bin");
    std::iter::once(tools)
        .chain(path.split(':').chain(SYSTEM_FOLDERS.split(':')).map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("the program {name} is missing: run `make setup`"))
}

/// The folder of the workspace.
///
/// # Panics
/// If the crate does not lie two folders below it.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/e2e has a workspace")
}

/// The `forebay` binary: `FOREBAY_BIN`, else the one of this build, else the one of the other profile.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn forebay() -> PathBuf {
    if let Some(binary) = std::env::var_os("FOREBAY_BIN") {
        let binary = PathBuf::from(binary);
        assert!(binary.is_file(), "FOREBAY_BIN={}: no such file", binary.display());
        return binary;
    }
    let test = std::env::current_exe().expect("knows its own path");
    let profile = test.ancestors().nth(2).expect("a test lies in target/PROFILE/deps");
    let target = profile.parent().expect("a profile lies in target");
    [profile.to_path_buf(), target.join("release"), target.join("debug")]
        .into_iter()
        .map(|folder| folder.join("forebay"))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| {
            panic!("no forebay binary: run `cargo build --package forebay-cli`, or set FOREBAY_BIN")
        })
}

//! `up --mount` and `down`: what is made, mounted again, refused, and unmounted.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::mounted::{is_mounted, scratch_folder};
use forebay_e2e::need::{self, forebay};
use forebay_e2e::wait_until;
use tempfile::TempDir;

use crate::LIMIT;

/// A root and a mountpoint; whatever is there at the end is taken down.
struct Place {
    root: PathBuf,
    mountpoint: PathBuf,
    folder: TempDir,
}

impl Place {
    fn make() -> Place {
        need::root();
        need::fuse();
        let folder = scratch_folder();
        let (root, mountpoint) = (folder.path().join("g"), folder.path().join("m"));
        fs::create_dir(&mountpoint).unwrap();
        Place { root, mountpoint, folder }
    }

    /// Runs a command; R stands for the root, M for the mountpoint.
    fn call(&self, line: &str) -> Ended {
        let mut command = Command::new(forebay());
        for word in line.split(' ') {
            match word {
                "R" => command.arg(&self.root),
                "M" => command.arg(&self.mountpoint),
                word => command.arg(word),
            };
        }
        command.env("FOREBAY_GRID", &self.root).current_dir(self.folder.path());
        run(&mut command, LIMIT)
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.mountpoint)
    }

    /// Ends the daemon of the file system as a loss of power would.
    fn kill_daemon(&self) {
        let pid = fs::read_to_string(self.root.join("forebay.pid")).unwrap();
        let pid = pid.trim().parse().unwrap();
        // SAFETY: the daemon of this file system, which nobody has waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        wait_until("the daemon is gone", LIMIT, || {
            fs::metadata(&self.mountpoint).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for line in ["down R --now", "umount --lazy M"] {
            let words = line.split(' ').map(|word| match word {
                "R" => self.root.clone().into_os_string(),
                "M" => self.mountpoint.clone().into_os_string(),
                word => word.into(),
            });
            let _ = Command::new(forebay()).args(words).output();
        }
    }
}

#[test]
fn a_file_system_whose_daemon_died_is_mounted_again_by_up() {
    let place = Place::make();
    place.call("up R --mount M --slots 2").succeeds();
    place.call("submit --wait -- true").succeeds();
    place.kill_daemon();
    place.call("up R --mount M").succeeds();
    place.call("submit --wait -- sh -c true").succeeds();
    place.call("down R").succeeds();
    assert!(!place.is_mounted());
}

#[test]
fn what_is_asked_for_and_not_there_is_refused() {
    let place = Place::make();
    let said = place.call("up R --mount /no/such/place").refused();
    assert!(
        said.contains("/no/such/place: there is no such directory; create it: mkdir"),
        "{said}"
    );
    assert!(!place.root.exists(), "nothing was made");
    place.call("up R --mount M --slots 2 --transport dev").succeeds();
    fs::create_dir(place.folder.path().join("other")).unwrap();
    let said = place.call("up R --mount other").refused();
    assert!(said.contains("is mounted at") && said.contains("/m by process"), "{said}");
    let said = place.call("up R --mount M --transport uring").refused();
    assert!(said.contains("with --transport dev, not"), "{said}");
    let said = place.call("up R --slots 3").refused();
    assert!(said.contains("host1 is already running, with 2 slots"), "{said}");
    place.call("up R --mount M --slots 2 --transport dev").succeeds();
    place.call("down R").succeeds();
}

#[test]
fn down_unmounts_what_up_has_mounted_and_nothing_else() {
    let place = Place::make();
    let said = place.call("down .").refused();
    assert!(said.contains(". is not the folder of a grid"), "{said}");
    // A grid first, then a file system in the same folder.
    place.call("up R").succeeds();
    place.call("down R").succeeds();
    place.call("up R --mount M").succeeds();
    place.call("down R").succeeds();
    assert!(!place.is_mounted());
    let said = place.call("mkfs R").refused();
    assert!(said.contains("already holds a Forebay file system"), "{said}");
    place.call("mount R M").succeeds();
    place.call("up R").succeeds();
    place.call("down R").succeeds();
    assert!(place.is_mounted(), "it was not mounted by up");
    place.call("umount M").succeeds();
}

//! Faults of a live file system, each of which raises an alert and ends it: a disk that stands still, changes that wait for their commit,
//! a native fileset whose directory is gone, and a file that lost bytes.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use forebay_e2e::command::run;
use forebay_e2e::{LoopDisk, need, wait_until};
use forebay_process::stat::is_zombie;
use rustix::process::Pid;
use serde_json::Value;

use crate::alerts::{fires, webhook};
use crate::fixture::{LIMIT, Site, free_port};

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

/// What a webhook is told.
struct Notes {
    told: Receiver<Value>,
    seen: Vec<Value>,
}

impl Notes {
    /// Watches a file system of its own, with alerts as soon as something is wrong.
    fn watch(settings: &str) -> (Notes, Site) {
        let port = free_port();
        let notes = Notes { told: webhook(port), seen: Vec::new() };
        let site = Site::start_mounted(&format!(
            "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"0 s\"\nwebhook = \"http://127.0.0.1:{port}/\"\n{settings}"
        ));
        (notes, site)
    }

    /// Whether an alert came into this state, with a text that has these parts.
    fn find(&mut self, code: &str, state: &str, parts: &[&str]) -> bool {
        self.seen.extend(self.told.try_iter());
        self.seen.iter().any(|note| {
            let text = note["text"].as_str().expect("is a text");
            let is_it = note["code"] == code && note["state"] == state;
            is_it && parts.iter().all(|part| text.contains(part))
        })
    }

    /// Waits until an alert has come into this state, with a text that has these parts.
    fn wait(&mut self, code: &str, state: &str, parts: &[&str]) {
        wait_until(&format!("{code} is {state}: {parts:?}"), LIMIT, || {
            self.find(code, state, parts)
        });
    }
}

/// A disk that stands still until this is dropped.
struct Frozen<'a>(&'a LoopDisk);

impl Frozen<'_> {
    fn freeze(disk: &LoopDisk) -> Frozen<'_> {
        run(need::program("fsfreeze").arg("--freeze").arg(disk.path()), LIMIT).succeeds();
        Frozen(disk)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let ended = run(need::program("fsfreeze").arg("--unfreeze").arg(self.0.path()), LIMIT);
        if !std::thread::panicking() {
            ended.succeeds();
        }
    }
}

#[test]
fn a_disk_that_stands_still_is_an_alert_of_requests_that_wait_and_then_of_their_latency() {
    let disk = LoopDisk::make("xfs", 512);
    let (mut notes, site) = Notes::watch("wait = \"1 s\"\nlatency = \"500 ms\"\n");
    let (root, place) = (site.root(), disk.path().join("still"));
    fs::create_dir(&place).expect("makes a directory");
    let run = |arguments: &[&str]| site.forebay(arguments).succeeds();
    run(&["disk", "add", text(&root), text(&place), "--pool", "still"]);
    let served = ["--pool", "still", "--placement", "served"];
    run(&[&["fileset", "create", text(&root), "slow"], &served[..]].concat());
    let mut file = File::create(site.mountpoint().join("slow/file")).expect("creates");
    file.write_all(b"bytes").and_then(|()| file.sync_all()).expect("writes");
    let frozen = Frozen::freeze(&disk);
    let writer = std::thread::spawn(move || file.write_all(b"more").and_then(|()| file.sync_all()));
    // On a slow machine other requests may have waited before.
    notes.wait("wait", "firing", &["/slow/file", "forebay waiters"]);
    drop(frozen);
    writer.join().expect("ends").expect("writes");
    notes.wait("latency", "firing", &["one of 100 operations"]);
    for code in ["wait", "latency"] {
        notes.wait(code, "resolved", &[]);
        wait_until("it does not fire", LIMIT, || fires(&site, code).is_none());
    }
}

fn status(site: &Site) -> Value {
    let shown = site.forebay(&["status", text(&site.root()), "--json"]).output();
    serde_json::from_str(&shown).expect("is JSON")
}

/// Unmounts under the agents, which use work and util, and waits for the daemon's end.
fn unmount(site: &Site) {
    let daemon = status(site)["mount"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let daemon = daemon.and_then(Pid::from_raw).expect("a process");
    site.forebay(&["umount", "--lazy", text(&site.mountpoint())]).succeeds();
    wait_until("the daemon has exited", LIMIT, || is_zombie(daemon));
}

/// The file of this size below a folder.
fn file_of_size(folder: &Path, size: u64) -> Option<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().find_map(|entry| {
        let about = entry.metadata().ok()?;
        if about.is_dir() {
            return file_of_size(&entry.path(), size);
        }
        (about.len() == size).then(|| entry.path())
    })
}

#[test]
fn late_commits_a_native_fileset_that_is_gone_and_a_file_that_lost_bytes_are_alerts_until_they_are_mended()
 {
    let (mut notes, site) = Notes::watch("commit_age = \"500 ms\"\n");
    let (root, mount) = (site.root(), site.mountpoint());
    let root = text(&root);
    // Changes are committed after five seconds. On a slow machine nobody may look meanwhile: then there are further ones.
    let mut number = 0;
    wait_until("changes are late", LIMIT, || {
        number += 1;
        fs::write(mount.join(format!("data/file{number}")), "x").expect("writes");
        notes.find("commit_age", "firing", &["changes are not committed"])
    });
    notes.wait("commit_age", "resolved", &[]);

    let native = status(&site)["mount"]["native"].clone();
    let tree = native[0]["tree"].as_str().unwrap_or_else(|| panic!("a native fileset: {native}"));
    let code = format!("native/{}", native[0]["fileset"].as_str().expect("a name"));
    let place = Path::new(tree).parent().expect("is in a directory");
    let aside = place.with_added_extension("aside");
    fs::rename(place, &aside).expect("moves the directory away");
    notes.wait(&code, "firing", &["cannot be reached"]);
    fs::rename(&aside, place).expect("moves it back");
    notes.wait(&code, "resolved", &[]);

    let name = mount.join("data/lost");
    let mut file = File::create(&name).expect("creates");
    file.write_all(&[7; 30_011]).and_then(|()| file.sync_all()).expect("writes");
    drop(file);
    unmount(&site);
    let object = file_of_size(&site.root().join("disk/objects"), 30_011).expect("the object");
    fs::write(object, "short").expect("damages");
    site.forebay(&["mount", root, text(&mount)]).succeeds();
    fs::read(&name).expect_err("the file lost bytes");
    notes.wait("damaged/data", "firing", &["lost something"]);
    unmount(&site);
    let _ = site.forebay(&["fsck", root, "--repair"]).expect_code(1);
    site.forebay(&["mount", root, text(&mount)]).succeeds();
    assert_eq!(fs::read(&name).expect("reads"), b"short");
    notes.wait("damaged/data", "resolved", &[]);
    wait_until("it does not fire", LIMIT, || fires(&site, "damaged/data").is_none());
}

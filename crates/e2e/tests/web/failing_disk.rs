//! A disk that fails and comes back: alerts of the disk, of copies and of snapshots.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use forebay_e2e::{LoopDisk, need, wait_until};
use forebay_process::stat::is_zombie;
use rustix::process::Pid;
use serde_json::Value;

use crate::alerts::{fires, webhook};
use crate::fixture::{LIMIT, Site, free_port};

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

/// A directory on the disk.
fn place_on(disk: &LoopDisk, name: &str) -> PathBuf {
    let place = disk.path().join(name);
    fs::create_dir(&place).expect("makes a directory");
    place
}

/// What a webhook is told of these codes until each is in this state; the texts.
fn told_of(told: &Receiver<Value>, codes: &[String], state: &str) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    while codes.iter().any(|code| !texts.contains_key(code)) {
        let note = told.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{state}: {texts:#?}"));
        let field = |name: &str| note[name].as_str().expect("is a text").to_owned();
        if field("state") == state {
            texts.insert(field("code"), field("text"));
        }
    }
    texts
}

fn write_synced(path: &Path) -> std::io::Result<()> {
    File::create(path).and_then(|mut file| file.write_all(b"bytes").and(file.sync_all()))
}

#[test]
fn a_disk_that_fails_raises_alerts_of_itself_copies_and_snapshots_until_it_is_back() {
    let disk = LoopDisk::make("xfs", 512);
    let port = free_port();
    let told = webhook(port);
    let site = Site::start_mounted(&format!(
        "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nwebhook = \"http://127.0.0.1:{port}/\"\n"
    ));
    let (root, mount) = (site.root(), site.mountpoint());
    let root = text(&root);
    let run = |arguments: &[&str]| site.forebay(arguments).succeeds();
    // One disk for second copies, and one of which a fileset has no copies, with snapshots by schedule.
    let (copies, alone) = (place_on(&disk, "copies"), place_on(&disk, "alone"));
    run(&["disk", "add", root, text(&copies), "--group", "shelf-2"]);
    run(&["disk", "add", root, text(&alone), "--pool", "alone"]);
    run(&["fileset", "set", root, "data", "--copies", "2"]);
    run(&["fileset", "create", root, "held", "--pool", "alone"]);
    run(&["snapshot", "schedule", "set", root, "held", "--every", "10s", "--keep", "2"]);
    write_synced(&mount.join("data/first")).expect("writes");
    let mut held = File::create(mount.join("held/file")).expect("creates");
    held.write_all(b"bytes").and_then(|()| held.sync_all()).expect("writes");
    wait_until("a snapshot is made", LIMIT, || {
        site.forebay(&["snapshot", "list", root, "held"]).output().contains("every-10s")
    });
    assert!(fires(&site, &format!("disk/{}", text(&copies))).is_none());

    let mut shutdown = need::program("xfs_io");
    shutdown.args(["-x", "-c", "shutdown"]).arg(disk.path());
    assert!(shutdown.status().expect("runs xfs_io").success());
    // A program that meets an error goes on with its next file.
    let _ = write_synced(&mount.join("data/second"));
    let _ = held.write_all(b"more").and_then(|()| held.sync_all());
    let codes = [
        format!("disk/{}", text(&copies)),
        format!("disk_errors/{}", text(&copies)),
        "copies/data".to_owned(),
        "snapshots/held".to_owned(),
    ];
    let raised = told_of(&told, &codes, "firing");
    assert!(raised[&codes[0]].contains("does not accept writes"), "{raised:#?}");
    assert!(raised[&codes[2]].contains("files lack copies"), "{raised:#?}");
    assert!(raised[&codes[3]].contains("failed"), "{raised:#?}");
    // The page and the command say the same.
    assert!(codes.iter().all(|code| fires(&site, code).is_some()));
    let (cookie, _) = crate::pages::session(&site);
    let page = site.send("GET", "/health", &[("Cookie", &cookie)], "").body;
    assert!(codes.iter().all(|code| page.contains(code.as_str())), "{page}");

    drop(held);
    let status: Value =
        serde_json::from_str(&site.forebay(&["status", root, "--json"]).output()).expect("is JSON");
    let daemon = status["mount"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let daemon = daemon.and_then(Pid::from_raw).expect("a process");
    // Not everything can be committed.
    run(&["umount", "--lazy", text(&mount)]);
    wait_until("the daemon has exited", LIMIT, || is_zombie(daemon));
    disk.remount();
    run(&["mount", root, text(&mount)]);
    let resolved = told_of(&told, &codes, "resolved");
    assert!(
        resolved.values().all(|text| !text.contains("no longer monitored")),
        "an unmount that loses something ends no alert: {resolved:#?}"
    );
    assert!(codes.iter().all(|code| fires(&site, code).is_none()));
    assert_eq!(fs::read(mount.join("data/first")).expect("reads"), b"bytes");
}

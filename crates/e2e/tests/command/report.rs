//! `forebay status` and `forebay stat`.

use std::fs;
use std::time::Duration;

use forebay_e2e::content::pattern;
use forebay_e2e::{Mounted, Placement, on_both_paths, wait_until};
use serde_json::Value;

use crate::{assert_says, json};

/// The kernel tells the daemon of a close after it has told the program (RELEASE is not waited for).
const LIMIT: Duration = Duration::from_secs(20);

on_both_paths!(status_tells_what_is_mounted_and_how, stat_counts_what_is_done);

fn status_tells_what_is_mounted_and_how(grid: &Mounted) {
    for number in 0..10 {
        fs::write(grid.data().join(format!("file-{number}")), pattern(number, 10_000))
            .expect("writes");
    }
    let data = |status: &Value| {
        let filesets = status["filesets"].as_array().expect("is a list").clone();
        filesets.into_iter().find(|fileset| fileset["name"] == "data").expect("data is listed")
    };
    let mut status = Value::Null;
    wait_until("the daemon was told of all closes", LIMIT, || {
        status = json(&grid.run_on_root(&["status"], &["--json"]).output());
        data(&status)["bytes"] == 100_000
    });
    let mount = &status["mount"];
    assert_eq!(mount["mountpoint"].as_str(), grid.mountpoint().to_str());
    assert_eq!(mount["passthrough"], grid.placement() == Placement::Direct);
    assert!(mount["commit_age_seconds"].as_f64().is_some_and(|age| age < 60.0), "{mount:#}");
    let transport = mount["transport"].as_str();
    assert!(transport.is_some_and(|transport| !transport.is_empty()));
    let disk = &status["disks"][0];
    assert!(disk["location"].as_str().is_some_and(|place| place.contains("root")), "{disk:#}");
    assert!(disk["available_bytes"].as_u64().is_some_and(|free| free > 0), "{disk:#}");
    assert!(disk["objects_in_use"].as_u64().is_some_and(|objects| objects >= 10), "{disk:#}");
    assert!(disk["spare_objects"].is_u64(), "{disk:#}");
    assert_eq!(disk["errors"], 0);

    let fileset = data(&status);
    assert_eq!((&fileset["durability"], &fileset["bytes"]), (&"strict".into(), &100_000.into()));
    assert!(fileset["files"].as_u64().is_some_and(|files| files >= 10), "{fileset:#}");
    assert_says(&grid.run_on_root(&["status"], &[]).output(), &["data", "strict", "mounted"]);

    grid.umount();
    let status = json(&grid.run_on_root(&["status"], &["--json"]).output());
    assert!(status["mount"].is_null(), "{status:#}");
    assert_eq!(status["clean"], true);
    assert_eq!(data(&status), fileset, "the same without a mount");
    assert_says(&grid.run_on_root(&["status"], &[]).output(), &["no", "data"]);
}

fn stat_counts_what_is_done(grid: &Mounted) {
    for number in 0..10_u64 {
        let path = grid.work().join(format!("file-{number}"));
        fs::write(&path, pattern(number, 100_000)).expect("writes");
        fs::read(&path).expect("reads");
        fs::rename(&path, path.with_extension("renamed")).expect("renames");
        fs::remove_file(path.with_extension("renamed")).expect("removes");
    }
    let mountpoint = grid.mountpoint();
    let mountpoint = mountpoint.to_str().expect("plain path");
    // Without an interval: everything since the mount.
    let (mut found, mut work) = (Value::Null, Value::Null);
    wait_until("the daemon was told of all closes", LIMIT, || {
        found = json(&grid.run(&["stat", mountpoint, "--json"]).output());
        let filesets = found["filesets"].as_array().expect("is a list");
        let of_work = filesets.iter().find(|fileset| fileset["name"] == "work");
        work = of_work.expect("work is listed").clone();
        work["bytes_written"] == 1_000_000
    });
    for counted in ["creates", "unlinks", "renames"] {
        assert_eq!(work[counted], 10, "{counted}: {work:#}");
        assert!(found["latency"][counted]["p99_us"].as_f64().is_some_and(|time| time > 0.0));
    }
    match grid.placement() {
        // The kernel carries the bytes: the daemon sees how much the files have grown.
        Placement::Direct => assert_eq!((&work["reads"], &work["writes"]), (&0.into(), &0.into())),
        Placement::Served => assert!(work["writes"].as_u64() >= Some(10), "{work:#}"),
    }
    let lines = grid.run(&["stat", mountpoint, "--interval", "1", "--count", "2", "--json"]);
    let intervals: Vec<_> = lines.output().lines().map(json).collect();
    assert_eq!(intervals.len(), 2, "one line of JSON for each interval");
    grid.run(&["stat", mountpoint]).succeeds();
    grid.umount();
    assert_says(&grid.run(&["stat", mountpoint]).refused(), &[mountpoint]);
}

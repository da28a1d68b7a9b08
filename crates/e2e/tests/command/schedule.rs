//! `forebay snapshot schedule`.

use std::fs;
use std::time::Duration;

use forebay_e2e::{Mounted, Placement, wait_until};
use serde_json::Value;

use crate::{assert_says, json};

const LIMIT: Duration = Duration::from_secs(300);

fn schedules(grid: &Mounted) -> Vec<Value> {
    let listed = grid.run_on_root(&["snapshot", "schedule", "list"], &["--json"]).output();
    json(&listed).as_array().expect("is a list").clone()
}

fn set(grid: &Mounted, arguments: &[&str]) -> forebay_e2e::Ended {
    grid.run_on_root(&["snapshot", "schedule", "set"], arguments)
}

fn names(grid: &Mounted) -> Vec<String> {
    let listed = json(&grid.run_on_root(&["snapshot", "list"], &["data", "--json"]).output());
    let name = |one: &Value| one["name"].as_str().expect("has a name").to_owned();
    listed.as_array().expect("is a list").iter().map(name).collect()
}

#[test]
fn snapshots_are_made_by_schedule_and_the_latest_ones_are_kept() {
    let grid = Mounted::start(Placement::Direct);
    fs::write(grid.data().join("file"), b"bytes").expect("writes");
    grid.run_on_root(&["snapshot", "create"], &["data", "by-hand"]).succeeds();
    assert!(schedules(&grid).is_empty());
    set(&grid, &["data", "--every", "10s", "--keep", "2", "--every", "1d", "--keep", "7"])
        .succeeds();
    let listed = grid.run_on_root(&["snapshot", "schedule", "list"], &[]).output();
    assert_says(&listed, &["FILESET", "data", "10s", "1d", "ready"]);
    let mut seen = std::collections::BTreeSet::new();
    wait_until("a third snapshot is made and the first one deleted", LIMIT, || {
        let now = names(&grid);
        seen.extend(now.iter().filter(|name| name.starts_with("every-10s-20")).cloned());
        // The new one is made before the old one is deleted.
        assert!(now.contains(&"by-hand".to_owned()) && now.len() <= 4, "{now:?}");
        seen.len() >= 3 && !now.contains(seen.first().expect("there is one"))
    });
    let latest = seen.last().expect("there is one");
    assert!(latest.ends_with('Z'), "{latest}");
    assert!(
        grid.data().join(".snapshots").join(latest).join("file").exists()
            || names(&grid).iter().all(|name| name != latest)
    );

    // Kept over a crash and a mount; changed and ended without a mount.
    grid.kill();
    grid.mount();
    assert_eq!(schedules(&grid).len(), 2);
    grid.umount();
    let before = schedules(&grid);
    assert_eq!(before.len(), 2, "{before:?}");
    set(&grid, &["data", "--every", "1d", "--keep", "3"]).succeeds();
    let after = schedules(&grid);
    assert_eq!((after.len(), &after[0]["next_seconds"]), (1, &before[1]["next_seconds"]));
    grid.run_on_root(&["snapshot", "schedule", "remove"], &["data"]).succeeds();
    assert!(schedules(&grid).is_empty());
    assert!(names(&grid).len() >= 2, "the snapshots stay");
    grid.is_clean();
}

#[test]
fn a_missed_snapshot_is_made_once_when_the_file_system_is_mounted_again() {
    let grid = Mounted::start(Placement::Direct);
    set(&grid, &["data", "--every", "1d", "--keep", "7"]).succeeds();
    grid.umount();
    // As if it had not been mounted for a week.
    let path = grid.root().join("snapshot-schedules.json");
    let mut stored = json(&fs::read_to_string(&path).expect("reads"));
    let next = stored["schedules"][0]["next_seconds"].as_i64().expect("is a number");
    stored["schedules"][0]["next_seconds"] = Value::from(next - 8 * 86_400);
    fs::write(&path, stored.to_string()).expect("writes");
    grid.mount();
    wait_until("the missed snapshot is noted", LIMIT, || {
        schedules(&grid)[0]["next_seconds"].as_i64().is_some_and(|now| now >= next)
    });
    // Midnight may have passed meanwhile.
    let made = names(&grid);
    assert!((1..=2).contains(&made.len()), "{made:?}");
    assert!(made[0].starts_with("every-1d-20"), "{made:?}");
    assert_eq!(schedules(&grid)[0]["latest"].as_str(), made.last().map(String::as_str));
}

#[test]
fn schedules_that_cannot_be_carried_out_are_refused_or_shown_with_the_reason() {
    let grid = Mounted::start(Placement::Direct);
    assert_says(&set(&grid, &["none", "--every", "1h", "--keep", "2"]).refused(), &["none"]);
    assert_says(
        &set(&grid, &["data", "--every", "1y", "--keep", "2"]).refused(),
        &["1y", "15m, 1h, 1d or 1w"],
    );
    assert_says(
        &set(&grid, &["data", "--every", "1h", "--every", "1d", "--keep", "2"]).refused(),
        &["one --keep for each --every"],
    );
    let too_many = ["data", "--every", "1h", "--keep", "900", "--every", "1d", "--keep", "900"];
    assert_says(&set(&grid, &too_many).refused(), &["1800", "1000", "--keep"]);
    let none = grid.run_on_root(&["snapshot", "schedule", "remove"], &["data"]).refused();
    assert_says(&none, &["data", "has no schedules"]);
    grid.add_settings("snapshot_schedules_max = 1");
    let bounded = ["data", "--every", "1h", "--keep", "2", "--every", "1d", "--keep", "2"];
    assert_says(&set(&grid, &bounded).refused(), &["2 schedules", "snapshot_schedules_max", "1"]);

    // The fileset is removed: its schedule goes.
    grid.run_on_root(&["fileset", "create"], &["more"]).succeeds();
    set(&grid, &["more", "--every", "1w", "--keep", "2"]).succeeds();
    grid.run_on_root(&["fileset", "remove"], &["more"]).succeeds();
    assert!(schedules(&grid).is_empty());

    // A damaged file does not keep the file system from being mounted.
    grid.umount();
    fs::write(grid.root().join("snapshot-schedules.json"), b"{").expect("writes");
    grid.expect_log("no snapshots are made by schedule");
    grid.mount();
    let said = grid.run_on_root(&["snapshot", "schedule", "list"], &[]).refused();
    assert_says(&said, &["snapshot-schedules.json", "damaged", "remove it"]);
    assert_says(
        &grid.run_on_root(&["status"], &[]).output(),
        &["NO SCHEDULE IS CARRIED OUT", "damaged"],
    );
}

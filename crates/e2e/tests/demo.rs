//! `forebay demo`: the first job on real data.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::grid::{is_mounted, scratch_folder};
use forebay_e2e::{Ended, need, run};

const LIMIT: Duration = Duration::from_secs(300);
/// Flights in the data set.
const ROWS: &str = "336776";

/// The flights that `make setup` brings.
fn flights() -> PathBuf {
    let named = std::env::var_os("FOREBAY_FLIGHTS_CSV").map(PathBuf::from);
    let path = named.unwrap_or_else(|| need::workspace().join(".cache/flights.csv"));
    assert!(path.is_file(), "{} is missing: run `make setup`", path.display());
    path
}

fn demo(csv: &Path, arguments: &[&str], stage: &Path) -> Ended {
    need::root();
    need::fuse();
    let mut command = std::process::Command::new(need::forebay());
    command.arg("demo").args(arguments).arg("--csv").arg(csv).arg("--folder").arg(stage);
    command.arg("--report").arg(report(stage)).args(["--scale", "0.00005"]);
    run(&mut command, LIMIT)
}

/// Where the report goes.
fn report(stage: &Path) -> PathBuf {
    stage.with_extension("report")
}

/// What the output says without separators in numbers.
fn plain(output: &str) -> String {
    output.replace(',', "")
}

#[test]
fn the_demo_computes_and_leaves_nothing_behind() {
    let folder = scratch_folder();
    let stage = folder.path().join("stage");
    let output = demo(&flights(), &["--rows-times", "3"], &stage).output();
    for step in ["import", "repeat", "sort", "summary", "regression", "export", "clean"] {
        assert!(output.contains(step), "{step} is missing:\n{output}");
    }
    let rows = (3 * ROWS.parse::<u64>().expect("a number")).to_string();
    assert!(plain(&output).contains(&rows), "{rows} rows are missing:\n{output}");
    assert!(!stage.exists(), "the folder is removed");
    assert!(output.contains("All 77 jobs succeeded"), "the workload is missing:\n{output}");
    let page = report(&stage).join("report.html");
    assert!(page.is_file() && output.contains("report.html"), "the report is outside, and named");
}

#[test]
fn the_demo_can_be_kept_to_look_around() {
    let folder = scratch_folder();
    let stage = folder.path().join("stage");
    let ended = demo(&flights(), &["--rows-times", "1", "--keep"], &stage);
    let mountpoint = stage.join("grid");
    let mounted = is_mounted(&mountpoint);
    let results = fs::read_dir(mountpoint.join("data")).map(Iterator::count).unwrap_or(0);
    // The grid is kept as well: it ends and unmounts.
    let down = run(
        std::process::Command::new(need::forebay()).arg("down").arg(stage.join("root")),
        Duration::from_secs(60),
    );
    ended.succeeds();
    assert!(mounted && results >= 3, "mounted: {mounted}, {results} files in data");
    down.succeeds();
    assert!(!is_mounted(&mountpoint), "down unmounts");
    let fsck = run(
        std::process::Command::new(need::forebay()).arg("fsck").arg(stage.join("root")),
        Duration::from_secs(60),
    );
    fsck.succeeds();
}

#[test]
fn the_demo_tells_where_bad_data_is_and_leaves_nothing_behind() {
    let folder = scratch_folder();
    let stage = folder.path().join("stage");
    let csv = folder.path().join("bad.csv");
    let good = fs::read_to_string(flights()).expect("reads the flights");
    let mut lines: Vec<&str> = good.lines().take(20).collect();
    let bad = format!("{},one field too many", lines[9]);
    lines[9] = &bad;
    fs::write(&csv, lines.join("\n")).expect("writes");
    let message = demo(&csv, &["--rows-times", "1"], &stage).refused();
    for part in ["bad.csv", "line 10"] {
        assert!(message.contains(part), "{part} is missing: {message}");
    }
    assert!(!stage.exists(), "the folder is removed");
    let message = demo(&folder.path().join("missing.csv"), &[], &stage).refused();
    assert!(message.contains("missing.csv"), "{message}");
    assert!(!stage.exists(), "the folder is removed");
}

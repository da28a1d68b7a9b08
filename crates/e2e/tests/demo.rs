//! `forebay demo`: the first job on real data.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_e2e::mounted::{is_mounted, scratch_folder};
use forebay_e2e::{Ended, need, run};
use rustix::process::{Pid, Signal, kill_process};

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
    let mut command = Command::new(need::forebay());
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
        Command::new(need::forebay()).arg("down").arg(stage.join("root")),
        Duration::from_secs(60),
    );
    ended.succeeds();
    assert!(mounted && results >= 3, "mounted: {mounted}, {results} files in data");
    down.succeeds();
    assert!(!is_mounted(&mountpoint), "down unmounts");
    let fsck = run(
        Command::new(need::forebay()).arg("fsck").arg(stage.join("root")),
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

/// A demonstration of a cluster in a folder that it makes.
fn cluster_demo(stage: &Path) -> Command {
    need::root();
    need::fuse();
    let mut command = Command::new(need::forebay());
    command.args(["demo", "--cluster", "--scale", "0.00002", "--folder"]).arg(stage);
    command.arg("--report").arg(report(stage));
    command
}

/// Nothing of a demonstration is left: folder, namespaces, mounts, daemons.
#[track_caller]
fn assert_nothing_is_left(stage: &Path, pid: u32) {
    assert!(!stage.exists(), "the folder is removed");
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let own = format!("fbdemo-{pid}-");
    let left = namespaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = left.filter(|name| name.starts_with(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("reads the mounts");
    let folder = format!("{}/", stage.display());
    assert!(!mounts.contains(&folder), "{mounts}");
    for process in fs::read_dir("/proc").expect("lists processes").flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(&folder), "still runs: {line}");
    }
}

#[test]
fn the_demo_of_a_cluster_kills_a_node_and_leaves_nothing_behind() {
    let folder = scratch_folder();
    let stage = folder.path().join("stage");
    let mut child = cluster_demo(&stage).stdout(Stdio::piped()).spawn().expect("starts");
    let mut output = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut output).expect("reads what it says");
    let status = child.wait().expect("waits for it");
    assert!(status.success(), "{output}");
    for said in
        ["n3 joined it", "is killed (kill -9)", "is available on", "on all nodes at once", "done:"]
    {
        assert!(output.contains(said), "{said} is missing:\n{output}");
    }
    assert!(report(&stage).join("report.html").is_file(), "{output}");
    assert_nothing_is_left(&stage, child.id());
}

#[test]
fn the_demo_of_a_cluster_clears_up_when_it_is_interrupted() {
    let folder = scratch_folder();
    let stage = folder.path().join("stage");
    let mut child = cluster_demo(&stage).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let begun = lines.any(|line| line.is_ok_and(|line| line.contains("calibration workload")));
    assert!(begun, "the workload does not begin");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("a process");
    kill_process(pid, Signal::INT).expect("interrupts it");
    lines.for_each(drop);
    assert!(!child.wait().expect("waits for it").success());
    assert_nothing_is_left(&stage, child.id());
}

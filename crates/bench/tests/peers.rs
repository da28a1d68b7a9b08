//! The comparison with peers, at a tiny scale: it measures, it says what it cannot measure, and it
//! leaves nothing behind, also when it is interrupted or killed.
//!
//! Needs root, and the programs of `scripts/setup test`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Waits for what a killed benchmark leaves to go, and the pause between two looks.
const WAITS: usize = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// A folder on a disk with a short path.
fn scratch() -> TempDir {
    assert!(rustix::process::geteuid().is_root(), "this test needs root: run it with sudo");
    let parent = std::env::var_os("FOREBAY_E2E_DIR").unwrap_or_else(|| "/var/tmp".into());
    tempfile::Builder::new().prefix("p").tempdir_in(parent).expect("makes a scratch folder")
}

/// The benchmark with amounts that take no time, on subjects that need no installation.
fn bench(scratch: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-bench"));
    // The command of this name answers every question with nothing: Forebay is not measured here.
    command.args(["peers", "--forebay", "/bin/true", "--scale", "0.001", "--pause", "0"]);
    command.args(["--budget", "0.05", "--scratch"]).arg(scratch).args(more);
    command
}

/// Everything on the machine that knows the path `below`: mounts, loop devices, processes other than
/// this one.
fn remains(below: &Path) -> Vec<String> {
    let below = below.to_str().expect("a path of letters");
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<String>>();
    let mut found = lines(fs::read_to_string("/proc/self/mountinfo").expect("reads the mounts"));
    for entry in fs::read_dir("/sys/block").expect("lists block devices") {
        let file = entry.expect("lists block devices").path().join("loop/backing_file");
        found.extend(fs::read_to_string(file).map(lines).unwrap_or_default());
    }
    for entry in fs::read_dir("/proc").expect("lists processes") {
        let process = entry.expect("lists processes").path();
        let own = process.ends_with(std::process::id().to_string());
        if let Some(line) = fs::read(process.join("cmdline")).ok().filter(|_| !own) {
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found.retain(|line| line.contains(below));
    found
}

fn assert_nothing_is_left(scratch: &TempDir) {
    let left: Vec<PathBuf> = fs::read_dir(scratch.path())
        .expect("lists the scratch folder")
        .map(|entry| entry.expect("lists the scratch folder").path())
        .filter(|path| path.extension().is_none())
        .collect();
    assert!(left.is_empty(), "left in the scratch folder: {left:?}");
    assert_eq!(remains(scratch.path()), Vec::<String>::new());
}

/// Starts a benchmark that lasts and waits until its first subject is up.
fn start_and_wait(scratch: &Path) -> Child {
    let mut child = bench(scratch, &["--peers", "xfs", "--rounds", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts the benchmark");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready after")));
    assert!(ready.is_some(), "the subject never got ready");
    // Whoever writes into a closed pipe fails: read on.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

#[test]
fn subjects_are_measured_or_named_with_the_reason_and_nothing_is_left() {
    let scratch = scratch();
    let samples = scratch.path().join("samples.json");
    let page = scratch.path().join("page.md");
    fs::write(&page, "# Page\n").expect("writes a page");
    let output = bench(scratch.path(), &["--peers", "xfs,forebay,mergerfs", "--rounds", "2"])
        .args(["--loads", "sequential,storm-four,calibration-four,metadata,sqlite,tree"])
        .arg("--json")
        .arg(&samples)
        .arg("--output")
        .arg(&page)
        .output()
        .expect("runs the benchmark");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value =
        serde_json::from_slice(&fs::read(&samples).expect("reads the samples")).expect("JSON");
    let loads = |peer: &str| {
        let samples = report["samples"].as_array().expect("samples").iter();
        samples.filter(|sample| sample["peer"] == peer).count()
    };
    assert_eq!(loads("xfs"), 12, "{said}");
    let refused: Vec<&Value> = report["refusals"]
        .as_array()
        .expect("refusals")
        .iter()
        .map(|refusal| &refusal["peer"])
        .collect();
    assert!(refused.contains(&&Value::from("forebay")), "{said}");
    // mergerfs is measured where it is installed.
    assert_eq!(loads("mergerfs") == 12, !refused.contains(&&Value::from("mergerfs")), "{said}");
    let page = fs::read_to_string(&page).expect("reads the page");
    assert!(page.starts_with("# Page\n\n<!-- bench-peers: begin -->"), "{page}");
    assert!(page.contains("Forebay did not start in round 1: "), "{page}");
    assert_nothing_is_left(&scratch);
}

#[test]
fn an_interrupted_comparison_leaves_nothing() {
    let scratch = scratch();
    let mut child = start_and_wait(scratch.path());
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("interrupts it");
    assert!(!child.wait().expect("waits").success());
    assert_nothing_is_left(&scratch);
}

#[test]
fn a_killed_comparison_leaves_files_only() {
    let scratch = scratch();
    let mut child = start_and_wait(scratch.path());
    child.kill().expect("kills it");
    child.wait().expect("waits");
    let mut waits = 0;
    while !remains(scratch.path()).is_empty() && waits < WAITS {
        std::thread::sleep(PAUSE);
        waits += 1;
    }
    assert_eq!(remains(scratch.path()), Vec::<String>::new());
}

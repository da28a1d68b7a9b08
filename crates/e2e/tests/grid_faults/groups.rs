//! What jobs use is counted with all their processes, and nothing of a job outlives it.

use std::path::{Path, PathBuf};

use forebay_e2e::wait_until;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::fixture::{Fixture, LIMIT, STEADY};

/// Uses more than a second of processor time in a process that nobody waits for, and ends.
const UNWAITED: &str = "\
setsid python3 -c 'import time
while time.process_time() < 1.2: pass
open(\"spent\", \"w\")
time.sleep(600)' &
while ! [ -e spent ]; do sleep 0.05; done";

/// What the last start of a job used.
fn used(grid: &Fixture, job: &str) -> Value {
    grid.history(job).last().expect("a start")["usage"].clone()
}

fn cpu_seconds(used: &Value) -> f64 {
    let seconds = |name: &str| used[name].as_f64().expect("a number");
    seconds("user_seconds") + seconds("system_seconds")
}

/// Folders of groups of this grid.
fn groups(grid: &Fixture) -> Vec<PathBuf> {
    let id = std::fs::read_to_string(grid.root.join("grid/id")).expect("reads");
    let mut found = Vec::new();
    find(Path::new("/sys/fs/cgroup"), id.trim(), 4, &mut found);
    found
}

fn find(folder: &Path, id: &str, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.path().display().to_string().contains(id) {
                found.push(entry.path());
            }
            if depth > 0 {
                find(&entry.path(), id, depth - 1, found);
            }
        }
    }
}

/// How hosts hold their jobs, as they say.
fn containment(grid: &Fixture) -> String {
    let said = || grid.json(&["hosts"])[0]["containment"].as_str().map(str::to_owned);
    wait_until("the host has said it", LIMIT, || said().is_some());
    said().expect("it was there")
}

fn counts_everything(cgroup: &str) {
    let grid = Fixture::start_with(1, "", &["--cgroup", cgroup]);
    let job = grid.submit(&[], UNWAITED);
    grid.wait_for(&job, "done");
    let spent = cpu_seconds(&used(&grid, &job));
    assert!(spent >= 1.0, "{spent} s: {}", used(&grid, &job));
    let table = grid.json(&["usage", "--by", "user"]);
    let charged = cpu_seconds(&table[0]);
    assert!(charged >= 1.0, "fair share and usage: {table}");
    let killed = grid.submit(&["--time-limit", "20 s"], "sh -c 'while :; do :; done' & wait; wait");
    grid.wait_for(&killed, "time_limit");
    let spent = cpu_seconds(&used(&grid, &killed));
    assert!(spent >= 0.5, "{spent} s of a job that reached its time limit");
}

#[test]
fn accounting_counts_children_that_were_not_waited_for() {
    counts_everything("own");
}

#[test]
fn without_groups_accounting_counts_children_that_were_not_waited_for() {
    counts_everything("none");
}

/// Writes and syncs in a process that nobody waits for, until it has taken some tenths of a second.
const SYNCS: &str = "\
setsid python3 -c 'import os, time
end = time.monotonic() + 0.5
file = os.open(\"synced\", os.O_RDWR | os.O_CREAT)
while time.monotonic() < end:
    os.pwrite(file, b\"x\" * 65536, 0)
    os.fsync(file)
open(\"done\", \"w\")' &
while ! [ -e done ]; do sleep 0.05; done";

#[test]
fn waits_for_input_and_output_of_all_processes_are_recorded() {
    let grid = Fixture::start_with(1, "", &["--cgroup", "own"]);
    let waited = |script: &str| {
        let job = grid.submit(&[], script);
        grid.wait_for(&job, "done");
        let used = used(&grid, &job);
        let waited = used["io_pressure_seconds"].as_f64();
        let waited = waited.unwrap_or_else(|| panic!("no io.pressure of the group: {used}"));
        assert!(waited <= used["real_seconds"].as_f64().expect("a number") + 1.0, "{used}");
        waited
    };
    let (synced, slept) = (waited(SYNCS), waited("sleep 0.5"));
    assert!(synced > slept && synced > 0.01, "{synced} s with syncs, {slept} s without");
}

#[test]
fn peak_memory_is_the_sum_of_the_processes_and_shows_while_they_run() {
    const MIB_64: &str = "import sys,time; b=bytearray(64<<20); time.sleep(600)";
    for cgroup in ["own", "none"] {
        let grid = Fixture::start_with(1, "", &["--cgroup", cgroup]);
        let script = format!("for i in 1 2 3 4; do python3 -c '{MIB_64}' & done; sleep 600");
        let job = grid.submit(&[], &script);
        let peak = || grid.json(&["jobs", &job])[0]["usage"]["peak_memory_bytes"].as_f64();
        wait_until("the sum is seen", LIMIT, || peak().is_some_and(|peak| peak >= 256e6));
        let shown = grid.forebay(&["jobs", "-l", &job]).output();
        assert!(shown.contains("peak memory"), "{shown}");
        grid.forebay(&["kill", &job]).succeeds();
        grid.wait_for(&job, "killed");
        let peak = used(&grid, &job)["peak_memory_bytes"].as_f64().expect("a number");
        assert!((256e6..512e6).contains(&peak), "{peak}");
    }
}

/// Starts a job with a process in a session of its own, two parents away from its shim.
fn with_escaped(grid: &Fixture) -> String {
    let script = "(setsid sh -c 'echo $$ >escaped.part; mv escaped.part escaped; exec sleep 600' &); sleep 600";
    let job = grid.submit(&[], script);
    wait_until("it runs", LIMIT, || grid.jobs.join("escaped").exists());
    // What was never reported as running may start again.
    grid.wait_for(&job, "running");
    job
}

fn escaped_lives(grid: &Fixture) -> bool {
    let said = std::fs::read_to_string(grid.jobs.join("escaped")).expect("reads");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", said.trim()));
    // Behind the name comes the state; a zombie has ended.
    stat.is_ok_and(|stat| !stat.rsplit_once(") ").is_none_or(|rest| rest.1.starts_with('Z')))
}

#[test]
fn nothing_of_a_job_outlives_a_shim_that_was_killed() {
    let grid = Fixture::start(1, STEADY);
    assert_ne!(containment(&grid), "tree", "{}", grid.log("h1"));
    let job = with_escaped(&grid);
    assert!(escaped_lives(&grid));
    for shim in grid.shims() {
        kill_process(shim, Signal::KILL).expect("kills");
    }
    grid.wait_for(&job, "host_lost");
    wait_until("the escaped process has ended", LIMIT, || !escaped_lives(&grid));
}

#[test]
fn nothing_of_a_job_outlives_agent_and_shim_that_were_killed() {
    let mut grid = Fixture::start(1, STEADY);
    let job = with_escaped(&grid);
    let watchdogs = grid.processes("cmdline", "--watchdog");
    grid.kill_agent("h1");
    for process in watchdogs.into_iter().chain(grid.shims()) {
        kill_process(process, Signal::KILL).expect("kills");
    }
    grid.start_agent("h1");
    wait_until("the escaped process has ended", LIMIT, || !escaped_lives(&grid));
    grid.wait_for(&job, "host_lost");
}

#[test]
fn groups_go_with_their_jobs_and_the_last_with_the_host() {
    let grid = Fixture::start(1, STEADY);
    assert!(!groups(&grid).is_empty(), "{}", grid.log("h1"));
    let jobs = ["-J", "many[1-20]", "--mem", "1 GiB", "-n", "2"];
    let jobs = grid.submit(&jobs, "setsid sleep 600 & true");
    wait_until("they have ended", LIMIT, || {
        let all = grid.json(&["jobs", &jobs]);
        all.as_array().is_some_and(|all| all.iter().all(|job| job["state"] == "done"))
    });
    // Folders of the host are left: one for each hierarchy, of version 2 and for memory, cpu and pids of version 1.
    wait_until("their groups are gone", LIMIT, || groups(&grid).len() <= 4);
    let _ = with_escaped(&grid);
    let root = grid.root.display().to_string();
    grid.forebay(&["down", &root, "--now"]).succeeds();
    assert_eq!(groups(&grid), Vec::<PathBuf>::new());
    assert!(!escaped_lives(&grid));
}

#[test]
fn a_job_that_exceeds_its_memory_ends_with_that_reason_or_is_warned_of() {
    let eat = "b=bytearray(400<<20); import time; time.sleep(600)";
    let words = ["submit", "--mem", "64 MiB", "--", "python3", "-c", eat];
    let grid = Fixture::start(1, "");
    if containment(&grid) == "group_with_memory" {
        let submitted = grid.forebay(&words);
        assert_eq!(submitted.stderr, "");
        let job = submitted.output().trim().to_owned();
        grid.wait_for(&job, "exited");
        let said = [grid.forebay(&["jobs", &job]), grid.forebay(&["history", &job])];
        for said in said.map(|ended| ended.output()) {
            assert!(said.contains("memory limit of 64 MiB exceeded"), "{said}");
        }
        let small = grid
            .submit(&["--mem", "64 MiB"], "dd if=/dev/zero of=large bs=1M count=200 && rm large");
        grid.wait_for(&small, "done");
    }
    drop(grid);
    let grid = Fixture::start_with(1, "", &["--cgroup", "none"]);
    assert_eq!(containment(&grid), "tree");
    let submitted = grid.forebay(&["submit", "--mem", "64 MiB", "--", "true"]);
    let warning = "warning: --mem 64 MiB is reserved but not enforced on h1";
    assert!(submitted.stderr.contains(warning), "{submitted:?}");
    let hosts = grid.forebay(&["hosts"]).output();
    assert!(hosts.contains("--mem not enforced"), "{hosts}");
}

/// Whether the host can set a limit; if not, it says why.
fn has_limit(grid: &Fixture, name: &str) -> bool {
    assert_ne!(containment(grid), "tree", "{}", grid.log("h1"));
    let missing = grid.json(&["hosts"])[0]["missing_limits"][name].clone();
    if let Some(reason) = missing.as_str() {
        let said = grid.forebay(&["hosts"]).stderr;
        assert!(said.contains(reason), "{said}");
        eprintln!("skipped: {reason}");
    }
    missing.is_null()
}

#[test]
fn a_job_that_is_refused_processes_fails_with_that_reason() {
    let grid = Fixture::start(1, "[[queue]]\nname = \"normal\"\nprocesses_max = 20\n");
    if !has_limit(&grid, "processes") {
        return;
    }
    let many = "i=0; while [ $i -lt 40 ]; do sleep 600 & i=$((i+1)); done";
    let failed = grid.submit(&[], many);
    grid.wait_for(&failed, "exited");
    for said in [grid.forebay(&["jobs", &failed]), grid.forebay(&["history", &failed])] {
        let said = said.output();
        assert!(said.contains("limit of 20 processes and threads reached"), "{said}");
    }
    let copes = grid.submit(&[], &format!("({many}); true"));
    grid.wait_for(&copes, "done");
    let runs = grid.submit(&[], "sleep 600");
    grid.wait_for(&runs, "running");
    let explained = grid.forebay(&["explain", &runs]).output();
    assert!(explained.contains("limit it to 20 processes and threads"), "{explained}");
    grid.forebay(&["kill", &runs]).succeeds();
    grid.wait_for(&runs, "killed");
}

/// Has a job write down what its group says of processors, in either version.
const READS_ITS_GROUP: &str = "\
find /sys/fs/cgroup -name cgroup.procs 2>/dev/null | while read file; do
    folder=${file%/cgroup.procs}
    case $folder in *forebay-*) ;; *) continue ;; esac
    grep -qx $$ $file || continue
    for name in cpu.weight cpu.max cpu.shares cpu.cfs_quota_us; do
        [ ! -e $folder/$name ] || echo $name $(cat $folder/$name)
    done
done >said";

#[test]
fn processors_of_a_job_follow_its_slots() {
    let of_host = "[[host]]\nname = \"h1\"\nprocessors = \"slots\"\n";
    for (settings, unified, legacy) in [
        ("", ["cpu.weight 300", "cpu.max max"], ["cpu.shares 3072", "cpu.cfs_quota_us -1"]),
        (
            of_host,
            ["cpu.weight 300", "cpu.max 300000"],
            ["cpu.shares 3072", "cpu.cfs_quota_us 300000"],
        ),
    ] {
        let grid = Fixture::start(1, settings);
        if !has_limit(&grid, "processors") {
            return;
        }
        let job = grid.submit(&["-n", "3"], READS_ITS_GROUP);
        grid.wait_for(&job, "done");
        let said = std::fs::read_to_string(grid.jobs.join("said")).expect("reads");
        let has = |words: [&str; 2]| words.iter().all(|words| said.contains(words));
        assert!(has(unified) || has(legacy), "{said}");
    }
}

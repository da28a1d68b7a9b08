//! Workloads whose jobs are jobs of a grid.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use forebay_e2e::{need, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Bench, HEAD, LIMIT, WAITS, assert_says, jobs, json, quick, streams};

/// A controller and one host with three slots, for the runs of a bench.
struct OnGrid {
    bench: Bench,
    daemons: Vec<Child>,
}

impl OnGrid {
    fn start() -> OnGrid {
        let mut grid = OnGrid { bench: Bench::new(), daemons: Vec::new() };
        fs::create_dir(grid.root()).expect("makes a folder");
        grid.start_controller();
        let root = grid.root().display().to_string();
        grid.spawn(&["agent", &root, "--name", "h1", "--slots", "3"]);
        wait_until("the host is up", LIMIT, || grid.ask(&["hosts"])[0]["state"] == "up");
        grid
    }

    fn root(&self) -> PathBuf {
        self.bench.place().join("grid")
    }

    fn spawn(&mut self, arguments: &[&str]) {
        let mut command = Command::new(need::forebay());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().expect("starts forebay"));
    }

    fn start_controller(&mut self) {
        let root = self.root().display().to_string();
        self.spawn(&["controller", &root]);
        let answers = || {
            let mut command = self.bench.forebay(&["hosts", "--grid", "grid"]);
            forebay_e2e::run(&mut command, LIMIT).status.success()
        };
        wait_until("the controller answers", LIMIT, answers);
    }

    fn kill_controller(&mut self) {
        let mut controller = self.daemons.remove(0);
        controller.kill().expect("kills");
        controller.wait().expect("waits");
    }

    /// What a command of the grid says.
    fn ask(&self, arguments: &[&str]) -> Value {
        let all = [arguments, &["--json", "--grid", "grid"]].concat();
        json(&self.bench.call(&all).output())
    }

    /// The states of all jobs.
    fn states(&self) -> Vec<String> {
        let jobs = self.ask(&["jobs", "--all"]);
        let state = |job: &Value| job["state"].as_str().expect("is a text").to_owned();
        jobs.as_array().expect("is a list").iter().map(state).collect()
    }
}

impl Drop for OnGrid {
    fn drop(&mut self) {
        // Ends the jobs too, whatever state the test left them in.
        let mut down = self.bench.forebay(&["down", "grid", "--now"]);
        let _ = down.stderr(Stdio::null()).status();
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn the_jobs_of_a_mix_are_jobs_of_the_grid_and_recorded_by_it() {
    let grid = OnGrid::start();
    let said = grid.bench.run(&quick(), &["--grid", "grid", "-J", "mine"]).output();
    assert_says(&said, &["small", "report: "]);
    grid.bench.leaves_nothing();
    let record = grid.bench.record();
    assert_eq!(record["state"], "complete");
    let listed = grid.ask(&["jobs", "--all"]);
    let listed = listed.as_array().expect("is a list");
    assert_eq!(listed.len(), 4, "{listed:?}");
    for job in jobs(&record["runs"][0]) {
        assert_eq!(job["exit"], "success", "{job}");
        assert_eq!(job["steps"].as_array().map(Vec::len), Some(1), "{job}");
        let name = format!("mine-{}", job["name"].as_str().expect("is a text"));
        let known = listed.iter().find(|known| known["name"] == name.as_str());
        let id = known.unwrap_or_else(|| panic!("{name} is not listed"))["id"].as_str();
        let history = grid.ask(&["history", id.expect("is a text")]);
        assert_eq!(history.as_array().map(Vec::len), Some(1), "started once");
        for (field, value) in job["usage"].as_object().expect("is an object") {
            assert_eq!(&history[0]["usage"][field], value, "{field} of {name}");
        }
    }
    for stage in record["runs"][0]["stages"].as_array().expect("is a list") {
        assert_eq!(stage["concurrent"], 3, "the slots of the host");
    }
}

#[test]
fn samples_of_jobs_on_the_grid_add_up_to_what_they_used() {
    let grid = OnGrid::start();
    let write = streams("write", 4, "file_bytes = \"8 MiB\"\npattern = \"write\"\npasses = 5");
    grid.bench.run(&format!("{HEAD}{write}"), &["--grid", "grid"]).succeeds();
    let record = grid.bench.record();
    let run = &record["runs"][0];
    for (sampled, used) in
        [("file_written_bytes", "written_bytes"), ("file_write_calls", "write_calls")]
    {
        let number = |value: &Value| value.as_f64().expect("is a number");
        let samples = run["samples"].as_array().expect("has samples");
        let sampled: f64 = samples.iter().map(|sample| number(&sample[sampled])).sum();
        // A job that began and ended between two messages is known by its record alone.
        let known: f64 = jobs(run).iter().map(|job| number(&job["usage"][used])).sum();
        assert_eq!(sampled, known, "{used}");
    }
}

#[test]
fn a_signal_ends_the_jobs_on_the_grid_those_that_wait_too() {
    let grid = OnGrid::start();
    // The sixth for whom they wait never comes.
    let waits = WAITS.replace("start_together = 2", "start_together = 6");
    let mix = format!("{HEAD}{}", streams("long", 5, &waits));
    let started = grid.bench.start(&mix, &["--grid", "grid"]);
    wait_until("jobs run and wait", LIMIT, || {
        let states = grid.states();
        let count = |state: &str| states.iter().filter(|found| *found == state).count();
        count("running") == 3 && count("pending") == 2
    });
    started.signal(Signal::INT);
    let (code, said) = started.ends();
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(grid.states(), ["killed"; 5]);
    grid.bench.leaves_nothing();
    assert_eq!(grid.bench.record()["state"]["partial"]["reason"], "interrupted");
}

#[test]
fn a_run_goes_on_when_the_controller_is_killed_and_comes_back() {
    let mut grid = OnGrid::start();
    let meets = "file_bytes = \"4 KiB\"\nblock_bytes = \"4 KiB\"\npattern = \"write\"\n\
        start_together = 4\nstart_limit_seconds = 10";
    // Each waits for a fourth for ten seconds, in vain.
    let mix = format!("{HEAD}{}", streams("slow", 3, meets));
    let started = grid.bench.start(&mix, &["--grid", "grid"]);
    wait_until("all run", LIMIT, || grid.states() == ["running"; 3]);
    grid.kill_controller();
    std::thread::sleep(std::time::Duration::from_millis(500));
    grid.start_controller();
    let (code, said) = started.ends();
    assert_eq!(code, Some(1), "{said}");
    let record = grid.bench.record();
    for job in jobs(&record["runs"][0]) {
        assert!(job["exit"]["failure"]["code"].is_number(), "it ended by itself: {job}");
        assert!(job["usage"]["real_seconds"].as_f64() >= Some(10.0), "{job}");
    }
    assert_eq!(grid.states(), ["exited"; 3]);
    grid.bench.leaves_nothing();
}

#[test]
fn bad_grids_are_refused_before_anything_is_made() {
    let grid = OnGrid::start();
    for (arguments, reason) in [
        (&["--grid", "missing"][..], "missing"),
        (&["--grid", "grid", "-n", "4"], "4 slots"),
        (&["--grid", "grid", "--concurrent", "2"], "--concurrent"),
        (&["--grid", "grid", "-q", "none"], "there is no queue none"),
        (&["-q", "normal"], "--grid"),
        (&["--grid"], "FOREBAY_GRID"),
    ] {
        let said = grid.bench.run(&quick(), arguments).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
        grid.bench.leaves_nothing();
    }
    assert!(grid.states().is_empty());
}

//! Studies whose logical nodes are the hosts of a grid.

use std::path::PathBuf;

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{ANN, LIMIT, Nodes, text};

/// Two jobs of each node read what the first node made.
const MIX: &str = r#"
name = "scans"
title = "Scans of one data set"
study = "none"
defaults = { scale = 1, concurrent = 2 }
[[input]]
name = "facts"
[[input.step]]
[input.step.do.generate]
output = "data/facts"
bytes = "8 MB"
columns = [
  { name = "key", value = { zipf = { keys = 100 } } },
  { prefix = "x", count = 20, value = { normal = {} } },
]
[[class]]
name = "scan"
title = "sums up"
kind = "io"
jobs = { per_node = 2 }
[[class.step]]
[class.step.do.summary]
input = "data/facts"
class = ["key"]
analysis = ["x1"]
"#;

struct Study<'a> {
    grid: &'a Nodes,
    mix: PathBuf,
    out: PathBuf,
}

impl Study<'_> {
    fn of(grid: &Nodes) -> Study<'_> {
        let mix = grid.base().join("mix.toml");
        std::fs::write(&mix, MIX).expect("writes a mix");
        Study { grid, mix, out: grid.base().join("jobs/result") }
    }

    fn words(&self, more: &[&str]) -> Vec<String> {
        let mix = text(&self.mix);
        let (storage, out) = (text(&self.grid.shared(0)), text(&self.out));
        let words =
            ["bench", "run", "--file", &mix, "--on", &storage, "--out", &out, "--grid", "--json"];
        words.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    fn run(&self, more: &[&str]) -> forebay_e2e::command::Ended {
        let words = self.words(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.grid.as_user(0, ANN, &words)
    }

    fn record(&self) -> Value {
        let text = std::fs::read_to_string(self.out.join("result.json")).expect("a record");
        serde_json::from_str(&text).expect("is JSON")
    }

    fn mounts(&self) -> String {
        let mounts = (0..self.grid.cluster.nodes()).map(|node| self.grid.cluster.mountpoint(node));
        mounts.map(|mount| text(&mount)).collect::<Vec<_>>().join(",")
    }

    /// Checks that no job runs and the storage is empty.
    fn leaves_nothing(&self) {
        wait_until("no job runs", LIMIT, || {
            let jobs = self.grid.json(0, ANN, &["jobs"]);
            jobs.as_array().is_some_and(Vec::is_empty)
        });
        assert!(!self.out.join("hosts").exists(), "files of the watchers are left");
        let left: Vec<_> = std::fs::read_dir(self.grid.shared(0)).expect("lists").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn sum(samples: &Value, field: &str) -> u64 {
    let samples = samples.as_array().expect("samples");
    samples.iter().filter_map(|sample| sample[field].as_u64()).sum()
}

#[test]
fn each_logical_node_of_a_study_is_a_host_and_each_host_is_measured() {
    let grid = Nodes::start(2, 1, "");
    let study = Study::of(&grid);
    let mounts = study.mounts();
    let said = study.run(&["--nodes", "2", "--mounts", &mounts, "--rounds", "2"]).output();
    let summary: Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    study.leaves_nothing();

    let record = study.record();
    assert_eq!(record["state"], "complete");
    let names: Vec<&Value> =
        record["hosts"].as_array().expect("hosts").iter().map(|host| &host["name"]).collect();
    assert_eq!(names, ["n0", "n1"]);
    for run in record["runs"].as_array().expect("runs") {
        let jobs = run["stages"][0]["jobs"].as_array().expect("jobs");
        assert_eq!(jobs.len(), 4);
        for job in jobs {
            assert_eq!(job["host"], format!("n{}", job["node"]), "{job}");
            assert_eq!(job["steps"].as_array().map(Vec::len), Some(1), "{job}");
        }
        // The samples of each host hold exactly what its jobs read, and those of the run all of it.
        let mut all = 0;
        for host in run["hosts"].as_array().expect("hosts") {
            let of_host = jobs.iter().filter(|job| job["host"] == host["host"]);
            let read: u64 = of_host.filter_map(|job| job["usage"]["read_bytes"].as_u64()).sum();
            assert!(read > 15_000_000, "two jobs read the data set: {read}");
            assert_eq!(sum(&host["samples"], "file_read_bytes"), read, "{}", host["host"]);
            let watched = host["watched_seconds"].as_f64().expect("a number");
            assert!(watched >= 0.9 * run["seconds"].as_f64().expect("a number"), "{watched}");
            all += read;
        }
        assert_eq!(sum(&run["samples"], "file_read_bytes"), all);
    }
    // The data set lies on the disk of n0: what n1 reads comes over its network. The second in which the run begins counts by its part,
    // and the run is short; a node that does nothing receives some kilobytes.
    let of_run = |host: usize| &record["runs"][0]["hosts"][host]["samples"];
    let received = sum(of_run(1), "network_received_bytes");
    assert!(received > 1_000_000, "n1 received {received}");
    assert!(sum(of_run(0), "network_sent_bytes") > 1_000_000);

    assert_eq!(summary["runs"][0]["hosts"][1]["host"], "n1");
    assert_eq!(summary["runs"][0]["hosts"][1]["jobs"], 2);
    let page = std::fs::read_to_string(study.out.join("report.html")).expect("a report");
    for title in ["Throughput by host", "Received by host", "2 hosts of one machine"] {
        assert!(page.contains(title), "{title}");
    }
    let table = std::fs::read_to_string(study.out.join("tables/hosts.csv")).expect("a table");
    assert_eq!(table.lines().count(), 5, "{table}");
}

#[test]
fn a_watcher_that_is_gone_ends_the_study_with_the_name_of_its_host() {
    let grid = Nodes::start(2, 1, "");
    let study = Study::of(&grid);
    let mounts = study.mounts();
    std::thread::scope(|scope| {
        // There is a round to come after the watcher has gone, whenever that is.
        let ran =
            scope.spawn(|| study.run(&["--nodes", "2", "--mounts", &mounts, "--rounds", "500"]));
        let watcher = || -> Option<String> {
            let jobs = grid.json(0, ANN, &["jobs"]);
            let all = jobs.as_array()?;
            let found = all
                .iter()
                .find(|job| job["name"] == "scans-watch-n1" && job["state"] == "running")?;
            found["id"].as_str().map(str::to_owned)
        };
        wait_until("the watcher runs", LIMIT, || watcher().is_some());
        let job = watcher().expect("it runs until it is killed");
        grid.as_user(0, ANN, &["kill", &job]).succeeds();
        let said = ran.join().expect("does not panic").refused();
        assert!(said.contains("host n1: its watcher, job") && said.contains("killed"), "{said}");
    });
    study.leaves_nothing();
}

#[test]
fn a_host_that_cannot_take_part_is_named_and_nothing_is_left() {
    let grid = Nodes::start(2, 1, "");
    let study = Study::of(&grid);
    // The second host has another storage at this path: none.
    let empty = grid.base().join("empty");
    std::fs::create_dir(&empty).expect("makes a folder");
    std::fs::create_dir(empty.join("out")).expect("makes a folder");
    let mounts = format!("{},{}", text(&grid.cluster.mountpoint(0)), text(&empty));
    let said = study.run(&["--nodes", "2", "--mounts", &mounts]).refused();
    assert!(said.contains("host n1 does not see the storage"), "{said}");
    study.leaves_nothing();
    assert!(!study.out.exists());
    for (more, reason) in [
        (&["-n", "4"][..], "4 slots, and 5 are needed, one of them for the watcher"),
        (&["--mounts", "/a,/b,/c"], "3 mount points for 2 hosts"),
    ] {
        let said = study.run(more).refused();
        assert!(said.contains(reason), "{said}");
        study.leaves_nothing();
    }
    // One host alone: its name says which. Temporary files may go to the work areas of its jobs.
    let said = study.run(&["-m", "n0", "--work-of-jobs"]).output();
    assert!(said.contains("\"n0\"") && !said.contains("\"n1\""), "{said}");
    study.leaves_nothing();
}

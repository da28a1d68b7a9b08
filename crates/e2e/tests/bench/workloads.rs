//! The workloads that come with Forebay.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::{Mounted, Placement, need, run};
use serde_json::Value;

use crate::fixture::{Bench, LIMIT, assert_says, jobs, json, names_in, record};

/// Each with a scale at which it takes some seconds.
const ALL: [(&str, &str); 7] = [
    ("calibration", "0.00001"),
    ("lakehouse", "0.00001"),
    ("mixed", "0.00001"),
    ("probe", "0.00001"),
    ("random", "0.00001"),
    ("scaling", "0.00001"),
    ("sessions", "0.00001"),
];
/// Makes each stage of `random`, which lasts as long however small its files are, short.
const BRIEFLY: [&str; 2] = ["--set", "duration=1"];
/// Where pip installs DuckDB and Polars; kept between runs of the tests.
const CACHE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache");
/// Time for one of them.
const RUN_LIMIT: Duration = Duration::from_secs(180);

fn names(bench: &Bench) -> Vec<String> {
    let listed = json(&bench.call(&["bench", "list", "--json"]).output());
    let listed = listed.as_array().expect("a list").clone();
    listed.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

#[track_caller]
fn ends_well(out: &Path, workload: &str) {
    let record = record(out);
    assert_eq!(record["state"], "complete", "{workload}");
    assert_eq!(record["workload"]["name"], workload);
    for run in record["runs"].as_array().expect("has runs") {
        let jobs = jobs(run);
        assert!(!jobs.is_empty(), "{workload}");
        for job in jobs {
            assert_eq!(job["exit"], "success", "{workload}: {job}");
            let steps = job["steps"].as_array().map_or(0, Vec::len);
            assert!(steps > 0, "{workload}: {job}");
        }
    }
}

#[test]
fn the_list_names_every_workload() {
    let bench = Bench::new();
    let mut known = names(&bench);
    known.sort();
    assert_eq!(known, ALL.map(|(name, _)| name));
    let text = bench.call(&["bench", "list"]).output();
    assert_says(&text, &ALL.map(|(name, _)| name));
}

#[test]
fn as_many_jobs_run_at_once_as_there_are_cores_if_asked() {
    let bench = Bench::new();
    // On one processor, which is one core.
    let allowed = fs::read_to_string("/proc/self/status").expect("reads");
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = allowed.expect("is said").trim().split(['-', ',']).next().expect("a processor");
    let mut command = need::program("taskset");
    command.args(["-c", first]).arg(need::forebay()).current_dir(bench.place());
    command.args(["bench", "show", "mixed", "--nodes", "1", "--concurrent", "cores", "--json"]);
    let shown = json(&run(&mut command, LIMIT).output());
    assert_eq!(shown["stages"][0]["concurrent"], 1);
}

#[test]
fn every_workload_can_be_shown_and_taken_as_a_file() {
    let bench = Bench::new();
    for (name, scale) in ALL {
        assert_says(&bench.call(&["bench", "show", name]).output(), &[name, "scale", "class"]);
        let plan = ["bench", "show", name, "--scale", scale, "--plan"];
        assert_says(&bench.call(&plan).output(), &["due s", "job"]);
        let shown = json(&bench.call(&[&plan[..], &["--json"]].concat()).output());
        let stages = shown["stages"].as_array().expect("has stages");
        for stage in stages {
            let of_classes: u64 = stage["classes"]
                .as_array()
                .expect("has classes")
                .iter()
                .map(|class| class["jobs"].as_u64().expect("a number"))
                .sum();
            assert_eq!(Some(of_classes as usize), stage["jobs"].as_array().map(Vec::len), "{name}");
        }
        let text = bench.call(&["bench", "show", name, "--text"]).output();
        let file = bench.file("mine.toml", &text).display().to_string();
        let same = ["bench", "show", "--file", &file, "--scale", scale, "--plan", "--json"];
        let same: Value = json(&bench.call(&same).output());
        assert_eq!(same, shown, "{name}");
    }
}

#[test]
fn every_workload_runs_to_its_end() {
    let bench = Bench::new();
    for (name, scale) in ALL {
        let (on, out) = (bench.storage(), bench.place().join(name));
        let mut command = bench.forebay(&["bench", "run", name, "--scale", scale, "--on"]);
        command.arg(on).arg("--out").arg(&out);
        command.env("XDG_CACHE_HOME", CACHE);
        if name == "random" {
            command.args(BRIEFLY);
        }
        run(&mut command, RUN_LIMIT).succeeds();
        ends_well(&out, name);
        bench.leaves_nothing();
    }
}

#[test]
fn engines_of_a_lakehouse_must_agree_and_say_what_stopped_them() {
    let bench = Bench::new();
    let program = |steps: &str| bench.file("lake.toml", &format!("name = \"lake\"\n{steps}"));
    let run_step = |steps: &str, python: &str| {
        let mut command = bench.forebay(&["step"]);
        command.arg(program(steps)).arg("--data").arg(bench.storage());
        command.env("XDG_CACHE_HOME", CACHE).env("FOREBAY_PYTHON", python);
        run(&mut command, RUN_LIMIT)
    };
    fs::write(bench.storage().join("shop.csv"), "id,price\n1,2.5\n2,4\n3,0.5\n").expect("writes");
    let convert = "[[step]]\n[step.do.to_parquet]\nengine = \"polars\"\ncsv = \"data/shop.csv\"\noutput = \"data/lake/shop.parquet\"\n";
    let ask = |engine: &str, sql: &str, more: &str| {
        format!(
            "[[step]]\n[step.do.query]\nengine = \"{engine}\"\nlake = \"data/lake\"\nsql = \"{sql}\"\nresult = \"data/{engine}.csv\"\n{more}\n"
        )
    };
    let total = "SELECT COUNT(*) AS n, SUM(price) AS price FROM shop";
    let both = ask("duckdb", total, "") + &ask("polars", total, "same_as = \"data/duckdb.csv\"");
    run_step(&(convert.to_owned() + &both), "").succeeds();
    let result = fs::read_to_string(bench.storage().join("polars.csv")).expect("a result");
    assert_eq!(result.trim(), "n,price\n3,7.0");
    let other = ask("duckdb", total, "")
        + &ask(
            "polars",
            "SELECT COUNT(*) AS n, MAX(price) AS price FROM shop",
            "same_as = \"data/duckdb.csv\"",
        );
    let ended = run_step(&other, "");
    assert!(ended.stderr.contains("row 1 is 3,4.0, but in"), "{}", ended.stderr);
    assert!(!bench.storage().join("polars.csv").exists(), "a wrong result is removed");
    let ended = run_step(&ask("duckdb", "SELECT * FROM shops", ""), "");
    assert!(
        ended.stderr.contains("DuckDB: ") && ended.stderr.contains("shops"),
        "{}",
        ended.stderr
    );
    let ended = run_step(&ask("duckdb", total, ""), "/no/such/python");
    assert!(ended.stderr.contains("/no/such/python cannot be run"), "{}", ended.stderr);
}

#[test]
fn a_text_changed_by_its_owner_runs_from_a_file() {
    let bench = Bench::new();
    let text = bench.call(&["bench", "show", "random", "--text"]).output();
    let mine = text.replacen("name = \"random\"", "name = \"mine\"", 1);
    let size = ["--scale", "0.00001", "--concurrent", "2"];
    bench.run(&mine, &[&size[..], &BRIEFLY].concat()).succeeds();
    ends_well(&bench.out(), "mine");
    bench.leaves_nothing();
}

#[test]
fn a_workload_runs_on_the_grid_from_fileset_to_fileset() {
    let grid = Mounted::start(Placement::Direct);
    let out = grid.outside().join("result");
    let mut command = grid.forebay(&["bench", "run", "mixed", "--scale", "0.00001", "--on"]);
    command.arg(grid.data()).arg("--work").arg(grid.work()).arg("--out").arg(&out);
    run(&mut command, RUN_LIMIT).succeeds();
    ends_well(&out, "mixed");
    let record = record(&out);
    let kind = record["subjects"][0]["data"]["file_system"].as_str().unwrap_or_default().to_owned();
    assert!(kind.starts_with("fuse"), "{kind}");
    for folder in [grid.data(), grid.work()] {
        assert_eq!(names_in(&folder), Vec::<String>::new());
    }
    // The daemon goes on, and nothing keeps the mount busy.
    fs::write(grid.data().join("file"), "x").expect("writes");
    run(&mut grid.forebay(&["bench", "report", "result"]), LIMIT).succeeds();
}

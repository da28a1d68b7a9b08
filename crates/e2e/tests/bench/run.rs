//! A run that goes well, and what is made of its result.

use std::fs;

use crate::fixture::{Bench, assert_says, jobs, json, names_in, quick};

#[test]
fn a_run_leaves_a_whole_result_and_nothing_on_the_storage() {
    let bench = Bench::new();
    let said = bench.run(&quick(), &[]).output();
    bench.leaves_nothing();
    assert_says(&said, &["small", "report: ", "report.html"]);
    let record = bench.record();
    assert_eq!(record["schema"], 1);
    assert_eq!(record["state"], "complete");
    assert_eq!(record["workload"]["name"], "small");
    assert_eq!(record["command"][1], "bench");
    let jobs = jobs(&record["runs"][0]);
    assert_eq!(jobs.len(), 4);
    for job in jobs {
        assert_eq!(job["exit"], "success", "{job}");
        assert_eq!(job["steps"].as_array().map(Vec::len), Some(1), "{job}");
    }
    assert_eq!(names_in(&bench.out()), ["programs", "report.html", "result.json", "tables"]);
    let tables = names_in(&bench.out().join("tables"));
    assert!(tables.iter().any(|name| name.starts_with("jobs")), "{tables:?}");
    for table in tables {
        let text = fs::read_to_string(bench.out().join("tables").join(&table)).expect("reads");
        let widths: Vec<usize> = text.lines().map(|line| line.matches(',').count()).collect();
        assert!(widths.len() > 1 || !text.is_empty(), "{table} has a head");
    }
}

#[test]
fn the_page_and_the_tables_are_made_again_from_the_record() {
    let bench = Bench::new();
    bench.run(&quick(), &[]).succeeds();
    let page = fs::read(bench.out().join("report.html")).expect("reads the page");
    let tables = names_in(&bench.out().join("tables"));
    fs::remove_file(bench.out().join("report.html")).expect("removes the page");
    fs::remove_dir_all(bench.out().join("tables")).expect("removes the tables");
    let said = bench.call(&["bench", "report", "result"]).output();
    assert_says(&said, &["report: ", "report.html"]);
    assert_eq!(fs::read(bench.out().join("report.html")).expect("reads"), page);
    assert_eq!(names_in(&bench.out().join("tables")), tables);
    let summary = json(&bench.call(&["bench", "report", "result", "--json"]).output());
    assert!(summary.is_object(), "{summary}");
}

#[test]
fn json_is_the_summary_and_nothing_else() {
    let bench = Bench::new();
    let printed = json(&bench.run(&quick(), &["--json"]).output());
    let again = json(&bench.call(&["bench", "report", "result", "--json"]).output());
    assert_eq!(printed, again);
}

#[test]
fn kept_files_stay_where_the_run_says() {
    let bench = Bench::new();
    let streams = quick().replace("pattern = \"write\"", "pattern = \"write\"\nkeep = true");
    let input = "[[input]]\nname = \"facts\"\n[[input.step]]\n[input.step.do.generate]\n\
        output = \"data/facts\"\nrows = 100\n\
        columns = [{ name = \"x\", value = { sequence = {} } }]\n";
    let (head, classes) = streams.split_at(streams.find("[[class]]").expect("has classes"));
    let ended = bench.run(&format!("{head}{input}{classes}"), &["--keep"]);
    let said = ended.expect_code(0).stderr;
    let left: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("left: ")).collect();
    assert_eq!(left.len(), 3, "{said}");
    let mut named: Vec<String> = left
        .iter()
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(_, name)| name.to_owned())
        .collect();
    named.sort();
    assert_eq!(names_in(&bench.storage()), named);
    let data = left.iter().find(|path| path.contains("bench-data")).expect("names data");
    assert!(names_in(data.as_ref()).iter().any(|name| name.starts_with("facts")), "inputs stay");
}

#[test]
fn areas_may_lie_apart_and_are_left_empty() {
    let bench = Bench::new();
    let (work, util) = (bench.storage().join("w"), bench.storage().join("u"));
    for folder in [&work, &util] {
        fs::create_dir(folder).expect("makes a folder");
    }
    let (work, util) = (work.display().to_string(), util.display().to_string());
    bench.run(&quick(), &["--work", &work, "--util", &util]).succeeds();
    let subject = &bench.record()["subjects"][0];
    assert_eq!(subject["work"]["path"], work.as_str());
    assert_eq!(subject["util"]["path"], util.as_str());
    assert_eq!(names_in(&bench.storage()), ["u", "w"]);
    assert!(names_in(work.as_ref()).is_empty() && names_in(util.as_ref()).is_empty());
}

#[test]
fn a_second_result_does_not_overwrite_the_first() {
    let bench = Bench::new();
    bench.run(&quick(), &[]).succeeds();
    let first = fs::read(bench.out().join("result.json")).expect("reads");
    let ended = bench.run(&quick(), &[]).expect_code(2);
    assert_says(&ended.stderr, &["already holds a result", "--out"]);
    assert_eq!(fs::read(bench.out().join("result.json")).expect("reads"), first);
    bench.leaves_nothing();
}

#[test]
fn the_same_seed_gives_the_same_plan_and_another_another() {
    let bench = Bench::new();
    let plan = |seed: &str| {
        let arguments = ["bench", "show", "sessions", "--plan", "--json", "--seed", seed];
        json(&bench.call(&arguments).output())["stages"].take()
    };
    assert_eq!(plan("7"), plan("7"));
    assert_ne!(plan("7"), plan("8"));
}

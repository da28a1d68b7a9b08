//! Storages side by side: in one run, and from results.

use std::fs;

use forebay_e2e::{need, run};
use serde_json::Value;

use crate::fixture::{Bench, LIMIT, assert_says, json, quick, record};

#[test]
fn runs_on_two_storages_take_turns_and_are_compared() {
    let bench = Bench::new();
    let other = bench.storage().with_file_name("other");
    fs::create_dir(&other).expect("makes a folder");
    let other_text = other.display().to_string();
    let said = bench.run(&quick(), &["--against", &other_text, "--rounds", "2"]).output();
    let record = bench.record();
    let turns: Vec<(u64, u64)> = record["runs"]
        .as_array()
        .expect("has runs")
        .iter()
        .map(|run| (run["round"].as_u64().unwrap_or(99), run["subject"].as_u64().unwrap_or(99)))
        .collect();
    // Who goes first changes from round to round.
    assert_eq!(turns, [(0, 0), (0, 1), (1, 1), (1, 0)]);
    assert_eq!(record["subjects"][1]["data"]["path"], other_text.as_str());
    assert_says(&said, &["ratio", &other_text]);
    let page = fs::read_to_string(bench.out().join("report.html")).expect("reads the page");
    assert_says(&page, &["Storages compared"]);
    bench.leaves_nothing();
    assert_eq!(fs::read_dir(&other).expect("lists").count(), 0);
}

/// Runs of `mixes` in folders `result-0`, `result-1`...
fn results(bench: &Bench, mixes: &[String]) {
    for (number, mix) in mixes.iter().enumerate() {
        bench.run(mix, &[]).succeeds();
        let kept = bench.place().join(format!("result-{number}"));
        fs::rename(bench.out(), kept).expect("renames");
    }
}

#[test]
fn results_are_compared_on_the_terminal_on_a_page_and_as_json() {
    let bench = Bench::new();
    results(&bench, &[quick(), quick()]);
    let said = bench.call(&["bench", "compare", "result-0", "result-1"]).output();
    assert_says(&said, &["result-0", "result-1", "ratio", "report: comparison.html"]);
    let page = fs::read_to_string(bench.place().join("comparison.html")).expect("reads the page");
    assert_says(&page, &["result-0", "result-1", "</html>"]);
    let said = bench.call(&["bench", "compare", "result-0", "result-1/", "--json"]).output();
    assert!(matches!(json(&said), Value::Object(_)), "{said}");
    let said = bench
        .call(&["bench", "compare", "result-0", "result-1", "--json", "--out", "mine.html"])
        .output();
    json(&said);
    assert!(bench.place().join("mine.html").exists());
}

#[test]
fn sides_have_the_names_they_are_given_and_tables_are_csv_files() {
    let bench = Bench::new();
    results(&bench, &[quick(), quick()]);
    let sides = ["bench", "compare", "result-0", "result-1", "--csv", "csv"];
    let labels = ["--label", "before", "--label", "after"];
    let said = bench.call(&[&sides[..], &labels].concat()).output();
    assert_says(&said, &["after/before", "Comparison of real times, by class of jobs"]);
    let csv = bench.place().join("csv");
    let text = fs::read_to_string(csv.join("comparison_classes.csv")).expect("reads a table");
    assert_says(&text, &["figure,unit,before,before min,before max,after", "write: real time"]);
    // A workbook has the same tables. It is a ZIP file of XML files.
    let book = ["--xlsx", "both.xlsx"];
    bench.call(&[&sides[..4], &labels, &book].concat()).succeeds();
    let said = bench.call(&["bench", "report", "result-0", "--xlsx", "one.xlsx"]);
    said.succeeds();
    let script = "import sys, zipfile\nfor name in sys.argv[1:]:\n    book = zipfile.ZipFile(name)\n    assert book.testzip() is None\n\
                  \x20   for part in book.namelist():\n        print(book.read(part).decode())\n";
    let mut python = need::program("python3");
    python.args(["-c", script, "both.xlsx"]).current_dir(bench.place());
    let text = run(&mut python, LIMIT).output();
    assert_says(&text, &["comparison_classes", "notes", "after/before", "write: real time"]);
    let mut python = need::program("python3");
    python.args(["-c", script, "one.xlsx"]).current_dir(bench.place());
    assert_says(&run(&mut python, LIMIT).output(), &["jobs", "steps", "real_seconds"]);
    // A log for each job, from a record that was made without.
    bench.call(&["bench", "report", "result-0", "--fullstimer"]).succeeds();
    let logs = bench.place().join("result-0/fullstimer");
    assert_eq!(fs::read_dir(&logs).expect("lists").count(), 4);
    for entry in fs::read_dir(&logs).expect("lists") {
        let log = fs::read_to_string(entry.expect("lists").path()).expect("reads a log");
        assert_says(
            &log,
            &["STEP stream (stream) used", "real time", "user cpu time", "Step Count"],
        );
        assert_says(&log, &["The job used", "Timestamp", "memory", "The job succeeded."]);
    }
    for (labels, part) in
        [(&["--label", "one"][..], "one for each"), (&["--label", "a", "--label", "a"], "twice")]
    {
        let refused = bench.call(&[&sides[..], labels].concat()).expect_code(2).refused();
        assert_says(&refused, &[part]);
    }
}

#[test]
fn what_cannot_be_compared_is_refused_without_a_page() {
    let bench = Bench::new();
    let other = quick().replace("name = \"small\"", "name = \"tiny\"");
    results(&bench, &[quick(), other]);
    assert_eq!(record(&bench.place().join("result-1"))["workload"]["name"], "tiny");
    let compare = |arguments: &[&str]| {
        let all: Vec<&str> = ["bench", "compare"].iter().chain(arguments).copied().collect();
        let ended = bench.call(&all).expect_code(2);
        assert!(!bench.place().join("comparison.html").exists());
        ended.refused()
    };
    assert_says(&compare(&["result-0", "result-1"]), &["small", "tiny"]);
    for same in ["result-0", "result-0/", "./result-0", "result-1/../result-0"] {
        assert_says(&compare(&["result-0", same]), &["is given twice"]);
    }
    assert_says(&compare(&["result-0", "gone"]), &["gone"]);
    let _ = compare(&["result-0"]);
}

//! Jobs that do not end well: the others go on, and the result says what happened.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::fixture::{Bench, HEAD, WAITS, assert_says, jobs, names_in, streams};

const FAILS: &str = "file_bytes = \"1 MiB\"\npattern = \"read\"\nfill = \"never\"";
const WRITES: &str = "file_bytes = \"1 MiB\"\npattern = \"write\"";

/// Logs below the folder of jobs.
fn logs(bench: &Bench) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![bench.out().join("jobs")];
    while let Some(folder) = folders.pop() {
        for name in names_in(&folder) {
            let path = folder.join(name);
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_killed_job_is_named_and_the_others_end_well() {
    let bench = Bench::new();
    let mix = format!("{HEAD}{}{}", streams("victim", 1, WAITS), streams("write", 3, WRITES));
    let started = bench.start(&mix, &[]);
    kill_process(bench.job("victim-0"), Signal::KILL).expect("kills the job");
    let (code, said) = started.ends();
    assert_eq!(code, Some(1), "{said}");
    bench.leaves_nothing();
    let record = bench.record();
    let reason = record["state"]["partial"]["reason"].as_str().unwrap_or_default().to_owned();
    assert_says(&reason, &["1 of 4 jobs", "victim-0", "signal 9"]);
    for job in jobs(&record["runs"][0]) {
        if job["name"] == "victim-0" {
            assert_eq!(job["exit"], json!({ "signal": { "signal": 9 } }));
        } else {
            assert_eq!(job["exit"], "success", "{job}");
        }
    }
    assert_says(&said, &["victim-0"]);
    let logs = logs(&bench);
    assert!(logs.iter().any(|path| path.ends_with("victim-0.log")), "{logs:?}");
    assert!(logs.iter().all(|path| path.to_string_lossy().contains("victim-0")), "{logs:?}");
}

#[test]
fn a_failed_job_is_recorded_with_its_last_words_and_its_log_stays() {
    let bench = Bench::new();
    let mix = format!("{HEAD}{}{}", streams("reader", 1, FAILS), streams("write", 2, WRITES));
    let ended = bench.run(&mix, &[]).expect_code(1);
    bench.leaves_nothing();
    assert_says(&ended.stdout, &["reader-0"]);
    let record = bench.record();
    let all = jobs(&record["runs"][0]);
    let failed = all.iter().find(|job| job["class"] == "reader").expect("is recorded");
    assert_eq!(failed["exit"]["failure"]["code"], 2, "{failed}");
    let message = failed["exit"]["failure"]["message"].as_str().unwrap_or_default();
    assert_says(message, &["step 1, stream", "reader-0"]);
    assert_eq!(all.iter().filter(|job| job["exit"] == "success").count(), 2);
    let logs = logs(&bench);
    let log = logs.iter().find(|path| path.ends_with("reader-0.log")).expect("the log stays");
    assert_says(&fs::read_to_string(log).expect("reads the log"), &[message]);
}

#[test]
fn the_log_of_a_failure_is_kept_when_the_next_round_goes_well() {
    let bench = Bench::new();
    // A second job of the class lets the first go on; it is ended in the first round only.
    let meets = WAITS.replace("start_limit_seconds = 600", "start_limit_seconds = 20");
    let mix = format!("{HEAD}{}", streams("pair", 2, &meets.replace("4 KiB", "8 MiB")));
    let slow = mix.replace("pattern = \"write\"", "pattern = \"write\"\nduration_seconds = 6");
    let started = bench.start(&slow, &["--rounds", "2"]);
    kill_process(bench.job("pair-0"), Signal::KILL).expect("kills the job");
    let (code, said) = started.ends();
    assert_eq!(code, Some(1), "{said}");
    let record = bench.record();
    let exits = |round: usize| {
        let found = jobs(&record["runs"][round]).into_iter().find(|job| job["name"] == "pair-0");
        found.expect("is recorded").clone()
    };
    assert_eq!(exits(0)["exit"], json!({ "signal": { "signal": 9 } }));
    assert_eq!(exits(1)["exit"], "success");
    assert!(logs(&bench).iter().any(|path| path.ends_with("pair-0.log")), "{:?}", logs(&bench));
    bench.leaves_nothing();
}

#[test]
fn a_job_that_died_in_a_later_round_has_no_steps_of_the_one_before() {
    let bench = Bench::new();
    let mix = format!(
        "{HEAD}{}",
        streams("write", 1, "file_bytes = \"8 MiB\"\npattern = \"write\"\nduration_seconds = 6")
    );
    let started = bench.start(&mix, &["--rounds", "2"]);
    let first = bench.job("write-0");
    let mut second = first;
    forebay_e2e::wait_until("the second round runs", crate::fixture::LIMIT, || {
        second = bench.job("write-0");
        second != first
    });
    kill_process(second, Signal::KILL).expect("kills the job");
    assert_eq!(started.ends().0, Some(1));
    let record = bench.record();
    assert_eq!(jobs(&record["runs"][0])[0]["steps"].as_array().map(Vec::len), Some(1));
    assert_eq!(jobs(&record["runs"][1])[0]["steps"], json!([]));
}

#[test]
fn inputs_that_cannot_be_made_end_the_run_before_it_begins() {
    let bench = Bench::new();
    let input = format!(
        "[[input]]\nname = \"facts\"\n[[input.step]]\n[input.step.do.stream]\n\
         file = \"data/facts\"\n{FAILS}\n"
    );
    let mix = format!("{HEAD}{input}{}", streams("write", 1, WRITES));
    let ended = bench.run(&mix, &[]).expect_code(2);
    assert_says(&ended.stderr, &["cannot create the input", "facts", "stream"]);
    bench.leaves_nothing();
    assert!(!bench.out().exists(), "no result of nothing");
    // A folder that was there before stays, as it was.
    fs::create_dir(bench.out()).expect("makes the folder");
    let _ = bench.run(&mix, &[]).expect_code(2);
    assert_eq!(names_in(&bench.out()), Vec::<String>::new());
}

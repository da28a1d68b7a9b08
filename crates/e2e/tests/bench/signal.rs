//! Runs that are ended from outside, at any time.

use std::fs;

use forebay_e2e::wait_until;
use rustix::process::Signal;

use crate::fixture::{Bench, HEAD, LIMIT, WAITS, assert_says, jobs, names_in, streams};

/// A mix with a job that ends, one that writes until it is ended, and two that wait.
fn endless() -> String {
    let done = streams("a", 1, "file_bytes = \"1 MiB\"\npattern = \"write\"");
    let writes = streams(
        "b",
        1,
        "file_bytes = \"8 MiB\"\npattern = \"write\"\nduration_seconds = 600\nsync = { every = 4 }",
    );
    let waits = streams("c", 2, WAITS).replace("start_together = 2", "start_together = 3");
    format!("{HEAD}{done}{writes}{waits}").replace("concurrent = 2", "concurrent = 4")
}

#[track_caller]
fn is_ended_by(signal: Signal) {
    let bench = Bench::new();
    let started = bench.start(&endless(), &[]);
    let steps = bench.out().join("jobs/run-1-stage-1/a-0.steps");
    wait_until("the first job is done", LIMIT, || {
        fs::metadata(&steps).is_ok_and(|file| file.len() > 0) && !bench.runs("a-0")
    });
    bench.job("b-0");
    bench.job("c-0");
    bench.job("c-1");
    started.signal(signal);
    let (code, said) = started.ends();
    assert_eq!(code, Some(130), "{said}");
    bench.leaves_nothing();
    assert_says(&said, &["report: ", "interrupted"]);
    let record = bench.record();
    assert_says(
        record["state"]["partial"]["reason"].as_str().unwrap_or_default(),
        &["interrupted"],
    );
    let run = &record["runs"][0];
    for job in jobs(run) {
        let well = job["exit"] == "success";
        assert_eq!(well, job["class"] == "a", "{job}");
        assert!(job["usage"]["written_bytes"].is_u64(), "what it did until then counts: {job}");
    }
    let page = fs::read_to_string(bench.out().join("report.html")).expect("reads the page");
    assert_says(&page, &["<title>PARTIAL: ", "interrupted"]);
}

#[test]
fn ctrl_c_ends_the_jobs_clears_up_and_leaves_a_partial_result() {
    is_ended_by(Signal::INT);
}

#[test]
fn sigterm_does_as_ctrl_c() {
    is_ended_by(Signal::TERM);
}

#[test]
fn jobs_that_never_started_are_recorded_as_such() {
    let bench = Bench::new();
    let mix = format!("{HEAD}{}", streams("c", 4, WAITS.replace('2', "5").as_str()));
    let started = bench.start(&mix, &[]);
    bench.job("c-0");
    bench.job("c-1");
    started.signal(Signal::INT);
    assert_eq!(started.ends().0, Some(130));
    let record = bench.record();
    let jobs = jobs(&record["runs"][0]);
    let not_started = jobs.iter().filter(|job| job["exit"] == "not_started");
    assert_eq!(not_started.clone().count(), 2, "{jobs:#?}");
    for job in not_started {
        assert!(job["start_seconds"].is_null() && job["steps"] == serde_json::json!([]), "{job}");
    }
    bench.leaves_nothing();
}

#[test]
fn ctrl_c_while_inputs_are_made_leaves_nothing_either() {
    let bench = Bench::new();
    let input = format!(
        "[[input]]\nname = \"facts\"\n[[input.step]]\n[input.step.do.stream]\n\
         file = \"data/facts\"\n{WAITS}"
    );
    let run = streams("write", 1, "file_bytes = \"1 MiB\"\npattern = \"write\"");
    let started = bench.start(&format!("{HEAD}{input}{run}"), &[]);
    bench.job("input-facts");
    started.signal(Signal::INT);
    let (code, said) = started.ends();
    assert_eq!(code, Some(130), "{said}");
    bench.leaves_nothing();
    let record = bench.record();
    assert_says(
        record["state"]["partial"]["reason"].as_str().unwrap_or_default(),
        &["interrupted"],
    );
    assert_eq!(record["runs"], serde_json::json!([]));
    assert!(bench.out().join("report.html").exists());
}

#[test]
fn no_job_outlives_a_killed_run() {
    let bench = Bench::new();
    let started = bench.start(&format!("{HEAD}{}", streams("c", 1, WAITS)), &[]);
    let job = bench.job("c-0");
    started.signal(Signal::KILL);
    assert_eq!(started.ends().0, None);
    // It may stay as a zombie where process 1 does not reap.
    let stat = format!("/proc/{}/stat", job.as_raw_nonzero());
    wait_until("the job has ended", LIMIT, || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
    // Nobody was left to clear up.
    assert!(!names_in(&bench.storage()).is_empty());
}

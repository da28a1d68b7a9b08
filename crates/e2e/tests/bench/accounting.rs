//! What is recorded, against what the jobs are known to do.

use serde_json::Value;

use crate::fixture::{Bench, HEAD, jobs, streams};

const MIB: u64 = 1 << 20;
/// What a process reads besides its files: the program's own libraries, its program, what /proc says.
const OTHER_READS: u64 = 512 << 10;
/// What a process writes besides its files: a line for each step.
const OTHER_WRITES: u64 = 64 << 10;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn bytes(job: &Value, field: &str) -> u64 {
    job["usage"][field].as_u64().unwrap_or_else(|| panic!("{field} is not known: {job}"))
}

#[test]
fn jobs_are_charged_the_bytes_and_calls_that_they_made() {
    let bench = Bench::new();
    let write = streams(
        "write",
        1,
        "file_bytes = \"8 MiB\"\nblock_bytes = \"64 KiB\"\npattern = \"write\"\npasses = 3",
    );
    // The file is filled before, which are 8 MiB that the process writes as well.
    let read = streams(
        "read",
        1,
        "file_bytes = \"8 MiB\"\nblock_bytes = \"64 KiB\"\npattern = \"read\"\npasses = 4",
    );
    bench.run(&format!("{HEAD}{write}{read}"), &[]).succeeds();
    let record = bench.record();
    let run = &record["runs"][0];
    let find = |class: &str| {
        let found = jobs(run).into_iter().find(|job| job["class"] == class);
        found.expect("the job is recorded").clone()
    };
    let (write, read) = (find("write"), find("read"));
    let within = |what: &str, counted: u64, known: u64, slack: u64| {
        assert!((known..known + slack).contains(&counted), "{what}: {counted}, known {known}");
    };
    within("written", bytes(&write, "written_bytes"), 24 * MIB, OTHER_WRITES);
    within("read by the writer", bytes(&write, "read_bytes"), 0, OTHER_READS);
    within("read", bytes(&read, "read_bytes"), 32 * MIB, OTHER_READS);
    within("filled", bytes(&read, "written_bytes"), 8 * MIB, OTHER_WRITES);
    within("write calls", bytes(&write, "write_calls"), 24 * 16, 100);
    within("read calls", bytes(&read, "read_calls"), 32 * 16, 400);
    let step = &write["steps"][0];
    assert_eq!(step["kind"], "stream");
    assert_eq!(step["outcome"]["rows"], 24 * 16);
    assert_eq!(step["outcome"]["figures"]["written_bytes"].as_f64(), Some((24 * MIB) as f64));
}

#[test]
fn samples_add_up_to_what_the_jobs_used() {
    let bench = Bench::new();
    let write = streams("write", 3, "file_bytes = \"8 MiB\"\npattern = \"write\"\npasses = 5");
    let read = streams("read", 3, "file_bytes = \"8 MiB\"\npattern = \"read\"\npasses = 5");
    bench.run(&format!("{HEAD}{write}{read}"), &[]).succeeds();
    let record = bench.record();
    let run = &record["runs"][0];
    for (sampled, used) in [
        ("file_read_bytes", "read_bytes"),
        ("file_written_bytes", "written_bytes"),
        ("file_read_calls", "read_calls"),
        ("file_write_calls", "write_calls"),
    ] {
        let samples = run["samples"].as_array().expect("has samples");
        let sampled: f64 = samples.iter().map(|sample| number(&sample[sampled])).sum();
        let used: u64 = jobs(run).iter().map(|job| bytes(job, used)).sum();
        assert_eq!(sampled, used as f64);
    }
}

#[test]
fn one_who_waits_uses_no_processor_and_one_who_computes_little_else() {
    let bench = Bench::new();
    let sleeper = streams(
        "sleeper",
        1,
        "file_bytes = \"4 KiB\"\nblock_bytes = \"4 KiB\"\npattern = \"write\"\n\
         start_together = 2\nstart_limit_seconds = 2",
    );
    let spinner = "[[class]]\nname = \"spinner\"\ntitle = \"multiplies\"\nkind = \"computation\"\n\
        jobs = { per_run = 1 }\nspace = {}\n[[class.step]]\n\
        [class.step.do.dense]\nn = 700\n";
    // The sleeper is given up after two seconds, for nobody comes to meet it.
    let _ = bench.run(&format!("{HEAD}{sleeper}{spinner}"), &[]).expect_code(1);
    let record = bench.record();
    for job in jobs(&record["runs"][0]) {
        let usage = &job["usage"];
        let used = number(&usage["user_seconds"]) + number(&usage["system_seconds"]);
        let real = number(&usage["real_seconds"]);
        let span = number(&job["end_seconds"]) - number(&job["start_seconds"]);
        assert!((span - real).abs() < 0.5, "the times of the job and of its process: {job}");
        if job["class"] == "sleeper" {
            assert!(real >= 2.0 && used < 0.2 * real, "{usage}");
        } else {
            assert_eq!(job["exit"], "success", "{job}");
            assert!(number(&usage["user_seconds"]) > 0.01, "{usage}");
            assert!(number(&usage["user_seconds"]) > number(&usage["system_seconds"]), "{usage}");
        }
    }
}

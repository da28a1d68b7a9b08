//! What the grid records of jobs, and what it sums up.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{Fixture, LIMIT};
use forebay_e2e::wait_until;

/// Everything that is recorded of each start.
const FIELDS: [&str; 19] = [
    "real_seconds",
    "user_seconds",
    "system_seconds",
    "io_wait_seconds",
    "peak_memory_bytes",
    "minor_faults",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
    "read_bytes",
    "written_bytes",
    "work_bytes",
    "read_calls",
    "write_calls",
    "device_read_bytes",
    "device_written_bytes",
    "memory_wait_seconds",
    "processor_wait_seconds",
    "io_pressure_seconds",
];

/// Reads and writes a known number of bytes by a known number of calls, computes, waits, touches memory,
/// and says what the kernel has counted of it.
const PROGRAM: &str = r#"
import json, os, resource, time
path = os.path.join(os.environ["WORK"], "file")
block = b"x" * 65536
file = os.open(path, os.O_RDWR | os.O_CREAT)
for _ in range(64):
    os.write(file, block)
os.lseek(file, 0, 0)
for _ in range(64):
    os.read(file, 65536)
memory = bytearray(64 << 20)
end = time.process_time() + 0.4
while time.process_time() < end:
    pass
for _ in range(40):
    time.sleep(0.005)
whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
used = [resource.getrusage(one) for one in whose]
both = lambda name: sum(getattr(one, name) for one in used)
print(json.dumps({
    "user_seconds": both("ru_utime"), "system_seconds": both("ru_stime"),
    "peak_memory_bytes": max(one.ru_maxrss for one in used) * 1024,
    "minor_faults": both("ru_minflt"), "major_faults": both("ru_majflt"),
    "voluntary_switches": both("ru_nvcsw"), "involuntary_switches": both("ru_nivcsw")}), flush=True)
os._exit(0)
"#;

fn json(grid: &Fixture, arguments: &[&str]) -> Value {
    serde_json::from_str(&grid.forebay(arguments, &["--json"]).output()).expect("is JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_record_of_a_job_is_what_the_kernel_has_counted_of_it() {
    let grid = Fixture::start();
    let ended = grid.forebay(&["submit", "--wait"], &["--", "python3", "-c", PROGRAM]);
    assert_eq!(ended.expect_code(0).stdout, "1\n");
    let own: Value =
        serde_json::from_str(&grid.forebay(&["output", "1"], &[]).output()).expect("is JSON");
    let history = json(&grid, &["history", "1"]);
    let usage = &history[0]["usage"];
    let fields: BTreeSet<&str> =
        usage.as_object().expect("is an object").keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(FIELDS));
    let log = grid.forebay(&["history", "1", "--fullstimer"], &[]).output();
    let faults = format!("{:<35} {}\n", "Page Reclaims", usage["minor_faults"]);
    for line in ["real time", "user cpu time", "system cpu time", "memory", "Timestamp", &faults] {
        assert!(log.contains(&format!("\n      {line}")), "{line}: {log}");
    }
    // What the program counted itself is all but its end.
    let within = |field: &str, slack: f64| {
        let (counted, own) = (number(&usage[field]), number(&own[field]));
        assert!((own..=own + slack).contains(&counted), "{field}: {counted}, itself {own}");
    };
    within("user_seconds", 0.3);
    within("system_seconds", 0.3);
    within("minor_faults", 5_000.0);
    within("major_faults", 500.0);
    within("voluntary_switches", 50.0);
    within("involuntary_switches", 500.0);
    // The peak of the process that it was before may be the larger one, and it never sinks.
    within("peak_memory_bytes", f64::from(64 << 20));
    assert!(number(&usage["voluntary_switches"]) >= 40.0, "{usage}");
    assert!(number(&usage["peak_memory_bytes"]) >= f64::from(64 << 20), "{usage}");
    let cpu = number(&usage["user_seconds"]) + number(&usage["system_seconds"]);
    assert!(cpu >= 0.4 && number(&usage["real_seconds"]) >= 0.6, "{usage}");
    let bytes = f64::from(64 * 65_536);
    for (field, known, slack) in [
        ("written_bytes", bytes, 65_536.0),
        ("read_bytes", bytes, f64::from(16 << 20)),
        ("write_calls", 64.0, 50.0),
        ("read_calls", 64.0, 2_000.0),
        ("work_bytes", bytes, 65_536.0),
    ] {
        let counted = number(&usage[field]);
        assert!((known..=known + slack).contains(&counted), "{field}: {counted}, known {known}");
    }
    let jobs = json(&grid, &["jobs", "1"]);
    assert_eq!(&jobs[0]["usage"], usage);
    let explained = grid.forebay(&["explain", "1"], &[]).output();
    assert!(explained.contains("I/O for "), "{explained}");
}

#[test]
fn usage_sums_up_what_the_history_tells() {
    let grid = Fixture::start();
    for (project, script) in [("alpha", "exit 0"), ("alpha", "exit 3"), ("beta", "exit 0")] {
        let job = grid.submit(&["-P", project], script);
        wait_until("the job has ended", LIMIT, || {
            !json(&grid, &["jobs", &job])[0]["ended"].is_null()
        });
    }
    let again = grid.submit(
        &["-P", "beta", "--requeue-exit", "99"],
        "test \"$FOREBAY_ATTEMPT\" = 2 || exit 99",
    );
    grid.wait_for(&again, "done");
    let rows = json(&grid, &["usage", "--by", "project,host"]);
    let told: Vec<(&str, u64, u64, u64)> = rows
        .as_array()
        .expect("is a list")
        .iter()
        .map(|row| {
            assert_eq!(row["host"], "h1");
            let count = |field: &str| row[field].as_u64().expect("is a count");
            let project = row["project"].as_str().expect("is a text");
            (project, count("jobs"), count("failed"), count("attempts"))
        })
        .collect();
    assert_eq!(told, [("alpha", 2, 1, 2), ("beta", 2, 0, 3)]);
    let all = json(&grid, &["usage"]);
    for field in ["real_seconds", "user_seconds", "system_seconds", "read_bytes", "written_bytes"] {
        let attempts = ["1", "2", "3", "4"].map(|job| json(&grid, &["history", job]));
        let attempts = attempts.iter().flat_map(|job| job.as_array().expect("is a list"));
        let sum: f64 = attempts.map(|attempt| number(&attempt["usage"][field])).sum();
        let told = number(&all[0][field]);
        assert!((sum - told).abs() <= 1e-9 * sum.max(1.0), "{field}: {told}, history {sum}");
    }
    let day = all[0]["day"].clone();
    assert!(day.is_null());
    let by_day = json(&grid, &["usage", "--by", "day"]);
    let day = by_day[0]["day"].as_str().expect("is a day").to_owned();
    assert_eq!(json(&grid, &["usage", "--since", &day])[0]["attempts"], 5);
    assert_eq!(json(&grid, &["usage", "--until", "2000-01-01"]), Value::Array(Vec::new()));
    let csv = grid.forebay(&["usage", "--by", "queue", "--csv"], &[]).output();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 2, "{csv}");
    assert_eq!(
        (lines[0].len(), lines[0][..4].to_vec()),
        (lines[1].len(), vec!["queue", "jobs", "failed", "attempts"])
    );
    assert_eq!(lines[1][..4], ["normal", "4", "1", "5"]);
    assert!(grid.forebay(&["usage", "--by", "planet"], &[]).refused().contains("expected user"));
    assert!(grid.forebay(&["usage", "--since", "x"], &[]).refused().contains("2026-11-01"));
}

#[test]
fn sums_survive_the_controller() {
    let mut grid = Fixture::start();
    let job = grid.submit(&[], "true");
    grid.wait_for(&job, "done");
    let before = json(&grid, &["usage"]);
    grid.kill_daemon(0);
    grid.start_controller();
    assert_eq!(json(&grid, &["usage"]), before);
    assert_eq!(before[0]["jobs"], 1);
}

#[test]
fn a_host_reports_what_its_processors_do() {
    let grid = Fixture::start();
    let job = grid.submit(&[], "while :; do :; done");
    grid.wait_for(&job, "running");
    wait_until("the load shows", LIMIT, || {
        let load = &json(&grid, &["hosts"])[0]["load"];
        number(&load["ut"]) > 0.05 && number(&load["r15s"]) > 0.0
    });
    let load = &json(&grid, &["hosts"])[0]["load"];
    assert!(number(&load["ut"]) <= 1.0 && number(&load["pg"]) >= 0.0, "{load}");
    grid.forebay(&["kill", &job], &[]).succeeds();
}

/// A program of two steps.
const STEPS: &str = "name = \"made\"\n[[step]]\nname = \"first\"\n[step.do.generate]\noutput = \"data/facts\"\n\
    bytes = \"1 MB\"\ncolumns = [{ name = \"key\", value = { zipf = { keys = 10 } } }]\n\
    [[step]]\nname = \"second\"\n[step.do.summary]\ninput = \"data/facts\"\nclass = [\"key\"]\nanalysis = [\"key\"]\n";

#[test]
fn a_queue_has_a_log_of_each_step_and_each_job_written_beside_its_output() {
    let site = crate::asked::Site::start(
        "[[queue]]\nname = \"normal\"\n[[queue]]\nname = \"timed\"\nfullstimer = true\n",
    );
    let read = |name: &str| std::fs::read_to_string(site.grid.jobs.join(name)).ok();
    std::fs::write(site.grid.jobs.join("made.toml"), STEPS).expect("writes a program");
    let forebay = forebay_e2e::need::forebay();
    let forebay = forebay.display();
    let job = site.says(&format!(
        "{forebay} submit --wait -q timed -o made.out -- {forebay} step made.toml --quiet"
    ));
    let log = read("made.out.fullstimer").unwrap_or_else(|| panic!("job {job} has no log"));
    let titles: Vec<&str> = log.lines().filter(|line| line.starts_with("NOTE: ")).collect();
    assert_eq!(titles.len(), 4, "{log}");
    assert!(titles[0].starts_with("NOTE: STEP first (generate) used"), "{log}");
    assert!(titles[1].starts_with("NOTE: STEP second (summary) used"), "{log}");
    assert!(titles[2].starts_with(&format!("NOTE: Job {job}, start 1, on ")), "{log}");
    assert_eq!(titles[3], "NOTE: The job ended: exit value 0.");
    for (line, count) in
        [("real time", 3), ("Timestamp", 3), ("Step Count", 2), ("Page Reclaims", 3)]
    {
        assert_eq!(log.matches(&format!("\n      {line} ")).count(), count, "{line}: {log}");
    }
    // The first start of a job begins a log anew, as it does with the output.
    let _ = site.sh(&format!("{forebay} submit --wait -q timed -o made.out -- sh -c 'exit 3'"));
    let log = read("made.out.fullstimer").expect("a log");
    assert_eq!(log.matches("NOTE: Job ").count(), 1, "{log}");
    assert!(log.ends_with("NOTE: The job ended: exit value 3.\n"), "{log}");
    // Neither without the setting nor beside what is not a file.
    let _ = site.sh(&format!("{forebay} submit --wait -o plain.out -- true"));
    assert!(read("plain.out").is_some() && read("plain.out.fullstimer").is_none());
    let _ = site.sh(&format!("{forebay} submit --wait -q timed -o /dev/null -- true"));
    assert!(!std::path::Path::new("/dev/null.fullstimer").exists());
}

#[test]
fn what_a_running_job_reads_and_writes_is_known_while_it_runs() {
    let grid = Fixture::start();
    let file = "\"$WORK/file\"";
    let script =
        format!("head -c 3000000 /dev/zero >{file}; cat {file} >/dev/null; sleep 600 & wait");
    let job = grid.submit(&[], &script);
    let known = |name: &str| {
        let found = json(&grid, &["jobs", &job]);
        found[0]["usage"][name].as_u64().unwrap_or(0)
    };
    wait_until("its host says what it read and wrote", LIMIT, || {
        known("read_bytes") >= 6_000_000 && known("written_bytes") >= 6_000_000
    });
    // Not the file system of another test that happens to be mounted.
    let root = grid.root.to_str().expect("a path in UTF-8");
    let top = json(&grid, &["top", "--grid", root, "--once", "--interval", "0.1"]);
    assert!(number(&top["jobs"][0]["read_bytes_per_second"]) >= 0.0, "{top}");
    let long = grid.forebay(&["jobs", "-l", &job], &[]).output();
    assert!(long.contains("written"), "{long}");
    grid.forebay(&["kill", &job], &[]).succeeds();
}

#[test]
fn finished_jobs_are_simulated_on_more_machines() {
    let grid = Fixture::start();
    // Each takes all slots of the host, for much longer than it takes to start the next one.
    for _ in 0..5 {
        grid.submit(&["-n", "4"], "sleep 2");
    }
    wait_until("they have ended", LIMIT, || {
        json(&grid, &["jobs"]).as_array().is_some_and(Vec::is_empty)
    });
    let found = json(&grid, &["plan", "simulate", "--history", "--machines", "1,5"]);
    assert_eq!((&found["jobs"], &found["concurrent"]), (&5.into(), &4.into()), "{found}");
    let [one, five] = [0, 1].map(|place| found["predictions"][place].clone());
    let (recorded, predicted) = (number(&found["seconds"]), number(&one["seconds"]));
    assert!((0.4..1.5).contains(&(predicted / recorded)), "{found}");
    assert!(number(&five["slot_wait_seconds"]) < number(&one["slot_wait_seconds"]), "{found}");
    let queue = &found["queues"][0];
    assert_eq!((&queue["queue"], &queue["jobs"]), (&"normal".into(), &5.into()), "{found}");
    assert!(number(&queue["slot_hours"]) > 4.0 * 2.0 / 3600.0, "{found}");
    let waits = |place: usize| number(&queue["predictions"][place]["slot_wait_seconds_mean"]);
    assert!(waits(0) > 0.0 && waits(1) < waits(0), "{found}");
    let template = grid.forebay(&["plan", "--template"], &[]).output();
    std::fs::write(grid.jobs.join("site.toml"), template).unwrap();
    let planned = json(&grid, &["plan", "site.toml", "--history"]);
    let busiest = &planned["history"];
    assert_eq!(busiest["jobs"], 5, "{planned}");
    assert!((0.2..1.01).contains(&number(&busiest["jobs_at_once"])), "{busiest}");
    let of_queue = &busiest["queues"][0];
    assert_eq!(of_queue["jobs_at_once"], busiest["jobs_at_once"], "the only queue: {busiest}");
    assert!(number(&of_queue["slot_wait_seconds_p95"]) > 0.0, "{busiest}");
    let line = |key: &str| {
        let lines = planned["lines"].as_array().expect("lines").iter();
        number(&lines.clone().find(|line| line["key"] == key).expect("a line")["value"])
    };
    assert_eq!((line("cores"), line("jobs") >= 1.0), (1.0, true), "{planned}");
    let root = grid.root.display().to_string();
    let words = ["plan", "simulate", "--history", &root, "--since"];
    let shown = grid.forebay(&words, &["1 h"]).output();
    assert!(shown.contains("5 finished jobs") && shown.contains("bound by"), "{shown}");
    assert!(shown.contains("on 16") && shown.contains("normal"), "{shown}");
    let none = grid.forebay(&words, &["1 ms"]).refused();
    assert!(none.contains("--since"), "{none}");
}

//! Bad input of every command of the grid: the exit code, the thing, the reason.

use crate::fixture::Fixture;

/// Command line, exit code, and what its complaint has to say.
type Case = (&'static [&'static str], &'static [&'static str]);

/// What clap finds wrong, and what the grid does.
const CASES: &[Case] = &[
    (&["submit"], &["<COMMAND>", "Usage", "forebay submit -- sleep 10"]),
    (&["submit", "sleep", "10"], &["10", "forebay submit -- sleep 10"]),
    (&["submit", "sleep"], &["sleep", "forebay submit -- PROGRAM"]),
    (&["run", "sleep", "1"], &["forebay run -- sleep 10"]),
    (&["submit", "-q", "no such", "--", "true"], &["--queue", "no such"]),
    (&["submit", "-q", "none", "--", "true"], &["there is no queue none"]),
    (&["submit", "-n", "0", "--", "true"], &["--slots", "0"]),
    (&["submit", "-n", "many", "--", "true"], &["--slots", "many"]),
    (&["submit", "-m", "h1++", "--", "true"], &["--hosts", "h1++"]),
    (&["submit", "--mem", "much", "--", "true"], &["--mem", "much"]),
    (&["submit", "-J", "a[0-x]", "--", "true"], &["array", "0-x"]),
    (&["submit", "-J", "a[1-5", "--", "true"], &["a[1-5"]),
    (&["submit", "-J", "a[1-99999999999]", "--", "true"], &["99999999999"]),
    (&["submit", "-w", "done(", "--", "true"], &["--depends", "done("]),
    (&["submit", "-w", "done(77)", "--", "true"], &["77"]),
    (&["submit", "-w", "done(load)", "--", "true"], &["load"]),
    (&["submit", "-w", "!done(1)", "--", "true"], &["!done(1)"]),
    (&["submit", "--priority", "high", "--", "true"], &["--priority", "high"]),
    (&["submit", "--requeue-exit", "99 x", "--", "true"], &["--requeue-exit", "x"]),
    (&["submit", "--requeue-exit", "256", "--", "true"], &["256"]),
    (&["submit", "--env", "=x", "--", "true"], &["--env", "=x"]),
    (&["submit", "--env", "NOT_SET_ANYWHERE", "--", "true"], &["NOT_SET_ANYWHERE"]),
    (&["submit", "--time-limit", "1:30", "--", "true"], &["--time-limit", "1:30"]),
    (&["submit", "--time-limit", "-5", "--", "true"], &["-5"]),
    (&["submit", "--time-limit", "0", "--", "true"], &["the time limit is 0"]),
    (&["submit", "--batch", "/no/such/file"], &["--batch", "/no/such/file"]),
    (&["submit", "--batch", "-", "--wait"], &["--batch", "--wait"]),
    (&["submit", "--batch", "-", "--", "true"], &["--batch"]),
    (&["submit", "--no-such-option", "--", "true"], &["--no-such-option"]),
    (&["jobs", "77"], &["there is no job 77"]),
    (&["jobs", "1[9]"], &["there is no job 1[9]"]),
    (&["jobs", "x"], &["x", "is not a job", "12[3]"]),
    (&["jobs", "-1"], &["-1"]),
    (&["jobs", "1", "77"], &["there is no job 77"]),
    (&["jobs", "1", "x"], &["x", "is not a job"]),
    (&["hosts", "h1"], &["h1"]),
    (&["queues", "normal"], &["normal"]),
    (&["history"], &["<JOB>"]),
    (&["history", "77"], &["there is no job 77"]),
    (&["history", "0x1"], &["0x1"]),
    (&["explain"], &["<JOB>"]),
    (&["explain", "77"], &["there is no job 77"]),
    (&["explain", "18446744073709551616"], &["18446744073709551616"]),
    (&["output"], &["<JOB>"]),
    (&["output", "77"], &["there is no job 77"]),
    (&["kill"], &["<JOBS>"]),
    (&["kill", "77"], &["there is no job 77"]),
    (&["kill", "1[9]"], &["there is no job 1[9]"]),
    (&["kill", "1"], &["job 1 has ended"]),
    (&["hold", "77"], &["there is no job 77"]),
    (&["hold", "1"], &["job 1"]),
    (&["release", "77"], &["there is no job 77"]),
    (&["release", "1"], &["job 1 is not held"]),
    (&["requeue", "77"], &["there is no job 77"]),
    (&["host"], &["close", "open"]),
    (&["host", "shut", "h1"], &["shut"]),
    (&["host", "close"], &["<HOST>"]),
    (&["host", "close", "none"], &["there is no host none"]),
    (&["host", "close", "a b"], &["a b"]),
    (&["host", "remove", "h1"], &["h1 cannot be removed", "it is up"]),
    (&["host", "remove", "none"], &["there is no host none"]),
    (&["reload", "now"], &["now"]),
    (&["queue", "close"], &["<QUEUE>"]),
    (&["queue", "close", "none"], &["there is no queue none"]),
    (&["queue", "stop", "normal"], &["stop", "inactivate"]),
    (&["jobs", "--grid", "/does/not/exist"], &["/does/not/exist"]),
    (&["hosts", "--grid", "/etc/passwd"], &["/etc/passwd"]),
    (&["queues", "--grid", "/usr"], &["/usr/grid", "is the grid up"]),
    (&["up"], &["<ROOT>"]),
    (&["up", "/does/not/exist"], &["/does/not/exist"]),
    (&["up", "/etc/passwd"], &["/etc/passwd"]),
    (&["up", "/tmp", "--hosts", "0"], &["--hosts", "0"]),
    (&["up", "/tmp", "--slots", "some"], &["--slots", "some"]),
    (&["up", "/tmp", "--engine", "slurm", "--checkpoints", "/c"], &["--engine", "--checkpoints"]),
    (&["down"], &["<ROOT>"]),
    (&["down", "/does/not/exist"], &["/does/not/exist"]),
    (&["down", "/usr"], &["/usr is not the folder of a grid"]),
    (&["controller"], &["<ROOT>"]),
    (&["controller", "/does/not/exist"], &["/does/not/exist"]),
    (&["agent", "/does/not/exist", "--name", "h9", "--slots", "1"], &["/does/not/exist"]),
    (&["agent", "/tmp", "--name", "h 9", "--slots", "1"], &["--name", "h 9"]),
    (&["agent", "/tmp", "--name", "../h9", "--slots", "1"], &["--name", "../h9"]),
    (&["agent", "/tmp", "--name", "h9"], &["--slots"]),
    (&["agent", "/tmp", "--name", "h9", "--slots", "0"], &["--slots", "0"]),
    (&["job-shim", "/does/not/exist"], &["--nursery"]),
];

#[test]
fn bad_input_is_refused_with_exit_code_2_the_thing_and_the_reason() {
    let grid = Fixture::start(1, "");
    let first = grid.submit(&[], "true");
    grid.wait_for(&first, "done");
    let mut faults = Vec::new();
    for (arguments, words) in CASES {
        let ended = grid.forebay(arguments);
        let said = &ended.stderr;
        let right = ended.code() == 2 && !said.contains("panicked");
        if !right || words.iter().any(|word| !said.contains(word)) || !ended.stdout.is_empty() {
            faults.push(format!("{arguments:?}: wants {words:?}, got {ended:#?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Nothing of this has become a job.
    assert_eq!(grid.json(&["jobs", "--all"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_second_daemon_is_refused() {
    let grid = Fixture::start(1, "");
    let root = grid.root.display().to_string();
    let said = grid.forebay(&["controller", &root]).expect_code(2).refused();
    assert!(said.contains("is already running") && said.contains(&root), "{said}");
    let agent = ["agent", &root, "--name", "h1", "--slots", "1"];
    let said = grid.forebay(&agent).expect_code(2).refused();
    assert!(said.contains("agent h1 of this grid is already running"), "{said}");
}

#[test]
fn lines_of_a_batch_are_submitted_one_by_one_and_in_order() {
    let grid = Fixture::start(1, "");
    let lines: Vec<String> = (1..=2000).map(|number| format!("echo {number} >>lines")).collect();
    let text = format!("# the jobs\n\n{}\n", lines.join("\n"));
    std::fs::write(grid.jobs.join("batch"), text).expect("writes");
    let said = grid.forebay(&["submit", "--hold", "-o", "/dev/null", "--batch", "batch"]).output();
    let ids: Vec<u64> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(ids, (1..=2000).collect::<Vec<u64>>());
    let last = &grid.json(&["jobs", "2000"])[0];
    assert_eq!(last["command"], serde_json::json!(["sh", "-c", "echo 2000 >>lines"]));
    grid.forebay(&["release", "3"]).succeeds();
    grid.wait_for("3", "done");
    let written = std::fs::read_to_string(grid.jobs.join("lines")).expect("reads");
    assert_eq!(written, "3\n");
    // A line that is refused holds the others up in no way.
    std::fs::write(grid.jobs.join("batch"), "true\ntrue\n").expect("writes");
    let ended = grid.forebay(&["submit", "-q", "none", "--batch", "batch"]).expect_code(2);
    for line in ["line 1: there is no queue none", "line 2: there is no queue none"] {
        assert!(ended.stderr.contains(line), "{ended:#?}");
    }
}

//! What cannot be printed or passed on is an error, for every command.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use forebay_e2e::need::forebay;

use crate::Fixture;

/// Runs a command whose standard output is on a device that is full.
fn on_full(grid: &Fixture, arguments: &[&str]) -> Output {
    let mut command = Command::new(forebay());
    command.args(arguments).env("FOREBAY_GRID", &grid.root).current_dir(&grid.jobs);
    command.stdin(Stdio::null()).stdout(File::options().write(true).open("/dev/full").unwrap());
    command.output().unwrap()
}

#[test]
fn output_that_cannot_be_printed_is_an_error_of_every_command() {
    let grid = Fixture::start();
    grid.forebay(&["submit", "--wait", "--", "echo", "hi"], &[]).succeeds();
    std::fs::write(
        grid.jobs.join("f.toml"),
        "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = \"true\"\n",
    )
    .unwrap();
    std::fs::write(grid.jobs.join("batch"), "true\ntrue\n").unwrap();
    grid.forebay(&["flow", "run", "f.toml", "--wait"], &[]).succeeds();
    let root = grid.root.display().to_string();
    let commands = [
        "jobs --all",
        "jobs --all --json",
        "hosts",
        "hosts --json",
        "queues",
        "usage",
        "usage --csv",
        "usage --json",
        "areas",
        "history 1",
        "explain 1",
        "explain 1 --json",
        "output 1",
        "output 1 --json",
        "flow list",
        "flow show 1",
        "flow check f.toml",
        "flow run f.toml",
        "host open h1 --json",
        "queue open normal --json",
        "requeue 1 --json",
        "submit -- true",
        "submit --json -- true",
        "submit --batch batch",
        "bench list",
        "bench list --json",
        "bench show mixed",
        "bench show mixed --text",
        "step --kinds",
        "--help",
        "--version",
    ];
    for line in commands {
        let ended = on_full(&grid, &line.split(' ').collect::<Vec<&str>>());
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains("standard output cannot be written: No space left"),
            "{line}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
    let made = on_full(&grid, &["mkfs", &format!("{root}.fs")]);
    assert_eq!(made.status.code(), Some(2));
    for line in ["status", "fsck", "fileset list"] {
        let mut arguments: Vec<&str> = line.split(' ').collect();
        let place = format!("{root}.fs");
        arguments.push(&place);
        let ended = on_full(&grid, &arguments);
        assert_eq!(ended.status.code(), Some(2), "{line}: {ended:?}");
    }
}

#[test]
fn the_number_of_a_job_that_was_taken_is_told_where_it_cannot_be_printed() {
    let grid = Fixture::start();
    for (arguments, said) in [
        (&["submit", "--", "true"][..], "job 1 was accepted"),
        (&["submit", "--json", "--", "true"], "job 2 was accepted"),
    ] {
        let ended = on_full(&grid, arguments);
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(text.starts_with(&format!("forebay: {said}: standard output")), "{text}");
    }
    grid.wait_for_end("2");
}

#[test]
fn what_stands_in_the_way_of_a_start_is_named_once() {
    let grid = Fixture::start();
    let closed = grid.jobs.join("gone");
    std::fs::create_dir(&closed).unwrap();
    let held = Command::new(forebay())
        .args(["submit", "--hold", "--", "true"])
        .env("FOREBAY_GRID", &grid.root)
        .current_dir(&closed)
        .output()
        .unwrap();
    assert!(held.status.success());
    std::fs::remove_dir(&closed).unwrap();
    grid.forebay(&["release", "1"], &[]).succeeds();
    grid.forebay(&["submit", "-o", "/no/dir/x", "--", "echo", "hi"], &[]).succeeds();
    grid.forebay(&["submit", "-e", "/dev/null/x", "--", "echo", "hi"], &[]).succeeds();
    grid.forebay(&["submit", "--", "/no/such/program"], &[]).succeeds();
    let directory = closed.display().to_string();
    for (job, thing, reason) in [
        ("1", format!("working directory {directory}"), "No such file or directory"),
        ("2", "open the output /no/dir/x".to_owned(), "No such file or directory"),
        ("3", "open the error file /dev/null/x".to_owned(), "Not a directory"),
        ("4", "start /no/such/program".to_owned(), "No such file or directory"),
    ] {
        grid.wait_for_end(job);
        let said = grid.forebay(&["history", job], &[]).output();
        assert!(said.contains(&thing), "{said}");
        assert_eq!(said.matches(reason).count(), 1, "{said}");
    }
}

#[test]
fn nobody_to_read_errors_is_no_reason_to_panic() {
    let grid = Fixture::start();
    let mut command = Command::new(forebay());
    command.args(["jobs", "77"]).env("FOREBAY_GRID", &grid.root).stdout(Stdio::null());
    command.stderr(File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(command.status().unwrap().code(), Some(2));
}

#[test]
fn output_of_run_that_is_lost_is_told_and_its_exit_code_is_no_success() {
    let grid = Fixture::start();
    for script in ["echo hi", "seq 3000", "seq 300000; exit 0", "seq 300000", "echo hi; exit 3"] {
        let ended = on_full(&grid, &["run", "--", "sh", "-c", script]);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            said.contains("standard output cannot be written: No space left"),
            "{script}: {said}"
        );
        assert_eq!(ended.status.code(), Some(125), "{script}: {said}");
    }
}

#[test]
fn what_a_job_is_called_gives_no_terminal_orders() {
    let grid = Fixture::start();
    let nasty = "a\x1b]0;owned\x07\x1b[2J\u{9b}5m\u{202e}\rb\nc";
    // In names, projects, commands, paths and reasons.
    let words = ["submit", "-J", nasty, "-P", nasty, "--hold", "--", "echo", nasty, "\x1b[31m"];
    // A name that is refused is told, and that is looked at as well.
    let mut ended = vec![grid.forebay(&words, &[])];
    grid.forebay(&["submit", "--hold", "--", "echo", nasty], &[]).succeeds();
    let missing = format!("/nowhere/{nasty}");
    ended.push(grid.forebay(&["submit", "--wait", "-o", &missing, "--", nasty], &[]));
    let path = "out-\x1b[1m-%I";
    grid.forebay(&["submit", "--wait", "-J", "x[1-2]", "-o", path, "--", "echo", "hi"], &[])
        .succeeds();
    let jobs = || -> serde_json::Value {
        serde_json::from_str(&grid.forebay(&["jobs", "--all", "--json"], &[]).output()).unwrap()
    };
    // What scripts read means what was submitted.
    let told = jobs();
    let is_whole = |job: &serde_json::Value| job["command"][1] == nasty;
    assert!(told.as_array().unwrap().iter().any(is_whole), "{told}");
    let last: u64 = grid.submit(&["--hold"], "true").parse().unwrap();
    let mut lines: Vec<String> =
        ["jobs --all", "jobs --all -l", "usage --by project", "usage --csv --by project"]
            .into_iter()
            .chain(["areas --all", "hosts", "jobs --all --json", "usage --json --by project"])
            .map(str::to_owned)
            .collect();
    for job in 1..=last {
        let verbs =
            ["jobs", "jobs --json", "jobs -l", "explain", "explain --json", "history", "output"];
        lines.extend(verbs.map(|verb| format!("{verb} {job}")));
    }
    for line in &lines {
        ended.push(grid.forebay(&line.split(' ').collect::<Vec<&str>>(), &[]));
    }
    let order = |c: &char| (c.is_control() && !"\n\t".contains(*c)) || *c == '\u{202e}';
    for ended in &ended {
        for text in [&ended.stdout, &ended.stderr] {
            assert_eq!(text.chars().find(order), None, "{}: {text:?}", ended.line);
        }
    }
    let seen: String = ended.iter().map(|ended| ended.stdout.as_str()).collect();
    assert!(seen.contains("\\u001b]0;owned\\u0007"), "it is not even shown: {seen}");
}

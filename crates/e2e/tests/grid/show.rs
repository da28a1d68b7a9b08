//! What the lists of a grid show: details, choices, counts, output of arrays.

use std::process::Command;

use forebay_e2e::command::run;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::{Fixture, LIMIT};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn everything_that_was_asked_for_can_be_looked_up() {
    let grid = Fixture::start();
    grid.submit(&["--hold"], "true");
    let options = [
        "-m",
        "h1+1",
        "--mem",
        "1 MiB",
        "-w",
        "done(1)",
        "--priority",
        "7",
        "-P",
        "sales",
        "--time-limit",
        "90 s",
        "--rerunnable",
        "--requeue-exit",
        "99",
        "--checkpoint",
        "-J",
        "load",
    ];
    let job = grid.submit(&options, "true");
    let told = json(&grid.forebay(&["jobs", &job, "--json"], &[]).output());
    let asked = &told[0]["asked"];
    for (key, value) in [
        ("hosts", Value::from("h1+1")),
        ("memory_bytes", Value::from(1 << 20)),
        ("depends", Value::from("done(1)")),
        ("priority", Value::from(7)),
        ("project", Value::from("sales")),
        ("time_limit_seconds", Value::from(90.0)),
        ("rerun", Value::from("rerunnable")),
        ("requeue_exits", Value::from("99")),
        ("checkpoint", Value::from(true)),
        ("directory", Value::from(grid.jobs.canonicalize().unwrap().to_str().unwrap())),
    ] {
        assert_eq!(asked[key], value, "{key} of {told}");
    }
    let block = grid.forebay(&["jobs", "-l", "1", &job], &[]).output();
    for line in [
        "depends       done(1)",
        "memory        1 MiB",
        "time limit    90 s",
        "project       sales",
        "submitted     20",
    ] {
        assert!(block.contains(line), "{line}: {block}");
    }
    let mut command = Command::new(forebay());
    command.args(["jobs", "-l", &job]).env("FOREBAY_GRID", &grid.root).env("TZ", "Asia/Tokyo");
    let there = run(&mut command, LIMIT).output();
    assert!(there.contains("+09:00"), "{there}");
}

#[test]
fn jobs_are_chosen_by_number_name_state_user_and_queue() {
    let grid = Fixture::start();
    grid.submit(&["--hold", "-J", "load-a"], "true");
    grid.submit(&["--hold", "-J", "load-b"], "true");
    grid.submit(&["--hold", "-J", "sum"], "true");
    let done = grid.submit(&[], "true");
    grid.wait_for(&done, "done");
    let shown = |options: &[&str]| {
        let told = json(&grid.forebay(&["jobs", "--json"], options).output());
        let ids = told.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<String>>().join(" ")
    };
    assert_eq!(shown(&["1", "3"]), "1 3");
    assert_eq!(shown(&["--name", "load*"]), "1 2");
    assert_eq!(shown(&["--name", "sum"]), "3");
    assert_eq!(shown(&["--all", "--state", "done,running"]), "4");
    assert_eq!(shown(&["--state", "held", "--limit", "2"]), "1 2");
    let refused = grid.forebay(&["jobs", "--state", "runing"], &[]);
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr.contains("\"runing\" is not a state of a job"), "{}", refused.stderr);
    assert_eq!(shown(&["--user", "nobody"]), "");
    assert_eq!(shown(&["--queue", "normal"]), "1 2 3");
    let queues = json(&grid.forebay(&["queues", "--json"], &[]).output());
    assert_eq!(queues[0]["held_tasks"], 3, "{queues}");
    assert_eq!(queues[0]["pending_tasks"], 0, "{queues}");
}

#[test]
fn output_of_an_array_is_that_of_all_its_elements() {
    let grid = Fixture::start();
    let job = grid.submit(&["-J", "tri[1-3]", "-o", "tri-%I.out"], "echo element $FOREBAY_INDEX");
    grid.wait_for_end(&format!("{job}[3]"));
    grid.wait_for_end(&format!("{job}[1]"));
    grid.wait_for_end(&format!("{job}[2]"));
    let said = grid.forebay(&["output", &job], &[]).output();
    for index in 1..=3 {
        assert!(said.contains(&format!("== {job}[{index}]: ")), "{said}");
        assert!(said.contains(&format!("element {index}\n")), "{said}");
    }
    let one = grid.forebay(&["output", &format!("{job}[2]")], &[]).output();
    assert_eq!(one, "element 2\n");
    let told = json(&grid.forebay(&["output", &job, "--json"], &[]).output());
    assert_eq!(told.as_array().map(Vec::len), Some(3), "{told}");
    let said = grid.forebay(&["output", &job, "-f"], &[]).refused();
    assert!(said.contains("is an array"), "{said}");
}

#[test]
fn a_job_without_output_says_why() {
    let grid = Fixture::start();
    let held = grid.submit(&["--hold"], "true");
    let said = grid.forebay(&["output", &held], &[]).refused();
    assert!(said.contains("it is held and was never started"), "{said}");
    let ended = grid.forebay(&["submit", "--wait", "--", "/no/such"], &[]).expect_code(127);
    assert!(ended.stderr.contains("job 2 was not started: cannot start /no/such"), "{ended:?}");
    let said = grid.forebay(&["output", "2"], &[]).output();
    assert_eq!(said, "");
    let history = grid.forebay(&["history", &held], &[]).expect_code(0);
    assert!(history.stderr.contains("job 1 has no finished start"), "{history:?}");
    let errors = grid.submit(&["-e", "e"], "echo bad >&2");
    grid.wait_for(&errors, "done");
    assert_eq!(grid.forebay(&["output", &errors, "--errors"], &[]).output(), "bad\n");
    let ended = grid.forebay(&["run", "--", "/no/such"], &[]).expect_code(127);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn a_job_that_is_forgotten_is_told_from_one_that_never_was() {
    let mut grid = Fixture::start();
    std::fs::write(grid.root.join("grid/grid.toml"), "[general]\nfinished_max = 1\n").unwrap();
    grid.kill_daemon(0);
    grid.start_controller();
    let first = grid.submit(&[], "true");
    grid.wait_for(&first, "done");
    for _ in 0..3 {
        grid.forebay(&["submit", "--wait", "--", "true"], &[]).succeeds();
    }
    let mut said = String::new();
    wait_until("the first job is forgotten", LIMIT, || {
        let ended = grid.forebay(&["jobs", &first], &[]);
        said.clone_from(&ended.stderr);
        ended.code() == 2
    });
    assert!(said.contains("job 1 has finished, and only its history"), "{said}");
    let said = grid.forebay(&["explain", "77"], &[]).refused();
    assert_eq!(said, "forebay: there is no job 77\n");
}

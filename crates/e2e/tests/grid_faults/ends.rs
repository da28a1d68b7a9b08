//! What ends with a job, with its agent and with its grid.

use std::io::{BufRead as _, BufReader};
use std::process::Command;

use forebay_e2e::command::run;
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;

use crate::fixture::{Fixture, LIMIT};

#[test]
fn what_a_job_leaves_behind_in_a_session_of_its_own_ends_with_it() {
    let grid = Fixture::start(1, "");
    let done =
        grid.submit(&[], "setsid sh -c 'sleep 600 & sleep 600' & setsid sleep 600 & sleep 0.2");
    grid.wait_for(&done, "done");
    let killed = grid.submit(&[], "setsid sleep 600 & touch there; sleep 600");
    wait_until("it runs", LIMIT, || grid.jobs.join("there").exists());
    grid.forebay(&["kill", &killed]).succeeds();
    grid.wait_for(&killed, "killed");
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn orphans_of_a_job_that_end_are_not_left_as_zombies() {
    let grid = Fixture::start(1, "");
    let script = "for n in 1 2 3 4 5; do (sleep 0.1 &); done; sleep 1; \
                  for n in $(seq 100); do \
                  cat /proc/$PPID/task/*/children | wc -w >children; \
                  test $(cat children) = 1 && break; sleep 0.2; done; touch counted; sleep 600";
    let job = grid.submit(&[], script);
    wait_until("it has counted", LIMIT, || grid.jobs.join("counted").exists());
    let children = std::fs::read_to_string(grid.jobs.join("children")).expect("reads");
    assert_eq!(children.trim(), "1", "children of its shim");
    grid.forebay(&["kill", &job]).succeeds();
    grid.wait_for(&job, "killed");
}

#[test]
fn a_grid_that_is_taken_down_leaves_no_job_of_a_dead_agent() {
    let mut grid = Fixture::start(1, "");
    let (once, again) = (
        grid.submit(&[], "sleep 600"),
        grid.submit(&["--rerunnable"], "test $FOREBAY_ATTEMPT != 1 || exec sleep 600"),
    );
    grid.wait_for(&once, "running");
    grid.wait_for(&again, "running");
    grid.kill_agent("h1");
    let root = grid.root.display().to_string();
    grid.forebay(&["down", &root, "--now"]).succeeds();
    assert_eq!(grid.shims(), []);
    grid.kill_controller();
    grid.start_controller();
    grid.start_agent("h1");
    grid.wait_for(&again, "done");
    grid.wait_for(&once, "host_lost");
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn a_grid_without_a_controller_is_not_taken_down_while_jobs_run() {
    let mut grid = Fixture::start(2, "");
    let job = grid.submit(&["-m", "h1"], "until test -e go; do sleep 0.05; done");
    grid.wait_for(&job, "running");
    let root = grid.root.display().to_string();
    grid.kill_controller();
    let said = grid.forebay(&["down", &root]).expect_code(2).refused();
    assert!(said.contains("1 job is running") && said.contains("--now"), "{said}");
    grid.kill_agent("h1");
    let said = grid.forebay(&["down", &root]).expect_code(2).refused();
    assert!(said.contains("1 job is running"), "{said}");
    std::fs::write(grid.jobs.join("go"), "").expect("lets the job end");
    wait_until("it has ended", LIMIT, || grid.shims().is_empty());
    grid.forebay(&["down", &root]).succeeds();
    grid.start_controller();
    grid.start_agent("h1");
    grid.wait_for(&job, "done");
}

#[test]
fn daemons_hold_nothing_that_whoever_starts_them_has_open() {
    let folder = scratch_folder();
    let (root, lock) = (folder.path().join("g"), folder.path().join("l"));
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("FOREBAY", forebay()).env("ROOT", &root).env("L", &lock);
        run(&mut command, LIMIT)
    };
    shell("(flock 9; \"$FOREBAY\" up \"$ROOT\" --slots 1) 9>\"$L\"").succeeds();
    let free = shell("flock -n \"$L\" true").status.success();
    shell("\"$FOREBAY\" down \"$ROOT\"").succeeds();
    assert!(free, "a daemon holds the lock");
}

#[test]
fn commands_that_wait_outlive_a_restart_of_the_controller() {
    let mut grid = Fixture::start(1, "");
    let script = "echo said; until test -e go; do sleep 0.05; done; exit 7";
    let start = |arguments: &[&str]| {
        let mut command = grid.command(arguments);
        command.stdout(std::process::Stdio::piped()).spawn().expect("starts a command")
    };
    let waiting = start(&["submit", "--wait", "--", "sh", "-c", script]);
    wait_until("the job is known", LIMIT, || grid.forebay(&["jobs", "1"]).status.success());
    grid.wait_for("1", "running");
    let mut reading = start(&["output", "1", "-f"]);
    // It has begun to wait once it has passed something on.
    let mut lines = BufReader::new(reading.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("reads"), "said");
    grid.kill_controller();
    grid.start_controller();
    grid.wait_for("1", "running");
    std::fs::write(grid.jobs.join("go"), "").expect("lets the job end");
    let waited = waiting.wait_with_output().expect("the command ends");
    assert_eq!(waited.status.code(), Some(7));
    assert!(lines.next().is_none(), "it says it again");
    assert_eq!(reading.wait().expect("the command ends").code(), Some(0));
}

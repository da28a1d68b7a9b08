//! Jobs that go on where they stopped.

use std::path::PathBuf;
use std::process::Command;

use forebay_e2e::need::forebay;
use forebay_e2e::{run, wait_until};

use crate::{Fixture, LIMIT};

/// A step for a shell script: done once, with its attempt.
const SCRIPT: &str = r#"
step() { "$FOREBAY" checkpoint has "$1" || { echo "$1 $FOREBAY_ATTEMPT ${FOREBAY_RESTART-none}" >>ran; "$FOREBAY" checkpoint done "$1"; }; }
step first
step 'second one'
if test "$FOREBAY_ATTEMPT" = 1; then echo "$WORK" >there; sleep 600; fi
step third
"$FOREBAY" checkpoint list --json >list
"#;

fn forebay_variable() -> String {
    format!("FOREBAY={}", forebay().display())
}

#[test]
fn a_script_skips_the_steps_that_had_finished_when_its_host_was_lost() {
    let mut grid = Fixture::start();
    let variable = forebay_variable();
    let job = grid.submit(&["--checkpoint", "--rerunnable", "--env", &variable], SCRIPT);
    wait_until("two steps have finished", LIMIT, || !grid.lines("there").is_empty());
    grid.stop_agent(libc::SIGINT);
    grid.start_agent();
    grid.wait_for(&job, "done");
    assert_eq!(grid.lines("ran"), ["first 1 none", "second one 1 none", "third 2 1"]);
    let list = std::fs::read_to_string(grid.jobs.join("list")).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert!(list["shipped"].is_null(), "hosts have no place for checkpoints: {list}");
    let attempts: Vec<u64> = list["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["attempt"].as_u64().unwrap())
        .collect();
    assert_eq!(attempts, [1, 1, 2]);
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
}

#[test]
fn steps_can_be_asked_for_listed_and_cleared() {
    let grid = Fixture::start();
    let script = r#"set -e; c="$FOREBAY checkpoint"
        if $c has a; then exit 20; fi
        $c done a; $c done 'b c'; $c done a; $c has a; $c has 'b c'
        test "$($c list | tail -n +2 | wc -l)" = 2
        $c clear a; if $c has a; then exit 21; fi
        if $c clear a 2>/dev/null; then exit 22; fi
        $c clear; $c list --json | grep -q '"steps": \[\]'
        if $c done '' 2>/dev/null; then exit 23; fi
        code=0; $c has '' 2>/dev/null || code=$?; test $code = 2"#;
    let variable = forebay_variable();
    let job = grid.submit(&["--checkpoint", "--env", &variable], script);
    grid.wait_for_end(&job);
    let said = grid.forebay(&["output", &job], &[]).output();
    assert_eq!(grid.state(&job), "done", "{said}");
    // Without --checkpoint it works, and says what that means.
    let job = grid.submit(&["--env", &variable], "$FOREBAY checkpoint done a");
    grid.wait_for(&job, "done");
    assert!(grid.forebay(&["output", &job], &[]).output().contains("without --checkpoint"));
    for arguments in [&["done", "a"][..], &["has", "a"], &["list"], &["clear"]] {
        let said = grid.forebay(&["checkpoint"], arguments).refused();
        assert!(said.contains("not running inside a grid job"), "{said}");
    }
}

/// Two steps of which the first is quick, and a summary.
fn program(rows: u64) -> String {
    format!(
        r#"
name = "chain"
[[step]]
name = "make"
[step.do.generate]
output = "work/facts"
rows = 2000
columns = [{{ name = "x", value = {{ uniform = {{ min = 0, max = 1 }} }} }}]
[[step]]
name = "more"
[step.do.generate]
output = "work/more"
rows = {rows}
columns = [{{ name = "y", value = {{ uniform = {{ min = 0, max = 1 }} }} }}]
[[step]]
name = "sort"
[step.do.sort]
input = "work/facts"
output = "data/{{job}}-sorted"
util = "util"
by = [{{ column = "x" }}]
[[step]]
table = "data/{{job}}.csv"
[step.do.summary]
input = "work/more"
analysis = ["y"]
"#
    )
}

/// So many that the second step takes a while on every machine.
const ROWS: u64 = 12_000_000;

/// The records of the first step, below a work area.
fn first_record(work: &std::path::Path) -> Option<PathBuf> {
    let programs = std::fs::read_dir(work.join(".forebay")).ok()?;
    let mut records = programs.flatten().map(|entry| entry.path().join("steps/0001.json"));
    records.find(|path| path.exists())
}

#[test]
fn a_program_of_steps_goes_on_where_its_host_was_lost_with_the_same_result() {
    let mut grid = Fixture::start();
    std::fs::write(grid.jobs.join("chain.toml"), program(ROWS)).unwrap();
    let whole = "$FOREBAY step chain.toml --data . --job whole";
    let variable = forebay_variable();
    let whole = grid.submit(&["--env", &variable], whole);
    grid.wait_for(&whole, "done");
    let script = "echo attempt $FOREBAY_ATTEMPT ${FOREBAY_RESTART-}; \
                  exec $FOREBAY step chain.toml --data . --job cut";
    let job = grid.submit(&["--checkpoint", "--rerunnable", "--env", &variable], script);
    let work = grid.root.join(format!("grid/work/job-{job}"));
    wait_until("the first step has finished", LIMIT, || first_record(&work).is_some());
    grid.stop_agent(libc::SIGINT);
    grid.start_agent();
    grid.wait_for(&job, "done");
    let said = grid.forebay(&["output", &job], &[]).output();
    let (first, second) = said.split_once("attempt 2 1").expect("there was a second attempt");
    assert!(first.contains("step 1 of 4: make (generate)\n"), "{said}");
    assert!(!first.contains("step 3"), "killed too late to tell: {said}");
    assert!(second.contains("step 1 of 4: make (generate) skipped: already finished\n"), "{said}");
    assert!(second.contains("step 2 of 4: more (generate)\n"), "{said}");
    for (cut, whole) in [("cut.csv", "whole.csv"), ("cut-sorted", "whole-sorted")] {
        let read = |name: &str| std::fs::read(grid.jobs.join(name)).unwrap();
        assert!(read(cut) == read(whole), "{cut} differs from {whole}");
    }
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
}

#[test]
fn a_program_goes_on_outside_the_grid_and_begins_anew_when_it_has_changed() {
    let grid = Fixture::start();
    let work = grid.jobs.join("w");
    std::fs::create_dir(&work).unwrap();
    let path = grid.jobs.join("chain.toml");
    std::fs::write(&path, program(ROWS)).unwrap();
    let step = || {
        let mut step = Command::new(forebay());
        step.args(["step", "chain.toml", "--data", ".", "--work", "w", "--checkpoint"]);
        step.current_dir(&grid.jobs);
        step
    };
    let interrupt = || {
        let mut child = step().stdout(std::process::Stdio::null()).spawn().unwrap();
        wait_until("the first step has finished", LIMIT, || first_record(&work).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    };
    interrupt();
    std::fs::write(&path, program(1000)).unwrap();
    let ended = run(&mut step(), LIMIT).expect_code(0);
    assert!(ended.stderr.contains("have changed"), "{ended:?}");
    assert!(!ended.stdout.contains("skipped: already finished"), "{ended:?}");
    assert!(first_record(&work).is_none(), "records are left");
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
    std::fs::write(&path, program(ROWS)).unwrap();
    interrupt();
    let said = run(&mut step(), LIMIT).output();
    assert!(said.contains("step 1 of 4: make (generate) skipped: already finished"), "{said}");
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
}

#[test]
fn programs_that_have_finished_are_skipped_after_a_restart_and_run_again_in_one_attempt() {
    let grid = Fixture::start();
    std::fs::write(grid.jobs.join("chain.toml"), program(1000)).unwrap();
    let script = "$FOREBAY step chain.toml --data . >>said; $FOREBAY step chain.toml --data . >>said; \
                  test $FOREBAY_ATTEMPT = 2 || exit 99";
    let variable = forebay_variable();
    let options = ["--checkpoint", "--requeue-exit", "99", "--env", &variable];
    let job = grid.submit(&options, script);
    grid.wait_for(&job, "done");
    let said = std::fs::read_to_string(grid.jobs.join("said")).unwrap();
    // Twice in the first attempt; skipped and run in the second.
    assert_eq!(said.matches("step 4 of 4").count(), 4, "{said}");
    assert_eq!(
        said.matches("step 4 of 4: summary (summary) skipped: already finished").count(),
        1,
        "{said}"
    );
    assert!(grid.jobs.join("job.csv").exists());
}

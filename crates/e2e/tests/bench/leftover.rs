//! What a run leaves behind when it is killed, and when the reader of its output goes away.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use forebay_e2e::wait_until;
use rustix::process::Signal;

use crate::fixture::{Bench, HEAD, LIMIT, WAITS, assert_says, json, names_in, quick, streams};

/// A mix whose jobs wait until they are ended.
fn waiting() -> String {
    format!("{HEAD}{}", streams("w", 2, WAITS).replace("start_together = 2", "start_together = 3"))
}

/// Kills a run while its jobs wait.
fn kill_a_run(bench: &Bench) {
    let started = bench.start(&waiting(), &[]);
    bench.job("w-0");
    bench.job("w-1");
    started.signal(Signal::KILL);
    let _ = started.ends();
    wait_until("its jobs are gone", LIMIT, || !bench.runs("w-0") && !bench.runs("w-1"));
    std::fs::remove_dir_all(bench.out()).expect("removes what there is of the result");
}

#[test]
fn what_kill_9_leaves_is_named_at_the_next_run_and_removed_on_request() {
    let bench = Bench::new();
    kill_a_run(&bench);
    let left = names_in(&bench.storage());
    assert_eq!(left.len(), 3, "{left:?}");
    let on = bench.storage().display().to_string();
    std::fs::create_dir(bench.storage().join("forebay-bench-mine")).expect("makes a folder");
    let said = bench.run(&quick(), &[]).expect_code(0).stderr;
    let way_out = format!("forebay bench clean {on}");
    assert_says(&said, &["a run that was killed left", &left[0], &left[2], &way_out]);
    let listed = bench.call(&["bench", "clean", &on, "--dry-run"]).output();
    assert_says(&listed, &[&left[0], "would be removed"]);
    assert_eq!(names_in(&bench.storage()).len(), 4, "a dry run removes nothing");
    let cleaned = json(&bench.call(&["bench", "clean", &on, "--json"]).output());
    let outcomes: Vec<&str> = cleaned
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["outcome"].as_str().expect("an outcome"))
        .collect();
    assert_eq!(outcomes, ["removed"; 3]);
    assert_eq!(names_in(&bench.storage()), ["forebay-bench-mine"], "what has no mark stays");
    assert_says(&bench.call(&["bench", "clean", &on]).output(), &["Nothing was left behind"]);
}

#[test]
fn a_run_that_is_alive_is_not_cleaned_away() {
    let bench = Bench::new();
    let started = bench.start(&waiting(), &[]);
    bench.job("w-0");
    let on = bench.storage().display().to_string();
    assert_says(&bench.call(&["bench", "clean", &on]).output(), &["kept: its run is still active"]);
    assert_eq!(names_in(&bench.storage()).len(), 3);
    started.signal(Signal::TERM);
    let (code, said) = started.ends();
    assert_eq!(code, Some(130), "{said}");
    bench.leaves_nothing();
}

#[test]
fn a_reader_that_goes_away_does_not_stop_a_run_before_it_has_cleared_up() {
    let bench = Bench::new();
    let mut command: Command = bench.run_command(&quick(), &[]);
    let (reader, writer) = std::io::pipe().expect("makes a pipe");
    command.stdin(Stdio::null()).stderr(writer.try_clone().expect("duplicates"));
    command.stdout(writer);
    let mut child = command.spawn().expect("starts forebay");
    drop(command);
    // As head -1 does.
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).expect("reads a line");
    let mut code = None;
    wait_until("the run ends", LIMIT, || {
        code = child.try_wait().expect("waits");
        code.is_some()
    });
    assert_eq!(code.and_then(|code| code.code()), Some(141), "after {line:?}");
    bench.leaves_nothing();
    assert_eq!(bench.record()["state"], "complete");
}

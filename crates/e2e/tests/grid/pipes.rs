//! `forebay run` without a terminal: three streams, their ends, and exit codes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;

use crate::{Fixture, LIMIT};

fn command(grid: &Fixture, arguments: &[&str]) -> Command {
    let mut run = Command::new(forebay());
    run.arg("run").args(arguments).env("FOREBAY_GRID", &grid.root).current_dir(&grid.jobs);
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

/// Starts a client with pipes.
fn attach(grid: &Fixture, arguments: &[&str]) -> Child {
    command(grid, arguments).stdin(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn code(client: &mut Child) -> i32 {
    let mut status = None;
    wait_until("the client ends", LIMIT, || {
        status = client.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code().expect("no signal ended the client")
}

fn text(from: &mut impl std::io::Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn streams_stay_apart_and_the_end_of_input_is_passed_on() {
    let grid = Fixture::start();
    let mut client = attach(&grid, &["--", "sh", "-c", "cat; echo bad >&2; exit 9"]);
    client.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    assert_eq!(code(&mut client), 9);
    assert_eq!(text(client.stdout.as_mut().unwrap()), "one\ntwo\n");
    assert_eq!(text(client.stderr.as_mut().unwrap()), "bad\n");
    assert_eq!(grid.attempts("1"), 1);
    let environment = "echo $MINE $FOREBAY_JOB; pwd; test ! -t 0 && test -d $WORK";
    let ended = command(&grid, &["--env", "MINE=x", "--", "sh", "-c", environment]).output();
    let ended = ended.unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(said, format!("x 2\n{}\n", grid.jobs.canonicalize().unwrap().display()));
}

#[test]
fn much_passes_through_unchanged() {
    const BYTES: u64 = 100 << 20;
    let grid = Fixture::start();
    let input = grid.root.join("input");
    let pattern: Vec<u8> =
        (0..1 << 20_u32).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut file = File::create(&input).unwrap();
    for number in 0..BYTES >> 20 {
        file.write_all(&number.to_le_bytes()).unwrap();
        file.write_all(&pattern[8..]).unwrap();
    }
    let output = grid.root.join("output");
    let mut client = command(&grid, &["--", "sh", "-c", "tee /dev/stderr"])
        .stdin(File::open(&input).unwrap())
        .stdout(File::create(&output).unwrap())
        .stderr(File::create(grid.root.join("error")).unwrap())
        .spawn()
        .unwrap();
    assert_eq!(code(&mut client), 0);
    let sent = std::fs::read(&input).unwrap();
    assert_eq!(sent.len() as u64, BYTES);
    assert!(std::fs::read(&output).unwrap() == sent, "standard output differs");
    assert!(std::fs::read(grid.root.join("error")).unwrap() == sent, "standard error differs");
}

#[test]
fn a_reader_that_stops_holds_the_job_up_and_loses_nothing() {
    let grid = Fixture::start();
    let script = "seq 1 1000000; echo done >&2";
    let mut client = attach(&grid, &["--", "sh", "-c", script]);
    let mut out = client.stdout.take().unwrap();
    let mut some = [0; 2];
    out.read_exact(&mut some).unwrap();
    // It is in the middle of its output now and has no more room; standard error is another stream.
    wait_until("the job is held up", LIMIT, || {
        grid.processes("seq 1 1000000").iter().any(|stat| stat.starts_with('S'))
    });
    grid.wait_for("1", "running");
    let rest = text(&mut out);
    assert_eq!(text(client.stderr.as_mut().unwrap()), "done\n");
    assert_eq!(code(&mut client), 0);
    let all = format!("{}{rest}", String::from_utf8_lossy(&some));
    assert!(all.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=1_000_000_u32));
}

#[test]
fn a_reader_that_goes_away_ends_the_program_by_its_pipe() {
    let grid = Fixture::start();
    let mut client = attach(&grid, &["--", "yes"]);
    let mut out = client.stdout.take().unwrap();
    let mut some = [0; 4];
    out.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"y\ny\n");
    drop(out);
    assert_eq!(code(&mut client), 128 + libc::SIGPIPE);
}

#[test]
fn a_program_that_reads_nothing_gets_signals_nevertheless() {
    let grid = Fixture::start();
    let script = "trap 'exit 11' TERM; sleep 605 & echo ready; wait";
    let mut client = attach(&grid, &["--", "sh", "-c", script]);
    let mut ready = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let mut input = client.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        // More than all buffers hold; it fails when the client has ended.
        while input.write_all(&[b'x'; 65536]).is_ok() {}
    });
    wait_until("the input is full", LIMIT, || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").is_ok();
        stat && !feeder.is_finished()
    });
    // SAFETY: the client is not waited for yet, so the number is its own.
    unsafe { libc::kill(i32::try_from(client.id()).unwrap(), libc::SIGTERM) };
    assert_eq!(code(&mut client), 11);
    drop(client);
    feeder.join().unwrap();
}

#[test]
fn programs_open_their_standard_streams_by_name() {
    let grid = Fixture::start();
    let script = "cat /dev/stdin >/dev/stdout; echo e >/dev/stderr";
    let mut client = attach(&grid, &["--", "sh", "-c", script]);
    client.stdin.take().unwrap().write_all(b"named\n").unwrap();
    assert_eq!(code(&mut client), 0);
    assert_eq!(text(client.stdout.as_mut().unwrap()), "named\n");
    assert_eq!(text(client.stderr.as_mut().unwrap()), "e\n");
}

#[test]
fn exit_codes_are_those_of_the_command_or_say_what_went_wrong() {
    let grid = Fixture::start();
    for (command, expected) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "kill -SEGV $$"], 139),
        (&["/does/not/exist"], 127),
    ] {
        let mut client = attach(&grid, &[&["--"], command].concat());
        assert_eq!(code(&mut client), expected, "{command:?}");
    }
    let mut client = attach(&grid, &["--time-limit", "500 ms", "--", "sleep", "600"]);
    assert_eq!(code(&mut client), 124);
    assert!(text(client.stderr.as_mut().unwrap()).contains("reached its time limit"));
}

#[test]
fn an_interactive_job_is_not_started_again() {
    let mut grid = Fixture::start();
    let script = "echo $FOREBAY_ATTEMPT; cat; exit 99";
    let mut client = attach(&grid, &["--", "sh", "-c", script]);
    let mut first = [0; 2];
    client.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let said = grid.forebay(&["requeue", "1"], &[]).refused();
    assert!(said.contains("interactive"), "{said}");
    // What it prints may be here before its agent has reported the start, and with the host goes what it did not report.
    grid.wait_for("1", "running");
    // The host goes with all that is on it.
    grid.stop_agent(libc::SIGINT);
    grid.start_agent();
    let code = code(&mut client);
    assert!(code == 125 || code == 137, "{code}");
    grid.wait_for("1", "host_lost");
    assert_eq!(grid.attempts("1"), 1);
}

#[test]
fn a_client_that_is_killed_while_it_waits_leaves_nothing() {
    let grid = Fixture::start();
    let long = grid.submit(&["-n", "4"], "sleep 600");
    grid.wait_for(&long, "running");
    let folder = grid.root.join("t");
    std::fs::create_dir(&folder).unwrap();
    let mut client = command(&grid, &["--", "echo", "never"])
        .env("TMPDIR", &folder)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the job waits", LIMIT, || grid.forebay(&["jobs", "2"], &[]).status.success());
    client.kill().unwrap();
    client.wait().unwrap();
    grid.forebay(&["kill", &long], &[]).succeeds();
    grid.wait_for("2", "exited");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the socket is left");
}

#[test]
fn bad_input_of_run_is_refused_with_a_reason() {
    let grid = Fixture::start();
    for (arguments, reason) in [
        (&["run"][..], "COMMAND"),
        (&["run", "-J", "a[1-3]", "--", "true"], "cannot be an array"),
        (&["run", "-q", "none", "--", "true"], "there is no queue none"),
        (&["run", "-n", "0", "--", "true"], "0"),
        (&["run", "--mem", "much", "--", "true"], "--mem"),
        (&["run", "--env", "=x", "--", "true"], "--env"),
        (&["run", "--env", "WORK=x", "--", "true"], "WORK is set by the grid"),
        (&["run", "--export", "A,,B", "--", "true"], "--export"),
        (&["run", "--export", "NO_SUCH_VARIABLE", "--", "true"], "NO_SUCH_VARIABLE"),
        (&["run", "--grid", "/does/not/exist", "--", "true"], "/does/not/exist"),
    ] {
        let said = grid.forebay(arguments, &[]).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    assert_eq!(grid.forebay(&["jobs", "--all", "--json"], &[]).output().trim(), "[]");
}

#[test]
fn jobs_get_the_environment_that_is_exported() {
    let grid = Fixture::start();
    let script = "echo ${ONE-} ${TWO-} ${FOREBAY_RESTART-} ${WORK##*/}";
    for (number, options, expected) in [
        (1, &[][..], "1 2 job-1\n"),
        (2, &["--export", "NONE"], "job-2\n"),
        (3, &["--export", "TWO"], "2 job-3\n"),
        (4, &["--export", "ALL,TWO=x"], "1 x job-4\n"),
        (5, &["--export", "NONE", "--env", "ONE=y"], "y job-5\n"),
    ] {
        for verb in ["run", "submit"] {
            let number = if verb == "run" { number * 2 - 1 } else { number * 2 };
            let expected =
                expected.replace(&format!("job-{}", (number + 1) / 2), &format!("job-{number}"));
            let mut forebay = Command::new(forebay());
            forebay.arg(verb).args(options).args(["--", "sh", "-c", script]);
            forebay.env("FOREBAY_GRID", &grid.root).current_dir(&grid.jobs);
            forebay.envs([("ONE", "1"), ("TWO", "2"), ("FOREBAY_RESTART", "1"), ("WORK", "/x")]);
            let said = forebay_e2e::run(&mut forebay, LIMIT).output();
            if verb == "run" {
                assert_eq!(said, expected, "{options:?}");
                continue;
            }
            let job = number.to_string();
            grid.wait_for(&job, "done");
            assert_eq!(grid.forebay(&["output", &job], &[]).output(), expected, "{options:?}");
        }
    }
}

#[test]
fn the_output_of_an_interactive_job_was_its_clients() {
    let grid = Fixture::start();
    assert_eq!(code(&mut attach(&grid, &["--", "true"])), 0);
    let said = grid.forebay(&["output", "1"], &[]).refused();
    assert!(said.contains("interactive"), "{said}");
}

#[test]
fn commands_that_change_things_say_so_in_json() {
    let grid = Fixture::start();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let said = grid.forebay(&[arguments, &["--json"]].concat(), &[]).output();
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?}: {said}: {error}"))
    };
    assert_eq!(
        json(&["host", "close", "h1"]),
        serde_json::json!({ "host": "h1", "switch": "closed" })
    );
    let queue = json(&["queue", "inactivate", "normal"]);
    assert_eq!(queue, serde_json::json!({ "queue": "normal", "verb": "inactivate" }));
    let job = grid.submit(&[], "true");
    for verb in ["hold", "release", "kill"] {
        assert_eq!(json(&[verb, &job]), serde_json::json!({ "job": job, "tasks": 1 }));
    }
    let output = json(&["output", &job]);
    assert!(output["output"].as_str().unwrap().ends_with(&format!("forebay-{job}.out")));
    assert_eq!(output["ended"], true);
}

//! What waits: what can never start, what is kept for wide jobs; and grids that begin.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_e2e::command::run;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;

use crate::{Fixture, LIMIT};

#[test]
fn whoever_waits_for_a_job_that_can_never_start_is_told_why() {
    let grid = Fixture::start();
    let first = grid.submit(&[], "while test ! -e go; do sleep 0.05; done; exit 3");
    grid.wait_for(&first, "running");
    let on_first = format!("done({first})");
    let waiter = |verb: &[&str]| {
        let mut command = Command::new(forebay());
        command.args(verb).args(["-w", &on_first, "--", "true"]).env("FOREBAY_GRID", &grid.root);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.current_dir(&grid.jobs).spawn().expect("starts")
    };
    let waiters = [waiter(&["submit", "--wait"]), waiter(&["run"])];
    wait_until("both wait", LIMIT, || {
        let jobs = grid.forebay(&["jobs", "--json"], &[]).output();
        jobs.matches("\"pending\"").count() == 2
    });
    std::fs::write(grid.jobs.join("go"), "").unwrap();
    for waiter in waiters {
        let ended = waiter.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(127), "{said}");
        let why = format!("done({first}) can never become true: job {first} failed");
        assert!(said.contains(&why), "{said}");
    }
    let listed = grid.forebay(&["jobs", "--all"], &[]).output();
    assert_eq!(listed.matches("dependency_never").count(), 2, "{listed}");
    // It is refused from now on, unless it is to wait for a requeue.
    let said = grid.forebay(&["submit", "-w", &on_first, "--", "true"], &[]).refused();
    assert!(said.contains("can never become true"), "{said}");
    let kept = grid.submit(&["-w", &on_first, "--dependency-never", "keep"], "true");
    assert_eq!(grid.state(&kept), "pending");
    for (arguments, reason) in [
        (&["submit", "--wait", "-n", "100", "--", "true"][..], "h1, has 4 slots"),
        (&["run", "-n", "100", "--", "true"], "h1, has 4 slots"),
        (&["submit", "--wait", "-m", "nosuch", "--", "true"], "there is no host nosuch"),
        (&["submit", "--mem", "900T", "--", "true"], "900 TiB of memory"),
    ] {
        let said = grid.forebay(arguments, &[]).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn narrow_jobs_that_come_for_ever_do_not_keep_a_wide_one_waiting() {
    let grid = Fixture::start();
    std::fs::write(grid.root.join("grid/grid.toml"), "[general]\nreserve_after = \"1 s\"\n")
        .unwrap();
    grid.forebay(&["reload"], &[]).succeeds();
    let narrow = grid.submit(&["-J", "narrow[1-2000]"], "sleep 0.3");
    // It may have run by the time somebody looks.
    wait_until("the array begins", LIMIT, || grid.state(&format!("{narrow}[1]")) != "pending");
    let wide = grid.submit(&["-n", "4", "--priority", "10"], "true");
    wait_until("the wide job has its host", LIMIT, || {
        let said = grid.forebay(&["explain", &wide], &[]).output();
        said.contains("slots on h1 are reserved for it") || grid.state(&wide) == "done"
    });
    grid.wait_for(&wide, "done");
    grid.forebay(&["kill", &narrow], &[]).succeeds();
}

#[test]
fn a_directory_for_output_and_memory_read_as_users_of_other_grids_write_them() {
    let grid = Fixture::start();
    std::fs::create_dir(grid.jobs.join("outs")).unwrap();
    let script = "echo out $FOREBAY_INDEX; echo err >&2";
    let options = ["-o", "outs/", "-e", "outs", "--mem", "64"];
    let job = grid.submit(&options, script);
    grid.wait_for(&job, "done");
    assert_eq!(grid.lines(&format!("outs/forebay-{job}.out")), ["out 0"]);
    assert_eq!(grid.lines(&format!("outs/forebay-{job}.err")), ["err"]);
    let block = grid.forebay(&["jobs", "-l", &job], &[]).output();
    assert!(block.contains("memory        64 MiB\n"), "{block}");
    let file = "#!/bin/sh\n#FOREBAY --mem 1g -o outs/%J/\necho never\n";
    std::fs::write(grid.jobs.join("job.sh"), file).unwrap();
    let ended = grid.forebay(&["submit", "--wait", "job.sh"], &[]).expect_code(127);
    assert!(ended.stderr.contains("open the output"), "a directory is not made: {ended:?}");
    let block = grid.forebay(&["jobs", "-l", ended.stdout.trim()], &[]).output();
    assert!(block.contains("memory        1 GiB\n"), "{block}");
}

/// Takes a grid down, whatever ends the test.
struct DownOnDrop<'a>(&'a Path);

impl Drop for DownOnDrop<'_> {
    fn drop(&mut self) {
        run(Command::new(forebay()).args(["down", "--now"]).arg(self.0), LIMIT);
    }
}

#[test]
fn a_grid_whose_journal_is_gone_begins_only_anew() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let root = folder.path().join("grid");
    let _down = DownOnDrop(&root);
    let call = |arguments: &[&str]| {
        let mut command = Command::new(forebay());
        run(command.args(arguments).arg(&root), LIMIT)
    };
    std::fs::create_dir_all(root.join("grid")).expect("makes the folder of the grid");
    let settings = "[[queue]]\nname = \"q\"\nhosts = \"host1 far\"\n";
    std::fs::write(root.join("grid/grid.toml"), settings).expect("writes settings");
    let first = call(&["up"]).expect_code(0);
    assert!(first.stderr.contains("names host far, which has not joined"), "{first:?}");
    call(&["down"]).succeeds();
    let journal = root.join("grid/journal.redb");
    std::fs::remove_file(&journal).expect("removes the journal");
    for verb in ["up", "controller"] {
        let said = call(&[verb]).refused();
        assert!(said.contains("journal.redb is missing") && said.contains("--new"), "{said}");
        assert!(!journal.exists());
    }
    call(&["up", "--new"]).succeeds();
    let said = call(&["up", "--new"]).refused();
    assert!(said.contains("is already running"), "{said}");
    call(&["down"]).succeeds();
    let said = call(&["up", "--new"]).refused();
    assert!(said.contains("move it elsewhere first"), "{said}");
    std::fs::write(root.join("grid/grid.toml"), format!("{settings}users = [\"no.such.user\"]\n"))
        .expect("writes settings");
    let said = call(&["up"]).refused();
    assert!(said.contains("line 4") && said.contains("no.such.user"), "{said}");
}

#[test]
fn wait_ends_when_all_jobs_have_ended_with_the_first_exit_code_that_is_not_0() {
    let grid = Fixture::start();
    // It waits for what lets the next one go, so it ends only if it waits for all.
    let first = grid.submit(&[], "exit 0");
    let second = grid.submit(&["-w", &format!("done({first})")], "echo second > second; exit 6");
    let third = grid.submit(&["-w", &format!("ended({second})")], "echo third > third; exit 7");
    let _ = grid.forebay(&["wait", &first, &second, &third], &[]).expect_code(6);
    assert_eq!(grid.lines("third"), ["third"]);
    let said = grid.forebay(&["wait", &first, &third, "--json"], &[]).expect_code(7);
    assert_eq!(said.stdout, "{\"exit\":0,\"job\":1}\n{\"exit\":7,\"job\":3}\n");
    // What did not end by itself is named.
    let never = grid.submit(&["--hold"], "true");
    grid.forebay(&["kill", &never], &[]).succeeds();
    let said = grid.forebay(&["wait", &never], &[]).expect_code(137);
    assert!(said.stderr.contains("job 4 was killed"), "{}", said.stderr);
}

#[test]
fn wait_takes_the_end_of_forgotten_jobs_from_the_history_and_names_what_nobody_knows() {
    let mut grid = Fixture::start();
    std::fs::write(grid.root.join("grid/grid.toml"), "[general]\nfinished_max = 1\n").unwrap();
    grid.kill_daemon(0);
    grid.start_controller();
    let failed = grid.submit(&[], "exit 5");
    grid.wait_for(&failed, "exited");
    let limited = grid.submit(&["--time-limit", "1 s"], "sleep 60");
    let array = grid.submit(&["-J", "a[1-3]"], "test $FOREBAY_INDEX != 2");
    // The array is more than the grid keeps, so it is forgotten with its end.
    for (job, code) in [(&limited, 143), (&array, 1)] {
        let _ = grid.forebay(&["wait", job], &[]).expect_code(code);
    }
    let options = ["submit", "--wait", "-J", "a[1-2]", "--", "sh", "-c", "exit $FOREBAY_INDEX"];
    let _ = grid.forebay(&options, &[]).expect_code(1);
    // Elements that are killed before they start have no history.
    let killed =
        grid.submit(&["-n", "4", "-J", "k[1-2]"], "while test ! -e gok; do sleep 0.05; done");
    grid.wait_for(&format!("{killed}[1]"), "running");
    grid.forebay(&["kill", &format!("{killed}[2]")], &[]).succeeds();
    std::fs::write(grid.jobs.join("gok"), "").unwrap();
    wait_until("the array with a killed element is forgotten", LIMIT, || {
        grid.forebay(&["jobs", &killed], &[]).stderr.contains("only its history")
    });
    let said = grid.forebay(&["wait", &killed], &[]).expect_code(127);
    assert!(said.stderr.contains("killed before they started"), "{said:?}");
    let _ = grid.forebay(&["wait", &format!("{killed}[1]")], &[]).expect_code(0);
    let last = grid.submit(&[], "while test ! -e go; do sleep 0.05; done; echo last > last");
    wait_until("all but the last one are forgotten", LIMIT, || {
        let _ = grid.forebay(&["submit", "--wait", "--", "true"], &[]).status;
        [&failed, &limited, &array].iter().all(|job| {
            let known = grid.forebay(&["jobs", job], &[]);
            known.stderr.contains("only its history")
        })
    });
    let _ = grid.forebay(&["wait", &failed], &[]).expect_code(5);
    let said = grid.forebay(&["wait", &limited], &[]).expect_code(143);
    assert!(said.stderr.contains("job 2 reached its time limit"), "{said:?}");
    let second = format!("{array}[2]");
    let said = grid.forebay(&["wait", &array, &format!("{array}[1]"), &second, "--json"], &[]);
    let lines = "{\"exit\":1,\"job\":3}\n{\"exit\":0,\"index\":1,\"job\":3}\n{\"exit\":1,\"index\":2,\"job\":3}\n";
    assert_eq!(said.expect_code(1).stdout, lines);
    // An unknown job is reported at once, and the others are waited for; what is forgotten meanwhile as well.
    let flow = "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = \"true\"\n";
    std::fs::write(grid.jobs.join("f.toml"), flow).unwrap();
    let run = grid.forebay(&["flow", "run", "f.toml", "--wait"], &[]).output().trim().to_owned();
    let mut command = Command::new(forebay());
    command.args(["wait", "999", &format!("{array}[7]"), &last, &failed]);
    command.args(["--flow", &run, "--flow", "77"]);
    command.env("FOREBAY_GRID", &grid.root).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut waiter = command.spawn().unwrap();
    let mut said = BufReader::new(waiter.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.next().unwrap().contains("job 999 is not known"));
    assert!(said.next().unwrap().contains("job 3[7] is not known"));
    assert!(said.next().unwrap().contains("flow 77 is not known"), "and the run is known");
    grid.forebay(&["submit", "--wait", "--", "true"], &[]).succeeds();
    wait_until("the run is forgotten", LIMIT, || {
        grid.forebay(&["flow", "show", &run], &[]).status.code() != Some(0)
    });
    assert!(waiter.try_wait().unwrap().is_none(), "it waits for the last one");
    std::fs::write(grid.jobs.join("go"), "").unwrap();
    assert!(said.next().unwrap().contains(&format!("flow {run} is not known")));
    assert_eq!(waiter.wait().unwrap().code(), Some(127));
    assert_eq!(grid.lines("last"), ["last"]);
    let said = grid.forebay(&["wait", &failed, "999", "--json"], &[]).expect_code(5);
    assert_eq!(said.stdout, "{\"exit\":5,\"job\":1}\n{\"exit\":null,\"job\":999}\n");
}

#[test]
fn wait_ends_with_single_elements_and_with_runs_of_flows() {
    let grid = Fixture::start();
    // Of each element that ends, however it does, those who wait for it are told, though the array goes on.
    let script = "while test ! -e go$FOREBAY_INDEX; do sleep 0.05; done; exit $FOREBAY_INDEX";
    let array = grid.submit(&["-J", "a[1-9]"], script);
    let wait_for = |index: u32| {
        let mut command = Command::new(forebay());
        command.args(["wait", &format!("{array}[{index}]")]).env("FOREBAY_GRID", &grid.root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let code = |mut waiter: std::process::Child| waiter.wait().unwrap().code();
    grid.wait_for(&format!("{array}[3]"), "running");
    let waiters = [wait_for(3), wait_for(8)];
    // The eighth waits for its turn, and ends without one.
    grid.forebay(&["kill", &format!("{array}[8]")], &[]).succeeds();
    std::fs::write(grid.jobs.join("go3"), "").unwrap();
    assert_eq!(waiters.map(code), [Some(3), Some(137)]);
    assert_eq!(grid.state(&format!("{array}[1]")), "running");
    let _ = grid.forebay(&["wait", &format!("{array}[3]")], &[]).expect_code(3);
    grid.forebay(&["kill", &array], &[]).succeeds();
    let flow = "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = \"test -e fine\"\n";
    std::fs::write(grid.jobs.join("f.toml"), flow).unwrap();
    for (run, end) in [("1", 1), ("2", 0)] {
        assert_eq!(grid.forebay(&["flow", "run", "f.toml"], &[]).output().trim(), run);
        let said = grid.forebay(&["wait", "--flow", run, "--json"], &[]).expect_code(end);
        assert_eq!(said.stdout, format!("{{\"exit\":{end},\"flow\":{run}}}\n"));
        std::fs::write(grid.jobs.join("fine"), "").unwrap();
    }
    let said = grid.forebay(&["wait", "--flow", "2", "--flow", "7"], &[]).expect_code(127);
    assert!(said.stderr.contains("flow 7 is not known"), "{said:?}");
}

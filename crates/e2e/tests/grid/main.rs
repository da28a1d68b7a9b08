//! The grid with real processes: submitting, dependencies, arrays, signals, restarts; flows.

mod account;
mod areas;
mod asked;
mod checkpoint;
mod compat;
mod features;
mod filter;
mod flow;
mod job_file;
mod lists;
mod mounts;
mod notify;
mod pipes;
mod preemption;
mod printing;
mod reservation;
mod service;
mod show;
mod terminal;
mod users;
mod waiting;
mod warning;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A grid in a folder of its own, with a folder for the jobs.
struct Fixture {
    _folder: TempDir,
    root: PathBuf,
    jobs: PathBuf,
    daemons: Vec<Child>,
}

impl Fixture {
    /// A controller and one host with four slots.
    fn start() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let (root, jobs) = (folder.path().join("grid"), folder.path().join("jobs"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&jobs).unwrap();
        let mut grid = Fixture { _folder: folder, root, jobs, daemons: Vec::new() };
        grid.start_controller();
        grid.start_agent();
        grid.wait_for_host();
        grid
    }

    fn spawn(&mut self, arguments: &[&str]) {
        let child = Command::new(forebay())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.daemons.push(child.unwrap());
    }

    fn start_controller(&mut self) {
        let root = self.root.display().to_string();
        self.spawn(&["controller", &root]);
        wait_until("the controller answers", LIMIT, || {
            self.forebay(&["hosts"], &[]).status.success()
        });
    }

    fn start_agent(&mut self) {
        let root = self.root.display().to_string();
        self.spawn(&["agent", &root, "--name", "h1", "--slots", "4"]);
    }

    fn wait_for_host(&self) {
        wait_until("the host is up", LIMIT, || {
            self.forebay(&["hosts"], &[]).output().contains(" up ")
        });
    }

    /// Kills a daemon by force and waits for its end.
    fn kill_daemon(&mut self, place: usize) {
        let mut child = self.daemons.remove(place);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the agent by a signal: SIGINT takes its jobs along.
    fn stop_agent(&mut self, signal: i32) {
        let mut child = self.daemons.remove(1);
        // SAFETY: it is not waited for yet, so the number is its own.
        unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) };
        child.wait().unwrap();
    }

    fn forebay(&self, arguments: &[&str], more: &[&str]) -> Ended {
        let mut command = Command::new(forebay());
        command.args(arguments).args(more).env("FOREBAY_GRID", &self.root).current_dir(&self.jobs);
        run(&mut command, LIMIT)
    }

    /// Submits a shell script; the number of the job.
    fn submit(&self, options: &[&str], script: &str) -> String {
        let arguments = [&["submit"], options].concat();
        self.forebay(&arguments, &["--", "sh", "-c", script]).output().trim().to_owned()
    }

    fn state(&self, job: &str) -> String {
        let json = self.forebay(&["jobs", job, "--json"], &[]).output();
        let jobs: serde_json::Value = serde_json::from_str(&json).unwrap();
        jobs[0]["state"].as_str().unwrap().to_owned()
    }

    fn wait_for(&self, job: &str, state: &str) {
        wait_until(&format!("job {job} is {state}"), LIMIT, || self.state(job) == state);
    }

    fn wait_for_end(&self, job: &str) {
        let lasts = ["pending", "held", "starting", "running", "suspended", "unknown"];
        wait_until(&format!("job {job} ends"), LIMIT, || {
            !lasts.contains(&self.state(job).as_str())
        });
    }

    /// How often a job was started and ended. An attempt whose order was lost with its agent has no exit.
    fn attempts(&self, job: &str) -> usize {
        let json = self.forebay(&["history", job, "--json"], &[]).output();
        let attempts: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
        let ran = |attempt: &&serde_json::Value| {
            !attempt["exit"].is_null() || !attempt["started"].is_null()
        };
        attempts.iter().filter(ran).count()
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.jobs.join(name)).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// What ps says of the jobs' processes whose command line contains a text: their states.
    fn processes(&self, text: &str) -> Vec<String> {
        let listed = run(Command::new("ps").args(["-eo", "stat=,args="]), LIMIT).output();
        let own = listed.lines().filter(|line| {
            let (stat, words) = line.trim().split_once(char::is_whitespace).unwrap_or_default();
            !stat.starts_with('Z') && words.trim_start().starts_with(text)
        });
        own.map(str::to_owned).collect()
    }

    /// Signals the processes that hold the jobs of the grid.
    fn signal_shims(&self, signal: i32) {
        for run in std::fs::read_dir(self.root.join("grid/hosts/h1/runs")).unwrap() {
            // The file of a job that has ended goes.
            let Ok(said) = std::fs::read_to_string(run.unwrap().path()) else { continue };
            let words = said.lines().find_map(|line| line.strip_prefix("pid ")).unwrap();
            let pid = words.split(' ').next().unwrap();
            // SAFETY: a number; the shim lives as long as its file, but for a moment at its end.
            unsafe { libc::kill(pid.parse().unwrap(), signal) };
        }
    }

    fn is_without_work(&self) -> bool {
        let entries = std::fs::read_dir(self.root.join("grid/work")).unwrap();
        entries.flatten().all(|entry| entry.file_name() == ".forebay-grid")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // Ends the jobs too, whatever state the test left them in.
        let root: &Path = &self.root;
        let mut down = Command::new(forebay());
        let _ = down.arg("down").arg(root).arg("--now").stderr(Stdio::null()).status();
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_job_that_is_waited_for_gives_its_exit_code_and_leaves_nothing_behind() {
    let grid = Fixture::start();
    let script = "echo said; test -d \"$WORK\" && touch \"$WORK/x\" \"$UTIL/y\" && exit 3";
    let ended = grid.forebay(&["submit", "--wait"], &["--", "sh", "-c", script]);
    assert_eq!(ended.expect_code(3).stdout, "1\n");
    assert_eq!(grid.forebay(&["output", "1"], &[]).output(), "said\n");
    assert_eq!(grid.state("1"), "exited");
    assert_eq!(grid.attempts("1"), 1);
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
    let ended = grid.forebay(&["submit", "--wait"], &["--", "/does/not/exist"]);
    let _ = ended.expect_code(127);
}

#[test]
fn dependencies_and_arrays_run_in_order() {
    let grid = Fixture::start();
    let array = grid.submit(&["-J", "load[1-5]%2"], "echo $FOREBAY_INDEX >>loaded");
    let condition = format!("done({array})");
    let sum = grid.submit(&["-w", &condition], "cp loaded seen");
    grid.wait_for(&sum, "done");
    assert_eq!(grid.lines("seen"), ["1", "2", "3", "4", "5"]);
}

#[test]
fn held_jobs_wait_and_killed_ones_end() {
    let grid = Fixture::start();
    let held = grid.submit(&["--hold"], "true");
    assert_eq!(grid.state(&held), "held");
    assert!(grid.forebay(&["explain", &held], &[]).output().contains("held"));
    grid.forebay(&["release", &held], &[]).succeeds();
    grid.wait_for(&held, "done");
    let long = grid.submit(&[], "sleep 600 & wait");
    grid.wait_for(&long, "running");
    grid.forebay(&["hold", &long], &[]).succeeds();
    grid.wait_for(&long, "suspended");
    grid.forebay(&["release", &long], &[]).succeeds();
    grid.forebay(&["kill", &long], &[]).succeeds();
    grid.wait_for(&long, "killed");
}

#[test]
fn commands_choose_jobs_by_what_is_true_of_them() {
    let grid = Fixture::start();
    let small = grid.submit(&["-J", "load-a", "--hold"], "true");
    let array = grid.submit(&["-J", "load-b[1-2]"], "sleep 600 & wait");
    let other = grid.submit(&["-J", "other"], "sleep 600 & wait");
    for job in [&format!("{array}[1]"), &format!("{array}[2]"), &other] {
        grid.wait_for(job, "running");
    }
    let ended = grid.forebay(&["kill", "--name", "load*"], &[]).output();
    assert_eq!(ended, format!("{small}\n{array}\n"));
    for job in [&small, &format!("{array}[1]"), &format!("{array}[2]")] {
        grid.wait_for(job, "killed");
    }
    // None can be released, none is there, and both at once is not understood.
    let told = grid.forebay(&["release", "--name", "other"], &[]).refused();
    assert!(told.contains("is not held"), "{told}");
    let told = grid.forebay(&["kill", "--queue", "nowhere"], &[]).refused();
    assert!(told.contains("no unfinished job matches"), "{told}");
    let told = grid.forebay(&["kill", &other, "--name", "other"], &[]).refused();
    assert!(told.contains("cannot be used with"), "{told}");
    grid.wait_for(&other, "running");
}

#[test]
fn an_exit_value_that_asks_for_it_starts_the_job_again() {
    let grid = Fixture::start();
    let job = grid.submit(&["--requeue-exit", "99"], "test \"$FOREBAY_ATTEMPT\" = 2 || exit 99");
    grid.wait_for(&job, "done");
    assert_eq!(grid.attempts(&job), 2);
}

#[test]
fn of_orders_that_reach_a_shim_together_the_last_one_counts() {
    let grid = Fixture::start();
    let job = grid.submit(&[], "exec sleep 611");
    grid.wait_for(&job, "running");
    let state = || grid.processes("sleep 611").first().and_then(|line| line.chars().next());
    let hold = || grid.forebay(&["hold", &job], &[]).succeeds();
    let release = || grid.forebay(&["release", &job], &[]).succeeds();
    hold();
    wait_until("it is suspended", LIMIT, || state() == Some('T'));
    // All of these wait for the shim when it continues.
    for suspended in [true, false] {
        grid.signal_shims(libc::SIGSTOP);
        release();
        hold();
        release();
        if suspended {
            hold();
        }
        // The agent has passed on what it was told before it takes the next job.
        grid.forebay(&["submit", "--wait", "--", "true"], &[]).succeeds();
        grid.signal_shims(libc::SIGCONT);
        let wanted = if suspended { 'T' } else { 'S' };
        wait_until("it is as it was wanted last", LIMIT, || state() == Some(wanted));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(state(), Some(wanted), "and stays so");
    }
    grid.forebay(&["kill", &job], &[]).succeeds();
    grid.wait_for(&job, "killed");
}

#[test]
fn jobs_end_exactly_once_when_controller_and_agent_are_killed_under_load() {
    let mut grid = Fixture::start();
    let mut expected = Vec::new();
    for _ in 0..30 {
        expected.push(grid.submit(&[], "sleep 0.2; echo $FOREBAY_JOB >>ended"));
    }
    grid.kill_daemon(0);
    std::thread::sleep(Duration::from_millis(300));
    grid.start_controller();
    grid.kill_daemon(0);
    // As if it had died while it removed a work area: the next agent has to find it.
    std::fs::create_dir_all(grid.root.join("grid/work/.gone-job-77-1/part")).expect("makes");
    grid.start_agent();
    grid.wait_for_host();
    for job in &expected {
        grid.wait_for(job, "done");
        assert_eq!(grid.attempts(job), 1, "job {job}");
    }
    expected.sort();
    assert_eq!(grid.lines("ended"), expected);
    wait_until("the work areas are gone", LIMIT, || grid.is_without_work());
}

#[test]
fn bad_input_is_refused_with_a_reason() {
    let grid = Fixture::start();
    for (arguments, reason) in [
        (&["submit", "-q", "none", "--", "true"][..], "there is no queue none"),
        (&["submit", "-w", "done(77)", "--", "true"], "77"),
        (&["submit", "-J", "a[0-x]", "--", "true"], "array"),
        (&["submit", "--mem", "much", "--", "true"], "--mem"),
        (&["submit", "--env", "=x", "--", "true"], "--env"),
        (&["submit", "--time-limit", "1:30", "--", "true"], "1:30"),
        (&["jobs", "77"], "there is no job 77"),
        (&["jobs", "x"], "is not a job"),
        (&["history", "77"], "there is no job 77"),
        (&["explain", "77"], "there is no job 77"),
        (&["output", "77"], "there is no job 77"),
        (&["kill", "77"], "there is no job 77"),
        (&["hold", "77"], "there is no job 77"),
        (&["release", "77"], "there is no job 77"),
        (&["requeue", "77"], "there is no job 77"),
        (&["host", "close", "none"], "there is no host none"),
        (&["queue", "close", "none"], "there is no queue none"),
        (&["jobs", "--grid", "/does/not/exist"], "/does/not/exist"),
    ] {
        let said = grid.forebay(arguments, &[]).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}

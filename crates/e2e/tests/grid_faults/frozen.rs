//! Agents and shims that are stopped for longer than the grid waits for them: their jobs run nowhere twice at a time.

use std::path::Path;

use forebay_e2e::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, LIMIT, SHORT};

/// A job that writes a line with its host and the time since the boot in hundredths of a second, ever again, from a
/// session of its own as well. The second start ends when it is told to.
const HEART: &str = "\
beat() { while :; do
  [ -e enough ] && [ $FOREBAY_ATTEMPT != 1 ] && exit 0
  read up rest </proc/uptime; echo $FOREBAY_ATTEMPT ${up%.*}${up#*.} >>beats.$1; sleep 0.02
done; }
if [ \"$1\" = apart ]; then beat apart; fi
setsid sh \"$0\" apart &
beat own";

/// Start and time of each line.
fn beats(jobs: &Path) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    for name in ["beats.own", "beats.apart"] {
        let text = std::fs::read_to_string(jobs.join(name)).unwrap_or_default();
        // The last line may be half of one.
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        all.extend(whole.filter_map(|line| {
            let (attempt, at) = line.split_once(' ')?;
            Some((attempt.parse().ok()?, at.parse().ok()?))
        }));
    }
    all
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        // What has ended meanwhile needs no signal.
        let _ = kill_process(*process, signal);
    }
}

/// Freezes the first host with all that `more` finds, until the job runs on the second one; then lets everything go on.
fn run_twice(more: impl Fn(&Fixture) -> Vec<Pid>) -> Fixture {
    let mut grid = Fixture::start(1, SHORT);
    let script = grid.jobs.join("heart");
    std::fs::write(&script, HEART).expect("writes the job");
    let words = ["submit", "--rerunnable", "--", "sh", script.to_str().expect("a path")];
    let job = grid.forebay(&words).output().trim().to_owned();
    let has = |attempt| beats(&grid.jobs).iter().any(|beat| beat.0 == attempt);
    wait_until("the job writes", LIMIT, || has(1));
    let mut frozen = grid.nurseries();
    frozen.extend(grid.shims());
    frozen.push(grid.agent("h1"));
    frozen.extend(more(&grid));
    signal_all(&frozen, Signal::STOP);
    grid.start_agent("h2");
    let has = |attempt| beats(&grid.jobs).iter().any(|beat| beat.0 == attempt);
    wait_until("the job runs again", LIMIT, || has(2));
    signal_all(&frozen, Signal::CONT);
    grid.wait_for_hosts(2);
    // The first host is back; whatever it did at that is written by the time that the job has ended.
    let before = beats(&grid.jobs).len();
    wait_until("the job goes on", LIMIT, || beats(&grid.jobs).len() > before + 50);
    std::fs::write(grid.jobs.join("enough"), "").expect("writes");
    grid.wait_for(&job, "done");
    let all = beats(&grid.jobs);
    let last = all.iter().filter(|beat| beat.0 == 1).map(|beat| beat.1).max();
    let first = all.iter().filter(|beat| beat.0 == 2).map(|beat| beat.1).min();
    assert!(last <= first, "the first start wrote at {last:?}, the second one began at {first:?}");
    let left = || grid.left_behind().into_iter().filter(|left| left.starts_with("process"));
    wait_until("nothing is left", LIMIT, || left().next().is_none());
    grid
}

/// Processes of the grid's jobs.
fn of_jobs(grid: &Fixture) -> Vec<Pid> {
    grid.processes("environ", "FOREBAY_JOB=")
}

#[test]
fn a_job_never_runs_twice_at_a_time_when_agent_and_shims_were_frozen() {
    let grid = run_twice(|_| Vec::new());
    // Nobody had to come: it ended with the lease.
    assert!(grid.log("h1").contains("fenced"), "{}", grid.log("h1"));
}

#[test]
fn a_job_never_runs_twice_at_a_time_when_its_watchdog_was_frozen_too() {
    run_twice(|grid| grid.processes("cmdline", "--watchdog"));
}

#[test]
fn a_job_that_was_frozen_itself_does_not_go_on_beside_its_next_start() {
    run_twice(|grid| [grid.processes("cmdline", "--watchdog"), of_jobs(grid)].concat());
}

#[test]
fn a_watchdog_that_was_killed_comes_again_and_ends_with_its_agent_and_the_last_job() {
    let mut grid = Fixture::start(1, SHORT);
    let watchdogs = |grid: &Fixture| grid.processes("cmdline", "--watchdog");
    wait_until("there is a watchdog", LIMIT, || watchdogs(&grid).len() == 1);
    let first = watchdogs(&grid)[0];
    kill_process(first, Signal::KILL).expect("kills");
    wait_until(
        "there is another one",
        LIMIT,
        || matches!(watchdogs(&grid)[..], [now] if now != first),
    );
    grid.submit(&[], "echo >began; sleep 600");
    wait_until("the job runs", LIMIT, || grid.jobs.join("began").exists());
    grid.kill_agent("h1");
    wait_until("nothing is left", LIMIT, || {
        of_jobs(&grid).is_empty() && grid.shims().is_empty() && watchdogs(&grid).is_empty()
    });
}

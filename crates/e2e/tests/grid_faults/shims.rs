//! Shims that hold one job after the other.

use forebay_e2e::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, LIMIT};

/// Runs a job that says who holds it, to its end.
fn shim_of(grid: &Fixture, script: &str) -> Pid {
    let job = grid.submit(&[], &format!("echo $PPID >shim; {script}"));
    grid.wait_for(&job, "done");
    let said = std::fs::read_to_string(grid.jobs.join("shim")).expect("reads");
    Pid::from_raw(said.trim().parse().expect("a number")).expect("a process")
}

fn wait_for_free(grid: &Fixture, shims: &[Pid]) {
    wait_until("they are free", LIMIT, || grid.free_shims() == shims);
}

#[test]
fn a_shim_whose_job_has_ended_holds_the_next_one() {
    let grid = Fixture::start(1, "");
    let first = shim_of(&grid, "true");
    wait_for_free(&grid, &[first]);
    // What the first job left behind concerns the second one as little as its exit value does.
    assert_eq!(shim_of(&grid, "setsid sleep 600 & ulimit -n 64; umask 0; cd /"), first);
    wait_for_free(&grid, &[first]);
    let failed = grid.submit(&[], "echo $PPID >shim; exit 7");
    grid.wait_for(&failed, "exited");
    wait_for_free(&grid, &[first]);
    let script = "test $(ulimit -n) != 64 && test $(umask) != 0000 && test $PWD != /";
    assert_eq!(shim_of(&grid, script), first);
}

#[test]
fn a_shim_that_was_told_to_do_something_holds_no_other_job() {
    let grid = Fixture::start(1, "");
    for verb in ["hold", "kill"] {
        let job = grid.submit(&[], "echo $PPID >told; sleep 600");
        wait_until("it runs", LIMIT, || grid.jobs.join("told").exists());
        grid.wait_for(&job, "running");
        grid.forebay(&[verb, &job]).succeeds();
        if verb == "hold" {
            grid.wait_for(&job, "suspended");
            grid.forebay(&["kill", &job]).succeeds();
        }
        grid.wait_for(&job, "killed");
        wait_until("its shim has ended", LIMIT, || grid.shims().is_empty());
        assert_eq!(grid.free_shims(), []);
        std::fs::remove_file(grid.jobs.join("told")).expect("removes");
    }
}

#[test]
fn what_is_held_or_released_while_the_agent_is_down_stops_or_goes_on_once_it_is_back() {
    let mut grid = Fixture::start(1, "");
    let script = "echo $$ >pid$FOREBAY_JOB; until test -e go; do sleep 0.05; done";
    let jobs: Vec<String> = (0..3).map(|_| grid.submit(&[], script)).collect();
    let [stays, goes_on, stops] = [0, 1, 2].map(|place: usize| jobs[place].clone());
    for job in &jobs {
        grid.wait_for(job, "running");
        wait_until("it says who it is", LIMIT, || grid.jobs.join(format!("pid{job}")).exists());
    }
    let is_stopped = |grid: &Fixture, job: &str| {
        let pid = std::fs::read_to_string(grid.jobs.join(format!("pid{job}"))).expect("reads");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.expect("the job runs").contains(") T ")
    };
    for job in [&stays, &goes_on] {
        grid.forebay(&["hold", job]).succeeds();
        wait_until("it is suspended", LIMIT, || is_stopped(&grid, job));
    }
    grid.kill_agent("h1");
    grid.forebay(&["release", &goes_on]).succeeds();
    grid.forebay(&["hold", &stops]).succeeds();
    grid.start_agent("h1");
    wait_until("the released job goes on", LIMIT, || !is_stopped(&grid, &goes_on));
    wait_until("the held job is suspended", LIMIT, || is_stopped(&grid, &stops));
    assert!(is_stopped(&grid, &stays));
    for (job, state) in [(&stays, "suspended"), (&goes_on, "running"), (&stops, "suspended")] {
        grid.wait_for(job, state);
    }
    std::fs::write(grid.jobs.join("go"), "").expect("lets them go");
    grid.wait_for(&goes_on, "done");
    for job in [&stays, &stops] {
        grid.forebay(&["release", job]).succeeds();
        grid.wait_for(job, "done");
    }
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn signals_for_a_free_shim_are_not_for_its_next_job() {
    let grid = Fixture::start(1, "");
    let shim = shim_of(&grid, "true");
    for signal in [Signal::TERM, Signal::INT, Signal::USR1, Signal::USR2] {
        wait_for_free(&grid, &[shim]);
        kill_process(shim, signal).expect("signals");
        assert_eq!(shim_of(&grid, "sleep 0.1"), shim, "{signal:?}");
    }
}

#[test]
fn free_shims_may_be_killed_and_end_with_their_agent() {
    let mut grid = Fixture::start(1, "");
    let shim = shim_of(&grid, "true");
    wait_for_free(&grid, &[shim]);
    kill_process(shim, Signal::KILL).expect("kills");
    let other = shim_of(&grid, "true");
    assert_ne!(other, shim);
    wait_for_free(&grid, &[other]);
    grid.kill_agent("h1");
    wait_for_free(&grid, &[]);
    grid.start_agent("h1");
    assert_ne!(shim_of(&grid, "true"), other);
}

#[test]
fn a_shim_that_is_free_for_long_ends() {
    let grid = Fixture::start(1, "");
    let shim = shim_of(&grid, "true");
    wait_for_free(&grid, &[shim]);
    wait_for_free(&grid, &[]);
}

#[test]
fn no_more_shims_are_free_than_the_host_has_slots() {
    let grid = Fixture::start(1, "");
    let jobs = grid.submit(&["-J", "many[1-40]"], "true");
    wait_until("they have ended", LIMIT, || {
        let all = grid.json(&["jobs", &jobs]);
        all.as_array().is_some_and(|all| all.iter().all(|job| job["state"] == "done"))
    });
    wait_until("none holds a job", LIMIT, || grid.shims().is_empty());
    let free = grid.free_shims().len();
    assert!((1..=4).contains(&free), "{free}");
}

#[test]
fn jobs_ignore_no_signal_because_their_daemons_do() {
    let grid = Fixture::start(1, "");
    let job = grid.submit(&[], "grep SigIgn /proc/self/status >ignored");
    grid.wait_for(&job, "done");
    let said = std::fs::read_to_string(grid.jobs.join("ignored")).expect("reads");
    let ignored = said.trim().strip_prefix("SigIgn:\t").expect("the line");
    // Above are signals that the C library keeps for itself.
    let of_programs = u64::from_str_radix(ignored, 16).expect("a number") & 0x7fff_ffff;
    assert_eq!(of_programs, 0, "{said}");
}

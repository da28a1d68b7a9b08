//! The controller that `up` starts comes back by itself, and the grid comes up again after whatever happened to it.

use std::fs;

use forebay_e2e::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::LIMIT;
use crate::trust::Place;

impl Place {
    /// The process that holds a lock of the grid, other than the one before.
    fn holder(&self, lock: &str, before: Option<Pid>) -> Pid {
        let path = self.root().join("grid").join(lock);
        let mut found = None;
        wait_until("a process has taken the lock", LIMIT, || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found = text.trim().parse().ok().and_then(Pid::from_raw);
            found.is_some() && found != before
        });
        found.expect("was found")
    }

    fn answers(&self) -> bool {
        self.ask(&["queues"]).status.success()
    }
}

#[test]
fn a_controller_that_was_killed_is_started_again() {
    let place = Place::new();
    place.forebay("up", &["--slots", "1"]).succeeds();
    let job = place.ask(&["submit", "--", "sleep", "600"]).output().trim().to_owned();
    let mut controller = place.holder("lock", None);
    for _ in 0..2 {
        kill_process(controller, Signal::KILL).expect("kills");
        controller = place.holder("lock", Some(controller));
        wait_until("the controller answers again", LIMIT, || place.answers());
    }
    assert!(place.ask(&["jobs", &job]).output().contains("sleep"), "it has forgotten a job");
    let log = fs::read_to_string(place.root().join("grid/controller.log")).expect("reads the log");
    assert!(log.matches("it will be restarted").count() == 2, "{log}");
    // Taken down, it stays down.
    place.forebay("down", &["--now"]).succeeds();
    assert!(!place.answers());
    assert!(place.forebay("up", &["--slots", "1"]).status.success());
}

#[test]
fn up_right_after_a_crash_of_the_controller_brings_the_grid_up() {
    let place = Place::new();
    place.forebay("up", &["--slots", "1"]).succeeds();
    for round in 0..6 {
        let (controller, supervisor) =
            (place.holder("lock", None), place.holder("supervisor", None));
        // With the supervisor as well, every other time: as a machine short of memory might.
        if round % 2 == 0 {
            kill_process(supervisor, Signal::KILL).expect("kills");
        }
        kill_process(controller, Signal::KILL).expect("kills");
        place.forebay("up", &["--slots", "1"]).succeeds();
        assert!(place.answers());
    }
}

#[test]
fn a_controller_that_cannot_begin_is_told_and_not_tried_again() {
    let place = Place::new();
    fs::create_dir(place.root().join("grid")).expect("makes a folder");
    fs::write(place.root().join("grid/grid.toml"), "[general]\nlease = 7\n").expect("writes");
    let said = place.forebay("up", &["--slots", "1"]).refused();
    assert!(said.contains("grid.toml") && said.contains("line 2"), "{said}");
    fs::write(place.root().join("grid/grid.toml"), "").expect("writes");
    place.forebay("up", &["--slots", "1"]).succeeds();
}

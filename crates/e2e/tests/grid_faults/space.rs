//! A disk that is full to its last block under journal and work areas: one user's scratch takes nobody else's grid down.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use forebay_e2e::{LoopDisk, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{LIMIT, STEADY};
use crate::trust::Place;

/// Fills a disk as a job that goes on writing does.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("makes a file");
    for piece in [1 << 20, 4096, 1] {
        let bytes = vec![7; piece];
        // A few more tries: what others give back is taken as well.
        while file.write_all(&bytes).and_then(|()| file.sync_data()).is_ok() {}
    }
}

fn controller(place: &Place) -> Pid {
    let text = fs::read_to_string(place.root().join("grid/lock")).expect("reads the lock");
    text.trim().parse().ok().and_then(Pid::from_raw).expect("names the controller")
}

fn state(place: &Place, job: &str) -> String {
    let told = place.ask(&["jobs", job, "--json"]).output();
    let told: serde_json::Value = serde_json::from_str(&told).expect("is JSON");
    told[0]["state"].as_str().expect("a state").to_owned()
}

fn a_full_disk_is_survived(kind: &str) {
    let disk = LoopDisk::make(kind, 320);
    let place = Place::at(disk.path().join("g"));
    fs::create_dir(place.root().join("grid")).expect("makes a folder");
    fs::write(place.root().join("grid/grid.toml"), STEADY).expect("writes the settings");
    place.forebay("up", &["--slots", "4"]).succeeds();
    let go = place.path("go");
    let script = format!("until test -e {}; do sleep 0.1; done; exit 7", go.display());
    let submit = |script: &str| {
        let words = ["submit", "-o", "/dev/null", "--", "sh", "-c", script];
        place.ask(&words).output().trim().to_owned()
    };
    let (job, other) = (submit(&script), submit("sleep 600"));
    wait_until("both jobs run", LIMIT, || {
        [&job, &other].iter().all(|job| state(&place, job) == "running")
    });
    let big = disk.path().join("big");
    fill(&big);
    let refused = |words: &[&str]| {
        let ended = place.ask(words);
        (ended.code() != 0).then_some(ended.stderr)
    };
    // What needs no new space goes on, for longer than the lease.
    wait_until("the grid says what is wrong", LIMIT, || {
        place.ask(&["hosts"]).stderr.contains("No space left")
    });
    assert!(place.ask(&["queues"]).stderr.contains("No space left"));
    let said = refused(&["submit", "--", "true"]).expect("there is no space for more jobs");
    assert!(said.contains("No space left") && said.contains("journal"), "{said}");
    // Longer than lease and timeout together.
    std::thread::sleep(std::time::Duration::from_secs(24));
    for job in [&job, &other] {
        // A busy agent may be unheard for a moment; one that was given up for want of space runs no more.
        wait_until("it runs", LIMIT, || state(&place, job) == "running");
    }
    place.ask(&["kill", &other]).succeeds();
    wait_until("a job is killed on a full disk", LIMIT, || state(&place, &other) == "killed");
    // So does a controller that starts again, and the next one.
    for _ in 0..2 {
        let before = controller(&place);
        kill_process(before, Signal::KILL).expect("kills");
        wait_until("the controller is back", LIMIT, || {
            controller(&place) != before && place.ask(&["queues"]).status.success()
        });
    }
    place.forebay("up", &["--slots", "4"]).succeeds();
    File::create(&go).expect("lets the job end");
    wait_until("the job has ended by itself", LIMIT, || state(&place, &job) == "exited");
    let history = place.ask(&["history", &job, "--json"]).output();
    assert!(history.contains("\"code\": 7"), "{history}");
    // With space everything is as before.
    fs::remove_file(&big).expect("removes");
    wait_until("jobs are taken again", LIMIT, || refused(&["submit", "--", "true"]).is_none());
    place.ask(&["submit", "--wait", "-o", "/dev/null", "--", "true"]).succeeds();
    assert!(place.ask(&["hosts"]).stderr.is_empty());
    place.forebay("down", &["--now"]).succeeds();
}

#[test]
fn one_users_full_scratch_on_ext4_takes_no_grid_down() {
    a_full_disk_is_survived("ext4");
}

#[test]
fn one_users_full_scratch_on_xfs_takes_no_grid_down() {
    a_full_disk_is_survived("xfs");
}

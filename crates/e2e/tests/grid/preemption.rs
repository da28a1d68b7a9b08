//! Jobs that make room for others, with real processes.

use forebay_e2e::wait_until;

use crate::LIMIT;
use crate::asked::Site;

const QUEUES: &str = "[[queue]]\nname = \"urgent\"\npriority = 10\npreempt = [\"night\", \"soft\"]\n\
                      [[queue]]\nname = \"night\"\npreempted = \"requeue\"\nrerun = \"rerunnable\"\n\
                      [[queue]]\nname = \"soft\"\n";

#[test]
fn a_suspended_job_stands_still_and_continues_when_its_slots_are_free() {
    let site = Site::start(QUEUES);
    let grid = &site.grid;
    // What it counts shows whether it runs: a shell without other programs, which a signal cannot get lost in.
    let counts = "i=0; while :; do i=$((i+1)); echo $i > count; done";
    let low = grid.submit(&["-q", "soft", "-n", "4"], counts);
    wait_until("it counts", LIMIT, || grid.jobs.join("count").exists());
    let high = grid.submit(&["-q", "urgent", "-n", "2"], "sleep 605 & wait");
    grid.wait_for(&high, "running");
    grid.wait_for(&low, "suspended");
    let is_stopped = || {
        let shells = grid.processes("sh -c i=0");
        !shells.is_empty() && shells.iter().all(|state| state.starts_with('T'))
    };
    wait_until("its process is stopped", LIMIT, is_stopped);
    site.explains(&low, &format!("job {high} of a queue that preempts its queue has its slots"));
    site.explains(&high, &format!("it preempts job {low}"));
    let told: serde_json::Value =
        serde_json::from_str(&grid.forebay(&["explain", &low, "--json"], &[]).output()).unwrap();
    assert!(told.to_string().contains("preempted"), "{told}");
    assert!(site.says(&format!("bjobs {low}")).contains("SUSP"));
    let waits = grid.submit(&["-q", "soft"], "true");
    grid.forebay(&["kill", &high], &[]).succeeds();
    grid.wait_for(&low, "running");
    wait_until("its process runs", LIMIT, || !is_stopped());
    assert_eq!(grid.state(&waits), "pending");
    grid.forebay(&["kill", &low], &[]).succeeds();
    grid.wait_for(&waits, "done");
}

#[test]
fn a_requeued_job_starts_again_after_the_job_that_preempted_it() {
    let site = Site::start(QUEUES);
    let grid = &site.grid;
    let script =
        "echo $FOREBAY_ATTEMPT >> starts; test $FOREBAY_ATTEMPT = 2 || { sleep 605 & wait; }";
    let low = grid.submit(&["-q", "night", "-n", "4"], script);
    grid.wait_for(&low, "running");
    wait_until("its script has begun", LIMIT, || grid.lines("starts") == ["1"]);
    let high = grid.submit(&["-q", "urgent", "-n", "4"], "until test -e go; do sleep 0.1; done");
    grid.wait_for(&high, "running");
    assert_eq!(grid.state(&low), "pending");
    site.explains(&low, "no host can take it now");
    std::fs::write(grid.jobs.join("go"), "").unwrap();
    grid.wait_for(&high, "done");
    grid.wait_for(&low, "done");
    assert_eq!(grid.lines("starts"), ["1", "2"]);
}

//! A node that stands still with all its processes for longer than lease and timeout, and then goes on.

use forebay_e2e::wait_until;
use rustix::process::{Signal, kill_process};

use crate::fixture::{LIMIT, Nodes, SHORT};

/// Runs in the folder of the jobs, outside the nodes. Its processes all hold the lock, so the next start finds out if any of them is still there.
const SCRIPT: &str = r#"
exec 9>>lock
flock -n 9 || { echo both >overlap; exit 1; }
if test $FOREBAY_ATTEMPT != 1; then
    while ! test -e enough; do echo second >>beats; sleep 0.02; done
    exit 0
fi
beat() { while :; do echo first >>beats; sleep 0.02; done; }
beat &
beat
"#;

#[test]
fn jobs_of_a_node_that_is_frozen_have_ended_before_they_run_elsewhere_and_do_not_go_on() {
    let grid = Nodes::start(3, 1, SHORT);
    let place = |name: &str| grid.base().join("jobs").join(name);
    let beats = |word: &str| {
        let text = std::fs::read_to_string(place("beats")).unwrap_or_default();
        text.lines().filter(|line| *line == word).count()
    };
    let job = grid.submit(0, 0, &["--rerunnable", "-m", "n1+1 n2"], SCRIPT);
    wait_until("the job writes", LIMIT, || beats("first") > 10);
    let frozen = grid.cluster.hosts().processes(1);
    for process in &frozen {
        // A program that has ended meanwhile is followed by none: its shell stands still.
        let _ = kill_process(*process, Signal::STOP);
    }
    wait_until("the job runs elsewhere", LIMIT, || {
        beats("second") > 0 || place("overlap").exists()
    });
    assert!(!place("overlap").exists(), "the first start was still there");
    for process in frozen {
        // Those of the job are gone.
        let _ = kill_process(process, Signal::CONT);
    }
    wait_until("the node is back", LIMIT, || {
        let hosts = grid.json(0, 0, &["hosts"]);
        hosts.as_array().is_some_and(|hosts| {
            hosts.iter().any(|host| host["name"] == "n1" && host["state"] == "up")
        })
    });
    let before = beats("second");
    wait_until("the job goes on", LIMIT, || beats("second") > before + 20);
    std::fs::write(place("enough"), "").expect("writes");
    grid.wait_for(0, &job, "done");
    let text = std::fs::read_to_string(place("beats")).expect("reads");
    let order: Vec<&str> = text.lines().collect();
    let last = order.iter().rposition(|word| *word == "first");
    let first = order.iter().position(|word| *word == "second");
    assert!(last < first, "the first start went on beside the second one");
}

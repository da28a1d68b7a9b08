//! Controllers that are killed, frozen and cut off while jobs are submitted.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::wait_until;
use rustix::process::Signal;

use crate::fixture::{ANN, LIMIT, Nodes, text};

/// What a controller says when it begins to lead.
const LEADS: &str = "this controller leads";

/// What one that stands by says once it reads the journal ahead, and what it says when it leads and has used that.
const READS_AHEAD: &str = "the journal is being read ahead";
const USES_IT: &str = "the journal was read ahead; the rest was read now";

impl Nodes {
    /// When the controller of a node last began to lead, as its log says.
    pub fn led_since(&self, node: usize) -> Option<String> {
        let log = self.log(node, "controller");
        let line = log.lines().rev().find(|line| line.contains(LEADS))?;
        line.split(' ').next().map(str::to_owned)
    }

    /// The node whose controller leads, as far as the logs say.
    pub fn leader(&self) -> usize {
        (0..self.controllers).max_by_key(|node| self.led_since(*node)).expect("one leads")
    }

    /// Waits until `cluster status` lists the controllers of these nodes and no others, one of which leads.
    pub fn wait_for_controllers(&self, nodes: &[&str]) {
        wait_until("the controllers are listed", LIMIT, || {
            let said = self.cluster.forebay(0, &["cluster", "status", "--json"]);
            let Ok(status) = serde_json::from_str::<serde_json::Value>(&said.stdout) else {
                return false;
            };
            let listed = status["controllers"].as_array().cloned().unwrap_or_default();
            let names: Vec<&str> = listed.iter().filter_map(|one| one["name"].as_str()).collect();
            let leading = listed.iter().filter(|one| one["leads"] == true).count();
            names == nodes && leading == 1
        });
    }

    /// Waits until the controller of another node leads, or the same once more.
    fn wait_for_another(&self, before: &Option<String>) -> usize {
        wait_until("another controller leads", LIMIT, || {
            (0..self.controllers).any(|node| self.led_since(node) > *before)
        });
        self.leader()
    }
}

#[test]
fn a_standby_takes_over_with_what_it_has_read_ahead() {
    let grid = Nodes::start(2, 2, "");
    grid.wait_for_controllers(&["n0", "n1"]);
    let leader = grid.leader();
    let standby = 1 - leader;
    let jobs: Vec<String> =
        (0..20).map(|_| grid.submit(standby, ANN, &["--hold"], "true")).collect();
    wait_until("the standby reads the journal ahead", LIMIT, || {
        grid.log(standby, "controller").contains(READS_AHEAD)
    });
    let before = grid.led_since(leader);
    grid.kill(leader, "supervisor");
    grid.kill(leader, "lock");
    assert_eq!(grid.wait_for_another(&before), standby);
    // Nothing was read twice, and nothing of it is missing.
    let log = grid.log(standby, "controller");
    let since = log.rfind(LEADS).expect("it leads");
    wait_until("it has opened the journal", LIMIT, || {
        grid.log(standby, "controller")[since..].contains(USES_IT)
    });
    let log = grid.log(standby, "controller");
    assert!(!log.contains("it is read again") && !log.contains("is not used"), "{log}");
    let known = grid.json(standby, ANN, &["jobs"]);
    assert_eq!(known.as_array().map(Vec::len), Some(jobs.len()), "{known}");
    for job in &jobs {
        grid.as_user(standby, ANN, &["release", job]).succeeds();
    }
    for job in &jobs {
        grid.wait_for(standby, job, "done");
    }
}

/// Submits job after job from a node until it is told to end; their numbers.
fn submit_on(grid: &Nodes, ran: &str, is_over: &AtomicBool, jobs: &Mutex<Vec<String>>) {
    let script = format!("echo $FOREBAY_JOB >>{ran}");
    while !is_over.load(Ordering::SeqCst) {
        let job = grid.submit(2, ANN, &["-m", "n2"], &script);
        jobs.lock().expect("no panic").push(job);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn jobs_end_once_while_leaders_are_killed_frozen_and_cut_off() {
    let grid = Nodes::start(3, 2, "[general]\nlease = \"30 s\"\nhost_timeout = \"40 s\"\n");
    grid.wait_for_controllers(&["n0", "n1"]);
    let ran = text(&grid.root(0).with_file_name("ran"));
    std::fs::write(&ran, "").expect("makes a file");
    std::fs::set_permissions(&ran, std::fs::Permissions::from_mode(0o666)).expect("opens it");
    let go_on = format!("{ran}-go-on");
    let long = grid.submit(
        2,
        ANN,
        &["-m", "n2"],
        &format!("while ! test -e {go_on}; do sleep 0.1; done; echo $FOREBAY_JOB >>{ran}"),
    );
    grid.wait_for(0, &long, "running");
    let (is_over, jobs) = (AtomicBool::new(false), Mutex::new(vec![long.clone()]));
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| submit_on(&grid, &ran, &is_over, &jobs));
        disturb(&grid, &submitting, &jobs);
        is_over.store(true, Ordering::SeqCst);
    });
    std::fs::write(&go_on, "").expect("makes a file");
    let jobs = jobs.into_inner().expect("no panic");
    for job in &jobs {
        grid.wait_for(2, job, "done");
    }
    let text = std::fs::read_to_string(&ran).expect("reads");
    let runs: Vec<&str> = text.lines().collect();
    let distinct: BTreeSet<&str> = runs.iter().copied().collect();
    assert_eq!(runs.len(), distinct.len(), "a job ran twice: {runs:?}");
    let submitted: BTreeSet<&str> = jobs.iter().map(String::as_str).collect();
    assert_eq!(distinct, submitted, "jobs were lost, or taken twice");
    let history = grid.json(1, 0, &["history", &long]);
    assert_eq!(history.as_array().map(Vec::len), Some(1), "{history}");
}

/// Lets some jobs be submitted in between.
fn some_more(submitting: &std::thread::ScopedJoinHandle<'_, ()>, jobs: &Mutex<Vec<String>>) {
    let before = jobs.lock().expect("no panic").len();
    wait_until("jobs are submitted", LIMIT, || {
        submitting.is_finished() || jobs.lock().expect("no panic").len() >= before + 5
    });
    assert!(!submitting.is_finished(), "a submission failed");
}

fn disturb(
    grid: &Nodes,
    submitting: &std::thread::ScopedJoinHandle<'_, ()>,
    jobs: &Mutex<Vec<String>>,
) {
    // Killed with what would start it again, so the other one takes over.
    let first = grid.leader();
    let before = grid.led_since(first);
    some_more(submitting, jobs);
    grid.kill(first, "supervisor");
    grid.kill(first, "lock");
    let second = grid.wait_for_another(&before);
    assert_ne!(second, first, "the one that was killed leads");
    wait_until("the relay of its node has ended its lease", LIMIT, || {
        grid.log(first, "relay").contains("its lease was ended")
    });
    grid.wait_for_controllers(&[&format!("n{second}")]);
    some_more(submitting, jobs);
    grid.up(first, &["--controller"]).succeeds();
    // Killed alone, it is started again.
    let before = grid.led_since(second);
    grid.signal(second, "lock", Signal::KILL);
    let third = grid.wait_for_another(&before);
    some_more(submitting, jobs);
    // Frozen: it finds out when it goes on, and stands by.
    let before = grid.led_since(third);
    grid.signal(third, "lock", Signal::STOP);
    let fourth = grid.wait_for_another(&before);
    assert_ne!(fourth, third, "the one that is frozen leads");
    some_more(submitting, jobs);
    grid.signal(third, "lock", Signal::CONT);
    wait_until("it stands by", LIMIT, || {
        let log = grid.log(third, "controller");
        log.rfind("stands by").is_some_and(|at| log.rfind(LEADS).is_some_and(|led| led < at))
    });
    // Cut off from etcd and from all nodes.
    let before = grid.led_since(fourth);
    grid.cluster.hosts().unplug(fourth);
    let fifth = grid.wait_for_another(&before);
    assert_ne!(fifth, fourth, "the one that is cut off leads");
    some_more(submitting, jobs);
    grid.cluster.hosts().plug_in(fourth);
    some_more(submitting, jobs);
}

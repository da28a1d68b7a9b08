//! A storm over four nodes: controllers, agents, shims, whole nodes and members of etcd are killed and frozen under a load of jobs.
//!
//! Each job writes what it does into a ledger outside the nodes, and holds a lock there as long as its first process lives; what the grid says
//! afterwards has to agree with that (`witness`). A round is one or more waves of faults (`faults`), all at the same time, while jobs are
//! submitted. Then everything is mended, all jobs end, and nothing of them may be left on any node.
//! `FOREBAY_E2E_STORM_ROUNDS` and `FOREBAY_E2E_STORM_JOBS` (jobs of a round) make the test longer, `FOREBAY_SEED` repeats its faults.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod faults;
mod witness;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::cluster::{Cluster, Plan};
use forebay_e2e::{seed, setting, wait_until};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{LIMIT, Nodes};
use faults::{Bags, Weather};
use witness::{Kind, Submitted};

const NODES: usize = 4;
const CONTROLLERS: usize = 3;
const MEMBERS: usize = 3;

/// A frozen leader is replaced within the lease of the hosts on a machine that is not too busy, so most jobs go on.
const SETTINGS: &str =
    "[general]\nlease = \"8 s\"\nhost_timeout = \"10 s\"\nreap_interval = \"2 s\"\n";

/// What a node can be frozen for without losing the promise that its jobs run once: longer than lease and timeout.
pub const BEYOND: Duration = Duration::from_secs(13);

/// One more wave of faults in a round for so many jobs.
const JOBS_OF_A_WAVE: u64 = 200;

/// The lock ends with the first process of the job, however that ends: what it starts does not have it.
const SCRIPT: &str = r#"
me="$FOREBAY_JOB.$FOREBAY_INDEX $FOREBAY_ATTEMPT"
say() { echo "$1 $me $FOREBAY_HOST $2" >>ledger; }
exec 9>>locks/$FOREBAY_JOB.$FOREBAY_INDEX
flock -n 9 || { say overlap; exit 66; }
[ -d "$WORK" ] && [ -d "$UTIL" ] && : >"$WORK/x" || { say homeless; exit 67; }
say begin
beat=0
while [ $beat -lt $BEATS ]; do
    sleep 0.2 9>&-
    beat=$((beat + 1))
    say beat
done
[ -e "$WORK/x" ] || say homeless
code=0
[ "$KIND" = again ] && [ "$FOREBAY_ATTEMPT" = 1 ] && code=99
say end $code
exit $code
"#;

/// The grid under the storm.
pub struct Storm {
    grid: Nodes,
    /// Nodes on which commands can be run now.
    usable: [AtomicBool; NODES],
}

impl Storm {
    fn start() -> Storm {
        let plan = Plan { etcd_members: MEMBERS, ..Plan::of(NODES) };
        let grid = Nodes::start_on(Cluster::make(&plan), CONTROLLERS, SETTINGS);
        std::fs::create_dir(grid.base().join("jobs/locks")).expect("makes a folder");
        Storm { grid, usable: std::array::from_fn(|_| AtomicBool::new(true)) }
    }

    /// Processes on a node whose command line has a word in it.
    fn processes(&self, node: usize, word: &str) -> Vec<Pid> {
        let mut found = self.grid.cluster.hosts().processes(node);
        found.retain(|process| text_of(*process, "cmdline").contains(word));
        found
    }

    /// Shims that hold a job.
    fn shims(&self, node: usize) -> Vec<Pid> {
        let mut found = self.processes(node, "--nursery");
        found.retain(|process| is_shim(*process));
        found
    }

    /// Everything that jobs have left on the nodes, in words.
    fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        for node in 0..NODES {
            let runs = self.grid.root(node).join(format!("grid/hosts/n{node}/runs"));
            let mount = self.grid.cluster.mountpoint(node);
            let [work, util] = ["work", "util"].map(|it| mount.join(format!("{it}/n{node}/jobs")));
            if !mount.join(format!("work/n{node}")).is_dir() {
                left.push(format!("n{node}: its areas cannot be seen"));
            }
            for place in [work, util, runs] {
                for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
                    if entry.file_name() != ".forebay-grid" {
                        left.push(entry.path().display().to_string());
                    }
                }
            }
            let of_jobs = self.grid.cluster.hosts().processes(node).into_iter().filter(|process| {
                let path = format!("/proc/{}/environ", process.as_raw_nonzero());
                let variables = std::fs::read(path).unwrap_or_default();
                variables.split(|byte| *byte == 0).any(|one| one.starts_with(b"FOREBAY_JOB="))
            });
            left.extend(
                of_jobs.chain(self.shims(node)).map(|pid| format!("n{node}: process {pid:?}")),
            );
        }
        left
    }

    /// A node on which commands can be run.
    fn a_usable_node(&self, random: &mut StdRng) -> usize {
        loop {
            let node = random.random_range(0..NODES);
            if self.usable[node].load(Ordering::SeqCst) {
                return node;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Submits one job; none if its number was not printed, as when the node of the command was killed.
    fn submit(&self, random: &mut StdRng, before: &[Submitted]) -> Option<Submitted> {
        let kind = [Kind::Once, Kind::Rerunnable, Kind::Again][random.random_range(0..3)];
        let tasks = if random.random_range(0..10) == 0 { 5 } else { 1 };
        let after = (random.random_range(0..6) == 0 && !before.is_empty())
            .then(|| before[random.random_range(0..before.len())].id);
        let beats = if random.random_range(0..4) == 0 { random.random_range(20..80) } else { 1 };
        let beats = format!("BEATS={beats}");
        let word = format!("KIND={}", if kind == Kind::Again { "again" } else { "plain" });
        let mut words = vec!["submit", "-o", "/dev/null", "--env", &beats, "--env", &word];
        match kind {
            Kind::Once => {}
            Kind::Rerunnable => words.push("--rerunnable"),
            Kind::Again => words.extend(["--rerunnable", "--requeue-exit", "99"]),
        }
        if tasks > 1 {
            words.extend(["-J", "part[1-5]%3"]);
        }
        let condition = after.map(|job| format!("ended({job})"));
        if let Some(condition) = &condition {
            words.extend(["-w", condition]);
        }
        words.extend(["--", "sh", "-c", SCRIPT]);
        let ended = self.grid.as_user(self.a_usable_node(random), 0, &words);
        let id = ended.status.success().then(|| ended.stdout.trim().parse().expect("a number"))?;
        Some(Submitted { id, kind, tasks, after })
    }

    /// One round: so many jobs, and waves of faults while they are submitted and run.
    fn round(&self, weather: &mut Weather<'_>, seed: u64, count: u64) -> Vec<Submitted> {
        let submitted = AtomicU64::new(0);
        let submit_all = || {
            let mut random = StdRng::seed_from_u64(seed);
            let mut jobs = Vec::new();
            while (jobs.len() as u64) < count {
                jobs.extend(self.submit(&mut random, &jobs));
                submitted.store(jobs.len() as u64, Ordering::SeqCst);
            }
            jobs
        };
        std::thread::scope(|scope| {
            let submitting = scope.spawn(submit_all);
            let is_begun = || submitted.load(Ordering::SeqCst) >= count / 4;
            wait_until("a quarter of the jobs is submitted", LIMIT * 5, || {
                submitting.is_finished() || is_begun()
            });
            for _ in 0..=count / JOBS_OF_A_WAVE {
                weather.wave();
            }
            wait_until("all jobs are submitted", LIMIT * 10, || submitting.is_finished());
            submitting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn kill_member(&self, member: usize) {
        self.grid.cluster.etcd().kill_member(member);
    }

    fn start_member(&self, member: usize) {
        self.grid.cluster.etcd().start_member(self.grid.cluster.hosts(), member);
    }

    fn all_jobs_have_ended(&self) -> bool {
        let ended = self.grid.as_user(0, 0, &["jobs", "--json"]);
        let jobs = serde_json::from_str::<serde_json::Value>(&ended.stdout);
        jobs.is_ok_and(|jobs| jobs.as_array().is_some_and(Vec::is_empty))
    }

    fn wait_until_nothing_is_left(&self) {
        let begun = Instant::now();
        loop {
            let left = self.left_behind();
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        // What is frozen cannot be ended in order.
        for node in 0..NODES + MEMBERS {
            for process in self.grid.cluster.hosts().processes(node) {
                let _ = kill_process(process, Signal::CONT);
            }
        }
    }
}

/// What a file of a process below /proc says.
fn text_of(process: Pid, file: &str) -> String {
    let path = format!("/proc/{}/{file}", process.as_raw_nonzero());
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Whether a process that comes from a nursery is a shim with a job. A program of a job that was forked and has executed nothing yet
/// has the name and the command line of its shim, but no session of its own.
fn is_shim(process: Pid) -> bool {
    text_of(process, "comm").starts_with("shim ")
        && rustix::process::getsid(Some(process)) == Ok(process)
}

#[test]
fn every_job_ends_once_or_restarts_as_its_class_says_in_a_storm_over_four_nodes() {
    let seed = seed("grid_nodes");
    let (rounds, count) =
        (setting("FOREBAY_E2E_STORM_ROUNDS", 1), setting("FOREBAY_E2E_STORM_JOBS", 60));
    println!("with FOREBAY_E2E_STORM_ROUNDS={rounds} FOREBAY_E2E_STORM_JOBS={count}");
    let storm = Storm::start();
    let mut bags = Bags::new(seed);
    for round in 1..=rounds {
        let mut weather = Weather::new(&storm, &mut bags);
        let jobs = storm.round(&mut weather, seed ^ round, count);
        let (said, programs) = weather.clear_up();
        storm.grid.wait_for_controllers(&["n0", "n1", "n2"]);
        wait_until("all jobs have ended", LIMIT * 5, || storm.all_jobs_have_ended());
        let starts = witness::check(&storm.grid, &jobs, &programs);
        storm.wait_until_nothing_is_left();
        println!("round {round}: {} jobs, {starts} starts\n{said}", jobs.len());
        // Numbers go on; the next round compares with its own jobs only.
        std::fs::remove_file(storm.grid.base().join("jobs/ledger")).expect("removes the ledger");
    }
}

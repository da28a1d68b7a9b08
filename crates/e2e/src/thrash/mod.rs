//! Random calls of programs on every node of a cluster while its parts fail, and a check of everything that the programs saw.
//!
//! `workers` act on shared directories and files and record each call with its times. `faults` break parts of
//! the cluster and mend them, one after the other, as a seed says. At the end everything is well again, each object is read from
//! every node, and then the histories are checked ([`crate::history`]):
//!
//! - names and bytes are linearizable for each object; a crash of an owner may take names back to what they were since the last fsync of
//!   any file of the fileset, but not further, and bytes not at all. Two things are allowed that kernels do: a rename may succeed
//!   without effect beside another one, and programs of the owner's node may see a name as it was before a change that has not
//!   returned ([`crate::history::Move::Kept`]);
//! - what an fsync acknowledged is there, and records that were appended are whole, in order and there once;
//! - nobody waited for longer than the faults lasted and [`HANG_MAX`].

mod faults;
mod journal;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::cluster::{Cluster, Plan};
use crate::loop_disk::LoopDisk;
use crate::wait_until;

use faults::Breaker;
pub use faults::{Fault, Loss};
use journal::Journal;
use workers::{Shared, Worker};

/// Nodes of the cluster.
const NODES: usize = 4;
/// Members of its etcd.
const MEMBERS: usize = 3;
/// Programs on each node.
const WORKERS: usize = 3;
/// The node whose disk is a small file system of its own, so that it can be filled and stalled; XFS takes 300 MiB at least.
pub const SMALL_DISK: usize = 3;
const SMALL_DISK_MIB: u64 = 400;

/// Longest wait of a call beyond the time in which something was broken: a lease that ends (10 s) and etcd's delay, three nodes
/// that must not take over (2 s each), a call whose session has to end (30 s).
pub const HANG_MAX: Duration = Duration::from_secs(50);
/// Calm before the first fault, and between two.
const CALM: Duration = Duration::from_secs(4);
/// How long programs run without faults.
const UNDISTURBED: Duration = Duration::from_secs(15);
/// How long a cluster may take to be well again.
const HEAL_MAX: Duration = Duration::from_secs(90);

/// What a run did.
#[derive(Debug)]
pub struct Summary {
    /// Calls that succeeded.
    pub calls: usize,
    /// Calls that failed, by error.
    pub failures: Vec<(String, usize)>,
    /// The longest call.
    pub longest: Duration,
}

/// A cluster with its small disk.
pub struct Thrash {
    // Goes first: it uses the disk.
    cluster: Cluster,
    disk: LoopDisk,
    seed: u64,
}

impl Thrash {
    /// Makes the cluster of a run.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn make(seed: u64) -> Thrash {
        let disk = LoopDisk::make("xfs", SMALL_DISK_MIB);
        let place = disk.path().join("forebay");
        let disks = [(SMALL_DISK, place)].into();
        let plan = Plan { etcd_members: MEMBERS, disks, ..Plan::of(NODES) };
        Thrash { cluster: Cluster::make(&plan), disk, seed }
    }

    /// Runs the programs while the faults happen, and checks what they saw.
    ///
    /// # Panics
    /// If a promise was broken; the text says which one and where.
    pub fn run(&mut self, faults: &[Fault]) -> Summary {
        let roots = (0..NODES).map(|node| self.cluster.mountpoint(node).join("data/thrash"));
        let roots: Vec<PathBuf> = roots.collect();
        // Without faults nothing moves the fileset.
        let owner = || if faults.is_empty() { self.cluster.owner(0, "data") } else { None };
        let shared = Arc::new(Shared::make(&roots, owner));
        let workers: Vec<_> = (0..NODES * WORKERS)
            .map(|number| {
                let seed = self.seed.wrapping_mul(1009).wrapping_add(number as u64);
                let worker = Worker::new(number, number % NODES, seed, Arc::clone(&shared));
                std::thread::spawn(move || worker.run())
            })
            .collect();
        shared.sleep(if faults.is_empty() { UNDISTURBED } else { CALM });
        for fault in faults {
            let disk = &self.disk;
            let mut breaker = Breaker { cluster: &mut self.cluster, shared: &shared, disk };
            println!("{:7.2} s: {fault}", shared.now() as f64 / 1e9);
            let begin = shared.now();
            breaker.perform(fault);
            self.wait_until_well(&shared);
            shared.fault(begin, shared.now(), fault.loss());
            println!("{:7.2} s: well again", shared.now() as f64 / 1e9);
            shared.sleep(CALM);
        }
        shared.stop.store(true, Ordering::SeqCst);
        let mut journal = Journal::default();
        for worker in workers {
            wait_until("a program ends its call", HANG_MAX + HEAL_MAX, || worker.is_finished());
            journal.add(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        journal.add(workers::look_at_everything(&shared));
        let summary = journal.check(&shared, &roots);
        self.check_daemons();
        (0..NODES).for_each(|node| self.cluster.umount(node));
        self.cluster.forebay(0, &["fsck", "g"]).succeeds();
        summary
    }

    /// Waits until every node is mounted and answers.
    fn wait_until_well(&self, shared: &Arc<Shared>) {
        let asked = shared.now();
        for node in 0..NODES {
            let root = shared.root(node).to_owned();
            let files: Vec<PathBuf> =
                (0..workers::FILES).map(|file| root.join(workers::file_name(file))).collect();
            let probe = root.join(format!("probe-{node}-{asked}"));
            succeeds_within(HEAL_MAX, &format!("node {node} creates files again"), move || {
                std::fs::write(&probe, b"probe").and_then(|()| std::fs::remove_file(&probe))
            });
            succeeds_within(HEAL_MAX, &format!("node {node} lists again"), move || {
                std::fs::read_dir(&root).map(drop)
            });
            succeeds_within(HEAL_MAX, &format!("node {node} reads again"), move || {
                files.iter().try_for_each(|file| std::fs::read(file).map(drop))
            });
        }
    }

    /// Daemons did not panic, and every node is up.
    fn check_daemons(&self) {
        for node in 0..NODES {
            let log = self.cluster.log(node);
            let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked")).collect();
            assert!(panics.is_empty(), "node {node}: {panics:#?}");
        }
        let status = self.cluster.forebay(0, &["cluster", "status", "--json"]).output();
        let status: serde_json::Value = serde_json::from_str(&status).expect("is JSON");
        let nodes = status["nodes"].as_array().expect("a list of nodes");
        assert!(nodes.iter().all(|node| node["state"] == "up"), "{status:#}");
    }
}

/// Tries something until it succeeds, in a thread of its own: a call that hangs must not hang the test.
fn succeeds_within(
    limit: Duration,
    what: &str,
    attempt: impl Fn() -> std::io::Result<()> + Send + 'static,
) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let result = attempt();
            let done = result.is_ok();
            if sender.send(result).is_err() || done {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let start = std::time::Instant::now();
    let mut last = "its first call hangs".to_owned();
    loop {
        match receiver.recv_timeout(limit.saturating_sub(start.elapsed())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => panic!("waited {limit:?} in vain: {what}: {last}"),
        }
    }
}

/// Faults of a seed, each kind about as often as any other.
#[must_use]
pub fn draw(seed: u64, count: usize) -> Vec<Fault> {
    let mut random = StdRng::seed_from_u64(seed ^ 0xfa17);
    let mut kinds: Vec<u32> = Vec::new();
    (0..count)
        .map(|_| {
            if kinds.is_empty() {
                kinds = (0..Fault::KINDS).collect();
            }
            let kind = kinds.swap_remove(random.random_range(0..kinds.len()));
            Fault::draw(kind, NODES, MEMBERS, &mut random)
        })
        .collect()
}

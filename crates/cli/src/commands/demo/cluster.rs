//! `forebay demo --cluster`: four nodes on this machine, a workload over all of them, and one that is killed.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_study::record::{Exit, JobRecord, Record};
use serde_json::Value;

use super::trial::{Trial, text};
use crate::output::Table;

/// Nodes of the cluster.
const NODES: usize = 4;
/// Jobs at once on each node.
const CONCURRENT: &str = "2";
/// The filesets that the workload uses.
const FILESETS: [&str; 3] = ["data", "work", "util"];
/// What a name of a fileset's directory has in the upper 16 bits of its inode number.
const FILESET_SHIFT: u32 = 48;
/// What is written, synced and read again.
const GREETING: &[u8] = b"from the node that was killed";
/// How long the filesets of a dead node may take to answer.
const TAKEOVER_MAX: Duration = Duration::from_secs(60);

/// What the demonstration of a cluster is told.
pub struct ClusterDemo<'a> {
    pub report: &'a Path,
    pub scale: f64,
}

/// A node that is to die, and what it owns.
struct Victim {
    node: usize,
    /// The filesets that another node has to take over.
    owns: Vec<&'static str>,
}

impl ClusterDemo<'_> {
    /// Plays it in `folder`, which is new.
    pub fn run(&self, folder: PathBuf) -> Result<()> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a cluster on one machine needs root: it makes network namespaces and mounts"
        );
        let trial = Trial::begin(folder, NODES)?;
        let played = self.play(&trial);
        let stopped = if played.is_ok() { trial.stop() } else { Ok(()) };
        if played.is_err() {
            note!("forebay: cleaning up");
        }
        let cleared = trial.clear();
        played?;
        stopped?;
        cleared
    }

    fn play(&self, trial: &Trial) -> Result<()> {
        outln!("== create a cluster of {NODES} nodes on this machine: {}", trial.folder.display());
        for node in 0..NODES {
            trial.enter(node)?;
            let what = if node == 0 { "made the cluster" } else { "joined it" };
            outln!("   n{node} {what} and mounted it at {}", trial.mount_of(node).display());
        }
        let victim = choose(trial)?;
        outln!(
            "\n== run the calibration workload on all nodes, {CONCURRENT} jobs at a time on each"
        );
        let mut workload = self.start_workload(trial)?;
        let killed = self.kill_in_the_middle(trial, &victim, &mut workload);
        if killed.is_err() {
            // It removes what it made at a signal.
            let _ = trial.wait(&mut workload, || bail!("the demonstration ends"));
        }
        killed?;
        let status = trial.wait(&mut workload, || Ok(()))?;
        ensure!(matches!(status.code(), Some(0 | 1)), "the workload was not run ({status})");
        self.tell_of_jobs(&victim)?;
        self.bring_back(trial, &victim)?;
        self.kill_owner(trial)?;
        outln!("\nreport: {}", self.report.join("report.html").display());
        Ok(())
    }

    fn start_workload(&self, trial: &Trial) -> Result<Child> {
        let mounts: Vec<PathBuf> = (0..NODES).map(|node| trial.mount_of(node)).collect();
        let mounts: Vec<&str> = mounts.iter().map(|mount| text(mount)).collect::<Result<_>>()?;
        let [data, work, util] = FILESETS.map(|name| format!("{}/{name}", mounts[0]));
        let (scale, nodes) = (self.scale.to_string(), NODES.to_string());
        let mounts = mounts.join(",");
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["bench", "run", "calibration", "--on", &data, "--work", &work]);
        command.args(["--util", &util, "--mounts", &mounts, "--nodes", &nodes]);
        command.args(["--concurrent", CONCURRENT, "--scale", &scale, "--brief", "--out"]);
        command.arg(self.report).spawn().context("cannot start the workload")
    }

    /// Kills a node while jobs run, and measures when its filesets answer again.
    fn kill_in_the_middle(
        &self,
        trial: &Trial,
        victim: &Victim,
        workload: &mut Child,
    ) -> Result<()> {
        let mut runs = false;
        // The first directory that a job of the victim's node makes there says that jobs run on it.
        trial.until("the jobs begin", Duration::from_secs(600), || {
            runs = workload.try_wait()?.is_none();
            Ok(!runs || jobs_have_ended(self.report))
        })?;
        ensure!(runs, "the workload ended before a node could be killed: use a larger --scale");
        let start = SystemClock.instant();
        trial.kill(victim.node)?;
        outln!("\n-- n{} is killed (kill -9) in the middle of its jobs", victim.node);
        for fileset in &victim.owns {
            wait_for_answer(trial, 0, fileset)?;
            let seconds = trial.since(start).as_secs_f64();
            outln!("-- {fileset}, which it owned, is available on n0 again after {seconds:.1} s");
        }
        if victim.owns.is_empty() {
            outln!("-- it owned no fileset of the workload: jobs on the other nodes continue");
        }
        Ok(())
    }

    /// Says what became of the jobs of each node.
    fn tell_of_jobs(&self, victim: &Victim) -> Result<()> {
        let record = Record::read(self.report)?;
        let jobs: Vec<&JobRecord> = record.runs.iter().flat_map(|run| run.jobs()).collect();
        let mut table = Table::new(&["NODE", "JOBS", "SUCCEEDED", "FAILED"]);
        for node in 0..NODES {
            let of_node = jobs.iter().copied().filter(|job| job.node as usize == node);
            let (done, failed): (Vec<&JobRecord>, Vec<&JobRecord>) =
                of_node.partition(|job| job.exit == Exit::Success);
            let killed = if node == victim.node { " (killed)" } else { "" };
            let (all, done) = (done.len() + failed.len(), done.len());
            table.row(vec![
                format!("n{node}{killed}"),
                all.to_string(),
                done.to_string(),
                failed.len().to_string(),
            ]);
        }
        out!("\n{}", table.render());
        Ok(())
    }

    /// Mounts the dead node again, and looks at the same file from all nodes.
    fn bring_back(&self, trial: &Trial, victim: &Victim) -> Result<()> {
        outln!("\n== mount n{} again", victim.node);
        trial.detach(victim.node);
        trial.mount(victim.node)?;
        write_synced(&greeting(trial, victim.node))?;
        read_everywhere(trial)?;
        outln!("   whatever it writes can be read on all nodes at once");
        Ok(())
    }

    /// Kills the owner of the files, and measures how long another node waits for them.
    fn kill_owner(&self, trial: &Trial) -> Result<()> {
        let numbers = numbers(trial)?;
        let (_, data) = numbers.into_iter().find(|(name, _)| *name == "data").context("data")?;
        let status = trial.status()?;
        let owner = (0..NODES).find(|node| owned(&status, *node).contains(&data));
        let owner = owner.context("nobody owns the fileset data")?;
        let other = (owner + 1) % NODES;
        let start = SystemClock.instant();
        trial.kill(owner)?;
        outln!("\n-- n{owner}, which owns data, is killed (kill -9)");
        wait_for_answer(trial, other, "data")?;
        let seconds = trial.since(start).as_secs_f64();
        outln!(
            "-- data is available on n{other} again after {seconds:.1} s: another node has taken it over"
        );
        trial.detach(owner);
        trial.mount(owner)?;
        trial.until("the files are back", TAKEOVER_MAX, || Ok(read_everywhere(trial).is_ok()))?;
        outln!("   n{owner} is mounted again, and all nodes read what was synced\n");
        out!("{}", trial.forebay(other, &["cluster", "status"])?);
        Ok(())
    }
}

fn greeting(trial: &Trial, node: usize) -> PathBuf {
    trial.mount_of(node).join("data/greeting")
}

fn write_synced(path: &Path) -> Result<()> {
    let mut file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    file.write_all(GREETING)
        .and_then(|()| file.sync_all())
        .with_context(|| path.display().to_string())
}

fn read_everywhere(trial: &Trial) -> Result<()> {
    for node in 0..NODES {
        let found =
            std::fs::read(greeting(trial, node)).with_context(|| format!("reads on n{node}"))?;
        ensure!(found == GREETING, "n{node} reads something else than was written");
    }
    Ok(())
}

/// Waits until a file can be made in a fileset on a node.
fn wait_for_answer(trial: &Trial, node: usize, fileset: &str) -> Result<()> {
    let probe = trial.mount_of(node).join(fileset).join("answers");
    trial.until("the filesets of the dead node answer", TAKEOVER_MAX, || {
        Ok(std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe)).is_ok())
    })
}

/// Whether a job has ended: its steps are on record, beside the result that is being made.
fn jobs_have_ended(report: &Path) -> bool {
    let stage = report.join("jobs/run-1-stage-1");
    let files = std::fs::read_dir(stage).into_iter().flatten().flatten();
    let mut ended = files.filter(|file| {
        let is_record = file.path().extension().is_some_and(|extension| extension == "steps");
        is_record && file.metadata().is_ok_and(|found| found.len() > 0)
    });
    ended.next().is_some()
}

/// The filesets of the workload with their numbers. Looked at, each has an owner.
fn numbers(trial: &Trial) -> Result<Vec<(&'static str, u64)>> {
    let number = |name: &'static str| {
        let path = trial.mount_of(0).join(name);
        let found = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
        Ok((name, found.ino() >> FILESET_SHIFT))
    };
    FILESETS.into_iter().map(number).collect()
}

/// The numbers of the filesets that a node owns.
fn owned(status: &Value, node: usize) -> BTreeSet<u64> {
    let filesets = status["filesets"].as_array().into_iter().flatten();
    // Nodes are numbered from 1 in the order in which they came.
    let own = filesets.filter(|found| found["owner"] == node + 1);
    own.filter_map(|found| found["fileset"].as_u64()).collect()
}

/// The node to kill while jobs run: not the first, where the inputs lie; one that owns as little as possible of what jobs on all
/// nodes use, and among those one that owns something.
fn choose(trial: &Trial) -> Result<Victim> {
    let (numbers, status) = (numbers(trial)?, trial.status()?);
    let victim = |node| {
        let own = owned(&status, node);
        let of_workload = numbers.iter().filter(|(_, number)| own.contains(number));
        Victim { node, owns: of_workload.map(|(name, _)| *name).collect() }
    };
    let used = |victim: &Victim| victim.owns.iter().filter(|name| **name != "util").count();
    let mut nodes: Vec<Victim> = (1..NODES).map(victim).collect();
    nodes.sort_by_key(|victim| (used(victim), std::cmp::Reverse(victim.owns.len())));
    nodes.into_iter().next().context("a cluster has nodes")
}

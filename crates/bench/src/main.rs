//! Side-by-side benchmarks: the same loads on a mount and on a plain directory of the same disk.
//!
//! Every figure is measured on every subject in turn, round after round, in fresh directories, with
//! the disks calm in between; a file system is mounted only while it is measured. So a slow minute of
//! the machine hits all subjects alike, and ratios are taken within a round.

mod beside;
mod cluster;
mod disk;
mod external;
mod figure;
mod fio;
mod grid;
mod ground;
mod interrupt;
mod load;
mod machine;
mod measure;
mod mount;
mod peer;
mod probe;
mod processor;
mod report;
mod simulation;
mod statistics;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use forebay_base::ByteSize;

use crate::disk::Disk;
use crate::figure::{Group, Subject};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::load::Sizes;
use crate::machine::Machine;
use crate::measure::{Bench, Plan, Samples};
use crate::report::{DiskReport, Report};

/// Size of the loop file; sparse, but the disk may fill it.
const IMAGE: ByteSize = ByteSize::gib(12);
/// What --quick makes of the sizes.
const QUICK: f64 = 0.1;

/// Measure a Forebay mount against a plain directory of the same disk.
///
/// Runs every load in turn on a plain directory, on a native fileset of a mount, on a mount with the direct path, and on a
/// mount with the served path, each with requests over io_uring and over /dev/fuse; on an XFS that the benchmark makes in a loop file, and on the file system of the
/// machine. Prints medians, spread, and ratios to the plain directory. Needs root. What it makes goes
/// away at the end, also at Ctrl-C.
#[derive(Parser)]
#[command(
    name = "forebay-bench",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  forebay-bench                                        everything, about 20 minutes
  forebay-bench --quick                                a tenth of the sizes, 2 rounds
  forebay-bench --only storm-four calibration --on xfs
  forebay-bench --set fuse_readers=2 --only calibration
  forebay-bench --markdown tables.md --json samples.json"
)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Rounds; each figure is the median of as many samples [default: 5, with --quick 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// A tenth of the sizes and 2 rounds: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Measure only these.
    #[arg(long, value_name = "NAME", num_args = 1.., value_enum)]
    only: Vec<Group>,
    /// Measure only on these, beside the plain directory.
    #[arg(long, value_name = "NAME", num_args = 1.., value_enum)]
    subjects: Vec<Subject>,
    /// Disks to measure on.
    #[arg(long, value_enum, default_value_t = On::Both)]
    on: On,
    /// Multiply the sizes of all loads.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Calm between two measurements once the disk is idle, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pause: u64,
    /// Wait for a quiet machine before each measurement, and repeat one up to so many times if other
    /// programs used more than 0.1 cores meanwhile.
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    retries: u16,
    /// A setting of the file systems, as in forebay.toml; can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<String>,
    /// Write all samples to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to a file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

#[derive(Subcommand)]
enum Role {
    /// Compare the probe of the workloads with fio, on tmpfs and on a disk.
    Probe(probe::Probe),
    /// Measure a database beside scratch files: what a sync in one fileset costs another.
    Beside(beside::Beside),
    /// Measure the grid: latency, throughput, memory, and Slurm beside it.
    Grid(grid::Grid),
    /// Simulate the grid's controller with 1,000 hosts and 1,000,000 jobs, in virtual time on one core.
    ///
    /// Prints what the controller's decisions cost (rate, memory), how fairly users share the slots, and what the sessions of the published studies
    /// wait for. Nothing is started and nothing is written; needs no rights.
    GridSimulation(simulation::Simulation),
    /// Compare Forebay with other file systems: XFS, ext4, mergerfs, MooseFS, GlusterFS, CephFS.
    ///
    /// Brings each up from the packages of the distribution, on a fresh disk and in namespaces of its
    /// own, runs the same loads on it, and takes it down, round after round. Prints medians, spread,
    /// ratios and what the loads cost in processor time. Needs root. Nothing is left at the end, also
    /// at Ctrl-C.
    #[command(after_help = "Examples:
  forebay-bench peers                                  everything
  forebay-bench peers --peers xfs,forebay,moosefs --rounds 2
  forebay-bench peers --loads calibration-four,metadata --budget 5
  forebay-bench peers --output docs/benchmarks.md --json samples.json")]
    Peers(peer::Peers),
    /// Measure a cluster of four nodes on this machine, with MooseFS, GlusterFS and CephFS beside it.
    ///
    /// Each node has a network of its own. Compares the owner's node with one machine alone, four nodes with one, and another
    /// node than the owner's with clients of the peers on another node than their server; counts requests to etcd and bytes
    /// between nodes; measures how long nobody answers when a fileset is moved and when its owner is killed. Needs
    /// root. Nothing is left at the end, also at Ctrl-C.
    #[command(after_help = "Examples:
  forebay-bench cluster                                everything, about half an hour
  forebay-bench cluster --quick --parts own,moves      to see that it works
  forebay-bench cluster --parts remote --peers moosefs --rounds 3
  forebay-bench cluster --output docs/benchmarks.md --json samples.json")]
    Cluster(cluster::Options),
    /// Do one job of a benchmark (started by the benchmark itself).
    #[command(hide = true)]
    Worker,
    /// Be the first process of a subject's namespaces (started by the benchmark itself).
    #[command(hide = true)]
    Cell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    /// An XFS in a loop file.
    Xfs,
    /// The file system that --scratch is on (ext4 on most machines).
    #[value(alias = "ext4")]
    Own,
    /// Both.
    Both,
}

fn scale(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|scale| (0.001..=100.0).contains(scale))
        .ok_or_else(|| "give a number from 0.001 to 100".to_owned())
}

fn setting(text: &str) -> Result<String, String> {
    let (key, value) = text.split_once('=').ok_or("write it as key=value")?;
    Ok(format!("{} = {}", key.trim(), value.trim()))
}

impl Arguments {
    fn plan(&self) -> Plan {
        let quick = if self.quick { QUICK } else { 1.0 };
        let mut subjects = vec![Subject::Plain];
        for subject in Subject::value_variants() {
            let wanted = self.subjects.is_empty() || self.subjects.contains(subject);
            if wanted && *subject != Subject::Plain {
                subjects.push(*subject);
            }
        }
        let groups = Group::value_variants().iter().copied();
        Plan {
            rounds: self.rounds.map_or(if self.quick { 2 } else { 5 }, usize::from),
            groups: groups
                .filter(|group| self.only.is_empty() || self.only.contains(group))
                .collect(),
            subjects,
            sizes: Sizes::scaled(self.scale * quick),
            pause: Duration::from_secs(self.pause),
            retries: self.retries,
            settings: self.settings.clone(),
        }
    }
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Worker) => load::work(),
        Some(Role::Probe(probe)) => probe.run(),
        Some(Role::Beside(beside)) => beside.run(),
        Some(Role::Grid(grid)) => grid.run(),
        Some(Role::GridSimulation(simulation)) => simulation.run(),
        Some(Role::Peers(peers)) => peers.run(),
        Some(Role::Cluster(cluster)) => cluster.run(),
        Some(Role::Cell) => peer::idle(),
        None => run(&arguments),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root: it mounts, makes a loop device, and drops caches");
    }
    let (plan, program) = (arguments.plan(), arguments.ground.program()?);
    let machine = Machine::look()?;
    let interrupt = Interrupt::watch()?;
    let scratch = arguments.ground.directory("forebay-bench-")?;
    let mut disks = Vec::new();
    let mut measured = Ok(());
    for on in [On::Xfs, On::Own] {
        if measured.is_ok() && (arguments.on == on || arguments.on == On::Both) {
            measured = measure_disk(on, &plan, &program, scratch.path(), &interrupt, &mut disks);
        }
    }
    // Also after an error or Ctrl-C: what was measured until then is worth showing.
    let report = Report::new(machine, &plan, disks);
    print!("{}", report.markdown());
    if let Some(file) = &arguments.markdown {
        std::fs::write(file, report.markdown()).with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    measured?;
    scratch.close().context("cannot remove the scratch directory")
}

fn measure_disk(
    on: On,
    plan: &Plan,
    program: &Path,
    scratch: &Path,
    interrupt: &Interrupt,
    reports: &mut Vec<DiskReport>,
) -> Result<()> {
    let space = plan.sizes.space();
    let disk = match on {
        On::Xfs => {
            disk::check_space(scratch, ByteSize(space.0.min(IMAGE.0)))?;
            Disk::xfs(scratch, IMAGE)?
        }
        On::Own | On::Both => Disk::own(scratch)?,
    };
    disk::check_space(&disk.folder, space)?;
    eprintln!("{}: {}", disk.name, disk.description);
    let mut samples = Samples::default();
    let wants_tree = plan.groups.contains(&Group::Tree);
    let archive = wants_tree.then(|| peer::archive(scratch, plan.sizes.tree_files)).transpose()?;
    let done = Bench { plan, disk: &disk, program, interrupt, archive }.run(&mut samples);
    reports.push(DiskReport::new(&disk.name, &disk.description, &samples));
    done?;
    disk.remove()
}

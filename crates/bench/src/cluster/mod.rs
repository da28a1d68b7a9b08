//! A cluster of four nodes on this machine, each in a network of its own.
//!
//! - **own**: the node that owns a fileset, against one machine alone on the same disk;
//! - **aggregate**: the calibration mix of four processes, on one node and one on each node, in a fileset that all share and
//!   in native scratch;
//! - **remote**: another node than the owner's, against clients of networked peers on another node than their server;
//! - **reads**: a large file of the owner's disk, read on another node;
//! - **cost**: requests to etcd and bytes between nodes for 1,000 temporary files;
//! - **scaling**: what a temporary file costs whom, and what up to 64 nodes would do by that, simulated;
//! - **moves**: how long nobody answers when a fileset is moved in order, and when its owner is killed.
//!
//! All of it is measured round after round, subjects in turn. Figures are medians; ratios are taken within a round.

mod cost;
mod moves;
mod reads;
mod remote;
mod report;
mod scaling;
mod trial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use forebay_base::ByteSize;
use forebay_workload::load::sequential::Durability;
use forebay_workload::load::{Metadata, Sequential};

use self::report::{Report, Section};
use self::trial::Trial;
use crate::disk::{Disk, check_space};
use crate::figure::{Figure, Figures};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::load::{Job, Jobs, Sizes};
use crate::machine::{Machine, settle};
use crate::peer::{Chore, Peer, archive};
use crate::report::write_section;

/// Size of the loop file that holds all disks of the cluster; sparse.
const IMAGE: ByteSize = ByteSize::gib(16);
/// Name of the section of a file.
const SECTION: &str = "bench-cluster";
/// What --quick makes of the sizes, and of files that are taken over.
const QUICK: f64 = 0.02;
const QUICK_FILES: u64 = 5_000;

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// The owner's node against one machine alone.
    Own,
    /// Four nodes against one.
    Aggregate,
    /// Another node against networked peers.
    Remote,
    /// A large file, on another node than its bytes.
    Reads,
    /// Requests to etcd and bytes between nodes.
    Cost,
    /// What limits many nodes in one fileset.
    Scaling,
    /// Time without answers.
    Moves,
}

/// What to measure.
#[derive(Args, Debug)]
pub struct Options {
    /// Rounds; each figure is the median of as many samples [default: 3, with --quick 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// A fiftieth of the sizes and one round: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Measure only these, separated by commas [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    parts: Vec<Part>,
    /// Networked peers, separated by commas [default: moosefs,glusterfs,cephfs].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    peers: Vec<Peer>,
    /// Multiply the sizes of all loads.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::scale)]
    scale: f64,
    /// Files of the fileset whose owner is killed [default: 1000000, with --quick 5000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    files: Option<u64>,
    /// Write the tables to a Markdown file, in place of what stands there between their marks.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all samples to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

/// Sizes of the loads of a cluster.
#[derive(Clone, Debug)]
pub struct Amounts {
    /// Of the loads on the owner's node.
    own: Sizes,
    /// A file that another node writes, syncs and reads.
    sequential: Sequential,
    /// Files that another node creates, stats and removes.
    metadata: Metadata,
    /// Files of the tree.
    tree_files: u64,
    /// Temporary files of the count of requests.
    temporary_files: u64,
    /// Bytes of a file that another node reads.
    far_file: u64,
    /// Files that are taken over.
    taken_over: u64,
}

/// A benchmark under way.
pub struct Bench<'a> {
    rounds: usize,
    amounts: Amounts,
    peers: Vec<Peer>,
    program: PathBuf,
    scratch: &'a Path,
    archive: PathBuf,
    interrupt: &'a Interrupt,
}

impl Options {
    /// Measures and reports.
    ///
    /// # Errors
    /// If something cannot be mounted or measured; after a signal, once what was measured is reported.
    pub fn run(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "needs root: it makes network namespaces, mounts and loop devices, and drops caches"
            );
        }
        let (program, machine) = (self.ground.program()?, Machine::look()?);
        let interrupt = Interrupt::watch()?;
        let scratch = self.ground.directory("fbc.")?;
        let amounts = self.amounts();
        check_space(scratch.path(), amounts.own.space())?;
        eprintln!("making a source tree of {} files", amounts.tree_files);
        let archive = archive(scratch.path(), amounts.tree_files)?;
        let bench = Bench {
            rounds: self.rounds.map_or(if self.quick { 1 } else { 3 }, usize::from),
            amounts,
            peers: match &self.peers[..] {
                [] => vec![Peer::Moosefs, Peer::Glusterfs, Peer::Cephfs],
                peers => peers.to_vec(),
            },
            program,
            scratch: scratch.path(),
            archive,
            interrupt: &interrupt,
        };
        let mut report = Report::new(machine, bench.rounds, std::env::args().skip(1).collect());
        let wanted = |part| self.parts.is_empty() || self.parts.contains(&part);
        let measured = bench.run(&wanted, &mut report.sections);
        // Also after an error or Ctrl-C: what was measured until then is worth showing.
        let text = report.markdown();
        println!("{text}");
        if let Some(file) = &self.json {
            let json = serde_json::to_string_pretty(&report)?;
            std::fs::write(file, json).with_context(|| file.display().to_string())?;
        }
        measured?;
        if let Some(file) = &self.output {
            write_section(file, SECTION, &text)?;
        }
        scratch.close().context("cannot remove the scratch directory")
    }

    fn amounts(&self) -> Amounts {
        let scale = self.scale * if self.quick { QUICK } else { 1.0 };
        let of = |number: u64| ((number as f64 * scale) as u64).max(50);
        let durability = Durability::Fsync;
        let total_bytes = ByteSize::mib(of(512));
        Amounts {
            own: Sizes::scaled(0.25 * scale),
            sequential: Sequential { total_bytes, durability, ..Sequential::default() },
            metadata: Metadata { files: of(5_000) },
            tree_files: of(1_000),
            temporary_files: of(4_000),
            far_file: ByteSize::mib(of(128)).0,
            taken_over: self.files.unwrap_or(if self.quick { QUICK_FILES } else { 1_000_000 }),
        }
    }
}

impl Bench<'_> {
    fn run(&self, wanted: &dyn Fn(Part) -> bool, sections: &mut Vec<Section>) -> Result<()> {
        // The cluster's disks, and that of one machine, share one XFS.
        let disk = Disk::xfs(self.scratch, IMAGE)?;
        eprintln!("{}", disk.description);
        let trial = Trial::make(&self.program, self.scratch, &disk.folder)?;
        for part in Part::value_variants().iter().copied().filter(|part| wanted(*part)) {
            let measured = match part {
                Part::Own => self.own(&trial, sections),
                Part::Aggregate => self.aggregate(&trial, sections),
                Part::Remote => self.remote(&trial, sections),
                Part::Reads => self.reads(&trial, sections),
                Part::Cost => self.cost(&trial, sections),
                Part::Scaling => self.scaling(&trial, sections),
                Part::Moves => self.moves(&trial, sections),
            };
            measured.with_context(|| format!("{part:?}"))?;
        }
        trial.end()?;
        disk.remove()
    }

    fn jobs(&self) -> Jobs<'_> {
        Jobs { interrupt: self.interrupt, within: None }
    }

    /// Runs a load in a fresh directory once the disks are calm.
    fn fresh(
        &self,
        jobs: Jobs<'_>,
        directory: &Path,
        load: impl FnOnce(Jobs<'_>, &Path) -> Result<Figures>,
    ) -> Result<Figures> {
        jobs.run(directory, &Job::Make)?;
        settle(self.interrupt, Duration::from_millis(300))?;
        let figures = load(jobs, directory)?;
        jobs.run(directory, &Job::Remove)?;
        Ok(figures)
    }

    /// The owner's node against one machine alone.
    fn own(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        const ONE: &str = "one machine";
        const OWNER: &str = "the owner's node";
        let section = Section::begin(sections, "On its own node", ONE);
        let sizes = &self.amounts.own;
        let tree = Chore::Tree { archive: self.archive.clone(), files: self.amounts.tree_files };
        type Load<'a> = (&'a str, Box<dyn Fn(Jobs<'_>, &Path) -> Result<Figures> + 'a>);
        let run = |job: Job| move |jobs: Jobs<'_>, at: &Path| jobs.run(at, &job);
        let loads: [Load<'_>; 6] = [
            ("work", Box::new(run(Job::Sequential(sizes.sequential.clone())))),
            ("work", Box::new(run(Job::Storm(Figure::StormFour, sizes.storm_four.clone())))),
            (
                "work",
                Box::new(|jobs: Jobs<'_>, at: &Path| {
                    jobs.calibrate(at, &sizes.calibration, Figure::Calibration)
                }),
            ),
            ("work", Box::new(run(Job::Metadata(sizes.metadata.clone())))),
            ("work", Box::new(run(Job::Chore(tree)))),
            ("data", Box::new(run(Job::Chore(Chore::Insert { rows: sizes.rows })))),
        ];
        for round in 0..self.rounds {
            for (fileset, load) in &loads {
                let mut subjects = [(ONE, trial.one(fileset)), (OWNER, trial.on_owner(fileset)?)];
                if round % 2 == 1 {
                    subjects.reverse();
                }
                for (name, place) in subjects {
                    let figures = self.fresh(self.jobs(), &place.join("load"), load)?;
                    section.note(round, name, &figures);
                }
            }
        }
        Ok(())
    }

    /// Four processes on one node, and one on each node: in one fileset that all share, and in each node's own scratch.
    fn aggregate(&self, trial: &Trial, sections: &mut Vec<Section>) -> Result<()> {
        let owner = trial.owner("work")?;
        let everywhere = |place: &dyn Fn(usize) -> PathBuf| -> Vec<PathBuf> {
            (0..trial.nodes()).map(|node| place(node).join("load")).collect()
        };
        let shared = everywhere(&|node| trial.on_node(node, "work"));
        let made = std::slice::from_ref(&shared[owner]);
        let base = "four processes on the owner's node";
        let section = Section::begin(sections, "Four nodes, one shared fileset", base);
        self.one_and_all(section, base, &shared[owner], made, &shared)?;
        trial.make_scratch()?;
        let native = everywhere(&|node| trial.scratch_of(node));
        let base = "four processes on one node";
        let section = Section::begin(sections, "Four nodes, each in its native scratch", base);
        self.one_and_all(section, base, &native[0], &native, &native)
    }

    /// The calibration mix of four processes in the directory `one`, and with one process in each of `all`, whose
    /// directories and tables are made in `made`.
    fn one_and_all(
        &self,
        section: &mut Section,
        base: &str,
        one: &Path,
        made: &[PathBuf],
        all: &[PathBuf],
    ) -> Result<()> {
        const ALL: &str = "one process on each of four nodes";
        let load = &self.amounts.own.calibration;
        let jobs = self.jobs();
        for round in 0..self.rounds {
            let figures =
                self.fresh(jobs, one, |jobs, at| jobs.calibrate(at, load, Figure::Calibration))?;
            section.note(round, base, &figures);
            for directory in made {
                jobs.run(directory, &Job::Make)?;
                jobs.run(directory, &Job::Table(load.clone()))?;
            }
            settle(self.interrupt, Duration::from_millis(300))?;
            let workers = (0..load.workers).zip(all.iter().cycle());
            let each =
                workers.map(|(number, at)| (at.clone(), Job::Calibration(load.clone(), number)));
            let (seconds, _) = jobs.race_in(each)?;
            let files = load.temp_files_per_worker * u64::from(load.workers);
            let figures = Figures::from([(Figure::Calibration, files as f64 / seconds)]);
            section.note(round, ALL, &figures);
            for directory in made {
                jobs.run(directory, &Job::Remove)?;
            }
        }
        Ok(())
    }
}

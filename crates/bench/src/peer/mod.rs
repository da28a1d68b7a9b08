//! The file system against its peers: the same loads on all of them, round after round.
//!
//! Every subject runs in a [`Cell`] of its own with its data on a fresh disk of the same kind, from the
//! packages of the distribution. Nothing of it is on the machine's own network, process list or mount
//! table, and nothing is left when it ends. A subject that cannot start, or on which a load fails, is
//! in the report with the reason.

mod amount;
mod cell;
mod chore;
mod cost;
mod image;
mod measure;
mod report;
mod setup;
mod subject;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum as _};
use forebay_base::ByteSize;

pub use cell::{Cell, idle};
pub use chore::Chore;
pub use setup::bring_up;
pub use subject::Peer;
pub use tree::archive;

use crate::disk::{check_space, kind_of};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::report::write_section;
use amount::Load;
use measure::{Outcome, Plan, Rounds};
use report::Report;

/// Space that a subject takes at most, with what is under way to the disk; and at the least scale.
const SPACE: ByteSize = ByteSize::gib(8);
const SPACE_LEAST: ByteSize = ByteSize::gib(1);

/// What to compare.
#[derive(Args, Debug)]
pub struct Peers {
    /// Rounds; each figure is the median of as many samples.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Measure only these, separated by commas [default: all; forebay once for each transport].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    peers: Vec<Peer>,
    /// Run only these loads, separated by commas [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    loads: Vec<Load>,
    /// Time that each load takes on each subject, about, in seconds: amounts follow the speed.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = budget)]
    budget: f64,
    /// Multiply the upper limits of all amounts.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::scale)]
    scale: f64,
    /// Calm between two loads once the disk is idle, in milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 300)]
    pause: u64,
    /// Write the tables to a Markdown file, in place of what stands there between their marks.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all samples to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

/// The kernel's switch for FUSE over io_uring, which a daemon of root turns on and leaves on: dropped, it is as
/// it was.
struct UringSwitch(Option<String>);

const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl UringSwitch {
    fn look() -> UringSwitch {
        UringSwitch(std::fs::read_to_string(URING_SWITCH).ok())
    }
}

impl Drop for UringSwitch {
    fn drop(&mut self) {
        let now = std::fs::read_to_string(URING_SWITCH).ok();
        if let (Some(before), true) = (&self.0, now != self.0)
            && let Err(error) = std::fs::write(URING_SWITCH, before)
        {
            eprintln!("forebay-bench: {URING_SWITCH} stays switched on: {error}");
        }
    }
}

fn budget(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .ok_or_else(|| "give a number of seconds from 0.01 to 600".to_owned())
}

impl Peers {
    /// Runs all rounds and reports.
    ///
    /// # Errors
    /// If nothing can be measured; after a signal, once what was measured is reported.
    pub fn run(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("needs root: it makes namespaces, mounts and loop devices, and drops caches");
        }
        let plan = self.plan()?;
        let machine = Machine::look()?;
        let _as_it_was = UringSwitch::look();
        let interrupt = Interrupt::watch()?;
        let scratch = self.ground.directory("fbp.")?;
        let kind = kind_of(scratch.path())?;
        if matches!(kind.as_str(), "tmpfs" | "ramfs" | "overlay") {
            bail!(
                "{} is on {kind}, which is no disk: choose another --scratch",
                self.ground.scratch().display()
            );
        }
        let space = ((SPACE.0 as f64 * self.scale) as u64).max(SPACE_LEAST.0);
        check_space(scratch.path(), ByteSize(space))?;
        let mut archives = BTreeMap::new();
        if plan.loads.contains(&Load::Tree) {
            let limit = Load::Tree.limits(plan.scale).most;
            for files in amount::TREES.into_iter().filter(|files| *files <= limit) {
                interrupt.check()?;
                eprintln!("making a source tree of {files} files");
                archives.insert(files, tree::archive(scratch.path(), files)?);
            }
        }
        let mut outcome = Outcome::default();
        let mut rounds = Rounds {
            plan: &plan,
            scratch: scratch.path(),
            archives: &archives,
            interrupt: &interrupt,
            amounts: BTreeMap::new(),
        };
        let measured = rounds.run(&mut outcome);
        // Also after an error or Ctrl-C: what was measured until then is worth showing.
        let report = Report::new(machine, &kind, &plan, outcome);
        self.write(&report, measured.is_ok())?;
        measured?;
        scratch.close().context("cannot remove the scratch directory")?;
        if report.is_empty() {
            bail!("nothing could be measured");
        }
        Ok(())
    }

    /// Shows the report. A file gets it only if it is complete.
    fn write(&self, report: &Report, complete: bool) -> Result<()> {
        let text = report.markdown();
        println!("{text}");
        if let Some(file) = &self.json {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(file, json).with_context(|| file.display().to_string())?;
        }
        let Some(file) = self.output.as_ref().filter(|_| complete) else { return Ok(()) };
        write_section(file, report::SECTION, &text)
    }

    fn plan(&self) -> Result<Plan> {
        let forebay = self.ground.program()?;
        let peers = match &self.peers[..] {
            [] => Peer::all(setup::transports(&forebay)?),
            chosen => {
                let mut peers = chosen.to_vec();
                peers.sort();
                peers.dedup();
                peers
            }
        };
        let loads = Load::value_variants().iter().copied();
        Ok(Plan {
            command: std::env::args().skip(1).collect::<Vec<String>>().join(" "),
            rounds: self.rounds.into(),
            peers,
            loads: loads
                .filter(|load| self.loads.is_empty() || self.loads.contains(load))
                .collect(),
            budget: Duration::from_secs_f64(self.budget),
            scale: self.scale,
            pause: Duration::from_millis(self.pause),
            forebay,
        })
    }
}

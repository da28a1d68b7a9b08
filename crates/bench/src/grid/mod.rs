//! The grid: how soon a job starts, how many are taken and run, what a known job costs, and the same for
//! Slurm on this machine.
//!
//! Subjects take turns, round after round, each started for its turn and ended after it. Figures are
//! medians of the rounds with the least and the greatest.

mod measure;
mod own;
mod slurm;
mod stand_in;
mod takeover;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::report::aligned;
use crate::statistics::Summary;
use measure::Figure;

/// What to measure of the grid.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay-bench grid
  forebay-bench grid --rounds 1 --jobs 1000 --only latency single
  forebay-bench grid --markdown grid.md")]
pub struct Grid {
    /// Rounds; each figure is the median of as many samples.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Jobs that are submitted one by one, and elements of the array.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    jobs: u32,
    /// The same for Slurm, which takes a process for each job.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slurm_jobs: u32,
    /// Jobs that start one after the other on an idle grid, for the latency.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    starts: u32,
    /// Jobs that are known while commands and memory are measured.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=100_000))]
    known: u32,
    /// Measure only these.
    #[arg(long, value_name = "NAME", num_args = 1.., value_enum)]
    only: Vec<Load>,
    /// Write the table to a file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

/// One part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// From submitting to the start on an idle grid.
    Latency,
    /// Many single jobs through one client.
    Single,
    /// One array.
    Array,
    /// Memory and commands with many known jobs.
    Known,
    /// Commands with many jobs that have run, and all their attempts in the journal.
    Ended,
    /// On a cluster of two nodes with many known jobs: how soon a second controller has taken over (as root).
    Takeover,
    /// Starting jobs at intervals, as LSF does.
    Interval,
    /// The same with Slurm.
    Slurm,
}

impl Grid {
    /// Measures and prints a table.
    ///
    /// # Errors
    /// If something cannot be started or a job is lost; Slurm that does not start is a line of the table.
    pub fn run(&self) -> Result<()> {
        let program = self.ground.program()?;
        let machine = Machine::look()?;
        let interrupt = Interrupt::watch()?;
        let scratch = self.ground.directory("fbg-")?;
        let mut table = Table::default();
        let mut measured = Ok(());
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            measured = self.round(&program, scratch.path(), &interrupt, &mut table);
            if measured.is_err() {
                break;
            }
        }
        let text = table.markdown(&machine);
        print!("{text}");
        if let Some(file) = &self.markdown {
            std::fs::write(file, text).with_context(|| file.display().to_string())?;
        }
        measured?;
        scratch.close().context("cannot remove the scratch directory")
    }

    fn wants(&self, load: Load) -> bool {
        self.only.is_empty() || self.only.contains(&load)
    }

    fn round(
        &self,
        program: &Path,
        scratch: &Path,
        interrupt: &Interrupt,
        table: &mut Table,
    ) -> Result<()> {
        let measured = |load, measure: &mut dyn FnMut() -> Result<Vec<Figure>>| {
            interrupt.check()?;
            if self.wants(load) { measure() } else { Ok(Vec::new()) }
        };
        let start = |settings: &str| own::Running::start(program, scratch, settings);
        table.add(measured(Load::Latency, &mut || measure::latency(&start("")?, self.starts))?);
        table.add(measured(Load::Single, &mut || measure::single(&start("")?, self.jobs))?);
        table.add(measured(Load::Array, &mut || measure::array(&start("")?, self.jobs))?);
        table.add(measured(Load::Known, &mut || measure::known(&start("")?, self.known))?);
        table.add(measured(Load::Ended, &mut || measure::ended(&start("")?, self.known))?);
        table.add(measured(Load::Takeover, &mut || {
            takeover::takeover(program, scratch, self.known)
        })?);
        table.add(measured(Load::Interval, &mut || {
            measure::interval(&start(measure::INTERVAL)?, self.starts.min(10))
        })?);
        table.add(measured(Load::Slurm, &mut || {
            Ok(match slurm::Slurm::start(scratch) {
                Ok(slurm) => slurm.measure(self.slurm_jobs, self.starts.min(20))?,
                Err(error) => vec![Figure::absent("Slurm", &format!("{error:#}"))],
            })
        })?);
        Ok(())
    }
}

/// Samples by figure, in the order in which they came first.
#[derive(Default)]
struct Table {
    rows: Vec<(String, Row)>,
}

enum Row {
    Samples { digits: usize, samples: Vec<f64> },
    Absent(String),
}

impl Table {
    fn add(&mut self, figures: Vec<Figure>) {
        for figure in figures {
            let known = self.rows.iter_mut().find(|(name, _)| *name == figure.name);
            match (figure.value, known) {
                (Ok(value), Some((_, Row::Samples { samples, .. }))) => samples.push(value),
                (Ok(value), _) => {
                    let row = Row::Samples { digits: figure.digits, samples: vec![value] };
                    self.rows.push((figure.name, row));
                }
                (Err(_), Some(_)) => {}
                (Err(reason), None) => self.rows.push((figure.name, Row::Absent(reason))),
            }
        }
    }

    fn markdown(&self, machine: &Machine) -> String {
        let mut lines = vec![vec!["Figure".to_owned(), "median (least - greatest)".to_owned()]];
        for (name, row) in &self.rows {
            let value = match row {
                Row::Absent(reason) => reason.clone(),
                Row::Samples { digits, samples } => {
                    let Summary { median, min, max } =
                        Summary::of(samples).expect("a row has a sample");
                    format!("{median:.digits$} ({min:.digits$} - {max:.digits$})")
                }
            };
            lines.push(vec![name.clone(), value]);
        }
        format!("{}\n\n{}", machine.describe(), aligned(&lines))
    }
}

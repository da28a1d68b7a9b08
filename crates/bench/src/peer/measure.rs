//! Rounds: every load on every subject, round after round.
//!
//! A subject is brought up anew in each round, measured with all loads, and taken down before the next
//! one: the daemons of one subject at a time run, and every file system is fresh.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_workload::load::{Calibration, Sequential, Storm};
use serde::Serialize;

use super::amount::{Load, amount, next_pilot, seconds_per_unit};
use super::cell::Cell;
use super::chore::Chore;
use super::cost::{Cost, Meter};
use super::setup::{Ready, bring_up};
use super::subject::{Peer, order};
use crate::figure::{Figure, Figures};
use crate::interrupt::Interrupt;
use crate::load::{Job, Jobs};
use crate::machine::settle;

/// The shared table of the calibration mix.
const TABLE: ByteSize = ByteSize::mib(64);
/// What a process of the calibration mix reads of the table for each temporary file: 64 MiB for 2,500.
const EXTRACT_BYTES_PER_FILE: u64 = (64 << 20) / 2_500;
/// Temporary files for each output file, as in the mix of `forebay-bench`.
const FILES_PER_OUTPUT: u64 = 250;
/// Scale of the workloads of `forebay bench`.
const BENCH_SCALE: &str = "0.0001";
/// A subject that failed to start so often is not tried again.
const STARTS_FAILED_MAX: usize = 2;

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// The arguments that ask for it.
    pub command: String,
    /// How often.
    pub rounds: usize,
    /// On what.
    pub peers: Vec<Peer>,
    /// What.
    pub loads: Vec<Load>,
    /// The time that an amount is to take on each subject.
    pub budget: Duration,
    /// What the upper limits of amounts are multiplied by.
    pub scale: f64,
    /// Calm between two loads, once the disk is idle.
    pub pause: Duration,
    /// The `forebay` command.
    pub forebay: PathBuf,
}

/// One load on one subject in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Which round, from 0.
    pub round: usize,
    /// On what.
    pub peer: Peer,
    /// What.
    pub load: Load,
    /// How much, of each process.
    pub amount: u64,
    /// What came out.
    pub figures: Figures,
    /// What it cost.
    pub cost: Cost,
}

/// Something that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    /// Which round, from 0.
    pub round: usize,
    /// On what.
    pub peer: Peer,
    /// What; the subject itself if none.
    pub load: Option<Load>,
    /// Why.
    pub reason: String,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// What runs, by subject.
    pub versions: BTreeMap<Peer, String>,
    /// Seconds from nothing to ready, by subject, one for each round.
    pub start_seconds: BTreeMap<Peer, Vec<f64>>,
    /// What was measured.
    pub samples: Vec<Sample>,
    /// What was not.
    pub refusals: Vec<Refusal>,
}

/// A benchmark under way.
pub struct Rounds<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Where everything is made.
    pub scratch: &'a Path,
    /// Archives of source trees by their number of files.
    pub archives: &'a BTreeMap<u64, PathBuf>,
    /// Stops it.
    pub interrupt: &'a Interrupt,
    /// How much of each load each subject does, once that is known.
    pub amounts: BTreeMap<(Peer, Load), u64>,
}

impl Rounds<'_> {
    /// Runs all rounds; `outcome` holds what was measured also after an error.
    ///
    /// # Errors
    /// If what a subject leaves cannot be removed; after a signal.
    pub fn run(&mut self, outcome: &mut Outcome) -> Result<()> {
        for round in 0..self.plan.rounds {
            for peer in order(&self.plan.peers, round) {
                let failed = outcome.refusals.iter();
                let failed =
                    failed.filter(|refusal| refusal.peer == peer && refusal.load.is_none());
                if failed.count() >= STARTS_FAILED_MAX {
                    continue;
                }
                self.visit(round, peer, outcome)?;
            }
        }
        Ok(())
    }

    /// Brings a subject up, measures it and takes it down.
    fn visit(&mut self, round: usize, peer: Peer, outcome: &mut Outcome) -> Result<()> {
        eprintln!("round {}/{}: {}", round + 1, self.plan.rounds, peer.label());
        // The name is short: paths of sockets have 107 bytes at most.
        let folder = self.scratch.join(format!("s{}", peer as u8));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let cell = Cell::open(self.interrupt)?;
        let start = SystemClock.instant();
        let up = bring_up(peer, &cell, &cell, &folder, &self.plan.forebay, self.interrupt);
        let (image, ready) = match up {
            Ok((image, ready)) => (Some(image), ready),
            Err(error) => (None, Err(error)),
        };
        let measured = match ready {
            Ok(ready) => {
                let seconds = (SystemClock.instant() - start).as_secs_f64();
                eprintln!("  ready after {seconds:.1} s: {}", ready.version);
                outcome.start_seconds.entry(peer).or_default().push(seconds);
                outcome.versions.insert(peer, ready.version.clone());
                self.measure(round, peer, &cell, &ready, outcome)
            }
            Err(error) => self.refuse(round, peer, None, &error, outcome),
        };
        let ended = cell.end();
        if let Some(image) = image {
            image.remove()?;
        }
        measured?;
        ended?;
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }

    /// Notes that something cannot be measured, unless a signal is the reason.
    fn refuse(
        &self,
        round: usize,
        peer: Peer,
        load: Option<Load>,
        error: &anyhow::Error,
        outcome: &mut Outcome,
    ) -> Result<()> {
        self.interrupt.check()?;
        let reason = format!("{error:#}");
        eprintln!("  {}: {reason}", load.map_or("not measured", Load::label));
        outcome.refusals.push(Refusal { round, peer, load, reason });
        Ok(())
    }

    /// Measures all loads on a subject that is up.
    fn measure(
        &mut self,
        round: usize,
        peer: Peer,
        cell: &Cell,
        ready: &Ready,
        outcome: &mut Outcome,
    ) -> Result<()> {
        for load in self.plan.loads.clone() {
            let place = if load == Load::Sqlite { &ready.durable } else { &ready.work };
            let place = Place { cell, directory: place.join("load"), peer, load };
            match self.measure_load(&place) {
                Ok((amount, figures, cost)) => {
                    note(&place, amount, &figures, &cost);
                    let sample = Sample { round, peer, load, amount, figures, cost };
                    outcome.samples.push(sample);
                }
                Err(error) => {
                    self.refuse(round, peer, Some(load), &error, outcome)?;
                    // What a load that failed left is not for the next.
                    let jobs = Jobs { interrupt: self.interrupt, within: Some(cell) };
                    let _ = jobs.run(&place.directory, &Job::Remove);
                }
            }
        }
        Ok(())
    }

    fn measure_load(&mut self, place: &Place<'_>) -> Result<(u64, Figures, Cost)> {
        let key = (place.peer, place.load);
        let amount = match self.amounts.get(&key) {
            Some(amount) => *amount,
            None => {
                let amount = self.pilot(place)?;
                self.amounts.insert(key, amount);
                amount
            }
        };
        let (figures, cost) = self.perform(place, amount)?;
        Ok((amount, figures, cost))
    }

    /// Finds the amount that takes the budget.
    fn pilot(&self, place: &Place<'_>) -> Result<u64> {
        let load = place.load;
        let (limits, budget) = (load.limits(self.plan.scale), self.plan.budget.as_secs_f64());
        let mut done = limits.least;
        if limits.most == done {
            return Ok(done);
        }
        loop {
            let (figures, _) = self.perform(place, done).context("pilot")?;
            let per_unit = seconds_per_unit(&figures) * load.processes() as f64;
            let next = next_pilot(done, per_unit, budget, limits);
            match next.map(|next| load.available(next)) {
                Some(next) if next > done => done = next,
                _ => return Ok(load.available(amount(per_unit, budget, limits))),
            }
        }
    }

    /// Does so much of a load in a fresh directory.
    fn perform(&self, place: &Place<'_>, amount: u64) -> Result<(Figures, Cost)> {
        let jobs = Jobs { interrupt: self.interrupt, within: Some(place.cell) };
        jobs.run(&place.directory, &Job::Make)?;
        settle(self.interrupt, self.plan.pause)?;
        let meter = Meter::begin(place.cell)?;
        let figures = self.work(jobs, place, amount)?;
        let cost = meter.end(place.cell)?;
        jobs.run(&place.directory, &Job::Remove)?;
        Ok((figures, cost))
    }

    fn work(&self, jobs: Jobs<'_>, place: &Place<'_>, amount: u64) -> Result<Figures> {
        let (directory, load) = (place.directory.as_path(), place.load);
        match load {
            Load::Sequential => {
                let total_bytes = ByteSize::mib(amount);
                let load = Sequential { total_bytes, ..Sequential::default() };
                jobs.run(directory, &Job::Sequential(load))
            }
            Load::StormOne => storm(jobs, directory, Figure::StormOne, amount, load.processes()),
            Load::StormFour => storm(jobs, directory, Figure::StormFour, amount, load.processes()),
            Load::CalibrationFour => {
                jobs.calibrate(directory, &calibration(load, amount), Figure::Calibration)
            }
            Load::CalibrationSixteen => {
                let figures =
                    jobs.calibrate(directory, &calibration(load, amount), Figure::Calibration)?;
                Ok(figures.into_values().map(|rate| (Figure::CalibrationSixteen, rate)).collect())
            }
            Load::Metadata => {
                let load = forebay_workload::load::Metadata { files: amount };
                jobs.run(directory, &Job::Metadata(load))
            }
            Load::Tree => {
                let archive = self.archives.get(&amount).context("no tree of that size")?.clone();
                jobs.run(directory, &Job::Chore(Chore::Tree { archive, files: amount }))
            }
            Load::Sqlite => jobs.run(directory, &Job::Chore(Chore::Insert { rows: amount })),
            Load::BenchCalibration => self.bench(jobs, directory, Figure::BenchCalibration),
            Load::BenchMixed => self.bench(jobs, directory, Figure::BenchMixed),
        }
    }

    fn bench(&self, jobs: Jobs<'_>, directory: &Path, figure: Figure) -> Result<Figures> {
        let workload = if figure == Figure::BenchMixed { "mixed" } else { "calibration" };
        let chore = Chore::Bench {
            program: self.plan.forebay.clone(),
            workload: workload.to_owned(),
            scale: BENCH_SCALE.to_owned(),
            result: self.scratch.join("result"),
            figure,
        };
        jobs.run(directory, &Job::Chore(chore))
    }
}

/// A load on a subject.
struct Place<'a> {
    cell: &'a Cell,
    directory: PathBuf,
    peer: Peer,
    load: Load,
}

fn storm(
    jobs: Jobs<'_>,
    directory: &Path,
    figure: Figure,
    files: u64,
    processes: u64,
) -> Result<Figures> {
    let load = Storm { workers: 1, files_per_worker: files, ..Storm::default() };
    let storms = (0..processes).map(|_| Job::Storm(figure, load.clone()));
    let (seconds, each) = jobs.race(directory, storms)?;
    let mut figures = Figures::from([(figure, (files * processes) as f64 / seconds)]);
    // Of the process that fared worst.
    let slow = each.iter().filter_map(|figures| figures.get(&Figure::SlowCreate).copied());
    figures.extend(slow.reduce(f64::max).map(|slow| (Figure::SlowCreate, slow)));
    Ok(figures)
}

/// The mix with so many temporary files of each process. What is read and written beside them keeps
/// its proportion, so that the rate does not depend on the amount.
fn calibration(load: Load, files: u64) -> Calibration {
    Calibration {
        workers: load.processes() as u32,
        table_bytes: TABLE,
        extract_bytes: ByteSize(files * EXTRACT_BYTES_PER_FILE),
        temp_files_per_worker: files,
        outputs_per_worker: files.div_ceil(FILES_PER_OUTPUT),
        ..Calibration::default()
    }
}

fn note(place: &Place<'_>, amount: u64, figures: &Figures, cost: &Cost) {
    let figures: Vec<String> =
        figures.iter().map(|(figure, value)| format!("{} {value:.0}", figure.label())).collect();
    eprintln!(
        "  {} ({amount} {}): {}; {:.1} s, CPU load {:.1} s, daemons {:.1} s, rest {:.1} s",
        place.load.label(),
        place.load.unit(),
        figures.join("; "),
        cost.wall_seconds,
        cost.load_user_seconds + cost.load_system_seconds,
        cost.daemon_user_seconds + cost.daemon_system_seconds,
        cost.rest_seconds,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calibration_mix_keeps_its_proportions() {
        let (small, large) =
            (calibration(Load::CalibrationFour, 250), calibration(Load::CalibrationFour, 2_500));
        assert_eq!(large.extract_bytes.0, 10 * small.extract_bytes.0);
        assert_eq!((small.outputs_per_worker, large.outputs_per_worker), (1, 10));
        assert_eq!(calibration(Load::CalibrationSixteen, 1).workers, 16);
    }
}

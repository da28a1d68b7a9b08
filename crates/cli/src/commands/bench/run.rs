//! `forebay bench run`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_process::Accounting;
use forebay_study::record::{Record, State};
use forebay_study::run::{
    self as study, Areas, Caches, Launcher, Leftovers, Observer as _, Order, Slots,
};
use forebay_study::{Error, fullstimer};

use super::grid::GridArguments;
use super::mounts::ThroughMounts;
use super::result::{self, Shown};
use super::watch::{INTERRUPTED, Watch};
use super::workload::WorkloadArguments;
use crate::commands::step::install_engines;

/// Exit code if jobs failed.
const FAILED: u8 = 1;

/// Run a workload on a storage system and write a report.
///
/// Creates the workload's inputs below the path, runs its jobs as processes or, with --grid, as grid jobs,
/// records every job and every second, removes everything it created, and writes a report. Ctrl-C ends the
/// jobs, removes their files and reports what ran until then. A run that is killed (kill -9) leaves its
/// directories behind: the next run names them, and `forebay bench clean` removes them. Exit codes: 0 all jobs succeeded, 1 some
/// failed, 2 refused, 130 interrupted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench run mixed --on /mnt/forebay/data --work /mnt/forebay/work --util /mnt/forebay/util
  forebay bench run calibration --on /mnt/nfs --scale 0.001 --concurrent 4
  forebay bench run probe --on /mnt/forebay/data --set block=4MiB --concurrent 8
  forebay bench run sessions --on /mnt/forebay/data --sessions 80 --nodes 4 --drop-caches
  forebay bench run mixed --on /mnt/xfs --against /mnt/forebay/data --rounds 5
  forebay bench run mixed --on /mnt/forebay/data --grid /srv/forebay -q night
  forebay bench run calibration --on /mnt/nfs --fullstimer       a log per job in the style of SAS
  forebay bench run --file mine.toml --on /mnt/forebay/data --out results/mine")]
pub struct Run {
    #[command(flatten)]
    workload: WorkloadArguments,
    /// Directory on the storage to measure.
    #[arg(long, value_name = "PATH")]
    on: PathBuf,
    /// Directory for temporary data sets [default: that of --on].
    #[arg(long, value_name = "PATH")]
    work: Option<PathBuf>,
    /// Directory for utility files of sorts and joins [default: that of --work].
    #[arg(long, value_name = "PATH")]
    util: Option<PathBuf>,
    /// Several mount points of the storage on this machine, separated by commas; --on must be in the first. Jobs of logical node
    /// K use the K-th. For trying out a cluster on one machine.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', conflicts_with_all = ["grid", "against"])]
    mounts: Vec<PathBuf>,
    #[command(flatten)]
    grid: GridArguments,
    /// Directory on another storage to compare with, in alternating runs; may be repeated.
    #[arg(long, value_name = "PATH")]
    against: Vec<PathBuf>,
    /// Number of runs on each storage.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Drop the page cache before each run (needs root). Otherwise memory may serve the reads.
    #[arg(long)]
    drop_caches: bool,
    /// Keep the files on the storage instead of removing them.
    #[arg(long)]
    keep: bool,
    /// Folder for the result [default: bench-WORKLOAD-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write a log for each job in the style of FULLSTIMER, per step, into the folder `fullstimer` of the result.
    #[arg(long)]
    fullstimer: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Print only the verdict and the path of the report, without the tables.
    #[arg(long, conflicts_with = "json")]
    brief: bool,
}

impl Run {
    pub fn run(self: Box<Self>) -> Result<ExitCode> {
        // SAFETY: ignoring a signal is always sound. A reader that is gone (`... | head`) must not end the run
        // before it has removed its files.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (mut mix, mut plan) = self.workload.plan(None)?;
        let target = self.grid.target()?;
        if let Some(target) = &target {
            let concurrent = self.grid.concurrent(target, &plan);
            (mix, plan) = self.workload.plan(Some(concurrent))?;
        }
        let subjects = self.subjects()?;
        let caches = if self.drop_caches { Caches::Emptied } else { Caches::AsTheyAre };
        if self.drop_caches && !rustix::process::geteuid().is_root() {
            bail!("--drop-caches needs root: the kernel lets only root drop the page cache");
        }
        Areas::check(&subjects, &plan.space()).map_err(|error| match error {
            Error::Space { .. } => anyhow::Error::from(error).context(format!(
                "{} at scale {} does not fit; try a smaller --scale",
                mix.name, plan.scale
            )),
            other => other.into(),
        })?;
        super::clean::mention(&subjects);
        let inputs = plan.inputs.iter().flat_map(|input| &input.program.steps);
        let jobs = plan.stages.iter().flat_map(|stage| &stage.jobs);
        install_engines(inputs.chain(jobs.flat_map(|job| &job.program.steps)))?;
        let (out, made) = result::folder(self.out.as_deref(), &format!("bench-{}", mix.name))?;
        let clock: Arc<dyn forebay_base::Clock> = Arc::new(SystemClock);
        let mut launcher: Box<dyn Launcher> = match target {
            Some(target) => Box::new(self.grid.launcher(target, &mix.name, Arc::clone(&clock))?),
            None => {
                let accounting = Accounting::find(Arc::clone(&clock));
                let slots = Slots::new(Arc::clone(&clock), accounting);
                match &*self.mounts {
                    [] => Box::new(slots),
                    mounts => Box::new(ThroughMounts::new(slots, mounts, &subjects)?),
                }
            }
        };
        let order = Order {
            mix: &mix,
            plan: &plan,
            subjects: &subjects,
            rounds: self.rounds,
            caches,
            leftovers: if self.keep { Leftovers::Keep } else { Leftovers::Remove },
            out: &out,
            program: &std::env::current_exe()?,
            command: &std::env::args().collect::<Vec<String>>(),
            version: env!("CARGO_PKG_VERSION"),
            clock: Arc::clone(&clock),
        };
        let mut watch = Watch::start()?;
        let ran = study::run(&order, &mut *launcher, &mut watch);
        watch.end();
        let record = match ran {
            Ok(record) => record,
            Err(error) => {
                if made {
                    let _ = std::fs::remove_dir(&out);
                }
                return Err(error.into());
            }
        };
        let report = result::write(&record, &out)?;
        if self.fullstimer {
            fullstimer::write(&record, &out)?;
        }
        let shown = match (self.json, self.brief) {
            (true, _) => Shown::Json,
            (false, true) => Shown::Verdict,
            (false, false) => Shown::Tables,
        };
        result::show(&record, &report, shown)?;
        Ok(exit_code(&record, &watch))
    }

    fn subjects(&self) -> Result<Vec<Areas>> {
        let work = self.work.as_ref().unwrap_or(&self.on);
        let util = self.util.as_ref().unwrap_or(work);
        let first = Areas {
            label: label(&self.on),
            data: absolute(&self.on)?,
            work: absolute(work)?,
            util: absolute(util)?,
        };
        let mut subjects = vec![first];
        for path in &self.against {
            let all = absolute(path)?;
            if subjects.iter().any(|subject| subject.data == all) {
                bail!("--against {}: this storage is given twice", path.display());
            }
            let label = label(path);
            subjects.push(Areas { label, data: all.clone(), work: all.clone(), util: all });
        }
        Ok(subjects)
    }
}

fn label(path: &Path) -> String {
    path.display().to_string()
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("cannot use {} as a storage", path.display()))
}

fn exit_code(record: &Record, watch: &Watch) -> ExitCode {
    match (&record.state, watch.interrupted()) {
        (_, Some(_)) => ExitCode::from(INTERRUPTED),
        (State::Complete, None) => ExitCode::SUCCESS,
        (State::Partial { .. }, None) => ExitCode::from(FAILED),
    }
}

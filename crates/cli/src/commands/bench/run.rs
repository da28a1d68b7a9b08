//! `forebay bench run`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_process::Accounting;
use forebay_study::record::{Record, State};
use forebay_study::run::{
    self as study, Areas, Caches, Leftovers, Observer as _, Order, Scratch, Slots,
};
use forebay_study::{Error, fullstimer};

use super::grid::{GridArguments, Target};
use super::hosts::{self, Places};
use super::launcher::{GridLauncher, Sight};
use super::mounts::{Others, ThroughMounts, resolved};
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
  forebay bench run mixed --on /mnt/forebay/data --concurrent cores     a job for each physical core
  forebay bench run sessions --on /mnt/forebay/data --sessions 80 --nodes 4 --drop-caches
  forebay bench run mixed --on /mnt/xfs --against /mnt/forebay/data --rounds 5
  forebay bench run mixed --on /mnt/forebay/data --grid /srv/forebay -q night
  forebay bench run mixed --on /mnt/fb/data --grid --nodes 4 --work-of-jobs --out /mnt/fb/data/study
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
    /// Put temporary data sets and utility files of each job into its work area of the grid (WORK and UTIL) instead of --work and
    /// --util: on a cluster, on the own disk of each host.
    #[arg(long, requires = "grid", conflicts_with_all = ["work", "util"])]
    work_of_jobs: bool,
    /// Several mount points of the storage, separated by commas; --on must be in the first. Jobs of logical node K use the K-th: with
    /// --grid that of the K-th host by name, where hosts mount it in different places; otherwise all are on this machine.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', conflicts_with = "against")]
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
        let scratch = if self.work_of_jobs { Scratch::OfJobs } else { Scratch::OfSubjects };
        Areas::check(&subjects, &scratch.needed(&plan.space())).map_err(|error| match error {
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
        let program = std::env::current_exe()?;
        let mut watch = Watch::start()?;
        let order = Order {
            mix: &mix,
            plan: &plan,
            subjects: &subjects,
            rounds: self.rounds,
            caches,
            scratch,
            leftovers: if self.keep { Leftovers::Keep } else { Leftovers::Remove },
            out: &out,
            program: &program,
            command: &std::env::args().collect::<Vec<String>>(),
            version: env!("CARGO_PKG_VERSION"),
            clock: Arc::clone(&clock),
            hosts: None,
        };
        let ran = match target {
            Some(target) => self.on_grid(target, order, &mut watch),
            None => self.here(&order, &mut watch),
        };
        watch.end();
        let record = match ran {
            Ok(record) => record,
            Err(error) => {
                if made {
                    let _ = std::fs::remove_dir(&out);
                }
                if watch.interrupted().is_some() {
                    note!("forebay: {error:#}");
                    return Ok(ExitCode::from(INTERRUPTED));
                }
                return Err(error);
            }
        };
        self.show(&record, &out)?;
        Ok(exit_code(&record, &watch))
    }

    /// Writes what is made of the record, and prints what was asked.
    fn show(&self, record: &Record, out: &Path) -> Result<()> {
        let report = result::write(record, out)?;
        if self.fullstimer {
            fullstimer::write(record, out)?;
        }
        let shown = match (self.json, self.brief) {
            (true, _) => Shown::Json,
            (false, true) => Shown::Verdict,
            (false, false) => Shown::Tables,
        };
        result::show(record, &report, shown)
    }

    /// Runs the jobs as processes of this machine.
    fn here(&self, order: &Order<'_>, watch: &mut Watch) -> Result<Record> {
        let accounting = Accounting::find(Arc::clone(&order.clock));
        let slots = Slots::new(Arc::clone(&order.clock), accounting);
        Ok(match &*self.mounts {
            [] => study::run(order, &mut { slots }, watch)?,
            mounts => {
                let mounts = resolved(mounts, Others::Here)?;
                let mut launcher = ThroughMounts::new(slots, mounts, order.subjects)?;
                study::run(order, &mut launcher, watch)?
            }
        })
    }

    /// Runs the jobs on the grid; on that of a cluster with a watcher on each host.
    fn on_grid(&self, target: Target, order: Order<'_>, watch: &mut Watch) -> Result<Record> {
        let clock = &order.clock;
        let on_hosts = target.sight() == Sight::Hosts;
        let mut launcher = self.grid.launcher(target, &order.mix.name, Arc::clone(clock))?;
        if self.mounts.len() > 1 && self.mounts.len() != launcher.hosts().len() {
            bail!(
                "--mounts names {} mount points for {} hosts of the grid ({}); name one for each, in this order",
                self.mounts.len(),
                launcher.hosts().len(),
                launcher.hosts().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        let others = if on_hosts { Others::Elsewhere } else { Others::Here };
        let mounts = resolved(&self.mounts, others)?;
        if !on_hosts {
            return run_through(&mounts, &order, &mut launcher, watch);
        }
        let places = Places {
            subjects: order.subjects,
            scratch: order.scratch,
            mounts: &mounts,
            out: order.out,
            program: order.program,
        };
        let Some(hosts) = hosts::start(&places, &mut launcher, clock, watch)? else {
            bail!("interrupted before all hosts had answered");
        };
        let order = Order { hosts: Some(&hosts), ..order };
        let ran = run_through(&mounts, &order, &mut launcher, watch);
        hosts::end(hosts.into_inner(), &mut launcher);
        ran
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

/// Makes the study, with the jobs of each node at its mount if there are several.
fn run_through(
    mounts: &[PathBuf],
    order: &Order<'_>,
    launcher: &mut GridLauncher,
    watch: &mut Watch,
) -> Result<Record> {
    Ok(match mounts {
        [] => study::run(order, launcher, watch)?,
        mounts => {
            let mut launcher = ThroughMounts::new(launcher, mounts.to_vec(), order.subjects)?;
            study::run(order, &mut launcher, watch)?
        }
    })
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

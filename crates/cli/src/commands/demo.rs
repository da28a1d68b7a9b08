//! `forebay demo`: the whole way of a file system and a grid, with an analytics program on real data and a
//! small workload of many jobs at once; with `--cluster`, four nodes of which one is killed.

mod cluster;
mod trial;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::output::put;
use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_study::record::Record;
use forebay_workload::flights;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Slots of the grid: jobs at once, as the published study has them.
const SLOTS: &str = "20";

/// Demonstrate Forebay: create a file system and a grid, run analytics programs, check the file system.
///
/// Creates a file system in a temporary folder, mounts it and copies the 2013 New York flights to it. One
/// program imports, repeats, sorts, summarises, regresses and exports them, with inputs and results in data,
/// temporary data sets in work and sort files in util. The demo prints the time and I/O of each step and
/// the results. Then it starts a grid on the file system, submits the mixed workload of `forebay bench` at a small
/// scale (77 jobs, 20 at a time) and writes the report. At the end it stops the grid, unmounts and checks the
/// file system, and removes everything except the report.
///
/// With --cluster (as root, with etcd installed) it creates a cluster of four nodes on this machine instead, each in its own
/// network, runs the calibration workload on all of them, kills one node halfway through, reports the effects, mounts the node
/// again, and removes everything except the report.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay demo                                 about 1 GiB of rows
  forebay demo --rows-times 2 --scale 0.0001   a quick run
  forebay demo --keep                          leave the file system mounted, to look around
  forebay demo --cluster                       four nodes on this machine, one of which is killed")]
pub struct Demo {
    /// Create a cluster of four nodes on this machine, run a workload on all of them and kill one node.
    #[arg(long, conflicts_with_all = ["rows_times", "csv", "keep"])]
    cluster: bool,
    /// How many times to repeat the 336,776 rows [default: enough for about 1 GiB].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rows_times: Option<u32>,
    /// Folder for the report of the mixed workload; an earlier report in it is replaced.
    #[arg(long, value_name = "DIR", default_value = "forebay-demo-report")]
    report: PathBuf,
    /// Scale of the mixed workload; 1 is the size of the published study, 0 skips the workload.
    #[arg(long, value_name = "X", default_value_t = 0.001)]
    scale: f64,
    /// Leave the file system mounted at the end.
    #[arg(long)]
    keep: bool,
    /// New folder in which to create the file system [default: a temporary one].
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
    /// CSV file of the flights [default: FOREBAY_FLIGHTS_CSV, or the copy in .cache that `make demo` downloads].
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

impl Demo {
    pub fn run(self) -> Result<ExitCode> {
        if self.cluster {
            return self.run_cluster();
        }
        let csv = match &self.csv {
            Some(csv) => csv.clone(),
            None => flights::find_csv()?,
        };
        let stage = Stage::make(self.folder.as_deref())?;
        stage.end_at_signal()?;
        let ran = self.play(&stage, &csv);
        if self.keep && ran.is_ok() {
            outln!(
                "\nkept: mounted at {}; look at it with\n  forebay status {root}\n  \
                 forebay jobs --all --grid {root}\nand end it with\n  \
                 forebay down {root} && rm -r {}",
                stage.mountpoint().display(),
                stage.folder.display(),
                root = stage.root().display()
            );
            return Ok(ExitCode::SUCCESS);
        }
        let cleared = stage.clear();
        ran?;
        cleared?;
        outln!("done: unmounted, checked and removed");
        Ok(ExitCode::SUCCESS)
    }

    fn run_cluster(&self) -> Result<ExitCode> {
        ensure!(self.scale > 0.0, "--scale 0 leaves nothing to do for --cluster");
        self.replace_report()?;
        let folder = make_folder(self.folder.as_deref())?;
        cluster::ClusterDemo { report: &self.report, scale: self.scale }.run(folder)?;
        outln!("done: unmounted, stopped and removed");
        Ok(ExitCode::SUCCESS)
    }

    fn play(&self, stage: &Stage, csv: &Path) -> Result<()> {
        say("create a file system", &stage.root())?;
        stage.forebay(&["mkfs".as_ref(), stage.root().as_os_str()])?;
        say("mount it, and start a grid on it", &stage.mountpoint())?;
        stage.forebay(&[
            "up".as_ref(),
            stage.root().as_os_str(),
            "--mount".as_ref(),
            stage.mountpoint().as_os_str(),
            "--slots".as_ref(),
            SLOTS.as_ref(),
        ])?;
        let [data, work, util] = ["data", "work", "util"].map(|name| stage.mountpoint().join(name));
        let name = csv.file_name().context("the flights file has no name")?;
        let input = data.join(name);
        say("copy the flights to it", &input)?;
        std::fs::copy(csv, &input).with_context(|| format!("cannot copy {}", csv.display()))?;
        say("run the program", &data)?;
        let mut config = flights::Config::new(input, data, work, util);
        config.rows_times = self.rows_times;
        let clock = SystemClock;
        let started = clock.instant();
        let mut printed = Ok(());
        let report = flights::run(&config, &clock, &mut |line| {
            if printed.is_ok() {
                printed = put(format!("   {line}\n").as_bytes());
            }
        })?;
        printed?;
        let took = clock.instant() - started;
        let mut out = b"\n".to_vec();
        report.print(&mut out)?;
        writeln!(out, "\nthe program took {:.1} s; results in data:", took.as_secs_f64())?;
        for path in &report.outputs {
            writeln!(out, "   {}", path.display())?;
        }
        writeln!(out)?;
        put(&out)?;
        self.run_mixed(stage)?;
        stage.forebay(&["status".as_ref(), stage.root().as_os_str()])
    }

    /// Runs the mixed workload as jobs of the grid, with its report outside of the file system.
    fn run_mixed(&self, stage: &Stage) -> Result<()> {
        if self.scale == 0.0 {
            return Ok(());
        }
        self.replace_report()?;
        let [data, work, util] = ["data", "work", "util"].map(|name| stage.mountpoint().join(name));
        say("run the mixed workload, 77 jobs", &data)?;
        let scale = self.scale.to_string();
        let root = stage.root();
        stage.forebay(&[
            "bench".as_ref(),
            "run".as_ref(),
            "mixed".as_ref(),
            "--on".as_ref(),
            data.as_os_str(),
            "--work".as_ref(),
            work.as_os_str(),
            "--util".as_ref(),
            util.as_os_str(),
            "--scale".as_ref(),
            scale.as_ref(),
            "--out".as_ref(),
            self.report.as_os_str(),
            "--brief".as_ref(),
            "--grid".as_ref(),
            root.as_os_str(),
        ])?;
        say("what the grid recorded", &root)?;
        stage.forebay(&["usage".as_ref(), "--grid".as_ref(), root.as_os_str()])?;
        outln!("");
        Ok(())
    }

    /// Removes an earlier report, and nothing else that may be in its place.
    fn replace_report(&self) -> Result<()> {
        if self.report.join(Record::FILE).is_file() {
            std::fs::remove_dir_all(&self.report)
                .with_context(|| format!("cannot replace {}", self.report.display()))?;
        }
        Ok(())
    }
}

/// Makes the folder in which the demonstration takes place.
fn make_folder(folder: Option<&Path>) -> Result<PathBuf> {
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => std::env::temp_dir().join(format!("forebay-demo-{}", std::process::id())),
    };
    std::fs::create_dir(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

fn say(what: &str, place: &Path) -> Result<()> {
    outln!("== {what}: {}", place.display());
    Ok(())
}

/// The folder in which the demo plays.
struct Stage {
    folder: PathBuf,
}

impl Stage {
    fn make(folder: Option<&Path>) -> Result<Stage> {
        let stage = Stage { folder: make_folder(folder)? };
        std::fs::create_dir(stage.root())?;
        std::fs::create_dir(stage.mountpoint())?;
        Ok(stage)
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn mountpoint(&self) -> PathBuf {
        self.folder.join("grid")
    }

    /// Runs this very command with other arguments, as the user would.
    fn forebay(&self, arguments: &[&std::ffi::OsStr]) -> Result<()> {
        let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
        if !status.success() {
            bail!("forebay {} failed", arguments[0].to_string_lossy());
        }
        Ok(())
    }

    /// Clears the stage when the demo is interrupted.
    fn end_at_signal(&self) -> Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let stage = Stage { folder: self.folder.clone() };
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                note!("\nforebay: interrupted, cleaning up");
                // The program still has files open: they go with this process.
                let _ =
                    stage.forebay(&["down".as_ref(), stage.root().as_os_str(), "--now".as_ref()]);
                let _ = stage.unmount(&["--lazy".as_ref()]);
                let _ = std::fs::remove_dir_all(&stage.folder);
                std::process::exit(130);
            }
        });
        Ok(())
    }

    fn unmount(&self, options: &[&std::ffi::OsStr]) -> Result<()> {
        let mountpoint = self.mountpoint();
        let mut arguments = vec!["umount".as_ref(), mountpoint.as_os_str()];
        arguments.extend_from_slice(options);
        self.forebay(&arguments)
    }

    /// Stops the grid, unmounts, checks and removes everything.
    fn clear(&self) -> Result<()> {
        if crate::mounts::at(&self.mountpoint()).is_ok() {
            say("stop the grid and unmount", &self.mountpoint())?;
            self.forebay(&["down".as_ref(), self.root().as_os_str(), "--now".as_ref()])?;
            say("check", &self.root())?;
            self.forebay(&["fsck".as_ref(), self.root().as_os_str()])?;
        }
        std::fs::remove_dir_all(&self.folder)
            .with_context(|| format!("cannot remove {}", self.folder.display()))
    }
}

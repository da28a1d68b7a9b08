//! Slurm from the packages of the system, started by the benchmark on loopback and ended by it.
//!
//! Tuned for short jobs, as far as its documentation says how: no delays of the scheduler, deep queues, and
//! an epilog, without which it gathers completions. No accounting database, no cgroups.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_e2e::slurm::{Site, Slurm as Daemons};
use tempfile::TempDir;

use super::measure::{Figure, STAMP, process_start_ms, quantile, stamp_of, wall_ms};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(300);

/// A Slurm that runs as long as this lives.
pub struct Slurm {
    daemons: Daemons,
    folder: TempDir,
}

/// Waits until something is there.
fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = SystemClock.instant();
    while !done()? {
        if start.elapsed() > LIMIT {
            bail!("waited {} s in vain until {what}", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

impl Slurm {
    /// Starts its daemons with one node that has all cores.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub fn start(scratch: &Path) -> Result<Slurm> {
        let folder = tempfile::Builder::new().prefix("s").tempdir_in(scratch)?;
        // Its users and jobs have to reach what lies in it.
        for path in [scratch, folder.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        let completions = folder.path().join("completions");
        fs::write(&completions, "")?;
        let more = format!(
            "MaxArraySize=2000\nJobCompType=jobcomp/filetxt\nJobCompLoc={}\n",
            completions.display()
        );
        let site = Site {
            nodes: 1,
            cores: std::thread::available_parallelism()?.get(),
            partitions: &["p"],
            scheduler: "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,\
                        default_queue_depth=10000,partition_job_depth=0,bf_interval=5,max_rpc_cnt=150",
            more: &more,
            network: None,
        };
        Ok(Slurm { daemons: Daemons::start_site(folder.path(), &site), folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let output = self.daemons.command(name).args(arguments).output()?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Jobs that have ended since it was started.
    fn ended(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.path("completions"))?.lines().count())
    }

    /// Latency, single jobs and an array.
    pub fn measure(&self, jobs: u32, starts: u32) -> Result<Vec<Figure>> {
        let plain = process_start_ms()?;
        let stamp = STAMP.join(" ");
        let (mut batch, mut direct) = (Vec::new(), Vec::new());
        for number in 0..starts {
            let name = format!("stamp-{number}");
            let before = wall_ms();
            self.run("sbatch", &["-o", &name, "--wrap", &stamp])?;
            let text = || fs::read_to_string(self.path(&name)).unwrap_or_default();
            wait_until("a job has started", || Ok(text().ends_with('\n')))?;
            batch.push(stamp_of(&text())? - before - plain);
            let before = wall_ms();
            direct.push(stamp_of(&self.run("srun", &STAMP)?)? - before - plain);
        }
        // Those of srun are among them.
        wait_until("the first jobs have ended", || Ok(self.ended()? >= 2 * starts as usize))?;
        let before = self.ended()?;
        let start = SystemClock.instant();
        for _ in 0..jobs {
            self.run("sbatch", &["-o", "/dev/null", "--wrap", "true"])?;
        }
        let accepted = start.elapsed().as_secs_f64();
        wait_until("the jobs have ended", || Ok(self.ended()? >= before + jobs as usize))?;
        let ended = start.elapsed().as_secs_f64();
        let start = SystemClock.instant();
        let range = format!("--array=1-{jobs}");
        self.run("sbatch", &["-o", "/dev/null", &range, "--wrap", "true"])?;
        wait_until("the array has ended", || Ok(self.ended()? >= before + 2 * jobs as usize))?;
        let array = start.elapsed().as_secs_f64();
        let count = f64::from(jobs);
        Ok(vec![
            Figure::new("Slurm: sbatch to start beyond that, ms", 0, quantile(&mut batch, 0.5)),
            Figure::new("Slurm: srun to start beyond that, ms", 0, quantile(&mut direct, 0.5)),
            Figure::new("Slurm: single jobs of `true`: accepted, /s", 0, count / accepted),
            Figure::new("Slurm: single jobs of `true`: submitted and run, /s", 0, count / ended),
            Figure::new("Slurm: an array of `true`: submitted and run, /s", 0, count / array),
        ])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.daemons.cancel_jobs();
    }
}

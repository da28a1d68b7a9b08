//! `forebay bench watch-host`: the watcher of a host, which a study on a grid starts as a job on each host.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use forebay_base::time::SystemClock;
use forebay_study::hosts::watcher::{self, Watch};
use forebay_study::run::Areas;

/// Watch a host for a study; `forebay bench run --grid` starts it on each host.
#[derive(clap::Args)]
pub struct WatchHost {
    /// Folder that the study and its watchers share.
    folder: PathBuf,
    /// Name of this host in the grid.
    #[arg(long)]
    host: String,
    /// A storage of the study: its directories for data, work and util; may be repeated.
    #[arg(long, num_args = 3, required = true, value_names = ["DATA", "WORK", "UTIL"])]
    storage: Vec<PathBuf>,
    /// Measure the work areas of the grid (WORK and UTIL of this job) instead of the directories for work and util.
    #[arg(long)]
    work_of_jobs: bool,
    /// File of the study that this host must see; may be repeated.
    #[arg(long)]
    seen: Vec<PathBuf>,
    /// Folder below which the jobs write their records.
    #[arg(long)]
    records: PathBuf,
}

impl WatchHost {
    pub fn run(self) -> Result<ExitCode> {
        let of_job = |name: &str, path: &PathBuf| {
            let own = std::env::var_os(name).filter(|_| self.work_of_jobs);
            own.map_or_else(|| path.clone(), PathBuf::from)
        };
        let areas = |paths: &[PathBuf]| Areas {
            label: paths[0].display().to_string(),
            data: paths[0].clone(),
            work: of_job("WORK", &paths[1]),
            util: of_job("UTIL", &paths[2]),
        };
        let subjects: Vec<Areas> = self.storage.chunks_exact(3).map(areas).collect();
        watcher::run(&Watch {
            folder: &self.folder,
            host: &self.host,
            subjects: &subjects,
            seen: &self.seen,
            records: &self.records,
            clock: Arc::new(SystemClock),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

//! What surrounds the program of a job on its host: commands before and after it, a program that starts it, the
//! variables by which programs put their temporary files into its work area, and a log of what it used.

use serde::{Deserialize, Serialize};

use crate::config::QueueConfig;
use crate::sparse::sparse;
use crate::spec::JobSpec;

/// The most bytes of a command before or after a job.
pub const COMMAND_BYTES_MAX: usize = 4096;

/// Programs whose temporary files the grid knows how to direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spill {
    /// Dask: `DASK_TEMPORARY_DIRECTORY`.
    Dask,
    /// DuckDB, which reads no variable itself: `DUCKDB_TEMP_DIRECTORY`, for `SET temp_directory = getenv(...)`.
    Duckdb,
    /// Polars: `POLARS_TEMP_DIR`.
    Polars,
    /// Ray: `RAY_TMPDIR`.
    Ray,
    /// SAS and programs with its options: `SASV9_OPTIONS`.
    Sas,
    /// Spark: `SPARK_LOCAL_DIRS`.
    Spark,
}

impl Spill {
    /// The variable and its value, for a work area and one for utility files.
    #[must_use]
    pub fn variable(self, work: &str, util: &str) -> (&'static str, String) {
        match self {
            Spill::Dask => ("DASK_TEMPORARY_DIRECTORY", util.to_owned()),
            Spill::Duckdb => ("DUCKDB_TEMP_DIRECTORY", util.to_owned()),
            Spill::Polars => ("POLARS_TEMP_DIR", util.to_owned()),
            Spill::Ray => ("RAY_TMPDIR", util.to_owned()),
            Spill::Sas => ("SASV9_OPTIONS", format!("-WORK {work} -UTILLOC {util}")),
            Spill::Spark => ("SPARK_LOCAL_DIRS", util.to_owned()),
        }
    }
}

sparse! {
    /// What surrounds the program of a job.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Wrap {
        /// Shell commands before it, in their order. If one fails, the program is not started.
        pub pre: Vec<String>,
        /// Shell commands after it, in their order, however it ended.
        pub post: Vec<String>,
        /// A shell command that gets the program and its arguments as its own arguments.
        pub starter: Option<String>,
        /// Whose temporary files are directed.
        pub spill: Vec<Spill>,
        /// Whether what it used is written beside its output.
        pub fullstimer: bool,
        /// Options of `sbatch`, where the job runs through Slurm.
        pub slurm: Vec<String>,
    }
}

impl Wrap {
    /// That of a job in its queue; none if there is nothing.
    #[must_use]
    pub fn of(spec: &JobSpec, queue: Option<&QueueConfig>) -> Option<Box<Wrap>> {
        let command = |command: Option<&String>| command.into_iter().cloned().collect::<Vec<_>>();
        let of_queue = |part: fn(&QueueConfig) -> Option<&String>| command(queue.and_then(part));
        let wrap = Wrap {
            pre: [of_queue(|queue| queue.pre.as_ref()), command(spec.pre.as_ref())].concat(),
            post: [command(spec.post.as_ref()), of_queue(|queue| queue.post.as_ref())].concat(),
            starter: queue.and_then(|queue| queue.starter.clone()),
            spill: queue.map(|queue| queue.spill.clone()).unwrap_or_default(),
            fullstimer: queue.is_some_and(|queue| queue.fullstimer),
            slurm: queue.map(|queue| queue.slurm.clone()).unwrap_or_default(),
        };
        (wrap != Wrap::default()).then(|| Box::new(wrap))
    }

    /// Whether the program does not run as it is.
    #[must_use]
    pub fn surrounds(&self) -> bool {
        !self.pre.is_empty() || !self.post.is_empty() || self.starter.is_some()
    }
}

/// What is wrong with a command before or after a job, or a starter.
#[must_use]
pub fn fault(command: &str) -> Option<&'static str> {
    if command.trim().is_empty() {
        return Some("a command that is not empty");
    }
    (command.len() > COMMAND_BYTES_MAX || command.contains('\0'))
        .then_some("a command of at most 4096 bytes, without NUL")
}

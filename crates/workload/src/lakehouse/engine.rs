//! An engine in a Python process: what it shall do goes in as JSON, what it did comes back as JSON.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use forebay_analytics::error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::packages::Python;

/// The program that Python runs.
const PROGRAM: &str = include_str!("engine.py");

/// The longest reason that is passed on, in characters.
const REASON_MAX: usize = 600;

/// A query engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// DuckDB, which writes what does not fit in its memory to temporary files.
    Duckdb,
    /// Polars with its streaming engine, which has no limit of memory.
    Polars,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Engine::Duckdb => "DuckDB",
            Engine::Polars => "Polars",
        })
    }
}

/// What an engine shall do.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Work<'a> {
    /// Write a Parquet file from a CSV file.
    Convert {
        /// The CSV file, with a header line.
        csv: &'a Path,
        /// The Parquet file.
        output: &'a Path,
    },
    /// Answer a query.
    Ask {
        /// The directory of Parquet files.
        lake: &'a Path,
        /// The query.
        sql: &'a str,
        /// Where the rows go: a Parquet file if the name ends with `.parquet`, otherwise CSV.
        result: &'a Path,
    },
}

/// Work for an engine, and what it may use.
#[derive(Debug, Serialize)]
pub struct Job<'a> {
    /// The engine.
    pub engine: Engine,
    /// What it shall do.
    #[serde(flatten)]
    pub work: &'a Work<'a>,
    /// The directory for temporary files.
    pub spill: &'a Path,
    /// Its threads.
    pub threads: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
}

/// What an engine did.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Done {
    /// The engine's version.
    pub version: String,
    /// Rows of the tables that it read.
    pub rows: u64,
    /// Seconds on the clock, without the start of Python.
    pub seconds: f64,
    /// The most bytes that its temporary files took at a time, looked at 20 times a second.
    pub spilled_bytes_max: u64,
}

impl Job<'_> {
    /// Does it, in a process that ends with this thread.
    ///
    /// # Errors
    /// [`Error::Program`] if Python or the engine cannot be run, or the engine fails; with its reason.
    pub fn run(&self) -> Result<Done> {
        let python = Python::find_or_install(&mut |_| ())?;
        let failed = |reason: String| Error::Program { program: self.engine.to_string(), reason };
        let text = serde_json::to_string(self).map_err(|error| failed(error.to_string()))?;
        let mut command = python.command();
        command.args(["-c", PROGRAM]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: a call that is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // No engine works on in directories that a killed step has left.
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| {
            failed(format!("{} cannot be run: {error}", python.program().display()))
        })?;
        // One that ends early says why on its standard error.
        let asked = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        match asked {
            Some(Ok(())) | None if output.status.success() => {
                serde_json::from_slice(&output.stdout)
                    .map_err(|error| failed(format!("its answer cannot be read: {error}")))
            }
            _ => Err(failed(reason_of(&output))),
        }
    }
}

/// The last line of what the process said, or how it ended.
fn reason_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map_or_else(|| output.status.to_string(), |line| line.chars().take(REASON_MAX).collect())
}

//! ToParquet: writes a CSV file as Parquet.

use std::fs;
use std::path::PathBuf;

use forebay_analytics::amount::{Scale, Size};
use forebay_analytics::error::Result;
use forebay_analytics::scratch::make_directory;
use forebay_analytics::step::{Action, Buffers, Context, Outcome, Progress};
use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::engine::{Engine, Work};

/// Writes the CSV file `csv`, which has a header line, as the Parquet file `output`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToParquet {
    /// Who writes it.
    pub engine: Engine,
    /// The CSV file.
    pub csv: PathBuf,
    /// The Parquet file; replaced if it exists, removed if the step fails.
    pub output: PathBuf,
    /// Where the directory for the engine's temporary files is made.
    #[serde(default = "util")]
    pub util: PathBuf,
    /// Threads of the engine; 1 unless told otherwise.
    #[serde(default = "threads")]
    pub threads: u32,
    /// Memory of the engine; that of the program unless told otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Bytes that the CSV file and the Parquet file take together, for the check of space before a run.
    #[serde(default)]
    pub space: Option<Size>,
}

pub(super) fn util() -> PathBuf {
    "util".into()
}

pub(super) fn threads() -> u32 {
    super::THREADS
}

impl Action for ToParquet {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory);
        context.resolve_all([&mut self.csv, &mut self.output, &mut self.util])
    }

    fn made_bytes(&self, scale: Scale, _buffers: &Buffers) -> u64 {
        self.space.map_or(0, |space| space.at(scale).0)
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        if let Some(folder) = self.output.parent() {
            make_directory(folder)?;
        }
        let memory = self.memory.unwrap_or(context.buffers.memory);
        let work = Work::Convert { csv: &self.csv, output: &self.output };
        let outcome = super::run(self.engine, &work, &self.util, self.threads, memory);
        match &outcome {
            Ok(outcome) => progress(outcome.rows),
            // The error that led here is the one to report.
            Err(_) => drop(fs::remove_file(&self.output)),
        }
        outcome
    }
}

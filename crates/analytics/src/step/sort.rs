//! Sort: orders the rows of a data set of any size in bounded memory.
//!
//! An external merge sort. Rows fill the sort memory, are ordered there by keys whose bytes compare
//! as the values do ([`crate::key`]), and are written as a run, a data set of its own in a directory
//! in `util`; runs are merged, as many at a time as their pages fit in the sort memory, until one
//! merge gives the output. If all rows fit in the sort memory no utility file is written. Rows with
//! equal keys keep their order.
//!
//! The directory with the runs is removed at the end, at an error and when the step is dropped; only
//! a killed process leaves it.

mod merge;
mod run;

use std::fs;
use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use self::merge::Merge;
use self::run::RunBuffer;
use super::Progress;
use crate::dataset::{PAGE_BYTES_DEFAULT, PAGE_BYTES_MIN, PAGE_HEADER_BYTES, Reader, Writer};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::scratch::ScratchDir;
use crate::step::{Action, Context, Outcome};

/// The sort memory unless told otherwise: 256 MiB.
pub const SORT_MEMORY_DEFAULT: ByteSize = ByteSize::mib(256);
/// The least sort memory: 1 MiB.
pub const SORT_MEMORY_MIN: ByteSize = ByteSize::mib(1);
/// The most runs merged at a time.
const FAN_IN_MAX: usize = 64;
/// The fewest runs merged at a time that the pages of utility files are cut down for.
const FAN_IN_WANTED: u64 = 16;

/// Orders the rows of a data set. Uses the sort memory and a few pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sort {
    /// The data set to order.
    pub input: PathBuf,
    /// The data set to write; may not be the input.
    pub output: PathBuf,
    /// The columns to order by, the most significant first.
    pub by: Vec<SortKey>,
    /// The directory for utility files.
    pub util: PathBuf,
    /// Memory for rows and keys, at least [`SORT_MEMORY_MIN`]; 256 MiB unless the program says
    /// otherwise.
    #[serde(default)]
    pub sort_memory: Option<ByteSize>,
    /// Page size of the output and, unless the sort memory is small, of utility files.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
}

/// What a sort did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sorted {
    /// Rows written to the output.
    pub rows: u64,
    /// Runs written at first; 0 if all rows fitted in the sort memory.
    pub runs: u64,
    /// Times that each row was merged, at most.
    pub merge_passes: u32,
}

impl Sort {
    /// Orders `input` by `by` into `output` with 256 MiB of sort memory.
    #[must_use]
    pub fn new(input: PathBuf, output: PathBuf, by: Vec<SortKey>, util: PathBuf) -> Sort {
        Sort { input, output, by, util, sort_memory: None, page_bytes: None }
    }

    /// Runs the step. Progress counts every row once per pass over it.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not
    /// exist; those of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Sorted> {
        if self.sort_memory() < SORT_MEMORY_MIN {
            return Err(Error::Setting {
                setting: "sort_memory",
                value: self.sort_memory().to_string(),
                allowed: format!("at least {SORT_MEMORY_MIN}"),
            });
        }
        if self.input == self.output {
            return Err(Error::Setting {
                setting: "output",
                value: self.output.display().to_string(),
                allowed: "another file than the input".to_owned(),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        let codec = KeyCodec::new(&reader, &self.by)?;
        // Made first, so that an output that cannot be written costs no sort.
        let mut output =
            Writer::create(&self.output, reader.schema().clone(), self.page_bytes().0)?;
        let mut buffer = RunBuffer::new(&reader, &codec, self.sort_memory());
        let mut done = 0;
        if !buffer.fill(&mut reader, &codec)? {
            buffer.sort();
            buffer.write(&mut output, &mut done, progress)?;
            return Ok(Sorted { rows: output.finish()?, runs: 0, merge_passes: 0 });
        }

        let mut runs = Runs::create(self, &reader)?;
        loop {
            buffer.sort();
            let mut run = runs.writer(&reader)?;
            buffer.write(&mut run, &mut done, progress)?;
            run.finish()?;
            buffer.clear();
            if runs.paths.len() as u64 * buffer.rows_max() >= reader.rows() {
                break;
            }
            buffer.fill(&mut reader, &codec)?;
        }
        drop(buffer);
        let first_runs = runs.paths.len() as u64;
        let mut merge_passes = 1;
        while runs.paths.len() > runs.fan_in {
            runs.merge_once(&reader, &codec, &mut done, progress)?;
            merge_passes += 1;
        }
        Merge::open(&runs.paths, &codec)?.write(&mut output, &mut done, progress)?;
        let rows = output.finish()?;
        runs.directory.remove()?;
        Ok(Sorted { rows, runs: first_runs, merge_passes })
    }

    fn sort_memory(&self) -> ByteSize {
        self.sort_memory.unwrap_or(SORT_MEMORY_DEFAULT)
    }

    fn page_bytes(&self) -> ByteSize {
        self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT)
    }
}

impl Action for Sort {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.output, &mut self.util])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.sort_memory.get_or_insert(context.buffers.sort_memory);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let sorted = self.run(progress)?;
        Ok(Outcome::rows(sorted.rows)
            .with("runs", sorted.runs as f64)
            .with("merge_passes", f64::from(sorted.merge_passes)))
    }
}

/// The runs of one sort, in the order of their rows in the input.
struct Runs {
    directory: ScratchDir,
    paths: Vec<PathBuf>,
    /// Runs ever made, for their names.
    made: u64,
    page_bytes: u64,
    fan_in: usize,
}

impl Runs {
    /// Makes the directory, and chooses the page size of utility files and how many runs can be
    /// merged at a time such that a page of each fits in the sort memory.
    fn create(sort: &Sort, reader: &Reader) -> Result<Runs> {
        let memory = sort.sort_memory().0;
        let row_bytes = (reader.schema().row_bytes() + PAGE_HEADER_BYTES) as u64;
        let fitting = memory / FAN_IN_WANTED / PAGE_BYTES_MIN * PAGE_BYTES_MIN;
        let page_bytes =
            sort.page_bytes().0.min(fitting).max(row_bytes.next_multiple_of(PAGE_BYTES_MIN));
        let fan_in = (memory / page_bytes).clamp(2, FAN_IN_MAX as u64) as usize;
        let directory = ScratchDir::create(&sort.util, "sort")?;
        Ok(Runs { directory, paths: Vec::new(), made: 0, page_bytes, fan_in })
    }

    /// A writer for a new run, which becomes the last one.
    fn writer(&mut self, reader: &Reader) -> Result<Writer> {
        let path = self.directory.path().join(format!("run-{:05}", self.made));
        self.made += 1;
        let writer = Writer::create(&path, reader.schema().clone(), self.page_bytes)?;
        self.paths.push(path);
        Ok(writer)
    }

    /// Merges neighbours, as many at a time as allowed, into fewer runs. Each run's file is removed
    /// once merged.
    fn merge_once(
        &mut self,
        reader: &Reader,
        codec: &KeyCodec,
        done: &mut u64,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let inputs = std::mem::take(&mut self.paths);
        for group in inputs.chunks(self.fan_in) {
            if let [single] = group {
                self.paths.push(single.clone());
                continue;
            }
            let mut merge = Merge::open(group, codec)?;
            let mut run = self.writer(reader)?;
            merge.write(&mut run, done, progress)?;
            run.finish()?;
            for path in group {
                fs::remove_file(path).map_err(Error::io("remove", path))?;
            }
        }
        Ok(())
    }
}

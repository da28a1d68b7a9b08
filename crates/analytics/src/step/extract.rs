//! Extract: reads part of a data set, by runs of rows, at random or all, and no other pages.
//!
//! What is read goes to a data set of its own or, without an output, into a checksum, so that nobody
//! can leave the reading out.

mod blocks;

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use self::blocks::{Blocks, Run};
use super::Progress;
use super::output::refuse_input;
use crate::amount::{Count, Scale};
use crate::dataset::{PAGE_BYTES_DEFAULT, Projection, Reader, Rows, Schema, Writer};
use crate::error::{Error, Result};
use crate::expression::{CHUNK_ROWS, Expression, is_true};
use crate::step::{Action, Context, Outcome};

/// Reads part of a data set. Uses the memory of a page or two and of an expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    /// The data set to read.
    pub input: PathBuf,
    /// The data set to write, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Which rows are read.
    #[serde(default)]
    pub mode: Mode,
    /// Which of these are taken: an expression ([`crate::expression`]).
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The columns that are taken, in this order; all if left out. `x*` stands for all that start with
    /// `x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Vec<String>>,
    /// Which extract of many this is: where `skip_sequential` starts. The job's number in its class
    /// unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The seed of `random`; follows from the run's and the job unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Page size of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<ByteSize>,
}

/// Which rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Mode {
    /// All rows in order.
    #[default]
    All,
    /// `count` rows from row `first`, counted from 0.
    Rows {
        /// Rows before.
        #[serde(default = "none")]
        first: Count,
        /// Rows read, or as many as there are.
        count: Count,
    },
    /// Runs of `run_rows` rows with so many skipped between them that `part` of all is read. Extract
    /// number `n` starts with the `n`th run that the ones before it skip.
    SkipSequential {
        /// Share of the rows, above 0 to 1.
        part: f64,
        /// Rows of a run, at least 1.
        run_rows: u64,
    },
    /// Blocks of neighbouring rows picked at random, each at most once.
    Random {
        /// Share of the blocks, above 0 to 1.
        part: f64,
        /// Rows of a block, at least 1.
        #[serde(default = "one")]
        block_rows: u64,
        /// In which order they are read.
        #[serde(default)]
        order: BlockOrder,
    },
}

/// In which order random blocks are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockOrder {
    /// As they were picked: a seek for each.
    #[default]
    Random,
    /// Front to back.
    Ascending,
}

fn none() -> Count {
    Count::Fixed(0)
}

fn one() -> u64 {
    1
}

/// What an extract did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extracted {
    /// Rows read.
    pub rows_read: u64,
    /// Rows taken.
    pub rows: u64,
    /// Pages read; one that is read twice counts twice.
    pub pages_read: u64,
    /// Bytes of these pages.
    pub bytes_read: u64,
    /// CRC-32 (IEEE) of the taken columns of the taken rows in the order in which they were read.
    pub checksum: u32,
}

impl Extract {
    /// Reads all of `input` into nothing.
    #[must_use]
    pub fn new(input: PathBuf, mode: Mode) -> Extract {
        Extract {
            input,
            output: None,
            mode,
            filter: None,
            keep: None,
            number: None,
            seed: None,
            page_bytes: None,
        }
    }

    /// Runs the step at `scale`. Without a number or a seed it takes 0.
    ///
    /// # Errors
    /// [`Error::Setting`] if the mode is out of bounds; [`Error::Expression`] and [`Error::Column`] if
    /// the expression or a column cannot be found; those of reading and writing data sets.
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<Extracted> {
        if let Some(output) = &self.output {
            refuse_input(output, &[&self.input])?;
        }
        let mut reader = Reader::open(&self.input)?;
        let projection = Projection::new(&reader, self.keep.as_deref(), &[])?;
        let filter = self.filter.as_deref();
        let filter = filter.map(|text| Expression::new(text, reader.schema(), &[])).transpose()?;
        let blocks = self.blocks(scale, reader.rows())?;
        let schema = Schema::new(projection.columns().to_vec())?;
        let row = vec![0; projection.row_bytes()];
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0;
        let writer = self.output.as_deref().map(|path| Writer::create(path, schema, page_bytes));
        let writer = writer.transpose()?;
        let checksum = crc32fast::Hasher::new();
        let mut sink = Sink { projection, filter, row, writer, checksum, rows: 0 };
        let mut rows_read = 0;
        for Run { first, count } in blocks {
            reader.seek(first)?;
            let end = first + count;
            let mut at = first;
            while at < end {
                let Some(rows) = reader.next_rows()? else { break };
                let rows = rows.first(usize::try_from(end - at).unwrap_or(usize::MAX));
                sink.take(&rows, at)?;
                at += rows.count() as u64;
            }
            rows_read += at - first;
            progress(rows_read);
        }
        let (pages_read, page_bytes) = (reader.pages_read(), reader.page_bytes());
        let Sink { writer, checksum, rows, .. } = sink;
        writer.map(Writer::finish).transpose()?;
        Ok(Extracted {
            rows_read,
            rows,
            pages_read,
            bytes_read: pages_read * page_bytes,
            checksum: checksum.finalize(),
        })
    }

    /// The runs of rows that are read.
    fn blocks(&self, scale: Scale, rows: u64) -> Result<Blocks> {
        let refuse = |setting: &'static str, value: String, allowed: &str| {
            Err(Error::Setting { setting, value, allowed: allowed.to_owned() })
        };
        match self.mode {
            Mode::SkipSequential { part, .. } | Mode::Random { part, .. }
                if !(part > 0.0 && part <= 1.0) =>
            {
                refuse("part", part.to_string(), "a share above 0, at most 1")
            }
            Mode::SkipSequential { run_rows: 0, .. } => {
                refuse("run_rows", "0".to_owned(), "at least 1")
            }
            Mode::Random { block_rows: 0, .. } => {
                refuse("block_rows", "0".to_owned(), "at least 1")
            }
            Mode::All => Ok(Blocks::range(0, rows, rows)),
            Mode::Rows { first, count } => {
                Ok(Blocks::range(first.at(scale), count.at(scale), rows))
            }
            Mode::SkipSequential { part, run_rows } => {
                Ok(Blocks::skip_sequential(part, run_rows, self.number.unwrap_or(0), rows))
            }
            Mode::Random { part, block_rows, order } => {
                Ok(Blocks::random(part, block_rows, order, self.seed.unwrap_or(0), rows))
            }
        }
    }
}

/// Where rows that were read go.
struct Sink {
    projection: Projection,
    filter: Option<Expression>,
    row: Vec<u8>,
    writer: Option<Writer>,
    checksum: crc32fast::Hasher,
    rows: u64,
}

impl Sink {
    /// Takes `rows`, of which the first has the number `first_row`.
    fn take(&mut self, rows: &Rows<'_>, first_row: u64) -> Result<()> {
        let mut number = first_row;
        for chunk in rows.chunks(CHUNK_ROWS) {
            let taken = self.filter.as_mut().map(|filter| filter.evaluate(&chunk, number, &[]));
            for (at, row) in chunk.iter().enumerate() {
                if taken.is_none_or(|taken| is_true(taken[at])) {
                    self.projection.copy(row, &mut self.row);
                    self.checksum.update(&self.row);
                    self.rows += 1;
                    if let Some(writer) = &mut self.writer {
                        writer.push(&self.row)?;
                    }
                }
            }
            number += chunk.count() as u64;
        }
        Ok(())
    }
}

impl Action for Extract {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        let purpose = format!("extract {}", self.input.display());
        self.seed.get_or_insert_with(|| context.seed_for(&purpose));
        self.number.get_or_insert(context.job.number);
        context.resolve(&mut self.input)?;
        self.output.as_mut().map_or(Ok(()), |output| context.resolve(output))?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        Ok(())
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let extracted = self.run(context.scale, progress)?;
        Ok(Outcome::rows(extracted.rows_read)
            .with("rows_taken", extracted.rows as f64)
            .with("pages_read", extracted.pages_read as f64)
            .with("read_bytes", extracted.bytes_read as f64)
            .with("checksum", f64::from(extracted.checksum)))
    }
}

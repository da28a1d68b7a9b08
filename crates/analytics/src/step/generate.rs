//! Generate: makes a data set from a description of its columns.
//!
//! Every column has a stream of random numbers of its own, xoshiro256++ seeded (through SplitMix64)
//! with the SipHash-1-3 of the step's seed and the column's name, and another one that says which
//! values are missing. So a column's values depend neither on the columns beside it nor on the number
//! of rows or the page size, and the same seed gives the same file with the same version of Forebay.
//! Uniform numbers, integers, sequences and categories are the same on every machine; distributions
//! that need logarithms and exponentials are so as far as the machines' C libraries round alike.
//!
//! Columns are drawn some rows at a time and then laid into rows, in the memory of a page, as many
//! rows again, and some hundred bytes for each column.

mod response;
mod stream;
mod value;

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

pub use self::response::{Family, GroupEffect, Link, Response};
use self::stream::Streams;
pub use self::value::{Bound, Label, Value};
use super::Progress;
use crate::amount::{Count, Scale, Size};
use crate::dataset::{Column, ColumnType, PAGE_BYTES_DEFAULT, Schema, Writer};
use crate::error::{Error, Result};
use crate::step::{Action, Buffers, Context, Outcome};

/// Makes a data set from a description of its columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// The data set to write.
    pub output: PathBuf,
    /// How many rows; either this or `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Count>,
    /// How long the file may be at most; at least one row is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Size>,
    /// The seed; unless given it follows from the run's seed, the job and `output` as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The columns in order.
    pub columns: Vec<Columns>,
    /// Page size of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<ByteSize>,
}

/// One column, or several that differ in their names and their random numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The name of the one column; either this or `prefix` and `count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the names of several columns start with; a number from 1 follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// How many columns, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// What they hold. Dates and times are cut to whole days and seconds; a text shows the whole part
    /// of a number, after `label` and with leading zeros to its width.
    #[serde(default = "number")]
    pub kind: ColumnType,
    /// How the values are made.
    pub value: Value,
    /// What a text made of a number starts with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The share of missing values, 0 to 1, anywhere. Responses are made of the values before some go
    /// missing.
    #[serde(default)]
    pub missing: f64,
}

fn number() -> ColumnType {
    ColumnType::Number
}

impl Columns {
    /// One number column without missing values.
    #[must_use]
    pub fn one(name: &str, value: Value) -> Columns {
        Columns {
            name: Some(name.to_owned()),
            prefix: None,
            count: None,
            kind: ColumnType::Number,
            value,
            label: String::new(),
            missing: 0.0,
        }
    }

    /// Several number columns `prefix1`, `prefix2` and so on, without missing values.
    #[must_use]
    pub fn many(prefix: &str, count: u32, value: Value) -> Columns {
        Columns {
            name: None,
            prefix: Some(prefix.to_owned()),
            count: Some(count),
            ..Columns::one("", value)
        }
    }

    fn names(&self) -> Result<Vec<String>> {
        match (&self.name, &self.prefix, self.count) {
            (Some(name), None, None) => Ok(vec![name.clone()]),
            (None, Some(prefix), Some(count @ 1..)) => {
                Ok((1..=count).map(|number| format!("{prefix}{number}")).collect())
            }
            (name, prefix, count) => Err(Error::Setting {
                setting: "columns",
                value: format!("name {name:?}, prefix {prefix:?}, count {count:?}"),
                allowed: "a name, or a prefix and a count of at least 1".to_owned(),
            }),
        }
    }
}

impl Generate {
    /// Makes `rows` rows of `columns` from `seed`.
    #[must_use]
    pub fn new(output: PathBuf, rows: u64, seed: u64, columns: Vec<Columns>) -> Generate {
        Generate {
            output,
            rows: Some(Count::Fixed(rows)),
            bytes: None,
            seed: Some(seed),
            columns,
            page_bytes: None,
        }
    }

    /// The columns of the data set.
    ///
    /// # Errors
    /// [`Error::Setting`] if they are not named as they must be.
    pub fn schema(&self) -> Result<Schema> {
        let mut columns = Vec::new();
        for described in &self.columns {
            let kind = described.kind;
            columns.extend(described.names()?.into_iter().map(|name| Column { name, kind }));
        }
        Schema::new(columns)
    }

    /// Rows of the data set at `scale`, in pages of `page_bytes` unless the step has its own.
    ///
    /// # Errors
    /// [`Error::Setting`] if the description is wrong.
    pub fn rows_at(&self, scale: Scale, page_bytes: ByteSize) -> Result<u64> {
        match (self.rows, self.bytes) {
            (Some(rows), None) => Ok(rows.at(scale)),
            (None, Some(bytes)) => {
                let page_bytes = self.page_bytes.unwrap_or(page_bytes).0;
                Ok(self.schema()?.rows_in(bytes.at(scale).0, page_bytes)?.max(1))
            }
            _ => Err(Error::Setting {
                setting: "rows",
                value: if self.rows.is_some() { "given as well as bytes" } else { "not given" }
                    .to_owned(),
                allowed: "given, or else bytes, not both".to_owned(),
            }),
        }
    }

    /// Bytes of the file at `scale`, in pages of `page_bytes` unless the step has its own: what it
    /// takes on a disk, known before it is made.
    ///
    /// # Errors
    /// [`Error::Setting`] if the description is wrong.
    pub fn bytes_at(&self, scale: Scale, page_bytes: ByteSize) -> Result<u64> {
        let rows = self.rows_at(scale, page_bytes)?;
        self.schema()?.file_bytes(rows, self.page_bytes.unwrap_or(page_bytes).0)
    }

    /// Runs the step at `scale`; returns the rows written. Without a seed it takes 0.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Column`] if the description is wrong; those of writing a data
    /// set.
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<u64> {
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        let rows = self.rows_at(scale, page_bytes)?;
        let schema = self.schema()?;
        let mut streams = Streams::new(self, &schema, self.seed.unwrap_or(0), scale)?;
        let row_bytes = schema.row_bytes();
        let mut writer = Writer::create(&self.output, schema, page_bytes.0)?;
        let mut batch = vec![0; streams.batch_rows() * row_bytes];
        while writer.rows() < rows {
            let count = (rows - writer.rows()).min(streams.batch_rows() as u64) as usize;
            let batch = &mut batch[..count * row_bytes];
            streams.fill(writer.rows(), batch)?;
            for row in batch.chunks_exact(row_bytes) {
                writer.push(row)?;
            }
            progress(writer.rows());
        }
        writer.finish()
    }
}

impl Action for Generate {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        // Data sets of one job differ although their columns may be named alike.
        let purpose = format!("generate {}", self.output.display());
        self.seed.get_or_insert_with(|| context.seed_for(&purpose));
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        context.resolve(&mut self.output)
    }

    fn made_bytes(&self, scale: Scale, buffers: &Buffers) -> u64 {
        // What is wrong with the description is told when it is run.
        self.bytes_at(scale, buffers.page_bytes).unwrap_or(0)
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let rows = self.run(context.scale, progress)?;
        let page_bytes = self.page_bytes.unwrap_or(context.buffers.page_bytes);
        let bytes = self.schema()?.file_bytes(rows, page_bytes.0)?;
        Ok(Outcome::rows(rows).with("output_bytes", bytes as f64))
    }
}

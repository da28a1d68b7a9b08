//! Repeat: copies a data set's rows several times, to make a large data set of a small one.

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::dataset::{Column, Field, PAGE_BYTES_DEFAULT, Reader, Writer};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};

/// Copies the rows of `input` `times` times, with the number of the copy (from 1) in a new last
/// column. Uses the memory of two pages and a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// The data set to copy.
    pub input: PathBuf,
    /// The data set to write.
    pub output: PathBuf,
    /// How many copies, at least 1.
    pub times: u32,
    /// Name of the column with the copy's number.
    #[serde(default = "replicate_column_default")]
    pub replicate_column: String,
    /// Page size of the output.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
}

fn replicate_column_default() -> String {
    "replicate".to_owned()
}

impl Repeat {
    /// Copies `input` to `output` `times` times; the new column is called `replicate`.
    #[must_use]
    pub fn new(input: PathBuf, output: PathBuf, times: u32) -> Repeat {
        Repeat {
            input,
            output,
            times,
            replicate_column: replicate_column_default(),
            page_bytes: None,
        }
    }

    /// Runs the step; returns the rows written.
    ///
    /// # Errors
    /// [`Error::Setting`] if `times` is zero; [`Error::Column`] if the new column's name is taken;
    /// those of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<u64> {
        if self.times == 0 {
            return Err(Error::Setting {
                setting: "times",
                value: "0".to_owned(),
                allowed: "at least 1".to_owned(),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        if reader.schema().position(&self.replicate_column).is_some() {
            return Err(Error::Column {
                path: self.input.clone(),
                column: self.replicate_column.clone(),
                reason: "already exists; name the replicate column otherwise".to_owned(),
            });
        }
        let schema = reader.schema().with(Column::number(&self.replicate_column))?;
        let input_row_bytes = reader.schema().row_bytes();
        let mut row = vec![0; schema.row_bytes()];
        let Field::Number(replicate) = schema.field(schema.columns().len() - 1) else {
            unreachable!("the column added last is a number");
        };
        let mut writer =
            Writer::create(&self.output, schema, self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0)?;
        for copy in 1..=self.times {
            replicate.set(&mut row, f64::from(copy));
            reader.seek(0)?;
            while let Some(rows) = reader.next_rows()? {
                for input_row in rows.iter() {
                    row[..input_row_bytes].copy_from_slice(input_row);
                    writer.push(&row)?;
                }
                progress(writer.rows());
            }
        }
        writer.finish()
    }
}

impl Action for Repeat {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.output])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        Ok(Outcome::rows(self.run(progress)?))
    }
}

//! Export: writes a data set as CSV.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Progress;
use crate::dataset::{ColumnType, Field, Reader, format_date, format_datetime};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};

/// Bytes per write call.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes the data set `input` as CSV with a header line. Numbers are written so that they read back
/// to the same value, dates as `YYYY-MM-DD`, dates with times as `YYYY-MM-DDThh:mm:ssZ`. Uses the
/// memory of a page and a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The data set to read.
    pub input: PathBuf,
    /// The CSV file to write; replaced if it exists, removed if the step fails.
    pub csv: PathBuf,
    /// What is written for a missing value; empty unless told otherwise.
    #[serde(default)]
    pub missing: String,
}

impl Export {
    /// Writes `input` to `csv`, missing values as empty fields.
    #[must_use]
    pub fn new(input: PathBuf, csv: PathBuf) -> Export {
        Export { input, csv, missing: String::new() }
    }

    /// Runs the step; returns the rows written.
    ///
    /// # Errors
    /// [`Error::Io`] if the CSV file cannot be written; those of reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<u64> {
        let mut reader = Reader::open(&self.input)?;
        let file = File::create(&self.csv).map_err(Error::io("create", &self.csv))?;
        let written = self.write(&mut reader, file, progress);
        if written.is_err() {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.csv);
        }
        written
    }

    fn write(&self, reader: &mut Reader, file: File, progress: &mut Progress<'_>) -> Result<u64> {
        let columns = reader.schema().columns();
        let fields: Vec<Field> = (0..columns.len()).map(|i| reader.schema().field(i)).collect();
        let mut writer = csv::WriterBuilder::new()
            .buffer_capacity(64 << 10)
            .from_writer(BufWriter::with_capacity(BUFFER_BYTES, file));
        let failed = |error: csv::Error| write_error(&self.csv, error);
        writer.write_record(columns.iter().map(|column| &column.name)).map_err(failed)?;

        let mut text = Vec::with_capacity(32);
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                for field in &fields {
                    let value = match field {
                        Field::Text(field) => field.get(row),
                        Field::Number(field) => {
                            text.clear();
                            show(&mut text, field.kind, field.get(row))
                                .map_err(Error::io("write", &self.csv))?;
                            &text
                        }
                    };
                    let value = if value.is_empty() { self.missing.as_bytes() } else { value };
                    writer.write_field(value).map_err(failed)?;
                }
                writer.write_record(None::<&[u8]>).map_err(failed)?;
            }
            done += rows.count() as u64;
            progress(done);
        }
        let mut inner = writer
            .into_inner()
            .map_err(|error| Error::io("write", &self.csv)(error.into_error()))?;
        inner.flush().map_err(Error::io("write", &self.csv))?;
        Ok(done)
    }
}

impl Action for Export {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.csv])
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        Ok(Outcome::rows(self.run(progress)?))
    }
}

/// Writes a number as its column's type wants it; nothing for a missing one.
fn show(text: &mut Vec<u8>, kind: ColumnType, number: f64) -> std::io::Result<()> {
    if number.is_nan() {
        return Ok(());
    }
    match kind {
        ColumnType::Date => write!(text, "{}", format_date(number)),
        ColumnType::Datetime => write!(text, "{}", format_datetime(number)),
        ColumnType::Number | ColumnType::Text { .. } => {
            let size = number.abs();
            if size != 0.0 && !(1e-5..1e17).contains(&size) {
                write!(text, "{number:e}")
            } else {
                write!(text, "{number}")
            }
        }
    }
}

fn write_error(path: &Path, error: csv::Error) -> Error {
    Error::io("write", path)(error.into())
}

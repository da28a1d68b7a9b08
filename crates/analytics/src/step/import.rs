//! Import: reads a CSV file into a data set.
//!
//! The first line names the columns. Quoted fields, CRLF line ends, blank lines and a byte order mark
//! are understood; blanks around a number or date and after a text do not count. Types are given by a schema or
//! inferred from the rows: a column is a number, a date or a date with time if every value in it is one, else a
//! text as wide as its widest value. A column of whole numbers that a double cannot tell from their neighbours
//! is a text, so that keys stay different; a file in UTF-16 is refused.

use std::io::Read;
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::dataset::{
    Column, ColumnType, Field, PAGE_BYTES_DEFAULT, RowBuffer, Schema, TEXT_WIDTH_MAX, Writer,
    parse_date, parse_datetime, trim_blanks,
};
use crate::error::{Error, Result};
use crate::source;
use crate::step::{Action, Context, Outcome};

/// Rows between two calls of the progress callback.
const PROGRESS_ROWS: u64 = 4096;

/// Where the types of the columns come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Types {
    /// From all rows, in a pass of their own.
    #[default]
    Infer,
    /// From the first rows, at least 1; a later value that does not fit is an error.
    InferFrom {
        /// How many.
        rows: u64,
    },
    /// From a schema. Its columns are looked up by name in the header; other columns of the file are
    /// left out.
    Given(Schema),
}

/// What to do with a row of fewer fields than the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShortRows {
    /// The fields at the end are missing values; such rows are counted.
    #[default]
    Missing,
    /// It is an error.
    Refuse,
}

/// Reads a CSV file into a data set. Uses the memory of a page, a row and the decoder's buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The CSV file; `.gz` and `.zip` are uncompressed on the fly.
    pub csv: PathBuf,
    /// The data set to write.
    pub output: PathBuf,
    /// Where the types come from.
    #[serde(default)]
    pub types: Types,
    /// Fields that stand for a missing value, besides the empty one.
    #[serde(default = "missing_default")]
    pub missing: Vec<String>,
    /// What to do with rows of too few fields. Too many are always an error.
    #[serde(default)]
    pub short_rows: ShortRows,
    /// Page size of the output.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Rows written.
    pub rows: u64,
    /// Rows that had fewer fields than the header.
    pub short_rows: u64,
    /// The columns.
    pub schema: Schema,
}

fn missing_default() -> Vec<String> {
    vec!["NA".to_owned()]
}

impl Import {
    /// Reads `csv` into `output` with types inferred from all rows and `NA` as missing.
    #[must_use]
    pub fn new(csv: PathBuf, output: PathBuf) -> Import {
        Import {
            csv,
            output,
            types: Types::Infer,
            missing: missing_default(),
            short_rows: ShortRows::Missing,
            page_bytes: None,
        }
    }

    /// Runs the step. Progress counts the rows of the inferring pass too.
    ///
    /// # Errors
    /// [`Error::Csv`] with line and column if the file is not as asked; [`Error::Io`] if it cannot be
    /// read; those of writing a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Imported> {
        let (schema, seen) = match &self.types {
            Types::Given(schema) => (schema.clone(), 0),
            Types::Infer => self.infer(u64::MAX, progress)?,
            Types::InferFrom { rows } => self.infer((*rows).max(1), progress)?,
        };
        source::with_bytes(&self.csv, |bytes| self.load(bytes, schema, seen, progress))
    }

    fn infer(&self, rows_max: u64, progress: &mut Progress<'_>) -> Result<(Schema, u64)> {
        source::with_bytes(&self.csv, |bytes| {
            let mut records = Records::new(self, bytes)?;
            let mut guesses = vec![Guess::default(); records.header.len()];
            while records.rows < rows_max && records.next()? {
                for (guess, value) in guesses.iter_mut().zip(&records.record) {
                    if !self.is_missing(value) {
                        guess.see(value);
                    }
                }
                if records.rows.is_multiple_of(PROGRESS_ROWS) {
                    progress(records.rows);
                }
            }
            let columns = records
                .header
                .iter()
                .zip(&guesses)
                .map(|(name, guess)| {
                    let kind = guess.kind().ok_or_else(|| Error::Csv {
                        path: self.csv.clone(),
                        line: 1,
                        column: Some(name.clone()),
                        reason: format!("a value is longer than {TEXT_WIDTH_MAX} bytes"),
                    })?;
                    Ok(Column { name: name.clone(), kind })
                })
                .collect::<Result<Vec<_>>>()?;
            Ok((Schema::new(columns)?, records.rows))
        })
    }

    fn load(
        &self,
        bytes: &mut dyn Read,
        schema: Schema,
        seen: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Imported> {
        let mut records = Records::new(self, bytes)?;
        let fields = (0..schema.columns().len())
            .map(|i| {
                let name = &schema.columns()[i].name;
                let found = records.header.iter().position(|header| header == name);
                let position = found.ok_or_else(|| Error::Csv {
                    path: self.csv.clone(),
                    line: 1,
                    column: Some(name.clone()),
                    reason: "is not in the header".to_owned(),
                })?;
                Ok((schema.field(i), position))
            })
            .collect::<Result<Vec<_>>>()?;

        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT);
        let mut writer = Writer::create(&self.output, schema.clone(), page_bytes.0)?;
        let mut row = RowBuffer::new(&schema);
        let mut short_rows = 0;
        while records.next()? {
            row.clear();
            for (field, position) in &fields {
                // A short row has no such field: missing.
                let value = records.record.get(*position).unwrap_or_default();
                if !self.is_missing(value) {
                    set(field, row.bytes_mut(), value)
                        .map_err(|reason| records.error(Some(*position), reason))?;
                }
            }
            writer.push(row.bytes())?;
            short_rows += u64::from(records.record.len() < records.header.len());
            if records.rows.is_multiple_of(PROGRESS_ROWS) {
                progress(seen + records.rows);
            }
        }
        let rows = writer.finish()?;
        progress(seen + rows);
        Ok(Imported { rows, short_rows, schema })
    }

    #[inline]
    fn is_missing(&self, value: &[u8]) -> bool {
        let value = value.trim_ascii();
        value.is_empty() || self.missing.iter().any(|missing| missing.as_bytes() == value)
    }
}

impl Action for Import {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.csv, &mut self.output])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        Ok(Outcome::rows(self.run(progress)?.rows))
    }
}

/// Sets a field from the text of a value that is not missing. The error is the reason.
#[inline]
fn set(field: &Field, row: &mut [u8], value: &[u8]) -> std::result::Result<(), String> {
    match field {
        Field::Text(text) => {
            let value = trim_blanks(value);
            if text.set(row, value) {
                return Ok(());
            }
            let (length, width) = (value.len(), text.width());
            Err(format!("a text of {length} bytes where {width} are allowed"))
        }
        Field::Number(number) => {
            let parsed = match number.kind {
                ColumnType::Date => parse_date(value.trim_ascii()),
                ColumnType::Datetime => parse_datetime(value.trim_ascii()),
                ColumnType::Number | ColumnType::Text { .. } => parse_number(value.trim_ascii()),
            };
            if number.kind == ColumnType::Number && !is_kept(value.trim_ascii()) {
                let shown = String::from_utf8_lossy(value.trim_ascii()).into_owned();
                return Err(format!(
                    "{shown} has more digits than a number keeps (whole numbers up to 2^53 = \
                     9007199254740992): import the column as text"
                ));
            }
            let parsed = parsed.ok_or_else(|| {
                let shown: String = String::from_utf8_lossy(value).chars().take(40).collect();
                format!("\"{shown}\" is not a {}", number.kind.name())
            })?;
            number.set(row, parsed);
            Ok(())
        }
    }
}

/// A finite decimal number; the words for infinity and NaN that Rust would take are refused.
#[inline]
fn parse_number(text: &[u8]) -> Option<f64> {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if !digits.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.') {
        return None;
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// Whether a number keeps all digits of a text that is a whole number: beyond 2^53 doubles leave some out, and
/// two keys could become one.
#[inline]
fn is_kept(text: &[u8]) -> bool {
    /// All whole numbers of so many digits are kept.
    const SAFE_DIGITS: usize = 15;
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if digits.len() <= SAFE_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return true;
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    number.is_some_and(|number| number <= 1 << 53)
}

/// What a column may be, given the values seen so far.
#[derive(Clone, Debug)]
struct Guess {
    number: bool,
    date: bool,
    datetime: bool,
    seen: bool,
    width: usize,
}

impl Default for Guess {
    fn default() -> Guess {
        Guess { number: true, date: true, datetime: true, seen: false, width: 1 }
    }
}

impl Guess {
    fn see(&mut self, value: &[u8]) {
        self.seen = true;
        self.width = self.width.max(trim_blanks(value).len());
        let value = value.trim_ascii();
        self.number = self.number && parse_number(value).is_some() && is_kept(value);
        self.date = self.date && parse_date(value).is_some();
        self.datetime = self.datetime && parse_datetime(value).is_some();
    }

    /// The type; a column without values is a number. `None` if a text is too wide.
    fn kind(&self) -> Option<ColumnType> {
        if self.number || !self.seen {
            Some(ColumnType::Number)
        } else if self.date {
            Some(ColumnType::Date)
        } else if self.datetime {
            Some(ColumnType::Datetime)
        } else {
            let width = u16::try_from(self.width).ok().filter(|width| *width <= TEXT_WIDTH_MAX)?;
            Some(ColumnType::Text { width })
        }
    }
}

/// Counts quotes and remembers the last byte, to notice a quoted field that is never closed.
struct Watch<'a> {
    /// The first bytes, which were looked at and are still to be read.
    first: Vec<u8>,
    bytes: &'a mut dyn Read,
    quotes: u64,
    last: u8,
}

impl Read for Watch<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = if self.first.is_empty() {
            self.bytes.read(buffer)?
        } else {
            let count = self.first.len().min(buffer.len());
            buffer[..count].copy_from_slice(&self.first[..count]);
            self.first.drain(..count);
            count
        };
        let read = &buffer[..count];
        self.quotes += read.iter().filter(|&&byte| byte == b'"').count() as u64;
        self.last = read.last().copied().unwrap_or(self.last);
        Ok(count)
    }
}

impl Watch<'_> {
    /// Refuses text in UTF-16: by its byte order mark, or by zero bytes at every other place of the start.
    fn refuse_utf16(&mut self, path: &Path) -> Result<()> {
        const LOOKED_AT: u64 = 512;
        self.first.clear();
        let mut start = Read::take(&mut *self.bytes, LOOKED_AT);
        start.read_to_end(&mut self.first).map_err(Error::io("read", path))?;
        let zeros = |odd: usize| {
            let places = self.first.iter().skip(odd).step_by(2);
            !self.first.is_empty()
                && places.filter(|byte| **byte == 0).count() * 4 > self.first.len()
        };
        let order = match self.first.as_slice() {
            [0xff, 0xfe, ..] => Some("UTF-16LE"),
            [0xfe, 0xff, ..] => Some("UTF-16BE"),
            _ if zeros(1) => Some("UTF-16LE"),
            _ if zeros(0) => Some("UTF-16BE"),
            _ => None,
        };
        let Some(order) = order else { return Ok(()) };
        let reason = format!(
            "the file is {order} text, not UTF-8; convert it: iconv -f {order} -t UTF-8 FILE > NEW"
        );
        Err(Error::Csv { path: path.to_owned(), line: 1, column: None, reason })
    }
}

/// The records of a CSV file after its header.
struct Records<'a> {
    path: &'a Path,
    short_rows: ShortRows,
    reader: csv::Reader<Watch<'a>>,
    header: Vec<String>,
    record: ByteRecord,
    /// Records read.
    rows: u64,
    /// The line on which the record read last starts.
    line: u64,
    /// Its fields.
    fields: usize,
    /// Whether its last field ends in a line end, as only a quoted one can.
    ends_in_newline: bool,
}

impl<'a> Records<'a> {
    fn new(import: &'a Import, bytes: &'a mut dyn Read) -> Result<Records<'a>> {
        let path = import.csv.as_path();
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .has_headers(false)
            .buffer_capacity(256 << 10)
            .from_reader(Watch { first: Vec::new(), bytes, quotes: 0, last: b'\n' });
        let mut record = ByteRecord::new();
        reader.get_mut().refuse_utf16(path)?;
        let problem =
            |column, reason: String| Error::Csv { path: path.to_owned(), line: 1, column, reason };
        if !reader.read_byte_record(&mut record).map_err(|error| csv_error(path, error))? {
            return Err(problem(None, "the file is empty; a header is expected".to_owned()));
        }
        let mut header: Vec<String> = Vec::with_capacity(record.len());
        for (i, name) in record.iter().enumerate() {
            let name =
                if i == 0 { name.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(name) } else { name };
            let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
            if name.is_empty() || name.len() > 255 {
                let reason = format!("column {} has no name or one over 255 bytes", i + 1);
                return Err(problem(None, reason));
            }
            if header.contains(&name) {
                return Err(problem(Some(name), "is in the header twice".to_owned()));
            }
            header.push(name);
        }
        Ok(Records {
            path,
            short_rows: import.short_rows,
            reader,
            header,
            record,
            rows: 0,
            line: 1,
            fields: 0,
            ends_in_newline: false,
        })
    }

    /// Reads the next record; false at the end.
    fn next(&mut self) -> Result<bool> {
        let more = self
            .reader
            .read_byte_record(&mut self.record)
            .map_err(|error| csv_error(self.path, error))?;
        if !more {
            return self.check_end().map(|()| false);
        }
        self.rows += 1;
        self.line = self.record.position().map_or(0, csv::Position::line);
        self.fields = self.record.len();
        self.ends_in_newline = self.record.as_slice().ends_with(b"\n");
        let columns = self.header.len();
        if self.fields > columns {
            let reason = format!("{} fields where the header has {columns}", self.fields);
            return Err(self.error(None, reason));
        }
        match self.short_rows {
            ShortRows::Refuse if self.fields < columns => {
                let reason = format!("only {} fields where the header has {columns}", self.fields);
                Err(self.error(Some(self.fields), reason))
            }
            ShortRows::Refuse | ShortRows::Missing => Ok(true),
        }
    }

    /// Refuses a file whose last record ends in a quoted field that is never closed: such a field
    /// takes in everything up to the end of the file, and the decoder does not mind.
    fn check_end(&self) -> Result<()> {
        let watch = self.reader.get_ref();
        let to_the_end = self.ends_in_newline || watch.last != b'\n';
        if watch.quotes % 2 == 1 && to_the_end && self.fields > 0 {
            return Err(
                self.error(Some(self.fields - 1), "a quoted field is not closed".to_owned())
            );
        }
        Ok(())
    }

    fn error(&self, position: Option<usize>, reason: String) -> Error {
        Error::Csv {
            path: self.path.to_owned(),
            line: self.line,
            column: position.and_then(|position| self.header.get(position).cloned()),
            reason,
        }
    }
}

fn csv_error(path: &Path, error: csv::Error) -> Error {
    let line = error.position().map_or(0, csv::Position::line);
    let reason = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(source) => Error::Io { action: "read", path: path.to_owned(), source },
        _ => Error::Csv { path: path.to_owned(), line, column: None, reason },
    }
}

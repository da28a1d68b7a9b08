//! Reads a data set page by page, in the memory of one page.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::format::{self, FIXED_BYTES, Layout, PAGE_HEADER_BYTES, State};
use super::row::{Field, NumberField};
use super::schema::Schema;
use crate::error::{Error, Result};

/// Reads a data set, one page per read call. Every page is checked before a row of it is seen.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    schema: Schema,
    layout: Layout,
    rows: u64,
    pages: u64,
    page: Vec<u8>,
    /// Number of the page that follows the one in `page`.
    next_page: u64,
    /// Rows in `page`.
    rows_in_page: usize,
    /// Rows of `page` already handed out.
    rows_taken: usize,
    /// Data pages read so far.
    pages_read: u64,
}

/// The rows of one page.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    /// The rows in order, each as its bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks_exact(self.row_bytes)
    }

    /// How many rows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// The bytes of all rows, one after another.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first rows, `count` of them or as many as there are.
    #[must_use]
    pub fn first(&self, count: usize) -> Rows<'a> {
        let end = count.saturating_mul(self.row_bytes).min(self.bytes.len());
        Rows { bytes: &self.bytes[..end], row_bytes: self.row_bytes }
    }

    /// The rows in pieces of `count`, the last one of those that are left.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn chunks(&self, count: usize) -> impl Iterator<Item = Rows<'a>> + use<'a> {
        let row_bytes = self.row_bytes;
        self.bytes.chunks(count * row_bytes).map(move |bytes| Rows { bytes, row_bytes })
    }
}

impl Reader {
    /// Opens the data set at `path` and checks its header and its length.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the file is no data set, or is cut off or changed; [`Error::Unfinished`]
    /// if its writer was interrupted; [`Error::Io`] if it cannot be read.
    pub fn open(path: &Path) -> Result<Reader> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("stat", path))?.len();
        let damaged = |page, reason| Error::Damaged { path: path.to_owned(), page, reason };
        let cut = |needed: usize| {
            damaged(0, format!("cut off: {length} bytes, the header alone needs {needed}"))
        };

        if length < FIXED_BYTES as u64 {
            return Err(cut(FIXED_BYTES));
        }
        let mut fixed = [0; FIXED_BYTES];
        file.read_exact_at(&mut fixed, 0).map_err(Error::io("read", path))?;
        let fixed = format::decode_fixed(&fixed).map_err(|reason| damaged(0, reason))?;
        if length < fixed.header_bytes as u64 {
            return Err(cut(fixed.header_bytes));
        }
        let mut header = vec![0; fixed.header_bytes];
        file.read_exact_at(&mut header, 0).map_err(Error::io("read", path))?;
        let (schema, layout, state) =
            format::decode_header(&fixed, &mut header).map_err(|reason| damaged(0, reason))?;
        match state {
            State::Writing => return Err(Error::Unfinished { path: path.to_owned() }),
            State::Finished => {}
        }
        if layout.file_bytes(fixed.rows) != Some(length) {
            let page = length / layout.page_bytes as u64;
            let expected = layout
                .file_bytes(fixed.rows)
                .map_or_else(|| "more than a file can hold".to_owned(), |b| b.to_string());
            let reason = format!(
                "{length} bytes where {} rows need {expected}: cut off or changed",
                fixed.rows
            );
            return Err(damaged(page, reason));
        }
        Ok(Reader {
            path: path.to_owned(),
            file,
            rows: fixed.rows,
            pages: layout.pages(fixed.rows),
            page: Vec::new(),
            next_page: layout.header_pages,
            rows_in_page: 0,
            rows_taken: 0,
            pages_read: 0,
            schema,
            layout,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The columns.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Rows in the data set.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.layout.page_bytes as u64
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes(self.rows).unwrap_or(u64::MAX)
    }

    /// Rows in every page but the last.
    #[must_use]
    pub fn rows_per_page(&self) -> usize {
        self.layout.rows_per_page()
    }

    /// Data pages read so far; a page that is read again counts again.
    #[must_use]
    pub fn pages_read(&self) -> u64 {
        self.pages_read
    }

    /// Where the column named `name` lies in a row.
    ///
    /// # Errors
    /// [`Error::Column`] if there is none; the reason names the columns there are.
    pub fn field(&self, name: &str) -> Result<Field> {
        if let Some(position) = self.schema.position(name) {
            return Ok(self.schema.field(position));
        }
        let names: Vec<&str> =
            self.schema.columns().iter().take(40).map(|column| column.name.as_str()).collect();
        Err(self.bad_column(name, format!("does not exist; there are: {}", names.join(", "))))
    }

    /// Where the number, date or time named `name` lies in a row.
    ///
    /// # Errors
    /// [`Error::Column`] if there is none or it is a text.
    pub fn number_field(&self, name: &str) -> Result<NumberField> {
        match self.field(name)? {
            Field::Number(field) => Ok(field),
            Field::Text(_) => Err(self.bad_column(name, "is a text, not a number".to_owned())),
        }
    }

    fn bad_column(&self, name: &str, reason: String) -> Error {
        Error::Column { path: self.path.clone(), column: name.to_owned(), reason }
    }

    /// The next rows that are not yet taken, up to the end of their page; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the page is not what was written; [`Error::Io`] if it cannot be read.
    pub fn next_rows(&mut self) -> Result<Option<Rows<'_>>> {
        if self.rows_taken == self.rows_in_page && !self.load_next()? {
            return Ok(None);
        }
        let row_bytes = self.layout.row_bytes;
        let start = PAGE_HEADER_BYTES + self.rows_taken * row_bytes;
        let end = PAGE_HEADER_BYTES + self.rows_in_page * row_bytes;
        self.rows_taken = self.rows_in_page;
        Ok(Some(Rows { bytes: &self.page[start..end], row_bytes }))
    }

    /// Takes the next row, which [`Reader::current`] then shows; false at the end.
    ///
    /// # Errors
    /// As [`Reader::next_rows`].
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        if self.rows_taken == self.rows_in_page && !self.load_next()? {
            return Ok(false);
        }
        self.rows_taken += 1;
        Ok(true)
    }

    /// The row taken last.
    ///
    /// # Panics
    /// If no row was taken from the page at hand.
    #[inline]
    #[must_use]
    pub fn current(&self) -> &[u8] {
        let end = PAGE_HEADER_BYTES + self.rows_taken * self.layout.row_bytes;
        &self.page[end - self.layout.row_bytes..end]
    }

    /// Goes to the row at `index` (from 0), which is the next one to be taken; past the last row, to
    /// the end. Within the page at hand nothing is read.
    ///
    /// # Errors
    /// As [`Reader::next_rows`].
    pub fn seek(&mut self, index: u64) -> Result<()> {
        let per_page = self.layout.rows_per_page() as u64;
        if index >= self.rows {
            (self.rows_in_page, self.rows_taken) = (0, 0);
            self.next_page = self.pages;
            return Ok(());
        }
        let page = self.layout.header_pages + index / per_page;
        if self.rows_in_page == 0 || page + 1 != self.next_page {
            (self.rows_in_page, self.rows_taken) = (0, 0);
            self.next_page = page;
            self.load_next()?;
        }
        self.rows_taken = (index % per_page) as usize;
        Ok(())
    }

    /// Reads the next page; false at the end.
    fn load_next(&mut self) -> Result<bool> {
        if self.next_page >= self.pages {
            return Ok(false);
        }
        let rows = self.layout.rows_in_page(self.next_page, self.rows);
        self.page.resize(self.layout.page_length(rows), 0);
        let offset = self.next_page * self.layout.page_bytes as u64;
        self.file.read_exact_at(&mut self.page, offset).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                self.damaged("cut off while it was being read".to_owned())
            } else {
                Error::io("read", &self.path)(error)
            }
        })?;
        format::check_page(&self.page, self.next_page, rows)
            .map_err(|reason| self.damaged(reason))?;
        self.next_page += 1;
        self.pages_read += 1;
        (self.rows_in_page, self.rows_taken) = (rows, 0);
        Ok(true)
    }

    fn damaged(&self, reason: String) -> Error {
        Error::Damaged { path: self.path.clone(), page: self.next_page, reason }
    }
}

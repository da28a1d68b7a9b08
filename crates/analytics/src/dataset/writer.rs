//! Writes a data set front to back.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::format::{self, Layout, PAGE_HEADER_BYTES, State};
use super::schema::Schema;
use crate::error::{Error, Result};

/// Writes a data set, one page per write call, in the memory of one page. Dropped before
/// [`Writer::finish`], it removes its file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    schema: Schema,
    layout: Layout,
    page: Vec<u8>,
    /// Rows in `page`.
    rows_in_page: usize,
    /// Number of the page being filled.
    page_number: u64,
    /// Rows in the pages already written.
    rows_written: u64,
    finished: bool,
}

impl Writer {
    /// Creates the file at `path`, replacing what was there.
    ///
    /// # Errors
    /// [`Error::Setting`] if the page size is out of bounds or a row does not fit in a page;
    /// [`Error::Io`] if the file cannot be written.
    pub fn create(path: &Path, schema: Schema, page_bytes: u64) -> Result<Writer> {
        let layout = Layout::new(&schema, page_bytes)?;
        let file = File::create(path).map_err(Error::io("create", path))?;
        let writer = Writer {
            path: path.to_owned(),
            file,
            page: vec![0; layout.page_bytes],
            rows_in_page: 0,
            page_number: layout.header_pages,
            rows_written: 0,
            finished: false,
            schema,
            layout,
        };
        let header = format::encode_header(&writer.schema, &layout, State::Writing, 0);
        (&writer.file).write_all(&header).map_err(Error::io("write", path))?;
        Ok(writer)
    }

    /// The columns.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows pushed so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows_written + self.rows_in_page as u64
    }

    /// Adds a row of the data set's columns.
    ///
    /// # Errors
    /// [`Error::Io`] if a full page cannot be written.
    ///
    /// # Panics
    /// If `row` is not a row of the schema by its length.
    #[inline]
    pub fn push(&mut self, row: &[u8]) -> Result<()> {
        let row_bytes = self.layout.row_bytes;
        assert_eq!(row.len(), row_bytes, "a row of another schema");
        let start = PAGE_HEADER_BYTES + self.rows_in_page * row_bytes;
        self.page[start..start + row_bytes].copy_from_slice(row);
        self.rows_in_page += 1;
        if self.rows_in_page == self.layout.rows_per_page() { self.write_page() } else { Ok(()) }
    }

    fn write_page(&mut self) -> Result<()> {
        let page = &mut self.page[..self.layout.page_length(self.rows_in_page)];
        format::seal_page(page, self.page_number, self.rows_in_page);
        self.file.write_all(page).map_err(Error::io("write", &self.path))?;
        self.page_number += 1;
        self.rows_written += self.rows_in_page as u64;
        self.rows_in_page = 0;
        Ok(())
    }

    /// Writes what is left and marks the file as finished. Nothing is synced. Returns the number of
    /// rows.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written; it is removed.
    pub fn finish(mut self) -> Result<u64> {
        if self.rows_in_page > 0 {
            self.write_page()?;
        }
        let rows = self.rows_written;
        let header = format::encode_header(&self.schema, &self.layout, State::Finished, rows);
        self.file.write_all_at(&header, 0).map_err(Error::io("write", &self.path))?;
        self.finished = true;
        Ok(rows)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

//! The data set: a file of fixed-width rows in pages.
//!
//! # Invariants
//! - A file is a header of whole pages, then data pages of `page_bytes` each; the last data page is
//!   cut after its last row. Pages start at multiples of `page_bytes`.
//! - A row never crosses a page. Every data page carries a checksum over all of it and its own page
//!   number, so that a page that was changed, cut off or misplaced is noticed.
//! - The file is written front to back, one write call per page, and grows as it is written; nothing
//!   is preallocated. Only the header is written twice.
//!
//! # The bytes
//! All integers are little endian. Header (page 0 and, with very many columns, the pages after it;
//! zero after its last column):
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `FOREBAYD` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | CRC-32 (IEEE) of the header's bytes, these four taken as zero |
//! | 16 | 4 | `page_bytes`: a multiple of 4096 from 4 KiB to 16 MiB |
//! | 20 | 4 | state: 0 being written, 1 finished |
//! | 24 | 8 | rows |
//! | 32 | 4 | bytes of a row |
//! | 36 | 4 | columns |
//! | 40 | 4 | pages of the header |
//! | 44 | 4 | bytes of the header (this table and the columns) |
//! | 48 | | columns, one after another |
//!
//! A column:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | type: 1 number, 2 date, 3 date and time, 4 text |
//! | 1 | 1 | bytes of the name, 1 to 255 |
//! | 2 | 2 | bytes in the row: 8, or the width of a text |
//! | 4 | | name, UTF-8 |
//!
//! A data page:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC-32 (IEEE) of the rest of the page as it lies in the file |
//! | 4 | 4 | rows in the page |
//! | 8 | 8 | number of the page in the file; the header is page 0 |
//! | 16 | | rows; then zeros to the end of the page, unless it is the cut last page |
//!
//! A row is its columns one after another, unaligned. A number is an IEEE 754 double; a missing one
//! is the quiet NaN `0x7FF8_4D49_5353_4E47` ("MISSNG" in its payload), and any other NaN reads as
//! missing too. A date is a number of days, a date and time a number of seconds, since 1970-01-01
//! UTC. A text is bytes (by convention UTF-8) padded with blanks; trailing blanks do not count and a
//! blank text is missing.
//!
//! # What survives a crash
//! Until [`Writer::finish`] the header says "being written" and a reader refuses the file. Nothing is
//! synced: after a power cut a finished header may stand before pages that never reached the disk;
//! the file's length and the checksums tell. A writer dropped before `finish` removes its file.
//!
//! # What it does not do
//! No compression, no index, no change in place, no appending to a finished file.

mod date;
mod format;
mod projection;
mod reader;
mod row;
mod schema;
mod writer;

pub use date::{format_date, format_datetime, parse_date, parse_datetime};
pub use format::{
    PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGE_HEADER_BYTES, check_page_bytes,
};
pub use projection::Projection;
pub use reader::{Reader, Rows};
pub use row::{Field, MISSING, NumberField, RowBuffer, TextField, is_missing, trim_blanks};
pub use schema::{COLUMNS_MAX, Column, ColumnType, Schema, TEXT_WIDTH_MAX};
pub use writer::Writer;

//! The bytes of headers and pages; drawn in the documentation of the parent module.

use crc32fast::Hasher;
use forebay_base::ByteSize;

use super::schema::{COLUMNS_MAX, Column, ColumnType, Schema};
use crate::error::{Error, Result};

/// The page size unless told otherwise: 256 KiB.
pub const PAGE_BYTES_DEFAULT: ByteSize = ByteSize::kib(256);
/// The smallest page: 4 KiB.
pub const PAGE_BYTES_MIN: u64 = 4 << 10;
/// The largest page: 16 MiB.
pub const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a data page before its first row.
pub const PAGE_HEADER_BYTES: usize = 16;

/// Bytes of the header before its first column.
pub(super) const FIXED_BYTES: usize = 48;
/// Bytes of a column before its name.
const COLUMN_FIXED_BYTES: usize = 4;
const MAGIC: [u8; 8] = *b"FOREBAYD";
const VERSION: u32 = 1;
const CHECKSUM_AT: usize = 12;
const HEADER_BYTES_MAX: usize = FIXED_BYTES + COLUMNS_MAX * (COLUMN_FIXED_BYTES + 255);

/// Whether the writer of a file has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Writing,
    Finished,
}

/// Where the pages of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub page_bytes: usize,
    pub row_bytes: usize,
    pub header_pages: u64,
}

impl Layout {
    /// Lays out a file of `schema` in pages of `page_bytes`.
    pub fn new(schema: &Schema, page_bytes: u64) -> Result<Layout> {
        let row_bytes = schema.row_bytes();
        let needed = (row_bytes + PAGE_HEADER_BYTES) as u64;
        if !valid_page_bytes(page_bytes) || needed > page_bytes {
            let least = PAGE_BYTES_MIN.max(needed.next_multiple_of(PAGE_BYTES_MIN));
            return Err(Error::Setting {
                setting: "page_bytes",
                value: page_bytes.to_string(),
                allowed: format!(
                    "a multiple of {PAGE_BYTES_MIN} from {least} (rows of {row_bytes} bytes) to \
                     {PAGE_BYTES_MAX}"
                ),
            });
        }
        let header_pages = (header_bytes(schema) as u64).div_ceil(page_bytes);
        Ok(Layout { page_bytes: page_bytes as usize, row_bytes, header_pages })
    }

    pub fn rows_per_page(&self) -> usize {
        (self.page_bytes - PAGE_HEADER_BYTES) / self.row_bytes
    }

    /// Pages of the file, those of the header included.
    pub fn pages(&self, rows: u64) -> u64 {
        self.header_pages + rows.div_ceil(self.rows_per_page() as u64)
    }

    /// Rows in page `page` of a file of `rows` rows.
    pub fn rows_in_page(&self, page: u64, rows: u64) -> usize {
        let per_page = self.rows_per_page() as u64;
        let before = (page - self.header_pages) * per_page;
        rows.saturating_sub(before).min(per_page) as usize
    }

    /// Bytes of a data page of `rows` rows: a full page is whole, any other is cut.
    pub fn page_length(&self, rows: usize) -> usize {
        if rows == self.rows_per_page() {
            self.page_bytes
        } else {
            PAGE_HEADER_BYTES + rows * self.row_bytes
        }
    }

    /// Bytes of a file of `rows` rows, or `None` if no file can be that long.
    pub fn file_bytes(&self, rows: u64) -> Option<u64> {
        let per_page = self.rows_per_page() as u64;
        let rest = (rows % per_page) as usize;
        let last = if rest == 0 { 0 } else { self.page_length(rest) as u64 };
        self.header_pages
            .checked_add(rows / per_page)?
            .checked_mul(self.page_bytes as u64)?
            .checked_add(last)
    }
}

impl Schema {
    /// Bytes of a file of `rows` rows in pages of `page_bytes`.
    ///
    /// # Errors
    /// [`Error::Setting`] if the page size is out of bounds, a row does not fit in a page or no file
    /// can be that long.
    pub fn file_bytes(&self, rows: u64, page_bytes: u64) -> Result<u64> {
        Layout::new(self, page_bytes)?.file_bytes(rows).ok_or_else(|| Error::Setting {
            setting: "rows",
            value: rows.to_string(),
            allowed: "as many as fit in a file".to_owned(),
        })
    }

    /// Rows of the longest file of at most `bytes` in pages of `page_bytes`; 0 if not even one fits.
    ///
    /// # Errors
    /// As [`Schema::file_bytes`].
    pub fn rows_in(&self, bytes: u64, page_bytes: u64) -> Result<u64> {
        let layout = Layout::new(self, page_bytes)?;
        let data = bytes.saturating_sub(layout.header_pages * page_bytes);
        let last = (data % page_bytes).saturating_sub(PAGE_HEADER_BYTES as u64);
        let per_page = layout.rows_per_page() as u64;
        // A page that is full is whole: its last row needs the rest of the page too.
        let in_last = (last / layout.row_bytes as u64).min(per_page - 1);
        Ok(data / page_bytes * per_page + in_last)
    }
}

/// Refuses a page size that no data set can have.
///
/// # Errors
/// [`Error::Setting`].
pub fn check_page_bytes(page_bytes: u64) -> Result<()> {
    if valid_page_bytes(page_bytes) {
        return Ok(());
    }
    let [least, most] = [PAGE_BYTES_MIN, PAGE_BYTES_MAX].map(forebay_base::ByteSize);
    Err(Error::Setting {
        setting: "page_bytes",
        value: forebay_base::ByteSize(page_bytes).to_string(),
        allowed: format!("a multiple of {least} from {least} to {most}"),
    })
}

fn valid_page_bytes(page_bytes: u64) -> bool {
    (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes)
        && page_bytes.is_multiple_of(PAGE_BYTES_MIN)
}

fn header_bytes(schema: &Schema) -> usize {
    let columns = schema.columns().iter();
    FIXED_BYTES + columns.map(|column| COLUMN_FIXED_BYTES + column.name.len()).sum::<usize>()
}

/// The header's pages, padded with zeros.
pub(super) fn encode_header(schema: &Schema, layout: &Layout, state: State, rows: u64) -> Vec<u8> {
    let length = header_bytes(schema);
    let mut bytes = Vec::with_capacity(layout.header_pages as usize * layout.page_bytes);
    bytes.extend_from_slice(&MAGIC);
    let state: u32 = match state {
        State::Writing => 0,
        State::Finished => 1,
    };
    for word in [VERSION, 0, layout.page_bytes as u32, state] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&rows.to_le_bytes());
    let columns = schema.columns();
    for word in [layout.row_bytes, columns.len(), layout.header_pages as usize, length] {
        bytes.extend_from_slice(&(word as u32).to_le_bytes());
    }
    for column in columns {
        bytes.push(match column.kind {
            ColumnType::Number => 1,
            ColumnType::Date => 2,
            ColumnType::Datetime => 3,
            ColumnType::Text { .. } => 4,
        });
        bytes.push(column.name.len() as u8);
        bytes.extend_from_slice(&column.kind.width().to_le_bytes());
        bytes.extend_from_slice(column.name.as_bytes());
    }
    let checksum = crc32fast::hash(&bytes);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes.resize(layout.header_pages as usize * layout.page_bytes, 0);
    bytes
}

/// The fixed part of a header, checked as far as it can be without the columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedHeader {
    pub page_bytes: u64,
    pub state: u32,
    pub rows: u64,
    pub row_bytes: u32,
    pub columns: u32,
    pub header_pages: u32,
    pub header_bytes: usize,
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

/// Reads the fixed part. The error is the reason.
pub(super) fn decode_fixed(bytes: &[u8; FIXED_BYTES]) -> std::result::Result<FixedHeader, String> {
    if bytes[..8] != MAGIC {
        return Err("not a data set (the file does not start with FOREBAYD)".to_owned());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(format!("format version {version}; this program reads version {VERSION}"));
    }
    let fixed = FixedHeader {
        page_bytes: u64::from(u32_at(bytes, 16)),
        state: u32_at(bytes, 20),
        rows: u64_at(bytes, 24),
        row_bytes: u32_at(bytes, 32),
        columns: u32_at(bytes, 36),
        header_pages: u32_at(bytes, 40),
        header_bytes: u32_at(bytes, 44) as usize,
    };
    if !(FIXED_BYTES..=HEADER_BYTES_MAX).contains(&fixed.header_bytes) {
        return Err(format!("header of {} bytes", fixed.header_bytes));
    }
    if !valid_page_bytes(fixed.page_bytes) {
        return Err(format!("page size of {} bytes", fixed.page_bytes));
    }
    Ok(fixed)
}

/// Reads the whole header: its columns, layout, state and rows. `bytes` are as many as the fixed
/// part says. The error is the reason.
pub(super) fn decode_header(
    fixed: &FixedHeader,
    bytes: &mut [u8],
) -> std::result::Result<(Schema, Layout, State), String> {
    let stored = u32_at(bytes, CHECKSUM_AT);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32fast::hash(bytes);
    if checksum != stored {
        return Err(format!("header checksum is {stored:08x} but its bytes give {checksum:08x}"));
    }
    let schema = Schema::new(decode_columns(fixed.columns, &bytes[FIXED_BYTES..])?)
        .map_err(|error| format!("bad header: {error}"))?;
    let layout =
        Layout::new(&schema, fixed.page_bytes).map_err(|error| format!("bad header: {error}"))?;
    if layout.row_bytes != fixed.row_bytes as usize
        || layout.header_pages != u64::from(fixed.header_pages)
    {
        return Err("bad header: its columns do not fit its row size or its pages".to_owned());
    }
    let state = match fixed.state {
        0 => State::Writing,
        1 => State::Finished,
        other => return Err(format!("bad header: state {other}")),
    };
    Ok((schema, layout, state))
}

fn decode_columns(count: u32, mut bytes: &[u8]) -> std::result::Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    for number in 1..=count {
        let cut = || format!("bad header: column {number} is cut off");
        let (fixed, rest) = bytes.split_at_checked(COLUMN_FIXED_BYTES).ok_or_else(cut)?;
        let (name, rest) = rest.split_at_checked(usize::from(fixed[1])).ok_or_else(cut)?;
        bytes = rest;
        let width = u16::from_le_bytes([fixed[2], fixed[3]]);
        let kind = match (fixed[0], width) {
            (1, 8) => ColumnType::Number,
            (2, 8) => ColumnType::Date,
            (3, 8) => ColumnType::Datetime,
            (4, width) => ColumnType::Text { width },
            (kind, width) => {
                return Err(format!("bad header: column {number} of type {kind}, width {width}"));
            }
        };
        let name = std::str::from_utf8(name)
            .map_err(|_| format!("bad header: the name of column {number} is not UTF-8"))?;
        columns.push(Column { name: name.to_owned(), kind });
    }
    if bytes.is_empty() {
        Ok(columns)
    } else {
        Err("bad header: bytes after the last column".to_owned())
    }
}

/// Fills in the header of a data page that lies in `page` as it will in the file.
pub(super) fn seal_page(page: &mut [u8], number: u64, rows: usize) {
    page[4..8].copy_from_slice(&(rows as u32).to_le_bytes());
    page[8..16].copy_from_slice(&number.to_le_bytes());
    let checksum = page_checksum(page);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks a data page against its own header. The error is the reason.
pub(super) fn check_page(page: &[u8], number: u64, rows: usize) -> std::result::Result<(), String> {
    let (stored, checksum) = (u32_at(page, 0), page_checksum(page));
    if stored != checksum {
        return Err(format!("checksum is {stored:08x} but the page's bytes give {checksum:08x}"));
    }
    let (stored, stored_rows) = (u64_at(page, 8), u32_at(page, 4));
    if stored != number {
        return Err(format!("holds page {stored}: the page is misplaced"));
    }
    if stored_rows as usize != rows {
        return Err(format!("holds {stored_rows} rows where {rows} are expected"));
    }
    Ok(())
}

fn page_checksum(page: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&page[4..]);
    hasher.finalize()
}

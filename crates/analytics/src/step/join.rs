//! Join: brings together the rows of two data sets that have the same keys.
//!
//! A hash join. If the needed columns of the smaller side fit in the sort memory, its rows are kept in
//! a hash table and the other side streams past. Otherwise both sides are split by the hash of their
//! keys into utility files, such that rows with the same key meet in the same pair of files, and each
//! pair is joined in the same way (a grace hash join: M. Kitsuregawa, H. Tanaka, T. Moto-oka, New
//! Generation Computing 1, 1983). Where splitting does not help, because too many rows have one key,
//! the left side is taken in blocks of the sort memory, and the right side is read once for each.
//!
//! # Order of the rows
//! The same inputs, settings and memory give the same order. Joined in memory with the right side kept:
//! the left side's, and the right side's for each left row. With the left side kept, being smaller:
//! pairs in the right side's order, then left rows without a partner in the left side's; `semi` and
//! `anti` in the left side's. Split: one pair of files after another, after the left rows with a missing
//! key.
//!
//! Missing keys never match. The directory with the utility files is removed at the end, at an error and
//! when the step is dropped; only a killed process leaves it.

mod block;
mod side;
mod split;

use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use self::block::Block;
use self::side::SideColumns;
use super::Progress;
use super::output::refuse_input;
use super::sort::{SORT_MEMORY_DEFAULT, SORT_MEMORY_MIN};
use crate::dataset::{Column, PAGE_BYTES_DEFAULT, Reader, RowBuffer, Schema, Writer};
use crate::error::{Error, Result};
use crate::scratch::ScratchDir;
use crate::step::{Action, Context, Outcome};

/// The most files that a side is split into at a time.
const PARTITIONS_MAX: u64 = 64;
/// The fewest, unless fewer are needed, that the pages of utility files are cut down for.
const PARTITIONS_WANTED: u64 = 16;
/// How often a file is split again.
const LEVELS_MAX: u64 = 4;

/// Joins two data sets. Uses the sort memory and a few pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The left data set.
    pub left: PathBuf,
    /// The right data set.
    pub right: PathBuf,
    /// The data set to write.
    pub output: PathBuf,
    /// The columns that must be equal.
    pub on: Vec<On>,
    /// Which rows are written.
    #[serde(default)]
    pub kind: JoinKind,
    /// The left side's columns in the output; all if left out. `x*` stands for all that start with
    /// `x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_columns: Option<Vec<String>>,
    /// The right side's columns in the output; all but those of `on` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_columns: Option<Vec<String>>,
    /// What is put before the name of a right column that a left one has too.
    #[serde(default = "right_prefix_default")]
    pub right_prefix: String,
    /// The directory for utility files.
    pub util: PathBuf,
    /// Memory for rows and keys, at least [`SORT_MEMORY_MIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_memory: Option<ByteSize>,
    /// Page size of the output and, unless the sort memory is small, of utility files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<ByteSize>,
}

/// Columns that must be equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum On {
    /// Of one name on both sides.
    Same(String),
    /// Of two names.
    Pair {
        /// The left column.
        left: String,
        /// The right column.
        right: String,
    },
}

impl On {
    fn left(&self) -> String {
        match self {
            On::Same(name) | On::Pair { left: name, .. } => name.clone(),
        }
    }

    fn right(&self) -> String {
        match self {
            On::Same(name) | On::Pair { right: name, .. } => name.clone(),
        }
    }
}

/// Which rows a join writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinKind {
    /// Every pair of a left and a right row with the same key.
    #[default]
    Inner,
    /// These, and left rows without a partner, their right columns missing.
    Left,
    /// Left rows that have a partner, once each, without right columns.
    Semi,
    /// Left rows that have none, without right columns.
    Anti,
}

fn right_prefix_default() -> String {
    "right_".to_owned()
}

/// What a join did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Rows written.
    pub rows: u64,
    /// Rows read of both sides, those of utility files too.
    pub rows_read: u64,
    /// Pairs of utility files; 0 if a side fitted in the sort memory.
    pub partitions: u64,
    /// Blocks that left sides were cut into because splitting did not help.
    pub blocks: u64,
}

impl Join {
    /// Joins `left` and `right` where the columns `on` are equal, with 256 MiB of sort memory.
    #[must_use]
    pub fn new(
        left: PathBuf,
        right: PathBuf,
        output: PathBuf,
        on: &[&str],
        kind: JoinKind,
        util: PathBuf,
    ) -> Join {
        Join {
            left,
            right,
            output,
            on: on.iter().map(|&name| On::Same(name.to_owned())).collect(),
            kind,
            left_columns: None,
            right_columns: None,
            right_prefix: right_prefix_default(),
            util,
            sort_memory: None,
            page_bytes: None,
        }
    }

    /// Runs the step. Progress counts every row of either side once per pass over it.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist,
    /// or a number is to equal a text; those of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Joined> {
        refuse_input(&self.output, &[&self.left, &self.right])?;
        let memory = self.sort_memory.unwrap_or(SORT_MEMORY_DEFAULT);
        if memory < SORT_MEMORY_MIN {
            return Err(Error::Setting {
                setting: "sort_memory",
                value: memory.to_string(),
                allowed: format!("at least {SORT_MEMORY_MIN}"),
            });
        }
        if self.on.is_empty() {
            return Err(Error::Setting {
                setting: "on",
                value: "[]".to_owned(),
                allowed: "at least one column".to_owned(),
            });
        }
        let (left, right) = self.sides()?;
        let schema = self.schema(left.selected(), right.selected())?;
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0;
        let left_bytes = left.selected().iter().map(|c| usize::from(c.kind.width())).sum();
        let mut missing = vec![0; schema.row_bytes() - left_bytes];
        missing.copy_from_slice(&RowBuffer::new(&schema).bytes()[left_bytes..]);
        let row = vec![0; schema.row_bytes()];
        let writer = Writer::create(&self.output, schema, page_bytes)?;
        let mut task = Task {
            kind: self.kind,
            memory,
            page_bytes,
            util: &self.util,
            scratch: None,
            files: 0,
            output: Output { writer, row, left_bytes, missing },
            left,
            right,
            joined: Joined::default(),
            progress,
        };
        task.join(&self.left, &self.right, 0, None)?;
        let Task { output, scratch, joined, .. } = task;
        let rows = output.writer.finish()?;
        scratch.map_or(Ok(()), ScratchDir::remove)?;
        Ok(Joined { rows, ..joined })
    }

    /// The columns of both sides.
    fn sides(&self) -> Result<(SideColumns, SideColumns)> {
        let (left, right) = (Reader::open(&self.left)?, Reader::open(&self.right)?);
        let left_keys: Vec<String> = self.on.iter().map(On::left).collect();
        let right_keys: Vec<String> = self.on.iter().map(On::right).collect();
        let widths = side::key_widths(&left, &left_keys, &right, &right_keys)?;
        let left_side =
            SideColumns::new(&left, left_keys, widths.clone(), self.left_columns.as_deref(), &[])?;
        let none = Some(Vec::new());
        let (columns, drop) = match (self.kind, &self.right_columns) {
            (JoinKind::Semi | JoinKind::Anti, _) => (&none, Vec::new()),
            (JoinKind::Inner | JoinKind::Left, None) => (&None, right_keys.clone()),
            (JoinKind::Inner | JoinKind::Left, columns) => (columns, Vec::new()),
        };
        let right_side = SideColumns::new(&right, right_keys, widths, columns.as_deref(), &drop)?;
        Ok((left_side, right_side))
    }

    /// The columns of the output.
    fn schema(&self, left: &[Column], right: &[Column]) -> Result<Schema> {
        let mut columns = left.to_vec();
        for column in right {
            let mut column = column.clone();
            if left.iter().any(|left| left.name == column.name) {
                column.name.insert_str(0, &self.right_prefix);
            }
            columns.push(column);
        }
        Schema::new(columns)
    }
}

impl Action for Join {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.left, &mut self.right])?;
        context.resolve_all([&mut self.output, &mut self.util])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.sort_memory.get_or_insert(context.buffers.sort_memory);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let joined = self.run(progress)?;
        Ok(Outcome::rows(joined.rows)
            .with("rows_read", joined.rows_read as f64)
            .with("partitions", joined.partitions as f64)
            .with("blocks", joined.blocks as f64))
    }
}

/// The output and the row that is being put together for it.
struct Output {
    writer: Writer,
    row: Vec<u8>,
    left_bytes: usize,
    /// The right side's columns of a row without a partner.
    missing: Vec<u8>,
}

impl Output {
    fn pair(&mut self, left: &[u8], right: &[u8]) -> Result<()> {
        self.row[..self.left_bytes].copy_from_slice(left);
        self.row[self.left_bytes..].copy_from_slice(right);
        self.writer.push(&self.row)
    }

    fn alone(&mut self, left: &[u8]) -> Result<()> {
        self.row[..self.left_bytes].copy_from_slice(left);
        self.row[self.left_bytes..].copy_from_slice(&self.missing);
        self.writer.push(&self.row)
    }
}

/// A join under way.
struct Task<'a, 'b> {
    kind: JoinKind,
    memory: ByteSize,
    page_bytes: u64,
    util: &'a Path,
    scratch: Option<ScratchDir>,
    /// Utility files made so far, for their names.
    files: u64,
    output: Output,
    left: SideColumns,
    right: SideColumns,
    joined: Joined,
    progress: &'a mut Progress<'b>,
}

impl Task<'_, '_> {
    /// Joins two files. `parent_rows` are those of the smaller side that these were split off.
    fn join(
        &mut self,
        left: &Path,
        right: &Path,
        level: u64,
        parent_rows: Option<u64>,
    ) -> Result<()> {
        let (mut left, mut right) = (self.left.open(left)?, self.right.open(right)?);
        let (left_bytes, right_bytes) = (Block::bytes_of(&left), Block::bytes_of(&right));
        if left.reader.rows() == 0 {
            return Ok(());
        }
        let memory = self.memory.0;
        let smaller_rows = left.reader.rows().min(right.reader.rows());
        // A split that left most rows together met one frequent key.
        let splitting_helps =
            level < LEVELS_MAX && parent_rows.is_none_or(|rows| smaller_rows < rows / 10 * 8);
        if right_bytes <= memory && (right_bytes <= left_bytes || left_bytes > memory) {
            self.with_right_kept(&mut left, &mut right)
        } else if left_bytes <= memory {
            self.with_left_kept(&mut left, &mut right)
        } else if splitting_helps {
            let parts = (left_bytes.min(right_bytes) / (memory / 5 * 4).max(1) + 1).max(2);
            let paths = (left.reader.path().to_owned(), right.reader.path().to_owned());
            drop((left, right));
            self.split((&paths.0, &paths.1), parts, level, smaller_rows)
        } else {
            self.with_left_kept(&mut left, &mut right)
        }
    }

    fn count(&mut self, rows: usize) {
        self.joined.rows_read += rows as u64;
        (self.progress)(self.joined.rows_read);
    }
}

//! Rank: numbers the values of a column from the smallest on, or deals them into groups of equal size.
//!
//! The class columns, the ranked column and the row's number go into a narrow utility data set of their
//! own, which is sorted by class and value ([`Sort`]). It is then read by readers at different places,
//! one at the row, one that looks ahead to the last equal value and, for groups, one that looks ahead to
//! the end of the class, so that neither classes nor ties have to fit in memory. The ranks are sorted
//! back by the row's number and put beside the input's rows.

use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::output::refuse_input;
use super::{Progress, Sort};
use crate::dataset::{
    Column, Field, MISSING, NumberField, PAGE_BYTES_DEFAULT, Projection, Reader, Schema, Writer,
};
use crate::error::{Error, Result};
use crate::key::{Direction, KeyCodec, SortKey};
use crate::scratch::ScratchDir;
use crate::step::{Action, Context, Outcome};

/// The most groups.
const GROUPS_MAX: u32 = 1_000_000;

/// Adds a column of ranks; the rows keep their order. A missing value has a missing rank and counts
/// nowhere. Uses the memory of a sort and a few pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// The data set to read.
    pub input: PathBuf,
    /// The data set to write; may not be the input.
    pub output: PathBuf,
    /// The number column to rank.
    pub column: String,
    /// Name of the new column; `rank_` and the column's unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The columns that make classes, each ranked by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<String>,
    /// Whether the smallest or the largest value comes first.
    #[serde(default)]
    pub direction: Direction,
    /// What equal values get.
    #[serde(default)]
    pub ties: Ties,
    /// Instead of ranks, numbers of so many groups of equal size, from 0: `floor(rank * groups /
    /// (n + 1))`, where `n` counts the values of the class. 10 gives deciles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// The directory for utility files.
    pub util: PathBuf,
    /// Memory of the sorts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_memory: Option<ByteSize>,
    /// Page size of the output and of utility files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<ByteSize>,
}

/// What equal values get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// The mean of the ranks that they take.
    #[default]
    Mean,
    /// The lowest of these.
    Low,
    /// The highest.
    High,
    /// One rank for all, and the next value the next one.
    Dense,
}

/// Names of the columns of utility data sets, unlike those of the class columns.
struct Names {
    row: String,
    value: String,
}

impl Rank {
    /// Ranks `column` of `input` into `output`, the smallest first.
    #[must_use]
    pub fn new(input: PathBuf, output: PathBuf, column: &str, util: PathBuf) -> Rank {
        Rank {
            input,
            output,
            column: column.to_owned(),
            name: None,
            class: Vec::new(),
            direction: Direction::Ascending,
            ties: Ties::Mean,
            groups: None,
            util,
            sort_memory: None,
            page_bytes: None,
        }
    }

    /// Runs the step; returns the rows written. Progress counts every row once per pass of this step
    /// over it, not those of its sorts.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist,
    /// is of the wrong type or already exists; those of sorting and of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<u64> {
        refuse_input(&self.output, &[&self.input])?;
        if self.groups.is_some_and(|groups| !(1..=GROUPS_MAX).contains(&groups)) {
            return Err(Error::Setting {
                setting: "groups",
                value: self.groups.unwrap_or_default().to_string(),
                allowed: format!("from 1 to {GROUPS_MAX}"),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        let name = self.name.clone().unwrap_or_else(|| format!("rank_{}", self.column));
        if reader.schema().position(&name).is_some() {
            return Err(Error::Column {
                path: self.input.clone(),
                column: name,
                reason: "already exists; name the new column otherwise".to_owned(),
            });
        }
        let schema = reader.schema().with(Column::number(&name))?;
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0;
        // Made first, so that an output that cannot be written costs no sort.
        let mut output = Writer::create(&self.output, schema, page_bytes)?;
        let scratch = ScratchDir::create(&self.util, "rank")?;
        let ranks = self.ranks(&mut reader, scratch.path(), progress)?;
        self.put_beside(&mut reader, &ranks, &mut output, progress)?;
        scratch.remove()?;
        output.finish()
    }

    /// Makes a data set with the ranks in the order of the rows.
    fn ranks(
        &self,
        reader: &mut Reader,
        directory: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<PathBuf> {
        let [narrow, sorted, ranked, ranks] =
            ["narrow", "sorted", "ranked", "ranks"].map(|name| directory.join(name));
        let names = self.names();
        self.write_narrow(reader, &narrow, &names, progress)?;
        let mut by: Vec<SortKey> = self.class.iter().map(|name| SortKey::ascending(name)).collect();
        by.push(SortKey { column: names.value.clone(), direction: self.direction });
        self.sort(&narrow, &sorted, by, directory)?;
        remove(&narrow)?;
        self.write_ranked(&sorted, &ranked, &names, progress)?;
        remove(&sorted)?;
        self.sort(&ranked, &ranks, vec![SortKey::ascending(&names.row)], directory)?;
        remove(&ranked)?;
        Ok(ranks)
    }

    fn names(&self) -> Names {
        // Longer than every class column, and so unlike them.
        let longest = self.class.iter().map(String::len).max().unwrap_or(0);
        let fill = "_".repeat(longest.min(200));
        Names { row: format!("{fill}row"), value: format!("{fill}value") }
    }

    fn sort(&self, input: &Path, output: &Path, by: Vec<SortKey>, util: &Path) -> Result<()> {
        let sort = Sort::new(input.to_owned(), output.to_owned(), by, util.to_owned());
        let (sort_memory, page_bytes) = (self.sort_memory, self.page_bytes);
        Sort { sort_memory, page_bytes, ..sort }.run(&mut |_| {}).map(drop)
    }

    /// Writes the class columns, the value and the number of every row.
    fn write_narrow(
        &self,
        reader: &mut Reader,
        path: &Path,
        names: &Names,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let value = reader.number_field(&self.column)?;
        let class = Projection::new(reader, Some(&self.class), &[])?;
        let mut columns = class.columns().to_vec();
        columns.extend([Column::number(&names.value), Column::number(&names.row)]);
        let schema = Schema::new(columns)?;
        let [narrow_value, narrow_row] = last_numbers(&schema);
        let mut row = vec![0; schema.row_bytes()];
        let mut writer = self.utility(path, schema)?;
        while let Some(rows) = reader.next_rows()? {
            for input_row in rows.iter() {
                class.copy(input_row, &mut row);
                narrow_value.set(&mut row, value.get(input_row));
                narrow_row.set(&mut row, writer.rows() as f64);
                writer.push(&row)?;
            }
            progress(writer.rows());
        }
        writer.finish().map(drop)
    }

    fn utility(&self, path: &Path, schema: Schema) -> Result<Writer> {
        Writer::create(path, schema, self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0)
    }

    /// Writes the rank and the number of every row, in the order of the sorted values.
    fn write_ranked(
        &self,
        sorted: &Path,
        path: &Path,
        names: &Names,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut rows = Cursor::open(sorted, &self.class, names)?;
        let mut ties = Cursor::open(sorted, &self.class, names)?;
        let mut ends = Cursor::open(sorted, &self.class, names)?;
        let schema = Schema::new(vec![Column::number("rank"), Column::number(&names.row)])?;
        let [rank_field, row_field] = last_numbers(&schema);
        let mut row = vec![0; schema.row_bytes()];
        let mut writer = self.utility(path, schema)?;
        let mut more = rows.advance()? && ties.advance()? && ends.advance()?;
        while more {
            // One class: its values, then each stretch of equal ones.
            let class = rows.class_key.clone();
            let mut values = 0;
            while self.groups.is_some() && !ends.ended && ends.class_key == class {
                values += u64::from(!ends.value.is_nan());
                ends.advance()?;
            }
            let (mut before, mut distinct) = (0, 0);
            while more && rows.class_key == class {
                let value = rows.value;
                let mut equal = 0;
                while !ties.ended && ties.class_key == class && same(ties.value, value) {
                    equal += 1;
                    ties.advance()?;
                }
                let rank = self.rank(value, before, equal, distinct, values);
                for _ in 0..equal {
                    rank_field.set(&mut row, rank);
                    row_field.set(&mut row, rows.row);
                    writer.push(&row)?;
                    more = rows.advance()?;
                }
                if !value.is_nan() {
                    (before, distinct) = (before + equal, distinct + 1);
                }
                progress(writer.rows());
            }
        }
        writer.finish().map(drop)
    }

    /// The rank of `equal` values after `before` others of which `distinct` differ, in a class of
    /// `values`.
    fn rank(&self, value: f64, before: u64, equal: u64, distinct: u64, values: u64) -> f64 {
        if value.is_nan() {
            return MISSING;
        }
        let rank = match self.ties {
            Ties::Mean => before as f64 + (equal + 1) as f64 / 2.0,
            Ties::Low => (before + 1) as f64,
            Ties::High => (before + equal) as f64,
            Ties::Dense => (distinct + 1) as f64,
        };
        self.groups.map_or(rank, |groups| (rank * f64::from(groups) / (values + 1) as f64).floor())
    }

    /// Writes the input's rows, each with its rank.
    fn put_beside(
        &self,
        reader: &mut Reader,
        ranks: &Path,
        output: &mut Writer,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut ranks = Reader::open(ranks)?;
        let rank = ranks.number_field("rank")?;
        let [field] = last_numbers(output.schema());
        let input_bytes = reader.schema().row_bytes();
        let mut row = vec![0; output.schema().row_bytes()];
        reader.seek(0)?;
        while let Some(rows) = reader.next_rows()? {
            for input_row in rows.iter() {
                row[..input_bytes].copy_from_slice(input_row);
                // As many rows were ranked as were read.
                field.set(
                    &mut row,
                    if ranks.advance()? { rank.get(ranks.current()) } else { MISSING },
                );
                output.push(&row)?;
            }
            progress(output.rows());
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(Error::io("remove", path))
}

/// The last `N` columns, which are numbers.
fn last_numbers<const N: usize>(schema: &Schema) -> [NumberField; N] {
    let first = schema.columns().len() - N;
    std::array::from_fn(|at| match schema.field(first + at) {
        Field::Number(field) => field,
        Field::Text(_) => unreachable!("the columns added last are numbers"),
    })
}

fn same(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

/// A place in the sorted values.
struct Cursor {
    reader: Reader,
    class: Option<KeyCodec>,
    value_field: NumberField,
    row_field: NumberField,
    /// Of the row at hand.
    class_key: Vec<u8>,
    value: f64,
    row: f64,
    ended: bool,
}

impl Cursor {
    fn open(path: &Path, class: &[String], names: &Names) -> Result<Cursor> {
        let reader = Reader::open(path)?;
        let keys: Vec<SortKey> = class.iter().map(|name| SortKey::ascending(name)).collect();
        let class = if keys.is_empty() { None } else { Some(KeyCodec::new(&reader, &keys)?) };
        Ok(Cursor {
            value_field: reader.number_field(&names.value)?,
            row_field: reader.number_field(&names.row)?,
            class_key: vec![0; class.as_ref().map_or(0, KeyCodec::key_bytes)],
            class,
            reader,
            value: MISSING,
            row: 0.0,
            ended: false,
        })
    }

    /// Goes to the next row; false at the end.
    fn advance(&mut self) -> Result<bool> {
        if !self.reader.advance()? {
            self.ended = true;
            return Ok(false);
        }
        let row = self.reader.current();
        if let Some(class) = &self.class {
            class.encode(row, &mut self.class_key);
        }
        (self.value, self.row) = (self.value_field.get(row), self.row_field.get(row));
        Ok(true)
    }
}

impl Action for Rank {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.output, &mut self.util])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.sort_memory.get_or_insert(context.buffers.sort_memory);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        Ok(Outcome::rows(self.run(progress)?))
    }
}

//! Summary: counts, means and spread of columns, by classes.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Progress;
use crate::dataset::{ColumnType, Field, NumberField, Reader, format_date, format_datetime};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The most classes kept in memory unless told otherwise.
pub const CLASSES_MAX_DEFAULT: usize = 1_000_000;

/// What is known of the order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Nothing: all classes are kept in memory, up to a limit.
    #[default]
    Any,
    /// Sorted by the class columns, ascending: one class is kept in memory. Checked.
    Sorted,
}

/// Summarises number columns by classes: rows with the same values in the class columns. A missing
/// class value is a class of its own. Uses the memory of a page and of the classes kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The data set.
    pub input: PathBuf,
    /// The columns that make the classes; none for one class of all rows.
    #[serde(default)]
    pub class: Vec<String>,
    /// The number columns to summarise.
    pub analysis: Vec<String>,
    /// What is known of the order of the rows.
    #[serde(default)]
    pub order: Order,
    /// The most classes kept in memory, and in the table that [`Summary::run`] returns.
    #[serde(default = "classes_max_default")]
    pub classes_max: usize,
}

fn classes_max_default() -> usize {
    CLASSES_MAX_DEFAULT
}

/// The statistics of one column in one class. Those that a few values do not have are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Values that are not missing.
    pub n: u64,
    /// Missing values.
    pub missing: u64,
    /// Arithmetic mean; needs a value.
    pub mean: Option<f64>,
    /// Standard deviation with divisor `n - 1`; needs two values.
    pub std_dev: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Sum; zero without values.
    pub sum: f64,
}

/// One class: its values of the class columns and its statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Values of the class columns.
    pub values: Vec<Cell>,
    /// Rows of the class.
    pub rows: u64,
    /// Statistics of the analysis columns.
    pub statistics: Vec<Statistics>,
}

/// All classes, ascending by their values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryTable {
    /// Names of the class columns.
    pub class: Vec<String>,
    /// Names of the analysis columns.
    pub analysis: Vec<String>,
    /// The classes.
    pub classes: Vec<Class>,
}

/// Adds up one column: mean and squares by Welford's method (B. P. Welford, Technometrics 4, 1962),
/// the sum by Neumaier's (ZAMM 54, 1974).
#[derive(Clone, Debug)]
pub(super) struct Accumulator {
    n: u64,
    missing: u64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
    sum: f64,
    compensation: f64,
}

impl Accumulator {
    pub(super) const EMPTY: Accumulator = Accumulator {
        n: 0,
        missing: 0,
        mean: 0.0,
        squares: 0.0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        sum: 0.0,
        compensation: 0.0,
    };

    #[inline]
    pub(super) fn add(&mut self, value: f64) {
        if value.is_nan() {
            self.missing += 1;
            return;
        }
        self.n += 1;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.n as f64;
        self.squares += from_mean * (value - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        let sum = self.sum + value;
        self.compensation += if self.sum.abs() >= value.abs() {
            (self.sum - sum) + value
        } else {
            (value - sum) + self.sum
        };
        self.sum = sum;
    }

    pub(super) fn statistics(&self) -> Statistics {
        let with = |least: u64, value: f64| (self.n >= least).then_some(value);
        let sum = self.sum + self.compensation;
        Statistics {
            n: self.n,
            missing: self.missing,
            mean: with(1, sum / self.n as f64),
            std_dev: with(2, (self.squares / (self.n.saturating_sub(1)) as f64).sqrt()),
            min: with(1, self.min),
            max: with(1, self.max),
            sum,
        }
    }
}

/// Where classes go when they are complete.
type Sink<'a> = dyn FnMut(Class) -> Result<()> + 'a;

impl Summary {
    /// Summarises `analysis` by `class`, rows in any order.
    #[must_use]
    pub fn new(input: PathBuf, class: &[&str], analysis: &[&str]) -> Summary {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Summary {
            input,
            class: names(class),
            analysis: names(analysis),
            order: Order::Any,
            classes_max: CLASSES_MAX_DEFAULT,
        }
    }

    /// Runs the step and keeps all classes.
    ///
    /// # Errors
    /// As [`Summary::for_each`], and [`Error::TooManyClasses`] beyond `classes_max`.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<SummaryTable> {
        let mut classes = Vec::new();
        let limit = self.classes_max;
        self.for_each(
            &mut |class| {
                if classes.len() == limit {
                    return Err(Error::TooManyClasses { limit });
                }
                classes.push(class);
                Ok(())
            },
            progress,
        )?;
        Ok(SummaryTable { class: self.class.clone(), analysis: self.analysis.clone(), classes })
    }

    /// Runs the step and hands each class to `sink`, ascending. With [`Order::Sorted`] only one class
    /// is in memory at a time, so there may be any number.
    ///
    /// # Errors
    /// [`Error::Column`] if a column does not exist or is of the wrong type;
    /// [`Error::TooManyClasses`] if rows in any order have more than `classes_max`;
    /// [`Error::NotSorted`] if rows said to be sorted are not; those of reading a data set and of
    /// `sink`.
    pub fn for_each(&self, sink: &mut Sink<'_>, progress: &mut Progress<'_>) -> Result<()> {
        let mut reader = Reader::open(&self.input)?;
        let columns = Columns::new(self, &reader)?;
        match self.order {
            Order::Any => self.in_any_order(&mut reader, &columns, sink, progress),
            Order::Sorted => self.in_sorted_order(&mut reader, &columns, sink, progress),
        }
    }

    fn in_any_order(
        &self,
        reader: &mut Reader,
        columns: &Columns,
        sink: &mut Sink<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut places: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let (mut key, mut last_key, mut place) = (columns.key(), columns.key(), None);
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                columns.encode(row, &mut key);
                // Neighbours are often of one class.
                if place.is_none() || key != last_key {
                    place = places.get(key.as_slice()).copied();
                    last_key.copy_from_slice(&key);
                }
                let place = *place.get_or_insert_with(|| {
                    places.insert(key.clone().into_boxed_slice(), groups.len());
                    groups.push(columns.group(row));
                    groups.len() - 1
                });
                groups[place].add(columns, row);
            }
            if groups.len() > self.classes_max {
                return Err(Error::TooManyClasses { limit: self.classes_max });
            }
            done += rows.count() as u64;
            progress(done);
        }
        let mut order: Vec<(Box<[u8]>, usize)> = places.into_iter().collect();
        order.sort_unstable();
        for (_, place) in order {
            sink(groups[place].class())?;
        }
        Ok(())
    }

    fn in_sorted_order(
        &self,
        reader: &mut Reader,
        columns: &Columns,
        sink: &mut Sink<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let (mut key, mut current_key) = (columns.key(), columns.key());
        let mut current: Option<Group> = None;
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for (row, number) in rows.iter().zip(done + 1..) {
                columns.encode(row, &mut key);
                match &mut current {
                    Some(group) if key == current_key => group.add(columns, row),
                    Some(_) if key < current_key => {
                        return Err(Error::NotSorted { path: self.input.clone(), row: number });
                    }
                    _ => {
                        if let Some(group) = current.take() {
                            sink(group.class())?;
                        }
                        current_key.copy_from_slice(&key);
                        current.insert(columns.group(row)).add(columns, row);
                    }
                }
            }
            done += rows.count() as u64;
            progress(done);
        }
        current.map_or(Ok(()), |group| sink(group.class()))
    }
}

impl Action for Summary {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let result = self.run(progress)?;
        let rows = result.classes.iter().map(|class| class.rows).sum();
        Ok(Outcome::table(rows, result.table()))
    }
}

/// Where the columns of a summary lie.
struct Columns {
    class: Vec<Field>,
    /// `None` without class columns.
    codec: Option<KeyCodec>,
    analysis: Vec<NumberField>,
}

impl Columns {
    fn new(summary: &Summary, reader: &Reader) -> Result<Columns> {
        let keys: Vec<SortKey> =
            summary.class.iter().map(|name| SortKey::ascending(name)).collect();
        Ok(Columns {
            class: summary.class.iter().map(|name| reader.field(name)).collect::<Result<_>>()?,
            codec: if keys.is_empty() { None } else { Some(KeyCodec::new(reader, &keys)?) },
            analysis: summary
                .analysis
                .iter()
                .map(|name| reader.number_field(name))
                .collect::<Result<_>>()?,
        })
    }

    fn key(&self) -> Vec<u8> {
        vec![0; self.codec.as_ref().map_or(0, KeyCodec::key_bytes)]
    }

    #[inline]
    fn encode(&self, row: &[u8], key: &mut [u8]) {
        if let Some(codec) = &self.codec {
            codec.encode(row, key);
        }
    }

    /// An empty group of the class of `row`.
    fn group(&self, row: &[u8]) -> Group {
        let values = self.class.iter().map(|field| cell(field, row)).collect();
        Group { values, rows: 0, columns: vec![Accumulator::EMPTY; self.analysis.len()] }
    }
}

/// A value as a cell of a table; dates as text.
pub(super) fn cell(field: &Field, row: &[u8]) -> Cell {
    match field {
        Field::Text(text) => match text.get(row) {
            b"" => Cell::Missing,
            value => Cell::Text(String::from_utf8_lossy(value).into_owned()),
        },
        Field::Number(number) => {
            let value = number.get(row);
            match number.kind {
                _ if value.is_nan() => Cell::Missing,
                ColumnType::Date => format_date(value).into(),
                ColumnType::Datetime => format_datetime(value).into(),
                ColumnType::Number | ColumnType::Text { .. } => value.into(),
            }
        }
    }
}

/// A class that is being added up.
struct Group {
    values: Vec<Cell>,
    rows: u64,
    columns: Vec<Accumulator>,
}

impl Group {
    #[inline]
    fn add(&mut self, columns: &Columns, row: &[u8]) {
        self.rows += 1;
        for (accumulator, field) in self.columns.iter_mut().zip(&columns.analysis) {
            accumulator.add(field.get(row));
        }
    }

    fn class(&self) -> Class {
        Class {
            values: self.values.clone(),
            rows: self.rows,
            statistics: self.columns.iter().map(Accumulator::statistics).collect(),
        }
    }
}

impl SummaryTable {
    /// The classes as a table: one row per class and analysis column.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut names: Vec<&str> = self.class.iter().map(String::as_str).collect();
        names.extend(["column", "n", "missing", "mean", "std_dev", "min", "max", "sum"]);
        let mut table = Table::new(&names);
        for class in &self.classes {
            for (name, s) in self.analysis.iter().zip(&class.statistics) {
                let mut row = class.values.clone();
                row.extend([Cell::from(name.as_str()), s.n.into(), s.missing.into()]);
                row.extend([s.mean, s.std_dev, s.min, s.max, Some(s.sum)].map(Cell::from));
                table.push(row);
            }
        }
        table
    }

    /// The means of one analysis column over two class columns, as a table with the first down the side
    /// and the second along the top, to one decimal. `None` if there are not two class columns or no such
    /// analysis column.
    #[must_use]
    pub fn means_across(&self, analysis: &str) -> Option<Table> {
        let [side, top] = self.class.as_slice() else { return None };
        let column = self.analysis.iter().position(|name| name == analysis)?;
        let mut along: Vec<(String, &Cell)> = Vec::new();
        for class in &self.classes {
            if !along.iter().any(|(_, seen)| **seen == class.values[1]) {
                along.push((cell_text(&class.values[1]), &class.values[1]));
            }
        }
        along.sort_by(|(_, a), (_, b)| order(a, b));
        let mut names = vec![format!("{side} / {top}")];
        names.extend(along.iter().map(|(name, _)| name.clone()));
        let mut table = Table { columns: names, rows: Vec::new() };
        for class in &self.classes {
            if table.rows.last().is_none_or(|row| row[0] != class.values[0]) {
                let mut row = vec![class.values[0].clone()];
                row.resize(along.len() + 1, Cell::Missing);
                table.push(row);
            }
            let at = along.iter().position(|(_, value)| **value == class.values[1])?;
            let mean = class.statistics[column].mean.map(|mean| (mean * 10.0).round() / 10.0);
            table.rows.last_mut()?[at + 1] = mean.into();
        }
        Some(table)
    }
}

fn cell_text(cell: &Cell) -> String {
    match cell {
        Cell::Missing => ".".to_owned(),
        Cell::Number(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
    }
}

/// Missing before numbers before texts, each ascending.
fn order(a: &Cell, b: &Cell) -> std::cmp::Ordering {
    match (a, b) {
        (Cell::Number(a), Cell::Number(b)) => a.total_cmp(b),
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        _ => rank(a).cmp(&rank(b)),
    }
}

fn rank(cell: &Cell) -> u8 {
    match cell {
        Cell::Missing => 0,
        Cell::Number(_) => 1,
        Cell::Text(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_across_two_classes_leave_empty_what_never_meets() {
        let class = |carrier: &str, month: f64, mean: f64| Class {
            values: vec![carrier.into(), month.into()],
            rows: 1,
            statistics: vec![Statistics {
                n: 1,
                missing: 0,
                mean: Some(mean),
                std_dev: None,
                min: None,
                max: None,
                sum: mean,
            }],
        };
        let summary = SummaryTable {
            class: vec!["carrier".into(), "month".into()],
            analysis: vec!["delay".into()],
            classes: vec![class("AA", 2.0, 1.26), class("AA", 10.0, 3.0), class("UA", 1.0, -2.0)],
        };
        let table = summary.means_across("delay").unwrap();
        assert_eq!(table.columns, ["carrier / month", "1", "2", "10"]);
        assert_eq!(table.rows[0], [Cell::from("AA"), Cell::Missing, 1.3.into(), 3.0.into()]);
        assert_eq!(table.rows[1][1], Cell::from(-2.0));
        assert!(summary.means_across("other").is_none());
    }
}

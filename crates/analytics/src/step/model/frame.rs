//! The frame: which numbers a model sees of a row.
//!
//! A first pass over the data set finds the levels of class predictors, the mean and spread of every
//! column, and how many rows are without missing values. From then on a row is read as a vector: the
//! intercept, the predictors (centred and scaled), one dummy column for every level but the reference
//! of each class predictor, and then what else the model needs, such as the response. Uses the memory
//! of a page and of the levels.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::Progress;
use crate::dataset::{ColumnType, Field, NumberField, Reader, format_date, format_datetime};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::linear::Symmetric;
use crate::table::Cell;

/// The most levels of a class predictor.
pub(crate) const LEVELS_MAX: usize = 1000;

/// A text or number column whose values are levels without an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ClassForm", into = "ClassForm")]
pub struct ClassPredictor {
    /// The column's name.
    pub column: String,
    /// The level that the others are compared with; the first in order unless said otherwise.
    pub reference: Option<String>,
}

/// A class predictor in a file: its name alone, or a table.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum ClassForm {
    Name(String),
    Table(ClassTable),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    column: String,
    #[serde(default)]
    reference: Option<String>,
}

impl From<ClassForm> for ClassPredictor {
    fn from(form: ClassForm) -> ClassPredictor {
        match form {
            ClassForm::Name(column) => ClassPredictor { column, reference: None },
            ClassForm::Table(ClassTable { column, reference }) => {
                ClassPredictor { column, reference }
            }
        }
    }
}

impl From<ClassPredictor> for ClassForm {
    fn from(class: ClassPredictor) -> ClassForm {
        match class {
            ClassPredictor { column, reference: None } => ClassForm::Name(column),
            ClassPredictor { column, reference } => {
                ClassForm::Table(ClassTable { column, reference })
            }
        }
    }
}

impl ClassPredictor {
    /// A class predictor whose reference is its first level.
    #[must_use]
    pub fn new(column: &str) -> ClassPredictor {
        ClassPredictor { column: column.to_owned(), reference: None }
    }
}

/// A number that a model needs besides the predictors.
#[derive(Clone, Debug)]
pub(crate) enum Needed<'a> {
    /// The number itself.
    Number(&'a str),
    /// 1 where the column has this value, 0 where it has another.
    Event(&'a str, &'a Cell),
    /// The place of the column's value among its values, from 0, in ascending order.
    Level(&'a str),
    /// Nothing but that the value is not missing; read as 0.
    Present(&'a str),
}

/// What a model sees of a data set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Columns<'a> {
    /// Number columns.
    pub predictors: &'a [String],
    /// Columns whose values are levels.
    pub class: &'a [ClassPredictor],
    /// What else.
    pub needed: &'a [Needed<'a>],
}

/// Finds the number of a level by the bytes of its key.
struct Levels {
    field: Field,
    codec: KeyCodec,
    key: Vec<u8>,
    found: BTreeMap<Box<[u8]>, (usize, Cell)>,
}

impl Levels {
    fn new(reader: &Reader, column: &str) -> Result<Levels> {
        let codec = KeyCodec::new(reader, &[SortKey::ascending(column)])?;
        let key = vec![0; codec.key_bytes()];
        Ok(Levels { field: reader.field(column)?, codec, key, found: BTreeMap::new() })
    }

    /// Makes the level of `row` known.
    fn note(&mut self, row: &[u8]) {
        self.codec.encode(row, &mut self.key);
        if !self.found.contains_key(self.key.as_slice()) && self.found.len() <= LEVELS_MAX {
            let level = (0, cell(&self.field, row));
            self.found.insert(self.key.clone().into_boxed_slice(), level);
        }
    }

    /// Numbers the levels in order.
    fn number(&mut self) {
        self.found.values_mut().enumerate().for_each(|(number, level)| level.0 = number);
    }

    /// The number of the level of `row`.
    #[inline]
    fn get(&mut self, row: &[u8]) -> Option<usize> {
        self.codec.encode(row, &mut self.key);
        self.found.get(self.key.as_slice()).map(|level| level.0)
    }

    fn labels(&self) -> Vec<String> {
        self.found.values().map(|(_, cell)| label(cell)).collect()
    }
}

/// Whether a row lacks a value.
#[inline]
pub(crate) fn is_missing(field: &Field, row: &[u8]) -> bool {
    match field {
        Field::Number(number) => number.get(row).is_nan(),
        Field::Text(text) => text.get(row).is_empty(),
    }
}

/// A value as a cell; dates as text.
pub(crate) fn cell(field: &Field, row: &[u8]) -> Cell {
    match field {
        Field::Text(text) => match text.get(row) {
            b"" => Cell::Missing,
            value => Cell::Text(String::from_utf8_lossy(value).into_owned()),
        },
        Field::Number(number) => match (number.kind, number.get(row)) {
            (_, value) if value.is_nan() => Cell::Missing,
            (ColumnType::Date, value) => format_date(value).into(),
            (ColumnType::Datetime, value) => format_datetime(value).into(),
            (ColumnType::Number | ColumnType::Text { .. }, value) => value.into(),
        },
    }
}

/// A value as it stands in the name of a term.
pub(crate) fn label(cell: &Cell) -> String {
    match cell {
        Cell::Missing => ".".to_owned(),
        Cell::Number(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
    }
}

enum Extra {
    Number(NumberField),
    EventNumber(NumberField, f64),
    EventText(crate::dataset::TextField, Vec<u8>),
    Level(Levels),
    Present(Field),
}

impl Extra {
    fn new(reader: &Reader, needed: &Needed<'_>) -> Result<Extra> {
        Ok(match *needed {
            Needed::Number(column) => Extra::Number(reader.number_field(column)?),
            Needed::Level(column) => Extra::Level(Levels::new(reader, column)?),
            Needed::Present(column) => Extra::Present(reader.field(column)?),
            Needed::Event(column, event) => match (reader.field(column)?, event) {
                (Field::Number(field), Cell::Number(event)) => Extra::EventNumber(field, *event),
                (Field::Text(field), Cell::Text(event)) => {
                    Extra::EventText(field, event.clone().into_bytes())
                }
                _ => {
                    return Err(Error::Column {
                        path: reader.path().to_owned(),
                        column: column.to_owned(),
                        reason: format!("never has the value {event:?}: it is of another type"),
                    });
                }
            },
        })
    }

    #[inline]
    fn is_missing(&self, row: &[u8]) -> bool {
        match self {
            Extra::Number(field) | Extra::EventNumber(field, _) => field.get(row).is_nan(),
            Extra::EventText(field, _) => field.get(row).is_empty(),
            Extra::Level(levels) => is_missing(&levels.field, row),
            Extra::Present(field) => is_missing(field, row),
        }
    }

    #[inline]
    fn get(&mut self, row: &[u8]) -> f64 {
        match self {
            Extra::Number(field) => field.get(row),
            Extra::EventNumber(field, event) => f64::from(u8::from(field.get(row) == *event)),
            Extra::EventText(field, event) => f64::from(u8::from(field.get(row) == &event[..])),
            Extra::Level(levels) => levels.get(row).map_or(f64::NAN, |level| level as f64),
            Extra::Present(_) => 0.0,
        }
    }
}

/// Mean and spread of a column (B. P. Welford, Technometrics 4, 1962).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    n: f64,
    /// Arithmetic mean.
    pub mean: f64,
    squares: f64,
}

impl Spread {
    #[inline]
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.n;
        self.squares += from_mean * (value - self.mean);
    }

    /// Standard deviation with divisor n.
    pub fn deviation(&self) -> f64 {
        (self.squares / self.n).sqrt()
    }
}

/// Reads rows as vectors of numbers.
pub(crate) struct Frame {
    path: PathBuf,
    numbers: Vec<NumberField>,
    class: Vec<(Levels, usize)>,
    extras: Vec<Extra>,
    extra_names: Vec<String>,
    /// Names of the terms, the intercept first.
    pub terms: Vec<String>,
    /// What is taken off a predictor and what it is then divided by; 0 and 1 for other terms.
    scaling: Vec<(f64, f64)>,
    /// Mean and spread of the additional numbers.
    pub extra_spread: Vec<Spread>,
    /// Rows without missing values.
    pub rows: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
}

impl Frame {
    /// Makes the first pass over the data set at `path`.
    ///
    /// # Errors
    /// [`Error::Column`] if a column does not exist, is of the wrong type, or has too many levels or no
    /// such reference level; [`Error::Collinear`] if a predictor is constant; [`Error::TooFewRows`] if
    /// no row is whole; those of reading a data set.
    pub fn scout(path: &Path, columns: &Columns<'_>, progress: &mut Progress<'_>) -> Result<Frame> {
        let mut reader = Reader::open(path)?;
        let names = columns.predictors.iter();
        let numbers = names.map(|name| reader.number_field(name)).collect::<Result<Vec<_>>>()?;
        let class = columns.class.iter();
        let class = class
            .map(|class| Ok((Levels::new(&reader, &class.column)?, 0)))
            .collect::<Result<Vec<_>>>()?;
        let extras = columns.needed.iter();
        let extras =
            extras.map(|needed| Extra::new(&reader, needed)).collect::<Result<Vec<_>>>()?;
        let mut frame = Frame {
            path: path.to_owned(),
            terms: Vec::new(),
            scaling: Vec::new(),
            extra_spread: vec![Spread::default(); extras.len()],
            extra_names: columns.needed.iter().map(needed_name).collect(),
            numbers,
            class,
            extras,
            rows: 0,
            missing: 0,
        };
        let mut spread = vec![Spread::default(); frame.numbers.len()];
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                frame.note(row, &mut spread);
            }
            progress(frame.rows + frame.missing);
        }
        frame.settle(columns, &spread)?;
        Ok(frame)
    }

    fn is_whole(&self, row: &[u8]) -> bool {
        !(self.numbers.iter().any(|field| field.get(row).is_nan())
            || self.class.iter().any(|(levels, _)| is_missing(&levels.field, row))
            || self.extras.iter().any(|extra| extra.is_missing(row)))
    }

    fn note(&mut self, row: &[u8], spread: &mut [Spread]) {
        if !self.is_whole(row) {
            self.missing += 1;
            return;
        }
        self.rows += 1;
        for (spread, field) in spread.iter_mut().zip(&self.numbers) {
            spread.add(field.get(row));
        }
        for (levels, _) in &mut self.class {
            levels.note(row);
        }
        for (spread, extra) in self.extra_spread.iter_mut().zip(&mut self.extras) {
            if let Extra::Level(levels) = extra {
                levels.note(row);
            } else {
                spread.add(extra.get(row));
            }
        }
    }

    /// Names the terms once all rows are known.
    fn settle(&mut self, columns: &Columns<'_>, spread: &[Spread]) -> Result<()> {
        if self.rows == 0 {
            return Err(Error::TooFewRows { rows: 0, needed: 1 });
        }
        self.terms.push("intercept".to_owned());
        self.scaling.push((0.0, 1.0));
        for (name, spread) in columns.predictors.iter().zip(spread) {
            let deviation = spread.deviation();
            // Written so that a NaN or an infinity counts as constant.
            let varies = deviation.is_finite() && deviation > 1e-13 * spread.mean.abs();
            if !varies {
                return Err(Error::Collinear { column: name.clone() });
            }
            self.terms.push(name.clone());
            self.scaling.push((spread.mean, deviation));
        }
        for ((levels, reference), class) in self.class.iter_mut().zip(columns.class) {
            let refuse = |reason| column_error(&self.path, &class.column, reason);
            levels.number();
            let labels = levels.labels();
            if labels.len() > LEVELS_MAX {
                return Err(refuse(format!("has more than {LEVELS_MAX} levels")));
            }
            if labels.len() < 2 {
                return Err(Error::Collinear { column: class.column.clone() });
            }
            if let Some(wanted) = &class.reference {
                *reference = labels.iter().position(|label| label == wanted).ok_or_else(|| {
                    refuse(format!("has no level \"{wanted}\" to be the reference"))
                })?;
            }
            for (_, label) in labels.iter().enumerate().filter(|(level, _)| level != reference) {
                self.terms.push(format!("{}={label}", class.column));
                self.scaling.push((0.0, 1.0));
            }
        }
        for (spread, name) in self.extra_spread.iter().zip(&self.extra_names) {
            if !spread.mean.is_finite() {
                let reason = "has an infinite value".to_owned();
                return Err(column_error(&self.path, name, reason));
            }
        }
        for (extra, name) in self.extras.iter_mut().zip(&self.extra_names) {
            if let Extra::Level(levels) = extra {
                levels.number();
                if levels.found.len() > LEVELS_MAX {
                    let reason = format!("has more than {LEVELS_MAX} levels");
                    return Err(column_error(&self.path, name, reason));
                }
            }
        }
        Ok(())
    }

    /// Fills `values`, of [`Frame::width`], from a row; false if a value is missing.
    #[inline]
    pub fn read(&mut self, row: &[u8], values: &mut [f64]) -> bool {
        if !self.is_whole(row) {
            return false;
        }
        values[0] = 1.0;
        let mut at = 1;
        for field in &self.numbers {
            let (center, scale) = self.scaling[at];
            values[at] = (field.get(row) - center) / scale;
            at += 1;
        }
        for (levels, reference) in &mut self.class {
            let dummies = &mut values[at..at + levels.found.len() - 1];
            dummies.fill(0.0);
            at += dummies.len();
            // A level that the first pass did not see: the file changed under our feet.
            let Some(level) = levels.get(row) else { return false };
            match level.cmp(reference) {
                std::cmp::Ordering::Less => dummies[level] = 1.0,
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => dummies[level - 1] = 1.0,
            }
        }
        for extra in &mut self.extras {
            values[at] = extra.get(row);
            at += 1;
        }
        true
    }

    /// Numbers in the vector of a row.
    pub fn width(&self) -> usize {
        self.terms.len() + self.extras.len()
    }

    /// The levels of an additional number that is a level; none of another.
    pub fn label_cells(&self, extra: usize) -> Vec<Cell> {
        match &self.extras[extra] {
            Extra::Level(levels) => levels.found.values().map(|(_, cell)| cell.clone()).collect(),
            Extra::Number(_)
            | Extra::EventNumber(..)
            | Extra::EventText(..)
            | Extra::Present(_) => Vec::new(),
        }
    }

    /// Takes the centring and scaling back: coefficients and their covariances in the units of the
    /// data.
    pub fn unscale(&self, beta: &[f64], covariances: &Symmetric) -> (Vec<f64>, Symmetric) {
        let size = self.terms.len();
        let rows: Vec<Vec<f64>> = (0..size)
            .map(|i| {
                let mut row = vec![0.0; size];
                row[i] = 1.0 / self.scaling[i].1;
                if i == 0 {
                    (1..size).for_each(|j| row[j] = -self.scaling[j].0 / self.scaling[j].1);
                }
                row
            })
            .collect();
        let values =
            rows.iter().map(|row| row.iter().zip(beta).map(|(a, b)| a * b).sum()).collect();
        (values, covariances.sandwiched(&rows))
    }

    /// `log |T|`, where `T` maps scaled to unscaled coefficients.
    pub fn log_scale(&self) -> f64 {
        self.scaling.iter().map(|(_, scale)| -scale.ln()).sum()
    }

    /// The data set.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// That an additional number has a value that the model does not allow.
    pub fn refuse(&self, extra: usize, value: f64, allowed: &str) -> Error {
        let reason = format!("has the value {value}, which must be {allowed}");
        column_error(&self.path, &self.extra_names[extra], reason)
    }

    /// # Errors
    /// [`Error::TooFewRows`] if there are not more rows than `parameters`.
    pub fn need_rows(&self, parameters: usize) -> Result<()> {
        let needed = parameters as u64 + 1;
        if self.rows < needed {
            return Err(Error::TooFewRows { rows: self.rows, needed });
        }
        Ok(())
    }
}

fn needed_name(needed: &Needed<'_>) -> String {
    match needed {
        Needed::Number(name)
        | Needed::Event(name, _)
        | Needed::Level(name)
        | Needed::Present(name) => (*name).to_owned(),
    }
}

fn column_error(path: &Path, column: &str, reason: String) -> Error {
    Error::Column { path: path.to_owned(), column: column.to_owned(), reason }
}

//! Frequency: how often values, and pairs of values, occur.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF as _};

use super::Progress;
use super::summary::cell;
use crate::dataset::{Field, Reader};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The most classes of a table unless told otherwise.
pub const CLASSES_MAX_DEFAULT: usize = 100_000;

/// Counts values in one pass for any number of tables. Uses the memory of a page and of the classes,
/// at most `classes_max` for each table, of about 150 bytes and twice the columns' widths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frequency {
    /// The data set.
    pub input: PathBuf,
    /// The tables: each of one column, or of two that cross.
    pub tables: Vec<Vec<String>>,
    /// In which order classes are listed.
    #[serde(default)]
    pub order: FrequencyOrder,
    /// What becomes of rows with a missing value in a table's columns.
    #[serde(default)]
    pub missing: MissingClasses,
    /// Tests of each table.
    #[serde(default)]
    pub test: FrequencyTest,
    /// How many classes of each table are listed, the first of the order; all if left out. Percentages
    /// and tests are of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<usize>,
    /// The most classes of a table.
    #[serde(default = "classes_max_default")]
    pub classes_max: usize,
}

fn classes_max_default() -> usize {
    CLASSES_MAX_DEFAULT
}

/// In which order classes are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrequencyOrder {
    /// By their values, ascending.
    #[default]
    Value,
    /// The most frequent first; equally frequent ones by their values.
    Count,
}

/// What becomes of missing values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingClasses {
    /// Their rows are counted as missing and left out of the table.
    #[default]
    LeaveOut,
    /// They are classes of their own.
    Include,
}

/// Tests of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrequencyTest {
    /// None.
    #[default]
    None,
    /// Pearson's chi-square: of equal shares in a table of one column, of independence in one of two.
    ChiSquare,
}

/// One class of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrequencyClass {
    /// One value for each column of the table.
    pub values: Vec<Cell>,
    /// Its rows.
    pub count: u64,
    /// Share of all rows of the table.
    pub percent: f64,
    /// Share of the rows with the same first value, in a table of two columns.
    pub row_percent: Option<f64>,
    /// Share of the rows with the same second value.
    pub column_percent: Option<f64>,
}

/// Pearson's chi-square.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChiSquare {
    /// The statistic.
    pub value: f64,
    /// Degrees of freedom.
    pub df: u64,
    /// Probability of a statistic at least as large by chance.
    pub p: f64,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrequencyTable {
    /// Its columns.
    pub columns: Vec<String>,
    /// Rows that are counted.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Classes that there are; more than are listed if `top` says so.
    pub classes: u64,
    /// The classes in order.
    pub listed: Vec<FrequencyClass>,
    /// The test if it was asked for; `None` too if there is only one class.
    pub chi_square: Option<ChiSquare>,
}

impl Frequency {
    /// Counts the values of each of `tables`, which are of one or two columns.
    #[must_use]
    pub fn new(input: PathBuf, tables: &[&[&str]]) -> Frequency {
        let names = |table: &&[&str]| table.iter().map(|&name| name.to_owned()).collect();
        Frequency {
            input,
            tables: tables.iter().map(names).collect(),
            order: FrequencyOrder::Value,
            missing: MissingClasses::LeaveOut,
            test: FrequencyTest::None,
            top: None,
            classes_max: CLASSES_MAX_DEFAULT,
        }
    }

    /// Runs the step.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no table or one not of one or two columns; [`Error::Column`] if
    /// a column does not exist; [`Error::TooManyClasses`]; those of reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Vec<FrequencyTable>> {
        let allowed = self.tables.iter().all(|table| (1..=2).contains(&table.len()));
        if self.tables.is_empty() || !allowed {
            return Err(Error::Setting {
                setting: "tables",
                value: format!("{:?}", self.tables),
                allowed: "at least one list of one or two columns".to_owned(),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        let counters = self.tables.iter().map(|table| Counter::new(&reader, table));
        let mut counters = counters.collect::<Result<Vec<_>>>()?;
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for counter in &mut counters {
                rows.iter().for_each(|row| counter.add(row, self.missing));
                if counter.classes.len() > self.classes_max {
                    return Err(Error::TooManyClasses { limit: self.classes_max });
                }
            }
            done += rows.count() as u64;
            progress(done);
        }
        let tables = counters.into_iter().zip(&self.tables);
        Ok(tables.map(|(counter, columns)| self.table_of(counter, columns)).collect())
    }

    fn table_of(&self, counter: Counter, columns: &[String]) -> FrequencyTable {
        let (n, missing) = (counter.counted, counter.missing);
        let first_bytes = counter.first_bytes;
        let mut order: Vec<(Box<[u8]>, usize)> = counter.places.into_iter().collect();
        order.sort_unstable();
        let mut classes = counter.classes;
        // Sums along the first and the second column, by the bytes of their keys.
        let (mut firsts, mut seconds) = (HashMap::new(), HashMap::new());
        for (key, place) in &order {
            let (first, second) = key.split_at(first_bytes);
            *firsts.entry(first).or_insert(0_u64) += classes[*place].1;
            *seconds.entry(second).or_insert(0_u64) += classes[*place].1;
        }
        let percent = |count: u64, of: u64| count as f64 / of as f64 * 100.0;
        let crossed = columns.len() == 2;
        let chi_square = match self.test {
            FrequencyTest::None => None,
            FrequencyTest::ChiSquare if crossed => {
                let sums = |sums: &HashMap<&[u8], u64>| sums.values().map(|&n| n as f64).collect();
                let counts = order.iter().map(|(key, place)| {
                    let (first, second) = key.split_at(first_bytes);
                    (classes[*place].1 as f64, firsts[first] as f64, seconds[second] as f64)
                });
                independence(counts, n as f64, [sums(&firsts), sums(&seconds)])
            }
            FrequencyTest::ChiSquare => equal_shares(classes.iter().map(|class| class.1 as f64)),
        };
        let mut listed: Vec<FrequencyClass> = order
            .iter()
            .map(|(key, place)| {
                let (first, second) = key.split_at(first_bytes);
                let (values, count) = &mut classes[*place];
                FrequencyClass {
                    values: std::mem::take(values),
                    count: *count,
                    percent: percent(*count, n),
                    row_percent: crossed.then(|| percent(*count, firsts[first])),
                    column_percent: crossed.then(|| percent(*count, seconds[second])),
                }
            })
            .collect();
        if self.order == FrequencyOrder::Count {
            // Stable: equal counts stay in the order of values.
            listed.sort_by_key(|class| std::cmp::Reverse(class.count));
        }
        let classes = listed.len() as u64;
        listed.truncate(self.top.unwrap_or(usize::MAX));
        FrequencyTable { columns: columns.to_vec(), n, missing, classes, listed, chi_square }
    }
}

/// Chi-square of equal shares.
fn equal_shares(counts: impl Iterator<Item = f64> + Clone) -> Option<ChiSquare> {
    let (classes, n) = counts.clone().fold((0_u64, 0.0), |(k, n), count| (k + 1, n + count));
    let expected = n / classes as f64;
    let value = counts.map(|count| (count - expected).powi(2) / expected).sum();
    with_p(value, classes.checked_sub(1)?)
}

/// Chi-square of independence: each count with the sums of its row and its column, then all of these
/// sums. Cells that no row falls into count too: theirs add up to what the others do not expect.
fn independence(
    counts: impl Iterator<Item = (f64, f64, f64)>,
    n: f64,
    [firsts, seconds]: [Vec<f64>; 2],
) -> Option<ChiSquare> {
    let (mut value, mut expected_where_counted) = (0.0, 0.0);
    for (count, first, second) in counts {
        let expected = first * second / n;
        value += (count - expected).powi(2) / expected;
        expected_where_counted += expected;
    }
    let cells = firsts.len() * seconds.len();
    // (0 - e)^2 / e is e, and all expected counts add up to n.
    let empty = (n - expected_where_counted).max(0.0);
    let df = firsts.len().checked_sub(1)? * seconds.len().checked_sub(1)?;
    with_p(if cells > 0 { value + empty } else { value }, df as u64)
}

fn with_p(value: f64, df: u64) -> Option<ChiSquare> {
    let p = ChiSquared::new(df as f64).ok()?.sf(value);
    Some(ChiSquare { value, df, p })
}

/// The classes of one table while they are counted.
struct Counter {
    fields: Vec<Field>,
    codec: KeyCodec,
    /// Bytes of the first column's part of a key.
    first_bytes: usize,
    places: HashMap<Box<[u8]>, usize>,
    classes: Vec<(Vec<Cell>, u64)>,
    counted: u64,
    missing: u64,
    key: Vec<u8>,
    /// Of the row before: neighbours are often of one class.
    last: (Vec<u8>, Option<usize>),
}

impl Counter {
    fn new(reader: &Reader, columns: &[String]) -> Result<Counter> {
        let keys: Vec<SortKey> = columns.iter().map(|name| SortKey::ascending(name)).collect();
        let codec = KeyCodec::new(reader, &keys)?;
        let key = vec![0; codec.key_bytes()];
        Ok(Counter {
            fields: columns.iter().map(|name| reader.field(name)).collect::<Result<_>>()?,
            first_bytes: KeyCodec::new(reader, &keys[..1])?.key_bytes(),
            codec,
            places: HashMap::new(),
            classes: Vec::new(),
            counted: 0,
            missing: 0,
            last: (key.clone(), None),
            key,
        })
    }

    fn add(&mut self, row: &[u8], missing: MissingClasses) {
        let is_missing = |field: &Field| match field {
            Field::Number(field) => field.get(row).is_nan(),
            Field::Text(field) => field.get(row).is_empty(),
        };
        if missing == MissingClasses::LeaveOut && self.fields.iter().any(is_missing) {
            self.missing += 1;
            return;
        }
        self.counted += 1;
        self.codec.encode(row, &mut self.key);
        let known = self.last.1.filter(|_| self.last.0 == self.key);
        let place = known.or_else(|| self.places.get(self.key.as_slice()).copied());
        let place = place.unwrap_or_else(|| {
            let values = self.fields.iter().map(|field| cell(field, row)).collect();
            self.places.insert(self.key.clone().into_boxed_slice(), self.classes.len());
            self.classes.push((values, 0));
            self.classes.len() - 1
        });
        self.classes[place].1 += 1;
        self.last.0.copy_from_slice(&self.key);
        self.last.1 = Some(place);
    }
}

/// The tables as one: a row for each class that is listed.
#[must_use]
pub fn table(tables: &[FrequencyTable]) -> Table {
    let names = [
        "table",
        "value",
        "across",
        "count",
        "percent",
        "row_percent",
        "column_percent",
        "cumulative_count",
        "cumulative_percent",
    ];
    let mut table = Table::new(&names);
    for one in tables {
        let mut cumulative = 0;
        for class in &one.listed {
            cumulative += class.count;
            let crossed = class.values.len() == 2;
            table.push(vec![
                one.columns.join(" * ").into(),
                class.values[0].clone(),
                class.values.get(1).cloned().unwrap_or(Cell::Missing),
                class.count.into(),
                class.percent.into(),
                class.row_percent.into(),
                class.column_percent.into(),
                (!crossed).then_some(cumulative).into(),
                (!crossed).then(|| cumulative as f64 / one.n as f64 * 100.0).into(),
            ]);
        }
    }
    table
}

impl Action for Frequency {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let tables = self.run(progress)?;
        let rows = tables.first().map_or(0, |table| table.n + table.missing);
        let mut outcome = Outcome::table(rows, table(&tables));
        for table in &tables {
            let name = table.columns.join("*");
            outcome = outcome
                .with(&format!("{name} classes"), table.classes as f64)
                .with(&format!("{name} missing"), table.missing as f64);
            if let Some(chi_square) = table.chi_square {
                outcome = outcome
                    .with(&format!("{name} chi_square"), chi_square.value)
                    .with(&format!("{name} df"), chi_square.df as f64)
                    .with(&format!("{name} p"), chi_square.p);
            }
        }
        Ok(outcome)
    }
}

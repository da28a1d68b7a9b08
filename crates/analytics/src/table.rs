//! Small tables: results of steps, for people and for CSV.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub use forebay_base::columns::Alignment;
use forebay_base::columns::{Columns, Width};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// No value; printed as a dot, empty in CSV.
    Missing,
    /// A number; printed with up to seven significant digits, exact in CSV.
    Number(f64),
    /// A text.
    Text(String),
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        if number.is_nan() { Cell::Missing } else { Cell::Number(number) }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Number(number as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Missing, Into::into)
    }
}

impl Cell {
    /// The cell as people read it; whole numbers in full, others with up to so many significant digits.
    #[must_use]
    pub fn show(&self, digits: u8) -> String {
        match self {
            Cell::Missing => ".".to_owned(),
            Cell::Number(number) => show_number(*number, digits),
            Cell::Text(text) => text.clone(),
        }
    }
}

/// Significant digits of numbers in printed tables.
const DIGITS: u8 = 7;

/// A table with named columns; every row has one cell per column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[&str]) -> Table {
        Table { columns: columns.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one cell per column.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "one cell per column");
        self.rows.push(row);
    }

    /// To which side a column is put: to the left if any of its cells is a text.
    #[must_use]
    pub fn alignment(&self, column: usize) -> Alignment {
        let is_text = |row: &Vec<Cell>| matches!(row.get(column), Some(Cell::Text(_)));
        if self.rows.iter().any(is_text) { Alignment::Left } else { Alignment::Right }
    }

    /// Prints the table with aligned columns: texts to the left, numbers to the right.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(self.columns(DIGITS).render(Width::Free).as_bytes())
    }

    /// The table as columns of text, numbers with up to so many significant digits.
    #[must_use]
    pub fn columns(&self, digits: u8) -> Columns {
        let mut columns = Columns::new();
        for (i, name) in self.columns.iter().enumerate() {
            let cells: Vec<String> = self.rows.iter().map(|row| row[i].show(digits)).collect();
            let cells = std::iter::once(name.as_str()).chain(cells.iter().map(String::as_str));
            columns.push(self.alignment(i), cells);
        }
        columns
    }

    /// Writes the table as CSV with a header line; numbers read back to the same value.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write_csv(&self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(Error::io("create", path))?;
        let mut writer = csv::Writer::from_writer(file);
        let mut write = |fields: &mut dyn Iterator<Item = String>| {
            writer.write_record(fields).map_err(|error| Error::io("write", path)(error.into()))
        };
        write(&mut self.columns.iter().cloned())?;
        for row in &self.rows {
            write(&mut row.iter().map(|cell| match cell {
                Cell::Missing => String::new(),
                Cell::Number(number) => number.to_string(),
                Cell::Text(text) => text.clone(),
            }))?;
        }
        writer.flush().map_err(Error::io("write", path))
    }
}

/// Whole numbers in full, others with so many significant digits.
fn show_number(number: f64, digits: u8) -> String {
    let size = number.abs();
    let after_first = i32::from(digits.max(1)) - 1;
    if number.fract() == 0.0 && size < 1e15 {
        format!("{number:.0}")
    } else if !(1e-4..1e15).contains(&size) {
        format!("{number:.*e}", after_first as usize)
    } else {
        let decimals = (after_first - size.log10().floor() as i32).clamp(0, 10) as usize;
        let text = format!("{number:.decimals$}");
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_missing_is_a_dot() {
        let mut table = Table::new(&["step", "seconds"]);
        table.push(vec!["sort".into(), 12.345_678_9.into()]);
        table.push(vec!["a".into(), f64::NAN.into()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "step   seconds\nsort  12.34568\na            .\n"
        );
    }

    #[test]
    fn a_cell_is_shown_with_fewer_digits() {
        for (number, text) in
            [(1234.56, "1235"), (0.934_12, "0.9341"), (123_456.0, "123456"), (2e-7, "2.000e-7")]
        {
            assert_eq!(Cell::from(number).show(4), text);
        }
    }

    #[test]
    fn numbers_show_seven_digits() {
        for (number, text) in [
            (0.0, "0"),
            (336_776.0, "336776"),
            (-1.5, "-1.5"),
            (0.123_456_789, "0.1234568"),
            (123_456.789, "123456.8"),
            (1e-9, "1.000000e-9"),
        ] {
            assert_eq!(show_number(number, DIGITS), text);
        }
    }
}

//! The columns of a data set.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::row::{Field, NumberField, TextField};
use crate::error::{Error, Result};

/// The most columns of a data set.
pub const COLUMNS_MAX: usize = 32_767;
/// The widest text, in bytes.
pub const TEXT_WIDTH_MAX: u16 = 32_767;
/// The longest name of a column, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// A double; NaN is missing.
    Number,
    /// Days since 1970-01-01, as a double.
    Date,
    /// Seconds since 1970-01-01 UTC, as a double.
    Datetime,
    /// Bytes, padded with blanks; blank is missing.
    Text {
        /// Bytes in the row, 1 to [`TEXT_WIDTH_MAX`].
        width: u16,
    },
}

impl ColumnType {
    /// Bytes that the column takes in a row.
    #[must_use]
    pub fn width(self) -> u16 {
        match self {
            ColumnType::Number | ColumnType::Date | ColumnType::Datetime => 8,
            ColumnType::Text { width } => width,
        }
    }

    /// What the type is called in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Number => "number",
            ColumnType::Date => "date",
            ColumnType::Datetime => "date and time",
            ColumnType::Text { .. } => "text",
        }
    }
}

/// One column: its name and type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The name, unique in its data set, 1 to 255 bytes.
    pub name: String,
    /// What it holds.
    pub kind: ColumnType,
}

impl Column {
    /// A column of numbers.
    #[must_use]
    pub fn number(name: &str) -> Column {
        Column { name: name.to_owned(), kind: ColumnType::Number }
    }

    /// A column of texts of up to `width` bytes.
    #[must_use]
    pub fn text(name: &str, width: u16) -> Column {
        Column { name: name.to_owned(), kind: ColumnType::Text { width } }
    }
}

/// The columns of a data set in order, and where each lies in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Column>", into = "Vec<Column>")]
pub struct Schema {
    columns: Vec<Column>,
    offsets: Vec<usize>,
    row_bytes: usize,
}

impl Schema {
    /// Lays out `columns` one after another.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no column or too many, or a name or a width is out of bounds or
    /// a name is taken twice.
    pub fn new(columns: Vec<Column>) -> Result<Schema> {
        if columns.is_empty() || columns.len() > COLUMNS_MAX {
            return Err(Error::Setting {
                setting: "columns",
                value: columns.len().to_string(),
                allowed: format!("1 to {COLUMNS_MAX} columns"),
            });
        }
        let mut names = HashSet::new();
        let mut offsets = Vec::with_capacity(columns.len());
        let mut row_bytes = 0;
        for column in &columns {
            if column.name.is_empty() || column.name.len() > NAME_BYTES_MAX {
                return Err(Error::Setting {
                    setting: "name",
                    value: format!("\"{}\"", column.name),
                    allowed: format!("a name of 1 to {NAME_BYTES_MAX} bytes"),
                });
            }
            if !names.insert(column.name.as_str()) {
                return Err(Error::Setting {
                    setting: "name",
                    value: format!("\"{}\"", column.name),
                    allowed: "the name of one column only".to_owned(),
                });
            }
            let width = column.kind.width();
            if !(1..=TEXT_WIDTH_MAX).contains(&width) {
                return Err(Error::Setting {
                    setting: "width",
                    value: format!("{width} (column \"{}\")", column.name),
                    allowed: format!("1 to {TEXT_WIDTH_MAX} bytes"),
                });
            }
            offsets.push(row_bytes);
            row_bytes += usize::from(width);
        }
        Ok(Schema { columns, offsets, row_bytes })
    }

    /// The columns in order.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Position of the column named `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub(super) fn offset(&self, position: usize) -> usize {
        self.offsets[position]
    }

    /// Where the column at `position` lies in a row.
    ///
    /// # Panics
    /// If there is no column at `position`.
    #[must_use]
    pub fn field(&self, position: usize) -> Field {
        let offset = self.offsets[position];
        match self.columns[position].kind {
            kind @ (ColumnType::Number | ColumnType::Date | ColumnType::Datetime) => {
                Field::Number(NumberField { offset, kind })
            }
            ColumnType::Text { width } => {
                Field::Text(TextField { offset, width: usize::from(width) })
            }
        }
    }

    /// The same columns and one more at the end.
    ///
    /// # Errors
    /// As [`Schema::new`].
    pub fn with(&self, column: Column) -> Result<Schema> {
        let mut columns = self.columns.clone();
        columns.push(column);
        Schema::new(columns)
    }
}

impl TryFrom<Vec<Column>> for Schema {
    type Error = Error;

    fn try_from(columns: Vec<Column>) -> Result<Schema> {
        Schema::new(columns)
    }
}

impl From<Schema> for Vec<Column> {
    fn from(schema: Schema) -> Vec<Column> {
        schema.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lie_one_after_another() {
        let schema = Schema::new(vec![Column::text("a", 3), Column::number("b")]).unwrap();
        assert_eq!(schema.row_bytes(), 11);
        assert_eq!(schema.position("b"), Some(1));
        assert_eq!(schema.position("c"), None);
    }

    #[test]
    fn unusable_columns_are_refused() {
        for columns in [
            vec![],
            vec![Column::number("")],
            vec![Column::number("a"), Column::text("a", 1)],
            vec![Column::text("a", 0)],
            vec![Column::text("a", 40_000)],
            vec![Column::number(&"x".repeat(256))],
        ] {
            assert!(matches!(Schema::new(columns), Err(Error::Setting { .. })));
        }
    }
}

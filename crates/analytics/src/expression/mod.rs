//! Expressions over the columns of a data set: `if(income > 0 and region = "west", ln(income), 0)`.
//!
//! An expression is compiled once against the columns and then evaluated for up to [`CHUNK_ROWS`] rows
//! at a time, operation by operation over columns of numbers, so that nothing is looked up or allocated
//! for a row. It keeps as many columns of [`CHUNK_ROWS`] numbers as it is deep.
//!
//! # Language
//! - Numbers (`1`, `2.5e-3`), columns by name (`x`, or between backquotes if the name is no word),
//!   `missing`. Dates are their days, times their seconds: `date("2013-01-31")`,
//!   `datetime("2013-01-31T10:00:00Z")`.
//! - From loose to tight: `or`; `and`; `not`; `= <> < <= > >=` (also `==`, `!=`), `in (1, 2)`; `+ -`;
//!   `* / %`; `-x`; `^`, which binds to the right. `%` is the rest after division, with the sign of the
//!   dividend.
//! - Functions: `abs ceil cos exp floor ln log10 round sign sin sqrt`, of one number;
//!   `round(x, unit)`, to a multiple; `min max coalesce` of several; `if(condition, then, otherwise)`;
//!   `missing(x)`; `row()`, the number of the row in its data set from 1.
//! - A text column can be compared with a text between double quotes or with another text column, by
//!   its bytes, be `in ("a", "b")` and be `missing(t)`.
//!
//! # Missing values
//! A missing number makes the result missing, comparisons included. A division by zero, `ln` and
//! `log10` of what is not positive and `sqrt` of a negative number are missing. Conditions are true (not
//! zero), false (zero) or missing: `false and missing` is false, `true or missing` is true, as in SQL;
//! `if` of a missing condition is missing. A row filter takes the rows where it is true.
//!
//! # Why not a crate
//! Of the permissively licensed ones (`exmex`, `fasteval`, `meval`) none has three-valued logic, texts
//! beside numbers, and a position in its errors; all evaluate row by row.

mod evaluate;
mod parse;

pub use evaluate::CHUNK_ROWS;

use self::evaluate::Op;
use crate::dataset::{Rows, Schema};
use crate::error::{Error, Result};

/// A compiled expression and the memory that it is evaluated in.
#[derive(Clone, Debug)]
pub struct Expression {
    ops: Vec<Op>,
    stack: Vec<Vec<f64>>,
}

impl Expression {
    /// Compiles `text` against the columns of `schema` and the names of columns of numbers that are
    /// given at evaluation, which come first where names meet.
    ///
    /// # Errors
    /// [`Error::Expression`] with the position at which it stops making sense.
    pub fn new(text: &str, schema: &Schema, given: &[String]) -> Result<Expression> {
        let (ops, depth) = parse::parse(text, schema, given).map_err(|mistake| {
            let before = text.get(..mistake.at).unwrap_or(text);
            Error::Expression {
                expression: text.to_owned(),
                position: before.chars().count() + 1,
                reason: mistake.reason,
            }
        })?;
        Ok(Expression { ops, stack: vec![vec![0.0; CHUNK_ROWS]; depth] })
    }

    /// The values of `rows`, whose first has the number `first_row` counted from 0. NaN is missing.
    ///
    /// # Panics
    /// If there are more than [`CHUNK_ROWS`] rows, rows of another schema, or fewer `given` columns or
    /// values than were named.
    pub fn evaluate(&mut self, rows: &Rows<'_>, first_row: u64, given: &[Vec<f64>]) -> &[f64] {
        evaluate::evaluate(&self.ops, &mut self.stack, rows, first_row, given)
    }
}

/// Whether a condition is true: neither zero nor missing.
#[inline]
#[must_use]
pub fn is_true(value: f64) -> bool {
    value != 0.0 && !value.is_nan()
}

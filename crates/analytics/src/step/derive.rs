//! Derive: copies a data set, with new columns, fewer columns or fewer rows. A data step.

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use super::output::refuse_input;
use crate::dataset::{
    Column, ColumnType, Field, NumberField, PAGE_BYTES_DEFAULT, Projection, Reader, Rows, Schema,
    TextField, Writer,
};
use crate::error::{Error, Result};
use crate::expression::{CHUNK_ROWS, Expression, is_true};
use crate::step::{Action, Context, Outcome};

/// Copies rows in their order; without further settings all of them as they are. Uses the memory of
/// two pages and of [`CHUNK_ROWS`] values for each new column and each part of its expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Derive {
    /// The data set to read.
    pub input: PathBuf,
    /// The data set to write; may not be the input.
    pub output: PathBuf,
    /// Which rows are copied: an expression ([`crate::expression`]) over the input's columns.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The columns that are copied, in this order; all if left out. `x*` stands for all that start
    /// with `x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Vec<String>>,
    /// Columns that are not copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
    /// New columns, which follow the copied ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Derived>,
    /// Page size of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<ByteSize>,
}

/// A new column: numbers from `expr`, or texts from `cases`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Derived {
    /// Its name, not that of a copied column.
    pub name: String,
    /// Its values: an expression over the input's columns and the new number columns before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expr: Option<String>,
    /// Number, date or datetime.
    #[serde(default = "number")]
    pub kind: ColumnType,
    /// The text of the first case that is true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
    /// The text where no case is true; missing if left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub otherwise: String,
}

/// A text and when it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// An expression.
    pub when: String,
    /// The text.
    pub text: String,
}

fn number() -> ColumnType {
    ColumnType::Number
}

impl Derived {
    /// A column of numbers.
    #[must_use]
    pub fn number(name: &str, expr: &str) -> Derived {
        Derived {
            name: name.to_owned(),
            expr: Some(expr.to_owned()),
            kind: ColumnType::Number,
            cases: Vec::new(),
            otherwise: String::new(),
        }
    }

    /// The column, or `None` if the settings do not go together.
    fn column(&self) -> Option<Column> {
        let kind = match (&self.expr, self.cases.is_empty(), self.kind) {
            (Some(_), true, ColumnType::Text { .. }) => return None,
            (Some(_), true, kind) if self.otherwise.is_empty() => kind,
            (None, false, ColumnType::Number) => {
                let texts = self.cases.iter().map(|case| &case.text).chain([&self.otherwise]);
                let width = texts.map(String::len).max().unwrap_or(0).max(1);
                ColumnType::Text { width: u16::try_from(width).ok()? }
            }
            _ => return None,
        };
        Some(Column { name: self.name.clone(), kind })
    }
}

impl Derive {
    /// Copies `input` to `output` as it is.
    #[must_use]
    pub fn new(input: PathBuf, output: PathBuf) -> Derive {
        Derive {
            input,
            output,
            filter: None,
            keep: None,
            drop: Vec::new(),
            columns: Vec::new(),
            page_bytes: None,
        }
    }

    /// Runs the step; returns the rows written.
    ///
    /// # Errors
    /// [`Error::Expression`] if an expression cannot be understood; [`Error::Column`] if a column does
    /// not exist or a new one does already; [`Error::Setting`] if a new column is not described as it
    /// must be; those of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<u64> {
        refuse_input(&self.output, &[&self.input])?;
        let mut reader = Reader::open(&self.input)?;
        let projection = Projection::new(&reader, self.keep.as_deref(), &self.drop)?;
        let schema = self.schema(&projection)?;
        let mut filter = self
            .filter
            .as_deref()
            .map(|text| Expression::new(text, reader.schema(), &[]))
            .transpose()?;
        let mut columns = NewColumns::new(self, reader.schema(), &schema)?;
        let mut row = vec![0; schema.row_bytes()];
        let mut writer =
            Writer::create(&self.output, schema, self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0)?;
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for chunk in rows.chunks(CHUNK_ROWS) {
                let taken = filter.as_mut().map(|filter| filter.evaluate(&chunk, done, &[]));
                columns.evaluate(&chunk, done);
                for (at, input_row) in chunk.iter().enumerate() {
                    if taken.is_none_or(|taken| is_true(taken[at])) {
                        projection.copy(input_row, &mut row);
                        columns.set(at, &mut row);
                        writer.push(&row)?;
                    }
                }
                done += chunk.count() as u64;
            }
            progress(done);
        }
        writer.finish()
    }

    /// The columns of the output.
    fn schema(&self, projection: &Projection) -> Result<Schema> {
        let mut columns = projection.columns().to_vec();
        for derived in &self.columns {
            if columns.iter().any(|column| column.name == derived.name) {
                return Err(Error::Column {
                    path: self.input.clone(),
                    column: derived.name.clone(),
                    reason: "already exists; drop it, or name the new column otherwise".to_owned(),
                });
            }
            columns.push(derived.column().ok_or_else(|| {
                Error::Setting {
                    setting: "columns",
                    value: format!("\"{}\"", derived.name),
                    allowed:
                        "an expr of the kind number, date or datetime, or else cases of texts of \
                          up to 32767 bytes"
                            .to_owned(),
                }
            })?);
        }
        Schema::new(columns)
    }
}

/// The new columns and their values in the rows at hand.
struct NewColumns {
    sources: Vec<Source>,
    /// Values of the columns of numbers.
    numbers: Vec<Vec<f64>>,
}

enum Source {
    /// The expression and the place of its values in `numbers`.
    Number { field: NumberField, expression: Expression, place: usize },
    /// The cases, their texts with that of no case last, and which text each row has.
    Text { field: TextField, cases: Vec<Expression>, texts: Vec<Vec<u8>>, chosen: Vec<usize> },
}

impl NewColumns {
    fn new(step: &Derive, input: &Schema, output: &Schema) -> Result<NewColumns> {
        let mut names: Vec<String> = Vec::new();
        let mut sources = Vec::new();
        for derived in &step.columns {
            let compile = |text: &str| Expression::new(text, input, &names);
            let field = output.position(&derived.name).map(|position| output.field(position));
            sources.push(match (field, &derived.expr) {
                (Some(Field::Number(field)), Some(expr)) => {
                    let (expression, place) = (compile(expr)?, names.len());
                    names.push(derived.name.clone());
                    Source::Number { field, expression, place }
                }
                (Some(Field::Text(field)), _) => {
                    let cases = derived.cases.iter().map(|case| compile(&case.when));
                    let texts = derived.cases.iter().map(|case| &case.text);
                    Source::Text {
                        field,
                        cases: cases.collect::<Result<_>>()?,
                        texts: texts
                            .chain([&derived.otherwise])
                            .map(|text| text.clone().into_bytes())
                            .collect(),
                        chosen: vec![0; CHUNK_ROWS],
                    }
                }
                _ => unreachable!("the output has every new column with the type of its settings"),
            });
        }
        Ok(NewColumns { numbers: vec![vec![0.0; CHUNK_ROWS]; names.len()], sources })
    }

    fn evaluate(&mut self, rows: &Rows<'_>, first_row: u64) {
        for source in &mut self.sources {
            match source {
                Source::Number { expression, place, .. } => {
                    let values = expression.evaluate(rows, first_row, &self.numbers);
                    self.numbers[*place][..values.len()].copy_from_slice(values);
                }
                Source::Text { cases, chosen, .. } => {
                    chosen.fill(cases.len());
                    for (case, expression) in cases.iter_mut().enumerate().rev() {
                        let values = expression.evaluate(rows, first_row, &self.numbers);
                        for (chosen, &value) in chosen.iter_mut().zip(values) {
                            if is_true(value) {
                                *chosen = case;
                            }
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn set(&self, at: usize, row: &mut [u8]) {
        for source in &self.sources {
            match source {
                Source::Number { field, place, .. } => field.set(row, self.numbers[*place][at]),
                Source::Text { field, texts, chosen, .. } => {
                    assert!(field.set(row, &texts[chosen[at]]), "the width is that of the longest");
                }
            }
        }
    }
}

impl Action for Derive {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.output])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        Ok(Outcome::rows(self.run(progress)?))
    }
}

//! Score code: a large scoring program, generated in memory and run over rows.
//!
//! What a code generation step leaves behind after training many models: decision trees and hash
//! look-ups by the hundred thousand, compiled to byte code that fills the memory it is given. Scoring a
//! row walks one path through every tree, which touches the whole program in leaps.

mod code;

use std::path::PathBuf;

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::amount::{Count, Scale, ScaledCount, Size};
use crate::dataset::{ColumnType, Field, NumberField, Reader};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::Table;

pub use code::{Code, Condition, Tree, slot};

/// Columns of generated rows, and the most that are taken of a data set.
const COLUMNS: usize = 64;
/// One part in so many of the memory is for the weights of look-ups.
const WEIGHTS_PART: u64 = 4;
/// Parts of the scores that the table shows.
const PARTS: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0];

/// Generates a scoring program of `memory` bytes and scores rows with it: those of `input`, or drawn
/// ones. Uses the memory of the program, of a page and of eight bytes per row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreCode {
    /// The data set to score; normal draws if left out.
    pub input: Option<PathBuf>,
    /// The number columns to score by, at most 64; the first ones of the data set if left out.
    pub columns: Vec<String>,
    /// Rows to score, at most those of the data set.
    pub rows: Count,
    /// Bytes of the program; the memory of the context if left out.
    pub memory: Option<Size>,
    /// Conditions from the root of a tree to each leaf, 1 to 20.
    pub depth: u32,
    /// Where the program and the draws come from; the job's own if left out.
    pub seed: Option<u64>,
}

impl Default for ScoreCode {
    /// 1,000 rows at scale 1, trees of depth 10.
    fn default() -> ScoreCode {
        ScoreCode {
            input: None,
            columns: Vec::new(),
            rows: Count::Scaled(ScaledCount { full: 1000, power: 1.0, min: 10 }),
            memory: None,
            depth: 10,
            seed: None,
        }
    }
}

/// What scoring found.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The scores in the order of the rows.
    pub scores: Vec<f64>,
    /// Bytes of code.
    pub code_bytes: u64,
    /// Bytes of the weights of look-ups.
    pub weights_bytes: u64,
    /// Trees in the program.
    pub trees: u64,
    /// Instructions that were run over all rows.
    pub instructions: u64,
}

/// Where rows come from.
enum Rows {
    Drawn(Box<StdRng>),
    Read { reader: Box<Reader>, fields: Vec<NumberField>, moments: Vec<(f64, f64)> },
}

impl ScoreCode {
    /// Runs the step at `scale`; `progress` hears rows.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist,
    /// is no number, or if there is none; those of reading a data set.
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<Scored> {
        let memory = self.memory.map_or(ByteSize::gib(2), |memory| memory.at(scale)).0;
        let least = ByteSize(WEIGHTS_PART * Code::tree_bytes(self.depth.clamp(1, 20)));
        if !(1..=20).contains(&self.depth) || self.columns.len() > COLUMNS {
            return Err(Error::Setting {
                setting: "depth",
                value: format!("{} with {} columns", self.depth, self.columns.len()),
                allowed: format!("from 1 to 20 with at most {COLUMNS} columns"),
            });
        }
        if memory < least.0 {
            return Err(Error::Setting {
                setting: "memory",
                value: ByteSize(memory).to_string(),
                allowed: format!("at least {least} for trees of depth {}", self.depth),
            });
        }
        let mut rows = self.open()?;
        let mut random = StdRng::seed_from_u64(self.seed.unwrap_or(0));
        let weights = memory / WEIGHTS_PART;
        let code = Code::generate(
            memory - weights,
            weights,
            self.depth,
            rows.columns() as u16,
            &mut random,
        );
        let mut values = vec![0.0; rows.columns()];
        let mut scored = Scored {
            scores: Vec::new(),
            code_bytes: code.code_bytes(),
            weights_bytes: code.weights_bytes(),
            trees: code.trees(),
            instructions: 0,
        };
        let count = self.rows.at(scale);
        while (scored.scores.len() as u64) < count && rows.next(&mut values)? {
            let (score, instructions) = code.score(&values);
            scored.scores.push(score);
            scored.instructions += instructions;
            progress(scored.scores.len() as u64);
        }
        Ok(scored)
    }

    fn open(&self) -> Result<Rows> {
        let Some(path) = &self.input else {
            let seed = self.seed.unwrap_or(0).wrapping_add(1);
            return Ok(Rows::Drawn(Box::new(StdRng::seed_from_u64(seed))));
        };
        let mut reader = Reader::open(path)?;
        let fields = if self.columns.is_empty() {
            let numbers = reader.schema().columns().iter().enumerate();
            let numbers = numbers.filter(|(_, column)| column.kind == ColumnType::Number);
            let fields =
                numbers.filter_map(|(position, _)| match reader.schema().field(position) {
                    Field::Number(field) => Some(field),
                    Field::Text(_) => None,
                });
            fields.take(COLUMNS).collect()
        } else {
            let named = self.columns.iter().map(|name| reader.number_field(name));
            named.collect::<Result<Vec<_>>>()?
        };
        if fields.is_empty() {
            let reason = "the data set has no number to score by".to_owned();
            return Err(Error::Column { path: path.clone(), column: "*".to_owned(), reason });
        }
        let moments = first_moments(&mut reader, &fields)?;
        Ok(Rows::Read { reader: Box::new(reader), fields, moments })
    }
}

/// Means and standard deviations over the first page; the reader stands at its first row again.
fn first_moments(reader: &mut Reader, fields: &[NumberField]) -> Result<Vec<(f64, f64)>> {
    let mut sums = vec![(0.0, 0.0, 0.0); fields.len()];
    if let Some(rows) = reader.next_rows()? {
        for row in rows.iter() {
            for ((n, mean, squares), field) in sums.iter_mut().zip(fields) {
                let value = field.get(row);
                if value.is_finite() {
                    *n += 1.0;
                    let from_mean = value - *mean;
                    *mean += from_mean / *n;
                    *squares += from_mean * (value - *mean);
                }
            }
        }
    }
    reader.seek(0)?;
    let moments = sums.into_iter().map(|(n, mean, squares): (f64, f64, f64)| {
        let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
        (mean, if deviation > 0.0 { deviation } else { 1.0 })
    });
    Ok(moments.collect())
}

impl Rows {
    fn columns(&self) -> usize {
        match self {
            Rows::Drawn(_) => COLUMNS,
            Rows::Read { fields, .. } => fields.len(),
        }
    }

    /// Puts the next row into `values`, in standard deviations from the mean; false at the end.
    fn next(&mut self, values: &mut [f64]) -> Result<bool> {
        match self {
            Rows::Drawn(random) => {
                values.fill_with(|| StandardNormal.sample(random));
                // A few are missing, as in real data.
                let missing = random.random_range(0..4 * values.len());
                if let Some(value) = values.get_mut(missing) {
                    *value = f64::NAN;
                }
                Ok(true)
            }
            Rows::Read { reader, fields, moments } => {
                if !reader.advance()? {
                    return Ok(false);
                }
                let row = reader.current();
                for ((value, field), (mean, deviation)) in
                    values.iter_mut().zip(fields.iter()).zip(moments.iter())
                {
                    *value = (field.get(row) - mean) / deviation;
                }
                Ok(true)
            }
        }
    }
}

impl Action for ScoreCode {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        if let Some(input) = &mut self.input {
            context.resolve(input)?;
        }
        self.memory.get_or_insert(context.buffers.memory.into());
        self.seed.get_or_insert(context.seed_for("score code"));
        Ok(())
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let mut scored = self.run(context.scale, progress)?;
        let rows = scored.scores.len() as u64;
        let mean = scored.scores.iter().sum::<f64>() / rows.max(1) as f64;
        Ok(Outcome::table(rows, scored.table())
            .with("code_bytes", scored.code_bytes as f64)
            .with("weights_bytes", scored.weights_bytes as f64)
            .with("trees", scored.trees as f64)
            .with("instructions", scored.instructions as f64)
            .with("score_mean", mean))
    }
}

impl Scored {
    /// The scores at some parts of them; sorts them.
    #[must_use]
    pub fn table(&mut self) -> Table {
        let mut table = Table::new(&["part", "score"]);
        self.scores.sort_unstable_by(f64::total_cmp);
        for part in PARTS {
            let last = self.scores.len().saturating_sub(1);
            let score = self.scores.get((part * last as f64).round() as usize).copied();
            table.push(vec![part.into(), score.into()]);
        }
        table
    }
}

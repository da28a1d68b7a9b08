//! Histogram: range, moments, quantiles and bins of number columns.
//!
//! One pass finds the number of values, their range, mean and spread, and the quantiles, by a sketch in
//! bounded memory (see [`QuantileSketch`] for its error; quantiles are exact for up to
//! [`BUFFER_VALUES`] values). A second pass, if bins are asked for, counts the values in bins of equal
//! width between the smallest and the largest value, exactly.

mod sketch;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::sketch::{BUFFER_VALUES, QuantileSketch};
use super::Progress;
use super::summary::{Accumulator, Statistics};
use crate::dataset::{ColumnType, NumberField, Reader};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The most bins of a column.
pub const BINS_MAX: usize = 10_000;

/// Describes the distributions of number columns. Uses the memory of a page and, for each column, of
/// its bins and a sketch: 32 KiB for each doubling of the number of values beyond [`BUFFER_VALUES`],
/// and 64 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// The data set.
    pub input: PathBuf,
    /// The number columns; all there are if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Bins of each column, up to [`BINS_MAX`]; none, and no second pass, if 0.
    #[serde(default = "bins_default")]
    pub bins: usize,
    /// Which quantiles, from 0 to 1.
    #[serde(default = "quantiles_default")]
    pub quantiles: Vec<f64>,
}

fn bins_default() -> usize {
    20
}

fn quantiles_default() -> Vec<f64> {
    vec![0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
}

/// The distribution of one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnHistogram {
    /// The column.
    pub column: String,
    /// Number of values, range and moments.
    pub statistics: Statistics,
    /// The quantiles that were asked for; none without values.
    pub quantiles: Vec<f64>,
    /// Values in each bin; a value between two bins is in the upper one, the largest in the last. None
    /// without values, and if the range is not finite.
    pub bins: Vec<u64>,
}

impl ColumnHistogram {
    /// Where bin `bin` starts; the end of the last one is the start of the one after.
    #[must_use]
    pub fn bin_start(&self, bin: usize) -> Option<f64> {
        let (min, max) = (self.statistics.min?, self.statistics.max?);
        Some(min + (max - min) / self.bins.len() as f64 * bin as f64)
    }
}

impl Histogram {
    /// Describes all number columns, or `columns`, with 20 bins and the usual quantiles.
    #[must_use]
    pub fn new(input: PathBuf, columns: Option<&[&str]>) -> Histogram {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Histogram {
            input,
            columns: columns.map(names),
            bins: bins_default(),
            quantiles: quantiles_default(),
        }
    }

    /// Runs the step. Progress counts every row once per pass.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist
    /// or is a text; those of reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Vec<ColumnHistogram>> {
        if self.bins > BINS_MAX {
            return Err(Error::Setting {
                setting: "bins",
                value: self.bins.to_string(),
                allowed: format!("up to {BINS_MAX}"),
            });
        }
        if let Some(wrong) = self.quantiles.iter().find(|part| !(0.0..=1.0).contains(*part)) {
            return Err(Error::Setting {
                setting: "quantiles",
                value: wrong.to_string(),
                allowed: "from 0 to 1".to_owned(),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        let fields = self.fields(&reader)?;
        let mut columns: Vec<(Accumulator, QuantileSketch)> =
            fields.iter().map(|_| (Accumulator::EMPTY, QuantileSketch::new())).collect();
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for ((_, field), (accumulator, sketch)) in fields.iter().zip(&mut columns) {
                for row in rows.iter() {
                    let value = field.get(row);
                    accumulator.add(value);
                    sketch.add(value);
                }
            }
            done += rows.count() as u64;
            progress(done);
        }
        let described = fields.iter().zip(&mut columns);
        let mut histograms: Vec<ColumnHistogram> = described
            .map(|((column, _), (accumulator, sketch))| ColumnHistogram {
                column: column.clone(),
                statistics: accumulator.statistics(),
                quantiles: sketch.quantiles(&self.quantiles),
                bins: Vec::new(),
            })
            .collect();
        drop(columns);
        if self.bins > 0 {
            let mut second = |rows| progress(done + rows);
            self.fill_bins(&mut reader, &fields, &mut histograms, &mut second)?;
        }
        Ok(histograms)
    }

    fn fields(&self, reader: &Reader) -> Result<Vec<(String, NumberField)>> {
        let all = reader.schema().columns().iter();
        let all = all.filter(|column| !matches!(column.kind, ColumnType::Text { .. }));
        let names: Vec<String> = match &self.columns {
            Some(columns) => columns.clone(),
            None => all.map(|column| column.name.clone()).collect(),
        };
        names
            .into_iter()
            .map(|name| reader.number_field(&name).map(|field| (name, field)))
            .collect()
    }

    /// Counts values in bins of equal width.
    fn fill_bins(
        &self,
        reader: &mut Reader,
        fields: &[(String, NumberField)],
        histograms: &mut [ColumnHistogram],
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        // Smallest value and bins per unit; none where there is no finite range.
        let mut ranges = Vec::with_capacity(fields.len());
        for histogram in histograms.iter_mut() {
            let range = histogram.statistics.min.zip(histogram.statistics.max);
            let range = range.filter(|(min, max)| (max - min).is_finite());
            histogram.bins = vec![0; range.map_or(0, |_| self.bins)];
            ranges.push(range.map(|(min, max)| {
                (min, if max > min { self.bins as f64 / (max - min) } else { 0.0 })
            }));
        }
        reader.seek(0)?;
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            let columns = fields.iter().zip(&ranges).zip(histograms.iter_mut());
            for (((_, field), range), histogram) in columns {
                let Some((min, per_unit)) = range else { continue };
                for row in rows.iter() {
                    let value = field.get(row);
                    if !value.is_nan() {
                        let bin = ((value - min) * per_unit) as usize;
                        histogram.bins[bin.min(self.bins - 1)] += 1;
                    }
                }
            }
            done += rows.count() as u64;
            progress(done);
        }
        Ok(())
    }

    /// The histograms as a table: a row for each figure, quantile and bin of each column.
    #[must_use]
    pub fn table(&self, histograms: &[ColumnHistogram]) -> Table {
        let mut table = Table::new(&["column", "what", "from", "to", "value"]);
        for histogram in histograms {
            let mut push = |what: &str, from: Option<f64>, to: Option<f64>, value: Cell| {
                let column = histogram.column.as_str().into();
                table.push(vec![column, what.into(), from.into(), to.into(), value]);
            };
            let s = &histogram.statistics;
            push("n", None, None, s.n.into());
            push("missing", None, None, s.missing.into());
            for (what, value) in
                [("min", s.min), ("max", s.max), ("mean", s.mean), ("std_dev", s.std_dev)]
            {
                push(what, None, None, value.into());
            }
            for (part, value) in self.quantiles.iter().zip(&histogram.quantiles) {
                push("quantile", Some(*part), Some(*part), (*value).into());
            }
            for (bin, &count) in histogram.bins.iter().enumerate() {
                let (from, to) = (histogram.bin_start(bin), histogram.bin_start(bin + 1));
                push("bin", from, to, count.into());
            }
        }
        table
    }
}

impl Action for Histogram {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let histograms = self.run(progress)?;
        let rows = histograms.first().map_or(0, |h| h.statistics.n + h.statistics.missing);
        Ok(Outcome::table(rows, self.table(&histograms)))
    }
}

//! The extract of one model process: pages of the shared fact table, added up to series.

use std::collections::{BTreeMap, HashMap};

use super::Demand;
use crate::dataset::{Field, NumberField, PAGE_HEADER_BYTES, Reader};
use crate::error::{Error, Result};
use crate::key::{KeyCodec, SortKey};
use crate::series::interpolate;
use crate::step::Job;
use crate::step::Progress;
use crate::table::Cell;

/// Pages that are read in one piece.
const RUN_PAGES: u64 = 4;
/// Products kept; rows of others are passed over.
const PRODUCTS_MAX: usize = 10_000;
/// The longest series: its last periods are kept.
const PERIODS_MAX: usize = 1024;

/// One product over time.
pub(super) struct DemandSeries {
    /// The product as in the table.
    pub product: Cell,
    /// Mean quantity of each period; NaN where the extract has no row.
    pub values: Vec<f64>,
    /// Mean of each regressor in each period, between neighbours where there is none.
    pub regressors: Vec<Vec<f64>>,
}

/// What an extract came to.
pub(super) struct Extract {
    /// The products with the most rows, those first.
    pub series: Vec<DemandSeries>,
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Sums of one period: rows, then quantity, then regressors.
type Sums = Box<[f64]>;

struct Product {
    name: Cell,
    rows: u64,
    periods: BTreeMap<i64, Sums>,
}

/// The columns and the products seen.
struct Products {
    codec: KeyCodec,
    product: Field,
    period: NumberField,
    period_length: f64,
    numbers: Vec<NumberField>,
    places: HashMap<Box<[u8]>, usize>,
    products: Vec<Product>,
}

impl Extract {
    /// Reads `wanted_bytes` of the table in runs of pages with even gaps between them, over the whole
    /// table and around its end; where it starts depends on the job's number.
    pub fn read(
        step: &Demand,
        wanted_bytes: u64,
        series: usize,
        job: &Job,
        progress: &mut Progress<'_>,
    ) -> Result<Extract> {
        let mut reader = Reader::open(&step.input)?;
        let mut products = Products::new(step, &reader)?;
        let per_page = reader.rows_per_page() as u64;
        let pages = reader.rows().div_ceil(per_page);
        let wanted = wanted_bytes.div_ceil(reader.page_bytes()).clamp(1, pages.max(1));
        let runs = wanted.div_ceil(RUN_PAGES);
        // `number` of `count` parts of all pages.
        let part = |number: u64, count: u64| {
            (u128::from(number) * u128::from(pages) / u128::from(count.max(1))) as u64
        };
        let start = part(job.number, job.count);
        let row_bytes = reader.schema().row_bytes() as u64;
        let (mut rows_read, mut bytes, mut left) = (0, 0, wanted);
        for run in 0..runs {
            let (first, next) = (part(run, runs), part(run + 1, runs));
            reader.seek((start + first) % pages.max(1) * per_page)?;
            for _ in 0..RUN_PAGES.min(next - first).min(left) {
                let Some(rows) = reader.next_rows()? else { break };
                rows.iter().try_for_each(|row| products.add(step, row))?;
                rows_read += rows.count() as u64;
                bytes += rows.count() as u64 * row_bytes + PAGE_HEADER_BYTES as u64;
                left -= 1;
            }
            progress(rows_read);
        }
        let series = products.series(series, step.least_periods());
        if series.is_empty() {
            return Err(Error::TooFewRows { rows: rows_read, needed: step.least_periods() as u64 });
        }
        Ok(Extract { series, rows: rows_read, bytes })
    }
}

impl Products {
    fn new(step: &Demand, reader: &Reader) -> Result<Products> {
        let mut numbers = vec![reader.number_field(&step.quantity)?];
        for name in &step.regressors {
            numbers.push(reader.number_field(name)?);
        }
        Ok(Products {
            codec: KeyCodec::new(reader, &[SortKey::ascending(&step.product)])?,
            product: reader.field(&step.product)?,
            period: reader.number_field(&step.period)?,
            period_length: step.period_length,
            numbers,
            places: HashMap::new(),
            products: Vec::new(),
        })
    }

    fn add(&mut self, step: &Demand, row: &[u8]) -> Result<()> {
        let period = (self.period.get(row) / self.period_length).floor();
        if self.numbers.iter().any(|field| !field.get(row).is_finite()) || !period.is_finite() {
            return Ok(());
        }
        let mut key = [0; 64];
        let mut long = Vec::new();
        let bytes = self.codec.key_bytes();
        let key = if let Some(key) = key.get_mut(..bytes) {
            key
        } else {
            long.resize(bytes, 0);
            &mut long[..]
        };
        self.codec.encode(row, key);
        let place = match self.places.get(&*key) {
            Some(&place) => place,
            None if self.products.len() == PRODUCTS_MAX => return Ok(()),
            None => {
                self.places.insert(key.into(), self.products.len());
                let name = name(self.product, row);
                self.products.push(Product { name, rows: 0, periods: BTreeMap::new() });
                self.products.len() - 1
            }
        };
        let product = &mut self.products[place];
        product.rows += 1;
        let sums = product
            .periods
            .entry(period as i64)
            .or_insert_with(|| vec![0.0; 1 + self.numbers.len()].into_boxed_slice());
        sums[0] += 1.0;
        for (sum, field) in sums[1..].iter_mut().zip(&self.numbers) {
            *sum += field.get(row);
        }
        if product.periods.len() > 4 * PERIODS_MAX {
            return Err(Error::Setting {
                setting: "period_length",
                value: step.period_length.to_string(),
                allowed: format!("such that a product has at most {PERIODS_MAX} periods"),
            });
        }
        Ok(())
    }

    /// The `count` products with the most rows among those with `least` periods.
    fn series(mut self, count: usize, least: usize) -> Vec<DemandSeries> {
        self.products.retain(|product| product.periods.len() >= least);
        // Products came in the order of the table, which is that of equals here.
        self.products.sort_by_key(|product| std::cmp::Reverse(product.rows));
        let columns = self.numbers.len();
        let series = self.products.into_iter().map(|product| product.series(columns));
        series.filter(|series| series.present() >= least).take(count).collect()
    }
}

impl Product {
    fn series(self, columns: usize) -> DemandSeries {
        let last = self.periods.last_key_value().map_or(0, |(&period, _)| period);
        let oldest = last.saturating_sub(PERIODS_MAX as i64 - 1);
        let first = self.periods.range(oldest..).next().map_or(last, |(&period, _)| period);
        let mut means = vec![vec![f64::NAN; (last - first) as usize + 1]; columns];
        for (&period, sums) in self.periods.range(first..) {
            for (column, &sum) in means.iter_mut().zip(&sums[1..]) {
                column[(period - first) as usize] = sum / sums[0];
            }
        }
        let mut means = means.into_iter();
        let values = means.next().unwrap_or_default();
        let mut regressors: Vec<Vec<f64>> = means.collect();
        regressors.iter_mut().for_each(|column| interpolate(column));
        DemandSeries { product: self.name, values, regressors }
    }
}

impl DemandSeries {
    fn present(&self) -> usize {
        self.values.iter().filter(|value| !value.is_nan()).count()
    }
}

fn name(field: Field, row: &[u8]) -> Cell {
    match field {
        Field::Number(field) => field.get(row).into(),
        Field::Text(field) => match field.get(row) {
            b"" => Cell::Missing,
            text => String::from_utf8_lossy(text).into_owned().into(),
        },
    }
}

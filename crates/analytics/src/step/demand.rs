//! Demand: one model process of a calibration job.
//!
//! The shape is that of a calibration workload on a shared file system: many processes at once, each
//! with its own extract of a shared fact table, a stream of thousands of temporary files, and output
//! files written once into an analytic data mart. Here the extract becomes series of demand, the
//! temporary files hold the populations of a parameter search (the `candidates` module), and the
//! outputs are futures drawn from the models.

mod candidates;
mod extract;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::Progress;
use super::forecast::Family;
use crate::amount::{Count, Scale, Size};
use crate::dataset::{Column, Field, PAGE_BYTES_DEFAULT, RowBuffer, Schema, Writer};
use crate::error::{Error, Result};
use crate::scratch::{ScratchDir, make_directory};
use crate::series;
use crate::step::{Action, Buffers, Context, Job, Outcome};
use crate::table::{Cell, Table};
use crate::temporary::{FileSizes, TempCounts, TempLife};
use candidates::{Calibrated, Candidates};
use extract::Extract;

/// Periods that a series needs beside two seasons.
const PERIODS_MIN: usize = 12;

/// One model process: reads its extract of `input`, fits demand models to the products with the most
/// rows in it, searches and draws again through temporary files in `work`, and writes `output_files`
/// data sets into `outputs`. What it finds depends on the table, the job and the seed alone. Uses the
/// memory of a few pages and of the products of the extract, at most 10,000 with 4,096 periods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// The fact table, shared and only read.
    pub input: PathBuf,
    /// Where the directory of temporary files is made.
    #[serde(default = "work_default")]
    pub work: PathBuf,
    /// The directory of the output files; made if it is not there.
    #[serde(default = "outputs_default")]
    pub outputs: PathBuf,
    /// The column that says the product, of any type.
    #[serde(default = "product_default")]
    pub product: String,
    /// The column that says the period: a number, a date or a time.
    #[serde(default = "period_default")]
    pub period: String,
    /// How much of `period` is one period of the series.
    #[serde(default = "period_length_default")]
    pub period_length: f64,
    /// The column of the quantities.
    #[serde(default = "quantity_default")]
    pub quantity: String,
    /// The columns that explain demand.
    #[serde(default = "regressors_default")]
    pub regressors: Vec<String>,
    /// Periods in a season; 1 for none.
    #[serde(default = "season_default")]
    pub season: usize,
    /// The models to choose from.
    #[serde(default = "models_default")]
    pub models: Vec<Family>,
    /// Bytes of the table that the process reads.
    #[serde(default = "extract_default")]
    pub extract_bytes: Size,
    /// Products that it models.
    #[serde(default = "series_default")]
    pub series: Count,
    /// Temporary files in all.
    #[serde(default = "temp_files_default")]
    pub temp_files: Count,
    /// How large they are; output files too.
    #[serde(default)]
    pub temp_bytes: FileSizes,
    /// Temporary files kept at a time beside the newest.
    #[serde(default = "live_default")]
    pub live: usize,
    /// Temporary files read for each that is made: itself, then any that is alive.
    #[serde(default = "reads_default")]
    pub reads: u32,
    /// The part of the temporary files that is renamed, 0 to 1.
    #[serde(default = "quarter")]
    pub renames: f64,
    /// For each file made, how likely one that is alive is overwritten in part, 0 to 1.
    #[serde(default = "quarter")]
    pub overwrites: f64,
    /// Models fitted for each temporary file: the computing beside the files.
    #[serde(default = "fits_default")]
    pub fits_per_file: u64,
    /// Output files.
    #[serde(default = "output_files_default")]
    pub output_files: Count,
    /// Periods of each future in the output files.
    #[serde(default = "season_default")]
    pub horizon: usize,
    /// Page size of the output files.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
    /// Where draws come from; the job's own if left out.
    #[serde(default)]
    pub seed: Option<u64>,
}

fn work_default() -> PathBuf {
    PathBuf::from("work")
}

fn outputs_default() -> PathBuf {
    PathBuf::from("data/mart/{job}")
}

fn product_default() -> String {
    "product".to_owned()
}

fn period_default() -> String {
    "period".to_owned()
}

fn period_length_default() -> f64 {
    1.0
}

fn quantity_default() -> String {
    "quantity".to_owned()
}

fn regressors_default() -> Vec<String> {
    ["price", "promotion"].map(str::to_owned).to_vec()
}

fn season_default() -> usize {
    12
}

fn models_default() -> Vec<Family> {
    vec![Family::Linear]
}

fn extract_default() -> Size {
    ByteSize::mib(64).into()
}

fn series_default() -> Count {
    20.into()
}

fn temp_files_default() -> Count {
    7000.into()
}

fn live_default() -> usize {
    20
}

fn reads_default() -> u32 {
    3
}

fn quarter() -> f64 {
    0.25
}

fn fits_default() -> u64 {
    16
}

fn output_files_default() -> Count {
    100.into()
}

/// One product with its model.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandModel {
    /// The product.
    pub product: Cell,
    /// Name of the model.
    pub model: String,
    /// Periods with a quantity.
    pub periods: u64,
    /// How fast the level follows, and its standard error.
    pub alpha: (f64, Option<f64>),
    /// Coefficients of the regressors, and their standard errors.
    pub coefficients: Vec<(f64, Option<f64>)>,
    /// Root mean square of the one-step errors.
    pub error: f64,
    /// The same over the mean quantity.
    pub error_part: f64,
    /// Candidates read back from temporary files.
    pub candidates: u64,
}

/// What a model process did.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandResult {
    /// The products in the order of their rows in the extract, most first.
    pub models: Vec<DemandModel>,
    /// Rows of the extract.
    pub rows: u64,
    /// Bytes of the extract.
    pub extract_bytes: u64,
    /// What was done with temporary files.
    pub temp: TempCounts,
    /// Models fitted.
    pub fitted: u64,
    /// Output files, and their rows.
    pub output_files: u64,
    /// Rows of the output files.
    pub output_rows: u64,
}

impl Demand {
    /// A model process on the fact table `input` with temporary files in `work` and outputs in
    /// `outputs`; everything else by default.
    #[must_use]
    pub fn new(input: PathBuf, work: PathBuf, outputs: PathBuf) -> Demand {
        Demand {
            input,
            work,
            outputs,
            product: product_default(),
            period: period_default(),
            period_length: period_length_default(),
            quantity: quantity_default(),
            regressors: regressors_default(),
            season: season_default(),
            models: models_default(),
            extract_bytes: extract_default(),
            series: series_default(),
            temp_files: temp_files_default(),
            temp_bytes: FileSizes::default(),
            live: live_default(),
            reads: reads_default(),
            renames: quarter(),
            overwrites: quarter(),
            fits_per_file: fits_default(),
            output_files: output_files_default(),
            horizon: season_default(),
            page_bytes: None,
            seed: None,
        }
    }

    /// Runs the step as `job` at `scale`; `progress` hears rows of the extract, then files.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Column`] if a column does not exist
    /// or does not suit; [`Error::TooFewRows`] if no product has enough periods for a model;
    /// [`Error::WrongContent`] if a temporary file is not as it was written; those of reading and
    /// writing data sets.
    pub fn run(
        &self,
        job: &Job,
        scale: Scale,
        progress: &mut Progress<'_>,
    ) -> Result<DemandResult> {
        self.check()?;
        let seed = self.seed.unwrap_or(0);
        let life = TempLife {
            files: self.temp_files.at(scale),
            sizes: self.temp_bytes.at(scale)?,
            live: self.live,
            reads: self.reads,
            renames: self.renames,
            overwrites: self.overwrites,
        };
        let count = usize::try_from(self.series.at(scale).max(1)).unwrap_or(usize::MAX);
        let extract = Extract::read(self, self.extract_bytes.at(scale).0, count, job, progress)?;
        let mut fitted = 0;
        let mut all = Vec::new();
        let models = Family::models_of(&self.models);
        for one in extract.series {
            if let Some((calibrated, fits)) = Calibrated::choose(one, self.season, &models) {
                all.push(calibrated);
                fitted += fits;
            }
        }
        if all.is_empty() {
            let needed = self.least_periods() as u64;
            return Err(Error::TooFewRows { rows: extract.rows, needed });
        }
        let mut candidates =
            Candidates::new(all, life.files, self.fits_per_file, seed.wrapping_add(1));
        let mut random = StdRng::seed_from_u64(seed);
        let scratch = ScratchDir::create(&self.work, "demand")?;
        let temp = life.run(scratch.path(), &mut random, &mut candidates, progress)?;
        scratch.remove()?;
        fitted += candidates.fits;
        let output_files = self.output_files.at(scale);
        let mut output_rows = 0;
        for number in 0..output_files {
            let one = &candidates.all[(number % candidates.all.len() as u64) as usize];
            let path = self.outputs.join(format!("futures-{number:04}"));
            let bytes = life.sizes.draw(&mut random);
            output_rows += self.write_futures(&path, bytes, one, &mut random)?;
        }
        let models = candidates.all.iter().map(DemandModel::of).collect();
        let (rows, extract_bytes) = (extract.rows, extract.bytes);
        Ok(DemandResult { models, rows, extract_bytes, temp, fitted, output_files, output_rows })
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, allowed: &str| {
            Err(Error::Setting { setting, value, allowed: allowed.to_owned() })
        };
        if !(self.period_length.is_finite() && self.period_length > 0.0) {
            return refuse("period_length", self.period_length.to_string(), "above 0");
        }
        if !(1..=366).contains(&self.season) {
            return refuse("season", self.season.to_string(), "from 1 to 366");
        }
        if !(1..=10_000).contains(&self.horizon) {
            return refuse("horizon", self.horizon.to_string(), "from 1 to 10000");
        }
        if self.models.is_empty() {
            return refuse("models", "[]".to_owned(), "at least one family of models");
        }
        Ok(())
    }

    /// Periods that a series must have for the simplest model.
    fn least_periods(&self) -> usize {
        PERIODS_MIN + self.regressors.len()
    }

    /// Writes one output file of about `bytes` bytes: futures of one product. Returns its rows.
    fn write_futures(
        &self,
        path: &Path,
        bytes: u64,
        one: &Calibrated,
        random: &mut StdRng,
    ) -> Result<u64> {
        let columns = ["future", "step", &self.quantity].map(Column::number);
        let schema = Schema::new(columns.to_vec())?;
        let fields = [0, 1, 2].map(|position| match schema.field(position) {
            Field::Number(field) => field,
            Field::Text(_) => unreachable!("all columns are numbers"),
        });
        let mut row = RowBuffer::new(&schema);
        let row_bytes = schema.row_bytes() as u64;
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0;
        let mut writer = Writer::create(path, schema, page_bytes)?;
        let mut season = vec![0.0; one.fit.last.season.len()];
        let mut future = vec![0.0; self.horizon];
        // Regressors go on as they were last.
        let last = one.series.regressors.iter().map(|column| column.last().copied());
        let known: f64 = last
            .zip(&one.fit.last.coefficients)
            .map(|(value, b)| value.unwrap_or_default() * b)
            .sum();
        let futures = (bytes / row_bytes / self.horizon as u64).max(1);
        for number in 0..futures {
            series::simulate(&one.fit, &mut season, &mut future, &mut || one.draw(random));
            for (step, quantity) in future.iter().enumerate() {
                let numbers = [number as f64, (step + 1) as f64, quantity + known];
                for (field, number) in fields.iter().zip(numbers) {
                    field.set(row.bytes_mut(), number);
                }
                writer.push(row.bytes())?;
            }
        }
        writer.finish()
    }
}

impl DemandModel {
    fn of(one: &Calibrated) -> DemandModel {
        let present = one.series.values.iter().filter(|value| !value.is_nan());
        let mean = present.map(|value| value.abs()).sum::<f64>() / one.fit.n as f64;
        let error = (one.fit.error_squares / one.fit.n as f64).sqrt();
        let coefficients = one.fit.parameters.coefficients.iter();
        DemandModel {
            product: one.series.product.clone(),
            model: one.fit.model.name(),
            periods: one.fit.n,
            alpha: (one.fit.parameters.alpha, one.alpha.deviation()),
            coefficients: coefficients
                .zip(&one.coefficients)
                .map(|(&estimate, spread)| (estimate, spread.deviation()))
                .collect(),
            error,
            error_part: if mean > 0.0 { error / mean } else { f64::NAN },
            candidates: one.candidates,
        }
    }
}

impl DemandResult {
    /// The models as a table.
    #[must_use]
    pub fn table(&self, regressors: &[String]) -> Table {
        let mut columns = vec!["product", "model", "periods", "alpha", "alpha_std_error"];
        let errors: Vec<String> =
            regressors.iter().map(|name| format!("{name}_std_error")).collect();
        for (name, error) in regressors.iter().zip(&errors) {
            columns.extend([name.as_str(), error.as_str()]);
        }
        columns.extend(["error", "error_part", "candidates"]);
        let mut table = Table::new(&columns);
        for model in &self.models {
            let mut row =
                vec![model.product.clone(), model.model.as_str().into(), model.periods.into()];
            for (estimate, error) in std::iter::once(&model.alpha).chain(&model.coefficients) {
                row.extend([Cell::from(*estimate), Cell::from(*error)]);
            }
            row.extend([model.error.into(), model.error_part.into(), model.candidates.into()]);
            table.push(row);
        }
        table
    }

    /// The mean over the products of the error's part of the mean quantity.
    #[must_use]
    pub fn mean_error(&self) -> f64 {
        let parts = self.models.iter().map(|model| model.error_part).filter(|part| !part.is_nan());
        let (sum, count) = parts.fold((0.0, 0.0), |(sum, count), part| (sum + part, count + 1.0));
        sum / f64::max(count, 1.0)
    }
}

impl Action for Demand {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve_all([&mut self.input, &mut self.work, &mut self.outputs])?;
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.seed.get_or_insert(context.seed_for("demand"));
        Ok(())
    }

    fn made_bytes(&self, scale: Scale, _buffers: &Buffers) -> u64 {
        let mean = self.temp_bytes.at(scale).map_or(0, |sizes| sizes.mean_bytes());
        mean.saturating_mul(self.output_files.at(scale))
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        make_directory(&self.work)?;
        make_directory(&self.outputs)?;
        let found = self.run(&context.job, context.scale, progress)?;
        let mut outcome = Outcome::table(found.rows, found.table(&self.regressors))
            .with("extract_bytes", found.extract_bytes as f64)
            .with("series", found.models.len() as f64)
            .with("models_fitted", found.fitted as f64)
            .with("mean_error", found.mean_error())
            .with("output_files", found.output_files as f64)
            .with("output_rows", found.output_rows as f64)
            .with("output_bytes", self.output_bytes(found.output_files)? as f64);
        for (name, figure) in found.temp.figures() {
            outcome = outcome.with(name, figure);
        }
        Ok(outcome)
    }
}

impl Demand {
    /// Bytes of the output files as they lie.
    fn output_bytes(&self, files: u64) -> Result<u64> {
        (0..files)
            .map(|number| {
                let path = self.outputs.join(format!("futures-{number:04}"));
                Ok(fs::metadata(&path).map_err(Error::io("stat", &path))?.len())
            })
            .sum()
    }
}

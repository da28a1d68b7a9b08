//! Forecast: exponential smoothing of one series per class, the model chosen for each.

mod classes;

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use super::output::refuse_input;
use super::summary::Order;
use crate::dataset::{Column, ColumnType, Field, PAGE_BYTES_DEFAULT, RowBuffer, Schema, Writer};
use crate::error::{Error, Result};
use crate::series::{self, ErrorKind, Fit, Model, SeasonKind, Series, TrendKind};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};
use classes::{ClassSeries, Classes};

/// Memory of the series unless told otherwise.
const MEMORY_DEFAULT: ByteSize = ByteSize::gib(2);
/// The longest horizon, and the longest season.
const HORIZON_MAX: usize = 100_000;

/// A family of models to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Simple exponential smoothing.
    Simple,
    /// Holt's linear trend.
    Holt,
    /// Holt's trend, damped.
    Damped,
    /// Holt-Winters with an additive season and additive errors.
    Additive,
    /// Holt-Winters with a multiplicative season and additive errors.
    Multiplicative,
    /// All with additive errors but those with a multiplicative season.
    Linear,
    /// All with additive errors, and with multiplicative ones where values are positive, but additive
    /// errors with a multiplicative season, which are unstable.
    Automatic,
}

/// What is done to values before they are fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// Their logarithm is taken; a value that is not positive is missing. Forecasts come back as
    /// medians, and criteria are of the values, not of their logarithms.
    Logarithm,
}

/// Fits a series per class and forecasts it. Rows of a class are its series in the order of `time`
/// (or of the rows); rows without a value after the last value are its future, whose regressors are
/// used. Uses the memory of a page and of the series, up to `memory`; those sorted by class one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forecast {
    /// The data set.
    pub input: PathBuf,
    /// The column to forecast.
    pub value: String,
    /// The columns that make the series; none for one series of all rows.
    #[serde(default)]
    pub class: Vec<String>,
    /// What is known of the order of the rows, by class.
    #[serde(default)]
    pub order: Order,
    /// The column that orders the rows of a series; their order in the data set if left out.
    #[serde(default)]
    pub time: Option<String>,
    /// Columns whose effect is added (price, promotion); with them only additive models are fitted.
    /// Rows that lack one of them are left out.
    #[serde(default)]
    pub regressors: Vec<String>,
    /// Values in a season, such as 12; 1 for none.
    #[serde(default = "one")]
    pub season: usize,
    /// The models to choose from.
    #[serde(default = "automatic")]
    pub models: Vec<Family>,
    /// What is done to values first.
    #[serde(default)]
    pub transform: Transform,
    /// Times to forecast.
    pub horizon: usize,
    /// How likely a value lies between the limits, 0 to 1.
    #[serde(default = "confidence_default")]
    pub confidence: f64,
    /// Where draws for limits come from, where they have no closed form; the job's own if left out.
    #[serde(default)]
    pub seed: Option<u64>,
    /// The data set of forecasts to write, if any: the class columns, `step`, `forecast`, `lower`,
    /// `upper`.
    #[serde(default)]
    pub output: Option<PathBuf>,
    /// Page size of the output.
    #[serde(default)]
    pub page_bytes: Option<ByteSize>,
    /// Memory of the series.
    #[serde(default)]
    pub memory: Option<ByteSize>,
}

fn one() -> usize {
    1
}

fn automatic() -> Vec<Family> {
    vec![Family::Automatic]
}

fn confidence_default() -> f64 {
    0.95
}

/// One series with its fit and forecasts.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesForecast {
    /// Values of the class columns.
    pub class: Vec<Cell>,
    /// The fit chosen; of the logarithms if they are taken.
    pub fit: Fit,
    /// Akaike's corrected criterion on the scale of the values.
    pub aicc: f64,
    /// Forecasts of the values.
    pub forecasts: Vec<series::Forecast>,
}

/// What a forecast step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forecasts {
    /// The series in the order of their classes, those left out not among them.
    pub series: Vec<SeriesForecast>,
    /// Rows read.
    pub rows: u64,
    /// Series too short (or constant) for every model.
    pub left_out: u64,
    /// Models fitted.
    pub models: u64,
    /// Evaluations of the likelihood.
    pub evaluations: u64,
}

impl Family {
    /// The models of all `families`, each once.
    pub(super) fn models_of(families: &[Family]) -> Vec<Model> {
        let mut models = Vec::new();
        for model in families.iter().flat_map(|family| family.models()) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }

    fn models(self) -> Vec<Model> {
        let one = |trend, season| vec![Model { error: ErrorKind::Additive, trend, season }];
        match self {
            Family::Simple => one(TrendKind::None, SeasonKind::None),
            Family::Holt => one(TrendKind::Additive, SeasonKind::None),
            Family::Damped => one(TrendKind::Damped, SeasonKind::None),
            Family::Additive => one(TrendKind::Additive, SeasonKind::Additive),
            Family::Multiplicative => one(TrendKind::Additive, SeasonKind::Multiplicative),
            Family::Linear => Model::all().filter(|model| model.is_linear()).collect(),
            Family::Automatic => Model::all()
                .filter(|model| model.is_linear() || model.error == ErrorKind::Multiplicative)
                .collect(),
        }
    }
}

impl Forecast {
    /// Chooses among all models with a season of `season` values for one series in `value`, and
    /// forecasts `horizon` times.
    #[must_use]
    pub fn new(input: PathBuf, value: &str, season: usize, horizon: usize) -> Forecast {
        Forecast {
            input,
            value: value.to_owned(),
            class: Vec::new(),
            order: Order::Any,
            time: None,
            regressors: Vec::new(),
            season,
            models: automatic(),
            transform: Transform::None,
            horizon,
            confidence: confidence_default(),
            seed: None,
            output: None,
            page_bytes: None,
            memory: None,
        }
    }

    /// Runs the step.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds or the series need more than the memory;
    /// [`Error::Column`] if a column does not exist or does not suit; [`Error::NotSorted`] if rows
    /// said to be sorted are not; [`Error::TooFewRows`] if no series is long enough for a model;
    /// those of reading and writing data sets.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<Forecasts> {
        self.check()?;
        if let Some(output) = &self.output {
            refuse_input(output, &[&self.input])?;
        }
        let models = Family::models_of(&self.models);
        let mut classes = Classes::open(self, self.memory.unwrap_or(MEMORY_DEFAULT))?;
        let mut output = Output::create(self, &classes)?;
        let mut found = Forecasts::default();
        classes.for_each(
            &mut |series| self.one_series(&models, series, &mut output, &mut found),
            progress,
        )?;
        found.rows = classes.rows();
        if found.series.is_empty() {
            return Err(Error::TooFewRows { rows: found.rows, needed: 4 });
        }
        output.finish()?;
        Ok(found)
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, allowed: &str| {
            Err(Error::Setting { setting, value, allowed: allowed.to_owned() })
        };
        if !(1..=HORIZON_MAX).contains(&self.season) {
            return refuse("season", self.season.to_string(), "from 1 to 100000");
        }
        if !(1..=HORIZON_MAX).contains(&self.horizon) {
            return refuse("horizon", self.horizon.to_string(), "from 1 to 100000");
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return refuse("confidence", self.confidence.to_string(), "above 0 and below 1");
        }
        if self.models.is_empty() {
            return refuse("models", "[]".to_owned(), "at least one family of models");
        }
        Ok(())
    }

    fn one_series(
        &self,
        models: &[Model],
        series: ClassSeries,
        output: &mut Output,
        found: &mut Forecasts,
    ) -> Result<()> {
        let ClassSeries { class, row, mut values, regressors, future } = series;
        let mut logarithms = 0.0;
        match self.transform {
            Transform::None => {}
            Transform::Logarithm => {
                for value in &mut values {
                    *value = if *value > 0.0 { value.ln() } else { f64::NAN };
                    logarithms += if value.is_nan() { 0.0 } else { *value };
                }
            }
        }
        let known = Series { values: &values, season_length: self.season, regressors: &regressors };
        let Some(choice) = series::choose(models, &known) else {
            found.left_out += 1;
            return Ok(());
        };
        let fit = choice.fit;
        found.models += choice.models;
        found.evaluations += choice.evaluations;
        // Each series draws its own futures, whatever series are beside it.
        let seed = self.seed.unwrap_or(0) ^ u64::from(crc32fast::hash(&row));
        let mut forecasts = series::forecast(&fit, self.horizon, &future, self.confidence, seed);
        match self.transform {
            Transform::None => {}
            Transform::Logarithm => {
                for forecast in &mut forecasts {
                    let series::Forecast { mean, lower, upper } = *forecast;
                    let [mean, lower, upper] = [mean, lower, upper].map(f64::exp);
                    *forecast = series::Forecast { mean, lower, upper };
                }
            }
        }
        output.push(&row, &forecasts)?;
        let aicc = fit.aicc + 2.0 * logarithms;
        found.series.push(SeriesForecast { class, aicc, fit, forecasts });
        Ok(())
    }
}

/// The data set of forecasts, if one is wanted.
struct Output(Option<(Writer, RowBuffer, usize)>);

impl Output {
    fn create(step: &Forecast, classes: &Classes) -> Result<Output> {
        let Some(path) = &step.output else { return Ok(Output(None)) };
        let mut columns = classes.class_columns();
        let class_bytes = columns.iter().map(|c| usize::from(c.kind.width())).sum();
        columns.extend(["step", "forecast", "lower", "upper"].map(Column::number));
        let schema = Schema::new(columns)?;
        let row = RowBuffer::new(&schema);
        let page_bytes = step.page_bytes.unwrap_or(PAGE_BYTES_DEFAULT).0;
        Ok(Output(Some((Writer::create(path, schema, page_bytes)?, row, class_bytes))))
    }

    /// Writes the forecasts of the series whose class columns have the bytes `class`.
    fn push(&mut self, class: &[u8], forecasts: &[series::Forecast]) -> Result<()> {
        let Some((writer, row, class_bytes)) = &mut self.0 else { return Ok(()) };
        row.bytes_mut()[..*class_bytes].copy_from_slice(class);
        let columns = writer.schema().columns().len();
        for (h, forecast) in forecasts.iter().enumerate() {
            let numbers = [(h + 1) as f64, forecast.mean, forecast.lower, forecast.upper];
            for (position, number) in (columns - numbers.len()..columns).zip(numbers) {
                match writer.schema().field(position) {
                    Field::Number(field) => field.set(row.bytes_mut(), number),
                    Field::Text(_) => unreachable!("the last columns are numbers"),
                }
            }
            writer.push(row.bytes())?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self.0 {
            None => Ok(()),
            Some((writer, ..)) => writer.finish().map(|_| ()),
        }
    }
}

impl Action for Forecast {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)?;
        if let Some(output) = &mut self.output {
            context.resolve(output)?;
        }
        self.page_bytes.get_or_insert(context.buffers.page_bytes);
        self.memory.get_or_insert(context.buffers.memory);
        self.seed.get_or_insert(context.seed_for("forecast"));
        Ok(())
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let found = self.run(progress)?;
        Ok(Outcome::table(found.rows, found.table(&self.class))
            .with("series", found.series.len() as f64)
            .with("series_left_out", found.left_out as f64)
            .with("models_fitted", found.models as f64)
            .with("evaluations", found.evaluations as f64)
            .with("mean_error", found.mean_error()))
    }
}

/// Series that a table shows, so that it stays one for people.
const TABLE_SERIES_MAX: usize = 1000;

impl Forecasts {
    /// Fits and forecasts: a row for each time of each of the first 1,000 series.
    #[must_use]
    pub fn table(&self, class: &[String]) -> Table {
        let mut columns: Vec<&str> = class.iter().map(String::as_str).collect();
        columns.extend(["model", "alpha", "beta", "gamma", "phi", "aicc"]);
        columns.extend(["step", "forecast", "lower", "upper"]);
        let mut table = Table::new(&columns);
        for series in self.series.iter().take(TABLE_SERIES_MAX) {
            let p = &series.fit.parameters;
            let mut fixed = series.class.clone();
            fixed.push(series.fit.model.name().into());
            fixed.extend([p.alpha, p.beta, p.gamma, p.phi, series.aicc].map(Cell::from));
            for (h, f) in series.forecasts.iter().enumerate() {
                let mut row = fixed.clone();
                row.push((h as u64 + 1).into());
                row.extend([f.mean, f.lower, f.upper].map(Cell::from));
                table.push(row);
            }
        }
        table
    }

    /// The mean over the series of the root mean square of the one-step errors.
    #[must_use]
    pub fn mean_error(&self) -> f64 {
        let errors = self.series.iter().map(|s| (s.fit.error_squares / s.fit.n as f64).sqrt());
        errors.sum::<f64>() / self.series.len().max(1) as f64
    }
}

/// The cell of a class value.
fn cell(field: Field, row: &[u8]) -> Cell {
    match field {
        Field::Number(field) => match field.kind {
            ColumnType::Date => date_cell(field.get(row), crate::dataset::format_date),
            ColumnType::Datetime => date_cell(field.get(row), crate::dataset::format_datetime),
            ColumnType::Number | ColumnType::Text { .. } => field.get(row).into(),
        },
        Field::Text(field) => match field.get(row) {
            b"" => Cell::Missing,
            text => String::from_utf8_lossy(text).into_owned().into(),
        },
    }
}

fn date_cell(number: f64, format: fn(f64) -> String) -> Cell {
    if number.is_nan() { Cell::Missing } else { format(number).into() }
}

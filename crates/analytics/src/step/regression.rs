//! Regression: ordinary least squares with an intercept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, FisherSnedecor, StudentsT};

use super::Progress;
use super::least_squares::LeastSquares;
use crate::dataset::{NumberField, Reader};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// Fits `response` on an intercept and `predictors`. Rows with a missing value in any of these are
/// left out and counted. Uses the memory of a page and a triangle of the number of predictors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regression {
    /// The data set.
    pub input: PathBuf,
    /// The column to explain.
    pub response: String,
    /// The columns that explain it, at least one.
    pub predictors: Vec<String>,
}

/// One coefficient of a regression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coefficient {
    /// `intercept` or the predictor's name.
    pub term: String,
    /// The estimate.
    pub estimate: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Estimate over standard error; `None` if the fit is exact.
    pub t: Option<f64>,
    /// Probability of a `t` at least as far from zero if the coefficient is zero (two-sided).
    pub p: Option<f64>,
}

/// What a regression found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegressionFit {
    /// The column that is explained.
    pub response: String,
    /// The intercept, then the predictors in the order given.
    pub coefficients: Vec<Coefficient>,
    /// Rows that the fit is made from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Part of the variance that is explained; `None` if the response is constant.
    pub r_squared: Option<f64>,
    /// The same, corrected for the number of predictors.
    pub r_squared_adjusted: Option<f64>,
    /// Standard deviation of the residuals, on `residual_df` degrees of freedom.
    pub residual_std_error: f64,
    /// Degrees of freedom of the residuals.
    pub residual_df: u64,
    /// F statistic of all predictors together; `None` if the fit is exact.
    pub f: Option<f64>,
    /// Probability of an F at least as large if all coefficients are zero.
    pub f_p: Option<f64>,
}

impl Regression {
    /// Fits `response` on `predictors`.
    #[must_use]
    pub fn new(input: PathBuf, response: &str, predictors: &[&str]) -> Regression {
        Regression {
            input,
            response: response.to_owned(),
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    /// Runs the step.
    ///
    /// # Errors
    /// [`Error::Setting`] without predictors; [`Error::Column`] if a column does not exist or is a
    /// text; [`Error::TooFewRows`] and [`Error::Collinear`] if the model cannot be fitted; those of
    /// reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<RegressionFit> {
        if self.predictors.is_empty() {
            return Err(Error::Setting {
                setting: "predictors",
                value: "[]".to_owned(),
                allowed: "at least one column".to_owned(),
            });
        }
        let mut reader = Reader::open(&self.input)?;
        let response = reader.number_field(&self.response)?;
        let predictors: Vec<NumberField> =
            self.predictors.iter().map(|name| reader.number_field(name)).collect::<Result<_>>()?;
        let mut solver = LeastSquares::new(predictors.len());
        let mut values = vec![0.0; predictors.len()];
        let mut done = 0;
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                let y = response.get(row);
                let mut whole = !y.is_nan();
                for (value, field) in values.iter_mut().zip(&predictors) {
                    *value = field.get(row);
                    whole &= !value.is_nan();
                }
                if whole {
                    solver.include(&values, y);
                }
            }
            done += rows.count() as u64;
            progress(done);
        }
        self.fit(&solver, done - solver.rows)
    }

    fn fit(&self, solver: &LeastSquares, missing: u64) -> Result<RegressionFit> {
        let (n, columns) = (solver.rows, solver.columns() as u64);
        if n <= columns {
            return Err(Error::TooFewRows { rows: n, needed: columns + 1 });
        }
        if let Some(column) = solver.collinear() {
            return Err(Error::Collinear { column: self.predictors[column - 1].clone() });
        }
        let (df, model_df) = ((n - columns) as f64, (columns - 1) as f64);
        let residual_variance = solver.residual_squares / df;
        let total = solver.total_squares();
        let unexplained = (total > 0.0).then(|| solver.residual_squares / total);
        let terms = std::iter::once("intercept").chain(self.predictors.iter().map(String::as_str));
        let coefficients = terms
            .zip(solver.coefficients().into_iter().zip(solver.unscaled_variances()))
            .map(|(term, (estimate, variance))| {
                let standard_error = (residual_variance * variance).sqrt();
                let t = (standard_error > 0.0).then(|| estimate / standard_error);
                let p = t.map(|t| two_sided(t, df));
                Coefficient { term: term.to_owned(), estimate, standard_error, t, p }
            })
            .collect();
        let explained = (total - solver.residual_squares).max(0.0);
        let f = (residual_variance > 0.0).then(|| explained / model_df / residual_variance);
        Ok(RegressionFit {
            response: self.response.clone(),
            coefficients,
            n,
            missing,
            r_squared: unexplained.map(|part| 1.0 - part),
            r_squared_adjusted: unexplained.map(|part| 1.0 - part * (n - 1) as f64 / df),
            residual_std_error: residual_variance.sqrt(),
            residual_df: n - columns,
            f,
            f_p: f.and_then(|f| {
                FisherSnedecor::new(model_df, df).ok().map(|distribution| distribution.sf(f))
            }),
        })
    }
}

impl Action for Regression {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table()))
    }
}

/// Probability of a t at least as far from zero, on `df` degrees of freedom.
fn two_sided(t: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |distribution| 2.0 * distribution.sf(t.abs()))
}

impl RegressionFit {
    /// The coefficients as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new(&["term", "estimate", "std_error", "t", "p"]);
        for c in &self.coefficients {
            table.push(vec![
                c.term.as_str().into(),
                c.estimate.into(),
                c.standard_error.into(),
                c.t.into(),
                c.p.into(),
            ]);
        }
        table
    }

    /// The figures of the whole fit as a table of names and values.
    #[must_use]
    pub fn fit_table(&self) -> Table {
        let mut table = Table::new(&["statistic", "value"]);
        let rows: [(&str, Cell); 8] = [
            ("n", self.n.into()),
            ("rows omitted", self.missing.into()),
            ("R squared", self.r_squared.into()),
            ("adjusted R squared", self.r_squared_adjusted.into()),
            ("residual std error", self.residual_std_error.into()),
            ("residual df", self.residual_df.into()),
            ("F", self.f.into()),
            ("p of F", self.f_p.into()),
        ];
        for (name, value) in rows {
            table.push(vec![name.into(), value]);
        }
        table
    }
}

//! Generalised linear models: gaussian, binomial, poisson, gamma and negative binomial responses.
//!
//! Fisher scoring; every iteration is a pass over the data set, and so is every halving of a step. The
//! theta of a negative binomial model is estimated along. The dispersion of gaussian and gamma models
//! is Pearson's statistic over the residual degrees of freedom, and their tests are of Student's
//! distribution. Memory: a page and the information matrix.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Progress;
use super::logistic::{iterations_max_default, tolerance_default};
use super::model::estimate::Reference;
use super::model::frame::{Columns, Frame, Needed};
use super::model::irls::{Irls, Layout, Limits};
use super::model::passes::Passes;
use super::model::{ClassPredictor, Estimate, Family, Link};
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// Fits the mean of `response` on an intercept, `predictors` and `class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glm {
    /// The data set.
    pub input: PathBuf,
    /// The column to explain.
    pub response: String,
    /// Its distribution.
    pub family: Family,
    /// How its mean depends on the linear predictor; the usual link of the family if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Number columns that explain it.
    #[serde(default)]
    pub predictors: Vec<String>,
    /// Columns whose values are levels.
    #[serde(default)]
    pub class: Vec<ClassPredictor>,
    /// A column with the weights of the rows, above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// A column that is added to the linear predictor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<String>,
    /// A column with the number of trials that a binomial response is out of; 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<String>,
    /// Theta of the negative binomial distribution; estimated if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theta: Option<f64>,
    /// Iterations at most.
    #[serde(default = "iterations_max_default")]
    pub iterations_max: u32,
    /// Iterations end when a step is smaller than this in units of standard errors, about.
    #[serde(default = "tolerance_default")]
    pub tolerance: f64,
}

/// What a generalised linear model found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GlmFit {
    /// The intercept, then the predictors, then the levels.
    pub estimates: Vec<Estimate>,
    /// Rows that the fit is made from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Twice the log likelihood that is lacking to a perfect fit, times the dispersion.
    pub deviance: f64,
    /// The same of the intercept alone; `None` with an offset.
    pub null_deviance: Option<f64>,
    /// Pearson's statistic.
    pub pearson: f64,
    /// The factor of the variance; 1 if the family has none.
    pub dispersion: f64,
    /// Degrees of freedom of the residuals.
    pub residual_df: u64,
    /// The log likelihood.
    pub log_likelihood: f64,
    /// Akaike's information criterion.
    pub aic: f64,
    /// Theta of a negative binomial model.
    pub theta: Option<f64>,
    /// Steps of Fisher scoring.
    pub iterations: u32,
}

impl Glm {
    /// Fits `response` of `family` on `predictors` with the usual link.
    #[must_use]
    pub fn new(input: PathBuf, family: Family, response: &str, predictors: &[&str]) -> Glm {
        Glm {
            input,
            response: response.to_owned(),
            family,
            link: None,
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
            class: Vec::new(),
            weight: None,
            offset: None,
            trials: None,
            theta: None,
            iterations_max: iterations_max_default(),
            tolerance: tolerance_default(),
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Setting`] if settings do not go together; [`Error::Column`] if a column does not exist
    /// or does not suit; [`Error::Separated`], [`Error::Collinear`], [`Error::TooFewRows`],
    /// [`Error::NotConverged`]; those of reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<GlmFit> {
        self.check()?;
        let mut needed = vec![Needed::Number(&self.response)];
        let places = [&self.weight, &self.offset, &self.trials].map(|name| {
            name.as_ref().map(|name| {
                needed.push(Needed::Number(name));
                needed.len() - 1
            })
        });
        let columns = Columns { predictors: &self.predictors, class: &self.class, needed: &needed };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let terms = frame.terms.len();
        let [weight, offset, trials] = places.map(|at| at.map(|at| terms + at));
        let irls = Irls {
            family: self.family,
            link: self.link.unwrap_or(self.family.usual_link()),
            layout: Layout { terms, response: terms, weight, trials, offset },
            limits: Limits { iterations_max: self.iterations_max, tolerance: self.tolerance },
            theta: self.theta,
        };
        let mut passes = Passes::new(frame, 0);
        let fit = irls.fit(&mut passes, progress)?;
        let frame = &passes.frame;
        let dispersion = irls.dispersion(&fit.at, frame.rows);
        let residual_df = frame.rows - terms as u64;
        let reference = if self.family.has_dispersion() {
            Reference::Student(residual_df as f64)
        } else {
            Reference::Normal
        };
        let (beta, covariances) =
            frame.unscale(&fit.beta, &fit.factor.inverse().scaled(dispersion));
        let log_likelihood = irls.log_likelihood(&fit.at, frame.rows);
        Ok(GlmFit {
            estimates: Estimate::all(&frame.terms, &beta, &covariances, reference),
            n: frame.rows,
            missing: frame.missing,
            deviance: fit.at.deviance,
            null_deviance: fit.null_deviance,
            pearson: fit.at.pearson,
            dispersion,
            residual_df,
            log_likelihood,
            aic: 2.0 * (irls.parameters() as f64 - log_likelihood),
            theta: fit.theta,
            iterations: fit.iterations,
        })
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, allowed: &str| {
            Err(Error::Setting { setting, value, allowed: allowed.to_owned() })
        };
        let binomial = self.family == Family::Binomial;
        if let (Some(link), false) = (self.link, binomial)
            && link == Link::Logit
        {
            return refuse("link", "logit".to_owned(), "identity, log or inverse in this family");
        }
        if let (Some(trials), false) = (&self.trials, binomial) {
            return refuse("trials", trials.clone(), "omitted unless family is binomial");
        }
        match self.theta {
            Some(theta) if self.family != Family::NegativeBinomial => {
                refuse("theta", theta.to_string(), "omitted unless family is negative_binomial")
            }
            Some(theta) if !(theta > 0.0 && theta.is_finite()) => {
                refuse("theta", theta.to_string(), "above 0")
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Action for Glm {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("deviance", fit.deviance)
            .with("dispersion", fit.dispersion)
            .with("log_likelihood", fit.log_likelihood)
            .with("iterations", f64::from(fit.iterations)))
    }
}

impl GlmFit {
    /// The coefficients as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        Estimate::table(&self.estimates, "statistic")
    }

    /// The figures of the whole fit as a table of names and values.
    #[must_use]
    pub fn fit_table(&self) -> Table {
        let mut table = Table::new(&["statistic", "value"]);
        let rows: [(&str, Cell); 10] = [
            ("n", self.n.into()),
            ("rows omitted", self.missing.into()),
            ("deviance", self.deviance.into()),
            ("null deviance", self.null_deviance.into()),
            ("Pearson", self.pearson.into()),
            ("dispersion", self.dispersion.into()),
            ("residual df", self.residual_df.into()),
            ("log likelihood", self.log_likelihood.into()),
            ("AIC", self.aic.into()),
            ("theta", self.theta.into()),
        ];
        for (name, value) in rows {
            table.push(vec![name.into(), value]);
        }
        table
    }
}

//! Logistic: how the odds of an event depend on predictors.
//!
//! Maximum likelihood by Newton's method; every iteration is a pass over the data set. With a survey
//! design the coefficients are those of the weighted likelihood, and their variances are by Taylor
//! linearisation over first-stage clusters within strata (D. A. Binder, "On the variances of
//! asymptotically normal estimators from complex surveys", International Statistical Review 51, 1983),
//! sampled with replacement, without a further correction for the number of coefficients.
//!
//! Memory: a page, the information matrix, and with a survey design a vector per cluster, or a matrix
//! per stratum if there are no clusters.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Progress;
use super::model::estimate::Reference;
use super::model::frame::{Columns, Frame, Needed};
use super::model::irls::{Fit, Irls, Layout, Limits};
use super::model::passes::Passes;
use super::model::{ClassPredictor, Estimate, Family, Link};
use crate::error::{Error, Result};
use crate::linear::Symmetric;
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// Fits the log odds of an event on an intercept, `predictors` and `class`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logistic {
    /// The data set.
    pub input: PathBuf,
    /// The column that tells of the event.
    pub response: String,
    /// The response's value that is the event; 1 unless said otherwise, and then 0 is no event and
    /// nothing else allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Cell>,
    /// Number columns that explain it.
    #[serde(default)]
    pub predictors: Vec<String>,
    /// Columns whose values are levels.
    #[serde(default)]
    pub class: Vec<ClassPredictor>,
    /// A column with the weights of the rows, above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// The design of the survey that the rows are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<Survey>,
    /// Iterations at most.
    #[serde(default = "iterations_max_default")]
    pub iterations_max: u32,
    /// Iterations end when a step is smaller than this in units of standard errors, about.
    #[serde(default = "tolerance_default")]
    pub tolerance: f64,
}

pub(super) fn iterations_max_default() -> u32 {
    25
}

pub(super) fn tolerance_default() -> f64 {
    1e-8
}

/// The design of a survey.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// The column with the stratum; all rows are one stratum if left out.
    #[serde(default)]
    pub strata: Option<String>,
    /// The column with the cluster, numbered within strata; every row is one if left out.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// What a logistic regression found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogisticFit {
    /// The intercept, then the predictors, then the levels.
    pub estimates: Vec<Estimate>,
    /// Rows that the fit is made from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// The log likelihood.
    pub log_likelihood: f64,
    /// The log likelihood of the intercept alone.
    pub null_log_likelihood: f64,
    /// Akaike's information criterion.
    pub aic: f64,
    /// Steps of Newton's method.
    pub iterations: u32,
    /// Degrees of freedom of the variances of a survey: clusters less strata.
    pub design_df: Option<u64>,
}

impl Logistic {
    /// Fits `response`, which is 0 or 1, on `predictors`.
    #[must_use]
    pub fn new(input: PathBuf, response: &str, predictors: &[&str]) -> Logistic {
        Logistic {
            input,
            response: response.to_owned(),
            event: None,
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
            class: Vec::new(),
            weight: None,
            survey: None,
            iterations_max: iterations_max_default(),
            tolerance: tolerance_default(),
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Column`] if a column does not exist or does not suit; [`Error::Separated`] if the
    /// likelihood has no maximum; [`Error::Collinear`], [`Error::TooFewRows`], [`Error::NotConverged`];
    /// those of reading a data set.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<LogisticFit> {
        let mut needed = vec![match &self.event {
            Some(event) => Needed::Event(&self.response, event),
            None => Needed::Number(&self.response),
        }];
        needed.extend(self.weight.iter().map(|name| Needed::Number(name)));
        let survey = self.survey.clone().unwrap_or_default();
        needed.extend(survey.cluster.iter().map(|name| Needed::Present(name)));
        needed.extend(survey.strata.iter().map(|name| Needed::Level(name)));
        let columns = Columns { predictors: &self.predictors, class: &self.class, needed: &needed };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let terms = frame.terms.len();
        let layout = Layout {
            terms,
            response: terms,
            weight: self.weight.as_ref().map(|_| terms + 1),
            trials: None,
            offset: None,
        };
        let irls = Irls {
            family: Family::Binomial,
            link: Link::Logit,
            layout,
            limits: Limits { iterations_max: self.iterations_max, tolerance: self.tolerance },
            theta: None,
        };
        let mut passes = Passes::new(frame, 0);
        self.refuse_fractions(&irls, &mut passes, progress)?;
        let fit = irls.fit(&mut passes, progress)?;
        let n = passes.frame.rows;
        let (mut covariances, mut reference) = (fit.factor.inverse(), Reference::Normal);
        let mut design_df = None;
        if self.survey.is_some() {
            let (middle, df) = self.score_covariances(&fit, &irls, &mut passes, progress)?;
            let rows: Vec<Vec<f64>> =
                (0..terms).map(|i| (0..terms).map(|j| covariances.at(i, j)).collect()).collect();
            covariances = middle.sandwiched(&rows);
            reference = Reference::Student(df as f64);
            design_df = Some(df);
        }
        let log_likelihood = irls.log_likelihood(&fit.at, n);
        let (beta, covariances) = passes.frame.unscale(&fit.beta, &covariances);
        Ok(LogisticFit {
            estimates: Estimate::all(&passes.frame.terms, &beta, &covariances, reference),
            n,
            missing: passes.frame.missing,
            log_likelihood,
            null_log_likelihood: -fit.null_deviance.unwrap_or(f64::NAN) / 2.0,
            aic: 2.0 * (terms as f64 - log_likelihood),
            iterations: fit.iterations,
            design_df,
        })
    }

    /// Without trials, nothing between 0 and 1 is a response.
    fn refuse_fractions(
        &self,
        irls: &Irls,
        passes: &mut Passes,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut fraction = None;
        passes.for_each(progress, |values| {
            let y = values[irls.layout.response];
            if y != 0.0 && y != 1.0 {
                fraction.get_or_insert(y);
            }
        })?;
        fraction.map_or(Ok(()), |y| Err(passes.frame.refuse(0, y, "0 or 1; or set an event")))
    }

    /// Covariances of the sum of the scores by the design of the survey, and their degrees of freedom.
    fn score_covariances(
        &self,
        fit: &Fit,
        irls: &Irls,
        passes: &mut Passes,
        progress: &mut Progress<'_>,
    ) -> Result<(Symmetric, u64)> {
        let survey = self.survey.clone().unwrap_or_default();
        let mut strata = Strata::default();
        let terms = irls.layout.terms;
        let strata_place = survey.strata.as_ref().map(|_| passes.frame.width() - 1);
        let mut score = vec![0.0; terms];
        let mut visit = |values: &[f64], strata: &mut Strata, cluster: Option<&[u8]>| {
            let (weight, ..) = irls.layout.parts(values);
            let eta: f64 = values.iter().zip(&fit.beta).map(|(x, b)| x * b).sum();
            let factor = weight * (values[irls.layout.response] - irls.link.mean(eta).0);
            for (score, x) in score.iter_mut().zip(values) {
                *score = factor * x;
            }
            let stratum = strata_place.map_or(0, |place| values[place] as usize);
            strata.add(stratum, cluster, &score);
        };
        match &survey.cluster {
            None => {
                passes.for_each(progress, |values| visit(values, &mut strata, None))?;
            }
            Some(cluster) => {
                passes.for_each_keyed(cluster, progress, |key, values| {
                    visit(values, &mut strata, Some(key));
                    Ok(())
                })?;
            }
        }
        strata.covariances(terms).ok_or_else(|| Error::Column {
            path: self.input.clone(),
            column: survey.cluster.or(survey.strata).unwrap_or_default(),
            reason: "a stratum has one cluster only, which has no variance".to_owned(),
        })
    }
}

/// Score totals of the clusters in each stratum.
#[derive(Default)]
struct Strata {
    strata: BTreeMap<usize, Stratum>,
    key: Vec<u8>,
}

#[derive(Default)]
struct Stratum {
    clusters: HashMap<Box<[u8]>, Vec<f64>>,
    n: u64,
    sum: Vec<f64>,
    squares: Option<Symmetric>,
}

impl Stratum {
    fn include(&mut self, total: &[f64]) {
        self.n += 1;
        self.sum.resize(total.len(), 0.0);
        self.sum.iter_mut().zip(total).for_each(|(sum, value)| *sum += value);
        self.squares.get_or_insert_with(|| Symmetric::zeros(total.len())).add_outer(1.0, total);
    }
}

impl Strata {
    fn add(&mut self, stratum: usize, cluster: Option<&[u8]>, score: &[f64]) {
        let stratum = self.strata.entry(stratum).or_default();
        let Some(cluster) = cluster else { return stratum.include(score) };
        self.key.clear();
        self.key.extend_from_slice(cluster);
        if let Some(total) = stratum.clusters.get_mut(self.key.as_slice()) {
            total.iter_mut().zip(score).for_each(|(total, value)| *total += value);
        } else {
            stratum.clusters.insert(self.key.clone().into_boxed_slice(), score.to_vec());
        }
    }

    /// `None` if a stratum has one cluster only.
    fn covariances(self, terms: usize) -> Option<(Symmetric, u64)> {
        let mut result = Symmetric::zeros(terms);
        let mut df = 0;
        for mut stratum in self.strata.into_values() {
            // By key, so that sums do not depend on the order in a hash table.
            let mut clusters: Vec<_> = std::mem::take(&mut stratum.clusters).into_iter().collect();
            clusters.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            clusters.iter().for_each(|(_, total)| stratum.include(total));
            if stratum.n < 2 {
                return None;
            }
            let n = stratum.n as f64;
            let mut squares = stratum.squares?;
            squares.add_outer(-1.0 / n, &stratum.sum);
            result.add_triangle(n / (n - 1.0), squares.triangle());
            df += stratum.n - 1;
        }
        Some((result, df))
    }
}

impl Action for Logistic {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("log_likelihood", fit.log_likelihood)
            .with("aic", fit.aic)
            .with("iterations", f64::from(fit.iterations)))
    }
}

impl LogisticFit {
    /// The coefficients as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        Estimate::table(&self.estimates, if self.design_df.is_some() { "t" } else { "z" })
    }
}

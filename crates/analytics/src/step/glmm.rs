//! GLMM: logistic or Poisson regression with a normal random intercept of every group.
//!
//! Maximum likelihood, the random intercept integrated out by adaptive Gauss-Hermite quadrature
//! (Laplace's approximation with one point); standard errors are from the curvature of that likelihood
//! in all parameters. The start is the fit without random effects.
//!
//! Memory: a page and all rows of the model, eight bytes a number; if they are sorted by group, only
//! those of the largest group, and every evaluation is a pass over the data set.

use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};
use statrs::function::gamma::ln_gamma;

use super::Progress;
use super::logistic::{iterations_max_default as newton_iterations_max, tolerance_default};
use super::mixed::iterations_max_default;
use super::model::estimate::Reference;
use super::model::frame::{Columns, Frame, Needed};
use super::model::groups::{Groups, MEMORY_DEFAULT};
use super::model::integral::{Given, log_integral};
use super::model::irls::{Irls, Layout, Limits, ln_choose, log_probabilities};
use super::model::maximise::maximise;
use super::model::passes::Passes;
use super::model::quadrature::{POINTS_MAX, gauss_hermite};
use super::model::{ClassPredictor, Estimate, Family, Link};
use super::summary::Order;
use crate::error::{Error, Result};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// The distribution of the response about its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// Events out of trials, by the logit.
    Binomial,
    /// Counts, by the logarithm.
    Poisson,
}

/// Fits `response` on an intercept, `predictors` and `class`, and a random intercept by `group`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glmm {
    /// The data set.
    pub input: PathBuf,
    /// The column to explain: 0 and 1, events out of `trials`, or counts.
    pub response: String,
    /// Its distribution.
    pub family: Counts,
    /// Number columns that explain it.
    #[serde(default)]
    pub predictors: Vec<String>,
    /// Columns whose values are levels.
    #[serde(default)]
    pub class: Vec<ClassPredictor>,
    /// The column with the group, a number or a text.
    pub group: String,
    /// A column with the number of trials that a binomial response is out of; 1 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<String>,
    /// A column that is added to the linear predictor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<String>,
    /// Points of the quadrature, 1 to 50; 1 is Laplace's approximation.
    #[serde(default = "points_default")]
    pub quadrature_points: usize,
    /// What is known of the order of the rows by group.
    #[serde(default)]
    pub order: Order,
    /// Memory for the rows; 2 GiB unless the program says otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Iterations at most.
    #[serde(default = "iterations_max_default")]
    pub iterations_max: u32,
}

pub(super) fn points_default() -> usize {
    7
}

/// # Errors
/// [`Error::Setting`] unless from 1 to 50.
pub(super) fn check_points(points: usize) -> Result<()> {
    if (1..=POINTS_MAX).contains(&points) {
        return Ok(());
    }
    Err(Error::Setting {
        setting: "quadrature_points",
        value: points.to_string(),
        allowed: format!("1 to {POINTS_MAX}"),
    })
}

/// What a model with a random intercept found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GlmmFit {
    /// The intercept, then the predictors, then the levels.
    pub estimates: Vec<Estimate>,
    /// Standard deviation of the random intercept.
    pub group_deviation: f64,
    /// The standard error of that.
    pub group_deviation_error: f64,
    /// The log likelihood.
    pub log_likelihood: f64,
    /// Akaike's information criterion.
    pub aic: f64,
    /// Groups.
    pub groups: u64,
    /// Rows that the fit is made from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Steps of the maximiser.
    pub iterations: u32,
    /// Passes over all rows, in memory or not.
    pub passes: u64,
}

/// What the likelihood of a group needs besides its rows.
struct Model {
    family: Counts,
    layout: Layout,
    width: usize,
    nodes: Vec<(f64, f64)>,
}

impl Glmm {
    /// Fits `response` on `predictors` with a random intercept by `group`.
    #[must_use]
    pub fn new(
        input: PathBuf,
        family: Counts,
        response: &str,
        predictors: &[&str],
        group: &str,
    ) -> Glmm {
        Glmm {
            input,
            response: response.to_owned(),
            family,
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
            class: Vec::new(),
            group: group.to_owned(),
            trials: None,
            offset: None,
            quadrature_points: points_default(),
            order: Order::Any,
            memory: None,
            iterations_max: iterations_max_default(),
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Column`] for what does not suit; [`Error::Separated`],
    /// [`Error::Collinear`], [`Error::TooFewRows`], [`Error::NotConverged`]; [`Error::Memory`] if the
    /// rows are in any order and do not fit; [`Error::NotSorted`] if rows said to be sorted are not;
    /// those of reading.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<GlmmFit> {
        self.check()?;
        let mut needed = vec![Needed::Number(&self.response)];
        let [offset, trials] = [&self.offset, &self.trials].map(|name| {
            name.as_ref().map(|name| {
                needed.push(Needed::Number(name));
                needed.len() - 1
            })
        });
        needed.push(Needed::Present(&self.group));
        let columns = Columns { predictors: &self.predictors, class: &self.class, needed: &needed };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let terms = frame.terms.len();
        let place = |at: Option<usize>| at.map(|at| terms + at);
        let layout = Layout {
            terms,
            response: terms,
            weight: None,
            trials: place(trials),
            offset: place(offset),
        };
        let mut passes = Passes::new(frame, 0);
        let (start, scales) = self.start(layout, &mut passes, progress)?;
        let memory = self.memory.unwrap_or(MEMORY_DEFAULT);
        let mut groups = Groups::new(passes.frame, &self.group, self.order, memory, progress)?;
        let model = Model {
            family: self.family,
            layout,
            width: groups.frame.width(),
            nodes: gauss_hermite(self.quadrature_points),
        };
        let mut likelihoods =
            |points: &[Vec<f64>]| model.log_likelihoods(&mut groups, points, progress);
        let limits = Limits { iterations_max: self.iterations_max, tolerance: 1e-6 };
        let found = maximise(&mut likelihoods, start, &scales, limits)?;
        let covariances = found
            .covariances(&mut likelihoods)?
            .ok_or(Error::NotConverged { iterations: found.iterations })?;
        let frame = &groups.frame;
        let (beta, unscaled) = frame.unscale(&found.point[..terms], &covariances.leading(terms));
        Ok(GlmmFit {
            estimates: Estimate::all(&frame.terms, &beta, &unscaled, Reference::Normal),
            group_deviation: found.point[terms].abs(),
            group_deviation_error: covariances.at(terms, terms).sqrt(),
            log_likelihood: found.log_likelihood,
            aic: 2.0 * (terms as f64 + 1.0 - found.log_likelihood),
            groups: groups.count,
            n: frame.rows,
            missing: frame.missing,
            iterations: found.iterations,
            passes: groups.passes,
        })
    }

    fn check(&self) -> Result<()> {
        check_points(self.quadrature_points)?;
        match (self.family, &self.trials) {
            (Counts::Poisson, Some(trials)) => Err(Error::Setting {
                setting: "trials",
                value: trials.clone(),
                allowed: "omitted unless family is binomial".to_owned(),
            }),
            (Counts::Binomial, _) | (Counts::Poisson, None) => Ok(()),
        }
    }

    /// Coefficients without random effects and a guess of the standard deviation, and of the standard
    /// errors of all.
    fn start(
        &self,
        layout: Layout,
        passes: &mut Passes,
        progress: &mut Progress<'_>,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        passes.frame.need_rows(layout.terms + 1)?;
        let family = match self.family {
            Counts::Binomial => Family::Binomial,
            Counts::Poisson => Family::Poisson,
        };
        let limits =
            Limits { iterations_max: newton_iterations_max(), tolerance: tolerance_default() };
        let irls = Irls { family, link: family.usual_link(), layout, limits, theta: None };
        let fit = irls.fit(passes, progress)?;
        let covariances = fit.factor.inverse();
        let mut scales: Vec<f64> = (0..layout.terms).map(|i| covariances.at(i, i).sqrt()).collect();
        scales.push(0.1);
        let mut start = fit.beta;
        start.push(0.5);
        Ok((start, scales))
    }
}

impl Model {
    fn log_likelihoods(
        &self,
        groups: &mut Groups,
        points: &[Vec<f64>],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<f64>> {
        let mut totals = vec![0.0; points.len()];
        let mut eta = Vec::new();
        groups.for_each(progress, |rows| {
            let constant = self.constant(rows);
            for (total, point) in totals.iter_mut().zip(points) {
                *total += constant + self.of_group(rows, point, &mut eta);
            }
        })?;
        Ok(totals)
    }

    /// What does not depend on the parameters.
    fn constant(&self, rows: &[f64]) -> f64 {
        let of_row = |values: &[f64]| {
            let (_, trials, _) = self.layout.parts(values);
            let y = values[self.layout.response];
            match self.family {
                Counts::Binomial => ln_choose(trials, y),
                Counts::Poisson => -ln_gamma(y + 1.0),
            }
        };
        rows.chunks_exact(self.width).map(of_row).sum()
    }

    fn of_group(&self, rows: &[f64], point: &[f64], eta: &mut Vec<f64>) -> f64 {
        let (beta, deviation) = point.split_at(self.layout.terms);
        let deviation = deviation[0];
        eta.clear();
        eta.extend(rows.chunks_exact(self.width).map(|values| {
            let (_, _, offset) = self.layout.parts(values);
            offset + values.iter().zip(beta).map(|(x, b)| x * b).sum::<f64>()
        }));
        log_integral(&self.nodes, |u| {
            let mut given = Given { value: 0.0, slope: 0.0, curvature: 0.0 };
            for (values, eta) in rows.chunks_exact(self.width).zip(eta.iter()) {
                let (_, trials, _) = self.layout.parts(values);
                let eta = eta + deviation * u;
                self.add(&mut given, values[self.layout.response], trials, eta);
            }
            given.slope *= deviation;
            given.curvature *= deviation * deviation;
            given
        })
    }

    #[inline]
    fn add(&self, given: &mut Given, y: f64, trials: f64, eta: f64) {
        match self.family {
            Counts::Binomial => {
                let (mean, slope) = Link::Logit.mean(eta);
                let (log_p, log_q) = log_probabilities(Link::Logit, eta, mean);
                given.value += y * log_p + (trials - y) * log_q;
                given.slope += y - trials * mean;
                given.curvature += trials * slope;
            }
            Counts::Poisson => {
                let mean = eta.exp();
                given.value += y * eta - mean;
                given.slope += y - mean;
                given.curvature += mean;
            }
        }
    }
}

impl Action for Glmm {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory);
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("log_likelihood", fit.log_likelihood)
            .with("groups", fit.groups as f64)
            .with("iterations", f64::from(fit.iterations)))
    }
}

impl GlmmFit {
    /// Coefficients and the standard deviation of the random intercept as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Estimate::table(&self.estimates, "z");
        table.push(vec![
            "std_dev of intercept".into(),
            self.group_deviation.into(),
            self.group_deviation_error.into(),
            Cell::Missing,
            Cell::Missing,
        ]);
        table
    }
}

//! Nonlinear mixed: a named curve, one parameter of which is random by group.
//!
//! `y = f(x; parameters) + error`, the error normal, the random parameter normal about its mean.
//! Maximum likelihood, the random effect integrated out by adaptive Gauss-Hermite quadrature about the
//! mode of its Gauss-Newton approximation; exact with any number of points if the random parameter
//! enters linearly, such as an asymptote. The parameters' start is given.
//!
//! Memory: a page and all rows of the model, 32 bytes a row; if they are sorted by group, only those of
//! the largest group, and every evaluation is a pass over the data set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use super::glmm::{check_points, points_default};
use super::mixed::iterations_max_default;
use super::model::Estimate;
use super::model::estimate::Reference;
use super::model::frame::{Columns, Frame, Needed};
use super::model::groups::{Groups, MEMORY_DEFAULT};
use super::model::integral::{Given, log_integral};
use super::model::irls::Limits;
use super::model::maximise::{Likelihoods, Maximum, maximise};
use super::model::quadrature::gauss_hermite;
use super::summary::Order;
use crate::error::{Error, Result};
use crate::linear::Symmetric;
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// A curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Curve {
    /// `asymptote / (1 + exp(-(x - midpoint) / scale))`.
    Logistic,
    /// `initial * exp(rate * x)`.
    Exponential,
    /// `maximum * x / (half + x)`.
    MichaelisMenten,
    /// `asymptote * exp(-displacement * exp(-rate * x))`.
    Gompertz,
    /// `asymptote + (initial - asymptote) * exp(-rate * x)`.
    Asymptotic,
}

impl Curve {
    /// Names of the parameters.
    #[must_use]
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            Curve::Logistic => &["asymptote", "midpoint", "scale"],
            Curve::Exponential => &["initial", "rate"],
            Curve::MichaelisMenten => &["maximum", "half"],
            Curve::Gompertz => &["asymptote", "displacement", "rate"],
            Curve::Asymptotic => &["asymptote", "initial", "rate"],
        }
    }

    /// The curve at `x`, and its derivative by one parameter.
    fn at(self, p: &[f64], by: usize, x: f64) -> (f64, f64) {
        match self {
            Curve::Logistic => {
                let z = (x - p[1]) / p[2];
                let part = 1.0 / (1.0 + (-z).exp());
                let slope = p[0] * part * (1.0 - part) / p[2];
                (p[0] * part, [part, -slope, -slope * z][by])
            }
            Curve::Exponential => {
                let growth = (p[1] * x).exp();
                (p[0] * growth, [growth, p[0] * x * growth][by])
            }
            Curve::MichaelisMenten => {
                let part = x / (p[1] + x);
                (p[0] * part, [part, -p[0] * part / (p[1] + x)][by])
            }
            Curve::Gompertz => {
                let decay = (-p[2] * x).exp();
                let part = (-p[1] * decay).exp();
                let value = p[0] * part;
                (value, [part, -value * decay, value * p[1] * x * decay][by])
            }
            Curve::Asymptotic => {
                let decay = (-p[2] * x).exp();
                let value = p[0] + (p[1] - p[0]) * decay;
                (value, [1.0 - decay, decay, -(p[1] - p[0]) * x * decay][by])
            }
        }
    }
}

/// Fits a curve of `predictor` to `response`, with one parameter random by `group`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nlmixed {
    /// The data set.
    pub input: PathBuf,
    /// The column to explain.
    pub response: String,
    /// The number column that the curve is over.
    pub predictor: String,
    /// The curve.
    pub curve: Curve,
    /// A guess of every parameter of the curve.
    pub start: BTreeMap<String, f64>,
    /// The parameter that is random.
    pub random: String,
    /// The column with the group, a number or a text.
    pub group: String,
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

/// What a nonlinear mixed model found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NlmixedFit {
    /// The parameters of the curve; tests are by the normal distribution.
    pub estimates: Vec<Estimate>,
    /// Variance of the random parameter between groups, with its standard error.
    pub group_variance: Estimate,
    /// Variance of the residuals, with its standard error.
    pub residual_variance: Estimate,
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

/// Places in the vector of a row.
const RESPONSE: usize = 1;
const PREDICTOR: usize = 2;

struct Model {
    curve: Curve,
    random: usize,
    width: usize,
    nodes: Vec<(f64, f64)>,
}

impl Nlmixed {
    /// Fits `curve` of `predictor` from `start`, `random` being random by `group`.
    #[must_use]
    pub fn new(
        input: PathBuf,
        response: &str,
        predictor: &str,
        curve: Curve,
        start: &[(&str, f64)],
        random: &str,
        group: &str,
    ) -> Nlmixed {
        Nlmixed {
            input,
            response: response.to_owned(),
            predictor: predictor.to_owned(),
            curve,
            start: start.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            random: random.to_owned(),
            group: group.to_owned(),
            quadrature_points: points_default(),
            order: Order::Any,
            memory: None,
            iterations_max: iterations_max_default(),
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Column`] for what does not suit; [`Error::TooFewRows`],
    /// [`Error::NotConverged`]; [`Error::Memory`] if the rows are in any order and do not fit;
    /// [`Error::NotSorted`] if rows said to be sorted are not; those of reading.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<NlmixedFit> {
        check_points(self.quadrature_points)?;
        let (mut point, random) = self.start()?;
        let parameters = point.len();
        let needed = [
            Needed::Number(&self.response),
            Needed::Number(&self.predictor),
            Needed::Present(&self.group),
        ];
        let columns = Columns { needed: &needed, ..Columns::default() };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        frame.need_rows(parameters + 2)?;
        let memory = self.memory.unwrap_or(MEMORY_DEFAULT);
        let mut groups = Groups::new(frame, &self.group, self.order, memory, progress)?;
        let nodes = gauss_hermite(self.quadrature_points);
        let model = Model { curve: self.curve, random, width: groups.frame.width(), nodes };

        let residual = model.residual_deviation(&mut groups, &point, progress)?;
        let mut scales: Vec<f64> = point.iter().map(|value| 0.02 * value.abs().max(1e-6)).collect();
        // The deviation between groups starts at a tenth of the parameter itself.
        point.push(0.1 * point[random].abs().max(1e-6));
        point.push(residual.ln());
        scales.extend([0.2 * point[parameters], 0.1]);
        let mut likelihoods =
            |points: &[Vec<f64>]| model.log_likelihoods(&mut groups, points, progress);
        let (found, covariances) = self.climb(&mut likelihoods, point, &scales)?;
        self.report(&groups, &found, &covariances)
    }

    /// The parameters' start in order, and which is random.
    fn start(&self) -> Result<(Vec<f64>, usize)> {
        let names = self.curve.parameters();
        let refuse = |setting, value: String| Error::Setting {
            setting,
            value,
            allowed: format!("of the parameters {}, finite", names.join(", ")),
        };
        let random = names.iter().position(|name| *name == self.random);
        let random = random.ok_or_else(|| refuse("random", self.random.clone()))?;
        let point: Option<Vec<f64>> = names
            .iter()
            .map(|&name| self.start.get(name).copied().filter(|value| value.is_finite()))
            .collect();
        let point = point.filter(|point| point.len() == self.start.len());
        let shown = || format!("{:?}", self.start);
        Ok((point.ok_or_else(|| refuse("start", shown()))?, random))
    }

    /// Climbs twice: the second time in units of the standard errors that the first time gave.
    fn climb(
        &self,
        likelihoods: &mut Likelihoods<'_>,
        start: Vec<f64>,
        scales: &[f64],
    ) -> Result<(Maximum, Symmetric)> {
        let limits = Limits { iterations_max: self.iterations_max, tolerance: 1e-6 };
        let lost = |iterations| Error::NotConverged { iterations };
        let first = maximise(likelihoods, start, scales, limits)?;
        let rough = first.covariances(likelihoods)?.ok_or_else(|| lost(first.iterations))?;
        let errors: Vec<f64> = (0..first.point.len()).map(|i| rough.at(i, i).sqrt()).collect();
        let mut found = maximise(likelihoods, first.point, &errors, limits)?;
        found.iterations += first.iterations;
        let covariances = found.covariances(likelihoods)?.ok_or_else(|| lost(found.iterations))?;
        Ok((found, covariances))
    }

    fn report(
        &self,
        groups: &Groups,
        found: &Maximum,
        covariances: &Symmetric,
    ) -> Result<NlmixedFit> {
        let names: Vec<String> =
            self.curve.parameters().iter().map(|&name| name.to_owned()).collect();
        let k = names.len();
        let normal = Reference::Normal;
        // The delta method: variances are the square of one parameter and the exponential of another.
        let between = found.point[k] * found.point[k];
        let within = (2.0 * found.point[k + 1]).exp();
        let variance = |name: &str, value: f64, slope: f64, at: usize| {
            Estimate::new(name, value, slope * slope * covariances.at(at, at), normal)
        };
        Ok(NlmixedFit {
            estimates: Estimate::all(&names, &found.point[..k], covariances, normal),
            group_variance: variance(
                &format!("variance of {}", self.random),
                between,
                2.0 * found.point[k],
                k,
            ),
            residual_variance: variance("residual variance", within, 2.0 * within, k + 1),
            log_likelihood: found.log_likelihood,
            aic: 2.0 * (k as f64 + 2.0 - found.log_likelihood),
            groups: groups.count,
            n: groups.frame.rows,
            missing: groups.frame.missing,
            iterations: found.iterations,
            passes: groups.passes,
        })
    }
}

impl Model {
    /// Standard deviation of the residuals at the start.
    fn residual_deviation(
        &self,
        groups: &mut Groups,
        point: &[f64],
        progress: &mut Progress<'_>,
    ) -> Result<f64> {
        let (mut squares, mut n) = (0.0, 0.0);
        groups.for_each(progress, |rows| {
            for values in rows.chunks_exact(self.width) {
                let (mean, _) = self.curve.at(point, self.random, values[PREDICTOR]);
                squares += (values[RESPONSE] - mean).powi(2);
                n += 1.0;
            }
        })?;
        let deviation: f64 = f64::sqrt(squares / n);
        if deviation.is_finite() && deviation > 0.0 {
            return Ok(deviation);
        }
        // Without residuals there is no variance to estimate; without finite ones, no start.
        Err(Error::NotConverged { iterations: 0 })
    }

    fn log_likelihoods(
        &self,
        groups: &mut Groups,
        points: &[Vec<f64>],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<f64>> {
        let mut totals = vec![0.0; points.len()];
        let mut parameters = Vec::new();
        groups.for_each(progress, |rows| {
            for (total, point) in totals.iter_mut().zip(points) {
                *total += self.of_group(rows, point, &mut parameters);
            }
        })?;
        Ok(totals)
    }

    fn of_group(&self, rows: &[f64], point: &[f64], parameters: &mut Vec<f64>) -> f64 {
        let k = point.len() - 2;
        let (deviation, log_sigma) = (point[k], point[k + 1]);
        let precision = (-2.0 * log_sigma).exp();
        let constant = -log_sigma - std::f64::consts::TAU.ln() / 2.0;
        log_integral(&self.nodes, |u| {
            parameters.clear();
            parameters.extend_from_slice(&point[..k]);
            parameters[self.random] += deviation * u;
            let mut given = Given { value: 0.0, slope: 0.0, curvature: 0.0 };
            for values in rows.chunks_exact(self.width) {
                let (mean, slope) = self.curve.at(parameters, self.random, values[PREDICTOR]);
                let residual = values[RESPONSE] - mean;
                given.value += constant - precision * residual * residual / 2.0;
                given.slope += precision * residual * slope * deviation;
                given.curvature += precision * (slope * deviation).powi(2);
            }
            given
        })
    }
}

impl Action for Nlmixed {
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

impl NlmixedFit {
    /// Parameters and variances as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Estimate::table(&self.estimates, "z");
        for variance in [&self.group_variance, &self.residual_variance] {
            table.push(vec![
                variance.term.as_str().into(),
                variance.estimate.into(),
                variance.standard_error.into(),
                Cell::Missing,
                Cell::Missing,
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_those_of_the_curves() {
        for (curve, p) in [
            (Curve::Logistic, &[190.0, 7.0, 3.0][..]),
            (Curve::Exponential, &[2.0, -0.3]),
            (Curve::MichaelisMenten, &[210.0, 0.6]),
            (Curve::Gompertz, &[4.5, 2.2, 0.7]),
            (Curve::Asymptotic, &[100.0, -8.0, 0.3]),
        ] {
            assert_eq!(curve.parameters().len(), p.len());
            for by in 0..p.len() {
                let moved = |step: f64| {
                    let mut p = p.to_vec();
                    p[by] += step;
                    curve.at(&p, by, 2.5).0
                };
                let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let (_, slope) = curve.at(p, by, 2.5);
                assert!((slope - numeric).abs() < 1e-6 * (1.0 + slope.abs()), "{curve:?} {by}");
            }
        }
    }
}

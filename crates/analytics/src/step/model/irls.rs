//! Generalised linear models by iteratively reweighted least squares.
//!
//! Fisher scoring (P. McCullagh, J. A. Nelder, "Generalized Linear Models", 2nd edition, 1989, 2.5):
//! each iteration is one pass over the rows, which adds up the score and the information at the
//! coefficients at hand. A step that does not lower the deviance is halved. Sums are exact to rounding
//! in the score, so that the normal equations cost iterations at most, no digits. Memory: the
//! information matrix.

use serde::{Deserialize, Serialize};
use statrs::function::gamma::{digamma, ln_gamma};

use super::super::Progress;
use super::passes::Passes;
use crate::error::{Error, Result};
use crate::linear::{Factor, Symmetric};

/// The distribution of the response about its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Normal; the variance is constant.
    Gaussian,
    /// Events out of trials, or 0 and 1.
    Binomial,
    /// Counts; the variance is the mean.
    Poisson,
    /// Positive numbers; the standard deviation is proportional to the mean.
    Gamma,
    /// Counts; the variance is `mean + mean^2 / theta`.
    NegativeBinomial,
}

/// How the mean depends on the linear predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The mean is the linear predictor.
    Identity,
    /// The logarithm of the mean is.
    Log,
    /// One over the mean is.
    Inverse,
    /// The logarithm of the odds is.
    Logit,
}

impl Family {
    /// The link used unless told otherwise.
    #[must_use]
    pub fn usual_link(self) -> Link {
        match self {
            Family::Gaussian => Link::Identity,
            Family::Binomial => Link::Logit,
            Family::Poisson | Family::NegativeBinomial => Link::Log,
            Family::Gamma => Link::Inverse,
        }
    }

    /// Whether the variance has a factor that is estimated.
    #[must_use]
    pub fn has_dispersion(self) -> bool {
        match self {
            Family::Gaussian | Family::Gamma => true,
            Family::Binomial | Family::Poisson | Family::NegativeBinomial => false,
        }
    }

    /// What a response must be; `None` if `y` (of `trials`) is.
    fn refusal(self, y: f64, trials: f64) -> Option<&'static str> {
        let (allowed, what) = match self {
            Family::Gaussian => (y.is_finite(), "finite"),
            Family::Binomial => ((0.0..=trials).contains(&y), "0, 1 or a number of events"),
            Family::Poisson | Family::NegativeBinomial => {
                (y >= 0.0 && y.is_finite() && y.fract() == 0.0, "a count")
            }
            Family::Gamma => (y > 0.0 && y.is_finite(), "above 0"),
        };
        (!allowed).then_some(what)
    }

    #[inline]
    fn allows_mean(self, mean: f64) -> bool {
        match self {
            Family::Gaussian => mean.is_finite(),
            Family::Binomial => (0.0..=1.0).contains(&mean),
            Family::Poisson | Family::Gamma | Family::NegativeBinomial => {
                mean > 0.0 && mean.is_finite()
            }
        }
    }
}

impl Link {
    pub(crate) fn of_mean(self, mean: f64) -> f64 {
        match self {
            Link::Identity => mean,
            Link::Log => mean.ln(),
            Link::Inverse => 1.0 / mean,
            Link::Logit => (mean / (1.0 - mean)).ln(),
        }
    }

    /// The mean and its derivative.
    #[inline]
    pub(crate) fn mean(self, eta: f64) -> (f64, f64) {
        match self {
            Link::Identity => (eta, 1.0),
            Link::Log => {
                let mean = eta.exp();
                (mean, mean)
            }
            Link::Inverse => {
                let mean = 1.0 / eta;
                (mean, -mean * mean)
            }
            Link::Logit => {
                let small = (-eta.abs()).exp();
                let derivative = small / ((1.0 + small) * (1.0 + small));
                let mean = if eta >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) };
                (mean, derivative)
            }
        }
    }
}

/// `a ln b`, zero if `a` is.
#[inline]
fn x_ln(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a * b.ln() }
}

/// `ln p` and `ln (1 - p)` of a probability, which is exact near 0 and 1 if it comes by the logit.
#[inline]
pub(crate) fn log_probabilities(link: Link, eta: f64, mean: f64) -> (f64, f64) {
    match link {
        Link::Logit => {
            let tail = (-eta.abs()).exp().ln_1p();
            (-(tail + (-eta).max(0.0)), -(tail + eta.max(0.0)))
        }
        Link::Identity | Link::Log | Link::Inverse => (mean.ln(), (-mean).ln_1p()),
    }
}

/// Where the parts of a row's vector lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Terms, from the start.
    pub terms: usize,
    /// The response's place.
    pub response: usize,
    /// The weight's place.
    pub weight: Option<usize>,
    /// The place of the number of trials.
    pub trials: Option<usize>,
    /// The place of what is added to the linear predictor.
    pub offset: Option<usize>,
}

impl Layout {
    /// Weight, trials and offset of a row.
    #[inline]
    pub fn parts(&self, values: &[f64]) -> (f64, f64, f64) {
        let or = |place: Option<usize>, other: f64| place.map_or(other, |place| values[place]);
        (or(self.weight, 1.0), or(self.trials, 1.0), or(self.offset, 0.0))
    }
}

/// How long to iterate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Iterations at most.
    pub iterations_max: u32,
    /// How far from the optimum in units of standard errors, about.
    pub tolerance: f64,
}

/// A model to fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Irls {
    pub family: Family,
    pub link: Link,
    pub layout: Layout,
    pub limits: Limits,
    /// Theta of the negative binomial distribution; estimated if `None`.
    pub theta: Option<f64>,
}

/// Sums over all rows at certain coefficients.
#[derive(Clone, Debug)]
pub(crate) struct Evaluation {
    pub deviance: f64,
    /// Without the parts that need the dispersion.
    log_likelihood: f64,
    pub pearson: f64,
    pub information: Symmetric,
    score: Vec<f64>,
    eta_max: f64,
    valid: bool,
    weights: f64,
    log_weights: f64,
    /// Sums for the gamma distribution: of `ln y` and of `ln mean + y / mean`.
    log_response: f64,
    log_mean_and_ratio: f64,
    /// First and second derivative of the log likelihood by theta.
    theta_score: f64,
    theta_curvature: f64,
}

/// A fitted model, in the frame's scaled columns.
pub(crate) struct Fit {
    pub beta: Vec<f64>,
    pub at: Evaluation,
    pub factor: Factor,
    pub iterations: u32,
    pub null_deviance: Option<f64>,
    pub theta: Option<f64>,
}

/// Totals of the response.
struct Totals {
    weighted: f64,
    trials: f64,
    offset: f64,
}

impl Irls {
    /// Fits the model.
    ///
    /// # Errors
    /// [`Error::TooFewRows`], [`Error::Collinear`], [`Error::Separated`], [`Error::NotConverged`];
    /// [`Error::Column`] if a response, weight or offset is not allowed; those of reading.
    pub fn fit(&self, passes: &mut Passes, progress: &mut Progress<'_>) -> Result<Fit> {
        passes.frame.need_rows(self.layout.terms)?;
        let totals = self.totals(passes, progress)?;
        let mean = totals.weighted / totals.trials;
        let interior = mean > 0.0 && (self.family != Family::Binomial || mean < 1.0);
        if !interior && self.family != Family::Gaussian {
            return Err(Error::Separated { column: "intercept".to_owned() });
        }
        let mut beta = vec![0.0; self.layout.terms];
        beta[0] = self.link.of_mean(mean) - totals.offset / passes.frame.rows as f64;
        let mut theta = self.theta.unwrap_or(1.0);
        let mut at = self.evaluate(passes, &beta, theta, progress)?;
        let null_deviance = self.layout.offset.is_none().then_some(at.deviance);
        if !at.valid {
            // The link has no linear predictor for a mean such as that of all rows.
            return Err(Error::NotConverged { iterations: 0 });
        }
        // What a deviance of nearly zero is small against: that of a gaussian or gamma model is in the
        // units of the response, in which the squares of rounding errors of a constant one are.
        let floor = if self.family.has_dispersion() { 1e-8 * at.deviance } else { 0.1 };
        let rounding = match self.family {
            Family::Gaussian => 1e-28 * totals.trials * mean * mean,
            Family::Binomial | Family::Poisson | Family::Gamma | Family::NegativeBinomial => 0.0,
        };
        if let Some(column) = at.information.dependent_column() {
            return Err(Error::Collinear { column: passes.frame.terms[column].clone() });
        }
        let mut eta_before = 0.0;
        let mut step = vec![0.0; beta.len()];
        for iterations in 0..self.limits.iterations_max {
            let Some(factor) = at.information.factor() else {
                return Err(self.lost(passes, &at, eta_before, &step, iterations));
            };
            step = factor.solve(&at.score);
            let decrement: f64 = step.iter().zip(&at.score).map(|(a, b)| a * b).sum();
            let theta_step = self.theta_step(&at, theta);
            let bound = self.limits.tolerance.powi(2) * (at.deviance + floor) + rounding;
            if decrement <= bound && theta_step.abs() <= self.limits.tolerance {
                let theta = (self.family == Family::NegativeBinomial).then_some(theta);
                return Ok(Fit { beta, at, factor, iterations, null_deviance, theta });
            }
            eta_before = at.eta_max;
            let before = self.objective(&at);
            let mut length = 1.0;
            loop {
                let next: Vec<f64> = beta.iter().zip(&step).map(|(b, s)| b + length * s).collect();
                let next_theta = theta * (length * theta_step).exp();
                let found = self.evaluate(passes, &next, next_theta, progress)?;
                let better =
                    found.valid && self.objective(&found) <= before + 1e-9 * (before.abs() + 1.0);
                if better {
                    (beta, theta, at) = (next, next_theta, found);
                    break;
                }
                length /= 2.0;
                if length < 1e-6 {
                    return Err(Error::NotConverged { iterations });
                }
            }
        }
        Err(self.lost(passes, &at, eta_before, &step, self.limits.iterations_max))
    }

    /// Why there is no estimate: a linear predictor that grows by about 1 with every iteration is the
    /// trace of an infinite one.
    fn lost(
        &self,
        passes: &Passes,
        at: &Evaluation,
        eta_before: f64,
        step: &[f64],
        iterations: u32,
    ) -> Error {
        let grows = at.eta_max > 10.0 && at.eta_max - eta_before > 0.3;
        if grows && self.family != Family::Gaussian {
            let largest = (0..step.len()).max_by(|&a, &b| step[a].abs().total_cmp(&step[b].abs()));
            let column = passes.frame.terms[largest.unwrap_or(0)].clone();
            return Error::Separated { column };
        }
        Error::NotConverged { iterations }
    }

    fn theta_step(&self, at: &Evaluation, theta: f64) -> f64 {
        if self.family != Family::NegativeBinomial || self.theta.is_some() {
            return 0.0;
        }
        // Newton's step for the logarithm of theta.
        let slope = theta * at.theta_score;
        let curvature = theta * theta * at.theta_curvature + slope;
        let step = if curvature < 0.0 { -slope / curvature } else { slope.signum() };
        step.clamp(-1.0, 1.0)
    }

    fn objective(&self, at: &Evaluation) -> f64 {
        if self.family.has_dispersion() { at.deviance } else { -2.0 * at.log_likelihood }
    }

    fn totals(&self, passes: &mut Passes, progress: &mut Progress<'_>) -> Result<Totals> {
        let mut totals = Totals { weighted: 0.0, trials: 0.0, offset: 0.0 };
        let mut refused = None;
        let (layout, family) = (self.layout, self.family);
        passes.for_each(progress, |values| {
            let (weight, trials, offset) = layout.parts(values);
            let y = values[layout.response];
            let mut refuse = |place: Option<usize>, allowed| {
                refused.get_or_insert((place.unwrap_or(0), allowed));
            };
            if !(weight > 0.0 && weight.is_finite()) {
                refuse(layout.weight, "above 0");
            }
            if !(trials > 0.0 && trials.is_finite()) {
                refuse(layout.trials, "above 0");
            }
            if !offset.is_finite() {
                refuse(layout.offset, "finite");
            }
            if let Some(allowed) = family.refusal(y, trials) {
                refuse(Some(layout.response), allowed);
            }
            totals.weighted += weight * y;
            totals.trials += weight * trials;
            totals.offset += offset;
        })?;
        let Some((place, allowed)) = refused else { return Ok(totals) };
        let mut value = None;
        passes.for_each(progress, |values| {
            let (_, trials, _) = layout.parts(values);
            let bad = if place == layout.response {
                family.refusal(values[place], trials).is_some()
            } else {
                !values[place].is_finite() || (Some(place) != layout.offset && values[place] <= 0.0)
            };
            if bad {
                value.get_or_insert(values[place]);
            }
        })?;
        Err(passes.frame.refuse(place - layout.terms, value.unwrap_or(f64::NAN), allowed))
    }

    fn evaluate(
        &self,
        passes: &mut Passes,
        beta: &[f64],
        theta: f64,
        progress: &mut Progress<'_>,
    ) -> Result<Evaluation> {
        let terms = self.layout.terms;
        let mut sums = Evaluation {
            deviance: 0.0,
            log_likelihood: 0.0,
            pearson: 0.0,
            information: Symmetric::zeros(terms),
            score: vec![0.0; terms],
            eta_max: 0.0,
            valid: true,
            weights: 0.0,
            log_weights: 0.0,
            log_response: 0.0,
            log_mean_and_ratio: 0.0,
            theta_score: 0.0,
            theta_curvature: 0.0,
        };
        let model = *self;
        passes.for_each(progress, |values| model.add(&mut sums, values, beta, theta))?;
        Ok(sums)
    }

    #[inline]
    fn add(&self, sums: &mut Evaluation, values: &[f64], beta: &[f64], theta: f64) {
        let x = &values[..self.layout.terms];
        let (weight, trials, offset) = self.layout.parts(values);
        let eta = offset + x.iter().zip(beta).map(|(x, b)| x * b).sum::<f64>();
        let (mean, slope) = self.link.mean(eta);
        if !self.family.allows_mean(mean) {
            sums.valid = false;
            return;
        }
        let y = values[self.layout.response] / trials;
        let prior = weight * trials;
        let variance = self.tally(sums, [y, mean, eta, weight, trials], theta);
        sums.eta_max = sums.eta_max.max(eta.abs());
        sums.weights += weight;
        sums.log_weights += weight.ln();
        // Far out both are zero; the row then tells nothing more of the coefficients.
        if slope != 0.0 && variance > 0.0 {
            let residual = y - mean;
            sums.pearson += prior * residual * residual / variance;
            sums.information.add_outer(prior * slope * slope / variance, x);
            let factor = prior * residual * slope / variance;
            for (score, x) in sums.score.iter_mut().zip(x) {
                *score += factor * x;
            }
        }
    }

    /// Adds the row's part to the deviance and the log likelihood; returns its variance.
    #[inline]
    fn tally(&self, sums: &mut Evaluation, row: [f64; 5], theta: f64) -> f64 {
        let [y, mean, eta, weight, trials] = row;
        match self.family {
            Family::Gaussian => {
                sums.deviance += weight * (y - mean) * (y - mean);
                1.0
            }
            Family::Binomial => {
                let (log_p, log_q) = log_probabilities(self.link, eta, mean);
                let fitted = if y == 0.0 { 0.0 } else { y * log_p }
                    + if y == 1.0 { 0.0 } else { (1.0 - y) * log_q };
                let saturated = x_ln(y, y) + x_ln(1.0 - y, 1.0 - y);
                sums.deviance += 2.0 * weight * trials * (saturated - fitted);
                sums.log_likelihood += weight * (trials * fitted + ln_choose(trials, y * trials));
                match self.link {
                    Link::Logit => self.link.mean(eta).1,
                    Link::Identity | Link::Log | Link::Inverse => mean * (1.0 - mean),
                }
            }
            Family::Poisson => {
                sums.deviance += 2.0 * weight * (x_ln(y, y / mean) - (y - mean));
                sums.log_likelihood += weight * (x_ln(y, mean) - mean - ln_gamma(y + 1.0));
                mean
            }
            Family::Gamma => {
                let ratio = y / mean;
                sums.deviance += 2.0 * weight * (ratio - 1.0 - ratio.ln());
                sums.log_response += weight * y.ln();
                sums.log_mean_and_ratio += weight * (mean.ln() + ratio);
                mean * mean
            }
            Family::NegativeBinomial => {
                let both = theta + mean;
                sums.deviance +=
                    2.0 * weight * (x_ln(y, y / mean) - (y + theta) * ((y + theta) / both).ln());
                let constant = ln_gamma(y + theta) - ln_gamma(theta) - ln_gamma(y + 1.0);
                sums.log_likelihood +=
                    weight * (constant + theta * (theta / both).ln() + x_ln(y, mean / both));
                sums.theta_score += weight
                    * (digamma(y + theta) - digamma(theta) + (theta / both).ln() + 1.0
                        - (y + theta) / both);
                sums.theta_curvature += weight
                    * (trigamma(y + theta) - trigamma(theta) + 1.0 / theta - 2.0 / both
                        + (y + theta) / (both * both));
                mean + mean * mean / theta
            }
        }
    }

    /// The factor of the variance: 1, or Pearson's statistic over the degrees of freedom.
    pub fn dispersion(&self, at: &Evaluation, rows: u64) -> f64 {
        let df = (rows - self.layout.terms as u64) as f64;
        if self.family.has_dispersion() { at.pearson / df } else { 1.0 }
    }

    /// The log likelihood, with the dispersion at its likeliest for the normal distribution and at
    /// deviance over rows for the gamma distribution.
    pub fn log_likelihood(&self, at: &Evaluation, rows: u64) -> f64 {
        let n = rows as f64;
        match self.family {
            Family::Gaussian => {
                let variance = at.deviance / n;
                (at.log_weights - n * ((std::f64::consts::TAU * variance).ln() + 1.0)) / 2.0
            }
            Family::Gamma => {
                let shape = at.weights / at.deviance;
                at.weights * (shape * shape.ln() - ln_gamma(shape)) - shape * at.log_mean_and_ratio
                    + (shape - 1.0) * at.log_response
            }
            Family::Binomial | Family::Poisson | Family::NegativeBinomial => at.log_likelihood,
        }
    }

    /// Parameters that the likelihood was maximised over.
    pub fn parameters(&self) -> usize {
        let theta = self.family == Family::NegativeBinomial && self.theta.is_none();
        self.layout.terms + usize::from(self.family.has_dispersion() || theta)
    }
}

/// `ln (n choose k)`.
pub(crate) fn ln_choose(n: f64, k: f64) -> f64 {
    if n == 1.0 { 0.0 } else { ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0) }
}

/// The second derivative of `ln gamma` (Abramowitz and Stegun 6.4.6 and 6.4.12).
fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 12.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = square
        * (1.0 / 6.0
            - square
                * (1.0 / 30.0
                    - square * (1.0 / 42.0 - square * (1.0 / 30.0 - square * 5.0 / 66.0))));
    sum + 1.0 / x + square / 2.0 + series / x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigamma_has_its_known_values() {
        let pi_squared = std::f64::consts::PI.powi(2);
        for (x, expected) in
            [(1.0, pi_squared / 6.0), (0.5, pi_squared / 2.0), (2.0, pi_squared / 6.0 - 1.0)]
        {
            assert!((trigamma(x) - expected).abs() < 1e-13, "{x}");
        }
    }

    #[test]
    fn far_probabilities_keep_their_logarithms() {
        let (mean, slope) = Link::Logit.mean(800.0);
        assert_eq!((mean, slope), (1.0, 0.0));
        assert_eq!(log_probabilities(Link::Logit, 800.0, mean), (-0.0, -800.0));
        assert_eq!(log_probabilities(Link::Logit, -800.0, 0.0), (-800.0, -0.0));
    }
}

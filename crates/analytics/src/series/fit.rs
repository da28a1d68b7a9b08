//! Fitting a model to a series, and choosing among models.

use serde::{Deserialize, Serialize};

use super::model::{ErrorKind, Model, Parameters, SeasonKind, Series, States, TrendKind};
use super::search::{Minimum, levenberg_marquardt, nelder_mead};
use super::start::start;

/// Smoothing parameters keep this far from their bounds...
const MARGIN: f64 = 1e-4;
/// ...and the damping of a slope in these, as it can otherwise not be told from none or from no slope.
const PHI: (f64, f64) = (0.8, 0.98);
/// A logistic beyond this is at its bound.
const LOGIT_MAX: f64 = 16.0;
/// No further out do Gauss-Newton steps start.
const LOGIT_START_MAX: f64 = 4.0;
/// Where searches start: alpha, beta as a part of alpha, gamma as a part of what alpha leaves.
const STARTS: [(f64, f64, f64); 3] = [(0.1, 0.1, 0.1), (0.5, 0.02, 0.02), (0.8, 0.05, 0.4)];
/// Evaluations that a simplex search may take.
const SIMPLEX_EVALUATIONS_MAX: u64 = 400;

/// A model fitted to a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The model.
    pub model: Model,
    /// Smoothing parameters, coefficients, and the states before the first value.
    pub parameters: Parameters,
    /// The same with the states after the last value; the season of the value to come is first.
    pub last: Parameters,
    /// Values that are not missing.
    pub n: u64,
    /// Parameters estimated: smoothing, states, coefficients and the variance.
    pub estimated: u64,
    /// Sum of squares of the one-step errors, as differences also if errors are multiplicative.
    pub error_squares: f64,
    /// Variance of the errors of the model (relative ones if multiplicative), divisor `n`.
    pub variance: f64,
    /// Logarithm of the Gaussian likelihood.
    pub log_likelihood: f64,
    /// Akaike's criterion.
    pub aic: f64,
    /// The same corrected for short series; infinite if the series is too short for the model.
    pub aicc: f64,
    /// One-step errors, as differences; zero where a value is missing.
    pub errors: Vec<f64>,
    /// Evaluations of the likelihood that the search took.
    pub evaluations: u64,
}

/// A fit chosen among models.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The one with the least AICc.
    pub fit: Fit,
    /// Models fitted.
    pub models: u64,
    /// Evaluations of all of them.
    pub evaluations: u64,
}

/// Fits `model` to `series` by maximum likelihood over smoothing parameters, coefficients and initial
/// states: damped Gauss-Newton steps from several starts, one of them the end of a simplex search over
/// the smoothing parameters, since the likelihood may have several hills. `None` if the series does not suit the model (too short, not positive) or is exact.
#[must_use]
pub fn fit(model: Model, series: &Series<'_>) -> Option<Fit> {
    let objective = Objective::new(model, series)?;
    let first = start(model, series);
    let mut season = vec![0.0; first.season.len()];
    let mut errors = vec![0.0; series.values.len()];
    let mut evaluations = 0;
    let mut best: Option<Minimum> = None;
    let mut keep = |found: Minimum| {
        evaluations += found.evaluations;
        if found.value.is_finite() && best.as_ref().is_none_or(|best| found.value < best.value) {
            best = Some(found);
        }
    };
    for (alpha, beta, gamma) in STARTS {
        let mut smoothing = first.clone();
        smoothing.alpha = alpha;
        smoothing.beta = if model.trend == TrendKind::None { 0.0 } else { alpha * beta };
        smoothing.gamma =
            if model.season == SeasonKind::None { 0.0 } else { (1.0 - alpha) * gamma };
        keep(objective.polish(&objective.free(&smoothing)));
    }
    let mut all = objective.free(&first);
    let smoothing = all[..model.smoothing()].to_vec();
    let smoothed = nelder_mead(&smoothing, 0.7, SIMPLEX_EVALUATIONS_MAX, &mut |some| {
        all[..some.len()].copy_from_slice(some);
        objective.squares(&all, &mut season, &mut errors)
    });
    // At a bound there is no slope to come back by.
    for (all, found) in all.iter_mut().zip(&smoothed.at) {
        *all = found.clamp(-LOGIT_START_MAX, LOGIT_START_MAX);
    }
    keep(objective.polish(&all));
    evaluations += smoothed.evaluations;
    objective.fit(&best?, evaluations)
}

/// Fits `model` to `series` from parameters that are near already, by damped Gauss-Newton steps alone.
/// `None` as in [`fit()`], or where the model is not defined at `near`.
#[must_use]
pub fn refit(model: Model, series: &Series<'_>, near: &Parameters) -> Option<Fit> {
    let objective = Objective::new(model, series)?;
    let found = objective.polish(&objective.free(near));
    objective.fit(&found, found.evaluations)
}

/// Fits each of `models` and keeps the one with the least AICc; the first among equals. Models that do
/// not suit the series are passed over; `None` if none does.
#[must_use]
pub fn choose(models: &[Model], series: &Series<'_>) -> Option<Choice> {
    let fits: Vec<Fit> = models.iter().filter_map(|&model| fit(model, series)).collect();
    let (count, evaluations) = (fits.len() as u64, fits.iter().map(|fit| fit.evaluations).sum());
    let best = fits.into_iter().min_by(|a, b| a.aicc.total_cmp(&b.aicc))?;
    Some(Choice { fit: best, models: count, evaluations })
}

/// Maximum likelihood as a sum of squares: for multiplicative errors each error times the geometric
/// mean of the forecasts (the concentrated likelihood, Hyndman et al. 2008, section 5.1).
struct Objective<'a> {
    model: Model,
    series: &'a Series<'a>,
    season_length: usize,
    n: f64,
}

impl<'a> Objective<'a> {
    /// `None` if the series does not suit the model.
    fn new(model: Model, series: &'a Series<'a>) -> Option<Objective<'a>> {
        let seasonal = model.season != SeasonKind::None;
        let season_length = if seasonal { series.season_length } else { 0 };
        let present = || series.values.iter().filter(|value| !value.is_nan());
        let n = present().count();
        let estimated =
            model.smoothing() + model.states(season_length.max(1)) + series.regressors.len() + 1;
        let products =
            model.error == ErrorKind::Multiplicative || model.season == SeasonKind::Multiplicative;
        // Only positive values can be multiplied, and a regression is an addition.
        let suits =
            !products || (series.regressors.is_empty() && present().all(|&value| value > 0.0));
        let long = n > estimated
            && present().all(|value| value.is_finite())
            && (!seasonal || (season_length > 1 && series.values.len() >= 2 * season_length));
        (suits && long).then_some(Objective { model, series, season_length, n: n as f64 })
    }

    /// The parameters as numbers without bounds: smoothing first, then states, then coefficients.
    fn free(&self, parameters: &Parameters) -> Vec<f64> {
        let p = parameters;
        let mut free = vec![unbound(p.alpha, MARGIN, 1.0 - MARGIN)];
        if self.model.trend != TrendKind::None {
            free.push(unbound(p.beta / p.alpha, MARGIN, 1.0 - MARGIN));
        }
        if self.season_length > 0 {
            free.push(unbound(p.gamma / (1.0 - p.alpha), MARGIN, 1.0 - MARGIN));
        }
        if self.model.trend == TrendKind::Damped {
            free.push(unbound(p.phi, PHI.0, PHI.1));
        }
        free.push(p.level);
        if self.model.trend != TrendKind::None {
            free.push(p.trend);
        }
        free.extend(p.season.iter().take(self.season_length.saturating_sub(1)));
        free.extend(&p.coefficients);
        free
    }

    /// The inverse of [`Objective::free`].
    fn bound(&self, free: &[f64]) -> Parameters {
        let mut free = free.iter().copied();
        let mut next = || free.next().unwrap_or_else(|| unreachable!("made by `free`"));
        let trended = self.model.trend != TrendKind::None;
        let alpha = within(next(), MARGIN, 1.0 - MARGIN);
        let beta = if trended { alpha * within(next(), MARGIN, 1.0 - MARGIN) } else { 0.0 };
        let seasonal = self.season_length > 0;
        let gamma =
            if seasonal { (1.0 - alpha) * within(next(), MARGIN, 1.0 - MARGIN) } else { 0.0 };
        let phi =
            if self.model.trend == TrendKind::Damped { within(next(), PHI.0, PHI.1) } else { 1.0 };
        let level = next();
        let trend = if trended { next() } else { 0.0 };
        let mut season: Vec<f64> = (1..self.season_length).map(|_| next()).collect();
        if seasonal {
            let sum = if self.model.season == SeasonKind::Multiplicative {
                self.season_length as f64
            } else {
                0.0
            };
            season.push(sum - season.iter().sum::<f64>());
        }
        let coefficients = free.collect();
        Parameters { alpha, beta, gamma, phi, level, trend, season, coefficients }
    }

    /// Fills `errors` so that their squares grow as the likelihood falls; returns the sum of squares.
    fn squares(&self, free: &[f64], season: &mut [f64], errors: &mut [f64]) -> f64 {
        let parameters = self.bound(free);
        if self.model.season == SeasonKind::Multiplicative
            && parameters.season.iter().any(|&factor| factor <= 0.0)
        {
            return f64::INFINITY;
        }
        let Some(logarithms) = self.series.run(self.model, &parameters, season, errors) else {
            return f64::INFINITY;
        };
        if self.model.error == ErrorKind::Multiplicative {
            let scale = (logarithms / self.n).exp();
            errors.iter_mut().for_each(|error| *error *= scale);
        }
        let squares: f64 = errors.iter().map(|error| error * error).sum();
        if squares.is_nan() { f64::INFINITY } else { squares }
    }

    fn polish(&self, free: &[f64]) -> Minimum {
        let mut season = vec![0.0; self.season_length];
        levenberg_marquardt(free, self.series.values.len(), &mut |free, errors| {
            self.squares(free, &mut season, errors)
        })
    }

    fn fit(&self, found: &Minimum, evaluations: u64) -> Option<Fit> {
        // Without errors there is no likelihood.
        if !found.value.is_finite() || found.value <= 0.0 {
            return None;
        }
        let parameters = self.bound(&found.at);
        let mut season = vec![0.0; self.season_length];
        let mut errors = vec![0.0; self.series.values.len()];
        let mut states = States::new(self.model, &parameters, &mut season, 0);
        let logarithms =
            self.series.run_states(&mut states, &parameters.coefficients, &mut errors)?;
        let last = Parameters {
            level: states.level,
            trend: states.trend,
            season: states.season_from_next(),
            ..parameters.clone()
        };
        let squares: f64 = errors.iter().map(|error| error * error).sum();
        let variance = squares / self.n;
        let gaussian = self.n * ((2.0 * std::f64::consts::PI * variance).ln() + 1.0);
        let log_likelihood = -0.5 * gaussian - logarithms;
        let estimated = found.at.len() as f64 + 1.0;
        let aic = 2.0 * (estimated - log_likelihood);
        let room = self.n - estimated - 1.0;
        let correction =
            if room > 0.0 { 2.0 * estimated * (estimated + 1.0) / room } else { f64::INFINITY };
        if self.model.error == ErrorKind::Multiplicative {
            // A relative error e is the difference y e / (1 + e).
            for (error, &value) in errors.iter_mut().zip(self.series.values) {
                *error = if value.is_nan() { 0.0 } else { value * *error / (1.0 + *error) };
            }
        }
        Some(Fit {
            model: self.model,
            parameters,
            last,
            n: self.n as u64,
            estimated: estimated as u64,
            error_squares: errors.iter().map(|error| error * error).sum(),
            variance,
            log_likelihood,
            aic,
            aicc: aic + correction,
            errors,
            evaluations,
        })
    }
}

/// A number from `low` to `high` from one without bounds.
fn within(free: f64, low: f64, high: f64) -> f64 {
    low + (high - low) / (1.0 + (-free.clamp(-LOGIT_MAX, LOGIT_MAX)).exp())
}

/// The inverse of [`within`]; a value at or beyond a bound comes near it.
fn unbound(value: f64, low: f64, high: f64) -> f64 {
    let part = ((value - low) / (high - low)).clamp(1e-6, 1.0 - 1e-6);
    (part / (1.0 - part)).ln()
}

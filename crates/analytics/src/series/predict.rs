//! Forecasts from a fit, and futures drawn from it.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};
use statrs::distribution::{ContinuousCDF as _, Normal};

use super::fit::Fit;
use super::model::{ErrorKind, SeasonKind, States};

/// Futures drawn for the limits of a model that has no closed form for them.
const FUTURES: usize = 2000;

/// A forecast of one time to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The forecast.
    pub mean: f64,
    /// Lower limit of the interval.
    pub lower: f64,
    /// Upper limit of the interval.
    pub upper: f64,
}

/// Forecasts the next `horizon` values, with limits between which a value lies with probability
/// `confidence`: from the closed form if the model is linear (Hyndman et al. 2008, table 6.1), else
/// from 2000 futures drawn with `seed`. `regressors` hold the columns' values in the future; a column
/// that is too short goes on with its last value, or zero.
#[must_use]
pub fn forecast(
    fit: &Fit,
    horizon: usize,
    regressors: &[Vec<f64>],
    confidence: f64,
    seed: u64,
) -> Vec<Forecast> {
    let mut season = vec![0.0; fit.last.season.len()];
    let mut states = States::new(fit.model, &fit.last, &mut season, 0);
    let means: Vec<f64> = (0..horizon)
        .map(|h| {
            let (level, mean) = states.forecast();
            states.advance(level, 0.0);
            mean + explained(fit, regressors, h)
        })
        .collect();
    if !fit.model.is_linear() {
        return limits_of_futures(fit, &means, regressors, confidence, seed);
    }
    let z = Normal::standard().inverse_cdf(0.5 + 0.5 * confidence);
    let p = &fit.last;
    let (mut variance, mut damped, mut power) = (fit.variance, 0.0, 1.0);
    means
        .iter()
        .enumerate()
        .map(|(h, &mean)| {
            let half = z * variance.sqrt();
            power *= p.phi;
            damped += power;
            let in_season = !p.season.is_empty() && (h + 1).is_multiple_of(p.season.len());
            let weight = p.alpha + p.beta * damped + if in_season { p.gamma } else { 0.0 };
            variance += fit.variance * weight * weight;
            Forecast { mean, lower: mean - half, upper: mean + half }
        })
        .collect()
}

/// Fills `path` with a future of the series whose errors `draw` gives (relative ones if errors are
/// multiplicative), without what regressors add. A level that falls to zero under a multiplicative
/// season ends the future there: the rest is missing.
pub fn simulate(fit: &Fit, season: &mut [f64], path: &mut [f64], draw: &mut dyn FnMut() -> f64) {
    let mut states = States::new(fit.model, &fit.last, season, 0);
    let mut over = false;
    for value in path {
        let (level, mean) = states.forecast();
        over |= fit.model.season == SeasonKind::Multiplicative && (level <= 0.0 || mean <= 0.0);
        if over {
            *value = f64::NAN;
            continue;
        }
        let error = match fit.model.error {
            ErrorKind::Additive => draw(),
            ErrorKind::Multiplicative => draw() * mean,
        };
        *value = mean + error;
        states.advance(level, error);
    }
}

fn limits_of_futures(
    fit: &Fit,
    means: &[f64],
    regressors: &[Vec<f64>],
    confidence: f64,
    seed: u64,
) -> Vec<Forecast> {
    let mut random = StdRng::seed_from_u64(seed);
    let deviation = fit.variance.sqrt();
    let mut draw = || normal(&mut random) * deviation;
    let mut season = vec![0.0; fit.last.season.len()];
    let mut futures = vec![0.0; FUTURES * means.len()];
    for path in futures.chunks_exact_mut(means.len().max(1)) {
        simulate(fit, &mut season, path, &mut draw);
    }
    let mut at_time = vec![0.0; FUTURES];
    let tail = (0.5 * (1.0 - confidence) * FUTURES as f64) as usize;
    (0..means.len())
        .map(|h| {
            for (value, path) in at_time.iter_mut().zip(futures.chunks_exact(means.len())) {
                *value = path[h];
            }
            at_time.sort_unstable_by(f64::total_cmp);
            let known = explained(fit, regressors, h);
            let last = FUTURES - 1;
            Forecast {
                mean: means[h],
                lower: at_time[tail.min(last)] + known,
                upper: at_time[last - tail.min(last)] + known,
            }
        })
        .collect()
}

fn normal(random: &mut impl Rng) -> f64 {
    StandardNormal.sample(random)
}

fn explained(fit: &Fit, regressors: &[Vec<f64>], h: usize) -> f64 {
    let value = |column: &Vec<f64>| column.get(h).or(column.last()).copied().unwrap_or(0.0);
    regressors.iter().zip(&fit.last.coefficients).map(|(column, b)| value(column) * b).sum()
}

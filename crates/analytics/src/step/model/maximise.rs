//! Maximises a log likelihood that has no derivatives at hand.
//!
//! A quasi-Newton method (BFGS; J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd edition, 2006,
//! 6.1) on central differences. The function is always asked for many points at once, so that a pass
//! over the data serves a whole gradient or a whole line search. Coordinates are in units of a guess
//! of the standard errors, in which a well-behaved log likelihood is about as curved as the identity.

use super::irls::Limits;
use crate::error::{Error, Result};
use crate::linear::Symmetric;

/// Log likelihoods at several points; what is not a number counts as impossible.
pub(crate) type Likelihoods<'a> = dyn FnMut(&[Vec<f64>]) -> Result<Vec<f64>> + 'a;

/// Step of a difference for slopes, and for curvatures, in units of standard errors.
const SLOPE_STEP: f64 = 1e-3;
const CURVATURE_STEP: f64 = 1e-2;
/// Step lengths tried in one pass of a line search.
const LENGTHS: [f64; 6] = [1.0, 0.5, 0.25, 0.1, 0.03, 0.003];

/// Where the likelihood is largest.
#[derive(Clone, Debug)]
pub(crate) struct Maximum {
    pub point: Vec<f64>,
    pub log_likelihood: f64,
    pub iterations: u32,
    scales: Vec<f64>,
}

/// Climbs from `start`; `scales` are guesses of the standard errors.
///
/// # Errors
/// [`Error::NotConverged`], and those of `likelihoods`.
pub(crate) fn maximise(
    likelihoods: &mut Likelihoods<'_>,
    start: Vec<f64>,
    scales: &[f64],
    limits: Limits,
) -> Result<Maximum> {
    let size = start.len();
    let mut point = start;
    let (mut value, mut slope) = slope_at(likelihoods, &point, scales)?;
    // The inverse of the curvature, in scaled coordinates.
    let mut inverse = identity(size);
    let mut fresh = true;
    for iterations in 0..limits.iterations_max {
        let direction: Vec<f64> =
            (0..size).map(|i| dot(&inverse[i], &slope)).map(|d| d.clamp(-20.0, 20.0)).collect();
        let gain = dot(&direction, &slope);
        if gain.abs() <= limits.tolerance.powi(2).max(1e-15 * value.abs()) {
            return Ok(Maximum {
                point,
                log_likelihood: value,
                iterations,
                scales: scales.to_vec(),
            });
        }
        let trial = |length: f64| -> Vec<f64> {
            (0..size).map(|i| point[i] + length * direction[i] * scales[i]).collect()
        };
        let found = likelihoods(&LENGTHS.map(trial))?;
        let best = (0..LENGTHS.len())
            .filter(|&k| found[k].is_finite())
            .max_by(|&a, &b| found[a].total_cmp(&found[b]))
            .filter(|&k| found[k] > value);
        let Some(best) = best else {
            // Not uphill at all: rounding, if the gain in sight is small; else start afresh.
            if gain.abs() < 1e-7 * (1.0 + value.abs() * 1e-6) {
                let scales = scales.to_vec();
                return Ok(Maximum { point, log_likelihood: value, iterations, scales });
            }
            if fresh {
                return Err(Error::NotConverged { iterations });
            }
            (inverse, fresh) = (identity(size), true);
            continue;
        };
        let length = LENGTHS[best];
        let next = trial(length);
        let (next_value, next_slope) = slope_at(likelihoods, &next, scales)?;
        let moved: Vec<f64> = direction.iter().map(|d| d * length).collect();
        let change: Vec<f64> = slope.iter().zip(&next_slope).map(|(old, new)| old - new).collect();
        update(&mut inverse, &moved, &change);
        (point, value, slope, fresh) = (next, next_value, next_slope, false);
    }
    Err(Error::NotConverged { iterations: limits.iterations_max })
}

fn identity(size: usize) -> Vec<Vec<f64>> {
    (0..size).map(|i| (0..size).map(|j| f64::from(u8::from(i == j))).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The BFGS formula, unless the curvature along the step is not that of a maximum.
fn update(inverse: &mut [Vec<f64>], moved: &[f64], change: &[f64]) {
    let along = dot(moved, change);
    if along <= 1e-12 * dot(moved, moved) {
        return;
    }
    let through: Vec<f64> = inverse.iter().map(|row| dot(row, change)).collect();
    let factor = (1.0 + dot(change, &through) / along) / along;
    for (i, row) in inverse.iter_mut().enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            *value += factor * moved[i] * moved[j]
                - (through[i] * moved[j] + moved[i] * through[j]) / along;
        }
    }
}

fn shifted(point: &[f64], scales: &[f64], by: &[(usize, f64)]) -> Vec<f64> {
    let mut shifted = point.to_vec();
    by.iter().for_each(|&(i, step)| shifted[i] += step * scales[i]);
    shifted
}

/// The value and the slope, in units of `scales`.
fn slope_at(
    likelihoods: &mut Likelihoods<'_>,
    point: &[f64],
    scales: &[f64],
) -> Result<(f64, Vec<f64>)> {
    let mut points = vec![point.to_vec()];
    for i in 0..point.len() {
        points.push(shifted(point, scales, &[(i, SLOPE_STEP)]));
        points.push(shifted(point, scales, &[(i, -SLOPE_STEP)]));
    }
    let values = likelihoods(&points)?;
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Error::NotConverged { iterations: 0 });
    }
    let slope =
        values[1..].chunks(2).map(|pair| (pair[0] - pair[1]) / (2.0 * SLOPE_STEP)).collect();
    Ok((values[0], slope))
}

impl Maximum {
    /// Covariances of the estimates: the inverse of the curvature. `None` if the likelihood is flat or
    /// on the edge of what is possible.
    ///
    /// # Errors
    /// Those of `likelihoods`.
    pub fn covariances(&self, likelihoods: &mut Likelihoods<'_>) -> Result<Option<Symmetric>> {
        let (size, h) = (self.point.len(), CURVATURE_STEP);
        let mut points = vec![self.point.clone()];
        for i in 0..size {
            for j in 0..=i {
                for (a, b) in [(h, h), (h, -h), (-h, h), (-h, -h)] {
                    points.push(shifted(&self.point, &self.scales, &[(i, a), (j, b)]));
                }
            }
        }
        let values = likelihoods(&points)?;
        let mut information = Symmetric::zeros(size);
        let mut four = values[1..].chunks(4);
        for i in 0..size {
            for j in 0..=i {
                let Some(&[pp, pm, mp, mm]) = four.next() else { return Ok(None) };
                *information.at_mut(i, j) = -(pp - pm - mp + mm) / (4.0 * h * h);
            }
        }
        let Some(factor) = information.factor() else { return Ok(None) };
        let mut covariances = factor.inverse();
        for i in 0..size {
            for j in 0..=i {
                *covariances.at_mut(i, j) *= self.scales[i] * self.scales[j];
            }
        }
        Ok(Some(covariances))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curved_valley_is_followed_to_its_end() {
        // Rosenbrock's function upside down, with its maximum at (1, 1).
        let mut rosenbrock = |points: &[Vec<f64>]| {
            Ok(points
                .iter()
                .map(|p| -((1.0 - p[0]).powi(2) + 100.0 * (p[1] - p[0] * p[0]).powi(2)))
                .collect())
        };
        let limits = Limits { iterations_max: 500, tolerance: 1e-7 };
        let found = maximise(&mut rosenbrock, vec![-1.2, 1.0], &[0.1, 0.1], limits).unwrap();
        assert!((found.point[0] - 1.0).abs() < 1e-5 && (found.point[1] - 1.0).abs() < 1e-5);
        // The inverse of its curvature there is known.
        let covariances = found.covariances(&mut rosenbrock).unwrap().unwrap();
        assert!((covariances.at(0, 0) - 0.5).abs() < 0.01, "{covariances:?}");
        let few = Limits { iterations_max: 3, ..limits };
        let result = maximise(&mut rosenbrock, vec![-1.2, 1.0], &[0.1, 0.1], few);
        assert!(matches!(result, Err(Error::NotConverged { iterations: 3 })));
    }
}

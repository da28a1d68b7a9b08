//! Searches for the least of a function: Nelder and Mead's simplex for a few parameters with a poor
//! start, Levenberg and Marquardt's damped Gauss-Newton steps for sums of squares near their least.

/// Where a search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// The parameters.
    pub at: Vec<f64>,
    /// The function there.
    pub value: f64,
    /// How often the function was evaluated.
    pub evaluations: u64,
}

/// A simplex whose values differ by less than this part of their size has arrived.
const SIMPLEX_TOLERANCE: f64 = 1e-9;
/// Steps of Levenberg-Marquardt that a fit may take.
const STEPS_MAX: usize = 200;
/// A step that gains less than this part of the sum of squares is the last.
const GAIN_MIN: f64 = 1e-12;
/// Damping at which no step is found any more.
const DAMPING_MAX: f64 = 1e12;

/// The downhill simplex of J. A. Nelder and R. Mead ("A simplex method for function minimization",
/// Computer Journal 7, 1965) from `start` with edges of `edge`, for at most `evaluations_max`
/// evaluations. The function may return infinity where it is not defined, but not at `start`.
pub fn nelder_mead(
    start: &[f64],
    edge: f64,
    evaluations_max: u64,
    objective: &mut dyn FnMut(&[f64]) -> f64,
) -> Minimum {
    let n = start.len();
    let mut evaluations = 0;
    let mut value = |at: &[f64]| {
        evaluations += 1;
        let value = objective(at);
        if value.is_nan() { f64::INFINITY } else { value }
    };
    let mut simplex: Vec<(f64, Vec<f64>)> = (0..=n)
        .map(|i| {
            let mut at = start.to_vec();
            if i > 0 {
                at[i - 1] += edge;
            }
            (value(&at), at)
        })
        .collect();
    let mut used = n as u64 + 1;
    let by_value = |a: &(f64, Vec<f64>), b: &(f64, Vec<f64>)| a.0.total_cmp(&b.0);
    simplex.sort_by(by_value);
    let mut trial = vec![0.0; n];
    let mut centre = vec![0.0; n];
    while n > 0 && used < evaluations_max {
        let (best, worst) = (simplex[0].0, simplex[n].0);
        if worst - best <= SIMPLEX_TOLERANCE * best.abs().max(f64::MIN_POSITIVE) {
            break;
        }
        for (i, centre) in centre.iter_mut().enumerate() {
            *centre = simplex[..n].iter().map(|(_, at)| at[i]).sum::<f64>() / n as f64;
        }
        let mut attempt = |factor: f64, worst: &[f64], trial: &mut Vec<f64>| {
            for ((trial, &centre), &worst) in trial.iter_mut().zip(&centre).zip(worst) {
                *trial = centre + factor * (worst - centre);
            }
            used += 1;
            value(trial)
        };
        let reflected = attempt(-1.0, &simplex[n].1, &mut trial);
        let mut kept = trial.clone();
        let mut kept_value = reflected;
        if reflected < best {
            let expanded = attempt(-2.0, &simplex[n].1, &mut trial);
            if expanded < reflected {
                (kept_value, kept) = (expanded, trial.clone());
            }
        } else if reflected >= simplex[n - 1].0 {
            let factor = if reflected < worst { -0.5 } else { 0.5 };
            let contracted = attempt(factor, &simplex[n].1, &mut trial);
            if contracted < reflected.min(worst) {
                (kept_value, kept) = (contracted, trial.clone());
            } else {
                let (best, others) = simplex.split_at_mut(1);
                for (vertex_value, at) in others {
                    for (at, &best) in at.iter_mut().zip(&best[0].1) {
                        *at = 0.5 * (*at + best);
                    }
                    *vertex_value = value(at);
                    used += 1;
                }
                simplex.sort_by(by_value);
                continue;
            }
        }
        simplex[n] = (kept_value, kept);
        simplex.sort_by(by_value);
    }
    let (least, at) = simplex.swap_remove(0);
    Minimum { at, value: least, evaluations }
}

/// Finds the least sum of squares of `residuals` residuals near `start` (K. Levenberg 1944, D. W.
/// Marquardt 1963), with derivatives by forward differences. `compute` fills the residuals and
/// returns their sum of squares, infinity where they are not defined.
pub(super) fn levenberg_marquardt(
    start: &[f64],
    residuals: usize,
    compute: &mut dyn FnMut(&[f64], &mut [f64]) -> f64,
) -> Minimum {
    let n = start.len();
    let mut at = start.to_vec();
    let mut here = vec![0.0; residuals];
    let mut evaluations = 1;
    let mut value = compute(&at, &mut here);
    if !value.is_finite() || n == 0 {
        return Minimum { at, value, evaluations };
    }
    // The derivatives, one parameter after another.
    let mut slopes = vec![0.0; n * residuals];
    let mut shifted = vec![0.0; residuals];
    let mut damping = 1e-3;
    for _ in 0..STEPS_MAX {
        for i in 0..n {
            let old = at[i];
            let h = 1e-7 * old.abs().max(1e-2);
            at[i] = old + h;
            let defined = compute(&at, &mut shifted).is_finite();
            at[i] = old;
            let slope = &mut slopes[i * residuals..(i + 1) * residuals];
            for ((slope, &there), &here) in slope.iter_mut().zip(&shifted).zip(&here) {
                *slope = if defined { (there - here) / h } else { 0.0 };
            }
        }
        evaluations += n as u64;
        let (normal, gradient) = normal_equations(&slopes, &here, n);
        let mut gain = 0.0;
        while damping < DAMPING_MAX {
            let Some(step) = damped_step(&normal, &gradient, damping) else {
                damping *= 10.0;
                continue;
            };
            let trial: Vec<f64> = at.iter().zip(&step).map(|(at, step)| at - step).collect();
            let there = compute(&trial, &mut shifted);
            evaluations += 1;
            if there < value {
                gain = (value - there) / value;
                (at, value) = (trial, there);
                std::mem::swap(&mut here, &mut shifted);
                damping = (damping * 0.1).max(1e-12);
                break;
            }
            damping *= 10.0;
        }
        if gain < GAIN_MIN || value == 0.0 {
            break;
        }
    }
    Minimum { at, value, evaluations }
}

/// `J'J`, its lower triangle row by row, and `J'r`.
fn normal_equations(slopes: &[f64], residuals: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let column = |i: usize| &slopes[i * residuals.len()..(i + 1) * residuals.len()];
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let normal = (0..n).flat_map(|i| (0..=i).map(move |j| (i, j)));
    let normal = normal.map(|(i, j)| product(column(i), column(j))).collect();
    (normal, (0..n).map(|i| product(column(i), residuals)).collect())
}

/// Solves `(N + damping * diag N) x = g` by Cholesky; `None` if that is not positive definite. Small
/// and called for every step of every fit, which is why it is written out here.
fn damped_step(normal: &[f64], gradient: &[f64], damping: f64) -> Option<Vec<f64>> {
    let n = gradient.len();
    let row = |i: usize| i * (i + 1) / 2;
    let largest = (0..n).map(|i| normal[row(i) + i]).fold(0.0, f64::max);
    let mut factor = normal.to_vec();
    let mut x = gradient.to_vec();
    for i in 0..n {
        // A parameter without effect stays where it is.
        factor[row(i) + i] += damping * normal[row(i) + i] + largest * 1e-15;
        for j in 0..=i {
            let (before, after) = factor.split_at(row(i));
            let other = if i == j { &after[..j] } else { &before[row(j)..row(j) + j] };
            let dot: f64 = after[..j].iter().zip(other).map(|(a, b)| a * b).sum();
            let rest = factor[row(i) + j] - dot;
            factor[row(i) + j] = if i == j {
                if rest <= 0.0 || !rest.is_finite() {
                    return None;
                }
                rest.sqrt()
            } else {
                rest / factor[row(j) + j]
            };
        }
        let dot: f64 = (0..i).map(|j| factor[row(i) + j] * x[j]).sum();
        x[i] = (x[i] - dot) / factor[row(i) + i];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|j| factor[row(j) + i] * x[j]).sum();
        x[i] = (x[i] - dot) / factor[row(i) + i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Least 0 at (1, 1), in a curved valley (H. H. Rosenbrock, Computer Journal 3, 1960).
    fn rosenbrock(x: &[f64]) -> [f64; 2] {
        [10.0 * (x[1] - x[0] * x[0]), 1.0 - x[0]]
    }

    #[test]
    fn both_searches_find_the_end_of_the_valley() {
        let start = [-1.2, 1.0];
        let simplex =
            nelder_mead(&start, 0.5, 1000, &mut |x| rosenbrock(x).iter().map(|r| r * r).sum());
        let steps = levenberg_marquardt(&start, 2, &mut |x, residuals| {
            residuals.copy_from_slice(&rosenbrock(x));
            residuals.iter().map(|r| r * r).sum()
        });
        for found in [simplex, steps] {
            assert!(found.value < 1e-8, "{found:?}");
            assert!(found.at.iter().all(|x| (x - 1.0).abs() < 1e-3), "{found:?}");
            assert!(found.evaluations < 500);
        }
    }

    #[test]
    fn a_parameter_without_effect_stops_no_search() {
        let found = levenberg_marquardt(&[3.0, 7.0], 2, &mut |x, residuals| {
            residuals.copy_from_slice(&[x[0] - 1.0, 2.0 * (x[0] - 1.0)]);
            residuals.iter().map(|r| r * r).sum()
        });
        assert!((found.at[0] - 1.0).abs() < 1e-6 && found.at[1] == 7.0, "{found:?}");
    }
}

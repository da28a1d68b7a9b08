//! Where a fit starts: initial states from the first values (Hyndman et al. 2008, section 2.6.1).

use super::model::{Model, Parameters, SeasonKind, Series, TrendKind};

/// Values after the season is taken out that the first level and slope are taken from.
const LEVEL_VALUES: usize = 10;
/// Seasons that the first season is taken from.
const SEASONS: usize = 4;
/// The least factor of a season at the start.
const FACTOR_MIN: f64 = 0.01;

/// The states that `series` starts from, with smoothing parameters that suit most series.
pub(super) fn start(model: Model, series: &Series<'_>) -> Parameters {
    let coefficients = difference_regression(series);
    let mut values: Vec<f64> = (0..series.values.len())
        .map(|t| series.values[t] - series.explained(&coefficients, t))
        .collect();
    interpolate(&mut values);
    let season = first_season(model.season, series.season_length, &values);
    for (t, value) in values.iter_mut().enumerate() {
        match model.season {
            SeasonKind::None => {}
            SeasonKind::Additive => *value -= season[t % season.len()],
            SeasonKind::Multiplicative => *value /= season[t % season.len()],
        }
    }
    let first = &values[..values.len().min(LEVEL_VALUES.max(2 * season.len()))];
    let (level, slope) = line(first);
    let (level, trend) = match model.trend {
        TrendKind::None => (first.iter().sum::<f64>() / first.len() as f64, 0.0),
        TrendKind::Additive | TrendKind::Damped => (level, slope),
    };
    let (alpha, beta, phi) = match model.trend {
        TrendKind::None => (0.3, 0.0, 1.0),
        TrendKind::Additive => (0.3, 0.03, 1.0),
        TrendKind::Damped => (0.3, 0.03, 0.95),
    };
    let gamma = if season.is_empty() { 0.0 } else { 0.07 };
    Parameters { alpha, beta, gamma, phi, level, trend, season, coefficients }
}

/// Puts values between neighbours in the place of missing ones.
pub(crate) fn interpolate(values: &mut [f64]) {
    let mut before: Option<usize> = None;
    for t in 0..values.len() {
        if values[t].is_nan() {
            continue;
        }
        let from = before.map_or(0, |before| before + 1);
        let left = before.map_or(values[t], |before| values[before]);
        for gap in from..t {
            let part = (gap + 1 - from) as f64 / (t + 1 - from) as f64;
            values[gap] = left + part * (values[t] - left);
        }
        before = Some(t);
    }
    let last = before.map_or(0.0, |before| values[before]);
    values[before.map_or(0, |before| before + 1)..].fill(last);
}

/// Coefficients from changes of the values on changes of the regressors, which neither level nor
/// trend disturb; ridged a little, so that a constant column gets zero.
fn difference_regression(series: &Series<'_>) -> Vec<f64> {
    let columns = series.regressors.len();
    let mut normal = vec![0.0; columns * columns];
    let mut right = vec![0.0; columns];
    for t in 1..series.values.len() {
        let change = series.values[t] - series.values[t - 1];
        if change.is_nan() {
            continue;
        }
        for (i, a) in series.regressors.iter().enumerate() {
            let a = a[t] - a[t - 1];
            right[i] += a * change;
            for (j, b) in series.regressors.iter().enumerate() {
                normal[i * columns + j] += a * (b[t] - b[t - 1]);
            }
        }
    }
    solve_by_sweeps(&normal, &right)
}

/// A rough solution of positive semidefinite equations by Gauss-Seidel sweeps: a start needs no more.
fn solve_by_sweeps(normal: &[f64], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut x = vec![0.0; n];
    for _ in 0..50 {
        for i in 0..n {
            let diagonal = normal[i * n + i];
            let others: f64 = (0..n).filter(|&j| j != i).map(|j| normal[i * n + j] * x[j]).sum();
            x[i] = if diagonal > 0.0 { (right[i] - others) / diagonal } else { 0.0 };
        }
    }
    x
}

/// Mean distances (or ratios) of the first seasons to a moving average of one season's length.
fn first_season(kind: SeasonKind, length: usize, values: &[f64]) -> Vec<f64> {
    if kind == SeasonKind::None {
        return Vec::new();
    }
    let values = &values[..values.len().min(SEASONS * length)];
    let half = length / 2;
    let (mut sums, mut counts) = (vec![0.0; length], vec![0.0; length]);
    for t in half..values.len().saturating_sub(half) {
        let window = &values[t - half..=t + half];
        let mut average: f64 = window.iter().sum();
        if length.is_multiple_of(2) {
            average -= 0.5 * (window[0] + window[window.len() - 1]);
        }
        average /= length as f64;
        sums[t % length] += match kind {
            SeasonKind::None | SeasonKind::Additive => values[t] - average,
            SeasonKind::Multiplicative => values[t] / average,
        };
        counts[t % length] += 1.0;
    }
    let neutral = if kind == SeasonKind::Multiplicative { 1.0 } else { 0.0 };
    let mut season: Vec<f64> = sums
        .iter()
        .zip(&counts)
        .map(|(sum, &count)| if count > 0.0 { sum / count } else { neutral })
        .collect();
    let mean = season.iter().sum::<f64>() / length as f64;
    for season in &mut season {
        match kind {
            SeasonKind::None | SeasonKind::Additive => *season -= mean,
            SeasonKind::Multiplicative => *season = (*season / mean).max(FACTOR_MIN),
        }
    }
    season
}

/// Level before the first value and slope of the straight line through `values`.
fn line(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let (middle, mean) = ((n + 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let (mut products, mut squares) = (0.0, 0.0);
    for (t, value) in values.iter().enumerate() {
        let from_middle = (t + 1) as f64 - middle;
        products += from_middle * (value - mean);
        squares += from_middle * from_middle;
    }
    let slope = if squares > 0.0 { products / squares } else { 0.0 };
    (mean - slope * middle, slope)
}

#[cfg(test)]
mod tests {
    use super::super::model::ErrorKind;
    use super::*;

    #[test]
    fn gaps_are_filled_between_neighbours() {
        let nan = f64::NAN;
        let mut values = [nan, 1.0, nan, nan, 4.0, nan];
        interpolate(&mut values);
        assert_eq!(values, [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
    }

    #[test]
    fn a_line_with_a_season_is_taken_apart() {
        let season = [3.0, -1.0, 0.0, -2.0];
        let values: Vec<f64> =
            (0..16).map(|t| 10.0 + 0.5 * (t + 1) as f64 + season[t % 4]).collect();
        let model = Model {
            error: ErrorKind::Additive,
            trend: TrendKind::Additive,
            season: SeasonKind::Additive,
        };
        let found = start(model, &Series { values: &values, season_length: 4, regressors: &[] });
        assert!((found.level - 10.0).abs() < 1e-9 && (found.trend - 0.5).abs() < 1e-9, "{found:?}");
        for (found, season) in found.season.iter().zip(season) {
            assert!((found - season).abs() < 1e-9);
        }
    }
}

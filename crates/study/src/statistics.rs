//! Medians, quantiles and spread of a few measurements.
//!
//! Quantiles are those of type 7 of R. J. Hyndman and Y. Fan, The American Statistician 50, 1996: straight
//! lines between the sorted values, the least at 0 and the greatest at 1. Values that are no numbers are
//! left out everywhere.

use serde::Serialize;

/// What several measurements of one thing come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// How many there are, at least one.
    pub count: usize,
    /// The least.
    pub min: f64,
    /// A quarter lies below.
    pub lower_quartile: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// A quarter lies above.
    pub upper_quartile: f64,
    /// The greatest.
    pub max: f64,
    /// Median absolute deviation: the median of the distances from the median, not scaled.
    pub mad: f64,
}

impl Spread {
    /// Of at least one value; `None` of none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let sorted = sorted(values);
        let at = |part| quantile_of_sorted(&sorted, part);
        let median = at(0.5)?;
        let distances = self::sorted(sorted.iter().map(|value| (value - median).abs()));
        Some(Spread {
            count: sorted.len(),
            min: at(0.0)?,
            lower_quartile: at(0.25)?,
            median,
            upper_quartile: at(0.75)?,
            max: at(1.0)?,
            mad: quantile_of_sorted(&distances, 0.5)?,
        })
    }
}

impl Spread {
    /// Of values with weights, such as the seconds that a rate was held: a part of the weight lies at or
    /// below each quantile. The median is [`weighted_median`]. `None` without weight.
    #[must_use]
    pub fn of_weighted(values: impl IntoIterator<Item = (f64, f64)>) -> Option<Spread> {
        let sorted = sorted_by_weight(values);
        let median = weighted_quantile(&sorted, 0.5)?;
        let distances = sorted.iter().map(|(value, weight)| ((value - median).abs(), *weight));
        Some(Spread {
            count: sorted.len(),
            min: sorted.first()?.0,
            lower_quartile: weighted_quantile(&sorted, 0.25)?,
            median,
            upper_quartile: weighted_quantile(&sorted, 0.75)?,
            max: sorted.last()?.0,
            mad: weighted_median(distances)?,
        })
    }
}

/// The value below which `part` (0 to 1) of the values lie; `None` of no values.
#[must_use]
pub fn quantile(values: impl IntoIterator<Item = f64>, part: f64) -> Option<f64> {
    quantile_of_sorted(&sorted(values), part)
}

/// The median; `None` of no values.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The median of values with weights: half of the weight lies at or below it and half at or above; in
/// the middle of two such values if there are two. Weights that are not above zero do not count.
#[must_use]
pub fn weighted_median(values: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    weighted_quantile(&sorted_by_weight(values), 0.5)
}

/// Values that have weight, in order.
fn sorted_by_weight(values: impl IntoIterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut sorted: Vec<(f64, f64)> = values
        .into_iter()
        .filter(|(value, weight)| !value.is_nan() && *weight > 0.0 && weight.is_finite())
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    sorted
}

/// The value at or below which `part` of the weight lies; in the middle of two if both are such.
fn weighted_quantile(sorted: &[(f64, f64)], part: f64) -> Option<f64> {
    let wanted = sorted.iter().map(|(_, weight)| weight).sum::<f64>() * part;
    let mut below = 0.0;
    for (place, &(value, weight)) in sorted.iter().enumerate() {
        below += weight;
        // Sums of weights such as 0.1 meet the part only nearly.
        if (below - wanted).abs() <= wanted * 1e-9 {
            let next = sorted.get(place + 1).map_or(value, |next| next.0);
            return Some(f64::midpoint(value, next));
        }
        if below > wanted {
            return Some(value);
        }
    }
    sorted.last().map(|last| last.0)
}

/// The mean of values with weights; `None` without weight.
#[must_use]
pub fn weighted_mean(values: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let (sum, weights) = values
        .into_iter()
        .filter(|(value, weight)| value.is_finite() && *weight > 0.0)
        .fold((0.0, 0.0), |(sum, all), (value, weight)| (sum + value * weight, all + weight));
    ratio(sum, weights)
}

/// The sum, from the least to the greatest value, so that the order of the values does not change it.
#[must_use]
pub fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    sorted(values).iter().sum()
}

/// `a / b`; `None` if `b` is not above zero or the result is no finite number.
#[must_use]
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b).filter(|ratio| ratio.is_finite())
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn quantile_of_sorted(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = part.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    // Not `low + (high - low) * part`, which leaves the interval by rounding.
    let between = place - below as f64;
    Some(if between == 0.0 || low == high { low } else { low * (1.0 - between) + high * between })
}

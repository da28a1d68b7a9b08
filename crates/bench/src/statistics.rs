//! Medians and spread.

use serde::Serialize;

/// What several measurements of one thing come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Summary {
    /// Of at least one sample; `None` of none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Summary { median, min, max })
    }

    /// Of the ratios `samples[i] / base[i]`, one for each round that has both.
    #[must_use]
    pub fn of_ratios(samples: &[f64], base: &[f64]) -> Option<Summary> {
        let ratios: Vec<f64> = samples
            .iter()
            .zip(base)
            .filter(|(_, base)| **base > 0.0)
            .map(|(sample, base)| sample / base)
            .collect();
        Summary::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(
            Summary::of(&[3.0, 1.0, 2.0]),
            Some(Summary { median: 2.0, min: 1.0, max: 3.0 })
        );
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // Each round is twice as fast although the machine got slower.
        let ratios = Summary::of_ratios(&[20.0, 10.0, 2.0], &[10.0, 5.0, 1.0]).unwrap();
        assert_eq!(ratios, Summary { median: 2.0, min: 2.0, max: 2.0 });
    }

    #[test]
    fn a_round_without_a_base_has_no_ratio() {
        assert_eq!(Summary::of_ratios(&[1.0], &[0.0]), None);
        assert_eq!(Summary::of_ratios(&[1.0, 2.0], &[1.0]).unwrap().max, 1.0);
    }
}

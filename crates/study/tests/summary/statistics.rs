//! Medians, quantiles and spread.

use forebay_study::statistics::{Spread, median, quantile, ratio, weighted_mean, weighted_median};

/// Python's `statistics.quantiles(values, n=20, method="inclusive")`, which is type 7; the MAD by hand.
#[test]
fn quantiles_are_those_of_type_7() {
    let values = [13.0, 2.0, 8.0, 21.0, 5.0, 3.0];
    for (part, expected) in
        [(0.0, 2.0), (0.25, 3.5), (0.5, 6.5), (0.75, 11.75), (0.95, 19.0), (1.0, 21.0)]
    {
        let found = quantile(values, part).unwrap();
        assert!((found - expected).abs() < 1e-12, "{part}: {found}");
    }
    let spread = Spread::of(values).unwrap();
    assert_eq!((spread.count, spread.min, spread.median, spread.max), (6, 2.0, 6.5, 21.0));
    assert_eq!((spread.lower_quartile, spread.upper_quartile, spread.mad), (3.5, 11.75, 4.0));
}

#[test]
fn few_values_have_a_spread_too() {
    assert_eq!(Spread::of([]), None);
    assert_eq!(median([]), None);
    let one = Spread::of([7.0, f64::NAN]).unwrap();
    assert_eq!((one.count, one.min, one.median, one.max, one.mad), (1, 7.0, 7.0, 7.0, 0.0));
}

#[test]
fn a_weighted_median_halves_the_weight() {
    assert_eq!(weighted_median([]), None);
    assert_eq!(weighted_median([(1.0, 0.0)]), None);
    assert_eq!(weighted_median([(5.0, 1.0), (1.0, 1.0), (3.0, 3.0)]), Some(3.0));
    assert_eq!(weighted_median([(1.0, 1.0), (2.0, 1.0), (9.0, 1.0), (10.0, 1.0)]), Some(5.5));
    // As if the first value were there three times.
    assert_eq!(weighted_median([(1.0, 3.0), (2.0, 1.0), (9.0, 1.0)]), Some(1.0));
    // Ten times a tenth is not quite one.
    assert_eq!(weighted_median((0..10).map(|value| (f64::from(value), 0.1))), Some(4.5));
}

#[test]
fn ratios_without_a_base_are_unknown() {
    assert_eq!(ratio(1.0, 0.0), None);
    assert_eq!(ratio(f64::NAN, 1.0), None);
    assert_eq!(ratio(3.0, 2.0), Some(1.5));
    assert_eq!(weighted_mean([(1.0, 1.0), (4.0, 2.0)]), Some(3.0));
    assert_eq!(weighted_mean([(1.0, 0.0)]), None);
}

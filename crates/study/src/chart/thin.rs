//! Long series made short without losing what the eye looks for.

/// What a stretch of a series comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// Where it begins and ends.
    pub ends: (f64, f64),
    /// The least value in it.
    pub least: f64,
    /// The mean of its values.
    pub mean: f64,
    /// The greatest.
    pub greatest: f64,
}

/// `count` stretches of `points`, which ascend in x, with their extremes: no peak or dip disappears.
/// Fewer if there are not as many points.
#[must_use]
pub fn envelope(points: &[(f64, f64)], count: usize) -> Vec<Stretch> {
    stretches(points.len(), count.min(points.len()))
        .map(|stretch| {
            let part = &points[stretch];
            let values = || part.iter().map(|point| point.1);
            Stretch {
                ends: (part[0].0, part[part.len() - 1].0),
                least: values().fold(f64::INFINITY, f64::min),
                mean: values().sum::<f64>() / part.len() as f64,
                greatest: values().fold(f64::NEG_INFINITY, f64::max),
            }
        })
        .collect()
}

/// Means over equal stretches, at most `points_max`: for stacks, whose layers must still add up.
/// `columns` are the layers' values at the places `xs`; what is returned has the same shape.
#[must_use]
pub fn average(xs: &[f64], columns: &[Vec<f64>], points_max: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    if xs.len() <= points_max {
        return (xs.to_vec(), columns.to_vec());
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let of = |values: &[f64]| {
        stretches(xs.len(), points_max).map(|stretch| mean(&values[stretch])).collect()
    };
    (of(xs), columns.iter().map(|column| of(column)).collect())
}

/// `count` stretches, none empty, that cover `0..length`; `count` must not be above `length`.
fn stretches(length: usize, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..count).map(move |i| i * length / count..(i + 1) * length / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_peak_and_a_single_dip_among_thousands_are_kept() {
        let mut points: Vec<(f64, f64)> = (0..86_400).map(|i| (f64::from(i), 10.0)).collect();
        points[12_345].1 = 999.0;
        points[54_321].1 = -3.0;
        let kept = envelope(&points, 240);
        assert_eq!(kept.len(), 240);
        let holding = |at: f64| kept.iter().find(|s| s.ends.0 <= at && at <= s.ends.1).unwrap();
        assert_eq!(holding(12_345.0).greatest, 999.0);
        assert_eq!(holding(54_321.0).least, -3.0);
        assert_eq!((kept[0].ends.0, kept[239].ends.1), (0.0, 86_399.0));
        // 86,398 tens, 999 and -3, in stretches of 360.
        let sum: f64 = kept.iter().map(|stretch| stretch.mean * 360.0).sum();
        assert!((sum - 864_976.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn a_stretch_holds_a_point_at_least() {
        let kept = envelope(&[(0.0, 1.0), (1.0, 5.0)], 240);
        assert_eq!(kept.iter().map(|stretch| stretch.mean).collect::<Vec<_>>(), [1.0, 5.0]);
        assert!(envelope(&[], 240).is_empty());
    }

    #[test]
    fn averaged_layers_still_add_up_to_the_whole() {
        let xs: Vec<f64> = (0..5003).map(f64::from).collect();
        let user: Vec<f64> = (0..5003).map(|i| f64::from(i % 7) / 10.0).collect();
        let rest: Vec<f64> = user.iter().map(|share| 1.0 - share).collect();
        let (places, layers) = average(&xs, &[user, rest], 500);
        assert_eq!((places.len(), layers[0].len(), layers[1].len()), (500, 500, 500));
        for (user, rest) in layers[0].iter().zip(&layers[1]) {
            assert!((user + rest - 1.0).abs() < 1e-12);
        }
    }
}

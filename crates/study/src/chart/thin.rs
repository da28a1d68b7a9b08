//! Long series made short without losing what the eye looks for.

/// At most `points_max` of `points`, which ascend in x: of each of equal stretches of the axis the first
/// point, the lowest, the highest and the last, so that no peak or dip disappears.
///
/// # Panics
/// If `points_max` is below 4.
#[must_use]
pub fn keep_extremes(points: &[(f64, f64)], points_max: usize) -> Vec<(f64, f64)> {
    assert!(points_max >= 4, "a stretch needs four points");
    if points.len() <= points_max {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(points_max);
    for stretch in stretches(points.len(), points_max / 4) {
        let part = &points[stretch];
        let lowest = (0..part.len()).min_by(|&a, &b| part[a].1.total_cmp(&part[b].1));
        let highest = (0..part.len()).max_by(|&a, &b| part[a].1.total_cmp(&part[b].1));
        let mut places = [0, lowest.unwrap_or(0), highest.unwrap_or(0), part.len() - 1];
        places.sort_unstable();
        for (i, &place) in places.iter().enumerate() {
            if i == 0 || places[i - 1] != place {
                kept.push(part[place]);
            }
        }
    }
    kept
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
        let kept = keep_extremes(&points, 1000);
        assert!(kept.len() <= 1000, "{}", kept.len());
        assert!(kept.contains(&(12_345.0, 999.0)));
        assert!(kept.contains(&(54_321.0, -3.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[86_399]));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0), "ascending, nothing twice");
    }

    #[test]
    fn short_series_are_left_alone() {
        let points = [(0.0, 1.0), (1.0, 5.0), (2.0, 0.0)];
        assert_eq!(keep_extremes(&points, 4), points);
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

//! Gauss-Hermite quadrature.

/// The most points.
pub(crate) const POINTS_MAX: usize = 50;

/// Points `x` and `ln (w exp(x^2))` of their weights, such that the integral of `f` is about the sum of
/// `w exp(x^2) f(x)`: roots of the Hermite polynomial by Newton's method from the known asymptotic
/// starts (W. H. Press et al., "Numerical Recipes", 2nd edition, 1992, 4.5, in normalised polynomials).
pub(crate) fn gauss_hermite(points: usize) -> Vec<(f64, f64)> {
    let n = points as f64;
    let mut roots: Vec<(f64, f64)> = Vec::with_capacity(points);
    let half = points.div_ceil(2);
    let mut x = 0.0;
    for i in 0..half {
        x = match i {
            0 => (2.0 * n + 1.0).sqrt() - 1.855_75 * (2.0 * n + 1.0).powf(-1.0 / 6.0),
            1 => x - 1.14 * n.powf(0.426) / x,
            2 => 1.86 * x - 0.86 * roots[0].0,
            3 => 1.91 * x - 0.91 * roots[1].0,
            _ => 2.0 * x - roots[i - 2].0,
        };
        let mut derivative = 0.0;
        for _ in 0..100 {
            let (mut p, mut before) = (std::f64::consts::PI.powf(-0.25), 0.0);
            for j in 0..points {
                let k = j as f64 + 1.0;
                let next = x * (2.0 / k).sqrt() * p - ((k - 1.0) / k).sqrt() * before;
                (before, p) = (p, next);
            }
            derivative = (2.0 * n).sqrt() * before;
            let step = p / derivative;
            x -= step;
            if step.abs() <= 1e-15 * (1.0 + x.abs()) {
                break;
            }
        }
        if points % 2 == 1 && i == half - 1 {
            x = 0.0;
        }
        roots.push((x, std::f64::consts::LN_2 - 2.0 * derivative.abs().ln() + x * x));
    }
    let mirrored: Vec<_> = roots.iter().take(points / 2).map(|&(x, w)| (-x, w)).collect();
    roots.extend(mirrored);
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_the_normal_distribution_are_exact() {
        for points in [1, 2, 3, 5, 7, 20, POINTS_MAX] {
            let moment = |power: i32| -> f64 {
                let nodes = gauss_hermite(points);
                assert_eq!(nodes.len(), points);
                let sum: f64 = nodes.iter().map(|(x, w)| (w - x * x).exp() * x.powi(power)).sum();
                sum / std::f64::consts::PI.sqrt()
            };
            assert!((moment(0) - 1.0).abs() < 1e-12, "{points}");
            assert!(moment(3).abs() < 1e-12, "{points}");
            if points > 1 {
                assert!((moment(2) - 0.5).abs() < 1e-12, "{points}");
            }
            if points > 3 {
                assert!((moment(6) - 15.0 / 8.0).abs() < 1e-11, "{points}");
            }
        }
    }
}

//! The likelihood of a group with its random effect integrated out.
//!
//! Adaptive Gauss-Hermite quadrature (J. C. Pinheiro, D. M. Bates, "Approximations to the
//! log-likelihood function in the nonlinear mixed-effects model", Journal of Computational and
//! Graphical Statistics 4, 1995): points are laid about the mode of the integrand, as wide as its
//! curvature there says. With one point that is Laplace's approximation.

/// A log likelihood given the random effect, with its slope and (negative) curvature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub value: f64,
    pub slope: f64,
    /// Minus the second derivative, or what stands for it; not negative.
    pub curvature: f64,
}

/// `ln` of the integral of `exp(given(u))` over a standard normal `u`. `given` is asked for slopes on
/// the way to the mode; `value` alone at the points.
pub(crate) fn log_integral(nodes: &[(f64, f64)], mut given: impl FnMut(f64) -> Given) -> f64 {
    let mut mode = 0.0_f64;
    let mut at = given(mode);
    for _ in 0..100 {
        let curvature = at.curvature + 1.0;
        let slope = at.slope - mode;
        let mut step = slope / curvature;
        if !step.is_finite() {
            return f64::NAN;
        }
        let now = at.value - mode * mode / 2.0;
        let mut next = given(mode + step);
        // Halved until uphill; the last few digits are rounding.
        while step.abs() > 1e-12 {
            let there = next.value - (mode + step).powi(2) / 2.0;
            if there >= now - 1e-12 * now.abs() {
                break;
            }
            step /= 2.0;
            next = given(mode + step);
        }
        mode += step;
        at = next;
        if step.abs() <= 1e-10 * (1.0 + mode.abs()) {
            break;
        }
    }
    let width = (2.0 / (at.curvature + 1.0)).sqrt();
    // Summed about the value at the mode, so that nothing underflows.
    let top = at.value - mode * mode / 2.0;
    let sum: f64 = nodes
        .iter()
        .map(|&(x, log_weight)| {
            let u = mode + width * x;
            (log_weight + given(u).value - u * u / 2.0 - top).exp()
        })
        .sum();
    top + (sum * width).ln() - std::f64::consts::TAU.ln() / 2.0
}

#[cfg(test)]
mod tests {
    use super::super::quadrature::gauss_hermite;
    use super::*;

    #[test]
    fn a_normal_likelihood_is_integrated_exactly_by_any_number_of_points() {
        // y | u ~ N(2 u, 3^2), so y ~ N(0, 13).
        let given = |u: f64| {
            let residual = (5.0 - 2.0 * u) / 3.0;
            let value = -residual * residual / 2.0 - (std::f64::consts::TAU * 9.0).ln() / 2.0;
            Given { value, slope: residual * 2.0 / 3.0, curvature: 4.0 / 9.0 }
        };
        let exact = -25.0 / 26.0 - (std::f64::consts::TAU * 13.0).ln() / 2.0;
        for points in [1, 2, 7] {
            let found = log_integral(&gauss_hermite(points), given);
            assert!((found - exact).abs() < 1e-13, "{points}: {found}");
        }
    }
}

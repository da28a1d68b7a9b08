//! Least squares, one row at a time.
//!
//! Rows are rotated into a triangular factor with square-root-free Givens rotations (W. M. Gentleman,
//! "Algorithm AS 75: Basic procedures for large, sparse or weighted linear least squares problems",
//! Applied Statistics 23, 1974; A. J. Miller, "Algorithm AS 274", Applied Statistics 41, 1992). That
//! is as accurate as a QR decomposition of the whole matrix, in the memory of one triangle; normal
//! equations would lose twice the digits. A linear algebra crate would bring a minute of compilation
//! for what takes a page here.

/// The factor `sqrt(D) R` of the rows seen so far, `R` unit upper triangular. Column 0 is the
/// intercept.
#[derive(Clone, Debug)]
pub(super) struct LeastSquares {
    columns: usize,
    /// Diagonal of `D`: squared lengths of the columns after regression on those before.
    d: Vec<f64>,
    /// `R` above its diagonal, row by row, each row from the column after the diagonal.
    r: Vec<f64>,
    /// The response rotated along: `R beta = theta`.
    theta: Vec<f64>,
    /// Residual sum of squares.
    pub residual_squares: f64,
    /// Rows included.
    pub rows: u64,
    row: Vec<f64>,
}

/// A column counts as a combination of the ones before it if what they leave of it is shorter than
/// this part of its length about its mean...
const COLLINEAR: f64 = 1e-10;
/// ...or this part of its whole length, which is rounding error.
const ROUNDING: f64 = 1e-14;

impl LeastSquares {
    /// For an intercept and `predictors` predictors.
    pub fn new(predictors: usize) -> LeastSquares {
        let columns = predictors + 1;
        LeastSquares {
            columns,
            d: vec![0.0; columns],
            r: vec![0.0; columns * (columns - 1) / 2],
            theta: vec![0.0; columns],
            residual_squares: 0.0,
            rows: 0,
            row: vec![0.0; columns],
        }
    }

    /// Columns: the intercept and the predictors.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Includes one row.
    ///
    /// # Panics
    /// If there are not as many predictors as said.
    #[inline]
    pub fn include(&mut self, predictors: &[f64], response: f64) {
        self.row[0] = 1.0;
        self.row[1..].copy_from_slice(predictors);
        self.rows += 1;
        let mut weight = 1.0;
        let mut y = response;
        let mut start = 0;
        for i in 0..self.columns {
            let length = self.columns - i - 1;
            let x = self.row[i];
            if x != 0.0 {
                let d_old = self.d[i];
                let d_new = d_old + weight * x * x;
                let sine = weight * x / d_new;
                weight *= d_old / d_new;
                self.d[i] = d_new;
                let r = &mut self.r[start..start + length];
                for (r, value) in r.iter_mut().zip(&mut self.row[i + 1..]) {
                    *value -= x * *r;
                    *r += sine * *value;
                }
                y -= x * self.theta[i];
                self.theta[i] += sine * y;
                if weight == 0.0 {
                    return;
                }
            }
            start += length;
        }
        self.residual_squares += weight * y * y;
    }

    /// Element of `R` above the diagonal.
    fn r(&self, i: usize, j: usize) -> f64 {
        let start = i * (self.columns - 1) - i * i.saturating_sub(1) / 2;
        self.r[start + j - i - 1]
    }

    /// The first column that is a linear combination of the ones before it.
    pub fn collinear(&self) -> Option<usize> {
        (1..self.columns).find(|&j| {
            let squares = |from: usize| -> f64 {
                (from..j).map(|i| self.d[i] * self.r(i, j) * self.r(i, j)).sum::<f64>() + self.d[j]
            };
            let left = self.d[j].sqrt();
            // Written so that a NaN counts as collinear.
            let enough =
                left > COLLINEAR * squares(1).sqrt() && left > ROUNDING * squares(0).sqrt();
            !enough
        })
    }

    /// Coefficients, the intercept first. The columns must not be collinear.
    pub fn coefficients(&self) -> Vec<f64> {
        let mut beta = self.theta.clone();
        for i in (0..self.columns).rev() {
            for j in i + 1..self.columns {
                beta[i] -= self.r(i, j) * beta[j];
            }
        }
        beta
    }

    /// Sum of squares of the response about its mean.
    pub fn total_squares(&self) -> f64 {
        let explained: f64 =
            (1..self.columns).map(|i| self.d[i] * self.theta[i] * self.theta[i]).sum();
        explained + self.residual_squares
    }

    /// Diagonal of `(X'X)^-1`: variances of the coefficients over the residual variance.
    pub fn unscaled_variances(&self) -> Vec<f64> {
        let n = self.columns;
        // Row i of the inverse of R: unit upper triangular too.
        (0..n)
            .map(|i| {
                let mut inverse = vec![0.0; n];
                inverse[i] = 1.0;
                for j in i + 1..n {
                    inverse[j] = -(i..j).map(|k| inverse[k] * self.r(k, j)).sum::<f64>();
                }
                (i..n).map(|j| inverse[j] * inverse[j] / self.d[j]).sum()
            })
            .collect()
    }
}

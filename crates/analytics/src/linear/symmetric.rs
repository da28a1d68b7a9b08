//! Symmetric matrices as large as a model has coefficients, and their Cholesky factors.
//!
//! Both are stored as the lower triangle, row by row. Rows of data are added one at a time.

use super::dot;

/// A column counts as a combination of the ones before it if they leave less than this part of its
/// square.
const COLLINEAR: f64 = 1e-10;

/// A symmetric matrix, its lower triangle row by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Symmetric {
    size: usize,
    values: Vec<f64>,
}

impl Symmetric {
    /// All zeros.
    pub fn zeros(size: usize) -> Symmetric {
        Symmetric { size, values: vec![0.0; size * (size + 1) / 2] }
    }

    /// One element.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        let (i, j) = if i < j { (j, i) } else { (i, j) };
        self.values[i * (i + 1) / 2 + j]
    }

    /// One element, to be changed together with its mirror image.
    pub fn at_mut(&mut self, i: usize, j: usize) -> &mut f64 {
        let (i, j) = if i < j { (j, i) } else { (i, j) };
        &mut self.values[i * (i + 1) / 2 + j]
    }

    /// Adds `weight * x x'`.
    #[inline]
    pub fn add_outer(&mut self, weight: f64, x: &[f64]) {
        let mut rest = self.values.as_mut_slice();
        for i in 0..self.size {
            let (row, after) = rest.split_at_mut(i + 1);
            let scaled = weight * x[i];
            for (value, x) in row.iter_mut().zip(x) {
                *value += scaled * x;
            }
            rest = after;
        }
    }

    /// Adds the outer product of `x` followed by `last`.
    #[inline]
    pub fn add_outer_with(&mut self, x: &[f64], last: f64) {
        let (head, tail) = self.values.split_at_mut(x.len() * (x.len() + 1) / 2);
        let mut rest = head;
        for i in 0..x.len() {
            let (row, after) = rest.split_at_mut(i + 1);
            for (value, other) in row.iter_mut().zip(x) {
                *value += x[i] * other;
            }
            rest = after;
        }
        for (value, x) in tail.iter_mut().zip(x.iter().chain([&last])) {
            *value += last * x;
        }
    }

    /// The first `size` rows and columns.
    pub fn leading(&self, size: usize) -> Symmetric {
        Symmetric { size, values: self.values[..size * (size + 1) / 2].to_vec() }
    }

    /// Adds `weight` times the lower triangle that `other` holds row by row.
    #[inline]
    pub fn add_triangle(&mut self, weight: f64, other: &[f64]) {
        for (value, other) in self.values.iter_mut().zip(other) {
            *value += weight * other;
        }
    }

    /// The lower triangle row by row.
    pub fn triangle(&self) -> &[f64] {
        &self.values
    }

    /// The same times a number.
    pub fn scaled(mut self, factor: f64) -> Symmetric {
        self.values.iter_mut().for_each(|value| *value *= factor);
        self
    }

    /// `x' A y`.
    pub fn between(&self, x: &[f64], y: &[f64]) -> f64 {
        (0..self.size)
            .map(|i| x[i] * (0..self.size).map(|j| self.at(i, j) * y[j]).sum::<f64>())
            .sum()
    }

    /// `B A B'`, where `B` is given by its rows.
    pub fn sandwiched(&self, rows: &[Vec<f64>]) -> Symmetric {
        let mut result = Symmetric::zeros(rows.len());
        for i in 0..rows.len() {
            for j in 0..=i {
                *result.at_mut(i, j) = self.between(&rows[i], &rows[j]);
            }
        }
        result
    }

    /// The first column that is a linear combination of the ones before it, up to rounding.
    pub fn dependent_column(&self) -> Option<usize> {
        let mut factor = Symmetric::zeros(self.size);
        for j in 0..self.size {
            for k in 0..j {
                let dot: f64 = (0..k).map(|m| factor.at(j, m) * factor.at(k, m)).sum();
                *factor.at_mut(j, k) = (self.at(j, k) - dot) / factor.at(k, k);
            }
            let left = self.at(j, j) - (0..j).map(|m| factor.at(j, m).powi(2)).sum::<f64>();
            // Written so that a NaN counts as dependent.
            let enough = left > COLLINEAR * self.at(j, j);
            if !enough {
                return Some(j);
            }
            *factor.at_mut(j, j) = left.sqrt();
        }
        None
    }

    /// The Cholesky factor (G. H. Golub and C. F. Van Loan, "Matrix Computations", 4th edition, 2013,
    /// section 4.2); `None` if the matrix is not positive definite.
    pub fn factor(&self) -> Option<Factor> {
        let mut rows = Vec::with_capacity(self.values.len());
        for i in 0..self.size {
            let start = rows.len();
            for j in 0..=i {
                let other = row_start(j);
                let rest = self.at(i, j) - dot(&rows[start..], &rows[other..other + j]);
                if j < i {
                    rows.push(rest / rows[other + j]);
                } else if rest > 0.0 && rest.is_finite() {
                    rows.push(rest.sqrt());
                } else {
                    return None;
                }
            }
        }
        Some(Factor { size: self.size, rows })
    }
}

/// Where row `i` of a lower triangle starts.
fn row_start(i: usize) -> usize {
    i * (i + 1) / 2
}

/// The Cholesky factor `L` of a positive definite matrix `A = L L'`.
#[derive(Debug)]
pub(crate) struct Factor {
    size: usize,
    rows: Vec<f64>,
}

impl Factor {
    fn row(&self, i: usize) -> &[f64] {
        &self.rows[row_start(i)..row_start(i + 1)]
    }

    /// `A^-1 b`.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..self.size {
            let row = self.row(i);
            x[i] = (x[i] - dot(&row[..i], &x[..i])) / row[i];
        }
        for i in (0..self.size).rev() {
            let row = self.row(i);
            let solved = x[i] / row[i];
            for (x, value) in x.iter_mut().zip(&row[..i]) {
                *x -= solved * value;
            }
            x[i] = solved;
        }
        x
    }

    /// `A^-1`.
    pub fn inverse(&self) -> Symmetric {
        let mut unit = vec![0.0; self.size];
        let columns: Vec<Vec<f64>> = (0..self.size)
            .map(|j| {
                unit[j] = 1.0;
                let column = self.solve(&unit);
                unit[j] = 0.0;
                column
            })
            .collect();
        let mut result = Symmetric::zeros(self.size);
        for (i, column) in columns.iter().enumerate() {
            for (j, other) in columns[..=i].iter().enumerate() {
                *result.at_mut(i, j) = (column[j] + other[i]) / 2.0;
            }
        }
        result
    }

    /// Logarithm of the determinant of `A`.
    pub fn log_determinant(&self) -> f64 {
        2.0 * (0..self.size).map(|i| self.row(i)[i].ln()).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Hilbert matrix of order 3; its inverse is of whole numbers and its determinant 1/2160.
    fn hilbert() -> Symmetric {
        let mut matrix = Symmetric::zeros(3);
        for i in 0..3 {
            for j in 0..=i {
                *matrix.at_mut(i, j) = 1.0 / (i + j + 1) as f64;
            }
        }
        matrix
    }

    #[test]
    fn a_factor_solves_and_inverts() {
        let factor = hilbert().factor().unwrap();
        let inverse = factor.inverse();
        let expected = [9.0, -36.0, 192.0, 30.0, -180.0, 180.0];
        for (found, expected) in inverse.triangle().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{inverse:?}");
        }
        assert!((factor.log_determinant() + 2160_f64.ln()).abs() < 1e-12);
        let x = factor.solve(&[11.0 / 6.0, 13.0 / 12.0, 47.0 / 60.0]);
        assert!(x.iter().all(|x| (x - 1.0).abs() < 1e-12), "{x:?}");
    }

    #[test]
    fn what_is_not_positive_definite_has_no_factor() {
        let mut matrix = hilbert();
        *matrix.at_mut(2, 2) = -1.0;
        assert!(matrix.factor().is_none());
        *matrix.at_mut(2, 2) = f64::NAN;
        assert!(matrix.factor().is_none());
        assert_eq!(matrix.dependent_column(), Some(2));
    }

    #[test]
    fn a_dependent_column_is_found() {
        let mut matrix = Symmetric::zeros(3);
        for i in 0..9 {
            let (a, b) = (f64::from(i), f64::from(i * i % 5));
            matrix.add_outer(0.5, &[a, a + 3.0 * b, b]);
        }
        assert_eq!(matrix.dependent_column(), Some(2));
        assert_eq!(hilbert().dependent_column(), None);
    }
}

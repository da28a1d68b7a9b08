//! The LU factorisation with partial pivoting by blocks (Golub and Van Loan, section 3.4).

use super::matrix::{Matrix, multiply_add};
use super::{BLOCK, add_multiple};

/// `P A = L U`: `L` has ones on its diagonal, `U` is upper triangular, and both are stored in one matrix.
#[derive(Debug)]
pub struct Lu {
    factors: Matrix,
    /// In step k, rows k and `swaps[k]` changed places.
    swaps: Vec<usize>,
}

/// Factorises a square matrix. A singular one gives factors that are not finite.
#[must_use]
pub fn factor(a: &Matrix) -> Lu {
    let n = a.rows();
    let (mut factors, mut swaps) = (a.clone(), Vec::with_capacity(n));
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        factor_block(&mut factors, start, end, &mut swaps);
        for (j, column) in factors.columns_mut().enumerate() {
            if !(start..end).contains(&j) {
                (start..end).for_each(|k| column.swap(k, swaps[k]));
            }
        }
        update_behind(&mut factors, start, end);
    }
    Lu { factors, swaps }
}

/// Factorises columns `start` to `end` from row `start` on, and swaps rows in these columns only.
fn factor_block(a: &mut Matrix, start: usize, end: usize, swaps: &mut Vec<usize>) {
    for j in start..end {
        let (done, mut rest) = a.split_at_column(j);
        let column = rest.column_mut(0);
        for k in start..j {
            let factor = column[k];
            add_multiple(-factor, &done.column(k)[k + 1..], &mut column[k + 1..]);
        }
        let candidates = column[j..].iter().map(|value| value.abs());
        let (mut pivot, mut largest) = (j, -1.0);
        for (offset, size) in candidates.enumerate() {
            if size > largest {
                (pivot, largest) = (j + offset, size);
            }
        }
        swaps.push(pivot);
        for k in start..end {
            a.column_mut(k).swap(j, pivot);
        }
        let column = a.column_mut(j);
        let pivot = column[j];
        column[j + 1..].iter_mut().for_each(|value| *value /= pivot);
    }
}

/// Takes the part of the block `start` to `end` out of the columns behind it.
fn update_behind(a: &mut Matrix, start: usize, end: usize) {
    let (n, behind) = (a.rows(), a.columns() - end);
    let (done, mut rest) = a.split_at_column(end);
    let mut upper = Matrix::zeros(end - start, behind);
    for j in 0..behind {
        let column = &mut rest.column_mut(j)[start..end];
        for k in 0..column.len() {
            let (solved, below) = column.split_at_mut(k + 1);
            add_multiple(-solved[k], &done.column(start + k)[start + k + 1..end], below);
        }
        upper.column_mut(j).copy_from_slice(column);
    }
    let below = done.part(end..n, start..end);
    multiply_add(-1.0, below, upper.view(), 1.0, rest.part_mut(end..n, 0..behind));
}

impl Lu {
    /// Solves `A x = b`.
    #[must_use]
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for (k, &pivot) in self.swaps.iter().enumerate() {
            x.swap(k, pivot);
        }
        for j in 0..x.len() {
            let (solved, rest) = x.split_at_mut(j + 1);
            add_multiple(-solved[j], &self.factors.column(j)[j + 1..], rest);
        }
        for j in (0..x.len()).rev() {
            let column = self.factors.column(j);
            let (rest, solved) = x.split_at_mut(j);
            solved[0] /= column[j];
            add_multiple(-solved[0], &column[..j], rest);
        }
        x
    }

    /// `P' L U`, which is `A` but for rounding.
    #[must_use]
    pub fn product(&self) -> Matrix {
        let (n, factors) = (self.factors.rows(), &self.factors);
        let lower = Matrix::from_fn(n, n, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => 1.0,
            std::cmp::Ordering::Greater => factors[(i, j)],
        });
        let upper = Matrix::from_fn(n, n, |i, j| if i <= j { factors[(i, j)] } else { 0.0 });
        let mut product = Matrix::product(lower.view(), upper.view());
        for column in product.columns_mut() {
            for (k, &pivot) in self.swaps.iter().enumerate().rev() {
                column.swap(k, pivot);
            }
        }
        product
    }

    /// Logarithm of the size of the determinant of `A`.
    #[must_use]
    pub fn log_determinant(&self) -> f64 {
        self.factors.diagonal().map(|value| value.abs().ln()).sum()
    }
}

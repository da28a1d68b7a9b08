//! The Cholesky factorisation by blocks (Golub and Van Loan, section 4.2.6).

use super::matrix::{Matrix, multiply_add};
use super::{BLOCK, add_multiple};

/// The lower triangular `L` of `A = L L'`; `None` if `A` is not positive definite. Only the lower
/// triangle of `A` is read.
#[must_use]
pub fn factor(a: &Matrix) -> Option<Matrix> {
    let n = a.rows();
    let mut l = Matrix::from_fn(n, n, |i, j| if i < j { 0.0 } else { a[(i, j)] });
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        factor_block(&mut l, start, end)?;
        for first in (end..n).step_by(BLOCK) {
            let last = (first + BLOCK).min(n);
            let (done, mut rest) = l.split_at_column(end);
            let rows = done.part(first..n, start..end);
            let columns = done.part(first..last, start..end).transposed();
            let part = rest.part_mut(first..n, first - end..last - end);
            multiply_add(-1.0, rows, columns, 1.0, part);
        }
    }
    // Blocks on the diagonal were updated as squares.
    for (j, column) in l.columns_mut().enumerate() {
        column[..j].fill(0.0);
    }
    Some(l)
}

/// Factorises columns `start` to `end`, from which the blocks before them have been subtracted.
fn factor_block(l: &mut Matrix, start: usize, end: usize) -> Option<()> {
    for j in start..end {
        let (done, mut rest) = l.split_at_column(j);
        let column = rest.column_mut(0);
        for k in start..j {
            let other = done.column(k);
            add_multiple(-other[j], &other[j..], &mut column[j..]);
        }
        let pivot = column[j];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        let root = pivot.sqrt();
        column[j..].iter_mut().for_each(|value| *value /= root);
    }
    Some(())
}

/// Solves `L L' x = b`.
#[must_use]
pub fn solve(l: &Matrix, b: &[f64]) -> Vec<f64> {
    let mut x = b.to_vec();
    for j in 0..x.len() {
        let column = l.column(j);
        x[j] /= column[j];
        let (solved, rest) = x.split_at_mut(j + 1);
        add_multiple(-solved[j], &column[j + 1..], rest);
    }
    for j in (0..x.len()).rev() {
        let column = l.column(j);
        x[j] = (x[j] - super::dot(&column[j + 1..], &x[j + 1..])) / column[j];
    }
    x
}

//! Reduction of a symmetric matrix to a tridiagonal one by blocks of Householder reflectors (Golub and
//! Van Loan, section 8.3.1; by blocks: J. J. Dongarra, D. C. Sorensen and S. J. Hammarling, Journal of
//! Computational and Applied Mathematics 27, 1989).

use super::matrix::{Matrix, multiply_add};
use super::reflector::{Block, Side, reflect};
use super::{BLOCK, LANES, add_multiple, dot};

/// `A = Q T Q'` with a tridiagonal `T`.
pub(super) struct Tridiagonal {
    /// The diagonal of `T`.
    pub diagonal: Vec<f64>,
    /// What stands beside it.
    pub beside: Vec<f64>,
    /// The reflectors of each block of columns, on the rows behind its first column.
    blocks: Vec<Block>,
}

/// Reduces a symmetric matrix, of which only the lower triangle is read.
pub(super) fn reduce(a: &Matrix) -> Tridiagonal {
    let n = a.rows();
    let mut a = a.clone();
    let mut reduced = Tridiagonal { diagonal: Vec::new(), beside: Vec::new(), blocks: Vec::new() };
    for start in (0..n).step_by(BLOCK) {
        reduced.reduce_block(&mut a, start, (start + BLOCK).min(n));
    }
    reduced
}

impl Tridiagonal {
    /// Reduces columns `start` to `end`, and brings the matrix behind them up to date. Until then it is
    /// `A - V W' - W V'`, of which `a` holds `A`.
    fn reduce_block(&mut self, a: &mut Matrix, start: usize, end: usize) {
        let n = a.rows();
        let (mut v, mut w) = (Matrix::zeros(n, end - start), Matrix::zeros(n, end - start));
        let mut taus = Vec::with_capacity(end - start);
        for j in start..end {
            let number = j - start;
            let column = &mut a.column_mut(j)[j..];
            for k in 0..number {
                add_multiple(-w[(j, k)], &v.column(k)[j..], column);
                add_multiple(-v[(j, k)], &w.column(k)[j..], column);
            }
            self.diagonal.push(column[0]);
            if j + 1 == n {
                break;
            }
            let tau = reflect(&mut column[1..]);
            self.beside.push(column[1]);
            taus.push(tau);
            v.column_mut(number)[j + 1..].copy_from_slice(&column[1..]);
            v[(j + 1, number)] = 1.0;
            let next = next_w(a, &v, &w, number, j + 1, tau);
            w.column_mut(number)[j + 1..].copy_from_slice(&next);
        }
        update_behind(a, &v, &w, end);
        if !taus.is_empty() {
            let vectors = Matrix::from_fn(n - start - 1, taus.len(), |i, j| v[(start + 1 + i, j)]);
            self.blocks.push(Block::new(vectors, &taus));
        }
    }

    /// `Q`.
    pub fn q(&self) -> Matrix {
        let n = self.diagonal.len();
        let mut q = Matrix::identity(n);
        for (number, block) in self.blocks.iter().enumerate().rev() {
            let start = number * BLOCK + 1;
            block.apply(Side::Plain, &mut q, start..n, start..n);
        }
        q
    }
}

/// The column of `W` that belongs to column `number` of `V`, from row `first` on.
fn next_w(a: &Matrix, v: &Matrix, w: &Matrix, number: usize, first: usize, tau: f64) -> Vec<f64> {
    let vector = &v.column(number)[first..];
    let mut next = symmetric_times(a, first, vector);
    for k in 0..number {
        let (v, w) = (&v.column(k)[first..], &w.column(k)[first..]);
        add_multiple(-dot(w, vector), v, &mut next);
        add_multiple(-dot(v, vector), w, &mut next);
    }
    next.iter_mut().for_each(|value| *value *= tau);
    let along = dot(&next, vector);
    add_multiple(-0.5 * tau * along, vector, &mut next);
    next
}

/// The rows and columns of `a` from `first` on, times `x`; reads the lower triangle only.
fn symmetric_times(a: &Matrix, first: usize, x: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; x.len()];
    for j in 0..x.len() {
        let (diagonal, below) = a.column(first + j)[first + j..].split_first().expect("not empty");
        let sum = add_multiple_and_dot(x[j], below, &x[j + 1..], &mut product[j + 1..]);
        product[j] += diagonal * x[j] + sum;
    }
    product
}

/// Adds `factor` times `a` to `y` and returns the scalar product of `a` and `x`, reading `a` once.
fn add_multiple_and_dot(factor: f64, a: &[f64], x: &[f64], y: &mut [f64]) -> f64 {
    let ((a, a_rest), (x, x_rest)) = (a.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    let (y, y_rest) = y.as_chunks_mut::<LANES>();
    let mut sums = [0.0; LANES];
    for ((a, x), y) in a.iter().zip(x).zip(y) {
        for (((a, x), y), sum) in a.iter().zip(x).zip(y).zip(&mut sums) {
            *y += factor * a;
            *sum += a * x;
        }
    }
    add_multiple(factor, a_rest, y_rest);
    sums.iter().sum::<f64>() + dot(a_rest, x_rest)
}

/// Subtracts `V W' + W V'` from the lower triangle of `a` behind column `end`.
fn update_behind(a: &mut Matrix, v: &Matrix, w: &Matrix, end: usize) {
    let (n, width) = (a.rows(), v.columns());
    for first in (end..n).step_by(BLOCK) {
        let last = (first + BLOCK).min(n);
        for (rows, columns) in [(v, w), (w, v)] {
            let columns = columns.part(first..last, 0..width).transposed();
            let part = a.part_mut(first..n, first..last);
            multiply_add(-1.0, rows.part(first..n, 0..width), columns, 1.0, part);
        }
    }
}

//! The QR factorisation by blocks of Householder reflectors (Golub and Van Loan, section 5.2.3).

use super::BLOCK;
use super::matrix::Matrix;
use super::reflector::{Block, Side, apply_one, reflect};

/// `A = Q R` of a matrix that has at least as many rows as columns.
#[derive(Debug)]
pub struct Qr {
    /// `R` in the upper triangle.
    factors: Matrix,
    /// The reflectors of each block of columns, on the rows from its first column on.
    blocks: Vec<Block>,
}

/// Factorises a matrix that has at least as many rows as columns.
#[must_use]
pub fn factor(a: &Matrix) -> Qr {
    let (rows, columns) = (a.rows(), a.columns());
    let (mut factors, mut blocks) = (a.clone(), Vec::new());
    for start in (0..columns).step_by(BLOCK) {
        let end = (start + BLOCK).min(columns);
        let taus = factor_block(&mut factors, start, end);
        let vectors = Matrix::from_fn(rows - start, end - start, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => 1.0,
            std::cmp::Ordering::Greater => factors[(start + i, start + j)],
        });
        let block = Block::new(vectors, &taus);
        block.apply(Side::Transposed, &mut factors, start..rows, end..columns);
        blocks.push(block);
    }
    Qr { factors, blocks }
}

/// Factorises columns `start` to `end` from row `start` on. Returns the factors of the reflectors, whose
/// vectors replace what lies below the diagonal.
fn factor_block(a: &mut Matrix, start: usize, end: usize) -> Vec<f64> {
    let mut taus = Vec::with_capacity(end - start);
    for j in start..end {
        let (done, mut rest) = a.split_at_column(j);
        let column = rest.column_mut(0);
        for (k, &tau) in (start..).zip(&taus) {
            apply_one(&done.column(k)[k + 1..], tau, &mut column[k..]);
        }
        taus.push(reflect(&mut column[j..]));
    }
    taus
}

impl Qr {
    /// The first columns of `Q`, as many as `R` has rows.
    #[must_use]
    pub fn thin_q(&self) -> Matrix {
        let (rows, columns) = (self.factors.rows(), self.factors.columns());
        let mut q = Matrix::from_fn(rows, columns, |i, j| if i == j { 1.0 } else { 0.0 });
        // Columns before a block are still those of the identity when its turn comes.
        for (number, block) in self.blocks.iter().enumerate().rev() {
            let start = number * BLOCK;
            block.apply(Side::Plain, &mut q, start..rows, start..columns);
        }
        q
    }

    /// The square `R`.
    #[must_use]
    pub fn r(&self) -> Matrix {
        let size = self.factors.columns();
        Matrix::from_fn(size, size, |i, j| if i <= j { self.factors[(i, j)] } else { 0.0 })
    }

    /// Logarithm of the size of the determinant of `A`.
    #[must_use]
    pub fn log_determinant(&self) -> f64 {
        self.factors.diagonal().map(|value| value.abs().ln()).sum()
    }
}

//! Dense linear algebra: matrices, and the factorisations that steps need.
//!
//! `symmetric` is for models: matrices of some dozen rows. The rest is for matrices that fill the
//! memory: [`cholesky`], [`lu`], [`qr`] and [`eigen`] work block by block, so that nearly all of their
//! arithmetic is in [`matrix::multiply_add`], which the crate matrixmultiply does at the speed of the
//! processor. The methods are those of G. H. Golub and C. F. Van Loan, "Matrix Computations", 4th
//! edition, 2013; each module names its section. Everything runs on the thread that calls it.

pub mod cholesky;
pub mod eigen;
pub mod lu;
pub mod matrix;
pub mod qr;
mod reflector;
pub(crate) mod symmetric;
mod tridiagonal;

pub use matrix::Matrix;
pub(crate) use symmetric::{Factor, Symmetric};

/// Columns of a block. Work within a block is done a column at a time; work between blocks is a product
/// of matrices.
const BLOCK: usize = 48;

/// Sums that are kept side by side, so that the processor can add several numbers at once.
const LANES: usize = 8;

/// The scalar product of two vectors of the same length.
#[inline]
fn dot(x: &[f64], y: &[f64]) -> f64 {
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    let rest: f64 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// Adds `factor` times `x` to `y`, which are of the same length.
#[inline]
fn add_multiple(factor: f64, x: &[f64], y: &mut [f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// The Euclidean norm.
pub(crate) fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

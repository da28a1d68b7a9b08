//! Householder reflectors, and blocks of them (Golub and Van Loan, sections 5.1.2 and 5.2.3).

use std::ops::Range;

use super::matrix::{Matrix, multiply_add};
use super::{dot, norm};

/// Finds the reflector `I - tau v v'` that turns `x` into a multiple of the first unit vector, and
/// returns `tau`. That multiple replaces the first element of `x`; the others become those of `v`,
/// whose first element is 1.
pub(super) fn reflect(x: &mut [f64]) -> f64 {
    let (first, tail) = x.split_first_mut().expect("a vector has an element");
    let size = norm(tail);
    if size == 0.0 {
        return 0.0;
    }
    let multiple = -first.hypot(size).copysign(*first);
    let scale = 1.0 / (*first - multiple);
    tail.iter_mut().for_each(|value| *value *= scale);
    let tau = (multiple - *first) / multiple;
    *first = multiple;
    tau
}

/// The product of reflectors `I - V T V'`, in which `T` is upper triangular (R. Schreiber and C. F. Van
/// Loan, SIAM Journal on Scientific and Statistical Computing 10, 1989).
#[derive(Debug)]
pub(super) struct Block {
    vectors: Matrix,
    middle: Matrix,
}

/// Whether a product of reflectors or its transposed matrix is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The product.
    Plain,
    /// The transposed product, which is its inverse.
    Transposed,
}

impl Block {
    /// The product of the reflectors with the columns of `vectors`, the first one leftmost.
    pub fn new(vectors: Matrix, taus: &[f64]) -> Block {
        let products = Matrix::product(vectors.view().transposed(), vectors.view());
        let mut middle = Matrix::zeros(taus.len(), taus.len());
        for (j, &tau) in taus.iter().enumerate() {
            for i in 0..j {
                let sum: f64 = (i..j).map(|k| middle[(i, k)] * products[(k, j)]).sum();
                middle[(i, j)] = -tau * sum;
            }
            middle[(j, j)] = tau;
        }
        Block { vectors, middle }
    }

    /// Multiplies the part of `matrix` in `rows` and `columns` by the product from the left.
    pub fn apply(
        &self,
        side: Side,
        matrix: &mut Matrix,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let part = matrix.part(rows.clone(), columns.clone());
        let projected = Matrix::product(self.vectors.view().transposed(), part);
        let middle = match side {
            Side::Plain => self.middle.view(),
            Side::Transposed => self.middle.view().transposed(),
        };
        let scaled = Matrix::product(middle, projected.view());
        multiply_add(-1.0, self.vectors.view(), scaled.view(), 1.0, matrix.part_mut(rows, columns));
    }
}

/// Applies the reflector of `v` and `tau` to `x`; `v` is given without its first element, which is 1.
pub(super) fn apply_one(v: &[f64], tau: f64, x: &mut [f64]) {
    let (first, tail) = x.split_first_mut().expect("a vector has an element");
    let factor = tau * (*first + dot(v, tail));
    *first -= factor;
    super::add_multiple(-factor, v, tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reflector_leaves_one_element() {
        let mut x = [3.0, 0.0, -4.0];
        let tau = reflect(&mut x);
        assert_eq!(x[0], -5.0);
        let mut again = [3.0, 0.0, -4.0];
        apply_one(&x[1..], tau, &mut again);
        for (found, expected) in again.iter().zip([-5.0, 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-15, "{again:?}");
        }
        let mut alone = [2.0];
        assert_eq!((reflect(&mut alone), alone), (0.0, [2.0]));
    }

    #[test]
    fn a_block_is_the_product_of_its_reflectors() {
        let taus = [2.0 / 6.0, 2.0 / 5.0];
        let vectors = Matrix::from_fn(3, 2, |i, j| [[1.0, 2.0, -1.0], [0.0, 1.0, 2.0]][j][i]);
        let block = Block::new(vectors, &taus);
        let mut product = Matrix::identity(3);
        for column in product.columns_mut() {
            apply_one(&[2.0], taus[1], &mut column[1..]);
            apply_one(&[2.0, -1.0], taus[0], column);
        }
        for side in [Side::Plain, Side::Transposed] {
            let mut found = Matrix::identity(3);
            block.apply(side, &mut found, 0..3, 0..3);
            for i in 0..3 {
                for j in 0..3 {
                    let place = if side == Side::Plain { (i, j) } else { (j, i) };
                    assert!((found[(i, j)] - product[place]).abs() < 1e-15, "{found:?}");
                }
            }
        }
    }
}

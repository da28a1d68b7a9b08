//! Matrices of doubles, parts of them, and products.

use std::ops::{Index, IndexMut, Range};

use super::{dot, norm};

/// A matrix of doubles, stored column by column.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// A matrix of `value(row, column)`, asked for column by column.
    pub fn from_fn(
        rows: usize,
        columns: usize,
        mut value: impl FnMut(usize, usize) -> f64,
    ) -> Matrix {
        let mut values = Vec::with_capacity(rows * columns);
        for j in 0..columns {
            values.extend((0..rows).map(|i| value(i, j)));
        }
        Matrix { rows, columns, values }
    }

    /// All zeros.
    #[must_use]
    pub fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, values: vec![0.0; rows * columns] }
    }

    /// The identity of `size` rows and columns.
    #[must_use]
    pub fn identity(size: usize) -> Matrix {
        let mut matrix = Matrix::zeros(size, size);
        matrix.values.iter_mut().step_by(size + 1).for_each(|value| *value = 1.0);
        matrix
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One column.
    #[must_use]
    pub fn column(&self, j: usize) -> &[f64] {
        &self.values[j * self.rows..(j + 1) * self.rows]
    }

    /// One column, to be changed.
    pub fn column_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.values[j * self.rows..(j + 1) * self.rows]
    }

    /// All columns in order, to be changed.
    pub fn columns_mut(&mut self) -> impl Iterator<Item = &mut [f64]> {
        self.values.chunks_exact_mut(self.rows.max(1))
    }

    /// The numbers on the diagonal.
    pub fn diagonal(&self) -> impl Iterator<Item = f64> + '_ {
        (0..self.rows.min(self.columns)).map(|i| self[(i, i)])
    }

    /// The Frobenius norm: the root of the sum of all squares.
    #[must_use]
    pub fn norm(&self) -> f64 {
        norm(&self.values)
    }

    /// The Frobenius norm of the difference to a matrix of the same size.
    #[must_use]
    pub fn distance(&self, other: &Matrix) -> f64 {
        let squares = (0..self.columns).map(|j| {
            let pairs = self.column(j).iter().zip(other.column(j));
            let difference: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
            dot(&difference, &difference)
        });
        squares.sum::<f64>().sqrt()
    }

    /// The matrix times a vector.
    #[must_use]
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.rows];
        for (j, &x) in x.iter().enumerate() {
            super::add_multiple(x, self.column(j), &mut product);
        }
        product
    }

    /// The product of two matrices.
    #[must_use]
    pub fn product(a: View<'_>, b: View<'_>) -> Matrix {
        let mut product = Matrix::zeros(a.rows, b.columns);
        multiply_add(1.0, a, b, 0.0, product.view_mut());
        product
    }

    /// The whole matrix.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.part(0..self.rows, 0..self.columns)
    }

    /// The elements that lie in `rows` and in `columns`.
    #[must_use]
    pub fn part(&self, rows: Range<usize>, columns: Range<usize>) -> View<'_> {
        assert!(columns.end <= self.columns, "a part lies within its matrix");
        View::new(&self.values[columns.start * self.rows..], self.rows, rows, columns.len())
    }

    /// The whole matrix, to be changed.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.part_mut(0..self.rows, 0..self.columns)
    }

    /// The elements that lie in `rows` and in `columns`, to be changed.
    pub fn part_mut(&mut self, rows: Range<usize>, columns: Range<usize>) -> ViewMut<'_> {
        assert!(columns.end <= self.columns, "a part lies within its matrix");
        let (height, start) = (self.rows, columns.start * self.rows);
        ViewMut::new(&mut self.values[start..], height, rows, columns.len())
    }

    /// The columns before `j`, to be read, and those from `j` on, to be changed.
    pub(super) fn split_at_column(&mut self, j: usize) -> (Columns<'_>, ColumnsMut<'_>) {
        let (before, after) = self.values.split_at_mut(j * self.rows);
        (
            Columns { values: before, height: self.rows },
            ColumnsMut { values: after, height: self.rows },
        )
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.column(j)[i]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.column_mut(j)[i]
    }
}

/// Neighbouring columns of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    values: &'a [f64],
    height: usize,
}

impl<'a> Columns<'a> {
    pub fn column(self, j: usize) -> &'a [f64] {
        &self.values[j * self.height..(j + 1) * self.height]
    }

    pub fn part(self, rows: Range<usize>, columns: Range<usize>) -> View<'a> {
        let values = &self.values[columns.start * self.height..columns.end * self.height];
        View::new(values, self.height, rows, columns.len())
    }
}

/// Neighbouring columns of a matrix, to be changed.
pub(super) struct ColumnsMut<'a> {
    values: &'a mut [f64],
    height: usize,
}

impl ColumnsMut<'_> {
    pub fn column_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.values[j * self.height..(j + 1) * self.height]
    }

    pub fn part_mut(&mut self, rows: Range<usize>, columns: Range<usize>) -> ViewMut<'_> {
        let values = &mut self.values[columns.start * self.height..columns.end * self.height];
        ViewMut::new(values, self.height, rows, columns.len())
    }
}

/// A part of a matrix, possibly transposed.
///
/// Element (i, j) is `values[i * row_step + j * column_step]`, and all of them lie within `values`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    values: &'a [f64],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> View<'a> {
    /// `rows` of the first `columns` columns in `values`, which are of `height` numbers each.
    fn new(values: &'a [f64], height: usize, rows: Range<usize>, columns: usize) -> View<'a> {
        let values = checked(values.len(), height, &rows, columns).map_or(&[][..], |r| &values[r]);
        View { values, rows: rows.len(), columns, row_step: 1, column_step: height }
    }

    /// The transposed part.
    #[must_use]
    pub fn transposed(self) -> View<'a> {
        let (rows, columns) = (self.columns, self.rows);
        let (row_step, column_step) = (self.column_step, self.row_step);
        View { rows, columns, row_step, column_step, ..self }
    }
}

/// A part of a matrix, to be changed.
///
/// Element (i, j) is `values[i + j * column_step]`, and all of them lie within `values`.
pub struct ViewMut<'a> {
    values: &'a mut [f64],
    rows: usize,
    columns: usize,
    column_step: usize,
}

impl<'a> ViewMut<'a> {
    fn new(
        values: &'a mut [f64],
        height: usize,
        rows: Range<usize>,
        columns: usize,
    ) -> ViewMut<'a> {
        let range = checked(values.len(), height, &rows, columns).unwrap_or(0..0);
        let values = &mut values[range];
        ViewMut { values, rows: rows.len(), columns, column_step: height }
    }
}

/// Where `rows` of `columns` columns of `height` numbers lie among `length` numbers; `None` if there
/// are none.
fn checked(
    length: usize,
    height: usize,
    rows: &Range<usize>,
    columns: usize,
) -> Option<Range<usize>> {
    if rows.is_empty() || columns == 0 {
        return None;
    }
    assert!(rows.end <= height && columns * height <= length, "a part lies within its matrix");
    Some(rows.start..(columns - 1) * height + rows.end)
}

/// `C = alpha A B + beta C`; what `C` holds is not read if `beta` is 0.
///
/// # Panics
/// If the sizes do not match.
pub fn multiply_add(alpha: f64, a: View<'_>, b: View<'_>, beta: f64, c: ViewMut<'_>) {
    let ViewMut { values, rows, columns, column_step } = c;
    assert_eq!((a.rows, a.columns, b.columns), (rows, b.rows, columns), "sizes match");
    let step = |step: usize| isize::try_from(step).expect("a matrix fits in memory");
    // SAFETY: the constructors of views ensure that each element lies within the slice of its view. The
    // slice of `c` is borrowed exclusively, so `a` and `b` do not overlap it.
    unsafe {
        matrixmultiply::dgemm(
            a.rows,
            a.columns,
            b.columns,
            alpha,
            a.values.as_ptr(),
            step(a.row_step),
            step(a.column_step),
            b.values.as_ptr(),
            step(b.row_step),
            step(b.column_step),
            beta,
            values.as_mut_ptr(),
            1,
            step(column_step),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_the_sum_of_products() {
        let a = Matrix::from_fn(5, 3, |i, j| (i * 3 + j) as f64);
        let b = Matrix::from_fn(4, 3, |i, j| (i as f64) - 2.0 * (j as f64));
        let product = Matrix::product(a.part(1..4, 0..3), b.part(0..4, 0..3).transposed());
        for i in 0..3 {
            for j in 0..4 {
                let expected: f64 = (0..3).map(|k| a[(i + 1, k)] * b[(j, k)]).sum();
                assert_eq!(product[(i, j)], expected, "{i}, {j}");
            }
        }
        assert_eq!((product.rows(), product.columns()), (3, 4));
        assert_eq!(a.times(&[1.0, 0.0, -1.0]), [-2.0; 5]);
    }

    #[test]
    fn a_product_changes_nothing_beside_its_part() {
        let a = Matrix::from_fn(2, 2, |_, _| 1.0);
        let mut c = Matrix::from_fn(4, 4, |_, _| 7.0);
        multiply_add(-2.0, a.view(), a.view(), 1.0, c.part_mut(1..3, 2..4));
        for i in 0..4 {
            for j in 0..4 {
                let inside = (1..3).contains(&i) && (2..4).contains(&j);
                assert_eq!(c[(i, j)], if inside { 3.0 } else { 7.0 });
            }
        }
        multiply_add(1.0, a.part(0..0, 0..2), a.view(), 0.0, c.part_mut(4..4, 0..2));
        assert_eq!(c[(1, 2)], 3.0);
    }

    #[test]
    #[should_panic(expected = "a part lies within its matrix")]
    fn a_part_beyond_the_matrix_is_refused() {
        let _ = Matrix::zeros(3, 3).part(0..4, 0..2);
    }
}

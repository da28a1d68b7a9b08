//! Eigenvalues and eigenvectors of symmetric matrices: reduction to a tridiagonal matrix, then QR steps
//! with Wilkinson's shift (Golub and Van Loan, section 8.3).
//!
//! The rotations of many QR steps are collected and then applied to a few rows of the vectors at a time,
//! which stay in the cache meanwhile (F. G. Van Zee, R. A. van de Geijn and G. Quintana-Ortí, ACM
//! Transactions on Mathematical Software 40, 2014).

use super::matrix::Matrix;
use super::tridiagonal::reduce;

/// QR steps that an eigenvalue may take on average; 2 are usual.
const STEPS_MAX: usize = 30;
/// QR steps whose rotations are applied together.
const BATCH: usize = 64;
/// Rows of the vectors that rotations are applied to at a time.
const ROWS: usize = 32;

/// `A = U S U'` of a symmetric matrix.
#[derive(Clone, Debug)]
pub struct Eigen {
    /// The eigenvalues, the diagonal of `S`, in no order.
    pub values: Vec<f64>,
    /// The eigenvectors, the columns of `U`, in the order of their values.
    pub vectors: Matrix,
}

/// Finds all eigenvalues and vectors of a symmetric matrix, of which only the lower triangle is read;
/// `None` if the steps do not converge, as with numbers that are not finite.
#[must_use]
pub fn factor(a: &Matrix) -> Option<Eigen> {
    let mut reduced = reduce(a);
    let mut vectors = reduced.q();
    let mut batch = Batch::default();
    let (d, e) = (&mut reduced.diagonal, &mut reduced.beside);
    let mut steps = 0;
    let mut last = d.len().saturating_sub(1);
    while last > 0 {
        let first = (0..last)
            .rev()
            .find(|&i| e[i].abs() <= f64::EPSILON * (d[i].abs() + d[i + 1].abs()))
            .map_or(0, |i| i + 1);
        if first == last {
            last -= 1;
            continue;
        }
        steps += 1;
        if steps > STEPS_MAX * d.len() {
            return None;
        }
        qr_step(d, e, first, last, &mut batch);
        if batch.steps.len() == BATCH {
            batch.apply(&mut vectors);
        }
    }
    batch.apply(&mut vectors);
    Some(Eigen { values: reduced.diagonal, vectors })
}

/// One QR step on rows `first` to `last` of the tridiagonal matrix of diagonal `d` and `e` beside it.
fn qr_step(d: &mut [f64], e: &mut [f64], first: usize, last: usize, batch: &mut Batch) {
    // The eigenvalue of the last two rows and columns that is nearer to their last element.
    let half = (d[last - 1] - d[last]) / 2.0;
    let corner = e[last - 1];
    let shift = d[last] - corner * (corner / (half + half.hypot(corner).copysign(half)));
    let (mut x, mut z) = (d[first] - shift, e[first]);
    batch.steps.push((first, batch.rotations.len()));
    for k in first..last {
        let size = x.hypot(z);
        // What is to be removed is zero already.
        let (c, s) = if size == 0.0 { (1.0, 0.0) } else { (x / size, z / size) };
        if k > first {
            e[k - 1] = size;
        }
        let (upper, beside, lower) = (d[k], e[k], d[k + 1]);
        let (both, cc, ss) = (2.0 * c * s * beside, c * c, s * s);
        d[k] = cc * upper + both + ss * lower;
        d[k + 1] = ss * upper - both + cc * lower;
        e[k] = (cc - ss) * beside + c * s * (lower - upper);
        x = e[k];
        if k + 1 < last {
            z = s * e[k + 1];
            e[k + 1] *= c;
        }
        batch.rotations.push((c, s));
    }
}

/// Rotations of neighbouring columns that are still to be applied to the vectors.
#[derive(Default)]
struct Batch {
    /// For each step the first column that it rotates, and its first rotation.
    steps: Vec<(usize, usize)>,
    /// Cosine and sine of each rotation.
    rotations: Vec<(f64, f64)>,
}

impl Batch {
    /// Applies the rotations and forgets them.
    fn apply(&mut self, vectors: &mut Matrix) {
        let n = vectors.rows();
        let mut block = vec![[0.0; ROWS]; n];
        for start in (0..n).step_by(ROWS) {
            let rows = start..(start + ROWS).min(n);
            for (kept, column) in block.iter_mut().zip(vectors.columns_mut()) {
                kept[..rows.len()].copy_from_slice(&column[rows.clone()]);
            }
            for (number, &(first, begin)) in self.steps.iter().enumerate() {
                let end = self.steps.get(number + 1).map_or(self.rotations.len(), |step| step.1);
                rotate(&mut block[first..], &self.rotations[begin..end]);
            }
            for (kept, column) in block.iter().zip(vectors.columns_mut()) {
                column[rows.clone()].copy_from_slice(&kept[..rows.len()]);
            }
        }
        self.steps.clear();
        self.rotations.clear();
    }
}

/// Rotates each column with the one behind it.
fn rotate(columns: &mut [[f64; ROWS]], rotations: &[(f64, f64)]) {
    for (k, &(c, s)) in rotations.iter().enumerate() {
        let [left, right] = &mut columns[k..k + 2] else { unreachable!("two columns") };
        for (left, right) in left.iter_mut().zip(right) {
            (*left, *right) = (c * *left + s * *right, c * *right - s * *left);
        }
    }
}

impl Eigen {
    /// `U S U'`, which is `A` but for rounding.
    #[must_use]
    pub fn product(&self) -> Matrix {
        let mut scaled = self.vectors.clone();
        for (column, value) in scaled.columns_mut().zip(&self.values) {
            column.iter_mut().for_each(|element| *element *= value);
        }
        Matrix::product(scaled.view(), self.vectors.view().transposed())
    }
}

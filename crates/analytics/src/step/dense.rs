//! Dense: factorisations of large matrices, checked by their residuals.
//!
//! The matrices are drawn from a seed and factorised by [`crate::linear`]. What is left of `A` when its
//! factors are multiplied again, or of `b` when the solution is put in, is the check: a backward stable
//! method leaves a small multiple of `n` times the rounding unit (N. J. Higham, "Accuracy and Stability
//! of Numerical Algorithms", SIAM 2002, chapters 9, 10 and 19).

use forebay_base::ByteSize;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::Progress;
use crate::amount::{Count, Scale, Size};
use crate::error::{Error, Result};
use crate::linear::{Matrix, cholesky, eigen, lu, norm, qr};
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// Matrices of n x n doubles that the most demanding factorisation keeps at once.
const MATRICES: u64 = 6;
/// The largest n.
const N_MAX: u64 = 1 << 20;
/// Residuals may be so many times n times the rounding unit.
const RESIDUAL_FACTOR: f64 = 100.0;

/// What is made of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Factorisation {
    /// `L L'` of a positive definite matrix, and the solution of one system by it.
    Cholesky,
    /// `L U` with partial pivoting, and the solution of one system by it.
    Lu,
    /// `Q R` by Householder reflections.
    Qr,
    /// Eigenvalues and vectors of a symmetric matrix.
    Eigen,
}

/// Factorises random matrices of `n` rows and columns, one after another, and checks each. Uses the
/// memory of six of them at most; on one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dense {
    /// Rows and columns; such that six matrices fit in `memory` if left out.
    pub n: Option<Count>,
    /// Memory to use if `n` is left out; that of the context if this is left out too.
    pub memory: Option<Size>,
    /// What is made, in this order.
    pub factorisations: Vec<Factorisation>,
    /// How often each is made, each time of another matrix.
    pub repeats: u64,
    /// Where the numbers come from; the job's own if left out.
    pub seed: Option<u64>,
}

impl Default for Dense {
    /// All four, once each.
    fn default() -> Dense {
        use Factorisation::{Cholesky, Eigen, Lu, Qr};
        let factorisations = vec![Cholesky, Lu, Qr, Eigen];
        Dense { n: None, memory: None, factorisations, repeats: 1, seed: None }
    }
}

/// One factorisation that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factorised {
    /// What was made.
    pub kind: Factorisation,
    /// What was left: `A` less the product of its factors, relative to `A` (Frobenius norm), and for a
    /// system that was solved `A x - b`, relative to `A` and `x`; the larger of the two.
    pub residual: f64,
    /// The sum of the eigenvalues less the trace, relative to the norm; where they are found.
    pub trace_error: Option<f64>,
    /// Logarithm of the size of the determinant, from the factors.
    pub log_determinant: f64,
    /// The least and the largest eigenvalue, where they are found.
    pub extremes: Option<(f64, f64)>,
}

impl Dense {
    /// Runs the step at `scale`; `progress` hears rows factorised. Returns n and what was made.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is out of bounds; [`Error::Inexact`] if more is left than
    /// rounding explains.
    pub fn run(&self, scale: Scale, progress: &mut Progress<'_>) -> Result<(u64, Vec<Factorised>)> {
        let memory = self.memory.map_or(ByteSize::gib(2), |memory| memory.at(scale));
        let fitting = ((memory.0 / (8 * MATRICES)) as f64).sqrt() as u64;
        let n = self.n.map_or(fitting, |n| n.at(scale));
        if !(2..=N_MAX).contains(&n) {
            return Err(Error::Setting {
                setting: "n",
                value: n.to_string(),
                allowed: format!("from 2 to {N_MAX}"),
            });
        }
        let mut random = StdRng::seed_from_u64(self.seed.unwrap_or(0));
        let mut made = Vec::new();
        for _ in 0..self.repeats {
            for &kind in &self.factorisations {
                let matrix = draw(kind, n as usize, &mut random);
                let one = factorise(kind, &matrix)?;
                let allowed = RESIDUAL_FACTOR * n as f64 * f64::EPSILON;
                let worst = larger(one.residual, one.trace_error.unwrap_or(0.0).abs());
                // Written so that a NaN is refused.
                let exact = worst <= allowed;
                if !exact {
                    return Err(Error::Inexact { what: kind.name(), residual: worst, allowed });
                }
                made.push(one);
                progress(made.len() as u64 * n);
            }
        }
        Ok((n, made))
    }
}

/// A matrix of numbers from -1 to 1; symmetric for eigenvalues, and with a heavy diagonal for Cholesky.
fn draw(kind: Factorisation, n: usize, random: &mut StdRng) -> Matrix {
    let mut matrix = Matrix::from_fn(n, n, |_, _| random.random_range(-1.0..1.0));
    match kind {
        Factorisation::Lu | Factorisation::Qr => {}
        Factorisation::Cholesky | Factorisation::Eigen => {
            for j in 0..n {
                for i in 0..j {
                    matrix[(i, j)] = matrix[(j, i)];
                }
                if kind == Factorisation::Cholesky {
                    // More than the sum of its row, hence positive definite (Gershgorin).
                    matrix[(j, j)] += 1.0 + n as f64;
                }
            }
        }
    }
    matrix
}

/// Factorises one matrix, which must be symmetric where that is said.
///
/// # Errors
/// [`Error::Inexact`] if there is no such factorisation of it.
pub fn factorise(kind: Factorisation, matrix: &Matrix) -> Result<Factorised> {
    let failed = || Error::Inexact { what: kind.name(), residual: f64::NAN, allowed: 0.0 };
    let size = matrix.norm();
    let right: Vec<f64> = (0..matrix.rows()).map(|i| 1.0 + (i % 7) as f64).collect();
    let unsolved = |x: &[f64]| {
        let left: Vec<f64> = matrix.times(x).iter().zip(&right).map(|(a, b)| a - b).collect();
        norm(&left) / (size * norm(x))
    };
    let (product, rest, log_determinant, values) = match kind {
        Factorisation::Cholesky => {
            let l = cholesky::factor(matrix).ok_or_else(failed)?;
            let product = Matrix::product(l.view(), l.view().transposed());
            let logarithm: f64 = l.diagonal().map(f64::ln).sum();
            (product, unsolved(&cholesky::solve(&l, &right)), 2.0 * logarithm, None)
        }
        Factorisation::Lu => {
            let factors = lu::factor(matrix);
            (factors.product(), unsolved(&factors.solve(&right)), factors.log_determinant(), None)
        }
        Factorisation::Qr => {
            let factors = qr::factor(matrix);
            let product = Matrix::product(factors.thin_q().view(), factors.r().view());
            (product, 0.0, factors.log_determinant(), None)
        }
        Factorisation::Eigen => {
            let factors = eigen::factor(matrix).ok_or_else(failed)?;
            let logarithm = factors.values.iter().map(|value| value.abs().ln()).sum();
            (factors.product(), 0.0, logarithm, Some(factors.values))
        }
    };
    Ok(Factorised {
        kind,
        residual: larger(product.distance(matrix) / size, rest),
        // The trace may be near zero: the norm is what its rounding errors are a part of.
        trace_error: values
            .as_ref()
            .map(|values| (values.iter().sum::<f64>() - matrix.diagonal().sum::<f64>()) / size),
        log_determinant,
        extremes: values.map(|values| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        }),
    })
}

/// The larger of two numbers; NaN if one of them is.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

impl Factorisation {
    /// What it is called in tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Factorisation::Cholesky => "cholesky",
            Factorisation::Lu => "lu",
            Factorisation::Qr => "qr",
            Factorisation::Eigen => "eigen",
        }
    }
}

impl Action for Dense {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory.into());
        self.seed.get_or_insert(context.seed_for("dense"));
        Ok(())
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let (n, made) = self.run(context.scale, progress)?;
        let columns = ["factorisation", "n", "residual", "log_determinant", "least", "largest"];
        let mut table = Table::new(&columns);
        for one in &made {
            let mut row: Vec<Cell> = vec![one.kind.name().into(), n.into(), one.residual.into()];
            row.push(one.log_determinant.into());
            row.extend([one.extremes.map(|e| e.0).into(), one.extremes.map(|e| e.1).into()]);
            table.push(row);
        }
        let worst = made.iter().map(|one| one.residual).fold(0.0, f64::max);
        Ok(Outcome::table(n * made.len() as u64, table)
            .with("n", n as f64)
            .with("factorisations", made.len() as f64)
            .with("memory_bytes_max", (8 * MATRICES * n * n) as f64)
            .with("residual_max", worst))
    }
}

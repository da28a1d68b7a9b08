//! Mixed: a linear model with a random intercept, and a random slope if wanted, of every group.
//!
//! Profiled maximum likelihood or restricted maximum likelihood (D. Bates, M. Maechler, B. Bolker,
//! S. Walker, "Fitting Linear Mixed-Effects Models Using lme4", Journal of Statistical Software 67(1),
//! 2015, in per-group algebra): coefficients and the residual variance follow from the relative
//! covariance factor of the random effects, over which the likelihood is maximised. Of a group only its
//! sums of squares and products are needed, so that one pass over rows in any order does.
//!
//! Memory: a page and the sums of all groups, `8 * (2 p + 5)` bytes of a group for `p` coefficients
//! and a random slope. If the rows are sorted by group and the sums do not fit, the data set is read
//! again for every evaluation.

use std::collections::HashMap;
use std::path::PathBuf;

use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::Progress;
use super::model::estimate::Reference;
use super::model::frame::{Columns, Frame, Needed};
use super::model::groups::{Groups, MEMORY_DEFAULT};
use super::model::irls::Limits;
use super::model::maximise::maximise;
use super::model::passes::Passes;
use super::model::{ClassPredictor, Estimate};
use super::summary::Order;
use crate::error::{Error, Result};
use crate::linear::Symmetric;
use crate::step::{Action, Context, Outcome};
use crate::table::{Cell, Table};

/// Which likelihood is maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// That of the residuals after the coefficients: variances are nearly unbiased.
    #[default]
    Reml,
    /// That of the data: fits with other coefficients can be compared.
    Ml,
}

/// Fits `response` on an intercept, `predictors` and `class`, and random effects by `group`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixed {
    /// The data set.
    pub input: PathBuf,
    /// The column to explain.
    pub response: String,
    /// Number columns that explain it.
    #[serde(default)]
    pub predictors: Vec<String>,
    /// Columns whose values are levels.
    #[serde(default)]
    pub class: Vec<ClassPredictor>,
    /// The column with the group, a number or a text.
    pub group: String,
    /// The number column whose coefficient is random by group, beside the intercept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slope: Option<String>,
    /// Which likelihood is maximised.
    #[serde(default)]
    pub method: Method,
    /// What is known of the order of the rows by group.
    #[serde(default)]
    pub order: Order,
    /// Memory for the sums of groups; 2 GiB unless the program says otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Iterations at most.
    #[serde(default = "iterations_max_default")]
    pub iterations_max: u32,
}

pub(super) fn iterations_max_default() -> u32 {
    200
}

/// What a mixed model found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixedFit {
    /// The intercept, then the predictors, then the levels; tests are by the normal distribution.
    pub estimates: Vec<Estimate>,
    /// Variance of the random intercept.
    pub intercept_variance: f64,
    /// Variance of the random slope.
    pub slope_variance: Option<f64>,
    /// Covariance of the two.
    pub covariance: Option<f64>,
    /// Variance of the residuals.
    pub residual_variance: f64,
    /// The log likelihood, restricted if it was maximised restricted.
    pub log_likelihood: f64,
    /// Groups.
    pub groups: u64,
    /// Rows that the fit is made from.
    pub n: u64,
    /// Rows left out because of a missing value.
    pub missing: u64,
    /// Steps of the maximiser.
    pub iterations: u32,
}

impl Mixed {
    /// Fits `response` on `predictors` with a random intercept by `group`, by restricted likelihood.
    #[must_use]
    pub fn new(input: PathBuf, response: &str, predictors: &[&str], group: &str) -> Mixed {
        Mixed {
            input,
            response: response.to_owned(),
            predictors: predictors.iter().map(|&name| name.to_owned()).collect(),
            class: Vec::new(),
            group: group.to_owned(),
            slope: None,
            method: Method::Reml,
            order: Order::Any,
            memory: None,
            iterations_max: iterations_max_default(),
        }
    }

    /// Runs the step. Progress counts the rows of every pass.
    ///
    /// # Errors
    /// [`Error::Column`] if a column does not exist or does not suit; [`Error::Collinear`],
    /// [`Error::TooFewRows`], [`Error::NotConverged`]; [`Error::Memory`] if the groups are in any order
    /// and do not fit; [`Error::NotSorted`] if rows said to be sorted are not; those of reading.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<MixedFit> {
        let mut needed = vec![Needed::Number(&self.response)];
        needed.extend(self.slope.iter().map(|name| Needed::Number(name)));
        needed.push(Needed::Present(&self.group));
        let columns = Columns { predictors: &self.predictors, class: &self.class, needed: &needed };
        let frame = Frame::scout(&self.input, &columns, progress)?;
        let shape = Shape {
            terms: frame.terms.len(),
            effects: 1 + usize::from(self.slope.is_some()),
            response_mean: frame.extra_spread[0].mean,
        };
        frame.need_rows(shape.terms + shape.effects)?;
        let slope_unit = self.slope.as_ref().map(|_| frame.extra_spread[1].deviation());
        if let (Some(name), Some(0.0)) = (&self.slope, slope_unit) {
            return Err(Error::Collinear { column: name.clone() });
        }
        let mut sums = self.sums(frame, shape, progress)?;
        if let Some(column) = sums.total.leading(shape.terms).dependent_column() {
            return Err(Error::Collinear { column: sums.frame().terms[column].clone() });
        }
        if sums.groups < 2 || sums.groups >= sums.frame().rows {
            return Err(Error::Column {
                path: self.input.clone(),
                column: self.group.clone(),
                reason: format!("makes {} groups of {} rows", sums.groups, sums.frame().rows),
            });
        }
        let unit = slope_unit.map_or(1.0, |deviation| 1.0 / deviation);
        let (start, scales) = match shape.effects {
            1 => (vec![1.0], vec![0.2]),
            _ => (vec![1.0, 0.0, unit], vec![0.2, 0.2 * unit, 0.2 * unit]),
        };
        let limits = Limits { iterations_max: self.iterations_max, tolerance: 1e-6 };
        let mut likelihoods =
            |points: &[Vec<f64>]| sums.log_likelihoods(points, self.method, progress);
        let found = maximise(&mut likelihoods, start, &scales, limits)?;
        self.fit(&mut sums, &found.point, found.iterations, progress)
    }

    fn memory(&self) -> ByteSize {
        self.memory.unwrap_or(MEMORY_DEFAULT)
    }

    fn sums(&self, frame: Frame, shape: Shape, progress: &mut Progress<'_>) -> Result<Sums> {
        match self.order {
            Order::Any => self.sums_in_any_order(frame, shape, progress),
            Order::Sorted => self.sums_in_order(frame, shape, progress),
        }
    }

    fn sums_in_any_order(
        &self,
        frame: Frame,
        shape: Shape,
        progress: &mut Progress<'_>,
    ) -> Result<Sums> {
        let mut passes = Passes::new(frame, 0);
        let mut places: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut total = Symmetric::zeros(shape.terms + 1);
        let mut record = vec![0.0; shape.record()];
        let mut records: Vec<f64> = Vec::new();
        passes.for_each_keyed(&self.group, progress, |key, values| {
            let at = if let Some(&at) = places.get(key) {
                at
            } else {
                let at = records.len();
                let taken = (at + record.len()) as u64 * 8;
                if taken > self.memory().0 {
                    return Err(Error::Memory {
                        what: "the sums of the groups",
                        needed: ByteSize(taken),
                        memory: self.memory(),
                        instead: "sort by the group and set order = \"sorted\", or allow more",
                    });
                }
                places.insert(key.to_vec().into_boxed_slice(), at);
                records.extend_from_slice(&record);
                at
            };
            let end = at + record.len();
            shape.include(&mut records[at..end], Some(&mut total), values);
            Ok(())
        })?;
        record.clear();
        let groups = places.len() as u64;
        Ok(Sums { shape, total, groups, source: Source::Kept(Box::new(passes.frame), records) })
    }

    fn sums_in_order(
        &self,
        frame: Frame,
        shape: Shape,
        progress: &mut Progress<'_>,
    ) -> Result<Sums> {
        let width = frame.width();
        let mut groups = Groups::new(frame, &self.group, Order::Sorted, self.memory(), progress)?;
        let mut total = Symmetric::zeros(shape.terms + 1);
        let (mut record, mut records) = (vec![0.0; shape.record()], Vec::new());
        let room = self.memory().0 / 8;
        let mut fits = true;
        groups.for_each(progress, |rows| {
            record.fill(0.0);
            for values in rows.chunks_exact(width) {
                shape.include(&mut record, Some(&mut total), values);
            }
            fits &= (records.len() + record.len()) as u64 <= room;
            if fits {
                records.extend_from_slice(&record);
            }
        })?;
        let count = groups.count;
        let source = if fits {
            Source::Kept(Box::new(groups.frame), records)
        } else {
            Source::Reread(Box::new(groups))
        };
        Ok(Sums { shape, total, groups: count, source })
    }

    fn fit(
        &self,
        sums: &mut Sums,
        theta: &[f64],
        iterations: u32,
        progress: &mut Progress<'_>,
    ) -> Result<MixedFit> {
        let point = vec![theta.to_vec()];
        let profile = sums.profiles(&point, progress)?.swap_remove(0);
        let frame = sums.frame();
        let solution = profile
            .solve(sums.shape.terms, self.method, frame)
            .ok_or(Error::NotConverged { iterations })?;
        let variance = solution.residual_variance;
        let (mut beta, covariances) =
            frame.unscale(&solution.beta, &solution.unscaled.scaled(variance));
        beta[0] += sums.shape.response_mean;
        let (a, b, c) = factor(theta);
        let slope = self.slope.is_some();
        Ok(MixedFit {
            estimates: Estimate::all(&frame.terms, &beta, &covariances, Reference::Normal),
            intercept_variance: variance * a * a,
            slope_variance: slope.then_some(variance * (b * b + c * c)),
            covariance: slope.then_some(variance * a * b),
            residual_variance: variance,
            log_likelihood: solution.log_likelihood,
            groups: sums.groups,
            n: frame.rows,
            missing: frame.missing,
            iterations,
        })
    }
}

/// The lower triangle of the relative covariance factor.
fn factor(theta: &[f64]) -> (f64, f64, f64) {
    match *theta {
        [a, b, c] => (a, b, c),
        _ => (theta[0], 0.0, 0.0),
    }
}

/// Sizes of a model and of a group's sums: `Z'Z` (three numbers), then `Z'X` and `Z'y` by effect.
#[derive(Clone, Copy)]
struct Shape {
    terms: usize,
    effects: usize,
    response_mean: f64,
}

impl Shape {
    fn record(self) -> usize {
        3 + self.effects * (self.terms + 1)
    }

    /// Adds a row to its group's sums and to the total of `[X y]'[X y]`.
    #[inline]
    fn include(self, record: &mut [f64], total: Option<&mut Symmetric>, values: &[f64]) {
        let z = if self.effects == 2 { values[self.terms + 1] } else { 0.0 };
        record[0] += 1.0;
        record[1] += z;
        record[2] += z * z;
        let across = self.terms + 1;
        let y = values[self.terms] - self.response_mean;
        for (effect, sums) in [1.0, z].into_iter().zip(record[3..].chunks_exact_mut(across)) {
            for (sum, x) in sums.iter_mut().zip(&values[..self.terms]) {
                *sum += effect * x;
            }
            sums[self.terms] += effect * y;
        }
        if let Some(total) = total {
            total.add_outer_with(&values[..self.terms], y);
        }
    }
}

enum Source {
    Kept(Box<Frame>, Vec<f64>),
    Reread(Box<Groups>),
}

/// Sums of all rows and of every group.
struct Sums {
    shape: Shape,
    total: Symmetric,
    groups: u64,
    source: Source,
}

/// `[X y]' V^-1 [X y]` and `ln |V|`, in units of the residual variance.
struct Profile {
    products: Symmetric,
    log_determinant: f64,
}

struct Solution {
    beta: Vec<f64>,
    unscaled: Symmetric,
    residual_variance: f64,
    log_likelihood: f64,
}

impl Sums {
    fn frame(&self) -> &Frame {
        match &self.source {
            Source::Kept(frame, _) => frame,
            Source::Reread(groups) => &groups.frame,
        }
    }

    fn profiles(
        &mut self,
        points: &[Vec<f64>],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Profile>> {
        let shape = self.shape;
        let mut profiles: Vec<Profile> = points
            .iter()
            .map(|_| Profile { products: self.total.clone(), log_determinant: 0.0 })
            .collect();
        let mut scratch = vec![0.0; 2 * (shape.terms + 1)];
        let mut include = |record: &[f64]| {
            for (profile, theta) in profiles.iter_mut().zip(points) {
                profile.include(shape, record, theta, &mut scratch);
            }
        };
        match &mut self.source {
            Source::Kept(_, records) => records.chunks_exact(shape.record()).for_each(include),
            Source::Reread(groups) => {
                let width = groups.frame.width();
                let mut record = vec![0.0; shape.record()];
                groups.for_each(progress, |rows| {
                    record.fill(0.0);
                    rows.chunks_exact(width)
                        .for_each(|values| shape.include(&mut record, None, values));
                    include(&record);
                })?;
            }
        }
        Ok(profiles)
    }

    fn log_likelihoods(
        &mut self,
        points: &[Vec<f64>],
        method: Method,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<f64>> {
        let profiles = self.profiles(points, progress)?;
        let likelihood = |profile: &Profile| {
            let solution = profile.solve(self.shape.terms, method, self.frame());
            solution.map_or(f64::NAN, |solution| solution.log_likelihood)
        };
        Ok(profiles.iter().map(likelihood).collect())
    }
}

impl Profile {
    /// Takes off what the group's random effects explain: with `M = I + L' Z'Z L`, that is
    /// `[X y]'Z L M^-1 L' Z'[X y]`.
    fn include(&mut self, shape: Shape, record: &[f64], theta: &[f64], scratch: &mut [f64]) {
        let (a, b, c) = factor(theta);
        let across = shape.terms + 1;
        let (n, z, zz) = (record[0], record[1], record[2]);
        let (first, second) = scratch.split_at_mut(across);
        let sums = &record[3..];
        // M, then its Cholesky factor.
        let m11 = 1.0 + a * a * n + 2.0 * a * b * z + b * b * zz;
        let l11 = m11.sqrt();
        if shape.effects == 1 {
            for (first, sum) in first.iter_mut().zip(sums) {
                *first = a * sum / l11;
            }
            self.log_determinant += m11.ln();
            self.products.add_outer(-1.0, first);
            return;
        }
        let m21 = c * (a * z + b * zz);
        let m22 = 1.0 + c * c * zz;
        let l21 = m21 / l11;
        let l22 = (m22 - l21 * l21).sqrt();
        for i in 0..across {
            first[i] = (a * sums[i] + b * sums[across + i]) / l11;
            second[i] = (c * sums[across + i] - l21 * first[i]) / l22;
        }
        self.log_determinant += 2.0 * (l11 * l22).ln();
        self.products.add_outer(-1.0, first);
        self.products.add_outer(-1.0, second);
    }

    fn solve(&self, terms: usize, method: Method, frame: &Frame) -> Option<Solution> {
        let factor = self.products.leading(terms).factor()?;
        let with_response: Vec<f64> = (0..terms).map(|i| self.products.at(terms, i)).collect();
        let beta = factor.solve(&with_response);
        let explained: f64 = beta.iter().zip(&with_response).map(|(b, c)| b * c).sum();
        let squares = self.products.at(terms, terms) - explained;
        let (df, extra) = match method {
            Method::Ml => (frame.rows as f64, 0.0),
            Method::Reml => (
                (frame.rows - terms as u64) as f64,
                factor.log_determinant() - 2.0 * frame.log_scale(),
            ),
        };
        let residual_variance = squares / df;
        let about = df * (1.0 + (std::f64::consts::TAU * residual_variance).ln());
        Some(Solution {
            beta,
            unscaled: factor.inverse(),
            residual_variance,
            log_likelihood: -(self.log_determinant + extra + about) / 2.0,
        })
    }
}

impl Action for Mixed {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.memory.get_or_insert(context.buffers.memory);
        context.resolve(&mut self.input)
    }

    fn perform(&self, _context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        let fit = self.run(progress)?;
        Ok(Outcome::table(fit.n + fit.missing, fit.table())
            .with("log_likelihood", fit.log_likelihood)
            .with("groups", fit.groups as f64)
            .with("iterations", f64::from(fit.iterations)))
    }
}

impl MixedFit {
    /// Coefficients and variances as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Estimate::table(&self.estimates, "z");
        let variances = [
            ("variance of intercept", Some(self.intercept_variance)),
            ("variance of slope", self.slope_variance),
            ("covariance", self.covariance),
            ("residual variance", Some(self.residual_variance)),
        ];
        for (name, value) in variances {
            if let Some(value) = value {
                let none = || Cell::Missing;
                table.push(vec![name.into(), value.into(), none(), none(), none()]);
            }
        }
        table
    }
}

//! The search of one model process, through temporary files.
//!
//! A temporary file is a population: each row is one candidate's smoothing parameters and the one-step
//! errors that it leaves. Read back, the rows are judged by their errors alone: the least sum of
//! squares is remembered, and a row that is plausible (by the likelihood ratio, 95 %) becomes the
//! generator of the next file's fits. These are a bootstrap: series drawn from the generator with the
//! errors that stood in the file, each fitted again, which gives the coefficients their standard
//! errors (R. J. Hyndman et al. 2008, section 6.2; B. Efron, R. J. Tibshirani, "An Introduction to the
//! Bootstrap", 1993). So every fit after the first needs what the file before it holds.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};

use super::extract::DemandSeries;
use crate::error::Result;
use crate::series::{self, Fit, Model, Parameters, Series};
use crate::temporary::Content;

/// Bytes of a page before its rows: the number of rows, then numbers per row.
const PAGE_FIXED_BYTES: usize = 8;
/// Numbers of a row before the errors: alpha, beta, gamma, phi.
const SMOOTHING: usize = 4;
/// How far candidates scatter about the best, as a part of each parameter.
const SCATTER: f64 = 0.15;
/// 95 % quantile of chi squared with one degree of freedom.
const CHI_SQUARED: f64 = 3.841_458_820_694_124;

/// Mean and spread of one number over the fits (Welford's method).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    n: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.n;
        self.squares += from_mean * (value - self.mean);
    }

    /// Standard deviation; `None` for less than two values.
    pub fn deviation(&self) -> Option<f64> {
        (self.n > 1.0).then(|| (self.squares / (self.n - 1.0)).sqrt())
    }
}

/// One series under calibration.
pub(super) struct Calibrated {
    pub series: DemandSeries,
    season_length: usize,
    /// The fit of the series itself.
    pub fit: Fit,
    /// What futures are drawn from: errors of the model as they stood in the last plausible row.
    pub errors: Vec<f64>,
    /// The fit with the states before the first value in the place of the last ones, and the smoothing
    /// of the last plausible row: what series are drawn from.
    generator: Fit,
    /// The least sum of squares that a candidate left, that of the fit included.
    pub least_squares: f64,
    /// Spreads of alpha and of the coefficients over the fits of drawn series.
    pub alpha: Spread,
    pub coefficients: Vec<Spread>,
    /// Candidates read back.
    pub candidates: u64,
}

impl Calibrated {
    /// Chooses and fits a model; `None` if none suits the series. Returns the number of fits too.
    pub fn choose(
        series: DemandSeries,
        season_length: usize,
        models: &[Model],
    ) -> Option<(Calibrated, u64)> {
        let known =
            Series { values: &series.values, season_length, regressors: &series.regressors };
        let choice = series::choose(models, &known)?;
        let fit = choice.fit;
        let mut errors = vec![0.0; series.values.len()];
        let mut season = fit.parameters.season.clone();
        known.run(fit.model, &fit.parameters, &mut season, &mut errors)?;
        let least_squares = errors.iter().map(|error| error * error).sum();
        let present = errors.iter().zip(&series.values).filter(|(_, value)| !value.is_nan());
        let errors = present.map(|(&error, _)| error).collect();
        let generator = Fit { last: fit.parameters.clone(), ..fit.clone() };
        let calibrated = Calibrated {
            least_squares,
            alpha: Spread::default(),
            coefficients: vec![Spread::default(); series.regressors.len()],
            candidates: 0,
            season_length,
            fit,
            errors,
            generator,
            series,
        };
        Some((calibrated, choice.models))
    }

    fn known(&self) -> Series<'_> {
        Series {
            values: &self.series.values,
            season_length: self.season_length,
            regressors: &self.series.regressors,
        }
    }

    /// An error of the model, drawn from those of the last plausible row.
    pub fn draw(&self, random: &mut StdRng) -> f64 {
        self.errors[random.random_range(0..self.errors.len())]
    }

    /// Draws a series from the generator and fits it; false where there is no fit.
    fn refit(&mut self, random: &mut StdRng, season: &mut Vec<f64>, drawn: &mut Vec<f64>) -> bool {
        drawn.resize(self.series.values.len(), 0.0);
        season.resize(self.generator.last.season.len(), 0.0);
        series::simulate(&self.generator, season, drawn, &mut || self.draw(random));
        let known = self.known();
        for (t, (drawn, value)) in drawn.iter_mut().zip(known.values).enumerate() {
            *drawn += known.explained(&self.fit.parameters.coefficients, t);
            if value.is_nan() {
                *drawn = f64::NAN;
            }
        }
        let model = self.fit.model;
        let Some(fit) =
            series::refit(model, &Series { values: drawn, ..known }, &self.fit.parameters)
        else {
            return false;
        };
        self.alpha.add(fit.parameters.alpha);
        for (spread, &b) in self.coefficients.iter_mut().zip(&fit.parameters.coefficients) {
            spread.add(b);
        }
        true
    }

    /// Judges one row by its errors; true if it is plausible.
    fn judge(&mut self, row: &[u8]) -> bool {
        self.candidates += 1;
        let squares: f64 = numbers(row).skip(SMOOTHING).map(|error| error * error).sum();
        self.least_squares = self.least_squares.min(squares);
        squares <= self.least_squares * (CHI_SQUARED / self.fit.n as f64).exp()
    }

    /// Makes the row the generator.
    fn adopt(&mut self, row: &[u8]) {
        let mut row = numbers(row);
        let smoothing = &mut self.generator.last;
        for parameter in
            [&mut smoothing.alpha, &mut smoothing.beta, &mut smoothing.gamma, &mut smoothing.phi]
        {
            *parameter = row.next().unwrap_or_default();
        }
        self.errors.clear();
        let values = row.zip(&self.series.values);
        self.errors.extend(values.filter(|(_, value)| !value.is_nan()).map(|(error, _)| error));
    }
}

/// All series of a process and where its search stands.
pub(super) struct Candidates {
    pub all: Vec<Calibrated>,
    files: u64,
    fits_per_file: u64,
    random: StdRng,
    /// Fits of drawn series.
    pub fits: u64,
    season: Vec<f64>,
    drawn: Vec<f64>,
    errors: Vec<f64>,
}

impl Candidates {
    pub fn new(all: Vec<Calibrated>, files: u64, fits_per_file: u64, seed: u64) -> Candidates {
        Candidates {
            all,
            files,
            fits_per_file,
            random: StdRng::seed_from_u64(seed),
            fits: 0,
            season: Vec::new(),
            drawn: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Which series file `number` belongs to: series after series.
    fn series_of(&self, number: u64) -> usize {
        let all = self.all.len() as u128;
        (u128::from(number) * all / u128::from(self.files.max(1))) as usize
    }
}

impl Content for Candidates {
    fn begin(&mut self, number: u64) -> Result<()> {
        let series = self.series_of(number);
        for _ in 0..self.fits_per_file {
            let one = &mut self.all[series];
            self.fits += u64::from(one.refit(&mut self.random, &mut self.season, &mut self.drawn));
        }
        Ok(())
    }

    fn fill(&mut self, number: u64, _offset: u64, page: &mut [u8]) {
        let one = &self.all[self.series_of(number)];
        let known = one.known();
        self.errors.resize(known.values.len(), 0.0);
        self.season.resize(one.fit.parameters.season.len(), 0.0);
        let row_numbers = SMOOTHING + known.values.len();
        let fixed = page.len().min(PAGE_FIXED_BYTES);
        let (fixed, rest) = page.split_at_mut(fixed);
        let mut rows = rest.chunks_exact_mut(8 * row_numbers);
        let count = (rows.len() as u32).to_le_bytes();
        let header = [count, (row_numbers as u32).to_le_bytes()].concat();
        fixed.copy_from_slice(&header[..fixed.len()]);
        let mut candidate = one.fit.parameters.clone();
        for row in &mut rows {
            scatter(&mut candidate, &one.fit.parameters, &mut self.random);
            let defined =
                known.run(one.fit.model, &candidate, &mut self.season, &mut self.errors).is_some();
            let Parameters { alpha, beta, gamma, phi, .. } = candidate;
            let numbers = [alpha, beta, gamma, phi].into_iter().chain(self.errors.iter().copied());
            for (place, number) in row.chunks_exact_mut(8).zip(numbers) {
                // A candidate that is not defined is infinitely wrong.
                let number = if defined { number } else { f64::INFINITY };
                place.copy_from_slice(&number.to_le_bytes());
            }
        }
        rows.into_remainder().fill(0);
    }

    fn take(&mut self, number: u64, _offset: u64, page: &[u8]) {
        let Some((fixed, rows)) = page.split_at_checked(PAGE_FIXED_BYTES) else { return };
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| fixed[at + byte]));
        let series = self.series_of(number);
        let one = &mut self.all[series];
        let mut adopted = false;
        for row in rows.chunks_exact(8 * word(4).max(1) as usize).take(word(0) as usize) {
            // One generator per page is enough.
            if one.judge(row) && !adopted {
                one.adopt(row);
                adopted = true;
            }
        }
    }
}

/// The numbers of a row.
fn numbers(row: &[u8]) -> impl Iterator<Item = f64> {
    row.chunks_exact(8).map(|bytes| f64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[i])))
}

/// Scatters the smoothing parameters of `candidate` about those of `best`, within their bounds.
fn scatter(candidate: &mut Parameters, best: &Parameters, random: &mut StdRng) {
    let mut near = |value: f64, most: f64| {
        let normal: f64 = StandardNormal.sample(random);
        (value * (SCATTER * normal).exp()).min(most)
    };
    candidate.alpha = near(best.alpha, 0.9999);
    candidate.beta = near(best.beta, candidate.alpha);
    candidate.gamma = near(best.gamma, 1.0 - candidate.alpha);
    candidate.phi = if best.phi < 1.0 { near(best.phi, 0.98) } else { 1.0 };
}

//! The models, their parameters and their one recursion.

use serde::{Deserialize, Serialize};

/// How errors enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Of one size everywhere.
    Additive,
    /// In proportion to the forecast; needs positive values.
    Multiplicative,
}

/// How the level moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrendKind {
    /// Not of its own.
    None,
    /// By a slope (Holt).
    Additive,
    /// By a slope that dies down.
    Damped,
}

/// How the season enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeasonKind {
    /// Not at all.
    None,
    /// Added to the level (Holt-Winters additive).
    Additive,
    /// Times the level (Holt-Winters multiplicative).
    Multiplicative,
}

/// One model of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// How errors enter.
    pub error: ErrorKind,
    /// How the level moves.
    pub trend: TrendKind,
    /// How the season enters.
    pub season: SeasonKind,
}

/// A series with what is known beside it.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// The values in order of time; NaN is missing.
    pub values: &'a [f64],
    /// Values in a season; 1 for none.
    pub season_length: usize,
    /// Columns of known numbers as long as `values`, none of them missing.
    pub regressors: &'a [Vec<f64>],
}

/// The parameters and the states of a model at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// How fast the level follows, 0 to 1.
    pub alpha: f64,
    /// How fast the slope follows, 0 to `alpha`.
    pub beta: f64,
    /// How fast the season follows, 0 to `1 - alpha`.
    pub gamma: f64,
    /// What is left of the slope after each step: 1 without damping.
    pub phi: f64,
    /// The level before the first value.
    pub level: f64,
    /// The slope before the first value.
    pub trend: f64,
    /// The season, that of the first value first; empty without.
    pub season: Vec<f64>,
    /// Coefficients of the regressors.
    pub coefficients: Vec<f64>,
}

impl Model {
    /// All 18 models.
    pub fn all() -> impl Iterator<Item = Model> {
        let errors = [ErrorKind::Additive, ErrorKind::Multiplicative];
        let trends = [TrendKind::None, TrendKind::Additive, TrendKind::Damped];
        let seasons = [SeasonKind::None, SeasonKind::Additive, SeasonKind::Multiplicative];
        errors.into_iter().flat_map(move |error| {
            trends.into_iter().flat_map(move |trend| {
                seasons.into_iter().map(move |season| Model { error, trend, season })
            })
        })
    }

    /// The name of the model in the literature, such as `ETS(A,Ad,M)`.
    #[must_use]
    pub fn name(self) -> String {
        let error = match self.error {
            ErrorKind::Additive => "A",
            ErrorKind::Multiplicative => "M",
        };
        let trend = match self.trend {
            TrendKind::None => "N",
            TrendKind::Additive => "A",
            TrendKind::Damped => "Ad",
        };
        let season = match self.season {
            SeasonKind::None => "N",
            SeasonKind::Additive => "A",
            SeasonKind::Multiplicative => "M",
        };
        format!("ETS({error},{trend},{season})")
    }

    /// Number of smoothing parameters.
    #[must_use]
    pub fn smoothing(self) -> usize {
        let trend = match self.trend {
            TrendKind::None => 0,
            TrendKind::Additive => 1,
            TrendKind::Damped => 2,
        };
        1 + trend + usize::from(self.season != SeasonKind::None)
    }

    /// Number of free initial states. The season counts one less than its length: it is fixed about
    /// the level.
    #[must_use]
    pub fn states(self, season_length: usize) -> usize {
        let season = match self.season {
            SeasonKind::None => 0,
            SeasonKind::Additive | SeasonKind::Multiplicative => season_length - 1,
        };
        1 + usize::from(self.trend != TrendKind::None) + season
    }

    /// Whether forecast errors have a closed form: additive errors and no product of states.
    #[must_use]
    pub fn is_linear(self) -> bool {
        self.error == ErrorKind::Additive && self.season != SeasonKind::Multiplicative
    }
}

/// The states while they move, and the forecast they make.
pub(super) struct States<'a> {
    model: Model,
    alpha: f64,
    beta: f64,
    gamma: f64,
    phi: f64,
    pub level: f64,
    pub trend: f64,
    pub season: &'a mut [f64],
    /// Which of the season is next.
    next: usize,
}

impl<'a> States<'a> {
    /// The states of `parameters`, the season in `season`, whose `next` is the next to come.
    pub fn new(
        model: Model,
        parameters: &Parameters,
        season: &'a mut [f64],
        next: usize,
    ) -> States<'a> {
        season.copy_from_slice(&parameters.season);
        let Parameters { alpha, beta, gamma, phi, level, trend, .. } = *parameters;
        States { model, alpha, beta, gamma, phi, level, trend, season, next }
    }

    /// The level to come and the forecast.
    #[inline]
    pub fn forecast(&self) -> (f64, f64) {
        let level = self.level + self.phi * self.trend;
        let forecast = match self.model.season {
            SeasonKind::None => level,
            SeasonKind::Additive => level + self.season[self.next],
            SeasonKind::Multiplicative => level * self.season[self.next],
        };
        (level, forecast)
    }

    /// Takes the step to the next time, where the value was `error` above the forecast. The same for
    /// additive and multiplicative errors: a relative error times the forecast is a difference.
    #[inline]
    pub fn advance(&mut self, level: f64, error: f64) {
        let of_level = match self.model.season {
            SeasonKind::None => error,
            SeasonKind::Additive => {
                self.season[self.next] += self.gamma * error;
                error
            }
            SeasonKind::Multiplicative => {
                let season = self.season[self.next];
                self.season[self.next] += self.gamma * error / level;
                error / season
            }
        };
        self.trend = self.phi * self.trend + self.beta * of_level;
        self.level = level + self.alpha * of_level;
        if !self.season.is_empty() {
            self.next += 1;
            if self.next == self.season.len() {
                self.next = 0;
            }
        }
    }

    /// The season with the next to come first.
    pub fn season_from_next(&self) -> Vec<f64> {
        let (before, from) = self.season.split_at(self.next);
        [from, before].concat()
    }
}

impl Series<'_> {
    /// What the regressors add at time `t`.
    ///
    /// # Panics
    /// If a regressor is not as long as the series.
    #[inline]
    #[must_use]
    pub fn explained(&self, coefficients: &[f64], t: usize) -> f64 {
        self.regressors.iter().zip(coefficients).map(|(column, b)| column[t] * b).sum()
    }

    /// Runs `model` over the series: `errors` become the one-step errors, relative ones if errors are
    /// multiplicative, zero where a value is missing. Returns the sum of the logarithms of the
    /// forecasts if errors are multiplicative (else zero); `None` where the model is not defined.
    ///
    /// # Panics
    /// If `errors` is not as long as the series, or `season` as the season of `parameters`.
    pub fn run(
        &self,
        model: Model,
        parameters: &Parameters,
        season: &mut [f64],
        errors: &mut [f64],
    ) -> Option<f64> {
        let mut states = States::new(model, parameters, season, 0);
        let sum = self.run_states(&mut states, &parameters.coefficients, errors)?;
        (states.level.is_finite() && states.trend.is_finite()).then_some(sum)
    }

    pub(super) fn run_states(
        &self,
        states: &mut States<'_>,
        coefficients: &[f64],
        errors: &mut [f64],
    ) -> Option<f64> {
        // Products are summed up, and their logarithm taken before they leave the range of a double.
        let (mut logarithms, mut product) = (0.0, 1.0_f64);
        let model = states.model;
        for (t, (&value, error)) in self.values.iter().zip(errors).enumerate() {
            let (level, forecast) = states.forecast();
            if model.season == SeasonKind::Multiplicative && (forecast <= 0.0 || level <= 0.0) {
                return None;
            }
            let difference = if value.is_nan() {
                0.0
            } else {
                value - self.explained(coefficients, t) - forecast
            };
            *error = match model.error {
                ErrorKind::Additive => difference,
                ErrorKind::Multiplicative => {
                    if forecast <= 0.0 {
                        return None;
                    }
                    if !value.is_nan() {
                        product *= forecast;
                        if !(1e-200..1e200).contains(&product) {
                            logarithms += product.ln();
                            product = 1.0;
                        }
                    }
                    difference / forecast
                }
            };
            states.advance(level, difference);
        }
        Some(logarithms + product.ln())
    }
}

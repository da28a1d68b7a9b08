//! Time series: exponential smoothing with a parameter search, choice among models, forecasts.
//!
//! The models are the innovations state space family (R. J. Hyndman, A. B. Koehler, J. K. Ord,
//! R. D. Snyder, "Forecasting with Exponential Smoothing", Springer 2008, chapters 2 and 5): errors
//! additive or multiplicative; trend none, additive or damped; season none, additive or
//! multiplicative; beside them a regression on known columns. Everything here is pure computation:
//! no files, no clock, and no randomness but from a seed, so that equal series give equal fits.
//!
//! Missing values (NaN) are passed over: the states go on as if the forecast had come true. Memory is
//! a few copies of the series, and its length times the number of parameters while it is fitted.

mod fit;
mod model;
mod predict;
mod search;
mod start;

pub use fit::{Choice, Fit, choose, fit, refit};
pub use model::{ErrorKind, Model, Parameters, SeasonKind, Series, TrendKind};
pub use predict::{Forecast, forecast, simulate};
pub use search::{Minimum, nelder_mead};
pub(crate) use start::interpolate;

//! Analytics steps: each reads data sets and writes data sets or tables.
//!
//! A step is a plain struct of settings with a `run` method, so that it can be read from a file; as an
//! [`Action`] it is run with the folders, memory and seed of a [`Context`]. Steps stream page by page; each states its bound on memory. A step that fails leaves no
//! half-written data set and no utility files.

pub mod demand;
pub mod dense;
pub mod derive;
pub mod export;
pub mod extract;
pub mod forecast;
pub mod frequency;
pub mod generate;
pub mod histogram;
pub mod import;
pub mod join;
pub mod projection;
pub mod rank;
pub mod regression;
pub mod repeat;
pub mod score_code;
pub mod sort;
pub mod summary;

pub mod glm;
pub mod glmm;
pub mod kmeans;
pub mod logistic;
pub mod mixed;
pub mod model;
pub mod nlmixed;
pub mod tree;

mod action;
mod context;
mod least_squares;
mod output;

pub use action::{Action, Outcome};
pub use context::{Buffers, Context, Job, Places};

pub use demand::Demand;
pub use dense::Dense;
pub use derive::Derive;
pub use export::Export;
pub use extract::Extract;
pub use forecast::Forecast;
pub use frequency::Frequency;
pub use generate::Generate;
pub use histogram::Histogram;
pub use import::Import;
pub use join::Join;
pub use projection::Projection;
pub use rank::Rank;
pub use regression::{Regression, RegressionFit};
pub use repeat::Repeat;
pub use score_code::ScoreCode;
pub use sort::Sort;
pub use summary::{Summary, SummaryTable};

pub use glm::{Glm, GlmFit};
pub use glmm::{Glmm, GlmmFit};
pub use kmeans::{Kmeans, KmeansFit};
pub use logistic::{Logistic, LogisticFit};
pub use mixed::{Mixed, MixedFit};
pub use nlmixed::{Nlmixed, NlmixedFit};
pub use tree::{Tree, TreeFit};

/// Told now and then, about once per page, how many rows a step has done so far. A step that makes
/// several passes (sort) counts the rows of each.
pub type Progress<'a> = dyn FnMut(u64) + 'a;

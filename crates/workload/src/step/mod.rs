//! Analytics steps: each reads data sets and writes data sets or tables.
//!
//! A step is a plain struct of settings with a `run` method, so that a workload mix can be read from a
//! file. Steps stream page by page; each states its bound on memory. A step that fails leaves no
//! half-written data set and no utility files.

pub mod export;
pub mod import;
pub mod regression;
pub mod repeat;
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

mod least_squares;

pub use export::Export;
pub use import::Import;
pub use regression::{Regression, RegressionFit};
pub use repeat::Repeat;
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

//! Analytics steps: each reads data sets and writes data sets or tables.
//!
//! A step is a plain struct of settings with a `run` method, so that a workload mix can be read from a
//! file. Steps stream page by page; each states its bound on memory. A step that fails leaves no
//! half-written data set and no utility files.

pub mod derive;
pub mod export;
pub mod extract;
pub mod forecast;
pub mod generate;
pub mod import;
pub mod names;
pub mod regression;
pub mod repeat;
pub mod sort;
pub mod stream;
pub mod summary;

mod least_squares;
mod meeting;
mod output;

pub use derive::Derive;
pub use export::Export;
pub use extract::Extract;
pub use forecast::Forecast;
pub use generate::Generate;
pub use import::Import;
pub use meeting::{Group, Together};
pub use names::Names;
pub use regression::{Regression, RegressionFit};
pub use repeat::Repeat;
pub use sort::Sort;
pub use stream::{Stream, StreamResult};
pub use summary::{Summary, SummaryTable};

/// Told now and then, about once per page, how many rows a step has done so far. A step that makes
/// several passes (sort) counts the rows of each.
pub type Progress<'a> = dyn FnMut(u64) + 'a;

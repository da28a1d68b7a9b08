//! The kinds of steps that a program may have.

use forebay_analytics::amount::Scale;
use forebay_analytics::step::{
    Demand, Dense, Derive, Export, Extract, Forecast, Frequency, Generate, Glm, Glmm, Histogram,
    Import, Join, Kmeans, Logistic, Mixed, Nlmixed, Projection, Rank, Regression, Repeat,
    ScoreCode, Sort, Summary, Tree,
};
use serde::{Deserialize, Serialize};

use super::{Action, Buffers};
use crate::lakehouse::{Query, ToParquet};
use crate::load::{Names, Stream, TempFiles};

macro_rules! steps {
    ($($kind:literal $name:ident),+ $(,)?) => {
        /// One step by its kind. In a file a kind is written as here, in snake case.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(clippy::large_enum_variant, reason = "a program has few steps")]
        pub enum Step {
            $(#[doc = concat!("See [`", stringify!($name), "`].")]
            #[serde(rename = $kind)]
            $name($name),)+
        }

        impl Step {
            /// All kinds.
            pub const KINDS: &[&str] = &[$($kind),+];

            /// The step's kind as it is written in a file.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Step::$name(_) => $kind,)+
                }
            }

            /// See [`Action::made_bytes`].
            #[must_use]
            pub fn made_bytes(&self, scale: Scale, buffers: &Buffers) -> u64 {
                self.action().made_bytes(scale, buffers)
            }

            /// Whether DuckDB or Polars does it, in Python.
            #[must_use]
            pub fn needs_python(&self) -> bool {
                matches!(self, Step::ToParquet(_) | Step::Query(_))
            }

            pub(super) fn action(&self) -> &dyn Action {
                match self {
                    $(Step::$name(step) => step,)+
                }
            }

            pub(super) fn action_mut(&mut self) -> &mut dyn Action {
                match self {
                    $(Step::$name(step) => step,)+
                }
            }
        }
    };
}

steps! {
    "import" Import,
    "export" Export,
    "repeat" Repeat,
    "sort" Sort,
    "summary" Summary,
    "regression" Regression,
    "generate" Generate,
    "derive" Derive,
    "extract" Extract,
    "stream" Stream,
    "names" Names,
    "forecast" Forecast,
    "join" Join,
    "frequency" Frequency,
    "histogram" Histogram,
    "rank" Rank,
    "logistic" Logistic,
    "glm" Glm,
    "mixed" Mixed,
    "glmm" Glmm,
    "nlmixed" Nlmixed,
    "kmeans" Kmeans,
    "tree" Tree,
    "demand" Demand,
    "temp_files" TempFiles,
    "projection" Projection,
    "dense" Dense,
    "score_code" ScoreCode,
    "to_parquet" ToParquet,
    "query" Query,
}

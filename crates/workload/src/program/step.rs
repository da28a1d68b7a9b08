//! The kinds of steps that a program may have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Buffers, Context};
use crate::amount::Scale;
use crate::error::Result;
use crate::histogram::{Bucket, quantile};
use crate::step::Progress;
use crate::table::Table;

/// What every step of a program can do.
pub trait Action {
    /// Completes the settings: replaces areas in paths by their directories, and fills in what is left
    /// to the context, such as page sizes.
    ///
    /// # Errors
    /// [`crate::Error::Setting`] if a setting is out of bounds.
    fn prepare(&mut self, context: &Context<'_>) -> Result<()>;

    /// Bytes that the step writes to data sets, for those steps that can tell without looking at
    /// anything; 0 for others. Known before a run, so that missing space is found in time.
    fn made_bytes(&self, _scale: Scale, _buffers: &Buffers) -> u64 {
        0
    }

    /// Does the work; called after [`Action::prepare`]. A step that fails leaves no half-written
    /// data set and no utility files.
    ///
    /// # Errors
    /// Whatever stops the step.
    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome>;
}

/// What a step found or measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Rows (or files, or operations) that it worked on.
    pub rows: u64,
    /// Its results as a table, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// Figures by name; units come last in the name (`write_mb_per_second`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// Distributions of the times of calls by name (`read`, `write`), in nanoseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latencies: BTreeMap<String, Vec<Bucket>>,
}

impl Outcome {
    /// An outcome of so many rows and nothing else.
    #[must_use]
    pub fn rows(rows: u64) -> Outcome {
        Outcome { rows, ..Outcome::default() }
    }

    /// An outcome of so many rows with a table.
    #[must_use]
    pub fn table(rows: u64, table: Table) -> Outcome {
        Outcome { rows, table: Some(table), ..Outcome::default() }
    }

    /// The same with one more figure.
    #[must_use]
    pub fn with(mut self, name: &str, figure: f64) -> Outcome {
        self.figures.insert(name.to_owned(), figure);
        self
    }

    /// The same with one more distribution of times in nanoseconds, and with its median, 99th and 99.9th
    /// percentile as figures (`read_p50_ms`, `read_p99_ms`, `read_p999_ms` for `read`).
    #[must_use]
    pub fn with_latency(mut self, name: &str, buckets: Vec<Bucket>) -> Outcome {
        for (label, part) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            if let Some(nanoseconds) = quantile(&buckets, part) {
                self = self.with(&format!("{name}_{label}_ms"), nanoseconds as f64 / 1e6);
            }
        }
        self.latencies.insert(name.to_owned(), buckets);
        self
    }
}

macro_rules! steps {
    ($($kind:literal $name:ident),+ $(,)?) => {
        /// One step by its kind. In a file a kind is written as here, in snake case.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Step {
            $(#[doc = concat!("See [`crate::step::", stringify!($name), "`].")]
            #[serde(rename = $kind)]
            $name(crate::step::$name),)+
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
}

//! What every step can do, and what it found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Buffers, Context, Progress};
use crate::amount::Scale;
use crate::error::Result;
use crate::histogram::{Bucket, quantile};
use crate::table::Table;

/// What every step can do.
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

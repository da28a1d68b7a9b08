//! Verdicts: what a run comes to, in plain sentences that claim no more than the record carries.

use serde::Serialize;

/// How good the news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing to worry about, or plain information.
    Good,
    /// The reader should know before he uses the figures.
    Warning,
    /// Something failed, or a rule is not met.
    Bad,
}

/// A sentence or two about a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How good the news is.
    pub level: Level,
    /// What it is about, in a word or two: `Run`, `Jobs`, `Cache`, `Cores`, `Throughput`.
    pub topic: &'static str,
    /// The sentences.
    pub text: String,
}

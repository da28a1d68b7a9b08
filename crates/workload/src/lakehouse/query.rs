//! Query: a question to a lake.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::make_directory;
use forebay_analytics::step::{Action, Context, Outcome, Progress};
use forebay_base::ByteSize;
use serde::{Deserialize, Serialize};

use super::compare;
use super::engine::{Engine, Work};
use super::to_parquet::{threads, util};

macro_rules! questions {
    ($($(#[$doc:meta])* $name:ident $file:literal),+ $(,)?) => {
        /// A question that both engines understand, in the manner of TPC-H, to the tables `lineitem`, `orders`, `customer`
        /// and `part`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Question {
            $($(#[$doc])* $name,)+
        }

        impl Question {
            /// All questions.
            pub const ALL: &[Question] = &[$(Question::$name),+];

            /// Its text.
            #[must_use]
            pub fn sql(self) -> &'static str {
                match self {
                    $(Question::$name => include_str!(concat!("queries/", $file, ".sql")),)+
                }
            }
        }
    };
}

questions! {
    /// One pass over the line items, a handful of groups (query 1).
    Pricing "pricing",
    /// Three tables joined, many groups, the ten largest (query 3).
    Shipping "shipping",
    /// A filter that most rows fail, and a sum (query 6).
    Forecast "forecast",
    /// A group for each order, joined with two tables (query 18).
    LargeOrders "large_orders",
    /// Line items joined with parts, a group for each brand (as query 14).
    Brands "brands",
    /// All line items in the order of their price.
    Sort "sort",
    /// The rows of the table `sorted` that are out of order: none, if [`Question::Sort`] was right. For DuckDB.
    Unsorted "unsorted",
}

/// Asks a lake a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// Who answers.
    pub engine: Engine,
    /// The directory of Parquet files, each a table with the name of its file.
    pub lake: PathBuf,
    /// A question that comes with the program; either this or `sql`.
    #[serde(default)]
    pub question: Option<Question>,
    /// A question of your own.
    #[serde(default)]
    pub sql: Option<String>,
    /// Where the rows go: Parquet if the name ends with `.parquet`, otherwise CSV with a header line; replaced if it exists,
    /// removed if the step fails.
    pub result: PathBuf,
    /// A CSV result of another step that must hold the same rows; numbers may differ by rounding.
    #[serde(default)]
    pub same_as: Option<PathBuf>,
    /// Whether the CSV result must have no rows.
    #[serde(default)]
    pub empty: bool,
    /// Where the directory for the engine's temporary files is made.
    #[serde(default = "util")]
    pub util: PathBuf,
    /// Threads of the engine; 1 unless told otherwise.
    #[serde(default = "threads")]
    pub threads: u32,
    /// Memory of the engine; that of the program unless told otherwise.
    #[serde(default)]
    pub memory: Option<ByteSize>,
}

impl Query {
    fn text(&self) -> Result<&str> {
        match (&self.question, &self.sql) {
            (Some(question), None) => Ok(question.sql()),
            (None, Some(sql)) => Ok(sql),
            (Some(_), Some(_)) | (None, None) => Err(Error::Setting {
                setting: "question",
                value: "and sql".to_owned(),
                allowed: "one of the two, not both and not neither".to_owned(),
            }),
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(other) = &self.same_as {
            compare::same(&self.result, other)?;
        }
        if self.empty {
            compare::empty(&self.result)?;
        }
        Ok(())
    }

    fn ask(&self, memory: ByteSize) -> Result<Outcome> {
        let work = Work::Ask { lake: &self.lake, sql: self.text()?, result: &self.result };
        let outcome = super::run(self.engine, &work, &self.util, self.threads, memory)?;
        self.check()?;
        Ok(outcome)
    }
}

impl Action for Query {
    fn prepare(&mut self, context: &Context<'_>) -> Result<()> {
        self.text()?;
        self.memory.get_or_insert(context.buffers.memory);
        context.resolve_all([&mut self.lake, &mut self.result, &mut self.util])?;
        self.same_as.as_mut().map_or(Ok(()), |other| context.resolve(other))
    }

    fn perform(&self, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
        make_directory(self.result.parent().unwrap_or(Path::new(".")))?;
        let outcome = self.ask(self.memory.unwrap_or(context.buffers.memory));
        match &outcome {
            Ok(outcome) => progress(outcome.rows),
            // The error that led here is the one to report.
            Err(_) => drop(fs::remove_file(&self.result)),
        }
        outcome
    }
}

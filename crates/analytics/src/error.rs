//! Why a step failed.

use std::io;
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a step failed. A kind exists only where the caller would act
/// differently.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file is no data set, or was cut off or changed.
    #[error("{}, page {page}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The page, counted from 0 (the header).
        page: u64,
        /// What is wrong.
        reason: String,
    },
    /// Something else was read back than was written: the storage lost or changed data.
    #[error("{} has changed since it was written: {reason}", path.display())]
    WrongContent {
        /// The file or directory.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// Two ways to the same result disagree, or a result is not what it must be.
    #[error("{} is wrong: {reason}", path.display())]
    WrongResult {
        /// The file with the result.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another program could not do its part.
    #[error("{program}: {reason}")]
    Program {
        /// The program.
        program: String,
        /// Why not.
        reason: String,
    },
    /// The writer of a data set was interrupted before it finished.
    #[error("{} is not finished: its writer was interrupted or is still writing", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// A CSV file cannot be read as asked.
    #[error("{}, line {line}{}: {reason}", path.display(), in_column(column.as_deref()))]
    Csv {
        /// The file.
        path: PathBuf,
        /// The line on which the record starts, counted from 1.
        line: u64,
        /// The column's name, if one column is to blame.
        column: Option<String>,
        /// What is wrong.
        reason: String,
    },
    /// A column does not exist or does not suit the step.
    #[error("{}, column \"{column}\": {reason}", path.display())]
    Column {
        /// The data set.
        path: PathBuf,
        /// The column's name.
        column: String,
        /// What is wrong.
        reason: String,
    },
    /// A setting is out of bounds.
    #[error("{setting} = {value}: must be {allowed}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// An expression cannot be understood.
    #[error("\"{expression}\", character {position}: {reason}")]
    Expression {
        /// The whole expression.
        expression: String,
        /// Where it stops making sense, in characters counted from 1.
        position: usize,
        /// What is wrong.
        reason: String,
    },
    /// A predictor is constant or a combination of the ones before it.
    #[error("column \"{column}\" is constant or a linear combination of the columns before it")]
    Collinear {
        /// The predictor's name.
        column: String,
    },
    /// The likelihood has no maximum: rows are told apart without error.
    #[error("no finite estimate: \"{column}\" separates the rows perfectly; omit it")]
    Separated {
        /// The term whose coefficient grows fastest.
        column: String,
    },
    /// An iterative fit came to no end.
    #[error("no convergence after {iterations} iterations")]
    NotConverged {
        /// Iterations made.
        iterations: u32,
    },
    /// Rows that have to be in memory together do not fit.
    #[error("{what} need {needed}, more than memory = {memory}; {instead}")]
    Memory {
        /// What does not fit.
        what: &'static str,
        /// What it takes.
        needed: ByteSize,
        /// What is allowed.
        memory: ByteSize,
        /// What to do.
        instead: &'static str,
    },
    /// Too few rows without missing values for the model.
    #[error("{rows} rows without missing values; the model needs at least {needed}")]
    TooFewRows {
        /// Rows without missing values.
        rows: u64,
        /// The least number of rows.
        needed: u64,
    },
    /// A computation left more than rounding explains: the machine or its memory is at fault.
    #[error("{what}: the remainder is {residual:e}, but at most {allowed:e} is allowed")]
    Inexact {
        /// What was computed.
        what: &'static str,
        /// What was left.
        residual: f64,
        /// What rounding explains.
        allowed: f64,
    },
    /// The classes do not fit in the memory allowed.
    #[error(
        "more than {limit} classes: raise classes_max, or sort by the class columns and summarise in \
         sorted order"
    )]
    TooManyClasses {
        /// The most classes that are kept in memory.
        limit: usize,
    },
    /// A data set that was said to be sorted is not.
    #[error("{}, row {row}: not sorted by the class columns", path.display())]
    NotSorted {
        /// The data set.
        path: PathBuf,
        /// The row, counted from 1.
        row: u64,
    },
}

impl Error {
    /// Builds the mapping from an operating system error: `.map_err(Error::io("open", path))`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }
}

fn in_column(column: Option<&str>) -> String {
    column.map(|name| format!(", column \"{name}\"")).unwrap_or_default()
}

//! Why a study failed.

use std::io;
use std::path::{Path, PathBuf};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a study failed. A kind exists only where the caller would act differently.
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
    /// There is too little free space.
    #[error("too little space: {missing}")]
    Space {
        /// Each file system with what it needs and has.
        missing: String,
    },
    /// An input could not be made.
    #[error("cannot create the input {name}: {reason}")]
    Input {
        /// The input.
        name: String,
        /// What its program said last.
        reason: String,
    },
    /// Whoever starts the jobs refused, or lost track of them.
    #[error("{reason}")]
    Launcher {
        /// Why.
        reason: String,
    },
    /// A process of a job cannot be started, held on to or waited for.
    #[error(transparent)]
    Process(#[from] forebay_process::Error),
    /// A record cannot be read.
    #[error("{}: {reason}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A workbook cannot be made.
    #[error("cannot write the workbook {}: {reason}", path.display())]
    Workbook {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Studies cannot be compared.
    #[error("cannot be compared: {reason}")]
    Incomparable {
        /// Why not.
        reason: String,
    },
    /// The workload's own error.
    #[error(transparent)]
    Workload(#[from] forebay_workload::Error),
    /// A step's or data set's own error.
    #[error(transparent)]
    Analytics(#[from] forebay_analytics::Error),
}

impl Error {
    /// Builds the mapping from an operating system error: `.map_err(Error::io("open", path))`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }
}

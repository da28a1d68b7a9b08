//! Why something could not be done to a process.

use std::io;
use std::path::{Path, PathBuf};

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done. A kind exists only where the caller would act differently.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The program, the file or the process.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A program was started, and had to be killed at once because nothing could hold on to its process.
    #[error("cannot hold on to {}, which was started and killed: {source}", program.display())]
    NotHeld {
        /// The program.
        program: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Builds the mapping from an operating system error: `.map_err(Error::io("open", path))`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// The operating system's answer.
    #[must_use]
    pub fn source_io(&self) -> &io::Error {
        match self {
            Error::Io { source, .. } | Error::NotHeld { source, .. } => source,
        }
    }
}

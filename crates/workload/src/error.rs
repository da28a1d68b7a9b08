//! Why a program could not be planned or run.

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program could not be planned or run. A kind exists only where the caller would act
/// differently.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mix cannot be read or makes no sense.
    #[error("{file}: {reason}")]
    Mix {
        /// The file, or the name of the mix.
        file: String,
        /// What is wrong, with the line.
        reason: String,
    },
    /// A parameter of a mix does not exist, or cannot have the value that it was given.
    #[error("--set {name}={value}: {reason}")]
    Parameter {
        /// The parameter's name.
        name: String,
        /// The value that was given.
        value: String,
        /// Why not, and what is allowed.
        reason: String,
    },
    /// A step of a program failed.
    #[error("step {number}, {name}: {source}")]
    Step {
        /// Its number in the program, from 1.
        number: usize,
        /// Its name.
        name: String,
        /// Why.
        source: forebay_analytics::Error,
    },
    /// The flights CSV was not found; the text says how to get it.
    #[error("{0}")]
    FlightsNotFound(String),
    /// The error of a step or a load, or a setting that is out of bounds.
    #[error(transparent)]
    Analytics(#[from] forebay_analytics::Error),
}

//! What can go wrong at a node. A kind exists only where somebody acts differently.

use std::path::{Path, PathBuf};

use crate::session::Refusal;

/// Why something did not work, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the node's home cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the node's home makes no sense.
    #[error("{}: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate or key cannot be used.
    #[error("certificate: {0}")]
    Certificate(String),
    /// A join token that no cluster has made, or that is over.
    #[error("{0}")]
    Token(String),
    /// Nobody answers at an address.
    #[error("{0}")]
    Unreachable(String),
    /// The other node has refused a hello.
    #[error("{0}")]
    Refused(Refusal),
    /// Etcd does not answer, or refuses.
    #[error("{0}")]
    Etcd(String),
    /// What was asked for cannot be done; the text says why and what to do.
    #[error("{0}")]
    Invalid(String),
}

/// The result of what a node does.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: an error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    }
}

//! The seam for stores of an archive.
//!
//! **Crash contract.** What [`Bucket::put`] or [`Part::complete`] has answered is durable and whole. Before that
//! nothing can be seen under the name. All calls block and may come from many threads.

use std::ops::Range;

/// Why a store refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// There is nothing of that name.
    #[error("there is no such object")]
    NotFound,
    /// There is no space left in it.
    #[error("no space left")]
    Full,
    /// It takes no object of that size.
    #[error("the object is too large for the store")]
    TooLarge,
    /// It does not answer, or cannot be asked now.
    #[error("{0}")]
    Away(String),
    /// It answered, and refused.
    #[error("{0}")]
    Refused(String),
}

/// Outcome of a call.
pub type Result<T> = std::result::Result<T, BucketError>;

/// The end of an object, and how long the whole is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Its last bytes.
    pub bytes: Vec<u8>,
    /// Bytes of the whole object.
    pub size: u64,
}

/// Where an archive keeps its objects.
pub trait Bucket: Send + Sync {
    /// What it is, in a word: `s3`, `directory`.
    fn kind(&self) -> &'static str;

    /// Puts an object, replacing one of that name.
    ///
    /// # Errors
    /// See [`BucketError`]; nothing can be seen of it then, or all.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Begins to put a large object, which comes in parts.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn begin(&self, name: &str) -> Result<Box<dyn Part>>;

    /// The bytes of an object, or a range of them: as many as there are.
    ///
    /// # Errors
    /// [`BucketError::NotFound`], and others.
    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>>;

    /// The last `length` bytes of an object: fewer if it has no more.
    ///
    /// # Errors
    /// [`BucketError::NotFound`], and others.
    fn tail(&self, name: &str, length: u64) -> Result<Tail>;

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn remove(&self, name: &str) -> Result<()>;

    /// Calls `visit` with name and size of each object whose name begins with `prefix`, until it returns `false`.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str, u64) -> bool) -> Result<()>;

    /// Removes what uploads have left that were interrupted. No upload is under way.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn clear_uploads(&self) -> Result<()> {
        Ok(())
    }
}

/// A large object that is being put. To drop it gives it up.
pub trait Part: Send {
    /// Puts the next bytes: at least 5 MiB, but for the last ones.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn put(&mut self, bytes: Vec<u8>) -> Result<()>;

    /// Makes the object of all parts.
    ///
    /// # Errors
    /// See [`BucketError`].
    fn complete(self: Box<Self>) -> Result<()>;
}

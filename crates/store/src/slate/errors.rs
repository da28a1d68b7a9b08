//! What the engine's errors mean to a caller of a store.

use slatedb::{CloseReason, Error, ErrorKind};

use crate::StoreError;

/// What a failure says of the engine's instance.
pub(super) enum Meaning {
    /// Another writer has opened the database: this one is over for good.
    Superseded,
    /// The instance is over, for a reason of its own.
    Ended(String),
    /// Only this call failed.
    Call(StoreError),
}

pub(super) fn meaning(name: &str, error: &Error) -> Meaning {
    let text = format!("names {name}: {error}");
    match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => Meaning::Superseded,
        ErrorKind::Closed(_) | ErrorKind::Internal => Meaning::Ended(text),
        ErrorKind::Data => Meaning::Call(StoreError::Damaged(text)),
        // Unavailable, Invalid, Transaction and what later versions add.
        _ => Meaning::Call(StoreError::Io(text)),
    }
}

/// For a caller that has no instance to keep.
pub(super) fn plain(name: &str, error: &Error) -> StoreError {
    match meaning(name, error) {
        Meaning::Superseded => StoreError::Conflict,
        Meaning::Ended(text) => StoreError::Io(text),
        Meaning::Call(error) => error,
    }
}

/// For operations on objects outside a database.
pub(super) fn of_objects(name: &str, error: &object_store::Error) -> StoreError {
    StoreError::Io(format!("names {name}: {error}"))
}
